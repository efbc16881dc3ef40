"""Register accesses in texts of any form, found by a regular expression; the text is libedgetpu's
verbose log as google-coral/edgetpu#492 and libedgetpu#69 show it.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import fuzz_mutators
import pytest

import npulab
from npulab import cli
from npulab.captures import logs
from npulab.captures.logs import capture_of_log, read_log
from npulab.notebook.widgets import WritesModel
from npulab.npus.template import Reading, new_target
from npulab.support import matching
from npulab.support.text import CONTROL, MOST_LETTERS

EDGETPU = """\
I driver/usb/usb_ml_commands.cc:110] ReadRegister32 [0x1A314] == 0x110000
I driver/usb/usb_ml_commands.cc:153] WriteRegister32 [0x1A314] := 0x150000
I driver/usb/usb_ml_commands.cc:110] ReadRegister32 [0x1A000] == 0x119089A
I driver/usb/usb_driver.cc:321] e-fuse programming revision: 1
I driver/usb/usb_ml_commands.cc:178] WriteRegister64 [0x4C148] := 0x1000000F0
"""
PATTERN = r"(?P<direction>Read|Write)Register(?P<width>\d+) \[(?P<address>\w+)\] \S+ (?P<value>\w+)"
WRITTEN = [(0x1A314, 0x150000), (0x4C148, 0xF0), (0x4C14C, 1)]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "edgetpu.txt"
    path.write_text(EDGETPU)
    return path


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert cli.main([str(one) for one in arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err.removeprefix("npulab: ").rstrip()


def test_reads_and_writes_are_kept_apart(log: Path) -> None:
    found = read_log(log, PATTERN)
    assert found.writes == WRITTEN
    assert found.read == [(0x1A314, 0x110000), (0x1A000, 0x119089A)]
    assert found.reads == [
        {
            "writes": writes,
            "address": address,
            "value": value,
            "width": 32,
            "times": 1,
            "line": line,
        }
        for writes, address, value, line in (
            (0, "0x1a314", "0x110000", 1),
            (1, "0x1a000", "0x119089a", 3),
        )
    ]
    assert (found.lines, [access.line for access in found.accesses]) == (5, [1, 2, 3, 5])


def test_a_log_becomes_a_target_and_a_capture(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "import", log, "captures", "--pattern", PATTERN)
    assert said.startswith("--target: got none, allowed with --pattern is one of ane, ")
    assert cli.main(["new", "coral", "--from", str(log), "--pattern", PATTERN]) == 0
    *_, following = capsys.readouterr().out.splitlines()
    command = shlex.split(following)[1:]
    assert command == [
        "import",
        str(log),
        "captures/coral",
        "--pattern",
        PATTERN,
        "--target",
        "coral",
    ]
    rows = npulab.target("coral").registers.registers
    assert [offset for _, offset, _ in rows] == [0x1A000, 0x1A314, 0x4C148, 0x4C14C]
    assert cli.main(command) == 0
    capture = npulab.load("captures/coral/edgetpu")
    assert list(capture.jobs[0].writes) == WRITTEN
    assert capture.parameters["reads"] == read_log(log, PATTERN).reads
    assert capture.parameters["log"] == [{"pattern": PATTERN, "lines": 5, "accesses": 4}]
    capsys.readouterr()
    assert cli.main(["show", "captures/coral/edgetpu"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^1 +0x1a000 +0x119089a +32 +1 +3$", shown, re.M)
    assert "written once: 0x150000; read once: 0x110000" in shown
    model = WritesModel(capture)
    layers = []
    for model.at in range(4):
        layers.append([text for name, text, _ in model.layer if name.startswith("then read")])
    assert layers == [["0x110000, times: 1"], ["0x119089a, times: 1"], [], []]


def test_equal_reads_in_a_row_are_one_row(tmp_path: Path) -> None:
    path = tmp_path / "poll.txt"
    path.write_text("w 10 1\n" + "r 14 0\n" * 1000 + "r 14 1\nw 10 2\nr 14 1\n")
    reads = read_log(path, r"(?P<direction>.) (?P<address>\w+) (?P<value>\w+)").reads
    found = [(row["writes"], row["value"], row["times"], row["line"]) for row in reads]
    assert found == [(1, "0x0", 1000, 2), (1, "0x1", 1, 1002), (2, "0x1", 1, 1004)]


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        (
            r"(?P<address>\w+",
            r"^--pattern: got '.*', allowed is a regular expression of Python: missing \), .*",
        ),
        (r"(?P<value>\w+)", r"^--pattern: got '.*', which has no group address; "),
        (r"(?P<address>\w+)", r"^--pattern: got '.*', which has no group value; "),
        (
            r"(?P<address>.)(?P<value>.)(?P<valu>.)",
            r"^--pattern: got the group 'valu', allowed are address, .*; near is value",
        ),
        ("(" * 600 + ")" * 600, r"^--pattern: got 1200 letters, allowed are at most 1000$"),
        ("(" * 400 + ")" * 400, r"^--pattern: got .*, which has no group address; "),
        (
            r"XX(?P<address>.)(?P<value>.)",
            r"edgetpu.txt: --pattern matches none of 5 lines, .*; the first line is 'I driver/",
        ),
        (
            r"\[(?P<address>\w+)\] \S+ (?P<value>\S+)(?P<width>)",
            r"edgetpu.txt, line 1: width: got '', allowed is 32 or 64$",
        ),
        (
            r"(?P<direction>driver).*\[(?P<address>\w+)\] \S+ (?P<value>\S+)",
            r"line 1: direction: got 'driver', allowed is a text that begins with r or w",
        ),
        (
            r"(?P<address>[RW]\w+) \[(?P<value>\w+)",
            r"line 1: address: got 'ReadRegister32', allowed is a hexadecimal number of at most 64",
        ),
        (
            r"\[(?P<value>\w+)\] \S+ (?P<address>\w+)",
            r"line 3: address: got 0x119089a, allowed is a multiple of 4",
        ),
        (
            r"\[(?P<address>\w+)\] := (?P<value>\w+)",
            r"line 5: value: got '0x1000000F0', allowed is a hexadecimal number of at most 32 bits",
        ),
        (
            r"Read\w+ \[(?P<address>\w+)\] \S+ (?P<value>\w+)(?P<direction>)?",
            r"line 1: direction: got ''",
        ),
    ],
)
def test_a_pattern_that_does_not_fit_is_one_sentence(
    pattern: str, sentence: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "import", log, "captures", "--pattern", pattern, "--target", "rockchip")
    assert re.search(sentence, said)
    assert not Path("captures").exists()


def test_bytes_of_a_console_that_are_no_text_do_no_harm(log: Path) -> None:
    log.write_bytes(b"\xc7\x00\xff\r\n" + EDGETPU.replace("\n", "\r\n").encode())
    found = read_log(log, f"{PATTERN}$")
    assert (found.writes, found.accesses[0].line) == (WRITTEN, 2)


@pytest.mark.parametrize("odd", ["\0", "\ud800", "é", "\n"])
def test_a_pattern_may_have_any_letter(odd: str, log: Path) -> None:
    assert read_log(log, f"{PATTERN}(?:{odd})?").writes == WRITTEN
    with pytest.raises(ValueError, match="has no group address"):
        read_log(log, odd)


def test_a_log_of_reads_alone_holds_no_job(log: Path) -> None:
    pattern = r"(?P<direction>Read)\w+ \[(?P<address>\w+)\] \S+ (?P<value>\w+)"
    with pytest.raises(ValueError, match=r"got 2 reads and no write, allowed is at least one"):
        capture_of_log(log, pattern, "rockchip")


def test_registers_of_another_npu_are_refused(log: Path) -> None:
    with pytest.raises(ValueError, match=r"edgetpu\.txt: got a write to 0x1a314, allowed are addr"):
        capture_of_log(log, PATTERN, "rockchip")
    with pytest.raises(LookupError, match=r"got 'rockchop'.*near is rockchip"):
        capture_of_log(log, PATTERN, "rockchop")
    with pytest.raises(LookupError, match="chip: got 'rk1', target rockchip knows rk3588"):
        capture_of_log(log, PATTERN, "rockchip", "rk1")


@pytest.mark.parametrize(
    "reads", [[], [{}], [{"writes": []}], "x", [{"writes": 1, "value": {}}], 3]
)
def test_a_view_bears_any_parameter_of_that_name(reads: Any, coral: None, log: Path) -> None:
    capture = capture_of_log(log, PATTERN, "coral")
    model = WritesModel(replace(capture, parameters={"reads": reads}))
    model.at = 1
    assert [name for name, _, _ in model.layer[:3]] == ["register", "offset", "value"]


def test_a_pattern_that_takes_for_ever_is_ended(log: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(logs, "SECONDS", 0.5)
    log.write_text(f"a 10 1\n{'a' * 100}\n")
    began = time.monotonic()
    with pytest.raises(
        ValueError, match=r"is not done after 1 seconds?, line 1 was the last match"
    ):
        read_log(log, r"^(\w+\s?)+ (?P<address>\w+) (?P<value>\w+)$")
    assert time.monotonic() - began < 8


def test_more_accesses_than_are_held_are_refused(log: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(logs, "MOST_ACCESSES", 3)
    with pytest.raises(
        ValueError, match=r"edgetpu\.txt: got more than 3 accesses, allowed is a text with fewer$"
    ):
        read_log(log, PATTERN)


def test_letters_past_the_most_are_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("w 10 1\n" + " " * matching.MOST_LETTERS + "w 14 1\n")
    assert read_log(path, r"w (?P<address>\w+) (?P<value>\w+)").writes == [(0x10, 1)]


def damaged(number: int) -> bytes:
    return fuzz_mutators.change_text(Random(f"log:{number}"), EDGETPU.encode())


def outcome(path: Path) -> str:
    """The sentence that refuses a log, "" if it is read."""
    try:
        capture = capture_of_log(path, PATTERN, "coral")
    except ValueError as error:
        return str(error)
    json.dumps(capture.parameters)
    return ""


def read_damaged(numbers: range, path: Path) -> tuple[int, int]:
    """How many damaged logs were read, and how many were refused in one sentence."""
    refusals = 0
    for number in numbers:
        path.write_bytes(damaged(number))
        said = outcome(path)
        assert not CONTROL.search(said), number
        assert len(said) < MOST_LETTERS, number
        assert "\n" not in said, number
        assert not said or said.startswith(str(path)), (number, said)
        refusals += bool(said)
    return len(numbers) - refusals, refusals


@pytest.fixture
def coral(log: Path) -> None:
    """A target of the log's registers."""
    new_target("coral", None, None, log, Reading(pattern=PATTERN))


def test_damaged_logs(coral: None, tmp_path: Path) -> None:
    read, refusals = read_damaged(range(6), tmp_path / "a.txt")
    assert read
    assert refusals


@pytest.mark.long
def test_many_damaged_logs(coral: None, tmp_path: Path) -> None:
    read, refusals = read_damaged(range(6, 10_000), tmp_path / "a.txt")
    assert min(read, refusals) > 1000
