"""Case folders: round trip, integrity, all or nothing."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CAPTURES
from shell_runs import everything_below, refused, shell

import npulab
from npulab.captures import store
from npulab.captures.capture import Job
from npulab.support import files

MESA = CAPTURES / "vivante" / "update4-mesa"


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """A copy of a case folder that a test may break."""
    return Path(shutil.copytree(MESA, tmp_path / "captures" / "case"))


def edit(case: Path, **changes: Any) -> None:
    path = case / "capture.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_every_capture_saves_as_the_same_bytes(captures: npulab.CaptureSet, tmp_path: Path) -> None:
    for capture in captures:
        folder = npulab.save(capture, tmp_path / capture.name)
        assert npulab.load(folder) == capture
        for path in (CAPTURES / "vivante" / capture.name).iterdir():
            assert (folder / path.name).read_bytes() == path.read_bytes(), path


def test_every_bin_file_is_what_json_says(captures: npulab.CaptureSet) -> None:
    for folder in store.case_folders(CAPTURES / "vivante"):
        sums = json.loads((folder / "capture.json").read_text())["sha256"]
        files = [path for path in folder.iterdir() if path.suffix == ".bin"]
        assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files} == sums


def test_saving_refuses_a_folder_that_is_there(captures: npulab.CaptureSet, tmp_path: Path) -> None:
    with pytest.raises(
        FileExistsError, match=r"is there already; give another path, or move it away$"
    ):
        npulab.save(captures[0], tmp_path)


def test_save_all_writes_all_or_nothing(captures: npulab.CaptureSet, tmp_path: Path) -> None:
    bad = captures[1].with_buffers(**{"../out": b""})
    with pytest.raises(
        ValueError, match=r"buffer '../out': got '../out.bin', allowed is the plain name"
    ):
        store.save_all({tmp_path / "a": captures[0], tmp_path / "b": bad})
    assert list(tmp_path.iterdir()) == []


def test_failed_write_leaves_nothing(
    captures: npulab.CaptureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = files._write
    monkeypatch.setattr(
        files,
        "_write",
        lambda path, data: (
            whole(path, data)
            if "nn" in path.name
            else (_ for _ in ()).throw(OSError(28, "No space left on device", str(path)))
        ),
    )
    with pytest.raises(OSError, match=rf"No space left on device: '{tmp_path}/case'$"):
        npulab.save(captures[0], tmp_path / "case")
    assert list(tmp_path.iterdir()) == []


def test_jobs_of_register_writes_round_trip(captures: npulab.CaptureSet, tmp_path: Path) -> None:
    writes = ((0x3930, 0x10), (0x10A0, 64), (0x3930, 0x20), (0x7000, 5))
    capture = replace(
        captures["update4-mesa"],
        jobs=(
            Job.from_writes("STATE", writes, captures[0].maps["STATE"]),
            captures["update4-mesa"].jobs[0],
        ),
    )
    again = npulab.load(npulab.save(replace(capture, name="two"), tmp_path / "two"))
    assert again.jobs[0].writes == writes
    assert {hex(word) for word in again.jobs[0].words} == {"0x0", "0x20", "0x40"}
    assert again == replace(capture, name="two")
    assert set(again.fields.task) == {0, 1}
    assert again.fields[again.fields.register == "r7000"].raw.tolist() == [5]


def test_tensors_of_tasks_have_files_that_every_system_takes(
    captures: npulab.CaptureSet, tmp_path: Path
) -> None:
    capture = replace(captures["sim-1x1"].with_buffers(**{"output:3": b"abc"}), name="step")
    folder = npulab.save(capture, tmp_path / "step")
    assert (folder / "output-3.bin").read_bytes() == b"abc"
    assert npulab.load(folder) == capture
    with pytest.raises(
        ValueError, match=r"got 'output-3\.bin', which another buffer or job of the capture has"
    ):
        npulab.save(capture.with_buffers(**{"output-3": b""}), tmp_path / "other")


def test_changed_fields_of_register_writes_reach_the_writes(captures: npulab.CaptureSet) -> None:
    writes = ((0x3930, 0x10), (0x7000, 5), (0x3930, 0x20))
    capture = replace(
        captures["update4-mesa"],
        jobs=(Job.from_writes("STATE", writes, captures[0].maps["STATE"]),),
    )
    changed = capture.with_fields(SMALL_BATCH=1)
    assert changed.jobs[0].writes == ((0x3930, 0x10), (0x7000, 5), (0x3930, 0x30))
    assert changed.values["SMALL_BATCH"] == 1
    assert capture.with_fields(TP_CONFIG=1).jobs[0].writes == (*writes, (0x394C, 1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"buffers": {"input": "../escape.bin"}},
            "got '../escape.bin', allowed is the plain name of a file inside",
        ),
        ({"buffers": {"input": "/etc/hostname"}}, "got '/etc/hostname', allowed is the plain name"),
        ({"buffers": {"input": "capture.json"}}, "got 'capture.json', allowed is the plain name"),
        ({"buffers": {"input": "gone.bin"}}, "gone.bin: there is no such file in the folder"),
        ({"buffers": {"input": 7}}, "buffers: got 7, allowed is a text"),
        ({"buffers": []}, r"buffers: got \[\], allowed"),
        ({"format": 3}, "format: got 3, allowed is 1 or 2"),
        ({"target": "tpu"}, "target: got 'tpu', allowed is one of"),
        ({"chip": "x"}, "chip: got 'x', target vivante knows"),
        ({"chip": None}, "chip: got None, allowed is a text"),
        ({"provenance": "dream"}, "got provenance 'dream', allowed is one of"),
        ({"jobs": []}, "jobs: got none"),
        (
            {"jobs": [{"block": "NN"}]},
            r"got block 'NN' with \[\], allowed is one of NN, STATE, TP, .* with one of words",
        ),
        ({"jobs": [{"block": "XX", "words": "nn.bin"}]}, "got block 'XX'"),
        ({"jobs": None}, "jobs: got None"),
        (
            {"jobs": [{"block": "NN", "words": "input.bin"}]},
            r"input.bin: got 16 words, allowed are 34 words \(block NN\)",
        ),
        (
            {"jobs": [{"block": "NN", "words": "output.bin"}]},
            "output.bin: got 9 bytes, allowed is a multiple of 4, for 32-bit words",
        ),
        (
            {"addresses": {"input": "here"}},
            "addresses, input: got 'here', allowed is a number such as",
        ),
        ({"sha256": {}}, "capture.json says nothing"),
    ],
)
def test_broken_description(case: Path, changes: dict[str, Any], words: str) -> None:
    (case.parent / "escape.bin").write_bytes(b"x")
    edit(case, **changes)
    with pytest.raises((ValueError, LookupError), match=words) as error:
        npulab.load(case)
    assert str(case) in str(error.value)


@pytest.mark.parametrize(
    "key", ["format", "target", "chip", "jobs", "buffers", "sha256", "provenance"]
)
def test_description_without_a_part(case: Path, key: str) -> None:
    path = case / "capture.json"
    told = json.loads(path.read_text())
    del told[key]
    path.write_text(json.dumps(told))
    with pytest.raises((ValueError, LookupError), match=key):
        npulab.load(case)


def test_file_that_was_changed(case: Path) -> None:
    data = bytearray((case / "input.bin").read_bytes())
    data[3] ^= 1
    (case / "input.bin").write_bytes(data)
    with pytest.raises(
        ValueError,
        match=r"input.bin: got sha256 [0-9a-f]{64}, capture.json says [0-9a-f]{64}; if the file was changed on purpose, correct the sha256 there$",
    ):
        npulab.load(case)


def test_link_out_of_the_folder(case: Path) -> None:
    (case / "input.bin").rename(case.parent / "elsewhere.bin")
    (case / "input.bin").symlink_to(case.parent / "elsewhere.bin")
    with pytest.raises(
        ValueError, match=r"input.bin: is a link, allowed is a file that lies in the folder"
    ):
        npulab.load(case)


def test_description_that_is_no_json(case: Path) -> None:
    (case / "capture.json").write_text("{")
    with pytest.raises(
        ValueError, match=r"capture.json, line 1, column 2: is not JSON: got the end of the text"
    ):
        npulab.load(case)
    (case / "capture.json").write_text("[]")
    with pytest.raises(ValueError, match=r"the description: got \[\], allowed is an object"):
        npulab.load(case)


def test_path_that_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no such file or folder"):
        npulab.load(tmp_path / "none")
    (tmp_path / "poem.txt").write_text("roses are red")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ValueError,
        match=r"poem.txt: is text, no target recognises this file; npulab list --formats",
    ):
        npulab.load(tmp_path / "poem.txt")
    with pytest.raises(
        LookupError,
        match=r"empty: holds no capture, allowed is a case folder, or a dump that a target recognises$",
    ):
        npulab.load(tmp_path / "empty")


def test_several_cases_are_named(captures: npulab.CaptureSet) -> None:
    with pytest.raises(LookupError, match="got case 'x', it holds sim-1x1, "):
        npulab.load(CAPTURES / "vivante", "x")
    assert npulab.load(CAPTURES, "sim-1x1") == captures["sim-1x1"]


def test_capture_set_by_number_and_name(captures: npulab.CaptureSet) -> None:
    assert captures.words.shape == (len(captures), 34)
    assert captures["update4-mesa"].words.dtype == np.uint32
    assert captures._ipython_key_completions_() == captures.names
    assert captures.table.case.tolist() == captures.names
    with pytest.raises(LookupError, match="got case 'x', there are sim-1x1"):
        _ = captures["x"]


def test_words_cannot_be_changed_in_place(captures: npulab.CaptureSet) -> None:
    with pytest.raises(ValueError, match="read-only"):
        captures[0].words[0] = 1


def test_simulated_is_said_wherever_a_capture_is_shown(captures: npulab.CaptureSet) -> None:
    for capture in captures:
        for text in (repr(capture), capture._repr_html_(), repr(npulab.check(capture))):
            assert ("simulated" in text) == capture.simulated


def test_parameters_are_the_same_after_saving(captures: npulab.CaptureSet, tmp_path: Path) -> None:
    capture = replace(
        captures[0],
        parameters={"a": np.int64(3), "b": (1.5, np.float32(2)), "c": np.arange(2), "d": None},
    )
    again = npulab.load(npulab.save(capture, tmp_path / capture.name))
    assert again == capture
    assert again.parameters == {"a": 3, "b": [1.5, 2.0], "c": [0, 1], "d": None}


def test_changed_capture_says_so(captures: npulab.CaptureSet, tmp_path: Path) -> None:
    capture = captures["update4-vendor"]
    assert capture.with_words(capture.words) == capture
    changed = capture.with_fields(post_shift=3).with_fields(post_shift=4)
    assert changed.tool == "galcore, changed with npulab"
    again = npulab.load(npulab.save(changed, tmp_path / "changed"))
    assert "vendor driver, changed" in repr(again)
    assert "vendor driver, changed" in again._repr_html_()


def test_one_name_in_two_targets_needs_the_target(captures: npulab.CaptureSet) -> None:
    both = npulab.CaptureSet((captures["sim-1x1"], replace(captures["sim-1x1"], target="other")))
    with pytest.raises(
        LookupError, match="got case 'sim-1x1', there are vivante/sim-1x1, other/sim-1x1"
    ):
        _ = both["sim-1x1"]
    assert both["other/sim-1x1"].target == "other"
    assert both[:1].names == ["sim-1x1"]


def test_broken_target_leaves_others_working(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "npulab_targets" / "broken"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("import nothing_of_this_name")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"^target broken: does not load: ModuleNotFoundError: "):
        npulab.target("broken")
    assert len(npulab.load_all(CAPTURES / "vivante" / "sim-1x1")) == 1
    (tmp_path / "poem.txt").write_text("roses")
    with pytest.raises(ValueError, match=r"; target broken: does not load: .*"):
        npulab.load_all(tmp_path / "poem.txt")


@pytest.mark.parametrize("parameters", [{"a": object()}, {"a": "\ud800"}])
def test_what_json_cannot_hold_is_refused(
    captures: npulab.CaptureSet, tmp_path: Path, parameters: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"^capture sim-1x1: cannot be written as JSON: "):
        npulab.save(replace(captures["sim-1x1"], parameters=parameters), tmp_path / "case")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_save_left_is_no_capture(captures: npulab.CaptureSet, tmp_path: Path) -> None:
    npulab.save(captures[0], tmp_path / "case")
    shutil.copytree(tmp_path / "case", tmp_path / ".npulab-x1")
    assert npulab.load_all(tmp_path).names == ["case"]


def test_a_broken_folder_is_not_passed_over(case: Path) -> None:
    edit(case, chip="x")
    with pytest.raises((ValueError, LookupError), match="chip: got 'x'"):
        store.load_cases(case.parent)


def test_an_unknown_name_is_said_without_quotes_around_it(
    case: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(name: str) -> None:
        raise KeyError("no target of this name")

    monkeypatch.setattr("npulab.captures.store.stated_target", unknown)
    with pytest.raises(KeyError) as error:
        npulab.load(case)
    assert error.value.args == (f"{case / 'capture.json'}: no target of this name",)


@pytest.fixture(params=["update4-mesa", "update4-vendor"])
def update4(request: pytest.FixtureRequest) -> npulab.Capture:
    return npulab.load(CAPTURES / "vivante" / request.param)


def test_fields_of_a_capture(update4: npulab.Capture) -> None:
    table = update4.fields
    assert [*table.columns[:8]] == [
        "task",
        "block",
        "register",
        "field",
        "raw",
        "value",
        "bits",
        "evidence",
    ]
    assert set(table.task) == {0}
    row = table[table.field == "post_multiplier"].iloc[0]
    assert (row.raw, row.bits) == (12478, "2[26] 15[27:22] 17[31:24]")
    assert table[table.block == "NN"].field.is_unique


def test_replace_gives_a_changed_capture(update4: npulab.Capture) -> None:
    changed = replace(update4, name="mine", parameters={"stride_h": 2})
    assert (changed.name, changed.parameters["stride_h"]) == ("mine", 2)
    assert update4.name.startswith("update4-")
    assert changed.words.tolist() == update4.words.tolist()
    assert npulab.diff(changed, update4).empty
    with pytest.raises(FrozenInstanceError):
        update4.name = "other"


# By every command


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"target": "nonesuch"}, "nonesuch"),
        ({"jobs": [{"block": "NN", "words": "../outside.bin"}]}, "outside.bin"),
        ({"jobs": [{"block": "NN", "writes": "output.bin"}]}, "output.bin"),
    ],
)
def test_bad_case_is_refused(case: Path, changes: dict[str, Any], wanted: str) -> None:
    edit(case, **changes)
    refused_by_every_command(case, wanted)


def test_a_description_that_is_cut_or_no_text_is_refused(case: Path) -> None:
    path = case / "capture.json"
    for data in (path.read_bytes()[:200], b"", b'{"format": 1, "target": "\xff\xfe"}'):
        path.write_bytes(data)
        refused_by_every_command(case, "capture.json")


def refused_by_every_command(case: Path, wanted: str) -> None:
    """In a sentence that names the folder, and nothing is written."""
    before = everything_below(case.parent)
    for command in ("show", "check", "list"):
        sentence = refused(shell(command, case))
        assert "case" in sentence
        assert wanted in sentence
    refused(shell("check", case.parent))
    refused(shell("diff", case, MESA))
    with pytest.raises((ValueError, LookupError, OSError)):
        npulab.load(case)
    refused(shell("import", case, case.parents[1] / "out"))
    assert not (case.parents[1] / "out").exists()
    assert everything_below(case.parent) == before
