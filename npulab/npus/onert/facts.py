"""The tables beside this file, read once."""

from pathlib import Path

from npulab.captures.target import read_chips, select
from npulab.registers.map import RegisterMap
from npulab.registers.table import read_table

HERE = Path(__file__).parent
CHIPS = read_chips(HERE / "chips.csv")  # a chip is a path: the kernels that ruy has for it
USUAL_CHIP = next(iter(CHIPS))
BLOCK = "TRMUL"
TABLES = {BLOCK: RegisterMap.read(HERE / "trmul.csv")}
_ENUMS = read_table(HERE / "enums.csv")

SIDES = ("lhs", "rhs")  # the weights, the input rows
SIGN = 0x80  # what uint8 is stored as int8 by (RP: PackedType)
# A column stride of whole KiB makes columns share cache sets: versions that avoid it have so many elements more (RS).
ALIASING_BYTES, APART = 1024, 64
MOST_BYTES = 2 ** 26  # of a buffer
# Habits of a runtime: the weights come out of the prepacked cache; a compiler made one operation of two; a version of
# ruy as of the notes.
CACHED, FUSED, AVOIDS = "cached-weights", "fused-multiply-add", "avoid-aliasing"
FEATURES = (CACHED, FUSED, AVOIDS)


def enum(name: str) -> dict[str, int]:
    """The codes of an enum by the names of ``enums.csv``."""
    return {row["name"]: int(row["raw"], 0) for row in _ENUMS if row["enum"] == name}


def maps(chip: str) -> dict[str, RegisterMap]:
    """The register maps of a chip, by block."""
    return select(TABLES, CHIPS[chip])
