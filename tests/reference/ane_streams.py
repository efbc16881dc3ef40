"""Tasks of H14 and later written, lists of any form placed, and registers while tasks run: what the
package's readers are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from npulab.npus.ane.facts import HEADER
from npulab.npus.ane.tasks import (
    COUNT,
    FRAME,
    LATER_TDE,
    MASK,
    PLACE,
    PREAMBLE,
    SELECTOR,
    SIZE,
    SPARSE,
    TASK_SIZE,
    Form,
    Record,
    Task,
    bytes_of,
    checked,
    cut,
    preamble,
    put,
)
from npulab.npus.kit.numbers import up
from npulab.registers.fields import WORD_BYTES
from npulab.registers.map import RegisterMap

SELECTS, BASE = (
    (8, 1),
    (2, 6),
)  # of SELECTOR: base BASE of the program is added to the values (JW, inferred)
H11_PLACES = 0x100  # bytes from record to record in h11.csv, since nobody states the addresses
H11_SLOT = 0x200  # bytes from task to task of H11


def with_bits(word: int, value: int, bits: tuple[int, int]) -> int:
    """The word with another value at its bits (lsb, width)."""
    return word + put(value, bits) - put(cut(word, bits), bits)


def record_to(address: int, *values: int, base: int | None = None) -> Record:
    """A dense record from ``address`` (bytes) on, its values added to ``base`` of the program.

    >>> hex(words_of_record(record_to(0x1508, 0, 0, base=5))[0])
    '0x22808542'
    """
    return Record(address, values, None, 0 if base is None else put(1, SELECTS) + put(base, BASE))


def base_of(record: Record) -> int | None:
    """The program's base (BAR) that is added to the values when the task is loaded; None where
    none is."""
    return cut(record.selector, BASE) if cut(record.selector, SELECTS) else None


def bases_of(task: Task) -> dict[int, int]:
    """The base of the program by the byte address of each register to whose value it is added."""
    return {
        address: base
        for record in task.records
        if (base := base_of(record)) is not None
        for address, _ in record.writes
    }


def words_of_record(record: Record) -> list[int]:
    """The words of a record of H14 and later; raises ValueError for what has no words."""
    steps = MASK[1] + 1 if record.mask is not None else 2 ** COUNT[1]
    held = 1 + record.mask.bit_count() if record.mask is not None else len(record.values)
    if (
        not 0 < len(record.values) <= steps
        or len(record.values) != held
        or record.address % WORD_BYTES
    ):
        raise ValueError(
            f"record at {record.address:#x}: got {len(record.values)} values, allowed is "
            f"{f'1 to {steps}' if record.mask is None else held}, from a multiple of {WORD_BYTES} on"
        )
    head = put(record.address // WORD_BYTES, PLACE)
    if record.mask is None:
        return [
            head + put(len(record.values) - 1, COUNT) + put(record.selector, SELECTOR),
            *record.values,
        ]
    if record.selector:
        raise ValueError(
            f"record at {record.address:#x}: got a mask and a selector, allowed is one of them"
        )
    return [head + put(record.mask, MASK) + put(1, SPARSE), *record.values]


def place(tasks: Sequence[Task], form: Form, slot: int = WORD_BYTES) -> list[Task]:
    """The same tasks in the slots of a form, the place and size of the next one filled in."""
    out: list[Task] = []
    at = 0
    for task, after in zip(tasks, (*tasks[1:], None), strict=True):
        words, offset = task.words, at
        at += up(len(task.raw), slot)
        size = len(after.raw) // WORD_BYTES - 1 if after else 0
        words[form.pointer] = at if after else 0
        words[SIZE] = with_bits(words[SIZE], size, form.next_size)
        out.append(replace(task, offset=offset, raw=bytes_of(words)))
    return out


def places(task: Task) -> tuple[tuple[int, int], ...]:
    """(offset in the table, value) of a task's writes: H11's by the place of their record, others
    by address."""
    if task.compact:
        return task.writes
    return tuple(
        (H11_PLACES * n + WORD_BYTES * i, value)
        for n, record in enumerate(task.records)
        for i, value in enumerate(record.values)
    )


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


def strays(tasks: Sequence[Task], registers: RegisterMap) -> list[tuple[int, int]]:
    """(task, byte address) of every write to a register that the map lacks: of another generation,
    perhaps."""
    return [
        (n, offset)
        for n, task in enumerate(tasks)
        for offset, _ in places(task)
        if offset not in registers.index
    ]


def _held(tasks: Sequence[Task], registers: RegisterMap) -> tuple[np.ndarray, np.ndarray]:
    """(states, written) as the functions of these names give them."""
    words = np.zeros((len(tasks), len(registers)), np.uint32)
    known = np.zeros(words.shape, bool)
    headers = [word for word, (_, offset, _) in enumerate(registers.registers) if offset >= HEADER]
    for n, task in enumerate(tasks):
        own = [(HEADER + WORD_BYTES * i, word) for i, word in enumerate(task.header)]
        new = {
            registers.index[offset]: value
            for offset, value in [*own, *places(task)]
            if offset in registers.index
        }
        for rows, values in ((words, list(new.values())), (known, True)):
            rows[n] = rows[n - 1] if n else 0
            rows[n, headers] = 0
            rows[n, list(new)] = values
    return words, known


def make_h14(header: Sequence[int], records: Sequence[Record], header_words: int = 8) -> Task:
    """A task of H14 and later at offset 0, its size filled in; ``header`` has its DTID where it has
    TDE.

    Raises ValueError for more than 2047 words, a header that is not whole, a record that has no
    words.
    """
    words = [*header, *(word for record in records for word in words_of_record(record))]
    held = header_words + (len(header) >= header_words and cut(header[header_words - 1], LATER_TDE))
    if len(header) != held:
        raise ValueError(f"task: got a header of {len(header)} words, allowed is {held}")
    if len(words) >= 2 ** TASK_SIZE[1]:
        raise ValueError(
            f"task: got {len(words)} words, allowed are at most {2 ** TASK_SIZE[1] - 1}"
        )
    if not all(0 <= word < 2**32 for word in words):
        raise ValueError(
            f"task: got {next(word for word in words if not 0 <= word < 2**32)} as a word, "
            "allowed is 0 to 0xffffffff"
        )
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
        raise ValueError(
            f"task stream: got the preamble {first.hex()}, allowed are none or {FRAME} bytes without "
            "a size"
        )
    for n, task in enumerate(tasks):
        if cut(task.header[0], TASK_SIZE) != len(task.raw) // WORD_BYTES:
            raise ValueError(
                f"task stream, task {n}: got a size of {cut(task.header[0], TASK_SIZE)} words in its "
                f"header, allowed is {len(task.raw) // WORD_BYTES}"
            )
    end = max([len(first), *(task.end for task in tasks)])
    size = end if size is None else size
    if size < end or size % WORD_BYTES:
        raise ValueError(
            f"task stream: got a size of {size} bytes, allowed is a multiple of {WORD_BYTES} from {end} on"
        )
    parts, at = [first], len(first)
    for n, task in enumerate(tasks):
        if task.offset < at or task.offset % FRAME:
            raise ValueError(
                f"task stream, task {n}: got the offset {task.offset:#x}, allowed is a multiple of {FRAME} from {at:#x} on"
            )
        parts += [bytes(task.offset - at), task.raw]
        at = task.end
    return b"".join([*parts, bytes(size - at)])
