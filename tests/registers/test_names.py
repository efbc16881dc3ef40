"""One name for a field: the same in maps, files of every format, captures, diffs, laws and
views.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from round_trip import cells, rows_in

import npulab
from npulab.analysis.laws import find_laws
from npulab.analysis.laws.expressions import ALWAYS, field
from npulab.analysis.laws.solved import Solved
from npulab.analysis.sides import differing
from npulab.captures.capture import Capture, Job
from npulab.captures.listing import Decoded, Wanted
from npulab.cli.shell import main
from npulab.notebook.widgets.bits_view import Rows
from npulab.notebook.widgets.sweep_view import SweepModel
from npulab.registers.formats import FORMATS, RegisterTable, of_blocks, read_map, write_map
from npulab.registers.formats.c_names import c_name
from npulab.registers.map import RegisterMap
from npulab.registers.names import FIELD, blocks_by_address, name_of, run_of

COLUMNS = "block,offset,register,field,lsb,width,at,bits,count,stride,value,feature,address,align,evidence,note"
BACK = {"svd": "", "xml": "", "h": "struct", "hpp": "macros", "csv": "", "rdl": ""}
Runs = dict[tuple[str, int, int, int], str]
NAMES = (
    "a",
    "b",
    "kernel w",
    "kernel_w",
    "int",
    "2d",
    "size.x",
    "w0_0_4",
    "w3_8_8",
    "r0004_0_4",
    "",
)


def line(**cells: Any) -> str:
    return filled(",".join(str(cells.get(name, "")) for name in COLUMNS.split(",")))


def filled(text: str) -> str:
    """The line of a table with its blank last cells."""
    return text + "," * (COLUMNS.count(",") - text.count(","))


def fields_of_word(
    chance: random.Random, offset: int, by_address: bool
) -> Iterator[dict[str, Any]]:
    """Runs of a word: some unnamed, some named, some as their place is called, some left out."""
    lsb, taken = 0, set()
    while lsb < 32:
        width = min(chance.choice((1, 3, 4, 8, 13)), 32 - lsb)
        free = [name for name in NAMES if run_of(name) is None or run_of(name)[0] != offset]  # type: ignore[index]
        own = f"r{offset:04x}_{lsb}_{width}" if by_address else f"w{offset // 4}_{lsb}_{width}"
        name = chance.choice((*free, own, own))
        if name in taken:
            name = ""
        if chance.random() < 0.7:
            taken.add(name)
            yield {"offset": offset, "lsb": lsb, "width": width, "field": name}
        lsb += width


def made(seed: int) -> str:
    """A table of two blocks, the second of them at addresses or of words, too."""
    chance = random.Random(seed)
    lines = []
    sparse = seed % 3
    if sparse == 1:
        lines.append(line(block="ALU", offset=0, value="sparse"))
    start = 0
    if sparse == 2:
        start = 0x1000
    for block, base, by_address in (("GEMM", 0, sparse == 2), ("ALU", start, sparse > 0)):
        for offset in range(base, base + 20, 4):
            register = chance.choice(("", "", f"R{(offset - base) // 4}"))
            for row in fields_of_word(chance, offset, by_address):
                lines.append(line(block=block, register=register, **row))
        low = base + 0x20
        lines.append(f"{block},{low},LO,split,4,12,0")
        lines.append(f"{block},{low + 4},HI,split,0,9,12")
        for n, name in enumerate(("mode", "", "mode")):
            lines.append(f"{block},{low + 8 + n},BYTE{n},{name},1,5,,8")
        lines.append(f"{block},{low + 0x10},WIDE,far,20,30,,64")
        for name, lsb in (("value", 0), ("", 8)):
            lines.append(f"{block},{low + 0x20},LUT,{name},{lsb},6,,16,4,2")
    return "\n".join([COLUMNS, *map(filled, lines), ""])


def of_table(table: RegisterTable) -> Runs:
    names = [name_of(row, table.by_address) for row in table.rows]
    rows = [{"block": "", **row} for row in table.rows]
    return dict(zip(cells(rows, "block offset lsb width"), names, strict=True))


def of_map(registers: RegisterMap) -> Runs:
    """The name of each run of bits of a map, also of those without a row."""
    out = {}
    for item in registers:
        for word, lsb, width, _ in item.pieces:
            block, offset, _ = registers.registers[word]
            out[block, offset, lsb, width] = item.name
    return out


def declared(runs: Runs, table: Runs) -> Runs:
    return {place: name for place, name in runs.items() if place in table}


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(60))
def test_each_run_of_bits_has_one_name_in_every_format(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "registers.csv"
    path.write_text(made(seed))
    table = read_map(path)
    names = of_table(table)
    assert any(FIELD.fullmatch(name) for name in names.values())
    for dense in (True, False):
        registers = RegisterMap.read(path, dense=dense)
        every = of_map(registers)
        assert declared(every, names) == names
        assert registers.by_address == table.by_address
        again = RegisterMap(registers.fields.to_dict("records"), dense=False)
        assert declared(of_map(again), names) == names
    for suffix, to in BACK.items():
        if suffix == "rdl" and seed % 20:
            continue  # its compiler takes a second
        out = tmp_path / f"out.{suffix}"
        write_map(table, out, to or suffix)
        read = read_map(out)
        assert of_table(read) == names, suffix
        assert {row["field"] for row in read.rows if "field" in row} == {
            row["field"] for row in table.rows if "field" in row
        }
        assert declared(of_map(read.map()), names) == names
        for block in table.blocks:
            part = of_blocks(table, [block])
            assert of_table(part).items() <= names.items()
    shown_in_drawings(table, names, tmp_path)
    members_of_c(table, tmp_path)


def shown_in_drawings(table: RegisterTable, names: Runs, folder: Path) -> None:
    for to in ("json", "md", "svg", "hexpat"):
        write_map(table, folder / f"drawn.{to}")
    found = {}
    for one in json.loads((folder / "drawn.json").read_text()):
        at = 0
        for part in one["reg"]:
            if "name" in part:
                found[one["block"], one["offset"], at, part["bits"]] = part["name"]
            at += part["bits"]
    assert found == names
    pages = [
        (folder / f"drawn.{to}").read_text().replace("\\", "") for to in ("md", "svg", "hexpat")
    ]
    for name in names.values():
        assert all(name in page for page in pages), name


def members_of_c(table: RegisterTable, folder: Path) -> None:
    """A member of the structs and of the pack functions has the key of the map of its block."""
    write_map(table, folder / "pack.h", "pack")
    text = (folder / "pack.h").read_text()
    for block in table.blocks:
        registers = RegisterTable(
            tuple(table.blocks[block]), table.enums, by_address=table.by_address
        ).map()
        body = text.partition(f"struct {block}_values {{")[2].partition("};")[0]
        members = re.findall(r"uint\d+_t (\w+); /\* ([^*]*) \*/", body)
        assert len({name.lower() for name, _ in members}) == len(members)
        for (member, bits), item in zip(members, registers, strict=True):
            assert bits == item.bits
            plain = c_name(registers.key(item))
            assert re.fullmatch(rf"{re.escape(plain)}(_\d+)?", member)


def captured(seed: int, path: Path) -> tuple[Capture, Capture]:
    """Two captures of a job of each block, with other words."""
    chance = np.random.default_rng(seed)
    whole = RegisterMap.read(path)
    maps = {block: whole.of_block(block) for block in ("GEMM", "ALU")}
    out = []
    for name in ("one", "two"):
        jobs = tuple(
            Job(block, chance.integers(0, 2**32, len(one), np.uint64).astype(np.uint32))
            for block, one in maps.items()
        )
        out.append(Capture(name, "demo", "x", jobs, maps=maps))
    return out[0], out[1]


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(60))
def test_show_diff_and_views_have_the_names_of_the_map(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "registers.csv"
    path.write_text(made(seed))
    one, two = captured(seed, path)
    table = read_map(path)
    names, every = of_table(table), of_map(RegisterMap.read(path))
    assert declared(every, names) == names
    shown = {
        (row["block"], row["register"], row["field"], row["bits"]) for row in Decoded(one).rows
    }
    differ = {
        (row["block"], row["register"], row["field"]) for row in differing(one, two).records()
    }
    assert differ <= {place[:3] for place in shown}
    for block, registers in one.maps.items():
        assert {name for place, name in every.items() if place[0] == block} == {
            field for of, _, field, _ in shown if of == block
        }
        assert Rows.whole(registers).names == tuple(map(registers.key, registers))
        for item in random.Random(seed).sample([*registers], 4):
            wanted = Wanted(f"{block}.{item.register}.{item.name}".replace("[", "[[]"))
            (row,) = Decoded(one, wanted).rows
            assert (row["block"], row["register"], row["field"]) == (
                block,
                item.register,
                item.name,
            )
        words = np.zeros((3, len(registers)), np.uint32)
        words[:, -1] = range(3)
        sweep = npulab.Sweep(words, {"mode": range(3)}, "s", block=block, registers=registers)
        assert SweepModel(sweep).rows.names == tuple(map(registers.key, registers))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_laws_have_the_names_of_the_map(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "registers.csv"
    path.write_text(made(seed))
    table = read_map(path)
    for block, registers in captured(seed, path)[0].maps.items():
        mode = np.arange(12) % 3
        words = np.zeros((12, len(registers)), np.uint32)
        words[:, 0], words[:, -1] = mode * 8, mode
        sweep = npulab.Sweep(words, {"mode": mode}, "s", block=block, registers=registers)
        laws = find_laws(sweep)
        by_address = block in table.by_address
        for law in laws.fields:
            _, offset, _ = registers.registers[law.word]
            run = run_of(law.name)
            assert run == (offset, law.lsb, law.width)
            assert law.name.startswith("r" if by_address else "w")
        rows = laws.register_rows()
        assert {row["block"] for row in rows} == {block}
        assert [run_of(row["field"]) for row in rows] == [
            (row["offset"], row["lsb"], row["width"]) for row in rows
        ]


LAWS = """block,offset,register,field,lsb,width,at,value,feature,address,align,evidence,note
JOB,0,w0,w0_5_2,5,2,,,,,,guess,
JOB,4,w1,w1_0_7,0,7,,,,,,guess,
JOB,8,w2,w2_0_3,0,3,,,,,,guess,ceil(w1_0_7 / 16)
"""


def test_names_of_a_map_that_laws_wrote_are_in_every_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "laws.csv"
    path.write_text(LAWS)
    for to in ["xml", "svd", "rdl", "struct", "macros", "pack", "hexpat", "json", "md", "svg"]:
        out = tmp_path / f"{to}{FORMATS[to].suffix}"
        assert main(["map", str(path), str(out), "--to", to]) == 0
        assert "3 registers, 3 fields" in capsys.readouterr().out
        text = out.read_text().replace("\\", "")
        for name in ("w0_5_2", "w1_0_7", "w2_0_3"):
            assert re.search(rf"(?<![A-Za-z0-9])(JOB_)?{name}(?![0-9])", text), (to, name)
        assert "unnamed_" not in text
        assert not re.search(r"w0x|w0_0_[73]", text)
        assert to in ("pack", "json", "svg") or "ceil(w1_0_7 / 16)" in text


def test_laws_of_registers_with_addresses_are_told_by_offset() -> None:
    rows = rows_in(
        "block,offset,register,field,lsb,width\nCORE,0x1010,R0,,0,32\nCORE,0x1014,R1,,0,32"
    )
    width = np.arange(3, 67)
    words = np.stack([width, (width + 15) // 16], 1).astype(np.uint32)
    sweep = npulab.Sweep(words, {"width": width}, "s", registers=RegisterMap(rows, dense=False))
    laws = find_laws(sweep)
    assert [law.name for law in laws.fields] == ["r1010_0_7", "r1014_0_3"]
    again = RegisterMap(laws.register_rows(), dense=False)
    assert [item.name for item in again if item.evidence != "unknown"] == ["r1010_0_7", "r1014_0_3"]
    predicted, _ = laws.predict({"width": [40]})
    assert predicted.tolist() == [[40, 3]]
    notes = [row["note"] for row in laws.register_rows()]
    for note in notes:
        assert all(name in again for name in re.findall(r"[wr][0-9a-f]+_\d+_\d+", note))


def test_laws_of_several_blocks_have_the_block_in_front() -> None:
    rows = [
        {"block": block, "offset": 0, "field": "", "lsb": 0, "width": 32}
        for block in ("GEMM", "ALU")
    ]
    width = np.arange(3, 67)
    words = np.stack([width, width * 2], 1).astype(np.uint32)
    sweep = npulab.Sweep(words, {"width": width}, "s", registers=RegisterMap(rows))
    laws = find_laws(sweep)
    assert [law.name for law in laws.fields] == ["GEMM.w0_0_7", "ALU.w0_1_7"]
    assert [(row["block"], row["field"]) for row in laws.register_rows()] == [
        ("GEMM", "w0_0_7"),
        ("ALU", "w0_1_7"),
    ]
    stated = npulab.analysis.laws.Stated.parse("ALU.w0_1_7", "GEMM.w0_0_7 * 1", "ALU.w0_1_7")
    found = npulab.analysis.laws.check_stated([stated], sweep)
    assert found["verdict"].tolist() == ["agrees"]
    registers = RegisterMap(rows)
    assert [registers.key(item) for item in registers] == ["GEMM.w0_0_32", "ALU.w0_0_32"]
    assert registers["ALU.w0_0_32"].block == "ALU"


def test_bits_that_only_a_law_reads_have_a_row_too() -> None:
    width = np.arange(64) % 16
    secret = np.random.default_rng(4).integers(0, 256, 64)
    laws = find_laws(np.stack([width, secret * 16, secret], 1).astype(np.uint32), {"width": width})
    reads = Solved(2, 0, 8, ((ALWAYS, field("w1_4_8")),), (64,), 1.0, 100.0)
    laws = replace(
        laws,
        _solved=(*laws._solved, reads),
        _follows={**laws._follows, "w2_0_8": frozenset({"w1_4_8"})},
    )
    rows = laws.register_rows("JOB", {"w0_0_4": "width of it"})
    assert [(row["field"], row["note"], row["evidence"]) for row in rows] == [
        ("width of it", "width", "C:sweep"),
        ("w1_4_8", "", "unknown"),
        ("w2_0_8", "w1_4_8", "guess"),
    ]
    assert len(RegisterMap(rows)) == 3
    named = laws.register_rows("JOB", {"w1_4_8": "input"})
    assert [(row["field"], row["note"]) for row in named][1:] == [
        ("input", ""),
        ("w2_0_8", "input"),
    ]


@pytest.mark.parametrize("name", npulab.targets())
def test_every_bundled_map_has_addresses_where_it_is_sparse(name: str) -> None:
    target = npulab.target(name)
    for registers in target.maps(next(iter(target.chips))).values():
        blocks = {block for block, _, _ in registers.registers}
        assert registers.by_address == (frozenset() if registers.dense else blocks)


def test_files_of_registers_keep_whether_a_block_has_addresses(tmp_path: Path) -> None:
    rows = [
        {"block": "A", "offset": 4, "lsb": 0, "width": 3},
        {"block": "B", "offset": 8, "field": "b", "lsb": 0, "width": 3},
    ]
    for sparse in ((), ("A",), ("A", "B")):
        table = RegisterTable.of(rows, sparse=sparse)
        assert table.by_address == {*sparse}
        for suffix in ("csv", "svd", "xml", "rdl"):
            out = write_map(table, tmp_path / f"{len(sparse)}.{suffix}")[0]
            back = read_map(out)
            assert (back, back.by_address) == (table, table.by_address)
    foreign = tmp_path / "foreign.svd"
    foreign.write_text(
        "<device><name>d</name><width>32</width><size>32</size><peripherals><peripheral><name>P</name>"
        "<baseAddress>0</baseAddress><registers><register><name>R</name><addressOffset>8</addressOffset>"
        "<fields><field><name>f</name><bitOffset>0</bitOffset><bitWidth>4</bitWidth></field></fields>"
        "</register></registers></peripheral></peripherals></device>"
    )
    assert [item.name for item in read_map(foreign).map()] == ["f", "r0008_4_28"]


def test_a_name_that_other_bits_of_the_register_have_by_their_place_is_refused() -> None:
    said = (
        r"^register map: field w0_0_4 of register CFG of block 'A' has bits 0\[7:5\], allowed is another name: "
        r"this is the automatic name of other bits of the register, which have no name$"
    )
    rows = [
        {"block": "A", "register": "CFG", "field": "w0_0_4", "lsb": 5, "width": 3},
        {"block": "A", "register": "CFG", "field": "a", "lsb": 4, "width": 1},
    ]
    with pytest.raises(ValueError, match=said):
        RegisterMap(rows)


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([{"offset": 0x10, "register": "w4", "lsb": 0, "width": 1}], set()),
        ([{"offset": 0x10, "register": "r0010", "lsb": 0, "width": 1}], {""}),
        ([{"offset": 0x10, "register": "w5", "lsb": 0, "width": 1}], set()),
        ([{"offset": 0x10, "field": "r0010_0_1", "lsb": 0, "width": 1}], {""}),
        ([{"offset": 0x1000, "field": "w1024_0_1", "lsb": 0, "width": 1}], set()),
        ([{"offset": 0xFFC, "lsb": 0, "width": 1}], set()),
        ([{"offset": 0x1000, "lsb": 0, "width": 1}], {""}),
    ],
)
def test_which_registers_have_addresses(rows: list[dict[str, Any]], wanted: set[str]) -> None:
    assert blocks_by_address(rows) == wanted
