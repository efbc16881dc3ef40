"""Layouts of elements whose bits lie in several planes of a buffer.

Their loops run over the axes of a tensor and, as one more axis, over the bits of an element."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.layout.nest import Layout, Loop, axis_letters, name_joined, starts_said
from npulab.layout.parts import Constant
from npulab.layout.stored import (
    ELEMENTS,
    Buffer,
    Shape,
    Table,
    bytes_of_size,
    held_as,
    join_units,
    listed_parts,
    raw_in,
    refuse_outside,
    refuse_type,
    refuse_wide,
    split_units,
    values_of,
)
from npulab.support.refuse import refuse_if


@dataclass(frozen=True)
class Planes:
    """The place of each bit of each element of a tensor of ``shape``.

    An element of ``dtype`` (``uint1`` to ``uint16``, ``int1`` to ``int16``, or a numpy type of 16
    or 32 bits) is divided into units of 1, 2, 4 or 8 bits, the lowest first. ``nests`` are layouts
    of these units (their ``dtype`` states the bits of a unit), over the axes of the tensor and a
    last axis, the units of an element. If there are several nests, each has a ``window`` of the
    last axis, so its units have loops of their own. Along the axes in ``flip``, nests count indices
    from the last backwards. The stored element is ``raw ^ xor``.

    Bits between elements are those of the byte ``blank``; if ``fill`` is not 0, tiles are completed
    with the element ``fill``. ``parts`` replace these bytes. Raises ValueError for nests that
    contradict each other, and for bits of two elements.

    >>> low_and_high = Layout((4, 2), (Loop(1, stride=4), Loop(0, stride=1)), dtype="uint4")
    >>> planes = Planes((4,), (low_and_high,))
    >>> planes.pack(np.array([0x12, 0x34, 0x56, 0x78], np.uint8)).hex(" ")
    '42 86 31 75'
    >>> planes.index_map()[0].tolist()
    [0, 1, 2, 3, 16, 17, 18, 19]
    >>> print(planes)
    bits of (4,) uint8: b/4 16, i 4; 4 bytes
    """

    shape: Shape
    nests: tuple[Layout, ...]
    _: KW_ONLY
    dtype: str = "uint8"
    flip: tuple[int, ...] = ()
    xor: int = 0
    fill: int = 0
    blank: int = 0
    parts: tuple[Constant, ...] = ()

    def __post_init__(self) -> None:
        refuse_type(self.dtype, ELEMENTS)
        self._check_nests()
        refuse_wide(self, {"xor": self.bits, "fill": self.bits, "blank": 8})
        axes = range(len(self.shape))
        allowed = f"are axes from 0 to {axes[-1]}"
        refuse_if(not set(self.flip) <= set(axes), "flip", self.flip, allowed)
        refuse_outside(self.parts, self.size)

    def _check_nests(self) -> None:
        units = [nest.dtype for nest in self.nests]
        wrong = not units or self.unit > 8 or self.bits % self.unit
        allowed = f"are 1, 2, 4 or 8 bits that divide the {self.bits} of an element"
        refuse_if(wrong, "nests", f"units of {units}", allowed)
        first = self.nests[0]
        shape = (*self.shape, self.units)
        covered: list[int] = []
        for nest in self.nests:
            alike = reading_of(nest) == reading_of(first)
            changed = nest.xor or nest.add or nest.fill or nest.copies or nest.parts
            allowed = (
                "are nests of one dtype, size and order of bytes, without xor, add, fill, copies "
                "and parts of their own"
            )
            refuse_if(not alike or changed, nest, "a nest unlike the first", allowed)
            covered += range(*nest.window[-1])
            whole = tuple((0, n) for n in self.shape)
            wrong = nest.shape != shape or nest.window[:-1] != whole
            allowed = f"is {shape} with a window of the last axis only"
            refuse_if(wrong, nest, f"shape {nest.shape}", allowed)
        covered.sort()
        wrong = covered != [*range(self.units)]
        allowed = f"is each of 0 to {self.units - 1} once"
        refuse_if(wrong, "nests", f"the units {covered}", allowed)
        if len(self.nests) > 1 and np.count_nonzero(self.taken()) < math.prod(shape):
            raise ValueError(f"nests: got two elements that share a bit in {self}")

    @property
    def bits(self) -> int:
        """The number of bits of an element."""
        return ELEMENTS[self.dtype]

    @property
    def unit(self) -> int:
        """The number of bits of a unit, which lie together in the buffer."""
        return self.nests[0].bits

    @property
    def units(self) -> int:
        """The number of units of an element."""
        return self.bits // self.unit

    @property
    def size(self) -> int:
        """The number of bytes of the buffer."""
        return self.nests[0].size

    def pack(self, tensor: Array) -> bytes:
        """Return the bytes of the buffer (``size`` bytes) for a tensor of ``shape`` and ``dtype``.

        Raises ValueError for another shape or dtype.
        """
        raw = raw_in(tensor, self.shape, self.dtype)
        units = np.flip(self.units_of(raw), self.flip)
        places = self.nests[0].opened(self.background())
        for nest in self.nests:
            nest.write_places(places, units[nest.inside])
        return self.nests[0].closed(places).tobytes()

    def unpack(self, buffer: Buffer) -> Array:
        """Return the tensor that a buffer has; raise ValueError unless it has ``size`` bytes."""
        places = self.nests[0].opened(bytes_of_size(buffer, self.size))
        units = np.empty((*self.shape, self.units), np.uint8)
        for nest in self.nests:
            units[..., slice(*nest.window[-1])] = nest.read_places(places)[0]
        raw = self.elements_of(np.flip(units, self.flip))
        return values_of(raw ^ raw.dtype.type(self.xor), self.dtype)

    def recode(self, buffer: Buffer) -> bytes:
        """Return a buffer unpacked and packed again.

        It is unchanged if the layout accounts for every bit.
        """
        return self.pack(self.unpack(buffer))

    def index_map(self) -> Array:
        """Return the place of each bit, ``(*shape, bits) int64``, the lowest bit of an element
        first: place ``n`` is bit ``n % 8`` (0 is the lowest) of byte ``n // 8``.
        """
        out = np.empty((*self.shape, self.units, self.unit), np.int64)
        for nest in self.nests:
            start, stop = nest.window[-1]
            # A nest has no places outside of its window.
            places = nest.index_map()[..., start:stop, None] * self.unit
            out[..., start:stop, :] = places + np.arange(self.unit)
        return np.flip(out.reshape(*self.shape, self.bits), self.flip)

    def table(self) -> Table:
        """Return a table of the places of all units; its elements are units, its shape is
        ``(*shape, units)``.
        """
        places = self.index_map()[..., :: self.unit] // self.unit
        shape = (*self.shape, self.units)
        return Table(shape, places, dtype=f"uint{self.unit}", size=self.size)

    def taken(self) -> Array:
        """Return an array that is true for each unit of the buffer that has bits of an element.

        Units are counted before words are swapped.
        """
        out = np.zeros(self.size * self.nests[0].per_byte, bool)
        for nest in self.nests:
            out[nest.places_before_swap()[nest.inside]] = True
        return out

    def background(self) -> Array:
        """Return a buffer without elements, ``(size,) uint8``."""
        out = np.full(self.size, self.blank, np.uint8)
        # Parts are written last, because they replace bytes of ``blank`` and fill.
        if self.fill:
            places = self.nests[0].opened(out)
            filled = self.units_of(np.full(1, self.fill ^ self.xor, f"u{self._itemsize}"))[0]
            for some, unit in self.completed():
                places[some] = filled[unit]
            out = self.nests[0].closed(places)
        for part in self.parts:
            out[part.offset : part.end] = part.row
        return out

    def completed(self) -> Iterator[tuple[Array, int]]:
        """Yield (places, number of a unit) of the elements of completed tiles.

        The places are those of this unit in the tensor's elements and in the elements that complete
        tiles. A nest whose tiles are all short, or all full, yields nothing.
        """
        for nest in self.nests:
            wide = completed(nest)
            if wide is None:
                continue
            places = wide.places_before_swap()
            for unit in range(*nest.window[-1]):
                some = places[..., unit].ravel()
                yield some[(some >= 0) & (some < self.size * nest.per_byte)], unit

    def units_of(self, raw: Array) -> Array:
        """Return the stored units ``(*shape, units) uint8`` of unsigned elements."""
        return split_units(raw ^ raw.dtype.type(self.xor), self.bits, self.unit)

    def elements_of(self, units: Array) -> Array:
        """Return unsigned stored elements from their units ``(..., units)``."""
        return join_units(units, self._itemsize, self.unit)

    @property
    def _itemsize(self) -> int:
        return held_as(self.dtype).itemsize

    def __str__(self) -> str:
        first = self.nests[0]
        texts = [" and ".join(map(_rule, self.nests))]
        if first.big_endian:
            texts.append("highest bits first")
        if first.swap:
            texts.append(f"words of {first.swap} bytes swapped")
        letters = axis_letters(self.shape)
        texts += [f"{letters[axis]} from its end" for axis in self.flip]
        for name in ("xor", "fill", "blank"):
            if getattr(self, name):
                texts.append(f"{name} {getattr(self, name):#x}")
        texts += listed_parts(self.parts)
        return f"bits of {self.shape} {self.dtype}: {'; '.join(texts)}; {self.size} bytes"


def reading_of(nest: Layout) -> dict[str, Any]:
    """Return the fields of a nest that must be equal in all nests of a layout.

    They are the type of units, the size, and the order of bytes and of units in a byte.
    """
    return {name: getattr(nest, name) for name in ("dtype", "size", "swap", "big_endian")}


def _rule(nest: Layout) -> str:
    """Return the loops of a nest as text.

    Strides, and tiles of the axis of units, are in bits.
    """
    unit = nest.bits
    letters = [*axis_letters(nest.shape[:-1]), "b"]
    name_joined(letters, nest.join)
    text = ", ".join(_loop_text(loop, letters, unit) for loop in nest.loops)
    start, stop = nest.window[-1]
    if (start, stop) != (0, nest.shape[-1]):
        text = f"bits {start * unit} to {stop * unit - 1}: {text}"
    if nest.offset:
        text += f" from bit {nest.offset * unit}"
    return ", ".join([text, *starts_said(letters, nest.starts)])


def _loop_text(loop: Loop, letters: Sequence[str], unit: int) -> str:
    name = letters[loop.axis]
    tile = loop.tile
    if loop.axis == len(letters) - 1:
        tile *= unit
    if tile > 1:
        name += f"/{tile}"
    if loop.stride is None:
        return f"{name} packed"
    if isinstance(loop.stride, int):
        return f"{name} {loop.stride * unit}"
    shown = [str(stride * unit) for stride in loop.stride]
    return f"{name} ({', '.join(shown)})"


def completed(nest: Layout) -> Layout | None:
    """Return a nest with every tile completed along the axes of the tensor.

    The outermost tiles of an axis are repeated up to the next larger stride. The result is None if
    some loop has no stride, if axes are joined or begin inside of a tile, if every tile is full
    already, or if full tiles would overlap.
    """
    if nest.join or any(nest.starts) or any(loop.stride is None for loop in nest.loops):
        return None
    shape = list(nest.shape)
    strides = sorted(abs(loop.reach(1)) for loop in nest.loops)
    for axis, n in enumerate(nest.shape[:-1]):
        outer = [loop for loop in nest.loops if loop.axis == axis]
        if outer:
            wider = [stride for stride in strides if stride > abs(outer[0].reach(1))]
            blocks = -(-n // outer[0].tile)
            if wider:
                blocks = max(wider[0] // abs(outer[0].reach(1)), blocks)
            shape[axis] = blocks * outer[0].tile
    if tuple(shape) == nest.shape:
        return None
    window = (*((0, n) for n in shape[:-1]), nest.window[-1])
    try:
        return replace(nest, shape=tuple(shape), window=window, size=0)
    except ValueError:
        return None
