"""The first law that is right on some captures, and what captures weigh, by tables; against one
after the other.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npulab.analysis.laws import library
from npulab.analysis.laws.expressions import ALWAYS, Columns, field
from npulab.analysis.laws.library import Names
from npulab.analysis.laws.lists import Exact
from npulab.analysis.laws.masks import packed, weighed
from npulab.analysis.laws.search import start
from npulab.analysis.laws.solved import Solved
from npulab.analysis.laws.state import Watch


def first_right(agree: np.ndarray, inside: np.ndarray) -> list[int]:
    return [
        next((law for law, right in enumerate(agree) if right[rows].all()), -1) for rows in inside
    ]


@pytest.mark.parametrize("captures", [1, 8, 63, 64, 130])
@pytest.mark.parametrize("laws", [0, 1, 64, 65, 150])
def test_the_first_law_that_is_right_on_all_of_some_captures(captures: int, laws: int) -> None:
    random = np.random.default_rng([captures, laws])
    agree = random.random((laws, captures)) < random.random((laws, 1))
    inside = random.random((60, captures)) < random.random((60, 1)) ** 3
    found = Exact(packed(agree).view(np.uint8)).first(packed(inside).view(np.uint8))
    assert found.tolist() == first_right(agree, inside)
    assert laws < 2 or len(set(found.tolist())) > 1


@pytest.mark.parametrize("captures", [1, 8, 63, 130])
def test_what_captures_weigh_together(captures: int) -> None:
    random = np.random.default_rng(captures)
    rows, weights = random.random((40, captures)) < 0.4, random.random(captures)
    assert np.allclose(weighed(rows, weights), [weights[row].sum() for row in rows], rtol=1e-12)
    assert weighed(rows[:0], weights).shape == (0,)


def test_a_field_that_read_an_open_one_follows_from_what_that_is_found_to_read() -> None:
    words, a = np.arange(512, dtype=np.uint32)[:, None], np.arange(512)
    state = start(
        words,
        Columns({"a": a}),
        Names(["a"]),
        np.zeros(1, np.uint32),
        [0],
        Watch(lambda text: None),
    )
    first, second, third = (
        Solved(0, lsb, 3, ((ALWAYS, field(f"w0_{reads}_3")),), (512,), 1.0, 9.0)
        for lsb, reads in ((0, 3), (3, 6), (6, 0))
    )
    state = state.accept(first).accept(second)
    assert state.follows == {"w0_0_3": {"w0_3_3", "w0_6_3"}, "w0_3_3": {"w0_6_3"}}
    assert state.circular(third, ["w0_0_3", "w0_3_3"]) == {"w0_0_3", "w0_3_3", "w0_6_3"}


def test_a_product_with_a_field_that_holds_a_number_less_one_is_as_plain_as_that_of_two_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library, "BUDGET", replace(library.BUDGET, grown_pairs=0))
    height, width = np.random.default_rng(1).integers(1, 60, (2, 50))
    columns = Columns({"height": height})
    columns.add("w0_0_6", width - 1)
    found = library.make_library(columns, Names(["height"], fields=["w0_0_6"])).laws.values
    assert (found == height * width - 1).all(1).any()
