"""Register maps that are being made."""

from __future__ import annotations

import ast
import csv
import json
import random
import re
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CAPTURES, shared
from hypothesis import given, settings, strategies as st
from round_trip import read

import npulab
import npulab.analysis.draft
import npulab.captures.target
import npulab.notebook.widgets
from npulab.analysis.draft import EDITS, Draft, draft
from npulab.analysis.draft.sheet import Sheet
from npulab.captures.capture import Capture, CaptureSet, Job
from npulab.notebook.widgets.map_editor import COLUMNS, MapModel
from npulab.registers.formats import RegisterTable, read_map, write_map
from npulab.registers.formats.formats import FORMATS
from npulab.registers.map import STATUS, RegisterMap
from npulab.support.cells import unguarded

TARGETS = Path(npulab.__file__).parent / "npus"
NN = TARGETS / "vivante/nn.csv"
# everything that people's tables have: a byte order mark, CRLF, comments, blank lines, quotes, hex
# and decimal
NASTY = """\
\ufeff# a copyright\r
\r
block,offset,register,field,lsb,width,at,value,address,evidence,note\r
NN,0X0C,"CFG",mode,0x0,0x2,,enum:mode,,K,"says ""on"", or off"\r
# what follows is a guess\r
NN,12,CFG,size,4,0x04,0,,,guess,low\r
 NN , 0x010 ,EXT,size,30,2,4,,,guess,\r
\r
NN,0x010,EXT,where,0,26,,raw*64,yes,B4,"64, always"\r
NN,0x1C,SUM,,0,32,,,,unknown,last\
"""
ENUMS = "enum,raw,name\nmode,0,off\nmode,1,on\nother,0x10,ten\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "registers.csv").write_bytes(NASTY.encode())
    (tmp_path / "enums.csv").write_bytes(ENUMS.encode())
    return tmp_path / "registers.csv"


@pytest.fixture
def nasty(path: Path) -> Draft:
    return draft(path)


def changes(made: Draft) -> list[str]:
    """The lines that go and come, of both files."""
    return [
        line.rstrip("\r\n")
        for line in re.findall(r"[^\r\n]*(?:\r\n|\n)", made.diff())
        if re.match(r"[-+](?!--|\+\+)", line)
    ]


# ---- the sheet ----


@given(st.lists(st.text('a"," #\'', max_size=8), min_size=1, max_size=5))
@settings(max_examples=150)
def test_cells_are_those_of_pythons_csv(parts: list[str]) -> None:
    text = ",".join(parts)
    sheet = Sheet.parse(text)
    (told,) = csv.reader([text]) if text else ([""],)
    row = [line for line in sheet.lines if line.row]
    assert [[cell.text for cell in line.cells] for line in row] == (
        [told] if text.strip() and not text.startswith("#") else []
    )


@given(st.text('a"\r\n,#', max_size=60))
@settings(max_examples=120)
def test_a_sheet_keeps_its_text(text: str) -> None:
    assert Sheet.parse(text).text == text
    assert Sheet.parse("\ufeff" + text).text == "\ufeff" + text


@given(
    st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=12), st.booleans()
)
def test_a_cell_is_read_as_it_was_written(text: str, quoted: bool) -> None:
    sheet = Sheet.parse('field,lsb\n"a",1\n' if quoted else "field,lsb\na,1\n").changed(
        1, {"field": text}
    )
    assert sheet.rows[1] == {"field": text.strip(), "lsb": "1"}
    written = [*csv.reader(sheet.text.splitlines())][1][0]
    assert unguarded(written).strip() == text.strip()


def test_a_cell_runs_over_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('field,lsb,width,note\na,0,4,"one\n# two\n\nthree"\nb,4,4,\n')
    made = draft(path)
    assert [item.name for item in made.map if not item.automatic] == ["a", "b"]
    made.rename("b", "c")
    assert changes(made) == ["-b,4,4,", "+c,4,4,"]


def test_an_open_quote_ends_with_the_file() -> None:
    sheet = Sheet.parse("field,lsb\n" + '"a,"\n' * 3 + '"' + "b,\n" * 200_000)
    assert len(sheet.lines) == 5


# ---- edits, and the lines they change ----


def edit(made: Draft, call: str) -> None:
    """Make the edit of a name, arguments and named arguments, as the tables below have them."""
    name, arguments, *named = call.split(" | ")
    more = ast.literal_eval(named[0]) if named else {}
    getattr(made, name)(*ast.literal_eval(f"[{arguments}]"), **more)


# an edit, its sentence, and the lines that it changes
EDITED = r"""
rename | 'mode', 'm,1'
  rename mode to m,1
  -NN,0X0C,"CFG",mode,0x0,0x2,,enum:mode,,K,"says ""on"", or off"
  +NN,0X0C,"CFG","m,1",0x0,0x2,,enum:mode,,K,"says ""on"", or off"

rename | 'size', 'depth'
  rename size to depth
  -NN,12,CFG,size,4,0x04,0,,,guess,low
  - NN , 0x010 ,EXT,size,30,2,4,,,guess,
  +NN,12,CFG,depth,4,0x04,0,,,guess,low
  + NN , 0x010 ,EXT,depth,30,2,4,,,guess,

rename | 'w7_0_32', 'sum'
  rename w7_0_32 to sum
  -NN,0x1C,SUM,,0,32,,,,unknown,last
  +NN,0x1C,SUM,sum,0,32,,,,unknown,last

rename | 'w3_8_24', 'rest'
  rename w3_8_24 to rest
  +NN,12,CFG,rest,8,0x18,,,,unknown,

rename | 'w5_0_32', 'five'
  rename w5_0_32 to five
  +NN,0x014,,five,0,32,,,,unknown,

rename_register | 'CFG', 'CONF'
  rename register CFG to CONF
  -NN,0X0C,"CFG",mode,0x0,0x2,,enum:mode,,K,"says ""on"", or off"
  +NN,0X0C,"CONF",mode,0x0,0x2,,enum:mode,,K,"says ""on"", or off"
  -NN,12,CFG,size,4,0x04,0,,,guess,low
  +NN,12,CONF,size,4,0x04,0,,,guess,low

rename_register | 'w1', 'TWO'
  rename register w1 to TWO
  +NN,0X04,TWO,,0x0,0x20,,,,unknown,

set_evidence | 'size', 'C:a'
  set evidence of size to C:a
  -NN,12,CFG,size,4,0x04,0,,,guess,low
  - NN , 0x010 ,EXT,size,30,2,4,,,guess,
  +NN,12,CFG,size,4,0x04,0,,,C:a,low
  + NN , 0x010 ,EXT,size,30,2,4,,,C:a,

set_note | 'size', 'a "low", half'
  set note of size to 'a "low", half'
  -NN,12,CFG,size,4,0x04,0,,,guess,low
  +NN,12,CFG,size,4,0x04,0,,,guess,"a ""low"", half"

set_address | 'size'
  set size an address
  -NN,12,CFG,size,4,0x04,0,,,guess,low
  - NN , 0x010 ,EXT,size,30,2,4,,,guess,
  +NN,12,CFG,size,4,0x04,0,,yes,guess,low
  + NN , 0x010 ,EXT,size,30,2,4,,yes,guess,

set_address | 'where', False
  set where no address
  -NN,0x010,EXT,where,0,26,,raw*64,yes,B4,"64, always"
  +NN,0x010,EXT,where,0,26,,raw*64,,B4,"64, always"

retype | 'where', 'raw*4'
  retype where as raw*4
  -NN,0x010,EXT,where,0,26,,raw*64,yes,B4,"64, always"
  +NN,0x010,EXT,where,0,26,,raw*4,yes,B4,"64, always"

retype | 'mode', 'enum:mode', {0: '', 1: 'yes', 3: 'three'}
  retype mode as enum:mode (0 without a name, 1 yes, 3 three)
  -mode,0,off
  -mode,1,on
  +mode,1,yes
  +mode,3,three

retype | 'size' | {'names': {5: 'five'}}
  retype size as enum:size (5 five)
  -NN,12,CFG,size,4,0x04,0,,,guess,low
  +NN,12,CFG,size,4,0x04,0,enum:size,,guess,low
  +size,5,five

split | 'mode', 1, ['m', '']
  split mode into m (1), no name (1)
  -NN,0X0C,"CFG",mode,0x0,0x2,,enum:mode,,K,"says ""on"", or off"
  +NN,0X0C,"CFG",m,0x0,0x1,,,,K,"says ""on"", or off"
  +NN,0X0C,"CFG",,0x1,0x1,,,,K,

split | 'w3_8_24' | {'widths': [1, 23]}
  split w3_8_24 into no name (1), no name (23)
  +NN,12,CFG,,8,0x01,,,,unknown,
  +NN,12,CFG,,9,0x17,,,,unknown,

split | 'size', 5
  split size into size (5), no name (1)
  - NN , 0x010 ,EXT,size,30,2,4,,,guess,
  + NN , 0x010 ,EXT,size,30,1,4,,,guess,
  +NN,0x010,EXT,,31,1,,,,guess,

join | 'w3_2_2', 'mode'
  join mode and w3_2_2 as mode
  -NN,0X0C,"CFG",mode,0x0,0x2,,enum:mode,,K,"says ""on"", or off"
  +NN,0X0C,"CFG",mode,0x0,0x4,,enum:mode,,K,"says ""on"", or off"

join | 'mode', 'where', 'both'
  join mode and where as both
  -NN,0X0C,"CFG",mode,0x0,0x2,,enum:mode,,K,"says ""on"", or off"
  +NN,0X0C,"CFG",both,0x0,0x2,0,,yes,K,"says ""on"", or off"
  -NN,0x010,EXT,where,0,26,,raw*64,yes,B4,"64, always"
  +NN,0x010,EXT,both,0,26,2,,,K,"64, always"

add | 'flag', 'SUM', 4, 2
  add flag in SUM at bits 4 to 5
  -NN,0x1C,SUM,,0,32,,,,unknown,last
  +NN,0x1C,SUM,,0,4,,,,unknown,last
  +NN,0x1C,SUM,flag,4,2,,,,guess,
  +NN,0x1C,SUM,,6,26,,,,unknown,

add | 'new', 'EXTRA', 31, 1 | {'offset': 32, 'note': 'n'}
  add new in EXTRA at bit 31
  +NN,0x20,EXTRA,new,31,1,,,,guess,n

remove | 'where'
  remove where
  -NN,0x010,EXT,where,0,26,,raw*64,yes,B4,"64, always"
  +NN,0x010,EXT,,0,26,,,,unknown,""

move | 'where', 'EXT', 2
  move where to EXT bit 2
  -NN,0x010,EXT,where,0,26,,raw*64,yes,B4,"64, always"
  +NN,0x010,EXT,where,2,26,,raw*64,yes,B4,"64, always"

move | 'mode', 'SUM', 30
  move mode to SUM bit 30
  -NN,0X0C,"CFG",mode,0x0,0x2,,enum:mode,,K,"says ""on"", or off"
  -NN,0x1C,SUM,,0,32,,,,unknown,last
  +NN,0x1C,SUM,,0,30,,,,unknown,last
  +NN,0x1C,SUM,mode,30,2,,enum:mode,,K,"says ""on"", or off"

resize | 'mode', 3
  resize mode from 2 to 3 bits
  -NN,0X0C,"CFG",mode,0x0,0x2,,enum:mode,,K,"says ""on"", or off"
  +NN,0X0C,"CFG",mode,0x0,0x3,,enum:mode,,K,"says ""on"", or off"

resize | 'mode', 31 | {'shift': True}
  resize mode from 2 to 31 bits, with everything behind it
  -NN,0X0C,"CFG",mode,0x0,0x2,,enum:mode,,K,"says ""on"", or off"
  +NN,0X0C,"CFG",mode,0x0,0x1f,,enum:mode,,K,"says ""on"", or off"
  -NN,12,CFG,size,4,0x04,0,,,guess,low
  +NN,16,EXT,size,0,0x04,0,,,guess,low
  -NN,0x010,EXT,where,0,26,,raw*64,yes,B4,"64, always"
  +NN,0x010,EXT,where,4,26,,raw*64,yes,B4,"64, always"

shift | 'where', 3
  shift where up by 3 bits, out of w4_26_4
  -NN,0x010,EXT,where,0,26,,raw*64,yes,B4,"64, always"
  +NN,0x010,EXT,where,3,26,,raw*64,yes,B4,"64, always"
"""


@pytest.mark.parametrize("case", EDITED.strip().split("\n\n"))
def test_an_edit_changes_its_lines_and_no_others(nasty: Draft, case: str) -> None:
    call, sentence, *lines = case.split("\n  ")
    edit(nasty, call)
    assert nasty.steps == [sentence]
    text = nasty._table.sheet.text
    *whole, last = text.splitlines(keepends=True)
    assert all(line.endswith("\r\n") for line in whole)
    assert not last.endswith("\n")
    # a line that becomes or was the last one differs in its end
    ends = {sign + line for sign in "-+" for line in (last, NASTY.splitlines()[-1])}
    assert {*changes(nasty)} - ends == {*lines} - ends
    before = Counter([*NASTY.splitlines(), *ENUMS.splitlines()])
    after = Counter([*text.splitlines(), *nasty._table.enums.text.splitlines()])
    assert {*(before - after), *(after - before)} == {line[1:] for line in lines}
    assert nasty.undo() == sentence
    assert nasty.diff() == ""
    nasty.redo()
    nasty.save()
    assert nasty.diff() == ""
    again = draft(nasty.path)
    assert [*again.map] == [*nasty.map] == [*RegisterMap.read(nasty.path)]
    assert again.table == nasty.table == read_map(nasty.path)


# an edit => the refusal, a regular expression
REFUSED = r"""
rename | 'nosuch', 'a' => ^got field 'nosuch', the map has
rename | 'mode', 'size' => ^register map, register CFG field size: got a piece with column 'at' blank, allowed is a number, because other pieces of the field have one$
rename | 'where', 'size' => got a piece with column 'at' blank
rename | 'mode', 'w3_0_2' => ^rename mode: got 'w3_0_2', allowed is a name that is neither blank nor automatic \(like w18_27_2\)$
rename | 'mode', ' ' => ^rename mode: got '', allowed is a name
rename | 'mode', 'a\nb' => ^got 'a\\nb', allowed is one line of text, without '\\n'$
rename | 'mode', 'a\ud800' => allowed is one line of text
set_note | 'mode', 'a\u2028b' => allowed is one line of text
rename_register | 'CFG', 'SUM' => ^rename register CFG: got 'SUM', which the register at 0x1c is called
rename_register | 'NO', 'SUM' => ^register: got 'NO', the map has w0, w1, w2, CFG, EXT, w5, w6, SUM$
retype | 'mode', 'raw/2' => ^register map, register CFG field mode: value 'raw/2': got '/', allowed is blank, or signed
retype | 'mode', 'enum:no' => ^register map, register CFG field mode: got enum 'no', known are mode, other$
retype | 'mode', 'f32' => got a field of 2 bits, allowed is one of 32 bits for f32$
retype | 'mode' | {'names': {4: 'four'}} => ^retype mode: got a name for raw 4, allowed is 0 to 3 \(2 bits\)$
retype | 'mode', 'signed', {1: 'a'} => ^retype mode: got value 'signed' with names of values, allowed with them is enum:NAME or no value$
retype | 'mode', 'enum:mode', {2: 'on'} => ^enums, line 4: got .* each raw and each name once$
split | 'mode', 2 => ^split mode: got widths 2, 0, allowed are at least two that add up to 2$
split | 'mode' | {'widths': [1, 2]} => ^split mode: got widths 1, 2, allowed
split | 'mode' => ^split mode: got neither at nor widths, allowed is either at or widths$
split | 'mode', 0.5 => ^split: got widths '\[0.5, 1.5\]', allowed is a whole number above -2\*\*32 and below 2\*\*32$
split | 'mode', 1, ['a'] => ^split mode: got 1 names, allowed are 2, one for each part$
split | 'mode', 1, ['a', 'a'] => ^register map: field a stands twice in register CFG of block 'NN'
join | 'mode', 'mode' => ^join mode and mode: got the same field, allowed are two fields of one block$
join | 'w3_2_2', 'w3_8_24' => ^join w3_2_2, w3_8_24: got '', allowed is a name
join | 'where', 'w7_0_32', 'x' => field x: value 'raw\*64': got a field of 58 bits, allowed is one whose values fit into 63 bits
add | 'x', 'CFG', 5, 1 => ^register map: fields (x and size|size and x) overlap at register CFG bit 5$
add | 'x', 'CFG', 30, 3 => field 'x' of register 'CFG': got lsb 30 width 3, allowed is inside bits 0 to 31$
add | 'x', 8, 0, 1 => ^register: got 8, the map has
add | 'x', 'N', 0, 1 | {'offset': 3} => got offset 0x3, allowed is a multiple of 4 from 0$
add | 'x', 'N', 2, 1 | {'offset': 12} => ^add: got register 'N' at offset 0xc, allowed is 'CFG', the register at that offset$
remove | 'w3_2_2' => ^remove w3_2_2: got bits without a name, allowed is a field that has one$
move | 'size', 'SUM', 0 => ^move size: got a field of 2 runs, allowed is a field of one run of bits$
move | 'mode', 'CFG', 3 => overlap at register CFG bit 4$
resize | 'mode', 5 => overlap at register CFG bit 4$
resize | 'mode', 0 => ^resize mode: got 0 bits, allowed is 1 to 32$
resize | 'where', 1099511627776 => ^resize: got width '1099511627776', allowed is a whole number above -2\*\*32 and below 2\*\*32$
shift | 'where', 5 => ^shift where: got 5 bits, allowed are 1 or more bits that a run above it in its register can give$
shift | 'where', 2, 'size' => ^shift where: got 2 bits out of size, allowed are 1 or more bits that a run above it
shift | 'where', -1 => ^shift where: got -1 bits, allowed are 1 or more bits that a run below it
edit | 'explode' => ^edit: got 'explode', allowed is one of rename,
edit | 'rename' | {'field': 'mode'} => ^rename: got no argument 'name', allowed are field, name$
edit | 'rename' | {'field': 'mode', 'name': 'x', 'more': 1} => ^rename: got argument 'more', allowed are field, name$
edit | 'rename' | {'field': 'mode', 'name': 7} => ^rename: got name '7', allowed is text of at most 4096 letters$
edit | 'split' | {'field': 'mode', 'widths': [True, 1]} => ^split: got widths '\[True, 1\]', allowed is a whole number above -2\*\*32 and below 2\*\*32$
edit | 'retype' | {'field': 'mode', 'names': {'x': 'y'}} => ^retype: got names .* allowed is names by raw
"""


@pytest.mark.parametrize("case", REFUSED.strip("\n").split("\n"))
def test_a_refused_edit_changes_nothing(nasty: Draft, case: str) -> None:
    call, message = case.split(" => ")
    told: list[Draft] = []
    nasty.observe(told.append)
    with pytest.raises((ValueError, LookupError), match=message):
        edit(nasty, call)
    if len(nasty.steps) == 1:
        nasty.undo()
    assert (nasty.diff(), nasty.steps) == ("", [])
    assert nasty._table.sheet.text == NASTY


def test_every_edit_has_a_method() -> None:
    assert {name for name in EDITS if not hasattr(Draft, name)} == set()


def test_the_same_again_is_no_step(nasty: Draft) -> None:
    nasty.rename("mode", "mode")
    nasty.set_note("size", "low")
    assert nasty.steps == []


def test_there_and_back_gives_the_bytes_again(nasty: Draft) -> None:
    nasty.rename("mode", "m")
    nasty.rename("m", "mode")
    nasty.resize("mode", 3)
    nasty.resize("mode", 2)
    nasty.set_note("mode", "x")
    nasty.set_note("mode", 'says "on", or off')
    assert (nasty.diff(), len(nasty.steps)) == ("", 6)


def test_names_go_where_their_neighbours_are(path: Path) -> None:
    beside = path.parent / "enums.csv"
    beside.write_text('# enums\nenum,raw,name\nmode,0x01,"on"\nother,0x10,ten\n\n# the end\n')
    made = draft(path)
    made.retype("mode", "enum:mode", {3: "three", 0: "off", 2: "two"})
    made.retype("size", "enum:size", {9: "nine"})
    assert made._table.enums.text == (
        '# enums\nenum,raw,name\nmode,0x00,"off"\nmode,0x01,"on"\nmode,0x02,"two"\n'
        'mode,0x03,"three"\nother,0x10,ten\nsize,9,nine\n\n# the end\n'
    )
    made.save()
    assert draft(path).table == made.table == read_map(path)


def test_a_missing_column_is_added_to_every_row(tmp_path: Path) -> None:
    path = tmp_path / "small.csv"
    path.write_text("field,lsb,width\n# said\na,0,4\nb,4,4")
    made = draft(path)
    made.set_note("b", "n")
    assert made._table.sheet.text == "field,lsb,width,note\n# said\na,0,4,\nb,4,4,n"
    made.undo()
    made.join("a", "w0_8_24", "c")
    assert made._table.sheet.text == "field,lsb,width,at\n# said\nc,0,4,0\nb,4,4,\nc,8,24,4"


def test_new_rows_in_a_table_with_the_highest_bits_first(tmp_path: Path) -> None:
    path = tmp_path / "down.csv"
    path.write_text("field,offset,lsb,width\na,0,24,4\nb,0,8,4\nc,0,0,4\nd,4,31,1\n")
    made = draft(path)
    made.rename("w0_12_12", "x")
    made.rename("w0_28_4", "y")
    made.rename("w0_4_4", "z")
    made.rename("w1_0_31", "e")
    assert [line.split(",")[0] for line in made._table.sheet.text.splitlines()[1:]] == [*"yaxbzcde"]


def test_rows_of_other_features_go_along(tmp_path: Path) -> None:
    seven, eight = (draft(NN, features=[name]) for name in ("nn_v7", "nn_v8"))
    for made in (seven, eight):
        made.rename("in_image_x_offset", "x_offset")
        assert made._table.select(["nn_v8"]).x_offset.bits == "2[2:0] 4[16] 18[29]"
    assert seven.diff() == eight.diff()
    with pytest.raises(
        ValueError,
        match=r"^split post_multiplier: got a draft without feature nn_v8, allowed is a draft with it, "
        r"because it adds a piece to post_multiplier$",
    ):
        seven.split("post_multiplier", 1)
    with pytest.raises(ValueError, match=r"overlap at register w22 bit 1[89]$"):
        draft(NN).add("x", "w22", 18, 2)
    seven.add("x", "w22", 18, 2)
    assert seven._table.select(["nn_v8"]).post_multiplier.width == 23
    assert seven.map.x.bits == "22[19:18]"


def test_one_piece_here_and_another_on_other_chips(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("field,offset,lsb,width,at,feature\na,0,0,4,0,\nb,0,4,4,0,\na,4,0,4,4,new\n")
    made = draft(path)
    made.resize("b", 5)
    made.move("b", "w0", 8)
    made.rename("a", "c")
    assert made._table.sheet.text.splitlines()[1:] == ["c,0,0,4,0,", "b,0,8,5,0,", "c,4,0,4,4,new"]
    with pytest.raises(
        ValueError,
        match=r"^join c and b: got a draft without feature new, allowed is a draft with it",
    ):
        made.join("c", "b", "d")
    with pytest.raises(
        ValueError,
        match=r"got pieces at bit 0 \(width 5\) and bit 4 of the field's value, allowed are pieces that do not overlap$",
    ):
        made.resize("c", 5)


# ---- steps ----


def random_edits(made: Draft, count: int, seed: int) -> int:
    """So many edits of all kinds, of which the draft refuses some; gives how many it made."""
    choose, before = random.Random(seed), len(made.steps)
    for number in range(count):
        fields = [made.map.key(item) for item in made.map]
        a, b, bits = choose.choice(fields), choose.choice(fields), choose.randint(1, 12)
        name, register = f"n{number}", choose.choice(made.map.registers)[2]
        width = made.map[a].width
        do, *arguments = choose.choice(
            [
                ("rename", a, name),
                ("remove", a),
                ("join", a, b, name),
                ("split", a, min(bits, width)),
                ("split", a, [width // 3, width // 2], ["", name, ""]),
                ("retype", a, choose.choice(["signed", "raw*4", "", "f32"])),
                ("retype", a, "", {bits: name, 0: "none"}),
                ("set_evidence", a, "K"),
                ("set_note", a, f"of {b}"),
                ("set_address", a),
                ("set_address", a, False),
                ("add", name, register, 2 * bits, bits),
                ("move", a, register, bits),
                ("rename_register", register, name),
                ("resize", a, bits),
                ("pushed", a, max(1, width + bits - 6)),
                ("shift", a, bits - 6),
            ]
        )
        try:
            if do == "pushed":
                made.resize(*arguments, shift=True)
            else:
                getattr(made, do)(*arguments)
        except (ValueError, LookupError):
            continue
    return len(made.steps) - before


def accounted(registers: RegisterMap) -> None:
    """Every bit has one field, and words come back from their values."""
    words = (
        np.random.RandomState(1)
        .randint(0, 2**32, (3, len(registers)), dtype=np.uint64)
        .astype(np.uint32)
    )
    owned = np.zeros((len(registers), 32), int)
    for item in registers:
        for piece in item.pieces:
            owned[piece.word, piece.lsb : piece.lsb + piece.width] += 1
    assert (owned == 1).all()
    assert np.array_equal(registers.encode(registers.decode(words, raw=True), raw=True), words)


ARRAYS = """block,offset,register,field,lsb,width,at,value,evidence,note,bits,count,stride,access
L,0x8000,,group layer,,,,sparse,guess,,,4 8,0x1000 4,
L,0x0,CTRL,mode,1,4,,,unknown,,,,,
L,0x10,TAP,gain,0,5,,,guess,,,4,8,
L,0x10,TAP,sign,7,1,,,K,,,4,8,
L,0x40,PTR,low,0,40,,,K,,64,,,
L,0x50,LUT,entry,0,4,,signed,K,,8,3 2,4 1,
L,0x60,H,h,2,9,,,K,,16,5,2,
L,0x70,SPLIT,part,0,8,0,,K,,,2,4,
L,0x80,SPLITB,part,0,8,8,,K,,,2,4,
M,0x10,STAT,done,0,1,,,K,,,,,ro
"""


def arrays(folder: Path) -> Path:
    (folder / "arrays").mkdir(exist_ok=True)
    path = folder / "arrays/registers.csv"
    path.write_text(ARRAYS)
    return path


def check_random(source: Any, folder: Path, count: int, seed: int, **options: Any) -> None:
    made = draft(source, **options)
    first = made._table
    texts = [first.sheet.text]
    made.observe(lambda one: texts.append(one._table.sheet.text))
    assert random_edits(made, count, seed) > count // 6
    accounted(made.map)
    last, edits, steps = made._table, json.loads(json.dumps(made.edits)), made.steps
    again = draft(source, **options)
    again.replay(edits)
    assert (again.steps, again._table.sheet.text, again._table.enums.text) == (
        steps,
        last.sheet.text,
        last.enums.text,
    )
    folder.mkdir(exist_ok=True)
    path = folder / f"random{seed}.csv"
    for old in (path, folder / "enums.csv"):
        old.unlink(missing_ok=True)
    again.save(path)
    kept = {"features": made.map.features, "dense": made.map.dense}
    assert [*RegisterMap.read(path, **kept)] == [*made.map]
    # a line that still stands says the same in the same words
    lines = {line.key: line for line in last.sheet.lines}
    assert all(
        lines[line.key].text == line.text
        for line in first.sheet.lines
        if line.key in lines
        and lines[line.key].row
        and [c.text for c in lines[line.key].cells] == [c.text for c in line.cells]
    )
    comments = [line.text for line in first.sheet.lines if not line.row]
    assert [line.text for line in last.sheet.lines if not line.row] == comments
    while made.undo():
        pass
    assert (made._table, made.undone[:2]) == (first, steps[:2])
    while made.redo():
        pass
    assert made._table == last
    assert texts[-1] == last.sheet.text


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(3))
def test_random_edits(path: Path, tmp_path: Path, seed: int) -> None:
    check_random(path, tmp_path / "out", 30, seed)
    check_random(NN, tmp_path / "out", 12, seed, features=["nn_v7"])
    check_random(9, tmp_path / "out", 20, seed, block="NN")
    check_random(arrays(tmp_path), tmp_path / "out", 20, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 20))
def test_many_random_edits(path: Path, tmp_path: Path, seed: int) -> None:
    check_random(path, tmp_path / "out", 200, seed)
    check_random(NN, tmp_path / "out", 120, seed, features=["nn_v8"])
    check_random(9, tmp_path / "out", 50, seed, block="NN")
    check_random(arrays(tmp_path), tmp_path / "out", 200, seed)
    check_random(TARGETS / "ane/h13.csv", tmp_path / "out", 60, seed, dense=False)
    check_random(npulab.target("vivante").tables["TP"], tmp_path / "out", 60, seed)


def test_replay_is_all_or_nothing(nasty: Draft) -> None:
    nasty.rename("mode", "m")
    with pytest.raises(LookupError, match=r"^edit 2: got field 'mode', the map has "):
        nasty.replay([{"do": "remove", "field": "m"}, {"do": "remove", "field": "mode"}])
    for wrong in (
        [7],
        [{}],
        [{"do": ["rename"]}],
        [{"do": "rename", "field": {}, "name": "x"}],
        ["rename"],
    ):
        with pytest.raises(ValueError, match=r"^edit 1: "):
            nasty.replay(wrong)
    assert nasty.steps == ["rename mode to m"]
    assert nasty.edits == [{"do": "rename", "field": "mode", "name": "m"}]


def test_edits_are_plain_json(nasty: Draft) -> None:
    nasty.split("mode", np.int64(1), ("a", "b"))
    nasty.add("c", np.int32(7), np.uint8(0), 4)
    nasty.retype("a", "enum:mode", {np.int64(1): "yes"})
    nasty.resize("c", 3, shift=True)
    nasty.edit("set_note", field="c", note="")
    nasty.edit("retype", field="b", value="", names={})
    assert (
        json.loads(json.dumps(nasty.edits))
        == nasty.edits
        == [
            {"do": "split", "field": "mode", "widths": [1, 1], "names": ["a", "b"]},
            {"do": "add", "name": "c", "register": 7, "lsb": 0, "width": 4},
            {"do": "retype", "field": "a", "value": "enum:mode", "names": {"1": "yes"}},
            {"do": "resize", "field": "c", "width": 3, "shift": True},
        ]
    )


def test_only_the_map_of_now_is_kept(nasty: Draft) -> None:
    for number in range(5):
        nasty.rename("where" if not number else f"a{number - 1}", f"a{number}")
    nasty.undo()
    nasty.undo()
    nasty.redo()
    assert "a3" in nasty.map
    for table in (nasty._first, *(step.table for step in nasty._made[:3])):
        assert not {"map", "rows"} & {*vars(table), *vars(table.sheet)}


def test_a_new_edit_ends_redo(nasty: Draft) -> None:
    nasty.rename("mode", "m")
    nasty.undo()
    assert nasty.undone == ["rename mode to m"]
    nasty.set_note("mode", "n")
    assert (nasty.undone, nasty.redo(), nasty.steps) == ([], "", ["set note of mode to 'n'"])
    nasty.undo()
    assert nasty.undo() == ""


def test_observers_are_told_once_each(nasty: Draft) -> None:
    told: list[list[str]] = []

    def see(one: Draft) -> None:
        told.append(one.steps)

    nasty.observe(see)
    nasty.observe(see)
    nasty.rename("mode", "m")
    nasty.undo()
    nasty.replay([{"do": "remove", "field": "mode"}, {"do": "remove", "field": "where"}])
    nasty.unobserve(see)
    nasty.undo()
    assert told == [["rename mode to m"], [], ["remove mode", "remove where"]]


def test_the_face_names_the_last_steps(nasty: Draft) -> None:
    nasty.set_note("mode", "<b>")
    for number in range(70):
        nasty.set_evidence("mode", f"C:{number}")
    face = nasty._repr_html_()
    assert (face.count("<li>"), "<ol start='12'>" in face, "<b>" in face) == (60, True, False)
    assert face.endswith("<li>set evidence of mode to C:69</li></ol>")


def test_new_registers_of_several_blocks() -> None:
    rows = [
        {"block": block, "offset": 0, "register": "R", "field": "a", "lsb": 0, "width": 1}
        for block in "AB"
    ]
    made = draft(RegisterMap(rows))
    made.add("b", "B.S", 3, 2, offset=8)
    made.add("c", "T.U", 0, 1, offset=4)
    made.rename_register("B.R", "Q")
    assert [register for register in made.map.registers if register[2][0] != "w"] == [
        ("A", 0, "R"),
        ("A", 4, "T.U"),
        ("B", 0, "Q"),
        ("B", 8, "S"),
    ]
    with pytest.raises(LookupError, match=r"^register: got 'A.w2', the map has R, T.U, Q, w1, S$"):
        made.add("d", "A.w2", 0, 1)
    made.undo()
    with pytest.raises(LookupError, match=r"^register: got 'R', the map has A.R, B.R$"):
        made.rename_register("R", "P")


# ---- sources ----


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["vivante", "rockchip", "ane"])
def test_a_draft_of_a_shipped_map_is_that_map(name: str) -> None:
    for table in [*npulab.target(name).tables.values()][:2]:
        made = draft(table)
        assert [*made.map] == [*table]
        assert made.map.registers == table.registers
        assert made.map.lint() == table.lint()


def bits_of(registers: RegisterMap) -> list[tuple[Any, ...]]:
    """What a map says of its bits: each field's block, register, name and pieces."""
    return [(item.block, item.register, item.name, item.pieces) for item in registers]


def parts_of(names: list[str], all_chips: bool) -> dict[str, RegisterMap]:
    """Each block of the maps of some NPUs, of all their chips or of the first and last; those
    that are alike once.
    """
    out: dict[tuple[Any, ...], tuple[str, RegisterMap]] = {}
    for name in names:
        chips = [*npulab.target(name).chips]
        for chip in chips if all_chips else dict.fromkeys([chips[0], chips[-1]]):
            for registers in npulab.target(name).maps(chip).values():
                for block in dict.fromkeys(block for block, _, _ in registers.registers):
                    part = registers.of_block(block)
                    out.setdefault(tuple(bits_of(part)), (f"{name} {chip} {block}", part))
    return dict(out.values())


def written_and_read(table: RegisterTable, to: str, folder: Path) -> RegisterMap:
    """The map of the file of a format that a table makes, for a reader who knows nothing else of
    it.
    """
    folder.mkdir()
    path = folder / f"map{FORMATS[to].suffix}"
    write_map(table, path, to=to)
    return read_map(path).map()


def test_what_a_draft_of_a_map_writes_has_the_names_of_the_map(tmp_path: Path) -> None:
    parts = parts_of(["vivante", "ethosu"], all_chips=False)
    parts.pop("vivante vipnano-qi-a311d TP")
    for label, part in parts.items():
        made = draft(part)
        assert bits_of(made.map) == bits_of(made.table.map()) == bits_of(part), label
        assert made.map.features == part.features, label
    few = [parts["vivante vipnano-qi-a311d STATE"], parts["ethosu ethos-u55-32 DMA"]]
    for number, part in enumerate(few):
        for to in ("csv", "xml", "svd", "struct", "macros"):
            assert bits_of(
                written_and_read(draft(part).table, to, tmp_path / f"{number}-{to}")
            ) == bits_of(part), to
    write_map(draft(few[0]).table, tmp_path / "pack.h", to="pack")
    pack = (tmp_path / "pack.h").read_text()
    assert all(f" {item.name};" in pack for item in few[0] if item.automatic)


@pytest.mark.long
@pytest.mark.parametrize("name", npulab.targets())
def test_what_a_draft_of_any_block_writes_has_its_names(name: str, tmp_path: Path) -> None:
    for number, (label, part) in enumerate(parts_of([name], all_chips=True).items()):
        table = draft(part).table
        assert bits_of(table.map()) == bits_of(part), label
        for to, one in FORMATS.items():
            if one.read:
                assert bits_of(written_and_read(table, to, tmp_path / f"{number}-{to}")) == bits_of(
                    part
                ), (label, to)


def test_what_a_draft_of_a_map_of_words_writes_has_all_of_them() -> None:
    """A dense map has the words between its registers, a table those that have a row; a chip's
    features go with it.
    """
    lines = ["block,offset,register,field,lsb,width,feature", "A,0,R,a,2,1,", "A,0,R,,9,1,new"]
    rows = [*csv.DictReader([*lines, "A,12,S,b,0,32,"])]
    for features in ((), ("new",)):
        registers = RegisterMap(rows, features=features)
        made = draft(registers)
        assert bits_of(made.table.map()) == bits_of(registers) == bits_of(made.map)
        assert [name for _, _, name in made.table.map().registers] == ["R", "w1", "w2", "S"]


def test_words_far_from_the_start_of_their_block_stay_words(tmp_path: Path) -> None:
    """A table says by its names that a far block has words: by those of all chips, of which a
    map has some.
    """
    lines = ["A,0x1000,R,a,0,3,", "A,0x1000,,w1024_3_3,3,3,new"]
    rows = [*csv.DictReader(["block,offset,register,field,lsb,width,feature", *lines])]
    maps = [RegisterMap(rows, dense=False, features=features) for features in ((), ("new",))]
    for registers in [*maps, RegisterMap(rows[:1], dense=False, by_address=())]:
        made = draft(registers)
        assert {item.name[:5] for item in registers if item.automatic} == {"w1024"}
        assert bits_of(made.map) == bits_of(made.table.map()) == bits_of(registers)
        for to in ("csv", "xml", "svd", "struct"):
            assert bits_of(
                written_and_read(
                    made.table, to, tmp_path / f"{len(registers.features)}-{id(registers)}-{to}"
                )
            ) == bits_of(registers)


def test_the_table_of_a_draft_of_a_file_knows_which_blocks_have_addresses(tmp_path: Path) -> None:
    path = tmp_path / "registers.csv"
    path.write_text(
        "block,offset,register,field,lsb,width,value,bits\nA,0,,,,,sparse,\nA,4,R,a,0,8,,16\nA,8,S,b,3,2,,\n"
    )
    made = draft(path)
    assert [item.name for item in made.map] == ["a", "r0004_8_24", "r0008_0_3", "b", "r0008_5_27"]
    assert bits_of(made.table.map()) == bits_of(made.map)
    assert made.table == read_map(path)


def test_a_sheet_of_every_shipped_file_is_as_it_is() -> None:
    for path in [*TARGETS.glob("*/*.csv")]:
        text = path.read_text(encoding="utf-8")
        assert Sheet.parse(text).text == text, path
    made = draft(TARGETS / "rockchip/registers.csv", dense=False)
    assert (made.diff(), made.saved) == ("", True)


def test_a_draft_of_a_table_of_another_format(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(
        '<database xmlns="http://nouveau.freedesktop.org/"><domain name="NN"><reg32 offset="4" '
        'name="CFG"><bitfield name="GO" pos="3"/></reg32></domain></database>'
    )
    made, same = draft(tmp_path / "a.xml"), draft(read_map(tmp_path / "a.xml"))
    made.rename("GO", "START")
    assert made.map.START.bits == "0[3]"
    assert same.table == read_map(tmp_path / "a.xml")
    with pytest.raises(
        ValueError, match=r"^save: got no path, allowed is a path where no file is$"
    ):
        made.save()


def test_words_that_nobody_named() -> None:
    made = draft(3, block="NN")
    assert (len(made.map), made.map.coverage().bits, repr(made)) == (
        3,
        (0, 96),
        "Draft(NN: 3 words, 0 steps, not saved)",
    )
    made.rename("w2_0_32", "a")
    assert made._table.sheet.text.splitlines()[3] == "NN,0x0008,,a,0,32,,,,,,unknown,"
    for wrong in (0, -1, 10**9):
        with pytest.raises(ValueError, match=rf"^draft: got {wrong} words, allowed is 1 to 16384$"):
            draft(wrong)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            b"a,b\n1,2\n",
            r"registers.csv: got no column 'field', allowed is a table of fields with field, lsb, width$",
        ),
        (b"", r"registers.csv: got no column 'field'"),
        (
            b"field,lsb,width,lsb\na,0,1,2\n",
            r"registers.csv: got column 'lsb' twice, allowed is each column once$",
        ),
        (
            b"field,lsb,width\n\xff,0,1\n",
            r"registers.csv: got byte 0xff at byte 16, allowed is UTF-8$",
        ),
        (
            b"field,lsb,width\n\na,0\n",
            r"registers.csv, line 3: got 2 cells, allowed are 3, one for each column$",
        ),
        (
            b"field,lsb,width\na,0,4\nb,3,1\n",
            r"registers.csv: register map: fields a and b overlap at register w0 bit 3$",
        ),
        (
            b"field,lsb,width,x\na,0,4,\n",
            r"registers.csv: register map: got column 'x', allowed are ",
        ),
        (
            b"field,lsb,width\n" + b"a,0,1\n" * (2**17 + 1),
            r"registers.csv: got 131073 rows, allowed are at most 131072$",
        ),
        (
            b"field,lsb,width\n" + b"," * 2**22,
            r"registers.csv, line 2: got 65 cells, allowed are 3",
        ),
        (b"," * 2**22, r"registers.csv: got no column 'field'"),
        (b"#" * (2**25 + 1), r"registers.csv: got 33554433 bytes, allowed are 33554432$"),
        (b"\n" * (2**19 + 1), r"registers.csv: got 524289 lines, allowed are at most 524288$"),
    ],
)
def test_broken_files(path: Path, text: bytes, message: str) -> None:
    path.write_bytes(text)
    with pytest.raises(ValueError, match=message):
        draft(path)


def test_broken_enums_and_no_file(path: Path) -> None:
    (path.parent / "enums.csv").write_text("enum,raw,name\nmode,zero,off\n")
    with pytest.raises(ValueError, match=r"registers.csv: enums, line 2: got .*'zero'"):
        draft(path)
    with pytest.raises(FileNotFoundError, match=r"none.csv: there is no such file$"):
        draft(path.parent / "none.csv")


# ---- files ----


def test_save_writes_over_what_it_read(path: Path, nasty: Draft) -> None:
    path.chmod(0o640)
    nasty.retype("mode", "enum:mode", {2: "two"})
    assert repr(nasty) == f"Draft({path}: 8 words, 1 step, not saved)"
    assert nasty.save() == path
    assert (path.read_bytes().decode(), path.stat().st_mode & 0o777) == (NASTY, 0o640)
    assert (path.parent / "enums.csv").read_text() == ENUMS.replace(
        "mode,1,on\n", "mode,1,on\nmode,2,two\n"
    )
    assert {each.name for each in path.parent.iterdir()} == {"registers.csv", "enums.csv"}
    nasty.undo()
    assert "-mode,2,two" in nasty.diff()
    nasty.save()
    assert (path.parent / "enums.csv").read_text() == ENUMS


def test_save_refuses_what_changed_on_the_disk(path: Path, nasty: Draft) -> None:
    nasty.rename("mode", "m")
    (path.parent / "enums.csv").write_text(ENUMS + "x,1,y\n")
    with pytest.raises(
        ValueError,
        match=r"enums.csv: the file was changed on the disk since it was opened, allowed is a file as it was read",
    ):
        nasty.save()
    assert path.read_bytes() == NASTY.encode()
    (path.parent / "enums.csv").unlink()
    with pytest.raises(ValueError, match=r"enums.csv: the file was changed on the disk"):
        nasty.save()


def test_save_refuses_enums_that_came(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("field,lsb,width\na,0,4\n")
    made = draft(path)
    made.rename("a", "b")
    (tmp_path / "enums.csv").write_text(ENUMS)
    with pytest.raises(
        ValueError, match=r"enums.csv: the file exists now, but did not exist when it was opened"
    ):
        made.save()


def test_save_is_all_or_nothing(path: Path, nasty: Draft, monkeypatch: pytest.MonkeyPatch) -> None:
    nasty.retype("size", names={1: "one"})
    whole = Path.replace

    def once(part: Path, target: Path) -> Path:
        if target.name == "enums.csv":
            raise OSError("no room")
        return whole(part, target)

    monkeypatch.setattr(Path, "replace", once)
    with pytest.raises(OSError, match="no room"):
        nasty.save()
    assert path.read_bytes() == NASTY.encode()
    assert (path.parent / "enums.csv").read_text() == ENUMS
    assert {each.name for each in path.parent.iterdir()} == {"registers.csv", "enums.csv"}
    assert not nasty.saved
    monkeypatch.undo()
    nasty.save()
    assert "enum:size" in path.read_text(encoding="utf-8-sig")


def test_save_follows_a_link(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link" / "linked.csv"
    link.parent.mkdir()
    link.symlink_to(path)
    (link.parent / "enums.csv").write_text(ENUMS)
    made = draft(link)
    made.rename("mode", "m")
    made.save()
    assert link.is_symlink()
    assert path.read_bytes() != NASTY.encode()


def test_save_to_a_new_path(tmp_path: Path) -> None:
    made = draft(1, block="NN")
    made.retype("w0_0_32", "enum:all", {0: "none"})
    assert (
        made.save(tmp_path / "mine/registers.csv") == made.path == tmp_path / "mine/registers.csv"
    )
    assert (tmp_path / "mine/enums.csv").read_text() == "enum,raw,name\nall,0,none\n"
    assert made.saved
    made.rename("w0_0_32", "a")
    made.save()
    assert RegisterMap.read(made.path).a.names == ((0, "none"),)
    with pytest.raises(
        FileExistsError,
        match=r"registers.csv: is there already; give another path, or move it away$",
    ):
        draft(1).save(made.path)
    with pytest.raises(ValueError, match=r"enums.csv: got the name of the table of enums"):
        made.save(tmp_path / "enums.csv")
    with pytest.raises(
        ValueError,
        match=r"mine.h: got .h, allowed is .csv; npulab.write_map\(draft.table, path\) writes other",
    ):
        made.save(tmp_path / "mine.h")
    assert not (tmp_path / "mine.h").exists()


def test_first_enums_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("field,lsb,width,value\na,0,4,\n")
    made = draft(path)
    made.retype("a", names={1: "one"})
    assert "+a,1,one" in made.diff()
    made.save()
    assert [*RegisterMap.read(path)] == [*made.map]
    made.undo()
    assert made.diff().count("enums.csv") == 2
    made.save()
    assert (tmp_path / "enums.csv").read_bytes() == b""
    assert [*RegisterMap.read(path)] == [*made.map]


# ---- captures follow ----


def test_a_capture_is_read_with_the_draft(captures: CaptureSet) -> None:
    capture = captures["update4-vendor"]
    made = draft(NN, features=["nn_v7"])
    assert made.decode(capture).fields.equals(capture.fields)
    made.join("out_image_x_size", "out_image_y_size", "size")
    made.rename("w15_30_2", "why")
    after = made.decode(capture)
    assert (
        after.values["size"]
        == capture.values["out_image_x_size"] + 2**13 * capture.values["out_image_y_size"]
    )
    assert after.values["why"] == capture.values["w15_30_2"]
    assert after == capture
    assert list(after.maps) == list(capture.maps)
    made.undo()
    assert "why" not in made.decode(capture).values
    with pytest.raises(ValueError, match=r"^words: got 34, allowed is 33 \(block NN\)$"):
        draft(33, block="NN").decode(capture)
    apart = RegisterTable.of(
        [{"block": "NN", "offset": 4 * word, "lsb": 0, "width": 32} for word in (0, 33)]
    )
    with pytest.raises(
        ValueError,
        match=r"allowed is 2 \(block NN\); draft\(..., dense=True\) has the words between its registers, too$",
    ):
        draft(apart).decode(capture)
    assert np.array_equal(draft(apart, dense=True).decode(capture).words, capture.words)
    with pytest.raises(LookupError, match=r"^capture update4-vendor: got block 'XX', it has NN"):
        made.decode(capture, "XX")


def test_register_writes_are_read_with_the_draft() -> None:
    capture = npulab.load(CAPTURES / "nvdla/sim-1x1-relu")
    made = draft(TARGETS / "nvdla/small.csv", dense=False)
    assert made.decode(capture).fields.equals(capture.fields)
    offset, value = capture.jobs[0].writes[0]
    register = made.map.registers[made.map.index[offset]]
    made.rename_register(f"{register[0]}.{register[2]}", "FIRST")
    after = made.decode(capture)
    assert after.fields[after.fields.register == "FIRST"].raw.map(int).sum() >= 0
    assert "FIRST" in set(after.fields.register)
    bare = replace(capture, maps={})
    assert [*made.decode(bare).maps] == ["SMALL"]
    unknown = Capture("a", "x", "y", (Job.from_writes("Q", ((0, 7), (0x40, value)), draft(1).map),))
    mine = draft(1, block="Q")
    assert mine.decode(unknown).fields.field.tolist() == ["w0_0_32", "w16_0_32"]
    mine.add("more", "MORE", 0, 32, offset=0x40)
    assert mine.decode(unknown).fields.register.tolist() == ["w0", "MORE"]
    assert mine.decode(unknown).fields.raw.tolist() == [7, value]


# ---- how much is known ----


def slow_status(registers: RegisterMap, words: np.ndarray | None) -> list[list[int]]:
    """The definition: bit by bit."""
    out = []
    for word in range(len(registers)):
        counts = dict.fromkeys(STATUS, 0)
        for bit in range(32):
            item = next(
                one
                for one in registers
                if any(p.word == word and p.lsb <= bit < p.lsb + p.width for p in one.pieces)
            )
            same = words is not None and len({int(row[word]) >> bit & 1 for row in words}) == 1
            known = "guessed"
            if item.automatic and item.evidence != "guess":
                known = "open"
            if item.evidence not in ("guess", "unknown"):
                known = "explained"  # named or not
            counts[known if not same else "constant" if known == "open" else "never exercised"] += 1
        out.append([*counts.values()])
    return out


def test_status_adds_up(captures: CaptureSet, vivante: npulab.captures.target.Target) -> None:
    registers = vivante.registers
    words = np.stack([one.words for one in captures if one.chip == "vipnano-qi-a311d"])
    for some in (None, words, words[:1], words[0]):
        table = registers.status(some)
        assert table[list(STATUS)].to_numpy().tolist() == slow_status(
            registers, None if some is None else np.atleast_2d(some)
        )
        assert (table[list(STATUS)].sum(axis=1) == 32).all()
    assert list(table) == ["word", "block", "register", "offset", *STATUS]
    assert (
        registers.status().attrs["summary"]
        == "1088 bits in 34 words: 61 % explained, 11 % guessed, 28 % open"
    )
    assert registers.status(words).attrs["summary"].endswith(" % never exercised")
    with pytest.raises(
        ValueError,
        match=r"^words: got 3 words in the last axis, allowed are 34 words in the last axis \(block NN\)$",
    ):
        registers.status(words[:, :3])


def test_status_follows_a_draft() -> None:
    made = draft(2, block="NN")
    made.split("w1_0_32", 8, ["a", ""])
    assert made.map.status()[["guessed", "open"]].to_numpy().tolist() == [[0, 32], [8, 24]]
    made.set_evidence("a", "C:one")
    named = made.map.coverage()
    made.set_evidence("w1_8_24", "C:one")  # evidence without a name
    assert made.map.status()[["explained", "open"]].to_numpy().tolist() == [[0, 32], [32, 0]]
    assert made.map.coverage().bits == named.bits == (8, 56)
    made.undo()
    varied = np.array([[0, 0], [1, 0x10F]], np.uint32)
    assert made.map.status(varied)[list(STATUS)].to_numpy().tolist() == [
        [0, 0, 1, 31, 0],
        [4, 0, 1, 23, 4],
    ]


# ---- the struct of the seed ----

SAME = {
    "op_type": "layer_type",
    "kernel_x_size": "kernel_xy_size",
    "enable_relu": "relu",
    "unk0": "out_image_tile_x_size",
    "unk1": "out_image_tile_y_size",
    "kernel_z_size2": "kernel_z_size",
    "out_image_y_size2": "out_image_y_stride",
    "image_end_address": "image_cache_end_address",
    "in_image_stride": "in_image_x_stride",
    "in_image_y_size2": "in_image_y_stride",
    "out_image_stride": "out_image_x_stride",
    "unk2": "out_image_circular_buf_end_addr_plus_1",
    "unk3": "in_image_circular_buf_end_addr_plus_1",
    "post_shift_bit_5_6": "post_shift",
    **{
        f"{which}_data_type_bit_{bit}": f"{which}_data_type"
        for bit in (2, 3)
        for which in ("kernel", "in_image", "out_image")
    },
}
EDITS_OF_SEED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("resize", {"field": "unused7", "width": 5, "shift": True}),
    ("shift", {"field": "kernel_data_type_bit_2", "by": 1, "out_of": "unused4"}),
    (
        "split",
        {"field": "post_shift", "widths": [1, 5], "names": ["post_multiplier", "post_shift"]},
    ),
)


def named_runs(registers: RegisterMap) -> dict[tuple[int, int], tuple[str, int, int, int]]:
    """(field, word, lsb, width) of the run of each bit that is named: what the struct calls zero
    or unused is not.
    """
    return {
        (piece.word, bit): (item.name, *piece[:3])
        for item in registers
        if not item.automatic and not re.fullmatch(r"(zero|unused)\d+", item.name)
        for piece in item.pieces
        for bit in range(piece.lsb, piece.lsb + piece.width)
    }


def agree(made: RegisterMap, shipped: RegisterMap) -> bool:
    ours, theirs = named_runs(made), named_runs(shipped)
    both = ours.keys() & theirs.keys()
    return all(
        (SAME.get(ours[bit][0], ours[bit][0]), *ours[bit][1:]) == theirs[bit] for bit in both
    )


def test_the_struct_of_the_seed_in_three_edits(vivante: npulab.captures.target.Target) -> None:
    path = shared("seeds/001_8829da847375e5fe.txt")
    found = re.findall(r"^uint32_t (\w+)(?: : (\d+))?;", path.read_text(), re.M)
    members = [(name, int(width or 32)) for name, width in found]
    table, (told,) = read(path)
    assert "word 20 bits 31:27, word 23 bits 31:6" in told
    assert [row["field"] for row in table.rows if "field" in row] == [name for name, _ in members]
    shipped = vivante.maps("vipnano-qi-a311d")["NN"]
    pasted = RegisterMap.from_struct(members, "NN")
    assert [str(found) for found in pasted.lint()] == [
        "hole at word 20 bit 27 (5 bits)",
        "hole at word 23 bit 6 (26 bits)",
    ]
    made = draft(pasted)
    assert made.map.lint() == pasted.lint()
    for do, arguments in EDITS_OF_SEED:
        assert not agree(made.map, shipped)
        made.edit(do, **arguments)
    assert made.steps == [
        "resize unused7 from 6 to 5 bits, with everything behind it",
        "shift kernel_data_type_bit_2 to post_shift_bit_5_6 up by 1 bit, out of unused4",
        "split post_shift into post_multiplier (1), post_shift (5)",
    ]
    assert agree(made.map, shipped)
    assert len(made.map) == len(shipped) == 34
    assert len(named_runs(made.map).keys() & named_runs(shipped).keys()) == 521
    table = draft(made.table)  # as a reader of another format gives it: a sparse map
    assert agree(table.map, shipped)
    sparse = draft(draft(pasted).table)
    sparse.replay({"do": do, **arguments} for do, arguments in EDITS_OF_SEED)
    assert (sparse.steps, named_runs(sparse.map)) == (made.steps, named_runs(made.map))
    for left in range(3):  # each of the three is needed
        some = draft(pasted)
        for do, arguments in EDITS_OF_SEED[:left] + EDITS_OF_SEED[left + 1 :]:
            some.edit(do, **arguments)
        assert not agree(some.map, shipped)


def test_what_a_file_does_not_have_yet(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("field,lsb,width\na,0,4\nb,4,4\n")
    (tmp_path / "enums.csv").write_text("enum,raw,name\nof another,0,zero\n")
    made = draft(path)
    assert made.unsaved == []
    made.set_note("a", "one")
    made.save()
    made.set_note("a", "two")
    made.retype("b", names={1: "on"})
    assert [edit["do"] for edit in made.unsaved] == ["set_note", "retype"]
    made.save()
    assert (made.unsaved, len(made.edits)) == ([], 3)
    made.undo()
    with pytest.raises(
        ValueError, match=r"a.csv: got a file that no step of the draft left, allowed is the file"
    ):
        _ = made.unsaved
    made.redo()
    made.rename("a", "c")
    assert made.unsaved == [{"do": "rename", "field": "a", "name": "c"}]
    with pytest.raises(ValueError, match=r"unsaved: got a draft without a file"):
        _ = draft(1).unsaved


def test_what_is_not_saved_is_found_without_doing_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("field,lsb,width\na,0,4\n")
    made = draft(tmp_path / "a.csv")
    for number in range(40):
        made.set_note("a", f"{number}")
    monkeypatch.setattr(Draft, "replay", None)
    monkeypatch.setattr(Draft, "edit", None)
    assert len(made.unsaved) == 40


def test_drafts_of_rows_of_writes_and_of_captures() -> None:
    head = "block,offset,register,field,lsb,width"
    rows = [*csv.DictReader([head, "B,4,R,f,0,8", "B,0,A,g,4,2"])]
    made = npulab.draft(rows)
    assert [item.name for item in made.map if not item.automatic] == ["g", "f"]
    writes = [(0x50100000, 1), (0x50100080, 2), (0x50100000, 3)]
    made = npulab.draft(writes, block="CNN")
    assert [offset for _, offset, _ in made.map.registers] == [0x50100000, 0x50100080]
    made.rename_register("r50100080", "SIZE")
    capture = npulab.captures.capture.Capture(
        "c",
        "owl",
        "c",
        (npulab.captures.capture.Job("B", npulab.draft(rows).map.encode({"f": 7})),),
        maps={"B": npulab.draft(rows).map},
    )
    assert npulab.draft(capture).map.decode(capture.words)["f"] == 7
    bare = npulab.captures.capture.Capture(
        "c", "owl", "c", (npulab.captures.capture.Job("B", [1, 2, 3]),)
    )
    assert len(npulab.draft(bare).map) == 3
    with pytest.raises(ValueError, match=r"^draft: got block 'C', allowed with c is one of B$"):
        npulab.draft(bare, block="C")
    for wrong in ([], [(0, 1), {}], [(1, 2)], [(0, "x")]):
        with pytest.raises(
            ValueError, match=r"^draft: got .*, allowed are rows with field, lsb, width, or writes"
        ):
            npulab.draft(wrong)


# an edit, and the lines that it changes; none where it is refused
OF_ARRAYS = """
rename | 'LUT_0_1.entry', 'slope'
  -L,0x50,LUT,entry,0,4,,signed,K,,8,3 2,4 1,
  +L,0x50,LUT,slope,0,4,,signed,K,,8,3 2,4 1,

rename | 'r0054_12_20', 'next'
  +L,0x54,,next,12,20,,,unknown,,,,,

rename | 'r0054_4_4', 'flags'
  +L,0x50,LUT,flags,4,4,,,unknown,,8,3 2,4 1,

rename | 'r0044_8_24', 'high'
  +L,0x40,PTR,high,40,24,,,unknown,,64,,,

split | 'TAP_2.gain', 3, ['g', 'h']
  -L,0x10,TAP,gain,0,5,,,guess,,,4,8,
  +L,0x10,TAP,g,0,3,,,guess,,,4,8,
  +L,0x10,TAP,h,3,2,,,guess,,,4,8,

join | 'TAP_0.gain', 'r0010_5_2'
  -L,0x10,TAP,gain,0,5,,,guess,,,4,8,
  +L,0x10,TAP,gain,0,7,,,guess,,,4,8,

join | 'TAP_0.gain', 'TAP_1.gain'

add | 'tag', 'PTR', 41, 10
  +L,0x40,PTR,tag,41,10,,,guess,,64,,,

add | 'tag', 6, 9, 10
  +L,0x40,PTR,tag,41,10,,,guess,,64,,,

add | 'far', 'LUT', 6, 3

rename_register | 'H', 'HALF'
  -L,0x60,H,h,2,9,,,K,,16,5,2,
  +L,0x60,HALF,h,2,9,,,K,,16,5,2,

move | 'mode', 'TAP', 9
  -L,0x0,CTRL,mode,1,4,,,unknown,,,,,
  +L,0x00,CTRL,,0,32,,,unknown,,,,,
  +L,0x10,TAP,mode,9,4,,,unknown,,,4,8,

resize | 'low', 60
  -L,0x40,PTR,low,0,40,,,K,,64,,,
  +L,0x40,PTR,low,0,60,,,K,,64,,,

remove | 'part_1'
  -L,0x70,SPLIT,part,0,8,0,,K,,,2,4,
  -L,0x80,SPLITB,part,0,8,8,,K,,,2,4,
  +L,0x70,SPLIT,,0,8,,,unknown,,,2,4,
  +L,0x80,SPLITB,,0,8,,,unknown,,,2,4,

set_note | 'done', 'x'
  -M,0x10,STAT,done,0,1,,,K,,,,,ro
  +M,0x10,STAT,done,0,1,,,K,x,,,,ro
"""


@pytest.mark.parametrize("case", OF_ARRAYS.strip().split("\n\n"))
def test_an_edit_of_an_array_is_one_of_all_its_copies(case: str, tmp_path: Path) -> None:
    call, *lines = case.split("\n  ")
    made = draft(arrays(tmp_path))
    with nullcontext() if lines else pytest.raises(ValueError):
        edit(made, call)
    assert sorted(changes(made)) == sorted(lines)
    made.save()
    assert [*RegisterMap.read(made.path)] == [*made.map]


TWO = """block,offset,register,field,lsb,width
A,0,X,a,0,4
A,8,Y,b,0,4
B,0,X,a,4,4
B,4,Z,c,0,32
"""


@pytest.mark.parametrize("dense", [True, False])
def test_each_block_of_a_table_reads_its_own_jobs(dense: bool) -> None:
    rows = [*csv.DictReader(TWO.splitlines())]
    maps = {
        block: RegisterMap([row for row in rows if row["block"] == block], dense=dense)
        for block in "AB"
    }
    jobs = (
        Job.from_writes("A", [(0, 3), (8, 5)], maps["A"]),
        Job("B", maps["B"].encode({"a": 6, "c": 7})),
    )
    capture = Capture("c", "owl", "c", jobs, maps=maps)
    made = draft(rows, dense=dense)
    assert made.decode(capture).fields.equals(capture.fields)
    made.rename("c", "d")
    read = made.decode(capture)
    assert read.maps["B"].decode(read.jobs[1].words)["d"] == 7
    assert read.jobs[0].words.tolist() == jobs[0].words.tolist()
    model = MapModel(made, capture, 1)
    shown = {row[0]: row[1 + COLUMNS.index("capture")] for row in model.rows}
    assert (shown["B.X.a"], shown["d"], shown["A.X.a"], shown["b"]) == (
        "0x6 = 6",
        "0x7 = 7",
        "",
        "",
    )
    assert [word for word in model.bits.words if word] == [0x60, 7]


def test_where_blocks_lie_stays_as_it_is(tmp_path: Path) -> None:
    """Edits of the fields of a block that repeats: the lines that place it keep their bytes."""
    lines = [
        "block,offset,register,field,lsb,width,value,feature,evidence,count,stride",
        "L,0x8000,,group layer,,,sparse,old,guess,4 8,0x1000 4",
        "L,0x40000,,group layer,,,sparse,new,guess,4 8,0x1000 4",
        "L,0x0,CTRL,relu,0,1,,,guess,,",
        "L,0x0,CTRL,mode,1,4,,,unknown,,",
        "L,0x80,SIZE,rows,0,10,,,guess,,",
        "M,0x4,B,,0,32,,,unknown,,",
    ]
    path = tmp_path / "registers.csv"
    path.write_text("\n".join(lines) + "\n")
    made = npulab.draft(path, features=["old"])
    assert len(made.map) == 2 + 2
    assert not made.diff()
    made.split("mode", widths=[1, 3], names=["pool", ""])
    made.rename_register("SIZE", "SHAPE")
    made.add("stride", "SHAPE", 12, 2)
    made.set_note("relu", "seen")
    made.add("bias", "BIAS", 0, 32, offset=0x100)
    made.remove("rows")
    assert made.map.place(0x9104) == ("L", (1, 1), 0x100)
    made.save()
    after = path.read_text().splitlines()
    blocks = [[line for line in text if "group layer" in line] for text in (lines, after)]
    assert [line.rstrip(",") for line in blocks[0]] == [line.rstrip(",") for line in blocks[1]]
    again = RegisterMap.read(path, features=["old"])
    assert again.repeats == RegisterMap.read(path).select(["old"]).repeats == made.map.repeats
    assert {item.name for item in again if not item.automatic} == {"relu", "pool", "stride", "bias"}
    while made.undo():
        pass
    made.save()
    assert [line.rstrip(",") for line in path.read_text().splitlines()] == [
        line.rstrip(",") for line in lines
    ]
