"""``find_constants`` and what it gives: real-valued constants in streams of bytes, each with its
place, its encoding and its formula."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.laws.builds import Addresses, Builds
from npulab.analysis.laws.constants.channels import lines_of
from npulab.analysis.laws.constants.claims import (
    CLAIM_BITS,
    Shift,
)
from npulab.analysis.laws.constants.encodings import FIXED, SAID
from npulab.analysis.laws.constants.formulas import (
    DOUBLE,
    Formula,
    Formulas,
    order_said,
    stepped,
    values_of,
)
from npulab.analysis.laws.constants.given import read_columns
from npulab.analysis.laws.constants.matching import Stored
from npulab.captures.aligned_bytes import AlignedBytes
from npulab.support.answers import Answer, Part
from npulab.support.text import Row, part_said, plural

if TYPE_CHECKING:
    import pandas as pd

# A text lists at most MOST_SHOWN constants, and of each at most MOST_TIES ties and MOST_BESIDE
# formulas ``beside`` it.
MOST_TIES = 6
MOST_BESIDE = 2
MOST_SHOWN = 60
TIMES = ("", "", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True, eq=False)
class Meaning:
    """A formula with its encoding; ``stored`` has each rounding, and each way of computing the
    value, that fits.
    """

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
        """The roundings that fit, as text; with the ways of computing, if the encoding is precise
        enough to tell them apart.
        """
        roundings = dict.fromkeys(SAID[one.encoding.rounding] for one in self.stored)
        parts = []
        if self.stored[0].encoding.name not in ("f32", "f16"):
            parts.append(" or ".join(roundings))
        ways = dict.fromkeys(self._way(one) for one in self.stored)
        # computing in float64 is the plainest way; other ways are named only if float64 does not
        # fit
        if self.stored[0].encoding.width == 4 and DOUBLE not in ways:
            parts.append(" or ".join(list(ways)[:MOST_TIES]))
        return ", ".join(parts)

    def _way(self, stored: Stored) -> str:
        if stored.order:
            return order_said(self.formula, self.names, stored.order)
        return stored.way


@dataclass(frozen=True, eq=False)
class Constant:
    """A constant in the streams: its meaning, the places of its copies, and what else it may be.

    ``fits (copies, N) bool`` are the captures on which each copy agrees. ``bits`` is the evidence
    of the best copy: the odds that it agrees by chance are 2**-bits. ``ties`` are other meanings
    that fit as many captures as ``meaning``. ``shifts`` are the bytes that hold a multiplier's
    shift, nearest first.

    ``counter`` is the step of a counter over the captures that would give the same numbers; 0 if
    there is none. ``beside`` are formulas of other columns whose ratio to this formula is the same
    on all captures, plainest first: the number may be one of them times some constant. They are
    sought only in encodings of few bits. ``wider`` are the widths in bytes of wider words that hold
    the same number, because the bytes above it (bf16: below it) are 0.
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
    counter: int = 0
    beside: tuple[str, ...] = ()

    @property
    def sure(self) -> bool:
        """True if there are no ``ties``, no ``counter`` and no ``beside``: no other explanation
        fits as well.
        """
        return not self.ties and not self.counter and not self.beside

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
        if self.beside:
            shown = " and ".join(self.beside[:MOST_BESIDE])
            notes.append(f"{shown} moved in one ratio with it: move the scales apart to be sure")
        if self.counter:
            notes.append(f"as well a counter, {self.counter:+d} from each capture to the next")
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
    """Constants in streams of bytes, in the order of their first places.

    ``builds`` says what differs between builds of one input. ``moving`` is the number of bytes that
    differ between captures, not counting noise and addresses. All offsets are those of the stream
    ``alignment.reference``. ``left_off`` names the formulas that were not tried. If the words of a
    sweep are of some of its jobs, ``looked_at`` says of how many.
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
        """The streams, aligned byte by byte."""
        return self.builds.alignment

    @cached_property
    def explained(self) -> Array:
        """``(B,) bool``: the bytes that belong to constants."""
        out = np.zeros(len(self.base), bool)
        for constant in self.constants:
            for place in constant.places:
                out[place : place + constant.width] = True
            for shift in constant.shifts[:1]:
                out[shift.offset] = True
        return out

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each constant.

        The columns are: offset, copies (list of offsets), bytes, order, encoding, formula, how
        (rounding, float32 steps), fraction (bits after the point), shift (list of offsets),
        captures (the number that fits the best copy), sure, ties (list of texts), counter (its
        step), beside (list of texts), chance.
        """
        import pandas as pd

        return pd.DataFrame(self._rows(), columns=list(_COLUMNS))

    def records(self) -> list[Row]:
        """A dict for each constant, with ``kind`` "constant", then the records of ``builds``."""
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
                    "counter": constant.counter,
                    "beside": list(constant.beside),
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
        """The bytes ``(M, B) uint8`` of streams of other parameters, and ``(M, B) bool``: the bytes
        that a constant claims.

        Bytes that are not claimed are those of the first capture. A byte on which ties disagree is
        not claimed. Raises ValueError if a column is missing.
        """
        columns = read_columns(parameters, self.formulas.columns)
        count = columns.values.shape[1]
        data = np.tile(np.frombuffer(self.base, np.uint8), (count, 1))
        claimed = np.zeros(data.shape, bool)
        for constant in self.constants:
            codes, agreed = self._codes(constant, columns.values)
            for place in constant.places:
                _write(data, place, constant, codes)
                claimed[:, place : place + constant.width] = agreed[:, None]
            # if several bytes agree with the shift, nothing says which one holds it
            if len(constant.shifts) == 1:
                self._shift(constant, columns.values, data, claimed)
        return data, claimed

    def _codes(self, constant: Constant, values: Array) -> tuple[Array, Array]:
        """The codes ``(M,)`` of a constant for other parameters, and ``(M,) bool``: the rows on
        which all ties give the same code.
        """
        first = None
        agreed = np.ones(values.shape[1], bool)
        # if a tie gives another code than the meaning for these parameters, the code is not claimed
        for meaning in (constant.meaning, *constant.ties):
            for stored in meaning.stored:
                numbers = values_at(self.formulas, meaning.number, stored, values)
                # each capture is a row of its own, because ``encode`` refuses a whole row if one of
                # its values has no code
                codes, coded = stored.encoding.encode(numbers.reshape(-1, 1), stored.fraction)
                agreed &= coded
                if first is None:
                    first = codes[:, 0]
                agreed &= codes[:, 0] == first
        if constant.counter:
            # nobody knows the value of a counter in new captures
            agreed[:] = False
        assert first is not None
        return first, agreed

    def _shift(self, constant: Constant, values: Array, data: Array, claimed: Array) -> None:
        (shift,) = constant.shifts
        stored = constant.meaning.stored[0]
        numbers = values_at(self.formulas, constant.meaning.number, stored, values)
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
    "counter",
    "beside",
    "chance",
)


def values_at(formulas: Formulas, number: int, stored: Stored, values: Array) -> Array:
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
