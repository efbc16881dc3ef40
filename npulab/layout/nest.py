"""Where each element of a tensor lies in a buffer: a nest of loops over tiles of its axes, or a table."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from npulab.layout.parts import Part, Sums

DTYPES = ("uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32")
MOST_ELEMENTS = 2 ** 26
MOST_BYTES = 2 ** 31
SLAB = 2 ** 17  # elements whose places are found at a time
LISTED = 4  # parts that a text lists
LETTERS = {1: "i", 2: "rc", 3: "hwc", 4: "ohwi"}
Buffer = bytes | bytearray | memoryview | np.ndarray


@dataclass(frozen=True)
class Loop:
    """A level of a nest: blocks of ``tile`` indices of ``axis``, ``stride`` bytes from one to the next.

    Without a stride every block starts where the last one ends, so that a block which the axis does not fill is
    shorter in the buffer too; the loops inside of it have no stride either.
    """

    axis: int
    tile: int = 1
    stride: int | None = None


@dataclass(frozen=True)
class Stored(ABC):
    """How elements are stored once their places are known: what ``Layout`` and ``Table`` share."""

    shape: tuple[int, ...]
    _: KW_ONLY
    dtype: str = "uint8"
    size: int = 0
    fill: int = 0
    xor: int = 0
    add: int = 0
    big_endian: bool = False
    copies: tuple[int, ...] = ()
    parts: tuple[Part, ...] = ()

    @abstractmethod
    def index_map(self) -> np.ndarray:
        """Byte offset of each element ``(*shape) int64``, -1 where it is not in the buffer."""

    @property
    @abstractmethod
    def inside(self) -> Any:
        """The elements that lie in the buffer, as an index of the tensor."""

    @property
    def extents(self) -> tuple[int, ...]:
        """Indices of each axis that lie in the buffer."""
        return self.shape

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    def stored(self, tensor: np.ndarray) -> np.ndarray:
        """Elements as the buffer holds them, unsigned, the shape of the tensor.

        Raises ValueError for another shape or dtype.
        """
        tensor = np.asarray(tensor)
        if tensor.shape != self.shape or tensor.dtype != self.dtype:
            raise ValueError(f"tensor: got {tensor.dtype} {tensor.shape}, allowed is {self.dtype} {self.shape}")
        return store(raw_of(tensor), self.xor, self.add)

    def pack(self, tensor: np.ndarray) -> bytes:
        """The buffer, ``size`` bytes, of a tensor of ``shape`` and ``dtype``.

        Raises ValueError for another shape or dtype.
        """
        stored = self.stored(tensor)[self.inside]
        places = self.index_map()[self.inside]
        out = self.blank(self.size)
        pieces = bytes_of(stored, self.big_endian)
        for copy in (0, *self.copies):
            for at in range(self.itemsize):
                out[places + (copy + at)] = pieces[..., at]
        for part in self.parts:
            out[part.offset:part.offset + part.size] = part.data(stored, self.fill) if isinstance(part, Sums) else \
                np.tile(np.frombuffer(part.data, np.uint8), part.repeat)
        return out.tobytes()

    def unpack(self, buffer: Buffer) -> np.ndarray:
        """The tensor of a buffer of ``size`` bytes; elements that are not in it are 0.

        Raises ValueError for a buffer of another size, and for copies of an element that differ.
        """
        data = bytes_in(buffer, "buffer")
        if len(data) != self.size:
            raise ValueError(f"buffer: got {len(data)} bytes, allowed is {self.size}")
        places = self.index_map()[self.inside]
        taken = elements_at(data, places, self.itemsize, self.big_endian)
        for copy in self.copies:
            wrong = elements_at(data, places + copy, self.itemsize, self.big_endian) != taken
            if wrong.any():
                at = int(places[wrong][0])
                raise ValueError(f"buffer: got two values of one element, at bytes {at} and {at + copy} (its copy)")
        out = np.zeros(self.shape, taken.dtype)
        out[self.inside] = restore(taken, self.xor, self.add)
        return out.view(self.dtype)

    def blank(self, size: int) -> np.ndarray:
        """Fill values in step with the elements, ``(size,) uint8``."""
        one = bytes_of(np.array([self.fill], f"u{self.itemsize}"), self.big_endian)[0]
        return np.tile(np.roll(one, self.first % self.itemsize), -(-size // self.itemsize))[:size]

    @property
    def first(self) -> int:
        """Byte offset of the first element."""
        return 0

    @property
    def elements(self) -> int:
        """How many elements lie in the buffer."""
        return math.prod(self.extents)

    def _check_stored(self) -> None:
        shape = self.shape
        if not shape or not all(isinstance(n, int) and n >= 1 for n in shape):
            raise ValueError(f"shape: got {shape}, allowed are one or more axes of at least 1")
        if math.prod(shape) > MOST_ELEMENTS:
            raise ValueError(f"shape: got {shape}, allowed are at most {MOST_ELEMENTS} elements")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype: got {self.dtype!r}, allowed is one of {', '.join(DTYPES)}")
        for name in ("fill", "xor", "add"):
            value = getattr(self, name)
            if not 0 <= value < 256 ** self.itemsize:
                raise ValueError(f"{name}: got {value}, allowed is 0 to {256 ** self.itemsize - 1}")
        if not 0 <= self.size <= MOST_BYTES:
            raise ValueError(f"size: got {self.size} bytes, allowed is 0 to {MOST_BYTES}")

    def _check_ends(self, first: int, end: int) -> None:
        """Whether elements from byte ``first`` up to ``end``, their copies and the parts lie in the buffer."""
        first, end = first + min(0, *self.copies, 0), end + max(0, *self.copies, 0)
        if first < 0 or end > self.size:
            raise ValueError(f"elements: got bytes {first} to {end}, allowed is 0 to {self.size}, the size")
        for part in self.parts:
            if part.offset < 0 or part.offset + part.size > self.size:
                raise ValueError(f"{part}: got bytes {part.offset} to {part.offset + part.size}, allowed is 0 to "
                                 f"{self.size}, the size")
            if isinstance(part, Sums) and np.dtype(self.dtype).kind == "f":
                raise ValueError(f"{part}: got {self.dtype}, allowed are sums of whole numbers")
            if isinstance(part, Sums) and not (0 <= part.axis < len(self.shape)
                                               and part.count >= self.extents[part.axis]):
                raise ValueError(f"{part}: got axis {part.axis}, allowed is an axis of {self.shape} with at most "
                                 f"{part.count} indices")

    def _said(self) -> list[str]:
        """What text says after the rule."""
        out = [f"{self.shape} {self.dtype}"]
        out += [f"xor {self.xor:#x}"] if self.xor else []
        out += [f"plus {self.add:#x}"] if self.add else []
        out += ["big-endian"] if self.big_endian else []
        out += [f"fill {self.fill:#x}"] if self.fill else []
        out += [f"copies {', '.join(f'{copy:+d}' for copy in self.copies)} bytes away"] if self.copies else []
        out += [str(part) for part in self.parts[:LISTED]]
        out += [f"{len(self.parts) - LISTED} more parts"] if len(self.parts) > LISTED else []
        return [*out, f"{self.size} bytes"]


@dataclass(frozen=True)
class Layout(Stored):
    """Where each element of a tensor of ``shape`` lies: loops from the outermost to the innermost.

    The element at an index lies at ``offset`` plus, for each loop, the stride times the number of its block.  A loop
    over an axis divides the block of the loop over the same axis before it.  ``dtype`` is the numpy name of the
    elements, ``size`` the bytes of the buffer (up to the last element where it is left out), ``window`` the (start,
    stop) of each axis where not the whole tensor is in the buffer.  Stored is ``(raw ^ xor) + add``, modulo the
    range of the element, little-endian unless ``big_endian``, and again ``copies`` bytes away; the other bytes hold
    ``fill`` (an unsigned element) or the ``parts``.
    Raises ValueError for loops that leave out indices, places outside of the buffer or taken twice.

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
        if high - low > 8 * MOST_ELEMENTS:
            raise ValueError(f"loops: got bytes {low} to {high}, allowed are strides that do not interleave there")
        taken = np.zeros(high - low, bool)
        for at in range(self.itemsize):
            taken[places + (at - low)] = True
        return int(np.count_nonzero(taken)) == places.size * self.itemsize

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
        """Byte offset of elements, by their index along each axis (numbers or arrays of one shape, in the window)."""
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
        """The order of the loops, as people write it: ``HWC``; ``C1HWC2, C2=16`` where an axis is in tiles."""
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


@dataclass(frozen=True, eq=False)
class Table(Stored):
    """Where each element lies, one by one: ``places`` are byte offsets ``(*shape) int64``, -1 where it is not there.

    Raises ValueError for places outside of the buffer.
    """

    places: np.ndarray

    def __post_init__(self) -> None:
        self._check_stored()
        if self.places.shape != self.shape:
            raise ValueError(f"places: got {self.places.shape}, allowed is {self.shape}, the shape")
        if any(isinstance(part, Sums) for part in self.parts):
            raise ValueError("parts: got sums, allowed are constants beside a table")
        have = self.places[self.places >= 0]
        if have.size:
            self._check_ends(int(have.min()), int(have.max()) + self.itemsize)

    def index_map(self) -> np.ndarray:
        """Byte offset of each element ``(*shape) int64``, -1 where it is not in the buffer."""
        return self.places.copy()

    @property
    def inside(self) -> Any:
        return self.places >= 0

    def __str__(self) -> str:
        return f"table of {np.count_nonzero(self.places >= 0)} places: {', '.join(self._said())}"


def _letters(shape: tuple[int, ...]) -> Sequence[str]:
    return LETTERS.get(len(shape)) or [f"a{axis}_" for axis in range(len(shape))]


def raw_of(tensor: np.ndarray) -> np.ndarray:
    """The bits of elements, unsigned."""
    return np.ascontiguousarray(tensor).view(f"u{tensor.itemsize}")


def store(raw: np.ndarray, xor: int, add: int) -> np.ndarray:
    """Unsigned elements as stored."""
    out = raw ^ raw.dtype.type(xor) if xor else raw
    return out + out.dtype.type(add) if add else out


def restore(stored: np.ndarray, xor: int, add: int) -> np.ndarray:
    """What ``store`` was given."""
    out = stored - stored.dtype.type(add) if add else stored
    return out ^ out.dtype.type(xor) if xor else out


def bytes_of(elements: np.ndarray, big_endian: bool) -> np.ndarray:
    """Bytes ``(..., itemsize) uint8`` of unsigned elements."""
    ordered = elements.astype(elements.dtype.newbyteorder(">" if big_endian else "<"), copy=False)
    return np.ascontiguousarray(ordered).view(np.uint8).reshape(*elements.shape, elements.itemsize)


def elements_at(data: np.ndarray, places: np.ndarray, itemsize: int, big_endian: bool) -> np.ndarray:
    """Unsigned elements of a buffer ``(n,) uint8`` at byte offsets."""
    if itemsize == 1:
        return data[places]
    out = np.empty((*places.shape, itemsize), np.uint8)
    for at in range(itemsize):
        out[..., at] = data[places + at]
    return out.view(f"{'>' if big_endian else '<'}u{itemsize}")[..., 0].astype(f"u{itemsize}", copy=False)


def bytes_in(buffer: Buffer, name: str) -> np.ndarray:
    """A buffer ``(n,) uint8`` without a copy; raises ValueError where it is not bytes."""
    if isinstance(buffer, np.ndarray):
        if buffer.dtype != np.uint8 or buffer.ndim != 1:
            raise ValueError(f"{name}: got {buffer.dtype} {buffer.shape}, allowed are bytes or uint8 of one axis")
        return buffer
    if not isinstance(buffer, bytes | bytearray | memoryview):
        raise ValueError(f"{name}: got {type(buffer).__name__}, allowed are bytes or uint8 of one axis")
    return np.frombuffer(buffer, np.uint8)
