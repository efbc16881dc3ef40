"""A register map in the making: named edits, undo, and files that change as little as possible."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npulab.analysis.draft import disk
from npulab.analysis.draft.edits import edited
from npulab.analysis.draft.sheet import unified
from npulab.analysis.draft.table import MapTable
from npulab.captures.capture import ROWS_SHOWN, Capture
from npulab.registers.formats.tables import RegisterTable
from npulab.registers.map import RegisterMap
from npulab.registers.table import ENUMS, enums_beside
from npulab.support.files import replace_files, write_files
from npulab.support.refuse import need, need_all, need_path
from npulab.support.text import plural

NAME = "registers.csv"
# ``split`` takes each of these as one place; if it is no whole number, the edit refuses it.
NUMBERS = (int, float, np.integer)
SUFFIX = ".csv"
AGAIN = (
    ", allowed is a file as it was read; save to another path, or open it again and replay the "
    "edits"
)


class EditStep(NamedTuple):
    """An edit that was made: its arguments, as types of JSON, its sentence, and the table
    after it.
    """

    edit: Mapping[str, Any]
    sentence: str
    table: MapTable


class Draft:
    """A register map being made.

    Every edit is a named step with undo and redo. An edit after which the table makes no map is
    refused with the map's own sentence (ValueError or LookupError), and nothing changes. ``map`` is
    the map after the last step; callbacks given to ``observe`` are called after each step. Bits
    without a name can be named and split by their automatic name.

    >>> import npulab
    >>> made = npulab.draft(1, block="NN")
    >>> made.split("w0_0_32", widths=[4, 28], names=["mode", ""])
    >>> made.retype("mode", names={0: "off", 1: "on"})
    >>> made.steps
    ['split w0_0_32 into mode (4), no name (28)', 'retype mode as enum:mode (0 off, 1 on)']
    >>> made.undo()
    'retype mode as enum:mode (0 off, 1 on)'
    >>> made.map.mode.bits
    '0[3:0]'
    """

    def __init__(
        self, table: MapTable, path: Path | None = None, files: disk.Contents | None = None
    ) -> None:
        self.path = path
        self._files = dict(files or {})
        self._table = table
        self._first = table.bare
        # Every edit that was made; the first ``_count`` of them are not taken back. Only
        # ``_table``, the table after these, keeps its map in memory.
        self._made: list[EditStep] = []
        self._count = 0
        self._observers: list[Callable[[Draft], object]] = []
        self._valid: list[Collection[str]] = [table.features]
        for feature in table.wanted:
            if _makes_map(table, [feature]):
                self._valid.append({feature})
        self._check(table)

    # ---- what it is ----

    @property
    def _past(self) -> list[EditStep]:
        return self._made[: self._count]

    @property
    def map(self) -> RegisterMap:
        """The register map as it is now."""
        return self._table.map

    @property
    def table(self) -> RegisterTable:
        """The table as it is now, with the rows of all features, as a ``RegisterTable``."""
        return self._table.register_table

    @property
    def steps(self) -> list[str]:
        """The sentence of each edit that was made and not taken back."""
        return [step.sentence for step in self._past]

    @property
    def undone(self) -> list[str]:
        """The sentence of each edit that ``redo`` would make, the next one first."""
        return [step.sentence for step in self._made[self._count :]]

    @property
    def edits(self) -> list[dict[str, Any]]:
        """The edits of ``steps`` as dicts of JSON types, which ``replay`` takes."""
        return [dict(step.edit) for step in self._past]

    @property
    def name(self) -> str:
        """The path of the draft's file, or the names of its blocks if it has no file."""
        if self.path:
            return self.path.as_posix()
        blocks = dict.fromkeys(block for block, _, _ in self.map.registers if block)
        return ", ".join(blocks) or "draft"

    @property
    def saved(self) -> bool:
        """True if the draft's files, as last read or saved, hold what the draft has now."""
        return self.path is not None and all(
            self._files[path] == data for path, data in self._contents().items()
        )

    @property
    def unsaved(self) -> list[dict[str, Any]]:
        """The last edits, those that the draft's file on the disk lacks, as dicts that ``replay``
        takes.

        Raises ValueError if the draft has no file, or if the file is as no step of the draft left
        it.
        """
        if self.path is None:
            raise ValueError(
                "unsaved: got a draft without a file, allowed is one that was saved once"
            )
        files = self.path, enums_beside(self.path) or self.path.parent / ENUMS
        now = [disk.read(path) or b"" for path in files]
        tables = [self._first, *(step.table for step in self._past)]
        for count, table in reversed([*enumerate(tables)]):
            same = table.sheet.text.encode() == now[0]
            if same and (not table.enums.lines or table.enums.text.encode() == now[1]):
                return self.edits[count:]
        raise ValueError(
            f"{self.path}: got a file that no step of the draft left, allowed is the file as it "
            "was opened or as a step left it"
        )

    # ---- edits ----

    def rename(self, field: str, name: str) -> None:
        """Give a name to a field or to bits without a name."""
        self.edit("rename", field=field, name=name)

    def rename_register(self, register: str, name: str) -> None:
        """Give a register another name, in all rows that it has."""
        self.edit("rename_register", register=register, name=name)

    def split(
        self,
        field: str,
        at: int | Sequence[int] = (),
        names: Sequence[str] = (),
        *,
        widths: Sequence[int] = (),
    ) -> None:
        """Cut a field into parts, from the low end of its value: before the bits ``at`` of the
        value, or into parts of ``widths`` bits.

        Without ``names`` the lowest part keeps the field's name and the other parts have no name; a
        blank name leaves its part without a name. All parts are plain numbers and keep the field's
        evidence.
        """
        if isinstance(at, NUMBERS):
            at = [at]
        cuts = need_all(f"split {field}: at", at, NUMBERS, "is a bit or a list")
        widths = need_all(f"split {field}: widths", widths, object, "are whole numbers")
        if bool(cuts) == bool(widths):
            got = "neither at nor widths"
            if cuts:
                got = "both at and widths"
            raise ValueError(f"split {field}: got {got}, allowed is either at or widths")
        if cuts:
            widths = [b - a for a, b in pairwise([0, *cuts, self.map[field].width])]
        self.edit("split", field=field, widths=[*widths], names=[*names])

    def join(self, low: str, high: str, name: str = "") -> None:
        """Make one field of two, the bits of ``high`` above those of ``low``: one row if they are
        neighbours in a register (named in either order), else a split field."""
        self.edit("join", low=low, high=high, name=name)

    def retype(self, field: str, value: str = "", names: Mapping[int, str] | None = None) -> None:
        """Set how the raw number becomes the value, as the column ``value`` of a map says it
        (``*4``); blank stands for a plain number.

        ``names`` by raw number go into the enum NAME of a value ``enum:NAME`` (without a value,
        into an enum with the field's name); a blank name removes the name of its number.
        """
        need(f"retype {field}: names", names, (Mapping, type(None)), "are names by raw")
        texts = {str(raw): name for raw, name in (names or {}).items()}
        self.edit("retype", field=field, value=value, names=texts)

    def set_evidence(self, field: str, evidence: str) -> None:
        """Set the evidence of a field: the code of a source, ``C:<case>``, ``guess`` or
        ``unknown``.
        """
        self.edit("set_evidence", field=field, evidence=evidence)

    def set_note(self, field: str, note: str) -> None:
        """Set the note of a field: one line that says what is known of it."""
        self.edit("set_note", field=field, note=note)

    def set_address(self, field: str, address: bool = True) -> None:
        """Mark a field as an address in memory, or as no address; a diff lists addresses apart."""
        self.edit("set_address", field=field, address=address)

    def add(
        self,
        name: str,
        register: str | int,
        lsb: int,
        width: int,
        *,
        offset: int | None = None,
        value: str = "",
        evidence: str = "guess",
        note: str = "",
    ) -> None:
        """Name bits that have no name. ``register`` is the name, or the number of the word, of
        their register; with an ``offset`` it is the name of a new register.
        """
        self.edit(
            "add",
            name=name,
            register=register,
            lsb=lsb,
            width=width,
            offset=offset,
            value=value,
            evidence=evidence,
            note=note,
        )

    def remove(self, field: str) -> None:
        """Remove the name of a field and everything stated about it; its bits have automatic names
        again.
        """
        self.edit("remove", field=field)

    def move(self, field: str, register: str | int, lsb: int, width: int = 0) -> None:
        """Move a field of one run of bits to bits without a name, with its own width or with
        ``width``.
        """
        self.edit("move", field=field, register=register, lsb=lsb, width=width)

    def resize(self, field: str, width: int, *, shift: bool = False) -> None:
        """Give a field of one run of bits another width; its lowest bit stays where it is.

        With ``shift`` the field and everything after it in its block is laid out anew, as C lays
        out bit-fields: one after the other, and in the next word if the current word has too few
        bits left. A field after a gap that C would not have made keeps its place, unless an earlier
        field is moved onto it.
        """
        self.edit("resize", field=field, width=width, shift=shift)

    def shift(self, field: str, by: int, out_of: str = "") -> None:
        """Move a field by ``by`` bits in its register (down if negative), with all fields between
        it and the run that gives up bits for this.

        The giving run loses as many bits. It is a run of the field ``out_of``, by default the next
        run without a name that has enough bits.
        """
        self.edit("shift", field=field, by=by, out_of=out_of)

    def edit(self, do: str, **arguments: Any) -> None:
        """Make an edit by its name, with arguments of types that JSON has.

        Raises ValueError or LookupError if the edit is unknown or the edited table makes no map;
        then nothing changes.
        """
        self._make([self._step(self._table, {"do": do, **arguments})])

    def replay(self, edits: Iterable[Mapping[str, Any]]) -> None:
        """Apply a list of edits, each a dict as in the property ``edits``. If one edit is refused,
        none is applied.

        Raises the error of ``edit``, with the number of the edit in front.
        """
        table, steps = self._table, []
        edits = need_all("replay", edits, object, "are edits, as draft.edits has them")
        for number, edit in enumerate(edits, 1):
            try:
                steps.append(self._step(table, edit))
            except (ValueError, LookupError) as error:
                raise type(error)(f"edit {number}: {error}") from None
            table = steps[-1].table
        self._make(steps)

    def undo(self) -> str:
        """Take back the last edit and return its sentence; blank if there was no edit."""
        return self._go(self._count - 1)

    def redo(self) -> str:
        """Make the edit again that was taken back last, and return its sentence; blank if none was
        taken back.
        """
        return self._go(self._count + 1)

    def _go(self, count: int) -> str:
        """Go to the table after the first ``count`` edits. Return the sentence of the edit that
        this takes back or makes again; "" if there is none.
        """
        if not 0 <= count <= len(self._made):
            return ""
        sentence = self._made[min(count, self._count)].sentence
        self._count = count
        self._table = self._first
        if count:
            self._table = self._made[count - 1].table
        self._tell()
        return sentence

    def _step(self, table: MapTable, edit: Mapping[str, Any]) -> EditStep:
        table, sentence, plain = edited(table, edit)
        self._check(table)
        return EditStep(plain, sentence, table)

    def _make(self, steps: Sequence[EditStep]) -> None:
        new = []
        for step in steps:
            if step.table != self._table:
                new.append(step._replace(table=step.table.bare))
            self._table = step.table
        if new:
            self._made[self._count :] = new
            self._count = len(self._made)
            self._tell()

    def _check(self, table: MapTable) -> None:
        """Raise an error if the table makes no map for the draft's features, or none for a feature
        for which it made one when the draft was opened.
        """
        _ = table.map
        for features in self._valid[1:]:
            table.select(features)

    # ---- callbacks and captures ----

    def observe(self, callback: Callable[[Draft], object]) -> None:
        """Call ``callback`` with the draft after each edit, undo, redo and save."""
        if callback not in self._observers:
            self._observers.append(callback)

    def unobserve(self, callback: Callable[[Draft], object]) -> None:
        """Stop calling ``callback``; nothing happens if it was not given to ``observe``."""
        if callback in self._observers:
            self._observers.remove(callback)

    def _tell(self) -> None:
        for callback in tuple(self._observers):
            callback(self)

    def decode(self, capture: Capture, block: str = "") -> Capture:
        """Return the same capture, read with the map as it is now.

        The map replaces the capture's map of ``block``. Without ``block`` it replaces the maps of
        all blocks that it names; if there are none, the map that has most registers in common with
        it; else the map of the capture's only block. For a job of register writes, the words become
        the state that the writes leave in the map's registers. Raises LookupError for a capture
        without such a block, ValueError if the capture has more or fewer words than the map.
        """
        need("decode", capture, Capture, "is a Capture, as npulab.load gives")
        need("decode: block", block, str, "is the name of a block")
        blocks = [block]
        if not block:
            blocks = blocks_of(self.map, capture)
        for name in blocks:
            capture = read_with(self.map, capture, name)
        return capture

    def block_of(self, capture: Capture) -> str:
        """Return the block of a capture that ``decode`` reads with the map; raises LookupError if
        the capture has none."""
        need("block_of", capture, Capture, "is a Capture, as npulab.load gives")
        return blocks_of(self.map, capture)[0]

    # ---- files ----

    def diff(self) -> str:
        """Return what ``save`` would change, as a unified diff; blank if nothing would."""
        out: list[str] = []
        for path, data in self._contents().items():
            before, after = (disk.text_of(path, each or b"") for each in (self._files[path], data))
            out.append(unified(path.as_posix(), before, after))
        return "".join(out)

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the table, and its enums next to it; if one of the files cannot be written, neither
        is. Lines whose cells are unchanged keep their bytes.

        Without ``path`` the draft's own file is written. Raises ValueError if there is neither a
        path nor a file, for a suffix other than ``.csv``, and if a file was changed on the disk
        since it was read; FileExistsError if something is at a new path already.
        """
        if path is not None:
            need_path("save", path)
        if path is not None and Path(path) != self.path:
            self._save_as(Path(path))
            return Path(path)
        if self.path is None:
            raise ValueError("save: got no path, allowed is a path where no file is")
        after = {each: data for each, data in self._contents().items() if data != self._files[each]}
        replace_files(self._files, self._ordered(after), AGAIN)
        self._files.update(after)
        self._tell()
        return self.path

    def _save_as(self, path: Path) -> None:
        if path.name == ENUMS:
            raise ValueError(
                f"{path}: got the name of the table of enums, which is saved next to it, allowed "
                "is another name"
            )
        if path.suffix != SUFFIX:
            raise ValueError(
                f"{path}: got {path.suffix or 'no suffix'}, allowed is {SUFFIX}; "
                "npulab.write_map(draft.table, path) writes other formats"
            )
        files = {path: self._table.sheet.text.encode()}
        enums = self._table.enums.text.encode()
        beside = path.parent / ENUMS
        if enums and disk.read(beside) != enums:
            files[beside] = enums
        write_files(files)
        self.path = path
        self._files = {path: files[path], beside: enums or disk.read(beside)}
        self._tell()

    def _ordered(self, after: dict[Path, bytes]) -> dict[Path, bytes]:
        """Return the files in the order in which they are written. The file of enums comes first,
        unless it loses a line: so the table on the disk has its enums at every moment.
        """
        *_, (path, data) = after.items() or [(self.path or Path(NAME), b"")]
        lost = {*(self._files[path] or b"").splitlines()} - {*data.splitlines()}
        if path == self.path or lost:
            return after
        return dict(reversed(after.items()))

    def _contents(self) -> dict[Path, bytes]:
        """Return the bytes that the draft's files should have, by path; the file of enums is left
        out if there are no enums and no such file.
        """
        path = self.path or Path(NAME)
        beside = enums_beside(path) or path.parent / ENUMS
        self._files.setdefault(path, None)
        self._files.setdefault(beside, None)
        out = {path: self._table.sheet.text.encode()}
        if self._table.enums.lines or self._files[beside] is not None:
            out[beside] = self._table.enums.text.encode()
        return out

    def __repr__(self) -> str:
        steps = plural(self._count, "step")
        saved = "not saved"
        if self.saved:
            saved = "saved"
        return f"Draft({self.name}: {len(self.map)} words, {steps}, {saved})"

    def _repr_html_(self) -> str:
        shown = self.steps[-ROWS_SHOWN:]
        first = self._count - len(shown) + 1
        return (
            f"<p>{html.escape(repr(self))}</p><ol start='{first}'>"
            + "".join(f"<li>{html.escape(step)}</li>" for step in shown)
            + "</ol>"
        )


def _makes_map(table: MapTable, features: Iterable[str]) -> bool:
    try:
        table.select(features)
    except (ValueError, LookupError):
        return False
    return True


def read_with(registers: RegisterMap, capture: Capture, block: str) -> Capture:
    """Return the same capture with another map for one block; the words of a job of register writes
    become the state of the map's registers.

    Raises LookupError for a block that the capture does not have, ValueError if a job has more or
    fewer words than the map.
    """
    if block not in capture.maps and block not in {job.block for job in capture.jobs}:
        raise LookupError(
            f"capture {capture.name}: got block {block!r}, it has "
            f"{', '.join(dict.fromkeys(job.block for job in capture.jobs))}"
        )
    if block in {name for name, _, _ in registers.registers}:
        registers = registers.of_block(block)
    jobs = []
    for job in capture.jobs:
        if job.block == block and job.writes:
            job = job.read_with(registers)
        elif job.block == block and len(job.words) != len(registers):
            more = ""
            if not registers.dense:
                more = "; draft(..., dense=True) has the words between its registers, too"
            raise ValueError(
                f"words: got {len(job.words)}, allowed is {len(registers)} (block {block}){more}"
            )
        jobs.append(job)
    return replace(capture, jobs=tuple(jobs), maps={**capture.maps, block: registers})


def blocks_of(registers: RegisterMap, capture: Capture) -> list[str]:
    """Return the blocks of a capture that a map describes: the blocks that the map names, else the
    block whose own map has most registers in common with it, else the only block.

    Raises LookupError if there is no such block.
    """
    mine = {(block, offset) for block, offset, _ in registers.registers}
    blocks = list(dict.fromkeys(block for block, _, _ in registers.registers))
    of_jobs = dict.fromkeys(job.block for job in capture.jobs)
    known = list({**of_jobs, **dict.fromkeys(capture.maps)})
    named = [block for block in known if block in blocks]
    if named:
        return named
    most, best = 0, ""
    for block in known:
        if block in capture.maps:
            shared = len(mine & {place[:2] for place in capture.maps[block].registers})
            if shared > most:
                most, best = shared, block
    if most:
        return [best]
    if len(of_jobs) == 1:
        return [capture.jobs[0].block]
    raise LookupError(
        f"capture {capture.name}: got blocks {', '.join(known)}, allowed is one of the map's "
        f"blocks ({', '.join(map(repr, blocks))}); block= says which block the map is for"
    )
