"""The tables of this folder, read once."""

from npulab.npus.kit import Facts

# The block of operations, and the block that moves weights and tensors before them.
REGISTERS, DMA = "NPU", "DMA"
FACTS = Facts.beside(
    __file__, {REGISTERS: "registers.csv", DMA: "dma.csv"}, sparse=(REGISTERS, DMA)
)
HERE, CHIPS, USUAL_CHIP, TABLES = FACTS
