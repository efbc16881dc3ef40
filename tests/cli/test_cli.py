"""The npulab command: what it prints, what it refuses, and that refusing writes nothing."""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import CAPTURES as ALL_CAPTURES
from shell_runs import flipped, json_lines, shell
from test_update4 import small

import npulab
from npulab import cli

CAPTURES = ALL_CAPTURES / "vivante"
MESA, VENDOR = (str(CAPTURES / f"update4-{side}") for side in ("mesa", "vendor"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command: (exit status, lines on stdout, stderr)."""

    def command(*arguments: object) -> tuple[int, list[str], str]:
        status = cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out.splitlines(), err

    return command


def test_check_of_all_captures(run: Any) -> None:
    status, lines, _ = run("check", CAPTURES)
    assert status == 0
    assert lines[-1] == "29 captures, 0 differ (27 equal, 2 not executed)"
    update4 = [line.split("  ") for line in lines if line.startswith("update4-")]
    assert all(line[-1] == "BC 28 BA FF B2 91 82 97 91" for line in update4)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three captures: one that is equal, two whose output nobody captured."""
    folder = tmp_path_factory.mktemp("few")
    for name in ("sim-update4", "update4-mesa", "update4-vendor"):
        shutil.copytree(CAPTURES / name, folder / name)
    return folder


def test_check_as_json(run: Any, few: Path) -> None:
    status, lines, _ = run("check", few, "--json", "--jobs", 2)
    _, in_one_process, _ = run("check", few, "--json")
    assert lines == in_one_process
    rows = [json.loads(line) for line in lines]
    assert status == 0
    assert {"case", "target", "words", "coefficients", "compared", "mismatches", "verdict"} <= set(
        rows[0]
    )
    assert {row["case"]: row["verdict"] for row in rows} == {
        "sim-update4": "equal",
        "update4-mesa": "not executed",
        "update4-vendor": "not executed",
    }
    assert all(row["simulated"] == row["case"].startswith("sim-") for row in rows)


def test_check_exits_1_where_one_differs(
    run: Any, few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # explanations take seconds: test_what_nobody_wrote_is_said looks for them
    monkeypatch.setattr("npulab.cli.check.nearby", lambda result, progress: "")
    capture = npulab.load(CAPTURES / "sim-1x1")
    npulab.save(capture.with_fields(post_shift=8), tmp_path / "bad")
    status, lines, _ = run("check", few, tmp_path, "--explain")
    assert status == 1
    assert "4 captures, 1 differs (1 equal, 2 not executed, 1 differs)" in lines
    assert any("first difference at (row, column, channel)" in line for line in lines)


def test_check_goes_on_past_a_broken_capture(run: Any, tmp_path: Path) -> None:
    shutil.copytree(MESA, tmp_path / "a")
    shutil.copytree(VENDOR, tmp_path / "b")
    (tmp_path / "a" / "nn.bin").write_bytes(b"")
    status, lines, err = run("check", tmp_path)
    assert status == 2
    assert lines[-1] == "1 capture, 0 differ, 1 unreadable (1 not executed)"
    assert err.count("\n") == 1
    assert err.startswith(f"npulab: {tmp_path / 'a' / 'capture.json'}: nn.bin: got sha256")


def planted(folder: Path, **outputs: Any) -> None:
    """Captures of a simulated layer with other outputs (H, W, C)."""
    capture = npulab.load(CAPTURES / "sim-3x3-same")
    for name, output in outputs.items():
        data = (
            output
            if isinstance(output, bytes)
            else np.ascontiguousarray(output.transpose(2, 0, 1)).tobytes()
        )
        npulab.save(replace(capture.with_buffers(output=data), name=name), folder / name)


def right() -> np.ndarray:
    """The output of that layer."""
    lifted = npulab.target("vivante").lift(npulab.load(CAPTURES / "sim-3x3-same"))
    return lifted.output.copy()


def test_what_cannot_be_compared_says_why(run: Any, tmp_path: Path) -> None:
    planted(tmp_path, short=bytes(50))
    status, lines, _ = run("check", tmp_path)
    assert status == 1
    assert lines[1].split("  not compared")[0].split()[-5:] == [
        "equal",
        "equal",
        "-",
        "-",
        "differs",
    ]
    assert lines[1].endswith(
        "  not compared: capture short: buffer 'output' has 50 bytes, its jobs ask for a tensor of 12 x 10 x 10, which is 1200 bytes; "
        "0 of 1200 outputs were compared"
    )
    assert lines[-1] == "1 capture, 1 differs, 1 with nothing or not all compared (1 differs)"
    row = json.loads(run("check", tmp_path, "--json")[1][0])
    assert (row["verdict"], row["compared"]) == ("differs", 0)


def test_both_outputs_are_shown_where_they_differ(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("npulab.cli.check.nearby", lambda result, progress: "")
    output = right()
    output[7, 3, 2] ^= 1
    output[9, 9, 1] ^= 4
    planted(tmp_path, two=output)
    _, lines, _ = run("check", tmp_path, "--explain")
    at = lines.index(
        "  outputs 870 to 901 of 1200, by row, column, channel; 1 difference after them"
    )
    assert lines[at - 1].endswith("predicted 123, captured 122; 2 of 1200 differ, largest 4")
    predicted, captured, marks = lines[at + 1 : at + 4]
    assert captured[marks.index("^") :][:2] == "7A"
    assert predicted[marks.index("^") :][:2] == "7B"
    assert marks.split() == ["^^"]
    assert predicted.split()[1:9] == captured.split()[1:9]


def test_what_nobody_wrote_is_said(run: Any, tmp_path: Path) -> None:
    half = right()
    half[..., 4:] = 0
    planted(tmp_path, half=half)
    _, lines, _ = run("check", tmp_path, "--explain")
    told = "  equal with: channels 4 to 11: captured is 0 everywhere (0 of 1200 differ)"
    assert told in lines


def test_a_model_is_shown(run: Any, tmp_path: Path) -> None:
    layer = npulab.Conv2D(
        np.ones((2, 3, 3, 1), np.int8), [1, 2], (8, 8, 1), output_q=npulab.QuantParams(0.5, -7)
    )
    path = tmp_path / "model"
    path.write_bytes(npulab.models.write_model([layer]))
    status, lines, _ = run("show", path)
    assert (status, len(lines), lines[-1]) == (0, 3, "1 operator, constants 26.0B")
    assert lines[1].split()[:2] == ["0", "CONV_2D"]
    status, lines, _ = run("show", path, "--form", "earlier")
    assert (status, lines[0], lines[-1]) == (
        0,
        "Operator 0: CONV_2D",
        "Tensor    3 : scale 0.5 | zero point -7 (output)",
    )
    (line,) = run("show", path, "--form", "earlier", "--json")[1]
    row = json.loads(line)
    assert (row["index"], row["name"], row["kernel_h"], row["output_zero_point"]) == (
        0,
        "CONV_2D",
        3,
        -7,
    )
    for arguments, words in (
        (["show", path, "--field", "x"], "--field: got "),
        (["check", path], "is a TensorFlow Lite model"),
    ):
        status, _, err = run(*arguments)
        assert (status, err.count("\n")) == (2, 1)
        assert words in err


def test_numbers_of_a_model_stay_whole_beside_layers_without_them(run: Any, tmp_path: Path) -> None:
    conv = npulab.Conv2D(np.ones((2, 8, 8, 1), np.int8), [1, 2], (8, 8, 1))
    (tmp_path / "m").write_bytes(
        npulab.models.write_model(
            [conv, npulab.FullyConnected(np.ones((3, 2), np.int8), [0, 0, 0])]
        )
    )
    first, second = map(json.loads, run("show", tmp_path / "m", "--form", "later", "--json")[1])
    assert repr(first["kernel_h"]) == "8"
    assert "kernel_h" not in second


def test_bench_as_json_leaves_out_what_is_not(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pd.DataFrame(
        [
            {"setting": "s", "rule": "numpy xnnpack", "ms": 2.0, "of xnnpack": 4.0, "wrong": 0},
            {"setting": "s", "rule": "xnnpack", "ms": 0.5},
        ]
    )
    table.attrs["limits"] = {"s": {"copy, GB/s": 9.0}}
    monkeypatch.setattr("npulab.cli.bench.bench", lambda what, rounds: table)
    rows = [json.loads(line) for line in run("bench", "--json")[1]]
    assert rows == [
        {"setting": "s", "rule": "numpy xnnpack", "ms": 2.0, "of xnnpack": 4.0, "wrong": 0},
        {"setting": "s", "rule": "xnnpack", "ms": 0.5},
        {"setting": "s", "copy, GB/s": 9.0},
    ]
    _, lines, _ = run("bench")
    assert lines[1].split()[-3:] == ["2", "4", "0"]
    assert any("are the engines themselves" in line for line in lines)


def test_diff_sets_addresses_apart(run: Any) -> None:
    status, lines, _ = run("diff", MESA, VENDOR)
    assert status == 0
    before, after = (
        lines[: lines.index("4 addresses differ")],
        lines[lines.index("4 addresses differ") :],
    )
    assert not [line for line in before if " NN " in line]
    assert len([line for line in after if " NN " in line]) == 3
    for name in ("kernel_address", "in_image_address", "out_image_address", "NN_INST_ADDR"):
        assert name in "\n".join(after)
        assert name not in "\n".join(before)
    rows = [json.loads(line) for line in run("diff", MESA, VENDOR, "--json")[1]]
    nn = {row["field"]: row["address"] for row in rows if row["block"] == "NN"}
    assert nn == dict.fromkeys(["kernel_address", "in_image_address", "out_image_address"], True)


@pytest.mark.parametrize(
    ("option", "fields"),
    [
        (["--addresses"], 4),
        (["--field", "*image_address"], 2),
        (["--field", "GL.*"], 1),
        (["--unknown"], 0),
    ],
)
def test_diff_filters(run: Any, option: list[str], fields: int) -> None:
    _, lines, _ = run("diff", MESA, VENDOR, "--json", *option)
    assert len(lines) == fields
    assert all(
        {"task", "block", "register", "field", "a", "b", "address"} <= set(json.loads(line))
        for line in lines
    )


def test_diff_of_two_folders(run: Any) -> None:
    status, lines, _ = run("diff", CAPTURES, CAPTURES, "--field", "post_shift")
    assert status == 0
    assert any("sometimes" in line for line in lines)


def test_show_one_field(run: Any) -> None:
    status, lines, _ = run("show", MESA, "--field", "post_multiplier")
    assert status == 0
    assert lines[-1].split()[3:9] == [
        "post_multiplier",
        "2[26]",
        "15[27:22]",
        "17[31:24]",
        "0x30be",
        "12478",
    ]


def test_show_where_an_expression_holds(run: Any) -> None:
    path = MESA
    every = [json.loads(line) for line in run("show", path, "--json")[1]]
    text = "raw != 0 and evidence in (guess, unknown)"
    code, lines, _ = run("show", path, "--json", "--where", text)
    kept = [json.loads(line) for line in lines]
    asked = [row for row in every if row["raw"] != 0 and row["evidence"] in ("guess", "unknown")]
    assert (code, kept) == (0, asked)
    assert 0 < len(kept) < len(every)
    code, lines, error = run("show", path, "--where", "raw =")
    assert (code, lines) == (2, [])
    assert "filter: got 'raw =', which is no expression" in str(error)


def test_show_json_accounts_for_every_nn_bit(run: Any) -> None:
    _, lines, _ = run("show", MESA, "--json")
    rows = [json.loads(line) for line in lines]
    bits = [piece for row in rows if row["block"] == "NN" for piece in row["bits"].split()]
    spans = [piece.split("[")[1].rstrip("]").split(":") for piece in bits]
    assert sum(int(span[0]) - int(span[-1]) + 1 for span in spans) == 34 * 32
    assert next(row["value"] for row in rows if row["field"] == "further4") == "inf"


def test_list(run: Any) -> None:
    _, lines, _ = run("list", CAPTURES)
    assert [line.split()[0] for line in lines[1:]] == [
        json.loads(line)["case"] for line in run("list", CAPTURES, "--json")[1]
    ]
    assert all("simulated" in line for line in lines if line.startswith("sim-"))


def test_import_of_both_sides(run: Any, dump: Path, tmp_path: Path) -> None:
    status, lines, _ = run(
        "import",
        dump,
        tmp_path,
        "--name",
        "update4",
        "--source",
        "Etnaviv NPU update 4, blog post of 7 August 2023",
    )
    assert status == 0
    assert lines == [str(tmp_path / "update4-mesa"), str(tmp_path / "update4-vendor")]
    for name in ("update4-mesa", "update4-vendor"):
        for path in (CAPTURES / name).iterdir():
            assert (tmp_path / name / path.name).read_bytes() == path.read_bytes()


def test_import_refuses_to_overwrite(run: Any, dump: Path, tmp_path: Path) -> None:
    (tmp_path / "update4-vendor").mkdir()
    status, lines, err = run("import", dump, tmp_path, "--name", "update4")
    assert (status, lines) == (2, [])
    assert (
        err
        == f"npulab: {tmp_path / 'update4-vendor'}: is there already; give another path, or move it away\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["update4-vendor"]


def test_dump_of_two_sides_is_diffed_alone(run: Any, dump: Path) -> None:
    assert len(run("diff", dump, "--json")[1]) == 7
    assert run("show", dump, "--case", "vendor")[0] == 0
    status, _, err = run("show", dump)
    assert (status, err.split(": ", 2)[2]) == (
        2,
        "holds 2 captures: mesa, vendor; say which with --case mesa, in Python case='mesa'\n",
    )


BAD_INPUT = {
    "show nowhere": "nowhere: there is no such file or folder",
    f"show {MESA} --case x": "got case 'x', it holds update4-mesa",
    "check nowhere": "nowhere: there is no such file or folder",
    f"check {MESA} --jobs 0": "--jobs: got 0, allowed is at least 1",
    f"check {MESA} --chip x": "chip: got 'x', target vivante knows vipnano-qi-a311d",
    f"diff {MESA}": "got 1 capture, allowed without a side B are two",
    f"diff nowhere {MESA}": "nowhere: there is no such file or folder",
    "import nowhere out": "nowhere: there is no such file or folder",
    f"import {MESA} out --name a/b": "--name: got 'a/b', allowed is a plain folder name",
    f"show {__file__}": "no target recognises this file",
    "list nowhere": "nowhere: there is no such file or folder",
}


@pytest.mark.parametrize("command", BAD_INPUT)
def test_bad_input_is_one_sentence(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, err = run(*command.split())
    assert (status, err.count("\n")) == (2, 1)
    assert BAD_INPUT[command] in err
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "--colour"], "got '--colour', which list does not take\n"),
        (
            ["check", str(MESA), "--explan"],
            "got '--explan', which check does not take; near is --explain\n",
        ),
        (["chek"], "got 'chek', which is no command; near is check; npulab --help names them\n"),
    ],
)
def test_unknown_words_exit_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


def test_a_misspelt_case_is_answered_with_near_ones(run: Any) -> None:
    err = run("show", f"{MESA}x")[2]
    assert "there is no such file or folder; near is update4-mesa\n" in err


def test_a_folder_without_captures_says_how_to_begin(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("list") == (
        2,
        [],
        "npulab: captures: there is no such folder here; npulab list PATH looks into "
        "another folder, npulab import DUMP captures/NPU makes this folder\n",
    )


def test_sweeps_are_listed(run: Any) -> None:
    _, lines, _ = run("list", "--sweeps", CAPTURES, "--json")
    kinds = ["captures" in json.loads(line) for line in lines]
    there = [len(list(CAPTURES.rglob(name))) for name in ("capture.json", "*.npz")]
    assert [kinds.count(False), kinds.count(True)] == there
    assert min(there) >= 2


def test_bisect_finds_the_fields_and_resumes(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [CAPTURES / name for name in ("sim-3x3-same", "sim-other-driver")]
    options = [
        *paths,
        "--device",
        "simulated",
        "--resume",
        tmp_path / "j.jsonl",
        "--script",
        tmp_path / "again.py",
        "--json",
    ]
    status, lines, _ = run("bisect", *options)
    found = json.loads(lines[0])
    assert (status, len(lines)) == (0, 1)
    assert [key[3] for key in found["culprits"]] == ["relu", "out_zero_point"]
    before = (tmp_path / "j.jsonl").read_bytes()
    assert run("bisect", *options)[1] == lines  # the script of a run before is written anew
    (tmp_path / "mine.py").write_text("import npulab\n")
    mine = [tmp_path / "mine.py" if one == tmp_path / "again.py" else one for one in options]
    assert (
        "mine.py, which is there and is no script of bisect, allowed is a new file"
        in run("bisect", *mine)[2]
    )
    assert (tmp_path / "mine.py").read_text() == "import npulab\n"
    assert (tmp_path / "j.jsonl").read_bytes() == before
    runpy.run_path(str(tmp_path / "again.py"), run_name="__main__")
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == ["pass", "fail", "fail"]
    status, lines, _ = run("bisect", *paths, "--device", "simulated")
    assert lines[0].startswith(
        "NN w2.relu = 1 (good 0) alone, or NN w22.out_zero_point = 128 (good 155) alone breaks it"
    )


REFUSED_BY_BISECT = {
    "board": "allowed is simulated",
    "simulated --timeout 3": "command:PROGRAM",
    "simulated --flake x": "--flake: got 'x'",
    "simulated --max-hangs 0": "at least 1",
    "simulated --script .": "--script: got .",
    "simulated --unit a,b": "units: got 'a'",
    "command:/nowhere/program": "/nowhere/program",
}


@pytest.mark.parametrize("device", REFUSED_BY_BISECT)
def test_bisect_refuses_in_a_sentence(run: Any, device: str) -> None:
    paths = [CAPTURES / name for name in ("sim-3x3-same", "sim-other-driver")]
    status, lines, said = run("bisect", *paths, "--device", *device.split())
    assert (status, lines, said.count("\n")) == (2, [], 1)
    assert REFUSED_BY_BISECT[device] in said


def made_sweep(path: Path, flip: int = 0, **more: Any) -> Path:
    """A small simulated sweep: relu and input_w in word 0, an address in word 1, input_c or four
    times that in word 2.
    """
    import npulab.captures.sweep

    random, n = np.random.default_rng(1), 48
    known = {
        "input_w": random.integers(4, 100, n),
        "input_c": random.integers(1, 64, n),
        "stride": random.integers(1, 3, n),
        "relu": random.integers(0, 2, n),
    } | more
    rows = [
        known["input_w"] * 8 + known["relu"],
        random.integers(0, 64, n) * 64,
        known["input_c"] * np.where(known["stride"] == 2, 4, 1) * 2 + 5 * 2**16,
    ]
    words = np.stack([*rows, np.full(n, 7)], 1).astype(np.uint32) ^ np.uint32(flip)
    return npulab.captures.sweep.save_sweep(
        npulab.Sweep(words, known, provenance="simulated"), path
    )


def test_laws_of_a_sweep(run: Any, tmp_path: Path) -> None:
    path = made_sweep(tmp_path / "s.npz", depthwise=[0] * 48)
    status, lines, err = run("laws", path, "--nuisance", "w1_6_6", "--plan", 3)
    assert (status, err.count("\n")) == (0, 1)
    assert err.startswith("npulab: parameters: got depthwise with one value only")
    assert "simulated" in lines[0]
    assert [line.split()[:3] for line in lines[2:5]] == [
        ["w0_0_1", "0", "0"],
        ["w0_3_7", "0", "9:3"],
        ["w2_1_8", "2", "8:1"],
    ]
    assert lines[3].split()[3:] == ["48", "0", "always", "input_w"]
    summary = next(line for line in lines if "varying bits (simulated)" in line)
    assert summary.startswith("16 varying bits")
    assert " 0 open; 6 nuisance" in summary
    at = next(i for i, line in enumerate(lines) if line.startswith("to capture next"))
    assert "--candidates" in lines[at]
    assert lines[at + 1].split() == ["input_w", "input_c", "stride", "relu", "depthwise"]
    assert len(lines) == at + 5


def test_the_map_of_a_sweep_reads_its_words(run: Any, tmp_path: Path) -> None:
    import npulab
    from npulab.registers.map import RegisterMap

    path = made_sweep(tmp_path / "s.npz")
    assert run("laws", path, "--map", tmp_path / "m.csv", "--nuisance", "w1")[0] == 0
    sweep, registers = npulab.load_sweep(path), RegisterMap.read(tmp_path / "m.csv")
    values = registers.decode(sweep.words)
    assert len(registers) == 4
    np.testing.assert_array_equal(values["w0_3_7"], sweep.parameters["input_w"])
    np.testing.assert_array_equal(registers.encode(values), sweep.words)
    assert b"\r" not in (tmp_path / "m.csv").read_bytes()
    notes = registers.fields.set_index("field")["note"]
    assert notes["w0_3_7"] == "input_w"


def test_what_is_open_is_told_run_by_run(run: Any, tmp_path: Path) -> None:
    _, lines, _ = run("laws", made_sweep(tmp_path / "s.npz"))
    assert [line.split()[:5] for line in lines if " no law " in line] == [
        ["w1_6_6", "1", "11:6", "no", "law"]
    ]


def test_laws_as_json(run: Any, tmp_path: Path) -> None:
    path = made_sweep(tmp_path / "s.npz")
    layers = tmp_path / "layers.csv"
    layers.write_text("relu,stride,input_w,input_c\n0,1,8,63\n1,2,99,5\n")
    status, lines, _ = run("laws", path, "--plan", 1, "--candidates", layers, "--json")
    rows = [json.loads(line) for line in lines]
    assert status == 0
    assert {row["kind"] for row in rows} == {"sweep", "field", "open", "plan"}
    assert rows[0]["simulated"] is True
    assert rows[0]["bits"]["open"] == 6
    opened = [row for row in rows if row["kind"] == "open" and row["word"] == 1]
    assert [(row["bit"], row["reason"]) for row in opened] == [
        (bit, "no law") for bit in range(6, 12)
    ]
    (field,) = [row for row in rows if row.get("field") == "w0_3_7"]
    (step,) = field["steps"]
    assert 0.99 < step.pop("probability") < 1
    assert step == {"when": "always", "law": "input_w", "support": 48}
    assert rows[-1]["parameters"] in (
        {"input_w": 8, "input_c": 63, "stride": 1, "relu": 0},
        {"input_w": 99, "input_c": 5, "stride": 2, "relu": 1},
    )


REFUSED_BY_LAWS = {
    "--plan 0": "--plan: got 0, allowed is at least 1",
    "--map m.txt": "--map: got m.txt, allowed is a file .csv",
    "--nuisance w4": "--nuisance: got 'w4', allowed is a word, w0 to w3",
    "--nuisance w0_30_3": "got 'w0_30_3'",
    "--nuisance 0": "got '0'",
    "--candidates x.csv": "x.csv but no --plan",
    "--plan 1 --candidates nowhere.csv": "nowhere.csv: No such file",
    "--plan 1 --candidates few.csv": "got no column 'input_w' in few.csv",
    "--map few.csv": "is there already",
}


@pytest.mark.parametrize("options", REFUSED_BY_LAWS)
def test_laws_refuses_in_a_sentence(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    made_sweep(tmp_path / "s.npz")
    (tmp_path / "few.csv").write_text("relu\n1\n")
    monkeypatch.chdir(tmp_path)
    status, lines, err = run("laws", "s.npz", *options.split())
    assert (status, lines, err.count("\n")) == (2, [], 1)
    assert REFUSED_BY_LAWS[options] in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["few.csv", "s.npz"]


def test_diff_of_two_sweeps(run: Any, tmp_path: Path) -> None:
    a, b = made_sweep(tmp_path / "a.npz"), made_sweep(tmp_path / "b.npz", flip=2)
    status, lines, _ = run("diff", a, b)
    assert status == 0
    (line,) = [line for line in lines if " w0_1_1 " in line]
    assert line.split() == ["0", "w0", "w0_1_1", "always", "True", "48", "0x0", "0x1"]
    rows = [json.loads(line) for line in run("diff", a, b, "--json", "--field", "w0_*")[1]]
    assert {row["field"] for row in rows} == {"w0_1_1"}
    assert run("diff", a, a, "--json", "--addresses")[1] == []
    for arguments, words in (
        ([a], "got one sweep, allowed are two"),
        ([a, b, "--field", "x"], "which no field matches"),
        ([a, CAPTURES / "update4-mesa"], "words"),
    ):
        status, _, err = run("diff", *arguments)
        assert (status, err.count("\n")) == (2, 1)
        assert words in err


def test_diff_exits_1_on_request(run: Any) -> None:
    assert run("diff", MESA, VENDOR, "--exit-code")[0] == 1
    assert run("diff", MESA, MESA, "--exit-code")[0] == 0
    assert (
        run("diff", MESA, VENDOR, "--exit-code", "--unknown")[0] == 0
    )  # nothing of what was asked for
    assert run("diff", MESA, VENDOR)[0] == 0


@pytest.mark.parametrize("command", [["show", MESA], ["diff", MESA, VENDOR]])
def test_a_misspelt_field_is_answered_with_near_ones(run: Any, command: list[str]) -> None:
    status, lines, err = run(*command, "--field", "kernal_adress")
    assert (status, lines) == (2, [])
    assert err.startswith("npulab: --field: got 'kernal_adress', which no field ")
    assert err.endswith("; near is kernel_address\n")
    assert "near" not in run(*command, "--field", "qqqqqq")[2]
    assert "w5.kernel_address" in run(*command, "--field", "w5.kernel_adress")[2]


def test_formats_are_listed(run: Any) -> None:
    status, lines, _ = run("list", "--formats")
    assert (status, lines[0].split()) == (0, ["target", "format"])
    rows = [json.loads(line) for line in run("list", "--formats", "--json")[1]]
    assert len(rows) == len(lines) - 1
    assert {row["target"] for row in rows} >= {"ane", "nvdla", "vivante"}


def test_ctrl_c_ends_in_one_sentence_and_keeps_laws(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, wait = made_sweep(tmp_path / "s.npz"), [0]

    def search(sweep: Any, progress: Any, **options: Any) -> Any:
        def interrupted(text: str) -> None:
            wait[0] -= 1
            if wait[0] == 0:
                raise KeyboardInterrupt

        return original(sweep, progress=interrupted, **options)

    from npulab.analysis import laws

    original = laws.find_laws
    monkeypatch.setattr(laws, "find_laws", search)
    for wait[0] in (1, 4):
        status, lines, err = run("laws", path)
        assert (status, err.startswith("npulab: stopped")) == (1, True)
        assert lines
    monkeypatch.setattr(
        laws, "find_laws", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    assert run("laws", path) == (130, [], "npulab: stopped\n")


def _pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_a_dash_is_standard_input(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep and a map in a pipe are read as their files are."""
    sweep = ALL_CAPTURES / "heron/sweep-jobs.npz"
    _pipe(monkeypatch, sweep.read_bytes())
    status, lines, _ = run("show", "-")
    _, as_file, _ = run("show", sweep)
    assert status == 0
    assert len(lines) > 3
    assert [line.replace("stdin", "sweep-jobs") for line in lines] == as_file
    header = (
        b"#define PE_CTRL 0x104\n#define PE_CTRL_MODE_SHIFT 3\n#define PE_CTRL_MODE_MASK 0x38\n"
    )
    (tmp_path / "stdin").write_bytes(header)
    made = []
    for source in ("-", tmp_path / "stdin"):
        _pipe(monkeypatch, header)
        assert run("map", source, tmp_path / f"{len(made)}.csv")[0] == 0
        made.append((tmp_path / f"{len(made)}.csv").read_text())
    assert made[0] == made[1]
    assert "MODE" in made[0]


def test_a_pipe_without_end_is_refused(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many bytes as are held at once are read, and one more is refused."""
    monkeypatch.setattr("npulab.cli.shell.MOST_PIPED", 4)
    _pipe(monkeypatch, b"abcd")
    assert "stdin: is text" in run("show", "-")[2]
    _pipe(monkeypatch, b"abcde")
    assert run("show", "-") == (
        2,
        [],
        "npulab: -: got more than 4 bytes, allowed are 4; give a larger input as a file\n",
    )


@pytest.fixture(params=[MESA, VENDOR], ids=lambda path: Path(path).name)
def update4(request: pytest.FixtureRequest) -> npulab.Capture:
    return npulab.load(request.param)


def test_folder_without_captures_is_not_taken_for_success(tmp_path: Path) -> None:
    assert shell("check", tmp_path).code == 2


def test_json_of_show_is_one_object_a_line(update4: npulab.Capture) -> None:
    lines = json_lines(shell("show", CAPTURES / update4.name, "--json").out)
    keys = {"task", "block", "register", "field", "raw", "value", "bits", "evidence"}
    assert all(line.keys() >= keys for line in lines)
    nn = [line for line in lines if line["block"] == "NN"]
    raw = npulab.target("vivante").registers.decode(update4.words, raw=True)
    assert {line["field"]: line["raw"] for line in nn} == {
        name: int(value) for name, value in raw.items()
    }


def test_json_of_import_names_what_it_wrote(dump: Path, tmp_path: Path) -> None:
    lines = json_lines(shell("import", dump, tmp_path, "--json", "--name", "x").out)
    assert sorted(line["case"] for line in lines) == ["x-mesa", "x-vendor"]
    assert all(Path(line["path"], "capture.json").is_file() for line in lines)


def test_json_is_strict(few: Path) -> None:
    """No NaN or Infinity, which other readers of JSON refuse."""

    def no(word: str) -> None:
        raise AssertionError(word)

    for arguments in (
        ["show", MESA],
        ["list", CAPTURES],
        ["check", few],
        ["diff", MESA, VENDOR],
    ):
        for line in shell(*arguments, "--json").out.splitlines():
            json.loads(line, parse_constant=no)


def test_show_by_field_unknown_and_address() -> None:
    fields = [
        line["field"]
        for line in json_lines(shell("show", MESA, "--field", "kernel_*", "--json").out)
    ]
    assert fields
    assert all(name.startswith("kernel_") for name in fields)
    addresses = {
        line["field"] for line in json_lines(shell("show", MESA, "--addresses", "--json").out)
    }
    assert addresses >= {"kernel_address", "in_image_address", "out_image_address", "NN_INST_ADDR"}
    assert "relu" not in addresses
    unknown = json_lines(shell("show", MESA, "--unknown", "--json").out)
    assert unknown
    assert all(re.fullmatch(r"(w\d+|r[0-9a-f]{4,})_\d+_\d+", line["field"]) for line in unknown)


def test_check_counts_the_values_that_differ(tmp_path: Path) -> None:
    good = small()
    npulab.save(good, tmp_path / "good")
    assert shell("check", tmp_path).code == 0
    npulab.save(good.with_buffers(output=flipped(good.buffers["output"], 3)), tmp_path / "bad")
    result = shell("check", tmp_path, "--json")
    assert result.code == 1
    lines = {line["case"]: line for line in json_lines(result.out)}
    assert (lines["good"]["verdict"], lines["bad"]["verdict"]) == ("equal", "differs")
    assert (lines["bad"]["mismatches"], lines["bad"]["compared"]) == (
        1,
        len(good.buffers["output"]),
    )


def test_installed_command_exits_as_promised(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "npulab"] if shutil.which("npulab") is None else ["npulab"]
    beside = Path(sys.executable).with_name("npulab")
    program = [str(beside)] if beside.exists() else program
    done = subprocess.run(
        [*program, "show", tmp_path / "nonesuch"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1


def test_closed_pipe_is_no_error() -> None:
    """``npulab show CASE | head -1`` is what people type."""
    read, write = os.pipe()
    os.close(read)
    code = "import sys, npulab.cli; sys.exit(npulab.cli.main(['show', sys.argv[1]]))"
    with os.fdopen(write, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-c", code, str(MESA)],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.stderr == ""
