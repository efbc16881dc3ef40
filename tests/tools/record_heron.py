"""Record the captures of heron, an NPU that does not exist: a block of words for notebook 11 to
find out.

    python tests/tools/record_heron.py captures/heron

What is written here of the device is nowhere else: the notebook finds it in the captures.  A folder
or file that is there already is refused; a changed capture is a commit of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

import npulab
from npulab.captures.sweep import Sweep, save_sweep
from npulab.quant.rules import rule
from npulab.support.files import write_folders

NPU, BLOCK, WORDS = "heron", "JOB", 20
HEADER = 0x4E520314
GROUP, CHANNELS = (
    8,
    4,
)  # output channels that are computed together, input channels that lie together
ALIGN, COLUMNS = 16, 16384  # bytes of a row's step, of the memory for a tile of one group
RULE = rule("single-half-up")
JOBS = 160
DUMPS = {
    "sim-first": ((9, 7, 5), (12, 3, 3), (1, 1), "same", None),
    "sim-second": ((12, 12, 3), (20, 5, 3), (2, 1), "valid", None, True),
    "sim-unseen": ((14, 10, 6), (17, 3, 5), (1, 2), "same", "relu"),
}
ORIGIN = {
    "provenance": "simulated",
    "source": "npulab tests/record_heron.py",
    "tool": "an NPU that does not exist",
}


@dataclass(frozen=True)
class Piece:
    """A run of bits of the block, as the device has it: bits ``at`` and up of a number."""

    name: str
    word: int
    lsb: int
    width: int
    at: int = 0


PIECES = [
    Piece("header", 0, 0, 32),
    Piece("input_w", 1, 0, 13),
    Piece("input_h", 1, 13, 13),
    Piece("relu", 1, 31, 1),
    Piece("output_w", 2, 0, 13),
    Piece("output_h", 2, 13, 13),
    Piece("channels", 3, 0, 12),
    Piece("outputs", 3, 12, 12),
    Piece("kernel_w", 3, 24, 4),
    Piece("kernel_h", 3, 28, 4),
    Piece("stride_w", 4, 0, 2),
    Piece("stride_h", 4, 2, 2),
    Piece("pad_left", 4, 4, 4),
    Piece("pad_top", 4, 8, 4),
    Piece("input_zero", 5, 0, 8),
    Piece("output_zero", 5, 8, 8),
    Piece("right_shift", 5, 16, 5),
    Piece("multiplier", 6, 0, 16),
    Piece("multiplier", 7, 0, 15, 16),
    Piece("groups", 6, 16, 9),
    Piece("input_pitch", 8, 0, 20),
    Piece("output_pitch", 9, 0, 20),
    Piece("bytes", 10, 0, 24),
    Piece("input", 11, 0, 32),
    Piece("coefficients", 12, 0, 32),
    Piece("output", 13, 0, 32),
    Piece("tile_rows", 14, 0, 13),
]


def numbers(layer: npulab.Conv2D, where: Mapping[str, int]) -> dict[str, int]:
    """What the driver writes for a layer."""
    (height, width, channels), (rows, columns, outputs) = layer.input_shape, layer.output_shape
    multiplier, right_shift = RULE.multiplier(
        layer.input_q.scale, layer.weight_q.scale, layer.output_q.scale
    )
    groups = -(-outputs // GROUP)
    return {
        "header": HEADER,
        "input_w": width - 1,
        "input_h": height - 1,
        "relu": layer.activation == "relu",
        "output_w": columns - 1,
        "output_h": rows - 1,
        "channels": channels - 1,
        "outputs": outputs - 1,
        "kernel_w": layer.kernel[1] - 1,
        "kernel_h": layer.kernel[0] - 1,
        "stride_w": layer.stride[1] - 1,
        "stride_h": layer.stride[0] - 1,
        "pad_left": layer.pads[1][0],
        "pad_top": layer.pads[0][0],
        "input_zero": layer.input_q.zero_point % 256,
        "output_zero": layer.output_q.zero_point % 256,
        "right_shift": int(right_shift),
        "multiplier": int(multiplier),
        "groups": groups - 1,
        "input_pitch": aligned(width * channels),
        "output_pitch": aligned(columns * outputs),
        "bytes": len(coefficients(layer.weights)),
        "tile_rows": max(1, min(rows, COLUMNS // (columns * GROUP))),
        **where,
    }


def block(given: Mapping[str, int]) -> np.ndarray:
    """The words ``(20,) uint32`` of numbers; the last word that is used is a check of those
    before it.
    """
    words = np.zeros(WORDS, np.uint32)
    for piece in PIECES:
        words[piece.word] |= np.uint32(
            (given[piece.name] >> piece.at) % 2**piece.width * 2**piece.lsb
        )
    words[15] = np.bitwise_xor.reduce(words[:15])
    return words


def read(words: np.ndarray) -> dict[str, int]:
    """The numbers in a block."""
    out: dict[str, int] = {}
    for piece in PIECES:
        run = int(words[piece.word]) // 2**piece.lsb % 2**piece.width
        out[piece.name] = out.get(piece.name, 0) + run * 2**piece.at
    return out


def aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def order(outputs: int, rows: int, columns: int, channels: int) -> list[tuple[int, int, int, int]]:
    """The weights (o, i, j, c) as they lie one behind another."""
    return [
        (o, i, j, c)
        for group in range(0, outputs, GROUP)
        for some in range(0, channels, CHANNELS)
        for i in range(rows)
        for j in range(columns)
        for o in range(group, min(group + GROUP, outputs))
        for c in range(some, min(some + CHANNELS, channels))
    ]


def coefficients(weights: np.ndarray) -> bytes:
    data = bytes(int(weights[place]) % 256 for place in order(*weights.shape))
    return data + bytes(aligned(len(data)) - len(data))


def device(words: np.ndarray, buffers: Mapping[str, bytes]) -> bytes:
    """The output that the device leaves, from words and bytes alone."""
    n = read(words)
    height, width, channels, outputs = (
        n[name] + 1 for name in ("input_h", "input_w", "channels", "outputs")
    )
    rows, columns, kernel = (
        n["output_h"] + 1,
        n["output_w"] + 1,
        (n["kernel_h"] + 1, n["kernel_w"] + 1),
    )
    weights = np.zeros((outputs, *kernel, channels), np.int64)
    for place, value in zip(
        order(*weights.shape), np.frombuffer(buffers["coefficients"], np.int8), strict=False
    ):
        weights[place] = value
    x = np.frombuffer(buffers["input"], np.int8).reshape(height, n["input_pitch"])[
        :, : width * channels
    ]
    x = x.reshape(height, width, channels) - np.int64(np.int8(np.uint8(n["input_zero"])))
    y = np.zeros((rows, n["output_pitch"]), np.int8)
    bias, zero = np.frombuffer(buffers["biases"], "<i4"), int(np.int8(np.uint8(n["output_zero"])))
    for row, column in np.ndindex(rows, columns):
        total = bias.astype(np.int64)
        for i, j in np.ndindex(*kernel):
            at = (
                row * (n["stride_h"] + 1) + i - n["pad_top"],
                column * (n["stride_w"] + 1) + j - n["pad_left"],
            )
            if 0 <= at[0] < height and 0 <= at[1] < width:
                total = total + weights[:, i, j] @ x[at]
        shift = 31 + n["right_shift"]
        scaled = (total * n["multiplier"] + 2 ** (shift - 1)) // 2**shift + zero
        least = max(zero, -128) if n["relu"] else -128
        y[row, column * outputs : (column + 1) * outputs] = scaled.clip(least, 127)
    return y.tobytes()


def layer(
    random: np.random.RandomState,
    shape: tuple[int, int, int],
    kernel: tuple[int, int, int],
    stride: tuple[int, int],
    padding: str,
    activation: str | None,
    ties: bool = False,
) -> npulab.Conv2D:
    """A layer of random weights whose outputs use their range; with ``ties`` some accumulators
    lie between two outputs.
    """
    outputs, rows, columns = kernel
    most = 3 if ties else 127  # small sums lie between two outputs more often
    weights = random.randint(-most, most + 1, (outputs, rows, columns, shape[2])).astype(np.int8)
    spread = 74 * 0.58 * most * np.sqrt(rows * columns * shape[2])
    scales = [float(np.float32(2 ** random.uniform(low, low + 2))) for low in (-7, -9)]
    output = float(np.float32(scales[0] * scales[1] * spread / 2 ** random.uniform(4.5, 6)))
    if ties:
        scales, output = (
            [float(2.0 ** np.round(np.log2(scale))) for scale in scales],
            float(2.0 ** np.round(np.log2(output))),
        )
    return npulab.Conv2D(
        weights,
        random.randint(-16 * most, 16 * most, outputs),
        shape,
        stride,
        padding,
        activation=activation,
        input_q=npulab.QuantParams(scales[0], int(random.randint(-128, 128))),
        weight_q=npulab.QuantParams(scales[1]),
        output_q=npulab.QuantParams(output, int(random.randint(-100, 100))),
    )


def addresses(random: np.random.RandomState) -> dict[str, int]:
    return {
        name: int(64 * random.randint(2**20, 2**25)) for name in ("input", "coefficients", "output")
    }


def dump(number: int, name: str) -> dict[str, bytes]:
    """The files of one recorded run, the layer's model beside them."""
    random = np.random.RandomState([21, number])
    drawn, where = layer(random, *DUMPS[name]), addresses(random)
    x = random.randint(-128, 128, drawn.input_shape).astype(np.int8)
    words = block(numbers(drawn, where))
    pitched = np.zeros((len(x), read(words)["input_pitch"]), np.int8)
    pitched[:, : x[0].size] = x.reshape(len(x), -1)
    buffers = {
        "coefficients": coefficients(drawn.weights),
        "biases": drawn.bias.astype("<i4").tobytes(),
        "input": pitched.tobytes(),
    }
    buffers["output"] = device(words, buffers)
    said = {"npu": NPU, **ORIGIN, "addresses": {name: f"{at:#010x}" for name, at in where.items()}}
    return {
        "job.json": (json.dumps(said, indent=1) + "\n").encode(),
        "words.bin": words.astype("<u4").tobytes(),
        "model.tflite": npulab.single_op_model(drawn),
        **{f"{name}.bin": data for name, data in buffers.items()},
    }


def sweep() -> Sweep:
    """Many jobs whose layers say nothing of one another."""
    words, known = [], []
    for number in range(JOBS):
        random = np.random.RandomState([22, number])
        drawn = None
        while drawn is None:
            shape = tuple(int(2 ** random.uniform(2, high)) for high in (7, 7, 6))
            kernel = (
                int(2 ** random.uniform(0, 7)),
                *(int(random.choice([1, 2, 3, 5, 7])) for _ in "hw"),
            )
            try:
                drawn = layer(
                    random,
                    shape,
                    kernel,
                    tuple(int(n) for n in random.randint(1, 4, 2)),
                    ("valid", "same")[random.randint(2)],
                    (None, "relu")[random.randint(2)],
                )
            except ValueError:  # too small for its kernel
                continue
        words.append(block(numbers(drawn, addresses(random))))
        known.append(
            {
                name: value
                for name, value in drawn.parameters.items()
                if isinstance(value, int | float)
                and not name.startswith("dilation")
                and name not in ("depthwise", "weight_zero_point")
            }
            | {"relu": drawn.activation == "relu"}
        )
    return Sweep(np.stack(words), pd.DataFrame(known), "sweep-jobs", NPU, "", BLOCK, **ORIGIN)


def record() -> dict[str, dict[str, bytes]]:
    """The files of every dump, by its name."""
    return {name: dump(number, name) for number, name in enumerate(DUMPS)}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for path in write_folders({folder / name: files for name, files in record().items()}):
        print(path)
    print(save_sweep(sweep(), folder / "sweep-jobs.npz"))
