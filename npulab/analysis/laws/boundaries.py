"""Where fields begin and end if no single law holds on all captures: each word is divided into the
fields whose laws save most bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from npulab.analysis.laws.expressions import Array
from npulab.analysis.laws.library import Family, Library
from npulab.analysis.laws.masks import weighed_octets
from npulab.analysis.laws.prior import BUDGET, PRIOR
from npulab.analysis.laws.solved import Place
from npulab.registers.fields import WORD_BITS


def entropy(share: Array) -> Array:
    """The entropy, in bits, of an event of the probability ``share``."""
    share = np.clip(share, 1e-9, 1 - 1e-9)
    return -(share * np.log2(share) + (1 - share) * np.log2(1 - share))


def information(bits: Array) -> Array:
    """The code length in bits of each bit of each capture, ``(N, W, 32)``.

    A value of 0 or 1 that a bit rarely has is long; a bit that never changes takes almost no
    length.
    """
    share = (bits.sum(0, dtype=np.float32) + 0.5) / (len(bits) + 1)
    return np.where(bits, -np.log2(share), -np.log2(1 - share)).astype(np.float32)


def places(words: Array, weights: Array, library: Library, todo: Array) -> list[Place]:
    """The fields that cover the open bits of all words best; the field with the largest gain comes
    first.
    """
    out = []
    # a key is the values of some bits, the value their gains: drivers often write the same number
    # to several words
    known: dict[tuple[Any, ...], list[tuple[int, float]]] = {}
    laws = library.laws.of(slice(BUDGET.boundary_laws))
    low = _lowest(laws.values[:, : BUDGET.boundary_sample])
    for word in np.flatnonzero(todo.any(1)).tolist():
        open_bits = np.flatnonzero(todo[word]).tolist()
        gains: dict[Place, float] = {}
        for at, lsb in enumerate(open_bits):
            widths = [1]
            for bit in open_bits[at + 1 :]:
                if bit - lsb >= widths[-1] + BUDGET.hole:
                    break
                widths.append(bit - lsb + 1)
            values, of_bits = words[:, word] >> np.uint32(lsb), weights[:, word, lsb:]
            key = (values & np.uint32(2 ** widths[-1] - 1)).tobytes(), *widths
            if key not in known:
                known[key] = [*_gains(values, of_bits, laws, low, widths)]
            gains |= {Place(word, lsb, width): gain for width, gain in known[key]}
        out += _cover(word, gains)
    return [place for _, place in sorted(out, key=lambda item: -item[0])]


def _lowest(values: Array) -> list[Array]:
    """Bit 0 of values ``(..., N)``, and bit 1 of them: two arrays of bytes, each of which holds the
    bits of eight captures.
    """
    return [np.packbits(values & np.uint32(bit) != 0, axis=-1, bitorder="little") for bit in (1, 2)]


def _gains(
    values: Array, weights: Array, laws: Family, low: list[Array], widths: list[int]
) -> Iterator[tuple[int, float]]:
    """Yield (width, gain) for each width of a field that begins at bit 0 of ``values (N,)``.

    The gain is the number of bits that the best law saves on the captures where it holds. ``weights
    (N, bits)`` is the information in each bit, ``low`` are bits 0 and 1 of the laws on the first
    captures.
    """
    few = values[: BUDGET.boundary_sample]
    apart = [bits ^ bit for bits, bit in zip(low, _lowest(few), strict=True)][: widths[-1]]
    same = ~np.bitwise_or.reduce(apart) & np.packbits(np.ones(len(few), bool), bitorder="little")
    likely = _gain(same, weights[: len(few), : len(apart)].sum(1))
    keep = np.flatnonzero(likely > -4)
    keep = keep[np.argsort(-likely[keep], kind="stable")[: BUDGET.boundary_likely]]
    if not len(keep):
        return
    unlike = laws.values[keep] ^ values
    for width in widths:
        agree = np.packbits((unlike & np.uint32(2**width - 1)) == 0, axis=1, bitorder="little")
        gain = _gain(agree, weights[:, :width].sum(1)) - laws.cost[keep]
        if gain.max() > PRIOR.boundary_gain:
            yield width, float(gain.max())


def _gain(agree: Array, weights: Array) -> Array:
    """The bits that each law saves on the captures where it holds, less the bits that it takes to
    name these captures. ``agree (L, K) uint8`` has a bit for each capture, set if the law holds
    there.
    """
    n = len(weights)
    return weighed_octets(agree, weights) - n * entropy(np.bitwise_count(agree).sum(1) / n)


def _cover(word: int, gains: dict[Place, float]) -> list[tuple[float, Place]]:
    """(gain, field) of those fields of one word that do not overlap and whose gains have the
    largest sum.
    """
    best: list[tuple[float, list[tuple[float, Place]]]] = [(0.0, [])]
    for end in range(1, WORD_BITS + 1):
        best.append(best[-1])
        for lsb in range(end - 1, -1, -1):
            place = Place(word, lsb, end - lsb)
            if place in gains and best[lsb][0] + gains[place] - PRIOR.boundary > best[end][0]:
                best[end] = (
                    best[lsb][0] + gains[place] - PRIOR.boundary,
                    [*best[lsb][1], (gains[place], place)],
                )
    return best[-1][1]
