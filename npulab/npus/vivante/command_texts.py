"""Importer of a command stream that was printed as text: the states that it loads, in order.

::

    0x08010e03, /* LOAD_STATE (1) Base: 0x0380C Size: 1 Fixp: 0 */
    0x00000c23, /*   GL.FLUSH_CACHE := DEPTH=1,COLOR=1 */
    cmd 00000000: 08010e03 00000c23 08010e02 00000701

The first form is what etna_viv's tools print, the second one the kernel driver's dump of a hang.
Commands that load no state, and lines of neither form, are skipped and counted.  A LOAD_STATE that
has fewer states than it says is cut short: what is there is read, and what is missing is a row of
``parameters["missing"]``.  Source: etna_viv's ``tools/show_egl2_log.py``, etnaviv's
``etnaviv_gpu.c``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from npulab.npus.kit import Capture, Job, Line, head_of, lines_of, skipped
from npulab.npus.vivante.commands import HEADER, LOAD_STATE, MOST_STATES
from npulab.npus.vivante.facts import USUAL_CHIP, maps

STATE = "STATE"
PRINTED = re.compile(r"(?:^|[\s>+-])(0x[0-9a-fA-F]{8}),?\s*/\*(.*?)(?:\*/|$)")
ROW = re.compile(r"\bcmd ([0-9a-fA-F]{8}):((?: [0-9a-fA-F]{8}){1,8})(?!\S)")
BASE = re.compile(r"LOAD_STATE \(1\) Base: 0x([0-9a-fA-F]+) Size: (\d+)")
COMMAND = re.compile(
    r"\s?([A-Z][A-Z0-9_]*) \(\d+\)"
)  # what is printed beside the first word of a command
PLACE = re.compile(r"\s*\[([0-9a-fA-F]{5})\]")  # the state's offset, where it is printed
MOST_WORDS = 2**22


class Word(NamedTuple):
    """A word of the stream, the line that has it, and what is printed beside it."""

    value: int
    line: int
    note: str


def recognises(path: Path) -> bool:
    """A text that prints the words of a command stream, one of which loads a state."""
    if not path.is_file():
        return False
    head = head_of(path)
    return BASE.search(head) is not None or any(
        int(word, 16) >> 27 == LOAD_STATE
        for row in ROW.finditer(head)
        for word in row[2].split()[:1]
    )


def read(path: Path) -> dict[str, Capture]:
    """The capture of a stream, by the file's name: a job of register writes.

    Raises ValueError naming file and line if a word is not what the text beside it says, and if no
    state is loaded.
    """
    words, rest = _words(path)
    writes, commands, missing = _writes(path, words)
    if not writes:
        raise ValueError(
            f"{path}: got {len(words)} words that load no state, allowed is at least one LOAD_STATE"
        )
    lines = sorted([*rest, *commands])
    parameters: dict[str, Any] = {**skipped(lines), **({"missing": missing} if missing else {})}
    registers = maps(USUAL_CHIP)
    name = path.name.split(".")[0] or path.name
    return {
        name: Capture(
            name,
            "vivante",
            USUAL_CHIP,
            (Job.from_writes(STATE, writes, registers[STATE]),),
            parameters=parameters,
            source=path.name,
            maps=registers,
        )
    }


def _words(path: Path) -> tuple[list[Word], list[Line]]:
    words: list[Word] = []
    rest: list[Line] = []
    for line in lines_of(path):
        if match := PRINTED.search(line.text):
            words.append(Word(int(match[1], 16), line.number, match[2]))
        elif match := ROW.search(line.text):
            words += [Word(int(word, 16), line.number, "") for word in match[2].split()]
        else:
            rest.append(line)
        if len(words) > MOST_WORDS:
            raise ValueError(
                f"{path}, line {line.number}: got more than {MOST_WORDS} words, at most "
                f"{MOST_WORDS} are "
                "allowed"
            )
    return words, rest


def _writes(
    path: Path, words: list[Word]
) -> tuple[list[tuple[int, int]], list[Line], list[dict[str, Any]]]:
    """(offset, value) of every state, the commands that load none, and what is missing."""
    writes: list[tuple[int, int]] = []
    others: list[Line] = []
    missing: list[dict[str, Any]] = []
    heads = [COMMAND.match(word.note) is not None for word in words]
    at = 0
    while at < len(words):
        word = words[at]
        head = HEADER.parse(word.value.to_bytes(4, "little"))
        _check_head(path, word, head)
        if head.opcode != LOAD_STATE:
            end = at + 2
            while heads[at] and end < len(words) and words[end].note and not heads[end]:
                end += 1
            if end - 1 < len(words) and end - 1 > at and heads[end - 1]:
                end -= 1
            others += [
                Line(part.line, f"{part.value:#010x} {part.note.strip()}".strip())
                for part in words[at:end]
            ]
            at = end
            continue
        count, first = head.count or MOST_STATES, 4 * head.offset
        got = 0
        while got < count and at + 1 + got < len(words) and not heads[at + 1 + got]:
            _check_place(path, words[at + 1 + got], first + 4 * got)
            writes.append((first + 4 * got, words[at + 1 + got].value))
            got += 1
        if got < count:
            missing.append(
                {"line": word.line, "offset": f"{first + 4 * got:#07x}", "states": count - got}
            )
        at += 1 + got
        # a command begins at an even word; what fills the odd one says nothing
        if got == count and count % 2 == 0 and at < len(words) and not heads[at]:
            others.append(
                Line(words[at].line, f"{words[at].value:#010x} {words[at].note.strip()}".strip())
            )
            at += 1
    return writes, others, missing


def _check_head(path: Path, word: Word, head: Any) -> None:
    """Raises ValueError if the text beside a LOAD_STATE says another base or count."""
    match = BASE.search(word.note)
    if match is None:
        if COMMAND.match(word.note) is None and word.note:
            raise ValueError(
                f"{path}, line {word.line}: got {word.value:#010x} ({word.note.strip()[:60]}), "
                "allowed is "
                "the first word of a command; a command before it is not whole"
            )
        return
    said = LOAD_STATE, int(match[1], 16), int(match[2])
    got = head.opcode, 4 * head.offset, head.count or MOST_STATES
    if said != got:
        raise ValueError(
            f"{path}, line {word.line}: got {word.value:#010x}, which is opcode {got[0]} for "
            f"{got[2]} "
            f"states from {got[1]:#07x} on, allowed is what the text beside it says, {said[2]} "
            "from "
            f"{said[1]:#07x}"
        )


def _check_place(path: Path, word: Word, offset: int) -> None:
    match = PLACE.match(word.note)
    if match and int(match[1], 16) != offset:
        raise ValueError(
            f"{path}, line {word.line}: got the state of offset {int(match[1], 16):#07x}, allowed "
            "is "
            f"{offset:#07x}; a line is missing before it"
        )
