"""Jobs that were put in, left out or moved: in words, in diffs, in bisections and in their views."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from npulab import Capture, bisect_fields
from npulab.analysis.bisect import Bisection
from npulab.analysis.check import differences
from npulab.analysis.edited import streams_differ
from npulab.analysis.sides import differing
from npulab.captures.capture import CaptureSet, Job
from npulab.captures.target import Target
from npulab.captures.tokens import Pass, Place, Tokens
from npulab.notebook.widgets import BisectView, DiffModel
from npulab.registers.map import RegisterMap

BLOCKS = ("LOAD", "GEMM", "ALU")
WORD = "block,register,field,lsb,width\n{0},W,size,0,16\n{0},W,kind,16,16"
MAPS = {block: RegisterMap(csv.DictReader(WORD.format(block).splitlines())) for block in BLOCKS}
COUNT = 12


def job(number: int, kind: int = 0) -> Job:
    return Job(BLOCKS[number % 3], [1 + number + 65536 * kind])


JOBS = [job(number) for number in range(COUNT)]
NEW = Job("LOAD", [99])


def capture(name: str, jobs: list[Job]) -> Capture:
    return Capture(name, "demo", "x", tuple(jobs), maps=MAPS, provenance="simulated")


GOOD = capture("good", JOBS)
INSERTED = [*JOBS[:3], NEW, *JOBS[3:]]
LEFT_OUT = [*JOBS[:7], *JOBS[8:]]
MOVED = [*JOBS[:2], *JOBS[3:9], JOBS[2], *JOBS[9:]]
ALL = [*JOBS[:3], NEW, *JOBS[3:7], job(8, 5), *JOBS[9:11], JOBS[0], NEW, JOBS[11]][1:]


def sentence(jobs: list[Job]) -> str:
    return streams_differ(differences(GOOD, capture("b", jobs)), COUNT)


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        (JOBS, ""),
        ([job(0, 1), *JOBS[1:]], ""),
        (INSERTED, "1 job LOAD inserted before job 3; no field of the other jobs differs"),
        ([*JOBS, NEW], "1 job LOAD inserted at the end; no field of the other jobs differs"),
        (LEFT_OUT, "1 job GEMM left out (job 7); no field of the other jobs differs"),
        (MOVED, "1 job ALU moved (2 to 8); no field of the other jobs differs"),
        (
            [*JOBS[:3], NEW, Job("ALU", [77]), *JOBS[3:]],
            "2 jobs inserted before job 3 (1 LOAD, 1 ALU); no field of the other jobs differs",
        ),
        (
            [job(0, 1), NEW, *JOBS[1:4], NEW, *JOBS[4:]],
            "2 jobs inserted (2 LOAD); 1 field of 1 job differs",
        ),
        (
            [*JOBS[:3], NEW, *JOBS[3:9], Job("LOAD", [65546 + 7]), job(10, 2), JOBS[11]],
            "1 job LOAD inserted before job 3; 3 fields of 2 jobs differ",
        ),
    ],
)
def test_two_streams_in_one_sentence(jobs: list[Job], expected: str) -> None:
    assert sentence(jobs) == expected


@pytest.mark.parametrize("jobs", [INSERTED, LEFT_OUT, MOVED, ALL, [*JOBS[:10], NEW, *JOBS[:2]]])
def test_the_view_and_the_shell_show_the_rows_of_diff(jobs: list[Job]) -> None:
    bad = capture("bad", jobs)
    rows = differences(GOOD, bad)
    model, answer = DiffModel(GOOD, bad), differing(GOOD, bad)
    assert sorted(row.key for row in model.rows) == sorted(row.key for row in rows)
    values = {row.key: row for row in rows}
    for shown in model.rows:
        row = values[shown.key]
        if shown.of_job:
            assert (shown.a, shown.b) == (row.a or "–", row.b or "–")
        else:
            assert (shown.hex_a, shown.hex_b) == (f"{row.a:#x}", f"{row.b:#x}")
            assert shown.xor == row.a ^ row.b
    text = streams_differ(rows, COUNT)
    assert model.summary.startswith(text)
    assert text in str(answer).splitlines()
    first = [row.of_job for row in model.rows]
    assert first == sorted(first, reverse=True), "jobs come first"
    common = COUNT - sum(row.a is not None for row in rows if row.register == "(job)")
    fields = sum(row.register != "(job)" for row in rows)
    assert model.equal == 2 * common - fields


def test_what_one_row_of_a_job_says() -> None:
    inserted = DiffModel(GOOD, capture("b", INSERTED)).rows
    assert [(row.line, row.meaning) for row in inserted] == [
        ("job 3 of b (LOAD) inserted before job 3",) * 2
    ]
    assert "job 2 (ALU) moved to 8" in DiffModel(GOOD, capture("b", MOVED)).to_markdown()
    # sets are compared by number
    both = DiffModel(CaptureSet((GOOD,)), CaptureSet((capture("b", INSERTED),)))
    assert both.streams == ""


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        (INSERTED, "job 3 of BAD (LOAD) inserted before job 3"),
        ([*JOBS, NEW], "job 12 of BAD (LOAD) inserted at the end"),
        (LEFT_OUT, "job 7 (GEMM) left out"),
        (MOVED, "job 2 (ALU) moved to 8"),
    ],
)
def test_a_job_that_breaks_it_is_named_wherever_a_bisection_speaks(
    jobs: list[Job], expected: str, tmp_path: Path
) -> None:
    jobs = list(jobs)
    jobs[0] = job(0, 1)  # one field differs, too
    bad = capture("bad", jobs)

    def oracle(tried: Capture) -> str:
        return (
            "pass" if [one.block for one in tried.jobs] == [one.block for one in JOBS] else "fail"
        )

    found = bisect_fields(GOOD, bad, oracle)
    assert found.sentence.startswith(f"{expected} breaks it (over 99.9% certain after ")
    assert repr(found) == f"Bisected({found.sentence})"
    assert expected in found._repr_html_()
    assert found.records()[0]["sentence"] == found.sentence
    assert found.script().startswith(f"# {expected} breaks it")
    (broken,) = found.captures
    assert [one.words.tolist() for one in broken.jobs] == [
        one.words.tolist() for one in (JOBS[0], *jobs[1:])
    ]
    session = Bisection(GOOD, bad)
    texts = [str(session.trial)]
    while session.trial is not None:
        texts.append(str(session.trial))
        session.tell(oracle(session.trial.capture))
    assert any(f"\n  {expected}" in text for text in texts)
    view = BisectView(GOOD, bad)
    assert [row.field for row in view.model.parts if row.where == "job"] == [expected]
    assert "1 field and 1 job differ" in repr(view)
    assert expected in view.model._repr_html_()


def states(monkeypatch: pytest.MonkeyPatch, idle: Callable[[Capture, int], object]) -> None:
    """Let the target of these captures state a no-operation."""
    stated = Target("demo", "demo", {"x": {}}, MAPS, idle=idle)  # type: ignore[arg-type]
    monkeypatch.setattr("npulab.analysis.bisect.idle.stated_target", lambda _: stated)


def of_no_size(of: Capture, number: int) -> Job:
    return Job(of.jobs[number].block, [0])


def sizes(of: Capture) -> list[int]:
    return [int(one.words[0]) for one in of.jobs]


def test_at_most_four_jobs_are_tried_as_no_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    states(monkeypatch, of_no_size)
    new = [Job("LOAD", [200 + number]) for number in range(5)]
    jobs = [new[0], *JOBS[:3], new[1], *JOBS[3:6], new[2], *JOBS[6:9], new[3], *JOBS[9:], new[4]]

    def oracle(tried: Capture) -> str:
        return "fail" if max(sizes(tried)) >= 200 else "pass"

    found = bisect_fields(GOOD, capture("bad", jobs), oracle)
    assert len(found.groups) == 5
    assert [idle.matters for idle in found.idle] == ["what it does"] * 4
    assert sum(name.endswith("no-operation") for one in found.journal for name in one.subset) == 4
    assert found.sentence.endswith("; 1 job more not tried as a no-operation")


def test_a_job_of_a_group_is_tried_with_the_rest_of_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states(monkeypatch, of_no_size)
    tried_as = []

    def oracle(tried: Capture) -> str:
        tried_as.append(sizes(tried))
        kinds = [one >> 16 for one in sizes(tried)]
        if any(kinds) and 99 in sizes(tried):
            return "fail"
        return "hang" if any(kinds) and 0 in sizes(tried) else "pass"

    jobs = list(INSERTED)
    jobs[0] = job(0, 1)
    bad = capture("bad", jobs)
    found = bisect_fields(GOOD, bad, oracle)
    assert [len(group) for group in found.groups] == [2]
    assert tried_as[-1] == [sizes(bad)[0], 2, 3, 0, *range(4, COUNT + 1)]
    assert [idle[1:] for idle in found.idle] == [(("hang",), "open")]
    text = "it is open if the tokens of job 3 of BAD (LOAD) matter or what it does"
    assert f"; {text} (trial {found.queries}: hang with a no-operation in its place)" in (
        found.sentence
    )
    stopped = bisect_fields(GOOD, bad, oracle, flake_rate=0.02)
    assert "hang with a no-operation in its place, if that is no error)" in stopped.sentence


def test_a_no_operation_that_is_no_job_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def oracle(tried: Capture) -> str:
        return "fail" if 99 in sizes(tried) else "pass"

    bad = capture("bad", INSERTED)
    for given, words in (
        ("NOP", "target demo: idle of job 3 of bad: got str 'NOP', allowed is a Job or None"),
        (Job("NOP", [0]), "got block NOP, allowed is one of LOAD, GEMM, ALU"),
    ):
        states(monkeypatch, lambda _, __, given=given: given)
        with pytest.raises((TypeError, ValueError), match=words):
            bisect_fields(GOOD, bad, oracle)
    states(monkeypatch, lambda _, __: None)
    assert "no-operation" not in bisect_fields(GOOD, bad, oracle).sentence
    states(monkeypatch, of_no_size)
    view = BisectView(GOOD, bad, oracle)
    view.model.run(wait=True)
    assert view.model.result.idle[0].matters == "what it does"
    moved = bisect_fields(
        GOOD, capture("bad", MOVED), lambda tried: "fail" if tried != GOOD else "pass"
    )
    assert moved.idle == ()


def test_a_no_operation_passes_the_tokens_of_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens((Place("LOAD", "load"),), (Pass("load", "kind", "push", "compute"),))
    stated = Target("demo", "demo", {"x": {}}, MAPS, idle=of_no_size, tokens=tokens)
    monkeypatch.setattr("npulab.analysis.bisect.idle.stated_target", lambda _: stated)
    jobs = [*JOBS[:3], Job("LOAD", [99 + 65536]), *JOBS[3:]]
    words = "pushes to none, allowed is a job of unit load that pops of none and pushes to compute"
    with pytest.raises(ValueError, match=words):
        bisect_fields(
            GOOD, capture("bad", jobs), lambda tried: "fail" if len(tried.jobs) > COUNT else "pass"
        )
