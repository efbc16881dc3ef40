"""The tables beside this file, read once."""

from npulab.npus.kit.facts import Facts

REGISTERS = "NPU"
FACTS = Facts.beside(__file__, {REGISTERS: "registers.csv"}, sparse=(REGISTERS,))
HERE, CHIPS, USUAL_CHIP, TABLES = FACTS
