"""Laws as small trees: what is computed from a layer's parameters, as text and as numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from npulab.analysis.laws.checksums import Checksum
from npulab.analysis.laws.operators import OPERATORS, operator

Array = np.ndarray
PARAMETER, FIELD, CONSTANT, GIVEN = "parameter", "field", "constant", "given"
CHECKSUM = "checksum"  # an expression of this kind reads all fields of some words


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
        # the stored hash is not pickled, because hashes of texts differ between processes
        return Expression, (self.op, self.args)

    def __str__(self) -> str:
        if self.op in (PARAMETER, FIELD, CONSTANT, GIVEN, CHECKSUM):
            return str(self.args[0])
        if self == ALWAYS:
            return "always"
        row = OPERATORS[self.op]
        parts = []
        for i, part in enumerate(self.args):
            binding = operator(part.op).binding
            # a right operand whose operator binds equally needs brackets, because operators are
            # read from the left
            loose = binding < row.inside or (i and binding == row.inside)
            parts.append(f"({part})" if loose else str(part))
        return row.text.format(*parts).replace("+ -", "- ")

    def __repr__(self) -> str:
        return f"Expression({self})"

    @cached_property
    def _names(self) -> dict[str, frozenset[str]]:
        if self.op in (PARAMETER, FIELD, GIVEN):
            return {self.op: frozenset(self.args)}
        if self.op == CHECKSUM:
            return {FIELD: self.args[0].names}
        out: dict[str, frozenset[str]] = {}
        for part in self.args if self.op in OPERATORS else ():
            for op, names in part._names.items():
                out[op] = out.get(op, frozenset()) | names
        return out

    def names(self, op: str = PARAMETER) -> frozenset[str]:
        """The names of the leaves with the given ``op`` that the expression reads, by default
        parameters.
        """
        return self._names.get(op, frozenset())

    def walk(self) -> Iterator[Expression]:
        yield self
        if self.op == CHECKSUM:
            yield from map(field, sorted(self.names(FIELD)))
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


def checksum(of: Checksum) -> Expression:
    return Expression(CHECKSUM, (of,))


def term(op: str, *parts: Expression | int) -> Expression:
    """An expression of an operator and its operands; a whole number is a constant operand.

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
    """The parameters of some captures as columns, and a cache of the values computed from them."""

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
        """The values of an expression, ``(N,) int64``, or float64 for a real number that is no
        float32 pattern yet.

        Raises KeyError for a name without a column.
        """
        values = self.values.get(expression)
        if values is None:
            if expression.op == CONSTANT:
                return np.full(self.n, expression.args[0], np.int64)
            if expression == ALWAYS:
                return np.ones(self.n, bool)
            if expression.op in (PARAMETER, FIELD, GIVEN):
                raise KeyError(expression.args[0])
            if expression.op == CHECKSUM:
                fields = {name: self[field(name)] for name in expression.names(FIELD)}
                return np.asarray(expression.args[0].values(fields, self.n))
            with np.errstate(all="ignore"):
                values = OPERATORS[expression.op].function(
                    *(self[part] for part in expression.args)
                )
            self.values[expression] = values
        return values

    def rows(self, rows: Array) -> Columns:
        """These columns, restricted to some of the rows."""
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
