"""The search for what breaks a job: parts of it are asked for, first whole units, then what the guilty ones hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from npulab.bisection.couplings import Couplings
from npulab.bisection.kinds import Groups
from npulab.bisection.prefix import Prefix
from npulab.bisection.suspects import Suspects, Suspicion, entropy

LARGEST = 220  # parts of one stage: more are bundled, and bundles opened like units
CERTAINTY = 0.99


@dataclass(frozen=True)
class Question:
    """What to change ``(n,) bool``, and why."""

    subset: np.ndarray
    reason: str


class Search:
    """Which of ``n`` items break it, ``units`` (lists of items) being kept whole as long as that says something.

    ``tell`` takes the outcome of any set of items: "pass", "fail" or "hang".  What is looked for is ``symptom``:
    what the bad job itself does; where that is not given it is "fail" until something hangs, which makes ``ask``
    ask for all items at once.

    >>> search = Search(6, [[0, 1], [2], [3, 4, 5]], seed=3)
    >>> while (question := search.ask()) is not None:
    ...     search.tell(question.subset, "fail" if question.subset[4] else "pass")
    >>> search.groups
    ((4,),)
    """

    def __init__(self, n: int, units: Sequence[Sequence[int]], *, flake_rate: float | None = 0.0,
                 certainty: float = CERTAINTY, symptom: str | None = None, seed: int = 0) -> None:
        if not isinstance(certainty, int | float) or not 0.5 < certainty < 1:
            raise ValueError(f"certainty: got {certainty}, allowed is more than 0.5 and less than 1")
        self.n, self.flake_rate, self.certainty, self.seed = n, flake_rate, certainty, seed
        self.units = [np.array(sorted(unit)) for unit in units]
        self.given = symptom
        self.history: list[tuple[np.ndarray, str]] = []
        self._restart()

    def _restart(self) -> None:
        self.symptom = self._symptom()
        self.groups: Groups = ()  # of items, when done
        self.certain = 0.0
        self.done = False
        self.inseparable = False  # what is left hangs when it is taken apart
        size = math.ceil(len(self.units) / LARGEST)
        stages = 1 + any(len(unit) > 1 for unit in self.units) + (size > 1)
        self._enough = self.certainty ** (1 / stages)
        self._stage(0, [np.concatenate(self.units[i:i + size]) for i in range(0, len(self.units), size)])

    def _stage(self, depth: int, parts: list[np.ndarray]) -> None:
        self.depth, self.parts = depth, parts
        self.suspects = Suspects(len(parts), self.flake_rate, self.seed + depth)
        self.couplings = Couplings(len(parts), self.suspects.flake if self.flake_rate else 0.0)
        self.prefix: Prefix | None = None
        self._question: Question | None = None
        self._advance()

    def _symptom(self) -> str | None:
        if self.given:
            return self.given
        whole = self._whole()
        if whole:
            return whole
        outcomes = {outcome for _, outcome in self.history}
        return "fail" if "fail" in outcomes and "hang" not in outcomes else None

    def _whole(self) -> str | None:
        """What the bad job itself did when it was tried last, if it did not pass."""
        tried = [outcome for subset, outcome in self.history if subset.all() and outcome != "pass"]
        return tried[-1] if tried else None

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
        if self._question is None:
            self._question = self._next()
        return self._question

    def tell(self, subset: np.ndarray, outcome: str) -> None:
        """The outcome of a set of items ``(n,) bool``.

        Raises ValueError for an outcome that is none of pass, fail and hang.
        """
        if outcome not in ("pass", "fail", "hang"):
            raise ValueError(f"outcome: got {outcome!r}, allowed is one of pass, fail, hang")
        self.history.append((np.array(subset, bool), outcome))
        if self._symptom() != self.symptom:
            self._replay()
        else:
            self._take(*self.history[-1])

    def undo(self, count: int = 1) -> None:
        """Take the last outcomes back."""
        del self.history[-count:]
        self._replay()

    def _replay(self) -> None:
        self._restart()
        for subset, outcome in self.history:
            self._take(subset, outcome)

    def _take(self, subset: np.ndarray, outcome: str) -> None:
        """One outcome, for the stage as it is."""
        self._question = None
        if self.done:
            return
        inside = np.concatenate(self.parts)
        if np.any(np.delete(subset, inside)):
            return  # of a stage before, or asked by hand: other items were changed too
        changed = np.array([bool(subset[part].any()) for part in self.parts])
        if np.any(changed != np.array([bool(subset[part].all()) for part in self.parts])):
            return  # a part was taken apart
        if self.symptom == "hang":
            failed = outcome == "hang"
        else:
            self.couplings.tell(changed, outcome == "hang")
            if outcome == "hang" and self.prefix is None:
                self._advance()
                return
            failed = outcome == "fail"
        if self.prefix is not None:
            asked = self.prefix.ask()
            if asked is not None and np.array_equal(changed, asked):
                self.prefix.tell(failed)
        else:
            self.suspects.tell(changed, failed)
        self._advance()

    def _next(self) -> Question:
        if self.prefix is not None:
            chosen, reason = self.prefix.ask(), "no simple explanation fits: the smallest failing set, by halves"
        else:
            question = self.suspects.ask(self.couplings)
            assert question is not None
            chosen, reason = question.subset, self._why(question.subset, question.fails, question.hangs)
        assert chosen is not None
        return Question(self._spread(chosen), reason)

    def _why(self, chosen: np.ndarray, fails: float, hangs: float) -> str:
        name = "hang" if self.symptom == "hang" else "failure"
        told = f"{fails:.0%} expect a {name}, {self.suspects.bits:.1f} bits are open"
        if hangs > 0.05:
            told += f", may hang ({hangs:.0%})"
        if any(np.array_equal(chosen, before) for before, _ in self.suspects.told):
            return f"asked again, outcomes are wrong in {self.suspects.flake:.1%} of trials: {told}"
        return f"{'takes the guilty units apart: ' if self.depth else ''}{told}"

    def _advance(self) -> None:
        """On to the next stage, or to the end, where this one has said what it can."""
        if self.prefix is None and not self.suspects.explained:
            self.prefix = Prefix(len(self.parts), self.suspects.flake)
        if self.prefix is not None:
            if self.prefix.ask() is None:
                self._guilty(self.prefix.groups, 1 - 1e-3 * len(self.parts).bit_length())
            return
        best = self.suspects.top(1)[0]
        if best.probability >= self._enough:
            open_ = self._unseen(best.groups)
            if open_ is None:
                self._guilty(best.groups, best.probability)
            else:
                self._question = Question(self._spread(open_), "to see it happen: this and nothing else")
        elif self.suspects.ask(self.couplings) is None:
            self._guilty(best.groups, best.probability, tied=self.couplings.hangs > 0)

    def _unseen(self, groups: Groups) -> np.ndarray | None:
        """The parts of a group, and no others, that were not yet seen to do what is said of them."""
        wanted = [(np.isin(np.arange(len(self.parts)), group), True) for group in groups]
        for changed, failed in wanted or [(np.ones(len(self.parts), bool), False)]:
            if not any(np.array_equal(changed, before) and failed == was for before, was in self.suspects.told) \
                    and self.couplings.chance(changed) < 0.5:
                return changed
        return None

    def _spread(self, chosen: np.ndarray) -> np.ndarray:
        """Items of the parts that are chosen."""
        subset = np.zeros(self.n, bool)
        for index in np.flatnonzero(chosen):
            subset[self.parts[index]] = True
        return subset

    def _guilty(self, groups: Groups, probability: float, tied: bool = False) -> None:
        """Parts were found guilty: open those that hold several items, else that is the end."""
        if tied:
            together = {int(part): group for group in self.couplings.tied() for part in group}
            groups = tuple(tuple(sorted({int(one) for part in group for one in together[part]})) for group in groups)
        guilty = sorted({part for group in groups for part in group})
        if not tied and any(len(self.parts[part]) > 1 for part in guilty):
            opened = [piece for part in guilty for piece in self._opened(self.parts[part])]
            self.certain = probability if self.depth == 0 else self.certain * probability
            self._stage(self.depth + 1, opened)
            return
        self.groups = tuple(tuple(sorted(int(item) for part in group for item in self.parts[part]))
                            for group in groups)
        self.certain = probability if self.depth == 0 else self.certain * probability
        self.inseparable = tied
        self.done = True

    def _opened(self, part: np.ndarray) -> list[np.ndarray]:
        """What a part holds: units where it is a bundle of several, else items."""
        units = [unit for unit in self.units if len(unit) < len(part) and np.isin(unit, part).all()]
        return units if units else [np.array([item]) for item in part]

    @property
    def likely(self) -> list[tuple[Groups, float]]:
        """The most probable explanations, in items."""
        if self.done:
            return [(self.groups, self.certain)]
        return [(self._items(suspicion), suspicion.probability) for suspicion in self.suspects.top(5)]

    def _items(self, suspicion: Suspicion) -> Groups:
        return tuple(tuple(sorted(int(item) for part in group for item in self.parts[part]))
                     for group in suspicion.groups)

    @property
    def left(self) -> int:
        """About how many trials are left."""
        if self.done:
            return 0
        if self.prefix is not None:
            return max(1, 2 * math.ceil(math.log2(len(self.parts) + 1)))
        capacity = 1 - float(entropy(np.array(self.suspects.flake)))
        return max(1, math.ceil(self.suspects.bits / capacity))
