"""Random layouts of elements of 1 to 16 bits, split over one to four planes, and what
``find_layout`` says of them.

    python tests/tools/bits_lot.py 0 400 2     # seeds 0, 2, 4, ... below 400

A layout is an order of all bits: by tiles of the axes, by the plane of a bit and by its place in
the plane, in any order of these, with completed or short tiles. The places come from sorting the
bits by that order, not from any code of the package. Prints a line for each layout that was
refused or found wrong, then the counts; even seeds were used to decide on the search, odd ones to
judge it.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import NamedTuple

import numpy as np

from npulab.layout import Found, find_layout, markers

ALIGNS = (1, 1, 8, 32, 128, 512)
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 30, 32, 36, 48)
TILES = (2, 3, 4, 6, 8, 16, 32, 36)
MOST = 3000  # elements


class Planned(NamedTuple):
    """A layout as the place of each bit ``(*shape, bits)`` and the bits of a buffer without
    elements.
    """

    shape: tuple[int, ...]
    dtype: str
    places: np.ndarray
    background: np.ndarray
    xor: int
    said: str

    @property
    def bits(self) -> int:
        return self.places.shape[-1]

    def pack(self, tensor: np.ndarray) -> bytes:
        """Return the buffer of a tensor."""
        out = self.background.copy()
        stored = tensor.astype(np.int64) % 2**self.bits ^ self.xor
        out[self.places] = stored[..., None] >> np.arange(self.bits) & 1
        return np.packbits(out, bitorder="little").tobytes()


def planned(seed: int) -> Planned:
    """The layout of a seed."""
    rng = np.random.default_rng(seed)
    bits = int(rng.integers(1, 17))
    shape = _shape(rng)
    planes = int(rng.integers(1, min(4, bits) + 1))
    cuts = np.sort(rng.choice(np.arange(1, bits), planes - 1, replace=False))
    if bits % planes == 0 and rng.random() < 0.6:
        cuts = np.arange(1, planes) * (bits // planes)
    plane = np.searchsorted(cuts, np.arange(bits), "right")
    within = np.arange(bits) - np.array([0, *cuts])[plane]
    if rng.random() < 0.15:
        within = -within
    if rng.random() < 0.5:
        plane = rng.permutation(planes)[plane]
    axes = list(shape)
    if len(axes) > 1 and rng.random() < 0.2:
        axes = [axes[0] * axes[1], *axes[2:]]
    tiles = {}
    for axis in rng.permutation(len(axes))[: int(rng.integers(0, 3))].tolist():
        fitting = [tile for tile in TILES if tile < axes[axis]]
        if fitting:
            tiles[axis] = int(rng.choice(fitting))
    completes = rng.random() < 0.6
    wide = list(axes)
    if completes:
        wide = [-(-n // tiles.get(axis, 1)) * tiles.get(axis, 1) for axis, n in enumerate(axes)]
    loops, index = _loops(rng, wide, tiles, plane, within)
    places, length = _places(rng, loops)
    every = places.reshape(*wide, bits)
    offset = int(rng.choice([0, 0, 0, 8, 64, 256]))
    size = -(-(offset + length) // 8) + int(rng.choice([0, 0, 4, 13]))
    size = -(-size // 4) * 4
    background = np.full(size * 8, int(rng.random() < 0.15), np.uint8)
    background[:offset] = rng.integers(0, 2, offset)
    if completes and rng.random() < 0.5:
        fill = int(rng.integers(0, 2**bits))
        background[every + offset] = fill >> np.arange(bits) & 1
    own = every[tuple(slice(n) for n in axes)].reshape(*shape, bits) + offset
    own, background = _turned(rng, own, background)
    kind = "uint"
    if bits > 1 and rng.random() < 0.5:
        kind = "int"
    xor = 0
    if rng.random() < 0.2:
        xor = 2 ** (bits - 1)
    said = (
        f"{shape} as {axes}, planes {plane.tolist()}, tiles {tiles}, "
        f"{'completed' if completes else 'short'}, loops {index}"
    )
    return Planned(shape, f"{kind}{bits}", own, background, xor, said)


def _shape(rng: np.random.Generator) -> tuple[int, ...]:
    while True:
        rank = int(rng.integers(1, 5))
        shape = tuple(rng.choice(SIZES, rank).tolist())
        if rank == 1:
            shape = (int(rng.integers(10, MOST)),)
        if 10 <= np.prod(shape) <= MOST:
            return shape


def _loops(
    rng: np.random.Generator,
    wide: list[int],
    tiles: dict[int, int],
    plane: np.ndarray,
    within: np.ndarray,
) -> tuple[list[np.ndarray], list[str]]:
    """The number of each bit in each loop, from the outermost loop to the innermost, and the
    loops' names."""
    grid = [axis.ravel() for axis in np.indices((*wide, len(plane)))]
    chains: list[list[tuple[str, np.ndarray]]] = []
    for axis, n in enumerate(wide):
        along = grid[axis]
        sign = ""
        if rng.random() < 0.1:
            along = n - 1 - along
            sign = "-"
        tile = tiles.get(axis, 1)
        if tile > 1:
            chains.append(
                [(f"{sign}{axis}/{tile}", along // tile), (f"{sign}{axis}", along % tile)]
            )
        else:
            chains.append([(f"{sign}{axis}", along)])
    chains.append([("plane", plane[grid[-1]])])
    lowest = ("bit", within[grid[-1]])
    innermost = rng.random() < 0.7
    if not innermost:
        chains[-1].append(lowest)
    turns = np.repeat(np.arange(len(chains)), [len(chain) for chain in chains])
    order = []
    for turn in rng.permutation(turns).tolist():
        order.append(chains[turn].pop(0))
    if innermost:
        order.append(lowest)
    return [numbers for _, numbers in order], [name for name, _ in order]


def _places(rng: np.random.Generator, loops: list[np.ndarray]) -> tuple[np.ndarray, int]:
    """The place of each bit in the order of the loops, and the places of all; the blocks of some
    outer loops may begin at round places."""
    order = np.lexsort(loops[::-1])
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    cut = int(rng.integers(0, len(loops)))
    align = int(rng.choice(ALIGNS))
    if not cut or align == 1:
        return rank, len(rank)
    block = np.zeros(len(rank), np.int64)
    for loop in loops[:cut]:
        block = block * (int(loop.max() - loop.min()) + 1) + loop - loop.min()
    _, block = np.unique(block, return_inverse=True)
    first = np.full(block.max() + 1, len(rank))
    np.minimum.at(first, block, rank)
    most = int((rank - first[block]).max()) + 1
    stride = -(-most // align) * align
    return block * stride + rank - first[block], int(block.max() + 1) * stride


def _turned(
    rng: np.random.Generator, places: np.ndarray, background: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Places and background with the highest bit of a byte first, or words of 4 bytes swapped."""
    flip = 0
    if rng.random() < 0.15:
        flip = 7
    if rng.random() < 0.05:
        flip ^= 24
    turned = np.empty_like(background)
    turned[np.arange(len(background)) ^ flip] = background
    return places ^ flip, turned


def judged(seed: int) -> tuple[str, str]:
    """``found``, ``refused`` or ``wrong`` for the layout of a seed, and what was said of it."""
    plan = planned(seed)
    tensors = markers(plan.shape, plan.dtype, unit=1)
    buffers = [plan.pack(tensor) for tensor in tensors]
    try:
        found = find_layout(tensors, buffers, dtype=plan.dtype)
    except ValueError as error:
        return "refused", f"{plan.said}: {error}"
    return exact(plan, found, seed), f"{plan.said}: {found}"


def exact(plan: Planned, found: Found, seed: int) -> str:
    """``found`` if places are right and a tensor that the search did not see is packed byte for
    byte.
    """
    rng = np.random.default_rng(-seed + 2**32)
    unseen = rng.integers(0, 2**plan.bits, plan.shape)
    if plan.dtype.startswith("int"):
        unseen -= 2 ** (plan.bits - 1)
    unseen = unseen.astype(markers(plan.shape, plan.dtype, unit=1)[0].dtype)
    places = found.index_map()
    if plan.bits in (8, 16) and places.shape == plan.shape:
        order = np.arange(plan.bits)
        if getattr(found.layout, "big_endian", False) and plan.bits == 16:
            order = order ^ 8
        places = 8 * places[..., None] + order
    elif places.shape == plan.shape:
        places = plan.bits * places[..., None] + np.arange(plan.bits)
    right = (places == plan.places) | (places < 0)
    if not right.all():
        return "wrong places"
    packed, wanted = found.pack(unseen), plan.pack(unseen)
    if packed != wanted:
        if len(found.missing):
            return "elements left open"
        wrong = np.flatnonzero(np.frombuffer(packed, "u1") != np.frombuffer(wanted, "u1"))
        left = [np.arange(run.offset, run.offset + run.size) for run in found.unexplained]
        # bytes that the result itself names as not explained are no claim
        if not found.sure and left and np.isin(wrong, np.concatenate(left)).all():
            return "bytes left open"
        return "wrong bytes"
    if not found.sure:
        return "found, not sure"
    return "found"


def main(first: int, end: int, step: int) -> None:
    counts: Counter[str] = Counter()
    began = time.perf_counter()
    for seed in range(first, end, step):
        verdict, said = judged(seed)
        counts[verdict] += 1
        if verdict != "found":
            print(f"{seed} {verdict}: {said}\n")
    print(dict(counts), f"{time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
