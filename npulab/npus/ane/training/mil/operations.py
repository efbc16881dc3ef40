"""The operations of MIL that npulab can check and compute.

``OPERATIONS``, at the end, has a ``Rule`` for each operation: one function refuses wrong arguments
and infers the types and shapes of the outputs, one function computes the outputs. Names, arguments
and defaults are those of Core ML's MIL operations (coremltools documentation, MIL Ops). Sums and
products are computed in the numpy type of the arrays that the caller gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy import ndarray as Array

from npulab.npus.ane.training.mil.values import DTYPES, MOST_AXES, File, Operation, Type, Value
from npulab.npus.kit import ceil_div, refuse_if

Arrays = dict[str, Any]
# Sizes along axes, or indices of axes.
Shape = tuple[int, ...]
# An argument of axes or sizes has at most this many numbers.
MOST_NUMBERS = 2**12
# What an error calls the element types whose letters in DTYPES are one of the key.
KINDS = {"fiu": "numbers", "f": "floats"}
# The MIL type of a literal without a stated type, by its type in Python.
USUAL = {bool: "bool", int: "int32", float: "fp32", str: "string"}


class Known(NamedTuple):
    """What is known of a value before a program runs.

    ``constant`` is the data if the text states it, else None. ``source`` is what the text has as
    the argument: the name of a value, or a constant.
    """

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
    """An operation and its arguments by name; an argument is a ``Known`` or a tuple of
    ``Known``."""

    operation: Operation
    given: dict[str, Any]

    def refuse(self, what: str, got: object, allowed: str) -> NoReturn:
        """Raise ValueError about the argument or output ``what``; shapes are shown as lists."""
        if isinstance(got, tuple):
            got = _listed(got)
        raise ValueError(f"mil: {self.operation}: {what}: got {got}, allowed is {allowed}")

    def __getitem__(self, name: str) -> Known:
        """Return an argument that is a single value; raise ValueError for none and for several."""
        argument = self.given.get(name)
        if argument is None:
            self.refuse(name, "nothing", "one tensor or number")
        if not isinstance(argument, Known):
            self.refuse(name, "several", "one tensor or number")
        return argument

    def has(self, name: str) -> bool:
        return name in self.given

    def constant(self, name: str, default: Any = None) -> Any:
        """Return the data of an argument: a number, bool or string, or the tuple of a tensor's
        elements.

        Raises ValueError for an argument whose data the text does not state.
        """
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
        return self._of(bool, name, self.constant(name, default), "true or false")

    def _of(self, types: Any, name: str, constant: Any, allowed: str) -> Any:
        """Return a constant; raise ValueError if its Python type is none of ``types``.

        A bool is accepted only if ``types`` is bool.
        """
        if not isinstance(constant, types) or isinstance(constant, bool) != (types is bool):
            self.refuse(name, _short(constant), allowed)
        return constant

    def wholes(self, name: str, default: Shape | None = None, count: int | None = None) -> Shape:
        numbers = self.constant(name, default)
        if not isinstance(numbers, tuple):
            numbers = (numbers,)
        if len(numbers) > MOST_NUMBERS:
            self.refuse(name, f"{len(numbers)} elements", f"up to {MOST_NUMBERS}")
        allowed = "whole numbers"
        if count is not None:
            allowed = f"{count} whole numbers"
        # isinstance would accept a bool, because bool is a subclass of int.
        whole = all(type(number) is int for number in numbers)
        if not whole or count not in (None, len(numbers)):
            self.refuse(name, _short(numbers), allowed)
        return numbers

    def word(self, name: str, allowed: Sequence[str], default: str | None = None) -> str:
        word = self.constant(name, default)
        if word not in allowed:
            self.refuse(name, repr(word), f"one of {', '.join(allowed)}")
        return str(word)

    def axis(self, name: str, rank: int, default: int | None = None) -> int:
        """Return an argument that states an axis, as 0 to rank - 1; -1 means the last axis."""
        return self._axes(name, [self.whole(name, default)], rank)[0]

    def axes(self, name: str, rank: int, default: Shape | None = None) -> Shape:
        axes = self._axes(name, self.wholes(name, default), rank)
        if len(set(axes)) < len(axes):
            self.refuse(name, axes, "each axis once")
        return axes

    def _axes(self, name: str, axes: Sequence[int], rank: int) -> Shape:
        for axis in axes:
            if not -rank <= axis < rank:
                self.refuse(name, axis, f"{-rank} to {rank - 1}")
        return tuple(axis % rank for axis in axes)

    def dtype(self, name: str, kinds: str = "fiu") -> str:
        """Return the element type of an argument; raise ValueError for a type not of ``kinds``.

        ``kinds`` are letters: f for floats, i for signed integers, u for unsigned integers.
        """
        argument = self[name]
        letter, _ = DTYPES[argument.dtype]
        if letter not in kinds:
            self.refuse(name, argument.type, KINDS[kinds])
        return argument.dtype

    def same_type(self, *names: str) -> str:
        """Return the element type of the named arguments; raise ValueError if they have several."""
        arguments = [self[name] for name in names]
        dtypes = {argument.dtype for argument in arguments}
        if len(dtypes) > 1:
            types = ", ".join(str(argument.type) for argument in arguments)
            self.refuse(" and ".join(names), types, "one element type")
        return arguments[0].dtype

    def fits(self, name: str, shape: Shape) -> None:
        """Raise ValueError for an argument that does not broadcast to a shape, by numpy's rules."""
        have = self[name].shape
        if broadcast(have, shape) != shape:
            self.refuse(name, have, f"a shape that broadcasts to {list(shape)}")


Results = list[tuple[str, Shape]]
Compute = Callable[[Call, dict[str, Any]], Any]


class Rule(NamedTuple):
    """How an operation of MIL is checked and computed.

    ``infer`` refuses wrong arguments and returns the element type and shape of each output.
    ``compute`` gets the call and the arrays by argument name; it returns the output, or a list of
    several outputs.
    """

    infer: Callable[[Call], Results]
    compute: Compute


def broadcast(*shapes: Shape) -> Shape | None:
    """Return the shape to which numpy broadcasts all shapes, or None if they do not go together."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def known(value: Value) -> Known:
    """Return the type of a constant, and its data unless a weight file has the data.

    A literal without a type is a bool, an int32, an fp32 or a string.
    """
    data = value.data
    if isinstance(value.type, Type):
        if isinstance(data, File):
            return Known(value.type, None, value)
        return Known(value.type, data, value)
    usual = USUAL.get(type(data))
    if value.type is not None or usual is None:
        raise ValueError(
            f"mil: constant: got {value.type or 'brackets'}, allowed for an argument is a tensor, "
            "number, bool or string"
        )
    if usual == "int32" and not -(2**31) <= data < 2**31:
        raise ValueError(
            f"mil: constant: got {data!s:.40}, allowed for a number without a type is a number of "
            "int32"
        )
    return Known(Type(usual, plain=True), data, value)


def numpy_type(dtype: str) -> np.dtype[Any]:
    """Return the numpy type for elements of a MIL type; raise LookupError for bf16 and string.

    Elements of less than 8 bits take one byte each.
    """
    refuse_if(dtype in ("bf16", "string"), "dtype", dtype, "is one that numpy has", LookupError)
    kind, bits = DTYPES[dtype]
    if kind == "b":
        return np.dtype("bool")
    size = max(bits // 8, 1)
    return np.dtype(f"{kind}{size}")


def _listed(shape: tuple[Any, ...]) -> str:
    """Return a shape in brackets for an error, and a tuple of shapes joined by "and"."""
    if shape and isinstance(shape[0], tuple):
        return " and ".join(map(_listed, shape))
    return str([*shape])


def _short(constant: object) -> str:
    """Return a constant for an error, cut to 60 characters."""
    text = repr(constant)
    if isinstance(constant, tuple):
        text = _listed(constant)
    if len(text) <= 60:
        return text
    return f"{text[:57]}..."


# Weights stored in fewer bits: integers with a scale, or indices into a table of weights


def _affine(call: Call) -> Results:
    """Infer ``scale * (quantized_data - zero_point)``.

    ``scale`` and ``zero_point`` each have one number for the tensor, or one for each index of the
    argument ``axis``.
    """
    shape = call["quantized_data"].shape
    size = shape[call.axis("axis", len(shape))]
    call.dtype("quantized_data")
    for name in ("scale", "zero_point"):
        call.dtype(name)
        have = call[name].shape
        if have not in ((), (size,)):
            call.refuse(name, have, f"[] or [{size}]")
    return [(call.dtype("scale", "f"), shape)]


def _affine_values(call: Call, x: Arrays) -> Any:
    codes = x["quantized_data"]
    along = [1] * codes.ndim
    along[call.axis("axis", codes.ndim)] = -1
    scale = x["scale"].reshape(along)
    zero = x["zero_point"].reshape(along)
    return scale * (codes.astype(scale.dtype) - zero.astype(scale.dtype))


def _blocks(call: Call, name: str, shape: Shape) -> None:
    """Raise ValueError for an argument that does not cut a tensor of ``shape`` into equal blocks.

    The argument has one element a block: its size along each axis divides that of ``shape``.
    """
    whole = call[name].shape
    divides = len(whole) >= len(shape)
    for count, size in zip(whole, shape, strict=False):
        if count < 1 or size % count:
            divides = False
    if not divides:
        call.refuse(name, whole, f"sizes that divide those of {list(shape)}")


def _repeated(array: Array, shape: Shape) -> Array:
    """Return an array of ``shape`` from an array of one element a block of equal size."""
    for axis, size in enumerate(shape):
        array = np.repeat(array, size // array.shape[axis], axis)
    return array


def _blockwise(call: Call) -> Results:
    """Infer ``scale * (data - offset)``, with a scale and an offset for each block of the data.

    Along an axis, a block has as many elements as the size of ``data`` divided by that of ``scale``
    (or of ``offset``). ``offset`` may be missing.
    """
    shape = call["data"].shape
    call.dtype("data")
    for name in ("scale", "offset"):
        if not call.has(name):
            continue
        call.dtype(name)
        have = call[name].shape
        if len(have) != len(shape):
            call.refuse(name, have, f"the rank of {list(shape)}")
        _blocks(call, name, shape)
    return [(call.dtype("scale", "f"), shape)]


def _blockwise_values(call: Call, x: Arrays) -> Any:
    scale = x["scale"]
    codes = x["data"].astype(scale.dtype)
    shape = codes.shape
    if "offset" in x:
        codes = codes - _repeated(x["offset"], shape).astype(scale.dtype)
    return _repeated(scale, shape) * codes


def _looked_up(call: Call) -> Results:
    """Infer ``lut[..., indices, 0]``, where each index is looked up in the table of its block.

    ``lut`` has the shape (blocks along each axis of ``indices``..., entries of a table, 1).
    """
    indices = call["indices"]
    table = call["lut"].shape
    shape = indices.shape
    fits = len(table) == len(shape) + 2 and table[-1] == 1
    if call.has("shape") or not indices.dtype.startswith("uint") or not fits:
        call.refuse(
            "indices and lut",
            f"{indices.type} and {call['lut'].type}",
            "unsigned indices, and tables of two axes more, the last of size 1 (no argument shape)",
        )
    _blocks(call, "lut", shape)
    if table[-2] < 1:
        call.refuse("lut", table, "1 entry or more")
    return [(call["lut"].dtype, shape)]


def _looked_up_values(call: Call, x: Arrays) -> Any:
    indices = x["indices"]
    table = x["lut"][..., 0]
    highest = int(indices.max(initial=0))
    last = table.shape[-1] - 1
    if highest > last:
        call.refuse("indices", highest, f"0 to {last}, the entries of the table")
    blocks = np.ogrid[tuple(map(slice, indices.shape))]
    at = []
    for index, size, count in zip(blocks, indices.shape, table.shape, strict=False):
        at.append(index // (size // count))
    return table[(*at, indices)]


# Convolution: input (N, I, *sizes), weights (O, I / groups, *kernel), one to three spatial axes

PAD_TYPES = ("valid", "same", "same_lower", "custom")
MOST_PAD = 2**16
# An input with its padding has at most this many elements.
MOST_PADDED = 2**26
Pads = tuple[tuple[int, int], ...]


class Geometry(NamedTuple):
    """The geometry of a convolution.

    For each spatial axis: the stride, the dilation, the padding (elements before, elements after)
    and the size of the output. ``groups`` is the number of groups of channels.
    """

    strides: Shape
    dilations: Shape
    pads: Pads
    outputs: Shape
    groups: int


def geometry(call: Call) -> Geometry:
    """Return the geometry of a conv; raise ValueError for arguments that contradict each other."""
    x = call["x"].shape
    weight = call["weight"].shape
    rank = len(x) - 2
    if not 1 <= rank <= 3 or len(weight) != len(x):
        call.refuse("x and weight", (x, weight), "(N, I, ...) and (O, I, ...) of 1 to 3 axes more")
    groups = call.whole("groups", 1)
    if groups < 1 or weight[0] % groups or x[1] != weight[1] * groups:
        call.refuse(
            "x and weight",
            f"{_listed((x, weight))} in {groups} groups",
            f"{x[1]} channels as weight's axis 1 times the groups, which divide axis 0",
        )
    strides = call.wholes("strides", (1,) * rank, rank)
    dilations = call.wholes("dilations", (1,) * rank, rank)
    if min(*strides, *dilations, *weight) < 1:
        call.refuse(
            "strides, dilations and weight", (strides, dilations, weight), "numbers of 1 or more"
        )
    # A dilated kernel covers this many elements of the input along each axis.
    spans = [(taps - 1) * step + 1 for taps, step in zip(weight[2:], dilations, strict=True)]
    pads = _pads(call, x[2:], spans, strides)
    padded = [size + sum(pad) for size, pad in zip(x[2:], pads, strict=True)]
    if math.prod([*x[:2], *padded]) > MOST_PADDED:
        call.refuse("padded x", (*x[:2], *padded), f"up to {MOST_PADDED} elements")
    outputs = []
    for size, span, stride in zip(padded, spans, strides, strict=True):
        outputs.append((size - span) // stride + 1)
    if min(outputs) < 1:
        call.refuse("padded x and weight", ((*x[:2], *padded), weight), "a kernel that fits into x")
    return Geometry(strides, dilations, pads, tuple(outputs), groups)


def _pads(call: Call, sizes: Shape, spans: Sequence[int], strides: Sequence[int]) -> Pads:
    """Return the padding of each spatial axis, as elements (before, after).

    ``spans`` are the elements of the input that the dilated kernel covers along each axis.
    """
    kind = call.word("pad_type", PAD_TYPES, "valid")
    rank = len(sizes)
    if kind == "valid":
        return ((0, 0),) * rank
    if kind == "custom":
        pad = call.wholes("pad", (0, 0) * rank, 2 * rank)
        if not 0 <= min(pad) <= max(pad) <= MOST_PAD:
            call.refuse("pad", pad, f"0 to {MOST_PAD}")
        return tuple(zip(pad[::2], pad[1::2], strict=True))
    pads = []
    for size, span, stride in zip(sizes, spans, strides, strict=True):
        outputs = ceil_div(size, stride)
        whole = max((outputs - 1) * stride + span - size, 0)
        # "same" puts the larger half of an odd padding after the input, "same_lower" before it.
        pair = (whole // 2, ceil_div(whole, 2))
        if kind == "same_lower":
            pair = pair[::-1]
        pads.append(pair)
    return tuple(pads)


def _convolution(call: Call) -> Results:
    dtype = call.same_type("x", "weight")
    call.dtype("x")
    shape = geometry(call)
    outputs = call["weight"].shape[0]
    if call.has("bias"):
        call.same_type("x", "bias")
        bias = call["bias"].shape
        if bias not in ((outputs,), (1, outputs), _per_channel(shape, outputs)):
            call.refuse("bias", bias, f"[{outputs}]")
    return [(dtype, (call["x"].shape[0], outputs, *shape.outputs))]


def _per_channel(shape: Geometry, outputs: int) -> Shape:
    """Return (1, outputs, 1, ...): a bias of this shape broadcasts over a convolution's output."""
    return (1, outputs, *[1] * len(shape.pads))


def _convolution_values(call: Call, x: Arrays) -> Any:
    """Return the output of a conv, as a sum of one matrix product for each tap of the kernel."""
    weight = x["weight"]
    shape = geometry(call)
    padded = x["x"]
    if any(map(any, shape.pads)):
        padded = np.pad(padded, ((0, 0), (0, 0), *shape.pads))
    n = padded.shape[0]
    outputs, depth, *kernel = weight.shape
    matrices = weight.reshape(shape.groups, outputs // shape.groups, depth, *kernel)
    out = np.zeros((n, *matrices.shape[:2], math.prod(shape.outputs)), padded.dtype)
    for tap in np.ndindex(*kernel):
        window = [slice(None), slice(None)]
        for axis, count in enumerate(shape.outputs):
            start = tap[axis] * shape.dilations[axis]
            stop = start + (count - 1) * shape.strides[axis] + 1
            window.append(slice(start, stop, shape.strides[axis]))
        seen = padded[tuple(window)].reshape(n, shape.groups, depth, -1)
        out += matrices[(..., *tap)] @ seen
    whole = out.reshape(n, outputs, *shape.outputs)
    if "bias" in x:
        return whole + x["bias"].reshape(_per_channel(shape, outputs))
    return whole


# Elementwise operations, reductions and softmax


def sigmoid(x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))``; exp gets only negative numbers and cannot overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def softmax(x: Array, axis: int) -> Array:
    """Return ``exp(x) / sum(exp(x))`` along an axis.

    The largest element is subtracted first, so that exp cannot overflow.
    """
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


UNARY: dict[str, Callable[[Array], Array]] = {
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
# These operations of UNARY take integers and floats. identity takes every type, the others floats.
ANY_NUMBER = ("abs", "square", "sign")
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
# The default of the argument epsilon, which these operations add to x.
EPSILON = {"log": 1e-45, "rsqrt": 1e-12, "inverse": 1e-4}


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
        epsilon = call.number("epsilon", EPSILON[name])
        array = array + np.asarray(epsilon, array.dtype)
    return UNARY[name](array)


def _binary(call: Call) -> Results:
    call.same_type("x", "y")
    kinds = "fiu"
    if call.operation.op in ("real_div", "pow"):
        kinds = "f"
    dtype = call.dtype("x", kinds)
    x, y = call["x"].shape, call["y"].shape
    shape = broadcast(x, y)
    if shape is None:
        call.refuse(
            "x and y", (x, y), "shapes that broadcast: sizes alike or 1, from the last axis on"
        )
    return [(dtype, shape)]


def _reduced(call: Call) -> tuple[Shape, bool]:
    """Return the reduced axes, and true if the output keeps each of them with size 1."""
    rank = len(call["x"].shape)
    return call.axes("axes", rank, tuple(range(rank))), call.flag("keep_dims", False)


def _reduce(call: Call) -> Results:
    axes, keep = _reduced(call)
    have = call["x"].shape
    shape: list[int] = []
    for axis, size in enumerate(have):
        if axis not in axes:
            shape.append(size)
        elif size == 0:
            call.refuse("x", have, "one element or more along the axes")
        elif keep:
            shape.append(1)
    return [(call.dtype("x"), tuple(shape))]


def _reduce_values(call: Call, x: Arrays) -> Any:
    axes, keep = _reduced(call)
    reduce = REDUCE[call.operation.op]
    return reduce(x["x"], axis=axes, keepdims=keep)


def _softmax(call: Call) -> Results:
    call.axis("axis", len(call["x"].shape), -1)
    return _unary(call)


def _softmax_values(call: Call, x: Arrays) -> Any:
    array = x["x"]
    # softmax subtracts the largest element, and an empty array has none.
    if not array.size:
        return array
    return softmax(array, call.axis("axis", array.ndim, -1))


# Operations that move elements: reshape, transpose, slice, concat, split


def _reshaped(call: Call) -> Shape:
    have = call["x"].shape
    elements = math.prod(have)
    stated = call.wholes("shape")
    if len(stated) > MOST_AXES:
        call.refuse("shape", f"{len(stated)} axes", f"up to {MOST_AXES}")
    # A stated 0 means the size that x has there; one stated -1 means the size that completes x.
    wanted = list(stated)
    for at, size in enumerate(stated[: len(have)]):
        if size == 0:
            wanted[at] = have[at]
    if wanted.count(-1) == 1:
        rest = -math.prod(wanted)
        if rest and elements % rest == 0:
            wanted[wanted.index(-1)] = elements // rest
    if min(wanted, default=1) < 0 or math.prod(wanted) != elements:
        allowed = f"a shape of the {elements} elements of {list(have)}"
        call.refuse("shape", stated, allowed)
    return tuple(wanted)


def _permuted(call: Call) -> Shape:
    have = call["x"].shape
    rank = len(have)
    perm = call.axes("perm", rank)
    if len(perm) != rank:
        call.refuse("perm", perm, f"the {rank} axes of {list(have)}, each once")
    return perm


def _slices(call: Call) -> tuple[slice, ...]:
    shape = call["x"].shape
    begin = call.wholes("begin", count=len(shape))
    lengths = call.wholes("size", count=len(shape))
    slices = []
    for axis, size in enumerate(shape):
        start = begin[axis]
        stop = size
        if lengths[axis] != -1:
            stop = start + lengths[axis]
        if not 0 <= start <= stop <= size:
            call.refuse(
                f"begin and size of axis {axis}",
                f"{start} and {stop - start}",
                f"a part of the {size} of {list(shape)}",
            )
        slices.append(slice(start, stop))
    return tuple(slices)


def _concat(call: Call) -> Results:
    values = call.given.get("values")
    if isinstance(values, Known) or not values:
        call.refuse("values", "none in ( )", "one tensor or more in ( )")
    first = values[0]
    axis = call.axis("axis", len(first.shape))
    # Joined tensors may differ along the axis, interleaved tensors may not.
    after = axis + 1
    if call.flag("interleave", False):
        after = axis
    alike = set()
    for value in values:
        other_axes = value.shape[:axis] + value.shape[after:]
        alike.add((value.dtype, len(value.shape), other_axes))
    if len(alike) > 1:
        call.refuse(
            "values",
            ", ".join(str(value.type) for value in values),
            f"tensors that differ along axis {axis} only (interleaved tensors: along no axis)",
        )
    whole = sum(value.shape[axis] for value in values)
    return [(first.dtype, (*first.shape[:axis], whole, *first.shape[axis + 1 :]))]


def _concat_values(call: Call, x: Arrays) -> Any:
    arrays = x["values"]
    axis = call.axis("axis", arrays[0].ndim)
    if not call.flag("interleave", False):
        return np.concatenate(arrays, axis)
    stacked = np.stack(arrays, axis + 1)
    return stacked.reshape(*stacked.shape[:axis], -1, *stacked.shape[axis + 2 :])


def _parts(call: Call) -> tuple[int, Shape]:
    """Return the axis that is split, and the size of each output along this axis."""
    shape = call["x"].shape
    outputs = len(call.operation.outputs)
    axis = call.axis("axis", len(shape))
    size = shape[axis]
    if call.has("split_sizes"):
        sizes = call.wholes("split_sizes")
    else:
        count = call.whole("num_splits")
        if count < 1 or size % count:
            call.refuse("num_splits", count, f"a divisor of {size}, the size of axis {axis}")
        # num_splits may be huge: a tuple with one part more than outputs is refused below.
        sizes = (size // count,) * min(count, outputs + 1)
    if len(sizes) != outputs or sum(sizes) != size or min(sizes) < 0:
        call.refuse("split_sizes", sizes[:8], f"{outputs} sizes that add up to {size}")
    return axis, sizes


def _split(call: Call) -> Results:
    axis, sizes = _parts(call)
    shape = call["x"].shape
    return [(call["x"].dtype, (*shape[:axis], size, *shape[axis + 1 :])) for size in sizes]


def _split_values(call: Call, x: Arrays) -> Any:
    axis, sizes = _parts(call)
    ends = np.cumsum(sizes).tolist()
    return np.split(x["x"], ends[:-1], axis)


def _expanded(call: Call) -> Shape:
    shape = list(call["x"].shape)
    added = len(call.wholes("axes"))
    if len(shape) + added > MOST_AXES:
        call.refuse("axes", f"{added} axes", f"up to {MOST_AXES - len(shape)}")
    axes = call.axes("axes", len(shape) + added)
    for axis in sorted(axes):
        shape.insert(axis, 1)
    return tuple(shape)


def _squeezed(call: Call) -> Shape:
    shape = call["x"].shape
    single = tuple(axis for axis, size in enumerate(shape) if size == 1)
    axes = call.axes("axes", len(shape), single)
    if not {*axes} <= {*single}:
        call.refuse("axes", axes, f"axes of size 1 of {list(shape)}")
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _cast(call: Call) -> Results:
    allowed = [name for name, (letter, bits) in DTYPES.items() if letter == "b" or bits >= 8]
    return [(call.word("dtype", allowed), call["x"].shape)]


# Matrix products


def _transposed(call: Call, name: str) -> Shape:
    """Return the shape of the factor x or y, with its last two sizes exchanged if the argument
    transpose_x or transpose_y says so."""
    shape = call[name].shape
    if len(shape) < 2:
        call.refuse(name, shape, "two axes or more")
    if call.flag(f"transpose_{name}", False):
        return *shape[:-2], shape[-1], shape[-2]
    return shape


def _matmul(call: Call) -> Results:
    dtype = call.same_type("x", "y")
    x = _transposed(call, "x")
    y = _transposed(call, "y")
    if x[-1] != y[-2]:
        call.refuse("x and y, after their transposes", (x, y), "as many columns of x as rows of y")
    batch = broadcast(x[:-2], y[:-2])
    if batch is None:
        call.refuse(
            "x and y, after their transposes", (x, y), "axes before the last two that broadcast"
        )
    return [(dtype, (*batch, x[-2], y[-1]))]


def _matmul_values(call: Call, x: Arrays) -> Any:
    left, right = x["x"], x["y"]
    if call.flag("transpose_x", False):
        left = np.swapaxes(left, -1, -2)
    if call.flag("transpose_y", False):
        right = np.swapaxes(right, -1, -2)
    return left @ right


def _linear(call: Call) -> Results:
    call.same_type("x", "weight")
    x = call["x"].shape
    weight = call["weight"].shape
    if not x or len(weight) != 2 or x[-1] != weight[1]:
        call.refuse("x and weight", (x, weight), "(..., I) and (O, I)")
    outputs = weight[0]
    if call.has("bias"):
        call.same_type("x", "bias")
        call.fits("bias", (outputs,))
    return [(call["x"].dtype, (*x[:-1], outputs))]


def _linear_values(call: Call, x: Arrays) -> Any:
    return x["x"] @ x["weight"].T + x.get("bias", 0)


def _attention(call: Call) -> Results:
    call.same_type("query", "key", "value")
    dtype = call.dtype("query", "f")
    q = call["query"].shape
    k = call["key"].shape
    v = call["value"].shape
    batched = min(len(q), len(k), len(v)) >= 3 and q[:-2] == k[:-2] == v[:-2]
    if not batched or q[-1] != k[-1] or k[-2] != v[-2]:
        call.refuse(
            "query, key and value",
            (q, k, v),
            "(..., L, E), (..., S, E) and (..., S, V)",
        )
    if call.has("attn_mask"):
        call.fits("attn_mask", (*q[:-1], k[-2]))
    return [(dtype, (*q[:-1], v[-1]))]


def _attention_values(call: Call, x: Arrays) -> Any:
    query = x["query"]
    keys = np.swapaxes(x["key"], -1, -2)
    scores = query @ keys / np.sqrt(query.shape[-1], dtype=query.dtype)
    if "attn_mask" in x:
        mask = x["attn_mask"]
        if mask.dtype == bool:
            scores = np.where(mask, scores, -np.inf)
        else:
            scores = scores + mask
    return softmax(scores, -1) @ x["value"]


# The table of rules


def _moved(shape: Callable[[Call], Shape], values: Compute | None = None) -> Rule:
    """Return the rule of an operation that moves the elements of x into another shape.

    ``shape`` returns the shape of the output. ``values`` computes the output; without it the
    elements keep their order.
    """

    def infer(call: Call) -> Results:
        return [(call["x"].dtype, shape(call))]

    def reshape(call: Call, x: Arrays) -> Any:
        return x["x"].reshape(shape(call))

    return Rule(infer, values or reshape)


def _binary_values(call: Call, x: Arrays) -> Any:
    return BINARY[call.operation.op](x["x"], x["y"])


def _transposed_shape(call: Call) -> Shape:
    shape = call["x"].shape
    return tuple(shape[axis] for axis in _permuted(call))


def _sliced_shape(call: Call) -> Shape:
    return tuple(part.stop - part.start for part in _slices(call))


OPERATIONS: dict[str, Rule] = {
    **dict.fromkeys(UNARY, Rule(_unary, _unary_values)),
    **dict.fromkeys(BINARY, Rule(_binary, _binary_values)),
    **dict.fromkeys(REDUCE, Rule(_reduce, _reduce_values)),
    "softmax": Rule(_softmax, _softmax_values),
    "reshape": _moved(_reshaped),
    "expand_dims": _moved(_expanded),
    "squeeze": _moved(_squeezed),
    "transpose": _moved(_transposed_shape, lambda call, x: x["x"].transpose(_permuted(call))),
    "slice_by_size": _moved(_sliced_shape, lambda call, x: x["x"][_slices(call)]),
    "concat": Rule(_concat, _concat_values),
    "split": Rule(_split, _split_values),
    "cast": Rule(_cast, lambda call, x: x["x"]),
    "matmul": Rule(_matmul, _matmul_values),
    "linear": Rule(_linear, _linear_values),
    "scaled_dot_product_attention": Rule(_attention, _attention_values),
    "conv": Rule(_convolution, _convolution_values),
    "constexpr_affine_dequantize": Rule(_affine, _affine_values),
    "constexpr_blockwise_shift_scale": Rule(_blockwise, _blockwise_values),
    "constexpr_lut_to_dense": Rule(_looked_up, _looked_up_values),
}
