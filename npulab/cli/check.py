"""``npulab check`` and ``unread``: compare captures with their emulation, one by one or as a
model's run, or with a device; list the fields that lift does not read.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from npulab.analysis.against import DeviceChecks, Side, Sides
from npulab.analysis.check import check
from npulab.analysis.checks import Checks, nearby
from npulab.analysis.ignored import SAME, ignored_fields
from npulab.analysis.mismatch.model_run import check_run
from npulab.captures import store
from npulab.captures.capture import Capture
from npulab.captures.devices import Command, Manual, device
from npulab.captures.documents import Document, document
from npulab.cli.devices import (
    OF_PROGRAMS,
    program_settings,
    refuse_settings,
)
from npulab.cli.output import REFUSED, each, sentence, show, tell
from npulab.cli.terminal import Bar, progress
from npulab.cli.workers import has_workers, mapped, workers_of
from npulab.support.answers import Answer, Part, Table
from npulab.support.processes import NotRun
from npulab.support.refuse import near
from npulab.support.text import plural

# The exit status if nothing differs, but no recorded output was compared.
NOTHING_COMPARED = 3

MOST_NAMED = 12  # an error text names at most this many cases
UNREAD = ("task", "block", "register", "field", "raw", "all", "effect", "evidence")


def _run_check(options: argparse.Namespace) -> int:
    sides = _sides(options)
    read, refused = each(partial(_contents, sides), options.paths)
    status = 0
    if refused:
        status = 2
    paths = []
    for path, found in read:
        if found is None:
            paths.append(path)
            continue
        checked = found.checked()
        show(options, checked)
        status = max(status, int(not checked.ok))
    if paths:
        status = max(status, _captures(options, paths, sides))
    return status


def _contents(sides: Sides | None, path: str) -> tuple[str, Document | None]:
    """Return a path with the document at it (a file that a target can list, such as a model's run),
    or with None if the path holds captures.

    Raises ValueError for a document if ``sides`` are given, because devices run only captures.
    """
    found = document(path)
    if found is not None and sides is not None:
        raise ValueError(
            f"{path}: got a file without a capture, allowed with --against are captures"
        )
    return path, found


def _sides(options: argparse.Namespace) -> Sides | None:
    """Return the devices of ``--against`` and ``--device``; None if there is no ``--against``."""
    settings = program_settings(options)
    if options.against is None:
        given = [name for name in ("device", *OF_PROGRAMS) if getattr(options, name) is not None]
        if given:
            raise ValueError(f"--{given[0]}: got no --against, allowed is --against DEVICE with it")
        return None
    for name in ("model", "explain"):
        if getattr(options, name):
            raise ValueError(f"--against: got --{name} too, allowed is one of the two options")
    sides = []
    for text in filter(None, [options.against, options.device]):
        sides.append(_side(text, settings))
    programs = [side for side in sides if isinstance(side.device, Command)]
    if settings and not programs:
        refuse_settings(next(iter(settings)), options.against, sides[0].device)
    if options.reset is not None and len(programs) > 1:
        raise ValueError("--reset: got two devices that are programs, allowed is one")
    # only npulab's own device may run in several processes, because it resets before each capture
    for side in sides:
        if options.jobs > 1 and not side.own:
            raise ValueError(
                f"--jobs: got {options.jobs} with {side.text!r}, allowed is 1: a device runs "
                "captures one after another"
            )
        if options.cluster and options.resource is None and not side.own:
            raise ValueError(
                f"--cluster: got {side.text!r} and no --resource, allowed is --resource NAME=N "
                "too, such as npu=1: a device runs captures one after another"
            )
    return Sides(*sides)


def _side(text: str, settings: dict[str, Any]) -> Side:
    found = device(text)
    # only a program has settings, and one of the two devices may be no program
    if isinstance(found, Command):
        found = device(text, **settings)
    if isinstance(found, Manual):
        raise ValueError(f"device: got {text!r}, allowed is a device that runs without a person")
    return Side(text, found)


def _captures(options: argparse.Namespace, paths: list[str], sides: Sides | None) -> int:
    found, broken = each(store.unloaded, paths)
    named = set().union(*found)
    if options.case and options.case not in named and found:
        few = ", ".join(sorted(named))
        if len(named) > MOST_NAMED:
            few = plural(len(named), "case")
        raise LookupError(
            f"--case: got {options.case!r}, the paths hold {few}{near(options.case, named)}"
        )
    cases: list[store.Case] = []
    for part in found:
        cases += [case for name, case in part.items() if options.case in (None, name)]
    how = _check_cases
    if options.model is not None:
        how = _check_run
    elif sides is not None:
        how = partial(_check_against, sides=sides)
    with workers_of(options) as executor:
        return how(options, cases, broken, mapped(executor))


def _check_cases(
    options: argparse.Namespace, cases: list[store.Case], broken: int, run: Any
) -> int:
    answers = _each_case(cases, _asked(options, cases, run, check), broken)
    results = answers.results
    checks = Checks(results, answers.unreadable)
    if options.explain:
        differ = {}
        for number, result in enumerate(results):
            if result.verdict == "differs" and result.captured is not None:
                differ[number] = result
        with progress("change") as bar:
            # the process of a worker cannot move the bar of this process
            counted = iter if has_workers(options) else partial(_counted, bar)
            ask = partial(nearby, progress=counted)
            found = dict(zip(differ, run(ask, differ.values()), strict=True))
        checks = replace(checks, explanations=found)
    return _shown(options, checks, answers)


def _check_against(
    options: argparse.Namespace, cases: list[store.Case], broken: int, run: Any, sides: Sides
) -> int:
    answers = _each_case(cases, _asked(options, cases, run, sides.check), broken)
    checks = DeviceChecks(answers.results, answers.unreadable, answers.left)
    return _shown(options, checks, answers)


@dataclass
class _Answers:
    """The results of captures. ``broken`` counts the paths and captures that cannot be read,
    ``torn`` the cases of foreign dumps that cannot be read, and ``left`` the captures that were not
    run because the device could run nothing more.
    """

    results: list[Any]
    broken: int
    torn: int = 0
    left: int = 0

    @property
    def unreadable(self) -> int:
        return self.broken + self.torn


def _each_case(cases: list[store.Case], answers: Iterable[Any], broken: int) -> _Answers:
    """Collect the results of captures, and print and count their errors; end early if the device
    can run nothing more.
    """
    found = _Answers([], broken)
    with progress("capture") as bar:
        for number, (case, result) in enumerate(zip(cases, answers, strict=True), 1):
            # earlier results are kept, because a board takes long for them
            if isinstance(result, NotRun):
                found.left = len(cases) - number + 1
                of = plural(len(cases), "capture")
                tell(f"{sentence(result)}; {found.left} of {of} not run")
                break
            if not isinstance(result, Exception):
                found.results.append(result)
            else:
                tell(result)
                if case.torn(result):
                    found.torn += 1
                else:
                    found.broken += 1
            bar(number, len(cases))
    return found


def _shown(options: argparse.Namespace, checks: Checks | DeviceChecks, answers: _Answers) -> int:
    """Show the results, and return the exit status."""
    # without a result there is nothing to show: the errors were printed already
    if checks.results or not answers.unreadable + answers.left:
        show(options, checks)
    if answers.broken or answers.left:
        return 2
    if answers.torn or not checks.ok:
        return 1
    if checks.empty:
        return NOTHING_COMPARED
    return 0


def _counted(bar: Bar, changes: list[Any]) -> Iterator[Any]:
    """Yield changes one after the other, and show on the bar how many are done."""
    for number, change in enumerate(changes):
        bar(number, len(changes))
        yield change


def _asked(
    options: argparse.Namespace, cases: list[store.Case], run: Any, ask: Callable[[Capture], Any]
) -> Iterable[Any]:
    """Return the result of ``ask`` for each capture, in order. Workers of this machine also read
    the captures; workers of a cluster get captures that this process read.
    """
    if options.cluster is None:
        return run(partial(_read_and_asked, options.chip, ask), cases)
    # a worker on another machine does not see the files
    return run(partial(_answered, ask), map(partial(_read, options.chip), cases))


def _read_and_asked(chip: str | None, ask: Callable[[Capture], Any], case: store.Case) -> Any:
    return _answered(ask, _read(chip, case))


def _read(chip: str | None, case: store.Case) -> Capture | Exception:
    """Read a capture, and return it, or the error if it cannot be read."""
    try:
        return case.read(chip)
    except REFUSED as error:
        return error


def _answered(ask: Callable[[Capture], Any], capture: Capture | Exception) -> Any:
    """Return the result of ``ask`` for a capture, or the error: of reading the capture, or of a
    device that can run nothing."""
    if isinstance(capture, Exception):
        return capture
    try:
        return ask(capture)
    except REFUSED as error:
        return error


def _check_run(options: argparse.Namespace, cases: list[store.Case], broken: int, run: Any) -> int:
    captures, torn = each(partial(store.Case.read, chip=options.chip), cases)
    if broken or torn:
        return 2
    found = replace(check_run(captures, options.model, run), explain=options.explain)
    show(options, found)
    return int(not found.ok)


@dataclass(frozen=True, eq=False)
class Unread(Answer):
    """The answer of ``npulab unread``: a row for each field of a capture whose change the target
    does not notice.
    """

    rows: list[dict[str, Any]]
    unnamed: int

    def records(self) -> list[dict[str, Any]]:
        return self.rows

    @property
    def parts(self) -> list[Part]:
        parts: list[Part] = ["every named field is read"]
        if self.rows:
            parts = [Table(self.rows, UNREAD)]
        if self.unnamed:
            parts.append(f"and {plural(self.unnamed, 'field')} without a name")
        return parts


def _unread(options: argparse.Namespace) -> int:
    capture = store.load(options.path, options.case)
    with progress("field") as bar:
        rows: list[dict[str, Any]] = ignored_fields(capture, partial(_counted, bar)).to_dict(
            "records"
        )
    unnamed: set[tuple[str, str]] = set()
    for registers in capture.maps.values():
        unnamed |= {(item.register, item.name) for item in registers if item.automatic}
    shown = rows
    if not options.unknown:
        shown = [row for row in rows if (row["register"], row["field"]) not in unnamed]
    show(options, Unread(shown, len(rows) - len(shown)))
    return int(any(row["effect"] not in ("", SAME) for row in rows))


COMMANDS = {"check": _run_check, "unread": _unread}
