"""The notebook of the ONE runtime, with a log and a model of one's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import store_notebooks
from conftest import ROOT, shared

import npulab


@pytest.mark.long
def test_the_notebook_runs_on_a_log_and_a_model_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = npulab.FullyConnected(np.ones((96, 1000), np.int8), np.zeros(96), dtype="float32")
    (tmp_path / "m.circle").write_bytes(npulab.single_op_model(layer, (4, 2), form="circle"))
    monkeypatch.setenv("NPULAB_MODEL", str(tmp_path / "m.circle"))
    monkeypatch.setenv("NPULAB_LOG", str(shared("seeds/003_78f469e58df80a91.txt")))
    ran = store_notebooks.run(ROOT / "notebooks" / "10-one-runtime.ipynb")
    said = "".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "")
        for cell in ran.cells
        for output in cell.get("outputs", [])
    )
    assert "1 operator, 4 tensors: peak 34.2K at operator 0, FULLY_CONNECTED" in said
    assert "segmentation fault of 0x753080" in said
    assert said.count("hit of 0x753080") == 1
