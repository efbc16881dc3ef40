"""Dumps that a recorder writes as a folder: ``job.json`` describes the record; jobs and buffers are
files next to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npulab.captures.capture import OUTPUT_TEXT, TEXTS, Capture, Job
from npulab.captures.target import Features, Importer, Unsupported, each_read, guarded, select
from npulab.captures.writes import read_writes
from npulab.layout.stored import SWAPS, swap_words
from npulab.quant.layers.spellings import spelled
from npulab.registers.fields import WORD_BYTES
from npulab.registers.map import RegisterMap
from npulab.support.files import read_bounded, read_json
from npulab.support.refuse import named, near, reason, refuse_if

DESCRIPTION, WORDS, WRITES = "job.json", "words.bin", "writes.txt"
MOST_BYTES = 2**28  # the most bytes of a buffer
KEYS = ("npu", "chip", *TEXTS, OUTPUT_TEXT, "addresses", "parameters", "big_endian")
Maps = Mapping[str, RegisterMap]


class Recorded(NamedTuple):
    """The jobs, buffers and addresses of a dump, which a target's own reader of jobs may return.
    They replace what the dump's files state; without ``addresses``, those of ``job.json`` count.
    """

    jobs: Sequence[Job]
    buffers: Mapping[str, bytes]
    addresses: Mapping[str, int] | None = None


Jobs = Callable[[Path, Mapping[str, bytes], Maps], Sequence[Job] | Recorded]


def folder_importer(
    target: str, chips: Mapping[str, Features], tables: Maps, jobs: Jobs | None = None
) -> Importer:
    """The importer of a target's dumps that are folders, and of folders that hold such folders.

    Every ``.bin`` file is a buffer with the name of the file. ``job.json`` has at least ``npu``,
    the target's name::

        {"npu": "mine", "chip": "mine2", "provenance": "board", "source": "who, with what",
         "date": "2026-01-31", "addresses": {"input": "0x10000000"}, "parameters": {"kernel_h": 3},
         "big_endian": {"words": 4}}

    ``big_endian`` names the buffers that are big-endian, with the size of their words in bytes;
    their bytes are swapped. ``tool`` and ``output_provenance`` are allowed too; any other key is
    refused. With ``jobs``, a reader of your own, a dump may have other keys, and only a key that
    looks like a misspelling is refused.

    ``jobs(path, buffers, maps)`` returns the jobs; ``maps`` are the maps of the chip. The reader
    returns a ``Recorded`` if buffers have other names than their files, if a file that holds the
    jobs is no buffer, or if the jobs state the addresses.
    Without ``jobs``, the jobs are read from ``writes.txt``, in the format of ``read_writes``, or
    from ``words.bin``, the words of the first block. The importer's ``read`` raises ValueError with
    file, what, got and allowed.
    """
    reader = _DumpReader(target, chips, tables, guarded(jobs or _jobs, target, "jobs"), not jobs)
    return Importer("folder of job.json, jobs and buffers", reader.recognises, reader.read)


@dataclass(frozen=True)
class _DumpReader:
    """A reader of the dumps of one target; if ``strict``, it refuses every key of ``job.json`` that
    is not in ``KEYS``."""

    target: str
    chips: Mapping[str, Features]
    tables: Maps
    jobs: Jobs
    strict: bool

    def recognises(self, path: Path) -> bool:
        return any(_npu(folder) == self.target for folder in described(path))

    def read(self, path: Path) -> Mapping[str, Capture | ValueError]:
        if (path / DESCRIPTION).is_file():
            return {path.name: self.capture(path)}
        dumps = [folder for folder in described(path) if _may_be(folder, self.target)]
        return each_read({folder.name: partial(self.capture, folder) for folder in dumps})

    def capture(self, path: Path) -> Capture:
        """The capture that one folder holds; raises ValueError with the file if the dump is
        broken."""
        description, where = _description(path), path / DESCRIPTION
        npu = stated_npu(path)
        refuse_if(
            npu != self.target,
            f"{where}: npu",
            repr(npu),
            f"is {self.target!r}, as the dumps beside it have it{near(npu, [self.target])}",
        )
        _refuse_keys(where, description, self.strict)
        chip = _text_of(where, description, "chip") or next(iter(self.chips))
        refuse_if(
            chip not in self.chips,
            f"{where}: chip",
            repr(chip),
            f"is one of {', '.join(self.chips)}{near(chip, self.chips)}",
        )
        maps, buffers = select(self.tables, self.chips[chip]), _buffers(path, description)
        with _of_folder(path):
            recorded = self.jobs(path, buffers, maps)
        buffers.pop(Path(WORDS).stem, None)
        texts: dict[str, Any] = {}
        for name in (*TEXTS, OUTPUT_TEXT):
            if name in description:
                texts[name] = _text_of(where, description, name)
        addresses = {}
        for name, address in _object(path, description, "addresses").items():
            addresses[name] = _address(where, name, address)
        if not isinstance(recorded, Recorded):
            recorded = Recorded(recorded, buffers)
        given = recorded.addresses
        if given is None:
            given = addresses
        try:
            return Capture(
                path.name,
                self.target,
                chip,
                tuple(recorded.jobs),
                recorded.buffers,
                given,
                spelled(_object(path, description, "parameters")),
                maps=maps,
                **texts,
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {str(error).removeprefix(f'{where}: ')}") from None


def jobs_of_writes(writes: Sequence[Sequence[int]], maps: Maps, where: Path) -> tuple[Job, ...]:
    """The jobs that register writes make: one job if there is one map without copies of its block,
    else one for each copy of a block that has writes.

    With copies or several maps, raises ValueError, which names the file ``where``, for a write to
    an address that no map has.
    """
    block, registers = next(iter(maps.items()))
    if len(maps) == 1 and not registers.repeats:
        return (Job.from_writes(block, writes, registers),)
    jobs, rest = Job.split(writes, maps)
    if rest:
        raise ValueError(
            f"{where}: got a write to {rest[0][0]:#x}, allowed are addresses of registers.csv"
        )
    return tuple(jobs)


def described(path: Path) -> list[Path]:
    """The folders that hold a ``job.json``: the path itself and the folders directly in it."""
    folders = []
    if path.is_dir():
        folders = [path, *sorted(path.iterdir())]
    return [folder for folder in folders if (folder / DESCRIPTION).is_file()]


def stated_npu(path: Path) -> str:
    """The NPU that the ``job.json`` of a folder names; raises ValueError if the file is broken or
    names no NPU."""
    npu = _description(path).get("npu")
    if not isinstance(npu, str) or not npu:
        got = "nothing"
        if npu is not None:
            got = f"{npu!r:.60}"
        raise ValueError(
            f'{path / DESCRIPTION}: npu: got {got}, allowed is an NPU\'s name, as {{"npu": "NAME"}}'
        )
    return npu


def _npu(path: Path) -> str:
    """The NPU that the ``job.json`` of a folder names; "" if the file names none or is broken."""
    try:
        return stated_npu(path)
    except (ValueError, OSError):
        return ""


def _may_be(path: Path, target: str) -> bool:
    """True if a folder is a dump of a target, or may be meant as one: its ``job.json`` names the
    target, a similar name or no NPU, or is broken."""
    npu = _npu(path)
    return npu in ("", target) or bool(near(npu, [target]))


@contextmanager
def _of_folder(path: Path) -> Iterator[None]:
    """A context that puts the folder's path before the text of a ValueError or LookupError raised
    in it."""
    try:
        yield
    except (ValueError, LookupError) as error:
        kind = ValueError
        if isinstance(error, Unsupported):
            kind = Unsupported
        text = reason(error)
        # an error of the target's own code already has the path, from ``guarded``
        if f" of {path}: " not in text:
            text = named(path, text)
        raise kind(text).with_traceback(error.__traceback__) from error.__cause__


def _description(path: Path) -> dict[str, Any]:
    found = read_json(path / DESCRIPTION)
    wrong = not isinstance(found, dict)
    refuse_if(wrong, path / DESCRIPTION, type(found).__name__, "is an object")
    return found


def _refuse_keys(where: Path, description: Mapping[str, Any], strict: bool) -> None:
    """Raise ValueError for a key of ``job.json`` that is not in ``KEYS``; if not ``strict``, only
    for a key that looks like a misspelling of a key in ``KEYS``.
    """
    for name in description:
        if name in KEYS:
            continue
        nearest = near(name, KEYS)
        if nearest or strict:
            raise ValueError(
                f"{where}: got the key {name!r:.60}, allowed are {', '.join(KEYS)}{nearest}"
            )


def _text_of(where: Path, description: Mapping[str, Any], name: str) -> str:
    """The text under a key of ``job.json``, "" if the key is missing; raises ValueError for a
    value of another type."""
    given = description.get(name)
    refuse_if(not isinstance(given, str | None), f"{where}: {name}", f"{given!r:.60}", "is a text")
    return given or ""


def _address(where: Path, name: str, text: Any) -> int:
    try:
        return int(str(text), 0)
    except ValueError:
        raise ValueError(
            f"{where}: addresses, {name}: got {text!r:.60}, "
            'allowed is a number such as "0x10000000"'
        ) from None


def _object(path: Path, description: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = description.get(name, {})
    wrong = not isinstance(found, dict)
    refuse_if(wrong, f"{path / DESCRIPTION}: {name}", f"{found!r:.80}", "is an object")
    return dict(found)


def _buffers(path: Path, description: Mapping[str, Any]) -> dict[str, bytes]:
    """The bytes of the ``.bin`` files of a dump, by file name without suffix; big-endian buffers
    are swapped to little-endian."""
    buffers = {file.stem: read_bounded(file, MOST_BYTES) for file in sorted(path.glob("*.bin"))}
    for name, size in _object(path, description, "big_endian").items():
        known = isinstance(size, int) and size in SWAPS[1:] and name in buffers
        if not known or len(buffers[name]) % size:
            sizes = ", ".join(map(str, sorted(SWAPS)[1:]))
            raise ValueError(
                f"{path / DESCRIPTION}: big_endian: got {name!r} in words of {size!r} bytes, "
                f"allowed are words of {sizes} bytes that fill one of the buffers "
                f"{', '.join(buffers) or '(there are none)'}"
            )
        buffers[name] = swap_words(np.frombuffer(buffers[name], np.uint8), size).tobytes()
    return buffers


def _jobs(path: Path, buffers: Mapping[str, bytes], maps: Maps) -> Sequence[Job]:
    """The jobs in ``writes.txt``, or, if there is no such file, the one job in ``words.bin``."""
    block, registers = next(iter(maps.items()))
    if (path / WRITES).is_file():
        return jobs_of_writes(read_writes(path / WRITES), maps, path / WRITES)
    data, size = buffers.get(Path(WORDS).stem, b""), WORD_BYTES * len(registers)
    refuse_if(
        len(data) != size,
        path / WORDS,
        f"{len(data)} bytes",
        f"is {size} bytes, a word for each register of registers.csv",
    )
    return (Job(block, np.frombuffer(data, "<u4")),)
