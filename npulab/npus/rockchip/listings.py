"""Command words as texts: listings of ``EMIT(register, value);`` and rows of hexadecimal words.

::

    EMIT(REG_CNA_CONV_CON2, CNA_CONV_CON2_KERNEL_GROUP(1) | CNA_CONV_CON2_FEATURE_GRAINS(5));
    emit_raw(regs, 0x81, 0x0008, 0x0d);
    800 3030 0
    0xffffa0210000: 0x0201000000480104   0x0101000000140014

A field's macro takes the bits as they are stored.  Three bare hexadecimal numbers are what decoders
print of a register without a name: target, register, value.  A row of hexadecimal words has 64 or
32 bits each, the lower half first, with or without the address that gdb prints before it.  Every
other line is skipped and counted.  Source: Mesa's rocket driver and its decoder; WT.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from npulab.npus.kit import Job, Line, lines_of, read_table, refuse_if, refusing
from npulab.npus.rockchip.commands import (
    ENABLE,
    OPERATION_ENABLE,
    SYNC,
    WORDS,
    WRITE,
    Block,
    Command,
    ends,
    known,
)
from npulab.npus.rockchip.commands import split as split_at_ends
from npulab.npus.rockchip.facts import HERE

EMIT = re.compile(r"\b(EMIT|emit|EMIT_RAW|emit_raw)\s*\(")
SIGN = re.compile(
    r"(?m)\b(?:EMIT|emit)\s*\(\s*REG_\w+\s*,|\b(?:EMIT_RAW|emit_raw)\s*\([^()\n]{0,60}\d[^()\n]{0,60}\)"
)
COMMENT = re.compile(r"/\*.*?\*/|//.*")
TRIPLE = re.compile(r"\s*([0-9a-f]{1,4}) ([0-9a-f]{1,4}) ([0-9a-f]{1,8})\s*")
NUMBER = re.compile(r"(-?)(0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})[uUlL]{0,3}")
MACRO = re.compile(r"(\w+)\s*\(\s*([^()]*?)\s*\)")
LABEL = re.compile(r"\s*\[?(?:0x)?[0-9a-fA-F]{1,16}\]?(?:\s*<[^<>\n]{0,200}>)?\s*[:=]\s*")
WORD = re.compile(r"(?:0x[0-9a-fA-F]{16}|0x[0-9a-fA-F]{8}|\b[0-9a-fA-F]{16})(?:[uUlL]{0,3})")
ROW = re.compile(rf"(?:{WORD.pattern}[\s,]*)+(?:/[/*].*)?")
MOST_LETTERS = 2**13  # of one statement
KNOWN_SHARE = 2  # one in so many hexadecimal words names a register of its unit, at least
MOST_WORDS = 2**20


class Names(NamedTuple):
    """What listings call registers and their fields."""

    registers: Mapping[str, int]  # offsets by REG_UNIT_REGISTER
    fields: Mapping[str, tuple[int, int, int]]  # (offset, lsb, width) by UNIT_REGISTER_FIELD


@cache
def names() -> Names:
    """The names of Mesa's map, and those of what is known beyond it."""
    registers: dict[str, int] = {}
    fields: dict[str, tuple[int, int, int]] = {}
    for table in ("seen.csv", "registers.csv"):
        for row in read_table(HERE / table):
            name, offset = f"{row['block']}_{row['register']}", int(row["offset"], 0)
            registers[f"REG_{name}"] = offset
            fields[f"{name}_{row['field']}"] = offset, int(row["lsb"], 0), int(row["width"], 0)
    return Names(registers, fields)


def is_listing(head: str) -> bool:
    """Whether a text has a statement that emits a register by its name."""
    return SIGN.search(head) is not None


def is_hex(head: str) -> bool:
    """Whether a text has rows of hexadecimal words, at least half of them commands."""
    words = _hex_words(Line(n, text) for n, text in enumerate(head.split("\n")[:-1] or [head]))[0]
    used = words[words.view("<u8") != 0]
    return len(used) > 1 and KNOWN_SHARE * int(known(used).sum()) >= len(used)


def read_listing(path: Path) -> tuple[np.ndarray, list[Line]]:
    """The command words ``(n,)`` of a listing, and the lines that were skipped.

    Raises ValueError naming file and line for a register or field without a name here, a value that
    is not a number, one that does not fit, and a statement that does not end.
    """
    lines = lines_of(path)
    words: list[Command] = []
    rest: list[Line] = []
    at = 0
    while at < len(lines):
        number, text = lines[at]
        at += 1
        code = COMMENT.sub(" ", text)
        with refusing(f"{path}, line {number}"):
            match = None
            if not code.lstrip().startswith("#"):
                match = EMIT.search(code)
            if match is None:
                if (word := _triple(code)) is not None:
                    words.append(word)
                else:
                    rest.append(lines[at - 1])
                continue
            while match:
                while (end := _closing(code, match.end())) < 0:
                    if at >= len(lines) or len(code) > MOST_LETTERS:
                        raise ValueError(
                            f"got {code[match.start() : match.start() + 60].strip()!r}, which does "
                            "not end, "
                            f"allowed is a statement of at most {MOST_LETTERS} letters"
                        )
                    code += " " + COMMENT.sub(" ", lines[at].text)
                    at += 1
                words.append(_statement(match[1], code[match.end() : end]))
                if len(words) > MOST_WORDS:
                    raise ValueError(
                        f"got more than {MOST_WORDS} commands, at most {MOST_WORDS} are allowed"
                    )
                match = EMIT.search(code, end)
    return np.array([tuple(reversed(word)) for word in words], WORDS), rest


def read_hex(path: Path) -> tuple[np.ndarray, list[Line]]:
    """The command words ``(n,)`` in rows of hexadecimal words, and the lines that were skipped.

    Raises ValueError naming the file for an odd number of 32-bit words, and for too many.
    """
    words, rest, odd = _hex_words(lines_of(path))
    refuse_if(
        odd,
        f"{path}, line {odd}",
        "an odd number of 32-bit words up to the last row",
        "are two for each command",
    )
    if len(words) > MOST_WORDS:
        raise ValueError(f"{path}: got {len(words)} commands, at most {MOST_WORDS} are allowed")
    return words, rest


def blocks(words: np.ndarray, path: Path) -> list[Block]:
    """The blocks of a listing: each ends with its end, else behind the write that starts the
    units."""
    if ends(words).any():
        return split_at_ends(words, path)
    starts = (
        np.flatnonzero((words["register"] == OPERATION_ENABLE) & (words["target"] == ENABLE)) + 1
    )
    parts = [part for part in np.split(words, starts) if len(part)]
    return [block for part in parts for block in split_at_ends(part, path)]


def _closing(code: str, at: int) -> int:
    """Where the bracket that opened before ``at`` closes, -1 if it does not."""
    depth = 1
    for place in re.finditer(r"[()]", code[at:]):
        if place[0] == "(":
            depth += 1
        else:
            depth += -1
        if not depth:
            return at + place.start()
    return -1


def _statement(what: str, inner: str) -> Command:
    parts = [part.strip() for part in inner.split(",")]
    if what.lower() == "emit_raw":
        if len(parts) not in (3, 4):
            raise ValueError(
                f"got {what} with {len(parts)} arguments, allowed are target, register and value"
            )
        return Command(
            _number(parts[-3], 2**16, "target"), _value(parts[-1], None), _register(parts[-2])
        )
    if len(parts) == 3:
        parts = parts[-2:]
    if len(parts) != 2:
        raise ValueError(
            f"got {what} with {len(parts)} arguments, allowed are a register and its value"
        )
    register = _register(parts[0])
    value = _value(parts[1], register)
    if register == OPERATION_ENABLE:
        return Command(ENABLE, value, register)
    try:
        return Command.to(register, value)
    except LookupError as error:
        raise ValueError(str(error.args[0])) from None


def _register(text: str) -> int:
    offset = names().registers.get(text)
    if offset is None and NUMBER.fullmatch(text):
        return _number(text, 2**16, "register")
    if offset is None:
        near = difflib.get_close_matches(text[:80], names().registers, 2)
        raise ValueError(
            f"got register {text[:80]!r}, allowed is "
            f"{' or '.join(near) or 'REG_ and unit and name'}"
        )
    return offset


def _value(text: str, register: int | None) -> int:
    """The sum of numbers and of fields of a register."""
    value = 0
    for part in text.strip("() \t").split("|") if "(" not in text else text.split("|"):
        part = part.strip()
        macro = MACRO.fullmatch(part)
        if macro is None or macro[1] in names().registers:
            value |= _number(part.strip("() \t"), 2**32, "value")
            continue
        place = names().fields.get(macro[1])
        if place is None or (register is not None and place[0] != register):
            ours = [
                name
                for name, (offset, _, _) in names().fields.items()
                if register in (None, offset)
            ]
            near = difflib.get_close_matches(macro[1][:80], ours, 2) or ours[:3]
            raise ValueError(
                f"got field {macro[1][:80]!r}, allowed is "
                f"{' or '.join(near) or 'a field of a register'}"
            )
        _, lsb, width = place
        value |= _number(macro[2], 2**width, macro[1]) * 2**lsb
    return value


def _number(text: str, below: int, what: str) -> int:
    match = NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{what}: got {text[:60]!r}, allowed is a number; the text is a program and not what "
            "it sent"
        )
    number = int(match[2], 16 if match[2][1:2] in ("x", "X") else 10)
    if match[1]:
        if 0 < number <= below // 2:
            number = below - number
        else:
            number = below
    if number >= below:
        raise ValueError(f"{what}: got {text[:60]}, allowed is 0 to {below - 1:#x}")
    return number


def _triple(text: str) -> Command | None:
    match = TRIPLE.fullmatch(text)
    if match is None:
        return None
    target, register, value = (int(part, 16) for part in match.groups())
    word = Command(target | WRITE if target else 0, value, register)
    row = np.array([tuple(reversed(word))], WORDS)
    ending = (word.target, register) in ((SYNC, 0), (ENABLE, OPERATION_ENABLE)) or not any(word)
    if ending or known(row)[0]:
        return word
    return None


def _hex_words(lines: Iterable[Line]) -> tuple[np.ndarray, list[Line], int]:
    """The words of rows, the other lines, and the last row's line if a half is missing."""
    halves: list[int] = []
    rest: list[Line] = []
    last = 0
    for line in lines:
        body = line.text
        label = LABEL.match(body)
        body = (body[label.end() :] if label else body).strip()
        if not ROW.fullmatch(body):
            rest.append(line)
            continue
        last = line.number
        for word in WORD.findall(body.split("/")[0]):
            digits = word.rstrip("uUlL").removeprefix("0x")
            number = int(digits, 16)
            if len(digits) == 8:
                halves += [number]
            else:
                halves += [number % 2**32, number // 2**32]
    odd = 0
    if len(halves) % 2:
        odd = last
    return np.array(halves[: len(halves) // 2 * 2], "<u4").view(WORDS), rest, odd


def jobs_of(words: np.ndarray, path: Path) -> Sequence[Job]:
    """The jobs of a listing's commands; raises ValueError if none writes a register."""
    jobs = [block.job for block in blocks(words, path)]
    if not jobs:
        raise ValueError(
            f"{path}: got {len(words)} commands, none of which writes a register, allowed is at "
            "least one"
        )
    return jobs
