"""The tables of this folder, read once."""

from npulab.npus.kit import Facts

BLOCK = "TRMUL"
FACTS = Facts.beside(__file__, {BLOCK: "trmul.csv"})
EXPECTED = FACTS.expected()
# Each chip is a path of ruy: the kernels for one kind of processor.
HERE, CHIPS, USUAL_CHIP, TABLES = FACTS

# The factors of a multiplication are its SIDES: lhs the weights, rhs the input rows. Columns share
# cache sets if their stride is a multiple of ALIASING_BYTES. Then ruy of 2020 could add APART
# elements to the stride (RS). A buffer has at most MOST_BYTES.
SIDES = ("lhs", "rhs")
ALIASING_BYTES, APART = 1024, 64
MOST_BYTES = 2**26
# Quirks of a runtime. CACHED: the packed weights come from ruy's cache. FUSED: a compiler made one
# operation of a multiplication and an addition. AVOIDS: ruy avoids aliasing of columns.
CACHED, FUSED, AVOIDS = "cached-weights", "fused-multiply-add", "avoid-aliasing"
FEATURES = (CACHED, FUSED, AVOIDS)
