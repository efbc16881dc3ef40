"""Importer of what recorders of the kernel driver write: texts of GEM buffers, files of commands,
of task records; and of listings of commands.

A task is a job: the registers that its block of commands writes, in order.  Behind it stands what
starts it: the writes to PC at the block's end, then the task's record.  Files are told by what is
in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np

from npulab.npus.kit import (
    COMMANDS,
    Capture,
    Job,
    Line,
    Raw,
    Unsupported,
    head_of,
    skipped,
    up,
    values_of,
)
from npulab.npus.rockchip import commands, listings
from npulab.npus.rockchip.commands import WORDS, Block, blocks_of, broken, writes_of, written
from npulab.npus.rockchip.facts import FACTS, TABLES
from npulab.npus.rockchip.gems import LOOK, Gem, is_gems, read_gems
from npulab.npus.rockchip.layouts import ATOM
from npulab.npus.rockchip.plans import INT8, INT32
from npulab.npus.rockchip.tasks import BYTES as RECORD_BYTES
from npulab.npus.rockchip.tasks import Task, is_tasks, tasks
from npulab.npus.rockchip.words import (
    INPUT_AT,
    OUTPUT_AT,
    OUTPUT_PRECISION,
    PRECISION,
    WEIGHT_BYTES,
    WEIGHTS_AT,
    Sizes,
)
from npulab.support.files import first_bytes, read_bounded

TASKS = "tasks"  # the buffer of task records
RAW = (COMMANDS, TASKS)
READERS = {"listing": listings.read_listing, "hex": listings.read_hex}
PROGRAMS = (".c", ".cc", ".cpp", ".h", ".hpp", ".py", ".rs")  # of a folder: not what was sent
# The other buffers of the vendor's runtime, in the order it makes them: the first before the
# commands and the task records, three behind them (PH: data and addresses of all dumps).
ORDER = ("coefficients", "work", "input", "output")
# of those the registers that point into them
SOURCES, WEIGHTS, OUTPUT = (0x1070, 0x5018), 0x1110, 0x4020
PAGE = 2**12  # buffers begin at one
SLACK = 16  # bytes at the end of a tensor that may be 0
MOST_BUFFERS = 8  # of which the roles are told by how many of their bytes are used
SIZES = {INT8: 1, INT32: 4}  # bytes of an output element
MOST_BYTES = 2**21  # of a file of commands or records
KNOWN_SHARE = 2  # one in so many words of a file of commands names a register, at least


def recognises(path: Path) -> bool:
    """A file of these, or a folder that has some."""
    if path.is_dir():
        return any(_kinds(path).values())
    return bool(_kind(path))


def read(path: Path) -> dict[str, Capture]:
    """A capture per text or per file of commands, by the file's name; with the task records whose
    blocks are in it.

    A file of records that goes with no commands is a capture of its own.  Raises ValueError with
    the line of a text or the byte of another file that is broken.
    """
    if path.is_dir():
        files = _kinds(path)
    else:
        files = {path: _kind(path)}
    data = {file: read_bounded(file, MOST_BYTES) for file, kind in files.items() if kind in RAW}
    out = {
        _stem(file): _of_gems(file, read_gems(file))
        for file, kind in files.items()
        if kind == "gems"
    }
    out |= {
        _stem(file): _of_listing(file, *READERS[kind](file))
        for file, kind in files.items()
        if kind in READERS
    }
    records = {file: tasks(data[file], str(file)) for file, kind in files.items() if kind == TASKS}
    for file in (file for file, kind in files.items() if kind == COMMANDS):
        words = commands.commands(data[file], str(file))
        name, buffers, addresses = _stem(file), {COMMANDS: data[file]}, {}
        for other, listed in records.items():
            blocks = blocks_of(words, listed)
            if blocks is not None:
                name = _common(name, _stem(other)) or name
                buffers[TASKS] = data[other]
                addresses[COMMANDS] = min(task.command_address for task in listed)
                del records[other]
                break
        else:
            blocks = commands.split(words, file)
        jobs = [block.job for block in blocks]
        out[name] = _capture(name, jobs, buffers, addresses, file.name)
    for file, listed in records.items():
        jobs, name = [task.job for task in listed], _stem(file)
        out[name] = _capture(name, jobs, {TASKS: data[file]}, {}, file.name)
    return out


def _kinds(folder: Path) -> dict[Path, str]:
    """The kind of each file of a folder; a program that emits registers is not a listing."""
    kinds = {file: _kind(file) for file in sorted(folder.iterdir()) if file.is_file()}
    return {
        file: "" if kind in READERS and file.suffix in PROGRAMS else kind
        for file, kind in kinds.items()
    }


def _stem(file: Path) -> str:
    return file.name.split(".")[0] or file.name


def _common(a: str, b: str) -> str:
    """What two names begin with."""
    return "".join(x for n, x in enumerate(a) if b.startswith(a[: n + 1])).rstrip("_-. ")


def _kind(file: Path) -> str:
    """What a file is by its bytes: ``gems``, ``commands``, ``tasks``, ``listing``, ``hex`` or
    nothing known."""
    head = first_bytes(file, LOOK)
    if is_gems(head):
        return "gems"
    if is_tasks(head):
        return TASKS
    words = np.frombuffer(head[: len(head) // WORDS.itemsize * WORDS.itemsize], WORDS)
    used = words[words.view("<u8") != 0]
    if len(used) and KNOWN_SHARE * int(commands.known(used).sum()) >= len(used):
        return COMMANDS
    text = head_of(file)
    if listings.is_listing(text):
        return "listing"
    if listings.is_hex(text[:LOOK]):
        return "hex"
    return ""


def _capture(
    name: str,
    jobs: Sequence[Job],
    buffers: Mapping[str, bytes],
    addresses: Mapping[str, int],
    source: str,
) -> Capture:
    chip = FACTS.usual_chip
    return Capture(
        name,
        "rockchip",
        chip,
        tuple(jobs),
        buffers,
        addresses,
        provenance="board",
        source=source,
        maps=FACTS.maps(chip),
    )


def _of_listing(path: Path, words: np.ndarray, rest: Sequence[Line]) -> Capture:
    """The capture in a listing of commands."""
    name, jobs = _stem(path), listings.jobs_of(words, path)
    return replace(
        _capture(name, jobs, {COMMANDS: words.tobytes()}, {}, path.name), parameters=skipped(rest)
    )


def _of_gems(path: Path, gems: Sequence[Gem]) -> Capture:
    """The capture in the buffers of a text."""
    for records in (gem for gem in gems if is_tasks(gem.data)):
        listed = tasks(records.data, f"{path}, line {records.line}: Gem {records.number}")
        streams = {
            gem: commands.commands(gem.data)
            for gem in gems
            if gem is not records and len(gem.data) % WORDS.itemsize == 0
        }
        for stream, words in streams.items():
            base, blocks = _placed(words, listed)
            if blocks:
                names, addresses = _roles(gems, stream, records, blocks)
                buffers = {names[gem.number]: gem.data for gem in gems}
                return _capture(
                    _stem(path),
                    [block.job for block in blocks],
                    buffers,
                    {COMMANDS: base, **addresses},
                    path.name,
                )
        _check_streams(path, streams, records, listed)
    raise ValueError(
        f"{path}: got {len(gems)} GEM buffers, none with task records whose commands are "
        "in another, allowed is a dump of a run with both"
    )


def _check_streams(
    path: Path, streams: Mapping[Gem, np.ndarray], records: Gem, listed: Sequence[Task]
) -> None:
    """Raises ValueError with the line of the first word that is not a command, in the buffer that
    holds most commands, as if that began at the page of the first block."""
    counts = {gem: int(written(words).sum()) for gem, words in streams.items()}
    stream = max(counts, key=lambda gem: counts[gem], default=records)
    if not counts.get(stream):
        return
    base = min(task.command_address for task in listed) // PAGE * PAGE
    words, good = streams[stream], written(streams[stream])
    for n, task in enumerate(listed):
        first = (task.command_address - base) // WORDS.itemsize
        if first + task.commands > len(words):
            raise ValueError(
                f"{path}, line {records.line_of(RECORD_BYTES * n)}: Gem {records.number}: "
                f"task {n}: got {task.commands} commands from {task.command_address:#x} "
                f"on, allowed are those that Gem {stream.number} has room for, "
                f"{len(words)} from {base:#x} on"
            )
        if not good[first : first + task.commands].all():
            at = first + int(np.argmin(good[first : first + task.commands]))
            raise ValueError(
                f"{path}, line {stream.line_of(WORDS.itemsize * at)}: Gem {stream.number}: "
                f"task {n}: {broken(words, at)}"
            )


def _placed(words: np.ndarray, listed: Sequence[Task]) -> tuple[int, list[Block]]:
    """(address, blocks) of a buffer that begins at a page; no blocks if the tasks' commands are not
    in it."""
    addresses = [task.command_address for task in listed]
    first = min(addresses) // PAGE * PAGE
    for base in range(first, max(max(addresses) - words.nbytes, -1), -PAGE):
        blocks = blocks_of(words, listed[:1], base) and blocks_of(words, listed, base)
        if blocks:
            return base, blocks
    return 0, []


def _roles(
    gems: Sequence[Gem],
    stream: Gem,
    records: Gem,
    blocks: Sequence[Block],
) -> tuple[dict[int, str], dict[str, int]]:
    """A name for each buffer, and the addresses of those that the registers point into."""
    names = {gem.number: f"gem{gem.number}" for gem in gems}
    names |= {stream.number: COMMANDS, records.number: TASKS}
    others = [gem for gem in gems if gem not in (stream, records)]
    if len(others) != len(ORDER) or list(gems[:3]) != [others[0], stream, records]:
        values = values_of(blocks[0].job, TABLES)
        roles = {}
        if len(blocks) == 1:
            roles = _by_use(values, {gem.number: gem.data for gem in others})
        return (
            names | {number: name for name, (number, _) in roles.items()},
            {name: at for name, (_, at) in roles.items()},
        )
    jobs = [dict(writes_of(block.words)) for block in blocks]
    last = next(
        (
            job
            for job, block in zip(jobs, blocks, strict=True)
            if not dict(writes_of(block.end)).get(commands.NEXT_ADDRESS)
        ),
        jobs[-1],
    )
    points = {
        "coefficients": jobs[0].get(WEIGHTS),
        "output": last.get(OUTPUT),
        "input": next((jobs[0][at] for at in SOURCES if at in jobs[0]), None),
    }
    sizes = {name: len(gem.data) for name, gem in zip(ORDER, others, strict=True)}
    places = {name: at // PAGE * PAGE for name, at in points.items() if at}
    rest = [
        job[OUTPUT]
        for job in jobs
        if OUTPUT in job
        and not any(0 <= job[OUTPUT] - at < sizes[name] for name, at in places.items())
    ]
    if rest:
        places["work"] = min(rest) // PAGE * PAGE
        if max(rest) >= places["work"] + sizes["work"]:
            return names, {}
    names |= {gem.number: name for name, gem in zip(ORDER, others, strict=True)}
    return names, {name: places[name] for name in ORDER if name in places}


def _by_use(v: Raw, buffers: Mapping[int, bytes]) -> dict[str, tuple[int, int]]:
    """(number of the buffer, address) by name, of ``coefficients``, ``input`` and ``output`` of one
    int8 convolution.

    A buffer fits a tensor where its last byte that is not 0 is among the tensor's last, and the
    three are made in this order (PH, WT); empty where that leaves no way or several, and for other
    tasks.
    """
    try:
        ends = {}
        if len(buffers) <= MOST_BUFFERS:
            ends = _ends(v)
    except Unsupported:  # a register that is not written
        return {}
    used = {number: len(data.rstrip(b"\0")) for number, data in buffers.items()}
    fitting = [
        numbers
        for numbers in combinations(buffers, len(ends))
        if all(
            0 <= at % PAGE + need - used[number] < SLACK
            for number, (at, need) in zip(numbers, ends.values(), strict=True)
        )
    ]
    if len(fitting) != 1:
        return {}
    return {
        name: (number, at // PAGE * PAGE)
        for number, (name, (at, _)) in zip(fitting[0], ends.items(), strict=True)
    }


def _ends(v: Raw) -> dict[str, tuple[int, int]]:
    """(address, bytes) of each of the three tensors; empty for other tasks."""
    itemsize = SIZES.get(v[OUTPUT_PRECISION])
    if v[PRECISION] != INT8 or itemsize is None:
        return {}
    sizes = Sizes.of(v)
    lanes = up(sizes.output[2], ATOM // itemsize)
    inputs = sizes.input[0] * sizes.input[1] * v["CNA.DATA_SIZE1.DATAIN_CHANNEL"]
    outputs = sizes.output[0] * sizes.output[1] * lanes * itemsize
    return {
        "coefficients": (v[WEIGHTS_AT], v[WEIGHT_BYTES]),
        "input": (v[INPUT_AT], inputs),
        "output": (v[OUTPUT_AT], outputs),
    }
