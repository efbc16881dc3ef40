"""The changes of an explanation of an output: a table of kinds, each with a function that yields
the changes of its kind.

A change has a text, the part of an explanation that it replaces, and a function that maps one
hypothesis to another. Two changes are combined by calling one function after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.mismatch.predicting import (
    CodeLimits,
    Codes,
    Explanation,
    Hypothesis,
    Sums,
    TensorChange,
    Weighted,
    codes_of,
    predict,
)
from npulab.quant.emulate import ENGINES, Saturation
from npulab.quant.emulate.saturating import of_outputs
from npulab.quant.layers import ACTIVATIONS, Conv2D, Pair, Pool2D, pads
from npulab.quant.rules import ORDERS, RULES

# If fewer outputs than this differ from the most frequent code, a change may fit them by chance.
ENOUGH = 16
# A way to add products is first tried on at most this many wrong outputs.
SEEN = 64
# Groups of this many products are added in registers of this many bits, which saturate. Wider
# registers do not: 18 bits hold the sum of any four products of 8-bit codes.
GROUPS, WIDTHS = (2, 4), (16, 17, 15, 14, 13, 12)

# Changes of one kind, each as (text, part that it replaces, function that applies it).
Changes = Iterator[tuple[str, str, Callable[[Any], Any]]]
# Kinds of changes, each with the function that yields the changes of this kind.
Kinds = tuple[tuple[str, Callable[[Any, Array], Changes]], ...]
Of = TypeVar("Of", bound=Explanation)
Windowed = Conv2D | Pool2D


class Change(NamedTuple):
    """A change of an explanation: its kind, its text, the function that applies it, and the part
    that it replaces; two changes of the same ``part`` are not tried together.
    """

    kind: str
    words: str
    apply: Callable[[Any], Any]
    part: str


def changes_of(kinds: Kinds, start: Explanation, output: Array) -> list[Change]:
    """Return the changes of an explanation that may explain a captured output, by kind; in each
    kind the plainest comes first. ``kinds`` are the kinds of changes for the explanation's layer.
    """
    found = []
    for kind, table in kinds:
        for words, part, apply in table(start, output):
            found.append(Change(kind, words, apply, part))
    return found


def varied(output: Array) -> int:
    """Return the number of outputs that differ from the most frequent output."""
    _, counts = np.unique(output, return_counts=True)
    return int(output.size - counts.max())


def with_layer(of: Of, **changed: Any) -> Of:
    layer = replace(of.layer, **changed)
    return replace(of, layer=layer)


def after(of: Of, change: TensorChange) -> Of:
    """Return the hypothesis with one more change of its outputs, which is applied last."""
    return replace(of, after=(*of.after, change))


def before(of: Of, change: TensorChange) -> Of:
    """Return the hypothesis with a change of its input."""
    return replace(of, x=np.ascontiguousarray(change(of.x)))


# Rules, zero points, activations


def _rules(start: Hypothesis, output: Array) -> Changes:
    present = start.rule_name
    base, _, _ = present.rpartition(":")
    if present in RULES:
        base = present
    dtype = output.dtype.name
    names = [name for name, rule in RULES.items() if dtype in rule.types]
    family, _, _ = present.partition(":")
    # rules of the present rule's family come first
    names.sort(key=lambda name: name.partition(":")[0] != family)
    if base in RULES:
        names += [f"{base}:{order}" for order in ORDERS]
    names += ENGINES
    for name in names:
        if name != present:
            change = partial(replace, rule=name)
            yield f"rounding rule {name}", "rule", change


def _zero_points(start: Hypothesis, output: Array) -> Changes:
    layer = start.layer
    params = {"input": layer.input_q, "weight": layer.weight_q, "output": layer.output_q}
    if layer.weight_q.zero_points:
        del params["weight"]
    changes = []
    for step in (1, -1):
        for name, q in params.items():
            changes.append((f"{step:+d}", name, q.zero_point + step))
    for name, q in params.items():
        if abs(q.zero_point) > 1:
            changes.append(("left out", name, 0))
    for words, name, zero in changes:
        q = replace(params[name], zero_point=zero)
        changed: dict[str, Any] = {f"{name}_q": q}
        change = partial(with_layer, **changed)
        part = f"{name} zero point"
        yield f"{part} {words}", part, change


def clamps(start: Explanation, output: Array) -> Changes:
    for activation in ACTIVATIONS:
        if activation == start.layer.activation:
            continue
        words = "no activation"
        if activation:
            words = f"activation {activation}"
        change = partial(with_layer, activation=activation)
        yield words, "activation", change
    for words, clamp in CLAMPS.items():
        change = partial(replace, clamp=clamp)
        yield words, "clamp", change
    if output.dtype.itemsize == 1:
        change = partial(after, change=_flipped_sign)
        yield "output of the other sign (xor 0x80)", "sign", change


def _wrapped(codes: Codes, limits: CodeLimits) -> Codes:
    codes = codes.clip(limits.low, limits.high)
    mask = 2**limits.info.bits - 1
    return codes & mask


def _saturated_early(codes: Codes, limits: CodeLimits) -> Codes:
    info = limits.info
    real = codes - limits.zero
    codes = real.clip(info.min, info.max) + limits.zero
    return codes.clip(limits.lowest, limits.highest)


def _saturated_at_half(codes: Codes, limits: CodeLimits) -> Codes:
    high = min(limits.high, limits.info.max // 2)
    return codes.clip(limits.lowest, high)


def _saturated_as_other_sign(codes: Codes, limits: CodeLimits) -> Codes:
    codes = codes.clip(limits.low, limits.high)
    half = 2 ** (limits.info.bits - 1)
    if limits.info.min:
        return codes.clip(0, 2 * half - 1)
    return codes.clip(-half, half - 1)


def _without_lowest(codes: Codes, limits: CodeLimits) -> Codes:
    low = max(limits.low, limits.info.min + 1)
    return codes.clip(low, limits.highest)


def _without_negative(codes: Codes, limits: CodeLimits) -> Codes:
    low = max(limits.low, 0)
    return codes.clip(low, limits.highest)


CLAMPS: dict[str, Callable[[Codes, CodeLimits], Codes]] = {
    "wraps around, not saturated": _wrapped,
    "saturated before the zero point": _saturated_early,
    "saturated at half the range": _saturated_at_half,
    "saturated as the other sign": _saturated_as_other_sign,
    "lowest code left out": _without_lowest,
    "nothing below code 0": _without_negative,
}


def _flipped_sign(out: Array) -> Array:
    flipped = out.view(np.uint8) ^ np.uint8(0x80)
    return flipped.view(out.dtype)


# Accumulators


def biases(start: Explanation, output: Array) -> Changes:
    if not isinstance(start.layer, Weighted):
        return
    bias = start.layer.bias
    if np.any(bias):
        change = partial(with_layer, bias=np.zeros_like(bias))
        yield "bias left out", "bias", change


def _accumulators(start: Hypothesis, output: Array) -> Changes:
    yield "wrapped at 16 bits", "accumulator", partial(replace, sums=_wrapped_sums)
    yield "saturated at 16 bits", "accumulator", partial(replace, sums=_saturated_sums)


def _wrapped_sums(sums: Array) -> Array:
    return sums.astype(np.int16).astype(np.int64)


def _saturated_sums(sums: Array) -> Array:
    return sums.clip(-(2**15), 2**15 - 1)


def _saturations(start: Hypothesis, output: Array) -> Changes:
    """Yield the ways to add products that predict at least half of a sample of the wrong outputs
    correctly.
    """
    layer, x = start.layer, start.x
    sums = Sums()
    predicted = predict(start, sums)
    # a narrow register explains any constant output, so few different outputs prove nothing
    if predicted.shape != output.shape or varied(output) < ENOUGH:
        return
    channels = output.shape[-1]
    wrong = np.flatnonzero(predicted != output)
    # a sample spread evenly over the wrong outputs, so that no channel or corner decides alone
    places = np.linspace(0, wrong.size - 1, min(SEEN, wrong.size))
    sample = wrong[places.astype(int)]
    positions, columns = np.divmod(sample, channels)
    total = sums.of(layer, x).reshape(-1, channels)[positions]
    captured = output.ravel()[sample]
    rows = np.arange(len(sample))
    for saturation in _ways_to_saturate(layer):
        off = of_outputs(layer, x, saturation, positions)
        if not off.any():
            continue
        codes = codes_of(start, total - off)[rows, columns]
        right = np.count_nonzero(codes == captured)
        if 2 * right >= len(sample):
            change = partial(replace, saturation=saturation)
            yield str(saturation), "accumulator", change


def _ways_to_saturate(layer: Weighted) -> Iterator[Saturation]:
    """Yield the ways to add a layer's products in groups that may saturate differently: by size of
    groups, width of the register, and order of the products.
    """
    depth = 1
    kernel = (1, 1)
    if isinstance(layer, Conv2D):
        kernel = layer.kernel
        if not layer.depthwise:
            depth = layer.input_shape[2]
    stored = [True]
    if layer.input_q.zero_point or layer.weight_q.zero_point:
        stored = [True, False]
    for group, bits in product(GROUPS, WIDTHS):
        orders = ["HWC"]
        if kernel != (1, 1) and depth > 1:
            orders.append("CHW")
        # if the number of input channels is a multiple of the group, each group has products of one
        # tap, so the order of taps does not matter
        if 1 not in kernel and depth % group:
            orders.append("WHC")
        for order, kept in product(orders, stored):
            yield Saturation(group, bits, order, kept)


# Windows: padding, stride, dilation


def paddings(start: Explanation, output: Array) -> Changes:
    layer = start.layer
    if not isinstance(layer, Windowed):
        return
    seen = {layer.pads}
    for words, padding in _named_paddings(layer):
        border = pads(padding, layer.input_shape, layer.kernel, layer.stride, layer.dilation)
        if border not in seen:
            seen.add(border)
            yield words, "window", partial(_with_pads, border=border)


def _borders(start: Hypothesis, output: Array) -> Changes:
    layer = start.layer
    if not isinstance(layer, Conv2D) or not np.any(layer.pads):
        return
    info = np.iinfo(output.dtype)
    zero = layer.input_q.zero_point
    codes = {}
    for code in (0, int(info.min)):
        if code != zero:
            codes[f"border of code {code}"] = code
    for step in (1, -1):
        codes[f"border of zero point {step:+d}"] = zero + step
    for words, code in codes.items():
        if info.min <= code <= info.max:
            yield words, "border", partial(bordered, constant_values=code)
    yield "border of the edge repeated", "border", partial(bordered, mode="edge")
    yield "border of the image mirrored", "border", partial(bordered, mode="reflect")


DOWN = {0: "", 1: "one row down", -1: "one row up", 2: "two rows down", -2: "two rows up"}
ACROSS = {
    0: "",
    1: "one column right",
    -1: "one column left",
    2: "two columns right",
    -2: "two columns left",
}


def _named_paddings(layer: Windowed) -> Iterator[tuple[str, Any]]:
    border = layer.pads
    rows, columns = border
    around = []
    for size, spread in zip(layer.kernel, layer.dilation, strict=True):
        reach = (size - 1) * spread // 2
        around.append((reach, reach))
    yield "padding same", "same"
    yield "padding valid", "valid"
    yield "padding symmetric", tuple(around)
    other_rows, other_columns = rows[::-1], columns[::-1]
    odd_row = f"odd row {_other_side(rows)}"
    odd_column = f"odd column {_other_side(columns)}"
    yield odd_row, (other_rows, columns)
    yield odd_column, (rows, other_columns)
    yield f"{odd_row}, {odd_column}", (other_rows, other_columns)
    height, width = sum(rows), sum(columns)
    yield "border in front only", ((height, 0), (width, 0))
    yield "border behind only", ((0, height), (0, width))
    for (down, moved_rows), (across, moved_columns) in product(DOWN.items(), ACROSS.items()):
        moves = filter(None, (moved_rows, moved_columns))
        if down or across:
            yield f"windows {' and '.join(moves)}", _moved(border, down, across)


def _other_side(border: Pair) -> str:
    """Return the side of a border that would be the larger one if its two sides were exchanged: "in
    front" or "behind".
    """
    before, behind = border
    if before < behind:
        return "in front"
    return "behind"


def _moved(border: tuple[Pair, Pair], down: int, across: int) -> tuple[Pair, Pair]:
    """Return the border with which every window lies ``down`` pixels lower and ``across`` pixels
    further right; a side below 0 cuts the image.
    """
    (top, bottom), (left, right) = border
    return (top - down, bottom + down), (left - across, right + across)


def _with_pads(of: Of, border: tuple[Pair, Pair], **changed: Any) -> Of:
    """Return the hypothesis with this border and the other changes to the layer. A side below 0
    cuts rows or columns off the image; a part of the border that no window reaches is left out.
    """
    layer = of.layer
    assert isinstance(layer, Windowed)
    kernel = changed.get("kernel", layer.kernel)
    stride = changed.get("stride", layer.stride)
    x = of.x
    cuts, added = [(0, 0)] * (x.ndim - 3), []
    for axis, (before, behind) in enumerate(border):
        span = (kernel[axis] - 1) * layer.dilation[axis] + 1
        rest = x.shape[axis - 3] + before + behind - span
        behind = min(behind, max(behind - rest % stride[axis], 0))
        cuts.append((max(-before, 0), max(-behind, 0)))
        added.append((max(before, 0), max(behind, 0)))
    places = []
    for size, (first, last) in zip(x.shape, [*cuts, (0, 0)], strict=True):
        places.append(slice(first, size - last))
    x = x[tuple(places)]
    changed |= {"input_shape": x.shape[-3:], "padding": tuple(added)}
    return with_layer(replace(of, x=x), **changed)


def bordered(of: Of, **how: Any) -> Of:
    """Return the hypothesis in which the border is a part of the image: ``numpy.pad`` fills it,
    with the arguments ``how``.
    """
    assert isinstance(of.layer, Windowed)
    batch = [(0, 0)] * (of.x.ndim - 3)
    widths = [*batch, *of.layer.pads, (0, 0)]
    x = np.pad(of.x, widths, **how)
    return with_layer(replace(of, x=x), input_shape=x.shape[-3:], padding="valid")


def phases(start: Explanation, output: Array) -> Changes:
    if not isinstance(start.layer, Windowed):
        return
    down, across = start.layer.stride
    for row, column in product(range(down), range(across)):
        sides = []
        if down > 1:
            sides.append(f"row {row}")
        if across > 1:
            sides.append(f"column {column}")
        if row or column:
            words = f"sampled from {' and '.join(sides)} of the stride"
            yield words, "window", partial(_sampled, down=row, across=column)
    if down != across and isinstance(start.layer, Conv2D):
        swapped = partial(_refitted, output=output, stride=(across, down))
        yield "stride swapped", "window", swapped


def strides(start: Explanation, output: Array) -> Changes:
    """Yield the neighbouring strides; the first window begins at the same pixel."""
    layer = start.layer
    if not isinstance(layer, Windowed):
        return
    near = []
    for step in layer.stride:
        near.append([step, step - 1, step + 1, step + 2, 2 * step, 1])
    for stride in dict.fromkeys(product(*near)):
        if 0 not in stride and stride != layer.stride:
            down, across = stride
            change = partial(with_window, output=output, stride=stride)
            yield f"stride {down}x{across}", "window", change


def _sampled(of: Of, down: int, across: int) -> Of:
    assert isinstance(of.layer, Windowed)
    return _with_pads(of, _moved(of.layer.pads, down, across))


def with_window(of: Of, output: Array, **changed: Any) -> Of:
    """Return the hypothesis with another kernel or stride. The first window begins at the same
    pixel, and the border behind the image is as large as the last window needs.
    """
    layer = of.layer
    assert isinstance(layer, Windowed)
    kernel = changed.get("kernel", layer.kernel)
    stride = changed.get("stride", layer.stride)
    border = []
    for axis, wanted in enumerate(output.shape[-3:-1]):
        before, _ = layer.pads[axis]
        span = (kernel[axis] - 1) * layer.dilation[axis] + 1
        needed = (wanted - 1) * stride[axis] + span
        border.append((before, needed - before - layer.input_shape[axis]))
    return _with_pads(of, (border[0], border[1]), **changed)


def _refitted(of: Hypothesis, output: Array, **changed: Any) -> Hypothesis:
    """Return the hypothesis with the layer changed. The layer keeps its border if that gives the
    shape of the captured output, else it gets the border that this shape needs.
    """
    layer = of.layer
    assert isinstance(layer, Conv2D)
    stride = changed.get("stride", layer.stride)
    dilation = changed.get("dilation", layer.dilation)
    fits = True
    border = []
    for axis, wanted in enumerate(output.shape[-3:-1]):
        size, step = layer.input_shape[axis], stride[axis]
        span = (layer.kernel[axis] - 1) * dilation[axis] + 1
        padded = size + sum(layer.pads[axis])
        if (padded - span) // step + 1 != wanted:
            fits = False
        needed = (wanted - 1) * step + span
        more = max(needed - size, 0)
        border.append((more // 2, more - more // 2))
    padding = tuple(border)
    if fits:
        padding = layer.pads
    return with_layer(of, padding=padding, **changed)


# Orders of elements


def _orders(start: Hypothesis, output: Array) -> Changes:
    image = isinstance(start.layer, Conv2D)
    for words, change in reorders(output.shape, image):
        yield f"output {words}", "output order", partial(after, change=change)
    # the input of a fully connected layer may be an image
    image = image or start.x.shape[-1] != start.layer.weights.shape[-1]
    for words, change in reorders(start.x.shape, image):
        yield f"input {words}", "input order", partial(before, change=change)


def reorders(shape: tuple[int, ...], image: bool) -> Iterator[tuple[str, TensorChange]]:
    """Yield (text, function) for further orders of a tensor's elements that keep its shape."""
    count = shape[-1]
    channels = np.arange(count)
    orders = {
        "channels reversed": channels[::-1],
        "channels rotated by +1": np.roll(channels, 1),
        "channels rotated by -1": np.roll(channels, -1),
    }
    groups = [n for n in range(2, count) if count % n == 0]
    for n in groups:
        by_group = channels.reshape(-1, n)
        orders[f"channels reversed in groups of {n}"] = by_group[:, ::-1].ravel()
    for n in groups:
        by_group = channels.reshape(n, -1)
        orders[f"channels interleaved by {n}"] = by_group.T.ravel()
    seen = {tuple(channels)}
    for words, order in orders.items():
        if tuple(order) not in seen:
            seen.add(tuple(order))
            yield words, partial(np.take, indices=order, axis=-1)
    if not image:
        return
    height, width = shape[-3:-1]
    if height > 1:
        yield "rows flipped", partial(np.flip, axis=-3)
    if width > 1:
        yield "columns flipped", partial(np.flip, axis=-2)
    if height > 1 and width > 1:
        yield "rows and columns flipped", partial(np.flip, axis=(-3, -2))
        if height == width:
            yield "rows and columns swapped", partial(np.swapaxes, axis1=-2, axis2=-3)
    if count > 1 and height * width > 1:
        # the elements are stored plane by plane but read pixel by pixel, or the reverse
        yield "stored plane by plane", _read_as_planes
        yield "stored pixel by pixel", _read_as_pixels


def _read_as_planes(tensor: Array) -> Array:
    planes = np.moveaxis(tensor, -1, -3)
    return planes.reshape(tensor.shape)


def _read_as_pixels(tensor: Array) -> Array:
    *outer, height, width, count = tensor.shape
    planes = tensor.reshape(*outer, count, height, width)
    return np.moveaxis(planes, -3, -1)


def kernels(start: Explanation, output: Array) -> Changes:
    layer = start.layer
    if not isinstance(layer, Conv2D) or layer.kernel == (1, 1):
        return
    weights = layer.weights
    changes = {
        "kernel rows flipped": weights[:, ::-1],
        "kernel columns flipped": weights[:, :, ::-1],
        "kernel flipped (convolution)": weights[:, ::-1, ::-1],
        "weights read plane by plane": _read_as_pixels(weights),
        "weights read pixel by pixel": _read_as_planes(weights),
    }
    height, width = layer.kernel
    if height == width:
        changes["kernel transposed"] = weights.swapaxes(1, 2)
    seen = [weights]
    for words, changed in changes.items():
        if not any(np.array_equal(changed, known) for known in seen):
            seen.append(changed)
            change = partial(with_layer, weights=changed)
            yield words, "kernel", change
    for dilation in dict.fromkeys(((1, 1), (2, 2), layer.dilation[::-1])):
        if dilation != layer.dilation:
            change = partial(_refitted, output=output, dilation=dilation)
            down, across = dilation
            yield f"dilation {down}x{across}", "window", change


CHANGES: Kinds = (
    ("rule", _rules),
    ("zero point", _zero_points),
    ("clamp", clamps),
    ("bias", biases),
    ("accumulator", _accumulators),
    ("accumulator", _saturations),
    ("padding", paddings),
    ("padding", _borders),
    ("stride phase", phases),
    ("stride", strides),
    ("channel order", _orders),
    ("kernel", kernels),
)
