"""Layers and their exact emulation, against plain integer loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import npulab
from npulab.emulate import accumulate, accumulate_reference, clamp_range


def random_layer(seed: int) -> tuple[npulab.Conv2D, np.ndarray]:
    """A convolution with everything drawn at random."""
    random = np.random.RandomState(seed)
    dtype = [np.uint8, np.int8][random.randint(2)]
    info = np.iinfo(dtype)
    depthwise = bool(random.randint(2))
    shape = tuple(int(n) for n in random.randint([5, 5, 1], [12, 12, 5]))
    kernel = random.randint(1, 4, 2)
    outputs = shape[2] * int(random.randint(1, 3)) if depthwise else int(random.randint(1, 7))
    weights_shape = (1, *kernel, outputs) if depthwise else (outputs, *kernel, shape[2])
    padding = ["same", "valid", ((1, 0), (2, 1))][random.randint(3)]
    layer = npulab.Conv2D(
        random.randint(info.min, info.max + 1, weights_shape).astype(dtype), random.randint(-9999, 9999, outputs),
        shape, stride=tuple(random.randint(1, 4, 2)), padding=padding, dilation=tuple(random.randint(1, 3, 2)),
        depthwise=depthwise, activation=[None, "relu", "relu6", "relu_n1_to_1"][random.randint(4)],
        input_q=npulab.QuantParams(0.02, int(random.randint(info.min, info.max))),
        weight_q=npulab.QuantParams(random.uniform(0.001, 0.1, outputs), 0 if dtype is np.int8 else 120),
        output_q=npulab.QuantParams(0.05, int(random.randint(info.min, info.max))))
    return layer, random.randint(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("seed", range(40))
def test_accumulate_is_its_definition(seed: int) -> None:
    layer, x = random_layer(seed)
    assert np.array_equal(accumulate(layer, x), accumulate_reference(layer, x))


@pytest.mark.parametrize("seed", range(10))
def test_batch_is_one_by_one(seed: int) -> None:
    layer, x = random_layer(seed)
    batch = np.stack([x, x[::-1], x[:, ::-1]])
    assert np.array_equal(npulab.emulate(layer, batch), np.stack([npulab.emulate(layer, one) for one in batch]))
    assert npulab.emulate(layer, x).dtype == x.dtype
    assert npulab.emulate(layer, x).shape == layer.output_shape


def test_accumulator_past_32_bits_is_refused_unless_the_rule_wraps() -> None:
    layer = npulab.Conv2D(np.full((1, 1, 1, 1), 255, np.uint8), [2 ** 31 - 1], (1, 1, 1))
    x = np.full((1, 1, 1), 1, np.uint8)
    assert accumulate(layer, x).item() == accumulate_reference(layer, x).item() == 2 ** 31 - 1 + 255
    with pytest.raises(ValueError, match=r"^accumulator: got 2147483902 in channel 0, allowed with gemmlowp:P is -2147"):
        npulab.emulate(layer, x)
    assert npulab.emulate(layer, x, "vivante-v7:half-up").item() == 0


def test_same_padding_puts_the_odd_row_behind() -> None:
    layer = npulab.Conv2D(np.zeros((1, 3, 3, 1), np.uint8), [0], (8, 9, 1), stride=(2, 2), padding="same")
    assert layer.pads == ((0, 1), (1, 1))
    assert layer.output_shape == (4, 5, 1)


@pytest.mark.parametrize(("activation", "dtype", "want"), [
    (None, np.uint8, (0, 255)), ("relu", np.uint8, (10, 255)), ("relu6", np.uint8, (10, 130)),
    ("relu_n1_to_1", np.int8, (-10, 30)), ("relu6", np.int8, (10, 127))])
def test_clamp_range(activation: str | None, dtype: type, want: tuple[int, int]) -> None:
    layer = npulab.Conv2D(np.zeros((1, 1, 1, 1), dtype), [0], (1, 1, 1), activation=activation,
                          output_q=npulab.QuantParams(0.05, 10))
    assert clamp_range(layer, dtype) == want


@pytest.mark.parametrize(("change", "words"), [
    ({"weights": np.zeros((1, 3, 3), np.uint8)}, r"^weights: got shape \(1, 3, 3\)"),
    ({"weights": np.zeros((1, 3, 3, 1), np.float32)}, "float32, allowed is 4 axes of uint8 or int8"),
    ({"weights": np.zeros((1, 3, 3, 2), np.uint8)}, "got 2 input channels, allowed is 1"),
    ({"bias": np.zeros(2, int)}, r"^bias: got shape \(2,\)"), ({"bias": np.array([0.5])}, "^bias: got"),
    ({"bias": np.array([2 ** 40])}, "within int32"), ({"input_shape": (8, 8)}, "^input_shape: got"),
    ({"input_shape": (2, 2, 1)}, r"too small for a kernel of \(3, 3\)"), ({"stride": (0, 1)}, r"^stride: got \(0, 1\)"),
    ({"dilation": (1, -1)}, "^dilation: got"), ({"padding": "full"}, "^padding: got 'full'"),
    ({"padding": ((0, -1), (0, 0))}, "none negative"), ({"activation": "gelu"}, "^activation: got 'gelu'"),
    ({"input_shape": (8.5, 8, 1)}, "^input_shape: got"), ({"padding": ((1.5, 0), (0, 0))}, "^padding: got"),
    ({"stride": 2}, "^stride: got 2, allowed is"), ({"input_q": 0.1}, "^input_q: got 0.1, allowed is QuantParams"),
    ({"weight_q": npulab.QuantParams([1.0, 2.0])}, "got 2 scales, allowed is 1 or 1"),
    ({"input_q": npulab.QuantParams([1.0])}, "^input_q: got 1 scales"),
    ({"depthwise": True, "input_shape": (8, 8, 2)}, "allowed is 1HWC with C a multiple of 2")])
def test_bad_layer_is_refused(change: dict[str, object], words: str) -> None:
    layer = npulab.Conv2D(np.zeros((1, 3, 3, 1), np.uint8), [0], (8, 8, 1))
    with pytest.raises(ValueError, match=words):
        replace(layer, **change)


@pytest.mark.parametrize("x", [np.zeros((8, 8, 2), np.uint8), np.zeros((8, 8), np.uint8), np.zeros((8, 8, 1))])
def test_bad_input_is_refused(x: np.ndarray) -> None:
    layer = npulab.Conv2D(np.zeros((1, 3, 3, 1), np.uint8), [0], (8, 8, 1))
    with pytest.raises(ValueError, match=r"^x: got shape"):
        npulab.emulate(layer, x)


def test_layer_prints_its_sizes() -> None:
    layer = npulab.Conv2D(np.zeros((4, 3, 3, 1), np.uint8), np.zeros(4, int), (8, 8, 1), (2, 2), activation="relu")
    assert repr(layer) == "Conv2D(3x3, 8x8x1 -> 3x3x4, stride 2x2, padding valid, relu)"
    assert layer.parameters["stride_h"] == 2
