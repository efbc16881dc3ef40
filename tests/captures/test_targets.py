"""Targets are found by their folder, and may begin with a table alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import npulab
import npulab.captures.target
from npulab.captures.capture import CaptureSet, Job
from npulab.captures.target import Unsupported

FIRST_TABLE = """block,offset,register,field,lsb,width,value,evidence
CONV,0x0,CFG,stride,4,3,,guess
CONV,0x4,SRC,src,0,32,,guess
"""
FIRST_CODE = """
from pathlib import Path
from npulab.bits import RegisterMap
from npulab.target import Target
TARGET = Target("toy", "an NPU of nobody", {"toy-1": {}}, {"CONV": RegisterMap.read(Path(__file__).parent / "conv.csv")})
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> npulab.captures.target.Target:
    folder = tmp_path / "npulab_targets" / "toy"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(FIRST_CODE)
    (folder / "conv.csv").write_text(FIRST_TABLE)
    monkeypatch.chdir(tmp_path)
    return npulab.target("toy")


def test_folder_beside_the_notebooks_is_a_target(toy: npulab.captures.target.Target) -> None:
    assert {"toy", "vivante"} <= set(npulab.targets())
    assert toy.registers.decode([0x20, 7]) == {"w0_0_4": 0, "stride": 2, "w0_7_25": 0, "src": 7}


def test_a_changed_table_is_read_again(
    toy: npulab.captures.target.Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where modules of the folder read it, too; what was read before stays as it was."""
    assert npulab.target("toy") is toy
    folder = tmp_path / "npulab_targets" / "toy"
    (folder / "facts.py").write_text(FIRST_CODE)
    (folder / "__init__.py").write_text("from .facts import TARGET\n")
    registers = npulab.target("toy").registers
    (folder / "conv.csv").write_text(FIRST_TABLE.replace("stride", "stride_h"))
    assert npulab.target("toy").registers.decode([0x20, 7])["stride_h"] == 2
    assert registers.decode([0x20, 7])["stride"] == 2
    (tmp_path / "other").mkdir()
    (tmp_path / "npulab_targets").rename(tmp_path / "other" / "npulab_targets")
    monkeypatch.chdir(tmp_path / "other")
    (tmp_path / "other" / "npulab_targets" / "toy" / "conv.csv").write_text(
        FIRST_TABLE.replace("src", "source")
    )
    assert npulab.target("toy").registers.decode([0x20, 7])["source"] == 7


def test_table_alone_is_enough_to_decode_diff_and_check(
    toy: npulab.captures.target.Target, tmp_path: Path
) -> None:
    capture = npulab.Capture(
        "one",
        "toy",
        "toy-1",
        (Job("CONV", np.array([0x20, 7])),),
        {"coefficients": b"\1", "input": b"\2"},
        maps=toy.maps("toy-1"),
    )
    again = npulab.load(npulab.save(capture, tmp_path / "captures" / "one"))
    assert again == capture
    assert npulab.diff(again, again.with_fields(stride=1)).field.tolist() == ["stride"]
    found = npulab.check(again)
    assert (found.words, found.coefficients, found.verdict, found.ok) == (
        True,
        None,
        "nothing to compare",
        True,
    )
    assert (
        found.reason
        == "this target does not decode coefficients yet; this target does not lift captures to layers yet"
    )
    with pytest.raises(Unsupported, match="does not simulate captures yet"):
        toy.simulate(again)


def test_unknown_target_and_chip_name_the_known() -> None:
    with pytest.raises(
        LookupError,
        match=r"^target: got 'tpu', allowed is one of .*vivante.* \(a folder in ./npulab_targets counts too\)$",
    ):
        npulab.target("tpu")
    with pytest.raises(
        LookupError, match=r"^chip: got 'x', target vivante knows vipnano-qi-a311d, "
    ):
        npulab.target("vivante").maps("x")


def test_target_prints_its_chips() -> None:
    assert repr(npulab.target("vivante")) == (
        "Target(vivante: VeriSilicon NN engine, VIPNano-QI and relatives; "
        "vipnano-qi-a311d, vipnano-qi-s905d3, vipnano-si-imx8mp, "
        "gcnanoultra31-stm32mp25)"
    )


def test_a_target_of_an_installed_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    assert "toy" not in npulab.targets()
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys/conv.csv").write_text(FIRST_TABLE)
    (tmp_path / "toys/__init__.py").write_text(FIRST_CODE)
    (tmp_path / "toys-1.dist-info").mkdir()
    (tmp_path / "toys-1.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: toys\nVersion: 1\n"
    )
    (tmp_path / "toys-1.dist-info/entry_points.txt").write_text("[npulab.targets]\ntoy = toys\n")
    assert "toy" in npulab.targets()  # installed while npulab runs
    assert npulab.target("toy").maps("toy-1")["CONV"].decode([0x20, 7])["src"] == 7


def test_a_folder_whose_target_is_something_else(
    toy: npulab.captures.target.Target, tmp_path: Path
) -> None:
    (tmp_path / "npulab_targets/toy/__init__.py").write_text("TARGET = 7\n")
    with pytest.raises(
        ValueError, match=r"^target toy: TARGET is int, allowed is npulab\.target\.Target$"
    ):
        npulab.target("toy")


def test_words_of_captures_of_one_kind_only(toy: npulab.captures.target.Target) -> None:
    one = npulab.Capture(
        "one", "toy", "toy-1", (Job("CONV", np.array([0x20, 7])),), maps=toy.tables
    )
    other = replace(
        one, name="other", jobs=(Job("POOL", np.array([1, 2, 3])), Job("CONV", np.array([1, 2])))
    )
    longer = replace(one, name="longer", jobs=(Job("CONV", np.array([1, 2, 3])),))
    assert CaptureSet((one, one)).words.tolist() == [[0x20, 7]] * 2
    assert CaptureSet((one, other)).words_of("CONV").tolist() == [[0x20, 7], [1, 2]]
    with pytest.raises(
        ValueError, match=r"^words: got main jobs of 2 kinds .*, allowed is one kind$"
    ):
        _ = CaptureSet((one, longer)).words
    with pytest.raises(
        ValueError, match=r"^block CONV: got jobs of \[2, 3\] words, allowed is one length$"
    ):
        CaptureSet((one, longer)).words_of("CONV")
    with pytest.raises(LookupError, match=r"^block: got 'NONE', the jobs are of CONV, POOL$"):
        CaptureSet((one, other)).words_of("NONE")
    with pytest.raises(LookupError, match=r"^block: got 'POOL', maps are known for CONV$"):
        other.jobs[0].values(other.maps)
