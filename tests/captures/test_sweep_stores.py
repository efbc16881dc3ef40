"""Stores: what is written is there, once, whatever happens while it is written."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import CAPTURES

import npulab
from npulab.captures import parts
from npulab.captures.sweep import Sweep, is_sweep, load_sweep, save_sweep, sweep_files
from npulab.captures.sweep_store import SweepStore, open_store
from npulab.support import extras

pytest.importorskip("duckdb")

LAYERS = load_sweep(CAPTURES / "vivante/sweep-layers-s905d3.npz")
GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("stores") / "layers.store"
    store = open_store(path)
    for number, start in enumerate(range(0, 300, 128)):
        store = store.append(LAYERS[start : start + 128], f"b{number}")
    return path


def same(found: Sweep, known: Sweep) -> bool:
    return np.array_equal(found.words, known.words) and found.parameters.equals(known.parameters)


def test_a_store_has_what_was_appended(kept: Path) -> None:
    store = open_store(kept)
    assert (len(store), [part.rows for part in store.parts]) == (300, [128, 128, 44])
    assert same(store.read(), LAYERS)
    assert same(load_sweep(kept), LAYERS)
    assert store.texts == LAYERS.texts
    assert store.registers is not None
    assert np.array_equal(store.varying, LAYERS.varying)
    assert store.ranges.astype(float, errors="ignore").equals(
        LAYERS.ranges.astype(float, errors="ignore")
    )
    assert is_sweep(kept)
    assert sweep_files(kept.parent) == [kept]
    assert repr(store).startswith("SweepStore(layers, vivante, vipnano-qi-s905d3, simulated: 300")


def test_rows_are_filtered_sorted_and_chosen(kept: Path) -> None:
    store = open_store(kept)
    table = LAYERS.parameters
    chosen = store.where("input_w > 8").where("stride = 2")
    rows = np.flatnonzero((table["input_w"] > 8) & (table["stride"] == 2))
    assert 0 < len(rows) == len(chosen) < 300
    assert same(chosen.read(), LAYERS[rows])
    order = np.argsort(table["input_c"], kind="stable")
    assert same(store.sort("input_c").read(), LAYERS[order])
    numbers = np.array([299, 0, 130, 128, 5])
    assert same(store.rows(numbers), LAYERS[numbers])
    assert same(chosen.rows(numbers % len(rows)), LAYERS[rows[numbers % len(rows)]])
    assert same(store.sample(20, 3), store.sample(20, 3))
    assert not same(store.sample(20, 3), store.sample(20, 4))
    with pytest.raises(IndexError, match=r"allowed are 0 to 299"):
        store.rows([300])


def test_fields_are_the_maps(kept: Path) -> None:
    store = open_store(kept)
    registers = LAYERS.registers
    assert registers is not None
    raw = registers.decode(LAYERS.words, raw=True)
    table = store.sql("select * from fields")
    assert all(np.array_equal(table[name], raw[name]) for name in raw)
    meant = registers.decode(LAYERS.words)
    (found,) = store.decode()
    assert all(np.array_equal(found[name], meant[name]) for name in meant)
    counts = table.groupby("kernel_xy_size").size()
    counted = store.counted("kernel_xy_size")
    assert dict(zip(counted["kernel_xy_size"], counted["captures"], strict=True)) == dict(counts)
    with pytest.raises(LookupError, match=r"near is kernel_xy_size|near are kernel_xy_size"):
        store.counted("kernel_xy_sise")


def test_other_tables_are_joined(kept: Path) -> None:
    boards = pd.DataFrame({"stride": [1, 2], "board": ["a", "b"]})
    found = open_store(kept).sql(
        "select board, count(*) as n from captures join boards using (stride) group by board "
        "order by board",
        boards=boards,
    )
    counts = LAYERS.parameters["stride"].value_counts()
    assert found.to_numpy().tolist() == [["a", counts[1]], ["b", counts[2]]]


@pytest.mark.parametrize(
    "query",
    [
        "copy (select 1) to '{0}'",
        "copy (select 1) to '{1}/parts/x.parquet'",
        "select * from read_text('/etc/hostname')",
        "select 1; select 2",
        "attach '{0}'",
        "set threads = 1",
        "select * from boards",
        "",
    ],
)
def test_a_query_reads_the_store_alone(kept: Path, tmp_path: Path, query: str) -> None:
    boards = pd.DataFrame({"a": [1]})
    before = sorted(kept.rglob("*"))
    with pytest.raises(ValueError, match=r"sql: got ") as told:
        open_store(kept).sql(query.format(tmp_path / "x", kept))
    assert "\n" not in str(told.value)
    assert not [*tmp_path.iterdir()]
    assert sorted(kept.rglob("*")) == before
    assert len(boards) == 1


@pytest.mark.parametrize(
    "condition",
    [
        "1; drop view captures",
        "select 1",
        "input_v > 3",
        "input_w > 3, 2",
        "exists(select 1 from read_text('/etc/hostname'))",
        "input_w > 3) or (1 = 1",
        "",
    ],
)
def test_a_condition_is_one_expression(kept: Path, condition: str) -> None:
    with pytest.raises(ValueError, match=r"where: got ") as told:
        open_store(kept).where(condition)
    assert "\n" not in str(told.value)


def test_a_batch_is_there_once(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s").append(LAYERS[:5], "a")
    assert [part.batch for part in store.append(LAYERS[:5], "a").parts] == ["a"]
    with pytest.raises(FileExistsError, match=r"batch 'a' with other contents"):
        store.append(LAYERS[:6], "a")
    unnamed = store.append(LAYERS[5:9]).append(LAYERS[5:9])
    assert len(unnamed) == len(open_store(tmp_path / "s")) == 9


def test_further_columns(tmp_path: Path) -> None:
    outcomes = ["pass", "hang", "fail's"]
    store = open_store(tmp_path / "s").append(LAYERS[:3], "a", outcome=outcomes, ms=[1.5, 2, 3])
    table = open_store(tmp_path / "s").sql("select outcome, ms, batch from captures")
    assert table.to_numpy().tolist() == [["pass", 1.5, "a"], ["hang", 2, "a"], ["fail's", 3, "a"]]
    assert len(store.where("outcome = 'hang'").read()) == 1
    with pytest.raises(ValueError, match=r"others: got (outcome, ms|ms, outcome) not in both"):
        store.append(LAYERS[3:5], "b")


def test_buffers_are_kept_by_their_hash(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s").append(LAYERS[:3], "a")
    name = store.write_buffer(b"abc")
    assert store.write_buffer(b"abc") == name
    assert store.buffer(name) == b"abc"
    (path,) = (path for path in (tmp_path / "s/buffers").rglob("*") if path.is_file())
    path.write_bytes(b"abd")
    with pytest.raises(ValueError, match=r"sha256 .*is that of the file name"):
        store.buffer(name)
    with pytest.raises(LookupError, match=r"is the sha256 of a buffer"):
        store.buffer("../store.json")


@pytest.mark.parametrize(
    ("sweep", "batch", "said"),
    [
        (LAYERS[:0], "a", r"a sweep of no captures"),
        (LAYERS[:2], "../a", r"batch: got '\.\./a'"),
        (LAYERS[:2], ".a", r"batch: got '\.a'"),
        (replace(LAYERS[:2], chip=""), "a", r"chip: got '', allowed is 'vipnano-qi-s905d3'"),
        (
            replace(LAYERS[:2], parameters=LAYERS.parameters[:2].assign(input_w=[0.5, 1.5])),
            "a",
            r"input_w: got float64, allowed is int64; floats=\['input_w'\]",
        ),
        (
            replace(LAYERS[:2], parameters=LAYERS.parameters[:2].drop(columns="input_w")),
            "a",
            r"parameters: got input_w not in both",
        ),
    ],
)
def test_what_does_not_go_with_a_store_is_refused(
    kept: Path, sweep: Sweep, batch: str, said: str
) -> None:
    before = sorted(kept.rglob("*"))
    with pytest.raises(ValueError, match=said):
        open_store(kept).append(sweep, batch)
    assert sorted(kept.rglob("*")) == before


def test_fractions_may_come_later(tmp_path: Path) -> None:
    def one(value: float) -> Sweep:
        return Sweep([[1], [2]], {"scale": [value, 1.0]})

    store = open_store(tmp_path / "s").append(one(2.0), "a", floats=["scale"])
    assert store.append(one(0.5), "b").read().parameters["scale"].tolist() == [2, 1, 0.5, 1]


def test_changed_files_are_refused_by_name(kept: Path, tmp_path: Path) -> None:
    path = shutil.copytree(kept, tmp_path / "s")
    part = path / "parts/b1.parquet"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    store = open_store(path)
    for ask in (store.read, store.check, lambda: store.sql("select count(*) from captures")):
        with pytest.raises(ValueError, match=r"b1\.parquet: got sha256 .*sums/b1\.json says"):
            ask()
    part.write_bytes(data[:-1])
    with pytest.raises(ValueError, match=r"b1\.parquet: got \d+ bytes, allowed are \d+"):
        open_store(path)
    (path / "sums/b1.json").unlink()
    with pytest.raises(ValueError, match=r"b1\.parquet: got a part without a checksum"):
        open_store(path)


def test_what_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    with pytest.raises(ValueError, match=r"got no store, allowed is a folder with store\.json"):
        open_store(tmp_path)
    assert len(open_store(tmp_path / "new")) == 0
    assert not (tmp_path / "new").exists()
    assert [*open_store(tmp_path / "new")] == []


# ---- one sentence, and the same rows later ----


def test_without_the_extra(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(extras.MissingPackage, match=r"pip install 'npulab\[farm\]'"):
        open_store(kept).read()


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of one batch."""
    path: Path = tmp_path_factory.mktemp("begun") / "s"
    open_store(path).append(LAYERS[:5], "a")
    return path


@pytest.mark.parametrize("number", range(6))
def test_a_full_disk(
    begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Each call that writes fails once; what was there stays, and the batch can be appended."""
    store = open_store(shutil.copytree(begun, tmp_path / "s"))
    calls = [
        (parts, "replace_file"),
        (parts, "give_name"),
        (parts, "file_sum"),
        (os, "fsync"),
        (os, "link"),
        (parts.tempfile, "mkdtemp"),
    ]

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(*calls[number], full)
        if calls[number] == (parts, "file_sum"):
            patched.setattr("npulab.captures.sweep_store.file_sum", full)
        with pytest.raises(OSError, match=r"No space left on the disk: batch b is not written"):
            store.append(LAYERS[5:8], "b")
    assert same(open_store(tmp_path / "s").read(), LAYERS[:5])
    assert not [*(tmp_path / "s").glob(".npulab*")]
    assert same(store.append(LAYERS[5:8], "b").read(), LAYERS[:8])


# A program that forks writers of stores: some are killed at random points of their work, two write
# the same store at once, one has a full disk.
WRITERS = """
import os, random, resource, signal, sys, time
import duckdb
from npulab.captures.sweep import load_sweep
from npulab.captures.sweep_store import open_store
folder, layers, count = sys.argv[1:]
sweep = load_sweep(layers)
random_ = random.Random(1)
BATCHES = 5


def write(path, said):
    store = open_store(path)
    for number in range(BATCHES):
        store = store.append(sweep[5 * number : 5 * number + 5], f"{number:03}")
        os.write(said, b".")
    os._exit(0)


def full(path, said):
    store = open_store(path).append(sweep[:5], "a")
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
    try:
        store.append(sweep, "b")
    except OSError as error:
        os.write(said, error.strerror.encode())
    os._exit(0)


def child(path, work=write):
    read, said = os.pipe()
    pid = os.fork()
    if not pid:
        work(path, said)
    os.close(said)
    return pid, read


start = time.perf_counter()
pid, read = child(folder + "/whole")
os.waitpid(pid, 0)
took = time.perf_counter() - start
both = [child(folder + "/both") for _ in range(2)]
print(*(os.waitpid(pid, 0)[1] for pid, read in both), flush=True)
pid, read = child(folder + "/full", full)
os.waitpid(pid, 0)
print(os.read(read, 1000).decode(), flush=True)
killed = number = 0
while killed < int(count):
    path = f"{folder}/s{number // 3}"
    number += 1
    pid, read = child(path)
    time.sleep(random_.uniform(0, took))
    os.kill(pid, signal.SIGKILL)
    killed += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    print(path, len(os.read(read, 100)), flush=True)
    os.close(read)
    pid, read = os.fork(), 0
    if not pid:
        if os.path.isfile(path + "/store.json"):
            found = open_store(path)
            found.check()
            print("parts", *(part.batch for part in found.parts), flush=True)
        else:
            print("parts", flush=True)
        os._exit(0)
    assert not os.waitpid(pid, 0)[1]
"""


@pytest.fixture(scope="module", params=[1, pytest.param(50, marks=pytest.mark.long)])
def written(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    """The folder of the stores, and the lines that the program of the writers printed."""
    folder = tmp_path_factory.mktemp("written")
    layers = str(CAPTURES / "vivante/sweep-layers-s905d3.npz")
    arguments = [sys.executable, "-c", WRITERS, str(folder), layers, str(request.param)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=500)
    assert not done.returncode, done
    lines = done.stdout.splitlines()
    assert len(lines) >= 2 + 2 * request.param
    return folder, lines


def test_killed_writers(written: tuple[Path, list[str]]) -> None:
    """The same batches are appended again and again, by writers that are killed at random: what
    they said to be written is there, once, and the next one continues."""
    folder, lines = written
    for said, there in zip(lines[2::2], lines[3::2], strict=True):
        numbers = [int(batch) for batch in there.split()[1:]]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= int(said.split()[1])
    for path in folder.glob("s*"):
        # what killed writers left is removed once it is a minute old
        for left in path.glob(".npulab*"):
            os.utime(left, (0, 0))
        store = open_store(path)
        for batch in range(5):
            store = store.append(LAYERS[5 * batch : 5 * batch + 5], f"{batch:03}")
        assert same(open_store(path).read(), LAYERS[:25])


def test_two_writers_at_once(written: tuple[Path, list[str]]) -> None:
    """Both append the same batches: each batch is there once, and neither fails."""
    folder, lines = written
    assert lines[0] == "0 0"
    assert same(open_store(folder / "both").read(), LAYERS[:25])


def test_duckdb_on_a_full_disk(written: tuple[Path, list[str]]) -> None:
    folder, lines = written
    assert lines[1].startswith("No space left on the disk: batch b is not written")
    store = open_store(folder / "full")
    assert same(store.read(), LAYERS[:5])
    assert len(store.append(LAYERS, "b")) == 305


def test_a_hidden_folder_of_a_living_writer_stays(kept: Path) -> None:
    with parts.hidden_folder(kept) as mine:
        os.utime(mine, (0, 0))
        with parts.hidden_folder(kept) as other:
            assert mine.is_dir()
            assert other.is_dir()
    assert not mine.exists()


# ---- the same calls take both ----


def test_a_sweep_is_saved_as_a_store(tmp_path: Path) -> None:
    path = save_sweep(LAYERS, tmp_path / "new/s.store")
    assert same(load_sweep(path), LAYERS)
    assert [one.name for one in path.parent.iterdir()] == ["s.store"]
    with pytest.raises(FileExistsError, match=r"s\.store"):
        save_sweep(LAYERS, path)


def test_pandas_reads_the_parts(kept: Path) -> None:
    pytest.importorskip("pyarrow")
    table = pd.read_parquet(kept / "parts")
    assert np.array_equal(table["w3"], LAYERS.words[:, 3])


@pytest.mark.long
def test_polars_reads_the_parts(kept: Path) -> None:
    polars = pytest.importorskip("polars")
    table = polars.read_parquet(kept / "parts/*.parquet")
    assert np.array_equal(table["w3"].to_numpy(), LAYERS.words[:, 3])


# dask 2026.8 calls pandas 3.1 with what that warns of
@pytest.mark.filterwarnings("ignore::pandas.errors.PandasDeprecationWarning")
@pytest.mark.long
def test_dask_reads_the_parts(kept: Path) -> None:
    pytest.importorskip("pyarrow")
    frames = pytest.importorskip("dask.dataframe")
    table = frames.read_parquet(kept / "parts")
    assert int(table["w3"].sum().compute()) == int(LAYERS.words[:, 3].sum())


def test_a_golden_store_opens() -> None:
    store = open_store(GOLDEN / "sweep.store")
    assert same(store.read(), load_sweep(CAPTURES / "vivante/sweep-addresses.npz")[:2])
    assert isinstance(store, SweepStore)
    assert store.buffer(store.sql("select output_sha256 from captures").iloc[0, 0]) == b"output"


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    path = shutil.copytree(GOLDEN / "sweep.store", tmp_path / "s")
    head = path / "store.json"
    text = head.read_text()
    head.write_text(text.replace('"version": 1', '"version": 2'))
    with pytest.raises(ValueError, match=r"store\.json: version: got 2, allowed is 1"):
        open_store(path)
    head.write_text(text)
    stated = path / "sums/a.json"
    stated.write_text(stated.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(ValueError, match=r"a\.json: version: got 2, allowed is 1"):
        npulab.load_sweep(path)
