"""The text of a C file: comments and directives taken out without running a preprocessor,
conditions decided.

What a condition may ask of the compiler is what a little-endian one says; other names that nobody
defines are 0.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from npulab.registers.formats.c_numbers import Macro, NumberError, Numbers
from npulab.support.files import read_bounded, text_of

MOST_BYTES = 2 ** 22  # of a file
MOST_MACROS, MOST_COMMENTS = 2 ** 15, 2 ** 16
COMPILER = {"__LITTLE_ENDIAN_BITFIELD": 1, "__LITTLE_ENDIAN": 1234, "LITTLE_ENDIAN": 1234, "__BYTE_ORDER": 1234,
            "BYTE_ORDER": 1234, "__BYTE_ORDER__": 1234, "__ORDER_LITTLE_ENDIAN__": 1234, "__BIG_ENDIAN": 4321,
            "BIG_ENDIAN": 4321, "__ORDER_BIG_ENDIAN__": 4321, "__GNUC__": 12, "__LP64__": 1}
# what is no bit-field order to ask for although it is defined as a number
ABSENT = ("__BIG_ENDIAN", "BIG_ENDIAN")
SKIPPED = re.compile(r"//(?:[^\n\\]|\\[\s\S])*+|/\*[\s\S]*?(?:\*/|\Z)|\"(?:\\.|[^\"\\\n])*+\"?|'(?:\\.|[^'\\\n]){1,4}'")
DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w*)((?:[^\n\\]|\\[\s\S])*+)", re.MULTILINE)
DEFINE = re.compile(r"\s*([A-Za-z_]\w{0,254}+)(?!\w)(\(([^()]*)\))?(.*)", re.DOTALL)
LINE = "\n"
SPACES = {ord(one): " " for one in "\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u200b"
          "\u202f\u205f\u3000\ufeff\u2060\f\v"} | {ord(one): "\n" for one in "\u2028\u2029\x85"}


class Comment(NamedTuple):
    """A comment, its marks taken off: where it begins and ends in the file's text."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Source:
    """A C file: ``code`` is its text with blanks for comments, directives and what conditions leave
    out; positions in it are those of the file."""

    path: Path
    code: str
    comments: tuple[Comment, ...]
    macros: dict[str, Macro] = field(default_factory=dict)
    packs: tuple[tuple[int, int], ...] = ()  # (position, bytes that #pragma pack allows from there on; 0: any)

    @cached_property
    def numbers(self) -> Numbers:
        return Numbers(self.macros)

    @cached_property
    def _lines(self) -> list[int]:
        return [match.end() for match in re.finditer("\n", self.code)]

    def where(self, position: int) -> str:
        """File and line of a position."""
        return f"{self.path}, line {bisect_right(self._lines, position) + 1}"

    def pack(self, position: int) -> int:
        """The bytes that ``#pragma pack`` allows members to be aligned to; 0 where it says
        nothing."""
        at = bisect_right(self.packs, (position, 2 ** 31))
        return self.packs[at - 1][1] if at else 0


def read_source(path: Path) -> Source:
    """A C file; raises ValueError with file and line for one that is too large, no UTF-8 or has an
    open comment."""
    text = text_of(read_bounded(path, MOST_BYTES), path)
    text = text.replace("\r\n", "\n").replace("\r", "\n").translate(SPACES)
    comments: list[Comment] = []
    pieces, done = [], 0
    for match in SKIPPED.finditer(text):
        if match[0][:2] not in ("//", "/*"):
            continue
        if match[0][1] == "*" and (len(match[0]) < 4 or not match[0].endswith("*/")):
            raise ValueError(f"{path}, line {text.count(LINE, 0, match.start()) + 1}: got a comment without its end, "
                             "allowed is one that ends in */")
        if len(comments) >= MOST_COMMENTS:
            raise ValueError(f"{path}, line {text.count(LINE, 0, match.start()) + 1}: got more than {MOST_COMMENTS} "
                             "comments, allowed are as many")
        inner = match[0][2:-2] if match[0][1] == "*" else match[0][2:]
        comments.append(Comment(match.start(), match.end(), inner))
        pieces += [_plain(text[done:match.start()]), _plain(blank(match[0]))]
        done = match.end()
    code = "".join([*pieces, _plain(text[done:])])
    del text, pieces
    return _conditions(Source(path, code, tuple(comments)))


def _plain(text: str) -> str:
    """The same length in ASCII, a question mark for others: code has none, and it takes a quarter
    of the memory."""
    return text.encode("ascii", "replace").decode("ascii")


def blank(text: str) -> str:
    """As many blanks and line ends.

    >>> blank("a /* b")
    '      '
    """
    return re.sub(r"[^\n]", " ", text)


def _conditions(source: Source) -> Source:
    """The source with its directives carried out."""
    macros: dict[str, Macro] = {name: Macro(name, None, str(value), 0) for name, value in COMPILER.items()}
    numbers = Numbers(macros)
    levels: list[tuple[bool, bool]] = []  # (is read, one of its branches was)
    packs: list[tuple[int, int]] = []
    stack: list[int] = []
    pieces, done = [], 0
    for match in DIRECTIVE.finditer(source.code):
        word, rest = match[1], match[2].replace("\\\n", " ")
        reads = not levels or levels[-1][0]
        between = source.code[done:match.start()]
        pieces += [between if reads else blank(between), blank(match[0])]
        done = match.end()
        outer = len(levels) < 2 or levels[-2][0]
        if word in ("if", "ifdef", "ifndef"):
            holds = reads and _holds(word, rest, numbers)
            levels.append((holds, holds or not reads))
        elif word in ("elif", "else") and levels:
            holds = outer and not levels[-1][1] and (word == "else" or _holds("if", rest, numbers))
            levels[-1] = holds, levels[-1][1] or holds
        elif word == "endif" and levels:
            levels.pop()
        elif reads and word == "define" and (said := DEFINE.match(rest)):
            if len(macros) > MOST_MACROS:
                raise ValueError(f"{source.where(match.start())}: got more than {MOST_MACROS} macros, allowed are as "
                                 "many")
            names = None if said[2] is None else tuple(one.strip() for one in said[3].split(","))
            macros[said[1]] = Macro(said[1], names, said[4].strip(), match.start())
        elif reads and word == "undef":
            macros.pop(rest.strip(), None)
        elif reads and word == "pragma" and (asked := re.match(r"\s*pack\s*\(([^()]*)\)", rest)):
            packs.append((match.start(), _pack([one.strip() for one in asked[1].split(",")],
                                               packs[-1][1] if packs else 0, stack)))
    rest = source.code[done:]
    pieces.append(rest if not levels or levels[-1][0] else blank(rest))
    for name in COMPILER:
        if name in macros and macros[name].position == 0 and macros[name].body == str(COMPILER[name]):
            del macros[name]
    return Source(source.path, "".join(pieces), source.comments, macros, tuple(packs))


def _holds(word: str, rest: str, numbers: Numbers) -> bool:
    if word != "if":
        name = (rest.split() or [""])[0]
        return (name in numbers.macros and name not in ABSENT) == (word == "ifdef")
    try:
        return numbers.fresh().condition(re.sub(
            r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))", lambda one: str(int(
                (one[1] or one[2]) in numbers.macros and (one[1] or one[2]) not in ABSENT)), rest))
    except NumberError:
        return False


def _pack(words: list[str], now: int, stack: list[int]) -> int:
    if words[0] == "push":
        stack.append(now)
    if words[0] == "pop":
        now = stack.pop() if stack else 0
    sizes = [int(word) for word in words if word in ("1", "2", "4", "8", "16")]
    return sizes[-1] if sizes else 0 if words == [""] else now
