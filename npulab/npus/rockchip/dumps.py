"""Importer of dumps: texts of GEM buffers, files of commands, files of task records, and listings.

The first three are written by recorders of the kernel driver's calls. Each task becomes a job: the
register writes of its block of commands, in order. The job's ``start`` has the writes at the
block's end, and the start of that job is the task record. The kind of a file is found from its
bytes, not from its name.
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

# The name of the buffer of task records.
TASKS = "tasks"
READERS = {"listing": listings.read_listing, "hex": listings.read_hex}
# Suffixes of program texts. In a folder they are not read as listings, because a program may emit
# other commands than were sent.
PROGRAMS = (".c", ".cc", ".cpp", ".h", ".hpp", ".py", ".rs")
# The vendor's runtime makes these buffers in this order, the first before the buffers of commands
# and task records, the other three after them (PH: data and addresses of all dumps).
ORDER = ("coefficients", "work", "input", "output")
# The registers that hold the addresses of inputs, weights and outputs.
SOURCES, WEIGHTS, OUTPUT = (0x1070, 0x5018), 0x1110, 0x4020
# A buffer begins at a multiple of this many bytes.
PAGE = 2**12
# The last byte of a tensor that is not 0 is one of its last SLACK bytes.
SLACK = 16
# Among more buffers than this, used bytes are not compared: there are too many combinations.
MOST_BUFFERS = 8
# The number of a buffer and its address, or an address and a size in bytes.
Place = tuple[int, int]
# The bytes of an output element, by the code of its precision.
SIZES = {INT8: 1, INT32: 4}
# A file of commands or of task records has at most this many bytes.
MOST_BYTES = 2**21
# In a file of commands, at least 1 / KNOWN_SHARE of the words have a register of their unit.
KNOWN_SHARE = 2


def recognises(path: Path) -> bool:
    """Return true for a dump (text of GEM buffers, listing, file of commands or of task records),
    or a folder with a dump.
    """
    return any(_kinds(path).values())


def read(path: Path) -> dict[str, Capture]:
    """Return a capture for each dump below a path, by the file's name.

    A file of task records is added to the capture that has the commands of its tasks; without such
    a capture it becomes a capture of its own. Raises ValueError, with the line of a text or the
    byte of another file, for a broken file.
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
    """Return the first file of task records whose commands are all in ``words``, and their
    blocks."""
    for file, file_tasks in listed.items():
        blocks = blocks_of(words, file_tasks)
        if blocks is not None:
            return file, blocks
    return None


def _first_address(listed: Sequence[Task]) -> int:
    return min(task.command_address for task in listed)


def _kinds(path: Path) -> dict[Path, str]:
    """Return the kind of each dump at or in a path, by the file.

    In a folder, a program text that emits register writes is not taken as a listing.
    """
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
    """Return the common beginning of two file names, without separators at its end."""
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
    """Return the capture of a listing, from its commands and the number of skipped lines."""
    jobs = listings.jobs_of(words, path)
    capture = _capture(_stem(path), jobs, {COMMANDS: words.tobytes()}, {}, path.name)
    return replace(capture, parameters=skipped(rest))


def _of_gems(path: Path, gems: Sequence[Gem]) -> Capture:
    """Return the capture of a text of GEM buffers."""
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
    """Return the address of a buffer with commands, and the blocks of the tasks in it.

    The address is a multiple of a page. The list of blocks is empty if the buffer does not have the
    commands of all tasks.
    """
    first = _first_address(listed) // PAGE * PAGE
    last = max(task.command_address for task in listed)
    for base in range(first, max(last - words.nbytes, -1), -PAGE):
        # Most addresses are refused by the commands of the first task alone.
        if blocks_of(words, listed[:1], base):
            blocks = blocks_of(words, listed, base)
            if blocks:
                return base, blocks
    return 0, []


def _check_streams(
    path: Path, streams: Mapping[Gem, Array], records: Gem, listed: Sequence[Task]
) -> None:
    """Raise ValueError, with the line, for the first word of a task that is not a command.

    The buffer with the most commands is searched; it is assumed to begin at the page of the first
    block.
    """
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
    """Return the name of each buffer by its number, and the addresses of buffers by name.

    Only buffers that registers point into have an address.
    """
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
    """Return the addresses of the buffers in ``ORDER``, from the registers that point into them.

    The result is None if an output is in none of the buffers.
    """
    jobs = [dict(writes_of(block.words)) for block in blocks]
    # The first task whose block has no next block is the last task of the first program.
    last = jobs[-1]
    for job, block in zip(reversed(jobs), reversed(blocks), strict=True):
        if not dict(writes_of(block.end)).get(commands.NEXT_ADDRESS):
            last = job
    points = {"coefficients": jobs[0].get(WEIGHTS), "output": last.get(OUTPUT)}
    sources = [jobs[0][register] for register in SOURCES if register in jobs[0]]
    if sources:
        points["input"] = sources[0]
    places = {name: at // PAGE * PAGE for name, at in points.items() if at}
    # Outputs of all other tasks lie in the buffer "work".
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
    """Return (number of the buffer, address) of ``coefficients``, ``input`` and ``output``.

    ``v`` are the values of an int8 convolution. A buffer fits a tensor if the buffer's last byte
    that is not 0 is one of the tensor's last ``SLACK`` bytes. The runtime makes the three buffers
    in this order (PH, WT). The result is empty for another task, and if not exactly one choice of
    buffers fits.
    """
    if len(buffers) > MOST_BUFFERS:
        return {}
    try:
        ends = _ends(v)
    # The task may not write a register that is needed.
    except Unsupported:
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
    """Return (address, bytes) of the weights, input and output of an int8 convolution; empty for
    other tasks."""
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
