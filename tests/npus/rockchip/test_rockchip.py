"""The rockchip target: layers lowered, run on the simulated device, lifted, and the captured
runs.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_tables import cases, fields
from conftest import CAPTURES, shared
from record_rockchip_sweep import LAYERS, NAME, row
from refusals import refused

import npulab
from npulab.captures.devices import Simulated
from npulab.captures.target import GUESS, Hang, Target
from npulab.npus.kit import up, values_of
from npulab.npus.rockchip import commands, layouts, lowering, plans, tasks
from npulab.quant.layers import Conv2D, FullyConnected

Q = npulab.QuantParams
CHIPS = ("rk3588", "rv1103")
# By kind the least and the most of height, width, channels, outputs, and rows and columns of a
# kernel, if it is not one of KERNELS.
RANGES = {
    kind: [tuple(map(int, ends.split("-"))) for ends in ranges.split()]
    for kind, ranges in cases(
        """
conv          | 1-8     1-8   1-8   1-8
pointwise     | 1-8     1-8   1-8   1-8   1-1 1-1
depthwise     | 1-8     1-8   1-8   1-8
one channel   | 1-8     1-8   1-1   1-8
many channels | 1-8     1-8   15-69 1-8
many kernels  | 1-8     1-8   1-8   30-69
explicit      | 1-8     1-8   1-8   1-8
tall          | 330-349 65-65 17-17 1-1   1-4 1-1
full          | 1-1     1-1   1-100 1-39
narrow        | 1-3     1-3   1-8   1-8
"""
    )
}
KINDS = tuple(RANGES)
KERNELS = [(3, 3), (5, 5), (2, 2), (3, 1), (1, 4), (7, 3), (1, 1)]


@pytest.fixture(scope="module")
def rockchip() -> Target:
    return npulab.target("rockchip")


def random_layer(n: int, chip: str) -> tuple[Any, np.ndarray]:
    """(layer, input) number ``n`` for a chip."""
    random = np.random.RandomState([n, len(chip), 16])
    kind, dtype = KINDS[n % len(KINDS)], ("uint8", "int8")[random.randint(2)]
    low = np.iinfo(dtype).min

    def codes(*shape: int) -> np.ndarray:
        return (random.randint(0, 256, shape) + low).astype(dtype)

    def whole(least: int, most: int) -> int:
        return int(random.randint(least, most + 1))

    def scale(about: float) -> float:
        return float(np.float32(about * 2 ** random.uniform(-1, 1)))

    def q(about: float, least: int = 0, most: int = 256) -> npulab.QuantParams:
        return Q(scale(about), int(random.randint(least, most)) + low)

    def weight_q(outputs: int) -> npulab.QuantParams:
        zero = int(random.randint(80, 180)) + low
        if chip == "rk3588" or random.randint(3) == 0:
            return Q(scale(0.01), zero)
        return Q(tuple(scale(0.01) * 2 ** -random.randint(0, 5) for _ in range(outputs)), zero)

    relu = (None, "relu")[random.randint(2)]
    if kind == "full":
        _, _, inputs, outputs = [whole(*ends) for ends in RANGES[kind]]
        full = FullyConnected(
            codes(outputs, inputs),
            random.randint(-2000, 2000, outputs),
            relu,
            q(0.02),
            weight_q(outputs),
            q(0.02 * 0.01 * 74 * 74 * inputs**0.5 / 60),
            dtype,
        )
        return full, codes(inputs)
    height, width, channels, outputs, *kernel = [whole(*ends) for ends in RANGES[kind]]
    kernel = kernel or KERNELS[random.randint(len(KERNELS))]
    depthwise = kind == "depthwise" or (kind == "many channels" and bool(random.randint(2)))
    if depthwise:
        outputs = channels
    padding: Any = ("same", "valid")[random.randint(2)]
    if kind == "explicit":
        padding = ((whole(0, 2), whole(0, 2)), (whole(0, 2), whole(0, 2)))
    spread = (1, 1)
    if chip != "rk3588" and kind in ("conv", "depthwise") and random.randint(2) == 0:
        spread = (whole(1, 3), whole(1, 3))
    size = [height, width]
    for axis, (taps, apart) in enumerate(zip(kernel, spread, strict=True)):
        if padding != "same":
            size[axis] = max(size[axis], taps)
        size[axis] += (taps - 1) * (apart - 1)
    shape, taps = (outputs, *kernel, channels), kernel[0] * kernel[1] * channels
    if depthwise:
        shape, taps = (1, *kernel, channels), kernel[0] * kernel[1]
    layer = Conv2D(
        codes(*shape),
        random.randint(-5000, 5000, outputs),
        (size[0], size[1], channels),
        (whole(1, 3), whole(1, 2)),
        padding,
        spread,
        depthwise=depthwise,
        activation=relu,
        input_q=q(0.02),
        weight_q=weight_q(outputs),
        output_q=q(0.02 * 0.01 * 74 * 74 * taps**0.5 / 60),
        dtype=dtype,
    )
    return layer, codes(*layer.input_shape)


def run(
    layer: Any, x: np.ndarray, chip: str, rockchip: Target, checked: bool = True
) -> npulab.Capture:
    """Lowered, run, checked, lifted and lowered again."""
    capture = rockchip.lower(layer, chip=chip, x=x)
    ran = Simulated().record(capture)
    want = npulab.emulate(layer, x, rockchip.rule_of(capture))
    for parameters in (ran.parameters, {}):
        one = replace(ran, parameters=parameters)
        if parameters and checked:  # words are decoded and encoded the same way without them
            found = npulab.check(one)
            assert (found.verdict, found.words, found.coefficients) == ("equal", True, True), found
            assert found.compared == want.size
        lifted = rockchip.lift(one)
        assert np.array_equal(
            npulab.emulate(lifted.layer, lifted.x, rockchip.rule_of(one)), lifted.output
        )
        moved = 128 if layer.dtype == "uint8" and not parameters else 0
        codes = (lifted.output, want), (lifted.x, x), (lifted.layer.weights, layer.weights)
        for got, sent in codes:
            assert (got.astype(int) + moved).ravel().tolist() == sent.ravel().tolist()
        assert lifted.layer.bias.tolist() == layer.bias.tolist()
        names = ["activation"]
        if parameters:
            names += ["input_q", "weight_q", "output_q"]
        if isinstance(layer, Conv2D):
            names += ["input_shape", "output_shape", "stride", "dilation"]
            # a border behind that no window reaches is nowhere said
            for axis in (0, 1):
                assert lifted.layer.pads[axis][0] == layer.pads[axis][0]
            one_by_one = layer.input_shape[2] == 1
            assert one_by_one or lifted.layer.depthwise == layer.depthwise
        for name in names:
            assert getattr(lifted.layer, name) == getattr(layer, name), name
        again = rockchip.lower(lifted.layer, chip=chip, x=lifted.x)
        assert again.jobs == capture.jobs
        assert again.buffers == capture.buffers
    return capture


@pytest.mark.sample(15)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("n", range(30))
def test_random_layer(n: int, chip: str, rockchip: Target) -> None:
    run(*random_layer(n, chip), chip, rockchip, checked=n % 3 == 0)


@pytest.mark.long
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("hundred", range(10))
def test_random_layers_long(hundred: int, chip: str, rockchip: Target) -> None:
    for n in range(100 * hundred + 30, 100 * hundred + 130):
        run(*random_layer(n, chip), chip, rockchip)


def test_random_layers_are_of_every_kind(rockchip: Target) -> None:
    """Tasks that share a layer, one channel, scales per channel; outputs are not all at the ends
    of the range.
    """
    counts = np.zeros(4, int)
    for n, chip in product(range(30), CHIPS):
        layer, _ = random_layer(n, chip)
        capture = rockchip.lower(layer, chip=chip)
        single = values_of(capture.jobs[0], capture.maps)["CNA.CONV_CON1.ARGB_IN"] == 8
        dilated = isinstance(layer, Conv2D) and layer.dilation != (1, 1)
        scales = isinstance(layer.weight_q.scale, tuple)
        counts += (len(capture.jobs) > 1, single, scales, dilated)
    assert (counts >= (4, 4, 10, 2)).all()


# Words


def matmul(
    random: np.random.RandomState, rows: int, inner: int, columns: int
) -> tuple[Conv2D, np.ndarray]:
    layer = Conv2D(
        random.randint(-128, 128, (columns, 1, 1, inner)).astype(np.int8),
        np.zeros(columns, int),
        (rows, 1, inner),
        driver_quirks=frozenset({"int32-output"}),
    )
    return layer, random.randint(-128, 128, layer.input_shape).astype(np.int8)


def test_captured_matmul_word_for_word(rockchip: Target) -> None:
    """Every write of the captured 4x32 by 32x32 multiplication, in order; only the addresses are
    its own.
    """
    data = shared("data/rknpu/wtwver_matmul_int8_regcmd.bin").read_bytes()
    theirs = commands.writes(np.frombuffer(data, np.uint32))
    where = dict(theirs)
    layer, x = matmul(np.random.RandomState(1), 4, 32, 32)
    capture = rockchip.lower(
        layer,
        x=x,
        addresses={"input": where[0x1070], "coefficients": where[0x1110], "output": where[0x4020]},
    )
    assert len(theirs) == 108
    assert list(capture.jobs[0].writes) == theirs
    assert capture.buffers["commands"][: len(data)] == data


@pytest.mark.parametrize(
    ("rows", "inner", "columns"),
    cases(
        """
4 | 32 | 32
1 | 16 | 2
3 | 64 | 40
7 | 33 | 5
1 | 1 | 1
""",
        int,
        int,
        int,
    ),
)
def test_matmul_gives_its_sums(rows: int, inner: int, columns: int, rockchip: Target) -> None:
    layer, x = matmul(np.random.RandomState(rows), rows, inner, columns)
    ran = Simulated().record(rockchip.lower(layer, x=x))
    want = x[:, 0].astype(int) @ layer.weights[:, 0, 0].T.astype(int)
    stored = np.frombuffer(ran.buffers["output"], "<i4").reshape(rows, -1)
    assert stored.shape[1] == up(columns, 4)
    assert stored[:, :columns].tolist() == want.tolist()
    found = npulab.check(ran)
    assert (found.verdict, found.compared, found.coefficients) == (
        "equal",
        4 * rows * columns,
        True,
    )
    lifted = rockchip.lift(ran)
    assert np.array_equal(lifted.output[:, 0], want)
    assert np.array_equal(lifted.x, x)
    assert rockchip.lower(lifted.layer, x=lifted.x).jobs == ran.jobs
    wrong = bytearray(ran.buffers["output"])
    wrong[2] ^= 1
    assert npulab.check(ran.with_buffers(output=bytes(wrong))).verdict == "differs"
    full = FullyConnected(layer.weights[:, 0, 0], layer.bias)
    assert (
        rockchip.lower(full, x=x[:, 0], features=["int32-output"]).buffers
        == rockchip.lower(layer, x=x).buffers
    )


def gems(buffers: list[bytes]) -> str:
    """A text of GEM buffers, each filled up to a page."""
    lines = []
    for number, data in enumerate(buffers, 1):
        whole = np.frombuffer(data.ljust(-(-len(data) // 4096) * 4096, b"\0"), "<u4").reshape(-1, 4)
        lines += [f"gem open got 0 {number} {whole.nbytes}", f"Gem {number}"]
        lines += [
            f"[{16 * n:08x}] = " + " ".join(f"{word:08x}" for word in four)
            for n, four in enumerate(whole)
        ]
    return "\n".join(lines) + "\n"


def test_dump_of_a_matmul_is_read_and_its_sums_are_exact(tmp_path: Path, rockchip: Target) -> None:
    """As its recorder prints it: commands, records, then buffers that only their use and order
    tell apart.
    """
    for seed in range(2):
        layer, x = matmul(np.random.RandomState(seed), 4, 32, 32)
        other = bytes(np.random.RandomState(9).randint(1, 255, 1024).tolist())
        ran = Simulated().record(rockchip.lower(layer, x=x))
        task = tasks.Task(0, 0, 0x0D, 0x300, 0x1FFFF, 0x200, 108, 0, ran.addresses["commands"])
        *before, output = [ran.buffers[name] for name in ("coefficients", "input", "output")]
        head = [ran.buffers["commands"], task.job.words.tobytes()]
        path = tmp_path / f"{seed}.txt"

        def dumped(*buffers: bytes, path: Path = path, head: list[bytes] = head) -> npulab.Capture:
            path.write_text(gems([*head, *buffers]))
            return npulab.load(path)

        capture = dumped(*before, *[other] * seed, output)
        found = npulab.check(capture)
        assert (found.verdict, found.compared, found.coefficients) == ("equal", 512, True), found
        assert np.array_equal(rockchip.lift(capture).x, x)
        assert rockchip.simulate(capture) == ran.buffers["output"]
        assert npulab.check(dumped(*before, output[:-1] + b"\1")).mismatches == 1
        unknown = npulab.check(dumped(other, *before, output))
        assert unknown.verdict == "nothing to compare"  # one of two


# Weights take 9 * 32 * 64 bytes.
DRIVEN = """
CNA.CONV_CON2.FEATURE_GRAINS=53
CNA.DATA_SIZE0.DATAIN_WIDTH=20
CNA.DATA_SIZE1.DATAIN_CHANNEL=32
CNA.DATA_SIZE1.DATAIN_CHANNEL_REAL=23
CNA.DATA_SIZE3.DATAOUT_ATOMICS=150
CNA.WEIGHT_SIZE0.WEIGHT_BYTES=18432
CNA.WEIGHT_SIZE2.WEIGHT_KERNELS=64
CNA.CBUF_CON0.DATA_BANK=1
CNA.CBUF_CON0.WEIGHT_BANK=11
CNA.CBUF_CON1.DATA_ENTRIES=10
CNA.PAD_CON0.PAD_TOP=0
CNA.DMA_CON1.LINE_STRIDE=80
CNA.DMA_CON2.SURF_STRIDE=520
CNA.PAD_CON1.PAD_VALUE=0xFFFF8080
CORE.DATAOUT_SIZE_1.DATAOUT_CHANNEL=63
DPU.DST_SURF_STRIDE.DST_SURF_STRIDE=150
DPU.DATA_CUBE_CHANNEL.ORIG_CHANNEL=62
DPU.SURFACE_ADD.SURF_ADD=300
DPU_RDMA.RDMA_BRDMA_CFG.BRDMA_DATA_USE=1
PC.OPERATION_ENABLE.OP_EN=1
PC.OPERATION_ENABLE.RESERVED_0=14
"""


def test_words_of_a_convolution_are_those_of_the_driver(rockchip: Target) -> None:
    """30x20x24 to 63 channels, 3x3 with stride 2: sizes from Mesa's formulas, by hand."""
    layer = Conv2D(
        np.zeros((63, 3, 3, 24), np.uint8),
        np.zeros(63, int),
        (30, 20, 24),
        (2, 2),
        "same",
        input_q=Q(0.02, 0),
        weight_q=Q(0.01, 131),
        output_q=Q(0.1, 5),
        dtype="uint8",
    )
    capture = rockchip.lower(layer)
    v = values_of(capture.jobs[0], capture.maps, raw=True)
    bits = int(np.float32(np.float32(0.02) * np.float32(0.01) / np.float32(0.1)).view(np.uint32))
    want = fields(DRIVEN) | {
        "DPU.BS_OW_OP.OW_OP": 0x80 - 131 + 2**16,
        "DPU.OUT_CVT_OFFSET.OUT_CVT_OFFSET": 5 - 0x80 + 2**32,
        "DPU.OUT_CVT_SCALE.OUT_CVT_SCALE": ((bits >> 9 & 0x7FFF) + 1) | 2**14,
        "DPU.OUT_CVT_SHIFT.OUT_CVT_SHIFT": 141 - (bits >> 23),
    }
    assert {name: v[name] for name in want} == want
    assert len(capture.jobs[0].writes) == 108 + 18


def test_biases_hold_what_the_zero_point_adds(rockchip: Target) -> None:
    random = np.random.RandomState(7)
    layer = Conv2D(
        random.randint(0, 256, (5, 2, 2, 3)).astype(np.uint8),
        random.randint(-99, 99, 5),
        (4, 4, 3),
        input_q=Q(0.1, 40),
        weight_q=Q((0.1, 0.05, 0.1, 0.025, 0.1), 90),
        output_q=Q(1.0, 3),
        dtype="uint8",
    )
    want = [
        int(layer.bias[k]) - sum((int(w) - 90) * (40 - 128) for w in layer.weights[k].ravel())
        for k in range(5)
    ]
    data = rockchip.lower(layer, chip="rv1106").buffers["biases"]
    blocks = [
        np.frombuffer(data[at : at + 32], [("b", "<i4", 4), ("z", "<i2", 4), ("s", "<u2", 4)])[0]
        for at in (0, 32)
    ]
    assert [*blocks[0]["b"], blocks[1]["b"][0]] == want
    assert [*blocks[0]["z"], blocks[1]["z"][0]] == [128 - 90] * 5
    assert [*blocks[0]["s"], blocks[1]["s"][0]] == [16384, 8192, 16384, 4096, 16384]
    plain = rockchip.lower(replace(layer, weight_q=Q(0.1, 90))).buffers["biases"]
    assert np.frombuffer(plain, "<i4").tolist() == want


def test_tasks_cover_every_row_once() -> None:
    random = np.random.RandomState(8)
    for _ in range(300):
        height, kernel = int(random.randint(1, 900)), int(random.randint(1, 8))
        stride = int(random.randint(1, 4))
        padding: Any = ("same", ((int(random.randint(3)), int(random.randint(3))), (0, 0)))[
            random.randint(2)
        ]
        try:
            conv = Conv2D(
                np.zeros((2, kernel, 1, 40), np.int8),
                np.zeros(2, int),
                (height, 60, 40),
                (stride, 1),
                padding,
            )
        except ValueError:
            continue
        tasks = plans.cut(conv)
        assert sum(task.outputs for task in tasks) == conv.output_shape[0]
        for task in tasks:
            begin = task.first * stride - conv.pads[0][0]
            assert (task.top, task.above) == (max(begin, 0), max(-begin, 0))
            last = begin + (task.outputs - 1) * stride + kernel
            assert task.top + task.rows >= min(last, height)
            assert 1 <= task.data_banks <= 11
            assert -(-40 // 16) * 60 / 8 * task.rows <= 256 * task.data_banks + 256


def test_blocks_of_commands_follow_one_another(rockchip: Target) -> None:
    layer = Conv2D(np.zeros((2, 3, 3, 32), np.int8), np.zeros(2, int), (400, 60, 32))
    capture = rockchip.lower(layer)
    assert len(capture.jobs) > 2
    at, base = 0, capture.addresses["commands"]
    for n, job in enumerate(capture.jobs):
        words = commands.commands(capture.buffers["commands"][at:])
        assert commands.writes_of(words[: len(job.writes)]) == list(job.writes)
        last = [
            commands.Command(*reversed(words[i].item()))
            for i in range(len(job.writes), len(job.writes) + 4)
        ]
        at += -(-(len(job.writes) + 4) * 8 // 64) * 64
        more = n + 1 < len(capture.jobs)
        assert last[0].value == (base + at if more else 0)
        assert last[1].value == (len(capture.jobs[0].writes) // 2 + 1) // 2 * 2 * more
        assert last[3] == (0x81, 0x1D, 0x08)


# The sweep


def test_sweep_is_what_its_recorder_makes() -> None:
    sweep = npulab.load_sweep(CAPTURES / "rockchip" / f"{NAME}.npz")
    assert (sweep.target, sweep.chip, sweep.simulated, len(sweep)) == (
        "rockchip",
        "rk3588",
        True,
        LAYERS,
    )
    for n in (0, 1, 57, LAYERS - 1):
        words_of_row, known = row(n)
        assert np.array_equal(sweep.words[n], words_of_row)
        assert sweep.parameters.iloc[n].to_dict() == known


# What captures hold


@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "value", "tasks"), [("dump-x2", 2.0, 28), ("dump-+2", 3.0, 31)])
def test_fp16_dumps_are_what_they_are(
    name: str, value: float, tasks: int, rockchip: Target
) -> None:
    capture = npulab.load(shared(f"data/rknpu/phhusson_{name}.txt.gz"))
    found = npulab.check(capture)
    # every recorded output is compared and equal, but the layer is that of two of the dump's tasks
    assert (found.verdict, found.compared, found.words, found.coefficients) == (
        "partly compared",
        7225,
        True,
        True,
    )
    assert found.mismatches == 0
    assert f"{tasks - 2} of {tasks} tasks are in no layer that was lifted" in found.reason
    lifted = rockchip.lift(capture)
    conv, elements = lifted.layer.layers
    assert (conv.input_shape, conv.weights.tolist(), elements.kind) == (
        (85, 85, 1),
        [[[[1.0]]]],
        "copy",
    )
    assert (elements.scale, elements.bias) == ((2.0, 0.0) if value == 2 else (1.0, 2.0))
    assert set(lifted.x.ravel().tolist()) == {1.0}
    assert set(lifted.output.ravel().tolist()) == {value}
    ran = rockchip.simulate(capture)  # the tasks for three cores, as their records say
    assert len(ran) == 85 * 85 * 16
    assert capture.buffers["output"].startswith(ran)
    wrong = bytearray(capture.buffers["output"])
    wrong[17] ^= 1
    other = rockchip.lift(capture.with_buffers(output=bytes(wrong))).output
    assert np.argwhere(other != lifted.output).tolist() == [[0, 1, 0]]


def test_explain_names_every_weight(rockchip: Target) -> None:
    layer = Conv2D(
        np.arange(5 * 3 * 2 * 20).reshape(5, 3, 2, 20).astype(np.int8), np.zeros(5, int), (6, 6, 20)
    )
    capture = rockchip.lower(layer)
    frame = npulab.explain(capture)
    assert frame.bits.sum() == 8 * len(capture.buffers["coefficients"])
    named = frame[frame.kind == "weight"]
    assert len(named) == layer.weights.size
    for item in named.sample(50, random_state=1).itertuples():
        assert layer.weights[item.channel, item.row, item.column, item.plane] == item.value
        assert capture.buffers["coefficients"][item.byte] == item.value % 256
    spatial = Conv2D(layer.weights[:1, ..., :20], np.zeros(20, int), (6, 6, 20), depthwise=True)
    named = npulab.explain(rockchip.lower(spatial)).query("kind == 'weight'")
    assert sorted(zip(named.channel, named.row, named.column, strict=True)) == sorted(
        (c, y, x) for c in range(20) for y in range(3) for x in range(2)
    )


# What is refused


def small(**other: Any) -> Conv2D:
    return Conv2D(
        **{
            "weights": np.ones((2, 3, 3, 4), np.int8),
            "bias": np.zeros(2, int),
            "input_shape": (5, 5, 4),
            **other,
        }
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dilation": (2, 2)}, r"got dilation \(2, 2\), allowed on this chip is \(1, 1\)"),
        ({"activation": "relu6"}, "activation: got 'relu6', allowed is None or 'relu', or what"),
        ({"weight_q": Q((1.0, 2.0))}, "got weight_q with 2 scales, allowed on this chip is one"),
        (
            {
                "weights": np.ones((1, 3, 3, 8), np.int8),
                "depthwise": True,
                "bias": np.zeros(8, int),
            },
            "got 8 depthwise outputs of 4 channels, allowed are as many outputs as channels",
        ),
        (
            {"input_q": Q(1.0, 200)},
            "got input_q with zero point 200, allowed with int8 is -128 to 127",
        ),
        ({"dtype": "int16"}, "of int16, allowed is a Conv2D or FullyConnected of int8 or uint8"),
        ({"padding": ((16, 0), (0, 0))}, "field PAD_TOP: got raw 16, allowed is 0 to 15"),
        (
            {"weight_q": Q(2.0**20)},
            "ratio of scales: got 1.04858e.06, allowed with .* is a normal float32 below",
        ),
    ],
)
def test_layer_that_is_not_covered(change: dict[str, Any], words: str, rockchip: Target) -> None:
    with pytest.raises(ValueError, match=words):
        rockchip.lower(small(**change))


def test_what_is_asked_for_wrongly(rockchip: Target) -> None:
    for given, words in (
        ({"chip": "rk1"}, "chip: got 'rk1', allowed is one of rk3588, "),
        ({"features": ["x"]}, "features: got 'x', allowed are int32-output"),
        ({"addresses": {"y": 0}}, "addresses: got 'y', allowed are biases, coefficients, "),
        (
            {"addresses": {"input": 8}},
            "addresses: got input 8, allowed is a multiple of 16 within 32 bits",
        ),
        (
            {"x": np.zeros((5, 5, 4), np.uint8)},
            "x: got shape (5, 5, 4) uint8, allowed is (5, 5, 4) of int8",
        ),
        (
            {"features": ["int32-output"]},
            "allowed is a 1x1 layer over one column without bias, zero points and",
        ),
    ):
        refused(lambda given=given: rockchip.lower(small(), **given), words)


def changed(capture: npulab.Capture, **fields: int) -> npulab.Capture:
    return capture.with_fields(**{name.replace("__", "."): value for name, value in fields.items()})


@pytest.mark.parametrize(
    ("fields", "words"),
    cases(
        """
CNA__WEIGHT_SIZE2__WEIGHT_KERNELS=0 | WEIGHT_KERNELS is 0
CNA__CONV_CON3__CONV_X_STRIDE=0 | CONV_X_STRIDE is 0
CNA__CONV_CON1__DECONV=1 | DECONV is 1, the simulated unit knows 0 only
CNA__WEIGHT_SIZE0__WEIGHT_BYTES=16 | weights: 16 bytes end before the kernels do
CNA__FEATURE_DATA_ADDR__FEATURE_BASE_ADDR=4096 | input: reads 80 bytes at 0x1000, which no buffer holds
CNA__DATA_SIZE1__DATAIN_CHANNEL=65535 CNA__DATA_SIZE0__DATAIN_HEIGHT=2047 | does not fit the simulated .*
DPU__DATA_CUBE_CHANNEL__ORIG_CHANNEL=8000 | biases: reads 32004 bytes at .*
""",
        fields,
    ),
)
def test_device_hangs(fields: dict[str, int], words: str, rockchip: Target) -> None:
    capture = rockchip.lower(small(), x=np.zeros((5, 5, 4), np.int8))
    with pytest.raises(Hang, match=f"{words}, {GUESS}$"):
        rockchip.simulate(changed(capture, **fields))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"CNA__WEIGHT_SIZE0__WEIGHT_BYTES": 16},
            "WEIGHT_BYTES: got 16 for 2 outputs of 4 channels, allowed with weights of ",
        ),
        ({"CNA__CONV_CON1__CONV_MODE": 2}, r"got CNA.CONV_CON1.CONV_MODE 2, allowed is 0 or 3$"),
        (
            {"CORE__CLIP_TRUNCATE__CLIP_TRUNCATE": 3},
            r"got CORE.CLIP_TRUNCATE.CLIP_TRUNCATE 3, allowed is 0$",
        ),
        (
            {"DPU__OUT_CVT_SCALE__OUT_CVT_SCALE": 7},
            "got DPU.OUT_CVT_SCALE.OUT_CVT_SCALE 7, allowed is 16384 to 32768",
        ),
        (
            {"DPU__DATA_CUBE_WIDTH__WIDTH": 9},
            r"got DPU.DATA_CUBE_WIDTH.WIDTH 9 and CORE.DATAOUT_SIZE_0.DATAOUT_WIDTH 2, ",
        ),
        (
            {"CNA__DCOMP_ADDR0__DECOMPRESS_ADDR0": 16},
            "buffer 'coefficients' has 288 bytes from 0xc0000000 on, the words say ",
        ),
    ],
)
def test_words_that_make_no_layer(fields: dict[str, int], words: str, rockchip: Target) -> None:
    capture = changed(rockchip.lower(small(), x=np.zeros((5, 5, 4), np.int8)), **fields)
    with pytest.raises(ValueError, match=words):
        rockchip.lift(capture)
    assert npulab.check(capture).verdict == "differs"


def test_mutated_words_are_refused_in_a_sentence(rockchip: Target) -> None:
    """No word leads to anything but an answer, a hang or a sentence."""
    layer, x = random_layer(0, "rk3588")
    capture, random = Simulated().record(rockchip.lower(layer, x=x)), np.random.RandomState(9)
    for _ in range(60):
        changed_words = capture.words.copy()
        used = np.flatnonzero(changed_words)
        changed_words[used[random.randint(len(used))]] ^= np.uint32(2 ** random.randint(32))
        one = capture.with_words(changed_words)
        for step in (rockchip.simulate, rockchip.lift, rockchip.recode, rockchip.rule_of):
            with contextlib.suppress(ValueError, Hang):
                step(one)


def test_lanes_and_addresses_are_free(rockchip: Target) -> None:
    """Buffers anywhere, outputs of a unit beside them: the device goes by addresses alone."""
    layer, x = random_layer(12, "rk3588")
    where = fields(
        "input=0x10000 coefficients=0x20000 biases=0x30000 output=0x40000 commands=0x50000"
    )
    one, other = (
        Simulated().record(rockchip.lower(layer, x=x, addresses=a)) for a in (where, None)
    )
    assert one.buffers["output"] == other.buffers["output"]
    assert one.addresses == where
    assert npulab.check(one).verdict == "equal"
    got = layouts.features(layer.output_shape).unpack(one.buffers["output"])
    assert len(np.unique(got)) > 5
    assert lowering.ADDRESSES["input"] == other.addresses["input"]
