"""The ``npulab`` command.  Bad input exits 2 with one sentence; ``--json`` prints an object a line."""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from npulab.analysis.bisect import CERTAINTY, MAX_HANGS, Bisected, Bisection, Trying, bisect_fields
from npulab.analysis.bisect.parts import name_of
from npulab.analysis.check import Comparison, check, diff, diff_buffers
from npulab.analysis.laws import Laws, find_laws
from npulab.analysis.mismatch.hypotheses import neighbours, told
from npulab.analysis.mismatch.model_run import OperatorCheck, check_run
from npulab.captures import store
from npulab.captures.capture import PROVENANCES, Capture, CaptureSet
from npulab.captures.devices import Command, Manual, Recorder, Simulated, device
from npulab.captures.registry import LOCAL, target
from npulab.captures.sweep import SUFFIX, TEXTS, Sweep, is_sweep, load_sweep, save_sweep, sweep_files, sweep_of
from npulab.models import is_model, read_model
from npulab.models.listing import LISTINGS, counted
from npulab.models.sweeps import PARAMETERS as SWEEP
from npulab.notebook.sessions import Session, merge_sessions
from npulab.npus.template import WORDS, new_target
from npulab.quant.floats import steps
from npulab.registers.fields import WORD_BITS, WORD_BYTES
from npulab.registers.formats import FORMATS, of_chip, read_map, table_text, write_map
from npulab.registers.table import COLUMNS
from npulab.support.files import replace_file, write_file

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

PACKAGE = Path(__file__).parents[1]
START = "0-start.ipynb"
COPY = "npulab-notebooks"
ROOT_OPTIONS = ("--ServerApp.root_dir", "--notebook-dir", "--preferred-dir")
BYTES_SHOWN = 32
MAP_SUFFIX = ".csv"
RELATED_SHOWN = 3
LEGENDS = {"emulate": """
ms: all 28 layers of MobileNetV1-224 in one thread, the least time of each; of ENGINE: these ms divided by that
engine's in the same run, below 1 is faster; wrong: outputs that differ from the engine that the rule is named after
(of gemmlowp, from npulab.emulate).  Rows named tflite reference, tflite builtin or xnnpack are the engines themselves.
""", "decode": """
captures/s: a struct of 150 fields in 38 words, 100,000 captures (fewer for libraries that take one at a time) in one
thread, the best of all turns; ratio: npulab's captures/s divided by this row's in the same run, above 1 npulab is
faster; wrong: fields and words that came out wrong.  The row of a copy is what memory allows: a capture and its values.
"""}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options, rest = _parser().parse_known_args(arguments)
    if rest and options.run is not _lab:
        _parser().error(f"got {rest[0]!r}, which {options.command} does not take")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _tell_warning
            status = int(options.run(options, rest) if options.run is _lab else options.run(options))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # who reads our output has seen enough; nothing more may be written at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, LookupError, OSError) as error:
        print(f"npulab: {_sentence(error)}", file=sys.stderr)
        return 2


def _tell_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"npulab: {' '.join(str(message).split())}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("npulab", description="Find out how an undocumented NPU works.")
    parser.add_argument("--version", action="version", version=f"npulab {version('npulab')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: Callable[..., int], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        command.add_argument("--json", action="store_true", help="one JSON object a line")
        return command

    def filters(command: argparse.ArgumentParser) -> None:
        command.add_argument("--field", metavar="GLOB", help="only fields (or register.field) that match")
        command.add_argument("--unknown", action="store_true", help="only bits nobody has named")
        command.add_argument("--addresses", action="store_true", help="only fields that point into memory")

    add("lab", _lab, "open JupyterLab on the notebooks; other options go to JupyterLab")
    one = add("list", _list, "what captures there are; sweeps where there are no captures beside them, or --sweeps")
    one.add_argument("--sweeps", action="store_true", help="the sweeps beside captures, too")
    one.add_argument("paths", nargs="*", metavar="PATH")
    one = add("show", _show, "one capture, decoded; or a sweep or a .tflite or .circle model, listed")
    one.add_argument("path", metavar="PATH")
    one.add_argument("--case", help="which case of a dump that holds several")
    one.add_argument("--form", choices=LISTINGS, help="of a model's listing: that of tflitefile_tool earlier, or later")
    filters(one)
    one = add("diff", _diff, "two captures, two folders of them or two sweeps by field, addresses apart")
    one.add_argument("a", metavar="A")
    one.add_argument("b", metavar="B", nargs="?", help="left out, A is a dump of two cases")
    filters(one)
    one = add("check", _check, "words and coefficients round-trip, output emulated against captured")
    one.add_argument("paths", nargs="+", metavar="PATH")
    one.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")
    one.add_argument("--chip", help="read every capture as one of this chip")
    one.add_argument("--explain", action="store_true", help="say where and why, and what would make it equal")
    one.add_argument("--model", metavar="FILE", help="the .tflite whose run the captures are: checked by operator")
    one = add("import", _import, "a foreign dump into capture folders below DEST; captures into a sweep, DEST.npz")
    one.add_argument("path", metavar="PATH")
    one.add_argument("dest", metavar="DEST", help=f"a folder, or a file {SUFFIX} for one sweep of all captures")
    one.add_argument("--name", help="of the case; NAME-<side> where the dump holds several")
    one.add_argument("--source", help="where the dump is from, for the record")
    one.add_argument("--chip", help="the chip it was taken on")
    one.add_argument("--provenance", choices=PROVENANCES, help="what recorded it, where it is not as the dump says")
    one = add("bisect", _bisect, "the fields of a bad capture that break a good one, found with few runs of a device")
    one.add_argument("good", metavar="GOOD", help="a capture that passes")
    one.add_argument("bad", metavar="BAD", help="one that fails or hangs")
    one.add_argument("--device", required=True, metavar="DEVICE",
                     help="simulated, command:PROGRAM ARGUMENTS (the trial's folder goes last), manual, manual:FOLDER")
    one.add_argument("--resume", metavar="JOURNAL", help="keep trials in this file; those in it are not run again")
    one.add_argument("--flake", default="0", metavar="RATE", help="how often an outcome is wrong, or auto")
    one.add_argument("--certainty", type=float, default=CERTAINTY, metavar="P", help=f"when to stop ({CERTAINTY})")
    one.add_argument("--symptom", choices=("fail", "hang"), help="what BAD does, where that is known")
    one.add_argument("--unit", action="append", metavar="FIELD,FIELD", help="fields that change together; repeatable")
    one.add_argument("--addresses", action="store_true", help="also bisect fields that point into memory")
    one.add_argument("--seed", type=int, default=0, metavar="N", help="of the choice of trials (0)")
    one.add_argument("--max-hangs", type=int, default=MAX_HANGS, metavar="N", help=f"stop there ({MAX_HANGS})")
    one.add_argument("--record", metavar="FOLDER", help="keep every trial as a capture there")
    one.add_argument("--provenance", choices=PROVENANCES, help="what the device is, for the record (board)")
    one.add_argument("--script", metavar="FILE", help="write the Python that shows it again")
    one.add_argument("--by-status", action="store_true", help="a program's exit status alone decides, no output file")
    one.add_argument("--timeout", type=float, metavar="SECONDS", help="after which a program's run hangs (60)")
    one.add_argument("--reset", metavar="PROGRAM", help="run after a hang")
    one.add_argument("--cooldown", type=float, metavar="SECONDS", help="to wait after a hang (0)")
    one.add_argument("--retries", type=int, metavar="N", help="of a program that could not be run (0)")
    one = add("laws", _laws, "how a sweep's fields follow from its layers, what is open, what to capture next")
    one.add_argument("sweep", metavar="SWEEP", help=f"a file {SUFFIX} or a folder of captures")
    one.add_argument("--plan", type=int, metavar="N", help="the N layers whose capture would settle most")
    one.add_argument("--candidates", metavar="FILE",
                     help=f"plan among these layers: a table {MAP_SUFFIX} of parameters, or a sweep")
    one.add_argument("--nuisance", action="append", metavar="BITS", default=[],
                     help="a word (w12) or bits of it (w12_0_32: word, lowest, how many) that say nothing, as "
                          "addresses; repeatable; left out, they are found from layers that were captured twice")
    one.add_argument("--map", metavar="FILE", help=f"write the fields as a register map, {MAP_SUFFIX}")
    one = add("map", _map, "a register map from one format to another, in by content, out by suffix")
    one.add_argument("path", metavar="IN", help="a table, rnndb XML, SystemRDL, CMSIS-SVD, a C header")
    suffixes = dict.fromkeys(known.suffix for known in FORMATS.values())
    one.add_argument("dest", metavar="OUT", help=f"a new file {', '.join(suffixes)}; beside a table go its enums")
    one.add_argument("--to", metavar="FORMAT", default="",
                     help=f"where the suffix of OUT does not say it: {', '.join(FORMATS)}")
    one.add_argument("--feature", action="append", metavar="F",
                     help="the map of a chip that has this, instead of every chip's; repeatable")
    one = add("new", _new, "a folder for a new NPU, which loads and passes its tests, with one worked field")
    one.add_argument("name", metavar="NAME", help="a-z, 0-9 and _")
    one.add_argument("--dest", metavar="FOLDER", help=f"the folder of targets it goes to ({LOCAL} here)")
    one.add_argument("--words", type=int, default=WORDS, metavar="N", help=f"of its parameter block ({WORDS})")
    one = add("bench", _bench, "measured times and ratios, side by side; takes half a minute")
    one.add_argument("what", nargs="?", default="emulate", metavar="WHAT",
                     help="emulate (beside TensorFlow Lite), decode (beside bitstruct and others)")
    one.add_argument("--rounds", type=int, default=None, metavar="N", help="turns of which the least time counts")
    one = add("report", _report, "what a session found, as one page that opens anywhere, or as Markdown")
    one.add_argument("session", metavar="SESSION")
    one.add_argument("dest", metavar="OUT", help="a file .html or .md")
    one = add("session", _session, "two people's sessions made one, which also is a merge driver for git")
    one.add_argument("what", choices=("merge",))
    one.add_argument("base", metavar="BASE", help="what both began with; an empty file where that is nothing")
    one.add_argument("ours", metavar="OURS", help="which is written to")
    one.add_argument("theirs", metavar="THEIRS")
    return parser


# Commands


def _lab(options: argparse.Namespace, rest: list[str]) -> int:
    arguments = ["--LabApp.news_url=", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    if not any(one.split("=")[0] in ROOT_OPTIONS for one in rest):
        arguments += [f"--ServerApp.root_dir={_home()}", f"--LabApp.default_url=/lab/tree/notebooks/{START}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--allow-root")
    if options.json:
        print(json.dumps({"arguments": [*arguments, *rest]}), flush=True)
    from jupyterlab.labapp import main as jupyterlab

    return int(jupyterlab([*arguments, *rest]) or 0)


def _home() -> Path:
    """The folder with notebooks and captures: the checkout, or what the wheel holds, copied out once."""
    for folder in (PACKAGE.parent, *(folder / COPY for folder in (Path.cwd(), *Path.cwd().parents))):
        if (folder / "notebooks" / START).exists():
            return folder
    copy = Path.cwd() / COPY
    if copy.exists():
        raise FileExistsError(f"{copy}: is there without notebooks/{START}; move it away and npulab lab makes it anew")
    scratch = Path(tempfile.mkdtemp(prefix=".npulab-", dir=Path.cwd()))
    shutil.copytree(PACKAGE / "share", scratch, dirs_exist_ok=True)
    scratch.chmod(0o755)
    scratch.rename(copy)
    print(f"notebooks and captures copied to {copy}", file=sys.stderr)
    return copy


def _list(options: argparse.Namespace) -> int:
    paths = options.paths or [_home_of_captures()]
    captures, *unreadable = _captures([path for path in paths if not is_sweep(path)], None, empty=True)
    beside = options.sweeps or not captures
    sweeps, torn = _sweeps([path for path in paths if beside or is_sweep(path)])
    rows = [{"case": c.name, "target": c.target, "chip": c.chip, "provenance": c.origin, "date": c.date,
             "jobs": len(c.jobs), "buffers": ", ".join(c.buffers)} for c in captures]
    for one in sweeps:
        counts = _counts(one)
        held = counts if options.json else {"buffers": ", ".join(f"{counts[name]} {name}" for name in counts)}
        rows.append({"case": one.name, "target": one.target, "chip": one.chip, "provenance": one.provenance,
                     "date": one.date, **held})
    _print(options, rows, ["case", "target", "chip", "provenance", "date", "jobs", "buffers"])
    return 2 if any(unreadable) or torn else 0


def _sweeps(paths: Iterable[str]) -> tuple[list[Sweep], int]:
    """Every sweep under the paths and the number that could not be read, each told on stderr."""
    sweeps, broken = [], 0
    for file in (file for path in map(Path, paths) for file in ([path] if is_sweep(path) else sweep_files(path))):
        try:
            sweeps.append(load_sweep(file))
        except (ValueError, OSError) as error:
            print(f"npulab: {_sentence(error)}", file=sys.stderr)
            broken += 1
    return sweeps, broken


def _counts(sweep: Sweep) -> dict[str, int]:
    return {"captures": len(sweep), "words": sweep.words.shape[1], "parameters": sweep.parameters.shape[1]}


def _home_of_captures() -> str:
    """The captures of this folder, or else those that npulab lab copied out here."""
    folders = [folder for folder in ("captures", f"{COPY}/captures") if Path(folder).is_dir()]
    return folders[0] if folders else "captures"


def _show(options: argparse.Namespace) -> int:
    if is_model(options.path):
        return _show_model(options)
    if options.form:
        raise ValueError(f"--form: got {options.path}, allowed is a TensorFlow Lite or circle model")
    if is_sweep(options.path):
        return _show_sweep(options)
    capture = store.load(options.path, options.case)
    if not options.json:
        print(capture)
        print("".join(f"{name} {text}\n" for name, text in (
            ("source", capture.source), ("tool", capture.tool), ("date", capture.date)) if text), end="")
        for name, one in capture.parameters.items():
            if isinstance(one, list) and one and all(isinstance(row, dict) for row in one):
                print(f"{name}:")
                _print(options, one, [*one[0]])
    rows = [{"task": task, "block": block, "register": item.register, "field": item.name, "bits": item.bits,
             "raw": int(raw), "value": item.text(raw), "evidence": item.evidence, "note": item.note}
            for task, job in enumerate(capture.jobs) for block, item, raw in job.values(capture.maps)
            if _wanted(options, item.register, item.name, item.automatic, item.address)]
    if options.field and not rows:
        raise LookupError(f"--field: got {options.field!r}, which no field of {capture.name} matches")
    if options.json:
        return _print(options, rows, [])
    for row in rows:
        row["raw"] = f"{row['raw']:#x}"
    _print(options, rows, ["task", "block", "register", "field", "bits", "raw", "value", "evidence", "note"])
    sources = target(capture.target).sources
    used = dict.fromkeys(row["evidence"] for row in rows if row["evidence"] in sources)
    print("".join(f"evidence {code}: {sources[code]}\n" for code in used), end="")
    return 0


def _show_sweep(options: argparse.Namespace) -> int:
    _refuse_options(options, "a sweep")
    sweep = load_sweep(options.path)
    known = [(name, getattr(sweep, name)) for name in TEXTS]
    ranges: list[dict[str, Any]] = sweep.ranges.to_dict("records")  # type: ignore[assignment]
    if options.json:
        return _print(options, [{"sweep": sweep.name, **dict(known), **_counts(sweep), "varying_bits": sweep.bits},
                                *ranges], [])
    print(sweep)
    print("".join(f"{name} {text}\n" for name, text in known if text))
    _print(options, [{name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()}
                     for row in ranges], [*ranges[0]] if ranges else [])
    print()
    words = [{"word": word, "varying bits": mask.bit_count(), "mask": f"{mask:#010x}"}
             for word, mask in enumerate(sweep.varying.tolist()) if mask]
    return _print(options, words, ["word", "varying bits", "mask"])


def _refuse_options(options: argparse.Namespace, what: str) -> None:
    for name in ("case", "field", "unknown", "addresses"):
        if getattr(options, name):
            raise ValueError(f"--{name}: got {options.path}, {what}, allowed is a capture")


def _show_model(options: argparse.Namespace) -> int:
    _refuse_options(options, "a TensorFlow Lite model")
    model = read_model(options.path)
    if options.json:
        found: list[dict[str, Any]] = model.parameters.to_dict("records")  # type: ignore[assignment]
        layers = {(0, row["index"]): _known(row) for row in found}
        return _print(options, [row | layers.get((row["graph"], row["index"]), {}) for row in model.rows], [])
    print(model.listing(options.form or LISTINGS[0]))
    if text := model.quantization():
        print(f"\n{text}")
    return 0


def _known(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a table without what it does not have."""
    return {name: value for name, value in row.items() if not (isinstance(value, float) and math.isnan(value))}


def _diff(options: argparse.Namespace) -> int:
    if any(is_sweep(path) for path in (options.a, options.b) if path is not None):
        return _diff_sweeps(options)
    a, b = _two(options)
    known = {(item.register, item.name): item for one in (a, b)
             for capture in (one if isinstance(one, CaptureSet) else [one])
             for job in capture.jobs for _, item, _ in job.values(capture.maps)}
    if options.field and not any(_matches(options.field, *names) for names in known):
        raise LookupError(f"--field: got {options.field!r}, which no field matches")
    automatic = {item.name for item in known.values() if item.automatic}
    rows: list[dict[str, Any]] = diff(a, b).to_dict("records")  # type: ignore[assignment]
    rows = [row for row in rows if _wanted(options, row["register"], row["field"],
                                           row["field"] in automatic, row["address"])]
    buffers = diff_buffers(a, b).to_dict("records") if isinstance(a, Capture) and isinstance(b, Capture) else []
    if options.json:
        filtered = options.field or options.unknown or options.addresses
        return _print(options, rows if filtered else rows + [
            {"task": None, "block": "buffer", "register": row["buffer"], "field": f"(bytes from {row['first']})",
             "a": row["a"], "b": row["b"], "address": False} for row in buffers], [])
    _print_diff(options, a, b, rows)
    for row in buffers:
        print(f"\nbuffer {row['buffer']} differs in {row['bytes']} bytes, from byte {row['first']} on "
              f"(a {_length(row['a'])}, b {_length(row['b'])})")
    return 0


def _diff_sweeps(options: argparse.Namespace) -> int:
    if options.b is None:
        raise ValueError(f"{options.a}: got one sweep, allowed are two, A and B")
    a, b = load_sweep(options.a), load_sweep(options.b)
    every: list[dict[str, Any]] = diff(a, b, never=True).to_dict("records")  # type: ignore[assignment]
    if options.field and not any(_matches(options.field, row["register"], row["field"]) for row in every):
        raise LookupError(f"--field: got {options.field!r}, which no field matches")
    maps = [one.registers for one in (a, b) if one.registers is not None]
    named = {(item.register, item.name) for registers in maps for item in registers if not item.automatic}
    rows = [row for row in every if row["differs"] != "never" and _wanted(
        options, row["register"], row["field"], (row["register"], row["field"]) not in named, row["address"])]
    if options.json:
        return _print(options, rows, [])
    _print_diff(options, a, b, rows)
    return 0


def _print_diff(options: argparse.Namespace, a: Any, b: Any, rows: Sequence[dict[str, Any]]) -> None:
    names = ["task", "block", "register", "field", *(n for n in (rows[0] if rows else ())
                                                     if n in ("differs", "constant", "pairs")), "a", "b"]
    fields = [row for row in rows if not row["address"]]
    addresses = [row for row in rows if row["address"]]
    words = f"{counted(len(fields), 'field')} differ{'s' * (len(fields) == 1)}"
    print(f"a {a!r}\nb {b!r}\n\n{words}{', addresses apart' if addresses else ''}")
    _print(options, fields, names)
    if addresses:
        print(f"\n{len(addresses)} addresses differ")
        _print(options, [{**row, "a": _hex(row["a"]), "b": _hex(row["b"])} for row in addresses], names)


def _length(size: int | None) -> str:
    return "has none" if size is None else f"{size} bytes"


def _two(options: argparse.Namespace) -> tuple[Any, Any]:
    sides = [store.load_all(path) for path in (options.a, options.b) if path is not None]
    if len(sides) == 1:
        if len(sides[0]) != 2:
            raise ValueError(f"{options.a}: holds {counted(len(sides[0]), 'capture')}, allowed without B is two")
        return sides[0][0], sides[0][1]
    for path, side in zip((options.a, options.b), sides, strict=True):
        if not len(side):
            raise ValueError(f"{path}: holds no capture")
    if all(len(side) == 1 for side in sides):
        return sides[0][0], sides[1][0]
    return sides[0], sides[1]


def _check(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    if options.jobs < 1:
        raise ValueError(f"--jobs: got {options.jobs}, allowed is at least 1")
    if options.model is not None:
        captures, *unreadable = _captures(options.paths, options.chip)
        return 2 if any(unreadable) else _check_run(options, captures)
    cases, broken = _found(options.paths)
    torn = 0
    results: list[Comparison] = []
    origins: list[str] = []
    with ExitStack() as stack:
        run = stack.enter_context(ProcessPoolExecutor(options.jobs)).map if options.jobs > 1 else map
        bar = tqdm(run(partial(_checked, chip=options.chip), cases), total=len(cases), unit="capture", disable=None,
                   leave=False)
        for case, (result, origin) in zip(cases, bar, strict=True):
            if isinstance(result, Comparison):
                results.append(result)
                origins.append(origin)
            else:
                bar.write(f"npulab: {_sentence(result)}", file=sys.stderr)
                broken, torn = broken + (not case.torn(result)), torn + case.torn(result)
        differ = [i for i, result in enumerate(results) if options.explain and result.verdict == "differs"
                  and result.captured is not None]
        late = partial(tqdm, delay=1, disable=None, leave=False)
        ask = partial(_neighbours, progress=partial(late, unit="change") if options.jobs == 1 else iter)
        found = late(run(ask, [results[i] for i in differ]), total=len(differ), unit="explanation")
        explained = dict(zip(differ, found, strict=True))
    rows = [{**_said(result), "provenance": origin} for result, origin in zip(results, origins, strict=True)]
    if options.json:
        for i, row in enumerate(rows if options.explain else []):
            table = explained.get(i)
            row["explanations"] = [] if table is None or isinstance(table, str) else table.to_dict("records")
        _print(options, rows, [])
    else:
        for row, result in zip(rows, results, strict=True):
            row["predicted or reason"] = row["predicted"]
            if not result.compared:
                row |= {"compared": None, "mismatches": None,
                        "predicted or reason": "not compared: " * _uncompared(result) + result.reason}
            elif result.claims_wrong or (result.verdict == "differs" and result.captured is None):
                row["predicted or reason"] = result.reason
        _print(options, rows, ["case", "target", "provenance", "words", "coefficients", "compared",
                               "mismatches", "verdict", "predicted or reason"])
        counts = Counter("not compared" if _uncompared(result) else result.verdict for result in results)
        bad = sum(not result.ok and not _uncompared(result) for result in results)
        said = [counted(len(results), "capture"), f"{bad} differ{'s' * (bad == 1)}",
                *(f"{count} {words}" for count, words in ((counts["not compared"], "cannot be compared"),
                                                          (broken + torn, "unreadable")) if count)]
        print(", ".join(said) + (f" ({', '.join(f'{count} {verdict}' for verdict, count in counts.items() if count)})"
                                 if results else ""))
    if options.explain and not options.json:
        for i, result in enumerate(results):
            _explain(result, explained.get(i))
    return 2 if broken else int(torn > 0 or any(not result.ok for result in results))


def _check_run(options: argparse.Namespace, captures: Sequence[Capture]) -> int:
    with ExitStack() as stack:
        run = stack.enter_context(ProcessPoolExecutor(options.jobs)).map if options.jobs > 1 else map
        found = check_run(captures, options.model, run)
    several = any(one.inference for one in found.operators)
    rows = [_run_row(one, options.json) for one in found.operators]
    if options.json:
        return _print(options, rows, []) or int(not found.ok)
    _print(options, rows, [*(["inference"] if several else []), "operator", "name", "jobs", "provenance", "words",
                           "coefficients", "compared", "mismatches", "verdict", "reason"])
    said = ", ".join(f"{count} {verdict}" for verdict, count in found.counts.items())
    print(f"{counted(len(found.operators), 'operator')} ({said})" + (
        f"; first wrong: {found.first.text}: {found.first.reason}" if found.first else ""))
    for one in found.operators if options.explain else ():
        if one.verdict == "differs" and one.comparison is not None:
            there = one.comparison.mismatches and one.comparison.layer is not None
            _explain(one.comparison, _neighbours(one.comparison, iter) if there else None)
    return int(not found.ok)


def _run_row(one: OperatorCheck, as_json: bool) -> dict[str, Any]:
    result = one.comparison
    row: dict[str, Any] = {"inference": one.inference, "operator": one.operator, "name": one.name,
                           "jobs": list(one.cases), "layer": None if one.layer is None else str(one.layer),
                           "case": None, "target": None, "words": "none", "coefficients": "none"}
    if result is not None:
        row |= _said(result)
    if result is None or (not result.compared and not as_json):
        nothing = 0 if as_json else None
        row |= {"compared": nothing, "mismatches": nothing}
    return {**row, "verdict": one.verdict, "reason": one.reason, "provenance": one.provenance}


class _Case(NamedTuple):
    """A capture that is not read yet."""

    read: Callable[[], Capture]
    of_dump: bool  # and not a folder of its own

    def torn(self, error: Exception) -> bool:
        """Whether an error says of this case that it is broken, and not of what was asked for."""
        return self.of_dump and not isinstance(error, LookupError)


def _captures(paths: Iterable[str], chip: str | None, empty: bool = False) -> tuple[list[Capture], int, int]:
    """Every capture under the paths, the number of paths that could not be read and that of cases of dumps that could
    not, each told on stderr; a path without captures counts as one that could not, unless ``empty`` is allowed."""
    cases, broken = _found(paths, empty)
    captures: list[Capture] = []
    torn = 0
    for case in cases:
        try:
            captures.append(_on_chip(case.read(), chip))
        except (ValueError, LookupError, OSError) as error:
            print(f"npulab: {_sentence(error)}", file=sys.stderr)
            broken, torn = broken + (not case.torn(error)), torn + case.torn(error)
    return captures, broken, torn


def _found(paths: Iterable[str], empty: bool = False) -> tuple[list[_Case], int]:
    """Every capture under the paths and the number of paths where there is none to be read, each told on stderr."""
    cases: list[_Case] = []
    broken = 0
    for path in map(Path, paths):
        try:
            folders = store.case_folders(path) if path.is_dir() else []
            found = [_Case(partial(store.read_folder, folder), False) for folder in folders] or [
                _Case(read, True) for read in store.case_readers(path).values()]
            if not found and not empty:
                raise ValueError(f"{path}: holds no capture" + (
                    ", npulab.check_sweep checks a sweep of models" if (path / SWEEP).is_file() else ""))
            cases += found
        except (ValueError, LookupError, OSError) as error:
            print(f"npulab: {_sentence(error)}", file=sys.stderr)
            broken += 1
    return cases, broken


def _checked(case: _Case, chip: str | None) -> tuple[Comparison | Exception, str]:
    """A capture read and checked, with its provenance; of one that cannot be read, what is wrong."""
    try:
        capture = _on_chip(case.read(), chip)
    except (ValueError, LookupError, OSError) as error:
        return error, ""
    return check(capture), capture.origin


def _cases(path: Path) -> tuple[list[Capture], int]:
    """The captures under a path and the number of cases of a dump that are broken, each told on stderr."""
    cases = store.load_cases(path).values()
    errors = [one for one in cases if isinstance(one, ValueError)]
    if len(errors) == len(cases) == 1:
        raise errors[0]
    for error in errors:
        print(f"npulab: {_sentence(error)}", file=sys.stderr)
    return [one for one in cases if isinstance(one, Capture)], len(errors)


def _on_chip(capture: Capture, chip: str | None) -> Capture:
    return capture if chip is None else replace(capture, chip=chip, maps=target(capture.target).maps(chip))


def _uncompared(result: Comparison) -> bool:
    """Whether a capture counts as different because there was no way to compare its output."""
    return result.verdict == "differs" and not result.compared and not result.claims_wrong


def _said(result: Comparison) -> dict[str, Any]:
    def same(equal: bool | None) -> str:
        return "none" if equal is None else "equal" if equal else "differs"

    row: dict[str, Any] = {
        "case": result.case, "target": result.target, "words": same(result.words),
        "coefficients": same(result.coefficients), "compared": result.compared,
        "mismatches": result.mismatches, "verdict": result.verdict, "simulated": result.simulated,
        "reason": result.reason, "predicted": "", "unit": result.unit, "claims": len(result.claims),
        "claims_wrong": result.claims_wrong}
    if result.predicted is not None and result.verdict == "not executed":
        row["predicted"] = _bytes(result.predicted)
    return row


def _neighbours(result: Comparison, progress: Any) -> pd.DataFrame | str:
    """The neighbouring explanations of what differs, or in a sentence why there are none."""
    try:
        return neighbours(result, progress=progress)
    except ValueError as error:
        return f"no other explanation is tried: {_sentence(error)}"


def _explain(result: Comparison, table: pd.DataFrame | str | None) -> None:
    print(f"\n{result.case}{' (simulated)' if result.simulated else ''}: {result.verdict}")
    if result.reason:
        print(f"  {result.reason}")
    if result.layer is not None:
        print(f"  {result.layer}, rule {result.rule}")
    if result.first is not None and result.predicted is not None and result.captured is not None:
        print(f"  first difference at (row, column, channel) {result.first}: predicted "
              f"{result.predicted[result.first]}, captured {result.captured[result.first]}; "
              f"{result.mismatches} of {result.compared} differ, largest {result.largest}")
        print("".join(f"  {line}\n" for line in _window(result.predicted, result.captured)), end="")
    if table is not None:
        print("".join(f"  {line}\n" for line in ([table] if isinstance(table, str) else told(table))), end="")


def _import(options: argparse.Namespace) -> int:
    readable, torn = _cases(Path(options.path))
    found = CaptureSet(tuple(replace(capture, provenance=options.provenance or capture.provenance)
                             for capture in readable))
    if not len(found):
        raise ValueError(f"{options.path}: holds no capture")
    if Path(options.dest).suffix == SUFFIX:
        return _import_sweep(options, found) or 2 * (torn > 0)
    name = options.name or Path(options.path).stem
    if Path(name).name != name or name in (".", ".."):
        raise ValueError(f"--name: got {name!r}, allowed is a plain folder name")
    captures = {}
    for capture in found:
        case = f"{name}-{capture.name}" if len(found) > 1 else name
        changed = _on_chip(capture, options.chip)
        captures[Path(options.dest) / case] = replace(changed, name=case,
                                                      source=options.source or capture.source)
    written = store.save_all(captures)
    rows = [{"case": path.name, "path": str(path)} for path in written]
    if options.json:
        _print(options, rows, [])
    else:
        print("\n".join(map(str, written)))
    return 2 * (torn > 0)


def _import_sweep(options: argparse.Namespace, found: CaptureSet) -> int:
    """Captures into one sweep; its name is that of the file."""
    if options.name:
        raise ValueError(f"--name: got {options.name!r}, allowed is none with a sweep, which is named as its file")
    sweep = sweep_of([_on_chip(capture, options.chip) for capture in found])
    path = save_sweep(replace(sweep, source=options.source or sweep.source), options.dest)
    if options.json:
        return _print(options, [{"sweep": path.stem, "path": str(path), **_counts(sweep)}], [])
    print(path)
    return 0


def _map(options: argparse.Namespace) -> int:
    try:
        table = read_map(options.path)
        if options.feature is not None:
            table = of_chip(table, options.feature)
        written = write_map(table, options.dest, options.to)
    except ModuleNotFoundError as error:  # of an extra
        raise ValueError(str(error)) from None
    if options.json:
        return _print(options, [{"in": options.path, "out": [str(path) for path in written], **table.counts}], [])
    print(f"{Path(options.dest)}: " + ", ".join(counted(count, name[:-1]) for name, count in table.counts.items()))
    return 0


def _new(options: argparse.Namespace) -> int:
    written = new_target(options.name, Path(options.dest) if options.dest else None, options.words)
    if options.json:
        return _print(options, [{"target": options.name, "files": [str(path) for path in written]}], [])
    folder, (test,) = written[0].parent, [path for path in written if path.name.startswith("test_")]
    print(f"{folder}: {', '.join(path.name for path in written)}")
    print(f"next: pytest {test}, then a row of {folder / 'registers.csv'} for each thing you find out")
    return 0


def _bisect(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    good, bad = store.load(options.good), store.load(options.bad)
    oracle: Callable[[Capture], str] = _device(options, good)
    if options.record:
        given = {} if isinstance(oracle, Simulated) else {"provenance": options.provenance or "board"}
        oracle = Recorder(oracle, options.record, **given)
    if options.script and (Path(options.script).is_dir() or not Path(options.script).parent.is_dir()):
        raise ValueError(f"--script: got {options.script}, allowed is a file in a folder that is there")
    if options.max_hangs < 1:
        raise ValueError(f"--max-hangs: got {options.max_hangs}, allowed is at least 1")
    with tqdm(unit="trial", disable=None, leave=False) as bar:
        def show(session: Bisection) -> None:
            bar.total, bar.n = session.queries + session.left, session.queries
            bar.set_description(f"{session.journal[-1].outcome}, likely {session.suspects[0].text:.60}")

        try:
            found = bisect_fields(good, bad, oracle, _flake(options.flake), certainty=options.certainty,
                                  units=[unit.split(",") for unit in options.unit] if options.unit else None,
                                  addresses=options.addresses, symptom=options.symptom, seed=options.seed,
                                  journal=options.resume, max_hangs=options.max_hangs, progress=show,
                                  asking=_say if options.device.startswith("manual") else None)
        except (KeyboardInterrupt, EOFError):
            bar.close()
            print("npulab: stopped" + (f", {options.resume} has every trial so far" if options.resume else ""),
                  file=sys.stderr)
            return 1
    _tell(options, found)
    if options.script:
        Path(options.script).write_text(found.script(options.good, options.bad), encoding="utf-8")
    return 0 if found.culprits else 1


def _tell(options: argparse.Namespace, found: Bisected) -> None:
    if options.json:
        row = {name: getattr(found, name) for name in ("culprits", "groups", "certainty", "queries", "hangs",
                                                       "flake_rate", "done", "sentence")}
        _print(options, [row], [])
        return
    print(found.sentence)
    rows: list[dict[str, Any]] = found.diff.to_dict("records")  # type: ignore[assignment]
    _print(options, rows, list(found.diff.columns))


def _say(trial: Trying) -> None:
    """What a person has to set by hand, where a person runs it."""
    print(f"\n{trial.reason}\nThe good job with {counted(len(trial.changed), 'part')} of the bad one:")
    for part in trial.changed:
        print(f"  {name_of(part.key)} = {part.b} (good {part.a})")


def _flake(text: str) -> float | None:
    try:
        return None if text == "auto" else float(text)
    except ValueError:
        raise ValueError(f"--flake: got {text!r}, allowed is a rate from 0 up to 0.5, or auto") from None


def _device(options: argparse.Namespace, good: Capture) -> Simulated | Command | Manual:
    """What ``--device`` names; a run passes where it gives the good capture's output."""
    given = {name: getattr(options, name) for name in ("timeout", "reset", "cooldown", "retries")
             if getattr(options, name) is not None}
    if options.by_status:
        given["output"] = None
    oracle = device(options.device, good.buffers.get("output"), **given)
    if given and not isinstance(oracle, Command):
        name = "by-status" if options.by_status else next(iter(given))
        raise ValueError(f"--{name}: got {options.device!r}, allowed is a device command:PROGRAM")
    if isinstance(oracle, Simulated):
        # what the good job gives there: a board may have recorded something else
        run = oracle.run(good)
        if run.output is None:
            raise ValueError(f"{options.good}: hangs on the simulated device ({run.reason}), allowed is one that runs")
        return Simulated(run.output)
    return oracle


def _laws(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    if options.plan is not None and options.plan < 1:
        raise ValueError(f"--plan: got {options.plan}, allowed is at least 1")
    if options.candidates and options.plan is None:
        raise ValueError(f"--candidates: got {options.candidates} without --plan, allowed is with it")
    sweep = load_sweep(options.sweep)
    nuisance = _nuisance(options.nuisance, sweep)
    layers = _candidates(options.candidates, sweep) if options.candidates else None
    _refuse_map(options.map)
    with tqdm(unit="step", disable=None, leave=False) as bar, warnings.catch_warnings(record=True) as told_of:
        warnings.simplefilter("always", UserWarning)

        def show(text: str) -> None:
            bar.set_description_str(f"{text:.100}", refresh=False)
            bar.update()

        found = find_laws(sweep, nuisance=nuisance, progress=show)
        bar.set_description_str("what is open")
        unproved: list[dict[str, Any]] = found.open.to_dict("records")  # type: ignore[assignment]
        plan = None if options.plan is None else found.next_captures(options.plan, candidates=layers)
    for text in dict.fromkeys(_sentence(one.message) for one in told_of if isinstance(one.message, UserWarning)):
        print(f"npulab: {text}", file=sys.stderr)
    if options.map:
        write_file(Path(options.map), _register_table(found, sweep.block))
    if options.json:
        return _laws_as_json(options, sweep, found, unproved, plan)
    fields = [{"word": one.word, "bits": _span(one.lsb, one.width), "when": "else" if i and when == "always" else when,
               "law": law, "support": support, "rivals": len(one.rivals) if i == 0 else ""}
              for one in found.fields
              for i, ((when, law), support) in enumerate(zip(one.steps, one.support, strict=True))]
    print(sweep)
    _print(options, fields, ["word", "bits", "support", "rivals", "when", "law"])
    counts = _statuses(found)
    print(f"\n{counted(sum(counts[name] for name in ('law', 'rivals', 'open')), 'varying bit')}"
          f"{' (simulated)' if sweep.simulated else ''}: "
          + ", ".join(f"{counts[name]} {name}" for name in ("law", "rivals", "open"))
          + f"; {counts['nuisance']} nuisance, {counts['never exercised']} never exercised")
    if unproved:
        print("\nnot proved for every layer:")
        _print(options, _runs(unproved), ["word", "bits", "reason", "detail", "related"])
    if plan is not None:
        print("\nto capture next" + (":" if layers is not None else " (each parameter drawn on its own within what was "
                                     "captured: where they depend on one another, give --candidates):"))
        rows: list[dict[str, Any]] = plan.to_dict("records")  # type: ignore[assignment]
        _print(options, [{name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()}
                         for row in rows], [*plan.columns])
    return 0


def _laws_as_json(options: argparse.Namespace, sweep: Sweep, found: Laws, unproved: Sequence[dict[str, Any]],
                  plan: pd.DataFrame | None) -> int:
    rows: list[dict[str, Any]] = [{"kind": "sweep", "sweep": sweep.name, "captures": len(sweep),
                                   "simulated": sweep.simulated, "bits": _statuses(found)}]
    rows += [{"kind": "field", "field": one.name, "word": one.word, "lsb": one.lsb, "width": one.width,
              "steps": [{"when": when, "law": law, "support": support}
                        for (when, law), support in zip(one.steps, one.support, strict=True)],
              "rivals": list(one.rivals), "extrapolated": one.extrapolated} for one in found.fields]
    rows += [{"kind": "open", **row} for row in unproved]
    layers: list[dict[str, Any]] = [] if plan is None else plan.to_dict("records")  # type: ignore[assignment]
    return _print(options, rows + [{"kind": "plan", "parameters": row} for row in layers], [])


def _statuses(found: Laws) -> dict[str, int]:
    names = found.status.ravel().tolist()
    return {name: names.count(name) for name in ("law", "rivals", "open", "nuisance", "never exercised", "constant")}


def _nuisance(texts: Sequence[str], sweep: Sweep) -> np.ndarray | None:
    """``(W,) uint32`` of the bits that ``--nuisance`` names."""
    import numpy as np

    width = sweep.words.shape[1]
    mask = np.zeros(width, np.uint32)
    for text in texts:
        spelt = re.fullmatch(r"w(\d+)(?:_(\d+)_(\d+))?", text)
        word, lsb, bits = map(int, spelt.groups("")) if spelt and spelt[2] else (int(spelt[1]) if spelt else width, 0,
                                                                               WORD_BITS)
        if word >= width or not bits or lsb + bits > WORD_BITS:
            raise ValueError(f"--nuisance: got {text!r}, allowed is a word, w0 to w{width - 1}, or bits of it, as "
                             f"w0_6_13 (word, lowest, how many)")
        mask[word] |= np.uint32((2 ** bits - 1) * 2 ** lsb)
    return mask if texts else None


def _candidates(path: str, sweep: Sweep) -> pd.DataFrame:
    """Layers to choose from, with the sweep's parameters in its order."""
    import pandas as pd

    try:
        layers = load_sweep(path).parameters if is_sweep(path) else pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(f"--candidates: got {path}, which is no table ({error}), allowed is {MAP_SUFFIX} with a "
                         "column for each parameter") from None
    missing = [name for name in sweep.parameters if name not in layers]
    if missing or not len(layers):
        got = f"no column {missing[0]!r}" if missing else "no row"
        raise ValueError(f"--candidates: got {got} in {path}, allowed is a column for each parameter of "
                         f"{sweep.name}, a row for each layer")
    return layers[[*sweep.parameters]]


def _refuse_map(path: str | None) -> None:
    """Before the search, what would fail after it."""
    if path is not None and Path(path).suffix != MAP_SUFFIX:
        raise ValueError(f"--map: got {path}, allowed is a file {MAP_SUFFIX}")
    if path is not None and Path(path).exists():
        raise FileExistsError(f"{path}: is there already")


def _register_table(found: Laws, block: str) -> bytes:
    """The fields as a table that ``RegisterMap.read`` reads, as many words as a capture has."""
    rows = found.register_rows(block)
    last = WORD_BYTES * (found.words.shape[1] - 1)
    if not any(row["offset"] == last for row in rows):
        rows.append({"block": block, "offset": last, "lsb": 0, "width": WORD_BITS, "evidence": "unknown"})
    return table_text(COLUMNS, rows).encode()


def _runs(bits: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Open bits side by side for one reason as one row."""
    runs: list[list[dict[str, Any]]] = []
    for bit in bits:
        last = runs[-1][-1] if runs else {}
        if last.get("bit") == bit["bit"] - 1 and all(last[name] == bit[name] for name in ("word", "reason", "detail")):
            runs[-1].append(bit)
        else:
            runs.append([bit])
    related = [dict.fromkeys(one.split(" ")[0] for bit in run for one in bit["related"].split(", ")) for run in runs]
    return [{**run[0], "bits": _span(run[0]["bit"], len(run)), "related": ", ".join([*names][:RELATED_SHOWN])}
            for run, names in zip(runs, related, strict=True)]


def _span(lsb: int, width: int) -> str:
    return f"{lsb + width - 1}:{lsb}" if width > 1 else str(lsb)


def _bench(options: argparse.Namespace) -> int:
    from npulab.cli.bench import ROUNDS, bench

    if options.rounds is not None and options.rounds < 1:
        raise ValueError(f"--rounds: got {options.rounds}, allowed is at least 1")
    found = bench(options.what, options.rounds or ROUNDS)
    records: list[dict[str, Any]] = found.to_dict("records")  # type: ignore[assignment]
    rows = [{name: int(value) if name == "wrong" else value for name, value in _known(row).items()} for row in records]
    if options.json:
        return _print(options, rows + [{"setting": setting, **limits} for setting, limits in
                                       found.attrs["limits"].items()], [])
    shown = [{name: _short(row[name]) if isinstance(row.get(name), float) else row.get(name, "")
              for name in found.columns} for row in rows]
    _print(options, shown, list(found.columns))
    print(LEGENDS[options.what])
    for setting, limits in found.attrs["limits"].items():
        print(f"{setting}: " + ", ".join(f"{name} {value:.3g}" for name, value in limits.items()))
    return 0


def _short(number: float) -> str:
    return f"{number:.3g}" if number < 1000 else f"{float(f'{number:.3g}'):,.0f}"


def _report(options: argparse.Namespace) -> int:
    if not Path(options.session).is_file():
        raise FileNotFoundError(f"{options.session}: there is no such session")
    path = Session(options.session, autosave=False).report(options.dest)
    print(json.dumps({"report": str(path)}) if options.json else path)
    return 0


def _session(options: argparse.Namespace) -> int:
    """Both sessions in the file OURS; 1 where something is to be looked at, which git calls a conflict."""
    merged = merge_sessions(options.base, options.ours, options.theirs)
    replace_file(Path(options.ours), merged.text.encode())
    if options.json:
        print(json.dumps({"session": options.ours, "notes": len(merged.notes), "conflicts": merged.conflicts}))
    else:
        print("".join(f"npulab: {text}\n" for text in merged.conflicts), file=sys.stderr, end="")
    return 1 if merged.conflicts else 0


# Printing


def _wanted(options: argparse.Namespace, register: str, field: str, automatic: bool, address: bool) -> bool:
    return (not options.field or _matches(options.field, register, field)) \
        and (automatic or not options.unknown) and (address or not options.addresses)


def _matches(glob: str, register: str, field: str) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for name in (field, f"{register}.{field}"))


def _print(options: argparse.Namespace, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> int:
    if options.json:
        for row in rows:
            print(json.dumps({name: _finite(value) for name, value in row.items()}, ensure_ascii=False))
        return 0
    cells = [list(names), *([_text(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    for line in cells if rows else []:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(one)}" for name, one in value.items())
    return "-" if value is None else " ".join(map(_text, value)) if isinstance(value, list) else str(value)


def _finite(value: Any) -> Any:
    """JSON has no infinities; they go as text."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _hex(value: Any) -> Any:
    if isinstance(value, list):
        return [_hex(one) for one in value]
    return f"{value:#010x}" if isinstance(value, int) else value


def _bytes(tensor: Any) -> str:
    data = tensor.astype(tensor.dtype.newbyteorder("<") if tensor.dtype.kind == "f" else "u1").tobytes()
    return data[:BYTES_SHOWN].hex(" ").upper() + (" ..." if len(data) > BYTES_SHOWN else "")


def _window(predicted: Any, captured: Any) -> list[str]:
    """Both outputs around their first difference, in hexadecimal, and a line that marks what differs."""
    wrong = steps(predicted, captured).ravel() != 0
    if predicted.dtype.kind == "f":  # as they are stored
        predicted, captured = (one.copy().view(f"u{one.dtype.itemsize}") for one in (predicted, captured))
    start = max(min(int(wrong.argmax()) - BYTES_SHOWN // 4, wrong.size - BYTES_SHOWN), 0)
    part = slice(start, start + BYTES_SHOWN)
    digits = 2 * predicted.dtype.itemsize
    lines = [" ".join(f"{int(code) & 256 ** predicted.dtype.itemsize - 1:0{digits}X}" for code in one.ravel()[part])
             for one in (predicted, captured)]
    marks = " ".join(("^" if one else " ") * digits for one in wrong[part]).rstrip()
    more = int(wrong[part.stop:].sum())
    return [f"outputs {start} to {min(part.stop, wrong.size) - 1} of {wrong.size}, by row, column, channel"
            + (f"; {counted(more, 'difference')} behind them" if more else ""),
            f"predicted {lines[0]}", f"captured  {lines[1]}", f"          {marks}"]


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error.args[0] if isinstance(error, KeyError) else error).split())
