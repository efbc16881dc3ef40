"""Task streams of H14 and later written: what ``read_h14`` of the package is held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from npulab.npus.ane.streams import FRAME, PREAMBLE, TASK_SIZE, TDE, checked, preamble
from npulab.npus.ane.tasks import Record, Task, bytes_of, cut, with_bits, write
from npulab.registers.fields import WORD_BYTES


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
    words[0] = with_bits(words[0], len(words), TASK_SIZE)
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
    for n, task in enumerate(tasks):
        if cut(task.header[0], TASK_SIZE) != len(task.raw) // WORD_BYTES:
            raise ValueError(f"task stream, task {n}: got a size of {cut(task.header[0], TASK_SIZE)} words in its "
                             f"header, allowed is {len(task.raw) // WORD_BYTES}")
    return write(tasks, first=first, size=size, align=FRAME, what="task stream")
