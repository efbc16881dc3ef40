"""Tables as people read them: whole texts to the left, addresses in hex; the values stay what
they are.
"""

from __future__ import annotations

import pickle

import pandas as pd
from conftest import CAPTURES

import npulab
from npulab.registers.shown import Table

MESA, VENDOR = (npulab.load(CAPTURES / f"vivante/update4-{name}") for name in ("mesa", "vendor"))


def test_addresses_are_shown_in_hex_and_stay_numbers() -> None:
    table = npulab.diff(MESA, VENDOR)
    row = table[table.field == "kernel_address"]
    assert row.b.item() == 0x3348DFC0
    assert "<td style='text-align:left'>0x3348dfc0</td>" in row._repr_html_()
    assert "0x3348dfc0" in repr(row[["field", "b", "address"]])
    assert "862511040" not in table._repr_html_()
    fields = VENDOR.fields
    chosen = fields[fields.field.str.endswith("kernel_address")].reset_index(drop=True)
    assert chosen.value.tolist() == [0x3348DFC0]
    assert ">0x3348dfc0<" in chosen._repr_html_()
    assert ">0x3348dfc0<" in chosen.drop(columns=["task", "block"])._repr_html_()
    assert "0x800<" not in fields._repr_html_(), "what points nowhere stays a number"


def test_what_is_taken_of_a_table_is_one_and_equal() -> None:
    frame = pd.DataFrame({"name": ["x" * 90, "b"], "n": [1, 2]})
    table = Table(frame)
    assert type(table[table.n > 1].sort_values("n")) is Table
    assert type(pickle.loads(pickle.dumps(table))) is Table
    assert "x" * 90 in repr(table)
    pd.testing.assert_frame_equal(pd.DataFrame(table), frame)
    html = table._repr_html_()
    assert "<th style='text-align:left'>name</th>" in html
    assert "<th>n</th>" in html
    assert html.count("text-align:left") == 3


def test_a_value_that_is_not_there_is_a_dash() -> None:
    table = npulab.diff(MESA, VENDOR)
    assert "<td style='text-align:left'>–</td>" in table._repr_html_()
    assert table.b.isna().any()
    items = npulab.explain(VENDOR, 0)
    assert "<td>–</td>" in items._repr_html_(), "numbers stay on the right"
    assert "–" in repr(items)
    assert "NA" not in repr(items)


def test_odd_tables_are_shown_too() -> None:
    assert "<table" in Table()._repr_html_()
    several = Table(
        pd.DataFrame([[1, "a"]], columns=pd.MultiIndex.from_tuples([("a", "b"), ("a", "c")]))
    )
    assert "<td style='text-align:left'>a</td>" in several._repr_html_()
    named = Table({"a": ["<b>"]}).rename_axis("row")
    assert "&lt;b&gt;" in named._repr_html_()
    sets = Table({"field": ["x"], "a": [[16, 32]], "address": [True]})
    assert "[0x10, 0x20]" in sets._repr_html_()
    assert (
        "…" in Table({"n": range(500)})._repr_html_()
        or "..." in Table({"n": range(500)})._repr_html_()
    )


def test_only_what_points_into_memory_is_in_hex() -> None:
    shown = repr(
        Table(
            {
                "field": ["p", "q", "r", "s", "t"],
                "value": [16, 40, [32, 17], "gone", None],
                "address": [True, False, True, True, True],
            }
        )
    )
    assert "0x10" in shown
    assert " 40" in shown
    assert "[0x20, 0x11]" in shown
    assert "gone" in shown
    assert "0x28" not in shown
