"""The tables beside this file, read once."""

from pathlib import Path

from npulab.captures.target import read_chips, select
from npulab.registers.map import RegisterMap

HERE = Path(__file__).parent
CHIPS = read_chips(HERE / "chips.csv")
USUAL_CHIP = next(iter(CHIPS))
FULL_CHIP = next(chip for chip, facts in CHIPS.items() if facts.get("full_map"))
# one map of all units by byte address: that of the int8 configurations, and that of the full one
TABLES = {name: RegisterMap.read(HERE / f"{name.lower()}.csv", dense=False) for name in ("SMALL", "FULL")}


def maps(chip: str) -> dict[str, RegisterMap]:
    """The register maps of a chip, by block."""
    return select(TABLES, CHIPS[chip])


def block_of(chip: str) -> str:
    """The name of the map that a chip's registers lie in."""
    return "FULL" if CHIPS[chip].get("full_map") else "SMALL"
