"""The tables next to this file, read once."""

from pathlib import Path

from npulab.captures.target import read_chips
from npulab.npus.kit import Facts, read_table

# one map for each generation, named as the chip
_CHIPS = read_chips(Path(__file__).with_name("chips.csv"))
GENERATIONS = {chip.upper(): f"{chip}.csv" for chip in _CHIPS}
FACTS = Facts.beside(__file__, GENERATIONS, sparse=GENERATIONS)
HERE, CHIPS, USUAL_CHIP, TABLES = FACTS
enum, maps = FACTS.enum, FACTS.maps
EXPECTED = FACTS.expected()
# the fields that place a task's tensors, by tensor
TENSORS = {row["tensor"]: row for row in read_table(HERE / "tensors.csv")}
SIZES = ("groups", "channels", "height", "width")
# A task's header words are not in a register file: in the maps they stand after its last address.
HEADER = 0x40000
ENGINES = CHIPS[USUAL_CHIP]["engines"]
