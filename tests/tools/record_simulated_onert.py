"""Record the captures ``sim-*`` of the ONE runtime: layers lowered for several paths, run on the
simulated device.

    python tests/tools/record_simulated_onert.py captures/onert

A folder that is there already is refused; a changed capture is a commit of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from recording import recorded, save_all

import npulab

SEED = 10
SOURCE = "npulab tests/record_simulated_onert.py"
Q = npulab.QuantParams


def real(random: np.random.RandomState, *shape: int) -> np.ndarray:
    """Numbers from -4 to 4 in steps of 2**-12, which float32 holds exactly and every numpy draws
    the same.
    """
    return (random.randint(-(2**14), 2**14, shape) * 2.0**-12).astype(np.float32)


def hybrid(
    random: np.random.RandomState,
    shape: tuple[int, ...],
    units: int,
    channels: bool = False,
    **kwargs: Any,
) -> tuple[npulab.FullyConnected, np.ndarray]:
    """A layer of float32 rows and int8 weights, and an input for it, of which one row is 0."""
    scale = (
        tuple(float(2.0**-n) * 1.25 for n in random.randint(5, 10, units))
        if channels
        else 0.0078125
    )
    layer = npulab.FullyConnected(
        random.randint(-127, 128, (units, shape[-1])).astype(np.int8),
        real(random, units),
        weight_q=Q(scale),
        dtype="float32",
        **kwargs,
    )
    x = real(random, *shape)
    x.reshape(-1, shape[-1])[-1] = 0
    return layer, x


def codes(
    random: np.random.RandomState,
    shape: tuple[int, ...],
    units: int,
    weights: str,
    dtype: str,
    weight_q: npulab.QuantParams,
    **kwargs: Any,
) -> tuple[npulab.FullyConnected, np.ndarray]:
    """A quantized layer and an input for it."""

    def drawn(kind: str, *size: int) -> np.ndarray:
        return (random.randint(0, 256, size) + np.iinfo(kind).min).astype(kind)

    layer = npulab.FullyConnected(
        drawn(weights, units, shape[-1]),
        random.randint(-5000, 5000, units),
        weight_q=weight_q,
        dtype=dtype,
        **kwargs,
    )
    return layer, drawn(dtype, *shape)


def layers() -> Iterator[tuple[str, str, Any, Any, tuple[str, ...]]]:
    """Name, chip, layer, input and features of every simulated capture."""
    random = np.random.RandomState(SEED)
    # the two operators of the notes, with a tenth of their depth
    yield "sim-hybrid-2d", "neon-armv7", *hybrid(random, (4, 100), 96), ()
    yield "sim-hybrid-3d", "neon-aarch64", *hybrid(random, (4, 2, 154), 96), ()
    yield (
        "sim-hybrid-channels",
        "neon-dotprod",
        *hybrid(random, (3, 61), 22, True, activation="relu"),
        (),
    )
    # a depth of a whole KiB, whose columns lie 64 bytes further apart; the weights come out of the
    # cache
    yield (
        "sim-hybrid-cached",
        "avx512",
        *hybrid(random, (1, 1024), 20, activation="relu6"),
        ("cached-weights", "avoid-aliasing"),
    )
    # scales of a power of two make ties, which tell the rounding
    yield (
        "sim-uint8",
        "avx2",
        *codes(
            random,
            (5, 75),
            18,
            "uint8",
            "uint8",
            Q(2.0**-7, 121),
            input_q=Q(0.03125, 140),
            output_q=Q(0.125, 97),
        ),
        (),
    )
    several = tuple(float(2.0**-n) for n in random.randint(6, 10, 14))
    yield (
        "sim-int8-channels",
        "neon-armv7",
        *codes(
            random,
            (7, 50),
            14,
            "int8",
            "int8",
            Q(several),
            input_q=Q(0.0625, -9),
            output_q=Q(0.125, 33),
            activation="relu",
        ),
        (),
    )


def record() -> Iterator[npulab.Capture]:
    """The simulated captures, made anew."""
    for name, chip, layer, x, features in layers():
        lowered = npulab.target("onert").lower(layer, chip=chip, x=x, name=name, features=features)
        yield recorded(lowered, SOURCE)


if __name__ == "__main__":
    save_all(record())
