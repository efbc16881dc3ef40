"""Lowering: from a layer to the capture that a compiler for H13 would give.

The capture has task words, coefficients, tensors and the compiled file. A layer takes one task, a
concatenation one task for each input. Layers that compilers split into several tasks are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from npulab.npus.ane import coefficients, tables
from npulab.npus.ane.facts import ENGINES, FACTS, USUAL_CHIP
from npulab.npus.ane.hwx import STRIDES
from npulab.npus.ane.memory import HALF, Surface, pack
from npulab.npus.ane.tables import entries, functions
from npulab.npus.ane.words import (
    BYPASS,
    CONVOLUTION,
    HABITS,
    PLANAR,
    USUAL,
    Habits,
    TaskStep,
    job_of,
    slots_of,
    words_in,
)
from npulab.npus.ane.writing import COEFFICIENT_ALIGN, PAGE, TEXT_AT, hwx_bytes
from npulab.npus.kit import WORD_BYTES, Capture, Unsupported, as_1x1, lowered, refuse_if, up
from npulab.npus.kit.layers import as_dense, stepped, undilated
from npulab.quant.layers import (
    Activation,
    Add,
    Concat,
    Conv2D,
    Elementwise,
    FullyConnected,
    Network,
    input_shapes,
)


@dataclass(frozen=True, eq=False, repr=False)
class TableActivation(Activation):
    """An activation layer with the activation table that computes its ``outputs``."""

    table: entries.Table | None = None


def table_of(layer: Activation, table: GivenTable = None) -> entries.Table:
    """Return the activation table of a layer.

    It is the given ``table``, else the table of a ``TableActivation``, else the table of the
    function that has the layer's name. Raises ValueError if there is no table, or if the table
    computes other outputs than the layer has.
    """
    if isinstance(table, bytes | bytearray):
        table = entries.decode(bytes(table))
    table = table or getattr(layer, "table", None)
    if table is None and layer.name in functions.FITS:
        table = functions.fit(layer.name)
    if table is None:
        raise refused(
            f"name: got an activation {layer.name!r} without a table, "
            f"allowed is a table, or one of {', '.join(functions.FITS)}"
        )
    if not np.array_equal(tables.outputs(table), layer.outputs, equal_nan=True):
        raise refused(f"outputs: got outputs that {table!r} does not give, allowed are its outputs")
    return table


def relu_outputs() -> np.ndarray:
    """Return the outputs ``(65536,) float16`` of ReLU, by the 16 bits of the input.

    An input that is not above 0 gives +0, NaN gives NaN.
    """
    codes = np.arange(2**16, dtype=np.uint16).view(np.float16)
    return np.where((codes > 0) | np.isnan(codes), codes, np.float16(0))


def activation(
    table: entries.Table, shape: tuple[int, int, int], prescale: float = 1.0
) -> TableActivation:
    """Return the activation layer of a table; ``name_of`` gives its name."""
    return TableActivation(shape, tables.outputs(table), name_of(table), prescale, table=table)


def name_of(table: entries.Table) -> str:
    """Return the name of the function in ``functions.FITS`` whose table is nearest to ``table``. If
    no function's table is near, the name is "table" and the kind.

    A table is near if it has the same kind, symmetry and step, and if its knots differ by less than
    2**-6; a table without knots has to be equal.
    """
    near, best = 2.0**-6, f"table {table.kind_name}"
    for name, known in _fits().items():
        distance = _distance(table, known)
        if distance < near:
            near, best = distance, name
    return best


@cache
def _fits() -> dict[str, entries.Table]:
    return {name: functions.fit(name) for name in functions.FITS}


def _distance(a: entries.Table, b: entries.Table) -> float:
    """Return the largest difference between the knots of two tables.

    It is infinite if kind, symmetry or step differ, and for different tables without knots.
    """
    if (a.kind, a.symmetry, a.step_exponent) != (b.kind, b.symmetry, b.step_exponent):
        return np.inf
    if a.step_exponent == entries.NO_STEP:
        return 0.0 if a == b else np.inf
    return float(np.abs(a.knots.astype(np.float64) - b.knots.astype(np.float64)).max(initial=0.0))


def refused(why: str) -> ValueError:
    return ValueError(f"lower for ane: {why}")


Planned = Conv2D | Elementwise | Activation | Concat
Single = Planned | FullyConnected
# Numbers of base addresses: 0 is the tasks, 1 the coefficients, 2 and 3 results between tasks;
# tensors begin here.
FIRST_BAR = 4
# The code of float16 as a tensor's element type.
FLOAT16 = 5
# The largest values of the fields Win and Cin.
MOST_SIDE, MOST_CHANNELS = 2**15 - 1, 2**17 - 1
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
# The number of the base address of each tensor.
Bars = Sequence[int]
Surfaces = Sequence[Surface]
# An activation table, or its 128 bytes.
GivenTable = entries.Table | bytes | None


@dataclass(frozen=True)
class Plan:
    """The tasks (``steps``) of a layer and the coefficients (``constants``) that they read."""

    steps: tuple[TaskStep, ...]
    constants: bytes | None = None


def lower(
    layer: Single | Network,
    chip: str = USUAL_CHIP,
    x: Any = None,
    name: str = "lowered",
    compiler: str = USUAL,
    table: GivenTable = None,
    names: Sequence[str] = (),
) -> Capture:
    """Return the capture that a compiler would give for a layer, with the compiled file.

    A ``Network`` of a convolution and an activation after it becomes one task. ``x`` is the input
    ``(H, W, C) float16``, a tuple for a layer of several inputs. ``compiler`` is a version in
    ``words.HABITS``. ``table`` is the activation table or its 128 bytes, by default the layer's
    own, else the table of the function with its name. ``names`` are the names of the input tensors,
    then that of the output.

    Raises ``Unsupported`` for a chip other than h13. Raises ValueError, with the property, for an
    unknown compiler, wrong inputs or names, and for layers of which no compiled file is known:
    quantized types, broadcasting, constants that are not fp16, more work than one task takes.
    """
    refuse_if(chip != USUAL_CHIP, "chip", f"{chip!r}", f"is {USUAL_CHIP}", Unsupported)
    refuse_if(compiler not in HABITS, "compiler", f"{compiler!r}", f"is one of {', '.join(HABITS)}")
    after = None
    if isinstance(layer, Network):
        layer, after = fused(layer)
    if isinstance(layer, FullyConnected):
        layer = as_convolution(layer)
    if isinstance(layer, Add) and layer.dtype == "float16":
        shape = layer.input_shape
        layer = Elementwise("add", shape, shape, activation=layer.activation)
    if not isinstance(layer, Planned) or layer.dtype != "float16":
        raise refused(
            f"got {layer!r}, "
            "allowed is a Conv2D, FullyConnected, Elementwise, Activation or Concat of float16"
        )
    habits = HABITS[compiler]
    shapes = [_surface(shape) for shape in input_shapes(layer)]
    names = names_of(layer, names)
    bars = _bars(names, habits)
    plan = planned(layer, shapes, bars, habits, table, after)
    slots = slots_of(plan.steps, habits)
    jobs = []
    for number, step in enumerate(plan.steps):
        jobs.append(job_of(step, chip, habits, number, len(plan.steps), slots))
    surfaces = [*shapes, _surface(layer.output_shape)]
    where = _addresses(plan, slots, names, bars, surfaces, habits)
    buffers = {}
    if plan.constants is not None:
        buffers["coefficients"] = plan.constants
    if x is not None:
        for number, tensor in enumerate(_inputs(layer, x)):
            buffers[f"input{number or ''}"] = pack(tensor)
    parameters = dict(layer.parameters)
    if after:
        parameters["function"] = after.name
    parameters |= {"compiler": compiler, "tensors": _tensors(names, bars, surfaces)}
    capture = lowered(FACTS, name, chip, jobs, (buffers, where), parameters)
    return replace(capture, buffers={**buffers, "hwx": hwx_bytes(capture)})


def names_of(layer: Single, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a layer's inputs, then of its output.

    Without ``names`` they are ``input``, ``input1``, ..., ``output``. Raises ValueError for equal
    or empty names, and for another number of names than tensors.
    """
    count = len(input_shapes(layer))
    if not names:
        names = [*(f"input{number or ''}" for number in range(count)), "output"]
    names = tuple(names)
    if len({*names}) != count + 1 or not all(names):
        raise ValueError(
            f"names: got {names}, allowed are {count + 1} different names, the output's last"
        )
    return names


def planned(
    layer: Planned,
    shapes: Surfaces,
    bars: Bars,
    habits: Habits,
    table: GivenTable,
    after: Activation | None,
) -> Plan:
    """Return the tasks of a layer, with their coefficients.

    ``shapes`` are the sizes of its inputs, ``bars`` the numbers of the base addresses of inputs and
    output. ``after`` is an activation that the task of a convolution applies with a table.
    """
    if isinstance(layer, Conv2D):
        of_after = None
        if after is not None:
            of_after = table_of(after, table)
        return _convolution(layer, shapes[0], bars, habits, of_after)
    if isinstance(layer, Activation):
        return _activation(layer, shapes[0], bars, table)
    if isinstance(layer, Elementwise):
        return _elementwise(layer, shapes, bars, habits)
    return _concat(layer, shapes, bars)


def fused(layer: Network) -> tuple[Conv2D, Activation | None]:
    """Return the convolution and the activation of a network that fits into one task.

    ReLU becomes the convolution's own activation, and the second value is None. Raises ValueError
    for a network that is not a convolution and an activation after it.
    """
    first, after = layer.layers[0], layer.layers[-1]
    if (
        layer.inputs != ((-1,), (0,))
        or not isinstance(first, Conv2D)
        or first.activation
        or not isinstance(after, Activation)
        or np.ndim(after.prescale)
        or after.prescale != 1
    ):
        raise refused(
            f"got {layer!r}, allowed are a Conv2D without activation and, after it, an Activation "
            "without prescale; how compilers link tasks of other networks is not known"
        )
    if _is_relu(after):
        return replace(first, activation="relu"), None
    return first, after


def _is_relu(layer: Activation) -> bool:
    return np.array_equal(layer.outputs, relu_outputs(), equal_nan=True)


def as_convolution(layer: FullyConnected) -> Conv2D:
    """Return a fully connected layer as a 1x1 convolution; raise ValueError unless it is
    float16."""
    if layer.dtype != "float16":
        raise refused(f"got {layer!r}, allowed is a layer of float16")
    return as_1x1(layer)


def _convolution(
    layer: Conv2D,
    source: Surface,
    bars: Bars,
    habits: Habits,
    table: entries.Table | None,
) -> Plan:
    if layer.activation not in (None, "relu"):
        raise refused(f"activation: got {layer.activation!r}, allowed is None or 'relu'")
    layer = stepped(undilated(layer), ((1, 1), (2, 2)))
    if layer.stride not in ((1, 1), (2, 2)):
        raise refused(f"stride: got {layer.stride}, allowed is (1, 1) or (2, 2)")
    if 1 < layer.groups == layer.input_shape[2] == layer.output_shape[2]:
        layer = replace(
            layer, weights=layer.weights.transpose(3, 1, 2, 0), depthwise=True, groups=1
        )
    if layer.groups > 1 and not habits.groups:
        raise refused(f"groups: got {layer.groups}, allowed is 1 for a compiler that is not 9.x")
    if np.any(np.max(layer.pads, 1) >= layer.kernel):
        raise refused(
            f"padding: got {layer.padding}, allowed is less than the kernel of {layer.kernel}"
        )
    layer = as_dense(layer)
    mode, table_bytes = 0, b""
    if layer.activation:
        mode = RELU
    if table is not None:
        mode, table_bytes = TABLE, table.encode()
    kernel = coefficients.kernel_of(layer)
    kernel = replace(kernel, groups=max(kernel.groups, layer.groups), table=table is not None)
    bias = layer.bias if kernel.bias else None
    data = coefficients.encode(kernel, layer.weights, bias, table_bytes)
    engines = coefficients.engines(kernel, layer.weights)
    (top, _), (left, _) = layer.pads
    step = TaskStep(
        CONVOLUTION,
        (source,),
        tuple(bars[:1]),
        _surface(layer.output_shape),
        bars[-1],
        kernel=kernel,
        pads=(top, left),
        engines=tuple(map(tuple, engines.tolist())),
        unicast=layer.depthwise,
        fields={"NE.MACCfg.BiasMode": int(kernel.bias), "NE.MACCfg.NonlinearMode": mode},
    )
    return Plan((step,), data)


def _activation(layer: Activation, source: Surface, bars: Bars, table: GivenTable) -> Plan:
    step = TaskStep(BYPASS, (source,), tuple(bars[:1]), source, bars[-1], unicast=True)
    prescale = _half("prescale", layer.prescale)
    fields = {"NE.MACCfg.NonlinearMode": TABLE}
    if prescale != ONE:
        fields["NE.PostScale.PostScale"] = prescale
    if table is None and _is_relu(layer):
        fields["NE.MACCfg.NonlinearMode"] = RELU
        return Plan((replace(step, fields=fields),))
    found = table_of(layer, table)
    data = found.encode()
    engines = min(ENGINES, source.channels)
    step = replace(
        step,
        # Every engine reads the same table, at offset 0.
        engines=((0, len(data)),) * engines,
        table=True,
        exact=found.kind_name in EXACT_KINDS,
        fields=fields,
    )
    return Plan((step,), data.ljust(engines * len(data), b"\0"))


def _elementwise(layer: Elementwise, shapes: Surfaces, bars: Bars, habits: Habits) -> Plan:
    if any(shape != shapes[0] for shape in shapes):
        raise refused(
            f"other_shape: got {layer.other_shape}, allowed is {layer.input_shape}; "
            "broadcasting takes tasks of which no file is known"
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
    return Plan((TaskStep(PLANAR, tuple(shapes), sources, shapes[0], bars[-1], fields=fields),))


def _concat(layer: Concat, shapes: Surfaces, bars: Bars) -> Plan:
    refuse_if(layer.axis != 2, "axis", layer.axis, "is 2 (channels)", refused)
    whole, steps, offset = _surface(layer.output_shape), [], 0
    for source, bar in zip(shapes, bars[:-1], strict=True):
        steps.append(
            TaskStep(BYPASS, (source,), (bar,), source, bars[-1], offset, whole, unicast=True)
        )
        offset += source.bytes
    return Plan(tuple(steps))


def _bars(names: Sequence[str], habits: Habits) -> tuple[int, ...]:
    """Return the number of the base address of each tensor, as the compiler numbers them.

    ``names`` are the names of the inputs, then of the output.
    """
    if habits.sorted_names:
        in_order = sorted(names)
        return tuple(FIRST_BAR + in_order.index(name) for name in names)
    inputs = range(FIRST_BAR + 1, FIRST_BAR + len(names))
    if habits.reversed_inputs:
        inputs = inputs[::-1]
    return *inputs, FIRST_BAR


def _addresses(
    plan: Plan,
    slots: Bars,
    names: Sequence[str],
    bars: Bars,
    surfaces: Surfaces,
    habits: Habits,
) -> dict[str, int]:
    """Return the addresses by name: ``text`` (the tasks), ``coefficients``, and each tensor.

    Inputs follow each other in the order of their base addresses; the output is the last.
    """
    size = slots[-2] + WORD_BYTES * words_in(plan.steps[-1], habits)
    constants = TEXT_AT + up(size, COEFFICIENT_ALIGN)
    where = {"text": TEXT_AT}
    if plan.constants is not None:
        where["coefficients"] = constants
    at = up(constants + len(plan.constants or bytes(PAGE)), PAGE)
    inputs = sorted(zip(bars[:-1], names[:-1], surfaces[:-1], strict=True))
    for _, name, surface in (*inputs, (bars[-1], names[-1], surfaces[-1])):
        where[name] = at
        at += up(surface.bytes, PAGE)
    return where


def _tensors(names: Sequence[str], bars: Bars, surfaces: Surfaces) -> list[dict[str, Any]]:
    """Return the description of each tensor as the importer gives it, that of the output last."""
    tensors = []
    for name, bar, surface in zip(names, bars, surfaces, strict=True):
        size = surface.bytes
        steps = (size, surface.plane, surface.row, HALF, size)
        shape = (1, surface.channels, surface.height, surface.width, 1)
        tensor: dict[str, Any] = {"name": name, "kind": "input", "bar": bar, "element": FLOAT16}
        tensor |= zip("nchwd", shape, strict=True)
        tensor["strides"] = dict(zip(STRIDES, steps, strict=True))
        tensors.append(tensor | {"interleave": 1, "span": size})
    tensors[-1] |= {"kind": "output", "span": surfaces[-1].span}
    return tensors


def _inputs(layer: Single, x: Any) -> list[np.ndarray]:
    """Return the input tensors of a layer as a list.

    Raises ValueError for another number, shape or type than the layer has.
    """
    shapes = input_shapes(layer)
    if len(shapes) == 1 or not isinstance(x, tuple | list):
        x = [x]
    given = [np.asarray(tensor) for tensor in x]
    types = {tensor.dtype for tensor in given}
    if [tensor.shape for tensor in given] != [*shapes] or types != {np.dtype(np.float16)}:
        kinds = " and ".join(f"{tensor.shape} {tensor.dtype}" for tensor in given)
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
    """Return the 16 bits of a constant as fp16; raise ValueError unless it is one fp16 number."""
    refuse_if(np.ndim(value), name, "one for each channel", "is one number", refused)
    with np.errstate(over="ignore"):
        half = np.float16(value)
    if float(half) != float(value):
        raise refused(f"{name}: got {value}, allowed is an fp16 number such as {float(half)}")
    return int(half.view(np.uint16))
