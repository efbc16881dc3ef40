"""How certain an answer of a device that errs is among the answers that resemble it."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from npulab.analysis.bisect.evidence import Evidence, subset_of
from npulab.analysis.bisect.rivals import STEP, Rivals

N, FLAKE = 9, 0.05
Groups = list[frozenset[int]]
ANSWERS: list[Groups] = [
    [frozenset({2})],
    [frozenset({2}), frozenset({5})],
    [frozenset({2, 4})],
    [frozenset({2, 4}), frozenset({4, 7})],
    [frozenset({0, 1, 8}), frozenset({3})],
]


def trials_of(groups: Groups, count: int, seed: int) -> Evidence:
    random = np.random.default_rng(seed)
    told = []
    for subset in random.random((count, N)) < 0.5:
        items = set(np.flatnonzero(subset).tolist())
        breaks = any(group <= items for group in groups) != (random.random() < FLAKE)
        hangs = random.random() < 0.1
        told.append((subset, "hang" if hangs else "fail" if breaks else "pass"))
    return Evidence.of(told, N, "fail", FLAKE)


def likelihood(evidence: Evidence, groups: Groups) -> float:
    """How probable the outcomes are, trial by trial; a hang says nothing of failures."""
    out = 1.0
    for changed, outcome in zip(evidence.changed, evidence.outcomes, strict=True):
        if outcome == "hang":
            continue
        items = set(np.flatnonzero(changed).tolist())
        expected = "fail" if any(group <= items for group in groups) else "pass"
        out *= 1 - FLAKE if outcome == expected else FLAKE
    return out


def kinds_of_rivals(groups: Groups) -> list[list[Groups]]:
    """All rivals, one list a kind."""
    members = {item for group in groups for item in group}
    alone = {item for group in groups if len(group) == 1 for item in group}
    kinds: list[list[Groups]] = [[[]]]
    for group in groups:
        others = [other for other in groups if other != group]
        outside = [item for item in range(N) if item not in group]
        kinds.append([[*others, group | {item}] for item in outside])
        pairs = list(combinations(outside, 2))
        for count in range(3):
            those = [pair for pair in pairs if len(members & set(pair)) == count]
            kinds.append([[*others, group | {one}, group | {other}] for one, other in those])
        if len(group) > 1:
            kinds.append([[*groups, group - {item}] for item in group])
    free = [item for item in range(N) if item not in alone]
    kinds.append([[*groups, frozenset({item})] for item in free if item not in members])
    added = [frozenset(pair) for pair in combinations(free, 2)]
    for count in range(3):
        those = [
            pair
            for pair in added
            if len(members & pair) == count and not any(pair <= group for group in groups)
        ]
        kinds.append([[*groups, pair] for pair in those])
    return kinds


@pytest.mark.parametrize("answer", ANSWERS)
def test_certainty_is_that_of_all_rivals_one_by_one(answer: Groups) -> None:
    for seed in range(4):
        evidence = trials_of(answer, 12, seed)
        own = likelihood(evidence, answer)
        weights = 0.0
        for kind in kinds_of_rivals(answer):
            of_kind = [likelihood(evidence, rival) / own for rival in kind]
            weights += STEP * sum(of_kind) / max(1, len(of_kind))
        found = Rivals.of(evidence, tuple(tuple(sorted(group)) for group in answer), FLAKE)
        assert found.certainty == pytest.approx(1 / (1 + weights))


def test_wanted_is_the_set_in_which_most_rivals_end_differently() -> None:
    """After trials of a part alone, what is left is that another part breaks it too, and the
    reverse.
    """
    alone = (subset_of({2}, N), "fail")
    others = (~subset_of({2}, N), "pass")
    few = Evidence.of([alone, others, others], N, "fail", FLAKE)
    once = Rivals.of(few, ((2,),), FLAKE)
    assert once.wanted(few).tolist() == alone[0].tolist()
    more = Evidence.of([alone, alone, others], N, "fail", FLAKE)
    twice = Rivals.of(more, ((2,),), FLAKE)
    assert twice.wanted(more).tolist() == others[0].tolist()
    assert once.certainty < twice.certainty


def test_one_wrong_outcome_makes_no_certain_answer() -> None:
    """A pair of which one part seemed to fail alone, once, is not certainly that part."""
    random = np.random.default_rng(1)
    told = [(subset_of({2}, N), "fail"), (~subset_of({2}, N), "pass")]
    for subset in random.random((8, N)) < 0.5:
        told.append((subset, "fail" if subset[2] and subset[5] else "pass"))
    found = Rivals.of(Evidence.of(told, N, "fail", FLAKE), ((2,),), FLAKE)
    assert found.certainty < 0.5
