"""MIL programs and their weight files: what they compute, against plain formulas and finite
differences.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ane_writers import training_step

from npulab.npus.ane import memory
from npulab.npus.ane.training import blobs, mil
from npulab.npus.ane.training.programs import (
    KERNELS,
    Dims,
    Kernel,
    convolution,
    kernel,
    matmul,
    packed_matmul,
)

DIMS = [Dims(4, 6, 2, 5), Dims(6, 3, 3, 2), Dims(3, 8, 1, 7)]


def drawn(dims: Dims, seed: int = 1) -> dict[str, np.ndarray]:
    """Weights that fp16 holds exactly."""
    rng = np.random.default_rng(seed)
    d, h = dims.dim, dims.hidden
    shapes = {
        "Wq": (d, d),
        "Wk": (d, d),
        "Wv": (d, d),
        "Wo": (d, d),
        "W1": (h, d),
        "W3": (h, d),
        "W2": (d, h),
        "rms1": (d,),
        "rms2": (d,),
    }
    return {
        name: (rng.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float16).astype(float)
        for name, shape in shapes.items()
    }


def exactly(made: Kernel, x: np.ndarray) -> dict[str, np.ndarray]:
    """The parts of a kernel's output ``(C, S)`` in float64, from its input ``(C, S)``; the
    program comes from its text.
    """
    program = mil.read(mil.write(made.program))
    assert program == made.program
    assert mil.check(program) == []
    return made.split(
        "out", mil.run(program, {"x": x[None, :, None]}, made.blobs, float64=True)["out"]
    )


def near(found: np.ndarray, expected: np.ndarray, relative: float) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= relative * np.abs(expected).max()


# Inputs and outputs by part


def test_backward_from_taps() -> None:
    """What the forward kernel hands on is what the backward kernel takes."""
    dims = DIMS[0]
    step = training_step(dims, drawn(dims))
    x, gradient = np.random.default_rng(6).standard_normal((2, dims.dim, dims.seq))
    forward = exactly(step["kFwdFFN"], x)
    given = step["kFFNBwd"].join("x", forward | {"dffn": gradient})
    assert given.shape == step["kFFNBwd"].inputs["x"]
    assert np.array_equal(given[0, :, 0], np.concatenate([gradient, forward["h1"], forward["h3"]]))
    with pytest.raises(
        LookupError, match="parts of x: got no dffn, allowed is an array for each of dffn, h1, h3"
    ):
        step["kFFNBwd"].join("x", forward)
    with pytest.raises(ValueError, match=r"parts of x: dffn: got \(3, 5\), allowed is \(4, S\)"):
        step["kFFNBwd"].join("x", forward | {"dffn": gradient[:3]})


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_fp16_is_near_float64(name: str) -> None:
    """Rounding every result to fp16 loses some digits and no more; it does lose some."""
    dims = Dims(32, 48, 2, 16)
    made = kernel(name, dims, drawn(dims))
    x = np.random.default_rng(7).standard_normal(made.inputs["x"]).astype(np.float16)
    if name == "kSdpaBwd2":
        x[:, : dims.names["scores"]] = np.float16(1 / dims.seq)
    halves = mil.run(made.program, {"x": x}, made.blobs)["out"]
    exact = mil.run(made.program, {"x": x}, made.blobs, float64=True)["out"]
    assert halves.dtype == np.float16
    assert halves.shape == exact.shape == made.outputs["out"]
    assert 0 < np.abs(halves - exact).max() / np.abs(exact).max() < 0.01


# Text and files


@pytest.mark.parametrize("name", sorted(KERNELS))
@pytest.mark.parametrize("dims", [*DIMS, Dims(), Dims(768, 2048, 12, 256, printed=True)])
def test_text_of_kernels(name: str, dims: Dims) -> None:
    """Any sizes, without weights; shapes as the training allocates its memory."""
    made = kernel(name, dims)
    assert made.blobs == {}
    assert mil.read(mil.write(made.program)) == made.program
    assert mil.check(made.program) == []
    d, h, sc, s = dims.dim, dims.hidden, dims.names["scores"], dims.seq
    channels = {
        "kFwdAttn": (d, 6 * d),
        "kFwdFFN": (d, 2 * d + 3 * h),
        "kFFNBwd": (d + 2 * h, d + 2 * h),
        "kSdpaBwd1": (4 * d, d + 2 * sc),
        "kSdpaBwd2": (2 * sc + 2 * d, 2 * d),
        "kQKVb": (3 * d, d),
    }[name]
    assert made.inputs == {"x": (1, channels[0], 1, s)}
    assert made.outputs == {"out": (1, channels[1], 1, s)}
    for side, size in (("x", channels[0]), ("out", channels[1])):
        assert sum(count for _, count in made.parts[side]) == size


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("kFwdAttn", "e03e2f2dc33447696867ef39c2de9d377758867c36a205f91d153049fd4652e3"),
        ("kSdpaBwd2", "0dc1c177a47c1a85091fa86f619c9e13eb7961682b5e29c3561a1eb5821138ab"),
    ],
)
def test_letters_of_the_training(name: str, digest: str) -> None:
    """What the training's own format strings print for dim 96, 3 heads, 64 columns (sha256 of
    that text).
    """
    text = mil.write(kernel(name, Dims(96, 10, 3, 64, printed=True)).program)
    assert hashlib.sha256(text.encode()).hexdigest() == digest


def test_sizes_out_of_a_table() -> None:
    """Numpy's whole numbers are whole numbers."""
    sizes = np.array([4, 6, 2, 5])
    assert Dims(*sizes) == DIMS[0]
    assert mil.write(kernel("kFwdAttn", Dims(*sizes)).program) == mil.write(
        kernel("kFwdAttn", DIMS[0]).program
    )
    made = convolution(np.ones((2, 3, 1, 1)), sizes[0], sizes[1], strides=np.array([1, 2]))
    assert mil.read(mil.write(made.program)) == made.program
    assert made.outputs == {"y": (1, 2, 6, 2)}


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_weights_in_one_file(name: str) -> None:
    """Records of one file, or a file for each: the same numbers."""
    dims = DIMS[0]
    w = drawn(dims)
    apart, one = kernel(name, dims, w), kernel(name, dims, w, file="weight.bin")
    x = np.random.default_rng(8).standard_normal(apart.inputs["x"])
    runs = [
        mil.run(made.program, {"x": x}, made.blobs, float64=True)["out"] for made in (apart, one)
    ]
    assert np.array_equal(*runs)
    for made in (apart, one):
        files = {}
        for operation in made.program["main"].operations:
            if operation.value and isinstance(operation.value.data, mil.File):
                files.setdefault(operation.value.data.path, []).append(operation.value.data.offset)
        assert set(files) == set(made.blobs)
        for path, offsets in files.items():
            found = blobs.read(made.blobs[path])
            assert found.warnings == ()
            assert [record.offset for record in found.records] == offsets
    assert set(one.blobs) <= {"@model_path/weights/weight.bin"}
    if one.blobs:
        (data,) = one.blobs.values()
        assert np.array_equal(mil.run(one.program, {"x": x}, data, float64=True)["out"], runs[0])


def test_files_of_the_training() -> None:
    """The paths that the kernels are compiled with, weights transposed for the backward ones,
    and the causal mask.
    """
    dims, folder = DIMS[0], "@model_path/weights/"
    w = drawn(dims)
    step = training_step(dims, w)
    for name, files in {
        "kFwdAttn": "rms1 wq wk wv wo mask",
        "kFwdFFN": "rms2 w1 w3 w2",
        "kFFNBwd": "w2t w1t w3t",
        "kSdpaBwd1": "wot mask",
        "kSdpaBwd2": "",
        "kQKVb": "wqt wkt wvt",
    }.items():
        assert [*step[name].blobs] == [f"{folder}{file}.bin" for file in files.split()]
    turned = (
        blobs.read(step["kFFNBwd"].blobs[f"{folder}w2t.bin"])
        .records[0]
        .values((dims.hidden, dims.dim))
    )
    assert np.array_equal(turned, w["W2"].T)
    mask = (
        blobs.read(step["kSdpaBwd1"].blobs[f"{folder}mask.bin"])
        .records[0]
        .values((dims.seq, dims.seq))
    )
    for row, column in np.ndindex(*mask.shape):
        assert mask[row, column] == (0 if column <= row else -65504)
    assert mask.any()


def test_printed_constants() -> None:
    """Six decimals, as the training prints them: 6e-5 of 1/768 is lost; 1/sqrt(64) is not
    changed.
    """

    def constants(dims: Dims) -> dict[str, Any]:
        return {
            operation.outputs[0][0]: operation.value.data
            for operation in kernel("kFwdAttn", dims).program["main"].operations
            if operation.value
            and operation.outputs[0][1].dtype == "fp16"
            and not operation.outputs[0][1].shape
        }

    assert constants(Dims()) == {"invd": 1 / 768, "eps": 0.00001, "nhalf": -0.5, "scv": 0.125}
    assert constants(Dims(printed=True)) == {
        "invd": 0.001302,
        "eps": 0.00001,
        "nhalf": -0.5,
        "scv": 0.125,
    }


def test_quirks_of_the_training() -> None:
    """Nothing but that a change of weights compiles again, at the sizes it is trained with."""
    for name, made in training_step(Dims()).items():
        assert [quirk.text[:23] for quirk in mil.quirks(made.program)] == (
            [] if name == "kSdpaBwd2" else ["weights are compiled in"]
        )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Dims(dim=10, heads=3), "heads: got 3, allowed with dim 10 is a divisor of it"),
        (lambda: Dims(seq=0), "seq: got 0, allowed is a whole number from 1 to 262144"),
        (
            lambda: kernel("kFwd", DIMS[0]),
            "kernel: got 'kFwd', allowed is one of kFwdAttn, kFwdFFN",
        ),
        (
            lambda: kernel("kQKVb", DIMS[0], {"Wq": np.eye(4)}),
            "weights: got Wq, Wqt, allowed are Wqt, Wkt, Wvt",
        ),
        (
            lambda: kernel("kQKVb", DIMS[0], {"Wq": np.eye(3)}),
            r"weights: Wq: got (3, 3), allowed is (4, 4)",
        ),
        (lambda: convolution(np.ones((2, 3)), 4), "weights: got (2, 3) for 1 rows of 4"),
        (
            lambda: convolution(np.ones((2, 3, 1, 5)), 4),
            "weights: got (2, 3, 1, 5) for 1 rows of 4",
        ),
        (
            lambda: convolution(np.ones((2, 3, 1, 1)), 4, strides=(0, 1)),
            "strides: got [0, 1], allowed are 2 of 1 or more",
        ),
        (
            lambda: convolution(np.ones((2, 3, 1, 1)), 4, pad=(0, 1)),
            "pad: got [0, 1], allowed are 4 of 0 or more",
        ),
        (
            lambda: convolution(np.ones((2, 3, 1, 1)), 4, boundary="int8"),
            "boundary: got 'int8', allowed is one of fp32, fp16",
        ),
        (lambda: matmul(0, 1, 2), "sizes: got inner 0, outputs 1, columns 2, allowed is 1 or more"),
        (lambda: matmul(1, 1, 2, version="1.1"), "version: got '1.1', allowed is one of 1.0, 1.3"),
    ],
)
def test_refusals(call: Callable[[], Any], words: str) -> None:
    with pytest.raises((ValueError, LookupError)) as found:
        call()
    assert words in str(found.value)


# Single operations


@pytest.mark.parametrize("boundary", ["fp32", "fp16"])
@pytest.mark.parametrize("version", ["1.0", "1.3"])
def test_convolution_of_one_tap(boundary: str, version: str) -> None:
    rng = np.random.default_rng(9)
    weights = rng.standard_normal((5, 3, 1, 1)).astype(np.float16).astype(float)
    made = convolution(weights, 32, boundary=boundary, version=version)
    x = rng.standard_normal((1, 3, 1, 32))
    text = mil.write(made.program)
    assert text.startswith(
        f"program({version})\n[buildInfo = dict<{'tensor<string, []>' if version == '1.0' else 'string'}, "
    )
    assert ("cast" in text) == (boundary == "fp32")
    found = mil.run(mil.read(text), {"x": x}, made.blobs, float64=True)["y"]
    near(found[0, :, 0], weights[:, :, 0, 0] @ x[0, :, 0], 1e-14)
    assert (
        mil.run(made.program, {"x": x}, made.blobs)["y"].dtype
        == {"fp32": np.float32, "fp16": np.float16}[boundary]
    )


def test_convolution_with_everything() -> None:
    weights = np.ones((4, 2, 3, 2))
    made = convolution(weights, 9, 8, strides=(2, 1), pad=(1, 0, 0, 2), dilations=(1, 3), groups=2)
    assert (made.inputs, made.outputs) == ({"x": (1, 4, 8, 9)}, {"y": (1, 4, 4, 8)})
    x = np.random.default_rng(10).integers(-9, 9, (1, 4, 8, 9)).astype(float)
    found = mil.run(made.program, {"x": x}, made.blobs, float64=True)["y"]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 0), (0, 2)))
    for o, row, column in np.ndindex(4, 4, 8):
        part = padded[0, o // 2 * 2 : o // 2 * 2 + 2, 2 * row : 2 * row + 3, [column, column + 3]]
        assert found[0, o, row, column] == part.sum()


@pytest.mark.parametrize("boundary", ["fp32", "fp16"])
def test_matrix_products(boundary: str) -> None:
    rng = np.random.default_rng(11)
    x, w = rng.standard_normal((8, 32)), rng.standard_normal((4, 8))
    made = matmul(8, 4, 32, boundary=boundary)
    near(
        mil.run(mil.read(mil.write(made.program)), {"x": x[None], "W": w[None]}, float64=True)["y"][
            0
        ],
        w @ x,
        1e-14,
    )
    packed = packed_matmul(8, 4, 32, boundary=boundary)
    given = memory.join([x, w.T])
    assert packed.inputs["x"] == (1, *given[:, None].shape)
    found = mil.run(mil.read(mil.write(packed.program)), {"x": given[None, :, None]}, float64=True)[
        "y"
    ]
    near(found[0, :, 0], w @ x, 1e-14)


def test_programs_and_weights_are_shown_in_a_line() -> None:
    made = convolution(np.ones((2, 3, 1, 1)), 32)
    assert repr(made) == (
        "Kernel(x [1, 3, 1, 32] -> y [1, 2, 1, 32], Program(1.3: main of 11 operations), "
        "1 weight file of 140 B)"
    )
    assert repr(blobs.write({"a": np.zeros(3, np.float16)})) == "Written(134 B, offsets {'a': 64})"
    assert repr(mil.Program(())) == "Program(1.3: no functions)"
