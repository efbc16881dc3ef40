"""Fields of a job by the names that lift uses, and those that must have one value, or the same."""

from __future__ import annotations

from typing import NamedTuple

from npulab.npus.kit.fields import Raw, agree, expect

CONVOLUTION, PRECISION = "CNA.CONV_CON1.CONV_MODE", "CNA.CONV_CON1.IN_PRECISION"
OUTPUT_PRECISION = "DPU.DATA_FORMAT.OUT_PRECISION"
INPUT_AT, OUTPUT_AT = "CNA.FEATURE_DATA_ADDR.FEATURE_BASE_ADDR", "DPU.DST_BASE_ADDR.DST_BASE_ADDR"
WEIGHTS_AT, WEIGHT_BYTES = "CNA.DCOMP_ADDR0.DECOMPRESS_ADDR0", "CNA.WEIGHT_SIZE0.WEIGHT_BYTES"
EXPECTED = "lift for rockchip: got {name} {got}, allowed is {allowed}"
# fields that change the arithmetic or the place of data in a way that is not supported, and what
# they must be
SUPPORTED = {"CNA.CONV_CON1.DECONV": (0,), "CNA.DCOMP_CTRL.DECOMP_CONTROL": (0,),
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


class Sizes(NamedTuple):
    """Sizes of a convolution task without fill: input and output ``(H, W, C)``, stride."""

    input: tuple[int, int, int]
    output: tuple[int, int, int]
    stride: tuple[int, int]

    @classmethod
    def of(cls, v: Raw) -> Sizes:
        """Those that the values of a task say."""
        return cls((v["CNA.DATA_SIZE0.DATAIN_HEIGHT"], v["CNA.FC_DATA_SIZE0.DMA_WIDTH"],
                    v["CNA.DATA_SIZE1.DATAIN_CHANNEL_REAL"] + 1),
                   (*output_size(v), v["DPU.DATA_CUBE_CHANNEL.ORIG_CHANNEL"] + 1),
                   (v["CNA.CONV_CON3.CONV_Y_STRIDE"], v["CNA.CONV_CON3.CONV_X_STRIDE"]))


def output_size(v: Raw) -> tuple[int, int]:
    """(rows, columns) that a task writes."""
    return v["DPU.DATA_CUBE_HEIGHT.HEIGHT"] + 1, v["DPU.DATA_CUBE_WIDTH.WIDTH"] + 1


def check_supported(v: Raw) -> None:
    """Raise ValueError if fields ask for what is not supported, or contradict one another."""
    expect(v, SUPPORTED, EXPECTED)
    agree(v, ALIKE, "lift for rockchip: got {a} {got} and {b} {other}, allowed is the same")


def applies(v: Raw, step: str) -> bool:
    """Whether the DPU's first unit takes a step: MUL, ALU or RELU."""
    return not v["DPU.BS_CFG.BS_BYPASS"] and not v[f"DPU.BS_CFG.BS_{step}_BYPASS"]
