"""A source network held against the registers of a compiled file: what it says, what agrees, and
what that proves.

Registers are plain mappings of raw numbers by block, register and field (``Common.InDim.Win``), one
for each task. Only what files of compilers 4.2.1 to 9.509 show is claimed: where the compiler
chooses (tiles, places in the unit's memory) or nobody saw a file (8-bit types, batches), nothing
is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from npulab.npus.ane.source.network import Input, Network
from npulab.npus.ane.source.parameters import (
    ALIGN,
    CODES,
    ENGINES,
    ONE,
    Chain,
    Shape,
    chain_of,
    engine_bytes,
    engines_of,
    kernel_of,
    nonlinear_mode,
    shapes,
    strides,
    tasks_of,
)

if TYPE_CHECKING:
    import pandas as pd

    from npulab.captures.capture import Capture

Values = Mapping[str, int]
# Two sources of the planar engine.  Order and spelling of the last two: PE.Cfg.OpMode 0 to 3 in the
# bare task files
ELEMENTWISE = {"Add": 0, "Mult": 1, "Mul": 1, "Max": 2, "Min": 3}
BOTH_SOURCES, NE, PE_BINARY = 3, 0, 3
CONVOLVE, BYPASS = 0, 4
SEEN = ("Conv", "Neuron", "Concat", "ScaledElementWise", "GOC")
STEP_BITS, SIZE_BITS = 2, 5  # of ConvCfg; larger kernels are cut by the compiler
SIDES = {"Row": "RowStride", "Plane": "PlaneStride", "Depth": "DepthStride"}
SOURCE = {"Row": "RowStride.Stride", "Plane": "PlaneStride.PlaneStride", "Depth": "DepthStride.Stride"}
SECOND = {"Row": "Src2RowStride.Stride", "Plane": "Src2PlaneStride.Stride", "Depth": "Src2DepthStride.Stride"}
RESULT = {"Row": "RowStride.RowStride", "Plane": "PlaneStride.PlaneStride", "Depth": "DepthStride.DepthStride"}
COLUMNS = ("file", "task", "what", "field", "expected", "found", "varies")
SHOWN = 6


class Claim(NamedTuple):
    """What a network says of a field of a task: the raw number that it should have."""

    task: int
    what: str
    field: str
    expected: int


class Comparison(NamedTuple):
    """A claim and what was found; None where the file has the task but its values lack the
    field."""

    claim: Claim
    found: int | None
    told: bool = True

    @property
    def agrees(self) -> bool:
        return self.found == self.claim.expected

    @property
    def differs(self) -> bool:
        """Another number, or no such task."""
        return self.told and not self.agrees

    def __str__(self) -> str:
        found = "no such task" if self.found is None and self.told else "nothing" if self.found is None else self.found
        return f"task {self.claim.task} {self.claim.field}: {self.claim.what} {self.claim.expected}, found {found}"


@dataclass(frozen=True)
class _Task:
    """One task of a network: which inputs it reads, in the order of its sources, and where in the
    output it writes."""

    number: int
    chain: Chain
    sources: tuple[tuple[Shape, Input | None], ...]
    result: Shape
    channels: int
    base: int | None


def claims(network: Network) -> list[Claim]:
    """What a network says of its file's registers: sizes, types, strides, kernel, bias, engines,
    activation.

    Nothing is claimed of a network that is none of the kinds seen: with two main units, views or
    broadcasts, or batches.  Raises ValueError for shapes that do not go together.
    """
    chain, found = chain_of(network), shapes(network)
    covered = {chain.main.name, *(one.name for one in chain.fused)}
    if chain.main.type not in SEEN or any(one.name not in covered for one in network.units) \
            or any(one.batch > 1 for one in found.values()):
        return []
    out = [Claim(task.number, what, field, expected) for task in _tasks(network, chain)
           for part in (_sizes, _memory, _work, _kernel) for what, field, expected in part(network, task)]
    last = tasks_of(network) - 1
    return out + [Claim(task, "last task", "Header.Header[0].EON", int(task == last)) for task in range(last + 1)]


def compare(stated: Sequence[Claim], values: Sequence[Values]) -> list[Comparison]:
    """Each claim with what a file's tasks say; ``values`` are raw numbers by field, for each task
    in order."""
    out = []
    for claim in stated:
        if claim.task >= len(values):
            out.append(Comparison(claim, None))
        else:
            found = values[claim.task].get(claim.field)
            out.append(Comparison(claim, None if found is None else int(found), found is not None))
    return out


def values_of(capture: Capture) -> list[dict[str, int]]:
    """The raw numbers by field of each of a capture's tasks, in order."""
    return [{f"{block}.{item.register}.{item.name}": int(raw) for block, item, raw in job.values(capture.maps)}
            for job in capture.jobs]


@dataclass(frozen=True)
class Agreement:
    """Networks held against the files of the same names: every comparison, and how many of them
    prove something."""

    comparisons: Mapping[str, tuple[Comparison, ...]]
    varying: frozenset[str]

    @cached_property
    def told(self) -> list[tuple[str, Comparison]]:
        return [(name, one) for name, found in self.comparisons.items() for one in found if one.told]

    @property
    def count(self) -> int:
        return len(self.told)

    @property
    def agree(self) -> int:
        return sum(one.agrees for _, one in self.told)

    @property
    def differ(self) -> int:
        return sum(one.differs for _, one in self.told)

    @property
    def tested(self) -> int:
        """Comparisons of fields that are not the same in all tasks of all files."""
        return sum(one.claim.field in self.varying for _, one in self.told)

    @property
    def table(self) -> pd.DataFrame:
        """One row for each comparison: file, task, what, field, expected, found, varies (between
        the files)."""
        import pandas as pd

        rows = [(name, *one.claim, one.found, one.claim.field in self.varying) for name, one in self.told]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def __str__(self) -> str:
        wrong = [f"{name}: {one}" for name, one in self.told if one.differs]
        listed = "".join(f"\n  {one}" for one in wrong[:SHOWN]) + ("\n  ..." if len(wrong) > SHOWN else "")
        return (f"{self.count} comparisons in {len(self.comparisons)} files: {self.agree} agree, {self.differ} differ; "
                f"{self.tested} test a value that varies between the files{listed}")


def agreement(networks: Mapping[str, Network], files: Mapping[str, Sequence[Values]]) -> Agreement:
    """Each network held against the file of its name, given as the values of its tasks.

    Raises ValueError for names that only one of the two has.
    """
    alone = networks.keys() ^ files.keys()
    if alone:
        raise ValueError(f"agreement: got {min(alone)!r} without a network or without a file, allowed are pairs")
    seen = defaultdict(set)
    for tasks in files.values():
        for values in tasks:
            for field, value in values.items():
                seen[field].add(int(value))
    compared = {name: tuple(compare(claims(network), files[name])) for name, network in networks.items()}
    return Agreement(compared, frozenset(field for field, found in seen.items() if len(found) > 1))


def pairings(networks: Mapping[str, Network], files: Mapping[str, Sequence[Values]]) -> pd.DataFrame:
    """How many comparisons differ when each network (row) is held against each file (column)."""
    import pandas as pd

    stated = {name: claims(network) for name, network in networks.items()}
    rows = {name: {file: sum(one.differs for one in compare(found, tasks)) for file, tasks in files.items()}
            for name, found in stated.items()}
    return pd.DataFrame.from_dict(rows, orient="index")


def _tasks(network: Network, chain: Chain) -> Iterator[_Task]:
    found = shapes(network)
    result = found[chain.output.name if chain.output else (chain.fused or (chain.main,))[-1].name]
    sources = [(found[name], part if isinstance(part := network.parts[name], Input) else None)
               for name in chain.main.bottoms]
    if chain.main.type != "Concat":
        yield _Task(0, chain, tuple(sources), result, result.channels, 0)
        return
    along = chain.main.params.get("Dimension", "Channel") in ("Channel", "Channels")
    plane = strides(chain.output.keys if chain.output else {}, "Output", result)["OutputPlaneStride"]
    before = 0
    for number, source in enumerate(sources):
        channels = source[0].channels
        yield _Task(number, chain, (source,), result, channels, before * plane if along else None)
        before += channels


def _sizes(_: Network, task: _Task) -> Iterator[tuple[str, str, int]]:
    source, result = task.sources[0][0], task.result
    yield "input width", "Common.InDim.Win", source.width
    yield "input height", "Common.InDim.Hin", source.height
    yield "input channels", "Common.Cin.Cin", source.channels
    yield "output channels", "Common.Cout.Cout", task.channels
    if task.chain.main.type != "Concat":  # a copied part is as large as its input
        source = result
    yield "output width", "Common.OutDim.Wout", source.width
    yield "output height", "Common.OutDim.Hout", source.height
    if max(task.sources[0][0].depth, result.depth) == 1:
        yield "input depth", "Common.InDepth.Din", 1
        yield "output depth", "Common.OutDepth.Dout", 1


def _memory(_: Network, task: _Task) -> Iterator[tuple[str, str, int]]:
    yield from _formats(task)
    for (shape, part), fields in zip(task.sources, (SOURCE, SECOND), strict=False):
        if part is not None:
            yield from _strides("input", "TileDMASrc", fields, part.keys, shape)
    if len(task.sources) == 1:
        yield from _strides("no second input", "TileDMASrc", SECOND, dict.fromkeys(
            (f"Input{side}" for side in SIDES.values()), 0), task.sources[0][0])
    if task.chain.output is not None:
        yield from _strides("output", "TileDMADst", RESULT, task.chain.output.keys, task.result)
        yield "output interleave", "TileDMADst.Fmt.Interleave", task.result.interleave
        yield "output interleave", "L2.ResultCfg.DMAInterleave", task.result.interleave
        if task.base is not None and task.base % ALIGN == 0:
            yield "output offset", "TileDMADst.BaseAddr.Addr", task.base // ALIGN
    if task.sources[0][1] is not None:
        yield "input interleave", "TileDMASrc.Fmt.Interleave", task.sources[0][0].interleave
        yield "input interleave", "L2.SourceCfg.DMAInterleave", task.sources[0][0].interleave


def _formats(task: _Task) -> Iterator[tuple[str, str, int]]:
    """Types of which a file was seen; a second source's is 0 where there is none."""
    half = CODES["Float16"]
    types = [shape.type for shape, _ in task.sources]
    if types[0] == "Float16":
        yield "input type", "Common.ChCfg.InFmt", half
        yield "input type", "TileDMASrc.Fmt.MemFmt", half
    if len(types) == 1 or types[1] == "Float16":
        yield "second input's type", "Common.ChCfg.Src2InFmt", half if len(types) > 1 else 0
    if task.result.type == "Float16":
        yield "output type", "Common.ChCfg.OutFmt", half
        yield "output type", "TileDMADst.Fmt.MemFmt", half


def _strides(what: str, block: str, fields: Mapping[str, str], keys: Mapping[str, int], shape: Shape,
             ) -> Iterator[tuple[str, str, int]]:
    side = "Output" if what == "output" else "Input"
    for axis, found in strides(keys, side, shape).items():
        name = axis.removeprefix(side).removesuffix("Stride")
        sure = axis in keys or (shape.interleave == 1 and shape.batch == 1)
        if name in fields and sure and found % ALIGN == 0:
            yield f"{what}: {name.lower()} stride / {ALIGN}", f"{block}.{fields[name]}", found // ALIGN


def _work(network: Network, task: _Task) -> Iterator[tuple[str, str, int]]:
    """Which unit works, on how many sources, and what it does."""
    main, two = task.chain.main, len(task.sources) > 1
    yield "a first input", "Header.Header[8].RBE0", 1
    yield "a second input", "Header.Header[8].RBE1", int(two)
    yield "an output", "Header.Header[8].WBE", 1
    if main.type in ("Conv", "Neuron", "Concat"):
        yield "sources", "Common.Cfg.SrcUse", 1
        yield "the neural engine", "Common.Cfg.TaskType", NE
        log = (min(task.channels, ENGINES) - 1).bit_length()
        yield "engines: log2", "Common.Cfg.ActiveNE", log
        yield "engines: log2 + 1", "Header.Header[8].ENE", log + 1
        yield "operation", "NE.MACCfg.OpMode", CONVOLVE if main.type == "Conv" else BYPASS
        yield "no kernel", "NE.MACCfg.KernelMode", int(main.type != "Conv")
        yield "a channel by itself", "Common.GroupConvCfg.UnicastEn", int(main.type != "Conv")
        yield "activation", "NE.MACCfg.NonlinearMode", nonlinear_mode(task.chain)
        yield "two inputs", "L2.SourceCfg.DualSource", 0
        if not any({"ScaleScalar", "ScaleIndex"} & one.scalars.keys() for one in task.chain.fused):
            yield "scale", "NE.PostScale.PostScale", ONE
            if task.chain.has_bias or not any(one.type == "GOC" for one in task.chain.fused):
                yield "bias", "NE.MACCfg.BiasMode", int(task.chain.has_bias)
    elif main.type == "ScaledElementWise" and two and not task.chain.fused:
        yield "sources", "Common.Cfg.SrcUse", BOTH_SOURCES
        yield "the planar engine", "Common.Cfg.TaskType", PE_BINARY
        yield "no engines", "Header.Header[8].ENE", 0
        yield "two inputs", "L2.SourceCfg.DualSource", 1
        yield "bias", "PE.BiasScale.Bias", 0
        yield "scale", "PE.BiasScale.Scale", main.params.get("Scale", ONE)
        if main.params.get("Type") in ELEMENTWISE:
            yield "operation", "PE.Cfg.OpMode", ELEMENTWISE[main.params["Type"]]
    elif main.type == "GOC":
        for key, field in (("BiasScalar", "PE.BiasScale.Bias"), ("ScaleScalar", "PE.BiasScale.Scale")):
            if key in main.params:
                yield key, field, main.params[key]


def _kernel(network: Network, task: _Task) -> Iterator[tuple[str, str, int]]:
    main, kernel = task.chain.main, kernel_of(task.chain.main)
    sized = max(kernel.width, kernel.height, kernel.left, kernel.top) < 2 ** SIZE_BITS
    if main.type in ("Conv", "Neuron", "Concat", "ScaledElementWise") and sized:
        yield "kernel width", "Common.ConvCfg.Kw", kernel.width
        yield "kernel height", "Common.ConvCfg.Kh", kernel.height
        yield "left padding", "Common.ConvCfg.Px", kernel.left
        yield "top padding", "Common.ConvCfg.Py", kernel.top
        if max(kernel.step_x, kernel.step_y) < 2 ** STEP_BITS:
            yield "step x", "Common.ConvCfg.Sx", kernel.step_x
            yield "step y", "Common.ConvCfg.Sy", kernel.step_y
    if main.type == "Conv" and main.params.get("KernelType", "Float16") in ("Float16", "Float32"):
        yield "kernel type", "NE.KernelCfg.KernelFmt", CODES["Float16"]
    engines, size = engines_of(network), engine_bytes(network)
    # a bare bias or scale for each channel lies in memory too, in a way that no file shows
    if engines is None or main.type not in ("Conv", "Neuron", "Concat", "ScaledElementWise") or (
            main.type != "Conv" and task.chain.fused):
        return
    yield "coefficients", "Header.Header[9].KBE0", int(engines > 0)
    yield "coefficients", "KernelDMASrc.MasterConfig.MasterEnable", int(engines > 0)
    if main.type != "Conv" and engines and task.channels > 1:
        return  # which engines get a table changed from one compiler to the next
    for engine in range(ENGINES):
        yield f"coefficients of engine {engine}", f"KernelDMASrc.CoeffDMAConfig[{engine}].En", int(engine < engines)
        if engine < engines and size:
            yield (f"offset of engine {engine} / {ALIGN}", f"KernelDMASrc.CoeffBaseAddr[{engine}].Addr",
                   engine * size // ALIGN)
            yield (f"bytes of engine {engine} / {ALIGN}", f"KernelDMASrc.CoeffBfrSize[{engine}].MemBfrSize",
                   size // ALIGN)
