"""Random operators without weights, with their inputs: the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from npulab.quant.layers import OPERATIONS, Operation, Placeholder
from npulab.quant.rules import QuantParams

Random = np.random.RandomState
EIGHT = ("int8", "uint8")
# the types of each kind that TensorFlow Lite's reference kernels take and npulab knows
TYPES = {
    "ADD": (*EIGHT, "int16", "float32"),
    "SUB": (*EIGHT, "int16", "float32"),
    "MUL": (*EIGHT, "int16", "float32"),
    "MAXIMUM": (*EIGHT, "float32"),
    "MINIMUM": (*EIGHT, "float32"),
    "RELU": (*EIGHT, "float32"),
    "RELU6": (*EIGHT, "float32"),
    "RELU_N1_TO_1": ("float32",),
    "LEAKY_RELU": (*EIGHT, "int16", "float32"),
    "LOGISTIC": EIGHT,
    "TANH": EIGHT,
    "HARD_SWISH": EIGHT,
    "SOFTMAX": EIGHT,
    "QUANTIZE": (*EIGHT, "int16"),
    "DEQUANTIZE": (*EIGHT, "int16"),
    "MEAN": EIGHT,
    "ARG_MAX": (*EIGHT, "float32"),
    "RESIZE_BILINEAR": EIGHT,
    "CONCATENATION": (*EIGHT, "int16"),
}
MOVES = (*EIGHT, "int16", "float32")
KINDS = tuple(OPERATIONS)


def random_operation(
    seed: int, kinds: tuple[str, ...] = KINDS
) -> tuple[Operation, tuple[np.ndarray, ...]]:
    """(operation, the tensors that it takes) of a seed."""
    random = Random(seed)
    kind = kinds[random.randint(len(kinds))]
    dtype = _pick(random, TYPES.get(kind, MOVES))
    return MAKERS[kind](random, kind, dtype)


def _pick(random: Random, values: Any) -> Any:
    return values[random.randint(len(values))]


def _shape(random: Random, axes: int = 0) -> tuple[int, ...]:
    axes = axes or int(random.choice([1, 2, 3, 4, 4]))
    return tuple(int(n) for n in random.choice([1, 2, 3, 4, 5, 7, 8, 12], axes))


def _q(random: Random, dtype: str, low: float = -9, high: float = 1) -> QuantParams:
    if dtype == "float32":
        return QuantParams(1.0)
    scale = (
        2.0 ** random.randint(low, high)
        if random.rand() < 0.25
        else float(np.float32(2 ** random.uniform(low, high)))
    )
    info = np.iinfo(dtype)
    return QuantParams(
        scale, 0 if dtype == "int16" else int(random.randint(info.min, info.max + 1))
    )


def _values(random: Random, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype == "float32":
        return (random.normal(size=shape) * 10 ** random.uniform(-2, 2)).astype(np.float32)
    info = np.iinfo(dtype)
    x = random.randint(info.min, info.max + 1, shape)
    return (x if random.rand() < 0.7 else x // 2 ** random.randint(1, 7)).astype(dtype)


def _made(
    random: Random,
    kind: str,
    inputs: Any,
    output: Placeholder,
    constants: Any = (),
    part: int = 0,
    **options: Any,
) -> tuple[Operation, tuple[np.ndarray, ...]]:
    layer = Operation(kind, tuple(inputs), output, options, dict(constants), part)
    return layer, tuple(
        _values(random, layer.inputs[place].shape, layer.inputs[place].dtype)
        for place in layer.moving
    )


def _near(random: Random, q: QuantParams, dtype: str) -> QuantParams:
    """Of a scale near another's, or the same."""
    if dtype == "float32" or random.rand() < 0.3:
        return q
    other = _q(random, dtype)
    return QuantParams(float(np.float32(q.scale * 2 ** random.uniform(-2, 2))), other.zero_point)


def _paired(random: Random, kind: str, dtype: str) -> Any:
    shape = _shape(random)
    other = (
        tuple(size if random.rand() < 0.6 else 1 for size in shape)
        if random.rand() < 0.5
        else shape
    )
    if random.rand() < 0.3:
        other = other[int(random.randint(len(other))) :]
    shapes = [shape, other] if random.rand() < 0.7 else [other, shape]
    q = _q(random, dtype)
    qs = [q, q, q]
    if kind in ("ADD", "SUB"):
        qs = [
            q,
            _near(random, q, dtype),
            QuantParams(
                float(np.float32(q.scale * 2 ** random.uniform(-3, 3))),
                _q(random, dtype).zero_point,
            ),
        ]
    elif kind == "MUL":
        other_q = _q(random, dtype, -6, 0)
        qs = [
            q,
            other_q,
            QuantParams(
                float(np.float32(q.scale * other_q.scale * 2 ** random.uniform(1, 9))),
                _q(random, dtype).zero_point,
            ),
        ]
    if dtype == "float32":
        qs = [q, q, q]
    inputs = [Placeholder(one, dtype, scale) for one, scale in zip(shapes, qs, strict=False)]
    constants = {}
    if random.rand() < 0.3:
        place = int(random.randint(2))
        constants[place] = _values(random, shapes[place], dtype)
    options = (
        {"activation": _pick(random, (None, None, "relu", "relu6", "relu_n1_to_1"))}
        if kind in ("ADD", "SUB", "MUL")
        else {}
    )
    return _made(
        random,
        kind,
        inputs,
        Placeholder(np.broadcast_shapes(*shapes), dtype, qs[2]),
        constants,
        **options,
    )


def _single(random: Random, kind: str, dtype: str) -> Any:
    shape, q = _shape(random), _q(random, dtype, -8, 0)
    out = _near(random, q, dtype)
    if kind in ("LOGISTIC", "SOFTMAX"):
        out = QuantParams(1 / 256, 0 if dtype == "uint8" else -128)
    elif kind == "TANH":
        out = QuantParams(1 / 128, 128 if dtype == "uint8" else 0)
    elif kind == "HARD_SWISH":
        q = _q(random, dtype, -7, -2)
        out = QuantParams(
            float(np.float32(q.scale * 2 ** random.uniform(-0.9, 1))), _q(random, dtype).zero_point
        )
    options = {
        "SOFTMAX": {"beta": _pick(random, (1.0, 1.0, 0.5, 2.0))},
        "LEAKY_RELU": {"alpha": float(np.float32(random.uniform(0.01, 0.9)))},
    }.get(kind, {})
    if kind == "SOFTMAX":
        q = _q(random, dtype, -8, 1)
    return _made(
        random, kind, [Placeholder(shape, dtype, q)], Placeholder(shape, dtype, out), **options
    )


def _converted(random: Random, kind: str, dtype: str) -> Any:
    shape, q = _shape(random), _q(random, dtype, -8, 2)
    if kind == "DEQUANTIZE":
        return _made(random, kind, [Placeholder(shape, dtype, q)], Placeholder(shape, "float32"))
    source = _pick(random, {"int16": ("int8", "int16", "float32")}.get(dtype, (*EIGHT, "float32")))
    from_q = _q(random, source, -8, 2)
    if source != "float32":
        q = QuantParams(float(np.float32(from_q.scale * 2 ** random.uniform(-3, 3))), q.zero_point)
    return _made(random, kind, [Placeholder(shape, source, from_q)], Placeholder(shape, dtype, q))


def _int32(*values: Any) -> np.ndarray:
    return np.array(
        values if len(values) != 1 or not isinstance(values[0], list | tuple) else values[0],
        np.int32,
    )


def _shaped(random: Random, kind: str, dtype: str) -> Any:
    shape, q = _shape(random, 0), _q(random, dtype)
    one = Placeholder(shape, dtype, q)
    if kind == "TRANSPOSE":
        order = random.permutation(len(shape))
        return _made(
            random,
            kind,
            [one, Placeholder((len(shape),), "int32")],
            Placeholder(tuple(shape[n] for n in order), dtype, q),
            {1: _int32(order.tolist())},
        )
    if kind == "RESHAPE":
        new = (1, math.prod(shape)) if random.rand() < 0.5 else (math.prod(shape),)
        return _made(
            random,
            kind,
            [one, Placeholder((len(new),), "int32")],
            Placeholder(new, dtype, q),
            {1: _int32(list(new))},
        )
    if kind == "EXPAND_DIMS":
        axis = int(random.randint(len(shape) + 1))
        return _made(
            random,
            kind,
            [one, Placeholder((1,), "int32")],
            Placeholder((*shape[:axis], 1, *shape[axis:]), dtype, q),
            {1: _int32([axis])},
        )
    if kind == "SQUEEZE":
        shape = (*shape[:2], 1, *shape[2:])
        return _made(
            random,
            kind,
            [Placeholder(shape, dtype, q)],
            Placeholder(tuple(n for n in shape if n != 1), dtype, q),
        )
    begins = [int(random.randint(n)) for n in shape]
    sizes = [int(random.randint(1, n - begin + 1)) for n, begin in zip(shape, begins, strict=True)]
    several = [Placeholder((len(shape),), "int32")]
    if kind == "SLICE":
        return _made(
            random,
            kind,
            [one, *several * 2],
            Placeholder(tuple(sizes), dtype, q),
            {1: _int32(begins), 2: _int32(sizes)},
        )
    if kind == "STRIDED_SLICE":
        strides = [int(_pick(random, (1, 1, 2, -1))) for _ in shape]
        masks = {
            name: int(random.randint(2 ** len(shape))) if random.rand() < 0.3 else 0
            for name in ("begin_mask", "end_mask", "shrink_axis_mask")
        }
        for n in range(len(shape)):
            if masks["shrink_axis_mask"] >> n & 1:
                strides[n] = 1
        ends = [
            begin + size if step > 0 else begin - size
            for begin, size, step in zip(begins, sizes, strides, strict=True)
        ]
        ends = [end if end >= 0 else -n - 1 for end, n in zip(ends, shape, strict=True)]
        wanted = tuple(
            begin
            if masks["shrink_axis_mask"] >> n & 1
            else slice(
                None if masks["begin_mask"] >> n & 1 else begin,
                None if masks["end_mask"] >> n & 1 else end,
                step,
            )
            for n, (begin, end, step) in enumerate(zip(begins, ends, strides, strict=True))
        )
        out = np.zeros(shape)[wanted].shape
        if 0 in out:
            return _shaped(random, kind, dtype)
        return _made(
            random,
            kind,
            [one, *several * 3],
            Placeholder(out, dtype, q),
            {1: _int32(begins), 2: _int32(ends), 3: _int32(strides)},
            **masks,
        )
    sides = random.randint(0, 3, (len(shape), 2))
    inputs, constants = [one, Placeholder((len(shape), 2), "int32")], {1: sides.astype(np.int32)}
    if kind == "PADV2":
        inputs.append(Placeholder((1,), dtype, q))
        constants[2] = _values(random, (1,), dtype)
    return _made(
        random,
        kind,
        inputs,
        Placeholder(
            tuple(int(n + sum(more)) for n, more in zip(shape, sides, strict=True)), dtype, q
        ),
        constants,
    )


def _joined(random: Random, kind: str, dtype: str) -> Any:
    shape, q, count = _shape(random), _q(random, dtype), int(random.randint(1, 4))
    if kind == "PACK":
        axis = int(random.randint(len(shape) + 1))
        return _made(
            random,
            kind,
            [Placeholder(shape, dtype, q)] * count,
            Placeholder((*shape[:axis], count, *shape[axis:]), dtype, q),
            axis=axis,
        )
    axis = int(random.randint(len(shape)))
    sizes = [int(random.randint(1, 6)) for _ in range(count)]
    inputs = [
        Placeholder(
            (*shape[:axis], size, *shape[axis + 1 :]),
            dtype,
            _near(random, q, dtype) if dtype == "uint8" else q,
        )
        for size in sizes
    ]
    return _made(
        random,
        kind,
        inputs,
        Placeholder((*shape[:axis], sum(sizes), *shape[axis + 1 :]), dtype, q),
        axis=axis - len(shape) * int(random.rand() < 0.3),
    )


def _apart(random: Random, kind: str, dtype: str) -> Any:
    shape, q, count = _shape(random), _q(random, dtype), int(random.randint(1, 4))
    axis = int(random.randint(len(shape)))
    part = int(random.randint(count))
    if kind == "UNPACK":
        whole = (*shape[:axis], count, *shape[axis:])
        return _made(
            random,
            kind,
            [Placeholder(whole, dtype, q)],
            Placeholder(shape, dtype, q),
            part=part,
            axis=axis,
        )
    sizes = (
        [shape[axis]] * count
        if kind == "SPLIT"
        else [int(random.randint(1, 5)) for _ in range(count)]
    )
    whole = Placeholder((*shape[:axis], sum(sizes), *shape[axis + 1 :]), dtype, q)
    out = Placeholder((*shape[:axis], sizes[part], *shape[axis + 1 :]), dtype, q)
    if kind == "SPLIT":
        return _made(
            random,
            kind,
            [Placeholder((), "int32"), whole],
            out,
            {0: np.array(axis, np.int32)},
            part,
        )
    return _made(
        random,
        kind,
        [whole, Placeholder((count,), "int32"), Placeholder((), "int32")],
        out,
        {1: _int32(sizes), 2: np.array(axis, np.int32)},
        part,
    )


def _mean(random: Random, kind: str, dtype: str) -> Any:
    shape, q = _shape(random), _q(random, dtype)
    axes = [n for n in range(len(shape)) if random.rand() < 0.5] or [
        int(random.randint(len(shape)))
    ]
    if random.rand() < 0.4:
        shape, axes = _shape(random, 4), [1, 2]
    keep = random.rand() < 0.5
    out = tuple(1 if n in axes else size for n, size in enumerate(shape) if keep or n not in axes)
    return _made(
        random,
        kind,
        [Placeholder(shape, dtype, q), Placeholder((len(axes),), "int32")],
        Placeholder(out, dtype, _near(random, q, dtype)),
        {1: _int32(axes)},
    )


def _arg_max(random: Random, kind: str, dtype: str) -> Any:
    shape, q = _shape(random), _q(random, dtype)
    axis = int(random.randint(len(shape)))
    return _made(
        random,
        kind,
        [Placeholder(shape, dtype, q), Placeholder((1,), "int32")],
        Placeholder((*shape[:axis], *shape[axis + 1 :]), _pick(random, ("int32", "int64"))),
        {1: _int32([axis])},
    )


def _resize(random: Random, kind: str, dtype: str) -> Any:
    shape, q = _shape(random, 4), _q(random, dtype)
    size = [int(n) for n in random.randint(1, 17, 2)]
    align = int(random.rand() < 0.3)
    centred = 0 if align else int(random.rand() < 0.5)
    return _made(
        random,
        kind,
        [Placeholder(shape, dtype, q), Placeholder((2,), "int32")],
        Placeholder((shape[0], *size, shape[3]), dtype, q),
        {1: _int32(size)},
        align_corners=align,
        half_pixel_centers=centred,
    )


MAKERS: dict[str, Callable[[Random, str, str], Any]] = {
    **dict.fromkeys(("ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM"), _paired),
    **dict.fromkeys(
        (
            "RELU",
            "RELU6",
            "RELU_N1_TO_1",
            "LEAKY_RELU",
            "LOGISTIC",
            "TANH",
            "HARD_SWISH",
            "SOFTMAX",
        ),
        _single,
    ),
    **dict.fromkeys(("QUANTIZE", "DEQUANTIZE"), _converted),
    **dict.fromkeys(("CONCATENATION", "PACK"), _joined),
    **dict.fromkeys(("SPLIT", "SPLIT_V", "UNPACK"), _apart),
    "MEAN": _mean,
    "ARG_MAX": _arg_max,
    **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), _resize),
    **dict.fromkeys(
        (
            "RESHAPE",
            "SQUEEZE",
            "EXPAND_DIMS",
            "TRANSPOSE",
            "SLICE",
            "STRIDED_SLICE",
            "PAD",
            "PADV2",
        ),
        _shaped,
    ),
}
