"""Record the sweeps ``sweep-*.npz``: layers lowered as our own driver would, nothing of it run on a
chip.

    python tests/tools/record_sweeps.py captures/vivante [NAME ...]

All of them, or those named.  It takes minutes, for the layers that are too large for the on-chip
memory.  A file that is there already is refused; a changed sweep is a commit of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial

import numpy as np
import recording
from recording import Row
from tqdm import tqdm

import npulab
from npulab.captures.sweep import Sweep
from npulab.npus.vivante.coefficients import sizes
from npulab.npus.vivante.facts import CHIPS
from npulab.npus.vivante.lifting import geometry_of
from npulab.npus.vivante.lowering import uncoded_bytes

A311D, IMX8MP, S905D3, STM32MP25 = (
    "vipnano-qi-a311d",
    "vipnano-si-imx8mp",
    "vipnano-qi-s905d3",
    "gcnanoultra31-stm32mp25",
)
KERNELS = (1, 2, 3, 5, 7)
MOST_WEIGHTS, SOME_WEIGHTS = 800_000, 40_000  # of a large layer, of another
LAYERS, SMALL, AGAIN = 850, 160, 80
V8_LAYERS, WORDS_ONLY = 500, 300
SHARE, WORDS_ONLY_SHARE = 0.08, 0.2  # of layers that are large
HEADER = 64  # of a coefficient buffer


def layer(random: np.random.RandomState, share: float = SHARE) -> npulab.Conv2D:
    """A layer whose sizes, kernel and quantization say nothing of one another; ``share`` is that of
    large ones.

    Raises ValueError where there is no such layer.
    """

    size, scale = partial(recording.size, random), partial(recording.scale, random)
    # the coefficients of most large layers go past the on-chip memory; with fewer than 160 channels
    # the driver has another caching pattern, which would be too rare here to be learnt
    large, depthwise = random.random_sample() < share, random.random_sample() < 0.2
    shape = size(2, 6.7), size(2, 6.7), size(7.33 if large else 0, 8)
    kernels = KERNELS[2:4] if large else KERNELS
    kernel = [kernels[random.randint(len(kernels))] for _ in range(2)]
    kernel = kernel if random.random_sample() < 0.4 else kernel[:1] * 2
    outputs, most = size(7.33 if large else 0, 8), MOST_WEIGHTS if large else SOME_WEIGHTS
    weights_shape = (1, *kernel, shape[2]) if depthwise else (outputs, *kernel, shape[2])
    if np.prod(weights_shape) * (shape[2] if depthwise else 1) > most:
        raise ValueError("more weights than wanted")
    weights = random.randint(0, 256, weights_shape).astype(np.uint8)
    zero_points = random.randint(0, 256), random.randint(100, 156), random.randint(0, 256)
    if random.random_sample() < 0.3:
        weights[random.random_sample(weights_shape) < random.random_sample()] = zero_points[1]
    scales = scale(-8, -3), scale(-9, -4), scale(-6, -1)
    input_q, weight_q, output_q = map(npulab.QuantParams, scales, zero_points)
    return npulab.Conv2D(
        weights,
        np.zeros(weights_shape[3 if depthwise else 0], int),
        shape,
        stride=(1 + random.randint(2),) * 2,
        padding=("valid", "same")[random.randint(2)],
        depthwise=depthwise,
        activation=(None, "relu")[random.randint(2)],
        input_q=input_q,
        weight_q=weight_q,
        output_q=output_q,
    )


def address(random: np.random.RandomState) -> int:
    return int(64 * random.randint(2**20, 2**26))


def row(
    number: int,
    seed: int,
    addresses: int | None = None,
    chip: str = A311D,
    share: float = SHARE,
    told: bool = False,
) -> Row:
    """The words and parameters of one layer; ``addresses`` is the seed of where its buffers lie,
    ``told`` whether the
    jobs around it count as known."""
    random = np.random.RandomState([seed, number])  # its numbers are the same in every numpy
    where = {}
    if addresses is not None:
        places = np.random.RandomState([addresses, number])
        where = {name: address(places) for name in ("coefficients", "input", "output")}
    lower = partial(npulab.target("vivante").lower, chip=chip, addresses=where)
    drawn, capture = next(recording.lowered_layers(partial(layer, random, share), lower))
    # what a capture shows beside the words: whether a job split the planes before
    jobs = {"reshuffled": any(job.block == "TP" for job in capture.jobs)} if told else {}
    return capture.words, parameters(drawn, capture) | jobs


def parameters(of: npulab.Conv2D, capture: npulab.Capture) -> dict[str, float]:
    """What a person knows of a layer once its coefficients are packed, or, where nobody knows
    how, has counted them.
    """
    geometry, coded = (
        geometry_of(capture.values, CHIPS[capture.chip]),
        capture.buffers.get("coefficients"),
    )
    streams = [uncoded_bytes(geometry)] * geometry.used if coded is None else sizes(coded, geometry)
    whole = HEADER + sum(streams) if coded is None else len(coded)
    out = recording.sizes_of(of)
    out |= {
        "kernel_w": of.kernel[1],
        "kernel_h": of.kernel[0],
        "stride": of.stride[0],
        "same": of.padding == "same",
        "depthwise": of.depthwise,
        "relu": of.activation == "relu",
    }
    quantized = [("input", of.input_q), ("output", of.output_q), ("weight", of.weight_q)]
    out |= {f"{name}_zero_point": q.zero_point for name, q in quantized}
    out |= {f"{name}_scale": q.scale for name, q in (quantized[0], quantized[2], quantized[1])}
    return out | {"coefficient_bytes": whole, "largest_core_stream_bytes": max(streams)}


# by name: the chip and its rows, which are made one by one: a test makes a few of them again
MADE = {
    "sweep-layers": (A311D, [partial(row, number, 1) for number in range(LAYERS)]),
    # other layers at other addresses; some of them twice
    "sweep-addresses": (
        A311D,
        [
            *(partial(row, number, 2, 3) for number in range(SMALL)),
            *(partial(row, number, 2, 4) for number in range(AGAIN)),
        ],
    ),
    "sweep-layers-imx8mp": (
        IMX8MP,
        [partial(row, number, 5, chip=IMX8MP, told=True) for number in range(V8_LAYERS)],
    ),
    **{
        f"sweep-layers-{name}": (
            chip,
            [
                partial(row, number, seed, chip=chip, share=WORDS_ONLY_SHARE, told=True)
                for number in range(WORDS_ONLY)
            ],
        )
        for name, chip, seed in (("s905d3", S905D3, 6), ("stm32mp25", STM32MP25, 7))
    },
}


def sweep(name: str, rows: Iterable[Row]) -> Sweep:
    source = "npulab tests/record_sweeps.py"
    return recording.sweep_of(rows, name, "vivante", MADE[name][0], "NN", source)


if __name__ == "__main__":
    for name in sys.argv[2:] or MADE:
        recording.save_named(sweep(name, (one() for one in tqdm(MADE[name][1]))))
