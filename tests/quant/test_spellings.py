"""One name for each parameter of a layer: what npulab writes, and what it reads from files that
have other names.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT

import npulab
from npulab.analysis.laws.inputs import candidate_layers
from npulab.analysis.laws.stated import Stated, check_stated
from npulab.captures import store
from npulab.captures.layers import complete_ranges, following
from npulab.captures.sweep import sweep_of
from npulab.cli.exploring import _ranges
from npulab.models.sweeps import sweep as models_of, write_sweep
from npulab.quant.layers.spellings import SPELLINGS

SIM = ROOT / "captures" / "vivante" / "sim-3x3-same"


def conv(**parts: Any) -> npulab.Conv2D:
    weights = np.ones((5, 3, 3, 2), np.uint8)
    return npulab.Conv2D(weights, np.zeros(5, int), (8, 8, 2), **parts)


def test_a_layer_and_the_ranges_have_the_same_names() -> None:
    layer = conv(padding="same")
    own = layer.parameters
    assert not own.keys() & SPELLINGS.keys()
    assert (own["input_c"], own["output_c"]) == (2, 5)
    assert following(layer).keys() <= own.keys()
    sizes = {name for name in complete_ranges({}) if name[-2:] in ("_h", "_w", "_c")}
    assert sizes <= own.keys()


def test_captures_of_old_and_new_names_are_one_sweep(tmp_path: Path) -> None:
    shutil.copytree(SIM, tmp_path / "old")
    file = tmp_path / "old" / "capture.json"
    file.write_text(file.read_text().replace('"input_c"', '"input_channels"'))
    before = file.read_bytes()
    assert "input_channels" in json.loads(before)["parameters"]
    old = npulab.load(tmp_path / "old")
    assert file.read_bytes() == before
    assert "input_channels" not in old.parameters
    new = npulab.load(store.save(old, tmp_path / "new"))
    assert new.parameters == old.parameters
    assert new.parameters["input_c"] == json.loads(before)["parameters"]["input_channels"]
    valid = {**new.parameters, "padding": "valid", "activation": "relu"}
    other = replace(new, name="other", parameters=valid)
    found = sweep_of([old, other]).parameters
    assert found["same"].tolist() == [1, 0]
    assert found["relu"].tolist() == [0, 1]
    assert not {*found} & SPELLINGS.keys()


def test_a_dump_of_another_name_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from npulab.npus.template import new_target

    monkeypatch.chdir(tmp_path)
    new_target("mine", words=2)
    Path("dump").mkdir()
    Path("dump/words.bin").write_bytes(bytes(8))
    said = {"npu": "mine", "parameters": {"input_channels": 3, "kernel_h": 1}}
    Path("dump/job.json").write_text(json.dumps(said))
    assert npulab.load("dump").parameters == {"input_c": 3, "kernel_h": 1}


def written(path: Path, *names: str) -> Path:
    sizes = np.arange(1, 41, dtype=np.uint32)
    parameters = np.stack([(sizes * (n + 3)) % 7 + n for n in range(len(names))], 1)
    words = np.stack([2 * parameters[:, 0], sizes * 0], 1).astype(np.uint32)
    np.savez(path, words=words, parameters=parameters, names=np.array(names))
    return path


def test_a_sweep_of_another_name_is_read(tmp_path: Path) -> None:
    found = npulab.load_sweep(written(tmp_path / "a.npz", "input_channels", "padding_same"))
    assert [*found.parameters] == ["input_c", "same"]
    both = npulab.load_sweep(written(tmp_path / "b.npz", "input_channels", "input_c"))
    assert [*both.parameters] == ["input_channels", "input_c"]
    table = tmp_path / "layers.csv"
    table.write_text("same,input_channels\n0,4\n1,8\n")
    assert candidate_layers(str(table), found)["input_c"].tolist() == [4, 8]


@pytest.mark.parametrize("law", ["input_channels * 2", "input_c * 2"])
@pytest.mark.parametrize("name", ["input_channels", "input_c"])
def test_a_law_that_was_accepted_still_holds(name: str, law: str) -> None:
    """A session keeps laws as texts, with the names of their time."""
    sizes = np.arange(1, 41)
    words = np.stack([2 * sizes, 0 * sizes], 1).astype(np.uint32)
    table = check_stated([Stated.parse("size", law, "w0_0_8")], words, {name: sizes})
    assert table["verdict"].tolist() == ["agrees"]


def test_ranges_have_either_name(tmp_path: Path) -> None:
    file = tmp_path / "ranges.json"
    said = {
        "input_channels": {"low": 1, "high": 8},
        "padding": ["same"],
        "activation": [None, "relu"],
    }
    file.write_text(json.dumps(said))
    found = complete_ranges(_ranges(str(file)))
    assert (found["input_c"], found["same"], found["relu"]) == ((1, 8), [1], [0, 1])
    assert found == complete_ranges({"input_c": (1, 8), "same": [1], "relu": [0, 1]})


@pytest.mark.parametrize(
    ("ranges", "told"),
    [
        ({"padding": ["explicit"]}, "ranges: padding: got 'explicit', allowed is one of valid, sa"),
        ({"activation": ["relu6"]}, "ranges: activation: got 'relu6', allowed is one of None, re"),
        ({"padding": [["same"]]}, r"ranges: padding: got \['same'\], allowed is one of valid"),
        ({"same": [1], "padding": ["same"]}, "got same and padding, allowed is one of them"),
        ({"input_c": [1], "input_channels": [2]}, "got input_c and input_channels, allowed"),
    ],
)
def test_ranges_that_cannot_be_are_refused(ranges: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        complete_ranges(ranges)


def test_a_grid_of_models_has_either_name(tmp_path: Path) -> None:
    old = models_of({"input_channels": [3], "padding": ["same", "valid"], "activation": ["relu"]})
    new = models_of({"input_c": 3, "same": [1, 0], "relu": 1})
    assert old.models == new.models
    assert new.parameters["padding"].tolist() == ["same", "valid"]
    write_sweep(tmp_path / "sweep", {"input_c": [3]})
    head = (tmp_path / "sweep" / "parameters.csv").read_text().splitlines()[0].split(",")
    assert "input_c" in head
    assert not {*head} & SPELLINGS.keys()
    with pytest.raises(ValueError, match="grid: same: got 2, allowed is one of 0, 1"):
        models_of({"same": 2})
