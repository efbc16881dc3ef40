"""Models read from files, and the layers found in their graphs."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from npulab.models.facts import ACTIVATIONS, FUSED, PACKED, PADDINGS, POOLS
from npulab.models.file import form_of, unpack
from npulab.models.graph import Graph, Operator, Tensor
from npulab.models.listing import LISTINGS, memory_text, numbered, operators
from npulab.models.write import ONE_ELEMENT, lowest
from npulab.quant.layers import (
    OPERATIONS,
    UNIT,
    Add,
    Conv2D,
    FullyConnected,
    Layer,
    Network,
    Operation,
    Placeholder,
    Pool2D,
    pads,
    per_channel,
)
from npulab.quant.rules import QUANTIZED, QuantParams
from npulab.support.answers import Answer, Part, Table
from npulab.support.files import first_bytes, read_bounded
from npulab.support.late import pd
from npulab.support.refuse import refuse_if, refusing
from npulab.support.text import Row, known, plural, rows_of

MOST_BYTES = 2**30  # a larger file is refused
OPERATOR_COLUMNS = ("graph", "operator", "name", "input", "output", "constants")
PARTS = ("operators", "tensors", "buffers")
MAIN = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "AVERAGE_POOL_2D", "MAX_POOL_2D", "ADD")


@refusing()
def read_model(data: bytes | bytearray | memoryview | str | os.PathLike[str]) -> Model:
    """The model in the bytes of a ``.tflite`` or ``.circle`` file, or in the file at a path.

    ``print`` shows its listing, ``quantization()`` returns its scales and zero points as text. If
    there are several graphs, ``layers`` are those of the first graph; ``graphs`` has all graphs.
    Needs no optional package. Raises ValueError (what, got, allowed, where) for bytes that are not
    a model, for a broken model, and for a file of more than 1 GiB; FileNotFoundError.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        return Model(**vars(unpack(bytes(data))))
    if not isinstance(data, str | os.PathLike):
        raise ValueError(
            f"model: got {type(data).__name__}, allowed is the path or the bytes of a .tflite file"
        )
    with refusing(data):
        return read_model(read_bounded(Path(data), MOST_BYTES))


def is_model(path: str | os.PathLike[str]) -> bool:
    """True if a file begins as a ``.tflite`` or ``.circle`` model does; False if there is no
    file."""
    return form_of(first_bytes(Path(path), 8)) is not None


@dataclass(frozen=True)
class Model(Graph):
    """A graph, and the layers that are found in it."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers in the order in which they run; scales have the float32 values of the file.

        Explicit padding that is equal to "same" or "valid" reads back as that name. Raises
        ValueError, with the operator and the reason, if an operator is part of no layer.
        """
        return tuple(found.layer for found in self._every_layer())

    @property
    def found(self) -> tuple[Found, ...]:
        """The layers that could be read, in the order in which they run, each with its operator and
        its tensors."""
        return tuple(self._found[0])

    @property
    def by_operator(self) -> dict[int, Layer | str]:
        """A dict by the number of an operator in the graph. Its value is the layer of which the
        operator is the main operator or, if it is part of no layer, the reason as a sentence. An
        operator that belongs to a layer with another main operator is left out."""
        layers, problems = self._found
        every: dict[int, Layer | str] = {found.number: found.layer for found in layers}
        return dict(sorted((every | problems).items()))

    @property
    def network(self) -> Network:
        """The network: the layers, from where each layer takes its inputs, and which layers give
        the outputs.

        Raises as ``layers``; ValueError too if an output of the model is given by no layer.
        """
        return self._network(self._every_layer(), self.outputs)

    @property
    def readable(self) -> tuple[Network | None, str]:
        """Return (network, problem): the part of the network that can be read, and the problem with
        the first operator that is part of no layer.

        The part has every layer that needs no output of such an operator. It has the outputs of the
        model if its layers give them all, else the tensors that none of its layers takes. The
        problem is "" if every operator is read; the network is None if the part has no layer.
        """
        layers, problems = self._found
        known, kept = set(self.inputs), []
        for found in layers:
            if known.issuperset(found.sources):
                known.add(found.output)
                kept.append(found)
        problem = next(iter(problems.values()), "")
        if not kept:
            return None, problem
        ends: Sequence[int] = self.outputs
        if not known.issuperset(ends):
            taken = _taken(kept)
            ends = [found.output for found in kept if found.output not in taken]
        return self._network(kept, ends), problem

    def _every_layer(self) -> list[Found]:
        """All layers; raises ValueError if an operator is part of no layer."""
        layers, problems = self._found
        for problem in problems.values():
            raise ValueError(problem)
        return layers

    def _network(self, layers: Sequence[Found], ends: Sequence[int]) -> Network:
        made = {found.output: number for number, found in enumerate(layers)}
        taken = _taken(layers)
        inputs = [tensor for tensor in self.inputs if tensor in taken]
        given = {tensor: -1 - number for number, tensor in enumerate(inputs)} | made
        for tensor in taken:
            if tensor not in given:
                raise ValueError(
                    f"{self.tensors[tensor].name}: got a tensor that a layer takes and no layer "
                    "gives, allowed is an input of the model or an output of a layer"
                )
        missing = [self.tensors[tensor].name for tensor in ends if tensor not in made]
        if not layers:
            missing.append("of no layer")
        if missing:
            raise ValueError(f"model: got output {missing[0]}, allowed is an output of a layer")
        sources = [tuple(map(given.__getitem__, found.sources)) for found in layers]
        return Network(
            tuple(found.layer for found in layers),
            tuple(sources),
            tuple(map(made.__getitem__, ends)),
        )

    @property
    def parameters(self) -> pd.DataFrame:
        """One row per layer, at its main operator, and one per operator that is part of no layer.

        The columns are ``index`` (the number of the operator), ``name``, and the parameters of the
        layer, with scales and zero points.
        """
        rows = []
        for number, layer in self.by_operator.items():
            row = {"index": number, "name": self.operators[number].name}
            if not isinstance(layer, str):
                row |= layer.parameters
            rows.append(row)
        frame = pd.DataFrame(rows, dtype=object)
        # a column that has a value in every row gets the type of its values; any other column has
        # the type object
        complete = [name for name in frame if frame[name].notna().all()]
        return frame.astype({name: frame[name].infer_objects().dtype for name in complete})

    def __repr__(self) -> str:
        counts = ", ".join(plural(len(getattr(self, name)), name[:-1]) for name in PARTS)
        if self.others:
            counts += f", the first of {len(self.graphs)} graphs"
        return f"Model({counts})"

    @cached_property
    def _found(self) -> tuple[list[Found], dict[int, str]]:
        return _find(self)


@dataclass(frozen=True)
class Listed:
    """A model as text for people: its listing in a form of ``LISTINGS``, then its scales and zero
    points."""

    model: Model
    form: str = LISTINGS[0]

    def records(self) -> list[Row]:
        """The rows of the listing; the row of a main operator also has the parameters of its
        layer."""
        layers = {(0, row["index"]): known(row) for row in rows_of(self.model.parameters)}
        return [row | layers.get((row["graph"], row["index"]), {}) for row in self.model.rows]

    def __str__(self) -> str:
        return "\n\n".join(filter(None, (self.model.listing(self.form), self.model.quantization())))


@dataclass(frozen=True, eq=False)
class OperatorList(Answer):
    """A model as a table of its operators, with their shapes and the bytes of their constants."""

    model: Graph

    def records(self) -> list[Row]:
        return operators(self.model)

    @property
    def parts(self) -> list[Part]:
        rows, columns = self.records(), [*OPERATOR_COLUMNS]
        if not self.model.others:
            columns = columns[1:]  # the first column, the number of the graph, is left out
        total = 0
        for row in rows:
            size = row["constants"]
            total += size
            row["constants"] = ""
            if size:
                row["constants"] = memory_text(size)
        counts = f"{plural(len(rows), 'operator')}, constants {memory_text(total)}"
        return [Table(rows, columns), counts]


@dataclass(frozen=True)
class Found:
    """A layer that was found, the number of its main operator, the tensors that it takes and the
    tensor that it gives."""

    layer: Layer
    number: int
    sources: tuple[int, ...]
    output: int


def _taken(layers: Sequence[Found]) -> dict[int, None]:
    """The tensors that layers take, as keys in the order in which they are taken."""
    taken: dict[int, None] = {}
    for found in layers:
        taken |= dict.fromkeys(found.sources)
    return taken


def _find(graph: Graph) -> tuple[list[Found], dict[int, str]]:
    """Return the layers of a graph, and the problem with each operator that is part of no layer, by
    its number."""
    layers: list[Found] = []
    taken: set[int] = set()
    problems: dict[int, str] = {}
    makers: dict[int, int] = {}
    users: dict[int, list[int]] = {}
    for number, operator in enumerate(graph.operators):
        makers |= dict.fromkeys(operator.outputs, number)
        for tensor in operator.inputs:
            users.setdefault(tensor, []).append(number)
    # only a tensor that one operator takes can lie inside a layer of several operators
    lone = {tensor: numbers[0] for tensor, numbers in users.items() if len(numbers) == 1}
    for number, operator in enumerate(graph.operators):
        if number in taken or operator.name not in MAIN:
            continue
        part = _LayerParts(graph, makers, lone, number)
        try:
            layers.append(part.read())
            # operators become part of the layer only if the layer could be read; else each of them
            # is reported as part of no layer
            taken |= part.taken
        except ValueError as error:
            problems[number] = f"operator {number}, {operator.name}: {error}"
    for number, operator in enumerate(graph.operators):
        if number in taken:
            continue
        if operator.name not in OPERATIONS:
            problems.setdefault(
                number,
                f"operator {number}, {operator.name}: is part of no layer, allowed are "
                f"{', '.join(MAIN)}, the operators that single_op_model puts around these, and the "
                "kinds of Operation",
            )
            continue
        try:
            layers += _operations(graph, number)
            problems.pop(number, None)
        except ValueError as error:
            problems.setdefault(number, f"operator {number}, {operator.name}: {error}")
    layers.sort(key=lambda found: found.number)
    return layers, dict(sorted(problems.items()))


def _operations(graph: Graph, number: int) -> list[Found]:
    """Return a layer for each output tensor of an operator without weights; raises ValueError if
    the operator cannot be read as a layer.
    """
    operator = graph.operators[number]
    wrong = min(operator.inputs, default=-1) < 0
    refuse_if(wrong, "tensors", list(operator.inputs), "is a tensor for every input")
    constants, sources, inputs = {}, [], []
    for place, tensor in enumerate(operator.inputs):
        if graph.filled(tensor):
            constants[place] = graph.data(tensor)
        else:
            sources.append(tensor)
        inputs.append(_placeholder(graph.tensors[tensor]))
    known = OPERATIONS[operator.name]
    options = {name: value for name, value in operator.options.items() if name in known}
    if "activation" in options:
        options["activation"] = _activation(operator.options)
    layers = []
    for part, tensor in enumerate(operator.outputs):
        output = _placeholder(graph.tensors[tensor])
        layer = Operation(operator.name, tuple(inputs), output, options, constants, part)
        layers.append(Found(layer, number, tuple(sources), tensor))
    return layers


def _placeholder(tensor: Tensor) -> Placeholder:
    if len(set(tensor.scale)) > 1 or len(set(tensor.zero_point)) > 1:
        raise ValueError(f"{tensor.name}: got {len(tensor.scale)} scales, allowed is 1")
    q = UNIT
    if tensor.scale and tensor.dtype in QUANTIZED:
        q = QuantParams(tensor.scale[0], (tensor.zero_point or (0,))[0])
    return Placeholder(tensor.shape, tensor.dtype, q)


class _LayerParts:
    """The operators of one layer: its main operator, and the operators next to it that belong to
    the layer.

    ``makers`` has, by tensor, the number of the operator that gives the tensor. ``users`` has, by
    tensor, the number of the operator that takes it, only for tensors that one operator takes.
    """

    def __init__(
        self, graph: Graph, makers: Mapping[int, int], users: Mapping[int, int], number: int
    ) -> None:
        self.graph, self.makers, self.users, self.number = graph, makers, users, number
        self.main, self.taken = graph.operators[number], {number}
        self.options = self.main.options

    def read(self) -> Found:
        """The layer; raises ValueError if its operators and tensors do not fit together."""
        output = _at(self.main.outputs, 0)
        if self.main.name == "ADD":
            layer, sources = self.addition(output)
        elif self.main.name == "FULLY_CONNECTED":
            layer, sources = self.fully_connected(output)
        elif self.main.name in POOLS.values():
            layer, sources, output = self.pooling(output)
        else:
            layer, sources = self.convolution(output)
        if layer.dtype == "float16":
            cast = self.neighbour(self.users, output, "CAST")
            if cast:
                output = cast.outputs[0]
        self.check(layer, sources, output)
        return Found(layer, self.number, tuple(sources), output)

    def addition(self, output: int) -> tuple[Layer, list[int]]:
        """Return the layer of an ADD, and the numbers of the two tensors that it takes."""
        sources = [self.narrow(_at(self.main.inputs, place)) for place in (0, 1)]
        common = self.common(sources[0], output)
        return Add(self.shape(sources[0]), other_q=self.q(sources[1]), **common), sources

    def fully_connected(self, output: int) -> tuple[Layer, list[int]]:
        if self.options["weights_format"] or self.options["asymmetric_quantize_inputs"]:
            raise ValueError(
                f"options: got {self.options}, allowed are weights_format 0 and "
                "asymmetric_quantize_inputs False"
            )
        source = self.narrow(_at(self.main.inputs, 0))
        common = self.common(source, output)
        return FullyConnected(**self.constants(0), **common), [source]

    def convolution(self, output: int) -> tuple[Layer, list[int]]:
        depthwise = self.main.name == "DEPTHWISE_CONV_2D"
        x, border = self.border("PAD")
        source = self.narrow(x)
        constants = self.constants(3 if depthwise else 0)
        dilation = self.options["dilation_h"], self.options["dilation_w"]
        layer = Conv2D(
            **constants,
            **self.window(source, border, constants["weights"].shape[1:3], dilation),
            dilation=dilation,
            depthwise=depthwise,
            **self.common(source, output),
        )
        return layer, [source]

    def pooling(self, output: int) -> tuple[Layer, list[int], int]:
        """Return the layer of a pooling, the tensors that it takes, and the tensor that it gives;
        for a minimum pooling this is the output of the second complement.
        """
        kind = "max"
        if self.main.name == POOLS["average"]:
            kind = "average"
        activation = _activation(self.options)
        x, border = self.border("PADV2")
        complement = self.neighbour(self.makers, x, "NEG", "BITWISE_XOR")
        if complement:
            back = self.neighbour(self.users, output, complement.name)
            if back is None or activation or kind == "average":
                raise ValueError(
                    f"input: got the output of {complement.name}, allowed only for a maximum "
                    f"without activation whose output goes into another {complement.name}"
                )
            kind, x = "min", complement.inputs[0]
            output, activation = self.activated(back.outputs[0])
        source = self.narrow(x)
        kernel = self.options["kernel_h"], self.options["kernel_w"]
        common = self.common(source, output) | {"activation": activation}
        layer = Pool2D(kind, kernel, **self.window(source, border, kernel), **common)
        return layer, [source], output

    def neighbour(self, near: Mapping[int, int], tensor: int, *names: str) -> Operator | None:
        """The operator that makes a tensor (``near`` is ``makers``) or takes it (``near`` is
        ``users``), if it has one of these names, else None. An operator that is returned counts as
        part of the layer."""
        number = near.get(tensor, self.number)
        operator = self.graph.operators[number]
        if number == self.number or operator.name not in names:
            return None
        _at(operator.inputs, 0), _at(operator.outputs, 0)
        if operator.name == "BITWISE_XOR":
            mask = self.graph.data(_at(operator.inputs, 1)).tobytes()
            # an exclusive or reverses the order of values, as a complement does, only if it inverts
            # every bit
            if mask.strip(b"\xff"):
                return None
        self.taken.add(number)
        return operator

    def narrow(self, tensor: int) -> int:
        """The float16 tensor from which a DEQUANTIZE made this tensor; this tensor itself if no
        such operator made it."""
        made = self.graph.operators[self.makers.get(tensor, self.number)]
        if made.name == "DEQUANTIZE" and self.graph.tensors[_at(made.inputs, 0)].dtype == "float16":
            self.taken.add(self.makers[tensor])
            return made.inputs[0]
        return tensor

    def shape(self, tensor: int) -> tuple[int, ...]:
        """The shape of a tensor without the batch."""
        return self.graph.tensors[tensor].shape[1:]

    def q(self, tensor: int, axis: int = -1) -> QuantParams:
        """Scale and zero point of a tensor. Raises ValueError for several zero points, and for
        several scales unless they lie along ``axis``.
        """
        stored = self.graph.tensors[tensor]
        scales, zeros = stored.scale, set(stored.zero_point) or {0}
        if not scales or stored.dtype not in (*QUANTIZED, *PACKED):
            return UNIT
        if len(zeros) != 1 or (len(scales) > 1 and stored.axis != axis):
            allowed = "one of each"
            if axis >= 0:
                allowed += f" or scales on axis {axis}"
            raise ValueError(
                f"{stored.name}: got {len(scales)} scales on axis {stored.axis} and {len(zeros)} "
                f"zero points, allowed is {allowed}"
            )
        if len(scales) > 1:
            return QuantParams(scales, zeros.pop())
        return QuantParams(scales[0], zeros.pop())

    def common(self, source: int, output: int) -> dict[str, Any]:
        """The parameters that every kind of layer has: activation, quantization of input and
        output, type."""
        return {
            "activation": _activation(self.options),
            "input_q": self.q(source),
            "output_q": self.q(output),
            "dtype": self.graph.tensors[source].dtype,
        }

    def constants(self, axis: int) -> dict[str, Any]:
        """The weights, their quantization, and the bias, which is zeros if the operator has none;
        ``axis`` is the weights' axis of output channels."""
        number = self.narrow(_at(self.main.inputs, 1))
        weights = self.graph.data(number)
        bias = np.zeros(weights.shape[axis:][:1], int)
        if len(self.main.inputs) > 2 and self.main.inputs[2] >= 0:
            bias = self.graph.data(self.narrow(self.main.inputs[2]))
        q, dtype = self.q(number, axis), self.graph.tensors[number].dtype
        bits = {}
        if dtype in PACKED:
            bits["weight_bits"] = int(dtype.lstrip("uint"))
        if weights.dtype == np.uint8 and self.labelled(q):
            weights = weights.view(np.int8)
        # files state a scale per channel for hybrid depthwise layers: equal scales are read as one
        if bias.dtype == np.float32 and self.main.name == "DEPTHWISE_CONV_2D":
            scales = set(np.ravel(q.scale).tolist())
            if len(scales) == 1:
                q = QuantParams(scales.pop(), q.zero_point)
        return {"weights": weights, "bias": bias, "weight_q": q, **bits}

    def labelled(self, q: QuantParams) -> bool:
        """True if the file states uint8 for weights that are in fact int8, as files of older
        converters do.

        Such weights belong to a layer with float32 input: a fully connected layer, or a CONV_2D
        whose weights have one scale. LiteRT reads the weights of both as int8. It would use only
        the first scale if the uint8 weights of a CONV_2D had several.
        """
        if self.graph.tensors[_at(self.main.inputs, 0)].dtype != "float32":
            return False
        if self.main.name == "CONV_2D":
            return not per_channel(q.scale)
        return self.main.name == "FULLY_CONNECTED"

    def border(self, name: str) -> tuple[int, np.ndarray]:
        """Return (tensor, border): the input before an operator of this name pads it, and how many
        rows and columns that operator adds, ``((top, bottom), (left, right))``. Without such an
        operator these are the input itself and zeros."""
        x = _at(self.main.inputs, 0)
        made = self.neighbour(self.makers, x, name)
        if made is None:
            return x, np.zeros((2, 2), int)
        sides = self.graph.data(_at(made.inputs, 1))
        least = lowest(self.graph.tensors[x].dtype)
        if name == "PADV2" and self.graph.data(_at(made.inputs, 2)).ravel().tolist() != [least]:
            raise ValueError(
                f"{name}: got a border of another value, allowed is {least}, the lowest value of "
                "the type, which is not the maximum of any window"
            )
        if sides.shape != (4, 2) or np.any(sides < 0) or np.any(sides[[0, 3]]):
            raise ValueError(
                f"{name}: got {sides.tolist()}, allowed are 4 pairs of numbers, none negative: 0 "
                "for batch and channels, any for rows and columns"
            )
        return made.inputs[0], sides[1:3].astype(int)

    def window(
        self, source: int, border: np.ndarray, kernel: Any, dilation: Any = (1, 1)
    ) -> dict[str, Any]:
        """The input shape, the stride and the padding of a layer with a window, by name; the
        padding includes ``border``, which another operator adds."""
        shape, stride = self.shape(source), (self.options["stride_h"], self.options["stride_w"])
        padding: Any = numbered(PADDINGS, self.options["padding"])
        # The border is added only if padding, stride and shapes are valid; else the layer that is
        # made from them refuses them.
        shaped = padding in PADDINGS and min(stride) > 0 and len(shape) == 3 and len(kernel) == 2
        if shaped and np.any(border):
            # the padding of the file is computed for the image with the border
            padded = (np.array(shape[:2]) + border.sum(axis=1)).tolist()
            border = border + np.array(pads(padding, tuple(padded), kernel, stride, dilation))
            padding = tuple(map(tuple, border.tolist()))
        return {"input_shape": shape, "stride": stride, "padding": padding}

    def activated(self, tensor: int) -> tuple[int, str | None]:
        """Return (tensor, activation): the tensor after a maximum pooling with a window of one
        element, which only applies an activation, and that activation. Without such an operator
        these are the given tensor and None."""
        number = self.users.get(tensor, self.number)
        operator = self.graph.operators[number]
        if operator.name != "MAX_POOL_2D" or not operator.options["activation"]:
            return tensor, None
        if any(operator.options[name] != value for name, value in ONE_ELEMENT.items()):
            return tensor, None
        self.taken.add(number)
        return _at(operator.outputs, 0), _activation(operator.options)

    def check(self, layer: Layer, sources: Sequence[int], output: int) -> None:
        """Raise ValueError if a tensor that the layer takes or gives has another shape or type in
        the file than in the layer."""
        batch = self.graph.tensors[sources[0]].shape[:1]
        shapes = [(source, layer.input_shape) for source in sources]
        for number, shape in [*shapes, (output, layer.output_shape)]:
            tensor = self.graph.tensors[number]
            fits = tensor.shape == (*batch, *shape)
            if isinstance(layer, FullyConnected):
                fits = fits or math.prod(tensor.shape) % math.prod(shape) == 0
            if not fits or tensor.dtype != layer.dtype:
                raise ValueError(
                    f"{tensor.name}: got {list(tensor.shape)} {tensor.dtype}, allowed is "
                    f"{[*batch, *shape]} {layer.dtype}"
                )


def _at(tensors: Sequence[int], place: int) -> int:
    if place >= len(tensors) or tensors[place] < 0:
        raise ValueError(
            f"tensors: got {list(tensors)}, allowed is a list with a tensor at index {place}"
        )
    return tensors[place]


def _activation(options: Mapping[str, Any]) -> str | None:
    if not 0 <= options["activation"] < len(FUSED):
        raise ValueError(
            f"activation: got {numbered(ACTIVATIONS, options['activation'])}, allowed is one of "
            f"{', '.join(ACTIVATIONS[: len(FUSED)])}"
        )
    return FUSED[options["activation"]]
