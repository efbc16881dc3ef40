"""``npulab check`` and ``unread``: captures compared with their emulation, one by one or as a
model's run; fields that lift does not read.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from npulab.analysis.check import Comparison, check
from npulab.analysis.checks import Checks, nearby
from npulab.analysis.ignored import HANG, OTHER, ignored_fields
from npulab.analysis.mismatch.model_run import check_run
from npulab.captures import store
from npulab.captures.documents import document
from npulab.cli.output import REFUSED, Add, each, show, tell
from npulab.cli.terminal import Bar, progress
from npulab.support.answers import Answer, Part, Table
from npulab.support.refuse import near, refuse_if
from npulab.support.text import plural

NOTHING_COMPARED = 3  # exit status: nothing differs, but no recorded output was compared
MOST_NAMED = 12  # the most cases that an error text names
UNREAD = ("task", "block", "register", "field", "raw", "all", "effect", "evidence")


def _options(add: Add) -> None:
    add("paths", nargs="+", metavar="PATH")
    add("--case", help="only this case of those in the paths")
    add("--jobs", type=int, default=1, metavar="N", help="processes")
    add("--chip", help="read every capture as recorded on this chip")
    add(
        "--explain",
        action="store_true",
        help="say where and why it differs, and what would make it equal",
    )
    add(
        "--model",
        metavar="FILE",
        help="the .tflite model that the captures are a run of: checked by operator",
    )


def _run_check(options: argparse.Namespace) -> int:
    refuse_if(options.jobs < 1, "--jobs", options.jobs, "is at least 1")
    read, refused = each(lambda path: (path, document(path)), options.paths)
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
        status = max(status, _captures(options, paths))
    return status


def _captures(options: argparse.Namespace, paths: list[str]) -> int:
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
    how = _check_run
    if options.model is None:
        how = _check_cases
    if options.jobs == 1:
        return how(options, cases, broken, map)
    with ProcessPoolExecutor(options.jobs) as pool:
        return how(options, cases, broken, pool.map)


def _check_cases(
    options: argparse.Namespace, cases: list[store.Case], broken: int, run: Any
) -> int:
    torn = 0
    results: list[Comparison] = []
    with progress("capture") as bar:
        answers = run(partial(_checked, chip=options.chip), cases)
        for number, (case, result) in enumerate(zip(cases, answers, strict=True), 1):
            if isinstance(result, Comparison):
                results.append(result)
            else:
                tell(result)
                if case.torn(result):
                    torn += 1
                else:
                    broken += 1
            bar(number, len(cases))
    checks = Checks(results, broken + torn)
    if options.explain:
        differ = {}
        for number, result in enumerate(results):
            if result.verdict == "differs" and result.captured is not None:
                differ[number] = result
        with progress("change") as bar:
            # a bar cannot be moved from other processes
            counted = partial(_counted, bar) if options.jobs == 1 else iter
            ask = partial(nearby, progress=counted)
            found = dict(zip(differ, run(ask, differ.values()), strict=True))
        checks = replace(checks, explanations=found)
    if results or not broken + torn:  # if no capture could be read, that has been reported
        show(options, checks)
    if broken:
        return 2
    if torn or not checks.ok:
        return 1
    if checks.empty:
        return NOTHING_COMPARED
    return 0


def _counted(bar: Bar, changes: list[Any]) -> Iterator[Any]:
    """Yield changes one after the other, and show on the bar how many are done."""
    for number, change in enumerate(changes):
        bar(number, len(changes))
        yield change


def _checked(case: store.Case, chip: str | None) -> Comparison | Exception:
    """Read and check a capture; return the comparison, or the error of a capture that is
    unreadable.
    """
    try:
        capture = case.read(chip)
    except REFUSED as error:
        return error
    return check(capture)


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


def _unread_options(add: Add) -> None:
    add("path", metavar="PATH", help="a capture")
    add("--case", help="which case of a dump that holds several")
    add("--unknown", action="store_true", help="fields without a name, too")


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
    return int(any(row["effect"] in (OTHER, HANG) for row in rows))


COMMANDS = {"check": (_options, _run_check), "unread": (_unread_options, _unread)}
