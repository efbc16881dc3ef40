"""The tables beside this file, read once, and the names of units and memories in them."""

from npulab.npus.kit import Facts

# one map of all units by byte address: that of the int8 configurations, and that of the full one
FACTS = Facts.beside(__file__, {"SMALL": "small.csv", "FULL": "full.csv"}, sparse=("SMALL", "FULL"))
HERE, CHIPS, USUAL_CHIP, TABLES = FACTS
FULL_CHIP = next(chip for chip, features in CHIPS.items() if features.get("full_map"))
maps = FACTS.maps

CONVOLUTION = ("CDMA", "CSC", "CMAC_A", "CMAC_B", "CACC")
READERS = {"SDP": "SDP_RDMA", "PDP": "PDP_RDMA", "CDP": "CDP_RDMA"}
PAIRS = (CONVOLUTION, *READERS.items(), ("RBK",), ("BDMA",))
ENDS = (
    "PDP",
    "SDP",
    "CDP",
    "RBK",
    "BDMA",
)  # the unit that writes an operation's result: the first that runs
UNITS = tuple(unit for pair in PAIRS for unit in pair)
ENABLE, POINTER = "D_OP_ENABLE", "S_POINTER"
LAUNCHES = {"CFG_LAUNCH0": 0, "CFG_LAUNCH1": 1}  # of BDMA, which has no enable
STARTS = (ENABLE, *LAUNCHES)
ACCESS, DATA = "S_LUT_ACCESS_CFG", "S_LUT_ACCESS_DATA"
LETTERS = {"BS": "B", "BN": "N", "EW": "E"}  # of SDP's stages in the names of what reads operands
MAX, MIN, SUM, EQUAL = range(
    4
)  # what an ALU of SDP does; its first two stages add instead of comparing
MUL, ALU, BOTH = range(3)  # what operands in memory are for
TABLE_ENTRIES = {0: 65, 1: 257}  # LE, LO
# a trace that does not say which memory it means has one that is both
MEMORIES = ("sec_mem", "pri_mem")  # by the raw value of a RAM_TYPE field: CV, MC
ANY_MEMORY = "any_mem"
ADDRESSES = 2**48
MOST_MEMORY = 2**30  # bytes that one trace may set aside


def block_of(chip: str) -> str:
    """The name of the map that a chip's registers lie in."""
    if CHIPS[chip].get("full_map"):
        return "FULL"
    return "SMALL"
