"""The register view: its model with no browser, its view with no front end, its drawing in a
blank page.
"""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from types import SimpleNamespace

import blank_page
import numpy as np
import pytest
from blank_page import THEMES, BlankPage, chromium
from conftest import CAPTURES
from playwright.sync_api import Browser, expect

import npulab
from npulab.captures.capture import Capture, CaptureSet, Job
from npulab.captures.sweep import Sweep
from npulab.notebook.widgets import DiffView, RegisterModel, RegisterView, SweepView
from npulab.notebook.widgets.bits_view import Rows, letters_width
from npulab.registers.map import RegisterMap

TABLE = """\
block,offset,register,field,lsb,width,at,value,address,evidence,note
NN,0,CFG,mode,0,2,,enum:mode,,K,
NN,0,CFG,size,4,4,0,,,guess,low
NN,4,EXT,size,30,2,4,,,,
NN,4,EXT,where,0,26,,raw*64,yes,,
NN,8,SUM,bias,0,32,,signed,,,
"""
ENUMS = {"mode": {0: "off", 1: "on"}}
REGISTERS = RegisterMap(csv.DictReader(TABLE.splitlines()), enums=ENUMS)
WORDS = (0x51, 0x40000002, 0xFFFFFFFF)
SIZE = "size CFG[7:4] EXT[31:30] · 0x15 = 21 · evidence guess · low"


def small(words: tuple[int, ...] = WORDS, **changes: object) -> Capture:
    return replace(
        Capture("a", "demo", "x", (Job("NN", words),), maps={"NN": REGISTERS}), **changes
    )


def wide(count: int) -> Capture:
    """A capture of any number of words that nobody has named."""
    rows = [{"offset": 4 * (count - 1), "field": "", "lsb": 0, "width": 32}]
    return Capture("wide", "demo", "x", (Job("", range(count)),), maps={"": RegisterMap(rows)})


@pytest.fixture(scope="module")
def mesa() -> Capture:
    return npulab.load(CAPTURES / "vivante/update4-mesa")


@pytest.fixture(scope="module")
def vendor() -> Capture:
    return npulab.load(CAPTURES / "vivante/update4-vendor")


# ---- the model ----


def test_model_flip_is_seen_in_words_fields_and_capture() -> None:
    model = RegisterModel(small())
    model.flip(1, 31)
    assert model.words == (0x51, 0xC0000002, 0xFFFFFFFF)
    assert model.fields == {
        "mode": "on",
        "w0_2_2": 0,
        "size": 0x35,
        "w0_8_24": 0,
        "where": 128,
        "w1_26_4": 0,
        "bias": -1,
    }
    assert model.changed == {"size": (0x15, 0x35)}
    assert model.capture == replace(small(model.words), tool="changed with npulab")
    assert model.summary == "1 bit in 1 field differs from the reference: size 21 → 53"


def test_model_leaves_the_capture_it_was_given() -> None:
    given = small()
    RegisterModel(given).flip(0, 0)
    assert given == small()


def test_model_undo_goes_back_step_by_step() -> None:
    model = RegisterModel(small())
    model.flip(0, 0)
    model.flip(0, 7)
    model.words = (1, 2, 3)
    seen = []
    for _ in range(5):
        model.undo()
        seen.append(model.words[0])
    assert seen == [0xD0, 0x50, 0x51, 0x51, 0x51]


def test_model_flip_of_bit_31_both_ways() -> None:
    model = RegisterModel(small())
    model.flip(2, 31)
    assert model.fields["bias"] == 0x7FFFFFFF
    model.flip(2, 31)
    assert model.fields["bias"] == -1


def test_model_flip_back_counts_as_undo() -> None:
    model = RegisterModel(small())
    model.flip(0, 0)
    model.flip(0, 7)
    model.flip(0, 7)
    model.undo()
    assert model.words == WORDS


def test_model_redo_makes_again_what_was_undone() -> None:
    model = RegisterModel(small())
    model.flip(0, 0)
    model.flip(0, 7)
    assert [model.undo(), model.undo(), model.undo()] == [True, True, False]
    assert [(model.redo(), model.words[0]) for _ in range(3)] == [
        (True, 0x50),
        (True, 0xD0),
        (False, 0xD0),
    ]
    model.undo()
    model.flip(0, 1)
    assert (model.redo(), model.words[0]) == (False, 0x52)
    assert [model.undo() and model.words[0] for _ in range(3)] == [0x50, 0x51, False]


@pytest.mark.parametrize(
    ("field", "value", "raw"),
    [
        ("mode", "off", 0),
        ("mode", "1", 1),
        ("mode", " 0x3", 3),
        ("size", "63", 63),
        ("size", "0x2a", 42),
        ("where", "128", 2),
        ("where", "0x80", 2),
        ("where", "raw 0x80", 128),
        ("bias", "-2", 2**32 - 2),
        ("bias", 7, 7),
        ("w0_2_2", "0b11", 3),
    ],
)
def test_model_put_takes_a_value_as_people_type_it(field: str, value: object, raw: int) -> None:
    model = RegisterModel(small())
    before = dict(zip(model.rows.names, model.rows.raw(WORDS), strict=True))
    sentence = model.put(field, value)
    assert dict(zip(model.rows.names, model.rows.raw(model.words), strict=True)) == before | {
        field: raw
    }
    assert sentence.startswith(f"{field} ")
    model.undo()
    assert model.words == WORDS


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("size", "64", "register CFG field size: got raw 64, allowed is 0 to 63 (6 bits)"),
        ("where", "100", "register EXT field where: got 100, allowed is a multiple of 64"),
        (
            "mode",
            "of",
            "mode: got 'of', allowed is a number such as 12 or 0x0c, or one of off, on; raw 12 is the number as stored",
        ),
        ("sise", "1", "field: got 'sise', near it are size"),
    ],
)
def test_model_put_refuses(field: str, value: str, message: str) -> None:
    model = RegisterModel(small())
    with pytest.raises((ValueError, LookupError), match=re.escape(message)):
        model.put(field, value)
    assert model.words == WORDS


def test_model_put_refuses_bits_of_registers_that_are_not_written() -> None:
    registers = small().maps["NN"]
    model = RegisterModel(small(jobs=(Job.from_writes("NN", ((0, 0x51),), registers),)))
    assert model.put("size", "15") == "size 5 → 15"
    with pytest.raises(
        ValueError,
        match=r"^field size: got raw 0x1f, which sets bits of registers that the job does not",
    ):
        model.put("size", "31")
    assert model.words == (0xF1,)


@pytest.mark.parametrize(
    ("message", "status", "word"),
    [
        ({"do": "type", "field": 0, "text": "off"}, "mode on → off", 0x50),
        ({"do": "type", "run": [0, 4, 8], "text": "0xab"}, "CFG[11:4] 5 → 171", 0xAB1),
        ({"do": "undo"}, "nothing to undo", 0x51),
        (
            {"do": "type", "field": 99, "text": "1"},
            "refused: field: got 99, allowed is 0 to 6",
            0x51,
        ),
        (
            {"do": "type", "run": [0, 30, 4], "text": "1"},
            "refused: run: got width 4 of (0, 30, 4), allowed is 1 to 2",
            0x51,
        ),
        (
            {"do": "type", "run": [0, 4, 2], "text": "4"},
            "refused: register CFG field CFG[5:4]: got raw 4, allowed is 0 to 3",
            0x51,
        ),
        (
            {"do": "eval"},
            "refused: message: got {'do': 'eval'}, allowed is one of undo, redo, type",
            0x51,
        ),
        (7, "refused: message: got 7, allowed is one of undo, redo, type", 0x51),
    ],
)
def test_model_does_what_a_page_asks_for(message: object, status: str, word: int) -> None:
    model = RegisterModel(small())
    model.press(message)
    assert model.status.startswith(status)
    assert model.words[0] == word


def test_model_describe() -> None:
    model = RegisterModel(small())
    assert model.describe(0, 5) == f"CFG bit 5 · {SIZE}"
    assert model.describe(1, 31) == f"EXT bit 31 · {SIZE}"
    assert model.describe(0, 1) == "CFG bit 1 · mode CFG[1:0] · 0x1 = on · evidence K"
    assert model.describe(1, 3) == "EXT bit 3 · where EXT[25:0] · 0x2 = 0x80 · evidence unknown"
    model.flip(0, 1)
    assert model.describe(0, 1).endswith("0x3 = 3, reference 0x1 = on · evidence K")


def test_a_bit_of_no_field_is_one_without_a_name() -> None:
    model = RegisterModel(small())
    assert model.describe(0, 7).split(" · ")[1] == model.describe(1, 30).split(" · ")[1]
    assert model.describe(0, 2).startswith("CFG bit 2 · w0_")


def test_model_against_another_capture(mesa: Capture, vendor: Capture) -> None:
    model = RegisterModel(mesa, vendor)
    assert list(model.changed) == ["kernel_address", "in_image_address", "out_image_address"]
    assert model.changed["in_image_address"] == (
        vendor.values["in_image_address"],
        mesa.values["in_image_address"],
    )
    model.reference = model.words
    assert model.changed == {}
    assert model.summary == "no bit differs from the reference"


def test_without_a_reference_none_is_spoken_of(mesa: Capture, vendor: Capture) -> None:
    model = RegisterModel(mesa)
    assert model.summary == "not changed"
    model.flip(0, 0)
    model.undo()
    assert model.summary == "not changed"
    assert RegisterModel(mesa, replace(mesa)).summary == "no bit differs from the reference"


def test_evidence_is_told_in_words(mesa: Capture) -> None:
    """As the shell's legend has it; the code of a case, or of an NPU that is not here, stands
    alone.
    """
    model = RegisterModel(mesa)
    sources = npulab.target("vivante").sources
    said = {model.about(index)["known"].split(" · ")[0] for index in range(len(model.rows.fields))}
    coded = {text for text in said if ": " in text}
    assert coded
    for text in coded:
        code, title = text.removeprefix("evidence ").split(": ", 1)
        assert sources[code].startswith(title)
    assert all(text in coded or text.removeprefix("evidence ") not in sources for text in said)
    assert RegisterModel(small()).describe(0, 1).endswith("evidence K")


def test_model_describes_every_bit_of_a_capture(mesa: Capture) -> None:
    model = RegisterModel(mesa)
    multiplier = (
        "post_multiplier w2[26] w15[27:22] w17[31:24] · 0x30be = 12478 · evidence C:update4-vendor · "
        "multiplier behind its leading one: 15 bits in three pieces on V7, 23 in four on V8"
    )
    assert [model.describe(word, bit) for word, bit in ((2, 26), (15, 22), (17, 31))] == [
        f"{where} · {multiplier}" for where in ("w2 bit 26", "w15 bit 22", "w17 bit 31")
    ]
    assert all(model.describe(word, bit) for word in range(34) for bit in range(32))


def test_model_summary_of_many_changes() -> None:
    model = RegisterModel(small())
    model.words = (0xFFFFFFFF, 0, 0)
    assert (
        model.summary
        == "63 bits in 6 fields differ from the reference: mode on → 3, w0_2_2 0x0 → 0x3, "
        "xor 0x3, size 21 → 15, w0_8_24 0x0 → 0xffffff, xor 0xffffff, … 2 more"
    )


def test_model_of_register_writes() -> None:
    writes = ((8, 1), (0, 0x51), (0x40, 7), (8, 5))
    registers = small().maps["NN"]
    given = small(jobs=(Job.from_writes("NN", writes, registers),))
    model = RegisterModel(given)
    assert model.rows.labels == ("SUM", "CFG", "w16")
    assert (
        model.describe(1, 4)
        == "CFG bit 4 · size CFG[7:4] EXT[31:30] · 0x5 = 5 · evidence guess · low"
    )
    model.flip(0, 1)
    model.flip(2, 3)
    assert model.changed == {"bias": (5, 7), "w16_0_32": (7, 15)}
    assert model.capture.jobs[0] == Job.from_writes(
        "NN", ((8, 1), (0, 0x51), (0x40, 15), (8, 7)), registers
    )


def test_model_second_job() -> None:
    given = small(jobs=(Job("NN", (0, 0, 0)), Job("NN", WORDS)))
    model = RegisterModel(given, task=1)
    model.flip(2, 0)
    assert model.title == "demo/a, job 1 NN, 1 of 2 jobs, 3 words"
    assert [job.words[2] for job in model.capture.jobs] == [0, 0xFFFFFFFE]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((1, 2), r"^words: got 2 words, allowed are 3$"),
        ((1, 2, 2**32), r"^words: got 4294967296 as word 2, allowed is 0 to 4294967295$"),
        ((1, -1, 2), r"^words: got -1 as word 1, allowed is 0 to 4294967295$"),
        ((1, 2, 0.5), r"^words: got \(1, 2, 0.5\), allowed are 3 whole numbers$"),
        (7, r"^words: got 7, allowed are 3 whole numbers$"),
    ],
)
def test_words_wrong(words: object, message: str) -> None:
    for either in (RegisterModel(small()), RegisterView(small())):
        with pytest.raises(ValueError, match=message):
            either.words = words
        assert either.words == WORDS


def test_places_wrong() -> None:
    model = RegisterModel(small())
    with pytest.raises(ValueError, match=r"^bit: got word 3 of \(3, 0\), allowed is 0 to 2$"):
        model.flip(3, 0)
    with pytest.raises(ValueError, match=r"^bit: got bit -1 of \(0, -1\), allowed is 0 to 31$"):
        model.describe(0, -1)
    with pytest.raises(ValueError, match=r"^cursor: got bit 32 of \(0, 32\), allowed is 0 to 31$"):
        model.cursor = (0, 32)
    with pytest.raises(ValueError, match=r"^cursor: got 5, allowed is \(word, bit\)$"):
        model.cursor = 5
    for run, message in (
        ((0, 0, 33), r"got width 33 of \(0, 0, 33\), allowed is 1 to 32"),
        ((0, 1), r"got \(0, 1\), allowed is"),
        ((9, 0, 1), r"got word 9 of \(9, 0, 1\), allowed is 0 to 2"),
        (4, "got 4, allowed is"),
    ):
        with pytest.raises(ValueError, match=message):
            model.selection = run


def test_captures_wrong(mesa: Capture) -> None:
    with pytest.raises(LookupError, match=r"^capture a: got task 1, it has 0 to 0$"):
        RegisterModel(small(), task=1)
    with pytest.raises(LookupError, match=r"^block: got 'NN', maps are known for none$"):
        RegisterModel(small(maps={}))
    with pytest.raises(ValueError, match=r"^words: got 2 words, allowed are 3 \(block NN\)$"):
        RegisterModel(small((1, 2)))
    with pytest.raises(
        ValueError,
        match=r"^words: got 3 words, allowed are 34 \(block NN\)$|^reference: got 3 words, allowed are 34$",
    ):
        RegisterModel(mesa, small())
    with pytest.raises(
        ValueError,
        match=r"^reference a: got Job\(TP, 3 words\), allowed is a job that sets the same "
        r"registers as Job\(NN, 3 words\)$",
    ):
        RegisterModel(small(), small(jobs=(Job("TP", WORDS),)))


# ---- the view, with no front end ----


def test_view_takes_what_a_browser_sends() -> None:
    view = RegisterView(small())
    seen = []
    view.observe(lambda change: seen.append(change.new), "words")
    view.set_state({"words": [0x50, *WORDS[1:]], "cursor": [0, 0]})
    assert seen == [(0x50, *WORDS[1:])]
    assert view.model.words == view.words == (0x50, *WORDS[1:])
    assert (view.cursor, view.model.cursor) == ((0, 0), (0, 0))
    assert view.changed == {"mode": ("on", "off")}
    assert view.fields["mode"] == "off"
    assert view.capture.words[0] == 0x50
    assert view.values[0] == "0x0 = off, reference 0x1 = on"
    assert view.summary.endswith("mode on → off")


def test_view_refuses_what_a_browser_must_not_send() -> None:
    view = RegisterView(small())
    for sent in ({"words": [1]}, {"words": [1, 2, 2**40]}, {"cursor": [9, 0]}):
        with pytest.raises(ValueError, match=r"allowed (is|are)"):
            view.set_state(sent)
    assert (view.words, view.model.words, view.cursor) == (WORDS, WORDS, (0, 31))


def test_view_follows_the_model() -> None:
    view = RegisterView(small())
    view.model.flip(0, 0)
    assert view.words[0] == 0x50
    view.model.undo()
    assert view.words == WORDS
    view.words = small((4, 5, 6)).words
    assert view.model.words == (4, 5, 6)


def test_view_sends_plain_lists() -> None:
    view = RegisterView(small())
    state = view.get_state()
    assert state["registers"] == ["CFG", "EXT", "SUM"]
    assert state["places"][2] == {
        "name": "size",
        "own": "size",
        "bits": "CFG[7:4] EXT[31:30]",
        "known": "evidence guess · low",
        "law": "",
        "reads": [],
        "kind": "guess",
        "automatic": False,
        "pieces": [[0, 4, 4], [1, 30, 2]],
        "shorts": ["", "size"],  # two bits have room for 30 pixels
        "choices": [],
    }
    assert state["places"][0]["choices"] == ["off", "on"]


def test_a_line_names_the_capture_and_counts_the_bits(mesa: Capture, vendor: Capture) -> None:
    assert (
        repr(RegisterView(mesa, vendor))
        == "RegisterView(vivante/update4-mesa, job 0 NN, 34 words, 41 bits differ)"
    )


def test_face_shows_words_and_fields() -> None:
    view = RegisterView(small())
    view.model.flip(0, 0)
    face = view._repr_mimebundle_()[0]["text/html"]
    assert "<b>demo/a, job 0 NN, 3 words</b>; 1 bit in 1 field differs" in face
    assert "<b>0x00000050</b> (reference 0x00000051)" in face
    assert "w0_8_24 0, size 21, w0_2_2 0, <b>mode off, reference 0x1 = on</b>" in face
    assert "size[5:4], w1_26_4 0, where 0x80" in face


@pytest.mark.parametrize(
    ("count", "rows", "more"),
    [(1, 2, ""), (59, 60, ""), (60, 60, "… 2 more words"), (128, 60, "… 70 more words")],
)
def test_face_has_at_most_60_rows(count: int, rows: int, more: str) -> None:
    face = RegisterView(wide(count))._repr_mimebundle_()[0]["text/html"]
    assert face.count("<tr>") == rows
    assert more in face


def known() -> SimpleNamespace:
    """Laws of the small capture's block: a law for size's low end, of the rest nothing."""
    status = np.full((3, 32), "open", object)
    status[0, 4:8], status[2] = "law", "never exercised"
    law = SimpleNamespace(word=0, lsb=4, width=4, text="input_w - 1")
    return SimpleNamespace(
        status=status, fields=[law], words=np.array([[0, 0, 0], [16, 0, 0], [48, 0, 0]], np.uint32)
    )


def test_model_tells_laws_and_flips() -> None:
    model = RegisterModel(small(), laws=known())
    assert model.letters == ["?" * 24 + "LLLL????", "?" * 32, "·" * 32]
    assert [bit for bit, share in enumerate(model.shares[0]) if share] == [4, 5]
    assert (model.shares[0][4], model.shares[0][5]) == (50, 50)
    assert model.describe(0, 4).endswith("evidence guess · low · law input_w - 1")
    assert "law" not in model.describe(0, 0)
    writes = replace(small(), jobs=(Job.from_writes("NN", [(8, 7), (0, 5)], REGISTERS),))
    assert RegisterModel(writes, laws=known()).letters == ["·" * 32, "?" * 24 + "LLLL????"]
    moved = RegisterModel(
        small(), sweep=SimpleNamespace(words=np.array([[1, 0, 0], [0, 0, 0]], np.uint32))
    )
    assert (moved.letters, moved.shares[0][0]) == ([], 100)
    with pytest.raises(ValueError, match="laws or sweep: got 2 words, allowed are 3"):
        RegisterModel(small(), sweep=SimpleNamespace(words=np.zeros((4, 2), np.uint32)))


# ---- the drawing, in a blank page ----


def bit(page: BlankPage, word: int, number: int) -> str:
    return page.page.get_attribute(f"[data-word='{word}'][data-bit='{number}']", "aria-label")


def status(page: BlankPage) -> str:
    return page.page.inner_text("[role=status]")


def flip(page: BlankPage, word: int, number: int) -> None:
    page.page.dblclick(f"[data-word='{word}'][data-bit='{number}']")


def answer(page: BlankPage, view: RegisterView) -> None:
    """Give Python what the page sent last, and the page what Python makes of it."""
    view._handle_custom_msg(page.sent[-1], [])
    page.push(words=list(view.words), values=view.values, summary=view.summary, status=view.status)


def listed(page: BlankPage) -> list[str]:
    return page.page.locator(".item:not([hidden]) .name").all_text_contents()


def focused(page: BlankPage) -> tuple[int, int]:
    word, number = page.page.evaluate(
        "[document.activeElement.dataset.word, document.activeElement.dataset.bit]"
    )
    return int(word), int(number)


@pytest.mark.sample(1)
@pytest.mark.parametrize("theme", THEMES)
def test_page_in_each_theme(chrome: Browser, theme: str) -> None:
    view = RegisterView(small(provenance="simulated"))
    with BlankPage(chrome, view, theme) as page:
        flip(page, 0, 1)
        assert page.saved == [{"cursor": [0, 1]}, {"words": [0x53, *WORDS[1:]]}]
        assert bit(page, 0, 1) == "1, bit 1, mode, differs from the reference"
        for shown in (
            ".npulab-heading",
            "text=simulated",
            "[role=status]",
            ".npulab-help",
            "text=0x00000053",
        ):
            assert page.page.is_visible(shown)
        assert page.accessibility() == []
        page.page.select_option(".colour", "evidence")
        page.page.select_option(".kind", "nonzero")
        page.press("Shift+ArrowLeft Enter")
        assert page.accessibility() == []
        page.page.select_option(".colour", "value")
        assert page.accessibility() == []
        page.cleanup()
        assert page.listeners == 0
        assert page.errors == []


def test_page_of_a_capture_against_another(chrome: Browser, mesa: Capture, vendor: Capture) -> None:
    with BlankPage(
        chrome, RegisterView(mesa, vendor), size=(960, 900)
    ) as page:  # as wide as JupyterLab's cells
        assert page.page.locator("[role=gridcell][data-bit]").count() == 34 * 32
        bits, fields = (
            page.page.locator(part).bounding_box() for part in (".npulab-grid", ".fields")
        )
        assert (fields["y"], fields["x"]) == (bits["y"], bits["x"] + bits["width"] + 8)
        assert (
            page.page.evaluate("""() => [...document.querySelectorAll('.item .name')]
            .filter(name => name.scrollWidth > name.clientWidth && name.textContent.length < 16)
            .map(name => name.textContent)""")
            == []
        )
        assert page.page.locator(".npulab-bit.differs").count() == 41
        assert page.page.locator("text=simulated").count() == 0
        flip(page, 2, 24)
        words = mesa.words.tolist()
        words[2] ^= 2**24
        assert page.saved == [{"cursor": [2, 24]}, {"words": words}]
        assert page.errors == []


def test_page_flip_reaches_python(chrome: Browser) -> None:
    view = RegisterView(small())
    with BlankPage(chrome, view) as page:
        page.page.click("[data-word='1'][data-bit='31']")
        assert page.saved == [{"cursor": [1, 31]}]  # a click selects
        page.press("Space")
        view.set_state(page.saved[1])
        assert view.words == (0x51, 0xC0000002, 0xFFFFFFFF)
        page.push(values=view.values, summary=view.summary)
        assert status(page) == view.model.describe(1, 31)
        assert "size 21 → 53" in page.page.inner_text(".npulab-summary")


def test_page_bit_31_stays_unsigned(chrome: Browser) -> None:
    with BlankPage(chrome, RegisterView(small())) as page:
        for number in (31, 0, 31):
            flip(page, 2, number)
        assert [sent["words"][2] for sent in page.saved if "words" in sent] == [
            0x7FFFFFFF,
            0x7FFFFFFE,
            0xFFFFFFFE,
        ]
        assert page.page.inner_text(".npulab-row:last-child .npulab-hex >> nth=0") == "0xfffffffe"


def test_page_keys_move(chrome: Browser) -> None:
    with BlankPage(chrome, RegisterView(wide(20))) as page:
        page.press("Tab")
        seen = [focused(page)]
        for key in (
            "ArrowRight",
            "ArrowDown",
            "ArrowLeft",
            "ArrowLeft",
            "End",
            "ArrowRight",
            "PageDown",
            "PageDown",
            "PageDown",
            "Home",
            "ArrowUp",
            "PageUp",
            "PageUp",
            "PageUp",
        ):
            page.press(key)
            seen.append(focused(page))
        assert seen == [
            (0, 31),
            (0, 30),
            (1, 30),
            (1, 31),
            (1, 31),
            (1, 0),
            (1, 0),
            (9, 0),
            (17, 0),
            (19, 0),
            (19, 31),
            (18, 31),
            (10, 31),
            (2, 31),
            (0, 31),
        ]
        assert page.page.locator("[tabindex='0']").count() == 2  # a bit and the list of fields
        assert page.saved[-1] == {"cursor": [0, 31]}


def test_page_keys_flip_undo_and_seek(chrome: Browser) -> None:
    view = RegisterView(small())
    with BlankPage(chrome, view) as page:
        page.press("Tab Space ArrowDown Space End Space")
        assert page.saved[-1]["words"] == [0x80000051, 0xC0000003, 0xFFFFFFFF]
        seen = []
        for key in ("n", "n", "]", "p", "[", "p"):
            page.press(key)
            seen.append(focused(page))
        assert seen == [(0, 31), (1, 31), (1, 0), (1, 31), (0, 31), (1, 0)]
        for sent in page.saved:
            view.set_state(sent)
        for key in ("u", "u", "u", "U", "u"):
            page.press(key)
            answer(page, view)
        assert [sent["do"] for sent in page.sent] == ["undo", "undo", "undo", "redo", "undo"]
        assert view.words == WORDS
        assert page.page.locator(".npulab-bit.differs").count() == 0
        page.press("u")
        answer(page, view)
        assert status(page) == "nothing to undo"
        page.press("n")
        assert status(page) == "not changed"


def test_page_goes_from_field_to_field(chrome: Browser, captures: CaptureSet) -> None:
    view = RegisterView(captures["update4-vendor"], reference=captures["update4-mesa"])
    with BlankPage(chrome, view) as page:
        page.press("Tab")
        seen = []
        for key in ("n", "n", "n", "n", "p"):
            page.press(key)
            seen.append(focused(page)[0])
        assert seen == [5, 6, 7, 5, 7]
        page.press("[")
        assert focused(page)[0] == 7


def test_page_keeps_its_keys_to_itself(chrome: Browser) -> None:
    with BlankPage(chrome, RegisterView(small())) as page:
        page.page.evaluate(
            "window.reached = []; document.addEventListener('keydown', e => reached.push(e.key))"
        )
        page.press(
            "Tab Space u n p [ ] Home PageDown ArrowUp Enter m Enter / m Escape c Shift+ArrowLeft m Control+u Escape Shift+Enter",
        )
        assert page.page.evaluate("reached") == [
            "Tab",
            "Shift",
            "Control",
            "u",
            "Escape",
            "Shift",
            "Enter",
        ]


def test_page_follows_python(chrome: Browser) -> None:
    view = RegisterView(small())
    with BlankPage(chrome, view) as page:
        view.words = (0xFFFFFFFF, 0, 0)
        view.cursor = (2, 4)
        page.push(words=list(view.words), values=view.values, cursor=list(view.cursor))
        assert bit(page, 0, 31) == "1, bit 31, unnamed w0_8_24, differs from the reference"
        assert status(page) == view.model.describe(2, 4)
        page.push(reference=list(view.words))
        assert page.page.locator(".npulab-bit.differs").count() == 0


def test_page_tells_and_lights_the_field_under_the_pointer(chrome: Browser) -> None:
    view = RegisterView(small())
    with BlankPage(chrome, view) as page:
        page.page.hover("[data-word='1'][data-bit='30']")
        assert status(page) == view.model.describe(1, 30)
        lit = page.page.eval_on_selector_all(
            ".here", "all => all.map(c => [+c.dataset.word, +c.dataset.bit])"
        )
        assert sorted(map(tuple, lit)) == [(0, 4), (0, 5), (0, 6), (0, 7), (1, 30), (1, 31)]
        page.page.mouse.move(5, 500)
        assert status(page) == view.model.describe(0, 31)


def test_page_finds_a_field_and_gives_it_a_value(chrome: Browser) -> None:
    view = RegisterView(small())
    with BlankPage(chrome, view) as page:
        page.press("Tab /")
        page.page.keyboard.type("mod")
        assert (listed(page), page.page.inner_text(".found")) == (["mode"], "1 of 7 fields")
        page.press("Enter Enter")
        assert page.saved[-1] == {"cursor": [0, 1]}
        assert page.page.input_value(".answer") == "on"
        assert page.page.locator("datalist option").evaluate_all(
            "all => all.map(one => one.value)"
        ) == ["off", "on"]
        page.page.keyboard.type("off")
        page.press("Enter")
        assert page.sent == [{"do": "type", "field": 0, "text": "off"}]
        answer(page, view)
        assert status(page) == "mode on → off"
        assert page.page.locator(".item[aria-selected='true'] .value").text_content() == "off"
        assert page.page.locator(".label").first.inner_text() == "size 21"
        for key, shown in (("u", "on"), ("U", "off")):
            page.press(key)
            answer(page, view)
            assert page.page.locator(".item[aria-selected='true'] .value").text_content() == shown
        page.press("Enter")
        page.page.keyboard.type("perhaps")
        page.press("Enter")
        answer(page, view)
        assert status(page).startswith(
            "refused: mode: got 'perhaps', allowed is a number such as 12 or 0x0c, or one of off, on"
        )
        page.press("Enter Escape")
        assert len(page.sent) == 4
        page.press("/ Escape")
        assert len(listed(page)) == 7


def test_a_filter_keeps_fields_as_the_words_change() -> None:
    view = RegisterView(small())
    view.filter = "raw != 0 and evidence in (K, guess)"
    names = [view.model.rows.names[index] for index in view.kept]
    assert (names, view.model.filter) == (["mode", "size"], view.filter)
    view.words = (0x50, *WORDS[1:])
    assert [view.model.rows.names[index] for index in view.kept] == ["size"]
    view.filter = "raw != reference and not named == 0"
    assert [view.model.rows.names[index] for index in view.kept] == ["mode"]
    with pytest.raises(ValueError, match=r"^filter: got 'row != 0', allowed is a comparison with"):
        view.filter = "row != 0"
    assert view.filter == "raw != reference and not named == 0"
    view.model.press({"do": "filter", "text": "raw ="})
    assert view.status.startswith("refused: filter: got 'raw =', which is no expression")
    view.model.press({"do": "filter", "text": ""})
    assert (view.filter, view.kept) == ("", [])


def test_a_sweep_has_the_filter_too() -> None:
    view = SweepView(Sweep([[1, 0], [3, 0]], {"input_w": [8, 32]}))
    view.model.press({"do": "filter", "text": "raw == 3"})
    assert (view.kept, view.status) == ([], "0 of 2 fields: raw == 3")
    view.at = 1
    assert view.kept == [0]
    view.model.press({"do": "undo"})
    assert view.status.startswith("refused: message: got ")


@pytest.mark.parametrize("target", ["vivante", "nvdla", "ane", "rockchip"])
def test_narrow_fields_of_a_word_have_different_short_names(target: str) -> None:
    rows = Rows.whole(npulab.target(target).registers)
    count = 0
    for word, line in enumerate(rows.cells):
        shorts = []
        for cell in line:
            item, piece = rows.fields[cell.field], cell.piece
            short = rows.shorts.get((word, piece.lsb), "")
            assert bool(short) == (piece.width < 4 and not item.automatic)
            if short:
                assert letters_width(short) <= {1: 14, 2: 30, 3: 46}[piece.width]
                shorts.append(short)
        assert len(set(shorts)) == len(shorts), word
        count += len(shorts)
    assert count > 10


def test_page_tells_narrow_fields_apart(chrome: Browser, vendor: Capture) -> None:
    with BlankPage(chrome, RegisterView(vendor)) as page:
        narrow = page.page.locator(".npulab-row >> nth=1 >> .label[data-short]")
        assert narrow.evaluate_all("all => all.map(one => one.dataset.short)") == [
            "nl",
            "pr",
            "xs",
            "pooli",
            "nz",
            "lt",
        ]
        page.page.hover("[data-word='0'][data-bit='1']")
        whole = page.page.locator(".label.whole")
        assert whole.count() == 1
        name = whole.inner_text().split()[0]
        assert name in status(page)
        assert whole.bounding_box()["width"] > 6 * len(name) * 0.7
        page.page.mouse.move(5, 890)
        page.page.click("[data-word='2'][data-bit='24']")
        assert whole.inner_text().startswith("relu ")
        assert page.accessibility() == []


# The names of each row that begin less than two pixels behind the end of the one before, and short
# ones that are cut: [register, name, the name behind it]
TOUCHING = """() => {
  const found = [], drawn = label => {
    const copy = label.cloneNode(true);
    copy.style.cssText = 'position: absolute; width: max-content; margin: 0; padding: 0; text-indent: 0';
    label.parentElement.append(copy);
    const { width } = copy.getBoundingClientRect();
    copy.remove();
    return width;
  };
  for (const row of document.querySelectorAll('.npulab-row:not(.npulab-head)')) {
    row.style.contentVisibility = 'visible';
    let before = '', end = -Infinity;
    for (const label of row.querySelectorAll('.label')) {
      const { left, right } = label.getBoundingClientRect(), style = getComputedStyle(label);
      const name = label.matches('.whole') ? label.textContent : label.dataset.short ?? label.textContent;
      const start = left + parseFloat(style.paddingLeft) + parseFloat(style.textIndent), wide = drawn(label);
      if (start >= right) continue; // hidden by a whole name
      if (start < end + 2) found.push([row.firstChild.textContent, before, name]);
      if (label.matches('[data-short]:not(.whole)') && start + wide > right + 0.5) found.push([row.firstChild.textContent, name, 'cut']);
      [before, end] = [name, Math.min(start + wide, right)];
    }
  }
  return found;
}"""


@pytest.mark.parametrize(
    "case", ["vivante/update4-vendor", "nvdla/rtl-10-conv", "ane/sim-3x3-same"]
)
def test_no_name_touches_the_next(chrome: Browser, case: str) -> None:
    view = RegisterView(npulab.load(CAPTURES / case))
    with BlankPage(chrome, view) as page:
        assert page.page.locator(".label[data-short]").count() > 20
        assert page.page.evaluate(TOUCHING) == []


def test_names_make_room_for_the_whole_one(chrome: Browser, vendor: Capture) -> None:
    view = RegisterView(vendor)
    view.cursor = (2, 26)  # the first of three pieces of post_multiplier, one bit wide
    with BlankPage(chrome, view) as page:
        behind = page.page.locator(".npulab-row >> nth=3 >> .label:not([data-short])").last
        assert behind.text_content().startswith("brick_distance")
        expect(behind).to_have_attribute("style", re.compile(r"text-indent: \d+px"))
        assert page.page.evaluate(TOUCHING) == []
        page.page.click("[data-word='5'][data-bit='3']")
        expect(behind).not_to_have_attribute("style", re.compile("text-indent: [^;]"))
        assert page.page.evaluate(TOUCHING) == []


def test_page_hides_words_without_a_hit_and_takes_a_filter(
    chrome: Browser, vendor: Capture
) -> None:
    view = RegisterView(vendor)
    with BlankPage(chrome, view) as page:
        words = page.page.locator(".npulab-row:visible")
        page.page.click("[data-word='3'][data-bit='31']")
        page.press("/")
        page.page.keyboard.type("relu")
        assert words.count() == 1 + len({place[0] for place in places(view, "relu")}) < 6
        page.press("Enter ArrowUp Escape")
        page.press("/ Escape")
        assert words.count() == 35
        page.press("/")
        page.page.keyboard.type("raw != 0 and evidence == guess")
        assert (page.sent, page.page.inner_text(".found")) == ([], "Enter filters")
        page.press("Enter")
        assert page.sent == [{"do": "filter", "text": "raw != 0 and evidence == guess"}]
        take_filter(page, view)
        expected = [
            view.model.rows.names[index]
            for index, item in enumerate(view.model.rows.fields)
            if item.evidence == "guess" and view.model.rows.raw(view.words)[index]
        ]
        assert listed(page) == expected
        assert 1 < words.count() < 35
        assert status(page) == (
            f"{len(expected)} of {len(view.places)} fields: raw != 0 and evidence == guess"
        )
        assert page.accessibility() == []
        page.page.fill(".search", "raw == guess ==")
        page.press("Enter")
        take_filter(page, view)
        assert "which is no expression" in status(page)
        assert listed(page) == expected
        page.press("Escape")
        take_filter(page, view)
        assert (view.filter, words.count()) == ("", 35)
        view.filter = "raw > 1000"
        page.push(filter=view.filter, kept=view.kept)
        assert page.page.input_value(".search") == "raw > 1000"
        assert len(listed(page)) == len(view.kept) > 0
        # arrows pass over the words that are hidden
        page.page.locator(".npulab-bit:visible").first.click()
        page.press("ArrowDown")
        assert page.page.locator(".npulab-bit:focus").is_visible()
        assert page.errors == []


def places(view: RegisterView, text: str) -> list[list[int]]:
    """The runs of bits of the fields in which a text is found."""
    found = []
    for place, value in zip(view.places, view.values, strict=True):
        if text in f"{place['name']} {place['bits']} {place['known']} {value}".lower():
            found += place["pieces"]
    return found


def take_filter(page: BlankPage, view: RegisterView) -> None:
    view._handle_custom_msg(page.sent[-1], [])
    page.push(kept=view.kept, filter=view.filter, status=view.status)


def test_page_select_all_selects_the_word(chrome: Browser) -> None:
    with BlankPage(chrome, RegisterView(small())) as page:
        page.page.evaluate(
            "window.heard = []; document.addEventListener('keydown', e => heard.push(e.key))"
        )
        page.page.click("[data-word='1'][data-bit='3']")
        page.press("Control+a")
        assert page.saved[-1]["selection"] == [1, 0, 32]
        assert page.page.locator(".chosen").count() == 32
        page.press("/ o Control+a x")  # selects the text that is typed
        assert page.page.input_value(".search") == "x"
        page.press("Escape Tab Control+a")
        assert "a" not in page.page.evaluate("heard")
        assert page.page.evaluate("String(getSelection())") == ""


def test_page_links_fields_and_bits(chrome: Browser) -> None:
    view = RegisterView(small())
    with BlankPage(chrome, view) as page:
        page.page.click("[data-word='1'][data-bit='30']")
        assert page.page.locator(".item[aria-selected='true'] .name").text_content() == "size"
        page.page.click(".item:has-text('where')")
        assert page.saved[-1] == {"cursor": [1, 25]}
        assert page.page.locator(".here").count() == 26
        page.press("ArrowDown ArrowDown End Home")
        assert [sent["cursor"] for sent in page.saved[-4:]] == [[1, 25], [1, 29], [2, 31], [0, 1]]


def test_page_selects_a_run_by_pointer_and_by_keys(chrome: Browser) -> None:
    view = RegisterView(small())
    with BlankPage(chrome, view) as page:
        page.page.hover("[data-word='0'][data-bit='9']")
        page.page.mouse.down()
        for number in (7, 5, 6):
            page.page.hover(f"[data-word='0'][data-bit='{number}']")
        page.page.hover("[data-word='1'][data-bit='0']")
        page.page.mouse.up()
        assert page.page.locator(".chosen").evaluate_all(
            "all => all.map(one => one.dataset.bit)"
        ) == ["9", "8", "7", "6"]
        page.page.mouse.move(5, 890)
        assert status(page) == "CFG[9:6] · 0x1 = 1 · 4 bits of w0_8_24, size"
        for sent in page.saved:
            view.set_state(sent)
        assert view.selection == (0, 6, 4)
        page.press("Enter")
        page.page.keyboard.type("0xf")
        page.press("Enter")
        assert page.sent == [{"do": "type", "run": [0, 6, 4], "text": "0xf"}]
        answer(page, view)
        assert (view.words[0], bit(page, 0, 9)) == (
            0x3D1,
            "1, bit 9, unnamed w0_8_24, differs from the reference",
        )
        page.press("ArrowDown Shift+ArrowRight Shift+ArrowRight Shift+ArrowLeft")
        assert page.saved[-1]["selection"] == [1, 5, 2]
        page.press("ArrowUp")
        assert page.page.locator(".chosen").count() == 0


def test_page_shows_the_fields_that_are_asked_for(chrome: Browser) -> None:
    view = RegisterView(small())
    with BlankPage(chrome, view) as page:
        seen = {}
        for kind in ("nonzero", "unknown", "differing", "=guess", "=K"):
            page.page.select_option(".kind", kind)
            seen[kind] = listed(page)
        assert seen == {
            "nonzero": ["mode", "size", "where", "bias"],
            "differing": [],
            "=guess": ["size"],
            "=K": ["mode"],
            "unknown": ["w0_2_2", "w0_8_24", "where", "w1_26_4", "bias"],
        }
        assert page.page.locator(".npulab-bit:not(.out)").count() == 2
        page.page.select_option(".kind", "differing")
        page.push(words=[WORDS[0] ^ 2**31, *WORDS[1:]])
        assert listed(page) == ["w0_8_24"]
        page.page.select_option(".kind", "all")
        page.page.select_option(".colour", "value")
        assert page.page.locator(".entry").all_inner_texts() == [
            "zero",
            "not zero",
            "all ones",
            "differing",
        ]
        tones = page.page.locator(
            "[data-word='2'][data-bit='0'], [data-word='0'][data-bit='2'], [data-word='0'][data-bit='31']"
        ).evaluate_all("all => all.map(one => one.style.getPropertyValue('--tone'))")
        assert len({*tones}) == 3
        assert "" in tones


def test_page_colours_by_law_and_by_flips(chrome: Browser) -> None:
    with BlankPage(chrome, RegisterView(small(), laws=known())) as page:
        tones = [
            option.get_attribute("value") for option in page.page.locator(".colour option").all()
        ]
        assert tones == ["", "evidence", "value", "law", "flips"]
        page.page.select_option(".colour", "law")
        assert (bit(page, 0, 4), bit(page, 2, 0)) == (
            "1, bit 4, size, law",
            "1, bit 0, bias, never exercised",
        )
        assert "never exercised" in page.page.inner_text(".legend")
        assert page.accessibility() == []
        page.page.select_option(".colour", "flips")
        assert (bit(page, 0, 4), bit(page, 0, 0)) == (
            "1, bit 4, size, flips in 50 % of the steps",
            "1, bit 0, mode, flips in 0 % of the steps",
        )
        shown = page.page.evaluate("""[4, 0].map(bit => getComputedStyle(
            document.querySelector(`[data-word='0'][data-bit='${bit}']`)).backgroundColor)""")
        assert shown[0] != shown[1]
        assert page.accessibility() == []
    with BlankPage(chrome, RegisterView(small())) as page:
        assert page.page.locator(".colour option").count() == 3


def test_page_copies_as_text(chrome: Browser) -> None:
    view = RegisterView(small())
    with BlankPage(chrome, view) as page:
        page.page.evaluate(
            "Object.defineProperty(navigator, 'clipboard', "
            "{value: {writeText: async text => { window.copied = text; }}})"
        )
        page.page.click("[data-word='0'][data-bit='7']")
        page.press("c")
        assert page.page.evaluate("copied") == SIZE
        page.page.select_option(".kind", "=K")
        page.page.focus(".fields")
        page.press("C")
        assert page.page.evaluate("copied") == "mode\tCFG[1:0]\t0x1 = on"
        assert status(page) == "copied 1 line"


CLIPBOARD = "Object.defineProperty(navigator, 'clipboard', {value: {writeText: async text => { window.copied = text; }}})"


def test_page_copies_no_formula(chrome: Browser) -> None:
    """What a spreadsheet takes from the clipboard: names and meanings of a stranger's table."""
    names = ["=cmd|'/c calc'!A1", "@a", "'=b", "a;=1", "a=1", "mode-"]
    rows = [
        {"offset": 0, "register": "A", "field": name, "lsb": 4 * at, "width": 4, "value": "enum:e"}
        for at, name in enumerate(names)
    ]
    registers = RegisterMap(rows, enums={"e": {1: "+1+1", 0: "-5"}})
    capture = Capture("a", "demo", "x", (Job("A", (1,)),), maps={"A": registers})
    with BlankPage(chrome, RegisterView(capture)) as page:
        page.page.evaluate(CLIPBOARD)
        page.page.focus(".fields")
        page.press("C")
        cells = [line.split("\t") for line in page.page.evaluate("copied").split("\n")]
        assert [cell[0] for cell in cells][:6] == [
            "'=cmd|'/c calc'!A1",
            "'@a",
            "''=b",
            "a;'=1",
            "a=1",
            "mode-",
        ]
        assert all(not re.match(r"\s*[=+@-]", cell) for line in cells for cell in line)
    with BlankPage(
        chrome,
        DiffView(
            replace(capture, name="=1+1"), replace(capture, name="=b", jobs=(Job("A", (0x20,)),))
        ),
    ) as page:
        page.page.evaluate(CLIPBOARD)
        page.page.focus("[data-index]")
        page.press("c")
        page.page.wait_for_function("() => window.copied")
        told = page.page.evaluate("copied")
        assert "cmd" in told
        assert all(not re.match(r"\s*[=+@-]", cell) for cell in re.split(r"[\t\n]", told))


def test_page_keyboard_wins_over_a_resting_pointer(chrome: Browser) -> None:
    view = RegisterView(wide(128))
    with BlankPage(chrome, view) as page:
        page.page.hover("[data-word='5'][data-bit='5']")
        page.press("Tab" + " PageDown" * 8)
        page.page.wait_for_timeout(150)
        assert status(page) == view.model.describe(64, 31)
        assert page.page.locator("[data-word='64'][data-bit='31']").is_visible()


def test_page_repaints_only_the_bit_that_changed(chrome: Browser) -> None:
    with BlankPage(chrome, RegisterView(small())) as page:
        page.page.evaluate("""() => { window.painted = [];
          new MutationObserver(all => all.forEach(one => painted.push(one.target.dataset.bit)))
            .observe(document.querySelector('[role=grid]'), {attributeFilter: ['aria-label'], subtree: true}) }""")
        page.push(words=[WORDS[0] ^ 2**9, *WORDS[1:]])
        assert page.page.evaluate("painted") == ["9"]


def test_page_of_many_words(chrome: Browser) -> None:
    with BlankPage(chrome, RegisterView(wide(128))) as page:
        assert page.page.locator("[data-word='127'][data-bit='0']").count() == 1
        assert page.errors == []


# ---- the browser itself ----


@pytest.mark.parametrize(
    ("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
def test_without_chromium(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setattr(blank_page.shutil, "which", lambda _: None)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="no Chromium: looked for chromium, "):
        chromium()
