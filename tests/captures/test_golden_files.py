"""Files as npulab wrote them in November 2026: they open for ever, with what they said then."""

from __future__ import annotations

import json
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CAPTURES, ROOT

import npulab
from npulab.analysis.draft import EDITS, draft
from npulab.analysis.explore.storing import Store
from npulab.captures.journal import Journal
from npulab.captures.sweep import load_sweep, save_sweep

GOLDEN = Path(__file__).parent / "golden"


def test_a_journal_of_trials_with_controls_opens() -> None:
    journal = Journal.read(GOLDEN / "journal-2.jsonl")
    assert [trial.outcome for trial in journal] == ["not executed", "reboots", "refused"]
    assert journal[0].more["since"] == "power-up"
    assert journal.hangs == 1


def test_a_journal_opens() -> None:
    journal = Journal.read(GOLDEN / "journal.jsonl")
    assert journal.about == {"good": "a", "bad": "b"}
    assert [(trial.subset, trial.outcome, trial.seconds) for trial in journal] == [
        (("0/NN/CFG/relu",), "fail", 1.5),
        (("x\u2028y",), "hang", 2.0),
    ]
    assert journal[1].more == {"seed": 3}


def test_a_sweep_with_a_sum_opens() -> None:
    found, known = (
        load_sweep(GOLDEN / "sweep.npz"),
        load_sweep(CAPTURES / "vivante/sweep-addresses.npz")[:2],
    )
    assert np.array_equal(found.words, known.words)
    assert found.parameters.equals(known.parameters)
    assert (found.target, found.chip, found.provenance) == (
        known.target,
        known.chip,
        known.provenance,
    )


def test_a_sweep_of_today_opens(tmp_path: Path) -> None:
    """It states its version; the one above is of 0.1, which did not."""
    known = load_sweep(GOLDEN / "sweep.npz")
    new = GOLDEN / "sweep-1.npz"
    assert save_sweep(known, tmp_path / "s.npz").read_bytes() == new.read_bytes()
    assert np.array_equal(load_sweep(new).words, known.words)
    with np.load(new) as arrays:
        assert arrays["version"] == 1


def test_a_capture_opens() -> None:
    found, known = npulab.load(GOLDEN / "capture"), npulab.load(CAPTURES / "vivante/sim-1x1")
    assert np.array_equal(found.words, known.words)
    assert (found.buffers, found.addresses, found.parameters) == (
        known.buffers,
        known.addresses,
        known.parameters,
    )


def test_an_exploration_opens() -> None:
    before = (GOLDEN / "exploration/answers.jsonl").read_bytes()
    (answer,) = Store(GOLDEN / "exploration", {"seed": 1}).answers
    assert (answer.reason, answer.seed, answer.parameters, answer.outcome) == (
        "first",
        7,
        {"kernel_h": 3.0},
        "refused",
    )
    assert (GOLDEN / "exploration/answers.jsonl").read_bytes() == before


def test_the_edits_of_a_draft_give_the_files_that_they_gave(tmp_path: Path) -> None:
    """The edits are those that a session or a notebook keeps; byte order mark, CRLF, quotes and
    comments stay.
    """
    shutil.copytree(GOLDEN / "draft", tmp_path / "draft")
    made = draft(tmp_path / "draft/registers.csv")
    edits = [
        json.loads(line)
        for line in (GOLDEN / "draft/edits.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert {edit["do"] for edit in edits} == set(EDITS)
    made.replay(edits)
    assert made.edits == edits
    made.save()
    for name in ("registers.csv", "enums.csv"):
        assert (tmp_path / "draft" / name).read_bytes() == (
            GOLDEN / "draft/saved" / name
        ).read_bytes(), name


def later_json(path: Path, name: str, found: Any) -> None:
    stated = re.search(rf'"{name}": (\d+)', found)
    path.write_text(found.replace(stated[0], f'"{name}": {int(stated[1]) + 2}'), encoding="utf-8")


def later_capture(path: Path) -> Callable[[], Any]:
    folder = shutil.copytree(GOLDEN / "capture", path / "capture")
    description = folder / "capture.json"
    later_json(description, "format", description.read_text(encoding="utf-8"))
    return lambda: npulab.load(folder)


def later_journal(path: Path) -> Callable[[], Any]:
    later_json(path / "j", "version", (GOLDEN / "journal.jsonl").read_text(encoding="utf-8"))
    return lambda: Journal.read(path / "j")


def later_session(path: Path) -> Callable[[], Any]:
    golden = ROOT / "tests/notebook/golden/stride.session.json"
    later_json(path / "s.json", "version", golden.read_text(encoding="utf-8"))
    return lambda: npulab.session(path / "s.json")


def later_exploration(path: Path) -> Callable[[], Any]:
    head = GOLDEN.joinpath("exploration/answers.jsonl").read_text(encoding="utf-8").splitlines()[0]
    later_json(path / "answers.jsonl", "version", head[9:])
    line = (path / "answers.jsonl").read_bytes() + b"\n"
    (path / "answers.jsonl").write_bytes(b"%08x %s" % (zlib.crc32(line.rstrip(b"\n")), line))
    return lambda: Store(path, {"seed": 1})


def later_sweep(path: Path) -> Callable[[], Any]:
    with np.load(GOLDEN / "sweep-1.npz") as found:
        arrays = {name: found[name] for name in found if name != "sha256"}
    np.savez(path / "s.npz", **arrays | {"version": np.array(3)})
    return lambda: load_sweep(path / "s.npz")


def later_table(path: Path) -> Callable[[], Any]:
    """A table states its format by the names of its columns."""
    table = "block,offset,register,field,lsb,width,colour\nNN,0,CFG,size,0,4,red\n"
    (path / "r.csv").write_text(table, encoding="utf-8")
    return lambda: draft(path / "r.csv")


@pytest.mark.parametrize(
    ("later", "said"),
    [
        (later_capture, r"format: got (3|4), allowed is 1 or 2"),
        (later_journal, r"version: got 3, allowed is 1 or 2"),
        (later_session, r"version: got 3, allowed is 1"),
        (later_exploration, r"version: got 3, allowed is 1"),
        (later_sweep, r"version: got 3, allowed is 1"),
        (later_table, r"colour"),
    ],
)
def test_a_later_version_is_refused_in_one_sentence(
    tmp_path: Path, later: Callable[[Path], Callable[[], Any]], said: str
) -> None:
    read = later(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=said) as told:
        read()
    assert "\n" not in str(told.value)
    assert str(tmp_path) in str(told.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_saved_draft_opens() -> None:
    made = draft(GOLDEN / "draft/saved/registers.csv")
    fields = {name: made.map[name] for name in ("power", "CFG.size", "extra", "place", "status")}
    assert {name: one.bits for name, one in fields.items()} == {
        "power": "3[1:0]",
        "CFG.size": "3[7:4] 4[31:30]",
        "extra": "3[16:14]",
        "place": "4[25:0]",
        "status": "8[1:0]",
    }
    assert made.map.enums["mode"] == {0: "off", 1: "on", 2: "sleep"}
    assert (fields["power"].note, fields["power"].evidence, fields["place"].address) == (
        'says "on", "off", or sleep',
        "B4",
        True,
    )
