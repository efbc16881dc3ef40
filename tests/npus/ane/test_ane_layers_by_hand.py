"""Layers lifted from ANE files, and files lowered from layers, compared with plain sums and plain
bytes that are computed here.
"""

from __future__ import annotations

import json
import random
import struct
from dataclasses import replace
from pathlib import Path

import ane_files
import numpy as np
import pytest
from conftest import shared
from test_ane_files_by_hand import ELSEWHERE, capture_of, real
from test_ane_tables import captured

import npulab
from npulab.captures.target import Hang, Unsupported
from npulab.npus.ane import imported, tables
from npulab.npus.ane.tables.entries import decode
from npulab.quant.floats import ulps
from npulab.quant.layers import Activation, Concat, Elementwise

ANE = npulab.target("ane")
FILES = ["compiled", "concat16", "conv_bias", "conv_twos", "gemm64", "relu16", "sigmoid77", "sum64"]


def half(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float16)


def stored(tensor: np.ndarray) -> bytes:
    """(H, W, C) as memory has it: channel by channel, row by row, each row filled up to 64
    bytes.
    """
    height, width, channels = tensor.shape
    out = b""
    for c in range(channels):
        for y in range(height):
            row = struct.pack(f"<{width}e", *map(float, tensor[y, :, c]))
            out += row + bytes(-len(row) % 64)
    return out


def fetched(data: bytes, shape: tuple[int, int, int]) -> np.ndarray:
    height, width, channels = shape
    row = (2 * width + 63) // 64 * 64
    out = np.zeros(shape, np.float16)
    for c in range(channels):
        for y in range(height):
            out[y, :, c] = np.frombuffer(data, "<f2", width, (c * height + y) * row)
    return out


def plain_convolution(layer: npulab.Conv2D, x: np.ndarray) -> np.ndarray:
    """In float64, each output rounded to float16 once; padding as (top, left) of the usual
    kinds.
    """
    outputs = layer.output_shape
    weights = layer.weights.astype(float)
    kernel_h, kernel_w = weights.shape[1:3]
    top = left = 0
    if layer.padding == "same":
        top, left = (
            max(0, (o - 1) * s + k - i) // 2
            for o, s, k, i in zip(
                outputs, layer.stride, (kernel_h, kernel_w), x.shape, strict=False
            )
        )
    out = np.zeros(outputs)
    for y, column, ky, kx in np.ndindex(outputs[0], outputs[1], kernel_h, kernel_w):
        iy, ix = y * layer.stride[0] + ky - top, column * layer.stride[1] + kx - left
        if 0 <= iy < x.shape[0] and 0 <= ix < x.shape[1]:
            here = x[iy, ix].astype(float)
            out[y, column] += (
                here * weights[0, ky, kx] if layer.depthwise else weights[:, ky, kx] @ here
            )
    out += layer.bias.astype(float)
    out = out.astype(np.float16)
    return np.maximum(out, np.float16(0)) if layer.activation == "relu" else out


# ---- files


def test_files_are_the_layers_that_they_were_compiled_from() -> None:
    layers = {
        name: ANE.lift(capture_of(name)).layer for name in [*FILES, "mul_v541", "mul_v9509_compact"]
    }
    twos = layers["conv_twos"]
    assert isinstance(twos, npulab.Conv2D)
    assert (twos.weights == 2).all()
    assert twos.weights.shape == (3, 1, 1, 3)
    assert (layers["conv_bias"].weights == 3).all()
    assert layers["conv_bias"].bias.tolist() == [1, 1]
    assert (layers["gemm64"].weights == 0).all()
    assert layers["gemm64"].output_shape == (1, 1, 64)
    assert isinstance(layers["concat16"], Concat)
    assert layers["concat16"].output_shape == (1, 1, 32)
    for name, kind in (
        ("sum64", "add"),
        ("mul_v541", "multiply"),
        ("mul_v9509_compact", "multiply"),
    ):
        assert isinstance(layers[name], Elementwise)
        assert (layers[name].kind, layers[name].input_shape) == (kind, (1, 1, 64))
    for name, width, function in (
        ("relu16", 16, lambda v: np.maximum(v, 0)),
        ("sigmoid77", 77, None),
    ):
        layer = layers[name]
        assert isinstance(layer, Activation)
        assert layer.input_shape == (1, width, 1)
        x = half(1, width, 1)
        y = npulab.emulate(layer, x, rule=ANE.rule)
        if function:
            assert np.array_equal(y, function(x))
        else:
            assert np.abs(y.astype(float) - 1 / (1 + np.exp(-x.astype(float)))).max() < 3.2e-3


@pytest.mark.parametrize("name", [*FILES, "mul_v541", "mul_v9509_compact"])
def test_a_file_laid_out_anew_computes_the_same(name: str) -> None:
    was = capture_of(name)
    now = imported.compiled(ane_files.rebuilt(real(name), **ELSEWHERE), name, name)
    tensors = [t for t in was.parameters["tensors"] if t["kind"] == "input"]
    names = [t["name"] for t in tensors]
    moved = [ELSEWHERE["names"].get(n, n) for n in names]
    order = [t["name"] for t in now.parameters["tensors"] if t["kind"] == "input"]
    values = {
        n: half(t["h"], t["w"], t["c"], seed=i)
        for i, (n, t) in enumerate(zip(moved, tensors, strict=True))
    }
    keys = ["input", *(f"input{i}" for i in range(1, len(names)))]
    was = was.with_buffers(**{k: stored(values[n]) for k, n in zip(keys, moved, strict=True)})
    now = now.with_buffers(**{k: stored(values[n]) for k, n in zip(keys, order, strict=True)})
    one, other = ANE.simulate(was), ANE.simulate(now)
    assert one == other
    assert any(one) or name == "gemm64"
    for capture in (was.with_buffers(output=one), now.with_buffers(output=other)):
        comparison = npulab.check(capture)
        # outputs that are 0 throughout may lie in a buffer that no job wrote
        assert (comparison.verdict, comparison.mismatches) == (
            "equal" if any(one) else "one value",
            0,
        )
        assert comparison.compared > 0


def test_the_captured_convolution() -> None:
    case = json.loads(shared("data/ane/captures/conv_twos_m1.json").read_text())
    x = np.array(case["input"], np.float16).reshape(1, 1, 3)
    capture = capture_of("conv_twos").with_buffers(input=stored(x))
    words = np.frombuffer(ANE.simulate(capture), "<f2")
    assert (
        [float(words[slot]) for slot in case["output_slots_hw_index"]]
        == case["output"]
        == [12, 12, 12]
    )
    layer = ANE.lift(capture).layer
    assert npulab.emulate(layer, x, rule=ANE.rule).ravel().tolist() == [12, 12, 12]
    assert npulab.emulate(layer, np.full_like(x, 3), rule=ANE.rule).ravel()[0] == 18
    captured = capture.with_buffers(output=stored(np.full((1, 1, 3), 12, np.float16)))
    assert npulab.check(captured).verdict == "equal"
    wrong = capture.with_buffers(output=stored(np.array([12, 6, 12], np.float16).reshape(1, 1, 3)))
    comparison = npulab.check(wrong)
    assert (comparison.verdict, comparison.mismatches) == ("differs", 1)
    near = capture.with_buffers(
        output=stored(np.array([12, 12.0078125, 12], np.float16).reshape(1, 1, 3))
    )
    comparison = npulab.check(near)
    assert (comparison.verdict, comparison.mismatches, int(comparison.max)) == ("differs", 1, 1)


# ---- layers


def convolution(
    outputs: int,
    inputs: int,
    kernel: tuple[int, int],
    size: tuple[int, int] = (8, 9),
    **more: object,
) -> npulab.Conv2D:
    depthwise = bool(more.get("depthwise"))
    weights = half(
        *((1, *kernel, inputs) if depthwise else (outputs, *kernel, inputs)), seed=outputs + inputs
    )
    bias = half(outputs, seed=1) if more.pop("biased", False) else np.zeros(outputs, np.float16)
    return npulab.Conv2D(weights, bias, (*size, inputs), **more)  # type: ignore[arg-type]


LAYERS = {
    "1x1": convolution(3, 5, (1, 1)),
    "bias": convolution(20, 7, (3, 3), padding="same", biased=True),
    "wide": convolution(48, 16, (1, 3), (4, 65), padding="same", biased=True),
    "relu": convolution(16, 4, (5, 5), activation="relu", biased=True),
    "depthwise": convolution(64, 64, (3, 3), (6, 6), padding="same", depthwise=True),
    "many": convolution(256, 8, (1, 1), (1, 1), biased=True),
    "valid": convolution(1, 1, (2, 4), (5, 40)),
    "steps": convolution(64, 20, (1, 1), (9, 8), stride=(2, 2), padding="same", biased=True),
    "steps of 3x3": convolution(32, 16, (3, 3), (16, 16), stride=(2, 2), padding="same"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_lowered_convolution_is_a_file_that_reads_back_and_computes(
    name: str, tmp_path: Path
) -> None:
    layer = LAYERS[name]
    x = half(*layer.input_shape, seed=9)
    capture = ANE.lower(layer, x=x)
    path = tmp_path / "model.hwx"
    path.write_bytes(capture.buffers["hwx"])
    back = npulab.load(path)
    assert back.jobs == capture.jobs
    assert back.buffers["coefficients"] == capture.buffers["coefficients"]
    assert dict(back.addresses) == dict(capture.addresses)
    assert [dict(t) for t in back.parameters["tensors"]] == [
        dict(t) for t in capture.parameters["tensors"]
    ]
    # the plain reader finds the same file
    plain = ane_files.plain(capture.buffers["hwx"])
    assert plain.count == len(plain.tasks) == len(capture.jobs)
    assert (
        plain.section("__TEXT", "__const")["data"][: len(capture.buffers["coefficients"])]
        == capture.buffers["coefficients"]
    )
    common = {a: v for a, v in plain.tasks[0]["registers"].items() if a < 0x40}
    assert common[0x0C] == layer.input_shape[2]
    assert common[0x10] == layer.output_shape[2]
    assert common[0x00] == layer.input_shape[1] | layer.input_shape[0] * 2**16
    assert {t["kind"]: t["shape"] for t in plain.tensors}["output"] == (
        1, layer.output_shape[2], *layer.output_shape[:2], 1,
    )  # fmt: skip
    lifted = ANE.lift(capture)
    assert np.array_equal(lifted.layer.weights, layer.weights)
    assert np.array_equal(lifted.layer.bias, layer.bias)
    assert (lifted.layer.stride, lifted.layer.output_shape, lifted.layer.activation) == (
        layer.stride,
        layer.output_shape,
        layer.activation,
    )
    assert np.array_equal(lifted.x, x)
    assert capture.buffers["input"] == stored(x)
    # the device, the emulation and plain sums
    output = ANE.simulate(capture)
    expected = plain_convolution(layer, x)
    assert ulps(fetched(output, layer.output_shape), expected).max() <= 1
    assert ulps(npulab.emulate(layer, x, rule=ANE.rule), expected).max() <= 1
    assert npulab.check(capture.with_buffers(output=output)).verdict == "equal"
    assert ANE.recode(capture) == capture.buffers["coefficients"]
    bits = sum(item.bits for item in ANE.explain(capture))
    assert bits == 8 * len(capture.buffers["coefficients"])


def test_an_activation_gives_the_captured_outputs_on_the_simulated_device() -> None:
    data = shared("data/ane/h13_tasks/unary/tanh.bin").read_bytes()[-128:]
    x, output_of_board = captured()
    x, output_of_board = x.view(np.float16), output_of_board.view(np.float16)
    layer = Activation((1, 16, 1), tables.outputs(decode(data)), "tanh")
    capture = ANE.lower(layer, x=x.reshape(1, 16, 1), table=data)
    output = ANE.simulate(capture)
    assert (
        fetched(output, (1, 16, 1)).view(np.uint16).ravel().tolist()
        == output_of_board.view(np.uint16).tolist()
    )
    comparison = npulab.check(
        capture.with_buffers(output=stored(output_of_board.reshape(1, 16, 1)))
    )
    assert (comparison.verdict, comparison.compared) == ("equal", 16)


@pytest.mark.parametrize("kind", ["add", "multiply", "maximum", "minimum"])
def test_elementwise_layers_against_numpy(kind: str) -> None:
    layer = Elementwise(kind, (3, 33, 20))
    x = half(3, 33, 20), half(3, 33, 20, seed=1)
    capture = ANE.lower(layer, x=x)
    plain = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}[
        kind
    ](*x)
    output = ANE.simulate(capture)
    assert np.array_equal(fetched(output, (3, 33, 20)), plain)
    assert npulab.check(capture.with_buffers(output=output)).verdict == "equal"
    lifted = ANE.lift(capture)
    assert lifted.layer == layer or repr(lifted.layer) == repr(layer)


def test_a_concatenation_of_three() -> None:
    shapes = [(2, 5, 3), (2, 5, 16), (2, 5, 1)]
    x = tuple(half(*shape, seed=i) for i, shape in enumerate(shapes))
    capture = ANE.lower(Concat(shapes), x=x)
    assert len(capture.jobs) == 3
    assert list(capture.fields["task"].unique()) == [0, 1, 2]
    output = ANE.simulate(capture)
    assert np.array_equal(fetched(output, (2, 5, 20)), np.concatenate(x, axis=-1))
    assert npulab.check(capture.with_buffers(output=output)).verdict == "equal"
    assert ANE.lift(capture).layer.output_shape == (2, 5, 20)


def test_a_changed_register_of_a_lowered_layer_is_seen() -> None:
    layer, x = LAYERS["bias"], half(8, 9, 7)
    capture = ANE.lower(layer, x=x)
    capture = replace(capture, buffers={**capture.buffers, "output": ANE.simulate(capture)})
    flipped = bytearray(capture.buffers["coefficients"])
    flipped[3] ^= 0x40
    assert npulab.check(capture.with_buffers(coefficients=bytes(flipped))).verdict == "differs"


def test_words_that_cannot_be_are_answered_in_a_sentence() -> None:
    rng = random.Random(7)
    inputs = {"input": bytes(4096), "input1": bytes(4096), "output": bytes(4096)}
    files = [capture_of(name).with_buffers(**inputs) for name in FILES]
    broken = [
        files[3].with_fields(Wout=0x7DC7, Hout=0x122E),
        files[3].with_fields(Wout=0x7FFF, Cout=0x1FFFF),
        files[4].with_fields(NumGroups=8191, UnicastEn=1),
    ]
    for _ in range(25):
        capture = rng.choice(files)
        words = capture.words.copy()
        for _ in range(rng.choice((1, 2, 3))):
            at = rng.randrange(72, len(words))
            words[at] = rng.choice(
                (int(words[at]) ^ 2 ** rng.randrange(32), rng.getrandbits(32), 0, 2**32 - 1)
            )
        broken.append(capture.with_words(words, task=0))
    sentences = []
    for capture in broken:
        known = (
            "equal",
            "one value",
            "partly compared",
            "claims agree",
            "differs",
            "not executed",
            "nothing to compare",
        )
        assert npulab.check(capture).verdict in known
        for answer in (ANE.lift, ANE.recode, ANE.explain, ANE.simulate):
            try:
                answer(capture)
            except (ValueError, Unsupported, Hang) as error:
                sentences.append(str(error))
    assert len(sentences) > 10
    assert all(sentence and "\n" not in sentence for sentence in sentences)
    for capture in broken[:3]:
        with pytest.raises((Unsupported, Hang)):
            ANE.simulate(capture)
