"""Imports a text that prints the command stream, the NN fields and three buffers of one job.

The text is that of one job, or a ``diff -u`` of the texts of two driver stacks, which gives two
captures. Texts from blogs may have non-breaking spaces for blanks. The driver prints the buffers
when it submits the job, so the printed output is the memory before the job ran.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from npulab.captures.capture import BEFORE_RUN, RECORDED
from npulab.npus.kit import LOOK, Capture, Job, Line, first_bytes, lines_of, plain_text
from npulab.npus.vivante.commands import loads, writes
from npulab.npus.vivante.facts import PRINTED, USUAL_CHIP, maps, tensor_bytes

# Key: a file's name without suffix. Value: the name of its side, and its provenance.
SIDES = {"galcore": ("vendor", "vendor driver"), "mesa": ("mesa", "open driver")}
NAMES = {item.name for item in PRINTED}
BUFFERS = ("coefficients", "input", "output")

FIELD = re.compile(r"map->(\w+) = (0x[0-9a-fA-F]+);\s*/\* \((-?\d+)\) \*/$")
COMMAND = re.compile(r"(0x[0-9a-fA-F]{8}),\s*/\*.*\*/$")
BASE = re.compile(r"Base: (0x[0-9a-fA-F]+)")
BYTES = re.compile(r"0x[0-9a-fA-F]{2}(?:, 0x[0-9a-fA-F]{2})*(,?)$")
FILE = re.compile(r"(?:---|\+\+\+) (\S+)\s+(\d{4}-\d\d-\d\d)?")
SIGN, STREAM = re.compile(r"map->\w+ = "), re.compile(r"LOAD_STATE \(1\) Base:")
# The line with a lone { before the command stream, or the first hunk of a diff.
OPENS = re.compile(r"(?m)^[ +-]?\{\s*$|^@@ ")


@dataclass(frozen=True)
class Side:
    """The part of a dump that one driver stack printed. Its errors name the file and the side."""

    path: Path
    name: str

    def wrong(self, text: str, line: Line | None = None) -> ValueError:
        """Return an error that names the file, the side and, if given, the line."""
        place = ""
        if line:
            place = f", line {line.number}"
        return ValueError(f"{self.path}{place}, side {self.name}: {text}")

    def unexpected(self, line: Line, allowed: str) -> ValueError:
        return self.wrong(f"got {line.text.strip()[:60]!r}, allowed is {allowed}", line)


def recognises(path: Path) -> bool:
    """True for a text file that prints NN fields as ``map->NAME = ``, or a command stream between
    { and }."""
    head = plain_text(first_bytes(path, LOOK))
    return bool(SIGN.search(head) or (STREAM.search(head) and OPENS.search(head)))


def read(path: Path) -> dict[str, Capture]:
    """Return a capture for each side of the dump, by the side's name.

    Raises ValueError if the dump is cut short or contradicts itself; the error names the file and,
    where possible, line and field.
    """
    lines = lines_of(path)
    out: dict[str, Capture] = {}
    for stem, date, side in _sides(path, lines):
        name, provenance = SIDES.get(stem, (stem, "board"))
        if name in out:
            raise ValueError(
                f"{path}: both sides of the diff are called {name}, allowed are two different names"
            )
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise ValueError(
                f"{path}: the name of a side is {name!r}, allowed are letters, digits, _, - and ."
            )
        capture = _capture(Side(path, name), side)
        out[name] = replace(capture, provenance=provenance, date=date or "", tool=stem)
    return out


def _sides(path: Path, lines: list[Line]) -> Iterator[tuple[str, str | None, list[Line]]]:
    """Yield (file name without suffix, date or None, lines) of each driver stack."""
    hunks = [n for n, line in enumerate(lines) if line.text.startswith("@@ ")]
    if not hunks:
        yield path.stem, None, lines
        return
    hunk, *others = hunks
    if others:
        raise ValueError(
            f"{path}, line {lines[others[0]].number}: the diff leaves lines out between its hunks; "
            "make it with diff -U 1000000"
        )
    heads = {}
    for line in lines[max(hunk - 2, 0) : hunk]:
        if line.text.startswith(("--- ", "+++ ")):
            heads[line.text[0]] = FILE.match(line.text)
    for sign in "-+":
        head = heads.get(sign)
        if head is None:
            raise ValueError(
                f"{path}, line {lines[hunk].number}: got a diff whose @@ has no {3 * sign} line "
                "before it, allowed is a whole diff -u"
            )
        body = []
        for line in lines[hunk + 1 :]:
            if not line.text or line.text[0] in (" ", sign):
                body.append(Line(line.number, line.text[1:]))
        yield Path(head[1]).stem, head[2], body


def _capture(side: Side, lines: list[Line]) -> Capture:
    """Return the capture of one side of the dump."""
    body = iter([line for line in lines if line.text.strip()])
    if not any(line.text.strip() == "{" for line in body):
        raise side.wrong("got no line with a lone { that opens the command stream")
    words = _command_words(side, body)
    values, first = _field_values(side, body)
    buffers = {"commands": words.astype("<u4").tobytes(), **_buffers(side, first, body)}
    nn = PRINTED.encode(values)
    registers = maps(USUAL_CHIP)
    decoded = registers["NN"].decode(nn)
    for name, size in tensor_bytes(decoded).items():
        if len(buffers[name]) < size:
            raise side.wrong(
                f"got {len(buffers[name])} bytes of {name}, the printed fields ask for at least "
                f"{size}"
            )
    start = Job.from_writes("STATE", writes(words), registers["STATE"])
    addresses = {
        "coefficients": decoded["kernel_address"],
        "input": decoded["in_image_address"],
        "output": decoded["out_image_address"],
    }
    for _, item, raw in start.values(registers):
        if item.name == "NN_INST_ADDR":
            addresses["nn"] = int(item.value(raw))
    return Capture(
        side.name,
        "vivante",
        USUAL_CHIP,
        (Job("NN", nn, start=start),),
        buffers,
        addresses,
        {RECORDED: BEFORE_RUN},
        source=side.path.name,
        maps=registers,
    )


def _command_words(side: Side, body: Iterator[Line]) -> np.ndarray:
    """Return the words of the command stream. Raises ValueError if the dump ends inside it or a
    word is missing."""
    words: list[int] = []
    heads: dict[int, Line] = {}  # lines printed as the first word of a LOAD_STATE, by word number
    for line in body:
        if line.text.strip() == "}":
            break
        match = COMMAND.match(line.text.strip())
        if not match:
            raise side.unexpected(line, "a command word such as 0x00000000, /* ... */ or }")
        word = int(match[1], 16)
        base = BASE.search(line.text)
        if base:
            heads[len(words)] = line
            offset = word % 2**16 * 4
            if offset != int(base[1], 16):
                raise side.wrong(
                    f"the text next to command {match[1]} names the state at {base[1]}, but the "
                    f"command loads the state at {offset:#07x}",
                    line,
                )
        words.append(word)
    else:
        raise side.wrong(f"the dump ends inside the command stream, after {len(words)} words")
    if len(words) % 2:
        raise side.wrong(
            f"got {len(words)} command words, allowed is an even number; one is missing", line
        )
    stream = np.array(words, np.uint32)
    begins = {at for at, _, _ in loads(stream)}
    for at, head in heads.items():
        if at not in begins:
            raise side.wrong(
                "got a LOAD_STATE that does not begin where the command before it ends; "
                "a command word is missing",
                head,
            )
    return stream


def _field_values(side: Side, body: Iterator[Line]) -> tuple[dict[str, int], Line | None]:
    """Return field values by printed name, and the line after the last field."""
    values: dict[str, int] = {}
    after = None
    for line in body:
        match = FIELD.match(line.text.strip())
        if not match:
            after = line
            break
        name = match[1]
        value = int(match[2], 16)
        if name in values:
            raise side.wrong(f"got field {name} a second time, allowed is once", line)
        if name not in NAMES:
            raise side.wrong(f"got field {name}, allowed are the names in update4.csv", line)
        if value != int(match[3]):
            raise side.wrong(
                f"field {name}: got {match[2]} and ({match[3]}), allowed is twice the same number",
                line,
            )
        try:
            PRINTED.encode({name: value})
        except ValueError as error:
            raise side.wrong(str(error), line) from None
        values[name] = value
    missing = [f"{item.name} (word {item.bits})" for item in PRINTED if item.name not in values]
    if missing:
        more = ""
        if len(missing) > 3:
            more = f" and {len(missing) - 3} more"
        raise side.wrong(
            f"field {', '.join(missing[:3])}{more} is missing, allowed is a job with all "
            f"{len(NAMES)} fields of its {len(PRINTED)} words",
            after,
        )
    return values, after


def _buffers(side: Side, first: Line | None, body: Iterator[Line]) -> dict[str, bytes]:
    """Return the bytes of coefficients, input and output, by name. ``first`` is the line before
    ``body``. In the text, the last line of each buffer ends without a comma."""
    out: dict[str, bytes] = {}
    data = bytearray()
    if first:
        body = chain([first], body)
    for line in body:
        match = BYTES.match(line.text.strip())
        if not match:
            raise side.unexpected(
                line, f"a line of bytes of the {BUFFERS[len(out)]} buffer, such as 0x00, 0x01"
            )
        data += bytes.fromhex(line.text.strip().replace("0x", "").replace(",", ""))
        if not match[1]:
            out[BUFFERS[len(out)]], data = bytes(data), bytearray()
        if len(out) == len(BUFFERS):
            return out
    raise side.wrong(
        f"the dump ends inside the {BUFFERS[len(out)]} buffer, allowed is a dump with whole "
        f"buffers: {', '.join(BUFFERS)}"
    )
