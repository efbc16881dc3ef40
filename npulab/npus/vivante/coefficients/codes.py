"""The bytes of a Huffman stream (V8): codes, payloads, and what a byte stands for.

A byte is a symbol, which stands for a bit length, and a payload. Without zero runs a byte stands
for one weight less its zero point. With zero runs (the vendor's compiler) it may stand for several
zero points: the bit lengths 0 and 8 pick an entry of a table in the header.
"""

from __future__ import annotations

from typing import NamedTuple

from npulab.npus.kit import refuse_if
from npulab.npus.vivante.coefficients.buffers import (
    CODE_BITS,
    SYMBOLS,
    VENDOR,
    Coefficients,
    Geometry,
)

ESCAPE_BITS, COUNT_BYTES = 2, 2
LENGTH_BITS, MOST_LENGTH = 4, 7
DELAY = 2  # a byte's payload comes this many steps after its code
ESCAPED = 2  # the code that an escape follows
FREE_CODE = 4  # for symbols 0 and 1, a free bit that is set adds this to the code
# The symbol of each (code, escape), and the value of its free bit, None for a symbol without one.
READ: dict[tuple[int, int | None], tuple[int, int | None]] = {
    (0, None): (0, 0),
    (4, None): (0, 1),
    (1, None): (1, 0),
    (5, None): (1, 1),
    (7, None): (2, None),
    (3, None): (3, None),
    (6, None): (4, None),
    (2, 1): (5, 0),
    (2, 3): (5, 1),
    (2, 2): (6, None),
    (2, 0): (7, None),
}
# With zero runs, three bit lengths have a meaning of their own: a run that one of the FEW first
# entries stands for, a byte as it is, and a run that one of the other entries stands for.
FEW_LENGTH, RAW_LENGTH, MANY_LENGTH = 0, 7, 8
FEW, BYTE_BITS = 2, 8
# The sizes of the table, each FEW + 2 ** k; with k bits a payload picks one of the other entries.
TABLE_SIZES = {4: 1, 6: 2, 10: 3, 18: 4}
TABLE_BYTES = 18
LONGEST = 2**BYTE_BITS  # zero points of the longest run: an entry n stands for n + 1
# A token says what a byte stands for and how it is written: below RAW a value by its bit length,
# from RAW on a value as it is, from ENTRY on the run of an entry.
RAW, ENTRY = 256, 512
TOKENS = ENTRY + TABLE_BYTES


class Coding(NamedTuple):
    """What a header says of bytes: the bit length of each symbol and, with zero runs, how many
    zero points each entry of the table stands for."""

    symbols: tuple[int, ...]
    entries: tuple[int, ...] = ()

    def width(self, length: int) -> int:
        """Return the bits of the payload of a bit length, with its free bit."""
        if self.entries and length == RAW_LENGTH:
            return BYTE_BITS
        if self.entries and length == MANY_LENGTH:
            return TABLE_SIZES[len(self.entries)]
        return max(length, 1)

    def payload(self, code: int, escape: int | None) -> tuple[int, int | None, int]:
        """Return (bit length, free bit, bits of the payload without the free bit) of a code."""
        symbol, free = READ[code, escape]
        length = self.symbols[symbol]
        return length, free, self.width(length) - (free is not None)

    def token(self, payload: int, free: int | None, length: int) -> int:
        """Return the token of a payload and its free bit."""
        bits = payload
        if free is not None:
            bits = 2 * payload + free
        if not self.entries:
            return signed(bits, length, False)
        if length == FEW_LENGTH:
            return ENTRY + bits
        if length == MANY_LENGTH:
            return ENTRY + FEW + bits
        if length == RAW_LENGTH:
            return RAW + bits
        return signed(bits, length, True)

    def reach(self, token: int) -> int:
        """Return how many values a token stands for."""
        if token < ENTRY:
            return 1
        return self.entries[token - ENTRY]

    @property
    def most(self) -> float:
        """The most weights that a byte of the buffer can stand for: a code without a payload,
        with zero runs for the longest of them."""
        return 8 / CODE_BITS * max(self.entries, default=1)


def signed(bits: int, length: int, two: bool) -> int:
    """Return the byte of ``bits``: its sign in bit 0, then its magnitude without the leading 1.

    A negative byte is the complement of its magnitude, with ``two`` (streams with zero runs) the
    two's complement.
    """
    magnitude = bits // 2
    if length:
        magnitude += 2 ** (length - 1)
    if bits % 2 == 0:
        return magnitude
    if two:
        return -magnitude % 256
    return 255 - magnitude


def coding_of(symbols: tuple[int, ...], runs: bytes) -> Coding:
    """Return the coding of a symbol map and the header's bytes for zero runs: the size of the
    table, and the table filled up with zeros."""
    if not runs:
        return Coding(symbols)
    return Coding(symbols, tuple(entry + 1 for entry in runs[1 : 1 + runs[0]]))


def most_length(runs: bytes) -> int:
    """Return the largest bit length that a symbol map may have."""
    if runs:
        return MANY_LENGTH
    return MOST_LENGTH


def is_map(symbols: tuple[int, ...], runs: bytes) -> bool:
    """True if every symbol has a bit length of its own."""
    lengths = {*symbols}
    return len(symbols) == len(lengths) == SYMBOLS and lengths <= {*range(most_length(runs) + 1)}


def flush_codes(free: int) -> int:
    """Return the two codes of a flush, with their free bits set or not."""
    return (1 + 2**CODE_BITS) * FREE_CODE * free


def refuse_coding(content: Coefficients, geometry: Geometry) -> None:
    """Raise ValueError if the Huffman format does not have the symbols, the table or the ways to
    write bytes. Without symbols, the encoder of the vendor's dialect chooses them."""
    c, g = content, geometry
    if c.runs and (len(c.runs) != 1 + TABLE_BYTES or c.runs[0] not in TABLE_SIZES):
        raise ValueError(
            f"coefficients: runs: got {len(c.runs)} bytes that begin with {c.runs[0]}, allowed are "
            f"the size of the table ({', '.join(map(str, TABLE_SIZES))}) and {TABLE_BYTES} bytes"
        )
    if not is_map(c.symbols, c.runs) and (c.symbols or g.dialect != VENDOR):
        raise ValueError(
            f"coefficients: symbols: got {c.symbols}, allowed is each bit length from 0 to "
            f"{most_length(c.runs)} at most once, {SYMBOLS} in all"
        )
    refuse_if(
        c.items and (len(c.items) != g.used or not c.runs),
        "coefficients: items",
        f"those of {len(c.items)} cores",
        f"are none, or with zero runs those of {g.used}",
    )
