"""Layouts as nests of loops over tiles of a tensor's axes, which state the place of each
element."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import chain, product
from operator import add
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array
from numpy.lib.stride_tricks import as_strided

from npulab.layout.stored import BYTE_ORDERS, LISTED, MOST_ELEMENTS, Shape, Stored

# Places of about this many elements are computed at once.
SLAB = 2**17
LETTERS = {1: "i", 2: "rc", 3: "hwc", 4: "ohwi"}


class Stretch(NamedTuple):
    """Elements in blocks of equal size, which one strided view of the buffer covers.

    ``first`` is the index of the first element, ``place`` the bytes from the layout's offset to it.
    ``counts`` and ``steps`` are, for each loop, the number of blocks and the bytes from block to
    block.
    """

    place: int
    first: tuple[int, ...]
    counts: tuple[int, ...]
    steps: tuple[int, ...]


class AxisPiece(NamedTuple):
    """A range of indices of one axis in which each loop over the axis has blocks of one size.

    ``first`` is the first index, ``place`` the bytes from index 0 of the axis to it. ``counts`` has
    the number of blocks in the range by the number of the loop.
    """

    first: int
    place: int
    counts: dict[int, int]


@dataclass(frozen=True)
class Loop:
    """A loop of a nest: blocks of ``tile`` indices of ``axis``.

    ``stride`` is the bytes from block to block, or a tuple of the bytes from the first block to
    each block. Without a stride, a block starts at the end of the block before it, so a block that
    the axis does not fill is shorter in the buffer, too. Inside of such a loop, no loop has a
    stride, or all loops from some loop inwards have one; together, these take the stride of the
    outermost of them times the number of its blocks.
    """

    axis: int
    tile: int = 1
    stride: int | tuple[int, ...] | None = None

    def reach(self, blocks: Any) -> Any:
        """Return the bytes from the first block to each block whose number is in ``blocks``."""
        if isinstance(self.stride, tuple):
            return np.array(self.stride)[blocks]
        return blocks * (self.stride or 0)


@dataclass(frozen=True)
class Layout(Stored):
    """The place of each element of a tensor of ``shape``, by loops from the outermost inwards.

    The place of an element is ``offset`` plus, for each loop, the loop's stride times the number of
    the block that has the element's index. A loop divides the blocks of the next outer loop over
    the same axis.

    - ``dtype``: the numpy name of the elements' type, or a name such as ``int4`` or ``uint1``.
    - ``size``: the bytes of the buffer, by default up to the last element, copy or part.
    - ``window``: (start, stop) of each axis, if only a part of the tensor is in the buffer.
    - ``xor``, ``add``, ``big_endian``: the stored element is ``(raw ^ xor) + add``, modulo its
      range, little-endian unless ``big_endian``.
    - ``copies``: the distances in bytes at which each element is stored again.
    - ``fill``, ``parts``: the bytes between elements are those of ``parts``; all other bytes repeat
      the unsigned element ``fill``.
    - ``starts``: for each axis, the position in its first tile at which the axis begins.
    - ``join``: the axes of each tuple are one axis for the loops, the last axis the fastest; loops
      name it by the first axis of the tuple.
    - ``swap``: the bytes of each word of ``swap`` bytes are reversed in the buffer. Offsets of
      parts count before the words are reversed.

    For elements of fewer than 8 bits, offset, strides, copies and places count elements instead of
    bytes. Raises ValueError for loops that leave out indices, and for places outside of the buffer
    or of two elements.

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
            end = -(-(high + max(0, 0, *self.copies)) // self.per_byte)
            for part in self.parts:
                end = max(end, part.end)
            word = self.swap or 1
            object.__setattr__(self, "size", -(-end // word) * word)
        self._check_ends(low, high)

    def _check_axes(self) -> None:
        axes = len(self.shape)
        inside = len(self.window) == axes
        for (start, stop), n in zip(self.window, self.shape, strict=False):
            inside = inside and 0 <= start < stop <= n
        if not inside:
            raise ValueError(
                f"window: got {self.window}, allowed is (start, stop) for each axis of {self.shape}"
            )
        joined = list(chain(*self.join))
        known = set(joined) <= set(range(axes))
        if len(set(joined)) != len(joined) or not known or () in self.join:
            raise ValueError(
                f"join: got {self.join}, allowed are tuples of the axes 0 to {axes - 1}, each at "
                "most once"
            )
        inner = [self.starts[axis] for axis in self._inner_axes if axis < len(self.starts)]
        if len(self.starts) != axes or min(self.starts, default=0) < 0 or any(inner):
            raise ValueError(
                f"starts: got {self.starts}, allowed is 0 or more for each axis of {self.shape}, 0 "
                "for an axis that is joined to another"
            )
        if any(self.starts) and not self._even:
            raise ValueError(f"starts: got {self.starts}, allowed is 0 if a loop has no stride")
        if self.swap and any(place % self.itemsize for place in self._strides()):
            raise ValueError(
                f"swap: got an offset or a stride that is not a multiple of {self.itemsize} bytes, "
                "allowed are multiples, so that each element lies in one word"
            )

    @property
    def _inner_axes(self) -> set[int]:
        """The numbers of the axes that are joined to another axis."""
        return set(chain(*(group[1:] for group in self.join)))

    def _strides(self) -> Iterator[int]:
        yield self.offset
        for loop in self.loops:
            if isinstance(loop.stride, tuple):
                yield from loop.stride
            else:
                yield loop.stride or 0

    def _check_loops(self) -> None:
        left = list(self._ends_of_axes)
        inner = self._inner_axes
        packed = False
        strided_inside = False
        for loop in self.loops:
            if not 0 <= loop.axis < len(left):
                raise ValueError(f"{loop}: got axis {loop.axis}, allowed is 0 to {len(left) - 1}")
            if loop.axis in inner:
                raise ValueError(
                    f"{loop}: got an axis that is joined to another, allowed is the first axis of "
                    f"each group in {self.join}"
                )
            if loop.tile < 1:
                raise ValueError(f"{loop}: got a tile of {loop.tile}, allowed is 1 or more")
            if loop.stride is None and strided_inside:
                raise ValueError(
                    f"{loop}: got no stride, allowed is a stride: the loop is inside of a loop "
                    "with a stride, which is inside of a loop without one"
                )
            strided_inside = strided_inside or (packed and loop.stride is not None)
            blocks = -(-left[loop.axis] // loop.tile)
            if isinstance(loop.stride, tuple) and len(loop.stride) < blocks:
                raise ValueError(
                    f"{loop}: got the bytes to {len(loop.stride)} blocks, allowed are the "
                    f"bytes to all {blocks} blocks"
                )
            packed = packed or loop.stride is None
            left[loop.axis] = min(left[loop.axis], loop.tile)
        if max(left) > 1:
            axis = left.index(max(left))
            raise ValueError(
                f"loops: got blocks of {left[axis]} indices of axis {axis} inside of all loops, "
                f"allowed is 1 index: add a loop over axis {axis} with a tile of 1"
            )

    def _ends(self) -> tuple[int, int]:
        """Return the first place of an element, and the place after the last element.

        Raises ValueError if two elements overlap.
        """
        low = self.offset
        if self._solid:
            return low, low + self.itemsize * self.elements
        if self._even:
            high = low + self.itemsize
            for axis, n in enumerate(self._ends_of_axes):
                line = self._line(axis, n)
                low += int(line.min())
                high += int(line.max())
            # The quick test also fails for strides that interleave although no elements overlap;
            # then places are compared one by one.
            apart = self._nested() or self._apart(self.places_before_swap()[self.inside], low, high)
        else:
            places = self.places_before_swap()[self.inside]
            low = int(places.min())
            high = int(places.max()) + self.itemsize
            apart = self._apart(places, low, high)
        if not apart:
            raise ValueError(f"loops: got two elements at one place in {self}")
        return low, high

    def _line(self, axis: int, n: int) -> Array:
        """Return the bytes from index 0 of an axis to each of its ``n`` indices.

        Every loop must have a stride.
        """
        left = np.arange(self.starts[axis], n)
        out = np.zeros(len(left), np.int64)
        for loop in self.loops:
            if loop.axis == axis:
                block = left // loop.tile
                out += loop.reach(block)
                left -= block * loop.tile
        return out

    def _nested(self) -> bool:
        """Return true if each stride is at least the bytes that the loops with smaller strides
        span.
        """
        left = list(self._ends_of_axes)
        steps = []
        for loop in self.loops:
            count = -(-left[loop.axis] // loop.tile)
            if isinstance(loop.stride, tuple) and count > 1:
                blocks = np.sort(loop.stride[:count])
                steps.append((int(np.diff(blocks).min()), int(blocks[-1] - blocks[0])))
            elif count > 1:
                stride = abs(loop.reach(1))
                steps.append((stride, stride * (count - 1)))
            left[loop.axis] = min(left[loop.axis], loop.tile)
        reach = self.itemsize
        for stride, whole in sorted(steps):
            if stride < reach:
                return False
            reach += whole
        return True

    def _apart(self, places: Array, low: int, high: int) -> bool:
        # Every byte from the first to the last gets a mark, so without a limit two huge strides
        # would fill the memory.
        if high - low > MOST_ELEMENTS:
            raise ValueError(
                f"loops: got strides that interleave from byte {low} to {high}, allowed over more "
                f"than {MOST_ELEMENTS} bytes are strides that span all loops with smaller strides"
            )
        taken = np.zeros(high - low, bool)
        for at in range(self.itemsize):
            taken[places + (at - low)] = True
        return int(np.count_nonzero(taken)) == places.size * self.itemsize

    def write_places(self, out: Array, stored: Array) -> None:
        if not self._strided:
            super().write_places(out, stored)
            return
        for copy in (0, *self.copies):
            for there, elements in self._views(out, join_axes(stored, self.join), copy):
                there[...] = elements

    def read_places(self, data: Array) -> list[Array]:
        if not self._strided:
            return super().read_places(data)
        read, data = [], np.ascontiguousarray(data)
        for copy in (0, *self.copies):
            read.append(np.empty(self._joined_extents, f"u{self.itemsize}"))
            for there, elements in self._views(data, read[-1], copy):
                elements[...] = there
        return [self._split(tensor) for tensor in read]

    @property
    def _strided(self) -> bool:
        """True if strided views can cover all elements.

        They can if no loop has a stride, or if every loop has a number as its stride.
        """
        return self._solid or (
            self._even and not any(isinstance(loop.stride, tuple) for loop in self.loops)
        )

    @property
    def _solid(self) -> bool:
        """True if blocks follow each other without gaps.

        A short block then moves all blocks after it.
        """
        return all(loop.stride is None for loop in self.loops)

    @property
    def _even(self) -> bool:
        """True if a short block takes as much of the buffer as a full block."""
        return all(loop.stride is not None for loop in self.loops)

    @property
    def _joined_extents(self) -> Shape:
        """The number of indices of each axis if joined axes are one axis.

        The first of joined axes has the product of their sizes, the others have 1.
        """
        if not self.join:
            return self.extents
        return joined_extents(self.extents, self.join)

    @property
    def _ends_of_axes(self) -> Shape:
        """The end of each axis as loops count it: ``_joined_extents`` plus ``starts``.

        ``starts`` are the positions in the first tile before the axis begins.
        """
        extents = self._joined_extents
        if any(self.starts):
            return tuple(map(add, self.starts, extents))
        return extents

    def _split(self, tensor: Array) -> Array:
        """Return a tensor with joined axes separated again, the inverse of ``join_axes``."""
        if not self.join:
            return tensor
        order = joined_order(len(self.shape), self.join)
        return tensor.reshape([self.extents[axis] for axis in order]).transpose(np.argsort(order))

    def _views(
        self,
        buffer: Array,
        tensor: Array,
        copy: int,
    ) -> Iterator[tuple[Array, Array]]:
        """Yield pairs of views, one of the buffer and one of the tensor, with the same elements.

        Each view has an axis for each loop; ``copy`` is the distance of a copy of the elements.
        """
        stored = np.dtype(f"{BYTE_ORDERS[self.big_endian]}u{self.itemsize}")
        strides = [tensor.strides[loop.axis] * loop.tile for loop in self.loops]
        stretches: Iterable[Stretch] = self._strided_stretches()
        if self._solid:
            stretches = self._stretches(0, self._joined_extents)
        for place, first, counts, steps in stretches:
            start = tensor[tuple(slice(at, None) for at in first)]
            view = Array(counts, stored, buffer, self.offset + copy + place, steps)
            yield view, as_strided(start, counts, strides)

    def _strided_stretches(self) -> Iterator[Stretch]:
        """Yield the stretches of a layout in which every loop has a stride.

        There is one for each combination of the axes' pieces.
        """
        pieces = []
        for axis, (start, end) in enumerate(zip(self.starts, self._ends_of_axes, strict=True)):
            pieces.append(self._pieces(axis, start, end, 0))
        steps = tuple(loop.reach(1) for loop in self.loops)
        for parts in product(*pieces):
            place = 0
            counts: dict[int, int] = {}
            for part in parts:
                place += part.place
                counts |= part.counts
            first = tuple(part.first for part in parts)
            blocks = tuple(counts[number] for number in range(len(self.loops)))
            yield Stretch(place, first, blocks, steps)

    def _stretches(self, depth: int, extents: Shape) -> list[Stretch]:
        """Return the stretches of ``extents`` indices of the axes, from loop number ``depth``
        inwards.

        No loop has a stride. For each loop, the stretches of its whole blocks come first, then
        those of its short block.
        """
        if depth == len(self.loops):
            return [Stretch(0, (0,) * len(extents), (), ())]
        loop = self.loops[depth]
        axis = loop.axis
        whole, rest = divmod(extents[axis], loop.tile)
        place = 0
        stretches = []
        for first, count, size in ((0, whole, loop.tile), (whole * loop.tile, 1, rest)):
            if not count or not size:
                continue
            inner = (*extents[:axis], size, *extents[axis + 1 :])
            step = self.itemsize * math.prod(inner)
            for stretch in self._stretches(depth + 1, inner):
                index = list(stretch.first)
                index[axis] += first
                counts = (count, *stretch.counts)
                steps = (step, *stretch.steps)
                stretches.append(Stretch(place + stretch.place, tuple(index), counts, steps))
            place += count * step
        return stretches

    def _pieces(self, axis: int, start: int, end: int, depth: int) -> list[AxisPiece]:
        """Return pieces of the indices ``start`` to ``end`` of an axis.

        In a piece every loop from number ``depth`` inwards has blocks of one size: whole blocks are
        separate from the short blocks before and after them.
        """
        while depth < len(self.loops) and self.loops[depth].axis != axis:
            depth += 1
        if depth == len(self.loops):
            return [AxisPiece(0, 0, {})]
        loop = self.loops[depth]
        tile = loop.tile
        whole = range(-(-start // tile), end // tile)
        # A start and an end inside of one block give one key, so their block counts once.
        blocks = {at // tile: 1 for at in (start, end) if at % tile}
        if whole:
            blocks[whole[0]] = len(whole)
        pieces = []
        for block, count in sorted(blocks.items()):
            block_start = block * tile
            first = max(start - block_start, 0)
            last = min(end - block_start, tile)
            for inner in self._pieces(axis, first, last, depth + 1):
                index = block_start + first - start + inner.first
                place = loop.reach(block) + inner.place
                pieces.append(AxisPiece(index, place, {depth: count, **inner.counts}))
        return pieces

    @property
    def _items(self) -> tuple[int, list[int]]:
        """The items that loops without strides place one after another.

        An item is an element or, if inner loops have strides, a block of the outermost of these.
        The result is the bytes from item to item, and the number of indices of each axis in an
        item.
        """
        left = list(self._ends_of_axes)
        packed = False
        for loop in self.loops:
            if packed and loop.stride is not None:
                left[loop.axis] = loop.tile
                return abs(loop.reach(1)), left
            packed = packed or loop.stride is None
            left[loop.axis] = min(left[loop.axis], loop.tile)
        return self.itemsize, [1] * len(left)

    @property
    def extents(self) -> Shape:
        return tuple(stop - start for start, stop in self.window)

    def places_before_swap(self) -> Array:
        """Return the place of each element ``(*shape) int64`` before words are swapped.

        The place is -1 for an element that is not in the buffer.
        """
        out = np.full(self.shape, -1, np.int64)
        extents = self._joined_extents
        if self.join:
            places = np.empty(extents, np.int64)
        else:
            places = out[self.inside]
        # Places are computed slab by slab, so that the factors of a nest with short blocks take
        # little memory.
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
        """Return the byte offsets of elements from their indices.

        There is an argument for each axis: a number, or arrays of one shape. Indices are inside of
        the window.
        """
        inside = []
        for axis_index, (start, _) in zip(index, self.window, strict=True):
            inside.append(np.asarray(axis_index) - start)
        for first, *others in self.join:
            for axis in others:
                inside[first] = inside[first] * self.extents[axis] + inside[axis]
                inside[axis] = np.zeros_like(inside[axis])
        return self.swapped(self._places(inside))

    def _places(self, index: Sequence[Any]) -> Any:
        """Return the places of elements from their indices along the joined axes.

        Indices count from the window's first index.
        """
        left = list(index)
        for axis, start in enumerate(self.starts):
            if start:
                left[axis] = left[axis] + start
        whole = self._joined_extents
        extents: list[Any] = list(self._ends_of_axes)
        pitch, covered = self._items
        # Terms of one shape are added first, so that few additions are of the whole tensor.
        terms: dict[tuple[int, ...], Any] = {}
        for loop in self.loops:
            block = left[loop.axis] // loop.tile
            term = loop.reach(block)
            if loop.stride is None:
                # The blocks before this block are full along the loop's own axis. Along every other
                # axis they are as short as the block that contains them.
                step: Any = pitch * -(-min(loop.tile, whole[loop.axis]) // covered[loop.axis])
                for axis, extent in enumerate(extents):
                    if axis != loop.axis:
                        step = step * -(-extent // covered[axis])
                term = block * step
            terms[np.shape(term)] = terms.get(np.shape(term), 0) + term
            left[loop.axis] = left[loop.axis] - block * loop.tile
            short = np.minimum(loop.tile, extents[loop.axis] - block * loop.tile)
            # Equal extents become one number, so that products in the inner loops do not grow to
            # the size of the tensor.
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
        """The order of the loops in the usual notation: ``HWC``; ``C1HWC2, C2=16`` if an axis is in
        tiles, ``(OW)`` for axes that are joined."""
        letters = [letter.upper() for letter in axis_letters(self.shape)]
        name_joined(letters, self.join)
        levels = Counter(loop.axis for loop in self.loops)
        numbers: Counter[int] = Counter()
        tiles: dict[int, int] = {}
        order = ""
        sizes = []
        for loop in self.loops:
            axis = loop.axis
            numbers[axis] += 1
            name = letters[axis]
            if levels[axis] > 1:
                name += str(numbers[axis])
            order += name
            if axis in tiles:
                sizes.append(f"{name}={tiles[axis]}")
            tiles[axis] = loop.tile
        return ", ".join([order or "one element", *sizes])

    def __str__(self) -> str:
        rule = self.name
        strides = [_stride_text(loop.stride) for loop in self.loops]
        if {*strides} == {"packed"}:
            rule += ", packed"
        elif strides:
            rule += f", strides {' '.join(strides)}"
        unit = "place"
        if self.per_byte == 1:
            unit = "byte"
        first, *rest = self._said()
        texts = [first]
        if self.offset:
            texts.append(f"from {unit} {self.offset}")
        letters = axis_letters(self.shape)
        for letter, (start, stop), n in zip(letters, self.window, self.shape, strict=True):
            if (start, stop) != (0, n):
                texts.append(f"only {letter} {start} to {stop - 1}")
        texts += starts_said(letters, self.starts)
        return f"{rule}: {', '.join(texts + rest)}"


def _stride_text(stride: int | tuple[int, ...] | None) -> str:
    if stride is None:
        return "packed"
    if isinstance(stride, int):
        return str(stride)
    shown = list(map(str, stride[:LISTED]))
    if len(stride) > LISTED:
        shown.append("...")
    return f"({', '.join(shown)})"


def join_axes(tensor: Array, join: Sequence[Sequence[int]]) -> Array:
    """Return a tensor in which the axes of each group of ``join`` are joined to one axis.

    It takes the place of the group's first axis; the other axes of the group get size 1.
    """
    if not join:
        return tensor
    moved = tensor.transpose(joined_order(tensor.ndim, join))
    return moved.reshape(joined_extents(tensor.shape, join))


def joined_order(axes: int, join: Iterable[Sequence[int]]) -> list[int]:
    """Return the order of axes in which the axes of each group of ``join`` follow its first
    axis."""
    order = [*range(axes)]
    for first, *others in join:
        order = [axis for axis in order if axis not in others]
        at = order.index(first) + 1
        order[at:at] = others
    return order


def joined_extents(extents: Shape, join: Iterable[Sequence[int]]) -> Shape:
    """Return the number of indices of each axis after ``join_axes``."""
    out = [*extents]
    for first, *others in join:
        for axis in others:
            out[first] *= out[axis]
            out[axis] = 1
    return tuple(out)


def axis_letters(shape: Shape) -> Sequence[str]:
    """Return the letter of each axis of a shape, as texts of layouts name it."""
    return LETTERS.get(len(shape)) or [f"a{axis}_" for axis in range(len(shape))]


def name_joined(letters: list[str], join: Iterable[Sequence[int]]) -> None:
    """Replace in ``letters`` the letter of the first of joined axes by the letters of all joined
    axes in brackets.
    """
    for group in join:
        together = "".join(letters[axis] for axis in group)
        letters[group[0]] = f"({together})"


def starts_said(letters: Sequence[str], starts: Sequence[int]) -> Iterator[str]:
    """Yield a text for each axis that begins inside of its first tile."""
    for letter, start in zip(letters, starts, strict=True):
        if start:
            yield f"{letter} from place {start} of its tile"
