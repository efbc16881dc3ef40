"""The operations of MIL that are understood: what shape they give, and what values.

Names, arguments and defaults are those of Core ML's MIL operations (coremltools documentation, MIL
Ops).  Sums and products are taken in the type of the arrays given, which the caller chooses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from npulab.npus.ane.training.mil.calls import Call, Results, Rule, Shape
from npulab.npus.ane.training.mil.compressed import COMPRESSED
from npulab.npus.ane.training.mil.values import DTYPES, MOST_AXES
from npulab.npus.ane.training.mil.windows import CONVOLUTION

Arrays = dict[str, Any]


def sigmoid(x: np.ndarray) -> np.ndarray:
    """``1 / (1 + exp(-x))``, without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    """``exp(x) / sum(exp(x))`` along an axis, the largest taken off before."""
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "inverse": lambda x: 1 / x, "tanh": np.tanh, "sigmoid": sigmoid, "silu": lambda x: x * sigmoid(x),
    "relu": lambda x: np.maximum(x, 0), "sin": np.sin, "cos": np.cos}
ANY_UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda x: x, "abs": np.abs, "square": np.square, "sign": np.sign}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "real_div": np.divide, "pow": np.power,
    "maximum": np.maximum, "minimum": np.minimum}
REDUCE: dict[str, Callable[..., Any]] = {
    "reduce_sum": np.sum, "reduce_max": np.max, "reduce_min": np.min, "reduce_mean": np.mean,
    "reduce_sum_square": lambda x, axis, keepdims: np.sum(np.square(x), axis, keepdims=keepdims)}
EPSILON = {"log": 1e-45, "rsqrt": 1e-12, "inverse": 1e-4}  # what these add to x where nothing is said


def _unary(call: Call) -> Results:
    call.number("epsilon", 0)
    return [(call.float_type("x"), call["x"].shape)]


def _any_unary(call: Call) -> Results:
    dtype = call["x"].dtype if call.operation.op == "identity" else call.number_type("x")
    return [(dtype, call["x"].shape)]


def _unary_values(call: Call, x: Arrays) -> Any:
    name = call.operation.op
    array = x["x"]
    if name in EPSILON:
        array = array + np.asarray(call.number("epsilon", EPSILON[name]), array.dtype)
    return (UNARY.get(name) or ANY_UNARY[name])(array)


def _binary(call: Call) -> Results:
    call.same_type("x", "y")
    dtype = call.float_type("x") if call.operation.op in ("real_div", "pow") else call.number_type("x")
    return [(dtype, call.broadcast("x", "y"))]


def _reduced(call: Call) -> tuple[tuple[int, ...], bool]:
    rank = len(call["x"].shape)
    return call.axes("axes", rank, range(rank)), call.flag("keep_dims", False)


def _reduce(call: Call) -> Results:
    axes, keep = _reduced(call)
    shape = call["x"].shape
    if any(shape[axis] == 0 for axis in axes):
        call.refuse("x", list(shape), "one element or more along the axes")
    return [(call.number_type("x"), tuple(1 if axis in axes else size for axis, size in enumerate(shape)
                                          if keep or axis not in axes))]


def _reduce_values(call: Call, x: Arrays) -> Any:
    axes, keep = _reduced(call)
    return REDUCE[call.operation.op](x["x"], axis=axes, keepdims=keep)


def _softmax(call: Call) -> Results:
    call.axis("axis", len(call["x"].shape), -1)
    return _unary(call)


def _softmax_values(call: Call, x: Arrays) -> Any:
    return softmax(x["x"], call.axis("axis", x["x"].ndim, -1)) if x["x"].size else x["x"]


def _reshaped(call: Call) -> Shape:
    have, wanted = call["x"].shape, list(call.wholes("shape"))
    if len(wanted) > MOST_AXES:
        call.refuse("shape", f"{len(wanted)} axes", f"up to {MOST_AXES}")
    for at, size in enumerate(wanted):
        if size == 0 and at < len(have):
            wanted[at] = have[at]
    if wanted.count(-1) == 1:
        rest = math.prod(size for size in wanted if size != -1)
        if rest and math.prod(have) % rest == 0:
            wanted[wanted.index(-1)] = math.prod(have) // rest
    if min(wanted, default=1) < 0 or math.prod(wanted) != math.prod(have):
        call.refuse("shape", list(call.wholes("shape")), f"a shape of the {math.prod(have)} elements of {list(have)}")
    return tuple(wanted)


def _reshape(call: Call) -> Results:
    return [(call["x"].dtype, _reshaped(call))]


def _permuted(call: Call) -> tuple[int, ...]:
    rank = len(call["x"].shape)
    perm = call.axes("perm", rank)
    if len(perm) != rank:
        call.refuse("perm", list(perm), f"the {rank} axes of {list(call['x'].shape)}, each once")
    return perm


def _transpose(call: Call) -> Results:
    return [(call["x"].dtype, tuple(call["x"].shape[axis] for axis in _permuted(call)))]


def _slices(call: Call) -> tuple[slice, ...]:
    shape = call["x"].shape
    begin, size = (call.wholes(name, count=len(shape)) for name in ("begin", "size"))
    out = []
    for axis, (have, start, length) in enumerate(zip(shape, begin, size, strict=True)):
        length = have - start if length == -1 else length
        if start < 0 or length < 0 or start + length > have:
            call.refuse(f"begin and size of axis {axis}", f"{start} and {length}", f"a part of the {have} of "
                                                                                   f"{list(shape)}")
        out.append(slice(start, start + length))
    return tuple(out)


def _slice(call: Call) -> Results:
    return [(call["x"].dtype, tuple(one.stop - one.start for one in _slices(call)))]


def _concat(call: Call) -> Results:
    values = call.several("values")
    first = values[0]
    axis = call.axis("axis", len(first.shape))
    for one in values:
        alike = one.dtype == first.dtype and len(one.shape) == len(first.shape)
        if not alike or any(a != b for at, (a, b) in enumerate(zip(one.shape, first.shape, strict=True))
                            if at != axis or call.flag("interleave", False)):
            call.refuse("values", ", ".join(str(other.type) for other in values),
                        f"tensors that differ along axis {axis} only, interleaved ones not at all")
    shape = list(first.shape)
    shape[axis] = sum(one.shape[axis] for one in values)
    return [(first.dtype, tuple(shape))]


def _concat_values(call: Call, x: Arrays) -> Any:
    axis = call.axis("axis", x["values"][0].ndim)
    if not call.flag("interleave", False):
        return np.concatenate(x["values"], axis)
    stacked = np.stack(x["values"], axis + 1)
    return stacked.reshape(*stacked.shape[:axis], -1, *stacked.shape[axis + 2:])


def _parts(call: Call) -> tuple[int, tuple[int, ...]]:
    shape = call["x"].shape
    axis = call.axis("axis", len(shape))
    if call.has("split_sizes"):
        sizes = call.wholes("split_sizes")
    else:
        count = call.whole("num_splits")
        if count < 1 or shape[axis] % count:
            call.refuse("num_splits", count, f"a divisor of {shape[axis]}, the size of axis {axis}")
        sizes = (shape[axis] // count,) * min(count, len(call.operation.outputs) + 1)
    if len(sizes) != len(call.operation.outputs) or sum(sizes) != shape[axis] or min(sizes) < 0:
        call.refuse("split_sizes", list(sizes)[:8], f"{len(call.operation.outputs)} sizes that add up to "
                                                    f"{shape[axis]}")
    return axis, sizes


def _split(call: Call) -> Results:
    axis, sizes = _parts(call)
    shape = call["x"].shape
    return [(call["x"].dtype, (*shape[:axis], size, *shape[axis + 1:])) for size in sizes]


def _split_values(call: Call, x: Arrays) -> Any:
    axis, sizes = _parts(call)
    return np.split(x["x"], np.cumsum(sizes)[:-1].tolist(), axis)


def _expand(call: Call) -> Results:
    shape, axes = list(call["x"].shape), call.wholes("axes")
    if len(shape) + len(axes) > MOST_AXES:
        call.refuse("axes", f"{len(axes)} axes", f"up to {MOST_AXES - len(shape)}")
    for axis in sorted(call.axes("axes", len(shape) + len(axes))):
        shape.insert(axis, 1)
    return [(call["x"].dtype, tuple(shape))]


def _squeeze(call: Call) -> Results:
    shape = call["x"].shape
    axes = call.axes("axes", len(shape), [axis for axis, size in enumerate(shape) if size == 1])
    if any(shape[axis] != 1 for axis in axes):
        call.refuse("axes", list(axes), f"axes of size 1 of {list(shape)}")
    return [(call["x"].dtype, tuple(size for axis, size in enumerate(shape) if axis not in axes))]


def _cast(call: Call) -> Results:
    allowed = [name for name, (letter, bits) in DTYPES.items() if letter == "b" or bits >= 8]
    return [(call.word("dtype", allowed), call["x"].shape)]


def _turned(call: Call, name: str, flag: str) -> Shape:
    shape = call[name].shape
    if len(shape) < 2:
        call.refuse(name, list(shape), "two axes or more")
    return (*shape[:-2], shape[-1], shape[-2]) if call.flag(flag, False) else shape


def _matmul(call: Call) -> Results:
    dtype = call.same_type("x", "y")
    x, y = _turned(call, "x", "transpose_x"), _turned(call, "y", "transpose_y")
    if x[-1] != y[-2]:
        call.refuse("x and y", f"{list(call['x'].shape)} and {list(call['y'].shape)}, that is {x[-1]} columns times "
                               f"{y[-2]} rows", "as many columns as rows, after transpose_x and transpose_y")
    try:
        batch = np.broadcast_shapes(x[:-2], y[:-2])
    except ValueError:
        call.refuse("x and y", f"{list(call['x'].shape)} and {list(call['y'].shape)}",
                    "axes before the last two that broadcast")
    return [(dtype, (*batch, x[-2], y[-1]))]


def _matmul_values(call: Call, x: Arrays) -> Any:
    left, right = (np.swapaxes(x[name], -1, -2) if call.flag(f"transpose_{name}", False) else x[name] for name in "xy")
    return left @ right


def _linear(call: Call) -> Results:
    call.same_type("x", "weight")
    x, weight = call["x"].shape, call["weight"].shape
    if not x or len(weight) != 2 or x[-1] != weight[1]:
        call.refuse("x and weight", f"{list(x)} and {list(weight)}", "(..., I) and (O, I)")
    if call.has("bias"):
        call.same_type("x", "bias")
        call.fits("bias", (weight[0],))
    return [(call["x"].dtype, (*x[:-1], weight[0]))]


def _attention(call: Call) -> Results:
    call.same_type("query", "key", "value")
    dtype = call.float_type("query")
    q, k, v = (call[name].shape for name in ("query", "key", "value"))
    if min(len(q), len(k), len(v)) < 3 or q[-1] != k[-1] or k[-2] != v[-2] or not q[:-2] == k[:-2] == v[:-2]:
        call.refuse("query, key and value", f"{list(q)}, {list(k)} and {list(v)}",
                    "(..., L, E), (..., S, E) and (..., S, V)")
    if call.has("attn_mask"):
        call.fits("attn_mask", (*q[:-1], k[-2]))
    return [(dtype, (*q[:-1], v[-1]))]


def _attention_values(call: Call, x: Arrays) -> Any:
    query, key, value = x["query"], x["key"], x["value"]
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1], dtype=query.dtype)
    if "attn_mask" in x:
        mask = x["attn_mask"]
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    return softmax(scores, -1) @ value


OPERATIONS: dict[str, Rule] = {
    **dict.fromkeys(UNARY, Rule(_unary, _unary_values)), **dict.fromkeys(ANY_UNARY, Rule(_any_unary, _unary_values)),
    **dict.fromkeys(BINARY, Rule(_binary, lambda call, x: BINARY[call.operation.op](x["x"], x["y"]))),
    **dict.fromkeys(REDUCE, Rule(_reduce, _reduce_values)),
    "softmax": Rule(_softmax, _softmax_values),
    "reshape": Rule(_reshape, lambda call, x: x["x"].reshape(_reshaped(call))),
    "transpose": Rule(_transpose, lambda call, x: x["x"].transpose(_permuted(call))),
    "slice_by_size": Rule(_slice, lambda call, x: x["x"][_slices(call)]),
    "concat": Rule(_concat, _concat_values),
    "split": Rule(_split, _split_values),
    "expand_dims": Rule(_expand, lambda call, x: x["x"].reshape(_expand(call)[0][1])),
    "squeeze": Rule(_squeeze, lambda call, x: x["x"].reshape(_squeeze(call)[0][1])),
    "cast": Rule(_cast, lambda call, x: x["x"]),
    "matmul": Rule(_matmul, _matmul_values),
    "linear": Rule(_linear, lambda call, x: x["x"] @ x["weight"].T + x.get("bias", x["x"].dtype.type(0))),
    "scaled_dot_product_attention": Rule(_attention, _attention_values),
    "conv": CONVOLUTION, **COMPRESSED}
