"""The coefficients of a capture encoded again and explained bit by bit, and the layer's outline.

An outline is a few numbers of a layer by name, such as its output channels and its kernel sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

import numpy as np

from npulab.npus.ane import coefficients
from npulab.npus.ane.lifting import BLOCK, NEURAL, TaskValues
from npulab.npus.ane.lowering import TABLE
from npulab.npus.ane.tables import entries
from npulab.npus.kit import Capture, Item, buffer_of
from npulab.quant.layers import Conv2D, Layer, Network

# The kind of each slot of an activation table, from slot 0 on.
SLOTS = [*4 * ["limit"], *33 * ["knot"], *4 * ["line"], "step", "mode", *21 * ["fill"]]
FIRST_KNOT = SLOTS.index("knot")
CONVOLUTION = ("input channels", "kernel_h", "kernel_w", "stride_h", "stride_w")
# The fields of Common.ConvCfg for the names of CONVOLUTION, without "input channels".
KERNEL = ("Kh", "Kw", "Sy", "Sx")


def recode(capture: Capture) -> bytes:
    """Return the coefficient buffer again: every kernel and table is decoded and encoded.

    All other bytes are 0. Raises ValueError for a capture without coefficients; raises
    ``Unsupported`` and ValueError for tasks that ``lift`` refuses.
    """
    out = bytearray(len(buffer_of(capture, "coefficients")))
    for task in _users(capture):
        places = coefficients.places_of(task.v).tolist()
        if task.convolves:
            kernel, data, at = task.kernel
            weights, bias = coefficients.decode(kernel, data, at)
            table = coefficients.table_of(kernel, data, at)
            encoded = coefficients.encode(kernel, weights, bias, table)
        else:
            encoded = task.table.encode() * len(places)
        offset = 0
        for begin, size in places:
            out[begin : begin + size] = encoded[offset : offset + size]
            offset += size
    return bytes(out)


def explain(capture: Capture) -> list[Item]:
    """Return an item for every run of bits of the coefficient buffer, in order.

    Kinds of kernels are those of ``coefficients.explain`` (bias, weight, table, count, mask, fill).
    The kinds of a task's activation table are limit, knot, line, step, mode and fill. Bytes that no
    task reads are fill. Raises the errors of ``recode``.
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
    return [*_filled(sorted(items, key=attrgetter("bit")), 8 * len(data))]


def outline(subject: Capture | Layer) -> Mapping[str, Any]:
    """Return the outline of a capture or layer, as numbers by name.

    ``outputs`` is the number of output elements, ``channels`` that of output channels; a
    convolution also has the names in ``CONVOLUTION``. A capture's outline is read from the words of
    its last task, without the names in ``CONVOLUTION`` if the task applies an activation table. A
    network's outline is that of its last layer. The outline is empty for a layer that is not
    float16, and for a capture whose last task is not one of H13.
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
    last = TaskValues.of(capture, len(capture.jobs) - 1)
    v = last.v
    groups = v["Common.GroupConvCfg.NumGroups"]
    channels = groups * v["Common.Cout.Cout"]
    plane = v["TileDMADst.PlaneStride.PlaneStride"]
    # The task may write only some channels of the output: its depth stride counts all channels.
    if plane:
        channels = v["TileDMADst.DepthStride.DepthStride"] // plane
    out = {
        "outputs": channels * v["Common.OutDim.Hout"] * v["Common.OutDim.Wout"],
        "channels": channels,
    }
    if last.convolves and v["NE.MACCfg.NonlinearMode"] != TABLE:
        numbers = groups * v["Common.Cin.Cin"], *(v[f"Common.ConvCfg.{name}"] for name in KERNEL)
        out |= dict(zip(CONVOLUTION, numbers, strict=True))
    return out


def _users(capture: Capture) -> Iterator[TaskValues]:
    """Yield the tasks of the neural engine that read coefficients.

    Raises ``Unsupported`` if a task reads coefficients without a convolution or activation table.
    """
    for number in range(len(capture.jobs)):
        task = TaskValues.of(capture, number)
        if task.v["Common.Cfg.TaskType"] != NEURAL or not task.v["Header.Header[9].KBE0"]:
            continue
        if not task.convolves and task.v["NE.MACCfg.NonlinearMode"] != TABLE:
            raise task.refusal(
                f"NE.MACCfg.NonlinearMode: got {task.v['NE.MACCfg.NonlinearMode']} with "
                f"coefficients and no convolution, covered is {TABLE} (a table)"
            )
        yield task


def _slots(data: bytes, begin: int) -> Iterator[Item]:
    halves = np.frombuffer(data, "<u2", entries.SIZE // 2, begin).tolist()
    for slot, kind in enumerate(SLOTS):
        knot = None
        if kind == "knot":
            knot = slot - FIRST_KNOT
        yield Item(8 * begin + 16 * slot, 16, kind, halves[slot], plane=knot)


def _filled(items: list[Item], end: int) -> Iterator[Item]:
    """Yield the items, and items of kind fill for all other bits up to bit ``end``.

    ``items`` are in order of their bits; an item that overlaps an earlier item is left out.
    """
    place = 0
    for item in [*items, Item(end, 0, "fill")]:
        if item.bit > place:
            yield Item(place, item.bit - place, "fill")
        # Two tasks may read the same coefficients; their items are yielded once.
        if item.bit >= place and item.bits:
            yield item
            place = item.bit + item.bits
