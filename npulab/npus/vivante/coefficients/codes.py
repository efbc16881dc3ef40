"""The bytes of a Huffman stream (V8): codes, payloads, and what a byte stands for.

The stream holds each byte as a symbol, which names a bit length, and a payload of about that many
bits. Without zero runs a byte stands for one weight, less the zero point. With zero runs (the
vendor's compiler) a byte may also stand for several weights that equal the zero point: its symbol
then has bit length 0 or 8, and its payload picks an entry of a table in the header, the length of
the run.
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
FREE_CODE = 4  # added to the code of symbols 0 and 1 if the free bit is set
# The free bit is bit 0 of a payload that the code itself holds, which symbols 0, 1 and 5 do.
# Key: (code, escape). Value: (symbol, free bit), None for a symbol without a free bit.
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
# With zero runs, three bit lengths do not mean a length. FEW_LENGTH: a run by one of the first FEW
# entries of the table; RAW_LENGTH: a byte as it is; MANY_LENGTH: a run by one of the later entries.
FEW_LENGTH, RAW_LENGTH, MANY_LENGTH = 0, 7, 8
FEW, BYTE_BITS = 2, 8
# Key: a size of the table, in entries, FEW + 2 ** k. Value: k, the bits of a payload that picks one
# of the 2 ** k entries after the first FEW.
TABLE_SIZES = {4: 1, 6: 2, 10: 3, 18: 4}
TABLE_BYTES = 18
LONGEST = 2**BYTE_BITS  # zero points of the longest run: a table's byte n stands for n + 1 of them
# A token is a number that says what a byte stands for and how it is written. Below RAW: the value,
# written by its bit length; RAW + value: the value as it is; ENTRY + n: the run of table entry n.
RAW, ENTRY = 256, 512
TOKENS = ENTRY + TABLE_BYTES


class Coding(NamedTuple):
    """How a header says that bytes are coded: ``symbols`` has the bit length of each symbol, and
    ``entries`` the number of zero points of each run in the table, empty without zero runs."""

    symbols: tuple[int, ...]
    entries: tuple[int, ...] = ()

    def width(self, length: int) -> int:
        """Return how many bits a payload of this bit length has, the free bit included."""
        if self.entries and length == RAW_LENGTH:
            return BYTE_BITS
        if self.entries and length == MANY_LENGTH:
            return TABLE_SIZES[len(self.entries)]
        return max(length, 1)

    def payload(self, code: int, escape: int | None) -> tuple[int, int | None, int]:
        """Return (bit length, free bit, number of further payload bits) of a code and its escape.

        The free bit is None for a symbol without one.
        """
        symbol, free = READ[code, escape]
        length = self.symbols[symbol]
        return length, free, self.width(length) - (free is not None)

    def token(self, payload: int, free: int | None, length: int) -> int:
        """Return the token of a payload of bit length ``length``; ``free`` is its free bit, None if
        its symbol has none."""
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
        """The most weights for each byte of a buffer: all its bits are codes without a payload,
        and each code stands for the longest run (without zero runs: for one weight)."""
        return 8 / CODE_BITS * max(self.entries, default=1)


def signed(bits: int, length: int, two: bool) -> int:
    """Return the byte (0 to 255) of a payload: bit 0 is the sign, the bits above it are the
    magnitude without its leading 1.

    If the sign is set, the byte is the ones' complement of the magnitude; with ``two`` (streams
    with zero runs) it is the two's complement.
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
    """Return the coding of a symbol map and of ``runs``, the header's bytes for zero runs.

    The first of these bytes is the size of the table, the others are the table, filled up with
    zeros. ``runs`` is empty without zero runs.
    """
    if not runs:
        return Coding(symbols)
    return Coding(symbols, tuple(entry + 1 for entry in runs[1 : 1 + runs[0]]))


def most_length(runs: bytes) -> int:
    """Return the largest bit length in a symbol map: 8 with zero runs, 7 without."""
    if runs:
        return MANY_LENGTH
    return MOST_LENGTH


def is_map(symbols: tuple[int, ...], runs: bytes) -> bool:
    """True if each of the 8 symbols has a different bit length, none above ``most_length``."""
    lengths = {*symbols}
    return len(symbols) == len(lengths) == SYMBOLS and lengths <= {*range(most_length(runs) + 1)}


def flush_codes(free: int) -> int:
    """Return the two codes of a flush (symbol 0 twice) as one number; ``free`` is the free bit of
    both."""
    return (1 + 2**CODE_BITS) * FREE_CODE * free


def refuse_coding(content: Coefficients, geometry: Geometry) -> None:
    """Raise ValueError for ``symbols``, ``runs`` or ``items`` that the Huffman format does not
    have. Only in the vendor's dialect may ``symbols`` be empty: there the encoder chooses them."""
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
