"""The tables beside this file, read once."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from npulab.captures.target import read_chips, select
from npulab.registers.map import RegisterMap
from npulab.registers.table import read_table

HERE = Path(__file__).parent
CHIPS = read_chips(HERE / "chips.csv")
USUAL_CHIP = next(iter(CHIPS))
REGISTERS, TASK = "NPU", "TASK"  # the maps: all units by register address; the record that hands a task over
XML = "M"  # the source of rows that name none
RANGE = 2 ** 12  # addresses of a unit


def _registers() -> RegisterMap:
    """The registers that the XML has, with what is known beyond it."""
    rows = {_bits(row): {**row, "evidence": XML} for row in read_table(HERE / "registers.csv")}
    rows |= {_bits(row): row for row in read_table(HERE / "seen.csv")}
    return RegisterMap(rows.values(), dense=False)


def _bits(row: Mapping[str, str]) -> tuple[int, ...]:
    return tuple(int(row[name], 0) for name in ("offset", "lsb", "width"))


TABLES = {REGISTERS: _registers(), TASK: RegisterMap.read(HERE / "tasks.csv")}
# target ids by unit, as a command word has them in its upper 16 bits
TARGETS = {name: int(row["raw"], 0) for row in read_table(HERE / "enums.csv") for name in [row["name"]]
           if row["enum"] == "target"}
_units = {offset // RANGE: TARGETS[block] for block, offset, _ in TABLES[REGISTERS].registers}
# the target id of each RANGE of register addresses; 0 where there is no unit, or its id has no room in a command word
OWNERS = np.array([id_ if (id_ := _units.get(n, 0)) < 2 ** 16 else 0 for n in range(2 ** 16 // RANGE)], np.uint16)


def maps(chip: str) -> dict[str, RegisterMap]:
    """The register maps of a chip, by block."""
    return select(TABLES, CHIPS[chip])
