"""The tables of this folder, read once."""

from npulab.npus.kit import Facts

# Blocks: of jobs that compute, and of jobs that move weights and tensors to where others read them.
REGISTERS, DMA = "NPU", "DMA"
FACTS = Facts.beside(
    __file__, {REGISTERS: "registers.csv", DMA: "dma.csv"}, sparse=(REGISTERS, DMA)
)
HERE, CHIPS, USUAL_CHIP, TABLES = FACTS
