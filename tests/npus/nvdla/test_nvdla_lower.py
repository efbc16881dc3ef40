"""Layers to register programs and back, and what the simulated device makes of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from case_tables import cases, fields
from conftest import CAPTURES
from nvdla_layers import KINDS, public_traces, random_layer
from record_simulated_nvdla import record
from record_sweeps_nvdla import LAYERS, row, sweep

import npulab
from npulab.captures.devices import Simulated
from npulab.captures.target import Hang, Unsupported
from npulab.npus.kit.fields import values_of
from npulab.npus.nvdla.facts import CHIPS, TABLES
from npulab.npus.nvdla.lowering import averages, lower
from npulab.npus.nvdla.simulate import executed, simulate
from npulab.quant.layers import Add, Conv2D, Pool2D
from npulab.quant.rules import QuantParams, rule

NVDLA = npulab.target("nvdla")


def names(layer: Any) -> dict[str, Any]:
    """What words carry of a layer."""
    if isinstance(layer, Add):
        ratio = float(layer.output_q.scale) / float(layer.input_q.scale)
        return {
            "shape": layer.input_shape,
            "relu": layer.activation,
            "ratio": ratio,
            "zero": layer.output_q.zero_point,
            "zeros": layer.input_q.zero_point + layer.other_q.zero_point,
        }
    common = {
        "shape": layer.input_shape,
        "kernel": layer.kernel,
        "stride": layer.stride,
        "pads": layer.pads,
        "relu": layer.activation,
        "out": layer.output_shape,
    }
    if isinstance(layer, Pool2D):
        # padding after the input that no window reaches is not written: it would hang the RTL
        pads = []
        for axis, (before, after) in enumerate(layer.pads):
            steps = layer.stride[axis] * (layer.output_shape[axis] - 1)
            needed = steps + layer.kernel[axis] - before - layer.input_shape[axis]
            pads.append((before, min(after, max(needed, 0))))
        return common | {"kind": layer.kind, "pads": tuple(pads)}
    multiplier, shift = rule("nvdla").multiplier(
        layer.input_q.scale,
        np.broadcast_to(layer.weight_q.scale, len(layer.bias)),
        layer.output_q.scale,
    )
    spread = tuple(
        1 if taps == 1 else step for taps, step in zip(layer.kernel, layer.dilation, strict=True)
    )
    return common | {
        "weights": layer.weights.tolist(),
        "bias": layer.bias.tolist(),
        "spread": spread,
        "zeros": (layer.input_q.zero_point, layer.weight_q.zero_point, layer.output_q.zero_point),
        "factors": (multiplier * 2.0**-shift).tolist(),
    }


def agrees(n: int) -> npulab.Capture:
    """Layer ``n`` lowered, simulated, lifted and emulated; the capture."""
    layer, x = random_layer(n)
    capture = NVDLA.lower(layer, chip=list(CHIPS)[n % len(CHIPS)], x=x)
    recorded = Simulated().record(capture)
    lifted = NVDLA.lift(recorded)
    assert names(lifted.layer) == names(layer)
    given, read = (one if isinstance(one, tuple) else (one,) for one in (x, lifted.x))
    assert all(np.array_equal(a, b) for a, b in zip(given, read, strict=True))
    by = NVDLA.rule_of(recorded)  # type: ignore[misc]
    assert np.array_equal(npulab.emulate(layer, x, by), lifted.output)
    assert np.array_equal(npulab.emulate(lifted.layer, lifted.x, by), lifted.output)
    found = npulab.check(recorded)
    assert (found.verdict, found.words, found.ok) == ("equal", True, True)
    assert found.compared == lifted.output.size
    assert found.coefficients is (True if isinstance(layer, Conv2D) else None)
    return recorded


@pytest.mark.parametrize("count", [24, pytest.param(36, marks=pytest.mark.long)])
def test_layers_come_back_and_outputs_are_predicted(count: int) -> None:
    seen: Counter[str] = Counter()
    for n in range(count):
        capture = agrees(n)
        v = values_of(capture.jobs[0], TABLES, unwritten=True)
        seen[f"use {v['SDP_RDMA.D_NRDMA_CFG.NRDMA_DATA_USE']}"] += (
            v["SDP_RDMA.D_NRDMA_CFG.NRDMA_DISABLE"] == 0
        )
        seen[f"size {v['SDP_RDMA.D_BRDMA_CFG.BRDMA_DATA_SIZE']}"] += "bs" in capture.buffers
        seen["converter"] += v["SDP.D_CVT_SHIFT.CVT_SHIFT"] > 0
        seen["x1 multiplies"] += "bs" in capture.buffers and not v["SDP.D_DP_BS_CFG.BS_MUL_BYPASS"]
        seen["shifted"] += v["SDP.D_DP_BS_ALU_CFG.BS_ALU_SHIFT_VALUE"] > 0
        seen["saturated"] += bool(
            {-128, 127} & {*np.frombuffer(capture.buffers["output"], np.int8).tolist()}
        )
    ways = {
        "use 0",
        "use 1",
        "use 2",
        "size 0",
        "size 1",
        "converter",
        "x1 multiplies",
        "shifted",
        "saturated",
    }
    assert {name for name, count in seen.items() if count} >= ways


@pytest.mark.long
def test_thousand_layers_come_back() -> None:
    for n in range(36, 1036):
        agrees(n)


@pytest.mark.sample(3)
@pytest.mark.parametrize("chip", CHIPS)
def test_every_chip_takes_every_kind(chip: str) -> None:
    for n in range(len(KINDS)):
        layer, x = random_layer(n + 100)
        capture = lower(layer, chip, x)
        assert capture.chip == chip
        assert [job.block for job in capture.jobs] == ["FULL" if chip == "nv_full" else "SMALL"]
        assert capture.provenance == "simulated"
        assert len(simulate(capture)) >= np.prod(layer.output_shape)


def small(**changed: Any) -> Conv2D:
    parts: dict[str, Any] = {
        "weights": np.arange(-36, 36, dtype=np.int8).reshape(4, 3, 3, 2),
        "bias": np.arange(4),
        "input_shape": (5, 6, 2),
        "weight_q": QuantParams(0.01),
    }
    return Conv2D(**(parts | changed))


def test_program_is_what_a_driver_writes() -> None:
    capture = lower(small(padding="same", input_q=QuantParams(1.0, -3)), "nv_small")
    job, v = capture.jobs[0], values_of(capture.jobs[0], TABLES, unwritten=True)
    offsets = {offset: f"{unit}.{name}" for unit, offset, name in capture.maps["SMALL"].registers}
    order = [offsets[offset] for offset, _ in job.writes]
    starts = [name for name in order if name.endswith("D_OP_ENABLE")]
    assert order[-len(starts) :] == starts
    assert [name.partition(".")[0] for name in starts] == [
        "SDP",
        "SDP_RDMA",
        "CACC",
        "CMAC_B",
        "CMAC_A",
        "CSC",
        "CDMA",
    ]
    assert v["CDMA.D_ENTRY_PER_SLICE.ENTRIES"] == 5
    assert (v["CDMA.D_BANK.DATA_BANK"], v["CDMA.D_BANK.WEIGHT_BANK"]) == (0, 30)
    assert v["CSC.D_ZERO_PADDING_VALUE.PAD_VALUE"] == -3
    # whole entries of the convolution buffer; the bytes in memory are filled up further
    assert v["CDMA.D_WEIGHT_BYTES.WEIGHT_BYTES"] == 72
    assert len(capture.buffers["coefficients"]) == 128
    assert v["CSC.D_ATOMICS.ATOMICS"] == 29
    assert not any(
        value for name, value in v.items() if name.startswith(("PDP", "CDP", "RBK", "BDMA", "GLB"))
    )
    assert capture.parameters["kernel_h"] == 3


def test_addresses_are_the_callers() -> None:
    capture = lower(small(), "nv_full", addresses={"output": 0x1_2345_6780, "input": 64})
    assert capture.addresses["output"] == 0x1_2345_6780
    v = values_of(capture.jobs[0], TABLES, unwritten=True)
    assert (
        v["SDP.D_DST_BASE_ADDR_HIGH.DST_BASE_ADDR_HIGH"],
        v["SDP.D_DST_BASE_ADDR_LOW.DST_BASE_ADDR_LOW"],
    ) == (1, 0x23456780)
    with pytest.raises(
        LookupError,
        match="addresses: got 'x', allowed are bn, bs, coefficients, input, other, output",
    ):
        lower(small(), addresses={"x": 0})
    with pytest.raises(ValueError, match="addresses: got output 8, allowed is a multiple of 32"):
        lower(small(), addresses={"output": 8})


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (
            Conv2D(np.ones((1, 3, 3, 2), np.int8), np.zeros(2, int), (5, 5, 2), depthwise=True),
            "allowed is int8, not depthwise",
        ),
        (
            Conv2D(np.ones((1, 3, 3, 2), np.uint8), np.zeros(1, int), (5, 5, 2)),
            "allowed is a Conv2D, FullyConnected, Pool2D or Add of int8",
        ),
        (small(activation="relu6"), "activation: got 'relu6', allowed is None or 'relu'"),
        (small(weight_q=QuantParams(1.0, 3)), "weight_q: got zero point 3, allowed is 0"),
        (
            small(output_q=QuantParams(1.0, 200)),
            "output_q: got zero point 200, allowed is -128 to 127",
        ),
        (small(weight_q=QuantParams((1.0, 1.0, 2.0**-30, 1.0))), "whose shifts differ by 30"),
        (
            small(bias=np.full(4, 2**31 - 1)),
            "allowed is a bias with which they stay within 32 bits",
        ),
        (small(weight_q=QuantParams(1e-30)), "got a ratio that rounds to a multiplier of 0"),
        (small(stride=(9, 1)), "field CONV_Y_STRIDE: got raw 8, allowed is 0 to 7"),
        (
            Conv2D(np.ones((1, 1, 1, 64), np.int8), np.zeros(1, int), (80, 80, 64)),
            "got 100 banks for the input",
        ),
        (Pool2D("average", (2, 2), (5, 5, 2), padding="same"), "allowed with averages is none"),
        (
            Pool2D("average", (7, 6), (8, 8, 2)),
            "allowed are averages that a reciprocal of 16 bits rounds right, not of 42",
        ),
        (Pool2D("max", (9, 1), (12, 5, 2)), "allowed with pooling is up to 8"),
        (
            Pool2D("max", (2, 2), (5, 5, 2), activation="relu"),
            "pooling: activation: got 'relu', allowed is None",
        ),
        (Add((2, 2, 2), input_q=QuantParams(2.0)), "allowed are equal input scales"),
        (Add((2, 2, 2), output_q=QuantParams(3.0)), "theirs times a power of two"),
        (Add((2, 2, 2), "relu6"), "activation: got 'relu6'"),
    ],
)
def test_what_is_refused_says_why(layer: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        lower(layer, "nv_small")


def test_wrong_input_and_chip_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"x: got shape \(2,\) int64, allowed is \(5, 6, 2\) of int8"
    ):
        lower(small(), x=np.zeros(2, int))
    with pytest.raises(Unsupported, match="chip: got 'nv_tiny', allowed is one of nv_small, "):
        lower(small(), "nv_tiny")


def test_coefficients_are_explained() -> None:
    capture = lower(small(), "nv_small")
    frame = npulab.explain(capture)
    assert frame.bits.sum() == 8 * len(capture.buffers["coefficients"])
    assert frame.byte.tolist() == [*range(72), 72]
    got = frame[frame.kind == "weight"]
    assert [
        small().weights[row.channel, row.row, row.column, row.plane] for row in got.itertuples()
    ] == got.value.tolist()
    with pytest.raises(
        ValueError, match=r"buffer 'coefficients': got 127 bytes, allowed for .* is 128"
    ):
        NVDLA.recode(capture.with_buffers(coefficients=bytes(127)))
    filled = capture.buffers["coefficients"][:-1] + b"\1"
    assert npulab.check(capture.with_buffers(coefficients=filled)).coefficients is False


def test_layers_without_input_are_lifted() -> None:
    for layer in (
        small(),
        Pool2D("max", (2, 2), (5, 5, 2)),
        Add((2, 2, 2), output_q=QuantParams(2.0)),
    ):
        lifted = NVDLA.lift(lower(layer))
        assert names(lifted.layer) == names(layer)
        assert lifted.output is None
        assert lifted.x is None or lifted.x == (None, None)
        with pytest.raises(Unsupported, match=r"buffer '(input|other)' at .* was not recorded"):
            simulate(lower(layer))


def test_packed_surfaces_of_one_pixel_are_lifted_as_one_run() -> None:
    """CDMA reads them so whatever the stride of a surface says, which may be any number."""
    random = np.random.default_rng(3)
    weights = random.integers(-9, 10, (4, 1, 1, 40)).astype(np.int8)
    x = random.integers(-128, 128, (1, 1, 40)).astype(np.int8)
    lowered = lower(small(weights=weights, input_shape=(1, 1, 40)), x=x)
    packed = {
        "CDMA.D_DAIN_MAP.LINE_PACKED": 1,
        "CDMA.D_DAIN_MAP.SURF_PACKED": 1,
        "CDMA.D_SURF_STRIDE.SURF_STRIDE": 4096,
    }
    capture = Simulated().record(lowered.with_fields(**packed))
    assert np.array_equal(NVDLA.lift(capture).x, x)
    assert npulab.check(capture).verdict == "equal"


@pytest.mark.parametrize(
    ("changed", "words"),
    cases(
        """
BS_ALU_ALGO=0 | SDP.D_DP_BS_CFG.BS_ALU_ALGO is 0, layers have 2
EW_BYPASS=0 | SDP.D_DP_EW_CFG.EW_BYPASS is 0, covered is 1
CLIP_TRUNCATE=3 | SDP.D_DP_BS_ALU_CFG adds a number per channel after the scaling
BS_MUL_SHIFT_VALUE=3 | SDP.D_CVT_SCALE.CVT_SCALE scales a second time, which rounds twice
SDP.D_CVT_SCALE.CVT_SCALE=-3 | SDP.D_CVT_SCALE.CVT_SCALE multiplies by -3, layers have scales above 0
""",
        fields,
    ),
)
def test_what_no_layer_says_is_named(changed: dict[str, int], words: str) -> None:
    capture = lower(small(bias=np.array([300, -7, 1, 50])))
    with pytest.raises(Unsupported, match=words):
        NVDLA.lift(capture.with_fields(**changed))


@pytest.mark.parametrize(
    ("taps", "across", "down", "exact"),
    [
        (4, 65536, 16384, True),
        (4, 32768, 32768, False),
        (9, 65536, 7282, False),
        (9, 7282, 65536, True),
        (9, 21845, 21845, True),
        (42, 65536, 1560, False),
    ],
)
def test_averages_are_tried_on_every_sum(taps: int, across: int, down: int, exact: bool) -> None:
    def half_away(value: int, bits: int) -> int:
        return (abs(value) * 2 + 2**bits) // 2 ** (bits + 1) * (1 if value > 0 else -1)

    def average(total: int) -> int:
        for factor, bits in ((across, 11), (down, 8)):
            product = total * factor
            short = half_away(product, 16)
            if product >= 0:
                short += product // 2**16 % 2 ** (bits - 1) - product // 2**16
            total = (short + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
        return total

    plain = all(
        average(n) == (abs(n) + taps // 2) // taps * (1 if n > 0 else -1)
        for n in range(-128 * taps, 127 * taps + 1)
    )
    assert averages(taps, across, down) is plain is exact


@pytest.mark.parametrize(
    ("name", "op"),
    cases("""
dc_8x8x32_1x1x32x32_int8_0 | conv
dc_8x16x128_3x3x128x32_int8 | conv
dc_13x15x64_5x3x64x16_int8_0 | conv
dc_24x33x55_5x5x55x25_int8_0 | conv
dc_24x44x14_5x3x14x41_int8_0 | conv
dc_6x8x192_3x3x192x32_int8_0 | conv
dc_8x8x36_4x4x36x16_dilation_int8_0 | conv
pdp_16x6x16_4x2_split_max_int8_0 | max_pool
pdp_28x28x8_2x2_max_int8_0 | max_pool
pdp_8x8x64_2x2_min_int8_0 | min_pool
"""),
)
def test_recorded_traces_are_lifted_to_layers_that_predict_them(name: str, op: str) -> None:
    """The device leaves what was recorded (test_nvdla_device), and the layer gives what the
    device does.
    """
    capture = public_traces()[name]
    layer, x, _ = NVDLA.lift(capture)
    assert layer.op == op
    _, place = executed(capture)
    assert np.array_equal(
        npulab.emulate(layer, x, "nvdla"), place.unpack(simulate(capture))[..., : place.channels]
    )


@pytest.mark.parametrize(
    ("name", "words"),
    cases("""
cdp_8x8x32_lrn3_int8_1 | got CDP, CDP_RDMA, allowed are a convolution into SDP
dc_1x1x8_1x1x8x1_int8_0 | scales a second time, which rounds twice
img_51x96x4_1x10x4x32_A8B8G8R8_int8_0 | DATAIN_FORMAT is 1, covered is 0
pdp_7x9x10_3x3_int8 | which it counts; a layer does not
sdp_23x13x42_bs_int8_mem_0 | BS_MUL_PRELU is 1
conv_8x8_fc_int16 | IN_PRECISION is 1
"""),
)
def test_recorded_traces_that_no_layer_says_are_named(name: str, words: str) -> None:
    capture = public_traces()[name]
    with pytest.raises(Unsupported, match=words):
        NVDLA.lift(capture)


@pytest.mark.parametrize("count", [60, pytest.param(120, marks=pytest.mark.long)])
def test_broken_words_are_refused_and_never_hang(count: int) -> None:
    """Bits turned in the words of a lowered capture: an output, a hang, or a stated reason."""
    random = np.random.RandomState(3)
    capture = Simulated().record(lower(small(), "nv_small", np.ones((5, 6, 2), np.int8)))
    registers = capture.maps["SMALL"]
    written = {registers.index[offset] for offset, _ in capture.jobs[0].writes}
    pieces = [
        item.pieces[0]
        for item in registers
        if item.pieces[0].word in written and not item.automatic
    ]
    outcomes: Counter[str] = Counter()
    for _ in range(count):
        words = capture.words.copy()
        word, lsb, width, _ = pieces[random.randint(len(pieces))]
        words[word] ^= np.uint32(2 ** (lsb + random.randint(width)))
        changed = capture.with_words(words)
        try:
            outcomes["same" if simulate(changed) == capture.buffers["output"] else "other"] += 1
        except (Hang, Unsupported) as error:
            outcomes[type(error).__name__] += 1
        try:
            NVDLA.lift(changed)
        except Unsupported:
            outcomes["no layer"] += 1
        except ValueError as error:
            if "bytes, allowed by its words are" not in str(
                error
            ):  # more than a recorded buffer holds
                raise
            outcomes["cut"] += 1
    assert min(outcomes[name] for name in ("same", "other", "Hang", "no layer")) > 0, outcomes


def test_several_jobs_are_no_layer() -> None:
    capture = lower(small())
    with pytest.raises(Unsupported, match="got 2 jobs on nv_small, allowed is one"):
        NVDLA.lift(replace(capture, jobs=capture.jobs * 2))


def test_simulated_captures_are_recorded_the_same_again() -> None:
    kept = npulab.load_all(CAPTURES / "nvdla")
    again = {capture.name: capture for capture in record()}
    assert sorted(again) == sorted(capture.name for capture in kept if capture.simulated)
    for name, capture in again.items():
        assert capture == kept[name]


def test_simulated_captures_hold_ties_and_a_driver_that_is_wrong() -> None:
    kept = npulab.load_all(CAPTURES / "nvdla")
    for name in ("sim-3x3-same", "sim-1x1-relu"):
        layer, x, output = NVDLA.lift(kept[name])
        others = ["vivante-v7:half-even", "vivante-v7:floor"] + ["vivante-v7:half-up"] * (
            layer.activation is None
        )
        assert all(
            np.count_nonzero(npulab.emulate(layer, x, other) != output) >= 3 for other in others
        )
    good, other = kept["sim-3x3-same"], kept["sim-other-driver"]
    assert Simulated(good.buffers["output"])(other) == "fail"
    assert 30 <= len(npulab.diff(good, other)) <= 70


def test_the_sweep_is_made_the_same_again() -> None:
    kept = npulab.load_sweep(CAPTURES / "nvdla" / "sweep-convolutions.npz")
    assert (len(kept), kept.chip, kept.block, kept.provenance) == (
        LAYERS,
        "nv_small",
        "SMALL",
        "simulated",
    )
    some = [2, 77, LAYERS - 1]
    again = sweep([row(number) for number in some])
    assert np.array_equal(kept.words[some], again.words)
    assert (
        kept.parameters.iloc[some]
        .reset_index(drop=True)
        .equals(again.parameters.astype(kept.parameters.dtypes))
    )
    assert (CAPTURES / "nvdla" / "sweep-convolutions.npz").stat().st_size < 100 * 1024


# Words as the RTL asks for, of the kinds that failed on it before


def unwritten(capture: npulab.Capture) -> dict[str, int]:
    return values_of(capture.jobs[0], TABLES, unwritten=True)


@pytest.mark.parametrize("count", [50, pytest.param(100, marks=pytest.mark.long)])
def test_averages_put_the_whole_reciprocal_first(count: int) -> None:
    random = np.random.RandomState(11)
    lowered = 0
    for _ in range(count):
        kernel = tuple(int(side) for side in random.randint(2, 9, 2))
        layer = Pool2D("average", kernel, (8, 9, int(random.randint(1, 20))))
        taps = kernel[0] * kernel[1]
        x = random.randint(-128, 128, layer.input_shape).astype(np.int8)
        if not averages(taps, (65536 + taps // 2) // taps, 65536):
            with pytest.raises(ValueError, match="a reciprocal of 16 bits rounds right"):
                lower(layer, "nv_small", x)
            continue
        capture = Simulated().record(lower(layer, "nv_small", x))
        v = unwritten(capture)
        assert v["PDP.D_RECIP_KERNEL_WIDTH.RECIP_KERNEL_WIDTH"] == (65536 + taps // 2) // taps
        assert v["PDP.D_RECIP_KERNEL_HEIGHT.RECIP_KERNEL_HEIGHT"] == 65536
        assert np.array_equal(npulab.emulate(layer, x), NVDLA.lift(capture).output)
        lowered += taps > 8
    assert lowered > count // 5


@pytest.mark.parametrize("count", [40, pytest.param(100, marks=pytest.mark.long)])
def test_pooling_states_the_padding_that_windows_reach(count: int) -> None:
    random = np.random.RandomState(12)
    surplus = 0
    for n in range(count):
        kernel = tuple(int(side) for side in random.randint(1, 9, 2))
        stride = tuple(int(step) for step in random.randint(1, 6, 2))
        pads = tuple(tuple(int(random.randint(side)) for _ in "ab") for side in kernel)
        shape = int(random.randint(8, 14)), int(random.randint(8, 14)), int(random.randint(1, 20))
        layer = Pool2D(("max", "min")[n % 2], kernel, shape, stride, pads)
        x = random.randint(-128, 128, shape).astype(np.int8)
        capture = Simulated().record(lower(layer, "nv_small", x))
        v = unwritten(capture)
        for axis, side in enumerate(("BOTTOM", "RIGHT")):
            rest = (shape[axis] + sum(pads[axis]) - kernel[axis]) % stride[axis]
            stated = v[f"PDP.D_POOLING_PADDING_CFG.PAD_{side}"]
            assert stated == max(pads[axis][1] - rest, 0)
            surplus += stated != pads[axis][1]
        assert np.array_equal(npulab.emulate(layer, x), NVDLA.lift(capture).output)
    assert surplus > count // 2


@pytest.mark.parametrize("step", [16, pytest.param(4, marks=pytest.mark.long)])
def test_two_convolutions_in_a_row_are_both_right(step: int) -> None:
    captures = []
    for n in range(0, 400, step):
        layer, x = random_layer(n)
        if isinstance(layer, Conv2D):
            capture = Simulated().record(lower(layer, "nv_small", x))
            used = layer.weights.size
            assert unwritten(capture)["CDMA.D_WEIGHT_BYTES.WEIGHT_BYTES"] == -(-used // 8) * 8
            captures.append(capture)
    assert len(captures) > 160 // step
    for first, second in pairwise(captures):
        for run, capture in zip(NVDLA.simulate([first, second]), (first, second), strict=True):
            assert run.output == capture.buffers["output"], capture.name
