"""Writes a capture as the trace that a player of the open hardware's simulation runs.

A trace is a ``.cfg`` file and its ``.dat`` images. ``cfg`` describes the grammar and reads every
file that is written here.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from npulab.captures.folders import plain_name
from npulab.npus.kit import COMMANDS, WAITS, Capture, names_of
from npulab.npus.nvdla.cfg import PATTERN, PROVENANCE
from npulab.npus.nvdla.facts import ANY_MEMORY, ENDS, MEMORIES, UNITS, Pair
from npulab.npus.nvdla.registers import units_of
from npulab.npus.nvdla.waits import NOTIFY, Place, event_names, wait_statements
from npulab.support.files import write_folders

RECORD = 32  # bytes in a record of an image
FLUSHED = "CDMA.S_CBUF_FLUSH_STATUS"
OUTPUT = "output"
Row = Mapping[str, Any]


def write_trace(capture: Capture, folder: Path) -> Path:
    """Write a trace to ``folder/<chip>/<case>/``, whole or not at all; return that folder.

    Raises as ``trace_files``; FileExistsError if the folder exists.
    """
    plain_name(capture.name, "case")
    target = folder / capture.chip / capture.name
    return write_folders({target: trace_files(capture)})[0]


def trace_files(capture: Capture) -> dict[str, bytes]:
    """Return the files by name: the jobs' register writes, the memory before them and the checks of
    memory after them.

    Memory and checks are the rows that ``as_trace`` returns. A comment says the provenance, which
    ``cfg`` reads again. Raises ValueError for a capture without output, and for rows that name no
    memory, as the rows of ``.txn`` traces.
    """
    traced = as_trace(capture)
    memory = traced.parameters["memory"]
    checks = traced.parameters["checks"]
    rows = [*memory, *checks]
    unknown = {row["memory"] for row in rows} - set(MEMORIES)
    if unknown:
        raise ValueError(
            f"trace of {capture.name}: got memory {', '.join(sorted(unknown))}, allowed are "
            f"{', '.join(MEMORIES)}, which .cfg traces distinguish and .txn traces "
            f"({ANY_MEMORY}) do not"
        )
    lines = [
        f"// {capture}",
        f"{PROVENANCE}{capture.provenance}",
        *_statements(capture, memory, checks),
        "",
    ]
    files = {f"{capture.name}.cfg": "\n".join(lines).encode()}
    runs = {row["buffer"]: row["runs"] for row in memory if "runs" in row}
    packed = {row["buffer"] for row in memory if row.get("packed")}
    for row in rows:
        name = row["buffer"]
        if name:
            image = image_text(capture.buffers[name], runs.get(name), name in packed)
            files[f"{name}.dat"] = image.encode()
    return files


def as_trace(capture: Capture) -> Capture:
    """Return the capture with rows of memory and of checks in its ``parameters``, as a trace has
    them.

    In a capture without them, every buffer lies at its address and the output is checked by its
    CRC-32. Raises ValueError for a capture with neither rows nor an output at an address.
    """
    if {"memory", "checks"} <= {*capture.parameters}:
        return capture
    rows = {"memory": _buffer_rows(capture), "checks": [_output_check(capture)]}
    return replace(capture, parameters={**capture.parameters, **rows})


def image_text(data: bytes, runs: Sequence[Pair] | None = None, packed: bool = False) -> str:
    """Return an image as records of up to 32 bytes: all of it, or its ``runs`` (offset, size).

    The data of a ``packed`` image are the bytes of its runs only.

    >>> image_text(bytes([1, 255]))
    '{\\n{offset:0x0, size:2, payload:0x01 0xff} ,\\n}\\n'
    >>> image_text(bytes([1, 255]), [(8, 1), (16, 1)], packed=True).count("size:1")
    2
    """
    records, taken = [], 0
    for offset, size in runs or [(0, len(data))]:
        begin = offset
        if packed:
            begin = taken
        taken += size
        run = data[begin : begin + size]
        for first in range(0, size, RECORD):
            record = run[first : first + RECORD]
            payload = "0x" + record.hex(" ").replace(" ", " 0x")
            head = f"offset:{offset + first:#x}, size:{len(record)}"
            records.append(f"{{{head}, payload:{payload}}} ,\n")
    return f"{{\n{''.join(records)}}}\n"


def _buffer_rows(capture: Capture) -> list[Row]:
    """Return the memory rows of a capture that says where its buffers lie; the output's memory is
    filled with the pattern."""
    if OUTPUT not in capture.buffers or OUTPUT not in capture.addresses:
        raise ValueError(
            f"trace of {capture.name}: got no output and its address, allowed is a capture with "
            "both, as npulab.Simulated().record gives"
        )
    rows: list[Row] = []
    for name in capture.addresses:
        if name in capture.buffers and name != COMMANDS:
            rows.append(_memory_row(capture, name))
    return rows


def _memory_row(capture: Capture, name: str) -> dict[str, Any]:
    row = {
        "task": 0,
        "memory": MEMORIES[1],
        "address": capture.addresses[name],
        "size": len(capture.buffers[name]),
        "buffer": name,
    }
    if name == OUTPUT:
        row["buffer"] = ""
    return row


def _output_check(capture: Capture) -> Row:
    """Return the check of the output after the last job."""
    crc = zlib.crc32(capture.buffers[OUTPUT])
    # No line of a file states the check.
    return _memory_row(capture, OUTPUT) | {"task": len(capture.jobs), "crc": crc, "line": 0}


def _statements(capture: Capture, memory: Iterable[Row], checks: Iterable[Row]) -> Iterator[str]:
    """Yield the statements of each job: its writes with the polls, reads and waits between them,
    the wait for its end, the checks after it, and the memory that is loaded for the next job.
    """
    waits = capture.parameters.get(WAITS)
    if waits is None:
        waits = _usual_waits(capture)
        checks = [{**row, "name": _event_name(row["task"] - 1)} for row in checks]
    statements = wait_statements(waits)
    yield from _memory_statements(memory, 0)
    for task in range(len(capture.jobs) + 1):
        yield from _job(capture, task, statements)
        checked = [row for row in checks if row["task"] == task + 1]
        for row in checked:
            yield _check_statement(row)
        for event in event_names(waits, task):
            if all(row["name"] != event for row in checked):
                yield f"check_nothing({event});"
        yield from _memory_statements(memory, task + 1)


def _usual_waits(capture: Capture) -> list[Row]:
    """Return the waits of jobs that were recorded without waits: a convolution waits until its
    buffer is flushed, and each job ends with an interrupt.
    """
    rows: list[Row] = []
    for task, job in enumerate(capture.jobs):
        units = units_of(job)
        if "CDMA" in units:
            flush = {"statement": "poll_reg_equal", "of": FLUSHED, "arguments": ["0x1"]}
            rows.append({"task": task, "writes": 0, **flush})
        end = next(unit for unit in (*ENDS, *UNITS) if unit in units)
        raised = {"statement": NOTIFY, "of": f"{end}_{units[end]}"}
        rows.append(
            {"task": task, "writes": len(job.writes), **raised, "arguments": [_event_name(task)]}
        )
    return rows


def _event_name(task: int) -> str:
    return f"sync_id_{task}"


def _memory_statements(memory: Iterable[Row], task: int) -> Iterator[str]:
    """Yield the statements that load or fill memory before a task."""
    for row in memory:
        if row["task"] != task:
            continue
        place = f"{row['memory']}, {row['address']:#x}"
        if row["buffer"]:
            yield f'mem_load({place}, "{row["buffer"]}.dat");'
        else:
            yield f"mem_init({place}, {row['size']:#x}, {PATTERN});"


def _check_statement(row: Row) -> str:
    place = f"{row['name']}, {row['memory']}, {row['address']:#x}, {row['size']:#x}"
    if row["crc"] is None:
        return f'check_file({place}, "{row["buffer"]}.dat");'
    return f"check_crc({place}, {row['crc']:#x});"


def _job(capture: Capture, task: int, statements: Mapping[Place, list[str]]) -> Iterator[str]:
    """Yield a job's register writes with the polls, reads and waits between them; after the last
    job also those that follow all writes.
    """
    number = 0
    if task < len(capture.jobs):
        job = capture.jobs[task]
        names = names_of(capture.maps[job.block])
        for offset, value in job.writes:
            yield from statements.get((task, number), ())
            yield f"reg_write(NVDLA_{names[offset]}_0, {value:#x});"
            number += 1
    yield from statements.get((task, number), ())
