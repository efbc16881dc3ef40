"""Layers of the float16 units that NPUs have between convolutions: arithmetic on each element,
activation by table, concatenation.
"""

from __future__ import annotations

import math
import operator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.quant.layers.checks import (
    ACTIVATIONS,
    MOST_OUTPUTS,
    UNIT,
    Shape,
    by_axis,
    check_quantization,
    check_type,
    quantization_parameters,
    shape_text,
    store,
    whole,
)
from npulab.quant.rules import QuantParams
from npulab.support.refuse import refuse_if

PAIRED = ("add", "subtract", "multiply", "maximum", "minimum")
SINGLE = ("abs", "copy")
HALVES = 2**16  # number of float16 bit patterns
SMALLEST, LARGEST = 2.0**-149, float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Elementwise:
    """``(prescale * a op b) * scale + bias``, element by element, of one tensor or of two.

    ``kind`` is "add", "subtract", "multiply", "maximum" or "minimum" of two tensors (the input is
    then a pair), or "abs" or "copy" of one tensor. ``input_shape`` is the shape of the first
    tensor, ``other_shape`` the shape of the second, by default the same. If one tensor has size 1
    on an axis, it is repeated to the other tensor's size. ``prescale`` (of the first tensor),
    ``scale`` and ``bias`` are each a real number, or a number for each output channel ``(C,)``. A
    factor of 1 and a bias of 0 are not computed, so that the sign of a zero stays. The activation
    comes last. ``dtype`` is "float16". Raises ValueError, which names the parameter, for values
    that do not go together.

    >>> Elementwise("subtract", (4, 4, 8), other_shape=(4, 1, 8), scale=0.5)
    Elementwise(subtract 4x4x8 and 4x1x8 -> 4x4x8, scale 0.5, float16)
    """

    kind: str
    input_shape: Shape
    other_shape: Shape | None = None
    prescale: Any = 1.0
    scale: Any = 1.0
    bias: Any = 0.0
    activation: str | None = None
    dtype: str = "float16"
    input_q = other_q = output_q = UNIT

    def __post_init__(self) -> None:
        if self.kind not in (*PAIRED, *SINGLE):
            raise ValueError(
                f"kind: got {self.kind!r}, allowed is one of {', '.join((*PAIRED, *SINGLE))}"
            )
        _half(self.dtype)
        shape = _sizes("input_shape", self.input_shape)
        other = self.other_shape
        if other is not None and self.kind in SINGLE:
            raise ValueError(f"other_shape: got {other}, allowed with {self.kind} is none")
        if self.kind in PAIRED:
            if other is None:
                other = shape
            else:
                other = _sizes("other_shape", other)
            if len(other) != len(shape) or any(
                a != b and 1 not in (a, b) for a, b in zip(shape, other, strict=True)
            ):
                raise ValueError(
                    f"other_shape: got {other}, allowed is {shape}, or a shape that broadcasts "
                    "with it (either input may have size 1 on any axis)"
                )
        store(self, input_shape=shape, other_shape=other)
        _few(self.output_shape)
        for name in ("prescale", "scale", "bias"):
            value = _constant(name, getattr(self, name), self.output_shape[-1])
            store(self, **{name: value})
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"activation: got {self.activation!r}, allowed is one of {ACTIVATIONS}"
            )

    @property
    def op(self) -> str:
        """The name of the operator, which is the ``kind``."""
        return self.kind

    @property
    def input_shapes(self) -> tuple[Shape, ...]:
        """The shape of each tensor that the layer takes."""
        if self.other_shape is None:
            return (self.input_shape,)
        return self.input_shape, self.other_shape

    @property
    def output_shape(self) -> Shape:
        """The shape of the output: on each axis the larger size of the two tensors."""
        return tuple(map(max, zip(*self.input_shapes, strict=True)))

    @property
    def parameters(self) -> dict[str, Any]:
        """The layer in plain numbers and names, as columns of a sweep."""
        out: dict[str, Any] = {"op": self.op, **_named("input", self.input_shape)}
        if self.other_shape is not None:
            out |= _named("other", self.other_shape)
        return out | {
            "prescale": _plain(self.prescale),
            "scale": _plain(self.scale),
            "bias": _plain(self.bias),
            "activation": self.activation,
            "dtype": self.dtype,
        }

    def __repr__(self) -> str:
        shapes = " and ".join(dict.fromkeys(map(shape_text, self.input_shapes)))
        out = ""
        if " and " in shapes:
            out = f" -> {shape_text(self.output_shape)}"
        said = [
            f"{name} {_told(value)}"
            for name, value, idle in (
                ("prescale", self.prescale, 1),
                ("scale", self.scale, 1),
                ("bias", self.bias, 0),
            )
            if np.any(value != idle)
        ]
        texts = [f"{self.kind} {shapes}{out}", *said, self.activation or "", self.dtype]
        return f"Elementwise({', '.join(filter(None, texts))})"


@dataclass(frozen=True, eq=False)
class Activation:
    """A function of each element, given as a table: ``outputs`` has the result for each of the
    65,536 float16 bit patterns, ``(65536,)`` float16.

    The input is first multiplied by ``prescale``, a real number or a number for each channel
    ``(C,)``, and rounded to float16. A prescale of 1 is not computed. ``name`` only appears in
    texts for people. ``dtype`` is "float16". Raises ValueError, which names the parameter, for
    values that do not go together.

    >>> codes = np.arange(65536, dtype=np.uint16).view(np.float16)
    >>> Activation((4, 4, 8), np.abs(codes), "size")
    Activation(size 4x4x8, float16)
    """

    input_shape: Shape
    outputs: Array = field(repr=False)
    name: str = ""
    prescale: Any = 1.0
    dtype: str = "float16"
    op = "activation"
    activation = None
    input_q = output_q = UNIT

    def __post_init__(self) -> None:
        _half(self.dtype)
        shape, outputs = _sizes("input_shape", self.input_shape), np.asarray(self.outputs)
        if outputs.shape != (HALVES,) or outputs.dtype != np.float16:
            raise ValueError(
                f"outputs: got shape {outputs.shape} {outputs.dtype}, allowed is ({HALVES},) "
                "float16, one number for each bit pattern"
            )
        prescale = _constant("prescale", self.prescale, shape[-1])
        store(self, input_shape=shape, outputs=outputs, prescale=prescale)

    @property
    def output_shape(self) -> Shape:
        """The shape of the output, which is the input's."""
        return self.input_shape

    @property
    def parameters(self) -> dict[str, Any]:
        """The layer in plain numbers and names, as columns of a sweep."""
        return {
            "op": self.op,
            "function": self.name,
            **_named("input", self.input_shape),
            "prescale": _plain(self.prescale),
            "dtype": self.dtype,
        }

    def __repr__(self) -> str:
        scaled = []
        if np.any(self.prescale != 1):
            scaled = [f"prescale {_told(self.prescale)}"]
        name = ""
        if self.name:
            name = f"{self.name} "
        return (
            f"Activation({', '.join([name + shape_text(self.input_shape), *scaled, self.dtype])})"
        )


@dataclass(frozen=True, eq=False)
class Concat:
    """Tensors placed one after the other along an axis, unchanged; the layer's input is a tuple of
    tensors.

    ``axis`` is an axis of ``input_shapes``, counted from the end if it is negative; the tensors
    have the same size on every other axis. ``dtype`` is "int8", "uint8", "int16" or "float16";
    ``input_q`` is the quantization of all inputs and of the output. Raises ValueError, which names
    the parameter, for values that do not go together.

    >>> Concat([(4, 4, 8), (4, 4, 3)])
    Concat(4x4x8 and 4x4x3 -> 4x4x11, float16)
    """

    input_shapes: tuple[Shape, ...]
    axis: int = -1
    dtype: str = "float16"
    input_q: QuantParams = UNIT
    op = "concat"
    activation = None

    def __post_init__(self) -> None:
        given = self.input_shapes if isinstance(self.input_shapes, list | tuple) else ()
        shapes = tuple(_sizes("input_shapes", one) for one in given)
        if not shapes:
            raise ValueError(
                f"input_shapes: got {self.input_shapes}, allowed are the shapes of one tensor or "
                "more"
            )
        axes = len(shapes[0])
        try:
            axis = operator.index(self.axis)
        except TypeError:
            axis = axes
        refuse_if(not -axes <= axis < axes, "axis", repr(self.axis), f"is {-axes} to {axes - 1}")
        axis %= axes
        rest = {(*one[:axis], *one[axis + 1 :]) for one in shapes}
        refuse_if(
            len(rest) > 1 or any(len(one) != axes for one in shapes),
            "input_shapes",
            ", ".join(map(str, shapes)),
            f"are sizes that differ in axis {axis} only",
        )
        check_type(self.dtype)
        check_quantization(self, self.dtype, shapes[0][-1])
        store(self, input_shapes=shapes, axis=axis)
        _few(self.output_shape)

    @property
    def output_q(self) -> QuantParams:
        """The quantization of the output, which is the inputs'."""
        return self.input_q

    @property
    def input_shape(self) -> Shape:
        """The shape of the first tensor."""
        return self.input_shapes[0]

    @property
    def output_shape(self) -> Shape:
        """The inputs' shape, with their sizes along the concatenated axis added up."""
        shape = [*self.input_shapes[0]]
        shape[self.axis] = sum(one[self.axis] for one in self.input_shapes)
        return tuple(shape)

    @property
    def parameters(self) -> dict[str, Any]:
        """The layer in plain numbers and names, as columns of a sweep."""
        return {
            "op": self.op,
            "inputs": len(self.input_shapes),
            "axis": self.axis,
            **_named("output", self.output_shape),
            **quantization_parameters(self),
        }

    def __repr__(self) -> str:
        names = [*map(shape_text, self.input_shapes)]
        shapes = " and ".join(names)
        if len({*names}) < len(names) == names.count(names[0]):
            shapes = f"{len(names)} times {names[0]}"
        axis = ""
        if self.axis < len(self.output_shape) - 1:
            axis = f", axis {self.axis}"
        return f"Concat({shapes} -> {shape_text(self.output_shape)}{axis}, {self.dtype})"


def _half(dtype: str) -> None:
    refuse_if(dtype != "float16", "dtype", repr(dtype), "is float16")


def _sizes(name: str, given: Any) -> tuple[int, ...]:
    shape = whole(given)
    refuse_if(not shape or min(shape) < 1, name, given, "are sizes, each at least 1")
    _few(shape)
    return shape


def _few(shape: Shape) -> None:
    if math.prod(shape) > MOST_OUTPUTS:
        raise ValueError(
            f"input_shape: got a tensor of {shape_text(shape)}, allowed are at most {MOST_OUTPUTS} "
            "elements"
        )


def _constant(name: str, given: Any, channels: int) -> float | Array:
    """Return one number, or float64 numbers ``(channels,)``. Raises ValueError if ``given`` is
    neither.
    """
    values = np.empty(0)
    with suppress(TypeError, ValueError):
        if np.asarray(given).dtype.kind in "iuf":
            values = np.asarray(given, np.float64)
    size = np.abs(values)
    # a NaN fails both comparisons, and so is refused
    fits = np.all((size == 0) | ((size >= SMALLEST) & (size <= LARGEST)))
    if values.shape not in ((), (channels,)) or not fits:
        raise ValueError(
            f"{name}: got {given!r}, allowed is a number within float32, or {channels} such numbers"
        )
    if values.ndim == 0:
        return float(values)
    return values


def _named(tensor: str, shape: Shape) -> dict[str, int]:
    """Return the sizes of a tensor: a key is the tensor's name and the axis, a value is a size.
    Three axes are named h, w and c; otherwise axes are numbered.
    """
    axes = [*"hwc"]
    if len(shape) != len(axes):
        axes = [*map(str, range(len(shape)))]
    return by_axis(tensor, axes, shape)


def _plain(value: float | Array) -> float | tuple[float, ...]:
    if isinstance(value, Array):
        return tuple(value.tolist())
    return value


def _told(value: float | Array) -> str:
    if isinstance(value, Array):
        return "by channel"
    return f"{value:g}"
