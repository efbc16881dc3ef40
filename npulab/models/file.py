"""The bytes of a ``.tflite`` or ``.circle`` file, packed and unpacked.

The encoding is that of FlatBuffers (see ``flat``). Packing uses the package flatbuffers; unpacking
needs no package.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npulab.models.facts import (
    ALIGNMENT,
    CIRCLE_NAMES,
    CIRCLE_TYPES,
    CUSTOM,
    FORMS,
    GREATER,
    LISTED,
    NAMES,
    OPERATORS,
    TABLES,
    TENSORS,
    TYPES,
)
from npulab.models.flat import Field, Flat
from npulab.models.graph import Graph, Operator, Tensor
from npulab.models.listing import shown
from npulab.support.extras import needed
from npulab.support.text import plural


def _parse_field(text: str) -> Field:
    """The field that a text ``name:kind=default`` of tables.csv states."""
    name, _, kind = text.partition(":")
    kind, _, default = kind.partition("=")
    if kind in TABLES or kind == "*":
        return Field(name, kind, None)
    if kind == "s":
        return Field(name, kind, "")
    if kind == "[B]":
        return Field(name, kind, b"")
    if kind[0] == "[":
        return Field(name, kind, ())
    return Field(name, kind, int(default or 0))


SCHEMA = {name: tuple(map(_parse_field, fields.split())) for name, fields in TABLES.items()}
# A key is the letter of ``struct`` for a type of number, the value the word for that type in the
# names of the methods of flatbuffers.Builder.
NUMBERS = {
    "b": "Int8",
    "B": "Uint8",
    "?": "Bool",
    "i": "Int32",
    "I": "Uint32",
    "Q": "Uint64",
    "f": "Float32",
}
KNOWN = OPERATORS | LISTED | TENSORS
Fields = Mapping[str, Any]  # a table of the file: a key is the name of a field

MOST_AXES = 8  # a tensor with more axes is refused

# The names of operators and types by number, for each form. Each of circle's own operators has two
# numbers, because the first circle files stored the number as an unsigned byte. The newer, negative
# number comes last in the dictionary: of several numbers of a name the last one is written.
OPERATOR_NAMES = {"tflite": dict(enumerate(NAMES)), "circle": dict(enumerate(NAMES))}
TENSOR_TYPES = {"tflite": dict(enumerate(TYPES)), "circle": dict(enumerate(TYPES))}
for _index, _circle in enumerate(CIRCLE_NAMES):
    OPERATOR_NAMES["circle"] |= {254 - _index: _circle, -2 - _index: _circle}
for _index, _circle in enumerate(CIRCLE_TYPES):
    TENSOR_TYPES["circle"][-1 - _index] = _circle


def pack(graph: Graph) -> bytes:
    """The bytes of a file that holds a graph; equal graphs give equal bytes.

    The options of an operator are written if their kind is known. Raises ValueError if the form of
    the graph has no number for a type or an operator; MissingPackage if flatbuffers is not
    installed.
    """
    flatbuffers = needed("flatbuffers", "writing a model")
    if graph.form not in FORMS:
        raise ValueError(f"form: got {graph.form!r}, allowed is {' or '.join(FORMS)}")
    if any(other.buffers != graph.buffers for other in graph.others):
        raise ValueError(
            "others: got a graph with buffers of its own, allowed are those of the first graph"
        )
    # index of each (operator, revision) in the file's list of codes
    numbers: dict[tuple[str, int], int] = {}
    graphs = [_graph_values(graph.form, each, numbers) for each in graph.graphs]
    identifier, version = FORMS[graph.form]
    model = {
        "version": version,
        "description": graph.description,
        "buffers": [{"data": data or None} for data in graph.buffers],
        "codes": [_code_values(graph.form, *code) for code in numbers],
        "graphs": graphs,
    }
    builder = flatbuffers.Builder(1024)
    builder.Finish(_pack_table(builder, "Model", model), identifier)
    return bytes(builder.Output())


def _graph_values(form: str, graph: Graph, numbers: dict[tuple[str, int], int]) -> dict[str, Any]:
    """The fields of the table SubGraph for a graph. Each (name, revision) of an operator that
    ``numbers`` does not have yet is added to it, with its index in the file's list of codes."""
    types = {name: number for number, name in TENSOR_TYPES[form].items()}
    tensors: list[dict[str, Any]] = []
    for tensor in graph.tensors:
        if tensor.dtype not in types:
            raise ValueError(
                f"{tensor.name}: got type {tensor.dtype}, allowed in a .{form} is one of "
                f"{', '.join(types)}"
            )
        # a table takes the members of ``Tensor`` by the names of its fields, and ignores the others
        stored: dict[str, Any] = {**vars(tensor), "type": types[tensor.dtype]}
        if tensor.scale:
            stored["quantization"] = vars(tensor)
        tensors.append(stored)
    operators: list[dict[str, Any]] = []
    for operator in graph.operators:
        code = operator.name, operator.revision
        values: dict[str, Any] = {
            "code": numbers.setdefault(code, len(numbers)),
            "inputs": operator.inputs,
            "outputs": operator.outputs,
        }
        if operator.name in KNOWN:
            _, values["options_type"], kind = KNOWN[operator.name]
            values["options"] = kind, operator.options
        operators.append(values)
    return {
        "tensors": tensors,
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "operators": operators,
        "name": graph.name,
    }


def _code_values(form: str, name: str, revision: int) -> dict[str, Any]:
    """The fields of the table OperatorCode for an operator; raises ValueError if the form has no
    such operator."""
    numbers = {known: number for number, known in OPERATOR_NAMES[form].items()}
    base, _, custom = name.partition("(")
    if base in numbers:
        number = numbers[base]
    elif base.lstrip("-").isdigit():
        number = int(base)
    else:
        raise ValueError(
            f"operator: got {name}, allowed in a .{form} are the names of its operators, numbers "
            f"and {CUSTOM}(name)"
        )
    code: dict[str, Any] = {
        "old_code": max(min(number, GREATER), -GREATER - 1),
        "version": revision,
        "code": number,
    }
    if custom:
        code["custom"] = custom.removesuffix(")")
    return code


def _pack_table(builder: Any, kind: str, values: Fields) -> int:
    """Write the parts to which a table points, then the table; return the offset of the table."""
    fields = SCHEMA[kind]
    offsets = {}
    for field in fields:
        if field.kind not in NUMBERS and values.get(field.name) is not None:
            offsets[field.name] = _pack_part(builder, field.kind, values[field.name])
    builder.StartObject(len(fields))
    for slot, field in enumerate(fields):
        if field.name in offsets:
            builder.PrependUOffsetTRelativeSlot(slot, offsets[field.name], 0)
        elif field.name in values and field.kind in NUMBERS:
            write = getattr(builder, f"Prepend{NUMBERS[field.kind]}Slot")
            # None is given in place of a default: a value that equals its default would be left out
            write(slot, values[field.name], None)
    return builder.EndObject()


def _pack_part(builder: Any, kind: str, value: Any) -> int:
    """Write a string, a table or a vector, and return its offset."""
    if kind == "s":
        return builder.CreateString(value)
    if kind == "*":
        return _pack_table(builder, *value)
    if kind in SCHEMA:
        return _pack_table(builder, kind, value)
    element = kind[1:-1]
    if element in SCHEMA:
        offsets = [_pack_table(builder, element, item) for item in value]
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return builder.EndVector()
    size = struct.calcsize(element)
    if element == "B":
        raw, alignment = value, ALIGNMENT
    else:
        raw, alignment = np.array(value, f"<{element}").tobytes(), size
    builder.StartVector(size, len(raw) // size, alignment)
    # all bytes are copied at once: the builder would take them one by one
    builder.head = builder.head - len(raw)
    builder.Bytes[builder.head : builder.head + len(raw)] = raw
    return builder.EndVector()


def form_of(start: bytes) -> str | None:
    """The form ("tflite" or "circle") that the first 8 bytes of a file state; None for any other
    file.

    >>> form_of(b"    CIR0")
    'circle'
    """
    for form, (identifier, _) in FORMS.items():
        if start[4:8] == identifier:
            return form
    return None


def unpack(data: bytes) -> Graph:
    """The first graph in the bytes of a file; its ``others`` are the graphs after it.

    Raises ValueError (what, got, allowed, where) for bytes that are not a model, and for a broken
    model.
    """
    form = form_of(data)
    if form is None:
        known = " or ".join(repr(identifier) for identifier, _ in FORMS.values())
        problem = "no TensorFlow Lite or circle model"
        if len(data) < 8:
            problem = "cut off"
        raise ValueError(
            f"identifier: got {data[4:8]!r} at offset 4, allowed is {known}; the file is {problem}"
        )
    file = Flat(data, SCHEMA)
    model = file.table("Model", file.number("I", 0, "Model"))
    version = FORMS[form][1]
    count = len(model["graphs"])
    if model["version"] != version or not count:
        raise ValueError(
            f"model: got version {model['version']} with {plural(count, 'graph')}, allowed in a "
            f".{form} is version {version} with at least 1"
        )
    buffers = []
    for stored in model["buffers"]:
        content = stored["data"]
        # in a file of more than 2 GB, the data of a buffer lies after the tables, at ``offset``
        if stored["offset"] > 1:
            content = file.take(stored["offset"], stored["size"], "buffer")
        buffers.append(content)
    reader = _Reader(file, form, model["codes"], len(buffers))
    graphs = []
    for number, stored in enumerate(model["graphs"]):
        where = ""
        if count > 1:
            where = f"graph {number}, "
        graph = reader.graph(where, stored)
        graphs.append(replace(graph, buffers=tuple(buffers), description=model["description"]))
    return replace(graphs[0], others=tuple(graphs[1:]))


@dataclass(frozen=True)
class _Reader:
    """A file while it is read, with its operator codes and the number of its buffers."""

    file: Flat
    form: str
    codes: Sequence[Fields]
    buffers: int

    def graph(self, where: str, stored: Fields) -> Graph:
        """A graph of the file, without the contents of its buffers; every error text begins with
        ``where``."""
        tensors = []
        for i, fields in enumerate(stored["tensors"]):
            tensors.append(self.tensor(f"{where}tensor {i}", fields))
        operators = []
        for i, fields in enumerate(stored["operators"]):
            operators.append(self.operator(f"{where}operator {i}", fields, tensors))
        inputs, outputs = stored["inputs"], stored["outputs"]
        whole = where.removesuffix(", ") or "the model"
        _refuse_outside(f"inputs of {whole}", inputs, 0, len(tensors))
        _refuse_outside(f"outputs of {whole}", outputs, 0, len(tensors))
        graph = Graph(tuple(tensors), tuple(operators), inputs=inputs, outputs=outputs)
        return replace(graph, name=stored["name"], form=self.form)

    def tensor(self, what: str, stored: Fields) -> Tensor:
        name, shape, number = stored["name"], stored["shape"], stored["type"]
        what = f"{what}, {shown(name):.80}"
        if min(shape, default=0) < 0 or len(shape) > MOST_AXES:
            raise ValueError(
                f"{what}: got shape {list(shape)!s:.80}, allowed are up to {MOST_AXES} sizes, none "
                "negative"
            )
        types = TENSOR_TYPES[self.form]
        _refuse_outside(f"{what}: type", [number], min(types), max(types) + 1)
        _refuse_outside(f"{what}: buffer", [stored["buffer"]], 0, self.buffers)
        tensor = Tensor(name, shape, types[number], stored["buffer"])
        q = stored["quantization"]
        if q is None:
            return tensor
        return replace(tensor, scale=q["scale"], zero_point=q["zero_point"], axis=q["axis"])

    def operator(self, what: str, stored: Fields, tensors: Sequence[Tensor]) -> Operator:
        _refuse_outside(f"{what}: code", [stored["code"]], 0, len(self.codes))
        code = self.codes[stored["code"]]
        name = self.name(code)
        what = f"{what}, {shown(name):.80}"
        inputs, outputs = stored["inputs"], stored["outputs"]
        _refuse_outside(f"{what}: inputs", inputs, -1, len(tensors))
        _refuse_outside(f"{what}: outputs", outputs, 0, len(tensors))
        # a listing repeats the name of a tensor at each use: a broken file that uses a tensor very
        # often would fill the memory, so that the repeated bytes are counted
        for tensor in (*inputs, *outputs):
            if tensor >= 0:
                self.file.spend(len(tensors[tensor].name), what)
        return Operator(name, inputs, outputs, self.options(what, name, stored), code["version"])

    def name(self, code: Fields) -> str:
        """The name of an operator, found by its number.

        A newer and an older field state the number. If neither is negative, the larger one is the
        number, because the newer field is 0 in old files. If one is negative, as the numbers of
        circle's own operators are, the smaller one is the number."""
        number = min(code["code"], code["old_code"])
        if number >= 0:
            number = max(code["code"], code["old_code"])
        name = OPERATOR_NAMES[self.form].get(number, str(number))
        if name == CUSTOM and code["custom"]:
            return f"{name}({code['custom']})"
        return name

    def options(self, what: str, name: str, stored: Fields) -> dict[str, Any]:
        """The options of an operator by name; an empty dict if their kind is not known."""
        if name not in KNOWN:
            return {}
        _, options_type, kind = KNOWN[name]
        if stored["options"] is None:
            return {option.name: option.absent for option in SCHEMA[kind]}
        stored_type = stored["options_type"]
        if stored_type == options_type:
            return self.file.table(kind, stored["options"])
        if name in OPERATORS:
            raise ValueError(
                f"{what}: got options of type {stored_type}, allowed is {options_type}"
            )
        return {}


def _refuse_outside(what: str, numbers: Sequence[int], low: int, end: int) -> None:
    for number in numbers:
        if not low <= number < end:
            raise ValueError(f"{what}: got {number}, allowed is {low} to {end - 1}")
