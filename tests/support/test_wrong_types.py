"""A public function that is given something of another type says in a sentence what it got and
what makes the right thing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CAPTURES

import npulab
from npulab.captures.capture import Capture, Job
from npulab.notebook import widgets
from npulab.registers.map import RegisterMap

PACKAGE = Path(npulab.__file__).parent
SIM = CAPTURES / "vivante/sim-1x1"
TRAFFIC = npulab.load(SIM)
WORDS_FILE = SIM / "coefficients.bin"
WORDS = np.arange(20, dtype=np.uint32)[:, None]
Q = npulab.QuantParams(0.1, 0)
CONV = npulab.Conv2D(
    np.zeros((1, 1, 1, 1), np.int8),
    np.zeros(1, np.int32),
    (2, 2, 1),
    input_q=Q,
    weight_q=Q,
    output_q=Q,
)


def _none() -> Path:
    return Path("none")


# by public name: calls with a value in the place of one argument, and what that may be (of the
# kinds below)
CALLS: dict[str, list[tuple[Callable[[Any], Any], set[str]]]] = {
    "read_map": [(npulab.read_map, {"text"})],
    "write_map": [(lambda v: npulab.write_map(v, _none()), set())],
    "find_layout": [(lambda v: npulab.find_layout(v, v), set())],
    "accumulate": [(lambda v: npulab.accumulate(v, np.zeros((2, 2, 1), np.int8)), set())],
    "emulate": [
        (lambda v: npulab.emulate(v, np.zeros((2, 2, 1), np.int8)), set()),
        (lambda v: npulab.emulate(CONV, v), set()),
    ],
    "identify_rounding": [(lambda v: npulab.identify_rounding(v, v, CONV), set())],
    "read_model": [(npulab.read_model, {"text"})],
    "lower_model": [
        (lambda v: npulab.lower_model(v, "vivante"), {"text"}),
        (lambda v: npulab.lower_model(npulab.single_op_model(CONV), v), {"text"}),
    ],
    "single_op_model": [(npulab.single_op_model, set())],
    "CaptureSet": [(npulab.CaptureSet, {"captures"})],
    "Compiler": [(npulab.Compiler, set())],
    "Command": [(npulab.Command, {"text", "mapping"})],
    "load": [(npulab.load, {"text"})],
    "load_all": [(npulab.load_all, {"text"})],
    "save": [
        (lambda v: npulab.save(v, _none()), {"capture"}),
        (lambda v: npulab.save(TRAFFIC, v), {"text"}),
    ],
    "Sweep": [(lambda v: npulab.Sweep(v, {}), set())],
    "load_sweep": [(npulab.load_sweep, {"text"})],
    "read_words": [
        (lambda v: npulab.read_words(v, 1), {"text"}),
        (lambda v: npulab.read_words(WORDS_FILE, v), {"number", "nothing"}),
    ],
    "roles": [(npulab.roles, {"captures"})],
    "bisect_fields": [(lambda v: npulab.bisect_fields(v, v, npulab.Simulated()), {"capture"})],
    "check": [(npulab.check, {"capture"})],
    "diff": [
        (lambda v: npulab.diff(v, v), {"capture"}),
        (lambda v: npulab.diff(TRAFFIC, v), {"capture"}),
    ],
    "explain": [(npulab.explain, {"capture"})],
    "correlate": [(npulab.correlate, set())],
    "draft": [(npulab.draft, {"text", "number", "capture", "list"})],
    "explore": [(lambda v: npulab.explore(v, budget=2), set())],
    "find_constants": [
        (lambda v: npulab.find_constants(v, {"a": [0.5, 0.25]}), set()),
        (lambda v: npulab.find_constants([b"ab", b"cd"], v), set()),
    ],
    "find_laws": [
        (npulab.find_laws, set()),
        (lambda v: npulab.find_laws(WORDS, {"a": range(20)}, earlier=v), {"nothing"}),
    ],
    "hypotheses": [(npulab.hypotheses, set())],
    "scan_capture": [
        (lambda v: npulab.scan_capture(v, npulab.Simulated()), {"capture"}),
        (lambda v: npulab.scan_capture(TRAFFIC, v), set()),
    ],
    "ignored_fields": [(npulab.ignored_fields, {"capture"})],
    "session": [(npulab.session, {"text", "nothing"})],
    "RegisterView": [
        (npulab.RegisterView, {"capture"}),
        (lambda v: npulab.RegisterView(TRAFFIC, v), {"capture", "nothing"}),
        (lambda v: npulab.RegisterView(TRAFFIC, laws=v), {"nothing"}),
    ],
    "bench": [(npulab.bench, set())],
    "target": [(npulab.target, set())],
}
JOB = TRAFFIC.jobs[0]
MAP = TRAFFIC.maps["NN"]
ROW = {"offset": 0, "field": "a", "lsb": 0, "width": 1}
FIELD = next(iter(MAP)).name
draft = cache(lambda: npulab.draft(MAP))  # no call changes it: each of them raises
ADDRESSED = RegisterMap([{"offset": 0x1000, "register": "R", **ROW}], dense=False)


def _capture(**parts: Any) -> Capture:
    return npulab.Capture(**{"name": "a", "target": "vivante", "chip": "", "jobs": (JOB,), **parts})


# what further arguments and methods are given wrongly: by what it is, the call, and the kinds of
# values that are right
MORE: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    "Capture: jobs": (lambda v: _capture(jobs=v), set()),
    "Capture: buffers": (lambda v: _capture(buffers=v), set()),
    "Capture: addresses": (lambda v: _capture(addresses=v), {"mapping"}),
    "Capture: parameters": (lambda v: _capture(parameters=v), {"mapping"}),
    "Capture: maps": (lambda v: _capture(maps=v), set()),
    "Capture: provenance": (lambda v: _capture(provenance=v), set()),
    "with_job": (TRAFFIC.with_job, set()),
    "with_job: task": (lambda v: TRAFFIC.with_job(JOB, v), {"nothing"}),
    "Capture.with_words": (TRAFFIC.with_words, set()),
    "Capture.with_words: task": (lambda v: TRAFFIC.with_words(JOB.words, v), {"nothing"}),
    "with_fields: task": (lambda v: TRAFFIC.with_fields(task=v, **{FIELD: 1}), {"nothing"}),
    "with_fields: value": (lambda v: TRAFFIC.with_fields(**{FIELD: v}), set()),
    "with_buffers": (lambda v: TRAFFIC.with_buffers(output=v), set()),
    "Capture.words_of": (TRAFFIC.words_of, set()),
    "CaptureSet": (lambda v: npulab.CaptureSet((TRAFFIC,))[v], set()),
    "Job: words": (lambda v: Job("NN", v), {"list"}),
    "Job: start": (lambda v: Job("NN", JOB.words, start=v), {"nothing"}),
    "from_writes": (lambda v: Job.from_writes("NN", v, MAP), set()),
    "from_writes: registers": (lambda v: Job.from_writes("NN", [(0, 1)], v), {"map"}),
    "from_writes: after": (lambda v: Job.from_writes("NN", [(0, 1)], MAP, v), {"nothing"}),
    "split": (lambda v: Job.split(v, MAP), set()),
    "split: maps": (lambda v: Job.split([(0, 1)], v), {"map"}),
    "split: after": (lambda v: Job.split([(0, 1)], MAP, v), set()),
    "Job.read_with": (JOB.read_with, {"map"}),
    "Job.with_words": (lambda v: JOB.with_words(v, MAP), set()),
    "Job.with_words: registers": (lambda v: JOB.with_words(JOB.words, v), {"map"}),
    "with_writes": (lambda v: JOB.with_writes(v, MAP), set()),
    "with_writes: registers": (lambda v: JOB.with_writes({0: 1}, v), {"map"}),
    "Job.values": (JOB.values, set()),
    "RegisterMap": (RegisterMap, set()),
    "RegisterMap: row": (lambda v: RegisterMap([v]), set()),
    "RegisterMap: features": (lambda v: RegisterMap([ROW], features=v), {"mapping"}),
    "RegisterMap: enums": (lambda v: RegisterMap([ROW], enums=v), {"nothing", "mapping"}),
    "RegisterMap: by_address": (lambda v: RegisterMap([ROW], by_address=v), {"nothing", "mapping"}),
    "RegisterMap.read": (RegisterMap.read, {"text"}),
    "from_struct": (RegisterMap.from_struct, set()),
    "select": (MAP.select, {"mapping"}),
    "starting": (MAP.starting, {"mapping"}),
    "of_block": (MAP.of_block, {"text"}),
    "registers[]": (lambda v: MAP[v], set()),
    "key": (MAP.key, set()),
    "decode": (MAP.decode, set()),
    "encode": (MAP.encode, set()),
    "encode: value": (lambda v: MAP.encode({FIELD: v}), {"list", "numbers"}),
    "status": (MAP.status, {"nothing"}),
    "place": (ADDRESSED.place, set()),
    "labels": (MAP.labels, set()),
    "unmapped": (lambda v: MAP.unmapped("NN", v), {"number"}),
    "register_at": (MAP.register_at, {"number"}),
    "holds": (MAP.holds, {"number"}),
    "state": (MAP.state, set()),
    "Network": (npulab.Network, set()),
    "Network: layer": (lambda v: npulab.Network((v,)), set()),  # type: ignore[arg-type]
    "Network: inputs": (lambda v: npulab.Network((CONV,), v), set()),
    "Network: outputs": (lambda v: npulab.Network((CONV,), (), v), set()),
    "Target.maps": (lambda v: npulab.target("vivante").maps(v), set()),
    "load: case": (lambda v: npulab.load(SIM, v), {"nothing"}),
    "read_words: parameters": (lambda v: npulab.read_words(WORDS_FILE, 1, v), {"nothing", "text"}),
    "read_words: big_endian": (
        lambda v: npulab.read_words(WORDS_FILE, 1, big_endian=v),
        set(),
    ),
    "load_sweep: chip": (lambda v: npulab.load_sweep(SIM, chip=v), {"nothing"}),
    "load_sweep: role": (lambda v: npulab.load_sweep(SIM, role=v), {"nothing"}),
    "load_sweep: block": (lambda v: npulab.load_sweep(SIM, block=v), {"nothing"}),
    "load_sweep: job": (lambda v: npulab.load_sweep(SIM, job=v), {"nothing"}),
    "Roles.sweep": (lambda v: npulab.roles([TRAFFIC]).sweep(v), set()),
    "explore: role": (
        lambda v: npulab.explore(npulab.Compiler("{model}"), role=v, budget=2),
        {"nothing", "text"},
    ),
    "load_sweep: target": (lambda v: npulab.load_sweep(SIM, target=v), {"nothing"}),
    "write_map: to": (lambda v: npulab.write_map(draft().table, _none(), to=v), set()),
    "write_map: features": (
        lambda v: npulab.write_map(draft().table, _none(), "csv", v),
        {"nothing"},
    ),
    "draft: features": (lambda v: npulab.draft(1, features=v), {"mapping"}),
    "draft: block": (lambda v: npulab.draft(1, block=v), {"text"}),
    "Draft.split: at": (lambda v: draft().split(FIELD, v), set()),
    "Draft.split: widths": (lambda v: draft().split(FIELD, widths=v), set()),
    "Draft.retype: names": (lambda v: draft().retype(FIELD, names=v), {"nothing"}),
    "Draft.replay": (lambda v: draft().replay(v), set()),
    "Draft.decode": (lambda v: draft().decode(v), {"capture"}),
    "Draft.decode: block": (lambda v: draft().decode(TRAFFIC, v), set()),
    "Draft.block_of": (lambda v: draft().block_of(v), {"capture"}),
    "Draft.save": (lambda v: draft().save(v), set()),
    "Sweep: registers": (lambda v: npulab.Sweep(WORDS, {"a": range(20)}, registers=v), {"nothing"}),
    "find_constants: builds": (
        lambda v: npulab.find_constants([b"ab", b"cd"], {"a": [0.5, 0.25]}, builds=v),
        {"nothing", "list"},
    ),
    "find_constants: most_factors": (
        lambda v: npulab.find_constants([b"ab", b"cd"], {"a": [0.5, 0.25]}, most_factors=v),
        set(),
    ),
    "find_laws: registers": (
        lambda v: npulab.find_laws(WORDS, {"a": range(20)}, registers=v),
        {"nothing"},
    ),
    "ignored_fields: progress": (lambda v: npulab.ignored_fields(TRAFFIC, v), set()),
    "RegisterView: task": (lambda v: npulab.RegisterView(TRAFFIC, task=v), {"nothing"}),
    "RegisterView: sweep": (
        lambda v: npulab.RegisterView(TRAFFIC, sweep=v),
        {"nothing", "capture"},
    ),
    "StreamView": (widgets.StreamView, {"capture"}),
    "SweepView": (widgets.SweepView, set()),
    "SweepView: laws": (
        lambda v: widgets.SweepView(npulab.Sweep(WORDS, {"a": range(20)}), v),
        {"nothing"},
    ),
    "WritesView": (widgets.WritesView, {"capture"}),
    "LawView": (widgets.LawView, set()),
    "OutputView": (widgets.OutputView, set()),
    "OperatorsView": (widgets.OperatorsView, set()),
    "OperatorsView: capture": (
        lambda v: widgets.OperatorsView([("conv", v)]),
        {"capture", "text", "path"},
    ),
    "MapEditor": (widgets.MapEditor, set()),
    "MapEditor: capture": (
        lambda v: widgets.MapEditor(draft(), v),
        {"nothing", "capture"},
    ),
    "ByteView": (widgets.ByteView, {"capture"}),
    "DiffView": (lambda v: widgets.DiffView(v, v), {"capture"}),
    "BisectView": (lambda v: widgets.BisectView(v, v), {"capture"}),
    "ExploreView": (widgets.ExploreView, set()),
}
# values, kinds of layers and errors, and what takes no capture, sweep, path, layer or laws
OTHERS = {
    "FormatError",
    "ENGINES",
    "RULES",
    "Add",
    "Conv1D",
    "Conv2D",
    "FullyConnected",
    "Network",
    "Pool2D",
    "QuantParams",
    "Capture",
    "Manual",
    "Simulated",
    "Target",
    "targets",
    "rounding_probes",
}


VALUES: dict[str, Callable[[], Any]] = {
    "text": lambda: "x.notthere",
    "number": lambda: 5,
    "nothing": lambda: None,
    "list": lambda: [1, 2],
    "mapping": lambda: {"a": 1},
    "capture": lambda: TRAFFIC,
    "captures": lambda: [TRAFFIC],
    "object": object,
}
MORE_VALUES = {"map": lambda: MAP, "numbers": lambda: np.zeros(3), "part": lambda: 0.5}
WORDS_OF_LIMITS = ("allowed", "it has", "the map has", "which is")
WORDS_OF_LIMITS += ("knows", "it holds", "are of", "there are")


def test_every_public_name_is_looked_at() -> None:
    assert set(npulab.__all__) == {*CALLS, *OTHERS}


def told(call: Callable[[Any], Any], value: Any, words: tuple[str, ...]) -> None:
    """A call is refused by the package, in one sentence with what it got and one of the words."""
    with pytest.raises((TypeError, ValueError, LookupError, FileNotFoundError)) as caught:
        call(value)
    text = str(caught.value.args[0])
    assert "\n" not in text, (value, text)
    assert "got " in text, (value, text)
    assert any(word in text for word in words), (value, text)
    assert PACKAGE in Path(caught.traceback[-1].path).parents, (value, text)


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_type_is_told_in_a_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for call, right in CALLS[name]:
        for kind in sorted(VALUES.keys() - right):
            told(call, VALUES[kind](), ("allowed",))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", MORE)
def test_a_wrong_argument_is_told_in_a_sentence(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call, right = MORE[what]
    for kind in sorted((VALUES | MORE_VALUES).keys() - right):
        told(call, (VALUES | MORE_VALUES)[kind](), WORDS_OF_LIMITS)
    assert list(tmp_path.iterdir()) == []


def test_buffers_are_bytes_or_arrays_of_one_byte_each() -> None:
    for data in (
        b"ab",
        bytearray(b"ab"),
        memoryview(b"ab"),
        np.array([97, 98], np.uint8),
        np.array([[97], [98]], np.int8),
    ):
        changed = TRAFFIC.with_buffers(output=data)  # type: ignore[arg-type]
        assert changed.buffers["output"] == b"ab"
        assert isinstance(changed.buffers["output"], bytes)
        assert changed.changed
    assert (
        TRAFFIC.with_buffers(output=np.frombuffer(TRAFFIC.buffers["output"], np.uint8)) is TRAFFIC
    )
    with pytest.raises(
        TypeError,
        match=r"^buffer output: got str 'x', allowed are bytes, or an array of uint8 or int8$",
    ):
        TRAFFIC.with_buffers(output="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^buffer output: got an array of float64, allowed"):
        TRAFFIC.with_buffers(output=np.zeros(3))


def test_tasks_are_numbers_of_jobs() -> None:
    assert TRAFFIC.with_fields(task=np.int64(0), **{FIELD: 0}).words.shape == TRAFFIC.words.shape
    for task in (1, -1):
        with pytest.raises(LookupError, match=rf"got task {task}, it has 0 to 0$"):
            TRAFFIC.with_words(JOB.words, task)
        with pytest.raises(LookupError, match=rf"got task {task}, it has 0 to 0$"):
            TRAFFIC.with_fields(task=task, **{FIELD: 1})


def test_a_single_name_is_no_list_of_features() -> None:
    with pytest.raises(
        TypeError, match=r"^select: features: got str 'nn_v8', allowed are names in a list"
    ):
        MAP.select("nn_v8")


def test_what_makes_the_right_thing_is_named() -> None:
    capture = TRAFFIC
    with pytest.raises(
        TypeError, match=r"RegisterView: got str 'x', allowed is a Capture, as npulab\.load gives"
    ):
        npulab.RegisterView("x")  # type: ignore[arg-type]
    with pytest.raises(
        TypeError,
        match=r"find_laws: got Capture, allowed is a Sweep, as npulab\.load_sweep\(path\)",
    ):
        npulab.find_laws(capture)
    with pytest.raises(
        TypeError,
        match=r"explore: source: got Capture, allowed is a source, as npulab\.Compiler\(command\)",
    ):
        npulab.explore(capture)  # type: ignore[arg-type]
