"""Where fields begin and end when no single law holds everywhere: by what laws save that hold on a
part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from npulab.analysis.laws.expressions import Array
from npulab.analysis.laws.library import Library
from npulab.analysis.laws.masks import weighed
from npulab.analysis.laws.prior import BUDGET, PRIOR
from npulab.analysis.laws.solved import Place
from npulab.registers.fields import WORD_BITS


def entropy(share: Array) -> Array:
    """Bits of a yes that comes with this probability."""
    share = np.clip(share, 1e-9, 1 - 1e-9)
    return -(share * np.log2(share) + (1 - share) * np.log2(1 - share))


def information(bits: Array) -> Array:
    """``(N, W, 32)``: code length of each bit of each capture under how often the bit is set."""
    n = len(bits)
    share = (bits.sum(0, dtype=np.float32) + 0.5) / (n + 1)
    return np.where(bits, -np.log2(share), -np.log2(1 - share)).astype(np.float32)


def places(words: Array, weights: Array, library: Library, todo: Array) -> list[Place]:
    """The best cover of the bits to do by fields, over all words, by falling gain."""
    out: list[tuple[float, Place]] = []
    known: dict[tuple[Any, ...], list[tuple[int, float]]] = {}  # as words repeat others
    for word in np.flatnonzero(todo.any(1)).tolist():
        open_bits = np.flatnonzero(todo[word]).tolist()
        gains: dict[Place, float] = {}
        for at, lsb in enumerate(open_bits):
            widths = [1]
            for bit in open_bits[at + 1:]:
                if bit - lsb >= widths[-1] + BUDGET.hole:
                    break
                widths.append(bit - lsb + 1)
            values, of_bits = words[:, word] >> np.uint32(lsb), weights[:, word, lsb:]
            key = (values & np.uint32(2 ** widths[-1] - 1)).tobytes(), *widths
            if key not in known:
                known[key] = [*_gains(values, of_bits, library, widths)]
            gains |= {Place(word, lsb, width): gain for width, gain in known[key]}
        out += _cover(word, gains)
    return [place for _, place in sorted(out, key=lambda item: -item[0])]


def _gains(values: Array, weights: Array, library: Library, widths: list[int]) -> Iterator[tuple[int, float]]:
    """(width, what the best law saves on the captures where it holds) for widths of a field from
    bit 0 of ``values (N,)``; ``weights (N, bits)``."""
    n = len(values)
    rows = slice(0, min(n, BUDGET.boundary_sample))
    laws = library.laws.of(slice(BUDGET.boundary_laws))
    narrow = min(2, widths[-1])
    low = weights[rows, :narrow].sum(1)
    same = ((laws.values[:, rows] ^ values[rows]) & np.uint32(2 ** narrow - 1)) == 0
    likely = weighed(same, low) - len(low) * entropy(same.mean(1))
    keep = np.flatnonzero(likely > -4)
    keep = keep[np.argsort(-likely[keep], kind="stable")[:BUDGET.boundary_likely]]
    if not len(keep):
        return
    apart = laws.values[keep] ^ values
    for width in widths:
        agree = (apart & np.uint32(2 ** width - 1)) == 0
        gain = weighed(agree, weights[:, :width].sum(1)) - n * entropy(agree.mean(1)) - laws.cost[keep]
        if gain.max() > PRIOR.boundary_gain:
            yield width, float(gain.max())


def _cover(word: int, gains: dict[Place, float]) -> list[tuple[float, Place]]:
    """The fields of one word that do not overlap and gain most, with their gains."""
    best: list[tuple[float, list[tuple[float, Place]]]] = [(0.0, [])]
    for end in range(1, WORD_BITS + 1):
        best.append(best[-1])
        for lsb in range(end - 1, -1, -1):
            place = Place(word, lsb, end - lsb)
            if place in gains and best[lsb][0] + gains[place] - PRIOR.boundary > best[end][0]:
                best[end] = (best[lsb][0] + gains[place] - PRIOR.boundary,
                             [*best[lsb][1], (gains[place], place)])
    return best[-1][1]
