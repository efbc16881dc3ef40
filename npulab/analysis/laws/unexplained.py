"""Open bits that no parameter explains: counters over the order of the captures, and bits that look
random. They are proposed as nuisance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from npulab.analysis.laws.expressions import Array
from npulab.analysis.laws.prior import BUDGET, PRIOR
from npulab.analysis.laws.solved import Place, runs_of

# Bits are called random only if their run has at least LEAST bits in all captures together.
LEAST = 256

# A random bit may be at most MOST standard deviations from chance.
MOST = 4.0


def proposals(words: Array, columns: Mapping[str, Array], open_: Array) -> dict[Place, str]:
    """By run of open bits that looks like nuisance: a text that says why, and names the call that
    leaves it out.

    ``words (N, W) uint32`` are all captures in their order, ``columns`` their parameters, ``open_
    (W, 32) bool`` the bits without a law.
    """
    found = {}
    # if captures are sorted by a parameter, a counter cannot be told from a law of that parameter
    ordered = any((np.diff(column) >= 0).all() for column in columns.values())
    for word in np.flatnonzero(open_.any(1)).tolist():
        for place in runs_of(open_[word], word):
            values = place.raw(words).astype(np.int64)
            text = _counted(values, place.width, ordered)
            if not text and _looks_random(values, place.width, columns):
                text = "looks random: no parameter goes with it, and similar layers differ in it"
                if any(column.dtype.kind == "f" for column in columns.values()):
                    text += " (but low bits of a multiplier of scales look so, too)"
            if text:
                found[place] = f"{text}; find_laws(..., nuisance=[{place.name!r}]) leaves it out"
    return found


def _counted(values: Array, width: int, ordered: bool) -> str:
    """A text if the values count the captures in their order, or grow from capture to capture; else
    "".
    """
    size, different = 2**width, len(np.unique(values))
    steps = np.diff(values) % size
    if (steps == steps[0]).all() and (len(values) - 2) * width > 2 * PRIOR.selection:
        step = (int(steps[0]) + size // 2) % size - size // 2
        return f"grows by {step} from each capture to the next"
    # the binary logarithm of the number of orders that the different values may have
    orders = math.lgamma(different + 1) / math.log(2)
    if not ordered and (np.diff(values) >= 0).all() and orders > width + PRIOR.selection:
        return "grows from capture to capture, in their order"
    return ""


def _looks_random(values: Array, width: int, columns: Mapping[str, Array]) -> bool:
    """True if each bit is set in about half of the captures, and is independent of its value in the
    next capture, whichever parameter the captures are sorted by.
    """
    n = len(values)
    if width < BUDGET.wide_run or n * width < LEAST:
        return False
    signs = 2 * (values[:, None] >> np.arange(width) & 1) - 1
    # the largest distance from chance found so far, in standard deviations
    far = np.abs(signs.mean(0)).max() * math.sqrt(n)
    every = [*columns.values()]
    for column in every:
        order = np.lexsort([*every, column])
        alike = signs[order[1:]] * signs[order[:-1]]
        highest = alike[:, -1].mean() * math.sqrt(n)
        far = max(far, highest, alike.mean() * math.sqrt(alike.size))
    return bool(far <= MOST)
