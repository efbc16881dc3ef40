"""The memory of a model, from the file alone: which tensors live when, what a planner needs, what
packing adds.

A tensor lives from the operator that makes it to the last that takes it: inputs from the start,
outputs to the end, constants and states (taken, made by none) all along.  An operator's inputs and
outputs live together, also where it could work in place.  What a kernel takes beside them is not in
a file.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from npulab.models.graph import Graph, Operator
from npulab.models.listing import memory_text
from npulab.support.late import pd
from npulab.support.text import plural

KINDS = ("input", "output", "intermediate", "state", "constant", "unused")
# Samsung/ONE:runtime/onert/core/src/backend/basic/MemoryPlanner.cc: BumpPlanner, FirstFitPlanner,
# WICPlanner
PLANNERS = ("bump", "first-fit", "wic")
MATRICES = ("FULLY_CONNECTED", "CONV_2D")  # operators that multiply by a matrix of weights
MOST_BYTES = 2**62
Packed = Callable[[int, int], int]


@dataclass(frozen=True, eq=False)
class Memory:
    """The tensors of a model in time and in one block of memory.

    ``first`` and ``last`` are operators, counted from 0, -1 for what is never there; ``offsets``
    bytes from the start of the block, -1 for what is not in it; all ``(tensors,) int64``.  ``live``
    ``(operators,) int64`` are the bytes that live while an operator runs, without constants;
    ``constants`` the bytes of all of them, each buffer once; ``packed`` ``(tensors,) int64`` what a
    packed copy of weights takes, ``spare`` the bytes of weights that nobody takes once they are
    packed.
    """

    names: tuple[str, ...]
    operators: tuple[str, ...]
    kinds: tuple[str, ...]
    bytes: np.ndarray = field(repr=False)
    first: np.ndarray = field(repr=False)
    last: np.ndarray = field(repr=False)
    offsets: np.ndarray = field(repr=False)
    live: np.ndarray = field(repr=False)
    packed: np.ndarray = field(repr=False)
    constants: int
    spare: int
    planner: str

    @property
    def peak(self) -> int:
        """Most bytes that live at once, without constants: no planner can do with less."""
        return int(self.live.max(initial=0))

    @property
    def at(self) -> int:
        """The first operator at which that is so."""
        if len(self.live):
            return int(self.live.argmax())
        return 0

    @property
    def total(self) -> int:
        """Bytes of all tensors without the constants, each with a place of its own."""
        return int(self.bytes[self.offsets >= 0].sum())

    @property
    def planned(self) -> int:
        """Bytes of the block that the planner needs."""
        return int((self.offsets + self.bytes)[self.offsets >= 0].max(initial=0))

    @property
    def table(self) -> pd.DataFrame:
        """One row per tensor: tensor, name, bytes, kind, first, last, offset, packed."""
        return pd.DataFrame(
            {
                "tensor": np.arange(len(self.names)),
                "name": self.names,
                "bytes": self.bytes,
                "kind": self.kinds,
                "first": self.first,
                "last": self.last,
                "offset": self.offsets,
                "packed": self.packed,
            }
        )

    @property
    def steps(self) -> pd.DataFrame:
        """One row per operator: operator, name, live (bytes), tensors (how many live, without
        constants)."""
        here, count = self.offsets >= 0, len(self.operators)
        number = _alive(
            self.first[here],
            self.last[here],
            np.ones(np.count_nonzero(here), np.int64),
            len(self.live),
        )
        return pd.DataFrame(
            {
                "operator": np.arange(count),
                "name": self.operators,
                "live": self.live[:count],
                "tensors": number[:count],
            }
        )

    @property
    def held(self) -> pd.DataFrame:
        """What counters of memory see, one row for each way to hold the constants, in bytes.

        ``heap`` is what is allocated: the block of the planner, copies of constants, packed
        weights; valgrind's massif counts it, in virtual memory.  ``mapped`` are constants in the
        mapped file, which are no heap; ``pages`` is both, as massif counts with
        ``--pages-as-heap=yes`` (which adds programs, libraries and stacks). ``rss_most`` is what is
        in physical memory once all was touched, ``rss_least`` what stays there when the system
        takes back the pages of the file, which are clean and can be read again.  ``saved`` is the
        heap against the first row.  In the last row weights are freed as soon as they are packed,
        until when there are both.
        """
        planned, added = self.planned, int(self.packed.sum())
        ways = [
            ("constants copied", planned + self.constants, 0),
            ("file mapped", planned, self.constants),
        ]
        if added:
            ways += [
                ("constants copied, weights packed", planned + self.constants + added, 0),
                ("file mapped, weights packed", planned + added, self.constants),
                (
                    "constants copied, weights packed and freed",
                    planned + self.constants + added - self.spare,
                    0,
                ),
            ]
        return pd.DataFrame(
            [
                {
                    "way": way,
                    "heap": heap,
                    "mapped": mapped,
                    "pages": heap + mapped,
                    "rss_most": heap + mapped,
                    "rss_least": heap,
                    "saved": ways[0][1] - heap,
                }
                for way, heap, mapped in ways
            ]
        )

    @property
    def text(self) -> str:
        """What there is, in one sentence."""
        said = [
            f"{plural(len(self.operators), 'operator')}, {plural(len(self.names), 'tensor')}: peak "
            f"{memory_text(self.peak)}"
        ]
        if self.operators:
            said[0] += f" at operator {self.at}, {self.operators[self.at]}"
        said += [
            f"{memory_text(self.total)} in all",
            f"planned {memory_text(self.planned)} ({self.planner})",
            f"constants {memory_text(self.constants)}",
        ]
        return ", ".join(
            [
                *said,
                *([f"packed {memory_text(int(self.packed.sum()))}"] if self.packed.any() else []),
            ]
        )

    def __repr__(self) -> str:
        return f"Memory({self.text})"


def model_memory(
    model: Graph,
    packed: Packed | None = None,
    *,
    planner: str = "wic",
    align: int = 1,
    widest: int | None = None,
    packs: Collection[str] = MATRICES[:1],
) -> Memory:
    """The memory of a model that ``read_model`` gave.

    ``planner`` gives tensors their places in one block: ``"bump"`` one behind the other,
    ``"first-fit"`` as they come the first place that is free, ``"wic"`` (weighted interval
    colouring) the largest first, each the first place that is free as long as it lives; places are
    multiples of ``align`` bytes.  ``packed(rows, columns)`` are the bytes of a packed matrix of
    weights, rows what is summed over, columns the outputs, None where nothing is packed; packed are
    the constant weights of operators named in ``packs`` (FULLY_CONNECTED, CONV_2D), and with
    ``widest`` only where the other side has at most as many columns (batches, pixels).  Weights
    used twice are packed once. Raises ValueError for what is no model, an unknown planner or
    operator, an alignment or width below 1, tensors of 2**62 bytes and more, and a packed size that
    is none.
    """
    if not isinstance(model, Graph):
        raise ValueError(f"model: got {type(model).__name__}, allowed is what read_model gives")
    _check(planner, align, widest, packs)
    count = len(model.operators)
    size = [len(model.buffers[one.buffer]) or one.memory for one in model.tensors]
    if sum(size) + len(size) * align >= MOST_BYTES:
        big = max(range(len(size)), key=size.__getitem__)
        raise ValueError(
            f"tensor {big}, {model.tensors[big].name}: got {size[big]} bytes, allowed in all are "
            "less "
            "than 2**62"
        )
    kinds, first, last = _lives(model)
    sizes = np.array(size, np.int64)
    here = np.array([kind not in ("constant", "unused") for kind in kinds], bool)
    offsets = np.full(len(kinds), -1, np.int64)
    offsets[here] = place(-(-sizes[here] // align) * align, first[here], last[here], planner)
    constants = {
        one.buffer for one, kind in zip(model.tensors, kinds, strict=True) if kind == "constant"
    }
    copies, spare = _packed(model, kinds, packed, widest, packs)
    return Memory(
        tuple(one.name for one in model.tensors),
        tuple(one.name for one in model.operators),
        kinds,
        sizes,
        first,
        last,
        offsets,
        _alive(first[here], last[here], sizes[here], max(count, 1)),
        copies,
        sum(len(model.buffers[one]) for one in constants),
        spare,
        planner,
    )


def place(
    sizes: np.ndarray, first: np.ndarray, last: np.ndarray, planner: str = "wic"
) -> np.ndarray:
    """Offsets ``(N,) int64`` of blocks that live from ``first`` to ``last``, both included, by a
    planner's rule.

    Claims come in order of ``first``, then of the blocks; of equal sizes "wic" takes them in that
    order too.  Blocks of 0 bytes are at 0.

    >>> place(np.array([4, 8, 4, 8]), np.array([0, 0, 1, 2]), np.array([0, 1, 2, 2])).tolist()
    [8, 0, 8, 0]
    """
    claims = np.argsort(first, kind="stable")
    out = np.zeros(len(sizes), np.int64)
    if planner == "bump":
        out[claims] = np.cumsum(sizes[claims]) - sizes[claims]
        out[sizes == 0] = 0
        return out
    if planner == "first-fit":
        order = claims
    else:
        order = claims[np.argsort(-sizes[claims], kind="stable")]
    # what has a place, by its start: start, end, first, last
    starts, ends, firsts, lasts = placed = np.zeros((4, len(sizes)), np.int64)
    for count, number in enumerate(order[sizes[order] > 0].tolist()):
        size, low, high = int(sizes[number]), int(first[number]), int(last[number])
        beside = np.flatnonzero((firsts[:count] <= high) & (lasts[:count] >= low))
        at = 0
        if len(beside):
            at = _gap(starts[beside], ends[beside], size)
        out[number] = at
        before = int(np.searchsorted(starts[:count], at))
        placed[:, before + 1 : count + 1] = placed[:, before:count]
        placed[:, before] = at, at + size, low, high
    return out


def _gap(starts: np.ndarray, ends: np.ndarray, size: int) -> int:
    """The first offset where as many bytes are free, of blocks in order of their starts."""
    reached = np.maximum.accumulate(ends)
    free = starts.copy()
    free[1:] -= reached[:-1]
    found = int(np.argmax(free >= size))
    if free[found] < size:
        return int(reached[-1])
    if found:
        return int(reached[found - 1])
    return 0


def _alive(first: np.ndarray, last: np.ndarray, sizes: np.ndarray, count: int) -> np.ndarray:
    """Sums ``(count,) int64`` of the sizes of what lives at each operator."""
    change = np.zeros(count + 1, np.int64)
    np.add.at(change, first, sizes)
    np.subtract.at(change, last + 1, sizes)
    return np.cumsum(change)[:-1]


def _lives(model: Graph) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """(kind, first operator, last operator) of every tensor."""
    end = max(len(model.operators) - 1, 0)
    made: dict[int, int] = {}
    start: dict[int, int] = {}
    used: dict[int, int] = {}
    for number, one in enumerate(model.operators):
        for tensor in one.outputs:
            made.setdefault(tensor, number)
            used[tensor] = number
        for tensor in one.inputs:
            start.setdefault(tensor, number)
            used[tensor] = number
    inputs, outputs = set(model.inputs), set(model.outputs)
    rows: list[tuple[str, int, int]] = []
    for number, holds in enumerate(model.tensors):
        given, kept, maker = number in inputs, number in outputs, made.get(number)
        if model.buffers[holds.buffer]:
            rows.append(("constant", 0, end))
        elif given or kept:
            if given or maker is None:
                begin = 0
            else:
                begin = min(maker, start.get(number, maker))
            rows.append(
                ("input" if given else "output", begin, end if kept else used.get(number, 0))
            )
        elif maker is not None:
            rows.append(("intermediate", min(maker, start.get(number, maker)), used[number]))
        else:
            rows.append(("state", 0, end) if number in used else ("unused", -1, -1))
    lives = np.array([row[1:] for row in rows], np.int64).reshape(-1, 2)
    return tuple(row[0] for row in rows), lives[:, 0].copy(), lives[:, 1].copy()


def _packed(
    model: Graph,
    kinds: Sequence[str],
    packed: Packed | None,
    widest: int | None,
    packs: Collection[str],
) -> tuple[np.ndarray, int]:
    """Bytes of the packed copy of each tensor, and bytes of the constants that nobody takes once
    they are packed."""
    out = np.zeros(len(kinds), np.int64)
    done: set[int] = set()
    taken = {model.tensors[number].buffer for number in model.outputs}
    for number, one in enumerate(model.operators):
        chosen = packed is not None and _chosen(model, kinds, one, widest, packs)
        taken |= {
            model.tensors[tensor].buffer
            for place, tensor in enumerate(one.inputs)
            if tensor >= 0 and not (chosen and place == 1)
        }
        if not chosen or packed is None or model.tensors[one.inputs[1]].buffer in done:
            continue
        shape = model.tensors[one.inputs[1]].shape
        size = packed(math.prod(shape[1:]), shape[0])
        try:
            whole = operator.index(size)
        except TypeError:
            whole = -1
        if not 0 <= whole < MOST_BYTES:
            raise ValueError(
                f"packed: got {size!r} for {shape[0]} columns of {math.prod(shape[1:])} rows "
                "(operator "
                f"{number}, {one.name}), allowed are whole bytes from 0"
            )
        out[one.inputs[1]] = whole
        done.add(model.tensors[one.inputs[1]].buffer)
    return out, sum(len(model.buffers[one]) for one in done - taken)


def _chosen(
    model: Graph, kinds: Sequence[str], one: Operator, widest: int | None, packs: Collection[str]
) -> bool:
    """Whether the weights of an operator are packed and kept."""
    if one.name not in packs or len(one.inputs) < 2 or one.inputs[1] < 0 or not one.outputs:
        return False
    shape = model.tensors[one.inputs[1]].shape
    return (
        kinds[one.inputs[1]] == "constant"
        and bool(shape)
        and 0 not in shape
        and (widest is None or _width(model, one) <= widest)
    )


def _width(model: Graph, one: Operator) -> int:
    """Columns of the output of an operator that multiplies matrices: batches or pixels."""
    return math.prod(model.tensors[one.outputs[0]].shape) // model.tensors[one.inputs[1]].shape[0]


def _check(planner: str, align: int, widest: int | None, packs: Collection[str]) -> None:
    if planner not in PLANNERS:
        raise ValueError(f"planner: got {planner!r}, allowed is {', '.join(PLANNERS)}")
    for name, number in (("align", align), ("widest", 1 if widest is None else widest)):
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{name}: got {number!r}, allowed is a whole number from 1")
    unknown = sorted({*packs} - {*MATRICES})
    if unknown:
        raise ValueError(f"packs: got {unknown[0]!r}, allowed is {', '.join(MATRICES)}")
