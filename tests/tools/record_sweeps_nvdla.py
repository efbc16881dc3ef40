"""Record the sweep of NVDLA: convolutions lowered as our own driver would, nothing of it run on a
chip.

    python tests/tools/record_sweeps_nvdla.py captures/nvdla

A file that is there already is refused; a changed sweep is a commit of its own.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import recording
from recording import Row
from tqdm import tqdm

import npulab
from npulab.captures.sweep import Sweep
from npulab.npus.nvdla.lowering import lower

CHIP, NAME = "nv_small", "sweep-convolutions"
LAYERS, SEED = 280, 11
KERNELS = (1, 2, 3, 4, 5, 7)
MOST_WEIGHTS = 100_000
HEAVIEST = 5  # so that biases less what the zero point makes of the weights have 16 bits


def layer(random: np.random.RandomState) -> npulab.Conv2D:
    """A layer whose sizes, kernel and quantization say nothing of one another; ValueError where
    there is no such one.
    """

    size, scale = partial(recording.size, random), partial(recording.scale, random)

    def one(of: tuple[int, ...]) -> int:
        return of[random.randint(len(of))]

    def zero_point() -> int:
        return int(random.randint(-128, 128)) * random.randint(2)

    shape = size(2, 6.3), size(2, 6.3), size(0, 7.5)
    kernel, outputs = (one(KERNELS), one(KERNELS)), size(0, 7.5)
    weights_shape = (outputs, *kernel, shape[2])
    if np.prod(weights_shape) > MOST_WEIGHTS:
        raise ValueError("more weights than wanted")
    weights = random.randint(-HEAVIEST, HEAVIEST + 1, weights_shape).astype(np.int8)
    padding = (
        tuple((random.randint(4), random.randint(4)) for _ in "hw")
        if random.randint(2)
        else "valid"
    )
    return npulab.Conv2D(
        weights,
        random.randint(-300, 300, outputs) * random.randint(2),
        shape,
        (1 + random.randint(3), 1 + random.randint(3)),
        padding,
        (one((1, 1, 2, 3)), one((1, 1, 2, 3))),
        activation=(None, "relu")[random.randint(2)],
        input_q=npulab.QuantParams(scale(-8, -3), zero_point()),
        weight_q=npulab.QuantParams(scale(-9, -4)),
        output_q=npulab.QuantParams(scale(-6, -1), zero_point()),
    )


def row(number: int) -> Row:
    """The words and parameters of one layer."""
    random = np.random.RandomState([SEED, number])  # its numbers are the same in every numpy
    lowered = partial(lower, chip=CHIP)
    drawn, capture = next(recording.lowered_layers(partial(layer, random), lowered))
    return capture.words, parameters(drawn, capture)


def parameters(of: npulab.Conv2D, capture: npulab.Capture) -> dict[str, float]:
    """What a person knows of a layer, and of the biases that its driver stores how many bytes
    there are.
    """
    (top, bottom), (left, right) = of.pads
    out = recording.sizes_of(of)
    out |= {
        f"{name}_{axis}": size
        for name, pair in (("kernel", of.kernel), ("stride", of.stride), ("dilation", of.dilation))
        for axis, size in zip("hw", pair, strict=True)
    }
    out |= {"pad_top": top, "pad_bottom": bottom, "pad_left": left, "pad_right": right}
    out |= {"relu": of.activation == "relu", "bias_bytes": len(capture.buffers.get("bs", b""))}
    quantized = [("input", of.input_q), ("weight", of.weight_q), ("output", of.output_q)]
    out |= {f"{name}_zero_point": q.zero_point for name, q in quantized if name != "weight"}
    return out | {f"{name}_scale": q.scale for name, q in quantized}


def sweep(rows: list[Row]) -> Sweep:
    """Rows as the sweep."""
    source = "npulab tests/record_sweeps_nvdla.py"
    return recording.sweep_of(rows, NAME, "nvdla", CHIP, "SMALL", source)


if __name__ == "__main__":
    recording.save_named(sweep([row(number) for number in tqdm(range(LAYERS))]))
