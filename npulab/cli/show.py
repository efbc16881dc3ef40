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
from npulab.cli.output import each, show
from npulab.models import is_model, read_model
from npulab.models.read import Listed, OperatorList

WHOLE = "--task N, --block NAME and --field GLOB show jobs whole, --all shows all of them"


def _list(options: argparse.Namespace) -> int:
    if options.formats:
        show(options, Formats(formats()))
        return 0
    # without PATH: the captures of this folder, else those that ``npulab lab`` copied into it
    homes = [folder for folder in ("captures", f"{COPY}/captures") if Path(folder).is_dir()]
    paths = options.paths or homes[:1]
    if not paths:
        raise FileNotFoundError(
            "captures: there is no such folder here; npulab list PATH looks into another "
            "folder, npulab import DUMP captures/NPU makes this folder"
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
    """Raise ValueError if an option is given that works only on captures; ``what`` is what the path
    holds, such as "a sweep", for the error text.
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


def _diff(options: argparse.Namespace) -> int:
    sides = load_sides(options.a, options.b, options.tasks)
    answer = differing(*sides, _wanted(options), options.tasks)
    show(options, answer)
    return int(options.exit_code and bool(answer.records()))


def _wanted(options: argparse.Namespace) -> Wanted:
    return Wanted(
        options.field,
        options.unknown,
        options.addresses,
        getattr(options, "nonzero", False),
        getattr(options, "where", ""),
    )


COMMANDS = {
    "list": _list,
    "show": _show,
    "diff": _diff,
}
