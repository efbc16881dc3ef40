"""Record the sweep of the rockchip target: layers lowered as our own driver would, nothing of it
run on a chip.

    python tests/tools/record_rockchip_sweep.py captures/rockchip

A file that is there already is refused; a changed sweep is a commit of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

import npulab
from npulab.captures.sweep import Sweep, save_sweep
from npulab.npus.rockchip.facts import REGISTERS, USUAL_CHIP

NAME, LAYERS = "sweep-convolutions", 400
KERNELS = (1, 2, 3, 5, 7)
Row = tuple[np.ndarray, dict[str, float]]


def layer(random: np.random.RandomState) -> npulab.Conv2D:
    """A layer of one task whose sizes, kernel and quantization say nothing of one another; raises
    ValueError where there
    is none."""

    def size(low: float, high: float) -> int:
        return int(2 ** random.uniform(low, high))

    def q(low: float, high: float) -> npulab.QuantParams:
        return npulab.QuantParams(
            float(np.float32(2 ** random.uniform(low, high))), int(random.randint(256))
        )

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
    while True:
        try:
            drawn = layer(random)
            capture = npulab.target("rockchip").lower(drawn, addresses=where)
        except ValueError:
            continue
        if len(capture.jobs) == 1:
            return capture.words, parameters(drawn)


def parameters(of: npulab.Conv2D) -> dict[str, float]:
    """What a person knows of a layer."""
    known = {name: value for name, value in of.parameters.items() if isinstance(value, int | float)}
    dropped = {name for name in known if name.startswith(("pad_", "dilation_"))}
    kept = {name: value for name, value in known.items() if name not in dropped}
    return kept | {"same": of.padding == "same", "relu": of.activation == "relu"}


def sweep(rows: Iterable[Row]) -> Sweep:
    words, known = zip(*rows, strict=True)
    return Sweep(
        np.stack(words),
        pd.DataFrame(known),
        NAME,
        "rockchip",
        USUAL_CHIP,
        REGISTERS,
        "simulated",
        "npulab tests/record_rockchip_sweep.py",
        "npulab lower",
    )


if __name__ == "__main__":
    print(
        save_sweep(
            sweep(row(number) for number in range(LAYERS)), Path(sys.argv[1]) / f"{NAME}.npz"
        )
    )
