"""The view of a model's operators: its model with no browser, its drawing in a blank page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from blank_page import THEMES, BlankPage
from conftest import CAPTURES
from playwright.sync_api import Browser
from test_map_editor import SCRIPT

import npulab
from npulab.analysis.lowered import lower_model
from npulab.captures.capture import Capture
from npulab.notebook.widgets import OperatorsModel, OperatorsView
from npulab.notebook.widgets.bits_view import Rows, meant
from npulab.notebook.widgets.register_view import map_of, words_of

VIVANTE = CAPTURES / "vivante"
NAMES = ("sim-3x3-same", "sim-3x3-stride2-relu", "sim-1x1")
REASON = "SOFTMAX: no unit of the NPU does it"


def loaded() -> list[tuple[str, Any]]:
    operators: list[tuple[str, Any]] = [
        (f"CONV_2D {number}", npulab.load(VIVANTE / name)) for number, name in enumerate(NAMES)
    ]
    operators.insert(1, ("SOFTMAX", REASON))
    return [*operators, ("CONV_2D 3", npulab.load(CAPTURES / "nvdla/sim-3x3-same"))]


def value(capture: Capture, task: int, key: str) -> str:
    """The value of a field in a job, by another way."""
    job = capture.jobs[task]
    rows = Rows.of(job, map_of(capture, job))
    index = rows.names.index(key)
    return meant(rows.fields[index], rows.raw(words_of(job))[index])


def test_from_operator_to_job_to_field_and_back() -> None:
    operators = loaded()
    model = OperatorsModel(operators, "tiny")
    assert (model.operator, model.job, model.field) == (0, 0, "")
    assert model.rows[1] == ["SOFTMAX", REASON]
    capture = operators[0][1]
    assert [job[1] for job in model.jobs] == [job.block for job in capture.jobs]
    model.field = "relu"
    block = capture.jobs[0].block
    for (_, what), told in zip(operators, model.values, strict=True):
        expected = ""
        if isinstance(what, Capture) and block in {job.block for job in what.jobs}:
            expected = value(what, 0, "relu")
        assert told == expected
    assert [told != "" for told in model.values] == [True, False, True, True, False]
    assert "relu: 0 in 2, 1 in 1" in model.summary
    model.operator = 2  # the field stays where the job has it
    told = {row[0]: row[3] for row in model.fields}
    assert (model.field, told["relu"]) == ("relu", "1")
    model.operator = 1
    assert (model.jobs, model.fields, model.field, model.job) == ([], [], "", 0)
    model.operator = 4
    assert {row[0] for row in model.fields} > {"CDMA.D_DATAIN_SIZE_0.DATAIN_WIDTH"}


def test_every_field_of_every_job_is_told() -> None:
    operators = loaded()
    model = OperatorsModel(operators)
    for number, (_, what) in enumerate(operators):
        model.operator = number
        for task in range(len(model.jobs)):
            model.job = task
            for key, *_, told, _, _ in model.fields[::7]:
                assert told == value(what, task, key)


def test_what_is_wrong_is_refused() -> None:
    model = OperatorsModel(loaded())
    with pytest.raises(ValueError, match=r"^operator: got operator 9, allowed is 0 to 4$"):
        model.operator = 9
    with pytest.raises(ValueError, match=r"^job: got job 3, allowed is 0 to 0$"):
        model.job = 3
    with pytest.raises(LookupError, match=r"^field: got 'rleu', allowed are "):
        model.field = "rleu"
    with pytest.raises(
        ValueError, match=r"^OperatorsView: operators: got no operator, allowed are pairs"
    ):
        OperatorsModel([])
    with pytest.raises(
        TypeError, match=r"^OperatorsView: operator 0: got tuple of 2, allowed are pairs"
    ):
        OperatorsModel([("a", 3)])  # type: ignore[list-item]


def test_what_lower_model_returns_is_shown_as_it_is() -> None:
    q = npulab.QuantParams(0.05, 0)
    layer = npulab.Conv2D(np.ones((8, 3, 3, 4), np.uint8), np.zeros(8, int), (8, 8, 4), output_q=q)
    lowered = lower_model(npulab.single_op_model(layer), "vivante")
    (one,) = lowered.operators
    without = replace(
        lowered, operators=(one, replace(one, operator=1, capture=None, reason=REASON))
    )
    model = OperatorsModel(without, "tiny")
    assert model.rows == [["0 CONV_2D", "1 job"], ["1 CONV_2D", REASON]]
    assert model.operators[0].capture is one.capture


def test_line_and_face() -> None:
    view = OperatorsView(loaded(), "tiny")
    told = "tiny: 5 operators, simulated: 4 of 5 operators in 4 jobs"
    assert repr(view) == f"OperatorsView({told})"
    face = view._repr_mimebundle_()[0]["text/html"]
    for text in ("CONV_2D 3", REASON, "kernels_per_core"):
        assert text in face
    view.field = "relu"
    assert "<th style='text-align:left'>relu</th>" in view._repr_mimebundle_()[0]["text/html"]


def test_no_capture_at_all_is_shown_too() -> None:
    view = OperatorsView([("SOFTMAX", REASON)])
    assert repr(view) == "OperatorsView(1 operator: 0 of 1 operator in 0 jobs)"
    assert REASON in view._repr_mimebundle_()[0]["text/html"]


def follow(page: BlankPage, view: OperatorsView) -> None:
    """Give Python what the page sent last, and the page what follows."""
    view.set_state(page.saved[-1])
    names = ("jobs", "fields", "values", "operator", "job", "field", "summary")
    page.push(**{name: getattr(view, name) for name in names})


def press(page: BlankPage, view: OperatorsView, *keys: str) -> None:
    for key in keys:
        before = len(page.saved)
        page.press(key)
        if len(page.saved) > before:
            follow(page, view)


def status(page: BlankPage) -> str:
    return page.page.inner_text("[role=status]")


@pytest.mark.sample(1)
@pytest.mark.parametrize("theme", THEMES)
def test_page_in_each_theme(chrome: Browser, theme: str) -> None:
    view = OperatorsView([*loaded(), (SCRIPT, SCRIPT)], SCRIPT)
    with BlankPage(chrome, view, theme) as page:
        page.page.focus(".operator .list")
        press(page, view, "ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown")
        assert page.accessibility() == []
        page.page.set_viewport_size({"width": 500, "height": 900})
        assert page.accessibility() == []
        page.cleanup()
        assert (page.listeners, page.errors) == (0, [])


def test_page_from_operator_to_field_and_back_by_keys(chrome: Browser) -> None:
    view = OperatorsView(loaded())
    with BlankPage(chrome, view) as page:
        page.page.evaluate(
            "window.heard = []; document.addEventListener('keydown', e => heard.push(e.key))"
        )
        page.press("Tab")
        press(page, view, "ArrowDown")
        assert status(page) == f"SOFTMAX · {REASON}"
        press(page, view, "ArrowUp", "ArrowRight", "ArrowRight")
        assert view.field == view.fields[0][0]
        press(page, view, "/", *"relu", "Enter")
        assert page.page.locator(".field .item:visible").count() < 5
        press(page, view, "End")
        assert view.field == "relu"
        assert status(page).startswith("CONV_2D 0 · job 0 NN · relu w2[24] · 0x0 = 0 · evidence")
        told = page.page.locator(".operator .value").all_inner_texts()
        assert told == [value and f"relu {value}" for value in view.values]
        press(page, view, "n")
        assert (view.operator, view.field) == (2, "relu")
        press(page, view, "p", "ArrowLeft", "ArrowLeft")
        assert view.operator in (0, 3)
        assert (
            page.page.evaluate("document.activeElement.getAttribute('aria-label')") == "operators"
        )
        press(page, view, "x")
        assert view.field == ""
        press(page, view, "n")
        assert status(page) == "choose a field first"
        page.page.click(".operator .item >> nth=4")
        follow(page, view)
        assert page.page.locator(".field .item").count() == len(view.fields) > 200
        assert page.page.evaluate("heard.filter(key => key !== 'Tab')") == []
        assert page.errors == []


def test_a_large_model_is_quick() -> None:
    """200 operators: what follows from a field is read once."""
    capture = loaded()[0][1]
    view = OperatorsView([(f"CONV {n}", replace(capture, name=f"c{n}")) for n in range(200)])
    view.field = "relu"
    assert view.values == ["0"] * 200
    read = dict(view.model._read)
    view.field = "prelu"
    assert {place: id(rows) for place, rows in view.model._read.items()} == {
        place: id(rows) for place, rows in read.items()
    }
