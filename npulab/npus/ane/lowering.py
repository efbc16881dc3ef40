"""From a layer to what a compiler would make of it for H13: task words, coefficients, tensors, the
compiled file.

One task takes a layer, for concatenation one task an input; what compilers split into several is
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from npulab.npus.ane import coefficients, tables
from npulab.npus.ane.facts import ENGINES, FACTS, USUAL_CHIP
from npulab.npus.ane.memory import HALF, Surface, pack
from npulab.npus.ane.tables import entries, functions
from npulab.npus.ane.words import (
    BYPASS,
    CONVOLUTION,
    HABITS,
    PLANAR,
    USUAL,
    Habits,
    Step,
    job_of,
    slots_of,
    words_in,
)
from npulab.npus.ane.writing import COEFFICIENT_ALIGN, PAGE, TEXT_AT, hwx_bytes
from npulab.npus.kit import WORD_BYTES, Capture, Unsupported, as_1x1, lowered, refuse_if, up
from npulab.quant.layers import (
    Activation,
    Concat,
    Conv2D,
    Elementwise,
    FullyConnected,
    Network,
    input_shapes,
)


@dataclass(frozen=True, eq=False, repr=False)
class TableActivation(Activation):
    """An activation whose ``outputs`` are those of a known activation table."""

    table: entries.Table | None = None


def table_of(layer: Activation, table: entries.Table | bytes | None = None) -> entries.Table:
    """The activation table that gives a layer's outputs: the one given, its own, or that of the
    function it names.

    Raises ValueError where there is none, or where it gives something else.
    """
    if isinstance(table, bytes | bytearray):
        table = entries.decode(bytes(table))
    table = table or getattr(layer, "table", None)
    if table is None and layer.name in functions.FITS:
        table = functions.fit(layer.name)
    if table is None:
        raise refused(
            f"name: got an activation {layer.name!r} without a table, allowed is a table, or one "
            "of "
            f"{', '.join(functions.FITS)}"
        )
    if not np.array_equal(tables.outputs(table), layer.outputs, equal_nan=True):
        raise refused(f"outputs: got others than those of {table!r}, allowed are the same")
    return table


def relu_outputs() -> np.ndarray:
    """The output ``(65536,) float16`` of ReLU for every input code: what is not above 0 gives +0,
    NaN stays."""
    codes = np.arange(2**16, dtype=np.uint16).view(np.float16)
    return np.where((codes > 0) | np.isnan(codes), codes, np.float16(0))


def activation(
    table: entries.Table, shape: tuple[int, int, int], prescale: float = 1.0
) -> TableActivation:
    """The layer of a table, named as the function whose table it is, else by its kind."""
    return TableActivation(shape, tables.outputs(table), name_of(table), prescale, table=table)


def name_of(table: entries.Table) -> str:
    """The function whose table has the same form and, within 2**-6, the same knots (or lines);
    "table" and its kind where there is none."""
    form = table.kind, table.symmetry, table.step_exponent
    near = [
        (_distance(table, one), name)
        for name, one in _fits().items()
        if (one.kind, one.symmetry, one.step_exponent) == form
    ]
    return min(
        (one for one in near if one[0] < 2.0**-6), default=(0.0, f"table {table.kind_name}")
    )[1]


@cache
def _fits() -> dict[str, entries.Table]:
    return {name: functions.fit(name) for name in functions.FITS}


def _distance(a: entries.Table, b: entries.Table) -> float:
    if a.step_exponent == entries.NO_STEP:
        if a == b:
            return 0.0
        return np.inf
    return float(np.abs(a.knots.astype(np.float64) - b.knots.astype(np.float64)).max(initial=0.0))


def refused(why: str) -> ValueError:
    return ValueError(f"lower for ane: {why}")


Planned = Conv2D | Elementwise | Activation | Concat
Single = Planned | FullyConnected
FIRST_BAR = 4  # 0 tasks, 1 coefficients, 2 and 3 what lies between tasks
FLOAT16 = 5  # element code of tensors
MOST_SIDE, MOST_CHANNELS = 2**15 - 1, 2**17 - 1  # Win, Cin
RELU, TABLE = 1, 2
PLANAR_OPS = {
    "add": 0,
    "subtract": 0,
    "multiply": 1,
    "maximum": 2,
    "minimum": 3,
    "abs": 0,
    "copy": 0,
}
ABS, SUBTRACT = 1, 3
ONE, MINUS_ONE = 0x3C00, 0xBC00
EXACT_KINDS = ("sqrt", "rsqrt", "inv", "log2")


@dataclass(frozen=True)
class Plan:
    """The tasks of a layer and the coefficients that they read."""

    steps: tuple[Step, ...]
    constants: bytes | None = None


def lower(
    layer: Single | Network,
    chip: str = USUAL_CHIP,
    x: Any = None,
    name: str = "lowered",
    compiler: str = USUAL,
    table: entries.Table | bytes | None = None,
    names: Sequence[str] = (),
) -> Capture:
    """What a compiler would make of a layer: jobs, words, coefficients, tensors, the compiled file
    and, with ``x``, the inputs.

    A ``Network`` of a convolution and an activation behind it is one task.  ``x`` is ``(H, W, C)
    float16``, a tuple of them for layers of several inputs.  ``compiler`` is one of
    ``steps.HABITS``: what versions do differently. ``table`` are the 128 bytes of an activation, by
    default those of the layer, or of the function that its name names.  ``names`` are those of the
    input tensors and the output. Raises ValueError naming what no file shows: quantized types,
    dilation, broadcasting, constants that are no fp16, more than one task takes, unknown chips and
    compilers.
    """
    refuse_if(chip != USUAL_CHIP, "chip", f"{chip!r}", f"is {USUAL_CHIP}", Unsupported)
    refuse_if(compiler not in HABITS, "compiler", f"{compiler!r}", f"is one of {', '.join(HABITS)}")
    after = None
    if isinstance(layer, Network):
        layer, after = fused(layer)
    if isinstance(layer, FullyConnected):
        layer = as_convolution(layer)
    if not isinstance(layer, Planned) or layer.dtype != "float16":
        raise refused(
            f"got {layer!r}, allowed is a Conv2D, FullyConnected, Elementwise, Activation or "
            "Concat of "
            "float16"
        )
    habits = HABITS[compiler]
    shapes = [_surface(shape) for shape in input_shapes(layer)]
    names = names_of(layer, names)
    bars = _bars(names, habits)
    plan = planned(layer, shapes, bars, habits, table, after)
    slots = slots_of(plan.steps, habits)
    jobs = tuple(
        job_of(step, chip, habits, number, len(plan.steps), slots)
        for number, step in enumerate(plan.steps)
    )
    surfaces = [*shapes, _surface(layer.output_shape)]
    where, tensors = _placed(plan, slots, names, bars, surfaces, habits)
    buffers: dict[str, bytes]
    if plan.constants is None:
        buffers = {}
    else:
        buffers = {"coefficients": plan.constants}
    if x is not None:
        buffers |= {f"input{i or ''}": pack(one) for i, one in enumerate(_inputs(layer, x))}
    function = {}
    if after:
        function = {"function": after.name}
    capture = lowered(
        FACTS,
        name,
        chip,
        jobs,
        buffers,
        where,
        {**layer.parameters, **function, "compiler": compiler, "tensors": tensors},
    )
    return replace(capture, buffers={**buffers, "hwx": hwx_bytes(capture)})


def names_of(layer: Single, names: Sequence[str]) -> tuple[str, ...]:
    """The names of a layer's inputs and output: those asked for, or ``input``, ``input1``, ...,
    ``output``; ValueError for names that are alike, empty or not as many as the tensors."""
    count = len(input_shapes(layer))
    names = tuple(names) or (*(f"input{i or ''}" for i in range(count)), "output")
    if len({*names}) != count + 1 or not all(names):
        raise ValueError(
            f"names: got {names}, allowed are {count + 1} different ones, the output's last"
        )
    return names


def planned(
    layer: Planned,
    shapes: Sequence[Surface],
    bars: Sequence[int],
    habits: Habits,
    table: entries.Table | bytes | None = None,
    after: Activation | None = None,
) -> Plan:
    """The tasks of a layer; ``bars`` are the numbers of the base addresses of its inputs and, last,
    of its output.

    ``after`` is the activation of a convolution that it has a table for.
    """
    if isinstance(layer, Conv2D):
        return _convolution(
            layer, shapes[0], bars, habits, None if after is None else table_of(after, table)
        )
    if isinstance(layer, Activation):
        return _activation(layer, shapes[0], bars, table)
    if isinstance(layer, Elementwise):
        return _elementwise(layer, shapes, bars, habits)
    return _concat(layer, shapes, bars)


def fused(layer: Network) -> tuple[Conv2D, Activation | None]:
    """The convolution and the activation behind it that one task takes together; ValueError for
    other networks."""
    first, *rest = layer.layers
    if (
        not isinstance(first, Conv2D)
        or first.activation
        or len(rest) != 1
        or not isinstance(rest[0], Activation)
        or layer.inputs != ((-1,), (0,))
        or np.ndim(rest[0].prescale)
        or rest[0].prescale != 1
    ):
        raise refused(
            f"got {layer!r}, allowed are a Conv2D without activation and, behind it, an Activation "
            "without "
            "prescale; how compilers link tasks is not known"
        )
    if np.array_equal(rest[0].outputs, relu_outputs(), equal_nan=True):
        return replace(first, activation="relu"), None
    return first, rest[0]


def as_convolution(layer: FullyConnected) -> Conv2D:
    """The 1x1 convolution that a fully connected layer is; ValueError for quantized ones."""
    if layer.dtype != "float16":
        raise refused(f"got {layer!r}, allowed is float16")
    return as_1x1(layer)


def _convolution(
    layer: Conv2D, source: Surface, bars: Sequence[int], habits: Habits, table: entries.Table | None
) -> Plan:
    (top, _), (left, _) = layer.pads
    if layer.activation not in (None, "relu"):
        raise refused(f"activation: got {layer.activation!r}, allowed is None or 'relu'")
    if layer.stride not in ((1, 1), (2, 2)):
        raise refused(f"stride: got {layer.stride}, allowed is (1, 1) or (2, 2)")
    if 1 < layer.groups == layer.input_shape[2] == layer.output_shape[2]:
        layer = replace(
            layer, weights=layer.weights.transpose(3, 1, 2, 0), depthwise=True, groups=1
        )
    if layer.groups > 1 and not habits.groups:
        raise refused(f"groups: got {layer.groups}, allowed is 1 for a compiler that is not 9.x")
    if any(max(border) >= taps for border, taps in zip(layer.pads, layer.kernel, strict=True)):
        raise refused(
            f"padding: got {layer.padding}, allowed is less than the kernel of {layer.kernel}"
        )
    if layer.depthwise and layer.input_shape[2] == 1:
        layer = replace(layer, weights=layer.weights.transpose(3, 1, 2, 0), depthwise=False)
    kernel = coefficients.kernel_of(layer)
    kernel = replace(kernel, groups=max(kernel.groups, layer.groups), table=table is not None)
    data = coefficients.encode(
        kernel,
        layer.weights,
        layer.bias if kernel.bias else None,
        b"" if table is None else table.encode(),
    )
    engines = coefficients.engines(kernel, layer.weights)
    return Plan(
        (
            Step(
                CONVOLUTION,
                (source,),
                tuple(bars[:1]),
                _surface(layer.output_shape),
                bars[-1],
                kernel=kernel,
                pads=(top, left),
                engines=tuple((int(at), int(size)) for at, size in engines),
                unicast=layer.depthwise,
                fields={
                    "NE.MACCfg.BiasMode": int(kernel.bias),
                    "NE.MACCfg.NonlinearMode": TABLE
                    if table is not None
                    else RELU
                    if layer.activation
                    else 0,
                },
            ),
        ),
        data,
    )


def _activation(
    layer: Activation, source: Surface, bars: Sequence[int], table: entries.Table | bytes | None
) -> Plan:
    step = Step(BYPASS, (source,), tuple(bars[:1]), source, bars[-1], unicast=True)
    prescale = _half("prescale", layer.prescale)
    fields = {}
    if prescale != ONE:
        fields = {"NE.PostScale.PostScale": prescale}
    if table is None and np.array_equal(layer.outputs, relu_outputs(), equal_nan=True):
        return Plan((replace(step, fields={**fields, "NE.MACCfg.NonlinearMode": RELU}),))
    found = table_of(layer, table)
    data = found.encode()
    engines = min(ENGINES, source.channels)
    return Plan(
        (
            replace(
                step,
                engines=((0, len(data)),) * engines,
                table=True,
                exact=found.kind_name in EXACT_KINDS,
                fields={**fields, "NE.MACCfg.NonlinearMode": TABLE},
            ),
        ),
        data.ljust(engines * len(data), b"\0"),
    )


def _elementwise(
    layer: Elementwise, shapes: Sequence[Surface], bars: Sequence[int], habits: Habits
) -> Plan:
    if any(one != shapes[0] for one in shapes):
        raise refused(
            f"other_shape: got {layer.other_shape}, allowed is {layer.input_shape}; broadcasting "
            "takes "
            "tasks of which no file is known"
        )
    if layer.activation:
        raise refused(f"activation: got {layer.activation!r} of {layer!r}, allowed is None")
    prescale = _half("prescale", layer.prescale)
    fields = {
        "PE.Cfg.OpMode": PLANAR_OPS[layer.kind],
        "PE.Cfg.Cond": ABS * (layer.kind == "abs"),
        "PE.BiasScale.Scale": _half("scale", layer.scale),
        "PE.BiasScale.Bias": _half("bias", layer.bias),
    }
    sources = tuple(bars[:-1])
    if layer.kind == "abs" and prescale != ONE:
        raise refused(
            f"prescale: got {layer.prescale} with abs, allowed is 1; which comes first is not known"
        )
    if layer.kind == "subtract" and habits.subtracts:
        fields["PE.Cfg.SecSrc"] = SUBTRACT
    elif layer.kind == "subtract":
        refuse_if(
            prescale != ONE,
            "prescale",
            f"{layer.prescale} with subtract",
            "is 1 for a compiler that subtracts by it",
            refused,
        )
        prescale, sources = MINUS_ONE, sources[::-1]
    fields["PE.PreScale.PreScale"] = prescale
    return Plan((Step(PLANAR, tuple(shapes), sources, shapes[0], bars[-1], fields=fields),))


def _concat(layer: Concat, shapes: Sequence[Surface], bars: Sequence[int]) -> Plan:
    refuse_if(layer.axis != 2, "axis", layer.axis, "is 2 (channels)", refused)
    whole, steps, offset = _surface(layer.output_shape), [], 0
    for source, bar in zip(shapes, bars[:-1], strict=True):
        steps.append(Step(BYPASS, (source,), (bar,), source, bars[-1], offset, whole, unicast=True))
        offset += source.bytes
    return Plan(tuple(steps))


def _bars(names: Sequence[str], habits: Habits) -> tuple[int, ...]:
    """The number of the base address of each tensor."""
    if habits.sorted_names:
        return tuple(FIRST_BAR + sorted(names).index(name) for name in names)
    inputs = range(FIRST_BAR + 1, FIRST_BAR + len(names))
    return *(reversed(inputs) if habits.reversed_inputs else inputs), FIRST_BAR


def _placed(
    plan: Plan,
    slots: Sequence[int],
    names: Sequence[str],
    bars: Sequence[int],
    surfaces: Sequence[Surface],
    habits: Habits,
) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Addresses by name, and the tensors as the importer states them."""
    size = slots[-2] + WORD_BYTES * words_in(plan.steps[-1], habits)
    constants = TEXT_AT + up(size, COEFFICIENT_ALIGN)
    where = {"text": TEXT_AT} | ({} if plan.constants is None else {"coefficients": constants})
    at = up(constants + len(plan.constants or bytes(PAGE)), PAGE)
    inputs = sorted(zip(bars[:-1], names[:-1], surfaces[:-1], strict=True))
    for _, name, surface in (*inputs, (bars[-1], names[-1], surfaces[-1])):
        where[name] = at
        at += up(surface.bytes, PAGE)
    tensors = [
        {
            "name": name,
            "kind": "output" if i == len(names) - 1 else "input",
            "bar": bar,
            "element": FLOAT16,
            "n": 1,
            "c": one.channels,
            "h": one.height,
            "w": one.width,
            "d": 1,
            "strides": {
                "batch": one.bytes,
                "channel": one.plane,
                "row": one.row,
                "column": HALF,
                "depth": one.bytes,
            },
            "interleave": 1,
            "span": one.span if i == len(names) - 1 else one.bytes,
        }
        for i, (name, bar, one) in enumerate(zip(names, bars, surfaces, strict=True))
    ]
    return where, tensors


def _inputs(layer: Single, x: Any) -> list[np.ndarray]:
    """The input tensors; ValueError where they are not what the layer takes."""
    shapes = input_shapes(layer)
    given = [
        np.asarray(one) for one in (x if isinstance(x, tuple | list) and len(shapes) > 1 else [x])
    ]
    if [one.shape for one in given] != [*shapes] or any(one.dtype != np.float16 for one in given):
        kinds = " and ".join(f"{one.shape} {one.dtype}" for one in given)
        raise ValueError(f"x: got {kinds}, allowed is {' and '.join(map(str, shapes))} of float16")
    return given


def _surface(shape: tuple[int, ...]) -> Surface:
    if len(shape) != 3 or max(shape[:2]) > MOST_SIDE or shape[2] > MOST_CHANNELS:
        raise refused(
            f"input_shape: got {shape}, allowed is (H, W, C) up to {MOST_SIDE} x {MOST_SIDE} x "
            f"{MOST_CHANNELS}"
        )
    return Surface(*shape)


def _half(name: str, value: Any) -> int:
    """The bits of a constant that is an fp16 number."""
    refuse_if(np.ndim(value), name, "one for each channel", "is one number", refused)
    with np.errstate(over="ignore"):
        half = np.float16(value)
    if float(half) != float(value):
        raise refused(f"{name}: got {value}, allowed is an fp16 number such as {float(half)}")
    return int(half.view(np.uint16))
