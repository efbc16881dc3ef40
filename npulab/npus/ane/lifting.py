"""From the words and bytes of a capture to the layer that it runs: one layer a task, linked by
where results lie.

Tensors are found by base address and offset, or in L2 where a task leaves its result for the next.
Copies of tensors into parts of one are a concatenation.  A field that changes the arithmetic in a
way no layer says is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npulab.captures.capture import Capture
from npulab.captures.target import Lifted, Unsupported
from npulab.npus.ane import coefficients
from npulab.npus.ane.activations import activation, relu_outputs
from npulab.npus.ane.facts import EXPECTED
from npulab.npus.ane.lowering import RELU, TABLE
from npulab.npus.ane.memory import UNIT, Surface, unpack
from npulab.npus.ane.steps import HABITS
from npulab.npus.ane.tables import entries
from npulab.npus.ane.wiring import Place, Wiring, network, resolve, shape_of, whole, write
from npulab.npus.kit.fields import expect, values_of
from npulab.npus.kit.layers import behind, padding_names
from npulab.quant.layers import Activation, Conv2D, Elementwise, Layer

BLOCK = "H13"  # fields of other generations have the same names, but nobody held their meaning against a file
COEFFICIENT_BAR = 1
NEURAL, PLANAR_TWO = 0, 3  # task types
CONVOLUTION, BYPASS = 0, 4
ONE, MINUS_ONE = 0x3C00, 0xBC00
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
    works = [work_of(capture, task) for task in range(len(capture.jobs))]
    inputs = input_bars(capture, works)
    wired = Wiring(inputs)
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
        raise Unsupported(f"task {len(works) - 1}: Header.Header[8].WBE: got 0 in the last task, covered is 1")
    node, surface = whole(wired, final.bar, last, final)
    if node < 0 or not wired.layers:
        node = wired.add(Elementwise("copy", shape_of(surface)), (node,))
    x = _inputs(capture, wired)
    output = capture.buffers.get("output")
    return Lifted(network(wired, node), x,  # type: ignore[arg-type]
                  None if output is None else unpack(output, surface, f"{capture.name}: output"))


def compiler_of(capture: Capture) -> str:
    """Whose habits the last task has, a name in ``steps.HABITS``: by its events and the stride
    between batches."""
    v = raw(capture, len(capture.jobs) - 1)
    if v["Header.Header[2].LogEvents"] == HABITS["9.x"].events:
        return "9.x"
    return "5.4.1" if v["TileDMADst.GroupStride.GroupStride"] else "4.2.1"


def raw(capture: Capture, task: int) -> dict[str, int]:
    """Raw values of a task by full name, ``Common.InDim.Win``."""
    job = capture.jobs[task]
    if job.block != BLOCK or BLOCK not in capture.maps:
        raise Unsupported(f"task {task}: got block {job.block}, covered is {BLOCK}")
    return values_of(job, capture.maps, raw=True, unwritten=True)


def work_of(capture: Capture, task: int) -> Work:
    """What one task does, from its own words and coefficients."""
    v = raw(capture, task)
    _covered(task, v, EXPECTED["task"])
    planar = v["Common.Cfg.TaskType"] != NEURAL
    convolution = not planar and v["NE.MACCfg.OpMode"] == CONVOLUTION
    groups = v["Common.GroupConvCfg.NumGroups"]
    if not convolution:
        _covered(task, v, EXPECTED["one group"])
    source = Surface(v["Common.InDim.Hin"], v["Common.InDim.Win"], groups * v["Common.Cin.Cin"])
    result = Surface(v["Common.OutDim.Hout"], v["Common.OutDim.Wout"], groups * v["Common.Cout.Cout"])
    if min(*source, *result) < 1:
        raise Unsupported(f"task {task}: Common.InDim, Common.OutDim: got sizes {source} and {result}, covered are 1 "
                           "and more")
    layer = _planar(task, v, source) if planar else _neural(capture, task, v, source, result)
    after = None
    if convolution:
        after = _behind(capture, task, v, result)
        if groups > 1:
            _grouped(task, v, source, result)
    else:
        _covered(task, v, EXPECTED["same size"])
        if source != result:
            raise Unsupported(f"task {task}: Common.OutDim: got {shape_of(result)} of {shape_of(source)}, covered are "
                               "results of the source's sizes")
    two = planar and v["Common.Cfg.TaskType"] == PLANAR_TWO
    sources = (_source(task, v, source, ""), *([_source(task, v, source, "Src2")] if two else []))
    if two and v["PE.PreScale.PreScale"] == MINUS_ONE and isinstance(layer, Elementwise) and layer.kind == "subtract":
        sources = sources[::-1]
    return Work(layer, after, sources, _result(task, v, result), result)


def input_bars(capture: Capture, works: list[Work]) -> tuple[int, ...]:
    """The base addresses of the inputs, by number, in the order of the capture's tensors."""
    named = [one["bar"] for one in capture.parameters.get("tensors", ()) if one.get("kind") == "input"]
    written: set[int] = set()
    read: set[int] = set()
    for work in works:
        read |= {place.bar for place in work.sources if place is not None and place.bar not in written}
        written |= {work.result.bar} if work.result is not None else set()
    return (*(bar for bar in named if bar in read), *sorted(read - {*named}))


def _covered(task: int, values: Mapping[str, int], allowed: Mapping[str, tuple[int, ...]]) -> None:
    expect(values, allowed, f"task {task}: {{name}}: got {{got}}, covered is {{allowed}}",
           Unsupported, "#x")


def _planar(task: int, v: Mapping[str, int], source: Surface) -> Layer:
    two = v["Common.Cfg.TaskType"] == PLANAR_TWO
    _covered(task, v, {**EXPECTED["planar"], **EXPECTED["two sources" if two else "one source"]})
    kind, prescale = KINDS[v["PE.Cfg.OpMode"]], v["PE.PreScale.PreScale"]
    if v["PE.Cfg.SecSrc"] == SUBTRACTED or v["PE.Cfg.Cond"]:
        kind = "subtract" if two else "abs"
        _covered(task, v, EXPECTED[kind])
    elif not two:
        kind = "copy"
    elif kind == "add" and prescale == MINUS_ONE:
        kind, prescale = "subtract", ONE
    values = [_float(number) for number in (prescale, v["PE.BiasScale.Scale"], v["PE.BiasScale.Bias"])]
    if not np.all(np.isfinite(values)):
        raise Unsupported(f"task {task}: PE.PreScale, PE.BiasScale: got {values}, covered are finite numbers")
    return Elementwise(kind, shape_of(source), prescale=values[0], scale=values[1], bias=values[2])


def _neural(capture: Capture, task: int, v: Mapping[str, int], source: Surface, result: Surface) -> Layer | None:
    _covered(task, v, EXPECTED["neural"])
    if v["NE.MACCfg.OpMode"] == CONVOLUTION:
        return _convolution(capture, task, v, source, result)
    mode, prescale = v["NE.MACCfg.NonlinearMode"], _float(v["NE.PostScale.PostScale"])
    _covered(task, v, EXPECTED["bypass"])
    if not np.isfinite(prescale):
        raise Unsupported(f"task {task}: NE.PostScale.PostScale: got {prescale}, covered are finite numbers")
    if mode == TABLE:
        return activation(table_at(capture, task, v), shape_of(source), prescale)
    if mode == RELU:
        return Activation(shape_of(source), relu_outputs(), "relu", prescale)
    return None if prescale == 1 else Elementwise("copy", shape_of(source), scale=prescale)


def _convolution(capture: Capture, task: int, v: Mapping[str, int], source: Surface, result: Surface) -> Conv2D:
    _covered(task, v, EXPECTED["convolution"])
    kernel, data, at = kernel_at(capture, task, v)
    try:
        weights, bias = coefficients.decode(kernel, data, at)
    except ValueError as error:
        raise ValueError(f"{capture.name}: task {task}: {error}") from None
    before = v["Common.ConvCfg.Py"], v["Common.ConvCfg.Px"]
    taps = kernel.kernel_h, kernel.kernel_w
    after = map(behind, source[:2], result[:2], taps, kernel.stride, before)
    border = tuple((first, max(last, 0)) for first, last in zip(before, after, strict=True))
    if any(max(pair) >= size for pair, size in zip(border, taps, strict=True)):
        raise Unsupported(f"task {task}: Common.OutDim: got {shape_of(result)} of {shape_of(source)}, which takes a "
                           f"border of {border}; covered is less than the kernel of {kernel.kernel_h} x "
                           f"{kernel.kernel_w}")
    layer = Conv2D(weights, np.zeros(kernel.outputs, np.float16) if bias is None else bias, shape_of(source),
                   kernel.stride, border, depthwise=kernel.depthwise, groups=kernel.parts,
                   activation="relu" if v["NE.MACCfg.NonlinearMode"] == RELU else None)
    if layer.output_shape != shape_of(result):
        raise Unsupported(f"task {task}: Common.OutDim: got {shape_of(result)}, a convolution with these sizes and "
                           f"padding gives {layer.output_shape}")
    return replace(layer, padding=next(iter(padding_names(layer)), border))


def _behind(capture: Capture, task: int, v: Mapping[str, int], result: Surface) -> Layer | None:
    """The activation that a convolution task has a table for."""
    if v["NE.MACCfg.NonlinearMode"] != TABLE:
        return None
    kernel, data, at = kernel_at(capture, task, v)
    try:
        return activation(entries.decode(coefficients.table_of(kernel, data, at)), shape_of(result))
    except Unsupported as error:
        raise Unsupported(f"task {task}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{capture.name}: task {task}: {error}") from None


def _grouped(task: int, v: Mapping[str, int], source: Surface, result: Surface) -> None:
    """Refuse groups that do not lie one behind another."""
    groups = v["Common.GroupConvCfg.NumGroups"]
    _covered(task, v, {"TileDMASrc.GroupStride.Stride": (source.bytes // groups // UNIT,),
                       "TileDMADst.GroupStride.GroupStride": (result.bytes // groups // UNIT,)})


def kernel_at(capture: Capture, task: int, v: Mapping[str, int]) -> tuple[coefficients.Kernel, bytes, np.ndarray]:
    """The kernel of a convolution task, the section that holds it and where its engines' buffers
    lie there."""
    data = _section(capture, task, v)
    try:
        return coefficients.from_registers(v), data, coefficients.places_of(v)
    except ValueError as error:
        raise Unsupported(f"task {task}: {error}") from None


def table_at(capture: Capture, task: int, v: Mapping[str, int]) -> entries.Table:
    """The activation table of a task; all engines read the same one."""
    data = _section(capture, task, v)
    places = coefficients.places_of(v)
    found = {data[at:at + entries.SIZE] for at, _ in places.tolist()}
    if len(found) != 1 or len(next(iter(found))) != entries.SIZE or {size for _, size in places.tolist()} \
            != {entries.SIZE}:
        raise Unsupported(f"task {task}: KernelDMASrc.CoeffBaseAddr: got {len(found)} tables for {len(places)} engines"
                           f" in {len(data)} bytes, covered is one of {entries.SIZE} bytes")
    return entries.decode(found.pop())


def _section(capture: Capture, task: int, v: Mapping[str, int]) -> bytes:
    bar = capture.parameters.get("coefficients_bar", COEFFICIENT_BAR)
    _covered(task, v, {"Header.Header[9].KBE0": (1,), "Header.Header[9].KBase0": (bar,)})
    if "coefficients" not in capture.buffers:
        raise Unsupported(f"task {task}: the capture has no coefficients")
    return capture.buffers["coefficients"]


def _source(task: int, v: Mapping[str, int], surface: Surface, which: str) -> Place | None:
    """Where a source lies in memory, None where the task before left it in L2."""
    number = int(bool(which))
    if not v[f"Header.Header[8].RBE{number}"]:
        _covered(task, v, EXPECTED["source 2 in L2" if number else "source in L2"])
        return None
    if not number:
        _covered(task, v, EXPECTED["source"])
    plane = "Src2PlaneStride.Stride" if number else "PlaneStride.PlaneStride"
    strides = v[f"TileDMASrc.{which}RowStride.Stride"], v[f"TileDMASrc.{plane}"]
    _dense(task, f"TileDMASrc.{which}RowStride and {which}PlaneStride", strides, surface)
    return Place(v[f"Header.Header[8].RBase{number}"],
                 UNIT * v[f"TileDMASrc.{which}BaseAddr.Addr"], surface)


def _result(task: int, v: Mapping[str, int], surface: Surface) -> Place | None:
    """Where the result lies in memory, None where it stays in L2 for the next task."""
    if not v["Header.Header[8].WBE"]:
        _covered(task, v, EXPECTED["result in L2"])
        return None
    _covered(task, v, EXPECTED["result"])
    strides = v["TileDMADst.RowStride.RowStride"], v["TileDMADst.PlaneStride.PlaneStride"]
    _dense(task, "TileDMADst.RowStride and PlaneStride", strides, surface)
    return Place(v["Header.Header[8].WBase"], UNIT * v["TileDMADst.BaseAddr.Addr"], surface)


def _dense(task: int, what: str, strides: tuple[int, int], surface: Surface) -> None:
    """Refuse strides other than rows filled up to 64 bytes, one behind another."""
    wanted = surface.row // UNIT, surface.plane // UNIT
    if strides != wanted:
        raise Unsupported(f"task {task}: {what}: got {strides[0]:#x} and {strides[1]:#x}, covered is {wanted[0]:#x} "
                           f"and {wanted[1]:#x} for {surface.height} rows of {surface.width}")


def _inputs(capture: Capture, wired: Wiring) -> Any:
    """The input, a tuple of several; None where one is not there."""
    found = []
    for i in range(len(wired.inputs)):
        data = capture.buffers.get(f"input{i or ''}")
        if data is None:
            return None
        found.append(unpack(data, wired.shapes[-1 - i], f"{capture.name}: input{i or ''}"))
    return tuple(found) if len(found) > 1 else found[0] if found else None


def _float(bits: int) -> float:
    return float(np.array(bits, np.uint16).view(np.float16))
