"""``npulab list``, ``show`` and ``diff``: find captures, decode a capture, compare two."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from npulab.analysis.sides import differing, load_sides
from npulab.captures import store
from npulab.captures.documents import document
from npulab.captures.lines import chosen_tasks, lines_of
from npulab.captures.listing import Contents, Decoded, Formats, Listing, Wanted
from npulab.captures.sweep import is_sweep, sweep_files
from npulab.captures.sweep_store import opened_sweep
from npulab.captures.unrecognised import formats
from npulab.cli.lab import COPY
from npulab.cli.output import Add, each, show
from npulab.models import is_model, read_model
from npulab.models.listing import LISTINGS
from npulab.models.read import Listed, OperatorList

WHOLE = "--task N, --block NAME and --field GLOB show jobs whole, --all shows all of them"


def _list_options(add: Add) -> None:
    add("--sweeps", action="store_true", help="also the sweeps next to captures")
    add("--formats", action="store_true", help="the dumps that targets read, instead")
    add("paths", nargs="*", metavar="PATH")


def _list(options: argparse.Namespace) -> int:
    if options.formats:
        show(options, Formats(formats()))
        return 0
    # the captures of this folder, or else the captures that npulab lab copied out here
    homes = [folder for folder in ("captures", f"{COPY}/captures") if Path(folder).is_dir()]
    paths = options.paths or homes[:1]
    if not paths:
        raise FileNotFoundError(
            "captures: there is no such folder here; npulab list PATH looks into another one, "
            "npulab import DUMP captures/NPU begins one"
        )
    folders = [path for path in paths if not is_sweep(path)]
    found, broken = each(partial(store.unloaded, empty=True), folders)
    cases: list[store.Case] = []
    for by_name in found:
        cases += by_name.values()
    captures, torn = each(store.Case.read, cases)
    files = []
    for path in paths:
        if is_sweep(path):
            files.append(path)
        elif options.sweeps or not captures:
            files += sweep_files(path)
    sweeps, unread = each(opened_sweep, files)
    show(options, Listing(captures, sweeps))
    if broken or torn or unread:
        return 2
    return 0


def _show_options(add: Add) -> None:
    add("path", metavar="PATH")
    add("--case", help="which case of a dump that holds several")
    add(
        "--form",
        choices=LISTINGS,
        help="list all of a model, as tflitefile_tool prints it: earlier or later",
    )
    add(
        "--operators",
        action="store_true",
        help="list the operators of a model also if a target reads it as a capture",
    )
    add("--task", metavar="N", help="only these jobs, whole: 3, 3-7, several after commas")
    add("--block", metavar="NAME", help="only the jobs of a block, whole")
    add("--all", action="store_true", help="all jobs whole; a capture of several is listed else")
    _filters(add)
    add("--nonzero", action="store_true", help="only fields that are not zero")
    add("--where", default="", help="only such fields, as 'raw != 0 and evidence == guess'")


def _show(options: argparse.Namespace) -> None:
    if is_model(options.path) and (
        options.form or options.operators or not store.recognising(Path(options.path))
    ):
        _refuse(options, "a TensorFlow Lite model")
        model = read_model(options.path)
        if options.form:
            return show(options, Listed(model, options.form))
        return show(options, OperatorList(model))
    for name in ("form", "operators"):
        if getattr(options, name):
            raise ValueError(
                f"--{name}: got {options.path}, allowed is a TensorFlow Lite or circle model"
            )
    if is_sweep(options.path):
        _refuse(options, "a sweep")
        return show(options, Contents(opened_sweep(options.path)))
    if (found := document(options.path)) is not None:
        _refuse(options, "no capture")
        return show(options, found)
    capture, wanted = store.load(options.path, options.case), _wanted(options)
    tasks = chosen_tasks(capture, options.task, options.block)
    chosen = options.task is not None or options.block is not None
    if len(capture.jobs) > 1 and not (options.json or options.all or chosen or wanted):
        return show(options, lines_of(capture, hint=WHOLE))
    decoded = Decoded(capture, wanted, tasks)
    decoded.refuse()
    return show(options, decoded)


def _refuse(options: argparse.Namespace, what: str) -> None:
    """Raise ValueError if an option is given that works only on captures; ``what`` says what the
    path is instead.
    """
    for name in (
        "case",
        "task",
        "block",
        "all",
        "field",
        "unknown",
        "addresses",
        "nonzero",
        "where",
    ):
        if getattr(options, name):
            raise ValueError(f"--{name}: got {options.path}, {what}, allowed is a capture")


def _diff_options(add: Add) -> None:
    add("a", metavar="A")
    add("b", metavar="B", nargs="?", help="left out, A is a dump of two cases")
    add(
        "--tasks",
        nargs=2,
        type=int,
        default=(),
        metavar="TASK",
        help="only these jobs: the first of A, the second of B, or of A too if B is left out",
    )
    _filters(add)
    add(
        "--exit-code",
        action="store_true",
        help="exit 1 if something differs that the other options do not leave out",
    )


def _diff(options: argparse.Namespace) -> int:
    sides = load_sides(options.a, options.b, options.tasks)
    answer = differing(*sides, _wanted(options), options.tasks)
    show(options, answer)
    return int(options.exit_code and bool(answer.records()))


def _filters(add: Add) -> None:
    add(
        "--field",
        metavar="GLOB",
        help="only fields that match, by name, register.field, block.field or block.register.field",
    )
    add("--unknown", action="store_true", help="only bits nobody has named")
    add("--addresses", action="store_true", help="only fields that point into memory")


def _wanted(options: argparse.Namespace) -> Wanted:
    return Wanted(
        options.field,
        options.unknown,
        options.addresses,
        getattr(options, "nonzero", False),
        getattr(options, "where", ""),
    )


COMMANDS = {
    "list": (_list_options, _list),
    "show": (_show_options, _show),
    "diff": (_diff_options, _diff),
}
