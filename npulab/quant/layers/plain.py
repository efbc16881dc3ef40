"""Layers without weights, of codes or real numbers: pooling and addition."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from npulab.quant.layers.checks import (
    POOLS,
    UNIT,
    Pair,
    Shape,
    Shape3,
    by_axis,
    check_quantization,
    check_size,
    check_type,
    check_window,
    checked_padding,
    checked_shape,
    output_size,
    pads,
    quantization_parameters,
    shape_text,
    store,
    whole,
    window_parameters,
    window_text,
)
from npulab.quant.rules import QUANTIZED, ROUNDINGS, QuantParams

CENTRED = ":centred"  # a rounding with this ending rounds the mean minus the zero point


@dataclass(frozen=True, eq=False)
class Pool2D:
    """Average, maximum or minimum of windows of ``kernel`` (h, w); elements of the border are not
    counted.

    ``dtype`` is "int8", "uint8", "int16" or "float16"; the output has the scale and zero point of
    the input. ``rounding`` says how an average of codes is rounded: one of
    ``npulab.quant.rules.ROUNDINGS`` rounds the mean of the codes. If ":centred" follows the name
    ("toward-zero:centred"), the mean minus the zero point is rounded, and the zero point is added
    afterwards. Raises ValueError, which names the parameter, for values that do not go together.
    """

    kind: str
    kernel: Pair
    input_shape: Shape3
    stride: Pair = (1, 1)
    padding: Any = "valid"
    activation: str | None = None
    input_q: QuantParams = UNIT
    output_q: QuantParams | None = None
    dtype: str = "int8"
    rounding: str = "half-away"
    dilation = (1, 1)

    def __post_init__(self) -> None:
        if self.kind not in POOLS:
            raise ValueError(f"kind: got {self.kind!r}, allowed is one of {', '.join(POOLS)}")
        rounds = self.kind == "average" and self.dtype in QUANTIZED
        allowed: tuple[str, ...] = ROUNDINGS[-1:]
        words = suffix = ""
        if rounds:
            allowed = ROUNDINGS
            words = f", each also with {CENTRED} after it"
            suffix = CENTRED
        if str(self.rounding).removesuffix(suffix) not in allowed:
            raise ValueError(
                f"rounding: got {self.rounding!r}, allowed with {self.kind} pooling of "
                f"{self.dtype} is {', '.join(allowed)}{words}"
            )
        store(self, input_shape=checked_shape(self.input_shape))
        if self.output_q is None:
            store(self, output_q=self.input_q)
        check_type(self.dtype)
        check_quantization(self, self.dtype, self.input_shape[2])
        if self.output_q != self.input_q:
            raise ValueError(
                f"output_q: got {self.output_q}, allowed is the quantization of the input, "
                f"{self.input_q}"
            )
        check_window(self, ("kernel", "stride"))
        store(self, padding=checked_padding(self.padding))
        check_size(self)
        if np.any(np.max(self.pads, axis=1) >= self.kernel):
            raise ValueError(
                f"padding: got {self.padding}, allowed is less than the kernel of {self.kernel}, "
                "so that every window holds an element of the input"
            )

    @property
    def op(self) -> str:
        """ "average_pool", "max_pool" or "min_pool"."""
        return f"{self.kind}_pool"

    @cached_property
    def pads(self) -> tuple[Pair, Pair]:
        """((top, bottom), (left, right)) rows and columns of border."""
        return pads(self.padding, self.input_shape, self.kernel, self.stride)

    @cached_property
    def output_shape(self) -> Shape3:
        """(H, W, C) of the output."""
        height, width = output_size(self)
        return height, width, self.input_shape[2]

    @property
    def parameters(self) -> dict[str, Any]:
        """The layer in plain numbers and names, as columns of a sweep."""
        rounding = {}
        if self.rounding != ROUNDINGS[-1]:
            rounding = {"rounding": self.rounding}
        return {
            "op": self.op,
            **window_parameters(self),
            **rounding,
            **quantization_parameters(self),
        }

    def __repr__(self) -> str:
        rounding = ""
        if self.rounding != ROUNDINGS[-1]:
            rounding = f", rounding {self.rounding}"
        return f"Pool2D({self.kind} {window_text(self)}{rounding}, {self.dtype})"


@dataclass(frozen=True, eq=False)
class Add:
    """The sum of two tensors of one shape; the input of the layer is a pair of tensors.

    ``dtype`` is "int8", "uint8", "int16" (with zero points of 0) or "float16". Raises ValueError,
    which names the parameter, for values that do not go together.
    """

    input_shape: Shape
    activation: str | None = None
    input_q: QuantParams = UNIT
    other_q: QuantParams = UNIT
    output_q: QuantParams = UNIT
    dtype: str = "int8"
    op = "add"

    def __post_init__(self) -> None:
        shape = whole(self.input_shape)
        if not shape or min(shape) < 1:
            raise ValueError(
                f"input_shape: got {self.input_shape}, allowed are sizes, each at least 1"
            )
        store(self, input_shape=shape)
        check_type(self.dtype)
        check_quantization(self, self.dtype, shape[-1])

    @property
    def output_shape(self) -> Shape:
        """The shape of each input, which is the output's too."""
        return self.input_shape

    @property
    def parameters(self) -> dict[str, Any]:
        """The layer in plain numbers and names, as columns of a sweep."""
        return {
            "op": self.op,
            **by_axis("input", "hwc", self.input_shape),
            "other_scale": self.other_q.scale,
            "other_zero_point": self.other_q.zero_point,
            **quantization_parameters(self),
        }

    def __repr__(self) -> str:
        texts = [shape_text(self.input_shape), self.dtype, self.activation]
        return f"Add({', '.join(filter(None, texts))})"
