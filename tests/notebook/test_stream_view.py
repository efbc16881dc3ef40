"""The view of a stream of jobs: its model with no browser, its drawing in a blank page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blank_page import BlankPage
from map_rows import map_rows
from playwright.sync_api import Browser

import npulab
from npulab.captures.capture import Capture, Job
from npulab.notebook.widgets import StreamModel, StreamView
from npulab.registers.map import RegisterMap

OUTSIDER = Path(__file__).parents[1] / "outsider"
NASTY = "<script>alert('x')</script>|*a*"
KINDS = {0: "inp", 1: "wgt"}
MAPS = {
    "LOAD": RegisterMap(
        map_rows(
            """
            block,field,lsb,width,value,address
            LOAD,memory,0,2,enum:kind,
            LOAD,size,4,8,,
            LOAD,base,12,12,,yes
            """
        ),
        enums={"kind": KINDS},
    ),
    "ALU": RegisterMap(
        map_rows(
            f"""
            block,offset,register,field,lsb,width
            ALU,,A,{NASTY},0,8
            ALU,4,B,imm,0,8
            """
        )
    ),
}


def load(memory: int, size: int, base: int = 0) -> Job:
    return Job("LOAD", [memory + 16 * size + 4096 * base])


def capture(**changes: Any) -> Capture:
    jobs = (load(0, 4), load(1, 9), load(0, 4, 8), Job("ALU", [7, 0]), load(0, 5, 8))
    return replace(
        Capture(NASTY, "demo", "x", jobs, maps=MAPS, provenance="simulated"),
        **changes,
    )


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Capture:
    """A layer as vta runs it, whose target states tokens."""
    monkeypatch.chdir(OUTSIDER)
    rng = np.random.default_rng(3)
    weights = rng.integers(-128, 128, (17, 2, 3, 3)).astype(np.int8)
    layer = npulab.Conv2D(
        weights,
        rng.integers(-500, 500, 17),
        (5, 4, 3),
        padding="same",
        weight_q=npulab.QuantParams(2.0**-9),
    )
    return npulab.target("vta").lower(layer)


def test_jobs_are_rows_and_a_block_is_chosen() -> None:
    model = StreamModel(capture())
    assert model.columns == ("job", "what", "fields")
    assert [model.cells(task) for task in model.shown] == [
        ["0", "LOAD inp", "size 4"],
        ["1", "LOAD wgt", "memory wgt, size 9"],
        ["2", "LOAD inp", "base 0x00000008 · size 4"],
        ["3", "ALU", f"{NASTY} 7"],
        ["4", "LOAD inp", "size 5 · base 0x00000008"],
    ]
    assert model.summary == "5 jobs: 4 LOAD, 1 ALU"
    assert repr(model) == f"StreamModel(demo/{NASTY}, simulated; {model.summary})"
    model.selected = 2
    model.block = "ALU"
    assert (model.shown, model.selected) == ([3], 3)
    assert model.summary.endswith("; 1 shown")
    model.selected = 1
    assert model.selected == 3, "a job that is not shown is not gone to"
    with pytest.raises(LookupError, match="block: got 'LOAT', allowed are LOAD, ALU; near is LOAD"):
        model.block = "LOAT"
    with pytest.raises(ValueError, match="selected: got job 5, allowed is -1 to 4"):
        model.selected = 5
    face = model._repr_html_()
    assert "LOAD inp" not in face
    assert "<script>" not in face
    assert "<b>simulated</b>" in face


def test_a_job_is_opened_and_closed() -> None:
    model = StreamModel(capture())
    assert (model.fields, model.job) == (None, {})
    model.block = "ALU"
    model.opened = 4
    assert (model.block, model.selected) == ("", 4), "its row is shown"
    assert model.fields is not None
    assert model.fields.changed == {"size": (4, 5)}
    assert model.fields.summary == "1 bit in 1 field differs from job 2: size 4 → 5"
    assert [*model.job["words"]] == capture().jobs[4].words.tolist()
    assert "job 4 LOAD" in model._repr_html_()
    model.opened = 3
    assert model.fields.summary == "no job of this kind stands before it"
    assert model.job["registers"] == ["A", "B"]
    model.opened = -1
    assert (model.fields, model.job, model.selected) == (None, {}, 3)


def test_no_tokens_are_drawn_where_none_are_stated(stream: Capture) -> None:
    assert StreamModel(capture()).units == ()
    assert StreamModel(replace(stream, target="vivante")).waits is None
    assert StreamModel(Capture("none", "demo", "x", ())).summary == "0 jobs"
    assert StreamModel(Capture("none", "demo", "x", ())).selected == -1


def test_what_waits_for_what_is_told(stream: Capture) -> None:
    model = StreamModel(stream)
    assert model.units == ("load", "compute", "store")
    assert model.columns == ("job", "what", "unit", "waits for", "releases", "fields")
    store = next(row for row in model.rows if row.line.block == "STORE")
    (before,) = store.before
    assert before is not None
    assert store.line.task in model.rows[before].after
    assert (store.unit, model.rows[before].unit) == ("store", "compute")
    assert f" · store unit · waits for {before}" in store.text
    assert "never" not in model.summary
    bad = stream.with_fields(before, push_next_dep=0)
    model = StreamModel(bad)
    row = model.rows[store.line.task]
    assert (row.before, row.waits, row.stuck) == ((None,), "a token that never comes", True)
    assert f"job {store.line.task} (store) never begins" in model.summary
    assert "no job of compute pushes its token" in model.summary


# ---- the drawing, in a blank page ----


def answer(page: BlankPage, view: StreamView, seen: int = 0) -> int:
    """Give Python what the page saved since, and the page what Python makes of it."""
    saved = page.saved
    for traits in saved[seen:]:
        view.set_state(traits)
    names = ("block", "selected", "opened", "shown", "summary", "job")
    page.push(**{name: getattr(view, name) for name in names})
    return len(saved)


def focus(page: BlankPage) -> str:
    return page.page.evaluate("document.activeElement.className")


@pytest.mark.parametrize("theme", ["light", "dark", pytest.param("bare", marks=pytest.mark.long)])
def test_page_goes_from_a_job_to_its_fields_and_back(chrome: Browser, theme: str) -> None:
    view = StreamView(capture())
    with BlankPage(chrome, view, theme) as page:
        rows = page.page.locator(".jobs tbody tr")
        assert rows.count() == 5
        assert page.page.locator(".lane").count() == 0
        assert not page.page.is_visible(".opened")
        assert "goes to the job that is waited for" not in page.page.inner_text(".npulab-help")
        assert page.accessibility() == []
        rows.nth(3).click()
        assert page.saved[-1] == {"selected": 3}
        seen = answer(page, view)
        assert NASTY in page.page.inner_text("[role=status]")
        page.press("ArrowDown")
        seen = answer(page, view, seen)
        page.press("Enter")
        assert page.saved[-1] == {"opened": 4}
        seen = answer(page, view, seen)
        assert "npulab-bit" in focus(page)
        assert page.page.inner_text(".opened .npulab-summary") == view.model.fields.summary
        assert page.page.locator(".opened .npulab-bit.differs").count() == 1
        assert page.page.locator(".opened .item").count() == len([*MAPS["LOAD"]])
        page.press("ArrowDown ArrowLeft")
        assert len(page.saved) == seen, "the cursor in the bits stays on the page"
        assert page.accessibility() == []
        page.press("/")
        page.page.keyboard.type("size")
        assert page.page.locator(".opened .item:not([hidden])").count() == 1
        page.press("Escape Escape")
        assert page.saved[-1] == {"opened": -1}
        seen = answer(page, view, seen)
        assert not page.page.is_visible(".opened")
        assert page.page.evaluate("document.activeElement.dataset.task") == "4"
        page.press("b b")
        seen = answer(page, view, seen)
        assert (view.block, page.page.locator(".jobs tbody tr").count()) == ("ALU", 1)
        rows.first.dblclick()
        seen = answer(page, view, seen)
        assert view.opened == 3
        assert page.page.locator(".opened .npulab-row").count() == 3
        page.page.click(".open")
        seen = answer(page, view, seen)
        assert view.opened == -1
        page.cleanup()
        assert (page.listeners, page.errors) == (0, [])


def test_page_follows_tokens(chrome: Browser, stream: Capture) -> None:
    view = StreamView(stream)
    store = next(row for row in view.model.rows if row.line.block == "STORE")
    before = store.before[0]
    with BlankPage(chrome, view) as page:
        heads = page.page.locator(".jobs th").all_inner_texts()
        assert heads == [
            "job",
            "what",
            "load",
            "compute",
            "store",
            "waits for",
            "releases",
            "fields",
        ]
        lanes = page.page.locator(f"tr[data-task='{before}'] .lane")
        assert lanes.all_inner_texts() == ["", "●", ""]
        page.page.click(f"tr[data-task='{store.line.task}']")
        seen = answer(page, view)
        assert page.page.locator("tr.before").get_attribute("data-task") == str(before)
        page.press("w")
        assert page.saved[-1] == {"selected": before}
        seen = answer(page, view, seen)
        assert page.page.locator("tr.after").get_attribute("data-task") == str(store.line.task)
        page.press("r")
        seen = answer(page, view, seen)
        assert view.selected == store.line.task
        page.page.select_option("select.block", "STORE")
        seen = answer(page, view, seen)
        page.page.locator(".jobs tbody tr").first.focus()
        page.press("w")
        seen = answer(page, view, seen)
        assert (view.block, view.selected) == ("", before), "the job of another block is shown"
        assert (page.accessibility(), page.errors) == ([], [])


def test_page_marks_a_job_that_never_begins(chrome: Browser, stream: Capture) -> None:
    task = next(row.line.task for row in StreamModel(stream).rows if row.line.block == "STORE")
    view = StreamView(stream.with_fields(task, pop_prev_dep=1, push_prev_dep=0))
    with BlankPage(chrome, view, "dark") as page:
        stuck = page.page.locator("tr.stuck")
        assert stuck.count() == len(view.model.waits.stuck) > 0
        assert "never begins" in stuck.first.inner_text()
        assert (page.accessibility(), page.errors) == ([], [])


def test_many_jobs_are_built_when_the_cursor_comes_to_them(chrome: Browser) -> None:
    view = StreamView(capture(jobs=tuple(load(0, 1 + n % 200) for n in range(1500))))
    with BlankPage(chrome, view) as page:
        assert page.page.locator(".jobs tbody tr").count() == 600
        assert page.page.inner_text(".none") == "… 900 more jobs"
        page.page.locator(".jobs tbody tr").first.click()
        page.press("End")
        assert page.saved[-1] == {"selected": 1499}
        assert page.page.evaluate("document.activeElement.dataset.task") == "1499"
        assert page.errors == []


def test_page_filters_the_fields_of_a_job(chrome: Browser, stream: Capture) -> None:
    view = StreamView(stream)
    view.opened = 0
    with BlankPage(chrome, view) as page:
        page.page.fill(".npulab-stream-bits .search", "raw != 0")
        page.page.press(".npulab-stream-bits .search", "Enter")
        assert page.sent == [{"do": "filter", "text": "raw != 0"}]
        view._handle_custom_msg(page.sent[-1], [])
        page.push(filtered=view.filtered)
        fields = view.model.fields
        assert fields is not None
        raws = fields.rows.raw(fields.words)
        names = [name for name, raw in zip(fields.rows.names, raws, strict=True) if raw]
        assert page.page.locator(".item:visible .name").all_inner_texts() == names
        assert 0 < len(names) < len(raws)
        page.page.fill(".npulab-stream-bits .search", "raw <")
        page.page.press(".npulab-stream-bits .search", "Enter")
        view._handle_custom_msg(page.sent[-1], [])
        page.push(filtered=view.filtered)
        assert "which is no expression" in page.page.inner_text(
            ".npulab-stream-bits .npulab-status"
        )
        view.opened = 1
        assert view.filtered == {}
        assert page.errors == []
    view.opened = -1
    view.model.press({"do": "filter", "text": "raw != 0"})  # no job is open: nothing happens
    assert view.filtered == {}
