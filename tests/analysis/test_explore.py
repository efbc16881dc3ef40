"""The closed loop: sources, what they refuse, what is kept on disk, and what the laws say of
layers to come.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from conftest import CAPTURES
from refusals import refused

import npulab
from npulab.analysis.explore import explore
from npulab.analysis.explore.loop import Explored
from npulab.analysis.explore.space import Possible, Rule, learnt_rules
from npulab.analysis.explore.storing import NAME, Store
from npulab.analysis.laws import Laws, find_laws
from npulab.captures.capture import Capture, Job
from npulab.captures.layers import OPS, complete_ranges, made
from npulab.captures.sources import Answer, Compiler, Lowered, reader_of
from npulab.registers.map import RegisterMap

WORD = {"block": "B", "lsb": 0, "width": 32}
MAP = RegisterMap(
    [{**WORD, "offset": 4 * n, "register": f"r{n}", "field": f"f{n}"} for n in range(3)]
)
RANGES: dict[str, Any] = {
    "input_h": (1, 40),
    "input_w": (1, 40),
    "input_c": (1, 9),
    "output_c": (1, 9),
    "kernel": [1, 3],
    "stride": [1, 2],
    "relu": [0, 1],
    "same": [1],
}


@dataclass
class Toy:
    """Words by formulas; it refuses some layers, and counts what it was asked. Of a ``still`` toy
    there is nothing to learn: it has the same words always."""

    salt: bool = False
    still: bool = False
    asked: list[Mapping[str, float]] = field(default_factory=list)
    dtype: str = "uint8"
    record: ClassVar[dict[str, str]] = {"source": "toy", "version": "1"}

    def __call__(self, parameters: Mapping[str, float], seed: int = 0) -> Answer:
        self.asked.append(parameters)
        p = {name: int(value) for name, value in parameters.items()}
        if p["input_w"] * p["input_h"] > 900:
            return Answer("refused", text="too large")
        words = [
            p["input_w"] + 2**8 * (p["input_h"] - 1) + 2**16 * p["relu"],
            p["output_c"] * p["input_c"] + 2**12 * (p["kernel_h"] // 2),
            (seed + 1) * 0x10001 if self.salt else 7,
        ]
        if self.still:
            words = [7, 7, 7]
        return Answer(
            "captured",
            Capture(
                "toy", "vivante", "x", (Job("B", words),), maps={"B": MAP}, provenance="simulated"
            ),
            {"area": float(p["input_w"] * p["input_h"])},
        )


@pytest.fixture(scope="module")
def explored() -> tuple[Explored, list[Any]]:
    """The results of an exploration of the toy until nothing is open, and the steps on the way."""
    seen: list[Any] = []
    return explore(Toy(), RANGES, budget=400, progress=seen.append), seen


def test_a_source_is_learnt_and_each_batch_predicted_first(
    explored: tuple[Explored, list[Any]],
) -> None:
    found, seen = explored
    assert found.sweep is not None
    assert found.laws is not None
    asked = len(found.sweep.words) + len(found.outcomes)
    assert asked == seen[-1].asked < 400  # nothing is open any more
    assert not found.stopped
    assert list(found.batches["batch"]) == list(range(1, len(found.batches) + 1))
    assert found.batches["wrong"].sum() == len(found.surprises) == 0
    assert found.batches["share"].iloc[-1] > 0.9
    frame = Possible(complete_ranges(RANGES)).draw(200, 9)
    other = list(map(Toy(), frame.to_dict("records")))
    kept = [n for n, answer in enumerate(other) if answer.capture is not None]
    words = np.stack([other[n].capture.words for n in kept])  # type: ignore[union-attr]
    areas = [other[n].parameters["area"] for n in kept]
    score = found.laws.score(words, frame.iloc[kept].assign(area=areas))
    assert score.wrong == 0
    assert score.share > 0.9


def test_layers_are_planned_with_what_would_be_observed_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned: list[pd.DataFrame] = []
    next_captures = Laws.next_captures

    def told(laws: Laws, n: int, candidates: pd.DataFrame) -> pd.DataFrame:
        planned.append(candidates)
        return next_captures(laws, n, candidates)

    monkeypatch.setattr(Laws, "next_captures", told)
    explore(Toy(), RANGES, budget=30)
    assert planned
    for layers in planned:
        area = layers["input_h"] * layers["input_w"]
        assert (np.abs(np.log2((layers["area"] + 1) / (area + 1))) < 1).mean() > 0.9


def test_bits_that_follow_the_weights_are_left_out() -> None:
    found = explore(Toy(salt=True), RANGES, budget=30)
    assert found.laws is not None
    assert found.laws.nuisance[2] != 0
    assert (found.laws.nuisance[:2] == 0).all()


def test_refusals_become_rules(explored: tuple[Explored, list[Any]]) -> None:
    found, _ = explored
    assert any(rule.left == "input_h * input_w" and rule.above for rule in found.rules)
    assert set(found.outcomes["outcome"]) == {"refused"}
    assert set(found.outcomes["text"]) == {"too large"}
    early, late = found.outcomes["layer"] < 40, found.outcomes["layer"] >= 40
    assert late.sum() <= early.sum()


def test_a_rule_refuses_no_layer_that_was_captured() -> None:
    random = np.random.default_rng(2)
    frame = pd.DataFrame(random.integers(0, 30, (300, 3)), columns=["a", "b", "c"])
    bad = (frame["a"] - frame["b"] > 10).to_numpy()
    rules = learnt_rules(frame, bad)
    assert rules[0] == Rule("a - b", True, float((frame["a"] - frame["b"])[~bad].max()))
    assert not any((rule.refuses(frame) & ~bad).any() for rule in rules)
    assert learnt_rules(frame, np.zeros(300, bool)) == learnt_rules(frame, np.ones(300, bool)) == ()


def test_a_rule_may_hold_for_one_mode() -> None:
    random = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "a": random.integers(0, 30, 200),
            "k": random.integers(0, 30, 200),
            "same": random.integers(0, 2, 200),
        }
    )
    bad = ((frame["a"] < frame["k"]) & (frame["same"] == 0)).to_numpy()
    (rule,) = learnt_rules(frame, bad)
    assert str(rule) == "a - k < 0 where same == 0"
    assert (rule.refuses(frame) == bad).all()


# On disk


def test_a_store_with_laws_goes_on_where_it_ended(tmp_path: Path) -> None:
    first = Toy()
    explore(first, RANGES, budget=28, store=tmp_path)
    again = Toy()
    found = explore(again, RANGES, budget=30, store=tmp_path)
    assert found.laws is not None
    assert len(first.asked) + len(again.asked) <= 30
    assert found.sweep is not None
    assert len([*(tmp_path / "captures").iterdir()]) == len(found.sweep.words)


def test_a_store_goes_on_where_it_ended_and_drops_a_line_that_a_crash_cut_off(
    tmp_path: Path,
) -> None:
    explore(Toy(still=True), RANGES, budget=4, store=tmp_path)
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'1234abcd {"number": 99')
    more = Toy(still=True)
    found = explore(more, RANGES, budget=6, store=tmp_path)
    assert len(more.asked) == 2
    assert found.sweep is not None
    assert len([*(tmp_path / "captures").iterdir()]) == len(found.sweep.words)


def everything(folder: Path) -> dict[str, bytes | str]:
    """What lies in a folder: the bytes of files, where links lead."""
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.parametrize(
    "name",
    [
        "captures/00002/notes.txt",
        "captures/notes.txt",
        "captures/00000",
        "captures",
        "answers.jsonl",
    ],
)
def test_a_folder_that_no_exploration_began_is_no_store(tmp_path: Path, name: str) -> None:
    path = tmp_path / "s" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine, without an end of its line")
    before = everything(tmp_path)
    refused(
        lambda: explore(Toy(still=True), RANGES, budget=4, store=tmp_path / "s"),
        str(tmp_path / "s"),
        "allowed is",
        "give another folder",
    )
    assert everything(tmp_path) == before


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name", ["captures", "captures/00002", "captures/00002.bin", "answers.jsonl", "set-aside"]
)
@pytest.mark.parametrize("begun", [False, True])
def test_a_store_has_no_links(tmp_path: Path, name: str, begun: bool) -> None:
    if begun:
        explore(Toy(still=True), RANGES, budget=2, store=tmp_path / "s")
    link, away = tmp_path / "s" / name, tmp_path / "victim"
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.exists():
        link.rename(away)
    else:
        (away / "00002").mkdir(parents=True)
        (away / "00002/notes.txt").write_text("mine")
    link.symlink_to(Path(os.path.relpath(away, link.parent)))
    before = everything(tmp_path)
    refused(
        lambda: explore(Toy(still=True), RANGES, budget=4, store=tmp_path / "s"),
        f"{link}: got a link to ",
        "allowed in the store",
    )
    assert everything(tmp_path) == before
    link.unlink()
    link.symlink_to("nowhere")
    refused(
        lambda: explore(Toy(still=True), RANGES, budget=4, store=tmp_path / "s"),
        f"{link}: got a link to nowhere",
    )


def test_what_lies_where_a_capture_goes_is_moved_aside(tmp_path: Path) -> None:
    explore(Toy(still=True), RANGES, budget=2, store=tmp_path / "s")
    for number in (2, 3):
        (tmp_path / f"s/captures/0000{number}").mkdir()
        (tmp_path / f"s/captures/0000{number}/notes.txt").write_text(f"mine {number}")
    (tmp_path / "s/captures/00004").write_text("a file")
    (tmp_path / "s/set-aside/00003").mkdir(parents=True)
    with pytest.warns(
        UserWarning,
        match=r"captures/0000\d: is not a capture .* it was moved to .*set-aside/0000\d(-2)?, nothing",
    ) as said:
        explore(Toy(still=True), RANGES, budget=6, store=tmp_path / "s")
    assert len([one for one in said if "was moved to" in str(one.message)]) == 3
    aside = everything(tmp_path / "s/set-aside")
    assert aside == {
        "00002/notes.txt": b"mine 2",
        "00003-2/notes.txt": b"mine 3",
        "00004": b"a file",
    }
    assert len([*(tmp_path / "s/captures").glob("*/capture.json")]) == 6


def test_a_capture_of_a_run_that_was_killed_before_its_line_is_taken_up(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    explore(Toy(still=True), RANGES, budget=5, store=tmp_path / "s")
    journal = tmp_path / "s" / NAME
    whole = everything(tmp_path)
    last = json.loads(whole_lines(tmp_path / "s")[-1].split(b" ", 1)[1])
    answer = [last[name] for name in ("batch", "reason", "seed", "parameters")]
    answer.append(Toy(still=True)(last["parameters"], last["seed"]))
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
    head = whole_lines(tmp_path / "s")[0]
    store = Store(tmp_path / "s", json.loads(head.split(b" ", 1)[1])["about"])
    store.add(*answer)
    assert everything(tmp_path) == whole
    assert not [one for one in recwarn if "was moved to" in str(one.message)]
    # and half of it is set aside
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
    (tmp_path / "s/captures/00004/b.bin").write_bytes(b"")
    store = Store(tmp_path / "s", store.about)
    with pytest.warns(UserWarning, match=r"was moved to .*set-aside/00004, nothing of it is lost"):
        store.add(*answer)
    assert (tmp_path / "s/set-aside/00004/b.bin").read_bytes() == b""
    assert (tmp_path / "s/captures/00004/b.bin").read_bytes()


def test_a_store_of_another_exploration_or_a_broken_one_is_refused(tmp_path: Path) -> None:
    explore(Toy(still=True), RANGES, budget=4, store=tmp_path / "s")
    refused(
        lambda: explore(Toy(still=True), {**RANGES, "relu": [1]}, budget=4, store=tmp_path / "s"),
        "exploration with ranges",
        "allowed",
    )
    path = tmp_path / "s" / NAME
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b'"batch": 0', b'"batch": 5')
    path.write_bytes(b"".join(lines))
    refused(
        lambda: explore(Toy(still=True), RANGES, budget=4, store=tmp_path / "s"),
        f"{path}, line 4",
        "checksum",
    )


@dataclass
class Slow(Toy):
    """The toy, so slow that it can be killed between any two answers."""

    def __call__(self, parameters: Mapping[str, float], seed: int = 0) -> Answer:
        time.sleep(0.02)
        return super().__call__(parameters, seed)


# a kill between a capture and its line leaves a capture that the next run moves aside
@pytest.mark.filterwarnings("ignore:.*set-aside:UserWarning")
@pytest.mark.parametrize(
    ("kills", "budget"), [(3, 27), pytest.param(50, 200, marks=pytest.mark.long)]
)
def test_a_kill_loses_no_answer(tmp_path: Path, kills: int, budget: int) -> None:
    random = np.random.default_rng(5)
    store = tmp_path / "s"
    kept: list[bytes] = []
    for kill in range(kills):
        child = os.fork()
        if not child:
            try:
                explore(Slow(still=True), RANGES, budget=budget, store=store)
            finally:
                os._exit(0)
        begun = time.monotonic()
        while time.monotonic() - begun < 60 and len(whole_lines(store)) <= len(kept):
            time.sleep(0.002)
        time.sleep(float(random.uniform(0, 0.1)))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"it ended before kill {kill}"
        lines = whole_lines(store)
        assert lines[: len(kept)] == kept
        assert len(lines) > len(kept)
        kept = lines
    explore(rest := Toy(still=True), RANGES, budget=budget, store=store)
    layers = [json.loads(line.split(b" ", 1)[1]) for line in whole_lines(store)[1:]]
    assert len(rest.asked) == len(layers) - len(kept) + 1
    assert [layer["number"] for layer in layers] == list(range(len(layers)))
    assert len({(layer["seed"], *layer["parameters"].values()) for layer in layers}) == len(layers)


def whole_lines(store: Path) -> list[bytes]:
    """The lines of a store's journal that are on the disk to their end."""
    return (store / NAME).read_bytes().split(b"\n")[:-1] if (store / NAME).exists() else []


def test_it_stops_when_asked() -> None:
    stop = threading.Event()
    toy = Toy()

    def once(step: Any) -> None:
        if step.found is not None:  # a batch is whole
            stop.set()

    found = explore(toy, RANGES, budget=400, progress=once, stop=stop)
    assert found.stopped
    assert len(toy.asked) == 27
    assert found.laws is not None


# Sources


COMPILER = """import json, sys, time
model, out = sys.argv[1:3]
what = sys.argv[3]
data = open(model, "rb").read()
if what == "refuse": print("no such layer", file=sys.stderr); sys.exit(3)
if what == "crash": raise SystemExit(-11)
if what == "hang": time.sleep(60)
if what == "nothing": sys.exit(0)
if what == "half": open(out + "/layer.bin", "wb").write(b"x"); sys.exit(0)
open(out + "/layer.bin", "wb").write(len(data).to_bytes(4, "little") * 3)
"""


def read(out: Path) -> Capture:
    data = (out / "layer.bin").read_bytes()
    if len(data) != 12:
        raise ValueError(f"layer.bin: got {len(data)} bytes, allowed is 12")
    return Capture(
        "compiled",
        "vivante",
        "x",
        (Job("B", np.frombuffer(data, "<u4")),),
        maps={"B": MAP},
        provenance="compiler",
    )


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compiler") / "compiler.py"
    path.write_text(COMPILER)
    return path


LAYER = {
    "op": 0,
    "input_h": 6,
    "input_w": 6,
    "input_c": 2,
    "output_c": 3,
    "kernel_h": 3,
    "kernel_w": 3,
    "stride_h": 1,
    "stride_w": 1,
    "same": 1,
    "input_scale": 0.02,
    "weight_scale": 0.01,
    "output_scale": 0.05,
}


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("what", "outcome", "text"),
    [
        ("go", "captured", ""),
        ("refuse", "refused", "no such layer"),
        ("crash", "refused", "status"),
        ("hang", "hang", "no end after 2"),
        ("nothing", "failed", "layer.bin"),
        ("half", "failed", "got 1 bytes"),
    ],
)
def test_a_compiler_s_ends_are_outcomes(program: Path, what: str, outcome: str, text: str) -> None:
    source = Compiler(
        [sys.executable, str(program), "{model}", "{out}", what], read=read, timeout=2
    )
    answer = source(LAYER)
    assert answer.outcome == outcome
    assert text in answer.text
    assert (answer.capture is not None) == (outcome == "captured")
    if answer.capture is not None:
        assert answer.capture.provenance == "compiler"
        assert np.array_equal(source(LAYER).capture.words, answer.capture.words)  # type: ignore[union-attr]


def test_a_full_disk_is_an_outcome(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = Compiler(
        [sys.executable, str(program), "{model}", "{out}", "go"], read=read, timeout=20
    )

    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        answer = source(LAYER)
    assert (answer.outcome, "No space left" in answer.text) == ("failed", True)
    assert list(tmp_path.iterdir()) == []
    assert source(LAYER).outcome == "captured"


def test_a_compiler_that_is_not_there_has_failed() -> None:
    assert Compiler("/no/such/program {model} {out}")(LAYER).outcome == "failed"
    refused(lambda: Compiler("vela --output-dir {out}"), "command: got", "{model}")
    assert (
        Compiler("vela {model}", version=f"{sys.executable} --version")
        .record["version"]
        .startswith("Python 3")
    )


@pytest.mark.parametrize(
    ("target", "chip", "dtype"),
    [
        ("vivante", "vipnano-si-imx8mp", "uint8"),
        ("nvdla", "nv_small", "int8"),
        ("rockchip", "rk3588", "uint8"),
    ],
)
def test_targets_that_lower_are_sources(target: str, chip: str, dtype: str) -> None:
    source = Lowered(target, chip, dtype)
    parameters = {**LAYER, "weight_zero_point": 128 * (dtype == "uint8")}
    answer, again = source(parameters), source(parameters)
    assert answer.outcome == "captured", answer.text
    assert answer.parameters["output_h"] == 6
    assert np.array_equal(again.capture.words, answer.capture.words)  # type: ignore[union-attr]


@pytest.mark.parametrize("op", range(5))
def test_every_operator_is_made(op: int) -> None:
    layer, x = made({**LAYER, "op": op}, 3, "int8")
    again, same = made({**LAYER, "op": op}, 3, "int8")
    assert str(layer) == str(again)
    assert np.array_equal(x, same)


def test_ranges_that_no_layer_has_are_refused() -> None:
    refused(lambda: complete_ranges({"size": (1, 2)}), "ranges: got 'size'", "allowed")
    refused(lambda: complete_ranges({"op": ["lstm"]}), "got op 'lstm'", "allowed")
    refused(lambda: explore(Toy(), RANGES, budget=1), "budget: got 1", "allowed")


def test_a_score_counts_cells() -> None:
    width = np.arange(8, 72)
    laws = find_laws((width[:, None] * 4).astype(np.uint32), {"width": width})
    words = (np.arange(100, 110)[:, None] * 4).astype(np.uint32)
    score = laws.score(words, {"width": np.arange(100, 110)})
    assert (score.wrong, score.cells) == (0, 70)
    bad = laws.score(words ^ np.uint32(4), {"width": np.arange(100, 110)})
    assert bad.wrong == bad.by_bit["wrong"].sum() == len(bad.mistakes) > 0
    refused(
        lambda: laws.score(np.zeros((2, 2), np.uint32), {"width": [1, 2]}), "words: got", "allowed"
    )


def test_explore_from_the_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], program: Path
) -> None:
    from npulab.cli import main

    ranges = tmp_path / "ranges.json"
    # only the height varies: few laws are to be found
    one = {name: [value] for name, value in LAYER.items() if name != "op"}
    one |= {"op": ["conv"], "relu": [0], "weight_zero_point": [128]}
    ranges.write_text(json.dumps({**one, "input_h": {"low": 4, "high": 30}}))
    words = f"explore --source lower:rockchip:rk3588 --ranges {ranges} --budget 30"
    arguments = [*words.split(), "--store", str(tmp_path / "s")]
    assert main([*arguments, "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {record["kind"] for record in records} >= {"batch", "law"}
    assert len(list((tmp_path / "s/captures").iterdir())) == 30
    assert main(["explore", "--source", "vela {out}"]) == 2
    assert "{model} stands for" in capsys.readouterr().err
    command = f"{sys.executable} {program} {{model}} {{out}} refuse"
    assert main(["explore", "--source", command, "--budget", "3"]) == 0
    assert "3 without one" in capsys.readouterr().out
    ranges.write_text("[")
    assert main(arguments) == 2


def test_a_compiler_whose_captures_npulab_reads_itself(tmp_path: Path) -> None:
    """What it leaves is looked through for the first capture; without one it has failed, and
    what there is is named.
    """
    copy = "import shutil, sys; shutil.copytree(sys.argv[3], sys.argv[2] + '/case') if sys.argv[3] else open(sys.argv[2] + '/a.txt', 'w')"
    for case, outcome in ((str(CAPTURES / "vivante/sim-1x1"), "captured"), ("", "failed")):
        answer = Compiler([sys.executable, "-c", copy, "{model}", "{out}", case])(LAYER)
        assert answer.outcome == outcome, answer.text
        if answer.capture is None:
            assert answer.text.endswith(
                "out: got a.txt, allowed is a file or a folder that a target recognises"
            )
        else:
            assert np.array_equal(answer.capture.words, npulab.load(case).words)
    with pytest.raises(
        ValueError,
        match=r"^a: got nothing, allowed is a file or a folder that vivante recognises \(text dump of ",
    ):
        (tmp_path / "a").mkdir()
        reader_of("vivante")(tmp_path / "a")


def test_layers_that_are_made_are_of_their_size_and_type() -> None:
    for name in ("conv", "max_pool", "add"):
        layer, x = made({**LAYER, "op": OPS.index(name)})
        assert x.shape == (6, 6, 2) == layer.input_shape
    layer, x = made({**LAYER, "op": OPS.index("fully_connected")})
    assert x.shape == layer.input_shape
    assert x.size == 72
    half = made(LAYER, dtype="float16")[1]
    assert half.dtype == np.float16
    assert 4 < np.abs(half).max() <= 8
    assert (half * 16 % 1 == 0).all()
    with pytest.raises(
        ValueError, match=r"^layer: got a tensor of shape .*, allowed are at most 2097152 elements$"
    ):
        made({**LAYER, "input_c": 2**12, "output_c": 2**12})
    usual = complete_ranges({"op": ["conv"]})
    for name in ("input_zero_point", "weight_zero_point", "output_zero_point", "depthwise"):
        assert usual[name] == [0]
