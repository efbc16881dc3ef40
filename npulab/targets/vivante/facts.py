"""The tables beside this file, read once."""

from pathlib import Path

from npulab.bits import RegisterMap, read_table
from npulab.target import read_chips, select

HERE = Path(__file__).parent
CHIPS = read_chips(HERE / "chips.csv")
USUAL_CHIP = next(iter(CHIPS))
TABLES = {"NN": RegisterMap.read(HERE / "nn.csv"),
          "STATE": RegisterMap.read(HERE / "states.csv", dense=False)}
PATTERNS = [tuple(int(row[name], 0) for name in ("channels", "msb", "low", "high"))
            for row in read_table(HERE / "patterns.csv")]
PRINTED = RegisterMap.read(HERE / "update4.csv")  # NN words by the names that update 4 prints


def maps(chip: str) -> dict[str, RegisterMap]:
    """The register maps of a chip, by block."""
    return select(TABLES, CHIPS[chip])
