"""The simulated tensor processor: one job moves a window of an image to where its output loops
point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npulab.npus.kit import DEVICE, Hang, Memory, hang_if, known
from npulab.npus.vivante.facts import EXPECTED

LOOPS = 6  # with counts; another, without an end, is around them
MOST_ELEMENTS, AT_ONCE = 2 ** 24, 2 ** 18
ADDRESSES = 2 ** 32


def move(t: Mapping[str, Any], memory: Memory) -> None:
    """Run a job of these values; raises Hang if the hardware would hang or what it would do is not
    known."""
    known(t, EXPECTED["move"], f"TP job: {DEVICE}")
    if t["in_zp"] != t["out_zp"]:
        raise Hang(f"TP job: its zero points are {t['in_zp']} and {t['out_zp']}, the simulated unit knows equal ones")
    (top, rows, tile_h), (left, columns, tile_w) = (_window(t, axis) for axis in "yx")
    plane, tile = rows * columns, tile_h * tile_w
    elements = t["in_image_z_size"] * plane
    if elements > MOST_ELEMENTS:
        raise Hang(f"TP job: it moves {elements} bytes, the simulated unit at most {MOST_ELEMENTS}")
    for start in range(0, elements, AT_ONCE):
        numbers = np.arange(start, min(start + AT_ONCE, elements), dtype=np.int64)
        z, which, place = numbers // plane, numbers % plane // tile, numbers % tile
        y = top + which // (columns // tile_w) * tile_h + place // tile_w
        x = left + which % (columns // tile_w) * tile_w + place % tile_w
        inside = (y >= 0) & (y < t["in_image_y_size"]) & (x >= 0) & (x < t["in_image_x_size"])
        values = np.full(len(numbers), t["in_zp"], np.uint8)
        values[inside] = memory.gather((t["in_image_base_address"] + z[inside] * t["in_image_slice"]
                                      + y[inside] * t["in_image_stride"] + x[inside]) % ADDRESSES)
        memory.scatter(_written(t, numbers), values)


def _window(t: Mapping[str, Any], axis: str) -> tuple[int, int, int]:
    """(start, length, tile) of the window's rows or columns, which whole tiles fill."""
    start, end, size = t[f"in_window_{axis}_start"], t[f"in_window_{axis}_end"], t[f"in_tile_{axis}_size"]
    length = end + 1 - start
    if size == 0 or t[f"in_tile_{axis}_inc"] != size or length < 1 or length % size:
        raise Hang(f"TP job: in {axis} a window from {start} to {end} in tiles of {size}, "
                   f"{t[f'in_tile_{axis}_inc']} apart")
    return start, length, size


def _written(t: Mapping[str, Any], numbers: np.ndarray) -> np.ndarray:
    """The address of each element by its number."""
    out = np.full(numbers.shape, t["out_image_base_address"], np.int64)
    for loop in range(LOOPS):
        count = t[f"out_loop_{loop}_count"]
        hang_if(count == 0, f"TP job: out_loop_{loop}_count is 0")
        out += numbers % count * t[f"out_loop_{loop}_inc"]
        numbers = numbers // count
    return (out + numbers * t[f"out_loop_{LOOPS}_inc"]) % ADDRESSES
