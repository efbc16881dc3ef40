"""Weights, biases and multipliers of a capture's convolutions, decoded and encoded again.

A job reads a stream of weights and, for each output channel, a record of 10 bytes: a bias of 40
bits, a multiplier of 32 bits and a right shift of 6 bits. A chip with two cores gives each core
every second output channel, with a stream and records of its own. Source: V (``sources.csv``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.npus.ethosu.facts import FACTS
from npulab.npus.ethosu.operations import Operation, Words, operations, origin
from npulab.npus.ethosu.traversal import Order
from npulab.npus.ethosu.weights import decode, encode_slices, slices
from npulab.npus.kit import Capture, Unsupported, buffer_of

# The bias has 40 bits: ``low`` are its bits 0 to 31, ``high`` its bits 32 to 39.
RECORD = np.dtype([("low", "<u4"), ("high", "i1"), ("multiplier", "<u4"), ("right_shift", "u1")])
# A small block of weights has INPUTS input channels; the feature OUTPUTS states its output
# channels. CORES: by core, what follows WEIGHT or SCALE in the names of its registers.
OUTPUTS = "outputs_at_once"
INPUTS = 8
CORES = ("", "1")


class Records(NamedTuple):
    """The bias, multiplier and right shift of each output channel, arrays ``(n,)`` int64."""

    bias: Array
    multiplier: Array
    right_shift: Array

    @classmethod
    def of(cls, data: bytes) -> Records:
        """Read the records from bytes, 10 for each channel.

        >>> Records.of(bytes([254, 255, 255, 255, 255, 0, 0, 0, 64, 38]))
        Records(bias=array([-2]), multiplier=array([1073741824]), right_shift=array([38]))
        """
        rows = np.frombuffer(data, RECORD)
        bias = rows["high"].astype(np.int64) * 2**32 + rows["low"]
        return cls(bias, rows["multiplier"].astype(np.int64), rows["right_shift"].astype(np.int64))

    def encoded(self) -> bytes:
        """Return the records as bytes, 10 for each channel; the inverse of ``of``."""
        rows = np.empty(len(self.bias), RECORD)
        rows["high"], rows["low"] = np.divmod(self.bias, 2**32)
        rows["multiplier"] = self.multiplier
        rows["right_shift"] = self.right_shift % 2**6
        return rows.tobytes()


class CorePart(NamedTuple):
    """The share of a job that one core computes.

    ``channels`` are the core's output channels, by their numbers in the layer; ``order`` is the
    order of its weights. ``stream`` and ``records`` are ranges of bytes of the coefficient buffer;
    ``moved`` are the numbers of the DMA jobs that moved these bytes.
    """

    channels: slice
    order: Order
    stream: slice
    records: slice
    moved: tuple[int, ...]

    @property
    def outputs(self) -> int:
        """The number of output channels that the core computes."""
        return len(range(self.channels.stop)[self.channels])


def parts_of(capture: Capture, operation: Operation) -> Iterator[CorePart]:
    """Yield each core's part of each job of a convolution. Raises Unsupported for a chip whose
    order of weights is not known, and for coefficients that were not moved to the place where a job
    reads them."""
    features = FACTS.features(capture.chip)
    if OUTPUTS not in features:
        raise Unsupported(
            f"chip: got {capture.chip}, allowed is a chip whose order of weights is known: one "
            "with the feature outputs_at_once in chips.csv"
        )
    of_chip = features.get("cores", 1)
    v = operation.first
    order = Order(
        0,
        v.command == "depthwise",
        bool(v["KERNEL_STRIDE.part_kernel_first"]),
        8,
        (INPUTS, features[OUTPUTS]),
        v.pair("KERNEL_STRIDE.dilation_{1}_m1"),
    )
    first = 0
    for task, job, outputs in zip(operation.tasks, operation.jobs, operation.slices, strict=True):
        cores = min(of_chip, outputs)
        for core in range(cores):
            # If the chip has n cores (``of_chip``), a core takes every n-th output of a block.
            depth = (job["OFM_BLK_DEPTH_M1"] + of_chip - core) // of_chip
            stream, moved = _core_place(capture, task, job, "WEIGHT", core)
            records, records_moved = _core_place(capture, task, job, "SCALE", core)
            channels = slice(first + core, first + outputs, cores)
            moves = (*moved, *records_moved)
            yield CorePart(channels, order._replace(block_depth=depth), stream, records, moves)
        first += outputs


def _core_place(
    capture: Capture, task: int, job: Words, data: str, core: int
) -> tuple[slice, list[int]]:
    """Return the bytes of the coefficient buffer that hold a core's weights (``data`` is WEIGHT) or
    records (SCALE), and the numbers of the DMA jobs that moved them.
    """
    name = f"{data}{CORES[core]}"
    size = job[f"{name}_LENGTH"]
    at, moved = origin(capture, task, job[f"{data}_REGION"], job[f"{name}_BASE"], size)
    return slice(at, at + size), moved


def weights_and_records(capture: Capture, operation: Operation) -> tuple[Array, Records]:
    """Return a convolution's weights ``OHWI int16`` (depthwise ``1HWC``), less their zero point,
    and the records of its output channels.

    Raises ValueError for a stream that has more or fewer weights than the layer, and for records
    that are fewer than its channels.
    """
    data = buffer_of(capture, "coefficients")
    parts = list(parts_of(capture, operation))
    v = operation.first
    inputs = 1
    if v.command != "depthwise":
        inputs = v["IFM_DEPTH_M1"] + 1
    outputs = sum(operation.slices)
    shape = (*v.pair("KERNEL_{}_M1"), inputs)
    weights = np.empty((outputs, *shape), np.int16)
    records = np.empty((3, outputs), np.int64)
    for part in parts:
        stream = decode(data[part.stream])
        weights[part.channels] = part.order.unpack(stream, (part.outputs, *shape))
        stored = data[part.records]
        size = part.outputs * RECORD.itemsize
        if len(stored) < size:
            raise ValueError(
                f"SCALE_LENGTH: got {len(stored)} bytes of records, allowed for {part.outputs} "
                f"output channels are at least {size}"
            )
        records[:, part.channels] = Records.of(stored[:size])
    if v.command == "depthwise":
        weights = weights.transpose(3, 1, 2, 0)
    return weights, Records(*records)


def recode(capture: Capture) -> bytes:
    """Return the coefficient buffer after decoding every stream and every record and encoding it
    again; bytes outside streams and records keep their values.
    """
    data = bytearray(buffer_of(capture, "coefficients"))
    for operation in operations(capture):
        if not operation.weighs:
            continue
        for part in parts_of(capture, operation):
            data[part.stream] = encode_slices(slices(bytes(data[part.stream])))
            start = part.records.start
            stored = slice(start, start + part.outputs * RECORD.itemsize)
            data[stored] = Records.of(bytes(data[stored])).encoded()
    return bytes(data)
