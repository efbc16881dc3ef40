"""Record the captures ``sim-*`` of the Neural Engine: layers lowered, run on the simulated device,
beside their source networks and weights where a network can say the layer.

    PYTHONPATH=tests/reference python tests/tools/record_simulated_ane.py captures/ane

A folder that is there already is refused; a changed capture is a commit of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from ane_writers import write_plist
from recording import recorded, save_all

import npulab
from npulab.captures.target import Unsupported
from npulab.npus.ane import tables
from npulab.npus.ane.source.of_layers import source_of
from npulab.npus.ane.tables import functions
from npulab.quant.layers import Activation, Concat, Elementwise

SEED = 8
SOURCE = "npulab tests/record_simulated_ane.py"


def halves(random: np.random.RandomState, *shape: int, most: float = 1.0) -> np.ndarray:
    """fp16 numbers of eleven significant bits or less, the same in every numpy."""
    return (random.randint(-2047, 2048, shape) * (most / 2048)).astype(np.float16)


def layers() -> Iterator[tuple[str, Any, Any]]:
    """Name, layer and input, or inputs, of every simulated capture."""
    random = np.random.RandomState(SEED)
    nothing = np.zeros(32, np.float16)
    yield (
        "sim-3x3-same",
        npulab.Conv2D(halves(random, 32, 3, 3, 4), halves(random, 32), (5, 12, 4), padding="same"),
        halves(random, 5, 12, 4, most=4.0),
    )
    yield (
        "sim-1x1-relu",
        npulab.Conv2D(halves(random, 32, 1, 1, 16), nothing, (3, 12, 16), activation="relu"),
        halves(random, 3, 12, 16, most=4.0),
    )
    yield (
        "sim-3x3-depthwise",
        npulab.Conv2D(
            halves(random, 1, 3, 3, 16),
            halves(random, 16),
            (5, 9, 16),
            padding="same",
            depthwise=True,
        ),
        halves(random, 5, 9, 16, most=4.0),
    )
    yield (
        "sim-tanh",
        Activation((16, 32, 1), tables.outputs(functions.fit("tanh")), "tanh"),
        halves(random, 16, 32, 1, most=5.0),
    )
    pair = (4, 32, 6)
    yield (
        "sim-add",
        Elementwise("add", pair),
        (halves(random, *pair), halves(random, *pair, most=64.0)),
    )
    yield (
        "sim-concat",
        Concat([(2, 32, 8), (2, 32, 4)]),
        (halves(random, 2, 32, 8), halves(random, 2, 32, 4)),
    )
    # with a stride of 2 the compiler leaves out weights of zero
    weights = np.where(
        random.randint(0, 5, (32, 1, 1, 8)) < 2, np.float16(0), halves(random, 32, 1, 1, 8)
    )
    yield (
        "sim-1x1-stride2",
        npulab.Conv2D(weights, halves(random, 32), (6, 12, 8), stride=(2, 2), padding="valid"),
        halves(random, 6, 12, 8, most=4.0),
    )


def record() -> Iterator[npulab.Capture]:
    """The simulated captures, made anew; the compiled file is left out, ``writing.hwx_bytes``
    makes it again.
    """
    for name, layer, x in layers():
        made = recorded(npulab.target("ane").lower(layer, x=x, name=name), SOURCE)
        files = {key: data for key, data in made.buffers.items() if key != "hwx"}
        with suppress(Unsupported):
            network, weights = source_of(layer)
            files |= {"net.plist": write_plist(network), **weights}
        yield replace(made, buffers=files)


if __name__ == "__main__":
    save_all(record())
