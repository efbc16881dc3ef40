"""Filters of fields: what they keep, and that nothing but comparisons is read."""

from __future__ import annotations

import re

import pytest

from npulab.registers.filters import LONGEST, filter_of

COLUMNS = ("raw", "value", "field", "evidence", "reference")
ROW = {"raw": 3, "value": "relu", "field": "pool_x", "evidence": "C:one", "reference": 2}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("raw != 0", True),
        ("raw == 0x3", True),
        ("raw > -1 and raw < 3", False),
        ("0 < raw <= 3", True),
        ("0 < raw <= 2", False),
        ("raw != reference", True),
        ("value == relu", True),
        ("value == 'relu'", True),
        ("value == Relu", False),
        ("not value == relu", False),
        ("evidence == guess or 'C:' in evidence", True),
        ("evidence not in (guess, unknown)", True),
        ("'pool' in field and not (raw == 1 or raw == 2)", True),
        ("pool not in field", False),
        ("raw in [1, 2]", False),
        ("value > 3", False),  # a text is neither more nor less than a number
        ("value <= 3", False),
        ("3 in value", False),
        (" raw == 3.0 ", True),
    ],
)
def test_a_filter_keeps_rows(text: str, kept: bool) -> None:
    assert filter_of(text, COLUMNS)(ROW) is kept


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got '', which is no expression"),
        ("raw =", "got 'raw =', which is no expression"),
        ("raw = 3", "got 'raw = 3', which is no expression"),
        ("evidence == C:one", "got 'evidence == C:one', which is no expression, allowed is an"),
        ("raw", "got 'raw', allowed is a comparison, such as raw != 0"),
        ("raw + 1", r"got 'raw \+ 1', allowed is a comparison"),
        ("raw is 3", "got 'raw is 3', allowed is a comparison"),
        ("evidense != K", "allowed is a comparison with one of raw, .*; near is evidence$"),
        ("1 == 1", "got '1 == 1', allowed is a comparison with one of raw, value"),
        ("raw + 1 == 4", r"got 'raw \+ 1', allowed is a column, a number, a text or a list"),
        ("field.upper() == raw", r"got 'field.upper\(\)', allowed is a column"),
        ("__import__('os') == raw", "allowed is a column, a number"),
        ("raw == (lambda: 1)()", "allowed is a column, a number"),
        ("raw == [one for one in field]", "allowed is a column, a number"),
        ("raw == -field", "allowed is a column, a number"),
        ("raw == 2**99999999", "allowed is a column, a number"),
        ("raw == None", "allowed is a column, a number"),
        ("(x := raw) == 3", "allowed is a column, a number"),
        ("raw == b'x'", "allowed is a column, a number"),
        ("raw == f'{raw}'", "allowed is a column, a number"),
        ("raw == 1\nimport os", "which is no expression"),
        ("raw == " + "9" * LONGEST, f"got {LONGEST + 7} characters, allowed are at most {LONGEST}"),
        ("raw == " + "(" * 380, "which is no expression"),
        ("raw == " + "-" * 380 + "field", "allowed is a column|which is no expression"),
    ],
)
def test_anything_else_is_refused_in_a_sentence(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        filter_of(text, COLUMNS)
    assert "\n" not in str(refused.value)
    assert re.match(r"^filter: got ", str(refused.value))


@pytest.mark.parametrize("depth", [1, 90])
def test_a_deep_filter_is_computed_or_refused(depth: int) -> None:
    assert filter_of("not " * depth + "raw == 3", COLUMNS)(ROW) is (depth % 2 == 0)
