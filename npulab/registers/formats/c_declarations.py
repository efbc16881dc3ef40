"""The declarations of structs, unions, enums and types in a C file, taken out of the text around
them and parsed.

Attributes and ``#pragma pack``, which the parser does not know, become members named
``__npulab_...`` that say them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from npulab.registers.formats.c_attributes import attributes_of, marks_of
from npulab.registers.formats.c_comments import note_in, said_in
from npulab.registers.formats.c_source import Source

BEFORE_ALL = 2 ** 40  # positions of what is in no file
MOST_TEXT = 2 ** 20  # of declarations, in characters
MOST_STATEMENTS = 2 ** 15
MOST_DEPTH = 32
MOST_MEMBER = 2 ** 11  # characters
MEMBER = re.compile(r"[^;{},]+")
NEAR = 2 ** 12  # characters between a comment and what it is of
INSIDE = r"\((?:[^()]|\((?:[^()]|\([^()]*\)){0,200}\)){0,200}\)"  # of parentheses, with what attributes have in them
ATTRIBUTES = rf"(?:\s*__\w+\s*(?:{INSIDE})?){{0,8}}+"
HEAD = re.compile(r"\b(?:(typedef)\s+)?(?:(?:const|volatile|static)\s+)*(struct|union|enum)\b"
                  rf"(?:\s+(?:__\w+\s*{INSIDE}|[A-Za-z_]\w*)){{0,4}}+\s*\{{")
TYPEDEF = re.compile(r"\btypedef\b[^;{}()]{1,200};")
TAIL = re.compile(rf"{ATTRIBUTES}(?:[\s,*]*[A-Za-z_]\w*\s*(?:\[\w*\]\s*)*+){{0,4}}+{ATTRIBUTES}\s*;")
BRACES = re.compile(r"[{}();]")
WORD = re.compile(r"[A-Za-z_]\w*|[{};]|\S")
KEYWORDS = {"char", "short", "int", "long", "signed", "unsigned", "float", "double", "void", "_Bool", "struct", "union",
            "enum", "const", "volatile", "typedef", "static", "_Static_assert", "_Alignas", "_Atomic"}
BEFORE = ("const", "volatile", "typedef", "static")


class Unit(NamedTuple):
    """A member or enumerator in the file's text: where it begins and ends."""

    start: int
    end: int


@dataclass
class Declarations:
    """What a file declares: the parsed nodes, and what its comments say of each."""

    source: Source
    nodes: Sequence[Any]
    starts: Sequence[int]  # of each line of the parsed text
    places: Sequence[tuple[int, int]]  # (position in the parsed text, in the file), ascending
    macro_types: frozenset[str] = frozenset()
    enum_names: dict[str, str] = field(default_factory=dict)
    names_of_enumerators: dict[tuple[str, str], str] = field(default_factory=dict)

    def position(self, node: Any) -> int:
        """Where in the file a node stands."""
        coord = node.coord
        if coord is None and getattr(node, "bitsize", None) is not None:  # bits without a name
            coord = node.bitsize.coord
        while coord is None:
            node = node.type
            coord = node.coord
        return self._of(self.starts[coord.line - 1] + (coord.column or 1) - 1)

    def _of(self, parsed: int) -> int:
        at = bisect_right(self.places, (parsed, 2 ** 62)) - 1
        return self.places[at][1] + parsed - self.places[at][0]

    def text_of(self, expression: Any) -> str:
        from pycparser import c_generator
        return str(c_generator.CGenerator().visit(expression))


def find(source: Source) -> list[tuple[int, int]]:
    """Where the declarations of a file stand, in order.

    Raises ValueError with file and line for one without its end, or braces too deep.
    """
    out, at = [], 0
    code = source.code
    while match := HEAD.search(code, at):
        depth, end = 0, -1
        for brace in BRACES.finditer(code, match.end() - 1):
            depth += {"{": 1, "(": 1, ";": 0}.get(brace[0], -1)
            if depth > MOST_DEPTH:
                raise ValueError(f"{source.where(brace.start())}: got braces within each other deeper than "
                                 f"{MOST_DEPTH}, allowed are as many")
            if depth <= 0 and brace[0] == "}":
                end = brace.end()
                break
        if end < 0:
            raise ValueError(f"{source.where(match.start())}: got {match[2]} without its closing brace, allowed is a "
                             "whole declaration")
        tail = TAIL.match(code, end)
        out += [*_typedefs(code, at, match.start()), (match.start(), tail.end() if tail else end)]
        at = out[-1][1]
    return [*out, *_typedefs(code, at, len(code))]


def _typedefs(code: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Declarations of types by another's name, without those that only assert a size."""
    for match in TYPEDEF.finditer(code, start, end):
        if "sizeof" not in match[0] and not re.search(r"\[.*[^\w\s\]].*\]", match[0]) and len(match[0].split()) > 2:
            yield match.span()


def parse(source: Source, basic: Sequence[str]) -> Declarations:
    """The declarations of a file; ``basic`` are the types that are known without one.

    Raises ValueError with file and line for what is none; ModuleNotFoundError with the extra to
    install.
    """
    try:
        from pycparser import c_parser
    except ModuleNotFoundError:
        raise ModuleNotFoundError("pycparser is missing: reading structs and enums of C needs the extra npulab[maps]"
                                  ) from None
    found = find(source)
    if sum(end - start for start, end in found) > MOST_TEXT:
        raise ValueError(f"{source.path}: got more than {MOST_TEXT} characters of declarations, allowed are as many")
    for start, end in found:
        for one in MEMBER.finditer(source.code, start, end):
            if len(one[0]) > MOST_MEMBER and len("".join(one[0].split())) > MOST_MEMBER:
                first = one.start() + len(one[0]) - len(one[0].lstrip())
                raise ValueError(f"{source.where(first)}: got a member of more than {MOST_MEMBER} characters, allowed "
                                 "are as many")
    pieces, places = _pieces(source, found)
    body = "".join(pieces)
    if body.count(";") + body.count(",") > MOST_STATEMENTS:
        raise ValueError(f"{source.path}: got more than {MOST_STATEMENTS} members and enumerators, allowed are as many")
    before, macro_types = _types(source, body, basic)
    length = len(before)
    places = [(0, -BEFORE_ALL), *((length + a, b) for a, b in places)]
    text = before + body
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    declared = Declarations(source, (), starts, places, macro_types)
    failures = (c_parser.ParseError, RecursionError, AssertionError)
    try:
        declared.nodes = c_parser.CParser().parse(text, "").ext
    except failures:
        wrong = _wrong(body, before, failures)
        stated = " ".join(re.sub(r"char __npulab_\w+;", "", body[wrong[0]:wrong[1]]).split())
        raise ValueError(f"{source.where(declared._of(length + wrong[0]))}: got {stated[:80]!r}, allowed is a "
                         "declaration of C: a type, a name, and : width where it has one") from None
    return declared


def _wrong(body: str, before: str, failures: tuple[type[BaseException], ...]) -> tuple[int, int]:
    """Where the first statement stands that cannot be parsed."""
    from pycparser import c_parser
    cuts, depth = [(0, 0)], 0
    for match in BRACES.finditer(body):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if match[0] == ";":
            cuts.append((match.end(), depth))

    def fails(n: int) -> bool:
        end, depth = cuts[n]
        try:
            c_parser.CParser().parse(before + body[:end] + "};" * depth, "")
        except failures:
            return True
        return False

    low, high = 0, len(cuts) - 1
    if not high or not fails(high):
        high += 1
        cuts.append((len(body), 0))
        low = high - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    start = cuts[low][0]
    while start < cuts[high][0] - 1 and body[start].isspace():
        start += 1
    inner = body.rfind("{", start, cuts[high][0])
    more = re.compile(r"\s*").match(body, inner + 1)
    return (more.end() if inner > 0 and more else start), cuts[high][0]


def _types(source: Source, body: str, basic: Sequence[str]) -> tuple[str, frozenset[str]]:
    """Declarations of the names that stand where a type does; which are no types is told when a
    member wants one."""
    known, own, enum, begins = {name for name in basic if name.isidentifier()} - KEYWORDS, dict[str, str](), False, True
    declared = {re.findall(r"[A-Za-z_]\w*", re.sub(r"\[.*", "", match[0]))[-1] for match in TYPEDEF.finditer(body)}
    declared |= {*re.findall(r"\}\s*([A-Za-z_]\w*)\s*;", body)}
    for match in WORD.finditer(body):
        word = match[0]
        if word == "enum":
            enum = True
        elif enum and word in "};":
            enum, begins = False, word == ";"
        elif not enum and word in "{;":
            begins = True
        elif begins and word not in BEFORE:
            begins = False
            if re.match(r"[A-Za-z_]", word) and word not in KEYWORDS | known | declared and word not in own:
                macro = source.macros.get(word)
                words = macro.body.split() if macro and macro.parameters is None else []
                own[word] = " ".join(words) if words and {*words} <= KEYWORDS | known else ""
    said = {name: words for name, words in own.items() if words}
    used = {word for words in said.values() for word in words.split()} | {*re.findall(r"[A-Za-z_]\w*", body)}
    plain = sorted(known & used | own.keys() - said.keys())
    return "".join([*(f"typedef int {name}; " for name in plain), "\n",
                    *(f"typedef {words} {name};\n" for name, words in said.items())]), frozenset(said)


def _pieces(source: Source, found: Sequence[tuple[int, int]]) -> tuple[list[str], list[tuple[int, int]]]:
    """The text to be parsed in pieces, and (position in it, in the file) of each."""
    pieces: list[str] = []
    places: list[tuple[int, int]] = []
    at = 0
    macros = [name for name, macro in source.macros.items() if macro.parameters is None
              and re.match(r"__attribute", macro.body)]
    named = re.compile(rf"\b(?:{'|'.join(macros)})\b") if macros else None
    count = iter(range(2 ** 62))
    for start, end in found:
        code = source.code[start:end]
        code, attributes = attributes_of(source, code, start, named)
        bodies = [(match.end(), source.pack(start + match.start()))
                  for match in re.finditer(r"\b(?:struct|union)\b[^;{}]{0,400}?\{", code)]
        marks = sorted((*marks_of(code, attributes, count), *(
            (place, f" char __npulab_pack_{pack}_{next(count)};") for place, pack in bodies if pack)))
        done = 0
        for place, mark in [*marks, (len(code), ";\n" if not code.endswith(";") else "\n")]:
            for text, position in ((code[done:place], start + done), (mark, start + place)):
                pieces.append(text)
                places.append((at, position))
                at += len(text)
            done = place
    return pieces, places


def comments_of(source: Source, units: Sequence[Unit]) -> tuple[dict[Unit, str], dict[Unit, dict[str, Any]]]:
    """The note and the words of annotations of each member: of comments behind it on its line, in
    it and before it.

    Raises ValueError with file and line for an annotation that is broken.
    """
    notes: dict[Unit, str] = {}
    words: dict[Unit, dict[str, Any]] = {}
    ordered = sorted(units, key=lambda unit: unit.end)
    ends = [unit.end for unit in ordered]
    for one in source.comments:
        at = bisect_right(ends, one.start)
        unit = ordered[at] if at < len(ordered) else None
        own = True  # it stands by itself
        if at and one.start - ends[at - 1] < NEAR:
            between = source.code[ends[at - 1]:one.start]
            if not between.strip() and "\n" not in between:
                unit, own = ordered[at - 1], False
        if unit is None or (own and (unit.start - one.end > NEAR or
                                     re.search(r"[{};]", source.code[one.end:unit.start]))):
            continue
        line = source.code[max(0, one.start - NEAR):one.start].rpartition("\n")[2].rstrip()
        head = own and line.endswith("{") and source.code[one.end:one.end + NEAR].partition("\n")[0].isspace()
        try:
            said = said_in(one.text)
        except ValueError as error:
            raise ValueError(f"{source.where(one.start)}: {error}") from None
        if said is not None:
            words[unit] = {**words.get(unit, {}), **said}
        elif not head and (note := note_in(one.text)):
            notes[unit] = f"{notes[unit]} {note}" if unit in notes else note
    return notes, words
