"""The search for what breaks a job: whole units are tried first, then what each guilty one holds,
then the answer is held against all that was tried."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from npulab.analysis.bisect import suspects
from npulab.analysis.bisect.couplings import TIED, Couplings
from npulab.analysis.bisect.evidence import Evidence, lead, subset_of
from npulab.analysis.bisect.kinds import MOST, Groups
from npulab.analysis.bisect.proof import (
    ALONE,
    SMALLER,
    SURPRISES,
    SUSPECTS_IT,
    Prover,
    Wanted,
    wanted_of,
)
from npulab.analysis.bisect.rivals import Rivals
from npulab.analysis.bisect.suspects import Suspects, entropy
from npulab.captures.journal import OUTCOMES

LARGEST = 220  # parts of one stage: more items are bundled, and guilty bundles opened
CERTAINTY = 0.99
PROVED = (
    0.9995  # certainty of a proof: wrong in 0 of 846 boards by lot that do not err (test_boards)
)
LIKELY = 0.5  # so probable an answer is tried to be proved, of a device that never errs
MERGED = 200  # explanations that are put together where some cannot be told apart
LATE = 4.0  # bits: with more open there is always something to ask
PATIENCE = 4  # times that a device that errs may do otherwise than an answer expects of one set
# an answer of a device that errs with so improbable many trials against it is tried to be proved
POOR = 0.05
# trials without a pass, where something unexpected is looked for, until the good job is run again
STREAK = 6
# runs of the good job in a row, after a failure, until the device counts as not coming back
RESTS = 3
UNKNOWN_RATE = 0.05  # flake rate in the tests of what is asked repeatedly, where nobody knows it
GOOD_AGAIN = "the good job failed: does it fail again?"
GOOD_STILL = "two trials contradict each other: does the good job still pass?"
TRIED_AGAIN = "two trials contradict each other: tried again, after a pass"
LEAVES = "does a failure leave a state? the good job right after one"
REPEATS = "does a failure leave a state? what fails, right after a failure"
BAD_ITSELF = "what does the bad job itself do?"
STILL = "does the good job still pass?"
GOOD_TOO = "everything seems to break it: does the good job pass?"
REST = "the good job, so that the next trial does not follow a failure"
FOUND, PASSES, OTHER, GOOD_FAILS, CONFLICT, GONE, STATE, MORE, UNEXPLAINED, UNSURE = (
    "found",
    "bad passes",
    "bad does something else",
    "good fails",
    "conflict",
    "does not come back",
    "keeps a state",
    "more may break it",
    "unexplained",
    "unsure",
)


@dataclass(frozen=True)
class Question:
    """What to change ``(n,) bool``, and why."""

    subset: np.ndarray
    reason: str


@dataclass(frozen=True)
class End:
    """How a search ended: ``how`` is one of the words above, ``trials`` are the numbers (from 0) of
    the trials that show it."""

    how: str
    trials: tuple[int, ...] = ()


class Search:
    """Which of ``n`` items break it, ``units`` (lists of items) being kept whole as long as that
    says something.

    ``tell`` takes the outcome of any set of items: "pass", "fail" or "hang".  What is looked for is
    ``symptom``: what the bad job itself does.  Where that is given, all items are tried first;
    where it is not, it is "fail" until something hangs, which makes ``ask`` ask for all items at
    once. Raises ValueError for options out of their range.

    >>> search = Search(6, [[0, 1], [2], [3, 4, 5]], seed=3)
    >>> while (question := search.ask()) is not None:
    ...     search.tell(question.subset, "fail" if question.subset[4] else "pass")
    >>> search.groups, search.end
    (((4,),), End(how='found', trials=()))
    """

    def __init__(
        self,
        n: int,
        units: Sequence[Sequence[int]],
        *,
        flake_rate: float | None = 0.0,
        certainty: float = CERTAINTY,
        symptom: str | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(certainty, int | float) or not 0.5 < certainty < 1:
            raise ValueError(
                f"certainty: got {certainty!r}, allowed is more than 0.5 and less than 1"
            )
        self.n, self.flake_rate, self.certainty, self.seed = n, flake_rate, certainty, seed
        self.units = [tuple(sorted(unit)) for unit in units]
        self.given = symptom
        self.history: list[tuple[np.ndarray, str]] = []
        self._restart()

    def _restart(self) -> None:
        self.end: End | None = None
        self.groups: Groups = ()  # the smallest sets of items that break it, when done
        self.inseparable = False  # taken apart they would hang
        self.hidden = False  # so much ends in another way that not all of the rest could be tried
        self.apart = False  # only trials that follow a pass count, since failures leave a state
        self._doubt: Generator[Wanted, str, End | None] | None = None
        self._doubted: Wanted | None = None
        self._begin()

    def _begin(self) -> None:
        """Begin to search, with nothing known."""
        self.symptom = self._symptom()
        self.certain = 1.0
        self._counted: list[int] = []  # numbers of the trials that count
        self._prover: Prover | None = None
        self._stages = 0
        self._stage(list(self.units) if self.n > LARGEST else [(item,) for item in range(self.n)])

    def _stage(self, parts: list[tuple[int, ...]]) -> None:
        """Begin to search among parts: lists of items that are changed together."""
        size = math.ceil(len(parts) / LARGEST)
        bundles = [parts[start : start + size] for start in range(0, len(parts), size)]
        self.parts = [tuple(item for part in bundle for item in part) for bundle in bundles]
        self._sizes = np.array([len(part) for part in self.parts])
        # the part of each item; the last number is that of no part
        self._part = np.full(self.n, len(self.parts))
        for number, part in enumerate(self.parts):
            self._part[list(part)] = number
        several = any(self._sizes > 1)
        self._enough = min(0.9999, (self.certainty / self.certain) ** (0.5 if several else 1.0))
        if not self.errs and not several:
            self._enough = LIKELY
        self.suspects = Suspects(len(self.parts), self.flake_rate, self.seed + self._stages)
        index = {part[0]: number for number, part in enumerate(self.parts) if len(part) == 1}
        units = [[index[item] for item in unit if item in index] for unit in self.units]
        self.couplings = Couplings(
            len(self.parts), self.suspects.flake if self.flake_rate != 0 else 0.0, units
        )
        self._tried: set[bytes] = (
            set()
        )  # sets of parts that need not be asked again, of an oracle that never errs
        self._told: list[tuple[np.ndarray, str]] = []  # what this stage was told, in parts
        self._question: Question | None = None
        self._silent = False  # no question parts what is left
        self._stages += 1

    def _symptom(self) -> str | None:
        if self.given:
            return self.given
        whole = [outcome for subset, outcome in self.history if subset.all() and outcome != "pass"]
        if whole:
            return whole[-1]
        outcomes = {outcome for _, outcome in self.history}
        return "fail" if "fail" in outcomes and "hang" not in outcomes else None

    @property
    def done(self) -> bool:
        return self.end is not None

    @property
    def errs(self) -> bool:
        """Whether outcomes may be wrong."""
        return self.flake_rate != 0

    @property
    def evidence(self) -> Evidence:
        """What the trials that count say."""
        return self._evidence_of(self._counted)

    @property
    def everything(self) -> Evidence:
        """What all trials say."""
        return self._evidence_of(range(len(self.history)))

    def _evidence_of(self, numbers: Sequence[int]) -> Evidence:
        rate = UNKNOWN_RATE if self.flake_rate is None else self.flake_rate
        return Evidence.of(
            [self.history[number] for number in numbers], self.n, self.symptom or "fail", rate
        )

    # ------------------------------------------------------------------------------------------------------
    # asking

    def ask(self) -> Question | None:
        """The next set to try; None when the search is done."""
        while self.end is None:
            question = self._next()
            if question is not None:
                return question
            self._advance()
        return None

    def _next(self) -> Question | None:
        """What to try now; None where there is no question left before the next step."""
        if self._doubted is not None:
            return Question(self._doubted.subset, self._doubted.reason)
        if self._asks_for_bad():
            reason = BAD_ITSELF
            if self.given is None:
                reason = f"it hangs: {BAD_ITSELF}"
            return Question(np.ones(self.n, bool), reason)
        if self._refuted:
            return None
        if self.apart and self.history[-1][1] != "pass":
            return Question(np.zeros(self.n, bool), REST)
        if not self.errs and self._good_failed_last():
            return Question(np.zeros(self.n, bool), GOOD_AGAIN)
        if self._prover is not None:
            wanted = self._prover.wanted
            if wanted is None or wanted.reason != ALONE:
                wanted = self._remembering() or self._bad_itself() or wanted
            return None if wanted is None else Question(wanted.subset, wanted.reason)
        return self._asked_or_silent()

    def _asks_for_bad(self) -> bool:
        """Whether it has to be known first what the bad job does."""
        whole = [outcome for subset, outcome in self.history if subset.all()]
        if self.given is None:
            return (
                self.symptom is None
                and not whole
                and any(outcome == "hang" for _, outcome in self.history)
            )
        return self._votes(whole, self.given) is None

    @property
    def _refuted(self) -> bool:
        """Whether the bad job does not show the symptom that is asked about."""
        whole = self._outcomes_of(np.ones(self.n, bool))
        return self.given is not None and self._votes(whole, self.given) is False

    def _votes(self, outcomes: Sequence[str], outcome: str) -> bool | None:
        """Whether repeated trials show an outcome, None as long as that is open."""
        if not outcomes:
            return None
        if not self.errs:
            return outcomes[-1] == outcome
        ahead = lead(outcomes, outcome)
        needed = 1 if ahead > 0 else 3  # that BAD does not show it ends the search
        return None if abs(ahead) < needed else ahead > 0

    def _asked(self) -> Question | None:
        """What the stage asks for."""
        groups, probability = self._proposal()
        if not self.suspects.explained:
            return None
        if self._silent or probability >= self._enough:
            if () in groups and not self._good_fails():
                return Question(np.zeros(self.n, bool), GOOD_TOO)
            wanted = None
            if self.errs:
                wanted = self._unseen(groups)
            if wanted is None or len(self._in_parts.seen(wanted.subset)) >= self._patience:
                return None
            return self._changing(wanted.subset, wanted.reason)
        question = self.suspects.ask(
            self.couplings if self.symptom != "hang" else None, self._tried
        )
        return self._explained(question) if question else None

    @property
    def _patience(self) -> int:
        """How often a device that errs is asked for one set before an answer: as often as the
        certainty takes, and ``PATIENCE`` more."""
        flake = self.suspects.flake
        odds = math.log((1 - flake) / flake)
        return PATIENCE + math.ceil(-math.log(1 - self._enough) / odds)

    def _proposal(self) -> tuple[Groups, float]:
        """The most probable explanation, in parts, and how probable it is."""
        best = self.suspects.top(1)[0]
        if (
            self._silent
            and best.probability < self._enough
            and self.couplings.known
            and self.symptom != "hang"
        ):
            return self._as_far_as_it_goes()
        return best.groups, best.probability

    @property
    def _in_parts(self) -> Evidence:
        """What this stage was told, in parts."""
        return Evidence.of(self._told, len(self.parts), self.symptom or "fail")

    def _unseen(self, groups: Groups) -> Wanted | None:
        """What an answer of the stage, of a device that errs, has not shown yet, or not often
        enough.
        """
        hiding = self._hiding()
        wanted = wanted_of(self._in_parts, len(self.parts), groups, hiding)
        if wanted is not None:
            return wanted
        if not groups:
            everything = np.ones(len(self.parts), bool)
            passes = lead(self._in_parts.seen(everything), "pass")
            return None if passes >= RESTS else Wanted(everything, SUSPECTS_IT)
        if () in groups:
            return None
        rivals = self._rivals(groups)
        if rivals.certainty >= self._enough:
            return None
        subset = rivals.wanted(self._in_parts, hiding)
        return None if subset is None else Wanted(subset, SUSPECTS_IT)

    def _good_fails(self) -> bool:
        """Whether the good job was seen to fail often enough: in the last trials, one after the
        other,
        or in more trials than it passed where outcomes may be wrong."""
        nothing = np.zeros(self.n, bool)
        if self.errs:
            seen = self.evidence.seen(nothing)
            return lead(seen, self.symptom or "fail") >= RESTS
        last = self.history[-RESTS:]
        fails = [outcome != "pass" and not subset.any() for subset, outcome in last]
        return len(last) == RESTS and all(fails)

    def _rivals(self, groups: Groups) -> Rivals:
        """The answers that resemble an answer of the stage, of a device that errs."""
        return Rivals.of(self._in_parts, groups, self.suspects.flake, self._hiding())

    def _changing(self, chosen: np.ndarray, reason: str) -> Question:
        subset = np.zeros(self.n, bool)
        subset[np.append(chosen, False)[self._part]] = True
        return Question(subset, reason)

    def _explained(self, question: suspects.Question) -> Question:
        """A question of the suspects, with the reason for it."""
        chosen = question.subset
        if self.symptom == "hang":
            what = "hang"
        else:
            what = "failure"
        reason = f"{question.fails:.0%} expect a {what}, {self.suspects.bits:.1f} bits are open"
        if question.hangs > 0.05:
            reason += f", may hang ({question.hangs:.0%})"
        if any(np.array_equal(chosen, before) for before, _ in self.suspects.told):
            reason = (
                f"asked again, outcomes are wrong in {self.suspects.flake:.1%} of trials: {reason}"
            )
        elif any(0 < np.count_nonzero(chosen[unit]) < len(unit) for unit in self.couplings.units):
            reason = f"takes what belongs together apart: {reason}"
        return self._changing(chosen, reason)

    def _remembering(self) -> Wanted | None:
        """What to try to see whether a failure changes the outcome of the run after it.

        A device whose next run fails too, or passes whatever it is, may agree with a wrong answer
        in each trial.  It is seen in a trial that passes right after a failure which followed a
        pass, and in one that fails right after a failure.  None where both were seen, and where
        there is one part alone.  A device that hung is reset, so only that it passes in the end is
        looked at.
        """
        broke = self.evidence.changed[self.evidence.broke]
        if self.errs or self.apart or self.n == 1 or not len(broke):
            return None
        outcomes, clears, repeats = self._follows()
        if self.symptom == "hang":
            clears = repeats = True
        if not repeats:
            return Wanted(self._breaking(), REPEATS)
        wanted = None
        if self._prover:
            wanted = self._prover.wanted
        if wanted is not None and wanted.reason not in SURPRISES:
            return None  # what is asked next may show the rest
        if not clears and outcomes[-1] == "pass":
            return Wanted(self._breaking(), REPEATS)
        if not clears:
            return Wanted(np.zeros(self.n, bool), LEAVES)
        if wanted:
            recent = outcomes[-STREAK:]
        else:
            recent = outcomes[-1:]
        if not wanted and self.history[-1][0].all():
            recent = outcomes[-2:]  # that BAD fails proves nothing of its parts
        return None if "pass" in recent else Wanted(np.zeros(self.n, bool), STILL)

    def _follows(self) -> tuple[list[str], bool, bool]:
        """All outcomes, after one of the good job that is taken to pass; whether a trial passed
        right
        after a failure that followed a pass, and whether one failed right after a failure."""
        outcomes = ["pass", *(outcome for _, outcome in self.history)]
        trios = list(zip(outcomes, outcomes[1:], outcomes[2:], strict=False))
        clears = any(first == last == "pass" != middle for first, middle, last in trios)
        repeats = any(middle != "pass" and last == self.symptom for _, middle, last in trios)
        return outcomes, clears, repeats

    def _good_failed_last(self) -> bool:
        """Whether the last trial was the good job, which did not pass."""
        if not self.history:
            return False
        subset, outcome = self.history[-1]
        return outcome != "pass" and not subset.any()

    def _bad_itself(self) -> Wanted | None:
        """The bad job, if it did not run yet: a device that passes it has nothing to be found.

        It is run last, unless what a failure leaves has been seen already; else it is what shows
        that (``_breaking``).
        """
        everything = np.ones(self.n, bool)
        if self.errs or self.everything.seen(everything):
            return None
        outcomes, clears, repeats = self._follows()
        between = outcomes[-1] != "pass" and clears and repeats
        last = self._prover is None or self._prover.wanted is None
        return Wanted(everything, BAD_ITSELF) if last or between else None

    def _breaking(self) -> np.ndarray:
        """A set that breaks it if a smaller one did: everything, with as many items as it takes
        left
        out to be a set that was not tried."""
        evidence = self.evidence
        smallest = evidence.changed[evidence.broke]
        smallest = smallest[int(np.argmin(smallest.sum(axis=1)))]
        subset = np.ones(self.n, bool)
        for item in [None, *np.flatnonzero(~smallest)]:
            if item is not None:
                subset[item] = False
            if not evidence.seen(subset):
                return subset
        return smallest

    # -----------------------------------------------------------------------------------------------------
    # telling

    def tell(self, subset: np.ndarray, outcome: str) -> None:
        """The outcome of a set of items ``(n,) bool``.

        Raises ValueError for an outcome that is none of pass, fail and hang.
        """
        if outcome not in OUTCOMES:
            raise ValueError(f"outcome: got {outcome!r}, allowed is one of {', '.join(OUTCOMES)}")
        self.history.append((np.array(subset, bool), outcome))
        self._catch_up()

    def undo(self, count: int = 1) -> None:
        """Take the last outcomes back."""
        history = self.history[:-count]
        self.history = []
        self._restart()
        for trial in history:
            self.history.append(trial)
            self._catch_up()

    def _catch_up(self) -> None:
        was, now = self.symptom, self._symptom()
        if "hang" in (was, now) and was != now:
            self._count_again()
        else:
            self.symptom = now
            self._take(len(self.history) - 1)

    def _count_again(self) -> None:
        """Begin anew with the trials that there are, as far as they count."""
        self._begin()
        for number in range(len(self.history)):
            self._count(number)

    def _take(self, number: int) -> None:
        """One more trial of the history."""
        if self.end is not None:
            return
        subset, outcome = self.history[number]
        if self._doubted is not None:
            if np.array_equal(subset, self._doubted.subset):
                self._settle(outcome)
            return
        if self._count(number) and not self.errs:
            conflict = self.evidence.conflict()
            if conflict is not None:
                self._contradicted(conflict)
        self._coming_back()

    def _count(self, number: int) -> bool:
        """Take a trial in, if it counts."""
        subset, outcome = self.history[number]
        if self.apart and number > 0 and self.history[number - 1][1] != "pass":
            return False
        self._counted.append(number)
        self._stage_takes(subset, outcome)
        if self._prover is not None:
            self._prover.follow(self.evidence)
        if self._prover is not None and not self.errs:
            wanted = self._prover.wanted
            wrong = self._prover.refuted or (wanted is not None and wanted.reason == SMALLER)
            if wrong and self.suspects.explained:
                self._prover = (
                    None  # the suspects know it by now, and find what else there is in fewer trials
                )
        return True

    def _stage_takes(self, subset: np.ndarray, outcome: str) -> None:
        """One outcome, for the stage as it is."""
        if self._question is None and self._prover is None and self.suspects.bits < LATE:
            # where a journal is read again: what ended a stage may have been that nothing was left
            # to ask
            while self._prover is None and self.end is None and self._asked_or_silent() is None:
                self._advance()
        self._question, self._silent = None, False
        counts = np.bincount(self._part[subset], minlength=len(self.parts) + 1)
        changed = counts[:-1] > 0
        if counts[-1] or np.any(changed & (counts[:-1] < self._sizes)):
            return  # of a stage before, or asked by hand: it says nothing of these parts alone
        if not self.errs:
            self._tried.add(changed.tobytes())
        self._told.append((changed, outcome))
        failed = outcome == (self.symptom or "fail")
        if self.symptom == "hang":
            self.suspects.tell(changed, failed)
            return
        hung = outcome == "hang"
        self.couplings.tell(changed, hung)
        if not hung or self._always_hangs(changed):
            self.suspects.tell(changed, failed)

    def _always_hangs(self, changed: np.ndarray) -> bool:
        """Whether a set is one part that hung in each trial: what hangs so is not what fails alone.

        One that did not hang with others is torn apart from what belongs to it.
        """
        if np.count_nonzero(changed) != 1:
            return False
        (part,) = np.flatnonzero(changed)
        return all(outcome == "hang" for subset, outcome in self._told if subset[part])

    def _asked_or_silent(self) -> Question | None:
        """What the stage asks for; where no trial says which of the explanations it is, what the
        most probable one has not shown yet."""
        if self._question is None:
            self._question = self._asked()
            if self._question is None and not self._silent:
                self._silent = True
                self._question = self._asked()
        return self._question

    # ------------------------------------------------------------------------------------------------------
    # ending

    def _advance(self) -> None:
        """On to the next stage, the proof, or the end, where there is no question left."""
        if self._refuted:
            whole = self._numbers_of(np.ones(self.n, bool))
            passes = self.history[whole[-1]][1] == "pass"
            self._finish((), End(PASSES if passes else OTHER, whole))
        elif self._prover is not None:
            self._proved(self._prover)
        else:
            self._stage_ends()

    def _stage_ends(self) -> None:
        """The stage has said what it can: on to what the guilty parts hold, or to the end."""
        groups, probability = self._proposal()
        explained = self.suspects.explained
        guilty = sorted({part for group in groups for part in group})
        if explained and any(self._sizes[guilty] > 1):
            self.certain *= min(probability, 1.0)
            self._stage([inner for part in guilty for inner in self._opened(self.parts[part])])
            return
        nothing = np.zeros(self.n, bool)
        many = (
            len(guilty) >= MOST and len(self.parts) > MOST
        )  # there may be more than an explanation holds
        inside = self._inside(groups)
        if () in inside and self._good_fails():
            self._finish(((),), End(GOOD_FAILS, self._numbers_of(nothing)))
        elif (
            self.errs
            and explained
            and not many
            and self._unseen(groups) is None
            and self._fits(inside)
        ):
            rivals = 1.0
            if inside:
                rivals = self._rivals(groups).certainty
            self.certain *= min(probability, rivals)
            self._weighed(inside)
        else:
            self._prove(inside if explained else (), probability)

    def _fits(self, groups: Groups) -> bool:
        """Whether an answer is contradicted no more often than a device errs."""
        return not self.everything.improbable(groups, POOR)

    def _inside(self, groups: Groups) -> Groups:
        """Groups of parts as groups of the items that the parts hold."""
        return tuple(
            tuple(sorted(item for part in group for item in self.parts[part])) for group in groups
        )

    def _prove(self, groups: Groups, probability: float) -> None:
        """Begin to try what the proof of these groups needs."""
        self.certain *= min(probability, 1.0)
        hiding = [self.parts[part][0] for part in self._hiding() if self._sizes[part] == 1]
        self._prover = Prover(self.n, [group for group in groups if group], hiding)
        self._prover.follow(self.evidence)

    def _proved(self, prover: Prover) -> None:
        """The end of a proof."""
        proof = prover.proof
        assert proof is not None
        self.hidden = proof.hidden
        if self.errs:
            self.certain = (1 - self.evidence.misled) ** self.evidence.voted
        elif not proof.hidden:
            self.certain = PROVED
        if not proof.groups:
            self._weighed(())
        elif not proof.complete:
            self._finish(proof.groups, End(MORE))
        else:
            self._weighed(proof.groups)

    def _weighed(self, groups: Groups) -> None:
        """The end with an answer, held against every trial there is."""
        nothing, everything = np.zeros(self.n, bool), np.ones(self.n, bool)
        against = tuple(self.everything.against(groups))
        if () in groups:
            self._finish(((),), End(GOOD_FAILS, self._numbers_of(nothing)))
        elif self.apart and against:
            self._finish(groups, End(STATE, against))
        elif self.everything.improbable(groups):
            self._finish(groups, End(UNEXPLAINED, against))
        elif not groups:
            self._finish((), End(PASSES, self._numbers_of(everything)))
        elif self.certain < self.certainty:
            self._finish(groups, End(UNSURE, against))
        else:
            self._finish(groups, End(FOUND, against))

    def _finish(self, groups: Groups, end: End) -> None:
        self.groups = tuple(sorted(groups))
        self.inseparable = self._hang_alone(self.groups)
        self.end = end
        self._question = None

    def _hang_alone(self, groups: Groups) -> bool:
        """Whether a part of a group was tried alone and hung, where a failure is searched for."""
        if self.symptom == "hang":
            return False
        members = [item for group in groups if len(group) > 1 for item in group]
        return any("hang" in self._outcomes_of(subset_of({item}, self.n)) for item in members)

    def _outcomes_of(self, subset: np.ndarray) -> list[str]:
        return [self.history[number][1] for number in self._numbers_of(subset)]

    def _numbers_of(self, subset: np.ndarray) -> tuple[int, ...]:
        """The trials of exactly this set."""
        return tuple(
            number
            for number, (before, _) in enumerate(self.history)
            if np.array_equal(before, subset)
        )

    def _opened(self, part: tuple[int, ...]) -> list[tuple[int, ...]]:
        """What a bundle holds: units where it holds several and all items would be too many, else
        items."""
        units = [unit for unit in self.units if set(unit) < set(part)]
        return units if units and len(part) > LARGEST else [(item,) for item in part]

    def _hiding(self) -> list[int]:
        """Parts that are suspect to hang whatever else changes."""
        if self.symptom == "hang":
            return []
        return np.flatnonzero(self.couplings.suspect[-1, :-1] > TIED).tolist()

    def _as_far_as_it_goes(self) -> tuple[Groups, float]:
        """The most probable explanation where those are one that cannot be told apart without a
        hang."""
        together = {int(part): group.tolist() for group in self.couplings.tied() for part in group}
        merged: dict[Groups, float] = {}
        for one in self.suspects.top(MERGED):
            groups = {
                tuple(sorted({other for part in group for other in together.get(part, [part])}))
                for group in one.groups
            }
            least = tuple(
                sorted(
                    group
                    for group in groups
                    if not any(set(other) < set(group) for other in groups)
                )
            )
            merged[least] = merged.get(least, 0.0) + one.probability
        return max(merged.items(), key=lambda pair: pair[1])

    # ------------------------------------------------------------------------------- trials that
    # contradict each other

    def _contradicted(self, conflict: tuple[int, int]) -> None:
        """Two trials contradict each other: ask whether that comes from what a run before left."""
        numbers = (self._counted[conflict[0]], self._counted[conflict[1]])
        if self.apart:
            self._finish((), End(CONFLICT, numbers))
            return
        self._doubt = self._asks_again(*numbers)
        self._doubted = next(self._doubt)

    def _asks_again(self, broke: int, passed: int) -> Generator[Wanted, str, End | None]:
        """Both trials once more, each after a pass of the good job; None where the device keeps
        a state.
        """
        for number in (broke, passed):
            rested = False
            for _ in range(RESTS):
                outcome = yield Wanted(np.zeros(self.n, bool), GOOD_STILL)
                if outcome == "pass":
                    rested = True
                    break
            if not rested:
                return End(GONE, tuple(range(len(self.history) - RESTS, len(self.history))))
            subset, before = self.history[number]
            if (yield Wanted(subset, TRIED_AGAIN)) != before:
                return None
        return End(CONFLICT, (broke, passed))

    def _settle(self, outcome: str) -> None:
        """The outcome of what the doubt asked."""
        assert self._doubt is not None
        try:
            self._doubted = self._doubt.send(outcome)
        except StopIteration as stopped:
            self._doubt = self._doubted = None
            if stopped.value is not None:
                self._finish((), stopped.value)
                return
            self.apart = True
            self._count_again()
            conflict = self.evidence.conflict()
            if conflict is not None:
                self._contradicted(conflict)

    def _coming_back(self) -> None:
        """The end where the good job fails time and again."""
        last = self.history[-RESTS:]
        if (
            self.errs
            or len(last) < RESTS
            or any(outcome == "pass" or subset.any() for subset, outcome in last)
        ):
            return
        passed = any(outcome == "pass" for _, outcome in self.history)
        good = self._numbers_of(np.zeros(self.n, bool))
        fails = tuple(number for number in good if self.history[number][1] != "pass")
        if passed:
            self._finish((), End(GONE, fails))
        else:
            self._finish(((),), End(GOOD_FAILS, fails))

    # ------------------------------------------------------------------------------------------------------
    # looking

    @property
    def likely(self) -> list[tuple[Groups, float]]:
        """The most probable explanations, in items, best first."""
        if self.end is not None:
            return [(self.groups, self.certain)] if self.end.how == FOUND else []
        return [(self._inside(one.groups), one.probability) for one in self.suspects.top(5)]

    @property
    def left(self) -> int:
        """About how many trials are left."""
        if self.ask() is None:
            return 0
        if self._prover is not None:
            return 2
        capacity = 1 - float(entropy(np.array(self.suspects.flake)))
        return max(1, math.ceil(self.suspects.bits / capacity)) + 2
