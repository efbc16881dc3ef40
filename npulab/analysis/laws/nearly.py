"""Near laws: laws that some captures break, and laws that too few captures prove."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from npulab.analysis.laws.expressions import Array, Columns, Expression, parameter, shifted, term
from npulab.analysis.laws.predicates import Predicates, make_predicates
from npulab.analysis.laws.prior import BUDGET, PRIOR


def exceptions(law: Expression, right: Array, conditions: Predicates) -> str:
    """A law that is right on most captures, as text, with the plainest condition that all
    exceptions meet.

    ``right (N,) bool`` says on which captures the law is right. The condition is named only if
    hardly any of these captures meets it.

    >>> width = np.arange(8)
    >>> columns = Columns({"width": width, "mode": width // 6})
    >>> exceptions(parameter("width"), width < 6, make_predicates(columns, [parameter("mode")]))
    'width in 6 of 8; all others have mode == 1'
    """
    text, wrong = f"{law} in {int(right.sum())} of {len(right)}", ~right
    plain = conditions.up_to(PRIOR.plain)
    count = plain.masks.sum(1)
    common = plain.masks[:, wrong].all(1) & (count <= 2 * wrong.sum())
    if wrong.sum() < BUDGET.in_step or not common.any():
        return text
    first = int(np.where(common, count, len(right) + 1).argmin())
    return f"{text}; all others have {plain.condition(first)}"


def flags(bits: Array, integers: Mapping[str, Array]) -> Sequence[str]:
    """For each of ``bits (B, N) bool``, a text that names the bit of a parameter, or its opposite,
    that is equal on most captures; "" if there is none.
    """
    columns = Columns(integers)
    laws = []
    rows = []
    for name, values in integers.items():
        for bit in range(int(values.max()).bit_length() if values.min() >= 0 else 0):
            row = (values >> bit & 1).astype(bool)
            law = shifted(parameter(name), bit)
            if not (values.max() < 2 ** (bit + 1)):
                law = term("%", law, 2)
            laws += [law, term("-", 1, law)]
            rows += [row, ~row]
    if not rows:
        return [""] * len(bits)
    agree = np.array(rows)[None] == bits[:, None]
    best = agree.sum(2).argmax(1)
    conditions = make_predicates(columns, [parameter(name) for name in integers])
    out = []
    for bit, number, right in zip(
        bits, best.tolist(), agree[np.arange(len(bits)), best], strict=True
    ):
        rare = min(int(bit.sum()), int((~bit).sum()))
        text = exceptions(laws[number], right, conditions)
        if right.all():
            if bit.sum() == rare:
                kind = "set"
            else:
                kind = "clear"
            text = f"{laws[number]} fits all {len(bit)}, {rare} of them {kind}: too few to claim"
        # a bit that is nearly always 0, or nearly always 1, agrees with many parameters by chance
        out.append(text if (~right).sum() <= min(PRIOR.nearly * len(bit), rare / 2) else "")
    return out
