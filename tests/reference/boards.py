"""Boards by lot for bisections: what fails or hangs, in which order, with which state, and how
often they err.

A board is asked which items are changed and answers "pass", "fail" or "hang". ``Board.least`` is
the truth: the smallest sets of items that show what the bad job shows, on a board without state and
without errors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

Items = frozenset[int]
Answer = Callable[[Items], str]
STATELESS = (
    "one",
    "alone",
    "hidden",
    "pairs",
    "a pair or one",
    "a pair or a hang",
    "two of three",
    "one with either",
    "three together",
    "three of five",
    "more than half",
    "torn",
    "groups hidden",
)
STATEFUL = ("fails once more", "fails for good", "passes once", "fails when warm")


@dataclass
class Board:
    """A board with ``n`` items: ``answer`` is what it does without errors and state."""

    kind: str
    n: int
    answer: Answer
    relevant: tuple[int, ...]
    flake: float = 0.0
    seed: int = 0
    warm: int = 0
    trials: list[tuple[Items, str]] = field(default_factory=list)
    _sick: bool = False

    def __post_init__(self) -> None:
        self._random = np.random.default_rng([self.seed, 7])

    @property
    def everything(self) -> Items:
        return frozenset(range(self.n))

    def least(self, symptom: str | None = None) -> set[Items]:
        """The smallest sets that show ``symptom``, by default what the bad job shows."""
        symptom = symptom or self.answer(self.everything)
        if self.kind == "more than half":
            return {frozenset()}  # as many sets as nobody can list: no answer is right
        found: set[Items] = set()
        for size in range(len(self.relevant) + 1):
            for some in map(frozenset, combinations(self.relevant, size)):
                if self.answer(some) == symptom and not any(less <= some for less in found):
                    found.add(some)
        return found

    def __call__(self, changed: Iterable[int]) -> str:
        on = frozenset(changed)
        outcome = self._with_state(on, self.answer(on))
        if self._random.random() < self.flake:
            outcome = "fail" if outcome == "pass" else "pass"
        self.trials.append((on, outcome))
        return outcome

    def _with_state(self, on: Items, outcome: str) -> str:
        failed, sick = outcome != "pass", self._sick
        if self.kind == "fails once more":
            self._sick = failed
            return "fail" if sick else outcome
        if self.kind == "fails for good":
            self._sick = sick or failed
            return "fail" if self._sick else outcome
        if self.kind == "passes once":
            self._sick = failed and not sick
            return "pass" if sick else outcome
        if self.kind == "fails when warm":
            return "fail" if len(self.trials) >= self.warm else outcome
        return outcome


def board(kind: str, seed: int, flake: float = 0.0) -> Board:
    """A board of a kind, with 6 to 40 items."""
    random = np.random.default_rng([seed, *map(ord, kind)])
    n = int(random.integers(9, 41))
    picks = [int(item) for item in random.permutation(n)[:6]]
    answer, relevant = _answer(kind, n, picks, random)
    return Board(kind, n, answer, relevant, flake, seed, int(random.integers(3, 9)))


def _fails(groups: Collection[Collection[int]]) -> Answer:
    sets = [frozenset(group) for group in groups]
    return lambda on: "fail" if any(group <= on for group in sets) else "pass"


def _answer(
    kind: str, n: int, picks: list[int], random: np.random.Generator
) -> tuple[Answer, tuple[int, ...]]:
    if kind in ("one", *STATEFUL):
        return _fails([picks[:1]]), tuple(picks[:1])
    if kind == "alone":
        count = int(random.integers(2, 7))
        return _fails([[item] for item in picks[:count]]), tuple(picks[:count])
    if kind == "hidden":  # the first in order decides: what comes after it is not seen
        count = int(random.integers(2, 7))
        order = [(item, str(random.choice(["fail", "hang"]))) for item in picks[:count]]
        return _first(order), tuple(picks[:count])
    if kind == "pairs":
        pairs = [picks[0:2], picks[2:4]][: int(random.integers(1, 3))]
        return _fails(pairs), tuple(item for pair in pairs for item in pair)
    if kind == "a pair or one":
        return _fails([picks[:2], picks[2:3]]), tuple(picks[:3])
    if kind == "a pair or a hang":
        a, b, hangs = picks[:3]
        if random.random() < 0.5:
            return (lambda on: "fail" if {a, b} <= on else "hang" if hangs in on else "pass"), (
                a,
                b,
                hangs,
            )
        return (lambda on: "hang" if hangs in on else "fail" if {a, b} <= on else "pass"), (
            a,
            b,
            hangs,
        )
    if kind == "two of three":
        return _fails(list(combinations(picks[:3], 2))), tuple(picks[:3])
    if kind == "one with either":
        return _fails([[picks[0], other] for other in picks[1:3]]), tuple(picks[:3])
    if kind == "three together":
        return _fails([picks[:3]]), tuple(picks[:3])
    if kind == "three of five":
        return _fails(list(combinations(picks[:5], 3))), tuple(picks[:5])
    if kind == "more than half":
        return (lambda on: "fail" if len(on) > n // 2 else "pass"), tuple(range(n))
    if (
        kind == "torn"
    ):  # two items that hang if one is changed without the other, and one that fails
        a, b, c = picks[:3]
        guilty = c if random.random() < 0.5 else a
        return (
            lambda on: "hang" if (a in on) != (b in on) else "fail" if guilty in on else "pass"
        ), (a, b, c)
    if (
        kind == "groups hidden"
    ):  # parts and pairs that fail or hang, of which one kind always shows before the other
        groups = {
            outcome: [
                frozenset(random.choice(picks, int(random.integers(1, 3)), replace=False).tolist())
                for _ in range(int(random.integers(1, 4)))
            ]
            for outcome in ("fail", "hang")
        }
        order = ["fail", "hang"] if random.random() < 0.5 else ["hang", "fail"]
        return _shows_first(groups, order), tuple(picks)
    raise ValueError(f"kind: got {kind!r}, allowed is one of {', '.join((*STATELESS, *STATEFUL))}")


def _shows_first(groups: dict[str, list[Items]], order: list[str]) -> Answer:
    def answer(on: Items) -> str:
        for outcome in order:
            if any(group <= on for group in groups[outcome]):
                return outcome
        return "pass"

    return answer


def _first(order: list[tuple[int, str]]) -> Answer:
    def answer(on: Items) -> str:
        for item, outcome in order:
            if item in on:
                return outcome
        return "pass"

    return answer
