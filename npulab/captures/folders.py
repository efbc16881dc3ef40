"""The files of a capture's folder: ``capture.json`` and the bytes as recorded.

::

    {"format": 1, "target": "vivante", "chip": "...", "provenance": "vendor driver",
     "source": "...", "tool": "...", "date": "2023-08-07", "jobs": [{"block": "NN", "words":
     "nn.bin", "start": {"block": "STATE", "commands": "commands.bin"}}], "buffers": {"input":
     "input.bin"}, "addresses": {"input": "0x3348e240"}, "parameters": {}, "sha256": {"nn.bin":
     "..."}}

A job names a file of ``words`` (32 bits, little-endian), of ``writes`` (each two words, offset and
value), or ``commands``, a command stream from which the target reads the writes. ``start`` is
another job; ``label`` and ``unit`` are texts.

Any other key of a job makes the capture format 2: ``before`` (a file as ``writes``, of what earlier
jobs wrote), ``masks`` (a file of two words for each mask: the number of a write, and the bits that
it changes), ``writes64``, ``before64`` or ``masks64`` (the file has words of 64 bits), and ``at``
(the byte in ``jobs.bin``, the file for the words of all jobs, at which the job's words begin).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npulab.captures.capture import COMMANDS, OUTPUT_TEXT, TEXTS, WORD, Capture, Job, Writes
from npulab.captures.target import Target
from npulab.support.refuse import near

# The keys of a job in format 1, which also allows the texts ``label`` and ``unit``.
FIRST_KEYS = ("block", "words", "writes", "commands", "start")
# A capture is format 2 if a job has a key that format 1 lacks.
FORMATS = (1, 2)
PAIRS = ("writes", "before", "masks")
# JOBS is a file with the words of all jobs; AT is the key for the byte where a job's words begin.
JOBS, AT = "jobs.bin", "at"
# From this number of jobs on, the words of all jobs are in one file; else each job has its file.
MANY_JOBS = 8
# The most bytes of a file's name.
LONGEST = 255
# A key of ``PAIRS`` with this end names a file of 64-bit words.
WIDE = "64"
DESCRIPTION = "capture.json"


def need_there(path: Path) -> None:
    """Raise FileNotFoundError, with similar names in its folder, if a path does not exist."""
    if not path.exists():
        beside = [sibling.name for sibling in path.parent.glob("*")]
        raise FileNotFoundError(f"{path}: there is no such file or folder{near(path.name, beside)}")


def capture_files(capture: Capture, target: Callable[[str], Target]) -> dict[str, bytes]:
    """The files of a capture's folder, as bytes by name, with ``capture.json`` last.

    ``target`` is a function that gives the target of a name; it is called only if the capture holds
    a command stream. Raises ValueError if the capture cannot be written.
    """
    files: dict[str, bytes] = {}
    buffers = {name: f"{name.replace(':', '-')}.bin" for name in capture.buffers}
    for name, data in capture.buffers.items():
        _add(files, buffers[name], bytes(data), f"capture {capture.name}: buffer {name!r}")
    jobs = []
    for task, job in enumerate(capture.jobs):
        stem = job.block.lower()
        if len(capture.jobs) > 1:
            stem = f"job{task}"
        jobs.append(_describe(job, stem, capture, files, target))
    if len(jobs) >= MANY_JOBS:
        _in_one_file(jobs, files, f"capture {capture.name}: jobs")
    version = FORMATS[0]
    if any({*job} - {*FIRST_KEYS, "label", "unit"} for job in _every(jobs)):
        version = FORMATS[1]
    description = {
        "format": version,
        "target": capture.target,
        "chip": capture.chip,
        **_texts(capture),
        "jobs": jobs,
        "buffers": buffers,
        "addresses": {name: f"{where:#010x}" for name, where in capture.addresses.items()},
        "parameters": dict(capture.parameters),
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())},
    }
    try:
        text = json.dumps(description, indent=1, ensure_ascii=False) + "\n"
        return {**files, DESCRIPTION: text.encode()}
    except (TypeError, ValueError) as error:
        raise ValueError(f"capture {capture.name}: cannot be written as JSON: {error}") from None


def _in_one_file(jobs: Sequence[dict[str, Any]], files: dict[str, bytes], where: str) -> None:
    """Replace the files of the jobs' words by one file, ``jobs.bin``: to open a file takes longer
    than to read its words."""
    words = bytearray()
    for job in jobs:
        if "words" in job:
            job[AT] = len(words)
            words += files.pop(job["words"])
            job["words"] = JOBS
    if words:
        _add(files, JOBS, bytes(words), where)


def _texts(capture: Capture) -> dict[str, str]:
    """The texts of a capture that say where it comes from, by name."""
    texts = {name: getattr(capture, name) for name in TEXTS}
    if capture.output_provenance:
        texts[OUTPUT_TEXT] = capture.output_provenance
    return texts


def _every(jobs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The descriptions of jobs, then those of the jobs in their ``start``, at any depth."""
    every = [*jobs]
    for job in every:
        if "start" in job:
            every.append(job["start"])  # the loop reaches the added job too
    return every


def is_hidden(path: Path, folder: Path) -> bool:
    """True if any part of the path below the folder begins with a dot, as the folders of an
    unfinished save do."""
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def plain_name(name: str, what: str) -> None:
    """Raise ValueError unless a text is the plain name of a file in the folder: not a path, not
    ``capture.json``, and at most 255 bytes long.
    """
    plain = name == Path(name).name and "\\" not in name
    reserved = name in ("", ".", "..", DESCRIPTION)
    if not plain or reserved or len(name.encode("utf-8", "replace")) > LONGEST:
        raise ValueError(
            f"{what}: got {name!r}, allowed is the plain name of a file inside the folder"
        )


def _describe(
    job: Job,
    stem: str,
    capture: Capture,
    files: dict[str, bytes],
    target: Callable[[str], Target],
) -> dict[str, Any]:
    """The description of a job for ``capture.json``; the files that hold the job's words are added
    to ``files``."""
    described: dict[str, Any] = {"block": job.block}
    where = f"capture {capture.name}: job"
    if not job.writes:
        described["words"] = f"{stem}.bin"
        _add(files, f"{stem}.bin", job.words.astype("<u4").tobytes(), where)
    elif _is_stream(job, capture, target):
        described["commands"] = f"{COMMANDS}.bin"
    else:
        described |= _pairs("writes", job.writes, stem, where, files)
    if job.before:
        described |= _pairs("before", job.before, f"{stem}-before", where, files)
    if job.masks:
        described |= _pairs("masks", tuple(job.masks.items()), f"{stem}-masks", where, files)
    if job.label:
        described["label"] = job.label
    if job.unit:
        described["unit"] = job.unit
    if job.start:
        described["start"] = _describe(job.start, f"{stem}-start", capture, files, target)
    return described


def _pairs(
    kind: str, pairs: Writes, stem: str, where: str, files: dict[str, bytes]
) -> dict[str, str]:
    """Add a file of pairs of numbers to ``files``, as 32-bit words, or as 64-bit words if a number
    needs them; return the file's name by its key in ``capture.json``."""
    key, dtype = kind, "<u4"
    if max(map(max, pairs)) > WORD:
        key, dtype = kind + WIDE, "<u8"
    _add(files, f"{stem}.bin", np.array(pairs, dtype).tobytes(), where)
    return {key: f"{stem}.bin"}


def _is_stream(job: Job, capture: Capture, target: Callable[[str], Target]) -> bool:
    """True if the register writes in the capture's command stream are exactly those of the job."""
    if COMMANDS not in capture.buffers or job.masks:
        return False
    words = np.frombuffer(capture.buffers[COMMANDS], "<u4")
    return tuple(target(capture.target).writes(words)) == job.writes


def _add(files: dict[str, bytes], name: str, data: bytes, what: str) -> None:
    plain_name(name, what)
    if name in files:
        raise ValueError(
            f"{what}: got {name!r}, which another buffer or job of the capture has, "
            "allowed is another name"
        )
    files[name] = data
