"""Single bits that are the exclusive or of two or three bits of parameters."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from npulab.analysis.laws.expressions import Array, Columns, Expression, shifted, term
from npulab.analysis.laws.masks import packed
from npulab.analysis.laws.prior import BUDGET


def parity(target: Array, columns: Columns, leaves: Sequence[Expression]) -> list[Expression]:
    """The exclusive ors of two or three bits of ``leaves`` that equal ``target (N,) bool``, or its
    complement, on all captures.

    Two bits that are equal, or opposite, on all captures never occur together, because they would
    cancel.
    """
    bits, laws = [], []
    for leaf in leaves:
        values = np.asarray(columns[leaf], np.int64)
        for bit in range(int(values.max()).bit_length() if values.min() >= 0 else 0):
            column = (values >> bit) & 1
            if 0 < column.sum() < len(column):
                bits.append(column.astype(bool))
                laws.append(shifted(leaf, bit))
    if not 2 <= len(bits) <= BUDGET.parity_columns:
        return []
    rows = packed(np.array(bits))
    keys = [row.tobytes() for row in rows]
    said = [min(key, row.tobytes()) for key, row in zip(keys, packed(~np.array(bits)), strict=True)]
    single: dict[bytes, list[int]] = {}
    for i, key in enumerate(keys):
        single.setdefault(key, []).append(i)
    out: list[Expression] = []
    for flip in (False, True):
        wanted = packed((target ^ flip)[None])[0]
        groups: set[tuple[int, ...]] = set()
        for i, j in itertools.combinations(range(len(rows)), 2):
            rest = (wanted ^ rows[i] ^ rows[j]).tobytes()
            if not any(rest):
                groups.add((i, j))
            groups |= {tuple(sorted((i, j, k))) for k in single.get(rest, ()) if k not in (i, j)}
        groups = {
            group for group in groups if len({said[number] for number in group}) == len(group)
        }
        for group in sorted(groups, key=lambda group: (len(group), group)):
            law = laws[group[0]]
            for number in group[1:]:
                law = term("^", law, laws[number])
            out.append(term("+", law, 1) if flip else law)
    return out
