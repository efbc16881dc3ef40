"""Coefficients of H13 encoded and decoded: weights, bias and activation table of a kernel.

The coefficients of a kernel are one buffer for each of at most 16 engines.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy import ndarray as Array

from npulab.npus.ane.coefficients import fast
from npulab.npus.ane.coefficients.items import explain
from npulab.npus.ane.coefficients.kernel import (
    Kernel,
    from_registers,
    kernel_of,
    places,
    places_of,
    planes,
)
from npulab.npus.kit import refuse_if

__all__ = [
    "Kernel",
    "decode",
    "encode",
    "engines",
    "explain",
    "from_registers",
    "kernel_of",
    "places_of",
    "table_of",
]


def encode(kernel: Kernel, weights: Array, bias: Array | None = None, table: bytes = b"") -> bytes:
    """Return the buffers of a kernel's engines, one after another.

    ``weights`` are float16 of ``kernel.shape`` (OHWI, depthwise 1HWC), ``bias`` is (outputs,)
    float16 if the kernel has a bias, ``table`` has 128 bytes if the kernel has an activation table.
    Each buffer is filled with zeros up to a multiple of 64 bytes. A sparse kernel leaves out
    weights of 0 and of -0.0; ``decode`` returns both as 0. Raises ValueError for another shape,
    type or size.

    >>> data = encode(Kernel(2, 3, bias=True), np.full((2, 1, 1, 3), 3, np.float16), np.ones(2, np.float16))
    >>> data[64:72].hex(" ", 2)
    '003c 0042 0042 0042'
    """  # noqa: E501
    refuse_if(
        len(table) != kernel.table_bytes,
        "coefficients: table",
        f"{len(table)} bytes",
        f"with this kernel is {kernel.table_bytes}",
    )
    out = bytearray(fast.write(kernel, *fast.halves_of(kernel, weights, bias)))
    if kernel.table:
        for offset, _ in engines(kernel, weights).tolist():
            out[offset : offset + len(table)] = table
    return bytes(out)


def decode(kernel: Kernel, data: bytes, at: Array | None = None) -> tuple[Array, Array | None]:
    """Return the weights, float16 of ``kernel.shape``, and the bias (outputs,), None without one.

    This is the inverse of ``encode``; ``table_of`` returns the activation table. Without ``at``,
    ``data`` are the buffers one after another. With ``at``, ``data`` is a section, and ``at`` has
    (offset, size) in bytes of each engine's buffer in it, as ``places_of`` reads from registers.
    Raises ValueError, with engine and byte, for sizes, fill, counts or masks that contradict the
    kernel, for an absent tap that is not 0, and for a stored weight of 0 in a sparse kernel.

    >>> decode(Kernel(1, 1), bytes.fromhex("0040").ljust(64, bytes(1)))[0].ravel()
    array([2.], dtype=float16)
    """
    joined = fast.gathered(data, at)
    if at is not None and not kernel.sparse:
        fast.refuse_places(at, engines(kernel))
    halves, bias = fast.read(kernel, joined)
    weights, bias = fast.tensors_of(kernel, halves, bias)
    # The places of a sparse kernel's buffers depend on its weights, so they are compared last.
    if at is not None and kernel.sparse:
        fast.refuse_places(at, engines(kernel, weights))
    return weights, bias


def table_of(kernel: Kernel, data: bytes, at: Array | None = None) -> bytes:
    """Return the 128 bytes of a kernel's activation table, empty if the kernel has none.

    Every engine's buffer begins with the table. ``data`` and ``at`` are those of ``decode``. Raises
    the errors of ``decode``, and ValueError if engines have different tables.
    """
    weights, _ = decode(kernel, data, at)
    joined = fast.gathered(data, at)
    offsets = engines(kernel, weights)[:, 0].tolist()
    tables = [joined[offset : offset + kernel.table_bytes] for offset in offsets]
    for engine, table in enumerate(tables):
        refuse_if(
            table != tables[0],
            f"coefficients: engine {engine}, byte 0 of its buffer",
            "a table that is not that of engine 0",
            "is the same in all",
        )
    return tables[0]


def engines(kernel: Kernel, weights: Array | None = None) -> Array:
    """Return offset and size in bytes of each engine's buffer, (engines, 2) int64.

    The sizes of a sparse kernel depend on its weights; without ``weights`` it raises ValueError.

    >>> engines(Kernel(64, 64, 3, 3))[:2].tolist()
    [[0, 4608], [4608, 4608]]
    """
    table = planes(kernel)
    if not kernel.sparse:
        return places(kernel, table).engines
    if weights is None:
        raise ValueError(
            "kernel: sparse: got no weights, allowed are the weights whose zeros decide the sizes"
        )
    halves, _ = fast.halves_of(replace(kernel, bias=False), weights, None)
    nonzero = (halves & fast.MAGNITUDE != 0).sum((1, 2))
    before = np.concatenate([[0], np.cumsum(nonzero)])
    stored = before[table.first + table.lanes] - before[table.first]
    return places(kernel, table, stored).engines
