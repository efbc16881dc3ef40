"""The diff view: its model with no browser, its widget with no front end, what a notebook keeps
of it.
"""

from __future__ import annotations

import fnmatch
import json
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pytest
from conftest import CAPTURES
from map_rows import map_rows
from refusals import refused

import npulab
import npulab.notebook.widgets
from npulab.captures.capture import Capture, CaptureSet, Job
from npulab.notebook.widgets import DiffModel, DiffView
from npulab.registers.map import RegisterMap

NASTY = "<script>alert('x')</script>|*a*`b`[c](http://d)"
REGISTERS = RegisterMap(
    map_rows(
        f"""
        block,offset,register,field,lsb,width,value,address
        NN,4,CFG,stride,4,3,,
        NN,4,CFG,mode,0,4,enum:mode,
        NN,0,SRC,base,0,32,,yes
        NN,8,{NASTY},{NASTY},8,8,signed,
        """
    ),
    enums={"mode": {1: NASTY}},
)


def capture(name: str, *words: int, simulated: bool = False) -> Capture:
    return Capture(
        name,
        "demo",
        "x",
        (Job("NN", np.array(words, np.uint32)),),
        {"input": name.encode()},
        maps={"NN": REGISTERS},
        provenance="simulated" if simulated else "board",
    )


A = capture("a", 0x1000, 0x25, 0x0100)
B = capture("b", 0x2000, 0x80000041, 0xFF01)


def test_rows_are_those_of_diff_by_place() -> None:
    model = DiffModel(A, B)
    table = npulab.diff(A, B)
    assert sorted(row.key for row in model.rows) == sorted(
        map(tuple, table.iloc[:, :4].to_numpy().tolist())
    )
    assert [row.field for row in model.rows] == [
        "base",
        "mode",
        "stride",
        "w1_7_25",
        "w2_0_8",
        NASTY,
    ]
    values = {
        (row["register"], row["field"]): (row["a"], row["b"]) for row in table.to_dict("records")
    }
    for row in model.rows:
        a, b = values[row.register, row.field]
        assert (row.a, row.b) == ((f"{a:#x}", f"{b:#x}") if row.address else (str(a), str(b)))
    base, mode, stride, automatic, _, signed = model.rows
    assert (base.hex_a, base.xor_text, base.address, base.meaning) == ("0x1000", "0x3000", True, "")
    assert (mode.hex_a, mode.hex_b, mode.meaning) == ("0x5", "0x1", f"5 → {NASTY}")
    assert (stride.bits, stride.xor, stride.automatic) == ("[6:4]", 6, False)
    assert (stride.binary, base.binary, automatic.binary[1]) == (["010", "100"], [], "1" + "0" * 24)
    assert (automatic.automatic, automatic.hex_b) == (True, "0x1000000")
    assert (signed.b, signed.meaning) == ("-1", "1 → -1")
    assert stride.line == (
        "job 0 NN CFG stride [6:4] · a 0x2 = 2 · b 0x4 = 4 · bits that differ 1, 2 · "
        "evidence unknown"
    )
    assert (
        model.summary == "5 fields differ, 1 address, 1 are equal; buffer input: 1 byte from 0x0 on"
    )


def test_filters_and_what_they_hide() -> None:
    model = DiffModel(A, B)

    def names() -> list[str]:
        return [model.rows[index].field for index in model.shown]

    assert (len(names()), model.hidden, model.selected) == (6, {}, 1), "no address is gone to first"
    model.addresses = False
    assert ("base" not in names(), model.hidden, model.selected) == (True, {"addresses": 1}, 1)
    model.query = "CFG*"
    assert (names(), model.hidden) == (
        ["mode", "stride", "w1_7_25"],
        {"addresses": 1, "of another name": 2},
    )
    model.unknown = True
    assert names() == ["w1_7_25"]
    assert model.hidden == {"addresses": 1, "with a name": 3, "of another name": 1}
    assert "; 1 shown, hidden: addresses 1, with a name 3, of another name 1;" in model.summary
    assert model.selection is not None
    assert model.selection.field == "w1_7_25"
    model.query, model.unknown, model.addresses = "no such", False, True
    assert (names(), model.selected, model.selection) == ([], -1, None)
    assert sum(model.hidden.values()) + len(names()) == model.count


@pytest.mark.parametrize(
    "query",
    [
        "stride",
        "STR",
        "str*",
        "*ide",
        "cfg.s*",
        "nn.cfg.*",
        "?ase",
        "[bm]*",
        "",
        "  ",
        "[",
        "*" * 300 + "x",
        "a" * 5000,
        "nn cfg",
    ],
)
def test_a_query_is_a_part_of_a_name_or_a_glob(query: str) -> None:
    model = DiffModel(A, B)
    model.query = query
    cut = query[:200].casefold().strip()
    glob = cut if set(cut) & set("*?[") else f"*{cut}*"
    wanted = [
        index
        for index, row in enumerate(model.rows)
        if any(
            fnmatchcase(name.casefold(), glob)
            for name in (row.field, f"{row.register}.{row.field}", f"NN.{row.register}.{row.field}")
        )
    ]
    assert model.shown == (wanted if cut else list(range(6)))


def test_markdown_has_what_is_shown_and_nothing_runs() -> None:
    model = DiffModel(A, B)
    lines = model.to_markdown().split("\n")
    assert lines[0].startswith("a demo/a, b demo/b: 5 fields differ, 1 address")
    assert [cell.strip() for cell in lines[2].strip("|").split(" | ")] == [
        "register",
        "field",
        "bits",
        "a",
        "b",
        "xor",
        "meaning",
    ]
    assert len(lines) == 4 + model.count
    assert len(set(map(len, lines[2:]))) == 1, "columns stand below each other"
    assert "<script" not in model.to_markdown()
    assert "](http" not in model.to_markdown()
    for line in lines[2:]:
        assert line.replace("\\|", "").count("|") == 8
    model.query = "stride"
    assert [
        cell.strip() for cell in model.to_markdown().split("\n")[-1].strip("| ").split(" | ")
    ] == ["NN CFG", "stride", "[6:4]", "0x2", "0x4", "0x6", "2 → 4"]
    model.query = "none"
    assert "\n" not in model.to_markdown()


def test_captures_of_register_writes() -> None:
    captures = [
        npulab.load(CAPTURES / "vivante" / name) for name in ("update4-vendor", "update4-mesa")
    ]
    model = DiffModel(*captures)
    assert [row.register for row in model.rows] == [
        "w5",
        "w6",
        "w7",
        "PA.SYSTEM_MODE",
        "PA.SYSTEM_MODE",
        "PS.NN_INST_ADDR",
        "GL.API_MODE",
    ]
    absent = model.rows[3]
    assert (absent.hex_a, absent.a, absent.xor, absent.b) == ("–", "–", None, "1")
    assert model.simulated is False
    assert DiffModel(captures[0], captures[0]).summary.startswith("0 fields differ, ")


def test_the_way_of_writing_is_a_row_too() -> None:
    maps = {
        "NN": RegisterMap(
            [
                {
                    "block": "NN",
                    "offset": at,
                    "register": name,
                    "field": name.lower(),
                    "lsb": 0,
                    "width": 8,
                }
                for at, name in ((0, "ONE"), (4, "TWO"))
            ],
            dense=False,
        )
    }
    sides = [
        Capture(name, "demo", "x", (Job.from_writes("NN", writes, maps["NN"]),), maps=maps)
        for name, writes in (
            ("a", [(0, 1), (4, 2), (64, 1)]),
            ("b", [(4, 3), (4, 2), (0, 5), (64, 2)]),
        )
    ]
    model = DiffModel(*sides)
    assert [(row.register, row.field) for row in model.rows] == [
        ("ONE", "one"),
        ("TWO", "(writes)"),
        ("w16", "w16_0_32"),
        ("", "(order)"),
    ]
    assert (model.rows[1].hex_a, model.rows[1].b, model.rows[1].meaning) == ("0x2", "0x3 0x2", "")
    assert model.rows[3].bits == ""


def test_two_sets() -> None:
    sides = CaptureSet((A, capture("c", 0x1000, 0x35, 0))), CaptureSet((B,))
    model = DiffModel(*sides)
    table = npulab.diff(*sides)
    assert model.count == len(table)
    rows = {row.field: row for row in model.rows}
    assert (rows["stride"].a, rows["stride"].hex_a, rows["stride"].b) == ("2, 3", "0x2, 0x3", "4")
    assert (rows["stride"].xor, rows["base"].xor) == (None, 0x3000)
    assert rows["stride"].differs == "always"
    assert model.title == "a 2 captures, b 1 capture"
    assert model.buffers == []
    one = DiffModel(A, sides[1])
    assert one.count == len(npulab.diff(A, sides[1]))


def test_what_cannot_be_compared_is_refused() -> None:
    refused(lambda: DiffModel(A, "b"))  # type: ignore[arg-type]
    refused(lambda: DiffModel(A, Capture("b", "other", "x", ())), "other")
    model = DiffModel(A, B)
    for value in (6, -2, "a", 1.5):
        refused(lambda value=value: setattr(model, "selected", value), "selected")
    model.query = "stride"
    model.selected = 0
    assert model.selected == 2, "a row that is hidden cannot be selected"


# ---- the widget, with no front end ----


def test_view_follows_what_the_page_sends() -> None:
    view = DiffView(A, B)
    view.set_state({"query": "cfg", "addresses": False})
    assert (view.shown, view.selected) == ([1, 2, 3], 1)
    view.set_state({"selected": 2})
    assert view.selection is not None
    assert view.selection.field == "stride"
    view.set_state({"unknown": True})
    assert (view.shown, view.selection.field) == ([3], "w1_7_25")
    assert view.markdown == view.to_markdown() == view.model.to_markdown()
    assert "w1_7_25" in view.markdown.split("\n")[-1]
    state: Any = {
        name: value for name, value in view.get_state().items() if not name.startswith("_")
    }
    state.pop("layout")
    json.dumps(state)
    assert view.rows[2]["line"] == view.model.rows[2].line


def test_repr_and_the_face_without_a_kernel() -> None:
    view = DiffView(A, capture("b", 0x1000, 0x25, 0x0101, simulated=True))
    assert repr(view) == (
        "DiffView(a demo/a, b demo/b, simulated: 1 field differs, 6 are equal; "
        "buffer input: 1 byte from 0x0 on)"
    )
    html = DiffModel(A, B)._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "<td style='text-align:left'>0x2</td><td style='text-align:left'>0x4</td>" in html
    long = RegisterMap(
        [
            {"offset": 4 * at, "register": f"w{at}", "field": "f", "lsb": 0, "width": 32}
            for at in range(200)
        ]
    )
    sides = [
        Capture(name, "demo", "x", (Job("NN", np.full(200, at, np.uint32)),), maps={"NN": long})
        for at, name in enumerate("ab")
    ]
    assert "… 142 more" in DiffModel(*sides)._repr_html_()


def test_differences_filter_as_asked() -> None:
    a, b = (npulab.load(CAPTURES / "vivante" / name) for name in ("sim-3x3-same", "sim-5x5-same"))
    b = b.with_fields(kernel_address=0x5000_0000, w2_6_1=1)
    found = npulab.diff(a, b)
    view = npulab.notebook.widgets.DiffView(a, b)

    def names() -> list[str]:
        return [view.rows[n]["cells"][1] for n in view.shown]

    view.addresses = True
    assert names() == found["field"].tolist()
    assert "kernel_address" in names()
    view.addresses = False
    assert names() == found["field"][~found["address"]].tolist()
    view.query = "in_image_*_size"
    assert names() == [name for name in found["field"] if fnmatch.fnmatch(name, "in_image_*_size")]
    view.query, view.unknown = "", True
    assert names() == ["w2_6_1"]
    assert "w2_6_1" in view.to_markdown()


def test_words_that_nobody_named_are_read_in_base_16() -> None:
    """They have no value beside the raw number; a named field has one."""
    model = DiffModel(capture("a", 0, 0x10, 20), capture("b", 0, 0x30, 33))
    named, unnamed = model.rows
    assert (named.field, named.meaning) == ("stride", "1 → 3")
    assert (unnamed.field, unnamed.hex_a, unnamed.hex_b) == ("w2_0_8", "0x14", "0x21")
    assert (unnamed.xor_text, unnamed.meaning) == ("0x35", "")
    assert " · a 0x14 · b 0x21 · bits that differ 0, 2, 4, 5 · " in unnamed.line
