"""What captures cannot tell from a law, rule by rule."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import npulab
from npulab.analysis.laws.expressions import (
    ALWAYS,
    Columns,
    Expression,
    constant,
    field,
    parameter,
    term,
)
from npulab.analysis.laws.findings import Findings, in_order
from npulab.analysis.laws.posterior import predicted
from npulab.analysis.laws.rivals import clamp_rivals, gap_rivals
from npulab.analysis.laws.solved import Rival, Solved, covered

HEIGHT, TALL = parameter("height"), term("==", parameter("kernel"), 1)
CAPTURED = Columns(
    {
        "height": np.array([7, 20, 128, 400, 12, 64, 90, 500]),
        "kernel": np.array([1, 1, 1, 1, 3, 3, 3, 3]),
    }
)


def cut(lsb: int, width: int, *steps: tuple[Expression, Expression], **of: Any) -> Solved:
    support = (2,) * len(steps)
    return replace(Solved(0, lsb, width, steps, support, 10.0, 40.0), **of)


# the height in all captures
PLAIN = cut(0, 8, (ALWAYS, HEIGHT), cost=9.0, explained=400.0)


def test_a_limit_that_is_cut_in_two_fields_is_one_limit() -> None:
    """min(height, 100) for kernels of 1, else min(height, 48), found as its low 5 bits and the 2
    above.
    """
    low_rows = term("<", HEIGHT, 32)
    low = cut(0, 5, (low_rows, HEIGHT), (TALL, constant(4)), (ALWAYS, constant(16)))
    high = cut(5, 2, (low_rows, constant(0)), (TALL, constant(3)), (ALWAYS, constant(1)))
    asked = Columns({"height": np.array([40, 99, 300]), "kernel": np.array([1, 1, 1])})
    for one, truth in ((low, [40 % 32, 99 % 32, 100 % 32]), (high, [1, 3, 3])):
        said = [
            one.values(asked, rival.steps).tolist()
            for rival in clamp_rivals(one, CAPTURED, (low, high))
        ]
        assert truth in said
        assert truth not in [
            one.values(asked, rival.steps).tolist() for rival in clamp_rivals(one, CAPTURED)
        ]


def test_rivals_give_what_was_captured() -> None:
    """Every rival of a list says the same of all captures."""
    whole = cut(0, 10, (TALL, constant(100)), (ALWAYS, term("min", HEIGHT, 48)))
    captured = CAPTURED.rows(np.array([2, 3, 4, 5, 6, 7]))
    rivals = list(clamp_rivals(whole, captured))
    assert rivals
    assert all(
        (whole.values(captured, rival.steps) == whole.values(captured)).all() for rival in rivals
    )


def limits_of(solved: Solved) -> list[int]:
    """The limits that the captures leave possible."""
    rivals = gap_rivals(solved, CAPTURED)
    return [rival.when.args[1].args[0] for rival in rivals if rival.when is not None]


def test_a_threshold_may_lie_anywhere_in_its_gap() -> None:
    wide = cut(0, 1, (term("<=", HEIGHT, 100), constant(0)), (ALWAYS, constant(1)))
    assert limits_of(wide) == [90, 127]


def test_what_both_steps_give_says_nothing_of_the_limit_between_them() -> None:
    """Layers of 90 have 90 with or without the limit: it may lie below them, too."""
    held = term("min", HEIGHT, 90)
    wide = cut(0, 10, (term("<=", HEIGHT, 100), HEIGHT), (ALWAYS, held))
    assert limits_of(wide) == [127]


def doubts_of(findings: Findings, asked: Columns) -> tuple[np.ndarray, np.ndarray]:
    """The words of layers, and masks of the bits of fields that are not claimed."""
    words, sure = predicted(findings, asked)
    return words, covered(findings.ready, len(findings.moved)) & ~sure


def findings_of(
    fields: list[Solved], captured: Columns, names: Iterable[str], words: np.ndarray, moved: int
) -> Findings:
    """What captures say of fields of one word ``(N,)``, of which the bits ``moved`` are explained."""
    follows = {one.name: frozenset() for one in fields}
    masks = np.array([moved], np.uint32)
    return Findings.of(fields, follows, captured, [*names], words[:, None].astype(np.uint32), masks)


def claimed(
    law: Expression, heights: list[int], asked: list[int], words: list[int] | None = None, **of: Any
) -> list[bool]:
    """Whether a law of all captures, found as the low bits of a word, is claimed on each layer."""
    captured = Columns({"height": np.array(heights), "channels": np.arange(len(heights))})
    one = cut(0, 8, (ALWAYS, law), cost=9.0, explained=400.0, **of)
    raw = one.values(captured)
    if words is not None:
        raw = np.array(words)
    findings = findings_of([one], captured, ["height"], raw, 255)
    layers = Columns(dict.fromkeys(("height", "channels"), np.array(asked)))
    return (doubts_of(findings, layers)[1][:, 0] == 0).tolist()


def test_a_part_that_hardly_any_capture_needs_is_not_proved() -> None:
    """A limit that two captures reach, and one that eight do."""
    law = term("min", HEIGHT, 70)
    assert claimed(law, [*range(20, 60), 81, 82], [30, 69, 90]) == [True, True, False]
    assert claimed(law, [*range(20, 60), *range(81, 89)], [30, 69, 90]) == [True, True, True]


def test_a_number_is_proved_by_other_numbers_not_by_more_captures() -> None:
    """Two heights in forty captures prove what goes with these two, and nothing of a third."""
    assert claimed(term("*", HEIGHT, 3), [10, 20] * 20, [10, 20, 30]) == [
        True,
        True,
        False,
    ]


def test_the_low_bits_of_a_law_that_fails_above_them_are_not_claimed() -> None:
    heights = [*range(100, 400, 5)]
    words = [height + 256 * (height in (200, 350)) for height in heights]
    assert not any(claimed(HEIGHT, heights, [105, 300], words))
    assert all(claimed(HEIGHT, heights, [105, 300], [height % 256 for height in heights]))
    assert all(claimed(HEIGHT, heights, [105, 300]))


@pytest.mark.parametrize("known", [True, False])
def test_low_bits_are_claimed_where_the_law_of_the_bits_above_goes_on_with_theirs(
    known: bool,
) -> None:
    """The bits above are the height's but for layers of two jobs: only of these may it be
    another number's.
    """
    heights, jobs = np.arange(100, 500, 5), (np.arange(80) % 8 == 3).astype(int)
    captured = Columns({"height": heights, "jobs": jobs})
    law = cut(0, 8, (ALWAYS, HEIGHT), cost=9.0, explained=600.0)
    above = cut(
        8,
        1,
        (term("==", parameter("jobs"), 1), constant(0)),
        (ALWAYS, term("//", HEIGHT, 256)),
        cost=9.0,
        explained=80.0,
        support=(10, 70),
    )
    fields = [law, above] if known else [law]
    words = law.placed(law.values(captured)) | above.placed(above.values(captured))
    findings = findings_of(fields, captured, ["height"], words, 2**9 - 1)
    asked = Columns({"height": np.array([110, 310, 110, 310]), "jobs": np.array([0, 0, 1, 1])})
    assert (doubts_of(findings, asked)[1][:, 0] & 255 == 0).tolist() == [known, known, False, False]


def doubted(solved: Solved, captured: dict[str, Any], asked: dict[str, Any]) -> list[bool]:
    """Whether each layer of ``asked`` is doubted, where a list beside the law makes modes of all
    but ``height``.
    """
    columns = Columns({name: np.array(values) for name, values in captured.items()})
    modes = [name for name in captured if name != "height"]
    beside = cut(
        16,
        8,
        *((term("==", parameter(name), 0), constant(1)) for name in modes),
        (ALWAYS, HEIGHT),
        cost=9.0,
        explained=4000.0,
    )
    words = solved.placed(solved.values(columns)) | beside.placed(beside.values(columns))
    findings = findings_of([solved, beside], columns, captured, words, solved.mask)
    layers = Columns({name: np.array(values) for name, values in asked.items()})
    return (doubts_of(findings, layers)[1][:, 0] & solved.mask != 0).tolist()


def test_a_law_says_nothing_of_modes_that_go_together_otherwise() -> None:
    """Jobs come with as many moves; a layer with fewer moves is of a kind that no capture shows. If
    any value goes with any other, a combination is missing by chance; if many combinations are
    rare, laws hold on rare combinations."""
    heights, jobs = [*range(10, 74)], [number % 4 for number in range(64)]
    asked = {"height": [20, 20], "jobs": [1, 1], "moves": [1, 3]}
    assert doubted(PLAIN, {"height": heights, "jobs": jobs, "moves": jobs}, asked) == [False, True]
    moves = [number // 4 % 4 if number % 16 != 13 else 0 for number in range(64)]
    assert doubted(PLAIN, {"height": heights, "jobs": jobs, "moves": moves}, asked) == [
        False,
        False,
    ]
    odd = [
        0,
        1,
        3,
        2,
        *jobs[4:8],
        1,
        2,
        2,
        0,
        *jobs[12:],
    ]  # the law held on five captures of kinds of their own
    assert doubted(PLAIN, {"height": heights, "jobs": jobs, "moves": odd}, asked) == [False, False]


def test_a_list_says_nothing_of_modes_that_no_capture_has_together() -> None:
    """Of any two modes, and of three of which each two were captured, even if the list reads none of
    them; a law of all captures holds for modes that nothing ties together."""
    several = replace(
        PLAIN,
        steps=((term("<=", HEIGHT, 40), HEIGHT), (ALWAYS, constant(40))),
        support=(31, 32),
    )
    rows = {"height": [*range(10, 73)], "one": [0, 0, 1] * 21, "other": [0, 1, 0] * 21}
    asked = {"height": [20, 20], "one": [0, 1], "other": [1, 1]}
    assert doubted(several, rows, asked) == [False, True]
    assert doubted(PLAIN, rows, asked) == [False, False]
    odd = np.array([(one, other, one ^ other) for one in (0, 1) for other in (0, 1)] * 16).T
    three = {"height": [*range(10, 74)], **dict(zip(("one", "other", "third"), odd, strict=True))}
    asked = {"height": [20, 20], "one": [0, 1], "other": [1, 1], "third": [1, 1]}
    assert doubted(several, three, asked) == doubted(PLAIN, three, asked) == [False, True]


@pytest.mark.parametrize(("captures", "rare", "own"), [(60, 6, False), (60, 20, True)])
def test_a_rare_kind_of_layer_leaves_the_others_proved(captures: int, rare: int, own: bool) -> None:
    """A few layers with several jobs say little of such layers, and nothing against those with
    one, if there are many.
    """
    jobs = np.isin(np.arange(captures), 2 + 2 * np.arange(rare)).astype(int)
    several = cut(
        0,
        8,
        (term("==", parameter("jobs"), 0), HEIGHT),
        (ALWAYS, constant(200)),
        cost=9.0,
        explained=4000.0,
        support=(captures - rare, rare),
    )
    assert doubted(
        several,
        {"height": [*range(10, 10 + captures)], "jobs": jobs},
        {"height": [20, 20], "jobs": [0, 1]},
    ) == [False, not own]


@pytest.mark.parametrize("needed", [2, 4])
def test_a_limit_that_hardly_any_capture_needs_may_be_one_on_anything(needed: int) -> None:
    """Captures of ``one`` are 40, but the highest: how many there are says whether the height
    decides that.
    """
    high = term("<=", HEIGHT, 80 - needed)
    one = cut(
        0,
        8,
        (
            term("and", term("==", parameter("one"), 1), high),
            constant(40),
        ),
        (ALWAYS, HEIGHT),
        support=(32, 32),
        cost=20.0,
        explained=400.0,
    )
    captured = {"height": [*range(17, 81)], "one": [1] * 16 + [0] * 32 + [1] * 16}
    asked = {"height": [20, 20, 80], "one": [0, 1, 1]}
    assert doubted(one, captured, asked) == [False, needed == 2, needed == 2]


def test_a_number_may_be_one_more_or_less() -> None:
    """No capture has a height of 32 or 64: then these are in one group of 32 as well as in the
    next.
    """
    group = term("//", HEIGHT, 32)
    heights = [height for height in range(1, 90) if height % 32]
    assert claimed(group, heights, [31, 32, 33, 64, 70]) == [True, False, True, False, True]
    assert all(claimed(group, [*heights, 32, 64], [31, 32, 33, 64, 70]))


def test_a_rival_that_reads_an_open_field_says_nothing() -> None:
    """Its field is no column of the layers that are asked for."""
    rival = Rival(0.0, 0, law=term("+", field("w1_0_4"), HEIGHT))
    one = cut(0, 10, (ALWAYS, HEIGHT), rivals=(rival, Rival(1.0, 0, law=parameter("kernel"))))
    (ready,), stuck = in_order([one], {one.name: frozenset()})
    assert not stuck
    assert [str(left) for left in ready.rivals] == ["kernel"]
    findings = findings_of([one], CAPTURED, ["height", "kernel"], CAPTURED[HEIGHT], 1023)
    words, doubt = doubts_of(findings, CAPTURED.rows(np.arange(8)))
    assert words[:, 0].tolist() == CAPTURED[HEIGHT].tolist()
    assert doubt.any()


def test_laws_go_to_other_processes() -> None:
    """A hash of text is another one there, so it stays behind."""
    law = term("+", HEIGHT, 3)
    hash(law)
    sent = pickle.loads(pickle.dumps(law))
    assert "_hash" not in vars(sent)
    assert sent == law
    assert hash(sent) == hash(law)


def test_a_field_that_reads_an_open_one_states_its_plain_text() -> None:
    width = np.arange(8, 72)
    laws = npulab.find_laws(width[:, None].astype(np.uint32), {"width": width})
    reader = cut(0, 4, (ALWAYS, term("+", field("w1_0_4"), 20)))
    (law,) = replace(laws, _solved=(reader,), _follows={reader.name: frozenset({"w1_0_4"})}).fields
    assert law.open
    assert law.stated == "w1_0_4 + 20"
    assert law.probability == (0.0,)
