"""Task streams that lie one behind the other in words: H14 and later; and the short list of H11.

A task is a header and records.  H14 and later: the header's first word counts the words of the
task, tasks lie on 16 bytes behind a preamble of 16 bytes, zeros between them, without a list.  H11:
a list by NextPointer, as on H13.  Registers keep their value from task to task, so a write that is
not there is no write of zero.

Sources: JW (2251 tasks of H14, some hundred of H15 to H18), FT, AG for H11; see the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from npulab.npus.ane.facts import HEADER
from npulab.npus.ane.records import Record, bytes_of, cut, first_broken, put, split, words_of
from npulab.registers.fields import WORD_BYTES
from npulab.registers.map import RegisterMap

FRAME = 16  # bytes: tasks of H14 and later lie on them, and so long is the preamble
PREAMBLE = (1).to_bytes(FRAME, "little")
MOST_TASKS = 2 ** 16  # a task id has 16 bits

# Bits of header words, (lsb, width): of the first and of the control word of H14's, of H11's
TASK_SIZE, TDE = (16, 11), (1, 1)
H11_HEADER, H11_NEXT_SIZE, H11_TDE, H11_NEXT = 7, (16, 8), (24, 1), 5
H11_WORDS, H11_SLOT = 83, 0x200  # of a task without DTID; bytes from task to task (AG)
H11_PLACES = 0x100  # bytes from record to record in h11.csv, since nobody states the addresses


@dataclass(frozen=True)
class Task:
    """A task: its byte offset in the section and its words, little-endian, the header's first.

    ``header_words`` counts the DTID word where there is one; ``compact`` are the records of H14 and
    later. Tasks that were read have been checked; one that is made by hand goes through
    ``make_h14`` or ``make_h11``.
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
        return tuple(words_of(self.raw[:WORD_BYTES * self.header_words]))

    @cached_property
    def records(self) -> tuple[Record, ...]:
        return tuple(split(self.words, self.header_words, self.compact, "task"))

    @property
    def writes(self) -> tuple[tuple[int, int], ...]:
        """(byte address, value) of every register write, in order; a later one to the same register
        wins."""
        return tuple(write for record in self.records for write in record.writes)

    @property
    def bases(self) -> dict[int, int]:
        """The base of the program by the byte address of each register to whose value it is
        added."""
        return {address: record.base for record in self.records if record.base is not None
                for address, _ in record.writes}

    @property
    def end(self) -> int:
        return self.offset + len(self.raw)


def read_h14(text: bytes, header_words: int = 8) -> list[Task]:
    """The tasks of a section of H14 and later, in order.

    ``header_words`` is 8 on H14 and H15 and 9 from H16 on (JW); one more follows where the last of
    them has TDE. Raises ValueError, naming task and byte, for sizes and records past the end and
    for what is neither task nor zeros; a frame of 16 bytes at the start that has no size is the
    preamble (see ``preamble``).
    """
    if len(text) % WORD_BYTES:
        raise ValueError(f"task stream: got {len(text)} bytes, allowed is a multiple of {WORD_BYTES}")
    if not 0 < header_words < 2 ** TASK_SIZE[1]:
        raise ValueError(f"task stream: got {header_words} header words, allowed is 1 to {2 ** TASK_SIZE[1] - 1}")
    text = bytes(text)
    words = np.frombuffer(text, "<u4")
    tasks: list[Task] = []
    at = len(preamble(text))
    while (at := next_nonzero(words, at)) < len(text):
        what = f"task stream, task {len(tasks)} at byte {at:#x}"
        size = cut(int(words[at // WORD_BYTES]), TASK_SIZE) if at % FRAME == 0 else 0
        if not size:
            raise ValueError(f"{what}: got {int(words[at // WORD_BYTES]):#x}, allowed is zeros or, on a multiple of "
                             f"{FRAME} bytes, a header with its size")
        if len(tasks) == MOST_TASKS:
            raise ValueError(f"{what}: got one task more, allowed are {MOST_TASKS}")
        raw = text[at:at + WORD_BYTES * size]
        if len(raw) < WORD_BYTES * size:
            raise ValueError(f"{what}: got a size of {size} words, allowed is the {len(raw) // WORD_BYTES} words that "
                             "the section has left")
        tasks.append(Task(at, raw, header_words))
        at += len(raw)
    return whole(tasks, words, header_words)


def whole(tasks: Sequence[Task], words: np.ndarray, header_words: int) -> list[Task]:
    """The tasks of a section's words with their DTID words counted; the same as ``checked`` on
    each."""
    starts = np.array([task.offset for task in tasks], np.int64) // WORD_BYTES
    ends = np.array([task.end for task in tasks], np.int64) // WORD_BYTES
    control = words[np.minimum(starts + header_words, ends) - 1]
    held = header_words + (control >> np.uint32(TDE[0]) & np.uint32(2 ** TDE[1] - 1)).astype(np.int64)
    short = np.flatnonzero(starts + held > ends)[:1].tolist()
    broken = first_broken(words, starts + held, ends)
    for n in sorted([*short, *([] if broken is None else [broken])]):
        checked(tasks[n], header_words, f"task stream, task {n} at byte {tasks[n].offset:#x}")
    return [task if count == header_words else replace(task, header_words=count)
            for task, count in zip(tasks, held.tolist(), strict=True)]


def checked(task: Task, header_words: int, what: str) -> Task:
    """The task of H14 and later with its DTID word counted, if it is whole; raises ValueError where
    it is not."""
    words = task.words
    held = header_words + (len(words) >= header_words and cut(words[header_words - 1], TDE))
    if len(words) < held:
        raise ValueError(f"{what}: got a size of {len(words)} words, allowed is at least the {held} of its header")
    for _ in split(words, held, True, what, task.offset):
        pass
    return replace(task, header_words=held)


def next_nonzero(words: np.ndarray, at: int) -> int:
    """The byte of the first word that is not 0 from byte ``at`` on, or the end of the words."""
    step = 64
    start = at // WORD_BYTES
    while start < len(words):
        some = words[start:start + step] != 0
        if some.any():
            return WORD_BYTES * (start + int(some.argmax()))
        start, step = start + step, min(4 * step, 2 ** 18)
    return WORD_BYTES * len(words)


def preamble(text: bytes) -> bytes:
    """The 16 bytes before the first task of H14 and later, none where a task stands at the start.

    >>> preamble(PREAMBLE + bytes(4)) == PREAMBLE
    True
    """
    first = int.from_bytes(text[:WORD_BYTES], "little")
    return b"" if cut(first, TASK_SIZE) or len(text) < FRAME else bytes(text[:FRAME])


def make_h14(header: Sequence[int], records: Sequence[Record], header_words: int = 8) -> Task:
    """A task of H14 and later at offset 0, its size filled in; ``header`` has its DTID where it has
    TDE.

    Raises ValueError for more than 2047 words, a header that is not whole, a record that has no
    words.
    """
    words = [*header, *(word for record in records for word in record.words(True))]
    held = header_words + (len(header) >= header_words and cut(header[header_words - 1], TDE))
    if len(header) != held:
        raise ValueError(f"task: got a header of {len(header)} words, allowed is {held}")
    if len(words) >= 2 ** TASK_SIZE[1]:
        raise ValueError(f"task: got {len(words)} words, allowed are at most {2 ** TASK_SIZE[1] - 1}")
    if not all(0 <= word < 2 ** 32 for word in words):
        raise ValueError(f"task: got {next(word for word in words if not 0 <= word < 2 ** 32)} as a word, "
                         "allowed is 0 to 0xffffffff")
    words[0] += put(len(words), TASK_SIZE) - put(cut(words[0], TASK_SIZE), TASK_SIZE)
    return checked(Task(0, bytes_of(words), held), header_words, "task")


def place_h14(tasks: Sequence[Task], start: int = FRAME) -> list[Task]:
    """The same tasks one behind the other from byte ``start`` on, each on 16 bytes."""
    out: list[Task] = []
    for task in tasks:
        at = out[-1].end if out else start
        out.append(replace(task, offset=at + -at % FRAME))
    return out


def write_h14(tasks: Sequence[Task], *, first: bytes = PREAMBLE, size: int | None = None) -> bytes:
    """The section that ``read_h14`` reads: tasks at their offsets behind the preamble ``first``,
    zeros between.

    ``size`` is that of the section, by default up to the end of the last task. Raises ValueError
    for tasks that overlap, that are not in order or not on 16 bytes, and for wrong sizes.
    """
    if len(first) not in (0, FRAME) or preamble(first) != first:
        raise ValueError(f"task stream: got the preamble {first.hex()}, allowed are none or {FRAME} bytes without "
                         "a size")
    return laid(tasks, first, size, FRAME, "task stream")


def laid(tasks: Sequence[Task], first: bytes, size: int | None, align: int, what: str) -> bytes:
    """Tasks at their offsets behind ``first``, zeros between, up to ``size`` bytes."""
    end = max([len(first), *(task.end for task in tasks)])
    size = end if size is None else size
    if size < end or size % WORD_BYTES:
        raise ValueError(f"{what}: got a size of {size} bytes, allowed is a multiple of {WORD_BYTES} from {end} on")
    parts, at = [first], len(first)
    for n, task in enumerate(tasks):
        if task.offset < at or task.offset % align:
            raise ValueError(f"{what}, task {n}: got the offset {task.offset:#x}, allowed is a multiple of {align} "
                             f"from {at:#x} on")
        if task.compact and cut(task.header[0], TASK_SIZE) != len(task.raw) // WORD_BYTES:
            raise ValueError(f"{what}, task {n}: got a size of {cut(task.header[0], TASK_SIZE)} words in its header, "
                             f"allowed is {len(task.raw) // WORD_BYTES}")
        parts += [bytes(task.offset - at), task.raw]
        at = task.end
    return b"".join([*parts, bytes(size - at)])


def read_h11(text: bytes, first_words: int | None = None) -> list[Task]:
    """The tasks of an H11 section, along its list.

    The first task has ``first_words`` words, by default the 83 of AG, 84 with DTID; so has one
    whose NextSize is 0.  Raises ValueError, naming task and byte, for a list that goes back or past
    the end, for records past their task, and for what is neither task nor zeros.
    """
    if len(text) % WORD_BYTES:
        raise ValueError(f"H11 tasks: got {len(text)} bytes, allowed is a multiple of {WORD_BYTES}")
    text = bytes(text)
    tasks: list[Task] = []
    at, size = 0, first_words
    while True:
        what = f"H11 tasks, task {len(tasks)} at byte {at:#x}"
        if len(tasks) == MOST_TASKS:
            raise ValueError(f"{what}: got one task more, allowed are {MOST_TASKS}")
        header = words_of(text[at:at + WORD_BYTES * H11_HEADER])
        if len(header) < H11_HEADER:
            raise ValueError(f"{what}: got {len(header)} words, allowed is at least the {H11_HEADER} of a header")
        held = H11_HEADER + cut(header[4], H11_TDE)
        size = size or H11_WORDS + held - H11_HEADER
        raw = text[at:at + WORD_BYTES * size]
        if not held <= size <= len(raw) // WORD_BYTES:
            raise ValueError(f"{what}: got a size of {size} words, allowed is {held} to the {len(raw) // WORD_BYTES} "
                             "that the section has left")
        task = Task(at, raw, held, compact=False)
        for _ in split(task.words, held, False, what, at):
            pass
        tasks.append(task)
        then = header[H11_NEXT] or len(text)
        if header[H11_NEXT] and (not task.end <= then < len(text) or then % WORD_BYTES):
            raise ValueError(f"{what}: got {then:#x} as NextPointer, allowed is 0 or a multiple of {WORD_BYTES} from "
                             f"{task.end:#x} to {len(text):#x}: the list does not go back")
        if text.count(0, task.end, then) != then - task.end:
            raise ValueError(f"{what}: got something behind it, allowed is zeros from byte {task.end:#x} to {then:#x}")
        if not header[H11_NEXT]:
            return tasks
        at, size = then, cut(header[1], H11_NEXT_SIZE) + 1 if cut(header[1], H11_NEXT_SIZE) else None


def make_h11(header: Sequence[int], records: Sequence[Record]) -> Task:
    """An H11 task at offset 0; ``header`` has 7 words, 8 where it has TDE.

    Raises ValueError for a header that is not whole and for a record that has no words.
    """
    held = H11_HEADER + (len(header) >= H11_HEADER and cut(header[4], H11_TDE))
    if len(header) != held:
        raise ValueError(f"H11 task: got a header of {len(header)} words, allowed is {held}")
    words = [*header, *(word for record in records for word in record.words(False))]
    return Task(0, bytes_of(words), held, compact=False)


def place_h11(tasks: Sequence[Task]) -> list[Task]:
    """The same tasks in slots of 0x200 bytes, their NextPointer and NextSize filled in."""
    offsets = [0]
    for task in tasks:
        offsets.append(offsets[-1] + len(task.raw) + -len(task.raw) % H11_SLOT)
    out = []
    for n, task in enumerate(tasks):
        words = task.words
        more = n + 1 < len(tasks)
        size = len(tasks[n + 1].raw) // WORD_BYTES - 1 if more else 0
        words[H11_NEXT] = offsets[n + 1] if more else 0
        words[1] += put(size, H11_NEXT_SIZE) - put(cut(words[1], H11_NEXT_SIZE), H11_NEXT_SIZE)
        out.append(replace(task, offset=offsets[n], raw=bytes_of(words)))
    return out


def write_h11(tasks: Sequence[Task], *, size: int | None = None) -> bytes:
    """The section that ``read_h11`` reads: tasks at their offsets, zeros between; headers stay as
    they are."""
    return laid(tasks, b"", size, WORD_BYTES, "H11 tasks")


def places(task: Task) -> tuple[tuple[int, int], ...]:
    """(offset in the table, value) of a task's writes: H11's by the place of their record, others
    by address."""
    if task.compact:
        return task.writes
    return tuple((H11_PLACES * n + WORD_BYTES * i, value)
                 for n, record in enumerate(task.records) for i, value in enumerate(record.values))


def columns(task: Task, registers: RegisterMap) -> dict[int, int]:
    """The values that a task gives to the words of a map, its header's words among them."""
    index = registers.index
    own = [(HEADER + WORD_BYTES * i, word) for i, word in enumerate(task.header)]
    return {index[offset]: value for offset, value in [*own, *places(task)] if offset in index}


def states(tasks: Sequence[Task], registers: RegisterMap) -> np.ndarray:
    """Words ``(N, W) uint32`` of a map's registers while each of N tasks runs.

    Registers keep their value from the tasks before; the block Header is that of the task itself.
    What a register holds before the first write is not known: it is 0 here, and ``written`` tells.
    Writes to registers that the map lacks are left out, ``strays`` lists them.
    """
    return _held(tasks, registers)[0]


def written(tasks: Sequence[Task], registers: RegisterMap) -> np.ndarray:
    """Which words of ``states`` were written, by the task or one before it: ``(N, W) bool``."""
    return _held(tasks, registers)[1]


def _held(tasks: Sequence[Task], registers: RegisterMap) -> tuple[np.ndarray, np.ndarray]:
    """(states, written) as the functions of these names give them."""
    words = np.zeros((len(tasks), len(registers)), np.uint32)
    known = np.zeros(words.shape, bool)
    headers = [word for word, (_, offset, _) in enumerate(registers.registers) if offset >= HEADER]
    for n, task in enumerate(tasks):
        new = columns(task, registers)
        for rows, values in ((words, list(new.values())), (known, True)):
            rows[n] = rows[n - 1] if n else 0
            rows[n, headers] = 0
            rows[n, list(new)] = values
    return words, known


def strays(tasks: Sequence[Task], registers: RegisterMap) -> list[tuple[int, int]]:
    """(task, byte address) of every write to a register that the map lacks: of another generation,
    perhaps."""
    return [(n, offset) for n, task in enumerate(tasks) for offset, _ in places(task) if offset not in registers.index]
