"""The view of a sweep: its model with no browser, its drawing in a blank page."""

from __future__ import annotations

import csv
from types import SimpleNamespace

import numpy as np
import pytest
from blank_page import BlankPage
from conftest import CAPTURES
from playwright.sync_api import Browser

import npulab
from npulab.captures.capture import Capture, Job
from npulab.captures.sweep import Sweep
from npulab.notebook.widgets import RegisterView, SweepModel, SweepView, WritesModel, WritesView
from npulab.registers.map import RegisterMap

TABLE = """\
block,offset,register,field,lsb,width,at,value,evidence
NN,0,CFG,mode,0,2,,enum:mode,K
NN,0,CFG,size,4,8,0,,guess
NN,4,EXT,size,30,2,8,,guess
NN,4,EXT,still,0,8,,,K
"""
REGISTERS = RegisterMap(csv.DictReader(TABLE.splitlines()), enums={"mode": {0: "off", 1: "on"}})
SIZES = np.array([0x300, 5, 260, 5])
MODES = np.array([1, 0, 0, 1])


def sweep(count: int = 4, **texts: str) -> Sweep:
    words = np.stack([MODES + (SIZES % 256 << 4), (SIZES >> 8 << 30) + 7], axis=1).astype(np.uint32)
    return Sweep(
        words[:count],
        {"w": [9, 5, 7, 5][:count], "c": [1, 1, 1, 2][:count]},
        name="four",
        registers=REGISTERS,
        **texts,
    )


def test_captures_are_gone_through_in_the_order_of_a_parameter() -> None:
    model = SweepModel(sweep())
    seen = []
    model.observe(lambda change: seen.append(change.new), "number")
    assert (model.number, model.words, model.summary) == (
        0,
        (1, 0xC0000007),
        "no bit differs from capture 0",
    )
    for place in (1, 2, 3):
        model.at = place
    assert seen == [1, 2, 3]
    assert model.layer == [["w", "5", "7"], ["c", "2", "1"]]
    assert model.summary == "3 bits in 2 fields differ from capture 2: mode off → on, size 260 → 5"
    model.sort = "w"
    assert (model.number, model.at) == (3, 1), "the capture stays, its place is another"
    assert model.summary == "1 bit in 1 field differs from capture 1: mode off → on"
    model.at = 3
    assert (model.number, model.fields["size"]) == (0, 0x300)
    model.against = 2
    assert model.changed == {"mode": ("off", "on"), "size": (260, 0x300)}
    model.at = 2
    assert (model.number, model.summary) == (2, "no bit differs from capture 2")
    model.against = -1
    assert model.summary.endswith("differ from capture 3: mode on → off, size 5 → 260")
    model.sort = ""
    assert (model.number, model.at) == (2, 2)


def test_fields_that_move_have_a_line_along_the_order() -> None:
    model = SweepModel(sweep())
    names = [model.rows.names[index] for index, _, _ in model.moving]
    assert names == ["mode", "size"]
    assert [count for _, count, _ in model.moving] == [2, 3]
    low, high = SIZES.min(), SIZES.max()
    asked = [round(255 * (size - low) / (high - low)) for size in SIZES]
    assert model.moving[1][2] == [[size, size] for size in asked]
    model.sort = "w"
    assert model.moving[1][2] == [[asked[at], asked[at]] for at in (1, 3, 2, 0)]
    assert (model.shares[0][0], model.shares[0][4]) == (100, 33), "of three steps all, and one"


def test_a_line_of_many_captures_keeps_what_moves_once() -> None:
    words = np.zeros((10_000, 1), np.uint32)
    words[7_777] = 3
    model = SweepModel(Sweep(words, {"n": range(10_000)}))
    ((_, count, line),) = model.moving
    assert (count, len(line)) == (2, 64)
    assert [step for step in line if step != [0, 0]] == [[0, 255]]
    assert line[7_777 * 64 // 10_000] == [0, 255]


def test_one_capture_and_what_is_refused() -> None:
    model = SweepModel(sweep(1))
    assert (model.moving, model.title) == ([], "four: 1 capture of 2 words")
    with pytest.raises(ValueError, match="at: got place 1, allowed is 0 to 0"):
        model.at = 1
    with pytest.raises(ValueError, match="against: got capture 4, allowed is -1 to 3"):
        SweepModel(sweep()).against = 4
    with pytest.raises(LookupError, match="sort: got 'h', allowed are w, c"):
        model.sort = "h"
    with pytest.raises(ValueError, match="sweep: got no captures, allowed is one or more"):
        SweepModel(sweep(0))


def test_the_page_gets_a_capture_in_one_message() -> None:
    view = SweepView(sweep(provenance="simulated"))
    sent: list[set[str]] = []
    view.comm = SimpleNamespace(
        comm_id="front end",
        kernel=True,
        close=lambda **_: None,
        on_msg=lambda _: None,
        send=lambda data, buffers: sent.append(set(data["state"])),
    )
    view.set_state({"at": 2})
    together = [names for names in sent if "words" in names]
    assert len(together) == 1
    assert {"reference", "values", "number", "layer"} <= together[0]
    assert view.model.at == 2
    face = view._repr_mimebundle_()[0]["text/html"]
    assert "<b>simulated</b>; 2 fields move; capture 2:" in face
    assert "still" not in face


def test_two_fields_are_plotted_along_the_order_and_zoomed() -> None:
    model = SweepModel(sweep())
    assert model.plot == []
    model.plotted = ("size", "mode")
    low, high = SIZES.min(), SIZES.max()

    def line(order: list[int]) -> list[list[int]]:
        return [[round(1000 * (SIZES[at] - low) / (high - low))] * 2 for at in order]

    assert [row[:3] for row in model.plot] == [["size", "5", "768"], ["mode", "0", "1"]]
    assert model.plot[0][3] == line([0, 1, 2, 3])
    model.sort = "w"
    assert model.plot[0][3] == line([1, 3, 2, 0])
    assert [end[0] for end in model.plot[1][3]] == [1000 * MODES[at] for at in (1, 3, 2, 0)]
    model.window = (1, 3)
    assert (model.plot[0][:3], len(model.plot[0][3])) == (["size", "5", "260"], 2)
    face = model._repr_html_()
    cells = ">" + "</td><td style='text-align:left'>".join(["2", "7", "260", "0"]) + "<"
    assert cells in face
    for wrong in ("size", ("size", "size"), ("a", "b", "c", "d", "e")):
        with pytest.raises(ValueError, match=r"^plotted: got .*, allowed are at most 4 different"):
            model.plotted = wrong
    with pytest.raises(LookupError, match=r"^plotted: got 'sise', .* of a field; near is size$"):
        model.plotted = ("sise",)
    with pytest.raises(ValueError, match=r"^window: got end 9 of \(1, 9\), allowed is 2 to 4$"):
        model.window = (1, 9)
    model.window = ()
    assert model.plot[0][3] == line([1, 3, 2, 0])


def test_a_plot_of_signed_and_of_many_values() -> None:
    registers = RegisterMap([{"field": "t", "lsb": 0, "width": 8, "value": "signed"}])
    words = np.arange(5_000, dtype=np.uint32)[:, None] % 256
    model = SweepModel(Sweep(words, {"n": range(5_000)}, registers=registers))
    model.plotted = ("t",)
    (row,) = model.plot
    assert (row[1:3], len(row[3])) == (["-128", "127"], 256)


# ---- the drawing, in a blank page ----


def answer(page: BlankPage, view: SweepView) -> None:
    """Give Python what the page saved last, and the page what Python makes of it."""
    view.set_state(page.saved[-1])
    page.push(
        **{
            name: getattr(view, name)
            for name in (
                "words",
                "reference",
                "values",
                "shares",
                "number",
                "layer",
                "moving",
                "summary",
                "at",
                "against",
                "sort",
                "plotted",
                "window",
                "plot",
            )
        }
    )


@pytest.mark.parametrize("theme", ["light", "dark", pytest.param("bare", marks=pytest.mark.long)])
def test_page_goes_through_the_captures(chrome: Browser, theme: str) -> None:
    view = SweepView(sweep())
    with BlankPage(chrome, view, theme) as page:
        assert page.page.locator(".item:not([hidden]) .name").all_text_contents() == [
            "mode",
            "size",
        ]
        assert page.page.locator(".item:not([hidden]) .spark path").count() == 2
        page.page.select_option(".sort", "w")
        answer(page, view)
        page.page.locator(".slider").fill("2")
        assert page.saved[-1] == {"at": 2}
        answer(page, view)
        assert page.page.inner_text(".which") == "capture 2, place 3 of 4"
        assert page.page.locator(".layer .differs").all_text_contents() == ["w 7 (5)", "c 1 (2)"]
        assert page.page.locator(".npulab-bit.differs").count() == 3
        assert page.accessibility() == []
        page.page.locator(".npulab-bit").first.click()
        page.press("k")
        assert page.saved[-1] == {"against": 2}
        answer(page, view)
        page.press(".")
        assert page.saved[-1] == {"at": 3}
        answer(page, view)
        assert "capture 2" in page.page.inner_text(".keep")
        assert page.page.inner_text(".npulab-summary").endswith(
            "differ from capture 2: mode off → on, size 260 → 768"
        )
        page.press(".")
        assert page.saved[-1] == {"at": 3}, "there is no further one"
        page.page.locator(".spark").first.click(position={"x": 1, "y": 8})
        assert {"at": 0} in page.saved
        page.page.select_option(".kind", "all")
        assert page.page.locator(".item:not([hidden])").count() > 2
        page.cleanup()
        assert (page.listeners, page.errors) == (0, [])


# ---- register writes, in their order ----


def written() -> Capture:
    """Two registers of the map, one of them written twice, and one that it does not have."""
    rows = [
        {
            "block": "UNIT",
            "offset": 4 * word,
            "register": f"R{word}",
            "field": f"f{word}",
            "lsb": 4,
            "width": 8,
        }
        for word in range(3)
    ]
    job = Job.from_writes(
        "DMA",
        [(4, 0x20), (0x100, 7), (4, 0x30), (0, 0x10)],
        RegisterMap(rows),
        after=Job.from_writes("DMA", [(4, 0x10)], RegisterMap(rows)),
    )
    return Capture(
        "a",
        "demo",
        "x",
        (job, Job("DMA", [0, 0, 0])),
        maps={"DMA": RegisterMap(rows)},
        provenance="simulated",
    )


def test_writes_are_gone_through_in_their_order() -> None:
    model = WritesModel(written())
    assert (
        repr(model)
        == "WritesModel(demo/a, job 0 DMA, 1 of 2 jobs, 4 writes, simulated; write 0: no bit differs from write 0)"
    )
    assert (len(model.sweep), model.layer) == (5, [["before the first write", "", ""]])
    assert (model.words, model.rows.labels) == ((0x10, 0, 0), ("R1", "w64", "R0"))
    assert [model.rows.names[index] for index, *_ in model.moving] == ["f0", "f1", "w64_0_32"]
    seen = []
    for model.at in range(1, 5):
        seen.append(
            ([text for _, text, _ in model.layer], model.cursor, model.summary.partition(": ")[2])
        )
    assert seen == [
        (["UNIT.R1", "0x4", "0x20"], (0, 5), "f1 1 → 2"),
        (["w64", "0x100", "0x7"], (1, 2), "w64_0_32 0x0 → 0x7, xor 0x7"),
        (["UNIT.R1", "0x4", "0x30"], (0, 5), "f1 2 → 3"),
        (["UNIT.R0", "0x0", "0x10"], (2, 4), "f0 0 → 1"),
    ]
    assert model.words == tuple(dict(written().jobs[0].writes).values())
    model.against = 1
    assert model.summary.startswith("5 bits in 3 fields differ from write 1: ")
    assert "in write 4" in WritesView(written()).model._repr_html_().replace("write 0", "write 4")
    with pytest.raises(
        ValueError,
        match=r"^task 1 of a: got Job\(DMA, 3 words\), allowed is a job of register writes$",
    ):
        WritesModel(written(), 1)
    with pytest.raises(LookupError, match="got task 2, it has 0 to 1"):
        WritesView(written(), 2)


def test_page_goes_through_writes(chrome: Browser) -> None:
    view = WritesView(written())
    with BlankPage(chrome, view) as page:
        assert not page.page.is_visible(".sort"), "they have one order"
        page.page.locator(".slider").fill("3")
        answer(page, view)
        page.push(cursor=view.cursor)
        assert page.page.inner_text(".which") == "write 3 of 4"
        assert page.page.inner_text(".layer").split() == [
            "register",
            "UNIT.R1",
            "offset",
            "0x4",
            "value",
            "0x30",
        ]
        assert (
            page.page.locator("[role=option][aria-selected=true]")
            .inner_text()
            .split()[0]
            .startswith("f1")
        )
        assert page.page.locator(".item:not([hidden]) .spark path").count() == 3
        assert (page.accessibility(), page.errors) == ([], [])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_plots_and_zooms(chrome: Browser, theme: str) -> None:
    sizes = np.arange(40)
    view = SweepView(
        Sweep(
            np.stack([sizes, sizes[::-1] * 3], axis=1).astype(np.uint32),
            {"input_w": sizes},
            name="forty",
        )
    )
    with BlankPage(chrome, view, theme) as page:
        assert not page.page.is_visible(".chart")
        for word in range(2):
            page.page.locator(f"[data-word='{word}'][data-bit='0']").click()
            answer(page, view)
            page.press("t")
            answer(page, view)
        assert view.plotted == ("w0_0_32", "w1_0_32")
        drawing = page.page.locator(".chart svg")
        assert drawing.get_attribute("aria-label") == (
            "w0_0_32 0 to 39, w1_0_32 0 to 117; captures at places 1 to 40 of 40"
        )
        assert drawing.locator("path.line").count() == 2
        assert page.accessibility() == []
        box = drawing.bounding_box()
        assert box is not None
        page.page.mouse.move(box["x"] + box["width"] * 0.26, box["y"] + 50)
        page.page.mouse.down()
        page.page.mouse.move(box["x"] + box["width"] * 0.49, box["y"] + 60)
        page.page.mouse.up()
        answer(page, view)
        assert view.window == (10, 20)
        assert page.page.inner_text(".places") == "places 11 to 20 of 40"
        page.page.mouse.click(box["x"] + box["width"] * 0.55, box["y"] + 50)
        answer(page, view)
        assert view.at == 15
        page.page.locator("[data-word='0'][data-bit='0']").click()
        answer(page, view)
        seen = []
        for key in ("+", "+", "-", "0"):
            page.press(key)
            answer(page, view)
            seen.append(view.window)
        assert seen.pop() == ()
        assert all(first <= 15 < end for first, end in seen)
        assert [end - first for first, end in seen] == [5, 3, 6]  # half of 10, half, double
        page.page.click(".entry.s1")
        answer(page, view)
        assert view.plotted == ("w0_0_32",)
        page.press("0")
        assert page.errors == []


UNITS = """() => [...document.querySelectorAll('.npulab-grid > [role=row]')].slice(1)
  .map(row => [row.classList.contains('npulab-unit'), row.firstChild.textContent])"""


def test_writes_are_grouped_by_unit(chrome: Browser) -> None:
    view = WritesView(npulab.load(CAPTURES / "nvdla/sim-3x3-same"))
    with BlankPage(chrome, view) as page:
        rows = page.page.evaluate(UNITS)
        unit, told = "", []
        for is_unit, name in rows:
            if is_unit:
                assert name != unit, "a unit is named once, before its words"
                unit = name
            else:
                told.append((unit, name))
        capture, registers = view.model.capture, view.model.capture.maps["SMALL"]
        known = {offset: (block, name) for block, offset, name in registers.registers}
        assert told == [known[offset] for offset in dict(capture.jobs[0].writes)]
        assert len(set(told)) == len(told), "no name is repeated in its unit"
        groups = page.page.locator("[role=listbox] [role=group]:visible")
        names = groups.first.locator(".item:visible .name").all_inner_texts()
        assert groups.first.get_attribute("aria-label") == "CDMA"
        assert "DATAIN_HEIGHT" in names
        assert "CDMA" not in "".join(names)
        page.page.fill(".search", "csc datain_height")
        assert page.page.locator(".npulab-unit:visible").all_inner_texts() == ["CSC"]
        assert groups.count() == 1
        assert page.accessibility() == []
        assert page.errors == []
    assert "CSC S_POINTER" in RegisterView(view.model.capture).model._repr_html_()
