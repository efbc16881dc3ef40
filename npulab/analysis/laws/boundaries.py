"""Where fields begin and end when no single law holds everywhere: by what laws save that hold on a
part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npulab.analysis.laws.expressions import Array
from npulab.analysis.laws.library import Library

LAWS, SAMPLE, BLOCK = 25_000, 48, 4_000
LEAST_SAVING, FIELD_COST, WIDEST_HOLE = 8.0, 4.0, 2


@dataclass(frozen=True)
class Place:
    """Bits that may be a field: ``saving`` is what its best single law saves on the captures where
    it holds."""

    word: int
    lsb: int
    width: int
    saving: float

    @property
    def name(self) -> str:
        """The automatic name of a register map: word, lowest bit, width."""
        return f"w{self.word}_{self.lsb}_{self.width}"

    @property
    def bits(self) -> list[tuple[int, int]]:
        return [(self.word, self.lsb + i) for i in range(self.width)]


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
    """The best cover of the bits to do by fields, over all words."""
    out: list[Place] = []
    for word in range(words.shape[1]):
        open_bits = np.flatnonzero(todo[word]).tolist()
        found: dict[tuple[int, int], float] = {}
        for lsb in open_bits:
            widths, last = [], lsb
            for bit in open_bits:
                if bit >= lsb:
                    if bit - last > WIDEST_HOLE:
                        break
                    widths.append(bit - lsb + 1)
                    last = bit
            found |= {(lsb, width): saving
                      for width, saving in _savings(words[:, word], weights[:, word], library, lsb, widths)}
        out += [Place(word, lsb, width, saving) for lsb, width, saving in _cover(found)]
    return out


def _savings(word: Array, weights: Array, library: Library, lsb: int, widths: list[int]) -> list[tuple[int, float]]:
    """(width, bits saved) of the best law for each width of a field that begins at ``lsb``."""
    n = len(word)
    rows = slice(0, min(n, SAMPLE))
    columns, cost = library.values[:LAWS], library.cost[:LAWS]
    values = word >> np.uint32(lsb)
    narrow = min(2, widths[-1])
    low = weights[rows, lsb:lsb + narrow].sum(1)
    same = ((columns[:, rows] ^ values[rows]) & np.uint32(2 ** narrow - 1)) == 0
    likely = same @ low - len(low) * entropy(same.mean(1))
    keep = np.flatnonzero(likely > -4)
    if len(keep) > BLOCK:
        keep = keep[np.argsort(-likely[keep], kind="stable")[:BLOCK]]
    if not len(keep):
        return []
    apart = columns[keep] ^ values
    out = []
    for width in widths:
        agree = (apart & np.uint32(2 ** width - 1)) == 0
        saving = agree @ weights[:, lsb:lsb + width].sum(1) - n * entropy(agree.mean(1)) - cost[keep]
        best = float(saving.max())
        if best > LEAST_SAVING:
            out.append((width, best))
    return out


def _cover(found: dict[tuple[int, int], float]) -> list[tuple[int, int, float]]:
    """The fields of one word that do not overlap and save most."""
    best: list[tuple[float, list[tuple[int, int, float]]]] = [(0.0, [])]
    for end in range(1, 33):
        best.append(best[end - 1])
        for width in range(1, end + 1):
            saving = found.get((end - width, width))
            if saving is not None and best[end - width][0] + saving - FIELD_COST > best[end][0]:
                best[end] = (best[end - width][0] + saving - FIELD_COST,
                             [*best[end - width][1], (end - width, width, saving)])
    return best[32][1]
