"""A session's report in a file: the captures, the notes, and the commands that show each claim
again.

HTML is one page, for light and dark themes, that needs no other file, no script and no network.
Markdown has its figures in a folder next to it.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npulab.analysis.bisect import Bisection
from npulab.analysis.laws import Stated, check_stated
from npulab.analysis.laws.groups import captured_for, groups_in
from npulab.analysis.laws.naming import Naming
from npulab.captures.capture import Capture
from npulab.captures.journal import Journal, outcomes_counted
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
from npulab.support.text import part_said, plural, six_digits

if TYPE_CHECKING:
    from jinja2 import Environment

SUFFIXES = (".html", ".md")
# a report has one of these marks in its first bytes; a file without a mark is not replaced
MARKS = (b'<meta name="generator" content="npulab report">', b"<!-- npulab report -->")
FIRST = 2**10
KINDS = ("session", "capture", "register", "field", "bytes")
MOST_BYTES = 2**24  # a journal or figure of more bytes is not read
LINE, MOST_LINES = 16, 64  # shown bytes have this many in a line, and at most this many lines
NAMED = 4  # a row names at most this many changed fields
DIGITS = 12  # this many digits of a sha256 are shown; the session's file has all
MOST_ROWS = 400  # a table shows at most this many rows
LAWS = (
    "field",
    "in the map",
    "law",
    "support when accepted",
    "checked for this report",
    "captures",
    "by",
)
SHORT = 12  # a cell may break a word of more letters at the end of a line


@dataclass(frozen=True)
class Title:
    """A heading of level 1 to 3; ``place`` is the target of ``#`` links."""

    text: str
    level: int = 2
    place: str = ""


@dataclass(frozen=True)
class Text:
    """A paragraph of plain text; ``look`` is True for a warning, which the page marks."""

    text: str
    look: bool = False


@dataclass(frozen=True)
class NoteText:
    """The Markdown of a note, with its author and date."""

    text: str
    by: str = ""
    place: str = ""


@dataclass(frozen=True)
class TextTable:
    """A table of plain texts."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""

    @property
    def shown(self) -> list[tuple[str, ...]]:
        """The rows to show: at most ``MOST_ROWS``, then a row that says how many more there are."""
        more = len(self.rows) - MOST_ROWS
        if more <= 0:
            return list(self.rows)
        blank = [""] * (len(self.columns) - 1)
        return [*self.rows[:MOST_ROWS], (f"… {more} more", *blank)]


@dataclass(frozen=True)
class Commands:
    """Commands that show a claim again, from the shell and in Python."""

    shell: str = ""
    python: str = ""


@dataclass(frozen=True)
class Picture:
    """A PNG and its caption; ``dark`` is the PNG for a dark page, if there is one."""

    png: bytes
    caption: str
    dark: bytes = b""

    @property
    def name(self) -> str:
        return f"{hashlib.sha256(self.png).hexdigest()[:16]}.png"


Piece = Title | Text | NoteText | TextTable | Commands | Picture


def write_report(session: Contents, path: Path, pictures: Iterable[Any] = ()) -> Path:
    """Write the report of a session, and return ``path``; the same session gives the same bytes.

    ``.html`` is one file that needs no script and no other file; ``.md`` has its figures in a
    folder next to it. An earlier report at ``path`` is replaced. Raises ValueError for another
    suffix, FileExistsError if the file at ``path`` is not a report of npulab.
    """
    if path.suffix not in SUFFIXES:
        suffix = path.suffix or "no suffix"
        raise ValueError(f"{path}: got {suffix}, allowed is {' or '.join(SUFFIXES)}")
    if path.exists() and not _is_report(path):
        raise FileExistsError(
            f"{path}: is there already and is no report of npulab, allowed is a new path"
        )
    story = story_of(session, pictures)
    folder = path.with_name(f"{path.stem}-figures")
    template = _pages(path.suffix).get_template(f"report{path.suffix}.jinja")
    page = template.render(story=story, folder=folder.name)
    for piece in story:
        if path.suffix == ".md" and isinstance(piece, Picture):
            figure = folder / piece.name
            if (
                not figure.exists()
            ):  # a figure's name is a hash of its content: a file with this name needs no change
                replace_file(figure, piece.png)
    replace_file(path, page.encode())
    return path


def _is_report(path: Path) -> bool:
    first = first_bytes(path, FIRST)
    return MARKS[0] in first or first.startswith(MARKS[1])


@cache
def _pages(suffix: str) -> Environment:
    """Return the environment of the templates, with their filters; invisible characters are
    escaped, and in HTML all markup.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    out = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=suffix == ".html",
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_plain_value,
    )
    out.tests["short"] = lambda cell: max(map(len, re.split(r"[\s-]", cell))) <= SHORT
    out.filters["base64"] = lambda data: base64.b64encode(data).decode()
    out.filters["line"] = text_markdown
    if suffix == ".html":
        out.filters["notes"] = lambda text: Markup(to_html(read_markdown(text)))
    else:
        out.filters["notes"] = lambda text: to_markdown(read_markdown(text))
        out.filters["fenced"] = lambda text, kind: fenced(plain(text), kind)
        out.filters["table"] = _table_text
    return out


def _plain_value(value: Any) -> Any:
    if type(value) is str:  # Markup, a subclass of str, was made of plain text
        return plain(value)
    return value


def _table_text(table: TextTable) -> str:
    rows = []
    for row in (table.columns, *table.shown):
        rows.append([text_markdown(cell, True) for cell in row])
    return table_markdown(rows)


def story_of(session: Contents, pictures: Iterable[Any] = ()) -> list[Piece]:
    """Return the pieces of a session's report in reading order; where something cannot be read, the
    piece says why.
    """
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
    return [piece for piece in pieces if piece != Commands()]


def _head(session: Contents) -> Iterator[Piece]:
    title, file = "A session", "which is in memory"
    if session.path:
        title, file = session.path.stem, session.path.name
    yield Title(session.title or title, 1)
    counts = ", ".join(session.counts) or "nothing yet"
    yield Text(
        f"This session holds {counts}. Commands are run in the folder of the session, {file}."
    )
    for text in (*session.conflicts, *session.problems):
        yield Text(text, look=True)


def _captures(session: Contents, known: Evidence) -> Iterator[Piece]:
    if not session.captures:
        return
    rows = []
    sweeps = []
    for held in session.captures:
        found = known.found.get(held.path)
        if found is None:
            broken = f"cannot be read: {known.broken[held.path]}"
            rows.append((held.path, "", "", "", "", broken, held.sha256[:DIGITS]))
            continue
        kind = "capture"
        if isinstance(found, Sweep):
            kind = f"sweep of {found.looked_at or len(found)}"
            sweeps.append(held.path)
        source = _join(found.source, found.tool, found.date)
        made = found.target, found.chip, origin(found), source
        rows.append((held.path, kind, *made, held.sha256[:DIGITS]))
    yield Title("What was looked at", place="captures")
    yield TextTable(
        ("path", "what", "target", "chip", "provenance", "source", "sha256"), tuple(rows)
    )
    paths = [*known.captures]
    shell = []
    if paths:
        shell.append(f"npulab check {shlex.join(paths)}")
    python = [f"npulab.load({path!r})" for path in paths]
    python += [f"npulab.load_sweep({path!r})" for path in sweeps]
    for path in (*paths, *sweeps):
        shell.append(f"npulab show {shlex.quote(path)}")
    yield _again(shell, python)


def _map(session: Contents, known: Evidence) -> Iterator[Piece]:
    version, registers = session.map, known.registers
    if version is None:
        yield from _own_map(known)
        return
    yield Title("The register map", place="map")
    text = f"{version.path}, sha256 {version.sha256[:DIGITS]}"
    if registers:
        text += f": {registers!r}"
    yield Text(text)
    steps = [_step_text(step) for step in version.steps]
    if steps:
        if registers:
            steps = session.draft.steps
        rows = tuple((str(number), step) for number, step in enumerate(steps, 1))
        yield TextTable(
            ("step", "what"), rows, "edits of the draft that are not saved in the file yet"
        )
    if known.wrong:
        yield Text(f"the map cannot be read: {known.wrong}", look=True)
    if registers is not None:
        yield _block(registers)
        yield from _status(registers, known)
        if session.path is not None:
            yield _again([], [f"npulab.session({session.path.name!r}).registers"])


def _own_map(known: Evidence) -> Iterator[Piece]:
    """Yield a picture of the map of a capture's first job, for the first that has a map."""
    for path, capture in known.captures.items():
        registers = capture.maps.get(capture.jobs[0].block)
        if registers is not None:
            yield Title("The register map", place="map")
            yield Text(f"The map of {capture.target} for the first job of {path}.")
            yield _block(registers)
            return


# pictures of maps are cached: drawing a map takes most of the time of a report
@lru_cache(maxsize=4)
def _block(registers: RegisterMap) -> Picture:
    from npulab.notebook.pictures import block_map

    drawn = block_map(registers)
    return _drawn(drawn, f"the words of the map, bit 31 on the left: {drawn.text}")


def _status(registers: RegisterMap, known: Evidence) -> Iterator[Piece]:
    """Yield a table of the number of the map's bits with each status, over the captures that are
    read with the session's map.
    """
    used = []
    simulated = 0
    jobs = 0
    for path, capture in known.captures.items():
        if known.own_map(path) and len(capture.words) == len(registers):
            used.append(capture.words)
            simulated += capture.simulated
            jobs += len(capture.jobs)
    if not used:
        yield _frame(registers.status(None), "the map's bits")
        return
    caption = f"the map's bits over {plural(len(used), 'capture')}"
    if simulated:
        caption += f" ({simulated} {SIMULATED})"
    if jobs > len(used):
        caption += f"; {part_said(f'{len(used)} main jobs of {jobs} jobs')}"
    yield _frame(registers.status(np.stack(used)), caption)


def _notes(session: Contents, known: Evidence) -> Iterator[Piece]:
    groups: dict[Anchor, list[Any]] = {}
    for note in session.notes:
        groups.setdefault(note.anchor, []).append(note)
    if groups:
        yield Title("Notes", place="notes")
    for anchor in sorted(groups, key=_order):
        yield Title(f"Of {anchor.text}{known.simulated(anchor)}", 3)
        yield from _shown_at(anchor, known)
        for note in sorted(groups[anchor], key=lambda note: (note.date, note.id)):
            yield NoteText(note.text, _join(note.author, note.date, _odds(note)), f"note-{note.id}")
        yield _again(*known.again(anchor))


def _bookmarks(session: Contents, known: Evidence) -> Iterator[Piece]:
    if session.bookmarks:
        yield Title("Bookmarks", place="bookmarks")
    for mark in sorted(session.bookmarks, key=lambda mark: (_order(mark.anchor), mark.id)):
        anchor = mark.anchor
        yield Title(mark.label or anchor.text, 3)
        text = f"{anchor.text}{known.simulated(anchor)}"
        yield Text(_join(text, mark.author, mark.date, _odds(mark)))
        yield from _shown_at(anchor, known)
        if anchor.kind not in ("bytes", "session"):
            rows = known.held(anchor)
            if rows:
                yield TextTable(HELD, tuple(rows), "as the captures have it")
        yield _again(*known.again(anchor))


def _shown_at(anchor: Anchor, known: Evidence) -> Iterator[Piece]:
    """Yield the map's description of a field or register, or the bytes at a place in a buffer;
    nothing for a capture or the session.
    """
    if anchor.kind == "bytes":
        yield from _bytes_at(anchor, known)
    elif anchor.kind in ("field", "register"):
        yield from _defined(anchor, known)


def _defined(anchor: Anchor, known: Evidence) -> Iterator[Piece]:
    rows = known.defined(anchor)
    if rows:
        yield TextTable(DEFINED, tuple(rows), "as the map has it now")
    elif known.captures or known.registers:
        yield Text(f"{anchor.text}: the map has no {anchor.kind} of this name now", look=True)


def _bytes_at(anchor: Anchor, known: Evidence) -> Iterator[Piece]:
    capture, data = known.captures.get(anchor.capture), known.bytes_of(anchor)
    if capture is None:
        yield Text(f"{anchor.text}: the capture cannot be read", look=True)
        return
    if not data:
        sizes = [f"{name} {len(buffer)} bytes" for name, buffer in capture.buffers.items()]
        named = ", ".join(sizes) or "none"
        yield Text(
            f"{anchor.text}: the capture has no such bytes, its buffers are {named}", look=True
        )
        return
    caption = f"{anchor.buffer} of {anchor.capture} ({origin(capture)}"
    most = LINE * MOST_LINES
    if len(data) > most:
        caption += f", the first {most}"
    rows = []
    for place in range(0, min(len(data), most), LINE):
        offset = (anchor.offset or 0) + place
        rows.append((f"{offset:#x}", data[place : place + LINE].hex(" ")))
    yield TextTable(("offset", "bytes"), tuple(rows), f"{caption})")


def _laws(session: Contents, known: Evidence) -> Iterator[Piece]:
    if not session.laws:
        return
    rows, contradicted, python = [], [], []
    shell: dict[str, None] = {}
    for law in session.laws:
        sweep = known.found.get(law.sweep)
        captures = _captures_of(law, sweep)
        checked = _checked(law, sweep)
        names, by = _names_at(law, sweep, known), _join(law.by, law.date, _odds(law))
        rows.append((law.field, names, law.law, _support(law), checked, captures, by))
        if "contradicted" in checked:
            text = f"the law of {law.field}, {law.law}, is {checked} captures of {captures}"
            contradicted.append(Text(text, look=True))
        if isinstance(sweep, Sweep):
            shell[f"npulab laws {shlex.quote(law.sweep)}"] = None
            stated = f"Stated.parse({law.field!r}, {law.law!r}, {law.field!r})"
            python.append(f"check_stated([{stated}], npulab.load_sweep({law.sweep!r})).status[0]")
    yield Title("Laws that were accepted", place="laws")
    yield TextTable(LAWS, tuple(rows))
    yield from contradicted
    if python:
        python.insert(0, "from npulab.analysis.laws import Stated, check_stated")
        yield _again([*shell], python)


def _captures_of(law: AcceptedLaw, sweep: Any) -> str:
    captures = law.sweep
    if isinstance(sweep, Sweep | Capture) and origin(sweep):
        captures += f" ({origin(sweep)})"
    if law.simulated and SIMULATED not in captures:
        captures += f" ({SIMULATED})"
    groups = ""
    if isinstance(sweep, Sweep):
        groups = captured_for(groups_in(sweep.parameters))
    if groups:
        captures += f", {groups}"
    if getattr(sweep, "looked_at", ""):
        captures += f"; {part_said(sweep.looked_at)}"
    return captures


def _support(law: AcceptedLaw) -> str:
    if not law.support:
        return "not said"
    support = plural(law.support, "capture")
    if law.rivals:
        support += f", {plural(law.rivals, 'rival')}"
    return support


def _names_at(law: AcceptedLaw, sweep: Any, known: Evidence) -> str:
    """Return the names, with commas between them, of the map's fields that share bits with a law's
    field.
    """
    registers = known.registers or getattr(sweep, "registers", None)
    if registers is None:
        return ""
    place = Naming.of(len(registers), registers).place(law.field)
    if place is None:
        if law.field in registers:
            return law.field
        return ""
    word, lsb, width = place
    names: dict[str, None] = {}
    for field in registers:
        for piece in field.pieces:
            apart = piece.lsb >= lsb + width or lsb >= piece.lsb + piece.width
            if not field.automatic and piece.word == word and not apart:
                names[field.name] = None
    return ", ".join(names)


def _checked(law: AcceptedLaw, sweep: Any) -> str:
    """Return the status of a law, checked against its captures as they are now; the reason if it
    cannot be checked.
    """
    if not isinstance(sweep, Sweep):
        return "not checked: its captures are not in the session"
    try:
        stated = Stated.parse(law.field, law.law, law.field)
        return str(check_stated([stated], sweep)["status"][0])
    except ValueError as error:
        return f"cannot be checked: {error}"


def _bisections(session: Contents, known: Evidence) -> Iterator[Piece]:
    if session.journals:
        yield Title("Bisections", place="bisections")
    for held in session.journals:
        yield Title(held.path, 3)
        path = inside(session.folder, held.path)
        try:
            if path.is_file() and path.stat().st_size > MOST_BYTES:
                size = path.stat().st_size
                raise ValueError(f"{held.path}: got {size} bytes, allowed are at most {MOST_BYTES}")
            journal = Journal.read(path)  # read raises an error if there is no file
        except (ValueError, OSError) as error:
            yield Text(f"the journal cannot be read: {error}", look=True)
            continue
        yield from _bisection(held, journal, known)


def _bisection(held: Bisected, journal: Journal, known: Evidence) -> Iterator[Piece]:
    good, bad = known.found.get(held.good), known.found.get(held.bad)
    names = [name for name in ("target", "good", "bad") if name in journal.about]
    about = ", ".join(f"{name} {journal.about[name]}" for name in names)
    if getattr(good, "simulated", False) or getattr(bad, "simulated", False):
        about += f" ({SIMULATED})"
    device = ""
    if held.simulated:
        device = f" on a {SIMULATED} device"
    elif held.device:
        device = f" on {held.device}"
    outcomes = Counter(trial.outcome for trial in journal)
    counted = outcomes_counted(outcomes)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in counted.items())
    yield Text(f"{about}; {plural(len(journal), 'trial')}{device}: {counts}.")
    result = held.result or _result(good, bad, journal)
    if result:
        yield Text(f"Found: {result}.")
    rows = []
    for number, trial in enumerate(journal):
        outcome = trial.outcome
        if trial.guessed:
            outcome += " (a guess)"
        rows.append((str(number), outcome, _first_names(trial.subset), trial.reason))
    yield TextTable(("trial", "outcome", "changed", "why"), tuple(rows))
    # bisect refuses a journal of other captures: commands are shown only if the names agree
    for name, capture in (("good", good), ("bad", bad)):
        if capture is None or journal.about.get(name) != capture.name:
            return
    shell = []
    if held.device:
        paths = shlex.join([held.good, held.bad])
        device = shlex.quote(held.device)
        shell = [f"npulab bisect {paths} --device {device} --resume {shlex.quote(held.path)}"]
    captures = f"npulab.load({held.good!r}), npulab.load({held.bad!r})"
    result = f"Bisection({captures}, journal={held.path!r}).result"
    yield _again(shell, ["from npulab.analysis.bisect import Bisection", result])


def _result(good: Any, bad: Any, journal: Journal) -> str:
    """Return the sentence of the bisection that a journal records, or an empty text if a capture is
    missing.
    """
    if not isinstance(good, Capture) or not isinstance(bad, Capture):
        return ""
    try:
        return Bisection(good, bad, journal=journal).result.sentence
    except (ValueError, LookupError) as error:
        return f"nothing, as the journal does not fit the captures ({error})"


def _figures(session: Contents, pictures: Iterable[Any]) -> Iterator[Piece]:
    shown: list[Piece] = []
    for figure in session.figures:
        path = inside(session.folder, figure.path)
        data = b""
        if path.is_file() and path.stat().st_size <= MOST_BYTES:
            data = read_bounded(path, MOST_BYTES)
        if not data.startswith(PNG) or sum_of(path) != figure.sha256:
            text = f"{figure.path}, {figure.caption}: is missing or has changed"
            shown.append(Text(text, look=True))
            continue
        shown.append(Picture(data, figure.caption))
        if figure.code:
            shown.append(_again([], figure.code.split("\n")))
    for picture in pictures:
        caption = ""
        if isinstance(picture, tuple):
            picture, caption = picture
        caption = caption or str(getattr(picture, "text", "")) or "a picture"
        shown.append(_drawn(picture, caption))
    if shown:
        yield Title("Figures", place="figures")
    yield from shown


def _drawn(picture: Any, caption: str) -> Picture:
    dark = b""
    if hasattr(picture, "dark_png"):
        dark = picture.dark_png()
    return Picture(png(picture), caption, dark)


def _again(shell: Sequence[str], python: Sequence[str]) -> Commands:
    if python:
        head = ["import npulab"]
        if not python[0].startswith("from "):
            head.append("")
        python = [*head, *python]
    return Commands("\n".join(shell), "\n".join(python))


def _order(anchor: Anchor) -> tuple[int, str]:
    return KINDS.index(anchor.kind), anchor.text


def _join(*texts: str) -> str:
    return ", ".join(filter(None, texts))


def _odds(item: Item) -> str:
    marks = getattr(item, "conflict", ())
    if marks:
        return f"at odds since a merge: {', '.join(marks)}"
    return ""


def _first_names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED])
    if len(names) > NAMED:
        return f"{shown} and {len(names) - NAMED} more"
    return shown or "nothing"


def _step_text(step: Any) -> str:
    if isinstance(step, dict):
        return ", ".join(f"{name} {value}" for name, value in step.items())
    return str(step)


def _frame(frame: pd.DataFrame, caption: str) -> TextTable:
    rows = []
    for row in frame.itertuples(index=False, name=None):
        rows.append(tuple(map(six_digits, row)))
    if frame.attrs.get("summary"):
        caption += f"; {frame.attrs['summary']}"
    columns = tuple(str(name) or "-" for name in frame.columns)
    return TextTable(columns, tuple(rows), caption)
