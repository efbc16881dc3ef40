"""``check --against``: captures run on a device, and what it computes compared."""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import CAPTURES, shared
from shell_runs import json_lines, refused, shell

import npulab
from npulab import Capture, load, save
from npulab.analysis.against import Side, Sides
from npulab.captures.devices import InProcess
from npulab.captures.target import Hang, Run

FOLDER = CAPTURES / "nvdla"
# every second one, of the RTL's and of those of the simulated device
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/capture.json"))[::2]
CASES = [FOLDER / name for name in NAMES]
COUNT = len(NAMES)

# A device of one's own, which computes as the simulated device does, and a changed one: a table of
# places by case, each with how the byte there changes.
DEVICES = """
import json, pathlib
import npulab
from npulab.captures.target import Hang

class Right:
    def run(self, capture):
        return npulab.target(capture.target).simulate(capture)

class Wrong(Right):
    def run(self, capture):
        given = bytearray(super().run(capture))
        for place in json.loads(pathlib.Path("planted.json").read_text()).get(capture.name, ()):
            given[place] ^= 0x41
        return bytes(given)

class Hangs(Right):
    def run(self, capture):
        raise Hang("the unit waits for memory")

class Crashes(Right):
    def run(self, capture):
        return 1 // 0

class Answers(Right):
    def run(self, capture):
        return "pass"

class Half(Right):
    def run(self, capture):
        given = super().run(capture)
        return given[: len(given) // 2]

class Over(Right):
    def run(self, capture):
        return super().run(capture) + b"xyz"

class Unmade(Right):
    def __init__(self):
        raise RuntimeError("the board is away")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the module ``mine`` of devices."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    Path("mine.py").write_text(DEVICES)
    return tmp_path


def program(folder: Path, code: str, names: Sequence[str]) -> str:
    """A device that is a program and runs ``code``: ``ran`` is how often it ran before, ``given``
    are the bytes of the case with that number, ``out`` is the file to write."""
    for number, name in enumerate(names):
        (folder / f"{number}.bin").write_bytes(output_of(name))
    path = folder / "program.py"
    path.write_text(
        f"import pathlib, sys, time\ncount = {len(names)}\n"
        "here = pathlib.Path(__file__).parent\n"
        "ran = len([*here.glob('ran-*')])\n"
        "(here / f'ran-{ran}').touch()\n"
        "given = (here / f'{ran % count}.bin').read_bytes()\n"
        "out = pathlib.Path(sys.argv[1], 'output.bin')\n"
        f"{code}\n"
    )
    return f"command:{sys.executable} -S {path}"


def output_of(name: str) -> bytes:
    return load(FOLDER / name).buffers["output"]


def test_the_recorded_output_against_the_simulated_device() -> None:
    found = shell("check", *CASES, "--against", "simulated")
    assert found.code == 0
    assert found.out.splitlines()[-1] == (
        f"{COUNT} captures against simulated (simulated is npulab's own device), 0 differ or fail "
        f"({COUNT} equal)"
    )
    few = ["check", *CASES[:3], "--against", "simulated"]
    assert shell(*few, "--jobs", "2") == shell(*few)
    rows = json_lines(shell("check", *CASES, "--against", "simulated", "--json").out)
    assert [row["case"] for row in rows] == NAMES
    for row in rows:
        assert (row["verdict"], row["mismatches"], row["first"]) == ("equal", 0, None)
        assert (row["against"], row["device"]) == ("simulated", None)
        own = row["case"].startswith("sim-")
        assert (row["simulated"], row["against_simulated"]) == (own, True)
        assert row["compared"] == len(output_of(row["case"]))


def test_the_rtl_against_the_simulated_device() -> None:
    folder = shared("data/nvdla_rtl/captures")
    found = shell("check", folder, "--against", "simulated", "--json")
    rows = json_lines(found.out)
    assert found.code == 0
    assert len(rows) == 29
    assert {row["verdict"] for row in rows} == {"equal"}
    assert {(row["simulated"], row["against_simulated"]) for row in rows} == {(False, True)}


def test_ten_planted_differences_of_two_devices_are_reported(here: Path) -> None:
    planted: dict[str, list[int]] = {}
    for number, name in enumerate(NAMES):
        last = len(output_of(name)) - 1
        planted[name] = [[0], [last], [last // 2], [3, 4, 5], [0, last]][number % 5]
    Path("planted.json").write_text(json.dumps(planted))
    pair = ["--device", "python:mine:Right", "--against", "python:mine:Wrong"]
    found = shell("check", *CASES, *pair, "--json")
    rows = json_lines(found.out)
    assert found.code == 1
    assert len(rows) == len(planted) == COUNT >= 10
    for row in rows:
        places = planted[row["case"]]
        assert (row["verdict"], row["mismatches"]) == ("differs", len(places)), row
        assert row["first"] == places[0]
        first = output_of(row["case"])[places[0]]
        assert f"the first device {first:02X}, the other device {first ^ 0x41:02X}" in row["reason"]
        assert (row["device"], row["provenance"]) == ("python:mine:Right", "device")
        assert not row["simulated"]
    text = shell("check", *CASES, *pair)
    assert text.out.splitlines()[-1] == (
        f"{COUNT} captures on python:mine:Right against python:mine:Wrong, {COUNT} differ or fail "
        f"({COUNT} differs)"
    )
    # against the captured output, one is said to be wrong and the other right; a byte that holds no
    # value of the output is said not to be compared
    alone = shell("check", *CASES, "--against", "python:mine:Wrong", "--json")
    assert alone.code == 1
    for row in json_lines(alone.out):
        said = re.search(
            r"(\d+) of \d+ bytes hold no value of the output and differ", row["reason"]
        )
        filled = int(said[1]) if said else 0
        assert row["verdict"] == ("differs" if row["mismatches"] else "partly compared")
        assert row["mismatches"] == len(planted[row["case"]]) - filled
    equal = shell("check", *CASES, "--device", "python:mine:Right", "--against", "simulated")
    assert equal.code == 0
    assert equal.out.splitlines()[-1].endswith(f", 0 differ or fail ({COUNT} equal)")


@pytest.mark.parametrize("place", [0, 15])
def test_a_changed_byte_of_a_captured_output_is_found(tmp_path: Path, place: int) -> None:
    capture = load(FOLDER / NAMES[0])
    changed = bytearray(capture.buffers["output"])
    changed[place] ^= 1
    save(capture.with_buffers(output=bytes(changed)), tmp_path / "a")
    found = shell("check", tmp_path, "--against", "simulated", "--json")
    (row,) = json_lines(found.out)
    assert (found.code, row["verdict"]) == (1, "differs")
    assert (row["mismatches"], row["first"], row["compared"]) == (1, place, len(changed))


@pytest.mark.parametrize(
    ("device", "verdict", "words"),
    [
        ("Hangs", "hang", "the device hangs: the unit waits for memory"),
        ("Crashes", "failed", "the device failed: ZeroDivisionError: "),
        ("Answers", "failed", "the device failed: Answers.run: got 'pass', allowed are the output"),
        ("Half", "differs", "the outputs differ in length: captured "),
        ("Over", "differs", "3 of {over} bytes differ, the first at {size:#x}: captured none, "),
    ],
)
def test_a_device_that_does_not_write_the_output_says_how(
    here: Path, device: str, verdict: str, words: str
) -> None:
    found = shell("check", *CASES[:3], "--against", f"python:mine:{device}", "--json")
    rows = json_lines(found.out)
    assert (found.code, found.err, len(rows)) == (1, "", 3)
    for row in rows:
        size = len(output_of(row["case"]))
        assert row["verdict"] == verdict
        assert words.format(size=size, over=size + 3) in row["reason"]


def test_two_devices_that_hang_show_nothing(here: Path) -> None:
    pair = ["--device", "python:mine:Hangs", "--against", "python:mine:Hangs"]
    found = shell("check", *CASES, *pair)
    assert found.code == 3
    assert found.out.splitlines()[-1].endswith(f", 0 differ or fail ({COUNT} both hang)")
    one = shell("check", *CASES, "--device", "python:mine:Hangs", "--against", "simulated")
    assert one.code == 1
    assert "the first device hangs: the unit waits for memory" in one.out
    assert "mine.py" in shell("check", CASES[0], "--against", "python:mine:Crashes").out


@pytest.mark.parametrize(
    ("code", "verdict", "words"),
    [
        ("out.write_bytes(given)", "equal", ""),
        ("out.write_bytes(given[:100])", "differs", "the device 100 bytes; "),
        ("out.write_bytes(given + bytes(9))", "differs", "9 of "),
        ("pass", "failed", "the device failed: the program left no file output.bin"),
        ("raise SystemExit('no power')", "failed", "the device failed: status 1 (no power)"),
        ("time.sleep(600)", "hang", "the device hangs: no end after 1 seconds"),
    ],
)
def test_a_program_is_a_device(tmp_path: Path, code: str, verdict: str, words: str) -> None:
    named = program(tmp_path, code, NAMES[:1])
    limit = "60"
    if verdict == "hang":
        limit = "1"
    found = shell("check", FOLDER / NAMES[0], "--against", named, "--timeout", limit, "--json")
    (row,) = json_lines(found.out)
    assert (row["verdict"], found.err) == (verdict, "")
    assert words in row["reason"]
    assert found.code == int(verdict != "equal")


def test_a_program_that_cannot_start_is_one_sentence(here: Path) -> None:
    sentence = refused(shell("check", *CASES, "--against", "command:./nothing"))
    assert sentence == (
        f"npulab: program: ./nothing: there is no such program; {COUNT} of {COUNT} captures not run"
    )
    sentence = refused(shell("check", *CASES, "--against", "python:mine:Unmade"))
    assert "which fails: RuntimeError: the board is away, at " in sentence
    assert "mine.py:" in sentence
    Path("broken.py").write_text("def run(:\n")
    assert "SyntaxError" in refused(shell("check", *CASES, "--against", "python:broken:A"))
    assert "has no attribute 'B'" in refused(shell("check", *CASES, "--against", "python:mine:B"))


def test_what_ran_before_a_program_was_lost_is_shown(tmp_path: Path) -> None:
    code = "out.write_bytes(given)\nraise SystemExit(255 if ran == 2 else 0)"
    found = shell("check", *CASES, "--against", program(tmp_path, code, NAMES))
    assert found.code == 2
    assert f"which says that nothing was run; {COUNT - 2} of {COUNT} captures not run" in found.err
    assert found.out.splitlines()[-1].endswith(f"0 differ or fail, {COUNT - 2} not run (2 equal)")


def test_a_capture_without_an_output_is_not_compared(here: Path) -> None:
    capture = load(FOLDER / NAMES[0])
    bare = {name: data for name, data in capture.buffers.items() if name != "output"}
    save(replace(capture, buffers=bare), here / "set" / "bare")
    found = shell("check", here / "set", "--against", "simulated", "--json")
    (row,) = json_lines(found.out)
    assert (found.code, row["verdict"], row["compared"]) == (3, "nothing to compare", 0)
    assert row["reason"] == "no output recorded"
    # two devices need no captured output
    pair = ["--device", "python:mine:Right", "--against", "simulated"]
    (row,) = json_lines(shell("check", here / "set", *pair, "--json").out)
    assert row["verdict"] == "equal"
    save(capture, here / "set" / "whole")
    assert shell("check", here / "set", "--against", "simulated").code == 0


def test_an_output_recorded_before_the_run_is_not_compared() -> None:
    cases = [path.parent for path in (CAPTURES / "vivante").glob("*/capture.json")]
    cases = [case for case in cases if not case.name.startswith("vendor-")]
    found = shell("check", *cases, "--against", "simulated")
    assert found.code == 0
    assert found.out.splitlines()[-1].endswith("(7 equal, 2 nothing to compare)")
    assert found.out.count("the output was recorded before the job ran") == 2


def test_the_device_agrees_with_the_vendors_simulator() -> None:
    """Twenty jobs of the vendor's compiler: what its simulator wrote, and what our device writes."""
    cases = sorted((CAPTURES / "vivante").glob("vendor-*"))
    found = shell("check", *cases, "--against", "simulated", "--json")
    rows = json_lines(found.out)
    assert (found.code, len(rows)) == (0, 20)
    assert {(row["verdict"], row["simulated"]) for row in rows} == {("equal", False)}


def test_a_capture_that_is_not_covered_is_no_difference(here: Path) -> None:
    capture = load(FOLDER / NAMES[0])
    bare = {name: data for name, data in capture.buffers.items() if name == "output"}
    save(replace(capture, buffers=bare), here / "a")
    found = shell("check", here / "a", "--against", "simulated", "--json")
    (row,) = json_lines(found.out)
    assert (found.code, row["verdict"], row["compared"]) == (3, "not covered", 0)
    assert row["reason"].startswith("simulated does not cover it: capture a: buffer ")


class Board:
    """Computes as the simulated device does; after a job named ``spoils`` every output is zeros,
    until a reset."""

    def __init__(self, spoils: str, resets: bool) -> None:
        self.spoils, self.spoiled, self.runs = spoils, False, 0
        if resets:
            self.reset = self.mend

    def mend(self) -> None:
        self.spoiled = False

    def run(self, capture: Capture) -> bytes:
        self.runs += 1
        given: bytes = npulab.target(capture.target).simulate(capture)
        if self.spoiled:
            given = bytes(len(given))
        self.spoiled = self.spoiled or capture.name == self.spoils
        return given


def checked(board: object, change: Callable[[Capture], Capture]) -> list[str]:
    """The verdicts of the captures on a board, with a line for why nothing more was run."""
    sides = Sides(Side("board", InProcess(board)))
    out: list[str] = []
    for name in NAMES:
        try:
            out.append(sides.check(change(load(FOLDER / name))).verdict)
        except OSError as error:
            return [*out, str(error)]
    return out


@pytest.mark.parametrize(
    "number",
    [0, COUNT - 2, *(pytest.param(one, marks=pytest.mark.long) for one in range(1, COUNT - 2))],
)
def test_a_capture_is_not_blamed_for_the_state_that_another_left(number: int) -> None:
    found = checked(Board(NAMES[number], resets=True), lambda capture: capture)
    right = number + 1
    assert found == ["equal"] * right + ["unsteady"] + ["equal"] * (COUNT - 1 - right)
    # without a reset nothing can be said of it, nor of any other
    found = checked(Board(NAMES[number], resets=False), lambda capture: capture)
    assert found[: right + 1] == ["equal"] * right + ["unsteady"]
    known = NAMES[max(number - 1, 0)]
    stuck = f"the device no longer gives the output of {known}, which it gave before"
    assert found[right + 1 :] == [stuck] * (number < COUNT - 2)


@pytest.mark.parametrize("boards", [35, pytest.param(150, marks=pytest.mark.long)])
def test_no_state_of_a_board_makes_a_false_answer(boards: int) -> None:
    """Random boards: jobs that spoil them or hang, with and without a reset, and captures whose
    recorded output is not what the job computes."""

    class Quick(Board):
        def __init__(self, spoils: set[str], hangs: set[str], resets: bool) -> None:
            super().__init__("", resets)
            self.spoiling, self.hangs = spoils, hangs

        def run(self, capture: Capture) -> bytes:
            if capture.name in self.hangs:
                self.spoiled = False  # a hang is raised after the board was made ready
                raise Hang("no answer")
            given = RIGHT[capture.name]
            if self.spoiled:
                given = bytes(len(given))
            self.spoiled = self.spoiled or capture.name in self.spoiling
            return given

    captures = [load(FOLDER / name) for name in NAMES]
    RIGHT = {capture.name: capture.buffers["output"] for capture in captures}
    lot, seen = random.Random(1), Counter[str]()
    for _ in range(boards):
        spoils = {name for name in NAMES if lot.random() < 0.15}
        hangs = {name for name in NAMES if lot.random() < 0.1}
        wrong = {name for name in NAMES if lot.random() < 0.2}
        sides = Sides(Side("board", InProcess(Quick(spoils, hangs, lot.random() < 0.5))))
        for capture in captures:
            if capture.name in wrong:
                capture = capture.with_buffers(output=RIGHT[capture.name][::-1])
            try:
                result = sides.check(capture)
            except OSError:
                seen["lost"] += 1
                break
            seen[result.verdict] += 1
            sure = "may have spoiled" not in result.reason
            if result.verdict == "equal":
                assert capture.name not in wrong | hangs
            elif result.verdict == "differs" and sure:
                assert capture.name in wrong - hangs, result
            elif result.verdict == "hang":
                assert capture.name in hangs
    verdicts = ("equal", "differs", "hang", "unsteady", "lost")
    assert min(seen[name] for name in verdicts) > boards // 5, seen


def test_a_job_that_differs_and_spoils_is_named() -> None:
    def change(capture: Capture) -> Capture:
        if capture.name != NAMES[3]:
            return capture
        return capture.with_buffers(output=capture.buffers["output"][::-1])

    sides = Sides(Side("board", InProcess(Board(NAMES[3], resets=True))))
    results = [sides.check(change(load(FOLDER / name))) for name in NAMES]
    assert [result.verdict for result in results] == ["equal"] * 3 + ["differs"] + ["equal"] * (
        COUNT - 4
    )
    assert f"it spoils the device: {NAMES[1]} then ends otherwise" in results[3].reason


def test_a_device_that_flickers_is_unsteady() -> None:
    class Flickers(Board):
        def run(self, capture: Capture) -> bytes:
            given = super().run(capture)
            if self.runs == 3:
                raise Hang("a glitch")
            return given

    board = Flickers("", resets=False)
    assert checked(board, lambda capture: capture) == ["equal"] * 2 + ["unsteady"] + ["equal"] * (
        COUNT - 3
    )
    assert board.runs == COUNT + 3  # the known-good one before and after, and the capture again


def test_what_a_run_says_of_its_device_is_told() -> None:
    class Says(Board):
        def run(self, capture: Capture) -> Run:  # type: ignore[override]
            return Run("done", super().run(capture), spoiled="the link is down")

    board = Says(NAMES[0], resets=True)
    sides = Sides(Side("board", InProcess(board)))
    result = sides.check(load(FOLDER / NAMES[0]))
    assert (result.verdict, result.reason) == ("equal", "the link is down")
    assert not board.spoiled  # it was reset


def test_equal_bytes_that_memory_may_hold_are_one_value() -> None:
    class Zeros:
        def run(self, capture: Capture) -> bytes:
            return bytes(100)

    capture = load(FOLDER / NAMES[0]).with_buffers(output=bytes(100))
    sides = Sides(Side("zeros", InProcess(Zeros())))
    result = sides.check(capture)
    assert (result.verdict, result.ok) == ("one value", True)
    other = sides.check(capture.with_buffers(output=bytes([1, *bytes(99)])))
    assert (other.verdict, other.mismatches, other.first) == ("differs", 1, 0)
    assert "the device: every byte is 00, as in memory that no job wrote" in other.reason


def test_other_outputs_and_the_rest_of_a_page_are_not_called_equal() -> None:
    capture = load(FOLDER / NAMES[0])
    more = replace(capture, buffers={**capture.buffers, "output_1": b"abc"})
    sides = Sides(Side("simulated", npulab.Simulated()))
    result = sides.check(more)
    assert (result.verdict, result.reason) == (
        "partly compared",
        "buffer 'output_1' was not compared",
    )
    capture = load(CAPTURES / "vivante/sim-3x3-same")
    output = capture.buffers["output"]
    page = output + bytes(-len(output) % 4096)
    result = sides.check(capture.with_buffers(output=page))
    assert (result.verdict, result.compared, result.reason) == ("equal", len(output), "")
    result = sides.check(capture.with_buffers(output=output + b"ab"))
    assert (result.verdict, result.compared, result.mismatches, result.reason) == (
        "partly compared",
        1200,
        0,
        "2 of 1202 bytes hold no value of the output and differ (fill)",
    )
    # if it is not known which bytes hold a value, all do
    capture = load(CAPTURES / "onert/sim-hybrid-2d")
    output = capture.buffers["output"]
    result = sides.check(capture.with_buffers(output=output + b"ab"))
    assert (result.verdict, result.mismatches, result.first) == ("differs", 2, len(output))
    page = output + bytes(-len(output) % 4096)
    result = sides.check(capture.with_buffers(output=page))
    assert (result.verdict, result.compared) == ("partly compared", len(output))
    assert "the rest of a page, are on one side only" in result.reason


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--against", "nowhere"], "device: got 'nowhere', allowed is simulated"),
        (
            ["--against", "manual"],
            "device: got 'manual', allowed is a device that runs without a p",
        ),
        (["--device", "simulated"], "--device: got no --against, allowed is --against DEVICE"),
        (["--timeout", "3"], "--timeout: got no --against, allowed is --against DEVICE"),
        (["--against", "simulated", "--explain"], "--against: got --explain too"),
        (["--against", "simulated", "--model", "m.tflite"], "--against: got --model too"),
        (["--against", "simulated", "--timeout", "3"], "--timeout: got device 'simulated'"),
        (["--against", "command:a", "--jobs", "2"], "--jobs: got 2 with 'command:a', allowed is 1"),
        (
            ["--against", "command:a", "--device", "command:b", "--reset", "c"],
            "--reset: got two devices that are programs",
        ),
    ],
)
def test_what_does_not_fit_is_refused(arguments: list[str], words: str) -> None:
    assert words in refused(shell("check", *CASES, *arguments))
