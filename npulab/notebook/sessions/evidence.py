"""The evidence at the place of a note: the values and bytes that the session's captures have at the
place, the place's description in the register map, and commands that show this evidence again.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from npulab.captures.capture import Capture
from npulab.captures.registry import stated_target
from npulab.notebook.sessions.contents import Contents, read_with
from npulab.notebook.sessions.items import Anchor
from npulab.registers.fields import Field
from npulab.registers.map import RegisterMap
from npulab.registers.names import full_names, in_block

SIMULATED = "simulated"
DEFINED = ("block", "register", "field", "bits", "value", "evidence", "note")
HELD = ("capture", "provenance", "task", "block", "register", "field", "raw", "value", "evidence")
MOST_AGAIN = 4  # an anchor has at most this many commands for the shell, and as many for Python

Row = tuple[str, ...]


@dataclass(frozen=True)
class Evidence:
    """The captures and the map of a session, read once.

    ``found`` has captures and sweeps by path, ``broken`` errors by the path that cannot be read;
    ``captures`` has the captures of ``found``, read with the session's map ``registers``;
    ``wrong`` is the error if this map cannot be read.
    """

    name: str
    found: Mapping[str, Any]
    broken: Mapping[str, str]
    captures: Mapping[str, Capture] = field(repr=False)
    registers: RegisterMap | None = None
    wrong: str = ""

    @classmethod
    def of(cls, session: Contents) -> Evidence:
        found, broken = {}, {}
        for held in session.captures:
            path = held.path
            try:
                found[path] = session.load(path)
            except (ValueError, LookupError, OSError) as error:
                broken[path] = str(error)
        registers, wrong = None, ""
        if session.map is not None:
            try:
                registers = session.registers
            except (ValueError, LookupError, OSError, ImportError) as error:
                wrong = str(error)
        captures = {}
        for path, capture in found.items():
            if isinstance(capture, Capture):
                captures[path] = read_with(capture, registers)
        name = ""
        if session.path:
            name = session.path.name
        return cls(name, found, broken, captures, registers, wrong)

    def at(self, anchor: Anchor) -> dict[str, Capture]:
        """Return by path the captures that an anchor refers to: the capture that the anchor names
        (no capture if it cannot be read), or all captures if the anchor names none.
        """
        if not anchor.capture:
            return dict(self.captures)
        if anchor.capture not in self.captures:
            return {}
        return {anchor.capture: self.captures[anchor.capture]}

    def own_map(self, path: str) -> bool:
        """True if the capture at a path is read with the session's map, not with its target's."""
        return self.captures[path] is not self.found[path]

    def simulated(self, anchor: Anchor) -> str:
        """Return ``" (simulated)"`` if an anchor's capture is simulated, else an empty text."""
        capture = self.captures.get(anchor.capture)
        if capture and capture.simulated:
            return f" ({SIMULATED})"
        return ""

    def defined(self, anchor: Anchor) -> list[Row]:
        """Return the description of an anchor's field or register, as rows of ``DEFINED``: from the
        maps that its captures are read with, or, if they lack it, from the session's map.
        """
        rows: dict[tuple[str, Field], Row] = {}
        for path, capture in self.at(anchor).items():
            for task, block, item, _ in values(capture):
                if matches(anchor, task, block, item):
                    source = ""
                    if not self.own_map(path):
                        source = _source(capture.target, item)
                    rows[block, item] = _row(block, item, source)
        if not rows:
            for item in self.registers or ():
                if matches(anchor, None, item.block, item):
                    rows[item.block, item] = _row(item.block, item, "")
        return list(rows.values())

    def held(self, anchor: Anchor) -> list[Row]:
        """Return the values that the captures have at an anchor, as rows of ``HELD``; if the anchor
        is a whole capture, the rows are its fields that somebody named.
        """
        rows: list[Row] = []
        for path, capture in self.at(anchor).items():
            of_capture = path, origin(capture)
            for task, block, item, raw in values(capture):
                if not matches(anchor, task, block, item):
                    continue
                if anchor.kind == "capture" and item.automatic:
                    continue
                place = str(task), block, item.register, item.name
                rows.append((*of_capture, *place, f"{raw:#x}", str(item.text(raw)), item.evidence))
        return rows

    def bytes_of(self, anchor: Anchor) -> bytes:
        """Return the bytes that an anchor refers to; no bytes if the capture lacks some of them."""
        capture = self.captures.get(anchor.capture)
        if capture is None or anchor.offset is None or anchor.size is None:
            return b""
        buffer = capture.buffers.get(anchor.buffer, b"")
        data = bytes(buffer[anchor.offset : anchor.offset + anchor.size])
        if len(data) < anchor.size:
            return b""
        return data

    def again(self, anchor: Anchor) -> tuple[list[str], list[str]]:
        """Return two lists, commands of the shell and lines of Python, that show what is at an
        anchor; at most ``MOST_AGAIN`` in each.
        """
        if anchor.kind == "session":
            return [], []
        if anchor.kind == "bytes":
            if anchor.offset is None or anchor.size is None or not self.bytes_of(anchor):
                return [], []
            buffer = f"npulab.load({anchor.capture!r}).buffers[{anchor.buffer!r}]"
            return [], [f"{buffer}[{anchor.offset}:{anchor.offset + anchor.size}].hex(' ')"]
        shell = dict[str, None]()
        python = dict[str, None]()
        for path, capture in self.at(anchor).items():
            own = self.own_map(path)
            loaded = f"npulab.load({path!r})"
            if own:
                loaded = f"npulab.session({self.name!r}).decoded({path!r})"
            if anchor.kind == "capture":
                shell[f"npulab show {shlex.quote(path)}"] = None
                python[f"{loaded}.fields"] = None
                continue
            blocks = set()
            fields = dict[tuple[str, Field], None]()
            for task, block, item, _ in values(capture):
                blocks.add(block)
                if matches(anchor, task, block, item):
                    fields[block, item] = None
            for block, item in fields:
                python[f"{loaded}.fields.query({_query(anchor, block, item, blocks)!r})"] = None
                if not own:
                    glob = in_block(_glob(block), _field_glob(anchor, item), blocks)
                    shell[f"npulab show {shlex.quote(path)} --field {shlex.quote(glob)}"] = None
        return [*shell][:MOST_AGAIN], [*python][:MOST_AGAIN]


def _query(anchor: Anchor, block: str, item: Field, blocks: set[str]) -> str:
    """Return the pandas query that selects a field, or its register, in ``capture.fields``."""
    query = f"register == {item.register!r}"
    if anchor.field:
        query = f"field == {item.name!r}"
    if len(blocks) > 1:
        query = f"block == {block!r} and {query}"
    return query


def _field_glob(anchor: Anchor, item: Field) -> str:
    register = _glob(item.register)
    if anchor.field:
        return f"{register}.{_glob(item.name)}"
    return f"{register}.*"


def origin(held: Any) -> str:
    """Return the provenance of a capture or sweep as text, which also says if it was changed."""
    return str(getattr(held, "origin", getattr(held, "provenance", "")))


def values(capture: Capture) -> Iterator[tuple[int, str, Field, int]]:
    """Yield (task, block, field, raw) for every field of every job."""
    for task, job in enumerate(capture.jobs):
        for block, item, raw in job.values(capture.maps):
            yield task, block, item, int(raw)


def matches(anchor: Anchor, task: int | None, block: str, item: Field) -> bool:
    """True if an anchor refers to a field of a job; the anchor's field may be a full name, with
    register and block in front."""
    names = full_names(block, item.register, item.name)
    return (
        (not anchor.field or anchor.field in names)
        and anchor.register in ("", item.register)
        and anchor.block in ("", block)
        and (None in (task, anchor.task) or task == anchor.task)
    )


def _row(block: str, item: Field, source: str) -> Row:
    evidence = item.evidence
    if source:
        evidence = f"{item.evidence}: {source}"
    return (
        block,
        item.register,
        item.name,
        item.bits,
        str(item.meaning) or "raw",
        evidence,
        item.note,
    )


def _source(name: str, item: Field) -> str:
    """Return the title of the source that a field's evidence cites, as its target states it; an
    empty text if the source is not known.
    """
    try:
        return stated_target(name).sources.get(item.evidence, "")
    except (LookupError, ValueError):
        return ""


def _glob(name: str) -> str:
    """Return a glob that matches ``name`` only: the glob signs in it are escaped."""
    return re.sub(r"([*?\[])", r"[\1]", name)
