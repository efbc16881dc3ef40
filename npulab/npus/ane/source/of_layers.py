"""From a layer to its source network and weight files, as a compiler would be given them.

Keys are spelled as in the networks next to public files of compiler 4.2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from npulab.npus.ane.lowering import as_convolution, names_of
from npulab.npus.ane.source.network import Input, Network, Output, Unit
from npulab.npus.ane.source.parameters import NEURONS, ONE, Shape as Extents, strides
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

Files = dict[str, bytes]
Keys = dict[str, Any]
Layer = Conv2D | FullyConnected | Elementwise | Activation | Concat


def source_of(layer: Layer, names: Sequence[str] = (), name: str = "net") -> tuple[Network, Files]:
    """Return the source network of a layer, and the bytes of its weight files by name.

    Files have fp16 numbers, weights as [output, input, row, column]. ``names`` are the names of the
    inputs, then of the output, by default ``input``, ``input1``, ..., ``output``. Raises
    ``Unsupported`` for layers that no public network has, such as groups, dilation, depthwise,
    subtraction, constants, broadcasting, and activations that the compiler has no name for. Raises
    ValueError for a wrong number of names.

    >>> network, files = source_of(Concat([(1, 1, 16), (1, 1, 8)]))
    >>> [unit.type for unit in network.units], files
    (['Concat'], {})
    >>> [tensor.keys["InputChannels"] for tensor in network.inputs]
    [16, 8]
    """
    if isinstance(layer, FullyConnected):
        layer = as_convolution(layer)
    shapes = input_shapes(layer)
    if any(len(shape) != 3 for shape in shapes):
        raise Unsupported(f"source network: got tensors of {shapes}, allowed is (H, W, C)")
    *input_names, last = names_of(layer, names)
    inputs = tuple(map(_input, input_names, shapes))
    units, files = _units(layer, input_names, last)
    strides_of_output = _strides("Output", layer.output_shape)
    keys = {
        "Bottom": units[-1].name,
        "OutputInterleave": 1,
        **strides_of_output,
        "OutputType": TYPE,
    }
    output = Output(f"{last}@output", keys)
    file_names = tuple(files) or None
    network = Network(name, inputs, tuple(units), (output,), file_names)
    return network, files


def _input(name: str, shape: tuple[int, ...]) -> Input:
    height, width, channels = shape
    strides_of_input = _strides("Input", shape)
    keys = {
        "BatchSize": 1,
        "InputChannels": channels,
        "InputHeight": height,
        "InputInterleave": 1,
        **strides_of_input,
        "InputType": TYPE,
        "InputWidth": width,
    }
    return Input(name, keys)


def _units(layer: Layer, bottoms: list[str], last: str) -> tuple[list[Unit], Files]:
    if isinstance(layer, Conv2D):
        return _convolution(layer, bottoms[0], last)
    channel_axis = len(layer.output_shape) - 1
    if isinstance(layer, Concat) and layer.axis == channel_axis:
        unit = _unit("Concat", last, bottoms)
        return [unit], {}
    if isinstance(layer, Elementwise) and layer.kind in KINDS and _is_plain(layer):
        keys = {"Scale": ONE, "Type": KINDS[layer.kind]}
        unit = _unit("ScaledElementWise", last, bottoms, keys)
        return [unit], {}
    if isinstance(layer, Activation) and np.all(layer.prescale == 1):
        kind = SPELLED.get(layer.name.replace("_", ""))
        if kind is not None:
            unit = _unit("Neuron", last, bottoms[0], {"Type": kind})
            return [unit], {}
    raise Unsupported(
        f"source network: got {layer!r}, allowed is a convolution, a concatenation of channels, "
        f"{', '.join(KINDS)} of two tensors without constants, or an activation by the name of "
        f"one of {', '.join(NEURONS)}"
    )


def _is_plain(layer: Elementwise) -> bool:
    """Return true for two tensors of equal shape, without scales, bias and activation."""
    if layer.other_shape != layer.input_shape or layer.activation is not None:
        return False
    if np.ndim(layer.scale) > 0 or layer.scale != 1:
        return False
    return bool(np.all(layer.prescale == 1)) and not np.any(layer.bias)


def _convolution(layer: Conv2D, bottom: str, last: str) -> tuple[list[Unit], Files]:
    """Return the units of a convolution, and its weight files by name.

    The units are a ``Conv``, a ``GOC`` if a bias is not 0, and a ``Neuron`` for relu. The first
    reads the input ``bottom``, every other unit the unit before it; the last has the name ``last``.
    Raises ``Unsupported`` for depthwise, groups, dilation and activations other than relu.
    """
    depthwise = layer.depthwise and layer.input_shape[2] > 1
    if depthwise or layer.groups > 1 or layer.dilation != (1, 1):
        raise Unsupported(
            f"source network: got {layer!r}, allowed is a convolution of all channels without "
            "dilation: how a network says depthwise, groups or dilation is not known"
        )
    if layer.activation not in (None, "relu"):
        raise Unsupported(
            f"source network: got activation {layer.activation!r}, allowed is None or 'relu'"
        )
    weights = layer.weights
    if layer.depthwise:
        weights = weights.transpose(3, 1, 2, 0)  # 1HWC to OHWI
    oihw = weights.transpose(0, 3, 1, 2)
    files = {WEIGHTS: _halves_of(oihw)}
    kernel_keys = _kernel_keys(layer)
    # For each unit: its type, the end of its name, its keys.
    chain: list[tuple[str, str, Keys]] = [("Conv", "conv", kernel_keys)]
    if np.any(layer.bias):
        files[BIASES] = _halves_of(layer.bias)
        place = {
            "BiasCount": len(layer.bias),
            "BiasIndex": 1,
            "BiasOffset": 0,
            "BiasType": TYPE,
        }
        bias_keys = {"BiasScaleGroupData": place}
        chain.append(("GOC", "bias", bias_keys))
    if layer.activation:
        chain.append(("Neuron", "relu", {"Type": "ReLU"}))
    units: list[Unit] = []
    for kind, ending, keys in chain:
        name = f"{last}_{ending}"
        if len(units) + 1 == len(chain):
            # The last unit is named after the output tensor.
            name = last
        channels = None
        if kind == "Conv":
            channels = layer.output_shape[2]
        unit = _unit(kind, name, bottom, keys, channels)
        units.append(unit)
        bottom = name
    return units, files


def _kernel_keys(layer: Conv2D) -> Keys:
    (top, bottom), (left, right) = layer.pads
    height, width = layer.kernel
    step_y, step_x = layer.stride
    return {
        "KernelHeight": height,
        "KernelIndex": 0,
        "KernelMode": "Dense",
        "KernelOffset": 0,
        "KernelType": TYPE,
        "KernelWidth": width,
        "PadBot": bottom,
        "PadLeft": left,
        "PadRight": right,
        "PadTop": top,
        "Step": [step_x, step_y],
        "Type": "Conv",
    }


def _unit(
    kind: str, name: str, bottom: Any, params: Keys | None = None, channels: int | None = None
) -> Unit:
    # Public files have the keys in alphabetical order.
    keys = {"Bottom": bottom, "Name": name}
    if channels is not None:
        keys["OutputChannels"] = channels
    keys["OutputType"] = TYPE
    if params is not None:
        keys["Params"] = params
    keys["Type"] = kind
    return Unit(name, keys)


def _strides(side: str, shape: tuple[int, ...]) -> Keys:
    height, width, channels = shape
    extents = Extents(width, height, channels)
    found = strides({}, side, extents)
    return {f"{side}PlaneStride": found.plane, f"{side}RowStride": found.row}


def _halves_of(values: np.ndarray) -> bytes:
    halves = np.ascontiguousarray(values, "<f2")
    return halves.tobytes()
