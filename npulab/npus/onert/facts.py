"""The tables of this folder, read once."""

from npulab.npus.kit import Facts

BLOCK = "TRMUL"
FACTS = Facts.beside(__file__, {BLOCK: "trmul.csv"})
EXPECTED = FACTS.expected()
# Each chip is a path of ruy: the kernels for one kind of processor.
HERE, CHIPS, USUAL_CHIP, TABLES = FACTS

SIDES = ("lhs", "rhs")  # the two factors of a multiplication: lhs the weights, rhs the input rows
# Columns share cache sets if their stride is a multiple of ALIASING_BYTES. Then ruy of 2020 could
# add APART elements to the stride (RS).
ALIASING_BYTES, APART = 1024, 64
MOST_BYTES = 2**26  # the most bytes of a buffer
# Quirks of a runtime. CACHED: the packed weights come from ruy's cache. FUSED: a compiler made one
# operation of a multiplication and an addition. AVOIDS: ruy avoids aliasing of columns.
CACHED, FUSED, AVOIDS = "cached-weights", "fused-multiply-add", "avoid-aliasing"
FEATURES = (CACHED, FUSED, AVOIDS)
