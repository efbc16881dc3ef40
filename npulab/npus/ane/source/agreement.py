"""A source network compared with the registers of a compiled file.

A claim is the value of a field that follows from the network. Registers are given as raw values by
full name (``Common.InDim.Win``), a mapping for each task. There are claims only about facts that
files of compilers 4.2.1 to 9.509 show, and none about choices of the compiler (tiles, places in the
unit's memory) or features without a public file (8-bit types, batches).
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

# The raw values of a task by the fields' full names.
Values = Mapping[str, int]
Networks = Mapping[str, Network]
# The raw values of each task of a compiled file, by the file's name.
Files = Mapping[str, Sequence[Values]]
ROWS = read_rows(Path(__file__).with_name("claims.csv"))
SEEN = ("Conv", "Neuron", "Concat", "ScaledElementWise", "GOC")
COLUMNS = ("file", "task", "what", "field", "expected", "found", "varies")
SHOWN = 6
NETWORK = "net.plist"


def claims(network: Network) -> list[Claim]:
    """Return the claims of a network about the registers of its compiled file.

    They are about sizes, types, strides, kernel, bias, engines and activation. A network of a kind
    that no public file has (two main units, views, broadcasts, batches) has no claims. Raises
    ValueError for shapes that contradict each other.
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
    """Return the claims, each with the value that the file has as ``got``.

    ``values`` are the raw values of each task by field. ``got`` is None if the file has too few
    tasks. A claim is left out if the task's values do not have its field.
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
    """Return the raw values of each task of a capture by the fields' full names."""
    return [values_of_job(job, capture.maps, raw=True) for job in capture.jobs]


@dataclass(frozen=True)
class Agreement:
    """Networks compared with the compiled files of the same names.

    ``comparisons`` has the claims of each file by its name. ``varying`` are the fields that have
    different values in different tasks or files; a comparison of another field proves nothing.
    """

    comparisons: Mapping[str, tuple[Claim, ...]]
    varying: frozenset[str]

    @cached_property
    def claims(self) -> list[tuple[str, Claim]]:
        """Every claim of every file, as (file name, claim)."""
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
        """The number of comparisons of fields in ``varying``, which can prove something."""
        return sum(claim.field in self.varying for _, claim in self.claims)

    @property
    def table(self) -> pd.DataFrame:
        """A table with a row for each comparison.

        Columns: file, task, what, field, expected, found, varies (true if the field is in
        ``varying``).
        """
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
    """Return the comparison of each network with the compiled file of the same name.

    Raises ValueError for a network without a file and for a file without a network.
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
    """Return a table of how many comparisons differ between each network (row) and file (column).

    It shows if a network agrees best with its own file.
    """
    rows: dict[str, dict[str, int]] = {}
    for name, network in networks.items():
        stated = claims(network)
        row = rows[name] = {}
        for file, tasks in files.items():
            row[file] = sum(not claim.agrees for claim in compare(stated, tasks))
    return pd.DataFrame.from_dict(rows, orient="index")


def _stated(network: Network, task: int) -> Iterator[Claim]:
    """Yield the claims of a network about the registers of one task."""
    of = subject(network, task)
    size = of.engine_bytes
    for row, number in numbers_of(ROWS, of):
        yield Claim(task, row.note, row.field, number)
    # Compilers differ in which engines get the table of a task of several channels.
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
