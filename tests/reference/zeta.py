"""An NPU that does not exist, zeta: what its driver writes for a layer, with fields of the kinds
that drivers have, and layers drawn for it."""

from __future__ import annotations

import csv
import random
import struct
from itertools import product
from pathlib import Path

WORDS = 24
# where a parameter stands in the words as it is, or as one less: word, lowest bit, how much less
PLAIN = {
    "stride": (0, 12, 1),
    "relu": (0, 16, 0),
    "input_w": (1, 0, 1),
    "input_h": (1, 16, 1),
    "output_c": (2, 16, 1),
    "input_zero_point": (15, 8, 0),
    "output_zero_point": (15, 16, 0),
    "pad": (16, 0, 0),
}
# words of which a law is unknown or takes long, and one that follows from all: most of a search
HARD = (11, 12, 13, 14, 20, 22, 23)

Layer = dict[str, int]


def drawn(seed: int, count: int = 60) -> tuple[list[Layer], list[list[int]]]:
    """Layers and the words of each."""
    draw = random.Random(seed)
    layers = []
    words = []
    for number in range(count):
        layers.append(_layer(draw))
        words.append(_words(layers[-1], number, draw))
    return layers, words


def record(seed: int, folder: Path, hard: bool = True) -> None:
    """Write ``all.bin``, the words of 60 layers, and ``layers.csv``, their parameters; the hard
    words are zero if ``hard`` is false."""
    layers, words = drawn(seed)
    for row, word in product(words, () if hard else HARD):
        row[word] = 0
    data = b"".join(struct.pack(f"<{WORDS}I", *row) for row in words)
    (folder / "all.bin").write_bytes(data)
    with (folder / "layers.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["name", *layers[0]])
        table.writeheader()
        for number, layer in enumerate(layers):
            table.writerow({"name": f"run{number:02d}", **layer})


def _layer(draw: random.Random) -> Layer:
    kernel = draw.choice([1, 3, 5])
    stride = draw.choice([1, 1, 2])
    return {
        "input_w": draw.randint(7, 112),
        "input_h": draw.randint(7, 112),
        "input_c": draw.choice([3, 8, 16, 24, 32, 48, 64, 96]),
        "output_c": draw.randint(1, 128),
        "kernel": kernel,
        "stride": stride,
        "pad": draw.choice([0, kernel // 2]),
        "relu": draw.randint(0, 1),
        "input_zero_point": draw.randint(0, 255),
        "output_zero_point": draw.randint(0, 255),
        "bits": draw.choice([8, 8, 16]),
    }


def _words(layer: Layer, number: int, draw: random.Random) -> list[int]:
    """The words that the driver writes for a layer, its ``number``-th."""
    kernel, stride, pad = layer["kernel"], layer["stride"], layer["pad"]
    width, height = layer["input_w"], layer["input_h"]
    size = layer["bits"] // 8
    groups = _up(layer["input_c"], 16)
    wide = int(layer["input_c"] > 16)
    out_w = (width + 2 * pad - kernel) // stride + 1
    out_h = (height + 2 * pad - kernel) // stride + 1
    pitch = _up(width * 16 * size, 64) * 64
    words = [0] * WORDS
    words[0] = 1 | (kernel - 1) << 4 | (kernel - 1) << 8 | (stride - 1) << 12
    words[0] |= (size == 2) << 14 | layer["relu"] << 16 | wide << 17
    words[1] = width - 1 | (height - 1) << 16
    words[2] = groups | (layer["output_c"] - 1) << 16
    words[3] = pitch
    words[4] = pitch * height // 16
    words[5] = out_w - 1 | (out_h - 1) << 16
    words[6] = _up(out_w * 16 * size, 64) * 64
    words[7] = min(out_w, 32) | _up(out_w, 32) << 8 | min(out_h, 16) << 16
    words[8:11] = 0x40000000, 0x48000000 + 0x1000 * number, 0x50000000
    words[11] = _up(layer["output_c"], 16) * 16 * kernel**2 * groups * 16 * size
    elements = width * height * layer["input_c"]
    words[12] = (elements & 0xFFF) << 20 | 0x55
    words[13] = elements >> 12 & 0x3FF | (groups if wide else min(height, 8)) << 16
    words[14] = draw.randint(0x4000, 0x7FFF)
    words[15] = draw.randint(5, 12) | layer["input_zero_point"] << 8
    words[15] |= layer["output_zero_point"] << 16
    words[16] = pad * 0x1111
    words[17], words[19] = 0xC0FFEE01, number
    banks = min(11, _up(width * height * 16 * size, 32768))
    words[20] = banks | (12 - banks) << 4
    words[22] = draw.getrandbits(32)
    for word in words[:23]:
        words[23] ^= word
    return words


def _up(count: int, size: int) -> int:
    """How many groups of a size hold a count."""
    return -(-count // size)
