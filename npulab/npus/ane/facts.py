"""The tables beside this file, read once."""

from pathlib import Path

from npulab.captures.target import read_chips, select
from npulab.registers.map import RegisterMap
from npulab.registers.table import read_table

HERE = Path(__file__).parent
CHIPS = read_chips(HERE / "chips.csv")
USUAL_CHIP = next(iter(CHIPS))
# one map for each generation, named as the chip
TABLES = {chip.upper(): RegisterMap.read(HERE / f"{chip}.csv", dense=False) for chip in CHIPS}
# A task's header words are in no register file: in the maps they stand behind its last address.
HEADER = 0x40000
ENGINES = CHIPS[USUAL_CHIP]["engines"]
ENUMS = read_table(HERE / "enums.csv")


def enum(name: str) -> dict[str, int]:
    """The codes of an enum by the names of ``enums.csv``."""
    return {row["name"]: int(row["raw"]) for row in ENUMS if row["enum"] == name}


def maps(chip: str) -> dict[str, RegisterMap]:
    """The register maps of a chip, by block."""
    return select(TABLES, CHIPS[chip])
