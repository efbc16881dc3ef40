"""The tensors and buffers that a search gets: their checks, and warnings if they are unsuitable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.layout.places import Pairs
from npulab.layout.stored import (
    BITS,
    DTYPES,
    ELEMENTS,
    MOST_BYTES,
    MOST_ELEMENTS,
    bytes_in,
    held_as,
    opened,
    raw_of,
    values_of,
)
from npulab.support.refuse import refuse_if

# A signature (the values of an element in all captures) has this many bits more than the number of
# a place, so that it rarely matches by chance.
SPARE_BITS = 8
# One of HELD buffers is held back from the search, but at most MOST_HELD buffers.
HELD = 4
MOST_HELD = 2
# A tensor may be compressed if this share of its elements are equal.
SPARSE_SHARE = 0.9
# Equal elements are counted in a sample of about this many elements.
SPARSE_SAMPLE = 2**14
# Equal elements are not counted in a sample of fewer elements.
FEW = 16


@dataclass(frozen=True)
class Given:
    """Tensors and their buffers, as a search gets them.

    ``raw`` are the tensors as unsigned elements of ``dtype``, all of one shape. ``buffers`` are
    ``(M,) uint8``, all of one size.
    """

    raw: tuple[Array, ...]
    buffers: tuple[Array, ...]
    dtype: str

    def pairs(self) -> Pairs:
        """Return the pairs that the search sees; the last pairs may be held back to prove the
        result.
        """
        bits = BITS[self.dtype]
        # The number of buffers must be large enough that their values identify each element.
        places = 8 * len(self.buffers[0])
        needed = -(-(places.bit_length() + SPARE_BITS) // bits)
        seen = max(len(self.raw) - held_back(len(self.raw)), min(needed, len(self.raw)))
        opened_buffers = [opened(buffer, bits, 0, False) for buffer in self.buffers[:seen]]
        return Pairs(self.raw[:seen], tuple(opened_buffers), self.dtype)

    def held(self, seen: int) -> Iterator[tuple[Array, Array]]:
        """Yield the tensors and buffers after the first ``seen``, which the search did not see."""
        for raw, buffer in zip(self.raw[seen:], self.buffers[seen:], strict=True):
            yield values_of(raw, self.dtype), buffer

    def warnings(self, sure: bool) -> tuple[str, ...]:
        """Return sentences about tensors that cannot show a whole layout.

        If ``sure``, a layout was found, and only bits that never change are named.
        """
        out = []
        bits = ELEMENTS[self.dtype]
        still = still_bits(self.raw, bits)
        if still:
            shown = ", ".join(map(str, still))
            out.append(
                f"of the {bits} bits of an element these have one value in all tensors: {shown}; "
                "the planes of these bits do not move, and nothing shows where they lie"
            )
        if sure:
            return tuple(out)
        share = sparse_share(self.raw)
        if share >= SPARSE_SHARE:
            out.append(
                f"{share:.0%} of the elements of a tensor are equal: such a tensor may have been "
                "compressed, change single elements of a dense one"
            )
        if 8 * len(self.buffers[0]) < bits * self.raw[0].size:
            out.append(
                f"{len(self.buffers[0])} bytes cannot hold {self.raw[0].size} elements of {bits} "
                "bits: the tensor may have been compressed"
            )
        return tuple(out)


def given_pairs(tensors: Any, buffers: Any, dtype: str) -> Given:
    single = isinstance(buffers, bytes | bytearray | memoryview) or (
        isinstance(buffers, Array) and buffers.ndim == 1
    )
    if single:
        tensors = [tensors]
        buffers = [buffers]
    arrays = [np.asarray(tensor) for tensor in tensors]
    data = [bytes_in(buffer, f"buffers[{at}]") for at, buffer in enumerate(buffers)]
    refuse_if(
        not arrays or len(arrays) != len(data),
        "tensors, buffers",
        f"{len(arrays)} tensors and {len(data)} buffers",
        "are one or more tensors and as many buffers",
    )
    refuse_if(
        dtype and dtype not in ELEMENTS, "dtype", repr(dtype), f"is one of {', '.join(ELEMENTS)}"
    )
    first = arrays[0]
    kind = dtype or str(first.dtype)
    types = ", ".join(DTYPES)
    if dtype:
        types = str(held_as(dtype))
    fits = kind in ELEMENTS and first.dtype == held_as(kind)
    moved = ""
    sizes = f"{first.itemsize} to {MOST_BYTES}"
    for at, (tensor, buffer) in enumerate(zip(arrays, data, strict=True)):
        if not fits or not 1 <= tensor.size <= MOST_ELEMENTS or not tensor.ndim:
            raise ValueError(
                f"tensors[{at}]: got {tensor.dtype} {tensor.shape}, allowed are 1 to "
                f"{MOST_ELEMENTS} elements of {types}"
            )
        if tensor.shape != first.shape or tensor.dtype != first.dtype:
            raise ValueError(
                f"tensors[{at}]: got {tensor.dtype} {tensor.shape}, allowed is {first.dtype} "
                f"{first.shape}, as the first tensor is"
            )
        if len(buffer) != len(data[0]) or not first.itemsize <= len(buffer) <= MOST_BYTES:
            raise ValueError(f"buffers[{at}]: got {len(buffer)} bytes, allowed is {sizes}{moved}")
        sizes = f"{len(data[0])}, as in the first buffer"
        moved = (
            "; a length that moves with the values says that the tensor is compressed: change "
            "single elements of a dense one"
        )
    return Given(tuple(raw_of(tensor, kind) for tensor in arrays), tuple(data), kind)


def held_back(count: int) -> int:
    """Return how many of ``count`` buffers are held back from the search, to prove its result."""
    return min(count // HELD, MOST_HELD)


def still_bits(raw: Sequence[np.ndarray], bits: int) -> list[int]:
    """Return the numbers of the bits that are equal in all elements of all tensors; 0 is the
    lowest.

    ``raw`` are tensors of unsigned elements of ``bits`` bits.
    """
    high = 0
    low = 2**bits - 1
    for tensor in raw:
        high |= int(np.bitwise_or.reduce(tensor, axis=None))
        low &= int(np.bitwise_and.reduce(tensor, axis=None))
    moves = high & ~low
    return [bit for bit in range(bits) if not moves >> bit & 1]


def sparse_share(raw: Sequence[np.ndarray]) -> float:
    """Return the largest share that one value has among the elements of one of the tensors.

    Values are counted in a sample of each tensor.
    """
    share = 0.0
    for tensor in raw:
        some = tensor.ravel()[:: max(tensor.size // SPARSE_SAMPLE, 1)]
        _, counts = np.unique(some, return_counts=True)
        if some.size >= FEW:
            share = max(share, float(counts.max() / some.size))
    return share
