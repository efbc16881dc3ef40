"""Which buffer of a dump is which, where nothing but their bytes tells: by how many of them are
used."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from npulab.npus.kit import Raw, Unsupported, up
from npulab.npus.rockchip import words
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
        ends = _ends(v) if len(buffers) <= MOST_BUFFERS else {}
    except Unsupported:  # a register that is not written
        return {}
    used = {number: len(data.rstrip(b"\0")) for number, data in buffers.items()}
    fitting = [numbers for numbers in combinations(buffers, len(ends))
               if all(0 <= at % PAGE + need - used[number] < SLACK
                      for number, (at, need) in zip(numbers, ends.values(), strict=True))]
    if len(fitting) != 1:
        return {}
    return {name: (number, at // PAGE * PAGE)
            for number, (name, (at, _)) in zip(fitting[0], ends.items(), strict=True)}


def _ends(v: Raw) -> dict[str, tuple[int, int]]:
    """(address, bytes) of each of the three tensors; empty for other tasks."""
    itemsize = SIZES.get(v[words.OUTPUT_PRECISION])
    if v[words.PRECISION] != INT8 or itemsize is None:
        return {}
    sizes = words.Sizes.of(v)
    lanes = up(sizes.output[2], ATOM // itemsize)
    inputs = sizes.input[0] * sizes.input[1] * v["CNA.DATA_SIZE1.DATAIN_CHANNEL"]
    outputs = sizes.output[0] * sizes.output[1] * lanes * itemsize
    return {"coefficients": (v[words.WEIGHTS_AT], v[words.WEIGHT_BYTES]), "input": (v[words.INPUT_AT], inputs),
            "output": (v[words.OUTPUT_AT], outputs)}
