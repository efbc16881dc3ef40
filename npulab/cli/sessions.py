"""``npulab report`` and ``session``: what was found, as one page; a session made, noted in, shown,
and merged with another one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from npulab.captures.capture import Capture
from npulab.cli.output import Add, Done, show, tell
from npulab.notebook.sessions import Session, merge_sessions
from npulab.notebook.sessions.contents import COLUMNS
from npulab.registers.names import full_names
from npulab.support.answers import Answer, Part, Table
from npulab.support.files import replace_file
from npulab.support.refuse import near
from npulab.support.text import Row, plural

ARGUMENTS = {
    "new": "FILE [CAPTURE ...]",
    "note": "FILE TEXT",
    "show": "FILE",
    "merge": "BASE OURS THEIRS",
}
COUNTS = {
    "new": range(1, sys.maxsize),
    "note": range(2, 3),
    "show": range(1, 2),
    "merge": range(3, 4),
}


def _report_options(add: Add) -> None:
    add("session", metavar="SESSION")
    add("dest", metavar="OUT", help="a file .html or .md")


def _report(options: argparse.Namespace) -> None:
    path = _opened(options.session).report(options.dest)
    show(options, Done({"report": str(path)}, str(path)))


def _opened(path: str, autosave: bool = False, author: str = "") -> Session:
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"{path}: there is no such session; npulab session new {path} makes one"
        )
    return Session(path, autosave=autosave, author=author)


def _session_options(add: Add) -> None:
    add(
        "what",
        choices=tuple(ARGUMENTS),
        help="make one, note something in it, show it, or make two people's one",
    )
    add(
        "arguments",
        nargs="+",
        metavar="ARGUMENT",
        help="; ".join(f"{name} {text}" for name, text in ARGUMENTS.items())
        + " (into OURS; BASE is what both began with, an empty file if that is nothing)",
    )
    add("--title", default="", help="of a new one")
    add("--author", default="", help="of a note")
    add("--field", default="", help="that a note is on")
    add("--register", default="", help="that a note is on")
    add("--capture", default="", metavar="PATH", help="that a note is on")


def _session(options: argparse.Namespace) -> int:
    what, count = options.what, len(options.arguments)
    if count not in COUNTS[what]:
        raise ValueError(
            f"session {what}: got {plural(count, 'argument')}, allowed are {ARGUMENTS[what]}"
        )
    return int(RUN[what](options, *options.arguments) or 0)


def _new(options: argparse.Namespace, file: str, *captures: str) -> None:
    if Path(file).exists():
        raise FileExistsError(f"{file}: is there already")
    session = Session(file, autosave=False)
    for path in captures:
        session.attach(path)
    session.title = options.title
    session.save()
    show(
        options,
        Done(
            {"session": file, "captures": [*session.paths]},
            (
                f"{file}: {', '.join(session.counts) or 'nothing yet'}\n"
                f"next: npulab session note {file} 'what you saw' --field NAME"
            ),
        ),
    )


def _note(options: argparse.Namespace, file: str, text: str) -> None:
    session = _opened(file, autosave=True, author=options.author)
    if options.field:
        _refuse_unknown(session, options.field)
    note = session.note(
        text, field=options.field, register=options.register, capture=options.capture
    )
    record = {"note": note.id, "on": note.anchor.text, "text": note.text}
    show(options, Done(record, f"{note.id} on {note.anchor.text}"))


def _refuse_unknown(session: Session, field: str) -> None:
    """Raises LookupError with near names for a field that no capture of the session has."""
    loaded = [session.load(path) for path in session.paths]
    items = [
        item
        for capture in loaded
        if isinstance(capture, Capture)
        for registers in capture.maps.values()
        for item in registers
    ]
    names = [item.name for item in items]
    if names and not any(
        field in full_names(item.block, item.register, item.name) for item in items
    ):
        raise LookupError(
            f"--field: got {field!r}, which no capture of the session has{near(field, names)}"
        )


@dataclass(frozen=True, eq=False)
class Held(Answer):
    """What a session holds."""

    session: Session

    def records(self) -> list[Row]:
        return self.session.rows

    @property
    def parts(self) -> list[Part]:
        rows = [{**row, "what": " ".join(row["what"].split())} for row in self.records()]
        return [repr(self.session), Table(rows, COLUMNS)]


def _show(options: argparse.Namespace, file: str) -> None:
    show(options, Held(_opened(file)))


def _merge(options: argparse.Namespace, base: str, ours: str, theirs: str) -> int:
    """Both sessions in the file OURS; 1 where something is to be looked at, which git calls a
    conflict."""
    merged = merge_sessions(base, ours, theirs)
    replace_file(Path(ours), merged.text.encode())
    for text in merged.conflicts:
        tell(text)
    show(
        options,
        Done({"session": ours, "notes": len(merged.notes), "conflicts": merged.conflicts}, ""),
    )
    if merged.conflicts:
        return 1
    return 0


RUN: dict[str, Callable[..., int | None]] = {
    "new": _new,
    "note": _note,
    "show": _show,
    "merge": _merge,
}
COMMANDS = {"report": (_report_options, _report), "session": (_session_options, _session)}
