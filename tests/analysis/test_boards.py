"""Answers of bisections on boards by lot: none stands against a trial of its own, and what is
reported as certain is true.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench_boards import against, bisected, certain, groups_of
from boards import STATEFUL, STATELESS, Board, board

import npulab
from npulab import bisect_fields
from npulab.analysis.bisect import Bisected
from npulab.analysis.bisect.evidence import subset_of
from npulab.analysis.bisect.search import End, Search

CAPTURES = Path(__file__).resolve().parents[2] / "captures" / "vivante"
LOT = [
    *((kind, 0.0) for kind in (*STATELESS, *STATEFUL)),
    *((kind, 0.05) for kind in STATELESS if kind not in ("three of five", "more than half")),
]


def answer(kind: str, seed: int, flake: float) -> tuple[Board, Bisected]:
    of = board(kind, seed, flake)
    return of, bisected(of, flake, seed=seed)


def is_true(of: Board, found: Bisected) -> bool:
    symptom = "hang" if re.search(r"hangs? it", found.sentence) else "fail"
    return groups_of(found) == of.least(symptom)


def check_honest(of: Board, found: Bisected) -> None:
    """What is found agrees with each trial; what is not names the trial, or says that BAD
    passes.
    """
    assert found.done or found.hangs >= 50
    assert found.found == (not found.sentence.startswith(("not found", "BAD passes"))), (
        found.sentence
    )
    if of.flake == 0 and found.found:
        assert against(found, of) == [], found.sentence
        for group in found.groups:
            items = [int(key[3][1:]) for key in group]
            tried = [on for on, _ in of.trials]
            assert len(items) < 2 or all(frozenset({item}) in tried for item in items), (
                "a part was not tried alone"
            )
    if not found.found:
        assert not certain(found)


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(1000, 1002))
@pytest.mark.parametrize(("kind", "flake"), LOT)
def test_no_answer_stands_against_its_trials(kind: str, flake: float, seed: int) -> None:
    of, found = answer(kind, seed, flake)
    check_honest(of, found)
    if kind in STATELESS and kind != "more than half" and flake == 0:
        assert found.found, found.sentence
        assert is_true(of, found), (found.sentence, of.least())


@pytest.mark.long
def test_two_thousand_boards() -> None:
    told = wrong = 0
    for number in range(2000):
        kind, flake = LOT[number % len(LOT)]
        of, found = answer(kind, 5000 + number, flake)
        check_honest(of, found)
        if certain(found):
            told += 1
            wrong += not is_true(of, found)
    assert told > 1000
    assert wrong <= 0.005 * told, (wrong, told)


@pytest.mark.sample(5)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", STATEFUL)
def test_a_state_that_a_failure_leaves_is_named(kind: str, seed: int) -> None:
    """No number is given where the device keeps a state, and the good job is not blamed for it."""
    of, found = answer(kind, seed, 0.0)
    if not found.found:
        assert re.search(r"\btrials? \d", found.sentence), found.sentence
        assert found.certainty is None
    assert "good job does not pass (over" not in found.sentence
    assert not found.found or is_true(of, found)


@pytest.mark.parametrize("symptom", ["fail", "hang"])
def test_the_first_trial_of_bad_shows_what_is_asked_about(symptom: str) -> None:
    other = {"fail": "hang", "hang": "fail"}[symptom]
    for outcome in (other, "pass"):
        of = Board("one", 12, lambda on, outcome=outcome: outcome if 3 in on else "pass", (3,))
        found = bisected(of, 0.0, symptom=symptom)
        assert (of.trials, found.found, found.culprits) == ([(of.everything, outcome)], False, ())
        assert "BAD" in found.sentence
        assert "trial 1" in found.sentence


def test_a_device_that_passes_bad_is_the_answer() -> None:
    found = bisected(Board("one", 12, lambda on: "pass", ()), 0.0)
    assert found.sentence.startswith("BAD passes on this device (trial")
    assert (found.found, found.certainty, found.culprits) == (False, None, ())


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [4, 10, 25])
def test_a_group_with_a_part_that_hides_the_symptom_is_found(n: int, seed: int) -> None:
    """A part fails alone and hangs together with others: both pairs are named, also the one that
    holds it.
    """

    def outcome(on: frozenset[int]) -> str:
        if 0 in on and on & {2, 3}:
            return "hang"
        return "fail" if 2 in on else "pass"

    found = bisected(Board("groups", n, outcome, (0, 2, 3)), 0.0, seed=seed)
    assert groups_of(found) == {frozenset({0, 2}), frozenset({0, 3})}, found.sentence


@pytest.mark.parametrize("outcome", ["fail", "hang"])
@pytest.mark.parametrize("n", [1, 2, 5, 30])
def test_a_good_job_that_fails_is_run_again_before_that_is_said(outcome: str, n: int) -> None:
    of = Board("all", n, lambda on: outcome, ())
    found = bisected(of, 0.0)
    good = [number for number, (on, _) in enumerate(of.trials) if not on]
    assert good[-3:] == list(range(good[-1] - 2, good[-1] + 1))
    assert found.sentence.startswith("not found: the good job does not pass"), found.sentence


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(6))
def test_a_good_job_that_passes_again_is_not_blamed(seed: int) -> None:
    """A device on which every fifth run fails, whatever it is."""
    of = Board("fifth", 9, lambda on: "pass", ())
    of.answer = lambda on: "fail" if 4 in on or len(of.trials) % 5 == 4 else "pass"
    found = bisected(of, 0.0, seed=seed)
    if "good job does not pass" in found.sentence:
        assert "pass" not in [outcome for on, outcome in of.trials if not on], found.sentence


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(6))
def test_bad_itself_runs_before_an_answer(seed: int) -> None:
    """A part that fails unless another is changed too: BAD passes, and that is seen."""
    of = Board("mended", 9, lambda on: "fail" if 3 in on and 5 not in on else "pass", ())
    found = bisected(of, 0.0, seed=seed)
    assert not found.found, found.sentence
    of = board("one", seed)
    bisected(of, 0.0, seed=seed)
    assert of.everything in [on for on, _ in of.trials]


def test_what_stopped_before_its_end_has_no_certainty() -> None:
    found = bisected(board("pairs", 1), 0.0, stop=lambda: True)
    assert (found.done, found.certainty) == (False, None)


def test_parts_that_mend_each_other_are_two_trials_and_no_answer() -> None:
    """A part that fails unless another one changes too: both trials are run again, each after a
    pass, and named.
    """
    search = Search(6, [[item] for item in range(6)])

    def run(subset: np.ndarray) -> None:
        search.tell(subset, "fail" if subset[2] and not subset[3] else "pass")

    run(subset_of({2}, 6))
    run(subset_of({2, 3}, 6))
    while (question := search.ask()) is not None:
        run(question.subset)
    assert search.end == End("conflict", (0, 1))
    assert [outcome for _, outcome in search.history[2:]] == ["pass", "fail", "pass", "pass"]


def test_a_certainty_that_was_not_reached_is_no_answer() -> None:
    found = bisected(board("alone", 3, 0.2), 0.2, certainty=0.9, max_hangs=1)
    assert found.done
    assert found.found == (found.certainty is not None and found.certainty >= 0.9)


def test_captures_of_two_layers_are_refused_before_the_first_trial() -> None:
    good = npulab.load(CAPTURES / "sim-3x3-same")
    bad = npulab.load(CAPTURES / "sim-5x5-same")
    seen: list[str] = []

    def oracle(capture: npulab.Capture) -> str:
        seen.append(capture.name)
        return "fail"

    with pytest.raises(
        ValueError,
        match=r"two layers \(input_h 10 and 11, .*coefficients differs.*different_layers=True",
    ):
        bisect_fields(good, bad, oracle)
    assert seen == []
    assert not bisect_fields(good, bad, oracle, different_layers=True).found
    again = replace(good, parameters={**good.parameters, "coefficient_bytes": 7}).with_fields(
        relu=1
    )
    assert bisect_fields(good, again, lambda capture: "pass").sentence.startswith("BAD passes")
