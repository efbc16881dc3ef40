"""A public function that is given something of another type says in a sentence what it got and what makes the right thing."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CAPTURES

import npulab
from npulab.captures.capture import Capture

PACKAGE = Path(npulab.__file__).parent
SIM = CAPTURES / "vivante/sim-1x1"
WORDS = np.arange(20, dtype=np.uint32)[:, None]
Q = npulab.QuantParams(0.1, 0)
CONV = npulab.Conv2D(np.zeros((1, 1, 1, 1), np.int8), np.zeros(1, np.int32), (2, 2, 1), input_q=Q, weight_q=Q, output_q=Q)


def _none() -> Path:
    return Path("none")


# by public name: calls with a value in the place of one argument, and what that may be (of the kinds below)
CALLS: dict[str, list[tuple[Callable[[Any], Any], set[str]]]] = {
    "read_map": [(lambda v: npulab.read_map(v), {"text"})],
    "write_map": [(lambda v: npulab.write_map(v, _none()), set())],
    "find_layout": [(lambda v: npulab.find_layout(v, v), set())],
    "accumulate": [(lambda v: npulab.accumulate(v, np.zeros((2, 2, 1), np.int8)), set())],
    "emulate": [(lambda v: npulab.emulate(v, np.zeros((2, 2, 1), np.int8)), set()), (lambda v: npulab.emulate(CONV, v), set())],
    "identify_rounding": [(lambda v: npulab.identify_rounding(v, v, CONV), set())],
    "read_model": [(lambda v: npulab.read_model(v), {"text"})],
    "single_op_model": [(lambda v: npulab.single_op_model(v), set())],
    "CaptureSet": [(lambda v: npulab.CaptureSet(v), set())],
    "Compiler": [(lambda v: npulab.Compiler(v), set())],
    "Command": [(lambda v: npulab.Command(v), {"text", "mapping"})],
    "load": [(lambda v: npulab.load(v), {"text"})],
    "load_all": [(lambda v: npulab.load_all(v), {"text"})],
    "save": [(lambda v: npulab.save(v, _none()), {"capture"}), (lambda v: npulab.save(npulab.load(SIM), v), {"text"})],
    "Sweep": [(lambda v: npulab.Sweep(v, {}), set())],
    "load_sweep": [(lambda v: npulab.load_sweep(v), {"text"})],
    "bisect_fields": [(lambda v: npulab.bisect_fields(v, v, npulab.Simulated()), {"capture"})],
    "check": [(lambda v: npulab.check(v), {"capture"})],
    "diff": [(lambda v: npulab.diff(v, v), {"capture"}), (lambda v: npulab.diff(npulab.load(SIM), v), {"capture"})],
    "explain": [(lambda v: npulab.explain(v), {"capture"})],
    "correlate": [(lambda v: npulab.correlate(v), set())],
    "draft": [(lambda v: npulab.draft(v), {"text", "number", "capture"})],
    "explore": [(lambda v: npulab.explore(v, budget=2), set())],
    "find_laws": [(lambda v: npulab.find_laws(v), set()),
                  (lambda v: npulab.find_laws(WORDS, {"a": range(20)}, earlier=v), {"nothing"})],
    "hypotheses": [(lambda v: npulab.hypotheses(v), set())],
    "scan_capture": [(lambda v: npulab.scan_capture(v, npulab.Simulated()), {"capture"}),
                     (lambda v: npulab.scan_capture(npulab.load(SIM), v), set())],
    "unread": [(lambda v: npulab.unread(v), {"capture"})],
    "session": [(lambda v: npulab.session(v), {"text", "nothing"})],
    "RegisterView": [(lambda v: npulab.RegisterView(v), {"capture"}),
                     (lambda v: npulab.RegisterView(npulab.load(SIM), v), {"capture", "nothing"}),
                     (lambda v: npulab.RegisterView(npulab.load(SIM), laws=v), {"nothing"})],
    "bench": [(lambda v: npulab.bench(v), set())],
    "target": [(lambda v: npulab.target(v), set())]}
# values, kinds of layers and errors, and what takes no capture, sweep, path, layer or laws
OTHERS = {"FormatError", "ENGINES", "RULES", "Add", "Conv1D", "Conv2D", "FullyConnected", "Network", "Pool2D", "QuantParams", "Capture",
          "Manual", "Simulated", "targets", "rounding_probes"}


def wrong() -> dict[str, Any]:
    return {"text": "x.notthere", "number": 5, "nothing": None, "list": [1, 2], "mapping": {"a": 1}, "capture": npulab.load(SIM),
            "captures": [npulab.load(SIM)], "object": object()}


def test_every_public_name_is_looked_at() -> None:
    with (PACKAGE / "names.csv").open(newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        public = {row["name"] for row in rows if not row["now"]}
    assert public == {*CALLS, *OTHERS} - {"target"}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_type_is_told_in_a_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for call, right in CALLS[name]:
        for kind, value in wrong().items():
            if kind in right or (name == "draft" and kind == "list"):
                continue
            if isinstance(value, list) and isinstance(value[0], Capture) and name == "CaptureSet":
                continue
            with pytest.raises((TypeError, ValueError, LookupError, FileNotFoundError)) as told:
                call(value)
            text = str(told.value.args[0])
            assert "\n" not in text, (kind, text)
            assert "got " in text, (kind, text)
            assert "allowed" in text, (kind, text)
            raised = told.traceback[-1].path
            assert PACKAGE in Path(raised).parents, (kind, text)
    assert list(tmp_path.iterdir()) == []


def test_what_makes_the_right_thing_is_named() -> None:
    capture = npulab.load(SIM)
    with pytest.raises(TypeError, match=r"RegisterView: got str 'x', allowed is a Capture, as npulab\.load gives"):
        npulab.RegisterView("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"find_laws: got Capture, allowed is a Sweep, as npulab\.load_sweep\(path\)"):
        npulab.find_laws(capture)
    with pytest.raises(TypeError, match=r"explore: source: got Capture, allowed is a source, as npulab\.Compiler\(command\)"):
        npulab.explore(capture)  # type: ignore[arg-type]
