"""The tables next to this file, read once, and the names of units and memories in them."""

from itertools import chain

import numpy as np

from npulab.npus.kit import Facts

Pair = tuple[int, int]
FieldValues = dict[str, int]  # raw values by full name
Lut = tuple[np.ndarray, np.ndarray]  # entries of the tables LE and LO
Shape = tuple[int, int, int]  # (height, width, channels)

# A map of all units by byte address: one for the int8 configurations, one for the full one.
FACTS = Facts.beside(__file__, {"SMALL": "small.csv", "FULL": "full.csv"}, sparse=("SMALL", "FULL"))
HERE, CHIPS, USUAL_CHIP, TABLES = FACTS
FULL_CHIP = next(chip for chip, features in CHIPS.items() if features.get("full_map"))
maps = FACTS.maps

CONVOLUTION = ("CDMA", "CSC", "CMAC_A", "CMAC_B", "CACC")
READERS = {"SDP": "SDP_RDMA", "PDP": "PDP_RDMA", "CDP": "CDP_RDMA"}
PAIRS = (CONVOLUTION, *READERS.items(), ("RBK",), ("BDMA",))
# The first of these that runs writes an operation's result.
ENDS = ("PDP", "SDP", "CDP", "RBK", "BDMA")
UNITS = tuple(chain.from_iterable(PAIRS))
ENABLE, POINTER = "D_OP_ENABLE", "S_POINTER"
# The registers that start BDMA, which has no enable, and their groups.
LAUNCHES = {"CFG_LAUNCH0": 0, "CFG_LAUNCH1": 1}
STARTS = (ENABLE, *LAUNCHES)
ACCESS, DATA = "S_LUT_ACCESS_CFG", "S_LUT_ACCESS_DATA"
LETTERS = {"BS": "B", "BN": "N", "EW": "E"}  # SDP's stages in the names of their operands' readers
# Codes of what an ALU of SDP does. Only the ALU of the third stage compares for equality (EQUAL);
# with that code, the ALUs of the first two stages add.
MAX, MIN, SUM, EQUAL = range(4)
# The operands of a stage that lie in memory, by the value of DATA_USE.
MUL, ALU, BOTH = range(3)
HELD = {MUL: ("MUL",), ALU: ("ALU",), BOTH: ("ALU", "MUL")}
TABLE_ENTRIES = {0: 65, 1: 257}  # entries of the tables LE and LO
# In a trace that does not say which memory it means, ANY_MEMORY is both.
MEMORIES = ("sec_mem", "pri_mem")  # indexed by the raw value of a RAM_TYPE field (CV, MC)
ANY_MEMORY = "any_mem"
ADDRESSES = 2**48
MOST_MEMORY = 2**30  # most bytes of memory that one trace may set aside


def block_of(chip: str) -> str:
    """Return the name of the map of a chip's registers."""
    if CHIPS[chip].get("full_map"):
        return "FULL"
    return "SMALL"


# The chip of a trace that says only which map its registers have.
USUAL_CHIPS = {"FULL": FULL_CHIP, "SMALL": USUAL_CHIP}
