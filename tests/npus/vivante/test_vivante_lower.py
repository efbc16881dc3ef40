"""Lowering of every layer kind on the vivante target: words, TP jobs, commands, the device and
the way back.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import shared
from lowered_layers import A311D, IMX8MP, S905D3, STM32MP25, random_layer

import npulab
from npulab.captures.devices import Simulated
from npulab.captures.target import Hang, Target, Unsupported
from npulab.npus.kit import memory as memory_of
from npulab.npus.vivante import (
    commands,
    facts,
    lowering,
    moves,
    plans,
    quirks,
    simulate,
    words,
)
from npulab.quant.emulate import accumulate
from npulab.quant.layers import Add, Conv2D, FullyConnected

CHIPS = {7: A311D, 8: IMX8MP}
Q = npulab.QuantParams


def layer_of(entry: Mapping[str, Any], data: Mapping[str, np.ndarray]) -> Conv2D:
    return Conv2D(
        data["weights_ohwi"],
        data["bias"],
        data["input_hwc"].shape,
        (entry["stride"],) * 2,
        entry["padding"],
        depthwise=entry["depthwise"],
        activation="relu" if entry["relu"] else None,
        **{
            f"{name}_q": Q(entry[f"{name}_scale"], entry[f"{name}_zero_point"])
            for name in ("input", "weight", "output")
        },
    )


def blocks(capture: npulab.Capture, block: str) -> list[np.ndarray]:
    return [job.words for job in capture.jobs if job.block == block]


def nn_words(
    layer: Conv2D, chip: str, streams: int, largest: int, features: tuple[str, ...] = ()
) -> np.ndarray:
    """The words of a layer's NN job, from its geometry and the bytes of all its coefficient streams
    and of the largest
    alone."""
    target, known = npulab.target("vivante"), facts.FACTS.features(chip)
    conv, plan, _ = lowering.planned(layer, known, set(features))
    values = words.nn_values(
        conv, plan, known, set(features), words.cached_bytes(plan, known, streams, largest)
    )
    where = {
        "kernel_address": 0x40000000,
        "in_image_address": 0x60000000,
        "out_image_address": 0x70000000,
    }
    return target.maps(chip)["NN"].encode(values | where)


# What Mesa's encoder made


@pytest.mark.sample(5)
@pytest.mark.parametrize("number", range(18))
def test_vector_of_mesa(number: int, vivante: Target) -> None:
    """Words, TP words and coefficient bytes as the driver has them, and the layer back from
    them.
    """
    entry = json.loads(shared("data/vivante/vectors/index.json").read_text())[number]
    with np.load(shared(f"data/vivante/vectors/{entry['id']}.npz")) as data:
        layer, x = layer_of(entry, data), data["input_hwc"]
        # the harness gives every job the same addresses
        where = {"tensor": 0x60000000, "input": 0x70000000} if entry["n_tp_jobs"] else {}
        capture = vivante.lower(layer, chip=CHIPS[entry["nn_version"]], x=x, addresses=where)
        assert np.array_equal(blocks(capture, "TP"), data["tp_words"]) or not entry["n_tp_jobs"]
        assert len(blocks(capture, "TP")) == entry["n_tp_jobs"]
        capture = vivante.lower(layer, chip=CHIPS[entry["nn_version"]], x=x)
        assert capture.words.tolist() == data["nn_words"].tolist()
        assert capture.buffers["coefficients"] == data["coef"].tobytes()
        assert np.array_equal(accumulate(layer, x), data["acc_hwc"])
        ran = Simulated().record(capture)
        for known in (capture.parameters, {}):
            found = npulab.check(replace(ran, parameters=known))
            assert (found.verdict, found.words, found.coefficients) == ("equal", True, True), found
            lifted = vivante.lift(replace(ran, parameters=known))
            for name in ("weights", "bias"):
                assert np.array_equal(getattr(lifted.layer, name), getattr(layer, name))
            for name in ("input_shape", "stride", "pads", "depthwise", "activation"):
                assert getattr(lifted.layer, name) == getattr(layer, name), name
            assert np.array_equal(lifted.x, x)
            assert vivante.lower(lifted.layer, chip=capture.chip, x=lifted.x).jobs == capture.jobs


@cache
def sweep() -> tuple[np.ndarray, list[dict[str, float]]]:
    with np.load(shared("data/vivante/sweep_imx8mp.npz")) as data:
        names = [str(name) for name in data["names"]]
        return data["words"], [
            dict(zip(names, row, strict=True)) for row in data["parameters"].tolist()
        ]


def layer_with(known: Mapping[str, float]) -> Conv2D:
    """A layer of these parameters, with some weights."""
    whole = {name: int(value) for name, value in known.items()}
    kernels = whole["output_c"]
    if whole["depthwise"]:
        kernels = 1
    shape = kernels, whole["kernel_h"], whole["kernel_w"], whole["input_c"]
    quantization = {}
    for name in ("input", "weight", "output"):
        scale, zero = known[f"{name}_scale"], whole[f"{name}_zero_point"]
        quantization[f"{name}_q"] = Q(scale, zero)
    return Conv2D(
        np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8),
        np.zeros(whole["output_c"], np.int32),
        (whole["input_h"], whole["input_w"], whole["input_c"]),
        (whole["stride"],) * 2,
        "same" if whole["same"] else "valid",
        depthwise=bool(whole["depthwise"]),
        activation="relu" if whole["relu"] else None,
        **quantization,
    )


def words_of(p: Mapping[str, float], features: tuple[str, ...]) -> np.ndarray:
    """The words from what a person knows of a layer of the sweep."""
    n = {name: int(value) for name, value in p.items()}
    layer = layer_with({**p, "kernel_h": p["kernel"], "kernel_w": p["kernel"]})
    return nn_words(
        layer, IMX8MP, n["coefficient_bytes"], n["largest_core_stream_bytes"], features=features
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("part", range(4))
def test_sweep_of_mesa_word_for_word(part: int) -> None:
    want, parameters = sweep()
    assert want.shape == (800, 34)
    got = [words_of(p, ("mesa-offsets",)) for p in parameters[part::4]]
    assert np.array_equal(got, want[part::4])


def test_sweep_differs_where_mesa_has_no_offset_for_odd_stride2_depthwise(vivante: Target) -> None:
    """A defect of Mesa: stride 2 depthwise layers of an odd width other than 5 get no offset, or an
    offset that is too small."""
    want, parameters = sweep()
    registers, offsets = vivante.maps(IMX8MP)["NN"], ("in_image_x_offset", "in_image_y_offset")
    seen = 0
    for row, p in zip(want, parameters, strict=True):
        if p["depthwise"] and p["stride"] == 2 and p["same"]:
            got, mesas = registers.decode(words_of(p, ())), registers.decode(row)
            wrong = {name for name in got if str(got[name]) != str(mesas[name])}
            assert wrong == (
                {*offsets} if p["input_w"] % 2 and p["input_w"] != 5 and p["kernel"] > 1 else set()
            )
            seen += bool(wrong)
    assert seen == 10


def test_fully_connected_is_a_convolution_of_the_whole_image(vivante: Target) -> None:
    """Columns, then rows, are the largest divisors up to 15."""
    random = np.random.RandomState(1)
    for inputs, shape in (
        (120, (8, 15, 1)),
        (121, (11, 11, 1)),
        (450, (15, 15, 2)),
        (17, (1, 1, 17)),
        (62, (1, 2, 31)),
    ):
        layer = FullyConnected(
            random.randint(0, 256, (9, inputs)).astype(np.uint8),
            random.randint(-999, 999, 9),
            weight_q=Q(0.01, 99),
            output_q=Q(9.0, 120),
        )
        conv = plans.as_convolution(layer, {})
        assert conv.input_shape == shape == (*conv.kernel, shape[2])
        x = random.randint(0, 256, inputs).astype(np.uint8)
        capture = Simulated().record(vivante.lower(layer, chip=IMX8MP, x=x))
        want = npulab.emulate(layer, x, vivante.rule_of(capture))
        assert capture.buffers["output"] == want.tobytes()
        assert capture.values["kernel_z_size"] == shape[2]


@pytest.mark.parametrize(
    ("shape", "cut"),
    [
        ((16, 16, 3), (6, 128)),
        ((8, 8, 2), (2, 64)),
        ((8, 4, 5), (5, 32)),
        ((7, 9, 2), (2, 63)),
        ((5, 25, 1), (5, 25)),
        ((11, 13, 1), (11, 13)),
    ],
)
def test_addition_is_a_2x2_convolution_over_two_planes(
    shape: tuple[int, int, int], cut: tuple[int, int], vivante: Target
) -> None:
    for scales, points in (
        ((0.02, 0.03), (7, 200)),
        ((0.05, 0.01), (128, 5)),
        ((0.01, 0.01), (0, 255)),
    ):
        layer = Add(
            shape,
            None,
            Q(scales[0], points[0]),
            Q(scales[1], points[1]),
            Q(sum(scales), 110),
            "uint8",
        )
        ratio = float(np.float32(scales[1]) / np.float32(scales[0]))
        scale = max(ratio, 1) / 255
        ours, theirs = np.floor(1 / scale + 0.5), np.floor(ratio / scale + 0.5)
        x = np.random.RandomState(2).randint(0, 256, (2, *shape)).astype(np.uint8)
        capture = Simulated().record(vivante.lower(layer, x=tuple(x)))
        v, lifted = capture.values, vivante.lift(capture)
        assert (
            v["in_image_y_size"],
            v["in_image_x_size"],
            v["kernel_z_size"],
            v["out_image_z_size"],
        ) == (*cut, 2, 1)
        assert (
            v["kernel_y_size"],
            v["kernel_xy_size"],
            v["coef_zero_point"],
            v["in_image_x_offset"],
        ) == (2, 2, 0, 0)
        assert lifted.layer.weights[0, 0, 0].tolist() == [ours, theirs]
        assert np.count_nonzero(lifted.layer.weights) <= 2
        stored = [item.value for item in vivante.explain(capture) if item.kind == "bias"]
        want = np.floor(abs((points[0] - points[1]) * ratio / scale) + 0.5) * np.sign(
            points[0] - points[1]
        )
        assert stored == [int(want - theirs * points[0] - ours * points[0]) % 2**32]
        assert [
            item.value for item in vivante.explain(capture) if item.kind == "zero-run width"
        ] == [0]
        output = (
            np.frombuffer(capture.buffers["output"], np.uint8)
            .reshape(shape[2], *shape[:2])
            .transpose(1, 2, 0)
        )
        near = npulab.emulate(layer, tuple(x), "tflite-reference").astype(int)
        assert np.max(np.abs(output - near)) <= 2


def test_addition_on_v8_is_pointwise_over_twice_the_channels(vivante: Target) -> None:
    layer = Add((3, 4, 5), None, Q(0.02, 9), Q(0.03, 77), Q(0.05, 110), "uint8")
    x = np.random.RandomState(3).randint(0, 256, (2, 3, 4, 5)).astype(np.uint8)
    capture = Simulated().record(vivante.lower(layer, chip=IMX8MP, x=tuple(x)))
    v = capture.values
    assert (v["kernel_xy_size"], v["kernel_z_size"], v["out_image_z_size"]) == (1, 10, 5)
    output = np.frombuffer(capture.buffers["output"], np.uint8).reshape(5, 3, 4).transpose(1, 2, 0)
    assert (
        np.max(np.abs(output - npulab.emulate(layer, tuple(x), "tflite-reference").astype(int)))
        <= 2
    )


def test_int8_model_decides_the_symbol_map(vivante: Target) -> None:
    """Weights near 0 are short as int8; moved up by 128 they are long, and V8 counts them as the
    model has them.
    """
    weights = np.random.RandomState(4).randint(-3, 4, (4, 3, 3, 2)).astype(np.int8)
    layer = Conv2D(
        weights,
        np.zeros(4, int),
        (6, 6, 2),
        input_q=Q(0.1, -3),
        weight_q=Q(0.1, 0),
        output_q=Q(0.5, 4),
    )
    capture = vivante.lower(layer, chip=IMX8MP)
    lifted = vivante.lift(capture).layer
    assert lifted.driver_quirks == {quirks.INT8_MODEL}
    assert (
        vivante.lower(lifted, chip=IMX8MP).buffers["coefficients"]
        == capture.buffers["coefficients"]
    )
    plain = vivante.lower(replace(lifted, driver_quirks=frozenset()), chip=IMX8MP)
    assert plain.buffers["coefficients"] != capture.buffers["coefficients"]


# Chips whose coefficients nobody knows


def test_words_only_have_the_cores_of_their_chip(vivante: Target) -> None:
    layer = Conv2D(
        np.zeros((20, 3, 3, 2), np.uint8), np.zeros(20, int), (12, 12, 2), weight_q=Q(0.1)
    )
    shares = {
        chip: vivante.lower(layer, chip=chip).values["kernels_per_core"]
        for chip in (A311D, S905D3, STM32MP25, IMX8MP)
    }
    assert shares == {A311D: 3, S905D3: 10, STM32MP25: 10, IMX8MP: 4}


# The formulas


FACTS = {"nn_cores": 8, "sram": 524288, "input_depth": 12, "accumulation_depth": 64}
V8 = {"nn_cores": 6, "sram": 262144, "input_depth": 9, "accumulation_depth": 32, "nn_v8": 1}


def low(
    channels: int = 8,
    planes: int = 3,
    kernel: int = 3,
    width: int = 20,
    stride: int = 1,
    **more: Any,
) -> plans.Lowered:
    return plans.Lowered(
        np.zeros((channels, planes, kernel, kernel), np.uint8),
        planes,
        width,
        width,
        (0, 0),
        more.pop("output", (width, width)),
        stride,
        **more,
    )


@pytest.mark.parametrize(
    ("kernel", "tile", "v7", "v8"),
    [
        (3, 64, 1, 1),
        (3, 35, 1, 1),
        (1, 36, 1, 1),
        (3, 33, 1, 1),
        (3, 32, 2, 2),
        (5, 32, 2, 2),
        (6, 32, 1, 1),
        (3, 17, 2, 2),
        (3, 16, 2, 4),
        (4, 16, 4, 2),
        (3, 9, 2, 4),
        (1, 8, 2, 4),
        (11, 9, 4, 2),
        (12, 8, 4, 2),
        (11, 8, 2, 4),
    ],
)
def test_interleave_mode(kernel: int, tile: int, v7: int, v8: int) -> None:
    assert (words.interleave(kernel, tile, FACTS), words.interleave(kernel, tile, V8)) == (v7, v8)


@pytest.mark.parametrize(
    ("given", "v7", "v8"),
    [
        ({"width": 20}, ((20, 20), 1), ((4, 20), 1)),
        ({"width": 70}, ((10, 64), 1), ((4, 64), 1)),
        ({"width": 70, "kernel": 1}, ((12, 64), 1), ((4, 64), 1)),
        ({"width": 7, "stride": 2}, ((6, 7), 1), ((4, 7), 1)),
        ({"width": 3, "stride": 2}, ((2, 3), 1), ((2, 3), 1)),
        ({"width": 1, "stride": 2}, ((1, 1), 1), ((1, 1), 1)),
        ({"width": 16, "channels": 256, "stride": 1}, ((16, 16), 4), ((4, 16), 3)),
        ({"width": 16, "channels": 256, "stride": 2}, ((16, 16), 4), ((4, 16), 3)),
        ({"width": 16, "channels": 256, "kernel": 1}, ((16, 16), 4), ((4, 16), 3)),
        ({"width": 1, "channels": 1280, "kernel": 1}, ((1, 1), 8), ((1, 1), 11)),
        ({"width": 1, "channels": 1280, "kernel": 3}, ((1, 1), 2), ((1, 1), 11)),
    ],
)
def test_tiling_and_superblocks(given: dict[str, int], v7: Any, v8: Any) -> None:
    assert (words.tiling(low(**given), FACTS), words.tiling(low(**given), V8)) == (v7, v8)


@pytest.mark.parametrize(
    ("channels", "msb", "pattern_low", "high"),
    [
        (1024, 0x13, 0x80000, 0),
        (1023, 0x3D, 0, 0x2AAAAAA0),
        (512, 0x3D, 0, 0x2AAAAAA0),
        (511, 0x3E, 0xFFFFAAAA, 0x7FFFFFFF),
        (256, 0x3E, 0xFFFFAAAA, 0x7FFFFFFF),
        (255, 6, 0x7E, 0),
        (160, 6, 0x7E, 0),
        (159, 0x3F, 0xFFFFFFFE, 0xFFFFFFFF),
    ],
)
def test_kernel_patterns_of_partial_caching(
    channels: int, msb: int, pattern_low: int, high: int
) -> None:
    got = words._caches(low(channels), FACTS, (16, 16), 1, 524288 - 0x800)
    assert got == {
        "kernel_caching_mode": "partial",
        "kernel_cache_start_address": 0x800,
        "kernel_cache_end_address": 524288,
        "kernel_pattern_msb": msb,
        "kernel_pattern_low": pattern_low,
        "kernel_pattern_high": high,
        "image_caching_mode": "none",
        "image_cache_start_address": 0,
        "image_cache_end_address": 0x800,
    }
    on_v8 = words._caches(low(channels), V8, (16, 16), 1, 262144)
    assert (on_v8["kernel_caching_mode"], on_v8["kernel_pattern_msb"]) == ("none", msb)


@pytest.mark.parametrize(
    ("planes", "tile", "blocks", "cached", "want"),
    [
        (
            3,
            (8, 8),
            1,
            64,
            ("full", 0xA00, "none", 0, 0x800),
        ),  # (mode, kernel end, image mode, image start and end)
        (3, (8, 8), 1, 513, ("full", 0xA80, "none", 0, 0x800)),
        (3, (8, 8), 1, 524288 - 0x800 - 1, ("full", 524288, "none", 0, 0x800)),
        (3, (8, 8), 2, 513, ("full", 0xA80, "full", 0, 0x800)),  # 384 bytes of image are too few
        (64, (8, 8), 2, 513, ("full", 0xA80, "full", 0xA80, 0xA80 + 7168)),
        (
            64,
            (8, 8),
            2,
            524288 - 0x800 - 7168,
            ("partial", 524288 - 7168, "full", 524288 - 7168, 524288),
        ),
        (64, (8, 8), 2, 524288 - 0x800, ("partial", 524288, "none", 0, 0x800)),
        (9000, (8, 8), 2, 513, ("partial", 524288, "none", 0, 0x800)),
    ],
)  # an image larger than the memory
def test_caches(
    planes: int, tile: tuple[int, int], blocks: int, cached: int, want: tuple[Any, ...]
) -> None:
    got = words._caches(low(planes=planes), FACTS, tile, blocks, cached)
    names = (
        "kernel_caching_mode",
        "kernel_cache_end_address",
        "image_caching_mode",
        "image_cache_start_address",
        "image_cache_end_address",
    )
    assert tuple(got[name] for name in names) == want


def test_partial_caching_reaches_the_words(vivante: Target) -> None:
    layer = Conv2D(
        np.zeros((600, 3, 3, 400), np.uint8),
        np.zeros(600, int),
        (7, 7, 400),
        padding="same",
        weight_q=Q(0.1, 7),
    )
    registers = vivante.maps(A311D)["NN"]
    v = registers.decode(nn_words(layer, A311D, 2_300_000, 290_048))
    assert (v["kernel_caching_mode"], v["kernel_cache_end_address"], v["kernel_pattern_msb"]) == (
        2,
        524288,
        0x3D,
    )


@pytest.mark.parametrize("scale", [0.0053937435, 1.0, 0.5, 2.0**-20, 0.99999994, 3e-5])
def test_multiplier_and_shift_from_the_bits_of_the_scale(scale: float) -> None:
    bits = int(np.float32(scale).view(np.uint32))
    exponent, mantissa = divmod(bits, 2**23)
    assert words.multiplier_of({}, scale, 1.0, 1.0) == (mantissa // 2**8, 142 - exponent)
    assert words.multiplier_of({"nn_v8": 1}, scale, 1.0, 1.0) == (mantissa, 127 - exponent)
    assert words.ratio_of({"nn_v8": 1}, mantissa, 127 - exponent) == np.float32(scale)


def offsets(
    kernel: int,
    width: int,
    stride: int,
    chip: str,
    features: tuple[str, ...] = (),
    depthwise: bool = False,
) -> list[int]:
    layer = Conv2D(
        np.zeros((1, kernel, kernel, 3) if depthwise else (3, kernel, kernel, 3), np.uint8),
        np.zeros(3, int),
        (width, width, 3),
        (stride, stride),
        "same",
        depthwise=depthwise,
        weight_q=Q(0.1),
    )
    v = (
        npulab.target("vivante")
        .maps(chip)["NN"]
        .decode(nn_words(layer, chip, 999, 64, features=features))
    )
    return [int(v[f"in_image_{axis}_offset"]) for axis in "xy"]


@pytest.mark.parametrize("chip", [A311D, IMX8MP])
def test_offsets_of_same_are_mesas_where_those_are_right(chip: str) -> None:
    mesa = ("mesa-offsets",)
    for kernel, want in ((1, 0), (2, 0), (3, -1), (4, -1), (5, -2), (6, -2)):
        assert offsets(kernel, 12, 1, chip) == offsets(kernel, 12, 1, chip, mesa) == [want, want]
    assert (
        offsets(3, 12, 2, chip) == offsets(3, 12, 2, chip, mesa) == [0, 0]
    )  # its planes hold the border
    for kernel, width, want in ((3, 12, 0), (5, 12, -1), (5, 8, -1)):
        assert (
            offsets(kernel, width, 2, chip, (), True)
            == offsets(kernel, width, 2, chip, mesa, True)
            == [want, want]
        )
    assert offsets(3, 5, 2, IMX8MP, (), True) == offsets(3, 5, 2, IMX8MP, mesa, True) == [-1, -1]
    assert offsets(5, 5, 2, IMX8MP, (), True) == offsets(5, 5, 2, IMX8MP, mesa, True) == [-2, -2]


# What Mesa does that looks broken


@pytest.mark.parametrize("width", [9, 11, 13])
@pytest.mark.parametrize("kernel", [3, 5])
def test_no_offset_for_odd_stride2_depthwise_is_mesas_alone(width: int, kernel: int) -> None:
    """Facts, section 9: odd-sized stride 2 depthwise `same` layers other than width 5 get no
    offset (5x5: too small).
    """
    for chip in (A311D, IMX8MP):
        assert offsets(kernel, width, 2, chip, (), True) == [-(kernel // 2)] * 2
        assert offsets(kernel, width, 2, chip, ("mesa-offsets",), True) == [1 - kernel // 2] * 2


def test_offset_past_5x5_is_mesas_alone() -> None:
    assert offsets(7, 12, 1, A311D) == [-3, -3]
    assert offsets(7, 12, 1, A311D, ("mesa-offsets",)) == [-2, -2]


@pytest.mark.parametrize("width", range(3, 10))
def test_kernel_of_depthwise_6_and_7_wide_is_split_by_mesa_alone(
    width: int, vivante: Target
) -> None:
    """Facts, section 9: V7 stride 2 depthwise kernels are split up to 7, inputs reshuffled up to
    5.
    """
    layer = Conv2D(
        np.zeros((1, 3, 3, 4), np.uint8),
        np.zeros(4, int),
        (width, width, 4),
        (2, 2),
        "same",
        depthwise=True,
        weight_q=Q(0.1, 9),
    )
    capture, broken = vivante.lower(layer), vivante.lower(layer, features=["kernel-split-6-7"])
    split, pooled = ("none", 16, 2), ("first_pixel", 4, 3)
    seen = [
        (facts_of["pooling"], facts_of["kernel_z_size"], facts_of["kernel_xy_size"])
        for facts_of in (
            one.values | {"pooling": {0: "none", 3: "first_pixel"}[int(one.values["pooling"])]}
            for one in (capture, broken)
        )
    ]
    assert seen == [split if width <= 5 else pooled, split if width <= 7 else pooled]
    assert [len(blocks(one, "TP")) > 0 for one in (capture, broken)] == [width <= 5] * 2


def test_slots_past_the_last_channel_hold_zero_points(vivante: Target) -> None:
    """Facts, section 9: where channels do not divide over the cores Mesa reads past weights and
    biases.
    """
    layer = Conv2D(
        np.full((9, 3, 3, 2), 200, np.uint8), np.full(9, 77), (6, 6, 2), weight_q=Q(0.1, 33)
    )
    items = vivante.explain(vivante.lower(layer))
    past = [item for item in items if item.channel is not None and item.channel >= 9]
    assert {item.value for item in past if item.kind == "weight"} == {33}
    assert {item.value for item in past if item.kind == "bias"} == {0}
    assert len({item.channel for item in past}) == 7


@pytest.mark.parametrize("width", range(1, 8))
@pytest.mark.parametrize("kernel", [3, 5])
def test_tp_jobs_of_a_small_image_do_not_read_past_it(
    kernel: int, width: int, vivante: Target
) -> None:
    """Mesa gives a core the next plane's rows, or a size below 0, where an image has fewer rows
    than the cores take.
    """
    layer, x = (
        Conv2D(
            np.arange(kernel * kernel * 6).reshape(2, kernel, kernel, 3).astype(np.uint8),
            np.zeros(2, int),
            (width, width, 3),
            (2, 2),
            "same",
            input_q=Q(0.1, 50),
            weight_q=Q(0.1, 9),
            output_q=Q(9.0, 50),
        ),
        None,
    )
    x = np.random.RandomState(width).randint(0, 256, layer.input_shape).astype(np.uint8)
    capture = Simulated().record(vivante.lower(layer, x=x))
    assert npulab.check(capture).verdict == "equal"
    registers = vivante.maps(A311D)["TP"]
    parts = [registers.decode(one) for one in blocks(capture, "TP")]
    assert (
        sum(part["in_image_y_size"] for part in parts) == width
        or len({p["in_image_y_size"] for p in parts}) == 1
    )
    assert all(part["in_tile_x_size"] and part["in_tile_y_size"] for part in parts)


@pytest.mark.parametrize(
    ("features", "addresses", "text"),
    [
        (["dream"], {}, "features: got 'dream', allowed are hwc-tensors, "),
        ([], {"weights": 64}, "addresses: got 'weights', allowed"),
    ],
)
def test_unknown_feature_or_address(
    features: list[str], addresses: dict[str, int], text: str, vivante: Target
) -> None:
    layer = Conv2D(np.zeros((4, 3, 3, 1), np.uint8), np.zeros(4, int), (8, 8, 1), weight_q=Q(0.1))
    with pytest.raises(LookupError, match=text):
        vivante.lower(layer, features=features, addresses=addresses)


# TP jobs


def test_tp_table_is_that_of_the_facts(vivante: Target) -> None:
    with shared("facts/vivante_tp_fields.csv").open() as file:
        want = {
            (int(row["word"]), int(row["lsb"]), int(row["width"]), row["name_mesa"])
            for row in csv.DictReader(file)
            if not row["name_mesa"].startswith("unused")
        }
    registers = vivante.maps(A311D)["TP"]
    got = {
        (piece.word, piece.lsb, piece.width, item.name + ("_5_6" if piece.at else ""))
        for item in registers
        if not item.automatic
        for piece in item.pieces
    }
    assert got == want
    assert len(registers) == 31


ENDS = moves.Ends(0x1000, 0x100000, 9)


def moved(jobs: list[dict[str, Any]], data: np.ndarray, size: int) -> np.ndarray:
    """What TP jobs make of a tensor at address 0x1000, at 0x100000."""
    memory, registers = memory_of.Memory({"a": data.tobytes()}, {"a": 0x1000}), facts.TABLES["TP"]
    for job in jobs:
        simulate.move(registers.decode(registers.encode(job)), memory)
    out = memory.stretch(0x100000)
    assert len(out) == size
    return np.frombuffer(out, np.uint8)


@pytest.mark.parametrize("cores", [1, 3, 4])
@pytest.mark.parametrize("image", [(1, 9, 7), (3, 8, 8), (6, 5, 4), (2, 4, 21), (9, 1, 1)])
def test_tp_jobs_move_what_they_should(image: tuple[int, int, int], cores: int) -> None:
    planar = np.random.RandomState(5).randint(0, 256, image).astype(np.uint8)
    channels, height, width = image
    hwc = planar.transpose(1, 2, 0)
    got = moved(moves.transpose(image, ENDS), hwc, planar.size)
    assert np.array_equal(got, planar.ravel())
    got = moved(moves.detranspose(image, ENDS), planar, planar.size)
    assert np.array_equal(got, hwc.ravel())
    border = ((1, 2), (0, 3))
    want = np.pad(planar, [(0, 0), *border], constant_values=9)
    got = moved(moves.pad(image, border, cores, ENDS), planar, want.size)
    assert np.array_equal(got, want.ravel())
    for top, left in ((0, 0), (1, 1), (2, 1), (0, 3)):
        rows, columns = (height + top + 2) // 2, (width + left + 3) // 2
        jobs = moves.reshuffle(image, (rows, columns), (top, left), cores, ENDS)
        want = np.full((channels, 2, 2, rows, columns), 9, np.uint8)
        for y in range(
            height
        ):  # plane 4 c + 2 dy + dx holds every other row and column from dy, dx on
            for x in range(width):
                row, column = y + top, x + left
                want[:, row % 2, column % 2, row // 2, column // 2] = planar[:, y, x]
        assert np.array_equal(moved(jobs, planar, want.size), want.ravel())
        assert len(jobs) <= cores
        assert [job["no_flush"] for job in jobs] == [1] * (len(jobs) - 1) + [0]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"alu_relu_enable": 1}, "alu_relu_enable is 1"),
        ({"in_tile_x_inc": 3}, "tiles of 2, 3 apart"),
        ({"out_zp": 3}, "zero points"),
        ({"out_loop_2_count": 0}, "out_loop_2_count is 0"),
        ({"in_image_base_address": 0x9000}, "near 0x9000 that holds nothing"),
        ({"last": 0}, "last is 0"),
        ({"in_tile_y_size": 0, "in_tile_y_inc": 0}, "tiles of 0"),
        (
            {"in_image_z_size": 65535, "in_window_x_end": 29999, "in_window_y_end": 29999},
            "it moves ",
        ),
    ],
)
def test_tp_job_that_nobody_knows_hangs(change: dict[str, int], text: str) -> None:
    (job,) = moves.reshuffle((1, 2, 2), (1, 1), (0, 0), 4, ENDS)
    with pytest.raises(Hang, match=text):
        moved([{**job, **change}], np.zeros(4, np.uint8), 4)


@pytest.mark.parametrize(
    ("image", "cores"),
    [
        ((1, 8, 8), 1),
        ((1, 9, 9), 4),
        ((2, 8, 8), 4),
        ((3, 224, 224), 1),
        ((3, 320, 320), 1),
        ((3, 225, 225), 4),
        ((4, 224, 224), 4),
    ],
)
def test_cores_that_share_a_reshuffle(image: tuple[int, int, int], cores: int) -> None:
    planes = image[1] // 2, image[2] // 2
    assert len(moves.reshuffle(image, planes, (0, 0), 4, ENDS)) == cores


# Jobs, commands and the device


def strided(**options: Any) -> tuple[Conv2D, np.ndarray]:
    random = np.random.RandomState(6)
    layer = Conv2D(
        random.randint(0, 256, (6, 3, 3, 5)).astype(np.uint8),
        random.randint(-99, 99, 6),
        (9, 12, 5),
        (2, 2),
        **{
            "padding": "same",
            "input_q": Q(0.1, 40),
            "weight_q": Q(0.1, 99),
            "output_q": Q(9.0, 88),
            **options,
        },
    )
    return layer, random.randint(0, 256, layer.input_shape).astype(np.uint8)


def test_jobs_in_order_and_the_states_that_start_them(vivante: Target) -> None:
    layer, x = strided(padding=((1, 1), (1, 2)))
    capture = vivante.lower(layer, x=x, features=["hwc-tensors", "pad-job"])
    assert [job.block for job in capture.jobs] == ["TP"] * 9 + ["NN", "TP"]
    assert capture.main == 9
    assert capture.words.tolist() == capture.jobs[9].words.tolist()
    states = [dict(job.start.writes) for job in capture.jobs]
    assert [state.get(0x3950) for state in states] == [0, 8, 8, 8, 0, 0, 0, 0, 0, None, 0]
    slots = [state[0x10B8] % 64 for state in states if 0x10B8 in state]
    assert slots == [0, 1, 1, 1, 0, 1, 1, 1, 0, 0]
    assert len({state[0x10B8] // 128 for state in states if 0x10B8 in state}) == 10
    assert [0x10A4 in state for state in states] == [slot == 0 for slot in [*slots[:9], 0, 0]]
    assert states[0][0x384C] == 2
    assert states[10][0x380C] == 0xC23
    flat = [state for job in capture.jobs for state in job.start.writes]
    assert commands.writes(np.frombuffer(capture.buffers["commands"], "<u4")) == flat
    assert {state for state in flat if state[0] in (0x393C, 0x3940, 0x394C, 0x3930)} == {
        (0x393C, 0),
        (0x3940, 0),
        (0x394C, 0),
        (0x3930, 0x10),
    }


def test_capture_of_several_jobs_is_saved_and_loaded(vivante: Target, tmp_path: Path) -> None:
    layer, x = strided()
    capture = Simulated().record(vivante.lower(layer, x=x, name="several"))
    again = npulab.load(npulab.save(capture, tmp_path / "several"))
    assert again == capture
    assert npulab.check(again).verdict == "equal"
    assert npulab.diff(again, capture).empty


def test_tensors_as_a_model_has_them(vivante: Target) -> None:
    """With the features of a whole model input and output are H x W x C."""
    layer, x = strided()
    capture = Simulated().record(vivante.lower(layer, x=x, features=["hwc-tensors"]))
    assert capture.buffers["tensor"] == x.tobytes()
    assert capture.buffers["output"] == npulab.emulate(layer, x, vivante.rule).tobytes()
    assert npulab.check(capture).verdict == "equal"


@pytest.mark.parametrize(
    ("drop", "text"), [("tensor", "holds nothing"), ("coefficients", "no room for its header")]
)
def test_missing_buffer_hangs_the_device(drop: str, text: str, vivante: Target) -> None:
    layer, x = strided()
    capture = vivante.lower(layer, x=x)
    less = replace(
        capture,
        buffers={
            name: data for name, data in capture.buffers.items() if name not in (drop, "input")
        },
    )
    with pytest.raises(Hang, match=text):
        simulate.simulate(less)


def test_device_follows_the_words_of_tp_jobs(vivante: Target) -> None:
    """The NN job reads what the TP jobs made, whatever lay there."""
    layer, x = strided()
    capture = vivante.lower(layer, x=x)
    want = simulate.simulate(capture)
    assert (
        simulate.simulate(capture.with_buffers(input=bytes(len(capture.buffers["input"])))) == want
    )
    assert simulate.simulate(capture.with_buffers(tensor=bytes(x.size))) != want
    assert simulate.simulate(capture.with_fields(0, in_zp=3, out_zp=3)) != want


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        (0, 0x11, "begins with 1100"),
        (1, 5, "begins with 1005"),
        (1, 4, "past the end|kernels end after"),
        (28, 1, "past the end of its coefficient stream"),
        (31, 1, "go past its"),
        (23, 0xFF, "go past its"),
        (64, 0xFF, "past the end|kernels end after|go past"),
    ],
)
def test_broken_v8_stream_hangs_the_device(
    place: int, value: int, text: str, vivante: Target
) -> None:
    layer, x = random_layer(0, IMX8MP)[:2]
    capture = vivante.lower(layer, chip=IMX8MP, x=x)
    data = bytearray(capture.buffers["coefficients"])
    data[place] = value
    with pytest.raises(Hang, match=text):
        simulate.simulate(capture.with_buffers(coefficients=bytes(data)))


def test_lift_refuses_tp_jobs_that_do_not_belong(vivante: Target) -> None:
    layer, x = strided()
    capture = vivante.lower(layer, x=x, features=["hwc-tensors"])
    turned = replace(capture, jobs=(*capture.jobs[1:], capture.jobs[0]))
    with pytest.raises(ValueError, match=r"^lift for vivante: "):
        vivante.lift(turned)
    with pytest.raises(Unsupported, match="a layer is lifted from one NN job"):
        vivante.lift(replace(capture, jobs=(*capture.jobs, capture.jobs[capture.main])))


@pytest.mark.parametrize(
    ("chosen", "told"), [("TP", "jobs TP, TP, TP, TP, TP"), ("none", "no jobs")]
)
def test_capture_without_an_nn_job_is_a_sentence(chosen: str, told: str, vivante: Target) -> None:
    layer, x = strided()
    capture = vivante.lower(layer, x=x, features=["hwc-tensors"])
    less = replace(capture, jobs=tuple(job for job in capture.jobs if job.block == chosen)[:5])
    for ask in (vivante.lift, vivante.recode, vivante.explain, vivante.rule_of):
        with pytest.raises(Unsupported, match=f"^capture lowered: got {told}, "):
            ask(less)
    found = npulab.check(less)
    said = f"capture lowered: got {told}, allowed are captures with an NN job"
    assert (found.verdict, found.reason) == ("nothing to compare", said)
    assert vivante.outline(less) == {}
    assert vivante.outline(replace(capture, chip="of tomorrow")) == {}
    with pytest.raises(Hang if less.jobs else Unsupported):
        simulate.simulate(less)


@pytest.mark.parametrize(
    ("task", "change"),
    [
        (0, {"in_zp": 3, "out_zp": 3}),
        (0, {"out_loop_3_inc": 8}),
        (1, {"in_window_x_start": 1}),
        (2, {"no_flush": 0}),
        (1, {"out_image_base_address": 0x70}),
        (0, {"in_image_slice": 109}),
        (2, {"alu_relu_enable": 1}),
    ],
)
def test_lift_refuses_tp_jobs_that_do_something_else(
    task: int, change: dict[str, int], vivante: Target
) -> None:
    layer, x = strided()
    capture = Simulated().record(vivante.lower(layer, x=x))
    with pytest.raises(ValueError, match=r"^lift for vivante: "):
        vivante.lift(capture.with_fields(task, **change))
    assert npulab.check(capture.with_fields(task, **change)).verdict == "differs"


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (
            np.zeros((3, 3, 2), np.uint8),
            r"^x: got shape \(3, 3, 2\) uint8, allowed is a pair, each \(3, 3, 2\) of the layer's uint8$",
        ),
        ((np.zeros((3, 3, 2), np.uint8),) * 3, "allowed is a pair"),
        ((np.zeros((3, 3), np.uint8),) * 2, r"got shape \(3, 3\) uint8 and"),
    ],
)
def test_addition_takes_a_pair(x: Any, text: str, vivante: Target) -> None:
    layer = Add((3, 3, 2), None, Q(0.1), Q(0.1), Q(0.2), "uint8")
    with pytest.raises(ValueError, match=text):
        vivante.lower(layer, x=x)


def test_what_is_no_layer_of_the_unit(vivante: Target) -> None:
    pool = npulab.Pool2D("max", (2, 2), (4, 4, 1))
    with pytest.raises(
        ValueError, match=r"allowed is a Conv2D, FullyConnected or Add of uint8 or int8$"
    ):
        vivante.lower(pool)
    with pytest.raises(ValueError, match="got the feature hwc-tensors with Add"):
        vivante.lower(Add((3, 3, 2), dtype="uint8"), features=["hwc-tensors"])
    with pytest.raises(ValueError, match="tensors of up to three axes"):
        vivante.lower(Add((1, 3, 3, 2), dtype="uint8"))
