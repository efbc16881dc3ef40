"""The map editor drawn in a blank page."""

from __future__ import annotations

from pathlib import Path

import pytest
from blank_page import THEMES, BlankPage
from playwright.sync_api import Browser
from test_map_editor import SCRIPT, made, shown, small

from npulab.analysis.draft import draft
from npulab.notebook.widgets import MapEditor, RegisterView

# Where the page and the bits are scrolled to, and where a bit is.
PLACES = """() => { const bit = document.querySelector("[data-word='25'][data-bit='12']");
  return [scrollY, bit.closest('.npulab-grid').scrollTop, bit.getBoundingClientRect().y]; }"""

# Rows that the page has, but has not filled yet, have labels without text.
DRAWN = """() => [...document.querySelectorAll('.npulab-row .label')].every(
  label => label.innerText.trim())"""


def answer(page: BlankPage, view: MapEditor) -> None:
    """Give Python what the page sent last, and the page what Python makes of it."""
    view._handle_custom_msg(page.sent[-1], [])
    page.push(
        rows=view.rows,
        steps=view.steps,
        undone=view.undone,
        title=view.title,
        summary=view.summary,
        status=view.status,
        path=view.path,
        saved=view.saved,
    )


def status(page: BlankPage) -> str:
    return page.page.inner_text("[role=status]")


def cell(page: BlankPage, row: int, column: str) -> str:
    return page.page.locator(f"[aria-rowindex='{row + 2}'] .{column}").inner_text()


def here(page: BlankPage) -> tuple[int, int]:
    """Row and column of the cell that is told to a reader of the screen."""
    row, column = page.page.evaluate(
        "(id => [document.getElementById(id).dataset.row, document.getElementById(id).dataset.column])"
        "(document.querySelector('[role=grid]').getAttribute('aria-activedescendant'))"
    )
    return int(row), int(column)


def focused(page: BlankPage) -> str:
    return page.page.evaluate("document.activeElement.className")


@pytest.mark.sample(1)
@pytest.mark.parametrize("theme", THEMES)
def test_page_in_each_theme(chrome: Browser, theme: str) -> None:
    view = MapEditor(made(), small(provenance="simulated"))
    view.draft.rename("mode", "m")
    view.model.press({"do": "remove", "field": "no"})
    with BlankPage(chrome, view, theme) as page:
        for text in ("demo/a", "simulated", "refused: got field", "rename mode to m", "0x15 = 21"):
            assert page.page.locator(f"text={text}").first.is_visible(), text
        page.page.focus("[role=grid]")
        page.press("s")
        assert page.accessibility() == []
        if theme == "dark":
            page.press("Escape Enter")
            assert page.accessibility() == []
        page.press("Escape")
        page.cleanup()
        assert page.listeners == 0
        assert page.errors == []


def test_page_edit_a_field_and_see_the_capture_decode_anew(chrome: Browser) -> None:
    one = made()
    view, words = MapEditor(one, small()), RegisterView(small(), draft=one)
    with BlankPage(chrome, view) as page, BlankPage(chrome, words) as other:
        page.press("Tab ArrowRight ArrowRight Enter")
        page.page.keyboard.type("signed")
        page.press("Enter")
        assert page.sent == [{"do": "cell", "field": "mode", "column": "value", "text": "signed"}]
        answer(page, view)
        assert (cell(page, 0, "value"), cell(page, 0, "capture")) == ("signed", "0x1 = 1")
        assert status(page) == "retype mode as signed"
        assert page.page.inner_text(".steps") == "retype mode as signed"
        page.press("s")
        page.page.keyboard.type("low:1 high:1")
        page.press("Enter")
        answer(page, view)
        assert [cell(page, row, "field") for row in range(2)] == ["low", "high"]
        assert [cell(page, row, "capture") for row in range(2)] == ["0x1 = 1", "0x0 = 0"]
        other.push(
            registers=words.registers,
            places=words.places,
            values=words.values,
            summary=words.summary,
        )
        assert (
            other.page.get_attribute("[data-word='0'][data-bit='1']", "aria-label")
            == "0, bit 1, high"
        )
        other.page.hover("[data-word='0'][data-bit='0']")
        assert "low CFG[0] · 0x1 = 1" in status(other)
        other.page.dblclick("[data-word='0'][data-bit='1']")
        assert other.saved[-1]["words"][0] == 0x53
        page.press("u")
        answer(page, view)
        page.press("u")
        answer(page, view)
        assert (cell(page, 0, "value"), cell(page, 0, "capture")) == ("enum:mode", "0x1 = on")
        assert status(page) == "undo: retype mode as signed"
        page.press("U")
        answer(page, view)
        assert cell(page, 0, "capture") == "0x1 = 1"
        page.page.click(".undo")
        answer(page, view)
        assert page.page.is_disabled(".undo")
        other.push(
            registers=words.registers,
            places=words.places,
            values=words.values,
            summary=words.summary,
        )
        assert (
            other.page.get_attribute("[data-word='0'][data-bit='1']", "aria-label")
            == "1, bit 1, mode, differs from the reference"
        )
        assert other.page.locator("[role=grid]").count() == 1
        assert other.page.evaluate("document.activeElement.dataset.bit") == "1"
        other.cleanup()
        assert (other.listeners, page.errors + other.errors) == (0, [])


def test_page_gives_a_field_other_bits_and_adds_one(chrome: Browser) -> None:
    view = MapEditor(made(), small())
    with BlankPage(chrome, view) as page:
        page.page.evaluate(
            "document.querySelectorAll('.npulab-bit').forEach(bit => { bit.kept = true; })"
        )
        page.press("Tab ArrowLeft Enter")
        page.page.keyboard.type("3:1")
        page.press("Enter")
        answer(page, view)
        page.push(places=view.places, values=view.values)
        kept = "word => document.querySelector(`.npulab-bit[data-word='${word}']`).kept"
        assert [page.page.evaluate(kept, word) for word in range(2)] == [None, True], (
            "only what is cut anew"
        )
        page.page.wait_for_function(DRAWN)
        labels = page.page.locator(".npulab-row .label").all_inner_texts()
        assert {label.split()[0] for label in labels} == {
            item.name for item in view.draft.map if not item.automatic
        }
        assert [cell(page, row, "bits") for row in range(2)] == ["0[0]", "0[3:1]"]
        page.press("a")
        assert page.page.input_value(".answer") == " 0"
        page.page.keyboard.type("low")
        page.press("Enter")
        assert page.sent[-1] == {"do": "add", "field": "w0_0_1", "text": "low 0"}
        answer(page, view)
        assert [cell(page, row, "field") for row in range(2)] == ["low", "mode"]


def drag(page: BlankPage, word: int, first: int, last: int) -> None:
    first_box, last_box = (
        page.page.locator(f"[data-word='{word}'][data-bit='{bit}']").bounding_box()
        for bit in (first, last)
    )
    assert first_box is not None
    assert last_box is not None
    page.page.mouse.move(first_box["x"] + 4, first_box["y"] + 4)
    page.page.mouse.down()
    page.page.mouse.move(last_box["x"] + 8, last_box["y"] + 8, steps=4)
    page.page.mouse.up()


def follow(page: BlankPage, view: MapEditor) -> None:
    """As ``answer``, with the bits, whose cursor and selection are the page's."""
    view.set_state({name: value for sent in page.saved for name, value in sent.items()})
    answer(page, view)
    page.push(registers=view.registers, values=view.values, places=view.places)


def test_page_makes_and_moves_a_field_by_its_bits(chrome: Browser) -> None:
    view = MapEditor(made(), small())
    with BlankPage(chrome, view) as page:
        drag(page, 0, 20, 12)
        assert page.saved[-1] == {"cursor": [0, 12], "selection": [0, 12, 9]}
        assert page.page.inner_text(".question").startswith("new field CFG[20:12]")
        page.page.keyboard.type("wide")
        page.press("Enter")
        assert page.sent[-1]["text"] == "wide 0[20:12]"
        follow(page, view)
        assert view.draft.map["wide"].bits == "0[20:12]", view.status
        # by keys: two bits at the top, as a field, which is then picked up and put down lower
        page.page.click("[data-word='0'][data-bit='31']")
        page.press("Shift+ArrowRight a")
        page.page.keyboard.type("top")
        page.press("Enter")
        follow(page, view)
        assert view.draft.map["top"].bits == "0[31:30]", view.status
        page.page.click("[data-word='0'][data-bit='31']")
        page.press("m")
        assert status(page).startswith("top is picked up")
        page.press("ArrowRight ArrowRight ArrowRight ArrowRight m")
        assert page.sent[-1] == {"do": "cell", "field": "top", "column": "bits", "text": "0[28:27]"}
        follow(page, view)
        assert view.draft.map["top"].bits == "0[28:27]", view.status
        page.press("u")
        follow(page, view)
        assert view.draft.map["top"].bits == "0[31:30]", view.status
        assert page.accessibility() == []
        page.cleanup()
        assert (page.listeners, page.errors) == (0, [])


def test_page_saves_by_button_and_by_key(chrome: Browser, tmp_path: Path) -> None:
    view, path = MapEditor(made(), small()), tmp_path / "mine.csv"
    with BlankPage(chrome, view) as page:
        page.page.evaluate(
            "window.heard = []; document.addEventListener('keydown', e => e.ctrlKey && heard.push(e.key))"
        )
        assert page.page.is_enabled(".save")
        page.press("Tab Control+s")  # there is no file yet
        assert page.page.inner_text(".question").startswith("save as")
        page.page.keyboard.type(str(path))
        page.press("Enter")
        assert page.sent == [{"do": "save", "field": "mode", "text": str(path)}]
        answer(page, view)
        assert status(page) == f"saved as {path}"
        assert page.page.is_disabled(".save")
        page.press("Enter s t")
        page.press("Control+s")  # takes what is typed, too, and the notebook does not hear of it
        assert [message["do"] for message in page.sent[1:]] == ["cell", "save"]
        assert page.page.evaluate("heard.filter(key => key !== 'Control')") == []
        for message in page.sent[1:]:
            view._handle_custom_msg(message, [])
        answer(page, view)
        assert "st" in path.read_text()
        assert "1 step, saved" in page.page.inner_text(".npulab-summary >> nth=0")
        page.press("u")
        answer(page, view)
        assert page.page.is_enabled(".save")
        page.page.click(".other")
        page.page.keyboard.type(str(path))
        page.page.click("[data-word='0'][data-bit='3']")  # in the bits the key saves, too
        page.press("Control+s")
        answer(page, view)
        assert view.saved
        assert page.accessibility() == []
        assert page.errors == []


def test_page_asks_for_a_name_where_the_drag_ended(chrome: Browser) -> None:
    view = MapEditor(draft(40))
    with BlankPage(chrome, view, size=(1000, 700)) as page:
        page.page.locator("[data-word='25'][data-bit='0']").scroll_into_view_if_needed()
        before = page.page.evaluate(PLACES)
        drag(page, 25, 20, 12)
        assert page.page.evaluate("document.activeElement.className") == "answer"
        assert page.page.evaluate(PLACES) == before
        box = page.page.locator(".answer").bounding_box()
        bits = page.page.locator("[data-word='25'][data-bit='20']").bounding_box()
        assert box is not None
        assert bits is not None
        assert 0 < box["y"] - bits["y"] < 40
        page.page.keyboard.type("top")
        page.press("Enter")
        follow(page, view)
        assert view.status == "add top in w25 at bits 12 to 20"
        assert page.page.evaluate(PLACES) == before
        page.press("Control+s")  # a question of the table stands above the table again
        assert page.page.locator(".npulab-map > .ask .answer").is_visible()
        assert page.accessibility() == []


def test_page_says_what_was_refused(chrome: Browser) -> None:
    view = MapEditor(made(), small())
    with BlankPage(chrome, view) as page:
        page.press("Tab Enter")
        page.page.keyboard.type("size")
        page.press("Enter")
        answer(page, view)
        assert status(page).startswith(
            "refused: register map, register CFG field size: got a piece with column 'at' blank"
        )
        assert cell(page, 0, "field") == "mode"
        assert focused(page) == "grid"


def test_page_keys_move(chrome: Browser) -> None:
    with BlankPage(chrome, MapEditor(draft(40))) as page:
        page.press("Tab")
        seen = [here(page)]
        for key in (
            "ArrowDown",
            "ArrowRight",
            "ArrowLeft",
            "End",
            "Home",
            "ArrowUp",
            "PageDown",
            "PageDown",
            "PageDown",
            "PageDown",
            "ArrowDown",
            "PageUp",
        ):
            page.press(key)
            seen.append(here(page))
        assert seen == [
            (0, 2),
            (1, 2),
            (1, 3),
            (1, 2),
            (1, 5),
            (1, 0),
            (0, 0),
            (12, 0),
            (24, 0),
            (36, 0),
            (39, 0),
            (39, 0),
            (27, 0),
        ]
        assert page.page.locator("[data-row='27'][data-column='0']").is_visible()
        page.press("ArrowRight Enter")
        assert (page.page.input_value(".edit"), focused(page)) == ("27[31:0]", "edit")
        page.press("Escape")
        page.press("Tab")
        assert focused(page).startswith("npulab-bit")
        assert page.page.evaluate("document.activeElement.dataset.word") == "27", (
            "the bits of the row"
        )
        page.press("Tab")
        assert focused(page) == ""


def test_page_has_a_tab_stop_for_table_and_bits_and_keeps_letters(chrome: Browser) -> None:
    with BlankPage(chrome, MapEditor(made(), small())) as page:
        page.page.evaluate(
            "window.heard = []; document.addEventListener('keydown', e => heard.push(e.key))"
        )
        assert (
            page.page.locator(
                "[tabindex='0'], a, button:not([tabindex='-1']), input:not([tabindex='-1']):visible"
            ).count()
            == 2
        )
        page.press("Tab")
        for key in (
            "m",
            "b",
            "d",
            "y",
            "Enter",
            "Escape",
            "ArrowUp",
            "/",
            "z",
            "Escape",
            "Control+p",
            "Escape",
        ):
            page.press(key)
        assert page.page.evaluate("heard") == ["Tab", "Control", "p", "Escape"]
        assert page.sent == []


def test_page_escape_and_blur(chrome: Browser) -> None:
    view = MapEditor(made(), small())
    with BlankPage(chrome, view) as page:
        page.press("Tab Enter")
        page.page.keyboard.type("other")
        page.press("Escape")
        assert (page.sent, cell(page, 0, "field"), focused(page)) == ([], "mode", "grid")
        page.press("Enter Enter")
        assert page.sent == []
        page.press("j")
        assert page.page.input_value(".answer") == "w0_2_2 as mode"
        page.press("Escape")
        assert page.sent == []
        page.page.dblclick("[data-row='2'][data-column='6']")
        page.page.keyboard.type("high")
        page.page.click(".detail")
        assert page.sent == [{"do": "cell", "field": "size", "column": "note", "text": "high"}]
        answer(page, view)
        assert cell(page, 2, "note") == "high"
        page.page.focus("[role=grid]")
        page.press("x")
        answer(page, view)
        assert cell(page, 2, "field") == "w0_4_4"


def test_page_keeps_what_is_typed_while_another_edits(chrome: Browser) -> None:
    view = MapEditor(made(), small())
    with BlankPage(chrome, view) as page:
        page.press("Tab Enter")
        page.page.keyboard.type("new")
        view.draft.set_note("mode", "said elsewhere")
        page.push(rows=view.rows)
        page.page.keyboard.type("er")
        assert page.sent == []
        page.press("Enter")
        assert page.sent == [{"do": "cell", "field": "mode", "column": "field", "text": "newer"}]
        page.press("Enter")
        page.page.keyboard.type("lost")
        view.draft.rename("mode", "other")
        page.push(rows=view.rows)
        assert (len(page.sent), focused(page), cell(page, 0, "field")) == (1, "grid", "other")


def test_page_filters(chrome: Browser) -> None:
    view = MapEditor(made(), small())
    with BlankPage(chrome, view) as page:
        page.press("Tab /")
        page.page.keyboard.type("ext W")
        assert page.page.inner_text(".found") == "2 fields"
        assert [cell(page, row, "field") for row in range(2)] == ["where", "w1_26_4"]
        page.press("Enter j")
        assert page.page.input_value(".answer") == "w1_26_4 as where"
        page.press("Enter")
        answer(page, view)
        assert page.page.inner_text(".found") == "1 field"
        assert ("where", "0x2 = 128") in shown(view) or ("where", "0x2 = 0x80") in shown(view)
        page.press("/ Escape")
        assert page.page.locator(".body .row").count() == 5
        page.press("/")
        page.page.keyboard.type("nothing like it")
        assert page.page.inner_text(".found") == "no fields"
        page.press("Enter Enter s x ArrowDown")
        assert (status(page), page.sent[1:], page.errors) == ("no field", [], [])


def test_page_shows_hostile_names_as_text(chrome: Browser) -> None:
    one = made()
    one.rename("mode", SCRIPT)
    one.rename_register("EXT", SCRIPT + "&amp;")
    one.set_note("where", f"</span><script>{SCRIPT}</script>")
    view = MapEditor(one, small(name=SCRIPT))
    with BlankPage(chrome, view) as page:
        assert cell(page, 0, "field") == SCRIPT
        page.press("Tab s Escape j Escape Enter Escape")
        view.model.press({"do": "remove", "field": SCRIPT * 3})
        page.push(status=view.status)
        assert SCRIPT in status(page)
        assert page.page.locator("img, script").count() == 0
        assert page.errors == []


def test_page_of_600_rows_draws_what_is_in_sight(chrome: Browser) -> None:
    view = MapEditor(draft(600, block="NN"))
    with BlankPage(chrome, view) as page:
        assert page.page.get_attribute("[role=grid]", "aria-rowcount") == "601"
        assert page.page.locator(".body .row").count() < 60
        page.page.evaluate("document.querySelector('[role=grid]').scrollTop = 300 * 22")
        page.page.wait_for_selector("[data-row='305']")
        assert here(page) == (0, 2)
        assert page.page.locator(".body .row").count() < 60
        page.press("Tab ArrowDown")
        assert page.page.locator("[data-row='1'][data-column='2']").is_visible()
        assert page.errors == []
