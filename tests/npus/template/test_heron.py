"""The invented NPU's captures are what its generator makes, and what they say can be found out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import CAPTURES, ROOT
from record_heron import BLOCK, NPU, PIECES, block, device, record, sweep

import npulab

HERON = CAPTURES / NPU


def test_captures_are_recorded_the_same_again() -> None:
    again = record()
    assert {path.name for path in HERON.iterdir() if path.is_dir()} == set(again)
    for name, files in again.items():
        assert {path.name: path.read_bytes() for path in (HERON / name).iterdir()} == files


def test_the_sweep_is_recorded_the_same_again() -> None:
    kept, again = npulab.load_sweep(HERON / "sweep-jobs.npz"), sweep()
    assert np.array_equal(kept.words, again.words)
    assert kept.parameters.equals(again.parameters)
    assert (kept.target, kept.block, kept.provenance) == (NPU, BLOCK, "simulated")


def test_everything_says_that_it_is_simulated() -> None:
    assert all(name.startswith("sim-") for name in record())
    assert {
        json.loads((HERON / name / "job.json").read_text())["provenance"] for name in record()
    } == {"simulated"}


@pytest.mark.parametrize("name", sorted(record()))
def test_the_device_is_a_convolution_and_one_rounding(name: str) -> None:
    """Another arithmetic than the generator's loops gives the captured output."""
    files = record()[name]
    (layer,) = npulab.read_model(files["model.tflite"]).layers
    words, pitch = (
        np.frombuffer(files["words.bin"], "<u4"),
        len(files["input.bin"]) // layer.input_shape[0],
    )
    x = np.frombuffer(files["input.bin"], np.int8).reshape(-1, pitch)
    x = x[:, : layer.input_shape[1] * layer.input_shape[2]].reshape(layer.input_shape)
    height, width, channels = layer.output_shape
    got = np.frombuffer(files["output.bin"], np.int8).reshape(height, -1)[:, : width * channels]
    assert np.array_equal(npulab.emulate(layer, x, "single-half-up").reshape(height, -1), got)
    buffers = {
        path.removesuffix(".bin"): data for path, data in files.items() if path.endswith(".bin")
    }
    assert device(words, buffers) == files["output.bin"]
    ties = np.any(
        npulab.emulate(layer, x, "gemmlowp") != npulab.emulate(layer, x, "single-half-up")
    )
    assert ties == (name == "sim-second")


def test_no_two_pieces_share_a_bit() -> None:
    one = [
        block({piece.name: 2**40 - 1 if piece is each else 0 for piece in PIECES})[:15]
        for each in PIECES[1:]
    ]
    names = {
        piece.name for piece in PIECES if [other.name for other in PIECES].count(piece.name) > 1
    }
    single = [
        words for words, piece in zip(one, PIECES[1:], strict=True) if piece.name not in names
    ]
    assert np.array_equal(np.bitwise_or.reduce(single), np.bitwise_xor.reduce(single))


def test_nobody_but_the_tests_knows_it() -> None:
    """The notebook finds out what the generator knows: it neither reads it nor names its
    numbers.
    """
    others = [*(ROOT / "npulab").rglob("*.py"), *(ROOT / "notebooks").glob("*.ipynb")]
    assert [path for path in others if "record_heron" in path.read_text(encoding="utf-8")] == []
    assert not any(Path(path).is_dir() for path in (ROOT / "npulab" / "npus" / NPU,))
