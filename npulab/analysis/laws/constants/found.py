"""``find_constants`` and what it gives: real-valued constants in streams of bytes, each with its
place, its encoding and its formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.laws.builds import Addresses, Builds, builds_of, groups_of
from npulab.analysis.laws.constants.channels import lines_of
from npulab.analysis.laws.constants.claims import (
    CLAIM_BITS,
    Claim,
    Shift,
    claims_of,
    common,
    shifts_of,
    together,
)
from npulab.analysis.laws.constants.encodings import FIXED, MANTISSA, SAID
from npulab.analysis.laws.constants.formulas import (
    DOUBLE,
    Columns,
    Formula,
    Formulas,
    formulas_of,
    order_said,
    stepped,
    values_of,
)
from npulab.analysis.laws.constants.matching import Stored, hits_of
from npulab.analysis.laws.constants.places import BIG, WIDTHS, rows_of
from npulab.captures.aligned_bytes import AlignedBytes, aligned_bytes
from npulab.captures.sweep import Sweep
from npulab.support.answers import Answer, Part
from npulab.support.refuse import need_whole, refuse_if
from npulab.support.text import Row, part_said, plural

if TYPE_CHECKING:
    import pandas as pd

MOST_FACTORS = 4
MOST_TIES = 6  # rivals that a text lists
MOST_SHOWN = 60  # constants that a text lists
MOST_NUMBERS = 2**28  # most bytes of all streams
TIMES = ("", "", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True, eq=False)
class Meaning:
    """A formula with its encoding: ``stored`` has each rounding and way of computing that fits."""

    formula: Formula
    number: int
    stored: tuple[Stored, ...]
    names: tuple[str, ...]

    def __str__(self) -> str:
        first = self.stored[0]
        text = str(self.formula)
        if first.encoding.kind == FIXED and first.fraction:
            if self.formula.plus or self.formula.sign < 0:
                text = f"({text})"
            text += f" * 2**{first.fraction}"
        return f"{first.encoding.name}({text})"

    @property
    def how(self) -> str:
        """The roundings, and the ways of computing if the encoding tells them apart."""
        roundings = dict.fromkeys(SAID[one.encoding.rounding] for one in self.stored)
        parts = []
        if self.stored[0].encoding.name not in ("f32", "f16"):
            parts.append(" or ".join(roundings))
        ways = dict.fromkeys(self._way(one) for one in self.stored)
        # a float64 result is the plainest; others are said only if it does not fit
        if self.stored[0].encoding.width == 4 and DOUBLE not in ways:
            parts.append(" or ".join(list(ways)[:MOST_TIES]))
        return ", ".join(parts)

    def _way(self, stored: Stored) -> str:
        if stored.order:
            return order_said(self.formula, self.names, stored.order)
        return stored.way


@dataclass(frozen=True, eq=False)
class Constant:
    """A constant in the streams: what it is, where its copies lie, and what else it may be.

    ``fits (copies, N) bool`` are the captures on which each copy agrees, ``bits`` what the best
    copy says more than chance would: the odds of chance are 2**-bits. ``ties`` fit as many captures
    as ``meaning``. ``shifts`` are the bytes that go with a multiplier's shift, nearest first.
    ``wider`` are the bytes of wider words that hold the same number, as the bytes above (bf16:
    below) are 0.
    """

    meaning: Meaning
    width: int
    big_endian: bool
    places: tuple[int, ...]
    fits: Array
    bits: float
    ties: tuple[Meaning, ...] = ()
    shifts: tuple[Shift, ...] = ()
    wider: tuple[int, ...] = ()

    @property
    def sure(self) -> bool:
        """True if no other formula or encoding fits as well."""
        return not self.ties

    @property
    def formula(self) -> str:
        return str(self.meaning.formula)

    @property
    def encoding(self) -> str:
        return self.meaning.stored[0].encoding.name

    def __str__(self) -> str:
        text = f"{self.meaning} at {self._places()}"
        notes = [self.meaning.how]
        if self.width > 1 and self.big_endian:
            notes.append("big-endian")
        if self.wider:
            sizes = " or ".join(str(8 * width) for width in self.wider)
            side = "above"
            if self.encoding == "bf16":
                side = "below"
            notes.append(f"or {sizes} bits, as the bytes {side} are 0")
        if not self.fits.all():
            counts = dict.fromkeys(self.fits.sum(1).tolist())
            shown = " and ".join(map(str, counts))
            notes.append(f"on {shown} of {self.fits.shape[1]} captures")
        if self.encoding in ("q31", "q15"):
            notes.append(self._shifts())
        if self.ties:
            shown = " or ".join(str(tie) for tie in self.ties[:MOST_TIES])
            if len(self.ties) > MOST_TIES:
                shown += f" or {len(self.ties) - MOST_TIES} more"
            notes.append(f"as well {shown}")
        return "; ".join([text, *filter(None, notes)])

    def _places(self) -> str:
        count = len(self.places)
        first = f"{self.places[0]:#x}"
        if count == 1:
            return first
        number = str(count)
        if count < len(TIMES):
            number = TIMES[count]
        return f"{first}, {number} copies"

    def _shifts(self) -> str:
        if not self.shifts:
            return "its shift was not found (the same on all captures, or not in a byte)"
        texts = []
        for shift in self.shifts[:MOST_TIES]:
            text = "left shift"
            if shift.sign < 0:
                text = "right shift"
            if shift.added:
                text += f" {shift.added:+d}"
            texts.append(f"{text} at {shift.offset:#x}")
        return " or ".join(texts)


@dataclass(frozen=True, eq=False)
class Constants(Answer):
    """Constants in streams of bytes.

    ``constants`` are in the order of their first places; ``builds`` says what differs between
    builds of one input. ``moving`` counts the bytes that differ between captures, without those of
    noise and addresses. All offsets are those of the stream ``alignment.reference``. ``left_off``
    says which formulas were not tried, ``looked_at`` of which jobs the words of a sweep are.
    """

    constants: tuple[Constant, ...]
    builds: Builds
    formulas: Formulas
    base: bytes
    moving: int
    left_off: str = ""
    looked_at: str = ""

    @property
    def noise(self) -> Array:
        """``(B,) bool``: the bytes that differ between builds of one input."""
        return self.builds.noise

    @property
    def addresses(self) -> tuple[Addresses, ...]:
        """The words that move together between builds of one input."""
        return self.builds.addresses

    @property
    def alignment(self) -> AlignedBytes:
        """The streams side by side."""
        return self.builds.alignment

    @cached_property
    def explained(self) -> Array:
        """``(B,) bool``: the bytes of constants."""
        out = np.zeros(len(self.base), bool)
        for constant in self.constants:
            for place in constant.places:
                out[place : place + constant.width] = True
            for shift in constant.shifts[:1]:
                out[shift.offset] = True
        return out

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each constant: offset, copies (list of offsets), bytes, order, encoding,
        formula, how (rounding, steps), fraction, shift (list of offsets), captures that fit (of the
        best copy), sure, ties (list of texts), chance."""
        import pandas as pd

        return pd.DataFrame(self._rows(), columns=list(_COLUMNS))

    def records(self) -> list[Row]:
        """A dict for each constant, with ``kind`` "constant", then those of ``builds``."""
        return [{"kind": "constant", **row} for row in self._rows()] + self.builds.records()

    def _rows(self) -> list[Row]:
        rows = []
        for constant in self.constants:
            order = "little"
            if constant.big_endian:
                order = "big"
            rows.append(
                {
                    "offset": constant.places[0],
                    "copies": list(constant.places),
                    "bytes": constant.width,
                    "order": order,
                    "encoding": constant.encoding,
                    "formula": constant.formula,
                    "how": constant.meaning.how,
                    "fraction": constant.meaning.stored[0].fraction,
                    "shift": [shift.offset for shift in constant.shifts],
                    "captures": int(constant.fits.sum(1).max()),
                    "sure": constant.sure,
                    "ties": [str(tie) for tie in constant.ties],
                    "chance": 2.0**-constant.bits,
                    "text": str(constant),
                }
            )
        return rows

    @property
    def parts(self) -> list[Part]:
        captures = len(self.alignment.data)
        moved = int((self.explained & self._moved).sum())
        count = len(self.constants)
        title = (
            f"{plural(count, 'constant')} in {plural(captures, 'stream')} of "
            f"{plural(len(self.base), 'byte')}: {moved} of {self.moving} moving bytes"
        )
        if count:
            title += f"; odds of any by chance at most {2.0**-CLAIM_BITS:.1g}"
        out: list[Part] = [title]
        lines = list(lines_of(self.constants))
        out += lines[:MOST_SHOWN]
        if len(lines) > MOST_SHOWN:
            out.append(f"{len(lines) - MOST_SHOWN} more (--json prints all)")
        if not count and captures < 4:
            out.append("more captures with other parameters tell more")
        out += self.builds.parts
        if self.left_off:
            out.append(f"not tried: {self.left_off}; leave out columns that do not matter")
        if self.looked_at:
            out.append(part_said(self.looked_at))
        return out

    @property
    def _moved(self) -> Array:
        data = self.alignment.data
        return (data != data[0]).any(0) & ~self.builds.left_out

    def __repr__(self) -> str:
        texts = [str(constant) for constant in self.constants[:3]]
        more = len(self.constants) - 3
        if more > 0:
            texts.append(f"{more} more")
        return f"Constants({'; '.join(texts) or 'none'})"

    def predict(self, parameters: Any) -> tuple[Array, Array]:
        """The bytes ``(M, B) uint8`` of streams of other parameters, and ``(M, B) bool``, which of
        them a constant claims; the others are those of the first capture.

        A byte on which ties disagree is not claimed. Raises ValueError for a column that is
        missing.
        """
        columns = _columns(parameters, self.formulas.columns)
        count = columns.values.shape[1]
        data = np.tile(np.frombuffer(self.base, np.uint8), (count, 1))
        claimed = np.zeros(data.shape, bool)
        for constant in self.constants:
            codes, agreed = self._codes(constant, columns.values)
            for place in constant.places:
                _write(data, place, constant, codes)
                claimed[:, place : place + constant.width] = agreed[:, None]
            if constant.shifts and len(constant.shifts) == 1:
                self._shift(constant, columns.values, data, claimed)
        return data, claimed

    def _codes(self, constant: Constant, values: Array) -> tuple[Array, Array]:
        """The codes ``(M,)`` of a constant, and where all that tie agree."""
        first: Array | None = None
        agreed = np.ones(values.shape[1], bool)
        for meaning in (constant.meaning, *constant.ties):
            for stored in meaning.stored:
                numbers = _values(self.formulas, meaning.number, stored, values)
                # one row for each capture: one that has no code says nothing of the others
                codes, coded = stored.encoding.encode(numbers.reshape(-1, 1), stored.fraction)
                agreed &= coded
                if first is None:
                    first = codes[:, 0]
                agreed &= codes[:, 0] == first
        assert first is not None
        return first, agreed

    def _shift(self, constant: Constant, values: Array, data: Array, claimed: Array) -> None:
        (shift,) = constant.shifts
        stored = constant.meaning.stored[0]
        numbers = _values(self.formulas, constant.meaning.number, stored, values)
        _, shifts = stored.encoding.mantissas(numbers)
        data[:, shift.offset] = (shift.sign * shifts + shift.added) % 256
        claimed[:, shift.offset] = claimed[:, constant.places[0]]


_COLUMNS = (
    "offset",
    "copies",
    "bytes",
    "order",
    "encoding",
    "formula",
    "how",
    "fraction",
    "shift",
    "captures",
    "sure",
    "ties",
    "chance",
)


def _values(formulas: Formulas, number: int, stored: Stored, values: Array) -> Array:
    """The values ``(M,) float64`` of one formula."""
    one = formulas.only(np.array([number]))
    if stored.order:
        return stepped(one, values, stored.order)[0]
    return values_of(one, values, stored.way)[0]


def _write(data: Array, place: int, constant: Constant, codes: Array) -> None:
    for byte in range(constant.width):
        at = place + byte
        if constant.big_endian:
            at = place + constant.width - 1 - byte
        data[:, at] = codes >> (8 * byte) & 0xFF


def find_constants(
    streams: Any,
    parameters: Any = None,
    *,
    builds: Sequence[Any] | None = None,
    most_factors: int = MOST_FACTORS,
    progress: Callable[[str], None] | None = None,
) -> Constants:
    """The real-valued constants that a compiler wrote into its streams: place, encoding, formula.

    ``streams`` are N captures' bytes, or ``(N, B) uint8``; ``parameters`` is a DataFrame (or
    columns by name) with a row for each capture. Columns of real numbers are scales, columns of
    whole numbers are zero points and sums. A ``Sweep`` as the only argument holds both.

    Places: any byte offset. Encodings: float32, float16, bfloat16, fixed point of any fraction in
    8, 16 or 32 bits, multipliers of 31 or 15 bits with their shift, in either byte order
    (``encodings.csv``). Formulas: products of at most ``most_factors`` (1 to 4) real columns with
    exponents -1, 0 and 1; with whole columns ``a``, ``b`` and ``c`` also ``a + b * c * product``
    and ``a - b * c * product``, parts of which may be missing, as floats and as whole numbers.
    Columns that differ in a number at their end (``w_scale_0`` to ``w_scale_15``; at least 5) are
    those of channels: a formula has one channel.

    Builds of one input are compared first, as ``compare_builds`` does (``builds`` has a label for
    each capture): noise and addresses are left out. Of four captures or more, a place may be noise
    on a quarter. A formula is claimed if the odds that chance gives any claim are at most 2**-11,
    for places that hold random numbers of the same range; whatever fits as many captures is said as
    a tie. ``progress`` is called with a line at each step.

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
        sweep = streams
        looked_at = sweep.looked_at
        streams, parameters = _of_sweep(sweep)
    need_whole("most_factors", most_factors)
    refuse_if(not 1 <= most_factors <= MOST_FACTORS, "most_factors", most_factors, "are 1 to 4")
    alignment = aligned_bytes(streams)
    data, present = alignment.data, alignment.present
    refuse_if(len(data) < 2, "streams", plural(len(data), "stream"), "are at least 2 captures")
    refuse_if(data.size > MOST_NUMBERS, "streams", f"{data.size} bytes", f"are {MOST_NUMBERS}")
    columns = _columns(parameters)
    refuse_if(
        columns.values.shape[1] != len(data),
        "parameters",
        plural(columns.values.shape[1], "row"),
        f"is one for each of the {plural(len(data), 'stream')}",
    )
    tell("builds of one input")
    frame = dict(zip(columns.names, columns.values, strict=True))
    noise = builds_of(alignment, groups_of(len(data), frame, builds))
    formulas = formulas_of(_telling(columns), most_factors)
    rows = [rows_of(data, present, noise.left_out, width) for width in WIDTHS]
    hits = hits_of(rows, formulas, tell)
    claims = claims_of(hits, rows, data.shape[1])
    moving = int(((data != data[0]).any(0) & ~noise.left_out).sum())
    found = [_constant(copies, formulas, data) for copies in together(claims)]
    result = Constants(
        tuple(found), noise, formulas, data[0].tobytes(), moving, formulas.left_off, looked_at
    )
    return replace(result, constants=tuple(_with_shifts(result)))


def _quiet(text: str) -> None:
    pass


def _of_sweep(sweep: Sweep) -> tuple[Array, Any]:
    words = np.ascontiguousarray(sweep.words.astype("<u4"))
    columns: dict[str, Array] = {}
    frame = sweep.parameters
    for name in frame.columns:
        values = frame[name].to_numpy()
        whole = (values == np.rint(values)).all()
        columns[str(name)] = values.astype(float)
        if whole:
            columns[str(name)] = values.astype(np.int64)
    return words.view(np.uint8), columns


def _columns(parameters: Any, known: Columns | None = None) -> Columns:
    """The columns of a table; those of ``known`` if it is given."""
    import pandas as pd

    if parameters is None:
        raise TypeError("parameters: got None, allowed are columns by name, or a DataFrame")
    try:
        frame = pd.DataFrame(parameters)
    except (ValueError, TypeError) as error:
        raise TypeError(
            f"parameters: got no table ({error}), allowed are columns by name"
        ) from None
    real, whole = [], []
    values: dict[str, Array] = {}
    for name in frame.columns:
        column = frame[name].to_numpy()
        refuse_if(
            column.dtype.kind not in "biuf",
            f"parameters: {name}",
            f"{column.dtype}",
            "are numbers",
        )
        if column.dtype.kind == "f":
            real.append(str(name))
        else:
            whole.append(str(name))
        values[str(name)] = column.astype(np.float64)
        refuse_if(
            not np.isfinite(values[str(name)]).all(),
            f"parameters: {name}",
            "a number that is missing or infinite",
            "are finite numbers",
        )
    if known is not None:
        missing = [name for name in known.names if name not in values]
        refuse_if(missing, "parameters", f"no column {', '.join(missing)}", "are all of them")
        return Columns(known.real, known.whole, _stacked(values, known.names, len(frame)))
    refuse_if(
        not real,
        "parameters",
        "no column of real numbers",
        "is at least one; whole numbers are zero points and sums",
    )
    return Columns(tuple(real), tuple(whole), _stacked(values, [*real, *whole], len(frame)))


def _stacked(values: dict[str, Array], names: Sequence[str], rows: int) -> Array:
    return np.array([values[name] for name in names], np.float64).reshape(-1, rows)


def _telling(columns: Columns) -> Columns:
    """The columns without those of 1 and of 0 throughout, which no formula needs."""
    kept = []
    for number, values in enumerate(columns.values):
        if not ((values == 1).all() or (values == 0).all()):
            kept.append(number)
    split = len(columns.real)
    real = tuple(columns.real[number] for number in kept if number < split)
    whole = tuple(columns.whole[number - split] for number in kept if number >= split)
    return Columns(real, whole, columns.values[kept])


def _constant(copies: Sequence[Claim], formulas: Formulas, data: Array) -> Constant:
    """The constant of claims that hold the same; what ties at every copy is a tie."""
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
    )


def _wider(meaning: Meaning, copies: Sequence[Claim], data: Array) -> tuple[int, ...]:
    """The bytes of wider words that hold the same number at all copies, as the bytes above a
    fixed-point number, or below a bfloat16, are 0."""
    width = copies[0].width
    encoding = meaning.stored[0].encoding
    if encoding.name == "bf16" and all(_zero_below(claim, data) for claim in copies):
        return (2 * width,)
    if encoding.kind != FIXED:
        return ()
    out = []
    for wider in WIDTHS:
        if wider > width and all(_zero_above(claim, wider, data) for claim in copies):
            out.append(wider)
    return tuple(out)


def _zero_below(claim: Claim, data: Array) -> bool:
    first, last = claim.offset - claim.width, claim.offset
    if claim.order == BIG:
        first, last = claim.offset + claim.width, claim.offset + 2 * claim.width
    return first >= 0 and last <= data.shape[1] and not data[:, first:last].any()


def _zero_above(claim: Claim, wider: int, data: Array) -> bool:
    first, last = claim.offset + claim.width, claim.offset + wider
    if claim.order == BIG:
        first, last = claim.offset + claim.width - wider, claim.offset
    inside = first >= 0 and last <= data.shape[1]
    return inside and not data[:, first:last].any()


def _with_shifts(found: Constants) -> list[Constant]:
    """The constants, multipliers with the bytes that go with their shifts."""
    out = []
    free = ~(found.explained | found.builds.left_out)
    data, present = found.alignment.data, found.alignment.present
    for constant in found.constants:
        stored = constant.meaning.stored[0]
        if stored.encoding.kind == MANTISSA:
            values = found.formulas.columns.values
            numbers = _values(found.formulas, constant.meaning.number, stored, values)
            _, shifts = stored.encoding.mantissas(numbers)
            places = shifts_of(shifts, constant.places[0], constant.width, data, present, free)
            constant = replace(constant, shifts=tuple(places))
        out.append(constant)
    return out
