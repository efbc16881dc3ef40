"""Models written from layers, with the operators that TensorFlow Lite needs before and after
them."""

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

STARTS = {-1: "input", -2: "other"}  # a key is the number of a graph's input, the value its name
MODELLED = (Conv2D, FullyConnected, Pool2D, Add, Operation)
# The input of a fully connected layer has at most MOST_LEADING axes before the channels.
MOST_LEADING = 3

# The options of a maximum pooling with a window of one element, which only applies an activation.
ONE_ELEMENT = {"padding": 1, "stride_w": 1, "stride_h": 1, "kernel_w": 1, "kernel_h": 1}


def single_op_model(
    layer: Layer,
    batch: int | Sequence[int] = 1,
    names: Mapping[str, str] | None = None,
    weights_as: str | None = None,
    form: str = "tflite",
) -> bytes:
    """The bytes of a ``.tflite`` file that holds one layer; equal layers give equal bytes.

    Input and output are ``(batch, ...)``; an ``Add`` has two inputs. For a fully connected layer
    ``batch`` may be up to three leading axes: with (4, 2) the input is ``(4, 2, I)`` and the output
    ``(8, O)``. ``names`` renames tensors: its keys are the usual names ("input", "weights", "bias",
    "output" and so on), its values the new ones. With ``weights_as="uint8"`` the file states the
    type uint8 for the int8 weights of a fully connected float32 layer, as files of older converters
    do: runtimes read such weights as int8. ``form`` is "tflite" or "circle". Raises ValueError,
    with the name of the parameter, for a layer that the format cannot state; MissingPackage if
    flatbuffers is not installed.
    """
    if not isinstance(layer, MODELLED):
        raise ValueError(
            f"layer: got {type(layer).__name__}, allowed is a Conv2D, FullyConnected, Pool2D, Add "
            "or Operation; write_model writes a Network or a list of layers"
        )
    lead = _lead(batch, isinstance(layer, FullyConnected))
    sources = [-1 - number for number in range(len(tensors_taken(layer)))]
    graph = _graph([layer], [sources], lead)
    if weights_as is not None:
        graph = _labelled(graph, layer, weights_as)
    return pack(replace(_renamed(graph, names or {}), form=form))


def write_model(network: Network | Sequence[Layer], batch: int = 1, form: str = "tflite") -> bytes:
    """The bytes of a ``.tflite`` or ``.circle`` file that holds a network; the last layer gives the
    output.

    In a list of layers, each layer takes the output of the layer before it. Raises as
    ``single_op_model``.
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
    """The lowest value of a type, which padding has before a maximum pooling; minus infinity for
    real numbers."""
    if dtype in QUANTIZED:
        return float(np.iinfo(dtype).min)
    return -np.inf


def _lead(batch: Any, several: bool = False) -> tuple[int, ...]:
    """The leading axes of input and output as a tuple, from ``batch``; a list of several is allowed
    only if ``several``. Raises ValueError for other sizes.
    """
    several = several and isinstance(batch, list | tuple)
    axes = (batch,)
    if several:
        axes = tuple(batch)
    whole = all(isinstance(size, int | np.integer) and size >= 1 for size in axes)
    most = np.iinfo(np.int32).max
    if not whole or not 1 <= len(axes) <= MOST_LEADING or math.prod(map(int, axes)) > most:
        sizes = "at least 1 and within int32"
        if several:
            sizes = f"up to {MOST_LEADING} sizes of at least 1 and within int32 in all"
        raise ValueError(f"batch: got {batch!r}, allowed is {sizes}")
    return tuple(map(int, axes))


def _labelled(graph: Graph, layer: Layer, label: str) -> Graph:
    """The graph of a fully connected layer, with ``label`` as the stated type of its weights."""
    if label != "uint8" or not isinstance(layer, FullyConnected) or layer.dtype != "float32":
        raise ValueError(
            f"weights_as: got {label!r} with {layer}, allowed is 'uint8' with a fully connected "
            "layer of float32"
        )
    (operator,) = graph.operators
    number = operator.inputs[1]
    tensors = list(graph.tensors)
    tensors[number] = replace(tensors[number], dtype=label)
    return replace(graph, tensors=tuple(tensors), operators=(replace(operator, revision=1),))


def _renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with new names of tensors, given by old name; raises ValueError for a name that it
    does not have."""
    known = dict.fromkeys(tensor.name for tensor in graph.tensors)
    for old, new in names.items():
        if old not in known or not isinstance(new, str):
            raise ValueError(
                f"names: got {old!r}: {new!r}, allowed are texts for {', '.join(known)}"
            )
    renamed = [replace(x, name=names.get(x.name, x.name)) for x in graph.tensors]
    return replace(graph, tensors=tuple(renamed))


def _graph(layers: Sequence[Any], inputs: Sequence[Sequence[int]], lead: tuple[int, ...]) -> Graph:
    """The graph of layers. ``inputs`` has, for each layer, the numbers of the layers whose outputs
    it takes; -1 is the graph's first input, -2 its second."""
    for number, layer in enumerate(layers):
        if not isinstance(layer, MODELLED):
            raise ValueError(
                f"layer {number}: got {layer}, allowed in a model is a Conv2D, FullyConnected, "
                "Pool2D, Add or Operation"
            )
        for name, usual in (("groups", 1), ("output", "codes"), ("rounding", "half-away")):
            value = getattr(layer, name, usual)
            if value != usual and not isinstance(layer, Operation):
                raise ValueError(
                    f"layer {number}: {name}: got {value!r}, allowed in a model is {usual!r}"
                )
    draft, given = _Draft(), {}
    for layer, sources in zip(layers, inputs, strict=True):
        for source, taken in zip(sources, tensors_taken(layer), strict=False):
            if source < 0 and source not in given:
                shape = taken.shape
                if not isinstance(layer, Operation):
                    shape = *lead, *taken.shape
                name = STARTS.get(source, f"input{-source}")
                given[source] = draft.tensor(name, shape, taken.dtype, _kept(taken))
    starts = tuple(given.values())
    for number, (layer, sources) in enumerate(zip(layers, inputs, strict=True)):
        if len(layers) > 1:
            draft.prefix = f"{number}/"
        taken_tensors = [given[source] for source in sources]
        last = given[number] = _layer(draft, layer, taken_tensors, math.prod(lead))
        draft.tensors[last] = replace(draft.tensors[last], name=f"{draft.prefix}output")
    tensors, operators = tuple(draft.tensors), tuple(draft.operators)
    return Graph(tensors, operators, tuple(draft.buffers), starts, (last,))


class _Draft:
    """A graph to which tensors, constants and operators are added."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.operators: list[Operator] = []
        # in TensorFlow Lite's format buffer 0 is empty, and belongs to tensors without a constant
        self.buffers = [b""]
        self.prefix = ""

    def tensor(
        self, name: str, shape: tuple[int, ...], dtype: str, q: QuantParams | None = None
    ) -> int:
        """Add a tensor without a constant; return its number."""
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
        """Add a tensor and a buffer with its values; return the number of the tensor."""
        dtype = values.dtype.name
        if bits < 8:
            dtype = f"{dtype.rstrip('8')}{bits}"
            data = packed_codes(values.size, dtype).pack(values.reshape(-1))
        else:
            data = values.astype(values.dtype.newbyteorder("<")).tobytes()
        self.buffers.append(data)
        number = self.tensor(name, values.shape, dtype, q)
        buffer = len(self.buffers) - 1
        self.tensors[number] = replace(self.tensors[number], buffer=buffer, axis=axis)
        return number

    def step(
        self,
        name: str,
        inputs: Sequence[int],
        options: Mapping[str, int] | None = None,
        hybrid: str = "",
        **changes: Any,
    ) -> int:
        """Add an operator and its output tensor; return the number of that tensor, which is like
        the first input except for ``changes``."""
        like = self.tensors[inputs[0]]
        self.tensors.append(replace(like, **{"name": self.prefix + name.lower(), **changes}))
        revision = REVISIONS.get(name, {}).get(hybrid or like.dtype, 1)
        output = len(self.tensors) - 1
        operator = Operator(name, tuple(inputs), (output,), dict(options or {}), revision)
        self.operators.append(operator)
        return output


def _quantization(name: str, q: QuantParams | None) -> dict[str, Any]:
    """Scale and zero point as the fields of a ``Tensor``; raises ValueError for a scale that
    float32 does not hold."""
    if q is None:
        return {}
    scales = np.atleast_1d(np.asarray(q.scale, np.float32))
    if np.any((scales == 0) | (scales == np.inf)):
        raise ValueError(f"{name}: got scale {q.scale}, allowed are scales above 0 within float32")
    return {"scale": tuple(scales.tolist()), "zero_point": (q.zero_point,) * len(scales)}


def _stored(layer: Layer, q: QuantParams | None) -> QuantParams | None:
    """The quantization that the file has for a tensor of a layer: None if the numbers of the layer
    are real."""
    if layer.dtype in QUANTIZED:
        return q
    return None


def _layer(draft: _Draft, layer: Layer, sources: list[int], batch: int) -> int:
    """Add the operators of a layer; return the number of the tensor that it gives."""
    if isinstance(layer, Operation):
        return _operation(draft, layer, sources)
    if layer.activation not in FUSED:
        raise ValueError(
            f"activation: got {layer.activation!r}, allowed in a model is one of {FUSED}"
        )
    half = layer.dtype == "float16"
    if half:
        sources = [draft.step("DEQUANTIZE", [source], dtype="float32") for source in sources]
    gives: dict[str, Any] = _quantization("output_q", _stored(layer, layer.output_q))
    gives["shape"] = batch, *layer.output_shape
    activation = {"activation": FUSED.index(layer.activation)}
    if isinstance(layer, Add):
        y = draft.step("ADD", sources, {**activation, "pot_scale_int16": False}, **gives)
    elif isinstance(layer, FullyConnected):
        inputs = [*sources, *_constants(draft, layer, 0)]
        y = draft.step("FULLY_CONNECTED", inputs, activation, _hybrid(layer), **gives)
    elif isinstance(layer, Pool2D):
        y = _pool(draft, layer, sources[0], activation, gives)
    else:
        assert isinstance(layer, Conv2D)
        y = _convolution(draft, layer, sources[0], activation, gives)
    if half:
        types = {"from": TYPES.index("float32"), "to": TYPES.index("float16")}
        y = draft.step("CAST", [y], types, dtype="float16")
    return y


def _pool(
    draft: _Draft, layer: Pool2D, x: int, activation: Mapping[str, int], gives: Mapping[str, Any]
) -> int:
    """Add a pooling and return the number of its output; a minimum is written as the complement of
    the maximum of complements."""
    options = {**_window(layer), "kernel_w": layer.kernel[1], "kernel_h": layer.kernel[0]}
    if layer.kind != "min":
        x = _border(draft, layer, x)
        return draft.step(POOLS[layer.kind], [x], {**options, **activation}, **gives)
    x = _border(draft, layer, _complement(draft, x))
    y = draft.step(POOLS[layer.kind], [x], {**options, "activation": 0}, **gives)
    y = _complement(draft, y)
    if layer.activation:
        # The activation of the pooling would act on complements. So it is applied after the second
        # complement, by a maximum pooling with a window of one element.
        return draft.step("MAX_POOL_2D", [y], {**ONE_ELEMENT, **activation})
    return y


def _convolution(
    draft: _Draft, layer: Conv2D, x: int, activation: Mapping[str, int], gives: Mapping[str, Any]
) -> int:
    """Add a convolution and return the number of its output."""
    name, axis = "CONV_2D", 0
    x = _border(draft, layer, x)
    options = _window(layer)
    options |= {"dilation_w": layer.dilation[1], "dilation_h": layer.dilation[0], **activation}
    if layer.depthwise:
        name, axis = "DEPTHWISE_CONV_2D", 3
        options["multiplier"] = layer.weights.shape[3] // layer.input_shape[2]
    inputs = [x, *_constants(draft, layer, axis)]
    return draft.step(name, inputs, options, _hybrid(layer), **gives)


def _operation(draft: _Draft, layer: Operation, sources: list[int]) -> int:
    """Add an operation with all outputs of its operator; return the number of the output that the
    layer gives."""
    moving = iter(sources)
    inputs = []
    for place, taken in enumerate(layer.inputs):
        if place in layer.constants:
            values = np.asarray(layer.constants[place])
            inputs.append(draft.constant(f"constant{place}", values, _kept(taken)))
        else:
            inputs.append(next(moving))
    parts = _parts(layer)
    numbers = []
    for number, shape in enumerate(parts):
        name = f"output{number}"
        numbers.append(draft.tensor(name, shape, layer.output.dtype, _kept(layer.output)))
    revision = REVISIONS.get(layer.kind, {}).get(layer.inputs[0].dtype, 1)
    options = _operation_options(layer, len(parts))
    draft.operators.append(Operator(layer.kind, tuple(inputs), tuple(numbers), options, revision))
    return numbers[layer.part]


def _operation_options(layer: Operation, parts: int) -> dict[str, Any]:
    """The options of an operation, completed by the options that follow from its shapes."""
    options = dict(layer.options)
    if "activation" in options:
        options["activation"] = FUSED.index(options["activation"])
    if layer.kind == "RESHAPE":
        options["new_shape"] = layer.output.shape
    elif layer.kind == "PACK":
        options["values_count"] = len(layer.inputs)
    elif layer.kind == "ARG_MAX":
        options["output_type"] = TYPES.index(layer.output.dtype)
    elif layer.kind == "MEAN":
        options["keep_dims"] = len(layer.output.shape) == len(layer.inputs[0].shape)
    elif layer.kind in ("SPLIT", "SPLIT_V"):
        options["num_splits"] = parts
    elif layer.kind == "UNPACK":
        options["num"] = parts
    return options


def _parts(layer: Operation) -> list[tuple[int, ...]]:
    """The shape of each tensor that the operator of an operation gives."""
    shape = layer.output.shape
    if layer.kind == "UNPACK":
        return [shape] * layer.inputs[0].shape[layer.options["axis"]]
    if layer.kind == "SPLIT":
        axis = int(np.ravel(layer.constants[0])[0])
        return [shape] * (layer.inputs[1].shape[axis] // shape[axis])
    if layer.kind == "SPLIT_V":
        axis = int(np.ravel(layer.constants[2])[0]) % len(shape)
        sizes = np.ravel(layer.constants[1]).tolist()
        return [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
    return [shape]


def _kept(tensor: Placeholder) -> QuantParams | None:
    """The quantization of a tensor if its elements are codes; None for real numbers."""
    if tensor.dtype in QUANTIZED:
        return tensor.q
    return None


def _constants(draft: _Draft, layer: Conv2D | FullyConnected, axis: int) -> list[int]:
    """Add weights and bias, and return the numbers of their tensors; ``axis`` is the weights' axis
    of output channels."""
    if layer.dtype == "float16":
        halves = draft.constant("weights", layer.weights)
        weights = draft.step("DEQUANTIZE", [halves], buffer=0, dtype="float32")
        halves = draft.constant("bias", layer.bias)
        return [weights, draft.step("DEQUANTIZE", [halves], buffer=0, dtype="float32")]
    # LiteRT silently reads int8 weights as uint8 in a uint8 layer, and the reverse, and ignores the
    # zero point of int8 weights
    refuse_if(
        layer.weights.dtype != layer.dtype and layer.dtype in ("int8", "uint8"),
        "weights",
        layer.weights.dtype,
        f"in a .tflite is {layer.dtype} with {layer.dtype} activations",
    )
    allowed = "8"
    if layer.weights.dtype == np.int8:
        allowed = "2, 4 or 8"
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
    several = len(weight_q.zero_points)
    refuse_if(several, "weight_q", f"{several} zero points", "in a .tflite is one")
    if layer.op == "depthwise" and layer.dtype == "float32":
        # LiteRT wants a scale for each channel
        weight_q = QuantParams(np.broadcast_to(weight_q.scale, layer.weights.shape[3:]).tolist())
    scales = np.float32(one_scale(layer.input_q)) * np.asarray(weight_q.scale, np.float32)
    return [
        draft.constant("weights", layer.weights, weight_q, axis, layer.weight_bits),
        draft.constant("bias", layer.bias, _stored(layer, QuantParams(scales.tolist()))),
    ]


def _hybrid(layer: Conv2D | FullyConnected) -> str:
    """The name under which REVISIONS has a layer with float32 input and int8 weights; "" for other
    layers."""
    if layer.dtype != "float32":
        return ""
    if per_channel(layer.weight_q.scale) or layer.op == "depthwise":
        return "hybrid channels"
    return "hybrid"


def _window(layer: Conv2D | Pool2D) -> dict[str, int]:
    """Padding and stride as options; the padding is "valid" if another operator adds the border."""
    padding = PADDINGS.index(padding_name(layer) or "valid")
    return {"padding": padding, "stride_w": layer.stride[1], "stride_h": layer.stride[0]}


def _border(draft: _Draft, layer: Conv2D | Pool2D, x: int) -> int:
    """Add an operator for explicit padding if the layer has explicit padding, and return the number
    of the padded input; raises ValueError for average pooling.
    """
    if padding_name(layer):
        return x
    if layer.op == "average_pool":
        raise ValueError(
            f'padding: got {layer.padding}, allowed in a .tflite for average pooling is "same" or '
            '"valid": a border that another operator adds would count in the averages'
        )
    like = draft.tensors[x]
    sides = ((0, 0), *layer.pads, (0, 0))
    shape = tuple((np.array(like.shape) + np.sum(sides, axis=1)).tolist())
    inputs = [x, draft.constant("pads", np.array(sides, np.int32))]
    if isinstance(layer, Conv2D):
        return draft.step("PAD", inputs, shape=shape)
    fill = draft.constant("fill", np.array([lowest(like.dtype)], like.dtype))
    draft.tensors[fill] = replace(draft.tensors[fill], scale=like.scale, zero_point=like.zero_point)
    return draft.step("PADV2", [*inputs, fill], shape=shape)


def _complement(draft: _Draft, x: int) -> int:
    """Add an operator that reverses the order of values, by inverting every bit of a code or the
    sign of a real number; return the number of its output."""
    dtype = draft.tensors[x].dtype
    if dtype not in QUANTIZED:
        return draft.step("NEG", [x])
    return draft.step("BITWISE_XOR", [x, draft.constant("ones", np.invert(np.zeros(1, dtype)))])


def one_scale(q: QuantParams) -> float:
    """The scale of a quantization that has one scale for the whole tensor."""
    assert isinstance(q.scale, float)
    return q.scale
