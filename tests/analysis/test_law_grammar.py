"""The grammar of laws: a row of its table is all that a shape of law needs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from npulab.analysis.laws import library
from npulab.analysis.laws.expressions import Columns
from npulab.analysis.laws.library import Library, Names, grammar, make_library
from npulab.analysis.laws.prior import BUDGET
from npulab.analysis.laws.texts import parse_law

LEAVES = {"column", "plain", "field", "size", "mode", "small", "large", "count", "real"}
N = 60


def columns(**least_and_most: tuple[int, int]) -> Columns:
    random = np.random.default_rng(4)
    return Columns(
        {name: random.integers(low, high, N) for name, (low, high) in least_and_most.items()}
    )


def text_of(found: Library, values: np.ndarray) -> str:
    """The law that gives some values."""
    (index,) = np.flatnonzero((found.laws.values == values.astype(np.uint32)).all(1))
    return str(found.laws[int(index)])


def test_each_row_takes_kinds_that_an_earlier_stage_makes_and_budgets_that_there_are() -> None:
    known = {stage: set(LEAVES) for stage in {shape.stage for shape in grammar()}}
    made = set(LEAVES)
    for shape in grammar():
        known[shape.stage] |= made
        for group in shape.groups:
            for kind in group.kinds.split(" or "):
                limit, _, words = kind.strip().rpartition(" of ")
                assert set(words.split()) <= known[shape.stage], (shape.stage, kind)
                assert not limit or limit.isdecimal() or hasattr(BUDGET, limit), kind
        assert not shape.most or hasattr(BUDGET, shape.most)
        assert shape.formula.names() <= set(shape.names), str(shape.formula)
        assert shape.where is None or shape.where.names() <= set(shape.names)
        made |= set(shape.results)


def test_rows_of_one_stage_stand_together() -> None:
    stages = [shape.stage for shape in grammar()]
    assert len(re.findall(r"(\S+)(?: \1(?= |$))*", " ".join(stages))) == len(set(stages))


def test_a_row_is_all_that_a_new_shape_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = columns(width=(20, 90), height=(20, 90), tiles=(2, 9))
    values = {name: sizes[parse_law(name)] for name in ("width", "height", "tiles")}
    wanted = values["width"] * values["height"] % values["tiles"]
    names = Names([*values])
    assert not (make_library(sizes, names).laws.values == wanted).all(1).any()

    rows = library.read_table(Path(library.__file__).with_name("grammar.csv"))
    new = dict.fromkeys(rows[0], "") | {"stage": "rests", "formula": "x % y", "price": "3"}
    new["names"] = "x: product; y: small count"
    monkeypatch.setattr(library, "read_table", lambda path: [*rows, new])
    grammar.cache_clear()
    try:
        found = text_of(make_library(sizes, names), wanted)
    finally:
        monkeypatch.undo()
        grammar.cache_clear()
    assert found == "width * height % tiles"


def test_the_output_of_a_convolution_and_one_less_are_forms_of_their_own() -> None:
    sizes = columns(width=(30, 90), pad=(0, 2), kernel=(2, 8), stride=(1, 4))
    width, pad, kernel, stride = (
        sizes[parse_law(name)] for name in ("width", "pad", "kernel", "stride")
    )
    found = make_library(sizes, Names(["width", "pad", "kernel", "stride"]))
    output = (width + 2 * pad - kernel) // stride + 1
    assert text_of(found, output) == "(width + pad * 2 - kernel) // stride + 1"
    assert text_of(found, output - 1) == "(width + pad * 2 - kernel) // stride"


def test_the_second_word_of_a_product_is_a_law() -> None:
    sizes = columns(width=(30_000, 90_000), height=(30_000, 90_000), channels=(100, 900))
    width, height, channels = (sizes[parse_law(name)] for name in ("width", "height", "channels"))
    found = make_library(sizes, Names(["width", "height", "channels"]))
    product = width * height * channels
    assert text_of(found, product) == "width * height * channels"
    assert text_of(found, product >> 32) == "width * height * channels // 4294967296"


def test_constants_are_lists_and_ranges() -> None:
    divisors = [
        shape.formula.args[1].args[0]
        for shape in grammar()
        if shape.stage == "columns" and shape.formula.op == "//"
    ]
    assert divisors == [*range(2, 40), 64, 128]
