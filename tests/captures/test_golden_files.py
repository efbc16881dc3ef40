"""Files as npulab wrote them in November 2026: they open for ever, with what they said then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from conftest import CAPTURES

import npulab
from npulab.analysis.draft import EDITS, draft
from npulab.analysis.explore.storing import Store
from npulab.captures.journal import Journal
from npulab.captures.sweep import load_sweep

GOLDEN = Path(__file__).parent / "golden"


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
