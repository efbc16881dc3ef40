"""Record the captures ``sim-*`` of NVDLA: layers lowered for several chips, run on the simulated
device.

    python tests/tools/record_simulated_nvdla.py captures/nvdla

A folder that is there already is refused; a changed capture is a commit of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from recording import recorded, save_all

import npulab
from npulab.captures.devices import Simulated
from npulab.captures.target import Unsupported
from npulab.quant.layers import Add, Pool2D

SEED = 9
SOURCE = "npulab tests/record_simulated_nvdla.py"
# fields that nv_small does not read, and the units of other chips, which replay a trace, do
READ_ELSEWHERE = ("RAM_TYPE", "PRECISION", "CONV_MODE", "BATCHES", "WEIGHT_FORMAT")
KEPT = ("S_", "D_OP_ENABLE")  # registers that say which group is meant, and start it


def codes(random: np.random.RandomState, *shape: int, heaviest: int = 128) -> np.ndarray:
    return random.randint(-heaviest, heaviest, shape).astype(np.int8)


def conv(
    random: np.random.RandomState,
    shape: tuple[int, int, int],
    outputs: int,
    kernel: int,
    scale: Any,
    most: int = 4000,
    zero_points: tuple[int, int] = (0, 0),
    heaviest: int = 128,
    **kwargs: Any,
) -> tuple[npulab.Conv2D, np.ndarray]:
    """A layer of the given size and real scale, and an input for it; numbers that are the same
    in every numpy.
    """
    layer = npulab.Conv2D(
        codes(random, outputs, kernel, kernel, shape[2], heaviest=heaviest),
        random.randint(-most, most, outputs),
        shape,
        input_q=npulab.QuantParams(1.0, zero_points[0]),
        weight_q=npulab.QuantParams(scale),
        output_q=npulab.QuantParams(1.0, zero_points[1]),
        **kwargs,
    )
    return layer, codes(random, *shape)


def layers() -> Iterator[tuple[str, str, Any, Any]]:
    """Name, chip, layer and input of every simulated capture."""
    random = np.random.RandomState(SEED)
    # scales of a power of two make ties, which tell the rounding
    yield (
        "sim-3x3-same",
        "nv_small",
        *conv(random, (7, 9, 11), 12, 3, 2.0**-5, 300, heaviest=8, padding="same"),
    )
    yield (
        "sim-1x1-relu",
        "nv_small",
        *conv(random, (6, 6, 16), 10, 1, 2.0**-4, 90, heaviest=8, activation="relu"),
    )
    # the zero point is added behind the scaling, which X2 does here
    yield (
        "sim-5x3-stride2",
        "nv_medium_512",
        *conv(
            random,
            (11, 10, 20),
            17,
            3,
            0.00137,
            zero_points=(-7, 21),
            stride=(2, 2),
            padding=((1, 2), (0, 1)),
        ),
    )
    yield (
        "sim-per-channel",
        "nv_large",
        *conv(
            random,
            (5, 6, 70),
            33,
            2,
            tuple((2.0 ** (-9 - random.randint(0, 40, 33) / 10)).astype(np.float32).tolist()),
            zero_points=(3, -4),
        ),
    )
    # biases past 16 bits come in two parts
    yield (
        "sim-wide-bias",
        "nv_small",
        *conv(random, (4, 5, 9), 9, 3, 2.0**-14, 2**21, dilation=(1, 2)),
    )
    yield (
        "sim-full-map",
        "nv_full",
        *conv(random, (6, 5, 40), 40, 3, 0.0009, padding="same", activation="relu"),
    )
    yield (
        "sim-max-pool",
        "nv_small",
        Pool2D("max", (3, 3), (9, 8, 10), (2, 2), "same"),
        codes(random, 9, 8, 10),
    )
    yield (
        "sim-average-pool",
        "nv_large",
        Pool2D("average", (4, 4), (8, 8, 35), (4, 4)),
        codes(random, 8, 8, 35),
    )
    one, half = npulab.QuantParams(0.5, 3), npulab.QuantParams(1.0, -9)
    yield (
        "sim-add",
        "nv_small",
        Add((5, 4, 12), "relu", one, npulab.QuantParams(0.5, -60), half),
        (codes(random, 5, 4, 12), codes(random, 5, 4, 12)),
    )


def another_driver(good: npulab.Capture) -> npulab.Capture:
    """The job of ``good`` with other numbers in every field that neither the device nor lift minds,
    as recorded traces have them, and two mistakes: the columns are two apart, and the pad value is
    that of another tensor.
    """
    random = np.random.RandomState(SEED)
    registers, job = good.maps["SMALL"], good
    oracle = Simulated(good.buffers["output"])
    written = {registers.index[offset] for offset, _ in good.jobs[0].writes}
    for item in registers:
        alike = item.register.startswith(KEPT) or item.name.endswith(READ_ELSEWHERE)
        if item.automatic or item.address or alike or item.pieces[0].word not in written:
            continue
        raw = int(registers.decode(job.words, raw=True)[registers.key(item)])
        other = (raw + random.randint(1, 2 ** min(item.width, 6) + 1)) % 2**item.width
        changed = job.with_fields(**{registers.key(item): item.value(np.uint32(other))})
        if oracle(changed) != "pass":
            continue
        try:
            npulab.target("nvdla").lift(changed)
        except Unsupported:
            continue
        job = changed
    names = {f"{item.block}.{item.register}.{item.name}": registers.key(item) for item in registers}
    job = job.with_fields(
        **{
            names["CSC.D_CONV_STRIDE_EXT.CONV_X_STRIDE_EXT"]: 1,
            names["CSC.D_ZERO_PADDING_VALUE.PAD_VALUE"]: 5,
        }
    )
    return replace(job, name="sim-other-driver", tool=good.tool)


def record() -> Iterator[npulab.Capture]:
    """The simulated captures, made anew."""
    made = {}
    for name, chip, layer, x in layers():
        lowered = npulab.target("nvdla").lower(layer, chip=chip, x=x, name=name)
        made[name] = recorded(lowered, SOURCE)
    yield from made.values()
    yield recorded(another_driver(made["sim-3x3-same"]), SOURCE)


if __name__ == "__main__":
    save_all(record())
