"""Record the sweep of the rockchip target: layers lowered as our own driver would, nothing of it
run on a chip.

    python tests/tools/record_rockchip_sweep.py captures/rockchip

A file that is there already is refused; a changed sweep is a commit of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
import recording
from recording import Row

import npulab
from npulab.captures.sweep import Sweep
from npulab.npus.rockchip.facts import REGISTERS, USUAL_CHIP

NAME, LAYERS = "sweep-convolutions", 400
KERNELS = (1, 2, 3, 5, 7)


def layer(random: np.random.RandomState) -> npulab.Conv2D:
    """A layer of one task whose sizes, kernel and quantization say nothing of one another; raises
    ValueError where there
    is none."""

    size = partial(recording.size, random)

    def q(low: float, high: float) -> npulab.QuantParams:
        return npulab.QuantParams(recording.scale(random, low, high), int(random.randint(256)))

    shape, depthwise = (size(2, 6.5), size(2, 6.5), size(1, 8)), random.random_sample() < 0.3
    kernel = [KERNELS[random.randint(len(KERNELS))] for _ in "hw"]
    outputs = shape[2] if depthwise else size(0, 8)
    weights = np.zeros(
        (1, *kernel, shape[2]) if depthwise else (outputs, *kernel, shape[2]), np.uint8
    )
    return npulab.Conv2D(
        weights,
        np.zeros(outputs, int),
        shape,
        (1 + random.randint(3), 1 + random.randint(3)),
        ("valid", "same")[random.randint(2)],
        depthwise=depthwise,
        activation=(None, "relu")[random.randint(2)],
        input_q=q(-8, -3),
        weight_q=q(-9, -4),
        output_q=q(-6, -1),
    )


def row(number: int) -> Row:
    """The words and parameters of one layer at addresses of its own."""
    random = np.random.RandomState([16, number])  # its numbers are the same in every numpy
    where = {
        name: int(64 * random.randint(2**20, 2**26))
        for name in ("coefficients", "biases", "input", "output")
    }
    lower = partial(npulab.target("rockchip").lower, addresses=where)
    made = recording.lowered_layers(partial(layer, random), lower)
    drawn, capture = next(one for one in made if len(one[1].jobs) == 1)
    return capture.words, parameters(drawn)


def parameters(of: npulab.Conv2D) -> dict[str, float]:
    """What a person knows of a layer."""
    known = {name: value for name, value in of.parameters.items() if isinstance(value, int | float)}
    dropped = {name for name in known if name.startswith(("pad_", "dilation_"))}
    kept = {name: value for name, value in known.items() if name not in dropped}
    return kept | {"same": of.padding == "same", "relu": of.activation == "relu"}


def sweep(rows: Iterable[Row]) -> Sweep:
    source = "npulab tests/record_rockchip_sweep.py"
    return recording.sweep_of(rows, NAME, "rockchip", USUAL_CHIP, REGISTERS, source)


if __name__ == "__main__":
    recording.save_named(sweep(row(number) for number in range(LAYERS)))
