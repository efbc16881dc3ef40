"""A session's report in a file: what was looked at, what was noted, how to see each claim again.

HTML is one page that needs nothing else: no script, no network, light and dark.  Markdown has its
figures beside it.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npulab.analysis.bisect import Bisection
from npulab.analysis.laws import Stated, check_stated
from npulab.analysis.laws.groups import captured_for, groups_in
from npulab.analysis.laws.naming import Naming
from npulab.captures.capture import Capture
from npulab.captures.journal import Journal
from npulab.captures.sweep import Sweep
from npulab.notebook.sessions.contents import Contents
from npulab.notebook.sessions.evidence import DEFINED, HELD, SIMULATED, Evidence, origin
from npulab.notebook.sessions.file import PNG, inside, png, sum_of
from npulab.notebook.sessions.items import AcceptedLaw, Anchor, Bisected, Item
from npulab.notebook.sessions.markdown import (
    fenced,
    plain,
    read_markdown,
    table_markdown,
    text_markdown,
    to_html,
    to_markdown,
)
from npulab.registers.map import RegisterMap
from npulab.support.files import first_bytes, read_bounded, replace_file
from npulab.support.late import pd
from npulab.support.text import plural

if TYPE_CHECKING:
    from jinja2 import Environment

SUFFIXES = (".html", ".md")
# in a report's first bytes
MARKS = (b'<meta name="generator" content="npulab report">', b"<!-- npulab report -->")
FIRST = 2**10
KINDS = ("session", "capture", "register", "field", "bytes")
MOST_BYTES = 2**24  # of a journal or a figure
LINE, MOST_LINES = 16, 64  # of bytes that are shown
NAMED = 4
MOST_ROWS = 400
SHORT = 12  # letters of a word that is not broken


@dataclass(frozen=True)
class Title:
    """A heading of level 1 to 3; ``place`` is what ``#`` links say."""

    text: str
    level: int = 2
    place: str = ""


@dataclass(frozen=True)
class Text:
    """A paragraph of plain text; ``look`` if it is something to look at."""

    text: str
    look: bool = False


@dataclass(frozen=True)
class NoteText:
    """Somebody's Markdown, by whom and when."""

    text: str
    by: str = ""
    place: str = ""


@dataclass(frozen=True)
class Table:
    """A table of plain texts."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""

    @property
    def shown(self) -> list[tuple[str, ...]]:
        """The first rows, and how many more there are."""
        more, blank = len(self.rows) - MOST_ROWS, [""] * (len(self.columns) - 1)
        return [*self.rows[:MOST_ROWS], *[(f"… {more} more", *blank)] * (more > 0)]


@dataclass(frozen=True)
class Commands:
    """What shows a claim again, from the shell and in Python."""

    shell: str = ""
    python: str = ""


@dataclass(frozen=True)
class Picture:
    """A PNG and what it shows."""

    png: bytes
    caption: str

    @property
    def name(self) -> str:
        return f"{hashlib.sha256(self.png).hexdigest()[:16]}.png"


Piece = Title | Text | NoteText | Table | Commands | Picture


def write_report(session: Contents, path: Path, pictures: Iterable[Any] = ()) -> Path:
    """Write what a session tells, in the place of a report that is there; the same session gives
    the same bytes.

    ``.html`` is one file with no script and nothing from elsewhere; ``.md`` has its figures in a
    folder beside it. Raises ValueError for another suffix, FileExistsError where something else
    than a report is there.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"{path}: got {path.suffix or 'no suffix'}, allowed is {' or '.join(SUFFIXES)}"
        )
    if path.exists() and not _is_report(path):
        raise FileExistsError(f"{path}: is there already and is no report of npulab")
    story = story_of(session, pictures)
    folder = path.with_name(f"{path.stem}-figures")
    template = _pages(path.suffix).get_template(f"report{path.suffix}.jinja")
    page = template.render(story=story, folder=folder.name)
    for piece in story if path.suffix == ".md" else ():
        if isinstance(piece, Picture) and not (folder / piece.name).exists():
            replace_file(folder / piece.name, piece.png)
    replace_file(path, page.encode())
    return path


def _is_report(path: Path) -> bool:
    first = first_bytes(path, FIRST)
    return MARKS[0] in first or first.startswith(MARKS[1])


@cache
def _pages(suffix: str) -> Environment:
    """The templates and what they use; every text in them is plain, and in HTML escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    out = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=suffix == ".html",
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: plain(value) if type(value) is str else value,
    )
    out.tests["short"] = lambda cell: max(map(len, re.split(r"[\s-]", cell))) <= SHORT
    out.filters |= {"base64": lambda data: base64.b64encode(data).decode(), "line": text_markdown}
    if suffix == ".html":
        out.filters["notes"] = lambda text: Markup(to_html(read_markdown(text)))
    else:
        out.filters["notes"] = lambda text: to_markdown(read_markdown(text))
        out.filters["fenced"] = lambda text, kind: fenced(plain(text), kind)
        out.filters["table"] = lambda table: table_markdown(
            [[text_markdown(cell, True) for cell in row] for row in (table.columns, *table.shown)]
        )
    return out


def story_of(session: Contents, pictures: Iterable[Any] = ()) -> list[Piece]:
    """The pieces of a session's report; what cannot be read is said in its place."""
    known = Evidence.of(session)
    pieces = [
        *_head(session),
        *_captures(session, known),
        *_map(session, known),
        *_notes(session, known),
        *_bookmarks(session, known),
        *_laws(session, known),
        *_bisections(session, known),
        *_figures(session, pictures),
    ]
    return [one for one in pieces if one != Commands()]


def _head(session: Contents) -> Iterator[Piece]:
    yield Title(session.title or (session.path.stem if session.path else "A session"), 1)
    yield Text(
        f"This session holds {', '.join(session.counts) or 'nothing yet'}. Commands are run in the "
        "folder of "
        f"the session, {session.path.name if session.path else 'which is in memory'}."
    )
    for text in (*session.conflicts, *session.problems):
        yield Text(text, look=True)


def _captures(session: Contents, known: Evidence) -> Iterator[Piece]:
    if not session.captures:
        return
    rows = []
    for one in session.captures:
        found = known.found.get(one.path)
        if found is None:
            rows.append(
                (one.path, *[""] * 4, f"cannot be read: {known.broken[one.path]}", one.sha256)
            )
            continue
        what = "capture"
        if isinstance(found, Sweep):
            what = f"sweep of {len(found)}"
        source = ", ".join(text for text in (found.source, found.tool, found.date) if text)
        rows.append((one.path, what, found.target, found.chip, origin(found), source, one.sha256))
    yield Title("What was looked at", place="captures")
    yield Table(("path", "what", "target", "chip", "provenance", "source", "sha256"), tuple(rows))
    paths = [*known.captures]
    sweeps = [path for path, one in known.found.items() if isinstance(one, Sweep)]
    shell = [f"npulab check {' '.join(map(shlex.quote, paths))}"] * bool(paths)
    shell += [f"npulab show {shlex.quote(path)}" for path in (*paths, *sweeps)]
    yield _again(
        shell,
        [
            *(f"npulab.load({path!r})" for path in paths),
            *(f"npulab.load_sweep({path!r})" for path in sweeps),
        ],
    )


def _map(session: Contents, known: Evidence) -> Iterator[Piece]:
    version, registers = session.map, known.registers
    if version is None:
        return
    yield Title("The register map", place="map")
    yield Text(
        f"{version.path}, sha256 {version.sha256}" + (f": {registers!r}" if registers else "")
    )
    if version.steps:
        if registers:
            told = session.draft.steps
        else:
            told = [_step(one) for one in version.steps]
        rows = tuple((str(number), one) for number, one in enumerate(told, 1))
        yield Table(("step", "what"), rows, "edits of the draft that are not saved in the file yet")
    if known.wrong:
        yield Text(f"the map cannot be read: {known.wrong}", look=True)
    if registers is not None:
        yield from _status(registers, known)
        if session.path is not None:
            yield _again([], [f"npulab.session({session.path.name!r}).registers"])


def _status(registers: RegisterMap, known: Evidence) -> Iterator[Piece]:
    """The map's own account of its bits, over the captures that are read with it."""
    used = [
        one
        for path, one in known.captures.items()
        if known.own_map(path) and len(one.words) == len(registers)
    ]
    frame = registers.status(np.stack([one.words for one in used]) if used else None)
    said = ""
    if count := sum(one.simulated for one in used):
        said = f" ({count} {SIMULATED})"
    yield _frame(
        frame,
        f"the map's bits over {plural(len(used), 'capture')}{said}" if used else "the map's bits",
    )


def _notes(session: Contents, known: Evidence) -> Iterator[Piece]:
    groups: dict[Anchor, list[Any]] = {}
    for note in session.notes:
        groups.setdefault(note.anchor, []).append(note)
    if groups:
        yield Title("Notes", place="notes")
    for anchor in sorted(groups, key=_order):
        yield Title(f"Of {anchor.text}{known.simulated(anchor)}", 3)
        yield from _bytes(anchor, known) if anchor.kind == "bytes" else _defined(anchor, known)
        for note in sorted(groups[anchor], key=lambda one: (one.date, one.id)):
            yield NoteText(note.text, _join(note.author, note.date, _odds(note)), f"note-{note.id}")
        yield _again(*known.again(anchor))


def _bookmarks(session: Contents, known: Evidence) -> Iterator[Piece]:
    if session.bookmarks:
        yield Title("Bookmarks", place="bookmarks")
    for one in sorted(session.bookmarks, key=lambda one: (_order(one.anchor), one.id)):
        yield Title(one.label or one.anchor.text, 3)
        yield Text(
            _join(
                f"{one.anchor.text}{known.simulated(one.anchor)}", one.author, one.date, _odds(one)
            )
        )
        yield from _defined(one.anchor, known)
        if one.anchor.kind == "bytes":
            yield from _bytes(one.anchor, known)
        elif one.anchor.kind != "session" and (rows := known.held(one.anchor)):
            yield Table(HELD, tuple(rows), "as the captures have it")
        yield _again(*known.again(one.anchor))


def _defined(anchor: Anchor, known: Evidence) -> Iterator[Piece]:
    if anchor.kind not in ("field", "register"):
        return
    if rows := known.defined(anchor):
        yield Table(DEFINED, tuple(rows), "as the map has it now")
    elif known.captures or known.registers:
        yield Text(f"{anchor.text}: the map has no {anchor.kind} of this name now", look=True)


def _bytes(anchor: Anchor, known: Evidence) -> Iterator[Piece]:
    capture, data = known.captures.get(anchor.capture), known.bytes_of(anchor)
    if capture is None:
        yield Text(f"{anchor.text}: the capture cannot be read", look=True)
    elif not data:
        sizes = (
            ", ".join(f"{name} {len(data)} bytes" for name, data in capture.buffers.items())
            or "none"
        )
        yield Text(
            f"{anchor.text}: the capture has no such bytes, its buffers are {sizes}", look=True
        )
    else:
        rows = [
            (f"{(anchor.offset or 0) + place:#x}", data[place : place + LINE].hex(" "))
            for place in range(0, min(len(data), LINE * MOST_LINES), LINE)
        ]
        more = ""
        if len(data) > LINE * MOST_LINES:
            more = f", the first {LINE * MOST_LINES}"
        yield Table(
            ("offset", "bytes"),
            tuple(rows),
            f"{anchor.buffer} of {anchor.capture} ({origin(capture)}{more})",
        )


def _laws(session: Contents, known: Evidence) -> Iterator[Piece]:
    if not session.laws:
        return
    rows, python, shell = [], [], []
    for law in session.laws:
        sweep = known.found.get(law.sweep)
        rivals = ""
        if law.rivals:
            rivals = f", {plural(law.rivals, 'rival')}"
        support = "not said"
        if law.support:
            support = f"{plural(law.support, 'capture')}{rivals}"
        captures = law.sweep
        if isinstance(sweep, Sweep | Capture):
            captures = f"{law.sweep} ({origin(sweep)})"
        captures += f" ({SIMULATED})" * (law.simulated and SIMULATED not in captures)
        groups = ""
        if isinstance(sweep, Sweep):
            groups = captured_for(groups_in(sweep.parameters))
        if groups:
            captures += f", {groups}"
        rows.append(
            (
                law.field,
                _names_at(law, sweep, known),
                law.law,
                support,
                _held(law, sweep),
                captures,
                _join(law.by, law.date, _odds(law)),
            )
        )
        if isinstance(sweep, Sweep):
            shell.append(f"npulab laws {shlex.quote(law.sweep)}")
            python.append(
                f"check_stated([Stated.parse({law.field!r}, {law.law!r}, {law.field!r})], "
                f"npulab.load_sweep({law.sweep!r})).status[0]"
            )
    yield Title("Laws that were accepted", place="laws")
    yield Table(
        (
            "field",
            "in the map",
            "law",
            "support when accepted",
            "checked for this report",
            "captures",
            "by",
        ),
        tuple(rows),
    )
    for row in rows:
        if "contradicted" in row[4]:
            yield Text(
                f"the law of {row[0]}, {row[2]}, is {row[4]} captures of {row[5]}", look=True
            )
    if python:
        yield _again(
            list(dict.fromkeys(shell)),
            ["from npulab.analysis.laws import Stated, check_stated", *python],
        )


def _names_at(law: AcceptedLaw, sweep: Any, known: Evidence) -> str:
    """The names of the fields where a law's field lies."""
    registers = known.registers or getattr(sweep, "registers", None)
    place = None
    if registers is not None:
        place = Naming.of(len(registers), registers).place(law.field)
    if registers is None or place is None:
        if registers is not None and law.field in registers:
            return law.field
        return ""
    word, lsb, width = place
    return ", ".join(
        dict.fromkeys(
            item.name
            for item in registers
            for piece in item.pieces
            if not item.automatic
            and piece.word == word
            and piece.lsb < lsb + width
            and lsb < piece.lsb + piece.width
        )
    )


def _held(law: AcceptedLaw, sweep: Any) -> str:
    """What a law's captures say of it now."""
    if not isinstance(sweep, Sweep):
        return "not checked: its captures are not in the session"
    try:
        return str(check_stated([Stated.parse(law.field, law.law, law.field)], sweep)["status"][0])
    except ValueError as error:
        return f"cannot be checked: {error}"


def _bisections(session: Contents, known: Evidence) -> Iterator[Piece]:
    if session.journals:
        yield Title("Bisections", place="bisections")
    for one in session.journals:
        yield Title(one.path, 3)
        path = inside(session.folder, one.path)
        try:
            if path.is_file() and path.stat().st_size > MOST_BYTES:
                raise ValueError(
                    f"{one.path}: got {path.stat().st_size} bytes, allowed are {MOST_BYTES}"
                )
            journal = Journal.read(path)  # which refuses what is no file
        except (ValueError, OSError) as error:
            yield Text(f"the journal cannot be read: {error}", look=True)
            continue
        yield from _bisection(one, journal, known)


def _bisection(one: Bisected, journal: Journal, known: Evidence) -> Iterator[Piece]:
    both = [known.found.get(path) for path in (one.good, one.bad)]
    about = _join(
        *(
            f"{name} {journal.about[name]}"
            for name in ("target", "good", "bad")
            if name in journal.about
        )
    )
    about += f" ({SIMULATED})" * any(getattr(capture, "simulated", False) for capture in both)
    counts = ", ".join(
        f"{sum(trial.outcome == outcome for trial in journal)} {outcome}"
        for outcome in ("pass", "fail", "hang")
    )
    if one.simulated:
        tried = f" on a {SIMULATED} device"
    elif one.device:
        tried = f" on {one.device}"
    else:
        tried = ""
    yield Text(f"{about}; {plural(len(journal), 'trial')}{tried}: {counts}.")
    if result := one.result or _result(both, journal):
        yield Text(f"Found: {result}.")
    yield Table(
        ("trial", "outcome", "changed", "why"),
        tuple(
            (str(number), trial.outcome, _some(trial.subset), trial.reason)
            for number, trial in enumerate(journal)
        ),
    )
    # a journal is one of captures by their names
    if all(
        capture is not None and journal.about.get(name) == capture.name
        for name, capture in zip(("good", "bad"), both, strict=True)
    ):
        paths = f"{shlex.quote(one.good)} {shlex.quote(one.bad)}"
        shell = f"npulab bisect {paths} --device {shlex.quote(one.device)} --resume {shlex.quote(one.path)}"
        python = (
            f"Bisection(npulab.load({one.good!r}), npulab.load({one.bad!r}), "
            f"journal={one.path!r}).result"
        )
        yield _again(
            [shell] * bool(one.device), ["from npulab.analysis.bisect import Bisection", python]
        )


def _result(both: Sequence[Any], journal: Journal) -> str:
    """What the journal says of the captures it was of, where they are here."""
    good, bad = both
    if not isinstance(good, Capture) or not isinstance(bad, Capture):
        return ""
    try:
        return Bisection(good, bad, journal=journal).result.sentence
    except (ValueError, LookupError) as error:
        return f"nothing that can be told again ({error})"


def _figures(session: Contents, pictures: Iterable[Any]) -> Iterator[Piece]:
    shown: list[Piece] = []
    for figure in session.figures:
        path = inside(session.folder, figure.path)
        data = b""
        if path.is_file() and path.stat().st_size <= MOST_BYTES:
            data = read_bounded(path, MOST_BYTES)
        if not data.startswith(PNG) or sum_of(path) != figure.sha256:
            shown.append(
                Text(f"{figure.path}, {figure.caption}: is missing or has changed", look=True)
            )
            continue
        shown += [
            Picture(data, figure.caption),
            _again([], figure.code.split("\n") if figure.code else []),
        ]
    for one in pictures:
        if isinstance(one, tuple):
            picture, caption = one
        else:
            picture, caption = one, ""
        caption = caption or str(getattr(picture, "text", "")) or "a picture"
        shown.append(Picture(png(picture), caption))
    yield from [Title("Figures", place="figures"), *shown] if shown else []


def _again(shell: Sequence[str], python: Sequence[str]) -> Commands:
    head = []
    if python:
        head = ["import npulab", *[""] * (not python[0].startswith("from "))]
    return Commands("\n".join(shell), "\n".join([*head, *python]))


def _order(anchor: Anchor) -> tuple[int, str]:
    return KINDS.index(anchor.kind), anchor.text


def _join(*texts: str) -> str:
    return ", ".join(text for text in texts if text)


def _odds(item: Item) -> str:
    marks = getattr(item, "conflict", ())
    if marks:
        return f"at odds since a merge: {', '.join(marks)}"
    return ""


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED])
    if len(names) > NAMED:
        return f"{shown} and {len(names) - NAMED} more"
    return shown or "nothing"


def _step(step: Any) -> str:
    if isinstance(step, dict):
        return ", ".join(f"{name} {value}" for name, value in step.items())
    return str(step)


def _frame(frame: pd.DataFrame, caption: str) -> Table:
    rows = tuple(
        tuple(f"{one:g}" if isinstance(one, float) else str(one) for one in row)
        for row in frame.itertuples(index=False, name=None)
    )
    told = frame.attrs.get("summary", "")
    return Table(
        tuple(str(name) or "-" for name in frame.columns),
        rows,
        f"{caption}; {told}" if told else caption,
    )
