"""The fields of a job by the names that lift uses, and the checks of fields that must have one
value or equal values.
"""

from __future__ import annotations

from typing import NamedTuple

from npulab.npus.kit import Raw, agree, expect
from npulab.npus.rockchip import facts

CONVOLUTION, PRECISION = "CNA.CONV_CON1.CONV_MODE", "CNA.CONV_CON1.IN_PRECISION"
OUTPUT_PRECISION = "DPU.DATA_FORMAT.OUT_PRECISION"
INPUT_AT, OUTPUT_AT = "CNA.FEATURE_DATA_ADDR.FEATURE_BASE_ADDR", "DPU.DST_BASE_ADDR.DST_BASE_ADDR"
WEIGHTS_AT, WEIGHT_BYTES = "CNA.DCOMP_ADDR0.DECOMPRESS_ADDR0", "CNA.WEIGHT_SIZE0.WEIGHT_BYTES"
ALIKE = facts.FACTS.agreements()  # fields that must have the same value
EXPECTED = "lift for rockchip: got {name} {got}, allowed is {allowed}"


class Sizes(NamedTuple):
    """Sizes of a convolution task without fill: input and output ``(H, W, C)``, stride."""

    input: tuple[int, int, int]
    output: tuple[int, int, int]
    stride: tuple[int, int]

    @classmethod
    def of(cls, v: Raw) -> Sizes:
        """Return the sizes that the field values of a task state."""
        height = v["CNA.DATA_SIZE0.DATAIN_HEIGHT"]
        width = v["CNA.FC_DATA_SIZE0.DMA_WIDTH"]
        channels = v["CNA.DATA_SIZE1.DATAIN_CHANNEL_REAL"] + 1
        outputs = v["DPU.DATA_CUBE_CHANNEL.ORIG_CHANNEL"] + 1
        stride = (v["CNA.CONV_CON3.CONV_Y_STRIDE"], v["CNA.CONV_CON3.CONV_X_STRIDE"])
        return cls((height, width, channels), (*output_size(v), outputs), stride)


def output_size(v: Raw) -> tuple[int, int]:
    """Return (rows, columns) that a task writes."""
    return v["DPU.DATA_CUBE_HEIGHT.HEIGHT"] + 1, v["DPU.DATA_CUBE_WIDTH.WIDTH"] + 1


def check(v: Raw, case: str, error: type[Exception] = ValueError) -> None:
    """Raise ``error`` if a field has a value that ``expected.csv`` does not allow in a case."""
    expect(v, facts.EXPECTED[case], EXPECTED, error)


def check_supported(v: Raw) -> None:
    """Raise ValueError if fields ask for something that is not supported, or contradict each
    other."""
    check(v, "layer")
    agree(
        v,
        ALIKE["layer"],
        "lift for rockchip: got {a} {got} and {b} {other}, allowed are equal values",
    )


def applies(v: Raw, step: str) -> bool:
    """Return true if the DPU's first unit runs a step: MUL, ALU or RELU."""
    return not v["DPU.BS_CFG.BS_BYPASS"] and not v[f"DPU.BS_CFG.BS_{step}_BYPASS"]
