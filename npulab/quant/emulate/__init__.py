"""Exact operators: from a layer and an input, the output that a named rule prescribes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.quant.emulate import elements, operations, quantized, real
from npulab.quant.emulate.addition import Addition
from npulab.quant.emulate.engines import ENGINES, clamp_range, parts
from npulab.quant.emulate.pooling import pool
from npulab.quant.emulate.quantized import Quantized
from npulab.quant.emulate.saturating import Saturation
from npulab.quant.layers import (
    LAYERS,
    Activation,
    Add,
    Concat,
    Conv1D,
    Conv2D,
    Elementwise,
    FullyConnected,
    Layer,
    Network,
    Operation,
    Pool2D,
    input_shapes,
)
from npulab.quant.requantize import Scratch
from npulab.quant.rules import QUANTIZED, Rule
from npulab.support.extras import needed

__all__ = [
    "ENGINES",
    "Prepared",
    "Saturation",
    "accumulate",
    "clamp_range",
    "compiles",
    "emulate",
    "outputs",
    "prepare",
]

EIGHT = (np.dtype(np.int8), np.dtype(np.uint8))


def emulate(
    layer: Layer | Network | Sequence[Layer],
    x: Any,
    rule: str | Rule = "tflite-reference",
    saturation: Saturation | None = None,
) -> Any:
    """Return the output of a layer or a network, bit for bit by the named rule, in the type of
    ``x``; sums are int32.

    ``x`` is ``(H, W, C)`` or ``(N, H, W, C)`` as ``layer.input_shape`` says, in ``layer.dtype``
    (8-bit layers take int8 and uint8). For ``Conv1D`` it is ``(..., L, C)``; for ``FullyConnected``
    ``(..., H, W, C)`` with I elements in H, W and C, or ``(..., I)``. It is a pair for ``Add`` and
    for an ``Elementwise`` of two tensors, and a tuple for ``Concat``; these tensors have the same
    leading axes, any number of them. For an ``Operation`` it is the operator's tensors with the
    batch that the operator states. If that batch is 1, ``x`` may have another batch or none. For a
    network of several inputs it is the tuple of its inputs. A network of several outputs gives a
    tuple. A layer of float16 takes every number: infinities and NaN are treated as in IEEE 754.

    ``rule`` is one of ``npulab.RULES``, or an engine of ``npulab.ENGINES`` such as
    "tflite-builtin", "xnnpack" or "onnxruntime:avx2". An engine selects rules by operator and type,
    and the way in which products are added; ``npulab.ENGINES`` says on which processors each was
    measured. A target's own rule is ``target.rule``. ``saturation`` says how the products of a
    quantized layer with weights are added; by default they are added as the engine does it. A fully
    connected layer of float32 has two further rules, "hybrid-float32:fused" and
    "hybrid-float32:portable".

    Raises ValueError if ``x`` does not fit the layer, or if an accumulator is outside of the rule's
    register (for sums: int32). Raises LookupError for an unknown rule.
    """
    if isinstance(layer, LAYERS):
        return Prepared(layer, rule, keep=False, saturation=saturation)(x)
    network = _network(layer)
    every = outputs(network, x, rule, saturation)
    last = tuple(every[number] for number in network.outputs)
    if len(last) > 1:
        return last
    return last[0]


def outputs(
    network: Network | Sequence[Layer],
    x: Any,
    rule: str | Rule = "tflite-reference",
    saturation: Saturation | None = None,
) -> list[Array]:
    """Return the outputs of all layers of a network, in the order of the layers. ``x`` is the
    network's input, or a tuple of its inputs if there are several.
    """
    network = _network(network)
    count = len(network.input_shapes)
    if count > 1 and (not isinstance(x, tuple | list) or len(x) != count):
        if isinstance(x, tuple | list):
            got = f"{len(x)} tensors"
        else:
            got = type(x).__name__
        raise ValueError(f"x: got {got}, allowed with {network} is a tuple of {count} tensors")
    if count > 1:
        given = x
    else:
        given = (x,)
    done: list[Array] = []
    for layer, sources in zip(network.layers, network.inputs, strict=True):
        taken = tuple(given[-1 - source] if source < 0 else done[source] for source in sources)
        done.append(emulate(layer, taken if len(taken) > 1 else taken[0], rule, saturation))
    return done


def _network(layers: Network | Sequence[Layer]) -> Network:
    if isinstance(layers, Network):
        return layers
    if not isinstance(layers, list | tuple) or not all(isinstance(one, LAYERS) for one in layers):
        raise ValueError(
            f"layer: got {type(layers).__name__}, allowed is a {_names(LAYERS)}, a list of these, "
            "or a Network (as model.network of a file that was read)"
        )
    return Network(tuple(layers))


def prepare(
    layer: Layer, rule: str | Rule = "tflite-reference", fast: bool | None = None
) -> Prepared:
    """Return a layer that is prepared for many runs: it is called with an input, gives what
    ``emulate`` gives, and unpacks the weights only once.

    If ``fast`` is true, numba's loops are used (the extra ``npulab[fast]``); by default they are
    used if numba is installed. They are compiled at their first use on a machine and give the same
    numbers. Raises MissingPackage if ``fast`` is true and numba is not installed.
    """
    _refuse(layer)
    if fast:
        needed("numba", "prepare with fast")
    # numba has loops only for layers with weights
    weighted = isinstance(layer, Conv2D | Conv1D | FullyConnected)
    return Prepared(
        layer, rule, keep=True, fast=weighted and (compiles() if fast is None else fast)
    )


def compiles() -> bool:
    """True if numba is installed in a version that works with the installed numpy."""
    try:
        from npulab.quant.emulate import jit  # noqa: F401
    except (ImportError, OSError):
        return False
    return True


class Prepared:
    """A layer and a rule, prepared to be called with inputs."""

    def __init__(
        self,
        layer: Layer,
        rule: str | Rule,
        keep: bool,
        fast: bool = False,
        saturation: Saturation | None = None,
    ) -> None:
        if not isinstance(rule, str) or rule not in real.NAMED:
            # this call raises LookupError for the name of an unknown rule
            parts(rule, "conv", "int8", "tensor", 1)
        self.layer = layer
        self.rule = rule
        self.keep = keep
        self.fast = fast
        self.saturation = saturation
        # A scratch holds the arrays that a call works in. It serves one call at a time, so that
        # calls from several threads need several; ``_idle`` are the scratches that no call uses.
        self._idle: list[Scratch] = []
        # a key is the type of an input; the value is the layer, prepared for inputs of that type
        self._made: dict[np.dtype, Any] = {}

    def __call__(self, x: Any) -> Array:
        """Return the output in the type of the input; sums are int32."""
        layer = self.layer
        if isinstance(layer, Operation):
            return operations.batches(layer, x, self.rule)
        if isinstance(layer, Add | Elementwise | Activation | Concat):
            tensors = _tensors(layer, x)
            if isinstance(layer, Concat):
                return elements.concat(layer, tensors)
            if layer.dtype == "float16":
                return real.half(layer, tensors, self.rule)
            return self._ready(Addition, layer, tensors[0].dtype)(tensors)
        images, shape = _images(layer, x)
        dtype = images.dtype
        if isinstance(layer, Conv1D):
            layer = layer.image
        if dtype == np.float16:
            return real.half(layer, images, self.rule).reshape(shape)
        if isinstance(layer, Pool2D):
            return pool(layer, images, self.rule).reshape(shape)
        if dtype == np.float32:
            return real.hybrid(layer, images, self.rule).reshape(shape)
        if layer.output == "sums":
            return quantized.summed(layer, images, self.rule, self.saturation).reshape(shape)
        out = np.empty(shape, dtype)
        # all threads share the prepared layer, but a scratch serves one thread at a time
        more = self.keep, self.fast, self.saturation
        ready = self._ready(Quantized, layer, dtype, *more)
        try:
            scratch = self._idle.pop()
        except IndexError:
            scratch = Scratch()
        ready.run(images, out.reshape(_as_images(layer)), scratch)
        self._idle.append(scratch)
        return out

    def _ready(self, kind: Callable[..., Any], layer: Layer, dtype: np.dtype, *more: Any) -> Any:
        """Return the layer prepared for inputs of a type; it is prepared at its first input."""
        if dtype not in self._made:
            self._made[dtype] = kind(layer, dtype, self.rule, *more)
        return self._made[dtype]

    def __repr__(self) -> str:
        return f"Prepared({self.layer}, {self.rule})"


def accumulate(
    layer: Conv2D | Conv1D | FullyConnected, x: Array, saturation: Saturation | None = None
) -> Array:
    """Return the accumulators ``(..., C)`` int64 of a quantized layer: ``bias + sum (x - input
    zero) * (w - weight zero)``.

    They are the true sums: nothing wraps, and products saturate only if ``saturation`` says so.
    """
    _refuse(layer, Conv2D, Conv1D, FullyConnected)
    images, shape = _images(layer, x)
    if images.dtype.kind == "f":
        raise ValueError(
            f"accumulate: got {layer} of {images.dtype}, allowed is a layer with weights, of "
            f"{', '.join(QUANTIZED)}"
        )
    if isinstance(layer, Conv1D):
        layer = layer.image
    out = np.empty(shape, np.int64)
    quantized.accumulate(layer, images, out.reshape(_as_images(layer)), saturation)
    return out


def _refuse(layer: Any, *kinds: type) -> None:
    """Raise ValueError if a layer is of none of the ``kinds``, which are by default all kinds of
    layers.
    """
    if not isinstance(layer, kinds or LAYERS):
        raise ValueError(
            f"layer: got {type(layer).__name__}, allowed is a {_names(kinds or LAYERS)}"
        )


def _names(kinds: Sequence[type]) -> str:
    *first, last = (kind.__name__ for kind in kinds)
    return f"{', '.join(first)} or {last}"


def _types(layer: Layer) -> tuple[np.dtype, ...]:
    """Return the types that an input may have: a layer of 8 bits takes both int8 and uint8."""
    if layer.dtype in ("int8", "uint8"):
        return EIGHT
    return (np.dtype(layer.dtype),)


def _words(layer: Layer) -> str:
    return " or ".join(map(str, _types(layer)))


def _tensors(layer: Add | Elementwise | Activation | Concat, x: Any) -> tuple[Array, ...]:
    """Return the tensors that a layer takes; raises ValueError if they do not fit the layer or each
    other.
    """
    shapes = input_shapes(layer)
    count = len(shapes)
    words = {1: "one tensor", 2: "two tensors"}.get(count, f"{count} tensors")
    texts = [str(shape) for shape in shapes]
    if len(set(shapes)) == 1:
        del texts[1:]
    allowed = (
        f"{words} of {' and '.join(texts)}, or that with leading batch axes, of {_words(layer)}"
    )
    if count == 1 and not isinstance(x, tuple | list):
        x = (x,)
    if not isinstance(x, tuple | list) or len(x) != count:
        tupled = {1: "", 2: "a pair, "}.get(count, "a tuple, ")
        raise ValueError(f"x: got {type(x).__name__}, allowed with {layer} is {tupled}{allowed}")
    tensors = tuple(map(np.ascontiguousarray, x))
    axes = len(shapes[0])
    fits = len({(tensor.shape[:-axes], tensor.dtype) for tensor in tensors}) == 1
    for tensor, shape in zip(tensors, shapes, strict=True):
        fits = fits and tensor.shape[-axes:] == shape and tensor.size > 0
    if not fits or tensors[0].dtype not in _types(layer):
        got = " and ".join(f"{tensor.shape} {tensor.dtype}" for tensor in tensors)
        plural = ""
        if count > 1:
            plural = "s"
        raise ValueError(f"x: got shape{plural} {got}, allowed is {allowed}")
    return tensors


def _images(
    layer: Conv2D | Conv1D | FullyConnected | Pool2D, x: Any
) -> tuple[Array, tuple[int, ...]]:
    """Return the checked input as images ``(N, H, W, C)``, and the shape of the output; raises
    ValueError for an input that does not fit.

    Each row of a fully connected layer becomes a pixel of one image. Each input of a 1-D
    convolution becomes an image of one row.
    """
    x = np.asarray(x)
    axes = len(layer.input_shape)
    fits = x.shape[-axes:] == layer.input_shape
    images: tuple[int, ...] = (-1, *layer.input_shape)
    allowed = f"{layer.input_shape}, or that with leading batch axes"
    if isinstance(layer, FullyConnected):
        (size,) = layer.input_shape
        # if the last three axes have as many elements as a row, they are taken as one row
        if x.ndim >= 3 and math.prod(x.shape[-3:]) == size:
            axes = 3
            fits = True
        images = 1, -1, 1, size
        allowed = f"(..., {size}), or (..., H, W, C) of as many"
    elif isinstance(layer, Conv1D):
        images = -1, *layer.image.input_shape
    else:
        fits = fits and x.ndim <= 4
        allowed = f"{layer.input_shape}, or that with a leading batch axis"
    if not fits or x.dtype not in _types(layer) or x.size == 0:
        raise ValueError(
            f"x: got shape {x.shape} {x.dtype}, allowed is {allowed}, of {_words(layer)}"
        )
    if x.dtype == np.float32 and not np.all(np.isfinite(x)):
        raise ValueError("x: got a value that is not finite, allowed are finite numbers")
    shape = *x.shape[: x.ndim - axes], *layer.output_shape
    return np.ascontiguousarray(x).reshape(images), shape


def _as_images(layer: Conv2D | FullyConnected) -> tuple[int, ...]:
    """Return the shape in which the output is seen as images, with -1 for the number of images (of
    rows, if the layer is fully connected).
    """
    if isinstance(layer, FullyConnected):
        return 1, -1, 1, *layer.output_shape
    return -1, *layer.output_shape
