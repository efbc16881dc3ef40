"""What waits for what in a stream, by the tokens that a target states."""

from __future__ import annotations

from pathlib import Path

import pytest

from npulab.captures.capture import Capture, Job
from npulab.captures.tokens import Pass, Place, Tokens, Wait, read_tokens, waits_of
from npulab.registers.map import RegisterMap

FIELDS = ("pop", "push")
ROWS = [{"block": "JOB", "field": name, "lsb": n, "width": 1} for n, name in enumerate(FIELDS)]
MAPS = {
    "JOB": RegisterMap(
        [*ROWS, {"block": "JOB", "field": "on", "lsb": 4, "width": 2, "value": "enum:on"}],
        enums={"on": {0: "A", 1: "B"}},
    )
}
PLACES = (Place("JOB", "a", "on", "A"), Place("JOB", "b"))
TOKENS = Tokens(
    PLACES,
    (
        Pass("a", "pop", "pop", "b"),
        Pass("a", "push", "push", "b"),
        Pass("b", "pop", "pop", "a"),
        Pass("b", "push", "push", "a"),
    ),
)


def stream(*jobs: str) -> Capture:
    """Jobs as texts: the unit, with < if it pops and > if it pushes."""
    words = [("b" in text) * 16 + ("<" in text) + 2 * (">" in text) for text in jobs]
    return Capture("s", "demo", "x", tuple(Job("JOB", [word]) for word in words), maps=MAPS)


def test_the_first_pop_takes_the_first_push() -> None:
    found = waits_of(stream("a>", "a>", "b<", "b", "b<>", "a<"), TOKENS)
    assert found.units == ("a", "a", "b", "b", "b", "a")
    assert found.waits == (Wait(2, "a", 0), Wait(4, "a", 1), Wait(5, "b", 4))
    assert (found.of(4), found.after(4), found.stuck) == ([Wait(4, "a", 1)], [5], ())
    assert found.sentence == "3 jobs wait for another unit"


def test_a_pop_too_many_never_begins_nor_what_its_unit_has_behind_it() -> None:
    found = waits_of(stream("a>", "b<", "b<", "b>", "a<", "a"), TOKENS)
    assert found.of(2) == [Wait(2, "a", None)]
    assert found.stuck == (2, 3, 4, 5)
    assert found.sentence == (
        "3 jobs wait for another unit; job 2 (b) never begins, no job of a pushes its token"
    )


def test_units_that_wait_for_each_other_never_begin() -> None:
    found = waits_of(stream("a<>", "b<>"), TOKENS)
    assert found.waits == (Wait(0, "b", 1), Wait(1, "a", 0))
    assert found.stuck == (0, 1)
    assert found.sentence.endswith("; job 0 (a) never begins")


def test_a_later_push_counts_and_one_left_over_is_nothing() -> None:
    found = waits_of(stream("b<", "a>", "a>"), TOKENS)
    assert (found.waits, found.stuck) == ((Wait(0, "a", 1),), ())


def test_the_table_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tokens.csv"
    rows = [",".join([*row, "guess"]) for row in TOKENS.passes]
    path.write_text("\n".join(["unit,field,act,other,evidence", *rows]) + "\n")
    assert read_tokens(path, PLACES) == TOKENS
    path.write_text("unit,field,act,other\na,pop,take,b\n")
    with pytest.raises(ValueError, match="tokens: pop: got take, allowed is push or pop"):
        read_tokens(path, PLACES)


def test_a_jobs_own_unit_counts_where_none_is_stated() -> None:
    job = Job("JOB", [0], unit="core 1")
    capture = Capture("s", "demo", "x", (job,), maps=MAPS)
    assert waits_of(capture, Tokens((), ())).units == ("core 1",)
