"""Coefficients of a capture decoded and encoded again, bit by bit, and what its words alone say of
its layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from npulab.npus.ane import coefficients
from npulab.npus.ane.lifting import BLOCK, NEURAL, Task
from npulab.npus.ane.lowering import TABLE
from npulab.npus.ane.tables import entries
from npulab.npus.kit import Capture, Item, buffer_of
from npulab.quant.layers import Conv2D, Layer, Network

# slots of an activation table: what they are, in order
SLOTS = [*4 * ["limit"], *33 * ["knot"], *4 * ["line"], "step", "mode", *21 * ["fill"]]
FIRST_KNOT = SLOTS.index("knot")
CONVOLUTION = ("input channels", "kernel_h", "kernel_w", "stride_h", "stride_w")
KERNEL = ("Kh", "Kw", "Sy", "Sx")  # of ConvCfg


def recode(capture: Capture) -> bytes:
    """The coefficient buffer with every kernel and activation table decoded and encoded again,
    zeros elsewhere.

    Raises ``Unsupported`` and ValueError as ``lift`` does, for a capture without coefficients too.
    """
    out = bytearray(len(buffer_of(capture, "coefficients")))
    for task in _users(capture):
        places = coefficients.places_of(task.v).tolist()
        if task.convolves:
            kernel, data, at = task.kernel
            encoded = coefficients.encode(
                kernel,
                *coefficients.decode(kernel, data, at),
                coefficients.table_of(kernel, data, at),
            )
        else:
            encoded = task.table.encode() * len(places)
        offset = 0
        for begin, size in places:
            out[begin : begin + size] = encoded[offset : offset + size]
            offset += size
    return bytes(out)


def explain(capture: Capture) -> list[Item]:
    """An item for every run of bits of the coefficient buffer, in order.

    Kinds are those of ``coefficients.explain`` (bias, weight, count, mask, fill), and of an
    activation table limit, knot, line, step and mode; what no task reads is fill.  Raises as
    ``recode``.
    """
    items: list[Item] = []
    tables: set[int] = set()
    for task in _users(capture):
        if task.convolves:
            items += coefficients.explain(*task.kernel)
        elif task.table:
            tables |= {begin for begin, _ in coefficients.places_of(task.v).tolist()}
    data = buffer_of(capture, "coefficients")
    for begin in tables:
        items += _slots(data, begin)
    return [*_filled(sorted(items, key=lambda one: one.bit), 8 * len(data))]


def outline(subject: Capture | Layer) -> Mapping[str, Any]:
    """Outputs (how many), output and input channels and, of a convolution, kernel and stride, by
    name.

    Of a capture as the words of its last task have them; of one with several tasks the outputs of
    that one alone, and no kernel where a table comes behind it. Nothing of a layer that is not
    float16.
    """
    if isinstance(subject, Capture):
        return _of_words(subject)
    layer: Any = subject
    if isinstance(subject, Network):
        layer = subject.layers[-1]
    if layer.dtype != "float16":
        return {}
    out = {"outputs": math.prod(layer.output_shape), "channels": layer.output_shape[-1]}
    if isinstance(layer, Conv2D):
        numbers = layer.input_shape[2], *layer.kernel, *layer.stride
        out |= dict(zip(CONVOLUTION, numbers, strict=True))
    return out


def _of_words(capture: Capture) -> dict[str, Any]:
    if not capture.jobs or capture.jobs[-1].block != BLOCK or BLOCK not in capture.maps:
        return {}
    last = Task.of(capture, len(capture.jobs) - 1)
    v = last.v
    groups = v["Common.GroupConvCfg.NumGroups"]
    channels = groups * v["Common.Cout.Cout"]
    if v["TileDMADst.PlaneStride.PlaneStride"]:  # a part of a larger result
        channels = (
            v["TileDMADst.DepthStride.DepthStride"] // v["TileDMADst.PlaneStride.PlaneStride"]
        )
    out = {
        "outputs": channels * v["Common.OutDim.Hout"] * v["Common.OutDim.Wout"],
        "channels": channels,
    }
    if last.convolves and v["NE.MACCfg.NonlinearMode"] != TABLE:
        numbers = groups * v["Common.Cin.Cin"], *(v[f"Common.ConvCfg.{name}"] for name in KERNEL)
        out |= dict(zip(CONVOLUTION, numbers, strict=True))
    return out


def _users(capture: Capture) -> Iterator[Task]:
    """The tasks that read coefficients."""
    for number in range(len(capture.jobs)):
        task = Task.of(capture, number)
        if task.v["Common.Cfg.TaskType"] != NEURAL or not task.v["Header.Header[9].KBE0"]:
            continue
        if not task.convolves and task.v["NE.MACCfg.NonlinearMode"] != TABLE:
            raise task.refusal(
                f"NE.MACCfg.NonlinearMode: got {task.v['NE.MACCfg.NonlinearMode']} with "
                "coefficients "
                f"and no convolution, covered is {TABLE} (a table)"
            )
        yield task


def _slots(data: bytes, begin: int) -> Iterator[Item]:
    halves = np.frombuffer(data, "<u2", entries.SIZE // 2, begin).tolist()
    for slot, kind in enumerate(SLOTS):
        yield Item(
            8 * begin + 16 * slot,
            16,
            kind,
            halves[slot],
            plane=slot - FIRST_KNOT if kind == "knot" else None,
        )


def _filled(items: list[Item], end: int) -> Iterator[Item]:
    """The items with what lies between them."""
    place = 0
    for one in [*items, Item(end, 0, "fill")]:
        if one.bit > place:
            yield Item(place, one.bit - place, "fill")
        if one.bit >= place and one.bits:
            yield one
            place = one.bit + one.bits
