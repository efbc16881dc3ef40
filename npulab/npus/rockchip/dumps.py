"""Importer of what recorders of the kernel driver write: texts of GEM buffers, files of commands,
of task records.

A task is a job: the registers that its block of commands writes, in order.  Behind it stands what
starts it: the writes to PC at the block's end, then the task's record.  Files are told by what is
in them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from npulab.captures.capture import COMMANDS, Capture, Job
from npulab.npus.kit.fields import values_of
from npulab.npus.rockchip.commands import (
    END_WORDS,
    NEXT_ADDRESS,
    NEXT_AMOUNT,
    SYNC,
    WORDS,
    WRITE,
    Command,
    commands,
    ends,
    known,
    pairs,
    written,
)
from npulab.npus.rockchip.facts import REGISTERS, TABLES, USUAL_CHIP, maps
from npulab.npus.rockchip.gems import LOOK, Gem, is_gems, read_gems
from npulab.npus.rockchip.roles import by_use
from npulab.npus.rockchip.tasks import BYTES as RECORD_BYTES
from npulab.npus.rockchip.tasks import Task, is_tasks, tasks

TASKS = "tasks"  # the buffer of task records
# The other buffers of the vendor's runtime, in the order it makes them: one before the commands and
# the task records, three behind them (PH: data and addresses of all dumps).
BEFORE, BEHIND = "coefficients", ("work", "input", "output")
# of those the registers that point into them
SOURCES, WEIGHTS, OUTPUT = (0x1070, 0x5018), 0x1110, 0x4020
PAGE = 2 ** 12
MOST_BYTES = 2 ** 21  # of a file of commands or records
KNOWN_SHARE = 2  # one in so many words of a file of commands names a register, at least


class Block(NamedTuple):
    """A task and its words ``(n,)``, those of the block's end apart."""

    task: Task | None
    words: np.ndarray
    end: np.ndarray


def recognises(path: Path) -> bool:
    """A file of these, or a folder that has some."""
    if path.is_dir():
        return any(_kind(file) for file in _files(path))
    return bool(_kind(path))


def read(path: Path) -> dict[str, Capture]:
    """A capture per text or per file of commands, by the file's name; with the task records whose
    blocks are in it.

    A file of records that goes with no commands is a capture of its own.  Raises ValueError with
    the line of a text or the byte of another file that is broken.
    """
    files = {file: _kind(file) for file in (_files(path) if path.is_dir() else [path])}
    out = {_stem(file): _of_gems(file, read_gems(file)) for file, kind in files.items() if kind == "gems"}
    records = {file: tasks(_bytes(file), str(file)) for file, kind in files.items() if kind == TASKS}
    for file in (file for file, kind in files.items() if kind == COMMANDS):
        data = _bytes(file)
        words = commands(data, str(file))
        mine = next((other for other, some in records.items() if _blocks(words, some) is not None), None)
        if mine is None:
            name, jobs, more, addresses = _stem(file), _jobs(_split(words, file)), {}, {}
        else:
            listed = records.pop(mine)
            name = _common(_stem(file), _stem(mine)) or _stem(file)
            jobs, more = _jobs(_blocks(words, listed) or []), {TASKS: _bytes(mine)}
            addresses = {COMMANDS: min(one.command_address for one in listed)}
        out[name] = _capture(name, jobs, {COMMANDS: data, **more}, addresses, file.name)
    for file, some in records.items():
        out[_stem(file)] = _capture(_stem(file), [one.job for one in some], {TASKS: _bytes(file)}, {}, file.name)
    return out


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.iterdir() if file.is_file())


def _stem(file: Path) -> str:
    return file.name.split(".")[0] or file.name


def _common(a: str, b: str) -> str:
    """What two names begin with."""
    return "".join(x for n, x in enumerate(a) if b.startswith(a[:n + 1])).rstrip("_-. ")


def _kind(file: Path) -> str:
    """What a file is by its bytes: ``gems``, ``commands``, ``tasks``, or nothing known."""
    with file.open("rb") as stream:
        head = stream.read(LOOK)
    if is_gems(head):
        return "gems"
    if is_tasks(head):
        return TASKS
    words = np.frombuffer(head[:len(head) // WORDS.itemsize * WORDS.itemsize], WORDS)
    used = words[words.view("<u8") != 0]
    return COMMANDS if len(used) and KNOWN_SHARE * int(known(used).sum()) >= len(used) else ""


def _bytes(file: Path) -> bytes:
    size = file.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{file}: got {size} bytes, allowed are {MOST_BYTES}")
    return file.read_bytes()


def _capture(name: str, jobs: Sequence[Job], buffers: Mapping[str, bytes], addresses: Mapping[str, int], source: str,
             ) -> Capture:
    return Capture(name, "rockchip", USUAL_CHIP, tuple(jobs), buffers, addresses, provenance="board", source=source,
                   maps=maps(USUAL_CHIP))


def _split(words: np.ndarray, file: Path) -> list[Block]:
    """The blocks of words that no record counts: each ends with its end, or with the words."""
    if not written(words).any():
        warnings.warn(f"{file}: no command has the flag {WRITE:#04x} of a write in its target; its values may not be "
                      "those that the NPU had", stacklevel=3)
        words = words.copy()
        words["target"] += (known(words) & (words["target"] % 2 != WRITE)).astype(np.uint16) * np.uint16(WRITE)
        begins = [0, *(1 + np.flatnonzero(known(words) & (words["register"] == NEXT_AMOUNT))), len(words)]
        return [Block(None, words[a:b], words[:0]) for a, b in pairwise(begins) if written(words[a:b]).any()]
    spoken = written(words) | (words.view("<u8") == 0) | ((words["target"] == SYNC) & (words["register"] == 0))
    if not spoken.all():
        raise ValueError(f"{file}: {_broken(words, int(np.argmin(spoken)))}")
    out, begin = [], 0
    for end in np.flatnonzero(ends(words)).tolist():
        out.append(Block(None, words[begin:end], words[end:end + END_WORDS]))
        begin = end + END_WORDS
    out.append(Block(None, words[begin:], words[:0]))
    return [one for one in out if written(one.words).any() or written(one.end).any()]


def _broken(words: np.ndarray, at: int) -> str:
    """What is said of a command that can be none."""
    one = Command(*(int(words[at][name]) for name in Command._fields))
    return (f"command at byte {WORDS.itemsize * at:#x}: got target {one.target:#06x} and register {one.register:#06x}, "
            "allowed is a register of the target's unit")


def _blocks(words: np.ndarray, listed: Sequence[Task], base: int | None = None) -> list[Block] | None:
    """The words of each task where the first word lies at ``base``, by default at the first block;
    None where they are not all there or do not write registers."""
    if not listed:
        return None
    base = min(one.command_address for one in listed) if base is None else base
    good = written(words)
    end_at = ends(words)
    out = []
    for task in listed:
        first, odd = divmod(task.command_address - base, WORDS.itemsize)
        last = first + task.commands
        if odd or first < 0 or last > len(words) or not good[first:last].all():
            return None
        has_end = last < len(words) and bool(end_at[last])
        out.append(Block(task, words[first:last], words[last:last + END_WORDS if has_end else last]))
    return out


def _jobs(blocks: Sequence[Block]) -> list[Job]:
    registers = TABLES[REGISTERS]
    out = []
    for one in blocks:
        start = one.task.job if one.task else None
        if written(one.end).any():
            start = replace(Job.from_writes(REGISTERS, pairs(one.end[written(one.end)]), registers), start=start)
        job = Job.from_writes(REGISTERS, pairs(one.words[written(one.words)]), registers)
        out.append(replace(job, start=start))
    return out


def _of_gems(path: Path, gems: Sequence[Gem]) -> Capture:
    """The capture in the buffers of a text."""
    for records in (one for one in gems if is_tasks(one.data)):
        listed = tasks(records.data, f"{path}, line {records.line}: Gem {records.number}")
        for stream in (one for one in gems if one is not records):
            found = _placed(stream, listed)
            if found is not None:
                base, blocks = found
                names, addresses = _roles(gems, stream, records, blocks)
                buffers = {names[one.number]: one.data for one in gems}
                return _capture(_stem(path), _jobs(blocks), buffers, {COMMANDS: base, **addresses}, path.name)
        _tell(path, gems, records, listed)
    raise ValueError(f"{path}: got {len(gems)} GEM buffers, none with task records whose commands are in another, "
                     "allowed is a dump of a run with both")


def _tell(path: Path, gems: Sequence[Gem], records: Gem, listed: Sequence[Task]) -> None:
    """Raises ValueError with the line of the first command that can be none, in the buffer that
    holds most commands, as if that began at the page of the first block."""
    streams = [(int(written(words).sum()), one, words) for one in gems if one is not records
               and len(one.data) % WORDS.itemsize == 0 for words in [commands(one.data)]]
    count, stream, words = max(streams, key=lambda one: one[0], default=(0, records, np.zeros(0, WORDS)))
    if not count:
        return
    base = min(one.command_address for one in listed) // PAGE * PAGE
    good = written(words)
    for n, task in enumerate(listed):
        first = (task.command_address - base) // WORDS.itemsize
        if first + task.commands > len(words):
            raise ValueError(f"{path}, line {records.line_of(RECORD_BYTES * n)}: Gem {records.number}: task {n}: got "
                             f"{task.commands} commands from {task.command_address:#x} on, allowed are those that Gem "
                             f"{stream.number} has room for, {len(words)} from {base:#x} on")
        if not good[first:first + task.commands].all():
            at = first + int(np.argmin(good[first:first + task.commands]))
            raise ValueError(f"{path}, line {stream.line_of(WORDS.itemsize * at)}: Gem {stream.number}: task {n}: "
                             f"{_broken(words, at)}")


def _placed(stream: Gem, listed: Sequence[Task]) -> tuple[int, list[Block]] | None:
    """Where a buffer lies, and its blocks, if the tasks' commands are in it: buffers begin at a
    page."""
    if len(stream.data) % WORDS.itemsize:
        return None
    words = commands(stream.data)
    first = min(one.command_address for one in listed) // PAGE * PAGE
    last = max(one.command_address for one in listed)
    for base in range(first, max(last - len(stream.data), -1), -PAGE):
        blocks = _blocks(words, listed[:1], base) and _blocks(words, listed, base)
        if blocks:
            return base, blocks
    return None


def _roles(gems: Sequence[Gem], stream: Gem, records: Gem, blocks: Sequence[Block],
           ) -> tuple[dict[int, str], dict[str, int]]:
    """A name for each buffer, and where those lie that the registers point into."""
    names = {one.number: f"gem{one.number}" for one in gems} | {stream.number: COMMANDS, records.number: TASKS}
    order = [one.number for one in gems]
    others = [one for one in gems if one not in (stream, records)]
    if len(others) != 1 + len(BEHIND) or order[:3] != [others[0].number, stream.number, records.number]:
        (first,) = _jobs(blocks[:1])
        data = {one.number: one.data for one in others}
        told = by_use(values_of(first, TABLES), data) if len(blocks) == 1 else {}
        names |= {number: name for name, (number, _) in told.items()}
        return names, {name: at for name, (_, at) in told.items()}
    given = [dict(pairs(one.words)) for one in blocks]
    last = next((n for n, one in enumerate(blocks) if not dict(pairs(one.end)).get(NEXT_ADDRESS)), len(blocks) - 1)
    points = {BEFORE: given[0].get(WEIGHTS), "output": given[last].get(OUTPUT),
              "input": next((given[0][register] for register in SOURCES if register in given[0]), None)}
    sizes = dict(zip((BEFORE, *BEHIND), (len(one.data) for one in others), strict=True))
    places = {name: at // PAGE * PAGE for name, at in points.items() if at}
    ranges = {name: range(at, at + sizes[name]) for name, at in places.items()}
    rest = [one[OUTPUT] for one in given if OUTPUT in one and not any(one[OUTPUT] in some for some in ranges.values())]
    if rest:
        places["work"] = min(rest) // PAGE * PAGE
        if max(rest) >= places["work"] + sizes["work"]:
            return names, {}
    named = zip((BEFORE, *BEHIND), others, strict=True)
    return names | {one.number: name for name, one in named}, {name: places[name] for name in sizes if name in places}
