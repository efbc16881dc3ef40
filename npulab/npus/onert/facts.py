"""The tables of this folder, read once."""

from npulab.npus.kit import Facts

BLOCK = "TRMUL"
FACTS = Facts.beside(__file__, {BLOCK: "trmul.csv"})
EXPECTED = FACTS.expected()
HERE, CHIPS, USUAL_CHIP, TABLES = FACTS  # a chip is a path: the kernels that ruy has for it

SIDES = ("lhs", "rhs")  # lhs: the weights; rhs: the input rows
# Columns whose stride is whole KiB share cache sets: ruy of 2020 could add this many elements to
# the stride (RS).
ALIASING_BYTES, APART = 1024, 64
MOST_BYTES = 2**26  # most bytes of a buffer
# Quirks of a runtime: the weights come out of the prepacked cache; a compiler makes one operation
# of a multiplication and an addition; ruy avoids aliasing.
CACHED, FUSED, AVOIDS = "cached-weights", "fused-multiply-add", "avoid-aliasing"
FEATURES = (CACHED, FUSED, AVOIDS)
