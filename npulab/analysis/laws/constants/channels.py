"""Constants of several channels in one line of text: a formula with the number of the channel, for
words or bits that lie equally far apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from npulab.analysis.laws.constants.formulas import NUMBERED, Formula, family_numbers

if TYPE_CHECKING:
    from npulab.analysis.laws.constants.found import Constant

FEWEST = 3  # channels in a line
CHANNEL = "c"


def lines_of(constants: Sequence[Constant]) -> Iterator[str]:
    """Yield the texts of constants, in the order of their first places; constants that differ only
    in the channel have one text.
    """
    groups = defaultdict(list)
    for constant in constants:
        number, key = _numbered(constant)
        groups[key].append((number, constant))
    done = set()
    for constant in constants:
        if id(constant) in done:
            continue
        _, key = _numbered(constant)
        text = _line(groups[key])
        if text:
            done |= {id(one) for _, one in groups[key]}
            yield text
        else:
            yield str(constant)


def _numbered(constant: Constant) -> tuple[int, object]:
    """The channel of a constant, and a key that is equal for such constants of other channels.

    A constant gets the channel -1, and a key that no other constant has, if its formula reads no
    channel. So does a constant that has several places or shifts, or that is not sure.
    """
    formula, number = _of_channel(constant)
    alone = len(constant.places) == 1 and constant.sure and not constant.shifts
    if number < 0 or not alone:
        return -1, id(constant)
    fraction = constant.meaning.stored[0].fraction
    return number, (str(formula), constant.encoding, fraction, constant.width, constant.big_endian)


def _of_channel(constant: Constant) -> tuple[Formula, int]:
    """The formula with ``c`` in place of the number of its channel, and that number; -1 if it reads
    no channel.
    """
    meaning = constant.meaning
    numbers = dict(zip(meaning.names, family_numbers(meaning.names), strict=True))
    formula = meaning.formula
    factors = []
    found = -1
    for name, exponent in formula.factors:
        found = max(found, numbers[name])
        factors.append((_stem(name, numbers[name]), exponent))
    plus = formula.plus
    if plus:
        found = max(found, numbers[plus])
        plus = _stem(plus, numbers[plus])
    return Formula(tuple(factors), plus, formula.sign), found


def _stem(name: str, number: int) -> str:
    parts = NUMBERED.fullmatch(name)
    if number < 0 or parts is None:
        return name
    return f"{parts[1]}_{CHANNEL}"


def _line(group: Sequence[tuple[int, Constant]]) -> str:
    """The text of constants of several channels. It is blank if there are too few channels, or if
    the offsets do not grow by the same step from channel to channel.
    """
    if len(group) < FEWEST:
        return ""
    ordered = sorted(group, key=lambda one: one[0])
    numbers = [number for number, _ in ordered]
    places = [constant.places[0] for _, constant in ordered]
    step, rest = divmod(places[-1] - places[0], max(numbers[-1] - numbers[0], 1))
    for number, place in zip(numbers, places, strict=True):
        if rest or place != places[0] + step * (number - numbers[0]):
            return ""
    first = ordered[0][1]
    formula, _ = _of_channel(first)
    meaning = replace(first.meaning, formula=formula, names=_names(first, numbers[0]))
    text = f"{meaning} at {places[0] - step * numbers[0]:#x} + {step} * {CHANNEL}"
    shown = f"{CHANNEL} from {numbers[0]} to {numbers[-1]}"
    if len(numbers) != numbers[-1] - numbers[0] + 1:
        shown = f"{len(numbers)} of {shown}"
    # one compiler computes all channels in one way
    kept = [stored for stored in first.meaning.stored if _everywhere(stored, ordered)]
    notes = [f"{text}, {shown}"]
    if kept:
        notes.append(replace(meaning, stored=tuple(kept)).how)
    if first.big_endian:
        notes.append("big-endian")
    return "; ".join(filter(None, notes))


def _names(constant: Constant, channel: int) -> tuple[str, ...]:
    """The names of the columns of a constant, with ``c`` in place of the number ``channel``."""
    names = constant.meaning.names
    out = []
    for name, number in zip(names, family_numbers(names), strict=True):
        if number == channel:
            name = _stem(name, number)
        out.append(name)
    return tuple(out)


def _everywhere(stored: object, group: Sequence[tuple[int, Constant]]) -> bool:
    return all(stored in constant.meaning.stored for _, constant in group)
