"""The fields of a job that must have one value, or the same: what lift begins with."""

from __future__ import annotations

from npulab.npus.kit.fields import Raw, agree, expect

EXPECTED = "lift for rockchip: got {name} {got}, allowed is {allowed}"
# fields that change the arithmetic or the place of data in a way nothing here covers, and what they
# must be
COVERED = {"CNA.CONV_CON1.DECONV": (0,), "CNA.DCOMP_CTRL.DECOMP_CONTROL": (0,),
           "CORE.CLIP_TRUNCATE.CLIP_TRUNCATE": (0,), "DPU.BN_CFG.BN_BYPASS": (1,),
           "DPU.EW_CFG.EW_BYPASS": (1,), "DPU.BS_CFG.BS_MUL_PRELU": (0,),
           "DPU.BS_CFG.BS_RELUX_EN": (0,)}
# fields that say the same
ALIKE = (("DPU.DATA_CUBE_WIDTH.WIDTH", "CORE.DATAOUT_SIZE_0.DATAOUT_WIDTH"),
         ("DPU.DATA_CUBE_HEIGHT.HEIGHT", "CORE.DATAOUT_SIZE_0.DATAOUT_HEIGHT"),
         ("DPU.DATA_CUBE_CHANNEL.CHANNEL", "CORE.DATAOUT_SIZE_1.DATAOUT_CHANNEL"),
         ("DPU.WDMA_SIZE_1.WIDTH_WDMA", "DPU.DATA_CUBE_WIDTH.WIDTH"),
         ("DPU.WDMA_SIZE_1.HEIGHT_WDMA", "DPU.DATA_CUBE_HEIGHT.HEIGHT"),
         ("CNA.FC_DATA_SIZE0.DMA_HEIGHT", "CNA.DATA_SIZE0.DATAIN_HEIGHT"),
         ("CNA.FC_DATA_SIZE1.DMA_CHANNEL", "CNA.DATA_SIZE1.DATAIN_CHANNEL"))


def covered(v: Raw) -> None:
    """Raise ValueError where fields ask for what nothing here covers, or contradict one another."""
    expect(v, COVERED, EXPECTED)
    agree(v, ALIKE, "lift for rockchip: got {a} {got} and {b} {other}, allowed is the same")


def by_channel(v: Raw) -> bool:
    """Whether every channel has a share of its own."""
    return not v["DPU.BS_CFG.BS_BYPASS"] and not v["DPU.BS_CFG.BS_MUL_BYPASS"]
