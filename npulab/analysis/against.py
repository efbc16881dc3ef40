"""Captures that are run on a device: its output is compared with the captured output, or with the
output of another device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.compared import (
    OUTPUT,
    counted,
    never_written,
    outputs_of,
    rest_left,
    surely_written,
    values_of,
)
from npulab.captures.capture import Capture
from npulab.captures.devices import Simulated
from npulab.captures.registry import target
from npulab.captures.target import Run, Unsupported, place_of
from npulab.support.answers import Answer, Part, Table, compared_rows
from npulab.support.processes import NotRun, Stopped
from npulab.support.refuse import reason
from npulab.support.text import Row

EQUAL, DIFFERS, PARTLY = "equal", "differs", "partly compared"
ONE_VALUE, NOTHING, NOT_COVERED = "one value", "nothing to compare", "not covered"
HANG, FAILED, UNSTEADY, BOTH_HANG = "hang", "failed", "unsteady", "both hang"
WRONG = (DIFFERS, HANG, FAILED, UNSTEADY)  # the verdicts for which ``DeviceCheck.ok`` is False
COLUMNS = (
    "case",
    "target",
    "provenance",
    "compared",
    "mismatches",
    "verdict",
    "reason",
)


# The members of a ``DeviceCheck`` that ``records`` and ``--json`` write, in this order.
RECORDED = (
    "case",
    "target",
    "provenance",
    "simulated",
    "device",
    "against",
    "against_simulated",
    "compared",
    "mismatches",
    "first",
    "unit",
    "verdict",
    "reason",
)


@dataclass(frozen=True, eq=False)
class DeviceCheck:
    """The bytes that a device computes for a capture, against the captured output or what another
    device computes.

    ``verdict``:

    - ``equal``: both sides have the same bytes.
    - ``partly compared``: the compared part is equal; ``reason`` names what was not compared.
    - ``one value``: both have the same bytes, but memory that no job wrote may hold these.
    - ``differs``, ``nothing to compare``.
    - ``hang``, ``failed``: a run on a device ended so. ``both hang``: the runs on both devices
      hung.
    - ``not covered``: the simulated device does not cover the capture.
    - ``unsteady``: the device did not end alike in two runs of the capture, or no longer runs a
      capture that it ran before; it may keep a state from job to job.

    ``compared`` bytes were compared and ``mismatches`` differ, ``first`` is the place of the first
    that differs; a byte that one side lacks differs. ``against`` names the device, ``device`` the
    other device, None for the captured output, whose origin is ``provenance``. ``simulated`` and
    ``against_simulated`` are True if npulab's own device computed that side.
    """

    case: str
    target: str
    provenance: str
    simulated: bool
    against: str
    against_simulated: bool
    verdict: str
    device: str | None = None
    compared: int = 0
    mismatches: int = 0
    first: int | None = None
    reason: str = ""
    unit: ClassVar[str] = "byte"

    @property
    def ok(self) -> bool:
        """True if nothing differs, and no device failed."""
        return self.verdict not in WRONG

    def records(self) -> list[Row]:
        return [{name: getattr(self, name) for name in RECORDED}]

    def __repr__(self) -> str:
        parts = [self.verdict]
        if self.reason:
            parts.append(self.reason)
        return f"DeviceCheck({self.case}: {', '.join(parts)})"


@dataclass(frozen=True, eq=False)
class DeviceChecks(Answer):
    """The results of captures on the same devices. It also counts the captures that could not be
    read, and in ``left`` those that did not run because a device could run nothing more.
    """

    results: Sequence[DeviceCheck]
    unreadable: int = 0
    left: int = 0

    @property
    def ok(self) -> bool:
        """True if every result is ``ok``."""
        return all(result.ok for result in self.results)

    @property
    def empty(self) -> bool:
        """True if no byte of any capture was compared."""
        return not any(result.compared for result in self.results)

    def records(self) -> list[Row]:
        rows: list[Row] = []
        for result in self.results:
            rows += result.records()
        return rows

    @property
    def parts(self) -> list[Part]:
        return [Table(compared_rows(self.results), COLUMNS), self._sentence()]

    def __repr__(self) -> str:
        return f"DeviceChecks({self._sentence()})"

    def _sentence(self) -> str:
        sides = ""
        if self.results:
            sides = f" {_sides_in_words(self.results[0])}"
        others = {"unreadable": self.unreadable, "not run": self.left}
        return counted(self.results, sides, ("differs or fails", "differ or fail"), others)


def _sides_in_words(result: DeviceCheck) -> str:
    """Return text: which two sides were compared, and which of them are npulab's own device."""
    text = f"against {result.against}"
    if result.device is not None:
        text = f"on {result.device} against {result.against}"
    if Simulated.provenance in (result.device, result.against):
        text += f" ({Simulated.provenance} is npulab's own device)"
    return text


@dataclass(frozen=True)
class Side:
    """A device, and the ``text`` that names it."""

    text: str
    device: Any

    @property
    def own(self) -> bool:
        """True for npulab's own simulated device, which runs each capture after a reset."""
        return isinstance(self.device, Simulated)

    @property
    def provenance(self) -> str:
        """The provenance that the device states; "device" if it states none."""
        return getattr(self.device, "provenance", None) or "device"

    @property
    def simulated(self) -> bool:
        """True for npulab's own device, and for one that states that it is simulated."""
        return self.provenance == Simulated.provenance

    def run(self, capture: Capture) -> Run:
        """Run a capture; an error of the device is an outcome: "not covered" or "failed".

        Raises NotRun if a program could not be run, and Stopped if it was stopped.
        """
        try:
            return self.device.run(capture)
        except (NotRun, Stopped):
            raise
        except Unsupported as error:
            return Run(NOT_COVERED, reason=str(error))
        except Exception as error:  # a device may be a user's code, which may raise anything
            return Run(FAILED, reason=_of_error(error))

    def recover(self) -> None:
        """Reset the device, if it can be reset; raises NotRun if that fails."""
        recover = getattr(self.device, "recover", None)
        if recover is None:
            return
        try:
            recover()
        except (NotRun, Stopped):
            raise
        except Exception as error:
            raise NotRun(f"{self.text}: the reset failed: {_of_error(error)}") from None


def _of_error(error: Exception) -> str:
    """Return an error of a device as text: a sentence unchanged, any other error with its type and
    place.
    """
    if isinstance(error, ValueError | OSError) and str(error):
        return reason(error)
    return f"{type(error).__name__}: {error}, at {place_of(error, str(Path.cwd()))}"


@dataclass(frozen=True)
class Good:
    """A capture on which the sides agreed, with the bytes that each device then gave."""

    capture: Capture
    outputs: Sequence[bytes | None]


@dataclass
class Sides:
    """The two sides of a check: the device ``against``, and the device ``first``, or the captured
    output if ``first`` is None.

    A device may keep a state from job to job. So a capture that is not equal runs again on a device
    that is not npulab's own. First the device is reset, and a known-good capture, the probe, has to
    end as it did before. A capture becomes the probe if it was equal and the next one was equal,
    too: then it does not spoil the device. The object remembers the probe.
    """

    against: Side
    first: Side | None = None
    _probe: Good | None = field(default=None, init=False)
    # the capture that ran last, if it was equal
    _last: Good | None = field(default=None, init=False)
    # the name of the capture that ran last
    _before: str = field(default="", init=False)
    # a sentence on why a device can run no further capture; "" if it can
    _stuck: str = field(default="", init=False)

    def check(self, capture: Capture) -> DeviceCheck:
        """Run a capture and compare the outputs. Raises NotRun if a program could not be run, or if
        a device no longer runs what it ran before.
        """
        if self._stuck:
            raise NotRun(self._stuck)
        absent = self._absent(capture)
        if absent:
            return replace(self._result(capture), verdict=NOTHING, reason=absent)
        runs = self._runs(capture)
        result = self._judged(capture, runs)
        spoiled = [run.spoiled for run in runs if run.spoiled]
        result = replace(result, reason=_joined(result.reason, *spoiled))
        if not result.ok:
            result = self._settled(capture, result, runs)
        elif spoiled:
            self._recover(runs)
        if result.verdict == EQUAL:
            self._probe = self._last or self._probe
            self._last = Good(capture, [run.output for run in runs])
        else:
            self._last = None
        self._before = capture.name
        return result

    @property
    def _devices(self) -> list[Side]:
        """The devices, in the order in which they run."""
        if self.first is None:
            return [self.against]
        return [self.first, self.against]

    def _absent(self, capture: Capture) -> str:
        """Return why the captured output cannot be compared; "" if it can, or is not needed."""
        if self.first is not None:
            return ""
        if not capture.buffers.get(OUTPUT):
            return "no output recorded"
        if capture.before_run:
            return "the output was recorded before the job ran"
        return ""

    def _result(self, capture: Capture) -> DeviceCheck:
        origin, simulated, text = capture.origin, capture.simulated, None
        if self.first is not None:
            text, simulated = self.first.text, self.first.simulated
            origin = self.first.provenance
        return DeviceCheck(
            capture.name,
            capture.target,
            origin,
            simulated,
            self.against.text,
            self.against.simulated,
            EQUAL,
            text,
        )

    def _runs(self, capture: Capture) -> list[Run]:
        return [side.run(capture) for side in self._devices]

    def _names(self) -> list[str]:
        """Return the names of the devices, as a ``reason`` uses them."""
        names = ["the device"]
        if self.first is not None:
            names = ["the first device", "the other device"]
        for number, side in enumerate(self._devices):
            if side.own:
                names[number] = Simulated.provenance
        return names

    def _judged(self, capture: Capture, runs: Sequence[Run]) -> DeviceCheck:
        """Return the result of a capture from its runs, one on each device."""
        result = self._result(capture)
        said = []
        for name, run in zip(self._names(), runs, strict=True):
            if run.outcome != "done" or run.output is None:
                said.append(_ending(name, run))
        text = "; ".join(said)
        ends = [_end_of(run) for run in runs]
        for verdict in (FAILED, NOT_COVERED):
            if verdict in ends:
                return replace(result, verdict=verdict, reason=text)
        if ends == [HANG, HANG]:
            return replace(result, verdict=BOTH_HANG, reason=text)
        if HANG in ends:
            return replace(result, verdict=HANG, reason=text)
        given, names = [run.output or b"" for run in runs], self._names()
        sure = [side.own for side in self._devices]
        if self.first is None:
            given.insert(0, capture.buffers[OUTPUT])
            names.insert(0, "captured")
            sure.insert(0, surely_written(capture))
        else:
            # two devices are compared at the same places, those of the first device's output
            capture = replace(capture, buffers={**capture.buffers, OUTPUT: given[0]})
        return _compared(result, capture, given, names, sure)

    def _settled(self, capture: Capture, result: DeviceCheck, runs: Sequence[Run]) -> DeviceCheck:
        """Run a capture again that the devices did not run equally; return its result, which is
        ``UNSTEADY`` if the runs differ."""
        if all(side.own for side in self._devices):
            return result
        try:
            self._recover(runs)
            if self._probe is not None and not self._ready(self._probe):
                return self._lost(result, self._probe)
            again = self._runs(capture)
            if list(map(_what, again)) != list(map(_what, runs)):
                result = self._changed(result, self._judged(capture, again))
            return self._left(result, again)
        except NotRun as error:
            self._stuck = reason(error)
            how = f"not run again: {self._stuck}"
            return replace(result, verdict=UNSTEADY, reason=_joined(result.reason, how))

    def _changed(self, result: DeviceCheck, other: DeviceCheck) -> DeviceCheck:
        """Return the result of a capture that did not end alike in two runs."""
        how = f"run again: {_joined(other.verdict, other.reason)}"
        after = ""
        if self._before:
            after = f"{self._before} ran before it and may have spoiled the device"
        return replace(result, verdict=UNSTEADY, reason=_joined(result.reason, how, after))

    def _left(self, result: DeviceCheck, runs: Sequence[Run]) -> DeviceCheck:
        """Check with the probe if the last runs of a capture spoiled the devices, make the devices
        ready for another capture, and return the result of this capture.
        """
        probe = self._probe or self._last
        if probe is None:
            self._recover(runs)
            if not self._before:
                return result
            how = "no capture was equal before it, so what ran before may have spoiled the device"
            return replace(result, reason=_joined(result.reason, how))
        if not self._spoiled(probe):
            if self._probe is None:
                self._reset()  # this capture may spoil the device: the next one will tell
            return result
        name = probe.capture.name
        if not self._ready(probe):
            return self._lost(result, probe)
        self._reset()
        if self._probe is not None:
            how = f"it spoils the device: {name} then ends otherwise"
            return replace(result, reason=_joined(result.reason, how))
        # without a probe it is open which of the two captures spoiled the device
        how = f"{name} then ended otherwise than before, so one of the two spoils the device"
        return replace(result, verdict=UNSTEADY, reason=_joined(result.reason, how))

    def _lost(self, result: DeviceCheck, probe: Good) -> DeviceCheck:
        """Return the result of a capture after which the device no longer works."""
        self._stuck = (
            f"the device no longer gives the output of {probe.capture.name}, which it gave before"
        )
        return replace(result, verdict=UNSTEADY, reason=_joined(result.reason, self._stuck))

    def _recover(self, runs: Sequence[Run]) -> None:
        """Reset each device that did not hang; a device that hung has reset itself."""
        for side, run in zip(self._devices, runs, strict=True):
            if run.outcome != HANG:
                side.recover()

    def _reset(self) -> None:
        for side in self._devices:
            side.recover()

    def _spoiled(self, probe: Good) -> bool:
        """Run a probe; True if a device, not npulab's own, writes another output than before."""
        wrong = False
        for side, output in zip(self._devices, probe.outputs, strict=True):
            if not side.own and side.run(probe.capture).output != output:
                wrong = True
        return wrong

    def _ready(self, probe: Good) -> bool:
        """True if a probe ends as before; if it does not, it is run once more, after a reset."""
        if not self._spoiled(probe):
            return True
        self._reset()
        return not self._spoiled(probe)


def _joined(*texts: str) -> str:
    return "; ".join(filter(None, texts))


def _what(run: Run) -> tuple[str, bytes | None]:
    return run.outcome, run.output


def _end_of(run: Run) -> str:
    """Return how a run ended: "done", or a verdict."""
    if run.outcome in (HANG, NOT_COVERED):
        return run.outcome
    if run.outcome == "done" and run.output is not None:
        return run.outcome
    return FAILED


def _ending(name: str, run: Run) -> str:
    """Return text: how a run without an output ended."""
    verb = {HANG: "hangs", NOT_COVERED: "does not cover it"}.get(run.outcome, "failed")
    if run.reason:
        return f"{name} {verb}: {run.reason}"
    return f"{name} {verb}"


def _compared(
    result: DeviceCheck,
    capture: Capture,
    given: Sequence[bytes],
    names: Sequence[str],
    sure: Sequence[bool],
) -> DeviceCheck:
    """Return the result of comparing the outputs ``given`` of two sides; ``capture`` holds the
    first. A side is ``sure`` if npulab's own device wrote its output.
    """
    ours, theirs = given
    wrong = _places_apart(ours, theirs)
    behind = max(len(theirs) - len(ours), 0)  # bytes that only ``theirs`` has: all differ
    fill, unseen = _fill(capture, wrong, ours, theirs)
    if result.device is not None:
        # devices write also the bytes that hold no value, so between two devices all bytes count
        fill = wrong[:0]
    left = [f"buffer {name!r} was not compared" for name in outputs_of(capture) if name != OUTPUT]
    left = [*filter(None, [unseen]), *left]
    counted = np.setdiff1d(wrong, fill)
    size, count = len(ours) + behind - len(fill), len(counted) + behind
    result = replace(result, compared=size, mismatches=count)
    if count:
        first = int(min(counted, default=len(ours)))
        said = [_unlike_in_words(given, names, count, first, size)]
        for name, data, known in zip(names, given, sure, strict=True):
            if never_written(data) and not known:
                said.append(f"{name}: every byte is {data[0]:02X}, as in memory that no job wrote")
        return replace(result, verdict=DIFFERS, first=first, reason=_joined(*said, *left))
    if not size:
        return replace(result, verdict=NOTHING, reason=_joined("no byte was compared", *left))
    if _constant(theirs) and not all(sure):
        same = f"every byte is {theirs[0]:02X}, as memory may be that no job wrote"
        return replace(result, verdict=ONE_VALUE, reason=_joined(same, *left))
    if left:
        return replace(result, verdict=PARTLY, reason=_joined(*left))
    return result


def _places_apart(ours: bytes, theirs: bytes) -> Array:
    """Return the places of the bytes of ``ours`` that ``theirs`` lacks or that differ there."""
    both = min(len(ours), len(theirs))
    a, b = np.frombuffer(ours, np.uint8, both), np.frombuffer(theirs, np.uint8, both)
    return np.concatenate([np.flatnonzero(a != b), np.arange(both, len(ours))])


def _fill(capture: Capture, wrong: Array, ours: bytes, theirs: bytes) -> tuple[Array, str]:
    """Return the places in ``wrong`` that hold no value of the output, and a sentence about them:
    "" if there are none, or if they only fill a driver's page.

    If it is not known which bytes hold values, all bytes count as values, except those that fill a
    page.
    """
    if not len(wrong):
        return wrong, ""
    paged = len(theirs) < len(ours) and not rest_left(capture, len(theirs))
    known = values_of(target(capture.target), capture)
    if known is None and paged:
        rest = len(ours) - len(theirs)
        return (
            np.arange(len(theirs), len(ours)),
            f"{rest} of {len(ours)} bytes, the rest of a page, are on one side only",
        )
    if known is None:
        return wrong[:0], ""
    fill = np.setdiff1d(wrong, known)
    told = fill
    if paged:
        told = fill[fill < len(theirs)]
    if not len(told):
        return fill, ""
    return fill, f"{len(told)} of {len(ours)} bytes hold no value of the output and differ (fill)"


def _unlike_in_words(
    given: Sequence[bytes], names: Sequence[str], count: int, first: int, size: int
) -> str:
    """Return text: how many bytes of two outputs differ, the first of them, and unequal lengths."""
    seen = []
    for name, data in zip(names, given, strict=True):
        value = "none"
        if first < len(data):
            value = f"{data[first]:02X}"
        seen.append(f"{name} {value}")
    text = f"{count} of {size} bytes differ, the first at {first:#x}: {', '.join(seen)}"
    if len(given[0]) == len(given[1]):
        return text
    sizes = [f"{name} {len(data)} bytes" for name, data in zip(names, given, strict=True)]
    return f"the outputs differ in length: {', '.join(sizes)}; {text}"


def _constant(data: bytes) -> bool:
    """True if all bytes are the same; a single byte must also be one of ``FRESH``."""
    return never_written(data) or (len(data) > 1 and len(set(data)) == 1)
