"""Weight streams: slices of Golomb-Rice codes of palette indices, with runs of zeros between them.

A stream is a string of bits, the lowest of a byte first.  A slice begins with a header
(``HEADER``); one that brings a palette goes on with ``PALETTE``.  Each index is a quotient, coded
in unary, and a remainder of ``wdiv`` bits; so is each run of zeros, of ``zdiv`` bits.  They come in
chunks: up to 12 codes of quotients of weights, those of runs, then the remainders of the chunk
before.  An index below the palette's size is an entry of it, others follow from ``offset`` on; its
value is a sign in bit 0 and a size above.  Source: M (``sources.csv``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from npulab.layout.bitstream import BitReader, bits_at, put_bits

HEADER = (("zdiv", 3), ("count", 15), ("wdiv", 3), ("trunc", 1), ("new", 1))
PALETTE = (("offset", 5), ("size", 5), ("bits", 3))
CODES, FEW = (
    12,
    8,
)  # codes in a chunk; of wide indices without quotients, and of runs in large units
NO_RUNS, END = 6, 7  # values of zdiv: zeros are weights, the stream ends
PLAIN = 7  # value of wdiv: indices without quotients
WIDE, LONG = 5, 3  # bits of an index or of a run's remainder that leave FEW codes for a chunk
AHEAD = 8  # weights may be so far ahead of the runs
MOST_SLICE = 2**15
ALIGN, FILL = 16, 0xFF  # bytes of a stream; those behind its end
LARGEST = 255  # size of a weight
ORDER = np.arange(CODES)
KINDS = ("low", "high", "ends")  # codes of a quotient's first bits, of its second, of runs


class Palette(NamedTuple):
    """Entries by index (sign in bit 0), how wide they are, and where other values begin."""

    entries: tuple[int, ...]
    bits: int
    offset: int

    @property
    def index_bits(self) -> int:
        """How wide an index without a quotient is."""
        if self.entries:
            return (len(self.entries) - 1).bit_length()
        return self.bits


@dataclass(frozen=True, eq=False)
class Slice:
    """Indices ``(n,)`` of weights, and how many zeros follow each ``(n,)``, or before the first
    one ``(n + 1,)`` if the slice brings a palette; None without runs.  The rest is its header."""

    indices: np.ndarray
    runs: np.ndarray | None
    palette: Palette
    new: bool
    wdiv: int
    zdiv: int
    trunc: bool = False
    bit: int = field(default=0, compare=False)

    @property
    def remainder(self) -> int:
        """Bits of an index behind its quotient."""
        if self.wdiv == PLAIN:
            return self.palette.index_bits
        return self.wdiv

    @property
    def run_codes(self) -> int:
        """Codes of runs in a chunk."""
        if self.zdiv >= LONG:
            return FEW
        return CODES

    @property
    def weights(self) -> np.ndarray:
        """The weights ``(m,) int16`` with the zeros between them."""
        entries = np.asarray(self.palette.entries, np.int64)
        size = len(entries)
        known = self.indices < size
        values = self.indices - size + self.palette.offset
        values[known] = entries[self.indices[known]]
        signed = np.where(values % 2 == 1, -(values // 2), values // 2).astype(np.int16)
        if self.runs is None:
            return signed
        if self.new:
            before = self.runs
        else:
            before = np.concatenate([[0], self.runs])
        out = np.zeros(len(signed) + int(before.sum()), np.int16)
        out[np.cumsum(before[:-1]) + np.arange(len(signed))] = signed
        return out


def decode(data: bytes) -> np.ndarray:
    """The weights ``(n,) int16`` of a stream, fill among them; raises as ``slices``."""
    return np.concatenate([np.empty(0, np.int16), *(one.weights for one in slices(data))])


def slices(data: bytes) -> Iterator[Slice]:
    """The slices of a stream.

    Raises ValueError for a stream that is cut off, and for a slice that says what none does.
    """
    window = memoryview(bits_at(data, np.arange(8 * len(data)), CODES).astype(np.uint16))  # type: ignore[arg-type]
    position, palette, runs = 0, None, False

    def take(_: str, bit: int, width: int) -> int:
        return window[bit] % 2**width

    while position < 8 * len(data):
        start = position
        try:
            reader = BitReader(data, position)
            zdiv = reader.read(HEADER[0][1])
            if zdiv == END:
                position, palette = -(-reader.position // 8) * 8, None
                continue
            count, wdiv, trunc, new = (reader.read(bits) for _, bits in HEADER[1:])
            if new:
                offset, size, bits = (reader.read(bits) for _, bits in PALETTE)
                entries = tuple(reader.read(bits + 2) for _ in range(size + (size > 0)))
                palette = Palette(entries, bits + 2, offset)
            elif palette is None or runs != (zdiv != NO_RUNS):
                raise ValueError(
                    f"weight stream: got a slice at bit {start} without a palette, "
                    "allowed is one with it first, and where runs begin or end"
                )
            if (zdiv > LONG and zdiv != NO_RUNS) or wdiv == PLAIN - 1:
                raise ValueError(
                    f"weight stream: got zdiv {zdiv} and wdiv {wdiv} at bit {start}, "
                    f"allowed are 0 to {LONG}, {NO_RUNS}; 0 to {WIDE}, {PLAIN}"
                )
            runs = zdiv != NO_RUNS
            empty = np.arange(count + 1)
            made = Slice(empty, None, palette, bool(new), wdiv, zdiv, bool(trunc), start)
            chunks = _Chunks()
            position = chunks.walk(made, take, reader.position)
            if position > 8 * len(data):
                raise EOFError
        except (EOFError, IndexError):
            raise ValueError(
                f"weight stream: got {len(data)} bytes that end in the slice at bit "
                f"{start}, allowed is all of it"
            ) from None
        yield chunks.slice_of(made, data)


class _Chunks:
    """The codes of a slice, chunk by chunk, (bit, value) by kind, and where remainders lie: (bit,
    how many)."""

    def __init__(self) -> None:
        self.codes: dict[str, list[tuple[int, int]]] = {kind: [] for kind in KINDS}
        self.remainders: dict[str, list[tuple[int, int]]] = {"weights": [], "runs": []}

    def walk(self, made: Slice, take: Callable[[str, int, int], int], bit: int) -> int:
        """The bit behind the chunks of a slice of this header and length; ``take`` gives the code
        of a kind, bit and width."""
        div, zdiv, plain = made.remainder, made.zdiv, made.wdiv == PLAIN
        few, symbols = made.run_codes, FEW if plain and made.remainder > WIDE else CODES
        count, runs = len(made.indices), len(made.indices) + made.new if zdiv != NO_RUNS else 0
        weights_at = runs_at = weights_out = runs_out = 0  # quotients, and remainders, so far
        low, high, ends = (self.codes[kind].append for kind in KINDS)
        while True:
            pending, pending_runs = min(weights_at, count), min(runs_at, runs)
            ahead = weights_at - runs_at
            more = weights_at < count and (not runs or ahead < AHEAD)
            more_runs = runs_at < runs and ahead >= 0
            ones = 0
            if more and not plain:
                value = take("low", bit, CODES)
                low((bit, value))
                bit, ones = bit + CODES, value.bit_count()
            if more_runs:
                value = take("ends", bit, few)
                ends((bit, value))
                bit, runs_at = bit + few, runs_at + few - value.bit_count()
            if more:
                if plain:
                    value = 0
                else:
                    value = take("high", bit, ones)
                high((bit, value))
                bit += ones
                weights_at += symbols - (0 if made.trunc else value.bit_count())
            for kind, done, upto, width in (
                ("weights", weights_out, pending, div),
                ("runs", runs_out, pending_runs, zdiv),
            ):
                if upto > done:
                    self.remainders[kind].append((bit, upto - done))
                    bit += (upto - done) * width
            weights_out, runs_out = pending, pending_runs
            if not more and not more_runs:
                return bit

    def slice_of(self, made: Slice, data: bytes) -> Slice:
        """The slice with its numbers."""
        count = len(made.indices)
        low, high, ends = (
            np.array([value for _, value in self.codes[kind]], np.int64) for kind in KINDS
        )
        if made.wdiv == PLAIN:
            quotients = 0 * made.indices
        else:
            quotients = _quotients(low, high, made.trunc)[:count]
        indices = quotients * 2**made.remainder + bits_at(
            data, self.places("weights", made.remainder), made.remainder
        )
        if made.zdiv == NO_RUNS:
            return replace(made, indices=indices)
        last = np.flatnonzero(_bits(ends, made.run_codes).ravel() == 0)
        runs = np.diff(last, prepend=-1)[: count + made.new] - 1
        runs = runs * 2**made.zdiv + bits_at(data, self.places("runs", made.zdiv), made.zdiv)
        return replace(made, indices=indices, runs=runs)

    def places(self, kind: str, width: int) -> np.ndarray:
        """The bit of each remainder."""
        starts, counts = np.array(self.remainders[kind], np.int64).reshape(-1, 2).T
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(starts, counts) + within * width


def _bits(words: np.ndarray, width: int) -> np.ndarray:
    """The bits ``(n, width)`` of words, the lowest first."""
    return words[:, None] // 2 ** ORDER[:width] % 2


def _quotients(low: np.ndarray, high: np.ndarray, trunc: bool) -> np.ndarray:
    """Quotients of codes 0, 1 and 2: a 1 in ``low`` takes the next bit of ``high`` on top; a 2 goes
    on with the next code, unless they are cut off at 2."""
    first = _bits(low, CODES)
    place = np.maximum(np.cumsum(first, 1) - 1, 0)
    codes = (first * (1 + high[:, None] // 2**place % 2)).ravel()
    if trunc:
        return codes
    return np.diff(np.cumsum(codes)[np.flatnonzero(codes < 2)], prepend=0)


def encode_slices(parts: Iterable[Slice]) -> bytes:
    """The stream of slices, its end marked and filled up to 16 bytes.

    >>> stream = encode(np.array([0, 3, -1]))
    >>> len(stream), decode(stream).tolist(), encode_slices(slices(stream)) == stream
    (16, [0, 3, -1], True)
    """
    items: list[tuple[int, int]] = []
    bit = 0

    def put(fields: Iterable[tuple[int, int]]) -> None:
        nonlocal bit
        for value, width in fields:
            items.append((bit, value))
            bit += width

    for one in parts:
        header = (one.zdiv, len(one.indices) - 1, one.wdiv, int(one.trunc), int(one.new))
        put(zip(header, (width for _, width in HEADER), strict=True))
        if one.new:
            entries, wide, offset = one.palette
            head = (offset, max(len(entries) - 1, 0), wide - 2)
            put(zip(head, (width for _, width in PALETTE), strict=True))
            put((entry, wide) for entry in entries)
        chunks = _Chunks()
        bit = chunks.walk(one, _taken(one), bit)
        items += [item for found in chunks.codes.values() for item in found]
        runs = one.runs
        if one.runs is None:
            runs = one.indices[:0]
        for kind, numbers, width in (
            ("weights", one.indices, one.remainder),
            ("runs", runs, one.zdiv),
        ):
            places = chunks.places(kind, width).tolist()
            items += zip(places, (numbers % 2**width).tolist(), strict=True)
    put([(END, HEADER[0][1]), (2**8 - 1, -bit - HEADER[0][1] & 7)])
    at, values = np.array(sorted(items), np.int64).T
    data = put_bits(values, at, bit)
    return data + bytes([FILL] * (-len(data) % ALIGN))


def _taken(one: Slice) -> Callable[[str, int, int], int]:
    """What gives the codes of a slice's quotients by kind, bit by bit."""
    quotients = one.indices // 2**one.remainder
    if one.trunc:
        twos = 0 * quotients
    else:
        twos = quotients // 2
    codes = np.full(int(twos.sum()) + len(quotients), 2)
    codes[np.cumsum(twos + 1) - 1] = quotients - 2 * twos
    if one.runs is None:
        runs = one.indices[:0]
    else:
        runs = one.runs // 2**one.zdiv
    ends = np.ones(int(runs.sum()) + len(runs), np.int64)
    ends[np.cumsum(runs + 1) - 1] = 0
    left = {
        kind: iter(bits.tolist())
        for kind, bits in zip(KINDS, ((codes > 0) * 1, codes[codes > 0] - 1, ends), strict=True)
    }
    return lambda kind, _, width: sum(2**n * next(left[kind], 0) for n in range(width))


def encode(weights: np.ndarray) -> bytes:
    """A stream of weights ``(n,)`` of -255 to 255 as they are, without palette, quotients and runs;
    ValueError for none, and for others."""
    weights = np.asarray(weights, np.int64)
    if not weights.size or np.abs(weights).max() > LARGEST:
        raise ValueError(
            f"weights: got {weights.size}, of {weights.min(initial=0)} to "
            f"{weights.max(initial=0)}, allowed are some of -{LARGEST} to {LARGEST}"
        )
    values = 2 * np.abs(weights) + (weights < 0)
    palette = Palette((), max(int(values.max()).bit_length(), 2), 0)
    return encode_slices(
        Slice(values[at : at + MOST_SLICE], None, palette, not at, PLAIN, NO_RUNS)
        for at in range(0, len(values), MOST_SLICE)
    )
