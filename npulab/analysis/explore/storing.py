"""What an exploration has asked and got, on disk: a journal of answers and the captures beside it.

Each line of ``answers.jsonl`` is an answer, on the disk before the next layer is asked for; a capture
lies in ``captures/<number>`` before its line says so.  A line that a crash cut off is dropped.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from npulab.captures import store
from npulab.captures.journal import as_line
from npulab.captures.sources import OUTCOMES, Answer
from npulab.support.files import Lines, locked
from npulab.support.refuse import refusing

NAME, CAPTURES = "answers.jsonl", "captures"
VERSION = 1
MOST_BYTES = 2 ** 28  # of the answers; one has some kB


@dataclass(frozen=True, eq=False)
class Kept:
    """An answer as it is kept: the layer's parameters and seed, the batch it was asked in and why
    ("first", "again", "planned" or "random"), the outcome, and the words."""

    number: int
    batch: int
    reason: str
    seed: int
    parameters: dict[str, float]
    outcome: str
    words: np.ndarray | None = None
    observed: dict[str, float] = field(default_factory=dict)
    text: str = ""

    @property
    def row(self) -> np.ndarray:
        """The words of an answer that has some."""
        assert self.words is not None
        return self.words


class Store:
    """The answers of an exploration, in memory and, with a folder, on disk.

    Raises ValueError for a folder of another exploration or a journal that is broken before its
    last line.
    """

    @refusing()
    def __init__(self, folder: str | os.PathLike[str] | None, about: Mapping[str, Any]) -> None:
        self.folder = None if folder is None else Path(folder)
        self.about = json.loads(json.dumps(dict(about)))
        self.answers: list[Kept] = []
        if self.folder is None:
            return
        self._file = Lines(self.folder / NAME, MOST_BYTES)
        if self._file.whole:
            self._take_up(self._file.path, self._file.whole.splitlines())
        else:
            self._append({"npulab": "exploration", "version": VERSION, "about": self.about})

    def add(self, batch: int, reason: str, seed: int, parameters: Mapping[str, float], answer: Answer) -> Kept:
        """Keep an answer; it is on the disk when this returns."""
        words = None if answer.capture is None else answer.capture.words
        kept = Kept(len(self.answers), batch, reason, seed, _floats(parameters), answer.outcome, words,
                    _floats(answer.parameters), answer.text)
        if self.folder is not None:
            with locked(self._file.path):
                self._file.alone()  # so that no capture of another writer is taken away
                if answer.capture is not None:
                    where = self.folder / CAPTURES / f"{kept.number:05d}"
                    shutil.rmtree(where, ignore_errors=True)  # of a run that was killed before its line
                    store.save(answer.capture, where)
                self._append({"number": kept.number, "batch": batch, "reason": reason, "seed": seed,
                              "parameters": kept.parameters, "outcome": kept.outcome, "observed": kept.observed,
                              "words": "" if words is None else words.astype("<u4").tobytes().hex(),
                              "text": kept.text})
        self.answers.append(kept)
        return kept

    def _append(self, entry: Mapping[str, Any]) -> None:
        line = as_line(entry).encode()
        self._file.add(b"%08x %s" % (zlib.crc32(line.rstrip(b"\n")), line))

    def _take_up(self, path: Path, lines: list[bytes]) -> None:
        """Read what is there; a last line that is cut off counts for nothing."""
        head, *rest = [_entry(path, number, line) for number, line in enumerate(lines, 1)]
        if head.get("npulab") != "exploration" or head.get("version") != VERSION \
                or not isinstance(head.get("about"), dict):
            raise ValueError(f"{path}, line 1: got {str(head)[:80]!r}, allowed is the head of an exploration")
        if head["about"] != self.about:
            named = next((name for name in {**head["about"], **self.about}
                          if head["about"].get(name) != self.about.get(name)), "")
            raise ValueError(f"{path}: got an exploration with {named} {str(head['about'].get(named))[:60]}, allowed "
                             f"is this one's, {str(self.about.get(named))[:60]}; give another folder")
        self.answers = [_kept(path, number, entry) for number, entry in enumerate(rest, 2)]


def _floats(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in numbers.items()}


def _entry(path: Path, number: int, line: bytes) -> dict[str, Any]:
    checksum, _, text = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(text):
            raise ValueError
        entry = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{path}, line {number}: got a line whose checksum is not its own, allowed is what an "
                         "exploration wrote") from None
    if not isinstance(entry, dict):
        raise ValueError(f"{path}, line {number}: got {str(entry)[:60]}, allowed is an object")
    return entry


def _kept(path: Path, number: int, entry: Mapping[str, Any]) -> Kept:
    try:
        words = np.frombuffer(bytes.fromhex(entry["words"]), "<u4").astype(np.uint32) if entry["words"] else None
        if entry["outcome"] not in OUTCOMES or entry["number"] != number - 2:
            raise ValueError
        return Kept(entry["number"], entry["batch"], entry["reason"], entry["seed"], entry["parameters"],
                    entry["outcome"], words, entry["observed"], entry["text"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path}, line {number}: got {str(dict(entry))[:60]}, allowed is an answer as an exploration "
                         "wrote it") from None
