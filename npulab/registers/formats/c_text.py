"""The text of C files: comments, conditions, macros and declarations. The compiler, libclang,
decides conditions, checks declarations and computes numbers.

Only the named files are opened: lines that would open another file never reach the compiler, and
nothing is run. These inputs of the compiler are bounded: the characters of a file, of a macro and
of a member, the depth of brackets, and the tokens that a macro may become when it is replaced.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

from npulab.support.extras import needed
from npulab.support.files import read_bounded, text_of

MOST_BYTES = 2**24  # a file has at most so many bytes
# The most macros, comments, and directives of conditions (such as #if) of a file. Register headers
# have far fewer; a hostile file is refused with a sentence before it fills the memory.
MOST_MACROS, MOST_COMMENTS, MOST_CONDITIONS = 2**18, 2**18, 2**14
MOST_GROWTH = 2**12  # a macro may become at most so many tokens when it is replaced
MOST_MEMBER = 2**11  # a member or a macro's body has at most so many characters
MOST_DEPTH = 32  # at most so many braces and parentheses are inside each other
# Matches an integer, which may be in brackets and have a suffix such as UL.
LITERAL = re.compile(r"\(*\s*(0[xX][0-9a-fA-F]{1,16}|0|[1-9]\d{0,18})(?:[uUlL]{1,3})?\s*\)*")
NAME = re.compile(r"[A-Za-z_]\w*")
# matches a comment, a text in quotes, or a character in quotes
SKIPPED = re.compile(
    r"//(?:[^\n\\]++|\\[\s\S])*+|/\*[\s\S]*?(?:\*/|\Z)|"
    r"\"(?:\\.|[^\"\\\n])*+\"?|'(?:\\.|[^'\\\n]){1,4}'"
)
DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w*)((?:[^\n\\]++|\\[\s\S])*+)", re.MULTILINE)
DEFINE = re.compile(r"\s*([A-Za-z_]\w{0,254}+)(?!\w)(\(([^()]*)\))?(.*)", re.DOTALL)
# matches a constant of C or C++, such as ``const uint32_t X = 4;``
CONSTANT = re.compile(
    r"(?<![\w,(*] )(?<![\w,(*])(?:(?:static|inline|extern|constexpr|const)\s+)*"
    r"(?:constexpr|const)\s+"
    r"(?:(?:std::)?u?int\d*(?:_t)?|u\d+|unsigned(?:\s+(?:int|long))?|auto|size_t)\s+(?:const\s+)?"
    r"([A-Za-z_]\w*)\s*=([^;{}\"',]+);"
)
# matches an inline function that only returns an expression
FUNCTION = re.compile(
    r"\bstatic\s+inline\s+(?:u?int\d*(?:_t)?|u\d+|unsigned(?:\s+int)?)\s+([A-Za-z_]\w*)"
    r"\s*\(([\w\s,]*)\)\s*\{\s*return\b([^;{}\"']+);\s*\}"
)
CONDITIONS = ("if", "ifdef", "ifndef", "elif", "elifdef", "elifndef", "else", "endif")
# matches a struct, union or enum up to its opening brace; {words} are these three keywords and the
# file's macros that stand for them
HEAD = (
    r"\b(?:typedef\s+)?(?:(?:const|volatile|static)\s+)*(?:{words})\b"
    r"(?:\s+(?:__\w+\s*\((?:[^()]|\([^()]*\)){{0,200}}\)|[A-Za-z_]\w*)){{0,4}}+(?:\s*:\s*\w+)?\s*\{{"
)
# matches, after the closing brace of a declaration, its attributes and names up to the semicolon
TAIL = re.compile(
    r"(?:\s*__\w+\s*(?:\((?:[^()]|\((?:[^()]|\([^()]*\)){0,200}\)){0,200}\))?){0,8}+"
    r"(?:[\s,*]*[A-Za-z_]\w*\s*(?:\[\w*\]\s*)*+(?:\((?:[^()]|\([^()]*\)){0,200}\))?){0,4}+\s*;"
)
TYPEDEF = re.compile(r"\btypedef\b[^;{}]{1,400};")
MEMBER = re.compile(r"[^;{},]+")
BRACES = re.compile(r"[{}();]")
# characters of a file that are read as a blank
BLANKS = (
    "\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u200b"
    "\u202f\u205f\u3000\ufeff\u2060\f\v"
)
SPACES = str.maketrans(dict.fromkeys(BLANKS, " ") | dict.fromkeys("\u2028\u2029\x85", "\n"))
ASKED = re.compile(r"\(--define (\w+=\w+)\)$")  # finds the option in a text of ``_reason``
INCLUDE = re.compile(r"\s*([<\"][^>\"\n]{1,255}[>\"])")
# headers of C itself, whose types npulab declares to the compiler
STANDARD = [
    "assert.h",
    "inttypes.h",
    "limits.h",
    "math.h",
    "stdbool.h",
    "stddef.h",
    "stdint.h",
    "stdio.h",
    "stdlib.h",
    "string.h",
]
OPTIONS = [
    "-x",
    "c",
    "-std=c2x",
    "-target",
    "x86_64-linux-gnu",
    "-nostdinc",
    "-ferror-limit=0",
    "-w",
]
ERROR = 3  # libclang's number for the severity "error"; 4 is "fatal"

# this file declares names that headers often take from other headers
GIVEN = Path(__file__).with_name("c_given.h")


@cache
def given() -> dict[str, tuple[str, bool]]:
    """Return the lines of c_given.h. A key is the name that a line declares, a value is the line
    and True if it declares a type, not a macro. Headers often take these names from other headers.
    """
    lines = re.finditer(
        r"^(?:#define (\w+)|typedef .*?(\w+);).*", GIVEN.read_text(encoding="utf-8"), re.MULTILINE
    )
    return {line[1] or line[2]: (line[0], line[1] is None) for line in lines}


class Comment(NamedTuple):
    """A comment without its marks, and its beginning and end in the text."""

    start: int
    end: int
    text: str


class Macro(NamedTuple):
    """A macro as a file defines it: its name, its parameters (None if it has no brackets), its
    body, and the positions at which its directive begins and ends.
    """

    name: str
    parameters: tuple[str, ...] | None
    body: str
    position: int
    end: int


@dataclass(frozen=True)
class Source:
    """C files, joined to one text. ``code`` is this text with blanks in place of comments,
    directives, and text that conditions leave out. A position is an index in ``code``; ``files``
    has the position at which each file begins.
    """

    path: Path
    code: str
    comments: tuple[Comment, ...]
    macros: Mapping[str, Macro] = field(default_factory=dict)
    packs: tuple[tuple[int, str], ...] = ()  # (position, directive) of each #pragma pack
    files: tuple[tuple[int, Path], ...] = ()
    defines: tuple[str, ...] = ()
    left_out: tuple[tuple[int, int], ...] = ()  # spans of text that conditions leave out
    directives: tuple[tuple[int, int], ...] = ()  # spans of directives that define no macro
    text: str = ""  # the code before the directives were carried out

    @cached_property
    def _lines(self) -> list[int]:
        return [match.end() for match in re.finditer("\n", self.code)]

    @property
    def names(self) -> set[str]:
        """The names of the macros that the files and ``defines`` define."""
        return {text.split("(")[0].split()[1] for text in self.defines} | {*self.macros}

    @property
    def unread(self) -> list[tuple[str, int]]:
        """The files that this file includes but that were not read, each with the position of its
        directive; headers of C itself are left out.
        """
        given_too = {path.name for _, path in self.files[:-1]}
        found: list[tuple[str, int]] = []
        for match in DIRECTIVE.finditer(self.text, self.own):
            if match[1] == "include" and (named := INCLUDE.match(match[2])):
                file = named[1][1:-1]
                if file not in STANDARD and Path(file).name not in given_too:
                    found.append((named[1], match.start()))
        return found

    @property
    def own(self) -> int:
        """The position at which the file itself begins, after the included files."""
        if self.files:
            return self.files[-1][0]
        return 0

    def pack(self, position: int) -> int:
        """Return the most bytes to which ``#pragma pack`` lets members at a position be aligned; 0
        for no limit."""
        limit, stack = 0, list[int]()
        for start, text in self.packs:
            if start > position:
                continue
            words = re.findall(r"\w+", text.partition("(")[2])
            before = limit
            if not words:
                before = 0
            elif words[0] == "push":
                stack.append(limit)
            elif words[0] == "pop":
                limit = stack.pop() if stack else 0
                continue
            limit = next((int(word) for word in words if word.isdigit()), before)
        return limit

    def line(self, position: int) -> int:
        """Return the number of the line at a position, in the file of the position."""
        start = max((start for start, _ in self.files if start <= position), default=0)
        return bisect_right(self._lines, position) - bisect_right(self._lines, start) + 1

    def where(self, position: int) -> str:
        """Return the file and the line of a position, as errors name them."""
        path = next((path for start, path in reversed(self.files) if start <= position), self.path)
        return f"{path}, line {self.line(position)}"


def read_source(path: Path, define: Sequence[str] = (), include: Sequence[Path] = ()) -> Source:
    """Return a C file with its conditions decided; the files of ``include`` are joined to it, in
    front.

    ``define`` has texts ``NAME``, ``NAME=VALUE`` or ``NAME(X)=BODY``. Raises ValueError, with the
    file, for a file that is too large, is not UTF-8 or has a comment without its end;
    MissingPackage without libclang.
    """
    defines = tuple(_define(text) for text in define)
    pieces, comments, files, length = list[str](), list[Comment](), list[tuple[int, Path]](), 0
    for file in (*include, path):
        text = text_of(read_bounded(file, MOST_BYTES), file)
        text = text.replace("\r\n", "\n").replace("\r", "\n").translate(SPACES)
        code, more = _without_comments(text, file)
        files.append((length, file))
        comments += [Comment(length + start, length + end, said) for start, end, said in more]
        pieces.append(code + "\n")
        length += len(code) + 1
    source = Source(path, "".join(pieces), tuple(comments), files=tuple(files), defines=defines)
    return _conditions(source)


def _define(text: str) -> str:
    found = re.fullmatch(r"([A-Za-z_]\w*(?:\([\w\s,]*\))?)(?:=(.*))?", text)
    if not found or "\n" in text or len(text) > MOST_MEMBER:
        raise ValueError(f"define: got {text[:80]!r}, allowed is NAME, NAME=VALUE or NAME(X)=BODY")
    name, value = found.groups("1")
    return f"#define {name} {value}"


def _without_comments(text: str, path: Path) -> tuple[str, list[Comment]]:
    comments: list[Comment] = []
    pieces, done = [], 0
    for match in SKIPPED.finditer(text):
        if match[0][:2] not in ("//", "/*"):
            continue
        if match[0][1] == "*" and (len(match[0]) < 4 or not match[0].endswith("*/")):
            line = text.count("\n", 0, match.start()) + 1
            raise ValueError(
                f"{path}, line {line}: got a comment without its end, allowed is a comment "
                "that ends in */"
            )
        if len(comments) >= MOST_COMMENTS:
            raise ValueError(
                f"{path}: got more than {MOST_COMMENTS} comments, at most {MOST_COMMENTS} are "
                "allowed"
            )
        inner = match[0][2:]
        if match[0][1] == "*":
            inner = inner[:-2]
        comments.append(Comment(*match.span(), inner))
        pieces += [text[done : match.start()], blank(match[0])]
        done = match.end()
    # each character that is not ASCII becomes one of ASCII, so that a position in characters is a
    # position in bytes too
    return "".join([*pieces, text[done:]]).encode("ascii", "replace").decode("ascii"), comments


def blank(text: str) -> str:
    """Return a text with a blank in place of each character except line ends.

    >>> blank("a /* b")
    '      '
    """
    if "\n" in text:
        return "\n".join(" " * len(line) for line in text.split("\n"))
    return " " * len(text)


# conditions


def _conditions(source: Source) -> Source:
    """Return the source with its directives carried out; the compiler decides the conditions."""
    directives = [*DIRECTIVE.finditer(source.code)]
    made = {}
    for n, match in enumerate(directives):
        found = DEFINE.match(_joined(match))
        if found and match[1] in ("define", "undef"):
            made[n] = found
    holds = _holding(source, directives, made)
    macros: dict[str, Macro] = {}
    packs: list[tuple[int, str]] = []
    left_out: list[tuple[int, int]] = []
    pieces, done, reads = [], 0, True
    for n, match in enumerate(directives):
        word, (start, end) = match[1], match.span()
        between = source.code[done:start]
        if not reads:
            left_out.append((done, start))
            between = blank(between)
        pieces += [between, blank(match[0])]
        done = end
        reads = holds.get(n, reads)
        if not reads:
            continue
        if n in made:
            # the directive defines the macro again or undefines it: the earlier definition goes
            macros.pop(made[n][1], None)
        if word == "define" and n in made:
            if len(macros) >= MOST_MACROS:
                raise ValueError(
                    f"{source.where(start)}: got more than {MOST_MACROS} macros, at most "
                    f"{MOST_MACROS} are allowed"
                )
            name, brackets, inner, body = made[n].groups()
            names = None
            if brackets is not None:
                names = tuple(map(str.strip, inner.split(",")))
            macros[name] = Macro(name, names, body.strip(), start, end)
        elif word == "pragma" and re.match(r"\s*pack\s*\(", _joined(match)):
            packs.append((start, f"#pragma {_joined(match).strip()}"))
    rest = source.code[done:]
    if not reads:
        left_out.append((done, len(source.code)))
        rest = blank(rest)
    for macro in _constants(source.code):
        macros.setdefault(macro.name, macro)
    return Source(
        source.path,
        "".join([*pieces, rest]),
        source.comments,
        macros,
        tuple(packs),
        source.files,
        source.defines,
        tuple(left_out),
        tuple(match.span() for match in directives if match[1] != "define"),
        source.code,
    )


def _joined(directive: re.Match[str]) -> str:
    """Return the text of a directive after its word, on one line."""
    return directive[2].replace("\\\n", " ")


def _constants(code: str) -> Iterator[Macro]:
    """Yield macros for the constants of a text, and for its functions that only return an
    expression.
    """
    for match in CONSTANT.finditer(code) if "const" in code else ():
        yield Macro(match[1], None, " ".join(match[2].split()), *match.span())
    for match in FUNCTION.finditer(code) if "inline" in code else ():
        words = None
        if match[2].strip() not in ("", "void"):
            words = tuple(re.findall(r"(\w+)\s*(?:,|$)", match[2]))
        yield Macro(match[1], words, " ".join(match[3].split()), *match.span())


def _holding(
    source: Source,
    directives: Sequence[re.Match[str]],
    made: Mapping[int, re.Match[str]],
) -> dict[int, bool]:
    """Return, by the number of each directive of a condition, True if the compiler reads the text
    after it. ``made`` has the match of DEFINE for each directive that defines or undefines a macro.
    """
    conditions = [n for n, match in enumerate(directives) if match[1] in CONDITIONS]
    if not conditions:
        return {}
    if len(conditions) > MOST_CONDITIONS:
        raise ValueError(
            f"{source.path}: got more than {MOST_CONDITIONS} conditions, at most {MOST_CONDITIONS} "
            "are allowed"
        )
    asked = {*NAME.findall(" ".join(directives[n][2] for n in conditions))}
    bodies: dict[str, list[str]] = {}
    for found in made.values():
        bodies.setdefault(found[1], []).append(found[4])
    asked = _made_of(asked, bodies)
    known = asked & bodies.keys()
    growing = _growing({name: Macro(name, (), " ".join(bodies[name]), 0, 0) for name in known})
    lines, depth = [*_given(source, asked)], 0
    for n, match in enumerate(directives):
        word = match[1]
        if word not in CONDITIONS and (n not in made or made[n][1] not in asked):
            continue
        # __has_include and its like become 0: the compiler would look for files, and the answer
        # would depend on the machine
        rest = re.sub(r"\b__has_\w+\s*(\([^()]*\))?", "0", match[2].replace("\\\n", " "))
        if word in CONDITIONS:
            depth += {"if": 1, "ifdef": 1, "ifndef": 1, "endif": -1}.get(word, 0)
            if depth < 0:
                depth = 0
                continue
            if len(rest) > MOST_MEMBER or _depth(rest) > MOST_DEPTH:
                rest = " 0"
            # the compiler has this declaration only if it reads the text after the directive
            lines += [f"#{word} {rest}", f"extern int npulab_{n};"]
        elif made[n][1] not in growing and len(rest) < MOST_MEMBER:
            lines.append(f"#{word} {rest}")
    # the compiler would not accept a condition without its end
    lines += ["#endif"] * depth
    unit = _parsed("\n".join(lines), source.path)
    declared = {cursor.spelling for cursor in unit.cursor.get_children()}
    return {n: f"npulab_{n}" in declared for n in conditions}


def _made_of(words: set[str], bodies: Mapping[str, Sequence[str]]) -> set[str]:
    """Return these words, the words in the bodies of macros among them, the words in the bodies of
    macros among those, and so on. ``bodies`` has the bodies of each macro.
    """
    out, new = {*words}, words
    while new:
        known = " ".join(chain.from_iterable(bodies.get(name, ()) for name in new))
        new = {*NAME.findall(known)} - out
        out |= new
    return out


def _growing(macros: Mapping[str, Macro]) -> set[str]:
    """Return the macros that would become more than ``MOST_GROWTH`` tokens when they, and the
    macros in their bodies, are replaced.
    """
    sizes: dict[str, int] = {}
    for first in macros:
        # an explicit stack, because chains of macros may be longer than Python's recursion limit
        stack = [first]
        while stack:
            name = stack[-1]
            words = []
            if name not in sizes:
                words = [word for word in NAME.findall(macros[name].body) if word in macros]
            missing = [word for word in words if word not in sizes and word not in stack]
            if missing and len(stack) < 2 * MOST_DEPTH:
                stack.append(missing[0])
                continue
            stack.pop()
            if name not in sizes:
                size = 1
                if words:
                    size = 1 + len(macros[name].body) // 2
                for word in words:
                    size += sizes.get(word, 1 if word in stack or word == name else MOST_GROWTH)
                    # a replaced macro has its argument once for each use of the parameter
                    names = macros[word].parameters or ()
                    size *= max([1, *map(macros[word].body.count, names)])
                sizes[name] = min(size, 2 * MOST_GROWTH)
    return {name for name, size in sizes.items() if size > MOST_GROWTH}


def _depth(text: str) -> int:
    if text.count("(") + text.count("{") + text.count("[") < 2:
        return len({*text} & {*"({["})
    signs = re.findall(r"[(){}\[\]]", text)
    return max(accumulate(1 if sign in "({[" else -1 for sign in signs))


# the compiler


def _parsed(text: str, path: Path) -> Any:
    """Parse a text, made from the file ``path``, with libclang; raises MissingPackage, with the
    install command, without libclang.
    """
    cindex = needed("clang.cindex", f"{path}: reading C")
    try:
        return cindex.Index.create().parse("npulab.c", OPTIONS, [("npulab.c", text)])
    except cindex.TranslationUnitLoadError:
        raise ValueError("got C that the compiler cannot read, allowed is C23") from None


def _given(source: Source, names: Iterable[str]) -> Iterator[str]:
    """Yield the lines of c_given.h that define macros of these names, unless the files define them,
    and then the lines of ``defines``.
    """
    lines = given()
    asked = {*names, *NAME.findall(" ".join(source.defines))}
    for name in sorted(asked & lines.keys() - source.names):
        line, is_type = lines[name]
        if not is_type:
            yield line
    yield from source.defines


class Wrong(NamedTuple):
    """Why a declaration is refused, by the compiler or before it: the position of the fault, and a
    text."""

    position: int
    text: str


@dataclass(frozen=True)
class Unit:
    """The declarations and macros of a source, as the compiler understands them."""

    source: Source
    cursors: Sequence[Any]
    spans: Sequence[tuple[int, int]]  # the spans of the declarations, (begin, end)
    wrong: Mapping[int, Wrong]  # refused declarations, by where they begin
    before: int  # the compiler's text has so many characters before the source
    values: Mapping[str, int]  # the values of expressions, by name
    refused: Mapping[str, str]  # why an expression has no value, by its name
    missing: tuple[str, ...] = ()  # names declared nowhere, as --define takes them

    def position(self, location: Any) -> int:
        return int(location.offset) - self.before

    def span(self, position: int) -> tuple[int, int] | None:
        """Return the beginning and end of the declaration around a position; None if there is
        none."""
        last = bisect_right(self.spans, (position, 2**62)) - 1
        if last >= 0 and position < self.spans[last][1]:
            return self.spans[last]
        return None


def read_unit(source: Source, probes: Mapping[str, str]) -> Unit:
    """Return the declarations of a source, and the values of the expressions ``probes`` by name.

    A declaration that is too long, is nested too deep or has no end does not reach the compiler.
    """
    wrong: dict[int, Wrong] = {}
    spans = [span for span in declarations(source, wrong) if span[0] not in wrong]
    twins = _twins(source, probes)
    asked = {name: text for name, text in probes.items() if name not in twins}
    if not spans and not asked:
        return Unit(source, (), (), wrong, 0, {}, {})
    code = "\n".join(source.code[start:end] for start, end in spans)
    bodies = {name: (macro.body,) for name, macro in source.macros.items()}
    words = _made_of({*NAME.findall(code), *NAME.findall(" ".join(asked.values()))}, bodies)
    if any("##" in source.macros[name].body for name in words & bodies.keys()):
        # ## may join words to the name of any macro, so all macros are used
        words = _made_of(words | bodies.keys(), bodies)
    used = {name: macro for name, macro in source.macros.items() if name in words}
    growing = _growing(used)
    reason = "it grows too far when macros are replaced"
    refused = {name: reason for name in asked if name in growing}
    asked = {name: text for name, text in asked.items() if text.partition("(")[0] not in growing}
    body = _body(source, spans, [macro for name, macro in used.items() if name not in growing])
    text = _Text(source, [*_given(source, words), *_types(source, code, words)], body, asked)
    unit = _parsed(text.whole, source.path)
    opaque = sorted(_unknown_types(unit))
    if opaque:  # a pointer may point to a type that is declared nowhere
        lines = [f"typedef struct npulab_no_{name} {name};" for name in opaque]
        text = _Text(source, [*text.lines, *lines], body, asked)
        unit = _parsed(text.whole, source.path)
    failed, reasons = _errors(unit, text, [start for start, _ in spans], wrong)
    refused |= failed
    cursors = [*unit.cursor.get_children()]
    offsets = [cursor.location.offset for cursor in cursors]
    first, last = bisect_left(offsets, text.begin), bisect_left(offsets, text.end)
    values = {}
    names = {f"npulab_{n}": name for n, name in enumerate(text.names) if name not in failed}
    for cursor in cursors[last:]:
        for child in cursor.get_children():
            if child.spelling in names:
                values[names[child.spelling]] = int(child.enum_value)
    values |= {name: values[twin] for name, twin in twins.items() if twin in values}
    refused |= {name: refused[twin] for name, twin in twins.items() if twin in refused}
    found = [ASKED.search(reason) for reason in reasons]
    missing = tuple(dict.fromkeys(match[1] for match in found if match))
    return Unit(source, cursors[first:last], spans, wrong, text.begin, values, refused, missing)


def _twins(source: Source, probes: Mapping[str, str]) -> dict[str, str]:
    """Return an earlier macro with the same body, by macro in ``probes``: the compiler computes
    only the value of the earlier macro.
    """
    texts = {name: macro.body for name, macro in source.macros.items() if macro.parameters is None}
    same: dict[str, str] = {}
    twins = {}
    for name in probes:
        if name in texts:
            body = NAME.sub(lambda word: texts.get(word[0], word[0]), texts[name])
            twin = same.setdefault(body, name)
            if twin != name:
                twins[name] = twin
    return twins


class _Text:
    """The text for the compiler: lines of declarations, the source from ``begin`` to ``end``, and
    an enum for each expression, on a line of its own.
    """

    def __init__(
        self, source: Source, lines: Sequence[str], body: str, asked: Mapping[str, str]
    ) -> None:
        before = "".join(f"{line}\n" for line in lines)
        enums = [f"\nenum {{ npulab_{n} = ({text}) }};" for n, text in enumerate(asked.values())]
        self.macros = source.macros
        self.lines = lines
        self.names = [*asked]
        self.begin, self.end = len(before), len(before) + len(body)
        self.whole = "".join([before, body, *enums])
        self.first_line = self.whole.count("\n", 0, self.end) + 2  # the line of the first enum


def _unknown_types(unit: Any) -> set[str]:
    """Return the names that the compiler takes for types that are declared nowhere."""
    names = set()
    for error in unit.diagnostics:
        found = re.match(r"unknown type name '(\w+)'", error.spelling)
        if found and error.severity >= ERROR:
            names.add(found[1])
    return names


def _errors(
    unit: Any, text: _Text, starts: Sequence[int], wrong: dict[int, Wrong]
) -> tuple[dict[str, str], list[str]]:
    """Return the reason for each expression without a value, by name, and a list of all reasons;
    the reasons of declarations are first in the list. The declarations that the compiler refuses
    are added to ``wrong``. ``starts`` has the positions of all declarations.
    """
    failed: dict[str, str] = {}
    declared, asked = [], []
    for error in unit.diagnostics:
        if error.severity < ERROR:
            continue
        reason = _reason(error.spelling, text.macros)
        position = error.location.offset - text.begin
        if error.location.offset >= text.end:
            asked.append(reason)
            n = error.location.line - text.first_line
            if 0 <= n < len(text.names):
                failed.setdefault(text.names[n], reason)
            continue
        declared.append(reason)
        last = bisect_right(starts, position) - 1
        if last >= 0:
            wrong.setdefault(starts[last], Wrong(max(position, starts[last]), reason))
    return failed, declared + asked


def _reason(text: str, macros: Container[str]) -> str:
    """Return an error of the compiler in words for a person who reads a header, with the option
    that declares a missing name."""
    if found := re.search(r"'(\w+)' \(aka 'struct npulab_no_", text):
        return f"the type {found[1]} is declared nowhere (--define {found[1]}=TYPE)"
    if (found := re.search(r"undeclared identifier '(\w+)'", text)) and found[1] in macros:
        return f"{found[1]} refers to itself"
    if found := re.search(
        r"(?:unknown type name|undeclared (?:identifier|function)) '(\w+)'", text
    ):
        return f"{found[1]} is declared nowhere (--define {found[1]}=VALUE)"
    return text


def _body(source: Source, spans: Sequence[tuple[int, int]], macros: Iterable[Macro]) -> str:
    """Return the code with these declarations and macros alone, each at its position, and blanks in
    place of everything else, so that the compiler reports positions of the source.
    """
    out = bytearray(blank(source.code), "ascii")
    for start, end in spans:
        out[start:end] = source.code[start:end].encode()
    directives = [*source.packs]
    for macro in macros:
        if len(macro.body) <= MOST_MEMBER and _depth(macro.body) <= MOST_DEPTH:
            head = macro.name
            if macro.parameters is not None:
                head += f"({','.join(macro.parameters)})"
            text = f"#define {head} {' '.join(macro.body.split())}"
            # a longer text would overwrite the text after the macro
            directives.append((macro.position, text[: macro.end - macro.position]))
    for start, text in directives:
        out[start : start + len(text)] = text.encode()
    return out.decode()


def _types(source: Source, code: str, words: set[str]) -> Iterator[str]:
    """Yield lines that declare the types and enums that the source's declarations use but do not
    declare.
    """
    typedefs = " ".join(TYPEDEF.findall(code))
    own = {*re.findall(r"([A-Za-z_]\w*)\s*(?:\[\w*\]\s*)*;", typedefs)} | source.names
    own.update(re.findall(r"\}[^;{}]*?([A-Za-z_]\w*)\s*;", code))
    lines = given()
    for name in sorted(words & lines.keys() - own):
        line, is_type = lines[name]
        if is_type:
            yield line
    bodies = {*re.findall(r"\benum\s+(?:__\w+\s*)?(\w+)[\s:\w]*\{", code)}
    for name in sorted({*re.findall(r"\benum\s+(\w+)\b", code)} - bodies):
        yield f"enum {name} {{ npulab_no_{name} }};"


# finding declarations in the text


def declarations(source: Source, wrong: dict[int, Wrong]) -> Iterator[tuple[int, int]]:
    """Yield the span of each declaration (struct, union, enum or typedef) of a source, in the order
    of the text. Declarations that must not reach the compiler are yielded too, and added to
    ``wrong``.
    """
    words = ["struct", "union", "enum"]
    for name, macro in source.macros.items():
        is_word = re.fullmatch(r"(struct|union|enum)(\s+__\w+.*)?", macro.body)
        if is_word and macro.parameters is None:
            words.append(name)
    head = re.compile(HEAD.format(words="|".join(words)))
    code, at = source.code, 0
    # a search beyond the last of these words would run to the end of the file without a match
    last = max(code.rfind(word) for word in words)
    while at <= last and (match := head.search(code, at)):
        depth, most, end = 0, 0, -1
        for brace in BRACES.finditer(code, match.end() - 1):
            depth += {"{": 1, "(": 1, ";": 0}.get(brace[0], -1)
            most = max(most, depth)
            if depth <= 0 and brace[0] == "}":
                end = brace.end()
                break
        yield from _typedefs(code, at, match.start())
        if end < 0:
            wrong[match.start()] = Wrong(match.start(), "its closing brace is missing")
            yield match.start(), match.end()
            return
        start, at = match.start(), end
        if tail := TAIL.match(code, end):
            at = tail.end()
        for member in MEMBER.finditer(code, start, at):
            text = member[0].lstrip()
            if len(text) > MOST_MEMBER and len("".join(text.split())) > MOST_MEMBER:
                reason = f"it has a member of more than {MOST_MEMBER} characters"
                wrong[start] = Wrong(member.end() - len(text), reason)
                break
        if most > MOST_DEPTH:
            wrong[start] = Wrong(
                start, f"it has braces that are nested more than {MOST_DEPTH} deep"
            )
        yield start, at
    yield from _typedefs(code, at, len(code))


def _typedefs(code: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    if code.find("typedef", start, end) < 0:
        return
    for match in TYPEDEF.finditer(code, start, end):
        is_plain = "sizeof" not in match[0] and _depth(match[0]) <= MOST_DEPTH
        if is_plain and len(match[0].split()) > 2:
            yield match.span()
