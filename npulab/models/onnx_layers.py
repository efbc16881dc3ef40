"""Convolutions in ``.onnx`` files: parameters, weights and biases as the model has them.

The package onnx reads the bytes (the extra ``npulab[onnx]``). A convolution whose constants lie in
another file is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy import ndarray as Array

from npulab.support.extras import needed
from npulab.support.files import read_bounded
from npulab.support.refuse import refuse_if, refusing

PURPOSE = "reading .onnx files"
MOST_BYTES = 2**28
MOST_SIZE = 2**20  # a tensor has at most MOST_SIZE rows, columns or channels, or rows of padding
CONVOLUTION = "Conv"
ACTIVATIONS = ("Relu", "Clip")  # an operator of these after a convolution counts as its ReLU
AXES, SIDES = ("h", "w"), ("top", "left", "bottom", "right")


@dataclass(frozen=True, eq=False)
class OnnxLayer:
    """A convolution: its name, its parameters by npulab's names, weights OIHW, and biases (None if
    it has none). The parameters have no rows and columns of input and output, and no padding, if
    the file does not state the input's size or leaves the padding to the runtime (``auto_pad``).
    """

    name: str
    parameters: Mapping[str, int]
    weights: Array
    biases: Array | None


@refusing()
def read_onnx(path: str | os.PathLike[str]) -> tuple[OnnxLayer, ...]:
    """The 2-D convolutions in the graph of an ``.onnx`` file, in order; a convolution whose weights
    are no constant of the file is left out.

    Raises MissingPackage without the package onnx (extra ``onnx``), ValueError (what, got, allowed)
    for a broken file and for constants in another file, FileNotFoundError.
    """
    path = Path(path)
    data = read_bounded(path, MOST_BYTES)
    onnx = needed("onnx", PURPOSE)
    broken = needed("google.protobuf.message", PURPOSE).DecodeError
    with refusing(path):
        try:
            graph = onnx.ModelProto.FromString(data).graph
        except broken:
            allowed = "is a model in the encoding of protobuf"
            raise ValueError(f"model: got {len(data)} bytes, allowed {allowed}") from None
        refuse_if(not graph.node, "graph", "no operators", "is one operator or more")
        return _layers(graph, onnx.numpy_helper.to_array)


def _layers(graph: Any, to_array: Any) -> tuple[OnnxLayer, ...]:
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    shapes = {}
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        shapes[value.name] = [dim.dim_value for dim in dims]
    activated = set()
    for node in graph.node:
        if node.op_type in ACTIVATIONS:
            activated.update(node.input[:1])
    layers = []
    for number, node in enumerate(graph.node):
        where = f"operator {number} ({node.op_type!r:.40})"
        if node.op_type in ACTIVATIONS and node.input and node.output:
            shapes[node.output[0]] = shapes.get(node.input[0], [])
        if node.op_type != CONVOLUTION:
            continue
        wrong = not node.output or len(node.input) < 2
        refuse_if(wrong, where, "too few tensors", "are an input, weights and an output")
        weights, biases = _constants(node, tensors, where, to_array)
        if weights is None or weights.ndim != 4:
            continue
        shape = shapes.get(node.input[0], [])
        parameters = _parameters(node, weights.shape, shape, where)
        parameters["relu"] = int(node.output[0] in activated)
        if "output_h" in parameters:
            names = ("output_c", "output_h", "output_w")
            shapes[node.output[0]] = [1, *map(parameters.__getitem__, names)]
        layers.append(OnnxLayer(node.name, parameters, weights, biases))
    return tuple(layers)


def _constants(
    node: Any, tensors: Mapping[str, Any], where: str, to_array: Any
) -> tuple[Array | None, Array | None]:
    """The weights and the biases of an operator, each None if it is not a constant of the model;
    raises ValueError for a constant in another file, and for a type that numpy does not have."""
    found: list[Array | None] = []
    for name in node.input[1:3]:
        value = None
        if name in tensors:
            tensor = tensors[name]
            outside = tensor.data_location or tensor.external_data
            refuse_if(outside, where, "constants in another file", "are constants in this file")
            try:
                value = to_array(tensor)
            except (TypeError, KeyError, AttributeError) as error:
                allowed = "allowed is a type that numpy has"
                raise ValueError(
                    f"{where}: got a constant of type {tensor.data_type} ({error}), {allowed}"
                ) from None
        found.append(value)
    weights, biases = (*found, None)[:2]
    return weights, biases


def _parameters(
    node: Any, weights: Sequence[int], shape: Sequence[int], where: str
) -> dict[str, int]:
    """The parameters of a convolution, from the shapes of its weights (OIHW) and of its input.

    The rows and columns of input and output, and the padding, are left out if the shape of the
    input is not known or the padding is automatic.
    """
    outputs, per_group, *kernel = weights
    given, automatic = {}, False
    for attribute in node.attribute:
        given[attribute.name] = list(attribute.ints) or [attribute.i]
        automatic |= attribute.s not in (b"", b"NOTSET")
    strides = _sizes(given, "strides", [1, 1], where)
    dilations = _sizes(given, "dilations", [1, 1], where)
    groups = _sizes(given, "group", [1], where)[0]
    pads = _sizes(given, "pads", [0, 0, 0, 0], where, least=0)
    stated = _sizes(given, "kernel_shape", kernel, where)
    refuse_if(stated != kernel, where, f"kernel {stated}", f"is {kernel}, that of the weights")
    sizes = (outputs, per_group, groups, *kernel)
    wrong = min(sizes) < 1 or max(sizes) > MOST_SIZE or outputs % groups
    allowed = f"are sizes from 1 to {MOST_SIZE} and groups that divide the output channels"
    refuse_if(wrong, where, f"weights of {weights} in {groups} groups", allowed)
    inputs = per_group * groups
    parameters = {
        "input_c": inputs,
        "output_c": outputs,
        **_by_axis("kernel", kernel),
        **_by_axis("stride", strides),
        **_by_axis("dilation", dilations),
        "depthwise": int(groups == inputs > 1),
    }
    known = len(shape) == 4 and all(0 < size <= MOST_SIZE for size in shape[2:])
    if not known or automatic:
        return parameters
    refuse_if(shape[1] not in (0, inputs), where, f"input of {shape[1]} channels", f"is {inputs}")
    parameters |= _by_axis("input", shape[2:])
    for side, pad in zip(SIDES, pads, strict=True):
        parameters[f"pad_{side}"] = pad
    for axis, name in enumerate(AXES):
        room = shape[2 + axis] + pads[axis] + pads[2 + axis]
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        refuse_if(
            reach > room,
            where,
            f"a kernel that reaches over {reach}",
            f"is at most {room}, the padded input",
        )
        parameters[f"output_{name}"] = (room - reach) // strides[axis] + 1
    return parameters


def _sizes(
    given: Mapping[str, list[int]], name: str, usual: list[int], where: str, least: int = 1
) -> list[int]:
    """The numbers of an attribute, by default ``usual``; raises ValueError if their count is not
    that of ``usual``, or for a number below ``least`` or above ``MOST_SIZE``."""
    found = given.get(name, usual)
    fits = len(found) == len(usual) and min(found) >= least and max(found) <= MOST_SIZE
    allowed = f"are {len(usual)} numbers from {least} to {MOST_SIZE}"
    refuse_if(not fits, f"{where}: {name}", f"{found!r:.60}", allowed)
    return found


def _by_axis(name: str, sizes: Sequence[int]) -> dict[str, int]:
    return {f"{name}_{axis}": size for axis, size in zip(AXES, sizes, strict=True)}
