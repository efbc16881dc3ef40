"""The questions by the workers of any executor: the same answers as in this process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import work_items
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
from npulab.captures.sources import Compiler, reader_of
from npulab.models import check_sweep, write_sweep
from npulab.quant.emulate import emulate
from npulab.quant.emulate.many import emulate_all
from npulab.registers.map import RegisterMap
from npulab.support.clusters import cluster, refuse_versions
from npulab.support.executors import processes, sendable
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
    npulab.explore(source, RANGES, budget=10, store=folder, **options)
    return (folder / NAME).read_bytes()


def test_an_exploration_has_the_same_rows_whatever_the_workers(
    tmp_path: Path, pool: Executor, address: str
) -> None:
    alone = explored(tmp_path / "alone")
    assert explored(tmp_path / "threads", workers=3) == alone
    assert explored(tmp_path / "pool", executor=pool) == alone
    with cluster(address) as executor:
        assert explored(tmp_path / "cluster", executor=executor) == alone
    pids = (tmp_path / "cluster.log").read_text().split()
    assert len(pids) == 10
    assert len({*pids}) == 2


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


def test_a_layer_that_ends_its_workers_has_failed(tmp_path: Path) -> None:
    found = npulab.explore(KillsAtWide(), RANGES, budget=6, executor=processes(2), seed=1)
    lost = found.outcomes
    assert {*lost["outcome"]} == {"failed"}
    assert (lost["input_w"] > 30).all()
    assert lost["text"].str.contains("ended 3 times").all()


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
    tmp_path: Path, pool: Executor, options: dict[str, Any]
) -> None:
    alone = bisected(tmp_path / "alone.jsonl", **options)
    ahead = bisected(tmp_path / "ahead.jsonl", executor=pool, **options)
    assert {key[3] for key in alone.culprits} == {"f3", "f17"}
    assert (ahead.culprits, ahead.groups) == (alone.culprits, alone.groups)
    assert ahead.queries == alone.queries
    assert trials(tmp_path / "ahead.jsonl") == trials(tmp_path / "alone.jsonl")


def test_most_trials_of_a_bisection_were_run_ahead(tmp_path: Path) -> None:
    ran: list[int] = []

    def oracle(capture: Capture) -> str:
        ran.append(int(capture.words[0]))
        return work_items.breaks_by_two_bits(capture)

    with ThreadPoolExecutor(1) as one:
        found = bisected(tmp_path / "trials.jsonl", oracle, executor=one)
    # one was asked for, and of the two that were run ahead of it one was asked for next
    assert found.queries < len(ran) <= 3 * found.queries


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


def test_boards_of_a_cluster_are_workers_with_a_resource(
    address: str,
    run: Any,
    tmp_path: Path,
) -> None:
    with cluster(address, {"npu": 1}) as executor:
        assert bisected(tmp_path / "trials.jsonl", executor=executor).found
    with (
        pytest.raises(
            ValueError, match="got 2 workers, none with npu=2; start one with dask worker"
        ),
        cluster(address, {"npu": 2}),
    ):
        pass
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
        pytest.raises(ImportError, match=r"a cluster needs dask\[distributed\].*npulab\[farm\]"),
        cluster("tcp://127.0.0.1:9"),
    ):
        pass
    assert not installed("distributed")


def test_options_of_workers_are_refused_in_one_sentence(run: Any) -> None:
    case = str(VIVANTE / "sim-1x1")
    for options, words in (
        (["--jobs", "0"], "--jobs: got 0, allowed is at least 1"),
        (["--resource", "npu=1"], "--resource: got it alone"),
        (["--jobs", "2", "--cluster", "x"], "--jobs: got it with --cluster"),
        (["--cluster", "x", "--resource", "npu"], "--resource: got 'npu'"),
    ):
        code, _, err = run("check", case, *options)
        assert code == 2
        assert words in err
