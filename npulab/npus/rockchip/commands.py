"""Command words: 64 bits that write a register of a unit, ``target << 48 | value << 16 |
register``, little-endian.

A target is a unit's id with ``WRITE``.  A block of commands ends with four words: the address and
the amount of the next block (a word of zeros and an amount of 0 where there is none), ``SYNC``, and
``ENABLE`` with the units that run. Source: PH, WT (the captures); M for the amount.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import construct
import numpy as np

from npulab.npus.rockchip.facts import OWNERS, RANGE, TARGETS

COMMAND = construct.Struct("register" / construct.Int16ul, "value" / construct.Int32ul, "target" / construct.Int16ul)
WORDS = np.dtype([("register", "<u2"), ("value", "<u4"), ("target", "<u2")])  # the same, for many
WRITE = 0x01  # in the low byte of a target
SYNC, ENABLE = 0x0041, 0x0081  # targets of their own; one writes no register, one OPERATION_ENABLE
NEXT_ADDRESS, NEXT_AMOUNT, OPERATION_ENABLE = 0x0010, 0x0014, 0x0008
PC = TARGETS["PC"] + WRITE
END_WORDS = 4


class Command(NamedTuple):
    """One command word.

    >>> Command(0x1001, 0xE, 0x4004).bytes.hex()
    '04400e0000000110'
    >>> Command.of(bytes.fromhex("04400e0000000110"))
    Command(target=4097, value=14, register=16388)
    """

    target: int
    value: int
    register: int

    @classmethod
    def of(cls, data: bytes) -> Command:
        """The command in 8 bytes."""
        found = COMMAND.parse(data)
        return cls(found.target, found.value, found.register)

    @classmethod
    def to(cls, register: int, value: int) -> Command:
        """The word that writes a register; raises LookupError where no unit has its address.

        >>> Command.to(0x1070, 0xFFC68000).target == 0x0201
        True
        """
        owner = int(OWNERS[register // RANGE]) if 0 <= register < 2 ** 16 else 0
        if not owner:
            units = ", ".join(f"{unit * RANGE:#x}" for unit in np.flatnonzero(OWNERS))
            raise LookupError(f"register: got {register:#x}, allowed are those of the units from {units} on")
        return cls(owner + WRITE, value, register)

    @property
    def bytes(self) -> bytes:
        """The 8 bytes; raises ValueError where a number has no room."""
        try:
            return COMMAND.build(self._asdict())  # type: ignore[no-any-return]
        except construct.ConstructError:
            raise ValueError(f"command: got {self}, allowed are 16, 32 and 16 bits") from None


def commands(data: bytes, where: str = "commands") -> np.ndarray:
    """The command words ``(n,)`` in bytes: ``target``, ``value``, ``register``; raises ValueError
    for a rest."""
    if len(data) % WORDS.itemsize:
        raise ValueError(f"{where}: got {len(data)} bytes, the last {len(data) % WORDS.itemsize} from byte "
                         f"{len(data) // WORDS.itemsize * WORDS.itemsize:#x} on are no whole command, allowed is a "
                         f"multiple of {WORDS.itemsize}")
    return np.frombuffer(data, WORDS)


def stream(some: Iterable[Command]) -> bytes:
    """The bytes of commands in order; the inverse of ``commands``."""
    return b"".join(one.bytes for one in some)


def known(words: np.ndarray) -> np.ndarray:
    """Whether each word ``(n,)`` names a register of the unit that is its target, with or without
    ``WRITE``."""
    owners = OWNERS[words["register"] // RANGE]
    return (owners != 0) & (words["target"] - words["target"] % 2 == owners) & (words["register"] % 4 == 0)


def written(words: np.ndarray) -> np.ndarray:
    """Whether each word ``(n,)`` writes a register."""
    enables = (words["target"] == ENABLE) & (words["register"] == OPERATION_ENABLE)
    return (known(words) & (words["target"] % 2 == WRITE)) | enables


def writes(words: np.ndarray) -> list[tuple[int, int]]:
    """(register, value) of every register that a command stream ``(n,) uint32`` writes, in order;
    an odd word at its end belongs to no command."""
    whole = np.ascontiguousarray(words, "<u4")[:len(words) // 2 * 2].view(WORDS)
    return pairs(whole[written(whole)])


def pairs(words: np.ndarray) -> list[tuple[int, int]]:
    """(register, value) of each word ``(n,)``."""
    return list(zip(words["register"].tolist(), words["value"].tolist(), strict=True))


def ends(words: np.ndarray) -> np.ndarray:
    """Whether the end of a block begins at each word ``(n,)``."""
    out = np.zeros(len(words), bool)
    if len(words) < END_WORDS:
        return out
    first, second, third, fourth = (words[i:len(words) - END_WORDS + 1 + i] for i in range(END_WORDS))
    none = (first["target"] == 0) & (first["value"] == 0) & (first["register"] == 0)
    out[:len(first)] = (none | _is(first, PC, NEXT_ADDRESS)) & _is(second, PC, NEXT_AMOUNT) & _is(third, SYNC, 0) \
        & _is(fourth, ENABLE, OPERATION_ENABLE)
    return out


def block_end(enable: int, next_address: int = 0, next_words: int = 0, cores: int = 0) -> list[Command]:
    """The words behind a block: the units that run, where the next block is and how many words it
    has with its end.

    ``cores`` goes above the amount: how many share the operation, less 1.

    >>> [hex(one.value) for one in block_end(0x0D, 0xFFC60380, 73)]
    ['0xffc60380', '0x24', '0x0', '0xd']
    """
    amount = next_amount(next_words) if next_address else 0
    first = Command(PC, next_address, NEXT_ADDRESS) if next_address else Command(0, 0, 0)
    return [first, Command(PC, cores * 2 ** 16 + amount, NEXT_AMOUNT), Command(SYNC, 0, 0),
            Command(ENABLE, enable, OPERATION_ENABLE)]


def next_amount(words: int) -> int:
    """What says how long the next block is, of its words with its end.

    >>> next_amount(73), next_amount(110)
    (36, 54)
    """
    halves = -(-(words - END_WORDS) // 2)
    return halves + halves % 2


def _is(words: np.ndarray, target: int, register: int) -> np.ndarray:
    return (words["target"] == target) & (words["register"] == register)
