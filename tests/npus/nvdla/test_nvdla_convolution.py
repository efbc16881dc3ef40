"""NVDLA's convolution: layouts, pixels, sums of products and whole jobs, each against plain
loops.
"""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from case_tables import cases, fields
from hypothesis import given, strategies as st
from nvdla_convolution_plain import (
    converted_plain,
    convolve_plain,
    cube_places_plain,
    handed_over_plain,
    unpack_plain,
    weight_places_plain,
)

from npulab.captures.target import Hang, Unsupported
from npulab.npus.kit import up
from npulab.npus.nvdla import convolution, fetch
from npulab.npus.nvdla.convolution import Window, convolve, handed_over, run, window_of
from npulab.npus.nvdla.fetch import FORMATS, Format, converted
from npulab.npus.nvdla.layouts import TYPES, Cube, Weights
from npulab.npus.nvdla.rules import RULES, Rules

SMALL = {"atomic_c": 8, "atomic_k": 8, "memory_atom": 8}
FULL = fields("atomic_c=64 atomic_k=32 atomic_k_int16=16 memory_atom=32 int16=1")
WHOLE = [form for form in FORMATS.values() if form.channels]


def drawn(random: np.random.Generator, shape: Any, itemsize: int = 1) -> np.ndarray:
    """Random elements, some of them extreme."""
    low, high = np.iinfo(TYPES[itemsize]).min, np.iinfo(TYPES[itemsize]).max
    out = random.integers(low, high + 1, shape)
    return np.where(
        random.random(shape) < 0.3, random.choice([low, -1, 0, 1, high], shape), out
    ).astype(TYPES[itemsize])


# layouts

CUBES = [
    Cube.packed(1, 1, 1, 8),
    Cube.packed(3, 4, 17, 8),
    Cube.packed(3, 4, 17, 8, 2),
    Cube(3, 4, 17, 8, 40, 200),
    Cube(2, 3, 33, 32, 128, 512, 2),
    Cube(1, 3, 20, 8, 3, 24),
    Cube(4, 3, 8, 8, 24, 1),
    Cube(1, 1, 8192, 32, 0, 32),
    Cube(2, 2, 5, 16, 32, 32),
    Cube(3, 2, 9, 8, 64, 16),
]


@pytest.mark.parametrize("cube", CUBES, ids=str)
def test_feature_places(cube: Cube) -> None:
    places = cube_places_plain(cube)
    assert places.shape == cube.shape
    assert places.max() + cube.itemsize == cube.size
    memory = drawn(np.random.default_rng(1), cube.size).view(np.uint8)
    x = cube.unpack(memory.tobytes() + b"behind")
    both = [memory[places + byte].astype(np.uint16) * 256**byte for byte in range(cube.itemsize)]
    np.testing.assert_array_equal(
        x, sum(both).astype(f"u{cube.itemsize}").view(TYPES[cube.itemsize])
    )
    stored = np.concatenate([memory[first : first + size] for first, size in cube.runs()])
    np.testing.assert_array_equal(
        cube.tensor(
            stored.view(TYPES[cube.itemsize]).reshape(
                cube.surfaces, cube.height, cube.width, cube.lanes
            )
        ),
        x,
    )


@pytest.mark.parametrize("cube", CUBES[:8], ids=str)
def test_features_packed_leave_gaps(cube: Cube) -> None:
    x = drawn(np.random.default_rng(2), cube.shape, cube.itemsize)
    memory = cube.pack(x)
    np.testing.assert_array_equal(cube.unpack(memory), x)
    apart = np.ones(len(memory), bool)
    for byte in range(cube.itemsize):
        apart[cube_places_plain(cube) + byte] = False
    assert not np.frombuffer(memory, np.uint8)[apart].any()
    assert len(memory) == cube.size
    np.testing.assert_array_equal(cube.layout().index_map(), cube_places_plain(cube))
    lanes = cube.unpack(cube.pack(x[:, :, : cube.channels]))
    np.testing.assert_array_equal(lanes[:, :, : cube.channels], x[:, :, : cube.channels])
    assert not lanes[:, :, cube.channels :].any()


def test_few_stretches_are_read() -> None:
    assert list(Cube.packed(5, 4, 30, 8).runs()) == [(0, 640)]
    assert list(Cube(5, 4, 16, 8, 32, 200).runs()) == [(0, 160), (200, 160)]
    assert list(Cube(2, 4, 16, 8, 40, 200).runs()) == [(0, 32), (40, 32), (200, 32), (240, 32)]
    assert list(Cube(1, 1, 24, 8, 0, 8).runs()) == [(0, 24)]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: Cube(0, 1, 1, 8, 8, 8),
            r"height, width, channels, atom: got \(0, 1, 1, 8\), allowed",
        ),
        (
            lambda: Cube(1, 1, 1, 8, 8, 8, 4),
            r"itemsize: got 4 in atoms of 8 bytes, allowed is 1 or 2",
        ),
        (
            lambda: Cube(1, 1, 1, 8, -8, 8),
            r"row_pitch, plane_pitch: got -8, 8, allowed is 0 or more",
        ),
        (
            lambda: Cube.packed(2, 2, 8, 8).unpack(bytes(31)),
            r"feature cube \(2, 2, 8\): got 31 bytes .* allowed is 32",
        ),
        (
            lambda: Cube.packed(2, 2, 8, 8).pack(np.zeros((2, 2, 7), np.int8)),
            r"tensor: got int8 \(2, 2, 7\)",
        ),
        (
            lambda: Cube(2, 2, 8, 8, 8, 8).pack(np.zeros((2, 2, 8), np.int8)),
            r"row_pitch: got 8 bytes, allowed is 16 or more",
        ),
        (
            lambda: Weights(1, 0, 1, 1, 8, 8),
            r"kernels, height, .*: got \(1, 0, 1, 1, 8, 8\), allowed is 1 or more",
        ),
        (lambda: Weights(1, 1, 1, 1, 8, 8, 3), r"itemsize: got 3, allowed is 1 or 2"),
        (
            lambda: Weights(1, 1, 1, 5, 8, 8, 1, 2),
            r"lines: got 2 of 5 channels, allowed is 1, and 2 or 4 that fit .* of 8",
        ),
        (lambda: Weights(1, 1, 1, 1, 8, 8, 1, 8), r"lines: got 8 of 1 channels"),
        (
            lambda: Weights(2, 1, 1, 5, 8, 8).unpack(bytes(9)),
            r"weights \(2, 1, 1, 5\): got 9 bytes, allowed is 10 or more",
        ),
        (
            lambda: Weights(2, 1, 1, 5, 8, 8).pack(np.zeros((2, 1, 1, 5))),
            r"weights: got float64 .* allowed is int8",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


WEIGHTS = [
    Weights(1, 1, 1, 1, 8, 8),
    Weights(41, 5, 3, 14, 8, 8),
    Weights(16, 2, 2, 16, 8, 8),
    Weights(7, 2, 3, 5, 16, 32),
    Weights(19, 3, 1, 70, 16, 64, 2),
    Weights(9, 10, 1, 116, 8, 8),
    Weights(33, 1, 1, 8, 32, 64),
    Weights(9, 5, 1, 4, 8, 8, 1, 2),
    Weights(17, 7, 1, 12, 16, 64, 2, 4),
    Weights(8, 8, 1, 2, 8, 8, 1, 4),
    Weights(20, 3, 1, 3, 16, 64, 1, 4),
]


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_weight_places(weights: Weights) -> None:
    places = weights.layout().index_map()
    np.testing.assert_array_equal(places, weight_places_plain(weights))
    w = drawn(np.random.default_rng(3), weights.shape, weights.itemsize)
    data = weights.pack(w)
    assert len(data) == weights.size == -(-weights.used // 128) * 128
    assert not any(data[weights.used :])
    np.testing.assert_array_equal(
        np.frombuffer(data, TYPES[weights.itemsize])[places // weights.itemsize], w
    )
    np.testing.assert_array_equal(weights.unpack(data), w)
    np.testing.assert_array_equal(weights.unpack(data[: weights.used]), w)
    assert weights.layout().pack(w) == data


def test_weights_by_hand() -> None:
    """Three kernels of two columns and three channels, in groups of two and blocks of two."""
    w = np.array(
        [
            [[[111, 112, 113], [121, 122, 123]]],
            [[[11, 12, 13], [21, 22, 23]]],
            [[[1, 2, 3], [4, 5, 6]]],
        ],
        np.int8,
    )
    want = [111, 112, 11, 12, 121, 122, 21, 22, 113, 13, 123, 23, 1, 2, 4, 5, 3, 6]
    assert list(Weights(3, 1, 2, 3, 2, 2).pack(w)[:18]) == want


# sums of products


def some_window(random: np.random.Generator, itemsize: int) -> Window:
    def two(*ends: int) -> tuple[int, int]:
        return int(random.integers(*ends)), int(random.integers(*ends))

    return Window(two(1, 8), two(1, 4), two(1, 4), two(0, 5), int(drawn(random, (), itemsize)))


def agree(random: np.random.Generator) -> None:
    itemsize = int(random.integers(1, 3))
    height, width, channels, kernels, rows, columns = random.integers(1, [9, 9, 13, 11, 5, 5])
    x, w = (
        drawn(random, (height, width, channels), itemsize),
        drawn(random, (kernels, rows, columns, channels), itemsize),
    )
    window, truncate, lanes = (
        some_window(random, itemsize),
        int(random.integers(0, 32)),
        up(int(kernels), 8),
    )
    np.testing.assert_array_equal(
        convolve(x, w, window, truncate, lanes), convolve_plain(x, w, window, truncate, lanes)
    )


@pytest.mark.parametrize(
    ("share", "spare"),
    cases(
        """
1024 | 65536
8 | 1000
3 | 3000
200 | 9000
1 | 1
""",
        int,
        int,
    ),
)
def test_convolution_is_the_plain_loop(
    monkeypatch: pytest.MonkeyPatch, share: int, spare: int
) -> None:
    monkeypatch.setattr(convolution, "SHARE", share)
    monkeypatch.setattr(convolution, "LEAST_SPARE", spare)
    monkeypatch.setattr(convolution, "MOST_SPARE", spare)
    random = np.random.default_rng(share)
    for _ in range(6):
        agree(random)


@pytest.mark.long
def test_convolution_is_the_plain_loop_1000_times() -> None:
    random = np.random.default_rng(9)
    for _ in range(1000):
        agree(random)


@pytest.mark.parametrize(
    ("itemsize", "value", "weight"),
    cases(
        """
1 | -128 | -128
1 | 127 | -128
1 | 127 | 127
2 | -32768 | -32768
2 | 32767 | 32767
""",
        int,
        int,
        int,
    ),
)
def test_largest_sums_are_exact(itemsize: int, value: int, weight: int) -> None:
    """Long sums of the largest products with one that differs, of which no bit is lost."""
    x = np.full((2, 2, 5000), value, TYPES[itemsize])
    w = np.full((3, 2, 2, 5000), weight, TYPES[itemsize])
    w[1, 1, 1, 4999], w[2, 0, 0, 0] = 1, 0
    want = [value * weight * 20000, value * weight * 19999 + value, value * weight * 19999]
    for truncate in (0, 16):
        out = convolve(x, w, Window((1, 1)), truncate)
        assert out[0, 0].tolist() == [handed_over_plain(one, truncate, itemsize) for one in want]


def test_a_window_far_outside_reads_padding() -> None:
    x, w = np.full((2, 2, 3), 5, np.int8), np.full((1, 2, 2, 3), 2, np.int8)
    out = convolve(x, w, Window((9, 9), (8, 8), (32, 32), (31, 31), -7))
    assert out[8, 8, 0] == -7 * 2 * 12
    np.testing.assert_array_equal(
        out, convolve_plain(x, w, Window((9, 9), (8, 8), (32, 32), (31, 31), -7))
    )


@given(
    st.integers(-(2**53), 2**53) | st.integers(-300, 300),
    st.integers(0, 31),
    st.sampled_from([1, 2]),
)
def test_accumulators_handed_over(total: int, truncate: int, itemsize: int) -> None:
    assert int(handed_over(np.array(total), truncate, itemsize)) == handed_over_plain(
        total, truncate, itemsize
    )


def test_accumulators_by_hand() -> None:
    sums = np.array([6, -6, 5, -5, 2**31, -(2**40)])
    assert handed_over(sums, 2).tolist() == [2, -2, 1, -1, 2**29, -(2**31)]
    assert handed_over(np.array([2**40, -(2**40)]), 4).tolist() == [2**29, -(2**29)]  # 34 bits
    assert handed_over(np.array([2**40, -(2**50)]), 20, 2).tolist() == [2**20, -(2**27)]  # 48 bits


# pixels


def named_order(form: Format) -> list[tuple[int, int]]:
    """(lowest bit, bits) of the channels R, G, B, A or Y, U, V, A, as the format's name says from
    the top down; the
    bits of the second plane lie above those of the first."""
    found: dict[str, tuple[int, int]] = {}
    top = 0
    for plane in form.name[2:].replace("_N444", "").split("___"):
        parts = re.findall(r"([ABGRXYUV])(\d+)", plane)
        total = sum(16 if form.element == 2 and form.pixel != 4 else int(bits) for _, bits in parts)
        top += total
        at = top
        for letter, bits in parts:
            at -= 16 if form.element == 2 and form.pixel != 4 else int(bits)
            found[letter.replace("X", "A")] = at, int(bits)
    return (
        [found[letter] for letter in "RGBA" if letter in found]
        if "R" in found
        else [found[letter] for letter in "YUVA" if letter in found]
    )


def rows_of(form: Format, channels: np.ndarray) -> list[np.ndarray]:
    """Rows of pixels ``(height, bytes) uint8`` of each plane; of packed channels the highest
    bits are kept.
    """
    if any(bits for _, bits in form.channels):
        words = sum(
            channels[:, :, at].astype(np.uint32) // 2 ** (16 - bits) * np.uint32(2**first)
            for at, (first, bits) in enumerate(form.channels)
        )
        return [np.asarray(words).astype("<u4").view(np.uint8)]
    elements = np.empty(channels.shape, f"<u{form.element}")
    elements[:, :, [first for first, _ in form.channels]] = channels
    inside = form.pixel // form.element
    planes = [elements[:, :, :inside], elements[:, :, inside:]] if form.pixel_uv else [elements]
    return [np.ascontiguousarray(one).reshape(len(one), -1).view(np.uint8) for one in planes]


@pytest.mark.parametrize("form", WHOLE, ids=lambda form: form.name)
def test_formats_are_what_their_names_say(form: Format) -> None:
    random = np.random.default_rng(form.raw)
    rows = random.integers(0, 256, (3, 5 * form.pixel)).astype(np.uint8)
    both = [rows] + (
        [random.integers(0, 256, (3, 5 * form.pixel_uv)).astype(np.uint8)] if form.pixel_uv else []
    )
    out = form.unpack(*both)
    np.testing.assert_array_equal(out, unpack_plain(form, *both))
    pixels = [
        b"".join(
            one[2, 4 * size : 5 * size].tobytes()
            for one, size in zip(both, (form.pixel, form.pixel_uv), strict=False)
        )
    ]
    word = int.from_bytes(pixels[0], "little")
    packed = form.pixel == 4 and form.element == 2
    width = 16 if form.element == 2 else 8
    want = [
        word // 2**at % 2**bits * 2 ** (16 - bits) if packed else word // 2**at % 2**width
        for at, bits in named_order(form)
    ]
    assert out[2, 4].tolist() == want
    assert out.dtype == np.dtype(f"u{form.element}")
    again = rows_of(form, out)
    assert len(again) == len(both)
    for one, other in zip(again, both, strict=True):
        np.testing.assert_array_equal(one, other)


def test_every_format_is_in_the_table() -> None:
    assert list(FORMATS) == list(range(36))
    assert [form.name for form in FORMATS.values() if not form.channels] == [
        "T_R16_F",
        "T_A16B16G16R16_F",
        "T_A16Y16U16V16_F",
    ]
    assert sum(form.evidence == "T" for form in FORMATS.values()) == 10


@given(
    st.integers(-(2**15), 2**16 - 1),
    st.integers(-(2**15), 2**15 - 1),
    st.integers(-(2**15), 2**15 - 1),
    st.integers(0, 63),
    st.sampled_from([8, 16]),
)
def test_converter(value: int, offset: int, scale: int, truncate: int, bits: int) -> None:
    got = converted(np.array([[value]]), [offset], scale, truncate, bits)
    assert got.dtype == f"int{bits}"
    assert int(got[0, 0]) == converted_plain(value, offset, scale, truncate, bits)


# whole jobs


class Bytes:
    """A memory of a few ranges that counts what is read."""

    def __init__(self) -> None:
        self.ranges: dict[tuple[str, int], bytes] = {}

    def read(self, memory: str, address: int, size: int) -> bytes:
        for (name, start), data in self.ranges.items():
            if name == memory and start <= address and address + size <= start + len(data):
                return data[address - start : address - start + size]
        raise ValueError(
            f"{memory}: got {size} bytes at {address:#x}, allowed is what the capture holds"
        )


# Fields with the quantities that they hold, most less 1.
SIZES = """
CDMA.D_DATAIN_SIZE_0.DATAIN_HEIGHT         | height
CDMA.D_DATAIN_SIZE_0.DATAIN_WIDTH          | width
CDMA.D_DATAIN_SIZE_1.DATAIN_CHANNEL        | channels
CSC.D_DATAIN_SIZE_EXT_0.DATAIN_HEIGHT_EXT  | height
CSC.D_DATAIN_SIZE_EXT_0.DATAIN_WIDTH_EXT   | width
CSC.D_DATAIN_SIZE_EXT_1.DATAIN_CHANNEL_EXT | channels
CSC.D_WEIGHT_SIZE_EXT_0.WEIGHT_HEIGHT_EXT  | rows
CSC.D_WEIGHT_SIZE_EXT_0.WEIGHT_WIDTH_EXT   | columns
CSC.D_WEIGHT_SIZE_EXT_1.WEIGHT_CHANNEL_EXT | depth
CSC.D_WEIGHT_SIZE_EXT_1.WEIGHT_KERNEL      | kernels
CSC.D_DATAOUT_SIZE_0.DATAOUT_HEIGHT        | out_h
CSC.D_DATAOUT_SIZE_0.DATAOUT_WIDTH         | out_w
CSC.D_CONV_STRIDE_EXT.CONV_Y_STRIDE_EXT    | down
CSC.D_CONV_STRIDE_EXT.CONV_X_STRIDE_EXT    | over
CSC.D_DILATION_EXT.Y_DILATION_EXT          | spread_y
CSC.D_DILATION_EXT.X_DILATION_EXT          | spread_x
"""
PLACES = """
CDMA.D_DAIN_ADDR_HIGH_0.DATAIN_ADDR_HIGH_0 | x_high
CDMA.D_DAIN_ADDR_LOW_0.DATAIN_ADDR_LOW_0   | x_low
CDMA.D_DAIN_RAM_TYPE.DATAIN_RAM_TYPE       | one
CDMA.D_WEIGHT_ADDR_HIGH.WEIGHT_ADDR_HIGH   | w_high
CDMA.D_WEIGHT_ADDR_LOW.WEIGHT_ADDR_LOW     | w_low
CDMA.D_WEIGHT_BYTES.WEIGHT_BYTES           | bytes
CDMA.D_MISC_CFG.PROC_PRECISION             | precision
CSC.D_MISC_CFG.PROC_PRECISION              | precision
CMAC_A.D_MISC_CFG.PROC_PRECISION           | precision
CMAC_B.D_MISC_CFG.PROC_PRECISION           | precision
CACC.D_MISC_CFG.PROC_PRECISION             | precision
CDMA.D_MISC_CFG.IN_PRECISION               | precision
"""
IMAGE = """
CDMA.D_DATAIN_FORMAT.DATAIN_FORMAT       | one
CSC.D_DATAIN_FORMAT.DATAIN_FORMAT        | one
CDMA.D_DATAIN_FORMAT.PIXEL_FORMAT        | raw
CDMA.D_DATAIN_FORMAT.PIXEL_SIGN_OVERRIDE | signed
CDMA.D_MISC_CFG.IN_PRECISION             | precision
CDMA.D_LINE_STRIDE.LINE_STRIDE           | pitch
CDMA.D_LINE_UV_STRIDE.UV_LINE_STRIDE     | pitch_uv
CDMA.D_DAIN_ADDR_LOW_1.DATAIN_ADDR_LOW_1 | second
CDMA.D_PIXEL_OFFSET.PIXEL_X_OFFSET       | left
CDMA.D_CVT_CFG.CVT_EN                    | converts
CDMA.D_CVT_CFG.CVT_TRUNCATE              | shift
CDMA.D_CVT_SCALE.CVT_SCALE               | scale
CDMA.D_CVT_OFFSET.CVT_OFFSET             | offset
CDMA.D_MEAN_FORMAT.MEAN_FORMAT           | means
CDMA.D_MEAN_GLOBAL_0.MEAN_RY             | mean_0
CDMA.D_MEAN_GLOBAL_0.MEAN_GU             | mean_1
CDMA.D_MEAN_GLOBAL_1.MEAN_BV             | mean_2
CDMA.D_MEAN_GLOBAL_1.MEAN_AX             | mean_3
CDMA.D_ZERO_PADDING.PAD_LEFT             | before
CDMA.D_ZERO_PADDING.PAD_RIGHT            | after
CDMA.D_ZERO_PADDING_VALUE.PAD_VALUE      | fill
CSC.D_POST_Y_EXTENSION.Y_EXTENSION       | extension
CACC.D_CLIP_CFG.CLIP_TRUNCATE            | truncate
CSC.D_DILATION_EXT.X_DILATION_EXT        | ignored
CSC.D_DILATION_EXT.Y_DILATION_EXT        | ignored
"""
# operands of what is off
UNUSED = fields(
    """
CDMA.D_CVT_SCALE.CVT_SCALE=77        CDMA.D_MEAN_FORMAT.MEAN_FORMAT=1
CSC.D_POST_Y_EXTENSION.Y_EXTENSION=3 CDMA.D_DATAIN_FORMAT.PIXEL_FORMAT=63
CDMA.D_DATAIN_FORMAT.PIXEL_MAPPING=1 CDMA.D_ZERO_PADDING.PAD_RIGHT=9
CDMA.D_DAIN_MAP.LINE_PACKED=1        CDMA.D_DAIN_MAP.SURF_PACKED=0
"""
)


def registers(table: str, **quantities: int) -> dict[str, int]:
    """The fields of a table with their quantities."""
    return {name: quantities[quantity] for name, quantity in cases(table)}


def sizes(
    window: Window, stored: Weights, height: int, width: int, channels: int
) -> dict[str, int]:
    """Registers that features and images have in common."""
    names = "height width channels kernels rows columns depth out_h out_w down over"
    numbers = height, width, channels, *stored.shape, *window.output, *window.stride
    less = [number - 1 for number in (*numbers, *window.dilation)]
    quantities = dict(zip([*names.split(), "spread_y", "spread_x"], less, strict=True))
    return registers(SIZES, **quantities) | {
        "CSC.D_ZERO_PADDING.PAD_TOP": window.before[0],
        "CSC.D_ZERO_PADDING.PAD_LEFT": window.before[1],
        "CSC.D_ZERO_PADDING_VALUE.PAD_VALUE": window.pad_value % 2**16,
    }


def placed(itemsize: int, weights: Weights, x_at: int, w_at: int) -> dict[str, int]:
    """Registers of addresses and precision."""
    (x_high, x_low), (w_high, w_low) = divmod(x_at, 2**32), divmod(w_at, 2**32)
    words = {"x_high": x_high, "x_low": x_low, "w_high": w_high, "w_low": w_low}
    return registers(PLACES, **words, bytes=weights.size, one=1, precision=itemsize - 1)


def elements_of(features: Mapping[str, int], itemsize: int) -> tuple[int, int]:
    """(kernels of a group, lanes of an atom)."""
    if itemsize == 2:
        return features["atomic_k_int16"], features["memory_atom"] // 2
    return features["atomic_k"], features["memory_atom"]


def feature_job(
    random: np.random.Generator,
    features: Mapping[str, int],
    itemsize: int = 1,
) -> tuple[dict[str, int], Bytes, np.ndarray]:
    """(registers, memory, accumulators by plain loops) of a random job over features."""
    height, width, channels, kernels, rows, columns = (
        int(one) for one in random.integers(1, [7, 7, 20, 20, 4, 4])
    )
    atom = features["memory_atom"]
    group, per_atom = elements_of(features, itemsize)
    row = width * atom + int(random.integers(0, 3)) * 32
    cube = Cube(height, width, channels, atom, row, height * row + 64, itemsize)
    stored = Weights(kernels, rows, columns, channels, group, features["atomic_c"], itemsize)
    window = some_window(random, itemsize)
    x, w = drawn(random, cube.shape, itemsize), drawn(random, stored.shape, itemsize)
    data = drawn(random, cube.size).view(np.uint8)
    for byte in range(cube.itemsize):
        data[cube_places_plain(cube) + byte] = x.view(np.uint8).reshape(*x.shape, cube.itemsize)[
            ..., byte
        ]
    memory = Bytes()
    memory.ranges = {
        ("pri_mem", 0x1_8000_0020 - 32): bytes(32) + bytes(data),
        ("sec_mem", 0x2000): stored.pack(w),
    }
    values = UNUSED | {
        **sizes(window, stored, height, width, channels),
        **placed(itemsize, stored, 0x1_8000_0020, 0x2000),
        "CDMA.D_LINE_STRIDE.LINE_STRIDE": row,
        "CDMA.D_SURF_STRIDE.SURF_STRIDE": cube.plane_pitch,
        "CACC.D_CLIP_CFG.CLIP_TRUNCATE": int(random.integers(0, 20)),
    }
    lanes = up(kernels, per_atom)
    want = convolve_plain(
        x[:, :, :channels], w, window, values["CACC.D_CLIP_CFG.CLIP_TRUNCATE"], lanes
    )
    return values, memory, want


@pytest.mark.parametrize(
    ("features", "itemsize"),
    [(SMALL, 1), ({**SMALL, "atomic_c": 32, "memory_atom": 16}, 1), (FULL, 1), (FULL, 2)],
    ids=["small", "medium", "full", "int16"],
)
def test_jobs_over_features(features: dict[str, int], itemsize: int) -> None:
    random = np.random.default_rng(itemsize + len(features))
    for _ in range(12):
        values, memory, want = feature_job(random, features, itemsize)
        got = run(values, features, memory)
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, want)


def test_a_pixel_of_packed_surfaces_is_one_run() -> None:
    stored, random = Weights(3, 1, 1, 20, 8, 8), np.random.default_rng(5)
    x, w = drawn(random, 24), drawn(random, stored.shape)
    memory = Bytes()
    memory.ranges = {("pri_mem", 0): x.tobytes(), ("sec_mem", 0x2000): stored.pack(w)}
    values = {
        **sizes(Window((1, 1)), stored, 1, 1, 20),
        **placed(1, stored, 0, 0x2000),
        "CDMA.D_SURF_STRIDE.SURF_STRIDE": 0x7FFFFFE0,
        "CDMA.D_DAIN_MAP.LINE_PACKED": 1,
        "CDMA.D_DAIN_MAP.SURF_PACKED": 1,
    }
    want = w[:, 0, 0].astype(int) @ x[:20].astype(int)
    assert run(values, SMALL, memory)[0, 0].tolist() == [*want.tolist(), 0, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="got 8 bytes at 0x7fffffe0"):
        run({**values, "CDMA.D_DAIN_MAP.SURF_PACKED": 0}, SMALL, memory)


@pytest.mark.parametrize("itemsize", [1, 2])
def test_features_are_converted_where_the_converter_is_on(itemsize: int) -> None:
    random = np.random.default_rng(7)
    stored, window = Weights(2, 1, 2, 5, 16 if itemsize == 2 else 32, 64, itemsize), Window((2, 3))
    x, w = drawn(random, (2, 3, 32)), drawn(random, stored.shape, itemsize)
    memory, cube = Bytes(), Cube.packed(2, 3, 5, 32)
    data = cube.pack(x)
    memory.ranges = {("pri_mem", 0): bytes(data), ("sec_mem", 0x2000): stored.pack(w)}
    values = {
        **sizes(window, stored, 2, 3, 5),
        **placed(itemsize, stored, 0, 0x2000),
        "CDMA.D_MISC_CFG.IN_PRECISION": 0,
        "CDMA.D_LINE_STRIDE.LINE_STRIDE": 96,
        "CDMA.D_CVT_CFG.CVT_EN": 1,
        "CDMA.D_CVT_OFFSET.CVT_OFFSET": 2**16 - 30,
        "CDMA.D_CVT_SCALE.CVT_SCALE": 500,
        "CDMA.D_CVT_CFG.CVT_TRUNCATE": 5,
    }
    moved = np.array(
        [converted_plain(int(one), -30, 500, 5, 8 * itemsize) for one in x.ravel()]
    ).reshape(x.shape)
    want = convolve_plain(moved[:, :, :5].astype(TYPES[itemsize]), w, window, 0, 32 // itemsize)
    np.testing.assert_array_equal(run(values, FULL, memory), want)


def image_job(
    random: np.random.Generator,
    form: Format,
    lines: int = 1,
    itemsize: int | None = None,
) -> tuple[dict[str, int], Bytes, np.ndarray]:
    """(registers, memory, accumulators by plain loops) of a random job over an image, on the
    full configuration.
    """
    itemsize, channels = itemsize or form.element, len(form.channels)
    height, width, kernels, rows = (int(one) for one in random.integers(1, [6, 9, 20, 5]))
    columns, left = int(random.integers(1, 4)), int(random.integers(0, 9))
    stored = Weights(
        kernels, rows, 1, columns * channels, 16 if itemsize == 2 else 32, 64, itemsize, lines
    )
    window = replace(some_window(random, itemsize), dilation=(1, 1))
    around = int(random.integers(0, 4)), int(random.integers(0, 4))
    fill, truncate = int(drawn(random, (), itemsize)), int(random.integers(0, 8))
    pitches = [-(-(left + width) * size // 32) * 32 + 32 for size in (form.pixel, form.pixel_uv)]
    planes = [random.integers(0, 256, (height, pitch)).astype(np.uint8) for pitch in pitches]
    starts = left * form.pixel, left * form.pixel_uv % 32
    cut = [
        plane[:, start : start + width * size]
        for plane, start, size in zip(planes, starts, (form.pixel, form.pixel_uv), strict=True)
        if size
    ]
    w = drawn(random, stored.shape, itemsize)
    memory = Bytes()
    memory.ranges = {
        ("pri_mem", 0x100): planes[0].tobytes(),
        ("sec_mem", 0x2000): stored.pack(w),
        ("pri_mem", 0x8000): planes[1].tobytes(),
    }
    values = {
        **sizes(window, stored, height, width, channels),
        **placed(itemsize, stored, 0x100, 0x2000),
    }
    signed, converts, means = (bool(one) for one in random.integers(0, 2, 3))
    converts = converts or itemsize != form.element
    mean = [int(one) for one in random.integers(-300, 300, 4)]
    scale, shift = int(random.integers(-300, 300)), int(random.integers(0, 9))
    numbers = {"raw": form.raw, "signed": signed, "converts": converts, "means": means}
    numbers |= {"precision": form.element - 1, "pitch": pitches[0], "pitch_uv": pitches[1]}
    numbers |= {"before": around[0], "after": around[1], "left": left, "shift": shift}
    numbers |= {f"mean_{n}": one % 2**16 for n, one in enumerate(mean)}
    numbers |= {"scale": scale % 2**16, "fill": fill % 2**16, "truncate": truncate}
    numbers |= {"one": 1, "second": 0x8000, "offset": 99, "ignored": 5}
    values |= registers(IMAGE, **numbers, extension=lines // 2)
    x = np.full((height, sum(around) + width, channels), fill)
    for y, column, channel in np.ndindex(height, width, channels):
        value = int(unpack_plain(form, *(one[y : y + 1] for one in cut))[0, column, channel])
        if signed or not converts:
            value -= 256**form.element * (value >= 256**form.element // 2)
        if converts:
            value = converted_plain(
                value, mean[channel] if means else 99, scale, shift, 8 * itemsize
            )
        x[y, around[0] + column, channel] = value
    taps = w.reshape(kernels, rows, columns, channels)
    want = convolve_plain(
        x.astype(TYPES[itemsize]),
        taps,
        replace(window, before=(window.before[0], 0)),
        truncate,
        up(kernels, 32 // itemsize),
    )
    return values, memory, want


@pytest.mark.sample(10)
@pytest.mark.parametrize("form", WHOLE, ids=lambda form: form.name)
def test_jobs_over_images(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(form.raw)
    monkeypatch.setattr(fetch, "BLOCK", 50)
    for itemsize in (form.element, 3 - form.element):
        values, memory, want = image_job(random, form, itemsize=itemsize)
        np.testing.assert_array_equal(run(values, FULL, memory), want)


@pytest.mark.parametrize("lines", [2, 4])
def test_images_with_rows_side_by_side(lines: int) -> None:
    random = np.random.default_rng(lines)
    for form in (FORMATS[0], FORMATS[12], FORMATS[34]):
        values, memory, want = image_job(random, form, lines)
        np.testing.assert_array_equal(run(values, FULL, memory), want)


def test_weights_may_end_within_a_pixel() -> None:
    """The last of a row's weights are of the first channels of the pixel behind it."""
    values, memory, _ = image_job(np.random.default_rng(4), FORMATS[12])
    kernels, rows = (
        values[f"CSC.D_WEIGHT_SIZE_EXT_{n}"] + 1 for n in ("1.WEIGHT_KERNEL", "0.WEIGHT_HEIGHT_EXT")
    )
    short, whole = Weights(kernels, rows, 1, 6, 32, 64), Weights(kernels, rows, 1, 8, 32, 64)
    w = drawn(np.random.default_rng(6), whole.shape)
    w[..., 6:] = 0
    out = []
    for stored, taps in ((short, w[..., :6]), (whole, w)):
        memory.ranges["sec_mem", 0x2000] = stored.pack(np.ascontiguousarray(taps))
        out.append(
            run(
                {
                    **values,
                    "CSC.D_WEIGHT_SIZE_EXT_1.WEIGHT_CHANNEL_EXT": stored.channels - 1,
                    "CDMA.D_WEIGHT_BYTES.WEIGHT_BYTES": stored.size,
                },
                FULL,
                memory,
            )
        )
    np.testing.assert_array_equal(*out)


def job(
    features: Mapping[str, int] = SMALL, itemsize: int = 1, image: bool = False
) -> tuple[dict[str, int], Bytes]:
    random = np.random.default_rng(11)
    return (image_job(random, FORMATS[12]) if image else feature_job(random, features, itemsize))[
        :2
    ]


@pytest.mark.parametrize(
    ("changed", "words"),
    cases(
        """
CDMA.D_MISC_CFG.CONV_MODE=1 | CDMA.D_MISC_CFG.CONV_MODE is 1, covered is 0
CACC.D_MISC_CFG.CONV_MODE=1 | CACC.D_MISC_CFG.CONV_MODE is 1, covered is 0
CSC.D_WEIGHT_FORMAT.WEIGHT_FORMAT=1 | CSC.D_WEIGHT_FORMAT.WEIGHT_FORMAT is 1, covered is 0
CDMA.D_BATCH_NUMBER.BATCHES=3 | CDMA.D_BATCH_NUMBER.BATCHES is 3, covered is 0
CMAC_A.D_MISC_CFG.PROC_PRECISION=2 | CMAC_A.D_MISC_CFG.PROC_PRECISION is 2, covered are 0
CDMA.D_MISC_CFG.IN_PRECISION=3 | CDMA.D_MISC_CFG.IN_PRECISION is 3, covered
CDMA.D_MISC_CFG.IN_PRECISION=1 | got int16, allowed on this chip is int8
CSC.D_MISC_CFG.PROC_PRECISION=1 | got 1, 0, 0, 0, 0, allowed is one precision for all
CSC.D_DATAOUT_SIZE_0.DATAOUT_WIDTH=8191 CSC.D_DATAOUT_SIZE_0.DATAOUT_HEIGHT=8191 | CSC.D_DATAOUT_SIZE_0.DATAOUT_WIDTH: got 67108864 pixels
CDMA.D_DATAIN_SIZE_0.DATAIN_WIDTH=8191 CDMA.D_DATAIN_SIZE_0.DATAIN_HEIGHT=8191 CSC.D_DATAIN_SIZE_EXT_0.DATAIN_WIDTH_EXT=8191 CSC.D_DATAIN_SIZE_EXT_0.DATAIN_HEIGHT_EXT=8191 | bytes of features, allowed to be simulated are 33554432
""",
        fields,
    ),
)
def test_what_is_not_covered_is_told(changed: dict[str, int], words: str) -> None:
    values, memory = job()
    with pytest.raises(Unsupported, match=words):
        run({**values, **changed}, SMALL, memory)


@pytest.mark.parametrize(
    ("changed", "words"),
    cases(
        r"""
CDMA.D_DATAIN_FORMAT.PIXEL_FORMAT=5 | PIXEL_FORMAT: got 5 \(T_R16_F, floating point\)
CDMA.D_DATAIN_FORMAT.PIXEL_FORMAT=36 | PIXEL_FORMAT: got 36, which no source names
CDMA.D_DATAIN_FORMAT.PIXEL_MAPPING=1 | PIXEL_MAPPING is 1, covered is 0
CDMA.D_DATAIN_FORMAT.PIXEL_FORMAT=3 CDMA.D_DATAIN_SIZE_1.DATAIN_CHANNEL=0 | IN_PRECISION: got 0, allowed for T_R16 is 1
CSC.D_POST_Y_EXTENSION.Y_EXTENSION=3 | Y_EXTENSION: got 3; lines: got 8
CSC.D_MISC_CFG.PROC_PRECISION=1 CDMA.D_MISC_CFG.PROC_PRECISION=1 CACC.D_MISC_CFG.PROC_PRECISION=1 CMAC_A.D_MISC_CFG.PROC_PRECISION=1 CMAC_B.D_MISC_CFG.PROC_PRECISION=1 CDMA.D_CVT_CFG.CVT_EN=0 CDMA.D_WEIGHT_BYTES.WEIGHT_BYTES=9999 | CVT_EN: got 0 with elements of 1 bytes to be processed as 2
""",
        fields,
    ),
)
def test_images_that_are_not_covered_are_told(changed: dict[str, int], words: str) -> None:
    values, memory = job(image=True)
    memory.ranges["sec_mem", 0x2000] += bytes(9999)
    with pytest.raises(Unsupported, match=words):
        run({**values, **changed}, FULL, memory)


@pytest.mark.parametrize(
    ("changed", "words"),
    cases(
        """
CSC.D_DATAIN_FORMAT.DATAIN_FORMAT=1 | one waits for features and the other for an image
CSC.D_DATAIN_SIZE_EXT_0.DATAIN_WIDTH_EXT=1000 | DATAIN_WIDTH_EXT is 1000 and CDMA.D_DATAIN_SIZE_0.DATAIN_WIDTH
CSC.D_WEIGHT_SIZE_EXT_1.WEIGHT_CHANNEL_EXT=1000 | WEIGHT_CHANNEL_EXT is 1000 and CDMA
CDMA.D_WEIGHT_BYTES.WEIGHT_BYTES=0 | WEIGHT_BYTES are 0 bytes, weights .* waits for the rest
""",
        fields,
    ),
)
def test_registers_that_contradict_each_other_hang(changed: dict[str, int], words: str) -> None:
    values, memory = job()
    with pytest.raises(Hang, match=words):
        run({**values, **changed}, SMALL, memory)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"CDMA.D_DATAIN_SIZE_1.DATAIN_CHANNEL": 2},
            r"DATAIN_CHANNEL is 2, allowed for T_A8B8G8R8 is 3",
        ),
        (
            {"CSC.D_WEIGHT_SIZE_EXT_0.WEIGHT_WIDTH_EXT": 2},
            r"WEIGHT_WIDTH_EXT is 2, allowed for an image is 0",
        ),
    ],
)
def test_images_that_contradict_each_other_hang(changed: dict[str, int], words: str) -> None:
    values, memory = job(image=True)
    with pytest.raises(Hang, match=words):
        run({**values, **changed}, FULL, memory)


def test_memory_that_is_not_there_is_told_by_the_memory() -> None:
    values, memory = job()
    for place in list(memory.ranges):
        less = Bytes()
        less.ranges = {one: data for one, data in memory.ranges.items() if one != place}
        with pytest.raises(ValueError, match=f"{place[0]}: got"):
            run(values, SMALL, less)


def test_other_rules_change_the_sums() -> None:
    random = np.random.default_rng(21)
    stored, window = Weights(9, 2, 3, 9, 8, 8), Window((4, 4), before=(1, 1), pad_value=77)
    x, w = drawn(random, (3, 3, 16)), drawn(random, stored.shape)
    memory, cube = Bytes(), Cube.packed(3, 3, 9, 8)
    data = cube.pack(x)
    memory.ranges = {("pri_mem", 0): bytes(data), ("sec_mem", 0x2000): stored.pack(w)}
    values = {
        **sizes(window, stored, 3, 3, 9),
        **placed(1, stored, 0, 0x2000),
        "CACC.D_CLIP_CFG.CLIP_TRUNCATE": 1,
        "CDMA.D_LINE_STRIDE.LINE_STRIDE": 24,
        "CDMA.D_SURF_STRIDE.SURF_STRIDE": 72,
    }
    given_, turned = stored.pack(w), Weights(9, 3, 2, 9, 8, 8)
    plain = np.frombuffer(given_, np.int8)[: w.size].reshape(w.shape)
    by_columns = turned.unpack(given_).transpose(0, 2, 1, 3)
    x = x[:, :, :9]
    for rules, want in (
        (RULES, convolve_plain(x, w, window, 1, 16)),
        (Rules(weight_order="plain"), convolve_plain(x, plain, window, 1, 16)),
        (Rules(transposed=True), convolve_plain(x, by_columns, window, 1, 16)),
        (Rules(pad_value=False), convolve_plain(x, w, replace(window, pad_value=0), 1, 16)),
        (Rules(rounding="floor"), convolve_plain(x, w, window, 0, 16) // 2 * (np.arange(16) < 9)),
    ):
        np.testing.assert_array_equal(run(values, SMALL, memory, rules), want)
    assert window_of(values) == window
    large = convolve(
        np.full((1, 1, 9999), -128, np.int8),
        np.full((2, 3, 3, 9999), -128, np.int8),
        Window((1, 1), pad_value=-128),
        0,
        4,
        Rules(saturate_stages=False),
    )
    assert large[0, 0].tolist() == [9 * 9999 * 2**14, 9 * 9999 * 2**14, 0, 0]


def test_memory_stays_small() -> None:
    """At most four times what is read and written, and the accumulators."""
    stored, random = Weights(64, 3, 3, 64, 8, 8), np.random.default_rng(31)
    cube, window = Cube.packed(40, 40, 64, 8), Window((40, 40), before=(1, 1))
    memory = Bytes()
    memory.ranges = {
        ("pri_mem", 0): drawn(random, cube.size).tobytes(),
        ("sec_mem", 0): stored.pack(drawn(random, stored.shape)),
    }
    values = {
        **sizes(window, stored, 40, 40, 64),
        **placed(1, stored, 0, 0),
        "CDMA.D_LINE_STRIDE.LINE_STRIDE": cube.row_pitch,
        "CDMA.D_SURF_STRIDE.SURF_STRIDE": cube.plane_pitch,
    }
    run(values, SMALL, memory)
    for converts in (0, 1):
        tracemalloc.start()
        accumulators = run({**values, "CDMA.D_CVT_CFG.CVT_EN": converts}, SMALL, memory)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        ranges = cube.size + stored.size + 40 * 40 * 64
        # the memory itself is the first of the four
        assert peak <= 3 * ranges + accumulators.nbytes


def test_a_wide_output_of_a_narrow_input_takes_little_memory() -> None:
    """Windows past the input are not laid out: this would be gigabytes of padding."""
    stored = Weights(1, 1, 1, 8192, 8, 8)
    memory = Bytes()
    memory.ranges = {
        ("pri_mem", 0): bytes([1]) * 8192,
        ("sec_mem", 0x2000): stored.pack(np.full(stored.shape, 2, np.int8)),
    }
    values = {
        **sizes(Window((1, 8000), (8, 8), pad_value=3), stored, 1, 1, 8192),
        **placed(1, stored, 0, 0x2000),
        "CDMA.D_SURF_STRIDE.SURF_STRIDE": 8,
    }
    out = run(values, SMALL, memory)
    assert out.shape == (1, 8000, 8)
    assert set(out[0, 1:, 0].tolist()) == {3 * 2 * 8192}
    assert out[0, 0, 0] == 2 * 8192
