"""Graphs as text and as rows: operators with their tensors, counts, memory."""

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
MOST_SHOWN = 4  # elements of a constant that the later form prints
TAB = " " * 8
WINDOWS = ("CONV_2D", "DEPTHWISE_CONV_2D", "AVERAGE_POOL_2D", "MAX_POOL_2D")
MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


def listed(graph: Graph, form: str) -> str:
    """The listing of every graph of a file."""
    if form not in LISTINGS:
        raise ValueError(f"form: got {form!r}, allowed is {' or '.join(LISTINGS)}")
    lines: list[str] = []
    for number, one in enumerate(graph.graphs):
        title = f"#{number} {shown(one.name)}{' (MAIN)' * (number == 0)}"
        if form == "later" or graph.others:
            lines += [f"[{title}]", ""]
        if form == "later":
            lines += _later(one, title)
        else:
            lines += _earlier(one)
        if number < len(graph.others):
            lines += [""]
    return "\n".join(lines)


def rows(graph: Graph) -> list[dict[str, Any]]:
    """What the listing has, a dict for each operator."""
    return [
        {
            "index": index,
            "name": one.name,
            "graph": number,
            "fused_activation": _activation(one),
            "options": dict(one.options),
            **{
                side: [_tensor(each, tensor) for tensor in tensors]
                for side, tensors in (("inputs", one.inputs), ("outputs", one.outputs))
            },
        }
        for number, each in enumerate(graph.graphs)
        for index, one in enumerate(each.operators)
    ]


def operators(graph: Graph) -> list[dict[str, Any]]:
    """What goes into each operator and comes out: graph (where there are several), operator, name,
    input, output, and the bytes of its constants."""
    rows = []
    for number, each in enumerate(graph.graphs):
        filled = [bool(each.buffers[tensor.buffer]) for tensor in each.tensors]
        for index, operator in enumerate(each.operators):
            inputs = [tensor for tensor in operator.inputs if tensor >= 0]
            rows.append(
                {
                    "graph": number,
                    "operator": index,
                    "name": shown(operator.name),
                    "input": ", ".join(
                        _shape(each, tensor) for tensor in inputs if not filled[tensor]
                    ),
                    "output": ", ".join(_shape(each, tensor) for tensor in operator.outputs),
                    "constants": sum(
                        each.tensors[tensor].memory for tensor in inputs if filled[tensor]
                    ),
                }
            )
    return rows


def _shape(graph: Graph, tensor: int) -> str:
    """A tensor's sizes and type.

    >>> from npulab.models.graph import Graph, Tensor
    >>> _shape(Graph((Tensor("a", (1, 4, 4, 3), "int8"), Tensor("b", (), "float32")), ()), 0)
    '1x4x4x3 int8'
    """
    one = graph.tensors[tensor]
    return f"{'x'.join(map(str, one.shape)) or 'scalar'} {one.dtype}"


def quantization(graph: Graph) -> Iterator[str]:
    """Scale and zero point of every tensor that has them."""
    for number, each in enumerate(graph.graphs):
        for tensor, one in enumerate(each.tensors):
            if one.scale:
                scales, zeros = (
                    f"{min(values):.9g}" + f" to {max(values):.9g}" * (min(values) != max(values))
                    for values in (one.scale, one.zero_point or (0,))
                )
                axis = ""
                if len(one.scale) > 1:
                    axis = f", {len(one.scale)} on axis {one.axis}"
                of = ""
                if graph.others:
                    of = f"Graph {number} "
                yield f"{of}Tensor {tensor:4d} : scale {scales}{axis} | zero point {zeros} ({shown(one.name)})"


def memory_text(size: int) -> str:
    """Bytes with a unit of 1024s and one decimal.

    >>> memory_text(384), memory_text(16000)
    ('384.0B', '15.6K')
    """
    power = min(max(size.bit_length() - 1, 0) // 10, 4)
    return f"{size / 1024**power:.1f}{'BKMGT'[power]}"


def numbered(names: Sequence[str], number: int) -> str:
    """The name of a number, or the number where it has none."""
    if 0 <= number < len(names):
        return names[number]
    return str(number)


def shown(name: str) -> str:
    """A name on one line, its control characters as a Python text has them.

    >>> print(shown("a/b"), shown("a\\nb"))
    a/b a\\nb
    """
    if name.isprintable():
        return name
    return name.encode("unicode_escape").decode()


def _operators(
    graph: Graph, head: str, tab: str, name: str, described: Callable[[Graph, int], str]
) -> list[str]:
    """The operators of a graph with their tensors, by the words of a listing."""
    lines = []
    for number, one in enumerate(graph.operators):
        lines += [
            head.format(number, shown(one.name)),
            f"{tab}Fused Activation: {_activation(one)}",
        ]
        for side, tensors in (("Input", one.inputs), ("Output", one.outputs)):
            lines += [
                f"{tab}{side} Tensors[{', '.join(map(name.format, tensors))}]",
                *(f"{tab}{tab}{described(graph, tensor)}" for tensor in tensors),
            ]
        lines += [*_options(one, tab), ""]
    return lines


def _earlier(graph: Graph) -> list[str]:
    lines = _operators(graph, "Operator {}: {}", TAB, "{}", _earlier_tensor)
    counts = Counter(shown(one.name) for one in graph.operators)
    return [
        *lines,
        f"Number of all operator types: {len(counts)}",
        *(f"{TAB}{name:38}: {count:4}" for name, count in sorted(counts.items())),
        f"{'Number of all operators':46}: {len(graph.operators):4}",
        "",
        *_memory(graph),
    ]


def _earlier_tensor(graph: Graph, tensor: int) -> str:
    if tensor < 0:
        return f"Tensor {tensor:4d}"
    one = graph.tensors[tensor]
    if graph.buffers[one.buffer]:
        state = "Filled"
    else:
        state = "Empty"
    return f"Tensor {tensor:4d} : buffer {one.buffer:4d} | {state:>6} | {_columns(graph, tensor)}"


def _later(graph: Graph, title: str) -> list[str]:
    lines = []
    for side, tensors in (("input", graph.inputs), ("output", graph.outputs)):
        lines += [
            f"{title} {side} tensors: {list(tensors)}",
            *(f"    {_later_tensor(graph, tensor)}" for tensor in tensors),
        ]
    lines += ["", *_operators(graph, "#{} {}", "  ", "%{}", _later_tensor)]
    counts = Counter(shown(one.name) for one in graph.operators)
    return [
        *lines,
        f"{'Number of all operator types':38}: {len(counts):4}",
        *(f"{f'  {name}':38}: {count:4}" for name, count in sorted(counts.items())),
        f"{'Number of all operators':38}: {len(graph.operators):4}",
        "",
        *_memory(graph),
    ]


def _later_tensor(graph: Graph, tensor: int) -> str:
    if tensor < 0:
        return f"{f'%{tensor}':5} : (OPTIONAL)"
    buffer = f"({_constant(graph, tensor) or 'Empty'})"
    return f"{f'%{tensor}':5} : buffer {buffer:25} | {_columns(graph, tensor)}"


def _columns(graph: Graph, tensor: int) -> str:
    one = graph.tensors[tensor]
    return (
        f"{one.dtype.upper():7} | Memory {memory_text(one.memory):6} | Shape "
        f"{list(one.shape) or 'Scalar'} "
        f"({shown(one.name)})"
    )


def _constant(graph: Graph, tensor: int) -> str:
    """The number of a tensor's buffer and what that holds, where it is little; nothing where it
    holds nothing."""
    one = graph.tensors[tensor]
    if not graph.buffers[one.buffer]:
        return ""
    text = f"{'[' * len(one.shape)} ... {']' * len(one.shape)}"
    if one.memory <= MOST_SHOWN * 16:  # bytes of the widest type
        try:
            values = graph.data(tensor)
        except ValueError:  # another size than that of its type: what it holds is not known
            values = np.zeros(MOST_SHOWN + 1)
        if values.size <= MOST_SHOWN:
            text = re.sub(r"\n\s*", " ", np.array2string(values, precision=3, separator=", "))
    return f"{f'&{one.buffer}':5}: {text}"


def _memory(graph: Graph) -> list[str]:
    filled = sum(one.memory for one in graph.tensors if graph.buffers[one.buffer])
    return [
        f"Expected TOTAL  memory: {memory_text(sum(one.memory for one in graph.tensors))}",
        f"Expected FILLED memory: {memory_text(filled)}",
    ]


def _activation(one: Operator) -> str:
    return numbered(ACTIVATIONS, one.options.get("activation", 0))


def _options(one: Operator, indent: str) -> list[str]:
    options, texts = one.options, []
    if one.name in WINDOWS:
        texts = [
            f"{title} W:H = {options[f'{name}_w']}:{options[f'{name}_h']}"
            for title, name in (
                ("Filter", "kernel"),
                ("Stride", "stride"),
                ("Dilation", "dilation"),
            )
            if f"{name}_w" in options
        ]
        if "padding" in options:
            texts.append(f"Padding = {numbered(PADDINGS, options['padding']).upper()}")
        if "multiplier" in options:
            texts.append(f"DepthMultiplier = {options['multiplier']}")
    elif one.name == "STRIDED_SLICE":
        texts = [f"{name}({options[name]})" for name in MASKS if name in options]
    if texts:
        return [f"{indent}Options", f"{indent}{indent}{', '.join(texts)}"]
    return []


def _tensor(graph: Graph, tensor: int) -> dict[str, Any] | None:
    if tensor < 0:
        return None
    one = graph.tensors[tensor]
    return {
        "tensor": tensor,
        "name": one.name,
        "type": one.dtype,
        "shape": list(one.shape),
        "memory": one.memory,
        "buffer": one.buffer,
        "filled": bool(graph.buffers[one.buffer]),
        "scale": list(one.scale),
        "zero_point": list(one.zero_point),
        "axis": one.axis,
    }
