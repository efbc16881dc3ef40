"""Filters of fields: expressions such as ``raw != 0 and evidence == guess``, read with Python's own
grammar and computed here; nothing else of Python is allowed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

from npulab.support.refuse import near

Test = Callable[[Mapping[str, Any]], bool]

LONGEST = 400  # most characters of a filter
COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


def filter_of(text: str, columns: Collection[str]) -> Test:
    """Return the test that a filter states: it takes a row, a mapping with all ``columns``, and
    returns True if the filter keeps the row.

    A filter is one or more comparisons, joined by ``and``, ``or``, ``not`` and brackets. A
    comparison has at least one column, and compares it with columns, numbers, texts or lists, by
    ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in`` or ``not in``. A word that is not the name
    of a column is a text; it needs no quotes. Whether a number is less or more than a text is
    always False. Raises ValueError if the text is not such a filter.

    >>> test = filter_of("raw != 0 and evidence in (guess, unknown)", ["raw", "evidence"])
    >>> test({"raw": 3, "evidence": "guess"}), test({"raw": 0, "evidence": "guess"})
    (True, False)
    """
    if len(text) > LONGEST:
        raise ValueError(f"filter: got {len(text)} characters, allowed are at most {LONGEST}")
    try:
        return _test(ast.parse(text.strip(), mode="eval").body, columns)
    except (SyntaxError, MemoryError, RecursionError):
        raise ValueError(
            f"filter: got {text!r:.80}, which is no expression, allowed is an expression such as "
            "raw != 0 and evidence == guess; a text needs quotes if it has other characters than "
            "letters, digits and _"
        ) from None


def _test(node: ast.expr, columns: Collection[str]) -> Test:
    if isinstance(node, ast.BoolOp):
        tests = [_test(value, columns) for value in node.values]
        if isinstance(node.op, ast.And):
            return lambda row: all(test(row) for test in tests)
        return lambda row: any(test(row) for test in tests)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _test(node.operand, columns)
        return lambda row: not inner(row)
    if not isinstance(node, ast.Compare) or not all(type(op) in COMPARED for op in node.ops):
        raise ValueError(
            f"filter: got {ast.unparse(node)!r:.80}, allowed is a comparison, such as raw != 0, or "
            "several with and, or, not and brackets"
        )
    return _comparison(node, columns)


def _comparison(node: ast.Compare, columns: Collection[str]) -> Test:
    words = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
    if not any(word in columns for word in words):
        hint = "".join(near(word, columns) for word in words[:1])
        raise ValueError(
            f"filter: got {ast.unparse(node)!r:.80}, allowed is a comparison with one of "
            f"{', '.join(columns)}{hint}"
        )
    values = [_value(part, columns) for part in (node.left, *node.comparators)]
    pairs = [*zip(node.ops, values, values[1:], strict=False)]

    def holds(row: Mapping[str, Any]) -> bool:
        return all(_compare(op, left(row), right(row)) for op, left, right in pairs)

    return holds


def _compare(op: ast.cmpop, left: Any, right: Any) -> bool:
    try:
        return bool(COMPARED[type(op)](left, right))
    except TypeError:  # a number and a text have no order
        return False


def _value(node: ast.expr, columns: Collection[str]) -> Callable[[Mapping[str, Any]], Any]:
    if isinstance(node, ast.Name) and node.id in columns:
        return operator.itemgetter(node.id)
    constant = _constant(node)
    return lambda row: constant


def _constant(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _constant(node.operand)
        if not isinstance(number, str | tuple):
            return -number
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_constant(part) for part in node.elts)
    raise ValueError(
        f"filter: got {ast.unparse(node)!r:.80}, allowed is a column, a number, a text or a list "
        "of numbers and texts"
    )
