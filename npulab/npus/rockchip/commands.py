"""Command words of 64 bits, each of which writes a value to a register of a unit.

A word is ``target << 48 | value << 16 | register``, little-endian; the target is the unit's id with
the bit ``WRITE`` set. The commands of a task are a block, which ends with four words: the address
of the next block (zeros in the last block), the amount of the next block's commands (0 in the last
block), ``SYNC``, and ``ENABLE`` with the units that run. Source: PH, WT (the captures); M for the
amount.
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
# The bit of a target that makes the command a write.
WRITE = 0x01
# Targets that are not units: a word of SYNC writes no register, a word of ENABLE OPERATION_ENABLE.
SYNC, ENABLE = 0x0041, 0x0081
NEXT_ADDRESS, NEXT_AMOUNT, OPERATION_ENABLE = 0x0010, 0x0014, 0x0008
PC = TARGETS["PC"] + WRITE
# The (target, register) of the last three words of a block, after the address of the next block.
LAST_WORDS = ((PC, NEXT_AMOUNT), (SYNC, 0), (ENABLE, OPERATION_ENABLE))
END_WORDS = 1 + len(LAST_WORDS)


class Command(NamedTuple):
    """One command word: a register address, the value written to it, and the target.

    >>> Command(0x1001, 0xE, 0x4004).bytes.hex()
    '04400e0000000110'
    """

    target: int
    value: int
    register: int

    @classmethod
    def to(cls, register: int, value: int) -> Command:
        """Return the command that writes ``value`` to a register address.

        Raises LookupError if no unit has the address.

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
        """The 8 bytes of the command; raises ValueError for a number that does not fit its bits."""
        try:
            return np.array((self.register, self.value, self.target), WORDS).tobytes()
        except OverflowError:
            raise ValueError(
                f"command: got {self}, allowed are 16 bits of target, 32 of value, 16 of register"
            ) from None


class Block(NamedTuple):
    """A block of commands: its words ``(n,)``, the four words of its end, and its task record.

    ``task`` is None without a record, ``end`` is empty if the block has no end.
    """

    task: Task | None
    words: Array
    end: Array

    @property
    def job(self) -> Job:
        """The job of the block's writes; its ``start`` has the writes of the block's end, and the
        start of that is the task record."""
        registers = TABLES[REGISTERS]
        start = None
        if self.task:
            start = self.task.job
        if written(self.end).any():
            start = replace(Job.from_writes(REGISTERS, writes_of(self.end), registers), start=start)
        return replace(Job.from_writes(REGISTERS, writes_of(self.words), registers), start=start)


def commands(data: bytes, where: str = "commands") -> Array:
    """Return the command words that bytes have, an array ``(n,)`` of type ``WORDS``.

    Raises ValueError, which begins with ``where``, for an incomplete word at the end.
    """
    rest = len(data) % WORDS.itemsize
    if rest:
        raise ValueError(
            f"{where}: got {len(data)} bytes, the last {rest} from byte {len(data) - rest:#x} on "
            f"are not a whole command, allowed is a multiple of {WORDS.itemsize}"
        )
    return np.frombuffer(data, WORDS)


def stream(words: Iterable[Command]) -> bytes:
    """Return the bytes of commands, in order; ``commands`` reads them back."""
    return b"".join(command.bytes for command in words)


def known(words: Array) -> Array:
    """Return an array ``(n,)`` that is true for words whose register belongs to their target's
    unit.

    The target may have the bit ``WRITE`` or not.
    """
    owners = OWNERS[words["register"] // RANGE]
    of_unit = words["target"] - words["target"] % 2 == owners
    return (owners != 0) & of_unit & (words["register"] % 4 == 0)


def written(words: Array) -> Array:
    """Return an array ``(n,)`` that is true for words that write a register."""
    enables = (words["target"] == ENABLE) & (words["register"] == OPERATION_ENABLE)
    return (known(words) & (words["target"] % 2 == WRITE)) | enables


def writes(words: Array) -> list[tuple[int, int]]:
    """Return (register, value) of every write in a command stream ``(n,) uint32``, in order.

    Two 32-bit words are a command; an odd word at the end is ignored. A dump may leave out the bit
    ``WRITE``: if no command has it, every command with a register of its unit counts as a write.
    """
    pairs = np.ascontiguousarray(words, "<u4")[: len(words) // 2 * 2]
    every = pairs.view(WORDS)
    if not written(every).any():
        every = flagged(every)
    return writes_of(every)


def flagged(words: Array) -> Array:
    """Return a copy of the words with the bit ``WRITE`` set where the unit has the register."""
    out = words.copy()
    out["target"][known(words)] |= WRITE
    return out


def writes_of(words: Array) -> list[tuple[int, int]]:
    """Return (register, value) of every command word ``(n,)`` that writes a register."""
    words = words[written(words)]
    return list(zip(words["register"].tolist(), words["value"].tolist(), strict=True))


def ends(words: Array) -> Array:
    """Return an array ``(n,)`` that is true for words at which the end of a block begins."""
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
    """Return the blocks of commands without task records.

    A block ends with the four words of a block's end, or with the last word. If no word has the bit
    ``WRITE``, a warning is given, and a block ends at a write to the amount of the next block.
    Raises ValueError, with ``file``, for a word that is not a command.
    """
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
    """Return the text of an error about word number ``at``, which is not a command."""
    return (
        f"command at byte {WORDS.itemsize * at:#x}: got target {words['target'][at]:#06x} and "
        f"register {words['register'][at]:#06x}, allowed is a register of the target's unit"
    )


def blocks_of(
    words: Array,
    listed: Sequence[Task],
    base: int | None = None,
) -> list[Block] | None:
    """Return the block of each task record in ``listed``, cut out of ``words``.

    ``base`` is the address of the first word, by default the lowest address of a task's commands.
    Returns None without records, and if words of a task are missing or do not write registers.
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
    """Return the four commands that end a block.

    ``enable`` are the bits of the units that run. ``next_address`` is the address of the next
    block, 0 for none, ``next_words`` its number of words with its end. ``cores`` is the number of
    cores that share the operation, less 1; it is stored in bits 16 and up of the amount.

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
    """Return the amount that a block's end states for a next block of ``words`` words.

    ``words`` counts the four words of the next block's end; the amount counts pairs of the others.

    >>> next_amount(73), next_amount(110)
    (36, 54)
    """
    return up(ceil_div(words - END_WORDS, 2), 2)


def _is(words: Array, target: int, register: int) -> Array:
    return (words["target"] == target) & (words["register"] == register)
