"""Structs, macros and functions of C as gcc compiles them."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from round_trip import TABLES, places, read, there_and_back

import npulab
from npulab.registers.formats import RegisterTable

STRICT = ("-Wall", "-Wextra", "-Werror")
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not on the path")


def compiled(source: str, folder: Path, *flags: str) -> Path:
    """The program or library that gcc makes of a C text, every warning an error."""
    (folder / "t.c").write_text(source)
    command = ["gcc", *STRICT, "-I", folder, "-o", folder / "t.out", folder / "t.c", *flags]
    done = subprocess.run(command, capture_output=True, text=True)
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
    some = "mode rest parts[2].tail size[1][0].y shift whole d"
    assert {name for _, name in laid} >= {*some.split()}
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
    for to in ("struct", "macros"):
        there_and_back(table, to, tmp_path)


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
@pytest.mark.parametrize("feature", ["nn_v7", "nn_v8"])
def test_exported_functions_pack_and_unpack_10000_random_words(
    feature: str, tmp_path: Path
) -> None:
    table = npulab.read_map(ROOT / "npulab/npus/vivante/nn.csv")
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
