"""Verdicts: the answer of a bisection as a file, and a check whether it still holds."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from npulab.analysis.bisect import Bisected, Bisection
from npulab.analysis.check import Key
from npulab.captures import store
from npulab.captures.capture import Capture
from npulab.captures.controlled import Controlled, Unusable
from npulab.captures.fingerprints import content_hash
from npulab.captures.journal import Journal
from npulab.captures.verdicts import Verdict, input_of, sums_of
from npulab.support.answers import Answer, Part, Table
from npulab.support.distributions import version_of
from npulab.support.text import Row, plural

QUESTION = "bisect"
HOLDS, BROKEN = "holds", "does not hold"


def verdict_of(
    found: Bisected,
    controlled: Controlled,
    *,
    paths: Mapping[str, str],
    device: str,
    settings: Mapping[str, Any],
    command: Sequence[str] = (),
) -> Verdict:
    """The verdict of a bisection on a device with controls.

    ``paths`` are the paths of the captures ``good`` and ``bad``, and of ``good control`` and ``bad
    control`` if these are other captures. ``settings`` are the options of ``Bisection``, as types
    of JSON. ``device`` is the text that names the device.
    """
    captures = {"good": found.good, "bad": found.bad, "good control": controlled.good}
    if controlled.bad is not None:
        captures["bad control"] = controlled.bad
    fingerprint = ""
    if controlled.fingerprint is not None:
        fingerprint = controlled.fingerprint.text
    return Verdict(
        {
            "made with": f"npulab {version_of('npulab')}",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "question": QUESTION,
            "command": [*command],
            "device": device,
            "inputs": {name: input_of(captures[name], path) for name, path in paths.items()},
            "settings": dict(settings),
            "fingerprint": fingerprint,
            "controls": {
                "runs": [asdict(one) for one in controlled.controls],
                "errors": controlled.errors,
                "measured": controlled.measured,
                "says": controlled.sentence,
            },
            "journal": found.journal.text,
            "outcome": {
                "found": found.found,
                "groups": [[[*key] for key in group] for group in found.groups],
                "sentence": found.sentence,
            },
        }
    )


@dataclass(frozen=True)
class Point:
    """One point of a verdict: ``what`` was checked, whether it ``holds``, and how, or why not."""

    what: str
    holds: bool
    text: str


@dataclass(frozen=True)
class Rechecked(Answer):
    """A verdict that was checked again, point by point; ``holds`` is True if every point does."""

    sentence: str
    points: tuple[Point, ...]

    @property
    def holds(self) -> bool:
        return all(point.holds for point in self.points)

    def records(self) -> list[Row]:
        rows: list[Row] = [{"holds": self.holds, "sentence": self.sentence}]
        return rows + [asdict(point) for point in self.points]

    @property
    def parts(self) -> list[Part]:
        rows = []
        for point in self.points:
            verdict = BROKEN
            if point.holds:
                verdict = HOLDS
            rows.append({"what": point.what, "verdict": verdict, "text": point.text})
        wrong = sum(not point.holds for point in self.points)
        end = "the verdict holds"
        if wrong:
            end = f"the verdict does not hold: {wrong} of {plural(len(self.points), 'point')}"
        return [self.sentence, Table(rows, ("what", "verdict", "text")), end]


def recheck(verdict: Verdict, folder: Path = Path(), device: Any = None) -> Rechecked:
    """Check a verdict again: the files of its inputs, its controls, and the answer that its journal
    gives. With a ``device``, also run the controls, and each group of culprits alone.

    Paths are relative to the working folder or, if there is no such file, to ``folder``. Raises
    ValueError if an input is no capture, or the journal cannot be read.
    """
    points = []
    captures = {}
    for name, stated in verdict["inputs"].items():
        path = _place(stated["path"], folder)
        points.append(_same_files(name, path, stated))
        # after its files changed, an input may no longer be a capture
        if points[-1].holds:
            captures[name] = store.load(path)
            points.append(_same_content(name, captures[name], stated))
    points += _controls_hold(verdict["controls"]["runs"])
    if {"good", "bad"} <= captures.keys():
        found = _recounted(verdict, captures["good"], captures["bad"])
        points.append(_same_outcome(verdict["outcome"], found))
        if device is not None:
            points += _replayed(found, captures, device)
    return Rechecked(verdict["outcome"]["sentence"], tuple(points))


def _place(path: str, folder: Path) -> Path:
    if Path(path).exists():
        return Path(path)
    return folder / path


def _same_files(name: str, path: Path, stated: Mapping[str, Any]) -> Point:
    what = f"files of {name}"
    try:
        now = sums_of(path)
    except OSError as error:
        return Point(what, False, f"{path}: {error.strerror or error}")
    for file in sorted(now.keys() | stated["files"].keys()):
        if now.get(file) != stated["files"].get(file):
            return Point(what, False, f"{path}: {file} is not as it was")
    return Point(what, True, f"{path}: {plural(len(now), 'file')} as they were")


def _same_content(name: str, capture: Capture, stated: Mapping[str, Any]) -> Point:
    now = content_hash(capture)
    text = f"sha256 {now[:12]} of what a device gets"
    return Point(f"content of {name}", now == stated["content"], text)


def _controls_hold(runs: Sequence[Mapping[str, Any]]) -> list[Point]:
    """One point for each control, which holds if the control ran and held in its last run."""
    points = []
    for name in ("good", "bad"):
        held = [bool(run["held"]) for run in runs if run["control"] == name]
        text = f"held in {sum(held)} of {plural(len(held), 'run')}"
        if held and not held[-1]:
            text += ", and not in the last"
        points.append(Point(f"known-{name} control", bool(held) and held[-1], text))
    return points


def _recounted(verdict: Verdict, good: Capture, bad: Capture) -> Bisected:
    """The answer that the trials of a verdict's journal give."""
    with tempfile.TemporaryDirectory(prefix="npulab-") as scratch:
        path = Path(scratch, "journal.jsonl")
        path.write_text(verdict["journal"], encoding="utf-8")
        session = Bisection(good, bad, journal=Journal.read(path), **verdict["settings"])
        return session.result


def _same_outcome(stated: Mapping[str, Any], found: Bisected) -> Point:
    # if controls ended the search, the stated answer may lack ``found``, which the journal gives
    groups = tuple(tuple(_key(key) for key in group) for group in stated["groups"])
    same = groups == found.groups and bool(stated["found"]) <= found.found
    trials = plural(found.queries, "trial")
    text = f"{trials} of the journal say: {found.sentence}"
    return Point("outcome recounted", same, text)


def _key(stated: Sequence[Any]) -> Key:
    task, block, register, field = stated
    return task, block, register, field


def _replayed(found: Bisected, captures: Mapping[str, Capture], device: Any) -> list[Point]:
    """The points that runs on a device give: one for each control, and one for each group of
    culprits alone.
    """
    good = captures.get("good control")
    # ``bisect`` compares outputs with those that the device expects, so the good control gets these
    if good is None:
        good = found.good
        if getattr(device, "expected", None) is not None:
            good = good.with_buffers(output=device.expected)
    bad = captures.get("bad control", found.bad)
    oracle = device
    if not isinstance(device, Controlled):
        oracle = Controlled(device, good, bad)
    points = []
    try:
        for group, capture in zip(found.groups, found.captures, strict=True):
            names = ", ".join(key[3] for key in group)
            outcome = oracle(capture)
            points.append(Point(f"{names} on the device", outcome != "pass", f"ends in {outcome}"))
        oracle.finish()
    except Unusable as error:
        return [*points, Point("controls on the device", False, str(error))]
    return [*points, Point("controls on the device", True, oracle.sentence)]
