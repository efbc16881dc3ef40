"""Register maps from and to C."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from c_structs import HEAD, STRICT, compiled, places, struct
from conftest import shared
from hypothesis import given, settings, strategies as st
from refusals import refused
from round_trip import cells, rows_in

from npulab.registers.formats import RegisterTable, of_chip, read_csv, read_rnndb
from npulab.registers.formats.c_packing import packing_text
from npulab.registers.formats.c_reading import read_c
from npulab.registers.formats.c_writing import c_text, macros_text
from npulab.registers.map import Finding
from npulab.support.extras import MissingPackage

TARGETS = Path(read_rnndb.__code__.co_filename).parents[2] / "npus"
SHIPPED = sorted(
    path.relative_to(TARGETS).as_posix()
    for path in TARGETS.glob("*/*.csv")
    if path.read_text(encoding="utf-8").startswith("block,offset,")
)
HOSTILE = [
    "<script>alert(1)</script>",
    "*/ int x; /*",
    "a\"b'c\\",
    "two\nlines\r\n",
    "x" * 10_000,
    "naïve Ω \u202e\u200b",
    "??/",
    "/**/",
    "__LINE__",
    "int",
    "uint32_t",
    "NULL",
    "%s%n",
    "3d",
    "a b",
    "a_b",
    "a-b",
    "npulab: {}",
    "// x \\",
    "#define x",
    "_",
    "linux",
]
OFTEN = {"vivante/nn.csv", "vivante/states.csv", "ane/h11.csv", "rockchip/tasks.csv"}
NAMED = [pytest.param(name, marks=[] if name in OFTEN else pytest.mark.long) for name in SHIPPED]
WRITERS = [c_text, macros_text]


def written(folder: Path, text: str, name: str = "map.h") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def read(folder: Path, text: str) -> RegisterTable:
    return read_c(written(folder, text))


def rows(table: RegisterTable) -> list[tuple[Any, ...]]:
    """(offset, register, field, lsb, width) of each row."""
    named = [{"register": "", "field": "", **row} for row in table.rows]
    return cells(named, "offset register field lsb width")


def column(table: RegisterTable, name: str) -> dict[str, Any]:
    return {row["field"]: row[name] for row in table.rows if name in row and "field" in row}


# Structs as gcc lays them out


def differing(folder: Path, seed: int, count: int) -> list[str]:
    """Random structs that are read otherwise than gcc lays them out."""
    random = Random(seed)
    structs = [struct(random, f"s{n}") for n in range(count)]
    out = []
    for (text, _), (size, masks) in zip(structs, places(folder, structs), strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = read(folder, HEAD + text)
        got: dict[str, int] = {}
        for row in table.rows:
            if "field" in row:
                got[row["field"]] = got.get(row["field"], 0) | (2 ** row["width"] - 1) * 2 ** (
                    8 * row["offset"] + row["lsb"]
                )
        if got != masks or max(row["offset"] for row in table.rows) >= size:
            out.append(text)
    return out


MORE = [pytest.param(seed, 1000, marks=pytest.mark.long) for seed in range(2, 8)]


@pytest.mark.parametrize(("seed", "count"), [(1, 40), *MORE])
def test_random_structs_are_laid_out_as_gcc_does(tmp_path: Path, seed: int, count: int) -> None:
    assert not differing(tmp_path, seed, count)


def test_the_struct_of_the_seed_as_it_is_printed(tmp_path: Path) -> None:
    path = shared("seeds/001_8829da847375e5fe.txt")
    with pytest.warns(UserWarning, match=r"silent holes at word 20 bits 31:27, word 23 bits 31:6$"):
        table = read_c(path)
    fields = table.map()
    assert fields.lint() == [Finding("hole", 20, 27, 5), Finding("hole", 23, 6, 26)]
    assert len(fields) == 35
    assert {block for block, _, _ in table.registers} == {"etna_nn_params"}
    assert column(table, "note")["kernel_z_size2"] == ">> 14"
    assert len(column(table, "note")) == 22
    # the three slips: a width, and a member that belongs elsewhere
    text = path.read_text(encoding="utf-8")
    assert text.count("uint32_t unused6 : 4;") == 1
    joined = text.replace("\n\n", "\n").replace("uint32_t ", "uint32_t\n").replace(" : ", "\n:\n\n")
    with pytest.warns(UserWarning, match="silent holes"):
        odd = read(tmp_path, joined)
    assert rows(odd) == rows(table)
    with pytest.warns(UserWarning, match="silent holes"):
        blanks = read(tmp_path, text.replace(" ", "\xa0").replace("\n", "\r\n"))
    assert blanks == table


@pytest.mark.filterwarnings("ignore:.*silent holes")
def test_what_members_become(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        """
        typedef unsigned int word;   /* ours */
        #define COUNT (1 + 1)
        enum mode { OFF, FAST = 2, SLOW };
        struct inner { word a : 4, b : 28; };
        struct job {
            int32_t x : 3;           // first column
            uint32_t : 5;
            /* of the whole
             * job */
            enum mode mode : 4;
            bool on : 1;
            uint32_t : 0;
            float gain;
            struct inner part[COUNT];
            uint8_t bytes[3], last;
            void *next;
            union { struct { uint32_t low : 16; uint32_t high : 16; }; uint32_t both; word more[2]; } u;
        };
        struct other { uint64_t wide; };
    """,
    )
    assert table.enums == {"mode": {0: "OFF", 2: "FAST", 3: "SLOW"}}
    assert [(row["block"], *place) for row, place in zip(table.rows, rows(table), strict=True)] == [
        ("job", 0, "", "x", 0, 3),
        ("job", 0, "", "", 3, 5),
        ("job", 0, "", "mode", 8, 4),
        ("job", 0, "", "on", 12, 1),
        ("job", 4, "", "gain", 0, 32),
        ("job", 8, "", "part[0].a", 0, 4),
        ("job", 8, "", "part[0].b", 4, 28),
        ("job", 12, "", "part[1].a", 0, 4),
        ("job", 12, "", "part[1].b", 4, 28),
        ("job", 16, "", "bytes[0]", 0, 8),
        ("job", 16, "", "bytes[1]", 8, 8),
        ("job", 16, "", "bytes[2]", 16, 8),
        ("job", 16, "", "last", 24, 8),
        ("job", 24, "", "next", 0, 32),
        ("job", 28, "", "next", 0, 32),
        ("job", 32, "", "u.low", 0, 16),
        ("job", 32, "", "u.high", 16, 16),
        ("job", 36, "", "", 0, 32),
        ("other", 0, "", "wide", 0, 32),
        ("other", 4, "", "wide", 0, 32),
    ]
    assert column(table, "value") == {"x": "signed", "mode": "enum:mode", "gain": "f32"}
    assert column(table, "note") == {"x": "first column", "mode": "of the whole job"}
    assert cells([row for row in table.rows if "at" in row], "at address") == [
        (0, "yes"),
        (32, "yes"),
        (0, None),
        (32, None),
    ]


def test_bits_wider_than_a_word_become_pieces(tmp_path: Path) -> None:
    table = read(tmp_path, "struct s { uint64_t a : 20; uint64_t b : 30; uint64_t c : 14; };")
    assert [
        (row["field"], row["offset"], row["lsb"], row["width"], row.get("at")) for row in table.rows
    ] == [("a", 0, 0, 20, None), ("b", 0, 20, 12, 0), ("b", 4, 0, 18, 12), ("c", 4, 18, 14, None)]
    assert table.map().decode(np.array([0xFFF00000, 0x3FFFF], np.uint32))["b"] == 2**30 - 1


def test_silent_holes_are_told_and_linted(tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning, match=r"map.h: struct s: silent holes at word 0 bits 31:30, word 1 bits 15:8$"
    ):
        table = read(tmp_path, "struct s { uint32_t a : 30; uint32_t b : 8; uint16_t c; };")
    assert table.map().lint() == [Finding("hole", 0, 30, 2), Finding("hole", 1, 8, 8)]


def test_conditions_and_text_around(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        """# Notes
        It's a struct, "they said": struct foo *p.
        #ifndef GUARD
        #define GUARD
        #ifdef __cplusplus
        extern "C" {
        #endif
        #define PACKED __attribute__((packed))
        static inline int f(struct s *x) { return x->a; }
        struct s {
        #if defined(__LITTLE_ENDIAN_BITFIELD)
            u32 a : 4;
            u32 b : 28;
        #elif defined(__BIG_ENDIAN_BITFIELD)
            u32 b : 28;
            u32 a : 4;
        #else
        #error "which?"
        #endif
        #if 0
            u32 never;
        #endif
            u8 c; u32 d;
        } PACKED;
        _Static_assert(sizeof(struct s) == 9, "size");
        #endif
        And so on; thanks!""",
    )
    assert rows(table) == [
        (0, "", "a", 0, 4),
        (0, "", "b", 4, 28),
        (4, "", "c", 0, 8),
        (4, "", "d", 8, 24),
        (8, "", "d", 0, 8),
    ]


def test_enums_without_a_tag_are_named_after_what_they_are_of(tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning,
        match="not carried over: ALIAS = 3 of enum state_t, which has the name BUSY already; not carried over: NEVER = -1 of enum",
    ):
        table = read(
            tmp_path,
            """typedef enum { IDLE, BUSY = 3, ALIAS = BUSY, NEVER = -1 } state_t;
            struct a { state_t st : 2; enum { X, Y } z : 1; uint32_t rest : 29; };
            struct b { enum { R } z; };""",
        )
    assert column(table, "value") == {"st": "enum:state_t", "z": "enum:z_2"}
    assert table.enums == {
        "state_t": {0: "IDLE", 3: "BUSY"},
        "z": {0: "X", 1: "Y"},
        "z_2": {0: "R"},
    }


def test_a_struct_in_another_is_no_block(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        """typedef struct { uint32_t mode : 2, : 6; /* pad */ uint32_t go : 24; //!< start
        } cfg_t;
        struct twice { cfg_t all[2]; }; typedef struct _job { uint32_t x; } job_t, *job_p;""",
    )
    assert cells(table.rows, "block offset field") == [
        ("twice", 0, "all[0].mode"),
        ("twice", 0, None),
        ("twice", 0, "all[0].go"),
        ("twice", 4, "all[1].mode"),
        ("twice", 4, None),
        ("twice", 4, "all[1].go"),
        ("job_t", 0, "x"),
    ]
    assert column(table, "note") == {"all[0].go": "start", "all[1].go": "start"}


def test_nothing_is_run_or_read_beside_it(tmp_path: Path) -> None:
    (tmp_path / "other.h").write_text("struct other { uint32_t x; };")
    table = read(tmp_path, '#include "other.h"\n#include "/dev/zero"\nstruct s { uint32_t a; };')
    assert rows(table) == [(0, "", "a", 0, 32)]


# Shift and mask macros


def test_headers_of_envytools(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        """
#define REG_NN_VERSION						0x00000000
#define REG_NN_CFG						0x00000010
#define NN_CFG_MODE__MASK					0x00000003
#define NN_CFG_MODE__SHIFT					0
static inline uint32_t NN_CFG_MODE(enum nn_mode val)
{
	return ((val) << NN_CFG_MODE__SHIFT) & NN_CFG_MODE__MASK;
}
#define NN_CFG_WRAP__MASK					0x0000c000
#define NN_CFG_WRAP__SHIFT					14
#define NN_CFG_WRAP_OFF						0x00000000
#define NN_CFG_WRAP_ON						0x00008000
#define NN_CFG_ENABLE						0x80000000
#define REG_NN_BASE						0x00000014
#define NN_BASE_ADDR__MASK					0xffffffc0
#define NN_BASE_ADDR__SHIFT					6
static inline uint32_t NN_BASE_ADDR(uint32_t val)
{
	assert(!(val & 0x3f));
	return ((val >> 6) << NN_BASE_ADDR__SHIFT) & NN_BASE_ADDR__MASK;
}
#define NN_BASE_X__MASK						0x0000001f
#define NN_BASE_X__SHIFT					0
static inline uint32_t NN_BASE_X(int32_t val)
{
	return ((val) << NN_BASE_X__SHIFT) & NN_BASE_X__MASK;
}
""",
    )
    assert rows(table) == [
        (0, "NN_VERSION", "NN_VERSION", 0, 32),
        (0x10, "NN_CFG", "MODE", 0, 2),
        (0x10, "NN_CFG", "WRAP", 14, 2),
        (0x10, "NN_CFG", "ENABLE", 31, 1),
        (0x14, "NN_BASE", "X", 0, 5),
        (0x14, "NN_BASE", "ADDR", 6, 26),
    ]
    assert column(table, "value") == {"WRAP": "enum:NN_CFG_WRAP", "X": "signed", "ADDR": "raw*64"}
    assert table.enums == {"NN_CFG_WRAP": {0: "OFF", 2: "ON"}}


def test_headers_of_linux_and_others(tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning,
        match=r"1 array lost: NPU_LUT_REG \(line 10\): nothing says its length, so only the first element is read \(X__LEN\); "
        r"1 second register lost: NPU_CLEAR \(line 8\): it lies at 0x4 where NPU_CTRL lies, so it stands in the block map_2; "
        r"1 field lost: ELSEWHERE_X \(line 23\)",
    ):
        table = read(
            tmp_path,
            """
#define NPU_ID             0x0000
#define NPU_CTRL           (0x0004)   /* the control register */
#define  NPU_CTRL_GO       BIT(0)     /* start */
#define  NPU_CTRL_MODE     GENMASK(7, 4)
#define  NPU_CTRL_MODE_A   0
#define  NPU_CTRL_MODE_B   3
#define NPU_CLEAR          0x0004
#define NPU_CLEAR_ALL      BIT(31)
#define NPU_LUT_REG(i)     (0x40 + 4 * (i))
#define NPU_SIZE           0x8
#define NPU_SIZE_W_SHIFT   0
#define NPU_SIZE_W_WIDTH   12
#define NPU_SIZE_H_SHIFT   16
#define NPU_SIZE_H_MASK    0x1fff
#define NPU_SIZE_H_SET(x)  (((x) & 0x1fff) << 16)
#define NPU_SIZE_T_Pos     (29U)
#define NPU_SIZE_T_Msk     (0x7UL << NPU_SIZE_T_Pos)
#define NPU_PAD            0xc
#define NPU_PAD_LEFT(x)    (((x) & 0xf) << 4)
#define NPU_PAD_TOP(x)     ((x) << 8)
#define NPU_PAD_VALUE(x)   ((x) << 16)
#define ELSEWHERE_X_MASK   0xff
#define SELF               (SELF + 1)
""",
        )
    assert rows(table) == [
        (0, "NPU_ID", "NPU_ID", 0, 32),
        (4, "NPU_CTRL", "GO", 0, 1),
        (4, "NPU_CTRL", "MODE", 4, 4),
        (8, "NPU_SIZE", "W", 0, 12),
        (8, "NPU_SIZE", "H", 16, 13),
        (8, "NPU_SIZE", "T", 29, 3),
        (12, "NPU_PAD", "LEFT", 4, 4),
        (12, "NPU_PAD", "TOP", 8, 8),
        (12, "NPU_PAD", "VALUE", 16, 16),
        (0x40, "NPU_LUT_REG[0]", "NPU_LUT_REG[0]", 0, 32),
        (4, "NPU_CLEAR", "ALL", 31, 1),
    ]
    assert table.enums == {"NPU_CTRL_MODE": {0: "A", 3: "B"}}
    assert column(table, "evidence") == {"TOP": "guess", "VALUE": "guess"}
    assert column(table, "note") == {"GO": "NPU_CTRL: the control register start"}


def test_headers_that_make_fields_otherwise(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        """
#define ADDRESS(_constant_) _constant_
#define PLACED(_mask_, _shift_) (_mask_ << _shift_)
#define UNIT_BANK_0                  (ADDRESS(0x30bc))
#define UNIT_BANK_0_DATA_SHIFT       (0)
#define UNIT_BANK_0_DATA_FIELD       (PLACED(0x1f, UNIT_BANK_0_DATA_SHIFT))
#define UNIT_BANK_0_WEIGHT_SHIFT     (16)
#define UNIT_BANK_0_WEIGHT_FIELD     (PLACED(0x1f, UNIT_BANK_0_WEIGHT_SHIFT))
#define UNIT_BANK_0_OTHER(x)         FIELD_PREP(GENMASK(9, 7), x)
#define UNIT_BANK_0_OTHER_ON         1
#define UNIT_BANK_0_PART_OFFSET      24
#define UNIT_BANK_0_PART_MASK        0x03000000
""",
    )
    assert rows(table) == [
        (0x30BC, "UNIT_BANK_0", name, lsb, width)
        for name, lsb, width in (
            ("DATA", 0, 5),
            ("OTHER", 7, 3),
            ("WEIGHT", 16, 5),
            ("PART", 24, 2),
        )
    ]
    assert table.enums == {"UNIT_BANK_0_OTHER": {1: "ON"}}


# Export


@pytest.mark.parametrize("name", NAMED)
def test_exported_c_compiles(name: str, tmp_path: Path) -> None:
    table = read_csv(TARGETS / name)
    for writer in (*WRITERS, packing_text):
        compiled(tmp_path, writer(table), *STRICT, "-fsyntax-only")


def test_a_struct_is_what_people_write(tmp_path: Path) -> None:
    table = RegisterTable.of(
        rows_in("""
block,offset,register,field,lsb,width,at,value,note
NN,0,CFG,mode,0,2,,enum:mode,how it runs
NN,0,CFG,mul,8,4,0,,
NN,8,,mul,0,8,4,,
NN,8,,,8,2,,,
"""),
        {"mode": {0: "off", 3: "int"}},
    )
    assert (
        c_text(table)
        == """#ifndef NPULAB_NN_H
#define NPULAB_NN_H

#include <stdint.h>

enum mode {
    mode_off = 0x0, /* npulab: {"prefix": "mode_"} */
    mode_int = 0x3,
};

struct NN {
    /* npulab: {"word": "CFG"} */
    uint32_t mode : 2; /* how it runs */ /* npulab: {"value": "enum:mode"} */
    uint32_t : 6; /* npulab: {"hole": true} */
    uint32_t mul_0 : 4; /* npulab: {"field": "mul", "at": 0} */
    uint32_t : 20; /* npulab: {"hole": true} */
    uint32_t reserved_0x0004[1]; /* npulab: {"hole": true} */
    uint32_t mul_4 : 8; /* npulab: {"field": "mul", "at": 4} */
    uint32_t w2_8_2 : 2; /* npulab: {"field": ""} */
    uint32_t : 22; /* npulab: {"hole": true} */
};
typedef char NN_has_12_bytes[sizeof(struct NN) == 12 ? 1 : -1];

#endif
"""
    )
    assert read(tmp_path, c_text(table)) == table
    edited = (
        c_text(table)
        .replace("uint32_t mul_4 : 8;", "uint32_t mul_4 : 9;")
        .replace("uint32_t : 22;", "uint32_t : 21;")
    )
    assert rows(read(tmp_path, edited))[-2:] == [(8, "", "mul", 0, 9), (8, "", "", 9, 2)]


def test_features_are_structs_of_their_own(tmp_path: Path) -> None:
    table = RegisterTable.of(
        rows_in("""
block,offset,register,field,lsb,width,feature
A,4,R,x,0,4,
A,4,R,y,4,4,old
A,4,R,y,8,8,new
""")
    )
    text = c_text(table)
    assert "struct A_new {" in text
    assert "struct A_old {" in text
    assert read(tmp_path, text) == table
    one = c_text(of_chip(table, ["new"]))
    assert "struct A {" in one
    assert rows(read(tmp_path, one)) == [(4, "R", "x", 0, 4), (4, "R", "y", 8, 8)]
    assert (
        refused(lambda: c_text(of_chip(table, ["newer"])))
        == "feature: got 'newer', allowed is one of new, old"
    )


def hostile() -> RegisterTable:
    """A map whose every name and note means harm."""
    made = [
        {
            "block": block,
            "offset": 4 * n,
            "register": HOSTILE[-1 - n],
            "field": name,
            "lsb": 3,
            "width": 5,
            "value": "enum:E",
            "note": name,
            "evidence": HOSTILE[(n + 3) % len(HOSTILE)],
        }
        for block in ("*/ }", "int")
        for n, name in enumerate(HOSTILE)
    ]
    return RegisterTable.of(
        made,
        {
            "E": dict(enumerate(dict.fromkeys(name.strip() for name in HOSTILE))),
            "big": {2**63: "*/"},
            "größe": {0: "a b", 1: "a-b"},
        },
        "Copyright */ x\n??/\n" + HOSTILE[5],
    )


@pytest.mark.parametrize("writer", WRITERS)
def test_hostile_names_stay_names(writer: Callable[[RegisterTable], str], tmp_path: Path) -> None:
    table = hostile()
    text = writer(table)
    compiled(tmp_path, text, *STRICT, "-fsyntax-only")
    compiled(tmp_path, packing_text(table), *STRICT, "-fsyntax-only")
    assert text.isascii()
    assert read(tmp_path, text) == table
    assert writer(read(tmp_path, text)) == text


def table_of(random: Random) -> RegisterTable:
    """A random map: blocks, features, split fields, rows without a name, registers that are
    named by one feature only.
    """
    made: list[dict[str, Any]] = []
    features = random.choice([[""], ["", "old", "new"]])
    for block in random.sample(["A", "", "b c", "int"], random.randint(1, 3)):
        base, spread = 4 * random.choice([0, 1, 1024]), random.choice([3, 40, 40_000])
        for offset in sorted(
            {base + 4 * random.randrange(spread) for _ in range(random.randint(1, 6))}
        ):
            common = random.choice(["", f"R{offset}"])
            free = dict.fromkeys(features, 0)
            for _ in range(random.randint(1, 5)):
                feature = random.choice(features)
                lsb = (
                    max(free.values()) if not feature else max(free[""], free[feature])
                ) + random.randint(0, 3)
                width = random.choice([random.randint(1, 8), 32 - lsb])
                if lsb + width > 32 or width < 1:
                    continue
                free[feature] = lsb + width
                row = {
                    "block": block,
                    "offset": offset,
                    "register": common,
                    "lsb": lsb,
                    "width": width,
                    "feature": feature,
                    "field": random.choice(
                        [
                            "",
                            f"f{len(made)}",
                            f"f {len(made)}",
                            "x"
                            if common
                            and not any(
                                one.get("field") == "x" and one["offset"] == offset for one in made
                            )
                            else "",
                        ]
                    ),
                    "value": random.choice(
                        ["", "", "signed", "raw*4", "enum:E", "f32" if width == 32 else ""]
                    ),
                    "evidence": random.choice(["", "K", "C:case"]),
                    "note": random.choice(["", "in words", "Copyright", "a*/"]),
                }
                if row["field"].startswith("f") and not row["value"] and random.random() < 0.4:
                    row |= {"at": random.choice([0, 0, 3])}
                if random.random() < 0.2:
                    row |= {"address": "yes", "align": 64}
                made.append(row)
    made = made or [{"field": "only", "lsb": 0, "width": 32, "value": "f32"}]
    return RegisterTable.of(
        made,
        {"E": {0: "zero", 2 ** random.choice([1, 40]): "more"}},
        random.choice(["", "Copyright 1\n\n * x", "mine"]),
    )


@pytest.mark.parametrize("count", [12, pytest.param(1000, marks=pytest.mark.long)])
def test_random_maps_exported_and_imported_are_equal(count: int, tmp_path: Path) -> None:
    random = Random(count)
    for n in range(count):
        table = table_of(random)
        for writer in WRITERS:
            text = writer(table)
            assert read(tmp_path, text) == table
            if n % 20 == 0:
                compiled(tmp_path, text, *STRICT, "-fsyntax-only")


NAMES = st.text(
    st.one_of(
        st.sampled_from("ab_*/\\\"'?{};:#\n"),
        st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="\ufffe\uffff"),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=12)
@given(
    names=st.lists(NAMES, min_size=1, max_size=6),
    notes=st.lists(NAMES, min_size=6, max_size=6),
    data=st.data(),
)
def test_any_names_round_trip(
    names: list[str], notes: list[str], data: Any, tmp_path_factory: Any
) -> None:
    made, lsb = [], 0
    for n, name in enumerate(names):
        width = data.draw(st.integers(1, 7))
        gap = data.draw(st.integers(0, 3))
        if lsb + gap + width > 32:
            break
        made.append(
            {
                "block": notes[0],
                "offset": 8 * (n % 2),
                "register": notes[1 + n % 2],
                "field": f"{name}{n}" if name.strip() else "",
                "lsb": lsb + gap,
                "width": width,
                "note": notes[n],
                "value": data.draw(st.sampled_from(["", "signed", "raw*4"])),
            }
        )
        lsb += gap + width
    table = RegisterTable.of(made)
    folder = tmp_path_factory.mktemp("c")
    for writer in WRITERS:
        assert read(folder, writer(table)) == table


# Broken files


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "",
            "got a file without a struct and without macros of registers, allowed is C that has a struct or macros of registers",
        ),
        (
            "#define ID_NID_MASK 0xff",
            ", line 1: ID_NID: no macro states the offset of a register with whose name it begins (--include FOLDER/FILE); got no register that can be read, lost: 1 field, allowed is a struct, or",
        ),
        (
            "struct s { uint32_t a : 33; };",
            ", line 1: struct s: width of bit-field 'a' (33 bits) exceeds the width of its type (32 bits); got no register that can be read, lost: 1 declaration",
        ),
        (
            "struct s {\n bool a : 2; };",
            ", line 2: struct s: width of bit-field 'a' (2 bits) exceeds the width of its type (1 bit)",
        ),
        (
            "struct s {\n\n uint32_t a : W; };",
            ", line 3: struct s: W is declared nowhere (--define W=VALUE)",
        ),
        (
            "struct s {\n thing_t a; };",
            ", line 2: struct s: the type thing_t is declared nowhere (--define thing_t=TYPE)",
        ),
        (
            "struct s {\n uint32_t a;\n uint32_t 3b;\n uint32_t c; };",
            ", line 3: struct s: expected member name or ';' after declaration specifiers",
        ),
        ("struct s {\n uint32_t a;", ", line 1: struct s: its closing brace is missing"),
        (
            "int x;\n/* open",
            ", line 2: got a comment without its end, allowed is a comment that ends in */",
        ),
        ("struct s {\n struct s x; };", ", line 2: struct s: field has incomplete type 'struct s'"),
        (
            "struct s {\n uint32_t x[99999]; };",
            ", line 2: struct s: array x: got 99999 elements in 1 dimensions, at most 16384 elements in 8 dimensions are allowed",
        ),
        (
            "struct s {\n uint32_t x" + "[2]" * 9 + "; };",
            ", line 2: struct s: array x: got 512 elements in 9 dimensions",
        ),
        (
            "struct s {\n uint32_t a : " + "1+" * 900 + "1; };",
            ", line 2: struct s: width of bit-field 'a' (901 bits) exceeds",
        ),
        ("struct s {\n uint32_t a : " + "-" * 900 + "1; };", ", line 2: "),
        (
            "struct s {\n uint32_t " + "a" * 600 + "; };",
            ", line 2: struct s: member " + "a" * 40 + ": got a name of 600 characters",
        ),
        (
            "struct s {\n uint32_t " + "a" * 6000 + "; };",
            ", line 2: struct s: it has a member of more than 2048 characters",
        ),
        (
            'struct s { uint32_t a; /* npulab: {"at": "1"} */ };',
            ", line 1: got the annotation at = '1', allowed are texts",
        ),
        (
            "struct s { uint32_t a; /* npulab: " + "[" * 100_000 + " */ };",
            ", line 1: got the annotation 'npulab: [[[",
        ),
        (
            "struct s {" * 10_000 + "}" * 10_000,
            ", line 1: struct s: it has braces that are nested more than 32 deep",
        ),
        (
            "struct s { uint32_t a : " + "(" * 10_000 + "1" + ")" * 10_000 + "; };",
            ", line 1: struct s: it has braces that are nested more than 32 deep",
        ),
        (
            "#define A B\n#define B A\nstruct s { uint32_t a : A; };",
            ", line 3: struct s: A refers to itself",
        ),
        (
            "struct s {\n uint32_t a : 3;\n uint32_t a : 3; };",
            ", line 3: struct s: duplicate member 'a'",
        ),
    ],
)
def test_broken_files_are_refused(text: str, words: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    said = refused(lambda: read_c(path))
    assert said.startswith(f"{path}")
    assert words in said


ODD = [
    "a" * 5_000_000,
    "struct s { uint32_t a; };\n" + "x " * 2_000_000,
    '\\"' * 2_000_000,
    "/**/" * 1_000_000,
    "#if 1\n" * 300_000,
    "\n".join(f"#define A{n} (A{n + 1} + A{n + 1})" for n in range(30_000))
    + "\n#define A30000_MASK 1",
    "struct " * 500_000,
    "struct s { " + "uint32_t a __attribute__((packed)); " * 16_000 + "};",
    "#define F(x) (F(x) + F(x))\n#define R 0\n#define R_MASK F(1)",
    "typedef " * 500_000,
    "struct s { uint32_t " + "a," * 300_000 + "b; };",
    "struct s" + " " * 4_000_000,
    "(" * 4_000_000,
    "struct s { uint32_t " + "*" * 10_000 + "p; };",
    "\n".join(f"#define R_{n}_{'_'.join('abcdefgh')}_MASK 1" for n in range(20_000)),
    f"#define {'_' * 4_000_000}MASK 1",
    "struct s { uint32_t a : " + "1+" * 1_000_000 + "1; };",
    "struct s { " + "uint32_t a; ?" * 15_000 + "};",
    "struct s { union { " + "struct { uint32_t a : 1; }; " * 10_000 + "} u; };",
    "#define A_MASK " + "(" * 1_000_000,
    "int a[] = {1," * 40_000,
]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, id=text[:12], marks=[] if n in (0, 8, 20) else pytest.mark.long)
        for n, text in enumerate(ODD)
    ],
)
def test_large_and_odd_files_end_soon(text: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    said = f"{path}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            read_c(path)
        except ValueError as error:
            said = str(error)
    assert said.startswith(f"{path}")


def test_a_missing_parser_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "clang", None)
    with pytest.raises(
        MissingPackage,
        match=r"h: reading C needs libclang, which is not installed: pip install 'npulab\[maps\]'$",
    ):
        read(tmp_path, "struct s { uint32_t a; };")
    assert rows(read(tmp_path, "#define REG_A 0x4\n#define A_X_MASK 0xf0\n")) == [
        (4, "A", "X", 4, 4)
    ]
