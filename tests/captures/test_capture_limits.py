"""What captures, journals, listings and made layers do exactly at their limits, and what they
say word for word.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CAPTURES

import npulab
from npulab.captures.capture import MOST_STARTS, Capture, CaptureSet, Job
from npulab.captures.devices import NOT_RUN, Command, Manual, Simulated, _next_trial, as_code
from npulab.captures.documents import Document, Finding, Findings
from npulab.captures.dumps import folder_importer
from npulab.captures.folders import capture_files, plain_name
from npulab.captures.journal import Journal, Trial
from npulab.captures.layers import complete_ranges, made
from npulab.captures.listing import ALL, Decoded, Wanted, folded
from npulab.captures.registry import target
from npulab.captures.sources import Compiler, Lowered, reader_of
from npulab.captures.unrecognised import sentence_of
from npulab.captures.writes import read_writes, rows_of_writes
from npulab.cli import main
from npulab.registers.map import RegisterMap

TABLE = [
    {"block": "A", "offset": 0, "register": "CFG", "field": "mode", "lsb": 0, "width": 4},
    {"block": "A", "offset": 4, "register": "SIZE", "field": "rows", "lsb": 0, "width": 16},
    {
        "block": "A",
        "offset": 8,
        "register": "FREE",
        "field": "set",
        "lsb": 0,
        "width": 8,
        "access": "ro",
    },
]
A = RegisterMap(TABLE)
# a layer of one place, whose channels a test says
AXES = [f"{name}_{axis}" for name in ("input", "kernel", "stride") for axis in "hw"]
ONES = dict.fromkeys([*AXES, "input_scale", "weight_scale", "output_scale"], 1)
B = RegisterMap(
    [{"block": "B", "offset": 0x100, "register": "GO", "field": "go", "lsb": 0, "width": 1}],
    dense=False,
)


def capture(**more: Any) -> Capture:
    return Capture("one", "vivante", "x", (Job("A", [0x31, 7, 0]),), maps={"A": A, "B": B}, **more)


def test_trials_and_journals_in_a_line() -> None:
    for count, told in (
        (0, "nothing changed"),
        (1, "a"),
        (3, "a, b, c"),
        (4, "a, b, and 2 more"),
        (5, "a, b, and 3 more"),
    ):
        assert repr(Trial(tuple("abcde"[:count]), "why", "pass")) == f"Trial(pass: {told}; why)"
    journal = Journal()
    told = []
    for outcome in ("pass", "hang", "hang"):
        journal.add(Trial(("a",), "", outcome))
        told.append(repr(journal))
    assert told == [
        "Journal(1 trial, 0 hung)",
        "Journal(2 trials, 1 hung)",
        "Journal(3 trials, 2 hung)",
    ]
    for count in (0, 4, True):
        with pytest.raises(
            ValueError, match=rf"^undo: got {count}, allowed is 1 to 3, the number of trials$"
        ):
            journal.undo(count)
    journal.undo(2)
    assert [trial.outcome for trial in journal] == ["pass"]
    journal.add(Trial(("a",), "", "pass", 1.23456))
    assert '"seconds": 1.2346,' in journal.text.splitlines()[-1]
    journal.undo(2)
    assert (len(journal), repr(journal)) == (0, "Journal(0 trials, 0 hung)")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"trial": 1}, "trial: got another number, allowed is 0"),
        ({"subset": "ab"}, "subset: got 'ab'"),
        ({"subset": ["a", 1]}, "subset: got "),
        ({"outcome": "maybe"}, "outcome: got 'maybe', allowed is one of pass"),
        ({"seconds": "1"}, "got values of other types, allowed are a text, a number and a text"),
        ({"reason": 1}, "got values of other types"),
        ({"time": None}, "got values of other types"),
    ],
)
def test_a_line_that_is_no_trial(tmp_path: Path, entry: dict[str, Any], words: str) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path, {"a": 1}).add(Trial(("a", "b"), "why", "pass", 0.5, more={"x": 1}))
    head, line = path.read_text().splitlines()
    assert Journal.read(path)[0].more == {"x": 1}
    path.write_text(f"{head}\n{json.dumps(json.loads(line) | entry)}\n")
    with pytest.raises(ValueError, match=rf"journal\.jsonl, line 2: .*{words}"):
        Journal.read(path)


def test_numbers_of_a_job_have_32_bits_and_offsets_64() -> None:
    assert Job("A", [0, 2**32 - 1]).words.tolist() == [0, 2**32 - 1]
    for words in ([-1], [2**32], [0.0], [[1]], 1):
        with pytest.raises(
            ValueError,
            match=r"^words: got .* of shape .*, allowed are whole numbers from 0 to 0xffffffff in one row \(block A\)$",
        ):
            Job("A", np.array(words))
    last = Job.from_writes("A", [(2**64 - 1, 2**32 - 1), (0, 0)], A)
    assert last.writes == ((2**64 - 1, 2**32 - 1), (0, 0))
    for write in ((2**64, 0), (-1, 0), (0, 2**32), (0, -1)):
        with pytest.raises(
            ValueError,
            match=r"allowed are values of 0 to 0xffffffff at offsets of at most 64 bits|\(block A\)",
        ):
            Job.from_writes("A", [write], A)
    for job, wide in (
        (last, True),
        (Job.from_writes("A", [(2**32 - 1, 5)], A), False),
        (Job.from_writes("A", [(2**32, 5)], A), True),
    ):
        name = "writes64" if wide else "writes"
        files = capture_files(replace(capture(), jobs=(job,)), lambda _: None)  # type: ignore[arg-type, return-value]
        described = json.loads(files["capture.json"])["jobs"][0]
        assert [key for key in described if key.startswith("writes")] == [name]
        assert len(files[described[name]]) == len(job.writes) * (16 if wide else 8)


def test_the_last_write_to_an_offset_is_changed() -> None:
    job = Job.from_writes("A", [(0, 1), (4, 2), (0, 3)], A)
    assert job.with_words([9, 2, 0], A).writes == ((0, 1), (4, 2), (0, 9))
    assert job.with_words([3, 2, 5], A).writes == ((0, 1), (4, 2), (0, 3), (8, 5))
    assert job.with_words(job.words, A) == job
    with pytest.raises(
        ValueError, match=r"^words: got shape \(2,\), allowed is \(3,\) \(block A\)$"
    ):
        job.with_words([1, 2], A)
    assert job.state == {0: 3, 4: 2}
    after = Job.from_writes("A", [(8, 7)], A, job)
    assert (after.words.tolist(), after.before) == ([3, 2, 7], ((0, 3), (4, 2)))


def test_writes_are_split_by_address() -> None:
    jobs, rest = Job.split([(0, 1), (0x100, 1), (4, 2), (0x200, 3)], {"A": A, "B": B})
    assert [(job.block, job.writes) for job in jobs] == [
        ("A", ((0, 1), (4, 2))),
        ("B", ((0x100, 1),)),
    ]
    assert rest == [(0x200, 3)]
    later, _ = Job.split(
        [(0, 5)], {"A": A, "B": B}, [*jobs, Job.from_writes("A", [(8, 9)], A, jobs[0])]
    )
    assert later[0].words.tolist() == [5, 2, 9]  # behind the last of its block
    assert Job.split([(4, 1)], A)[0][0].block == "A"


def test_fields_change_what_a_capture_says_of_itself() -> None:
    one = capture()
    assert one.with_fields(mode=1) is one
    other = one.with_fields(rows=8)
    assert (other.words.tolist(), other.tool, other.changed, other.folder) == (
        [0x31, 8, 0],
        "changed with npulab",
        True,
        None,
    )
    assert other.with_fields(mode=2).tool == "changed with npulab"
    assert other.origin == "board, changed"
    with pytest.raises(
        ValueError,
        match=r"^fields: got FREE.set, which is read-only, allowed is a field that a driver can set$",
    ):
        one.with_fields(set=1)
    for task in (-1, 1):
        with pytest.raises(LookupError, match=rf"^capture one: got task {task}, it has 0 to 0$"):
            one.with_job(one.jobs[0], task)
    both = replace(one, jobs=(Job("B", [1]), *one.jobs, Job("A", [1, 1, 1])))
    assert (both.main, both.words.tolist()) == (1, [0x31, 7, 0])
    assert both.words_of("A").tolist() == [[0x31, 7, 0], [1, 1, 1]]
    assert both.with_fields(rows=8).jobs[1].words.tolist() == [0x31, 8, 0]
    assert repr(one) == "Capture(vivante/one, x, board, 1 job)"
    assert (
        repr(both.with_buffers(input=b"abc"))
        == "Capture(vivante/one, x, board, changed, 3 jobs, input 3 B)"
    )


def test_names_of_files_have_255_bytes() -> None:
    for name in ("a" * 255, "é" * 127, "a.b"):
        plain_name(name, "buffer")
    for name in ("a" * 256, "é" * 128, "", ".", "..", "a/b", "a\\b", "capture.json"):
        with pytest.raises(
            ValueError,
            match=r"^buffer: got .*, allowed is the plain name of a file inside the folder$",
        ):
            plain_name(name, "buffer")
    with pytest.raises(
        ValueError,
        match=r"got 'a\.bin', which another buffer or job of the capture has, "
        r"allowed is another name$",
    ):
        capture_files(capture(buffers={"a": b"1"}), lambda _: None)  # type: ignore[arg-type, return-value]


def test_oracles_as_code() -> None:
    good = capture(buffers={"output": b"12"})
    for given, code in (
        (Simulated(), "npulab.Simulated()"),
        (Simulated(b"12"), "npulab.Simulated()"),
        (Manual(), "npulab.Manual()  # asks a person; it was Manual"),
        (None, "npulab.Manual()"),
        (lambda _: True, "npulab.Manual()  # asks a person; it was a function"),
        (ask, "npulab.Manual()  # asks a person; it was ask"),
    ):
        assert as_code(given, good) == code
    assert as_code(Simulated(b"13"), good) not in ("npulab.Simulated()", "npulab.Manual()")
    for expected, kept in ((None, True), (b"12", True), (b"13", False)):
        assert (
            as_code(Command("program", expected=expected), good).startswith(
                "npulab.Command(" if kept else "npulab.Manual()"
            )
            is True
        )


def ask(_: Any) -> bool:
    return True


def parts_of(one: Capture, wanted: Wanted = ALL) -> list[str]:
    return [str(part) for part in Decoded(one, wanted).parts]


def test_what_is_listed_of_a_capture() -> None:
    tables = {
        "layers": [{"name": "conv", "n": 1}, {"name": "pool", "n": 2}],
        "mixed": [{"name": "x"}, 3],
        "none": [],
        "k": 3,
    }
    shown = Decoded(capture(parameters=tables, source="who"), ALL).parts
    assert [part for part in shown if isinstance(part, str)][1:] == ["source who", "layers:"]
    assert "conv" in str(shown[3])
    assert Decoded(capture(), Wanted("nothing")).rows == []
    assert [row["field"] for row in Decoded(capture(), Wanted("CFG.*")).rows] == ["mode", "w0_4_28"]
    assert [row["field"] for row in Decoded(capture(), Wanted(nonzero=True)).rows] == [
        "mode",
        "w0_4_28",
        "rows",
    ]
    assert [
        row["field"] for row in Decoded(capture(), Wanted(unknown=True, nonzero=True)).rows
    ] == ["w0_4_28"]
    assert Decoded(capture(), Wanted(addresses=True)).rows == []
    assert len(parts_of(capture(), Wanted("nothing"))) == 2


def test_units_with_numbers_in_a_row_are_one() -> None:
    def told(*units: str) -> Any:
        jobs = [Job("L", [0], label="l", unit=unit) for unit in units]
        return folded([{"task": n, "a": 7} for n in range(len(units))], jobs)[0]["task"]

    assert told("g 0", "g 1", "g 2") == "l, g 0-2"
    assert told("g 0") == "l, g 0"
    assert told("g 1", "g 3", "g 4") == "l, g 1, g 3-4"
    assert told("g 1", "h 2") == "l, g 1, h 2"
    assert told("g", "g 0") == "l, g, g 0"
    assert told("g", "h") == "l, g, h"
    assert told("7", "8") == "l, 7-8"


def test_layers_of_2_to_the_21_weights_are_made() -> None:
    size = ONES
    layer, x = made({**size, "input_c": 2**11, "output_c": 2**10})
    assert (layer.weights.size, x.shape) == (2**21, (1, 1, 2**11))  # type: ignore[union-attr]
    assert (int(layer.weights.min()), int(layer.weights.max())) == (0, 255)  # type: ignore[union-attr]
    with pytest.raises(
        ValueError,
        match=r"^layer: got a tensor of shape \(1025, 1, 1, 2048\), "
        r"allowed are at most 2097152 elements$",
    ):
        made({**size, "input_c": 2**11, "output_c": 2**10 + 1})
    again, other = (
        made({**size, "input_c": 3, "output_c": 2}, seed)[1].tolist() for seed in (0, 1)
    )
    assert made({**size, "input_c": 3, "output_c": 2})[1].tolist() == again != other
    for name, same, shape in (("op", 0, (5, 5)), ("same", 1, (7, 7))):
        layer = made(
            {
                **size,
                "kernel_h": 3,
                "kernel_w": 3,
                "input_h": 7,
                "input_w": 7,
                "input_c": 1,
                "output_c": 1,
                name: same,
            }
        )[0]
        assert layer.output_shape[-3:-1] == shape
    real = made({**size, "op": 4, "input_c": 500}, dtype="float16")[1]
    assert set(np.unique(real * 16 % 1)) == {0}
    assert -8 <= real.min() < -7.5 < 7.5 < real.max() < 8


def test_ranges_by_one_name_for_both_axes() -> None:
    found = complete_ranges({"kernel": [3], "op": "add"})
    assert ("kernel" in found, "kernel_h" in found, "kernel_w" in found, "stride_h" in found) == (
        True,
        False,
        False,
        True,
    )
    assert found["op"] == [4]
    assert complete_ranges({"op": [0, 4, "conv"]})["op"] == [0, 4, 0]
    for op in (5, -1, "gelu"):
        with pytest.raises(
            ValueError, match=rf"^ranges: got op {op!r}, allowed is one of conv, fully_connected"
        ):
            complete_ranges({"op": [op]})
    with pytest.raises(
        ValueError,
        match=r"^ranges: got 'kernels', allowed is one of op, .*, kernel, stride; near are kernel, kernel_h, kernel_w$",
    ):
        complete_ranges({"kernels": [3]})


def test_what_is_seen_of_what_a_compiler_left() -> None:
    def left(out: Path) -> Capture:
        return replace(
            capture(),
            jobs=(Job("A", [1, 2, 3]), Job("A", [1, 2, 3]), Job("B", [0])),
            buffers=buffers,
        )

    size = {**ONES, "input_c": 3, "output_c": 2}
    run = Compiler([sys.executable, "-Sc", "pass", "{model}"], read=left)
    buffers = {"weights": b"12345", "stream": b"1", "output": b"22"}
    answer = run(size)
    assert answer.outcome == "captured"
    assert answer.capture is not None
    assert (answer.capture.provenance, len(answer.capture.buffers["input"])) == ("compiler", 3)
    assert {
        name: value for name, value in answer.parameters.items() if not name.startswith("output_")
    } == {"weights_bytes": 5.0, "a_jobs": 2.0, "b_jobs": 1.0}
    buffers["input"] = b"own"
    assert run(size).capture.buffers["input"] == b"own"  # type: ignore[union-attr]


def test_what_a_compiler_left_that_no_target_recognises(tmp_path: Path) -> None:
    for names in ("nothing", "a, b"):
        with pytest.raises(
            ValueError,
            match=rf"^{tmp_path.name}: got {names}, allowed is a file or a folder that vivante recognises \(text dump of ",
        ):
            reader_of("vivante")(tmp_path)
        for name in "ba":
            (tmp_path / name).write_bytes(b"\xff")


def test_a_dump_s_write_that_no_register_has(tmp_path: Path) -> None:
    reader = folder_importer("mine", {"x": {}}, {"A": A, "B": B})
    (tmp_path / "job.json").write_text('{"npu": "mine"}')
    (tmp_path / "writes.txt").write_text("0x4 0x7\n0x100 0x1\n")
    (found,) = reader.read(tmp_path).values()
    assert [job.block for job in found.jobs] == ["A", "B"]  # type: ignore[union-attr]
    (tmp_path / "writes.txt").write_text("0x4 0x7\n0x204 0x1\n")
    with pytest.raises(
        ValueError,
        match=r"writes\.txt: got a write to 0x204, allowed are addresses of registers\.csv$",
    ):
        reader.read(tmp_path)


def test_what_was_written_to_a_register() -> None:
    for values, note in (
        ([5], "once: 0x5"),
        ([5, 5], "2 times: 0x5"),
        ([4, 1, 3, 2], "4 times: 0x4, 0x1, 0x3, 0x2"),
        ([1, 2, 3, 4, 5], "5 times: 0x1, 0x2, 0x3, 0x4 and 1 more"),
        ([1, 2, 3, 4, 5, 6, 6], "7 times: 0x1, 0x2, 0x3, 0x4 and 2 more"),
    ):
        (row,) = rows_of_writes([(8, value) for value in values], "JOB")
        assert row == {
            "block": "JOB",
            "offset": 8,
            "register": "r0008",
            "lsb": 0,
            "width": 32,
            "evidence": "unknown",
            "note": f"written {note}",
        }
    assert [row["offset"] for row in rows_of_writes([(8, 1), (0, 2, 3)])] == [0, 8]


@pytest.mark.parametrize(
    ("line", "writes"),
    [
        ("0x4 0x7", (4, 7)),
        ("write 0x4 = 0x7 mask 0xF ; 0x1", (4, 7, 15)),
        ("0x4", None),
        ("0x4 1", None),
        ("0x4 1 2 0x3 0x4 0x5", None),
        ("0x6 0x1", None),
    ],
)
def test_lines_of_writes(tmp_path: Path, line: str, writes: tuple[int, ...] | None) -> None:
    path = tmp_path / "writes.txt"
    path.write_text(f"# first\n\n{line}\n")
    if writes:
        assert read_writes(path) == [writes]
    else:
        with pytest.raises(
            ValueError,
            match=r"writes\.txt line 3: got '.*', allowed is an address and a value, .*; addresses are multiples of 4$",
        ):
            read_writes(path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty, "),
        (b"\xff" * 4, "is 4 bytes, no target"),
        (b"\xff" * 8, "is 2 words of 32 bits or other bytes"),
        (b"\xff" * 9, "is 9 bytes, no target"),
        (b"\xff" * 4 * 2**16, "is 65536 words of 32 bits"),
        (b"\xff" * (4 * 2**16 + 4), "is 262148 bytes"),
        (b"\xff", "is 1 byte, no target"),
        (b"x" * 4095 + "é".encode(), "is text"),
        (b"x" * 4094 + b"\xff\xff", "is 1024 words"),
        (b"x" * 4000 + b"\xff" * 96, "is 1024 words"),
        (b"a\tb\n\x1b[0m", "is text"),
        (b"a\x01b\0", "is 4 bytes"),
        (b"a b~\x7f", "is text"),
        (b"MZ" * 4, "is a Windows program"),
        (b"PK\x03\x04", "is a zip archive"),
    ],
)
def test_files_that_no_target_recognises(tmp_path: Path, data: bytes, said: str) -> None:
    for name, command in (
        ("a.bin", f"--from {tmp_path / 'a.bin'}"),
        ("a.dat", f"--words {len(data) // 4}"),
    ):
        (tmp_path / name).write_bytes(data)
        told = sentence_of(tmp_path / name)
        assert told.startswith(f"{tmp_path / name}: {said}")
        assert (f"npulab new NAME {command}" in told) == ("words" in said)


def test_what_was_found_in_a_document() -> None:
    wrong, note = Finding(3, "a", "bad", "S", True), Finding(0, "b", "fine")
    for found, ok, head in (
        ((), True, "no error, 0 notes"),
        ((note,), True, "no error, 1 note"),
        ((wrong,), False, "1 error, 0 notes"),
        ((wrong, note, wrong, note), False, "2 errors, 2 notes"),
    ):
        findings = Findings("d", found)
        assert (findings.ok, str(findings).splitlines()[0]) == (ok, f"d: {head}")
        assert findings.records()[0] == {
            "case": "d",
            "verdict": "right" if ok else "wrong",
            "findings": len(found),
        }
    assert [row["line"] for row in Findings("d", (wrong, note)).rows] == [3, None]
    document = Document("d", "title", {"t": [{"x": 1}], "none": []}, (note,))
    assert document.records()[:2] == [
        {"table": "t", "x": 1},
        {
            "table": "findings",
            "finding": "note",
            "line": None,
            "about": "b",
            "text": "fine",
            "source": "",
        },
    ]
    assert [
        line for line in str(document).splitlines() if line.endswith(":") or line == "title"
    ] == ["title", "t:"]


def test_a_job_goes_on_from_the_job_of_its_own_copy() -> None:
    units = RegisterMap(
        [
            {"block": "U", "offset": "0x1000", "field": "core", "count": "2", "stride": "0x100"},
            {"block": "U", "offset": 0, "register": "CFG", "field": "mode", "lsb": 0, "width": 8},
            {"block": "U", "offset": 4, "register": "SIZE", "field": "rows", "lsb": 0, "width": 8},
        ]
    )
    first, _ = Job.split([(0x1000, 1), (0x1004, 2), (0x1100, 3), (0x1104, 4)], units)
    again, rest = Job.split([(0x1004, 7), (0x1104, 8)], units, [*first, Job("V", [9, 9])])
    assert [job.words.tolist() for job in again] == [[1, 7], [3, 8]]
    assert rest == []


def test_an_output_of_exactly_the_largest_size_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("npulab.captures.devices.LARGEST", 4)
    by = Command((sys.executable, "-c", "pass"))
    for data, told in (
        (b"1234", (b"1234", "")),
        (b"12345", (None, "output.bin: got 5 bytes, allowed are at most 4")),
    ):
        (tmp_path / "output.bin").write_bytes(data)
        assert by._output_in(tmp_path) == told


def test_the_first_line_of_a_version_is_kept() -> None:
    command = [sys.executable, "-Sc", "pass", "{model}"]
    for lines, told in (("one\\ntwo", "one"), ("x" * 500, "x" * 400), ("", "")):
        assert (
            Compiler(command, version=[sys.executable, "-Sc", f"print('{lines}', end='')"]).record[
                "version"
            ]
            == told
        )


def test_a_file_that_holds_no_capture_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"a": {"none": ValueError("broken")}, "b": {"one": capture()}}

    class Importer:
        def recognises(self, path: Path) -> bool:
            return path.name in found

        def read(self, path: Path) -> dict[str, Any]:
            return found[path.name]

    monkeypatch.setattr(
        "npulab.captures.sources.target", lambda name: type("Of", (), {"importers": [Importer()]})
    )
    for name in found:
        (tmp_path / name).touch()
    assert reader_of("any")(tmp_path) == capture()


def test_captures_are_equal_wherever_they_were_read() -> None:
    here = replace(capture(), folder=Path("here"))
    assert here == capture()
    assert here == replace(capture(), maps={})
    assert here != replace(capture(), source="elsewhere")
    assert "here" not in repr(here)


def test_a_trial_keeps_the_time_that_it_has() -> None:
    journal = Journal()
    journal.add(Trial(("a",), "", "pass", 0.5, "2026-01-02T03:04:05.678+00:00"))
    journal.add(Trial(("a",), "", "pass", 0.5))
    first, second = (json.loads(line) for line in journal.text.splitlines()[-2:])
    assert (first["time"], second["time"][:2]) == ("2026-01-02T03:04:05.678+00:00", "20")


@pytest.mark.parametrize(
    ("status", "ran"),
    [
        (0, True),
        (1, True),
        (125, True),
        (126, False),
        (127, False),
        (128, True),
        (254, True),
        (255, False),
        (-signal.SIGHUP, False),
        (-signal.SIGINT, False),
        (-signal.SIGKILL, False),
        (-signal.SIGTERM, False),
        (-signal.SIGSEGV, True),
        (signal.SIGINT, True),
    ],
)
def test_ends_by_which_nothing_ran(status: int, ran: bool) -> None:
    assert (status not in NOT_RUN) == ran


def test_a_lowered_layer_is_of_the_chip_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[dict[str, Any]]()

    def lower(layer: Any, **options: Any) -> Capture:
        asked.append({name: value for name, value in options.items() if name != "x"})
        return capture()

    monkeypatch.setattr(
        "npulab.captures.sources.target",
        lambda name: type("Of", (), {"lower": staticmethod(lower), "allowed": {}}),
    )
    size = {**ONES, "input_c": 3, "output_c": 2}
    for source in (Lowered("t"), Lowered("t", "c"), Lowered("t", options={"a": 1})):
        assert source(size).outcome == "captured"
    assert asked == [{}, {"chip": "c"}, {"a": 1}]


def test_what_is_said_of_a_job() -> None:
    assert repr(Job("A", [1, 2])) == "Job(A, 2 words)"
    assert (
        repr(replace(Job.from_writes("A", [(0, 1), (4, 2)], A), label="x", start=Job("B", [1])))
        == "Job(A, 3 words, 2 writes, x, Job(B, 1 words))"
    )


def test_masks_of_what_starts_a_job_need_readers_of_the_second_format() -> None:
    plain, masked = Job.from_writes("B", [(0x100, 1)], B), Job.from_writes("B", [(0x100, 1, 1)], B)
    for start, number in ((None, 1), (plain, 1), (masked, 2), (replace(plain, start=masked), 2)):
        files = capture_files(
            replace(capture(), jobs=(replace(capture().jobs[0], start=start),)), None
        )  # type: ignore[arg-type]
        assert json.loads(files["capture.json"])["format"] == number


def test_trials_are_numbered_from_the_last_on(tmp_path: Path) -> None:
    for names, following in (
        ((), "trial-0000"),
        (("trial-0009", "trial-x", "trial-"), "trial-0010"),
        (("trial-9999",), "trial-10000"),
    ):
        for name in names:
            (tmp_path / name).mkdir()
        assert _next_trial(tmp_path) == tmp_path / following


def test_the_sources_of_what_is_listed_are_named(captures: CaptureSet) -> None:
    case = captures["update4-mesa"]
    used = {row["evidence"] for row in Decoded(case, ALL).rows}
    sources = {code: text for code, text in target("vivante").sources.items() if code in used}
    assert sources
    parts = [part for part in Decoded(case, ALL).parts if isinstance(part, str)]
    assert {f"evidence {code}: {text}" for code, text in sources.items()} == {
        part for part in parts if part.startswith("evidence ")
    }
    nothing = Decoded(case, Wanted("no_such_field"))
    assert not [
        part for part in nothing.parts if isinstance(part, str) and part.startswith("evidence ")
    ]


def test_a_lowered_layer_has_seed_0_if_no_other_is_named() -> None:
    source, size = (
        Lowered("vivante", "vipnano-si-imx8mp"),
        {
            "input_h": 8,
            "input_w": 8,
            "input_c": 4,
            "output_c": 4,
            "kernel_h": 1,
            "kernel_w": 1,
            "stride_h": 1,
            "stride_w": 1,
            "input_scale": 1,
            "weight_scale": 1,
            "output_scale": 1,
            "weight_zero_point": 128,
        },
    )
    first, same, other = source(size), source(size, 0), source(size, 1)
    assert first.outcome == "captured", first.text
    assert first.capture.buffers == same.capture.buffers  # type: ignore[union-attr]
    assert first.capture.buffers != other.capture.buffers  # type: ignore[union-attr]


def started(depth: int) -> Job:
    job = Job("NN", np.zeros(34, np.uint32))
    for _ in range(depth):
        job = replace(job, start=job)
    return job


def test_jobs_that_start_each_other_have_a_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = npulab.load(CAPTURES / "vivante" / "sim-1x1")
    deepest = replace(one, jobs=(replace(one.jobs[0], start=started(MOST_STARTS - 1)),))
    folder = npulab.save(deepest, tmp_path / "deep")
    again = npulab.load(folder)
    assert again.jobs == deepest.jobs
    assert "deep" in repr(again)
    assert repr(again.jobs[0]).count("Job(NN") == MOST_STARTS + 1
    assert len(again._repr_html_()) > 100
    assert len(npulab.diff(again, again)) == 0
    with pytest.raises(
        ValueError,
        match=rf"^start: got jobs nested more than {MOST_STARTS} deep, allowed is a depth of {MOST_STARTS} \(block NN\)$",
    ):
        started(MOST_STARTS + 1)
    told = json.loads((folder / "capture.json").read_text())
    for depth in (MOST_STARTS + 1, 200, 2000):
        text = json.dumps({**told, "jobs": ["JOB"]})
        inner = {**told["jobs"][0]}
        inner.pop("start")
        level = json.dumps(inner)
        nested = f'{level[:-1]}, "start": ' * depth + level + "}" * depth
        (folder / "capture.json").write_text(text.replace('"JOB"', nested))
        with pytest.raises(
            ValueError,
            match=r"(jobs: got a job with start nested more than 16 deep, allowed is a depth of 16|is not JSON.*)$",
        ) as caught:
            npulab.load(folder)
        assert "\n" not in str(caught.value)
        for command in ("show", "check", "list"):
            assert main([command, str(folder)]) == 2
            assert "Traceback" not in capsys.readouterr().err
