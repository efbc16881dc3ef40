"""What a session is made of, as values: notes, bookmarks, laws, figures, captures, journals, and
their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

from npulab.notebook.sessions.file import MARKS, as_kept, as_text


@dataclass(frozen=True)
class Anchor:
    """What is spoken of: a register, a field, ``size`` bytes of a buffer from ``offset`` on, a
    capture; all blank, the session itself.

    Raises ValueError where the parts do not make a place.

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
        if (self.offset is None) != (self.size is None) or (self.buffer == "") != (
            self.offset is None
        ):
            raise ValueError(
                f"buffer {self.buffer!r}: got offset {self.offset!r}, size {self.size!r}, allowed "
                "are all "
                "three or none of them"
            )
        for name, value, least in (
            ("offset", self.offset, 0),
            ("size", self.size, 1),
            ("task", self.task, 0),
        ):
            if value is not None and (type(value) is not int or not least <= value <= 2**63):
                raise ValueError(
                    f"{name}: got {value!r:.40}, allowed is a whole number from {least} on"
                )
        if (self.buffer or self.task is not None) and not self.capture:
            raise ValueError(
                f"capture: got none beside {'a buffer' if self.buffer else 'a task'}, allowed is "
                "the one "
                "it is of"
            )

    @property
    def kind(self) -> str:
        """session, capture, register, field or bytes."""
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
        """The field or register with what is in front of it."""
        return ".".join(part for part in (self.block, self.register, self.field) if part)

    @property
    def text(self) -> str:
        """In words."""
        if self.task is None:
            task = ""
        else:
            task = f", task {self.task}"
        of = ""
        if self.capture:
            of = f" of {self.capture}{task}"
        if self.offset is not None and self.size is not None:
            return (
                f"bytes {self.offset:#x} to {self.offset + self.size - 1:#x} of {self.buffer}{of}"
            )
        if self.kind in ("field", "register"):
            return f"{self.kind} {self.name}{of}"
        if self.capture:
            return f"capture {self.capture}{task}"
        return "the session"

    @property
    def kept(self) -> dict[str, Any]:
        """As the file has it: what is filled in."""
        return {name: value for name, value in asdict(self).items() if value not in ("", None)}


@dataclass(frozen=True)
class Item:
    """What has an id; ``conflict`` in those below are ids of what it is at odds with since a
    merge."""

    kind: ClassVar[str]
    id: str

    @classmethod
    def of(cls, id: str, kept: Mapping[str, Any]) -> Self:  # noqa: A002 - the field's name
        """From the file's object."""
        given = {
            name: value for name, value in kept.items() if name in {one.name for one in fields(cls)}
        }
        if "anchor" in {one.name for one in fields(cls)}:
            given["anchor"] = Anchor(
                **{
                    name: value
                    for name, value in kept.get("anchor", {}).items()
                    if name in {one.name for one in fields(Anchor)}
                }
            )
        for name in ("text", "code"):
            if name in given:
                given[name] = as_text(given[name])
        return cls(id=id, **{**given, MARKS: tuple(given.get(MARKS, ()))})

    @property
    def kept(self) -> dict[str, Any]:
        """As the file has it, without the id."""
        out = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, Anchor):
                value = value.kept
            elif one.name in ("text", "code"):
                value = as_kept(value)
            elif one.name == MARKS:
                value = list(value)
            else:
                value = value
            if one.name != "id" and (value not in ("", None, [], {}, False) or one.name in NEEDED):
                out[one.name] = value
        return out


NEEDED = ("text", "field", "law", "caption")


@dataclass(frozen=True)
class Note(Item):
    """Markdown text about something."""

    kind: ClassVar[str] = "notes"
    text: str = ""
    anchor: Anchor = Anchor()
    author: str = ""
    date: str = ""
    conflict: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bookmark(Item):
    """A place to come back to."""

    kind: ClassVar[str] = "bookmarks"
    label: str = ""
    anchor: Anchor = Anchor()
    author: str = ""
    date: str = ""
    conflict: tuple[str, ...] = ()


@dataclass(frozen=True)
class AcceptedLaw(Item):
    """A law that somebody takes for true: the field's raw number as text of
    ``npulab.analysis.laws``.

    ``support`` is how many captures it decided when it was accepted, ``rivals`` how many laws they
    could not tell from it, ``sweep`` the path of those captures.
    """

    kind: ClassVar[str] = "laws"
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
    """A picture that lies beside the session, what it shows, and the Python that draws it."""

    kind: ClassVar[str] = "figures"
    path: str = ""
    sha256: str = ""
    caption: str = ""
    code: str = ""
    conflict: tuple[str, ...] = ()


@dataclass(frozen=True)
class Attached:
    """A capture, dump or sweep by its path beside the session, with the sha256 of its description
    or of the file."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Bisected:
    """A journal of a bisection by its path, what came out of it, and the captures it was of."""

    path: str
    result: str = ""
    good: str = ""
    bad: str = ""
    device: str = ""
    simulated: bool = False


@dataclass(frozen=True)
class MapVersion:
    """A register map by its path and sha256, edits of a draft of it that are not saved yet, and the
    chip's features."""

    path: str
    sha256: str
    steps: tuple[Any, ...] = ()
    features: tuple[str, ...] = ()
