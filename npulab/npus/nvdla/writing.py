"""A capture as the trace that a player of the open hardware's simulation runs: ``.cfg``, and
``.dat`` images.

What ``cfg`` reads is written; the grammar is told there.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from npulab.captures.folders import plain_name
from npulab.npus.kit import COMMANDS, Capture, names_of
from npulab.npus.nvdla.cfg import PATTERN, PROVENANCE
from npulab.npus.nvdla.facts import ANY_MEMORY, ENDS, MEMORIES, UNITS
from npulab.npus.nvdla.registers import units_of
from npulab.support.files import write_folders

RECORD = 32  # bytes
FLUSHED = "CDMA.S_CBUF_FLUSH_STATUS"
OUTPUT = "output"


def write_trace(capture: Capture, folder: Path) -> Path:
    """Write a capture's trace to ``folder/<chip>/<case>/``, whole or not at all; gives that folder.

    Raises as ``trace_files``; FileExistsError where the folder is there.
    """
    plain_name(capture.name, "case")
    return write_folders({folder / capture.chip / capture.name: trace_files(capture)})[0]


def trace_files(capture: Capture) -> dict[str, bytes]:
    """The files by name: the jobs' register writes, the memory that they find, and what it has to
    be behind them.

    Memory and checks are those of ``parameters``, as a trace has them; of a capture without, every
    buffer lies at its address and the output is checked by its CRC-32.  A comment says the
    provenance, which is read again. Raises ValueError for a capture without output, or whose memory
    is not told apart, as that of ``.txn`` traces.
    """
    memory = capture.parameters.get("memory")
    checks = capture.parameters.get("checks")
    if memory is None or checks is None:
        memory, checks = _placed(capture)
    named = {row["memory"] for row in (*memory, *checks)}
    if not named <= set(MEMORIES):
        raise ValueError(
            f"trace of {capture.name}: got memory {', '.join(sorted(named - set(MEMORIES)))}, "
            "allowed are "
            f"{', '.join(MEMORIES)}, which .cfg traces tell apart and .txn traces ({ANY_MEMORY}) "
            "do not"
        )
    runs = {row["buffer"]: row["runs"] for row in memory if "runs" in row}
    packed = {row["buffer"] for row in memory if row.get("packed")}
    used = dict.fromkeys(row["buffer"] for row in (*memory, *checks) if row["buffer"])
    head = [f"// {capture}", f"{PROVENANCE}{capture.provenance}"]
    text = "\n".join([*head, *_statements(capture, memory, checks)]) + "\n"
    return {
        f"{capture.name}.cfg": text.encode(),
        **{
            f"{name}.dat": image_text(
                capture.buffers[name], runs.get(name), name in packed
            ).encode()
            for name in used
        },
    }


def image_text(
    data: bytes, runs: Sequence[tuple[int, int]] | None = None, packed: bool = False
) -> str:
    """An image as records of up to 32 bytes, all of it or its ``runs`` (offset, size); of a
    ``packed`` one the data are the bytes of its runs.

    >>> image_text(bytes([1, 255]))
    '{\\n{offset:0x0, size:2, payload:0x01 0xff} ,\\n}\\n'
    >>> image_text(bytes([1, 255]), [(8, 1), (16, 1)], packed=True).count("size:1")
    2
    """
    records, at = [], 0
    for start, size in runs or [(0, len(data))]:
        begin = start
        if packed:
            begin = at
        at += size
        for first in range(0, size, RECORD):
            part = data[begin + first : begin + min(first + RECORD, size)]
            records.append(
                f"{{offset:{start + first:#x}, size:{len(part)}, "
                f"payload:0x{part.hex(' ').replace(' ', ' 0x')}}} ,\n"
            )
    return f"{{\n{''.join(records)}}}\n"


def _placed(capture: Capture) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Memory and checks of a capture that says where its buffers lie."""
    if not {OUTPUT} <= capture.buffers.keys() & capture.addresses.keys():
        raise ValueError(
            f"trace of {capture.name}: got no output and its address, allowed is a capture with "
            "both, as "
            "npulab.Simulated().record gives"
        )
    rows: list[dict[str, Any]] = [
        {
            "task": 0,
            "memory": MEMORIES[1],
            "address": at,
            "size": len(capture.buffers[name]),
            "buffer": "" if name == OUTPUT else name,
        }
        for name, at in capture.addresses.items()
        if name in capture.buffers and name != COMMANDS
    ]
    (check,) = (row for row in rows if not row["buffer"])
    return rows, [{**check, "task": len(capture.jobs), "crc": zlib.crc32(capture.buffers[OUTPUT])}]


def _statements(
    capture: Capture,
    memory: Sequence[Mapping[str, Any]],
    checks: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    for task in range(len(capture.jobs) + 1):
        sync = f"sync_id_{task - 1}"
        if task:
            yield from _job(capture, task - 1)
            units = units_of(capture.jobs[task - 1])
            end = next(unit for unit in (*ENDS, *UNITS) if unit in units)
            yield f"intr_notify({end}_{units[end]}, {sync});"
        asked = [_check(row, sync) for row in checks if row["task"] == task]
        yield from asked or [f"check_nothing({sync});"] * (task > 0)
        for row in (row for row in memory if row["task"] == task):
            if row["buffer"]:
                what, more = "mem_load", f'"{row["buffer"]}.dat"'
            else:
                what, more = "mem_init", f"{row['size']:#x}, {PATTERN}"
            yield f"{what}({row['memory']}, {row['address']:#x}, {more});"


def _check(row: Mapping[str, Any], sync: str) -> str:
    if row["crc"] is None:
        what, wanted = "check_file", f'"{row["buffer"]}.dat"'
    else:
        what, wanted = "check_crc", f"{row['crc']:#x}"
    return f"{what}({sync}, {row['memory']}, {row['address']:#x}, {row['size']:#x}, {wanted});"


def _job(capture: Capture, task: int) -> Iterator[str]:
    job = capture.jobs[task]
    names = names_of(capture.maps[job.block])
    if "CDMA" in units_of(job):
        yield f"poll_reg_equal(NVDLA_{FLUSHED}_0, 0x1);"
    for offset, value in job.writes:
        yield f"reg_write(NVDLA_{names[offset]}_0, {value:#x});"
