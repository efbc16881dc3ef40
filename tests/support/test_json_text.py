"""What is wrong with a text of JSON is said with its line and its column."""

from __future__ import annotations

from pathlib import Path

import pytest

from npulab.support.files import read_json
from npulab.support.json_text import json_of


@pytest.mark.parametrize(
    ("text", "place", "wrong"),
    [
        (
            '{"npu": "zeta"',
            "line 1, column 15",
            "got the end of the text, allowed is a comma or a closing bracket",
        ),
        ('{"npu": "zeta"\n\n', "line 1, column 15", "got the end of the text"),
        ("", "line 1, column 1", "got the end of the text, allowed is a value"),
        ('{\n  "npu": zeta\n}', "line 2, column 10", "got 'z', allowed is a value"),
        ("{\n 'npu': 1}", "line 2, column 2", "allowed is a name in double quotes"),
        ('{"npu" "zeta"}', "line 1, column 8", "allowed is a colon behind the name"),
        ('{"a": 1}\n{"a": 2}', "line 2, column 1", "allowed is nothing behind the value"),
        (
            '{"a": 1,\n"b": "open}',
            "line 2, column 6",
            "allowed is a text that ends in a double quote",
        ),
        (
            '{"a": 1,\n "b": {"c": 1, "c": 2}}',
            "line 2, column 7",
            "got name 'c' twice in one object, allowed is once",
        ),
        ('{"a": "tab\there"}', "line 1, column 11", "got '\\t'"),
        (
            '{"a": [1,\n' + "1" * 5000 + "]}",
            "line 2, column 1",
            "got a number of 5000 digits, allowed are 4300",
        ),
        ("[\n" + "[" * 100_000, "line 2, column 100000", "got values 100001 deep, allowed are 100"),
        (
            '{"a": "[",\n "b": ' + "[" * 100_000 + "]" * 100_000 + "}",
            "line 2, column 100006",
            "deep",
        ),
        (b'{"a":\n "\xff"}', "line 2, column 3", "got byte 0xff at byte 8, allowed is UTF-8"),
    ],
)
def test_a_mistake_has_its_place(tmp_path: Path, text: str | bytes, place: str, wrong: str) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(
        ValueError, match=r"^\S+a\.json, line \d+, column \d+: is not JSON: "
    ) as told:
        read_json(file)
    assert f"a.json, {place}: is not JSON: " in str(told.value)
    assert wrong in str(told.value)


def test_lines_of_a_longer_text_are_counted_on() -> None:
    with pytest.raises(ValueError, match=r"^log, line 7, column 2: is not JSON: got 'x'"):
        json_of("{x", "log", 7)


def test_what_is_json_is_read() -> None:
    assert json_of('\ufeff{"a": [1, 2.5, "\\u00e9", null, NaN]}'.encode(), "x")["a"][:4] == [
        1,
        2.5,
        "\u00e9",
        None,
    ]
    assert json_of('{"a": 1}'.encode("utf-16"), "x") == {"a": 1}
