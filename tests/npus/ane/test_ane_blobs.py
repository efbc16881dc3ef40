"""Weight files of BLOBFILE constants and surfaces: bytes, round trips, quirks, refusals."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ane_writers import allocated, strides, unpack_columns
from hypothesis import given, strategies as st

from npulab.npus.ane import memory
from npulab.npus.ane.training import blobs

HALVES = np.arange(6, dtype=np.float16).reshape(2, 3)


def record(dtype: int, size: int, offset: int, padding: int = 0) -> bytes:
    return struct.pack("<IIQQQ32x", 0xDEADBEEF, dtype, size, offset, padding)


def header(count: int = 1, version: int = 2) -> bytes:
    return struct.pack("<II56x", count, version)


# Files


def test_one_weight_as_the_training_writes_it() -> None:
    """build_blob: bytes 0 and 4, the record at 64, its data at 128."""
    expected = bytearray(128 + 12)
    expected[0], expected[4], expected[64:69] = 1, 2, b"\xef\xbe\xad\xde\x01"
    expected[72:76], expected[80:84] = struct.pack("<I", 12), struct.pack("<I", 128)
    expected[128:] = HALVES.tobytes()
    data, offsets = blobs.write({"W": HALVES})
    assert (data, offsets) == (bytes(expected), {"W": 64})
    found = blobs.read(data, {64: "W"})
    assert found.warnings == ()
    assert found["W"] == found[64]
    assert np.array_equal(found["W"].values((2, 3)), HALVES)


def test_records_follow_each_other() -> None:
    """Of sizes that are multiples of 64 the k-th is at 64 + k * (64 + size)."""
    weights = {f"w{k}": np.full((8, 8), k, np.float16) for k in range(3)}
    data, offsets = blobs.write(weights, count=1)
    assert list(offsets.values()) == [64 + k * (64 + 128) for k in range(3)]
    found = blobs.read(data)
    assert [one.offset for one in found.records] == list(offsets.values())
    assert found.warnings == (
        "header at byte 0, count: says 1, the file has 3 records; BLOBFILE offsets do not depend "
        "on it",
    )
    assert blobs.read(blobs.write(weights).data).warnings == ()


SAMPLES = {
    "fp16": "<f2",
    "fp32": "<f4",
    "uint8": "u1",
    "int8": "i1",
    "bf16": "<u2",
    "int16": "<i2",
    "uint16": "<u2",
    "int32": "<i4",
    "uint32": "<u4",
    "uint1": "u1",
    "uint2": "u1",
    "uint3": "u1",
    "uint4": "u1",
    "int4": "i1",
    "uint6": "u1",
    "fp8e4m3fn": "u1",
    "fp8e5m2": "u1",
}
BITS = {"uint1": 1, "uint2": 2, "uint3": 3, "uint4": 4, "int4": 4, "uint6": 6}


def sample(dtype: str, count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    kind = np.dtype(SAMPLES[dtype])
    if kind.kind == "f":
        return rng.standard_normal(count).astype(kind)
    if dtype in BITS:
        low = -8 if kind.kind == "i" else 0
        return rng.integers(low, low + 2 ** BITS[dtype], count).astype(kind)
    span = np.iinfo(kind)
    return rng.integers(span.min, span.max, count, kind, endpoint=True)


@given(
    st.lists(st.tuples(st.sampled_from(sorted(SAMPLES)), st.integers(0, 70)), max_size=6),
    st.integers(0, 99),
)
def test_round_trip(kinds: list[tuple[str, int]], seed: int) -> None:
    weights = {f"w{at}": sample(dtype, count, seed + at) for at, (dtype, count) in enumerate(kinds)}
    data, offsets = blobs.write(weights, {f"w{at}": dtype for at, (dtype, _) in enumerate(kinds)})
    found = blobs.read(data, {at: name for name, at in offsets.items()})
    assert found.warnings == ()
    assert found.count == len(kinds)
    for (dtype, count), (name, array), one in zip(
        kinds, weights.items(), found.records, strict=True
    ):
        assert (one.name, one.dtype, one.elements, one.data_offset % 64) == (name, dtype, count, 0)
        assert np.array_equal(one.values(), array)
        assert np.array_equal(one.values((count,)), array)
        assert one.values().dtype == array.dtype
        again, warnings = blobs.record_at(data, one.offset)
        assert (replace(again, name=name), warnings) == (one, ())


@pytest.mark.parametrize("dtype", sorted(BITS))
def test_small_types_bit_by_bit(dtype: str) -> None:
    """Element n is at bits n * width, lowest bit first."""
    values, bits = sample(dtype, 13, 5), BITS[dtype]
    raw = int.from_bytes(blobs.packed(values, dtype), "little")
    assert [raw >> (bits * n) & (2**bits - 1) for n in range(13)] == [
        int(v) % 2**bits for v in values
    ]
    data, _ = blobs.write({"w": values}, {"w": dtype})
    one = blobs.read(data).records[0]
    assert (one.size, one.padding_bits) == (-(-13 * bits // 8), -13 * bits % 8)


def test_int8_under_the_dtype_of_fp16() -> None:
    """The probe of int8 weights leaves dtype 1; odd sizes show it, and the program's type
    overrules it.
    """
    data = header() + record(1, 5, 128) + bytes([255, 1, 2, 3, 4])
    found = blobs.read(data)
    assert (
        "record at byte 64, size: says 5 bytes, which is not a whole number of fp16"
        in found.warnings[0]
    )
    assert found.records[0].values(dtype="int8").tolist() == [-1, 1, 2, 3, 4]
    with pytest.raises(
        ValueError,
        match=r"record at byte 64, size: got 5 bytes, allowed are the bytes of a whole number "
        r"of fp16 \(16 bits each\)",
    ):
        found.records[0].values()


def test_data_offset_of_zero() -> None:
    """The benchmark writes neither offset nor, but for 512 channels, size: never byte 0, never
    silently.
    """
    one, two = np.arange(32, dtype=np.float16), np.arange(32, 64, dtype=np.float16)
    data = header() + record(1, 0x80000, 0) + one.tobytes() + record(1, 64, 0) + two.tobytes()
    found = blobs.read(data)
    assert [record.data_offset for record in found.records] == [128, 256]
    assert [record.values().tolist() for record in found.records] == [one.tolist(), two.tolist()]
    assert [text[: text.index(":")] for text in found.warnings] == [
        "record at byte 64, data offset",
        "record at byte 64, size",
        "record at byte 192, data offset",
        "header at byte 0, count",
    ]
    assert blobs.record_at(data, 192)[1] == (
        "record at byte 192, data offset: says 0, the file's header; its data is taken from byte 256",
    )


def test_records_without_alignment() -> None:
    data = header(2) + record(1, 4, 128) + b"abcd" + record(1, 2, 196) + b"ef"
    found = blobs.read(data)
    assert [one.offset for one in found.records] == [64, 132]
    assert "record at byte 132: is not at a multiple of 64" in found.warnings


def test_what_follows_is_told() -> None:
    assert blobs.read(header() + record(1, 2, 128) + b"ab" + bytes(62)).warnings == ()
    assert blobs.read(header() + record(1, 2, 128) + b"ab" + b"c").warnings == (
        "record at byte 64: 1 bytes after its data are not a record",
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "header at byte 0: got 0 bytes, allowed is 64 or more"),
        (header(version=1), "header at byte 4, version: got 1, allowed is 2"),
        (
            header() + bytes(64),
            "record at byte 64, sentinel: got bytes 00000000, allowed is 0xdeadbeef",
        ),
        (
            header() + record(1, 0, 128)[:40],
            "record at byte 64: got 40 bytes, allowed is 64 or more",
        ),
        (header() + record(99, 0, 128), "record at byte 64, dtype: got 99, allowed is 1 to 17"),
        (
            header() + record(1, 4, 128) + b"ab",
            "record at byte 64, size: got 4 bytes from byte 128, allowed is up to 2",
        ),
        (
            header() + record(1, 2**32, 128),
            "record at byte 64, size: got 4294967296 bytes, allowed is up to 0",
        ),
        (
            header() + record(1, 2**64 - 1, 0),
            "record at byte 64, size: got 18446744073709551615 bytes",
        ),
        (
            header() + record(1, 0, 2**63),
            "record at byte 64, data offset: got 9223372036854775808, allowed is 64 to 128",
        ),
        (
            header() + record(1, 2, 10) + b"ab",
            "record at byte 64, data offset: got 10, allowed is 64",
        ),
        (
            header() + record(1, 4, 100) + b"abcd",
            "record at byte 64, data offset: got 100 and 4 bytes, which overlap the",
        ),
    ],
)
def test_broken_files(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=r"^weights: ") as found:
        blobs.read(data)
    assert words in str(found.value)


def test_overlap_is_refused_with_its_record() -> None:
    data = header(2) + record(1, 64, 128) + bytes(64) + record(1, 64, 128) + bytes(64)
    with pytest.raises(
        ValueError,
        match="record at byte 192: got byte 128, which the record at byte 64 takes up to 192",
    ):
        blobs.read(data)


def test_an_offset_of_the_data_is_explained() -> None:
    data, _ = blobs.write({"W": HALVES})
    with pytest.raises(
        ValueError, match=r"offset: got 128, .*; the record is at 64, this is its data"
    ):
        blobs.record_at(data + bytes(64), 128)
    with pytest.raises(ValueError, match="offset: got 0, allowed is the place of a record"):
        blobs.record_at(data, 0)
    with pytest.raises(ValueError, match="offset: got 999, allowed is 64 to 76"):
        blobs.record_at(data, 999)


@pytest.mark.parametrize(
    ("weights", "dtypes", "words"),
    [
        ({"w": np.zeros(2)}, {}, "dtype: got 'float64', allowed is one of fp16"),
        (
            {"w": np.zeros(2)},
            {"w": "fp16"},
            "w: got float64, allowed for fp16 is float16, rounded beforehand",
        ),
        (
            {"w": np.array([16], np.uint8)},
            {"w": "uint4"},
            "w: got values 16 to 16, allowed for uint4 is 0 to 15",
        ),
        (
            {"w": np.array([-9], np.int8)},
            {"w": "int4"},
            "w: got values -9 to -9, allowed for int4 is -8 to 7",
        ),
        (
            {"w": np.zeros(2, np.float16)},
            {"w": "bf16"},
            "w: got float16, allowed for bf16 is uint16",
        ),
        ({"w": HALVES}, {"v": "fp16"}, "dtypes: got v, allowed is one of w"),
    ],
)
def test_what_cannot_be_written(
    weights: dict[str, Any], dtypes: dict[str, str], words: str
) -> None:
    with pytest.raises((ValueError, LookupError)) as found:
        blobs.write(weights, dtypes)
    assert words in str(found.value)


MUTANT, _ = blobs.write(
    {"a": HALVES, "b": sample("uint4", 9, 1), "c": np.zeros((8, 8), np.float32)}, {"b": "uint4"}
)


@pytest.mark.parametrize("count", [400, pytest.param(20_000, marks=pytest.mark.long)])
def test_mutated_files(count: int) -> None:
    """Bytes changed, cut off and repeated: a ValueError or a file within its bytes, nothing
    else.
    """
    rng = np.random.default_rng(count)
    read, refused = 0, []
    for _ in range(count):
        data = bytearray(MUTANT)
        for _ in range(int(rng.integers(1, 5))):
            at = int(
                rng.choice(
                    [*range(8), *range(64, 96), *range(192, 224), int(rng.integers(len(data)))]
                )
            )
            data[at % len(data)] = int(rng.choice([0, 1, 64, 128, 255, int(rng.integers(256))]))
        data = data[: int(rng.integers(len(data) + 1))] if rng.random() < 0.3 else data
        try:
            found = blobs.read(bytes(data))
        except ValueError as error:
            refused.append(str(error))
            continue
        read += 1
        assert all(
            64 <= one.data_offset <= one.data_offset + one.size <= len(data)
            for one in found.records
        )
    assert read
    assert refused
    assert all(text.startswith("weights: ") and " at byte " in text for text in refused)


# Surfaces


@given(st.integers(1, 5), st.integers(1, 70))
def test_surface_against_plain_loops(channels: int, columns: int) -> None:
    tensor = np.arange(channels * columns, dtype=np.float16).reshape(channels, columns) + 1
    row = strides((1, channels, 1, columns)).row
    expected = bytearray(row * channels)
    for c in range(channels):
        for s in range(columns):
            expected[c * row + 2 * s : c * row + 2 * s + 2] = tensor[c, s].tobytes()
    assert memory.pack(tensor) == expected
    assert memory.pack(tensor, rows=False) == tensor.tobytes()
    assert (memory.pack(tensor) == tensor.tobytes()) == (
        columns % 32 == 0 or row * channels == 2 * tensor.size
    )
    for rows in (True, False):
        data = memory.pack(tensor, rows)
        assert np.array_equal(unpack_columns(data, channels, columns, rows), tensor)
        # a surface may be allocated larger, and may end with the last element
        assert np.array_equal(unpack_columns(data + b"xyz", channels, columns, rows), tensor)
        end = len(data) - (row - 2 * columns if rows else 0)
        assert np.array_equal(unpack_columns(data[:end], channels, columns, rows), tensor)
        with pytest.raises(ValueError, match=f"got {end - 1} bytes, allowed are {end} or more"):
            unpack_columns(data[: end - 1], channels, columns, rows)


@pytest.mark.parametrize(
    ("shape", "itemsize", "expected"),
    [
        ((1, 64, 1, 1), 2, (64, 64, 4096, 4096, 4096)),
        ((1, 3, 1, 1), 2, (64, 64, 192, 192, 192)),
        ((1, 2560, 1, 1600), 2, (3200, 3200, 8192000, 8192000, 8192000)),
        ((2, 3, 4, 33), 2, (128, 512, 1536, 1536, 3072)),
        ((2, 3, 5, 4, 33), 1, (64, 256, 768, 3840, 7680)),
    ],
)
def test_strides(shape: tuple[int, ...], itemsize: int, expected: tuple[int, ...]) -> None:
    found = strides(shape, itemsize)
    assert found == expected
    assert allocated(found) == -(-found.size // 0x4000) * 0x4000


@pytest.mark.parametrize("shape", [(1, 2, 3), (1, 0, 1, 1), (1, 1, 1, 1, 1, 1)])
def test_no_strides(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="allowed is"):
        strides(shape)


def test_layout_agrees_with_strides() -> None:
    layout = memory.Surface(4, 33, 3).layout
    assert layout.size == strides((1, 3, 4, 33)).size
    assert layout.at(1, 2, 1) == 512 + 128 + 4


def test_joined_inputs_come_apart() -> None:
    rng = np.random.default_rng(3)
    for axis, shapes in (("columns", [(4, 32), (4, 5), (4, 1)]), ("channels", [(2, 32), (7, 32)])):
        parts = [rng.standard_normal(shape) for shape in shapes]
        whole = memory.join(parts, axis)
        sizes = [shape[memory.AXES[axis]] for shape in shapes]
        for part, back in zip(parts, memory.split(whole, sizes, axis), strict=True):
            assert np.array_equal(part, back)
    # along the channels the bytes are those of the parts, one after the other
    parts = [rng.standard_normal(shape) for shape in [(2, 32), (7, 32)]]
    assert memory.pack(memory.join(parts, "channels")) == b"".join(
        memory.pack(part) for part in parts
    )


def test_surface_refusals() -> None:
    with pytest.raises(ValueError, match=r"tensors: got \[\(2, 3\), \(3, 3\)\], allowed are"):
        memory.join([np.zeros((2, 3)), np.zeros((3, 3))])
    with pytest.raises(ValueError, match=r"sizes: got \[1, 1\] of \(4, 5\), allowed are"):
        memory.split(np.zeros((4, 5)), [1, 1])
    with pytest.raises(LookupError, match="axis: got 'rows', allowed is one of channels, columns"):
        memory.join([np.zeros((2, 3))], "rows")
    with pytest.raises(ValueError, match=r"tensor: got \(2,\) float64, allowed"):
        memory.pack(np.zeros(2))
    with pytest.raises(ValueError, match="got 0 channels"):
        unpack_columns(b"", 0, 1)
