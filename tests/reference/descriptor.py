"""A made-up job descriptor: 38 words of 109 fields, 55 of which follow 39 laws of a layer's
parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

# a line is a word, from bit 0 up: law:width, law:width@at for a piece of a split value,
# :width=value for constant bits
LAYOUT = """
type:2 type:2 input_w:13 input_h:13 :1=0 relu:1
kernel_h:4 kernel_w:4 input_c:14 :3=5 share:7
padding:3 :1=1 multiplier:1 right_shift:5 output_w:13 :1=1 :8=0
output_h:13 output_c:14 :2=2 padding:1@3 unpooled:1 :1=1
weights_at:26@6 input_c:6@14
input_at:32
output_at:32
tile_w:7 tile_h:7 weights_mode:2 pattern:5 pooling:2 :9=3
cache_end:32
:32=1024
:16=0 :16=7
input_zero_point:8 weight_zero_point:8 type:1@2 type:1@2 multiplier:6@1 right_shift:2@5 :4=0 :2=1
input_w:16 input_h:16
output_w:16 :8=0 multiplier:8@7
:26=0 per_channel:1 :1=0 :1=1 :1=0 :2=0
:26=67108863 :6=0
:26=0 :6=0
:26=67108863 :6=0
output_zero_point:8 :8=0 depthwise:1 :1=0 :8=15 :6=0
:8=0 :24=0
:4=0 :28=0
:4=2 :28=0
:32=0
:32=0
:32=67108863
:32=2139095040
:32=4286578688
:32=0
:32=0
:32=1
row_pitch:26 :6=0
input_size:28 stride_less:2 :2=0
last_pixel:22 log_channels:4 parity:1 kernel_h_less:3 :2=0
volume:18 output_pitch:10@6 :1=0 :3=1
output_h:16 output_c:16
groups:12 kernel_w:4 kernel_h:4 :12=0
input_zero_point:8 :8=0 :4=9 :12=0
:16=0 :16=0
"""
HARD = frozenset(
    {"tile_h", "weights_mode", "pattern", "cache_end", "parity"}
)  # two regimes, thresholds, clamps, XOR
ADDRESSES = frozenset({"weights_at", "input_at", "output_at"})
FLOATS = ("input_scale", "weight_scale", "output_scale")
TYPES, POOLINGS = np.array([1, 6, 3]), np.array([0, 2, 3])

# what a planner may choose from
RANGES: dict[str, Any] = {
    "input_w": (8, 8000),
    "input_h": (8, 8000),
    "input_c": (1, 60_000),
    "output_c": (1, 1016),
    "kernel_w": (1, 7),
    "kernel_h": (1, 7),
    "stride": [1, 2, 3],
    "padding": [0, 1, 2, 3],
    "pooling": [0, 1, 2],
    "relu": [0, 1],
    "depthwise": [0, 1],
    "dtype": [0, 1, 2],
    "per_channel": [0, 1],
    "input_zero_point": (0, 255),
    "weight_zero_point": (0, 255),
    "output_zero_point": (0, 255),
    **dict.fromkeys(FLOATS, (1e-4, 0.5)),
}


@dataclass(frozen=True)
class Field:
    """A run of bits: ``law`` is the name of what it follows or "" for a constant, ``at`` the bit of
    the value that its
    lowest bit holds, ``value`` the constant."""

    word: int
    lsb: int
    width: int
    law: str
    at: int = 0
    value: int = 0

    @property
    def mask(self) -> int:
        return (2**self.width - 1) * 2**self.lsb


@cache
def layout() -> tuple[Field, ...]:
    """The fields of ``LAYOUT``; each word is full."""
    out = []
    for word, line in enumerate(LAYOUT.strip().splitlines()):
        lsb = 0
        for part in line.split():
            law, width, at, value = re.fullmatch(
                r"(\w*):(\d+)(?:@(\d+))?(?:=(\d+))?", part
            ).groups()  # type: ignore[union-attr]
            out.append(Field(word, lsb, int(width), law, int(at or 0), int(value or 0)))
            lsb += int(width)
        assert lsb == 32, (word, lsb)
    return tuple(out)


def driven(hard: bool = True) -> list[Field]:
    """The fields that follow from parameters: no constants, no addresses, without ``hard`` none
    of the hard ones.
    """
    return [
        one
        for one in layout()
        if one.law and one.law not in ADDRESSES and (hard or one.law not in HARD)
    ]


def decorrelated(n: int, seed: int) -> pd.DataFrame:
    """Layers whose parameters have nothing to do with each other, and now and then a large one."""
    random = np.random.default_rng(seed)

    def size(low: int, usual: int, most: int) -> np.ndarray:
        return np.where(
            random.random(n) < 0.2, random.integers(usual, most, n), random.integers(low, usual, n)
        )

    frame = pd.DataFrame(
        {
            "input_w": size(8, 512, 8000),
            "input_h": size(8, 512, 8000),
            "input_c": size(1, 1024, 60_000),
            "output_c": random.integers(1, 1017, n),
            "kernel_w": random.integers(1, 8, n),
            "kernel_h": random.integers(1, 8, n),
            "stride": random.integers(1, 4, n),
            "padding": random.integers(0, 4, n),
        }
    )
    return _with_modes(frame, random)


def confounded(n: int, seed: int) -> pd.DataFrame:
    """Layers as models have them: square images and kernels, sizes of powers of two, padding of
    half a kernel.
    """
    random = np.random.default_rng(seed)
    size = random.choice([8, 16, 32, 64, 128, 256], n)
    kernel = random.choice([1, 3, 5, 7], n)
    frame = pd.DataFrame(
        {
            "input_w": size,
            "input_h": size,
            "input_c": random.choice([4, 8, 16, 32, 64, 128, 256], n),
            "output_c": random.choice([8, 16, 32, 64, 128, 256, 512], n),
            "kernel_w": kernel,
            "kernel_h": kernel,
            "stride": random.integers(1, 3, n),
            "padding": kernel // 2,
        }
    )
    return _with_modes(frame, random)


def _with_modes(frame: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    n = len(frame)
    few = {
        "pooling": 3,
        "relu": 2,
        "depthwise": 2,
        "dtype": 3,
        "per_channel": 2,
        "input_zero_point": 256,
        "weight_zero_point": 256,
        "output_zero_point": 256,
    }
    scales = {
        name: np.exp(random.uniform(np.log(1e-4), np.log(0.5), n)).astype(np.float32)
        for name in FLOATS
    }
    return frame.assign(
        **{name: random.integers(0, count, n) for name, count in few.items()}, **scales
    )


def values(layers: pd.DataFrame, seed: int) -> dict[str, np.ndarray]:
    """The value of each law for each layer, int64; addresses are new in every capture."""
    random = np.random.default_rng([seed, 77])
    p: Mapping[str, np.ndarray] = {
        name: layers[name].to_numpy(np.float32 if name in FLOATS else np.int64) for name in RANGES
    }
    out = {
        name: p[name]
        for name in (
            "input_w",
            "input_h",
            "input_c",
            "output_c",
            "kernel_w",
            "kernel_h",
            "relu",
            "depthwise",
            "per_channel",
            "input_zero_point",
            "weight_zero_point",
            "output_zero_point",
        )
    }
    width = (p["input_w"] + 2 * p["padding"] - p["kernel_w"]) // p["stride"] + 1
    height = (p["input_h"] + 2 * p["padding"] - p["kernel_h"]) // p["stride"] + 1
    scale = (
        (p["input_scale"] * p["weight_scale"] / p["output_scale"]).view(np.uint32).astype(np.int64)
    )
    weights = p["output_c"] * p["input_c"] * p["kernel_w"] * p["kernel_h"]
    many = weights > 0x68000
    addresses = {
        name: random.integers(0x100_0000, 0x200_0000, len(layers)) * 64
        for name in sorted(ADDRESSES)
    }
    return (
        out
        | addresses
        | {
            "type": TYPES[p["dtype"]],
            "pooling": POOLINGS[p["pooling"]],
            "unpooled": (p["pooling"] == 0).astype(np.int64),
            "output_w": width,
            "output_h": height,
            "padding": -p["padding"] % 16,
            "multiplier": scale // 2**8 % 2**15,
            "right_shift": 150 - scale // 2**23,
            "share": -(-p["output_c"] // 8),
            "groups": -(-p["input_c"] // 16),
            "log_channels": _log(p["output_c"]),
            "tile_w": np.minimum(width, 64),
            "tile_h": np.where(p["kernel_h"] > 1, np.minimum(height, 48), np.minimum(height, 100)),
            "weights_mode": np.where(many, 3, 1),
            "pattern": np.where(many, 0x1F, 0),
            "cache_end": np.maximum(np.minimum(_align(weights + 0x400, 64), 0x40000), 0x600),
            "row_pitch": p["input_w"] * p["input_c"],
            "output_pitch": _align(width * p["output_c"], 64),
            "input_size": p["input_w"] * p["input_h"] * p["input_c"],
            "last_pixel": width * height - 1,
            "volume": p["kernel_w"] * p["kernel_h"] * p["input_c"],
            "stride_less": p["stride"] - 1,
            "kernel_h_less": p["kernel_h"] - 1,
            "parity": (p["input_h"] // 8 + p["input_w"] + p["output_c"] // 2) % 2,
        }
    )


def descriptors(layers: pd.DataFrame, seed: int = 0) -> np.ndarray:
    """The words of each layer, ``(N, 38) uint32``."""
    of = values(layers, seed)
    out = np.zeros((len(layers), layout()[-1].word + 1), np.uint32)
    for one in layout():
        value = of[one.law] // 2**one.at if one.law else np.full(len(layers), one.value)
        out[:, one.word] |= (value % 2**one.width * 2**one.lsb).astype(np.uint32)
    return out


def addresses() -> np.ndarray:
    """``(38,) uint32``: the bits that hold addresses."""
    out = np.zeros(layout()[-1].word + 1, np.uint32)
    for one in layout():
        if one.law in ADDRESSES:
            out[one.word] |= np.uint32(one.mask)
    return out


def _align(x: np.ndarray, to: int) -> np.ndarray:
    return -(-x // to) * to


def _log(x: np.ndarray) -> np.ndarray:
    """The least n with 2**n >= x."""
    return np.array([int(one - 1).bit_length() for one in x])


@dataclass(frozen=True)
class Score:
    """What predictions of unseen layers are worth: names of fields ``found`` and ``missed``,
    ``claimed`` bits and the
    ``wrong`` ones (word, bit) of them; bits that the captures never moved count nowhere."""

    found: tuple[str, ...]
    missed: tuple[str, ...]
    claimed: int
    wrong: tuple[tuple[int, int], ...]

    @property
    def recall(self) -> float:
        return len(self.found) / max(len(self.found) + len(self.missed), 1)

    @property
    def precision(self) -> float:
        return 1 - len(self.wrong) / max(self.claimed, 1)


def score(laws: Any, hard: bool = False, n: int = 3000, seed: int = 1000) -> Score:
    """Laws of ``descriptors`` on layers they have not seen.

    A field is found where all its bits that the captures moved are right on every layer; a bit is
    claimed where the mask has it on any layer, and wrong where any of these is.
    """
    layers = decorrelated(n, seed)
    truth = descriptors(layers, seed)
    words, mask = laws.predict(layers)
    moved = np.bitwise_or.reduce(laws.words ^ laws.words[0], axis=0) & ~addresses()
    off = np.bitwise_or.reduce((words ^ truth) & moved, axis=0)
    claimed = np.bitwise_or.reduce(mask, axis=0) & moved
    wrong = np.bitwise_or.reduce((words ^ truth) & mask, axis=0) & moved
    fields = [one for one in driven(hard) if moved[one.word] & one.mask]
    names = {
        right: tuple(
            f"{one.law} (w{one.word}_{one.lsb}_{one.width})"
            for one in fields
            if bool(off[one.word] & one.mask) != right
        )
        for right in (True, False)
    }
    places = tuple(
        (word, bit)
        for word in range(len(wrong))
        for bit in range(32)
        if int(wrong[word]) // 2**bit % 2
    )
    return Score(names[True], names[False], sum(int(one).bit_count() for one in claimed), places)
