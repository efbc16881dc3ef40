"""Laws that somebody states: read from their text, and held against captures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import npulab
from npulab.analysis.laws.expressions import Columns, Expression, constant, parameter
from npulab.analysis.laws.operators import OPERATORS, REAL
from npulab.analysis.laws.stated import Stated, check_rows, check_stated, word_fields
from npulab.analysis.laws.texts import parse_law, parse_steps
from npulab.registers.map import RegisterMap

NAMES = ("width", "height", "stride")
VALUES = {
    "width": np.array([1, 2, 5, 16, 17, 64, 100]),
    "height": np.array([3, 3, 4, 0, 9, 31, 2]),
    "stride": np.array([1, 2, 1, 2, 3, 1, 4]),
}
BINARY = ["+", "-", "*", "//", "ceil", "align", "%", "min", "max", "share", "^"]
COMPARED = ["==", "!=", "<=", ">", "<", ">=", "divides", "leaves"]


def value(text: str) -> list[int]:
    return np.asarray(Columns(VALUES)[parse_law(text)]).astype(np.int64).tolist()


def tree(random: np.random.RandomState, depth: int) -> Expression:
    if depth == 0 or random.randint(5) == 0:
        return (
            parameter(NAMES[random.randint(3)])
            if random.randint(2)
            else constant(random.randint(0, 200))
        )
    op = [*BINARY, "clog2", "flog2", "!=0"][random.randint(len(BINARY) + 3)]
    count = 1 if op in ("clog2", "flog2", "!=0") else 2
    return Expression(op, tuple(tree(random, depth - 1) for _ in range(count)))


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("0xa000 + height * 0x20 + width", lambda w, h, s: 0xA000 + h * 32 + w),
        ("width - height - stride", lambda w, h, s: w - h - s),
        ("width - (height - stride)", lambda w, h, s: w - (h - s)),
        ("(width - 1) // stride * 4 % 7", lambda w, h, s: (w - 1) // s * 4 % 7),
        ("-3 + -width", lambda w, h, s: -3 - w),
        ("width + 1 ^ height", lambda w, h, s: (w + 1) ^ h),
        ("ceil(width / 8)", lambda w, h, s: -(-w // 8)),
        ("ceil(width * 2 / (stride + 1))", lambda w, h, s: -(-w * 2 // (s + 1))),
        ("align(2 * width, 16)", lambda w, h, s: -(-2 * w // 16) * 16),
        ("min(width, max(height, 4))", lambda w, h, s: min(w, max(h, 4))),
        (
            "ceil(log2(width)) + 8 * floor(log2(width))",
            lambda w, h, s: (w - 1).bit_length() + 8 * (w.bit_length() - 1),
        ),
        ("(width > 5) * height", lambda w, h, s: (w > 5) * h),
        ("(height != 0)", lambda w, h, s: int(h != 0)),
        ("width % 2 == 0", lambda w, h, s: int(w % 2 == 0)),
        ("width % 2 != 0 and stride <= 2", lambda w, h, s: int(w % 2 != 0 and s <= 2)),
        ("(width + stride * 2) % 5 + (stride == 2)", lambda w, h, s: (w + s * 2) % 5 + (s == 2)),
        ("popcount(width) + popcount(0 - width)", lambda w, h, s: w.bit_count()),
        ("010 + width", lambda w, h, s: 10 + w),
        ("7", lambda w, h, s: 7),
    ],
)
def test_laws_are_read_as_python_reads_them(text: str, law: Callable[[int, int, int], int]) -> None:
    assert value(text) == [
        law(*row) for row in zip(*(VALUES[name].tolist() for name in NAMES), strict=True)
    ]


def test_real_numbers_inside_float32() -> None:
    columns = Columns({"scale": np.array([0.1, 0.25], np.float32), "n": np.array([3, 4])})
    one, ten = np.float32(0.1), np.float32(3)
    for text, expected in (
        ("float32(scale)", one),
        ("float32(scale * n)", one * ten),
        ("float32(n / 3)", np.float32(1)),
        ("float32(scale * n in double)", np.float32(float(one) * 3)),
    ):
        law = parse_law(text)
        assert columns[law][0] == np.float32(expected).view(np.uint32)
        assert str(law) == text
    with pytest.raises(ValueError, match="got '/' at 6, allowed is the end"):
        parse_law("scale / 2")


@pytest.mark.parametrize("n", range(200))
def test_texts_of_laws_read_back(n: int) -> None:
    random = np.random.RandomState(n)
    one = tree(random, 4)
    again = parse_law(str(one))
    assert np.array_equal(Columns(VALUES)[again], Columns(VALUES)[one])
    assert str(again) == str(one)
    op = COMPARED[n % len(COMPARED)]
    both = Expression(
        "and",
        (
            Expression(op, (one, constant(n))),
            Expression("<=", (parameter("width"), tree(random, 2))),
        ),
    )
    assert np.array_equal(Columns(VALUES)[parse_law(str(both))], Columns(VALUES)[both])


@pytest.mark.parametrize("symbol", OPERATORS)
def test_every_operator_of_the_vocabulary_reads_back(symbol: str) -> None:
    row = OPERATORS[symbol]
    parts = (parameter("width"), parameter("stride"))[: row.text.count("{")]
    one = Expression(symbol, parts)
    if symbol == "and":
        one = Expression(symbol, tuple(Expression(">", (part, constant(2))) for part in parts))
    elif row.kind == REAL:
        one = Expression("f", (one,))
    assert parse_law(str(one)) == one


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "law '': got the end, allowed is a name, a number or a bracket"),
        ("width +", "law 'width +': got the end, allowed is a name, a number or a bracket"),
        ("width width", "got 'width' at 6, allowed is the end"),
        ("(width", "got the end, allowed is ')'"),
        ("width @ 2", "got '@ 2' at 5, allowed are names, whole numbers and signs"),
        ("width ** 2", "got '*' at 7, allowed is a name, a number or a bracket"),
        ("__import__('os')", "got \"'os')\" at 11, allowed are names"),
        (
            "system(width)",
            "got 'system' at 0, allowed is one of ceil(x / y), align(x, y), min(x, y), max(x, y), "
            "share(x, y), ceil(log2(x)), floor(log2(x)), popcount(x), float32(x)",
        ),
        ("lambda: 0", "got ':' at 6, allowed is the end"),
        ("width < height < 3", "got '<' at 15, allowed is the end"),
        ("ceil(width)", "got 'ceil' at 0, allowed is one of ceil(x / y), align(x, y),"),
        ("99999999999999999999", "got '99999999999999999999' at 0, allowed is a number to 2**53"),
        ("(" * 50 + "1" + ")" * 50, "allowed is a law of 25 levels"),
        ("-" * 50 + "1", "allowed is a law of 25 levels"),
        ("1 + " * 200 + "1", "allowed are names, whole numbers and signs, 200 in all"),
        ("1 " * 10**6, "allowed are names, whole numbers and signs, 200 in all"),
        ("when width == 1: 2", "got several cases, allowed is one"),
        ("when width 2", "got '2' at 11, allowed is ':'"),
    ],
)
def test_what_is_no_law_is_told(text: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_law(text)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["in", "pass", "lambda", "None", "x", "y", "double", "log2"])
def test_words_of_python_are_names(name: str) -> None:
    assert parse_law(f"2 * {name}") == Expression("*", (constant(2), parameter(name)))


@pytest.mark.parametrize(
    "text",
    [
        "(width + 1) % 4 == 0",
        "width % (stride + 1) != 0 and height > 2",
        "(width > 2) == (height > 2)",
        "float32(width * height in double * stride)",
        "float32(ceil(width / 3) * stride)",
    ],
)
def test_brackets_stand_where_an_operand_needs_them(text: str) -> None:
    assert str(parse_law(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10**5,
        "-" * 10**5,
        "min(" * 10**5,
        "9" * 10**5,
        "w[" * 10**5,
        " " * 10**5 + "$",
        "when a: " * 50,
        "min(a, b,)",
        "(a, b)",
        "*a",
        "min(*a)",
        "{a}",
        "a[1:2]",
        "a.b()",
        "(a)(b)",
        "else: a",
        "when a: b; else: c; else: d",
    ],
)
def test_what_python_would_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^law .*: got .*, allowed (is|are) "):
        parse_steps(text)


def test_long_laws_are_computed() -> None:
    assert value("1" + " + width" * 99) == [1 + 99 * one for one in VALUES["width"].tolist()]
    assert value("(" * 24 + "width" + ")" * 24) == VALUES["width"].tolist()


def test_cases_are_tried_in_order() -> None:
    steps = parse_steps("when stride == 2: width; when width > 50: 1; else: height")
    assert [(str(when), str(law)) for when, law in steps] == [
        ("stride == 2", "width"),
        ("width > 50", "1"),
        ("always", "height"),
    ]
    rows = pd.DataFrame(VALUES)
    expected = [
        w if s == 2 else 1 if w > 50 else h for w, h, s in rows[list(NAMES)].values.tolist()
    ]
    found = check_stated(
        [Stated.parse("a", "when stride == 2: width; when width > 50: 1; else: height", "w0_0_8")],
        np.array(expected)[:, None],
        rows,
    )
    assert found.loc[0, ["verdict", "rows", "agree"]].tolist() == ["agrees", 7, 7]


# Held against captures


def checked(law: str, words: Any, place: str = "w0_0_8", **parameters: Any) -> dict[str, Any]:
    return (
        check_stated([Stated.parse("a", law, place)], np.asarray(words)[:, None], parameters)
        .iloc[0]
        .to_dict()
    )


def test_nothing_is_found_from_fewer_than_eight_captures() -> None:
    width = np.arange(1, 8)
    assert (
        checked("width * 2", width * 2, width=width)["status"]
        == "agrees in 7 of 7, too few to call it found"
    )
    width = np.arange(1, 9)
    found = checked("width * 2", width * 2, width=width)
    assert (found["verdict"], found["status"]) == ("agrees", "found: agrees in 8 of 8")
    # captures that are the same in everything are one
    again = np.repeat(np.arange(1, 8), 5)
    assert (
        checked("width * 2", again * 2, width=again)["status"]
        == "agrees in 35 of 35 (7 different ones), too few to call it found"
    )
    assert (
        checked("width * 2", again * 2, width=again, other=np.arange(35))["status"]
        == "found: agrees in 35 of 35"
    )


def test_what_contradicts_is_named() -> None:
    found = checked("width * 2", [2, 4, 7, 8], width=[1, 2, 3, 4])
    assert (found["rows"], found["agree"], found["contradict"]) == (4, 3, 1)
    assert (found["supports"], found["contradicts"]) == ("0, 1, 3", "2")
    assert (found["verdict"], found["status"]) == ("contradicted", "contradicted in 1 of 4")


def test_what_never_varies_is_told() -> None:
    found = checked("height", [1] * 9, height=[1] * 9, width=range(9))
    assert (found["verdict"], found["status"]) == (
        "not varied",
        "agrees in 9 of 9, but it is 1 in all",
    )
    assert checked("height", [1, 1, 2], height=[1, 1, 1])["verdict"] == "contradicted"
    assert checked("5", [5, 5], width=[1, 2])["verdict"] == "not varied"


def test_many_names_are_not_all_listed() -> None:
    found = checked("width", np.arange(40) % 3, width=np.arange(40))
    assert found["contradicts"] == ", ".join(map(str, range(3, 23))) + ", ... (37)"
    assert (found["supports"], found["contradict"]) == ("0, 1, 2", 37)


def test_where_no_case_holds_nothing_is_said() -> None:
    found = checked(
        "when stride == 2: width", [1, 2, 3, 4], width=[1, 9, 3, 9], stride=[2, 1, 2, 3]
    )
    assert (found["supports"], found["contradict"]) == ("0, 2", 0)
    assert (
        checked("when stride == 5: width", [1, 2], width=[1, 2], stride=[1, 1])["status"]
        == "the law applies to no capture"
    )
    # of two engines one is the same in all, and the other is not used by all
    used, sizes = np.array([1, 2, 2]), np.array([[7, 1], [7, 7], [7, 7]])
    law = Stated.parse("a", "when used > i: 7", "w0_0_8", count=2)
    places = Stated(
        "a",
        law.text,
        law.laws,
        tuple(tuple(parse_law(f"w{i}_0_8") for i in range(2)) for _ in range(1)),
    )
    assert (
        check_stated([places], sizes, {"used": used}).loc[0, "status"]
        == "agrees in 3 of 3, but each of them is the same in all"
    )


def test_what_cannot_be_asked_is_told() -> None:
    assert checked("depth", [1, 2], width=[1, 2])["status"] == "no capture has depth"
    assert checked("width", [1, 2], "w9_0_8", width=[1, 2])["status"] == "no capture has w9_0_8"
    assert checked("width", [1, 2], "w0_30_8", width=[1, 2])["verdict"] == "nothing to compare"
    assert checked(" ", [1, 2], width=[1, 2])["status"] == "no law is stated"


def test_real_parameters_agree_only_bit_for_bit() -> None:
    scale = np.array([0.1, 0.2, 0.7], np.float32)
    words = scale.view(np.uint32).astype(np.int64)
    assert checked("float32(scale)", words, "w0_0_32", scale=scale)["verdict"] == "agrees"
    assert (
        checked("float32(scale)", np.where([0, 1, 0], 7, words), "w0_0_32", scale=scale)[
            "contradicts"
        ]
        == "1"
    )
    assert (
        checked("scale", [1, 2], scale=[1.5, 2.5])["contradict"] == 2
    )  # no whole number is cut to fit


def test_captures_by_name_are_asked_for_what_they_have() -> None:
    captures = {
        "one": ({"Block.Size": 6, "Block.En[0]": 1, "Block.En[1]": 1}, {"width": 3, "used": 2}),
        "two": (
            {"Block.Size": 9, "Block.En[0]": 1, "Block.En[1]": 0},
            {"width": 4, "used": 1, "kind": "relu"},
        ),
        "words": (np.array([0, 10, 1, 1], np.uint32), {"width": 5, "used": 2}),
        "short": (np.array([0], np.uint32), {"width": 5, "used": 2}),
        "bare": ({"Block.Size": 1}, {}),
    }
    found = check_stated(
        [
            Stated.parse("size", "width * 2", "Block.Size", "w1_0_16"),
            Stated.parse("on", "(used > i)", "Block.En[i]", count=2),
        ],
        captures,
    ).set_index("name")
    assert found.loc["size", ["rows", "supports", "contradicts"]].tolist() == [
        3,
        "one, words",
        "two",
    ]
    assert found.loc["on", ["rows", "supports", "verdict"]].tolist() == [2, "one, two", "agrees"]
    with pytest.raises(
        ValueError, match="captures: got int for 'a', allowed is a pair: words or values by field"
    ):
        check_stated([], {"a": 3})
    with pytest.raises(
        ValueError, match="parameters: got an argument of their own with captures by name"
    ):
        check_stated([], captures, {"width": [1]})


def test_rows_of_a_table_are_words_or_fields() -> None:
    table = [
        {
            "offset": "0x4",
            "type": "u16",
            "fields": "A.W + A.H * 0x100",
            "law": "width + height * 0x100",
            "note": "kept",
        },
        {"offset": "0x8", "type": "u8[4]", "fields": "A.On[i]", "law": "(width > i)", "note": ""},
        {"offset": "", "type": "", "fields": "", "law": "", "note": "a heading"},
    ]
    width, height = np.array([1, 2, 4]), np.array([7, 8, 9])
    words = np.stack([width * 0, width + height * 256, np.array([1, 0x101, 0x1010101])], 1)
    from_words = check_rows(table, words, {"width": width, "height": height})
    values = {
        f"c{n}": (
            {"A.W": w, "A.H": h} | {f"A.On[{i}]": int(w > i) for i in range(4)},
            {"width": w, "height": h},
        )
        for n, (w, h) in enumerate(zip(width.tolist(), height.tolist(), strict=True))
    }
    from_values = check_rows(table, values)
    for found in (from_words, from_values):
        assert found["name"].tolist() == ["u16 0x4", "u8[4] 0x8", ""]
        assert found["verdict"].tolist() == ["agrees", "agrees", "nothing to compare"]
        assert found["agree"].tolist() == [3, 3, 0]
        assert found["note"].tolist() == ["kept", "", "a heading"]
    with pytest.raises(ValueError, match="type: got 'i16', allowed are u8, u16, u32"):
        word_fields(0, "i16")
    with pytest.raises(ValueError, match="offset: got 0x2, allowed is a multiple of 4"):
        word_fields(2, "u32")
    assert word_fields(0x34, "u32[2]") == ["w13_0_32", "w14_0_32"]
    assert word_fields(0x1E5, "u8") == ["w121_8_8"]


def test_laws_that_a_search_found_hold_where_they_are_stated_again() -> None:
    random = np.random.default_rng(5)
    rows = pd.DataFrame(
        {
            "width": random.integers(8, 300, 120),
            "stride": random.integers(1, 3, 120),
            "channels": random.integers(1, 64, 120),
        }
    )
    wide = np.where(rows["stride"] == 2, -(-rows["width"] // 2), rows["width"])
    words = np.stack([wide + rows["channels"] * 2**16, (rows["channels"] - 1) // 16], 1).astype(
        np.uint32
    )
    laws = npulab.find_laws(words[:60], rows[:60])
    stated = [Stated.parse(one.name, one.text, one.name) for one in laws.fields]
    assert len(stated) >= 3
    sweep = npulab.Sweep(words[60:], rows[60:], name="unseen")
    found = check_stated(stated, sweep)
    assert found["status"].tolist() == ["found: agrees in 60 of 60"] * len(stated)
    wrong = npulab.Sweep(words[60:] + np.uint32(1), rows[60:])
    assert set(check_stated(stated, wrong).loc[0, ["verdict"]]) == {"contradicted"}


def test_a_sweeps_registers_name_its_fields() -> None:
    table = RegisterMap(
        [
            {
                "block": "B",
                "offset": "0",
                "register": "w0",
                "field": "size",
                "lsb": "4",
                "width": "12",
            }
        ]
    )
    sweep = npulab.Sweep([[0x50], [0x90], [0xC0]], {"width": [5, 9, 12]}, registers=table)
    assert check_stated([Stated.parse("a", "width", "size")], sweep).loc[0, "agree"] == 3
    assert check_stated([Stated.parse("a", "width + 1", "size + 1")], sweep).loc[0, "agree"] == 3


def test_words_that_are_none_are_told() -> None:
    for words in ([[1], [1, 2]], [[-1]], [[2**32]], [1, 2], [["a"]]):
        with pytest.raises(ValueError, match="words: got"):
            check_stated([], words, {"width": [1]})
    with pytest.raises(ValueError, match="parameters: got 3 rows of width, allowed are 2"):
        check_stated([], [[1], [2]], {"width": [1, 2, 3]})
    with pytest.raises(
        ValueError,
        match=r"parameters: got inf in 'width' \(row 1\), allowed are finite numbers to 2\*\*53",
    ):
        check_stated([], [[1], [2]], {"width": [1, np.inf]})
