"""The simulated device: from words and bytes to output bytes, task by task.

It shares the tables and the kit with the rest and no other code, so that its agreement with lift
and emulation means something.  Sums are taken in float64 and rounded to float16 once, as the result
leaves the unit; what order and width the hardware sums in is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from npulab.captures.capture import Capture
from npulab.captures.target import Hang, Unsupported
from npulab.npus.ane import device_kernel, tables
from npulab.npus.ane.facts import ENGINES
from npulab.npus.kit.fields import values_of
from npulab.npus.kit.numbers import up

HALF = np.dtype("<f2")
ALIGN = 64  # bytes: the unit of strides, bases and sizes
FLOAT16 = 2
DMA, CHAINED, RESIDENT = 2, 3, 0  # where a tensor comes from and goes to: memory, the next task, the L2 memory
CONVOLUTION, BYPASS = 0, 4
RELU, TABLE = 1, 2
NE, PE_UNARY, PE_BINARY, PE_REDUCE = 0, 2, 3, 5  # task types
ADD, MULTIPLY, MAXIMUM, MINIMUM = 0, 1, 2, 3
SUBTRACT = 3  # of the second source
ABSOLUTE, RECIPROCAL, POOL_MAXIMUM = 1, 1, 2
SIZES = ("Win", "Hin", "Cin", "Wout", "Hout", "Cout")
MOST = 2 ** 23  # elements of a tensor, so that a broken size takes no more than 64 MiB

Values = Mapping[str, int]


@dataclass
class Memory:
    """What the base addresses point to, by their number, and what tasks leave inside the chip."""

    given: dict[int, bytes]
    names: dict[int, str] = field(default_factory=dict)  # of the buffers that a capture has for them
    written: dict[int, np.ndarray] = field(default_factory=dict)
    resident: dict[int, np.ndarray] = field(default_factory=dict)
    chained: np.ndarray | None = None

    def read(self, bar: int, places: np.ndarray) -> np.ndarray:
        """float16 at bytes of a base; Hang where nobody put anything."""
        data = self.written[bar] if bar in self.written else np.frombuffer(self.given.get(bar, b""), np.uint8)
        if bar not in self.written and bar not in self.given:
            wanted = f": the capture has no buffer {self.names[bar]!r}" if bar in self.names else ""
            raise Hang(f"base {bar} is read, and nothing is there{wanted}")
        if places.size and int(places.max()) + HALF.itemsize > len(data):
            raise Hang(f"base {bar} is read at byte {int(places.max()):#x}, it has {len(data):#x}")
        return data[:len(data) // 2 * 2].view(HALF)[places // 2]

    def write(self, bar: int, places: np.ndarray, values: np.ndarray) -> None:
        end = int(places.max(initial=0)) + HALF.itemsize
        old = self.written.get(bar, np.zeros(0, np.uint8))
        if len(old) < end:
            old = np.concatenate([old, np.zeros(up(end, ALIGN) - len(old), np.uint8)])
        old.view(HALF)[places // 2] = values
        self.written[bar] = old


def simulate(capture: Capture) -> bytes:
    """The bytes of the output after the capture's tasks ran in order.

    Inputs are the buffers ``input``, ``input1``, ... in the order of the capture's tensors; where
    it has none, in that of the bases that tasks read and none of them writes.  Raises Hang with the
    reason for reads where nothing is and sizes that do not go together, Unsupported for what is
    not understood.
    """
    if not capture.jobs or any(job.block != "H13" for job in capture.jobs):
        raise Unsupported(f"capture {capture.name}: got blocks {', '.join({job.block for job in capture.jobs})}, the "
                           "simulated device runs H13")
    tasks: list[Values] = [values_of(job, capture.maps, raw=True, unwritten=True)
                           for job in capture.jobs]
    names = _inputs(capture, tasks)
    memory = Memory(_given(capture, tasks, names), names)
    last = None
    for number, v in enumerate(tasks):
        try:
            last = _run(v, memory, last)
        except (Hang, Unsupported) as error:
            raise type(error)(f"task {number}: {error}") from None
    if last not in memory.written:
        raise Hang("no task writes to memory")
    return memory.written[last].tobytes()


def _inputs(capture: Capture, tasks: list[Values]) -> dict[int, str]:
    """The buffers of a capture that hold inputs, by the number of the base."""
    written = {v["Header.Header[8].WBase"] for v in tasks if v["Header.Header[8].WBE"]}
    read = [v[f"Header.Header[8].RBase{i}"] for v in tasks for i in (0, 1) if v[f"Header.Header[8].RBE{i}"]]
    named = [one["bar"] for one in capture.parameters.get("tensors", ()) if one["kind"] == "input"]
    bars = named or sorted({*read} - written)
    return dict(zip(bars, _names(len(bars)), strict=True))


def _given(capture: Capture, tasks: list[Values], names: dict[int, str]) -> dict[int, bytes]:
    out = {bar: capture.buffers[name] for bar, name in names.items() if name in capture.buffers}
    if "coefficients" in capture.buffers:
        out |= {v["Header.Header[9].KBase0"]: capture.buffers["coefficients"] for v in tasks
                if v["Header.Header[9].KBE0"]}
    return out


def _names(count: int) -> list[str]:
    return ["input" + (str(i) if i else "") for i in range(count)]


def _run(v: Values, memory: Memory, last: int | None) -> int | None:
    """Run a task; the base that it writes to, or the last one that was written."""
    groups = v["Common.GroupConvCfg.NumGroups"]
    kind = v["Common.Cfg.TaskType"]
    if min(v[f"Common.{register}.{name}"] for register, name in (
            ("InDim", "Win"), ("InDim", "Hin"), ("Cin", "Cin"), ("OutDim", "Wout"), ("OutDim", "Hout"),
            ("Cout", "Cout"))) < 1 or not groups:
        raise Hang("a size is 0")
    if kind not in (NE, PE_UNARY, PE_BINARY, PE_REDUCE):
        raise Unsupported(f"Common.Cfg.TaskType: got {kind}, known are {NE}, {PE_UNARY}, {PE_BINARY}, {PE_REDUCE}")
    for name in ("Common.InDepth.Din", "Common.OutDepth.Dout"):
        if v[name] > 1:
            raise Unsupported(f"{name}: got {v[name]}, known is 1")
    x = _source(v, memory, groups)
    out = _neural(v, x, memory) if kind == NE else _planar(v, x, memory, kind, groups)
    with np.errstate(over="ignore"):
        out = out.astype(HALF)
    return _result(v, memory, out, last)


def _source(v: Values, memory: Memory, groups: int) -> np.ndarray:
    """The first source ``(groups, C, H, W)``."""
    shape = groups, v["Common.Cin.Cin"], v["Common.InDim.Hin"], v["Common.InDim.Win"]
    kind = v["L2.SourceCfg.SourceType"]
    if kind == CHAINED:
        if memory.chained is None:
            raise Hang("its source is what the task before hands on, which hands on nothing")
        return memory.chained
    if kind == RESIDENT:
        return _left(memory, v["L2.SourceBase.Addr"], v["Common.PECfg.Src1Broadcast"])
    if kind != DMA:
        raise Unsupported(f"L2.SourceCfg.SourceType: got {kind}, known are {RESIDENT}, {DMA}, {CHAINED}")
    _is_half(v, "TileDMASrc.Fmt.MemFmt")
    steps = [v[f"TileDMASrc.{name}"] for name in ("GroupStride.Stride", "PlaneStride.PlaneStride", "RowStride.Stride")]
    return memory.read(_base(v, "RBase0", "RBE0"), _places(shape, v["TileDMASrc.BaseAddr.Addr"], steps))


def _second(v: Values, memory: Memory, groups: int) -> np.ndarray:
    shape = groups, v["Common.Cin.Cin"], v["Common.InDim.Hin"], v["Common.InDim.Win"]
    if not v["Header.Header[8].RBE1"]:
        return _left(memory, v["L2.Src2Base.Addr"], v["Common.PECfg.Src2Broadcast"])
    steps = [v[f"TileDMASrc.Src2{name}.Stride"] for name in ("GroupStride", "PlaneStride", "RowStride")]
    return memory.read(v["Header.Header[8].RBase1"], _places(shape, v["TileDMASrc.Src2BaseAddr.Addr"], steps))


def _left(memory: Memory, place: int, broadcast: int) -> np.ndarray:
    """What a task left in L2; a number for each row, as a reduction by rows leaves them, where it
    is broadcast."""
    if place not in memory.resident:
        raise Hang(f"its source lies in L2 at {16 * place:#x}, where no task left anything")
    found = memory.resident[place]
    if not broadcast:
        return found
    if found.shape[-1] != 1:
        raise Hang(f"a row of {found.shape[-1]} elements in L2 is broadcast along rows")
    return found.transpose(1, 0, 2, 3).reshape(1, found.shape[1], -1, 1)


def _base(v: Values, name: str, valid: str) -> int:
    if not v[f"Header.Header[8].{valid}"]:
        raise Hang(f"Header[8].{name} is not valid")
    return v[f"Header.Header[8].{name}"]


def _is_half(v: Values, name: str) -> None:
    if v[name] != FLOAT16:
        raise Unsupported(f"{name}: got {v[name]}, known is {FLOAT16} (float16)")


def _places(shape: tuple[int, ...], base: int, steps: list[int]) -> np.ndarray:
    """Bytes of the elements of (groups, C, H, W) whose strides are in units of 64."""
    _refuse_large(shape)
    axes = np.ogrid[tuple(slice(size) for size in shape)]
    return ALIGN * base + sum(ALIGN * step * axis for step, axis in zip(steps, axes[:3], strict=True)) + 2 * axes[3]


def _refuse_large(shape: tuple[int, ...]) -> None:
    if np.prod(shape, dtype=np.float64) > MOST:
        raise Hang(f"a tensor of {' x '.join(map(str, shape))} is more than the device holds")


# The neural engine


def _neural(v: Values, x: np.ndarray, memory: Memory) -> np.ndarray:
    """``(groups, C, H, W)`` float64 of the neural engine, before it is rounded."""
    mode, engines = v["NE.MACCfg.OpMode"], 2 ** v["Common.Cfg.ActiveNE"]
    scale = _half(v["NE.PostScale.PostScale"])
    kernel = memory.given.get(v["Header.Header[9].KBase0"], b"") if v["Header.Header[9].KBE0"] else b""
    if engines > ENGINES:
        raise Hang(f"{engines} engines, there are {ENGINES}")
    if mode == BYPASS:
        if tuple(v[f"Common.{name}"] for name in ("Cout.Cout", "OutDim.Hout", "OutDim.Wout")) != x.shape[1:]:
            raise Hang("the output of a bypass is not as large as its input")
        out = x.astype(np.float64)
    elif mode == CONVOLUTION:
        out = _convolution(v, x.astype(np.float64), kernel)
    else:
        raise Unsupported(f"NE.MACCfg.OpMode: got {mode}, known are {CONVOLUTION} and {BYPASS}")
    out = out * scale
    how = v["NE.MACCfg.NonlinearMode"]
    if how == RELU:
        return np.where(out < 0, 0.0, out)
    if how == TABLE:
        with np.errstate(over="ignore"):
            codes = out.astype(HALF).view(np.uint16)
        every = tables.outputs(tables.decode(device_kernel.table(v, kernel)))
        return every[codes].astype(np.float64)
    if how:
        raise Unsupported(f"NE.MACCfg.NonlinearMode: got {how}, known are 0, {RELU} and {TABLE}")
    return out


def _convolution(v: Values, x: np.ndarray, kernel: bytes) -> np.ndarray:
    groups, channels = v["Common.GroupConvCfg.NumGroups"], v["Common.Cout.Cout"]
    height, width = v["Common.OutDim.Hout"], v["Common.OutDim.Wout"]
    kernel_h, kernel_w = v["Common.ConvCfg.Kh"], v["Common.ConvCfg.Kw"]
    step_h, step_w = v["Common.ConvCfg.Sy"], v["Common.ConvCfg.Sx"]
    top, left = v["Common.ConvCfg.Py"], v["Common.ConvCfg.Px"]
    each = v["Common.GroupConvCfg.UnicastEn"]
    if not kernel_h or not kernel_w or not step_h or not step_w or (each and channels != x.shape[1]):
        raise Hang("a kernel or stride is 0, or a channelwise layer has other outputs than inputs")
    if max(height * step_h, width * step_w) > 2 ** 16:
        raise Hang("the output reaches past what rows and columns can be counted with")
    if each and groups > 1:
        raise Unsupported(f"Common.GroupConvCfg.NumGroups: got {groups} of a channelwise layer, known is 1")
    bordered = (*x.shape[:2], max((height - 1) * step_h + kernel_h, top + x.shape[2]),
                max((width - 1) * step_w + kernel_w, left + x.shape[3]))
    for shape in (bordered, (groups, channels, height, width)):
        _refuse_large(shape)
    padded = np.zeros(bordered)
    padded[:, :, top:top + x.shape[2], left:left + x.shape[3]] = x
    out = np.zeros((groups * channels, height, width))
    for group, channel, bias, weights in device_kernel.kernels(v, kernel):
        out[channel] = bias
        for value, source, i, j in weights:
            plane = padded[group, channel if each else source]
            out[channel] += value * plane[i:i + (height - 1) * step_h + 1:step_h, j:j + (width - 1) * step_w + 1:step_w]
    return out.reshape(groups, channels, height, width)


# The planar engine


def _planar(v: Values, x: np.ndarray, memory: Memory, kind: int, groups: int) -> np.ndarray:
    """``(groups, C, H, W)`` float64 of the planar engine, before it is rounded."""
    shape = groups, v["Common.Cout.Cout"], v["Common.OutDim.Hout"], v["Common.OutDim.Wout"]
    a = x.astype(np.float64)
    if v["PE.Cfg.Cond"] == ABSOLUTE:
        a = np.abs(a)
    elif v["PE.Cfg.Cond"]:
        raise Unsupported(f"PE.Cfg.Cond: got {v['PE.Cfg.Cond']}, known are 0 and {ABSOLUTE} (absolute)")
    a = a * _half(v["PE.PreScale.PreScale"])
    pool, op = v["PE.Cfg.PoolMode"], v["PE.Cfg.OpMode"]
    if kind == PE_REDUCE:
        if pool not in (0, POOL_MAXIMUM):
            raise Unsupported(f"PE.Cfg.PoolMode: got {pool}, known are 0 (sum) and {POOL_MAXIMUM} (maximum)")
        a = a.max(-1, keepdims=True) if pool else a.sum(-1, keepdims=True)
    elif pool:
        raise Unsupported(f"PE.Cfg.PoolMode: got {pool} in a task of type {kind}, known is 0")
    if kind == PE_BINARY:
        b = _second(v, memory, groups).astype(np.float64)
        if v["PE.Cfg.SecSrc"] == SUBTRACT:
            b = -b
        try:
            a = (np.add, np.multiply, np.maximum, np.minimum)[op](a, b)
        except IndexError:
            raise Unsupported(f"PE.Cfg.OpMode: got {op}, known are {ADD} to {MINIMUM}") from None
        except ValueError:
            raise Hang(f"its sources are {a.shape} and {b.shape}") from None
    a = a * _half(v["PE.BiasScale.Scale"]) + _half(v["PE.BiasScale.Bias"])
    a = a * float(np.uint32(v["PE.FinalScale.FinalScale"]).view(np.float32))
    if v["PE.Cfg.NLMode"] == RECIPROCAL:
        with np.errstate(divide="ignore"):
            a = 1 / a
    elif v["PE.Cfg.NLMode"]:
        raise Unsupported(f"PE.Cfg.NLMode: got {v['PE.Cfg.NLMode']}, known are 0 and {RECIPROCAL} (reciprocal)")
    if kind != PE_REDUCE and a.shape != shape and a.size == np.prod(shape):
        a = a.reshape(shape)
    if kind != PE_REDUCE and a.shape != shape:
        raise Hang(f"its output is {' x '.join(map(str, shape))}, its sources give {' x '.join(map(str, a.shape))}")
    return a


# Where results go


def _result(v: Values, memory: Memory, out: np.ndarray, last: int | None) -> int | None:
    kind = v["L2.ResultCfg.ResultType"]
    memory.chained = out if kind == CHAINED else None
    if kind == RESIDENT:
        memory.resident[v["L2.ResultBase.Addr"]] = out
    if kind != DMA:
        if kind not in (CHAINED, RESIDENT):
            raise Unsupported(f"L2.ResultCfg.ResultType: got {kind}, known are {RESIDENT}, {DMA}, {CHAINED}")
        return last
    _is_half(v, "TileDMADst.Fmt.MemFmt")
    steps = [v[f"TileDMADst.{name}.{name}"] for name in ("GroupStride", "PlaneStride", "RowStride")]
    bar = _base(v, "WBase", "WBE")
    places = _places(out.shape, v["TileDMADst.BaseAddr.Addr"], steps)
    if int(places.max()) > 2 * MOST:
        raise Hang(f"base {bar} is written at byte {int(places.max()):#x}, past any buffer")
    memory.write(bar, places, out)
    return bar


def _half(code: int) -> float:
    return float(np.uint16(code).view(np.float16))
