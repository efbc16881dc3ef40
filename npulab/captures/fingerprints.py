"""Fingerprints: a text that says what a device is at the moment, and how it differs from before.

A fingerprint has what a command or a function says of the board, its kernel, driver, firmware and
model, and the sha256 of the local files that a program device runs.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npulab.captures.capture import Capture, Job
from npulab.captures.devices import Command
from npulab.support.files import bounded_sum, read_bounded
from npulab.support.processes import NotRun, arguments, execute

# The most bytes that a command may print.
MOST_TEXT = 2**16
# The most bytes of a program's file; a larger file counts as missing.
MOST_PROGRAM = 2**28
# A command counts as hung after this many seconds.
LIMIT = 60.0
# A journal names a job or a fingerprint by this many hexadecimal digits of its sha256.
SHORT = 12
# The most letters of a changed line that a sentence shows.
SHOWN = 120
INPUT, OUTPUT = "input", "output"

# What gives a text: a command (a text that a shell reads, or a list of arguments), or a function.
Asked = str | tuple[str, ...] | list[str] | Callable[[], str]


@dataclass(frozen=True)
class Fingerprint:
    """The text of a fingerprint, a line for each fact.

    >>> Fingerprint("Linux 6.1\\nfirmware ab12").changes(Fingerprint("Linux 6.1\\nfirmware cd34"))
    "line 2 was 'firmware ab12', is 'firmware cd34'"
    """

    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def short(self) -> str:
        """The first 12 digits of the sha256, as a journal has them."""
        return self.sha256[:SHORT]

    def changes(self, now: Fingerprint) -> str:
        """The first line that changed, as it was and as it is ``now``; "" if no line changed."""
        before, after = self.text.split("\n"), now.text.split("\n")
        for number in range(max(len(before), len(after))):
            was, now_is = _line(before, number), _line(after, number)
            if was != now_is:
                return f"line {number + 1} was {was!r:.{SHOWN}}, is {now_is!r:.{SHOWN}}"
        return ""


def _line(lines: list[str], number: int) -> str:
    if number < len(lines):
        return lines[number]
    return ""


def fingerprint_of(device: Any, asked: Asked | None) -> Fingerprint | None:
    """The fingerprint of a device: the text that ``asked`` gives, and a line for each local file
    that is an argument of its program; None if there is neither.

    Raises NotRun if the command cannot be run, does not end with status 0 within 60 seconds, or
    prints nothing.
    """
    lines = []
    if asked is not None:
        lines.append(said_by(asked, "fingerprint"))
    for path in programs_of(device):
        lines.append(f"program {path}: sha256 {sum_of(path)}")
    if not lines:
        return None
    return Fingerprint("\n".join(lines))


def said_by(asked: Asked, name: str) -> str:
    """The text that a command prints, or that a function returns, without blanks at its ends.
    Raises NotRun, as ``fingerprint_of`` does; the error begins with ``name``."""
    if callable(asked):
        return str(asked()).strip()
    with tempfile.TemporaryDirectory(prefix="npulab-") as folder:
        printed = Path(folder, "printed")
        # the shell sends the output to a file, and reads a command that is one text
        script = asked
        if not isinstance(script, str):
            script = '"$@"'
        words = arguments(name, ("sh", "-c", f"exec >{printed}\n{script}", "sh"))
        if not isinstance(asked, str):
            words = (*words, *arguments(name, asked))
        end = execute(name, words, LIMIT)
        if end.status != 0:
            raise NotRun(f"{name}: got {end} from {asked!r}, allowed is status 0")
        text = read_bounded(printed, MOST_TEXT).decode("utf-8", "replace").strip()
    if not text:
        raise NotRun(f"{name}: got nothing from {asked!r}, allowed is a command that prints text")
    return text


def programs_of(device: Any) -> list[Path]:
    """The local files among the arguments of the ``Command`` that a device is or has inside; an
    empty list for other devices, and for a command that a shell reads."""
    inner = device
    while not isinstance(inner, Command) and getattr(inner, "device", None) is not None:
        inner = inner.device
    if not isinstance(inner, Command) or isinstance(inner.program, str):
        return []
    return [Path(word) for word in inner.program if Path(word).is_file()]


def sum_of(path: Path) -> str:
    """The sha256 of a file; "missing" if it cannot be read or is too large."""
    try:
        return bounded_sum(path, MOST_PROGRAM)
    except (OSError, ValueError):
        return "missing"


def content_hash(capture: Capture) -> str:
    """The sha256 of all that a device gets of a capture: target, chip, jobs, addresses, and all
    buffers except ``output``.

    The name of a capture does not change the hash.

    >>> a = Capture("a", "demo", "x", (), buffers={"output": b"1"})
    >>> content_hash(a) == content_hash(Capture("b", "demo", "x", ()))
    True
    """
    buffers = {}
    for name, data in capture.buffers.items():
        if name != OUTPUT:
            buffers[name] = hashlib.sha256(data).hexdigest()
    stated = {
        "target": capture.target,
        "chip": capture.chip,
        "jobs": [_job(job) for job in capture.jobs],
        "addresses": dict(capture.addresses),
        "buffers": buffers,
    }
    return hash_of(stated)


def hash_of(stated: Mapping[str, Any]) -> str:
    """The sha256 of values that JSON can hold, in one form: sorted keys, no blanks."""
    text = json.dumps(stated, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _job(job: Job) -> list[Any]:
    start = None
    if job.start is not None:
        start = _job(job.start)
    words = hashlib.sha256(job.words.tobytes()).hexdigest()
    return [job.block, words, [*map(list, job.writes)], [*map(list, job.before)], start]
