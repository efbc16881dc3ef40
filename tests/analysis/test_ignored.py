"""Fields that can change without ``lift`` noticing: on a target with known gaps, and on ours."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npulab
from npulab.analysis.ignored import GUESSED_HANG, HANG, OTHER, SAME, ignored_fields
from npulab.captures.capture import Capture, Job
from npulab.captures.target import Hang, Lifted, Range, Target, Unsupported
from npulab.registers.map import RegisterMap

CAPTURES = Path(__file__).parents[2] / "captures"
ROWS = [
    ("SIZE", 0, "rows", 0, 4),
    ("SIZE", 0, "ignored", 4, 3),
    ("SIZE", 0, "part", 8, 8),
    ("GO", 4, "go", 0, 1),
    ("GO", 4, "dead", 31, 1),
]
MAP = RegisterMap(
    [
        {
            "block": "JOB",
            "offset": offset,
            "register": register,
            "field": name,
            "lsb": lsb,
            "width": width,
        }
        for register, offset, name, lsb, width in ROWS
    ],
    dense=False,
)


def at_length(*cases: str) -> list[Any]:
    """Cases that take seconds each."""
    return [pytest.param(case, marks=pytest.mark.long) for case in cases]


def _values(capture: Capture) -> dict[str, Any]:
    job = capture.jobs[0]
    return MAP.decode(job.words) | {
        "start": job.start.words[0] if job.start else 0,
        "beside": dict(job.writes).get(64),
    }


def _lift(capture: Capture) -> Lifted:
    v = _values(capture)
    if not v["go"]:
        raise ValueError("nothing starts")
    return Lifted(
        npulab.Add((v["rows"], v["part"] // 16 + 1)), None, None
    )  # of part, four bits are read


def _simulate(capture: Capture) -> bytes:
    v = _values(capture)
    if v["dead"]:
        raise Hang("dead")
    return bytes([v["rows"], v["ignored"] & 1])


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Target]:
    known = {"owl": Target("owl", "", {"c": {}}, {"JOB": MAP}, lift=_lift, simulate=_simulate)}
    monkeypatch.setattr("npulab.analysis.ignored.target", known.__getitem__)
    return known


def _capture(writes: bool = False) -> Capture:
    words = MAP.encode({"rows": 3, "ignored": 4, "part": 32, "go": 1})
    job = Job("JOB", words)
    if writes:
        written = [(0, int(words[0])), (4, int(words[1])), (64, 7)]
        job = replace(
            Job.from_writes("JOB", written, MAP), start=Job("JOB", np.zeros(2, np.uint32))
        )
    return Capture("case", "owl", "c", (job,), maps={"JOB": MAP})


def test_fields_that_lift_does_not_look_at_are_found(made: dict[str, Target]) -> None:
    table = ignored_fields(_capture()).set_index("field")
    assert "rows" not in table.index
    assert "go" not in table.index
    assert table.loc["ignored", "unread"] == (5, 0, 3)
    assert table.loc["ignored", "all"]
    assert (
        table.loc["ignored", "effect"] == OTHER
    )  # bit 4 of the word changes what the device gives
    assert table.loc["part", "unread"] == (33,)
    assert not table.loc["part", "all"]
    assert table.loc["part", "effect"] == SAME
    assert table.loc["dead", "effect"] == GUESSED_HANG


def test_a_hang_that_an_rtl_confirmed_is_no_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    def simulate(capture: Capture) -> bytes:
        try:
            return _simulate(capture)
        except Hang as hang:
            hang.guessed = False
            raise

    owl = Target("owl", "", {"c": {}}, {"JOB": MAP}, lift=_lift, simulate=simulate)
    monkeypatch.setattr("npulab.analysis.ignored.target", {"owl": owl}.__getitem__)
    table = ignored_fields(_capture()).set_index("field")
    assert table.loc["dead", "effect"] == HANG


def test_what_is_tried_and_named(made: dict[str, Target]) -> None:
    table = ignored_fields(_capture()).set_index("field")
    assert {"w0_7_1", "w0_16_16", "w1_1_30"} <= {*table.index}
    assert table["tried"].max() <= 4


def test_registers_without_a_map_and_starts_are_looked_at_too(made: dict[str, Target]) -> None:
    table = ignored_fields(_capture(writes=True))
    assert "w16_0_32" in set(table["field"])
    assert (table["field"] == "rows").sum() == 1  # that of the start
    made["owl"] = replace(
        made["owl"], lift=lambda capture: Lifted(tuple(_values(capture).values()), None, None)
    )
    fields = set(ignored_fields(_capture(writes=True))["field"])
    assert "w16_0_32" not in fields
    assert "go" in fields  # of the start
    assert made["owl"].rule_of is None
    made["owl"] = replace(
        made["owl"], rule_of=lambda capture: f"rule {capture.jobs[0].start.words.tolist()}"
    )
    assert ignored_fields(_capture(writes=True)).empty


def test_what_is_replayed_is_looked_at_by_its_bytes(made: dict[str, Target]) -> None:
    def lift(capture: Capture) -> Any:
        raise Unsupported("no layer")

    made["owl"] = replace(made["owl"], lift=lift)
    with pytest.raises(
        ValueError, match=r"^ignored_fields: capture case cannot be lifted: no layer$"
    ):
        ignored_fields(_capture())
    made["owl"] = replace(
        made["owl"], replay=lambda capture: [Range("out", _simulate(replace(capture)))]
    )
    table = ignored_fields(_capture()).set_index("field")
    assert not {"rows", "dead"} & {*table.index}
    assert table.loc["ignored", "unread"] == (0,)
    assert table.loc["go", "all"]
    made["owl"] = replace(made["owl"], simulate=lift)
    assert set(ignored_fields(_capture())["effect"]) == {""}


def test_only_captures_are_taken() -> None:
    with pytest.raises(
        TypeError, match=r"^ignored_fields: got int, allowed is Capture, as npulab.load gives$"
    ):
        ignored_fields(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "case",
    [
        "nvdla/sim-average-pool",
        "onert/sim-uint8",
        *at_length("vivante/sim-3x3-stride2-relu", "nvdla/sim-add", "nvdla/sim-1x1-relu"),
        *at_length("ane/sim-add"),
    ],
)
def test_no_target_ignores_what_changes_its_devices_output_or_what_units_wait_for(
    case: str,
) -> None:
    table = ignored_fields(npulab.load(CAPTURES / case))
    wrong = table[(table["effect"] == OTHER) & ~table["address"]]
    assert wrong.empty, wrong.to_string()
    assert len(table) > 5  # and it does look
    if case.startswith("nvdla"):  # where the output goes is no part of a layer
        hangs = set(table[table["effect"].isin([HANG, GUESSED_HANG])]["field"])
        assert hangs <= {"DST_BASE_ADDR_LOW", "DST_BASE_ADDR_HIGH"}


def test_the_shell_says_what_is_not_read(
    made: dict[str, Target], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from npulab.cli.shell import main

    monkeypatch.setattr("npulab.captures.store.load", lambda path, case: _capture())
    assert main(["unread", "case", "--json"]) == 1  # a bit that nothing reads changes the output
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["field"]: row["effect"] for row in rows} == {
        "ignored": OTHER,
        "part": SAME,
        "dead": GUESSED_HANG,
    }
    assert main(["unread", "case", "--unknown"]) == 1
    assert "w0_7_1" in capsys.readouterr().out
    assert main(["unread", "case"]) == 1
    assert capsys.readouterr().out.endswith(
        f"and {len(ignored_fields(_capture())) - 3} fields without a name\n"
    )
    made["owl"] = replace(made["owl"], simulate=lambda capture: b"")
    assert main(["unread", "case"]) == 0
