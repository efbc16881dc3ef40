"""The tables beside this file, read once."""

from npulab.npus.kit import Facts

BLOCK = "TRMUL"
FACTS = Facts.beside(__file__, {BLOCK: "trmul.csv"})
EXPECTED = FACTS.expected()
HERE, CHIPS, USUAL_CHIP, TABLES = FACTS  # a chip is a path: the kernels that ruy has for it

SIDES = ("lhs", "rhs")  # the weights, the input rows
# A column stride of whole KiB makes columns share cache sets: versions that avoid it have so many
# elements more (RS).
ALIASING_BYTES, APART = 1024, 64
MOST_BYTES = 2**26  # of a buffer
# Quirks of a runtime: the weights come out of the prepacked cache; a compiler made one operation of
# two; a version of ruy as of the notes.
CACHED, FUSED, AVOIDS = "cached-weights", "fused-multiply-add", "avoid-aliasing"
FEATURES = (CACHED, FUSED, AVOIDS)
