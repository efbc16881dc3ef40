"""Weight files: the data of constants that a MIL program states as ``BLOBFILE(path, offset)``.

A file has a header of 64 bytes, then for each constant a record of 64 bytes and its data. Header,
records and data start at multiples of 64 bytes; numbers are little-endian. The offset of a BLOBFILE
is that of a record; the record has the offset of its data, counted from the start of the file.
Source: Apple's MILBlob of coremltools (BlobDataType.hpp, StorageFormat.hpp). ``read`` also accepts
the faulty files that maderix/ANE writes, with warnings.
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
# A record that states this many bytes of data or more is taken as broken.
MOST_BYTES = 2**32
MOST_RECORDS = 2**15
HEADER, RECORD = STRUCTURES["weights header"], STRUCTURES["weights record"]


class Stored(NamedTuple):
    """How a weight file stores an element type.

    ``bits`` is the width of an element, ``code`` the number that a record has for the type,
    ``numpy`` the type of arrays in Python. Arrays of bf16 and fp8 hold the bits of an element as an
    unsigned integer.
    """

    bits: int
    numpy: str
    code: int


STORED: dict[str, Stored] = {}
_types = read_table(Path(__file__).with_name("types.csv"))
for _row in sorted(_types, key=lambda row: int(row["code"] or 0)):
    if _row["code"]:
        STORED[_row["name"]] = Stored(int(_row["bits"]), _row["numpy"], int(_row["code"]))
CODES = {kind.code: name for name, kind in STORED.items()}
# The bytes of each weight file by its path, or of a program's only weight file.
Files = Mapping[str, bytes] | bytes | None
# The MIL names of numpy's types; all types that are not listed have the same name in both.
USUAL = {"float16": "fp16", "float32": "fp32"}


@dataclass(frozen=True)
class Record:
    """A record of a weight file and its data.

    ``offset`` is the record's byte offset in the file, as a BLOBFILE states it; ``data_offset`` is
    that of its data. ``size`` is the number of data bytes, ``padding_bits`` the number of unused
    bits in the last byte. ``raw`` are the data bytes. Files have no names for records: ``name`` is
    given to ``read`` by its caller, else it is the offset in hexadecimal.
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
        """Return the elements as an array of ``shape``, without ``shape`` as a flat array.

        ``dtype`` replaces the record's type. bf16 and fp8 are returned as bits in unsigned
        integers, types of fewer than 8 bits with one element in each byte. Raises ValueError if
        ``shape`` contradicts the number of bytes, LookupError for an unknown type.
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
            # Elements of fewer than 8 bits need not fill the last byte.
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
    """The contents of a weight file: its records in order, and warnings about faults in the file.

    ``count`` is the number of records that the header states; it may be wrong.
    """

    count: int
    records: tuple[Record, ...]
    warnings: tuple[str, ...] = ()

    def __getitem__(self, key: str | int) -> Record:
        """Return the record with a name (text) or at a byte offset (number).

        Raises LookupError, which lists the records, for any other key.
        """
        for record in self.records:
            if key in (record.name, record.offset):
                return record
        known = [f"{record.name} ({record.offset})" for record in self.records]
        allowed = ", ".join(known) or "no record"
        raise LookupError(f"weights: got {key!r}, allowed is one of {allowed}")


class Written(NamedTuple):
    """The bytes of a weight file, and the byte offset of each weight's record by name."""

    data: bytes
    offsets: dict[str, int]

    def __repr__(self) -> str:
        return f"Written({len(self.data)} B, offsets {self.offsets})"


def write(
    weights: Mapping[str, Any], dtypes: Mapping[str, str] | None = None, count: int | None = None
) -> Written:
    """Return a weight file of the given arrays, in their order.

    A weight has the type of its array, or the type that ``dtypes`` states for its name: ``bf16``
    for the bits of bf16 in a uint16 array, ``uint4`` for a uint8 array with one element a byte. The
    header states ``count`` records, by default the number of weights, as Apple's writer does;
    maderix/ANE always writes 1. Raises ValueError for values that the type cannot hold, LookupError
    for an unknown type.

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
    """Return every record of the bytes of a weight file.

    ``names`` gives records a name by offset; other records are named ``0x40`` and so on. After a
    record's data the next record starts at the next multiple of 64 bytes, or right after the data.
    These faults become warnings:

    - header: it states another count than the file has records;
    - data offset: it is no multiple of 64; or it is 0, and then the data is read after the record;
    - size: it is no whole number of elements; or, if the data offset is 0, it does not reach to the
      next record or the end of the file, and then the data is read up to there;
    - padding bits: more than 7, more than the data has, or any for a type of whole bytes; then 0
      padding bits are assumed;
    - a record that is not at a multiple of 64, and bytes other than 0 after the last record.

    Raises ValueError, with the byte, for a file or record that is cut short, another version, a
    first record without its sentinel, more than 2**15 records, an unknown type, and data that
    overlaps a record, lies past the end or has 4 GiB or more.
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
    """Return the record at byte ``offset`` of a weight file, and warnings about its fields.

    Raises ValueError if no record starts at ``offset``, with a hint if a record's data does.
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
    """Return the bytes of the weight file at a path, None if ``files`` does not have it.

    ``files`` is a dictionary of bytes by path, or the bytes of one file for every path.
    """
    if isinstance(files, Mapping):
        return files.get(path)
    return files


def packed(values: Array, dtype: str) -> bytes:
    """Return the bytes that a weight file has for an array of elements.

    Elements of fewer than 8 bits follow each other without gaps, the first in the lowest bits of a
    byte.

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
    """Return ``count`` elements, read from the bytes ``(n,) uint8`` of a weight file.

    This is the inverse of ``packed``.

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
    """Return the bytes of a weight in type ``dtype``; raise ValueError for values outside of it."""
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
    """Return the record at byte ``at``; add warnings about its fields to ``warnings``.

    ``starts`` are the offsets at which records may start, as ``_sentinels`` returns them.
    """
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
    """Raise ValueError if a record's data leaves the file or overlaps the record itself.

    ``at`` is the record's byte offset, ``start`` that of its data, ``size`` the bytes of data.
    """
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
    """Return the byte offsets, multiples of 64 after the header, at which the sentinel stands."""
    words = np.frombuffer(data, "<u4", count=len(data) // 4)[ALIGN // 4 :: ALIGN // 4]
    return ALIGN * (np.flatnonzero(words == SENTINEL) + 1)


def _next(data: bytes, record: Record, warnings: list[str]) -> int | None:
    """Return the byte offset of the record that follows ``record``, None after the last.

    Adds warnings for an offset that is no multiple of 64 and for bytes after the last record.
    """
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
