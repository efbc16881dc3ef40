"""No cell of a table that npulab writes is a formula to a spreadsheet, and its reader gives
every text back.
"""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

import npulab
from npulab.analysis.draft.sheet import Sheet, cells, spelled
from npulab.models.sweeps import write_sweep
from npulab.quant.rules import rule as rule_of
from npulab.registers.formats import RegisterTable, read_csv
from npulab.registers.formats.tables import table_text
from npulab.registers.map import RegisterMap
from npulab.support.cells import guarded, guarded_comment, unguarded, unguarded_comment
from npulab.support.files import read_table

STARTS = (
    "=",
    "+",
    "-",
    "@",
    "\t",
    "\r",
    " =",
    "\t=",
    "'=",
    "''=",
    "'",
    "'-",
    '"=',
    "\uff1d",
    "\uff20",
    "-1",
    "+1",
    "-1=",
    "0x",
    "",
)
REST = (
    "",
    ";=1",
    "\t=1",
    ";\t'=1",
    "\n=1;",
    ';"=1"',
    "; -a",
    "1",
    "1+1",
    "cmd|'/c calc'!A1",
    "a",
    ",=1",
    ',"=1"',
    ";",
    '"',
    "1e5",
    ".5",
    " b",
    "'",
    "0x1F",
    "-",
)
texts = st.one_of(
    st.builds(str.__add__, st.sampled_from(STARTS), st.sampled_from(REST)),
    st.text("=+-@'\t\r ,;\"1a.xe#", max_size=8),
)


def formulas(text: str) -> list[str]:
    """What a spreadsheet would run of a table: it knows no comments, and cuts each line at its
    commas; or, in
    other countries, at semicolons or tabs."""
    found = []
    for line in re.split("[\r\n]", text):
        for cut in ",;\t":
            for cell in next(csv.reader([line], delimiter=cut), []):
                found += [cell] if cell and is_formula(cell) else []
    return found


def is_formula(cell: str) -> bool:
    signed = bool(re.match(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r]", cell))
    try:
        float(int(cell, 0) if "x" in cell else cell)
    except ValueError:
        return signed
    return signed and cell != cell.strip()  # a number is none, unless blanks are beside it


def of(text: str, comment: str = "") -> RegisterTable:
    """A table that has a text in every place of a text."""
    row = {
        "block": f"B{text}",
        "offset": "0",
        "register": text,
        "field": f"{text}f",
        "lsb": "0",
        "width": "4",
        "value": "enum:E",
        "feature": text,
        "evidence": text,
        "note": text,
    }
    return RegisterTable.of(
        [row], {"E": {1: text.strip() or "a", 2: "@two"}, "=E": {1: "a"}}, comment
    )


@given(texts)
@example("=cmd|'/c calc'!A1")
@example("' \t'=1;''=2")
def test_a_cell_comes_back_and_is_no_formula(text: str) -> None:
    assert unguarded(guarded(text)) == text
    assert not is_formula(guarded(text))
    assert unguarded_comment(guarded_comment(text)) == text


@pytest.mark.parametrize(
    "text",
    ["-1", "+1", "-0x1F", "+.5", "-1.5e-3", "-1.", "1", "a", "'a'", "'", "", "a=1", "*2", "#1"],
)
def test_numbers_and_plain_texts_are_written_as_they_are(text: str) -> None:
    assert guarded(text) == unguarded(text) == text
    assert table_text(("a", "b"), [{"a": -1, "b": text}]).splitlines()[1] == f"-1,{text}"


@settings(max_examples=12)
@given(texts, st.lists(texts, max_size=3))
@example("=1+1", ["(c) a", 'b,=1,"-c",@d', "-1,'=2"])
def test_a_table_comes_back_and_holds_no_formula(
    tmp_path_factory: pytest.TempPathFactory, text: str, lines: list[str]
) -> None:
    table = of(text, "\n".join(["by", *lines]))
    folder = tmp_path_factory.mktemp("cells")
    path, beside = folder / "a.csv", folder / "enums.csv"
    npulab.write_map(table, path)
    assert formulas(path.read_text()) == formulas(beside.read_text()) == []
    assert read_csv(path) == table
    registers = RegisterMap.read(path, features=table.features)
    assert registers.fields["field"].tolist()[0] == table.rows[0]["field"]
    assert [row["name"] for row in read_table(beside)] == ["a", *table.enums["E"].values()]
    draft = npulab.draft(path)
    assert draft.table == table
    before = path.read_bytes()
    draft.save()
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["", " ", "\t", "\n \t"])
def test_a_blank_name_of_an_enum_is_refused(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"enum E: got the blank name .* for raw 1, allowed is a name"
    ):
        RegisterTable.of([{"field": "f", "lsb": 0, "width": 4}], {"E": {0: "a", 1: name}})


def test_a_draft_keeps_the_bytes_of_lines_that_others_wrote_and_guards_its_own(
    tmp_path: Path,
) -> None:
    head = "block,offset,register,field,lsb,width,note\n"
    theirs = "B,0,R,=a,0,4,\"=1+1\"\nB,0,R,'-b,4,4,'text'\n"
    (tmp_path / "m.csv").write_text(head + theirs + "B,4,S,c,0,4,\n")
    draft = npulab.draft(tmp_path / "m.csv")
    assert [row["field"] for row in draft.table.rows] == ["=a", "-b", "c"]
    draft.edit("set_note", field="c", note="@sum(A1)")
    draft.save()
    assert (tmp_path / "m.csv").read_text() == head + theirs + "B,4,S,c,0,4,'@sum(A1)\n"
    assert npulab.draft(tmp_path / "m.csv").table.rows[2]["note"] == "@sum(A1)"


@given(texts.filter(lambda text: not re.search(r"[\t\r\n]", text)))
def test_a_cell_of_a_sheet_says_what_was_spelled(text: str) -> None:
    for quoted in (False, True):
        written = spelled(text, quoted, first=True)
        assert cells(written)[0].text == text
        assert not formulas(written)
    sheet = Sheet.parse("a,b\n1,2\n")
    assert sheet.changed(1, {"b": text}).rows[1]["b"] == text.strip()


def test_a_hostile_file_of_a_vendor_becomes_no_formula(tmp_path: Path) -> None:
    (tmp_path / "a.svd").write_text(
        "<device><name>D</name><licenseText>of X,=cmd|'/c calc'!A1,\"@a\"</licenseText><peripherals><peripheral><name>P</name>"
        "<baseAddress>0</baseAddress><registers><register><name>R</name><addressOffset>0</addressOffset><description>+cmd|x</description>"
        "<fields><field><name>=cmd|'/c calc'!A1</name><bitRange>[3:0]</bitRange><description>@sum</description></field></fields>"
        "</register></registers></peripheral></peripherals></device>"
    )
    table = npulab.read_map(tmp_path / "a.svd")
    npulab.write_map(table, tmp_path / "a.csv")
    assert "=cmd" in (tmp_path / "a.csv").read_text()
    assert formulas((tmp_path / "a.csv").read_text()) == []
    assert npulab.read_map(tmp_path / "a.csv") == table


def test_the_rule_of_a_sweep_of_models_is_no_formula(tmp_path: Path) -> None:
    rule = replace(rule_of("gemmlowp"), name="=1+1")
    write_sweep(tmp_path / "s", {"kernel": [1]}, rule)
    assert formulas((tmp_path / "s" / "parameters.csv").read_text()) == []
