"""From the words and bytes of a capture to the layer that it runs: one layer a task, linked by
where results lie.

Tensors are found by base address and offset, or in L2 where a task leaves its result for the next.
Copies of tensors into parts of one are a concatenation.  A field that changes the arithmetic in a
way no layer says is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from npulab.npus.ane import coefficients
from npulab.npus.ane.facts import EXPECTED, SIZES, TENSORS
from npulab.npus.ane.lowering import MINUS_ONE, ONE, RELU, TABLE, activation, relu_outputs
from npulab.npus.ane.memory import UNIT, Surface, unpack
from npulab.npus.ane.tables import entries
from npulab.npus.kit import Capture, Lifted, Unsupported, buffer_of, expect, half, values_of
from npulab.npus.kit.layers import behind, padding_names
from npulab.quant.layers import Activation, Concat, Conv2D, Elementwise, Layer, Network


class Place(NamedTuple):
    """A tensor in memory: base address by number, byte behind it, its sizes."""

    bar: int
    offset: int
    surface: Surface


@dataclass
class Wiring:
    """Layers as they are found, in order; a node is a layer's number or, below 0, an input of the
    network."""

    inputs: tuple[int, ...]
    layers: list[Layer] = field(default_factory=list)
    sources: list[tuple[int, ...]] = field(default_factory=list)
    memory: dict[int, list[tuple[Place, int]]] = field(default_factory=dict)
    shapes: dict[int, Surface] = field(default_factory=dict)

    def add(self, layer: Layer, sources: tuple[int, ...]) -> int:
        self.layers.append(layer)
        self.sources.append(sources)
        return len(self.layers) - 1


def resolve(
    wired: Wiring, place: Place | None, in_l2: int | None, task: int, surface: Surface
) -> int:
    """The node whose value a source is."""
    if place is None:
        if in_l2 is None or wired.shapes.get(in_l2, surface) != surface:
            raise Unsupported(
                f"task {task}: L2.SourceCfg.SourceType: got a source in L2, no task before left "
                "one of "
                f"{surface.shape} there"
            )
        return in_l2
    if place.bar in wired.memory:
        return whole(wired, place.bar, None, place)[0]
    node = -1 - wired.inputs.index(place.bar)
    if place.offset or wired.shapes.setdefault(node, place.surface) != place.surface:
        raise Unsupported(
            f"task {task}: TileDMASrc.BaseAddr: got {place.surface.shape} from byte "
            f"{place.offset:#x} of an input, covered are whole tensors"
        )
    return node


def write(wired: Wiring, place: Place, node: int, task: int) -> None:
    """Note where a task puts a result; Unsupported where another one's lies, or an input."""
    parts = wired.memory.setdefault(place.bar, [])
    for other, _ in parts:
        if (
            place.offset < other.offset + other.surface.bytes
            and other.offset < place.offset + place.surface.bytes
        ):
            raise Unsupported(
                f"task {task}: TileDMADst.BaseAddr: got bytes {place.offset:#x} to "
                f"{place.offset + place.surface.bytes:#x}, which another task wrote before"
            )
    if place.bar in wired.inputs:
        raise Unsupported(f"task {task}: Header.Header[8].WBase: got {place.bar}, an input")
    parts.append((place, node))


def whole(wired: Wiring, bar: int, last: int | None, wanted: Place) -> tuple[int, Surface]:
    """The node and the sizes of what tasks wrote at a base address: one result, or several one
    behind another.

    With ``last`` all that was written counts, else what ``wanted`` names.
    """
    parts = sorted(wired.memory[bar], key=lambda one: one[0].offset)
    end = wanted.offset + wanted.surface.bytes
    chosen = [one for one in parts if last is not None or wanted.offset <= one[0].offset < end]
    places = [place for place, _ in chosen]
    total = Surface(
        wanted.surface.height, wanted.surface.width, sum(one.surface.channels for one in places)
    )
    if last is not None:
        begin = 0
    else:
        begin = wanted.offset
    joined = all(place.surface[:2] == total[:2] for place in places) and [
        place.offset for place in places
    ] == [
        begin + total.plane * sum(one.surface.channels for one in places[:i])
        for i in range(len(places))
    ]
    if not chosen or not joined or (last is None and total != wanted.surface):
        got = ", ".join(f"{one.surface.shape} at {one.offset:#x}" for one in places)
        raise Unsupported(
            f"base address {bar}: got {got or 'nothing'} written, covered are parts of "
            f"{wanted.surface.shape} one behind another from {begin:#x} on"
        )
    if len(chosen) == 1:
        return chosen[0][1], total
    joint = Concat(tuple(one.surface.shape for one in places), 2)
    return wired.add(joint, tuple(node for _, node in chosen)), total


def network(wired: Wiring, node: int) -> Layer | Network:
    """The layer, or layers, whose result a node is."""
    if node != len(wired.layers) - 1:
        raise Unsupported(
            f"tasks: got a result that is not that of the last of {len(wired.layers)} layers"
        )
    if len(wired.layers) == 1 and wired.sources[0] == tuple(
        -1 - i for i in range(len(wired.inputs))
    ):
        return wired.layers[0]
    (layer, *more), (sources, *_) = wired.layers, wired.sources
    if (
        not more
        and sources == (-2, -1)
        and isinstance(layer, Elementwise)
        and layer.kind != "subtract"
        and layer.prescale == 1
    ):
        return layer
    return Network(tuple(wired.layers), tuple(wired.sources))


# fields of other generations have the same names, but nobody held their meaning against a file
BLOCK = "H13"
COEFFICIENT_BAR = 1
NEURAL, PLANAR_TWO = 0, 3  # task types
CONVOLUTION = 0  # NE.MACCfg.OpMode
SUBTRACTED = 3  # PE.Cfg.SecSrc
KINDS = {0: "add", 1: "multiply", 2: "maximum", 3: "minimum"}


@dataclass(frozen=True)
class Work:
    """What a task does: its layer, None for a copy, and the one behind it that it runs too.

    ``sources`` and ``result`` are where tensors lie, None in L2.
    """

    layer: Layer | None
    after: Layer | None
    sources: tuple[Place | None, ...]
    result: Place | None
    surface: Surface


def lift(capture: Capture) -> Lifted:
    """The layer of a capture, its input and captured output.

    Several tasks give a ``Network``, copies into one tensor a ``Concat``; the inputs are those of
    the capture's tensors in their order, without tensors those of the lowest base addresses first,
    and ``x`` is a tuple where there are several.  Tensors come from the buffers ``input``,
    ``input1``, ... and ``output``, None where one is not there. Raises ``Unsupported`` naming
    task, field, what it is and what is covered; ValueError for coefficients that cannot be, and for
    tensors that are cut short.
    """
    works = [work_of(Task.of(capture, task)) for task in range(len(capture.jobs))]
    wired = Wiring(input_bars(capture, works))
    in_l2: int | None = None
    last = -1
    for task, work in enumerate(works):
        sources = tuple(resolve(wired, place, in_l2, task, work.surface) for place in work.sources)
        if work.layer is None:
            last = sources[0]
        else:
            last = wired.add(work.layer, sources)
            if work.after is not None:
                wired.shapes[last] = work.surface
                last = wired.add(work.after, (last,))
            wired.shapes[last] = work.surface
        if work.result is None:
            in_l2 = last
        else:
            write(wired, work.result, last, task)
    final = works[-1].result
    if final is None:
        raise Unsupported(
            f"task {len(works) - 1}: Header.Header[8].WBE: got 0 in the last task, covered is 1"
        )
    node, surface = whole(wired, final.bar, last, final)
    if node < 0 or not wired.layers:
        node = wired.add(Elementwise("copy", surface.shape), (node,))
    x = _inputs(capture, wired)
    output = capture.buffers.get("output")
    return Lifted(
        network(wired, node),
        x,  # type: ignore[arg-type]
        None if output is None else unpack(output, surface, f"{capture.name}: output"),
    )


def extent(capture: Capture, lifted: Lifted) -> range:
    """The bytes of the output's buffer that the tasks write, fill behind each row included."""
    assert lifted.output is not None
    return range(Surface(*lifted.output.shape).bytes)


def raw(capture: Capture, task: int) -> dict[str, int]:
    """Raw values of a task by full name, ``Common.InDim.Win``."""
    job = capture.jobs[task]
    if job.block != BLOCK or BLOCK not in capture.maps:
        raise Unsupported(f"task {task}: got block {job.block}, covered is {BLOCK}")
    return values_of(job, capture.maps, raw=True, unwritten=True)


@dataclass(frozen=True)
class Task:
    """A task of a capture with its raw values; tensors in memory are those of ``v``."""

    capture: Capture
    number: int
    v: Mapping[str, int]

    @classmethod
    def of(cls, capture: Capture, number: int) -> Task:
        """A task of a capture by its number; raises as ``raw``."""
        return cls(capture, number, raw(capture, number))

    @property
    def convolves(self) -> bool:
        return self.v["Common.Cfg.TaskType"] == NEURAL and self.v["NE.MACCfg.OpMode"] == CONVOLUTION

    def expect(self, allowed: str | Mapping[str, tuple[int, ...]]) -> None:
        """Unsupported for a field whose value is not allowed, in a case of ``expected.csv``."""
        expect(
            self.v,
            EXPECTED[allowed] if isinstance(allowed, str) else allowed,
            f"task {self.number}: {{name}}: got {{got}}, covered is {{allowed}}",
            Unsupported,
            "#x",
        )

    def refusal(self, why: str) -> Unsupported:
        return Unsupported(f"task {self.number}: {why}")

    @property
    def section(self) -> bytes:
        """What the base address of the coefficients points to."""
        bar = self.capture.parameters.get("coefficients_bar", COEFFICIENT_BAR)
        self.expect({"Header.Header[9].KBE0": (1,), "Header.Header[9].KBase0": (bar,)})
        return buffer_of(self.capture, "coefficients")

    @property
    def kernel(self) -> tuple[coefficients.Kernel, bytes, np.ndarray]:
        """The kernel of a convolution, the section that holds it and where its engines' buffers lie
        there."""
        data = self.section
        try:
            return coefficients.from_registers(self.v), data, coefficients.places_of(self.v)
        except ValueError as error:
            raise self.refusal(str(error)) from None

    @property
    def table(self) -> entries.Table:
        """The activation table; all engines read the same one."""
        data, places = self.section, coefficients.places_of(self.v).tolist()
        end = max((at + size for at, size in places), default=0)
        if end > len(data):
            raise ValueError(
                f"task {self.number}: KernelDMASrc.CoeffBaseAddr: got {len(data)} bytes of "
                "coefficients, "
                f"allowed by its words are {end}"
            )
        tables = {data[at : at + size] for at, size in places}
        if (
            len(tables) != 1
            or {size for _, size in places} != {entries.SIZE}
            or {*map(len, tables)} != {entries.SIZE}
        ):
            raise self.refusal(
                f"KernelDMASrc.CoeffBaseAddr: got {len(tables)} tables for {len(places)} engines"
                f" in {len(data)} bytes, covered is one of {entries.SIZE} bytes"
            )
        return entries.decode(tables.pop())


def work_of(task: Task) -> Work:
    """What one task does, from its own words and coefficients."""
    v = task.v
    task.expect("task")
    if not task.convolves:
        task.expect("one group")
    source, result = (
        Surface(height, width, groups * channels)
        for groups, channels, height, width in (
            [v[TENSORS[tensor][size]] for size in SIZES] for tensor in ("source", "result")
        )
    )
    if min(*source, *result) < 1:
        raise task.refusal(
            f"Common.InDim, Common.OutDim: got sizes {source} and {result}, covered are 1 and more"
        )
    layer: Layer | None
    after = None
    if v["Common.Cfg.TaskType"] != NEURAL:
        layer = _planar(task, source)
    elif task.convolves:
        layer, after = _convolution(task, source, result)
    else:
        layer = _bypass(task, source)
    if not task.convolves:
        task.expect("same size")
        if source != result:
            raise task.refusal(
                f"Common.OutDim: got {result.shape} of {source.shape}, covered are "
                "results of the source's sizes"
            )
    sources = [_place(task, "source", source)]
    if v["Common.Cfg.TaskType"] == PLANAR_TWO:
        sources.append(_place(task, "source 2", source))
        if (
            v["PE.PreScale.PreScale"] == MINUS_ONE
            and isinstance(layer, Elementwise)
            and layer.kind == "subtract"
        ):
            sources.reverse()
    return Work(layer, after, tuple(sources), _place(task, "result", result), result)


def input_bars(capture: Capture, works: list[Work]) -> tuple[int, ...]:
    """The base addresses of the inputs, by number, in the order of the capture's tensors."""
    tensors = capture.parameters.get("tensors", ())
    named = [tensor["bar"] for tensor in tensors if tensor.get("kind") == "input"]
    written: set[int] = set()
    read: set[int] = set()
    for work in works:
        read |= {place.bar for place in work.sources if place is not None} - written
        if work.result is not None:
            written |= {work.result.bar}
        else:
            written |= set()
    return (*(bar for bar in named if bar in read), *sorted(read - {*named}))


def _planar(task: Task, source: Surface) -> Layer:
    v = task.v
    two = v["Common.Cfg.TaskType"] == PLANAR_TWO
    task.expect("planar")
    task.expect("two sources" if two else "one source")
    kind, prescale = KINDS[v["PE.Cfg.OpMode"]], v["PE.PreScale.PreScale"]
    if v["PE.Cfg.SecSrc"] == SUBTRACTED or v["PE.Cfg.Cond"]:
        if two:
            kind = "subtract"
        else:
            kind = "abs"
        task.expect(kind)
    elif not two:
        kind = "copy"
    elif kind == "add" and prescale == MINUS_ONE:
        kind, prescale = "subtract", ONE
    values = [
        half(number) for number in (prescale, v["PE.BiasScale.Scale"], v["PE.BiasScale.Bias"])
    ]
    if not np.all(np.isfinite(values)):
        raise task.refusal(f"PE.PreScale, PE.BiasScale: got {values}, covered are finite numbers")
    return Elementwise(kind, source.shape, prescale=values[0], scale=values[1], bias=values[2])


def _bypass(task: Task, source: Surface) -> Layer | None:
    """What the neural engine does without a kernel; None for a copy."""
    mode, prescale = task.v["NE.MACCfg.NonlinearMode"], half(task.v["NE.PostScale.PostScale"])
    task.expect("neural")
    task.expect("bypass")
    if not np.isfinite(prescale):
        raise task.refusal(f"NE.PostScale.PostScale: got {prescale}, covered are finite numbers")
    if mode == TABLE:
        return activation(task.table, source.shape, prescale)
    if mode == RELU:
        return Activation(source.shape, relu_outputs(), "relu", prescale)
    if prescale == 1:
        return None
    return Elementwise("copy", source.shape, scale=prescale)


def _convolution(task: Task, source: Surface, result: Surface) -> tuple[Conv2D, Layer | None]:
    """The convolution, and the activation behind it that it has a table for."""
    v = task.v
    task.expect("neural")
    task.expect("convolution")
    kernel, data, at = task.kernel
    after = None
    try:
        weights, bias = coefficients.decode(kernel, data, at)
        if kernel.table:
            after = activation(
                entries.decode(coefficients.table_of(kernel, data, at)), result.shape
            )
    except Unsupported as error:
        raise task.refusal(str(error)) from None
    except ValueError as error:
        raise ValueError(f"{task.capture.name}: task {task.number}: {error}") from None
    before, taps = (
        (v["Common.ConvCfg.Py"], v["Common.ConvCfg.Px"]),
        (kernel.kernel_h, kernel.kernel_w),
    )
    past = map(behind, source[:2], result[:2], taps, kernel.stride, before)
    border = tuple((first, max(last, 0)) for first, last in zip(before, past, strict=True))
    if any(max(pair) >= size for pair, size in zip(border, taps, strict=True)):
        raise task.refusal(
            f"Common.OutDim: got {result.shape} of {source.shape}, which takes a border of "
            f"{border}; covered is less than the kernel of {kernel.kernel_h} x {kernel.kernel_w}"
        )
    layer = Conv2D(
        weights,
        np.zeros(kernel.outputs, np.float16) if bias is None else bias,
        source.shape,
        kernel.stride,
        border,
        depthwise=kernel.depthwise,
        groups=kernel.parts,
        activation="relu" if v["NE.MACCfg.NonlinearMode"] == RELU else None,
    )
    if layer.output_shape != result.shape:
        raise task.refusal(
            f"Common.OutDim: got {result.shape}, a convolution with these sizes and "
            f"padding gives {layer.output_shape}"
        )
    groups = v["Common.GroupConvCfg.NumGroups"]
    if groups > 1:  # they lie one behind another
        task.expect(
            {
                "TileDMASrc.GroupStride.Stride": (source.bytes // groups // UNIT,),
                "TileDMADst.GroupStride.GroupStride": (result.bytes // groups // UNIT,),
            }
        )
    return replace(layer, padding=next(iter(padding_names(layer)), border)), after


def _place(task: Task, tensor: str, surface: Surface) -> Place | None:
    """Where a tensor lies in memory, None if it is left in L2 by the task before or for the next.

    Strides other than those of rows filled up to 64 bytes, one behind another, are refused.
    """
    fields = TENSORS[tensor]
    if not task.v[fields["valid"]]:
        task.expect(f"{tensor} in L2")
        return None
    task.expect(EXPECTED.get(tensor, {}))
    row, plane, bar, offset = (task.v[fields[name]] for name in ("row", "plane", "bar", "offset"))
    if (row, plane) != (surface.row // UNIT, surface.plane // UNIT):
        block, first, second = (
            fields["row"].split(".")[0],
            *(fields[name].split(".")[1] for name in ("row", "plane")),
        )
        raise task.refusal(
            f"{block}.{first} and {second}: got {row:#x} and {plane:#x}, covered is "
            f"{surface.row // UNIT:#x} and {surface.plane // UNIT:#x} for {surface.height} rows of "
            f"{surface.width}"
        )
    return Place(bar, UNIT * offset, surface)


def _inputs(capture: Capture, wired: Wiring) -> Any:
    """The input, a tuple of several; None where one is not there."""
    names = [f"input{i or ''}" for i in range(len(wired.inputs))]
    if not names or not capture.buffers.keys() >= {*names}:
        return None
    tensors = tuple(
        unpack(capture.buffers[name], wired.shapes[-1 - i], f"{capture.name}: {name}")
        for i, name in enumerate(names)
    )
    if len(tensors) > 1:
        return tensors
    return tensors[0]
