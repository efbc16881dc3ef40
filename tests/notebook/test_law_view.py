"""The law view: its model with no browser, its widget with no front end, what a notebook keeps of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import traitlets
from fake_laws import ROWS, fake_laws

from npulab.analysis.correlate import bit_effects, flips
from npulab.notebook.widgets import LawModel, LawView

LAWS = fake_laws()
SUMMARY = "7 law, 8 constant, 1 rivals, 4 open, 138 never exercised, 2 nuisance bits"


def test_every_bit_is_in_one_run() -> None:
    model = LawModel(LAWS)
    held = [(run.word, bit) for run in model.runs for bit in range(run.lsb, run.lsb + run.width)]
    assert sorted(held) == [(word, bit) for word in range(5) for bit in range(32)]
    assert [run.name for run in model.runs if run.law is not None] == ["w0_3_7", "w2_0_1", "w3_8_8"]
    for run in model.runs:
        if run.law is None:
            assert set(LAWS.status[run.word, run.lsb:run.lsb + run.width]) == {run.status}
    assert model.run_at(1, 6).name == "w1_4_4"
    assert np.array_equal(model.run_at(0, 4).raw(LAWS.words), LAWS.fields[0].values(LAWS.parameters))


def test_the_grid_has_a_letter_for_each_bit() -> None:
    model = LawModel(LAWS)
    letters = {"law": "L", "constant": "C", "rivals": "R", "open": "?", "never exercised": "·", "nuisance": "N"}
    assert [[letters[name] for name in row[::-1]] for row in LAWS.status] == [list(row) for row in model.grid]
    assert (model.summary, model.count, sum(model.counts.values())) == (SUMMARY, 5, 160)
    assert model.place == (0, 9), "the first bit that was ever exercised"


@pytest.mark.parametrize(("query", "names"), [
    ("w1_4", ["w1_4_4"]), ("input_w", ["w0_3_7", "w1_4_4"]), ("INPUT_W stride", ["w0_3_7"]), ("ceil(", ["w0_3_7"]),
    ("threshold", ["w1_4_4"]), ("rivals", ["w2_0_1"]), ("relu ^", ["w2_0_1"]), ("depth", []), ("", []), ("  ", [])])
def test_search(query: str, names: list[str]) -> None:
    model = LawModel(LAWS)
    model.query = query
    assert [model.runs[index].name for index in model.matches] == names


def test_panel_of_a_law() -> None:
    model = LawModel(LAWS)
    assert model.panel == {}
    model.place, model.opened = (0, 5), True
    panel = model.panel
    assert (panel["name"], panel["bits"], panel["status"], panel["law"]) == ("w0_3_7", "word 0 bits 9 to 3", "law", True)
    assert panel["steps"] == [
        {"when": "stride == 2", "law": "ceil(input_w / 2)", "support": 28, "extrapolated": False},
        {"when": "else", "law": "input_w", "support": 32, "extrapolated": False}]
    assert (panel["rivals"], panel["open"]) == ([], [])
    scatter = panel["scatter"]
    assert (scatter["parameter"], scatter["text"]) == ("input_w", "w0_3_7 against input_w: 60 captures, 60 as the law has them")
    width, stride = LAWS.parameters["input_w"], LAWS.parameters["stride"]
    assert sorted(map(tuple, scatter["points"])) == sorted(
        {(float(w), -(-w // 2) if s == 2 else w, int(s != 2), 1) for w, s in zip(width, stride, strict=True)})
    assert scatter["ends"] == [str(width.min()), str(width.max())]
    model.opened = False
    assert model.panel == {}


def test_panel_of_rivals_and_of_open_bits() -> None:
    model = LawModel(LAWS)
    model.opened, model.place = True, (2, 0)
    assert model.panel["rivals"] == ["relu ^ (stride > 2)"]
    assert [step["when"] for step in model.panel["steps"]] == ["always"]
    assert model.panel["bit"].startswith("bit 0: relu 0.9")
    model.place = (1, 7)
    assert (model.panel["law"], model.panel["about"], model.panel["steps"]) == (False, "no law, threshold", [])
    assert model.panel["open"] == [
        "bits 6 to 4: no law", "bit 7: threshold, between input_w 30 and 33 · settled by input_w = 31, stride = 1"]
    assert model.panel["related"][0][0] == "input_w"
    assert {point[2] for point in model.panel["scatter"]["points"]} == {-1}
    model.place = (4, 0)
    assert (model.panel["about"], model.panel["related"], model.panel["bit"]) == ("always 0x0", [], "bit 0: nothing")


def test_a_capture_that_is_not_as_the_law_has_it_is_said() -> None:
    words = LAWS.words.copy()
    words[7, 0] ^= 8
    model = LawModel(replace(LAWS, words=words))
    model.place, model.opened = (0, 5), True
    assert model.panel["scatter"]["text"] == "w0_3_7 against input_w: 60 captures, 59 as the law has them"
    assert [point[3] for point in model.panel["scatter"]["points"]].count(0) == 1


def test_the_picture_is_against_what_was_asked_until_another_field_is_looked_at() -> None:
    model = LawModel(LAWS)
    model.place, model.opened, model.against = (0, 5), True, "scale"
    assert model.panel["scatter"]["parameter"] == "scale"
    model.place = (0, 6)
    assert model.panel["scatter"]["parameter"] == "scale", "it is the same field"
    model.place = (2, 0)
    assert (model.against, model.panel["scatter"]["parameter"]) == ("", "relu")
    with pytest.raises(LookupError, match="against: got 'depth', known are input_w, stride, relu, scale"):
        model.against = "depth"
    assert model.against == ""


def test_parameters_of_texts_and_many_points() -> None:
    rows = 2000
    frame = pd.DataFrame({"input_w": np.arange(rows), "mode": np.resize(["dense", "depthwise"], rows)})
    words = np.zeros((rows, 5), np.uint32)
    words[:, 0] = np.arange(rows) % 128 * 8
    model = LawModel(replace(LAWS, words=words, parameters=frame, fields=(), table=LAWS.table[:0]))
    model.place, model.opened = (1, 4), True
    model.place = (0, 4)
    assert len(model.panel["scatter"]["points"]) == 300
    assert json.loads(json.dumps(model.panel)) == model.panel
    model.against = "mode"
    assert model.panel["scatter"]["ends"] == ["dense", "depthwise"]


def test_shades() -> None:
    model = LawModel(LAWS)
    assert model.shades == []
    model.colour = "flips"
    assert model.shades == np.rint(100 * flips(LAWS.words)).astype(int).tolist()
    model.parameter, model.colour = "relu", "relation"
    assert model.shades == np.rint(100 * bit_effects(LAWS.words, LAWS.parameters)[:, :, 2]).astype(int).tolist()
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


@pytest.mark.parametrize(("rivals", "told"), [
    ("", []), (None, []), (float("nan"), []), (0, []), (2, ["2 more"]), (("a", "b"), ["a", "b"]),
    ([f"r{n}" for n in range(9)], ["r0", "r1", "r2", "r3", "r4", "… 4 more"])])
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


def test_repr_is_stable_and_says_simulated() -> None:
    assert repr(LawView(LAWS)) == f"LawView({ROWS} captures of 5 words, 4 parameters: {SUMMARY})"
    simulated = LawView(fake_laws(simulated=True))
    assert repr(simulated) == f"LawView({ROWS} captures of 5 words, 4 parameters, simulated: {SUMMARY})"
    data, _ = simulated._repr_mimebundle_()
    assert "<b>simulated</b>" in data["text/html"]
    assert "simulated" not in LawView(LAWS)._repr_mimebundle_()[0]["text/html"]


def test_the_face_without_a_kernel() -> None:
    html = LawModel(LAWS)._repr_html_()
    assert html == LawModel(LAWS)._repr_html_()
    assert "w1   NN·· ···· ···· ···· ···· ···· ???? ····" in html
    assert "<td style='text-align:left'>when stride == 2 then ceil(input_w / 2); input_w</td>" in html
    assert "<script" not in html
    nasty = replace(LAWS, fields=(replace(LAWS.fields[1], steps=(("", "<script>"),)),))
    assert "<script" not in LawModel(nasty)._repr_html_()
    assert "&lt;script&gt;" in LawModel(nasty)._repr_html_()
    long = LawModel(fake_laws(words=200))._repr_html_()
    assert "… 142 more words" in long
    assert len(long) < 25_000
