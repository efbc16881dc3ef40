"""How elements are stored in a buffer once their places are known; a table of places."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from npulab.layout.parts import Part, Sums

DTYPES = ("uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32")
MOST_ELEMENTS = 2 ** 26
MOST_BYTES = 2 ** 31
LISTED = 4  # parts that a text lists
Buffer = bytes | bytearray | memoryview | np.ndarray


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
        out = self.blank(self.size)
        self._write(out, stored)
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
        taken, *copied = self._read(data)
        for copy, again in zip(self.copies, copied, strict=True):
            wrong = again != taken
            if wrong.any():
                at = int(self.index_map()[self.inside][wrong][0])
                raise ValueError(f"buffer: got two values of one element, at bytes {at} and {at + copy} (its copy)")
        out = np.zeros(self.shape, taken.dtype)
        out[self.inside] = restore(taken, self.xor, self.add)
        return out.view(self.dtype)

    def _write(self, out: np.ndarray, stored: np.ndarray) -> None:
        """Put elements, unsigned as stored, and their copies into a buffer, place by place."""
        places, pieces = self.index_map()[self.inside], bytes_of(stored, self.big_endian)
        for copy in (0, *self.copies):
            for at in range(self.itemsize):
                out[places + (copy + at)] = pieces[..., at]

    def _read(self, data: np.ndarray) -> list[np.ndarray]:
        """Elements of a buffer, unsigned as stored, and each copy of them, place by place."""
        places = self.index_map()[self.inside]
        return [elements_at(data, places + copy, self.itemsize, self.big_endian)
                for copy in (0, *self.copies)]

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
        """Whether elements from byte ``first`` up to ``end``, their copies and the parts lie in the
        buffer."""
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


@dataclass(frozen=True, eq=False)
class Table(Stored):
    """Where each element lies, one by one: ``places`` are byte offsets ``(*shape) int64``, -1 where
    it is not there.

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
