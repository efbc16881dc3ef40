"""Faults planted in random layers of each NPU that simulates, by lot: what a board with one wrong
number would write, computed by the NPU's simulated device from the layer with the fault.

A fault is a change of the layer, made here by arithmetic of its own; no line of the search is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

import npulab
from npulab.captures.capture import Capture
from npulab.captures.target import Hang
from npulab.quant.layers import Conv2D, FullyConnected
from npulab.quant.rules import QuantParams

NPUS = ("vivante", "nvdla", "rockchip", "ane", "onert")
FAULTS = ("shift", "weight", "zero point", "channels", "stride", "padding")
# what an NPU does not have: float16 has no shift and no zero points; no windows move in a product
ABSENT = {
    ("ane", "shift"): "float16",
    ("ane", "zero point"): "float16",
    ("onert", "stride"): "no windows",
    ("onert", "padding"): "no windows",
}
LEAST_CODES = 16
TRIES = 60  # layers are drawn until one takes the fault and shows it


@dataclass(frozen=True)
class Planted:
    """A capture with the output of a wrong layer, and patterns of the right explanation: texts, one
    of which it begins with."""

    capture: Capture
    right: tuple[str, ...]


def planted(npu: str, faults: tuple[str, ...], number: int) -> Planted:
    """The capture number ``number`` with these faults at once; none of them is a right output."""
    seed = [NPUS.index(npu), number, *(FAULTS.index(fault) for fault in faults)]
    random = np.random.RandomState(seed)
    for _ in range(TRIES):
        layer, x = _layer(npu, "stride" in faults, "padding" in faults, random)
        seeds = random.randint(2**31, size=len(faults))
        # each fault has to show, beside the other, too
        parts = {()} | {(number,) for number in range(len(faults))} | {tuple(range(len(faults)))}
        right: list[str] = []
        try:
            capture = npulab.target(npu).lower(layer, x=x)
            outputs = {}
            for part in parts:
                wrong, its = layer, x
                for number in part:
                    plant = PLANTS[faults[number]]
                    wrong, its, said = plant(wrong, its, np.random.RandomState(seeds[number]))
                    if len(part) == len(faults):
                        right += said
                outputs[part] = _run(npu, wrong, its)
        except (ValueError, LookupError, Hang):
            continue
        output = outputs[tuple(range(len(faults)))]
        same_size = len({len(other) for other in outputs.values()}) == 1
        seen = len(set(outputs.values())) == len(outputs)
        if same_size and seen and len(set(output)) > LEAST_CODES:
            return Planted(capture.with_buffers(output=output), tuple(right))
    raise AssertionError(f"{npu}: no layer takes {faults}")


def _run(npu: str, layer: Any, x: Any) -> bytes:
    target = npulab.target(npu)
    output: bytes = target.simulate(target.lower(layer, x=x))
    return output


def _layer(npu: str, strided: bool, padded: bool, random: np.random.RandomState) -> tuple[Any, Any]:
    """A random layer of an NPU's own type, and its input."""
    dtype = {"nvdla": "int8", "ane": "float16", "rockchip": "uint8", "vivante": "uint8"}.get(npu)
    if npu == "onert":
        return _product(random)
    kernel = int(random.choice([1, 3, 3, 5]))
    stride = int(random.randint(1, 3))
    if strided:
        stride = 2
    if padded:
        kernel = int(random.choice([3, 5]))
    size = [int(side) for side in random.randint(8, 17, 2)]
    inputs, outputs = int(random.randint(2, 9)), int(random.randint(3, 17))
    if npu == "ane":
        inputs = 2 * inputs
    padding: Any = ("same", "valid")[random.randint(2)]
    if padded:
        reach = kernel // 2
        padding = ((reach, reach), (reach, reach))
    activation = (None, "relu")[random.randint(2)]
    shape = (outputs, kernel, kernel, inputs)
    taps = kernel * kernel * inputs
    if dtype == "float16":
        weights = (random.randn(*shape) / taps**0.5).astype(np.float16)
        bias = random.randn(outputs).astype(np.float16)
        layer = Conv2D(
            weights, bias, (*size, inputs), (stride, stride), padding, activation=activation
        )
        return layer, random.randn(*layer.input_shape).astype(np.float16)
    low = np.iinfo(dtype).min
    weights = (random.randint(0, 256, shape) + low).astype(dtype)
    weight_zero = 0
    if dtype == "uint8":
        weight_zero = int(random.randint(110, 146))
    layer = Conv2D(
        weights,
        random.randint(-2000, 2000, outputs),
        (*size, inputs),
        (stride, stride),
        padding,
        activation=activation,
        input_q=_q(0.02, low, random),
        weight_q=QuantParams(float(np.float32(0.01 * random.uniform(0.5, 1.5))), weight_zero),
        output_q=_q(0.02 * 0.01 * 74 * 74 * taps**0.5 / 50, low, random),
    )
    return layer, (random.randint(0, 256, layer.input_shape) + low).astype(dtype)


def _product(random: np.random.RandomState) -> tuple[Any, Any]:
    dtype = ("int8", "uint8")[random.randint(2)]
    low = np.iinfo(dtype).min
    units, depth, rows = (
        4 * int(random.randint(2, 10)),
        int(random.randint(8, 60)),
        int(random.randint(8, 24)),
    )
    weights = (random.randint(1, 256, (units, depth)) + low).astype(dtype)
    weight_zero = 0
    if dtype == "uint8":
        weight_zero = int(random.randint(110, 146))
    layer = FullyConnected(
        weights,
        random.randint(-2000, 2000, units),
        (None, "relu")[random.randint(2)],
        _q(0.02, low, random),
        QuantParams(float(np.float32(0.01 * random.uniform(0.5, 1.5))), weight_zero),
        _q(0.02 * 0.01 * 74 * 74 * depth**0.5 / 50, low, random),
    )
    return layer, (random.randint(0, 256, (rows, depth)) + low).astype(dtype)


def _q(scale: float, low: int, random: np.random.RandomState) -> QuantParams:
    zero = int(random.randint(90, 166)) + low
    return QuantParams(float(np.float32(scale * random.uniform(0.5, 1.5))), zero)


# The faults


Plant = tuple[Any, Any, list[str]]


def _shift(layer: Any, x: Any, random: np.random.RandomState) -> Plant:
    power = int(random.choice([-2, -1, 1]))
    q = replace(layer.output_q, scale=layer.output_q.scale / 2.0**power)
    return replace(layer, output_q=q), x, [f"right shift {-power:+d} "]


def _weight(layer: Any, x: Any, random: np.random.RandomState) -> Plant:
    weights = layer.weights.copy()
    index = tuple(int(random.randint(side)) for side in weights.shape)
    old = weights[index]
    if weights.dtype.kind == "f":
        weights[index] += np.float16(random.choice([-1, 1]) * random.uniform(0.2, 2))
    else:
        weights[index] = old ^ np.array(2 ** random.randint(8)).astype(np.uint8).astype(old.dtype)
    if len(index) == 2:
        place = f"channel {index[0]}, input {index[1]}"
    else:
        channel, row, column, plane = index
        place = f"channel {channel}, row {row}, column {column}, plane {plane}"
    return replace(layer, weights=weights), x, [f"weight of {place} is {weights[index]}, not {old}"]


def _zero_point(layer: Any, x: Any, random: np.random.RandomState) -> Plant:
    name = str(random.choice(["input", "output"]))
    step = int(random.choice([-9, -4, -1, 1, 5, 12]))
    q = getattr(layer, f"{name}_q")
    changed = replace(layer, **{f"{name}_q": replace(q, zero_point=q.zero_point + step)})
    return changed, x, [f"{name} zero point {step:+d}"]


def _channels(layer: Any, x: Any, random: np.random.RandomState) -> Plant:
    count = layer.output_shape[-1]
    one, other = sorted(int(channel) for channel in random.choice(count, 2, replace=False))
    order = np.arange(count)
    order[[one, other]] = other, one
    changed = replace(layer, weights=layer.weights[order], bias=layer.bias[order])
    right = [f"output channels permuted: {one} holds {other}, {other} holds {one}"]
    if order.tolist() == [2, 1, 0]:
        right.append("output channels reversed")
    return changed, x, right


def _stride(layer: Any, x: Any, random: np.random.RandomState) -> Plant:
    """The windows begin where they did, and are nearer; the output keeps its size."""
    stride = ((1, 1), (1, 2), (2, 1))[random.randint(3)]
    sides, border = [], []
    for axis, step in enumerate(stride):
        before, _ = layer.pads[axis]
        needed = (layer.output_shape[axis] - 1) * step + layer.kernel[axis] - before
        sides.append(min(needed, x.shape[axis]))
        border.append((before, max(needed - x.shape[axis], 0)))
    cut = np.ascontiguousarray(x[: sides[0], : sides[1]])
    changed = replace(layer, input_shape=cut.shape, stride=stride, padding=tuple(border))
    return changed, cut, [f"stride {stride[0]}x{stride[1]}"]


def _padding(layer: Any, x: Any, random: np.random.RandomState) -> Plant:
    """The windows begin a row or a column nearer or further; the output keeps its size."""
    axis, step = int(random.randint(2)), int(random.choice([-1, 1]))
    border = [list(side) for side in layer.pads]
    border[axis][0] -= step
    border[axis][1] += step
    words = {
        (0, 1): "one row down",
        (0, -1): "one row up",
        (1, 1): "one column right",
        (1, -1): "one column left",
    }
    changed = replace(layer, padding=tuple(map(tuple, border)))
    right = [f"windows {words[axis, step]}"]
    right += _other_names(layer, axis, (border[0][0], border[1][0]))
    if step == 1 and layer.stride[axis] > 1:
        right.append(("sampled from row 1 and column 0", "sampled from row 0 and column 1")[axis])
    return changed, x, right


def _other_names(layer: Any, axis: int, begins: tuple[int, int]) -> list[str]:
    """Other names of a padding by which windows begin so many rows and columns before the image,
    other than before along an axis."""
    same, symmetric, behind = [], [], []
    for size, kernel, stride, (before, _) in zip(
        layer.input_shape[:2], layer.kernel, layer.stride, layer.pads, strict=True
    ):
        span = (-(-size // stride) - 1) * stride + kernel
        same.append(max(span - size, 0) // 2)
        symmetric.append((kernel - 1) // 2)
        outputs = (size + 2 * before - kernel) // stride + 1
        behind.append((outputs - 1) * stride + kernel - size - before)  # that a window reaches
    names = []
    if begins == tuple(same):
        names.append("padding same")
    if begins == tuple(symmetric):
        names.append("padding symmetric")
    if begins == (0, 0):
        names += ["padding valid", "border behind only"]
    if behind[axis] == begins[axis]:
        names.append(("odd row", "odd column")[axis])
    return names


PLANTS: dict[str, Callable[[Any, Any, np.random.RandomState], Plant]] = {
    "shift": _shift,
    "weight": _weight,
    "zero point": _zero_point,
    "channels": _channels,
    "stride": _stride,
    "padding": _padding,
}


# The answers


class Answer(NamedTuple):
    """What ``hypotheses`` made of a planted capture.

    ``outcome`` is "first" (the right explanation is the first), "tied" (it gives the same output as
    the first), "wrong", "more" (no single change explains it), or "silent" (outputs are equal, and
    nothing is offered); ``tied`` single changes explain the output, in ``seconds``. ``both`` is
    True if a pair of the two right explanations is among the answers.
    """

    outcome: str
    tied: int
    seconds: float
    both: bool = False


def answer(planted: Planted) -> Answer:
    begin = time.perf_counter()
    found = npulab.hypotheses(npulab.check(planted.capture))
    seconds = time.perf_counter() - begin
    equal = found[found.equal]
    single, both = [], False
    for kind, change in zip(equal.kind, equal.change, strict=True):
        if " + " in kind:
            parts = change.split(" with ")
            both |= all(any(part.startswith(right) for part in parts) for right in planted.right)
        else:
            single.append(change)
    outcome = "wrong"
    if not planted.right and len(found) == 1:
        outcome = "silent"
    elif not single:
        outcome = "more"
    elif single[0].startswith(planted.right):
        outcome = "first"
    elif any(change.startswith(planted.right) for change in single):
        outcome = "tied"
    return Answer(outcome, len(single), seconds, both)
