"""Tasks of the ANE: header words, then records of register writes.

Up to H13, the tasks of a program are a linked list; from H14 on, they follow each other (a stream).
A record is a word that states registers, then their values. Up to H13, a record writes consecutive
registers from a byte address on. From H14 on (``compact``), addresses count words, and a record is
dense or sparse. A dense record writes consecutive registers; its selector may name a base of the
program that is added to the values. A sparse record writes a first register, and those of the next
16 registers whose bit in a mask is 1.

A task may leave out records. If the bit TDE of its header is set, the header has one more word
(DTID). Registers keep their values from task to task, so a missing write is not a write of zero.
Sources: files of four compilers; the record headers of tinygrad's printer (ane/aneregs); JW (record
words of 2251 tasks of H14 and some hundred of H15 to H18), FT; AG for H11, whose register addresses
no source states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy import ndarray as Array

from npulab.npus.ane.facts import CHIPS, HEADER, TABLES
from npulab.npus.kit import WORD_BYTES, refuse_if

# Bits (lsb, width) of a record's first word on H14 and later.
PLACE, COUNT, SELECTOR, MASK, SPARSE = (0, 15), (15, 6), (21, 10), (15, 16), (31, 1)
# Bits (lsb, width) of a record's first word up to H13: byte address, number of values less 1.
OLD_PLACE, OLD_COUNT = (0, 26), (26, 6)
# The lowest bit and the number of bits.
Bits = tuple[int, int]
# The (byte address, value) of each register write, in order.
Writes = tuple[tuple[int, int], ...]


def cut(word: Any, bits: Bits) -> Any:
    """Return the value of the bits (lsb, width) of a word, or of each word of an array.

    >>> cut(0x2280_8542, COUNT), hex(4 * cut(0x2280_8542, PLACE))
    (1, '0x1508')
    """
    lsb, width = bits
    return word >> lsb & 2**width - 1


def put(value: int, bits: Bits) -> int:
    """Return a word with ``value`` at the bits (lsb, width) and zeros elsewhere.

    Raises ValueError if the value does not fit into the bits.
    """
    lsb, width = bits
    if not 0 <= value < 2**width:
        raise ValueError(
            f"record: got {value:#x} for bits {lsb + width - 1}:{lsb}, allowed is 0 to "
            f"{2**width - 1:#x}"
        )
    return value * 2**lsb


class Record(NamedTuple):
    """The register writes of one record: the byte address of the first register, and the values.

    ``mask`` is None for a dense record. In a sparse record its bit i (bit 0 is the lowest) is 1 if
    the register ``1 + i`` words after the first register is written too. ``selector`` is the value
    of bits 30:21 in the first word of a dense record of H14 and later.

    >>> Record(0x504, (1, 2), mask=0b100).writes
    ((1284, 1), (1296, 2))
    """

    address: int
    values: tuple[int, ...]
    mask: int | None = None
    selector: int = 0

    @property
    def writes(self) -> Writes:
        """The (byte address, value) of every write, in order."""
        steps = [*range(len(self.values))]
        if self.mask is not None:
            steps = [0, *(1 + i for i in range(MASK[1]) if self.mask >> i & 1)]
        places = [self.address + WORD_BYTES * step for step in steps]
        return tuple(zip(places, self.values, strict=True))

    @property
    def words(self) -> list[int]:
        """The words of the record in the form of chips up to H13.

        Raises ValueError for a record that this form cannot express.
        """
        most, count = 2 ** OLD_COUNT[1], len(self.values)
        refuse_if(
            not 0 < count <= most or self.address % WORD_BYTES,
            f"record at {self.address:#x}",
            f"{count} values",
            f"is 1 to {most}, at a multiple of {WORD_BYTES}",
        )
        refuse_if(
            self.mask is not None or self.selector,
            f"record at {self.address:#x}",
            "a mask or selector",
            "are both for H14 and later",
        )
        return [put(self.address, OLD_PLACE) + put(count - 1, OLD_COUNT), *self.values]


def words_of(raw: bytes) -> list[int]:
    return np.frombuffer(raw, "<u4").tolist()  # type: ignore[no-any-return]


def bytes_of(words: Sequence[int]) -> bytes:
    return np.array(words, "<u4").tobytes()


def split(
    words: Sequence[int], start: int, compact: bool, what: str, offset: int = 0
) -> Iterator[Record]:
    """Yield the records in the words of a task, from word ``start`` on.

    ``compact`` is true for records of H14 and later. ``offset`` is the byte of the first word in
    its section. Raises ValueError, with ``what`` and the record's byte in the section, for a record
    that runs past the words or past the last register, and up to H13 for an address that is not a
    multiple of 4.
    """
    # The number of words that addresses can count.
    last = 2 ** (PLACE[1] if compact else OLD_PLACE[1] - 2)
    at = start

    def refuse(got: str, allowed: str) -> NoReturn:
        byte = offset + WORD_BYTES * at
        raise ValueError(f"{what}, record at byte {byte:#x}: got {got}, allowed is {allowed}")

    while at < len(words):
        head, mask, selector = words[at], None, 0
        if compact:
            place = cut(head, PLACE)
            if cut(head, SPARSE):
                mask = cut(head, MASK)
                count, reach = 1 + mask.bit_count(), 1 + mask.bit_length()
            else:
                count = reach = 1 + cut(head, COUNT)
                selector = cut(head, SELECTOR)
        else:
            place, odd = divmod(cut(head, OLD_PLACE), WORD_BYTES)
            count = reach = 1 + cut(head, OLD_COUNT)
            if odd:
                refuse(f"the address {cut(head, OLD_PLACE):#x}", f"a multiple of {WORD_BYTES}")
        if place + reach > last:
            highest = WORD_BYTES * (place + reach - 1)
            refuse(f"registers up to {highest:#x}", f"up to {WORD_BYTES * (last - 1):#x}")
        if at + count >= len(words):
            left = len(words) - at - 1
            refuse(f"{count} values", f"the {left} words that the task has left")
        yield Record(WORD_BYTES * place, tuple(words[at + 1 : at + 1 + count]), mask, selector)
        at += 1 + count


def first_broken(words: Array, starts: Array, ends: Array) -> int | None:
    """Return the number of the first task with compact records that ``split`` refuses, or None.

    ``words`` is the whole section ``(n,) uint32``. The records of task i are the words from
    ``starts[i]`` to before ``ends[i]``. Each step of the loop reads one record of every task.
    """
    run, at = np.flatnonzero(starts < ends), starts[starts < ends].astype(np.int64)
    broken = len(starts)
    while len(run):
        head = words[at]
        mask, sparse, dense = cut(head, MASK), cut(head, SPARSE), cut(head, COUNT)
        count = 1 + np.where(sparse, np.bitwise_count(mask), dense).astype(np.int64)
        last = np.where(sparse, np.frexp(mask)[1], dense).astype(np.int64)
        reach = 1 + last + cut(head, PLACE)
        at += 1 + count
        bad = (reach > 2 ** PLACE[1]) | (at > ends[run])
        broken = min([broken, *run[bad][:1].tolist()])
        keep = ~bad & (at < ends[run])
        run, at = run[keep], at[keep]
    if broken == len(starts):
        return None
    return broken


# A task id has 16 bits.
MOST_TASKS = 2**16
# Up to H13: the number of the header word with the next task's size, and the bit TDE in the header
# word of flags.
SIZE, TDE = 1, (24, 1)
# The first register of the coefficient stream; every task that was seen begins with its record.
KERNEL = 0x1F800
# In a bare task list, coefficients begin at the next multiple of this many bytes after the tasks.
ALIGN = 16


class Form(NamedTuple):
    """The form of linked tasks on a chip.

    ``words`` is the number of header words without DTID. ``flags`` and ``pointer`` are the numbers
    of the header words that have the flags and the next task's byte. ``next_size`` are the bits
    (lsb, width) of the next task's size, less 1, in header word ``SIZE``. ``size`` is the number of
    words, without DTID, of a task whose size no word states; 0 means that it ends with its records.
    ``known`` are the byte addresses of the chip's registers. If ``known`` is empty, tasks must lie
    in the order of their links, with zeros between them.
    """

    words: int
    flags: int
    pointer: int
    next_size: Bits
    size: int = 0
    known: frozenset[int] = frozenset()

    def held(self, words: Sequence[int]) -> int:
        """Return the number of header words of a task, DTID included if the bit TDE is set.

        ``words`` are the first words of the task.
        """
        return self.words + (len(words) > self.flags and cut(words[self.flags], TDE))


REGISTERS = frozenset(offset for offset in TABLES["H13"].index if offset < HEADER)
H13 = Form(CHIPS["h13"]["header_words"], 6, 7, (16, 9), known=REGISTERS)
H11 = Form(CHIPS["h11"]["header_words"], 4, 5, (16, 8), 83)
# A task whose size no word states has at most this many words.
MOST_WORDS = 2 * len(TABLES["H13"]) + H13.words


@dataclass(frozen=True)
class Task:
    """A task: header words, then records.

    ``offset`` is its byte in the section, ``raw`` the bytes of its words (little-endian) from the
    header on. ``header_words`` is the number of header words, DTID included. ``compact`` is true if
    the records have the form of H14 and later. The class checks nothing: ``read_list``,
    ``read_h14`` and ``make`` return checked tasks.
    """

    offset: int
    raw: bytes
    header_words: int
    compact: bool = True

    @property
    def words(self) -> list[int]:
        return words_of(self.raw)

    @property
    def header(self) -> tuple[int, ...]:
        return tuple(words_of(self.raw[: WORD_BYTES * self.header_words]))

    @cached_property
    def records(self) -> tuple[Record, ...]:
        return tuple(split(self.words, self.header_words, self.compact, "task"))

    @property
    def placed(self) -> Iterator[tuple[int, Record]]:
        """The records in order, each as (byte offset in the task, record)."""
        place = WORD_BYTES * self.header_words
        for record in self.records:
            yield place, record
            place += WORD_BYTES * (1 + len(record.values))

    @property
    def writes(self) -> Writes:
        """The (byte address, value) of every register write, in order; a later write replaces an
        earlier write to the same register."""
        return tuple(chain.from_iterable(record.writes for record in self.records))

    @property
    def job_writes(self) -> Writes:
        """The (offset, value) of every header word, from offset ``HEADER`` on, then ``writes``."""
        head = [(HEADER + WORD_BYTES * i, word) for i, word in enumerate(self.header)]
        return (*head, *self.writes)

    @property
    def end(self) -> int:
        return self.offset + len(self.raw)


def read_list(
    text: bytes, first: int = 0, words: int | None = None, where: str = "tasks", form: Form = H13
) -> list[Task]:
    """Return the linked tasks of a section (chips up to H13), in the order of their links.

    The first task begins at byte ``first`` and has ``words`` words; without ``words``, ``form``
    decides where it ends. Raises ValueError, with ``where``, the task and its byte offset, for a
    list that is cut short, loops or overlaps, and for records that leave their task or write an
    unknown register.
    """
    tasks: list[Task] = []
    at, size = first, words
    # True for each word of the section that belongs to an earlier task.
    taken = np.zeros(len(text) // WORD_BYTES, bool)
    if not form.known and len(text) % WORD_BYTES:
        raise ValueError(f"{where}: got {len(text)} bytes, allowed is a multiple of {WORD_BYTES}")
    while True:
        what = f"{where}: task {len(tasks)} at byte {at:#x}"
        if len(tasks) == MOST_TASKS or at % WORD_BYTES:
            got = "one task more"
            if at % WORD_BYTES:
                got = "an offset that is not a multiple of 4"
            raise ValueError(
                f"{what}: got {got}, allowed are up to {MOST_TASKS} tasks on whole words"
            )
        task = _task(text, at, size, form, what)
        covered = taken[at // WORD_BYTES : task.end // WORD_BYTES]
        if covered.any():
            why = f"its {len(task.words)} words overlap an earlier task"
            if any(earlier.offset == at for earlier in tasks):
                why = "the list comes back to it, allowed is each task once"
            raise ValueError(f"{what}: {why}")
        covered[:] = True
        tasks.append(task)
        at, size = task.header[form.pointer], cut(task.header[SIZE], form.next_size)
        if not form.known:
            _refuse_disorder(text, task, at, what)
        if not at:
            return tasks
        size = size + 1 if size or not form.size else None


def _task(text: bytes, at: int, size: int | None, form: Form, what: str) -> Task:
    """Return the task at byte ``at`` of a section; ``size`` is its number of words, None if
    unknown.

    A task of unknown size ends before the first word that cannot begin a record, because the record
    would run past the section, write an unknown register, or write a register again.
    """
    left = max(len(text) - at, 0) // WORD_BYTES
    words = np.frombuffer(text, "<u4", min(left, size or MOST_WORDS), at if left else 0).tolist()
    held = place = form.held(words)
    size = size or (form.size + held - form.words if form.size else None)
    if not held <= (size or held) <= left:
        raise ValueError(
            f"{what}: needs {size or held} words, got the {left} that the section has "
            f"left, allowed is at least the {held} of a header"
        )
    written: set[int] = set()
    try:
        for record in split(words[:size], held, False, what, at):
            addresses = [address for address, _ in record.writes if form.known]
            absent = [address for address in addresses if address not in form.known]
            if size is not None:
                # The size proves that this is a record, so a register that the map lacks is only
                # unknown; header words are never written by a record.
                absent = [address for address in absent if address >= HEADER]
            if absent or not written.isdisjoint(addresses):
                why = "some of which the task wrote before"
                if absent:
                    why = f"the chip has no register at {absent[0]:#x}"
                raise ValueError(
                    f"{what}, record at byte {at + WORD_BYTES * place:#x}: got "
                    f"{len(addresses)} registers from {record.address:#x}, {why}"
                )
            written.update(addresses)
            place += 1 + len(record.values)
    except ValueError:
        if size is not None:
            raise
    if form.known and place == held:
        raise ValueError(f"{what}: has no record of register values after its header")
    return Task(at, bytes(text[at : at + WORD_BYTES * place]), held, compact=False)


def _refuse_disorder(text: bytes, task: Task, pointer: int, what: str) -> None:
    """Raise ValueError if the next task begins before the end of ``task``, or after other words
    than zeros.

    ``pointer`` is the byte of the next task, 0 after the last task.
    """
    following = pointer or len(text)
    if pointer and (not task.end <= following < len(text) or following % WORD_BYTES):
        raise ValueError(
            f"{what}: got {following:#x} as NextPointer, allowed is 0 or a multiple of "
            f"{WORD_BYTES} from {task.end:#x} to {len(text):#x}: the list does not go back"
        )
    if text.count(0, task.end, following) != following - task.end:
        raise ValueError(
            f"{what}: got bytes after it that are not 0, allowed are zeros from byte "
            f"{task.end:#x} to {following:#x}"
        )


def make(header: Sequence[int], records: Sequence[Record], form: Form = H13) -> Task:
    """Return a task of a chip up to H13, at offset 0, from header words and records.

    Raises ValueError for a header whose length contradicts its bit TDE, and for a record that
    chips up to H13 cannot have (``Record.words``).
    """
    held = form.held(header)
    if len(header) != held:
        raise ValueError(f"task: got a header of {len(header)} words, allowed is {held}")
    words = [*header]
    for record in records:
        words += record.words
    return Task(0, bytes_of(words), held, compact=False)


def records(writes: Sequence[Bits], offset: int = 0) -> Task:
    """Return the H13 task at byte ``offset`` of a section, from writes as in ``Task.job_writes``.

    Writes to consecutive registers become one record. Raises ValueError if a header word is missing
    or header words are not in order.
    """
    header = [write for write in writes if write[0] >= HEADER]
    if [place for place, _ in header] != [HEADER + WORD_BYTES * i for i in range(len(header))]:
        raise ValueError(f"task: got {len(header)} header words, allowed are {H13.words} in order")
    listed: list[Record] = []
    following = -1
    for address, value in writes:
        if address == following and len(listed[-1].values) < 2 ** OLD_COUNT[1]:
            listed[-1] = listed[-1]._replace(values=(*listed[-1].values, value))
        elif address < HEADER:
            listed.append(Record(address, (value,)))
        following = -1
        if address < HEADER:
            following = address + WORD_BYTES
    return replace(make([value for _, value in header], listed), offset=offset)


def write(tasks: Sequence[Task], what: str = "tasks") -> bytes:
    """Return the bytes of a section: the tasks at their offsets, with zeros between them.

    The tasks must be in the order of their offsets. Raises ValueError for tasks that overlap, and
    for an offset that is no multiple of 4.
    """
    parts, at = [], 0
    for n, task in enumerate(tasks):
        if task.offset < at or task.offset % WORD_BYTES:
            raise ValueError(
                f"{what}, task {n}: got the offset {task.offset:#x}, allowed is a "
                f"multiple of {WORD_BYTES} that is at least {at:#x}"
            )
        parts += [bytes(task.offset - at), task.raw]
        at = task.end
    return b"".join(parts)


def is_task(data: bytes) -> bool:
    """Return true if bytes begin with a task of H13, whose first record writes the coefficient
    stream's registers."""
    size = WORD_BYTES * (H13.words + 2)
    if len(data) < size:
        return False
    words = words_of(data[:size])
    first = words[H13.held(words)]
    return cut(first, OLD_PLACE) == KERNEL and 0 < cut(first, OLD_COUNT) < 2 ** OLD_COUNT[1] - 1


# Tasks of H14 and later follow each other without links. The first header word has the number of
# words of the task. Tasks begin at multiples of 16 bytes, with zeros between them; 16 bytes (the
# preamble) may stand before the first task. Sources: JW (2251 tasks of H14, some hundred of H15 to
# H18), FT; see sources.csv.

# A task begins at a multiple of this many bytes; the preamble is as long.
FRAME = 16
PREAMBLE = (1).to_bytes(FRAME, "little")
# Bits (lsb, width) of the task's size in the first header word, and of TDE in the last header word.
TASK_SIZE, LATER_TDE = (16, 11), (1, 1)


def read_h14(text: bytes, header_words: int = 8) -> list[Task]:
    """Return the tasks of a section of H14 and later, in order.

    ``header_words`` is 8 on H14 and H15 and 9 on H16 and later (JW); a task has one more header
    word (DTID) if its last header word has the bit TDE. The preamble (see ``preamble``) is skipped.
    Raises ValueError, with task and byte, for sizes and records past the end, and for bytes that
    are neither a task nor zeros.
    """
    if len(text) % WORD_BYTES:
        raise ValueError(
            f"task stream: got {len(text)} bytes, allowed is a multiple of {WORD_BYTES}"
        )
    if not 0 < header_words < 2 ** TASK_SIZE[1]:
        raise ValueError(
            f"task stream: got {header_words} header words, allowed is 1 to {2 ** TASK_SIZE[1] - 1}"
        )
    text = bytes(text)
    words = np.frombuffer(text, "<u4")
    tasks: list[Task] = []
    at = len(preamble(text))
    while (at := next_nonzero(words, at)) < len(text):
        what = f"task stream, task {len(tasks)} at byte {at:#x}"
        size = 0
        if at % FRAME == 0:
            size = cut(int(words[at // WORD_BYTES]), TASK_SIZE)
        if not size:
            raise ValueError(
                f"{what}: got {int(words[at // WORD_BYTES]):#x}, allowed is zeros or, on a "
                f"multiple of {FRAME} bytes, a header with its size"
            )
        refuse_if(len(tasks) == MOST_TASKS, what, "one task more", f"are {MOST_TASKS}")
        raw = text[at : at + WORD_BYTES * size]
        refuse_if(
            len(raw) < WORD_BYTES * size,
            what,
            f"a size of {size} words",
            f"is the {len(raw) // WORD_BYTES} words that the section has left",
        )
        tasks.append(Task(at, raw, header_words))
        at += len(raw)
    return whole(tasks, words, header_words)


def whole(tasks: Sequence[Task], words: Array, header_words: int) -> list[Task]:
    """Return the tasks of a section of H14 and later, checked, with DTID in ``header_words``.

    ``words`` are those of the whole section. This is ``checked`` for all tasks at once: it raises
    the error of the first task that is cut short.
    """
    starts = np.array([task.offset for task in tasks], np.int64) // WORD_BYTES
    ends = np.array([task.end for task in tasks], np.int64) // WORD_BYTES
    control = words[np.minimum(starts + header_words, ends) - 1]
    extended = cut(control, LATER_TDE)
    begins = starts + header_words + extended.astype(np.int64)
    suspects = np.flatnonzero(begins > ends)[:1].tolist()
    broken = first_broken(words, begins, ends)
    if broken is not None:
        suspects.append(broken)
    for n in sorted(suspects):
        checked(tasks[n], header_words, f"task stream, task {n} at byte {tasks[n].offset:#x}")
    out = list(tasks)
    for n in np.flatnonzero(extended).tolist():
        out[n] = replace(out[n], header_words=header_words + 1)
    return out


def checked(task: Task, header_words: int, what: str) -> Task:
    """Return a task of H14 and later with its DTID word, if it has one, in ``header_words``.

    Raises ValueError, with ``what``, if its header or a record is longer than the task.
    """
    words = task.words
    held = header_words + (len(words) >= header_words and cut(words[header_words - 1], LATER_TDE))
    if len(words) < held:
        raise ValueError(
            f"{what}: got a size of {len(words)} words, "
            f"allowed is at least the {held} of its header"
        )
    for _ in split(words, held, True, what, task.offset):
        pass
    return replace(task, header_words=held)


def next_nonzero(words: Array, at: int) -> int:
    """Return the byte offset of the first word from byte ``at`` on that is not 0, else that of the
    end."""
    # The number of words that are searched at a time; it grows if all of them are 0.
    step = 64
    start = at // WORD_BYTES
    while start < len(words):
        some = words[start : start + step] != 0
        if some.any():
            return WORD_BYTES * (start + int(some.argmax()))
        start, step = start + step, min(4 * step, 2**18)
    return WORD_BYTES * len(words)


def preamble(text: bytes) -> bytes:
    """Return the 16 bytes before the first task of H14 and later; empty if a task stands there.

    >>> preamble(PREAMBLE + bytes(4)) == PREAMBLE
    True
    """
    first = int.from_bytes(text[:WORD_BYTES], "little")
    if cut(first, TASK_SIZE) or len(text) < FRAME:
        return b""
    return bytes(text[:FRAME])
