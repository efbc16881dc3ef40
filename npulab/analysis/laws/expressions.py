"""Laws as small trees: what is computed from a layer's parameters, as text and as numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Array = np.ndarray
PARAMETER, FIELD, CONSTANT, GIVEN = "parameter", "field", "constant", "given"


def _log2(x: Array, up: bool) -> Array:
    """log2 of whole numbers rounded up or down, 0 below 1; exact to 2**53."""
    fraction, exponent = np.frexp(np.maximum(x, 1).astype(np.float64))
    return (exponent - (fraction == 0.5) if up else exponent - 1).astype(np.int64)


def _ceil_div(x: Array, y: Array) -> Array:
    return -(-x // np.maximum(y, 1))


def _float32(x: Array) -> Array:
    return np.asarray(x, np.float32).view(np.uint32).astype(np.int64)


def _wide(x: Array) -> Array:
    return np.asarray(x, np.float64)


# Operators of whole numbers by symbol: the function, and the text that is written for it. A divisor
# below 1 counts as 1, so that every row has a value.
INTEGER: dict[str, tuple[Callable[..., Any], str]] = {
    "+": (np.add, "{0} + {1}"),
    "-": (np.subtract, "{0} - {1}"),
    "*": (np.multiply, "{0} * {1}"),
    "//": (lambda x, y: x // np.maximum(y, 1), "{0} // {1}"),
    "ceil": (_ceil_div, "ceil({0} / {1})"),
    "align": (lambda x, y: _ceil_div(x, y) * np.maximum(y, 1), "align({0}, {1})"),
    "%": (lambda x, y: x % np.maximum(y, 1), "{0} % {1}"),
    "min": (np.minimum, "min({0}, {1})"),
    "max": (np.maximum, "max({0}, {1})"),
    # x is cut into the fewest equal shares of at most y; the size of a share
    "share": (lambda x, y: _ceil_div(x, np.maximum(_ceil_div(x, y), 1)), "share({0}, {1})"),
    "clog2": (lambda x: _log2(x, True), "ceil(log2({0}))"),
    "flog2": (lambda x: _log2(x, False), "floor(log2({0}))"),
    "!=0": (lambda x: (np.asarray(x) != 0).astype(np.int64), "({0} != 0)"),
    "^": (np.bitwise_xor, "{0} ^ {1}"),
}
REAL: dict[str, tuple[Callable[..., Any], str]] = {
    "f": (lambda x: _float32(x), "float32({0})"),
    "f*": (lambda x, y: np.float32(x) * np.float32(y), "{0} * {1}"),
    "f/": (lambda x, y: np.float32(x) / np.float32(y), "{0} / {1}"),
    "d*": (lambda x, y: _wide(x) * _wide(y), "{0} * {1} in double"),
    "d/": (lambda x, y: _wide(x) / _wide(y), "{0} / {1} in double"),
}
CONDITIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "==": (np.equal, "{0} == {1}"),
    "!=": (np.not_equal, "{0} != {1}"),
    "<=": (np.less_equal, "{0} <= {1}"),
    ">": (np.greater, "{0} > {1}"),
    "<": (np.less, "{0} < {1}"),
    ">=": (np.greater_equal, "{0} >= {1}"),
    "divides": (lambda x, y: x % y == 0, "{0} % {1} == 0"),
    "leaves": (lambda x, y: x % y != 0, "{0} % {1} != 0"),
    "and": (np.logical_and, "{0} and {1}"),
}
OPPOSITE = {"==": "!=", "<=": ">", "<": ">=", "divides": "leaves"}
OPPOSITE |= {other: op for op, other in OPPOSITE.items()}
OPERATORS = {**INTEGER, **REAL, **CONDITIONS}
# how tightly an operator binds; operators that are not listed are written with brackets of their
# own
BINDING = {
    "and": 0,
    **dict.fromkeys(CONDITIONS.keys() - {"and"}, 1),
    "+": 3,
    "-": 3,
    "^": 2,
    "*": 4,
    "//": 4,
    "%": 4,
    "f*": 4,
    "f/": 4,
    "d*": 4,
    "d/": 4,
}


@dataclass(frozen=True)
class Expression:
    """A law, as a tree: a parameter, a field, a constant, a law that the user gave, or an operator
    on other expressions.
    """

    op: str
    args: tuple[Any, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((self.op, self.args))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return Expression, (self.op, self.args)  # the hash of a text differs between processes

    def __str__(self) -> str:
        if self.op in (PARAMETER, FIELD, CONSTANT, GIVEN):
            return str(self.args[0])
        if self == ALWAYS:
            return "always"
        own = {"ceil": 4.5}.get(self.op, BINDING.get(self.op, -1))
        parts = []
        for i, part in enumerate(self.args):
            # an operator of the same strength needs brackets on the right, as it would be read from
            # the left
            inner = BINDING.get(part.op, 9)
            loose = inner < own or (i and inner == own and self.op != "and")
            parts.append(f"({part})" if loose else str(part))
        return OPERATORS[self.op][1].format(*parts).replace("+ -", "- ")

    def __repr__(self) -> str:
        return f"Expression({self})"

    @cached_property
    def _names(self) -> dict[str, frozenset[str]]:
        if self.op in (PARAMETER, FIELD, GIVEN):
            return {self.op: frozenset(self.args)}
        out: dict[str, frozenset[str]] = {}
        for part in self.args if self.op in OPERATORS else ():
            for op, names in part._names.items():
                out[op] = out.get(op, frozenset()) | names
        return out

    def names(self, op: str = PARAMETER) -> frozenset[str]:
        """The names of the parameters (with another ``op``: fields, or laws that the user gave)
        that the expression reads.
        """
        return self._names.get(op, frozenset())

    def walk(self) -> Iterator[Expression]:
        yield self
        if self.op in OPERATORS:
            for part in self.args:
                yield from part.walk()


ALWAYS = Expression("always", ())


def parameter(name: str) -> Expression:
    return Expression(PARAMETER, (name,))


def field(name: str) -> Expression:
    return Expression(FIELD, (name,))


def constant(value: int) -> Expression:
    return Expression(CONSTANT, (int(value),))


def term(op: str, *parts: Expression | int) -> Expression:
    """An operator on expressions and whole numbers.

    >>> term("ceil", term("+", parameter("width"), 3), 8)
    Expression(ceil((width + 3) / 8))
    """
    return Expression(
        op, tuple(part if isinstance(part, Expression) else constant(part) for part in parts)
    )


def shifted(law: Expression, bits: int) -> Expression:
    """A law without its ``bits`` lowest bits."""
    if bits:
        return term("//", law, 2**bits)
    return law


class Columns:
    """The parameters of some captures as columns, and the values that were computed from them."""

    def __init__(
        self, columns: Mapping[str, Array], given: Mapping[str, Array] | None = None
    ) -> None:
        self.values: dict[Expression, Array] = {
            parameter(name): values for name, values in columns.items()
        }
        self.values |= {
            Expression(GIVEN, (text,)): values for text, values in (given or {}).items()
        }
        self.n = len(next(iter(columns.values())))

    def __getitem__(self, expression: Expression) -> Array:
        """The values of an expression, ``(N,) int64`` (float64 for a real number before it becomes
        a float32).

        Raises KeyError for a name that is not among the columns.
        """
        values = self.values.get(expression)
        if values is None:
            if expression.op == CONSTANT:
                return np.full(self.n, expression.args[0], np.int64)
            if expression == ALWAYS:
                return np.ones(self.n, bool)
            if expression.op in (PARAMETER, FIELD, GIVEN):
                raise KeyError(expression.args[0])
            with np.errstate(all="ignore"):
                values = OPERATORS[expression.op][0](*(self[part] for part in expression.args))
            self.values[expression] = values
        return values

    def rows(self, rows: Array) -> Columns:
        """The columns of parameters, fields and given laws for some of the rows."""
        out = object.__new__(Columns)
        out.values = {
            leaf: values[rows]
            for leaf, values in self.values.items()
            if leaf.op in (PARAMETER, FIELD, GIVEN)
        }
        out.n = len(rows)
        return out

    def add(self, name: str, values: Array) -> Expression:
        """Add the values of a field as a column; return the field as an expression."""
        self.values[field(name)] = values
        return field(name)
