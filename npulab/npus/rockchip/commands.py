"""Command words: 64 bits that write a register of a unit, ``target << 48 | value << 16 |
register``, little-endian.

A target is a unit's id with the bit ``WRITE`` set. A block of commands ends with four words: the
address of the next block (zeros in the last block), the amount of commands of the next block (0 in
the last), ``SYNC``, and ``ENABLE`` with the units that run. Source: PH, WT (the captures); M for
the amount.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.npus.kit import Job, ceil_div, up
from npulab.npus.rockchip.facts import OWNERS, RANGE, REGISTERS, TABLES, TARGETS
from npulab.npus.rockchip.tasks import Task

WORDS = np.dtype([("register", "<u2"), ("value", "<u4"), ("target", "<u2")])
WRITE = 0x01  # the bit in the low byte of a target that makes the command a write
# Targets that are no units: SYNC writes no register, ENABLE writes OPERATION_ENABLE.
SYNC, ENABLE = 0x0041, 0x0081
NEXT_ADDRESS, NEXT_AMOUNT, OPERATION_ENABLE = 0x0010, 0x0014, 0x0008
PC = TARGETS["PC"] + WRITE
# The (target, register) of each word after the address of the next block.
LAST_WORDS = ((PC, NEXT_AMOUNT), (SYNC, 0), (ENABLE, OPERATION_ENABLE))
END_WORDS = 1 + len(LAST_WORDS)


class Command(NamedTuple):
    """One command word.

    >>> Command(0x1001, 0xE, 0x4004).bytes.hex()
    '04400e0000000110'
    """

    target: int
    value: int
    register: int

    @classmethod
    def to(cls, register: int, value: int) -> Command:
        """Return the word that writes a register; raise LookupError if no unit has its address.

        >>> Command.to(0x1070, 0xFFC68000).target == 0x0201
        True
        """
        owner = 0
        if 0 <= register < 2**16:
            owner = int(OWNERS[register // RANGE])
        if not owner:
            units = ", ".join(f"{unit * RANGE:#x}" for unit in np.flatnonzero(OWNERS))
            raise LookupError(
                f"register: got {register:#x}, allowed are registers of the units that begin at "
                f"{units}"
            )
        return cls(owner + WRITE, value, register)

    @property
    def bytes(self) -> bytes:
        """Return the 8 bytes; raise ValueError if a number does not fit."""
        try:
            return np.array((self.register, self.value, self.target), WORDS).tobytes()
        except OverflowError:
            raise ValueError(f"command: got {self}, allowed are 16, 32 and 16 bits") from None


class Block(NamedTuple):
    """A task and its words ``(n,)``; ``end`` are the words that end the block."""

    task: Task | None
    words: Array
    end: Array

    @property
    def job(self) -> Job:
        """Return the job, with the writes of the block's end and the task's record as its start."""
        registers = TABLES[REGISTERS]
        start = None
        if self.task:
            start = self.task.job
        if written(self.end).any():
            start = replace(Job.from_writes(REGISTERS, writes_of(self.end), registers), start=start)
        return replace(Job.from_writes(REGISTERS, writes_of(self.words), registers), start=start)


def commands(data: bytes, where: str = "commands") -> Array:
    """Return the command words ``(n,)`` in bytes: ``target``, ``value``, ``register``; raise
    ValueError for bytes that are left over."""
    rest = len(data) % WORDS.itemsize
    if rest:
        raise ValueError(
            f"{where}: got {len(data)} bytes, the last {rest} from byte {len(data) - rest:#x} on "
            f"are not a whole command, allowed is a multiple of {WORDS.itemsize}"
        )
    return np.frombuffer(data, WORDS)


def stream(words: Iterable[Command]) -> bytes:
    """Return the bytes of commands in order; the inverse of ``commands``."""
    return b"".join(command.bytes for command in words)


def known(words: Array) -> Array:
    """Return for each word ``(n,)`` whether it names a register of the unit that is its target,
    with or without ``WRITE``."""
    owners = OWNERS[words["register"] // RANGE]
    of_unit = words["target"] - words["target"] % 2 == owners
    return (owners != 0) & of_unit & (words["register"] % 4 == 0)


def written(words: Array) -> Array:
    """Return for each word ``(n,)`` whether it writes a register."""
    enables = (words["target"] == ENABLE) & (words["register"] == OPERATION_ENABLE)
    return (known(words) & (words["target"] % 2 == WRITE)) | enables


def writes(words: Array) -> list[tuple[int, int]]:
    """Return (register, value) of every register that a command stream ``(n,) uint32`` writes, in
    order. If ``n`` is odd, the last word is ignored.

    A dump may leave out the bit ``WRITE``: if no command has it, every command that names a
    register counts as a write.
    """
    pairs = np.ascontiguousarray(words, "<u4")[: len(words) // 2 * 2]
    every = pairs.view(WORDS)
    if not written(every).any():
        every = flagged(every)
    return writes_of(every)


def flagged(words: Array) -> Array:
    """Return the words ``(n,)``, with the bit ``WRITE`` set in each that names a register."""
    out = words.copy()
    out["target"][known(words)] |= WRITE
    return out


def writes_of(words: Array) -> list[tuple[int, int]]:
    """Return (register, value) of every command word ``(n,)`` that writes a register."""
    words = words[written(words)]
    return list(zip(words["register"].tolist(), words["value"].tolist(), strict=True))


def ends(words: Array) -> Array:
    """Return for each word ``(n,)`` whether the end of a block begins there."""
    found = np.zeros(len(words), bool)
    count = len(words) - END_WORDS + 1
    if count <= 0:
        return found
    zeros = words.view("<u8") == 0
    begins = (zeros | _is(words, PC, NEXT_ADDRESS))[:count]
    for place, key in enumerate(LAST_WORDS, 1):
        begins &= _is(words[place : place + count], *key)
    found[:count] = begins
    return found


def split(words: Array, file: Path | str) -> list[Block]:
    """Return the blocks of words for which there are no task records: a block ends with the four
    words of a block's end, or with the last word."""
    blocks = []
    if written(words).any():
        is_sync = (words["target"] == SYNC) & (words["register"] == 0)
        expected = written(words) | (words.view("<u8") == 0) | is_sync
        if not expected.all():
            raise ValueError(f"{file}: {broken(words, int(np.argmin(expected)))}")
        begin = 0
        for end in np.flatnonzero(ends(words)).tolist():
            blocks.append(Block(None, words[begin:end], words[end : end + END_WORDS]))
            begin = end + END_WORDS
        blocks.append(Block(None, words[begin:], words[:0]))
    else:
        warnings.warn(
            f"{file}: no command has the flag {WRITE:#04x} of a write in its target; the "
            "NPU may have had other values",
            stacklevel=3,
        )
        last = known(words) & (words["register"] == NEXT_AMOUNT)
        for part in np.split(flagged(words), np.flatnonzero(last) + 1):
            blocks.append(Block(None, part, words[:0]))
    return [block for block in blocks if written(block.words).any() or written(block.end).any()]


def broken(words: Array, at: int) -> str:
    """Return the error text about a word that is not a command."""
    return (
        f"command at byte {WORDS.itemsize * at:#x}: got target {words['target'][at]:#06x} and "
        f"register {words['register'][at]:#06x}, allowed is a register of the target's unit"
    )


def blocks_of(
    words: Array,
    listed: Sequence[Task],
    base: int | None = None,
) -> list[Block] | None:
    """Return the words of each task, if the first word lies at ``base`` (by default the first
    block's address).

    Returns None if words of a task are missing or do not write registers.
    """
    if not listed:
        return None
    if base is None:
        base = min(task.command_address for task in listed)
    good = written(words)
    end_at = ends(words)
    blocks = []
    for task in listed:
        first, odd = divmod(task.command_address - base, WORDS.itemsize)
        last = first + task.commands
        if odd or first < 0 or last > len(words) or not good[first:last].all():
            return None
        end = words[:0]
        if last < len(words) and end_at[last]:
            end = words[last : last + END_WORDS]
        blocks.append(Block(task, words[first:last], end))
    return blocks


def block_end(
    enable: int, next_address: int = 0, next_words: int = 0, cores: int = 0
) -> list[Command]:
    """Return the words after a block: the address of the next block, how many words it has with its
    end, and the units that run.

    ``cores`` is the number of cores that share the operation, less 1; it is stored in the bits
    above the amount.

    >>> [hex(command.value) for command in block_end(0x0D, 0xFFC60380, 73)]
    ['0xffc60380', '0x24', '0x0', '0xd']
    """
    first = Command(0, 0, 0)
    amount = 0
    if next_address:
        first = Command(PC, next_address, NEXT_ADDRESS)
        amount = next_amount(next_words)
    end = [first]
    values = (cores * 2**16 + amount, 0, enable)
    for (target, register), value in zip(LAST_WORDS, values, strict=True):
        end.append(Command(target, value, register))
    return end


def next_amount(words: int) -> int:
    """Return the amount that a block's end states for a next block of ``words`` words, the four
    words of its own end included.

    >>> next_amount(73), next_amount(110)
    (36, 54)
    """
    return up(ceil_div(words - END_WORDS, 2), 2)


def _is(words: Array, target: int, register: int) -> Array:
    return (words["target"] == target) & (words["register"] == register)
