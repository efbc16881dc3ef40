"""Reads command streams (words that set registers and start operations) and the driver's payload
around them.

A command is a word with an opcode in bits 0 to 9 and a parameter in bits 16 to 31. If bit 14 is 1,
a second word follows, the command's data. The offset of a register is 4 times the opcode; with
data, it is 0x800 plus 8 times the opcode for the data, and 4 more for the parameter. A payload
begins with ``COP1``; its actions are words with a number in bits 0 to 7. Source: V
(``sources.csv``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.npus.ethosu.facts import DMA, FACTS, REGISTERS
from npulab.npus.kit import Job, RegisterMap

PRODUCTS = {0: "u55", 1: "u65", 2: "u85"}
MAGIC = int.from_bytes(b"COP1", "little")
# The actions of a payload. A command has one of BITS opcodes; if its bit DATA is set, a second word
# follows.
CONFIG, COMMANDS, READ, DUMP, NOTHING = 1, 2, 3, 4, 5
BITS = 2**10
DATA = 2**14
HALF = 2**16
# Registers with data begin at offset LARGE. Opcodes below FIRST_SMALL start operations or wait,
# others set registers. The offset OPERATION stands for the command that starts an operation.
LARGE = 0x800
FIRST_SMALL = 0x100
OPERATION = 0x0
STARTS = ("conv", "depthwise", "pool", "elementwise", "dma_start")
CODES = FACTS.enum("command")


class Payload(NamedTuple):
    """A driver's payload: the words of its command stream, and the chip that they were made for; ""
    if the payload does not state the chip."""

    words: Array
    chip: str


def payload(data: bytes, where: str) -> Payload:
    """Return the command stream in a payload; bytes that do not begin as a payload are taken as the
    words of a command stream.

    Raises ValueError for a payload that is cut off or has no command stream. ``where`` begins the
    error's text.
    """
    if len(data) % 4:
        raise ValueError(f"{where}: got {len(data)} bytes, allowed is whole words of 4 bytes")
    words = np.frombuffer(data, "<u4")
    if not len(words) or words[0] != MAGIC:
        return Payload(words, "")
    at = 1
    chip = ""
    while at < len(words):
        low, action = divmod(int(words[at]), HALF)
        high, action = divmod(action, 2**8)
        at += 1
        if action == CONFIG and at + 2 <= len(words):
            chip = _chip(int(words[at]))
            at += 2
        elif action == COMMANDS:
            count = high * HALF + low
            if at + count > len(words):
                raise ValueError(
                    f"{where}: got a command stream of {count} words at byte {4 * at}, allowed is "
                    f"a stream that ends inside the {len(words)} words of the payload"
                )
            return Payload(words[at : at + count], chip)
        elif action not in (READ, DUMP, NOTHING):
            raise ValueError(
                f"{where}: got action {action} of the payload at byte {4 * at - 4}, allowed is "
                f"{CONFIG} to {NOTHING}"
            )
    raise ValueError(
        f"{where}: got a payload of {len(words)} words without a command stream, allowed is a "
        "payload that has one"
    )


def _chip(config: int) -> str:
    """Return the chip that a configuration word names, such as ``ethos-u55-128``. Bits 28 to 31 are
    the product, bits 0 to 3 the logarithm to base 2 of its multiplications in a cycle."""
    product = config // 2**28
    macs = 2 ** (config % 16)
    return f"ethos-{PRODUCTS.get(product, product)}-{macs}"


def commands(words: Array, where: str) -> Iterator[tuple[int, int, int | None]]:
    """Yield (opcode, parameter, data) of each command; data is None for a command of a single word.

    Raises ValueError for a stream that ends inside a command.
    """
    at = 0
    while at < len(words):
        word = int(words[at])
        data = None
        if word & DATA:
            if at + 1 == len(words):
                raise ValueError(
                    f"{where}: got command {word:#010x} at word {at}, the last, allowed is a "
                    "command whose data follows in a second word"
                )
            at += 1
            data = int(words[at])
        yield word % BITS, word // HALF, data
        at += 1


def writes(words: Array, where: str = "command stream") -> Iterator[list[tuple[int, int]]]:
    """Yield a list of register writes (offset, value) for each operation: the writes since the
    operation before; the last write stands for the command that starts the operation."""
    starts = {CODES[name] for name in STARTS}
    part: list[tuple[int, int]] = []
    known = {**FACTS.tables[REGISTERS].index, **FACTS.tables[DMA].index}
    for opcode, parameter, data in commands(words, where):
        if data is not None:
            offset = LARGE + 8 * opcode
            part.append((offset, data))
            if parameter or offset + 4 in known:
                part.append((offset + 4, parameter))
        elif opcode >= FIRST_SMALL:
            part.append((4 * opcode, parameter))
        elif opcode in starts:
            yield [*part, (OPERATION, opcode + parameter * HALF)]
            part = []


def jobs(words: Array, maps: Mapping[str, RegisterMap], where: str) -> tuple[Job, ...]:
    """Return a job for each operation: of block ``DMA`` if it moves data, else of block ``NPU``.

    Registers keep their values from operation to operation. So a job's writes begin with the values
    that earlier jobs left in registers of its block. Raises ValueError for a stream without an
    operation.
    """
    found: list[Job] = []
    state: dict[int, int] = {}
    for part in writes(words, where):
        block, other = REGISTERS, DMA
        _, start = part[-1]
        if start % BITS == CODES["dma_start"]:
            block, other = DMA, REGISTERS
        state |= part
        # A register that is in both blocks, such as OPERATION, belongs to this job.
        others = maps[other].index.keys() - {OPERATION}
        mine = [(at, value) for at, value in part if at not in others]
        written = others.union(dict(part))
        before = [(at, value) for at, value in state.items() if at not in written]
        found.append(Job.from_writes(block, [*before, *mine], maps[block]))
    if not found:
        raise ValueError(
            f"{where}: got {len(words)} words that start no operation, allowed is at least one"
        )
    return tuple(found)
