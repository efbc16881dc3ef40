"""Trials with controls: a known-good job must pass and a known-bad job must not, before, between
and after the trials of a device.

``Controlled`` is a device around another device. A trial is believed if its runs agree, and if the
controls still end as they should. Else the device is powered up before each further run of the
trial, and the caller has to ask again for the answers since the last passing control
(``TakenBack``). If the known-good job fails after power-ups too, the search ends (``Unusable``).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from npulab.captures.capture import Capture
from npulab.captures.devices import Around, Command, InProcess, Simulated
from npulab.captures.faulty import FILL
from npulab.captures.fingerprints import (
    INPUT,
    OUTPUT,
    SHORT,
    Asked,
    Fingerprint,
    content_hash,
    fingerprint_of,
    said_by,
)
from npulab.captures.journal import ENDINGS, NOT_EXECUTED, POISONS, REBOOTS, REFUSED
from npulab.captures.never import Never
from npulab.captures.target import Run
from npulab.support.processes import NotRun
from npulab.support.refuse import refuse_if
from npulab.support.text import plural

# The controls run again after this many trials.
EVERY = 10
# A trial's runs that end alike must be this many more than its other runs, if no error was seen.
AGREE = 2
# Once errors were seen, a trial has so many runs that its answer is wrong with at most this
# probability; a scan makes about a thousand runs.
WRONG = 1e-5
# Once an error was seen, at least this share of wrong runs is assumed.
LEAST_RATE = 0.005
# A larger share of wrong runs ends the search, once there were at least MEASURED runs.
MOST_RATE = 0.25
MEASURED = 20
# The known-good job has to pass after at most this many power-ups.
RESTS = 3
# The lead is the number by which a trial's runs that end alike must exceed its other runs. A trial
# has at most 2 * lead + MORE_RUNS runs.
MORE_RUNS = 8
# A trial whose outputs all differ is decided after this many runs more than its lead.
UNLIKE = 3
# The output is filled with these bytes, in turns, before a run.
FILLS = (0xA5, 0x5A)
# A device that reboots has to answer within this many seconds.
WAKE = 120.0
# Whose output a run found in memory and left there: another job's, or that of the same job's last
# run.
OTHERS, OWN = "another job's", "its own"
# Seconds between two questions to a device that reboots.
PAUSE = 1.0
# A one-sided bound at this many standard deviations holds in 95 of 100 cases.
Z = 1.645


class TakenBack(Exception):
    """Raised if the last ``count`` answers may be wrong; the caller has to ask for them again."""

    def __init__(self, count: int, reason: str) -> None:
        super().__init__(f"{reason}; {plural(count, 'answer')} before it must be asked again")
        self.count = count


class Unusable(NotRun):
    """Raised if a device cannot be trusted any more; its last ``count`` answers may be wrong."""

    def __init__(self, reason: str, count: int = 0) -> None:
        text = reason
        if count:
            text += f"; the last {plural(count, 'answer')} since a passing control do not count"
        super().__init__(text)
        self.count = count


@dataclass(frozen=True)
class Checked:
    """One run of a control. ``control`` is "good", "bad" or "other" (the good job with another
    input), ``outcome`` is how the run ended, and ``held`` is True if it ended as it should. ``run``
    is the number of the run among all runs of the device, from 1."""

    control: str
    outcome: str
    held: bool
    run: int


@dataclass(frozen=True)
class Settings:
    """The options of ``Controlled``; its docstring says what they mean."""

    every: int = EVERY
    agree: int = AGREE
    fingerprint: Asked | None = None
    boot: Asked | None = None
    never: Iterable[str] = ()
    poisons_first: bool = False

    def __post_init__(self) -> None:
        refuse_if(self.every < 1, "every", self.every, "is at least 1 trial")
        refuse_if(self.agree < 1, "agree", self.agree, "is at least 1 run")


@dataclass
class _Votes:
    """The runs of one trial so far, with their outcomes."""

    runs: list[Run] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    # Outputs that were in memory before their run: another job's, or the byte of the fill.
    stale: list[bytes] = field(default_factory=list)
    # True if the output of at least one run was not in memory before that run.
    wrote: bool = False
    # True if the known-good job ran after a run of this trial and passed.
    checked: bool = False

    def decided(self, needed: int) -> Run | None:
        """The run that stands for the trial; None until the runs that end alike are at least
        ``needed`` more than the others."""
        if self.untouched:
            return Run(NOT_EXECUTED, reason="the output is what was in memory before, each time")
        outcome = max(self.outcomes, key=self.outcomes.count)
        count = self.outcomes.count(outcome)
        if 2 * count - len(self.outcomes) < needed:
            return None
        same = []
        for run, ended in zip(self.runs, self.outcomes, strict=True):
            if ended == outcome:
                same.append(run)
        outputs = [run.output for run in same]
        best = max(same, key=lambda run: outputs.count(run.output))
        alike = outputs.count(best.output)
        if alike < min(needed, AGREE):
            if count < needed + UNLIKE:
                return None
            return replace(best, reason=f"{best.reason} its output differs from run to run".strip())
        return best

    @property
    def untouched(self) -> bool:
        """True if no run changed the output in memory, and at least two different outputs were
        found there, each at least twice. One time may be an error of a run that passes."""
        usual = Counter(self.stale).most_common(2)
        twice = [output for output, count in usual if count > 1]
        return len(twice) > 1 and not self.wrote

    def errors(self, decided: Run) -> int:
        """The number of runs that differ from the run ``decided`` in outcome or output; 0 if fewer
        than 2 runs have its outcome and output."""
        outputs = [(run.outcome, run.output) for run in self.runs]
        chosen = (decided.outcome, decided.output)
        if outputs.count(chosen) < AGREE:
            return 0
        return len(outputs) - outputs.count(chosen)


class Controlled(Around):
    """A device with controls around another device; an oracle whose answers can be trusted.

    ``good`` is a known-good job with its ``output``. ``bad`` is a known-bad job, which must not
    give that output; without it, a device that passes every job is not noticed. Both run before the
    first trial, after every ``every`` trials, and in ``finish()``. The good job also runs after a
    trial that did not pass. Between two passing runs of a trial it runs with another input (each
    byte inverted), so that memory holds another output. A trial is run until the runs that end
    alike are ``agree`` more than its other runs; the number rises once errors were seen.

    Further outcomes of a trial: "poisons" (the trial passes, and the known-good job then fails
    until power-up, each time; with ``poisons_first`` the trial may fail too), "reboots" (the text
    of ``boot`` changed), "not executed" (the run ended, and all bytes of the output are equal, such
    as the fill that the parameter ``output_fill`` asks for, or are what the job before wrote) and
    "refused" (never run: ``never``, see ``npulab.captures.never``).

    ``options`` are those of ``Settings``.

    ``fingerprint`` and ``boot`` are commands or functions that give a text (``fingerprints``); by
    default they are the device's own methods. A fingerprint that changes ends the search. The
    device's ``recover`` powers it up: of a ``Command`` its ``reset``, of a Python object its
    method ``reset``.

    Raises ValueError for controls that cannot be told apart or are themselves refused. A run raises
    TakenBack if answers must be asked for again, and Unusable if the device cannot be trusted.

    >>> good = Capture("good", "demo", "x", (), buffers={"output": b"ab"})
    >>> Controlled(Simulated(), good)
    Controlled(Simulated(expected=None): no control has run)
    """

    def __init__(
        self, device: Any, good: Capture, bad: Capture | None = None, **options: Any
    ) -> None:
        refuse_if(not callable(getattr(device, "run", None)), "device", repr(device), "is a device")
        settings = Settings(**options)
        self.device, self.good, self.bad = device, good, bad
        self.every, self.agree = settings.every, settings.agree
        self.poisons_first = settings.poisons_first
        self.never = Never.of(settings.never, good)
        self._refuse_controls()
        self.controls: list[Checked] = []
        self.runs = self.power_ups = self.errors = self.measured = self.answers = 0
        self.fingerprint: Fingerprint | None = None
        self.facts: dict[str, Any] = {}  # what a journal records of the last trial
        own = _innermost(device)
        self._fills = not isinstance(own, Simulated)
        self._asked, self._boot = settings.fingerprint, settings.boot
        if self._asked is None:
            self._asked = getattr(own, "fingerprint", None)
        if self._boot is None:
            self._boot = getattr(own, "boot", None)
        self._boot_id = ""
        self._started = self._once = self._bad_poisons = False
        # a job that writes other bytes than the good one; None if there is none
        self._other: Capture | None = None
        self._unchecked = self._careful = 0
        self._jobs, self._since = 0, "start"
        # The output of the last run that had an output.
        self._held: bytes | None = None
        # The hash of the last job since the device began; "" for none.
        self._before = ""

    def _refuse_controls(self) -> None:
        expected = self.good.buffers.get(OUTPUT)
        if expected is not None and len({*expected}) < 2:
            raise ValueError(
                f"good: {self.good.name} has an output of one value, allowed is an output with "
                "several values, since memory may hold one value that no job wrote"
            )
        for control in filter(None, (self.good, self.bad)):
            why = self.never.why(control)
            refuse_if(why, f"control {control.name}", why, "is a job that may be run")
        same = self.bad is not None and content_hash(self.bad) == content_hash(self.good)
        refuse_if(same, "bad", "the same job as good", "is another job")

    # ------------------------------------------------------------------------------------------
    # trials

    def run(self, capture: Capture) -> Run:
        """Run the controls that are due, then a capture until its runs agree; return the run that
        stands for them."""
        why = self.never.why(capture)
        if why:
            self.facts = {"hash": content_hash(capture)[:SHORT], "runs": 0}
            return Run(REFUSED, reason=why)
        if not self._started:
            self._start()
        elif self._unchecked >= self.every:
            self._check()
        runs, jobs, since, before = self.runs, self._jobs, self._since, self._before
        run = self._agreed(capture)
        self.answers += 1
        self.facts = {
            "hash": content_hash(capture)[:SHORT],
            "runs": self.runs - runs,
            "jobs_since": jobs,
            "since": since,
            "before": before,
        }
        if self.fingerprint is not None:
            self.facts["fingerprint"] = self.fingerprint.short
        return run

    def judge(self, capture: Capture, run: Run) -> str:
        """The device's outcome of the run, or "poisons", "reboots", "not executed" or "refused",
        which only controls show."""
        if run.outcome in ENDINGS:
            return run.outcome
        outcome = str(self.device.judge(capture, run))
        if run.spoiled and (outcome == "pass" or self.poisons_first):
            return POISONS
        if outcome == "fail" and run.output is not None and len({*run.output}) == 1:
            return NOT_EXECUTED
        if outcome == "hang" and run.guessed:
            return self.device.judge(capture, run)  # type: ignore[no-any-return]
        return outcome

    def finish(self) -> None:
        """Run the controls after the last trial; raises TakenBack and Unusable."""
        if self._started and self._unchecked:
            self._check()

    def _agreed(self, capture: Capture) -> Run:
        """Run a capture until its runs agree; return the run that stands for them. Raises Unusable
        if they do not agree."""
        votes, suspect = _Votes(), False
        for _ in range(2 * self.needed + MORE_RUNS):
            if self._once:
                self._power_up()
            elif suspect:
                self._restore("a trial")
            run, stale = self._run(capture)
            outcome = self.judge(capture, run)
            if not suspect and self._doubts(outcome, votes):
                votes.checked = True
                if not self._healthy():
                    # from now on the device is powered up before each run of this trial
                    votes, suspect = _Votes(), True
                    continue
            if suspect and not self._healthy():
                said = "the known-good job then fails until power-up"
                run = replace(run, spoiled=said)
                outcome = self.judge(capture, run)
            votes.runs.append(run)
            votes.outcomes.append(outcome)
            if stale == OTHERS and run.output is not None:
                votes.stale.append(run.output)
            votes.wrote |= stale == ""
            decided = votes.decided(self.needed)
            if decided is not None:
                return self._settled(capture, votes, decided, suspect)
            between = self._other is not None and not suspect and not self._once
            if outcome == "pass" and between:
                self._control(self._other)
            elif stale == OTHERS and between:
                self._control(self.good)
        counts = ", ".join(f"{votes.outcomes.count(one)} {one}" for one in {*votes.outcomes})
        raise Unusable(f"{capture.name} ends differently from run to run ({counts})")

    def _doubts(self, outcome: str, votes: _Votes) -> bool:
        """True if the known-good job has to run after this run."""
        if self._once or votes.checked:
            return False
        return outcome != "pass" or self._careful > 0

    def _settled(self, capture: Capture, votes: _Votes, run: Run, suspect: bool) -> Run:
        """Count the errors of a decided trial and return its run; raises TakenBack if the
        known-good job failed, but not because of this trial."""
        self.errors += votes.errors(run)
        self.measured += len(votes.runs)
        self._refuse_errors()
        if suspect:
            unchecked, self._unchecked = self._unchecked, 0
            if run.spoiled:
                self._restore(capture.name)
            elif unchecked:
                self._careful = unchecked + 1
                raise TakenBack(
                    unchecked, "the known-good job failed, but the last trial is not why"
                )
            return run
        self._careful = max(self._careful - 1, 0)
        self._unchecked += 1
        if votes.checked:
            self._unchecked = 0
        return run

    @property
    def needed(self) -> int:
        """The number by which a trial's runs that end alike must exceed its other runs."""
        if not self.errors or self.agree < AGREE:
            return self.agree
        rate = min(max(self.error_rate, LEAST_RATE), MOST_RATE)
        lead = math.ceil(math.log((1 - WRONG) / WRONG) / math.log((1 - rate) / rate))
        return max(self.agree, lead)

    @property
    def error_rate(self) -> float:
        """The share of all runs that ended differently from most runs of the same job."""
        return self.errors / max(self.measured, 1)

    @property
    def error_bound(self) -> float:
        """The upper bound of the share of wrong runs, with 95 % confidence (Wilson)."""
        count, rate, square = max(self.measured, 1), self.error_rate, Z * Z
        spread = Z * math.sqrt(rate * (1 - rate) / count + square / (4 * count * count))
        return min(1.0, (rate + square / (2 * count) + spread) / (1 + square / count))

    def _refuse_errors(self) -> None:
        if self.measured >= MEASURED and self.error_rate > MOST_RATE:
            raise Unusable(
                f"{self.errors} of {self.measured} runs ended differently from other runs of the "
                "same job",
                self._unchecked,
            )

    # ------------------------------------------------------------------------------------------
    # controls

    def _start(self) -> None:
        """Run the controls before the first trial."""
        self._see_fingerprint()
        if self._boot is not None:
            self._boot_id = said_by(self._boot, "boot")
        if not self._healthy():
            self._restore("the start")
        self._other = self._writes_other()
        if self.bad is not None:
            self._begin_with(self.bad)
        self._started = True
        self._unchecked = 0

    def _begin_with(self, bad: Capture) -> None:
        """Find out if the known-bad job poisons the device, and if the device executes only the
        first job after a power-up; raises Unusable if the known-bad job passes twice."""
        run = self._control(bad)
        passed = not self.controls[-1].held
        if passed:
            self._power_up()
            run = self._control(bad)
            if not self.controls[-1].held:
                raise self._lying()
        if self._healthy():
            self.errors += passed
            if self._other is None and run.outcome == "done" and run.output is not None:
                self._other = bad
            return
        self._restore("the known-bad job")
        after_good = self._ending(bad)
        self._power_up()
        alone = self._ending(bad)
        self._bad_poisons = after_good == alone
        self._once = not self._bad_poisons
        if self._once and not self.can_recover:
            raise Unusable("only the first job after a power-up is executed, and no reset is known")
        self._restore("the known-bad job")

    def _writes_other(self) -> Capture | None:
        """The good job with each byte of its input inverted; None if the device does not give
        another output for it."""
        own = self.good.buffers.get(INPUT)
        if not own or OUTPUT not in self.good.buffers:
            return None
        inverted = bytes(255 - byte for byte in own)
        other = self.good.with_buffers(**{INPUT: inverted})
        run = self._control(other)
        if run.outcome != "done" or run.output is None or not self.controls[-1].held:
            return None
        return other

    def _ending(self, capture: Capture) -> tuple[str, bytes | None]:
        """Run a capture once; return the outcome and the output."""
        run = self._run(capture)[0]
        return run.outcome, run.output

    def _lying(self) -> Unusable:
        tries = [one for one in self.controls if one.control == "bad"]
        passed = sum(not one.held for one in tries)
        return Unusable(
            f"the device cannot be trusted: the known-bad job gives the known-good output "
            f"({passed} of {plural(len(tries), 'run')}), as if it answered without running it",
            self._unchecked,
        )

    def _check(self) -> None:
        """Run the controls between or after trials; raises TakenBack if the known-good job failed
        and passes again after a power-up."""
        unchecked = self._unchecked
        self._see_fingerprint()
        if not self._healthy():
            self._restore(f"the last {plural(unchecked, 'trial')}")
            self._unchecked, self._careful = 0, unchecked
            raise TakenBack(unchecked, "the known-good job failed")
        if self.bad is not None:
            self._check_bad(self.bad)
        self._unchecked = 0

    def _check_bad(self, bad: Capture) -> None:
        """Run the known-bad job until it does not pass; raises Unusable if it passes ``RESTS``
        times."""
        for _ in range(RESTS):
            if self._other is not None and self._other is not bad:
                # without this run, a bad job that is not executed would leave the good job's output
                self._control(self._other)
            self._control(bad)
            held = self.controls[-1].held
            if self._bad_poisons:
                self._restore("the known-bad job")
            if held:
                return
        raise self._lying()

    def _healthy(self) -> bool:
        """Run the known-good job; True if it passes. If it fails without a hang or a reboot, it
        runs once more, since one run may be in error."""
        run = self._control(self.good)
        if self.controls[-1].held:
            return True
        if run.outcome in ("hang", REBOOTS):
            return False
        self._control(self.good)
        passed = self.controls[-1].held
        self.errors += passed
        return passed

    def _restore(self, after: str) -> None:
        """Power the device up, at most ``RESTS`` times, until the known-good job passes; raises
        Unusable if it does not. ``after`` names what made the job fail."""
        for _ in range(RESTS):
            if not self._once:
                self._power_up()
            self._control(self.good)
            if self.controls[-1].held:
                return
        self._see_fingerprint()
        tries = [one for one in self.controls if one.control == "good"]
        failed = sum(not one.held for one in tries)
        how = f"after each of {RESTS} power-ups"
        if not self.can_recover:
            how = f"{RESTS} times more, and the device has no reset that would power it up"
        raise Unusable(
            f"the device is not usable after {after}: the known-good job fails {how} ({failed} of "
            f"{plural(len(tries), 'control')} failed, the last: {tries[-1].outcome})",
            self._unchecked,
        )

    def _control(self, control: Capture | None) -> Run:
        """Run a control once, and add to ``controls`` whether it ended as it should."""
        assert control is not None
        if self._once:
            self._power_up()
        run = self._run(control)[0]
        passed = self._passes(control, run)
        name, outcome = "other", run.outcome
        if control is self.good:
            name = "good"
        elif control is self.bad:
            name = "bad"
        if outcome == "done":
            outcome = "fail"
        if passed:
            outcome = "pass"
        held = passed == (name == "good")
        self.controls.append(Checked(name, outcome, held, self.runs))
        self.measured += 1
        return run

    def _passes(self, control: Capture, run: Run) -> bool:
        """True if a run gave the output of the known-good job. If one of the two outputs is not
        known, the device judges."""
        if run.outcome != "done":
            return False
        expected = self.good.buffers.get(OUTPUT)
        if expected is None or run.output is None:
            return bool(self.device.judge(control, run) == "pass")
        return run.output == expected

    def _see_fingerprint(self) -> None:
        """Read the device's fingerprint; raises Unusable if it changed."""
        now = fingerprint_of(self.device, self._asked)
        before = self.fingerprint
        if before is not None and now is not None and before != now:
            raise Unusable(f"the device changed: {before.changes(now)}", self._unchecked)
        self.fingerprint = now

    # ------------------------------------------------------------------------------------------
    # the device

    @property
    def can_recover(self) -> bool:
        """True if the device can be powered up."""
        device = self.device
        if isinstance(device, Command):
            return device.reset is not None
        if isinstance(device, InProcess):
            return callable(getattr(device.device, "reset", None))
        return callable(getattr(device, "recover", None))

    def _power_up(self) -> bool:
        """Power the device up; False if there is no way to."""
        if not self.can_recover:
            return False
        self.device.recover()
        self.power_ups += 1
        self._began("power-up")
        if self._boot is not None:
            self._boot_id = self._woken()
        return True

    def _began(self, since: str) -> None:
        self._jobs, self._since, self._before = 0, since, ""

    def _run(self, capture: Capture) -> tuple[Run, str]:
        """Run a capture once; return the run, and a text that says if its output was in memory
        before: "" if not, ``OWN`` if the last job was the same job, else ``OTHERS``."""
        fill = FILLS[self.runs % len(FILLS)]
        asked = capture
        if self._fills:
            asked = replace(capture, parameters={**capture.parameters, FILL: fill})
        self.runs += 1
        try:
            run = self.device.run(asked)
        except NotRun as error:
            if self._boot is None:
                raise
            run = Run("hang", reason=str(error))
        job = content_hash(capture)[:SHORT]
        self._jobs += 1
        stale = ""
        if run.output is not None and run.output == self._held:
            stale = OTHERS
            if job == self._before:
                stale = OWN
        if run.outcome == "hang":
            self._began("hang")
        self._before = job
        if run.output:
            self._held = run.output
        if run.output and run.output == bytes([fill]) * len(run.output):
            said = "the output holds the byte with which it was filled before the run"
            return Run(NOT_EXECUTED, reason=said), OTHERS
        if run.outcome != "done" and self._boot is not None:
            run = self._seen_boot(run)
        return run, stale

    def _seen_boot(self, run: Run) -> Run:
        """The run; with the outcome "reboots" if the boot text changed during it, unless a hang
        explains the change."""
        now = self._woken()
        if now == self._boot_id:
            return run
        reason = f"the device began anew: boot was {self._boot_id!r:.60}, is {now!r:.60}"
        self._boot_id = now
        self._began("reboot")
        # a device that powers itself up after a hang has not rebooted because of the job
        if run.outcome == "hang" and self._resets_itself:
            return run
        return Run(REBOOTS, reason=reason)

    @property
    def _resets_itself(self) -> bool:
        """True if the device is reset after each hang, so that a hang changes the boot text."""
        return isinstance(self.device, Command) and self.device.reset is not None

    def _woken(self) -> str:
        """The boot text, asked for until the device answers, at most ``WAKE`` seconds long."""
        assert self._boot is not None
        until = time.monotonic() + WAKE
        while True:
            try:
                return said_by(self._boot, "boot")
            except NotRun:
                if time.monotonic() > until:
                    raise
                time.sleep(PAUSE)

    # ------------------------------------------------------------------------------------------
    # what the controls say

    def facts_now(self) -> dict[str, Any]:
        """What is known of the last trial, for a journal."""
        return self.facts

    def counts(self, control: str) -> tuple[int, int]:
        """How many runs of a control, "good" or "bad", ended as they should, and how many ran."""
        ran = [one for one in self.controls if one.control == control]
        return sum(one.held for one in ran), len(ran)

    @property
    def sentence(self) -> str:
        """A sentence on what the controls say of the device."""
        if not self.controls:
            return "no control has run"
        held, ran = self.counts("good")
        text = f"the known-good job passed in {held} of {plural(ran, 'control')}"
        held, ran = self.counts("bad")
        if ran:
            text += f", the known-bad one did not in {held} of {ran}"
        else:
            text += ", no known-bad job would show a device that passes everything"
        text += (
            f"; {self.errors} of {self.measured} runs erred, at most {self.error_bound:.1%} (95 %)"
        )
        text += f"; {plural(self.power_ups, 'power-up')}"
        if self._once:
            text += "; only the first job after a power-up is executed"
        if self._bad_poisons:
            text += "; the known-bad job poisons the device"
        return text

    def __repr__(self) -> str:
        return f"Controlled({self.device!r}: {self.sentence})"


def _innermost(device: Any) -> Any:
    """The device that runs captures itself, inside all devices that are wrapped around it."""
    while isinstance(device, Around) and getattr(device, "device", None) is not None:
        device = device.device
    return device


def facts_of(oracle: Callable[[Capture], str]) -> dict[str, Any]:
    """What a journal records of the last trial of a device with controls, which ``oracle`` is or
    has inside; an empty dict for any other oracle."""
    found = controlled_of(oracle)
    if found is None:
        return {}
    return found.facts


def controlled_of(oracle: Any) -> Controlled | None:
    """The device with controls that an oracle is or has inside; None if there is none."""
    while oracle is not None and not isinstance(oracle, Controlled):
        oracle = getattr(oracle, "device", None)
    return oracle


def refuse_workers(oracle: Any, executor: object) -> None:
    """Raise ValueError if an ``executor`` is given for a device with controls, which has to run
    its controls and trials in order."""
    if executor is not None and controlled_of(oracle) is not None:
        raise ValueError(
            "executor: got workers with a device with controls, allowed is executor=None, as "
            "controls run before and after the trials"
        )
