"""Layers made into graphs, with the operators that TensorFlow Lite needs around them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from npulab.models.facts import FUSED, PADDINGS, POOLS, REVISIONS, TYPES
from npulab.models.file import pack
from npulab.models.graph import Graph, Operator, Tensor, packed_codes
from npulab.quant.layers import (
    Add,
    Conv2D,
    FullyConnected,
    Layer,
    Network,
    Operation,
    Placeholder,
    Pool2D,
    padding_name,
    per_channel,
    tensors_taken,
)
from npulab.quant.rules import QUANTIZED, QuantParams
from npulab.support.refuse import refuse_if

STARTS = {-1: "input", -2: "other"}  # names of the tensors that a graph takes
MODELLED = (Conv2D, FullyConnected, Pool2D, Add, Operation)
MOST_LEADING = 3
ONE_ELEMENT = {"padding": 1, "stride_w": 1, "stride_h": 1, "kernel_w": 1, "kernel_h": 1}


def single_op_model(
    layer: Layer,
    batch: int | Sequence[int] = 1,
    names: Mapping[str, str] | None = None,
    weights_as: str | None = None,
    form: str = "tflite",
) -> bytes:
    """The bytes of a ``.tflite`` file that holds one layer; the same layer gives the same bytes.

    Input and output are ``(batch, ...)``; an ``Add`` has two inputs.  A fully connected layer takes
    up to three leading axes as ``batch``: the input of (4, 2) is ``(4, 2, I)`` and the output ``(8,
    O)``.  ``names`` are other names for "input", "weights", "bias", "output" and what else there
    is.  ``weights_as`` "uint8" labels the int8 weights of a fully connected layer of float32 so, as
    older converters did: runtimes read them as int8. ``form`` is "tflite" or "circle".  Raises
    ValueError naming the parameter that the format cannot state; MissingPackage where
    flatbuffers is not installed.
    """
    if not isinstance(layer, MODELLED):
        raise ValueError(
            f"layer: got {type(layer).__name__}, allowed is a Conv2D, FullyConnected, Pool2D, Add "
            "or "
            "Operation; write_model writes a Network or a list of layers"
        )
    lead = _lead(batch, isinstance(layer, FullyConnected))
    graph = _graph([layer], [tuple(-1 - n for n in range(len(tensors_taken(layer))))], lead)
    if weights_as is not None:
        graph = _labelled(graph, layer, weights_as)
    return pack(replace(_named(graph, names or {}), form=form))


def write_model(network: Network | Sequence[Layer], batch: int = 1, form: str = "tflite") -> bytes:
    """The bytes of a ``.tflite`` or ``.circle`` file that holds a network, whose last layer gives
    the output.

    A list of layers is a network in which each takes what the one before it gives.
    Raises as ``single_op_model``.
    """
    if isinstance(network, list | tuple):
        network = Network(tuple(network))
    if not isinstance(network, Network):
        raise ValueError(
            f"network: got {type(network).__name__}, allowed is a Network or a list of layers; "
            "single_op_model writes one layer"
        )
    return pack(replace(_graph(network.layers, network.inputs, _lead(batch)), form=form))


def lowest(dtype: str) -> float:
    """What leaves a maximum as it is."""
    if dtype in QUANTIZED:
        return float(np.iinfo(dtype).min)
    return -np.inf


def _lead(batch: Any, several: bool = False) -> tuple[int, ...]:
    """The leading axes of input and output; ``several`` where there may be more than one."""
    if several and isinstance(batch, list | tuple):
        axes = tuple(batch)
    else:
        axes = (batch,)
    whole = all(isinstance(size, int | np.integer) and size >= 1 for size in axes)
    if (
        not whole
        or not 1 <= len(axes) <= MOST_LEADING
        or math.prod(map(int, axes)) > np.iinfo(np.int32).max
    ):
        sizes = "at least 1 and within int32"
        if isinstance(batch, list | tuple) and several:
            sizes = f"up to {MOST_LEADING} sizes of at least 1 and within int32 in all"
        raise ValueError(f"batch: got {batch!r}, allowed is {sizes}")
    return tuple(map(int, axes))


def _labelled(graph: Graph, layer: Layer, label: str) -> Graph:
    """The graph of a fully connected layer with weights of another type's name, as an operator that
    knows them."""
    if label != "uint8" or not isinstance(layer, FullyConnected) or layer.dtype != "float32":
        raise ValueError(
            f"weights_as: got {label!r} with {layer}, allowed is 'uint8' with a fully connected "
            "layer of "
            "float32"
        )
    (one,) = graph.operators
    number = one.inputs[1]
    tensors = list(graph.tensors)
    tensors[number] = replace(tensors[number], dtype=label)
    return replace(graph, tensors=tuple(tensors), operators=(replace(one, revision=1),))


def _named(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with other names of tensors."""
    known = dict.fromkeys(one.name for one in graph.tensors)
    for old, new in names.items():
        if old not in known or not isinstance(new, str):
            raise ValueError(
                f"names: got {old!r}: {new!r}, allowed are texts for {', '.join(known)}"
            )
    return replace(
        graph,
        tensors=tuple(replace(one, name=names.get(one.name, one.name)) for one in graph.tensors),
    )


def _graph(layers: Sequence[Any], inputs: Sequence[Sequence[int]], lead: tuple[int, ...]) -> Graph:
    """The graph of layers; a source of -1 is its first input, -2 its second."""
    for number, layer in enumerate(layers):
        if not isinstance(layer, MODELLED):
            raise ValueError(
                f"layer {number}: got {layer}, allowed in a model is a Conv2D, FullyConnected, "
                "Pool2D, "
                "Add or Operation"
            )
        for name, usual in (("groups", 1), ("output", "codes"), ("rounding", "half-away")):
            if not isinstance(layer, Operation) and (value := getattr(layer, name, usual)) != usual:
                raise ValueError(
                    f"layer {number}: {name}: got {value!r}, allowed in a model is {usual!r}"
                )
    draft, given = _Draft(), {}
    for layer, sources in zip(layers, inputs, strict=True):
        for place, source in enumerate(sources):
            if source < 0 and source not in given:
                taken = tensors_taken(layer)[place]
                if isinstance(layer, Operation):
                    shape = taken.shape
                else:
                    shape = *lead, *taken.shape
                given[source] = draft.tensor(
                    STARTS.get(source, f"input{-source}"), shape, taken.dtype, _kept(taken)
                )
    starts = tuple(given.values())
    for number, (layer, sources) in enumerate(zip(layers, inputs, strict=True)):
        if len(layers) > 1:
            draft.prefix = f"{number}/"
        else:
            draft.prefix = ""
        last = given[number] = _layer(
            draft, layer, [given[source] for source in sources], math.prod(lead)
        )
        draft.tensors[last] = replace(draft.tensors[last], name=f"{draft.prefix}output")
    return Graph(
        tuple(draft.tensors), tuple(draft.operators), tuple(draft.buffers), starts, (last,)
    )


class _Draft:
    """A graph as it grows."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.operators: list[Operator] = []
        self.buffers = [b""]
        self.prefix = ""

    def tensor(
        self, name: str, shape: tuple[int, ...], dtype: str, q: QuantParams | None = None
    ) -> int:
        self.tensors.append(Tensor(self.prefix + name, shape, dtype, **_quantization(name, q)))
        return len(self.tensors) - 1

    def constant(
        self,
        name: str,
        values: np.ndarray,
        q: QuantParams | None = None,
        axis: int = 0,
        bits: int = 8,
    ) -> int:
        dtype = values.dtype.name
        if bits < 8:
            dtype = f"{dtype.rstrip('8')}{bits}"
            data = packed_codes(values.size, dtype).pack(values.reshape(-1))
        else:
            data = values.astype(values.dtype.newbyteorder("<")).tobytes()
        self.buffers.append(data)
        number = self.tensor(name, values.shape, dtype, q)
        self.tensors[number] = replace(
            self.tensors[number], buffer=len(self.buffers) - 1, axis=axis
        )
        return number

    def step(
        self,
        name: str,
        inputs: Sequence[int],
        options: Mapping[str, int] | None = None,
        hybrid: str = "",
        **changes: Any,
    ) -> int:
        """An operator and the tensor it gives: like the first input, but for the changes."""
        like = self.tensors[inputs[0]]
        self.tensors.append(replace(like, **{"name": self.prefix + name.lower(), **changes}))
        revision = REVISIONS.get(name, {}).get(hybrid or like.dtype, 1)
        self.operators.append(
            Operator(name, tuple(inputs), (len(self.tensors) - 1,), dict(options or {}), revision)
        )
        return len(self.tensors) - 1


def _quantization(name: str, q: QuantParams | None) -> dict[str, Any]:
    """Scale and zero point as a tensor has them."""
    if q is None:
        return {}
    scales = np.atleast_1d(np.asarray(q.scale, np.float32))
    if np.any((scales == 0) | (scales == np.inf)):
        raise ValueError(f"{name}: got scale {q.scale}, allowed is what float32 holds")
    return {"scale": tuple(scales.tolist()), "zero_point": (q.zero_point,) * len(scales)}


def _stored(layer: Layer, q: QuantParams | None) -> QuantParams | None:
    """What is kept of a quantization: nothing where the numbers are real."""
    if layer.dtype in QUANTIZED:
        return q
    return None


def _layer(draft: _Draft, layer: Layer, sources: list[int], batch: int) -> int:
    """The tensor that a layer gives."""
    if isinstance(layer, Operation):
        return _operation(draft, layer, sources)
    if layer.activation not in FUSED:
        raise ValueError(
            f"activation: got {layer.activation!r}, allowed in a model is one of {FUSED}"
        )
    half = layer.dtype == "float16"
    if half:
        sources = [draft.step("DEQUANTIZE", [one], dtype="float32") for one in sources]
    gives = {
        "shape": (batch, *layer.output_shape),
        **_quantization("output_q", _stored(layer, layer.output_q)),
    }
    activation = {"activation": FUSED.index(layer.activation)}
    if isinstance(layer, Add):
        y = draft.step("ADD", sources, {**activation, "pot_scale_int16": False}, **gives)
    elif isinstance(layer, FullyConnected):
        y = draft.step(
            "FULLY_CONNECTED",
            [*sources, *_constants(draft, layer, 0)],
            activation,
            _hybrid(layer),
            **gives,
        )
    elif isinstance(layer, Pool2D):
        turned = layer.kind == "min"
        x = _border(draft, layer, _complement(draft, sources[0]) if turned else sources[0])
        options = {**_window(layer), "kernel_w": layer.kernel[1], "kernel_h": layer.kernel[0]}
        y = draft.step(
            POOLS[layer.kind],
            [x],
            {**options, "activation": 0} if turned else {**options, **activation},
            **gives,
        )
        if turned:
            y = _complement(draft, y)
        if (
            turned and layer.activation
        ):  # the complement's activation is another: a maximum of one element has ours
            y = draft.step("MAX_POOL_2D", [y], {**ONE_ELEMENT, **activation})
    else:
        assert isinstance(layer, Conv2D)
        x = _border(draft, layer, sources[0])
        options = {
            **_window(layer),
            "dilation_w": layer.dilation[1],
            "dilation_h": layer.dilation[0],
            **activation,
        }
        if layer.depthwise:
            options["multiplier"] = layer.weights.shape[3] // layer.input_shape[2]
        y = draft.step(
            "DEPTHWISE_CONV_2D" if layer.depthwise else "CONV_2D",
            [x, *_constants(draft, layer, 3 if layer.depthwise else 0)],
            options,
            _hybrid(layer),
            **gives,
        )
    if half:
        y = draft.step(
            "CAST",
            [y],
            {"from": TYPES.index("float32"), "to": TYPES.index("float16")},
            dtype="float16",
        )
    return y


def _operation(draft: _Draft, layer: Operation, sources: list[int]) -> int:
    """The tensor that an operation gives; the others that its operator has come with it."""
    moving = iter(sources)
    inputs = [
        draft.constant(f"constant{place}", np.asarray(layer.constants[place]), _kept(one))
        if place in layer.constants
        else next(moving)
        for place, one in enumerate(layer.inputs)
    ]
    options = {
        name: FUSED.index(value) if name == "activation" else value
        for name, value in layer.options.items()
    }
    own: dict[str, dict[str, Any]] = {
        "RESHAPE": {"new_shape": layer.output.shape},
        "PACK": {"values_count": len(inputs)},
        "ARG_MAX": {"output_type": TYPES.index(layer.output.dtype)},
        "MEAN": {"keep_dims": len(layer.output.shape) == len(layer.inputs[0].shape)},
    }
    options |= own.get(layer.kind, {})
    parts = _parts(layer)
    if layer.kind in ("SPLIT", "SPLIT_V", "UNPACK"):
        options |= {"num" if layer.kind == "UNPACK" else "num_splits": len(parts)}
    numbers = [
        draft.tensor(f"output{n}", shape, layer.output.dtype, _kept(layer.output))
        for n, shape in enumerate(parts)
    ]
    revision = REVISIONS.get(layer.kind, {}).get(layer.inputs[0].dtype, 1)
    draft.operators.append(Operator(layer.kind, tuple(inputs), tuple(numbers), options, revision))
    return numbers[layer.part]


def _parts(layer: Operation) -> list[tuple[int, ...]]:
    """The shape of each tensor that the operator gives."""
    shape = layer.output.shape
    if layer.kind == "UNPACK":
        return [shape] * layer.inputs[0].shape[layer.options["axis"]]
    if layer.kind == "SPLIT":
        axis = int(np.ravel(layer.constants[0])[0])
        return [shape] * (layer.inputs[1].shape[axis] // shape[axis])
    if layer.kind == "SPLIT_V":
        axis = int(np.ravel(layer.constants[2])[0]) % len(shape)
        return [
            (*shape[:axis], int(size), *shape[axis + 1 :]) for size in np.ravel(layer.constants[1])
        ]
    return [shape]


def _kept(one: Placeholder) -> QuantParams | None:
    if one.dtype in QUANTIZED:
        return one.q
    return None


def _constants(draft: _Draft, layer: Conv2D | FullyConnected, axis: int) -> list[int]:
    """Weights and bias; ``axis`` is that of the weights' output channels."""
    if layer.dtype == "float16":
        return [
            draft.step("DEQUANTIZE", [draft.constant(name, values)], buffer=0, dtype="float32")
            for name, values in (("weights", layer.weights), ("bias", layer.bias))
        ]
    # LiteRT takes one type for the other, and a zero point for 0, and says nothing
    refuse_if(
        layer.weights.dtype != layer.dtype and layer.dtype in ("int8", "uint8"),
        "weights",
        layer.weights.dtype,
        f"in a .tflite is {layer.dtype} with {layer.dtype} activations",
    )
    if layer.weights.dtype == np.int8:
        allowed = "2, 4 or 8"
    else:
        allowed = "8"
    refuse_if(
        str(layer.weight_bits) not in allowed,
        "weight_bits",
        layer.weight_bits,
        f"in a .tflite with {layer.weights.dtype} weights is {allowed}",
    )
    refuse_if(
        layer.weights.dtype == np.int8 and layer.weight_q.zero_point,
        "weight_q",
        f"zero point {layer.weight_q.zero_point}",
        "in a .tflite is 0 with int8 weights",
    )
    weight_q = layer.weight_q
    if (
        layer.op == "depthwise" and layer.dtype == "float32"
    ):  # LiteRT wants a scale for each channel
        weight_q = QuantParams(np.broadcast_to(weight_q.scale, layer.weights.shape[3:]).tolist())
    scales = np.float32(one_scale(layer.input_q)) * np.asarray(weight_q.scale, np.float32)
    return [
        draft.constant("weights", layer.weights, weight_q, axis, layer.weight_bits),
        draft.constant("bias", layer.bias, _stored(layer, QuantParams(scales.tolist()))),
    ]


def _hybrid(layer: Conv2D | FullyConnected) -> str:
    if layer.dtype != "float32":
        return ""
    if per_channel(layer.weight_q.scale) or layer.op == "depthwise":
        return "hybrid channels"
    return "hybrid"


def _window(layer: Conv2D | Pool2D) -> dict[str, int]:
    """Padding and stride; what has its border around it already is "valid"."""
    padding = PADDINGS.index(padding_name(layer) or "valid")
    return {"padding": padding, "stride_w": layer.stride[1], "stride_h": layer.stride[0]}


def _border(draft: _Draft, layer: Conv2D | Pool2D, x: int) -> int:
    """The input with explicit padding around it."""
    if padding_name(layer):
        return x
    if layer.op == "average_pool":
        raise ValueError(
            f'padding: got {layer.padding}, allowed in a .tflite for an average is "same" or '
            '"valid": the '
            "border that an operator adds would count"
        )
    like = draft.tensors[x]
    sides = ((0, 0), *layer.pads, (0, 0))
    shape = tuple(
        size + before + after for size, (before, after) in zip(like.shape, sides, strict=True)
    )
    inputs = [x, draft.constant("pads", np.array(sides, np.int32))]
    if isinstance(layer, Conv2D):
        return draft.step("PAD", inputs, shape=shape)
    fill = draft.constant("fill", np.array([lowest(like.dtype)], like.dtype))
    draft.tensors[fill] = replace(draft.tensors[fill], scale=like.scale, zero_point=like.zero_point)
    return draft.step("PADV2", [*inputs, fill], shape=shape)


def _complement(draft: _Draft, x: int) -> int:
    """What orders the other way round: every bit turned, or the sign."""
    dtype = draft.tensors[x].dtype
    if dtype not in QUANTIZED:
        return draft.step("NEG", [x])
    return draft.step("BITWISE_XOR", [x, draft.constant("ones", np.invert(np.zeros(1, dtype)))])


def one_scale(q: QuantParams) -> float:
    """The scale of a tensor that has one."""
    assert isinstance(q.scale, float)
    return q.scale
