"""The facts of the ANE that its modules share, read once from the tables of this folder."""

from pathlib import Path

from npulab.captures.target import read_chips
from npulab.npus.kit import Facts, read_table

# Each chip has a register map of its own: ``h13.csv`` is block H13 of chip h13.
_CHIPS = read_chips(Path(__file__).with_name("chips.csv"))
GENERATIONS = {chip.upper(): f"{chip}.csv" for chip in _CHIPS}
FACTS = Facts.beside(__file__, GENERATIONS, sparse=GENERATIONS)
HERE, CHIPS, USUAL_CHIP, TABLES = FACTS
enum, maps = FACTS.enum, FACTS.maps
EXPECTED = FACTS.expected()
# For each tensor of a task (source, result, ...): the fields that state its place and its sizes.
TENSORS = {row["tensor"]: row for row in read_table(HERE / "tensors.csv")}
SIZES = ("groups", "channels", "height", "width")
# A task's header words have no register address; the maps place them here, after all registers.
HEADER = 0x40000
ENGINES = CHIPS[USUAL_CHIP]["engines"]
