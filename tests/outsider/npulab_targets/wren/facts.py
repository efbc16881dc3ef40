"""The tables of wren."""

from pathlib import Path

from npulab.bits import RegisterMap, read_enums, read_table
from npulab.target import read_chips, read_sources

HERE = Path(__file__).parent

CHIPS = read_chips(HERE / "chips.csv")
ROWS = read_table(HERE / "registers.csv")
ENUMS = read_enums(read_table(HERE / "enums.csv"))
TABLES = {
    block: RegisterMap([row for row in ROWS if row["block"] == block], enums=ENUMS)
    for block in dict.fromkeys(row["block"] for row in ROWS)
}
BLOCK = next(iter(TABLES))
SOURCES = read_sources(HERE / "sources.csv")
