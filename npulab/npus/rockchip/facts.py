"""The tables of this folder, read once."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from npulab.npus.kit import Facts, RegisterMap, read_table

HERE = Path(__file__).parent
# The maps: the registers of all units by address; the record that hands a task over.
REGISTERS, TASK = "NPU", "TASK"
SECOND = "NPU2"  # the registers of all units of RK3576; many differ from the other map
XML = "M"  # the source of rows that name none
RANGE = 2**12  # number of register addresses that a unit has


def _npu_rows() -> list[dict[str, str]]:
    """Return the rows of the XML. Rows of ``seen.csv``, which holds what is known beyond the XML,
    replace the rows with which they share a bit."""
    seen = read_table(HERE / "seen.csv")
    known: set[tuple[int, int]] = set()
    for row in seen:
        known.update(_bits_of(row))
    rows = []
    for row in read_table(HERE / "registers.csv"):
        if known.isdisjoint(_bits_of(row)):
            rows.append({**row, "evidence": XML})
    return [*rows, *seen]


def _second_rows() -> list[dict[str, str]]:
    """Return the rows of ``rk3576.csv``, and rows of the other map that ``shared.csv`` names."""
    rows = read_table(HERE / "rk3576.csv")
    for shared in read_table(HERE / "shared.csv"):
        about = {"evidence": shared["evidence"], "note": shared["note"]}
        for row in NPU_ROWS:
            same = int(row["offset"], 0) == int(shared["offset"], 0)
            if same and shared["field"] in ("", row["field"]):
                rows.append({**row, **about})
    return rows


def _bits_of(row: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    """Yield (offset, bit) of each bit of a row."""
    lsb = int(row["lsb"], 0)
    for bit in range(lsb, lsb + int(row["width"], 0)):
        yield int(row["offset"], 0), bit


NPU_ROWS = _npu_rows()
FACTS = Facts.beside(
    __file__,
    {
        REGISTERS: RegisterMap(NPU_ROWS, dense=False),
        TASK: "tasks.csv",
        SECOND: RegisterMap(_second_rows(), dense=False),
    },
)
_, CHIPS, USUAL_CHIP, TABLES = FACTS


def registers_of(chip: str) -> str:
    """Return the block of a chip's registers."""
    if CHIPS[chip].get("second_map"):
        return SECOND
    return REGISTERS


EXPECTED = FACTS.expected()
# Target ids by unit, as a command word has them in its upper 16 bits.
TARGETS = FACTS.enum("target")
# The target id of each RANGE of register addresses; 0 if there is no unit, or if its id does not
# fit a command word.
OWNERS = np.zeros(2**16 // RANGE, np.uint16)
for _block, _offset, _name in TABLES[REGISTERS].registers:
    if TARGETS[_block] < 2**16:
        OWNERS[_offset // RANGE] = TARGETS[_block]
# Units whose registers nobody named, by their first address.
for _name, _first in FACTS.enum("unit").items():
    OWNERS[_first // RANGE] = TARGETS[_name]
