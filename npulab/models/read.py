"""Graphs read back as layers."""

from __future__ import annotations

import math
import os
from collections import Counter
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

MOST_BYTES = 2**30  # of a model's file
OPERATOR_COLUMNS = ("graph", "operator", "name", "input", "output", "constants")
PARTS = ("operators", "tensors", "buffers")
MAIN = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "AVERAGE_POOL_2D", "MAX_POOL_2D", "ADD")


@refusing()
def read_model(data: bytes | bytearray | memoryview | str | os.PathLike[str]) -> Model:
    """The model in the bytes of a ``.tflite`` or ``.circle`` file, or in the file of a path.

    ``print`` lists it, ``quantization()`` lists scales and zero points.  Of several graphs layers
    are those of the first; ``graphs`` has all. Needs no package.  Raises ValueError (what, got,
    allowed, where) for bytes that are no model, or a broken one; FileNotFoundError.
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
    """Whether a file says that it is a model; False where there is no file."""
    return form_of(first_bytes(Path(path), 8)) is not None


@dataclass(frozen=True)
class Model(Graph):
    """A graph with the layers that are in it."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers, in the order they run; scales are float32, as the file holds them.

        Explicit padding that "same" or "valid" would give reads back by that name.  Raises
        ValueError naming the operator that is part of no layer, and why.
        """
        found, problems = self._found
        for problem in problems.values():
            raise ValueError(problem)
        return tuple(one.layer for one in found)

    @property
    def by_operator(self) -> dict[int, Layer | str]:
        """The layer of each main operator by its number in the file; of those that are part of none
        a sentence why."""
        found, problems = self._found
        every: dict[int, Layer | str] = {one.number: one.layer for one in found} | problems
        return dict(sorted(every.items()))

    @property
    def network(self) -> Network:
        """The layers, where each takes its inputs from, and which give the outputs.

        Raises as ``layers``; ValueError too if an output of the model is given by no layer.
        """
        for problem in self._found[1].values():
            raise ValueError(problem)
        return self._network(self._found[0], self.outputs)

    @property
    def readable(self) -> tuple[Network | None, str]:
        """The network up to the first operator that is part of no layer, and what that is: the
        layers that need nothing of such an operator, those that nothing takes being the outputs.

        The text is blank if every operator is read; the network is None if not even one is.
        """
        found, problems = self._found
        known, kept = set(self.inputs), []
        for one in found:
            if known.issuperset(one.sources):
                known.add(one.output)
                kept.append(one)
        problem = next(iter(problems.values()), "")
        taken = {tensor for one in kept for tensor in one.sources}
        if known.issuperset(self.outputs):
            ends = self.outputs
        else:
            ends = tuple(one.output for one in kept if one.output not in taken)
        return (self._network(kept, ends) if kept else None), problem

    def _network(self, found: Sequence[_Found], ends: Sequence[int]) -> Network:
        made = {one.output: number for number, one in enumerate(found)}
        taken = {tensor for one in found for tensor in one.sources}
        given = {
            tensor: -1 - n for n, tensor in enumerate(one for one in self.inputs if one in taken)
        } | made
        for tensor in taken:
            if tensor not in given:
                raise ValueError(
                    f"{self.tensors[tensor].name}: is given by no layer, allowed is the model's "
                    "input or "
                    "what a layer gives"
                )
        missing = [self.tensors[tensor].name for tensor in ends if tensor not in made]
        if missing or not found:
            raise ValueError(
                f"model: got output {missing[0] if missing else 'of no layer'}, allowed is what a "
                "layer "
                "gives"
            )
        return Network(
            tuple(one.layer for one in found),
            tuple(tuple(given[tensor] for tensor in one.sources) for one in found),
            tuple(made[end] for end in ends),
        )

    @property
    def parameters(self) -> pd.DataFrame:
        """One row per layer, by its main operator, and one per operator that is part of none.

        Scales and zero points are among the columns.
        """
        found, problems = self._found
        rows: dict[int, dict[str, Any]] = {one.number: one.layer.parameters for one in found}
        rows |= {number: {} for number in problems}
        frame = pd.DataFrame(
            [
                {"index": number, "name": self.operators[number].name, **rows[number]}
                for number in sorted(rows)
            ],
            dtype=object,
        )
        # a whole number stays one where other layers have none
        complete = [name for name in frame if frame[name].notna().all()]
        return frame.astype({name: frame[name].infer_objects().dtype for name in complete})

    def __repr__(self) -> str:
        of = f", the first of {len(self.graphs)} graphs" * bool(self.others)
        return (
            f"Model({', '.join(plural(len(getattr(self, name)), name[:-1]) for name in PARTS)}{of})"
        )

    @cached_property
    def _found(self) -> tuple[list[_Found], dict[int, str]]:
        return _find(self)


@dataclass(frozen=True)
class Listed:
    """A model as it is shown: its listing in one form, then scales and zero points."""

    model: Model
    form: str = LISTINGS[0]

    def records(self) -> list[Row]:
        """The rows of the listing, with the layer's parameters where an operator is one."""
        layers = {(0, row["index"]): known(row) for row in rows_of(self.model.parameters)}
        return [row | layers.get((row["graph"], row["index"]), {}) for row in self.model.rows]

    def __str__(self) -> str:
        return "\n\n".join(filter(None, (self.model.listing(self.form), self.model.quantization())))


@dataclass(frozen=True, eq=False)
class OperatorList(Answer):
    """A model as a list of its operators, with their shapes and the bytes of their constants."""

    model: Graph

    def records(self) -> list[Row]:
        return operators(self.model)

    @property
    def parts(self) -> list[Part]:
        rows, several = self.records(), bool(self.model.others)
        total = memory_text(sum(row["constants"] for row in rows))
        return [
            Table(
                [
                    {**row, "constants": memory_text(row["constants"]) if row["constants"] else ""}
                    for row in rows
                ],
                OPERATOR_COLUMNS[not several :],
            ),
            f"{plural(len(rows), 'operator')}, constants {total}",
        ]


@dataclass(frozen=True)
class _Found:
    """A layer, the number of its main operator, the tensors it takes and the one it gives."""

    layer: Layer
    number: int
    sources: tuple[int, ...]
    output: int


def _find(graph: Graph) -> tuple[list[_Found], dict[int, str]]:
    """The layers of a graph; by number what is wrong with the operators that are part of none, main
    ones first."""
    found: list[_Found] = []
    taken: set[int] = set()
    problems: dict[int, str] = {}
    makers = {tensor: i for i, one in enumerate(graph.operators) for tensor in one.outputs}
    uses = Counter(tensor for one in graph.operators for tensor in one.inputs)
    users = {
        tensor: i
        for i, one in enumerate(graph.operators)
        for tensor in one.inputs
        if uses[tensor] == 1
    }
    for number, one in enumerate(graph.operators):
        if number in taken or one.name not in MAIN:
            continue
        part = _Part(graph, makers, users, number)
        try:
            found.append(part.read())
            taken |= part.taken
        except ValueError as error:
            problems[number] = f"operator {number}, {one.name}: {error}"
    for number in sorted(set(range(len(graph.operators))) - taken):
        one = graph.operators[number]
        if one.name not in OPERATIONS:
            problems.setdefault(
                number,
                f"operator {number}, {one.name}: is part of no layer, allowed are "
                f"{', '.join(MAIN)}, what single_op_model puts around them, and the kinds of "
                "Operation",
            )
            continue
        try:
            found += _operations(graph, number)
            problems.pop(number, None)
        except ValueError as error:
            problems.setdefault(number, f"operator {number}, {one.name}: {error}")
    return sorted(found, key=lambda one: one.number), dict(sorted(problems.items()))


def _operations(graph: Graph, number: int) -> list[_Found]:
    """An operator without weights as a layer for each tensor that it gives."""
    one = graph.operators[number]
    refuse_if(min(one.inputs, default=-1) < 0, "tensors", list(one.inputs), "are all of its inputs")
    constants = {
        place: graph.data(tensor)
        for place, tensor in enumerate(one.inputs)
        if graph.buffers[graph.tensors[tensor].buffer]
    }
    options = {name: one.options[name] for name in OPERATIONS[one.name] if name in one.options}
    if "activation" in options:
        options["activation"] = _activation(one.options)
    inputs = tuple(_placeholder(graph.tensors[tensor]) for tensor in one.inputs)
    return [
        _Found(
            Operation(
                one.name, inputs, _placeholder(graph.tensors[tensor]), options, constants, part
            ),
            number,
            tuple(tensor for place, tensor in enumerate(one.inputs) if place not in constants),
            tensor,
        )
        for part, tensor in enumerate(one.outputs)
    ]


def _placeholder(one: Tensor) -> Placeholder:
    if len(set(one.scale)) > 1 or len(set(one.zero_point)) > 1:
        raise ValueError(f"{one.name}: got {len(one.scale)} scales, allowed is 1")
    q = UNIT
    if one.scale and one.dtype in QUANTIZED:
        q = QuantParams(one.scale[0], (one.zero_point or (0,))[0])
    return Placeholder(one.shape, one.dtype, q)


class _Part:
    """The operators of one layer: the main one, and those beside it that are taken with it."""

    def __init__(
        self, graph: Graph, makers: Mapping[int, int], users: Mapping[int, int], number: int
    ) -> None:
        self.graph, self.makers, self.users, self.number = graph, makers, users, number
        self.one, self.options, self.taken = (
            graph.operators[number],
            graph.operators[number].options,
            {number},
        )

    def read(self) -> _Found:
        """The layer.  Raises ValueError where its parts do not go together."""
        name, output, activation = (
            self.one.name,
            _at(self.one.outputs, 0),
            _activation(self.options),
        )
        if name == "ADD":
            sources = [self.narrow(_at(self.one.inputs, place)) for place in (0, 1)]
            layer: Layer = Add(
                self.shape(sources[0]),
                other_q=self.q(sources[1]),
                **self.common(sources[0], output, activation),
            )
        elif name == "FULLY_CONNECTED":
            if self.options["weights_format"] or self.options["asymmetric_quantize_inputs"]:
                raise ValueError(
                    f"options: got {self.options}, allowed are plain weights and symmetric inputs"
                )
            sources = [self.narrow(_at(self.one.inputs, 0))]
            layer = FullyConnected(
                **self.constants(0), **self.common(sources[0], output, activation)
            )
        elif name in POOLS.values():
            x, border = self.border("PADV2")
            if name == POOLS["average"]:
                kind = "average"
            else:
                kind = "max"
            turned = self.beside(self.makers, x, "NEG", "BITWISE_XOR")
            if turned:
                back = self.beside(self.users, output, turned.name)
                if back is None or activation or kind == "average":
                    raise ValueError(
                        f"input: got what {turned.name} gives, allowed where a maximum without "
                        "activation "
                        "goes into another"
                    )
                kind, x, (output, activation) = (
                    "min",
                    turned.inputs[0],
                    self.activated(back.outputs[0]),
                )
            sources, kernel = [self.narrow(x)], (self.options["kernel_h"], self.options["kernel_w"])
            layer = Pool2D(
                kind,
                kernel,
                **self.window(sources[0], border, kernel),
                **self.common(sources[0], output, activation),
            )
        else:
            x, border = self.border("PAD")
            sources, depthwise = [self.narrow(x)], name == "DEPTHWISE_CONV_2D"
            constants = self.constants(3 if depthwise else 0)
            dilation = self.options["dilation_h"], self.options["dilation_w"]
            layer = Conv2D(
                **constants,
                **self.window(sources[0], border, constants["weights"].shape[1:3], dilation),
                dilation=dilation,
                depthwise=depthwise,
                **self.common(sources[0], output, activation),
            )
        if layer.dtype == "float16":
            cast = self.beside(self.users, output, "CAST")
            if cast:
                output = cast.outputs[0]
        self.check(layer, sources, output)
        return _Found(layer, self.number, tuple(sources), output)

    def beside(self, near: Mapping[int, int], tensor: int, *names: str) -> Operator | None:
        """The operator that makes or uses a tensor, where it is of these names; it is taken."""
        number = near.get(tensor, self.number)
        one = self.graph.operators[number]
        if number == self.number or one.name not in names:
            return None
        _at(one.inputs, 0), _at(one.outputs, 0)
        if one.name == "BITWISE_XOR" and self.graph.data(_at(one.inputs, 1)).tobytes().strip(
            b"\xff"
        ):
            return None
        self.taken.add(number)
        return one

    def narrow(self, tensor: int) -> int:
        """The float16 tensor that a tensor was made from, or the tensor itself."""
        made = self.graph.operators[self.makers.get(tensor, self.number)]
        if made.name == "DEQUANTIZE" and self.graph.tensors[_at(made.inputs, 0)].dtype == "float16":
            self.taken.add(self.makers[tensor])
            return made.inputs[0]
        return tensor

    def shape(self, tensor: int) -> tuple[int, ...]:
        """The shape of a tensor without the batch."""
        return self.graph.tensors[tensor].shape[1:]

    def q(self, tensor: int, axis: int = -1) -> QuantParams:
        """Scale and zero point of a tensor; ``axis`` is where it may have a scale per channel."""
        one = self.graph.tensors[tensor]
        if not one.scale or one.dtype not in (*QUANTIZED, *PACKED):
            return UNIT
        zeros = set(one.zero_point) or {0}
        if len(zeros) != 1 or (len(one.scale) > 1 and one.axis != axis):
            raise ValueError(
                f"{one.name}: got {len(one.scale)} scales on axis {one.axis} and {len(zeros)} zero "
                "points"
                f", allowed is one of each{f' or scales on axis {axis}' * (axis >= 0)}"
            )
        return QuantParams(one.scale if len(one.scale) > 1 else one.scale[0], zeros.pop())

    def common(self, source: int, output: int, activation: str | None) -> dict[str, Any]:
        """What every layer has."""
        return {
            "activation": activation,
            "input_q": self.q(source),
            "output_q": self.q(output),
            "dtype": self.graph.tensors[source].dtype,
        }

    def constants(self, axis: int) -> dict[str, Any]:
        """Weights, their quantization and the bias, zeros where there is none."""
        number = self.narrow(_at(self.one.inputs, 1))
        weights = self.graph.data(number)
        if len(self.one.inputs) > 2 and self.one.inputs[2] >= 0:
            bias = self.graph.data(self.narrow(self.one.inputs[2]))
        else:
            bias = np.zeros(weights.shape[axis:][:1], int)
        q, dtype = self.q(number, axis), self.graph.tensors[number].dtype
        bits = {}
        if dtype in PACKED:
            bits = {"weight_bits": int(dtype.lstrip("uint"))}
        if weights.dtype == np.uint8 and self.labelled(q):
            weights = weights.view(np.int8)
        if (
            bias.dtype == np.float32
            and self.one.name == "DEPTHWISE_CONV_2D"
            and len(set(np.ravel(q.scale))) == 1
        ):
            q = QuantParams(
                float(np.ravel(q.scale)[0]), q.zero_point
            )  # one scale is written for each channel
        return {"weights": weights, "bias": bias, "weight_q": q, **bits}

    def labelled(self, q: QuantParams) -> bool:
        """Whether uint8 is but the label of int8 weights, as older converters had it.

        LiteRT takes those of a convolution so where they have one scale, and of several scales the
        first alone.
        """
        hybrid = self.graph.tensors[_at(self.one.inputs, 0)].dtype == "float32"
        return hybrid and (
            self.one.name == "FULLY_CONNECTED"
            or (self.one.name == "CONV_2D" and not per_channel(q.scale))
        )

    def border(self, name: str) -> tuple[int, np.ndarray]:
        """The input before the operator of this name pads it, and the ``(2, 2)`` that it adds."""
        x = _at(self.one.inputs, 0)
        made = self.beside(self.makers, x, name)
        if made is None:
            return x, np.zeros((2, 2), int)
        sides, least = self.graph.data(_at(made.inputs, 1)), lowest(self.graph.tensors[x].dtype)
        if name == "PADV2" and self.graph.data(_at(made.inputs, 2)).ravel().tolist() != [least]:
            raise ValueError(
                f"{name}: got another border, allowed is {least}, which no maximum takes"
            )
        if sides.shape != (4, 2) or np.any(sides < 0) or np.any(sides[[0, 3]]):
            raise ValueError(
                f"{name}: got {sides.tolist()}, allowed are rows and columns, none negative"
            )
        return made.inputs[0], sides[1:3].astype(int)

    def window(
        self, source: int, border: np.ndarray, kernel: Any, dilation: Any = (1, 1)
    ) -> dict[str, Any]:
        """Input shape, stride and padding."""
        shape, stride = self.shape(source), (self.options["stride_h"], self.options["stride_w"])
        padding: Any = numbered(PADDINGS, self.options["padding"])
        # where these are not so, the layer refuses them
        if (
            np.any(border)
            and padding in PADDINGS
            and min(stride) > 0
            and len(shape) == 3
            and len(kernel) == 2
        ):
            padded = tuple(
                size + int(sum(sides)) for size, sides in zip(shape, border, strict=False)
            )
            padding = tuple(
                map(
                    tuple,
                    (border + np.array(pads(padding, padded, kernel, stride, dilation))).tolist(),
                )
            )
        return {"input_shape": shape, "stride": stride, "padding": padding}

    def activated(self, tensor: int) -> tuple[int, str | None]:
        """The tensor behind a maximum of one element, which is there for its activation, and that
        activation."""
        number = self.users.get(tensor, self.number)
        one = self.graph.operators[number]
        if (
            one.name != "MAX_POOL_2D"
            or any(one.options[name] != value for name, value in ONE_ELEMENT.items())
            or not one.options["activation"]
        ):
            return tensor, None
        self.taken.add(number)
        return _at(one.outputs, 0), _activation(one.options)

    def check(self, layer: Layer, sources: Sequence[int], output: int) -> None:
        """Raises ValueError where tensors have other shapes or types than the layer takes and
        gives."""
        batch = self.graph.tensors[sources[0]].shape[:1]
        for tensor, shape in (
            *((source, layer.input_shape) for source in sources),
            (output, layer.output_shape),
        ):
            one = self.graph.tensors[tensor]
            fits = one.shape == (*batch, *shape) or (
                isinstance(layer, FullyConnected) and math.prod(one.shape) % math.prod(shape) == 0
            )
            if not fits or one.dtype != layer.dtype:
                raise ValueError(
                    f"{one.name}: got {list(one.shape)} {one.dtype}, allowed is {[*batch, *shape]} "
                    f"{layer.dtype}"
                )


def _at(tensors: Sequence[int], place: int) -> int:
    if place >= len(tensors) or tensors[place] < 0:
        raise ValueError(f"tensors: got {list(tensors)}, allowed is one at place {place}")
    return tensors[place]


def _activation(options: Mapping[str, Any]) -> str | None:
    if not 0 <= options["activation"] < len(FUSED):
        raise ValueError(
            f"activation: got {numbered(ACTIVATIONS, options['activation'])}, allowed is one of "
            f"{', '.join(ACTIVATIONS[: len(FUSED)])}"
        )
    return FUSED[options["activation"]]
