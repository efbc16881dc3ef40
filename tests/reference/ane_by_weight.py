"""Kernel buffers written and read one weight after another: what the fast ways are compared with.

It shares no layout with them: planes, places and the order of taps are found anew, step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from npulab.npus.ane.coefficients.kernel import Kernel

Cell = (
    tuple[int, int, int, int] | None
)  # (output, row, column, input of the group) of a weight, or none


def channels_of(kernel: Kernel) -> Iterator[tuple[int, list[list[int]]]]:
    """(engine, channels by plane) of each run of planes that is filled up to 64 bytes."""
    parts = 1 if kernel.depthwise else kernel.groups
    share = kernel.outputs // parts
    for engine in range(min(16, share)):
        for part in range(parts):
            run, begin = [], 0
            while begin < share:
                lanes = 1
                while (
                    not kernel.depthwise
                    and 32 * lanes <= share - begin
                    and 2 * lanes <= (kernel.lanes or (32 if kernel.small else 16))
                ):
                    lanes *= 2
                first = begin + engine * lanes
                if first + lanes <= share:
                    run.append([part * share + first + lane for lane in range(lanes)])
                begin += 16 * lanes
            if run:
                yield engine, run


def cells_of(kernel: Kernel, channels: list[int], width: int) -> Iterator[Cell]:
    """The weights of a plane in the order in which they lie; ``width`` lanes, of which the last
    may be none.
    """
    high, wide = kernel.stride
    shift = wide // kernel.columns
    reach = kernel.kernel_w + (kernel.columns - 1) * shift
    for depth in range(kernel.inputs // kernel.groups):
        for phase_y in range(high):
            for phase_x in range(wide):
                for row in range(phase_y, phase_y + -(-kernel.kernel_h // high) * high, high):
                    for column in range(phase_x, phase_x + -(-reach // wide) * wide, wide):
                        for lane, copy in product(range(width), range(kernel.columns)):
                            tap = column - copy * shift
                            there = (
                                row < kernel.kernel_h
                                and 0 <= tap < kernel.kernel_w
                                and lane < len(channels)
                            )
                            yield (channels[lane], row, tap, depth) if there else None


def halves_of(kernel: Kernel, weights: np.ndarray) -> Callable[[Cell], int]:
    """The halfword of a cell of float16 weights."""
    bits = np.ascontiguousarray(weights).view(np.uint16)

    def half(cell: Cell) -> int:
        return 0 if cell is None else int(bits[index_of(kernel, cell)])

    return half


def index_of(kernel: Kernel, cell: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Where the weight of a cell is in the tensor."""
    output, row, column, depth = cell
    return (0, row, column, output) if kernel.depthwise else (output, row, column, depth)


def write_by_weight(
    kernel: Kernel, weights: np.ndarray, bias: np.ndarray | None, table: bytes = b""
) -> bytes:
    """The buffer of float16 weights and bias, and of an activation table."""
    out, half, before = bytearray(), halves_of(kernel, weights), -1
    for engine, run in channels_of(kernel):
        if engine != before:
            out += table
            before = engine
        for channels in run:
            if bias is not None:
                for channel in channels * kernel.columns:
                    out += int(bias.view(np.uint16)[channel]).to_bytes(2, "little")
            if not kernel.sparse:
                for cell in cells_of(kernel, channels, len(channels)):
                    out += half(cell).to_bytes(2, "little")
                continue
            cells = list(cells_of(kernel, channels, max(len(channels), 4 if kernel.small else 2)))
            body = bytearray()
            for at in range(0, len(cells), 8):
                values = [half(cell) for cell in cells[at : at + 8]]
                body.append(sum(2**bit for bit, value in enumerate(values) if value % 0x8000))
                for value in values:
                    if value % 0x8000:
                        body += value.to_bytes(2, "little")
            out += len(body).to_bytes(3, "little") + body
        out += bytes(-len(out) % 64)
    return bytes(out)


def read_by_weight(kernel: Kernel, data: bytes) -> tuple[np.ndarray, np.ndarray | None]:
    """Float16 weights and bias of a buffer that follows the format."""
    weights, bias = np.zeros(kernel.shape, np.uint16), np.zeros(kernel.outputs, np.uint16)
    at, before = 0, -1

    def take(size: int) -> int:
        nonlocal at
        at += size
        return int.from_bytes(data[at - size : at], "little")

    for engine, run in channels_of(kernel):
        if kernel.table and engine != before:
            at += 128
            before = engine
        for channels in run:
            for channel in channels * kernel.bias * kernel.columns:
                bias[channel] = take(2)
            width = max(len(channels), 4 if kernel.small else 2) if kernel.sparse else len(channels)
            if kernel.sparse:
                take(3)
            mask = 0xFF
            for number, cell in enumerate(cells_of(kernel, channels, width)):
                if kernel.sparse and number % 8 == 0:
                    mask = take(1)
                value = take(2) if mask // 2 ** (number % 8) % 2 else 0
                if cell is not None:
                    weights[index_of(kernel, cell)] = value
        at += -at % 64
    return weights.view(np.float16), bias.view(np.float16) if kernel.bias else None
