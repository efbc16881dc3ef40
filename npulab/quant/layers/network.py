"""Layers in the order they run."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from npulab.quant.layers.checks import output_dtype, shape_text
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
    """Layers in the order they run; ``inputs[i]`` says where layer i takes its input from.

    A source is the number of an earlier layer, or -1 for the network's first input, -2 for its
    second and so on; a layer takes as many as it has input tensors.  A
    network in the place of a layer is one layer, as an NPU counts that pools and convolves in one
    go; it gives one output.  Left out, the first layer
    takes the network's inputs and every other what the layer before it gives.  ``outputs`` are the
    numbers of the layers that give the outputs, by default the last one.  Raises ValueError naming
    the layer if a source does not fit.
    """

    layers: tuple[Layer | Network, ...]
    inputs: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        layers = tuple(self.layers) if isinstance(self.layers, list | tuple) else ()
        if not all(isinstance(layer, (*LAYERS, Network)) for layer in layers):
            raise ValueError(
                f"network: got {', '.join(sorted({type(one).__name__ for one in layers}))}, "
                "allowed are "
                f"{NAMES}"
            )
        try:
            inputs = tuple(tuple(operator.index(n) for n in one) for one in self.inputs)
        except TypeError:
            raise ValueError(
                f"network: got inputs {self.inputs!r}, allowed is a tuple of layer numbers for "
                "each "
                "layer"
            ) from None
        try:
            outputs = tuple(operator.index(n) for n in self.outputs)
        except TypeError:
            raise ValueError(
                f"network: got outputs {self.outputs!r}, allowed is a tuple of layer numbers"
            ) from None
        several = [
            layer for layer in layers if isinstance(layer, Network) and len(layer.outputs) > 1
        ]
        if several:
            raise ValueError(
                f"network: got {several[0]} with {len(several[0].outputs)} outputs, allowed in the "
                "place "
                "of a layer is one"
            )
        inputs = inputs or tuple(
            (i - 1,) if i else tuple(-1 - n for n in range(len(input_shapes(layer))))
            for i, layer in enumerate(layers)
        )
        object.__setattr__(self, "layers", layers)
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "outputs", outputs or (len(layers) - 1,))
        if layers and not all(0 <= number < len(layers) for number in self.outputs):
            raise ValueError(
                f"network: got outputs {self.outputs}, allowed are numbers of its {len(layers)} "
                "layers"
            )
        if not layers or len(inputs) != len(layers):
            raise ValueError(
                f"network: got {len(layers)} layers and {len(inputs)} inputs, allowed is one for "
                "each "
                "layer, at least one"
            )
        given = {source for sources in inputs for source in sources if source < 0}
        lowest = -max(len(given), 1)  # every input of the network is taken by some layer
        for i, (layer, sources) in enumerate(zip(layers, inputs, strict=True)):
            shapes = input_shapes(layer)
            if len(sources) != len(shapes) or not all(lowest <= source < i for source in sources):
                raise ValueError(
                    f"layer {i}, {layer}: got inputs {sources}, allowed is {len(shapes)} of "
                    f"{lowest} to "
                    f"{i - 1}"
                )
            for place, source in enumerate(sources):
                if source >= 0:
                    _check_join(i, layer, tensors_taken(layer)[place], layers[source])

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each of the network's inputs, as the first layer that takes it has it."""
        found: dict[int, tuple[int, ...]] = {}
        for layer, sources in zip(self.layers, self.inputs, strict=True):
            for source, shape in zip(sources, input_shapes(layer), strict=True):
                found.setdefault(source, shape)
        return tuple(found[-1 - n] for n in range(sum(source < 0 for source in found)))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """That of the layer that gives the first output."""
        return self.layers[self.outputs[0]].output_shape

    @property
    def output_q(self) -> QuantParams | None:
        """That of the layer that gives the first output."""
        return self.layers[self.outputs[0]].output_q

    @property
    def dtype(self) -> str:
        """The type of the first output."""
        return output_dtype(self.layers[self.outputs[0]])

    def __repr__(self) -> str:
        return f"Network({len(self.layers)} layers, {self.layers[0]} ... {self.layers[-1]})"


def input_shapes(layer: Layer | Network) -> tuple[tuple[int, ...], ...]:
    """The shape of each tensor that a layer takes."""
    if isinstance(layer, Network):
        return layer.input_shapes
    several: Any = getattr(layer, "input_shapes", None)
    if several is not None:
        return several
    return (layer.input_shape,) * (2 if isinstance(layer, Add) else 1)


def tensors_taken(layer: Layer | Network) -> tuple[Placeholder, ...]:
    """Shape, type and quantization of each tensor that a layer takes."""
    if isinstance(layer, Operation):
        return tuple(layer.inputs[place] for place in layer.moving)
    if isinstance(layer, Network):
        parts = {
            source: part
            for one, sources in zip(layer.layers[::-1], layer.inputs[::-1], strict=True)
            for source, part in zip(sources, tensors_taken(one), strict=True)
        }
        return tuple(parts[-1 - n] for n in range(len(layer.input_shapes)))
    return tuple(
        Placeholder(
            shape, layer.dtype, layer.other_q if isinstance(layer, Add) and place else layer.input_q
        )
        for place, shape in enumerate(input_shapes(layer))
    )


def _check_join(
    number: int, layer: Layer | Network, takes: Placeholder, source: Layer | Network
) -> None:
    """Raises ValueError if what a layer gives is not what the next takes, in shape, type or
    quantization."""
    gives = source.output_q
    if (
        takes.dtype in QUANTIZED
        and gives is not None
        and (
            np.float32(gives.scale) != np.float32(takes.q.scale)  # type: ignore[arg-type]
            or gives.zero_point != takes.q.zero_point
        )
    ):
        raise ValueError(
            f"layer {number}, {layer}: got {gives} from {source}, allowed is {takes.q}"
        )
    # an operation's shapes have the batch, and a fully connected layer takes any of as many
    # elements
    free = isinstance(layer, FullyConnected | Operation) or isinstance(source, Operation)
    if free:
        fits = np.prod(source.output_shape) == np.prod(takes.shape)
    else:
        fits = source.output_shape == takes.shape
    dtype = output_dtype(source)
    if not fits or dtype != takes.dtype:
        raise ValueError(
            f"layer {number}, {layer}: got {shape_text(source.output_shape)} {dtype} from {source}"
            f", allowed is {shape_text(takes.shape)} {takes.dtype}"
        )
