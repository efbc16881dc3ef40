"""The bytes of a ``.tflite`` or ``.circle`` file, packed and unpacked.

The encoding is FlatBuffers': a table is reached by an offset, its fields by a list of slots that
lies anywhere before or behind it.  Packing uses the package flatbuffers; unpacking needs no
package.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
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


def _field(text: str) -> Field:
    name, _, kind = text.partition(":")
    kind, _, default = kind.partition("=")
    if kind in TABLES or kind == "*":
        return Field(name, kind, None)
    return Field(
        name, kind, {"s": "", "[B]": b""}.get(kind, () if kind[0] == "[" else int(default or 0))
    )


SCHEMA = {kind: tuple(_field(text) for text in fields.split()) for kind, fields in TABLES.items()}
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
MOST_AXES = 8
# names by number and form
OPERATOR_NAMES = {
    "tflite": dict(enumerate(NAMES)),
    "circle": dict(enumerate(NAMES))
    | {start - i: name for start in (254, -2) for i, name in enumerate(CIRCLE_NAMES)},
}
TENSOR_TYPES = {
    "tflite": dict(enumerate(TYPES)),
    "circle": dict(enumerate(TYPES)) | {-1 - i: name for i, name in enumerate(CIRCLE_TYPES)},
}


def pack(graph: Graph) -> bytes:
    """The bytes of a graph; the same graph gives the same bytes.

    Options are written where their kind is known.  Raises ValueError for what the graph's form has
    no number for; MissingPackage where flatbuffers is not installed.
    """
    flatbuffers = needed("flatbuffers", "writing a model")
    if graph.form not in FORMS:
        raise ValueError(f"form: got {graph.form!r}, allowed is {' or '.join(FORMS)}")
    if any(one.buffers != graph.buffers for one in graph.others):
        raise ValueError(
            "others: got a graph with buffers of its own, allowed are those of the first"
        )
    identifier, version = FORMS[graph.form]
    codes = list(
        dict.fromkeys((one.name, one.revision) for each in graph.graphs for one in each.operators)
    )
    builder = flatbuffers.Builder(1024)
    builder.Finish(
        _pack_table(
            builder,
            "Model",
            {
                "version": version,
                "description": graph.description,
                "buffers": [{"data": data} if data else {} for data in graph.buffers],
                "codes": [_code(graph.form, name, revision) for name, revision in codes],
                "graphs": [_graph(graph.form, each, codes) for each in graph.graphs],
            },
        ),
        identifier,
    )
    return bytes(builder.Output())


def _graph(form: str, graph: Graph, codes: Sequence[tuple[str, int]]) -> dict[str, Any]:
    types = {name: number for number, name in TENSOR_TYPES[form].items()}
    for tensor in graph.tensors:
        if tensor.dtype not in types:
            raise ValueError(
                f"{tensor.name}: got type {tensor.dtype}, allowed in a .{form} is one of "
                f"{', '.join(types)}"
            )
    tensors = [
        {
            "shape": one.shape,
            "type": types[one.dtype],
            "buffer": one.buffer,
            "name": one.name,
            "quantization": {"scale": one.scale, "zero_point": one.zero_point, "axis": one.axis}
            if one.scale
            else None,
        }
        for one in graph.tensors
    ]
    operators: list[dict[str, Any]] = []
    for one in graph.operators:
        operators.append(
            {
                "code": codes.index((one.name, one.revision)),
                "inputs": one.inputs,
                "outputs": one.outputs,
            }
        )
        if one.name in KNOWN:
            _, options_type, kind = KNOWN[one.name]
            operators[-1] |= {"options_type": options_type, "options": (kind, one.options)}
    return {
        "tensors": tensors,
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "operators": operators,
        "name": graph.name,
    }


def _code(form: str, name: str, revision: int) -> dict[str, Any]:
    """What tells an operator."""
    numbers = {one: number for number, one in OPERATOR_NAMES[form].items()}
    base, _, custom = name.partition("(")
    if base not in numbers and not base.lstrip("-").isdigit():
        raise ValueError(
            f"operator: got {name}, allowed in a .{form} are the names of its operators, numbers "
            "and "
            f"{CUSTOM}(name)"
        )
    if base in numbers:
        number = numbers[base]
    else:
        number = int(base)
    code = {
        "old_code": max(min(number, GREATER), -GREATER - 1),
        "version": revision,
        "code": number,
    }
    if custom:
        return code | {"custom": custom.removesuffix(")")}
    return code


def _pack_table(builder: Any, kind: str, values: Mapping[str, Any]) -> int:
    """Where a table was put, after all that it points to."""
    places = {
        one.name: _pack_part(builder, one.kind, values[one.name])
        for one in SCHEMA[kind]
        if one.kind not in NUMBERS and values.get(one.name) is not None
    }
    builder.StartObject(len(SCHEMA[kind]))
    for slot, one in enumerate(SCHEMA[kind]):
        if one.name in places:
            builder.PrependUOffsetTRelativeSlot(slot, places[one.name], 0)
        elif one.name in values and one.kind in NUMBERS:
            # no default, so that it is written whatever it is
            getattr(builder, f"Prepend{NUMBERS[one.kind]}Slot")(slot, values[one.name], None)
    return builder.EndObject()


def _pack_part(builder: Any, kind: str, value: Any) -> int:
    if kind == "s":
        return builder.CreateString(value)
    if kind == "*":
        return _pack_table(builder, *value)
    if kind in SCHEMA:
        return _pack_table(builder, kind, value)
    element = kind[1:-1]
    if element in SCHEMA:
        places = [_pack_table(builder, element, one) for one in value]
        builder.StartVector(4, len(places), 4)
        for place in reversed(places):
            builder.PrependUOffsetTRelative(place)
        return builder.EndVector()
    if element == "B":
        raw = value
    else:
        raw = np.array(value, f"<{element}").tobytes()
    size = struct.calcsize(element)
    builder.StartVector(size, len(raw) // size, ALIGNMENT if element == "B" else size)
    builder.head = builder.head - len(raw)
    builder.Bytes[builder.head : builder.head + len(raw)] = raw
    return builder.EndVector()


def form_of(start: bytes) -> str | None:
    """The form that the first 8 bytes of a file say it has; None for a file of another kind.

    >>> form_of(b"    CIR0")
    'circle'
    """
    return next((form for form, (identifier, _) in FORMS.items() if start[4:8] == identifier), None)


def unpack(data: bytes) -> Graph:
    """The graph in the bytes of a file, with the others that it may have beside it.

    Raises ValueError (what, got, allowed, where) for bytes that are no model, or a broken one.
    """
    form = form_of(data)
    if form is None:
        known = " or ".join(repr(identifier) for identifier, _ in FORMS.values())
        raise ValueError(
            f"identifier: got {data[4:8]!r} at offset 4, allowed is {known}; the file is "
            f"{'cut off' if len(data) < 8 else 'no TensorFlow Lite or circle model'}"
        )
    file = Flat(data, SCHEMA)
    model = file.table("Model", file.number("I", 0, "Model"))
    version = FORMS[form][1]
    if model["version"] != version or not model["graphs"]:
        raise ValueError(
            f"model: got version {model['version']} with {plural(len(model['graphs']), 'graph')}, "
            f"allowed in a .{form} is version {version} with at least 1"
        )
    # in a file of more than 2 GB the data lies behind the tables
    buffers = tuple(
        file.take(one["offset"], one["size"], "buffer") if one["offset"] > 1 else one["data"]
        for one in model["buffers"]
    )
    first, *others = (
        _unpack_graph(file, form, model, i, buffers) for i in range(len(model["graphs"]))
    )
    return replace(first, others=tuple(others))


def _unpack_graph(
    file: Flat, form: str, model: Mapping[str, Any], number: int, buffers: tuple[bytes, ...]
) -> Graph:
    graph = model["graphs"][number]
    of = ""
    if len(model["graphs"]) > 1:
        of = f"graph {number}, "
    tensors = tuple(
        _tensor(f"{of}tensor {i}", form, one, len(buffers))
        for i, one in enumerate(graph["tensors"])
    )
    operators = tuple(
        _operator(file, f"{of}operator {i}", form, one, model["codes"], tensors)
        for i, one in enumerate(graph["operators"])
    )
    for side in ("inputs", "outputs"):
        _within(f"{side} of {of.removesuffix(', ') or 'the model'}", graph[side], 0, len(tensors))
    return Graph(
        tensors,
        operators,
        buffers,
        graph["inputs"],
        graph["outputs"],
        model["description"],
        graph["name"],
        form,
    )


def _tensor(what: str, form: str, one: Mapping[str, Any], buffers: int) -> Tensor:
    what, types = f"{what}, {shown(one['name']):.80}", TENSOR_TYPES[form]
    if min(one["shape"], default=0) < 0 or len(one["shape"]) > MOST_AXES:
        raise ValueError(
            f"{what}: got shape {list(one['shape'])!s:.80}, allowed are up to {MOST_AXES} sizes, "
            "none "
            "negative"
        )
    _within(f"{what}: type", (one["type"],), min(types), max(types) + 1)
    _within(f"{what}: buffer", (one["buffer"],), 0, buffers)
    q = one["quantization"] or {"scale": (), "zero_point": (), "axis": 0}
    return Tensor(
        one["name"],
        one["shape"],
        types[one["type"]],
        one["buffer"],
        q["scale"],
        q["zero_point"],
        q["axis"],
    )


def _operator(
    file: Flat,
    what: str,
    form: str,
    one: Mapping[str, Any],
    codes: Sequence[Mapping[str, Any]],
    tensors: Sequence[Tensor],
) -> Operator:
    _within(f"{what}: code", (one["code"],), 0, len(codes))
    code = codes[one["code"]]
    name = _name(form, code)
    what = f"{what}, {shown(name):.80}"
    _within(f"{what}: inputs", one["inputs"], -1, len(tensors))
    _within(f"{what}: outputs", one["outputs"], 0, len(tensors))
    file.spend(sum(len(tensors[i].name) for i in (*one["inputs"], *one["outputs"]) if i >= 0), what)
    options: dict[str, Any] = {}
    if name in KNOWN:
        _, options_type, kind = KNOWN[name]
        options = {option.name: option.absent for option in SCHEMA[kind]}
        if one["options"] is not None and one["options_type"] == options_type:
            options = file.table(kind, one["options"])
        elif one["options"] is not None:
            if name in OPERATORS:
                raise ValueError(
                    f"{what}: got options of type {one['options_type']}, allowed is {options_type}"
                )
            options = {}
    return Operator(name, one["inputs"], one["outputs"], options, code["version"])


def _name(form: str, code: Mapping[str, Any]) -> str:
    """An operator's name, from the newer of two fields, which is 0 in old files, or from the
    older."""
    new, old = code["code"], code["old_code"]
    number, names = min(new, old) if min(new, old) < 0 else max(new, old), OPERATOR_NAMES[form]
    name = names.get(number, str(number))
    if name == CUSTOM and code["custom"]:
        return f"{name}({code['custom']})"
    return name


def _within(what: str, numbers: Sequence[int], low: int, end: int) -> None:
    for number in numbers:
        if not low <= number < end:
            raise ValueError(f"{what}: got {number}, allowed is {low} to {end - 1}")
