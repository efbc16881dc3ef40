"""The simulated device: from words and bytes to output bytes, task by task.

It shares no code with ``lift`` and ``emulate`` except tables and kit, so its agreement with them is
evidence. Sums are computed in float64; a task's result is rounded to float16 once. The order and
the width in which the hardware adds are not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy import ndarray as Array

from npulab.npus.ane import tables
from npulab.npus.ane.facts import ENGINES, EXPECTED, SIZES, TENSORS
from npulab.npus.kit import Capture, Hang, Unsupported, ceil_div, half, up
from npulab.npus.kit.fields import expect, hang_if, values_of

HALF = np.dtype("<f2")
# Registers count strides, offsets and sizes in units of this many bytes.
ALIGN = 64
# Codes of the place of a source or result: memory, handed from a task to the next task, L2.
DMA, CHAINED, RESIDENT = 2, 3, 0
BYPASS = 4
RELU, TABLE = 1, 2
# Types of tasks: neural engine, planar engine with two sources, planar engine that reduces rows.
NE, PE_BINARY, PE_REDUCE = 0, 3, 5
OPERATIONS = (np.add, np.multiply, np.maximum, np.minimum)
# The value of PE.Cfg.SecSrc if the second source is subtracted.
SUBTRACT = 3
# A tensor has at most this many elements, so that a broken size takes at most 64 MiB.
MOST = 2**23

TABLE_BYTES = 128
# The masks of a sparse kernel have bits for at least this many lanes: for outputs of at most 8 x 8
# pixels, and for larger outputs.
SMALL_LANES, LANES = 4, 2

Values = Mapping[str, int]
# The value of a weight, its input channel in the group, its row and its column in the kernel.
Weight = tuple[float, int, int, int]


@dataclass
class Memory:
    """Bytes in memory, and tensors that tasks leave in the chip.

    ``given`` has the bytes of inputs and coefficients, ``written`` those of results, ``names`` the
    names of the capture's buffers, each by the number of the base address. ``resident`` has the
    tensors in L2 by their address in it. ``chained`` is the tensor that a task hands to the next
    task, None without one. ``last`` is the number of the base address that was written last.
    """

    given: dict[int, bytes]
    names: dict[int, str]
    written: dict[int, Array] = field(default_factory=dict)
    resident: dict[int, Array] = field(default_factory=dict)
    chained: Array | None = None
    last: int = -1

    def read(self, bar: int, places: Array) -> Array:
        """Return the float16 numbers at ``places``, byte offsets from base address number ``bar``.

        Raises Hang if the base address has no bytes, or if a place is past their end.
        """
        content = self.written.get(bar, self.given.get(bar))
        if content is None:
            wanted = ""
            if bar in self.names:
                wanted = f": the capture has no buffer {self.names[bar]!r}"
            raise Hang(f"base {bar} is read, and nothing is there{wanted}")
        data = np.frombuffer(content, np.uint8)
        if places.size and int(places.max()) + HALF.itemsize > len(data):
            raise Hang(f"base {bar} is read at byte {int(places.max()):#x}, it has {len(data):#x}")
        return data[: len(data) // 2 * 2].view(HALF)[places // 2]

    def write(self, bar: int, places: Array, values: Array) -> None:
        """Write float16 numbers at ``places``, byte offsets from base address number ``bar``.

        Bytes before the last place that no task has written are 0.
        """
        end = int(places.max(initial=0)) + HALF.itemsize
        old = self.written.get(bar, np.zeros(0, np.uint8))
        if len(old) < end:
            old = np.concatenate([old, np.zeros(up(end, ALIGN) - len(old), np.uint8)])
        old.view(HALF)[places // 2] = values
        self.written[bar], self.last = old, bar


def simulate(capture: Capture) -> bytes:
    """Run the capture's tasks in order; return the bytes at the base address written last.

    The buffers ``input``, ``input1``, ... belong to the capture's input tensors in their order;
    without tensors, to the base addresses that tasks read and no task writes, by number. Raises
    ``Hang``, with the reason, if the simulated device cannot go on: it reads bytes that nothing has
    written, or sizes contradict each other. Raises ``Unsupported`` for values of fields that it
    does not know.
    """
    blocks = {job.block for job in capture.jobs}
    if blocks != {"H13"}:
        raise Unsupported(
            f"capture {capture.name}: got blocks {', '.join(blocks)}, the simulated device runs H13"
        )
    tasks: list[Values] = []
    for job in capture.jobs:
        tasks.append(values_of(job, capture.maps, raw=True, unwritten=True))
    names = _inputs(capture, tasks)
    memory = Memory(_bytes_at_bases(capture, tasks, names), names)
    for number, v in enumerate(tasks):
        try:
            _run(v, memory)
        except (Hang, Unsupported) as error:
            raise type(error)(f"task {number}: {error}") from None
    hang_if(not memory.written, "no task writes to memory")
    return memory.written[memory.last].tobytes()


def _inputs(capture: Capture, tasks: list[Values]) -> dict[int, str]:
    """Return the name of the buffer of each input, by the number of its base address."""
    tensors = capture.parameters.get("tensors", ())
    bars = [tensor["bar"] for tensor in tensors if tensor["kind"] == "input"]
    if not bars:
        read = _bars(tasks, "source") | _bars(tasks, "source 2")
        bars = sorted(read - _bars(tasks, "result"))
    return {bar: f"input{number or ''}" for number, bar in enumerate(bars)}


def _bars(tasks: list[Values], tensor: str) -> set[int]:
    fields = TENSORS[tensor]
    return {v[fields["bar"]] for v in tasks if v[fields["valid"]]}


def _bytes_at_bases(
    capture: Capture, tasks: list[Values], names: dict[int, str]
) -> dict[int, bytes]:
    out = {bar: capture.buffers[name] for bar, name in names.items() if name in capture.buffers}
    if "coefficients" in capture.buffers:
        for v in tasks:
            if v["Header.Header[9].KBE0"]:
                out[v["Header.Header[9].KBase0"]] = capture.buffers["coefficients"]
    return out


def _run(v: Values, memory: Memory) -> None:
    """Run one task with raw values ``v``; raise the errors of ``simulate``."""
    hang_if(0 in (*_sizes(v, "source"), *_sizes(v, "result")), "a size is 0")
    _understood(v, "device")
    x = _source(v, memory).astype(np.float64)
    if v["Common.Cfg.TaskType"] != NE:
        out = _planar(v, x, memory)
    else:
        out = _neural(v, x, memory)
    with np.errstate(over="ignore"):
        out = out.astype(HALF)
    _result(v, memory, out)


def _sizes(v: Values, tensor: str) -> tuple[int, ...]:
    """Return the numbers of groups, channels of a group, rows and columns of a task's tensor."""
    return tuple(v[TENSORS[tensor][size]] for size in SIZES)


def _source(v: Values, memory: Memory) -> Array:
    """Return a task's first source ``(groups, C, H, W)``, from memory, from L2 or handed on."""
    kind = v["L2.SourceCfg.SourceType"]
    if kind == CHAINED:
        if memory.chained is None:
            raise Hang("the source is the result of the task before, which hands on nothing")
        return memory.chained
    if kind == RESIDENT:
        return _left(memory, v["L2.SourceBase.Addr"], v["Common.PECfg.Src1Broadcast"])
    _understood(v, "device source")
    return memory.read(_base(v, "source"), _places(v, "source", _sizes(v, "source")))


def _left(memory: Memory, place: int, broadcast: int) -> Array:
    """Return the tensor that an earlier task left in L2 at address ``place``.

    If ``broadcast`` is not 0, the tensor has one number a row (a reduction left it) and is returned
    with an axis of size 1 along which it is broadcast.
    """
    if place not in memory.resident:
        raise Hang(f"the source is in L2 at byte {16 * place:#x}, where no task left a tensor")
    tensor = memory.resident[place]
    if not broadcast:
        return tensor
    if tensor.shape[-1] != 1:
        raise Hang(
            f"a tensor in L2 is broadcast and has {tensor.shape[-1]} elements a row, allowed is 1"
        )
    return tensor.transpose(1, 0, 2, 3).reshape(1, tensor.shape[1], -1, 1)


def _base(v: Values, tensor: str) -> int:
    """Return the number of a tensor's base address; raise Hang if its valid bit is not set."""
    fields = TENSORS[tensor]
    hang_if(not v[fields["valid"]], f"{fields['bar'].removeprefix('Header.')} is not valid")
    return v[fields["bar"]]


def _places(v: Values, tensor: str, shape: tuple[int, ...]) -> Array:
    """Return the byte offset of each element of a tensor from its base address.

    ``shape`` and the result's shape are (groups, C, H, W).
    """
    _refuse_large(shape)
    fields = TENSORS[tensor]
    group, plane, row, column = np.ogrid[tuple(map(slice, shape))]
    places = HALF.itemsize * column + ALIGN * v[fields["offset"]]
    for name, axis in (("group", group), ("plane", plane), ("row", row)):
        places = places + ALIGN * v[fields[name]] * axis
    return places


def _refuse_large(shape: tuple[int, ...]) -> None:
    if np.prod(shape, dtype=np.float64) > MOST:
        raise Hang(f"a tensor of {' x '.join(map(str, shape))} is more than the device holds")


# The neural engine


def _neural(v: Values, x: Array, memory: Memory) -> Array:
    """Return the result ``(groups, C, H, W)`` of the neural engine in float64, not yet rounded."""
    _understood(v, "device neural")
    mode, engines = v["NE.MACCfg.OpMode"], 2 ** v["Common.Cfg.ActiveNE"]
    scale = half(v["NE.PostScale.PostScale"])
    kernel = b""
    if v["Header.Header[9].KBE0"]:
        kernel = memory.given.get(v["Header.Header[9].KBase0"], b"")
    hang_if(engines > ENGINES, f"{engines} engines, there are {ENGINES}")
    if mode == BYPASS:
        if _sizes(v, "result")[1:] != x.shape[1:]:
            raise Hang("the output of a bypass is not as large as its input")
        out = x * scale
    else:
        out = _convolution(v, x, kernel) * scale
    if v["NE.MACCfg.NonlinearMode"] == RELU:
        return np.where(out < 0, 0.0, out)
    if v["NE.MACCfg.NonlinearMode"] == TABLE:
        table = tables.decode(_stream(v, kernel, 0, "its table", TABLE_BYTES))
        with np.errstate(over="ignore"):
            return tables.evaluate(table, out.astype(HALF)).astype(np.float64)
    return out


def _convolution(v: Values, x: Array, kernel: bytes) -> Array:
    groups, channels, height, width = _sizes(v, "result")
    kernel_h, kernel_w = v["Common.ConvCfg.Kh"], v["Common.ConvCfg.Kw"]
    step_h, step_w = v["Common.ConvCfg.Sy"], v["Common.ConvCfg.Sx"]
    top, left = v["Common.ConvCfg.Py"], v["Common.ConvCfg.Px"]
    each = v["Common.GroupConvCfg.UnicastEn"]
    if 0 in (kernel_h, kernel_w, step_h, step_w) or (each and channels != x.shape[1]):
        raise Hang("a kernel or stride is 0, or a channelwise layer has other outputs than inputs")
    if max(height * step_h, width * step_w) > 2**16:
        raise Hang("the output reaches past what rows and columns can be counted with")
    if each and groups > 1:
        raise Unsupported(
            f"Common.GroupConvCfg.NumGroups: got {groups} of a channelwise layer, known is 1"
        )
    bordered = (
        *x.shape[:2],
        max((height - 1) * step_h + kernel_h, top + x.shape[2]),
        max((width - 1) * step_w + kernel_w, left + x.shape[3]),
    )
    for shape in (bordered, (groups, channels, height, width)):
        _refuse_large(shape)
    padded = np.zeros(bordered)
    padded[:, :, top : top + x.shape[2], left : left + x.shape[3]] = x
    out = np.zeros((groups * channels, height, width))
    rows, columns = (height - 1) * step_h + 1, (width - 1) * step_w + 1
    for group, channel, bias, weights in _kernels(v, kernel):
        out[channel] = bias
        for value, source, i, j in weights:
            plane = padded[group, channel if each else source]
            out[channel] += value * plane[i : i + rows : step_h, j : j + columns : step_w]
    return out.reshape(groups, channels, height, width)


# The planar engine


def _planar(v: Values, a: Array, memory: Memory) -> Array:
    """Return the result ``(groups, C, H, W)`` of the planar engine in float64, not yet rounded."""
    kind, shape = v["Common.Cfg.TaskType"], _sizes(v, "result")
    _understood(v, "device planar")
    reduction = "device reduction" if kind == PE_REDUCE else "device no reduction"
    _understood(v, reduction)
    # Cond takes the absolute value.
    if v["PE.Cfg.Cond"]:
        a = np.abs(a)
    a = a * half(v["PE.PreScale.PreScale"])
    if kind == PE_REDUCE:
        if v["PE.Cfg.PoolMode"]:
            a = a.max(-1, keepdims=True)
        else:
            a = a.sum(-1, keepdims=True)
    if kind == PE_BINARY:
        _understood(v, "device two sources")
        if v["Header.Header[8].RBE1"]:
            b = memory.read(_base(v, "source 2"), _places(v, "source 2", _sizes(v, "source 2")))
        else:
            b = _left(memory, v["L2.Src2Base.Addr"], v["Common.PECfg.Src2Broadcast"])
        b = b.astype(np.float64)
        if v["PE.Cfg.SecSrc"] == SUBTRACT:
            b = -b
        try:
            a = OPERATIONS[v["PE.Cfg.OpMode"]](a, b)
        except ValueError:
            raise Hang(
                f"the shapes {a.shape} and {b.shape} of the two sources do not broadcast"
            ) from None
    a = a * half(v["PE.BiasScale.Scale"]) + half(v["PE.BiasScale.Bias"])
    a = a * float(np.uint32(v["PE.FinalScale.FinalScale"]).view(np.float32))
    # NLMode takes the reciprocal.
    if v["PE.Cfg.NLMode"]:
        with np.errstate(divide="ignore"):
            a = 1 / a
    if kind == PE_REDUCE:
        return a
    if a.size != np.prod(shape):
        raise Hang(
            f"the output is {' x '.join(map(str, shape))}, the sources give "
            f"{' x '.join(map(str, a.shape))}"
        )
    return a.reshape(shape)


# Results: to memory, to L2 or to the next task


def _result(v: Values, memory: Memory, out: Array) -> None:
    kind = v["L2.ResultCfg.ResultType"]
    memory.chained = None
    if kind == CHAINED:
        memory.chained = out
    if kind == RESIDENT:
        memory.resident[v["L2.ResultBase.Addr"]] = out
    if kind != DMA:
        return
    _understood(v, "device result")
    bar, places = _base(v, "result"), _places(v, "result", out.shape)
    if int(places.max()) > 2 * MOST:
        raise Hang(f"base {bar} is written at byte {int(places.max()):#x}, past any buffer")
    memory.write(bar, places, out)


# The coefficients of one engine, read halfword by halfword


class _Reader:
    """A reader of one engine's coefficient bytes; a read past their end raises Hang."""

    def __init__(self, data: bytes, engine: int) -> None:
        self.data, self.at, self.engine = data, 0, engine

    def take(self, size: int) -> int:
        self.at += size
        if self.at > len(self.data):
            raise Hang(
                f"engine {self.engine} waits for {self.at} bytes of coefficients, its stream has "
                f"{len(self.data)}"
            )
        return int.from_bytes(self.data[self.at - size : self.at], "little")


def _understood(v: Values, case: str) -> None:
    """Raise Unsupported for a field with a value that a case of ``expected.csv`` does not allow."""
    expect(v, EXPECTED[case], "{name}: got {got}, known is {allowed}", Unsupported)


def _kernels(v: Values, data: bytes) -> Iterator[tuple[int, int, float, list[Weight]]]:
    """Yield (group, output channel, bias, weights) of every output channel of a convolution.

    ``data`` are the bytes from the base address of the coefficients on. Raises Hang for an engine
    whose coefficients are off, end too early, or have masks that contradict their count. Raises
    Unsupported for forms of coefficients that are not known.
    """
    _understood(v, "device kernel")
    parts, share, *_ = _sizes(v, "result")
    most, inputs = 2 ** v["Common.ConvCfg.OCGSize"], v["Common.Cin.Cin"]
    if v["Common.GroupConvCfg.UnicastEn"]:
        most, inputs = 1, 1
    for engine in range(min(ENGINES, share)):
        size = ALIGN * v[f"KernelDMASrc.CoeffBfrSize[{engine}].MemBfrSize"]
        reader = _Reader(_stream(v, data, engine, "coefficients", size), engine)
        if v["NE.MACCfg.NonlinearMode"] == TABLE:
            reader.at = TABLE_BYTES
        for part in range(parts):
            for first, lanes in _planes(engine, share, most):
                biases = [0.0] * lanes
                if v["NE.MACCfg.BiasMode"]:
                    biases = [half(reader.take(2)) for _ in range(lanes)]
                weights = _weights(v, reader, lanes, inputs)
                for lane in range(lanes):
                    yield part, part * share + first + lane, biases[lane], weights[lane]
            reader.at = up(reader.at, ALIGN)


def _stream(v: Values, data: bytes, engine: int, what: str, size: int) -> bytes:
    if not v[f"KernelDMASrc.CoeffDMAConfig[{engine}].En"]:
        raise Hang(f"engine {engine} waits for {what}, its stream is off")
    begin = ALIGN * v[f"KernelDMASrc.CoeffBaseAddr[{engine}].Addr"]
    if begin + size > len(data):
        raise Hang(f"coefficients are read to byte {begin + size:#x}, there are {len(data):#x}")
    return data[begin : begin + size]


def _planes(engine: int, share: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield (first channel, number of lanes) of each plane of an engine.

    The ``share`` channels of a group are dealt out in rounds: each of the 16 engines gets a plane
    of equally many channels (lanes). The number of lanes is ``most``, halved until 16 planes need
    no more channels than remain, but at least 1. In the last round some engines may get no plane.
    """
    begin = 0
    while begin < share:
        lanes = most
        while lanes > 1 and ENGINES * lanes > share - begin:
            lanes //= 2
        first = begin + engine * lanes
        if first + lanes <= share:
            yield first, lanes
        begin += ENGINES * lanes


def _weights(v: Values, reader: _Reader, lanes: int, inputs: int) -> list[list[Weight]]:
    """Return the weights of each lane of a plane, read from ``reader``.

    ``inputs`` is the number of input channels. A weight that a sparse kernel leaves out is 0.
    """
    sparse, small = v["NE.KernelCfg.SparseFmt"], v["Common.Cfg.SmallSourceMode"]
    width, end = lanes, 0
    if sparse:
        width = max(lanes, SMALL_LANES if small else LANES)
        end = reader.take(3) + reader.at
    out: list[list[Weight]] = [[] for _ in range(lanes)]
    mask, bit = 0xFF, 0
    for source, row, column in _taps(v, inputs):
        present = row < v["Common.ConvCfg.Kh"] and column < v["Common.ConvCfg.Kw"]
        for lane in range(width):
            if sparse and bit % 8 == 0:
                mask = reader.take(1)
            value = 0.0
            if mask // 2 ** (bit % 8) % 2:
                value = half(reader.take(2))
            bit += 1
            if present and lane < lanes:
                out[lane].append((value, source, row, column))
    if sparse and reader.at != end:
        raise Hang(
            f"engine {reader.engine}: masks and weights end at byte {reader.at}, "
            f"their count says {end}"
        )
    return out


def _taps(v: Values, inputs: int) -> Iterator[tuple[int, int, int]]:
    """Yield (input channel, row, column) of every tap in the order in which weights are stored.

    For each input channel the taps are ordered by their phase, which is row and column modulo the
    stride. Every phase has equally many taps, so some taps lie outside of the kernel.
    """
    high, wide = v["Common.ConvCfg.Sy"], v["Common.ConvCfg.Sx"]
    rows, columns = ceil_div(v["Common.ConvCfg.Kh"], high), ceil_div(v["Common.ConvCfg.Kw"], wide)
    for source, down, right, i, j in product(*map(range, (inputs, high, wide, rows, columns))):
        yield source, down + high * i, right + wide * j
