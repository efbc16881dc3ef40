"""The operators of laws. An operator is a row of ``operators.csv`` and a function: one of this
module, or numpy's of that name, at the precision in the column ``dtype`` if it states one.

A divisor below 1 counts as 1, so that every row of captures has a value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npulab.support.files import read_table

Array = np.ndarray
TABLE = Path(__file__).with_name("operators.csv")
# The column ``kind`` says what an operator gives: whole numbers, real numbers, or the bit patterns
# of real numbers as float32. An operator of any other kind is a condition, or the row of a leaf.
WHOLE, REAL, BITS = "whole", "real", "bits"


class Operator(NamedTuple):
    """A row of the table of operators: all that other modules need to know of an operator.

    ``text`` is the operator as text, with {0} and {1} for its operands. ``binding`` says how
    tightly the operator binds, ``inside`` how tightly an operand has to bind to be written without
    brackets; both are nan if the operator has brackets of its own.

    ``bends`` is true if the operator may bend a law between two captured numbers, ``limited`` if
    limits are tried on its result inside a law. ``rounds`` is true for a quotient, whose high bits
    may agree with another law's by chance. ``ordered`` is true for a condition that is a limit.

    ``other_end`` is the operator that limits a number at its other end, ``opposite`` that of the
    opposite condition; either may be blank. ``cost`` is the bits that it costs to join two columns
    by the operator; nan if it joins none.
    """

    function: Callable[..., Any]
    symbol: str
    text: str
    kind: str
    binding: float
    inside: float
    bends: bool
    limited: bool
    rounds: bool
    ordered: bool
    other_end: str
    opposite: str
    cost: float

    @property
    def whole(self) -> bool:
        return self.kind == WHOLE


def operator(symbol: str) -> Operator:
    """The row of an operator. A leaf, such as a parameter, has a row in which all properties are
    blank.
    """
    return OPERATORS.get(symbol, OF_LEAF)


def quotient(x: Array, y: Array) -> Array:
    return x // np.maximum(y, 1)


def remainder(x: Array, y: Array) -> Array:
    return x % np.maximum(y, 1)


def ceil_div(x: Array, y: Array) -> Array:
    return -(-x // np.maximum(y, 1))


def align(x: Array, y: Array) -> Array:
    return ceil_div(x, y) * np.maximum(y, 1)


def equal_share(x: Array, y: Array) -> Array:
    """The size of the parts if x is cut into the fewest equal parts of at most y."""
    return ceil_div(x, np.maximum(ceil_div(x, y), 1))


def ceil_log2(x: Array) -> Array:
    """The binary logarithm, rounded up; 0 below 1. Exact to 2**53, as is ``floor_log2``."""
    fraction, exponent = np.frexp(_at_least_1(x))
    return (exponent - (fraction == 0.5)).astype(np.int64)


def floor_log2(x: Array) -> Array:
    return (np.frexp(_at_least_1(x))[1] - 1).astype(np.int64)


def popcount(x: Array) -> Array:
    """The number of bits that are set; 0 below 1."""
    return np.bitwise_count(np.maximum(x, 0)).astype(np.int64)


def is_set(x: Array) -> Array:
    return np.not_equal(x, 0).astype(np.int64)


def float32_bits(x: Array) -> Array:
    return np.asarray(x, np.float32).view(np.uint32).astype(np.int64)


def divides(x: Array, y: Array) -> Array:
    return x % y == 0


def leaves(x: Array, y: Array) -> Array:
    return x % y != 0


def _at_least_1(x: Array) -> Array:
    return np.maximum(x, 1).astype(np.float64)


def _operator(row: dict[str, str]) -> Operator:
    values: dict[str, Any] = {name: row[name] for name in Operator._fields}
    function = globals().get(row["function"]) or getattr(np, row["function"])
    if row["dtype"]:
        function = partial(function, dtype=row["dtype"])
    values["function"] = function
    for name in ("binding", "inside", "cost"):
        values[name] = float(row[name] or "nan")
    for name in ("bends", "limited", "rounds", "ordered"):
        values[name] = row[name] == "yes"
    return Operator(**values)


OPERATORS = {row["symbol"]: _operator(row) for row in read_table(TABLE)}
OF_LEAF = OPERATORS.pop("")
