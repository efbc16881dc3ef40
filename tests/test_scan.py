"""The scan: every bit of toys and of simulated streams, with the fewest runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from npulab.layers import Conv2D
from npulab.scan import Probe, impulses, scan

HANG, CONTROL, DEAD = "hang", "control", "dead"


@dataclass(frozen=True)
class Toy:
    """A made-up NPU: magic bits that hang, bits that permute all weights, a zero point, a bias and weights per
    channel, and filling; ``data`` are its bytes, ``truth`` and ``places`` what its bits are."""

    layer: Conv2D
    bits: np.ndarray
    truth: np.ndarray
    places: np.ndarray
    weight_bits: int = 8
    dtype: Any = np.int16

    @property
    def data(self) -> bytes:
        return np.packbits(self.bits, bitorder="little").tobytes()

    def run(self, data: bytes, x: np.ndarray) -> np.ndarray | None:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        hang = self.truth == HANG
        if np.any(bits[hang] != self.bits[hang]):
            return None
        channels, height, width, depth = self.layer.weights.shape
        role = self.places[:, 0] >= 0
        body = bits[role].reshape(channels, -1).astype(np.int64)
        bias = body[:, :32] @ 2 ** np.arange(32)
        bias -= (bias >= 2 ** 31) * 2 ** 32
        weights = body[:, 32:].reshape(channels, depth, height, width, -1) @ 2 ** np.arange(self.weight_bits)
        turn = int(bits[8:14] @ 2 ** np.arange(6))
        weights = np.roll(weights, turn * 7 + 1 if turn else 0) if turn else weights
        weights = weights - 2 ** (self.weight_bits - 1) - int(bits[16:20] @ 2 ** np.arange(4))
        (top, bottom), (left, right) = self.layer.pads
        padded = np.pad(x.astype(np.int64), ((top, bottom), (left, right), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), (0, 1))
        windows = windows[::self.layer.stride[0], ::self.layer.stride[1]]
        out = np.einsum("yxirc,oirc->yxo", windows, weights) + bias
        info = np.iinfo(self.dtype)
        return np.clip(out, info.min, info.max).astype(self.dtype)


def toy(seed: int, channels: int = 16, kernel: int = 3, depth: int = 3, size: int = 8, weight_bits: int = 8,
        tail: int = 64, **layer: Any) -> Toy:
    rng = np.random.default_rng(seed)
    taps = kernel * kernel * depth
    each = 32 + taps * weight_bits
    count = -(-(64 + channels * each + tail) // 8) * 8
    bits = rng.integers(0, 2, count).astype(np.uint8)
    bits[:8] = bits[-4:] = 1
    bits[8:14] = 0
    truth = np.full(count, DEAD, "U7")
    truth[:8] = truth[-4:] = HANG
    truth[8:14] = truth[16:20] = CONTROL
    truth[64:64 + channels * each] = "data"
    places = np.full((count, 5), -1)
    for channel in range(channels):
        start = 64 + channel * each
        bits[start:start + 32] = 0
        places[start:start + 32, 0] = channel
        places[start:start + 32, 4] = range(32)
        for tap in range(taps):
            at = start + 32 + tap * weight_bits
            plane, cell = divmod(tap, kernel * kernel)
            places[at:at + weight_bits, :4] = channel, cell // kernel, cell % kernel, plane
            places[at:at + weight_bits, 4] = range(weight_bits)
    shape = Conv2D(np.zeros((channels, kernel, kernel, depth), np.uint8), np.zeros(channels, int), (size, size, depth),
                   **layer)
    return Toy(shape, bits, truth, places, weight_bits)


def inputs_of(one: Toy, seed: int = 0) -> list[Probe]:
    dense = np.random.default_rng(seed).integers(1, 4, one.layer.input_shape)
    return [Probe(image, image, 1.0) for image in (*impulses(one.layer), dense)]


@pytest.mark.parametrize("seed", range(6))
def test_every_bit_of_the_toy_within_the_goal(seed: int) -> None:
    one = toy(seed)
    found = scan(one.data, one.run, inputs_of(one), one.layer)
    np.testing.assert_array_equal(found.kinds, one.truth)
    assert found.certain.all()
    assert found.runs <= 300
    assert found.hangs <= 20
    data = one.truth == "data"
    np.testing.assert_array_equal(found.places[data, :4], one.places[data, :4])
    # an output of 16 bits does not tell bias bits from the sixteenth on apart
    told = data & (found.places[:, 4] >= 0)
    np.testing.assert_array_equal(found.places[told, 4], one.places[told, 4])
    assert told[data & (one.places[:, 4] < 15)].all()
