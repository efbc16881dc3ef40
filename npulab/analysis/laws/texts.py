"""Laws read from text.

A text is written as ``expressions`` writes laws: parameters and fields by name, whole numbers,
brackets, and the operators as ``operators.csv`` writes them; operators of real numbers stand within
``float32(...)``. A checksum names its words: ``crc32(w0_0_32 to w6_0_32 without w6_16_16)``. A law
may have cases: ``when stride == 2: a; else: b``.

A text is cut into tokens, and each token is checked to be one that may stand there. Python's
``ast`` then builds a tree, in which the texts of the operators are looked for. Nothing is
evaluated: names and numbers stand as ``_`` in the text that Python parses.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple, NoReturn

from npulab.analysis.laws.checksums import MOST_WORDS, TEXT, parse_checksum
from npulab.analysis.laws.expressions import (
    ALWAYS,
    CONSTANT,
    Expression,
    checksum,
    constant,
    field,
    parameter,
    term,
)
from npulab.analysis.laws.inputs import FIELD_NAME, LARGEST
from npulab.analysis.laws.operators import BITS, OPERATORS, REAL, Operator
from npulab.analysis.laws.predicates import both
from npulab.analysis.laws.solved import Steps

MOST_TOKENS, DEEPEST, MOST_DIGITS = 200, 25, 40
TOKEN = re.compile(
    rf"""\s* (?: (?P<checksum> {TEXT} )
    | (?P<number> 0x[0-9a-fA-F]+ | [0-9]+ )
    | (?P<minus> - ) | (?P<open> \( ) | (?P<close> \) ) | (?P<comma> , )
    | (?P<colon> : ) | (?P<semicolon> ; )
    | (?P<sign> // | == | != | <= | >= | [+*/%^<>] | and (?![\w.@[]) )
    | (?: (?P<double> in\s+double ) | (?P<when> when ) | (?P<otherwise> else ) ) (?![\w.@[])
    | (?P<call> [A-Za-z_](?:[\w.@]|\[\w+\])* ) \s* \(
    | (?P<name> [A-Za-z_](?:[\w.@]|\[\w+\])* )
    | (?P<unknown> \S )
    )""",
    re.VERBOSE,
)
# What may stand at a place, in the words of an error. READ has the kinds of tokens that are read
# there.
OPERAND, COLON, BRACKET, CALL = "a name, a number or a bracket", "':'", "')'", "',' or ')'"
END, CASE_END, CASE = "the end", "';' or the end", "'when', 'else' or the end"
SIGNS = {"sign", "minus", "double"}
READ = {
    OPERAND: {"number", "name", "checksum", "minus", "open", "call"},
    BRACKET: {*SIGNS, "close"},
    CALL: {*SIGNS, "close", "comma"},
    COLON: {*SIGNS, "colon"},
    CASE_END: {*SIGNS, "semicolon"},
    CASE: {"when", "otherwise"},
    END: SIGNS,
}
# The ends of the parts that a token opens, and Python's text for an end. Cases become a dictionary.
# A bracket that is no call becomes a list, so that the tree shows it.
OPENED = {"open": [BRACKET], "call": [CALL], "when": [CASE_END, COLON], "otherwise": [END, COLON]}
CLOSED = {BRACKET: "]", CALL: ")", COLON: ":", CASE_END: ","}
# Python's text for other tokens, if it is another one; "in double" is a sign after its product.
PIECES = {
    "number": "_",
    "name": "_",
    "checksum": "_",
    "otherwise": "_",
    "call": "_(",
    "open": "[",
    "when": "",
    "double": "@ double",
}
# an operand ends with a token of one of these kinds
ENDED = {"number", "name", "checksum", "close", "double", "otherwise"}

# The kind of operators that is refused outside ``float32(...)`` (False) and inside it (True).
ELSEWHERE = {False: REAL, True: BITS}

BASES = {"0x": 16}
HOLES = ("x", "y")  # these names stand for the operands in the texts of operators


class Token(NamedTuple):
    kind: str
    text: str
    place: int


def parse_law(text: str, index: int | None = None) -> Expression:
    """Read a law of one case from its text; ``w3_4_8`` (word, lowest bit, width) or a dotted name
    is a field.

    With ``index``, the name ``i`` stands for that number, also in brackets (``Size[i]``). Raises
    ValueError (text, place, got, allowed).

    >>> parse_law("0xa000 + kernel_h * 0x20 + kernel_w")
    Expression(40960 + kernel_h * 32 + kernel_w)
    """
    steps = parse_steps(text, index)
    if len(steps) != 1 or steps[0][0] != ALWAYS:
        raise ValueError(f"law {text!r:.80}: got several cases, allowed is one case")
    return steps[0][1]


def parse_steps(text: str, index: int | None = None) -> Steps:
    """Read the cases (when, law) of a law from its text; the first case whose condition holds
    decides. Raises as ``parse_law``.
    """
    return _Reader(text, index).steps()


class _Reader:
    """Reads one text. A place is the number of a token; the end is the count of tokens."""

    def __init__(self, text: str, index: int | None = None) -> None:
        self.text, self.index = text, index
        self.tokens = _tokens(text)
        self.has_cases = any(token.kind == "when" for token in self.tokens[:1])
        self.allowed: list[str] = []  # for each token, what may stand in its place

    def steps(self) -> Steps:
        match self.tree():
            case ast.Dict(keys=conditions, values=laws):
                whens = map(self.read, conditions)
                return tuple(zip(whens, map(self.read, laws), strict=True))
            case law:
                return ((ALWAYS, self.read(law)),)

    def tree(self) -> ast.expr:
        """Python's tree of the tokens; each token has a line of its own, so that a node tells its
        place.
        """
        lines = "\n".join(self.pieces())
        if self.has_cases:
            lines = "{" + lines + "}"
        found = ast.parse(f"({lines})", mode="eval").body
        for node in ast.walk(found):
            if isinstance(node, ast.Name) and node.id == "_":
                node.id = self.tokens[node.lineno - 1].text
        return found

    def pieces(self) -> Iterator[str]:
        """The tokens in Python's spelling; each is checked: it must be allowed at its place."""
        ends, allowed, minuses = [END], OPERAND, 0
        if self.has_cases:
            ends, allowed = [], CASE
        for place, (kind, text, _) in enumerate(self.tokens):
            if kind not in READ[allowed]:
                self.refuse(place, allowed)
            if len(ends) + minuses > DEEPEST:
                self.refuse(place, f"a law of {DEEPEST} levels")
            self.allowed.append(allowed)
            piece, allowed, minuses = PIECES.get(kind, text), OPERAND, minuses + 1
            ends += OPENED.get(kind, [])
            if kind != "minus":
                minuses = 0
            if kind in ("close", "colon", "semicolon"):
                piece = CLOSED[ends.pop()]
            if not ends:
                allowed = CASE
            elif kind in ENDED:
                allowed = ends[-1]
            yield piece
        if allowed not in (END, CASE_END, CASE):
            self.refuse(len(self.tokens), allowed)

    def read(self, node: Any, real: bool = False) -> Expression:
        """The law of a tree; ``real`` is true inside ``float32(...)``."""
        match node:
            case ast.Name():
                return self.leaf(node.lineno - 1)
            case ast.BoolOp(values=parts):
                return both(*(self.read(part, real) for part in parts))
            case ast.UnaryOp(operand=operand):
                inner = self.read(operand, real)
                if inner.op == CONSTANT:
                    return constant(-inner.args[0])
                return term("-", 0, inner)
        for row, form in _forms():
            operands = _operands(form, node)
            if operands is not None and row.kind != ELSEWHERE[real]:
                inside = real or row.kind == BITS
                return term(row.symbol, *(self.read(part, inside) for part in operands))
        match node:
            case ast.Call():
                calls = [row.text for row in OPERATORS.values() if row.text[0].isalpha()]
                calls.append("a checksum, as xor(w0_0_32 to w3_0_32)")
                self.refuse(node.lineno - 1, f"one of {', '.join(calls).format(*HOLES)}")
            case ast.BinOp(left=first) | ast.Compare(comparators=[first, *_]):
                sign = first.end_lineno or 0
                self.refuse(sign, self.allowed[sign])
        # the tree has a list of one element for a bracket
        return self.read(node.elts[0], real)

    def leaf(self, place: int) -> Expression:
        kind, text, _ = self.tokens[place]
        if kind == "number":
            base = BASES.get(text[:2], 10)
            if len(text) > MOST_DIGITS or int(text, base) > LARGEST:
                self.refuse(place, "a number to 2**53")
            return constant(int(text, base))
        if kind == "checksum":
            found = parse_checksum(text)
            if found is None:
                self.refuse(place, f"a checksum of a run of at most {MOST_WORDS} words")
            return checksum(found)
        if text in ("always", "else"):
            return ALWAYS
        if self.index is not None:
            if text == "i":
                return constant(self.index)
            text = text.replace("[i]", f"[{self.index}]")
        if "." in text or FIELD_NAME.fullmatch(text):
            return field(text)
        return parameter(text)

    def refuse(self, place: int, allowed: str) -> NoReturn:
        got = "the end"
        for _, text, start in self.tokens[place : place + 1]:
            got = f"{text!r:.40} at {start}"
        raise ValueError(f"law {self.text!r:.80}: got {got}, allowed is {allowed}")


def _tokens(text: str) -> list[Token]:
    tokens: list[Token] = []
    for found in TOKEN.finditer(text.rstrip()):
        kind = str(found.lastgroup)
        if kind == "unknown" or len(tokens) == MOST_TOKENS:
            place = found.start()
            rest = text[place : place + 40].lstrip()
            raise ValueError(
                f"law {text!r:.80}: got {rest[:12]!r} at {place}, allowed are names, whole numbers "
                f"and signs, {MOST_TOKENS} in all"
            )
        tokens.append(Token(kind, found[kind], found.start(kind)))
    return tokens


@cache
def _forms() -> list[tuple[Operator, ast.expr]]:
    """The operators with the trees of their texts, in the reverse order of the table: there a
    special case, and an operator of real numbers, stand after the general operator with the same
    text.
    """
    return [(row, _Reader(row.text.format(*HOLES)).tree()) for row in reversed(OPERATORS.values())]


def _operands(form: ast.AST, node: Any) -> list[ast.expr] | None:
    """The operands of a node of the same form as an operator's text; None for another form."""
    name = getattr(form, "id", None)
    if name in HOLES:
        return [node]
    if type(form) is not type(node) or name != getattr(node, "id", None):
        return None
    parts, others = [*ast.iter_child_nodes(form)], [*ast.iter_child_nodes(node)]
    if len(parts) != len(others):
        return None
    found = []
    for part, other in zip(parts, others, strict=True):
        while isinstance(other, ast.List) and not isinstance(part, (ast.List, ast.Name)):
            other = other.elts[0]
        inner = _operands(part, other)
        if inner is None:
            return None
        found += inner
    return found
