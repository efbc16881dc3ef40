"""A nest of loops over tiles of the axes of a tensor, which says where each element lies in a
buffer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from npulab.layout.stored import MOST_ELEMENTS, Stored

SLAB = 2 ** 17  # elements whose places are found at a time
LETTERS = {1: "i", 2: "rc", 3: "hwc", 4: "ohwi"}


@dataclass(frozen=True)
class Loop:
    """A level of a nest: blocks of ``tile`` indices of ``axis``, ``stride`` bytes from one to the
    next.

    Without a stride every block starts where the last one ends, so that a block which the axis does
    not fill is shorter in the buffer too; the loops inside of it have no stride either.
    """

    axis: int
    tile: int = 1
    stride: int | None = None


@dataclass(frozen=True)
class Layout(Stored):
    """Where each element of a tensor of ``shape`` lies: loops from the outermost to the innermost.

    The element at an index lies at ``offset`` plus, for each loop, the stride times the number of
    its block.  A loop over an axis divides the block of the loop over the same axis before it.
    ``dtype`` is the numpy name of the elements, ``size`` the bytes of the buffer (up to the last
    element where it is left out), ``window`` the (start, stop) of each axis where not the whole
    tensor is in the buffer.  Stored is ``(raw ^ xor) + add``, modulo the range of the element,
    little-endian unless ``big_endian``, and again ``copies`` bytes away; the other bytes hold
    ``fill`` (an unsigned element) or the ``parts``. Raises ValueError for loops that leave out
    indices, places outside of the buffer or taken twice.

    >>> rows = Layout((2, 3), (Loop(0, stride=4), Loop(1, stride=1)), size=8)
    >>> rows.pack(np.array([[1, 2, 3], [4, 5, 6]], np.uint8)).hex(" ")
    '01 02 03 00 04 05 06 00'
    >>> print(rows)
    RC, strides 4 1: (2, 3) uint8, 8 bytes
    """

    loops: tuple[Loop, ...]
    _: KW_ONLY
    offset: int = 0
    window: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        self._check_stored()
        if not self.window:
            object.__setattr__(self, "window", tuple((0, n) for n in self.shape))
        self._check_loops()
        low, high = self._ends()
        if not self.size:
            ends = [high + max(0, 0, *self.copies), *(part.offset + part.size for part in self.parts)]
            object.__setattr__(self, "size", max(ends))
        self._check_ends(low, high)

    def _check_loops(self) -> None:
        if len(self.window) != len(self.shape) or not all(
                0 <= start < stop <= n for (start, stop), n in zip(self.window, self.shape, strict=True)):
            raise ValueError(f"window: got {self.window}, allowed is (start, stop) for each axis of {self.shape}")
        left = list(self.extents)
        packed = False
        for loop in self.loops:
            if not 0 <= loop.axis < len(left):
                raise ValueError(f"{loop}: got axis {loop.axis}, allowed is 0 to {len(left) - 1}")
            if loop.tile < 1:
                raise ValueError(f"{loop}: got a tile of {loop.tile}, allowed is 1 or more")
            if packed and loop.stride is not None:
                raise ValueError(f"{loop}: got a stride inside of a loop without one")
            packed = loop.stride is None
            left[loop.axis] = min(left[loop.axis], loop.tile)
        if max(left) > 1:
            axis = left.index(max(left))
            raise ValueError(f"loops: got blocks of {left[axis]} indices of axis {axis} at the innermost, allowed is 1")

    def _ends(self) -> tuple[int, int]:
        """First byte and end of the elements, which are found to lie at places of their own."""
        if any(loop.stride is None for loop in self.loops) and any(loop.stride is not None for loop in self.loops):
            places = self.index_map()[self.inside]
            low, high = int(places.min()), int(places.max()) + self.itemsize
            apart = self._apart(places, low, high)
        elif all(loop.stride is None for loop in self.loops):
            low, high, apart = self.offset, self.offset + self.itemsize * math.prod(self.extents), True
        else:
            lines = [self._line(axis, n) for axis, n in enumerate(self.extents) if n > 1]
            low = self.offset + sum(int(line.min()) for line in lines)
            high = self.offset + sum(int(line.max()) for line in lines) + self.itemsize
            apart = self._nested() or self._apart(self.index_map()[self.inside], low, high)
        if not apart:
            raise ValueError(f"loops: got two elements at one place in {self}")
        return low, high

    def _line(self, axis: int, n: int) -> np.ndarray:
        """Bytes from the first index of an axis to each other, where all strides are given."""
        left, out = np.arange(n), np.zeros(n, np.int64)
        for loop in self.loops:
            if loop.axis == axis:
                block = left // loop.tile
                out += block * (loop.stride or 0)
                left -= block * loop.tile
        return out

    def _nested(self) -> bool:
        """Whether every stride steps over all that the smaller ones reach."""
        left, steps = list(self.extents), []
        for loop in self.loops:
            steps.append((abs(loop.stride or 0), -(-left[loop.axis] // loop.tile)))
            left[loop.axis] = min(left[loop.axis], loop.tile)
        reach = self.itemsize
        for stride, count in sorted(steps):
            if count > 1 and stride < reach:
                return False
            reach += stride * (count - 1)
        return True

    def _apart(self, places: np.ndarray, low: int, high: int) -> bool:
        if high - low > MOST_ELEMENTS:
            raise ValueError(f"loops: got bytes {low} to {high}, allowed are strides that do not interleave there")
        taken = np.zeros(high - low, bool)
        for at in range(self.itemsize):
            taken[places + (at - low)] = True
        return int(np.count_nonzero(taken)) == places.size * self.itemsize

    def _write(self, out: np.ndarray, stored: np.ndarray) -> None:
        if not self._strided:
            super()._write(out, stored)
            return
        for copy in (0, *self.copies):
            for there, elements in self._views(out, stored, copy):
                there[...] = elements

    def _read(self, data: np.ndarray) -> list[np.ndarray]:
        if not self._strided:
            return super()._read(data)
        read, data = [], np.ascontiguousarray(data)
        for copy in (0, *self.copies):
            read.append(np.empty(self.extents, f"u{self.itemsize}"))
            for there, elements in self._views(data, read[-1], copy):
                elements[...] = there
        return read

    @property
    def _strided(self) -> bool:
        """Whether strides alone say where elements lie; else short blocks move what follows."""
        return all(loop.stride is not None for loop in self.loops)

    def _views(self, buffer: np.ndarray, tensor: np.ndarray, copy: int,
               ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Views of a buffer and of the tensor that hold the same elements, an axis for each
        loop."""
        pieces = [self._pieces(axis, n, 0) for axis, n in enumerate(self.extents)]
        type_ = np.dtype(f"{'>' if self.big_endian else '<'}u{self.itemsize}")
        for parts in product(*pieces):
            counts, first = {at: count for _, _, each in parts
                             for at, count in each.items()}, self.offset + copy
            shape = tuple(counts[at] for at in range(len(self.loops)))
            strides = [tensor.strides[loop.axis] * loop.tile for loop in self.loops]
            start = tensor[tuple(slice(index, None) for index, _, _ in parts)]
            yield (np.ndarray(shape, type_, buffer, first + sum(place for _, place, _ in parts),
                              [loop.stride or 0 for loop in self.loops]),
                              as_strided(start, shape, strides))

    def _pieces(self, axis: int, n: int, depth: int) -> list[tuple[int, int, dict[int, int]]]:
        """Stretches of ``n`` indices of an axis that the loops from ``depth`` on divide evenly.

        Each has its first index, the bytes to it, and by number of a loop how many blocks there
        are: the whole blocks are apart from a short last one.
        """
        depth = next((at for at in range(depth, len(self.loops)) if self.loops[at].axis == axis),
                     len(self.loops))
        if depth == len(self.loops):
            return [(0, 0, {})]
        tile, stride = self.loops[depth].tile, self.loops[depth].stride or 0
        whole, rest = divmod(n, tile)
        even = self._pieces(axis, tile, depth + 1) if whole else []
        short = self._pieces(axis, rest, depth + 1) if rest else []
        return [*((index, place, {depth: whole, **counts}) for index, place, counts in even),
                *((whole * tile + index, whole * stride + place, {depth: 1, **counts})
                  for index, place, counts in short)]

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.window)

    def index_map(self) -> np.ndarray:
        """Byte offset of each element ``(*shape) int64``, -1 where it is not in the buffer."""
        out = np.full(self.shape, -1, np.int64)
        places = out[self.inside]
        # slab by slab, so that what a nest of short blocks is multiplied from takes little memory
        axis = int(np.argmax(self.extents))
        length = max(SLAB * self.extents[axis] // max(self.elements, 1), 1)
        for start in range(0, self.extents[axis], length):
            slab = [slice(n) for n in self.extents]
            slab[axis] = slice(start, min(start + length, self.extents[axis]))
            places[tuple(slab)] = self._places(np.ogrid[tuple(slab)])
        return out

    def at(self, *index: Any) -> Any:
        """Byte offset of elements, by their index along each axis (numbers or arrays of one shape,
        in the window)."""
        return self._places([np.asarray(one) - start for one, (start, _) in zip(index, self.window, strict=True)])

    def _places(self, index: Sequence[Any]) -> Any:
        left: list[Any] = list(index)
        extents: list[Any] = list(self.extents)
        # terms of one shape are added up first, so that few are of the whole tensor
        terms: dict[tuple[int, ...], Any] = {}
        for loop in self.loops:
            block, stride = left[loop.axis] // loop.tile, loop.stride
            step: Any = self.itemsize * min(loop.tile, self.extents[loop.axis]) if stride is None else stride
            for axis, extent in enumerate(extents if stride is None else ()):
                step = step if axis == loop.axis else step * extent
            term = block * step
            terms[np.shape(term)] = terms.get(np.shape(term), 0) + term
            left[loop.axis] = left[loop.axis] - block * loop.tile
            short = np.minimum(loop.tile, extents[loop.axis] - block * loop.tile)
            extents[loop.axis] = int(short.flat[0]) if short.size and (short == short.flat[0]).all() else short
        out: Any = np.int64(self.offset)
        for shape in sorted(terms, key=math.prod):
            out = out + terms[shape]
        whole = np.broadcast_shapes(*(np.shape(one) for one in index))
        return out if np.shape(out) == whole else np.broadcast_to(out, whole).copy()

    @property
    def inside(self) -> Any:
        return tuple(slice(*ends) for ends in self.window)

    @property
    def first(self) -> int:
        return self.offset

    @property
    def name(self) -> str:
        """The order of the loops, as people write it: ``HWC``; ``C1HWC2, C2=16`` where an axis is
        in tiles."""
        numbers = [0] * len(self.shape)
        levels = [sum(loop.axis == axis for loop in self.loops) for axis in range(len(self.shape))]
        tiles: dict[int, int] = {}
        order, sizes = "", []
        for loop in self.loops:
            numbers[loop.axis] += 1
            name = _letters(self.shape)[loop.axis].upper()
            name += str(numbers[loop.axis]) if levels[loop.axis] > 1 else ""
            order += name
            sizes += [f"{name}={tiles[loop.axis]}"] if loop.axis in tiles else []
            tiles[loop.axis] = loop.tile
        return ", ".join([order or "one element", *sizes])

    def __str__(self) -> str:
        strides = ["packed" if loop.stride is None else str(loop.stride) for loop in self.loops]
        strided = [] if not strides else ["packed"] if set(strides) == {"packed"} else [f"strides {' '.join(strides)}"]
        said = [f"from byte {self.offset}"] if self.offset else []
        said += [f"only {letter} {start} to {stop - 1}" for letter, (start, stop), n in
                 zip(_letters(self.shape), self.window, self.shape, strict=True) if (start, stop) != (0, n)]
        first, *rest = self._said()
        return f"{', '.join([self.name, *strided])}: {', '.join([first, *said, *rest])}"


def _letters(shape: tuple[int, ...]) -> Sequence[str]:
    return LETTERS.get(len(shape)) or [f"a{axis}_" for axis in range(len(shape))]
