"""An investigation in one file: what was looked at, what was noted of it, and where it stood."""

from __future__ import annotations

import copy
import hashlib
import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from npulab.analysis.laws.texts import parse_steps
from npulab.captures.capture import Capture
from npulab.captures.folders import DESCRIPTION
from npulab.captures.store import case_folders
from npulab.captures.sweep import Sweep
from npulab.notebook.sessions.contents import Contents, load_any
from npulab.notebook.sessions.file import (
    BY_ID,
    MARKS,
    MOST_BYTES,
    MOST_PARTS,
    Document,
    appended,
    as_kept,
    checked,
    empty,
    fold,
    id_of,
    inside,
    on_disk,
    png,
    read_session,
    session_text,
    sum_of,
    weight,
)
from npulab.notebook.sessions.items import AcceptedLaw, Anchor, Bisected, Bookmark, Figure, Note
from npulab.notebook.sessions.merging import merged
from npulab.support.files import Lines, locked, need_file, read_bounded, replace_file, write_file
from npulab.support.refuse import need_path, refuse_if

if TYPE_CHECKING:
    from npulab.analysis.draft import Draft

FIGURES = "figures"
SMALL = 2**14  # bytes; a smaller file is written whole at each change
PART = 4  # a file is written anew when this part of its size was appended
EMPTY = weight(session_text(empty()).encode())
CHANGED = "was changed since it was read, nothing is written; session.merge() takes both together"

Stamp = tuple[int, int, int, int]


def _stamp(path: Path | None) -> Stamp | None:
    """What the system says of a file: it is another once somebody wrote to it; None for no file."""
    try:
        said = None
        if path is not None:
            said = path.stat()
    except FileNotFoundError:
        said = None
    return None if said is None else (said.st_ino, said.st_size, said.st_mtime_ns, said.st_ctime_ns)


class Session(Contents):
    """A session in the file ``path``, or in memory; ``autosave`` writes the file at each change,
    before it returns.

    ``title`` can be set; ``captures``, ``notes``, ``bookmarks``, ``laws``, ``journals``,
    ``figures``, ``views`` and ``map`` say what is in it, ``conflicts`` what a merge left to be
    looked at, ``problems`` what is not as it was. ``author`` stands for the author of what is
    added.  Paths are those of files beside the session or below.

    A UserWarning tells of what is missing or changed, and of what a newer version kept, when a file
    is opened.  Raises ValueError with file and place for a file that is no session.

    >>> session = Session()
    >>> session.note("2 where the convolution has stride 2", field="stride").anchor.text
    'field stride'
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, author: str = "", autosave: bool = True
    ) -> None:
        super().__init__(None if path is None else Path(path))
        self.author, self.autosave = author, autosave
        self._draft: Draft | None = None  # the one that the session follows
        self._read = copy.deepcopy(self._document)  # the session as the file has it, and its bytes
        self._bytes: bytearray | None = None
        self._left: Stamp | None = None  # what the system says of the file as this session left it
        self._weight = weight(self.text.encode())
        self._whole = self._behind = 0  # bytes of the file's object, and lines that were appended
        self._lines: Lines | None = None  # what appends them
        self._folding = False
        if self.path is not None and self.path.exists():
            stamp = _stamp(self.path)  # before it is read: whoever writes meanwhile is noticed
            self._take(*on_disk(self.path), stamp)
            self._document = copy.deepcopy(self._read)
            self._weight = weight(self.text.encode())
            for text in self.problems:
                warnings.warn(f"{self.path}: {text}", UserWarning, stacklevel=3)
        elif self.path is not None and autosave:
            self.save()

    @classmethod
    def _of(cls, document: Document) -> Self:
        out = cls()
        out._document, out._read = document, copy.deepcopy(document)
        out._weight = weight(out.text.encode())
        return out

    def _take(self, document: Document, data: bytes, stamp: Stamp | None) -> None:
        """Know what the file holds, as the system's stamp says of it."""
        self._read, self._bytes = document, bytearray(data)
        self._left, self._whole, self._behind, self._lines = stamp, len(data), 0, None

    # What is looked at

    @property
    def title(self) -> str:
        return super().title

    @title.setter
    def title(self, text: str) -> None:
        self._change(lambda d: d.update(title=text))

    @property
    def draft(self) -> Draft:
        """The draft of the session's map, with the steps that are not saved; the session keeps what
        is made on it.

        Raises LookupError where the session has no map, and where the steps do not fit the file as
        it is now.
        """
        if self._draft is None or not self._stands(self._draft):
            self._follow(super().draft)
        return cast("Draft", self._draft)

    def attach(self, path: str | os.PathLike[str]) -> Any:
        """Take a case folder, a dump, a sweep or a folder of captures into the session, as it is
        now.

        Gives the ``Capture``, ``Sweep`` or tuple of captures.  A relative path is one from the
        session's folder, or where there is none from here.  Raises ValueError for a path outside
        the session's folder, and as ``load``.
        """
        where = self._inside(path)
        if not where.is_dir() or (where / DESCRIPTION).exists():
            folders = [where]
        else:
            folders = case_folders(where)
        refuse_if(
            not folders,
            where,
            f"a folder without {DESCRIPTION}",
            "is a capture; npulab import makes captures of dumps",
        )
        found = {self._relative(one): (load_any(one), sum_of(one)) for one in folders}
        self._change(
            lambda d: d["captures"].update(
                {
                    name: {**d["captures"].get(name, {}), "sha256": known}
                    for name, (_, known) in found.items()
                }
            )
        )
        loaded = tuple(one for one, _ in found.values())
        return loaded[0] if folders == [where] else loaded

    def use_map(self, path: Any, steps: Iterable[Any] = (), features: Iterable[str] = ()) -> None:
        """Say which register map the session is of: a path, with the edits of a draft that are not
        saved yet, as JSON has them; or the draft itself, whose edits the session keeps from now on.

        ``features`` are those of the chip.  Raises ValueError for a path outside the session's
        folder.
        """
        from npulab.analysis.draft import Draft

        if isinstance(path, Draft):
            if path.path is None:
                raise ValueError(
                    "map: got a draft without a file, allowed is one that was saved once"
                )
            self._keep(path)
            self._follow(path)
        else:
            value = self._version(path, steps, features)
            self._follow(None)
            self._change(lambda d: d.update(map={**d.get("map", {}), **value}))

    # What is said of it

    def note(
        self,
        text: str,
        *,
        field: str = "",
        register: str = "",
        block: str = "",
        capture: Any = "",
        buffer: str = "",
        offset: int | None = None,
        size: int | None = None,
        task: int | None = None,
        author: str | None = None,
        date: str = "",
    ) -> Note:
        """Note something (Markdown) of a field, a register, bytes of a buffer, a capture, or the
        session itself.

        ``capture`` is a path of the session or a capture that is attached.  The same note again is
        the same note. Raises ValueError for a place that is none; or where the file was changed by
        somebody else, and then the note is kept here for ``merge``.
        """
        anchor = Anchor(block, register, field, self._named(capture), buffer, task, offset, size)
        return self._add(Note("", text, anchor, self.author if author is None else author, date))

    def bookmark(
        self,
        label: str = "",
        *,
        field: str = "",
        register: str = "",
        block: str = "",
        capture: Any = "",
        buffer: str = "",
        offset: int | None = None,
        size: int | None = None,
        task: int | None = None,
        author: str | None = None,
        date: str = "",
    ) -> Bookmark:
        """Mark a place, as ``note`` has them, to come back to."""
        anchor = Anchor(block, register, field, self._named(capture), buffer, task, offset, size)
        return self._add(
            Bookmark("", label, anchor, self.author if author is None else author, date)
        )

    def accept(
        self,
        law: Any,
        field: str = "",
        *,
        sweep: Any = "",
        support: int | None = None,
        by: str | None = None,
        date: str = "",
    ) -> AcceptedLaw:
        """Take a law for true: a ``FieldLaw``, or a text with the field that it gives.

        ``sweep`` is the path of the captures that show it.  Raises ValueError for a text that is no
        law.
        """
        text = str(getattr(law, "stated", law))
        field = field or str(getattr(law, "name", ""))
        if not field:
            raise ValueError(
                f"field: got none for the law {text!r:.80}, allowed is the field that it gives"
            )
        parse_steps(text)
        path = self._named(sweep)
        simulated = bool(getattr(getattr(law, "_of", None), "simulated", False))
        if path and path in self._document["captures"]:
            simulated = simulated or bool(getattr(self.load(path), "simulated", False))
        counted = sum(getattr(law, "support", ())) if support is None else support
        return self._add(
            AcceptedLaw(
                "",
                field,
                text,
                counted,
                len(getattr(law, "rivals", ())),
                self.author if by is None else by,
                date,
                path,
                simulated,
            )
        )

    def journal(
        self, found: Any, *, result: str = "", good: Any = "", bad: Any = "", device: str = ""
    ) -> Bisected:
        """Take the journal of a bisection into the session: its path, or what ``bisect_fields``
        gave.

        ``good`` and ``bad`` are the captures it was of, ``device`` what ran the trials, as ``npulab
        bisect`` has it.
        """
        path = found
        if hasattr(found, "journal") and hasattr(found, "sentence"):
            path, result = found.journal.path, result or found.sentence
            good, bad = good or self._or_none(found.good), bad or self._or_none(found.bad)
            if path is None:
                raise ValueError(
                    "journal: got one in memory, allowed is a bisection with journal=PATH"
                )
        where = self._inside(path)
        need_file(where)
        one = Bisected(
            self._relative(where),
            result,
            self._named(good),
            self._named(bad),
            device,
            device == "simulated",
        )
        kept = {
            name: getattr(one, name)
            for name in ("result", "good", "bad", "device", "simulated")
            if getattr(one, name)
        }
        self._change(
            lambda d: d["journals"].update({one.path: {**d["journals"].get(one.path, {}), **kept}})
        )
        return one

    def figure(self, picture: Any, caption: str = "", *, code: str = "") -> Figure:
        """Keep a picture (of ``npulab``, or a matplotlib figure, or bytes of a PNG) beside the
        session.

        ``caption`` is by default what the picture says; ``code`` is the Python that draws it.
        """
        data = png(picture)
        caption = caption or str(getattr(picture, "text", ""))
        known = hashlib.sha256(data).hexdigest()
        stem = "session"
        if self.path:
            stem = self.path.stem
        where = self.folder / f"{stem}-{FIGURES}" / f"{known[:16]}.png"
        if not where.exists():
            write_file(where, data)
        return self._add(Figure("", self._relative(where), known, caption, code))

    def edit(self, which: str, text: str, *, author: str | None = None, date: str = "") -> Note:
        """Give a note another text; its id stays.  Raises LookupError for an id that no note
        has."""
        if which not in self._document["notes"]:
            raise LookupError(
                f"note: got {which!r:.80}, the session has "
                f"{', '.join(self._document['notes']) or 'no'}"
            )
        by = {"date": date, "author": self.author if author is None else author}
        said = {"text": as_kept(text), **{name: one for name, one in by.items() if one}}
        self._change(lambda d: d["notes"][which].update(said))
        return Note.of(which, self._document["notes"][which])

    def remove(self, which: str) -> None:
        """Take out what has this id, path or name; raises LookupError where nothing has it."""
        sections = [
            kind
            for kind in ("captures", "journals", "views", *BY_ID)
            if which in self._document[kind]
        ]
        if not sections:
            raise LookupError(
                f"remove: got {which!r:.80}, allowed is the id, path or name of something in the "
                "session"
            )

        def out(d: Document) -> None:
            for kind in sections:
                del d[kind][which]

        self._change(out)

    def settle(self, which: str = "") -> None:
        """Take away the marks that a merge left: of what has this id or is at this place of
        ``conflicts``, or all."""

        def settled(d: Document) -> None:
            for kind in BY_ID:
                for key, one in d[kind].items():
                    if which in ("", key):
                        one.pop(MARKS, None)
                    elif which in one.get(MARKS, ()):
                        one[MARKS] = [mark for mark in one[MARKS] if mark != which]
            d["conflicts"] = {
                key: one for key, one in d["conflicts"].items() if which not in ("", key)
            }

        self._change(settled)

    # Where one looks

    def open_view(self, view: Any, name: str = "", **made: Any) -> str:
        """Keep what a view shows and where it stands, as the one that is open; gives its name.

        ``view`` is one of ``notebook.widgets`` on captures of the session (``made`` says what it
        was made with, where the view does not), or an object of its kind and state as JSON has
        them.  A draft that it shows becomes the session's map.
        """
        from npulab.notebook.sessions.views import state_of

        if isinstance(view, Mapping):
            state = dict(view)
        else:
            state = state_of(view, self, made, self.use_map)
        paths = [str(one) for one in state.values() if isinstance(one, str) and one in self.paths]
        name = name or " ".join([str(state.get("kind", "view")), *paths])
        self._change(lambda d: (d["views"].update({name: state}), d.update(view=name)))
        return name

    def show(self, name: str = "") -> Any:
        """The view that was open, or the one of a name, as it stood; raises LookupError where there
        is none."""
        from npulab.notebook.sessions.views import restored

        name = name or str(self._document.get("view", ""))
        if name not in self._document["views"]:
            raise LookupError(
                f"view: got {name!r:.80}, the session has "
                f"{', '.join(self._document['views']) or 'none'}"
            )
        return restored(self.views[name], self)

    # The file

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the file, whole or not at all; ``path`` names one for a session in memory.

        Raises ValueError where the file is not as it was when it was read; ``merge`` takes both
        together.
        """
        if path is not None and Path(path) != self.path:
            if Path(path).exists():
                raise FileExistsError(f"{path}: is there already")
            self.path, self._bytes, self._folding = Path(path), None, False
        if self.path is None:
            raise ValueError("save: got no path, allowed is the file of the session")
        data = self.text.encode()
        with locked(self.path):
            now = None
            if self.path.exists():
                now = read_bounded(self.path, MOST_BYTES)
            known = None
            if self._bytes is not None:
                known = bytes(self._bytes)
            if now is not None and now != known and not self._says_the_same(now):
                raise ValueError(f"{self.path}: {CHANGED}")
            if now != data:
                replace_file(self.path, data)
            self._take(copy.deepcopy(self._document), data, _stamp(self.path))
        return self.path

    def _says_the_same(self, data: bytes) -> bool:
        """Whether a file's bytes hold what was read, as those of one that was folded do."""
        try:
            return self._bytes is not None and read_session(data, str(self.path)) == self._read
        except ValueError:
            return False

    def _append(self, kind: str, key: str, item: Any) -> None:
        """Save what was added last: behind a large file, which is written anew each time that it
        has grown by a part, so that a thousand notes take ten times as long as a hundred."""
        assert self.path is not None
        line = appended(kind, key, item)
        with locked(self.path):
            held = self._bytes
            if held is None or self._left != _stamp(self.path) or not self._has_room(len(line)):
                self.save()
                return
            self._lines = self._lines or Lines(self.path, MOST_BYTES)
            self._lines.add(line)
            held += line
            self._behind += 1
            self._read[kind][key] = copy.deepcopy(item)
            self._left = _stamp(self.path)
        if not self._folding:
            self._folding = True
            weakref.finalize(self, fold, self.path)

    def _has_room(self, more: int) -> bool:
        """Whether a line of so many bytes may go behind the file's object."""
        held = self._bytes or b""
        behind = len(held) + more - self._whole
        parts = self._weight[1] + 2 * (self._behind + 1)  # a line has two braces of its own
        is_long = self._whole >= SMALL and behind <= self._whole // PART
        return (
            is_long
            and held.endswith(b"\n")
            and len(held) + more <= MOST_BYTES
            and parts <= MOST_PARTS
        )

    def merge(self) -> list[str]:
        """Take in what somebody else wrote to the file since it was read, and save; gives the
        ``conflicts``."""
        if self.path is None:
            raise ValueError("merge: got a session in memory, allowed is one with a file")
        with locked(self.path):
            if self.path.exists():
                disk, data = on_disk(self.path)
                self._document = merged(self._read, self._document, disk)
                self._weight = weight(self.text.encode())
                self._take(disk, data, _stamp(self.path))
            self.save()
        return self.conflicts

    def report(self, path: str | os.PathLike[str], pictures: Iterable[Any] = ()) -> Path:
        """Write what was found as one page, ``.html`` or ``.md`` by the suffix; see
        ``notebook.sessions.report``.

        ``pictures`` are shown behind those of the session: pictures, or pairs of a picture and its
        caption.
        """
        from npulab.notebook.sessions.report import write_report

        return write_report(self, Path(path), pictures)

    def _change(self, change: Callable[[Document], Any]) -> None:
        """Change the document and save it; a change that no file could hold is none."""
        changed = copy.deepcopy(self._document)
        change(changed)
        where = str(self.path or "session")
        checked(changed, where)
        data = session_text(changed).encode()
        read_session(data, where)
        self._document, self._weight = changed, weight(data)
        if self.autosave and self.path is not None:
            self.save()

    def _add(self, item: Any) -> Any:
        """Put an item under the id that follows from its content, or from that and the id where
        another has it."""
        kept = item.kept
        key = id_of(item.kind, kept)
        known = self._document[item.kind]
        while (
            key in known
            and {name: one for name, one in known[key].items() if name != MARKS} != kept
        ):
            key = id_of(item.kind, key, kept)
        if key not in known:
            self._put(item.kind, key, kept)
        return type(item).of(key, self._document[item.kind][key])

    def _put(self, kind: str, key: str, kept: Any) -> None:
        """Add an item and save it; what is there already is not looked at again, unless the
        session is nearly as large as a file may be."""
        alone = session_text({**empty(), kind: {key: kept}}).encode()
        size, parts = weight(alone)
        size, parts = self._weight[0] + size, self._weight[1] + parts
        if size > MOST_BYTES or parts > MOST_PARTS:
            self._change(lambda d: d[kind].update({key: kept}))
            return
        read_session(alone, str(self.path or "session"))
        self._document[kind][key] = copy.deepcopy(kept)
        self._weight = size - EMPTY[0], parts - EMPTY[1]
        if self.autosave and self.path is not None:
            self._append(kind, key, kept)

    def _stands(self, draft: Draft) -> bool:
        """Whether a draft is what the session says of its map."""
        try:
            return {**self._document.get("map", {}), **self._kept(draft)} == self._document.get(
                "map"
            )
        except (ValueError, OSError):  # its file is another's by now
            return False

    def _kept(self, draft: Draft) -> dict[str, Any]:
        """What the document says of a draft; raises ValueError where its file is not that of one of
        its steps."""
        return self._version(draft.path, draft.unsaved, draft.map.features)

    def _version(self, path: Any, steps: Iterable[Any], features: Iterable[str]) -> dict[str, Any]:
        """What the document says of a map."""
        where = self._inside(path)
        return {
            "path": self._relative(where),
            "sha256": sum_of(where),
            "steps": list(steps),
            "features": sorted(features),
        }

    def _keep(self, draft: Draft) -> None:
        """Put a draft as it is now into the document."""
        value = self._kept(draft)
        self._change(lambda d: d.update(map={**d.get("map", {}), **value}))

    def _follow(self, draft: Draft | None) -> None:
        """Keep what is made on a draft from now on, and nothing more of another."""
        if self._draft is not None:
            self._draft.unobserve(self._keep)
        self._draft = draft
        if draft is not None:
            draft.observe(self._keep)

    def _named(self, capture: Any) -> str:
        """The path of a capture or sweep of the session; one that is given as a path and not
        attached yet is."""
        if not capture:
            return ""
        if isinstance(capture, Capture | Sweep):
            return self.path_as(capture)
        if str(capture) in self.paths:
            return str(capture)
        path = self._relative(self._inside(capture))
        if path not in self.paths:
            self.attach(capture)
        refuse_if(path not in self.paths, capture, "a folder of captures", "is one of them")
        return path

    def _or_none(self, capture: Capture) -> str:
        try:
            return self._named(capture)
        except LookupError:
            return ""

    def _inside(self, path: str | os.PathLike[str]) -> Path:
        """A file or folder in the session's folder, named from there or from here."""
        if not isinstance(path, str | os.PathLike):
            raise ValueError(
                f"path: got {type(path).__name__}, allowed is the path of a file or folder"
            )
        beside = self.folder / path
        if beside.exists() or Path(path).is_absolute():
            where = beside
        else:
            where = Path(path)
        if not where.exists():
            raise FileNotFoundError(f"{beside}: there is no such file or folder")
        inside(self.folder, self._relative(where))
        return where

    def _relative(self, where: Path) -> str:
        folder = Path(os.path.abspath(self.folder))  # noqa: PTH100 - without following links
        full = Path(os.path.abspath(where))  # noqa: PTH100
        if not full.is_relative_to(folder):
            folder, full = folder.resolve(), full.resolve()
        if not full.is_relative_to(folder) or full == folder:
            raise ValueError(
                f"{where}: lies outside the session's folder {folder}, allowed is a path inside it"
            )
        return full.relative_to(folder).as_posix()


def session(path: str | os.PathLike[str], *, author: str = "", autosave: bool = True) -> Session:
    """The session in a file, which is made where there is none; see ``Session``."""
    if path is not None:
        need_path("session", path)
    return Session(path, author=author, autosave=autosave)


def merge_sessions(base: Any, ours: Any, theirs: Any) -> Session:
    """Two people's sessions made one: what either added or changed since ``base`` is in it,
    ``conflicts`` to look at.

    Each is a path or a Session; ``base`` may be None or an empty file, where the two have nothing
    in common.  The result is in memory; ``save`` writes it.  Raises ValueError with file and place
    for a file that is no session.
    """
    return Session._of(
        checked(merged(_given(base, True), _given(ours), _given(theirs)), "the merge")
    )


def _given(one: Any, blank: bool = False) -> Document:
    if isinstance(one, Session):
        return copy.deepcopy(one._document)
    if blank and (one is None or not Path(one).stat().st_size):
        return empty()
    return on_disk(Path(one))[0]
