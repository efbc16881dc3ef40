"""Layers at the edges of what the unit takes, broken captures, and layouts found from markers."""

from __future__ import annotations

import contextlib
import re
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from lowered_layers import A311D, FEATURES, IMX8MP, S905D3, STM32MP25
from test_cli import run  # noqa: F401 - a fixture
from test_vivante_coefficients import vendor

import npulab
import npulab.layout
from npulab.captures.target import GUESS, Hang, Target, Unsupported
from npulab.npus.kit import wrapped
from npulab.npus.vivante import coefficients, lifting
from npulab.npus.vivante.dialects import dialects_of
from npulab.npus.vivante.lowering import coded_chip
from npulab.npus.vivante.simulate import requantized

Q = npulab.QuantParams
CORES = {A311D: 8, IMX8MP: 6}
LARGEST_KERNEL = {A311D: 11, IMX8MP: 15}


class Case(NamedTuple):
    name: str
    layer: Any
    x: Any
    features: tuple[str, ...] = ()


class Draw:
    """Layers by their sizes; weights, bias, zero points and scales are drawn."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.RandomState(seed)

    def codes(self, shape: Any, dtype: str = "uint8") -> np.ndarray:
        return (self.random.randint(0, 256, shape) + np.iinfo(dtype).min).astype(dtype)

    def q(self, scale: float, dtype: str, point: int | None = None) -> npulab.QuantParams:
        point = int(self.random.randint(256)) if point is None else point
        return Q(
            float(np.float32(scale * self.random.uniform(0.6, 1.6))), point + np.iinfo(dtype).min
        )

    def conv(
        self,
        size: tuple[int, int, int],
        outputs: int,
        kernel: Any = 3,
        stride: int = 1,
        padding: Any = "same",
        dtype: str = "uint8",
        points: tuple[int | None, int | None, int | None] = (None, None, None),
        depthwise: bool = False,
        relu: bool = False,
        zeros: float = 0,
        **given: Any,
    ) -> npulab.Conv2D:
        kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
        shape = (1, *kernel, outputs) if depthwise else (outputs, *kernel, size[2])
        weight_q = self.q(0.01, dtype, points[1])
        weights = self.codes(shape, dtype)
        weights[self.random.random_sample(shape) < zeros] = weight_q.zero_point
        taps = kernel[0] * kernel[1] * (1 if depthwise else size[2])
        return npulab.Conv2D(
            weights,
            self.random.randint(-9000, 9000, outputs),
            size,
            (stride, stride),
            padding,
            depthwise=depthwise,
            activation="relu" if relu else None,
            input_q=self.q(0.02, dtype, points[0]),
            weight_q=weight_q,
            output_q=self.q(0.02 * taps**0.5, dtype, points[2]),
            **given,
        )

    def full(
        self, inputs: int, outputs: int, dtype: str = "uint8", relu: bool = False
    ) -> npulab.FullyConnected:
        return npulab.FullyConnected(
            self.codes((outputs, inputs), dtype),
            self.random.randint(-9000, 9000, outputs),
            "relu" if relu else None,
            self.q(0.02, dtype),
            self.q(0.01, dtype),
            self.q(0.02 * inputs**0.5, dtype),
        )

    def add(
        self, size: tuple[int, int, int], dtype: str = "uint8", relu: bool = False, ratio: float = 1
    ) -> npulab.Add:
        return npulab.Add(
            size,
            "relu" if relu else None,
            self.q(0.02, dtype),
            self.q(0.02 * ratio, dtype),
            self.q(0.02 + 0.02 * ratio, dtype),
            dtype,
        )

    def x(self, layer: Any) -> Any:
        if isinstance(layer, npulab.FullyConnected):
            return self.codes(layer.weights.shape[1], layer.dtype)
        if isinstance(layer, npulab.Add):
            return self.codes(layer.input_shape, layer.dtype), self.codes(
                layer.input_shape, layer.dtype
            )
        return self.codes(layer.input_shape, layer.dtype)


def edges(chip: str) -> Iterator[Case]:
    """Sizes at which something changes: cores, tiles, words, codes."""
    draw, cores, most = Draw(1), CORES[chip], LARGEST_KERNEL[chip]

    def case(name: str, layer: Any, *features: str) -> Case:
        return Case(name, layer, draw.x(layer), features)

    for size, kernel in (
        ((1, 1, 1), 1),
        ((1, 1, 1), 3),
        ((1, 1, 1), 5),
        ((1, 1, 9), 1),
        ((1, 7, 3), 3),
        ((7, 1, 3), 3),
        ((2, 2, 2), 5),
        ((1, 40, 2), 1),
        ((40, 1, 2), 1),
        ((2, 1, 1), 1),
        ((1, 2, 1), (1, 2)),
    ):
        for stride in (1, 2):
            yield case(
                f"image {size} kernel {kernel} stride {stride}", draw.conv(size, 3, kernel, stride)
            )
    for outputs in (1, cores - 1, cores, cores + 1, 2 * cores - 1, 2 * cores + 1, 17 * cores + 3):
        for kernel in (1, 3):
            yield case(f"{outputs} outputs, kernel {kernel}", draw.conv((4, 5, 3), outputs, kernel))
        yield case(
            f"{outputs} channels depthwise", draw.conv((5, 4, outputs), outputs, 3, depthwise=True)
        )
        yield case(
            f"{outputs} channels depthwise stride 2",
            draw.conv((6, 6, outputs), outputs, 3, 2, depthwise=True),
        )
    for channels in (255, 256, 257, 1023, 1024):
        yield case(f"{channels} channels in", draw.conv((2, 2, channels), 3, 1))
        yield case(f"{channels} channels out", draw.conv((2, 2, 3), channels, 1))
        yield case(f"{channels} channels in, 3x3", draw.conv((2, 3, channels), 2, 3))
        yield case(f"{channels} full", draw.full(channels, 5))
        yield case(f"{channels} full out", draw.full(5, channels))
    for width in (31, 32, 33, 63, 64, 65, 66, 127, 129):
        for kernel, padding in (
            (3, "same"),
            (3, "valid"),
            (1, "same"),
            (5, "same"),
            ((1, 3), "valid"),
        ):
            yield case(
                f"width {width} kernel {kernel} {padding}",
                draw.conv((6, width, 2), 3, kernel, padding=padding),
            )
        yield case(f"width {width} stride 2", draw.conv((6, width, 2), 3, 3, 2))
        yield case(
            f"width {width} depthwise stride 2", draw.conv((6, width, 2), 2, 3, 2, depthwise=True)
        )
        yield case(f"height {width}", draw.conv((width, 5, 1), 2, 3, zeros=0.5))
        yield case(f"width {width} add", draw.add((3, width, 2)))
    for points in (
        (0, 0, 0),
        (255, 255, 255),
        (0, 255, 0),
        (255, 0, 255),
        (0, 128, 255),
        (255, 128, 0),
    ):
        for dtype in ("uint8", "int8"):
            for kernel, stride in ((3, 1), (3, 2), (1, 1)):
                yield case(
                    f"points {points} {dtype} {kernel} {stride}",
                    draw.conv(
                        (7, 6, 3), 4, kernel, stride, dtype=dtype, points=points, relu=stride == 2
                    ),
                )
    for kernel in (2, 4, 6, 7, most, (1, most), (most, 1), (2, 3), (5, 2), (1, 2), (2, 1), (3, 1)):
        for stride in (1, 2):
            for padding in ("same", "valid", ((2, 1), (0, 3))):
                yield case(
                    f"kernel {kernel} stride {stride} {padding}",
                    draw.conv((17, 16, 2), 3, kernel, stride, padding),
                )
    for width in range(2, 10):
        for kernel in (3, 5):
            for padding in ("same", "valid"):
                for dtype in ("uint8", "int8"):
                    yield case(
                        f"depthwise width {width} kernel {kernel} stride 2 {padding} {dtype}",
                        draw.conv(
                            (
                                max(width, kernel),
                                max(width, kernel) if padding == "valid" else width,
                                7,
                            ),
                            7,
                            kernel,
                            2,
                            padding,
                            depthwise=True,
                            dtype=dtype,
                        ),
                    )
    for zeros in (0, 0.5, 0.97, 1):
        for kernel in (1, 3, 5):
            yield case(
                f"zeros {zeros} kernel {kernel}",
                draw.conv((6, 6, 4), cores + 1, kernel, zeros=zeros),
            )
        yield case(
            f"zeros {zeros} depthwise", draw.conv((6, 6, 9), 9, 3, depthwise=True, zeros=zeros)
        )
    for dtype in ("uint8", "int8"):
        for relu in (False, True):
            yield case(f"full {dtype} {relu}", draw.full(30, 11, dtype, relu))
            for ratio in (1, 0.01, 100, 3):
                yield case(f"add {dtype} {relu} {ratio}", draw.add((4, 3, 5), dtype, relu, ratio))
    for size in ((1, 1, 1), (1, 1, 2), (1, 3, 1), (8, 8, 4), (7, 7, 7), (13, 1, 1), (16, 16, 5)):
        yield case(f"add {size}", draw.add(size))
    for features in (("hwc-tensors",), ("hwc-tensors", "pad-job"), ("pad-job",)):
        for stride in (1, 2):
            for padding in ("same", ((1, 0), (2, 1))):
                yield case(
                    f"{features} {stride} {padding}",
                    draw.conv((9, 8, 3), 4, 3, stride, padding),
                    *features,
                )
    for inputs in (1, 2, 13, 225, 226, 961, 1009):
        yield case(f"full {inputs}", draw.full(inputs, 3))


def anything(n: int, chip: str) -> Case:
    """A layer of any kind, number ``n``."""
    draw = Draw(1000 + n)
    random = draw.random
    dtype, relu = ("uint8", "int8")[random.randint(2)], bool(random.randint(2))
    kind = random.choice(["conv", "conv", "conv", "depthwise", "pointwise", "full", "add"])
    size = (int(random.randint(1, 24)), int(random.randint(1, 24)), int(random.randint(1, 12)))
    layer: Any
    if kind == "full":
        layer = draw.full(int(random.randint(1, 400)), int(random.randint(1, 60)), dtype, relu)
    elif kind == "add":
        layer = draw.add(size, dtype, relu, float(2 ** random.uniform(-5, 5)))
    else:
        kernel = (
            (1, 1)
            if kind == "pointwise"
            else tuple(int(k) for k in random.choice([1, 2, 3, 3, 3, 4, 5, 5, 7], 2))
        )
        if random.randint(2):
            kernel = (kernel[0], kernel[0])
        padding = (
            "same",
            "valid",
            tuple((int(random.randint(kernel[0])), int(random.randint(kernel[1]))) for _ in "hw"),
        )[random.randint(3)]
        size = (max(size[0], kernel[0]), max(size[1], kernel[1]), size[2])
        layer = draw.conv(
            size,
            size[2] if kind == "depthwise" else int(random.randint(1, 30)),
            kernel,
            1 + int(random.randint(2)),
            padding,
            dtype,
            depthwise=kind == "depthwise",
            relu=relu,
            zeros=max(0.0, float(random.uniform(-0.5, 1))),
        )
    features = tuple(name for name in FEATURES if random.randint(6) == 0)
    if kind in ("full", "add"):
        features = ()  # of a convolution only
    return Case(f"{n}: {kind}", layer, draw.x(layer), features)


def up(tensor: np.ndarray) -> np.ndarray:
    """As the hardware has it: int8 moved up by 128."""
    return tensor.view(np.uint8) ^ np.uint8(0x80 if tensor.dtype == np.int8 else 0)


def expected(case: Case, rule: str) -> bytes:
    """The output tensor as it lies in memory."""
    out = up(npulab.emulate(case.layer, case.x, rule))
    turned = {*case.features} & {"hwc-tensors", "nn-job-alone"} == {"hwc-tensors"}
    if out.ndim == 1 or turned:
        return out.tobytes()
    return out.transpose(2, 0, 1).tobytes()


def whole_turn(case: Case, chip: str, target: Target) -> None:
    """A layer lowered, run, checked and lifted."""
    layer, x = case.layer, case.x
    capture = target.lower(layer, chip=chip, x=x, features=case.features)
    rule = target.rule_of(capture)
    for job in capture.jobs:
        registers = target.maps(chip)[job.block]
        assert np.array_equal(registers.encode(registers.decode(job.words)), job.words)
    assert target.recode(capture) == capture.buffers["coefficients"]
    ran = npulab.Simulated().record(capture)
    assert ran.buffers["output"] == expected(case, rule), (
        "the device gives another output than emulate"
    )
    found = npulab.check(ran)
    assert (found.verdict, found.words, found.coefficients, found.mismatches) == (
        "equal",
        True,
        True,
        0,
    ), found
    assert found.compared == len(ran.buffers["output"])
    known = target.features(chip)
    for parameters in (capture.parameters, {}):
        lifted = target.lift(replace(ran, parameters=parameters))
        effective = layer_scale(lifted.layer) / (
            layer_scale(layer) if not isinstance(layer, npulab.Add) else layer_scale(lifted.layer)
        )
        assert effective == pytest.approx(1, rel=2.0**-15 if "nn_v7" in known else 2.0**-22)
        assert lifted.layer.output_q.zero_point == layer.output_q.zero_point + (
            128 if layer.dtype == "int8" else 0
        )
        assert (
            lifted.layer.activation == layer.activation
            or layer.output_q.zero_point == np.iinfo(layer.dtype).min
        )
        if isinstance(layer, npulab.Conv2D) and parameters:
            assert np.array_equal(lifted.layer.weights, up(layer.weights))
            assert lifted.layer.bias.tolist() == layer.bias.tolist()
            assert lifted.layer.stride == layer.stride or layer.output_shape[:2] == (1, 1)
            assert lifted.layer.output_shape == layer.output_shape
        if isinstance(layer, npulab.Conv2D) and lifted.x.shape == x.shape:
            read = slice(None), slice(None)
            if "nn-job-alone" in case.features:
                read = reached(layer)
            assert np.array_equal(lifted.x[read], up(x)[read])
        again = target.lower(lifted.layer, chip=chip, x=lifted.x)
        assert again.jobs == capture.jobs or isinstance(layer, npulab.Add)
        same = again.buffers["coefficients"] == capture.buffers["coefficients"]
        assert same or isinstance(layer, npulab.Add)
        assert npulab.emulate(lifted.layer, lifted.x, rule).transpose(
            2, 0, 1
        ).tobytes() == expected(case._replace(features=()), rule)
        other = case._replace(x=Draw(77).x(layer), features=case.features)
        moved = target.lift(
            replace(
                target.lower(layer, chip=chip, x=other.x, features=case.features),
                parameters=parameters,
            )
        )
        assert npulab.emulate(lifted.layer, moved.x, rule).transpose(2, 0, 1).tobytes() == expected(
            other._replace(features=()), rule
        )


def reached(layer: npulab.Conv2D) -> tuple[slice, slice]:
    """The rows and columns up to the last that a window reads: the NN job alone has no others."""
    ends = []
    for axis in range(2):
        begin = (layer.output_shape[axis] - 1) * layer.stride[axis] - layer.pads[axis][0]
        ends.append(slice(begin + layer.kernel[axis]))
    return ends[0], ends[1]


def layer_scale(layer: Any) -> float:
    weights = layer.other_q if isinstance(layer, npulab.Add) else layer.weight_q
    return float(layer.input_q.scale * weights.scale / layer.output_q.scale)


# Layers of every kind


def some(cases: Iterator[Case], every: int, first: int) -> list[Case]:
    return [case for n, case in enumerate(cases) if n % every == first]


@pytest.mark.sample(2)
@pytest.mark.parametrize("chip", [A311D, IMX8MP])
@pytest.mark.parametrize("part", range(3))
def test_layers_at_the_edges(part: int, chip: str, vivante: Target) -> None:
    for case in some(edges(chip), 150, 50 * part + CORES[chip]):
        whole_turn(case, chip, vivante)


@pytest.mark.long
@pytest.mark.parametrize("chip", [A311D, IMX8MP])
@pytest.mark.parametrize("part", range(10))
def test_every_layer_at_the_edges(part: int, chip: str, vivante: Target) -> None:
    for case in some(edges(chip), 10, part):
        whole_turn(case, chip, vivante)


@pytest.mark.parametrize("chip", [A311D, IMX8MP])
def test_layers_of_any_kind(chip: str, vivante: Target) -> None:
    for n in range(5):
        whole_turn(anything(n, chip), chip, vivante)


@pytest.mark.long
@pytest.mark.parametrize("chip", [A311D, IMX8MP])
@pytest.mark.parametrize("hundred", range(10))
def test_many_layers_of_any_kind(hundred: int, chip: str, vivante: Target) -> None:
    for n in range(100 * hundred, 100 * hundred + 100):
        whole_turn(anything(n, chip), chip, vivante)


@pytest.mark.long
@pytest.mark.parametrize("chip", [A311D, IMX8MP])
def test_layers_that_need_superblocks(chip: str, vivante: Target) -> None:
    """And more than the on-chip memory, for the second kernel cache mode of V7."""
    draw, shares, modes = Draw(9), set(), set()
    for layer in (
        draw.conv((8, 8, 64), 512, 3),
        draw.conv((14, 14, 128), 160, 3, zeros=0.7),
        draw.conv((7, 7, 1024), 1024, 1),
        draw.conv((56, 56, 64), 64, 3),
        draw.full(1024, 1000),
        draw.conv((14, 14, 512), 512, 3, depthwise=True),
        draw.conv((10, 10, 40), 300, 5, 2),
        draw.conv((20, 20, 100), 1100, 1, relu=True),
        draw.add((28, 28, 256)),
    ):
        whole_turn(Case("large", layer, draw.x(layer)), chip, vivante)
        values = vivante.lower(layer, chip=chip).values
        shares.add(-(-values["out_image_z_size"] // CORES[chip]) > values["kernels_per_core"])
        modes.add(values["kernel_caching_mode"])
    assert True in shares
    assert modes == ({1, 2} if chip == A311D else {0})


def test_native_depthwise_kernels_with_one_cell_are_not_pointwise(vivante: Target) -> None:
    """Only a single plane is what a driver makes 2x2 of 1x1."""
    draw = Draw(4)
    layer = draw.conv((5, 6, 7), 7, 2, depthwise=True)
    weights = layer.weights.copy()
    weights.reshape(4, 7)[1:] = layer.weight_q.zero_point
    whole_turn(Case("", replace(layer, weights=weights), draw.x(layer)), IMX8MP, vivante)


@pytest.mark.parametrize("chip", [S905D3, STM32MP25])
def test_of_some_chips_there_are_words_alone(chip: str, vivante: Target) -> None:
    for n in range(0, 60, 6):
        case = anything(n, chip)
        capture = vivante.lower(case.layer, chip=chip, x=case.x, features=case.features)
        assert "coefficients" not in capture.buffers
        for job in capture.jobs:
            registers = vivante.maps(chip)[job.block]
            assert np.array_equal(registers.encode(registers.decode(job.words)), job.words)
    for ask in (vivante.recode, vivante.explain, vivante.lift, vivante.simulate, npulab.explain):
        with pytest.raises(Unsupported, match=f"^chip: got {chip!r}, [^.\n]*coefficient") as caught:
            ask(capture)
        assert "\n" not in str(caught.value)
    found = npulab.check(capture)
    assert (found.words, found.coefficients, found.compared) == (True, None, 0), found


def refused(chip: str) -> Iterator[tuple[Any, str]]:
    draw = Draw(5)
    base, most = draw.conv((6, 6, 4), 4), LARGEST_KERNEL[chip]
    yield replace(base, dilation=(2, 2)), r"dilation: got \(2, 2\), allowed is \(1, 1\)"
    yield replace(base, weight_q=Q((0.1, 0.2, 0.3, 0.4), 100)), "weight_q: got a scale per channel"
    yield replace(base, activation="relu6"), "activation: got 'relu6'"
    yield replace(base, stride=(1, 2)), r"stride: got \(1, 2\)"
    yield replace(base, stride=(2, 1)), r"stride: got \(2, 1\)"
    yield replace(base, stride=(3, 3)), r"stride: got \(3, 3\), allowed is \(1, 1\) or \(2, 2\)"
    yield (
        replace(base, weight_q=Q(1e20, 3)),
        "ratio of scales: got .*, allowed with vivante-v.:half-even is",
    )
    yield (
        draw.conv((40, 40, 1), 1, most + 1, padding="valid"),
        rf"kernel: got \({most + 1}, {most + 1}\), allowed is up to {most}",
    )
    yield (
        draw.conv((6, 6, 4), 4, 3, 1, ((20, 0), (0, 20))),
        r"padding: got \(\(20, 0\), \(0, 20\)\)",
    )
    yield (
        replace(base, output_q=Q(1e-12, 3)),
        "scales: got .*, which needs a post shift of .* bits, allowed is 0 to 127",
    )
    yield draw.conv((1, 8192, 1), 1, 1), "in_image_x_size: got raw 8192, allowed is 0 to 8191"
    yield draw.conv((1, 1, 1), 16384, 1), "out_image_z_size: got raw 16384, allowed is 0 to 16383"
    yield (
        draw.conv((1, 1, 65536), 65536, 1, depthwise=True),
        "allowed are up to 16383 channels"
        if chip == A311D
        else "out_image_z_size: got raw 65536, allowed is 0 to 16383",
    )
    yield (
        npulab.Pool2D("max", (2, 2), (4, 4, 3)),
        r"got Pool2D\(.*, allowed is a Conv2D, FullyConnected or Add",
    )
    yield (
        npulab.Add((2, 2, 2), dtype="int16"),
        r"got Add\(.*int16.*, allowed is .* of uint8 or int8",
    )
    yield npulab.Add((2, 2, 2, 2), dtype="uint8"), "allowed are tensors of up to three axes"
    yield (
        npulab.Add((1, 1, 65521), None, Q(0.1, 3), Q(0.1, 3), Q(0.2, 3), "uint8"),
        "got raw 65521, allowed is 0 to 8191"
        if chip == A311D
        else "allowed are up to 16383 channels",
    )


@pytest.mark.parametrize("chip", [A311D, IMX8MP])
def test_what_lower_refuses(chip: str, vivante: Target) -> None:
    for layer, words in refused(chip):
        with pytest.raises(ValueError, match=words) as caught:
            vivante.lower(layer, chip=chip)
        assert "\n" not in str(caught.value)


# The vendor's job


def test_the_vendors_v8_job_from_input_to_output(vivante: Target) -> None:
    """Inputs 0x33, weights 0xFF, a multiplier of 1/1020: every output is 0x33."""
    layer = npulab.Conv2D(
        np.full((1, 2, 2, 1), 255, np.uint8), np.zeros(1, int), (4, 4, 1), weight_q=Q(1 / 1020)
    )
    ran = npulab.Simulated().record(
        vivante.lower(layer, chip=IMX8MP, x=np.full((4, 4, 1), 0x33, np.uint8))
    )
    assert (ran.values["post_multiplier"], ran.values["post_shift"]) == (0x8081, 10)
    assert ran.buffers["output"] == b"\x33" * 9
    sent = replace(
        ran.with_buffers(coefficients=vendor()), parameters={}, provenance="vendor driver"
    )
    found = npulab.check(sent)
    assert (found.verdict, found.compared, found.words, found.coefficients) == (
        "equal",
        9,
        True,
        True,
    ), found
    lifted = vivante.lift(sent).layer
    assert (lifted.weights.tolist(), lifted.bias.tolist()) == (layer.weights.tolist(), [0])
    explained = npulab.explain(sent)
    assert explained.bits.sum() == 8 * len(vendor())
    assert explained[explained.kind == "weight"].value.tolist() == [0xFF] * 4


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("most", [1, 40])
def test_zero_runs_on_the_simulated_device(vivante: Target, depthwise: bool, most: int) -> None:
    """Weights of which most are the zero point, written with runs: the same output, the same layer."""
    random = np.random.RandomState(most)
    shape = (1, 3, 5, 150) if depthwise else (20, 3, 5, 30)
    weights = random.randint(99 - most, 99 + most, shape).astype(np.uint8)
    weights[random.random_sample(shape) < 0.9] = 99
    bias = random.randint(-500, 500, max(shape[0], shape[3] * depthwise)).astype(np.int32)
    layer = npulab.Conv2D(
        weights, bias, (6, 7, shape[3]), depthwise=depthwise, weight_q=Q(1 / 300, 99)
    )
    x = random.randint(0, 256, (6, 7, shape[3])).astype(np.uint8)
    lowered = vivante.lower(layer, chip=IMX8MP, x=x)
    plain = lowered.buffers["coefficients"]
    geometry = lifting.geometry_of(lowered.values, coded_chip(IMX8MP))
    content = replace(coefficients.decode(plain, geometry), symbols=(), size=0)
    buffer = coefficients.encode(content, replace(geometry, dialect="vendor"))
    assert buffer[1]
    assert len(buffer) < len(plain)
    sent = npulab.Simulated().record(lowered.with_buffers(coefficients=buffer))
    assert sent.buffers["output"] == npulab.Simulated().record(lowered).buffers["output"]
    found = npulab.check(sent)
    assert (found.verdict, found.coefficients) == ("equal", True), found
    assert np.array_equal(vivante.lift(sent).layer.weights, weights)
    items = npulab.explain(sent)
    assert items.bits.sum() == 8 * len(buffer)
    assert len({*items[items.kind == "run"].value}) > 3
    # runs that stand for less than the weights leave the device waiting
    short = sent.with_buffers(coefficients=buffer[:2] + bytes(18) + buffer[20:])
    ran = npulab.Simulated().run(short)
    assert (ran.outcome, ran.reason[:51]) == (
        "hang",
        "a core reads past the end of its coefficient stream",
    )


# What is broken


def broken(seed: int, whole: npulab.Capture) -> npulab.Capture:
    """Bits flipped, bytes of chance or an end too early in the coefficients, or bits flipped in
    the words of a job.
    """
    random = np.random.RandomState(seed)
    data, kind = bytearray(whole.buffers["coefficients"]), seed % 5
    if kind == 0:
        for _ in range(random.randint(1, 4)):
            data[random.randint(len(data))] ^= 2 ** random.randint(8)
    elif kind == 1:
        del data[random.randint(len(data)) :]
    elif kind == 2:
        data = bytearray(random.bytes(random.randint(1, 400)))
    elif kind == 3:
        data[random.randint(64)] = random.randint(256)
    else:
        jobs = list(whole.jobs)
        n = random.randint(len(jobs))
        words = jobs[n].words.copy()
        for _ in range(random.randint(1, 4)):
            words[random.randint(len(words))] ^= np.uint32(2 ** random.randint(32))
        jobs[n] = replace(jobs[n], words=words)
        return replace(whole, jobs=tuple(jobs))
    return whole.with_buffers(coefficients=bytes(data))


def wholes(chip: str, target: Target) -> list[npulab.Capture]:
    draw = Draw(3)
    layers = [
        draw.conv((5, 5, 3), 10, 3, zeros=0.6),
        draw.conv((4, 4, 7), 19, 1),
        draw.conv((8, 8, 3), 4, 5, 2),
        draw.conv((6, 6, 9), 9, 3, depthwise=True),
        draw.add((4, 4, 3)),
    ]
    return [
        npulab.Simulated().record(target.lower(layer, chip=chip, x=draw.x(layer)))
        for layer in layers
    ]


def recoded(capture: npulab.Capture, target: Target) -> tuple[bytes, str]:
    """The coefficients decoded and encoded again, or why not."""
    try:
        return target.recode(capture), ""
    except ValueError as error:
        return b"", str(error)


def content(capture: npulab.Capture) -> list[Any]:
    """The weights, bias and offsets that the coefficients hold, as lists.

    A flipped bit may be a mark of the other dialect: the first dialect that fits the words and in
    which the coefficients read is the one.
    """
    (words, *_) = [job.words for job in capture.jobs if job.block == "NN"]
    values = capture.maps["NN"].decode(words)
    refused = []
    for dialect in dialects_of(values):
        geometry = lifting.geometry_of(values, coded_chip(capture.chip, dialect), dialect)
        try:
            held = coefficients.decode(capture.buffers["coefficients"], geometry)
        except ValueError as error:
            refused.append(error)
            continue
        return [held.weights.tolist(), held.bias.tolist(), held.offsets.tolist()]
    raise refused[0]


def says_where_or_is_right(seeds: range, chip: str, target: Target) -> tuple[int, int]:
    """How many are refused and how many decode."""
    captures, counts = wholes(chip, target), [0, 0]
    for seed in seeds:
        capture = broken(seed, captures[seed // 5 % len(captures)])
        tracemalloc.start()
        again, said = recoded(capture, target)
        counts[said == ""] += 1
        if said:
            assert re.search(r"byte \d|\d bytes|^block NN field \w+: got 0", said), (seed, said)
            assert "\n" not in said
            with pytest.raises(ValueError, match="^" + re.escape(said)):
                npulab.explain(capture)
        else:
            # words of another geometry may read what nobody wrote so; that differs, and is said to
            assert (
                again == capture.buffers["coefficients"]
                or npulab.check(capture).coefficients is False
            ), seed
            # a literal that becomes the zero point splits a run, and is read as it stands: the
            # encoder, whose runs are the longest, writes the same content in other bytes
            assert again == capture.buffers["coefficients"] or seed % 5 in (0, 4), seed
            assert content(capture) == content(capture.with_buffers(coefficients=again)), seed
            assert npulab.explain(capture).bits.sum() == 8 * len(again)
        found = npulab.check(capture)
        assert found.verdict != "equal" or found.coefficients, seed
        with contextlib.suppress(Hang):
            target.simulate(capture)
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20, seed
        tracemalloc.stop()
    return counts[0], counts[1]


def test_a_flipped_mark_leaves_the_dialect_that_reads(vivante: Target) -> None:
    """Word 31 with one bit set is neither writer's: both dialects fit the words, one the stream."""
    whole = wholes(A311D, vivante)[1]
    (job, *rest) = whole.jobs
    values = {**whole.maps["NN"].decode(job.words), "w31_0_32": 1}
    words = whole.maps["NN"].encode(values)
    marked = replace(whole, jobs=(replace(job, words=words), *rest))
    assert dialects_of(values) == ("vendor", "mesa")
    assert vivante.recode(marked) == whole.buffers["coefficients"]
    assert content(marked) == content(whole)


@pytest.mark.sample(1)
@pytest.mark.parametrize("chip", [A311D, IMX8MP])
def test_broken_captures(chip: str, vivante: Target) -> None:
    refusals, decoded = says_where_or_is_right(range(0, 50, 4), chip, vivante)
    assert refusals > 5
    assert decoded > 2


@pytest.mark.long
@pytest.mark.parametrize("chip", [A311D, IMX8MP])
@pytest.mark.parametrize("part", range(10))
def test_many_broken_captures(part: int, chip: str, vivante: Target) -> None:
    says_where_or_is_right(range(500 * part + 1000, 500 * part + 1500), chip, vivante)


@pytest.mark.parametrize(
    "field",
    ["out_image_tile_x_size", "out_image_tile_y_size", "kernels_per_core", "in_image_x_size"],
)
def test_sizes_of_0_are_neither_run_nor_lifted(field: str, vivante: Target) -> None:
    (whole, *_) = wholes(A311D, vivante)
    words = vivante.registers.encode({**whole.values, field: 0})
    worse = replace(whole, jobs=(replace(whole.jobs[0], words=words),))
    with pytest.raises(Hang, match=f"{field} is 0"):
        vivante.simulate(worse)
    found = npulab.check(worse)
    assert (found.verdict, found.compared) == ("differs", 0)
    assert f"field {field}: got 0" in found.reason


def test_a_v8_stream_that_ends_early_says_so(vivante: Target) -> None:
    (whole, *_) = wholes(IMX8MP, vivante)
    data = bytearray(whole.buffers["coefficients"])
    bits = data[28]
    assert bits < 254
    data[28] += 2
    with pytest.raises(
        Hang,
        match=rf"core 0 is given a stream of (\d*) bits, its kernels end after \d+ bits, {GUESS}$",
    ):
        vivante.simulate(whole.with_buffers(coefficients=bytes(data)))


@pytest.mark.parametrize("chip", [A311D, IMX8MP])
def test_what_tensor_jobs_move_has_no_gaps(chip: str, vivante: Target) -> None:
    """The NN job would read, or leave, another image than the jobs around it write and read."""
    draw = Draw(6)
    layer = draw.conv((8, 7, 3), 4)
    ran = npulab.Simulated().record(
        vivante.lower(layer, chip=chip, x=draw.x(layer), features=["hwc-tensors"])
    )
    assert [job.block for job in ran.jobs] == ["TP", "NN", "TP"]
    for field in (
        "in_image_x_stride",
        "in_image_y_stride",
        "out_image_x_stride",
        "out_image_y_stride",
    ):
        values = ran.maps["NN"].decode(ran.jobs[1].words)
        words = ran.maps["NN"].encode({**values, field: values[field] + 8})
        worse = replace(ran, jobs=(ran.jobs[0], replace(ran.jobs[1], words=words), ran.jobs[2]))
        found = npulab.check(worse)
        assert (found.verdict, found.compared) == ("differs", 0), (field, found)
        assert (
            f"field {field}: got {values[field] + 8}, allowed of a tensor that TP jobs move is {values[field]}"
            in found.reason
        )


def test_words_of_a_large_input_take_no_memory(vivante: Target) -> None:
    """Of jobs in memory, where nothing but words says how large it is."""
    draw = Draw(3)
    layer = draw.conv((8, 8, 3), 4, 5, 2)
    capture = vivante.lower(layer, x=draw.x(layer))
    job = capture.jobs[-1]
    words = vivante.registers.encode(
        {**capture.values, "in_image_x_stride": 8191, "in_image_y_stride": 1300}
    )
    tracemalloc.start()
    with pytest.raises(Hang, match="a job reads memory at 0x600001b0 that holds nothing"):
        vivante.simulate(replace(capture, jobs=(*capture.jobs[:-1], replace(job, words=words))))
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


# Folders and the shell


@pytest.mark.parametrize("chip", [A311D, IMX8MP])
def test_folders_and_the_shell(chip: str, vivante: Target, tmp_path: Path, run: Any) -> None:
    draw = Draw(8)
    layer = draw.conv((9, 8, 3), 7, 3, 2, dtype="int8", relu=True)
    ran = npulab.Simulated().record(
        vivante.lower(layer, chip=chip, x=draw.x(layer), features=["hwc-tensors"], name="mine")
    )
    npulab.save(ran, tmp_path / "mine")
    again = npulab.load(tmp_path / "mine")
    assert (again.jobs, again.buffers, again.addresses, again.parameters, again.chip) == (
        ran.jobs,
        ran.buffers,
        ran.addresses,
        ran.parameters,
        chip,
    )
    assert again.simulated
    assert [str(one) for one in vivante.lift(again)] == [str(one) for one in vivante.lift(ran)]
    status, lines, err = run("check", tmp_path / "mine")
    assert (status, err) == (0, "")
    assert any("equal" in line for line in lines)
    status, lines, _ = run("show", tmp_path / "mine")
    assert status == 0
    assert any("simulated" in line for line in lines)
    assert any("out_image_z_size" in line for line in lines)
    status, lines, _ = run("diff", tmp_path / "mine", tmp_path / "mine")
    assert status == 0
    file = next(path for path in (tmp_path / "mine").iterdir() if path.name.startswith("output"))
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    worse = npulab.save(ran.with_buffers(output=bytes(data)), tmp_path / "worse")
    assert run("check", worse)[0] == 1


# Layouts of weight buffers


def plainly_requantized(accumulator: int, v: dict[str, int], bits: int) -> int:
    """One output code by the definition, in Python's integers."""
    product = wrapped(accumulator) * (2**bits + v["post_multiplier"])
    exact = Fraction(product, 2 ** (v["post_shift"] + bits * (bits > 15)))
    whole = round(exact)
    if v["rounding_mode"] == 0:
        whole = int(exact)
    low = v["out_zero_point"] * v["relu"]
    return min(max(whole + v["out_zero_point"], low), 255)


@pytest.mark.parametrize("bits", [15, 23])
def test_the_device_requantizes_as_by_the_definition(bits: int) -> None:
    """Any multiplier and any shift of the 7 bits of its field, ties among them."""
    random = np.random.default_rng(bits)
    for n in range(300):
        v = {
            "post_multiplier": int(random.integers(2**bits)) * (n % 3 > 0),
            "post_shift": int(random.integers((128, 30)[n % 2])),
            "out_zero_point": int(random.integers(256)),
            "relu": n % 2,
            "rounding_mode": n // 2 % 2,
        }
        sums = random.integers(-(2 ** (n % 36)), 2 ** (n % 36), 4) * 2 ** (n % 13)
        wanted = [plainly_requantized(int(each), v, bits) for each in sums]
        assert requantized(sums, v, bits).tolist() == wanted, (sums, v)
