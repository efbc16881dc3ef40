"""An investigation in one file: its captures, the notes about them, and its views."""

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
from npulab.notebook.sessions.merging import bare, merged
from npulab.support.files import Lines, locked, need_file, read_bounded, replace_file, write_file
from npulab.support.refuse import need_path, refuse_if

if TYPE_CHECKING:
    from npulab.analysis.draft import Draft

FIGURES = "figures"
SMALL = 2**14  # a file of fewer bytes is written whole at each change
PART = 4  # a file is written anew when one part in four of its size was appended
EMPTY = weight(session_text(empty()).encode())
CHANGED = "was changed since it was read, nothing is written; session.merge() takes both together"

Stamp = tuple[int, int, int, int]


def _stamp(path: Path | None) -> Stamp | None:
    """Return the inode, size and times of a file, which change when somebody writes to it; None if
    there is no file.
    """
    if path is None:
        return None
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class Session(Contents):
    """A session in the file ``path``, or in memory; with ``autosave`` each change is written to the
    file before the call returns.

    ``title`` can be set; ``captures``, ``notes``, ``bookmarks``, ``laws``, ``journals``,
    ``figures``, ``views`` and ``map`` are its contents, ``conflicts`` the contradictions that a
    merge left to be looked at, ``problems`` files that are missing or have changed. ``author`` is
    the author of items that are added. Paths lie in the session's folder or below.

    When a file is opened, a UserWarning reports each of its ``problems``. Raises ValueError with
    file and place for a file that is not a session.

    >>> session = Session()
    >>> session.note("2 where the convolution has stride 2", field="stride").anchor.text
    'field stride'
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, author: str = "", autosave: bool = True
    ) -> None:
        super().__init__()
        if path is not None:
            self.path = Path(path)
        self.author, self.autosave = author, autosave
        self._draft: Draft | None = None  # the session records the edits of this draft
        self._read = copy.deepcopy(self._document)  # the document as it was last read or written
        self._bytes: bytearray | None = None  # the file's bytes as last read or written
        self._left: Stamp | None = None  # the file's stamp when last read or written
        self._weight = weight(self.text.encode())
        self._whole = self._behind = 0  # bytes of the file's object; lines after it
        self._lines: Lines | None = None  # writes the appended lines
        self._folding = False
        if self.path is not None and self.path.exists():
            # the stamp is taken before the file is read, so that a write in between is noticed
            stamp = _stamp(self.path)
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
        """Take over the document, the bytes and the stamp of the session's file, as it was just
        read or written.
        """
        self._read, self._bytes, self._left = document, bytearray(data), stamp
        self._whole, self._behind = len(data), 0
        self._lines = None

    # Methods for captures and the map

    @property
    def title(self) -> str:
        return super().title

    @title.setter
    def title(self, text: str) -> None:
        self._change(lambda d: d.update(title=text))

    @property
    def draft(self) -> Draft:
        """The draft of the session's map, with the edits that are not saved in the map's file; the
        session records each edit that is made on this draft.

        Raises LookupError if the session has no map, and ValueError or LookupError if the edits do
        not fit the map's file as it is now.
        """
        if self._draft is None or not self._stands(self._draft):
            self._follow(super().draft)
        return cast("Draft", self._draft)

    def attach(self, path: str | os.PathLike[str]) -> Any:
        """Add a case folder, a dump, a sweep or a folder of captures to the session, and record its
        present sha256.

        Returns the ``Capture``, ``Sweep`` or tuple of captures. A relative path starts from the
        session's folder; if nothing is there, from the working directory. Raises ValueError for a
        path outside the session's folder, and as ``load``.
        """
        where = self._inside(path)
        folders = [where]
        if where.is_dir() and not (where / DESCRIPTION).exists():
            folders = case_folders(where)
        refuse_if(
            not folders,
            where,
            f"a folder without {DESCRIPTION}",
            "is a capture; npulab import makes captures of dumps",
        )
        loaded = []
        kept = dict(self._document["captures"])
        for folder in folders:
            loaded.append(load_any(folder))
            name = self._relative(folder)
            kept[name] = {**kept.get(name, {}), "sha256": sum_of(folder)}
        self._change(lambda d: d.update(captures=kept))
        if folders == [where]:
            return loaded[0]
        return tuple(loaded)

    def use_map(self, path: Any, steps: Iterable[Any] = (), features: Iterable[str] = ()) -> None:
        """Set the register map of the session: either a path, with ``steps`` (edits of a draft that
        are not saved yet, as JSON values), or a draft, whose edits the session records from now
        on.

        ``features`` are the features of the chip. Raises ValueError for a path outside the
        session's folder.
        """
        from npulab.analysis.draft import Draft

        if isinstance(path, Draft):
            if path.path is None:
                raise ValueError(
                    "map: got a draft without a file, allowed is a draft that was saved once"
                )
            self._keep(path)
            self._follow(path)
        else:
            value = self._version(path, steps, features)
            self._follow(None)
            self._change(lambda d: d.setdefault("map", {}).update(value))

    # Methods that add, change or remove items

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
        """Add a note (Markdown) about a field, a register, bytes of a buffer, a capture, or the
        session itself.

        ``capture`` is a path of the session or a capture that is attached. A note that the session
        has already is not added again. Raises ValueError if the arguments do not make a place, and
        if somebody else changed the file; in the second case the note is kept in memory, and
        ``merge`` writes it.
        """
        anchor = Anchor(block, register, field, self._named(capture), buffer, task, offset, size)
        return self._add(Note("", text, anchor, self._author(author), date))

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
        """Add a bookmark: a place to come back to, given with the arguments of ``note``."""
        anchor = Anchor(block, register, field, self._named(capture), buffer, task, offset, size)
        return self._add(Bookmark("", label, anchor, self._author(author), date))

    def _author(self, given: str | None) -> str:
        if given is None:
            return self.author
        return given

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
        """Add a law that somebody accepts: a ``FieldLaw``, or a text together with the field whose
        value it gives.

        ``sweep`` is the path of the captures that show the law. Raises ValueError for a text that
        is not a law.
        """
        text = str(getattr(law, "stated", law))
        field = field or str(getattr(law, "name", ""))
        if not field:
            raise ValueError(
                f"field: got no name for the law {text!r:.80}, allowed is the "
                "name of the field whose value it gives"
            )
        parse_steps(text)
        path = self._named(sweep)
        of = [getattr(law, "_of", None)]
        if path in self._document["captures"]:
            of.append(self.load(path))
        simulated = any(getattr(source, "simulated", False) for source in of)
        if support is None:
            support = sum(getattr(law, "support", ()))
        rivals = len(getattr(law, "rivals", ()))
        by = self._author(by)
        return self._add(AcceptedLaw("", field, text, support, rivals, by, date, path, simulated))

    def journal(
        self, found: Any, *, result: str = "", good: Any = "", bad: Any = "", device: str = ""
    ) -> Bisected:
        """Add the journal of a bisection to the session: its path, or the result of
        ``bisect_fields``.

        ``good`` and ``bad`` are the captures of the bisection, ``device`` is the device that ran
        the trials, as ``npulab bisect`` names it.
        """
        path = found
        if hasattr(found, "journal") and hasattr(found, "sentence"):
            path, result = found.journal.path, result or found.sentence
            good, bad = good or self._or_none(found.good), bad or self._or_none(found.bad)
            if path is None:
                raise ValueError(
                    "journal: got a journal in memory, allowed is a journal in a file; "
                    "bisect_fields writes it with journal=PATH"
                )
        where = self._inside(path)
        need_file(where)
        path = self._relative(where)
        simulated = device == "simulated"
        held = Bisected(path, result, self._named(good), self._named(bad), device, simulated)
        self._change(lambda d: d["journals"].setdefault(path, {}).update(held.kept))
        return held

    def figure(self, picture: Any, caption: str = "", *, code: str = "") -> Figure:
        """Add a picture (of ``npulab``, a matplotlib figure or the bytes of a PNG); its PNG is
        written to a folder next to the session.

        ``caption`` is by default the picture's sentence; ``code`` is the Python that draws it.
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
        """Replace the text of the note with the id ``which``; the id stays. Raises LookupError if
        no note has the id.
        """
        if which not in self._document["notes"]:
            ids = ", ".join(self._document["notes"]) or "none"
            raise LookupError(f"note: got {which!r:.80}, the session has {ids}")
        kept: dict[str, Any] = {"text": as_kept(text)}
        if date:
            kept["date"] = date
        if self._author(author):
            kept["author"] = self._author(author)
        self._change(lambda d: d["notes"][which].update(kept))
        return Note.of(which, self._document["notes"][which])

    def remove(self, which: str) -> None:
        """Remove the item with this id, path or name; raises LookupError for an unknown item."""
        kinds = ("captures", "journals", "views", *BY_ID)
        sections = [kind for kind in kinds if which in self._document[kind]]
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
        """Take away all marks and conflicts that a merge left, or only those of ``which``, an
        item's id or a place in ``conflicts``.
        """

        def settled(d: Document) -> None:
            for kind in BY_ID:
                for key, item in d[kind].items():
                    if which in ("", key):
                        item.pop(MARKS, None)
                    elif which in item.get(MARKS, ()):
                        item[MARKS].remove(which)
            if not which:
                d["conflicts"] = {}
            d["conflicts"].pop(which, None)

        self._change(settled)

    # Methods for views

    def open_view(self, view: Any, name: str = "", **made: Any) -> str:
        """Record the state of a view, which is the open view from now on, and return the name under
        which the session has it.

        ``view`` is a view of ``notebook.widgets`` on captures of the session (``made`` has the
        arguments that the view itself does not keep), or its kind and state as JSON values. A draft
        that the view shows becomes the session's map.
        """
        from npulab.notebook.sessions.views import state_of

        if isinstance(view, Mapping):
            state = dict(view)
        else:
            state = state_of(view, self, made, self.use_map)
        paths = [path for path in map(str, state.values()) if path in self.paths]
        name = name or " ".join([str(state.get("kind", "view")), *paths])
        self._change(lambda d: (d["views"].update({name: state}), d.update(view=name)))
        return name

    def show(self, name: str = "") -> Any:
        """Return the view that the session has under ``name`` (by default the view that was opened
        last) in its recorded state; raises LookupError for an unknown name.
        """
        from npulab.notebook.sessions.views import restored

        name = name or str(self._document.get("view", ""))
        if name not in self._document["views"]:
            names = ", ".join(self._document["views"]) or "none"
            raise LookupError(f"view: got {name!r:.80}, the session has {names}")
        return restored(self.views[name], self)

    # Methods for the session's file

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the session's file, whole or not at all, and return its path; ``path`` gives a
        session in memory its file.

        Raises ValueError if somebody changed the file since it was read (``merge`` takes both
        together), FileExistsError if another file is at ``path``.
        """
        if path is not None and Path(path) != self.path:
            if Path(path).exists():
                raise FileExistsError(f"{path}: is there already, allowed is a new path")
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
        """True if ``data``, the file's present bytes, hold the session as it was last read or
        written: ``fold`` changes the bytes, not the content.
        """
        try:
            return self._bytes is not None and read_session(data, str(self.path)) == self._read
        except ValueError:
            return False

    def _append(self, kind: str, key: str, item: Any) -> None:
        """Save the item that was added last.

        A large file gets the item as a line at its end; it is written anew only when the appended
        lines are a quarter of it, so that the mean time of adding a note does not grow with the
        number of notes.
        """
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
        """True if a line of ``more`` bytes may be appended to the file: the file is large, and its
        appended lines are few.
        """
        held = self._bytes or b""
        behind = len(held) + more - self._whole
        parts = self._weight[1] + 2 * (self._behind + 1)  # each line has two more for its braces
        is_long = self._whole >= SMALL and behind <= self._whole // PART
        return (
            is_long
            and held.endswith(b"\n")
            and len(held) + more <= MOST_BYTES
            and parts <= MOST_PARTS
        )

    def merge(self) -> list[str]:
        """Merge with the changes that somebody else wrote to the file since it was read, and save;
        return the ``conflicts``.
        """
        if self.path is None:
            raise ValueError(
                "merge: got a session in memory, allowed is a session with a file; save(path) "
                "writes the file"
            )
        with locked(self.path):
            if self.path.exists():
                disk, data = on_disk(self.path)
                self._document = merged(self._read, self._document, disk)
                self._weight = weight(self.text.encode())
                self._take(disk, data, _stamp(self.path))
            self.save()
        return self.conflicts

    def report(self, path: str | os.PathLike[str], pictures: Iterable[Any] = ()) -> Path:
        """Write the session as one page, ``.html`` or ``.md`` by the suffix; see
        ``notebook.sessions.report``.

        ``pictures`` are shown after the session's figures: pictures, or pairs of a picture and its
        caption.
        """
        from npulab.notebook.sessions.report import write_report

        return write_report(self, Path(path), pictures)

    def _change(self, change: Callable[[Document], Any]) -> None:
        """Apply ``change`` to the document and save it; raises ValueError, without a change, if a
        file with the result could not be read.
        """
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
        """Add an item under an id made from its content, and return it as the session keeps it.

        If another item has that id already, the id is made from the id and the content.
        """
        kept = item.kept
        key = id_of(item.kind, kept)
        known = self._document[item.kind]
        while key in known and bare(known[key]) != kept:
            key = id_of(item.kind, key, kept)
        if key not in known:
            self._put(item.kind, key, kept)
        return type(item).of(key, self._document[item.kind][key])

    def _put(self, kind: str, key: str, kept: Any) -> None:
        """Add an item and save it. Only the item is checked; but if the session is nearly as large
        as a file may be, the whole session is checked.
        """
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
        """True if the document's map entry describes this draft in its present state."""
        kept = self._document.get("map", {})
        try:
            return kept == {**kept, **self._kept(draft)}
        except (ValueError, OSError):  # somebody else has replaced the draft's file
            return False

    def _kept(self, draft: Draft) -> dict[str, Any]:
        """Return the map entry of the document for a draft; raises ValueError if the draft's file
        is not the result of one of its steps.
        """
        return self._version(draft.path, draft.unsaved, draft.map.features)

    def _version(self, path: Any, steps: Iterable[Any], features: Iterable[str]) -> dict[str, Any]:
        """Return the document's map entry: a map's file, its unsaved steps and its features."""
        where = self._inside(path)
        return {
            "path": self._relative(where),
            "sha256": sum_of(where),
            "steps": list(steps),
            "features": sorted(features),
        }

    def _keep(self, draft: Draft) -> None:
        """Write the present state of a draft into the document's map entry."""
        value = self._kept(draft)
        self._change(lambda d: d.setdefault("map", {}).update(value))

    def _follow(self, draft: Draft | None) -> None:
        """Record the edits of this draft from now on, and stop recording those of the previous
        draft; with None no draft is recorded.
        """
        if self._draft is not None:
            self._draft.unobserve(self._keep)
        self._draft = draft
        if draft is not None:
            draft.observe(self._keep)

    def _named(self, capture: Any) -> str:
        """Return the path of a capture or sweep in the session; a path that the session lacks is
        attached."""
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
        """Return the file or folder at a path in the session's folder; a relative path starts from
        this folder, or, if nothing is there, from the working directory."""
        if not isinstance(path, str | os.PathLike):
            raise ValueError(
                f"path: got {type(path).__name__}, allowed is the path of a file or folder"
            )
        in_folder = self.folder / path
        where = in_folder
        if not in_folder.exists() and not Path(path).is_absolute():
            where = Path(path)
        if not where.exists():
            raise FileNotFoundError(f"{in_folder}: there is no such file or folder")
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
    """Return the session in the file ``path``; a file that does not exist is made, unless
    ``autosave`` is False. See ``Session``.
    """
    if path is not None:
        need_path("session", path)
    return Session(path, author=author, autosave=autosave)


def merge_sessions(base: Any, ours: Any, theirs: Any) -> Session:
    """Merge the sessions of two people: the result has all that either of them added or changed
    since ``base``, and ``conflicts`` to look at.

    Each is a path or a Session; ``base`` may be None or an empty file if the two have nothing in
    common. The result is in memory; ``save`` writes it. Raises ValueError with file and place for
    a file that is not a session.
    """
    start = _document_of(base, may_be_empty=True)
    document = merged(start, _document_of(ours), _document_of(theirs))
    return Session._of(checked(document, "the merge"))


def _document_of(held: Any, may_be_empty: bool = False) -> Document:
    if isinstance(held, Session):
        return copy.deepcopy(held._document)
    if may_be_empty and (held is None or not Path(held).stat().st_size):
        return empty()
    document, _ = on_disk(Path(held))
    return document
