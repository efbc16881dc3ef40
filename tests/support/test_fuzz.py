"""Changed files of every kind: read, or refused in one sentence; each finding stays as a case.

A sample runs every time; ``pytest -m fuzz`` runs each reader for ``NPULAB_FUZZ_SECONDS`` (5), from
mutant ``NPULAB_FUZZ_FROM`` on.  ``tests/tools/fuzz.py`` prints a table.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import fuzz_readers
import pytest
from fuzz import GOOD, Fuzzer, run
from fuzz_readers import READERS, Reader

import npulab

COUNT = 3  # of the sample, of each reader
SLOW = {
    "session, reported",
    "session, its views",
    "map: SystemRDL",
    "map: C macros",
    "capture, checked and explained",
    "capture, a file changed",
    "capture",
    "draft, its steps",
    "draft",
    "Mesa's folder",
    "Rockchip's dumps",
}  # of which the sample has one
# (reader, mutant): what was found once
FOUND: list[tuple[str, int]] = [
    ("map: table", 6),
    ("journal, repaired", 44),
    ("exploration", 31),
    ("exploration", 148),
    ("value of a field", 2802),
    ("recorder's folder", 282),
]


def wrong(name: str, folder: Path, *numbers: int) -> list[tuple[int, object]]:
    """The outcomes that are findings."""
    fuzzer = Fuzzer(name, folder)
    return [
        (number, found) for number in numbers if (found := fuzzer.outcome(number)).kind not in GOOD
    ]


@pytest.fixture
def own_seeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same seeds everywhere: none of the data that may lie beside the checkout."""
    monkeypatch.setattr(fuzz_readers, "SHARED", tmp_path / "none")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_changed_files_are_read_or_refused(name: str, own_seeds: None, tmp_path: Path) -> None:
    assert wrong(name, tmp_path, *range(1 if name in SLOW else COUNT)) == []


@pytest.mark.parametrize(("name", "number"), FOUND)
def test_what_was_found_is_mended(name: str, number: int, own_seeds: None, tmp_path: Path) -> None:
    assert wrong(name, tmp_path, number) == []


@pytest.mark.fuzz
@pytest.mark.parametrize("name", READERS)
def test_many_changed_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcomes = run(
        name,
        int(os.environ.get("NPULAB_FUZZ_FROM", "0")),
        10**9,
        float(os.environ.get("NPULAB_FUZZ_SECONDS", "5")),
        tmp_path,
    )
    assert len(outcomes) > 3
    assert [one for one in outcomes if one[1].kind not in GOOD] == []


def reader(read: Callable[[Path], object], sums: bool = False) -> Reader:
    return Reader(lambda: [{"a": b"x"}], {"": lambda _, data: data + b"y"}, read, sums=sums)


def raising(error: Exception, *arguments: object) -> Callable[[Path], object]:
    def read(_: Path) -> object:
        error.args = arguments or error.args
        raise error

    return read


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("refused", raising(npulab.FormatError("x"))),
        ("refused", raising(LookupError("x"))),
        ("refused", raising(FileNotFoundError("x: none"))),
        ("another error", raising(ValueError("x"))),
        ("another error", raising(KeyError("x"))),
        ("another error", raising(OSError(22, "x"))),
        ("another error", raising(AssertionError())),
        ("long", raising(npulab.FormatError(""), "x " * 800)),
        ("lines", raising(npulab.FormatError(""), "a\nb")),
        ("control", raising(npulab.FormatError(""), "\x1b")),
        ("memory", raising(MemoryError())),
        ("warning", lambda _: warnings.warn("x", RuntimeWarning, stacklevel=1)),
        ("read", lambda _: warnings.warn("told", UserWarning, stacklevel=1)),
    ],
)
def test_findings_are_seen(
    kind: str, read: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(READERS, "made up", reader(read))
    assert Fuzzer("made up", tmp_path).outcome(0).kind == kind


def test_what_a_sum_stands_for_is_held_against_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        READERS, "made up", reader(lambda folder: (folder / "a").read_bytes(), sums=True)
    )
    assert Fuzzer("made up", tmp_path).outcome(0).kind == "other content"


@pytest.mark.fuzz
def test_what_has_no_end_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(READERS, "made up", reader(lambda _: [*iter(int, 1)] and None))
    assert run("made up", 0, 1, 60, tmp_path)[0][1].kind in ("slow", "memory")


def test_an_end_of_the_process_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        READERS, "made up", reader(lambda _: os._exit(3) if os.getpid() != here else None)
    )
    here = os.getpid()
    assert [(number, found.kind) for number, found in run("made up", 7, 2, 60, tmp_path)] == [
        (7, "end of the process"),
        (8, "end of the process"),
    ]
