"""The questions by the workers of any executor: the same answers as in this process."""

from __future__ import annotations

import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import work_items
from bench_executors import dask, measured
from conftest import ROOT
from test_cli import run  # noqa: F401 - a fixture

import npulab
from npulab.analysis.bisect import Bisected
from npulab.analysis.checks import check_all
from npulab.analysis.explore.storing import NAME
from npulab.analysis.laws.by_role import laws_of_roles
from npulab.analysis.scan import Scan, scan
from npulab.captures.capture import Capture, Job
from npulab.captures.journal import Journal
from npulab.captures.roles import roles
from npulab.captures.sources import Compiler, answers, reader_of
from npulab.models import check_sweep, write_sweep
from npulab.quant.emulate import emulate
from npulab.quant.emulate.many import emulate_all
from npulab.registers.map import RegisterMap
from npulab.support.clusters import cluster, refuse_versions
from npulab.support.executors import ordered, processes, sendable
from npulab.support.extras import installed

VIVANTE = ROOT / "captures" / "vivante"
RANGES = {"input_h": (1, 40), "input_w": (1, 40), "output_c": (1, 9)}
MAP = RegisterMap([{"block": "NN", "field": f"f{n}", "lsb": n, "width": 1} for n in range(32)])


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with ProcessPoolExecutor(2) as made:
        yield made


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A Dask cluster of two processes with a board each."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        protocol="tcp://",
        dashboard_address=None,
        silence_logs=50,
        resources={"npu": 1},
    ) as made:
        yield made.scheduler_address


def explored(folder: Path, **options: Any) -> bytes:
    """The journal of answers of a short exploration."""
    source = work_items.SlowSource(log=str(folder.with_suffix(".log")))
    npulab.explore(source, RANGES, budget=8, store=folder, **options)
    return (folder / NAME).read_bytes()


def test_an_exploration_has_the_same_rows_whatever_the_workers(
    tmp_path: Path, address: str
) -> None:
    alone = explored(tmp_path / "alone")
    with cluster(address) as executor:
        assert explored(tmp_path / "cluster", executor=executor) == alone
    assert len((tmp_path / "cluster.log").read_text().split()) == 8


@pytest.mark.long
@pytest.mark.parametrize("kill", [False, True])
def test_a_sweep_has_the_same_rows_if_a_worker_is_killed(kill: bool) -> None:
    arguments = Namespace(layers=200, seconds=0.02, sleep=False)
    alone = measured("this process", lambda: nullcontext(None), arguments)
    for made in (lambda: nullcontext(processes(2)), lambda: dask(4)):
        assert measured("workers", made, arguments, kill)[0] == alone[0]


def test_a_stop_keeps_each_answer_once(tmp_path: Path) -> None:
    source = work_items.SlowSource(seconds=0.3, sleeps=True)
    stop = threading.Event()

    def watch(step: Any) -> None:
        if step.asked == 4:
            stop.set()

    folder = tmp_path / "store"
    with ThreadPoolExecutor(2) as threads:
        options: dict[str, Any] = {"budget": 8, "store": folder, "executor": threads}
        first = npulab.explore(source, RANGES, progress=watch, stop=stop, **options)
        assert first.stopped
        assert 4 <= len((folder / NAME).read_text().splitlines()) - 1 < 8
        source = work_items.SlowSource()
        npulab.explore(source, RANGES, **options)
    assert len((folder / NAME).read_text().splitlines()) == 9


def test_a_layer_that_ends_its_workers_has_failed() -> None:
    rows = [{"input_w": width, "input_h": 1, "output_c": 1} for width in (3, 31, 7)]
    found = dict(answers(KillsAtWide(), rows, 0, processes(1)))
    assert [found[number].outcome for number in range(3)] == ["captured", "failed", "captured"]
    assert "ended 3 times" in found[1].text


class KillsAtWide(work_items.SlowSource):
    def __call__(self, parameters: Any, seed: int = 0) -> Any:
        work_items.EndsItsProcess(1)(int(parameters["input_w"] > 30))
        return super().__call__({**parameters, "input_h": 1}, seed)


def test_sources_can_be_sent_if_they_hold_no_lambda(pool: Executor) -> None:
    sendable("source", Compiler("cc {model} {out}", reader_of("vivante")))
    source = Compiler("cc {model} {out}", lambda out: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match=r"^source: got .*give a function of a module"):
        npulab.explore(source, RANGES, budget=4, executor=pool)
    with pytest.raises(ValueError, match="explore: got workers and executor, allowed is one"):
        npulab.explore(work_items.SlowSource(), RANGES, workers=2, executor=pool)


def bisected(
    journal: Path, oracle: Any = work_items.breaks_by_two_bits, **options: Any
) -> Bisected:
    good = Capture("good", "demo", "x", (Job("NN", [0]),), maps={"NN": MAP})
    bad = Capture("bad", "demo", "x", (Job("NN", [2**32 - 1]),), maps={"NN": MAP})
    return npulab.bisect_fields(good, bad, oracle, journal=journal, **options)


def trials(path: Path) -> list[tuple[Any, ...]]:
    return [(trial.subset, trial.reason, trial.outcome) for trial in Journal(path)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"flake_rate": 0.05}, marks=pytest.mark.long),
        pytest.param({"symptom": "fail"}, marks=pytest.mark.long),
    ],
)
def test_a_bisection_has_the_same_trials_if_they_run_ahead(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    alone = bisected(tmp_path / "alone.jsonl", **options)
    ran: list[Capture] = []

    def oracle(capture: Capture) -> str:
        ran.append(capture)
        return work_items.breaks_by_two_bits(capture)

    with ThreadPoolExecutor(1) as one:
        ahead = bisected(tmp_path / "ahead.jsonl", oracle, executor=one, **options)
    # of the two that are run ahead of a trial, at most one is asked for next
    assert ahead.queries < len(ran) <= 3 * ahead.queries
    assert {key[3] for key in alone.culprits} == {"f3", "f17"}
    assert (ahead.culprits, ahead.groups) == (alone.culprits, alone.groups)
    assert ahead.queries == alone.queries
    assert trials(tmp_path / "ahead.jsonl") == trials(tmp_path / "alone.jsonl")


def scanned(journal: Path, **options: Any) -> Scan:
    data = bytes([1, 2, 3, 4, 5, 6, 7, 200])
    kept = Journal(journal, {"scan": "x"})
    return scan(data, work_items.bytes_as_outputs, [0, 1], journal=kept, **options)


def test_a_scan_has_the_same_runs_whatever_the_workers(tmp_path: Path, pool: Executor) -> None:
    alone = scanned(tmp_path / "alone.jsonl")
    by_pool = scanned(tmp_path / "pool.jsonl", executor=pool)
    assert alone.counts == by_pool.counts
    assert alone.counts["hang"] == 1
    assert str(alone) == str(by_pool)
    runs = trials(tmp_path / "alone.jsonl")
    assert trials(tmp_path / "pool.jsonl") == runs
    # a scan that is taken up again asks only for the rest
    lines = (tmp_path / "alone.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut.jsonl").write_text("".join(lines[: len(lines) // 2]))
    assert str(scanned(tmp_path / "cut.jsonl", executor=pool)) == str(alone)
    assert trials(tmp_path / "cut.jsonl") == runs


def test_checks_are_in_the_order_of_the_captures(pool: Executor) -> None:
    captures = [npulab.load(path) for path in sorted(VIVANTE.glob("sim-1x1*"))]
    alone = check_all(captures)
    done: list[int] = []
    assert check_all(iter(captures), pool, progress=done.append).records() == alone.records()
    assert done == [*range(1, len(captures) + 1)]


def test_a_written_sweep_has_the_same_bytes(tmp_path: Path, pool: Executor) -> None:
    grid = {"op": ["conv2d", "add"], "stride": [1, 2], "dtype": "uint8"}
    write_sweep(tmp_path / "alone", grid)
    made = write_sweep(tmp_path / "pool", grid, executor=pool)
    files = sorted((tmp_path / "alone").iterdir())
    for file in files:
        assert (tmp_path / "pool" / file.name).read_bytes() == file.read_bytes()
    (tmp_path / "alone" / "000-output.bin").write_bytes(
        (tmp_path / "alone" / "000-expected.bin").read_bytes()
    )
    pd.testing.assert_frame_equal(
        check_sweep(tmp_path / "alone", executor=pool), check_sweep(tmp_path / "alone")
    )
    pairs = [(layer, made.inputs(number)) for number, layer in enumerate(made.layers)]
    pairs = [pair for pair in pairs if len(pair[1]) > 1]
    for number, output in emulate_all(pairs, executor=pool):
        np.testing.assert_array_equal(output, emulate(*pairs[number]))


def streams() -> list[Capture]:
    maps = {
        name: RegisterMap([{"block": name, "offset": 0, "field": "f", "lsb": 0, "width": 32}])
        for name in ("LOAD", "STORE")
    }
    captures = []
    for number in range(8):
        size = 3 + 7 * number % 29
        jobs = Job("LOAD", [size * 4]), Job("STORE", [size + 1])
        parameters = {"size": size}
        captures.append(Capture(f"c{number}", "demo", "x", jobs, maps=maps, parameters=parameters))
    return captures


def test_laws_of_roles_and_their_proof_are_the_same(pool: Executor) -> None:
    known = roles(streams())
    alone = laws_of_roles(known)
    by_pool = laws_of_roles(known, executor=pool)
    assert by_pool.records() == alone.records()
    assert alone.bits["law"] > 0
    summary = alone.found[0].summary
    assert summary is not None
    asked = (
        np.repeat(summary.sweep.words, 800, axis=0),
        {name: np.repeat(column, 800) for name, column in summary.sweep.parameters.items()},
    )
    score = summary.laws.score(*asked, executor=pool)
    plain = summary.laws.score(*asked)
    assert (score.cells, score.claimed, score.wrong) == (plain.cells, plain.claimed, plain.wrong)
    assert score.claimed > 0


def test_boards_of_a_cluster_are_workers_with_a_resource(address: str) -> None:
    with cluster(address, {"npu": 1}) as executor:
        assert dict(ordered(work_items.square, range(4), executor)) == {0: 0, 1: 1, 2: 4, 3: 9}
    with (
        pytest.raises(
            ValueError, match="got 2 workers, none with npu=2; start one with dask worker"
        ),
        cluster(address, {"npu": 2}),
    ):
        pass


@pytest.mark.long
def test_captures_are_checked_by_a_cluster(address: str, run: Any) -> None:
    paths = [str(path) for path in sorted(VIVANTE.glob("sim-1x1*"))]
    alone = run("check", "--json", *paths)
    assert run("check", "--json", *paths, "--cluster", address) == alone


def test_a_cluster_that_does_not_answer_is_one_sentence(run: Any) -> None:
    pytest.importorskip("distributed")
    code, out, err = run("check", str(VIVANTE / "sim-1x1"), "--cluster", "tcp://127.0.0.1:9")
    assert (code, out) == (2, [])
    assert "where no Dask scheduler answered within 10 seconds" in err
    assert err.count("\n") == 1


def test_workers_with_another_npulab_are_refused() -> None:
    refuse_versions({"tcp://a": npulab.__version__})
    for version, words in (("0.0.1", "npulab 0.0.1"), (ImportError("none here"), "no npulab")):
        with pytest.raises(ValueError, match=rf"worker tcp://b: got {words}.*as here"):
            refuse_versions({"tcp://a": npulab.__version__, "tcp://b": version})


def test_a_cluster_without_dask_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(ImportError, match=r"a cluster needs dask,.*npulab\[farm\]"),
        cluster("tcp://127.0.0.1:9"),
    ):
        pass
    assert not installed("distributed")


def test_options_of_workers_are_refused_in_one_sentence(run: Any) -> None:
    case = str(VIVANTE / "sim-1x1")
    for options, words in (
        (["--jobs", "0"], "--jobs: got 0, allowed is at least 1"),
        (["--resource", "npu=1"], "--resource: got no --cluster"),
        (["--jobs", "2", "--cluster", "x"], "--jobs: got --cluster too"),
        (["--cluster", "x", "--resource", "npu"], "--resource: got 'npu'"),
    ):
        code, _, err = run("check", case, *options)
        assert code == 2
        assert words in err
