"""From a layer to the source network that a compiler would be given for it, with its weight files.

Keys are spelled as the networks beside public files of compiler 4.2.1 have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from npulab.npus.ane.lowering import as_convolution, names_of
from npulab.npus.ane.source.network import Input, Network, Output, Unit
from npulab.npus.ane.source.parameters import NEURONS, ONE, strides
from npulab.npus.ane.source.parameters import Shape as Extents
from npulab.npus.kit import Unsupported
from npulab.quant.layers import (
    Activation,
    Concat,
    Conv2D,
    Elementwise,
    FullyConnected,
    input_shapes,
)

TYPE = "Float16"
WEIGHTS, BIASES = "net.weights", "net.additional.weights"
KINDS = {"add": "Add", "multiply": "Mult", "maximum": "Max", "minimum": "Min"}
SPELLED = {name.lower(): name for name in NEURONS}

Layer = Conv2D | FullyConnected | Elementwise | Activation | Concat


def source_of(
    layer: Layer, names: Sequence[str] = (), name: str = "net"
) -> tuple[Network, dict[str, bytes]]:
    """The network of one layer, and its weight files by name: fp16, weights as [output, input, row,
    column].

    ``names`` are those of the inputs and the output, as ``lower`` takes them: ``input``,
    ``input1``, ``output``. Raises ``Unsupported`` for what no public network says: groups,
    dilation, depthwise, subtraction, constants, broadcasting, activations that the compiler has no
    name for; ValueError for another count of names.

    >>> network, files = source_of(Concat([(1, 1, 16), (1, 1, 8)]))
    >>> [unit.type for unit in network.units], [one.keys["InputChannels"] for one in network.inputs], files
    (['Concat'], [16, 8], {})
    """
    if isinstance(layer, FullyConnected):
        layer = as_convolution(layer)
    shapes = input_shapes(layer)
    if any(len(shape) != 3 for shape in shapes):
        raise Unsupported(f"source network: got tensors of {shapes}, allowed is (H, W, C)")
    names = names_of(layer, names)
    inputs = tuple(
        Input(
            one,
            {
                "BatchSize": 1,
                "InputChannels": shape[2],
                "InputHeight": shape[0],
                "InputInterleave": 1,
                **_strides("Input", shape),
                "InputType": TYPE,
                "InputWidth": shape[1],
            },
        )
        for one, shape in zip(names[:-1], shapes, strict=True)
    )
    units, files = _units(layer, names)
    output = Output(
        f"{names[-1]}@output",
        {
            "Bottom": units[-1].name,
            "OutputInterleave": 1,
            **_strides("Output", layer.output_shape),
            "OutputType": TYPE,
        },
    )
    return Network(name, inputs, tuple(units), (output,), tuple(files) or None), files


def _units(layer: Layer, names: Sequence[str]) -> tuple[list[Unit], dict[str, bytes]]:
    last = names[-1]
    if isinstance(layer, Conv2D):
        return _convolution(layer, names[0], last)
    if isinstance(layer, Concat) and layer.axis == len(layer.output_shape) - 1:
        return [_unit("Concat", last, list(names[:-1]))], {}
    if (
        isinstance(layer, Elementwise)
        and layer.kind in KINDS
        and layer.other_shape == layer.input_shape
        and np.ndim(layer.scale) == 0
        and (layer.scale, layer.activation) == (1, None)
        and not np.any(layer.bias)
        and np.all(layer.prescale == 1)
    ):
        return [
            _unit(
                "ScaledElementWise",
                last,
                list(names[:-1]),
                {"Scale": ONE, "Type": KINDS[layer.kind]},
            )
        ], {}
    if (
        isinstance(layer, Activation)
        and layer.name.replace("_", "") in SPELLED
        and np.all(layer.prescale == 1)
    ):
        return [_unit("Neuron", last, names[0], {"Type": SPELLED[layer.name.replace("_", "")]})], {}
    raise Unsupported(
        f"source network: got {layer!r}, allowed is a convolution, a concatenation of channels, "
        f"{', '.join(KINDS)} of two tensors without constants, or an activation by the name of one "
        "of "
        f"{', '.join(NEURONS)}"
    )


def _convolution(layer: Conv2D, bottom: str, last: str) -> tuple[list[Unit], dict[str, bytes]]:
    if (
        layer.groups > 1
        or (layer.depthwise and layer.input_shape[2] > 1)
        or layer.dilation != (1, 1)
    ):
        raise Unsupported(
            f"source network: got {layer!r}, allowed is a convolution of all channels without "
            "dilation: "
            "how a network says depthwise, groups or dilation is not known"
        )
    if not layer.depthwise:
        weights = layer.weights
    else:
        weights = layer.weights.transpose(3, 1, 2, 0)
    files = {WEIGHTS: _halves(weights.transpose(0, 3, 1, 2))}
    steps = [
        "conv",
        *(["bias"] if np.any(layer.bias) else []),
        *(["relu"] if layer.activation else []),
    ]
    called = [*(f"{last}_{step}" for step in steps[:-1]), last]
    (top, bottom_pad), (left, right) = layer.pads
    keys = {
        "KernelHeight": layer.kernel[0],
        "KernelIndex": 0,
        "KernelMode": "Dense",
        "KernelOffset": 0,
        "KernelType": TYPE,
        "KernelWidth": layer.kernel[1],
        "PadBot": bottom_pad,
        "PadLeft": left,
        "PadRight": right,
        "PadTop": top,
        "Step": [layer.stride[1], layer.stride[0]],
        "Type": "Conv",
    }
    units = [_unit("Conv", called[0], bottom, keys, OutputChannels=layer.output_shape[2])]
    for step, name in zip(steps[1:], called[1:], strict=True):
        if step == "bias":
            files[BIASES] = _halves(layer.bias)
            keys = {
                "BiasScaleGroupData": {
                    "BiasCount": len(layer.bias),
                    "BiasIndex": 1,
                    "BiasOffset": 0,
                    "BiasType": TYPE,
                }
            }
            units.append(_unit("GOC", name, units[-1].name, keys))
        elif layer.activation == "relu":
            units.append(_unit("Neuron", name, units[-1].name, {"Type": "ReLU"}))
        else:
            raise Unsupported(
                f"source network: got activation {layer.activation!r}, allowed is None or 'relu'"
            )
    return units, files


def _unit(
    kind: str, name: str, bottom: Any, keys: dict[str, Any] | None = None, **more: Any
) -> Unit:
    return Unit(
        name,
        {
            "Bottom": bottom,
            "Name": name,
            **more,
            "OutputType": TYPE,
            **({} if keys is None else {"Params": keys}),
            "Type": kind,
        },
    )


def _strides(side: str, shape: tuple[int, ...]) -> dict[str, Any]:
    height, width, channels = shape
    found = strides({}, side, Extents(width, height, channels))
    return {f"{side}PlaneStride": found.plane, f"{side}RowStride": found.row}


def _halves(values: np.ndarray) -> bytes:
    return np.ascontiguousarray(values, "<f2").tobytes()
