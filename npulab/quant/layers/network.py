"""Networks: layers in the order in which they run, each with the sources of its inputs."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from npulab.quant.layers.checks import Shape, output_dtype, shape_text, store
from npulab.quant.layers.operation import Operation, Placeholder
from npulab.quant.layers.plain import Add, Pool2D
from npulab.quant.layers.real import Activation, Concat, Elementwise
from npulab.quant.layers.weighted import Conv1D, Conv2D, FullyConnected
from npulab.quant.rules import QUANTIZED, QuantParams

Layer = (
    Conv2D | Conv1D | FullyConnected | Pool2D | Add | Elementwise | Activation | Concat | Operation
)
LAYERS = (Conv2D, Conv1D, FullyConnected, Pool2D, Add, Elementwise, Activation, Concat, Operation)
NAMES = f"{', '.join(kind.__name__ for kind in LAYERS)} and Network"


@dataclass(frozen=True, eq=False)
class Network:
    """Layers in the order in which they run; ``inputs[i]`` are the sources of the tensors that
    layer i takes.

    A source is the number of an earlier layer, counted from 0, or -1 for the network's first input,
    -2 for its second, and so on. A layer has one source for each tensor that it takes. By default
    the first layer takes the network's inputs, and every later layer the output of the layer before
    it. ``outputs`` are the numbers of the layers that give the network's outputs, by default the
    last layer.

    A network with one output may stand in place of a layer, for NPUs that pool and convolve in one
    operation. Raises ValueError, which names the layer, for a source that does not fit.
    """

    layers: tuple[Layer | Network, ...]
    inputs: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        layers = self._checked_layers()
        store(self, layers=layers, inputs=self._checked_inputs() or _chain(layers))
        store(self, outputs=self._checked_outputs() or (len(layers) - 1,))
        if layers and not all(0 <= number < len(layers) for number in self.outputs):
            raise ValueError(
                f"network: got outputs {self.outputs}, allowed are numbers of layers, at least 0 "
                f"and below {len(layers)}"
            )
        if not layers or len(self.inputs) != len(layers):
            raise ValueError(
                f"network: got {len(layers)} layers and {len(self.inputs)} tuples of sources, "
                "allowed are one layer or more, and as many tuples of sources as layers"
            )
        self._check_sources()

    def _checked_layers(self) -> tuple[Layer | Network, ...]:
        layers: tuple[Any, ...] = ()
        if isinstance(self.layers, list | tuple):
            layers = tuple(self.layers)
        for layer in layers:
            if not isinstance(layer, (*LAYERS, Network)):
                got = ", ".join(sorted({type(layer).__name__ for layer in layers}))
                raise ValueError(f"network: got layers of type {got}, allowed are {NAMES}")
        for layer in layers:
            if isinstance(layer, Network) and len(layer.outputs) > 1:
                raise ValueError(
                    f"network: got {layer} with {len(layer.outputs)} outputs, allowed in "
                    "place of a layer is a network with one output"
                )
        return layers

    def _checked_inputs(self) -> tuple[tuple[int, ...], ...]:
        try:
            return tuple(tuple(map(operator.index, sources)) for sources in self.inputs)
        except TypeError:
            raise ValueError(
                f"network: got inputs {self.inputs!r}, allowed is a tuple of layer numbers for "
                "each layer"
            ) from None

    def _checked_outputs(self) -> tuple[int, ...]:
        try:
            return tuple(map(operator.index, self.outputs))
        except TypeError:
            raise ValueError(
                f"network: got outputs {self.outputs!r}, allowed is a tuple of layer numbers"
            ) from None

    def _check_sources(self) -> None:
        """Raise ValueError if a source does not exist, or if its tensor is not one that the layer
        takes.
        """
        given = {source for source in chain(*self.inputs) if source < 0}
        # the network's inputs are -1, -2, ...; an input that no layer takes is a gap in the numbers
        lowest = -max(len(given), 1)
        for number, (layer, sources) in enumerate(zip(self.layers, self.inputs, strict=True)):
            taken = tensors_taken(layer)
            known = all(lowest <= source < number for source in sources)
            if len(sources) != len(taken) or not known:
                raise ValueError(
                    f"layer {number}, {layer}: got inputs {sources}, allowed are {len(taken)} "
                    f"sources from {lowest} to {number - 1}"
                )
            for tensor, source in zip(taken, sources, strict=True):
                if source >= 0:
                    _check_join(number, layer, tensor, self.layers[source])

    @property
    def input_shapes(self) -> tuple[Shape, ...]:
        """The shape of each of the network's inputs, as stated by the first layer that takes the
        input.
        """
        found: dict[int, tuple[int, ...]] = {}
        for layer, sources in zip(self.layers, self.inputs, strict=True):
            for source, shape in zip(sources, input_shapes(layer), strict=True):
                found.setdefault(source, shape)
        return tuple(found[-1 - n] for n in range(sum(source < 0 for source in found)))

    @property
    def output_shape(self) -> Shape:
        """The shape of the first output."""
        return self.layers[self.outputs[0]].output_shape

    @property
    def output_q(self) -> QuantParams | None:
        """Scale and zero point of the first output."""
        return self.layers[self.outputs[0]].output_q

    @property
    def dtype(self) -> str:
        """The type of the first output."""
        return output_dtype(self.layers[self.outputs[0]])

    def __repr__(self) -> str:
        return f"Network({len(self.layers)} layers, {self.layers[0]} ... {self.layers[-1]})"


def _chain(layers: Sequence[Layer | Network]) -> tuple[tuple[int, ...], ...]:
    """Return the sources of layers that run one after the other; the first takes the network's
    inputs.
    """
    if not layers:
        return ()
    first = tuple(range(-1, -1 - len(input_shapes(layers[0])), -1))
    return (first, *((number,) for number in range(len(layers) - 1)))


def input_shapes(layer: Layer | Network) -> tuple[Shape, ...]:
    """Return the shape of each tensor that a layer takes."""
    several: Any = getattr(layer, "input_shapes", None)
    if several is not None:
        return several
    if isinstance(layer, Add):
        return layer.input_shape, layer.input_shape
    return (layer.input_shape,)  # type: ignore[union-attr]


def tensors_taken(layer: Layer | Network) -> tuple[Placeholder, ...]:
    """Return shape, type and quantization of each tensor that a layer takes."""
    if isinstance(layer, Operation):
        return tuple(layer.inputs[place] for place in layer.moving)
    if isinstance(layer, Network):
        taken: dict[int, Placeholder] = {}
        for inner, sources in zip(layer.layers, layer.inputs, strict=True):
            for source, tensor in zip(sources, tensors_taken(inner), strict=True):
                taken.setdefault(source, tensor)
        return tuple(taken[-1 - number] for number in range(len(layer.input_shapes)))
    tensors = [Placeholder(shape, layer.dtype, layer.input_q) for shape in input_shapes(layer)]
    if isinstance(layer, Add):
        tensors[1] = tensors[1]._replace(q=layer.other_q)
    return tuple(tensors)


def _check_join(
    number: int, layer: Layer | Network, takes: Placeholder, source: Layer | Network
) -> None:
    """Raise ValueError if the output of ``source`` differs in shape, type or quantization from the
    tensor that ``layer`` takes.
    """
    gives = source.output_q
    if takes.dtype in QUANTIZED and gives is not None and _codes(gives) != _codes(takes.q):
        raise ValueError(
            f"layer {number}, {layer}: got {gives} from {source}, allowed is {takes.q}"
        )
    # shapes of an operation include the batch, and a fully connected layer takes any shape with the
    # right number of elements: only the numbers of elements are compared
    if isinstance(layer, FullyConnected | Operation) or isinstance(source, Operation):
        fits = math.prod(source.output_shape) == math.prod(takes.shape)
    else:
        fits = source.output_shape == takes.shape
    dtype = output_dtype(source)
    if not fits or dtype != takes.dtype:
        raise ValueError(
            f"layer {number}, {layer}: got {shape_text(source.output_shape)} {dtype} from {source}"
            f", allowed is {shape_text(takes.shape)} {takes.dtype}"
        )


def _codes(q: QuantParams) -> tuple[np.float32, int]:
    """Return (the scale as float32, as models store it; the zero point)."""
    return np.float32(q.scale), q.zero_point  # type: ignore[arg-type]
