"""The search for what breaks a job: whole units are tried first, then what each guilty one
holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from npulab.analysis.bisect import suspects
from npulab.analysis.bisect.couplings import Couplings
from npulab.analysis.bisect.kinds import MOST, Groups
from npulab.analysis.bisect.prefix import WRONG, Prefix
from npulab.analysis.bisect.suspects import Suspects, entropy
from npulab.captures.journal import OUTCOMES

LARGEST = 220  # parts of one stage: more items are bundled, and guilty bundles opened
CERTAINTY = 0.99
MERGED = 200  # explanations that are put together where some cannot be told apart
LATE = 4.0  # bits: with more open there is always something to ask
UNTRIED = 0.5  # a set that hangs more probably is not tried just to see what is known


@dataclass(frozen=True)
class Question:
    """What to change ``(n,) bool``, and why."""

    subset: np.ndarray
    reason: str


class Search:
    """Which of ``n`` items break it, ``units`` (lists of items) being kept whole as long as that
    says something.

    ``tell`` takes the outcome of any set of items: "pass", "fail" or "hang".  What is looked for is
    ``symptom``: what the bad job itself does; where that is not given it is "fail" until something
    hangs, which makes ``ask`` ask for all items at once.  Raises ValueError for options out of
    their range.

    >>> search = Search(6, [[0, 1], [2], [3, 4, 5]], seed=3)
    >>> while (question := search.ask()) is not None:
    ...     search.tell(question.subset, "fail" if question.subset[4] else "pass")
    >>> search.groups
    ((4,),)
    """

    def __init__(self, n: int, units: Sequence[Sequence[int]], *, flake_rate: float | None = 0.0,
                 certainty: float = CERTAINTY, symptom: str | None = None, seed: int = 0) -> None:
        if not isinstance(certainty, int | float) or not 0.5 < certainty < 1:
            raise ValueError(f"certainty: got {certainty!r}, allowed is more than 0.5 and less than 1")
        self.n, self.flake_rate, self.certainty, self.seed = n, flake_rate, certainty, seed
        self.units = [tuple(sorted(unit)) for unit in units]
        self.given = symptom
        self.history: list[tuple[np.ndarray, str]] = []
        self._restart()

    def _restart(self) -> None:
        self.symptom = self._symptom()
        self.certain = 1.0
        self.done = False
        self.groups: Groups = ()  # the smallest sets of items that break it, when done
        self.inseparable = False  # taken apart they would hang
        self._stages = 0
        self._stage(list(self.units) if self.n > LARGEST else [(item,) for item in range(self.n)])

    def _stage(self, parts: list[tuple[int, ...]]) -> None:
        """Begin to search among parts: lists of items that are changed together."""
        size = math.ceil(len(parts) / LARGEST)
        self.parts = [tuple(item for part in parts[i:i + size] for item in part) for i in range(0, len(parts), size)]
        self._sizes = np.array([len(part) for part in self.parts])
        self._part = np.full(self.n, len(self.parts))  # of each item; the last number is that of no part
        for number, part in enumerate(self.parts):
            self._part[list(part)] = number
        several = any(self._sizes > 1)
        self._enough = min(0.9999, (self.certainty / self.certain) ** (0.5 if several else 1.0))
        self.suspects = Suspects(len(self.parts), self.flake_rate, self.seed + self._stages)
        index = {part[0]: number for number, part in enumerate(self.parts) if len(part) == 1}
        self.couplings = Couplings(len(self.parts), self.suspects.flake if self.flake_rate != 0 else 0.0,
                                   [[index[item] for item in unit if item in index] for unit in self.units])
        self._tried: set[bytes] = set()  # sets of parts that need not be asked again, of an oracle that never errs
        self.prefix: Prefix | None = None
        self._question: Question | None = None
        self._silent = False  # no question parts what is left
        self._stages += 1

    def _symptom(self) -> str | None:
        if self.given:
            return self.given
        whole = [outcome for subset, outcome in self.history if subset.all() and outcome != "pass"]
        outcomes = {outcome for _, outcome in self.history}
        return whole[-1] if whole else "fail" if "fail" in outcomes and "hang" not in outcomes else None

    @property
    def undecided(self) -> bool:
        """Whether something hung and it is not known if the bad job does."""
        return self.symptom is None and any(outcome == "hang" for _, outcome in self.history) \
            and not any(subset.all() for subset, _ in self.history)

    def ask(self) -> Question | None:
        """The next set to try; None when the search is done."""
        if self.done:
            return None
        if self.undecided:
            return Question(np.ones(self.n, bool), "it hangs: what does the bad job itself do?")
        self._question = self._question or self._next()
        if self._question:
            return self._question
        self._silent = True  # no trial says which of the explanations it is
        self._advance()
        return self.ask()

    def tell(self, subset: np.ndarray, outcome: str) -> None:
        """The outcome of a set of items ``(n,) bool``.

        Raises ValueError for an outcome that is none of pass, fail and hang.
        """
        if outcome not in OUTCOMES:
            raise ValueError(f"outcome: got {outcome!r}, allowed is one of {', '.join(OUTCOMES)}")
        self.history.append((np.array(subset, bool), outcome))
        if "hang" in (was := self.symptom, now := self._symptom()) and was != now:
            self._replay()
        else:
            self.symptom = now
            self._take(*self.history[-1])

    def undo(self, count: int = 1) -> None:
        """Take the last outcomes back."""
        del self.history[-count:]
        self._replay()

    def _replay(self) -> None:
        self._restart()
        for trial in self.history:
            self._take(*trial)

    def _take(self, subset: np.ndarray, outcome: str) -> None:
        """One outcome, for the stage as it is."""
        if not self.done and self._question is None and self.prefix is None and self.suspects.bits < LATE:
            self.ask()  # where a journal is read again: what ended a stage may have been that nothing was left to ask
        if self.done:
            return
        self._question, self._silent = None, False
        counts = np.bincount(self._part[subset], minlength=len(self.parts) + 1)
        changed = counts[:-1] > 0
        if counts[-1] or np.any(changed & (counts[:-1] < self._sizes)):
            return  # of a stage before, or asked by hand: it says nothing of these parts alone
        if self.flake_rate == 0:
            self._tried.add(changed.tobytes())
        hung, failed = outcome == "hang", outcome == (self.symptom or "fail")
        if self.prefix is not None:
            asked = self.prefix.ask()
            if asked is not None and np.array_equal(changed, asked @ self._together):
                self.prefix.tell(failed)
        elif self.symptom == "hang":
            self.suspects.tell(changed, failed)
        else:
            self.couplings.tell(changed, hung)
            if not hung:
                self.suspects.tell(changed, failed)
        self._advance()

    def _next(self) -> Question | None:
        """What the stage asks for."""
        if self.prefix is not None:
            chosen = self.prefix.ask()
            assert chosen is not None
            return self._changing(chosen @ self._together, "nothing simple explains it: the smallest set that fails")
        best = self.suspects.top(1)[0]
        if (self._silent or best.probability >= self._enough) and (unseen := self._unseen(best.groups)) is not None:
            return self._changing(unseen, "to see it happen: what is suspect and nothing else, or all but that")
        question = self.suspects.ask(self.couplings, self._tried)
        return self._explained(question) if question else None

    def _changing(self, chosen: np.ndarray, reason: str) -> Question:
        subset = np.zeros(self.n, bool)
        subset[np.append(chosen, False)[self._part]] = True
        return Question(subset, reason)

    def _explained(self, question: suspects.Question) -> Question:
        """A question of the suspects, with the reason for it."""
        chosen = question.subset
        what = "hang" if self.symptom == "hang" else "failure"
        reason = f"{question.fails:.0%} expect a {what}, {self.suspects.bits:.1f} bits are open"
        if question.hangs > 0.05:
            reason += f", may hang ({question.hangs:.0%})"
        if any(np.array_equal(chosen, before) for before, _ in self.suspects.told):
            reason = f"asked again, outcomes are wrong in {self.suspects.flake:.1%} of trials: {reason}"
        elif any(0 < np.count_nonzero(chosen[unit]) < len(unit) for unit in self.couplings.units):
            reason = f"takes what belongs together apart: {reason}"
        return self._changing(chosen, reason)

    def _advance(self) -> None:
        """On to the next stage, or to the end, where this one has said what it can."""
        best = self.suspects.top(1)[0]
        sure = self._silent or best.probability >= self._enough
        most = len(best.items) >= MOST and len(self.parts) > MOST  # there may be more than an explanation holds
        if self.prefix is None and (not self.suspects.explained or (sure and most)):
            tied = self.couplings.tied(units=self._stages == 1)
            self._together = np.array([np.isin(np.arange(len(self.parts)), group) for group in tied], bool)
            self.prefix = Prefix(len(tied), self.suspects.flake)
        if self.prefix is not None:
            if self.prefix.ask() is None:
                groups = [self._together[list(group)].any(axis=0) for group in self.prefix.groups]
                whole = sum(map(np.count_nonzero, groups)) > sum(map(len, self.prefix.groups))
                self._end(tuple(tuple(np.flatnonzero(group).tolist()) for group in groups), 1 - WRONG,
                          opened=whole and self._stages == 1)
        elif sure:
            if self._unseen(best.groups) is None:
                self._end(best.groups, best.probability)
        elif self.couplings.known:
            question = self.suspects.ask(self.couplings, self._tried)
            self._question = self._explained(question) if question else None
            if question is None:
                self._end(*self._as_far_as_it_goes(), tied=True)

    def _unseen(self, groups: Groups) -> np.ndarray | None:
        """What the groups say and was not yet seen: each alone fails, and all others together do
        not."""
        every = np.arange(len(self.parts))
        sets = [(np.isin(every, group), True) for group in groups]
        sets += [(~np.isin(every, sum(groups, ())), False)] if all(groups) else []
        return next((changed for changed, failed in sets if self.couplings.chance(changed) < UNTRIED and not any(
            np.array_equal(changed, before) and failed == was for before, was in self.suspects.told)), None)

    def _as_far_as_it_goes(self) -> tuple[Groups, float]:
        """The most probable explanation where those are one that cannot be told apart without a
        hang."""
        together = {int(part): group.tolist() for group in self.couplings.tied() for part in group}
        merged: dict[Groups, float] = {}
        for one in self.suspects.top(MERGED):
            groups = {tuple(sorted({other for part in group for other in together.get(part, [part])}))
                      for group in one.groups}
            least = tuple(sorted(group for group in groups if not any(set(other) < set(group) for other in groups)))
            merged[least] = merged.get(least, 0.0) + one.probability
        return max(merged.items(), key=lambda pair: pair[1])

    def _end(self, groups: Groups, probability: float, tied: bool = False, opened: bool = False) -> None:
        """Parts were found guilty: on to what they hold where that is several items, or where some
        of them were moved together (``opened``), else that is the end."""
        self.certain *= min(probability, 1.0)
        guilty = [self.parts[part] for part in sorted({part for group in groups for part in group})]
        if opened or any(len(part) > 1 for part in guilty):
            self._stage([inner for part in guilty for inner in self._opened(part)])
            return
        self.groups = tuple(sorted(tuple(self.parts[part][0] for part in group) for group in groups))
        self.inseparable = tied and any(len(group) > 1 for group in groups)
        self.done = True
        self._question = None

    def _opened(self, part: tuple[int, ...]) -> list[tuple[int, ...]]:
        """What a bundle holds: units where it holds several and all items would be too many, else
        items."""
        units = [unit for unit in self.units if set(unit) < set(part)]
        return units if units and len(part) > LARGEST else [(item,) for item in part]

    @property
    def likely(self) -> list[tuple[Groups, float]]:
        """The most probable explanations, in items, best first."""
        if self.done:
            return [(self.groups, self.certain)]
        return [(tuple(tuple(sorted(item for part in group for item in self.parts[part])) for group in one.groups),
                 one.probability) for one in self.suspects.top(5)]

    @property
    def left(self) -> int:
        """About how many trials are left."""
        if self.done:
            return 0
        if self.prefix is not None:
            return max(1, 2 * math.ceil(math.log2(len(self.parts) + 1)))
        capacity = 1 - float(entropy(np.array(self.suspects.flake)))
        return max(1, math.ceil(self.suspects.bits / capacity))
