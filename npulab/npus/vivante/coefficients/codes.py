"""The bytes of a Huffman stream (V8): codes, payloads, and what a byte stands for.

The stream holds each byte as a symbol, which stands for a bit length, and a payload of about that
many bits. Without zero runs a byte stands for one weight, less the zero point. With zero runs (the
vendor's compiler) a byte may also stand for several weights that equal the zero point. Its symbol
then has bit length 0 or 8, and its payload is the number of an entry of a table in the header. The
entry has the length of the run.
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
# The payload of a byte comes DELAY steps after its code. The 3-bit code ESCAPED has an escape of 2
# bits. Bit 0 of the payload of symbols 0, 1 and 5 lies in their code or escape: the free bit; if it
# is 1, the codes of symbols 0 and 1 are larger by FREE_CODE.
DELAY = 2
ESCAPED = 2
FREE_CODE = 4
# Key: (code, escape or None). Value: (symbol, free bit), None for a symbol without a free bit.
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
# In a stream with zero runs, three bit lengths have other meanings. FEW_LENGTH: a run by one of the
# first FEW entries of the table. RAW_LENGTH: a byte as it is. MANY_LENGTH: a run by a later entry.
FEW_LENGTH, RAW_LENGTH, MANY_LENGTH = 0, 7, 8
FEW, BYTE_BITS = 2, 8
# Key: the number of entries of a table of zero runs, FEW + 2 ** k. Value: k, the bits of the
# payload that picks one of the 2 ** k entries after the first FEW.
TABLE_SIZES = {4: 1, 6: 2, 10: 3, 18: 4}
TABLE_BYTES = 18
# The longest run has LONGEST values, because byte n of the table means a length of n + 1. A token
# is a number that says what a byte stands for and how it is written. A token below RAW is a value,
# written by its bit length. RAW + value: the value as it is. ENTRY + n: the run of entry n.
LONGEST = 2**BYTE_BITS
RAW, ENTRY = 256, 512
TOKENS = ENTRY + TABLE_BYTES


class Coding(NamedTuple):
    """How bytes are coded, as the header says: ``symbols`` has the bit length of each symbol,
    ``entries`` the length of each run in the table, empty without zero runs."""

    symbols: tuple[int, ...]
    entries: tuple[int, ...] = ()

    def width(self, length: int) -> int:
        """Return how many bits the payload of a symbol of bit length ``length`` has, the free bit
        included."""
        if self.entries and length == RAW_LENGTH:
            return BYTE_BITS
        if self.entries and length == MANY_LENGTH:
            return TABLE_SIZES[len(self.entries)]
        return max(length, 1)

    def payload(self, code: int, escape: int | None) -> tuple[int, int | None, int]:
        """Return (bit length, free bit, number of the other bits of the payload) for a code and its
        escape.

        The free bit is None for a symbol without a free bit.
        """
        symbol, free = READ[code, escape]
        length = self.symbols[symbol]
        return length, free, self.width(length) - (free is not None)

    def token(self, payload: int, free: int | None, length: int) -> int:
        """Return the token of a byte: ``length`` is the bit length of its symbol, ``free`` its free
        bit or None, ``payload`` the other bits of its payload."""
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
        """A bound of the weights in each byte of a buffer, reached if all bits are codes without
        a payload and each code stands for the longest run (without zero runs: for one weight)."""
        return 8 / CODE_BITS * max(self.entries, default=1)


def signed(bits: int, length: int, two: bool) -> int:
    """Return the byte (0 to 255) that a payload of bit length ``length`` stands for. Bit 0 of the
    payload is the sign, the bits above it are the magnitude without its leading 1.

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
    """True if ``symbols`` are 8 different bit lengths, each at most ``most_length``."""
    lengths = {*symbols}
    return len(symbols) == len(lengths) == SYMBOLS and lengths <= {*range(most_length(runs) + 1)}


def flush_codes(free: int) -> int:
    """Return the two 3-bit codes of a step of the flush (symbol 0 twice) as one number; ``free`` is
    the free bit of each code."""
    return (1 + 2**CODE_BITS) * FREE_CODE * free


def refuse_coding(content: Coefficients, geometry: Geometry) -> None:
    """Raise ValueError for ``symbols``, ``runs`` or ``items`` that the Huffman format does not
    have. In the vendor's dialect ``symbols`` may be empty, because the encoder then chooses
    them."""
    c, g = content, geometry
    if c.runs and (len(c.runs) != 1 + TABLE_BYTES or c.runs[0] not in TABLE_SIZES):
        raise ValueError(
            f"coefficients: runs: got {len(c.runs)} bytes that begin with {c.runs[0]}, allowed is "
            f"the size of the table ({', '.join(map(str, TABLE_SIZES))}), then {TABLE_BYTES} bytes"
        )
    if not is_map(c.symbols, c.runs) and (c.symbols or g.dialect != VENDOR):
        raise ValueError(
            f"coefficients: symbols: got {c.symbols}, allowed are different bit lengths from 0 to "
            f"{most_length(c.runs)}, {SYMBOLS} in all"
        )
    refuse_if(
        c.items and (len(c.items) != g.used or not c.runs),
        "coefficients: items",
        f"those of {len(c.items)} cores",
        f"are none, or with zero runs those of {g.used}",
    )
