"""Dumps that a recorder writes as a folder: ``job.json`` says what was recorded, jobs and buffers
are files beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npulab.captures.capture import TEXTS, Capture, Job
from npulab.captures.target import Features, Importer, Unsupported, each_read, guarded, select
from npulab.captures.writes import read_writes
from npulab.layout.stored import SWAPS, swap_words
from npulab.registers.fields import WORD_BYTES
from npulab.registers.map import RegisterMap
from npulab.support.files import read_bounded, read_json
from npulab.support.refuse import named, near, reason, refuse_if

DESCRIPTION, WORDS, WRITES = "job.json", "words.bin", "writes.txt"
MOST_BYTES = 2**28  # of a buffer
KEYS = ("npu", "chip", *TEXTS, "addresses", "parameters", "big_endian")
Maps = Mapping[str, RegisterMap]


class Recorded(NamedTuple):
    """Jobs, buffers and where these lie, in the place of what the files of a dump say."""

    jobs: Sequence[Job]
    buffers: Mapping[str, bytes]
    addresses: Mapping[str, int]


Jobs = Callable[[Path, Mapping[str, bytes], Maps], Sequence[Job] | Recorded]


def folder_importer(
    target: str, chips: Mapping[str, Features], tables: Maps, jobs: Jobs | None = None
) -> Importer:
    """The importer of folders that are dumps of a target, and of folders of such folders.

    Every ``.bin`` is a buffer of that name.  ``job.json`` has at least ``npu``, the target's name::

        {"npu": "mine", "chip": "mine2", "provenance": "board", "source": "who, with what",
         "date": "2026-01-31", "addresses": {"input": "0x10000000"}, "parameters": {"kernel_h": 3},
         "big_endian": {"words": 4}}

    ``big_endian`` names buffers whose words, of so many bytes, have the first byte highest: they
    are turned.  Another key is refused; a reader of your own may have keys of its own, and only
    what may be a misspelt one is refused then.  ``jobs(path, buffers, maps)`` gives the jobs by the
    maps of the chip; left out, they are in ``words.bin``, the words of the first block, or in
    ``writes.txt``, as ``read_writes`` has it.  If buffers have other names than their files, or
    jobs say where they lie, it gives a ``Recorded``.  ``read`` raises ValueError with file, what,
    got and allowed.
    """
    make = guarded(jobs or _jobs, target, "jobs")

    def recognises(path: Path) -> bool:
        return any(_npu(one) == target for one in described(path))

    def read(path: Path) -> Mapping[str, Capture | ValueError]:
        if (path / DESCRIPTION).is_file():
            return {path.name: read_one(path)}
        return each_read(
            {one.name: partial(read_one, one) for one in described(path) if _may_be(one, target)}
        )

    def read_one(path: Path) -> Capture:
        said, where = _description(path), path / DESCRIPTION
        npu = stated_npu(path)
        refuse_if(
            npu != target,
            f"{where}: npu",
            repr(npu),
            f"is {target!r}, as the dumps beside it have it{near(npu, [target])}",
        )
        _refuse_keys(where, said, of_its_own=jobs is not None)
        chip = _text(where, said, "chip") or next(iter(chips))
        refuse_if(
            chip not in chips,
            f"{where}: chip",
            repr(chip),
            f"is one of {', '.join(chips)}{near(chip, chips)}",
        )
        maps, buffers = select(tables, chips[chip]), _buffers(path, said)
        with _of_folder(path):
            made = make(path, buffers, maps)
        buffers.pop(Path(WORDS).stem, None)
        texts: dict[str, Any] = {name: _text(where, said, name) for name in TEXTS if name in said}
        addresses = {
            name: _address(where, name, at) for name, at in _object(path, said, "addresses").items()
        }
        if isinstance(made, Recorded):
            recorded = made
        else:
            recorded = Recorded(made, buffers, addresses)
        try:
            return Capture(
                path.name,
                target,
                chip,
                tuple(recorded.jobs),
                recorded.buffers,
                recorded.addresses,
                _object(path, said, "parameters"),
                maps=maps,
                **texts,
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {str(error).removeprefix(f'{where}: ')}") from None

    return Importer("folder of job.json, jobs and buffers", recognises, read)


def described(path: Path) -> list[Path]:
    """The folders that have a description: the path, or those in it."""
    folders = []
    if path.is_dir():
        folders = [path, *sorted(path.iterdir())]
    return [one for one in folders if (one / DESCRIPTION).is_file()]


def stated_npu(path: Path) -> str:
    """The NPU that a folder says it is a dump of; raises ValueError where its description is broken
    or names none."""
    npu = _description(path).get("npu")
    if not isinstance(npu, str) or not npu:
        if npu is None:
            got = "nothing"
        else:
            got = f"{npu!r:.60}"
        raise ValueError(
            f'{path / DESCRIPTION}: npu: got {got}, allowed is an NPU\'s name, as {{"npu": "NAME"}}'
        )
    return npu


def _npu(path: Path) -> str:
    """The NPU that a folder says it is a dump of, "" if it does not."""
    try:
        return stated_npu(path)
    except (ValueError, OSError):
        return ""


def _may_be(path: Path, target: str) -> bool:
    """Whether a folder is a dump of a target, or was to be one: broken, or with a misspelt name."""
    npu = _npu(path)
    return npu in ("", target) or bool(near(npu, [target]))


@contextmanager
def _of_folder(path: Path) -> Iterator[None]:
    """What is refused of a dump's jobs, with the folder it is in."""
    try:
        yield
    except (ValueError, LookupError) as error:
        kind = ValueError
        if isinstance(error, Unsupported):
            kind = Unsupported
        told = reason(error)
        text = (
            told if f" of {path}: " in told else named(path, told)
        )  # what the target's own code failed at
        raise kind(text).with_traceback(error.__traceback__) from error.__cause__


def _description(path: Path) -> dict[str, Any]:
    said = read_json(path / DESCRIPTION)
    refuse_if(not isinstance(said, dict), path / DESCRIPTION, type(said).__name__, "is an object")
    return said


def _refuse_keys(where: Path, said: Mapping[str, Any], of_its_own: bool) -> None:
    """Raise ValueError for a key that nothing reads."""
    for name in said:
        nearest = near(name, KEYS)
        if name not in KEYS and (nearest or not of_its_own):
            raise ValueError(
                f"{where}: got the key {name!r:.60}, allowed are {', '.join(KEYS)}{nearest}"
            )


def _text(where: Path, said: Mapping[str, Any], name: str) -> str:
    """What a description says under a name; "" where it says nothing."""
    given = said.get(name)
    refuse_if(not isinstance(given, str | None), f"{where}: {name}", f"{given!r:.60}", "is a text")
    return given or ""


def _address(where: Path, name: str, at: Any) -> int:
    try:
        return int(str(at), 0)
    except ValueError:
        raise ValueError(
            f'{where}: addresses, {name}: got {at!r:.60}, allowed is a number such as "0x10000000"'
        ) from None


def _object(path: Path, said: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = said.get(name, {})
    refuse_if(
        not isinstance(found, dict),
        f"{path / DESCRIPTION}: {name}",
        f"{found!r:.80}",
        "is an object",
    )
    return dict(found)


def _buffers(path: Path, said: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a dump by name, little-endian."""
    buffers = {file.stem: read_bounded(file, MOST_BYTES) for file in sorted(path.glob("*.bin"))}
    for name, size in _object(path, said, "big_endian").items():
        if (
            not isinstance(size, int)
            or size not in SWAPS[1:]
            or len(buffers.get(name, b"?")) % size
        ):
            raise ValueError(
                f"{path / DESCRIPTION}: big_endian: got {name!r} in words of {size!r} bytes, "
                "allowed are "
                f"whole words of {', '.join(map(str, sorted(SWAPS)[1:]))} of one of "
                f"{', '.join(buffers) or 'none'}"
            )
        buffers[name] = swap_words(np.frombuffer(buffers[name], np.uint8), size).tobytes()
    return buffers


def _jobs(path: Path, buffers: Mapping[str, bytes], maps: Maps) -> Sequence[Job]:
    block, registers = next(iter(maps.items()))
    if (path / WRITES).is_file():
        writes = read_writes(path / WRITES)
        if len(maps) == 1 and not registers.repeats:
            return (Job.from_writes(block, writes, registers),)
        jobs, rest = Job.split(writes, maps)
        if rest:
            raise ValueError(
                f"{path / WRITES}: got a write to {rest[0][0]:#x}, allowed are addresses of "
                "registers.csv"
            )
        return jobs
    data, size = buffers.get(Path(WORDS).stem, b""), WORD_BYTES * len(registers)
    refuse_if(
        len(data) != size,
        path / WORDS,
        f"{len(data)} bytes",
        f"is {size}, as many words as registers.csv has",
    )
    return (Job(block, np.frombuffer(data, "<u4")),)
