"""The predicted output of a hypothesis: a layer, its input, its rounding rule, and changes to the
steps of the calculation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.quant.emulate import Saturation, accumulate, clamp_range
from npulab.quant.emulate.engines import activation_codes, multipliers, parts_of, saturation_of
from npulab.quant.layers import Conv2D, FullyConnected, Pool2D
from npulab.quant.requantize import within
from npulab.quant.rules import Rule

Codes = Array
Weighted = Conv2D | FullyConnected
TensorChange = Callable[[Array], Array]


class CodeLimits(NamedTuple):
    """The zero point of the outputs, the lowest and highest code of the activation, and the numpy
    type of the codes.
    """

    zero: int
    low: int
    high: int
    info: np.iinfo[Any]

    @property
    def lowest(self) -> int:
        """The lowest code that both the activation and the type allow."""
        return max(self.low, int(self.info.min))

    @property
    def highest(self) -> int:
        return min(self.high, int(self.info.max))


@dataclass(frozen=True, eq=False)
class Explanation:
    """An explanation of how an output follows from an input. If a step is None, it is done as in
    ``emulate``.

    ``clamp`` is a function that limits the codes (int64). The functions ``after`` are applied to
    the outputs in turn.
    """

    layer: Weighted | Pool2D
    x: Array
    rule: str | Rule
    clamp: Callable[[Codes, CodeLimits], Codes] | None = None
    after: tuple[TensorChange, ...] = ()

    @property
    def rule_name(self) -> str:
        if isinstance(self.rule, str):
            return self.rule
        return self.rule.name

    @property
    def words(self) -> str:
        return f"rule {self.rule_name}"

    def changed(self, out: Array) -> Array:
        """Return an output with the changes ``after`` applied to it."""
        for change in self.after:
            out = change(out)
        return out

    def limits(self) -> CodeLimits:
        """Return the limits of the codes for a clamp: the range of the activation, even if the type
        is narrower.
        """
        layer, dtype = self.layer, self.x.dtype
        bounds = np.clip(activation_codes(layer, dtype, self.rule), -(2**31), 2**31 - 1)
        low, high = map(int, bounds)
        assert layer.output_q is not None
        return CodeLimits(layer.output_q.zero_point, low, high, np.iinfo(dtype))


@dataclass(frozen=True, eq=False)
class Hypothesis(Explanation):
    """An explanation of the output of a layer with weights.

    ``saturation`` is the way to add products, by default that of the rule's engine. ``sums`` is a
    function that changes the accumulators (int64).
    """

    layer: Weighted
    saturation: Saturation | None = None
    sums: TensorChange | None = None


class Sums:
    """Accumulators, kept for two layers: the first and the last that were asked for. Most changes
    of an explanation need those of the first layer.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[Any, ...], tuple[Any, Array]] = {}

    def of(self, layer: Weighted, x: Array, saturation: Saturation | None = None) -> Array:
        """Return the accumulators ``(..., C)`` int64 of a layer, with the bias, as a new array."""
        window: tuple[Any, ...] = ()
        if isinstance(layer, Conv2D):
            window = (layer.pads, layer.stride, layer.dilation)
        key = (
            id(layer.weights),
            id(x),
            layer.input_q.zero_point,
            layer.weight_q.zero_point,
            window,
            saturation,
        )
        if key not in self._held:
            if len(self._held) > 1:
                self._held.popitem()
            plain = replace(layer, bias=np.zeros_like(layer.bias))
            # the arrays stay with the sums: their ids are the key, and no new array may get them
            self._held[key] = ((layer.weights, x), accumulate(plain, x, saturation))
        return self._held[key][1] + layer.bias


def predict(of: Hypothesis, sums: Sums, shape: tuple[int, ...] | None = None) -> Array:
    """Return the output of a hypothesis; raises ValueError if its shape would not be ``shape``."""
    layer = of.layer
    if shape is not None and layer.output_shape != shape[-len(layer.output_shape) :]:
        raise ValueError(f"shape: got {layer.output_shape}, allowed is {shape}")
    saturation = of.saturation or saturation_of(layer, of.x.dtype, of.rule)
    return codes_of(of, sums.of(layer, of.x, saturation))


def codes_of(of: Hypothesis, total: Array) -> Array:
    """Return the outputs of a hypothesis for accumulators ``(..., C)``."""
    layer, dtype = of.layer, of.x.dtype
    if of.sums is not None:
        total = of.sums(total)
    low, high = clamp_range(layer, dtype, of.rule)
    zero = layer.output_q.zero_point
    out = np.empty(total.shape, dtype)
    for by, first, end in parts_of(layer, dtype, of.rule):
        factors = multipliers(layer, by, first, end)
        sums = within(total[..., first:end], by, first)
        if of.clamp is None:
            out[..., first:end] = by.fast(sums, *factors, zero, low, high)
        else:
            out[..., first:end] = of.clamp(by.exact(sums, *factors, zero), of.limits())
    return of.changed(out)
