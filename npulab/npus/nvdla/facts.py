"""The tables beside this file, read once."""

from npulab.npus.kit.facts import Facts

# one map of all units by byte address: that of the int8 configurations, and that of the full one
FACTS = Facts.beside(__file__, {"SMALL": "small.csv", "FULL": "full.csv"}, sparse=("SMALL", "FULL"))
HERE, CHIPS, USUAL_CHIP, TABLES = FACTS
FULL_CHIP = next(chip for chip, features in CHIPS.items() if features.get("full_map"))
maps = FACTS.maps


def block_of(chip: str) -> str:
    """The name of the map that a chip's registers lie in."""
    return "FULL" if CHIPS[chip].get("full_map") else "SMALL"
