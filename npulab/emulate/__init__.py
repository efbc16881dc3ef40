"""Exact operators: a layer and an input give the output that a named rule demands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from npulab.emulate import definition, quantized, real
from npulab.emulate.addition import Addition
from npulab.emulate.engines import NAMES as ENGINES
from npulab.emulate.engines import clamp_range, parts
from npulab.emulate.pooling import pool
from npulab.emulate.quantized import Quantized
from npulab.layers import Add, Conv2D, FullyConnected, Layer, Network, Pool2D
from npulab.quant import QUANTIZED, Rule, Scratch

__all__ = ["ENGINES", "Prepared", "accumulate", "accumulate_reference", "clamp_range", "compiles", "emulate",
           "emulate_reference", "outputs", "prepare"]

accumulate_reference = definition.accumulate
emulate_reference = definition.emulate
LAYERS = (Conv2D, FullyConnected, Pool2D, Add)
EIGHT = (np.dtype(np.int8), np.dtype(np.uint8))


def emulate(layer: Layer | Network | Sequence[Layer], x: Any, rule: str | Rule = "tflite-reference") -> np.ndarray:
    """Output of a layer or a network, bit for bit as the named rule has it, in the type of ``x``.

    ``x`` is ``(H, W, C)`` or ``(N, H, W, C)`` as ``layer.input_shape`` says, in ``layer.dtype`` (8-bit layers
    take int8 and uint8); for ``FullyConnected`` ``(..., H, W, C)`` of I elements, else ``(..., I)``; for ``Add``
    a pair.  ``rule`` is one of ``npulab.RULES``, or an engine of ``npulab.ENGINES`` ("tflite-reference",
    "tflite-builtin", "xnnpack", "onnxruntime", "tflite-micro", "torch-fbgemm", "torch-onednn"), which selects
    rules by operator and type; a target's own is ``target.rule``.
    Raises ValueError where ``x`` is not so, or an accumulator leaves the rule's register; LookupError for
    an unknown rule.
    """
    if isinstance(layer, LAYERS):
        return Prepared(layer, rule, keep=False)(x)
    return outputs(layer, x, rule)[-1]


def outputs(network: Network | Sequence[Layer], x: Any, rule: str | Rule = "tflite-reference") -> list[np.ndarray]:
    """The output of every layer of a network."""
    if not isinstance(network, Network):
        if not isinstance(network, list | tuple) or not all(isinstance(one, LAYERS) for one in network):
            raise ValueError(f"layer: got {type(network).__name__}, allowed is a Conv2D, FullyConnected, Pool2D or "
                             "Add, a list of these, or a Network (as model.network of a file that was read)")
        network = Network(tuple(network))
    done: list[np.ndarray] = []
    for layer, sources in zip(network.layers, network.inputs, strict=True):
        given = tuple(x if source < 0 else done[source] for source in sources)
        done.append(emulate(layer, given if len(given) > 1 else given[0], rule))
    return done


def prepare(layer: Layer, rule: str | Rule = "tflite-reference", fast: bool | None = None) -> Prepared:
    """A layer made ready to run many times: what ``emulate`` does, with its weights unpacked once.

    ``fast`` uses numba's loops (the extra ``npulab[fast]``), by default where it is installed; they are
    compiled on first use, once for a machine.  The numbers are the same.
    """
    _refuse(layer)
    if fast and not compiles():
        raise ModuleNotFoundError("numba cannot be loaded: prepare with fast needs the extra npulab[fast]")
    weighted = isinstance(layer, Conv2D | FullyConnected)  # the others have no loop to compile
    return Prepared(layer, rule, keep=True, fast=weighted and (compiles() if fast is None else fast))


def compiles() -> bool:
    """Whether numba is there, and of a version that goes with numpy's."""
    try:
        from npulab.emulate import jit  # noqa: F401
    except (ImportError, OSError):
        return False
    return True


class Prepared:
    """A layer and a rule, to be called with inputs."""

    def __init__(self, layer: Layer, rule: str | Rule, keep: bool, fast: bool = False) -> None:
        parts(rule, "conv", "int8", "tensor", 1)  # an unknown name is refused before anything is made
        self.layer, self.rule, self.keep, self.fast = layer, rule, keep, fast
        self._idle: list[Scratch] = []  # one for each thread that calls at the same time
        self._made: dict[np.dtype, Any] = {}

    def __call__(self, x: Any) -> np.ndarray:
        """The output, in the type of the input."""
        layer = self.layer
        if isinstance(layer, Add):
            pair = _pair(layer, x)
            if layer.dtype == "float16":
                return real.half(layer, pair, self.rule)
            return self._ready(pair[0].dtype, lambda dtype: Addition(layer, dtype, self.rule))(pair)
        x, shape = _input(layer, x)
        images = _images(layer, x)
        if x.dtype.kind == "f":
            run = real.half if x.dtype == np.float16 else real.hybrid
            return run(layer, images, self.rule).reshape(shape)  # type: ignore[arg-type]
        if isinstance(layer, Pool2D):
            return pool(layer, images, self.rule).reshape(shape)
        out = np.empty(shape, x.dtype)
        ready = self._ready(x.dtype, lambda dtype: Quantized(layer, dtype, self.rule, self.keep, self.fast))
        try:
            scratch = self._idle.pop()
        except IndexError:
            scratch = Scratch()
        ready.run(images, out.reshape(_as_images(layer, shape)), scratch)
        self._idle.append(scratch)
        return out

    def _ready(self, dtype: np.dtype, make: Callable[[np.dtype], Any]) -> Any:
        if dtype not in self._made:
            self._made[dtype] = make(dtype)
        return self._made[dtype]

    def __repr__(self) -> str:
        return f"Prepared({self.layer}, {self.rule})"


def accumulate(layer: Conv2D | FullyConnected, x: np.ndarray) -> np.ndarray:
    """Accumulators ``(..., C)`` int64 of a quantized layer: ``bias + sum (x - input zero) * (w - weight zero)``.

    They are the true sums: nothing wraps.
    """
    _refuse(layer, Conv2D, FullyConnected)
    x, shape = _input(layer, x)
    if x.dtype.kind == "f":
        raise ValueError(f"accumulate: got {layer} of {x.dtype}, allowed is a layer with weights, of "
                         f"{', '.join(QUANTIZED)}")
    out = np.empty(shape, np.int64)
    quantized.accumulate(layer, _images(layer, x), out.reshape(_as_images(layer, shape)))
    return out


def _refuse(layer: Any, *kinds: type) -> None:
    """Raise ValueError for what is no layer."""
    if not isinstance(layer, kinds or LAYERS):
        names = " or ".join(kind.__name__ for kind in kinds or LAYERS)
        raise ValueError(f"layer: got {type(layer).__name__}, allowed is {names}")


def _types(layer: Layer) -> tuple[np.dtype, ...]:
    """Types that an input may have: layers of 8 bits take either."""
    return EIGHT if layer.dtype in ("int8", "uint8") else (np.dtype(layer.dtype),)


def _words(layer: Layer) -> str:
    return " or ".join(map(str, _types(layer)))


def _pair(layer: Add, x: Any) -> tuple[np.ndarray, np.ndarray]:
    allowed = f"two tensors of {layer.input_shape}, or that with leading batch axes, of {_words(layer)}"
    if not isinstance(x, tuple | list) or len(x) != 2:
        raise ValueError(f"x: got {type(x).__name__}, allowed with {layer} is a pair, {allowed}")
    a, b = (np.ascontiguousarray(one) for one in x)
    axes = len(layer.input_shape)
    if a.shape != b.shape or a.shape[-axes:] != layer.input_shape or a.dtype != b.dtype or not a.size \
            or a.dtype not in _types(layer):
        raise ValueError(f"x: got shapes {a.shape} {a.dtype} and {b.shape} {b.dtype}, allowed is {allowed}")
    return a, b


def _input(layer: Conv2D | FullyConnected | Pool2D, x: Any) -> tuple[np.ndarray, tuple[int, ...]]:
    """(the input, the shape of the output); raises ValueError for an input that does not fit."""
    x = np.asarray(x)
    if isinstance(layer, FullyConnected):
        (size,) = layer.input_shape
        axes = next((axes for axes in (3, 1) if x.ndim >= axes and math.prod(x.shape[-axes:]) == size), 0)
        allowed = f"(..., {size}), or (..., H, W, C) of as many"
    else:
        axes = 3 if x.ndim in (3, 4) and x.shape[-3:] == layer.input_shape else 0
        allowed = f"{layer.input_shape}, or that with a leading batch axis"
    if not axes or x.dtype not in _types(layer) or x.size == 0:
        raise ValueError(f"x: got shape {x.shape} {x.dtype}, allowed is {allowed}, of {_words(layer)}")
    if x.dtype.kind == "f" and not np.all(np.isfinite(x)):
        raise ValueError("x: got a value that is not finite, allowed are finite numbers")
    return x, (*x.shape[:-axes], *layer.output_shape)


def _images(layer: Conv2D | FullyConnected | Pool2D, x: np.ndarray) -> np.ndarray:
    """The input as (N, H, W, C); rows of a fully connected layer are pixels."""
    shape = (1, -1, 1, *layer.input_shape) if isinstance(layer, FullyConnected) else (-1, *layer.input_shape)
    return np.ascontiguousarray(x).reshape(shape)


def _as_images(layer: Layer, shape: tuple[int, ...]) -> tuple[int, ...]:
    count = math.prod(shape[:len(shape) - len(layer.output_shape)])
    return (1, count, 1, *shape[-1:]) if isinstance(layer, FullyConnected) else (count, *shape[-3:])
