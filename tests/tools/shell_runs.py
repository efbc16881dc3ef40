"""Commands of npulab run in this process, and files before and after them."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import npulab.cli


class ShellResult(NamedTuple):
    """The exit status, standard output and standard error of a shell command."""

    code: int
    out: str
    err: str


def shell(*arguments: str | Path) -> ShellResult:
    """Run a command in this process; a traceback fails the test by itself."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = npulab.cli.main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
    return ShellResult(code, out.getvalue(), err.getvalue())


def refused(result: ShellResult) -> str:
    """Return the sentence with which a command refused bad input."""
    assert result.code == 2, result
    assert not result.out or re.fullmatch(r"\d+ captures, \d+ differ, \d+ unreadable\n", result.out)
    assert "Traceback" not in result.err
    lines = result.err.strip().splitlines()
    assert len(lines) == 1, result.err
    assert len(lines[0]) > 20
    return lines[0]


def json_lines(text: str) -> list[dict[str, Any]]:
    """Return the objects of a text with a JSON object a line."""
    return [json.loads(line) for line in text.splitlines()]


def flipped(data: bytes, bit: int) -> bytes:
    """Return bytes with one bit changed."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def everything_below(folder: Path) -> dict[str, bytes | None]:
    """Return the bytes of every file below a folder, None for a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }
