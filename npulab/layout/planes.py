"""Layouts of elements whose bits do not lie together: loops over the axes of a tensor and, as one
more axis, over the bits of an element."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace

import numpy as np
from numpy import ndarray as Array

from npulab.layout.nest import Layout, Loop, axis_letters
from npulab.layout.parts import Constant
from npulab.layout.stored import (
    ELEMENTS,
    LISTED,
    Buffer,
    Shape,
    Table,
    bytes_in,
    held_as,
    join_units,
    joined,
    raw_of,
    split_units,
    swap_words,
    values_of,
)


@dataclass(frozen=True)
class Planes:
    """Where each bit of each element of a tensor of ``shape`` lies.

    An element of ``dtype`` (``uint1`` to ``uint16``, ``int1`` to ``int16``, or another type of
    numpy) is a row of units of 1, 2, 4 or 8 bits, the lowest first. The ``nests`` are layouts of
    these units (their ``dtype`` says the unit) over the axes of the tensor and one last axis, the
    units of an element. Several nests have a ``window`` of that axis each: runs of bits with loops
    of their own. The nests count the axes ``flip`` from their last index. The stored element is
    ``raw ^ xor``. Tiles are completed with the element ``fill``; the other bits are those of
    ``parts``, else those of the byte ``blank``. Raises ValueError for nests that do not go
    together, and for bits taken twice.

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
        if self.dtype not in ELEMENTS:
            raise ValueError(f"dtype: got {self.dtype!r}, allowed is one of {', '.join(ELEMENTS)}")
        self._check_nests()
        for name, most in (("xor", self.bits), ("fill", self.bits), ("blank", 8)):
            value = getattr(self, name)
            if not 0 <= value < 2**most:
                raise ValueError(f"{name}: got {value}, allowed is 0 to {2**most - 1}")
        if not set(self.flip) <= set(range(len(self.shape))):
            raise ValueError(
                f"flip: got {self.flip}, allowed are axes from 0 to {len(self.shape) - 1}"
            )
        for part in self.parts:
            if part.offset < 0 or part.offset + part.size > self.size:
                raise ValueError(
                    f"{part}: got bytes {part.offset} to {part.offset + part.size}, allowed is 0 "
                    f"to {self.size}, the size"
                )

    def _check_nests(self) -> None:
        if not self.nests or self.unit > 8 or self.bits % self.unit:
            raise ValueError(
                f"nests: got units of {[nest.dtype for nest in self.nests]}, allowed are 1, 2, 4 "
                f"or 8 bits that divide the {self.bits} of an element"
            )
        first = self.nests[0]
        covered: list[int] = []
        for nest in self.nests:
            alike = (nest.dtype, nest.size, nest.swap, nest.big_endian)
            plain = not (nest.xor or nest.add or nest.fill or nest.copies or nest.parts)
            if alike != (first.dtype, first.size, first.swap, first.big_endian) or not plain:
                raise ValueError(
                    f"{nest}: got a nest unlike the first, allowed are nests of one dtype, size "
                    "and order of bytes, without fill, copies and parts of their own"
                )
            covered += range(*nest.window[-1])
            whole = tuple((0, n) for n in self.shape)
            if nest.shape != (*self.shape, self.units) or nest.window[:-1] != whole:
                raise ValueError(
                    f"{nest}: got shape {nest.shape}, allowed is {(*self.shape, self.units)} with "
                    "a window of the last axis only"
                )
        if sorted(covered) != list(range(self.units)):
            raise ValueError(
                f"nests: got the units {sorted(covered)}, allowed is each of 0 to "
                f"{self.units - 1} once"
            )
        if len(self.nests) > 1 and np.count_nonzero(self.taken()) < math.prod(first.shape):
            raise ValueError(f"nests: got two elements that share a bit in {self}")

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return ELEMENTS[self.dtype]

    @property
    def unit(self) -> int:
        """Bits of a unit: they lie together."""
        return self.nests[0].bits

    @property
    def units(self) -> int:
        """Units of an element."""
        return self.bits // self.unit

    @property
    def size(self) -> int:
        """Bytes of the buffer."""
        return self.nests[0].size

    def pack(self, tensor: Array) -> bytes:
        """Return the buffer, of ``size`` bytes, of a tensor of ``shape`` and ``dtype``.

        Raises ValueError for another shape or dtype.
        """
        tensor = np.asarray(tensor)
        kind = held_as(self.dtype)
        if tensor.shape != self.shape or tensor.dtype != kind:
            raise ValueError(
                f"tensor: got {tensor.dtype} {tensor.shape}, allowed is {kind} {self.shape}"
            )
        units = np.flip(self.units_of(raw_of(tensor, self.dtype)), self.flip)
        places = self.nests[0].opened(self.background())
        for nest in self.nests:
            nest.write_places(places, units[nest.inside])
        return self.closed(places).tobytes()

    def unpack(self, buffer: Buffer) -> Array:
        """Return the tensor of a buffer of ``size`` bytes; raises ValueError for another size."""
        data = bytes_in(buffer, "buffer")
        if len(data) != self.size:
            raise ValueError(f"buffer: got {len(data)} bytes, allowed is {self.size}")
        places = self.nests[0].opened(data)
        units = np.empty((*self.shape, self.units), np.uint8)
        for nest in self.nests:
            units[..., slice(*nest.window[-1])] = nest.read_places(places)[0]
        raw = self.elements_of(np.flip(units, self.flip))
        return values_of(raw ^ raw.dtype.type(self.xor), self.dtype)

    def recode(self, buffer: Buffer) -> bytes:
        """Return a buffer unpacked and packed again: it is unchanged if the layout accounts for
        every bit.
        """
        return self.pack(self.unpack(buffer))

    def index_map(self) -> Array:
        """Return where each bit lies, ``(*shape, bits) int64``, the lowest bit of an element first:
        bit ``n % 8`` (0 is the lowest) of byte ``n // 8``.
        """
        out = np.empty((*self.shape, self.units, self.unit), np.int64)
        for nest in self.nests:
            start, stop = nest.window[-1]
            # outside of its window a nest has no places
            places = nest.index_map()[..., start:stop, None] * self.unit
            out[..., start:stop, :] = places + np.arange(self.unit)
        return np.flip(out.reshape(*self.shape, self.bits), self.flip)

    def table(self) -> Table:
        """Return the places of units as a table, without a rule: units are elements of ``(*shape,
        units)`` there.
        """
        places = self.index_map()[..., :: self.unit] // self.unit
        shape = (*self.shape, self.units)
        return Table(shape, places, dtype=f"uint{self.unit}", size=self.size)

    def taken(self) -> Array:
        """True for each unit of the buffer that holds bits of an element, before words are
        swapped.
        """
        out = np.zeros(self.size * self.nests[0].per_byte, bool)
        for nest in self.nests:
            out[nest.places_before_swap()[nest.inside]] = True
        return out

    def background(self) -> Array:
        """Return a buffer without elements, ``(size,) uint8``."""
        out = np.full(self.size, self.blank, np.uint8)
        # parts come last, so that they may hold what neither byte nor element says
        if self.fill:
            places = self.nests[0].opened(out)
            filled = self.units_of(np.full(1, self.fill ^ self.xor, f"u{self._itemsize}"))[0]
            for some, unit in self.completed():
                places[some] = filled[unit]
            out = self.closed(places)
        for part in self.parts:
            row = np.frombuffer(part.data, np.uint8)
            out[part.offset : part.offset + part.size] = np.tile(row, part.repeat)
        return out

    def completed(self) -> Iterator[tuple[Array, int]]:
        """Yield the places of the elements with which tiles are completed, with the unit of each
        element that lies there.

        Loops without strides have short tiles in place of completed ones.
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
        """Return the units ``(*shape, units) uint8`` of unsigned elements, as they are stored."""
        return split_units(raw ^ raw.dtype.type(self.xor), self.bits, self.unit)

    def elements_of(self, units: Array) -> Array:
        """Return unsigned elements, as they are stored, from their units ``(..., units)``."""
        return join_units(units, self._itemsize, self.unit)

    @property
    def _itemsize(self) -> int:
        return held_as(self.dtype).itemsize

    def closed(self, places: Array) -> Array:
        """Return the bytes of a buffer from its units: the inverse of ``Layout.opened``."""
        first = self.nests[0]
        return swap_words(joined(places, self.unit, first.big_endian), first.swap)

    def __str__(self) -> str:
        first = self.nests[0]
        rules = []
        for nest in self.nests:
            rules.append(_rule(nest, self.unit))
        texts = [" and ".join(rules)]
        if first.big_endian:
            texts.append("highest bits first")
        if first.swap:
            texts.append(f"words of {first.swap} bytes swapped")
        letters = axis_letters(self.shape)
        texts += [f"{letters[axis]} from its end" for axis in self.flip]
        for name in ("xor", "fill", "blank"):
            if getattr(self, name):
                texts.append(f"{name} {getattr(self, name):#x}")
        texts += map(str, self.parts[:LISTED])
        if len(self.parts) > LISTED:
            texts.append(f"{len(self.parts) - LISTED} more parts")
        return f"bits of {self.shape} {self.dtype}: {'; '.join(texts)}; {self.size} bytes"


def _rule(nest: Layout, unit: int) -> str:
    """Return the loops of a nest as text, with tiles and strides in bits."""
    letters = [*axis_letters(nest.shape[:-1]), "b"]
    for group in nest.join:
        letters[group[0]] = f"({''.join(letters[axis] for axis in group)})"
    loops = []
    for loop in nest.loops:
        loops.append(_loop_text(loop, letters, loop.axis == len(letters) - 1, unit))
    text = ", ".join(loops)
    start, stop = nest.window[-1]
    if (start, stop) != (0, nest.shape[-1]):
        text = f"bits {start * unit} to {stop * unit - 1}: {text}"
    if nest.offset:
        text += f" from bit {nest.offset * unit}"
    for letter, at in zip(letters, nest.starts, strict=True):
        if at:
            text += f", {letter} from place {at} of its tile"
    return text


def _loop_text(loop: Loop, letters: Sequence[str], over_bits: bool, unit: int) -> str:
    name = letters[loop.axis]
    tile = loop.tile
    if over_bits:
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
    """Return a nest with every tile full along the axes of the tensor, up to the stride of the next
    loop; None if its tiles are not completed, or would overlap if they were.
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
