"""Layers that only seem to ask for more than an NPU has: each is lowered as what it means, and what
it really asks for is still refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import npulab
from npulab.captures.target import Target
from npulab.npus.kit.layers import (
    as_dense,
    of_type,
    per_tensor,
    plain_activation,
    stepped,
    undilated as without_dilation,
)
from npulab.quant.emulate.engines import clamps_alike
from npulab.quant.layers import Add, Conv2D, FullyConnected, Network, Pool2D, QuantParams

MIDDLE = {"int8": 0, "uint8": 128}
LOWEST = {"int8": -128, "uint8": 0}
# the NPUs that take layers of codes, with their types
NPUS = [("vivante", "uint8"), ("vivante", "int8"), ("rockchip", "uint8"), ("rockchip", "int8")]
NPUS.append(("nvdla", "int8"))
STEPS = (1, 1), (2, 2)


def layer(dtype: str, seed: int = 0, **other: Any) -> Conv2D:
    """A convolution of random weights and bias; ``kernel``, ``shape`` and ``outputs`` make them."""
    random = np.random.RandomState(seed)
    zero = MIDDLE[dtype]
    kernel, shape = other.pop("kernel", (3, 3)), other.pop("shape", (6, 7, 5))
    outputs = other.pop("outputs", 4)
    sizes = outputs, *kernel, shape[2]
    if other.get("depthwise"):
        sizes = 1, *kernel, outputs
    given: dict[str, Any] = {"padding": "same"}
    for name, scale in (("input_q", 0.05), ("weight_q", 0.02), ("output_q", 0.05)):
        given[name] = QuantParams(scale, zero)
    weights = (random.randint(-30, 31, sizes) + zero).astype(dtype)
    return Conv2D(weights, random.randint(-900, 900, outputs), shape, **given | other)


def drawn(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.RandomState(1).randint(info.min, info.max + 1, shape).astype(dtype)


def runs_as_it_means(npu: str, given: Any, chip: str | None = None) -> None:
    """The job of a layer computes what the layer means: simulated from words and bytes, and lifted
    and emulated."""
    of = npulab.target(npu)
    options = {"chip": chip} if chip else {}
    dtype = getattr(given, "dtype", "int8")
    x: Any = drawn(given.input_shape, dtype)
    if isinstance(given, Add):
        x = x, drawn(given.input_shape, dtype)[::-1].copy()
    capture = of.lower(given, x=x, **options)
    want = npulab.emulate(given, x, rule_of(of, capture)).reshape(-1)
    done = capture.with_buffers(output=of.simulate(capture))
    lifted = of.lift(done)
    again = npulab.emulate(lifted.layer, lifted.x, rule_of(of, capture))
    for got in (lifted.output, again):
        assert got is not None
        moved = got.reshape(-1).astype(int) - LOWEST[got.dtype.name] + LOWEST[dtype]
        assert np.array_equal(moved, want)
    assert npulab.check(done).verdict == "equal"


def rule_of(of: Target, capture: npulab.Capture) -> str:
    if of.rule_of:
        return of.rule_of(capture)
    return of.rule


def same_meaning(dtype: str) -> Iterator[Any]:
    """Layers that need none of what they ask for."""
    lowest, middle = LOWEST[dtype], MIDDLE[dtype]
    yield layer(dtype, activation="relu6", output_q=QuantParams(6 / 255, lowest))
    yield layer(dtype, activation="relu6", output_q=QuantParams(3 / 128, middle))
    yield layer(dtype, activation="relu_n1_to_1", output_q=QuantParams(1 / 128, middle))
    yield layer(dtype, weight_q=QuantParams((0.02,) * 4, middle))
    yield layer(dtype, kernel=(1, 1), dilation=(2, 3))
    yield layer(dtype, kernel=(3, 1), dilation=(1, 4))
    yield layer(dtype, shape=(3, 3, 5), padding="valid", stride=(3, 3))
    yield layer(dtype, shape=(3, 7, 5), padding="valid", stride=(3, 1))
    yield layer(dtype, shape=(3, 7, 5), padding="valid", stride=(1, 1))
    yield layer(dtype, shape=(2, 7, 5), stride=(4, 2))
    # by name, the padding would be another with a smaller stride
    yield layer(dtype, shape=(3, 7, 5), stride=(4, 1))
    yield layer(dtype, shape=(6, 7, 1), depthwise=True)
    yield replace(layer(dtype), bias=None)


@pytest.mark.parametrize(("npu", "dtype"), NPUS)
@pytest.mark.parametrize("number", range(13))
def test_what_a_layer_only_seems_to_ask_for_is_not_refused(
    npu: str, dtype: str, number: int
) -> None:
    runs_as_it_means(npu, [*same_meaning(dtype)][number])


@pytest.mark.parametrize(("npu", "dtype"), NPUS)
def test_a_network_of_one_layer_is_that_layer(npu: str, dtype: str) -> None:
    lower = npulab.target(npu).lower
    x = drawn((6, 7, 5), dtype)
    mine, own = lower(Network((layer(dtype),)), x=x), lower(layer(dtype), x=x)
    assert mine.buffers == own.buffers
    for job, other in zip(mine.jobs, own.jobs, strict=True):
        assert np.array_equal(job.words, other.words)


@pytest.mark.parametrize(("npu", "dtype"), NPUS)
def test_weights_of_four_bits_are_stored_in_bytes(npu: str, dtype: str) -> None:
    plain = layer(dtype, weight_q=QuantParams(0.02, 0))
    weights = plain.weights % 8
    if npu == "nvdla":
        plain = layer(dtype)
    runs_as_it_means(npu, replace(plain, weights=weights, weight_bits=4))


def test_an_npu_that_takes_fully_connected_layers_of_one_pixel_takes_them_plainly() -> None:
    weights = np.random.RandomState(2).randint(-30, 31, (7, 40)).astype(np.int8)
    q = QuantParams(6 / 255, -128)
    plain = FullyConnected(weights, np.arange(7), "relu6", QuantParams(0.1), output_q=q)
    for npu in ("vivante", "rockchip", "nvdla", "onert"):
        runs_as_it_means(npu, plain)


@pytest.mark.parametrize("pool", ["max", "average"])
def test_nvdla_pools_with_an_activation_that_clamps_nothing(pool: str) -> None:
    q = QuantParams(6 / 255, -128)
    for activation in ("relu", "relu6"):
        runs_as_it_means("nvdla", Pool2D(pool, (2, 2), (6, 6, 5), (2, 2), "valid", activation, q))


def test_nvdla_adds_with_an_activation_that_clamps_nothing() -> None:
    half, whole = QuantParams(3 / 255, -128), QuantParams(6 / 255, -128)
    runs_as_it_means("nvdla", Add((3, 4, 5), "relu6", half, half, whole))


def test_ane_takes_an_addition_and_windows_that_are_one() -> None:
    ane = npulab.target("ane")
    random = np.random.RandomState(3)
    given = Add((4, 6, 5), dtype="float16")
    x = tuple(random.randn(4, 6, 5).astype(np.float16) for _ in range(2))
    capture = ane.lower(given, x=x)
    lifted = ane.lift(capture.with_buffers(output=ane.simulate(capture)))
    assert np.array_equal(lifted.output, npulab.emulate(given, x))
    weights = random.randn(4, 3, 1, 5).astype(np.float16)
    conv = Conv2D(weights, None, (3, 6, 5), stride=(3, 1), dilation=(1, 4))
    plain = replace(conv, stride=(1, 1), dilation=(1, 1))
    mine, own = ane.lower(conv, x=x[0][:3]), ane.lower(plain, x=x[0][:3])
    assert np.array_equal(mine.words, own.words)
    assert mine.buffers["coefficients"] == own.buffers["coefficients"]


@pytest.mark.sample(20)
@pytest.mark.parametrize(("npu", "dtype"), NPUS)
@pytest.mark.parametrize("seed", range(12))
def test_an_activation_is_refused_only_if_it_clamps(npu: str, dtype: str, seed: int) -> None:
    random = np.random.RandomState(seed)
    activation = str(random.choice(["relu6", "relu_n1_to_1"]))
    zero = LOWEST[dtype] + int(random.choice([0, 0, 128, random.randint(256)]))
    scale = {"relu6": 6.0, "relu_n1_to_1": 1.0}[activation] / max(LOWEST[dtype] + 255 - zero, 1)
    q = QuantParams(scale * random.choice([1.0, 0.5, 1.05]), zero)
    given = layer(dtype, seed, kernel=(1, 1), activation=activation, output_q=q)
    if clamps_alike(given, None) or clamps_alike(given, "relu"):
        runs_as_it_means(npu, given)
    else:
        with pytest.raises(ValueError, match=f"activation: got '{activation}', allowed is None"):
            npulab.target(npu).lower(given)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weight_q": QuantParams((0.02, 0.02, 0.02, 0.03))}, "weight_q"),
        ({"dilation": (2, 2)}, "dilation"),
        ({"kernel": (3, 1), "dilation": (2, 1)}, "dilation"),
        ({"kernel": (1, 3), "dilation": (1, 2)}, "dilation"),
        ({"shape": (6, 8, 4), "depthwise": True, "outputs": 8}, "depthwise"),
    ],
)
def test_what_a_layer_does_ask_for_is_refused(changes: dict[str, Any], words: str) -> None:
    for npu in ("vivante", "rockchip"):
        with pytest.raises(ValueError, match=words):
            npulab.target(npu).lower(layer("int8", **changes))


@pytest.mark.parametrize("stride", [(3, 3), (1, 2), (2, 1)])
def test_a_stride_over_several_windows_is_refused(stride: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="stride: got"):
        npulab.target("vivante").lower(layer("int8", stride=stride))


def test_a_chip_that_takes_a_dilation_gets_it_as_it_is() -> None:
    of = npulab.target("rockchip")
    dilates = [chip for chip in of.chips if of.features(chip).get("dilation")]
    assert dilates
    capture = of.lower(layer("int8", kernel=(1, 1), dilation=(2, 2)), dilates[0])
    plain = of.lower(layer("int8", kernel=(1, 1)), dilates[0])
    assert not np.array_equal(capture.words, plain.words)


@pytest.mark.parametrize(("npu", "dtype"), NPUS)
def test_a_capture_states_the_activation_that_its_words_have(npu: str, dtype: str) -> None:
    of = npulab.target(npu)
    same = layer(dtype, activation="relu6", output_q=QuantParams(6 / 255, LOWEST[dtype]))
    capture = of.lower(same, x=drawn((6, 7, 5), dtype))
    assert capture.parameters["activation"] == "relu"
    lifted = of.lift(capture).layer
    assert clamps_alike(lifted, capture.parameters["activation"])


# ---- the parts of the kit ----


def test_a_plain_activation_is_the_layers_own_or_one_that_gives_the_same() -> None:
    q = QuantParams(6 / 255, -128)
    for activation, allowed, want in (
        ("relu6", (None, "relu"), "relu"),
        ("relu6", (None,), None),
        ("relu", (None, "relu"), "relu"),
        ("relu6", ("relu6", None), "relu6"),
        (None, (None, "relu"), None),
    ):
        given = layer("int8", activation=activation, output_q=q)
        assert plain_activation(given, "here", allowed).activation == want
    with pytest.raises(
        ValueError,
        match=r"^here: activation: got 'relu6', allowed is None or 'relu', or what gives the same",
    ):
        plain_activation(layer("int8", activation="relu6"), "here")


def test_a_stride_changes_only_where_every_window_stays() -> None:
    row = layer("int8", shape=(3, 7, 5), padding="valid", stride=(3, 1))
    assert stepped(row, STEPS).stride == (1, 1)
    two = layer("int8", shape=(3, 7, 5), padding="valid", stride=(3, 2))
    assert stepped(two, STEPS).stride == (2, 2)
    # with a stride of 1 or 2 there would be a second row
    wide = layer("int8", shape=(5, 7, 5), padding="valid", stride=(3, 1))
    assert stepped(wide, STEPS) is wide
    named = layer("int8", shape=(3, 7, 5), stride=(4, 1))
    assert stepped(named, STEPS).stride == (1, 1)
    assert stepped(named, STEPS).pads == named.pads
    own = layer("int8", stride=(2, 2))
    assert stepped(own, STEPS) is own


def test_only_equal_scales_one_cell_and_one_channel_are_plain() -> None:
    assert per_tensor(layer("int8", weight_q=QuantParams((0.5,) * 4))).weight_q == QuantParams(0.5)
    several = layer("int8", weight_q=QuantParams((0.5, 0.5, 0.5, 0.25)))
    assert per_tensor(several) is several
    assert without_dilation(layer("int8", kernel=(3, 1), dilation=(2, 5))).dilation == (2, 1)
    one = layer("int8", shape=(6, 7, 1), depthwise=True)
    assert as_dense(one).weights.shape == (4, 3, 3, 1)
    two = layer("int8", shape=(6, 7, 2), depthwise=True)
    assert as_dense(two) is two
    bits = replace(one, weights=one.weights % 8, weight_bits=4)
    assert of_type(bits, "uint8").weight_bits == 8
    assert of_type(bits, "int8").weight_bits == 4
