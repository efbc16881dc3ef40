"""Captures out of a trace's events, or out of register accesses alone.

``jobs`` are its operations; ``buffers`` its images by file stem, zero where no record says, with
their addresses by the same names. ``parameters`` holds the rest that a run needs:

* ``memory``: the loads of memory in order: ``task`` (how many operations run before), ``memory``,
  ``address``, ``size``, ``line``, the ``buffer`` that is put there ("": it is zeroed), and ``runs``
  (offset, size) of the bytes that the image states, if the other bytes keep older values that may
  not be zero; the buffer of a ``packed`` row holds the bytes of its runs only (an image that
  reaches far);
* ``checks``: the expected memory: ``task`` operations run before, ``memory``, ``address``,
  ``size``, ``line``, ``name`` of the event, and ``crc`` (CRC-32) or else the ``buffer`` that begins
  with the bytes;
* ``operations``: for each job the ``units`` with their groups, how many of its writes were
  ``inherited``, and the ``line`` of its last enable;
* ``waits``: the polls, reads and interrupts of the trace, as ``waits`` describes them;
* ``endless``: the polls that never end, because the value that they wait for has a bit outside of
  their mask.

Register accesses alone, as in logs of drivers and simulators, have neither memory nor checks of it.
If the text does not hold whole operations, a single job has all writes and
``parameters["undivided"]`` says why. A read of a register that was written before is a row of
``parameters["register_checks"]``: the ``line``, the ``register``, ``mask`` and ``value`` and how
many ``writes`` came before; the buffer ``writes`` has all writes in order as (offset, value) words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from npulab.captures.capture import COMMANDS, WAITS, Capture, Job
from npulab.npus.kit import Range, RegisterMap, names_of, offsets_of, refuse_if
from npulab.npus.nvdla.events import Check, Event, Load, Read, Write, Zero
from npulab.npus.nvdla.facts import (
    ACCESS,
    ANY_MEMORY,
    DATA,
    MOST_MEMORY,
    POINTER,
    STARTS,
    TABLES,
    Pair,
)
from npulab.npus.nvdla.images import Image, merged
from npulab.npus.nvdla.operations import checked_after, operations
from npulab.npus.nvdla.registers import accesses
from npulab.npus.nvdla.waits import ENDLESS, endless_rows, wait_rows

MOST_RUNS = 2**16  # most runs of an image that are kept as parameters
WRITES = "writes"
Row = dict[str, Any]  # a row of a table in a capture's parameters
# Registers that the device changes by itself, or reads back differently than written.
OWN = (POINTER, ACCESS, DATA)
OWN_PARTS = ("STATUS", "INTR")
GROUPED = "D_"


def block_of_addresses(offsets: Iterable[int]) -> str:
    """Return the map that names most of some byte addresses; the full map if both name as many."""
    offsets = set(offsets)
    return max("FULL", "SMALL", key=lambda block: len(offsets & TABLES[block].index.keys()))


def of_accesses(
    path: Path,
    name: str,
    chip: str,
    block: str,
    events: Sequence[Event],
    maps: Mapping[str, RegisterMap],
) -> Capture:
    """Return the capture of register accesses; ValueError naming the file if nothing was
    written."""
    writes = [(event.offset, event.value) for event in events if isinstance(event, Write)]
    refuse_if(not writes, path, "no register write", "is at least one")
    parameters: Row = {"memory": [], "checks": []}
    try:
        found, _ = operations(events, maps[block])
        jobs = tuple(Job.from_writes(block, operation.writes, maps[block]) for operation in found)
        parameters["operations"] = [operation.row for operation in found]
    except ValueError as error:
        jobs = (Job.from_writes(block, writes, maps[block]),)
        parameters["undivided"] = [{"reason": str(error)}]
    rows = list(_rows(events, maps[block]))
    buffers = {}
    stuck = endless_rows(events, names_of(maps[block]))
    if stuck:
        parameters[ENDLESS] = stuck
    if rows:
        parameters["register_checks"] = rows
        buffers[WRITES] = np.array(writes, "<u4").tobytes()
    return Capture(
        name,
        "nvdla",
        chip,
        jobs,
        buffers,
        {},
        parameters,
        "RTL simulation",
        source=str(path),
        maps=maps,
    )


def register_checks(capture: Capture) -> Iterator[Range]:
    """Yield each read of a register that was written before, with the last write to it (of its
    group, if each group has the register)."""
    rows = capture.parameters.get("register_checks", ())
    writes = np.frombuffer(capture.buffers.get(WRITES, b""), "<u4").reshape(-1, 2).tolist()
    registers = capture.maps[capture.jobs[0].block]
    written = accesses(map(tuple, writes), registers)
    producer: dict[str, int] = {}
    state: dict[Pair, int] = {}
    at = 0
    for row in rows:
        for write in islice(written, row["writes"] - at):
            producer[write.unit] = write.group
            state[write.offset, write.group * write.register.startswith(GROUPED)] = write.value
        at = row["writes"]
        unit, _, register = row["register"].partition(".")
        group = producer.get(unit, 0) * register.startswith(GROUPED)
        value = state.get((offsets_of(registers)[row["register"]], group))
        if value is not None:
            yield Range(
                f"{row['register']} (line {row['line']})",
                (value & row["mask"]).to_bytes(4, "little"),
                (row["value"] & row["mask"]).to_bytes(4, "little"),
            )


def _rows(events: Sequence[Event], registers: RegisterMap) -> Iterator[Row]:
    """Yield the reads of registers whose value a write decides."""
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
            changes = name in OWN or any(word in name for word in OWN_PARTS)
            if mask and not waits and not changes:
                yield {
                    "line": event.line,
                    "register": names[event.offset],
                    "mask": mask,
                    "value": event.value,
                    "writes": count,
                }


def _named_bits(registers: RegisterMap) -> dict[int, int]:
    """Return the bits of each register that named fields have, by its offset."""
    named = registers.coverage().named.tolist()
    return {offset: named[word] for offset, word in registers.index.items()}


def captured(
    path: Path,
    name: str,
    chip: str,
    block: str,
    events: Sequence[Event],
    maps: Mapping[str, RegisterMap],
) -> Capture:
    """Return the capture of a trace; ValueError naming file and line if it is cut short or does not
    add up.

    A trace that checks registers and no memory is read by ``of_accesses``.
    """
    if not any(isinstance(event, Check) for event in events):
        reads = any(isinstance(event, Read) for event in events)
        if reads and not isinstance(events[-1], Write):
            return of_accesses(path, name, chip, block, events, maps)
        raise ValueError(
            f"{path}, line {events[-1].line if events else 1}: ends before a check, allowed is at "
            "least one: it is cut short"
        )
    try:
        found, before = operations(events, maps[block])
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from None
    images: dict[str, Image] = {}
    memory, addresses = _memory(path, events, before, images)
    checks = _checks(path, events, checked_after(events, before, found), memory, images)
    jobs = tuple(Job.from_writes(block, operation.writes, maps[block]) for operation in found)
    parameters: Row = {
        "memory": memory,
        "checks": checks,
        "operations": [operation.row for operation in found],
        WAITS: wait_rows(events, found, names_of(maps[block])),
    }
    stuck = endless_rows(events, names_of(maps[block]))
    if stuck:
        parameters[ENDLESS] = stuck
    return Capture(
        name,
        "nvdla",
        chip,
        jobs,
        {key: image.data for key, image in images.items()},
        addresses,
        parameters,
        "RTL simulation",
        source=str(path),
        maps=maps,
    )


def _buffer_name(images: dict[str, Image], image: Image) -> str:
    """Return the name of an image's buffer in ``images``, to which each image is added once."""
    name = image.name
    number = 1
    while name == COMMANDS or (name in images and images[name].data != image.data):
        number += 1
        name = f"{image.name}-{number}"
    images.setdefault(name, image)
    return name


def _memory(
    path: Path,
    events: Sequence[Event],
    before: Sequence[int],
    images: dict[str, Image],
) -> tuple[list[Row], dict[str, int]]:
    out: list[Row] = []
    addresses: dict[str, int] = {}
    zeroed: dict[str, list[Pair]] = {}
    loaded: list[Pair] = []
    total = 0
    for event, task in zip(events, before, strict=True):
        if not isinstance(event, Zero | Load):
            continue
        where = f"{path}, line {event.line}"
        if isinstance(event, Zero):
            size = event.size
        else:
            size = event.image.extent
        row: Row = {
            "task": task,
            "memory": event.memory,
            "address": event.address,
            "size": size,
            "buffer": "",
            "line": event.line,
        }
        out.append(row)
        total += size
        if total > MOST_MEMORY:
            raise ValueError(
                f"{where}: got {total} bytes of memory in all, allowed are up to {MOST_MEMORY}"
            )
        if isinstance(event, Zero):
            zeroed.setdefault(event.memory, []).append((event.address, size))
            continue
        image = event.image
        address = event.address
        stop = address + size
        if not image.packed:
            ranges = zeroed.get(event.memory, [])
            _within(where, f"{event.file} of {size:#x} bytes", address, size, ranges)
        row["buffer"] = _buffer_name(images, image)
        addresses.setdefault(row["buffer"], address)
        kept = task > 0 or any(address < end and start < stop for start, end in loaded)
        if image.packed:
            row["packed"] = True
        if image.packed or (kept and not image.whole):
            if len(image.runs) > MOST_RUNS:
                raise ValueError(
                    f"{where}: got {len(image.runs)} runs of bytes in {event.file} over what was "
                    f"there, allowed are {MOST_RUNS}"
                )
            row["runs"] = image.runs.tolist()
        loaded.append((address, stop))
    return out, addresses


def _checks(
    path: Path,
    events: Sequence[Event],
    after: Mapping[int, int],
    memory: Sequence[Row],
    images: dict[str, Image],
) -> list[Row]:
    out: list[Row] = []
    for number, task in after.items():
        event = events[number]
        assert isinstance(event, Check)
        if event.crc is None and event.golden is None:
            continue
        where = f"{path}, line {event.line}"
        set_aside = [
            (row["address"], row["size"])
            for row in memory
            if event.memory in (row["memory"], ANY_MEMORY) and row["line"] < event.line
        ]
        _within(where, f"a check of {event.size:#x} bytes", event.address, event.size, set_aside)
        if event.size > MOST_MEMORY:
            raise ValueError(
                f"{where}: got a check of {event.size} bytes, allowed are up to {MOST_MEMORY}"
            )
        row = {
            "task": task,
            "memory": event.memory,
            "address": event.address,
            "size": event.size,
            "crc": event.crc,
            "buffer": "",
            "line": event.line,
            "name": event.sync,
        }
        if event.golden is not None:
            held = event.golden.extent
            if event.golden.packed:
                raise ValueError(
                    f"{where}: got golden bytes up to offset {held:#x} with gaps, allowed is an "
                    "image without"
                )
            if held < event.size:
                raise ValueError(
                    f"{where}: got {held} golden bytes, allowed are at least {event.size}"
                )
            row["buffer"] = _buffer_name(images, event.golden)
        out.append(row)
    return out


def _within(where: str, what: str, address: int, size: int, ranges: Sequence[Pair]) -> None:
    """Raise ValueError for bytes that begin inside memory that was set aside and end outside that
    memory.
    """
    if not ranges:
        return
    for start, length in merged(*np.array(ranges, np.int64).T).tolist():
        if start <= address < start + length < address + size:
            raise ValueError(
                f"{where}: got {what} at {address:#x}, past the end of the memory there, allowed "
                f"is up to {start + length:#x}"
            )
