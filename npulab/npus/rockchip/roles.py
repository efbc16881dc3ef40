"""Which buffer of a dump is which, where nothing but their bytes tells: by how many of them are
used."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from npulab.captures.target import Unsupported
from npulab.npus.kit.fields import Raw
from npulab.npus.kit.numbers import up
from npulab.npus.rockchip.layouts import ATOM
from npulab.npus.rockchip.plans import INT8, INT32

PAGE = 2 ** 12  # buffers begin at one
SLACK = 16  # bytes at the end of a tensor that may be 0
MOST_BUFFERS = 8
SIZES = {INT8: 1, INT32: 4}  # bytes of an output element


def by_use(v: Raw, buffers: Mapping[int, bytes]) -> dict[str, tuple[int, int]]:
    """(number of the buffer, address) by name, of ``coefficients``, ``input`` and ``output`` of one
    int8 convolution.

    A buffer fits a tensor where its last byte that is not 0 is among the tensor's last, and the
    three are made in this order (PH, WT); empty where that leaves no way or several, and for other
    tasks.
    """
    try:
        return _told(v, buffers) if len(buffers) <= MOST_BUFFERS else {}
    except Unsupported:  # a register that is not written
        return {}


def _told(v: Raw, buffers: Mapping[int, bytes]) -> dict[str, tuple[int, int]]:
    if v["CNA.CONV_CON1.IN_PRECISION"] != INT8 or v["DPU.DATA_FORMAT.OUT_PRECISION"] not in SIZES:
        return {}
    size = SIZES[v["DPU.DATA_FORMAT.OUT_PRECISION"]]
    lanes = up(v["DPU.DATA_CUBE_CHANNEL.ORIG_CHANNEL"] + 1, ATOM // size)
    outputs = (v["DPU.DATA_CUBE_HEIGHT.HEIGHT"] + 1) * (v["DPU.DATA_CUBE_WIDTH.WIDTH"] + 1) * lanes * size
    inputs = v["CNA.DATA_SIZE0.DATAIN_HEIGHT"] * v["CNA.FC_DATA_SIZE0.DMA_WIDTH"] * v["CNA.DATA_SIZE1.DATAIN_CHANNEL"]
    ends = {"coefficients": (v["CNA.DCOMP_ADDR0.DECOMPRESS_ADDR0"], v["CNA.WEIGHT_SIZE0.WEIGHT_BYTES"]),
            "input": (v["CNA.FEATURE_DATA_ADDR.FEATURE_BASE_ADDR"], inputs),
            "output": (v["DPU.DST_BASE_ADDR.DST_BASE_ADDR"], outputs)}
    used = {number: len(data.rstrip(b"\0")) for number, data in buffers.items()}
    fitting = [numbers for numbers in combinations(buffers, len(ends))
               if all(0 <= at % PAGE + need - used[number] < SLACK
                      for number, (at, need) in zip(numbers, ends.values(), strict=True))]
    if len(fitting) != 1:
        return {}
    return {name: (number, at // PAGE * PAGE) for number, (name, (at, _)) in zip(fitting[0], ends.items(), strict=True)}
