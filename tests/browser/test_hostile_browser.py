"""Hostile names in each view, a report and a drawing of a map, in a page of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from blank_page import BlankPage
from conftest import CAPTURES
from hostile_maps import EVIL, NASTY, Tags, harmless, nasty_table
from playwright.sync_api import Browser
from test_views_browser import drawn
from told_session import folder, hostile  # noqa: F401

import npulab
import npulab.notebook.widgets


@cache
def evil_capture(name: str = "sim-3x3-same") -> npulab.Capture:
    """A capture whose every name is a script."""
    capture = npulab.load(CAPTURES / "vivante" / name)
    draft = npulab.draft(capture.maps["NN"])
    for n, field in enumerate(
        ("relu", "kernel_xy_size", "post_shift", "stride", "brick_mode", "kernels_per_core")
    ):
        if field in draft.map.decode(capture.words):
            draft.rename(field, f"{NASTY[n]}{EVIL}")
    draft.retype("pooling_xy_size", names={0: EVIL, 1: EVIL + "1"})
    draft.set_note("prelu", EVIL)
    capture = draft.decode(capture)
    return replace(
        capture,
        name=EVIL + name,
        source=EVIL,
        tool=EVIL,
        chip=capture.chip,
        buffers={**capture.buffers, EVIL: EVIL.encode() * 9},
    )


def evil_laws() -> npulab.notebook.widgets.LawView:
    sweep = npulab.load_sweep(CAPTURES / "vivante/sweep-layers-s905d3.npz")
    parameters = sweep.parameters.iloc[:24, :3]
    parameters = parameters.rename(columns={parameters.columns[0]: EVIL})
    return npulab.notebook.widgets.LawView(
        npulab.find_laws(sweep.words[:24, :1] & 0x3F, parameters)
    )


MAKES: dict[str, Callable[[], Any]] = {
    "registers": lambda: npulab.RegisterView(evil_capture(), evil_capture("sim-3x3-stride2-relu")),
    "editor": lambda: npulab.notebook.widgets.MapEditor(
        npulab.draft(evil_capture().maps["NN"]), evil_capture()
    ),
    "rows": lambda: npulab.notebook.widgets.MapEditor(npulab.draft(nasty_table())),
    "diff": lambda: npulab.notebook.widgets.DiffView(
        evil_capture(), evil_capture("sim-3x3-stride2-relu")
    ),
    "bytes": lambda: npulab.notebook.widgets.ByteView(evil_capture(), EVIL),
    "outputs": lambda: npulab.notebook.widgets.OutputView(
        replace(
            npulab.check(npulab.load(CAPTURES / "vivante/sim-3x3-same")), case=EVIL, reason=EVIL
        )
    ),
    "bisection": lambda: npulab.notebook.widgets.BisectView(
        evil_capture(), evil_capture("sim-3x3-stride2-relu")
    ),
    "laws": evil_laws,
    "operators": lambda: npulab.notebook.widgets.OperatorsView(
        [(EVIL, evil_capture()), (EVIL + "1", EVIL)], EVIL
    ),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", MAKES)
def test_hostile_names_are_text_in_every_view(chrome: Browser, name: str) -> None:
    view = MAKES[name]()
    bundle = view._repr_mimebundle_()
    html = (bundle[0] if isinstance(bundle, tuple) else bundle)["text/html"]
    with BlankPage(chrome, drawn(view)) as blank:
        for key in ("Tab", "ArrowDown", "ArrowRight", "End", "Home"):
            blank.press(key)
        page = blank.page
        assert page.title() == "widget"
        assert (
            page.locator("#root").evaluate(
                "one => one.querySelectorAll('script, img, iframe, a').length"
            )
            == 0
        )
        assert EVIL in page.inner_text("#root") or name in ("rows", "outputs")
        page.goto("about:blank")
        page.set_content(f"<title>calm</title><div id='root'>{html}</div>")
        assert page.title() == "calm"
        assert (
            page.locator("#root").evaluate(
                "one => one.querySelectorAll('script, img, iframe, a[href^=\"javascript\"]').length"
            )
            == 0
        )
        assert EVIL in page.inner_text("#root") or name in ("outputs", "rows", "laws")


def test_a_report_opens_with_no_network_and_runs_no_script(chrome: Browser, folder: Path) -> None:
    session = hostile(folder)
    path = session.report(folder / "out.html")
    text = path.read_text(encoding="utf-8")
    harmless(text)
    assert EVIL in Tags(text).text
    assert not re.search(r"url\((?!['\"]?data:)|@import", text)
    markdown = session.report(folder / "out.md").read_text(encoding="utf-8")
    prose = re.sub(r"^(`{3,}).*?^\1", "", markdown, flags=re.M | re.S)
    assert not re.search(r"(?<!\\)<(script|img)", re.sub(r"`+[^`]*`+", "", prose))
    assert not re.search(r"(?<!\\)\]\(<?javascript", prose)
    moved = folder / "elsewhere" / "out.html"
    moved.parent.mkdir()
    moved.write_bytes(path.read_bytes())
    # a light page is what test_report looks at
    context = chrome.new_context(
        offline=True, color_scheme="dark", viewport={"width": 900, "height": 900}
    )
    page = context.new_page()
    heard: list[str] = []
    page.on("dialog", lambda dialog: (heard.append(dialog.message), dialog.dismiss()))
    page.on(
        "request",
        lambda request: (
            heard.append(request.url)
            if not request.url.startswith((moved.as_uri(), "data:"))
            else None
        ),
    )
    page.on("console", lambda said: heard.append(said.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.goto(moved.as_uri())
    assert page.title() != "ran"
    assert EVIL in page.inner_text("body")
    assert page.evaluate("[...document.images].every(one => one.complete && one.naturalWidth > 0)")
    assert (
        page.evaluate("document.querySelectorAll('script, iframe, object, embed, form').length")
        == 0
    )
    assert heard == []
    context.close()


def test_a_drawing_of_a_map_runs_no_script(chrome: Browser, tmp_path: Path) -> None:
    npulab.write_map(nasty_table(), tmp_path / "map.svg")
    page = chrome.new_page()
    heard: list[str] = []
    page.on("dialog", lambda dialog: (heard.append(dialog.message), dialog.dismiss()))
    page.on(
        "request",
        lambda request: heard.append(request.url) if not request.url.endswith("map.svg") else None,
    )
    page.goto((tmp_path / "map.svg").as_uri())
    assert page.evaluate("document.querySelectorAll('script, a, image, foreignObject').length") == 0
    assert page.evaluate("document.title ?? ''") != "ran"
    assert heard == []
    page.close()
