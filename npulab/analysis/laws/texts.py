"""Laws read from text.

A text is written as ``expressions`` writes laws: parameters and fields by name, whole numbers, ``+
- * // % ^``, comparisons and ``and``, ``ceil(x / y)``, ``align(x, y)``, ``share(x, y)``, ``min``,
``max``, ``ceil(log2(x))``, ``floor(log2(x))``, and ``float32(...)``, in which ``*`` and ``/`` are
of real numbers. A law may have cases: ``when stride == 2: a; else: b``. No part of a text is
evaluated as Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from npulab.analysis.laws.expressions import (
    ALWAYS,
    CONSTANT,
    Expression,
    constant,
    field,
    parameter,
)
from npulab.analysis.laws.inputs import FIELD_NAME, LARGEST
from npulab.analysis.laws.solved import Steps

MOST_TOKENS, DEEPEST = 200, 25
TOKEN = re.compile(
    r"\s*(?:(?P<number>0x[0-9a-fA-F]+|[0-9]+)|(?P<name>[A-Za-z_](?:[\w.@]|\[\w+\])*)"
    r"|(?P<sign>//|==|!=|<=|>=|[-+*/%^<>(),:;]))"
)
SUMS, PRODUCTS, COMPARISONS = ("+", "-"), ("*", "//", "%"), ("==", "!=", "<=", ">=", "<", ">")
PAIRS = ("align", "share", "min", "max")
LOGARITHMS = {"ceil": "clog2", "floor": "flog2"}
REAL = {"*": "f*", "/": "f/"}
DOUBLE = {"f*": "d*", "f/": "d/"}


def parse_law(text: str, index: int | None = None) -> Expression:
    """A law of one case, read from its text; ``w3_4_8`` (word, lowest bit, width) or a dotted name
    is a field.

    With ``index``, the name ``i`` is that number, also within brackets (``Size[i]``). Raises
    ValueError (text, place, got, allowed).

    >>> parse_law("0xa000 + kernel_h * 0x20 + kernel_w")
    Expression(40960 + kernel_h * 32 + kernel_w)
    """
    steps = parse_steps(text, index)
    if len(steps) != 1 or steps[0][0] != ALWAYS:
        raise ValueError(f"law {text!r:.80}: got several cases, allowed is one case")
    return steps[0][1]


def parse_steps(text: str, index: int | None = None) -> Steps:
    """The cases (when, law) of a law, read from its text; the first case that holds decides. Raises
    as ``parse_law``."""
    return _Reader(text, index).steps()


class _Reader:
    """Reads the tokens of a text from left to right; ``real`` is true within ``float32(...)``."""

    def __init__(self, text: str, index: int | None) -> None:
        self.text, self.index, self.next, self.real, self.depth = text, index, 0, False, 0
        self.tokens: list[tuple[str, str, int]] = []
        place, end = 0, len(text.rstrip())
        while place < end:
            found = TOKEN.match(text, place)
            if found is None or len(self.tokens) == MOST_TOKENS:
                rest = text[place : place + 40].lstrip()
                raise ValueError(
                    f"law {text!r:.80}: got {rest[:12]!r} at {place}, allowed are names, whole "
                    "numbers "
                    f"and signs, {MOST_TOKENS} in all"
                )
            kind = str(found.lastgroup)
            self.tokens.append((kind, found[kind], found.start(kind)))
            place = found.end()

    def steps(self) -> Steps:
        out: list[tuple[Expression, Expression]] = []
        while self.take("when"):
            when = self.conditions()
            self.expect(":")
            out.append((when, self.conditions()))
            if not self.take(";"):
                break
            if self.take("else"):
                self.expect(":")
                out.append((ALWAYS, self.conditions()))
                break
        if not out:
            out.append((ALWAYS, self.conditions()))
        if self.next < len(self.tokens):
            self.refuse("the end")
        return tuple(out)

    def conditions(self) -> Expression:
        return self.chain(("and",), self.comparison)

    def comparison(self) -> Expression:
        left = self.whole()
        op = self.peek()
        if op not in COMPARISONS:
            return left
        self.next += 1
        right = self.whole()
        if left.op == "%" and op in ("==", "!=") and right == constant(0):
            return Expression("divides" if op == "==" else "leaves", left.args)
        return Expression(op, (left, right))

    def whole(self) -> Expression:
        return self.chain(("^",), lambda: self.chain(SUMS, self.product))

    def chain(self, signs: Sequence[str], part: Callable[[], Expression]) -> Expression:
        left = part()
        while (op := self.peek()) in signs:
            self.next += 1
            left = Expression(op, (left, part()))
        return left

    def product(self) -> Expression:
        left = self.single()
        while (op := self.peek()) in PRODUCTS or (self.real and op == "/"):
            self.next += 1
            left = Expression(REAL.get(op, op) if self.real else op, (left, self.single()))
        if self.real and left.op in DOUBLE and self.take("in"):
            self.expect("double")
            left = Expression(DOUBLE[left.op], left.args)
        return left

    def single(self) -> Expression:
        self.depth += 1
        if self.depth > DEEPEST:
            self.refuse(f"a law of {DEEPEST} levels")
        found = self.innermost()
        self.depth -= 1
        return found

    def innermost(self) -> Expression:
        if self.take("-"):
            inner = self.single()
            if inner.op == CONSTANT:
                return constant(-inner.args[0])
            return Expression("-", (constant(0), inner))
        if self.take("("):
            inner = self.conditions()
            self.expect(")")
            if inner.op == "leaves":
                return Expression("!=0", (Expression("%", inner.args),))
            if inner.op == "!=" and inner.args[1] == constant(0):
                return Expression("!=0", inner.args[:1])
            return inner
        if self.next < len(self.tokens):
            kind, text, _ = self.tokens[self.next]
        else:
            kind, text, _ = "", "", 0
        if kind == "number":
            number = int(text, 0 if text.startswith("0x") else 10)
            if number > LARGEST:
                self.refuse("a number to 2**53")
            self.next += 1
            return constant(number)
        if kind != "name":
            self.refuse("a name, a number or a bracket")
        self.next += 1
        if self.peek() == "(":
            return self.call(text)
        return self.named(text)

    def named(self, text: str) -> Expression:
        if text == "always":
            return ALWAYS
        if self.index is not None:
            if text == "i":
                return constant(self.index)
            text = text.replace("[i]", f"[{self.index}]")
        if "." in text or FIELD_NAME.fullmatch(text):
            return field(text)
        return parameter(text)

    def call(self, name: str) -> Expression:
        self.expect("(")
        if name in PAIRS:
            left = self.conditions()
            self.expect(",")
            found = Expression(name, (left, self.conditions()))
        elif name in LOGARITHMS and self.peek() == "log2" and self.after() == "(":
            self.next += 2
            found = Expression(LOGARITHMS[name], (self.conditions(),))
            self.expect(")")
        elif name == "ceil":
            left = self.product()
            self.expect("/")
            found = Expression("ceil", (left, self.single()))
        elif name == "float32" and not self.real:
            self.real = True
            found = Expression("f", (self.conditions(),))
            self.real = False
        else:
            self.next -= 2
            self.refuse(f"one of {', '.join(PAIRS)}, ceil, floor(log2(x)), float32")
        self.expect(")")
        return found

    def peek(self) -> str:
        if self.next < len(self.tokens):
            return self.tokens[self.next][1]
        return ""

    def after(self) -> str:
        if self.next + 1 < len(self.tokens):
            return self.tokens[self.next + 1][1]
        return ""

    def take(self, text: str) -> bool:
        found = self.peek() == text
        self.next += found
        return found

    def expect(self, text: str) -> None:
        if not self.take(text):
            self.refuse(repr(text))

    def refuse(self, allowed: str) -> None:
        if self.next < len(self.tokens):
            got = f"{self.tokens[self.next][1]!r:.40} at {self.tokens[self.next][2]}"
        else:
            got = "the end"
        raise ValueError(f"law {self.text!r:.80}: got {got}, allowed is {allowed}")
