"""The jobs of a capture, a line each: which fields matter, which jobs are meant, how a line is cut."""

from __future__ import annotations

import io
import json
import random
import re

import pytest
from conftest import CAPTURES
from rich.console import Console

import npulab
from npulab.captures.capture import Capture, Job
from npulab.captures.lines import LEGEND, chosen_tasks, lines_of
from npulab.captures.listing import Decoded
from npulab.cli import main, terminal
from npulab.registers.map import RegisterMap

OPCODE = {"field": "opcode", "lsb": 0, "width": 3, "value": "enum:opcode"}
ENUMS = {"opcode": {0: "LOAD", 1: "ALU"}, "kind": {0: "inp", 1: "wgt"}}
ROWS = {
    "LOAD": [
        {"field": "memory", "lsb": 4, "width": 2, "value": "enum:kind"},
        {"field": "size", "lsb": 8, "width": 8},
        {"field": "base", "lsb": 16, "width": 16, "address": "yes"},
    ],
    "ALU": [
        {"register": "A", "field": "imm", "lsb": 8, "width": 8},
        {"register": "B", "offset": 4, "field": "imm", "lsb": 0, "width": 8, "value": "signed"},
    ],
}
MAPS = {
    block: RegisterMap([{"block": block, **row} for row in (OPCODE, *rows)], enums=ENUMS)
    for block, rows in ROWS.items()
}
SEVERAL = CAPTURES / "ane" / "sim-concat"


def load(memory: int, size: int, base: int = 0) -> Job:
    return Job("LOAD", [16 * memory + 256 * size + 65536 * base])


def alu(first: int, second: int, label: str = "") -> Job:
    return Job("ALU", [1 + 256 * first, second], label=label)


def capture(*jobs: Job) -> Capture:
    return Capture("a", "demo", "x", jobs, maps=MAPS)


STREAM = capture(
    load(0, 4), load(1, 9), load(0, 4, 8), load(0, 4, 8), load(1, 0, 8), alu(0, 255), alu(0, 0)
)


def test_a_line_has_what_differs_and_what_is_not_0() -> None:
    lines = lines_of(STREAM).lines
    assert [(line.kind, line.like) for line in lines] == [
        ("LOAD inp", None),
        ("LOAD wgt", None),
        ("LOAD inp", 0),
        ("LOAD inp", 2),
        ("LOAD wgt", 1),
        ("ALU", None),
        ("ALU", 5),
    ]
    assert [line.fields for line in lines] == [
        "size 4",
        "memory wgt, size 9",
        "base 0x00000008 · size 4",
        "as job 2 · size 4, base 0x00000008",
        "size 0, base 0x00000008 · memory wgt",
        "B.imm -1",
        "B.imm 0",
    ], "the opcode is the block; a name that two registers have is told with the register"
    assert lines_of(capture(alu(0, 0), alu(0, 0))).lines[1].fields == "as job 0"
    assert lines_of(capture(alu(0, 0))).lines[0].fields == ""


def test_every_line_says_what_the_words_say() -> None:
    rng = random.Random(3)
    for _ in range(50):
        jobs = []
        for _ in range(rng.randrange(1, 20)):
            if rng.random() < 0.5:
                jobs.append(load(rng.randrange(2), rng.randrange(3), rng.randrange(3)))
            else:
                jobs.append(alu(rng.randrange(3), rng.randrange(3)))
        one = capture(*jobs)
        last: dict[str, tuple[int, dict[str, int]]] = {}
        for line, job in zip(lines_of(one).lines, jobs, strict=True):
            raws = {}
            for _, item, raw in job.values(MAPS):
                name = item.name
                if name == "imm":
                    name = f"{item.register}.{name}"
                raws[name] = raw
            del raws["opcode"]
            like, before = last.get(line.kind, (None, raws))
            assert line.like == like
            changed = [name for name in raws if raws[name] != before[name]]
            assert [text.split()[0] for text in line.changed] == changed
            others = [name for name in raws if raws[name] and name not in changed]
            assert [text.split()[0] for text in line.others] == others
            last[line.kind] = line.task, raws


def test_names_have_a_column_if_a_job_has_one() -> None:
    assert "name" not in str(lines_of(STREAM)).splitlines()[1].split()
    named = lines_of(capture(load(0, 1), alu(0, 1, "layer 2")))
    assert str(named).splitlines()[1].split() == ["task", "job", "name", "fields"]
    assert str(named).splitlines()[3].split() == ["1", "ALU", "layer", "2", "B.imm", "1"]


def test_a_line_is_cut_to_the_terminal_with_a_count_but_not_in_a_pipe() -> None:
    several = capture(*(load(1, 9 + n, 5 + n) for n in range(20)))
    file = io.StringIO()
    console = Console(file=file, width=40, height=1000, force_terminal=True, color_system=None)
    terminal.print_parts(lines_of(several).parts[1:2], console)
    lines = file.getvalue().splitlines()
    assert len(lines) == 21
    assert max(map(len, lines)) <= 40
    assert re.fullmatch(r"7 +LOAD +size 16 … 2 more", lines[8].rstrip())
    whole = str(lines_of(several)).splitlines()
    assert whole[9].endswith("size 16, base 0x0000000c · memory wgt")
    assert whole[-1] == LEGEND


def test_jobs_are_chosen_by_number_and_block() -> None:
    assert chosen_tasks(STREAM) == list(range(7))
    assert chosen_tasks(STREAM, "3-5, 0") == [0, 3, 4, 5]
    assert chosen_tasks(STREAM, "3-6", "ALU") == [5, 6]
    assert lines_of(STREAM, block="ALU").table["task"].tolist() == [5, 6]
    for text, words in {
        "7": "--task: got 7, allowed are the jobs of a, 0 to 6",
        "5-3": "--task: got 5-3, allowed are the jobs of a, 0 to 6",
        "x": "--task: got 'x', allowed is the number of a job, or a range such as 3-7",
        "": "--task: got '', allowed is the number",
        "-1": "--task: got '-1', allowed is the number",
    }.items():
        with pytest.raises((ValueError, LookupError), match=f"^{re.escape(words)}"):
            chosen_tasks(STREAM, text)
    with pytest.raises(LookupError, match=r"--block: got 'LOD', allowed are .* ALU, LOAD; near is"):
        chosen_tasks(STREAM, None, "LOD")


def shell(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    assert main([*map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_shell_lists_several_jobs_and_shows_those_that_are_chosen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    of = npulab.load(SEVERAL)
    listed = shell(capsys, "show", SEVERAL)
    numbers = [line.split()[0] for line in listed if re.match(r"\d+ ", line)]
    assert numbers == [str(task) for task in range(len(of.jobs))]
    assert listed[-1].startswith("--task N, --block NAME")
    whole = [json.loads(line) for line in shell(capsys, "show", SEVERAL, "--all", "--json")]
    assert {row["task"] for row in whole} == set(range(len(of.jobs)))
    assert shell(capsys, "show", SEVERAL, "--json") == shell(
        capsys, "show", SEVERAL, "--all", "--json"
    )
    block = of.jobs[1].block
    rows = [json.loads(line) for line in shell(capsys, "show", SEVERAL, "--task", "1", "--json")]
    assert rows == [row for row in whole if row["task"] == 1]
    chosen = {task for task, job in enumerate(of.jobs) if job.block == block}
    rows = [json.loads(line) for line in shell(capsys, "show", SEVERAL, "--block", block, "--json")]
    assert {row["task"] for row in rows} == chosen
    one = next(row for row in whole if row["task"] == 1)
    name = ".".join([one["block"], one["register"], one["field"]])
    rows = [json.loads(line) for line in shell(capsys, "show", SEVERAL, "--field", name, "--json")]
    assert rows
    assert {(row["block"], row["register"], row["field"]) for row in rows} == {
        (one["block"], one["register"], one["field"])
    }


def test_one_job_is_shown_whole_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    path = CAPTURES / "vivante" / "update4-mesa"
    assert shell(capsys, "show", path) == shell(capsys, "show", path, "--all")
    assert str(Decoded(npulab.load(path))).splitlines() == shell(capsys, "show", path)
    assert main(["show", str(CAPTURES / "heron" / "sweep-jobs.npz"), "--task", "1"]) == 2
    assert "--task: got" in capsys.readouterr().err
