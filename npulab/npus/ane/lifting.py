"""Lifting: from the words and bytes of a capture to the layer that it runs.

Each task gives a layer. A task's source is the result that an earlier task wrote to the same base
address and offset, or left in L2 for it. Tasks that copy tensors side by side into one tensor are
a concatenation. A field that changes the arithmetic in a way that no layer expresses is refused.
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


class TensorPlace(NamedTuple):
    """The place of a tensor in memory: ``offset`` bytes after base address number ``bar``."""

    bar: int
    offset: int
    surface: Surface

    @property
    def end(self) -> int:
        """The byte after the tensor, counted from the base address."""
        return self.offset + self.surface.bytes


@dataclass
class Wiring:
    """The layers found so far, and the places of their results.

    A node is the number of a tensor: n is the result of ``layers[n]``, -1 - n is input n, which
    lies at base address ``inputs[n]``. ``sources`` has the nodes that each layer reads. ``memory``
    has (place, node) of each result by base address, ``shapes`` the sizes of each node.
    """

    inputs: tuple[int, ...]
    layers: list[Layer] = field(default_factory=list)
    sources: list[tuple[int, ...]] = field(default_factory=list)
    memory: dict[int, list[tuple[TensorPlace, int]]] = field(default_factory=dict)
    shapes: dict[int, Surface] = field(default_factory=dict)

    def add(self, layer: Layer, sources: tuple[int, ...]) -> int:
        self.layers.append(layer)
        self.sources.append(sources)
        return len(self.layers) - 1


def resolve(
    wired: Wiring, place: TensorPlace | None, in_l2: int | None, task: int, surface: Surface
) -> int:
    """Return the node that task number ``task`` reads.

    It lies at ``place`` in memory. If ``place`` is None, it is ``in_l2``, the node that the task
    before left in L2. Raises ``Unsupported`` if there is no node of the sizes that the task reads,
    which in L2 are those of ``surface``.
    """
    if place is None:
        if in_l2 is None or wired.shapes.get(in_l2, surface) != surface:
            raise Unsupported(
                f"task {task}: L2.SourceCfg.SourceType: got a source of {surface.shape} in L2, "
                "covered is a result that the task before left there"
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


def write(wired: Wiring, place: TensorPlace, node: int, task: int) -> None:
    """Add to ``wired.memory`` that a task writes a node to a place.

    Raises ``Unsupported`` if an earlier result or an input lies there.
    """
    parts = wired.memory.setdefault(place.bar, [])
    for earlier, _ in parts:
        if place.offset < earlier.end and earlier.offset < place.end:
            raise Unsupported(
                f"task {task}: TileDMADst.BaseAddr: got bytes {place.offset:#x} to "
                f"{place.end:#x}, which another task wrote before"
            )
    if place.bar in wired.inputs:
        raise Unsupported(f"task {task}: Header.Header[8].WBase: got {place.bar}, an input")
    parts.append((place, node))


def whole(wired: Wiring, bar: int, last: int | None, wanted: TensorPlace) -> tuple[int, Surface]:
    """Return the node, and the sizes, of the tensor that results at a base address make up.

    If ``last`` is None, the results inside of ``wanted`` are taken, else all results at the base
    address. Several results must lie one after another; a ``Concat`` of them is added to ``wired``.
    Raises ``Unsupported`` for results that do not make up a tensor.
    """
    begin = 0
    chosen = sorted(wired.memory[bar], key=lambda part: part[0].offset)
    if last is None:
        begin = wanted.offset
        chosen = [part for part in chosen if begin <= part[0].offset < wanted.end]
    places = [place for place, _ in chosen]
    total = wanted.surface._replace(channels=sum(place.surface.channels for place in places))
    joined = len(chosen) > 0
    end = begin
    for place in places:
        joined = joined and place.offset == end and place.surface[:2] == total[:2]
        end = place.end
    if not joined or (last is None and total != wanted.surface):
        got = ", ".join(f"{place.surface.shape} at {place.offset:#x}" for place in places)
        raise Unsupported(
            f"base address {bar}: got {got or 'nothing'} written, covered are results that make up "
            f"{wanted.surface.shape}, one after another from byte {begin:#x}"
        )
    if len(chosen) == 1:
        return chosen[0][1], total
    joint = Concat(tuple(place.surface.shape for place in places), 2)
    return wired.add(joint, tuple(node for _, node in chosen)), total


def network(wired: Wiring, node: int) -> Layer | Network:
    """Return the network of all layers, or the only layer.

    Raises ``Unsupported`` if ``node``, the result of the tasks, is not that of the last layer.
    """
    if node != len(wired.layers) - 1:
        raise Unsupported(
            f"tasks: got a result that is not that of the last of {len(wired.layers)} layers"
        )
    if len(wired.layers) == 1:
        layer, sources = wired.layers[0], wired.sources[0]
        if sources == tuple(range(-1, -1 - len(wired.inputs), -1)):
            return layer
        # Exchanged sources give the same result, unless they are subtracted or one is prescaled.
        if (
            sources == (-2, -1)
            and isinstance(layer, Elementwise)
            and layer.kind != "subtract"
            and layer.prescale == 1
        ):
            return layer
    return Network(tuple(wired.layers), tuple(wired.sources))


# Only H13 is lifted: fields of other generations have the same names, but no file confirms that
# they mean the same.
BLOCK = "H13"
COEFFICIENT_BAR = 1
# Values of Common.Cfg.TaskType: neural engine, planar engine with two sources.
NEURAL, PLANAR_TWO = 0, 3
# The value of NE.MACCfg.OpMode for a convolution.
CONVOLUTION = 0
# The value of PE.Cfg.SecSrc if the second source is subtracted.
SUBTRACTED = 3
KINDS = {0: "add", 1: "multiply", 2: "maximum", 3: "minimum"}


@dataclass(frozen=True)
class Work:
    """The work of one task.

    ``layer`` is None for a copy. ``after`` is the activation that the task applies to the layer's
    result, None without one. ``sources`` and ``result`` are places in memory, None for a tensor in
    L2; ``surface`` has the sizes of the result.
    """

    layer: Layer | None
    after: Layer | None
    sources: tuple[TensorPlace | None, ...]
    result: TensorPlace | None
    surface: Surface


def lift(capture: Capture) -> Lifted:
    """Return the layer of a capture, its input and its captured output.

    Several tasks give a ``Network``; tasks that copy tensors into one tensor give a ``Concat``.
    Inputs are in the order of the capture's tensors, without tensors in that of their base
    addresses. ``x`` is read from the buffer ``input``; it is a tuple if there are several inputs,
    read from ``input``, ``input1``, .... The output is read from ``output``. ``x`` or output is
    None if a buffer is missing.

    Raises ``Unsupported``, with task, field, value and covered values, for a task that is not
    covered. Raises ValueError for impossible coefficients and for tensors that are cut short.
    """
    works = [work_of(TaskValues.of(capture, task)) for task in range(len(capture.jobs))]
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
    output = None
    if "output" in capture.buffers:
        output = unpack(capture.buffers["output"], surface, f"{capture.name}: output")
    return Lifted(network(wired, node), _inputs(capture, wired), output)


def extent(capture: Capture, lifted: Lifted) -> range:
    """Return the range of bytes of the buffer ``output`` that the tasks write, row fill
    included."""
    assert lifted.output is not None
    return range(Surface(*lifted.output.shape).bytes)


def raw(capture: Capture, task: int) -> dict[str, int]:
    """Return the raw values of a task by their full names, such as ``Common.InDim.Win``.

    Raises ``Unsupported`` for a task that is not one of H13.
    """
    job = capture.jobs[task]
    if job.block != BLOCK or BLOCK not in capture.maps:
        raise Unsupported(f"task {task}: got block {job.block}, covered is {BLOCK}")
    return values_of(job, capture.maps, raw=True, unwritten=True)


@dataclass(frozen=True)
class TaskValues:
    """A task of a capture; ``v`` has its raw values by their full names."""

    capture: Capture
    number: int
    v: Mapping[str, int]

    @classmethod
    def of(cls, capture: Capture, number: int) -> TaskValues:
        """Return task ``number``, counted from 0, of a capture; it must be a task of H13."""
        return cls(capture, number, raw(capture, number))

    @property
    def convolves(self) -> bool:
        return self.v["Common.Cfg.TaskType"] == NEURAL and self.v["NE.MACCfg.OpMode"] == CONVOLUTION

    def expect(self, allowed: str | Mapping[str, tuple[int, ...]]) -> None:
        """Raise ``Unsupported`` for a field with a value that is not allowed.

        ``allowed`` is the name of a case in ``expected.csv``, or the allowed values by field.
        """
        if isinstance(allowed, str):
            allowed = EXPECTED[allowed]
        expect(
            self.v,
            allowed,
            f"task {self.number}: {{name}}: got {{got}}, covered is {{allowed}}",
            Unsupported,
            "#x",
        )

    def refusal(self, why: str) -> Unsupported:
        return Unsupported(f"task {self.number}: {why}")

    @property
    def section(self) -> bytes:
        """The coefficient buffer; the places of the task's coefficients count from its first byte.

        Raises ``Unsupported`` if the task reads none, or reads at another base address.
        """
        bar = self.capture.parameters.get("coefficients_bar", COEFFICIENT_BAR)
        self.expect({"Header.Header[9].KBE0": (1,), "Header.Header[9].KBase0": (bar,)})
        return buffer_of(self.capture, "coefficients")

    @property
    def kernel(self) -> tuple[coefficients.Kernel, bytes, np.ndarray]:
        """The kernel of a convolution, the coefficient buffer, and the places of the engines'
        coefficients in it, as (offset, size) in bytes."""
        data = self.section
        try:
            return coefficients.from_registers(self.v), data, coefficients.places_of(self.v)
        except ValueError as error:
            raise self.refusal(str(error)) from None

    @property
    def table(self) -> entries.Table:
        """The activation table of the task, which every engine must read.

        Raises ``Unsupported`` if engines read different tables.
        """
        data, places = self.section, coefficients.places_of(self.v).tolist()
        end = max((at + size for at, size in places), default=0)
        if end > len(data):
            raise ValueError(
                f"task {self.number}: KernelDMASrc.CoeffBaseAddr: got {len(data)} bytes of "
                f"coefficients, allowed by its words are {end}"
            )
        tables = {data[at : at + size] for at, size in places}
        if len(tables) != 1 or any(size != entries.SIZE for _, size in places):
            raise self.refusal(
                f"KernelDMASrc.CoeffBaseAddr: got {len(tables)} tables for {len(places)} engines"
                f" in {len(data)} bytes, covered is one of {entries.SIZE} bytes"
            )
        return entries.decode(tables.pop())


def work_of(task: TaskValues) -> Work:
    """Return the work of one task, from its words and coefficients alone.

    Raises ``Unsupported`` for values of fields that no layer expresses.
    """
    v = task.v
    task.expect("task")
    if not task.convolves:
        task.expect("one group")
    source, result = _surface(v, "source"), _surface(v, "result")
    if min(*source, *result) < 1:
        raise task.refusal(
            f"Common.InDim, Common.OutDim: got sizes {source} and {result}, covered are 1 and more"
        )
    layer: Layer | None
    after = None
    if task.convolves:
        layer, after = _convolution(task, source, result)
    else:
        if v["Common.Cfg.TaskType"] == NEURAL:
            layer = _bypass(task, source)
        else:
            layer = _planar(task, source)
        task.expect("same size")
        if source != result:
            raise task.refusal(
                f"Common.OutDim: got {result.shape} of {source.shape}, covered are "
                "results of the source's sizes"
            )
    sources = [_place_of(task, "source", source)]
    if v["Common.Cfg.TaskType"] == PLANAR_TWO:
        sources.append(_place_of(task, "source 2", source))
        # The first source times -1 is added to the second: the second minus the first.
        subtracts = isinstance(layer, Elementwise) and layer.kind == "subtract"
        if subtracts and v["PE.PreScale.PreScale"] == MINUS_ONE:
            sources.reverse()
    return Work(layer, after, tuple(sources), _place_of(task, "result", result), result)


def _surface(v: Mapping[str, int], tensor: str) -> Surface:
    groups, channels, height, width = [v[TENSORS[tensor][size]] for size in SIZES]
    return Surface(height, width, groups * channels)


def input_bars(capture: Capture, works: list[Work]) -> tuple[int, ...]:
    """Return the numbers of the base addresses of the inputs, which are read before they are
    written.

    They are in the order of the capture's tensors; inputs that no tensor names follow by number.
    """
    tensors = capture.parameters.get("tensors", ())
    named = [tensor["bar"] for tensor in tensors if tensor.get("kind") == "input"]
    written: set[int] = set()
    read: set[int] = set()
    for work in works:
        read |= {place.bar for place in work.sources if place is not None} - written
        if work.result is not None:
            written.add(work.result.bar)
    first = [bar for bar in named if bar in read]
    return *first, *sorted(read.difference(named))


def _planar(task: TaskValues, source: Surface) -> Layer:
    v = task.v
    two = v["Common.Cfg.TaskType"] == PLANAR_TWO
    task.expect("planar")
    task.expect("two sources" if two else "one source")
    kind, prescale = KINDS[v["PE.Cfg.OpMode"]], v["PE.PreScale.PreScale"]
    if v["PE.Cfg.SecSrc"] == SUBTRACTED or v["PE.Cfg.Cond"]:
        kind = "subtract" if two else "abs"
        task.expect(kind)
    elif not two:
        kind = "copy"
    elif kind == "add" and prescale == MINUS_ONE:
        kind, prescale = "subtract", ONE
    codes = prescale, v["PE.BiasScale.Scale"], v["PE.BiasScale.Bias"]
    values = list(map(half, codes))
    if not np.all(np.isfinite(values)):
        raise task.refusal(f"PE.PreScale, PE.BiasScale: got {values}, covered are finite numbers")
    return Elementwise(kind, source.shape, prescale=values[0], scale=values[1], bias=values[2])


def _bypass(task: TaskValues, source: Surface) -> Layer | None:
    """Return the layer of a task of the neural engine without a convolution; None for a copy."""
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


def _convolution(task: TaskValues, source: Surface, result: Surface) -> tuple[Conv2D, Layer | None]:
    """Return the convolution of a task, and the activation that its table applies to the result.

    The activation is None if the task has no table.
    """
    v = task.v
    task.expect("neural")
    task.expect("convolution")
    kernel, data, at = task.kernel
    after = None
    try:
        weights, bias = coefficients.decode(kernel, data, at)
        if kernel.table:
            table = entries.decode(coefficients.table_of(kernel, data, at))
            after = activation(table, result.shape)
    except Unsupported as error:
        raise task.refusal(str(error)) from None
    except ValueError as error:
        raise ValueError(f"{task.capture.name}: task {task.number}: {error}") from None
    before = v["Common.ConvCfg.Py"], v["Common.ConvCfg.Px"]
    taps = kernel.kernel_h, kernel.kernel_w
    past = map(behind, source[:2], result[:2], taps, kernel.stride, before)
    border = tuple((first, max(last, 0)) for first, last in zip(before, past, strict=True))
    if np.any(np.max(border, 1) >= taps):
        raise task.refusal(
            f"Common.OutDim: got {result.shape} of {source.shape}, which takes a border of "
            f"{border}; covered is less than the kernel of {kernel.kernel_h} x {kernel.kernel_w}"
        )
    if bias is None:
        bias = np.zeros(kernel.outputs, np.float16)
    relu = None
    if v["NE.MACCfg.NonlinearMode"] == RELU:
        relu = "relu"
    layer = Conv2D(
        weights,
        bias,
        source.shape,
        kernel.stride,
        border,
        depthwise=kernel.depthwise,
        groups=kernel.parts,
        activation=relu,
    )
    if layer.output_shape != result.shape:
        raise task.refusal(
            f"Common.OutDim: got {result.shape}, a convolution with these sizes and "
            f"padding gives {layer.output_shape}"
        )
    groups = v["Common.GroupConvCfg.NumGroups"]
    # A group follows the group before it in memory without a gap.
    if groups > 1:
        task.expect(
            {
                "TileDMASrc.GroupStride.Stride": (source.bytes // groups // UNIT,),
                "TileDMADst.GroupStride.GroupStride": (result.bytes // groups // UNIT,),
            }
        )
    return replace(layer, padding=next(iter(padding_names(layer)), border)), after


def _place_of(task: TaskValues, tensor: str, surface: Surface) -> TensorPlace | None:
    """Return the place of a task's tensor in memory, None for a tensor in L2.

    ``tensor`` is ``source``, ``source 2`` or ``result``. Raises ``Unsupported`` for strides other
    than those of planes whose rows are filled up to 64 bytes.
    """
    fields = TENSORS[tensor]
    if not task.v[fields["valid"]]:
        task.expect(f"{tensor} in L2")
        return None
    task.expect(EXPECTED.get(tensor, {}))
    row, plane = task.v[fields["row"]], task.v[fields["plane"]]
    if (row, plane) != (surface.row // UNIT, surface.plane // UNIT):
        block, row_register, _ = fields["row"].split(".")
        _, plane_register, _ = fields["plane"].split(".")
        raise task.refusal(
            f"{block}.{row_register} and {plane_register}: got {row:#x} and {plane:#x}, covered is "
            f"{surface.row // UNIT:#x} and {surface.plane // UNIT:#x} for {surface.height} rows of "
            f"{surface.width}"
        )
    return TensorPlace(task.v[fields["bar"]], UNIT * task.v[fields["offset"]], surface)


def _inputs(capture: Capture, wired: Wiring) -> Any:
    """Return the input of a capture, a tuple if there are several, None if a buffer is missing."""
    tensors = []
    for number in range(len(wired.inputs)):
        name = f"input{number or ''}"
        if name not in capture.buffers:
            return None
        surface = wired.shapes[-1 - number]
        tensors.append(unpack(capture.buffers[name], surface, f"{capture.name}: {name}"))
    if len(tensors) == 1:
        return tensors[0]
    return tuple(tensors) or None
