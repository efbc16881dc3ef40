"""The search for what breaks a job: whole units are tried first, then what each guilty one holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from npulab.bisection.couplings import Couplings
from npulab.bisection.kinds import Groups
from npulab.bisection.prefix import WRONG, Prefix
from npulab.bisection.suspects import Suspects, entropy

LARGEST = 220  # parts of one stage: more are bundled, and bundles opened like units
CERTAINTY = 0.99
TEARS = 3  # hangs of a guilty unit that is taken apart, and never runs so, until it is left whole
FEARED = 0.5  # a set that hangs more probably is not tried just to see what is known

Pieces = tuple[tuple[int, ...], ...]  # of one group: items that were changed together


@dataclass(frozen=True)
class Question:
    """What to change ``(n,) bool``, and why."""

    subset: np.ndarray
    reason: str


class Search:
    """Which of ``n`` items break it, ``units`` (lists of items) being kept whole as long as that says something.

    ``tell`` takes the outcome of any set of items: "pass", "fail" or "hang".  What is looked for is ``symptom``:
    what the bad job itself does; where that is not given it is "fail" until something hangs, which makes ``ask``
    ask for all items at once.  Raises ValueError for options out of their range.

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
        self.whole: set[tuple[int, ...]] = set()  # pieces that are not taken apart
        self.inseparable = False  # because they hang then
        self._found: list[Pieces] = []  # groups of pieces, some of which may have to be opened
        size = math.ceil(len(self.units) / LARGEST)
        bundles = [self.units[i:i + size] for i in range(0, len(self.units), size)]
        self._enough = self.certainty ** (1.0 if len(bundles) == self.n else 0.5)
        self._stages = 0
        self._stage([tuple(item for unit in bundle for item in unit) for bundle in bundles], ())

    def _stage(self, parts: Sequence[tuple[int, ...]], base: Sequence[int]) -> None:
        """Begin to search among parts, the items of ``base`` being changed in every trial."""
        self.parts = list(parts)
        self.base = np.isin(np.arange(self.n), base)
        self.suspects = Suspects(len(parts), self.flake_rate, self.seed + self._stages)
        self.couplings = Couplings(len(parts), self.suspects.flake if self.flake_rate != 0 else 0.0)
        self.prefix: Prefix | None = None
        self._question: Question | None = None
        self._torn = 0
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

    @property
    def groups(self) -> Groups:
        """The smallest sets of items that break it, as far as they are known: the answer when ``done``."""
        found = {tuple(sorted(item for piece in group for item in piece)) for group in self._found}
        return tuple(sorted(group for group in found if not any(set(other) < set(group) for other in found)))

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
        if self.done:
            return
        self._question = None
        inside = np.isin(np.arange(self.n), [item for part in self.parts for item in part])
        changed = np.array([bool(subset[list(part)].any()) for part in self.parts])
        if np.any((subset != self.base)[~inside]) \
                or np.any(changed != np.array([bool(subset[list(part)].all()) for part in self.parts])):
            return  # of a stage before, or asked by hand: it says nothing of these parts alone
        hung, failed = outcome == "hang", outcome == (self.symptom or "fail")
        if self.prefix is not None:
            asked = self.prefix.ask()
            if asked is not None and np.array_equal(changed, asked):
                self.prefix.tell(failed)
        elif self.symptom == "hang":
            self.suspects.tell(changed, failed)
        else:
            self.couplings.tell(changed, hung)
            if not hung:
                self.suspects.tell(changed, failed)
            if changed.any() and not changed.all():
                self._torn = self._torn + 1 if hung else -TEARS * LARGEST
        self._advance()

    def _next(self) -> Question:
        """What the stage asks for; it is not over."""
        if self.prefix is not None:
            chosen = self.prefix.ask()
            assert chosen is not None
            return self._changing(chosen, "no simple explanation fits: the smallest failing set, by halves")
        best = self.suspects.top(1)[0]
        if best.probability >= self._enough and (unseen := self._unseen(best.groups)) is not None:
            return self._changing(unseen, "to see it happen: this and nothing else")
        question = self.suspects.ask(self.couplings)
        if question is None:  # so little is open that no trial says more: the best explanation once more
            return self._changing(np.isin(np.arange(len(self.parts)), best.items), "to be more certain")
        return self._changing(question.subset, self._why(question.subset, question.fails, question.hangs))

    def _changing(self, chosen: np.ndarray, reason: str) -> Question:
        subset = self.base.copy()
        for index in np.flatnonzero(chosen):
            subset[list(self.parts[index])] = True
        return Question(subset, reason)

    def _why(self, chosen: np.ndarray, fails: float, hangs: float) -> str:
        what = "hang" if self.symptom == "hang" else "failure"
        told = f"{fails:.0%} expect a {what}, {self.suspects.bits:.1f} bits are open"
        if hangs > 0.05:
            told += f", may hang ({hangs:.0%})"
        if any(np.array_equal(chosen, before) for before, _ in self.suspects.told):
            return f"asked again, outcomes are wrong in {self.suspects.flake:.1%} of trials: {told}"
        return f"takes a guilty unit apart: {told}" if self._stages > 1 else told

    def _advance(self) -> None:
        """On to the next stage, or to the end, where this one has said what it can."""
        if self.prefix is None and not self.suspects.explained:
            self.prefix = Prefix(len(self.parts), self.suspects.flake)
        if self.prefix is not None:
            if self.prefix.ask() is None:
                self._end(self.prefix.groups, 1 - WRONG)
            return
        if self._stages > 1 and self._torn >= TEARS:
            self._end((tuple(range(len(self.parts))),), 1.0, whole=True)
            return
        best = self.suspects.top(1)[0]
        if best.probability >= self._enough:
            if self._unseen(best.groups) is None:
                self._end(best.groups, best.probability)
        elif self.couplings.hangs:
            asked = self.suspects.ask(self.couplings)
            if asked is None:
                self._end(self._with_tied(best.groups), best.probability, whole=True)
            else:
                self._question = self._changing(asked.subset, self._why(asked.subset, asked.fails, asked.hangs))

    def _unseen(self, groups: Groups) -> np.ndarray | None:
        """The parts of a group, and no others, that were not yet seen to do what is said of them."""
        sets = [(np.isin(np.arange(len(self.parts)), group), True) for group in groups]
        for changed, failed in sets or [(np.ones(len(self.parts), bool), False)]:
            if not any(np.array_equal(changed, before) and failed == was for before, was in self.suspects.told) \
                    and self.couplings.chance(changed) < FEARED:
                return changed
        return None

    def _with_tied(self, groups: Groups) -> Groups:
        """Groups of parts with all that cannot be told from them, since it hangs when it is taken apart."""
        together = {int(part): group.tolist() for group in self.couplings.tied() for part in group}
        return tuple(tuple(sorted({one for part in group for one in together.get(part, [part])})) for group in groups)

    def _end(self, groups: Groups, probability: float, whole: bool = False) -> None:
        """Parts were found guilty: on to open one of them that holds several items, else that is the end."""
        self.certain *= probability
        self.inseparable |= whole
        pieces = [tuple(self.parts[part] for part in group) for group in groups]
        if self._stages == 1:
            self._found = pieces
        else:
            self._found = self._opened(pieces, whole)
        at, piece = self._to_open()
        if piece is None:
            self.done = True
            self._question = None
            return
        several = sum(len(one) > 1 for group in self._found for one in group if one not in self.whole)
        self._enough = min(0.9999, (self.certainty / self.certain) ** (1 / (several + 1)))
        self._opening = at, piece
        inside = [unit for unit in self.units if set(unit) < set(piece)]
        self._stage(inside or [(item,) for item in piece],
                    [item for one in self._found[at] if one != piece for item in one])

    def _opened(self, pieces: list[Pieces], whole: bool) -> list[Pieces]:
        """The groups with the piece that was opened replaced by what was found in it."""
        at, piece = self._opening
        if whole or not pieces:
            # it hangs when it is taken apart, or nothing in it is guilty alone: it stays as it is
            self.whole.add(piece)
            return self._found
        rest = tuple(one for one in self._found[at] if one != piece)
        return [*self._found[:at], *((*rest, *found) for found in pieces), *self._found[at + 1:]]

    def _to_open(self) -> tuple[int, tuple[int, ...] | None]:
        """The first piece that holds several items, and the number of its group."""
        for number, group in enumerate(self._found):
            for piece in group:
                if len(piece) > 1 and piece not in self.whole:
                    return number, piece
        return 0, None

    @property
    def likely(self) -> list[tuple[Groups, float]]:
        """The most probable explanations, in items, best first."""
        if self.done:
            return [(self.groups, self.certain)]
        base = np.flatnonzero(self.base).tolist()
        return [(tuple(tuple(sorted([*base, *(item for part in group for item in self.parts[part])]))
                       for group in suspicion.groups), suspicion.probability) for suspicion in self.suspects.top(5)]

    @property
    def left(self) -> int:
        """About how many trials are left."""
        if self.done:
            return 0
        if self.prefix is not None:
            return max(1, 2 * math.ceil(math.log2(len(self.parts) + 1)))
        capacity = 1 - float(entropy(np.array(self.suspects.flake)))
        return max(1, math.ceil(self.suspects.bits / capacity))
