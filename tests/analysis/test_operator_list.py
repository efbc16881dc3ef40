"""A model as a list of operators whose rows lead to the jobs that ran them and to their fields."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import CAPTURES

import npulab
import npulab.models
from npulab.analysis.mismatch.model_run import check_run
from npulab.cli import main
from npulab.models.read import OperatorList


def test_the_row_of_an_operator_opens_to_its_jobs_fields() -> None:
    good = npulab.load(CAPTURES / "vivante/sim-1x1")
    model = npulab.single_op_model(npulab.target("vivante").lift(good).layer)
    output = bytearray(good.buffers["output"])
    output[5] ^= 1
    for capture, verdict in ((good, "equal"), (good.with_buffers(output=bytes(output)), "differs")):
        run = check_run([capture], model)
        html = run._repr_html_()
        (details,) = re.findall(r"<details( open)?>", html)
        assert bool(details) == (verdict == "differs")
        summary = re.search(r"<summary>(.*?)</summary>", html)[1]
        assert "0 CONV_2D 1x12x12x16 uint8 → 1x12x12x24 uint8" in summary
        assert f">{verdict}</span>" in summary
        rows = re.findall(r"<tr>(.*?)</tr>", html)[1:]
        assert len(rows) == sum(row["raw"] != 0 for _, row in capture.fields.iterrows())
        assert any(">kernel_xy_size<" in row for row in rows)
        assert run.records()[0]["input"] == "1x12x12x16 uint8"
        assert str(run).splitlines()[1].split()[:6] == [
            "0",
            "CONV_2D",
            "1x12x12x16",
            "uint8",
            "1x12x12x24",
            "uint8",
        ]


def test_an_operator_without_a_job_has_its_shapes_all_the_same() -> None:
    good = npulab.load(CAPTURES / "vivante/sim-1x1")
    layer = npulab.target("vivante").lift(good).layer
    after = npulab.Conv2D(
        np.ones((3, 5, 5, 24), np.uint8),
        [0, 0, 0],
        (12, 12, 24),
        input_q=layer.output_q,
        output_q=npulab.QuantParams(0.5, 3),
        dtype="uint8",
    )
    run = check_run([good], npulab.models.write_model([layer, after]))
    assert [operator.verdict for operator in run.operators] == ["equal", "not run"]
    assert run.operators[1].captures == ()
    assert run.operators[1].shapes["output"] == "1x8x8x3 uint8"


def test_a_model_alone_is_listed_with_shapes_and_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layer = npulab.Conv2D(np.ones((2, 3, 3, 1), np.int8), [1, 2], (8, 8, 1))
    path = tmp_path / "m.tflite"
    path.write_bytes(
        npulab.models.write_model(
            [layer, npulab.FullyConnected(np.ones((3, 72), np.int8), [0, 0, 0])]
        )
    )
    assert main(["show", str(path), "--operators"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["operator", "name", "input", "output", "constants"]
    rows = OperatorList(npulab.read_model(path)).records()
    # 2 x 3 x 3 weights and two biases of four bytes
    assert rows[0] == {
        "graph": 0,
        "operator": 0,
        "name": "CONV_2D",
        "input": "1x8x8x1 int8",
        "output": "1x6x6x2 int8",
        "constants": 2 * 3 * 3 + 2 * 4,
    }
    assert main(["show", str(path), "--operators", "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows
    assert main(["show", str(CAPTURES / "vivante/sim-1x1"), "--operators"]) == 2
    assert "allowed is a TensorFlow Lite or circle model" in capsys.readouterr().err
