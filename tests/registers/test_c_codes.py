"""Names of codes next to structs in C headers: which macros and enums are those of which field, and
which of them are not, although their names are alike.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from npulab.registers.formats import RegisterTable
from npulab.registers.formats.c_reading import read_c

STRUCT = "struct job { unsigned opcode : 3; unsigned alu_opcode : 4; unsigned size; unsigned mode : 9; };\n"


def read(folder: Path, text: str, **given: Any) -> RegisterTable:
    pytest.importorskip("clang")
    path = folder / "map.h"
    path.write_text(text, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of silent holes and lost macros
        return read_c(path, **given)


def values(table: RegisterTable) -> dict[str, str]:
    return {row["field"]: row["value"] for row in table.rows if row.get("value")}


def macros(**numbers: int) -> str:
    return "".join(f"#define {name} {number}\n" for name, number in numbers.items())


def test_macros_with_the_name_of_a_field_are_its_codes(tmp_path: Path) -> None:
    text = macros(N_OPCODE_LOAD=0, N_OPCODE_RUN=5, N_ALU_OPCODE_MIN=0, N_ALU_OPCODE_ADD=3)
    table = read(tmp_path, text + STRUCT)
    assert values(table) == {"opcode": "enum:opcode", "alu_opcode": "enum:alu_opcode"}
    assert table.enums == {"opcode": {0: "LOAD", 5: "RUN"}, "alu_opcode": {0: "MIN", 3: "ADD"}}
    assert table.reading is not None
    assert not table.reading.lost
    assert table.reading.explained == table.reading.lines == 5


@pytest.mark.parametrize(
    "numbers",
    [
        {"N_OPCODE_LOAD": 0},  # one alone
        {"N_OPCODE_LOAD": 0, "N_OPCODE_RUN": 8},  # does not fit into 3 bits
        {"N_OPCODE_LOAD": 0, "M_OPCODE_RUN": 1},  # two families
        {"N_OPCODE_LOAD": 1, "N_OPCODE_RUN": 2},  # may be flags
        {"N_SIZE_A": 0, "N_SIZE_B": 700},  # of a whole word, and far apart
        {"N_MODE_1": 0, "N_MODE_2": 1, "N_MODE_3": 2},  # numbers, not names
        {"N_MODE_SHIFT": 0, "N_MODE_WIDTH": 3},  # of a field of macros
    ],
)
def test_other_macros_are_no_codes(tmp_path: Path, numbers: dict[str, int]) -> None:
    table = read(tmp_path, macros(**numbers) + STRUCT)
    assert not values(table)
    assert not table.enums


def test_a_width_is_no_code(tmp_path: Path) -> None:
    text = macros(N_OPCODE_BIT_WIDTH=3, N_OPCODE_LOAD=0, N_OPCODE_RUN=1)
    table = read(tmp_path, text + STRUCT.replace("opcode : 3", "opcode : N_OPCODE_BIT_WIDTH", 1))
    assert table.enums == {"opcode": {0: "LOAD", 1: "RUN"}}


def test_all_alternatives_of_a_union_get_the_codes(tmp_path: Path) -> None:
    union = "union insn { struct { unsigned opcode : 3; unsigned a : 9; } x; struct { unsigned opcode : 3; unsigned b : 7; } y; };\n"
    table = read(tmp_path, macros(N_OPCODE_X=0, N_OPCODE_Y=1) + union)
    assert values(table) == {"x.opcode": "enum:opcode", "y.opcode": "enum:opcode"}


@pytest.mark.parametrize(
    ("tag", "known"), [("opcode", True), ("npx_opcode_t", True), ("opcode_of_dma", False)]
)
def test_an_enum_with_the_name_of_a_field_has_its_codes(
    tmp_path: Path, tag: str, known: bool
) -> None:
    table = read(tmp_path, f"enum {tag} {{ LOAD, STORE, RUN }};\n{STRUCT}")
    assert values(table) == ({"opcode": f"enum:{tag}"} if known else {})


def test_a_whole_word_has_the_enum_of_its_own_name_only(tmp_path: Path) -> None:
    table = read(tmp_path, "enum page_size { SMALL, LARGE, HUGE };\n" + STRUCT)
    assert not values(table)
    table = read(tmp_path, "enum size { SMALL, LARGE, HUGE };\n" + STRUCT)
    assert values(table) == {"size": "enum:size"}
