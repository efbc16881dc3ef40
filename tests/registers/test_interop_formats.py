"""Register maps from and to SystemRDL and CMSIS-SVD, and the formats that are only written."""

from __future__ import annotations

import json
import re
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from refusals import refused
from round_trip import cells, read, refusals, rows_in
from test_cli import run  # noqa: F401 - a fixture
from test_interop import TARGETS, tables, written

import npulab
from npulab.registers.formats import (
    FORMATS,
    RegisterTable,
    format_of,
    placing,
    read_csv,
    read_rnndb,
    rnndb_text,
    svd as svd_module,
    svd_names,
    systemrdl as rdl_module,
    xml,
)
from npulab.registers.formats.imhex import imhex_text
from npulab.registers.formats.markdown import markdown_text
from npulab.registers.formats.naming import Identifiers
from npulab.registers.formats.rdl_compiling import compiled
from npulab.registers.formats.rdl_writing import rdl_text
from npulab.registers.formats.svd import read_svd
from npulab.registers.formats.svd_writing import svd_text
from npulab.registers.formats.svg import svg_text
from npulab.registers.formats.systemrdl import read_rdl, refuse, table_of
from npulab.registers.formats.wavedrom import wavedrom_text
from npulab.registers.names import name_of, register_of

WRITTEN = {"hexpat": imhex_text, "json": wavedrom_text, "md": markdown_text, "svg": svg_text}
NASTY = (
    "<script>alert(1)</script>",
    "]]>",
    "\"'`$(x)`",
    "a|b\\",
    "*/ int x; /*",
    "<% system('x') %>",
    '`include "x"',
    "line\nline",
    "https://e.org www.e.org a@e.org",
    "${x} #{y} %s {0}",
    "\u202eabc",
    "-->",
    "// end",
    "..",
    "&lt;b&gt;",
)


class Kind(NamedTuple):
    """A format that is written and read again."""

    read: Callable[[Path], RegisterTable]
    text: Callable[[RegisterTable], str]


def here(path: Path) -> RegisterTable:
    """A file of SystemRDL compiled in this process, which takes less time."""
    pytest.importorskip("systemrdl")
    refuse(path)
    return table_of(path, compiled(path, 2**14))


KINDS = {
    "xml": Kind(read_rnndb, rnndb_text),
    "rdl": Kind(here, rdl_text),
    "svd": Kind(read_svd, svd_text),
}
MAPS = [
    path
    for path in sorted(TARGETS.glob("*/*.csv"))
    if "lsb,width" in path.read_text(encoding="utf-8")
]


@cache
def shipped(path: Path) -> RegisterTable:
    return read_csv(path)


def again(table: RegisterTable, kind: str, folder: Path) -> RegisterTable:
    """A table written and read, without a word of anything that is lost, and written the same
    again.
    """
    text = KINDS[kind].text(table)
    path = written(folder, text, f"again.{kind}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = KINDS[kind].read(path)
    assert KINDS[kind].text(back) == text
    return back


# In the manner of makers' files, of no device

TOY = """<?xml version="1.0" encoding="utf-8"?>
<!-- <database/> -->
<device schemaVersion="1.3" xmlns:xs="http://www.w3.org/2001/XMLSchema-instance" xs:noNamespaceSchemaLocation="CMSIS-SVD.xsd">
  <vendor>Nobody</vendor><name>TOY</name><version>1.0</version><description>An invented chip</description>
  <licenseText>
    Do as you like &amp; say so.
  </licenseText>
  <addressUnitBits>8</addressUnitBits><width>32</width>
  <size>0x20</size><access>read-write</access><resetValue>0x00000000</resetValue><resetMask>0xFFFFFFFF</resetMask>
  <peripherals>
    <peripheral>
      <name>UART0</name><description>A serial port</description><baseAddress>0x40000000</baseAddress>
      <addressBlock><offset>0</offset><size>0x100</size><usage>registers</usage></addressBlock>
      <interrupt><name>UART0</name><value>3</value></interrupt>
      <registers>
        <register><name>CTRL</name><description>Control
            of it</description><addressOffset>0x0</addressOffset><access>read-only</access><resetValue>0x15</resetValue>
          <fields>
            <field><name>EN</name><bitRange>[0:0]</bitRange>
              <enumeratedValues><name>ONOFF</name><enumeratedValue><name>OFF</name><value>0</value></enumeratedValue><enumeratedValue><name>ON</name><value>#1</value></enumeratedValue></enumeratedValues></field>
            <field><name>MODE</name><description>How</description><lsb>1</lsb><msb>3</msb><access>read-write</access>
              <enumeratedValues><enumeratedValue><name>A</name><value>0x0</value></enumeratedValue></enumeratedValues></field>
            <field derivedFrom="EN"><name>EN2</name><description>two</description><bitRange>[4:4]</bitRange></field>
            <field><dim>4</dim><dimIncrement>2</dimIncrement><dimIndex>A,B,C,D</dimIndex><name>PIN%s</name><bitOffset>8</bitOffset><bitWidth>2</bitWidth></field>
            <field><name>TX</name><bitOffset>31</bitOffset><bitWidth>1</bitWidth><modifiedWriteValues>oneToClear</modifiedWriteValues><enumeratedValues derivedFrom="ONOFF"/></field>
          </fields></register>
        <register derivedFrom="CTRL"><name>CTRL2</name><description>Control too</description><addressOffset>0x4</addressOffset></register>
        <register><dim>3</dim><dimIncrement>4</dimIncrement><name>DATA[%s]</name><addressOffset>0x10</addressOffset></register>
        <register><dim>2</dim><dimIncrement>4</dimIncrement><dimIndex>3-4</dimIndex><name>CH%s_X</name><addressOffset>0x20</addressOffset></register>
        <register><name>B0</name><addressOffset>0x30</addressOffset><size>8</size></register>
        <register><name>B1</name><addressOffset>0x31</addressOffset><size>8</size><fields><field><name>LO</name><bitRange>[3:0]</bitRange></field></fields></register>
        <register><name>H</name><addressOffset>0x32</addressOffset><size>16</size><fields><field><name>ALL</name><bitRange>[15:0]</bitRange></field></fields></register>
        <register><name>WIDE</name><addressOffset>0x38</addressOffset><size>64</size><fields><field><name>ADDR</name><bitRange>[47:4]</bitRange></field><field><name>LOCK</name><bitRange>[63:63]</bitRange></field></fields></register>
        <cluster><dim>2</dim><dimIncrement>0x20</dimIncrement><name>CORE[%s]</name><description>one of two</description><addressOffset>0x80</addressOffset>
          <register><name>GO</name><addressOffset>0</addressOffset></register>
          <cluster><name>IN</name><description>inside</description><addressOffset>0x10</addressOffset><register><name>R</name><addressOffset>0x4</addressOffset></register></cluster>
        </cluster>
      </registers>
    </peripheral>
    <peripheral derivedFrom="UART0"><name>UART1</name><baseAddress>0x40001000</baseAddress></peripheral>
  </peripherals>
</device>
"""

CHIP = """// of no device
`define WIDTH 8
property is_signed { type = boolean; component = field; };
property fracwidth { type = longint unsigned; component = field; };
enum mode_e { OFF = 0 { name = "Turned off"; }; FAST = 3 { desc = "quick"; }; };
reg gen_reg #(longint unsigned W = 4) {
    name = "A general register"; desc = "With <b>words</b> | and `ticks`.";
    field { sw = rw; hw = r; reset = 0x5; } value[W-1:0];
    field { sw = r; hw = w; desc = "says so"; } busy[31:31];
};
regfile core_rf {
    reg { field { encode = mode_e; } mode[1:0]; field { is_signed = true; fracwidth = 4; } scale[15:8]; } cfg @0x0;
    gen_reg #(.W(`WIDTH)) regs[2] @0x4 += 0x4;
};
addrmap sub_block { desc = "inner";
    reg { regwidth = 64; field {} addr[47:4]; field { onread = rclr; } lock[63:63]; } wide @0x0;
    reg { regwidth = 8; field {} a[3:0]; } r8 @0x10;
    reg { regwidth = 8; field {} a[7:4]; } s8 @0x11;
    reg { regwidth = 16; field {} b; } r16 @0x12;
};
addrmap top {
    name = "The chip"; desc = "An invented chip";
    gen_reg ctrl @0x0;
    core_rf core[3] @0x100 += 0x20;
    sub_block blk[2] @0x1000 += 0x100;
`ifdef MORE
    gen_reg more @0x2000;
`endif
};
"""


@pytest.fixture
def toy(tmp_path: Path) -> RegisterTable:
    return read_svd(written(tmp_path, TOY, "toy.svd"))


@pytest.fixture
def chip(tmp_path: Path) -> RegisterTable:
    return here(written(tmp_path, CHIP, "chip.rdl"))


def rows_of(table: RegisterTable) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {
        (row["block"], row["register"], row["field"], row["offset"]): {**row} for row in table.rows
    }


def test_svd_says_all_of_it(toy: RegisterTable) -> None:
    rows = rows_of(toy)
    assert [*dict.fromkeys(row["block"] for row in toy.rows)] == ["UART0", "UART1"]
    assert toy.copyright == "Do as you like & say so."
    assert toy.enums == {
        "ONOFF": {0: "OFF", 1: "ON"},
        "CTRL_MODE": {0: "A"},
        "CTRL2_MODE": {0: "A"},
    }
    enable = rows["UART0", "CTRL", "EN", 0]
    assert (
        enable["note"]
        == "CTRL: UART0 at 0x40000000: A serial port. Control of it (read-only, reset 0x15)"
    )
    assert rows["UART0", "CTRL", "MODE", 0]["note"] == "How (read-write)"
    written_once = rows["UART1", "CTRL2", "TX", 4]
    assert cells([written_once], "lsb width value note") == [
        (31, 1, "enum:ONOFF", "(a write oneToClear)")
    ]
    assert cells(toy.rows[:8], "field lsb") == [
        ("EN", 0),
        ("MODE", 1),
        ("EN2", 4),
        ("PINA", 8),
        ("PINB", 10),
        ("PINC", 12),
        ("PIND", 14),
        ("TX", 31),
    ]
    offsets = {register: offset for block, offset, register in toy.registers if block == "UART0"}
    assert offsets == {
        "CTRL": 0,
        "CTRL2": 4,
        "DATA[0]": 16,
        "DATA[1]": 20,
        "DATA[2]": 24,
        "CH3_X": 32,
        "CH4_X": 36,
        "B0_B1_H": 48,
        "WIDE": 60,
        "CORE[0].GO": 0x80,
        "CORE[0].IN.R": 0x94,
        "CORE[1].GO": 0xA0,
        "CORE[1].IN.R": 0xB4,
    }
    shared_word = [row for row in toy.rows if row["offset"] == 48][:3]
    assert cells(shared_word, "field lsb width") == [
        ("B0", 0, 8),
        ("B1.LO", 8, 4),
        ("H.ALL", 16, 16),
    ]
    known = RegisterTable.of([row for row in toy.rows if row["block"] == "UART0"], toy.enums).map()
    wide = known["WIDE.ADDR"]
    assert [(piece.lsb, piece.width, piece.at) for piece in wide.pieces] == [
        (4, 28, 0),
        (0, 16, 28),
    ]


def test_rdl_says_all_of_it(chip: RegisterTable) -> None:
    rows = rows_of(chip)
    assert rows["top", "ctrl", "value", 0] == {
        "block": "top",
        "offset": 0,
        "register": "ctrl",
        "field": "value",
        "lsb": 0,
        "width": 4,
        "note": "ctrl: top: An invented chip: A general register: With <b>words</b> | and `ticks`. (hw=r, reset=0x5)",
    }
    assert rows["top", "core[2].regs[1]", "value", 0x148]["width"] == 8
    assert rows["top", "ctrl", "busy", 0]["note"] == "says so (sw=r, hw=w)"
    assert rows["top", "core[1].cfg", "mode", 0x120]["value"] == "enum:mode_e"
    assert rows["top", "core[1].cfg", "scale", 0x120]["value"] == "signed raw>>4"
    assert chip.enums == {"mode_e": {0: "OFF", 3: "FAST"}}
    assert rows["blk[1]", "wide", "wide.addr", 4] == {
        **rows["blk[1]", "wide", "wide.addr", 0],
        "offset": 4,
        "lsb": 0,
        "width": 16,
        "at": 28,
    }
    assert rows["blk[1]", "wide", "wide.addr", 0]["note"] == "wide: blk[1] at 0x1100: inner"
    inner = [row for row in chip.rows if row["block"] == "blk[0]"]
    assert cells(inner, "field lsb width")[3:] == [
        ("r8.a", 0, 4),
        ("s8.a", 12, 4),
        ("r16.b", 16, 1),
    ]
    assert not any(register == "more" for _, _, register in chip.registers)


def test_rdl_is_compiled_by_a_program_of_its_own(chip: RegisterTable, tmp_path: Path) -> None:
    assert read_rdl(tmp_path / "chip.rdl") == chip
    path = written(tmp_path, "addrmap a {\n  reg { field {} f[40:0]; } r;\n};", "bad.rdl")
    assert refused(
        lambda: read_rdl(path),
        "got what is no SystemRDL, or has a fault",
        "allowed is a description",
    ).startswith(f"{path}, line 2: ")


# There and back


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["toy", "chip"])
def test_files_of_others_come_back(
    name: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    table = request.getfixturevalue(name)
    assert again(table, kind, tmp_path) == table


def spoilt(table: RegisterTable) -> RegisterTable:
    """A map with texts that each format takes for something of its own."""
    first = [row for row in table.rows if row["block"] == table.rows[0]["block"]]
    rows = []
    for n, row in enumerate(first):
        texts = {
            "block": NASTY[n % 3],
            "register": f"{NASTY[row['offset'] // 4 % len(NASTY)]} {row['offset']}",
            "field": f"{NASTY[n % len(NASTY)]} {n}",
            "note": NASTY[(n + 7) % len(NASTY)],
            "evidence": NASTY[(n + 3) % len(NASTY)],
        }
        if "feature" in row:
            texts["feature"] = NASTY[len(row["feature"])]
        rows.append({**row, **texts})
    rows.sort(key=lambda row: row["block"])
    enums = {"Größe": {0: NASTY[1]}, "bare": {}}
    for name, codes in table.enums.items():
        enums[name] = {raw: f"{NASTY[raw % len(NASTY)]} {raw}" for raw in codes}
    return RegisterTable.of(rows, enums, "\n".join(NASTY))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["nvdla/small.csv", "vivante/nn.csv"])
def test_texts_that_mean_something_come_back_as_texts(name: str, kind: str, tmp_path: Path) -> None:
    table = spoilt(shipped(TARGETS / name))
    table.check()
    back = again(table, kind, tmp_path)
    assert back.rows == table.rows
    assert back.enums == table.enums
    assert back.copyright == table.copyright


def test_an_enum_named_as_its_block_is_no_address(tmp_path: Path) -> None:
    rows = rows_in("block,register,field,lsb,width,value\nA,R,x,0,4,enum:A")
    table = RegisterTable.of(rows, {"A": {0: "none"}})
    for kind in KINDS:
        assert again(table, kind, tmp_path) == table


@pytest.mark.parametrize("count", [8, pytest.param(100, marks=pytest.mark.long)])
def test_random_maps_come_back(count: int, tmp_path: Path) -> None:
    @settings(max_examples=count)
    @given(tables())
    def come_back(table: RegisterTable) -> None:
        for kind in KINDS:
            assert again(table, kind, tmp_path) == table

    come_back()


# Another reader of SVD


def fields_of(table: RegisterTable) -> set[tuple[Any, ...]]:
    return {*cells(table.rows, "block offset register field lsb width")}


def theirs(path: Path) -> set[tuple[Any, ...]]:
    """The fields that the package cmsis-svd finds in a file, of registers of 32 bits."""
    parser = pytest.importorskip("cmsis_svd.parser")
    out = set()
    for one in parser.SVDParser.for_xml_file(str(path)).get_device().get_peripherals():
        for register in one.get_registers():
            fields = [
                (field.name, field.bit_offset, field.bit_width) for field in register.get_fields()
            ]
            for field in fields or [("", 0, register.size)]:
                out.add((one.name, register.address_offset, register.name, *field))
    return out


@pytest.mark.parametrize("name", ["vivante/tp.csv", "rockchip/registers.csv", "ane/h13.csv"])
def test_another_reader_finds_the_same_in_what_is_written(name: str, tmp_path: Path) -> None:
    table = shipped(TARGETS / name)
    found = theirs(written(tmp_path, svd_text(table), "map.svd"))
    names = {block: Identifiers()[block] for block, _, _ in table.registers}
    want, seen = set(), {}
    for row in table.rows:
        place = row["block"], row["offset"]
        words = seen.setdefault(("words", row["block"]), Identifiers())
        fields = seen.setdefault(place, Identifiers())
        name_ = name_of(row, table.by_address)
        want.add(
            (
                names[row["block"]],
                row["offset"],
                words[register_of(row, table.by_address)],
                fields.new(name_),
                row["lsb"],
                row["width"],
            )
        )
    assert found == want


@pytest.mark.parametrize("name", ["vivante/nn.csv", "nvdla/small.csv"])
def test_what_is_written_keeps_to_the_schema(name: str, tmp_path: Path) -> None:
    svd = pytest.importorskip("cmsis_svd")
    etree = pytest.importorskip("lxml.etree")
    schema = etree.XMLSchema(
        etree.parse(str(Path(svd.__file__).parent / "schemas" / "CMSIS-SVD_1_3_10.xsd"))
    )
    for n, table in enumerate((shipped(TARGETS / name), spoilt(shipped(TARGETS / name)))):
        schema.assertValid(etree.parse(str(written(tmp_path, svd_text(table), f"{n}.svd"))))


@pytest.mark.parametrize("feature", ["", "nn_v7", "nn_v8"])
def test_a_compiler_of_rdl_sees_the_map_of_a_chip(feature: str, tmp_path: Path) -> None:
    pytest.importorskip("systemrdl")
    from systemrdl import RDLCompiler

    table = shipped(TARGETS / "vivante" / "nn.csv")
    compiler = RDLCompiler()
    compiler.compile_file(str(written(tmp_path, rdl_text(table), "map.rdl")))
    top = compiler.elaborate(parameters={f"has_{feature}": True} if feature else {}).top
    found = {
        (register.address_offset, field.low, field.width)
        for block in top.children()
        for register in block.registers()
        for field in register.fields()
    }
    known = table.map([feature])
    want = {
        (4 * piece.word, piece.lsb, piece.width)
        for item in known
        if item.declared
        for piece in item.pieces
    }
    assert found == want


# Written only


SMALL = RegisterTable.of(
    rows_in("""
block,offset,register,field,lsb,width,at,value,feature,address,evidence,note
NN,0,CFG,mode,0,2,,enum:mode,,,guess,
NN,0,CFG,scale,4,4,0,,,,,split
NN,0,CFG,sparse,8,1,,,v8,,,
NN,8,BASE,base,6,26,,raw*64,,yes,,
NN,12,MORE,scale,0,8,4,,,,,
NN,12,MORE,,30,2,,signed,,,,
"""),
    {"mode": {0: "off", 2: "fast mode"}},
    "Free",
)


def test_imhex_pattern() -> None:
    text = imhex_text(SMALL)
    assert text.startswith(
        "// Free\n#pragma endian little\n#pragma bitfield_order right_to_left\n\nenum mode : u64 {\n  off = 0x0,\n"
        "  fast_mode = 0x2, // fast mode\n};\n"
    )
    assert "bitfield NN_CFG { // CFG at 0x0\n  mode mode : 2;" in text.replace(" // enum:mode", "")
    assert (
        "  padding : 2;\n  scale : 4; // bits 3:0 of the field; split\n  padding : 24;\n};" in text
    )
    assert (
        "struct NN {\n  NN_CFG CFG;\n  padding[0x4];\n  NN_BASE BASE;\n  NN_MORE MORE;\n};" in text
    )
    assert "bitfield NN_CFG_v8 { // CFG at 0x0" in text
    assert "  sparse : 1;\n" in text
    assert text.endswith("NN at_NN @ 0x00;\n// NN_v8 at_NN_v8 @ 0x00;\n")


def test_wavedrom_bit_fields() -> None:
    drawings = json.loads(wavedrom_text(SMALL))
    assert [(one["register"], one["offset"], one.get("feature")) for one in drawings] == [
        ("CFG", 0, "v8"),
        ("BASE", 8, None),
        ("MORE", 12, None),
    ]
    assert drawings[0]["reg"] == [
        {"name": "mode", "bits": 2, "attr": ["enum:mode", "guess"]},
        {"bits": 2},
        {"name": "scale", "bits": 4, "attr": ["bits 3:0 of the field"]},
        {"name": "sparse", "bits": 1, "attr": ["v8"]},
        {"bits": 23},
    ]
    assert drawings[1]["reg"] == [
        {"bits": 6},
        {"name": "base", "bits": 26, "attr": ["raw*64"], "type": 3},
    ]
    assert drawings[2]["config"] == {"bits": 32}


def test_markdown_tables() -> None:
    assert (
        "## BASE\n\nOffset `0x0008`.\n\n| bits | field | value | evidence | note |\n| ---: | --- | --- | --- | --- |\n"
        "| 31:6 | base | raw\\*64 |  | an address |\n| 5:0 |  |  |  |  |\n" in markdown_text(SMALL)
    )
    assert (
        "## mode\n\n| raw | name |\n| ---: | --- |\n| `0x0` | off |\n| `0x2` | fast mode |\n"
        in markdown_text(SMALL)
    )


@pytest.mark.parametrize("name", ["vivante/nn.csv", "nvdla/small.csv", "rockchip/registers.csv"])
@pytest.mark.parametrize("spoil", [False, True])
def test_every_bit_is_drawn_once(name: str, spoil: bool) -> None:
    table = shipped(TARGETS / name)
    if spoil:
        table = spoilt(table)
    bitfields = re.findall(
        r"^bitfield \w+ \{ // [^\n]*\n(.*?)^\};", imhex_text(table), re.MULTILINE | re.DOTALL
    )
    assert bitfields
    for body in bitfields:
        lines = [
            re.fullmatch(r"  (?:\w+ )?\w+ : (\d+);( // .*)?", line) for line in body.splitlines()
        ]
        assert sum(int(line[1]) for line in lines if line) == 32
        assert all(lines)
    drawings = json.loads(wavedrom_text(table))
    assert all(sum(one["bits"] for one in drawing["reg"]) == 32 for drawing in drawings)
    if not table.features:
        assert [one["name"] for drawing in drawings for one in drawing["reg"] if "name" in one] == [
            row["field"] for row in table.rows if "field" in row
        ]
    ends = re.findall(r"^\| (\d+)(?::(\d+))? \|", markdown_text(table), re.MULTILINE)
    assert sum(int(high) - int(low or high) + 1 for high, low in ends) == 32 * len(drawings)
    root = ElementTree.fromstring(svg_text(table))
    boxes = [
        one
        for one in root.iter()
        if one.tag.endswith("}rect") and "box" in one.get("class", "").split()
    ]
    assert sum(int(one.get("width", "0")) for one in boxes) == 32 * 30 * len(drawings)
    assert len([one for one in root.iter() if one.tag.endswith("}title")]) == len(boxes)


def test_a_drawing_names_each_field_and_runs_nothing() -> None:
    table = spoilt(shipped(TARGETS / "nvdla" / "small.csv"))
    text = svg_text(table)
    root = ElementTree.fromstring(text)
    tags = {one.tag.rpartition("}")[2] for one in root.iter()}
    assert tags == {*["svg", "style", "rect", "text", "title", "g"]}
    names = set[str]().union(*(one.attrib for one in root.iter()))
    assert names == {
        *["viewBox", "width", "height", "role", "aria-label", "class", "x", "y", "text-anchor"]
    }
    titles = [one.text or "" for one in root.iter() if one.tag.endswith("}title")]
    for row in table.rows:
        assert any(title.startswith(f"{row['field']} [") for title in titles)
    assert "prefers-color-scheme: dark" in text
    assert "url(" not in text


def test_markdown_shows_texts_as_they_are() -> None:
    mistune = pytest.importorskip("mistune")
    table = spoilt(shipped(TARGETS / "nvdla" / "small.csv"))
    html = mistune.create_markdown(escape=False, plugins=["table", "strikethrough", "url", "math"])(
        markdown_text(table)
    )
    root = ElementTree.fromstring(f"<div>{html}</div>")
    allowed = {*["div", "h1", "h2", "p", "table", "thead", "tbody", "tr", "th", "td", "code", "br"]}
    assert {one.tag for one in root.iter()} <= allowed
    cells = ["".join(one.itertext()) for one in root.iter("td")]
    for row in table.rows:
        assert row["field"] in cells
        assert row["note"] in cells


# The command and its two names in Python


@pytest.mark.parametrize("to", FORMATS)
def test_map_writes_each_format(to: str, run: Any, tmp_path: Path) -> None:
    source = written(tmp_path, TOY, "toy.txt")
    out = tmp_path / f"map{FORMATS[to].suffix}"
    status, lines, _ = run("map", source, out, "--json", "--to", to)
    table = npulab.read_map(source)
    assert (status, json.loads(lines[0])["registers"]) == (0, len(table.registers))
    other = tmp_path / "deep" / "other"
    (tmp_path / "deep").mkdir()
    assert npulab.write_map(table, other, to=to)[0] == other
    assert other.read_bytes() == out.read_bytes()
    if FORMATS[to].read:
        assert npulab.read_map(other) == table
    elif to in WRITTEN:
        assert other.read_text(encoding="utf-8") == WRITTEN[to](table)
    assert run("map", source, out, "--to", to)[0] == 2


def test_map_of_a_chip(run: Any, tmp_path: Path) -> None:
    source = TARGETS / "vivante" / "nn.csv"
    status, lines, _ = run("map", source, tmp_path / "v8.svd", "--feature", "nn_v8")
    assert (status, len(lines)) == (0, 1)
    table = npulab.read_map(tmp_path / "v8.svd")
    assert not table.features
    assert (
        table.map()
        .fields.drop(columns="feature")
        .equals(shipped(source).map(["nn_v8"]).fields.drop(columns="feature"))
    )
    status, _, err = run("map", source, tmp_path / "x.svd", "--feature", "nn_v9")
    assert (status, err) == (2, "npulab: feature: got 'nn_v9', allowed is one of nn_v7, nn_v8\n")
    status, _, err = run(
        "map", source, tmp_path / "x.svd", "--feature", "nn_v7", "--feature", "nn_v8"
    )
    assert (status, "overlap" in err) == (2, True)
    assert not (tmp_path / "x.svd").exists()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (TOY, "svd"),
        (CHIP, "rdl"),
        ("\ufeff" + TOY, "svd"),
        ("<database/>", "xml"),
        ("<x:database xmlns:x='http://nouveau.freedesktop.org/'/>", "xml"),
        ("field,lsb,width\na,1,2\n", "csv"),
        ("/* reg { */ struct s { unsigned a : 3; };", "struct"),
        ("#define A_SHIFT 3\n", "struct"),
        ("<% print 1 %> reg r {};", "rdl"),
        ("addrmap field #(longint unsigned N = 1) {", "rdl"),
        ("", ""),
        ("hello", ""),
        ("a reg is a { b", ""),
    ],
)
def test_formats_are_told_by_content(text: str, kind: str) -> None:
    assert format_of(text.encode()) == kind


def test_a_missing_compiler_is_one_sentence(
    run: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "systemrdl", None)
    path = written(tmp_path, CHIP, "chip.rdl")
    assert run("map", path, tmp_path / "x.csv") == (
        2,
        [],
        f"npulab: {path}: reading SystemRDL needs systemrdl-compiler, which is not installed: pip install 'npulab[maps]'\n",
    )


# Refusals


def device(body: str, around: str = "<name>P</name><baseAddress>0</baseAddress>") -> str:
    return f"<device><peripherals><peripheral>{around}<registers>{body}</registers></peripheral></peripherals></device>"


def register(fields: str = "", more: str = "") -> str:
    return f"<register><name>R</name><addressOffset>0</addressOffset>{more}<fields>{fields}</fields></register>"


def bits(more: str, name: str = "F") -> str:
    return register(f"<field><name>{name}</name>{more}</field>")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<device>", "no element found"),
        ("<devices/>", "the element devices, allowed is device"),
        (
            "<device><addressUnitBits>12</addressUnitBits></device>",
            "got addressUnitBits 12, allowed is 8, 16, 32 or 64",
        ),
        ('<!DOCTYPE d [<!ENTITY a "b">]><device>&a;</device>', "a document type or an entity"),
        ("<device>" * 70, "64 within each other"),
        (f"<device>{'<x/>' * 4096}</device>", "4096 elements"),
        ("<device>" + " " * 2**23, "8388616 bytes, allowed are 8388608"),
        (device(register(), "<name>P</name>"), "peripheral P: got no baseAddress"),
        (device("<register><addressOffset>0</addressOffset></register>"), "got no name"),
        (device("<register><name>R</name></register>"), "register P.R: got no addressOffset"),
        (
            device("<register><name>R</name><addressOffset>0xG</addressOffset></register>"),
            "got addressOffset '0xG'",
        ),
        (device(register(more="<size>12</size>")), "register R: got 12 bits"),
        (device(register(more="<dim>2</dim>")), "got no dimIncrement"),
        (
            device("<register><name>R%s</name><addressOffset>0</addressOffset></register>"),
            "got no dim, allowed is one",
        ),
        (
            device(
                "<register><dim>1000000</dim><dimIncrement>4</dimIncrement><name>R%s</name><addressOffset>0</addressOffset></register>"
            ),
            "got dim 1000000",
        ),
        (
            device(
                "<cluster><dim>999</dim><dimIncrement>4</dimIncrement><name>C%s</name><addressOffset>0</addressOffset>"
                * 3
                + "</cluster>" * 3
            ),
            "more than 4096 elements",
        ),
        (
            device(
                "<register><dim>1000</dim><dimIncrement>4</dimIncrement><name>R%s</name><addressOffset>0</addressOffset></register>"
                "<register><name>S</name><addressOffset>0x20000</addressOffset></register>"
            ),
            "more than 1000 fields",
        ),
        (
            device(
                "<register><dim>2</dim><dimIncrement>4</dimIncrement><dimIndex>A,B,C</dimIndex><name>R%s</name><addressOffset>0</addressOffset></register>"
            ),
            "got dimIndex 'A,B,C', allowed are 2 words",
        ),
        (device(bits("<bitRange>3:1</bitRange>")), "got bitRange '3:1', allowed is [HIGH:LOW]"),
        (device(bits("<lsb>3</lsb>")), "got no msb"),
        (device(bits("")), "field R.F: got no bits"),
        (
            device(
                '<register derivedFrom="Q"><name>R</name><addressOffset>0</addressOffset></register>'
            ),
            "got derivedFrom 'Q', allowed is another register",
        ),
        (
            device(
                '<register derivedFrom="R"><name>R</name><addressOffset>0</addressOffset></register>'
            ),
            "not derived from this one",
        ),
        (
            device(
                "<cluster><name>C</name><addressOffset>0</addressOffset><cluster derivedFrom='C'><name>E</name><addressOffset>0</addressOffset></cluster></cluster>"
            ),
            "more than 16 clusters",
        ),
        (
            device(bits('<bitRange>[3:0]</bitRange><enumeratedValues derivedFrom="E"/>')),
            "got derivedFrom 'E', allowed is the name of other enumeratedValues",
        ),
        (
            device(
                bits(
                    "<bitRange>[3:0]</bitRange><enumeratedValues><enumeratedValue><name>A</name><value>x</value></enumeratedValue></enumeratedValues>"
                )
            ),
            "enumeratedValue A: got value 'x'",
        ),
    ],
)
def test_broken_svd_is_refused_with_its_line(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(svd_module, "MOST_ELEMENTS", 4096)
    monkeypatch.setattr(svd_names, "MOST_STEPS", 4096)
    monkeypatch.setattr(xml, "MOST_BYTES", 2**23)
    monkeypatch.setattr(placing, "MOST_ROWS", 1000)
    path = written(tmp_path, text, "x.svd")
    assert refused(lambda: read_svd(path), said).startswith(f"{path}")


def test_what_svd_says_and_a_table_does_not_is_told(tmp_path: Path) -> None:
    text = device(
        bits(
            "<bitRange>[1:0]</bitRange><enumeratedValues><enumeratedValue><name>A</name><value>#1x</value></enumeratedValue>"
            "<enumeratedValue><name>B</name><isDefault>true</isDefault></enumeratedValue></enumeratedValues>"
        )
        + "\n<register><name>S</name><alternateRegister>R</alternateRegister><addressOffset>0</addressOffset></register><odd/>"
    )
    path = written(tmp_path, text, "x.svd")
    table, told = read(path, read_svd)
    assert told == [
        f"{path}: not carried over (1 register): {path}, line 2: register S at 0x0, where R lies; {path}, line 1: A of R_F, whose "
        f"value #1x has bits that do not matter; {path}, line 1: B of R_F, which has no number; 1 more"
    ]
    assert table.registers == [("P", 0, "R")]


def test_svd_as_makers_write_it(tmp_path: Path) -> None:
    def field(name: str, high: int, low: int) -> str:
        return f"<field><name>{name}</name><bitRange>[{high}:{low}]</bitRange></field>"

    def small(name: str, offset: int, size: int, fields: str = "") -> str:
        return f"<register><name>{name}</name><addressOffset>{offset}</addressOffset><size>{size}</size><fields>{fields}</fields></register>"

    body = (
        register(
            field("RESERVED", 3, 0)
            + field("EN", 4, 4)
            + field("RESERVED", 9, 5)
            + "\n"
            + field("ALL", 31, 5),
            "<resetValue>0x</resetValue>",
        )
        + small("WORD", 4, 16)
        + "\n"
        + small("LOW", 4, 8)
        + small("HIGH", 6, 8)
        + small("Q", 8, 32)
        + small("Q", 12, 32)
    )
    path = written(tmp_path, device(body), "x.svd")
    table, told = read(path, read_svd)
    assert told == [
        f"{path}: not carried over (1 register): {path}, line 3: register LOW at 0x4, where WORD lies; {path}, line 2: field ALL of "
        f"register R, which shares bits with another field; {path}, line 1: the reset value of R, which is not a number"
    ]
    assert cells(table.rows, "register field offset lsb width") == [
        ("R", "RESERVED", 0, 0, 4),
        ("R", "EN", 0, 4, 1),
        ("R", "RESERVED_5", 0, 5, 5),
        ("WORD_HIGH", "WORD", 4, 0, 16),
        ("WORD_HIGH", "HIGH", 4, 16, 8),
        ("Q", "Q", 8, 0, 32),
        ("Q_0xc", "Q_0xc", 12, 0, 32),
    ]
    assert again(table, "svd", tmp_path) == table


def test_a_register_that_stands_twice_is_told(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        device(f"{register()}\n{register(more='<alternateGroup>G</alternateGroup>')}"),
        "x.svd",
    )
    with pytest.warns(UserWarning, match="line 2: the second register R at 0x0$"):
        assert read_svd(path).registers == [("P", 0, "R")]


def test_what_rdl_says_and_a_table_does_not_is_told(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "addrmap one { reg { field {} f; } q; };\naddrmap two { reg { field {} f; } q @0;\n"
        "external mem { mementries = 16; memwidth = 32; } ram @0x40; };\naddrmap whole { two t; };",
        "x.rdl",
    )
    table, told = read(path, here)
    assert told == [f"{path}: not carried over: {path}, line 3: memory ram of 64 bytes"]
    assert table.registers == [("t", 0, "q"), ("one", 0, "q")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "addrmap a { <% system('touch OWNED') %> reg { field {} f; } q; };",
            "line 1: got a directive of Perl",
        ),
        ("// <%\naddrmap a { reg { field {} f; } q; };", "line 1: got a directive of Perl"),
        ('\n`include "../secret.rdl"\n', "line 2: include: got '../secret.rdl'"),
        ('`include "/etc/passwd"\n', "include: got '/etc/passwd'"),
        ('`include "link.rdl"\n', "include: got 'link.rdl'"),
        ('`include "x.rdl"\n', "include: got 'x.rdl'"),
        ("`include none\n", "include: got ''"),
        ('`include "perl.rdl"\n', "perl.rdl, line 1: got a directive of Perl"),
        ('`include "half.rdl"\n' * 5, "bytes with all includes"),
        ('`include "small.rdl"\n' * 65, "more than 64 files with all includes"),
        ("addrmap a {\nreg { field {} f } q; };", "line 2: "),
        ("addrmap a { reg { field {} f[40:0]; } q; };", "line 1: "),
        ("reg { field {} f; } q;", "allowed is a description"),
        (
            "addrmap a { reg { field {} f; } q[1000000]; };",
            "q, with which the number of registers and fields is above 2048",
        ),
        (
            "addrmap a { regfile { regfile { reg { field {} f; } q[999]; } q[999]; } q[999]; };",
            "above 2048",
        ),
        ("addrmap a { reg { regwidth = 2048; field {} f; } q; };", "register q: got 2048 bits"),
        ("addrmap a { \xff", "line 1: "),
        ("addrmap a { reg { field {} f[3:0]; field {} g[3:3]; } q; };", "line 1: "),
        (
            "property npulab_at { component = field; type = longint unsigned; }; property npulab_value { component = field; type = string; };"
            'addrmap a { reg { field { npulab_value = "enum:none"; } f[3:0]; } q; };',
            "got enum 'none'",
        ),
        (
            'property npulab_value { component = field; type = string; }; addrmap a { reg { field { npulab_value = "raw/2"; } f[3:0]; } q; };',
            "field f of register q: value",
        ),
    ],
)
def test_broken_rdl_is_refused_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    pytest.importorskip("systemrdl")
    (tmp_path / "in").mkdir()
    outside = written(tmp_path, "addrmap s { };", "secret.rdl")
    (tmp_path / "in" / "link.rdl").symlink_to(outside)
    written(tmp_path / "in", "<% %>", "perl.rdl")
    written(tmp_path / "in", "", "small.rdl")
    written(tmp_path / "in", " " * 2**21, "half.rdl")
    path = written(tmp_path / "in", text, "x.rdl")

    def read() -> RegisterTable:
        refuse(path)
        return table_of(path, compiled(path, 2048))

    assert str(tmp_path / "in") in refused(read, said)
    assert not [*tmp_path.rglob("OWNED")]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (
            "addrmap a {\n reg { field {} f[" + "(" * 5000 + "1" + ")" * 5000 + "]; } q; };",
            "x.rdl, line 2: ",
        ),
        ("addrmap a {" * 5000, "x.rdl, line 1: "),
        ('// "\n/* " */' + "[(" * 51, "x.rdl, line 2: "),
        ('{\n`include "open.rdl"\n`include "open.rdl"\n', "open.rdl, line 1: "),
    ],
)
def test_brackets_have_a_depth(text: str, where: str, tmp_path: Path) -> None:
    """Before the compiler, which takes 19 s for 5,000, sees them."""
    written(tmp_path, "{" * 60, "open.rdl")
    refused(
        lambda: refuse(written(tmp_path, text, "x.rdl")),
        f"{where}got brackets 101 deep, allowed are at most 100",
    )


def test_brackets_that_say_nothing_have_none(tmp_path: Path) -> None:
    text = (
        "{}" * 5000
        + "// "
        + "(" * 200
        + "\n/*"
        + "(" * 200
        + '*/ "'
        + '(\\"' * 200
        + '"'
        + "(" * 100
    )
    refuse(written(tmp_path, text, "x.rdl"))


def test_an_include_in_the_folder_is_read(tmp_path: Path) -> None:
    written(tmp_path, "reg q_t { field {} f[3:0]; };\n", "types.rdl")
    path = written(tmp_path, '`include "types.rdl"\naddrmap a { q_t q @0x8; };', "x.rdl")
    assert fields_of(here(path)) == {("a", 8, "q", "f", 0, 4)}


def test_what_ends_the_compiler_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("systemrdl")
    deep = written(
        tmp_path,
        "addrmap a {" + "regfile {" * 20000 + "reg { field {} f; } q;" + "} q;" * 20000 + "};",
        "deep.rdl",
    )
    with monkeypatch.context() as patched:  # what macros become is not counted before
        patched.setattr(rdl_module, "MOST_DEEP", 10**6)
        refused(lambda: read_rdl(deep), "or that ends it (an end by signal")
    monkeypatch.setattr(rdl_module, "SECONDS", 20)  # 0.5 s of CPU, more under load
    bomb = (
        "".join(f"`define A{n} {f'`A{n - 1} ' * 8}\n" for n in range(20, 0, -1))
        + "`define A0 reg { field {} f; } q;\naddrmap a { `A20 };"
    )
    path = written(tmp_path, bomb, "bomb.rdl")
    refused(lambda: read_rdl(path), "got macros that grow too far")
    monkeypatch.setattr(rdl_module, "SECONDS", 0.4)
    many = "".join(f"reg {{ field {{}} f; }} q{n};\n" for n in range(20000))
    refused(
        lambda: read_rdl(written(tmp_path, f"addrmap a {{ {many} }};", "many.rdl")),
        "takes the compiler of SystemRDL more than 0.4 seconds",
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("first", "again", "use"),
    [
        ("", "`A{0} `A{0}", "`A{0}"),
        (" reg { field {} f; } q;", "`A{0} `A{0}", "`A{0}"),
        ("(x) x", "`A{0}(x) `A{0}(x)", "`A{0}(q)"),
        ("(x) x", "`A{0}(`A{0}(x))", "`A{0}(q)"),
        ("(x) x x", "`A{0}(x x)", "`A{0}(q)"),
    ],
)
def test_macros_that_double_are_refused_at_once(
    first: str, again: str, use: str, tmp_path: Path
) -> None:
    pytest.importorskip("systemrdl")
    arguments = "(x)" if "(" in use else ""
    lines = [f"`define A0{first}"]
    for number in range(1, 41):
        lines.append(f"`define A{number}{arguments} {again.format(number - 1)}")
    path = written(
        tmp_path,
        "\n".join([*lines, f"addrmap a {{ {use.format(40)} reg {{ field {{}} f; }} r; }};"]),
        "doubling.rdl",
    )
    began = time.monotonic()
    refused(
        lambda: read_rdl(path),
        "got macros that grow too far, allowed are 65536 uses, those inside macros too, and 2097152 characters",
    )
    assert time.monotonic() - began < 20  # of the compiler's 60; about one on a machine at rest


def test_macros_that_many_registers_use_are_read(tmp_path: Path) -> None:
    pytest.importorskip("systemrdl")
    body = "\n".join(f"`R(q{number})" for number in range(200))
    path = written(
        tmp_path,
        f"`define F field {{}} f\n`define R(n) reg {{ `F; }} n;\naddrmap a {{ {body} }};",
        "uses.rdl",
    )
    assert len(read_rdl(path).rows) == 200


def clusters(*counts: int, inner: str = "", step: int = 4) -> str:
    text = inner or bits("<bitRange>[3:0]</bitRange>")
    for depth, count in enumerate(counts):
        text = (
            f"<cluster><dim>{count}</dim><dimIncrement>{step}</dimIncrement><name>C{depth}%s</name>"
            f"<addressOffset>0</addressOffset>{text}</cluster>"
        )
    return text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            device(clusters(60000, 60000, 60000)),
            "cluster P.C2%s.C1%s: got 10800120001 elements with those of arrays, allowed are no more than 524288 elements in all",
        ),
        (device(clusters(700, 700)), "cluster P.C1%s: got 1471401 elements"),
        (
            device(clusters(*[100] * 9)),
            "cluster P.C8%s.C7%s.C6%s.C5%s.C4%s.C3%s.C2%s: got 3020201 elements",
        ),
        (
            device(clusters(400, 400, inner=register())),
            "cluster P.C1%s: got 160000 registers with those of arrays, allowed are no more than 131072",
        ),
        (
            device(
                clusters(9, inner=clusters(300, 300))
                + "<cluster derivedFrom='C0%s'><name>D</name></cluster>"
            ),
            "got",
        ),
        (
            device(
                clusters(
                    1,
                    600,
                    inner=register(
                        "<field><dim>900</dim><dimIncrement>0</dimIncrement><name>F%s</name><bitRange>[0:0]</bitRange></field>"
                    ),
                )
            ),
            "got",
        ),
        (
            device(
                register(),
                "<dim>131072</dim><dimIncrement>4</dimIncrement><name>P%s</name><baseAddress>0</baseAddress>",
            )
            .replace("<register>", "<register><dim>131072</dim><dimIncrement>4</dimIncrement>")
            .replace("<name>R</name>", "<name>R%s</name>"),
            "peripheral P%s: got",
        ),
        (
            device(clusters(60000, inner=register())).partition("</peripherals>")[0]
            + device(clusters(80000, inner=register())).partition("<peripherals>")[2],
            "peripheral, with those before it: got 140000 registers",
        ),
    ],
)
def test_arrays_in_arrays_are_counted_before_they_are_made(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*given: object) -> None:
        raise AssertionError("a register was made")

    monkeypatch.setattr(svd_module, "_register", made)
    path = written(tmp_path, text, "x.svd")
    assert "dim 0" not in refused(lambda: read_svd(path), said)


def test_a_register_of_a_thousand_million_bits_takes_no_memory(tmp_path: Path) -> None:
    text = TOY.replace("<size>16</size>", "<size>1194871247</size>")
    assert text != TOY
    path = written(tmp_path, text, "x.svd")
    tracemalloc.start()
    refused(lambda: read_svd(path), "register H: got 1194871247 bits at offset 0x32")
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


@pytest.mark.parametrize("count", [150, pytest.param(5000, marks=pytest.mark.long)])
def test_changed_svd_is_read_or_refused(count: int, tmp_path: Path) -> None:
    texts = [TOY.encode(), svd_text(SMALL).encode()]
    said = refusals(read_svd, texts, count, tmp_path / "changed", 16)
    assert count // 4 < len(said) < count


@pytest.mark.parametrize("count", [3, pytest.param(300, marks=pytest.mark.long)])
def test_changed_rdl_is_read_or_refused(count: int, tmp_path: Path) -> None:
    pytest.importorskip("systemrdl")
    refusals(
        read_rdl, [CHIP.encode(), rdl_text(SMALL).encode()], count, tmp_path / "changed.rdl", 17
    )


def test_odd_characters_are_refused() -> None:
    for text in ("a\0b", "\x1b[31m", "\ud800", "\uffff"):
        refused(
            lambda text=text: RegisterTable.of([{"field": text, "lsb": 0, "width": 1}]),
            "got the character U+",
            "allowed is text",
        )
    assert RegisterTable.of([{"field": "a\n b", "lsb": 0, "width": 1}]).rows[0]["field"] == "a b"


def in_cluster(name: str, first: int, step: int, registers: dict[str, int]) -> str:
    inside = "".join(
        f"<register><name>{inner}</name><addressOffset>{at:#x}</addressOffset></register>"
        for inner, at in registers.items()
    )
    return (
        f"<cluster><dim>3</dim><dimIncrement>{step:#x}</dimIncrement><name>{name}</name>"
        f"<addressOffset>{first:#x}</addressOffset>{inside}</cluster>"
    )


def test_a_cluster_longer_than_its_increment_is_told(tmp_path: Path) -> None:
    """rust-embedded/svdtools#149 and embassy-rs/chiptool#94: the addresses are 0xC20 + 0x20 n, which
    svd2rust refuses and others get wrong.
    """
    text = device(
        in_cluster("SECCHANNEL[%s]", 0, 0x20, {"A": 0xC20, "B": 0xC24, "C": 0xC28}),
        "<name>P</name><baseAddress>0</baseAddress><size>32</size>",
    )
    with pytest.warns(
        UserWarning,
        match=r"a\.svd, line \d+: what is meant by the cluster P\.SECCHANNEL\[%s\], which has a "
        r"register at 0xc28 and an increment of 0x20: its elements are read as overlapping$",
    ):
        table = read_svd(written(tmp_path, text, "a.svd"))
    found = {row["register"]: row["offset"] for row in table.rows}
    assert found == {
        f"SECCHANNEL[{n}].{name}": 0xC20 + 0x20 * n + at
        for n in range(3)
        for at, name in ((0, "A"), (4, "B"), (8, "C"))
    }


def test_clusters_between_each_other_are_not_told(tmp_path: Path) -> None:
    """AdaCore/svd2ada#27: arrays that interleave; and a cluster that just fits its increment."""
    arrays = "".join(
        f"<register><dim>6</dim><dimIncrement>8</dimIncrement><name>C%s{name}</name>"
        f"<addressOffset>{first:#x}</addressOffset></register>"
        for name, first in (("SC", 0xC), ("V", 0x10))
    )
    fits = in_cluster("FITS[%s]", 0x100, 8, {"A": 0, "B": 4})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = read_svd(written(tmp_path, device(arrays + fits), "a.svd"))
    found = {row["register"]: row["offset"] for row in table.rows}
    assert [found[f"C{n}{name}"] for n in range(6) for name in ("SC", "V")] == [
        *range(0xC, 0x3C, 4)
    ]
    assert found["FITS[2].B"] == 0x114
