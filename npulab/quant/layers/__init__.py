"""Layers: parameters, weights, bias and quantization, as a model states them."""

from npulab.quant.layers.checks import (
    ACTIVATIONS,
    PADDINGS,
    POOLS,
    TYPES,
    UNIT,
    Pair,
    Shape3,
    leak_of,
    output_dtype,
    padding_name,
    pads,
    per_channel,
)
from npulab.quant.layers.network import LAYERS, Layer, Network, input_shapes, tensors_taken
from npulab.quant.layers.operation import OPERATIONS, Operation, Placeholder
from npulab.quant.layers.plain import Add, Pool2D
from npulab.quant.layers.real import PAIRED, SINGLE, Activation, Concat, Elementwise
from npulab.quant.layers.weighted import Conv1D, Conv2D, FullyConnected, Weighted
from npulab.quant.rules import QuantParams

__all__ = [
    "ACTIVATIONS",
    "LAYERS",
    "OPERATIONS",
    "PADDINGS",
    "PAIRED",
    "POOLS",
    "SINGLE",
    "TYPES",
    "UNIT",
    "Activation",
    "Add",
    "Concat",
    "Conv1D",
    "Conv2D",
    "Elementwise",
    "FullyConnected",
    "Layer",
    "Network",
    "Operation",
    "Pair",
    "Placeholder",
    "Pool2D",
    "QuantParams",
    "Shape3",
    "Weighted",
    "input_shapes",
    "leak_of",
    "output_dtype",
    "padding_name",
    "pads",
    "per_channel",
    "tensors_taken",
]
