"""Output codes of several rules side by side, for chosen accumulators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.quant.requantize import within
from npulab.quant.rules import RULES, Rule, ratio_of_scales, rule
from npulab.support.late import pd

TYPE = "uint8"  # if no rules are given, all rules with uint8 outputs are compared
Scales = float | tuple[float, float, float]


def codes_by_rule(
    accumulators: Iterable[int],
    scales: Scales,
    zero_point: int = 0,
    rules: Iterable[str | Rule] | str | Rule | None = None,
) -> pd.DataFrame:
    """Return output codes before the clamp: a row per rule, a column per accumulator. The columns
    are sorted by accumulator.

    ``scales`` are the scales of input, weights and output, or one number: ``input scale * weight
    scale / output scale``. ``rules`` are names or rules, by default all rules with uint8 outputs.
    Raises LookupError for an unknown rule. Raises ValueError if a rule cannot represent the ratio
    of the scales, or if a rule's register cannot hold an accumulator.

    >>> codes_by_rule([-2, 2], 0.25, rules=["vivante-v7:half-up", "vivante-v7:half-away"])
                          -2   2
    vivante-v7:half-up     0   1
    vivante-v7:half-away  -1   1
    """
    given = np.asarray(list(accumulators) if np.iterable(accumulators) else accumulators)
    if not given.size:
        raise ValueError("accumulators: got none, allowed is one or more")
    if given.dtype.kind not in "iu" or given.max() >= 2**63:
        raise ValueError(
            f"accumulators: got {given.tolist()}, allowed are whole numbers within int64"
        )
    sums = np.unique(given.astype(np.int64))
    if rules is None:
        candidates = [by for by in RULES.values() if TYPE in by.types]
    else:
        names: Iterable[str | Rule] = rules
        if isinstance(rules, str | Rule):
            names = [rules]
        candidates = [rule(name) for name in names]
    codes = [
        by.exact(within(sums[:, None], by)[:, 0], *by.multiplier(*three(scales)), zero_point)
        for by in candidates
    ]
    return pd.DataFrame(codes, [by.name for by in candidates], [int(one) for one in sums])


def same_codes(codes: pd.DataFrame) -> list[tuple[tuple[str, ...], Array]]:
    """Return the groups of rules that have equal rows in the table of ``codes_by_rule``: for each
    group the names of its rules, and their common codes.
    """
    found: dict[bytes, tuple[list[str], Array]] = {}
    for name, row in zip(codes.index, codes.to_numpy(), strict=True):
        found.setdefault(row.tobytes(), ([], row))[0].append(name)
    return [(tuple(names), row) for names, row in found.values()]


def three(scales: Scales) -> tuple[Any, Any, Any]:
    """Return the scales of input, weights and output.

    If ``scales`` is one number, it is taken as the weight scale, with 1 as the scale of input and
    output.
    """
    if not isinstance(scales, tuple | list):
        return 1.0, scales, 1.0
    if len(scales) != 3:
        raise ValueError(
            f"scales: got {len(scales)} numbers, allowed is one (the ratio) or three (the scales "
            "of input, weights and output)"
        )
    return scales[0], scales[1], scales[2]


def real_values(accumulators: Any, scales: Scales) -> Array:
    """Return accumulators as real numbers in units of the output scale, float64. The ratio of the
    scales is computed in float64 too.
    """
    return np.asarray(accumulators, np.float64) * ratio_of_scales(*three(scales), "D")
