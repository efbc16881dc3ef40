"""What runs a capture: programs with real timeouts, people, and the recorder of their trials."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npulab
import npulab.captures.capture
from npulab.captures.capture import Capture
from npulab.captures.devices import (
    Command,
    Device,
    InProcess,
    Manual,
    Probed,
    Recorder,
    Run,
    Simulated,
    as_code,
    device,
)
from npulab.captures.target import GUESS, Hang
from npulab.support.processes import NotRun, Stopped

Program = Callable[..., tuple[str, ...]]


@pytest.fixture
def capture(captures: npulab.CaptureSet) -> Capture:
    return captures["sim-1x1"]


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders are made; nothing may be left of them."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def program(tmp_path: Path, scratch: Path) -> Program:
    """A Python program that knows the bytes of a capture and nothing of npulab, as a board's
    would.
    """

    def make(*lines: str) -> tuple[str, ...]:
        path = tmp_path / f"program{len(list(tmp_path.glob('program*')))}.py"
        path.write_text(
            "import os, signal, sys, time\nhere = sys.argv[-1]\n" + "\n".join(lines) + "\n"
        )
        return sys.executable, "-I", "-S", str(path)

    return make


def writes(data: bytes) -> str:
    return f"open(here + '/output.bin', 'wb').write({data!r})"


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_program_is_given_an_ordinary_capture_without_its_output(
    capture: Capture, program: Program, tmp_path: Path
) -> None:
    changed = capture.with_fields(post_shift=8)
    copy = program(
        "import shutil",
        f"shutil.copytree(here, {str(tmp_path / 'seen')!r})",
        "assert here.endswith('/capture')",
    )
    assert Command(copy).run(changed) == Run("done", reason="the program left no file output.bin")
    seen = npulab.load(tmp_path / "seen")
    assert seen == replace(
        changed,
        name="seen",
        buffers={name: data for name, data in capture.buffers.items() if name != "output"},
        parameters={**changed.parameters, "output_bytes": len(capture.buffers["output"])},
    )


def test_output_that_is_expected_decides(capture: Capture, program: Program) -> None:
    same, other, none = (
        program(writes(capture.buffers["output"])),
        program(writes(b"other")),
        program(),
    )
    assert Command(same).run(capture) == Run("done", capture.buffers["output"])
    assert [Command(by)(capture) for by in (same, other, none)] == ["pass", "fail", "fail"]
    assert [Command(by, expected=b"other")(capture) for by in (same, other, none)] == [
        "fail",
        "pass",
        "fail",
    ]
    assert [Command(by, output=None)(capture) for by in (same, other, none)] == ["pass"] * 3
    unknown = replace(capture, buffers={})
    assert [Command(by)(unknown) for by in (same, other, none)] == ["pass"] * 3
    assert Command(none, expected=b"")(unknown) == "fail"


@pytest.mark.parametrize(
    ("lines", "outcome", "reason"),
    [
        (["sys.exit(3)"], "failed", "status 3"),
        (
            ["sys.stderr.write('no such\\x1b[2J thing\\n\\nat all')", "sys.exit(1)"],
            "failed",
            "status 1 (no such [2J thing; at all)",
        ),
        (["os.kill(os.getpid(), signal.SIGABRT)"], "failed", "an end by signal 6"),
        (["sys.exit(124)"], "hang", "status 124"),
        (["os.mkfifo(here + '/output.bin')"], "done", "the program left no file output.bin"),
        (
            ["open(here + '/output.bin', 'wb').truncate(2 ** 40)"],
            "done",
            "output.bin: got 1099511627776 bytes, allowed are at most 268435456",
        ),
    ],
)
def test_status_and_last_words(
    capture: Capture, program: Program, lines: list[str], outcome: str, reason: str
) -> None:
    assert Command(program(*lines)).run(capture) == Run(outcome, None, reason)


def test_status_of_a_hang_is_what_one_says(capture: Capture, program: Program) -> None:
    assert Command(program("sys.exit(9)"), hang_status=9)(capture) == "hang"
    assert Command(program("sys.exit(255)"), hang_status=255)(capture) == "hang"
    assert Command(program("sys.exit(124)"), hang_status=None)(capture) == "fail"
    assert Command(program("sys.exit(255)"), retry_on=())(capture) == "fail"


def test_program_that_does_not_end_hangs(capture: Capture, tmp_path: Path, scratch: Path) -> None:
    """Neither a deaf program nor its children, which hold the pipe open, outlive it; last words
    are kept.
    """
    deaf = f"trap '' TERM; sleep 60 & echo $! $$ > {tmp_path}/pids; echo waiting >&2; wait"
    run = Command(["sh", "-c", deaf], timeout=0.2).run(capture)
    assert run == Run("hang", None, "no end after 0.2 seconds (waiting)")
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert not any(map(alive, pids))


def test_program_is_asked_to_end_before_it_is_killed(
    capture: Capture, tmp_path: Path, scratch: Path
) -> None:
    polite = f"trap 'touch {tmp_path}/ended; exit 0' TERM; sleep 60 & wait"
    assert Command(["sh", "-c", polite], timeout=0.2)(capture) == "hang"
    assert (tmp_path / "ended").exists()


def test_children_of_a_program_that_ended(
    capture: Capture, program: Program, tmp_path: Path
) -> None:
    """One in the group is killed; one that left it, and holds the pipe open, is not waited for."""

    def parent(*first: str) -> tuple[str, ...]:
        return program(
            "said, say = os.pipe()",
            "if not os.fork():",
            *(f"    {line}" for line in first),
            f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))",
            "    os.write(say, b'!'); time.sleep(60)",
            "os.read(said, 1)",
            writes(b"x"),
        )

    for lines, lives in (([], False), (["os.setsid()"], True)):
        assert Command(parent(*lines), expected=b"x")(capture) == "pass"
        child = int((tmp_path / "pid").read_text())
        assert alive(child) == lives
    os.kill(child, signal.SIGKILL)


def test_floods_fill_nothing(capture: Capture, scratch: Path) -> None:
    tracemalloc.start()
    try:
        run = Command(["sh", "-c", "yes & exec yes >&2"], timeout=0.2).run(capture)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert run == Run("hang", None, "no end after 0.2 seconds (y; y; y; y; y)")
    assert peak < 4 * 2**20


def test_program_has_no_input(capture: Capture, program: Program) -> None:
    """What is typed at a notebook or a terminal is not for it."""
    typed, keys = os.pipe()
    os.write(keys, b"p")
    os.close(keys)
    before = os.dup(0)
    os.dup2(typed, 0)
    try:
        assert Command(program("sys.exit(len(sys.stdin.read()))"), output=None)(capture) == "pass"
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(typed)


def test_arguments_reach_no_shell(capture: Capture, program: Program, tmp_path: Path) -> None:
    evil = ["; touch x", "$(touch x)", "a b", "*", "`touch x`", "~", "--out={capture}/o"]
    say = program(f"open({str(tmp_path / 'said')!r}, 'w').write('\\n'.join(sys.argv[1:]))")
    assert Command([*say, *evil], output=None)(capture) == "pass"
    said = (tmp_path / "said").read_text().split("\n")
    assert said[:-1] == evil[:-1]
    assert said[-1].startswith("--out=/")
    assert said[-1].endswith("/capture/o")
    text = f"{' '.join(say)} '; touch x' $(touch x)"
    assert Command(text, output=None)(capture) == "pass"
    assert (tmp_path / "said").read_text().split("\n")[:-1] == ["; touch x", "$(touch", "x)"]


def test_shell_is_asked_for(
    capture: Capture, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "a 'b; $(c)"
    odd.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(odd))
    for text in (
        "test -f {capture}/capture.json && echo good > {capture}/output.bin",
        "cd . && ls -d > /dev/null",
    ):
        run = Command(text, shell=True).run(capture)
        assert run.outcome == "done"
    assert (
        Command("echo good > {capture}/output.bin", shell=True, expected=b"good\n")(capture)
        == "pass"
    )
    with pytest.raises(
        NotRun,
        match=r"^program: got status 127 \(.*not found\) from 'nothing-here', which says that nothing was run$",
    ):
        Command("nothing-here", shell=True)(capture)
    assert list(odd.iterdir()) == []


def test_what_cannot_be_started_is_no_verdict(
    capture: Capture, scratch: Path, tmp_path: Path
) -> None:
    with pytest.raises(NotRun, match=r"^program: nothing-here: there is no such program$"):
        Command("nothing-here", retries=1)(capture)
    (tmp_path / "plain").write_text("text")
    with pytest.raises(
        OSError, match=r"^program: \S+plain: may not be run; chmod \+x \S+plain allows it$"
    ):
        Command([tmp_path / "plain"])(capture)
    with pytest.raises(NotRun, match=r"^program: got an end by signal 15 from "):
        Command("sh -c 'kill -TERM $$'")(capture)


def test_connection_that_fails_twice(capture: Capture, program: Program, tmp_path: Path) -> None:
    """Each try has a folder of its own: nothing of one that failed is left for the next."""
    count = tmp_path / "count"
    flaky = program(
        f"n = os.path.getsize({str(count)!r})",
        f"open({str(count)!r}, 'a').write('x')",
        "assert not os.path.exists(here + '/output.bin')",
        writes(b"done"),
        "sys.exit(255 if n < 2 else 0)",
    )
    count.write_text("")
    assert Command(flaky, expected=b"done", retries=2)(capture) == "pass"
    assert count.read_text() == "xxx"
    count.write_text("")
    with pytest.raises(
        NotRun, match=r"^program: got status 255 from \(.*\), which says that nothing was run$"
    ):
        Command(flaky, expected=b"done", retries=1)(capture)
    assert count.read_text() == "xx"


def test_reset_runs_after_a_hang_and_only_then(
    capture: Capture, program: Program, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    board = program(
        f"open({str(log)!r}, 'a').write('run ')",
        f"sys.exit(int(open({str(tmp_path / 'say')!r}).read()))",
    )
    reset = program(
        f"open({str(log)!r}, 'a').write('reset ')",
        f"sys.exit(os.path.exists({str(tmp_path / 'broken')!r}))",
    )
    command = Command(board, output=None, reset=reset)
    for status, outcome in ((0, "pass"), (1, "fail"), (124, "hang"), (0, "pass")):
        (tmp_path / "say").write_text(str(status))
        assert command(capture) == outcome
    assert log.read_text() == "run run run reset run "
    (tmp_path / "broken").write_text("")
    (tmp_path / "say").write_text("124")
    run = command.run(capture)
    assert run.outcome == "hang"
    assert run.reason.startswith("status 124; reset: got status 1 from ")
    with pytest.raises(NotRun, match=r"^reset: got status 1 from \(.*\), allowed is status 0$"):
        command(capture)
    (tmp_path / "broken").unlink()
    (tmp_path / "say").write_text("0")
    assert command(capture) == "pass"
    assert log.read_text() == "run run run reset run run reset reset reset run "


def test_stop_ends_a_run(capture: Capture, program: Program, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    command = Command(program(f"open({str(pid)!r}, 'w').write(str(os.getpid()))", "time.sleep(60)"))

    def stop() -> None:
        while not pid.exists() or not pid.read_text():
            time.sleep(0.01)
        command.stop.set()

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(Stopped):
        command(capture)
    thread.join()
    assert not alive(int(pid.read_text()))
    with pytest.raises(Stopped):
        command(capture)


def test_stop_ends_a_wait_and_keeps_the_hang(
    capture: Capture, program: Program, tmp_path: Path
) -> None:
    """What is left of the wait is waited for before the next run."""
    log = tmp_path / "log"
    command = Command(program(f"open({str(log)!r}, 'a').write('x')", "sys.exit(124)"), cooldown=60)
    thread = threading.Thread(target=lambda: (command._hung.wait(), command.stop.set()))
    thread.start()
    assert command(capture) == "hang"
    thread.join()
    with pytest.raises(Stopped):
        command(capture)
    assert log.read_text() == "x"
    assert Recorder(command, tmp_path, "board").stop is command.stop
    assert Recorder(Manual(), tmp_path).stop is None


def test_interrupt_leaves_nothing(capture: Capture, program: Program, tmp_path: Path) -> None:
    sleeper = program(
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))",
        f"os.kill({os.getpid()}, signal.SIGINT)",
        "time.sleep(60)",
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Command(sleeper)(capture)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not alive(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"program": ""}, "^program: got '', allowed is a program and its arguments$"),
        ({"program": []}, r"^program: got \[\], allowed is"),
        ({"program": ["a", 3]}, r"^program: got \['a', 3\], allowed is .*not int"),
        ({"program": 7}, "^program: got 7, allowed is"),
        ({"program": "a 'b"}, "^program: got .*: No closing quotation$"),
        ({"program": "a\0b"}, "^program: got 'a.x00b', allowed is"),
        ({"program": ["a"], "shell": True}, "allowed with shell=True is one text"),
        ({"program": " ", "shell": True}, "^program: got ' ', allowed"),
        ({"reset": ""}, "^reset: got '', allowed"),
        ({"timeout": 0}, "^timeout: got 0, allowed is more than 0 seconds$"),
        ({"timeout": float("nan")}, "^timeout: got nan"),
        ({"reset_timeout": -1.0}, "^reset_timeout: got -1.0, allowed"),
        ({"cooldown": -1}, "^cooldown: got -1, allowed is 0 seconds or more$"),
        ({"retries": -1}, "^retries: got -1, allowed is a whole number, 0 or more$"),
        ({"retries": 1.5}, "^retries: got 1.5"),
        ({"expected": "good.bin"}, "^expected: got 'good.bin', allowed is bytes$"),
        ({"output": "../x"}, r"^output: got '../x', allowed is the plain name"),
        ({"retry_on": (0,)}, "got 0, which is the status of a run that is done"),
        ({"provenance": "dream"}, "^provenance: got 'dream', allowed is one of"),
    ],
)
def test_command_refuses(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Command(**{"program": "true", **options})  # type: ignore[arg-type]


def test_output_is_no_file_of_the_capture(capture: Capture, scratch: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"^output: got 'nn.bin', which the capture holds itself, allowed is another name$",
    ):
        Command("true", output="nn.bin")(capture)


def test_command_reads_as_what_makes_it() -> None:
    for command in (
        Command("true"),
        Command(["a b", "c"], timeout=3, reset="off", cooldown=1.5, output=None, hang_status=255),
        Command("a | b", shell=True, retry_on=(), provenance="simulated"),
    ):
        assert eval(repr(command), {"Command": Command}) == command
        assert isinstance(command, Device)
    assert repr(Command("true", expected=bytes(4000))) == "Command(('true',))"


def test_an_oracle_as_python(capture: Capture) -> None:
    board = Command(("ssh", "board", "{capture}"))
    assert as_code(board, capture) == f"npulab.{board!r}"
    assert as_code(replace(board, expected=capture.buffers["output"]), capture).startswith(
        "npulab.Command("
    )
    assert (
        as_code(replace(board, expected=b"other"), capture)
        == "npulab.Manual()  # asks a person; it was Command"
    )


def test_device_by_text() -> None:
    assert device("simulated", expected=b"x", timeout=3) == Simulated(b"x")
    command = device("command:ssh -T board 'run it'", expected=b"x", timeout=3)
    assert command == Command(("ssh", "-T", "board", "run it"), expected=b"x", timeout=3)
    assert device("manual") == Manual()
    assert device("manual:here") == Manual(folder="here")
    for text in ("", "simulated:", "command", "commands:x", "manual:", "ssh board"):
        with pytest.raises(
            ValueError,
            match=f"^device: got '{text}', allowed is simulated, command:PROGRAM ARGUMENTS, python:MODULE:CLASS, manual or manual:FOLDER$",
        ):
            device(text)
    with pytest.raises(ValueError, match=r"^program: got ''"):
        device("command:")


def test_person_answers(capture: Capture, tmp_path: Path) -> None:
    answers, said = iter(["what", "", " P ", "fail", "h"]), []
    manual = Manual(lambda _: next(answers), said.append, tmp_path / "trials")
    assert [manual(capture) for _ in range(3)] == ["pass", "fail", "hang"]
    wrong = "answer: got {!r}, allowed is p (pass), f (fail) or h (hang)"
    shown = [f"Run {tmp_path}/trials/trial-000{n}" for n in range(3)]
    assert said == [shown[0], wrong.format("what"), wrong.format(""), shown[1], shown[2]]
    given = npulab.load(tmp_path / "trials" / "trial-0002")
    assert given.jobs == capture.jobs
    assert "output" not in given.buffers

    def ended(_: str) -> str:
        raise EOFError

    with pytest.raises(EOFError):
        Manual(ended, said.append)(capture)
    assert said[-1] == f"Run {capture}"


def test_recorder_keeps_what_ran(captures: npulab.CaptureSet, tmp_path: Path) -> None:
    """Hangs have no output; what ran on the simulated device says so, whatever it came from."""
    good = captures["update4-vendor"]
    recorder = Recorder(Simulated(), tmp_path / "trials")
    trials = [good, good.with_fields(post_shift=3), good.with_fields(kernel_z_size=0)]
    outcomes = [recorder(trial) for trial in trials]
    assert outcomes == [Simulated()(trial) for trial in trials]
    assert outcomes[2] == "hang"
    kept = npulab.load_all(tmp_path / "trials")
    assert kept.names == ["trial-0000", "trial-0001", "trial-0002"]
    for trial, outcome, one in zip(trials, outcomes, kept, strict=True):
        assert one.jobs == trial.jobs
        assert one.simulated
        assert "simulated" in repr(one)
        assert one.source == good.source
        assert (one.parameters["outcome"], one.parameters["trial_of"]) == (
            outcome,
            "update4-vendor",
        )
        assert one.buffers.get("output") == Simulated().run(trial).output
    assert kept[2].parameters["reason"] == f"kernel_z_size is 0, {GUESS}"
    assert [one.tool for one in kept] == ["galcore, run as a trial by npulab"] + [
        "galcore, set with npulab, run as a trial by npulab"
    ] * 2
    assert not any(one.changed or one.date for one in kept)


def test_recorder_of_programs_and_oracles(
    capture: Capture, program: Program, tmp_path: Path
) -> None:
    folder = tmp_path / "trials"
    (folder / "trial-0041").mkdir(parents=True)
    assert (
        Recorder(Command(program(writes(b"board's")), provenance="board"), folder)(capture)
        == "fail"
    )
    assert Recorder(lambda _: "pass", folder, "RTL simulation")(capture) == "pass"
    one, other = npulab.load_all(folder)
    assert (one.name, one.provenance, one.buffers["output"], one.simulated) == (
        "trial-0042",
        "board",
        b"board's",
        False,
    )
    assert (other.name, other.provenance, other.date) == ("trial-0043", "RTL simulation", one.date)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", one.date)
    assert "output" not in other.buffers
    with pytest.raises(
        ValueError,
        match=r"^oracle: got 'maybe', allowed is one of pass, fail, hang, poisons, reboots, not executed, refused$",
    ):
        Recorder(lambda _: "maybe", folder, "board")(capture)
    assert len(list(folder.iterdir())) == 3


def test_recorder_refuses_to_guess_or_to_lie(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for maker, words in (
        (
            lambda: Recorder(Command("true"), tmp_path),
            "got None, allowed is that of the device, one of board, ",
        ),
        (
            lambda: Recorder(Simulated(), tmp_path, "board"),
            "got 'board', allowed is that of the device, simulated$",
        ),
        (
            lambda: Recorder(Simulated(), tmp_path / "file"),
            "^folder: got the file '.*file', allowed is a folder$",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            maker()


def test_register_writes_reach_the_program(
    captures: npulab.CaptureSet, program: Program, tmp_path: Path
) -> None:
    """A command stream that no longer holds the writes is not what the folder points to."""
    whole = captures["update4-mesa"]
    job = npulab.captures.capture.Job.from_writes(
        "STATE", [(0x3930, 0x10), (0x7000, 5)], whole.maps["STATE"]
    )
    copy = program("import shutil", f"shutil.copytree(here, {str(tmp_path / 'seen')!r})")
    Command(copy).run(replace(whole, jobs=(job,)))
    said = json.loads((tmp_path / "seen" / "capture.json").read_text())
    pairs = np.fromfile(tmp_path / "seen" / said["jobs"][0]["writes"], "<u4")
    assert pairs.tolist() == [0x3930, 0x10, 0x7000, 5]


# A device that a job leaves in another state


class Board:
    """A board that stays as a job leaves it: a job with the field ``relu`` spoils those after it,
    until the reset."""

    provenance = "board"

    def __init__(self) -> None:
        self.spoiled = False

    def run(self, capture: Capture) -> Run:
        output = b"bad" if self.spoiled else capture.buffers["output"]
        self.spoiled |= bool(capture.parameters.get("spoils"))
        return Run("done", output)

    def recover(self) -> None:
        self.spoiled = False

    def judge(self, capture: Capture, run: Run) -> str:
        return "pass" if run.output == b"good" else "fail"

    def __call__(self, capture: Capture) -> str:
        return self.judge(capture, self.run(capture))


def job(name: str, output: bytes = b"good", **parameters: Any) -> Capture:
    return Capture(name, "demo", "x", (), {"output": output}, parameters=parameters)


def test_a_probe_says_which_trial_poisons_a_board() -> None:
    probe = job("known-good")
    board = Probed(Board(), probe)
    assert [board(job("a")), board(job("b", spoils=True))] == ["pass", "poisons"]
    assert board(job("a")) == "pass"  # the board was reset
    run = Probed(Board(), probe).run(job("b", spoils=True))
    assert run.spoiled == "the known-good capture known-good then gives other bytes"
    # a trial that fails itself is reported as such, unless what it leaves is asked for
    failing = job("c", b"wrong", spoils=True)
    assert Probed(Board(), probe)(failing) == "fail"
    assert Probed(Board(), probe, before_failures=True)(failing) == "poisons"
    assert board.provenance == "board"


def test_a_probe_needs_an_output() -> None:
    empty = Capture("none", "demo", "x", ())
    with pytest.raises(ValueError, match="probe: got none, allowed is a capture with the output"):
        Probed(Board(), empty)


class Counter:
    """A device in Python that counts its runs; a job named "slow" never ends."""

    def __init__(self) -> None:
        self.runs = 0

    def run(self, capture: Capture) -> bytes:
        assert "output" not in capture.buffers
        self.runs += 1
        if capture.name == "slow":
            raise Hang("it never ends")
        return b"good"


def test_an_object_stays_up_between_runs() -> None:
    device = InProcess(Counter())
    assert [device(job("a")), device(job("b", b"other")), device(job("slow"))] == [
        "pass",
        "fail",
        "hang",
    ]
    assert device.device.runs == 3
    assert device.run(job("slow")).reason == "it never ends"
    assert InProcess(Counter(), b"good")(job("b", b"other")) == "pass"


def test_a_device_is_named_by_module_and_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_board.py").write_text(
        "class Board:\n    def run(self, capture):\n        return b'good'\n"
    )
    made = device("python:my_board:Board")
    assert isinstance(made, InProcess)
    assert made(job("a")) == "pass"
    for name, words in (
        ("python:my_board", "allowed is MODULE:CLASS"),
        ("python:my_board:Bored", "has no attribute 'Bored'"),
        ("python:no_such_board:Board", "No module named 'no_such_board'"),
    ):
        with pytest.raises(ValueError, match=words):
            device(name)


def test_wrong_objects_and_results_are_refused() -> None:
    with pytest.raises(ValueError, match=r"device: got 3, allowed is an object with run\(capture"):
        InProcess(3)

    class Says:
        def run(self, capture: Capture) -> str:
            return "pass"

    with pytest.raises(ValueError, match=r"Says.run: got 'pass', allowed are the output's bytes"):
        InProcess(Says()).run(job("a"))


def test_a_program_is_told_how_long_the_output_is(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import json, pathlib, sys\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "told = json.loads((folder / 'capture.json').read_text())\n"
        "count = told['parameters']['output_bytes']\n"
        "(folder / 'output.bin').write_bytes(b'g' * count)\n"
    )
    device = Command((sys.executable, str(program)))
    assert device(job("a", b"ggg")) == "pass"
    assert device(job("a", b"gg")) == "pass"


def test_a_run_is_shown_without_the_bytes_of_a_long_output() -> None:
    shown = repr(Run("done", bytes(4096), spoiled="the probe fails"))
    assert shown == "Run(done, 4096 bytes, CRC-32 0xc71c0011, spoiled='the probe fails')"
    assert repr(Run("done", b"ab")) == r"Run(done, output=b'ab')"
    assert repr(Run("hang", guessed=True)) == "Run(hang, guessed)"
    assert Run("done", b"ab") == Run("done", b"ab")
