"""Places compared with formulas: a fit is a place that has a formula's codes on all captures,
except for a few that may be noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.laws.constants.encodings import FIXED, FLOAT, Encoding, encodings
from npulab.analysis.laws.constants.formulas import (
    DOUBLE,
    SINGLE,
    SINGLE_GIVEN,
    Formulas,
    orders,
    stepped,
    values_of,
)
from npulab.analysis.laws.constants.places import BIG, LEAST, LITTLE, WIDTHS, Rows, different, mixed

# A key is the width in bytes of a fixed-point number, the value the lengths in bits that its
# largest code may have. A shorter code is found in a narrower word. Codes of fewer than SHORTEST
# bits agree by chance with too many formulas.
LENGTHS = {1: range(5, 9), 2: range(9, 17), 4: range(17, 33)}
SHORTEST = 5

# A place has at most MOST_KEYS keys, each made of its codes on PROBED captures. Codes of 8 bits on
# 3 captures leave few pairs of place and formula to compare on all captures.
PROBED = 3
MOST_KEYS = 6

FEWEST_BITS = 10.0  # a fit with less evidence, in bits, is dropped
BITMAP = 2**20

# The bits that the choice of an encoding costs. STEPPED_BITS are for each of up to 26 orders of
# float32 steps, MANTISSA_BITS for each of 8 encodings of multipliers, WHOLE_BITS for each of 15 of
# whole numbers. A key of FIXED_BITS is a width in bytes: its bits are for each of the 12, 24 or 144
# lengths and roundings of fixed-point numbers. The odds of all choices add up to less than 1.
FLOAT_BITS = {"f32": 3.0, "f16": 5.0, "bf16": 4.0}
STEPPED_BITS, MANTISSA_BITS, WHOLE_BITS = 9.0, 6.0, 8.0
FIXED_BITS = {1: 7.0, 2: 8.0, 4: 10.0}
ORDER_BITS = {LITTLE: 0.2, BIG: 3.0}
# Numbers in streams are more often small, or near to 1, than not. So LIKELY_BITS bits are
# subtracted from the evidence that the lowest code of a range gives.
LIKELY_BITS = 3.0


@dataclass(frozen=True)
class Stored:
    """How a formula is stored: the encoding, the bits after the point (``fraction``), and how the
    value was computed: a ``way`` of ``values_of``, or the ``order`` of float32 steps.
    """

    encoding: Encoding
    fraction: int
    way: str
    order: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Batch:
    """Codes ``(F, N) uint32`` of the formulas ``numbers (F,)`` in one encoding. ``fraction (F,)``
    are the bits after the point, ``cost`` is what the choice of the encoding costs in bits.
    """

    encoding: Encoding
    numbers: Array
    fraction: Array
    codes: Array
    way: str
    order: tuple[int, ...]
    cost: float


@dataclass(frozen=True, eq=False)
class Hit:
    """A formula that fits the places of one row, on the captures ``fits (N,) bool``. ``bits`` is
    the evidence of the fit, less the cost of choosing formula, encoding and place.
    """

    width: int
    row: int
    formula: int
    stored: Stored
    fits: Array
    bits: float
    cost: float

    @property
    def count(self) -> int:
        return int(self.fits.sum())


def allowed_misses(captures: int) -> int:
    """The most captures that may contradict a constant at a place: a quarter of all captures, but
    at most 2 plus a sixteenth of them.

    A quarter of 300 layers was too many: products of scales then fitted tile sizes by chance. This
    happened four times in three sweeps, and each time at least 24 captures contradicted.
    """
    return min(captures // 4, 2 + captures // 16)


def hits_of(rows: Sequence[Rows], formulas: Formulas, tell: Callable[[str], None]) -> list[Hit]:
    """The fits of formulas at places; the evidence of each is at least ``FEWEST_BITS`` before
    costs.
    """
    lookups = {of.width: _Lookup(of) for of in rows}
    found: list[Hit] = []
    if not len(formulas):
        return found
    place_bits = _place_bits(rows)
    for batch in batches(formulas, set(lookups)):
        tell(str(batch.encoding))
        lookup = lookups[batch.encoding.width]
        found += _fitting(lookup, batch, formulas, place_bits[batch.encoding.width])
    return found


def _place_bits(rows: Sequence[Rows]) -> dict[int, Array]:
    """The cost in bits of choosing a place of each row, by width. All widths are equally likely,
    and all rows and byte orders of one width.
    """
    out = {}
    for one in rows:
        _, first = np.unique(one.row, return_index=True)
        order = one.order[first]
        price = np.full(len(order), math.log2(len(WIDTHS)))
        for way, bits in ORDER_BITS.items():
            same = order == way
            price[same] += bits + math.log2(max(int(same.sum()), 1))
        out[one.width] = price
    return out


def batches(formulas: Formulas, widths: set[int]) -> Iterator[Batch]:
    """Yield the codes of all formulas in all encodings of these widths."""
    values = formulas.columns.values
    products, sums = np.flatnonzero(~formulas.sums), np.flatnonzero(formulas.sums)
    for way in _ways(formulas):
        of_way = values_of(formulas, values, way)
        # codes of 16 bits are too short to show in which way a value was computed
        told = widths
        if way != DOUBLE:
            told = widths & {4}
        known = [one for one in encodings() if one.width in told]
        yield from _floats(of_way, known, way)
        yield from _fixed(of_way[products], products, known, way)
        yield from _whole(of_way[sums], sums, known, way)
    if 4 in widths:
        yield from _steps(formulas, products)


def _ways(formulas: Formulas) -> list[str]:
    if formulas.columns.single:
        return [DOUBLE, SINGLE]
    return [DOUBLE, SINGLE_GIVEN, SINGLE]


def _floats(values: Array, known: Sequence[Encoding], way: str) -> Iterator[Batch]:
    for encoding in known:
        if encoding.kind == FIXED:
            continue
        cost = MANTISSA_BITS
        if encoding.kind == FLOAT:
            cost = FLOAT_BITS[encoding.name]
            if way != DOUBLE:
                cost = STEPPED_BITS
        yield _batch(encoding, np.arange(len(values)), values, way, cost)


def _batch(
    encoding: Encoding,
    numbers: Array,
    values: Array,
    way: str,
    cost: float,
    fraction: Array | int = 0,
) -> Batch:
    """The codes of those formulas in which all ``values`` have a code."""
    codes, coded = encoding.encode(values, fraction)
    fractions = np.broadcast_to(fraction, len(values))[coded]
    return Batch(encoding, numbers[coded], fractions, codes[coded], way, (), cost)


def _fixed(values: Array, numbers: Array, known: Sequence[Encoding], way: str) -> Iterator[Batch]:
    """Yield products as fixed-point numbers, with every number of bits after the point that leaves
    codes of enough bits.
    """
    if not len(values):
        return
    largest = np.abs(values).max(1)
    good = np.isfinite(largest) & (largest > 0)
    values, numbers, largest = values[good], numbers[good], largest[good]
    _, exponent = np.frexp(largest)
    negative = np.flatnonzero((values < 0).any(1))
    for encoding in known:
        if encoding.kind != FIXED:
            continue
        cost = FIXED_BITS[encoding.width]
        for length in range(SHORTEST, encoding.bits + 1):
            # a negative number has its highest bits set in a word of any width
            rows = negative
            if length in LENGTHS[encoding.width]:
                rows = np.arange(len(values))
            fraction = length - exponent[rows].astype(int)
            yield _batch(encoding, numbers[rows], values[rows], way, cost, fraction)


def _whole(values: Array, numbers: Array, known: Sequence[Encoding], way: str) -> Iterator[Batch]:
    """Yield sums with whole parameters as whole numbers, in the narrowest word that holds them."""
    finite = np.isfinite(values).all(1)
    values, numbers = values[finite], numbers[finite]
    if not len(values):
        return
    narrowest = _narrowest(values)
    negative = (values < 0).any(1)
    for encoding in known:
        if encoding.kind != FIXED:
            continue
        rows = (narrowest == encoding.width) | (negative & (narrowest < encoding.width))
        yield _batch(encoding, numbers[rows], values[rows], way, WHOLE_BITS)


def _narrowest(values: Array) -> Array:
    """The width in bytes ``(F,)`` of the narrowest word that holds all values of a row; 8 if none
    does.
    """
    low, high = np.rint(values.min(1)), np.rint(values.max(1))
    out = np.full(len(values), 8)
    for width in reversed(WIDTHS):
        size = 2.0 ** (8 * width)
        unsigned = (low >= 0) & (high < size)
        signed = (low >= -size / 2) & (high < size / 2)
        out[unsigned | signed] = width
    return out


def _steps(formulas: Formulas, products: Array) -> Iterator[Batch]:
    """Yield products as float32 in every order of float32 steps."""
    (encoding,) = (one for one in encodings() if one.name == "f32")
    counts = (formulas.exponents[products] != 0).sum(1)
    for count in range(2, 5):
        numbers = products[counts == count]
        if not len(numbers):
            continue
        chosen = formulas.only(numbers)
        for order in orders(count):
            values = stepped(chosen, formulas.columns.values, order)
            batch = _batch(encoding, numbers, values, SINGLE, STEPPED_BITS)
            yield replace(batch, order=order)


class _Lookup:
    """The rows of places of one width, by keys: a key is a number made of the codes of a few
    captures.

    No two keys of a row share a capture. There is one key more than captures that may be noise, so
    that at least one key is free of noise; but there are at most ``MOST_KEYS`` keys.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        captures = rows.codes.shape[1]
        groups = min(allowed_misses(captures) + 1, MOST_KEYS)
        size = captures // groups
        if groups > 1:
            size = min(size, PROBED)
        else:
            size = min(size, 2 * PROBED)
        self.groups = []
        for group in range(groups):
            # a key takes captures that are far apart, because neighbours in a sweep are alike
            self.groups.append(np.arange(group, captures, groups)[:size])
        self.keys = []
        for chosen in self.groups:
            keys = mixed(rows.codes[:, chosen])
            order = np.argsort(keys)
            bitmap = np.zeros(BITMAP, bool)
            bitmap[_short(keys)] = True
            self.keys.append((keys[order], order, bitmap))

    def pairs(self, codes: Array) -> tuple[Array, Array]:
        """The pairs (row of codes, row of places) that are equal in at least one key, without
        repeats.
        """
        mine, theirs = [], []
        for chosen, (keys, order, bitmap) in zip(self.groups, self.keys, strict=True):
            wanted = mixed(codes[:, chosen])
            likely = np.flatnonzero(bitmap[_short(wanted)])
            first = np.searchsorted(keys, wanted[likely], "left")
            last = np.searchsorted(keys, wanted[likely], "right")
            count = last - first
            rows = np.repeat(likely, count)
            start = np.cumsum(count) - count
            within = np.arange(len(rows)) - np.repeat(start, count)
            mine.append(rows)
            theirs.append(order[np.repeat(first, count) + within])
        both = np.concatenate(mine) * len(self.rows.codes) + np.concatenate(theirs)
        unique = np.unique(both)
        return unique // len(self.rows.codes), unique % len(self.rows.codes)


def _short(keys: Array) -> Array:
    return (keys >> np.uint64(44)).astype(np.int64)


def _fitting(lookup: _Lookup, batch: Batch, formulas: Formulas, place_bits: Array) -> list[Hit]:
    rows = lookup.rows
    if not len(batch.codes) or not len(rows.codes):
        return []
    mine, theirs = lookup.pairs(batch.codes)
    codes = batch.codes[mine]
    fits = (codes == rows.codes[theirs]) & rows.present[theirs]
    captures = fits.shape[1]
    count = fits.sum(1)
    repeated = captures - formulas.different[batch.numbers[mine]]
    told = evidence(codes, fits, 8 * rows.width, repeated)
    least = different(codes, fits) >= min(LEAST, captures)
    # a number whose lower half is 0 is found in the upper half alone
    lower = np.uint32(2 ** (4 * rows.width) - 1)
    full = ((codes & lower != 0) & fits).any(1) | (rows.width == 1)
    enough = (count >= captures - allowed_misses(captures)) & (told >= FEWEST_BITS)
    good = enough & least & full
    found = []
    for place in np.flatnonzero(good).tolist():
        number = int(batch.numbers[mine[place]])
        if _only_rounds(batch, formulas, number, codes[place], fits[place]):
            continue
        cost = float(formulas.cost[number]) + batch.cost + float(place_bits[theirs[place]])
        fraction = int(batch.fraction[mine[place]])
        stored = Stored(batch.encoding, fraction, batch.way, batch.order)
        bits = float(told[place]) - cost
        found.append(Hit(rows.width, int(theirs[place]), number, stored, fits[place], bits, cost))
    return found


def _only_rounds(batch: Batch, formulas: Formulas, number: int, codes: Array, fits: Array) -> bool:
    """True if the product in a sum has hardly more than one value on the captures that fit.

    Such a product would only be a way of rounding, as in ``input_c - 1``.
    """
    plus = formulas.plus[number]
    if batch.encoding.kind != FIXED or plus < 0 or not formulas.exponents[number].any():
        return False
    products = codes[fits] - formulas.columns.values[plus][fits]
    return len(np.unique(products)) < min(LEAST, len(codes))


def evidence(codes: Array, fits: Array, width: int, repeated: Array) -> Array:
    """The evidence in bits ``(R,)`` that codes of ``width`` bits fit on the captures ``fits (R, N)
    bool``.

    Each different code counts the logarithm of the range of the row: how many numbers lie from its
    least to its largest code. The number of such ranges below it counts once. A capture that
    repeats a code of another capture, though its formula has another value, counts the logarithm of
    the number of different codes. Captures in ``repeated (R,)`` have the value of another capture.
    The cost of choosing the captures that fit is subtracted.

    A place of random numbers in such a range has these codes with the odds 2**-bits. Random bytes
    would give more evidence, but neighbouring numbers are likely in a stream.
    """
    wide = codes.astype(np.int64)
    signed = np.where(wide >= 2 ** (width - 1), wide - 2**width, wide)
    span = np.minimum(_span(wide, fits), _span(signed, fits))
    each = np.minimum(np.log2(span), width)
    lowest = np.where(fits, np.abs(signed), 2**40).min(1)
    start = np.maximum(np.log2((lowest + 1) / span) - LIKELY_BITS, 0)
    count = fits.sum(1)
    kinds = different(codes, fits)
    again = np.maximum(count - repeated - kinds, 0) * np.log2(np.maximum(kinds, 1))
    # the bytes above a short negative number repeat its sign on each capture
    short = (np.abs(signed) < 2 ** (width // 2 - 1)).all(1) & (signed < 0).any(1) & (width > 8)
    chosen = np.array([_choice_bits(fits.shape[1], one) for one in range(fits.shape[1] + 1)])
    return start + each * kinds + again + short * count - chosen[count]


def _span(numbers: Array, counted: Array) -> Array:
    low = np.where(counted, numbers, 2**40).min(1)
    high = np.where(counted, numbers, -(2**40)).max(1)
    return np.maximum(high - low + 1, 1)


def _choice_bits(captures: int, count: int) -> float:
    return math.log2(math.comb(captures, count))
