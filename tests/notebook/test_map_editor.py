"""The map editor: its model with no browser, its view with no front end."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CAPTURES, ROOT
from map_rows import map_rows

import npulab
import npulab.analysis.draft
import npulab.notebook.widgets
from npulab.analysis.draft import Draft, draft
from npulab.captures.capture import Capture, Job
from npulab.captures.sweep import Sweep
from npulab.notebook.widgets import MapEditor, MapModel, RegisterModel, RegisterView
from npulab.registers.map import STATUS, RegisterMap

ROWS = map_rows(
    """
    block,offset,register,field,lsb,width,at,value,address,evidence,note
    NN,0,CFG,mode,0,2,,enum:mode,,K,
    NN,0,CFG,size,4,4,0,,,,low
    NN,4,EXT,size,30,2,4,,,,
    NN,4,EXT,where,0,26,,raw*64,yes,,
    """
)
WORDS = (0x51, 0x40000002)
SCRIPT = "<img src=x onerror=alert(1)>"


@pytest.fixture
def nn(tmp_path: Path) -> Path:
    for name in ("nn.csv", "enums.csv"):
        shutil.copy(ROOT / "npulab/npus/vivante" / name, tmp_path)
    return tmp_path / "nn.csv"


def made() -> Draft:
    return draft(RegisterMap(ROWS, enums={"mode": {0: "off", 1: "on"}}))


def small(words: tuple[int, ...] = WORDS, **changes: Any) -> Capture:
    return replace(
        Capture(
            "a",
            "demo",
            "x",
            (Job("NN", words),),
            maps={"NN": RegisterMap(ROWS, enums={"mode": {}})},
        ),
        **changes,
    )


def shown(model: MapModel | MapEditor) -> list[tuple[str, str]]:
    """(field, what the capture says) of each row."""
    return [(row[3], row[4]) for row in model.rows]


# ---- the model ----


def test_rows_say_what_the_map_and_the_capture_say() -> None:
    model = MapModel(made(), small())
    assert model.rows == [
        ["mode", "CFG", "0[1:0]", "mode", "0x1 = on", "enum:mode", "K", "", ""],
        ["w0_2_2", "CFG", "0[3:2]", "w0_2_2", "0x0 = 0", "", "unknown", "", "automatic"],
        ["size", "CFG", "0[7:4] 1[31:30]", "size", "0x15 = 21", "", "unknown", "low", ""],
        ["w0_8_24", "CFG", "0[31:8]", "w0_8_24", "0x0 = 0", "", "unknown", "", "automatic"],
        ["where", "EXT", "1[25:0]", "where", "0x2 = 0x80", "raw*64", "unknown", "", ""],
        ["w1_26_4", "EXT", "1[29:26]", "w1_26_4", "0x0 = 0", "", "unknown", "", "automatic"],
    ]
    assert model.title == "NN: 6 fields of 2 words, read in demo/a"
    assert model.summary == "2 explained, 32 guessed, 30 open of 64 bits; 0 steps, not saved"
    assert [row[4] for row in MapModel(made()).rows] == [""] * 6


@pytest.mark.parametrize(
    ("message", "status", "after"),
    [
        (
            {"do": "cell", "field": "mode", "column": "field", "text": "m"},
            "rename mode to m",
            ("m", "0x1 = on"),
        ),
        (
            {"do": "cell", "field": "w0_2_2", "column": "field", "text": "two"},
            "rename w0_2_2 to two",
            ("two", "0x0 = 0"),
        ),
        (
            {"do": "cell", "field": "mode", "column": "field", "text": " "},
            "remove mode",
            ("w0_0_2", "0x1 = 1"),
        ),
        (
            {"do": "cell", "field": "mode", "column": "value", "text": "signed"},
            "retype mode as signed",
            ("mode", "0x1 = 1"),
        ),
        (
            {"do": "cell", "field": "size", "column": "value", "text": "signed raw*2"},
            "retype size as signed raw*2",
            ("size", "0x15 = 42"),
        ),
        (
            {"do": "cell", "field": "mode", "column": "value", "text": "enum:mode 1=yes 0x2=no"},
            "retype mode as enum:mode (1 yes, 2 no)",
            ("mode", "0x1 = yes"),
        ),
        (
            {"do": "cell", "field": "mode", "column": "evidence", "text": "C:a"},
            "set evidence of mode to C:a",
            ("mode", "0x1 = on"),
        ),
        (
            {"do": "cell", "field": "mode", "column": "note", "text": "a, b"},
            "set note of mode to 'a, b'",
            ("mode", "0x1 = on"),
        ),
        (
            {"do": "cell", "field": "where", "column": "register", "text": "X"},
            "rename register EXT to X",
            ("where", "0x2 = 0x80"),
        ),
        (
            {"do": "split", "field": "w0_8_24", "text": "low:20, 4"},
            "split w0_8_24 into low (20), no name (4)",
            ("low", "0x0 = 0"),
        ),
        (
            {"do": "split", "field": "where", "text": "2 24"},
            "split where into where (2), no name (24)",
            ("where", "0x2 = 2"),
        ),
        (
            {"do": "join", "field": "mode", "text": "w0_2_2 as both"},
            "join mode and w0_2_2 as both",
            ("both", "0x1 = on"),
        ),
        (
            {"do": "join", "field": "mode", "text": "w0_2_2"},
            "join mode and w0_2_2 as mode",
            ("mode", "0x1 = on"),
        ),
        ({"do": "remove", "field": "mode"}, "remove mode", ("w0_0_2", "0x1 = 1")),
        (
            {"do": "cell", "field": "mode", "column": "field", "text": "mode"},
            "nothing to change",
            ("mode", "0x1 = on"),
        ),
    ],
)
def test_acts(message: dict[str, str], status: str, after: tuple[str, str]) -> None:
    model = MapModel(made(), small())
    before = model.rows
    model.press(message)
    assert model.status == status
    assert after in shown(model)
    assert model.steps == ([] if status.startswith("nothing") else [status])
    model.press({"do": "undo"})
    assert (model.rows, model.steps) == (before, [])
    assert (model.status, model.undone) == (
        (f"undo: {status}", status) if "nothing" not in status else ("nothing to undo", "")
    )


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (
            None,
            "refused: message: got 'None', allowed is one of cell, split, join, add, remove, undo, redo",
        ),
        ({"do": "save"}, r"refused: save: got no path, allowed is a path where no file is"),
        ({"do": "save", "text": "map.txt"}, r"refused: map.txt: got .txt, allowed is .csv"),
        ({"do": "write"}, r"refused: message: got .*'write'.*, allowed is one of cell"),
        ({"do": "cell", "field": 3}, "refused: cell: got field 3, text '', allowed are texts"),
        (
            {"do": "cell", "field": "mode", "column": "capture", "text": "1"},
            "refused: cell: got column 'capture', allowed is one of register",
        ),
        (
            {"do": "cell", "field": "no", "column": "field", "text": "x"},
            "refused: got field 'no', the map has ",
        ),
        ({"do": "cell", "field": "mode", "column": "field", "text": "where"}, None),
        (
            {"do": "cell", "field": "mode", "column": "field", "text": "size"},
            "refused: register map, register CFG field size: got a piece with column 'at' blank",
        ),
        (
            {"do": "cell", "field": "mode", "column": "value", "text": "enum:mode x=y"},
            "refused: retype: got names .*, allowed is names by raw",
        ),
        (
            {"do": "cell", "field": "mode", "column": "note", "text": "x" * 5000},
            "refused: set_note: got note .*, allowed is text of at most 4096 letters",
        ),
        (
            {"do": "split", "field": "mode", "text": ""},
            "refused: split mode: got '', allowed is a width, or name:width, for each piece, such as low:2 4",
        ),
        (
            {"do": "split", "field": "mode", "text": "1 -1"},
            "refused: split mode: got '1 -1', allowed is a width, or name:width, for each",
        ),
        (
            {"do": "split", "field": "mode", "text": "1 99"},
            "refused: split mode: got widths 1, 99, allowed are at least two that add up to 2",
        ),
        (
            {"do": "join", "field": "mode", "text": "mode"},
            "refused: join mode and mode: got the same field",
        ),
        ({"do": "join", "field": "mode", "text": ""}, "refused: got field '', the map has "),
        ({"do": "remove", "field": "w0_2_2"}, "refused: remove w0_2_2: got bits without a name"),
        ({"do": "redo"}, "nothing to redo"),
    ],
)
def test_what_is_refused_is_said_and_changes_nothing(message: Any, status: str | None) -> None:
    model = MapModel(made(), small())
    rows = model.rows
    model.press(message)
    if status is None:  # two registers may call a field the same
        assert model.status == "rename mode to where"
        assert [row[0] for row in model.rows][:1] == ["CFG.where"]
    else:
        assert re.match(status, model.status)
        assert (model.rows, model.steps) == (rows, [])


def test_it_follows_the_draft_whoever_edits_it() -> None:
    one = made()
    first, second = MapModel(one, small()), MapModel(one)
    one.rename("mode", "m")
    first.press({"do": "remove", "field": "where"})
    for model in (first, second):
        assert model.steps == ["rename mode to m", "remove where"]
        assert [row[3] for row in model.rows][:1] == ["m"]
    second.close()
    one.undo()
    assert (first.undone, second.undone, len(second.steps)) == ("remove where", "", 2)


def test_a_map_that_no_longer_fits_the_capture_says_so() -> None:
    one = made()
    model = MapModel(one, small())
    one.add("more", "MORE", 0, 8, offset=8)
    assert model.summary.endswith("; a cannot be read: words: got 2, allowed is 3 (block NN)")
    assert {row[4] for row in model.rows} == {""}
    one.undo()
    assert shown(model)[0] == ("mode", "0x1 = on")


def test_captures_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"^words: got 3, allowed is 2 \(block NN\)$"):
        MapModel(made(), small((1, 2, 3)))
    with pytest.raises(LookupError, match=r"^capture a: got task 1 of block NN, it has 0$"):
        MapModel(made(), small(), task=1)
    two = small(jobs=(Job("NN", WORDS), Job("NN", (2, 0))))
    assert shown(MapModel(made(), two, task=1))[0] == ("mode", "0x2 = 2")


def test_register_writes_show_what_was_written() -> None:
    capture = npulab.load(CAPTURES / "nvdla/sim-1x1-relu")
    one = draft(npulab.target("nvdla").tables["SMALL"])
    model = MapModel(one, capture)
    told = {row[0]: row[4] for row in model.rows if row[4]}
    assert 0 < len(told) < len(model.rows)
    for key, text in list(told.items())[::40]:
        item = one.map[key]
        assert int(text.split()[0], 0) == int(item.extract(capture.jobs[0].words)), key


# ---- the view, with no front end ----


def test_view_takes_what_a_browser_sends() -> None:
    view = MapEditor(made(), small())
    view._handle_custom_msg({"do": "cell", "field": "mode", "column": "field", "text": "m"}, [])
    assert (view.steps, view.status, shown(view)[0]) == (
        ["rename mode to m"],
        "rename mode to m",
        ("m", "0x1 = on"),
    )
    view._handle_custom_msg({"do": "cell", "field": "nosuch", "column": "field", "text": "m"}, [])
    assert view.status.startswith("refused: got field 'nosuch'")
    assert view.draft.map.m.width == 2
    view.close()
    view.draft.undo()
    assert view.steps == ["rename mode to m"]


def test_view_follows_a_save(tmp_path: Path) -> None:
    view = MapEditor(made())
    for place in (tmp_path / "map.csv", None):
        view.draft.rename("mode" if place else "m", "m" if place else "mode")
        assert view.summary.endswith(", not saved")
        view.draft.save(place)
        assert view.summary.endswith(", saved")


def test_a_message_saves_to_a_path_and_then_to_the_file(tmp_path: Path) -> None:
    view, path = MapEditor(made()), tmp_path / "map.csv"
    assert (view.path, view.saved) == ("", False)
    view.model.press({"do": "save", "text": f" {path} "})
    assert (view.path, view.saved, view.status) == (str(path), True, f"saved as {path}")
    view.draft.rename("mode", "m")
    assert not view.saved
    view.model.press({"do": "save", "text": ""})
    assert view.saved
    assert draft(path).map.m.width == 2
    path.write_text(path.read_text() + "\n")
    view.draft.undo()
    view.model.press({"do": "save", "text": ""})
    assert "allowed is a file as it was read" in view.status
    assert not view.saved
    view.model.press({"do": "save", "text": str(tmp_path)})
    assert view.status.startswith("refused: ")


def test_head_counts_bits_as_the_status_of_the_map_does() -> None:
    varied = np.array([[0, 0], [0xFF, 0]], np.uint32)
    sweep = Sweep(varied, {"size": [1, 2]})
    one = made()
    one.set_evidence("w1_26_4", "C:sweep")  # nobody gave a name to these bits, but they are known
    for view, words in ((MapEditor(one), None), (MapEditor(one, sweep=sweep), varied)):
        counts = view.draft.map.status(words)[list(STATUS)].sum()
        shown = STATUS if words is not None else STATUS[:3]
        told = ", ".join(f"{counts[name]} {name}" for name in shown)
        assert view.summary == f"{told} of 64 bits; 1 step, not saved"
        assert sum(counts[name] for name in shown) == 64
    assert MapEditor(one).summary.startswith("6 explained, 32 guessed, 26 open of 64 bits")


def test_a_line_counts_bits_and_steps() -> None:
    assert repr(MapEditor(made(), small(provenance="simulated"))) == (
        "MapEditor(NN: 6 fields of 2 words, read in demo/a, simulated; 2 explained, "
        "32 guessed, 30 open of 64 bits; 0 steps, not saved)"
    )


def test_face_shows_fields_and_steps_and_escapes() -> None:
    one = made()
    view = MapEditor(one)
    one.rename("mode", SCRIPT)
    one.set_note("where", SCRIPT)
    face = view._repr_mimebundle_()[0]["text/html"]
    assert "<img" not in face
    assert "rename mode to &lt;img" in face
    assert "capture" not in re.search(r"<tr>.*?</tr>", face)[0]


def test_face_has_at_most_60_rows() -> None:
    face = MapEditor(draft(200))._repr_mimebundle_()[0]["text/html"]
    assert face.count("<tr>") == 60
    assert "… 142 more" in face


# ---- other views follow ----


def test_a_register_view_follows_a_draft() -> None:
    one = made()
    view = RegisterView(small(), draft=one)
    assert view.fields["mode"] == "on"
    view.model.flip(0, 1)
    one.join("mode", "w0_2_2", "both")
    assert view.fields == {"both": 3, "size": 21, "w0_8_24": 0, "where": 128, "w1_26_4": 0}
    assert view.changed == {"both": ("on", 3)}
    assert [place["name"] for place in view.places] == list(view.fields)
    assert view.values[0] == "0x3 = 3, reference 0x1 = on"
    assert view.model.describe(0, 3).startswith("CFG bit 3 · both CFG[3:0] · 0x3 = 3")
    assert view.capture.values["both"] == 3
    one.rename_register("CFG", "CONF")
    assert view.registers == ["CONF", "EXT"]
    view.model.undo()
    assert view.words == WORDS
    one.undo()
    one.undo()
    assert (view.registers, view.fields["mode"]) == (["CFG", "EXT"], "on")
    view.close()
    one.rename("mode", "m")
    assert "mode" in view.fields


def test_a_register_view_keeps_its_fields_where_the_draft_does_not_fit() -> None:
    one = made()
    model = RegisterModel(small())
    model.follow(one)
    one.add("more", "MORE", 0, 8, offset=8)
    assert model.summary == "the draft does not fit: words: got 2, allowed is 3 (block NN)"
    assert model.fields["mode"] == "on"
    one.undo()
    assert model.summary == "not changed"
    model.leave(one)
    one.rename("mode", "m")
    assert "mode" in model.fields
    with pytest.raises(ValueError, match=r"^words: got 2, allowed is 5 \(block NN\)$"):
        RegisterView(small(), draft=draft(5, block="NN"))


@pytest.mark.parametrize(
    ("text", "bits", "steps"),
    [
        ("0[2:0]", "0[2:0]", 1),
        ("2:1", "0[2:1]", 1),
        ("3", "0[3]", 1),
        ("[3:1]", "0[3:1]", 1),
        ("1:0", "0[1:0]", 0),
        ("1[27:26]", "1[27:26]", 1),
        ("1[28:26]", "1[28:26]", 1),
    ],
)
def test_bits_of_a_field_are_edited(text: str, bits: str, steps: int) -> None:
    model = MapModel(made(), small())
    model.press({"do": "cell", "field": "mode", "column": "bits", "text": text})
    assert (model.draft.map["mode"].bits, len(model.steps)) == (bits, steps), model.status


def test_the_bits_follow_the_draft() -> None:
    model = MapModel(made(), small())
    seen = []
    model.bits.observe(lambda change: seen.append(change.new), "read")
    model.press({"do": "add", "field": "mode", "text": "wide 0[20:12]"})
    assert (seen, model.bits.fields["wide"]) == (
        [model.bits.read],
        model.draft.decode(small()).values["wide"],
    )

    def named(bit: int) -> str:
        return model.bits.describe(0, bit).split(" · ")[1].split()[0]

    assert named(16) == "wide"
    model.press({"do": "cell", "field": "wide", "column": "bits", "text": "0[18:15]"})
    assert [named(bit) for bit in (20, 18, 15, 12)] == ["w0_19_13", "wide", "wide", "w0_8_7"]
    assert model.steps[-1] == "resize wide from 9 to 4 bits, move wide to CFG bit 15"
    model.press({"do": "undo"})
    assert named(20) == "wide"
    assert (model.bits.words, MapModel(made()).bits.words) == (
        tuple(small().words.tolist()),
        (0,) * model.count,
    )
    model.draft.add("more", "NEW", 0, 4, offset=4 * model.count)
    assert (model.count, len(model.bits.words), model.bits.differing) == (
        len(model.draft.map),
        len(model.draft.map),
        0,
    )


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        ({"do": "cell", "column": "bits", "text": "5:0"}, "refused: "),
        ({"do": "cell", "column": "bits", "text": "6:2"}, "refused: "),
        (
            {"do": "cell", "column": "bits", "text": "low"},
            "refused: bits: got 'low', allowed is highest and lowest bit such as 12:4",
        ),
        (
            {"do": "cell", "column": "bits", "text": "0:3"},
            "refused: bits: got 0:3, allowed are bits from 31 to 0, the highest bit first",
        ),
        ({"do": "cell", "column": "bits", "text": "9[1:0]"}, "refused: "),
        ({"do": "cell", "column": "bits", "text": "1[1]"}, "refused: "),
        ({"do": "add", "text": "x 1:0"}, "refused: "),
        ({"do": "add", "text": "3:2"}, "refused: "),
        ({"do": "add", "text": "x 40:2"}, "refused: bits: got 40:2, allowed are bits from 31 to 0"),
    ],
)
def test_bits_that_are_refused_change_nothing(message: dict[str, str], refusal: str) -> None:
    model = MapModel(made(), small())
    rows = model.rows
    model.press({"field": "mode", **message})
    assert model.status.startswith(refusal), model.status
    assert (model.rows, model.steps) == (rows, [])


def test_a_field_is_added_in_the_register_of_another() -> None:
    model = MapModel(made(), small())
    model.press({"do": "add", "field": "mode", "text": "extra 3:2"})
    assert (model.status, model.draft.map["extra"].bits) == (
        "add extra in CFG at bits 2 to 3",
        "0[3:2]",
    )


def test_what_is_on_screen_decodes_anew(nn: Path) -> None:
    capture = npulab.load(CAPTURES / "vivante/sim-3x3-stride2-relu")
    draft = npulab.draft(nn, features=["nn_v7"])
    editor, registers = (
        npulab.notebook.widgets.MapEditor(draft, capture),
        npulab.RegisterView(capture, draft=draft),
    )
    again: list[str] = []
    editor.observe(lambda change: again.append(change.name), ["rows", "steps"])
    registers.observe(lambda change: again.append(change.name), ["places", "values"])
    word = int(capture.words[1])
    draft.split("in_image_x_size", widths=[3, 10], names=["low", "high"])
    assert {"rows", "steps", "values", "places"} <= {*again}
    decoded = draft.decode(capture).fields.set_index("field")["raw"]
    assert (decoded["low"], decoded["high"]) == (word // 2**6 % 8, word // 2**9 % 2**10)
    assert {"low", "high"} <= {*registers.fields}
    assert (
        sum(
            "low" in map(str, row.values() if isinstance(row, dict) else row) for row in editor.rows
        )
        == 1
    )
    draft.undo()
    assert "in_image_x_size" in registers.fields
