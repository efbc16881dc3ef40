"""What the bytes of a buffer mean: items of a stream, elements of a layout, fields of a register
map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from npulab.captures.target import Item
from npulab.layout import Found, Layout, Table
from npulab.layout.stored import elements_at, restore
from npulab.registers.fields import WORD_BYTES, Field, Piece
from npulab.registers.map import RegisterMap
from npulab.support.late import pd

MOST_KINDS = 31  # told apart, besides bytes that mean nothing
OTHER = "other"
FILL = "fill"
BYTE_BITS = 8
CHUNK = 2**20  # bytes
MOST_INDICES = 28  # along an axis that are told apart; more share a kind with their neighbours
PLACES = ("core", "channel", "plane", "row", "column")
FIRST, SECOND, SUMS, CONSTANT = "element", "next element", "sums", "constant"
NAMED, NEXT, UNNAMED, ADDRESS = "field", "next field", "without a name", "address"


class Meant(NamedTuple):
    """What a byte has a part of, in words, and which bytes that takes."""

    text: str
    first: int
    size: int


@dataclass(frozen=True, eq=False)
class OfItems:
    """The items of a stream, as ``Target.explain`` gives them, over ``size`` bytes."""

    items: Sequence[Item]
    size: int

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """What there is, in order; the last stands for all that is past the most that are told
        apart."""
        names = list(dict.fromkeys(str(item.kind) for item in self.items))
        return tuple(names if len(names) <= MOST_KINDS else [*names[: MOST_KINDS - 1], OTHER])

    @cached_property
    def starts(self) -> np.ndarray:
        return np.fromiter((item.bit for item in self.items), np.int64, len(self.items))

    @cached_property
    def ends(self) -> np.ndarray:
        """Ends of the items, each before the next begins; in the order of the items."""
        ends = self.starts + np.fromiter(
            (item.bits for item in self.items), np.int64, len(self.items)
        )
        ends[:-1] = np.minimum(ends[:-1], self.starts[1:])
        return ends

    def classes(self) -> np.ndarray:
        """What most bits of each byte are for, ``(size,) uint8``: 0 for nothing, else the place in
        ``kinds`` from 1."""
        number = {name: at for at, name in enumerate(self.kinds, 1)}
        of = np.fromiter(
            (number.get(str(item.kind), len(number)) for item in self.items),
            np.uint8,
            len(self.items),
        )
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
        """The items that a byte has a bit of."""
        low = int(np.searchsorted(self.ends, BYTE_BITS * byte, "right"))
        high = int(np.searchsorted(self.starts, BYTE_BITS * (byte + 1), "left"))
        return [_meant(item) for item in self.items[low:high]]


@dataclass(frozen=True, eq=False)
class OfLayout:
    """The elements of a layout in a buffer ``data (size,) uint8``; ``axis`` is the axis of the
    tensor that tells them apart, -1 tells neighbours apart."""

    layout: Layout | Table
    data: np.ndarray
    axis: int = -1

    def __post_init__(self) -> None:
        if self.layout.size > len(self.data):
            raise ValueError(
                f"items: got a layout of {self.layout.size} bytes, allowed is at most "
                f"{len(self.data)}, "
                "the bytes of the buffer"
            )

    @property
    def each(self) -> int:
        """Indices along the axis that share a kind: 1 where they are few."""
        return -(-self.layout.shape[self.axis] // MOST_INDICES)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Indices along the axis, or elements by turns; then what is no element."""
        if self.axis < 0:
            return FIRST, SECOND, FILL, SUMS, CONSTANT
        count, each = self.layout.shape[self.axis], self.each
        names = [
            f"{first}" if each == 1 else f"{first} to {min(first + each, count) - 1}"
            for first in range(0, count, each)
        ]
        return *(f"axis {self.axis}: {name}" for name in names), FILL, SUMS, CONSTANT

    @cached_property
    def places(self) -> np.ndarray:
        return self.layout.index_map().reshape(-1)

    @cached_property
    def owners(self) -> np.ndarray:
        """The number of each byte's element, -1 where it has none."""
        out = np.full(len(self.data), -1, np.int32)
        for copy in (0, *self.layout.copies):
            for at in range(self.layout.itemsize):
                there = np.flatnonzero((self.places >= 0) & (self.places + (copy + at) < len(out)))
                out[self.places[there] + (copy + at)] = there
        return out

    def classes(self) -> np.ndarray:
        """Elements by turns or by their index along the axis, fill, sums, constants; past the
        layout's end nothing.
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
        here = self.owners >= 0
        if self.axis < 0:
            out[here] = 1 + self.owners[here] % 2
        else:
            index = np.unravel_index(self.owners[here], self.layout.shape)[self.axis]
            out[here] = 1 + index // self.each
        return out

    def at(self, byte: int) -> list[Meant]:
        """The element of a byte, or the part of the layout that holds it."""
        layout, number = self.layout, int(self.owners[byte])
        if number < 0:
            return [
                Meant(str(part), part.offset, part.size)
                for part in layout.parts
                if part.offset <= byte < part.offset + part.size
            ]
        place = int(self.places[number])
        copy = next(one for one in (0, *layout.copies) if 0 <= byte - place - one < layout.itemsize)
        index = tuple(int(n) for n in np.unravel_index(number, layout.shape))
        stored = elements_at(
            self.data, np.array([place + copy]), layout.itemsize, layout.big_endian
        )
        value = restore(stored, layout.xor, layout.add).view(layout.dtype)[0]
        of = ""
        if layout.itemsize > 1:
            of = f", byte {byte - place - copy} of {layout.itemsize}"
        said = f"element {index} = {value}{f', a copy {copy:+d} bytes away' if copy else ''}{of}"
        return [Meant(said, place + copy, layout.itemsize)]


@dataclass(frozen=True, eq=False)
class OfMap:
    """The fields of a register map over words ``data (size,) uint8``, as a parameter block has them
    in memory.

    The words of one block lie at their registers' offsets, those of several one behind the other.
    """

    registers: RegisterMap
    data: np.ndarray

    kinds = (NAMED, NEXT, UNNAMED, ADDRESS)

    @cached_property
    def _places(self) -> list[int]:
        """The byte of each word."""
        several = len({block for block, _, _ in self.registers.registers}) > 1
        return [
            WORD_BYTES * word if several else offset
            for word, (_, offset, _) in enumerate(self.registers.registers)
        ]

    @cached_property
    def _bits(self) -> list[tuple[int, int, int]]:
        """(first bit, bits, field) of every run of bits that the buffer has whole."""
        out = [
            (BYTE_BITS * self._places[piece.word] + piece.lsb, piece.width, number)
            for number, item in enumerate(self.registers)
            for piece in item.pieces
        ]
        return sorted(one for one in out if one[0] + one[1] <= BYTE_BITS * len(self.data))

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        return tuple(self.registers)

    def classes(self) -> np.ndarray:
        """Fields by turns, addresses, and those without a name."""
        turn, items = 0, []
        for bit, bits, number in self._bits:
            item = self.fields[number]
            if item.automatic:
                name = UNNAMED
            elif item.address:
                name = ADDRESS
            else:
                name = (NAMED, NEXT)[turn]
            if name in (NAMED, NEXT):
                turn = 1 - turn
            items.append(Item(bit, bits, name))
        found = OfItems(items, len(self.data))
        number_of = np.array([0, *(self.kinds.index(name) + 1 for name in found.kinds)], np.uint8)
        return number_of[found.classes()]

    def at(self, byte: int) -> list[Meant]:
        """The fields that a byte has a bit of."""
        here = [
            number
            for bit, bits, number in self._bits
            if bit < BYTE_BITS * (byte + 1) and bit + bits > BYTE_BITS * byte
        ]
        return [self._meant(self.fields[number]) for number in dict.fromkeys(here)]

    def _meant(self, item: Field) -> Meant:
        places = [self._places[piece.word] for piece in item.pieces]
        words = np.zeros(len(self.registers), np.uint32)
        meant = "goes on past the end"
        if max(places) + WORD_BYTES <= len(self.data):
            for piece, place in zip(item.pieces, places, strict=True):
                words[piece.word] = np.frombuffer(
                    self.data[place : place + WORD_BYTES].tobytes(), "<u4"
                )[0]
            raw = int(item.extract(words))
            if item.address:
                meant = f"{raw:#x}"
            else:
                meant = f"{raw:#x} = {item.text(raw)}"
        where = " ".join(
            f"{self.registers.registers[piece.word][2]}[{_span(piece)}]" for piece in item.pieces
        )
        note = ""
        if item.note:
            note = f", {item.note}"
        return Meant(
            f"{item.name} {where} {meant}, evidence {item.evidence}{note}", places[0], WORD_BYTES
        )


Meaning = OfItems | OfLayout | OfMap


def meaning(items: Any, data: np.ndarray) -> Meaning:
    """What ``items`` say of bytes ``data (size,) uint8``: items, the table of ``explain``, a
    layout, a register map or what has one as ``map``.

    Raises TypeError for anything else.
    """
    if isinstance(items, Found):
        items = items.layout
    if (
        isinstance(items, Layout | Table)
        and (items.swap or items.bits < 8)
        and items.size <= len(data)
    ):
        items = items.items(data[: items.size], kind=FIRST)
    if isinstance(items, Layout | Table):
        return OfLayout(items, data)
    registers = items if isinstance(items, RegisterMap) else getattr(items, "map", None)
    if isinstance(registers, RegisterMap):
        return OfMap(registers, data)
    if hasattr(items, "itertuples"):
        items = [_item(row) for row in items.itertuples(index=False)]
    try:
        found = sorted(items, key=lambda item: item.bit)
    except (AttributeError, TypeError):
        raise TypeError(
            f"items: got {type(items).__name__}, allowed are items of a stream, the table of "
            "explain, a "
            "layout or a register map"
        ) from None
    return OfItems(found, len(data))


def _span(piece: Piece) -> str:
    if piece.width > 1:
        return f"{piece.lsb + piece.width - 1}:{piece.lsb}"
    return str(piece.lsb)


def _most(kinds: np.ndarray) -> np.ndarray:
    """The commonest of each row ``(n, 8) uint8``; of as many the first of the row."""
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
    places = [f"{name} {number}" for name in PLACES if (number := getattr(item, name)) is not None]
    several = ""
    if item.weights > 1:
        several = f", stands for {item.weights} weights"
    said = f"{item.kind} {', '.join(places)}".strip()
    where = f"{item.bits} bit{'s' * (item.bits != 1)} from byte {byte:#x} bit {bit}"
    return Meant(
        f"{said} = {item.value} ({item.value:#x}){several}, {where}", byte, max(end - byte, 1)
    )


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


def runs_of(data: np.ndarray, length: int) -> np.ndarray:
    """Bytes ``(size,) bool`` that lie in a run of at least ``length``, two or more, equal ones.

    >>> runs_of(np.array([7, 7, 7, 1, 1], np.uint8), 3).tolist()
    [True, True, True, False, False]
    """
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
