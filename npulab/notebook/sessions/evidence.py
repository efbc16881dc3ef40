"""What a session's captures and map say at a place, and how to see it again."""

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
MOST_AGAIN = 4  # captures whose commands are given

Row = tuple[str, ...]


@dataclass(frozen=True)
class Evidence:
    """The captures and sweeps of a session by path (``found``; the captures read with the session's
    map in ``captures``), why others cannot be read (``broken``), the map, and why there is none
    (``wrong``)."""

    name: str
    found: Mapping[str, Any]
    broken: Mapping[str, str]
    captures: Mapping[str, Capture] = field(repr=False)
    registers: RegisterMap | None = None
    wrong: str = ""

    @classmethod
    def of(cls, session: Contents) -> Evidence:
        found, broken = {}, {}
        for one in session.captures:
            try:
                found[one.path] = session.load(one.path)
            except (ValueError, LookupError, OSError) as error:
                broken[one.path] = str(error)
        registers, wrong = None, ""
        if session.map is not None:
            try:
                registers = session.registers
            except (ValueError, LookupError, OSError, ImportError) as error:
                wrong = str(error)
        captures = {
            path: read_with(one, registers)
            for path, one in found.items()
            if isinstance(one, Capture)
        }
        return cls(
            session.path.name if session.path else "", found, broken, captures, registers, wrong
        )

    def at(self, anchor: Anchor) -> dict[str, Capture]:
        """The captures an anchor speaks of, by path."""
        return {path: one for path, one in self.captures.items() if anchor.capture in ("", path)}

    def own_map(self, path: str) -> bool:
        """Whether a capture is read with the session's map."""
        return self.captures[path] is not self.found[path]

    def simulated(self, anchor: Anchor) -> str:
        """What is said of an anchor in a simulated capture."""
        capture = self.captures.get(anchor.capture)
        if capture and capture.simulated:
            return f" ({SIMULATED})"
        return ""

    def defined(self, anchor: Anchor) -> list[Row]:
        """What the map says of a field or register now, as ``DEFINED``; of the captures' own map
        where the session has none."""
        rows: dict[tuple[str, Field], Row] = {}
        for path, capture in self.at(anchor).items():
            for task, block, item, _ in values(capture):
                if matches(anchor, task, block, item):
                    if self.own_map(path):
                        source = ""
                    else:
                        source = _source(capture.target, item)
                    rows[block, item] = _row(block, item, source)
        for item in self.registers or () if not rows else ():
            if matches(anchor, None, item.block, item):
                rows[item.block, item] = _row(item.block, item, "")
        return list(rows.values())

    def held(self, anchor: Anchor) -> list[Row]:
        """What the captures have there, as ``HELD``; of a whole capture the fields that somebody
        named."""
        return [
            (
                path,
                origin(capture),
                str(task),
                block,
                item.register,
                item.name,
                f"{raw:#x}",
                str(item.text(raw)),
                item.evidence,
            )
            for path, capture in self.at(anchor).items()
            for task, block, item, raw in values(capture)
            if matches(anchor, task, block, item)
            and (anchor.kind != "capture" or not item.automatic)
        ]

    def bytes_of(self, anchor: Anchor) -> bytes:
        """The bytes an anchor speaks of; none where the capture does not hold all of them."""
        capture = self.captures.get(anchor.capture)
        if capture is None or anchor.offset is None or anchor.size is None:
            return b""
        data = bytes(
            capture.buffers.get(anchor.buffer, b"")[anchor.offset : anchor.offset + anchor.size]
        )
        if len(data) == anchor.size:
            return data
        return b""

    def again(self, anchor: Anchor) -> tuple[list[str], list[str]]:
        """Commands of the shell and lines of Python that show what is at an anchor; none where
        nothing is."""
        if anchor.kind == "session":
            return [], []
        if anchor.kind == "bytes":
            if anchor.offset is None or anchor.size is None or not self.bytes_of(anchor):
                return [], []
            return [], [
                f"npulab.load({anchor.capture!r}).buffers[{anchor.buffer!r}]"
                f"[{anchor.offset}:{anchor.offset + anchor.size}].hex(' ')"
            ]
        shell, python = dict[str, None](), dict[str, None]()
        for path, capture in self.at(anchor).items():
            own = self.own_map(path) and self.name
            if own:
                loaded = f"npulab.session({self.name!r}).decoded({path!r})"
            else:
                loaded = f"npulab.load({path!r})"
            if anchor.kind == "capture":
                shell[f"npulab show {shlex.quote(path)}"] = None
                python[f"{loaded}.fields"] = None
            found = []
            if anchor.kind != "capture":
                found = [one[:3] for one in values(capture)]
            blocks = {block for _, block, _ in found}
            for block, item in {
                (block, item): None
                for task, block, item in found
                if matches(anchor, task, block, item)
            }:
                if anchor.field:
                    column, name = "field", item.name
                else:
                    column, name = "register", item.register
                several = ""
                if len(blocks) > 1:
                    several = f"block == {block!r} and "
                python[f"{loaded}.fields.query({f'{several}{column} == {name!r}'!r})"] = None
                if not own:
                    glob = f"{_glob(item.register)}.{_glob(item.name) if anchor.field else '*'}"
                    glob = in_block(_glob(block), glob, blocks)
                    shell[f"npulab show {shlex.quote(path)} --field {shlex.quote(glob)}"] = None
        return [*shell][:MOST_AGAIN], [*python][:MOST_AGAIN]


def origin(one: Any) -> str:
    """Where a capture or sweep is from, and whether it was changed since."""
    return str(getattr(one, "origin", getattr(one, "provenance", "")))


def values(capture: Capture) -> Iterator[tuple[int, str, Field, int]]:
    """(task, block, field, raw) of every field."""
    for task, job in enumerate(capture.jobs):
        for block, item, raw in job.values(capture.maps):
            yield task, block, item, int(raw)


def matches(anchor: Anchor, task: int | None, block: str, item: Field) -> bool:
    """Whether an anchor speaks of a field of a job; its name may have register and block in
    front."""
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
    """Where the evidence of a field is from, as its target has it."""
    try:
        return stated_target(name).sources.get(item.evidence, "")
    except (LookupError, ValueError):
        return ""


def _glob(name: str) -> str:
    """A name as a pattern that only it matches."""
    return re.sub(r"([*?\[])", r"[\1]", name)
