"""The search for what breaks a job. First whole units are tried, then the items of each guilty
unit; then the answer is compared with all trials.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy import ndarray as Array

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
from npulab.captures.journal import ANSWERS, REFUSED

# A stage has at most this many parts. If there are more items, a part is a bundle of items, and a
# later stage searches inside the guilty bundles.
LARGEST = 220
# A search ends when its answer has this probability, unless the user asks for another one. One
# wrong answer in a hundred is assumed to be rare enough for a person to go on with it.
CERTAINTY = 0.99
# The certainty of a proved answer: none was wrong on 846 random boards that never err
# (test_boards).
PROVED = 0.9995
# If the device never errs, the proof of an answer begins once the answer has this probability.
LIKELY = 0.5
# At most this many explanations are compared to find those that no trial distinguishes.
MERGED = 200
# While the entropy of the explanations is higher (in bits), a stage cannot be over.
LATE = 4.0
# If the device errs, the outcomes of a set may disagree, so it gets this many further trials.
PATIENCE = 4
# If the device errs, an answer needs a proof if the probability is below this that errors cause
# the trials that contradict it.
POOR = 0.05
# While an unexpected failure is traced, the good job runs again after this many trials without a
# pass.
STREAK = 6
# If the good job fails this many times in a row, the device counts as not coming back.
RESTS = 3
# The flake rate of sequential tests if none is known.
UNKNOWN_RATE = 0.05
# If a question hangs with a higher probability, its reason names the probability.
FEARED = 0.05
GOOD_AGAIN = "the good job failed: does it fail again?"
GOOD_STILL = "two trials contradict each other: does the good job still pass?"
TRIED_AGAIN = "two trials contradict each other: one of them again, right after a pass"
LEAVES = "does a failure leave a state? the good job, right after a failure"
REPEATS = "does a failure leave a state? a job that should fail, right after a failure"
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
    """The set of items to change next ``(n,) bool``, and the reason."""

    subset: Array
    reason: str


@dataclass(frozen=True)
class End:
    """The end of a search.

    ``how`` is one of the constants FOUND to UNSURE of this module; ``trials`` are the numbers, from
    0, of the trials that show the end.
    """

    how: str
    trials: tuple[int, ...] = ()


class Search:
    """The search for those of n items that break a job. The items of each of ``units`` (lists of
    items) are changed together as long as a trial of the whole unit helps.

    ``tell`` takes the outcome of any set of items: "pass", "fail" or "hang", or "refused" for a set
    that may not be run, so that its outcome stays unknown. ``symptom`` is the outcome of the bad
    job. If it is given, the set of all items is tried first. If not, the search assumes "fail"
    until a trial hangs; then ``ask`` returns all items, to see how the bad job ends. Raises
    ValueError for options out of their range.

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
        self.history: list[tuple[Array, str]] = []
        self._restart()

    def _restart(self) -> None:
        self.end: End | None = None
        # the smallest sets of items that break the job
        self.groups: Groups = ()
        # True if an item of a group of several hangs if it is changed alone
        self.inseparable = False
        # True if some items could not be tried, because too many sets hide the symptom
        self.hidden = False
        # True if only trials right after a pass count, because a failure leaves a state
        self.apart = False
        self._doubt: Generator[Wanted, str, End | None] | None = None
        self._doubted: Wanted | None = None
        self._begin()

    def _begin(self) -> None:
        """Begin the search again: no trial counts yet."""
        self.symptom = self._symptom()
        self.certain = 1.0
        self._counted: list[int] = []  # numbers of the trials that count
        self._prover: Prover | None = None
        self._stages = 0
        parts = list(self.units)
        if self.n <= LARGEST:
            parts = [(item,) for item in range(self.n)]
        self._stage(parts)

    def _stage(self, parts: list[tuple[int, ...]]) -> None:
        """Begin a stage: a search among ``parts``, which are lists of items that are changed
        together.
        """
        size = math.ceil(len(parts) / LARGEST)
        self.parts: list[tuple[int, ...]] = []
        for start in range(0, len(parts), size):
            self.parts.append(tuple(chain.from_iterable(parts[start : start + size])))
        self._sizes = np.array([len(part) for part in self.parts])
        # for each item: the number of its part; ``len(parts)`` if the item is in no part
        self._part = np.full(self.n, len(self.parts))
        for number, part in enumerate(self.parts):
            self._part[list(part)] = number
        wanted = self.certainty / self.certain
        if any(self._sizes > 1):
            # the next stage, inside the parts, has an equal share: the product of both is the
            # wanted certainty
            wanted **= 0.5
        elif not self.errs:
            wanted = LIKELY
        self._enough = min(0.9999, wanted)
        self.suspects = Suspects(len(self.parts), self.flake_rate, self.seed + self._stages)
        single = np.append(self._sizes == 1, False)
        units = []
        for unit in self.units:
            numbers = self._part[list(unit)]
            units.append(numbers[single[numbers]].tolist())
        flake = 0.0
        if self.errs:
            flake = self.suspects.flake
        self.couplings = Couplings(len(self.parts), flake, units)
        # sets of parts that were tried: if the device never errs, they are not tried again
        self._tried: set[bytes] = set()
        self._of_stage: list[tuple[Array, str]] = []  # the stage's trials: parts, outcome
        self._question: Question | None = None
        self._silent = False  # True if no trial distinguishes the remaining explanations
        self._stages += 1

    def _symptom(self) -> str | None:
        if self.given:
            return self.given
        whole = []
        for subset, outcome in self.history:
            if subset.all() and outcome not in ("pass", REFUSED):
                whole.append(outcome)
        if whole:
            return whole[-1]
        outcomes = {outcome for _, outcome in self.history}
        if "fail" in outcomes and "hang" not in outcomes:
            return "fail"
        return None

    @property
    def _none(self) -> Array:
        """The empty set, which is the good job."""
        return np.zeros(self.n, bool)

    @property
    def _all(self) -> Array:
        """The set of all items, which is the bad job."""
        return np.ones(self.n, bool)

    @property
    def done(self) -> bool:
        return self.end is not None

    @property
    def errs(self) -> bool:
        """True if outcomes may be wrong."""
        return self.flake_rate != 0

    @property
    def evidence(self) -> Evidence:
        """The evidence of the trials that count."""
        return self._evidence_of(self._counted)

    @property
    def everything(self) -> Evidence:
        """The evidence of all trials."""
        return self._evidence_of(range(len(self.history)))

    def _evidence_of(self, numbers: Sequence[int]) -> Evidence:
        rate = self.flake_rate
        if rate is None:
            rate = UNKNOWN_RATE
        trials = [self.history[number] for number in numbers]
        return Evidence.of(trials, self.n, self.symptom or "fail", rate)

    # ------------------------------------------------------------------------------------------
    # asking

    def ask(self) -> Question | None:
        """Return the next set to try; None when the search is done."""
        while self.end is None:
            question = self._next()
            if question is not None:
                return question
            self._advance()
        return None

    def _next(self) -> Question | None:
        """Return the next set to try in the present step of the search; None at its end."""
        if self._doubted is not None:
            return Question(self._doubted.subset, self._doubted.reason)
        if self._asks_for_bad():
            reason = BAD_ITSELF
            if self.given is None:
                reason = f"it hangs: {BAD_ITSELF}"
            return Question(self._all, reason)
        if self._refuted:
            return None
        if self.apart and self.history[-1][1] != "pass":
            return Question(self._none, REST)
        if not self.errs and self._good_failed_last():
            return Question(self._none, GOOD_AGAIN)
        if self._prover is not None:
            wanted = self._prover.wanted
            if wanted is None or wanted.reason != ALONE:
                wanted = self._remembering() or self._bad_itself() or wanted
            if wanted is None:
                return None
            return Question(wanted.subset, wanted.reason)
        return self._asked_or_silent()

    def _asks_for_bad(self) -> bool:
        """True if the bad job has to run before anything else can be asked."""
        whole = [outcome for subset, outcome in self.history if subset.all()]
        if self.given is None:
            hung = any(outcome == "hang" for _, outcome in self.history)
            return self.symptom is None and not whole and hung
        return self._votes(whole, self.given) is None

    @property
    def _refuted(self) -> bool:
        """True if the bad job ran and does not show the symptom that the user gave."""
        whole = self._outcomes_of(self._all)
        return self.given is not None and self._votes(whole, self.given) is False

    def _votes(self, outcomes: Sequence[str], outcome: str) -> bool | None:
        """True if most of ``outcomes`` are ``outcome``, False if the others lead by at least three;
        else None. If the device never errs, the last outcome decides.
        """
        if not outcomes:
            return None
        if not self.errs:
            return outcomes[-1] == outcome
        ahead = lead(outcomes, outcome)
        if ahead > 0:
            return True
        # False ends the search with "BAD does not show the symptom", so it needs a lead of three
        if ahead <= -3:
            return False
        return None

    def _asked(self) -> Question | None:
        """Return the next question of the present stage; None if it has none."""
        groups, probability = self._proposal()
        if not self.suspects.explained:
            return None
        if self._silent or probability >= self._enough:
            if () in groups and not self._good_fails():
                return Question(self._none, GOOD_TOO)
            wanted = None
            if self.errs:
                wanted = self._unseen(groups)
            if wanted is None or len(self._in_parts.seen(wanted.subset)) >= self._patience:
                return None
            return self._changing(wanted.subset, wanted.reason)
        couplings = None
        if self.symptom != "hang":
            couplings = self.couplings
        question = self.suspects.ask(couplings, self._tried)
        if question is None:
            return None
        return self._explained(question)

    @property
    def _patience(self) -> int:
        """The most trials of one set: as many as reach the stage's certainty if all outcomes agree,
        plus ``PATIENCE``. Then the search goes on with its answer.
        """
        flake = self.suspects.flake
        odds = math.log((1 - flake) / flake)
        return PATIENCE + math.ceil(-math.log(1 - self._enough) / odds)

    def _proposal(self) -> tuple[Groups, float]:
        """Return the most probable explanation as groups of parts, and its probability."""
        best = self.suspects.top(1)[0]
        unsure = self._silent and best.probability < self._enough
        if unsure and self.couplings.known and self.symptom != "hang":
            return self._merged_proposal()
        return best.groups, best.probability

    @property
    def _in_parts(self) -> Evidence:
        """The evidence of the trials of this stage; its items are the parts."""
        return Evidence.of(self._of_stage, len(self.parts), self.symptom or "fail")

    def _unseen(self, groups: Groups) -> Wanted | None:
        """If the device errs, return a set that was not tried yet or not often enough to report the
        answer ``groups`` of the stage; None if there is none.
        """
        hiding = self._hiding()
        wanted = wanted_of(self._in_parts, len(self.parts), groups, hiding)
        if wanted is not None:
            return wanted
        if not groups:
            everything = np.ones(len(self.parts), bool)
            if lead(self._in_parts.seen(everything), "pass") >= RESTS:
                return None
            return Wanted(everything, SUSPECTS_IT)
        if () in groups:
            return None
        rivals = self._rivals(groups)
        if rivals.certainty >= self._enough:
            return None
        subset = rivals.wanted(self._in_parts, hiding)
        if subset is None:
            return None
        return Wanted(subset, SUSPECTS_IT)

    def _good_fails(self) -> bool:
        """True if the good job failed so often that it cannot be an error: in each of the last
        ``RESTS`` trials or, if the device errs, in ``RESTS`` more trials than it did not.
        """
        nothing = self._none
        if self.errs:
            seen = self.evidence.seen(nothing)
            return lead(seen, self.symptom or "fail") >= RESTS
        return self._good_failed_in_a_row()

    def _good_failed_in_a_row(self) -> bool:
        """True if each of the last ``RESTS`` trials was the good job and did not pass."""
        last = self.history[-RESTS:]
        fails = sum(outcome != "pass" and not subset.any() for subset, outcome in last)
        return fails == RESTS

    def _rivals(self, groups: Groups) -> Rivals:
        """Return the answers that resemble the answer ``groups`` of the stage, for a device that
        errs.
        """
        return Rivals.of(self._in_parts, groups, self.suspects.flake, self._hiding())

    def _changing(self, chosen: Array, reason: str) -> Question:
        return Question(np.append(chosen, False)[self._part], reason)

    def _explained(self, question: suspects.Question) -> Question:
        """Return the question of the suspects as a set of items, with the reason in words."""
        chosen = question.subset
        what = "failure"
        if self.symptom == "hang":
            what = "hang"
        reason = f"{question.fails:.0%} expect a {what}, {self.suspects.bits:.1f} bits are open"
        if question.hangs > FEARED:
            reason += f", may hang ({question.hangs:.0%})"
        if any(np.array_equal(chosen, before) for before, _ in self.suspects.history):
            reason = (
                f"tried again, outcomes are wrong in {self.suspects.flake:.1%} of trials: {reason}"
            )
        elif any(0 < np.count_nonzero(chosen[unit]) < len(unit) for unit in self.couplings.units):
            reason = f"splits parts that belong together: {reason}"
        return self._changing(chosen, reason)

    def _remembering(self) -> Wanted | None:
        """Return a trial that shows whether a failure changes the outcome of the next run; None if
        none is needed.

        If a failure makes the next run fail, or pass, whatever its job is, every trial may agree
        with a wrong answer. Two trials rule that out: one that passes right after a failure that
        followed a pass, and one that fails right after a failure. No trial is needed once both were
        seen, if there is only one item, or if the symptom is a hang, because a device that hung is
        reset.
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
            return None  # the next trials of the proof may show it
        if not clears and outcomes[-1] == "pass":
            return Wanted(self._breaking(), REPEATS)
        if not clears:
            return Wanted(self._none, LEAVES)
        recent = outcomes[-1:]
        if wanted:
            recent = outcomes[-STREAK:]
        elif self.history[-1][0].all():
            recent = outcomes[-2:]  # a failure of BAD proves nothing about its parts
        if "pass" in recent:
            return None
        return Wanted(self._none, STILL)

    def _follows(self) -> tuple[list[str], bool, bool]:
        """Return three values: all outcomes, after an assumed pass of the good job; True if a pass,
        the symptom and a pass followed one another at least once; True if a trial showed the
        symptom right after a failure.
        """
        outcomes = ["pass", *(outcome for _, outcome in self.history if outcome != REFUSED)]
        trios = list(zip(outcomes, outcomes[1:], outcomes[2:], strict=False))
        clears = any(first == last == "pass" != middle for first, middle, last in trios)
        repeats = any(middle != "pass" and last == self.symptom for _, middle, last in trios)
        return outcomes, clears, repeats

    def _good_failed_last(self) -> bool:
        """True if the last trial was the good job, and did not pass."""
        if not self.history:
            return False
        subset, outcome = self.history[-1]
        return outcome != "pass" and not subset.any()

    def _bad_itself(self) -> Wanted | None:
        """Return the bad job as the next trial, if it did not run yet: if it passes on this device,
        the search has nothing to find.

        The bad job is the last trial of a proof. It runs earlier if the last trial failed and
        others have shown that a failure leaves no state.
        """
        everything = self._all
        if self.errs or self.everything.seen(everything):
            return None
        outcomes, clears, repeats = self._follows()
        between = outcomes[-1] != "pass" and clears and repeats
        last = self._prover is None or self._prover.wanted is None
        if last or between:
            return Wanted(everything, BAD_ITSELF)
        return None

    def _breaking(self) -> Array:
        """Return a set that probably breaks the job and was not tried yet: all items, or all items
        but some outside of the smallest failing set. If these were tried, return the smallest
        failing set.
        """
        evidence = self.evidence
        smallest = evidence.changed[evidence.broke]
        smallest = smallest[int(np.argmin(smallest.sum(axis=1)))]
        subset = self._all
        if not evidence.seen(subset):
            return subset
        for item in np.flatnonzero(~smallest):
            subset[item] = False
            if not evidence.seen(subset):
                return subset
        return smallest

    # ------------------------------------------------------------------------------------------
    # telling

    def tell(self, subset: Array, outcome: str) -> None:
        """Take in the outcome of a trial that changed the items ``(n,) bool``.

        Raises ValueError for an outcome other than pass, fail, hang and refused.
        """
        if outcome not in (*ANSWERS, REFUSED):
            raise ValueError(f"outcome: got {outcome!r}, allowed is one of {', '.join(ANSWERS)}")
        self.history.append((np.array(subset, bool), outcome))
        self._catch_up()

    def undo(self, count: int = 1) -> None:
        """Forget the last ``count`` outcomes."""
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
        """Begin the search again, and take in those of all trials so far that count."""
        self._begin()
        for number in range(len(self.history)):
            self._count(number)

    def _take(self, number: int) -> None:
        """Take in the trial with this number, if the search has not ended."""
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
        """Take in the trial with this number if it counts. Return True if it counts."""
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
                # the stage took in this trial, too, and finds further groups in fewer trials than
                # the proof
                self._prover = None
        return True

    def _stage_takes(self, subset: Array, outcome: str) -> None:
        """Take in the outcome of a set of items, if it consists of whole parts of the stage."""
        if self._question is None and self._prover is None and self.suspects.bits < LATE:
            # the search did not ask for this trial (a journal is replayed), so the stage may be
            # over
            while self._prover is None and self.end is None and self._asked_or_silent() is None:
                self._advance()
        self._question, self._silent = None, False
        counts = np.bincount(self._part[subset], minlength=len(self.parts) + 1)
        changed = counts[:-1] > 0
        if counts[-1] or np.any(changed & (counts[:-1] < self._sizes)):
            return  # the set splits a part, or changes items outside of all parts
        refused = outcome == REFUSED
        if refused or not self.errs:
            self._tried.add(changed.tobytes())
        if refused:
            # a refused set counts as one that hangs, so that it is avoided
            outcome = "hang"
        if refused and self.symptom == "hang":
            return
        self._of_stage.append((changed, outcome))
        failed = outcome == (self.symptom or "fail")
        if self.symptom == "hang":
            self.suspects.tell(changed, failed)
            return
        hung = outcome == "hang"
        self.couplings.tell(changed, hung)
        if not hung or self._always_hangs(changed):
            self.suspects.tell(changed, failed)

    def _always_hangs(self, changed: Array) -> bool:
        """True if ``changed`` is one part, and every trial of this stage that changed the part
        hung: then the part alone counts as not failing.

        A part that hung alone, but not together with others, lacked parts that it needs.
        """
        if np.count_nonzero(changed) != 1:
            return False
        (part,) = np.flatnonzero(changed)
        return all(outcome == "hang" for subset, outcome in self._of_stage if subset[part])

    def _asked_or_silent(self) -> Question | None:
        """Return the next question of the stage; if no set distinguishes the explanations, return a
        trial that the most probable one still needs.
        """
        if self._question is None:
            self._question = self._asked()
            if self._question is None and not self._silent:
                self._silent = True
                self._question = self._asked()
        return self._question

    # ------------------------------------------------------------------------------------------
    # ending

    def _advance(self) -> None:
        """Go on if there is no question left: to the next stage, to the proof, or to the end."""
        if self._refuted:
            whole = self._numbers_of(self._all)
            how = OTHER
            if self.history[whole[-1]][1] == "pass":
                how = PASSES
            self._finish((), End(how, whole))
        elif self._prover is not None:
            self._proved(self._prover)
        else:
            self._stage_ends()

    def _stage_ends(self) -> None:
        """Go on after a stage: to a stage of the items of the guilty parts, to the proof, or to the
        end.
        """
        groups, probability = self._proposal()
        explained = self.suspects.explained
        guilty = sorted(set().union(*groups))
        if explained and any(self._sizes[guilty] > 1):
            self.certain *= min(probability, 1.0)
            opened: list[tuple[int, ...]] = []
            for part in guilty:
                opened += self._opened(self.parts[part])
            self._stage(opened)
            return
        inside = self._inside(groups)
        if () in inside and self._good_fails():
            self._finish(((),), End(GOOD_FAILS, self._numbers_of(self._none)))
            return
        # the explanation has as many items as an explanation can have: there may be more guilty
        # parts
        many = len(guilty) >= MOST and len(self.parts) > MOST
        weighs = self.errs and explained and not many and self._unseen(groups) is None
        if weighs and not self.everything.improbable(inside, POOR):
            if inside:
                probability = min(probability, self._rivals(groups).certainty)
            self.certain *= min(probability, 1.0)
            self._weighed(inside)
        elif explained:
            self._prove(inside, probability)
        else:
            self._prove((), probability)

    def _inside(self, groups: Groups) -> Groups:
        """Return groups of items from groups of parts."""
        inside = []
        for group in groups:
            items = chain.from_iterable(self.parts[part] for part in group)
            inside.append(tuple(sorted(items)))
        return tuple(inside)

    def _prove(self, groups: Groups, probability: float) -> None:
        """Begin the proof of these groups; multiply the certainty so far by ``probability``."""
        self.certain *= min(probability, 1.0)
        hiding = [self.parts[part][0] for part in self._hiding() if self._sizes[part] == 1]
        self._prover = Prover(self.n, [group for group in groups if group], hiding)
        self._prover.follow(self.evidence)

    def _proved(self, prover: Prover) -> None:
        """End the search with the result of a proof."""
        proof = prover.proof
        assert proof is not None
        self.hidden = proof.hidden
        if self.errs:
            self.certain = (1 - self.evidence.misled) ** self.evidence.voted
        elif not proof.hidden:
            self.certain = PROVED
        if proof.groups and not proof.complete:
            self._finish(proof.groups, End(MORE))
        else:
            self._weighed(proof.groups)

    def _weighed(self, groups: Groups) -> None:
        """Compare an answer with every trial, and end the search."""
        against = tuple(self.everything.against(groups))
        if () in groups:
            self._finish(((),), End(GOOD_FAILS, self._numbers_of(self._none)))
        elif self.apart and against:
            self._finish(groups, End(STATE, against))
        elif self.everything.improbable(groups):
            self._finish(groups, End(UNEXPLAINED, against))
        elif not groups:
            self._finish((), End(PASSES, self._numbers_of(self._all)))
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
        """True if an item of a group of several was tried alone and hung, or was refused, while a
        failure is searched for.
        """
        if self.symptom == "hang":
            return False
        for group in groups:
            for item in group:
                alone = self._outcomes_of(subset_of({item}, self.n))
                if len(group) > 1 and {"hang", REFUSED} & {*alone}:
                    return True
        return False

    def _outcomes_of(self, subset: Array) -> list[str]:
        return [self.history[number][1] for number in self._numbers_of(subset)]

    def _numbers_of(self, subset: Array) -> tuple[int, ...]:
        """Return the numbers of the trials that changed exactly this set."""
        numbers = []
        for number, (tried, _) in enumerate(self.history):
            if np.array_equal(tried, subset):
                numbers.append(number)
        return tuple(numbers)

    def _opened(self, part: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Split a part: into its units, if it holds several units and more than ``LARGEST`` items;
        else into its single items.
        """
        units = [unit for unit in self.units if set(unit) < set(part)]
        if units and len(part) > LARGEST:
            return units
        return [(item,) for item in part]

    def _hiding(self) -> list[int]:
        """Return the numbers of the parts that probably hang, whatever is changed together with
        them.
        """
        if self.symptom == "hang":
            return []
        return np.flatnonzero(self.couplings.suspect[-1, :-1] > TIED).tolist()

    def _merged_proposal(self) -> tuple[Groups, float]:
        """Return the most probable explanation and its probability. Explanations that differ only
        in items of one coupled group count as one: each trial that distinguishes them hangs.
        """
        together: dict[int, set[int]] = {}
        for tied in self.couplings.tied():
            items = set(tied.tolist())
            together.update(dict.fromkeys(items, items))
        merged: dict[Groups, float] = {}
        for explanation in self.suspects.top(MERGED):
            groups = set()
            for group in explanation.groups:
                whole = set().union(*(together.get(part, {part}) for part in group))
                groups.add(frozenset(whole))
            least = []
            for group_of_items in groups:
                if not any(other < group_of_items for other in groups):
                    least.append(tuple(sorted(group_of_items)))
            key = tuple(sorted(least))
            merged[key] = merged.get(key, 0.0) + explanation.probability
        return max(merged.items(), key=lambda pair: pair[1])

    # ------------------------------------------------------------------------------------------
    # trials that contradict each other

    def _contradicted(self, conflict: tuple[int, int]) -> None:
        """Begin to find out if two trials contradict each other because an earlier run left a state
        in the device.
        """
        numbers = (self._counted[conflict[0]], self._counted[conflict[1]])
        if self.apart:
            self._finish((), End(CONFLICT, numbers))
            return
        self._doubt = self._asks_again(*numbers)
        self._doubted = next(self._doubt)

    def _asks_again(self, broke: int, passed: int) -> Generator[Wanted, str, End | None]:
        """Ask for both trials again, each right after a pass of the good job.

        Return the end of the search if both end as before, or if the good job does not pass any
        more. Return None if one of them ends otherwise, which shows that the device keeps a state.
        """
        for number in (broke, passed):
            rested = False
            for _ in range(RESTS):
                outcome = yield Wanted(self._none, GOOD_STILL)
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
        """Take in the outcome of a trial that runs again since two trials contradict each other."""
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
        """End the search if the good job did not pass in each of the last ``RESTS`` trials."""
        if self.errs or not self._good_failed_in_a_row():
            return
        good = self._numbers_of(self._none)
        fails = tuple(number for number in good if self.history[number][1] != "pass")
        if any(outcome == "pass" for _, outcome in self.history):
            self._finish((), End(GONE, fails))
        else:
            self._finish(((),), End(GOOD_FAILS, fails))

    # ------------------------------------------------------------------------------------------
    # looking

    @property
    def likely(self) -> list[tuple[Groups, float]]:
        """The most probable explanations as (groups of items, probability), most probable first;
        none if the search ended without an answer.
        """
        if self.end is None:
            top = self.suspects.top(5)
            return [(self._inside(found.groups), found.probability) for found in top]
        if self.end.how == FOUND:
            return [(self.groups, self.certain)]
        return []

    @property
    def shares(self) -> Array:
        """``(n,) float``: for each item the probability that it takes part in the failure. Items of
        one part have one probability. Zeros if the search ended without an answer.
        """
        shares = np.zeros(self.n)
        if self.end is None:
            for part, probability in zip(self.parts, self.suspects.shares, strict=True):
                shares[list(part)] = probability / len(part)
        elif self.end.how == FOUND:
            shares[sorted(set().union(*self.groups))] = self.certain
        return shares

    @property
    def left(self) -> int:
        """The expected number of trials until the end."""
        if self.ask() is None:
            return 0
        if self._prover is not None:
            return 2
        capacity = 1 - float(entropy(np.array(self.suspects.flake)))
        return max(1, math.ceil(self.suspects.bits / capacity)) + 2
