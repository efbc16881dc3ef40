"""The tables beside this file, read once."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from npulab.npus.kit import Facts, RegisterMap, read_table

HERE = Path(__file__).parent
# the maps: all units by register address; the record that hands a task over
REGISTERS, TASK = "NPU", "TASK"
XML = "M"  # the source of rows that name none
RANGE = 2**12  # addresses of a unit


def _registers() -> RegisterMap:
    """The registers that the XML has; rows of what is known beyond it replace those they meet."""
    seen = read_table(HERE / "seen.csv")
    known = {bit for row in seen for bit in _bits(row)}
    rows = [
        {**row, "evidence": XML}
        for row in read_table(HERE / "registers.csv")
        if known.isdisjoint(_bits(row))
    ]
    return RegisterMap([*rows, *seen], dense=False)


def _bits(row: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    """(offset, bit) of each bit of a row."""
    lsb = int(row["lsb"], 0)
    return ((int(row["offset"], 0), bit) for bit in range(lsb, lsb + int(row["width"], 0)))


FACTS = Facts.beside(__file__, {REGISTERS: _registers(), TASK: "tasks.csv"})
_, CHIPS, USUAL_CHIP, TABLES = FACTS
EXPECTED = FACTS.expected()
# target ids by unit, as a command word has them in its upper 16 bits
TARGETS = FACTS.enum("target")
_units = {offset // RANGE: TARGETS[block] for block, offset, _ in TABLES[REGISTERS].registers}
# the target id of each RANGE of register addresses; 0 where there is no unit, or its id has no room
# in a command word
OWNERS = np.zeros(2**16 // RANGE, np.uint16)
for _unit, _id in _units.items():
    if _id < 2**16:
        OWNERS[_unit] = _id
    else:
        OWNERS[_unit] = 0
