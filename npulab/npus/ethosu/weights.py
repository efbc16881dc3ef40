"""Weight streams: slices of Golomb-Rice codes of palette indices, with runs of zeros between them.

A stream is a string of bits, the lowest bit of a byte first. A slice begins with a header
(``HEADER``); if it brings a palette, the fields of ``PALETTE`` and the entries follow. Each index
is a quotient, coded in unary, and a remainder of ``wdiv`` bits; each run of zeros likewise, with
``zdiv`` bits. Quotients and remainders come in chunks: up to 12 codes of quotients of weights, the
codes of runs, then the remainders of the chunk before. An index below the palette's size stands for
an entry of the palette; a larger index stands for ``offset`` plus the index minus the size. In such
a value, bit 0 is the sign of the weight and the other bits are its magnitude. Source: M
(``sources.csv``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.layout.bitstream import BitReader, bits_at, put_bits

HEADER = (("zdiv", 3), ("count", 15), ("wdiv", 3), ("trunc", 1), ("new", 1))
PALETTE = (("offset", 5), ("size", 5), ("bits", 3))
# A chunk has at most CODES codes for weights and as many for runs. It has at most FEW codes for
# wide indices, and for runs with long remainders. In ``zdiv``, NO_RUNS means that zeros are stored
# as weights, END that the stream ends. In ``wdiv``, PLAIN means that indices have no quotients.
CODES = 12
FEW = 8
NO_RUNS, END = 6, 7
PLAIN = 7
# Indices are wide if they have no quotient and more than WIDE bits. Remainders of runs are long if
# they have LONG bits.
WIDE, LONG = 5, 3
# A chunk has quotients of weights only if fewer than AHEAD more of them than of runs were read.
AHEAD = 8
MOST_SLICE = 2**15
# Bytes FILL complete a stream to a multiple of ALIGN bytes. Weights are -LARGEST to LARGEST.
ALIGN, FILL = 16, 0xFF
LARGEST = 255
ORDER = np.arange(CODES)
# The kinds of codes in a chunk: first bits of quotients of weights, their second bits, and
# quotients of runs in unary.
KINDS = ("low", "high", "ends")
Item = tuple[int, int]  # of a code (bit, value), of neighbouring remainders (bit, their number)


class Palette(NamedTuple):
    """The values that a slice's indices stand for.

    ``entries`` are the values of the first indices, ``bits`` is the number of bits of an entry. An
    index past the entries stands for ``offset`` plus its distance from them. Bit 0 of a value is
    the sign of the weight.
    """

    entries: tuple[int, ...]
    bits: int
    offset: int

    @property
    def index_bits(self) -> int:
        """The number of bits of an index without a quotient."""
        if self.entries:
            return (len(self.entries) - 1).bit_length()
        return self.bits


@dataclass(frozen=True, eq=False)
class Slice:
    """A slice: the ``indices`` ``(n,)`` of its weights, its ``runs``, and the fields of its header.

    ``runs`` has the number of zeros after each weight ``(n,)``. A slice that brings a palette
    (``new``) also has a run before its first weight, so ``(n + 1,)``. ``runs`` is None if zeros are
    stored as weights. ``bit`` is the bit of the stream at which the slice begins.
    """

    indices: Array
    runs: Array | None
    palette: Palette
    new: bool
    wdiv: int
    zdiv: int
    trunc: bool = False
    bit: int = field(default=0, compare=False)

    @property
    def remainder(self) -> int:
        """The number of bits of an index's remainder: all its bits if it has no quotient."""
        if self.wdiv == PLAIN:
            return self.palette.index_bits
        return self.wdiv

    @property
    def run_codes(self) -> int:
        """The number of codes of runs in a chunk."""
        if self.zdiv >= LONG:
            return FEW
        return CODES

    @property
    def weights(self) -> Array:
        """The weights ``(m,) int16`` of the slice, including the zeros of its runs."""
        entries = np.asarray(self.palette.entries, np.int64)
        size = len(entries)
        known = self.indices < size
        values = self.indices - size + self.palette.offset
        values[known] = entries[self.indices[known]]
        signed = np.where(values % 2 == 1, -(values // 2), values // 2).astype(np.int16)
        if self.runs is None:
            return signed
        before = self.runs
        if not self.new:
            before = np.concatenate([[0], self.runs])
        places = np.cumsum(before[:-1]) + np.arange(len(signed))
        weights = np.zeros(len(signed) + int(before.sum()), np.int16)
        weights[places] = signed
        return weights


def decode(data: bytes) -> Array:
    """Return the weights ``(n,) int16`` of a stream, including fill. Raises as ``slices``."""
    weights = [part.weights for part in slices(data)]
    return np.concatenate([np.empty(0, np.int16), *weights])


def slices(data: bytes) -> Iterator[Slice]:
    """Yield the slices of a stream.

    Raises ValueError for a stream that is cut off, and for a slice that contradicts the format.
    """
    window = memoryview(bits_at(data, np.arange(8 * len(data)), CODES).astype(np.uint16))  # type: ignore[arg-type]
    position = 0
    palette: Palette | None = None
    runs = False

    def take(_: str, bit: int, width: int) -> int:
        return window[bit] % 2**width

    while position < 8 * len(data):
        start = position
        try:
            reader = BitReader(data, position)
            zdiv = reader.read(HEADER[0][1])
            if zdiv == END:
                position = -(-reader.position // 8) * 8
                palette = None
                continue
            count, wdiv, trunc, new = [reader.read(bits) for _, bits in HEADER[1:]]
            if new:
                palette = _palette(reader)
            elif palette is None or runs != (zdiv != NO_RUNS):
                raise ValueError(
                    f"weight stream: got a slice at bit {start} without a palette, allowed is this "
                    "only after a slice with a palette, if both slices have runs or neither has"
                )
            if (zdiv > LONG and zdiv != NO_RUNS) or wdiv == PLAIN - 1:
                raise ValueError(
                    f"weight stream: got zdiv {zdiv} and wdiv {wdiv} at bit {start}, "
                    f"allowed are zdiv 0 to {LONG} or {NO_RUNS} and wdiv 0 to {WIDE} or {PLAIN}"
                )
            runs = zdiv != NO_RUNS
            empty = np.arange(count + 1)
            header = Slice(empty, None, palette, bool(new), wdiv, zdiv, bool(trunc), start)
            chunks = _Chunks()
            position = chunks.walk(header, take, reader.position)
            if position > 8 * len(data):
                raise EOFError
        except (EOFError, IndexError):
            raise ValueError(
                f"weight stream: got {len(data)} bytes that end inside the slice at bit "
                f"{start}, allowed is a stream with the whole slice"
            ) from None
        yield chunks.slice_of(header, data)


def _palette(reader: BitReader) -> Palette:
    offset, size, bits = [reader.read(width) for _, width in PALETTE]
    if size:
        size += 1  # the field holds the number of entries less 1; 0 means no entries
    entries = [reader.read(bits + 2) for _ in range(size)]
    return Palette(tuple(entries), bits + 2, offset)


class _Chunks:
    """The chunks of a slice: where each code lies, with its value, and where remainders lie.

    ``codes`` has (bit, value) of each code, by kind. ``remainders`` has, for ``weights`` and
    ``runs``, (bit, number of remainders from this bit on).
    """

    def __init__(self) -> None:
        self.codes: dict[str, list[Item]] = {kind: [] for kind in KINDS}
        self.remainders: dict[str, list[Item]] = {"weights": [], "runs": []}

    def walk(self, header: Slice, take: Callable[[str, int, int], int], bit: int) -> int:
        """Find the chunks of a slice with this header, from ``bit`` on; return the bit after them.

        ``take(kind, bit, width)`` returns the value of the code of ``width`` bits at ``bit``: of a
        slice that is read, the value read; of a slice to be written, the value to write. Most time
        of decoding is spent in this loop, so its lists have local names.
        """
        plain = header.wdiv == PLAIN
        few = header.run_codes
        symbols = CODES
        if plain and header.remainder > WIDE:
            symbols = FEW
        count = len(header.indices)
        runs = 0
        if header.zdiv != NO_RUNS:
            runs = count + header.new
        weights_at = runs_at = 0  # the number of quotients that were read
        weights_out = runs_out = 0  # the number of remainders that were read
        low, high, ends = [self.codes[kind].append for kind in KINDS]
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
                value = 0
                if not plain:
                    value = take("high", bit, ones)
                high((bit, value))
                bit += ones
                weights_at += symbols
                # Each second bit that is 1 continues a quotient in the next code.
                if not header.trunc:
                    weights_at -= value.bit_count()
            if pending > weights_out:
                self.remainders["weights"].append((bit, pending - weights_out))
                bit += (pending - weights_out) * header.remainder
            if pending_runs > runs_out:
                self.remainders["runs"].append((bit, pending_runs - runs_out))
                bit += (pending_runs - runs_out) * header.zdiv
            weights_out, runs_out = pending, pending_runs
            if not more and not more_runs:
                return bit

    def slice_of(self, header: Slice, data: bytes) -> Slice:
        """Return the slice of a header, with the indices and runs that these codes and the
        remainders in ``data`` give.
        """
        count = len(header.indices)
        indices = bits_at(data, self.places("weights", header.remainder), header.remainder)
        if header.wdiv != PLAIN:
            low, high = self.values("low"), self.values("high")
            quotients = _quotients(low, high, header.trunc)[:count]
            indices = indices + quotients * 2**header.remainder
        if header.zdiv == NO_RUNS:
            return replace(header, indices=indices)
        last = np.flatnonzero(_bits_of_words(self.values("ends"), header.run_codes).ravel() == 0)
        quotients = np.diff(last, prepend=-1)[: count + header.new] - 1
        runs = bits_at(data, self.places("runs", header.zdiv), header.zdiv)
        return replace(header, indices=indices, runs=runs + quotients * 2**header.zdiv)

    def values(self, kind: str) -> Array:
        """Return the values of all codes of a kind, in the order of the stream."""
        return np.array([value for _, value in self.codes[kind]], np.int64)

    def places(self, kind: str, width: int) -> Array:
        """Return the bit at which each remainder of a kind (weights or runs) begins."""
        starts, counts = np.array(self.remainders[kind], np.int64).reshape(-1, 2).T
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(starts, counts) + within * width


def _bits_of_words(words: Array, width: int) -> Array:
    """Return the lowest ``width`` bits of each word, ``(n, width)``, the lowest bit first."""
    return words[:, None] // 2 ** ORDER[:width] % 2


def _quotients(low: Array, high: Array, trunc: bool) -> Array:
    """Return the quotients of weights. A code is 0, 1 or 2: 0 if its bit in ``low`` is 0, else 1
    plus the next bit of ``high``.

    With ``trunc`` each code is a quotient. Without it, a quotient is the sum of codes 2 and the
    code 0 or 1 after them.
    """
    first = _bits_of_words(low, CODES)
    place = np.maximum(np.cumsum(first, 1) - 1, 0)
    second = high[:, None] // 2**place % 2
    codes = (first * (1 + second)).ravel()
    if trunc:
        return codes
    sums = np.cumsum(codes)
    return np.diff(sums[codes < 2], prepend=0)


def encode_slices(parts: Iterable[Slice]) -> bytes:
    """Return the stream of slices, with the mark of its end, filled up to a multiple of 16 bytes.

    >>> stream = encode(np.array([0, 3, -1]))
    >>> len(stream), decode(stream).tolist(), encode_slices(slices(stream)) == stream
    (16, [0, 3, -1], True)
    """
    items: list[Item] = []
    bit = 0

    def put(values: Iterable[int], widths: Iterable[int]) -> None:
        nonlocal bit
        for value, width in zip(values, widths, strict=True):
            items.append((bit, value))
            bit += width

    header_widths = [width for _, width in HEADER]
    palette_widths = [width for _, width in PALETTE]
    for part in parts:
        put((part.zdiv, len(part.indices) - 1, part.wdiv, part.trunc, part.new), header_widths)
        if part.new:
            entries, wide, offset = part.palette
            put((offset, max(len(entries) - 1, 0), wide - 2), palette_widths)
            put(entries, [wide] * len(entries))
        chunks = _Chunks()
        bit = chunks.walk(part, _taken(part), bit)
        for codes in chunks.codes.values():
            items += codes
        items += _remainders(chunks, "weights", part.indices, part.remainder)
        if part.runs is not None:
            items += _remainders(chunks, "runs", part.runs, part.zdiv)
    put([END], header_widths[:1])
    put([2**8 - 1], [-bit % 8])
    at, values = np.array(sorted(items), np.int64).T
    data = put_bits(values, at, bit)
    return data + bytes([FILL] * (-len(data) % ALIGN))


def _remainders(chunks: _Chunks, kind: str, numbers: Array, width: int) -> Iterator[Item]:
    """Return (bit, value) of each remainder of ``numbers``, which are indices (``kind`` is
    "weights") or runs ("runs"); ``width`` is the number of bits of a remainder."""
    places = chunks.places(kind, width).tolist()
    return zip(places, (numbers % 2**width).tolist(), strict=True)


def _taken(part: Slice) -> Callable[[str, int, int], int]:
    """Return a function ``take`` for ``_Chunks.walk`` that gives the codes of a slice to be
    written: each call returns the next ``width`` bits of a kind.
    """
    quotients = part.indices // 2**part.remainder
    twos = quotients // 2
    if part.trunc:
        twos = 0 * quotients
    codes = np.full(int(twos.sum()) + len(quotients), 2)
    codes[np.cumsum(twos + 1) - 1] = quotients - 2 * twos
    runs = part.indices[:0]
    if part.runs is not None:
        runs = part.runs // 2**part.zdiv
    ends = np.ones(int(runs.sum()) + len(runs), np.int64)
    ends[np.cumsum(runs + 1) - 1] = 0
    left = {"low": iter((codes > 0).tolist())}
    left["high"] = iter((codes[codes > 0] - 1).tolist())
    left["ends"] = iter(ends.tolist())

    def take(kind: str, _: int, width: int) -> int:
        return sum(2**place * next(left[kind], 0) for place in range(width))

    return take


def encode(weights: Array) -> bytes:
    """Return a stream of weights ``(n,)``, each -255 to 255, in the plainest form: no palette, no
    quotients, no runs.

    Raises ValueError if there are no weights, or for a weight outside these bounds.
    """
    weights = np.asarray(weights, np.int64)
    if not weights.size or np.abs(weights).max() > LARGEST:
        raise ValueError(
            f"weights: got {weights.size} weights of {weights.min(initial=0)} to "
            f"{weights.max(initial=0)}, allowed are one or more of -{LARGEST} to {LARGEST}"
        )
    values = 2 * np.abs(weights) + (weights < 0)
    palette = Palette((), max(int(values.max()).bit_length(), 2), 0)
    parts = []
    for at in range(0, len(values), MOST_SLICE):
        part = values[at : at + MOST_SLICE]
        parts.append(Slice(part, None, palette, at == 0, PLAIN, NO_RUNS))
    return encode_slices(parts)
