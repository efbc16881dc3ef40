"""Integer expressions of C and macros that are one; nothing is run but sums.

Values are whole numbers of 64 bits; a shift, as any step, is refused where it leaves them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MOST_STEPS = 2 ** 20  # of all expressions of a file
MOST_DEPTH = 40  # of parentheses and macros within each other
TOKEN = re.compile(r"\s*(?:(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)([uUlL]*)(?![\w.])|([A-Za-z_]\w*)"
                   r"|(<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^~!<>?:(),])|(\S))")
LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"),
          ("*", "/", "%"))
LEVEL = {sign: n for n, signs in enumerate(LEVELS) for sign in signs}
TYPE = re.compile(r"(unsigned|signed|int|long|short|char|const|u?int\d+_t|[us]\d+|__[us]\d+|uint|ulong|size_t)\b")
BITS = ("BIT", "BIT_ULL", "_BITUL", "_BITULL", "REG_BIT", "REG_BIT64")
RUNS = ("GENMASK", "GENMASK_ULL", "GENMASK_U32", "GENMASK_U64", "REG_GENMASK", "REG_GENMASK64", "__GENMASK")
SAME = re.compile(r"U?INT(8|16|32|64|MAX)_C|_?_?(AC|UL|ULL)|_ULL|_UL|cpu_to_le32|le32_to_cpu")


class Macro(NamedTuple):
    """A macro as the file defines it: its parameters (None: it takes none), body and position."""

    name: str
    parameters: tuple[str, ...] | None
    body: str
    position: int


class NumberError(ValueError):
    """What is no integer expression; the message says what was got."""


@dataclass
class Numbers:
    """Values of expressions over a file's macros."""

    macros: Mapping[str, Macro]
    names: dict[str, int] = field(default_factory=dict)
    known: dict[str, int | str] = field(default_factory=dict)
    steps: Iterator[int] = field(default_factory=lambda: iter(range(MOST_STEPS)))

    def fresh(self) -> Numbers:
        """The same macros, with nothing remembered: they may have changed."""
        return Numbers(self.macros, self.names, {}, self.steps)

    def value(self, text: str, arguments: Mapping[str, int] | None = None) -> int:
        """The value of an expression.

        Raises NumberError for what is none, has no value or takes too long.

        >>> Numbers({}).value("GENMASK(7, 4) | BIT(0)")
        241
        """
        return _Reader(self, text, arguments or {}, 0, False).whole()

    def condition(self, text: str) -> bool:
        """Whether the expression of an ``#if`` holds; names without a value are 0."""
        return _Reader(self, text, {}, 0, True).whole() != 0

    def macro(self, name: str) -> int:
        """The value of a macro without parameters; raises NumberError for one without."""
        return _Reader(self, name, {}, 0, False).whole()

    def call(self, name: str, argument: int) -> int:
        """The value of a macro of one parameter; raises NumberError for one without."""
        macro = self.macros[name]
        if macro.parameters is None or len(macro.parameters) != 1:
            raise NumberError(f"{name}, which takes no one argument")
        return _Reader(self, macro.body, {macro.parameters[0]: argument}, 1, False).whole()


class _Reader:
    """One expression from its first token to its last, by precedence climbing."""

    def __init__(self, numbers: Numbers, text: str, arguments: Mapping[str, int], depth: int, lenient: bool) -> None:
        self.numbers, self.arguments, self.depth, self.lenient = numbers, arguments, depth, lenient
        self.text = text
        self.tokens = [match.groups() for match in TOKEN.finditer(text[:2 ** 14])]
        self.at = 0
        if len(text) > 2 ** 14:
            raise NumberError(f"{text[:40]!r}..., which is too long")

    def whole(self) -> int:
        out = self.ternary(self.depth)
        if self.at < len(self.tokens):
            raise self.wrong()
        return out

    def wrong(self) -> NumberError:
        got = "its end" if self.at >= len(self.tokens) else repr(next(filter(None, self.tokens[self.at])))
        return NumberError(f"{self.text[:80]!r}, where {got} is no integer expression")

    def sign(self, *allowed: str) -> str:
        """The next token where it is one of these, which is then taken."""
        if self.at < len(self.tokens) and self.tokens[self.at][3] in allowed:
            self.at += 1
            return str(self.tokens[self.at - 1][3])
        return ""

    def step(self, depth: int) -> None:
        if depth > MOST_DEPTH or next(self.numbers.steps, None) is None:
            raise NumberError(f"{self.text[:40]!r}, which refers to itself, nests deeper than {MOST_DEPTH} or takes "
                              "too long")

    def ternary(self, depth: int) -> int:
        self.step(depth)
        out = self.binary(0, depth)
        if self.sign("?"):
            yes = self.ternary(depth + 1)
            if not self.sign(":"):
                raise self.wrong()
            no = self.ternary(depth + 1)
            return yes if out else no
        return out

    def binary(self, level: int, depth: int) -> int:
        left = self.unary(depth)
        while self.at < len(self.tokens) and LEVEL.get(sign := self.tokens[self.at][3] or "", -1) >= level:
            self.at += 1
            left = _step(sign, left, self.binary(LEVEL[sign] + 1, depth))
        return left

    def unary(self, depth: int) -> int:
        self.step(depth)
        if sign := self.sign("-", "+", "~", "!"):
            inner = self.unary(depth + 1)
            return {"-": -inner, "+": inner, "~": ~inner, "!": int(not inner)}[sign]
        if self.sign("("):
            if self.cast():
                return self.unary(depth + 1)
            out = self.ternary(depth + 1)
            if not self.sign(")"):
                raise self.wrong()
            return out
        if self.at >= len(self.tokens):
            raise self.wrong()
        number, _, name, *_ = self.tokens[self.at]
        if number:
            self.at += 1
            octal = len(number) > 1 and number.isdigit() and number[0] == "0"
            if len(number) > 70 or (octal and not set(number) <= set("01234567")):
                raise NumberError(f"{number[:40]}, which is no number of 64 bits")
            return int(number, 8 if octal else 0)
        if not name:
            raise self.wrong()
        self.at += 1
        return self.named(name, depth)

    def cast(self) -> bool:
        """Whether a type in parentheses follows, which is then taken."""
        at = self.at
        while at < len(self.tokens) and TYPE.fullmatch(self.tokens[at][2] or ""):
            at += 1
        if at == self.at or at >= len(self.tokens) or self.tokens[at][3] != ")":
            return False
        self.at = at + 1
        return True

    def named(self, name: str, depth: int) -> int:
        if name in self.arguments:
            return self.arguments[name]
        macro = self.numbers.macros.get(name)
        called = self.at < len(self.tokens) and self.tokens[self.at][3] == "("
        if called and (macro is None or macro.parameters is not None):
            return self.call(name, macro, depth)
        if name in self.numbers.names:
            return self.numbers.names[name]
        if macro is None or macro.parameters is not None:
            if self.lenient:
                return 0
            raise NumberError(f"{name}, which has no value")
        if name not in self.numbers.known:
            self.numbers.known[name] = f"{name}, which refers to itself"
            try:
                self.numbers.known[name] = _Reader(self.numbers, macro.body, {}, depth + 1, self.lenient).whole()
            except NumberError as error:
                self.numbers.known[name] = str(error)
        known = self.numbers.known[name]
        if isinstance(known, str):
            raise NumberError(known)
        return known

    def call(self, name: str, macro: Macro | None, depth: int) -> int:
        self.at += 1
        given: list[int] = []
        if not self.sign(")"):
            while True:
                given.append(self.ternary(depth + 1))
                if self.sign(")"):
                    break
                if not self.sign(","):
                    raise self.wrong()
        if macro is not None and macro.parameters is not None:
            names = [one for one in macro.parameters if one]
            if len(names) != len(given):
                raise NumberError(f"{name} of {len(given)} arguments, which takes {len(names)}")
            return _Reader(self.numbers, macro.body, dict(zip(names, given, strict=True)), depth + 1,
                           self.lenient).whole()
        return _built_in(name, given, self.lenient)


def _built_in(name: str, given: Sequence[int], lenient: bool) -> int:
    if name in BITS and len(given) == 1:
        return _step("<<", 1, given[0])
    if name in RUNS and len(given) == 2 and 0 <= given[1] <= given[0] < 64:
        return (2 ** (given[0] - given[1] + 1) - 1) * 2 ** given[1]
    if SAME.fullmatch(name) and given:
        return given[0]
    if name == "FIELD_PREP" and len(given) == 2 and given[0] > 0:
        return given[1] * (given[0] & -given[0]) & given[0]
    if lenient:
        return 0
    raise NumberError(f"{name}({', '.join(map(str, given))}), which nobody defines")


def _step(sign: str, a: int, b: int) -> int:
    if sign in ("/", "%"):
        if not b:
            raise NumberError(f"{a} {sign} 0")
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        out = quotient if sign == "/" else a - quotient * b
    elif sign in ("<<", ">>"):
        if not 0 <= b < 64:
            raise NumberError(f"a shift by {b}")
        out = a * 2 ** b if sign == "<<" else a >> b
    else:
        out = int({"+": a + b, "-": a - b, "*": a * b, "&": a & b, "|": a | b, "^": a ^ b, "<": a < b, ">": a > b,
                   "<=": a <= b, ">=": a >= b, "==": a == b, "!=": a != b, "&&": bool(a and b),
                   "||": bool(a or b)}[sign])
    return out if -2 ** 64 <= out < 2 ** 64 else out % 2 ** 64
