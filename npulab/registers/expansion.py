"""Registers of any size, arrays of registers and blocks that repeat, as plain rows of words.

A table may have three more columns. ``bits`` is the size of a register (32 if blank): its
``offset`` may be any byte, ``lsb`` and ``width`` count inside the register, and a field may cross
words. ``count`` and ``stride`` (bytes) make an array of registers; several numbers in a cell make
several dimensions, the outermost first: register ``LUT`` of count ``4 8`` becomes ``LUT_0_0`` to
``LUT_3_7``.

A row that has a block but no register, ``lsb``, ``width`` and ``at`` says where the block lies::

    block,offset,field,value,count,stride
    LAYER,0x50100000,group layer,sparse,4 32,0x400000 4

``offset`` is the address of the block. ``count`` and ``stride`` say how often the block repeats and
at which distances in bytes, a number for each dimension; ``field`` names the dimensions. The value
``sparse`` says that no words lie between the registers of the block. For a block that is a command
(``registers.commands``), ``bits`` is its length; if ``count`` is the name of a field, that field
counts items that follow the command, of ``stride`` bytes each.

A block of records lies in buffers, not at an address; a fourth column, ``buffer``, names them::

    block,offset,bits,count,stride,buffer
    SCALE,16,80,,12,biases

``offset`` is the byte of the buffer at which the first record begins, ``bits`` the length of a
record (the words of the block if blank), ``stride`` the bytes from one record to the next (the
bytes of a record if blank), and ``count`` the most records (as many as the buffer holds if blank).
With a count, record n of a buffer is compared with record n of another buffer. Without a count,
records may have been inserted or removed, and each is compared with the record that resembles it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.registers.fields import WORD_BITS, WORD_BYTES, Cells, Row, pieces
from npulab.support.text import plural

BUFFER = "buffer"
SHAPE = ("bits", "count", "stride", BUFFER)  # the columns that this module adds to a table
SPARSE = "sparse"
MOST_BITS = 1024  # the most bits of a register
MOST_COPIES = 2**16  # the most copies of a register or of a block
BYTE_BITS = 8


class Place(NamedTuple):
    """The place of an address in a map: ``copy`` is the index, in each dimension, of a copy of the
    ``block``, and ``offset`` the bytes from the start of this copy.
    """

    block: str
    copy: tuple[int, ...]
    offset: int


class Held(NamedTuple):
    """The place of a block's records in each of some ``buffers``.

    ``offset`` is the byte of a buffer at which the first record begins, ``size`` the bytes of a
    record, ``stride`` the bytes from one record to the next; there are at most ``most`` records
    (None: as many as fit). A size or stride of 0 means that the table leaves it blank; ``filled``
    replaces it. The other methods need a size and a stride.
    """

    buffers: tuple[str, ...]
    offset: int = 0
    size: int = 0
    stride: int = 0
    most: int | None = None

    def fits(self, length: int) -> int:
        """How many whole records a buffer of ``length`` bytes holds, at most ``most``."""
        room = length - self.offset - self.size
        count = max(0, room // self.stride + 1)
        if self.most is None:
            return count
        return min(count, self.most)

    def end(self, length: int) -> int:
        """The first byte after the last record in a buffer of ``length`` bytes. If it holds no
        record, this is the byte at which the first record would begin, or the end of the buffer."""
        count = self.fits(length)
        if not count:
            return min(self.offset, length)
        last = self.offset + (count - 1) * self.stride
        return last + self.size

    def lying(self, data: bytes) -> Array:
        """The bytes of the records in a buffer, ``(N, size) uint8``, as a view."""
        count = self.fits(len(data))
        if not count:
            return np.zeros((0, self.size), np.uint8)
        strides = self.stride, 1
        return np.ndarray((count, self.size), np.uint8, data, self.offset, strides)

    def between(self, data: bytes) -> bytes:
        """The bytes of a buffer between one record and the next, of all gaps in their order."""
        count, gap = self.fits(len(data)), self.stride - self.size
        if count < 2 or not gap:
            return b""
        first = self.offset + self.size
        strides = self.stride, 1
        return np.ndarray((count - 1, gap), np.uint8, data, first, strides).tobytes()

    def filled(self, block: str, words: int) -> Held:
        """Return the same place with size and stride filled in, for a block of ``words`` words;
        raises ValueError for a record that is longer than these words, or than its stride."""
        where = f"register map, block {block!r}"
        size = self.size or WORD_BYTES * words
        stride = self.stride or size
        if size > WORD_BYTES * words:
            raise ValueError(
                f"{where}: got records of {BYTE_BITS * size} bits, allowed are at most "
                f"{WORD_BITS * words}, the bits of its {plural(words, 'word')}"
            )
        if stride < size:
            raise ValueError(
                f"{where}: got a stride of {stride} bytes, allowed are at least {size}, the bytes "
                "of a record"
            )
        return self._replace(size=size, stride=stride)


class Repeat(NamedTuple):
    """The place of a block and of its copies.

    ``base`` is the address of the first copy. ``counts``, ``strides`` (bytes) and ``names`` have an
    element for each dimension of the copies, the outermost first; ``names`` may be empty. If the
    block is ``sparse``, no words lie between its registers. If the block is a command, ``bits`` is
    its length (0: as long as the block's words); ``counted`` is the name of a field that counts
    items, and each item adds ``step`` bytes. If the block is a record, ``held`` is the place of the
    records in buffers.
    """

    base: int = 0
    counts: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    sparse: bool = False
    bits: int = 0
    counted: str = ""
    step: int = 0
    held: Held | None = None

    @property
    def copies(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """(index, address) of each copy; the index has a number for each dimension."""
        return ((index, self.base + at) for index, at in _copies(self.counts, self.strides))

    def labels(self, index: tuple[int, ...]) -> tuple[str, str]:
        """Return two labels of the copy with this index: the first for the outermost dimension,
        which is the unit, the second for all other dimensions.

        >>> Repeat(0, (4, 32), (0x1000, 4), ("group", "layer")).labels((1, 2))
        ('group 1', 'layer 2')
        """
        names = self.names or [f"copy {n}" for n in range(len(index))]
        unit, *rest = [f"{name} {n}" for name, n in zip(names, index, strict=True)] or [""]
        return unit, ", ".join(rest)


def expanded(rows: Iterable[Row]) -> tuple[Sequence[Row], Sequence[Row]]:
    """Return two lists: the rows of fields as plain rows of words, and the rows that say where
    blocks lie.

    If several registers share a word, the names of its fields get the register's name in front; so
    does the name of a field that crosses words, if another field of its block has the same name.
    The name of a split field gets the number of the copy in an array, and nothing else. Raises
    ValueError for a field that crosses its register, for a malformed offset, size, count or stride,
    and for the place of a block without registers.
    """
    rows = [*rows]
    if not shaped(rows):
        return [_without(row) for row in rows], []
    blocks, single = [], list[Cells]()
    for row in rows:
        if is_block(row):
            blocks.append(row)
        else:
            single += _array(row)
    unknown = {str(row["block"]) for row in blocks} - {str(row.get("block")) for row in single}
    if unknown:
        raise ValueError(
            f"register map, block {min(unknown)!r}: got a row with the place of a block "
            "without registers, allowed is the place of a block that has registers"
        )
    words: dict[tuple[Any, int], dict[str, None]] = {}
    for row in single:
        if row["bits"]:
            start, end = row["offset"], row["offset"] + row["bits"] // BYTE_BITS
            for word in range(start // WORD_BYTES, -(-end // WORD_BYTES)):
                # the registers of each word, each once and in the table's order (a dict keeps it):
                # their joined names are the word's name
                words.setdefault((row.get("block"), word), {})[row["register"]] = None
    names = Counter((row.get("block"), row.get("field")) for row in single)
    return [*chain.from_iterable(_word_rows(row, words, names) for row in single)], blocks


def shaped(rows: Iterable[Row]) -> bool:
    """True if a row uses a column that this module adds to a table, or says where a block lies."""
    return any(is_block(row) or not _blank(row, SHAPE) for row in rows)


def repeats(rows: Iterable[Row], features: Iterable[str]) -> dict[str, Repeat]:
    """Return the place of each block on a chip with these features; a key is the name of a block,
    ``rows`` are rows that say where blocks lie. Raises ValueError for a malformed cell, for cells
    that contradict each other, and if two rows of the chip are about the same block.
    """
    out: dict[str, Repeat] = {}
    for row in rows:
        block, where = str(row["block"]), f"register map, block {row['block']!r}"
        if row.get("feature") and row["feature"] not in features:
            continue
        if block in out:
            raise ValueError(
                f"{where}: got two rows with the block's place, allowed is one for each chip"
            )
        if not _blank(row, [BUFFER]):
            out[block] = Repeat(held=_held(row, where))
            continue
        base = _number(row, "offset", where) or 0
        counted, step = str(row.get("count") or "").strip(), 0
        counts, strides = tuple[int, ...](), tuple[int, ...]()
        # if the count is a name, the block is a command: the field of that name counts items
        if counted.isidentifier():
            step = _number(row, "stride", where) or 0
        else:
            counted = ""
            counts, strides = _shape(row, where)
        names, value = tuple(str(row.get("field") or "").split()), str(row.get("value") or "")
        if value not in ("", SPARSE):
            raise ValueError(f"{where}: got value {value!r}, allowed is blank or {SPARSE}")
        if names and len(names) != len(counts):
            raise ValueError(
                f"{where}: got {len(names)} names of dimensions ({' '.join(names)}), "
                f"allowed is one for each of {len(counts)} counts"
            )
        if base < 0 or base % WORD_BYTES:
            raise ValueError(
                f"{where}: got offset {row.get('offset')!r}, allowed is a multiple of "
                f"{WORD_BYTES} from 0"
            )
        bits = _size(row, where) or 0
        if counted and (not bits or step <= 0):
            raise ValueError(
                f"{where}: got count {counted}, which names a field, allowed is such a count in a "
                "row with bits and with a stride above 0"
            )
        out[block] = Repeat(base, counts, strides, names, value == SPARSE, bits, counted, step)
    return out


def _held(row: Row, where: str) -> Held:
    """Return the place of records in buffers; raises ValueError for malformed numbers, and if the
    columns ``field`` and ``value``, which are for blocks at an address, are not blank."""
    for name in ("field", "value"):
        if not _blank(row, [name]):
            raise ValueError(
                f"{where}: got {name} {row[name]!r} in a row with a buffer, allowed is a blank cell"
            )
    offset, stride = _number(row, "offset", where) or 0, _number(row, "stride", where)
    most = _number(row, "count", where)
    if offset < 0:
        raise ValueError(f"{where}: got offset {offset}, allowed is at least 0")
    for name, number in (("stride", stride), ("count", most)):
        if number is not None and number <= 0:
            raise ValueError(f"{where}: got {name} {number}, allowed is at least 1, or blank")
    size = (_size(row, where) or 0) // BYTE_BITS
    return Held(tuple(str(row[BUFFER]).split()), offset, size, stride or 0, most)


def sparse_blocks(rows: Iterable[Row]) -> set[str]:
    """Return the names of the blocks that a row calls sparse, for any chip."""
    return {str(row["block"]) for row in rows if row.get("value") == SPARSE}


def is_block(row: Row) -> bool:
    """True if a row says where a block lies."""
    return bool(row.get("block")) and _blank(row, ("register", "lsb", "width", "at"))


def _blank(row: Row, columns: Iterable[str]) -> bool:
    """True if all of these columns are blank in a row."""
    return all(row.get(name) in (None, "") for name in columns)


def _without(row: Row) -> Row:
    """Return a row without the columns that this module adds to a table."""
    return {name: value for name, value in row.items() if name not in SHAPE}


def _array(row: Row) -> Iterator[Cells]:
    """Yield the copies of a row of an array of registers, each with a number as ``offset`` and as
    ``bits``. A row without a size and a count is yielded once, with 0 as ``bits``.
    """
    plain = _without(row)
    where = f"register map, register {row.get('register')!r}"
    if not _blank(row, [BUFFER]):
        raise ValueError(
            f"{where}: got buffer {row[BUFFER]!r} in a row of a field, allowed is buffer in a row "
            "that says where a block lies"
        )
    counts, strides = _shape(row, where)
    bits, offset = _size(row, where), _number(row, "offset", where)
    if offset is not None and offset < 0:
        raise ValueError(f"{where}: got offset {offset}, allowed is at least 0")
    if not bits and not counts:
        yield {**plain, "bits": 0}
        return
    if not row.get("register"):
        column = "count" if counts else "bits"
        raise ValueError(
            f"{where}: got {column} in a row without a register, allowed is {column} in a row "
            "with a register"
        )
    for index, at in _copies(counts, strides):
        copy = {**plain, "offset": (offset or 0) + at, "bits": bits or WORD_BITS}
        if index:
            number = "_".join(map(str, index))
            copy["register"] = f"{row['register']}_{number}"
            # the name of a split field gets the number of the copy; otherwise, the pieces of all
            # copies would be one field
            if not _blank(row, ("at",)) and row.get("field"):
                copy["field"] = f"{row['field']}_{number}"
        yield copy


def _word_rows(
    row: Row,
    words: Mapping[tuple[Any, int], Mapping[str, None]],
    names: Mapping[tuple[Any, Any], int],
) -> Iterator[Cells]:
    """Yield the plain rows of a row, one for each word in which its field has bits; a row with 0 as
    ``bits`` is yielded without a change. ``words`` has the names of the registers in each word, by
    block and number of the word; ``names`` counts the rows by block and field.
    """
    plain, bits = _without(row), row["bits"]
    if not bits:
        yield dict(plain)
        return
    where = f"register map, field {row.get('field')!r} of register {row['register']!r}"
    lsb, width = _number(row, "lsb", where), _number(row, "width", where)
    split = _number(row, "at", where)
    if lsb is None or width is None or lsb < 0 or width <= 0 or lsb + width > bits:
        raise ValueError(
            f"{where}: got lsb {row.get('lsb')} width {row.get('width')}, allowed is "
            f"inside bits 0 to {bits - 1}"
        )
    first, byte = divmod(row["offset"], WORD_BYTES)
    parts = [*pieces(lsb + BYTE_BITS * byte, width)]
    registers = [words[row.get("block"), first + part.word] for part in parts]
    name, crosses = str(row.get("field") or ""), len(parts) > 1
    if name and split is None:
        repeated = crosses and names[row.get("block"), row.get("field")] > 1
        if repeated or any(len(register) > 1 for register in registers):
            name = f"{row['register']}.{name}"
        # without a number in ``at``, the pieces in different words would be separate fields
        if crosses:
            split = 0
    for part, register in zip(parts, registers, strict=True):
        run = {**plain, "field": name, "register": "_".join(register), "at": split}
        if split is not None:
            run["at"] = split + part.at
        run["offset"] = WORD_BYTES * (first + part.word)
        yield {**run, "lsb": part.lsb, "width": part.width}


def _shape(row: Row, where: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the counts and strides in a row; raises ValueError if the row has more counts
    than strides or fewer, for a number that is not above 0, and for more than ``MOST_COPIES``
    copies."""
    counts, strides = _numbers(row, "count", where), _numbers(row, "stride", where)
    # a negative count is taken as 0, because the product of two negative counts is above 0
    total = math.prod(max(count, 0) for count in counts)
    if len(counts) != len(strides) or not 1 <= total <= MOST_COPIES or min(strides, default=1) <= 0:
        raise ValueError(
            f"{where}: got count {row.get('count')!r} and stride "
            f"{row.get('stride')!r}, allowed are as many counts as strides, all above "
            f"0, for at most {MOST_COPIES} copies"
        )
    return counts, strides


def _size(row: Row, where: str) -> int | None:
    """Return the size in bits that a row states; None if the cell is blank. Raises ValueError for a
    size that is not a multiple of 8 from 8 to ``MOST_BITS``."""
    bits = _number(row, "bits", where)
    if bits is not None and not (0 < bits <= MOST_BITS and bits % BYTE_BITS == 0):
        raise ValueError(
            f"{where}: got bits {row['bits']!r}, allowed is a multiple of "
            f"{BYTE_BITS} up to {MOST_BITS}"
        )
    return bits


def _copies(counts: Sequence[int], strides: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield, for each copy, its index in each dimension and the bytes from the start of the first
    copy to its start.
    """
    for index in product(*map(range, counts)):
        yield index, sum(n * stride for n, stride in zip(index, strides, strict=True))


def _number(row: Row, column: str, where: str) -> int | None:
    """Return the whole number in a cell; None if the cell is blank. Raises ValueError for any other
    text."""
    numbers = _numbers(row, column, where)
    if len(numbers) > 1:
        raise ValueError(f"{where}: got {column} {row[column]!r}, allowed is a whole number")
    if numbers:
        return numbers[0]
    return None


def _numbers(row: Row, column: str, where: str) -> tuple[int, ...]:
    """Return the whole numbers in a cell, which are separated by blanks; raises ValueError for any
    other text."""
    text = ""
    if row.get(column) is not None:
        text = str(row[column])
    try:
        return tuple(int(number, 0) for number in text.split())
    except ValueError:
        raise ValueError(f"{where}: got {column} {text!r}, allowed are whole numbers") from None
