"""Reading and writing elements at known places of a buffer; layouts that are a table of places."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
from numpy import ndarray as Array

from npulab.layout.items import Item, items_of
from npulab.layout.parts import Part, Sums

# bits of an element by its type; outside of the buffer an element below 8 bits has a byte of its
# own
BITS = {
    "uint8": 8,
    "int8": 8,
    "uint16": 16,
    "int16": 16,
    "float16": 16,
    "uint32": 32,
    "int32": 32,
    "float32": 32,
    "uint4": 4,
    "int4": 4,
    "uint2": 2,
    "int2": 2,
    "uint1": 1,
}
DTYPES = tuple(BITS)
# elements of other widths have no places of their own, but their bits do: ``planes`` has them
ELEMENTS = dict(BITS)
for width in range(1, 17):
    ELEMENTS |= {f"uint{width}": width, f"int{width}": width}
SWAPS = (0, 4, 8, 2, 16)  # sizes in bytes of words whose bytes may be reversed, the usual first
BIT_ORDERS: tuple[Literal["little", "big"], ...] = ("little", "big")  # of numpy, lowest bits first
MOST_ELEMENTS = 2**26
MOST_BYTES = 2**31
LISTED = 4  # most parts that a text lists
Shape = tuple[int, ...]
Buffer = bytes | bytearray | memoryview | Array


@dataclass(frozen=True)
class Stored(ABC):
    """The storage of elements at known places: the base of ``Layout`` and ``Table``.

    Places count bytes; for elements below 8 bits (``int4``, ``uint1``) they count elements, the
    first in the lowest bits of its byte, in the highest if ``big_endian``.
    """

    shape: Shape
    _: KW_ONLY
    dtype: str = "uint8"
    size: int = 0
    fill: int = 0
    xor: int = 0
    add: int = 0
    big_endian: bool = False
    copies: tuple[int, ...] = ()
    parts: tuple[Part, ...] = ()
    swap: int = 0

    @abstractmethod
    def places_before_swap(self) -> Array:
        """Place of each element ``(*shape) int64`` before words are swapped, -1 if it is not in the
        buffer."""

    def index_map(self) -> Array:
        """Return the byte offset of each element ``(*shape) int64``, -1 if it is not in the buffer;
        for elements below 8 bits the offset counts elements.
        """
        return self.swapped(self.places_before_swap())

    def swapped(self, places: Any) -> Any:
        """Return the places after words are swapped, from the places before, or the other way
        round.
        """
        flip = (self.swap - self.itemsize if self.swap else 0) * self.per_byte
        if self.big_endian:
            flip += self.per_byte - 1
        if flip:
            return np.where(places >= 0, places ^ flip, -1)
        return places

    @property
    @abstractmethod
    def inside(self) -> Any:
        """The elements that lie in the buffer, as an index of the tensor."""

    @property
    def extents(self) -> Shape:
        """How many indices of each axis lie in the buffer."""
        return self.shape

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return BITS[self.dtype]

    @property
    def place_bits(self) -> int:
        """Bits from one place to the next: a byte, or an element below 8 bits."""
        return min(self.bits, 8)

    @property
    def itemsize(self) -> int:
        """Bytes of an element; 1 if it has fewer than 8 bits."""
        return place_bytes(self.dtype)

    @property
    def per_byte(self) -> int:
        """Elements in a byte; 1 if an element has 8 bits or more."""
        return 8 // self.place_bits

    def stored(self, tensor: Array) -> Array:
        """Return elements as the buffer holds them: unsigned, in the shape of the tensor.

        Raises ValueError for another shape or dtype.
        """
        tensor = np.asarray(tensor)
        kind = held_as(self.dtype)
        if tensor.shape != self.shape or tensor.dtype != kind:
            raise ValueError(
                f"tensor: got {tensor.dtype} {tensor.shape}, allowed is {kind} {self.shape}"
            )
        return store(raw_of(tensor, self.dtype), self.xor, self.add)

    def pack(self, tensor: Array) -> bytes:
        """Return the buffer, of ``size`` bytes, of a tensor of ``shape`` and ``dtype``.

        Raises ValueError for another shape or dtype.
        """
        stored = self.stored(tensor)[self.inside]
        places = self.blank_places(self.size * self.per_byte)
        self.write_places(places, stored)
        out = joined(places, self.bits, self.big_endian)
        for part in self.parts:
            if isinstance(part, Sums):
                out[part.offset : part.offset + part.size] = part.data(stored, self.fill, self.bits)
            else:
                out[part.offset : part.offset + part.size] = np.tile(
                    np.frombuffer(part.data, np.uint8), part.repeat
                )
        return swap_words(out, self.swap).tobytes()

    def unpack(self, buffer: Buffer) -> Array:
        """Return the tensor of a buffer of ``size`` bytes; elements that are not in the buffer are
        0.

        Raises ValueError for a buffer of another size, and for copies of an element that differ.
        """
        data = bytes_in(buffer, "buffer")
        if len(data) != self.size:
            raise ValueError(f"buffer: got {len(data)} bytes, allowed is {self.size}")
        stored, *copied = self.read_places(self.opened(data))
        for copy, again in zip(self.copies, copied, strict=True):
            wrong = again != stored
            if wrong.any():
                at = int(self.places_before_swap()[self.inside][wrong][0])
                raise ValueError(
                    f"buffer: got two values of one element, at bytes {self.swapped(at)} and "
                    f"{self.swapped(at + copy)} (its copy)"
                )
        out = np.zeros(self.shape, stored.dtype)
        out[self.inside] = restore(stored, self.xor, self.add)
        return values_of(out, self.dtype)

    def recode(self, buffer: Buffer) -> bytes:
        """Return a buffer unpacked and packed again: it is unchanged if the layout accounts for
        every byte.

        Raises ValueError as ``unpack`` does.
        """
        return self.pack(self.unpack(buffer))

    def items(self, buffer: Buffer, kind: str = "weight", **axes: int) -> list[Item]:
        """Return each element, its copies, and the runs of fill, sums and constants, in the order
        of a buffer of ``size`` bytes, as ``Target.explain`` does.

        ``axes`` says which axis of the tensor is ``core``, ``channel``, ``plane``, ``row`` and
        ``column``, as far as it has them. Values are the tensor's; the value of a float is its bit
        pattern. Raises ValueError as ``unpack`` does, and for a name or an axis that does not
        exist.

        >>> from npulab.layout import hwc
        >>> [item[:4] for item in hwc((1, 3), dtype="int4").items(b"!", channel=1)]
        [(0, 4, 'weight', 1), (4, 4, 'weight', 2), (8, 4, 'weight', -1), (12, 4, 'fill', 0)]
        """
        return items_of(self, self.unpack(buffer), bytes_in(buffer, "buffer"), kind, axes)

    def opened(self, data: Array) -> Array:
        """Return a buffer with its words swapped back, and each element below 8 bits in a byte of
        its own.
        """
        return opened(data, self.bits, self.swap, self.big_endian)

    def write_places(self, out: Array, stored: Array) -> None:
        """Put elements, unsigned as stored, and their copies into a buffer, place by place."""
        places, pieces = self.places_before_swap()[self.inside], bytes_of(stored, self.big_endian)
        for copy in (0, *self.copies):
            for at in range(self.itemsize):
                out[places + (copy + at)] = pieces[..., at]

    def read_places(self, data: Array) -> list[Array]:
        """Return the elements of a buffer, unsigned as stored, then each of their copies, read
        place by place.
        """
        places = self.places_before_swap()[self.inside]
        return [
            elements_at(data, places + copy, self.itemsize, self.big_endian)
            for copy in (0, *self.copies)
        ]

    def blank(self, size: int) -> Array:
        """Return a buffer of fill alone, ``(size,) uint8``; the fill values begin at the same bytes
        as elements do.
        """
        return swap_words(
            joined(self.blank_places(size * self.per_byte), self.bits, self.big_endian), self.swap
        )

    def blank_places(self, size: int) -> Array:
        """Return places of fill alone, ``(size,) uint8``, before words are swapped; the fill values
        begin at the same places as elements do.
        """
        one = bytes_of(np.array([self.fill], f"u{self.itemsize}"), self.big_endian)[0]
        return np.tile(np.roll(one, self.first % self.itemsize), -(-size // self.itemsize))[:size]

    @property
    def first(self) -> int:
        """Byte offset of the first element."""
        return 0

    @property
    def elements(self) -> int:
        """The number of elements in the buffer."""
        return math.prod(self.extents)

    def _check_stored(self) -> None:
        shape = self.shape
        if not shape or not all(isinstance(n, int) and n >= 1 for n in shape):
            raise ValueError(f"shape: got {shape}, allowed are one or more axes of at least 1")
        if math.prod(shape) > MOST_ELEMENTS:
            raise ValueError(f"shape: got {shape}, allowed are at most {MOST_ELEMENTS} elements")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype: got {self.dtype!r}, allowed is one of {', '.join(DTYPES)}")
        bits = self.bits
        # below 8 bits ``add`` is not needed: to add half of the range is an xor of the highest bit
        for name, most in (
            ("fill", 2**bits - 1),
            ("xor", 2**bits - 1),
            ("add", 2**bits - 1 if bits >= 8 else 0),
        ):
            value = getattr(self, name)
            if not 0 <= value <= most:
                raise ValueError(f"{name}: got {value}, allowed is 0 to {most}")
        if self.swap not in SWAPS or 0 < self.swap < self.itemsize:
            raise ValueError(
                f"swap: got {self.swap}, allowed is 0 or a word of "
                f"{', '.join(map(str, sorted(SWAPS)[1:]))} "
                f"bytes, at least the {self.itemsize} of an element"
            )
        uneven = next(
            (copy for copy in self.copies if self.swap and copy % (self.swap * self.per_byte)), None
        )
        if uneven is not None:
            raise ValueError(
                f"copies: got {uneven}, allowed are multiples of the {self.swap} bytes that are "
                "swapped"
            )
        if not 0 <= self.size <= MOST_BYTES:
            raise ValueError(f"size: got {self.size} bytes, allowed is 0 to {MOST_BYTES}")

    def _check_ends(self, first: int, end: int) -> None:
        """Raise ValueError if elements from place ``first`` up to place ``end``, their copies or
        the parts reach outside of the buffer.
        """
        first, end = first + min(0, *self.copies, 0), end + max(0, *self.copies, 0)
        if first < 0 or end > self.size * self.per_byte:
            if self.per_byte == 1:
                unit = "bytes"
            else:
                unit = "places"
            raise ValueError(
                f"elements: got {unit} {first} to {end}, allowed is 0 to "
                f"{self.size * self.per_byte}, "
                "the size"
            )
        if self.swap and self.size % self.swap:
            raise ValueError(
                f"size: got {self.size}, allowed are multiples of the {self.swap} bytes that are "
                "swapped"
            )
        for part in self.parts:
            if part.offset < 0 or part.offset + part.size > self.size:
                raise ValueError(
                    f"{part}: got bytes {part.offset} to {part.offset + part.size}, allowed is 0 "
                    f"to {self.size}, the size"
                )
            if isinstance(part, Sums) and held_as(self.dtype).kind == "f":
                raise ValueError(f"{part}: got elements of {self.dtype}, allowed are whole numbers")
            if isinstance(part, Sums) and not (
                0 <= part.axis < len(self.shape) and part.count >= self.extents[part.axis]
            ):
                raise ValueError(
                    f"{part}: got axis {part.axis}, allowed is an axis of {self.shape} with at "
                    f"most {part.count} indices"
                )

    def _said(self) -> list[str]:
        """Return the texts that follow the rule: shape and type first, then each field that is not
        at its default.
        """
        out = [f"{self.shape} {self.dtype}"]
        if self.xor:
            out += [f"xor {self.xor:#x}"]
        if self.add:
            out += [f"plus {self.add:#x}"]
        if self.big_endian:
            out += ["big-endian"]
        if self.swap:
            out += [f"words of {self.swap} bytes swapped"]
        if self.fill:
            out += [f"fill {self.fill:#x}"]
        if self.copies:
            out += [f"copies {', '.join(f'{copy:+d}' for copy in self.copies)} bytes away"]
        out += [str(part) for part in self.parts[:LISTED]]
        if len(self.parts) > LISTED:
            out += [f"{len(self.parts) - LISTED} more parts"]
        return [*out, f"{self.size} bytes"]


@dataclass(frozen=True, eq=False)
class Table(Stored):
    """A layout without a rule: ``places`` are the byte offsets ``(*shape) int64`` of the elements,
    -1 if the element is not in the buffer.

    Raises ValueError for places outside of the buffer.
    """

    places: Array

    def __post_init__(self) -> None:
        self._check_stored()
        if self.places.shape != self.shape:
            raise ValueError(f"places: got {self.places.shape}, allowed is {self.shape}, the shape")
        if any(isinstance(part, Sums) for part in self.parts):
            raise ValueError("parts: got sums, allowed with a table are constants only")
        have = self.places[self.places >= 0]
        if have.size:
            self._check_ends(int(have.min()), int(have.max()) + self.itemsize)

    def places_before_swap(self) -> Array:
        return np.array(self.swapped(self.places))

    @property
    def inside(self) -> Any:
        return self.places >= 0

    def __str__(self) -> str:
        return f"table of {np.count_nonzero(self.places >= 0)} places: {', '.join(self._said())}"


def place_bytes(dtype: str) -> int:
    """Places that an element takes: its bytes, or 1 if it has fewer than 8 bits."""
    return max(BITS.get(dtype, 8) // 8, 1)


def bytes_of_places(places: int, dtype: str) -> int:
    """Return how many bytes hold ``places`` places."""
    return -(-places * min(BITS.get(dtype, 8), 8) // 8)


def held_as(dtype: str) -> np.dtype[Any]:
    """The numpy type that holds an element: of 8 bits below that, of 16 bits for 9 to 15."""
    if dtype in BITS and BITS[dtype] >= 8:
        return np.dtype(dtype)
    if ELEMENTS[dtype] > 8:
        return np.dtype(dtype.rstrip("0123456789") + "16")
    return np.dtype(dtype.rstrip("0123456789") + "8")


def raw_of(tensor: Array, dtype: str) -> Array:
    """Return the bits of elements as unsigned integers; raises ValueError for a value outside of
    the range of ``dtype``.
    """
    raw, bits = np.ascontiguousarray(tensor).view(f"u{tensor.itemsize}"), ELEMENTS[dtype]
    if bits == 8 * tensor.itemsize:
        return raw
    raw = raw % 2**bits
    wrong = tensor[values_of(raw, dtype) != tensor]
    if wrong.size:
        raise ValueError(f"tensor: got {int(wrong[0])}, allowed are values of {dtype}")
    return raw


def values_of(raw: Array, dtype: str) -> Array:
    """Return elements of ``dtype`` from their bits, given as unsigned integers: the inverse of
    ``raw_of``.
    """
    kind, bits = held_as(dtype), ELEMENTS[dtype]
    if bits == 8 * kind.itemsize or not dtype.startswith("int"):
        return raw.view(kind)
    half = 2 ** (bits - 1)
    return (raw ^ half).view(kind) - kind.type(half)


def swap_words(data: Array, swap: int) -> Array:
    """Return bytes ``(n,)`` in which the bytes of each word of ``swap`` bytes are reversed;
    unchanged for a ``swap`` of 0.
    """
    if swap:
        return np.ascontiguousarray(data.reshape(-1, swap)[:, ::-1]).reshape(-1)
    return data


def opened(data: Array, bits: int, swap: int, high_first: bool) -> Array:
    """Return a buffer with its words swapped back, and each element below 8 bits in a byte of its
    own.
    """
    data = swap_words(data, swap)
    if bits == 1:
        return np.unpackbits(data, bitorder=BIT_ORDERS[high_first])
    if bits < 8:
        return (data[:, None] // _steps(bits, high_first) & np.uint8(2**bits - 1)).reshape(-1)
    return data


def joined(places: Array, bits: int, high_first: bool) -> Array:
    """Return packed bytes from elements below 8 bits that have a byte each; bytes of wider elements
    are returned unchanged.
    """
    if bits >= 8:
        return places
    if bits == 1:
        return np.packbits(places, bitorder=BIT_ORDERS[high_first])
    return (places.reshape(-1, 8 // bits) * _steps(bits, high_first)).sum(1, dtype=np.uint8)


def split_units(raw: Array, bits: int, unit: int) -> Array:
    """Return unsigned elements as units of ``unit`` bits ``(*shape, units) uint8``, the lowest
    first; ``bits`` are those of an element.
    """
    little = np.ascontiguousarray(raw).astype(f"<u{raw.itemsize}", copy=False)
    units = opened(little.reshape(-1).view(np.uint8), unit, 0, False)
    return units.reshape(*raw.shape, -1)[..., : bits // unit]


def join_units(units: Array, itemsize: int, unit: int) -> Array:
    """Return unsigned elements of ``itemsize`` bytes from their units ``(*shape, units) uint8``:
    the inverse of ``split_units``.
    """
    whole = np.zeros((*units.shape[:-1], 8 * itemsize // unit), np.uint8)
    whole[..., : units.shape[-1]] = units
    raw = joined(whole.reshape(-1), unit, False).view(f"<u{itemsize}")
    return raw.reshape(units.shape[:-1]).astype(f"u{itemsize}", copy=False)


def _steps(bits: int, high_first: bool) -> Array:
    steps = 2 ** np.arange(0, 8, bits)
    return (steps[::-1] if high_first else steps).astype(np.uint8)


def store(raw: Array, xor: int, add: int) -> Array:
    """Return unsigned elements as they are stored: ``(raw ^ xor) + add``, modulo their range."""
    out = raw
    if xor:
        out = raw ^ raw.dtype.type(xor)
    if add:
        return out + out.dtype.type(add)
    return out


def restore(stored: Array, xor: int, add: int) -> Array:
    """The inverse of ``store``."""
    out = stored
    if add:
        out = stored - stored.dtype.type(add)
    if xor:
        return out ^ out.dtype.type(xor)
    return out


def bytes_of(elements: Array, big_endian: bool) -> Array:
    """Return the bytes ``(..., itemsize) uint8`` of unsigned elements."""
    ordered = elements.astype(elements.dtype.newbyteorder(">" if big_endian else "<"), copy=False)
    return np.ascontiguousarray(ordered).view(np.uint8).reshape(*elements.shape, elements.itemsize)


def elements_at(data: Array, places: Array, itemsize: int, big_endian: bool) -> Array:
    """Return the unsigned elements at some byte offsets of a buffer ``(n,) uint8``."""
    if itemsize == 1:
        return data[places]
    out = np.empty((*places.shape, itemsize), np.uint8)
    for at in range(itemsize):
        out[..., at] = data[places + at]
    return out.view(f"{'>' if big_endian else '<'}u{itemsize}")[..., 0].astype(
        f"u{itemsize}", copy=False
    )


def bytes_in(buffer: Buffer, name: str) -> Array:
    """Return a buffer as ``(n,) uint8``, without a copy; raises ValueError if it is not bytes."""
    if isinstance(buffer, Array):
        if buffer.dtype != np.uint8 or buffer.ndim != 1:
            raise ValueError(
                f"{name}: got {buffer.dtype} {buffer.shape}, allowed are bytes or uint8 of one axis"
            )
        return buffer
    if not isinstance(buffer, bytes | bytearray | memoryview):
        raise ValueError(
            f"{name}: got {type(buffer).__name__}, allowed are bytes or uint8 of one axis"
        )
    return np.frombuffer(buffer, np.uint8)
