"""A capture out of register accesses alone, as logs of drivers and simulators hold them: no memory,
and no check of memory.

``jobs`` are the operations that were enabled, or one job of all writes if the text does not hold
them whole (``parameters["undivided"]`` says why).  What a read gave back of a register that was
written before is a check: a row of ``parameters["register_checks"]`` each, with the ``line``, the
``register``, ``mask`` and ``value`` and how many writes came before; the buffer ``writes`` has all
writes in order as (offset, value) words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from npulab.captures.capture import Capture, Job
from npulab.captures.target import Range
from npulab.npus.kit.fields import names_of, offsets_of
from npulab.npus.nvdla.events import Event, Read, Write
from npulab.npus.nvdla.facts import TABLES
from npulab.npus.nvdla.operations import operations
from npulab.npus.nvdla.registers import ACCESS, DATA, POINTER, STARTS, accesses
from npulab.registers.map import RegisterMap

WRITES = "writes"
# what the device changes by itself, or gives back in another way than it was written
OWN = (POINTER, ACCESS, DATA)
OWN_PARTS = ("STATUS", "INTR")
GROUPED = "D_"


def block_of_addresses(offsets: Iterable[int], usual: str) -> str:
    """The map that names most of some byte addresses; the usual one if several do."""
    offsets = set(offsets)
    counts = {block: len(offsets & registers.index.keys()) for block, registers in TABLES.items()}
    return usual if counts[usual] == max(counts.values()) else max(counts, key=lambda block: counts[block])


def of_accesses(path: Path, name: str, chip: str, block: str, events: Sequence[Event],
                maps: Mapping[str, RegisterMap]) -> Capture:
    """The capture of register accesses; raises ValueError naming the file if nothing was written."""
    others = [event for event in events if not isinstance(event, Read)]
    writes = [(event.offset, event.value) for event in others if isinstance(event, Write)]
    if not writes:
        raise ValueError(f"{path}: got no register write, allowed is at least one")
    parameters: dict[str, Any] = {"memory": [], "checks": []}
    try:
        found, _ = operations(others, maps[block])
        jobs = tuple(Job.from_writes(block, each.writes, maps[block]) for each in found)
        parameters["operations"] = [{"units": dict(each.units), "inherited": each.inherited, "line": each.line}
                                    for each in found]
    except ValueError as error:
        jobs = (Job.from_writes(block, writes, maps[block]),)
        parameters["undivided"] = [{"reason": str(error)}]
    rows = list(_rows(events, maps[block]))
    buffers = {}
    if rows:
        parameters["register_checks"] = rows
        buffers[WRITES] = np.array(writes, "<u4").tobytes()
    return Capture(name, "nvdla", chip, jobs, buffers, {}, parameters, "RTL simulation", source=str(path), maps=maps)


def register_checks(capture: Capture) -> Iterator[Range]:
    """What each read of a register that was written before gave back, beside the last write to it
    (of its group, if the register is there twice)."""
    rows = capture.parameters.get("register_checks", ())
    writes = np.frombuffer(capture.buffers.get(WRITES, b""), "<u4").reshape(-1, 2).tolist()
    registers = capture.maps[capture.jobs[0].block]
    written = accesses(map(tuple, writes), registers)
    producer: dict[str, int] = {}
    state: dict[tuple[int, int], int] = {}
    at = 0
    for row in rows:
        for one in islice(written, row["writes"] - at):
            producer[one.unit] = one.group
            state[one.offset, one.group * one.register.startswith(GROUPED)] = one.value
        at = row["writes"]
        unit, _, register = row["register"].partition(".")
        group = producer.get(unit, 0) * register.startswith(GROUPED)
        value = state.get((offsets_of(registers)[row["register"]], group))
        if value is not None:
            yield Range(f"{row['register']} (line {row['line']})", (value & row["mask"]).to_bytes(4, "little"),
                        (row["value"] & row["mask"]).to_bytes(4, "little"))


def _rows(events: Sequence[Event], registers: RegisterMap) -> Iterator[dict[str, Any]]:
    """The reads of what a write decides."""
    names, bits = names_of(registers), _named_bits(registers)
    written: set[int] = set()
    count = 0
    for event in events:
        if isinstance(event, Write):
            written.add(event.offset)
            count += 1
        elif isinstance(event, Read) and event.offset in written:
            name = names[event.offset].partition(".")[2]
            waits = name in STARTS and not event.value & event.mask
            mask = event.mask & bits[event.offset]
            if mask and not waits and name not in OWN and not any(part in name for part in OWN_PARTS):
                yield {"line": event.line, "register": names[event.offset], "mask": mask, "value": event.value,
                       "writes": count}


def _named_bits(registers: RegisterMap) -> dict[int, int]:
    """The bits of each register that fields with a name have, by its offset."""
    offsets = {word: offset for offset, word in registers.index.items()}
    out = dict.fromkeys(registers.index, 0)
    for field in registers:
        for piece in field.pieces if not field.automatic else ():
            out[offsets[piece.word]] |= (2 ** piece.width - 1) * 2 ** piece.lsb
    return out
