"""Weight files, into which the BLOBFILE constants of a MIL program point: a header, then records
and their data.

Everything is little-endian and starts at multiples of 64 bytes. The offset of a BLOBFILE is that
of the record; the record holds the place of its data, counted from the start of the file. Source:
Apple's MILBlob of coremltools (BlobDataType.hpp, StorageFormat.hpp); the odd files as maderix/ANE
writes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.layout.bitstream import bits_at, put_bits
from npulab.npus.ane.structures import STRUCTURES
from npulab.npus.kit import one_of, read_table, up

ALIGN = 64
VERSION = 2
SENTINEL = 0xDEADBEEF
MOST_BYTES = 2**32  # a size of this or more means a broken field
MOST_RECORDS = 2**15
HEADER, RECORD = STRUCTURES["weights header"], STRUCTURES["weights record"]


class Stored(NamedTuple):
    """How a file stores a type: ``bits`` of an element, the ``numpy`` type of arrays (of bf16 and
    fp8: an unsigned integer that holds the bits), and the ``code`` of the type in a record."""

    bits: int
    numpy: str
    code: int


STORED: dict[str, Stored] = {}
_types = read_table(Path(__file__).with_name("types.csv"))
for _row in sorted(_types, key=lambda row: int(row["code"] or 0)):
    if _row["code"]:
        STORED[_row["name"]] = Stored(int(_row["bits"]), _row["numpy"], int(_row["code"]))
CODES = {kind.code: name for name, kind in STORED.items()}
# the bytes of weight files by path, or of the only file
Files = Mapping[str, bytes] | bytes | None
USUAL = {"float16": "fp16", "float32": "fp32"}  # the names of numpy's types, if they differ


@dataclass(frozen=True)
class Record:
    """A record of a weight file and its data.

    ``offset`` is the byte of the record, as a BLOBFILE states it; ``data_offset`` is the byte of
    its data. ``size`` is the number of data bytes, ``padding_bits`` the number of unused bits in
    the last byte. The file has no names: ``name`` is what the caller of ``read`` gives, or
    the offset. ``raw`` are the data bytes.
    """

    name: str
    offset: int
    dtype: str
    size: int
    data_offset: int
    padding_bits: int = 0
    raw: memoryview = field(default=memoryview(b""), repr=False)

    @property
    def elements(self) -> int:
        return (8 * self.size - self.padding_bits) // STORED[self.dtype].bits

    def values(self, shape: Sequence[int] | None = None, dtype: str = "") -> Array:
        """Return the elements, flat or of a ``shape``; ``dtype`` replaces the type of the record.

        fp16 and fp32 are returned as floats, bf16 and fp8 as their bits; a type of fewer than 8
        bits has one element in each byte of the array. Raises ValueError if ``shape`` does not fit
        the number of bytes, LookupError for an unknown type.
        """
        dtype = dtype or self.dtype
        kind = STORED[one_of("dtype", dtype, STORED)]
        used = 8 * self.size
        slack = 0
        if kind.bits < 8:
            used -= self.padding_bits
        if shape is None:
            shape = (used // kind.bits,)
            wanted = "a whole number"
        else:
            wanted = f"{list(shape)}"
            # Bits of the last byte may be unused.
            if kind.bits < 8:
                slack = 7
        count = math.prod(shape)
        if not 0 <= used - count * kind.bits <= slack:
            raise ValueError(
                f"weights: record at byte {self.offset}, size: got {self.size} bytes, allowed are "
                f"the bytes of {wanted} of {dtype} ({kind.bits} bits each)"
            )
        return unpacked(np.frombuffer(self.raw, np.uint8), count, dtype).reshape(shape)


@dataclass(frozen=True)
class WeightFile:
    """The contents of a weight file: ``count`` of its header (which may be wrong), its records in
    order, and warnings, as ``read`` lists them."""

    count: int
    records: tuple[Record, ...]
    warnings: tuple[str, ...] = ()

    def __getitem__(self, key: str | int) -> Record:
        """Return the record of a name or at an offset.

        Raises LookupError, which lists the records, if there is none.
        """
        for record in self.records:
            if key in (record.name, record.offset):
                return record
        known = [f"{record.name} ({record.offset})" for record in self.records]
        allowed = ", ".join(known) or "no record"
        raise LookupError(f"weights: got {key!r}, allowed is one of {allowed}")


class Written(NamedTuple):
    """The bytes of a weight file, and the offset that a BLOBFILE needs for each weight."""

    data: bytes
    offsets: dict[str, int]

    def __repr__(self) -> str:
        return f"Written({len(self.data)} B, offsets {self.offsets})"


def write(
    weights: Mapping[str, Any], dtypes: Mapping[str, str] | None = None, count: int | None = None
) -> Written:
    """Return a weight file of arrays by name, in their order.

    The type is that of the array unless ``dtypes`` has another type of the same bits (``bf16`` of
    uint16, ``uint4`` of uint8, one element a byte, ...). ``count`` is the number in the header, by
    default that of the weights, as Apple writes it; maderix/ANE always writes 1. Raises ValueError
    for values that the type cannot hold, LookupError for an unknown type.

    >>> data, offsets = write({"a": np.zeros(3, np.float16), "b": np.ones((2, 2), np.float32)})
    >>> offsets, len(data), read(data)[192].values((2, 2)).tolist()
    ({'a': 64, 'b': 192}, 272, [[1.0, 1.0], [1.0, 1.0]])
    """
    dtypes = dtypes or {}
    extra = set(dtypes) - set(weights)
    if extra:
        raise LookupError(
            f"dtypes: got {', '.join(sorted(extra))}, allowed is one of {', '.join(weights)}"
        )
    if count is None:
        count = len(weights)
    header = {"count": count, "version": VERSION, "reserved": bytes(56)}
    data = bytearray(HEADER.build(header))
    offsets = {}
    for name, given in weights.items():
        array = np.asarray(given)
        dtype = dtypes.get(name) or USUAL.get(array.dtype.name, array.dtype.name)
        stored = _packed_weight(name, array, dtype)
        data += bytes(-len(data) % ALIGN)
        offsets[name] = len(data)
        record = {"sentinel": SENTINEL, "dtype": STORED[dtype].code, "size": len(stored)}
        record["offset"] = len(data) + ALIGN
        record["padding_bits"] = -array.size * STORED[dtype].bits % 8
        data += RECORD.build({**record, "reserved": bytes(32)}) + stored
    return Written(bytes(data), offsets)


def read(data: bytes, names: Mapping[int, str] | None = None) -> WeightFile:
    """Return every record of a weight file, with ``names`` by offset (else ``0x40`` and so on).

    The next record is at the first multiple of 64 bytes after the data of a record, or right after
    the data. These faults are warnings:

    - header: a count that is not the number of records;
    - data offset: 0, read as the byte after the record, or not a multiple of 64;
    - size: not a whole number of elements; or, after a data offset of 0, not the distance to the
      next record or the end of the file, which is then read instead;
    - padding bits: more than 7, more than the data has, or not 0 for a type of whole bytes; read as
      0;
    - a record that is not at a multiple of 64, and bytes other than 0 after the last record.

    Raises ValueError with the byte for a file or record that is cut short, another version, a first
    record without its sentinel, more than 2**15 records, an unknown dtype, and data that overlaps,
    lies past the end or is 4 GiB long.
    """
    data = bytes(data)
    _at_least(data, ALIGN, "header", 0)
    header = HEADER.parse(data[:ALIGN])
    if header.version != VERSION:
        raise ValueError(
            f"weights: header at byte 4, version: got {header.version}, allowed is {VERSION}"
        )
    warnings: list[str] = []
    records: list[Record] = []
    starts = _sentinels(data)
    at: int | None = None
    if len(data) > ALIGN:
        at = ALIGN
        if not _starts(data, at):
            raise ValueError(
                f"weights: record at byte {at}, sentinel: got bytes {data[at : at + 4].hex()}, "
                f"allowed is {SENTINEL:#x} in little-endian"
            )
    while at:
        if len(records) == MOST_RECORDS:
            raise ValueError(f"weights: record at byte {at}: got more than {MOST_RECORDS} records")
        name = (names or {}).get(at, hex(at))
        records.append(_record(data, at, name, starts, warnings))
        at = _next(data, records[-1], warnings)
    _refuse_overlap(records)
    if header.count != len(records):
        warnings.append(
            f"header at byte 0, count: says {header.count}, the file has {len(records)} records; "
            "BLOBFILE offsets do not depend on it"
        )
    return WeightFile(header.count, tuple(records), tuple(warnings))


def record_at(data: bytes, offset: int) -> tuple[Record, tuple[str, ...]]:
    """Return the record at the offset of a BLOBFILE, and warnings for odd fields.

    Raises ValueError if no record is there, with a hint if the offset is that of a record's data.
    """
    if not 0 <= offset <= len(data) - ALIGN:
        raise ValueError(
            f"weights: offset: got {offset}, allowed is 64 to {len(data) - ALIGN}, a record in the "
            "file"
        )
    if not _starts(data, offset):
        hint = ""
        if _starts(data, offset - ALIGN):
            hint = f"; the record is at {offset - ALIGN}, this is its data"
        raise ValueError(
            f"weights: offset: got {offset}, allowed is the place of a record (sentinel "
            f"{SENTINEL:#x}){hint}"
        )
    warnings: list[str] = []
    return _record(data, offset, hex(offset), _sentinels(data), warnings), tuple(warnings)


def file_at(files: Files, path: str) -> bytes | None:
    """Return the bytes of the weight file at a path, None if it was not given; ``files`` are the
    bytes of files by path, or of the only file."""
    if isinstance(files, Mapping):
        return files.get(path)
    return files


def packed(values: Array, dtype: str) -> bytes:
    """Return elements as bytes of the file; elements of fewer than 8 bits follow each other
    without gaps, from the lowest bit of each byte on.

    >>> packed(np.array([1, 2, 3]), "uint4").hex()
    '2103'
    """
    kind = STORED[one_of("dtype", dtype, STORED)]
    flat = np.ascontiguousarray(values).reshape(-1)
    if kind.bits >= 8:
        return flat.astype(kind.numpy).tobytes()
    codes = flat.astype(np.uint8) & np.uint8(2**kind.bits - 1)
    return put_bits(codes, kind.bits * np.arange(len(flat)), kind.bits * len(flat))


def unpacked(raw: Array, count: int, dtype: str) -> Array:
    """Return ``count`` elements of bytes ``(n,) uint8``: the inverse of ``packed``.

    >>> unpacked(np.array([0x21, 0x03], np.uint8), 3, "uint4").tolist()
    [1, 2, 3]
    """
    kind = STORED[one_of("dtype", dtype, STORED)]
    if kind.bits >= 8:
        return raw[: count * kind.bits // 8].view(kind.numpy)
    out = bits_at(raw.tobytes(), kind.bits * np.arange(count), kind.bits).astype(np.uint8)
    half = 2 ** (kind.bits - 1)
    if kind.numpy == "i1":
        return ((out ^ half).astype(np.int8) - half).astype(np.int8)
    return out


def _packed_weight(name: str, array: Array, dtype: str) -> bytes:
    """Return the bytes of a weight; raise ValueError if its type cannot hold the values."""
    bits = STORED[one_of("dtype", dtype, STORED)].bits
    numpy = np.dtype(STORED[dtype].numpy)
    wrong_size = numpy.kind == "f" and array.dtype.itemsize != numpy.itemsize
    if wrong_size or (numpy.kind == "f") != (array.dtype.kind == "f"):
        hint = ""
        if array.dtype.kind == "f" == numpy.kind:
            hint = ", rounded beforehand"
        raise ValueError(
            f"weights: {name}: got {array.dtype}, allowed for {dtype} is {numpy.name}{hint}"
        )
    low = 0
    if numpy.kind == "i":
        low = -(2 ** (bits - 1))
    high = low + 2**bits - 1
    if numpy.kind != "f" and array.size and not low <= int(array.min()) <= int(array.max()) <= high:
        raise ValueError(
            f"weights: {name}: got values {array.min()} to {array.max()}, allowed for {dtype} is "
            f"{low} to {high}"
        )
    return packed(array, dtype)


def _starts(data: bytes, at: int) -> bool:
    return at >= ALIGN and data[at : at + 4] == SENTINEL.to_bytes(4, "little")


def _at_least(data: bytes, end: int, what: str, at: int) -> None:
    if len(data) < end:
        raise ValueError(
            f"weights: {what} at byte {at}: got {len(data) - at} bytes, allowed is {ALIGN} or more"
        )


def _record(data: bytes, at: int, name: str, starts: Array, warnings: list[str]) -> Record:
    """Return the record at a byte, and add warnings for its odd fields."""
    _at_least(data, at + ALIGN, "record", at)
    raw = RECORD.parse(data[at : at + ALIGN])
    where = f"record at byte {at}"
    if raw.dtype not in CODES:
        raise ValueError(
            f"weights: {where}, dtype: got {raw.dtype}, allowed is {min(CODES)} to {max(CODES)}"
        )
    dtype = CODES[raw.dtype]
    size, start = int(raw.size), int(raw.offset)
    if size >= MOST_BYTES:
        raise ValueError(
            f"weights: {where}, size: got {size} bytes, allowed is up to {len(data) - at - ALIGN}"
        )
    if start == 0:
        start = at + ALIGN
        end = len(data)
        after = int(np.searchsorted(starts, start))
        if after < len(starts):
            end = int(starts[after])
        room = end - start
        warnings.append(
            f"{where}, data offset: says 0, the file's header; its data is taken from byte {start}"
        )
        if not room - ALIGN < size <= room:
            warnings.append(
                f"{where}, size: says {size} bytes, the next record or the end is {room} bytes "
                "away, which is taken"
            )
            size = room
    _refuse_place(data, at, start, size)
    spare = int(raw.padding_bits)
    bits = STORED[dtype].bits
    if spare >= 8 or spare > 8 * size or (spare and bits >= 8):
        warnings.append(
            f"{where}, padding bits: says {spare}, allowed is 0 to 7 of a type below a byte; 0 is "
            "taken"
        )
        spare = 0
    if (8 * size - spare) % bits:
        warnings.append(
            f"{where}, size: says {size} bytes, which is not a whole number of {dtype}; int8 data "
            "under the dtype of fp16 looks like that"
        )
    if start % ALIGN:
        warnings.append(f"{where}, data offset: says {start}, which is not a multiple of {ALIGN}")
    return Record(name, at, dtype, size, start, spare, memoryview(data)[start : start + size])


def _refuse_place(data: bytes, at: int, start: int, size: int) -> None:
    """Raise ValueError if the data of a record is not inside the file, or overlaps the record."""
    where = f"weights: record at byte {at}"
    if not ALIGN <= start <= len(data):
        raise ValueError(f"{where}, data offset: got {start}, allowed is {ALIGN} to {len(data)}")
    if start + size > len(data):
        raise ValueError(
            f"{where}, size: got {size} bytes from byte {start}, allowed is up to "
            f"{len(data) - start} in a file of {len(data)}"
        )
    if start < at + ALIGN and start + size > at:
        raise ValueError(
            f"{where}, data offset: got {start} and {size} bytes, which overlap the record"
        )


def _sentinels(data: bytes) -> Array:
    """Return the places of the sentinel at multiples of 64 bytes, after the header."""
    words = np.frombuffer(data, "<u4", count=len(data) // 4)[ALIGN // 4 :: ALIGN // 4]
    return ALIGN * (np.flatnonzero(words == SENTINEL) + 1)


def _next(data: bytes, record: Record, warnings: list[str]) -> int | None:
    """Return the place of the record after a record, None if it is the last."""
    end = max(record.data_offset + record.size, record.offset + ALIGN)
    for at in (up(end, ALIGN), end):
        if _starts(data, at):
            if at % ALIGN:
                warnings.append(f"record at byte {at}: is not at a multiple of {ALIGN}")
            return at
    if data[end:].strip(b"\0"):
        warnings.append(
            f"record at byte {record.offset}: {len(data) - end} bytes after its data are not a "
            "record"
        )
    return None


def _refuse_overlap(records: Sequence[Record]) -> None:
    runs = []
    for record in records:
        runs.append((record.offset, record.offset + ALIGN, record.offset))
        if record.size:
            runs.append((record.data_offset, record.data_offset + record.size, record.offset))
    runs.sort()
    for (_, end, before), (start, _, after) in pairwise(runs):
        if start < end:
            raise ValueError(
                f"weights: record at byte {after}: got byte {start}, which the record at byte "
                f"{before} takes up to {end}"
            )
