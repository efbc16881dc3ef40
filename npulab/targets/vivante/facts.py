"""The tables beside this file, read once."""

from pathlib import Path

from npulab.bits import RegisterMap
from npulab.target import read_chips

HERE = Path(__file__).parent
CHIPS = read_chips(HERE / "chips.csv")
USUAL_CHIP = next(iter(CHIPS))
TABLES = {"NN": RegisterMap.read(HERE / "nn.csv"),
          "STATE": RegisterMap.read(HERE / "states.csv", dense=False)}
PRINTED = RegisterMap.read(HERE / "update4.csv")  # NN words by the names that update 4 prints


def maps(chip: str) -> dict[str, RegisterMap]:
    """The register maps of a chip, by block."""
    features = [name for name, on in CHIPS[chip].items() if on]
    return {block: table.select(features) for block, table in TABLES.items()}
