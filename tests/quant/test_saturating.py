"""Products that saturate in groups: the fast path against the definition, engines, and the
explanation of an output.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import emulate_slowly
import numpy as np
import pytest
from oracles import onnx_conv, onnx_matmul, onnxruntime_engine
from random_models import random_case
from record_engines import stored

import npulab
from npulab.analysis.mismatch.hypotheses import summary_lines
from npulab.quant.emulate import prepare
from npulab.quant.emulate.saturating import Saturation, of_outputs
from npulab.quant.layers import Conv2D, FullyConnected
from npulab.quant.rules import QuantParams

EIGHT = tuple(
    (op, dtype) for op in ("conv", "depthwise", "fully_connected") for dtype in ("int8", "uint8")
)
LARGEST = 3_000_000  # products of a random layer that the definition multiplies in a moment


def plain(
    depth: int = 4,
    kernel: tuple[int, int] = (3, 3),
    outputs: int = 8,
    seed: int = 0,
    **changed: Any,
) -> tuple[Conv2D, np.ndarray]:
    """A convolution of uint8 inputs and int8 weights of full range, and its input."""
    random = np.random.default_rng(seed)
    given = {
        "input_q": QuantParams(0.1, 120),
        "weight_q": QuantParams(0.01),
        "output_q": QuantParams(6.0, 110),
        **changed,
    }
    weights = random.integers(-128, 128, (outputs, *kernel, depth)).astype(np.int8)
    layer = Conv2D(
        weights,
        random.integers(-500, 500, outputs),
        (9, 8, depth),
        padding="same",
        dtype="uint8",
        **given,
    )
    return layer, random.integers(0, 256, layer.input_shape).astype(np.uint8)


def test_a_pair_that_an_int16_cannot_hold() -> None:
    layer = FullyConnected(
        np.array([[127, 127, 127, -128]], np.int8), [5], dtype="uint8", input_q=QuantParams(1.0, 3)
    )
    x = np.array([[255, 255, 200, 100]], np.uint8)
    zero = 3 * (127 * 3 - 128)
    assert npulab.accumulate(layer, x).item() == 5 + 64770 + 12600 - zero
    assert npulab.accumulate(layer, x, Saturation()).item() == 5 + 32767 + 12600 - zero
    assert npulab.accumulate(layer, x, Saturation(bits=15)).item() == 5 + 16383 + 12600 - zero
    assert npulab.accumulate(layer, x, Saturation(4)).item() == 5 + 32767 - zero
    assert npulab.accumulate(layer, x, Saturation(3)).item() == 5 + 32767 - 12800 - zero
    assert (
        npulab.accumulate(layer, x, Saturation(stored=False)).item()
        == 5 + 32767 + 197 * 127 - 97 * 128
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("chunk", range(4))
def test_fast_is_the_definition(chunk: int) -> None:
    changed = 0
    for seed in range(chunk * 25, chunk * 25 + 25):
        layer, x = random_case(seed, EIGHT)
        if x.size * layer.weights.size > LARGEST:
            continue
        random = np.random.default_rng(seed)
        saturation = Saturation(
            int(random.integers(2, 6)),
            int(random.integers(11, 19)),
            ("HWC", "CHW", "WHC")[random.integers(3)],
            bool(random.integers(2)),
        )
        fast, slow = (
            npulab.accumulate(layer, x, saturation),
            emulate_slowly.accumulate(layer, x, saturation),
        )
        assert np.array_equal(fast.reshape(slow.shape), slow), (seed, layer, saturation)
        true = npulab.accumulate(layer, x)
        changed += not np.array_equal(fast, true)
        positions = random.integers(0, fast.size // fast.shape[-1], 5)
        off = of_outputs(layer, x, saturation, positions)
        assert np.array_equal(off, (true - fast).reshape(-1, fast.shape[-1])[positions]), (
            seed,
            layer,
            saturation,
        )
    assert changed > 5


@pytest.mark.parametrize("engine", ["onnxruntime:avx2", "torch-fbgemm:avx2"])
def test_engines_saturate_with_int8_weights_and_uint8_inputs_only(engine: str) -> None:
    layer, x = plain(depth=3)
    exact = npulab.emulate(layer, x, engine.partition(":")[0])
    saturated = npulab.emulate(layer, x, engine)
    assert not np.array_equal(saturated, exact)
    assert np.array_equal(saturated, emulate_slowly.emulate(layer, x, engine))
    assert np.array_equal(saturated, prepare(layer, engine)(x))
    assert np.array_equal(saturated, npulab.emulate(layer, x, "onnxruntime", Saturation()))
    signed = replace(layer, dtype="int8")
    given = (x.astype(int) - 128).astype(np.int8)
    assert np.array_equal(
        npulab.emulate(signed, given, engine), npulab.emulate(signed, given, "onnxruntime")
    )
    unsigned = replace(layer, weights=layer.weights.view(np.uint8))
    assert np.array_equal(
        npulab.emulate(unsigned, x, engine), npulab.emulate(unsigned, x, "onnxruntime")
    )


def test_depthwise_of_one_output_a_channel_is_exact_in_onnxruntime() -> None:
    for copies in (1, 2):
        random = np.random.default_rng(copies)
        weights = random.integers(100, 128, (1, 3, 3, 4 * copies)).astype(np.int8)
        layer = Conv2D(
            weights,
            np.zeros(4 * copies, int),
            (6, 6, 4),
            depthwise=True,
            dtype="uint8",
            output_q=QuantParams(1000.0),
            padding="same",
        )
        x = random.integers(200, 256, layer.input_shape).astype(np.uint8)
        exact, ort, torch = (
            npulab.emulate(layer, x, name)
            for name in ("onnxruntime", "onnxruntime:avx2", "torch-fbgemm:avx2")
        )
        assert np.array_equal(ort, exact) == (copies == 1)
        assert not np.array_equal(torch, exact)


def test_onnxruntime_here_is_one_of_the_two() -> None:
    """Layers that tell pairs from exact sums, from groups of four and from other orders of K."""
    for seed in range(6):
        layer, x = plain(depth=3, seed=seed, input_q=QuantParams(0.1, 20))
        got = onnx_conv(layer, x[None])[0]
        engine = onnxruntime_engine()
        assert np.array_equal(got, npulab.emulate(layer, x, engine))
        others = [
            None,
            Saturation(),
            Saturation(4),
            Saturation(order="CHW"),
            Saturation(order="WHC"),
            Saturation(stored=False),
        ]
        fits = [
            other
            for other in others
            if np.array_equal(got, npulab.emulate(layer, x, "onnxruntime", other))
        ]
        assert fits == [Saturation() if engine == "onnxruntime:avx2" else None]
        matrix = FullyConnected(
            layer.weights.reshape(8, -1),
            np.zeros(8, int),
            dtype="uint8",
            input_q=layer.input_q,
            weight_q=layer.weight_q,
            output_q=layer.output_q,
        )
        rows = x.ravel()[: 5 * 27].reshape(5, 27)
        assert np.array_equal(onnx_matmul(matrix, rows), npulab.emulate(matrix, rows, engine))


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)])
def test_stored_outputs_of_either_kind_of_processor(step: int) -> None:
    layers, outputs = stored()
    assert {*outputs} == {"onnxruntime", "onnxruntime:avx2", "torch-fbgemm", "torch-fbgemm:avx2"}
    told_apart = []
    for number in range(0, len(layers), step):
        layer, x = layers[number]
        given = {name: cases[number] for name, cases in outputs.items() if number in cases}
        for engine, output in given.items():
            assert np.array_equal(npulab.emulate(layer, x, engine), output), (engine, layer)
        saturated = given.get("onnxruntime:avx2")
        if not np.array_equal(given.get("onnxruntime"), saturated):
            told_apart.append((layer, x, saturated))
    assert len(told_apart) > 60 // step
    # pairs in this order, and nothing like them, give the stored outputs
    for other in (
        Saturation(4),
        Saturation(3),
        Saturation(order="CHW"),
        Saturation(order="WHC"),
        Saturation(bits=17),
    ):
        fits = (
            np.array_equal(npulab.emulate(layer, x, "onnxruntime", other), saturated)
            for layer, x, saturated in told_apart
        )
        assert not all(fits), other


PLANTED = [
    Saturation(),
    Saturation(order="CHW"),
    Saturation(order="WHC"),
    Saturation(4),
    Saturation(4, 17),
    Saturation(4, 13),
    Saturation(2, 15),
    Saturation(4, 15, "CHW"),
    Saturation(stored=False, bits=15),
    Saturation(4, 16, "WHC", stored=False),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize("saturation", PLANTED, ids=str)
@pytest.mark.parametrize("depth", [3, 6])
def test_neighbours_name_the_saturation(saturation: Saturation, depth: int) -> None:
    layer, x = plain(depth, outputs=12)
    output = npulab.emulate(layer, x, "gemmlowp", saturation)
    frame = npulab.hypotheses(layer, x, output, "gemmlowp")
    equal = frame[frame.equal]
    assert {*equal.kind} <= {
        "accumulator",
        "rule",
    }  # an engine that adds so, and rounds to the same outputs
    equal = equal[equal.kind == "accumulator"]
    if (
        saturation.order == "WHC" and depth % saturation.group == 0
    ):  # no group leaves its tap: the same groups
        saturation = replace(saturation, order="HWC")
    assert list(equal.change) == [str(saturation)]
    assert f"equal with: {saturation} (0 of {output.size} differ)" in summary_lines(frame)


def test_neighbours_name_the_engine() -> None:
    layer, x = plain(depth=3)
    output = npulab.emulate(layer, x, "onnxruntime:avx2")
    frame = npulab.hypotheses(layer, x, output, "onnxruntime")
    assert "rounding rule onnxruntime:avx2" in {*frame[frame.equal].change}
    assert str(Saturation()) in {*frame[frame.equal].change}
    assert npulab.hypotheses(layer, x, output, "onnxruntime:avx2").equal.tolist() == [True]


def test_saturation_of_a_fully_connected_layer_and_of_several_images() -> None:
    random = np.random.default_rng(3)
    layer = FullyConnected(
        random.integers(-128, 128, (6, 50)).astype(np.int8),
        np.zeros(6, int),
        dtype="uint8",
        input_q=QuantParams(1.0, 9),
        output_q=QuantParams(4000.0, 120),
    )
    for shape in ((40, 50), (10, 5, 5, 2), (50,)):
        x = random.integers(0, 256, shape).astype(np.uint8)
        output = npulab.emulate(layer, x, "gemmlowp", Saturation(4))
        assert np.array_equal(
            output, npulab.emulate(layer, x, npulab.RULES["gemmlowp"], Saturation(4))
        )
        if shape != (50,):  # six outputs fit by chance
            frame = npulab.hypotheses(layer, x, output, "gemmlowp")
            assert list(frame[frame.equal].change) == [str(Saturation(4))]
    layer, _ = plain(depth=3)
    x = random.integers(0, 256, (3, *layer.input_shape)).astype(np.uint8)
    together = npulab.emulate(layer, x, "onnxruntime:avx2")
    assert np.array_equal(
        together, np.stack([npulab.emulate(layer, one, "onnxruntime:avx2") for one in x])
    )
    output = npulab.emulate(layer, x, "gemmlowp", Saturation(order="CHW"))
    frame = npulab.hypotheses(layer, x, output, "gemmlowp")
    assert list(frame[frame.equal].change) == [str(Saturation(order="CHW"))]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"group": 1}, "group: got 1, allowed is at least 2"),
        ({"bits": 33}, "bits: got 33, allowed is 2 to 32"),
        ({"order": "CWH"}, "order: got 'CWH', allowed is one of HWC, CHW, WHC"),
    ],
)
def test_what_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}$"):
        Saturation(**given)
