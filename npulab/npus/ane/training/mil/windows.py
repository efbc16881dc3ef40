"""Convolution in MIL: weights ``(O, I / groups, *kernel)``, one to three spatial axes after
channels."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from npulab.npus.ane.training.mil.calls import Call, Results, Rule, Shape
from npulab.npus.kit.numbers import ceil_div

PAD_TYPES = ("valid", "same", "same_lower", "custom")
MOST_PAD = 2 ** 16
MOST_PADDED = 2 ** 26  # elements


class Geometry(NamedTuple):
    """Per spatial axis: stride, dilation, (before, after), outputs; and the groups of channels."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    outputs: Shape
    groups: int


def geometry(call: Call) -> Geometry:
    """What the arguments of a conv come to; raises ValueError for what does not go together."""
    x, weight = call["x"].shape, call["weight"].shape
    rank = len(x) - 2
    if not 1 <= rank <= 3 or len(weight) != len(x):
        call.refuse("x and weight", f"{list(x)} and {list(weight)}", "(N, I, ...) and (O, I, ...) of 1 to 3 axes more")
    groups = call.whole("groups", 1)
    if groups < 1 or weight[0] % groups or x[1] != weight[1] * groups:
        call.refuse("x and weight", f"{list(x)} and {list(weight)} in {groups} groups",
                    f"{x[1]} channels as weight's axis 1 times the groups, which divide axis 0")
    strides, dilations = (call.wholes(name, [1] * rank, rank) for name in ("strides", "dilations"))
    if min(*strides, *dilations, *weight) < 1:
        call.refuse("strides, dilations and weight", f"{list(strides)}, {list(dilations)}, {list(weight)}",
                    "1 or more")
    kind = call.word("pad_type", PAD_TYPES, "valid")
    spans = [(kernel - 1) * dilation + 1 for kernel, dilation in zip(weight[2:], dilations, strict=True)]
    if kind == "custom":
        pad = call.wholes("pad", [0] * (2 * rank), 2 * rank)
        if not 0 <= min(pad) <= max(pad) <= MOST_PAD:
            call.refuse("pad", list(pad), f"0 to {MOST_PAD}")
        pads = tuple(zip(pad[::2], pad[1::2], strict=True))
    elif kind == "valid":
        pads = ((0, 0),) * rank
    else:
        wholes = [max((ceil_div(size, stride) - 1) * stride + span - size, 0)
                  for size, stride, span in zip(x[2:], strides, spans, strict=True)]
        pads = tuple((whole // 2, ceil_div(whole, 2)) if kind == "same" else (ceil_div(whole, 2), whole // 2)
                     for whole in wholes)
    padded, padding = [size + sum(pad) for size, pad in zip(x[2:], pads, strict=True)], [*map(list, pads)]
    if math.prod([*x[:2], *padded]) > MOST_PADDED:
        call.refuse("x", f"{list(x)}, padded {padding}", f"up to {MOST_PADDED} elements")
    outputs = tuple((size - span) // stride + 1
                    for size, span, stride in zip(padded, spans, strides, strict=True))
    if min(outputs) < 1:
        call.refuse("x and weight", f"{list(x)} and {list(weight)}, padded {padding}",
                    "a kernel that fits into x")
    return Geometry(strides, dilations, pads, outputs, groups)


def _infer(call: Call) -> Results:
    call.same_type("x", "weight", *["bias"] * call.has("bias"))
    dtype, shape, outputs = call.dtype("x"), geometry(call), call["weight"].shape[0]
    if call.has("bias") and call["bias"].shape not in (
            (outputs,), (1, outputs), (1, outputs, *(1,) * len(shape.pads))):
        call.refuse("bias", list(call["bias"].shape), f"[{outputs}]")
    return [(dtype, (call["x"].shape[0], outputs, *shape.outputs))]


def _compute(call: Call, arrays: dict[str, Any]) -> Any:
    """One matrix product for each tap of the kernel."""
    x, weight, shape = arrays["x"], arrays["weight"], geometry(call)
    padded = np.pad(x, ((0, 0), (0, 0), *shape.pads)) if any(map(any, shape.pads)) else x
    n, groups, outputs = x.shape[0], shape.groups, weight.shape[0]
    matrices = weight.reshape(groups, outputs // groups, *weight.shape[1:])
    out = np.zeros((n, groups, outputs // groups, int(np.prod(shape.outputs))), x.dtype)
    for tap in np.ndindex(*weight.shape[2:]):
        window = tuple(slice(at * dilation, at * dilation + (count - 1) * stride + 1, stride) for at, dilation, count,
                       stride in zip(tap, shape.dilations, shape.outputs, shape.strides, strict=True))
        seen = padded[(slice(None), slice(None), *window)].reshape(n, groups, weight.shape[1], -1)
        out += matrices[(slice(None), slice(None), slice(None), *tap)] @ seen
    whole = out.reshape(n, outputs, *shape.outputs)
    return whole + arrays["bias"].reshape(1, outputs, *(1,) * len(shape.pads)) if "bias" in arrays else whole


CONVOLUTION = Rule(_infer, _compute)
