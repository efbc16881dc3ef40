"""Files as npulab wrote them in November 2026: they open for ever, with what they said then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from conftest import CAPTURES

import npulab
from npulab.analysis.explore.storing import Store
from npulab.captures.journal import Journal
from npulab.captures.sweep import load_sweep

GOLDEN = Path(__file__).parent / "golden"


def test_a_journal_opens() -> None:
    journal = Journal.read(GOLDEN / "journal.jsonl")
    assert journal.about == {"good": "a", "bad": "b"}
    assert [(trial.subset, trial.outcome, trial.seconds) for trial in journal] == [
        (("0/NN/CFG/relu",), "fail", 1.5), (("x\u2028y",), "hang", 2.0)]
    assert journal[1].more == {"seed": 3}


def test_a_sweep_with_a_sum_opens() -> None:
    found, known = load_sweep(GOLDEN / "sweep.npz"), load_sweep(CAPTURES / "vivante/sweep-addresses.npz")[:2]
    assert np.array_equal(found.words, known.words)
    assert found.parameters.equals(known.parameters)
    assert (found.target, found.chip, found.provenance) == (known.target, known.chip, known.provenance)


def test_a_capture_opens() -> None:
    found, known = npulab.load(GOLDEN / "capture"), npulab.load(CAPTURES / "vivante/sim-1x1")
    assert np.array_equal(found.words, known.words)
    assert (found.buffers, found.addresses, found.parameters) == (known.buffers, known.addresses, known.parameters)


def test_an_exploration_opens() -> None:
    before = (GOLDEN / "exploration/answers.jsonl").read_bytes()
    (answer,) = Store(GOLDEN / "exploration", {"seed": 1}).answers
    assert (answer.reason, answer.seed, answer.parameters, answer.outcome) == ("first", 7, {"kernel_h": 3.0}, "refused")
    assert (GOLDEN / "exploration/answers.jsonl").read_bytes() == before
