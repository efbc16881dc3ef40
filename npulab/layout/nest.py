"""A nest of loops over tiles of the axes of a tensor, which says where each element lies in a
buffer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise, product
from operator import add
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from npulab.layout.stored import LISTED, MOST_ELEMENTS, Stored

SLAB = 2**17  # elements whose places are found at a time
LETTERS = {1: "i", 2: "rc", 3: "hwc", 4: "ohwi"}


# place of the first element, its index, counts of blocks by loop, bytes from block to block
Stretch = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Loop:
    """A level of a nest: blocks of ``tile`` indices of ``axis``, ``stride`` bytes from one to the
    next, or a tuple of the bytes to each block.

    Without a stride every block starts where the last one ends, so that a block which the axis does
    not fill is shorter in the buffer too; the loops inside of it have no stride either.
    """

    axis: int
    tile: int = 1
    stride: int | tuple[int, ...] | None = None

    def reach(self, blocks: Any) -> Any:
        """Bytes to blocks by their number."""
        if isinstance(self.stride, tuple):
            return np.array(self.stride)[blocks]
        return blocks * (self.stride or 0)


@dataclass(frozen=True)
class Layout(Stored):
    """Where each element of a tensor of ``shape`` lies: loops from the outermost to the innermost.

    The element at an index lies at ``offset`` plus, for each loop, the stride times the number of
    its block.  A loop over an axis divides the block of the loop over the same axis before it.
    ``dtype`` is the numpy name of the elements, ``size`` the bytes of the buffer (up to the last
    element where it is left out), ``window`` the (start, stop) of each axis where not the whole
    tensor is in the buffer.  Stored is ``(raw ^ xor) + add``, modulo the range of the element,
    little-endian unless ``big_endian``, and again ``copies`` bytes away; the other bytes hold
    ``fill`` (an unsigned element) or the ``parts``.  ``starts`` says for each axis at which place
    of its first tile it begins.  The axes of each tuple of ``join`` are one axis for the loops, the
    last the fastest, named by the first of them.  The bytes of each word of ``swap`` bytes are
    reversed in the buffer; parts lie where they would without that.  Elements below 8 bits:
    offset, strides, copies and places count elements, not bytes. Raises ValueError for loops that
    leave out indices, places outside of the buffer or taken twice.

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
    starts: tuple[int, ...] = ()
    join: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        self._check_stored()
        if not self.window:
            object.__setattr__(self, "window", tuple((0, n) for n in self.shape))
        if not self.starts:
            object.__setattr__(self, "starts", (0,) * len(self.shape))
        self._check_axes()
        self._check_loops()
        low, high = self._ends()
        if not self.size:
            ends = [
                -(-(high + max(0, 0, *self.copies)) // self.per_byte),
                *(part.offset + part.size for part in self.parts),
            ]
            word = self.swap or 1
            object.__setattr__(self, "size", -(-max(ends) // word) * word)
        self._check_ends(low, high)

    def _check_axes(self) -> None:
        if len(self.window) != len(self.shape) or not all(
            0 <= start < stop <= n for (start, stop), n in zip(self.window, self.shape, strict=True)
        ):
            raise ValueError(
                f"window: got {self.window}, allowed is (start, stop) for each axis of {self.shape}"
            )
        if not (self.join or self.swap or any(self.starts)) and len(self.starts) == len(self.shape):
            return
        axes = [axis for group in self.join for axis in group]
        if (
            len(set(axes)) != len(axes)
            or not set(axes) <= set(range(len(self.shape)))
            or () in self.join
        ):
            raise ValueError(
                f"join: got {self.join}, allowed are tuples of the axes 0 to "
                f"{len(self.shape) - 1}, each "
                "at most once"
            )
        if (
            len(self.starts) != len(self.shape)
            or min(self.starts) < 0
            or any(self.starts[axis] for group in self.join for axis in group[1:])
        ):
            raise ValueError(
                f"starts: got {self.starts}, allowed is 0 or more for each axis of {self.shape}, 0 "
                "for "
                "one that is joined to another"
            )
        if any(self.starts) and not self._even:
            raise ValueError(f"starts: got {self.starts}, allowed is 0 if a loop has no stride")
        if (
            self.swap
            and self.itemsize > 1
            and not all(place % self.itemsize == 0 for place in self._strides())
        ):
            raise ValueError(
                f"swap: got an offset or a stride that is no multiple of {self.itemsize} bytes, "
                "allowed are elements that lie in one word each"
            )

    def _strides(self) -> Iterator[int]:
        yield self.offset
        for loop in self.loops:
            yield from loop.stride if isinstance(loop.stride, tuple) else (loop.stride or 0,)

    def _check_loops(self) -> None:
        left = list(self._ends_of_axes)
        joined = {axis for group in self.join for axis in group[1:]}
        packed = False
        for loop in self.loops:
            if not 0 <= loop.axis < len(left):
                raise ValueError(f"{loop}: got axis {loop.axis}, allowed is 0 to {len(left) - 1}")
            if loop.axis in joined:
                raise ValueError(
                    f"{loop}: got an axis that is joined to another, allowed is the first of "
                    f"{self.join}"
                )
            if loop.tile < 1:
                raise ValueError(f"{loop}: got a tile of {loop.tile}, allowed is 1 or more")
            if packed and loop.stride is not None:
                raise ValueError(f"{loop}: got a stride inside of a loop without one")
            blocks = -(-left[loop.axis] // loop.tile)
            if isinstance(loop.stride, tuple) and len(loop.stride) < blocks:
                raise ValueError(
                    f"{loop}: got the bytes to {len(loop.stride)} blocks, allowed is to each of "
                    f"{blocks}"
                )
            packed = loop.stride is None
            left[loop.axis] = min(left[loop.axis], loop.tile)
        if max(left) > 1:
            axis = left.index(max(left))
            raise ValueError(
                f"loops: got blocks of {left[axis]} indices of axis {axis} at the innermost, "
                "allowed is 1"
            )

    def _ends(self) -> tuple[int, int]:
        """First byte and end of the elements, which are found to lie at places of their own."""
        if self._solid:
            low, high, apart = self.offset, self.offset + self.itemsize * self.elements, True
        elif not self._even:
            places = self.places_before_swap()[self.inside]
            low, high = int(places.min()), int(places.max()) + self.itemsize
            apart = self._apart(places, low, high)
        else:
            lines = [self._line(axis, n) for axis, n in enumerate(self._ends_of_axes)]
            low = self.offset + sum(int(line.min()) for line in lines)
            high = self.offset + sum(int(line.max()) for line in lines) + self.itemsize
            apart = self._nested() or self._apart(self.places_before_swap()[self.inside], low, high)
        if not apart:
            raise ValueError(f"loops: got two elements at one place in {self}")
        return low, high

    def _line(self, axis: int, n: int) -> np.ndarray:
        """Bytes from the first index of an axis to each other, where all strides are given."""
        left = np.arange(self.starts[axis], n)
        out = np.zeros(len(left), np.int64)
        for loop in self.loops:
            if loop.axis == axis:
                block = left // loop.tile
                out += loop.reach(block)
                left -= block * loop.tile
        return out

    def _nested(self) -> bool:
        """Whether every stride steps over all that the smaller ones reach."""
        left, steps = list(self._ends_of_axes), []
        for loop in self.loops:
            count = -(-left[loop.axis] // loop.tile)
            if isinstance(loop.stride, tuple) and count > 1:
                blocks = sorted(loop.stride[:count])
                steps.append((min(b - a for a, b in pairwise(blocks)), blocks[-1] - blocks[0]))
            elif count > 1:
                steps.append((abs(loop.reach(1)), abs(loop.reach(1)) * (count - 1)))
            left[loop.axis] = min(left[loop.axis], loop.tile)
        reach = self.itemsize
        for stride, whole in sorted(steps):
            if stride < reach:
                return False
            reach += whole
        return True

    def _apart(self, places: np.ndarray, low: int, high: int) -> bool:
        if high - low > MOST_ELEMENTS:
            raise ValueError(
                f"loops: got bytes {low} to {high}, allowed are strides that do not interleave "
                "there"
            )
        taken = np.zeros(high - low, bool)
        for at in range(self.itemsize):
            taken[places + (at - low)] = True
        return int(np.count_nonzero(taken)) == places.size * self.itemsize

    def _write(self, out: np.ndarray, stored: np.ndarray) -> None:
        if not self._strided:
            super()._write(out, stored)
            return
        for copy in (0, *self.copies):
            for there, elements in self._views(out, self._joined(stored), copy):
                there[...] = elements

    def _read(self, data: np.ndarray) -> list[np.ndarray]:
        if not self._strided:
            return super()._read(data)
        read, data = [], np.ascontiguousarray(data)
        for copy in (0, *self.copies):
            read.append(np.empty(self._joined_extents, f"u{self.itemsize}"))
            for there, elements in self._views(data, read[-1], copy):
                elements[...] = there
        return [self._split(tensor) for tensor in read]

    @property
    def _strided(self) -> bool:
        """Whether strides alone say where elements lie, short blocks apart."""
        return self._solid or (
            self._even and not any(isinstance(loop.stride, tuple) for loop in self.loops)
        )

    @property
    def _solid(self) -> bool:
        """Whether block follows block without gaps, so that short blocks move what follows."""
        return all(loop.stride is None for loop in self.loops)

    @property
    def _even(self) -> bool:
        """Whether short blocks take as much of the buffer as others."""
        return all(loop.stride is not None for loop in self.loops)

    @property
    def _order(self) -> tuple[int, ...]:
        """The axes with those that are joined one behind the other."""
        out = list(range(len(self.shape)))
        for first, *others in self.join:
            out = [axis for axis in out if axis not in others]
            at = out.index(first) + 1
            out[at:at] = others
        return tuple(out)

    @property
    def _joined_extents(self) -> tuple[int, ...]:
        """Indices of each axis that the loops see: of joined axes all at the first, 1 at the
        others."""
        if not self.join:
            return self.extents
        out = list(self.extents)
        for first, *others in self.join:
            out[first] *= math.prod(out[axis] for axis in others)
            for axis in others:
                out[axis] = 1
        return tuple(out)

    @property
    def _ends_of_axes(self) -> tuple[int, ...]:
        """The same, and what lies before the start of the first tile."""
        extents = self._joined_extents
        if any(self.starts):
            return tuple(map(add, self.starts, extents))
        return extents

    def _joined(self, tensor: np.ndarray) -> np.ndarray:
        """A tensor of the window with the axes that the loops see."""
        if self.join:
            return tensor.transpose(self._order).reshape(self._joined_extents)
        return tensor

    def _split(self, tensor: np.ndarray) -> np.ndarray:
        """What ``_joined`` was given."""
        if not self.join:
            return tensor
        return tensor.reshape([self.extents[axis] for axis in self._order]).transpose(
            np.argsort(self._order)
        )

    def _views(
        self,
        buffer: np.ndarray,
        tensor: np.ndarray,
        copy: int,
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Views of a buffer and of the tensor that hold the same elements, an axis for each
        loop."""
        type_ = np.dtype(f"{'>' if self.big_endian else '<'}u{self.itemsize}")
        strides = [tensor.strides[loop.axis] * loop.tile for loop in self.loops]
        stretches = (
            self._stretches(0, self._joined_extents) if self._solid else self._strided_stretches()
        )
        for place, index, shape, steps in stretches:
            start = tensor[tuple(slice(at, None) for at in index)]
            yield (
                np.ndarray(shape, type_, buffer, self.offset + copy + place, steps),
                as_strided(start, shape, strides),
            )

    def _strided_stretches(self) -> Iterator[Stretch]:
        """Stretches of equal blocks whose places are strides apart."""
        pieces = [
            self._pieces(axis, start, end, 0)
            for axis, (start, end) in enumerate(zip(self.starts, self._ends_of_axes, strict=True))
        ]
        steps = tuple(loop.reach(1) for loop in self.loops)
        for parts in product(*pieces):
            counts = {at: count for _, _, each in parts for at, count in each.items()}
            yield (
                sum(place for _, place, _ in parts),
                tuple(index for index, _, _ in parts),
                tuple(counts[at] for at in range(len(self.loops))),
                steps,
            )

    def _stretches(self, depth: int, extents: tuple[int, ...]) -> list[Stretch]:
        """Stretches of equal blocks of so many indices, one behind the other without gaps, from the
        loop ``depth`` on: at each loop the whole blocks, then the short one."""
        if depth == len(self.loops):
            return [(0, (0,) * len(extents), (), ())]
        loop, place = self.loops[depth], 0
        whole, rest = divmod(extents[loop.axis], loop.tile)
        out: list[Stretch] = []
        for first, count, size in ((0, whole, loop.tile), (whole * loop.tile, 1, rest)):
            if count and size:
                inner = (*extents[: loop.axis], size, *extents[loop.axis + 1 :])
                step = self.itemsize * math.prod(inner)
                for behind, index, counts, steps in self._stretches(depth + 1, inner):
                    at = (*index[: loop.axis], first + index[loop.axis], *index[loop.axis + 1 :])
                    out.append((place + behind, at, (count, *counts), (step, *steps)))
                place += count * step
        return out

    def _pieces(
        self, axis: int, start: int, end: int, depth: int
    ) -> list[tuple[int, int, dict[int, int]]]:
        """Stretches of the indices ``start`` to ``end`` of an axis that the loops from ``depth`` on
        divide evenly.

        Each has its first index from ``start``, the bytes to it, and by number of a loop how many
        blocks there are: the whole blocks are apart from short ones before and behind them.
        """
        depth = next(
            (at for at in range(depth, len(self.loops)) if self.loops[at].axis == axis),
            len(self.loops),
        )
        if depth == len(self.loops):
            return [(0, 0, {})]
        loop = self.loops[depth]
        tile, out = loop.tile, []
        whole = range(-(-start // tile), end // tile)
        edges = {at // tile for at in (start, end) if at % tile}
        blocks = [(block, 1) for block in edges] + ([(whole[0], len(whole))] if whole else [])
        for block, count in sorted(blocks):
            first, last = max(start - block * tile, 0), min(end - block * tile, tile)
            out += [
                (
                    block * tile + first - start + index,
                    loop.reach(block) + place,
                    {depth: count, **counts},
                )
                for index, place, counts in self._pieces(axis, first, last, depth + 1)
            ]
        return out

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.window)

    def places_before_swap(self) -> np.ndarray:
        """Place of each element ``(*shape) int64`` before words are swapped, -1 where it is not in
        the buffer."""
        out = np.full(self.shape, -1, np.int64)
        extents = self._joined_extents
        if self.join:
            places = np.empty(extents, np.int64)
        else:
            places = out[self.inside]
        # slab by slab, so that what a nest of short blocks is multiplied from takes little memory
        axis = int(np.argmax(extents))
        length = max(SLAB * extents[axis] // max(self.elements, 1), 1)
        for start in range(0, extents[axis], length):
            slab = [slice(n) for n in extents]
            slab[axis] = slice(start, min(start + length, extents[axis]))
            places[tuple(slab)] = self._places(np.ogrid[tuple(slab)])
        if self.join:
            out[self.inside] = self._split(places)
        return out

    def at(self, *index: Any) -> Any:
        """Byte offset of elements, by their index along each axis (numbers or arrays of one shape,
        in the window)."""
        inside = [
            np.asarray(axis) - start for axis, (start, _) in zip(index, self.window, strict=True)
        ]
        for first, *others in self.join:
            for axis in others:
                inside[first] = inside[first] * self.extents[axis] + inside[axis]
                inside[axis] = np.zeros_like(inside[axis])
        return self.swapped(self._places(inside))

    def _places(self, index: Sequence[Any]) -> Any:
        """Places by the indices that the loops see, from the first in the window."""
        left: list[Any] = [
            axis + start if start else axis for axis, start in zip(index, self.starts, strict=True)
        ]
        whole = self._joined_extents
        extents: list[Any] = list(self._ends_of_axes)
        # terms of one shape are added up first, so that few are of the whole tensor
        terms: dict[tuple[int, ...], Any] = {}
        for loop in self.loops:
            block, packed = left[loop.axis] // loop.tile, loop.stride is None
            step: Any = self.itemsize * min(loop.tile, whole[loop.axis])
            for axis, extent in enumerate(extents if packed else ()):
                if axis != loop.axis:
                    step = step * extent
            if packed:
                term = block * step
            else:
                term = loop.reach(block)
            terms[np.shape(term)] = terms.get(np.shape(term), 0) + term
            left[loop.axis] = left[loop.axis] - block * loop.tile
            short = np.minimum(loop.tile, extents[loop.axis] - block * loop.tile)
            if short.size and (short == short.flat[0]).all():
                extents[loop.axis] = int(short.flat[0])
            else:
                extents[loop.axis] = short
        out: Any = np.int64(self.offset)
        for shape in sorted(terms, key=math.prod):
            out = out + terms[shape]
        shape = np.broadcast_shapes(*(np.shape(axis) for axis in index))
        if np.shape(out) == shape:
            return out
        return np.broadcast_to(out, shape).copy()

    @property
    def inside(self) -> Any:
        return tuple(slice(*ends) for ends in self.window)

    @property
    def first(self) -> int:
        return self.offset

    @property
    def name(self) -> str:
        """The order of the loops, as people write it: ``HWC``; ``C1HWC2, C2=16`` where an axis is
        in tiles, ``(OW)`` for axes that are joined."""
        letters = [letter.upper() for letter in _letters(self.shape)]
        for group in self.join:
            letters[group[0]] = f"({''.join(letters[axis] for axis in group)})"
        numbers = [0] * len(self.shape)
        levels = [sum(loop.axis == axis for loop in self.loops) for axis in range(len(self.shape))]
        tiles: dict[int, int] = {}
        order, sizes = "", []
        for loop in self.loops:
            numbers[loop.axis] += 1
            name = letters[loop.axis] + (str(numbers[loop.axis]) if levels[loop.axis] > 1 else "")
            order += name
            if loop.axis in tiles:
                sizes += [f"{name}={tiles[loop.axis]}"]
            tiles[loop.axis] = loop.tile
        return ", ".join([order or "one element", *sizes])

    def __str__(self) -> str:
        strides = [_stride_text(loop.stride) for loop in self.loops]
        if not strides:
            strided = []
        elif set(strides) == {"packed"}:
            strided = ["packed"]
        else:
            strided = [f"strides {' '.join(strides)}"]
        if self.per_byte == 1:
            unit = "byte"
        else:
            unit = "place"
        where = []
        if self.offset:
            where = [f"from {unit} {self.offset}"]
        where += [
            f"only {letter} {start} to {stop - 1}"
            for letter, (start, stop), n in zip(
                _letters(self.shape), self.window, self.shape, strict=True
            )
            if (start, stop) != (0, n)
        ]
        where += [
            f"{letter} from place {start} of its tile"
            for letter, start in zip(_letters(self.shape), self.starts, strict=True)
            if start
        ]
        first, *rest = self._said()
        return f"{', '.join([self.name, *strided])}: {', '.join([first, *where, *rest])}"


def _stride_text(stride: int | tuple[int, ...] | None) -> str:
    if stride is None:
        return "packed"
    if isinstance(stride, int):
        return str(stride)
    shown = [*map(str, stride[:LISTED]), *(["..."] if len(stride) > LISTED else [])]
    return f"({', '.join(shown)})"


def _letters(shape: tuple[int, ...]) -> Sequence[str]:
    return LETTERS.get(len(shape)) or [f"a{axis}_" for axis in range(len(shape))]
