"""Task descriptors of H13: header words, then records of values for consecutive registers, in a
linked list.

A record is a word ``(count - 1) << 26 | address`` and ``count`` values, the address in bytes.  A
classic task has seven records, a compact one leaves out what it does not need, an extended one has
a header word more (DTID, announced by TDE).  As register writes a task is (offset, value) pairs in
order, its header words first, from ``HEADER`` on. Source: files of four compilers; the printer's
record headers (tinygrad ane/aneregs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from npulab.npus.ane.facts import CHIPS, HEADER, TABLES, USUAL_CHIP
from npulab.npus.ane.records import split
from npulab.registers.fields import WORD_BYTES

HEADER_WORDS = CHIPS[USUAL_CHIP]["header_words"]
COUNT_STEP = 2 ** 26  # the count stands above the address in a record's header
MOST_VALUES = 2 ** 6
SIZE, POINTER, FLAGS = 1, 7, 6  # header words: size of the next task, its place, flags
TDE = 2 ** 24
KERNEL = 0x1F800  # where the coefficient stream's registers begin, the first record of every task seen
ALIGN = 16  # the kernel section of a bare blob follows its last task so
REGISTERS = TABLES["H13"]
ADDRESSES = frozenset(offset for offset in REGISTERS.index if offset < HEADER)


class Record(NamedTuple):
    """Values written to consecutive registers; ``offset`` is the byte of its header in the task."""

    offset: int
    address: int
    values: tuple[int, ...]

    @property
    def writes(self) -> list[tuple[int, int]]:
        """(address, value) of each register."""
        return [(self.address + WORD_BYTES * i, value) for i, value in enumerate(self.values)]


@dataclass(frozen=True)
class Task:
    """One task; ``offset`` is its byte in the section."""

    offset: int
    header: tuple[int, ...]
    records: tuple[Record, ...]

    @property
    def words(self) -> int:
        """Its size in words."""
        return len(self.header) + sum(1 + len(one.values) for one in self.records)

    @property
    def extended(self) -> bool:
        """Whether it has the header word DTID."""
        return len(self.header) > HEADER_WORDS

    @property
    def next_offset(self) -> int:
        """Where the next task lies in the section, 0 behind the last."""
        return self.header[POINTER]

    @property
    def next_words(self) -> int:
        """The size of the next task in words."""
        return self.header[SIZE] // 2 ** 16 % 2 ** 9 + 1

    @property
    def writes(self) -> tuple[tuple[int, int], ...]:
        """(offset, value) of every word, the header's from ``HEADER`` on."""
        head = [(HEADER + WORD_BYTES * i, value) for i, value in enumerate(self.header)]
        return (*head, *(write for record in self.records for write in record.writes))


def read_list(text: bytes, first: int = 0, words: int | None = None,
              where: str = "tasks") -> tuple[Task, ...]:
    """The tasks of a section, from byte ``first`` on by their links.

    ``words`` is the size of the first one; without it that one ends where its records do.  Raises
    ValueError naming ``where``, the task and its byte offset for a list that is cut short, loops or
    overlaps, and for records that do not fill their task or write no register.
    """
    tasks: list[Task] = []
    at, size = first, words
    taken = np.zeros(len(text) // WORD_BYTES, bool)  # words that a task has already
    while True:
        what = f"{where}: task {len(tasks)} at byte {at:#x}"
        if at % WORD_BYTES:
            raise ValueError(f"{what}: got an offset that is no multiple of {WORD_BYTES}")
        task = _task(text, at, size, what)
        mine = taken[at // WORD_BYTES:at // WORD_BYTES + task.words]
        if mine.any():
            again = any(one.offset == at for one in tasks)
            raise ValueError(f"{what}: " + ("the list comes back to it, allowed is each task once" if again else
                                            f"its {task.words} words overlap an earlier task"))
        mine[:] = True
        tasks.append(task)
        if not task.next_offset:
            break
        at, size = task.next_offset, task.next_words
    return tuple(tasks)


def _task(text: bytes, at: int, size: int | None, what: str) -> Task:
    """The task at a byte; one of unknown size ends before what is not a record of its own."""
    end = len(text) if size is None else at + WORD_BYTES * size
    if end > len(text) or at + WORD_BYTES * HEADER_WORDS > end:
        raise ValueError(f"{what}: needs {size or HEADER_WORDS} words, the section has "
                         f"{max(len(text) - at, 0) // WORD_BYTES} from there and a header {HEADER_WORDS}")
    data = np.frombuffer(text, "<u4", min((end - at) // WORD_BYTES, 2 * len(REGISTERS) + HEADER_WORDS), at)
    length = HEADER_WORDS + bool(int(data[FLAGS]) & TDE)
    listed: list[Record] = []
    written: set[int] = set()
    place = length
    try:
        for record in split(data.tolist(), length, False, what, at):
            addresses = [address for address, _ in record.writes]
            # if the size is known, registers that no map has are unknown words
            absent = [address for address in addresses if address not in ADDRESSES
                      and (size is None or address >= HEADER)]
            if absent or not written.isdisjoint(addresses):
                why = f"there is none at {absent[0]:#x}" if absent else "some a second time"
                raise ValueError(f"{what}, record at byte {at + WORD_BYTES * place:#x}: got "
                                 f"{len(addresses)} registers from {record.address:#x}, {why}")
            written.update(addresses)
            listed.append(Record(WORD_BYTES * place, record.address, record.values))
            place += 1 + len(record.values)
    except ValueError:
        if size is not None:
            raise
    if not listed:
        raise ValueError(f"{what}: has no record of register values behind its header")
    return Task(at, tuple(data[:length].tolist()), tuple(listed))


def records(writes: Sequence[tuple[int, int]], offset: int = 0) -> Task:
    """The task at a byte of its section whose register writes these are, as ``Task.writes`` gives
    them.

    Neighbouring registers go into one record.  Raises ValueError where the header's words are not
    there in order.
    """
    header = [write for write in writes if write[0] >= HEADER]
    words = tuple(value for _, value in header)
    length = HEADER_WORDS + (len(words) > FLAGS and bool(words[FLAGS] & TDE))
    if [place for place, _ in header] != [HEADER + WORD_BYTES * i for i in range(length)]:
        raise ValueError(f"task: got {len(words)} header words, allowed are {length} in order")
    listed: list[Record] = []
    place, following = WORD_BYTES * length, -1
    for address, value in writes:
        if address >= HEADER:
            continue
        if address == following and len(listed[-1].values) < MOST_VALUES:
            listed[-1] = listed[-1]._replace(values=(*listed[-1].values, value))
        else:
            listed.append(Record(place, address, (value,)))
            place += WORD_BYTES
        place, following = place + WORD_BYTES, address + WORD_BYTES
    return Task(offset, words, tuple(listed))


def write(tasks: Sequence[Task]) -> bytes:
    """The section of tasks at their places, zeros between them, to the end of the last."""
    text = np.zeros(max(one.offset // WORD_BYTES + one.words for one in tasks), "<u4")
    for task in tasks:
        values = [*task.header]
        for one in task.records:
            values += [(len(one.values) - 1) * COUNT_STEP + one.address, *one.values]
        begin = task.offset // WORD_BYTES
        text[begin:begin + len(values)] = values
    return text.tobytes()


def is_task(data: bytes) -> bool:
    """Whether bytes begin with a task: the first record is that of the coefficient stream."""
    if len(data) < WORD_BYTES * (HEADER_WORDS + 2):
        return False
    words = np.frombuffer(data, "<u4", HEADER_WORDS + 2)
    first = int(words[HEADER_WORDS + bool(int(words[FLAGS]) & TDE)])
    return first % COUNT_STEP == KERNEL and 1 < first // COUNT_STEP + 1 < MOST_VALUES
