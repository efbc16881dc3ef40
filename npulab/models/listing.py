"""Graphs as text and as rows: their operators with the tensors, counts and memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from npulab.models.facts import ACTIVATIONS, PADDINGS

if TYPE_CHECKING:
    from npulab.models.graph import Graph, Operator

LISTINGS = ("earlier", "later")
MOST_SHOWN = 4  # the later form prints constants of at most MOST_SHOWN elements
TAB = " " * 8
WINDOWS = ("CONV_2D", "DEPTHWISE_CONV_2D", "AVERAGE_POOL_2D", "MAX_POOL_2D")
MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


def listed(graph: Graph, form: str) -> str:
    """The text of every graph of a file, in one of the two ``LISTINGS``; raises ValueError for
    another form."""
    if form not in LISTINGS:
        raise ValueError(f"form: got {form!r}, allowed is {' or '.join(LISTINGS)}")
    lines: list[str] = []
    for number, part in enumerate(graph.graphs):
        title = f"#{number} {shown(part.name)}"
        if number == 0:
            title += " (MAIN)"
        else:
            lines.append("")
        if form == "later" or graph.others:
            lines += [f"[{title}]", ""]
        if form == "later":
            lines += _later(part, title)
        else:
            lines += _earlier(part)
    return "\n".join(lines)


def rows(graph: Graph) -> list[dict[str, Any]]:
    """A dict for each operator of every graph, as ``Graph.rows`` describes."""
    rows = []
    for number, part in enumerate(graph.graphs):
        for index, operator in enumerate(part.operators):
            rows.append(
                {
                    "index": index,
                    "name": operator.name,
                    "graph": number,
                    "fused_activation": _fused_activation(operator),
                    "options": dict(operator.options),
                    "inputs": [_tensor_row(part, tensor) for tensor in operator.inputs],
                    "outputs": [_tensor_row(part, tensor) for tensor in operator.outputs],
                }
            )
    return rows


def operators(graph: Graph) -> list[dict[str, Any]]:
    """A dict for each operator of every graph: graph, operator, name, input and output (shapes and
    types as text), and the bytes of its constants."""
    rows = []
    for number, part in enumerate(graph.graphs):
        for index, operator in enumerate(part.operators):
            inputs, constants = [], 0
            for tensor in operator.inputs:
                if part.filled(tensor):
                    constants += part.tensors[tensor].memory
                elif tensor >= 0:
                    inputs.append(_shape(part, tensor))
            outputs = [_shape(part, tensor) for tensor in operator.outputs]
            rows.append(
                {
                    "graph": number,
                    "operator": index,
                    "name": shown(operator.name),
                    "input": ", ".join(inputs),
                    "output": ", ".join(outputs),
                    "constants": constants,
                }
            )
    return rows


def _shape(graph: Graph, tensor: int) -> str:
    """The sizes and the type of a tensor as text.

    >>> from npulab.models.graph import Graph, Tensor
    >>> _shape(Graph((Tensor("a", (1, 4, 4, 3), "int8"), Tensor("b", (), "float32")), ()), 0)
    '1x4x4x3 int8'
    """
    shape, dtype = graph.tensors[tensor].shape, graph.tensors[tensor].dtype
    return f"{'x'.join(map(str, shape)) or 'scalar'} {dtype}"


def quantization(graph: Graph) -> Iterator[str]:
    """Yield a line for each tensor that has a scale: its scale and zero point, or their range."""
    for number, part in enumerate(graph.graphs):
        start = ""
        if graph.others:
            start = f"Graph {number} "
        for index, tensor in enumerate(part.tensors):
            if not tensor.scale:
                continue
            scale = _extent(tensor.scale)
            if len(tensor.scale) > 1:
                scale += f", {len(tensor.scale)} on axis {tensor.axis}"
            zero_point = f"zero point {_extent(tensor.zero_point or (0,))}"
            yield (
                f"{start}Tensor {index:4d} : scale {scale} | {zero_point} ({shown(tensor.name)})"
            )


def _extent(values: Sequence[float]) -> str:
    """The least and the greatest value as text; one value if both are equal."""
    least, greatest = min(values), max(values)
    if least == greatest:
        return f"{least:.9g}"
    return f"{least:.9g} to {greatest:.9g}"


def memory_text(size: int) -> str:
    """A number of bytes as text, in a unit that is a power of 1024, with one decimal.

    >>> memory_text(384), memory_text(16000)
    ('384.0B', '15.6K')
    """
    power = min(max(size.bit_length() - 1, 0) // 10, 4)
    return f"{size / 1024**power:.1f}{'BKMGT'[power]}"


def numbered(names: Sequence[str], number: int) -> str:
    """The name at an index, or the index as text if there is no such name."""
    if 0 <= number < len(names):
        return names[number]
    return str(number)


def shown(name: str) -> str:
    """A name on one line, its control characters escaped as in a Python text.

    >>> print(shown("a/b"), shown("a\\nb"))
    a/b a\\nb
    """
    if name.isprintable():
        return name
    return name.encode("unicode_escape").decode()


def _earlier(graph: Graph) -> list[str]:
    lines = _operator_lines(graph, "Operator {}: {}", TAB, "{}", _earlier_tensor)
    counts = Counter(shown(operator.name) for operator in graph.operators)
    lines.append(f"Number of all operator types: {len(counts)}")
    for name, count in sorted(counts.items()):
        lines.append(f"{TAB}{name:38}: {count:4}")
    lines += [f"{'Number of all operators':46}: {len(graph.operators):4}", ""]
    return lines + _memory(graph)


def _later(graph: Graph, title: str) -> list[str]:
    lines = []
    for side, tensors in (("input", graph.inputs), ("output", graph.outputs)):
        lines.append(f"{title} {side} tensors: {list(tensors)}")
        for tensor in tensors:
            lines.append(f"    {_later_tensor(graph, tensor)}")
    lines += ["", *_operator_lines(graph, "#{} {}", "  ", "%{}", _later_tensor)]
    counts = Counter(shown(operator.name) for operator in graph.operators)
    lines.append(f"{'Number of all operator types':38}: {len(counts):4}")
    for name, count in sorted(counts.items()):
        lines.append(f"  {name:36}: {count:4}")
    lines += [f"{'Number of all operators':38}: {len(graph.operators):4}", ""]
    return lines + _memory(graph)


def _operator_lines(
    graph: Graph, head: str, tab: str, name: str, described: Callable[[Graph, int], str]
) -> list[str]:
    """The lines of the operators of a graph with their tensors; ``head``, ``tab``, ``name`` and
    ``described`` are the parts in which the two forms differ."""
    lines = []
    for number, operator in enumerate(graph.operators):
        lines.append(head.format(number, shown(operator.name)))
        lines.append(f"{tab}Fused Activation: {_fused_activation(operator)}")
        for side, tensors in (("Input", operator.inputs), ("Output", operator.outputs)):
            lines.append(f"{tab}{side} Tensors[{', '.join(map(name.format, tensors))}]")
            for tensor in tensors:
                lines.append(f"{tab}{tab}{described(graph, tensor)}")
        texts = _options(operator)
        if texts:
            lines += [f"{tab}Options", f"{tab}{tab}{', '.join(texts)}"]
        lines.append("")
    return lines


def _earlier_tensor(graph: Graph, tensor: int) -> str:
    if tensor < 0:
        return f"Tensor {tensor:4d}"
    state = "Empty"
    if graph.filled(tensor):
        state = "Filled"
    buffer = graph.tensors[tensor].buffer
    return f"Tensor {tensor:4d} : buffer {buffer:4d} | {state:>6} | {_columns(graph, tensor)}"


def _later_tensor(graph: Graph, tensor: int) -> str:
    if tensor < 0:
        return f"{f'%{tensor}':5} : (OPTIONAL)"
    buffer = f"({_constant(graph, tensor) or 'Empty'})"
    return f"{f'%{tensor}':5} : buffer {buffer:25} | {_columns(graph, tensor)}"


def _columns(graph: Graph, index: int) -> str:
    tensor = graph.tensors[index]
    return (
        f"{tensor.dtype.upper():7} | Memory {memory_text(tensor.memory):6} | "
        f"Shape {list(tensor.shape) or 'Scalar'} ({shown(tensor.name)})"
    )


def _constant(graph: Graph, index: int) -> str:
    """The number of the buffer of a tensor and its values, or "..." if there are more than
    ``MOST_SHOWN``; "" if the tensor has no constant."""
    if not graph.filled(index):
        return ""
    tensor = graph.tensors[index]
    text = f"{'[' * len(tensor.shape)} ... {']' * len(tensor.shape)}"
    # a larger constant has more elements than are shown, because no element has more than 16 bytes
    if tensor.memory <= MOST_SHOWN * 16:
        try:
            values = graph.data(index)
        except ValueError:
            # the values are not known if the buffer does not fit the tensor: too many are assumed
            values = np.zeros(MOST_SHOWN + 1)
        if values.size <= MOST_SHOWN:
            text = re.sub(r"\n\s*", " ", np.array2string(values, precision=3, separator=", "))
    return f"{f'&{tensor.buffer}':5}: {text}"


def _memory(graph: Graph) -> list[str]:
    total, filled = 0, 0
    for index, tensor in enumerate(graph.tensors):
        total += tensor.memory
        if graph.filled(index):
            filled += tensor.memory
    return [
        f"Expected TOTAL  memory: {memory_text(total)}",
        f"Expected FILLED memory: {memory_text(filled)}",
    ]


def _fused_activation(operator: Operator) -> str:
    return numbered(ACTIVATIONS, operator.options.get("activation", 0))


def _options(operator: Operator) -> list[str]:
    """The options that a listing shows of an operator, as texts."""
    options, texts = operator.options, []
    if operator.name == "STRIDED_SLICE":
        return [f"{name}({options[name]})" for name in MASKS if name in options]
    if operator.name not in WINDOWS:
        return []
    for title, name in (("Filter", "kernel"), ("Stride", "stride"), ("Dilation", "dilation")):
        if f"{name}_w" in options:
            texts.append(f"{title} W:H = {options[f'{name}_w']}:{options[f'{name}_h']}")
    if "padding" in options:
        texts.append(f"Padding = {numbered(PADDINGS, options['padding']).upper()}")
    if "multiplier" in options:
        texts.append(f"DepthMultiplier = {options['multiplier']}")
    return texts


def _tensor_row(graph: Graph, index: int) -> dict[str, Any] | None:
    """A tensor as a dict, for ``rows``; None for an input that is left out."""
    if index < 0:
        return None
    tensor = graph.tensors[index]
    return {
        "tensor": index,
        "name": tensor.name,
        "type": tensor.dtype,
        "shape": list(tensor.shape),
        "memory": tensor.memory,
        "buffer": tensor.buffer,
        "filled": graph.filled(index),
        "scale": list(tensor.scale),
        "zero_point": list(tensor.zero_point),
        "axis": tensor.axis,
    }
