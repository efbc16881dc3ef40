"""Bits, parts, markers and single elements of a buffer, against plain definitions and at each
limit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from npulab.layout import (
    Constant,
    Layout,
    Loop,
    Sums,
    Table,
    hwc,
    kernel_groups,
    markers,
    nc1hwc2,
    packed_blocks,
    planar,
)
from npulab.layout.bitstream import BitReader, bits_at, put_bits
from npulab.layout.parts import sums
from npulab.layout.plain import strided
from npulab.layout.stored import (
    MOST_ELEMENTS,
    bytes_in,
    bytes_of_places,
    joined,
    opened,
    place_bytes,
)


def number(data: bytes) -> int:
    return int.from_bytes(data, "little")


@pytest.mark.parametrize("width", [1, 7, 8, 24, 25, 26, 31, 32])
def test_bits_are_put_where_a_long_number_has_them(width: int) -> None:
    rng = np.random.default_rng(width)
    gaps = rng.integers(0, 40, 30)
    positions = np.cumsum(width + gaps) - width
    values = rng.integers(0, 2**width, 30, np.uint64).astype(np.uint32)
    expected = sum(int(value) << int(at) for value, at in zip(values, positions, strict=True))
    for spare in (0, 1, 7, 8, 100):
        bits = int(positions[-1]) + width + spare
        data = put_bits(values, positions, bits)
        assert len(data) == math.ceil(bits / 8)
        assert number(data) == expected
    # the last bit of a word and of a string
    for at in (0, 31, 32, 63, 64):
        assert put_bits(np.array([1]), np.array([at]), at + 1) == (1 << at).to_bytes(
            at // 8 + 1, "little"
        )
    assert put_bits(np.zeros(0, int), np.zeros(0, int), 9) == bytes(2)
    assert put_bits(np.zeros(0, int), np.zeros(0, int), 0) == b""


@pytest.mark.parametrize("width", [1, 8, 25, 26, 32, 56, 57])
@pytest.mark.parametrize("size", [1, 9, 200])
def test_bits_are_those_of_a_long_number(width: int, size: int) -> None:
    data = np.random.default_rng(width).integers(0, 256, size, np.uint8).tobytes()
    whole = number(data)
    for positions in (
        np.arange(8 * size + 100),
        np.array([8 * size - 1, 0, 7, 8 * size, 8 * size + 300]),
    ):
        found = bits_at(data, positions, width)
        assert found.tolist() == [whole >> int(at) & (2**width - 1) for at in positions]
        assert found.dtype == ("<u4" if width <= 25 else "<u8")


def test_a_reader_is_a_long_number() -> None:
    data = bytes(range(200, 240))
    for position in range(20):
        for width in (0, 1, 3, 8, 9, 33):
            reader = BitReader(data, position)
            assert reader.read(width) == number(data) >> position & (2**width - 1)
            assert reader.position == position + width
    assert BitReader(data).position == 0
    assert BitReader(data, 312).read(8) == 239
    with pytest.raises(EOFError, match=r"^bit string ends at bit 320, 9 bits wanted at bit 312$"):
        BitReader(data, 312).read(9)


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("signed", [False, True])
def test_sums_are_those_of_python(bits: int, signed: bool) -> None:
    kind = "u2" if bits == 16 else "u1"
    stored = np.random.default_rng(bits).integers(0, 2**bits, (3, 4, 5)).astype(kind)

    def read(value: int) -> int:
        return value - 2**bits if signed and value >= 2 ** (bits - 1) else value

    for axis in range(3):
        lines = np.moveaxis(stored, axis, 0)
        expected = [sum(read(int(one)) for one in line.ravel()) for line in lines]
        assert sums(stored, axis, signed, bits).tolist() == expected
        for fill in (0, 2 ** (bits - 1) - 1, 2 ** (bits - 1), 2**bits - 1):
            part = Sums(8, axis, len(lines) + 2, fills=3, depth=7, signed=signed)
            wanted = [one + 3 * read(fill) for one in expected] + [7 * read(fill)] * 2
            assert part.size == 4 * len(wanted)
            data = part.data(stored, fill, bits)
            assert data.dtype == np.uint8
            assert data.view("<i4").tolist() == wanted


def test_sums_wrap_at_32_bits() -> None:
    stored = np.full((1, 3), 2**32 - 1, np.uint32)
    assert Sums(0, 0, 1, signed=False).data(stored, 0, 32).view("<u4").tolist() == [2**32 - 3]
    assert Sums(0, 0, 1, signed=True).data(stored, 0, 32).view("<i4").tolist() == [-3]


def test_a_part_says_its_bytes() -> None:
    eight = "00 01 02 03 04 05 06 07"
    for part, text in (
        (Sums(12, 1, 5), "5 sums over axis 1 at byte 12"),
        (Constant(3, bytes(range(8))), f"8 constant bytes at byte 3 ({eight})"),
        (Constant(3, bytes(range(9))), f"9 constant bytes at byte 3 ({eight} ...)"),
        (Constant(0, b"\7", 2), "2 constant bytes at byte 0 (07 ...)"),
        (Constant(0, b"\7"), "1 constant bytes at byte 0 (07)"),
    ):
        assert str(part) == text
    assert Constant(0, b"\7\10\11", 5).size == 15


# Markers


def spelled(tensors: list[np.ndarray]) -> list[tuple[float, ...]]:
    return list(zip(*(tensor.ravel().tolist() for tensor in tensors), strict=True))


@pytest.mark.parametrize("base", [2, 3, 6, 11])
def test_markers_use_half_of_what_they_could_spell_and_no_more(base: int) -> None:
    """Of ``base ** n`` numbers those of one digit alone are left out."""
    avoid = range(base, 256)
    for count in (2, 3):
        most = (base**count - base) // 2
        if not most:
            continue
        tensors = markers((most,), avoid=avoid)
        assert len(tensors) == count
        assert len(markers((most + 1,), avoid=avoid)) == count + 1
        found = spelled(tensors)
        assert len(set(found)) == most
        assert not any(len(set(one)) == 1 for one in found)
        assert {value for one in found for value in one} <= set(range(base))


def test_near_elements_have_values_far_apart() -> None:
    one = markers((256,))[0].astype(int)
    apart = np.abs(np.diff(one))
    assert apart.min() >= 256 // 3
    assert len(np.unique(one)) == 256
    half = markers((40,), "float16")[0].astype(np.float64)
    assert np.isfinite(half).all()
    assert half.min() >= np.finfo("float16").tiny


def test_floats_of_markers_are_all_the_positive_normal_ones() -> None:
    """Of 16 bits every one of them, of 32 bits 65536 or a few more, evenly over their bits."""
    tensors = markers((31000,), "float16")
    values = np.unique(np.concatenate(tensors))
    assert len(values) == 30720
    bits = values.view(np.uint16)
    assert (int(bits[0]), int(bits[-1])) == (0x0400, 0x7BFF)
    wide = np.unique(np.concatenate(markers((70000,), "float32"))).view(np.uint32).astype(np.int64)
    steps = np.unique(np.diff(wide))
    assert steps.tolist() == [(0x7F7FFFFF - 0x00800000) // 2**16]
    assert int(wide[0]) == 0x00800000
    assert 2**16 <= len(wide) <= 2**16 + 8


@pytest.mark.parametrize(
    ("dtype", "least", "most"),
    [
        ("uint8", 0, 255),
        ("int8", -128, 127),
        ("int4", -8, 7),
        ("uint2", 0, 3),
        ("uint1", 0, 1),
        ("uint16", 0, 65535),
        ("int16", -32768, 32767),
        ("uint32", 0, 65535),
    ],
)
def test_markers_use_all_of_the_range(dtype: str, least: int, most: int) -> None:
    values = np.unique(np.concatenate(markers((66000,), dtype)))
    assert (int(values[0]), int(values[-1]), len(values)) == (least, most, most - least + 1)


def test_markers_of_more_captures_begin_again() -> None:
    two, five = markers((10,)), markers((10,), captures=5)
    assert [one.tolist() for one in five] == [two[at % 2].tolist() for at in range(5)]
    assert len(markers((10,), captures=2)) == 2


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((), "one or more axes"),
        ((0,), "one or more axes"),
        ((-1, -1), "one or more axes"),
        ((2**13, 2**13 + 1), "at most 67108864"),
    ],
)
def test_shapes_of_markers_are_refused(shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(ValueError, match=rf"^shape: .*{said}"):
        markers(shape)


def test_markers_of_two_values_take_as_many_captures_as_it_takes() -> None:
    tensors = markers((3000,), "uint1")
    assert len(tensors) == 13  # 2 ** 13 - 2 >= 6000 > 2 ** 12 - 2
    assert len(set(spelled(tensors))) == 3000
    with pytest.raises(
        ValueError,
        match=r"^avoid: got all but 1 values, allowed leaves enough values to mark 1 elements$",
    ):
        markers((1,), "uint1", avoid=[0])
    assert [one.tolist() for one in markers((1,), "uint1")] in ([[1], [0]], [[0], [1]])


# Elements as they are stored


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_elements_below_a_byte_are_opened_and_joined(bits: int) -> None:
    data = np.random.default_rng(bits).integers(0, 256, 16, np.uint8)
    for swap in (0, 2, 4, 8, 16):
        words = (
            data
            if not swap
            else np.concatenate([data[at : at + swap][::-1] for at in range(0, 16, swap)])
        )
        for high in (False, True):
            order = range(0, 8, bits) if not high else range(8 - bits, -1, -bits)
            expected = [int(byte) >> at & (2**bits - 1) for byte in words for at in order]
            places = opened(data, bits, swap, high)
            assert places.tolist() == expected
            assert joined(places, bits, high).tolist() == words.tolist()
    assert opened(data, 8, 4, False).tolist() == [
        int(one) for at in range(0, 16, 4) for one in data[at : at + 4][::-1]
    ]


def test_bytes_of_elements_and_places() -> None:
    for names, size in (
        (("uint1", "int2", "uint4", "int8"), 1),
        (("float16", "uint16"), 2),
        (("int32", "float32"), 4),
    ):
        assert {*map(place_bytes, names)} == {size}
    for name, bits in (("uint1", 1), ("int2", 2), ("int4", 4), ("uint8", 8), ("float32", 8)):
        assert [bytes_of_places(n, name) for n in range(20)] == [
            math.ceil(n * bits / 8) for n in range(20)
        ]


@pytest.mark.parametrize(
    ("dtype", "add", "said"),
    [
        ("uint8", 255, ""),
        ("uint8", 256, "0 to 255"),
        ("uint16", 65535, ""),
        ("uint16", 65536, "0 to 65535"),
        ("int4", 0, ""),
        ("int4", 1, "0 to 0"),
        ("uint8", -1, "0 to 255"),
    ],
)
def test_what_may_be_added(dtype: str, add: int, said: str) -> None:
    if not said:
        assert hwc((2,), dtype=dtype, add=add).add == add
    else:
        with pytest.raises(ValueError, match=rf"^add: got {add}, allowed is {said}$"):
            hwc((2,), dtype=dtype, add=add)


@pytest.mark.parametrize("name", ["fill", "xor"])
def test_what_elements_may_be_filled_and_changed_with(name: str) -> None:
    for dtype, bits in (
        ("uint1", 1),
        ("int2", 2),
        ("uint4", 4),
        ("uint8", 8),
        ("float16", 16),
        ("int32", 32),
    ):
        assert getattr(hwc((8,), dtype=dtype, **{name: 2**bits - 1}), name) == 2**bits - 1
        for wrong in (-1, 2**bits):
            with pytest.raises(
                ValueError, match=rf"^{name}: got {wrong}, allowed is 0 to {2**bits - 1}$"
            ):
                hwc((8,), dtype=dtype, **{name: wrong})


def test_words_hold_an_element_and_fill_the_buffer() -> None:
    for dtype, width in (("uint8", 1), ("uint16", 2), ("uint32", 4)):
        for swap in (1, 2, 3, 4, 8, 16, 32):
            if swap in (2, 4, 8, 16) and swap >= width:
                assert Layout((1,), (), dtype=dtype, swap=swap).size == swap
            else:
                with pytest.raises(
                    ValueError,
                    match=rf"^swap: got {swap}, allowed is 0 or a word of 2, 4, 8, 16 bytes, at least the {width} of an element$",
                ):
                    Layout((1,), (), dtype=dtype, swap=swap)
    assert hwc((9,), swap=4).size == 12
    assert Layout((4,), (Loop(0),), dtype="uint16", swap=4).index_map().tolist() == [2, 0, 6, 4]
    assert hwc((8,), swap=4).size == 8
    with pytest.raises(
        ValueError, match=r"^size: got 9, allowed are multiples of the 4 bytes that are swapped$"
    ):
        hwc((8,), swap=4, size=9)
    assert hwc((4,), dtype="uint4", swap=2, copies=(4,)).size == 4
    with pytest.raises(ValueError, match=r"^copies: got 6, "):
        hwc((4,), dtype="uint4", swap=2, copies=(6,))


def test_copies_and_parts_lie_in_the_buffer() -> None:
    for copies, offset, size in (((4,), 0, 8), ((-3, 5), 3, 12), ((-4,), 4, 8)):
        assert hwc((4,), copies=copies, offset=offset).size == size
        with pytest.raises(
            ValueError,
            match=rf"^elements: got bytes {offset + min(0, *copies)} to {size}, allowed is 0 to {size - 1}, the size$",
        ):
            hwc((4,), copies=copies, offset=offset, size=size - 1)
    assert hwc((2,), parts=(Constant(2, b"ab"),), size=4).pack(np.uint8([1, 2])) == b"\1\2ab"
    assert hwc((2,), parts=(Constant(7, b"ab"),)).size == 9
    assert hwc((2, 3), parts=(Sums(8, 1, 3),), size=20).size == 20
    assert hwc((2,), dtype="float16", parts=(Constant(4, b"a"),), size=5).size == 5


@pytest.mark.parametrize(
    ("shape", "size", "parts", "fields", "said"),
    [
        ((4,), 0, [], {"copies": (-4,), "offset": 3}, "^elements: got bytes -1 to 7, "),
        ((3,), 1, [], {"dtype": "uint4"}, "^elements: got places 0 to 3, allowed is 0 to 2, the s"),
        ((4,), 4, [Constant(-1, b"ab")], {}, "got bytes -1 to 1, allowed is 0 to 4, the size$"),
        ((2,), 4, [Constant(3, b"ab")], {}, "got bytes 3 to 5, allowed is 0 to 4, the size$"),
        ((2, 3), 20, [Sums(8, 2, 3)], {}, r"got axis 2, allowed is an axis of \(2, 3\) with at mo"),
        ((2, 3), 20, [Sums(8, -1, 3)], {}, "got axis -1, "),
        ((2,), 12, [Sums(4, 0, 2)], {"dtype": "float16"}, "got elements of float16, allowed are "),
    ],
)
def test_copies_and_parts_outside_of_the_buffer_are_refused(
    shape: tuple[int, ...], size: int, parts: list[Any], fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        hwc(shape, size=size, parts=tuple(parts), **fields)


def test_a_table_has_its_places_in_the_buffer() -> None:
    assert Table((2,), np.array([3, -1]), size=4).elements == 2
    assert Table((2,), np.array([-1, -1]), size=4).pack(np.uint8([1, 2])) == bytes(4)
    with pytest.raises(ValueError, match=r"^elements: got bytes 0 to 5, "):
        Table((2,), np.array([0, 3]), dtype="uint16", size=4)
    assert (
        Table((2,), np.array([0, 2]), dtype="uint16", size=4).pack(np.uint16([1, 2])) == b"\1\0\2\0"
    )


def test_fill_of_a_table_begins_with_the_buffer() -> None:
    table = Table((1,), np.array([3]), dtype="uint16", size=6, fill=0x1234)
    assert table.pack(np.uint16([0xABCD])).hex() == "341234cdab12"
    assert (table.first, table.extents) == (0, (1,))


def test_bytes_are_of_one_axis() -> None:
    for wrong in (np.zeros((2, 2), np.uint8), np.zeros(2, np.int8)):
        with pytest.raises(
            ValueError, match=r"^here: got u?int8 \(2.*\), allowed are bytes or uint8 of one axis$"
        ):
            bytes_in(wrong, "here")
    for one in (b"ab", bytearray(b"ab"), memoryview(b"ab"), np.frombuffer(b"ab", np.uint8)):
        assert bytes_in(one, "here").tolist() == [97, 98]


def test_a_copy_that_differs_is_named_where_it_lies_in_swapped_words() -> None:
    layout = hwc((4,), swap=4, copies=(4,), size=8)
    buffer = bytearray(layout.pack(np.uint8([1, 2, 3, 4])))
    assert buffer.hex() == "0403020104030201"
    buffer[5] ^= 1
    with pytest.raises(
        ValueError, match=r"^buffer: got two values of one element, at bytes 1 and 5 \(its copy\)$"
    ):
        layout.unpack(buffer)
    assert layout.swapped(np.array([-1, 0, 1, 5])).tolist() == [-1, 3, 2, 6]


def test_parts_beyond_four_are_counted() -> None:
    for count, more in ((4, ""), (5, "1 more parts, "), (7, "3 more parts, ")):
        layout = hwc((1,), parts=tuple(Constant(at, b"a") for at in range(1, count + 1)))
        assert str(layout).count("constant bytes") == 4
        assert str(layout).endswith(f"constant bytes at byte 4 (61), {more}{count + 1} bytes")


def test_fill_keeps_step_with_the_elements() -> None:
    for offset in range(8):
        layout = Layout((1,), (), dtype="uint32", fill=0x04030201, offset=offset, size=12)
        expected = bytearray((1, 2, 3, 4)[(at - offset) % 4] for at in range(12))
        expected[offset : offset + 4] = b"\x09\0\0\0"
        assert layout.pack(np.uint32([9])) == bytes(expected)
    for size in (1, 3, 5):
        assert len(Layout((1,), (), fill=7).blank(size)) == size


def test_the_most_elements() -> None:
    shape = (2**13, MOST_ELEMENTS // 2**13)
    assert hwc(shape).size == MOST_ELEMENTS
    with pytest.raises(ValueError, match=r"allowed are at most 67108864 elements$"):
        hwc((2**13, 2**13 + 1))
    for wrong in ((), (2, -1), (1.5,), (2, 0)):
        with pytest.raises(ValueError, match=r"allowed are one or more axes of at least 1$"):
            hwc(wrong)  # type: ignore[arg-type]


# Layouts by name


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        (planar((2, 3, 4, 5), row_align=8), 2 * 5 * 3 * 8),
        (planar((3, 4, 5), row_align=8, plane_align=32), 5 * 32),
        (planar((3, 4, 5), offset=6), 66),
        (planar((3, 3, 5)), 45),
        (planar((3, 3, 5), plane_align=2), 50),
        (planar((3, 3, 5), row_align=2), 60),
        (planar((3, 4, 5), dtype="uint4", row_align=3), 45),
        (nc1hwc2((2, 3, 4, 5), 4), 2 * 2 * 48),
        (nc1hwc2((3, 4, 5), 4, row_pitch=20, plane_pitch=70, offset=9), 149),
        (kernel_groups((3, 1, 1, 5), 2, 2, align=16), 16),
        (kernel_groups((4, 1, 1, 4), 2, 2, align=16), 16),
        (kernel_groups((3, 1, 1, 5), 2, 2, offset=2), 17),
        (hwc((4, 5), row_pitch=9), 3 * 9 + 5),
        (packed_blocks((3, 3), 2, 2, offset=5), 21),
    ],
)
def test_sizes_of_named_layouts(layout: Layout, size: int) -> None:
    assert layout.size == size


@pytest.mark.parametrize(
    ("layout", "index", "place"),
    [
        (planar((3, 4, 5), row_pitch=7, plane_pitch=50), (1, 2, 3), 3 * 50 + 7 + 2),
        (planar((2, 3, 4, 5)), (1, 2, 3, 4), 119),
        (nc1hwc2((2, 3, 4, 5), 4), (1, 2, 3, 4), 96 + 48 + 44),
        (nc1hwc2((3, 4, 5), 1), (1, 2, 3), 3 * 12 + 4 + 2),
        (hwc((2, 3, 4, 5), row_pitch=25), (1, 1, 1, 1), 75 + 25 + 5 + 1),
    ],
)
def test_places_of_named_layouts(layout: Layout, index: tuple[int, ...], place: int) -> None:
    assert layout.index_map()[index] == place


def test_blocks_end_with_their_parts() -> None:
    plain, extra = (
        packed_blocks((3, 3), 2, 2),
        packed_blocks((3, 3), 2, 2, sums=True, parts=(Constant(40, b"abc"),)),
    )
    assert plain.size == 16
    assert extra.size == 43
    assert extra.parts == (Constant(40, b"abc"), Sums(16, 1, 4, 1, 4))
    assert packed_blocks((3, 3), 1, 1, sums=True).parts == (Sums(9, 1, 3, 0, 3),)


@pytest.mark.parametrize("numbers", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_groups_of_none_are_refused(numbers: tuple[int, int, int]) -> None:
    kernels, channels, align = numbers
    with pytest.raises(
        ValueError,
        match=rf"^kernels, channels, align: got {kernels}, {channels}, {align}, allowed is 1 or more$",
    ):
        kernel_groups((2, 1, 1, 2), kernels, channels, align=align)
    with pytest.raises(ValueError, match=r"^rows, columns: "):
        packed_blocks((2, 2), kernels, channels if kernels else 1) if not (
            kernels and channels
        ) else packed_blocks((2, 2), 1, 0)


def test_an_order_has_each_axis_once() -> None:
    assert strided((2, 3), (1, 0)).index_map().tolist() == [[0, 2, 4], [1, 3, 5]]
    for order in ((0, 0), (0,), (0, 1, 2), (1, 2)):
        with pytest.raises(
            ValueError, match=r"^order: got .*, allowed are the axes 0 to 1, each once$"
        ):
            strided((2, 3), order)


# What each run of bits says


def test_items_name_every_bit() -> None:
    layout = Layout(
        (2, 3),
        (Loop(0, 1, 6), Loop(1, 1, 1)),
        copies=(20,),
        offset=4,
        fill=7,
        size=48,
        parts=(Constant(0, b"ab"), Sums(36, 1, 3)),
    )
    buffer = bytearray(layout.pack(np.uint8([[1, 2, 3], [4, 5, 6]])))
    buffer[16] = 99
    items = layout.items(bytes(buffer), "weight", row=0, column=1)
    got = [
        (one.bit, one.bits, one.kind, one.value, one.row, one.column, one.weights) for one in items
    ]
    places = {
        4 + 6 * r + c + copy: (r, c, 1 + 3 * r + c)
        for r in range(2)
        for c in range(3)
        for copy in (0, 20)
    }
    expected: list[tuple[Any, ...]] = [
        (8 * at, 8, "weight", value, r, c, 1) for at, (r, c, value) in places.items()
    ]
    expected += [
        (0, 16, "constant", 0, None, None, 0),
        (16, 16, "fill", 7, None, None, 0),
        (56, 24, "fill", 7, None, None, 0),
        (104, 24, "fill", 7, None, None, 0),
        (128, 8, "other", 0, None, None, 0),
        (136, 56, "fill", 7, None, None, 0),
        (216, 24, "fill", 7, None, None, 0),
        (264, 24, "fill", 7, None, None, 0),
        (288, 96, "sum", 0, None, None, 0),
    ]
    assert got == sorted(expected, key=lambda one: one[0])
    assert all((one.core, one.channel, one.plane) == (None, None, None) for one in items)


def test_axes_of_items_are_those_of_the_tensor() -> None:
    layout = hwc((2, 3))
    for name, axis in (("row", 2), ("row", -1), ("rows", 0)):
        with pytest.raises(
            ValueError,
            match=rf"^{name}: got axis {axis}, allowed are core, channel, plane, row, column, each an axis from 0 to 1$",
        ):
            layout.items(bytes(6), **{name: axis})
    assert layout.items(bytes(6), core=1, plane=0)[5][4:] == (2, None, 1, None, None, 1)
