"""The fields of a task that several modules read, and the checks that ``lift`` makes of fields."""

from __future__ import annotations

from typing import NamedTuple

from npulab.npus.kit import Raw, agree, expect
from npulab.npus.rockchip import facts

CONVOLUTION, PRECISION = "CNA.CONV_CON1.CONV_MODE", "CNA.CONV_CON1.IN_PRECISION"
OUTPUT_PRECISION = "DPU.DATA_FORMAT.OUT_PRECISION"
INPUT_AT, OUTPUT_AT = "CNA.FEATURE_DATA_ADDR.FEATURE_BASE_ADDR", "DPU.DST_BASE_ADDR.DST_BASE_ADDR"
WEIGHTS_AT, WEIGHT_BYTES = "CNA.DCOMP_ADDR0.DECOMPRESS_ADDR0", "CNA.WEIGHT_SIZE0.WEIGHT_BYTES"
# Pairs of fields that must have equal values, by the case in which they must.
ALIKE = facts.FACTS.agreements()
EXPECTED = "lift for rockchip: got {name} {got}, allowed is {allowed}"


class Sizes(NamedTuple):
    """The sizes of a convolution task without fill: input and output (H, W, C), stride (h, w)."""

    input: tuple[int, int, int]
    output: tuple[int, int, int]
    stride: tuple[int, int]

    @classmethod
    def of(cls, v: Raw) -> Sizes:
        """Return the sizes that the values ``v`` of a task state."""
        height = v["CNA.DATA_SIZE0.DATAIN_HEIGHT"]
        width = v["CNA.FC_DATA_SIZE0.DMA_WIDTH"]
        channels = v["CNA.DATA_SIZE1.DATAIN_CHANNEL_REAL"] + 1
        outputs = v["DPU.DATA_CUBE_CHANNEL.ORIG_CHANNEL"] + 1
        stride = (v["CNA.CONV_CON3.CONV_Y_STRIDE"], v["CNA.CONV_CON3.CONV_X_STRIDE"])
        return cls((height, width, channels), (*output_size(v), outputs), stride)


def output_size(v: Raw) -> tuple[int, int]:
    """Return the numbers (rows, columns) of the output that a task writes."""
    return v["DPU.DATA_CUBE_HEIGHT.HEIGHT"] + 1, v["DPU.DATA_CUBE_WIDTH.WIDTH"] + 1


def check(v: Raw, case: str, error: type[Exception] = ValueError) -> None:
    """Raise ``error`` if a field has a value that ``case`` of ``expected.csv`` does not allow."""
    expect(v, facts.EXPECTED[case], EXPECTED, error)


def check_supported(v: Raw) -> None:
    """Raise ValueError if a field of a task has a value that ``lift`` does not cover, or if fields
    contradict each other."""
    check(v, "layer")
    agree(
        v,
        ALIKE["layer"],
        "lift for rockchip: got {a} {got} and {b} {other}, allowed are equal values",
    )


def applies(v: Raw, step: str) -> bool:
    """Return true if the first unit of the DPU runs ``step``, which is MUL, ALU or RELU."""
    return not v["DPU.BS_CFG.BS_BYPASS"] and not v[f"DPU.BS_CFG.BS_{step}_BYPASS"]
