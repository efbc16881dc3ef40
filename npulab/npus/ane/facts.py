"""The tables beside this file, read once."""

from pathlib import Path

from npulab.captures.target import read_chips
from npulab.npus.kit import Facts, read_table

# one map for each generation, named as the chip
GENERATIONS = {
    chip.upper(): f"{chip}.csv" for chip in read_chips(Path(__file__).with_name("chips.csv"))
}
FACTS = Facts.beside(__file__, GENERATIONS, sparse=GENERATIONS)
HERE, CHIPS, USUAL_CHIP, TABLES = FACTS
enum, maps = FACTS.enum, FACTS.maps
EXPECTED = FACTS.expected()
# the fields that say where a task's tensors lie, by tensor
TENSORS = {row["tensor"]: row for row in read_table(HERE / "tensors.csv")}
SIZES = ("groups", "channels", "height", "width")
# A task's header words are in no register file: in the maps they stand behind its last address.
HEADER = 0x40000
ENGINES = CHIPS[USUAL_CHIP]["engines"]
