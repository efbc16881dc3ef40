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
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from npulab.npus.ane.source.network import Input, Network, Output
from npulab.npus.ane.source.parameters import (
    ALIGN,
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
from npulab.npus.kit.fields import values_of as values_of_job
from npulab.npus.kit.rows import numbers_of, read_rows

if TYPE_CHECKING:
    import pandas as pd

    from npulab.captures.capture import Capture

Values = Mapping[str, int]
HALF = "Float16"
ROWS = read_rows(Path(__file__).with_name("claims.csv"))
# PE.Cfg.OpMode of two sources; order and spelling of the last two: 0 to 3 in the bare task files
ELEMENTWISE = {"Add": 0, "Mult": 1, "Mul": 1, "Max": 2, "Min": 3}
SEEN = ("Conv", "Neuron", "Concat", "ScaledElementWise", "GOC")
STEP_BITS, SIZE_BITS = 2, 5  # of ConvCfg; larger kernels are cut by the compiler
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
           for what, field, expected in _stated(network, task)]
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


def values_of(capture: Capture) -> Sequence[Values]:
    """The raw numbers by field of each of a capture's tasks, in order."""
    return [values_of_job(job, capture.maps, raw=True) for job in capture.jobs]


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


def _stated(network: Network, task: _Task) -> Iterator[tuple[str, str, int]]:
    """(what, field, number) of each register that a network says something of."""
    of, size = subject(network, task), engine_bytes(network)
    for row, number in numbers_of(ROWS, of):
        yield row.note, row.field, number
    # which engines get a table changed from one compiler to the next
    if not of.engines_known or (of.engines and not of.conv and task.channels > 1):
        return
    for engine in range(ENGINES):
        yield (f"coefficients of engine {engine}", f"KernelDMASrc.CoeffDMAConfig[{engine}].En",
               int(engine < of.engines))
        if engine < of.engines and size:
            yield (f"offset of engine {engine} / {ALIGN}",
                   f"KernelDMASrc.CoeffBaseAddr[{engine}].Addr", engine * size // ALIGN)
            yield (f"bytes of engine {engine} / {ALIGN}",
                   f"KernelDMASrc.CoeffBfrSize[{engine}].MemBfrSize", size // ALIGN)


def subject(network: Network, task: _Task) -> Any:
    """What the rows of ``claims.csv`` speak of; a number is None where nothing is known."""
    chain, main, result = task.chain, task.chain.main, task.result
    (source, stored), *more = task.sources
    second, second_stored = more[0] if more else (source, None)
    kernel, engines = kernel_of(main), engines_of(network)
    conv, two = main.type == "Conv", len(task.sources) > 1
    neural = main.type in ("Conv", "Neuron", "Concat")
    known = neural or main.type == "ScaledElementWise"
    unscaled = neural and not any({"ScaleScalar", "ScaleIndex"} & unit.scalars.keys()
                                  for unit in chain.fused)
    log = (min(task.channels, ENGINES) - 1).bit_length()
    return SimpleNamespace(
        chain=chain, source=source, result=result, channels=task.channels, base=task.base,
        # a copied part is as large as its input
        written=source if main.type == "Concat" else result, two=two, alone=not two,
        flat=max(source.depth, result.depth) == 1, input=stored is not None, output=chain.output,
        # types of which a file was seen
        half_input=source.type == HALF, half_output=result.type == HALF,
        half_second=two and second.type == HALF,
        half_kernel=conv and main.params.get("KernelType", HALF) in (HALF, "Float32"),
        first_strides=_strides("Input", stored, source),
        second_strides=_strides("Input", second_stored, second),
        output_strides=_strides("Output", chain.output, result),
        neural=neural, conv=conv, bypass=neural and not conv, engines_code=log,
        engines_code_1=log + 1, mode=nonlinear_mode(chain), unscaled=unscaled,
        bias_known=unscaled and (chain.has_bias or all(unit.type != "GOC" for unit in chain.fused)),
        binary=main.type == "ScaledElementWise" and two and not chain.fused,
        scale=main.params.get("Scale", ONE), operation=ELEMENTWISE.get(main.params.get("Type", "")),
        constants=main.type == "GOC", bias_scalar=main.params.get("BiasScalar"),
        scale_scalar=main.params.get("ScaleScalar"), kernel=kernel,
        kernel_known=known and max(kernel.width, kernel.height, kernel.left, kernel.top)
        < 2 ** SIZE_BITS,
        step_known=max(kernel.step_x, kernel.step_y) < 2 ** STEP_BITS,
        # a bare bias or scale for each channel lies in memory too, in a way that no file shows
        engines_known=engines is not None and known and (conv or not chain.fused),
        engines=engines, has_engines=bool(engines))


def _strides(side: str, part: Input | Output | None, shape: Shape) -> Any:
    """Bytes between rows, planes and depth slices of a tensor; None where nothing says them."""
    keys = {} if part is None else part.keys
    sure = part is not None and shape.interleave == 1 and shape.batch == 1
    return SimpleNamespace(**{
        name.removeprefix(side).removesuffix("Stride"): number if sure or name in keys else None
        for name, number in strides(keys, side, shape).items()})
