"""Tensors of a kernel, and what its engines read, brought into the order of the buffer and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from npulab.npus.ane.coefficients.kernel import Kernel, Planes, places, planes
from npulab.support.refuse import refuse_if


def halves_of(kernel: Kernel, weights: Any, bias: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Float16 weights and bias as (outputs, depth, slots) and (outputs, bias_rows) uint16;
    ValueError for others."""
    weights = np.asarray(weights)
    refuse_if(weights.dtype != np.float16 or weights.shape != kernel.shape, "coefficients: weights",
              f"shape {weights.shape} {weights.dtype}", f"is {kernel.shape} float16")
    if (bias is not None) != kernel.bias:
        raise ValueError(f"coefficients: bias: got {'none' if bias is None else 'one'}, allowed with this kernel is "
                         f"{'one' if kernel.bias else 'none'}")
    if bias is not None:
        bias = np.asarray(bias)
        refuse_if(bias.dtype != np.float16 or bias.shape != (kernel.outputs,), "coefficients: bias",
                  f"shape {bias.shape} {bias.dtype}", f"is ({kernel.outputs},) float16")
        bias = np.repeat(np.ascontiguousarray(bias, "<f2").view("<u2")[:, None], kernel.bias_rows, 1)
    order = (3, 0, 1, 2) if kernel.depthwise else (0, 3, 1, 2)
    rows = np.ascontiguousarray(weights.transpose(order), "<f2").view("<u2").reshape(kernel.outputs, kernel.depth, -1)
    return _stored(kernel, rows), bias


def _stored(kernel: Kernel, rows: np.ndarray) -> np.ndarray:
    """(outputs, depth, taps) in the order in which they lie, with zeros for absent taps."""
    if kernel.stride == (1, 1):
        return rows
    return np.concatenate([rows, np.zeros((*rows.shape[:2], 1), rows.dtype)], 2)[..., kernel.taps()]


def tensors_of(kernel: Kernel, halves: np.ndarray, bias: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """The inverse of ``halves_of``; ValueError for a halfword that is set where the kernel has no
    tap, and for one that lies there several times and is not always the same."""
    rows = halves
    if kernel.stride != (1, 1):
        taps = kernel.taps()
        there = taps >= 0
        rows = np.empty((kernel.outputs, kernel.depth, kernel.kernel_h * kernel.kernel_w), "<u2")
        rows[..., taps[there]] = halves[..., there]
        _refuse_others(kernel, halves.reshape(kernel.outputs, -1), _stored(kernel, rows), 0)
    if bias is not None:
        _refuse_others(kernel, bias, bias[:, -1:], -kernel.bias_rows)
        bias = bias[:, 0]
    shape = (kernel.outputs, kernel.depth, kernel.kernel_h, kernel.kernel_w)
    order = (1, 2, 3, 0) if kernel.depthwise else (0, 2, 3, 1)
    weights = np.ascontiguousarray(rows.reshape(shape).transpose(order))
    return weights.view(np.float16), None if bias is None else np.ascontiguousarray(bias).view(np.float16)


def _refuse_others(kernel: Kernel, got: np.ndarray, allowed: np.ndarray, step: int) -> None:
    allowed = np.broadcast_to(allowed.reshape(kernel.outputs, -1), got.shape)
    wrong = np.argwhere(got != allowed)
    if len(wrong):
        channel, number = wrong[0].tolist()
        engine, byte = place_of(kernel, channel, step + number)
        raise ValueError(f"coefficients: engine {engine}, byte {byte} of its buffer: got "
                         f"0x{int(got[channel, number]):04x}, allowed is 0x{int(allowed[channel, number]):04x}: no tap "
                         "of the kernel, or one that lies there more than once")


def index_map(kernel: Kernel, table: Planes) -> tuple[np.ndarray, np.ndarray]:
    """Of a kernel that is not sparse: (outputs, bias_rows + depth * slots) int64 bytes at which
    biases and weights lie, and the (outputs,) engines.

    A halfword lies at ``plane + row * lanes + lane``, the bias in the first rows where there is
    one.
    """
    where = places(kernel, table)
    lane = np.arange(int(table.lanes.sum())) - np.repeat(np.cumsum(table.lanes) - table.lanes, table.lanes)
    channel = np.repeat(table.first, table.lanes) + lane
    rows = np.arange(kernel.bias_rows + kernel.depth * kernel.slots)
    out = np.empty((kernel.outputs, len(rows)), np.int64)
    out[channel] = (np.repeat(where.start, table.lanes) + 2 * lane)[:, None] \
        + 2 * np.repeat(table.lanes, table.lanes)[:, None] * rows
    engine = np.empty(kernel.outputs, np.int64)
    engine[channel] = np.repeat(table.engine, table.lanes)
    return out, engine


def place_of(kernel: Kernel, channel: int, step: int) -> tuple[int, int]:
    """Engine, and byte of its buffer, of a step of a channel of a kernel that is not sparse."""
    table = planes(kernel)
    byte, engines = index_map(kernel, table)
    engine, start = int(engines[channel]), places(kernel, table).engines[engines[channel], 0]
    return engine, int(byte[channel, kernel.bias_rows + step] - start)


def gathered(data: bytes, at: np.ndarray | None) -> bytes:
    """The engines' buffers one behind another, out of a section and the (offset, size) of each.

    Raises ValueError for places outside of the section, and for more bytes than it has.
    """
    if at is None:
        return data
    spans = np.asarray(at, np.int64).reshape(-1, 2).tolist()
    for engine, (offset, size) in enumerate(spans):
        if offset < 0 or size < 0 or offset + size > len(data):
            raise ValueError(f"coefficients: engine {engine}: got {size} bytes at byte {offset}, allowed is within the "
                             f"{len(data)} of the section")
    total = sum(size for _, size in spans)
    refuse_if(total > len(data), "coefficients", f"{total} bytes for {len(spans)} engines",
              f"are the {len(data)} of the section")
    return b"".join(data[offset:offset + size] for offset, size in spans)


def refuse_places(at: np.ndarray | None, engines: np.ndarray) -> None:
    """Raises ValueError where registers give another number of engines, or other sizes, than the
    kernel asks for."""
    if at is None:
        return
    given = np.asarray(at, np.int64).reshape(-1, 2)[:, 1].tolist()
    wanted = engines[:, 1].tolist()
    if given != wanted:
        first = next((i for i, (a, b) in enumerate(zip(given, wanted, strict=False)) if a != b),
                     min(len(given), len(wanted)))
        raise ValueError(f"coefficients: got {len(given)} engines, engine {first} with "
                         f"{(given + [0] * 16)[first]} bytes, allowed are {len(wanted)} engines, engine {first} with "
                         f"{(wanted + [0] * 16)[first]}")
