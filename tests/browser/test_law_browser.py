"""The law view's drawing in a blank page: keys, search, panel, colours, and what axe finds."""

from __future__ import annotations

import pytest
from blank_page import BlankPage
from fake_laws import fake_laws
from playwright.sync_api import Browser
from test_law_view import reading

from npulab.notebook.widgets import LawView

LAWS = fake_laws(simulated=True)
FOCUS = (
    "() => document.activeElement.dataset.bit === undefined ? document.activeElement.className : "
    "[+document.activeElement.dataset.word, +document.activeElement.dataset.bit]"
)


def focus(page: BlankPage) -> object:
    return page.page.evaluate(FOCUS)


def sync(page: BlankPage, view: LawView, seen: int = 0) -> int:
    """Give Python what the page sent since, and the page what follows from it."""
    sent = page.saved
    for traits in sent[seen:]:
        view.set_state(traits)
    page.push(**{name: getattr(view, name) for name in ("matches", "shades", "panel", "against")})
    return len(sent)


# Each theme has colours of its own.
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("theme", "place", "colour"),
    [("light", (0, 5), "status"), ("dark", (1, 7), "status"), ("bare", (2, 0), "flips")],
)
def test_no_findings_in_any_theme(
    chrome: Browser, theme: str, place: tuple[int, int], colour: str
) -> None:
    view = LawView(LAWS)
    view.place, view.opened, view.query, view.colour = place, True, "input_w", colour
    with BlankPage(chrome, view, theme) as page:
        assert page.accessibility() == []
        assert page.page.inner_text(".npulab-simulated") == "simulated"
        assert page.errors == []
        page.cleanup()
        assert page.listeners == 0


def test_keys_move_open_and_leave(chrome: Browser) -> None:
    view = LawView(LAWS)
    with BlankPage(chrome, view) as page:
        page.page.evaluate(
            "() => { window.leaked = []; "
            "document.addEventListener('keydown', event => window.leaked.push(event.key)); }"
        )
        page.press("Tab Tab Tab")
        assert focus(page) == [0, 9], "the grid is one stop"
        page.press(
            "ArrowRight ArrowDown ArrowLeft Home ArrowRight End ArrowRight PageDown PageUp",
        )
        assert focus(page) == [0, 0]
        page.press("] ] ] [ m x d")
        assert focus(page) == [1, 29]
        assert page.page.inner_text(".status") == "w1 bit 29 · never exercised · w1_8_22 always 0x0"
        page.press("] Enter")
        seen = sync(page, view)
        assert (view.place, view.opened) == ((1, 7), True)
        assert page.page.inner_text(".panel h4") == "w1_4_4"
        assert page.page.locator(".panel .open tbody tr").all_inner_texts()[0].split("\t")[:2] == [
            "bits 6 to 4",
            "no law",
        ]
        assert page.page.locator(".panel svg[role=img] .none").count() == len(
            view.panel["scatter"]["points"]
        )
        page.press("ArrowUp")
        seen = sync(page, view, seen)
        assert page.page.inner_text(".panel h4") == "w0_3_7", "an open panel follows"
        assert page.page.locator(".panel .steps tbody tr").all_inner_texts()[1].split() == [
            "else",
            "input_w",
            "32",
        ]
        page.press("Escape")
        sync(page, view, seen)
        assert not page.page.is_visible(".panel")
        assert not view.opened
        assert page.page.evaluate("window.leaked") == ["Tab"] * 3, (
            "no key of the view goes on to the notebook"
        )
        page.press("Escape Control+s")
        assert page.page.evaluate("window.leaked.slice(3)") == ["Escape", "Control", "s"], (
            "the second Escape leaves"
        )
        assert page.errors == []


def test_search_goes_through_what_matches(chrome: Browser) -> None:
    view = LawView(LAWS)
    with BlankPage(chrome, view) as page:
        page.page.click("[data-word='4'][data-bit='0']")
        page.press("/")
        assert focus(page) == "search"
        page.page.keyboard.type("input_w")
        seen = sync(page, view)
        assert view.query == "input_w"
        assert page.page.inner_text(".found") == "2 fields"
        assert page.page.locator(".match").count() == 11
        page.press("Enter")
        assert focus(page) == [0, 9], "round the end"
        page.press("n")
        assert focus(page) == [1, 7]
        page.press("n")
        assert focus(page) == [0, 9]
        page.press("p / Escape")
        assert focus(page) == [1, 7]
        assert page.page.input_value(".search") == "input_w", "Escape leaves the search as it is"
        page.press("/")
        page.page.keyboard.type(" nowhere")
        sync(page, view, seen)
        assert page.page.inner_text(".found") == "no fields"
        page.press("Escape n")
        assert page.page.inner_text(".status") == "nothing matches"
        assert page.errors == []


def test_click_and_colours_and_another_parameter(chrome: Browser) -> None:
    view = LawView(LAWS)
    with BlankPage(chrome, view) as page:
        page.page.click("[data-word='0'][data-bit='5']")
        seen = sync(page, view)
        assert page.saved[0] == {"place": [0, 5], "opened": True}, "one message"
        assert page.page.locator(".label").all_inner_texts() == [
            "when stride == 2 then ceil(input_w / 2); input_w"
        ]
        assert page.page.locator("[data-word='0'][data-bit='5']").inner_text() == "", (
            "the law stands there"
        )
        curves = page.page.locator("figure > svg .curve")
        assert curves.count() == len(view.panel["scatter"]["curves"]) == 2
        spot = page.page.locator("figure > svg .point").nth(5).bounding_box()
        page.page.mouse.move(spot["x"] + spot["width"] / 2, spot["y"] + spot["height"] / 2)
        assert page.page.inner_text(".hovered") in [
            point[5] for point in view.panel["scatter"]["points"]
        ]
        assert page.page.locator(".pointed").count() == 1
        page.page.click(".related button >> nth=1")
        seen = sync(page, view, seen)
        assert view.against == view.panel["scatter"]["parameter"] == view.panel["related"][1][0]
        assert page.page.inner_text(".panel [aria-pressed=true]").startswith(view.against)
        assert page.page.evaluate("document.activeElement.dataset.parameter") == view.against, (
            "the focus stays"
        )
        page.page.select_option(".colour", "relation relu")
        seen = sync(page, view, seen)
        assert (view.colour, view.parameter) == ("relation", "relu")
        cell = page.page.locator("[data-word='2'][data-bit='0']")
        assert cell.inner_text() == "9"
        legend = page.page.locator(".legend >> visible=true")
        assert legend.all_inner_texts() == ["0 to 9: tenths of a bit that relu tells of this one"]
        assert cell.get_attribute("aria-label").endswith("w2_0_1, 99 of 100 of a bit told by relu")
        page.page.select_option(".colour", "status")
        sync(page, view, seen)
        assert cell.inner_text() == "R"
        assert legend.all_inner_texts()[0].replace("\n", " ").startswith("L law 7 C constant 8")
        page.page.click(".close")
        assert page.saved[-1] == {"opened": False}
        assert focus(page) == [0, 5]
        assert page.errors == []


def test_a_field_in_a_law_is_a_link_that_selects_it(chrome: Browser) -> None:
    view = LawView(reading())
    first, second, _ = [run for run in view.model.runs if run.law is not None]
    view.place, view.opened = (second.word, second.lsb), True
    with BlankPage(chrome, view) as page:
        link = page.page.locator(".panel .law .npulab-link")
        assert link.all_inner_texts() == [first.name]
        assert page.accessibility() == []
        link.click()
        seen = sync(page, view)
        assert view.place == (first.word, first.lsb + first.width - 1)
        assert page.page.inner_text(".panel h4") == first.name
        assert focus(page) == [*view.place]
        assert page.page.locator(".readers .npulab-link").all_inner_texts() == [second.name]
        page.press("b")
        seen = sync(page, view, seen)
        assert view.place == (second.word, second.lsb)
        page.press("g")
        seen = sync(page, view, seen)
        assert view.model.run_at(*view.place) is first
        page.press("g")
        assert page.page.inner_text(".status") == f"the law of {first.name} reads no field"
        page.press("b b")
        assert page.page.inner_text(".status") == "no link was followed"
        sync(page, view, seen)
        page.page.click(".status .npulab-link")  # of the field under the cursor
        assert page.saved[-1]["place"] == [first.word, first.lsb + first.width - 1]
        assert page.errors == []
