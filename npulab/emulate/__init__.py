"""Exact operators: a layer and an input give the output that a named rule demands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from npulab.emulate import definition, quantized
from npulab.emulate.engines import NAMES as ENGINES
from npulab.emulate.engines import clamp_range
from npulab.layers import Add, Conv2D, FullyConnected, Layer, Network, Pool2D
from npulab.quant import QUANTIZED, Rule, Scratch

__all__ = ["ENGINES", "Prepared", "accumulate", "accumulate_reference", "clamp_range", "emulate", "emulate_reference",
           "outputs", "prepare"]

accumulate_reference = definition.accumulate
emulate_reference = definition.emulate


def emulate(layer: Layer | Network | Sequence[Layer], x: Any, rule: str | Rule = "tflite-reference") -> np.ndarray:
    """Output of a layer or a network, bit for bit as the named rule has it, in the type of ``x``.

    ``x`` is ``(H, W, C)`` or ``(N, H, W, C)`` as ``layer.input_shape`` says, in ``layer.dtype`` (8-bit layers
    take int8 and uint8); for ``FullyConnected`` ``(..., I)``; for ``Add`` a pair.  ``rule`` is a rule of
    ``quant.RULES`` or an engine of ``ENGINES``; a target's own is ``target.rule``.
    Raises ValueError where ``x`` is not so, or an accumulator leaves the rule's register; LookupError for
    an unknown rule.
    """
    if isinstance(layer, Conv2D | FullyConnected | Pool2D | Add):
        return prepare(layer, rule, keep=False)(x)
    return outputs(layer, x, rule)[-1]


def outputs(network: Network | Sequence[Layer], x: Any, rule: str | Rule = "tflite-reference") -> list[np.ndarray]:
    """The output of every layer of a network."""
    network = network if isinstance(network, Network) else Network(tuple(network))
    done: list[np.ndarray] = []
    for layer, sources in zip(network.layers, network.inputs, strict=True):
        given = tuple(x if source < 0 else done[source] for source in sources)
        done.append(emulate(layer, given if len(given) > 1 else given[0], rule))
    return done


def prepare(layer: Layer, rule: str | Rule = "tflite-reference", keep: bool = True) -> Prepared:
    """A layer made ready to run many times: what ``emulate`` does, with packed weights kept."""
    return Prepared(layer, rule, keep)


class Prepared:
    """A layer and a rule, to be called with inputs; not by two threads at once."""

    def __init__(self, layer: Layer, rule: str | Rule, keep: bool = True) -> None:
        self.layer, self.rule, self.keep = layer, rule, keep
        self._scratch = Scratch()
        self._made: dict[np.dtype, quantized.Quantized] = {}

    def __call__(self, x: Any) -> np.ndarray:
        """The output, in the type of the input."""
        layer = self.layer
        assert isinstance(layer, Conv2D | FullyConnected)
        x, shape = _input(layer, x)
        if x.dtype not in self._made:
            self._made[x.dtype] = quantized.Quantized(layer, x.dtype, self.rule, self.keep)
        out = np.empty(shape, x.dtype)
        self._made[x.dtype].run(_images(layer, x), out.reshape(_as_images(layer, shape)), self._scratch)
        return out

    def __repr__(self) -> str:
        return f"Prepared({self.layer}, {self.rule})"


def accumulate(layer: Conv2D | FullyConnected, x: np.ndarray) -> np.ndarray:
    """Accumulators ``(..., C)`` int64 of a quantized layer: ``bias + sum (x - input zero) * (w - weight zero)``.

    They are the true sums: nothing wraps.
    """
    x, shape = _input(layer, x)
    if x.dtype.name not in QUANTIZED:
        raise ValueError(f"x: got {x.dtype}, allowed with accumulators is {', '.join(QUANTIZED)}")
    out = np.empty(shape, np.int64)
    quantized.accumulate(layer, _images(layer, x), out.reshape(_as_images(layer, shape)))
    return out


def _input(layer: Conv2D | FullyConnected, x: Any) -> tuple[np.ndarray, tuple[int, ...]]:
    """(the input, the shape of the output); raises ValueError for an input that does not fit."""
    x = np.asarray(x)
    eight = ("int8", "uint8")
    types = eight if layer.dtype in eight else (layer.dtype,)
    if isinstance(layer, FullyConnected):
        (size,) = layer.input_shape
        axes = next((axes for axes in (1, 3) if x.ndim >= axes and np.prod(x.shape[-axes:]) == size), None)
        fits = axes is not None
        allowed = f"(..., {size}), or (H, W, C) of as many"
    else:
        axes, fits = 3, x.ndim in (3, 4) and x.shape[-3:] == layer.input_shape
        allowed = f"{layer.input_shape}, or that with a leading batch axis"
    if not fits or axes is None or x.dtype.name not in types or x.size == 0:
        raise ValueError(f"x: got shape {x.shape} {x.dtype}, allowed is {allowed}, of {' or '.join(types)}")
    return x, (*x.shape[:-axes], *layer.output_shape)


def _images(layer: Conv2D | FullyConnected, x: np.ndarray) -> np.ndarray:
    """The input as (N, H, W, C); rows of a fully connected layer are pixels."""
    shape = (1, -1, 1, *layer.input_shape) if isinstance(layer, FullyConnected) else (-1, *layer.input_shape)
    return np.ascontiguousarray(x).reshape(shape)


def _as_images(layer: Conv2D | FullyConnected, shape: tuple[int, ...]) -> tuple[int, ...]:
    count = int(np.prod(shape[:len(shape) - len(layer.output_shape)], dtype=np.int64))
    return (1, count, 1, *shape[-1:]) if isinstance(layer, FullyConnected) else (count, *shape[-3:])
