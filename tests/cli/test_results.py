"""Answers say what they are by themselves: the shell prints their text or their records and adds
nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import CAPTURES
from test_cli import few, made_sweep, run  # noqa: F401 - fixtures

import npulab
import npulab.analysis.mismatch.model_run
from npulab.analysis.checks import Checks
from npulab.analysis.laws.summary import Summary
from npulab.analysis.sides import differing, load_sides
from npulab.captures.listing import Contents, Decoded, Listing, Wanted
from npulab.models.read import Listed

VIVANTE = CAPTURES / "vivante"
MESA, VENDOR = VIVANTE / "update4-mesa", VIVANTE / "update4-vendor"


def answers(folder: Path, few: Path) -> dict[str, tuple[list[Any], Any]]:
    """A command line and the answer that it prints, by what it is."""
    model, sweep = folder / "m.tflite", made_sweep(folder / "s.npz")
    model.write_bytes(
        npulab.single_op_model(
            npulab.target("vivante").lift(npulab.load(VIVANTE / "sim-1x1")).layer
        )
    )
    pair = [VIVANTE / "sim-3x3-same", VIVANTE / "sim-other-driver"]
    laws = npulab.find_laws(npulab.load_sweep(sweep), nuisance=["w1"])
    return {
        "list": (["list", VIVANTE], Listing(npulab.load_all(VIVANTE).captures)),
        "show": (["show", MESA, "--unknown"], Decoded(npulab.load(MESA), Wanted(unknown=True))),
        "sweep": (["show", sweep], Contents(npulab.load_sweep(sweep))),
        "model": (["show", model, "--form", "later"], Listed(npulab.read_model(model), "later")),
        "diff": (["diff", MESA, VENDOR], differing(npulab.load(MESA), npulab.load(VENDOR))),
        "sweeps": (["diff", sweep, sweep], differing(*load_sides(sweep, sweep))),
        "check": (
            ["check", few],
            Checks([npulab.check(capture) for capture in npulab.load_all(few)]),
        ),
        "run": (
            ["check", VIVANTE / "sim-1x1", "--model", model],
            npulab.analysis.mismatch.model_run.check_run([npulab.load(VIVANTE / "sim-1x1")], model),
        ),
        "bisect": (
            ["bisect", *pair, "--device", "simulated"],
            npulab.bisect_fields(*map(npulab.load, pair), npulab.Simulated()),
        ),
        "laws": (
            ["laws", sweep, "--plan", 2, "--nuisance", "w1"],
            Summary(npulab.load_sweep(sweep), laws, laws.open, laws.next_captures(2)),
        ),
    }


def test_the_shell_prints_what_answers_say_of_themselves(
    run: Any, few: Path, tmp_path: Path
) -> None:
    for what, (arguments, answer) in answers(tmp_path, few).items():
        _, lines, _ = run(*arguments)
        assert "\n".join(lines) == str(answer), what
        _, lines, _ = run(*arguments, "--json")
        assert [json.loads(line) for line in lines] == json.loads(json.dumps(answer.records())), (
            what
        )


def test_a_comparison_says_where_it_differs() -> None:
    found = npulab.check(npulab.load(VIVANTE / "sim-1x1").with_fields(post_shift=8))
    head, *lines = str(found).splitlines()
    assert head == "sim-1x1 (simulated): differs"
    assert lines[1].startswith("  first difference at (row, column, channel) ")
    (row,) = found.records()
    assert (row["verdict"], row["mismatches"], row["provenance"]) == (
        "differs",
        found.mismatches,
        "simulated, changed",
    )


@pytest.mark.parametrize(
    ("commands", "unwanted"),
    [
        (
            [["list", str(VIVANTE)], ["check", str(MESA)]],
            "npulab.notebook npulab.analysis.laws.search npulab.analysis.bisect tqdm rich pandas "
            "matplotlib anywidget ipywidgets",
        ),
        ([["new", "--help"]], "npulab.notebook npulab.analysis"),
        ([["--help"]], "numpy pandas"),
    ],
)
def test_commands_load_what_they_need(commands: list[list[str]], unwanted: str) -> None:
    """In a pipe, which needs neither colours nor a bar that moves."""
    code = (
        f"import sys, npulab.cli\nfor command in {commands!r}:\n"
        "    try: npulab.cli.main(command)\n    except SystemExit: pass\n"
        f"print([name for name in {unwanted.split()} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "\x1b" not in done.stdout
