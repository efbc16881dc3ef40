"""Importer of the files that recorders of the kernel driver write (texts of GEM buffers, files of
commands, of task records), and of listings of commands.

Each task becomes a job: the registers that its block of commands writes, in order. The job's
``start`` has the writes to PC at the block's end; the start of that one is the task's record.
The kind of a file is found from its bytes, not from its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from os.path import commonprefix
from pathlib import Path

import numpy as np
from numpy import ndarray as Array

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
from npulab.npus.rockchip.tasks import BYTES as RECORD_BYTES, Task, is_tasks, tasks
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
READERS = {"listing": listings.read_listing, "hex": listings.read_hex}
# Programs in a folder: they may emit other commands than were sent.
PROGRAMS = (".c", ".cc", ".cpp", ".h", ".hpp", ".py", ".rs")
# The other buffers of the vendor's runtime in the order in which it makes them: the first before
# the commands and the task records, three after them (PH: data and addresses of all dumps).
ORDER = ("coefficients", "work", "input", "output")
# The registers that hold addresses in these buffers: of input, weights and output.
SOURCES, WEIGHTS, OUTPUT = (0x1070, 0x5018), 0x1110, 0x4020
PAGE = 2**12  # buffers begin at a page
SLACK = 16  # fewer bytes than this may be 0 at the end of a tensor
MOST_BUFFERS = 8  # more buffers are not distinguished by their used bytes: too many combinations
Place = tuple[int, int]  # (number of a buffer, its address) or (an address, a size)
SIZES = {INT8: 1, INT32: 4}  # bytes of an output element
MOST_BYTES = 2**21  # most bytes of a file of commands or of task records
KNOWN_SHARE = 2  # at least 1 / KNOWN_SHARE of the words of a file of commands name a register


def recognises(path: Path) -> bool:
    """Return true for a text of GEM buffers, a listing, a file of commands or of task records, or a
    folder with such files.
    """
    return any(_kinds(path).values())


def read(path: Path) -> dict[str, Capture]:
    """Return a capture for each text and each file of commands, by the file's name. Task records
    are added to the capture whose commands have the blocks that they name.

    A file of records without commands is a capture of its own. Raises ValueError with the line of
    a text or the byte of another file that is broken.
    """
    files = _kinds(path)
    captures = {}
    records: dict[Path, bytes] = {}
    streams: dict[Path, bytes] = {}
    for file, kind in files.items():
        if kind == "gems":
            captures[_stem(file)] = _of_gems(file, read_gems(file))
        elif kind == TASKS:
            records[file] = read_bounded(file, MOST_BYTES)
        elif kind == COMMANDS:
            streams[file] = read_bounded(file, MOST_BYTES)
    for file, kind in files.items():
        if kind in READERS:
            captures[_stem(file)] = _of_listing(file, *READERS[kind](file))
    listed = {file: tasks(data, str(file)) for file, data in records.items()}
    for file, data in streams.items():
        words = commands.commands(data, str(file))
        name = _stem(file)
        buffers = {COMMANDS: data}
        addresses = {}
        owner = _records_of(words, listed)
        if owner is None:
            blocks = commands.split(words, file)
        else:
            record_file, blocks = owner
            name = _common(name, _stem(record_file)) or name
            buffers[TASKS] = records[record_file]
            addresses[COMMANDS] = _first_address(listed.pop(record_file))
        jobs = [block.job for block in blocks]
        captures[name] = _capture(name, jobs, buffers, addresses, file.name)
    for file, unused in listed.items():
        jobs = [task.job for task in unused]
        name = _stem(file)
        captures[name] = _capture(name, jobs, {TASKS: records[file]}, {}, file.name)
    return captures


def _records_of(
    words: Array, listed: Mapping[Path, Sequence[Task]]
) -> tuple[Path, list[Block]] | None:
    """Return the file of records whose blocks are in some words, and these blocks."""
    for file, file_tasks in listed.items():
        blocks = blocks_of(words, file_tasks)
        if blocks is not None:
            return file, blocks
    return None


def _first_address(listed: Sequence[Task]) -> int:
    return min(task.command_address for task in listed)


def _kinds(path: Path) -> dict[Path, str]:
    """Return the kind of a file, or of each file of a folder; there a program that emits registers
    is not a listing."""
    if not path.is_dir():
        return {path: _kind(path)}
    kinds = {}
    for file in sorted(path.iterdir()):
        if file.is_file():
            kind = _kind(file)
            if kind in READERS and file.suffix in PROGRAMS:
                kind = ""
            kinds[file] = kind
    return kinds


def _stem(file: Path) -> str:
    return file.name.split(".")[0] or file.name


def _common(a: str, b: str) -> str:
    """Return the beginning that two names have in common, without separators at its end."""
    return commonprefix([a, b]).rstrip("_-. ")  # noqa: RUF071 - letters are compared, not folders


def _kind(file: Path) -> str:
    """Return the kind of a file by its bytes: ``gems``, ``commands``, ``tasks``, ``listing``,
    ``hex``, or "" if it is none of these."""
    head = first_bytes(file, LOOK)
    if is_gems(head):
        return "gems"
    if is_tasks(head):
        return TASKS
    words = np.frombuffer(head, WORDS, len(head) // WORDS.itemsize)
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


def _of_listing(path: Path, words: Array, rest: Sequence[Line]) -> Capture:
    """Return the capture in a listing of commands."""
    jobs = listings.jobs_of(words, path)
    capture = _capture(_stem(path), jobs, {COMMANDS: words.tobytes()}, {}, path.name)
    return replace(capture, parameters=skipped(rest))


def _of_gems(path: Path, gems: Sequence[Gem]) -> Capture:
    """Return the capture in the buffers of a text."""
    for records in gems:
        if not is_tasks(records.data):
            continue
        listed = tasks(records.data, f"{path}, line {records.line}: Gem {records.number}")
        streams = {}
        for gem in gems:
            if gem is not records and len(gem.data) % WORDS.itemsize == 0:
                streams[gem] = commands.commands(gem.data)
        for stream, words in streams.items():
            base, blocks = _blocks_in(words, listed)
            if blocks:
                names, addresses = _roles(gems, stream, records, blocks)
                buffers = {names[gem.number]: gem.data for gem in gems}
                jobs = [block.job for block in blocks]
                addresses = {COMMANDS: base, **addresses}
                return _capture(_stem(path), jobs, buffers, addresses, path.name)
        _check_streams(path, streams, records, listed)
    raise ValueError(
        f"{path}: got {len(gems)} GEM buffers, none with task records whose commands are "
        "in another, allowed is a dump of a run with both"
    )


def _blocks_in(words: Array, listed: Sequence[Task]) -> tuple[int, list[Block]]:
    """Return (address, blocks) of a buffer that begins at a page.

    There are no blocks if the buffer does not hold the commands of the tasks.
    """
    first = _first_address(listed) // PAGE * PAGE
    last = max(task.command_address for task in listed)
    for base in range(first, max(last - words.nbytes, -1), -PAGE):
        # The first task alone refuses most pages.
        if blocks_of(words, listed[:1], base):
            blocks = blocks_of(words, listed, base)
            if blocks:
                return base, blocks
    return 0, []


def _check_streams(
    path: Path, streams: Mapping[Gem, Array], records: Gem, listed: Sequence[Task]
) -> None:
    """Raise ValueError with the line of the first word that is not a command. It is looked for in
    the buffer that holds most commands, which is taken to begin at the page of the first block."""
    counts = {gem: int(written(words).sum()) for gem, words in streams.items()}
    if not any(counts.values()):
        return
    stream = max(counts, key=lambda gem: counts[gem])
    base = _first_address(listed) // PAGE * PAGE
    words = streams[stream]
    good = written(words)
    for number, task in enumerate(listed):
        first = (task.command_address - base) // WORDS.itemsize
        if first + task.commands > len(words):
            line = records.line_of(RECORD_BYTES * number)
            raise ValueError(
                f"{path}, line {line}: Gem {records.number}: task {number}: got {task.commands} "
                f"commands from {task.command_address:#x} on, allowed are the "
                f"{len(words)} that Gem {stream.number} has room for from {base:#x} on"
            )
        block = good[first : first + task.commands]
        if not block.all():
            at = first + int(np.argmin(block))
            line = stream.line_of(WORDS.itemsize * at)
            raise ValueError(
                f"{path}, line {line}: Gem {stream.number}: task {number}: {broken(words, at)}"
            )


def _roles(
    gems: Sequence[Gem],
    stream: Gem,
    records: Gem,
    blocks: Sequence[Block],
) -> tuple[dict[int, str], dict[str, int]]:
    """Return a name for each buffer, and the addresses of the buffers that the registers point
    into."""
    names = {gem.number: f"gem{gem.number}" for gem in gems}
    names[stream.number] = COMMANDS
    names[records.number] = TASKS
    others = [gem for gem in gems if gem not in (stream, records)]
    if len(others) == len(ORDER) and list(gems[:3]) == [others[0], stream, records]:
        sizes = {name: len(gem.data) for name, gem in zip(ORDER, others, strict=True)}
        places = _by_order(blocks, sizes)
        if places is not None:
            for name, gem in zip(ORDER, others, strict=True):
                names[gem.number] = name
        return names, places or {}
    addresses = {}
    if len(blocks) == 1:
        buffers = {gem.number: gem.data for gem in others}
        roles = _by_use(values_of(blocks[0].job, TABLES), buffers)
        for name, (number, address) in roles.items():
            names[number] = name
            addresses[name] = address
    return names, addresses


def _by_order(blocks: Sequence[Block], sizes: Mapping[str, int]) -> dict[str, int] | None:
    """Return the addresses of the vendor's buffers, from the registers that point into them; None
    if an output lies in none of the buffers."""
    jobs = [dict(writes_of(block.words)) for block in blocks]
    # The last task is the first task whose end names no next task.
    last = jobs[-1]
    for job, block in zip(reversed(jobs), reversed(blocks), strict=True):
        if not dict(writes_of(block.end)).get(commands.NEXT_ADDRESS):
            last = job
    points = {"coefficients": jobs[0].get(WEIGHTS), "output": last.get(OUTPUT)}
    sources = [jobs[0][register] for register in SOURCES if register in jobs[0]]
    if sources:
        points["input"] = sources[0]
    places = {name: at // PAGE * PAGE for name, at in points.items() if at}
    # Outputs of other tasks lie in the buffer between layers.
    between = []
    for job in jobs:
        output = job.get(OUTPUT)
        if output is not None:
            inside = [0 <= output - at < sizes[name] for name, at in places.items()]
            if not any(inside):
                between.append(output)
    if between:
        work = min(between) // PAGE * PAGE
        if max(between) >= work + sizes["work"]:
            return None
        places["work"] = work
    return {name: places[name] for name in ORDER if name in places}


def _by_use(v: Raw, buffers: Mapping[int, bytes]) -> dict[str, Place]:
    """Return (number of the buffer, address) of ``coefficients``, ``input`` and ``output`` of an
    int8 convolution.

    A buffer fits a tensor if its last byte that is not 0 lies among the last bytes of the tensor.
    The runtime makes the three buffers in this order (PH, WT). The result is empty for tasks of
    another kind, and unless exactly one choice of buffers fits.
    """
    if len(buffers) > MOST_BUFFERS:
        return {}
    try:
        ends = _ends(v)
    except Unsupported:  # a register that is not written
        return {}
    used = {number: len(data.rstrip(b"\0")) for number, data in buffers.items()}
    fitting = []
    sizes = [address % PAGE + size for address, size in ends.values()]
    for numbers in combinations(buffers, len(ends)):
        slacks = [size - used[number] for size, number in zip(sizes, numbers, strict=True)]
        if all(0 <= slack < SLACK for slack in slacks):
            fitting.append(numbers)
    if len(fitting) != 1:
        return {}
    roles = {}
    for number, (name, (address, _)) in zip(fitting[0], ends.items(), strict=True):
        roles[name] = (number, address // PAGE * PAGE)
    return roles


def _ends(v: Raw) -> dict[str, Place]:
    """Return (address, bytes) of each of the three tensors; empty for other tasks."""
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
