"""Every entry that takes captures of several jobs, or a sweep of them, looks at all jobs or says at
how many of how many it looks: public functions, commands of the shell, widgets, pictures.

The entries are found by the public names, by the table of commands and by the lists of widgets and
pictures, so a new one is looked at too.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from test_wrong_types import CALLS, OTHERS

import npulab
from npulab.analysis.ignored import COLUMNS
from npulab.captures.capture import Capture
from npulab.captures.sources import Lowered
from npulab.captures.sweep import Sweep, load_sweep, save_sweep, sweep_of
from npulab.cli import check, main
from npulab.cli.shell import COMMANDS
from npulab.notebook import pictures, widgets

OUTSIDER = Path(__file__).parents[1] / "outsider"
WARNS = "error::UserWarning", "ignore:parameters. got:UserWarning"
RANGES = {
    "op": [0],
    "input_h": (2, 6),
    "input_w": (2, 6),
    "input_c": [3, 17],
    "output_c": [5, 17],
    "kernel": [1],
    "stride": [1],
    "depthwise": [0],
    "relu": [0],
    "same": [1],
    "input_scale": [1.0],
    "weight_scale": [2.0**-8],
    "output_scale": [1.0],
}
LAYERS = [(2, 3, 3, 5), (2, 3, 17, 17), (3, 5, 3, 17), (3, 5, 17, 5)]


NONE = pd.DataFrame(columns=COLUMNS)


@dataclass(frozen=True, eq=False)
class Streams:
    """Captures of several jobs each, in memory and in a folder."""

    captures: tuple[Capture, ...]
    folder: Path

    @property
    def total(self) -> int:
        return sum(len(capture.jobs) for capture in self.captures)

    @property
    def first(self) -> Capture:
        return self.captures[0]

    @cached_property
    def sweep(self) -> Sweep:
        return sweep_of(self.captures)

    @cached_property
    def file(self) -> Path:
        return save_sweep(self.sweep, self.folder.parent / "sweep.npz")

    @cached_property
    def laws(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return npulab.find_laws(self.sweep)

    def changed(self, task: int) -> Capture:
        """The first capture with another value in a field of one of its jobs."""
        words = self.first.jobs[task].words.copy()
        words[0] ^= 8  # a dependency token
        return self.first.with_words(words, task)


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Streams:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(OUTSIDER)
        npulab.target("vta")
        source = Lowered("vta", dtype="int8")
        captures = []
        folder = tmp_path_factory.mktemp("streams") / "captures"
        usual = {name: values[0] for name, values in RANGES.items()}  # type: ignore[index]
        for number, (h, w, c, n) in enumerate(LAYERS):
            sizes = {"input_h": h, "input_w": w, "input_c": c, "output_c": n}
            layer = {**usual, "kernel_h": 1, "kernel_w": 1, "stride_h": 1, "stride_w": 1, **sizes}
            found = source({name: float(value) for name, value in layer.items()}).capture
            assert found is not None
            output = npulab.target("vta").simulate(found)
            capture = replace(found, name=f"layer-{number}", parameters=sizes)
            captures.append(capture.with_buffers(output=output))
            npulab.save(captures[-1], folder / captures[-1].name)
    return Streams(tuple(captures), folder)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(OUTSIDER)


# ---- the two ways to be honest ----

Entry = Callable[[Streams], None]


def says(call: Callable[[Streams], Any]) -> Entry:
    """The entry of a call whose text says how many jobs of all jobs of the captures, or of the one
    capture, are looked at."""

    def entry(of: Streams) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = call(of)
        text = str(found)
        if not isinstance(found, str):
            text = "\n".join([repr(found), *(str(warning.message) for warning in caught)])
        total = re.search(rf"\d+ .*jobs? .*of {of.total} jobs of {len(of.captures)} capt", text)
        own = f"1 of {len(of.first.jobs)} jobs"
        assert total or own in text, text
        page = getattr(found, "_repr_html_", None)
        if page is not None and not isinstance(found, np.ndarray):
            assert f"of {of.total} jobs" in page() or own in page(), page()

    return entry


def all_jobs(call: Callable[[Streams, Capture], Any]) -> Entry:
    """The entry of a call whose answer for a capture is another one if any of its jobs is."""

    def entry(of: Streams) -> None:
        before = str(call(of, of.first))
        for task in range(len(of.first.jobs)):
            assert str(call(of, of.changed(task))) != before, (task, before)

    return entry


def plainly(check: Callable[[Streams], bool]) -> Entry:
    """The entry of a call whose answer counts all jobs."""

    def entry(of: Streams) -> None:
        assert check(of)

    return entry


def table(found: Any) -> str:
    return found.to_csv()


def _diff_of_sets(of: Streams, changed: Capture) -> str:
    sets = npulab.CaptureSet((of.first,)), npulab.CaptureSet((changed,))
    return table(npulab.diff(*sets))


def _fields_that_differ(of: Streams, changed: Capture) -> str:
    return table(npulab.diff(of.first, changed))


def _bisected(of: Streams) -> bool:
    """The culprit in the last job is found."""
    last = len(of.first.jobs) - 1
    bad = of.changed(last)

    def oracle(capture: Capture) -> str:
        return "fail" if np.array_equal(capture.jobs[last].words, bad.jobs[last].words) else "pass"

    return {task for task, *_ in npulab.bisect_fields(of.first, bad, oracle).culprits} == {last}


def _checked(of: Streams, capture: Capture) -> str:
    found = npulab.check(capture)
    return f"{found.verdict} {found.reason}"


def _explored(of: Streams) -> str:
    found = npulab.explore(Lowered("vta", dtype="int8"), RANGES, budget=4)
    assert found.sweep is not None
    assert re.search(r"4 first jobs LOAD of \d+ jobs of 4 captures are looked at", repr(found))
    return re.sub(r"of \d+ jobs of 4", f"of {of.total} jobs of {len(of.captures)}", repr(found))


def _in_session(of: Streams) -> bool:
    session = npulab.session(of.folder / "session.json")
    for capture in of.captures:
        session.attach(capture.name)
    return sum(len(found.jobs) for _, found in session.loaded()) == of.total


def _with_scale(sweep: Sweep) -> Sweep:
    """The sweep with a column of real numbers."""
    scale = np.linspace(0.01, 0.3, len(sweep))
    return replace(sweep, parameters=sweep.parameters.assign(scale=scale))


def _all_tried(of: Streams) -> bool:
    """Fields of every job are changed."""
    tried: list[Any] = []

    def progress(fields: list[Any]) -> list[Any]:
        tried.extend(fields)
        return fields[:1]

    npulab.ignored_fields(of.first, progress)
    return {task for task, *_ in tried} == {*range(len(of.first.jobs))}


PUBLIC: dict[str, Entry] = {
    "CaptureSet": plainly(
        lambda of: (
            len(npulab.CaptureSet(of.captures).words_of("STORE"))
            == sum(job.block == "STORE" for one in of.captures for job in one.jobs)
        )
    ),
    "load": plainly(
        lambda of: npulab.load(of.folder / of.first.name).jobs == of.first.jobs,
    ),
    "load_all": plainly(
        lambda of: sum(len(one.jobs) for one in npulab.load_all(of.folder)) == of.total
    ),
    "save": plainly(
        lambda of: npulab.load(of.folder / of.captures[-1].name).jobs == of.captures[-1].jobs
    ),
    "roles": plainly(lambda of: int(npulab.roles(of.captures).table["jobs"].sum()) == of.total),
    "Sweep": says(lambda of: of.sweep[:3]),
    "load_sweep": says(lambda of: npulab.load_sweep(of.folder)),
    "bisect_fields": plainly(_bisected),
    "check": all_jobs(_checked),
    "diff": all_jobs(_fields_that_differ),
    "ignored_fields": plainly(_all_tried),
    "correlate": says(lambda of: npulab.correlate(of.sweep)),
    "draft": plainly(lambda of: of.first.jobs[0].block in repr(npulab.draft(of.first))),
    "explore": says(_explored),
    "find_constants": says(lambda of: str(npulab.find_constants(_with_scale(of.sweep)))),
    "find_laws": says(lambda of: of.laws),
    "session": plainly(_in_session),
    "RegisterView": says(lambda of: npulab.RegisterView(of.first)),
}
# what takes no jobs: models, layers, tensors, buffers, maps, and what answers about an output
NO_JOBS = {
    "read_map",
    "write_map",
    "find_layout",
    "accumulate",
    "emulate",
    "identify_rounding",
    "lower_model",
    "read_model",
    "read_words",
    "single_op_model",
    "Compiler",
    "Command",
    "explain",
    "hypotheses",
    "scan_capture",
    "bench",
    "target",
}
# what further functions take sweeps
FURTHER: dict[str, Entry] = {
    "diff of sets": all_jobs(_diff_of_sets),
    "diff of sweeps": says(lambda of: npulab.diff(of.sweep, of.sweep[:-1], never=True)),
    "sweep_of": says(lambda of: sweep_of(of.captures)),
    "sweep_of a role": says(lambda of: sweep_of(of.captures, role="STORE")),
    "sweep_of a block": says(lambda of: sweep_of(of.captures, block="STORE")),
    "sweep_of a job": says(lambda of: sweep_of(of.captures, job=0)),
    "a sweep's file": says(lambda of: load_sweep(of.file)),
    "flips": says(lambda of: npulab.analysis.correlate.flips(of.sweep)),
    "bit_effects": says(lambda of: npulab.analysis.correlate.bit_effects(of.sweep)),
    "Laws.score": says(lambda of: str(of.laws.score(of.sweep))),
    "Laws.update": says(
        lambda of: of.laws.update(of.sweep.words[:2], of.sweep.parameters.iloc[:2])
    ),
    "check_stated": says(
        lambda of: npulab.analysis.laws.check_stated(
            [npulab.analysis.laws.Stated.parse("w0_0_3", "input_w", "w0_0_3")], of.sweep
        )
    ),
    "presence": plainly(
        lambda of: int(npulab.roles(of.captures).presence().words.sum()) == of.total
    ),
}
WIDGETS: dict[str, Entry] = {
    "SweepModel": says(lambda of: widgets.SweepModel(of.sweep)),
    "SweepView": says(lambda of: widgets.SweepView(of.sweep).title),
    "LawModel": says(lambda of: widgets.LawModel(of.laws)),
    "LawView": says(lambda of: widgets.LawView(of.laws).title),
    "RegisterModel": says(lambda of: widgets.RegisterModel(of.first, laws=of.laws)),
    "RegisterView": says(lambda of: widgets.RegisterView(of.first).title),
    "MapModel": says(lambda of: widgets.MapModel(npulab.draft(of.first), of.first).title),
    "MapEditor": says(lambda of: widgets.MapEditor(npulab.draft(of.first), of.first).title),
    "DiffModel": all_jobs(lambda of, capture: widgets.DiffModel(of.first, capture).summary),
    "DiffView": all_jobs(lambda of, capture: widgets.DiffView(of.first, capture).summary),
    "BisectModel": plainly(
        lambda of: (
            len(widgets.BisectModel(of.first, of.changed(1)).session.good.jobs)
            == len(of.first.jobs)
        )
    ),
    "BisectView": plainly(
        lambda of: (
            len(widgets.BisectView(of.first, of.changed(1)).model.session.good.jobs)
            == len(of.first.jobs)
        )
    ),
    "StreamModel": plainly(
        lambda of: len(widgets.StreamModel(of.first).rows) == len(of.first.jobs)
    ),
    "StreamView": plainly(
        lambda of: len(widgets.StreamView(of.first).model.rows) == len(of.first.jobs)
    ),
    "OperatorsModel": plainly(
        lambda of: len(widgets.OperatorsModel([("conv", of.first)]).jobs) == len(of.first.jobs)
    ),
    "OperatorsView": plainly(
        lambda of: len(widgets.OperatorsView([("conv", of.first)]).jobs) == len(of.first.jobs)
    ),
    "ExploreModel": says(lambda of: _in_view(of, widgets.ExploreModel)),
    "ExploreView": says(
        lambda of: _in_view(of, lambda *a, **o: widgets.ExploreView(*a, **o).model)
    ),
}
# of buffers and outputs; and of jobs of register writes, which these have not
NO_JOBS_IN = {"ByteModel", "ByteView", "OutputModel", "OutputView", "WritesModel", "WritesView"}
PICTURES: dict[str, Entry] = {
    "flip_map": says(lambda of: pictures.flip_map(of.sweep).text),
    "law_map": says(lambda of: pictures.law_map(of.laws).text),
    "law_scatter": says(lambda of: pictures.law_scatter(of.laws, (0, 0, 8)).text),
    "correlation_map": says(
        lambda of: pictures.correlation_map(npulab.correlate(of.sweep, laws=of.laws)).text
    ),
}
NO_JOBS_DRAWN = {
    "disproof",
    "BINS",
    "Picture",
    "bisection_trials",
    "block_map",
    "function_error",
    "layout_map",
    "memory_picture",
    "number_line",
    "output_comparison",
    "output_difference",
    "roofline",
    "stream_map",
}


def _in_view(of: Streams, make: Callable[..., Any]) -> str:
    model = make(Lowered("vta", dtype="int8"), RANGES, budget=4)
    model.run(wait=True)
    return re.sub(r"of \d+ jobs of 4", f"of {of.total} jobs of {len(of.captures)}", repr(model))


def test_every_public_name_is_here() -> None:
    assert {*PUBLIC, *NO_JOBS} == {*CALLS}
    assert not {*PUBLIC, *NO_JOBS} & OTHERS


def test_every_widget_and_picture_is_here() -> None:
    assert {*WIDGETS, *NO_JOBS_IN} == {*widgets.__all__}
    assert {*PICTURES, *NO_JOBS_DRAWN} == {*pictures.__all__}


@pytest.mark.filterwarnings(*WARNS)
@pytest.mark.parametrize("name", [*PUBLIC, *FURTHER])
def test_a_function_looks_at_all_jobs_or_says_at_how_many(name: str, streams: Streams) -> None:
    {**PUBLIC, **FURTHER}[name](streams)


@pytest.mark.filterwarnings(*WARNS)
@pytest.mark.parametrize("name", [*WIDGETS, *PICTURES])
def test_what_is_seen_is_of_all_jobs_or_says_of_how_many(name: str, streams: Streams) -> None:
    {**WIDGETS, **PICTURES}[name](streams)


# ---- the shell ----


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: Any) -> str:
        status = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert status in (0, 1, 3), err  # 3: check has nothing to compare
        return out + err

    return run


Shell = Callable[[Streams, Callable[..., str], Path], str]


def _list(of: Streams, run: Callable[..., str], to: Path) -> str:
    rows = [json.loads(line) for line in run("list", of.folder, "--json").splitlines()]
    assert sum(row["jobs"] for row in rows) == of.total
    assert of.file.is_file()
    return run("list", of.file)


def _show(of: Streams, run: Callable[..., str], to: Path) -> str:
    shown = run("show", of.folder / of.first.name, "--json").splitlines()
    rows = map(json.loads, shown)
    # records in buffers are rows without a job
    assert {row["task"] for row in rows if "task" in row} == {*range(len(of.first.jobs))}
    return run("show", of.file)


def _diff(of: Streams, run: Callable[..., str], to: Path) -> str:
    for task in (0, len(of.first.jobs) - 1):
        npulab.save(of.changed(task), to / f"changed-{task}")
        found = run("diff", of.folder / of.first.name, to / f"changed-{task}", "--json")
        assert json.loads(found.splitlines()[0])["task"] == task
    return run("diff", of.file, of.file)


def _check(of: Streams, run: Callable[..., str], to: Path) -> str:
    for task in (0, len(of.first.jobs) - 1):
        npulab.save(of.changed(task), to / f"changed-{task}")
        found = run("check", to / f"changed-{task}", "--json")
        assert json.loads(found.splitlines()[0])["verdict"] != "equal"
    return ""


def _bisect(of: Streams, run: Callable[..., str], to: Path) -> str:
    late = max(task for task, job in enumerate(of.first.jobs) if job.block == "ALU")
    npulab.save(of.first.with_fields(late, imm=-100), to / "bad")
    good = of.folder / of.first.name
    found = run("bisect", good, to / "bad", "--device", "simulated", "--json")
    [culprit] = json.loads(found.splitlines()[0])["culprits"]
    assert culprit[0] == late
    return ""


def _import(of: Streams, run: Callable[..., str], to: Path) -> str:
    run("import", of.folder, to / "cases")
    assert sum(len(one.jobs) for one in npulab.load_all(to / "cases")) == of.total
    run("import", of.folder, to / "role.npz", "--role", "STORE")
    assert str(load_sweep(to / "role.npz").looked_at).startswith(f"{len(LAYERS)} jobs STORE of ")
    run("import", of.folder, to / "job.npz", "--job", 0)
    assert load_sweep(to / "job.npz").looked_at.startswith(f"{len(LAYERS)} jobs number 0 of ")
    return run("import", of.folder, to / "main.npz")


def _laws(of: Streams, run: Callable[..., str], to: Path) -> str:
    total = 4 * len(of.captures)  # jobs of four roles, as each role is a search
    for capture in of.captures:
        jobs = (*capture.jobs[:2], *capture.jobs[-2:])
        npulab.save(replace(capture, jobs=jobs), to / "few" / capture.name)
    every = run("laws", to / "few", "--json").splitlines()
    about, *rows = [json.loads(line) for line in every if line.startswith("{")]
    assert about["jobs"] == total
    assert "looked_at" not in about
    known = npulab.roles(npulab.load_all(to / "few"))
    assert {row["role"] for row in rows} == {*known.names, "presence"}
    bits = sum(known.sweep(name).bits for name in known.names) + known.presence().bits
    assert sum(about["bits"].values()) == bits
    block = run("laws", to / "few", "--block", "LOAD")
    assert re.search(rf"roles?, \d+ jobs of {len(known)} roles, {total} jobs of", block)
    assert f"{len(LAYERS)} jobs STORE of {total} jobs" in run("laws", to / "few", "--role", "STORE")
    found = run("laws", of.file, "--plan", 1)
    assert "--role takes another" in found
    return found


def _explore(of: Streams, run: Callable[..., str], to: Path) -> str:
    (to / "ranges.json").write_text(
        json.dumps(
            {
                name: {"low": values[0], "high": values[1]} if isinstance(values, tuple) else values
                for name, values in RANGES.items()
            }
        )
    )
    given = "explore", "--source", "lower:vta", "--dtype", "int8", "--budget", 4
    given += "--ranges", to / "ranges.json"
    assert "4 jobs STORE of" in run(*given, "--role", "STORE", "--store", to / "store")
    again = run(*given, "--role", "STORE", "--store", to / "store", "--json")
    assert '"looked_at": "4 jobs STORE of' in again
    found = run(*given, "--block", "FINISH")
    assert "4 jobs FINISH of" in found
    found = run(*given)
    assert "npulab roles PATH lists the roles, --role takes another" in found
    return re.sub(r"of \d+ jobs of 4", f"of {of.total} jobs of {len(of.captures)}", found)


def _constants(of: Streams, run: Callable[..., str], to: Path) -> str:
    file = save_sweep(_with_scale(of.sweep), to / "scaled.npz")
    return run("constants", file)


def _report(of: Streams, run: Callable[..., str], to: Path) -> str:
    save_sweep(of.sweep, to / "sweep.npz")
    run("session", "new", to / "s.json", to / "sweep.npz")
    run("report", to / "s.json", to / "s.md")
    return (to / "s.md").read_text()


def _roles(of: Streams, run: Callable[..., str], to: Path) -> str:
    rows = [json.loads(line) for line in run("roles", of.folder, "--json").splitlines()]
    assert sum(row["jobs"] for row in rows) == of.total
    assert [*rows[0]] == ["role", "block", "captures", "jobs", "most"]
    return ""


def _session(of: Streams, run: Callable[..., str], to: Path) -> str:
    """A session keeps paths; what is at them is looked at by ``report``."""
    npulab.save(of.first, to / "case")
    run("session", "new", to / "s.json", to / "case")
    assert "case" in run("session", "show", to / "s.json")
    return ""


def _unread(of: Streams, run: Callable[..., str], to: Path) -> str:
    given: list[Capture] = []
    with pytest.MonkeyPatch.context() as patch:
        # what is done with the jobs: ``ignored_fields`` above
        patch.setattr(check, "ignored_fields", lambda capture, _: given.append(capture) or NONE)
        run("unread", of.folder / of.first.name, "--unknown")
    assert [len(capture.jobs) for capture in given] == [len(of.first.jobs)]
    return ""


SHELL: dict[str, Shell] = {
    "list": _list,
    "show": _show,
    "diff": _diff,
    "check": _check,
    "unread": _unread,
    "import": _import,
    "bisect": _bisect,
    "laws": _laws,
    "constants": _constants,
    "explore": _explore,
    "roles": _roles,
    "report": _report,
    "session": _session,
}
# the last two read buffers
NO_JOBS_READ = {
    "lab",
    "repair",
    "verdict",
    "map",
    "new",
    "trust",
    "bench",
    "completion",
    "scan",
    "layout",
    "lower",
}


def test_every_command_is_here() -> None:
    assert {*SHELL, *NO_JOBS_READ} == {*COMMANDS}


@pytest.mark.parametrize("name", SHELL)
def test_a_command_looks_at_all_jobs_or_says_at_how_many(
    name: str, streams: Streams, run: Callable[..., str], tmp_path: Path
) -> None:
    text = SHELL[name](streams, run, tmp_path)
    if text:
        assert re.search(
            rf"\d+ .*jobs? .*of {streams.total} jobs of {len(LAYERS)} captures", text
        ), text
