"""``find_constants``: the search for real-valued constants in streams of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.laws.builds import Builds, builds_of, groups_of
from npulab.analysis.laws.constants.claims import Claim, claims_of, common, shifts_of, together
from npulab.analysis.laws.constants.encodings import FIXED, MANTISSA
from npulab.analysis.laws.constants.formulas import Columns, Formulas, formulas_of, values_of
from npulab.analysis.laws.constants.found import Constant, Constants, Meaning, values_at
from npulab.analysis.laws.constants.given import of_sweep, read_columns, telling
from npulab.analysis.laws.constants.matching import hits_of
from npulab.analysis.laws.constants.places import BIG, WIDTHS, rows_of, words_at
from npulab.captures.aligned_bytes import aligned_bytes
from npulab.captures.sweep import Sweep
from npulab.support.refuse import need_whole, refuse_if
from npulab.support.text import plural

MOST_FACTORS = 4
# In an encoding of at most FEW_BITS bits, a number may be another formula times some constant.
FEW_BITS = 16

# With fewer than FEWEST_COUNTED captures, no constant is suspected to be a counter.
FEWEST_COUNTED = 4


def find_constants(
    streams: Any,
    parameters: Any = None,
    *,
    builds: Sequence[Any] | None = None,
    most_factors: int = MOST_FACTORS,
    progress: Callable[[str], None] | None = None,
) -> Constants:
    """The real-valued constants that a compiler wrote into its streams: place, encoding, formula.

    ``streams`` are the bytes of N captures, or ``(N, B) uint8``; ``parameters`` is a DataFrame (or
    columns by name) with a row for each capture. Columns of real numbers are scales, columns of
    whole numbers are zero points and sums. A ``Sweep`` as the only argument holds both.

    Places: any byte offset. Encodings: float32, float16, bfloat16, fixed point of any fraction in
    8, 16 or 32 bits, multipliers of 31 or 15 bits with their shift, in either byte order
    (``encodings.csv``). Formulas: products of at most ``most_factors`` (1 to 4) real columns with
    exponents -1, 0 and 1; with whole columns ``a``, ``b`` and ``c`` also ``a + b * c * product``
    and ``a - b * c * product``, of which parts may be missing. Values of formulas with whole
    columns are stored as floats or as whole numbers. At least 5 columns whose names differ only in
    a number at the end (``w_scale_0`` to ``w_scale_15``) are columns of channels: a formula reads
    those of one channel.

    Builds of one input are compared first, as ``compare_builds`` does: noise and addresses are left
    out. ``builds`` has a label for each capture. A place may be noise on a quarter of the captures,
    but on at most 2 plus a sixteenth of them. A formula is claimed if the odds that chance gives
    any claim are at most 2**-11, for places that hold random numbers of the same range. Formulas
    that fit at least as many captures at that place are named as ties. ``progress`` is called with
    a line at each step.

    Raises TypeError and ValueError (what, got, allowed) for streams and tables of other shapes,
    fewer than 2 captures, no column of real numbers, and numbers that are not finite.

    >>> import numpy as np
    >>> scales = {"x_scale": [1 / 35.75, 1 / 17.875, 1 / 8.9375, 0.04], "y_scale": [3.5, 3, 7, 2]}
    >>> streams = np.zeros((4, 64), np.uint8)
    >>> for number, scale in enumerate(scales["x_scale"]):
    ...     streams[number, 28:30] = np.float32([1 / scale]).view(np.uint8)[2:]
    >>> print(find_constants(streams, scales))
    1 constant in 4 streams of 64 bytes: 2 of 2 moving bytes; odds of any by chance at most 0.0005
    bf16(1 / x_scale) at 0x1c; half to even or toward zero; or 32 bits, as the bytes below are 0
    4 streams of 64 bytes; no input was built twice, so noise is not known
    """
    tell = progress or _quiet
    looked_at = ""
    if isinstance(streams, Sweep) and parameters is None:
        looked_at = streams.looked_at
        streams, parameters = of_sweep(streams)
    need_whole("most_factors", most_factors)
    refuse_if(not 1 <= most_factors <= MOST_FACTORS, "most_factors", most_factors, "are 1 to 4")
    alignment = aligned_bytes(streams)
    columns = read_columns(parameters)
    _check_rows(len(alignment.data), columns)
    tell("builds of one input")
    frame = dict(zip(columns.names, columns.values, strict=True))
    noise = builds_of(alignment, groups_of(len(alignment.data), frame, builds))
    formulas = formulas_of(telling(columns), most_factors)
    return replace(_searched(noise, formulas, tell), looked_at=looked_at)


def _check_rows(streams: int, columns: Columns) -> None:
    """Raise ValueError for a single stream, and if the table has not one row for each stream."""
    refuse_if(streams < 2, "streams", plural(streams, "stream"), "are at least 2 captures")
    rows = columns.values.shape[1]
    # a row belongs to the stream of the same number, so that there must be equally many
    each = f"is one for each of the {plural(streams, 'stream')}"
    refuse_if(rows != streams, "parameters", plural(rows, "row"), each)


def _quiet(text: str) -> None:
    pass


def _searched(noise: Builds, formulas: Formulas, tell: Callable[[str], None]) -> Constants:
    """The constants in streams, after the bytes that are noise were found."""
    data, present = noise.alignment.data, noise.alignment.present
    rows = [rows_of(data, present, noise.left_out, width) for width in WIDTHS]
    hits = hits_of(rows, formulas, tell)
    claims = claims_of(hits, rows, data.shape[1])
    moving = int(((data != data[0]).any(0) & ~noise.left_out).sum())
    found = [_constant(copies, formulas, data) for copies in together(claims)]
    base = data[0].tobytes()
    result = Constants(tuple(found), noise, formulas, base, moving, formulas.left_off)
    # shifts are sought last, because a shift lies outside the bytes of all constants
    return replace(result, constants=tuple(_with_ratios(_with_shifts(result), formulas)))


def _constant(copies: Sequence[Claim], formulas: Formulas, data: Array) -> Constant:
    """The constant of claims with the same meaning; a meaning that ties at every copy is a tie."""
    # a copy with less noise tells more roundings apart
    best = max(copies, key=lambda claim: claim.best.bits)
    kept = []
    for label in best.labels:
        stored = common(copies, label)
        if stored:
            formula = formulas.formula(label[0])
            names = formulas.columns.names
            kept.append(Meaning(formula, label[0], tuple(stored), names))
    first = copies[0]
    return Constant(
        kept[0],
        first.width,
        first.order == BIG,
        tuple(claim.offset for claim in copies),
        np.array([claim.best.fits for claim in copies]),
        best.best.bits,
        tuple(kept[1:]),
        wider=_wider(kept[0], copies, data),
        counter=_counter(kept[0], first, data),
    )


def _counter(meaning: Meaning, claim: Claim, data: Array) -> int:
    """The step by which a fixed-point number grows from each capture to the next; 0 if it does not.
    The step of a float is 0, too, because counters are no floats.
    """
    if meaning.stored[0].encoding.kind != FIXED or len(data) < FEWEST_COUNTED:
        return 0
    (codes,) = words_at(data, np.array([claim.offset]), claim.width, claim.order)
    steps = np.diff(codes.astype(np.int64))
    if (steps == steps[0]).all():
        return int(steps[0])
    return 0


def _with_ratios(constants: Sequence[Constant], formulas: Formulas) -> Iterator[Constant]:
    """Yield the constants. If the encoding has few bits, the constant also gets ``beside``:
    formulas of other columns whose ratio to its formula is the same on all captures.
    """
    products = np.flatnonzero(~formulas.sums)
    if not constants or not len(products):
        yield from constants
        return
    chosen = formulas.only(products)
    values = values_of(chosen, formulas.columns.values)
    # a column with one value in all captures may be a factor of any formula, and makes no other
    # formula of it
    moving = (formulas.columns.values != formulas.columns.values[:, :1]).any(1)
    plainest = np.argsort(chosen.cost, kind="stable")
    for constant in constants:
        encoding = constant.meaning.stored[0].encoding
        place = np.flatnonzero(products == constant.meaning.number)
        if encoding.bits > FEW_BITS or not len(place):
            yield constant
            continue
        ratios = values / values[place[0]]
        alike = np.ptp(ratios, axis=1) <= 2.0**-encoding.bits * np.abs(ratios[:, 0])
        other = chosen.exponents != chosen.exponents[place[0]]
        found = alike & other.any(1) & ~other[:, ~moving].any(1)
        texts = [str(chosen.formula(number)) for number in plainest if found[number]]
        yield replace(constant, beside=tuple(texts))


def _wider(meaning: Meaning, copies: Sequence[Claim], data: Array) -> tuple[int, ...]:
    """The widths in bytes of wider words that a constant may have, too, at all places with a copy
    of it: the further bytes, above a fixed-point number or below a bfloat16, are 0.
    """
    width = copies[0].width
    encoding = meaning.stored[0].encoding
    if encoding.name == "bf16" and all(
        _zeros(one, width, one.order == BIG, data) for one in copies
    ):
        return (2 * width,)
    if encoding.kind != FIXED:
        return ()
    out = []
    for wider in WIDTHS:
        more = wider - width
        if more > 0 and all(_zeros(one, more, one.order != BIG, data) for one in copies):
            out.append(wider)
    return tuple(out)


def _zeros(claim: Claim, count: int, after: bool, data: Array) -> bool:
    """True if ``count`` bytes before a claim, or after it if ``after``, are 0 in all streams."""
    first = claim.offset - count
    if after:
        first = claim.offset + claim.width
    last = first + count
    return first >= 0 and last <= data.shape[1] and not data[:, first:last].any()


def _with_shifts(found: Constants) -> list[Constant]:
    """The constants; each multiplier has the bytes that hold its shifts."""
    out = []
    free = ~(found.explained | found.builds.left_out)
    data, present = found.alignment.data, found.alignment.present
    for constant in found.constants:
        stored = constant.meaning.stored[0]
        if stored.encoding.kind == MANTISSA:
            values = found.formulas.columns.values
            numbers = values_at(found.formulas, constant.meaning.number, stored, values)
            _, shifts = stored.encoding.mantissas(numbers)
            places = shifts_of(shifts, constant.places[0], constant.width, data, present, free)
            constant = replace(constant, shifts=tuple(places))
        out.append(constant)
    return out
