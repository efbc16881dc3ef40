"""The operations of MIL that are understood: what is known of their arguments, what shape they
give, and what values.

Names, arguments and defaults are those of Core ML's MIL operations (coremltools documentation, MIL
Ops).  Sums and products are taken in the type of the arrays given, which the caller chooses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from npulab.npus.ane.training.mil.values import DTYPES, MOST_AXES, File, Operation, Type, Value
from npulab.npus.kit import ceil_div, refuse_if

Arrays = dict[str, Any]
Shape = tuple[int, ...]
MOST_NUMBERS = 2**12  # of an argument that says axes or sizes
KINDS = {"fiu": "numbers", "f": "floats"}  # letters of DTYPES


class Known(NamedTuple):
    """What a name stands for: its type, the constant if it is one and not in a file, and the name
    or value that an argument has it from."""

    type: Type
    constant: Any = None
    source: str | Value | None = None

    @property
    def shape(self) -> Shape:
        return tuple(size for size in self.type.shape if size is not None)

    @property
    def dtype(self) -> str:
        return self.type.dtype


@dataclass(frozen=True)
class Call:
    """An operation and its arguments by name, each ``Known`` or a tuple of them."""

    operation: Operation
    given: dict[str, Any]

    def refuse(self, what: str, got: object, allowed: str) -> NoReturn:
        raise ValueError(f"mil: {self.operation}: {what}: got {got}, allowed is {allowed}")

    def __getitem__(self, name: str) -> Known:
        """A tensor or number among the arguments."""
        argument = self.given.get(name)
        if not isinstance(argument, Known):
            self.refuse(name, "nothing" if argument is None else "several", "one tensor or number")
        return argument

    def has(self, name: str) -> bool:
        return name in self.given

    def constant(self, name: str, default: Any = None) -> Any:
        """The constant of an argument: a number, bool or string, or the tuple of a tensor's
        elements."""
        if name not in self.given and default is not None:
            return default
        constant = self[name].constant
        if constant is None:
            self.refuse(name, "what is not known before the program runs", "a constant in the text")
        return constant

    def whole(self, name: str, default: int | None = None) -> int:
        constant = self.constant(name, default)
        if isinstance(constant, tuple) and len(constant) == 1:
            constant = constant[0]
        return self._of(int, name, constant, "a whole number")

    def number(self, name: str, default: float) -> float:
        return self._of(int | float, name, self.constant(name, default), "a number")

    def flag(self, name: str, default: bool) -> bool:
        argument = self.given.get(name)
        constant = default
        if isinstance(argument, Known):
            constant = argument.constant
        return self._of(bool, name, constant, "true or false")

    def _of(self, types: Any, name: str, constant: Any, allowed: str) -> Any:
        """A constant of the types; a bool is no number."""
        if not isinstance(constant, types) or isinstance(constant, bool) != (types is bool):
            self.refuse(name, _short(constant), allowed)
        return constant

    def wholes(
        self, name: str, default: Sequence[int] | None = None, count: int | None = None
    ) -> tuple[int, ...]:
        constant = self.constant(name, None if default is None else tuple(default))
        if isinstance(constant, tuple):
            numbers = constant
        else:
            numbers = (constant,)
        if len(numbers) > MOST_NUMBERS:
            self.refuse(name, f"{len(numbers)} elements", f"up to {MOST_NUMBERS}")
        if any(
            isinstance(number, bool) or not isinstance(number, int) for number in numbers
        ) or count not in (None, len(numbers)):
            self.refuse(
                name, _short(numbers), f"{'' if count is None else f'{count} '}whole numbers"
            )
        return numbers

    def word(self, name: str, allowed: Sequence[str], default: str | None = None) -> str:
        word = self.constant(name, default)
        if word not in allowed:
            self.refuse(name, repr(word), f"one of {', '.join(allowed)}")
        return str(word)

    def axis(self, name: str, rank: int, default: int | None = None) -> int:
        """An axis, counted from the end where it is below 0."""
        return self._axes(name, [self.whole(name, default)], rank)[0]

    def axes(self, name: str, rank: int, default: Sequence[int] | None = None) -> tuple[int, ...]:
        axes = self._axes(name, self.wholes(name, default), rank)
        if len(set(axes)) < len(axes):
            self.refuse(name, list(axes), "each axis once")
        return axes

    def _axes(self, name: str, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        for axis in axes:
            if not -rank <= axis < rank:
                self.refuse(name, axis, f"{-rank} to {rank - 1}")
        return tuple(axis % rank for axis in axes)

    def dtype(self, name: str, kinds: str = "fiu") -> str:
        """The element type of an argument, which is one of numbers, or of floats (kinds "f")."""
        if DTYPES[self[name].dtype][0] not in kinds:
            self.refuse(name, self[name].type, KINDS[kinds])
        return self[name].dtype

    def same_type(self, *names: str) -> str:
        """The element type that some arguments share."""
        if len({self[name].dtype for name in names}) > 1:
            types = ", ".join(str(self[name].type) for name in names)
            self.refuse(" and ".join(names), types, "one element type")
        return self[names[0]].dtype

    def fits(self, name: str, shape: Shape) -> None:
        """Refuse an argument that does not broadcast to a shape."""
        if broadcast(self[name].shape, shape) != shape:
            self.refuse(name, list(self[name].shape), f"what broadcasts to {list(shape)}")


Results = list[tuple[str, Shape]]
Compute = Callable[[Call, dict[str, Any]], Any]


class Rule(NamedTuple):
    """What an operation gives: the element types and shapes, and the values ``(call, arrays by
    argument)``, one array or a list of them."""

    infer: Callable[[Call], Results]
    compute: Compute


def broadcast(*shapes: Shape) -> Shape | None:
    """The shape that shapes broadcast to, or None if they do not."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def known(value: Value) -> Known:
    """A constant's type, and its data where it is in the text; a bare literal is a number of the
    usual type."""
    if isinstance(value.type, Type):
        return Known(value.type, None if isinstance(value.data, File) else value.data, value)
    usual = {bool: "bool", int: "int32", float: "fp32", str: "string"}.get(type(value.data))
    if value.type is not None or usual is None:
        raise ValueError(
            f"mil: constant: got {value.type or 'brackets'}, allowed is a tensor, number, bool or "
            "string"
        )
    if usual == "int32" and not -(2**31) <= value.data < 2**31:
        raise ValueError(
            f"mil: constant: got {value.data!s:.40}, allowed for a bare number are those of int32"
        )
    return Known(Type(usual, plain=True), value.data, value)


def numpy_type(dtype: str) -> np.dtype[Any]:
    """The numpy type that holds elements; raises LookupError for one that numpy does not have."""
    refuse_if(dtype in ("bf16", "string"), "dtype", dtype, "is one that numpy has", LookupError)
    kind, bits = DTYPES[dtype]
    return np.dtype("bool" if kind == "b" else f"{kind}{max(bits // 8, 1)}")


def _short(constant: object) -> str:
    text = repr(list(constant) if isinstance(constant, tuple) else constant)
    if len(text) <= 60:
        return text
    return f"{text[:57]}..."


# Weights that a program stores in fewer bits: codes with scales, and indices into tables


def _affine(call: Call) -> Results:
    """``scale * (quantized_data - zero_point)``, scale and zero point one or one for each index of
    an axis."""
    shape = call["quantized_data"].shape
    size = shape[call.axis("axis", len(shape))]
    call.dtype("quantized_data")
    for name in ("scale", "zero_point"):
        call.dtype(name)
        if call[name].shape not in ((), (size,)):
            call.refuse(name, list(call[name].shape), f"[] or [{size}]")
    return [(call.dtype("scale", "f"), shape)]


def _affine_values(call: Call, x: Arrays) -> Any:
    codes, scale, zero = x["quantized_data"], x["scale"], x["zero_point"]
    along = [1] * codes.ndim
    along[call.axis("axis", codes.ndim)] = -1
    scale, zero = (array.reshape(along) if array.ndim else array for array in (scale, zero))
    return scale * (codes.astype(scale.dtype) - zero.astype(scale.dtype))


def _blocks(call: Call, name: str, shape: Shape) -> None:
    """Refuse sizes that do not divide those of a shape."""
    have = call[name].shape[: len(shape)]
    if len(have) < len(shape) or any(
        part < 1 or size % part for part, size in zip(have, shape, strict=True)
    ):
        call.refuse(name, list(call[name].shape), f"sizes that divide those of {list(shape)}")


def _spread(array: np.ndarray, shape: Shape) -> np.ndarray:
    """Each element of the first axes repeated for the block that it stands for."""
    for axis, size in enumerate(shape):
        array = np.repeat(array, size // array.shape[axis], axis)
    return array


def _blockwise(call: Call) -> Results:
    """``scale * (data - offset)``, scale and offset for blocks of the data, sizes along every
    axis."""
    shape = call["data"].shape
    call.dtype("data")
    for name in ["scale", "offset"] if call.has("offset") else ["scale"]:
        call.dtype(name)
        if len(call[name].shape) != len(shape):
            call.refuse(name, list(call[name].shape), f"the rank of {list(shape)}")
        _blocks(call, name, shape)
    return [(call.dtype("scale", "f"), shape)]


def _blockwise_values(call: Call, x: Arrays) -> Any:
    data, scale = x["data"], x["scale"]
    if "offset" in x:
        offset = _spread(x["offset"], data.shape)
    else:
        offset = np.zeros((), scale.dtype)
    return _spread(scale, data.shape) * (data.astype(scale.dtype) - offset.astype(scale.dtype))


def _looked_up(call: Call) -> Results:
    """``lut[..., indices, 0]``: tables (blocks of the indices ..., entries, 1) of one number an
    entry."""
    indices, table = call["indices"], call["lut"].shape
    shape = indices.shape
    if (
        call.has("shape")
        or not indices.dtype.startswith("uint")
        or len(table) != len(shape) + 2
        or table[-1] != 1
    ):
        call.refuse(
            "indices and lut",
            f"{indices.type} and {call['lut'].type}",
            "unsigned indices, and tables of two axes more, the last of size 1 (no argument shape)",
        )
    _blocks(call, "lut", shape)
    if table[-2] < 1:
        call.refuse("lut", list(table), "1 entry or more")
    return [(call["lut"].dtype, shape)]


def _looked_up_values(call: Call, x: Arrays) -> Any:
    indices, table = x["indices"], x["lut"][..., 0]
    if indices.size and int(indices.max()) >= table.shape[-1]:
        call.refuse(
            "indices", int(indices.max()), f"0 to {table.shape[-1] - 1}, the entries of the table"
        )
    blocks = np.ogrid[tuple(slice(size) for size in indices.shape)]
    at = tuple(
        index // (size // part)
        for index, size, part in zip(blocks, indices.shape, table.shape, strict=False)
    )
    return table[(*at, indices)]


# Convolution: weights ``(O, I / groups, *kernel)``, one to three spatial axes after channels

PAD_TYPES = ("valid", "same", "same_lower", "custom")
MOST_PAD = 2**16
MOST_PADDED = 2**26  # elements


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
        call.refuse(
            "x and weight",
            f"{list(x)} and {list(weight)}",
            "(N, I, ...) and (O, I, ...) of 1 to 3 axes more",
        )
    groups = call.whole("groups", 1)
    if groups < 1 or weight[0] % groups or x[1] != weight[1] * groups:
        call.refuse(
            "x and weight",
            f"{list(x)} and {list(weight)} in {groups} groups",
            f"{x[1]} channels as weight's axis 1 times the groups, which divide axis 0",
        )
    strides, dilations = (call.wholes(name, [1] * rank, rank) for name in ("strides", "dilations"))
    if min(*strides, *dilations, *weight) < 1:
        call.refuse(
            "strides, dilations and weight",
            f"{list(strides)}, {list(dilations)}, {list(weight)}",
            "1 or more",
        )
    kind = call.word("pad_type", PAD_TYPES, "valid")
    spans = [
        (kernel - 1) * dilation + 1 for kernel, dilation in zip(weight[2:], dilations, strict=True)
    ]
    if kind == "custom":
        pad = call.wholes("pad", [0] * (2 * rank), 2 * rank)
        if not 0 <= min(pad) <= max(pad) <= MOST_PAD:
            call.refuse("pad", list(pad), f"0 to {MOST_PAD}")
        pads = tuple(zip(pad[::2], pad[1::2], strict=True))
    elif kind == "valid":
        pads = ((0, 0),) * rank
    else:
        wholes = [
            max((ceil_div(size, stride) - 1) * stride + span - size, 0)
            for size, stride, span in zip(x[2:], strides, spans, strict=True)
        ]
        pads = tuple(
            (whole // 2, ceil_div(whole, 2)) if kind == "same" else (ceil_div(whole, 2), whole // 2)
            for whole in wholes
        )
    padded, padding = (
        [size + sum(pad) for size, pad in zip(x[2:], pads, strict=True)],
        [*map(list, pads)],
    )
    if math.prod([*x[:2], *padded]) > MOST_PADDED:
        call.refuse("x", f"{list(x)}, padded {padding}", f"up to {MOST_PADDED} elements")
    outputs = tuple(
        (size - span) // stride + 1
        for size, span, stride in zip(padded, spans, strides, strict=True)
    )
    if min(outputs) < 1:
        call.refuse(
            "x and weight",
            f"{list(x)} and {list(weight)}, padded {padding}",
            "a kernel that fits into x",
        )
    return Geometry(strides, dilations, pads, outputs, groups)


def _infer(call: Call) -> Results:
    call.same_type("x", "weight", *["bias"] * call.has("bias"))
    dtype, shape, outputs = call.dtype("x"), geometry(call), call["weight"].shape[0]
    if call.has("bias") and call["bias"].shape not in (
        (outputs,),
        (1, outputs),
        (1, outputs, *(1,) * len(shape.pads)),
    ):
        call.refuse("bias", list(call["bias"].shape), f"[{outputs}]")
    return [(dtype, (call["x"].shape[0], outputs, *shape.outputs))]


def _compute(call: Call, arrays: dict[str, Any]) -> Any:
    """One matrix product for each tap of the kernel."""
    x, weight, shape = arrays["x"], arrays["weight"], geometry(call)
    padded = x
    if any(map(any, shape.pads)):
        padded = np.pad(x, ((0, 0), (0, 0), *shape.pads))
    n, groups, outputs = x.shape[0], shape.groups, weight.shape[0]
    matrices = weight.reshape(groups, outputs // groups, *weight.shape[1:])
    out = np.zeros((n, groups, outputs // groups, int(np.prod(shape.outputs))), x.dtype)
    for tap in np.ndindex(*weight.shape[2:]):
        window = tuple(
            slice(at * dilation, at * dilation + (count - 1) * stride + 1, stride)
            for at, dilation, count, stride in zip(
                tap, shape.dilations, shape.outputs, shape.strides, strict=True
            )
        )
        seen = padded[(slice(None), slice(None), *window)].reshape(n, groups, weight.shape[1], -1)
        out += matrices[(slice(None), slice(None), slice(None), *tap)] @ seen
    whole = out.reshape(n, outputs, *shape.outputs)
    if "bias" in arrays:
        return whole + arrays["bias"].reshape(1, outputs, *(1,) * len(shape.pads))
    return whole


# The others


def sigmoid(x: np.ndarray) -> np.ndarray:
    """``1 / (1 + exp(-x))``, without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    """``exp(x) / sum(exp(x))`` along an axis, the largest taken off before."""
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "inverse": lambda x: 1 / x,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "relu": lambda x: np.maximum(x, 0),
    "sin": np.sin,
    "cos": np.cos,
    "identity": lambda x: x,
    "abs": np.abs,
    "square": np.square,
    "sign": np.sign,
}
ANY_NUMBER = ("abs", "square", "sign")  # the others take floats; identity takes everything
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "real_div": np.divide,
    "pow": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
REDUCE: dict[str, Callable[..., Any]] = {
    "reduce_sum": np.sum,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_mean": np.mean,
    "reduce_sum_square": lambda x, axis, keepdims: np.sum(np.square(x), axis, keepdims=keepdims),
}
EPSILON = {
    "log": 1e-45,
    "rsqrt": 1e-12,
    "inverse": 1e-4,
}  # what these add to x where nothing is said


def _unary(call: Call) -> Results:
    name = call.operation.op
    if name in ANY_NUMBER:
        call.dtype("x")
    elif name != "identity":
        call.number("epsilon", 0)
        call.dtype("x", "f")
    return [(call["x"].dtype, call["x"].shape)]


def _unary_values(call: Call, x: Arrays) -> Any:
    name = call.operation.op
    array = x["x"]
    if name in EPSILON:
        array = array + np.asarray(call.number("epsilon", EPSILON[name]), array.dtype)
    return UNARY[name](array)


def _binary(call: Call) -> Results:
    call.same_type("x", "y")
    dtype = call.dtype("x", "f" if call.operation.op in ("real_div", "pow") else "fiu")
    shapes = call["x"].shape, call["y"].shape
    shape = broadcast(*shapes)
    if shape is None:
        call.refuse(
            "x and y",
            f"{list(shapes[0])}, {list(shapes[1])}",
            "shapes that broadcast: sizes alike or 1, from the last axis on",
        )
    return [(dtype, shape)]


def _reduced(call: Call) -> tuple[tuple[int, ...], bool]:
    rank = len(call["x"].shape)
    return call.axes("axes", rank, range(rank)), call.flag("keep_dims", False)


def _reduce(call: Call) -> Results:
    axes, keep = _reduced(call)
    shape = call["x"].shape
    if any(shape[axis] == 0 for axis in axes):
        call.refuse("x", list(shape), "one element or more along the axes")
    return [
        (
            call.dtype("x"),
            tuple(
                1 if axis in axes else size
                for axis, size in enumerate(shape)
                if keep or axis not in axes
            ),
        )
    ]


def _reduce_values(call: Call, x: Arrays) -> Any:
    axes, keep = _reduced(call)
    return REDUCE[call.operation.op](x["x"], axis=axes, keepdims=keep)


def _softmax(call: Call) -> Results:
    call.axis("axis", len(call["x"].shape), -1)
    return _unary(call)


def _softmax_values(call: Call, x: Arrays) -> Any:
    if x["x"].size:
        return softmax(x["x"], call.axis("axis", x["x"].ndim, -1))
    return x["x"]


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
        call.refuse(
            "shape",
            list(call.wholes("shape")),
            f"a shape of the {math.prod(have)} elements of {list(have)}",
        )
    return tuple(wanted)


def _permuted(call: Call) -> tuple[int, ...]:
    rank = len(call["x"].shape)
    perm = call.axes("perm", rank)
    if len(perm) != rank:
        call.refuse("perm", list(perm), f"the {rank} axes of {list(call['x'].shape)}, each once")
    return perm


def _slices(call: Call) -> tuple[slice, ...]:
    shape = call["x"].shape
    begin, size = (call.wholes(name, count=len(shape)) for name in ("begin", "size"))
    out = []
    for axis, (have, start, length) in enumerate(zip(shape, begin, size, strict=True)):
        if length == -1:
            stop = have
        else:
            stop = start + length
        if not 0 <= start <= stop <= have:
            call.refuse(
                f"begin and size of axis {axis}",
                f"{start} and {stop - start}",
                f"a part of the {have} of {list(shape)}",
            )
        out.append(slice(start, stop))
    return tuple(out)


def _concat(call: Call) -> Results:
    values = call.given.get("values")
    if isinstance(values, Known) or not values:
        if values is None:
            got = "nothing"
        elif values:
            got = "one"
        else:
            got = "none"
        call.refuse("values", got, "one tensor or more in ( )")
    first = values[0]
    axis = call.axis("axis", len(first.shape))
    if call.flag("interleave", False):
        after = axis
    else:
        after = axis + 1
    alike = {
        (value.dtype, len(value.shape), value.shape[:axis] + value.shape[after:])
        for value in values
    }
    if len(alike) > 1:
        call.refuse(
            "values",
            ", ".join(str(value.type) for value in values),
            f"tensors that differ along axis {axis} only, interleaved ones not at all",
        )
    whole = sum(value.shape[axis] for value in values)
    return [(first.dtype, (*first.shape[:axis], whole, *first.shape[axis + 1 :]))]


def _concat_values(call: Call, x: Arrays) -> Any:
    axis = call.axis("axis", x["values"][0].ndim)
    if not call.flag("interleave", False):
        return np.concatenate(x["values"], axis)
    stacked = np.stack(x["values"], axis + 1)
    return stacked.reshape(*stacked.shape[:axis], -1, *stacked.shape[axis + 2 :])


def _parts(call: Call) -> tuple[int, tuple[int, ...]]:
    shape, outputs = call["x"].shape, len(call.operation.outputs)
    axis = call.axis("axis", len(shape))
    if call.has("split_sizes"):
        sizes = call.wholes("split_sizes")
    else:
        count = call.whole("num_splits")
        if count < 1 or shape[axis] % count:
            call.refuse("num_splits", count, f"a divisor of {shape[axis]}, the size of axis {axis}")
        sizes = (shape[axis] // count,) * min(count, outputs + 1)
    if len(sizes) != outputs or sum(sizes) != shape[axis] or min(sizes) < 0:
        call.refuse("split_sizes", list(sizes)[:8], f"{outputs} sizes that add up to {shape[axis]}")
    return axis, sizes


def _split(call: Call) -> Results:
    (axis, sizes), shape = _parts(call), call["x"].shape
    return [(call["x"].dtype, (*shape[:axis], size, *shape[axis + 1 :])) for size in sizes]


def _split_values(call: Call, x: Arrays) -> Any:
    axis, sizes = _parts(call)
    return np.split(x["x"], np.cumsum(sizes)[:-1].tolist(), axis)


def _expanded(call: Call) -> Shape:
    shape, axes = list(call["x"].shape), call.wholes("axes")
    if len(shape) + len(axes) > MOST_AXES:
        call.refuse("axes", f"{len(axes)} axes", f"up to {MOST_AXES - len(shape)}")
    for axis in sorted(call.axes("axes", len(shape) + len(axes))):
        shape.insert(axis, 1)
    return tuple(shape)


def _squeezed(call: Call) -> Shape:
    shape = call["x"].shape
    axes = call.axes("axes", len(shape), [axis for axis, size in enumerate(shape) if size == 1])
    if any(shape[axis] != 1 for axis in axes):
        call.refuse("axes", list(axes), f"axes of size 1 of {list(shape)}")
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _cast(call: Call) -> Results:
    allowed = [name for name, (letter, bits) in DTYPES.items() if letter == "b" or bits >= 8]
    return [(call.word("dtype", allowed), call["x"].shape)]


def _turned(call: Call, name: str, flag: str) -> Shape:
    shape = call[name].shape
    if len(shape) < 2:
        call.refuse(name, list(shape), "two axes or more")
    if call.flag(flag, False):
        return *shape[:-2], shape[-1], shape[-2]
    return shape


def _matmul(call: Call) -> Results:
    dtype = call.same_type("x", "y")
    x, y = _turned(call, "x", "transpose_x"), _turned(call, "y", "transpose_y")
    if x[-1] != y[-2]:
        call.refuse(
            "x and y",
            f"{list(call['x'].shape)} and {list(call['y'].shape)}, that is {x[-1]} columns times "
            f"{y[-2]} rows",
            "as many columns as rows, after transpose_x and transpose_y",
        )
    batch = broadcast(x[:-2], y[:-2])
    if batch is None:
        call.refuse(
            "x and y",
            f"{list(call['x'].shape)} and {list(call['y'].shape)}",
            "axes before the last two that broadcast",
        )
    return [(dtype, (*batch, x[-2], y[-1]))]


def _matmul_values(call: Call, x: Arrays) -> Any:
    left, right = (
        np.swapaxes(x[name], -1, -2) if call.flag(f"transpose_{name}", False) else x[name]
        for name in "xy"
    )
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
    dtype = call.dtype("query", "f")
    q, k, v = (call[name].shape for name in ("query", "key", "value"))
    if (
        min(len(q), len(k), len(v)) < 3
        or q[-1] != k[-1]
        or k[-2] != v[-2]
        or not q[:-2] == k[:-2] == v[:-2]
    ):
        call.refuse(
            "query, key and value",
            f"{list(q)}, {list(k)} and {list(v)}",
            "(..., L, E), (..., S, E) and (..., S, V)",
        )
    if call.has("attn_mask"):
        call.fits("attn_mask", (*q[:-1], k[-2]))
    return [(dtype, (*q[:-1], v[-1]))]


def _attention_values(call: Call, x: Arrays) -> Any:
    query, key, value = x["query"], x["key"], x["value"]
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1], dtype=query.dtype)
    if "attn_mask" in x:
        mask = x["attn_mask"]
        if mask.dtype == bool:
            scores = np.where(mask, scores, -np.inf)
        else:
            scores = scores + mask
    return softmax(scores, -1) @ value


def _moved(shape: Callable[[Call], Shape], values: Compute | None = None) -> Rule:
    """A rule for the elements of x in another shape, in the same order or by ``values``."""
    return Rule(
        lambda call: [(call["x"].dtype, shape(call))],
        values or (lambda call, x: x["x"].reshape(shape(call))),
    )


OPERATIONS: dict[str, Rule] = {
    **dict.fromkeys(UNARY, Rule(_unary, _unary_values)),
    **dict.fromkeys(
        BINARY, Rule(_binary, lambda call, x: BINARY[call.operation.op](x["x"], x["y"]))
    ),
    **dict.fromkeys(REDUCE, Rule(_reduce, _reduce_values)),
    "softmax": Rule(_softmax, _softmax_values),
    "reshape": _moved(_reshaped),
    "expand_dims": _moved(_expanded),
    "squeeze": _moved(_squeezed),
    "transpose": _moved(
        lambda call: tuple(call["x"].shape[axis] for axis in _permuted(call)),
        lambda call, x: x["x"].transpose(_permuted(call)),
    ),
    "slice_by_size": _moved(
        lambda call: tuple(part.stop - part.start for part in _slices(call)),
        lambda call, x: x["x"][_slices(call)],
    ),
    "concat": Rule(_concat, _concat_values),
    "split": Rule(_split, _split_values),
    "cast": Rule(_cast, lambda call, x: x["x"]),
    "matmul": Rule(_matmul, _matmul_values),
    "linear": Rule(
        _linear, lambda call, x: x["x"] @ x["weight"].T + x.get("bias", x["x"].dtype.type(0))
    ),
    "scaled_dot_product_attention": Rule(_attention, _attention_values),
    "conv": Rule(_infer, _compute),
    "constexpr_affine_dequantize": Rule(_affine, _affine_values),
    "constexpr_blockwise_shift_scale": Rule(_blockwise, _blockwise_values),
    "constexpr_lut_to_dense": Rule(_looked_up, _looked_up_values),
}
