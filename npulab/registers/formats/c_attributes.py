"""Attributes of structs and members, as members named ``__npulab_...`` that say them to who lays
the struct out."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from npulab.registers.formats.c_numbers import NumberError
from npulab.registers.formats.c_source import Source, blank

ATTRIBUTE = re.compile(r"\b__attribute(?:__)?\s*\(|\b__packed\b|\b__aligned\s*\(|\b_Alignas\s*\(|\b__extension__\b")
MARKED = re.compile(r"__npulab_([a-z_]+?)_(\d+)_\d+")


def mark_of(node: Any) -> tuple[str, int] | None:
    """The attribute that a member stands for; None for a plain member."""
    match = MARKED.fullmatch(getattr(node, "name", None) or "")
    return (match[1], int(match[2])) if match else None


def attributes_of(source: Source, code: str, start: int, named: re.Pattern[str] | None,
                  ) -> tuple[str, list[tuple[int, str]]]:
    """The code with blanks for attributes, and (position, text) of each."""
    spans: list[tuple[int, int, str]] = []
    at = 0
    while match := ATTRIBUTE.search(code, at):
        at, depth = match.end(), int(match[0].endswith("("))
        while depth and at < len(code):
            depth += {"(": 1, ")": -1}.get(code[at], 0)
            at += 1
        spans.append((match.start(), at, code[match.start():at]))
    spans += [(*match.span(), source.macros[match[0]].body) for match in (named.finditer(code) if named else ())]
    pieces, done = [], 0
    out: list[tuple[int, str]] = []
    for begin, end, text in sorted(spans):
        if begin >= done:
            pieces += [code[done:begin], blank(code[begin:end])]
            out.append((begin, text))
            done = end
    code = "".join([*pieces, code[done:]])
    words = []
    for position, text in out:
        if re.search(r"\b(__packed__|packed|__packed)\b", text):
            words.append((position, "packed_1"))
        if asked := re.search(r"(?:\b_*aligned_*|_Alignas)\s*(?:\((.*?)\)|(?=[,)]))", text, re.DOTALL):
            try:
                size = source.numbers.value(asked[1]) if asked[1] else 16
            except NumberError as error:
                raise ValueError(f"{source.where(start + position)}: aligned: got {error}, allowed is a whole number"
                                 ) from None
            if size < 1 or size > 4096 or size.bit_count() != 1:
                raise ValueError(f"{source.where(start + position)}: aligned: got {size}, allowed is a power of two up "
                                 "to 4096")
            words.append((position, f"align_{size}"))
    return code, words


def marks_of(code: str, attributes: Sequence[tuple[int, str]], count: Iterator[int]) -> Iterator[tuple[int, str]]:
    """Where members that say attributes go, and their text."""
    if not attributes:
        return
    braces: list[tuple[int, str, int, int]] = []  # (position, brace, depth inside, position of its opening brace)
    opened: list[int] = []
    for match in re.finditer(r"[{};]", code):
        if match[0] == "{":
            opened.append(match.end())
        braces.append((match.start(), match[0], len(opened), opened[-1] if opened else -1))
        if match[0] == "}" and opened:
            opened.pop()
    where = [one[0] for one in braces]
    for position, word in attributes:
        before = code[:position].rstrip()
        at = bisect_right(where, position) - 1
        last = re.search(r"(\w+)\s*$", before[-80:])
        if before.endswith("}") and at >= 0:
            yield braces[at][3], f" char __npulab_{word}_{next(count)};"
        elif (last and last[1] in ("struct", "union")) or at < 0:
            opening = code.find("{", position)
            if opening >= 0:
                yield opening + 1, f" char __npulab_{word}_{next(count)};"
        else:
            depth, inside = 0, braces[at][2] - (braces[at][1] == "}")
            while at >= 0 and (depth or braces[at][1] == "}"):
                depth += {"}": 1, "{": -1}.get(braces[at][1], 0)
                at -= 1
            if inside > 0 and at >= 0:
                yield braces[at][0] + 1, f" char __npulab_member_{word}_{next(count)};"
