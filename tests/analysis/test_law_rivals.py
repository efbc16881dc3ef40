"""What captures cannot tell from a law, rule by rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import npulab
from npulab.analysis.laws.claims import Findings, doubts, in_order
from npulab.analysis.laws.expressions import ALWAYS, Columns, Expression, constant, field, parameter
from npulab.analysis.laws.rivals import clamp_rivals, gap_rivals
from npulab.analysis.laws.solved import Rival, Solved

HEIGHT, TALL = parameter("height"), Expression("==", (parameter("kernel"), constant(1)))
CAPTURED = Columns({"height": np.array([7, 20, 128, 400, 12, 64, 90, 500]),
                    "kernel": np.array([1, 1, 1, 1, 3, 3, 3, 3])})


def cut(lsb: int, width: int, *steps: tuple[Expression, Expression]) -> Solved:
    return Solved(0, lsb, width, steps, (2,) * len(steps), 10.0, 40.0)


def test_a_limit_that_is_cut_in_two_fields_is_one_limit() -> None:
    """min(height, 100) for kernels of 1, else min(height, 48), found as its low 5 bits and the 2 above."""
    low_rows = Expression("<", (HEIGHT, constant(32)))
    low = cut(0, 5, (low_rows, HEIGHT), (TALL, constant(4)), (ALWAYS, constant(16)))
    high = cut(5, 2, (low_rows, constant(0)), (TALL, constant(3)), (ALWAYS, constant(1)))
    asked = Columns({"height": np.array([40, 99, 300]), "kernel": np.array([1, 1, 1])})
    for one, truth in ((low, [40 % 32, 99 % 32, 100 % 32]), (high, [1, 3, 3])):
        said = [one.values(asked, rival.steps).tolist() for rival in clamp_rivals(one, CAPTURED, (low, high))]
        assert truth in said
        assert truth not in [one.values(asked, rival.steps).tolist() for rival in clamp_rivals(one, CAPTURED)]


def test_rivals_give_what_was_captured() -> None:
    """Every rival of a list says the same of all captures."""
    whole = cut(0, 10, (TALL, constant(100)), (ALWAYS, Expression("min", (HEIGHT, constant(48)))))
    captured = CAPTURED.rows(np.array([2, 3, 4, 5, 6, 7]))
    rivals = list(clamp_rivals(whole, captured))
    assert rivals
    assert all((whole.values(captured, rival.steps) == whole.values(captured)).all() for rival in rivals)


def test_a_threshold_may_lie_anywhere_in_its_gap() -> None:
    wide = cut(0, 1, (Expression("<=", (HEIGHT, constant(100))), constant(0)), (ALWAYS, constant(1)))
    limits = [rival.when.args[1].args[0] for rival in gap_rivals(wide, CAPTURED) if rival.when is not None]
    assert limits == [90, 127]


def test_a_rival_that_reads_an_open_field_says_nothing() -> None:
    """Its field is no column of the layers that are asked for."""
    rival = Rival(0.0, 0, law=Expression("+", (field("w1_0_4"), HEIGHT)))
    one = replace(cut(0, 10, (ALWAYS, HEIGHT)), rivals=(rival, Rival(1.0, 0, law=parameter("kernel"))))
    (ready,), stuck = in_order([one], {one.name: frozenset()})
    assert not stuck
    assert [str(left) for left in ready.rivals] == ["kernel"]
    findings = Findings.of([one], {one.name: frozenset()}, CAPTURED, ["height", "kernel"], np.array([1023], np.uint32))
    words, doubt = doubts(findings, CAPTURED.rows(np.arange(8)))
    assert words[:, 0].tolist() == CAPTURED[HEIGHT].tolist()
    assert doubt.any()


def test_a_field_that_reads_an_open_one_states_its_plain_text() -> None:
    width = np.arange(8, 72)
    laws = npulab.find_laws(width[:, None].astype(np.uint32), {"width": width})
    reader = cut(0, 4, (ALWAYS, Expression("+", (field("w1_0_4"), constant(20)))))
    (law,) = replace(laws, _solved=(reader,), _follows={reader.name: frozenset({"w1_0_4"})}).fields
    assert law.open
    assert law.stated == "w1_0_4 + 20"
