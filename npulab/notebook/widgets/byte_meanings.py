"""The meaning of each byte of a buffer: an item of a stream, an element of a layout, or a field of
a register map.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from npulab.captures.target import Item
from npulab.layout import Found, Layout, Table
from npulab.layout.stored import elements_at, restore
from npulab.registers.fields import WORD_BYTES, Field, Piece
from npulab.registers.map import RegisterMap
from npulab.support.late import pd
from npulab.support.text import plural

MOST_KINDS = 31  # the number of a kind has five bits, and 0 stands for no meaning
OTHER = "other"
FILL = "fill"
BYTE_BITS = 8
CHUNK = 2**20  # the kinds of this many bytes are found at once
MOST_INDICES = 28  # if an axis has more indices, neighbouring indices share a kind
PLACES = ("core", "channel", "plane", "row", "column")
FIRST, SECOND, SUMS, CONSTANT = "element", "next element", "sums", "constant"
NAMED, NEXT, UNNAMED, ADDRESS = "field", "next field", "without a name", "address"


class Meant(NamedTuple):
    """An item that has bits in a byte: a text about it, its first byte, and its size in bytes."""

    text: str
    first: int
    size: int


@dataclass(frozen=True, eq=False)
class OfItems:
    """The meaning of ``size`` bytes by items of a stream, as ``Target.explain`` returns them."""

    items: Sequence[Item]
    size: int

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of items, in the order in which they first occur; if there are more than
        ``MOST_KINDS``, the last place, "other", stands for all further kinds.
        """
        names = list(dict.fromkeys(str(item.kind) for item in self.items))
        if len(names) > MOST_KINDS:
            names[MOST_KINDS - 1 :] = [OTHER]
        return tuple(names)

    @cached_property
    def starts(self) -> ndarray:
        return np.fromiter((item.bit for item in self.items), np.int64, len(self.items))

    @cached_property
    def ends(self) -> ndarray:
        """The number of the bit after each item; an item that would overlap the next item ends
        where the next item begins.
        """
        bits = np.fromiter((item.bits for item in self.items), np.int64, len(self.items))
        ends = self.starts + bits
        ends[:-1] = np.minimum(ends[:-1], self.starts[1:])
        return ends

    def classes(self) -> ndarray:
        """Return for each byte the kind that most of its bits have, ``(size,) uint8``: 0 for none,
        else the place in ``kinds`` counted from 1.
        """
        of = pd.Index(self.kinds).get_indexer([str(item.kind) for item in self.items]) + 1
        of[of == 0] = len(self.kinds)  # kinds that have no place of their own share the last place
        out = np.zeros(self.size, np.uint8)
        for first in range(0, self.size, CHUNK):
            end = min(first + CHUNK, self.size)
            low = np.searchsorted(self.ends, BYTE_BITS * first, "right")
            high = np.searchsorted(self.starts, BYTE_BITS * end, "left")
            edges = np.stack([self.starts[low:high], self.ends[low:high]], 1).reshape(-1)
            edges = np.clip(edges, BYTE_BITS * first, BYTE_BITS * end)
            lengths = np.diff(edges, prepend=BYTE_BITS * first, append=BYTE_BITS * end)
            values = np.zeros(len(lengths), np.uint8)
            values[1::2] = of[low:high]
            out[first:end] = _most(np.repeat(values, lengths).reshape(-1, BYTE_BITS))
        return out

    def at(self, byte: int) -> list[Meant]:
        """Return the items that have a bit in a byte."""
        low = int(np.searchsorted(self.ends, BYTE_BITS * byte, "right"))
        high = int(np.searchsorted(self.starts, BYTE_BITS * (byte + 1), "left"))
        return [_meant(item) for item in self.items[low:high]]


@dataclass(frozen=True, eq=False)
class OfLayout:
    """The meaning of the bytes ``data (size,) uint8`` by the elements of a layout.

    An element's kind is its index along ``axis`` of the tensor; if ``axis`` is -1, two kinds
    alternate.
    """

    layout: Layout | Table
    data: ndarray
    axis: int = -1

    def __post_init__(self) -> None:
        if self.layout.size > len(self.data):
            raise ValueError(
                f"items: got a layout of {self.layout.size} bytes, allowed is at most "
                f"{len(self.data)}, the bytes of the buffer"
            )

    @property
    def each(self) -> int:
        """How many neighbouring indices along the axis share a kind, so that there are at most
        ``MOST_INDICES`` kinds.
        """
        return -(-self.layout.shape[self.axis] // MOST_INDICES)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The names of the kinds of bytes in the legend: ranges of indices along the axis, then
        fill, checksums and constants. Without an axis two kinds alternate from element to element.
        """
        if self.axis < 0:
            return FIRST, SECOND, FILL, SUMS, CONSTANT
        count, each = self.layout.shape[self.axis], self.each
        names = []
        for first in range(0, count, each):
            name = f"axis {self.axis}: {first}"
            if each > 1:
                name += f" to {min(first + each, count) - 1}"
            names.append(name)
        return *names, FILL, SUMS, CONSTANT

    @cached_property
    def places(self) -> ndarray:
        return self.layout.index_map().reshape(-1)

    @cached_property
    def owners(self) -> ndarray:
        """For each byte the number of the element in it, -1 if there is no element."""
        out = np.full(len(self.data), -1, np.int32)
        for copy in (0, *self.layout.copies):
            for byte in range(self.layout.itemsize):
                shifted = self.places + (copy + byte)
                numbers = np.flatnonzero((self.places >= 0) & (shifted < len(out)))
                out[shifted[numbers]] = numbers
        return out

    def classes(self) -> ndarray:
        """Return the kind of each byte, ``(size,) uint8``: its place in ``kinds`` counted from 1,
        or 0 for bytes without a meaning.
        """
        out = np.zeros(len(self.data), np.uint8)
        size = self.layout.size
        fill = self.data[:size] == self.layout.blank(size)
        out[:size] = np.where(fill, self.kinds.index(FILL) + 1, 0)
        for part in self.layout.parts:
            name = CONSTANT
            if hasattr(part, "axis"):
                name = SUMS
            out[part.offset : part.offset + part.size] = self.kinds.index(name) + 1
        owned = self.owners >= 0
        numbers = self.owners[owned]
        if self.axis < 0:
            out[owned] = 1 + numbers % 2
        else:
            index = np.unravel_index(numbers, self.layout.shape)[self.axis]
            out[owned] = 1 + index // self.each
        return out

    def at(self, byte: int) -> list[Meant]:
        """Return the element that a byte belongs to, or else the parts of the layout
        (checksums, constants) that the byte lies in.
        """
        layout, number = self.layout, int(self.owners[byte])
        if number < 0:
            parts = []
            for part in layout.parts:
                if part.offset <= byte < part.offset + part.size:
                    parts.append(Meant(str(part), part.offset, part.size))
            return parts
        place = int(self.places[number])
        for copy in (0, *layout.copies):
            first = place + copy
            if first <= byte < first + layout.itemsize:
                break
        index = tuple(map(int, np.unravel_index(number, layout.shape)))
        stored = elements_at(self.data, np.array([first]), layout.itemsize, layout.big_endian)
        value = restore(stored, layout.xor, layout.add).view(layout.dtype)[0]
        text = f"element {index} = {value}"
        if copy:
            text += f", a copy {copy:+d} bytes away"
        if layout.itemsize > 1:
            text += f", byte {byte - first} of {layout.itemsize}"
        return [Meant(text, first, layout.itemsize)]


@dataclass(frozen=True, eq=False)
class OfMap:
    """The meaning of a parameter block, ``data (size,) uint8``, by the fields of a register map.

    The words lie at the offsets of their registers; but if the map has several blocks, its words
    lie one after the other.
    """

    registers: RegisterMap
    data: ndarray

    kinds = (NAMED, NEXT, UNNAMED, ADDRESS)

    @cached_property
    def _word_offsets(self) -> list[int]:
        """The byte offset in the buffer of each word of the map."""
        registers = self.registers.registers
        if len({block for block, _, _ in registers}) > 1:
            return [*range(0, WORD_BYTES * len(registers), WORD_BYTES)]
        return [offset for _, offset, _ in registers]

    @cached_property
    def _runs_of_bits(self) -> list[tuple[int, int, int]]:
        """(first bit in the buffer, number of bits, index of the field) of each piece of a field
        that lies wholly in the buffer, sorted.
        """
        runs = []
        for number, item in enumerate(self.registers):
            for piece in item.pieces:
                first = BYTE_BITS * self._word_offsets[piece.word] + piece.lsb
                if first + piece.width <= BYTE_BITS * len(self.data):
                    runs.append((first, piece.width, number))
        return sorted(runs)

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        return tuple(self.registers)

    def classes(self) -> ndarray:
        """Return the kind of each byte, ``(size,) uint8``: its place in ``kinds`` counted from 1,
        or 0; two kinds alternate for fields that have a name and are no address.
        """
        turns = itertools.cycle((NAMED, NEXT))
        items = []
        for bit, bits, number in self._runs_of_bits:
            item = self.fields[number]
            if item.automatic:
                name = UNNAMED
            elif item.address:
                name = ADDRESS
            else:
                name = next(turns)
            items.append(Item(bit, bits, name))
        found = OfItems(items, len(self.data))
        number_of = np.array([0, *(self.kinds.index(name) + 1 for name in found.kinds)], np.uint8)
        return number_of[found.classes()]

    def at(self, byte: int) -> list[Meant]:
        """Return the fields that have a bit in a byte."""
        numbers: dict[int, None] = {}
        for bit, bits, number in self._runs_of_bits:
            if bit < BYTE_BITS * (byte + 1) and bit + bits > BYTE_BITS * byte:
                numbers[number] = None
        return [self._meant(self.fields[number]) for number in numbers]

    def _meant(self, item: Field) -> Meant:
        words = np.zeros(len(self.registers), np.uint32)
        value = ""
        where = []
        for piece in item.pieces:
            offset = self._word_offsets[piece.word]
            word = self.data[offset : offset + WORD_BYTES].tobytes()
            if len(word) < WORD_BYTES:
                value = "goes on past the end"
            words[piece.word] = int.from_bytes(word, "little")
            _, _, register = self.registers.registers[piece.word]
            where.append(f"{register}[{_span(piece)}]")
        if not value:
            raw = int(item.extract(words))
            value = f"{raw:#x}"
            if not item.address:
                value += f" = {item.text(raw)}"
        text = f"{item.name} {' '.join(where)} {value}, evidence {item.evidence}"
        if item.note:
            text += f", {item.note}"
        return Meant(text, self._word_offsets[item.pieces[0].word], WORD_BYTES)


Meaning = OfItems | OfLayout | OfMap


def meaning(items: Any, data: ndarray) -> Meaning:
    """Return the meaning of the bytes ``data (size,) uint8``.

    ``items`` are the items of a stream, the table of ``explain``, a layout, a register map, or an
    object that has a register map as ``map``. Raises TypeError for anything else.
    """
    if isinstance(items, Found):
        items = items.layout
    if isinstance(items, Layout | Table):
        # a layout whose elements share bytes, or lie in swapped words, becomes items of bits
        in_bytes = items.bits >= BYTE_BITS and not items.swap
        if in_bytes or items.size > len(data):
            return OfLayout(items, data)
        items = items.items(data[: items.size], kind=FIRST)
    for registers in (items, getattr(items, "map", None)):
        if isinstance(registers, RegisterMap):
            return OfMap(registers, data)
    if hasattr(items, "itertuples"):
        items = [_item(row) for row in items.itertuples(index=False)]
    try:
        found = sorted(items, key=lambda item: item.bit)
    except (AttributeError, TypeError):
        raise TypeError(
            f"items: got {type(items).__name__}, allowed are items of a stream, the table of "
            "explain, a layout or a register map"
        ) from None
    return OfItems(found, len(data))


def _span(piece: Piece) -> str:
    if piece.width > 1:
        return f"{piece.lsb + piece.width - 1}:{piece.lsb}"
    return str(piece.lsb)


def _most(kinds: ndarray) -> ndarray:
    """Return the commonest number in each row of ``kinds (n, 8) uint8``; of equally common numbers,
    the number that occurs first in the row.
    """
    out = kinds[:, 0].copy()
    mixed = np.flatnonzero((kinds != out[:, None]).any(1))
    if len(mixed):
        rows = kinds[mixed]
        counts = (rows[:, :, None] == rows[:, None, :]).sum(2)
        out[mixed] = rows[np.arange(len(rows)), counts.argmax(1)]
    return out


def _meant(item: Item) -> Meant:
    byte, bit = divmod(item.bit, BYTE_BITS)
    end = -(-(item.bit + item.bits) // BYTE_BITS)
    places = []
    for name in PLACES:
        number = getattr(item, name)
        if number is not None:
            places.append(f"{name} {number}")
    text = f"{item.kind} {', '.join(places)}".strip()
    text += f" = {item.value} ({item.value:#x})"
    if item.weights > 1:
        text += f", stands for {item.weights} weights"
    text += f", {plural(item.bits, 'bit')} from byte {byte:#x} bit {bit}"
    return Meant(text, byte, max(end - byte, 1))


def _item(row: Any) -> Item:
    places = {name: int(getattr(row, name)) for name in PLACES if not pd.isna(getattr(row, name))}
    return Item(
        BYTE_BITS * int(row.byte) + int(row.bit),
        int(row.bits),
        str(row.kind),
        int(row.value),
        weights=int(row.weights),
        **places,
    )


def runs_of(data: ndarray, length: int) -> ndarray:
    """Return True for each byte that lies in a run of at least ``length`` equal bytes, ``(size,)
    bool``.

    ``length`` is at least 2.

    >>> runs_of(np.array([7, 7, 7, 1, 1], np.uint8), 3).tolist()
    [True, True, True, False, False]
    """
    # doubling: n + m equal bytes (m < n) begin where n begin, and n begin again m bytes later
    window, have = data[:-1] == data[1:], 1
    while have < length - 1:
        step = min(have, length - 1 - have)
        window, have = window[:-step] & window[step:], have + step
    out = np.zeros(len(data), bool)
    out[: len(window)] = window
    have = 1
    while have < length:
        step = min(have, length - have)
        grown = out.copy()
        grown[step:] |= out[:-step]
        out, have = grown, have + step
    return out
