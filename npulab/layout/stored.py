"""Elements read and written at known places of a buffer, and layouts that are a table of places."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
from numpy import ndarray as Array

from npulab.layout.items import Item, items_of
from npulab.layout.parts import Part, Sums
from npulab.support.refuse import refuse_if

# The bits of an element by its type. Outside of a buffer, an element of fewer than 8 bits takes a
# byte.
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
# ``Planes`` also has elements of other widths, because it places units of their bits.
ELEMENTS = dict(BITS)
for width in range(1, 17):
    ELEMENTS |= {f"uint{width}": width, f"int{width}": width}
# The sizes in bytes of words whose bytes may be reversed, the usual first; 0 means none.
SWAPS = (0, 4, 8, 2, 16)
WORDS = ", ".join(map(str, sorted(SWAPS)[1:]))
# numpy's names for the order of bits and of bytes; in each, the second means that the highest comes
# first.
BIT_ORDERS: tuple[Literal["little", "big"], ...] = ("little", "big")
BYTE_ORDERS = "<>"
MOST_ELEMENTS = 2**26
MOST_BYTES = 2**31
# A text lists at most this many parts.
LISTED = 4
# Texts by field of ``Stored``; the text of a layout has one if the field is not 0.
TEXTS = {
    "xor": "xor {:#x}",
    "add": "plus {:#x}",
    "big_endian": "big-endian",
    "swap": "words of {} bytes swapped",
    "fill": "fill {:#x}",
}
Shape = tuple[int, ...]
Buffer = bytes | bytearray | memoryview | Array


@dataclass(frozen=True)
class Stored(ABC):
    """The storage of elements at known places, which ``Layout`` and ``Table`` inherit.

    A place is the number of a byte. For elements of fewer than 8 bits (``int4``, ``uint1``) it
    counts elements, of which the first is in the lowest bits of its byte, with ``big_endian`` in
    the highest. The fields are explained at ``Layout``.
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
        """Return the place of each element ``(*shape) int64`` before words are swapped.

        The place is -1 for an element that is not in the buffer.
        """

    def index_map(self) -> Array:
        """Return the byte offset of each element, ``(*shape) int64``, -1 if it is not in the
        buffer.

        For elements of fewer than 8 bits it is the place, which counts elements.
        """
        return self.swapped(self.places_before_swap())

    def swapped(self, places: Any) -> Any:
        """Return places after words are swapped, from the places before.

        A second call undoes the first. A place of -1 stays -1.
        """
        flip = 0
        if self.swap:
            flip = (self.swap - self.itemsize) * self.per_byte
        if self.big_endian:
            flip += self.per_byte - 1
        if flip:
            return np.where(places >= 0, places ^ flip, -1)
        return places

    @property
    @abstractmethod
    def inside(self) -> Any:
        """The index (slices or a mask) that selects the elements of the tensor in the buffer."""

    @property
    def extents(self) -> Shape:
        """The number of indices of each axis that are in the buffer."""
        return self.shape

    @property
    def bits(self) -> int:
        """The number of bits of an element."""
        return BITS[self.dtype]

    @property
    def place_bits(self) -> int:
        """The number of bits from one place to the next: 8, or fewer if an element has fewer."""
        return min(self.bits, 8)

    @property
    def itemsize(self) -> int:
        """The number of bytes of an element; 1 if it has fewer than 8 bits."""
        return place_bytes(self.dtype)

    @property
    def per_byte(self) -> int:
        """The number of elements in a byte; 1 if an element has 8 bits or more."""
        return 8 // self.place_bits

    def stored(self, tensor: Array) -> Array:
        """Return the stored elements of a tensor: unsigned, in the shape of the tensor.

        Raises ValueError for another shape or dtype.
        """
        return store(raw_in(tensor, self.shape, self.dtype), self.xor, self.add)

    def pack(self, tensor: Array) -> bytes:
        """Return the bytes of the buffer (``size`` bytes) for a tensor of ``shape`` and ``dtype``.

        Raises ValueError for another shape or dtype.
        """
        stored = self.stored(tensor)[self.inside]
        places = self.blank_places(self.size * self.per_byte)
        self.write_places(places, stored)
        out = joined(places, self.bits, self.big_endian)
        for part in self.parts:
            if isinstance(part, Sums):
                row = part.data(stored, self.fill, self.bits)
            else:
                row = part.row
            out[part.offset : part.end] = row
        return swap_words(out, self.swap).tobytes()

    def unpack(self, buffer: Buffer) -> Array:
        """Return the tensor that a buffer of ``size`` bytes has.

        Elements that are not in the buffer are 0. Raises ValueError for a buffer of another size,
        and for copies of an element that differ.
        """
        data = bytes_of_size(buffer, self.size)
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
        """Return a buffer unpacked and packed again.

        It is unchanged if the layout accounts for every byte. Raises the errors of ``unpack``.
        """
        return self.pack(self.unpack(buffer))

    def items(self, buffer: Buffer, kind: str = "weight", **axes: int) -> list[Item]:
        """Return items for all bits of a buffer, in order, as ``Target.explain`` does.

        There are items for each element and its copies, and for runs of fill, sums, constants and
        other bits. ``kind`` is the kind of elements. ``axes`` states the axis of the tensor for
        some of the names ``core``, ``channel``, ``plane``, ``row`` and ``column``. The value of an
        item is the tensor's element, of a float its bits. Raises the errors of ``unpack``, and
        ValueError for a name or an axis that does not exist.

        >>> from npulab.layout import hwc
        >>> [item[:4] for item in hwc((1, 3), dtype="int4").items(b"!", channel=1)]
        [(0, 4, 'weight', 1), (4, 4, 'weight', 2), (8, 4, 'weight', -1), (12, 4, 'fill', 0)]
        """
        return items_of(self, self.unpack(buffer), bytes_in(buffer, "buffer"), kind, axes)

    def opened(self, data: Array) -> Array:
        """Return the places of a buffer: words are swapped back, and each element of fewer than 8
        bits gets a byte of its own.
        """
        return opened(data, self.bits, self.swap, self.big_endian)

    def closed(self, places: Array) -> Array:
        """Return the bytes of a buffer from its places, the inverse of ``opened``."""
        return swap_words(joined(places, self.bits, self.big_endian), self.swap)

    def write_places(self, out: Array, stored: Array) -> None:
        """Write stored (unsigned) elements and their copies into the places of a buffer."""
        places, pieces = self.places_before_swap()[self.inside], bytes_of(stored, self.big_endian)
        for copy in (0, *self.copies):
            for at in range(self.itemsize):
                out[places + (copy + at)] = pieces[..., at]

    def read_places(self, data: Array) -> list[Array]:
        """Return the stored (unsigned) elements that the places of a buffer have, then their
        copies."""
        places = self.places_before_swap()[self.inside]
        return [
            elements_at(data, places + copy, self.itemsize, self.big_endian)
            for copy in (0, *self.copies)
        ]

    def blank(self, size: int) -> Array:
        """Return a buffer with only fill, ``(size,) uint8``.

        Fill values are in step with the elements.
        """
        return self.closed(self.blank_places(size * self.per_byte))

    def blank_places(self, size: int) -> Array:
        """Return ``size`` places with only fill, ``uint8``, before words are swapped.

        Fill values are in step with the elements.
        """
        one = bytes_of(np.array([self.fill], f"u{self.itemsize}"), self.big_endian)[0]
        return np.tile(np.roll(one, self.first % self.itemsize), -(-size // self.itemsize))[:size]

    @property
    def first(self) -> int:
        """The place of the first element before words are swapped."""
        return 0

    @property
    def elements(self) -> int:
        """The number of elements in the buffer."""
        return math.prod(self.extents)

    def _check_stored(self) -> None:
        # A search makes thousands of layouts, so texts are only made for an error: texts made
        # beforehand took 20 % of the time to make and pack a small layout (4 x 4 x 8 elements).
        shape, swap = self.shape, self.swap
        whole = all(isinstance(n, int) and n >= 1 for n in shape)
        refuse_if(not shape or not whole, "shape", shape, "are one or more axes of at least 1")
        if math.prod(shape) > MOST_ELEMENTS:
            raise ValueError(f"shape: got {shape}, allowed are at most {MOST_ELEMENTS} elements")
        refuse_type(self.dtype, DTYPES)
        bits = self.bits
        most = {"fill": bits, "xor": bits, "add": bits}
        # Nothing may be added to elements of fewer than 8 bits; an xor of the highest bit adds half
        # of the range.
        if bits < 8:
            most["add"] = 0
        refuse_wide(self, most)
        if swap not in SWAPS or 0 < swap < self.itemsize:
            raise ValueError(
                f"swap: got {swap}, allowed is 0 or a word of {WORDS} bytes, at least the "
                f"{self.itemsize} of an element"
            )
        if swap:
            self._refuse_uneven("copies", self.copies, swap * self.per_byte)
        if not 0 <= self.size <= MOST_BYTES:
            raise ValueError(f"size: got {self.size} bytes, allowed is 0 to {MOST_BYTES}")

    def _refuse_uneven(self, name: str, numbers: Iterable[int], word: int) -> None:
        """Raise ValueError for a number that is not a multiple of a swapped word."""
        for number in numbers:
            allowed = f"are multiples of the {self.swap} bytes that are swapped"
            refuse_if(number % word, name, number, allowed)

    def _check_ends(self, first: int, end: int) -> None:
        """Raise ValueError if elements from place ``first`` up to, but not including, place
        ``end``, their copies, or the parts reach outside of the buffer.
        """
        first, end = first + min(0, *self.copies, 0), end + max(0, *self.copies, 0)
        places = self.size * self.per_byte
        if first < 0 or end > places:
            unit = "bytes"
            if self.per_byte > 1:
                unit = "places"
            raise ValueError(
                f"elements: got {unit} {first} to {end}, allowed is 0 to {places}, the size"
            )
        if self.swap:
            self._refuse_uneven("size", [self.size], self.swap)
        refuse_outside(self.parts, self.size)
        for part in self.parts:
            if isinstance(part, Sums):
                self._check_sums(part)

    def _check_sums(self, part: Sums) -> None:
        real = held_as(self.dtype).kind == "f"
        refuse_if(real, part, f"elements of {self.dtype}", "are whole numbers")
        known = 0 <= part.axis < len(self.shape)
        allowed = f"is an axis of {self.shape} with at most {part.count} indices"
        wrong = not known or part.count < self.extents[part.axis]
        refuse_if(wrong, part, f"axis {part.axis}", allowed)

    def _said(self) -> list[str]:
        """Return the texts after the rule of a layout: shape and type, then each field that is not
        at its default.
        """
        out = [f"{self.shape} {self.dtype}"]
        for name, text in TEXTS.items():
            if getattr(self, name):
                out.append(text.format(getattr(self, name)))
        if self.copies:
            out.append(f"copies {', '.join(map('{:+d}'.format, self.copies))} bytes away")
        return [*out, *listed_parts(self.parts), f"{self.size} bytes"]


@dataclass(frozen=True, eq=False)
class Table(Stored):
    """A layout without a rule, which lists the place of each element.

    ``places`` are ``(*shape) int64`` as ``index_map`` returns them: byte offsets, and -1 for an
    element that is not in the buffer.

    Raises ValueError for places outside of the buffer, and for sums among the parts.
    """

    places: Array

    def __post_init__(self) -> None:
        self._check_stored()
        given = self.places.shape
        refuse_if(given != self.shape, "places", given, f"is {self.shape}, the shape")
        summed = any(isinstance(part, Sums) for part in self.parts)
        refuse_if(summed, "parts", "sums", "with a table are constants only")
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


def refuse_type(dtype: str, allowed: Iterable[str]) -> None:
    """Raise ValueError for an element type that is not in ``allowed``."""
    if dtype not in allowed:
        raise ValueError(f"dtype: got {dtype!r}, allowed is one of {', '.join(allowed)}")


def refuse_wide(layout: object, bits: Mapping[str, int]) -> None:
    """Raise ValueError if a field of a layout does not fit its number of ``bits``, unsigned."""
    for name, most in bits.items():
        value = getattr(layout, name)
        if not 0 <= value < 2**most:
            raise ValueError(f"{name}: got {value}, allowed is 0 to {2**most - 1}")


def refuse_outside(parts: Iterable[Part], size: int) -> None:
    """Raise ValueError for parts that reach outside of a buffer of ``size`` bytes."""
    for part in parts:
        wrong = part.offset < 0 or part.end > size
        refuse_if(wrong, part, f"bytes {part.offset} to {part.end}", f"is 0 to {size}, the size")


def listed_parts(parts: Sequence[Part]) -> list[str]:
    """Return the texts of the first ``LISTED`` parts, then a text with the number of further
    parts."""
    texts = [*map(str, parts[:LISTED])]
    if len(parts) > LISTED:
        texts.append(f"{len(parts) - LISTED} more parts")
    return texts


def place_bytes(dtype: str) -> int:
    """Return the number of places that an element takes: its bytes, or 1 if it has fewer than 8
    bits."""
    return max(BITS.get(dtype, 8) // 8, 1)


def bytes_of_places(places: int, dtype: str) -> int:
    """Return the number of bytes that ``places`` places take."""
    return -(-places * min(BITS.get(dtype, 8), 8) // 8)


def held_as(dtype: str) -> np.dtype[Any]:
    """Return the numpy type for elements of ``dtype``: its own, or the next wider of 8 or 16
    bits."""
    if dtype in BITS and BITS[dtype] >= 8:
        return np.dtype(dtype)
    if ELEMENTS[dtype] > 8:
        return np.dtype(dtype.rstrip("0123456789") + "16")
    return np.dtype(dtype.rstrip("0123456789") + "8")


def raw_in(tensor: Array, shape: Shape, dtype: str) -> Array:
    """Return the bits of the elements of a tensor as unsigned integers.

    Raises ValueError for another shape or type, and for values outside of ``dtype``.
    """
    tensor = np.asarray(tensor)
    kind = held_as(dtype)
    if tensor.shape != shape or tensor.dtype != kind:
        raise ValueError(f"tensor: got {tensor.dtype} {tensor.shape}, allowed is {kind} {shape}")
    return raw_of(tensor, dtype)


def raw_of(tensor: Array, dtype: str) -> Array:
    """Return the bits of elements as unsigned integers.

    Raises ValueError for a value outside of the range of ``dtype``.
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
    """Return elements of ``dtype`` from their bits (unsigned integers), the inverse of
    ``raw_of``."""
    kind, bits = held_as(dtype), ELEMENTS[dtype]
    if bits == 8 * kind.itemsize or not dtype.startswith("int"):
        return raw.view(kind)
    half = 2 ** (bits - 1)
    return (raw ^ half).view(kind) - kind.type(half)


def swap_words(data: Array, swap: int) -> Array:
    """Return bytes ``(n,)`` with the bytes of each word of ``swap`` bytes reversed.

    A ``swap`` of 0 changes nothing.
    """
    if swap:
        return np.ascontiguousarray(data.reshape(-1, swap)[:, ::-1]).reshape(-1)
    return data


def opened(data: Array, bits: int, swap: int, high_first: bool) -> Array:
    """Return the places of a buffer: words of ``swap`` bytes are swapped back, and each element of
    fewer than 8 bits gets a byte of its own.
    """
    data = swap_words(data, swap)
    if bits == 1:
        return np.unpackbits(data, bitorder=BIT_ORDERS[high_first])
    if bits < 8:
        return (data[:, None] // _steps(bits, high_first) & np.uint8(2**bits - 1)).reshape(-1)
    return data


def joined(places: Array, bits: int, high_first: bool) -> Array:
    """Return packed bytes from places, the inverse of ``opened`` without swaps.

    Elements of fewer than 8 bits are joined to bytes; bytes of wider elements stay as they are.
    """
    if bits >= 8:
        return places
    if bits == 1:
        return np.packbits(places, bitorder=BIT_ORDERS[high_first])
    return (places.reshape(-1, 8 // bits) * _steps(bits, high_first)).sum(1, dtype=np.uint8)


def split_units(raw: Array, bits: int, unit: int) -> Array:
    """Return the units of ``unit`` bits of unsigned elements, ``(*shape, units) uint8``.

    An element has ``bits`` bits; its lowest unit is the first.
    """
    little = np.ascontiguousarray(raw).astype(f"<u{raw.itemsize}", copy=False)
    units = opened(little.reshape(-1).view(np.uint8), unit, 0, False)
    return units.reshape(*raw.shape, -1)[..., : bits // unit]


def join_units(units: Array, itemsize: int, unit: int) -> Array:
    """Return unsigned elements of ``itemsize`` bytes from their units ``(*shape, units) uint8``.

    This is the inverse of ``split_units``.
    """
    whole = np.zeros((*units.shape[:-1], 8 * itemsize // unit), np.uint8)
    whole[..., : units.shape[-1]] = units
    raw = joined(whole.reshape(-1), unit, False).view(f"<u{itemsize}")
    return raw.reshape(units.shape[:-1]).astype(f"u{itemsize}", copy=False)


def _steps(bits: int, high_first: bool) -> Array:
    steps = 2 ** np.arange(0, 8, bits, dtype=np.uint8)
    if high_first:
        return steps[::-1]
    return steps


def store(raw: Array, xor: int, add: int) -> Array:
    """Return the stored values of unsigned elements: ``(raw ^ xor) + add``, modulo their range."""
    if xor:
        raw = raw ^ raw.dtype.type(xor)
    if add:
        raw = raw + raw.dtype.type(add)
    return raw


def restore(stored: Array, xor: int, add: int) -> Array:
    """Return unsigned elements from their stored values, the inverse of ``store``."""
    if add:
        stored = stored - stored.dtype.type(add)
    if xor:
        stored = stored ^ stored.dtype.type(xor)
    return stored


def bytes_of(elements: Array, big_endian: bool) -> Array:
    """Return the bytes of unsigned elements, ``(..., itemsize) uint8``."""
    ordered = elements.astype(f"{BYTE_ORDERS[big_endian]}u{elements.itemsize}", copy=False)
    return np.ascontiguousarray(ordered).view(np.uint8).reshape(*elements.shape, elements.itemsize)


def elements_at(data: Array, places: Array, itemsize: int, big_endian: bool) -> Array:
    """Return the unsigned elements of ``itemsize`` bytes at places of a buffer ``(n,) uint8``."""
    if itemsize == 1:
        return data[places]
    out = np.empty((*places.shape, itemsize), np.uint8)
    for at in range(itemsize):
        out[..., at] = data[places + at]
    ordered = out.view(f"{BYTE_ORDERS[big_endian]}u{itemsize}")[..., 0]
    return ordered.astype(f"u{itemsize}", copy=False)


def bytes_in(buffer: Buffer, name: str) -> Array:
    """Return a buffer as ``(n,) uint8`` without a copy; raise ValueError if it is not bytes."""
    allowed = "are bytes or uint8 of one axis"
    if isinstance(buffer, Array):
        wrong = buffer.dtype != np.uint8 or buffer.ndim != 1
        refuse_if(wrong, name, f"{buffer.dtype} {buffer.shape}", allowed)
        return buffer
    wrong = not isinstance(buffer, bytes | bytearray | memoryview)
    refuse_if(wrong, name, type(buffer).__name__, allowed)
    return np.frombuffer(buffer, np.uint8)


def bytes_of_size(buffer: Buffer, size: int) -> Array:
    """Return a buffer as ``(n,) uint8`` without a copy; raise ValueError unless it has ``size``
    bytes."""
    data = bytes_in(buffer, "buffer")
    if len(data) != size:
        raise ValueError(f"buffer: got {len(data)} bytes, allowed is {size}")
    return data
