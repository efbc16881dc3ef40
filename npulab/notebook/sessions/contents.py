"""What is in a session, as values."""

from __future__ import annotations

import copy
import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

from npulab.notebook.sessions.file import BY_ID, MARKS, Document, canonical, session_text
from npulab.notebook.sessions.items import AcceptedLaw, Attached, Bisected, Bookmark, Figure, MapVersion, Note

SHOWN = 60


class Contents:
    """A session's document, read; equal to another of the same content."""

    path: Path | None
    _document: Document

    def _change(self, change: Callable[[Document], Any]) -> None:
        raise NotImplementedError

    @property
    def title(self) -> str:
        return str(self._document["title"])

    @title.setter
    def title(self, text: str) -> None:
        self._change(lambda d: d.update(title=text))

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
        return tuple(Bookmark.of(key, one) for key, one in sorted(self._document["bookmarks"].items()))

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
        return tuple(Attached(path, one["sha256"]) for path, one in sorted(self._document["captures"].items()))

    @property
    def journals(self) -> tuple[Bisected, ...]:
        known = ("result", "good", "bad", "device", "simulated")
        return tuple(Bisected(path, **{name: one[name] for name in known if name in one})
                     for path, one in sorted(self._document["journals"].items()))

    @property
    def views(self) -> dict[str, dict[str, Any]]:
        """The views that were kept, by name."""
        return copy.deepcopy(dict(sorted(self._document["views"].items())))

    @property
    def map(self) -> MapVersion | None:
        one = self._document.get("map")
        return MapVersion(one["path"], one["sha256"], tuple(copy.deepcopy(one.get("steps", []))),
                          tuple(one.get("features", []))) if one else None

    @property
    def conflicts(self) -> list[str]:
        """What two people's sessions said differently, a sentence each."""
        told = [f"{kind.removesuffix('s')} {key} is at odds with {', '.join(one[MARKS])}"
                for kind in BY_ID for key, one in sorted(self._document[kind].items()) if one.get(MARKS)]
        return told + [f"{place}: {' or '.join(map(canonical, values))}"
                       for place, values in sorted(self._document["conflicts"].items())]

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
        counts = [(len(self._document[name]), name) for name in names]
        told = [f"{count} {name.removesuffix('s') if count == 1 else name}" for count, name in counts if count]
        return told + [f"{len(self.conflicts)} to look at"] * bool(self.conflicts)

    def _repr_html_(self) -> str:
        rows = [(f"note {one.id}", one.anchor.text, one.text.split("\n")[0]) for one in self.notes]
        rows += [(f"law {one.id}", one.field, one.law) for one in self.laws]
        rows += [("bookmark", one.anchor.text, one.label) for one in self.bookmarks]
        rows += [("capture", one.path, "") for one in self.captures]
        left = len(rows) - SHOWN
        body = "".join("<tr>" + "".join(f"<td style='text-align:left'>{html.escape(cell[:200])}</td>" for cell in row)
                       + "</tr>" for row in rows[:SHOWN])
        more = f"<tr><td colspan='3'>… {left} more</td></tr>" if left > 0 else ""
        return f"<p>{html.escape(repr(self))}</p><table>{body}{more}</table>"
