"""What a capture's folder holds: ``capture.json`` and the bytes as recorded.

::

    {"format": 1, "target": "vivante", "chip": "...", "provenance": "vendor driver",
     "source": "...", "tool": "...", "date": "2023-08-07", "jobs": [{"block": "NN", "words":
     "nn.bin", "start": {"block": "STATE", "commands": "commands.bin"}}], "buffers": {"input":
     "input.bin"}, "addresses": {"input": "0x3348e240"}, "parameters": {}, "sha256": {"nn.bin":
     "..."}}

A job is ``words`` (little-endian) or ``writes`` ((offset, value) pairs of words); ``commands`` is a
command stream that the target reads the writes from.  ``writes64`` are pairs of 64-bit words, where
an offset needs them.  A job may have ``before`` (pairs that an earlier job wrote) and ``masks``
((number of a write, bits that it changes) pairs), which make the format 2; ``label`` and ``unit``
are texts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npulab.captures.capture import COMMANDS, TEXTS, WORD, Capture, Job, Writes
from npulab.captures.target import Target

FIRST_KEYS = ("block", "words", "writes", "commands", "start")  # of a job in format 1
FORMATS = (1, 2)  # 2 where readers of 1 would take a job for another
PAIRS = ("writes", "before", "masks")
LONGEST = 255  # bytes of a file's name
WIDE = "64"  # behind the name of pairs of 64 bits
DESCRIPTION = "capture.json"


def capture_files(capture: Capture, target: Callable[[str], Target]) -> dict[str, bytes]:
    """The files of a capture's folder by name, the description last.

    ``target`` gives the target of a name; it is asked only where the capture holds a command
    stream.  Raises ValueError where the capture cannot be written.
    """
    files: dict[str, bytes] = {}
    buffers = {name: f"{name.replace(':', '-')}.bin" for name in capture.buffers}
    for name, data in capture.buffers.items():
        _add(files, buffers[name], bytes(data), f"capture {capture.name}: buffer {name!r}")
    jobs = [
        _describe(
            job,
            f"job{task}" if len(capture.jobs) > 1 else job.block.lower(),
            capture,
            files,
            target,
        )
        for task, job in enumerate(capture.jobs)
    ]
    newer = any({*job} - {*FIRST_KEYS, "label", "unit"} for job in _every(jobs))
    description = {
        "format": FORMATS[newer],
        "target": capture.target,
        "chip": capture.chip,
        **{name: getattr(capture, name) for name in TEXTS},
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


def _every(jobs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Jobs and those that start them."""
    starts = [job["start"] for job in jobs if "start" in job]
    return [*jobs, *(_every(starts) if starts else ())]


def is_hidden(path: Path, folder: Path) -> bool:
    """True if a name on the way from a folder to a path begins with a dot, as those of an
    unfinished save do."""
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def plain_name(name: str, what: str) -> None:
    """Refuse what is no plain name of a file beside the description; raises ValueError."""
    if (
        not name
        or name != Path(name).name
        or "\\" in name
        or name in (".", "..", DESCRIPTION)
        or len(name.encode("utf-8", "replace")) > LONGEST
    ):
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
    out: dict[str, Any] = {"block": job.block}
    if not job.writes:
        _add(
            files, f"{stem}.bin", job.words.astype("<u4").tobytes(), f"capture {capture.name}: job"
        )
        out["words"] = f"{stem}.bin"
    elif _is_stream(job, capture, target):
        out["commands"] = f"{COMMANDS}.bin"
    else:
        out |= _pairs("writes", job.writes, stem, capture, files)
    if job.before:
        out |= _pairs("before", job.before, f"{stem}-before", capture, files)
    if job.masks:
        out |= _pairs("masks", tuple(job.masks.items()), f"{stem}-masks", capture, files)
    out |= {name: text for name, text in (("label", job.label), ("unit", job.unit)) if text}
    if job.start:
        out["start"] = _describe(job.start, f"{stem}-start", capture, files, target)
    return out


def _pairs(
    kind: str,
    pairs: Writes,
    name: str,
    capture: Capture,
    files: dict[str, bytes],
) -> dict[str, str]:
    """The key and the file of pairs of words, of 64 bits where a number needs them."""
    wide = max(map(max, pairs)) > WORD
    data = np.array(pairs, "<u8" if wide else "<u4").tobytes()
    _add(files, f"{name}.bin", data, f"capture {capture.name}: job")
    return {kind + WIDE * wide: f"{name}.bin"}


def _is_stream(job: Job, capture: Capture, target: Callable[[str], Target]) -> bool:
    """Whether the capture's command stream holds the job's register writes."""
    if COMMANDS not in capture.buffers or job.masks:
        return False
    words = np.frombuffer(capture.buffers[COMMANDS], "<u4")
    return tuple(target(capture.target).writes(words)) == job.writes


def _add(files: dict[str, bytes], name: str, data: bytes, what: str) -> None:
    plain_name(name, what)
    if name in files:
        raise ValueError(f"{what}: got {name!r}, which another buffer or job of the capture has")
    files[name] = data
