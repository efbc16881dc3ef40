"""The facts of the Rockchip NPU that its modules share, read once from the tables of this
folder."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from npulab.npus.kit import Facts, RegisterMap, read_table

HERE = Path(__file__).parent
# Names of register maps: the registers of all units of all chips but RK3576, and the task record.
REGISTERS, TASK = "NPU", "TASK"
# The map of the registers of all units of RK3576, many of which differ from the map REGISTERS.
SECOND = "NPU2"
# The source (Mesa's XML) of rows of registers.csv, which name no source.
XML = "M"
# Each unit has this many register addresses.
RANGE = 2**12


def _npu_rows() -> list[dict[str, str]]:
    """Return the rows of the register map ``REGISTERS``.

    They are the rows of Mesa's XML (``registers.csv``) and of ``seen.csv``, which has facts beyond
    the XML. A row of ``seen.csv`` replaces the rows of the XML that have one of its bits.
    """
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
    """Return the rows of the register map ``SECOND``: those of ``rk3576.csv``, and the rows of map
    ``REGISTERS`` that ``shared.csv`` names."""
    rows = read_table(HERE / "rk3576.csv")
    for shared in read_table(HERE / "shared.csv"):
        about = {"evidence": shared["evidence"], "note": shared["note"]}
        for row in NPU_ROWS:
            same = int(row["offset"], 0) == int(shared["offset"], 0)
            if same and shared["field"] in ("", row["field"]):
                rows.append({**row, **about})
    return rows


def _bits_of(row: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    """Yield (register offset, bit number) of each bit of a field's row."""
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
    """Return the name of the register map of a chip: ``SECOND`` for RK3576, else ``REGISTERS``."""
    if CHIPS[chip].get("second_map"):
        return SECOND
    return REGISTERS


EXPECTED = FACTS.expected()
# Target ids by unit: a command word has the id of its unit in its upper 16 bits.
TARGETS = FACTS.enum("target")
# The target id of the unit at each range of RANGE register addresses. It is 0 for a range without a
# unit, and for a unit whose id does not fit a command word.
OWNERS = np.zeros(2**16 // RANGE, np.uint16)
for _block, _offset, _name in TABLES[REGISTERS].registers:
    if TARGETS[_block] < 2**16:
        OWNERS[_offset // RANGE] = TARGETS[_block]
# Units without named registers are known by their first address alone.
for _name, _first in FACTS.enum("unit").items():
    OWNERS[_first // RANGE] = TARGETS[_name]
