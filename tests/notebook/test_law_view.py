"""The law view: its model with no browser, its widget with no front end, what a notebook keeps
of it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import traitlets
from fake_laws import ROWS, fake_laws

import npulab
from npulab.analysis.correlate import bit_effects, flips
from npulab.analysis.laws.expressions import ALWAYS, Expression, constant, field
from npulab.captures.capture import Job
from npulab.notebook.pictures.laws import law_scatter
from npulab.notebook.widgets import LawModel, LawView, RegisterView
from npulab.notebook.widgets.law_picture import capture_line, own_parameters

LAWS = fake_laws()
SUMMARY = "7 law, 8 constant, 1 rivals, 4 open, 138 never exercised, 2 nuisance bits"


def test_every_bit_is_in_one_run() -> None:
    model = LawModel(LAWS)
    held = [(run.word, bit) for run in model.runs for bit in range(run.lsb, run.lsb + run.width)]
    assert sorted(held) == [(word, bit) for word in range(5) for bit in range(32)]
    assert [run.name for run in model.runs if run.law is not None] == ["w0_3_7", "w2_0_1", "w3_8_8"]
    for run in model.runs:
        if run.law is None:
            assert set(LAWS.status[run.word, run.lsb : run.lsb + run.width]) == {run.status}
    assert model.run_at(1, 6).name == "w1_4_4"
    assert np.array_equal(
        model.run_at(0, 4).raw(LAWS.words), LAWS.fields[0].values(LAWS.parameters)
    )


def test_the_grid_has_a_letter_for_each_bit() -> None:
    model = LawModel(LAWS)
    letters = {
        "law": "L",
        "constant": "C",
        "rivals": "R",
        "open": "?",
        "never exercised": "·",
        "nuisance": "N",
    }
    assert [[letters[name] for name in row[::-1]] for row in LAWS.status] == [
        list(row) for row in model.grid
    ]
    assert (model.summary, model.count, sum(model.counts.values())) == (SUMMARY, 5, 160)
    assert model.place == (0, 9), "the first bit that was ever exercised"


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("w1_4", ["w1_4_4"]),
        ("input_w", ["w0_3_7", "w1_4_4"]),
        ("INPUT_W stride", ["w0_3_7"]),
        ("ceil(", ["w0_3_7"]),
        ("threshold", ["w1_4_4"]),
        ("rivals", ["w2_0_1"]),
        ("relu ^", ["w2_0_1"]),
        ("depth", []),
        ("", []),
        ("  ", []),
    ],
)
def test_search(query: str, names: list[str]) -> None:
    model = LawModel(LAWS)
    model.query = query
    assert [model.runs[index].name for index in model.matches] == names


def test_panel_of_a_law() -> None:
    model = LawModel(LAWS)
    assert model.panel == {}
    model.place, model.opened = (0, 5), True
    panel = model.panel
    assert (panel["name"], panel["bits"], panel["status"], panel["law"]) == (
        "w0_3_7",
        "word 0 bits 9 to 3",
        "law",
        True,
    )
    assert panel["steps"] == [
        {"when": "stride == 2", "law": "ceil(input_w / 2)", "support": 28, "extrapolated": False},
        {"when": "else", "law": "input_w", "support": 32, "extrapolated": False},
    ]
    assert (panel["rivals"], panel["open"]) == ([], [])
    scatter = panel["scatter"]
    assert (scatter["parameter"], scatter["text"]) == (
        "input_w",
        "w0_3_7 against input_w: 60 captures, 60 as the law has them",
    )
    width, stride = LAWS.parameters["input_w"], LAWS.parameters["stride"]
    assert sorted(tuple(point[:4]) for point in scatter["points"]) == sorted(
        {
            (float(w), -(-w // 2) if s == 2 else w, int(s != 2), 1)
            for w, s in zip(width, stride, strict=True)
        }
    )
    assert sum(point[4] for point in scatter["points"]) == ROWS
    x, raw, *_, count, hover = scatter["points"][0]
    row = int(hover.split()[1].rstrip(":"))
    assert (width[row], scatter["names"]) == (x, [])
    more = f" and {count - 1} more like it" if count > 1 else ""
    assert (
        hover
        == f"capture {row}{more}: input_w = {width[row]}, stride = {stride[row]}: raw {raw} ({raw:#x}), as the law has it"
    )
    assert [name for name, _ in panel["related"]][:2] == ["input_w", "stride"], (
        "those of the law come first"
    )
    model.opened = False
    assert model.panel == {}


def test_the_law_is_drawn_through_its_points() -> None:
    model = LawModel(LAWS)
    model.place, model.opened = (0, 5), True
    scatter = model.panel["scatter"]
    drawn = {
        (curve["text"], curve["step"]): dict(map(tuple, curve["points"]))
        for curve in scatter["curves"]
    }
    assert sorted(drawn) == [("stride = 1", 1), ("stride = 2", 0)]
    for x, raw, step, right, *_ in scatter["points"]:
        assert right
        assert drawn[f"stride = {2 - step}", step][x] == raw, "the curve goes through each point"
    assert all(curve["kind"] == "law" for curve in scatter["curves"])
    model.against = "scale"
    held = model.panel["scatter"]
    assert len(held["curves"]) == 5
    assert "more combinations of the law's other parameters are not drawn" in held["text"]
    assert {len({y for _, y in curve["points"]}) for curve in held["curves"]} == {1}, (
        "scale changes nothing"
    )


def test_a_law_is_opened_against_its_own_parameter_with_its_rivals() -> None:
    """min(output_w, 64), where input_w tells as much about it; the words are real laws' own."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"input_w": rng.permutation(np.arange(5, 125))[:40]})
    frame["output_w"], frame["deep"] = frame["input_w"] - 2, rng.integers(1, 9, 40)
    words = np.minimum(frame["output_w"], 64).to_numpy()[:, None].astype(np.uint32)
    laws = npulab.find_laws(words, frame)
    law = laws.fields[0]
    model = LawModel(laws)
    model.place, model.opened = (0, 2), True
    scatter = model.panel["scatter"]
    own = own_parameters(law, laws)
    assert scatter["parameter"] == own[0]
    (curve,) = [
        dict(map(tuple, curve["points"])) for curve in scatter["curves"] if curve["kind"] == "law"
    ]
    assert all(curve[x] == raw for x, raw, *_ in scatter["points"])
    values = law.rival_values(frame)
    assert list(values) == list(law.rivals)
    assert all(np.array_equal(other, law.values(frame)) for other in values.values()), (
        "the captures cannot tell them"
    )
    rivals = [
        curve["text"].split(", the other")[0]
        for curve in scatter["curves"]
        if curve["kind"] == "rival"
    ]
    assert rivals == list(law.rivals)[:3]


def test_the_nearest_capture_is_named_with_what_is_changed() -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": [3, 4], "c": [5, 6], "d": [7, 8], "e": [9, 9]})
    asked = {"a": 2, "b": 0, "c": 0, "d": 0, "e": 0}
    line, full = capture_line(asked, frame, ["d", "c"])
    assert line == "capture 1 again, with d = 0, c = 0, b = 0 and 1 more"
    assert full == "a = 2, b = 0, c = 0, d = 0, e = 0"
    assert capture_line({"a": 1, "b": 3, "c": 5, "d": 7, "e": 1}, frame, []) == (
        "capture 0 again, with e = 1",
        "",
    )


def test_panel_of_rivals_and_of_open_bits() -> None:
    model = LawModel(LAWS)
    model.opened, model.place = True, (2, 0)
    assert model.panel["rivals"] == ["relu ^ (stride > 2)"]
    assert [step["when"] for step in model.panel["steps"]] == ["always"]
    assert model.panel["bit"].startswith("bit 0: relu 0.9")
    model.place = (1, 7)
    assert (model.panel["law"], model.panel["about"], model.panel["steps"]) == (
        False,
        "no law, threshold",
        [],
    )
    bits, why, line, full = model.panel["open"][1]
    assert model.panel["open"][0] == ["bits 6 to 4", "no law", "", ""]
    assert (bits, why, full) == ("bit 7", "threshold, between input_w 30 and 33", "")
    row = int(line.split()[1])
    assert line.startswith(f"capture {row} again, with ")
    changed = dict(part.split(" = ") for part in line.split("with ")[1].split(", "))
    assert {
        **LAWS.parameters.iloc[row][["input_w", "stride"]].astype(int).astype(str),
        **changed,
    } == {"input_w": "31", "stride": "1"}
    assert model.panel["related"][0][0] == "input_w"
    assert {point[2] for point in model.panel["scatter"]["points"]} == {-1}
    model.place = (4, 0)
    assert (model.panel["about"], model.panel["related"], model.panel["bit"]) == (
        "always 0x0",
        [],
        "bit 0: nothing",
    )


def test_a_capture_that_is_not_as_the_law_has_it_is_said() -> None:
    words = LAWS.words.copy()
    words[7, 0] ^= 8
    model = LawModel(replace(LAWS, words=words))
    model.place, model.opened = (0, 5), True
    assert (
        model.panel["scatter"]["text"]
        == "w0_3_7 against input_w: 60 captures, 59 as the law has them"
    )
    assert [point[3] for point in model.panel["scatter"]["points"]].count(0) == 1


def test_the_picture_is_against_what_was_asked_until_another_field_is_looked_at() -> None:
    model = LawModel(LAWS)
    model.place, model.opened, model.against = (0, 5), True, "scale"
    assert model.panel["scatter"]["parameter"] == "scale"
    model.place = (0, 6)
    assert model.panel["scatter"]["parameter"] == "scale", "it is the same field"
    model.place = (2, 0)
    assert (model.against, model.panel["scatter"]["parameter"]) == ("", "relu")
    with pytest.raises(
        LookupError, match="against: got 'depth', allowed are input_w, stride, relu, scale"
    ):
        model.against = "depth"
    assert model.against == ""


def test_parameters_of_texts_and_many_points() -> None:
    rows = 2000
    frame = pd.DataFrame(
        {"input_w": np.arange(rows), "mode": np.resize(["dense", "depthwise"], rows)}
    )
    words = np.zeros((rows, 5), np.uint32)
    words[:, 0] = np.arange(rows) % 128 * 8
    model = LawModel(replace(LAWS, words=words, parameters=frame, fields=(), table=LAWS.table[:0]))
    model.place, model.opened = (1, 4), True
    model.place = (0, 4)
    assert len(model.panel["scatter"]["points"]) == 300
    assert json.loads(json.dumps(model.panel)) == model.panel
    model.against = "mode"
    assert model.panel["scatter"]["names"] == ["dense", "depthwise"]
    assert {point[0] for point in model.panel["scatter"]["points"]} == {0, 1}


def test_shades() -> None:
    model = LawModel(LAWS)
    assert model.shades == []
    model.colour = "flips"
    assert model.shades == np.rint(100 * flips(LAWS.words)).astype(int).tolist()
    model.parameter, model.colour = "relu", "relation"
    assert (
        model.shades
        == np.rint(100 * bit_effects(LAWS.words, LAWS.parameters)[:, :, 2]).astype(int).tolist()
    )
    assert model.shades[2][0] > 95
    model.parameter = "stride"
    assert model.shades[2][0] < 20
    model.colour = "status"
    assert model.shades == []
    with pytest.raises(traitlets.TraitError):
        model.colour = "mood"
    with pytest.raises(LookupError, match="parameter: got 'depth'"):
        model.parameter = "depth"


@pytest.mark.parametrize("place", [(5, 0), (-1, 0), (0, 32), (0,), "ab"])
def test_a_place_outside_is_refused(place: Any) -> None:
    model = LawModel(LAWS)
    with pytest.raises(ValueError, match=r"(word|bit|place): got .*, allowed is"):
        model.place = place
    assert model.place == (0, 9)


@pytest.mark.parametrize(
    ("rivals", "told"),
    [
        ("", []),
        (None, []),
        (float("nan"), []),
        (0, []),
        (2, ["2 more"]),
        (("a", "b"), ["a", "b"]),
        ([f"r{n}" for n in range(9)], ["r0", "r1", "r2", "r3", "r4", "… 4 more"]),
    ],
)
def test_rivals_however_a_table_has_them(rivals: Any, told: list[str]) -> None:
    table = LAWS.table.astype(object)
    table["rivals"] = pd.Series([[], [], rivals, []], dtype=object)
    model = LawModel(replace(LAWS, table=table))
    model.place, model.opened = (2, 0), True
    assert model.panel["rivals"] == told


# ---- the widget, with no front end ----


def test_view_follows_what_the_page_sends() -> None:
    view = LawView(LAWS)
    view.set_state({"place": [1, 6], "opened": True})
    assert (view.model.place, view.panel["name"]) == ((1, 6), "w1_4_4")
    view.set_state({"query": "relu"})
    assert [view.runs[index][0] for index in view.matches] == ["w2_0_1"]
    view.set_state({"parameter": "scale", "colour": "relation"})
    assert view.shades == view.model.shades != []
    view.set_state({"against": "stride"})
    assert view.panel["scatter"]["parameter"] == "stride"
    view.model.opened = False
    assert (view.opened, view.panel) == (False, {})
    with pytest.raises(LookupError):
        view.set_state({"against": "depth"})
    state = {name: value for name, value in view.get_state().items() if not name.startswith("_")}
    state.pop("layout")
    json.dumps(state)


def test_a_line_counts_captures_and_bits() -> None:
    assert repr(LawView(LAWS)) == f"LawView({ROWS} captures of 5 words, 4 parameters: {SUMMARY})"


def reading() -> Any:
    """Laws of which one reads the field of another: w1 is input_w * w0 + input_w, as the words say."""
    random = np.random.default_rng(3)
    sizes = random.integers(1, 60, 80)
    words = np.stack([sizes - 1, sizes, sizes * 2], axis=1).astype(np.uint32)
    found = npulab.find_laws(words, {"input_w": sizes})
    first, second, third = sorted(found._solved, key=lambda law: law.word)
    step = (ALWAYS, Expression("+", (field(first.name), constant(1))))
    reader = replace(second, steps=(step,))
    follows = {law.name: frozenset[str]() for law in (first, third)}
    follows[reader.name] = frozenset({first.name})
    return replace(found, _solved=(first, reader, third), _follows=follows)


def test_a_law_names_the_fields_that_it_reads() -> None:
    found = reading()
    model = LawModel(found)
    first, second, third = [run for run in model.runs if run.law is not None]
    assert [run.name for run in model.reads(second)] == [first.name]
    assert model.read_by(first) == [second.name]
    assert (model.reads(first), model.read_by(third)) == ([], [])
    model.place, model.opened = (first.word, first.lsb), True
    assert model.panel["read_by"] == [second.name]
    capture = npulab.Capture("a", "demo", "x", (Job("", [1, 2, 4]),))
    registers = npulab.draft(
        [
            {"offset": 4 * run.word, "field": run.name, "lsb": run.lsb, "width": run.width}
            for run in (first, second)
        ]
        + [{"offset": 8, "field": "input_w", "lsb": 0, "width": 8}]
    ).map
    view = RegisterView(replace(capture, maps={"": registers}), laws=found)
    by_name = {place["name"]: place for place in view.places}
    assert by_name[second.name]["reads"] == [first.name]
    assert by_name[second.name]["known"].endswith(by_name[second.name]["law"])
    assert by_name[first.name]["reads"] == []  # input_w is a parameter in a law, not the field


def test_the_face_without_a_kernel() -> None:
    html = LawModel(LAWS)._repr_html_()
    assert "w1   NN·· ···· ···· ···· ···· ···· ???? ····" in html
    assert (
        "<td style='text-align:left'>when stride == 2 then ceil(input_w / 2); input_w</td>" in html
    )
    assert "<script" not in html
    nasty = replace(LAWS, fields=(replace(LAWS.fields[1], steps=(("", "<script>"),)),))
    assert "<script" not in LawModel(nasty)._repr_html_()
    assert "&lt;script&gt;" in LawModel(nasty)._repr_html_()
    long = LawModel(fake_laws(words=200))._repr_html_()
    assert "… 142 more words" in long
    assert len(long) < 25_000


def test_a_law_that_reads_an_open_field_is_shown_without_a_curve() -> None:
    width = np.arange(8, 72)
    found = npulab.find_laws(width[:, None].astype(np.uint32), {"width": width})
    solved = found._solved[0]
    reader = replace(solved, steps=((ALWAYS, Expression("+", (field("w1_0_4"), constant(20)))),))
    found = replace(found, _solved=(reader,), _follows={reader.name: frozenset({"w1_0_4"})})
    (law,) = found.fields
    assert law_scatter(found, law).text.endswith(", 64 values, no law")
    model = LawModel(found)
    model.place, model.opened = (law.word, law.lsb), True
    assert model.panel["steps"][0]["law"] == law.text
    assert model.panel["scatter"]["curves"] == []
    assert {point[2] for point in model.panel["scatter"]["points"]} == {-1}
