"""Weights, biases and multipliers of a capture's convolutions, decoded and encoded again.

A job reads a stream of weights and, for each output channel, a record of 10 bytes: the bias of 40
bits, the multiplier of 32, the right shift of 6.  A part with two cores gives each core every
second output channel, with a stream and records of its own.  Source: V (``sources.csv``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from npulab.npus.ethosu.facts import FACTS
from npulab.npus.ethosu.operations import Operation, operations, origin
from npulab.npus.ethosu.traversal import Order
from npulab.npus.ethosu.weights import decode, encode_slices, slices
from npulab.npus.kit import Capture, Unsupported, buffer_of

FIELDS = ("multiplier", "right_shift")
RECORD = np.dtype([("low", "<u4"), ("high", "i1"), (FIELDS[0], "<u4"), (FIELDS[1], "u1")])
OUTPUTS = "outputs_at_once"  # feature: output channels of the smallest block
INPUTS = 8  # input channels of the smallest block
CORES = ("", "1")  # what stands in the names of a core's registers


class Records(NamedTuple):
    """Of each output channel ``(n,)`` int64: bias, multiplier, right shift."""

    bias: np.ndarray
    multiplier: np.ndarray
    right_shift: np.ndarray

    @classmethod
    def of(cls, data: bytes) -> Records:
        """Those that bytes hold.

        >>> Records.of(bytes([254, 255, 255, 255, 255, 0, 0, 0, 64, 38]))
        Records(bias=array([-2]), multiplier=array([1073741824]), right_shift=array([38]))
        """
        rows = np.frombuffer(data, RECORD)
        high, low, *rest = (rows[name].astype(np.int64) for name in ("high", "low", *FIELDS))
        return cls(high * 2**32 + low, *rest)

    def encoded(self) -> bytes:
        """The bytes of the records."""
        rows = np.empty(len(self.bias), RECORD)
        rows["high"], rows["low"] = np.divmod(self.bias, 2**32)
        rows["multiplier"], rows["right_shift"] = self.multiplier, self.right_shift % 2**6
        return rows.tobytes()


class Part(NamedTuple):
    """What one core computes of a job: its output channels among the layer's, their order, where
    stream and records lie among the coefficients, and the tasks that moved them."""

    channels: slice
    order: Order
    stream: slice
    records: slice
    moved: tuple[int, ...]

    @property
    def outputs(self) -> int:
        """Output channels."""
        return len(range(self.channels.stop)[self.channels])


def parts_of(capture: Capture, operation: Operation) -> Iterator[Part]:
    """The parts of a convolution's jobs; Unsupported for a chip whose streams are not known, and
    for
    coefficients that were not moved to where a job reads them."""
    features, first = FACTS.features(capture.chip), 0
    if OUTPUTS not in features:
        raise Unsupported(
            f"chip: got {capture.chip}, allowed is one whose order of weights is known"
        )
    v, of_chip = operation.first, features.get("cores", 1)
    dilation = v.pair("KERNEL_STRIDE.dilation_{1}_m1")
    for task, job, outputs in zip(operation.tasks, operation.jobs, operation.slices, strict=True):
        cores = min(of_chip, outputs)
        for core in range(cores):
            deep = (job["OFM_BLK_DEPTH_M1"] + of_chip - core) // of_chip
            order = Order(
                deep,
                v.command == "depthwise",
                bool(v["KERNEL_STRIDE.part_kernel_first"]),
                8,
                (INPUTS, features[OUTPUTS]),
                dilation,
            )
            found = {}
            moved: list[int] = []
            for what in ("WEIGHT", "SCALE"):
                name = f"{what}{CORES[core]}"
                size = job[f"{name}_LENGTH"]
                at, tasks = origin(capture, task, job[f"{what}_REGION"], job[f"{name}_BASE"], size)
                found[what], moved = slice(at, at + size), moved + tasks
            yield Part(
                slice(first + core, first + outputs, cores),
                order,
                found["WEIGHT"],
                found["SCALE"],
                tuple(moved),
            )
        first += outputs


def weights_and_records(capture: Capture, operation: Operation) -> tuple[np.ndarray, Records]:
    """The weights ``OHWI int16`` (depthwise ``1HWC``), less their zero point, and the records of a
    convolution's output channels.

    Raises ValueError for a stream or records that are not those of as many weights.
    """
    data, v, parts = (
        buffer_of(capture, "coefficients"),
        operation.first,
        [*parts_of(capture, operation)],
    )
    depthwise, outputs = v.command == "depthwise", sum(operation.slices)
    kernel = v.pair("KERNEL_{}_M1")
    if depthwise:
        inputs = 1
    else:
        inputs = v["IFM_DEPTH_M1"] + 1
    weights = np.empty((outputs, *kernel, inputs), np.int16)
    records = np.empty((3, outputs), np.int64)
    for part in parts:
        weights[part.channels] = part.order.unpack(
            decode(data[part.stream]), (part.outputs, *kernel, inputs)
        )
        size = part.outputs * RECORD.itemsize
        if len(data[part.records]) < size:
            raise ValueError(
                f"SCALE_LENGTH: got {len(data[part.records])} bytes, allowed for "
                f"{part.outputs} output channels are at least {size}"
            )
        records[:, part.channels] = Records.of(data[part.records][:size])
    return weights.transpose(3, 1, 2, 0) if depthwise else weights, Records(*records)


def recode(capture: Capture) -> bytes:
    """The coefficient buffer with every stream and every record decoded and encoded again; what
    lies around them stays."""
    data = bytearray(buffer_of(capture, "coefficients"))
    for operation in operations(capture):
        for part in parts_of(capture, operation) if operation.weighs else ():
            data[part.stream] = encode_slices(slices(bytes(data[part.stream])))
            size, at = part.outputs * RECORD.itemsize, part.records.start
            data[at : at + size] = Records.of(bytes(data[at : at + size])).encoded()
    return bytes(data)
