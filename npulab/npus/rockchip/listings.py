"""Command words as texts: listings of ``EMIT(register, value);`` and rows of hexadecimal words.

::

    EMIT(REG_CNA_CONV_CON2, CNA_CONV_CON2_KERNEL_GROUP(1) | CNA_CONV_CON2_FEATURE_GRAINS(5));
    emit_raw(regs, 0x81, 0x0008, 0x0d);
    800 3030 0
    0xffffa0210000: 0x0201000000480104   0x0101000000140014
    [  302.972445]   0: 0x02010000000e1004 ( op: 0x0201 reg: 0x1004 value: 0x0000000e )

The number in a field's macro is the value of the field's bits. A line of three hexadecimal numbers
(target, register, value) is how decoders print a register without a name. Words in a hexadecimal
row have 64 bits, or 32 bits with the lower half of a command first. gdb prints an address before
the words, a kernel prints a time and the number of the command. A patched kernel prints the three
parts of a word after the word, or only the parts. Lines of any other form are skipped and counted.
Source: Mesa's rocket driver and its decoder; WT; RK68.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

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
    split as split_at_ends,
)
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
STAMP = re.compile(r"\s*\[\s*\d+\.\d+\]\s*")
PARTS = re.compile(
    r"\bop:\s*0x([0-9a-fA-F]{1,4})\s+reg:\s*0x([0-9a-fA-F]{1,4})\s+value:\s*0x([0-9a-fA-F]{1,8})\b"
)
# A statement has at most this many characters.
MOST_LETTERS = 2**13
# At least 1 / KNOWN_SHARE of hexadecimal words must have a register of their target's unit.
KNOWN_SHARE = 2
MOST_WORDS = 2**20


class Names(NamedTuple):
    """The names that listings use for registers and fields.

    ``registers`` has the address of a register by a name as ``REG_CNA_CONV_CON2``; ``fields`` has
    (address, lsb, width) of a field by a name as ``CNA_CONV_CON2_KERNEL_GROUP``.
    """

    registers: Mapping[str, int]
    fields: Mapping[str, tuple[int, int, int]]


@cache
def names() -> Names:
    """Return the names in Mesa's map (``registers.csv``) and in ``seen.csv``."""
    registers: dict[str, int] = {}
    fields: dict[str, tuple[int, int, int]] = {}
    for table in ("seen.csv", "registers.csv"):
        for row in read_table(HERE / table):
            name = f"{row['block']}_{row['register']}"
            offset = int(row["offset"], 0)
            registers[f"REG_{name}"] = offset
            fields[f"{name}_{row['field']}"] = offset, int(row["lsb"], 0), int(row["width"], 0)
    return Names(registers, fields)


def is_listing(head: str) -> bool:
    """Return true if bytes have a statement that emits a register by its name."""
    return SIGN.search(head) is not None


def is_hex(head: str) -> bool:
    """Return true if bytes have rows of hexadecimal words, of which at least half are commands."""
    # The last line may be incomplete, because only the first bytes of a file are given.
    texts = head.split("\n")[:-1] or [head]
    words, _, _ = _hex_words(Line(number, text) for number, text in enumerate(texts))
    used = words[words.view("<u8") != 0]
    return len(used) > 1 and KNOWN_SHARE * int(known(used).sum()) >= len(used)


def read_listing(path: Path) -> tuple[Array, list[Line]]:
    """Return the command words ``(n,)`` of a listing, and the lines that were skipped.

    Raises ValueError, with file and line, for an unknown name of a register or field, a value that
    is not a number or does not fit, and a statement that does not end.
    """
    lines = lines_of(path)
    words: list[Command] = []
    rest: list[Line] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        code = COMMENT.sub(" ", line.text)
        with refusing(f"{path}, line {line.number}"):
            match = None
            if not code.lstrip().startswith("#"):
                match = EMIT.search(code)
            if match is None:
                word = _triple(code)
                if word is None:
                    rest.append(line)
                else:
                    words.append(word)
            while match:
                # A statement may take several lines.
                end = _closing(code, match.end())
                while end < 0:
                    if at >= len(lines) or len(code) > MOST_LETTERS:
                        begin = code[match.start() : match.start() + 60].strip()
                        raise ValueError(
                            f"got {begin!r}, which does not end, allowed is a statement of at most "
                            f"{MOST_LETTERS} letters"
                        )
                    code += " " + COMMENT.sub(" ", lines[at].text)
                    at += 1
                    end = _closing(code, match.end())
                words.append(_statement(match[1], code[match.end() : end]))
                if len(words) > MOST_WORDS:
                    raise ValueError(
                        f"got more than {MOST_WORDS} commands, at most {MOST_WORDS} are allowed"
                    )
                match = EMIT.search(code, end)
    return np.array([word[::-1] for word in words], WORDS), rest


def read_hex(path: Path) -> tuple[Array, list[Line]]:
    """Return the command words ``(n,)`` of rows of hexadecimal words, and the skipped lines.

    Raises ValueError, with the file, for an odd number of 32-bit words, for too many words, and for
    a word that differs from the parts printed after it.
    """
    lines = lines_of(path)
    for number, text in lines:
        body, stated = _body(text)
        for word in WORD.findall(body):
            refuse_if(
                stated and int(word, 16) != int(stated, 16),
                f"{path}, line {number}",
                f"{word} beside the parts of {stated}",
                "is the word that the parts make",
            )
    words, rest, odd = _hex_words(lines)
    refuse_if(
        odd,
        f"{path}, line {odd}",
        "an odd number of 32-bit words up to the last row",
        "are two for each command",
    )
    if len(words) > MOST_WORDS:
        raise ValueError(f"{path}: got {len(words)} commands, at most {MOST_WORDS} are allowed")
    return words, rest


def blocks(words: Array, path: Path) -> list[Block]:
    """Return the blocks of a listing's commands.

    A block ends with the four words of a block's end. If no block has such an end, it ends after
    the write that starts the units.
    """
    if ends(words).any():
        return split_at_ends(words, path)
    starting = (words["register"] == OPERATION_ENABLE) & (words["target"] == ENABLE)
    found = []
    for part in np.split(words, np.flatnonzero(starting) + 1):
        if len(part):
            found += split_at_ends(part, path)
    return found


def _closing(code: str, at: int) -> int:
    """Return the index in ``code`` of the bracket that closes the one opened just before ``at``.

    The result is -1 if no bracket closes it.
    """
    depth = 1
    for bracket in re.finditer(r"[()]", code[at:]):
        if bracket[0] == "(":
            depth += 1
        else:
            depth -= 1
        if depth == 0:
            return at + bracket.start()
    return -1


def _statement(what: str, inner: str) -> Command:
    """Return the command of a statement; ``what`` is its name, ``inner`` the text in its
    brackets."""
    parts = [part.strip() for part in inner.split(",")]
    if what.lower() == "emit_raw":
        if len(parts) not in (3, 4):
            raise ValueError(
                f"got {what} with {len(parts)} arguments, allowed are target, register and value"
            )
        target, register_text, value_text = parts[-3:]
        return Command(
            _number(target, 2**16, "target"), _value(value_text, None), _register(register_text)
        )
    # With three arguments, the first is the array in which the driver collects commands.
    if len(parts) not in (2, 3):
        raise ValueError(
            f"got {what} with {len(parts)} arguments, allowed are a register and its value"
        )
    register = _register(parts[-2])
    value = _value(parts[-1], register)
    if register == OPERATION_ENABLE:
        return Command(ENABLE, value, register)
    try:
        return Command.to(register, value)
    except LookupError as error:
        raise ValueError(str(error.args[0])) from None


def _register(text: str) -> int:
    """Return the address of a register that a text names or states as a number."""
    offset = names().registers.get(text)
    if offset is not None:
        return offset
    if NUMBER.fullmatch(text):
        return _number(text, 2**16, "register")
    near = difflib.get_close_matches(text[:80], names().registers, 2)
    allowed = " or ".join(near) or "REG_ and unit and name"
    raise ValueError(f"got register {text[:80]!r}, allowed is {allowed}")


def _value(text: str, register: int | None) -> int:
    """Return the value of a text that joins numbers and fields' macros with ``|``.

    ``register`` is the address to which the value is written.
    """
    value = 0
    if "(" not in text:
        text = text.strip(") \t")
    for part in text.split("|"):
        part = part.strip()
        macro = MACRO.fullmatch(part)
        if macro is None or macro[1] in names().registers:
            value |= _number(part.strip("() \t"), 2**32, "value")
            continue
        name = macro[1]
        offset, lsb, width = names().fields.get(name, (None, 0, 0))
        if offset is None or register not in (None, offset):
            allowed = " or ".join(_near_fields(name, register)) or "a field of a register"
            raise ValueError(f"got field {name[:80]!r}, allowed is {allowed}")
        value |= _number(macro[2], 2**width, name) * 2**lsb
    return value


def _near_fields(name: str, register: int | None) -> list[str]:
    """Return names of fields similar to a wrong name, from the fields of ``register``, or
    from all fields if it is None.
    """
    fields = names().fields.items()
    of_register = [field for field, (offset, *_) in fields if register in (None, offset)]
    return difflib.get_close_matches(name[:80], of_register, 2) or of_register[:3]


def _number(text: str, below: int, what: str) -> int:
    """Return the number that a text states, from 0 to ``below - 1``.

    A negative number becomes its two's complement; ``what`` begins an error.
    """
    match = NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{what}: got {text[:60]!r}, allowed is a number; the text is a program and not what "
            "it sent"
        )
    sign, digits = match.groups()
    base = 10
    if digits[1:2] in ("x", "X"):
        base = 16
    number = int(digits, base)
    if sign:
        if 0 < number <= below // 2:
            number = below - number
        else:
            number = below
    if number >= below:
        raise ValueError(f"{what}: got {text[:60]}, allowed is 0 to {below - 1:#x}")
    return number


def _triple(text: str) -> Command | None:
    """Return the command of a line of three hexadecimal numbers, None for a line of another
    form."""
    match = TRIPLE.fullmatch(text)
    if match is None:
        return None
    target, register, value = [int(part, 16) for part in match.groups()]
    if target:
        target |= WRITE
    word = Command(target, value, register)
    if not any(word) or (target, register) in ((SYNC, 0), (ENABLE, OPERATION_ENABLE)):
        return word
    row = np.array([word[::-1]], WORDS)
    if known(row)[0]:
        return word
    return None


def _hex_words(lines: Iterable[Line]) -> tuple[Array, list[Line], int]:
    """Return the hexadecimal words of rows, the skipped lines, and the last row's line if half of a
    command is missing.
    """
    halves: list[int] = []
    rest: list[Line] = []
    last = 0
    for line in lines:
        body, stated = _body(line.text)
        body = stated or body
        if not ROW.fullmatch(body):
            rest.append(line)
            continue
        last = line.number
        for word in WORD.findall(body.split("/")[0]):
            digits = word.rstrip("uUlL").removeprefix("0x")
            number = int(digits, 16)
            halves.append(number % 2**32)
            if len(digits) != 8:
                halves.append(number // 2**32)
    odd = 0
    if len(halves) % 2:
        odd = last
        halves.pop()
    return np.array(halves, "<u4").view(WORDS), rest, odd


def _body(text: str) -> tuple[str, str]:
    """Return a line without its time and label, and the word that its printed parts make.

    The word is empty if the line has no parts.
    """
    body = text
    for head in (STAMP, LABEL):
        match = head.match(body)
        if match:
            body = body[match.end() :]
    parts = PARTS.search(body)
    if not parts:
        return body.strip(), ""
    target, register, value = [int(part, 16) for part in parts.groups()]
    return body[: parts.start()], f"0x{target:04x}{value:08x}{register:04x}"


def jobs_of(words: Array, path: Path) -> Sequence[Job]:
    """Return a job for each block of a listing; raise ValueError if no command writes a
    register."""
    jobs = [block.job for block in blocks(words, path)]
    if not jobs:
        raise ValueError(
            f"{path}: got {len(words)} commands, none of which writes a register, allowed is at "
            "least one"
        )
    return jobs
