"""An answer of a bisection in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from npulab.analysis.bisect import search
from npulab.analysis.bisect.idle import BOTH, EFFECT, OPEN, TOKENS, Idled
from npulab.analysis.bisect.search import Search
from npulab.analysis.check import Difference
from npulab.analysis.edited import edited_job, is_inserted, is_job, number_of
from npulab.analysis.records import BUFFER, BYTES, OTHERS
from npulab.support.text import plural

# The verb of each symptom: with one part as its subject, and with several.
VERBS = {
    "hang": ("hangs it", "hang it"),
    "fail": ("breaks it", "break it"),
    "poisons": ("spoils the job after it", "spoil the job after it"),
}
# What trials with a no-operation showed, by (True if the job is inserted, False if it is left out;
# what of the job matters).
SHOWS = {
    (True, EFFECT): "what {job} does {verb}",
    (True, TOKENS): "the tokens of {job} suffice",
    (False, EFFECT): "what {job} does is missed",
    (False, TOKENS): "the tokens of {job} are missed, what it does is not",
}
SHOWS_ELSE = {
    BOTH: "both the tokens of {job} and what it does matter",
    OPEN: "it is open if the tokens of {job} matter or what it does",
}
# A sentence names at most this many groups, parts of a group, and trials.
SHOWN = 6


class Words:
    """The sentences of one bisection.

    ``differences`` are the parts that a trial may change. ``jobs`` is the number of jobs of the
    good capture. ``spoils`` is True if the symptom is that the next job is spoiled. ``kinds`` are
    the kinds of the jobs of the good and of the bad capture, if known. ``lone`` are the texts of
    ``lone_bytes``.
    """

    def __init__(
        self,
        differences: Sequence[Difference],
        jobs: int,
        spoils: bool = False,
        kinds: tuple[Sequence[str], Sequence[str]] = ((), ()),
        lone: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.differences, self.jobs, self.spoils = differences, jobs, spoils
        self.kinds, self.lone = kinds, lone

    def _verb(self, of: Search, parts: int) -> str:
        """Return the verb of the symptom for a number of parts: "breaks it" for one, "break it" for
        several.
        """
        symptom = of.symptom or "fail"
        if self.spoils and symptom == "fail":
            symptom = "poisons"
        return VERBS[symptom][parts != 1]

    def part(self, item: int) -> str:
        """Return a part as text, with its value: ``NN w3.relu = 1 (good 0)``."""
        part = self.differences[item]
        if part.block == BUFFER:
            if part.field == BYTES:
                return f"buffer {part.register} {self.lone.get(part.register, '')}".rstrip()
            text = f"buffer {part.register} {part.field}"
            if part.field == OTHERS or None in (part.a, part.b):
                return text
            return f"{text} = {good_and_bad(part)}"
        if is_job(part):
            return edited_job(part, self.jobs, "BAD", self._kind(part))
        task = ""
        if self.jobs > 1:
            task = f"job {part.task} "
        register = ""
        if part.register:
            register = f"{part.register}."
        return f"{task}{self._kind(part)} {register}{part.field} = {good_and_bad(part)}"

    def _kind(self, part: Difference) -> str:
        """Return what the job of a part is: its kind if it is known, else its block."""
        good, bad = self.kinds
        if is_inserted(part):
            number = number_of(part.b)
            if number < len(bad):
                return bad[number]
        elif part.task < len(good) and good[part.task].startswith(part.block):
            # the writes that start a job may be in another block than the job's words
            return good[part.task]
        return part.block

    def job(self, item: int) -> str:
        """Return a job that is inserted or left out as text: ``job 14 of BAD (LOAD)``."""
        part = self.differences[item]
        kind = self._kind(part)
        if is_inserted(part):
            return f"{part.b} of BAD ({kind})"
        return f"{part.a} ({kind})"

    def idle(self, of: Search, item: int, idled: Idled, number: int) -> str:
        """Return what a no-operation in place of a job showed, as text with the ``number`` of the
        last such trial, counted from 1.
        """
        inserted = is_inserted(self.differences[item])
        text = SHOWS_ELSE.get(idled.matters) or SHOWS[inserted, idled.matters]
        text = text.format(job=self.job(item), verb=self._verb(of, 1))
        outcomes = " and ".join(dict.fromkeys(idled.outcomes))
        text += f" (trial {number}: {outcomes} with a no-operation in its place"
        if of.errs:
            text += ", if that is no error"
        return f"{text})"

    def groups(self, groups: Sequence[Sequence[int]]) -> str:
        """Return groups of parts as text: ``a and b together, or c alone``."""
        if not groups:
            return "nothing"
        if not all(groups):
            return "everything, even the good job"
        texts = []
        for group in groups[:SHOWN]:
            names = [self.part(item) for item in group[:SHOWN]]
            if len(group) > SHOWN:
                names.append(f"{len(group) - SHOWN} more")
            text = " and ".join(names)
            if len(group) > 1:
                text += " together"
            elif len(groups) > 1:
                text += " alone"
            texts.append(text)
        if len(groups) > SHOWN:
            texts.append(f"{len(groups) - SHOWN} more such groups")
        return ", or ".join(texts)

    def sentence(self, of: Search) -> str:
        """Return one sentence: the answer of a search, or how many trials it still needs."""
        left = of.left  # ``left`` may end the search, so it comes first
        if of.end is None:
            return f"not found yet: about {plural(left, 'trial')} left after {_cost(of)}"
        write = _ENDS[of.end.how]
        return write(self, of)

    def _breaks(self, of: Search) -> str:
        parts = 1
        if of.groups:
            parts = len(of.groups[-1])
        return f"{self.groups(of.groups)} {self._verb(of, parts)}"

    def _trial(self, of: Search, number: int) -> str:
        """Return a trial as text, with a number counted from 1: ``trial 3 (hang with 2 parts
        changed)``.
        """
        subset, outcome = of.history[number]
        count = int(np.count_nonzero(subset))
        if count == 0:
            what = "the good job"
        elif count == 1:
            what = self.part(int(np.argmax(subset)))
        elif count == len(subset):
            what = "BAD"
        else:
            what = f"{count} parts changed"
        return f"trial {number + 1} ({outcome} with {what})"

    def found(self, of: Search) -> str:
        text = f"{self._breaks(of)} ({_certain(of)} certain after {_cost(of)})"
        assert of.end is not None
        if of.end.trials:
            against = plural(len(of.end.trials), "trial")
            first = self._trial(of, of.end.trials[0])
            text += f"; {against} said otherwise, {first} first, which errors explain"
        if of.hidden:
            text += (
                f"; further parts may {self._verb(of, 2)} too: some trials ended in another way "
                "first, and so do not show it"
            )
        if of.inseparable:
            text += "; changing one of them without the others hangs, so no trial separates them"
        return text

    def passes(self, of: Search) -> str:
        text = (
            f"BAD passes on this device{_at(of)}: none of the {len(self.differences)} parts that "
            f"differ {self._verb(of, 1)}"
        )
        for number, (_, outcome) in enumerate(of.history):
            if outcome != "pass":
                text += f"; but {self._trial(of, number)}"
                break
        return f"{text} (after {_cost(of)})"

    def other(self, of: Search) -> str:
        assert of.end is not None
        outcome = of.history[of.end.trials[-1]][1]
        return (
            f"not found: BAD does not {of.symptom} on this device but ends in "
            f"{outcome!r}{_at(of)}; search for symptom {outcome!r}"
        )

    def good_fails(self, of: Search) -> str:
        assert of.end is not None
        first = of.end.trials[0]
        if first == 0:
            return (
                "not found: the good job does not pass on this device (trial 1, before any other "
                "ran)"
            )
        return (
            f"not found: the good job does not pass either (trial {first + 1}), but it ran "
            "after a failure; run it alone on a freshly reset device, and bisect once it passes"
        )

    def gone(self, of: Search) -> str:
        passed = [number for number, (_, outcome) in enumerate(of.history) if outcome == "pass"]
        return (
            f"not found: the good job fails time and again{_at(of)} although "
            f"{self._trial(of, passed[-1])} came before: the device does not come back from a "
            "failure, or fails as it gets warm; reset it before each trial"
        )

    def conflict(self, of: Search) -> str:
        assert of.end is not None
        broke, passed = of.end.trials
        return (
            f"not found: {self._trial(of, broke)} and {self._trial(of, passed)} contradict each "
            "other, since the second changes all parts that the first changes; both were run "
            "after a pass: some parts mend what others break, or outcomes err (then say how often)"
        )

    def state(self, of: Search) -> str:
        assert of.end is not None
        return (
            f"not found: {self._breaks(of)} in the trials that followed a pass, but "
            f"{self._trial(of, of.end.trials[0])} says otherwise: the device keeps a state from "
            "the run before; reset it before each trial"
        )

    def more(self, of: Search) -> str:
        evidence = of.everything
        others = np.flatnonzero(evidence.broke & ~evidence.expected(of.groups))
        text = f"not found: {self._breaks(of)}"
        if len(others):
            trial = self._trial(of, int(others[0]))
            return f"{text}, but other parts do too: {trial} changes all parts of no such group"
        return (
            f"{text}, as trials of each group alone show; it could not be tried whether other "
            "parts do too"
        )

    def unexplained(self, of: Search) -> str:
        assert of.end is not None
        against = of.end.trials
        return (
            f"not found: {self._breaks(of)} fits best, but {len(against)} of {_cost(of)} say "
            f"otherwise, {self._trial(of, against[0])} first: more than errors explain"
        )

    def unsure(self, of: Search) -> str:
        return (
            f"not found: most likely {self._breaks(of)} ({_certain(of)} certain after {_cost(of)}, "
            f"{of.certainty:.4g} was asked for)"
        )


_ENDS: dict[str, Callable[[Words, Search], str]] = {
    search.FOUND: Words.found,
    search.PASSES: Words.passes,
    search.OTHER: Words.other,
    search.GOOD_FAILS: Words.good_fails,
    search.GONE: Words.gone,
    search.CONFLICT: Words.conflict,
    search.STATE: Words.state,
    search.MORE: Words.more,
    search.UNEXPLAINED: Words.unexplained,
    search.UNSURE: Words.unsure,
}


def good_and_bad(part: Difference) -> str:
    """Return the bad value of a part and, in brackets, its good value: ``1 (good 0)``."""
    good, bad = part.texts
    return f"{bad} (good {good})"


def _cost(of: Search) -> str:
    hangs = sum(outcome == "hang" for _, outcome in of.history)
    trials = plural(len(of.history), "trial")
    if hangs:
        return f"{trials}, {hangs} hung"
    return trials


def _certain(of: Search) -> str:
    if of.certain > 0.999:
        return "over 99.9%"
    return f"{of.certain:.1%}"


def _at(of: Search) -> str:
    """Return the trials that show the end of the search, as text: `` (trial 3)`` or `` (trials 3, 4
    and 5)``; "" if there are none.
    """
    assert of.end is not None
    numbers = [str(number + 1) for number in of.end.trials[-SHOWN:]]
    if not numbers:
        return ""
    if len(numbers) == 1:
        return f" (trial {numbers[0]})"
    return f" (trials {', '.join(numbers[:-1])} and {numbers[-1]})"
