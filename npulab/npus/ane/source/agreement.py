"""A source network compared with the registers of a compiled file: its claims, which of them agree,
and how many prove something.

Registers are plain mappings of raw numbers by block, register and field (``Common.InDim.Win``), one
for each task. Only facts that files of compilers 4.2.1 to 9.509 show are claimed. Nothing is
claimed of the compiler's choices (tiles, places in the unit's memory), or of features without a
public file (8-bit types, batches).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

from npulab.captures.target import Claim
from npulab.npus.ane.facts import ENGINES
from npulab.npus.ane.source.network import Network
from npulab.npus.ane.source.parameters import (
    ALIGN,
    chain_of,
    shapes,
    subject,
    tasks_of,
)
from npulab.npus.kit import Capture, numbers_of, pd, read_rows
from npulab.npus.kit.fields import values_of as values_of_job

Values = Mapping[str, int]  # raw numbers of a task by field
Networks = Mapping[str, Network]
Files = Mapping[str, Sequence[Values]]  # the values of each task, by file name
ROWS = read_rows(Path(__file__).with_name("claims.csv"))
SEEN = ("Conv", "Neuron", "Concat", "ScaledElementWise", "GOC")
COLUMNS = ("file", "task", "what", "field", "expected", "found", "varies")
SHOWN = 6
NETWORK = "net.plist"


def claims(network: Network) -> list[Claim]:
    """Return the claims of a network on its file's registers: sizes, types, strides, kernel, bias,
    engines, activation.

    A network of a kind that no public file has claims nothing: with two main units, views or
    broadcasts, or batches. Raises ValueError for shapes that do not go together.
    """
    work = chain_of(network)
    batched = any(shape.batch > 1 for shape in shapes(network).values())
    if work.main.type not in SEEN or batched or len(network.units) > 1 + len(work.fused):
        return []
    tasks = range(tasks_of(network))
    out: list[Claim] = []
    for task in tasks:
        out += _stated(network, task)
    for task in tasks:
        out.append(Claim(task, "last task", "Header.Header[0].EON", int(task == tasks[-1])))
    return out


def compare(stated: Sequence[Claim], values: Sequence[Values]) -> list[Claim]:
    """Return the claims, each with the number that the file has (``got``).

    ``values`` are raw numbers by field, for each task in order. ``got`` is None if the file has no
    such task. A claim is left out if its task's values lack the field.
    """
    out = []
    for claim in stated:
        if claim.task >= len(values):
            out.append(claim._replace(got=None, source=NETWORK))
        elif claim.field in values[claim.task]:
            number = int(values[claim.task][claim.field])
            out.append(claim._replace(got=number, source=NETWORK))
    return out


def values_of(capture: Capture) -> Sequence[Values]:
    """Return the raw numbers by field of each of a capture's tasks, in order."""
    return [values_of_job(job, capture.maps, raw=True) for job in capture.jobs]


@dataclass(frozen=True)
class Agreement:
    """Networks compared with the files of the same names: every comparison, and how many of them
    prove something."""

    comparisons: Mapping[str, tuple[Claim, ...]]
    varying: frozenset[str]

    @cached_property
    def claims(self) -> list[tuple[str, Claim]]:
        """Pairs of the file's name and a claim."""
        pairs = []
        for name, found in self.comparisons.items():
            pairs += [(name, claim) for claim in found]
        return pairs

    @property
    def count(self) -> int:
        return len(self.claims)

    @property
    def agree(self) -> int:
        return sum(claim.agrees for _, claim in self.claims)

    @property
    def differ(self) -> int:
        return self.count - self.agree

    @property
    def tested(self) -> int:
        """The comparisons that can prove something: their fields are not equal in all tasks of all
        files.
        """
        return sum(claim.field in self.varying for _, claim in self.claims)

    @property
    def table(self) -> pd.DataFrame:
        """One row for each comparison: file, task, what, field, expected, found, varies (between
        the files)."""
        rows = [(name, *claim[:5], claim.field in self.varying) for name, claim in self.claims]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def __str__(self) -> str:
        wrong = [f"{name}: {claim}" for name, claim in self.claims if not claim.agrees]
        lines = [
            f"{self.count} comparisons in {len(self.comparisons)} files: {self.agree} agree, "
            f"{self.differ} differ; {self.tested} test a value that varies between the files",
            *wrong[:SHOWN],
        ]
        if len(wrong) > SHOWN:
            lines.append("...")
        return "\n  ".join(lines)


def agreement(networks: Networks, files: Files) -> Agreement:
    """Compare each network with the file of its name, given as the values of its tasks.

    Raises ValueError for names that only one of the two has.
    """
    alone = networks.keys() ^ files.keys()
    if alone:
        raise ValueError(
            f"agreement: got {min(alone)!r} as a network or a file only, allowed are names of both"
        )
    seen: dict[str, set[int]] = defaultdict(set)
    for values in chain.from_iterable(files.values()):
        for field, value in values.items():
            seen[field].add(int(value))
    compared = {}
    for name, network in networks.items():
        compared[name] = tuple(compare(claims(network), files[name]))
    return Agreement(compared, frozenset(field for field in seen if len(seen[field]) > 1))


def pairings(networks: Networks, files: Files) -> pd.DataFrame:
    """Return a table: the number of comparisons that differ between each network (row) and each
    file (column).
    """
    rows: dict[str, dict[str, int]] = {}
    for name, network in networks.items():
        stated = claims(network)
        row = rows[name] = {}
        for file, tasks in files.items():
            row[file] = sum(not claim.agrees for claim in compare(stated, tasks))
    return pd.DataFrame.from_dict(rows, orient="index")


def _stated(network: Network, task: int) -> Iterator[Claim]:
    """Yield the claims of a network on a task's registers."""
    of = subject(network, task)
    size = of.engine_bytes
    for row, number in numbers_of(ROWS, of):
        yield Claim(task, row.note, row.field, number)
    # which engines get a table changed from one compiler to the next
    if not of.engines_known or (of.engines and not of.conv and of.channels > 1):
        return
    for engine in range(ENGINES):
        on = engine < of.engines
        field = f"KernelDMASrc.CoeffDMAConfig[{engine}].En"
        yield Claim(task, f"coefficients of engine {engine}", field, int(on))
        if on and size:
            field = f"KernelDMASrc.CoeffBaseAddr[{engine}].Addr"
            yield Claim(task, f"offset of engine {engine} / {ALIGN}", field, engine * size // ALIGN)
            field = f"KernelDMASrc.CoeffBfrSize[{engine}].MemBfrSize"
            yield Claim(task, f"bytes of engine {engine} / {ALIGN}", field, size // ALIGN)
