"""``npulab report`` and ``session``: write a session as one page; make a session, add a note, show
it, merge two.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from npulab.analysis.laws.found import Laws
from npulab.captures.capture import Capture
from npulab.captures.sweep import SUFFIX, is_sweep
from npulab.cli.output import Done, show, tell
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
USAGE = "; ".join(map(" ".join, ARGUMENTS.items()))
FOUND_BY = "npulab laws"  # in a session, the author of laws that this command found
COUNTS = {
    "new": range(1, sys.maxsize),
    "note": range(2, 3),
    "show": range(1, 2),
    "merge": range(3, 4),
}


def _report(options: argparse.Namespace) -> None:
    path = _opened(options.session).report(options.dest)
    show(options, Done({"report": str(path)}, str(path)))


def _opened(path: str, autosave: bool = False, author: str = "") -> Session:
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"{path}: there is no such session; npulab session new {path} makes one"
        )
    return Session(path, autosave=autosave, author=author)


def _session(options: argparse.Namespace) -> int:
    what, count = options.what, len(options.arguments)
    if count not in COUNTS[what]:
        raise ValueError(
            f"session {what}: got {plural(count, 'argument')}, allowed are {ARGUMENTS[what]}"
        )
    return int(RUN[what](options, *options.arguments) or 0)


def _new(options: argparse.Namespace, file: str, *captures: str) -> None:
    if Path(file).exists():
        raise FileExistsError(f"{file}: is there already; give another path, or move it away")
    session = Session(file, autosave=False)
    for path in captures:
        session.attach(path)
    session.title = options.title
    session.save()
    counts = ", ".join(session.counts) or "nothing yet"
    text = f"{file}: {counts}\nnext: npulab session note {file} 'what you saw' --field NAME"
    show(options, Done({"session": file, "captures": [*session.paths]}, text))


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
    """Raise LookupError, with similar names, for a field that no capture of the session has."""
    names = []
    for path in session.paths:
        capture = session.load(path)
        if not isinstance(capture, Capture):
            continue
        for item in chain.from_iterable(capture.maps.values()):
            if field in full_names(item.block, item.register, item.name):
                return
            names.append(item.name)
    if names:
        raise LookupError(
            f"--field: got {field!r}, which no capture of the session has{near(field, names)}"
        )


def session_of_laws(file: str, sweep: str, table: str | None) -> Session:
    """Return a session with the sweep attached, for the sweep's laws; its file is not written yet.

    Raises FileNotFoundError for a sweep that is not there, ValueError for captures that are not a
    sweep in one file, and for a sweep or a map outside the session's folder.
    """
    if sweep != "-" and not Path(sweep).exists():
        raise FileNotFoundError(f"{sweep}: there is no such file or folder")
    if not is_sweep(sweep):
        raise ValueError(
            f"--session: got {sweep}, allowed is a file {SUFFIX} of one sweep, as npulab import "
            f"CAPTURES sweep{SUFFIX} makes"
        )
    folder = Path(file).resolve().parent
    if table is not None and not Path(table).resolve().is_relative_to(folder):
        raise ValueError(f"--map: got {table}, allowed is a file in the session's folder {folder}")
    session = Session(file, autosave=False, author=FOUND_BY)
    session.attach(Path(sweep).absolute())
    return session


def keep_laws(session: Session, sweep: str, laws: Laws, table: str | None) -> None:
    """Keep the laws of a sweep, and the table of its fields, in a session; laws of the same sweep
    that this command kept before are replaced.
    """
    path = session.path_as(session.attach(Path(sweep).absolute()))
    for law in session.laws:
        if (law.by, law.sweep) == (FOUND_BY, path):
            session.remove(law.id)
    for found in laws.fields:
        session.accept(found, sweep=path)
    if table is not None:
        session.use_map(Path(table).absolute())
    session.save()


@dataclass(frozen=True, eq=False)
class Held(Answer):
    """The answer of ``npulab session show``: a row for each item of a session."""

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
    """Write the merged session into the file OURS; return 1 if a person must look at
    contradictions, so that git reports a conflict.
    """
    merged = merge_sessions(base, ours, theirs)
    replace_file(Path(ours), merged.text.encode())
    for text in merged.conflicts:
        tell(text)
    record = {"session": ours, "notes": len(merged.notes), "conflicts": merged.conflicts}
    show(options, Done(record, ""))
    return int(bool(merged.conflicts))


RUN: dict[str, Callable[..., int | None]] = {
    "new": _new,
    "note": _note,
    "show": _show,
    "merge": _merge,
}
COMMANDS = {"report": _report, "session": _session}
