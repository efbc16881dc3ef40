"""Record the captures ``sim-*``: jobs run on the simulated device.

    python tests/tools/record_simulated.py captures/vivante

A folder that is there already is refused; a changed capture is a commit of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from recording import recorded, save_all

import npulab
from npulab.captures.devices import Simulated

SOURCE = "npulab tests/record_simulated.py"
CAPTURES = Path(__file__).parents[2] / "captures" / "vivante"
SCALES = {"input": 0.0235, "output": 0.047}


def conv(
    seed: int,
    shape: tuple[int, int, int],
    outputs: int,
    kernel: int,
    scale: float,
    used: float = 1.0,
    **kwargs: object,
) -> tuple[npulab.Conv2D, np.ndarray]:
    """A random layer of the given size and real scale, and an input for it."""
    random = np.random.RandomState(seed)  # its numbers are the same in every numpy
    weights = random.randint(0, 256, (outputs, kernel, kernel, shape[2])).astype(np.uint8)
    weights[random.random_sample(weights.shape) >= used] = 121
    layer = npulab.Conv2D(
        weights,
        random.randint(-4000, 4000, outputs),
        shape,
        input_q=npulab.QuantParams(SCALES["input"], int(random.randint(90, 160))),
        weight_q=npulab.QuantParams(scale * SCALES["output"] / SCALES["input"], 121),
        output_q=npulab.QuantParams(SCALES["output"], int(random.randint(90, 160))),
        **kwargs,
    )
    return layer, random.randint(0, 256, shape).astype(np.uint8)


def layers() -> Iterator[tuple[str, npulab.Conv2D, np.ndarray]]:
    """Name, layer and input of every simulated capture."""
    update4 = npulab.load(CAPTURES / "update4-mesa")
    lifted = npulab.target("vivante").lift(update4)
    yield "sim-update4", lifted.layer, lifted.x
    # scales of a power of two make ties, which tell the rounding
    yield "sim-3x3-same", *conv(1, (10, 10, 4), 12, 3, 2.0**-9, padding="same")
    yield "sim-1x1", *conv(2, (12, 12, 16), 24, 1, 2.0**-9)
    yield "sim-5x5-same", *conv(3, (11, 11, 3), 8, 5, 0.00133, padding="same")
    yield (
        "sim-3x3-stride2-relu",
        *conv(4, (15, 15, 3), 10, 3, 0.00217, stride=(2, 2), padding="same", activation="relu"),
    )
    yield "sim-3x3-sparse", *conv(5, (9, 9, 8), 16, 3, 0.0042, used=0.08, padding="same")


def another_driver(good: npulab.Capture) -> npulab.Capture:
    """The job of ``good`` with other habits in every field that the device does not mind, and two
    mistakes.

    The outputs have another tensor's zero point, and a ReLU that the layer has not.
    """
    random = np.random.RandomState(6)
    registers, oracle = good.maps["NN"], Simulated(good.buffers["output"])
    job = good
    for name, raw in registers.decode(good.words, raw=True).items():
        field = registers[name]
        other = (int(raw) + random.randint(1, 2 ** min(field.width, 6))) % 2**field.width
        if field.meaning.kind == "f32":
            continue  # other bits of an infinity are no number
        changed = job.with_fields(**{name: field.value(np.uint32(other))})
        if not field.address and oracle(changed) == "pass":
            job = changed
    job = job.with_fields(out_zero_point=128, relu=1)
    return replace(job, name="sim-other-driver", tool=good.tool)


def record() -> Iterator[npulab.Capture]:
    """The simulated captures, made anew."""
    made = {}
    for name, layer, x in layers():
        # the NN job by itself, as in the captures of update 4
        lowered = npulab.target("vivante").lower(
            layer, chip="vipnano-qi-a311d", x=x, name=name, features=["nn-job-alone"]
        )
        made[name] = recorded(lowered, SOURCE)
    yield from made.values()
    yield recorded(another_driver(made["sim-3x3-same"]), SOURCE)


if __name__ == "__main__":
    save_all(record())
