"""Register maps in and out, drafts, sessions, reports and new targets, as the issue that asked for
them says it.

The oracles are others' programs or plain loops of this file: gcc for what lies where in C,
cmsis-svd, systemrdl-compiler and ElementTree for their formats, bits moved one by one for words.
"""

from __future__ import annotations

import ctypes
import fnmatch
import json
import os
import random
import re
import shlex
import shutil
import struct
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CAPTURES, ROOT, shared
from pace import limit

import npulab
import npulab.analysis.draft
import npulab.notebook.sessions
import npulab.notebook.widgets
from npulab.cli import main
from npulab.registers.formats import FORMATS, RegisterTable
from npulab.registers.names import name_of

Places = dict[tuple[str, str, str], tuple[int, ...]]

READ = ("struct", "macros", "xml", "rdl", "svd")  # C is the first two
TABLES = sorted(
    path
    for path in (ROOT / "npulab" / "npus").rglob("*.csv")
    if {"field", "lsb", "width"}
    <= {*path.read_text(encoding="utf-8").partition("\n")[0].split(",")}
)
# These are of the same kinds as the others, and larger.
LARGE = (
    "tp",
    "update4",
    "h11",
    "h13",
    "h14",
    "h15",
    "h16",
    "h17",
    "h18",
    "full",
    "small",
    "registers",
)
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not on the path")


def places(table: RegisterTable) -> Places:
    """Where each bit of each named value lies, in bits from its block's start, by block, feature
    and field.
    """
    found: dict[tuple[str, str, str], dict[int, int]] = {}
    for row in table.rows:
        if "field" not in row:
            continue
        inside = f"{row['register']}." if "register" in row and "at" not in row else ""
        place = found.setdefault(
            (row.get("block", ""), row.get("feature", ""), inside + row["field"]), {}
        )
        for bit in range(row["width"]):
            assert (
                place.setdefault(row.get("at", 0) + bit, at := row["offset"] * 8 + row["lsb"] + bit)
                == at
            )
    return {key: tuple(bits[n] for n in sorted(bits)) for key, bits in found.items()}


def read(path: Path) -> tuple[RegisterTable, list[str]]:
    """The table in a file, and what was told of it."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        table = npulab.read_map(path)
    return table, [str(one.message) for one in told]


def there_and_back(table: RegisterTable, to: str, folder: Path) -> RegisterTable:
    """Export, import, export again: the same table, the same bytes, nothing told."""
    first, second = (folder / name / f"map{FORMATS[to].suffix}" for name in (f"{to}1", f"{to}2"))
    for path in (first, second):
        path.parent.mkdir(parents=True)
    assert npulab.write_map(table, first, to=to) == [first]
    again, told = read(first)
    assert (told, again.rows, again.enums, again.copyright) == (
        [],
        table.rows,
        table.enums,
        table.copyright,
    )
    npulab.write_map(again, second, to=to)
    assert second.read_bytes() == first.read_bytes()
    return again


def compiled(source: str, folder: Path, *flags: str) -> Path:
    """The program or library that gcc makes of a C text, every warning an error."""
    (folder / "t.c").write_text(source)
    done = subprocess.run(
        [
            "gcc",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-I",
            folder,
            "-o",
            folder / "t.out",
            folder / "t.c",
            *flags,
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[:2000]
    return folder / "t.out"


def gcc_places(
    text: str, members: Sequence[tuple[str, str, str]], folder: Path
) -> dict[tuple[str, str], tuple[int, ...]]:
    """Where gcc puts each bit of members (type, what stands before the variable, what behind it)
    of a C text.
    """
    asked = "\n".join(
        f'printf("{kind}|{behind.lstrip(".")}|"); for (int i = 0; i < 64; i++) {{ {kind} v; memset(&v, 0, sizeof v); '
        f'{before}v{behind} = 1ull << i; show(&v, sizeof v); }} puts("");'
        for kind, before, behind in members
    )
    program = compiled(
        f"#include <stdio.h>\n#include <string.h>\n#define const\n#define volatile\n{text}\n#undef const\n"
        "static void show(const void *at, size_t size) { const unsigned char *b = at; for (size_t n = 0; n < size * 8; n++)"
        f' if (b[n / 8] >> n % 8 & 1) printf(" %zu", n); }}\nint main(void) {{ {asked} return 0; }}',
        folder,
        "-O0",
        "-std=gnu11",
        "-fno-strict-aliasing",
    )
    lines = subprocess.run(
        [program], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return {
        (kind, member): tuple(dict.fromkeys(map(int, bits.split())))
        for kind, member, bits in (line.split("|") for line in lines)
    }


# Round trips


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.long if path.stem in LARGE else (), id=path.stem)
        for path in TABLES
    ],
)
def test_every_shipped_map_comes_back_from_each_format(path: Path, tmp_path: Path) -> None:
    table = npulab.read_map(path)
    assert (
        sum(row["width"] for row in table.rows if "field" in row)
        == sum(map(len, places(table).values()))
        > 50
    )
    for to in READ:
        assert places(there_and_back(table, to, tmp_path)) == places(table)


def test_the_public_database_comes_back_from_each_format(tmp_path: Path) -> None:
    path = shared("data/rknpu/registers.xml")
    table, _ = read(path)
    space = "{http://nouveau.freedesktop.org/}"
    fields = [
        (int(one.get("low", one.get("pos"))), int(one.get("high", one.get("pos"))))
        for one in ET.parse(path).iter(f"{space}bitfield")
    ]
    assert sum(high - low + 1 for low, high in fields) == sum(row["width"] for row in table.rows)
    for to in READ:
        there_and_back(table, to, tmp_path)


def test_a_map_goes_through_all_formats_in_turn(tmp_path: Path) -> None:
    table = start = npulab.read_map(ROOT / "npulab/npus/vivante/nn.csv")
    for to in (*READ, "csv"):
        path = tmp_path / to / f"nn{FORMATS[to].suffix}"
        path.parent.mkdir()
        npulab.write_map(table, path, to=to)
        table = read(path)[0]
    assert (table.rows, table.enums) == (start.rows, start.enums)


# C, as gcc has it

AWKWARD_C = """
#include <stdint.h>
#include <stdbool.h>
#define CH_W 6
enum op { OP_CONV, OP_POOL = 5, OP_ADD };
typedef struct { uint16_t low : 5; uint16_t mid : 11; uint8_t tail; } part_t;
/* a whole job */
struct job {
    uint32_t mode : 3, : 2, rest : CH_W;   /* three at once */
    enum op kind : 4;
    int32_t bias : 9;
    bool last : 1;
    uint32_t : 0;
    uint64_t address : 40;   // goes over a word
    uint64_t flags : 24;
    union {
        struct { uint32_t scale : 15; uint32_t shift : 6; };
        uint32_t packed;
    };
    part_t parts[3];
    uint8_t bytes[5];
    struct { uint16_t x : 13; uint16_t y : 13; } size[2][2];
    int16_t bound;
    uint64_t whole;
    float real;
    uint32_t over : 30;
    uint32_t next : 5;
    const volatile uint32_t end;
};
struct __attribute__((packed)) tight { uint8_t a : 3; uint32_t b : 30; uint16_t c; uint32_t d : 31; };
"""


def as_members(table: RegisterTable) -> list[tuple[str, str, str]]:
    """The fields of structs as C reaches them."""
    floats = {row["field"] for row in table.rows if row.get("value") == "f32"}
    return [
        (f"struct {block}", "*(uint32_t *)&" if name in floats else "", f".{name}")
        for block, _, name in places(table)
    ]


@needs_gcc
def test_awkward_structs_lie_as_gcc_lays_them(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text(AWKWARD_C)
    table, told = read(tmp_path / "a.h")
    laid = gcc_places(AWKWARD_C, as_members(table), tmp_path)
    assert {
        (f"struct {block}", name): bits for (block, _, name), bits in places(table).items()
    } == laid
    assert {name for _, name in laid} >= {
        "mode",
        "rest",
        "parts[2].tail",
        "size[1][0].y",
        "shift",
        "whole",
        "d",
    }
    by_name = {row["field"]: row for row in table.rows if "field" in row}
    assert by_name["bias"]["value"] == by_name["bound"]["value"] == "signed"
    assert (by_name["kind"]["value"], table.enums["op"]) == (
        "enum:op",
        {0: "OP_CONV", 5: "OP_POOL", 6: "OP_ADD"},
    )
    assert (by_name["address"]["note"], by_name["rest"]["note"]) == (
        "goes over a word",
        "three at once",
    )
    # every bit that no member has is told as a silent hole or was left open by the file itself
    assert len(told) == 1
    assert "silent holes at word 0 bits 31:25, word 1 bits 31:0" in told[0]
    for to in READ:
        there_and_back(table, to, tmp_path)


KINDS = {
    "uint8_t": 8,
    "int8_t": 8,
    "uint16_t": 16,
    "int16_t": 16,
    "uint32_t": 32,
    "unsigned": 32,
    "int": 32,
    "uint64_t": 64,
}


def random_struct(draw: random.Random, tag: str, depth: int = 0) -> str:
    lines = []
    for n in range(draw.randint(1, 9)):
        kind = draw.choice([*KINDS])
        what = draw.random()
        if what < 0.6:
            lines.append(f"{kind} m{depth}_{n} : {draw.randint(1, KINDS[kind])};")
        elif what < 0.68:
            lines.append(f"{kind} : {draw.randint(0, KINDS[kind])};")
        elif what < 0.8 or depth > 1:
            lines.append(f"{kind} m{depth}_{n};")
        elif what < 0.9:
            lines.append(f"{kind} m{depth}_{n}[{draw.randint(1, 3)}];")
        else:
            length = draw.choice(["", "[2]"])
            lines.append(f"{random_struct(draw, '', depth + 1)} m{depth}_{n}{length};")
    lines.append(f"uint32_t last{depth} : 1;")
    packed = "__attribute__((packed)) " if draw.random() < 0.25 else ""
    return f"struct {packed}{tag} {{ {' '.join(lines)} }}"


def check_random_structs(count: int, folder: Path) -> None:
    draw = random.Random(30)
    text = "#include <stdint.h>\n" + "\n".join(
        f"{random_struct(draw, f's{n}')};" for n in range(count)
    )
    (folder / "a.h").write_text(text)
    table, _ = read(folder / "a.h")
    laid = gcc_places(text, as_members(table), folder)
    found = {(f"struct {block}", name): bits for (block, _, name), bits in places(table).items()}
    wrong = [key for key in laid if laid[key] != found[key]]
    assert wrong == [], (found[wrong[0]], laid[wrong[0]], re.search(rf"{wrong[0][0]} .*", text))
    assert len(laid) > 5 * count
    for to in READ if count > 100 else ("struct",):
        there_and_back(table, to, folder)


@needs_gcc
def test_random_structs_lie_as_gcc_lays_them(tmp_path: Path) -> None:
    check_random_structs(12, tmp_path)


@pytest.mark.long
@needs_gcc
def test_many_random_structs_lie_as_gcc_lays_them(tmp_path: Path) -> None:
    check_random_structs(400, tmp_path)


def of_block(table: RegisterTable, block: str) -> RegisterTable:
    return RegisterTable.of(
        [row for row in table.rows if row.get("block", "") == block], table.enums
    )


def check_packing(table: RegisterTable, feature: str, folder: Path, count: int = 10_000) -> int:
    """What exported functions make of random words, against bits moved one by one and the map;
    how many fields.
    """
    chip = [feature] if feature else []
    npulab.write_map(table, folder / "pack.h", to="pack", features=chip or None)
    text = (folder / "pack.h").read_text()
    blocks = re.findall(r"^struct (\w+)_values \{\n(.*?)^\};", text, re.M | re.S)
    harness, members = ['#include "pack.h"'], {}
    for name, body in blocks:
        members[name] = re.findall(r"^    uint(?:32|64)_t (\w+);", body, re.M)
        assert len(members[name]) == body.count(";")
        takes = "".join(f"out[{n}] = v.{member};" for n, member in enumerate(members[name]))
        harness.append(
            f"int {name}_members = {len(members[name])}; int {name}_words = {name}_WORDS;\n"
            f"void {name}_all(const uint32_t *words, uint32_t *back, uint64_t *out, int count) {{\n"
            f"for (int n = 0; n < count; n++, words += {name}_WORDS, back += {name}_WORDS, out += {len(members[name])}) {{\n"
            f"struct {name}_values v; {name}_unpack(&v, words); {takes} {name}_pack(back, &v); }} }}"
        )
    library = ctypes.CDLL(
        str(
            compiled("\n".join(harness), folder, "-std=c99", "-pedantic", "-O0", "-shared", "-fPIC")
        )
    )
    total = 0
    for (name, _), block in zip(
        blocks, dict.fromkeys(row.get("block", "") for row in table.rows), strict=True
    ):
        size, width = (
            ctypes.c_int.in_dll(library, f"{name}_{what}").value for what in ("words", "members")
        )
        offsets = [*(ctypes.c_uint32 * size).in_dll(library, f"{name}_offsets")]
        words = np.random.default_rng(10).integers(0, 2**32, (count, size), dtype=np.uint32)
        back, out = np.zeros_like(words), np.zeros((count, width), np.uint64)
        getattr(library, f"{name}_all")(
            *(ctypes.c_void_p(one.ctypes.data) for one in (words, back, out)), count
        )
        assert np.array_equal(back, words), "every bit of every word comes back"
        map_ = of_block(table, block).map(chip)
        assert offsets == [*map_.index]
        decoded = map_.decode(words, raw=True)
        assert np.array_equal(map_.encode(decoded, raw=True), words)
        got = {out[:, n].tobytes() for n in range(width)}
        mine = [
            {**row, "feature": ""}
            for row in table.rows
            if row.get("block", "") == block and row.get("feature", "") in ("", feature)
        ]
        for (_, _, field), bits in places(RegisterTable.of(mine, table.enums)).items():
            column = np.zeros(count, np.uint64)
            for n, bit in enumerate(bits):
                column |= (
                    words[:, offsets.index(bit // 32 * 4)] // np.uint32(2 ** (bit % 32)) & 1
                ).astype(np.uint64) * np.uint64(2**n)
            assert column.tobytes() in got, (name, field)
            total += 1
        assert got == {np.asarray(value, np.uint64).tobytes() for value in decoded.values()}
    return total


@needs_gcc
@pytest.mark.parametrize(
    ("name", "feature"),
    [("vivante/nn", "nn_v7"), ("vivante/nn", "nn_v8"), ("rockchip/registers", "")],
)
def test_exported_functions_pack_and_unpack_10000_random_words(
    name: str, feature: str, tmp_path: Path
) -> None:
    table = npulab.read_map(ROOT / f"npulab/npus/{name}.csv")
    assert check_packing(table, feature, tmp_path, 10_000) > 50


@pytest.mark.long
@needs_gcc
@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_exported_functions_of_every_map(path: Path, tmp_path: Path) -> None:
    table = npulab.read_map(path)
    for feature in table.features or ("",):
        folder = tmp_path / f"of-{feature}"
        folder.mkdir()
        check_packing(table, feature, folder, 1000)


@needs_gcc
def test_exported_functions_of_wide_and_split_fields(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text(AWKWARD_C)
    assert check_packing(read(tmp_path / "a.h")[0], "", tmp_path) > 30


@needs_gcc
def test_exported_structs_and_macros_say_the_same_bits_to_gcc(tmp_path: Path) -> None:
    table = npulab.read_map(ROOT / "npulab/npus/vivante/tp.csv")
    whole = {(row["offset"] * 8 + row["lsb"], row["width"]) for row in table.rows if "field" in row}
    npulab.write_map(table, tmp_path / "s.h", to="struct")
    text = (tmp_path / "s.h").read_text()
    tag = re.search(r"^struct (\w+) \{", text, re.M).group(1)
    names = re.findall(r"^    \w+ (\w+)(?: : \d+)?;", text, re.M)
    laid = gcc_places(text, [(f"struct {tag}", "", f".{name}") for name in names], tmp_path)
    assert {(bits[0], len(bits)) for bits in laid.values()} >= whole
    npulab.write_map(table, tmp_path / "m.h", to="macros")
    text = (tmp_path / "m.h").read_text()
    fields = re.findall(r"^#define (\w+)__SHIFT", text, re.M)
    prints = "".join(
        f'printf("%u %u\\n", (unsigned){name}__SHIFT, (unsigned){name}__MASK);' for name in fields
    )
    program = compiled(
        f"#include <stdio.h>\n{text}\nint main(void) {{ {prints} return 0; }}", tmp_path, "-std=c99"
    )
    said = [
        tuple(map(int, line.split()))
        for line in subprocess.check_output([program], text=True).splitlines()
    ]
    assert sorted(said) == sorted(
        (row["lsb"], (2 ** row["width"] - 1) * 2 ** row["lsb"]) for row in table.rows
    )


@pytest.mark.parametrize(
    "name", ["regs", "registers_fa", "reg", "field", "field_desc", "regfile_t", "addrmap"]
)
def test_a_struct_may_be_called_as_systemrdl_calls_things(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text(
        f"#include <stdint.h>\ntypedef struct {name} {{ uint32_t a : 3; uint32_t b : 29; }} {name}_type;\n"
    )
    assert {row["field"]: (row["lsb"], row["width"]) for row in read(tmp_path / "a.h")[0].rows} == {
        "a": (0, 3),
        "b": (3, 29),
    }


def test_maps_without_blocks_and_with_enums_in_pieces_come_back(tmp_path: Path) -> None:
    table = RegisterTable.of(
        [
            {
                "offset": 0,
                "register": "R",
                "field": "split",
                "lsb": 0,
                "width": 2,
                "at": 0,
                "value": "enum:e",
            },
            {
                "offset": 4,
                "register": "S",
                "field": "split",
                "lsb": 5,
                "width": 2,
                "at": 2,
                "value": "enum:e",
            },
            {
                "offset": 8,
                "register": "T",
                "field": "plain",
                "lsb": 0,
                "width": 4,
                "value": "enum:e",
            },
            {"block": "B", "offset": 0, "register": "R", "field": "f", "lsb": 0, "width": 3},
        ],
        {"e": {0: "a", 9: "b"}},
    )
    for to in READ:
        there_and_back(table, to, tmp_path)


# Files of others, as other readers have them

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


@pytest.mark.sample(1)
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
    for to in READ:
        there_and_back(table, to, tmp_path)


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


def test_each_drawing_has_every_field_and_every_bit_once(tmp_path: Path) -> None:
    table = npulab.read_map(ROOT / "npulab/npus/vivante/tp.csv")
    names = {row["field"] for row in table.rows if "field" in row}
    for to in ("hexpat", "json", "md", "svg"):
        npulab.write_map(table, tmp_path / f"out.{to}")
        text = (tmp_path / f"out.{to}").read_text()
        assert [name for name in names if name not in text.replace("\\", "")] == []
    drawn = json.loads((tmp_path / "out.json").read_text())
    assert {sum(part["bits"] for part in one["reg"]) for one in drawn} == {32}
    found = set()
    for one in drawn:
        at = 0
        for part in one["reg"]:
            found |= (
                {(part["name"], one["offset"] * 8 + at, part["bits"])} if "name" in part else set()
            )
            at += part["bits"]
    # a row without a name has that of its place, as everywhere
    assert found == {
        (name_of(row, table.by_address), row["offset"] * 8 + row["lsb"], row["width"])
        for row in table.rows
    }
    root = ET.parse(tmp_path / "out.svg").getroot()
    assert not any(
        one.tag.endswith(("script", "image", "foreignObject", "a")) for one in root.iter()
    )
    pattern = (tmp_path / "out.hexpat").read_text()
    struct = re.search(r"^bitfield.*?^\}", pattern, re.M | re.S)
    assert struct
    assert pattern.count("{") == pattern.count("}")
    rows = re.findall(r"^\| (\d+)(?::(\d+))? \|", (tmp_path / "out.md").read_text(), re.M)
    assert len(rows) == len(table.rows)
    assert sum(int(high) - int(low or high) + 1 for high, low in rows) == sum(
        row["width"] for row in table.rows
    )


# The shell


def test_map_turns_each_format_into_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_text(AWKWARD_XML)
    table = npulab.read_map(tmp_path / "in")
    last = tmp_path / "in"
    for out in ("a.csv", "b.rdl", "c.svd", "d.h", "e.xml", "f.h"):
        folder = tmp_path / out[0]
        folder.mkdir()
        assert (
            main(
                ["map", str(last), str(folder / out), *(["--to", "macros"] if out == "f.h" else [])]
            )
            == 0
        )
        last = folder / out
        assert npulab.read_map(last).rows == table.rows, out
    for out in ("g.hexpat", "h.json", "i.md", "j.svg"):
        assert main(["map", str(last), str(tmp_path / out)]) == 0
    assert (
        main(
            ["map", str(last), str(tmp_path / "k.h"), "--to", "pack", "--feature", "NEW", "--json"]
        )
        == 0
    )
    assert isinstance(json.loads(capsys.readouterr().out.splitlines()[-1]), dict)
    before = (tmp_path / "j.svg").read_bytes()
    for given in (
        [last, tmp_path / "j.svg"],
        [last, tmp_path / "x.docx"],
        [tmp_path / "none.xml", tmp_path / "x.csv"],
        [tmp_path / "g.hexpat", tmp_path / "x.csv"],
    ):
        assert main(["map", *map(str, given)]) == 2
        said = capsys.readouterr().err.strip()
        assert said.count("\n") == 0, said
        assert len(said) > 20
    assert (tmp_path / "j.svg").read_bytes() == before
    assert not [*tmp_path.glob("x.*")]


def two_words(
    field: str, low: int, high: int, register: str = "W", at: int = 0, **more: str
) -> list[dict[str, Any]]:
    """Rows of a field that goes over two words of a register."""
    return [
        {
            "block": "B",
            "offset": at,
            "register": register,
            "field": field,
            "lsb": low,
            "width": 32 - low,
            "at": 0,
            **more,
        },
        {
            "block": "B",
            "offset": at + 4,
            "register": register,
            "field": field,
            "lsb": 0,
            "width": high,
            "at": 32 - low,
            **more,
        },
    ]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "rows",
    [
        two_words("W", 0, 32),
        two_words("W", 4, 16),
        two_words("other", 4, 16),
        two_words("W.in", 4, 16),
        [
            *two_words("W", 4, 16),
            {"block": "B", "offset": 4, "register": "W", "field": "X", "lsb": 20, "width": 3},
        ],
        [
            *two_words("W.in", 4, 16),
            {"block": "B", "offset": 0, "register": "W", "field": "X", "lsb": 0, "width": 3},
        ],
        [*two_words("W", 0, 8, feature="a"), *two_words("W", 0, 12, feature="b")],
        [row for n in range(3) for row in two_words(f"W[{n}]", 0, 20, f"W[{n}]", 8 * n)],
        [{"block": "B", "offset": 0, "register": "W", "field": "W", "lsb": 4, "width": 20}],
        [
            {
                "block": "B",
                "offset": 0,
                "register": "W",
                "field": "W",
                "lsb": 9,
                "width": 1,
                "value": "signed",
            }
        ],
    ],
    ids=lambda rows: "-".join(dict.fromkeys(f"{row['field']}{row['lsb']}" for row in rows)),
)
def test_fields_of_two_words_come_back(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    table = RegisterTable.of(rows)
    for to in READ:
        there_and_back(table, to, tmp_path)


# Hostile content

EVIL = "<script>document.title='ran'</script>"
NASTY = (
    '"><img src=x onerror=alert(1)>',
    "*/ int evil; /*",
    "'; DROP TABLE x; --",
    "[a](javascript:alert(1))",
    "<% system('touch ran') %>",
    "]]></svg><script>alert(1)</script>",
    "a|b`c\\",
    "&lt;b&gt; &amp; %s {0} $(touch ran)",
    "// \\",
    '"; #include "/etc/passwd"',
    EVIL,
)


def nasty_table() -> RegisterTable:
    rows = [
        {
            "block": "B" + text,
            "offset": 4 * n,
            "register": "R" + text,
            "field": "f" + text,
            "lsb": 0,
            "width": 3,
            "value": "enum:e" + str(n),
            "evidence": "E" + text,
            "note": text,
        }
        for n, text in enumerate(NASTY)
    ]
    rows += [
        {
            "block": "B" + NASTY[0],
            "offset": 0x100,
            "register": "S",
            "field": f"g{text}",
            "lsb": 2 * n,
            "width": 2,
            "note": text * 3,
        }
        for n, text in enumerate(NASTY)
    ]
    return RegisterTable.of(
        rows, {f"e{n}": {0: text, 5: "b" + text} for n, text in enumerate(NASTY)}
    )


class Tags(HTMLParser):
    """What a browser would take for elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def harmless(text: str) -> None:
    """Nothing in a page runs or asks for anything."""
    for tag, attributes in Tags(text).seen:
        assert tag not in (
            "script",
            "iframe",
            "object",
            "embed",
            "form",
            "base",
            "link",
            "foreignobject",
        ), tag
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in ("src", "href", "xlink:href") or re.match(
                r"(#|https?:|data:image/png|mailto:)", value or ""
            ), (tag, value)
            assert tag != "img" or name != "src" or (value or "").startswith("data:"), value


@pytest.mark.parametrize("to", [*READ, "csv"])
def test_hostile_texts_come_back_as_texts(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = nasty_table()
    again = there_and_back(table, to, tmp_path) if to != "csv" else None
    if again is None:
        npulab.write_map(table, tmp_path / "a.csv")
        again = read(tmp_path / "a.csv")[0]
    assert again.rows == table.rows
    assert not (tmp_path / "ran").exists()
    if to in ("xml", "svd"):
        text = next((tmp_path / f"{to}1").glob("map*")).read_text()
        assert not any(one.tag in ("script", "img", "svg") for one in ET.fromstring(text).iter())


@needs_gcc
@pytest.mark.parametrize("to", ["struct", "macros", "pack"])
def test_hostile_texts_stay_in_the_comments_of_c(to: str, tmp_path: Path) -> None:
    npulab.write_map(nasty_table(), tmp_path / "n.h", to=to)
    compiled(
        '#include "n.h"\nint evil = 1;\nint main(void) { return evil - 1; }',
        tmp_path,
        "-std=c99",
        "-pedantic",
    )


def test_hostile_texts_are_drawn_as_texts(tmp_path: Path) -> None:
    for to in ("svg", "md", "json", "hexpat"):
        npulab.write_map(nasty_table(), tmp_path / f"n.{to}")
    ET.parse(tmp_path / "n.svg")
    harmless((tmp_path / "n.svg").read_text())
    assert any(EVIL in (one.text or "") for one in ET.parse(tmp_path / "n.svg").iter())
    markdown = (tmp_path / "n.md").read_text()
    harmless(markdown)
    assert not re.search(r"(?<!\\)\]\(javascript", markdown)
    assert {
        field["name"]
        for one in json.loads((tmp_path / "n.json").read_text())
        for field in one["reg"]
        if "name" in field
    } == {row["field"] for row in nasty_table().rows if "field" in row}
    pattern = re.sub(r"//.*", "", (tmp_path / "n.hexpat").read_text())
    assert not re.search(
        r"script|evil|onerror",
        re.sub(
            r"\w*(script|evil|onerror)\w*",
            lambda found: "" if found[0].isidentifier() else found[0],
            pattern,
        ),
    )
    assert pattern.count("{") == pattern.count("}")


BOMB = (
    "<!DOCTYPE d [<!ENTITY a 'aaaaaaaaaa'>"
    + "".join(f"<!ENTITY {chr(97 + n)} '{('&' + chr(96 + n) + ';') * 10}'>" for n in range(1, 12))
    + "]>"
)
SVD = (
    "<device><name>d</name><width>32</width><peripherals><peripheral><name>P</name><baseAddress>0</baseAddress><registers>"
    "<register>{}</register></registers></peripheral></peripherals></device>"
)
DOMAIN = "<database><domain name='D' width='8'>{}</domain></database>"
REFUSED = {
    "entities.svd": BOMB + "<device><name>&l;</name></device>",
    "entities.xml": BOMB + "<database><domain name='&l;'/></database>",
    "outside.svd": "<!DOCTYPE d [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>"
    + SVD.format("<name>&x;</name><addressOffset>0</addressOffset>"),
    "outside.xml": "<database><import file='../../../../../../../etc/passwd'/></database>",
    "absolute.xml": "<database><import file='/etc/passwd'/></database>",
    "long.svd": SVD.format(
        "<dim>4000000000</dim><dimIncrement>4</dimIncrement><name>R%s</name><addressOffset>0</addressOffset>"
    ),
    "long.xml": DOMAIN.format("<reg32 name='R' offset='0' length='4000000000' stride='4'/>"),
    "product.xml": DOMAIN.format(
        "<array name='B' offset='0' length='1000' stride='4'>" * 4
        + "<reg32 name='R' offset='0'/>"
        + "</array>" * 4
    ),
    "deep.xml": DOMAIN.format("<group>" * 100_000 + "</group>" * 100_000),
    "deep.svd": "<device>" + "<a>" * 100_000 + "</a>" * 100_000 + "</device>",
    "around.svd": "<device><peripherals><peripheral derivedFrom='B'><name>A</name><baseAddress>0</baseAddress></peripheral>"
    "<peripheral derivedFrom='A'><name>B</name><baseAddress>0</baseAddress></peripheral></peripherals></device>",
    "long.rdl": "addrmap a { reg { field {} f[32]; } rr[4000000000]; };",
    "perl.rdl": "addrmap a { reg { field {} f[32]; } rr; };\n<% system('touch ran'); %>\n",
    "outside.rdl": '`include "../../../../../../../etc/passwd"\naddrmap a { reg { field {} f[32]; } rr; };',
    "itself.rdl": '`include "itself.rdl"\naddrmap a { reg { field {} f[32]; } rr; };',
    "long.h": "#include <stdint.h>\nstruct s { uint32_t a[4000000000]; uint32_t b : 3; };",
    "wide.h": "#define X (1 << 4000000000)\nstruct s { unsigned a : X; };",
    "macros.h": "#define A0 1+1+1+1+1+1+1+1+1+1\n"
    + "".join(f"#define A{n} {'+'.join([f'A{n - 1}'] * 10)}\n" for n in range(1, 15))
    + "struct s { unsigned a : A14; };\n",
    "around.h": "#define A B\n#define B A\nstruct s { unsigned a : A; };\n",
    "deep.h": "struct s {" + "struct {" * 5000 + "unsigned a : 1;" + "} a;" * 5000 + "};",
    "brackets.h": "struct s { unsigned a : " + "(" * 20_000 + "1" + ")" * 20_000 + "; };",
    "itself.h": "struct s { unsigned a : 3; struct s b[2]; };",
    "digits.csv": "register,offset,field,lsb,width\nR,0,f,0," + "9" * 5000 + "\n",
    "nul.csv": "register,offset,field,lsb,width\nR,0,f\0,0,1\n",
}
# In a process of its own, which may not take more than this beyond what Python and npulab take.
LIMITED = """
import resource, sys, warnings
warnings.simplefilter("ignore")
import npulab
from npulab.registers.formats import c_reading, formats, rnndb, svd, systemrdl, tables
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
for path in sys.argv[1:]:
    try:
        npulab.read_map(path)
        print("took it")
    except ValueError as error:
        print(str(error).replace("\\n", "<newline>"))
    print((peak() - before) // 1024, int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2])))
"""


def test_hostile_files_are_refused_in_a_sentence(tmp_path: Path) -> None:
    for name, text in REFUSED.items():
        (tmp_path / name).write_text(text)
    with (tmp_path / "large.xml").open("wb") as file:
        file.write(b"<database>")
        for _ in range(100):
            file.write(b"<!-- xxxxxxx -->" * 2**16)
        file.write(b"</database>")
    with (tmp_path / "large.svd").open("wb") as file:
        file.write(b"<device>")
        file.truncate(100 * 2**20)
    names = [*REFUSED, "large.xml", "large.svd"]
    environment = {**os.environ, "PYTHONPATH": str(Path(npulab.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *names],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * len(names), done.stderr[-500:]
    for name, said, used in zip(names, lines[::2], lines[1::2], strict=True):
        assert name in said, (name, said[:200])
        assert "allowed" in said, (name, said[:200])
        assert len(said) < 600, (name, len(said))
        assert "root:" not in said, "nothing of the file outside"
        mebibytes, seconds = map(int, used.split())
        assert mebibytes <= 64, name
        assert seconds < limit(20), name
    assert not (tmp_path / "ran").exists()


# A map that is being made

SEED = "seeds/001_8829da847375e5fe.txt"
SAID_OTHERWISE = {
    "op_type": "layer_type",
    "kernel_x_size": "kernel_xy_size",
    "enable_relu": "relu",
    "kernel_z_size2": "kernel_z_size",
    "out_image_y_size2": "out_image_y_stride",
    "image_end_address": "image_cache_end_address",
    "in_image_stride": "in_image_x_stride",
    "in_image_y_size2": "in_image_y_stride",
    "out_image_stride": "out_image_x_stride",
}


def test_the_struct_of_the_seed_pasted_linted_and_corrected(tmp_path: Path) -> None:
    (tmp_path / "blog.txt").write_text(shared(SEED).read_text())
    table, told = read(tmp_path / "blog.txt")
    assert len(told) == 1
    assert "word 20 bits 31:27, word 23 bits 31:6" in told[0]
    members = re.findall(r"^uint32_t (\w+)", shared(SEED).read_text(), re.M)
    assert [row["field"] for row in table.rows if "field" in row] == members
    shipped = {
        (row.word, row.lsb, row.width): row.field
        for row in npulab.target("vivante").maps("vipnano-qi-a311d")["NN"].fields.itertuples()
        if not re.match(r"w\d+_", row.field)
    }
    named = {(word, lsb + n) for word, lsb, width in shipped for n in range(width)}
    draft = npulab.draft(table)
    assert [str(one) for one in draft.map.lint()] == [
        "hole at word 20 bit 27 (5 bits)",
        "hole at word 23 bit 6 (26 bits)",
    ]

    def disagree() -> list[str]:
        """What both name and lies otherwise, or is called otherwise."""
        wrong = []
        for row in draft.map.fields.itertuples():
            ours = not re.fullmatch(r"(zero|unused|unk)\d+|w(\d+|0x\w+)_\d+_\d+", row.field)
            both = ours and any((row.word, row.lsb + n) in named for n in range(row.width))
            name = re.sub(r"_bit_[\d_]+$", "", SAID_OTHERWISE.get(row.field, row.field))
            if both and shipped.get((row.word, row.lsb, row.width)) != name:
                wrong.append(row.field)
        return wrong

    wrong = [disagree()]
    for edit in (
        lambda: draft.resize("unused7", 5, shift=True),
        lambda: draft.shift("kernel_data_type_bit_2", 1, out_of="unused4"),
        lambda: draft.split("post_shift", widths=[1, 5], names=["post_multiplier", "post_shift"]),
    ):
        edit()
        wrong.append(disagree())
    assert {"coef_zero_point", "out_zero_point", "post_shift"} <= {*wrong[0]}
    assert [len(one) for one in wrong] == sorted((len(one) for one in wrong), reverse=True)
    assert wrong[-1] == []
    assert len(draft.map) == 34
    assert len(draft.steps) == 3
    assert all(
        field in step
        for field, step in zip(
            ("unused7", "kernel_data_type_bit_2", "post_shift"), draft.steps, strict=True
        )
    )
    for _ in range(3):
        draft.undo()
    assert (disagree(), draft.table.rows) == (wrong[0], table.rows)


@pytest.fixture
def nn(tmp_path: Path) -> Path:
    for name in ("nn.csv", "enums.csv"):
        shutil.copy(ROOT / "npulab/npus/vivante" / name, tmp_path)
    return tmp_path / "nn.csv"


EDITS: dict[
    str, tuple[Callable[[npulab.analysis.draft.Draft], None], int, int]
] = {  # and how many lines go and come
    "rename": (lambda one: one.rename("relu", "clamp_below"), 1, 1),
    "rename split": (lambda one: one.rename("kernel_z_size", "depth"), 2, 2),
    "note": (lambda one: one.set_note("brick_mode", 'tiles, "<b>"'), 1, 1),
    "evidence": (lambda one: one.set_evidence("brick_mode", "C:update4-vendor"), 1, 1),
    "retype": (lambda one: one.retype("kernels_per_core", "raw+1"), 1, 1),
    "split": (lambda one: one.split("further3", widths=[8, 24], names=["low", "high"]), 1, 2),
    "join": (lambda one: one.join("in_image_x_size", "in_image_y_size", "size"), 2, 1),
    "remove": (lambda one: one.remove("prelu"), 1, 1),
    "add": (lambda one: one.rename("w26_0_32", "counter"), 1, 1),
}


@pytest.mark.parametrize("name", EDITS)
def test_each_edit_is_a_named_step_of_few_lines_with_undo(name: str, nn: Path) -> None:
    make, gone, new = EDITS[name]
    before = nn.read_bytes()
    draft = npulab.draft(nn, features=["nn_v7"])
    seen: list[npulab.analysis.draft.Draft] = []
    draft.observe(seen.append)
    make(draft)
    assert (len(draft.steps), len(seen)) == (1, 1)
    changed = [line for line in draft.diff().splitlines() if re.match(r"[-+](?![-+])", line)]
    assert (
        [sum(line[0] == sign for line in changed) for sign in "-+"] == [gone, new]
        if name != "remove"
        else len(changed) <= 2
    )
    draft.save()
    after = npulab.draft(nn, features=["nn_v7"])
    assert after.table.rows == draft.table.rows
    kept = set(before.splitlines()) & set(nn.read_bytes().splitlines())
    assert len(kept) >= len(set(before.splitlines())) - gone
    assert (nn.parent / "enums.csv").read_bytes() == (
        ROOT / "npulab/npus/vivante/enums.csv"
    ).read_bytes()
    step = draft.steps[0]
    assert draft.undo() == step
    assert draft.undo() == ""
    draft.save()
    assert nn.read_bytes() == before
    assert draft.redo() == step


def test_status_counts_every_bit_once(captures: npulab.CaptureSet) -> None:
    map_ = npulab.target("vivante").maps("vipnano-qi-a311d")["NN"]
    words = np.stack(
        [one.words for one in captures if one.words is not None and len(one.words) == len(map_)]
    )
    moves = np.bitwise_or.reduce(words ^ words[0], axis=0)
    counts = {
        kind: np.zeros(len(map_), int)
        for kind in ("explained", "guessed", "open", "constant", "never exercised")
    }
    for row in map_.fields.itertuples():
        blank = bool(re.match(r"w\d+_\d+_\d+$", row.field))
        for bit in range(row.lsb, row.lsb + row.width):
            moving = int(moves[row.word]) // 2**bit % 2
            kind = (
                (
                    "open"
                    if blank
                    else "guessed"
                    if row.evidence in ("guess", "unknown")
                    else "explained"
                )
                if moving
                else "constant"
                if blank
                else "never exercised"
            )
            counts[kind][row.word] += 1
    status = map_.status(words)
    for kind, mine in counts.items():
        assert status[kind].tolist() == mine.tolist(), kind
    assert (status[[*counts]].sum(axis=1) == 32).all()
    for kind in counts:
        assert (
            f"{100 * counts[kind].sum() / (32 * len(map_)):.0f} % {kind}" in status.attrs["summary"]
        )


def test_what_is_on_screen_decodes_anew(nn: Path) -> None:
    capture = npulab.load(CAPTURES / "vivante/sim-3x3-stride2-relu")
    draft = npulab.draft(nn, features=["nn_v7"])
    editor, registers = (
        npulab.notebook.widgets.MapEditor(draft, capture),
        npulab.RegisterView(capture, draft=draft),
    )
    again: list[str] = []
    editor.observe(lambda change: again.append(change.name), ["rows", "steps"])
    registers.observe(lambda change: again.append(change.name), ["places", "values"])
    word = int(capture.words[1])
    draft.split("in_image_x_size", widths=[3, 10], names=["low", "high"])
    assert {"rows", "steps", "values", "places"} <= {*again}
    decoded = draft.decode(capture).fields.set_index("field")["raw"]
    assert (decoded["low"], decoded["high"]) == (word // 2**6 % 8, word // 2**9 % 2**10)
    assert {"low", "high"} <= {*registers.fields}
    assert (
        sum(
            "low" in map(str, row.values() if isinstance(row, dict) else row) for row in editor.rows
        )
        == 1
    )
    draft.undo()
    assert "in_image_x_size" in registers.fields


# Sessions


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("sim-3x3-same", "sim-3x3-stride2-relu"):
        shutil.copytree(CAPTURES / "vivante" / name, tmp_path / "captures" / name)
    shutil.copy(CAPTURES / "vivante/sweep-layers-s905d3.npz", tmp_path / "sweep.npz")
    for name in ("nn.csv", "enums.csv", "sources.csv"):
        shutil.copy(ROOT / "npulab/npus/vivante" / name, tmp_path)
    return tmp_path


def told(folder: Path) -> npulab.notebook.sessions.Session:
    """An investigation with something of everything."""
    one = npulab.session(folder / "story.json", author="ada")
    one.title = "What is <relu>?"
    a, b = (one.attach(f"captures/{name}") for name in ("sim-3x3-same", "sim-3x3-stride2-relu"))
    one.attach("sweep.npz")
    draft = npulab.draft(folder / "nn.csv", features=["nn_v7"])
    draft.rename("relu", "clamp_below")
    one.use_map(draft)
    one.note("**Clamps** below", field="clamp_below", date="2026-01-02")
    one.note("a register", register="w2")
    one.note("sixteen bytes", capture=a, buffer="coefficients", offset=16, size=16)
    one.note("the capture", capture=b)
    one.note("the story")
    one.bookmark("look here", field="post_shift")
    one.accept("kernel_h", field="kernel_xy_size", sweep="sweep.npz")
    found = npulab.bisect_fields(
        a,
        b,
        lambda trial: "fail" if trial.words[2] & 2**24 else "pass",
        different_layers=True,
        journal=folder / "journal.jsonl",
    )
    one.journal(folder / "journal.jsonl", good=a, bad=b, result=str(found.culprits))
    view = npulab.RegisterView(a)
    view.cursor = (2, 24)
    one.open_view(view, "registers")
    return one


def texts(one: npulab.notebook.sessions.Session) -> set[str]:
    return {note.text for note in one.notes}


def test_a_session_is_there_again_from_one_readable_file(folder: Path) -> None:
    one = told(folder)
    text = (folder / "story.json").read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) < 400, "a change is a line or two of a diff"
    assert json.loads(text)["title"] == "What is <relu>?"
    again = npulab.session(folder / "story.json")
    assert (again.problems, again.conflicts) in (((), ()), ([], []))
    for what in ("title", "notes", "bookmarks", "captures", "laws", "journals"):
        assert getattr(again, what) == getattr(one, what), what
        assert len(getattr(again, what)) > 0
    assert {note.anchor.text for note in again.notes} >= {"field clamp_below", "register w2"}
    assert "clamp_below" in {*again.registers.fields["field"]}
    assert again.draft.steps == ["rename relu to clamp_below"]
    view = again.show()
    assert isinstance(view, npulab.RegisterView)
    assert (tuple(view.cursor), tuple(view.words)) == (
        (2, 24),
        tuple(npulab.load(folder / "captures/sim-3x3-same").words),
    )
    assert "relu" in (folder / "nn.csv").read_text(), (
        "edits that were not saved are in the session alone"
    )
    before = text
    again.save()
    assert (folder / "story.json").read_text(encoding="utf-8") == before


def test_a_new_note_is_a_small_diff(folder: Path) -> None:
    one = told(folder)
    before = (folder / "story.json").read_text().splitlines()
    one.note("another", field="stride")
    after = (folder / "story.json").read_text().splitlines()
    assert [line for line in before if line not in after] == []
    assert len(after) - len(before) < 10


def test_two_peoples_sessions_lose_no_note(folder: Path) -> None:
    told(folder)
    base = (folder / "story.json").read_bytes()
    for name in ("base", "ours", "theirs"):
        (folder / f"{name}.json").write_bytes(base)
    ours, theirs = (
        npulab.session(folder / f"{name}.json", author=name) for name in ("ours", "theirs")
    )
    for n in range(20):
        (ours if n % 2 else theirs).note(f"note {n}", field=f"f{n % 3}")
    shared_note = next(note for note in ours.notes if note.text == "a register")
    ours.edit(shared_note.id, "our reading")
    theirs.edit(shared_note.id, "their reading")
    gone = next(note for note in ours.notes if note.text == "the capture")
    ours.remove(gone.id)
    story = next(note for note in ours.notes if note.text == "the story")
    ours.remove(story.id)
    theirs.edit(story.id, "the story, told better")
    for a, b in ((ours, theirs), (theirs, ours)):
        merged = npulab.notebook.sessions.merge_sessions(
            folder / "base.json", a.path if hasattr(a, "path") else a, b
        )
        all_text = " ".join(texts(merged)) + json.dumps([str(note) for note in merged.notes])
        assert {f"note {n}" for n in range(20)} <= texts(merged)
        assert all(
            reading in all_text for reading in ("our reading", "their reading", "told better")
        )
        assert "the capture" not in texts(merged)
        assert len(merged.conflicts) >= 1
    assert main(
        ["session", "merge", *(str(folder / f"{name}.json") for name in ("base", "ours", "theirs"))]
    ) in (0, 1)
    assert {f"note {n}" for n in range(20)} <= texts(npulab.session(folder / "ours.json"))


def test_a_session_written_by_somebody_else_meanwhile_is_merged(folder: Path) -> None:
    one, other = (npulab.session(folder / "x.json", author=name) for name in ("ada", "bob"))
    one.note("ada's")
    with pytest.raises(ValueError, match="merge"):
        other.note("bob's")
    assert other.merge() in ([], ())
    assert texts(npulab.session(folder / "x.json")) == {"ada's", "bob's"}


@pytest.mark.parametrize(
    "path", ["../outside", "/etc/passwd", "captures/../../outside", "captures/link"]
)
def test_paths_that_leave_the_folder_are_refused(
    path: str, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("elsewhere") / "outside"
    shutil.copytree(CAPTURES / "vivante/sim-3x3-same", outside)
    (folder / "captures/link").symlink_to(outside)
    shutil.copytree(outside, folder.parent / "outside", dirs_exist_ok=True)
    one = npulab.session(folder / "x.json")
    with pytest.raises((ValueError, OSError)):
        one.attach(path)
    one.note("n")
    said = json.loads((folder / "x.json").read_text())
    for kind in ("captures", "journals", "figures"):
        hostile = {**said, kind: {path: {"sha256": "0" * 64}}}
        (folder / "y.json").write_text(json.dumps(hostile))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                bad = npulab.session(folder / "y.json")
                page = bad.report(folder / f"{kind}.html").read_text()
            except (ValueError, OSError, LookupError):
                continue
        assert "root:x" not in page
        assert "sim-3x3-same" not in page
        with pytest.raises((ValueError, LookupError, OSError)):
            bad.load(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        '{"npulab": "session"}',
        '{"npulab": "session", "version": 1, "notes": []}',
        "\ufeff{}",
        '{"npulab": "session", "version": 1, "notes": {"a": 3}}',
    ],
)
def test_what_is_no_session_is_refused_in_a_sentence(
    text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "x.json").write_text(text)
    status = main(["report", str(folder / "x.json"), str(folder / "out.html")])
    said = capsys.readouterr().err.strip()
    assert (status, "\n" in said, "x.json" in said) == (2, False, True), said
    assert not (folder / "out.html").exists()


# The report


def hostile(folder: Path) -> npulab.notebook.sessions.Session:
    one = told(folder)
    one.title = EVIL
    draft = one.draft
    draft.rename("stride" if "stride" in {*draft.map.fields["field"]} else "post_shift", EVIL)
    draft.set_note("pooling", EVIL)
    draft.retype("brick_mode", names={0: EVIL, 1: NASTY[0]})
    one.use_map(draft)
    capture = replace(
        npulab.load(folder / "captures/sim-3x3-same"), name=EVIL, source=EVIL, tool=EVIL
    )
    npulab.save(capture, folder / "captures" / "evil")
    one.attach("captures/evil")
    for text in NASTY:
        one.note(text, field=EVIL, author=text)
        one.note(
            f"# {text}\n\n- {text}\n\n```\n{text}\n```\n\n| {text} |\n| --- |\n| {text} |\n\n![x](javascript:alert(1)) <javascript:alert(1)>"
        )
        one.bookmark(text, register=text)
    one.journal(folder / "journal.jsonl", result=EVIL)
    return one


def test_a_report_opens_anywhere_and_runs_nothing(folder: Path) -> None:
    one = hostile(folder)
    page = one.report(folder / "out.html").read_text(encoding="utf-8")
    harmless(page)
    assert EVIL in Tags(page).text
    assert not re.search(r"url\((?!['\"]?data:)|@import", page)
    markdown = one.report(folder / "out.md").read_text(encoding="utf-8")
    prose = re.sub(r"^(`{3,}).*?^\1", "", markdown, flags=re.M | re.S)
    assert not re.search(r"(?<!\\)<(script|img)", re.sub(r"`+[^`]*`+", "", prose))
    assert not re.search(r"(?<!\\)\]\(<?javascript", prose)


def test_a_report_tells_the_story_with_commands_that_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = told(folder)
    page = Tags(one.report(folder / "out.html").read_text(encoding="utf-8"))
    for said in (
        "What is <relu>?",
        "Clamps",
        "sixteen bytes",
        "look here",
        "kernel_h",
        "simulated",
        "clamp_below",
        "ada",
    ):
        assert said in page.text, said
    markdown = one.report(folder / "out.md").read_text(encoding="utf-8")
    monkeypatch.chdir(folder)
    commands = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```", markdown, re.M | re.S)
        for line in block.splitlines()
        if line.startswith("npulab ") and "laws" not in line and "bisect" not in line
    ]
    assert len({*commands}) >= 4
    for line in dict.fromkeys(commands):
        assert main(shlex.split(line)[1:]) in (0, 1), line
        capsys.readouterr()
    assert main(["report", "story.json", "again.html"]) == 0
    assert (folder / "again.html").read_bytes() == (folder / "out.html").read_bytes()


# A new target


def test_a_new_target_is_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.txt").write_text("stays")
    package = {path: path.stat().st_mtime_ns for path in (ROOT / "npulab").rglob("*.py")}
    assert main(["new", "wren"]) == 0
    touched = {
        path.parent.relative_to(tmp_path)
        for path in tmp_path.rglob("*")
        if path.is_file() and path.name != "other.txt"
    }
    assert {place.parts[:2] for place in touched} == {("npulab_targets", "wren")}
    assert {path: path.stat().st_mtime_ns for path in (ROOT / "npulab").rglob("*.py")} == package
    assert "wren" in npulab.targets()
    target = npulab.target("wren")
    fields = target.registers.fields
    assert (~fields["field"].str.fullmatch(r"(\w+\.)?w\d+_\d+_\d+")).sum() == 1, "one worked field"
    words = np.random.default_rng(0).integers(
        0, 2**32, (10, len(target.registers)), dtype=np.uint32
    )
    assert np.array_equal(target.registers.encode(target.registers.decode(words)), words)
    for name in ("wren", "../wren", "a/b", "", "Wren", "1x", "class", "vivante;x"):
        assert main(["new", name]) == 2
    assert {
        path.name for path in (tmp_path / "npulab_targets").iterdir() if path.name != "__pycache__"
    } == {"wren"}


@pytest.mark.long
def test_a_new_target_passes_its_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "wren"]) == 0
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "npulab_targets/wren"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-1000:]


# Views, without a browser

CODES = {
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "f16": "e",
    "f32": "f",
    "f64": "d",
}


@pytest.mark.parametrize("element", CODES)
def test_a_value_is_found_wherever_it_stands(element: str) -> None:
    draw = random.Random(element)
    data = bytearray(draw.choice(b"\0\1\xff") for _ in range(5000))
    for order in "<>":
        value = struct.unpack(
            order + CODES[element],
            struct.pack(order + CODES[element], 1.5 if element[0] == "f" else 7),
        )[0]
        packed = struct.pack(order + CODES[element], value)
        for at in (0, 333, 334 + len(packed), 5000 - len(packed)):
            data[at : at + len(packed)] = packed
        view = npulab.notebook.widgets.ByteView(bytes(data))
        view.element, view.big_endian, view.query = element, order == ">", str(value)
        want = [at for at in range(len(data)) if data[at : at + len(packed)] == packed]
        assert view.found == len(want) >= 4
        places = []
        for _ in want:
            view.seek(1)
            places.append(view.selection[0])
        assert sorted(places) == want
        view.cursor = 333
        assert dict(view.about["values"])[element] == str(value)
    assert {*view.elements} - {"bytes", "text"} == {*CODES}


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


def test_outputs_are_compared_channel_by_channel() -> None:
    draw = np.random.default_rng(3)
    found = npulab.check(npulab.load(CAPTURES / "vivante/sim-3x3-same"))
    captured = found.predicted.copy()
    for place in draw.integers(0, 100, 25):
        captured[place // 10, place % 10, place % 5 + 2] ^= 5
    view = npulab.notebook.widgets.OutputView(replace(found, captured=captured, verdict="differs"))
    wrong = [
        (int(row), int(column), int(channel))
        for channel in range(captured.shape[2])
        for row, column in np.argwhere(captured[..., channel] != found.predicted[..., channel])
    ]
    assert tuple(view.place) == min(wrong)
    assert f"{len(wrong)} of 1200" in view.summary
    seen = {tuple(view.place)}
    for _ in wrong:
        view.seek(1)
        seen.add(tuple(view.place))
    assert seen == {*wrong}
    row, column, channel = wrong[0]
    view.place = wrong[0]
    assert (
        f"predicted {found.predicted[row, column, channel]}, captured {captured[row, column, channel]}"
        in view.about
    )
    for of in {channel for _, _, channel in wrong}:
        _, _, difference = view.model.pictures(of)
        assert np.array_equal(difference != 128, captured[..., of] != found.predicted[..., of])
