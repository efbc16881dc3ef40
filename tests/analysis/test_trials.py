"""Searches on simulated boards with a planted fault: with controls they end right or say what
prevents an answer; without them the same searches go wrong."""

from __future__ import annotations

from collections import Counter

import pytest
from bench_trials import CASES, FAULTS, MAY_STOP, asked
from bench_trials_more import EXPLORE_FAULTS, SCAN_FAULTS, explored, scanned

# Even seeds are those on which the controls were decided; odd ones judge.
JUDGE = 1


@pytest.mark.sample(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_with_controls_a_bisection_ends_right_or_says_why(fault: str) -> None:
    ended = asked("onert", fault, JUDGE, controls=True)
    expected = "says" if fault in MAY_STOP else "right"
    assert ended.how == expected, ended.sentence


@pytest.mark.parametrize("fault", ["poisons", "once a power-up", "another model", "not executed"])
def test_without_controls_it_does_not_find_it(fault: str) -> None:
    ended = asked("onert", fault, JUDGE, controls=False)
    assert ended.how != "right", ended.sentence


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("fault", "seed"), [("not executed", 1), ("2 % wrong", 7), ("hang every 7th", 39)]
)
def test_without_controls_an_answer_is_wrong_and_certain(fault: str, seed: int) -> None:
    without = asked("onert", fault, seed, controls=False)
    assert without.how == "wrong", without.sentence
    assert "99" in without.sentence
    assert asked("onert", fault, seed, controls=True).how == "right"


@pytest.mark.parametrize("fault", ["lies", "hang every 50th"])
def test_with_controls_a_scan_ends_right_or_says_why(fault: str) -> None:
    ended = scanned("onert scales", fault, JUDGE, controls=True)
    expected = "says" if fault in MAY_STOP else "right"
    assert ended.how == expected, ended.sentence


def test_a_source_that_lies_or_changes_is_not_explored() -> None:
    assert "give the same words" in explored("vivante", "lies", JUDGE, controls=True).sentence
    ended = explored("vivante", "another model", JUDGE, controls=True)
    assert "line 1 was 'compiler 1', is 'compiler 2'" in ended.sentence


@pytest.mark.long
@pytest.mark.parametrize("target", CASES)
@pytest.mark.parametrize("fault", FAULTS)
def test_bisections_of_seeds_that_were_not_looked_at(fault: str, target: str) -> None:
    ends: Counter[str] = Counter()
    for seed in range(1, 41, 2):
        ends[asked(target, fault, seed, controls=True).how] += 1
    assert ends["wrong"] == 0, ends
    if fault not in MAY_STOP:
        assert ends["right"] >= 19, ends


@pytest.mark.long
@pytest.mark.parametrize("name", ["onert scales", "onert biases"])
@pytest.mark.parametrize("fault", SCAN_FAULTS)
def test_scans_of_seeds_that_were_not_looked_at(fault: str, name: str) -> None:
    for seed in (1, 3):
        ended = scanned(name, fault, seed, controls=True)
        assert ended.how == ("says" if fault in MAY_STOP else "right"), ended.sentence


@pytest.mark.long
@pytest.mark.parametrize("fault", EXPLORE_FAULTS)
def test_explorations_of_seeds_that_were_not_looked_at(fault: str) -> None:
    ended = explored("vivante", fault, JUDGE, controls=True)
    stops = fault in (*MAY_STOP, "once a power-up")  # a source that works once seems to lie
    assert ended.how == ("says" if stops else "right"), ended.sentence
