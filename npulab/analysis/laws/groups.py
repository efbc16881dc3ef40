"""The groups to which the numbers of captured layers keep, such as the multiples of eight.

A layer with a number outside these groups is unlike any capture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npulab.analysis.laws.expressions import Array
from npulab.analysis.laws.prior import PRIOR
from npulab.support.text import plural

if TYPE_CHECKING:
    import pandas as pd

# A larger step of a group is a smaller step times one of these powers of two, to which units and
# drivers round numbers.
TIMES = (2, 4, 8, 16, 32)

MOST_LISTED = 4  # a text names at most MOST_LISTED numbers, or parameters


@dataclass(frozen=True)
class Group:
    """The group to which the captured numbers of a parameter keep.

    A number is in the group if its remainder after division by ``step`` is in ``left``, or if the
    number itself is in ``alone``. With a ``step`` of 0, only the numbers in ``alone`` are.
    """

    name: str
    step: int
    left: tuple[int, ...] = ()
    alone: tuple[float, ...] = ()

    def has(self, values: Array) -> Array:
        """``(N,) bool``: true for those of ``values (N,)`` that are in the group."""
        inside = np.isin(values, self.alone)
        if self.step:
            inside |= np.isin(values % self.step, self.left)
        return inside

    def __str__(self) -> str:
        if not self.step:
            return f"{self.name} = {_listed(self.alone)}"
        text = f"{self.name} in groups of {self.step}"
        if self.left != (0,):
            text += f" with {_listed(self.left)} left over"
        if self.alone:
            text += f" or {self.name} = {_listed(self.alone)}"
        return text


def captured_for(groups: Sequence[Group]) -> str:
    """The groups of the captured layers in words: ``for c in groups of 8, stride = 1``; "" without
    a group.

    Parameters with more than one captured number come first. Only the first few parameters are
    named.
    """
    several = sorted(groups, key=lambda group: group.step == 0)
    shown = [str(group) for group in several[:MOST_LISTED]]
    if len(groups) > MOST_LISTED:
        shown.append(f"{plural(len(groups) - MOST_LISTED, 'other parameter')} likewise")
    if shown:
        return f"for {', '.join(shown)}"
    return ""


def groups_in(layers: pd.DataFrame) -> tuple[Group, ...]:
    """The groups to which the parameters of captures keep, one group for each parameter that has
    any.
    """
    distinct = layers.drop_duplicates()
    columns = {}
    for name in distinct:
        values = distinct[name].to_numpy(np.float64)
        whole = (values == np.round(values)).all()
        columns[str(name)] = values.astype(np.int64 if whole else np.float32)
    return groups_of(columns)


def groups_of(parameters: Mapping[str, Array]) -> tuple[Group, ...]:
    """The groups to which parameters keep; ``parameters`` are columns ``(N,)`` by name, with a row
    for each layer.
    """
    found = (group_of(name, values) for name, values in parameters.items())
    return tuple(group for group in found if group is not None)


def group_of(name: str, values: Array) -> Group | None:
    """The group of the numbers ``(N,)`` of layers: a step, and the remainders that the numbers
    leave. None if no group describes them.

    The step is the greatest that divides all differences of the numbers. A multiple of it is taken
    if both conditions hold: the numbers, apart from a few single exceptions, leave at most half of
    the remainders that are possible with the multiple; and naming the exceptions takes fewer bits
    than the smaller group saves.
    """
    numbers = np.unique(values)
    if len(numbers) == 1:
        return Group(name, 0, alone=(numbers[0].item(),))
    if values.dtype.kind != "i":
        return None
    shared = int(np.gcd.reduce(numbers - numbers[0]))
    best, most = Group(name, shared, (int(numbers[0]) % shared,)), PRIOR.group
    for times in TIMES:
        group = _larger(name, values, shared * times)
        if group is None or 2 * len(group.left) > times:
            continue
        saved = _saved(group, len(numbers), times)
        if saved >= most:
            best, most = group, saved
    if best.step > 1:
        return best
    return None


def _larger(name: str, values: Array, step: int) -> Group | None:
    """A group of a larger step. ``left`` are the remainders that at least two numbers leave,
    ``alone`` the numbers that leave another remainder.

    It is None if a number in ``alone`` was captured in one layer only: the next layer may then
    bring another such number.
    """
    numbers, layers = np.unique(values, return_counts=True)
    rests, of, counts = np.unique(numbers % step, return_inverse=True, return_counts=True)
    alone = counts[of] == 1
    if (counts < 2).all() or (layers[alone] < 2).any():
        return None
    return Group(name, step, tuple(rests[counts > 1].tolist()), tuple(numbers[alone].tolist()))


def _saved(group: Group, numbers: int, times: int) -> float:
    """The bits saved if the group is stated first, and then each of ``numbers`` numbers by its
    place in the group.

    Each number in the group then takes fewer bits. Stating the group takes the bits that choose its
    remainders among ``times`` possible remainders, and its single numbers among all numbers.
    """
    groups, alone = len(group.left), len(group.alone)
    saved = (numbers - alone) * math.log2(times / groups)
    said = _choice(times, groups) + _choice(numbers, alone)
    return saved - said


def _choice(n: int, k: int) -> float:
    """The bits that it takes to say which ``k`` of ``n`` things are chosen."""
    return math.log2(math.comb(n, k))


def _listed(numbers: tuple[float, ...]) -> str:
    """Numbers as a list in words; of many numbers only the first few."""
    shown = []
    for number in numbers[:MOST_LISTED]:
        shown.append(f"{number:g}" if isinstance(number, float) else str(number))
    if len(numbers) > MOST_LISTED:
        shown.append(f"{len(numbers) - MOST_LISTED} other numbers")
    *first, last = shown
    if first:
        return f"{', '.join(first)} or {last}"
    return last
