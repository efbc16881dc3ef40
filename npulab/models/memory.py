"""The memory that a model needs, computed from its file alone: when each tensor lives, the block
that a planner needs, and the packed copies of weights.

A tensor lives from the operator that makes it to the last operator that takes it. An input lives
from the start, an output to the end; constants and states (tensors that are taken, but made by no
operator) live all the time. The inputs and outputs of an operator live at the same time, even if it
could work in place. A file does not state the memory that a kernel takes for itself, so that memory
is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.models.graph import Graph, Operator
from npulab.models.listing import memory_text
from npulab.support.late import pd
from npulab.support.text import plural

KINDS = ("input", "output", "intermediate", "state", "constant", "unused")
# Source: the classes BumpPlanner, FirstFitPlanner and WICPlanner in
# Samsung/ONE:runtime/onert/core/src/backend/basic/MemoryPlanner.cc.
PLANNERS = ("bump", "first-fit", "wic")
MATRICES = ("FULLY_CONNECTED", "CONV_2D")  # operators that multiply by a matrix of weights
MOST_BYTES = 2**62
Packed = Callable[[int, int], int]


@dataclass(frozen=True, eq=False)
class Memory:
    """The memory of a model: when each tensor lives, and where it lies in one block.

    ``names`` and ``kinds`` (see ``KINDS``) have one text for each tensor, ``operators`` the name of
    each operator, ``planner`` the name of the planner.

    Arrays ``(tensors,) int64``: ``bytes`` is the size of each tensor. ``first`` and ``last`` are
    the first and the last operator of its life, counted from 0, or -1 for a tensor that never
    lives. ``offsets`` are bytes from the start of the block, -1 for a tensor outside of the block.
    ``packed`` is the bytes of a packed copy of weights, 0 for a tensor without such a copy.

    ``live`` ``(operators,) int64`` is the bytes that live while an operator runs, without
    constants. ``constants`` is the bytes of all constants, each buffer counted once; ``spare`` is
    the bytes of the weights that no operator takes once they are packed.
    """

    names: tuple[str, ...]
    operators: tuple[str, ...]
    kinds: tuple[str, ...]
    bytes: Array = field(repr=False)
    first: Array = field(repr=False)
    last: Array = field(repr=False)
    offsets: Array = field(repr=False)
    live: Array = field(repr=False)
    packed: Array = field(repr=False)
    constants: int
    spare: int
    planner: str

    @property
    def peak(self) -> int:
        """The most bytes that live at the same time, without constants; every planner needs at
        least so many."""
        return int(self.live.max(initial=0))

    @property
    def at(self) -> int:
        """The number of the first operator at which the most bytes live."""
        if len(self.live):
            return int(self.live.argmax())
        return 0

    @property
    def total(self) -> int:
        """The bytes of all tensors in the block (not constants, not unused tensors), each counted
        in full, as if no two tensors shared memory.
        """
        return int(self.bytes[self.offsets >= 0].sum())

    @property
    def planned(self) -> int:
        """The size in bytes of the block in which the planner places the tensors."""
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
        """The bytes that memory counters report: one row for each ``way`` to hold the constants.

        - ``heap``: what is allocated (the planner's block, copies of constants, packed weights), as
          valgrind's massif counts it.
        - ``mapped``: constants that stay in the mapped file; they are not heap.
        - ``pages``: ``heap`` plus ``mapped``. Massif with ``--pages-as-heap=yes`` counts these, and
          programs, libraries and stacks too.
        - ``rss_most``: physical memory once every page was touched; ``rss_least``: what remains
          after the system has dropped the clean pages of the file.
        - ``saved``: the heap of the first row less the heap of this row.

        Rows with packed weights exist only if weights are packed. In the row "... and freed" each
        weight is freed once it is packed; while it is being packed both copies exist.
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
        """The counts and the bytes as one sentence."""
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
    """The memory of a model that ``read_model`` returned.

    ``planner`` gives tensors their places in one block. ``"bump"`` places one after the other.
    ``"first-fit"`` takes them in the order in which they begin to live, and gives each the lowest
    place that is free. ``"wic"`` (weighted interval colouring) takes the largest first, and gives
    each the lowest place that is free during its life. Places are multiples of ``align`` bytes.

    ``packed(rows, columns)`` returns the size in bytes of a packed matrix of weights, whose rows
    are summed over and whose columns are the outputs; without it nothing is packed. Packed are the
    constant weights of the operators that ``packs`` names: FULLY_CONNECTED, CONV_2D or both, by
    default the first. With ``widest`` they are packed only if they are multiplied by a matrix of at
    most ``widest`` columns (batches or pixels). Weights that are used twice are packed once.

    Raises ValueError for anything but a model, an unknown planner or operator, an alignment or
    width below 1, tensors of 2**62 bytes or more, and a packed size that is not a number of bytes.
    """
    if not isinstance(model, Graph):
        raise ValueError(f"model: got {type(model).__name__}, allowed is a Model of read_model")
    _refuse_options(planner, align, widest, packs)
    size = [len(model.buffers[tensor.buffer]) or tensor.memory for tensor in model.tensors]
    if sum(size) + len(size) * align >= MOST_BYTES:
        big = size.index(max(size))
        raise ValueError(
            f"tensor {big}, {model.tensors[big].name}: got {size[big]} bytes, allowed for all "
            "tensors together are less than 2**62"
        )
    kinds, first, last = _lives(model)
    sizes = np.array(size, np.int64)
    moving = ~np.isin(kinds, ("constant", "unused"))
    offsets = np.full(len(kinds), -1, np.int64)
    aligned = -(-sizes[moving] // align) * align
    offsets[moving] = place(aligned, first[moving], last[moving], planner)
    # several tensors may share a buffer, whose bytes count once
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


def place(sizes: Array, first: Array, last: Array, planner: str = "wic") -> Array:
    """The offsets ``(N,) int64`` that a planner gives to blocks that live from operator ``first``
    to operator ``last``, both included.

    Blocks are placed in the order of ``first``; if several begin at one operator, in the order of
    their numbers. "wic" takes the largest block first, and uses this order for blocks of equal
    size. Blocks of 0 bytes are at offset 0.

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
    # the blocks that already have a place, sorted by their first byte
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


def _gap(starts: Array, ends: Array, size: int) -> int:
    """The lowest offset at which ``size`` bytes are free between blocks that are sorted by their
    starts."""
    reached = np.maximum.accumulate(ends)
    free = starts.copy()
    free[1:] -= reached[:-1]
    found = int(np.argmax(free >= size))
    if free[found] < size:
        return int(reached[-1])
    if found:
        return int(reached[found - 1])
    return 0


def _alive(first: Array, last: Array, sizes: Array, count: int) -> Array:
    """The sum of the sizes of all tensors that live at each of ``count`` operators, ``(count,)
    int64``."""
    change = np.zeros(count + 1, np.int64)
    np.add.at(change, first, sizes)
    np.subtract.at(change, last + 1, sizes)
    return np.cumsum(change)[:-1]


def _lives(model: Graph) -> tuple[list[str], Array, Array]:
    """Return the kind of every tensor, and the first and the last operator of its life,
    ``(tensors,) int64`` each."""
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
        # a tensor that an operator takes before another operator makes it lives from the first of
        # these operators
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
) -> tuple[Array, int]:
    """Return (copies, spare): the bytes ``(tensors,) int64`` of the packed copy of each tensor, and
    the bytes of the constants that no operator takes once they are packed."""
    copies = np.zeros(len(model.tensors), np.int64)
    done: set[int] = set()  # the numbers of the buffers that were packed so far
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
        raise ValueError(
            f"packed: got {size!r} for {where}, allowed is a whole number of bytes, not negative"
        )
    return whole


def _is_packed(
    model: Graph, operator: Operator, widest: int | None, packs: Collection[str]
) -> bool:
    """True if the weights of an operator are constant and are packed."""
    if operator.name not in packs or len(operator.inputs) < 2 or not operator.outputs:
        return False
    if not model.filled(operator.inputs[1]):
        return False
    shape = model.tensors[operator.inputs[1]].shape
    if not shape or 0 in shape:
        return False
    return widest is None or _width(model, operator) <= widest


def _width(model: Graph, operator: Operator) -> int:
    """The number of columns (batches or pixels) of the matrix by which an operator multiplies its
    weights, counted from its output."""
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
