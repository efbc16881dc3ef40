"""The search for the reading of a field: which bit of the words has the code that a bit of the
printed value spells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.probe.calls import NOTHING, Other, is_number, same, short
from npulab.analysis.probe.reading import BitSource, Reading, bit_range
from npulab.registers.fields import WORD_BITS


@dataclass(frozen=True)
class Codes:
    """The codes of the n free bits: ``patterns (calls, n)`` has the digit of each code in each
    answered call, ``places`` the number of each bit in the words.

    ``zero`` is True if the first of these calls is the call with all bits 0.
    """

    patterns: Array
    places: Array
    zero: bool
    # for each mask of calls (as bytes): the numbers of the bits by their codes in these calls; None
    # for a code of several bits
    books: dict[bytes, dict[bytes, int | None]] = field(default_factory=dict)

    def spelled(self, columns: Array, used: Array) -> list[int | None]:
        """Return, for each of m columns ``(calls, m)``, the number of the bit whose code it spells
        in the calls of the mask ``used (calls,) bool``; None if no bit, or more than one, has this
        code.
        """
        key = used.tobytes()
        if key not in self.books:
            book: dict[bytes, int | None] = {}
            codes = _columns_as_bytes(self.patterns[used])
            for place, code in zip(self.places.tolist(), codes, strict=True):
                if code in book:
                    book[code] = None
                else:
                    book[code] = place
            self.books[key] = book
        codes = _columns_as_bytes(columns[used])
        return list(map(self.books[key].get, codes))

    def bits(self, call: int) -> Array:
        """Return the bits of a call up to the last free bit; held bits are 0."""
        size = int(self.places[-1]) + 1
        out = np.zeros(size, np.uint8)
        out[self.places] = self.patterns[call]
        return out

    def false_positive_probability(self, bits: int, calls: int) -> float:
        """Return an upper bound for the chance that XORs look like copies of ``bits`` bits. Three
        calls do not count: an XOR of an odd number of bits always agrees with a bit in the two
        calls with all bits alike, and in the parity of its ones.
        """
        return min(1.0, math.ldexp(len(self.places), 3 - calls)) ** bits

    def gate(self, values: Sequence[Any]) -> str:
        """Return, as the end of a sentence, the bit that has to be 0 (or 1) for the values to
        change at all; "" if there is no such bit, or several.
        """
        found = []
        for closed in (0, 1):
            asleep = np.flatnonzero(np.all(self.patterns == closed, axis=1))
            if not len(asleep):
                continue
            quiet = values[asleep[0]]
            changed = np.packbits([not same(value, quiet) for value in values])
            open_then = self.opens[closed] & changed
            within = np.all(open_then == changed, axis=1)
            for place in self.places[within]:
                found.append((place, 1 - closed))
        if len(found) != 1:
            return ""
        [(place, state)] = found
        return f"; changes only while {bit_range(place)} is {state}"

    @cached_property
    def opens(self) -> tuple[Array, Array]:
        """Two arrays with a row for each free bit: the calls in which the bit is 1, and those in
        which it is 0, as packed masks.
        """
        return np.packbits(self.patterns.T, axis=1), np.packbits(1 - self.patterns.T, axis=1)


def _columns_as_bytes(columns: Array) -> list[bytes]:
    packed = np.packbits(np.ascontiguousarray(columns.T), axis=1)
    if packed.size:
        return packed.view(f"V{packed.shape[1]}").ravel().tolist()
    return []


class _View(NamedTuple):
    """The values of all calls as whole numbers whose bits may be copies of bits of the words: a
    ``reading`` without sources yet, a number for each call (``ints``), and a mask ``known (calls,)
    bool`` of the calls in which the number is known.
    """

    reading: Reading
    ints: Sequence[int]
    known: Array


def read_field(name: str, values: Sequence[Any], codes: Codes) -> Reading | str:
    """Return the reading of a field from its values in all calls, or the reason as a text if there
    is none.
    """
    absent = sum(value is NOTHING for value in values)
    if absent:
        return f"printed in {len(values) - absent} of {len(values)} calls"
    first = values[0]
    if all(same(value, first) for value in values):
        return _constant(name, first)
    if not all(map(is_number, values)):
        return _read_text(name, values, codes)
    best: Reading | None = None
    least = (0, 0, 0)
    reasons: list[str] = []
    for view in _views(name, values, codes.zero):
        found = _copies(view, codes)
        if isinstance(found, str):
            reasons.append(found)
            continue
        unknown = np.flatnonzero(~view.known).tolist()
        if not all(same(found.predict(codes.bits(n)), values[n]) for n in unknown):
            reasons.append("prints nan where its bits are a number")
            continue
        # prefer the reading with the fewest bits; then one of which all bits are inverted or none
        # is; then one without fixed bits or signs that only an offset explains
        odd = bool(found.offset) and (found.signed or not view.reading.offset)
        cost = (len(found.sources), len(found.inversions), int(odd))
        if best is None or cost < least:
            best, least = found, cost
        if cost == (len(found.source_bits), 1, 0):
            break
    if best is not None:
        return best
    reasons.append("prints numbers that are neither whole nor float32 nor fixed point")
    return reasons[0]


def _constant(name: str, value: Any) -> Reading | str:
    if isinstance(value, str):
        return Reading(name, (), names=(value,))
    if isinstance(value, Other):
        return f"prints a value of type {value.kind}, such as {value.text}"
    if not math.isfinite(value):
        return f"always prints {short(value)}"
    number, divisor = value.as_integer_ratio()
    right_shift = divisor.bit_length() - 1
    return Reading(name, (), offset=number, right_shift=right_shift)


def _read_text(name: str, values: Sequence[Any], codes: Codes) -> Reading | str:
    kinds = list(dict.fromkeys(values))
    texts = []
    for value in kinds:
        if isinstance(value, Other):
            return f"prints a value of type {value.kind}, such as {value.text}"
        if isinstance(value, str):
            texts.append(value)
    if len(texts) < len(kinds):
        return f"prints both numbers and texts, such as {short(texts[0])}"
    if len(kinds) > 2:
        return f"prints {len(kinds)} texts, such as {short(kinds[1])}"
    reading = Reading(name, (), names=tuple(kinds))
    numbers = list(map(kinds.index, values))
    every = np.ones(len(values), bool)
    found = _copies(_View(reading, numbers, every), codes)
    if isinstance(found, Reading) and True in found.inversions:
        # if the call with all bits 0 was lost, the first text may belong to a 1
        source = found.sources[0]._replace(at=0, inverted=False)
        return replace(found, names=found.names[::-1], sources=(source,))
    return found


def _views(name: str, values: Sequence[Any], zero: bool) -> Iterator[_View]:
    """Yield the views of a field of numbers: whole numbers, float32 patterns, fixed point."""
    every = np.ones(len(values), bool)
    if all(isinstance(value, int) for value in values):
        whole = _View(Reading(name, ()), values, every)
        yield from _steps(whole, zero)
        return
    try:
        with np.errstate(over="ignore"):
            floats = np.array(list(map(np.float32, values)))
    except OverflowError:
        return
    known = ~np.isnan(floats)
    plain = floats.tolist()
    if all(plain[n] == values[n] for n in np.flatnonzero(known).tolist()):
        # a nan that was not printed as float32 may have lost its bits in the conversion, so they
        # are unknown
        known |= np.array([isinstance(value, np.float32) for value in values])
        patterns = np.where(known, floats.view(np.uint32), 0).tolist()
        yield _View(Reading(name, (), f32=True), patterns, known)
    if not all(map(math.isfinite, values)):
        return
    ratios = [value.as_integer_ratio() for value in values]
    _, divisors = zip(*ratios, strict=True)
    largest = max(divisors)
    if largest <= 2**WORD_BITS:
        ints = [number * (largest // divisor) for number, divisor in ratios]
        reading = Reading(name, (), right_shift=largest.bit_length() - 1)
        yield from _steps(_View(reading, ints, every), zero)


def _steps(view: _View, zero: bool) -> Iterator[_View]:
    """Yield the view unchanged. If ``zero``, also yield two views of its numbers as multiples of a
    step, counted up and down from the number of the first call, in which all bits are 0.
    """
    yield view
    if not zero:
        return
    first = view.ints[0]
    # an array of Python's int does not overflow
    steps = np.array(view.ints, object) - first
    factor = math.gcd(*steps)
    if factor:
        for sign in (factor, -factor):
            reading = replace(view.reading, factor=sign, offset=first)
            ints = (steps // sign).tolist()
            yield _View(reading, ints, view.known)


def _copies(view: _View, codes: Codes) -> Reading | str:
    """Return the reading of a view with its sources; if some bits of its numbers copy no single
    bit, a text that says how many.
    """
    reading = view.reading
    columns = _bit_columns(view.ints)
    ones = columns[view.known].sum(0)
    calls = int(view.known.sum())
    varies = np.flatnonzero((ones > 0) & (ones < calls))
    varying = columns[:, varies]
    copied = codes.spelled(varying, view.known)
    inverted = codes.spelled(1 - varying, view.known)
    # low bits that are always 0 in whole numbers become a part of the factor
    whole = not (reading.f32 or reading.right_shift or reading.names)
    low = 0
    sources: list[BitSource] = []
    for at, bit, inverse in zip(varies.tolist(), copied, inverted, strict=True):
        if whole and not sources:
            low = at
        if bit is not None:
            sources.append(BitSource(at - low, bit, False))
        elif inverse is not None:
            sources.append(BitSource(at - low, inverse, True))
    odd = len(varies) - len(sources)
    if odd:
        return f"{odd} of its {len(varies)} bits that change copy no single bit"
    negative = min(view.ints) < 0
    top = columns.shape[1] - 1
    fixed = 0
    for at in np.flatnonzero(ones == calls).tolist():
        if negative and at == top:
            fixed -= 2**at
        else:
            fixed += 2**at
    if fixed and reading.f32:
        return "some bits of its float32 are always 1"
    found = replace(
        reading,
        sources=tuple(sources),
        signed=bool(negative and top in varies),
        factor=reading.factor * 2**low,
        offset=reading.offset + reading.factor * fixed,
    )
    luck = codes.false_positive_probability(len(found.source_bits), calls)
    return replace(found, false_positive_probability=luck)


def _bit_columns(ints: Sequence[int]) -> Array:
    """Return the bits of numbers in two's complement, ``(calls, width)``, bit 0 first, in the least
    width that holds all numbers.
    """
    longest = max(map(int.bit_length, ints))
    size = longest // 8 + 1
    data = b"".join(value.to_bytes(size, "little", signed=True) for value in ints)
    rows = np.frombuffer(data, np.uint8).reshape(len(ints), size)
    columns = np.unpackbits(rows, axis=1, bitorder="little")
    # bits above the width that holds all numbers only repeat the sign
    differs = np.any(columns != columns[:, -1:], axis=0)
    own = np.flatnonzero(differs)
    width = int(own.max(initial=-1)) + 1
    if min(ints) < 0:
        width += 1
    return columns[:, :width]
