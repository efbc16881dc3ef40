"""Imports a command stream that was printed as text: the states that it loads, in order.

::

    0x08010e03, /* LOAD_STATE (1) Base: 0x0380C Size: 1 Fixp: 0 */
    0x00000c23, /*   GL.FLUSH_CACHE := DEPTH=1,COLOR=1 */
    cmd 00000000: 08010e03 00000c23 08010e02 00000701

etna_viv's tools print the form of the first two lines, the kernel driver's dump of a hang the form
of the last. Commands that load no state, and lines of neither form, are skipped and counted. A text
may lack the last states of a LOAD_STATE: the other states are read, and a row of
``parameters["missing"]`` has the line, the first missing offset and the number of missing states.
Source: etna_viv's ``tools/show_egl2_log.py``, etnaviv's ``etnaviv_gpu.c``.
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
# COMMAND is the note next to a command's first word, PLACE a state's offset, which some texts
# print. At most MOST_WORDS (16 MiB) are read, far more than any job has, so that a broken text does
# not fill the memory.
COMMAND = re.compile(r"\s?([A-Z][A-Z0-9_]*) \(\d+\)")
PLACE = re.compile(r"\s*\[([0-9a-fA-F]{5})\]")
MOST_WORDS = 2**22


class Word(NamedTuple):
    """A word of the stream: its value, the number of its line, and the note printed next to it."""

    value: int
    line: int
    note: str

    @property
    def is_head(self) -> bool:
        """True if the note says that a command begins with this word."""
        return COMMAND.match(self.note) is not None

    def as_line(self) -> Line:
        """Return the word as a line, for the list of skipped lines."""
        return Line(self.line, f"{self.value:#010x} {self.note.strip()}".strip())


def recognises(path: Path) -> bool:
    """True for a text that prints the words of a command stream with a LOAD_STATE."""
    if not path.is_file():
        return False
    head = head_of(path)
    if BASE.search(head):
        return True
    firsts = [row[2].split()[0] for row in ROW.finditer(head)]
    return any(int(first, 16) >> 27 == LOAD_STATE for first in firsts)


def read(path: Path) -> dict[str, Capture]:
    """Return the capture of a stream, a single job of register writes, by the file's name.

    Raises ValueError naming the file if the stream loads no state, and ValueError naming file and
    line if a word contradicts the note next to it or if there are too many words.
    """
    words, rest = _words(path)
    writes, commands, missing = _writes(path, words)
    if not writes:
        raise ValueError(
            f"{path}: got {len(words)} words that load no state, allowed is at least one LOAD_STATE"
        )
    parameters: dict[str, Any] = skipped(sorted([*rest, *commands]))
    if missing:
        parameters["missing"] = missing
    registers = maps(USUAL_CHIP)
    name = path.name.split(".")[0] or path.name
    capture = Capture(
        name,
        "vivante",
        USUAL_CHIP,
        (Job.from_writes(STATE, writes, registers[STATE]),),
        parameters=parameters,
        source=path.name,
        maps=registers,
    )
    return {name: capture}


def _words(path: Path) -> tuple[list[Word], list[Line]]:
    """Return the words of a text in order, and the lines that print no words."""
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
                f"{path}, line {line.number}: got more than {MOST_WORDS} words, allowed are at "
                f"most {MOST_WORDS}"
            )
    return words, rest


def _writes(
    path: Path, words: list[Word]
) -> tuple[list[tuple[int, int]], list[Line], list[dict[str, Any]]]:
    """Return three lists: (offset, value) of every state that is loaded; the words, as lines, that
    load no state; and a row for each command whose last states are missing."""
    writes: list[tuple[int, int]] = []
    others: list[Line] = []
    missing: list[dict[str, Any]] = []
    heads = [word.is_head for word in words]
    at = 0
    while at < len(words):
        word = words[at]
        head = HEADER.parse(word.value.to_bytes(4, "little"))
        _refuse_wrong_note(path, word, head)
        if head.opcode != LOAD_STATE:
            # A command has at least two words. Next words belong to it as long as their notes name
            # no command.
            end = at + 2
            while heads[at] and end < len(words) and words[end].note and not heads[end]:
                end += 1
            if at + 1 < end <= len(words) and heads[end - 1]:
                end -= 1
            others += [skipped.as_line() for skipped in words[at:end]]
            at = end
            continue
        count = head.count or MOST_STATES
        offset, end = 4 * head.offset, at + 1 + count
        at += 1
        while at < min(end, len(words)) and not heads[at]:
            _refuse_wrong_offset(path, words[at], offset)
            writes.append((offset, words[at].value))
            offset += 4
            at += 1
        if at < end:
            missing.append({"line": word.line, "offset": f"{offset:#07x}", "states": end - at})
        elif count % 2 == 0 and at < len(words) and not heads[at]:
            # Commands begin at even words; this command ends before an odd word, which is fill.
            others.append(words[at].as_line())
            at += 1
    return writes, others, missing


def _refuse_wrong_note(path: Path, word: Word, head: Any) -> None:
    """Raise ValueError if the note says another opcode, base or count than the word, or if the note
    belongs to a state although the word is the first of a command."""
    match = BASE.search(word.note)
    if match is None:
        if word.note and not word.is_head:
            raise ValueError(
                f"{path}, line {word.line}: got {word.value:#010x} ({word.note.strip()[:60]}), "
                "allowed is the first word of a command; the command before it lacks a word"
            )
        return
    stated = LOAD_STATE, int(match[1], 16), int(match[2])
    got = head.opcode, 4 * head.offset, head.count or MOST_STATES
    if stated != got:
        raise ValueError(
            f"{path}, line {word.line}: got {word.value:#010x}, which is opcode {got[0]} for "
            f"{got[2]} states from {got[1]:#07x}, allowed is a LOAD_STATE of {stated[2]} states "
            f"from {stated[1]:#07x}, as the text next to it says"
        )


def _refuse_wrong_offset(path: Path, word: Word, offset: int) -> None:
    """Raise ValueError if the note next to a state's value says another offset than ``offset``."""
    match = PLACE.match(word.note)
    if match and int(match[1], 16) != offset:
        raise ValueError(
            f"{path}, line {word.line}: got the state at offset {int(match[1], 16):#07x}, allowed "
            f"is the next, {offset:#07x}; a line is missing before it"
        )
