"""Layers: parameters, weights, bias and quantization, as a model states them."""

from npulab.layers.checks import (
    ACTIVATIONS,
    PADDINGS,
    POOLS,
    TYPES,
    UNIT,
    Pair,
    Shape3,
    padding_name,
    pads,
    per_channel,
)
from npulab.layers.network import LAYERS, Layer, Network, input_shapes
from npulab.layers.plain import Add, Pool2D
from npulab.layers.real import PAIRED, SINGLE, Activation, Concat, Elementwise
from npulab.layers.weighted import Conv2D, FullyConnected

__all__ = ["ACTIVATIONS", "LAYERS", "PADDINGS", "PAIRED", "POOLS", "SINGLE", "TYPES", "UNIT", "Activation", "Add",
           "Concat", "Conv2D", "Elementwise", "FullyConnected", "Layer", "Network", "Pair", "Pool2D", "Shape3",
           "input_shapes", "padding_name", "pads", "per_channel"]
