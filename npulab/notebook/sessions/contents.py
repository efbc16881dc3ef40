"""What a session holds, read: its items as values, and the files that it speaks of."""

from __future__ import annotations

import copy
import html
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    MapVersion,
    Note,
)
from npulab.registers.formats import read_map
from npulab.registers.map import RegisterMap
from npulab.support.answers import Table
from npulab.support.text import Row, plural

if TYPE_CHECKING:
    from npulab.analysis.draft import Draft

SHOWN, LETTERS = 60, 200
COLUMNS = ("kind", "on", "what", "by")


class Contents:
    """A session's document and the file it is of; equal to another of the same content."""

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
        """The file's text."""
        return session_text(self._document)

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes by id."""
        return tuple(Note.of(key, one) for key, one in sorted(self._document["notes"].items()))

    @property
    def bookmarks(self) -> tuple[Bookmark, ...]:
        return tuple(
            Bookmark.of(key, one) for key, one in sorted(self._document["bookmarks"].items())
        )

    @property
    def laws(self) -> tuple[AcceptedLaw, ...]:
        laws = (AcceptedLaw.of(key, one) for key, one in self._document["laws"].items())
        return tuple(sorted(laws, key=lambda law: (law.field, law.id)))

    @property
    def figures(self) -> tuple[Figure, ...]:
        return tuple(Figure.of(key, one) for key, one in sorted(self._document["figures"].items()))

    @property
    def captures(self) -> tuple[Attached, ...]:
        """Captures and sweeps by path."""
        return tuple(
            Attached(path, one["sha256"])
            for path, one in sorted(self._document["captures"].items())
        )

    @property
    def journals(self) -> tuple[Bisected, ...]:
        known = ("result", "good", "bad", "device", "simulated")
        return tuple(
            Bisected(path, **{name: one[name] for name in known if name in one})
            for path, one in sorted(self._document["journals"].items())
        )

    @property
    def views(self) -> dict[str, dict[str, Any]]:
        """The views that were kept, by name."""
        return copy.deepcopy(dict(sorted(self._document["views"].items())))

    @property
    def map(self) -> MapVersion | None:
        one = self._document.get("map")
        if one:
            return MapVersion(
                one["path"],
                one["sha256"],
                tuple(copy.deepcopy(one.get("steps", []))),
                tuple(one.get("features", [])),
            )
        return None

    @property
    def conflicts(self) -> list[str]:
        """What two people's sessions said differently, a sentence each."""
        told = [
            f"{kind.removesuffix('s')} {key} is at odds with {', '.join(one[MARKS])}"
            for kind in BY_ID
            for key, one in sorted(self._document[kind].items())
            if one.get(MARKS)
        ]
        return told + [
            f"{place}: {' or '.join(map(canonical, values))}"
            for place, values in sorted(self._document["conflicts"].items())
        ]

    @property
    def folder(self) -> Path:
        """Where its paths start."""
        if self.path:
            return self.path.parent
        return Path()

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the captures and sweeps."""
        return tuple(self._document["captures"])

    @property
    def problems(self) -> list[str]:
        """What is missing or not as it was when it was attached, and names that this version does
        not know."""
        d = self._document
        stated = [(path, one["sha256"]) for path, one in sorted(d["captures"].items())]
        stated += [
            (one["path"], one["sha256"]) for one in (d.get("map"), *d["figures"].values()) if one
        ]
        told = [text for path, known in stated if (text := self._differs(path, known))]
        told += [
            f"{path} is missing"
            for path in sorted(d["journals"])
            if not inside(self.folder, path).is_file()
        ]
        if names := unknown(d):
            told.append(
                f"holds what this version does not know and keeps as it is: {', '.join(names)}"
            )
        return told

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
        """The capture or sweep of a path of the session; raises LookupError with those there
        are."""
        if path not in self._document["captures"]:
            raise LookupError(
                f"capture: got {path!r:.80}, the session has "
                f"{', '.join(self._document['captures']) or 'none'}"
            )
        return load_any(inside(self.folder, path))

    def decoded(self, path: str) -> Capture:
        """The capture of a path read with the session's map, where that is of one of its blocks;
        raises as ``load``."""
        return read_with(self.load(path), None if self.map is None else self.registers)

    @property
    def registers(self) -> RegisterMap:
        """The register map as it is now, with the edits that were not saved; raises LookupError
        where there is none."""
        if self.map is None or self.map.steps:
            return self.draft.map
        path = inside(self.folder, self.map.path)
        if path.suffix == ".csv":
            return RegisterMap.read(path, features=self.map.features)
        return read_map(path).map(self.map.features)

    @property
    def draft(self) -> Draft:
        """A draft of the session's map with the steps that are not saved.

        Raises LookupError if the session has no map, and if the steps do not fit the file as it is
        now.
        """
        from npulab.analysis.draft import draft

        if self.map is None:
            raise LookupError("map: the session has none; use_map says which it is of")
        out = draft(inside(self.folder, self.map.path), features=self.map.features)
        try:
            out.replay(list(self.map.steps))
        except (ValueError, LookupError) as error:
            raise type(error)(
                f"{self.map.path}: the steps that the session keeps are not of the "
                f"file as it is now ({error}); use_map takes the file, or a draft of "
                "it, as it is"
            ) from None
        return out

    def loaded(self) -> Iterator[tuple[str, Any]]:
        """The captures and sweeps that can be read, by path."""
        for path in self._document["captures"]:
            with suppress(ValueError, LookupError, OSError):
                yield path, self.load(path)

    def path_of(self, name: str, case: str) -> str:
        """The path of a capture by target and case; raises LookupError where there is none."""
        found = [
            path
            for path, one in self.loaded()
            if isinstance(one, Capture) and (one.target, one.name) == (name, case)
        ]
        if not found:
            raise LookupError(
                f"capture: got {name}/{case}, the session has {', '.join(self.paths) or 'none'}"
            )
        return found[0]

    def path_as(self, capture: Capture | Sweep, by_name: bool = False) -> str:
        """The path of a capture or sweep of the session; raises LookupError if there is none."""
        found = {path: held for path, held in self.loaded() if type(held) is type(capture)}
        same = [path for path, held in found.items() if _content(held) == _content(capture)]
        if not same and by_name:
            same = [
                path
                for path, held in found.items()
                if (held.target, held.name) == (capture.target, capture.name)
            ]
        if not same:
            raise LookupError(
                f"capture: got {capture.name} as it is now, the session has "
                f"{', '.join(self.paths) or 'none'}; attach takes one in by its path"
            )
        return min(same, key=lambda path: (found[path].name != capture.name, path))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contents) and self._document == other._document

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        name = self._document["title"] or str(self.path or "in memory")
        return f"Session({', '.join([name, *self.counts])})"

    @property
    def counts(self) -> list[str]:
        """How many of what there are, in words."""
        names = ("captures", "notes", "bookmarks", "laws", "journals", "figures")
        told = [
            plural(len(self._document[name]), name[:-1]) for name in names if self._document[name]
        ]
        return told + [f"{len(self.conflicts)} to look at"] * bool(self.conflicts)

    @property
    def rows(self) -> list[Row]:
        """What is in it, as ``COLUMNS`` have it."""
        told = [
            *(("capture", "", item.path, "") for item in self.captures),
            *(("note", item.anchor.text, item.text, item.author) for item in self.notes),
            *(("law", item.field, item.law, item.by) for item in self.laws),
            *(("bookmark", item.anchor.text, item.label, item.author) for item in self.bookmarks),
            *(("bisection", item.path, item.result, item.device) for item in self.journals),
            *(("picture", item.path, item.caption, "") for item in self.figures),
            *(("to look at", "", text, "") for text in self.conflicts),
        ]
        return [dict(zip(COLUMNS, row, strict=True)) for row in told]

    def _repr_html_(self) -> str:
        rows = [{**row, "what": " ".join(row["what"].split())[:LETTERS]} for row in self.rows]
        more = f"<p>… {len(rows) - SHOWN} more</p>" * (len(rows) > SHOWN)
        return f"<p>{html.escape(repr(self))}</p>{Table(rows[:SHOWN], COLUMNS)._repr_html_()}{more}"


def read_with(capture: Capture, registers: RegisterMap | None) -> Capture:
    """A capture read with the blocks of a map that it has, or with the only one of both, in as many
    words."""
    if registers is None:
        return capture
    maps = {
        block: registers.of_block(block) for block in {block for block, _, _ in registers.registers}
    }
    if len(maps) == len(capture.maps) == 1:
        maps = dict(zip(capture.maps, maps.values(), strict=True))
    fit = {
        block: one for block, one in maps.items() if len(capture.maps.get(block, ())) == len(one)
    }
    if fit:
        return replace(capture, maps={**capture.maps, **fit})
    return capture


def load_any(where: Path) -> Any:
    """The capture, dump or sweep at a path."""
    if where.exists() and not where.is_dir() and not where.is_file():
        raise ValueError(f"{where}: is no file or folder, allowed is a capture, a dump or a sweep")
    if is_sweep(where):
        return load_sweep(where)
    return load(where)


def _content(one: Capture | Sweep) -> tuple[Any, ...]:
    """What makes two captures or sweeps the same, whatever they are called."""
    if isinstance(one, Sweep):
        return one.target, one.words.shape, one.words.tobytes(), one.parameters.to_numpy().tobytes()
    return one.target, one.chip, one.jobs, dict(one.buffers)
