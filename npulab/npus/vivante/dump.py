"""Importer of the text that prints a command stream, the NN fields and three buffers of one job.

It comes plain, or as one ``diff -u`` of two stacks, which holds two captures.  Blogs turn its
blanks into non-breaking spaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from npulab.captures.capture import Capture, Job
from npulab.npus.vivante.commands import loads, writes
from npulab.npus.vivante.facts import PRINTED, USUAL_CHIP, maps

# who printed a file of this name
SIDES = {"galcore": ("vendor", "vendor driver"), "mesa": ("mesa", "open driver")}
NBSP = "\xa0"
NAMES = {item.name for item in PRINTED}
BUFFERS = ("coefficients", "input", "output")

FIELD = re.compile(r"map->(\w+) = (0x[0-9a-fA-F]+);\s*/\* \((-?\d+)\) \*/$")
COMMAND = re.compile(r"(0x[0-9a-fA-F]{8}),\s*/\*.*\*/$")
BASE = re.compile(r"Base: (0x[0-9a-fA-F]+)")
BYTES = re.compile(r"0x[0-9a-fA-F]{2}(?:, 0x[0-9a-fA-F]{2})*(,?)$")
FILE = re.compile(r"(?:---|\+\+\+) (\S+)\s+(\d{4}-\d\d-\d\d)?")
SIGN = re.compile(r"map->\w+ = |LOAD_STATE \(1\) Base:")


class Line(NamedTuple):
    number: int
    text: str


def recognises(path: Path) -> bool:
    """A text file that prints NN fields or a command stream in this form."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(2 ** 20)
    return bool(SIGN.search(_text(head)))


def read(path: Path) -> dict[str, Capture]:
    """A capture per side of the dump.

    Raises ValueError naming file, line and field where the dump is cut short or does not add up.
    """
    text = _text(path.read_bytes())
    lines = [Line(n, line.rstrip()) for n, line in enumerate(text.split("\n"), 1)]
    out: dict[str, Capture] = {}
    for stem, date, side in _sides(path, lines):
        name, provenance = SIDES.get(stem, (stem, "board"))
        if name in out:
            raise ValueError(f"{path}: both sides of the diff are called {name}, allowed are two names")
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise ValueError(f"{path}: a side is called {name!r}, allowed are letters, digits, _, - and .")
        out[name] = replace(_capture(path, name, side), provenance=provenance, date=date or "", tool=stem)
    return out


def _text(data: bytes) -> str:
    """UTF-8, or Latin-1 where it is none (a cut-off end counts as UTF-8), with plain blanks."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        text = data.decode("utf-8", "replace") if error.start > len(data) - 4 else data.decode("latin-1")
    return text.replace(NBSP, " ")


def _sides(path: Path, lines: list[Line]) -> Iterator[tuple[str, str | None, list[Line]]]:
    """(file stem, date, lines) of each stack."""
    hunk = next((i for i, line in enumerate(lines) if line.text.startswith("@@ ")), None)
    if hunk is None:
        yield path.stem, None, lines
        return
    again = next((line for line in lines[hunk + 1:] if line.text.startswith("@@ ")), None)
    if again:
        raise ValueError(f"{path}, line {again.number}: the diff leaves lines out between its hunks; make it with "
                         "diff -U 1000000")
    heads = {line.text[0]: FILE.match(line.text) for line in lines[max(hunk - 2, 0):hunk]
             if line.text.startswith(("--- ", "+++ "))}
    for sign in "-+":
        head = heads.get(sign)
        if head is None:
            raise ValueError(f"{path}, line {lines[hunk].number}: a diff without its "
                             f"{3 * sign} line before @@")
        body = [Line(line.number, line.text[1:]) for line in lines[hunk + 1:]
                if not line.text or line.text[0] in (" ", sign)]
        yield Path(head.group(1)).stem, head.group(2), body


def _capture(path: Path, side: str, lines: list[Line]) -> Capture:
    """What one side of the dump records."""
    body = iter([line for line in lines if line.text.strip()])
    for line in body:
        if line.text.strip() == "{":
            break
    else:
        raise ValueError(f"{path}, side {side}: got no line with a lone {{ that opens the command stream")
    words = _commands(path, side, body)
    values, first = _values(path, side, body)
    buffers = _buffers(path, side, first, body)
    nn, registers = PRINTED.encode(values), maps(USUAL_CHIP)
    decoded = registers["NN"].decode(nn)
    _sizes(path, side, decoded, buffers)
    start = Job.from_writes("STATE", writes(words), registers["STATE"])
    addresses = {"coefficients": decoded["kernel_address"], "input": decoded["in_image_address"],
                 "output": decoded["out_image_address"]}
    for _, item, raw in start.values(registers):
        if item.name == "NN_INST_ADDR":
            addresses["nn"] = int(item.value(raw))
    buffers = {"commands": words.astype("<u4").tobytes(), **buffers}
    return Capture(side, "vivante", USUAL_CHIP, (Job("NN", nn, start=start),), buffers, addresses,
                   source=path.name, maps=registers)


def _commands(path: Path, side: str, body: Iterator[Line]) -> np.ndarray:
    words: list[int] = []
    said: dict[int, Line] = {}  # the words that are printed as the head of a LOAD_STATE
    for line in body:
        if line.text.strip() == "}":
            return _whole(path, side, np.array(words, np.uint32), said, line)
        match = COMMAND.match(line.text.strip())
        if not match:
            raise _unexpected(path, side, line, "a command word 0x00000000, /* ... */ or }")
        base = BASE.search(line.text)
        if base:
            said[len(words)] = line
            if int(match.group(1), 16) % 2 ** 16 * 4 != int(base.group(1), 16):
                raise ValueError(f"{path}, line {line.number}, side {side}: the command {match.group(1)} is said to "
                                 f"load {base.group(1)}, it loads {int(match.group(1), 16) % 2 ** 16 * 4:#07x}")
        words.append(int(match.group(1), 16))
    raise ValueError(f"{path}, side {side}: the dump ends inside the command stream, after {len(words)} words")


def _whole(path: Path, side: str, words: np.ndarray, said: Mapping[int, Line], end: Line) -> np.ndarray:
    """The words of a command stream, if no word is missing between its commands."""
    if len(words) % 2:
        raise ValueError(f"{path}, line {end.number}, side {side}: got {len(words)} command words, allowed is an even "
                         "number; one is missing")
    heads = {at for at, _, _ in loads(words)}
    wrong = [line for at, line in said.items() if at not in heads]
    if wrong:
        raise ValueError(f"{path}, line {wrong[0].number}, side {side}: the LOAD_STATE is not where the command before "
                         "it ends; a command word is missing")
    return words


def _values(path: Path, side: str, body: Iterator[Line]) -> tuple[dict[str, int], Line | None]:
    """Field values by printed name, and the line behind the last field."""
    values: dict[str, int] = {}
    behind = None
    for line in body:
        match = FIELD.match(line.text.strip())
        if not match:
            behind = line
            break
        name, value = match.group(1), int(match.group(2), 16)
        if name in values or name not in NAMES:
            known = "once" if name in values else "the fields that update 4 prints"
            raise ValueError(f"{path}, line {line.number}, side {side}: got field {name}, allowed is {known}")
        if value != int(match.group(3)):
            raise ValueError(f"{path}, line {line.number}, side {side}: field {name} is {match.group(2)} "
                             f"and ({match.group(3)}), which are not the same number")
        try:
            PRINTED.encode({name: value})
        except ValueError as error:
            raise ValueError(f"{path}, line {line.number}, side {side}: {error}") from None
        values[name] = value
    missing = [item for item in PRINTED if item.name not in values]
    if missing:
        names = ", ".join(f"{item.name} (word {item.bits})" for item in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        where = f", line {behind.number}" if behind else ""
        raise ValueError(f"{path}{where}, side {side}: field {names}{more} is missing, a job has all "
                         f"{len(NAMES)} fields of {len(PRINTED)} words")
    return values, behind


def _buffers(path: Path, side: str, first: Line | None, body: Iterator[Line]) -> dict[str, bytes]:
    """Coefficients, input and output; the last line of each has no comma behind it."""
    out: dict[str, bytes] = {}
    rows: list[str] = []
    for line in [first, *body] if first else []:
        assert line is not None
        match = BYTES.match(line.text.strip())
        if not match:
            raise _unexpected(path, side, line, f"bytes of the {BUFFERS[len(out)]} buffer, as 0x00, 0x01")
        rows.append(line.text.strip().rstrip(","))
        if not match.group(1):
            out[BUFFERS[len(out)]] = bytes(int(byte, 16) for row in rows for byte in row.split(", "))
            rows = []
        if len(out) == len(BUFFERS):
            return out
    raise ValueError(f"{path}, side {side}: the dump ends inside the {BUFFERS[len(out)]} buffer; a job has "
                     f"{', '.join(BUFFERS)}")


def _sizes(path: Path, side: str, v: Mapping[str, int], buffers: Mapping[str, bytes]) -> None:
    want = {"input": v["kernel_z_size"] * v["in_image_y_stride"] * v["in_image_x_stride"],
            "output": v["out_image_z_size"] * v["out_image_y_stride"] * v["out_image_x_stride"]}
    for name, size in want.items():
        if len(buffers[name]) < size:
            raise ValueError(f"{path}, side {side}: got {len(buffers[name])} bytes of {name}, the fields say "
                             f"{size}")


def _unexpected(path: Path, side: str, line: Line, allowed: str) -> ValueError:
    return ValueError(f"{path}, line {line.number}, side {side}: got {line.text.strip()[:60]!r}, allowed is "
                      f"{allowed}")
