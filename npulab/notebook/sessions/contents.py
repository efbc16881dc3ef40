"""The contents of a session: its items as values, and access to the files that they refer to."""

from __future__ import annotations

import copy
import html
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from npulab.captures.capture import Capture
from npulab.captures.store import load
from npulab.captures.sweep import Sweep, is_sweep, load_sweep
from npulab.notebook.sessions.file import (
    BY_ID,
    MARKS,
    Document,
    canonical,
    empty,
    inside,
    session_text,
    sum_of,
    unknown,
)
from npulab.notebook.sessions.items import (
    AcceptedLaw,
    Attached,
    Bisected,
    Bookmark,
    Figure,
    Item,
    MapVersion,
    Note,
)
from npulab.registers.formats import read_map
from npulab.registers.map import RegisterMap
from npulab.support.answers import Table
from npulab.support.text import Row, by_numbers, plural

if TYPE_CHECKING:
    from npulab.analysis.draft import Draft

SHOWN = 60  # the table in HTML shows at most this many rows
LETTERS = 200  # the table in HTML shows at most this many letters of a text
COLUMNS = ("kind", "on", "what", "by")
Kind = TypeVar("Kind", bound=Item)


class Contents:
    """The items of a session and the path of its file, to read; two are equal if their documents
    are equal.
    """

    def __init__(self, path: Path | None = None, document: Document | None = None) -> None:
        self.path = path
        if document is None:
            self._document = empty()
        else:
            self._document = document

    @property
    def title(self) -> str:
        return str(self._document["title"])

    @property
    def text(self) -> str:
        """The text of the session's file."""
        return session_text(self._document)

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes, sorted by id."""
        return self._held(Note)

    @property
    def bookmarks(self) -> tuple[Bookmark, ...]:
        return self._held(Bookmark)

    @property
    def laws(self) -> tuple[AcceptedLaw, ...]:
        return tuple(sorted(self._held(AcceptedLaw), key=lambda law: by_numbers(law.field)))

    @property
    def figures(self) -> tuple[Figure, ...]:
        return self._held(Figure)

    @property
    def captures(self) -> tuple[Attached, ...]:
        """The captures and sweeps, sorted by path, with their sha256."""
        return self._held(Attached)

    @property
    def journals(self) -> tuple[Bisected, ...]:
        return self._held(Bisected)

    def _held(self, kind: type[Kind]) -> tuple[Kind, ...]:
        """Return the session's items of the class ``kind``, sorted by their keys."""
        return tuple(kind.of(key, kept) for key, kept in self._items(kind.kind))

    def _items(self, section: str) -> list[tuple[str, Any]]:
        """Return (key, item as JSON value) for each item of a section, sorted by key."""
        return sorted(self._document[section].items())

    @property
    def views(self) -> dict[str, dict[str, Any]]:
        """The recorded states of views, as JSON values by name."""
        return copy.deepcopy(dict(self._items("views")))

    @property
    def map(self) -> MapVersion | None:
        kept = self._document.get("map")
        if not kept:
            return None
        steps = copy.deepcopy(kept.get("steps", []))
        features = kept.get("features", [])
        return MapVersion(kept["path"], kept["sha256"], tuple(steps), tuple(features))

    @property
    def conflicts(self) -> list[str]:
        """The contradictions that a merge of two people's sessions left, a sentence for each."""
        sentences = []
        for section in BY_ID:
            kind = section.removesuffix("s")
            for key, kept in self._items(section):
                if kept.get(MARKS):
                    sentences.append(f"{kind} {key} is at odds with {', '.join(kept[MARKS])}")
        for place, values in self._items("conflicts"):
            sentences.append(f"{place}: {' or '.join(map(canonical, values))}")
        return sentences

    @property
    def folder(self) -> Path:
        """The folder in which relative paths of the session start."""
        if self.path:
            return self.path.parent
        return Path()

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the session's captures and sweeps."""
        return tuple(self._document["captures"])

    @property
    def problems(self) -> list[str]:
        """A sentence for each file that is missing or has changed since it was attached, and a
        sentence for names that this version of npulab does not know.
        """
        document = self._document
        stated = [(held.path, held.sha256) for held in self.captures]
        for kept in (document.get("map"), *document["figures"].values()):
            if kept:
                stated.append((kept["path"], kept["sha256"]))
        sentences = [self._differs(path, known) for path, known in stated]
        for journal in self.journals:
            if not inside(self.folder, journal.path).is_file():
                sentences.append(f"{journal.path} is missing")
        names = ", ".join(unknown(document))
        if names:
            sentences.append(f"holds what this version does not know and keeps as it is: {names}")
        return [*filter(None, sentences)]

    def _differs(self, path: str, known: str) -> str:
        try:
            now = sum_of(inside(self.folder, path))
        except FileNotFoundError:
            return f"{path} is missing"
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
        if now == known:
            return ""
        return f"{path} has changed: its sha256 is {now}, it was {known}"

    def load(self, path: str) -> Any:
        """Return the capture or sweep at a path of the session; raises LookupError for a path that
        is not attached to the session.
        """
        if path not in self.paths:
            raise LookupError(f"capture: got {path!r:.80}, {self._has()}")
        return load_any(inside(self.folder, path))

    def decoded(self, path: str) -> Capture:
        """Return the capture at a path, read with the session's map if the map describes one of its
        blocks; raises as ``load``.
        """
        registers = None
        if self.map is not None:
            registers = self.registers
        return read_with(self.load(path), registers)

    @property
    def registers(self) -> RegisterMap:
        """The session's register map, with the edits of its draft that are not saved in the map's
        file yet; raises LookupError if the session has no map.
        """
        if self.map is None or self.map.steps:
            return self.draft.map
        path = inside(self.folder, self.map.path)
        if path.suffix == ".csv":
            return RegisterMap.read(path, features=self.map.features)
        return read_map(path).map(self.map.features)

    @property
    def draft(self) -> Draft:
        """A new draft of the session's map, with the edits that are not saved in the map's file.

        Raises LookupError if the session has no map, and ValueError or LookupError if the edits do
        not fit the map's file as it is now.
        """
        from npulab.analysis.draft import draft

        if self.map is None:
            raise LookupError("map: the session has no register map; use_map sets it")
        out = draft(inside(self.folder, self.map.path), features=self.map.features)
        try:
            out.replay(list(self.map.steps))
        except (ValueError, LookupError) as error:
            raise type(error)(
                f"{self.map.path}: the session's unsaved edits do not fit the file as it is now "
                f"({error}); use_map with the path of the file drops these edits"
            ) from None
        return out

    def loaded(self) -> Iterator[tuple[str, Any]]:
        """Yield (path, capture or sweep) for each path of the session that can be read."""
        for path in self._document["captures"]:
            with suppress(ValueError, LookupError, OSError):
                yield path, self.load(path)

    def path_of(self, name: str, case: str) -> str:
        """Return the path of the capture with a target's name and a case; raises LookupError if the
        session has none.
        """
        for path, held in self.loaded():
            if isinstance(held, Capture) and (held.target, held.name) == (name, case):
                return path
        raise LookupError(f"capture: got {name}/{case}, {self._has()}")

    def path_as(self, capture: Capture | Sweep, by_name: bool = False) -> str:
        """Return the path at which the session has a capture or sweep of equal content; raises
        LookupError if it has none.

        With ``by_name`` a capture with the same target and name is accepted if none has equal
        content.
        """
        same, named = [], []
        for path, held in self.loaded():
            if type(held) is not type(capture):
                continue
            if _content(held) == _content(capture):
                # of equal content, a capture of the same name comes first
                same.append((held.name != capture.name, path))
            if by_name and (held.target, held.name) == (capture.target, capture.name):
                named.append((False, path))
        if not same and not named:
            raise LookupError(
                f"capture: got {capture.name} as it is now, {self._has()}; attach adds a "
                "capture by its path"
            )
        _, path = min(same or named)
        return path

    def _has(self) -> str:
        return f"the session has {', '.join(self.paths) or 'none'}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contents) and self._document == other._document

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        name = self._document["title"] or str(self.path or "in memory")
        return f"Session({', '.join([name, *self.counts])})"

    @property
    def counts(self) -> list[str]:
        """The number of items of each kind, in words, such as ``2 notes``; kinds without items are
        left out.
        """
        counts = []
        for name in ("captures", "notes", "bookmarks", "laws", "journals", "figures"):
            number = len(self._document[name])
            if number:
                counts.append(plural(number, name.removesuffix("s")))
        if self.conflicts:
            counts.append(f"{len(self.conflicts)} to look at")
        return counts

    @property
    def rows(self) -> list[Row]:
        """The session's items as rows of a table: dictionaries of texts by ``COLUMNS``."""
        rows: list[tuple[str, ...]] = [("capture", "", held.path, "") for held in self.captures]
        for note in self.notes:
            rows.append(("note", note.anchor.text, note.text, note.author))
        for law in self.laws:
            rows.append(("law", law.field, law.law, law.by))
        for bookmark in self.bookmarks:
            rows.append(("bookmark", bookmark.anchor.text, bookmark.label, bookmark.author))
        for journal in self.journals:
            rows.append(("bisection", journal.path, journal.result, journal.device))
        for figure in self.figures:
            rows.append(("picture", figure.path, figure.caption, ""))
        for text in self.conflicts:
            rows.append(("to look at", "", text, ""))
        return [dict(zip(COLUMNS, row, strict=True)) for row in rows]

    def _repr_html_(self) -> str:
        rows = self.rows
        more = ""
        if len(rows) > SHOWN:
            more = f"<p>… {len(rows) - SHOWN} more</p>"
        shown = rows[:SHOWN]
        for row in shown:
            row["what"] = " ".join(row["what"].split())[:LETTERS]
        return f"<p>{html.escape(repr(self))}</p>{Table(shown, COLUMNS)._repr_html_()}{more}"


def read_with(capture: Capture, registers: RegisterMap | None) -> Capture:
    """Return a capture whose blocks are read with ``registers``; a block that this map lacks, or
    that has another number of words in it, is read as before.

    If capture and map both have a single block, the blocks' names may differ.
    """
    if registers is None:
        return capture
    blocks = {block for block, _, _ in registers.registers}
    maps = {block: registers.of_block(block) for block in blocks}
    if len(maps) == len(capture.maps) == 1:
        maps = dict(zip(capture.maps, maps.values(), strict=True))
    fit = {}
    for block, of_block in maps.items():
        if len(capture.maps.get(block, ())) == len(of_block):
            fit[block] = of_block
    if not fit:
        return capture
    return replace(capture, maps={**capture.maps, **fit})


def load_any(where: Path) -> Any:
    """Return the capture, the dump or the sweep at a path; raises ValueError for a path that is not
    a file or folder, and raises as ``load``.
    """
    if where.exists() and not where.is_dir() and not where.is_file():
        raise ValueError(
            f"{where}: is not a file or folder, allowed is a capture, a dump or a sweep"
        )
    if is_sweep(where):
        return load_sweep(where)
    return load(where)


def _content(held: Capture | Sweep) -> tuple[Any, ...]:
    """Return a tuple that is equal for captures or sweeps of equal content; the name is not a part
    of it.
    """
    if isinstance(held, Sweep):
        parameters = held.parameters.to_numpy().tobytes()
        return held.target, held.words.shape, held.words.tobytes(), parameters
    return held.target, held.chip, held.jobs, dict(held.buffers)
