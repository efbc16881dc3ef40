"""The answers of an exploration on disk: a journal of answers, with the captures next to it.

Each line of ``answers.jsonl`` is an answer; it is on the disk before the next layer is asked for. A
capture is saved in ``captures/<number>`` before its line is written. A last line that a crash cut
off is dropped.

A store deletes nothing. A folder that has captures but no ``answers.jsonl`` is refused as a store,
and nothing is written over a link. If a file or folder already has the name of a new capture, and
is not this very capture, it is moved to ``set-aside``, and a UserWarning says so.
"""

from __future__ import annotations

import json
import os
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npulab.captures import store
from npulab.captures.capture import Capture
from npulab.captures.folders import capture_files
from npulab.captures.journal import as_line
from npulab.captures.registry import target
from npulab.captures.sources import OUTCOMES, Answer
from npulab.support.files import Lines, locked, read_bounded
from npulab.support.refuse import refusing

NAME, CAPTURES, ASIDE = "answers.jsonl", "captures", "set-aside"
VERSION = 1
# A line of ``answers.jsonl`` holds these members of ``Kept``, the words, and ``jobs``.
STORED = ("number", "batch", "reason", "seed", "parameters", "outcome", "observed", "text")
# The file ``answers.jsonl`` has at most this many bytes; an answer takes some kB.
MOST_BYTES = 2**28


class JobsOf(NamedTuple):
    """The main job of a capture of several jobs: how many jobs the capture has, the block of the
    main job, and how many jobs are of this block."""

    jobs: int
    block: str
    alike: int

    @classmethod
    def of(cls, capture: Capture) -> JobsOf | None:
        """The entry of a capture with several jobs: how many jobs it has, the block of its main
        job, and how many jobs are of that block. None for a capture of one job.
        """
        if len(capture.jobs) < 2:
            return None
        blocks = [job.block for job in capture.jobs]
        own = blocks[capture.main]
        return cls(len(blocks), own, blocks.count(own))


@dataclass(frozen=True, eq=False)
class Kept:
    """An answer in a store: the parameters and the seed of the layer, the batch and the reason for
    which the layer was asked for ("first", "again", "planned" or "random"), the outcome, and the
    words.

    For a capture of several jobs ``jobs`` says which job has the words. If the exploration looks at
    the jobs of a role, ``capture`` is the capture without its buffers.
    """

    number: int
    batch: int
    reason: str
    seed: int
    parameters: dict[str, float]
    outcome: str
    words: np.ndarray | None = None
    observed: dict[str, float] = field(default_factory=dict)
    text: str = ""
    jobs: JobsOf | None = None
    capture: Capture | None = None

    @property
    def row(self) -> np.ndarray:
        """The words ``(W,) uint32`` of an answer that has a capture."""
        assert self.words is not None
        return self.words


class Store:
    """The answers of an exploration, in memory and, if a folder is given, on disk.

    Raises ValueError for a folder of another exploration, for a folder that holds links, or
    captures without ``answers.jsonl``, and for a journal with a broken line before its last.
    """

    @refusing()
    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        about: Mapping[str, Any],
        streams: bool = False,
    ) -> None:
        self.folder = None
        self.streams = streams  # True if answers hold their captures, for the jobs of a role
        self.about = json.loads(json.dumps(dict(about)))
        self.answers: list[Kept] = []
        if folder is None:
            return
        self.folder = Path(folder)
        _refuse_links(self.folder)
        self._file = Lines(self.folder / NAME, MOST_BYTES)
        if self._file.whole:
            self._take_up(self._file.path, self._file.whole.splitlines())
            return
        head = _line({"npulab": "exploration", "version": VERSION, "about": self.about})
        _refuse_others(self.folder, self._file.torn, head)
        self._file.add(head)

    def add(
        self, batch: int, reason: str, seed: int, parameters: Mapping[str, float], answer: Answer
    ) -> Kept:
        """Add an answer to the store, and return it as ``Kept``; its line is on the disk when this
        returns.
        """
        words = None
        jobs = None
        capture = None
        if answer.capture is not None:
            words = answer.capture.words
            jobs = JobsOf.of(answer.capture)
            if self.streams:
                capture = _stream(answer.capture)
        kept = Kept(
            len(self.answers),
            batch,
            reason,
            seed,
            _floats(parameters),
            answer.outcome,
            words,
            _floats(answer.parameters),
            answer.text,
            jobs,
            capture,
        )
        if self.folder is not None:
            with locked(self._file.path):
                # first check that nobody else writes: else ``_keep`` might move another writer's
                # folder
                self._file.alone()
                if answer.capture is not None:
                    _refuse_links(self.folder)
                    _keep(answer.capture, self.folder, f"{kept.number:05d}")
                self._file.add(_line(_entry_of(kept)))
        self.answers.append(kept)
        return kept

    def _take_up(self, path: Path, lines: list[bytes]) -> None:
        """Read the answers from the lines of an existing file. Raises ValueError if the file is of
        another exploration, or broken.
        """
        head, *rest = [_entry(path, number, line) for number, line in enumerate(lines, 1)]
        known = head.get("npulab") == "exploration"
        if not known or not isinstance(head.get("about"), dict):
            raise ValueError(
                f"{path}, line 1: got {str(head)[:80]!r}, allowed is the head of an exploration"
            )
        if head.get("version") != VERSION:
            raise ValueError(
                f"{path}, version: got {head.get('version')!r:.40}, allowed is {VERSION}"
            )
        for name in head["about"] | self.about:
            got, allowed = head["about"].get(name), self.about.get(name)
            if got != allowed:
                raise ValueError(
                    f"{path}: got an exploration with {name} {str(got)[:60]}, allowed is "
                    f"that of this exploration, {str(allowed)[:60]}; give another folder"
                )
        self.answers = [_kept(path, number, entry) for number, entry in enumerate(rest, 2)]
        if self.streams:
            for place, kept in enumerate(self.answers):
                if kept.words is not None:
                    found = store.read_folder(path.parent / CAPTURES / f"{kept.number:05d}")
                    self.answers[place] = replace(kept, capture=_stream(found))


def _line(entry: Mapping[str, Any]) -> bytes:
    """An entry as a line of bytes: the CRC-32 of its JSON in hexadecimal, then the JSON."""
    line = as_line(entry).encode()
    return b"%08x %s" % (zlib.crc32(line.rstrip(b"\n")), line)


def _refuse_links(folder: Path) -> None:
    """Raise ValueError if one of the store's files or folders is a link: the store would write to
    the place where it leads.
    """
    captures = folder / CAPTURES
    inside: list[Path] = []
    if captures.is_dir() and not captures.is_symlink():
        inside += captures.iterdir()
    for path in (folder / NAME, captures, folder / ASIDE, *inside):
        if path.is_symlink():
            raise ValueError(
                f"{path}: got a link to {path.readlink()}, allowed in the store of an exploration "
                "are files and folders that lie in it; give another folder"
            )


def _refuse_others(folder: Path, torn: bytes, head: bytes) -> None:
    """Raise ValueError for a folder that is no store but holds files with the names of a store's
    files. If ``answers.jsonl`` has only an unfinished first line, ``torn``, this must be the
    beginning of ``head``.
    """
    if not head.startswith(torn):
        raise ValueError(
            f"{folder / NAME}: got a file without one whole line ({len(torn)} bytes), allowed is "
            "a file that an exploration wrote; give another folder"
        )
    captures = folder / CAPTURES
    if captures.exists() and (not captures.is_dir() or any(captures.iterdir())):
        raise ValueError(
            f"{folder}: got a folder with {CAPTURES} and without {NAME}, which no exploration "
            "wrote, allowed is a new folder or the store of an exploration; give another folder"
        )


def _keep(capture: Capture, folder: Path, name: str) -> None:
    """Save a capture in a store.

    If its folder exists and holds this very capture, as after a run that was killed before it wrote
    the line, nothing is written; anything else there is moved to ``set-aside``.
    """
    where = folder / CAPTURES / name
    if where.exists():
        if _holds(where, capture_files(capture, target)):
            return
        _move_aside(where, folder / ASIDE)
    store.save(capture, where)


def _holds(where: Path, files: Mapping[str, bytes]) -> bool:
    """True if a folder holds these files with these contents, and nothing else."""
    if not where.is_dir() or {path.name for path in where.iterdir()} != {*files}:
        return False
    return all(_is_file_of(where / name, data) for name, data in files.items())


def _is_file_of(path: Path, data: bytes) -> bool:
    return (
        path.is_file()
        and not path.is_symlink()
        and path.stat().st_size == len(data)
        and read_bounded(path, len(data)) == data
    )


def _move_aside(where: Path, aside: Path) -> None:
    """Move a file or folder to a free name in ``aside``, because this exploration did not write it,
    or did not finish it; a UserWarning says so.
    """
    aside.mkdir(exist_ok=True)
    place, count = aside / where.name, 1
    while place.exists() or place.is_symlink():
        count += 1
        place = aside / f"{where.name}-{count}"
    where.rename(place)
    warnings.warn(
        f"{where}: is not a capture that this exploration has reported; it was moved to {place}, "
        "nothing of it is lost",
        UserWarning,
        stacklevel=2,
    )


def _stream(capture: Capture) -> Capture:
    """A capture without its buffers, which take most of the memory."""
    return replace(capture, buffers={})


def _floats(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in numbers.items()}


def _entry_of(kept: Kept) -> dict[str, Any]:
    """An answer as the dict that its line holds; the words are hexadecimal text."""
    entry = {name: getattr(kept, name) for name in STORED}
    entry["words"] = ""
    if kept.words is not None:
        entry["words"] = kept.words.astype("<u4").tobytes().hex()
    # without ``jobs``, lines of captures of one job have the form of earlier versions
    if kept.jobs is not None:
        entry["jobs"] = list(kept.jobs)
    return entry


def _entry(path: Path, number: int, line: bytes) -> dict[str, Any]:
    checksum, _, text = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(text):
            raise ValueError("the checksum is not that of the line")
        entry = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(
            f"{path}, line {number}: got a line with a wrong checksum, allowed is a line as "
            "an exploration wrote it"
        ) from None
    if not isinstance(entry, dict):
        raise ValueError(f"{path}, line {number}: got {str(entry)[:60]}, allowed is a JSON object")
    return entry


def _kept(path: Path, number: int, entry: Mapping[str, Any]) -> Kept:
    try:
        words = None
        if entry["words"]:
            words = np.frombuffer(bytes.fromhex(entry["words"]), "<u4").astype(np.uint32)
        if entry["outcome"] not in OUTCOMES or entry["number"] != number - 2:
            raise ValueError("the outcome is unknown, or the number is not that of the line")
        jobs = None
        if "jobs" in entry:
            count, block, alike = entry["jobs"]
            jobs = JobsOf(int(count), str(block), int(alike))
        return Kept(**{name: entry[name] for name in STORED}, words=words, jobs=jobs)
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"{path}, line {number}: got {str(dict(entry))[:60]}, allowed is a JSON object of an "
            "answer, as an exploration wrote it"
        ) from None
