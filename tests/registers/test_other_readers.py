"""Awkward files as ElementTree, systemrdl-compiler and cmsis-svd read them, and drawings of maps."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from round_trip import places, read

import npulab
from npulab.registers.formats import RegisterTable

AWKWARD_XML = """<?xml version="1.0" encoding="UTF-8"?>
<database xmlns="http://nouveau.freedesktop.org/">
<enum name="chip" bare="yes"><value name="OLD" value="7"/><value name="MID" value="2"/><value name="NEW" value="9"/></enum>
<enum name="kind"><value name="CONV" value="0"/><value name="POOL" value="3"/></enum>
<bitset name="sizes" inline="yes"><bitfield name="W" low="0" high="12" type="uint"/><bitfield name="H" low="16" high="28"/></bitset>
<domain name="CORE" width="8" varset="chip">
  <reg32 offset="0x0000" name="ID"><brief>who it is</brief></reg32>
  <reg32 offset="0x0004" name="CTRL">
    <bitfield name="KIND" low="0" high="1" type="kind"/>
    <bitfield name="MODE" low="4" high="6"><value name="A" value="1"/><value name="B" value="0x7"/></bitfield>
    <bitfield name="ON" pos="31" type="boolean"/>
    <bitfield name="BIAS" low="8" high="15" type="int"/>
    <bitfield name="PTR" low="16" high="29" shr="4"/>
  </reg32>
  <reg32 offset="0x0008" name="SIZE" type="sizes"/>
  <reg64 offset="0x0010" name="WIDE"/>
  <reg32 offset="0x0020" name="LUT" length="3" stride="4"/>
  <array name="UNIT" offset="0x100" length="2" stride="0x40">
    <reg32 offset="0x0" name="A"><bitfield name="X" low="0" high="7" type="hex"/></reg32>
    <stripe length="3" stride="8">
      <reg32 offset="0x4" name="B"><bitfield name="Y" low="3" high="9"/></reg32>
      <reg32 offset="0x8" name="C"/>
    </stripe>
    <stripe name="PAIR" offset="0x20" length="2" stride="8"><reg32 offset="0" name="D"/></stripe>
  </array>
  <stripe variants="OLD"><reg32 offset="0x200" name="V"><bitfield name="N" low="0" high="3"/></reg32></stripe>
  <stripe variants="MID-NEW"><reg32 offset="0x200" name="V"><bitfield name="N" low="0" high="7"/></reg32></stripe>
  <reg32 offset="0x204" name="F"><bitfield name="G" low="0" high="3" variants="-MID"/></reg32>
  <reg32 offset="0x208" name="FX"><bitfield name="R" low="0" high="15" type="ufixed" radix="8"/></reg32>
  <reg32 offset="0x20c" name="PART" low="4" high="11" type="uint"/>
  <reg32 offset="0x210" name="BIT" pos="3" type="boolean"/>
  <reg64 offset="0x218" name="AT" low="4" high="47" type="address" align="16"/>
</domain>
</database>
"""


AWKWARD_RDL = """
enum kind { CONV = 0; POOL = 3; };
reg sized #(longint unsigned W = 13) {
  default sw = rw;
  field { desc = "columns"; } wd[W-1:0];
  field { } ht[16+W-1:16];
};
addrmap core #(longint unsigned N = 2) {
  default regwidth = 32;
  reg { field { encode = kind; } kind[2]; field { sw = r; } busy[31:31]; } ctrl @ 0x0;
  sized s;
  sized #(.W(5)) t @ 0x10;
  regfile { reg { field {} x[8]; field {} y[8]; } a; sized #(.W(N)) b[3] @ 0x8 += 0x8; } unit[N] @ 0x100 += 0x40;
  reg { regwidth = 64; field {} addr[39:0]; field {} rest[63:40]; } wide @ 0x200;
  reg { regwidth = 16; accesswidth = 16; field {} lo[15:0]; } half[2] @ 0x210;
  reg { field { enum e { OFF = 0; ON = 1; }; encode = e; } on[4:4]; } last @ 0x300;
  reg { field {} f[32]; } grid[2][3] @ 0x400;
};
"""


AWKWARD_SVD = """<?xml version="1.0" encoding="utf-8"?>
<device schemaVersion="1.3"><vendor>n</vendor><name>TEST</name><version>1</version><description>t</description>
 <addressUnitBits>8</addressUnitBits><width>32</width><size>32</size><access>read-write</access>
 <peripherals>
  <peripheral><name>CORE</name><description>main</description><baseAddress>0x40000000</baseAddress>
   <registers>
    <register><name>CTRL</name><description>control</description><addressOffset>0x0</addressOffset>
     <fields>
      <field><name>KIND</name><bitRange>[1:0]</bitRange><enumeratedValues><name>KIND</name>
       <enumeratedValue><name>CONV</name><value>0</value></enumeratedValue>
       <enumeratedValue><name>POOL</name><value>#11</value></enumeratedValue></enumeratedValues></field>
      <field><name>MODE</name><lsb>4</lsb><msb>6</msb></field>
      <field><name>ON</name><bitOffset>31</bitOffset><bitWidth>1</bitWidth></field>
      <field><dim>3</dim><dimIncrement>2</dimIncrement><name>CH%s</name><bitOffset>8</bitOffset><bitWidth>2</bitWidth></field>
     </fields></register>
    <register derivedFrom="CTRL"><name>CTRL2</name><addressOffset>0x4</addressOffset></register>
    <register><dim>4</dim><dimIncrement>4</dimIncrement><name>LUT[%s]</name><addressOffset>0x10</addressOffset>
     <fields><field><name>V</name><bitRange>[15:0]</bitRange></field></fields></register>
    <register><dim>2</dim><dimIncrement>8</dimIncrement><dimIndex>A,B</dimIndex><name>P%s</name><addressOffset>0x20</addressOffset>
     <fields><field><name>Q</name><bitRange>[3:0]</bitRange></field></fields></register>
    <cluster><dim>2</dim><dimIncrement>0x20</dimIncrement><name>UNIT[%s]</name><addressOffset>0x100</addressOffset>
     <register><name>X</name><addressOffset>0x0</addressOffset><fields><field><name>F</name><bitRange>[7:4]</bitRange></field></fields></register>
     <register><name>Y</name><addressOffset>0x4</addressOffset><size>16</size><fields><field><name>G</name><bitRange>[7:4]</bitRange></field></fields></register>
     <register><name>Z</name><addressOffset>0x6</addressOffset><size>16</size><fields><field><name>H</name><bitRange>[9:4]</bitRange></field></fields></register>
    </cluster>
    <register><name>W</name><addressOffset>0x200</addressOffset><size>64</size><fields><field><name>ADDR</name><bitRange>[39:0]</bitRange></field></fields></register>
   </registers></peripheral>
  <peripheral derivedFrom="CORE"><name>CORE1</name><baseAddress>0x40010000</baseAddress></peripheral>
 </peripherals>
</device>
"""


Bits = set[tuple[str, str, str, tuple[int, ...]]]  # block, feature, last name of the field, places


def bits_of(table: RegisterTable) -> Bits:
    return {
        (block, feature, name.rpartition(".")[2], bits)
        for (block, feature, name), bits in places(table).items()
    }


def run_of(first: int, last: int) -> tuple[int, ...]:
    return tuple(range(first, last + 1))


def by_elementtree(path: Path) -> Bits:
    """The awkward database, expanded by a plain loop."""
    root, out = ET.parse(path).getroot(), set()
    for one in root.iter():
        one.tag = one.tag.partition("}")[2]
    bitsets = {one.get("name"): one for one in root.findall("bitset")}
    chips = [one.get("name") for one in root.find("enum[@name='chip']")]

    def of(one: ET.Element, around: list[str]) -> list[str]:
        if not one.get("variants"):
            return around
        first, dash, last = one.get("variants").partition("-")
        return chips[
            chips.index(first) if first else 0 : chips.index(last) + 1
            if dash
            else chips.index(first) + 1
        ]

    def walk(around: ET.Element, block: str, offset: int, having: list[str]) -> None:
        for one in around:
            length, step = int(one.get("length", "1"), 0), int(one.get("stride", "4"), 0)
            for n in range(length if one.tag in ("reg32", "reg64", "array", "stripe") else 0):
                place = offset + int(one.get("offset", "0"), 0) + n * step
                if one.tag in ("array", "stripe"):
                    walk(one, block, place, of(one, having))
                    continue
                size = int(one.tag[3:])
                fields = [*one.findall("bitfield"), *bitsets.get(one.get("type"), ())]
                for field in fields or [
                    ET.Element("bitfield", {"low": "0", "high": str(size - 1), **one.attrib})
                ]:
                    low, high = (int(field.get("pos", field.get(end))) for end in ("low", "high"))
                    for chip in of(field, having):
                        out.add(
                            (
                                block,
                                chip,
                                field.get("name"),
                                run_of(place * 8 + low, place * 8 + high),
                            )
                        )

    for domain in root.findall("domain"):
        walk(domain, domain.get("name"), 0, [""])
    return out


def by_systemrdl(path: Path) -> Bits:
    from systemrdl import RDLCompiler
    from systemrdl.node import FieldNode

    compiler = RDLCompiler()
    compiler.compile_file(str(path))
    top = compiler.elaborate().top
    return {
        (
            top.inst_name,
            "",
            one.inst_name,
            run_of(
                one.parent.absolute_address * 8 + one.low,
                one.parent.absolute_address * 8 + one.high,
            ),
        )
        for one in top.descendants(unroll=True)
        if isinstance(one, FieldNode)
    }


def by_cmsis_svd(path: Path) -> Bits:
    from cmsis_svd.parser import SVDParser

    out = set()
    for block in SVDParser.for_xml_file(str(path)).get_device().get_peripherals():
        fields = {register.name: register.get_fields() for register in block.get_registers()}
        for register in block.get_registers():
            # the package leaves the fields of a derived register to its reader
            for one in fields[register.name] or fields[register.derived_from or "CTRL"]:
                first = register.address_offset * 8 + one.bit_offset
                out.add((block.name, "", one.name, run_of(first, first + one.bit_width - 1)))
    return out


@pytest.mark.parametrize(
    ("suffix", "text", "oracle", "fields"),
    [
        (".xml", AWKWARD_XML, by_elementtree, 39),
        (".rdl", AWKWARD_RDL, by_systemrdl, 33),
        (".svd", AWKWARD_SVD, by_cmsis_svd, 50),
    ],
)
def test_awkward_files_say_what_another_reader_finds(
    suffix: str, text: str, oracle: Callable[[Path], Bits], fields: int, tmp_path: Path
) -> None:
    path = tmp_path / f"awkward{suffix}"
    path.write_text(text)
    table, told = read(path)
    assert told == []
    assert bits_of(table) == oracle(path)
    assert len(places(table)) == fields


def test_awkward_files_keep_their_names_and_meanings(tmp_path: Path) -> None:
    tables = {}
    for suffix, text in ((".xml", AWKWARD_XML), (".rdl", AWKWARD_RDL), (".svd", AWKWARD_SVD)):
        (tmp_path / f"a{suffix}").write_text(text)
        tables[suffix] = npulab.read_map(tmp_path / f"a{suffix}")
    xml = {
        row["register"] + "." + row["field"] + row.get("feature", ""): row
        for row in tables[".xml"].rows
    }
    assert {
        "UNIT[1].A.X",
        "UNIT[1].B[2].Y",
        "UNIT[0].PAIR[1].D.D",
        "LUT[2].LUT",
        "V.NNEW",
        "F.GMID",
    } <= {*xml}
    assert [xml[name]["value"] for name in ("CTRL.KIND", "CTRL.BIAS", "CTRL.PTR", "FX.R")] == [
        "enum:kind",
        "signed",
        "raw*16",
        "raw>>8",
    ]
    enums = tables[".xml"].enums
    assert (enums["kind"], enums[xml["CTRL.MODE"]["value"].removeprefix("enum:")]) == (
        {0: "CONV", 3: "POOL"},
        {1: "A", 7: "B"},
    )
    assert "who it is" in xml["ID.ID"]["note"]
    assert (xml["AT.AT"]["address"], xml["AT.AT"]["align"]) == ("yes", 16)
    rdl = {row["register"] + "." + row["field"]: row for row in tables[".rdl"].rows}
    assert {"unit[1].b[2].ht", "grid[1][2].f", "s.wd"} <= {*rdl}
    assert (
        tables[".rdl"].enums[rdl["ctrl.kind"]["value"].removeprefix("enum:")],
        rdl["s.wd"]["note"],
    ) == ({0: "CONV", 3: "POOL"}, "columns")
    svd = {(row["block"], row["register"], row["field"]) for row in tables[".svd"].rows}
    assert {
        ("CORE", "PB", "Q"),
        ("CORE1", "LUT[3]", "V"),
        ("CORE1", "CTRL2", "CH2"),
        ("CORE", "UNIT[1].X", "F"),
    } <= svd
    assert tables[".svd"].enums == {"KIND": {0: "CONV", 3: "POOL"}}
