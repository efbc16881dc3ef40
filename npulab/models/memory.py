"""The memory of a model, from the file alone: when each tensor lives, the block that a planner
needs, and the copies that packing adds.

A tensor lives from the operator that makes it to the last operator that takes it: inputs from the
start, outputs to the end, constants and states (taken, but made by no operator) all the time.  An
operator's inputs and outputs live together, even if it could work in place.  The memory that a
kernel takes for itself is not in a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

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

    ``first`` and ``last`` are operators, counted from 0, -1 for a tensor that never lives;
    ``offsets`` are bytes from the start of the block, -1 for a tensor outside it; all are
    ``(tensors,) int64``.  ``live`` ``(operators,) int64`` are the bytes that live while an operator
    runs, without constants; ``constants`` the bytes of all constants, each buffer once; ``packed``
    ``(tensors,) int64`` the bytes of a packed copy of weights, ``spare`` the bytes of weights that
    no operator takes once they are packed.
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
        """The most bytes that live at once, without constants: no planner needs less."""
        return int(self.live.max(initial=0))

    @property
    def at(self) -> int:
        """The first operator at the peak."""
        if len(self.live):
            return int(self.live.argmax())
        return 0

    @property
    def total(self) -> int:
        """Bytes of all tensors without the constants, if each has a place of its own."""
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
        """One row per operator: operator, name, live (bytes), tensors (the number that live,
        without constants)."""
        moving, count = self.offsets >= 0, len(self.operators)
        first, last = self.first[moving], self.last[moving]
        number = _alive(first, last, np.ones(len(first), np.int64), len(self.live))
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
        """The bytes that counters of memory report, one row for each way to hold the constants.

        ``heap`` is what is allocated: the block of the planner, copies of constants, packed
        weights; valgrind's massif counts it, in virtual memory.  ``mapped`` are constants in the
        mapped file, which are not heap; ``pages`` is both, as massif counts with
        ``--pages-as-heap=yes`` (which adds programs, libraries and stacks).  ``rss_most`` is in
        physical memory once all was touched, ``rss_least`` stays there when the system takes back
        the pages of the file, which are clean and can be read again.  ``saved`` is the heap against
        the first row.  In the last row weights are freed as soon as they are packed, until when
        there are both.
        """
        added = int(self.packed.sum())
        copied = self.planned + self.constants
        ways = {"constants copied": (copied, 0), "file mapped": (self.planned, self.constants)}
        if added:
            packed, freed = "constants copied, weights packed", copied + added - self.spare
            ways[packed] = copied + added, 0
            ways["file mapped, weights packed"] = self.planned + added, self.constants
            ways[f"{packed} and freed"] = freed, 0
        frame = pd.DataFrame([*ways.values()], columns=["heap", "mapped"])
        frame.insert(0, "way", [*ways])
        pages = frame["heap"] + frame["mapped"]
        return frame.assign(
            pages=pages, rss_most=pages, rss_least=frame["heap"], saved=copied - frame["heap"]
        )

    @property
    def text(self) -> str:
        """The memory in one sentence."""
        counts = f"{plural(len(self.operators), 'operator')}, {plural(len(self.names), 'tensor')}"
        parts = [f"{counts}: peak {memory_text(self.peak)}"]
        if self.operators:
            parts[0] += f" at operator {self.at}, {self.operators[self.at]}"
        parts += [
            f"{memory_text(self.total)} in all",
            f"planned {memory_text(self.planned)} ({self.planner})",
            f"constants {memory_text(self.constants)}",
        ]
        if self.packed.any():
            parts.append(f"packed {memory_text(int(self.packed.sum()))}")
        return ", ".join(parts)

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

    ``planner`` gives tensors their places in one block: ``"bump"`` one after the other,
    ``"first-fit"`` in order of their lives the first place that is free, ``"wic"`` (weighted
    interval colouring) the largest first, each the first place that is free as long as it lives;
    places are multiples of ``align`` bytes.  ``packed(rows, columns)`` is the size in bytes of a
    packed matrix of weights: rows are summed over, columns are the outputs; without it nothing is
    packed.  Constant weights of the operators named in ``packs`` (FULLY_CONNECTED, CONV_2D) are
    packed, with ``widest`` only if the other side has at most as many columns (batches, pixels).
    Weights used twice are packed once.  Raises ValueError for anything but a model, an unknown
    planner or operator, an alignment or width below 1, tensors of 2**62 bytes or more, and a packed
    size that is not a number of bytes.
    """
    if not isinstance(model, Graph):
        raise ValueError(f"model: got {type(model).__name__}, allowed is what read_model gives")
    _refuse_options(planner, align, widest, packs)
    size = [len(model.buffers[tensor.buffer]) or tensor.memory for tensor in model.tensors]
    if sum(size) + len(size) * align >= MOST_BYTES:
        big = size.index(max(size))
        raise ValueError(
            f"tensor {big}, {model.tensors[big].name}: got {size[big]} bytes, allowed in all are "
            "less than 2**62"
        )
    kinds, first, last = _lives(model)
    sizes = np.array(size, np.int64)
    moving = ~np.isin(kinds, ("constant", "unused"))
    offsets = np.full(len(kinds), -1, np.int64)
    aligned = -(-sizes[moving] // align) * align
    offsets[moving] = place(aligned, first[moving], last[moving], planner)
    # several tensors may share a buffer
    constants = {tensor.buffer for tensor in model.tensors}
    copies, spare = np.zeros(len(kinds), np.int64), 0
    if packed is not None:
        copies, spare = _packed_copies(model, packed, widest, packs)
    return Memory(
        tuple(tensor.name for tensor in model.tensors),
        tuple(operator.name for operator in model.operators),
        tuple(kinds),
        sizes,
        first,
        last,
        offsets,
        _alive(first[moving], last[moving], sizes[moving], max(len(model.operators), 1)),
        copies,
        sum(len(model.buffers[buffer]) for buffer in constants),
        spare,
        planner,
    )


def place(
    sizes: np.ndarray, first: np.ndarray, last: np.ndarray, planner: str = "wic"
) -> np.ndarray:
    """Offsets ``(N,) int64`` of blocks that live from ``first`` to ``last``, both included, by a
    planner's rule.

    Blocks are placed in order of ``first``, then of their numbers; "wic" takes blocks of equal size
    in that order too.  Blocks of 0 bytes are at 0.

    >>> place(np.array([4, 8, 4, 8]), np.array([0, 0, 1, 2]), np.array([0, 1, 2, 2])).tolist()
    [8, 0, 8, 0]
    """
    order = np.argsort(first, kind="stable")
    out = np.zeros(len(sizes), np.int64)
    if planner == "bump":
        out[order] = np.cumsum(sizes[order]) - sizes[order]
        out[sizes == 0] = 0
        return out
    if planner == "wic":
        order = order[np.argsort(-sizes[order], kind="stable")]
    # the blocks that have a place, sorted by start
    starts, ends, firsts, lasts = placed = np.zeros((4, len(sizes)), np.int64)
    for count, number in enumerate(order[sizes[order] > 0].tolist()):
        size, low, high = int(sizes[number]), int(first[number]), int(last[number])
        alive = np.flatnonzero((firsts[:count] <= high) & (lasts[:count] >= low))
        at = 0
        if len(alive):
            at = _gap(starts[alive], ends[alive], size)
        out[number] = at
        before = int(np.searchsorted(starts[:count], at))
        placed[:, before + 1 : count + 1] = placed[:, before:count]
        placed[:, before] = at, at + size, low, high
    return out


def _gap(starts: np.ndarray, ends: np.ndarray, size: int) -> int:
    """The first offset at which ``size`` bytes are free between blocks in order of their starts."""
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
    """The bytes ``(count,) int64`` that live at each operator."""
    change = np.zeros(count + 1, np.int64)
    np.add.at(change, first, sizes)
    np.subtract.at(change, last + 1, sizes)
    return np.cumsum(change)[:-1]


def _lives(model: Graph) -> tuple[list[str], np.ndarray, np.ndarray]:
    """(kind, first operator, last operator) of every tensor."""
    end = max(len(model.operators) - 1, 0)
    made: dict[int, int] = {}
    start: dict[int, int] = {}
    used: dict[int, int] = {}
    for number, operator in enumerate(model.operators):
        for tensor in operator.outputs:
            made.setdefault(tensor, number)
        for tensor in (*operator.outputs, *operator.inputs):
            start.setdefault(tensor, number)
            used[tensor] = number
    kinds, inputs, outputs = [], set(model.inputs), set(model.outputs)
    lives = np.zeros((2, len(model.tensors)), np.int64)
    for number in range(len(model.tensors)):
        # a tensor may be taken before the operator that makes it: it then lives from there
        kind, first, last = "intermediate", start.get(number, 0), used.get(number, 0)
        if model.filled(number):
            kind, first, last = "constant", 0, end
        elif number in inputs:
            kind, first = "input", 0
        elif number in outputs:
            kind = "output"
            if number not in made:
                first = 0
        elif number not in used:
            kind, first, last = "unused", -1, -1
        elif number not in made:
            kind, first, last = "state", 0, end
        if number in outputs:
            last = end
        kinds.append(kind)
        lives[:, number] = first, last
    return kinds, lives[0].copy(), lives[1].copy()


def _packed_copies(
    model: Graph, packed: Packed, widest: int | None, packs: Collection[str]
) -> tuple[np.ndarray, int]:
    """Bytes of the packed copy of each tensor, and bytes of the constants that no operator takes
    once they are packed."""
    copies = np.zeros(len(model.tensors), np.int64)
    done: set[int] = set()  # buffers that are packed
    taken = {model.tensors[number].buffer for number in model.outputs}
    for number, operator in enumerate(model.operators):
        inputs = [*operator.inputs]
        if _is_packed(model, operator, widest, packs):
            weights = model.tensors[inputs[1]]
            if weights.buffer not in done:
                rows, columns = math.prod(weights.shape[1:]), weights.shape[0]
                where = f"{columns} columns of {rows} rows (operator {number}, {operator.name})"
                copies[inputs[1]] = _size_in_bytes(packed(rows, columns), where)
                done.add(weights.buffer)
            inputs.pop(1)
        taken |= {model.tensors[tensor].buffer for tensor in inputs if tensor >= 0}
    return copies, sum(len(model.buffers[buffer]) for buffer in done - taken)


def _size_in_bytes(size: Any, where: str) -> int:
    try:
        whole = int(size.__index__())
    except (AttributeError, TypeError):
        whole = -1
    if not 0 <= whole < MOST_BYTES:
        raise ValueError(f"packed: got {size!r} for {where}, allowed are whole bytes from 0")
    return whole


def _is_packed(
    model: Graph, operator: Operator, widest: int | None, packs: Collection[str]
) -> bool:
    """True if the weights of an operator are packed and kept."""
    if operator.name not in packs or len(operator.inputs) < 2 or not operator.outputs:
        return False
    if not model.filled(operator.inputs[1]):
        return False
    shape = model.tensors[operator.inputs[1]].shape
    if not shape or 0 in shape:
        return False
    return widest is None or _width(model, operator) <= widest


def _width(model: Graph, operator: Operator) -> int:
    """Columns of the output of an operator that multiplies matrices: batches or pixels."""
    output, weights = model.tensors[operator.outputs[0]], model.tensors[operator.inputs[1]]
    return math.prod(output.shape) // weights.shape[0]


def _refuse_options(planner: str, align: int, widest: int | None, packs: Collection[str]) -> None:
    if planner not in PLANNERS:
        raise ValueError(f"planner: got {planner!r}, allowed is {', '.join(PLANNERS)}")
    for name, number in (("align", align), ("widest", widest)):
        if name == "widest" and number is None:
            continue
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{name}: got {number!r}, allowed is a whole number from 1")
    unknown = sorted({*packs} - {*MATRICES})
    if unknown:
        raise ValueError(f"packs: got {unknown[0]!r}, allowed is {', '.join(MATRICES)}")
