"""The trials that prove an answer before it is reported, and the search that goes on if a trial
contradicts it.

An answer is a list of groups: the symptom shows if all items of one group are changed. If a device
never errs, and further changes never remove its symptom, the answer is exact if these trials agree
with it:

- each group alone shows the symptom;
- all items but one of each group do not show it, whichever items are left out (``ways``): so no
  other group exists, and no group mixes items of two;
- each item of a group of several was tried alone, so that an item that breaks the job by itself
  is not reported as a part of a group.

Items that hide the symptom (if it is a failure: items that hang the job) are left out of the second
kind of trial. Further items of this sort are found in the same way as groups.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from dataclasses import dataclass

import numpy as np

from npulab.analysis.bisect.evidence import HIDDEN, Evidence, subset_of
from npulab.analysis.bisect.kinds import MOST, Groups

# At most this many choices of one item from each group (``ways``) are tried; if there are more, the
# answer is reported as not proved.
MOST_WAYS = 40
# An answer has at most this many groups of several items: no person could read more.
MOST_GROUPS = 16
# The proof looks for at most this many sets that hide the symptom: then nearly every set does.
MOST_HIDES = 6
Items = frozenset[int]
ALONE = "to confirm it: the suspect parts and nothing else"
OTHERS = "all parts but the suspect ones: does anything else break it?"
MEMBER = "one part of a suspect group, alone"
SMALLER = "something else breaks it: search for the fewest parts that do"
HIDES = "it ended in another way: search for the fewest parts that do that"
SURPRISES = (SMALLER,)
LEFT_OUT = "does this part alone make it end in another way?"
SUSPECTS_IT = "to confirm it: the suspect parts, or the parts that are not suspect"


@dataclass(frozen=True)
class Proof:
    """The result of a proof: the proved ``groups``, and the sets that hide the symptom
    (``hiding``).

    ``complete`` is True if the items outside the groups were tried and showed no symptom.
    ``hidden`` is True if some items outside could not be tried, since too many sets hide the
    symptom.
    """

    groups: Groups
    hiding: Groups = ()
    complete: bool = True
    hidden: bool = False


@dataclass(frozen=True)
class Wanted:
    """A set of items ``(n,) bool`` to try next, and the reason. If ``itself`` is True, only a trial
    of exactly this set counts; else its outcome may follow from trials of other sets.
    """

    subset: np.ndarray
    reason: str
    itself: bool = False


Asking = Generator[Wanted, str, Proof]
Finding = Generator[Wanted, str, Items]


class Prover:
    """The proof of proposed groups over ``n`` items: ``wanted`` is the set to try next.

    ``follow`` takes in all trials so far; ``proof`` is None until every set that the proof needs
    was tried. ``hiding`` are items that probably hide the symptom.

    >>> trials = [(subset_of({3}, 5), "fail")]
    >>> prover = Prover(5, [(3,)])
    >>> prover.follow(Evidence.of(trials, 5, "fail"))
    >>> prover.wanted.subset
    array([ True,  True,  True, False,  True])
    >>> prover.follow(Evidence.of([*trials, (prover.wanted.subset, "pass")], 5, "fail"))
    >>> prover.proof
    Proof(groups=((3,),), hiding=(), complete=True, hidden=False)
    """

    def __init__(
        self, n: int, groups: Iterable[Collection[int]], hiding: Collection[int] = ()
    ) -> None:
        self.wanted: Wanted | None = None
        self.proof: Proof | None = None
        self.refuted = False  # True after a proposed group, changed alone, passed
        self._steps = _Steps(n)
        self._asking = self._steps.proof([frozenset(group) for group in groups], frozenset(hiding))

    @property
    def groups(self) -> Groups:
        """The proved groups; none while ``proof`` is None."""
        if self.proof:
            return self.proof.groups
        return ()

    def follow(self, evidence: Evidence) -> None:
        """Go on with the proof until it wants a set whose outcome the evidence does not show yet,
        or until it is done.
        """
        self._steps.evidence = evidence
        try:
            if self.wanted is None and self.proof is None:
                self.wanted = next(self._asking)
            while self.wanted is not None:
                outcome = self._steps.known(self.wanted)
                if outcome is None:
                    return
                if self.wanted.reason == ALONE and outcome == "pass":
                    self.refuted = True
                self.wanted = self._asking.send(outcome)
        except StopIteration as end:
            self.wanted, self.proof = None, end.value


def wanted_of(
    evidence: Evidence, n: int, groups: Groups, hiding: Collection[int] = ()
) -> Wanted | None:
    """Return the first trial of a proof that is still missing, for an answer ``groups`` of a device
    that errs; None if the outcome of each such trial was mostly as the answer expects.

    Trials that contradict the answer do not end the proof here: the search weighs them with all
    trials.
    """
    sets = [frozenset(group) for group in groups]
    for group in sets:
        if not evidence.mostly(subset_of(group, n), (evidence.symptom,)):
            return Wanted(subset_of(group, n), SUSPECTS_IT)
    for way in ways(sets) or []:
        rest = frozenset(range(n)) - way - frozenset(hiding)
        if evidence.hides(subset_of(rest, n)):
            # the set hangs since it splits items that must change together: leave out their whole
            # groups
            torn = [group for group in sets if group & way]
            rest = rest.difference(*torn)
        if not evidence.mostly(subset_of(rest, n), ("pass",)):
            return Wanted(subset_of(rest, n), SUSPECTS_IT)
    for item in _members(sets):
        if not evidence.mostly(subset_of({item}, n), ("pass", HIDDEN)):
            return Wanted(subset_of({item}, n), MEMBER)
    return None


def ways(groups: Collection[Items]) -> list[Items] | None:
    """Return the smallest sets that have at least one item of each group: no set contains another.
    None if there are more than ``MOST_WAYS``.

    >>> sorted(map(sorted, ways([frozenset({1, 2}), frozenset({1, 3})])))
    [[1], [2, 3]]
    """
    found: list[Items] = [frozenset()]
    for group in groups:
        met = [way for way in found if way & group]
        longer = set()
        for way in found:
            if not way & group:
                longer |= {way | {item} for item in group}
        added = [way for way in longer if not _holds_any(way, met)]
        found = met + _smallest_of(added)
        if len(found) > MOST_WAYS:
            return None
    return sorted(found, key=sorted)


def _holds_any(items: Items, sets: Iterable[Items]) -> bool:
    return any(each <= items for each in sets)


def _smallest_of(sets: Iterable[Items]) -> list[Items]:
    """Return those of ``sets`` that contain none of the others, each only once."""
    every = list(dict.fromkeys(sets))
    smallest = []
    for items in every:
        if not any(other < items for other in every):
            smallest.append(items)
    return smallest


def _members(groups: Iterable[Items]) -> list[int]:
    """Return the items of all groups of 2 to ``MOST`` items, sorted: each of these items is tried
    alone.
    """
    joint = [group for group in groups if 1 < len(group) <= MOST]
    return sorted(frozenset().union(*joint))


class _Steps:
    """The steps of a proof, as generators that yield a wanted set and are sent its outcome."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.evidence = Evidence.of([], n, "fail")
        self.everything = frozenset(range(n))

    def known(self, wanted: Wanted) -> str | None:
        """Return the outcome of a wanted set; None if the trials do not show it yet."""
        if wanted.itself:
            seen = self.evidence.seen(wanted.subset)
            if seen:
                return seen[-1]
            return None
        return self.evidence.says(wanted.subset)

    def proof(self, proposed: list[Items], hiding: Items) -> Asking:
        """Ask for all trials of a proof, and return the proof; groups that these trials reveal are
        added to the proposed ones.
        """
        groups: list[Items] = []
        for group in proposed:
            outcome = yield self._asks(group, ALONE)
            if outcome == self.evidence.symptom:
                groups = _with(groups, group)
        for item in _members(groups):
            yield Wanted(subset_of({item}, self.n), MEMBER, itself=True)
        hides = [frozenset({item}) for item in sorted(hiding)]
        complete = True
        while not _too_many(groups) and len(hides) - len(hiding) <= MOST_HIDES:
            found, hidden, complete = yield from self._another(groups, hides)
            if found:
                groups = _with(groups, found)
            elif hidden:
                hides = _with(hides, hidden)
            else:
                guessed = [group for group in hides if group <= hiding]
                wrong = yield from self._not_hiding(guessed)
                if wrong is None:
                    break
                hides.remove(wrong)
        for item in _members(groups):
            yield Wanted(subset_of({item}, self.n), MEMBER, itself=True)
        hidden_rest = len(hides) - len(hiding) > MOST_HIDES
        return Proof(
            _sorted(groups), _sorted(hides), complete and not _too_many(groups), hidden_rest
        )

    def _not_hiding(self, guessed: list[Items]) -> Generator[Wanted, str, Items | None]:
        """Try each of the items that were assumed to hide the symptom, and return the first that
        does not; None if all hide it.
        """
        for group in guessed:
            outcome = yield Wanted(subset_of(group, self.n), LEFT_OUT, itself=True)
            if outcome != HIDDEN:
                return group
        return None

    def _another(
        self,
        groups: list[Items],
        hides: list[Items],
    ) -> Generator[Wanted, str, tuple[Items | None, Items | None, bool]]:
        """Look for a set outside of the groups that shows the symptom. Return (a new group or None,
        a new set that hides the symptom or None, True if all items could be tried).
        """
        leaving_out = ways([*groups, *hides])
        complete = leaving_out is not None
        if leaving_out is None:
            leaving_out = [frozenset().union(*groups, *hides)]
        for way in leaving_out:
            rest = self.everything - way
            outcome = yield self._asks(rest, OTHERS)
            if outcome == "pass":
                continue
            reason = SMALLER
            if outcome == HIDDEN:
                reason = HIDES
            found = yield from self._smallest(rest, outcome, reason)
            if not found:
                complete = False
            elif outcome == HIDDEN:
                return None, found, complete
            else:
                return found, None, complete
        if hides and complete:
            kept = yield from self._with_hiding(groups, hides)
            return kept, None, complete
        return None, None, complete

    def _with_hiding(
        self, groups: list[Items], hides: list[Items]
    ) -> Generator[Wanted, str, Items | None]:
        """Return a new group with items that hide the symptom if they are changed alone; None if
        none is found.

        First all hiding items are changed at once: as in BAD, the symptom may show before they hide
        it. If there are few, each is also changed without the others, since it may hide one group
        and not another. The search stops after ``MOST_HIDES`` trials that hide the symptom.
        """
        hidden = 0
        leaving_out = ways(groups) or []
        every = frozenset().union(*hides)
        one_by_one = len(hides) > 1 and len(hides) * len(leaving_out) <= MOST_HIDES
        for way in leaving_out:
            kept = [self.everything - way]
            if one_by_one:
                kept += [self.everything - way - (every - hide) for hide in hides]
            for rest in kept:
                outcome = yield self._asks(rest, OTHERS)
                if outcome == self.evidence.symptom:
                    return (yield from self._smallest(rest, outcome, SMALLER)) or None
                if outcome == "pass":
                    break
                hidden += 1
                if hidden == MOST_HIDES:
                    return None
        return None

    def _smallest(self, within: Items, outcome: str, reason: str) -> Finding:
        """Return a smallest set inside ``within`` that has the same outcome as ``within``; the
        empty set if ``within`` does not end with ``outcome``.
        """
        pool = self._ordered(self._narrowed(within, outcome))
        found: list[int] = []
        while True:
            if found and (yield self._asks(found, reason)) == outcome:
                return frozenset(found)
            if not pool:
                return frozenset()
            # ``found`` with ``pool[:high]`` ends with ``outcome``, ``found`` with ``pool[:low]``
            # does not
            low, high = 0, len(pool)
            while high - low > 1:
                middle = (low + high) // 2
                if (yield self._asks([*found, *pool[:middle]], reason)) == outcome:
                    high = middle
                else:
                    low = middle
            found.append(pool[high - 1])
            pool = pool[: high - 1]

    def _narrowed(self, within: Items, outcome: str) -> Items:
        """Return the smallest subset of ``within`` for which a trial showed the outcome; ``within``
        itself if no trial did, or if the device errs.
        """
        if self.evidence.flake > 0:
            return within  # if the device errs, one trial proves nothing
        has = [self.evidence.named(seen) == outcome for seen in self.evidence.outcomes]
        inside = ~np.any(self.evidence.changed & ~subset_of(within, self.n), axis=1)
        trials = np.flatnonzero(np.array(has, bool) & inside)
        if not len(trials):
            return within
        changed = self.evidence.changed[trials]
        smallest = changed[int(np.argmin(changed.sum(axis=1)))]
        return frozenset(np.flatnonzero(smallest).tolist())

    def _ordered(self, within: Items) -> list[int]:
        """Return the items of ``within``, first those of the largest subset that passed in a trial:
        a trial of only these is not needed again.
        """
        inside = subset_of(within, self.n)
        passed = self.evidence.changed[self.evidence.passed] & inside
        if not len(passed) or self.evidence.flake > 0:
            return sorted(within)
        largest = passed[int(np.argmax(passed.sum(axis=1)))]
        return sorted(within, key=lambda item: (not largest[item], item))

    def _asks(self, items: Collection[int], reason: str) -> Wanted:
        return Wanted(subset_of(items, self.n), reason)


def _too_many(groups: list[Items]) -> bool:
    """True if the number of changed items probably matters, and not which they are: if there are
    many groups of several items, or two groups of which one is large.
    """
    joint = [group for group in groups if len(group) > 1]
    large = [group for group in groups if len(group) > MOST]
    return len(joint) > MOST_GROUPS or (len(groups) > 1 and bool(large))


def _sorted(groups: Iterable[Items]) -> Groups:
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def _with(groups: list[Items], found: Items) -> list[Items]:
    """Return ``groups`` and the group ``found``, without any group that contains another."""
    return _smallest_of([*groups, found])
