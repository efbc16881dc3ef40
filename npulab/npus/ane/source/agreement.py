"""A source network held against the registers of a compiled file: what it says, what agrees, and
what that proves.

Registers are plain mappings of raw numbers by block, register and field (``Common.InDim.Win``), one
for each task. Only what files of compilers 4.2.1 to 9.509 show is claimed: where the compiler
chooses (tiles, places in the unit's memory) or nobody saw a file (8-bit types, batches), nothing
is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from npulab.captures.target import Claim
from npulab.npus.ane.facts import ENGINES
from npulab.npus.ane.source.network import Network
from npulab.npus.ane.source.parameters import (
    ALIGN,
    chain_of,
    engine_bytes,
    shapes,
    subject,
    tasks_of,
)
from npulab.npus.kit import Capture, numbers_of, pd, read_rows
from npulab.npus.kit.fields import values_of as values_of_job

Values = Mapping[str, int]
ROWS = read_rows(Path(__file__).with_name("claims.csv"))
SEEN = ("Conv", "Neuron", "Concat", "ScaledElementWise", "GOC")
COLUMNS = ("file", "task", "what", "field", "expected", "found", "varies")
SHOWN = 6
NETWORK = "net.plist"


def claims(network: Network) -> list[Claim]:
    """What a network says of its file's registers: sizes, types, strides, kernel, bias, engines,
    activation.

    Nothing is claimed of a network that is none of the kinds seen: with two main units, views or
    broadcasts, or batches.  Raises ValueError for shapes that do not go together.
    """
    chain, found = chain_of(network), shapes(network)
    covered = {chain.main.name, *(one.name for one in chain.fused)}
    if (
        chain.main.type not in SEEN
        or any(one.name not in covered for one in network.units)
        or any(one.batch > 1 for one in found.values())
    ):
        return []
    last = tasks_of(network) - 1
    out = [claim for task in range(last + 1) for claim in _stated(network, task)]
    return out + [
        Claim(task, "last task", "Header.Header[0].EON", int(task == last))
        for task in range(last + 1)
    ]


def compare(stated: Sequence[Claim], values: Sequence[Values]) -> list[Claim]:
    """The claims with what a file's tasks say, None if it has no such task; ``values`` are raw
    numbers by field, for each task in order.

    A claim of a field that a task's values lack is left out.
    """
    found = [
        (claim, values[claim.task].get(claim.field) if claim.task < len(values) else None)
        for claim in stated
    ]
    return [
        claim._replace(got=None if number is None else int(number), source=NETWORK)
        for claim, number in found
        if number is not None or claim.task >= len(values)
    ]


def values_of(capture: Capture) -> Sequence[Values]:
    """The raw numbers by field of each of a capture's tasks, in order."""
    return [values_of_job(job, capture.maps, raw=True) for job in capture.jobs]


@dataclass(frozen=True)
class Agreement:
    """Networks held against the files of the same names: every comparison, and how many of them
    prove something."""

    comparisons: Mapping[str, tuple[Claim, ...]]
    varying: frozenset[str]

    @cached_property
    def claims(self) -> list[tuple[str, Claim]]:
        """Every claim, behind the name of its file."""
        return [(name, one) for name, found in self.comparisons.items() for one in found]

    @property
    def count(self) -> int:
        return len(self.claims)

    @property
    def agree(self) -> int:
        return sum(one.agrees for _, one in self.claims)

    @property
    def differ(self) -> int:
        return self.count - self.agree

    @property
    def tested(self) -> int:
        """Comparisons of fields that are not the same in all tasks of all files."""
        return sum(one.field in self.varying for _, one in self.claims)

    @property
    def table(self) -> pd.DataFrame:
        """One row for each comparison: file, task, what, field, expected, found, varies (between
        the files)."""
        rows = [(name, *one[:5], one.field in self.varying) for name, one in self.claims]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def __str__(self) -> str:
        wrong = [f"{name}: {one}" for name, one in self.claims if not one.agrees]
        listed = "".join(f"\n  {one}" for one in wrong[:SHOWN]) + (
            "\n  ..." if len(wrong) > SHOWN else ""
        )
        return (
            f"{self.count} comparisons in {len(self.comparisons)} files: {self.agree} agree, "
            f"{self.differ} differ; "
            f"{self.tested} test a value that varies between the files{listed}"
        )


def agreement(networks: Mapping[str, Network], files: Mapping[str, Sequence[Values]]) -> Agreement:
    """Each network held against the file of its name, given as the values of its tasks.

    Raises ValueError for names that only one of the two has.
    """
    alone = networks.keys() ^ files.keys()
    if alone:
        raise ValueError(
            f"agreement: got {min(alone)!r} without a network or without a file, allowed are pairs"
        )
    seen = {
        (field, int(value))
        for tasks in files.values()
        for values in tasks
        for field, value in values.items()
    }
    numbers = Counter(field for field, _ in seen)
    compared = {
        name: tuple(compare(claims(network), files[name])) for name, network in networks.items()
    }
    return Agreement(compared, frozenset(field for field, count in numbers.items() if count > 1))


def pairings(
    networks: Mapping[str, Network], files: Mapping[str, Sequence[Values]]
) -> pd.DataFrame:
    """How many comparisons differ when each network (row) is held against each file (column)."""
    stated = {name: claims(network) for name, network in networks.items()}
    rows = {
        name: {
            file: sum(not one.agrees for one in compare(found, tasks))
            for file, tasks in files.items()
        }
        for name, found in stated.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def _stated(network: Network, task: int) -> Iterator[Claim]:
    """The claims of what a network says of a task's registers."""
    of, size = subject(network, task), engine_bytes(network)
    for row, number in numbers_of(ROWS, of):
        yield Claim(task, row.note, row.field, number)
    # which engines get a table changed from one compiler to the next
    if not of.engines_known or (of.engines and not of.conv and of.channels > 1):
        return
    for engine in range(ENGINES):
        on = engine < of.engines
        yield Claim(
            task,
            f"coefficients of engine {engine}",
            f"KernelDMASrc.CoeffDMAConfig[{engine}].En",
            int(on),
        )
        if on and size:
            yield Claim(
                task,
                f"offset of engine {engine} / {ALIGN}",
                f"KernelDMASrc.CoeffBaseAddr[{engine}].Addr",
                engine * size // ALIGN,
            )
            yield Claim(
                task,
                f"bytes of engine {engine} / {ALIGN}",
                f"KernelDMASrc.CoeffBfrSize[{engine}].MemBfrSize",
                size // ALIGN,
            )
