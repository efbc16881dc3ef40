"""Register maps from and to rnndb XML and tables."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import shared
from hypothesis import given, settings, strategies as st
from pace import limit
from refusals import refused
from round_trip import cells, read, refusals
from test_cli import run  # noqa: F401 - a fixture

from npulab.registers.formats import (
    RegisterTable,
    map_files,
    placing,
    read_csv,
    read_map,
    read_rnndb,
    rnndb as module,
    rnndb_text,
    xml,
)
from npulab.registers.map import RegisterMap

TARGETS = Path(module.__file__).parents[2] / "npus"
HEAD = '<database xmlns="http://nouveau.freedesktop.org/">'
# in the manner of etna_viv's files, of no device
COMMON = f"""<?xml version="1.0" encoding="UTF-8"?>
{HEAD}
<domain name="MEMORY"/>
<enum name="GENERATION"><value name="G1" value="1"/><value name="G2" value="2"/><value name="G3" value="3"/></enum>
<enum name="ROUNDING" brief="how to round"><value value="0" name="FLOOR"/><value value="1" name="HALF_EVEN"><doc>as in C</doc></value></enum>
<bitset name="WINDOW"><bitfield name="X" low="0" high="7" type="uint"/><bitfield name="Y" low="8" high="15" type="int"/></bitset>
<group name="UNIT">
  <reg32 offset="0x0" name="CONTROL">
    <doc>What   it
    does.</doc>
    <bitfield name="MODE" low="0" high="1"><value value="0" name="OFF"/><value value="2" name="FAST"/></bitfield>
    <bitfield name="GO" pos="31" type="boolean" brief="start"/>
  </reg32>
  <reg32 offset="0x4" name="SCALE" type="fixed" radix="16"/>
</group>
</database>
"""
SNIPPET = f"""<?xml version="1.0" encoding="UTF-8"?>
{HEAD}
<import file="common.xml"/>
<copyright year="2024">
<author name="A. Nobody" email="a@example.org"><nick name="nobody"/>Everything.</author>
<license>
Do as you like &amp; say so.
</license>
</copyright>
<domain name="NN" brief="an engine">
  <reg32 offset="0x0" name="ID" type="hex"/>
  <reg32 offset="0x4" name="SIZE" type="WINDOW"/>
  <reg32 offset="0x8" name="CONFIG">
    <bitfield name="ROUND" low="4" high="6" type="ROUNDING"/>
    <bitfield name="AT" low="8" high="31" shr="8" type="MEMORY"/>
    <bitfield name="WIN" low="0" high="3" variants="G2-"/>
  </reg32>
  <reg64 offset="0x10" name="BASE" type="uint"/>
  <reg64 offset="0x18" name="PAIR"><bitfield name="LOW" low="0" high="11"/><bitfield name="MID" low="28" high="40" type="int"/></reg64>
  <stripe name="PS" offset="0x100">
    <reg32 offset="0x0" name="GAIN" length="3" stride="4" type="float"/>
    <array name="CORE" offset="0x20" stride="0x10" length="2">
      <use-group name="UNIT"/>
      <reg32 offset="0x8" name="WEIGHT" length="2"><bitfield name="P" low="0" high="15" type="ufixed" radix="8" shr="1"/></reg32>
    </array>
  </stripe>
  <stripe name="OLD" varset="GENERATION" variants="G1"><reg32 offset="0x200" name="HEADER"><bitfield name="OP" pos="0"/></reg32></stripe>
  <stripe name="NEW" varset="GENERATION" variants="G2-G3"><reg32 offset="0x200" name="HEADER"><bitfield name="OP" pos="1"/></reg32></stripe>
</domain>
</database>
"""


@pytest.fixture
def registers() -> Path:
    return shared("data/rknpu/registers.xml")


def written(folder: Path, text: str, name: str = "map.xml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def domain(body: str, before: str = "") -> str:
    return f'{HEAD}{before}<domain name="A">{body}</domain></database>'


@pytest.fixture
def snippet(tmp_path: Path) -> RegisterTable:
    written(tmp_path, COMMON, "common.xml")
    return read_rnndb(
        written(
            tmp_path,
            SNIPPET.replace(
                'low="0" high="3" variants="G2-"',
                'low="0" high="3" varset="GENERATION" variants="G2-"',
            ),
        )
    )


def again(table: RegisterTable, folder: Path) -> RegisterTable:
    return read_rnndb(written(folder, rnndb_text(table), "again.xml"))


# A public file


def test_public_file_as_the_facts_count_it(registers: Path) -> None:
    table = read_rnndb(registers)
    assert table.counts == {
        "blocks": 10,
        "registers": 199,
        "fields": 711,
        "enums": 1,
        "bits": 199 * 32,
    }
    facts = pd.read_csv(shared("facts/rknpu_fields.csv"))
    want = {
        (block, int(at, 0), register, field, lsb, width)
        for block, at, register, field, lsb, width in facts[
            ["block", "address", "register", "field", "lsb", "width"]
        ].itertuples(index=False)
    }
    assert {*cells(table.rows, "block offset register field lsb width")} == want
    assert table.enums["target"][0x800] == "CORE"
    assert table.copyright.splitlines()[:2] == [
        "Copyright 2024",
        "Author: Tomeu Vizoso <tomeu@tomeuvizoso.net> (tomeu): Initial Author.",
    ]
    assert "THE SOFTWARE IS PROVIDED" in table.copyright


def test_public_file_exported_and_imported_is_equal(registers: Path, tmp_path: Path) -> None:
    table = read_rnndb(registers)
    back = again(table, tmp_path)
    assert back == table
    assert back.map().fields.equals(table.map().fields)
    for path, data in map_files(table, tmp_path / "registers.csv").items():
        path.write_bytes(data)
    assert read_csv(tmp_path / "registers.csv") == table
    read = RegisterMap.read(tmp_path / "registers.csv", dense=False)
    assert read.fields.equals(table.map().fields)
    assert not read.lint()
    words = np.random.RandomState(1).randint(0, 2**32, (3, len(read)), np.uint32)
    assert np.array_equal(read.encode(read.decode(words)), words)


def test_the_target_has_the_table_of_the_public_file(
    registers: Path,
    run: Any,
    tmp_path: Path,
) -> None:
    assert run("map", registers, tmp_path / "registers.csv")[0] == 0
    ours = {
        name: (TARGETS / "rockchip" / name).read_text() for name in ("registers.csv", "enums.csv")
    }
    assert (tmp_path / "registers.csv").read_text() == ours["registers.csv"]
    enums = (tmp_path / "enums.csv").read_text().splitlines()
    # RK3568 has a unit that the public file of RK3588 has not
    others = ["target,0x400,UNIT_2000", "unit,0x2000,UNIT_2000"]
    assert sorted([*enums, *others]) == sorted(ours["enums.csv"].splitlines())


# What elements mean


def test_snippet_says_all_of_it(snippet: RegisterTable) -> None:
    rows = {
        (row["register"], row["field"], row.get("feature", ""), row["offset"]): row
        for row in snippet.rows
    }
    known = snippet.map()

    def bits(name: str) -> tuple[str, str]:
        return known[name].bits, str(known[name].meaning)

    assert bits("ID.ID") == ("0[31:0]", "")
    assert (bits("SIZE.X"), bits("SIZE.Y")) == (("1[7:0]", ""), ("1[15:8]", "signed"))
    assert (bits("ROUND"), known["ROUND"].text(1)) == (("2[6:4]", "enum:ROUNDING"), "HALF_EVEN")
    assert (bits("AT"), known["AT"].address) == (("2[31:8]", "raw*256"), True)
    assert known["BASE.BASE"].bits == "3[31:0] 4[31:0]"
    assert bits("LOW") == ("5[11:0]", "")
    assert bits("PAIR.MID") == ("5[31:28] 6[8:0]", "signed")
    assert bits("PS.GAIN[2].GAIN") == ("9[31:0]", "f32")
    assert bits("PS.CORE[1].SCALE.SCALE")[1] == "signed raw>>16"
    assert bits("PS.CORE[1].WEIGHT[1].P")[1] == "raw*2>>8"
    assert [row["offset"] for row in snippet.rows if row["field"] == "P"] == [
        0x128,
        0x12C,
        0x138,
        0x13C,
    ]
    mode = known["PS.CORE[0].CONTROL.MODE"]
    assert (mode.meaning.enum, mode.names) == ("PS_CORE_CONTROL_MODE", ((0, "OFF"), (2, "FAST")))
    assert mode.note == "PS.CORE.CONTROL: What it does."
    assert known["PS.CORE[0].CONTROL.GO"].note == "start"
    assert snippet.features == ["G1", "G2", "G3"]
    assert rows["CONFIG", "WIN", "G3", 8]["width"] == 4
    assert ("CONFIG", "WIN", "G1", 8) not in rows
    assert [snippet.map([one])["OP"].bits.split("[")[1] for one in snippet.features] == [
        "0]",
        "1]",
        "1]",
    ]
    assert snippet.copyright == (
        "Copyright 2024\nAuthor: A. Nobody <a@example.org> (nobody): Everything.\n\n"
        "Do as you like & say so."
    )


def test_snippet_comes_back(snippet: RegisterTable, tmp_path: Path) -> None:
    text = rnndb_text(snippet)
    assert again(snippet, tmp_path) == snippet
    assert '<array offset="0x0120" name="PS.CORE" stride="0x10" length="2">' in text
    assert '<reg64 offset="0x0010" name="BASE" type="uint"/>' in text
    assert "npulab" not in text.replace('npulab:address="yes"', "").replace(
        'xmlns:npulab="urn:npulab:registers"', ""
    )
    assert rnndb_text(again(snippet, tmp_path)) == text


def test_a_domain_of_width_32_counts_bytes_where_all_are_multiples_of_4(tmp_path: Path) -> None:
    text = '<reg32 offset="0" name="A"/><reg32 offset="{}" name="B" length="2"/>'
    for second, want in (("4", [0, 4, 8]), ("1", [0, 4, 8]), ("3", [0, 12, 16])):
        path = written(tmp_path, domain(text.format(second)).replace('"A">', '"A" width="32">', 1))
        assert [row["offset"] for row in read_rnndb(path).rows] == want


def test_offsets_listed_and_registers_of_other_namespaces(tmp_path: Path) -> None:
    body = '<array offsets="0x10,0x40" name="X"><reg32 offset="4" name="R"/></array>'
    table = read_rnndb(written(tmp_path, domain(body).replace(f"{HEAD}", "<database>")))
    assert table.registers == [("A", 0x14, "X[0].R"), ("A", 0x44, "X[1].R")]


def test_what_has_no_place_is_told(tmp_path: Path) -> None:
    body = (
        '<reg32 offset="0" name="R"><bitfield name="F" low="0" high="3"><value name="A" value="1"/>'
        '<value name="B" value="1"/>\n<value name="C"/></bitfield><bitfield name="G" pos="9" type="strange"/></reg32>'
    )
    path = written(tmp_path, domain(body))
    table, told = read(path)
    assert told == [
        f"{path}: not carried over: {path}, line 1: B = 1, because A is 1 too; {path}, line 2: C has no number; "
        f"{path}, line 2: the type 'strange' of R_G, which nobody declares for 1 bits"
    ]
    assert table.enums == {"R_F": {1: "A"}}
    assert str(table.map()["G"].meaning) == ""


def test_of_two_registers_at_an_address_the_first_stays(tmp_path: Path) -> None:
    body = (
        '<reg32 offset="0016" name="R" type="fixedp"/>\n<array name="X" offset="12" stride="4" length="3"><reg32 offset="0" name="S"/></array>'
        '<stripe variants="V"><reg32 offset="0x40" name="T"/></stripe><stripe variants="W"><reg32 offset="0x40" name="U"/></stripe>'
    )
    path = written(tmp_path, domain(body))
    table, told = read(path)
    assert told == [
        f"{path}: not carried over (1 register): {path}, line 2: register X[1].S at 0x10, where R lies"
    ]
    assert table.registers == [
        ("A", 12, "X[0].S"),
        ("A", 16, "R"),
        ("A", 20, "X[2].S"),
        ("A", 64, "T"),
        ("A", 64, "U"),
    ]
    assert table.rows[1]["value"] == "signed raw>>16"
    assert again(table, tmp_path) == table


def test_arrays_of_nothing_are_registers(tmp_path: Path) -> None:
    body = '<array offset="0x10" name="SEL" stride="4" length="3" variants="V"><doc>which</doc></array><array offset="0x40" length="2" stride="4"/>'
    table = read_rnndb(written(tmp_path, domain(body)))
    assert table.registers == [("A", 0x10, "SEL[0]"), ("A", 0x14, "SEL[1]"), ("A", 0x18, "SEL[2]")]
    assert cells(table.rows, "field lsb width feature note")[1] == ("SEL", 0, 32, "V", "which")
    assert again(table, tmp_path) == table


def test_of_two_varsets_the_inner_one_stays(tmp_path: Path) -> None:
    enums = (
        '<enum name="chip"><value name="A1" value="0"/><value name="A2" value="1"/><value name="A3" value="2"/></enum>'
        '<enum name="op"><value name="PLAIN" value="2"/><value name="MANY" value="4"/></enum>'
        '<bitset name="B" varset="chip"><bitfield name="OLD" pos="0" variants="-A2"/><bitfield name="NEW" pos="0" variants="A3"/></bitset>'
    )
    body = (
        '<stripe varset="chip" variants="A2-"><reg32 offset="0" name="HEAD"><bitfield name="OP" low="0" high="3" type="op" addvariant="yes"/></reg32>'
        '\n<stripe varset="op" variants="PLAIN" prefix="P"><reg64 offset="4" name="AT" type="address"/></stripe></stripe><reg32 offset="0x20" name="INT" type="B"/>'
    )
    path = written(tmp_path, domain(body, enums))
    with pytest.warns(UserWarning, match="line 2: that stripe is for A2, A3 of chip alone$"):
        table = read_rnndb(path)
    assert cells(table.rows, "field feature offset") == [
        ("OP", "A2", 0),
        ("OP", "A3", 0),
        ("AT", "PLAIN", 4),
        ("AT", "PLAIN", 8),
        ("OLD", "A1", 32),
        ("OLD", "A2", 32),
        ("NEW", "A3", 32),
    ]
    assert again(table, tmp_path) == table


def test_imports_named_from_the_folder_above(tmp_path: Path) -> None:
    folder = tmp_path / "registers" / "chips"
    folder.mkdir(parents=True)
    written(folder.parent, f'{HEAD}<copyright year="2020"/></database>', "copyright.xml")
    written(
        folder, f'{HEAD}<enum name="E"><value name="ON" value="1"/></enum></database>', "enums.xml"
    )
    imports = '<import file="copyright.xml"/><import file="chips/enums.xml"/>'
    path = written(
        folder,
        f'{HEAD}{imports}<domain name="A"><reg32 offset="0" name="R" type="E"/></domain></database>',
        "a.xml",
    )
    table = read_rnndb(path)
    assert (table.rows[0]["value"], table.copyright) == ("enum:E", "Copyright 2020")
    written(tmp_path, f"{HEAD}</database>", "secret.xml")
    refused(
        lambda: read_rnndb(
            written(folder, f'{HEAD}{imports}<import file="../secret.xml"/></database>', "b.xml")
        ),
        "import: got '../secret.xml'",
    )
    assert (
        read_rnndb(
            written(folder, f'{HEAD}<import file="copyright.xml"/></database>', "c.xml")
        ).copyright
        == "Copyright 2020"
    )
    (tmp_path / "other").mkdir()
    written(tmp_path / "other", f'{HEAD}<copyright year="2021"/></database>', "more.xml")
    path = written(folder, f'{HEAD}<import file="more.xml"/></database>', "d.xml")
    refused(lambda: read_rnndb(path), "import: got 'more.xml'", "--include")
    assert read_rnndb(path, [tmp_path / "other"]).copyright == "Copyright 2021"
    assert read_map(path, include=[tmp_path / "other"]).copyright == "Copyright 2021"
    refused(
        lambda: read_map(path, ["A=1"], [tmp_path / "other"]), "got define or include for rnndb XML"
    )


def test_a_second_field_on_the_same_bits_is_lost(tmp_path: Path) -> None:
    body = '<reg32 offset="0" name="R">\n<bitfield name="F" low="0" high="4"/>\n<bitfield name="G" pos="4"/></reg32><reg32 offset="4" name="S"/>'
    path = written(tmp_path, domain(body))
    with pytest.warns(
        UserWarning,
        match="line 3: field G of register R at 0x0, which shares bits with another field$",
    ):
        assert [row["field"] for row in read_rnndb(path).rows] == ["F", "S"]


def test_a_group_that_no_domain_uses_is_lost(tmp_path: Path) -> None:
    group = '<group name="G"><reg32 offset="0" name="A"/><array name="B" offset="4"><reg32 offset="0" name="C"/></array></group>'
    path = written(tmp_path, domain('<reg32 offset="0" name="R"/>', group))
    with pytest.warns(
        UserWarning,
        match=r"not carried over \(2 registers\): .*line 1: group G, which no domain uses$",
    ):
        assert read_rnndb(path).registers == [("A", 0, "R")]


def test_small_and_unaligned_registers_share_words(tmp_path: Path) -> None:
    body = (
        '<reg8 offset="0" name="A"/><reg16 offset="2" name="B"><bitfield name="F" low="4" high="7" type="T"/></reg16>'
        '<reg32 offset="6" name="C"><bitfield name="G" low="0" high="19"/></reg32>'
    )
    path = written(tmp_path, domain(body, '<spectype name="T" type="int"/>'))
    assert cells(read_rnndb(path).rows, "offset register field lsb width at value") == [
        (0, "A_B", "A", 0, 8, None, None),
        (0, "A_B", "B.F", 20, 4, None, "signed"),
        (4, "C", "C.G", 16, 16, 0, None),
        (8, "C", "C.G", 0, 4, 16, None),
    ]


# Refusals


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('<reg32 offset="x" name="R"/>', ["line 1: reg32 R: got offset 'x'"]),
        ('<reg32 offset="-4" name="R"/>', ["got offset '-4'"]),
        ('<reg32 offset="0"/>', ["register without a name"]),
        ('<reg24 offset="0" name="R"/>', ["the element reg24 in domain A", "reg32, reg64"]),
        (
            '<reg32 offset="0" name="R"><bitfield name="F" low="30" high="32"/></reg32>',
            ["field F of register R: got bits 30 to 32, allowed is inside 0 to 31"],
        ),
        (
            '<reg32 offset="0" name="R"><bitfield name="F" low="3" high="2"/></reg32>',
            ["got bits 3 to 2"],
        ),
        ('<reg32 offset="0" name="R"><bitfield name="F" low="3"/></reg32>', ["got no high"]),
        ('<reg32 offset="0" name="R"><bitfield low="3" high="4"/></reg32>', ["got no name"]),
        (
            '<reg32 offset="0" name="R"><bitfield name="F" pos="0"/><bitfield name="F" pos="4"/></reg32>',
            ["got this name a second time"],
        ),
        (
            '<reg32 offset="0" name="R"><bitfield name="F" low="0" high="3" type="float" shr="40"/></reg32>',
            ["got shr 40"],
        ),
        (
            '<reg32 offset="0" name="R"><bitfield xmlns:n="urn:npulab:registers" name="F" pos="3" n:at="z"/></reg32>',
            ["at 'z'"],
        ),
        (
            '<reg32 offset="0" name="R"><bitfield xmlns:n="urn:npulab:registers" name="F" pos="3" n:value="enum:Z"/></reg32>',
            ["got enum 'Z', allowed is one of V"],
        ),
        ('<use-group name="Q"/>', ["use-group: got 'Q', allowed is one of none"]),
        ('<array name="X" length="9"><reg32 offset="0" name="R"/></array>', ["length 9, stride 0"]),
        (
            '<array name="X" length="99999999999" stride="4"><reg32 offset="0" name="R"/></array>',
            ["length 99999999999"],
        ),
        (
            '<array name="X" length="2049" stride="4"/>',
            ["length 2049, stride 4, allowed is up to 2048"],
        ),
        (
            '<reg32 offset="0" name="R" length="2000" stride="4"/><reg32 offset="0x100000" name="S" length="49" stride="4"/>',
            ["more than 2048 fields"],
        ),
        (
            '<stripe length="2000" stride="4"><stripe length="2000" stride="4"/></stripe>',
            ["got 4000000 elements of arrays in arrays", "up to 2048"],
        ),
        ("<foo/>", ["the element foo in domain A"]),
        (
            '<stripe varset="V" variants="C"><reg32 offset="0" name="R"/></stripe>',
            ["variants: got 'C', allowed are B and ranges"],
        ),
    ],
)
def test_broken_elements_are_refused_with_their_line(
    body: str, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 2048)
    monkeypatch.setattr(placing, "MOST_ROWS", 2048)
    path = written(tmp_path, domain(body, '<enum name="V"><value name="B" value="0"/></enum>'))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert refused(lambda: read_rnndb(path), *said).startswith(f"{path}, line ")


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<database>", "no element found"),
        ("<a/>", "the element a, allowed is database"),
        ("<database><", "what is no XML"),
        ('<!DOCTYPE d [<!ENTITY a "b">]><database>&a;</database>', "a document type or an entity"),
        ('<!DOCTYPE d SYSTEM "/etc/passwd"><database/>', "a document type or an entity"),
        ("<database>" * 70, "64 within each other"),
        (f"<database>{'<doc/>' * 5000}</database>", "4096 elements"),
        ("<database>" + " " * (2**23), "8388618 bytes, allowed are 8388608"),
        ('<?xml version="1.0" encoding="klingon"?><database/>', "what is no XML"),
        (
            f'{HEAD}<import file="../secret.xml"/></database>',
            "import: got '../secret.xml', allowed is a file that lies in",
        ),
        (f'{HEAD}<import file="/etc/passwd"/></database>', "import: got '/etc/passwd'"),
        (f'{HEAD}<import file="no.xml"/></database>', "import: got 'no.xml'"),
        (
            f'{HEAD}<bitset name="B"><bitfield name="F" pos="0" type="B"/></bitset><domain name="A"><reg32 offset="0" name="R" type="B"/></domain></database>',
            "bitsets within each other",
        ),
        (
            f'{HEAD}<group name="B"><use-group name="B"/></group><domain name="A"><use-group name="B"/></domain></database>',
            "groups within each other",
        ),
    ],
)
def test_files_that_go_too_far_are_refused(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_ELEMENTS", 4096)
    monkeypatch.setattr(xml, "MOST_BYTES", 2**23)
    written(tmp_path, f"{HEAD}</database>", "secret.xml")
    (tmp_path / "in").mkdir()
    path = written(tmp_path / "in", text)
    begin = time.process_time()
    assert refused(lambda: read_rnndb(path), said).startswith(str(path))
    assert time.process_time() - begin < limit(2)


def test_an_entity_bomb_takes_no_time(tmp_path: Path) -> None:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 50}">' for n in range(1, 12))
    path = written(
        tmp_path, f'<!DOCTYPE d [<!ENTITY e0 "{"x" * 99}">{entities}]><database>&e11;</database>'
    )
    refused(lambda: read_rnndb(path), "line 1", "a document type or an entity of its own")


def test_imports_once_and_not_through_links(tmp_path: Path) -> None:
    a = written(
        tmp_path,
        f'{HEAD}<import file="b.xml"/><import file="b.xml"/><domain name="A"><reg32 offset="0" name="R" type="E"/></domain></database>',
        "a.xml",
    )
    written(
        tmp_path,
        f'{HEAD}<import file="a.xml"/><enum name="E"><value name="ON" value="1"/></enum></database>',
        "b.xml",
    )
    assert read_rnndb(a).rows[0]["value"] == "enum:E"
    outside = written(tmp_path, f"{HEAD}</database>", "c.xml")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link.xml").symlink_to(outside)
    path = written(tmp_path / "in", f'{HEAD}<import file="link.xml"/></database>')
    refused(lambda: read_rnndb(path), "import: got 'link.xml'")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "field,lsb\na,1\n",
            "allowed is one of npulab's table, rnndb XML, SystemRDL, CMSIS-SVD, C",
        ),
        ("field,lsb,width\n", "got no row"),
        ("field,lsb,width\na,x,1\n", "line 2: field 'a': got lsb 'x'"),
        ("field,lsb,width\na,1\n", "line 2: got a row of other columns"),
        ("field,lsb,width,colour\na,1,2,red\n", "line 2: got column 'colour'"),
        ("field,lsb,width\na,,1\n", "got no lsb"),
        ("field,lsb,width,value\na,1,2,raw*x\n", "line 2: value"),
    ],
)
def test_broken_tables_are_refused_with_their_line(text: str, said: str, tmp_path: Path) -> None:
    path = written(tmp_path, text, "t.csv")
    assert str(path) in refused(lambda: read_map(path), said)
    (tmp_path / "t.csv").write_text("field,lsb,width\na,1,2\n")
    written(tmp_path, "enum,raw,name\nE,1,A\nE,1,B\n", "enums.csv")
    refused(lambda: read_map(path), "enums.csv, line 3", "each raw")


# The command


def test_map_writes_what_it_says(snippet: RegisterTable, run: Any, tmp_path: Path) -> None:
    source = written(tmp_path, rnndb_text(snippet), "source.xml")
    status, lines, _ = run("map", source, tmp_path / "out" / "map.csv")
    assert (status, lines) == (
        0,
        [f"{tmp_path}/out/map.csv: 1 block, 20 registers, 26 fields, 3 enums, 405 bits"],
    )
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["enums.csv", "map.csv"]
    status, lines, _ = run(
        "map", tmp_path / "out" / "map.csv", tmp_path / "back", "--to", "xml", "--json"
    )
    assert (status, json.loads(lines[0])) == (
        0,
        {
            "in": str(tmp_path / "out" / "map.csv"),
            "out": [str(tmp_path / "back")],
            **snippet.counts,
        },
    )
    assert read_map(tmp_path / "back") == snippet
    assert (
        run("map", source, tmp_path / "out" / "second.csv")[0] == 0
    )  # its enums lie there already


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["map.xml", "map.txt"],
            "got .txt, allowed is .csv (npulab's table), .xml (rnndb XML), .rdl (SystemRDL), .svd (CMSIS-SVD), struct (C",
        ),
        (["map.xml", "map"], "got no suffix"),
        (["map.xml", "map.csv", "--to", "pdf"], "--to: got pdf, allowed is .csv"),
        (["map.xml", "map.svd", "--feature", "F"], "feature: got 'F', allowed is one of none"),
        (["map.xml", "there.csv"], "there.csv: is there already"),
        (["map.xml", "other/enums.csv"], "the name of the table of enums"),
        (["nothing.xml", "x.csv"], "nothing.xml"),
        (["note.txt", "x.csv"], "note.txt: got text, allowed is one of"),
    ],
)
def test_map_refuses_and_writes_nothing(
    given: list[str],
    said: str,
    run: Any,
    tmp_path: Path,
) -> None:
    written(
        tmp_path,
        domain(
            '<reg32 offset="0" name="R" type="E"/>',
            '<enum name="E"><value name="X" value="0"/></enum>',
        ),
    )
    for name in ("there.csv", "enums.csv", "note.txt"):
        written(tmp_path, "nothing of that kind", name)
    before = sorted(tmp_path.rglob("*"))
    status, lines, err = run(
        "map", *(str(tmp_path / one) if "." in one or one == "map" else one for one in given)
    )
    assert (status, lines, err.count("\n")) == (2, [], 1)
    assert said in err
    assert sorted(tmp_path.rglob("*")) == before


def test_two_maps_in_one_folder(run: Any, tmp_path: Path) -> None:
    for n, values in enumerate(('<value name="X" value="0"/>', '<value name="Y" value="1"/>')):
        written(
            tmp_path,
            domain('<reg32 offset="0" name="R" type="E"/>', f'<enum name="E">{values}</enum>'),
            f"{n}.xml",
        )
    written(tmp_path, domain('<reg32 offset="0" name="R"/>'), "2.xml")
    for n in range(3):
        assert run("map", tmp_path / f"{n}.xml", tmp_path / "all" / f"{n}.csv")[0] == 0
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == [
        "0.csv",
        "1.csv",
        "1.enums.csv",
        "2.csv",
        "2.enums.csv",
        "enums.csv",
    ]
    for n in range(3):
        assert read_map(tmp_path / "all" / f"{n}.csv") == read_map(tmp_path / f"{n}.xml")
        assert (
            RegisterMap.read(tmp_path / "all" / f"{n}.csv").enums
            == read_map(tmp_path / f"{n}.xml").enums
        )


def test_map_takes_back_what_it_began(
    run: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = written(
        tmp_path,
        domain(
            '<reg32 offset="0" name="R" type="E"/>',
            '<enum name="E"><value name="X" value="0"/></enum>',
        ),
    )
    place = Path.hardlink_to

    def fails(self: Path, target: Path) -> None:
        if self.name == "out.csv":
            raise OSError(28, "No space left on device", str(self))
        place(self, target)

    monkeypatch.setattr(Path, "hardlink_to", fails)
    assert run("map", path, tmp_path / "out.csv")[0] == 2
    assert [one.name for one in tmp_path.iterdir()] == ["map.xml"]


# Random maps, and texts with random changes


@st.composite
def tables(draw: st.DrawFn) -> RegisterTable:
    """Random maps: blocks, arrays of registers, words of 64 bits, features, values of every
    kind.
    """
    name = st.from_regex(r"[A-Z]{1,4}", fullmatch=True)
    enums = draw(
        st.dictionaries(
            name,
            st.dictionaries(
                st.integers(0, 7), st.from_regex(r"[A-Z]<?&?[a-z]{1,3}", fullmatch=True), min_size=1
            ).map(lambda one: {raw: f"{text}{raw}" for raw, text in one.items()}),
            max_size=2,
        )
    )
    values = [
        "",
        "signed",
        "raw*4",
        "signed raw*2",
        "raw>>3",
        "signed raw>>2",
        "raw*4+1",
        "raw+3",
        *(f"enum:{one}" for one in enums),
    ]
    rows: list[dict[str, Any]] = []
    for block in draw(st.lists(name, unique=True, min_size=1, max_size=3)):
        at = 0
        for n in range(draw(st.integers(1, 4))):
            at += 4 * draw(st.integers(0, 3))
            length = draw(st.integers(0, 3))
            fields = []
            lsb = 0
            while lsb < 32 and len(fields) < 5:
                lsb += draw(st.integers(0, 5))
                width = draw(st.integers(1, 12))
                if lsb + width > 32:
                    break
                fields.append(
                    {
                        "field": f"F{lsb}",
                        "lsb": lsb,
                        "width": width,
                        "value": draw(st.sampled_from(values)) if width > 2 else "",
                        "feature": draw(st.sampled_from(["", "", "v1"])),
                        "note": draw(st.sampled_from(["", 'a "note" <&> of\'t'])),
                        "evidence": draw(st.sampled_from(["", "guess"])),
                        "address": draw(st.sampled_from(["", "yes"])),
                    }
                )
                lsb += width
            for element in range(max(1, length)):
                register = f"R{n}[{element}]" if length else f"R{n}"
                rows += [
                    {**one, "block": block, "offset": at, "register": register} for one in fields
                ]
                at += 4
    return RegisterTable.of(
        rows or [{"block": "A", "register": "R", "field": "F", "lsb": 0, "width": 32}],
        enums,
        draw(st.sampled_from(["", "Copyright 2020\n\nSome <words>", "no more"])),
    )


@pytest.mark.parametrize("count", [10, pytest.param(200, marks=pytest.mark.long)])
def test_random_maps_come_back(count: int, tmp_path: Path) -> None:
    @settings(max_examples=count)
    @given(tables())
    def come_back(table: RegisterTable) -> None:
        assert again(table, tmp_path) == table
        for path, data in map_files(table, tmp_path / "map.csv").items():
            path.write_bytes(data)
        assert read_csv(tmp_path / "map.csv") == table
        for path in (tmp_path / "map.csv", tmp_path / "enums.csv"):
            path.unlink(missing_ok=True)

    come_back()


@pytest.mark.parametrize("count", [240, pytest.param(10000, marks=pytest.mark.long)])
def test_changed_files_are_read_or_refused(count: int, tmp_path: Path) -> None:
    written(tmp_path, COMMON, "common.xml")
    texts = [SNIPPET.encode(), COMMON.encode(), (TARGETS / "rockchip" / "tasks.csv").read_bytes()]
    said = refusals(read_map, texts, count, tmp_path / "changed", 15)
    assert count // 4 < len(said) < count
    lines = [text for text in said if "line " in text and "changed" in text]
    assert len(lines) > 0.7 * len(said)
