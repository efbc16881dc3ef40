"""The items of a session as values: notes, bookmarks, laws, figures, captures, journals, and the
places that they refer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self, cast

from npulab.notebook.sessions.file import MARKS, as_kept, as_text


@dataclass(frozen=True)
class Anchor:
    """The place that an item refers to: a register, a field, ``size`` bytes of a buffer from
    ``offset``, or a capture. If every value is blank, the place is the session itself.

    Raises ValueError if the given values do not make a place.

    >>> Anchor(capture="captures/a", buffer="output", offset=16, size=4).text
    'bytes 0x10 to 0x13 of output of captures/a'
    """

    block: str = ""
    register: str = ""
    field: str = ""
    capture: str = ""
    buffer: str = ""
    task: int | None = None
    offset: int | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        stated = {bool(self.buffer), self.offset is not None, self.size is not None}
        if len(stated) > 1:
            raise ValueError(
                f"buffer {self.buffer!r}: got offset {self.offset!r}, size {self.size!r}, allowed "
                "are buffer, offset and size together, or none of the three"
            )
        for name, least in (("offset", 0), ("size", 1), ("task", 0)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not least <= value <= 2**63):
                raise ValueError(
                    f"{name}: got {value!r:.40}, allowed is a whole number of at least {least}"
                )
        part = None
        if self.buffer:
            part = "the buffer"
        elif self.task is not None:
            part = "the task"
        if part and not self.capture:
            raise ValueError(
                f"capture: got no path, allowed is the path of the capture that has {part}"
            )

    @property
    def kind(self) -> str:
        """The kind of place: "session", "capture", "register", "field" or "bytes"; a block counts
        as a register.
        """
        if self.buffer:
            return "bytes"
        if self.field:
            return "field"
        if self.register or self.block:
            return "register"
        if self.capture:
            return "capture"
        return "session"

    @property
    def name(self) -> str:
        """The given names of block, register and field, with dots between them."""
        return ".".join(filter(None, (self.block, self.register, self.field)))

    @property
    def text(self) -> str:
        """The place in words."""
        task = ""
        if self.task is not None:
            task = f", task {self.task}"
        of = ""
        if self.capture:
            of = f" of {self.capture}{task}"
        if self.offset is not None and self.size is not None:
            last = self.offset + self.size - 1
            return f"bytes {self.offset:#x} to {last:#x} of {self.buffer}{of}"
        if self.kind in ("field", "register"):
            return f"{self.kind} {self.name}{of}"
        if self.capture:
            return f"capture {self.capture}{task}"
        return "the session"

    @property
    def kept(self) -> dict[str, Any]:
        """The values that are not blank, by name, as the file has them."""
        return {name: value for name, value in asdict(self).items() if value not in ("", None)}


class Item:
    """The base of the items of a section of the file, ``kind``; the first value of an item is its
    key in the section, an id or a path.

    ``conflict`` of an item with an id has the ids of items that contradict it since a merge.
    """

    kind: ClassVar[str]

    @classmethod
    def of(cls, key: str, kept: Mapping[str, Any]) -> Self:
        """Make the item from its key and its JSON object in the file; names in the object that are
        no fields of the item are left out.
        """
        names = _names(cls)
        given = {name: kept[name] for name in names[1:] if name in kept}
        if "anchor" in given:
            place = given["anchor"]
            given["anchor"] = Anchor(
                **{name: place[name] for name in _names(Anchor) if name in place}
            )
        for name in TEXTS & given.keys():
            given[name] = as_text(given[name])
        if MARKS in given:
            given[MARKS] = tuple(given[MARKS])
        make: Any = cls
        return cast("Self", make(key, **given))

    @property
    def kept(self) -> dict[str, Any]:
        """The item as a JSON object: without its key, and without blank values that are not
        ``NEEDED``.
        """
        out = {}
        for name in _names(self)[1:]:
            value = getattr(self, name)
            if isinstance(value, Anchor):
                value = value.kept
            elif name in TEXTS:
                value = as_kept(value)
            elif name == MARKS:
                value = list(value)
            if value not in ("", None, [], {}, False) or name in NEEDED:
                out[name] = value
        return out


def _names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]


TEXTS = {"text", "code"}  # these texts may be long: the file has them as lists of lines
NEEDED = ("text", "field", "law", "caption")


@dataclass(frozen=True)
class Note(Item):
    """A text in Markdown about a place."""

    kind: ClassVar[str] = "notes"
    id: str
    text: str = ""
    anchor: Anchor = Anchor()
    author: str = ""
    date: str = ""
    conflict: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bookmark(Item):
    """A place to come back to, with a label."""

    kind: ClassVar[str] = "bookmarks"
    id: str
    label: str = ""
    anchor: Anchor = Anchor()
    author: str = ""
    date: str = ""
    conflict: tuple[str, ...] = ()


@dataclass(frozen=True)
class AcceptedLaw(Item):
    """A law that somebody accepted, as text of ``npulab.analysis.laws``: it gives the raw value of
    ``field``.

    ``support`` is the number of captures that the law decided when it was accepted, ``rivals`` the
    number of other laws that agreed with the law on all these captures, ``sweep`` the path of the
    captures that show the law.
    """

    kind: ClassVar[str] = "laws"
    id: str
    field: str = ""
    law: str = ""
    support: int = 0
    rivals: int = 0
    by: str = ""
    date: str = ""
    sweep: str = ""
    simulated: bool = False
    conflict: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure(Item):
    """A picture next to the session's file, its caption, and the Python that draws it."""

    kind: ClassVar[str] = "figures"
    id: str
    path: str = ""
    sha256: str = ""
    caption: str = ""
    code: str = ""
    conflict: tuple[str, ...] = ()


@dataclass(frozen=True)
class Attached(Item):
    """A capture, dump or sweep by its path from the session's folder; the sha256 is that of the
    file, or of the description in a case folder.
    """

    kind: ClassVar[str] = "captures"
    path: str
    sha256: str


@dataclass(frozen=True)
class Bisected(Item):
    """A journal of a bisection by its path, with the result and the captures of the bisection."""

    kind: ClassVar[str] = "journals"
    path: str
    result: str = ""
    good: str = ""
    bad: str = ""
    device: str = ""
    simulated: bool = False


@dataclass(frozen=True)
class MapVersion:
    """A register map by its path and sha256, the edits of its draft that are not saved yet, and the
    chip's features."""

    path: str
    sha256: str
    steps: tuple[Any, ...] = ()
    features: tuple[str, ...] = ()
