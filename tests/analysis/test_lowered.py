"""The jobs of a whole model out of one call: a capture for each operator that a target lowers, the
reason for every other, and each job's input computed by the operators before it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import shared

import npulab
from npulab import (
    Add,
    Conv2D,
    FullyConnected,
    Network,
    Pool2D,
    QuantParams,
    emulate,
    lower_model,
    target,
)
from npulab.analysis.check import rule_for
from npulab.analysis.lowered import ModelJobs
from npulab.analysis.mismatch.model_run import check_run
from npulab.cli import main
from npulab.models import read_model, write_model

Q6 = QuantParams(float(np.float32(6 / 255)))
MOBILENET = "google-coral+test_data__mobilenet_v1_0.25_128_quant.tflite"
KEPT = 27  # convolutions with a relu6 that clamps nothing


def conv(shape: tuple[int, int, int], outputs: int, seed: int, **other: Any) -> Conv2D:
    random = np.random.RandomState(seed)
    weights = random.randint(0, 256, (outputs, 3, 3, shape[2])).astype(np.uint8)
    given = {"input_q": Q6, "weight_q": QuantParams(0.002, 120), "output_q": Q6}
    bias = random.randint(-900, 900, outputs)
    return Conv2D(weights, bias, shape, (1, 1), "same", **given | other)


def network() -> Network:
    """Two convolutions that are added, pooled, and multiplied: no NPU here pools uint8."""
    first = conv((6, 8, 3), 4, 1, activation="relu6")
    second = conv((6, 8, 4), 4, 2, activation="relu6")
    added = Add((6, 8, 4), None, Q6, Q6, QuantParams(0.05), "uint8")
    pooled = Pool2D("max", (2, 2), (6, 8, 4), (2, 2), input_q=QuantParams(0.05), dtype="uint8")
    weights = np.random.RandomState(3).randint(0, 256, (5, 48)).astype(np.uint8)
    last = FullyConnected(
        weights,
        np.arange(5),
        input_q=QuantParams(0.05),
        weight_q=QuantParams(0.002, 120),
        output_q=QuantParams(0.1, 128),
    )
    inputs = (-1,), (0,), (0, 1), (2,), (3,)
    return Network((first, second, added, pooled, last), inputs)


def data() -> bytes:
    return write_model(network())


def image(shape: tuple[int, ...] = (6, 8, 3)) -> np.ndarray:
    return np.random.RandomState(4).randint(0, 256, shape).astype(np.uint8)


def test_each_operator_has_a_capture_or_a_reason() -> None:
    found = lower_model(data(), "rockchip")
    lowered = [one.operator for one in found.operators if one.capture is not None]
    refused = {one.operator: one.reason for one in found.operators if one.capture is None}
    assert lowered == [0, 1, 4]
    assert {*refused} == {2, 3}
    for operator, kind in ((2, "Add"), (3, "Pool2D")):
        assert refused[operator].startswith(f"lower for rockchip: got {kind}(")
        assert "\n" not in refused[operator]
    assert found.captures.names == ["00-conv_2d", "01-conv_2d", "04-fully_connected"]
    assert repr(found) == (
        "ModelJobs(3 of 5 operators lower on rockchip (rk3588), simulated: 3 jobs)"
    )
    assert all(capture.provenance == "simulated" for capture in found.captures)
    assert all("input" not in capture.buffers for capture in found.captures)
    assert all(one.x is None and one.output is None for one in found.operators)


def test_a_job_reads_what_the_operators_before_it_gave() -> None:
    layers, of = read_model(data()).network.layers, target("vivante")
    x = image()
    found = lower_model(data(), of, x)
    by: Any = None
    rules = []
    for one in found.operators:
        by = "tflite-reference"
        if one.capture is not None:
            by = rule_for(of, one.capture)
        rules.append(by)
    assert len({*rules}) == 2
    first = emulate(layers[0], x, rules[0])
    second = emulate(layers[1], first, rules[1])
    added = emulate(layers[2], (first, second), rules[2])
    pooled = emulate(layers[3], added, rules[3])
    last = emulate(layers[4], pooled.reshape(-1), rules[4])
    for one, want in zip(found.operators, (first, second, added, pooled, last), strict=True):
        assert np.array_equal(one.output, want)
    inputs = {one.operator: one.x for one in found.operators}
    assert np.array_equal(inputs[1], first)
    assert np.array_equal(inputs[2][1], second)
    assert found.operators[3].capture is None
    for one in found.operators:
        if one.capture is not None:
            own = of.lower(one.layer, x=one.x)
            assert one.capture.buffers == own.buffers


def test_options_go_to_the_target_and_the_batch_may_be_stated() -> None:
    of = target("vivante")
    plain = lower_model(data(), "vivante", image((1, 6, 8, 3)), chip=[*of.chips][2])
    assert {capture.chip for capture in plain.captures} == {[*of.chips][2]}
    told: list[tuple[int, int, str]] = []
    lower_model(data(), "vivante", progress=lambda *step: told.append(step))
    assert told[0] == (1, 5, "CONV_2D")
    assert [step[:2] for step in told] == [(n, 5) for n in range(1, 6)]


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (image((6, 8, 4)), r"x: got shape \(6, 8, 4\) uint8, allowed is \(1, 6, 8, 3\) uint8"),
        (image().astype(np.int8), r"x: got shape \(6, 8, 3\) int8"),
        ((image(), image()), r"x: got shape \(6, 8, 3\) uint8 and \(6, 8, 3\) uint8"),
    ],
)
def test_an_input_that_does_not_fit_the_model_is_refused(x: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}"):
        lower_model(data(), "vivante", x)


def test_what_is_unknown_is_refused_once_and_not_by_every_operator() -> None:
    for chip in ("owl", "rk3588"):
        with pytest.raises(LookupError, match=f"chip: got '{chip}', target vivante knows"):
            lower_model(data(), "vivante", chip=chip)
    with pytest.raises(LookupError, match="dialect: got 'dutch'"):
        lower_model(data(), "vivante", dialect="dutch")
    with pytest.raises(LookupError, match="owl"):
        lower_model(data(), "owl")
    with pytest.raises(ValueError, match="identifier: got"):
        lower_model(b"nothing", "vivante")


def test_an_operator_that_cannot_be_read_ends_the_chain_and_nothing_else() -> None:
    """Its own reason is the reader's, and the operators after it are lowered without input."""
    model = read_model(data())
    broken = replace(model.operators[1], name="CUSTOM(owl)")
    operators = (model.operators[0], broken, *model.operators[2:])
    found = lower_model(replace(model, operators=operators), "vivante", image())
    assert found.operators[1].layer is None
    assert "operator 1, CUSTOM(owl): is part of no layer" in found.operators[1].reason
    assert found.operators[0].output is not None
    for one in found.operators[2:]:
        assert one.x is None
        assert one.output is None
    assert found.captures.names == ["00-conv_2d", "02-add", "04-fully_connected"]


# ---- a whole public model ----


@pytest.fixture(scope="module")
def mobilenet() -> Path:
    return shared(f"data/models/{MOBILENET}")


@pytest.fixture(scope="module")
def whole(mobilenet: Path) -> dict[str, ModelJobs]:
    x = image((128, 128, 3))
    return {npu: lower_model(mobilenet, npu, x) for npu in ("vivante", "rockchip")}


@pytest.mark.parametrize("npu", ["vivante", "rockchip"])
def test_every_layer_of_mobilenet_whose_relu6_clamps_nothing_is_lowered(
    npu: str, whole: dict[str, ModelJobs]
) -> None:
    found = whole[npu]
    kept = [one for one in found.operators if getattr(one.layer, "activation", None) == "relu6"]
    assert len(kept) == KEPT
    assert all(one.capture is not None for one in kept)
    assert len(found.captures) == KEPT + 1
    refused = [one.name for one in found.operators if one.capture is None]
    assert refused == ["AVERAGE_POOL_2D", "RESHAPE", "SOFTMAX"]
    assert all(one.output is not None for one in found.operators)


@pytest.mark.sample(1)
@pytest.mark.parametrize("part", range(20))
def test_every_job_of_mobilenet_computes_its_operator(
    part: int, whole: dict[str, ModelJobs]
) -> None:
    lowered = []
    for npu, found in whole.items():
        lowered += [(target(npu), one) for one in found.operators if one.capture]
    for of, one in lowered[part::20]:
        assert one.capture is not None
        # from words and bytes alone, and lifted and emulated
        done = one.capture.with_buffers(output=of.simulate(one.capture))
        assert npulab.check(done).verdict == "equal"
        got, want = of.lift(done).output, one.output
        assert got is not None
        assert want is not None
        codes = got.astype(int) - np.iinfo(got.dtype).min
        assert np.array_equal(codes.reshape(want.shape), want)


@pytest.mark.long
def test_the_jobs_of_mobilenet_are_recognised_as_a_run_of_it(
    mobilenet: Path, whole: dict[str, ModelJobs]
) -> None:
    of = target("vivante")
    jobs = [one.with_buffers(output=of.simulate(one)) for one in whole["vivante"].captures]
    assert check_run(jobs, mobilenet).counts == {"equal": KEPT + 1, "not run": 3}


@pytest.mark.parametrize("npu", ["nvdla", "ane", "onert"])
def test_what_no_driver_of_an_npu_has_is_refused_in_a_sentence(npu: str, mobilenet: Path) -> None:
    found = lower_model(mobilenet, npu)
    assert len(found.captures) == 0
    for one in found.operators:
        assert one.reason.startswith(f"lower for {npu}: got ")
        assert ", allowed is " in one.reason
    assert repr(found) == f"ModelJobs(0 of 31 operators lower on {npu}: 0 jobs)"


# ---- the shell ----


def test_the_command_lists_and_writes_the_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, at, dest = tmp_path / "m.tflite", tmp_path / "x.npy", tmp_path / "jobs"
    path.write_bytes(data())
    np.save(at, image())
    asked = [str(path), str(dest), "--target", "rockchip", "--chip", "rk3588", "--input", str(at)]
    assert main(["lower", *asked]) == 0
    said = capsys.readouterr().out
    assert said.rstrip() == str(lower_model(path, "rockchip", image()))
    captures = npulab.load_all(dest)
    assert captures.names == ["00-conv_2d", "01-conv_2d", "04-fully_connected"]
    want = lower_model(path, "rockchip", image()).captures
    for mine, own in zip(captures, want, strict=True):
        assert mine.buffers == own.buffers
    assert main(["lower", *asked[:1], "--target", "rockchip", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["jobs"] for row in rows] == [1, 1, 0, 0, 1]
    assert [row["case"] for row in rows][4] == "04-fully_connected"


def test_the_command_ends_with_1_if_nothing_lowers_and_writes_nothing_if_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, dest = tmp_path / "m.tflite", tmp_path / "jobs"
    path.write_bytes(data())
    assert main(["lower", str(path), "--target", "ane"]) == 1
    assert main(["lower", str(path), str(dest), "--target", "rockchip", "--chip", "owl"]) == 2
    assert "chip: got 'owl'" in capsys.readouterr().err
    assert not dest.exists()


def test_the_page_shows_the_sentence_and_cuts_long_reasons() -> None:
    found = lower_model(data(), "rockchip")
    assert isinstance(found, ModelJobs)
    page = found._repr_html_()
    assert "3 of 5 operators lower on rockchip (rk3588), simulated: 3 jobs" in page
    assert str(found).splitlines()[0].split() == [
        "operator",
        "name",
        "input",
        "output",
        "jobs",
        "reason",
    ]
