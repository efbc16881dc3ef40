"""The bytes of a ``.tflite`` file: tensors, operators and buffers, packed, unpacked and listed.

The encoding is FlatBuffers': a table is reached by an offset, its fields by a list of slots that lies
anywhere before or behind it.  Packing uses the package flatbuffers; unpacking needs no package.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from npulab.models.facts import (
    ACTIVATIONS,
    ALIGNMENT,
    BITS,
    IDENTIFIER,
    NAMES,
    OPERATORS,
    PADDINGS,
    TABLES,
    TYPES,
    VERSION,
)


class Field(NamedTuple):
    """A field of a table: its type as ``facts.TABLES`` has it, and what it is where it is not stored."""

    name: str
    kind: str
    absent: Any


def _field(text: str) -> Field:
    name, _, kind = text.partition(":")
    kind, _, default = kind.partition("=")
    if kind in TABLES or kind == "*":
        return Field(name, kind, None)
    return Field(name, kind, {"s": "", "[B]": b""}.get(kind, () if kind[0] == "[" else int(default or 0)))


SCHEMA = {kind: tuple(_field(text) for text in fields.split()) for kind, fields in TABLES.items()}
NUMBERS = {"b": "Int8", "B": "Uint8", "?": "Bool", "i": "Int32", "I": "Uint32", "Q": "Uint64"}
MOST_AXES = 8
OPERATOR_NAMES = dict(enumerate(NAMES.split())) | {number: name for name, (number, _, _) in OPERATORS.items()}


@dataclass(frozen=True)
class Tensor:
    """A tensor: ``shape`` with the batch, ``buffer`` the number of the one that holds its constant.

    ``scale`` and ``zero_point`` have one number, one per entry of ``axis``, or none.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    buffer: int = 0
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    axis: int = 0

    @property
    def memory(self) -> int:
        """Bytes of the elements; 0 for texts and other things without a size."""
        bits = BITS[self.dtype] if self.dtype in BITS else 8 * np.dtype(self.dtype).itemsize
        return math.prod(self.shape) * bits // 8


@dataclass(frozen=True)
class Operator:
    """An operator: the numbers of its tensors, -1 where an input is left out, and its options by name."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    revision: int = 1


@dataclass(frozen=True)
class Graph:
    """What a file states: tensors, operators in the order they run, buffers of which the first is empty."""

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    buffers: tuple[bytes, ...] = (b"",)
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    description: str = "npulab"

    def data(self, tensor: int) -> np.ndarray:
        """The constant of a tensor, in its shape and type.

        Raises ValueError where it has none, or one of another size.
        """
        one = self.tensors[tensor]
        raw = self.buffers[one.buffer]
        if not raw or len(raw) != one.memory or one.dtype in BITS:
            raise ValueError(f"{one.name}: got {len(raw)} bytes, allowed is a constant of {one.memory}, {one.dtype} "
                             f"{list(one.shape)}")
        values = np.frombuffer(raw, np.dtype(one.dtype).newbyteorder("<")).reshape(one.shape)
        return values.astype(one.dtype, copy=False)

    def listing(self) -> str:
        """Operators with their tensors and options, then counts and memory.

        The form is that of Samsung/ONE:tools/tflitefile_tool, with eight spaces for a tab.
        """
        lines = []
        for number, one in enumerate(self.operators):
            lines += [f"Operator {number}: {one.name}",
                      f"\tFused Activation: {numbered(ACTIVATIONS, one.options.get('activation', 0))}"]
            for side, tensors in (("Input", one.inputs), ("Output", one.outputs)):
                lines += [f"\t{side} Tensors{list(tensors)}", *(f"\t\t{self._line(tensor)}" for tensor in tensors)]
            lines += [f"\tOptions\n\t\t{text}" for text in [_options_text(one.options)] if text] + [""]
        counts = Counter(one.name for one in self.operators)
        lines += [f"Number of all operator types: {len(counts)}",
                  *(f"\t{name:38}: {count:4}" for name, count in sorted(counts.items())),
                  f"{'Number of all operators':46}: {len(self.operators):4}", ""]
        filled = sum(one.memory for one in self.tensors if self.buffers[one.buffer])
        lines += [f"Expected TOTAL  memory: {memory_text(sum(one.memory for one in self.tensors))}",
                  f"Expected FILLED memory: {memory_text(filled)}"]
        return "\n".join(lines).replace("\t", " " * 8)

    __str__ = listing

    def quantization(self) -> str:
        """Scale and zero point of every tensor that has them, a line each; ``tensors`` has all of them as numbers."""
        lines = []
        for number, one in enumerate(self.tensors):
            if one.scale:
                scales, zeros = (f"{min(values):.9g}" + f" to {max(values):.9g}" * (min(values) != max(values))
                                 for values in (one.scale, one.zero_point or (0,)))
                axis = f", {len(one.scale)} on axis {one.axis}" if len(one.scale) > 1 else ""
                lines.append(f"Tensor {number:4d} : scale {scales}{axis} | zero point {zeros} ({one.name})")
        return "\n".join(lines)

    def _line(self, tensor: int) -> str:
        if tensor < 0:
            return f"Tensor {tensor:4d}"
        one = self.tensors[tensor]
        state = "Filled" if self.buffers[one.buffer] else "Empty"
        return (f"Tensor {tensor:4d} : buffer {one.buffer:4d} | {state:>6} | {one.dtype.upper():7} | "
                f"Memory {memory_text(one.memory):6} | Shape {list(one.shape) or 'Scalar'} ({one.name})")


def memory_text(size: int) -> str:
    """Bytes with a unit of 1024s and one decimal.

    >>> memory_text(384), memory_text(16000)
    ('384.0B', '15.6K')
    """
    power = min(max(size.bit_length() - 1, 0) // 10, 4)
    return f"{size / 1024 ** power:.1f}{'BKMGT'[power]}"


def counted(number: int, name: str) -> str:
    """A number of things.

    >>> counted(1, "model"), counted(2, "model")
    ('1 model', '2 models')
    """
    return f"{number} {name}{'s' * (number != 1)}"


def numbered(names: Sequence[str], number: int) -> str:
    """The name of a number, or the number where it has none."""
    return names[number] if 0 <= number < len(names) else str(number)


def _options_text(options: Mapping[str, Any]) -> str:
    texts = [f"{title} W:H = {options[f'{name}_w']}:{options[f'{name}_h']}"
             for title, name in (("Filter", "kernel"), ("Stride", "stride"), ("Dilation", "dilation"))
             if f"{name}_w" in options]
    if "padding" in options:
        texts.append(f"Padding = {numbered(PADDINGS, options['padding']).upper()}")
    if "multiplier" in options:
        texts.append(f"DepthMultiplier = {options['multiplier']}")
    return ", ".join(texts)


def pack(graph: Graph) -> bytes:
    """The bytes of a graph; the same graph gives the same bytes.

    Raises ModuleNotFoundError naming the extra where flatbuffers is missing.
    """
    try:
        import flatbuffers
    except ModuleNotFoundError:
        raise ModuleNotFoundError("flatbuffers is missing: writing a model needs the extra npulab[models]") from None
    codes = list(dict.fromkeys((one.name, one.revision) for one in graph.operators))
    tensors = [{"shape": one.shape, "type": TYPES.index(one.dtype), "buffer": one.buffer, "name": one.name,
                "quantization": {"scale": one.scale, "zero_point": one.zero_point, "axis": one.axis} if one.scale
                else None} for one in graph.tensors]
    operators = [{"code": codes.index((one.name, one.revision)), "inputs": one.inputs, "outputs": one.outputs,
                  "options_type": OPERATORS[one.name][1], "options": (OPERATORS[one.name][2], one.options)}
                 for one in graph.operators]
    builder = flatbuffers.Builder(1024)
    builder.Finish(_pack_table(builder, "Model", {
        "version": VERSION, "description": graph.description,
        "buffers": [{"data": data} if data else {} for data in graph.buffers],
        "codes": [{"old_code": min(OPERATORS[name][0], 127), "version": revision, "code": OPERATORS[name][0]}
                  for name, revision in codes],
        "graphs": [{"tensors": tensors, "inputs": graph.inputs, "outputs": graph.outputs, "operators": operators,
                    "name": "main"}]}), IDENTIFIER)
    return bytes(builder.Output())


def _pack_table(builder: Any, kind: str, values: Mapping[str, Any]) -> int:
    """Where a table was put, after all that it points to."""
    places = {one.name: _pack_part(builder, one.kind, values[one.name]) for one in SCHEMA[kind]
              if one.kind not in NUMBERS and values.get(one.name) is not None}
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
    raw = value if element == "B" else np.array(value, f"<{element}").tobytes()
    size = struct.calcsize(element)
    builder.StartVector(size, len(raw) // size, ALIGNMENT if element == "B" else size)
    builder.head = builder.head - len(raw)
    builder.Bytes[builder.head:builder.head + len(raw)] = raw
    return builder.EndVector()


def unpack(data: bytes) -> Graph:
    """The graph in the bytes of a file.

    Raises ValueError (what, got, allowed, where) for bytes that are no model, a broken one, or several graphs.
    """
    if data[4:8] != IDENTIFIER:
        raise ValueError(f"identifier: got {data[4:8]!r} at offset 4, allowed is {IDENTIFIER!r}; the file is "
                         f"{'cut off' if len(data) < 8 else 'no TensorFlow Lite model'}")
    file = _File(data)
    model = file.table("Model", file.number("I", 0, "Model"))
    if model["version"] != VERSION or len(model["graphs"]) != 1:
        raise ValueError(f"model: got version {model['version']} with {len(model['graphs'])} graphs, allowed is "
                         f"version {VERSION} with 1")
    graph = model["graphs"][0]
    # in a file of more than 2 GB the data lies behind the tables
    buffers = tuple(file.take(one["offset"], one["size"], "buffer") if one["offset"] > 1 else one["data"]
                    for one in model["buffers"])
    tensors = tuple(_tensor(i, one, len(buffers)) for i, one in enumerate(graph["tensors"]))
    operators = tuple(_operator(file, i, one, model["codes"], len(tensors))
                      for i, one in enumerate(graph["operators"]))
    for side in ("inputs", "outputs"):
        _within(f"{side} of the model", graph[side], 0, len(tensors))
    return Graph(tensors, operators, buffers, graph["inputs"], graph["outputs"], model["description"])


class _File:
    """Bytes in FlatBuffers' encoding; every read is checked."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        # a broken file can point to the same bytes again and again; a sound one hardly shares any
        self.most = self.left = 4 * len(data) + 1024

    def take(self, at: int, size: int, what: str) -> bytes:
        if not 0 <= at <= len(self.data) - size:
            raise ValueError(f"{what}: got {counted(size, 'byte')} at offset {at}, allowed is inside the file of "
                             f"{len(self.data)}; the file is cut off or broken")
        self.left -= size
        if self.left < 0:
            raise ValueError(f"{what}: got the same bytes again and again at offset {at}, allowed in all are "
                             f"{self.most}")
        return self.data[at:at + size]

    def number(self, kind: str, at: int, what: str) -> int:
        return struct.unpack("<" + kind, self.take(at, struct.calcsize(kind), what))[0]

    def table(self, kind: str, at: int) -> dict[str, Any]:
        """The fields of a table by name."""
        slots = at - self.number("i", at, kind)
        size = self.number("H", slots, f"{kind}, slots")
        out = {}
        for slot, one in enumerate(SCHEMA[kind]):
            place = 4 + 2 * slot
            entry = self.number("H", slots + place, f"{kind}, slots") if place + 2 <= size else 0
            out[one.name] = self.part(one.kind, at + entry, f"{kind}, {one.name}") if entry else one.absent
        return out

    def part(self, kind: str, at: int, what: str) -> Any:
        if kind in NUMBERS:
            return self.number(kind, at, what)
        at += self.number("I", at, what)
        if kind == "*":  # read by whoever knows what it is
            return at
        if kind in SCHEMA:
            return self.table(kind, at)
        count, at = self.number("I", at, what), at + 4
        element = {"s": "B"}.get(kind, kind[1:-1])
        if element in SCHEMA:
            offsets = np.frombuffer(self.take(at, 4 * count, what), "<u4").tolist()
            return [self.table(element, at + 4 * i + offset) for i, offset in enumerate(offsets)]
        raw = self.take(at, count * struct.calcsize(element), what)
        if kind == "s":
            return raw.decode(errors="backslashreplace")
        return raw if element == "B" else tuple(np.frombuffer(raw, f"<{element}").tolist())


def _tensor(number: int, one: Mapping[str, Any], buffers: int) -> Tensor:
    what = f"tensor {number}, {one['name']}"
    if min(one["shape"], default=0) < 0 or len(one["shape"]) > MOST_AXES:
        raise ValueError(f"{what}: got shape {list(one['shape'])!s:.80}, allowed are up to {MOST_AXES} sizes, none "
                         "negative")
    _within(f"{what}: type", (one["type"],), 0, len(TYPES))
    _within(f"{what}: buffer", (one["buffer"],), 0, buffers)
    q = one["quantization"] or {"scale": (), "zero_point": (), "axis": 0}
    return Tensor(one["name"], one["shape"], TYPES[one["type"]], one["buffer"], q["scale"], q["zero_point"], q["axis"])


def _operator(file: _File, number: int, one: Mapping[str, Any], codes: Sequence[Mapping[str, Any]], tensors: int,
              ) -> Operator:
    _within(f"operator {number}: code", (one["code"],), 0, len(codes))
    code = codes[one["code"]]
    which = max(code["code"], code["old_code"])  # the newer field is 0 in old files
    name = OPERATOR_NAMES.get(which, str(which))
    what = f"operator {number}, {name}"
    _within(f"{what}: inputs", one["inputs"], -1, tensors)
    _within(f"{what}: outputs", one["outputs"], 0, tensors)
    options: dict[str, Any] = {}
    if name in OPERATORS:
        _, options_type, kind = OPERATORS[name]
        options = {option.name: option.absent for option in SCHEMA[kind]}
        if one["options"] is not None:
            if one["options_type"] != options_type:
                raise ValueError(f"{what}: got options of type {one['options_type']}, allowed is {options_type}")
            options = file.table(kind, one["options"])
    return Operator(name, one["inputs"], one["outputs"], options, code["version"])


def _within(what: str, numbers: Sequence[int], low: int, end: int) -> None:
    for number in numbers:
        if not low <= number < end:
            raise ValueError(f"{what}: got {number}, allowed is {low} to {end - 1}")
