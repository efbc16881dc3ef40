"""The tables beside this file, read once."""

from npulab.npus.kit import Facts

# what computes, and what moves weights and tensors before it
REGISTERS, DMA = "NPU", "DMA"
FACTS = Facts.beside(
    __file__, {REGISTERS: "registers.csv", DMA: "dma.csv"}, sparse=(REGISTERS, DMA)
)
HERE, CHIPS, USUAL_CHIP, TABLES = FACTS
