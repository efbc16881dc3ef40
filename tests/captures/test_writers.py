"""Two writers at once, and writers that are killed between any two calls of the system."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import CAPTURES

import npulab
from npulab.analysis.draft import draft
from npulab.captures.journal import Journal, Trial
from npulab.captures.sweep import load_sweep, save_sweep
from npulab.registers.formats import RegisterTable
from npulab.support import files
from npulab.support.files import replace_files, write_files

SWEEP = CAPTURES / "vivante/sweep-addresses.npz"
CASE = CAPTURES / "vivante/sim-1x1"
VIVANTE = Path(npulab.__file__).parent / "npus/vivante"
CALLS = {
    "open",
    "os.rename",
    "os.link",
    "os.remove",
    "os.mkdir",
    "os.truncate",
    "os.chmod",
    "os.rmdir",
}


@pytest.fixture(autouse=True)
def _often() -> Iterator[None]:
    """Threads change places often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def both(work: Callable[[int], None]) -> None:
    """Run two writers at once; what one of them raises is raised."""
    raised: list[BaseException] = []
    start = threading.Barrier(2)

    def one(number: int) -> None:
        try:
            start.wait(60)
            work(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in raised:
        raise error


def many(count: int) -> list[Any]:
    """Twenty long runs of a test."""
    return [pytest.param(run, count, marks=pytest.mark.long) for run in range(20)]


def notes_of_two(path: Path, count: int) -> tuple[list[str], list[str]]:
    """(notes that were accepted, notes in the file) of two writers that merge where refused."""
    accepted: list[str] = []
    npulab.session(path)

    def write(number: int) -> None:
        one = npulab.session(path, author=str(number))
        for n in range(count):
            try:
                one.note(f"{number}:{n}")
            except ValueError:
                one.merge()
            accepted.append(f"{number}:{n}")

    both(write)
    return sorted(accepted), sorted(note.text for note in npulab.session(path).notes)


@pytest.mark.parametrize(("run", "count"), [(0, 3), *many(40)])
def test_no_note_of_two_writers_is_lost(tmp_path: Path, run: int, count: int) -> None:
    accepted, kept = notes_of_two(tmp_path / "s.json", count)
    assert kept == accepted


def trials_of_two(path: Path, count: int) -> tuple[list[str], list[str]]:
    """(trials that were written, trials in the file) of two writers that open again where
    refused.
    """
    written: list[str] = []
    Journal(path, {"a": 1})

    def write(number: int) -> None:
        journal = Journal(path, {"a": 1})
        for n in range(count):
            try:
                journal.add(Trial((f"{number}:{n}",), "two writers", "pass"))
                written.append(f"{number}:{n}")
            except ValueError:
                journal = Journal(path)

    both(write)
    return sorted(written), sorted(trial.subset[0] for trial in Journal(path))


@pytest.mark.parametrize(("run", "count"), [(0, 30), *many(600)])
def test_a_journal_of_two_writers_stays_whole(tmp_path: Path, run: int, count: int) -> None:
    written, kept = trials_of_two(tmp_path / "j.jsonl", count)
    assert written
    assert kept == written


def test_one_of_two_writers_has_a_new_file(tmp_path: Path) -> None:
    won: list[tuple[int, int]] = []
    refused: set[str] = set()

    def write(number: int) -> None:
        for n in range(12):
            try:
                write_files({tmp_path / f"{n}": bytes([number])})
                won.append((n, number))
            except FileExistsError as error:
                refused.add(str(error))

    both(write)
    assert refused <= {
        f"{tmp_path / str(n)}: is there already; give another path, or move it away"
        for n in range(12)
    }
    assert sorted(n for n, _ in won) == [*range(12)]
    assert all((tmp_path / f"{n}").read_bytes() == bytes([number]) for n, number in won)


def test_one_of_two_writers_has_a_new_capture(tmp_path: Path) -> None:
    capture, won = npulab.load(CASE), []
    refused: set[str] = set()

    def write(number: int) -> None:
        for n in range(4):
            try:
                npulab.save(capture, tmp_path / f"{n}")
                won.append(n)
            except FileExistsError as error:
                refused.add(str(error))

    both(write)
    assert refused <= {
        f"{tmp_path / str(n)}: is there already; give another path, or move it away"
        for n in range(4)
    }
    assert sorted(won) == [*range(4)]


def test_who_holds_a_folder_keeps_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PATIENCE", 0.0)
    with (
        files.locked(tmp_path / "a"),
        files.locked(tmp_path / "b"),
        pytest.raises(TimeoutError, match=r"another program has locked it, nothing is written"),
    ):
        both(lambda _: replace_files({}, {tmp_path / "a": b"x"}))
    replace_files({}, {tmp_path / "a": b"x"})


def test_a_file_system_without_locks_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "fcntl", None)
    with pytest.warns(UserWarning, match=r"has no locks: two writers may lose what they write"):
        write_files({tmp_path / "a": b"x"})
    assert (tmp_path / "a").read_bytes() == b"x"


def test_a_dangling_link_is_no_free_name(tmp_path: Path) -> None:
    (tmp_path / "link.npz").symlink_to(tmp_path / "gone")
    with pytest.raises(
        FileExistsError, match=r"link\.npz: is there already; give another path, or move it away$"
    ):
        save_sweep(load_sweep(SWEEP)[:2], tmp_path / "link.npz")


def test_what_a_killed_save_left_goes_after_a_day(tmp_path: Path) -> None:
    for name, age in ((".npulab-old1.part", 2), (".npulab-new1.part", 0), (".npulab-notes", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "words.bin").write_bytes(b"x")
        then = (tmp_path / name).stat().st_mtime - age * 24 * 3600
        os.utime(tmp_path / name, (then, then))
    npulab.save(npulab.load(CASE), tmp_path / "case")
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        ".npulab-new1.part",
        ".npulab-notes",
        "case",
    ]


# Killed between any two calls


def _map(folder: Path) -> None:
    for name in ("nn.csv", "enums.csv"):
        (folder / name).write_bytes((VIVANTE / name).read_bytes())


@cache
def _table() -> RegisterTable:
    return npulab.read_map(VIVANTE / "nn.csv")


def _draft(folder: Path) -> None:
    one = draft(folder / "nn.csv")
    name = next(item.name for item in one.map if item.declared and not item.meaning.enum)
    one.retype(name, "enum:mine", {0: "a", 1: "b"})
    one.save()


def _opens(path: Path) -> bytes:
    """The bytes of a table that has the enums that it needs beside it."""
    enums = (path.parent / "enums.csv").read_text()
    table = path.read_text()
    assert all(f"{name}," in enums for name in re.findall(r"enum:(\w+)", table))
    return table.encode()


def _session(folder: Path) -> list[str]:
    return [note.text for note in npulab.session(folder / "s.json").notes]


WRITERS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any], Callable[[Path], Any]]] = {
    "draft": (_map, _draft, lambda folder: _opens(folder / "nn.csv")),
    "map": (
        lambda _: _table(),
        lambda folder: npulab.write_map(_table(), folder / "o.csv"),
        lambda folder: (folder / "o.csv").exists() and _opens(folder / "o.csv"),
    ),
    "session": (
        lambda folder: npulab.session(folder / "s.json").note("one"),
        lambda folder: npulab.session(folder / "s.json").note("two"),
        _session,
    ),
    "journal": (
        lambda folder: Journal(folder / "j", {"a": 1}).add(Trial(("one",), "", "pass")),
        lambda folder: Journal(folder / "j").add(Trial(("two",), "", "pass")),
        lambda folder: [trial.subset for trial in Journal.read(folder / "j")],
    ),
    "sweep": (
        lambda _: None,
        lambda folder: save_sweep(load_sweep(SWEEP)[:2], folder / "s.npz"),
        lambda folder: (folder / "s.npz").exists() and len(load_sweep(folder / "s.npz")),
    ),
    "capture": (
        lambda _: None,
        lambda folder: npulab.save(npulab.load(CASE), folder / "case"),
        lambda folder: (folder / "case").exists() and npulab.load(folder / "case").name,
    ),
}


def killed(work: Callable[[Path], Any], folder: Path, calls: int) -> bool:
    """Whether the writer was killed before its call of that number."""
    child = os.fork()
    if child == 0:
        left = calls

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            if event in CALLS and str(folder) in str(arguments):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(count)
            work(folder)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_that_is_killed_leaves_the_old_or_the_new(
    tmp_path: Path, name: str, step: int
) -> None:
    prepare, work, state = WRITERS[name]
    seen, calls, alive = [], 0, True
    while alive:
        folder = tmp_path / f"{calls}"
        folder.mkdir()
        prepare(folder)
        old = state(folder)
        alive = killed(work, folder, calls)
        seen.append(state(folder))
        calls += step
        assert calls < 100
    new = seen[-1]
    assert calls > 3
    assert all(one in (old, new) for one in seen)
