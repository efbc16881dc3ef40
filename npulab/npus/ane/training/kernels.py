"""The kernels of a training step: a row of ``kernels.csv`` each, and a row of ``operations.csv``
per operation, which is also one result that is rounded.

An operation is ``name axes operation operands``.  Axes are the letters of ``Step.size``, ``-`` for a
single number; an operand is a tensor by its axes, or with ``name:axes`` by others that hold the
same elements in the same order (``q:hds``: the channels of ``q`` by head), or a constant.  Tensors
are channel first, ``(channels, positions)``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from npulab.registers.table import read_table
from npulab.support.refuse import one_of, refuse_if

MOST = 2 ** 18  # of each size, so that the counts of a step stay within int64
LETTERS = "cefsthd"


@dataclass(frozen=True)
class Step:
    """One training step of a transformer layer: ``dim`` channels, ``hidden`` channels of the
    feed-forward part, ``seq`` positions, ``heads`` of ``dim / heads`` channels each.

    Raises ValueError if a size is not a whole number from 1 to 262144, or if heads do not
    divide dim.

    >>> Step(768, 2048, 512, 12).head
    64
    """

    dim: int
    hidden: int
    seq: int
    heads: int

    def __post_init__(self) -> None:
        for item in fields(self):
            size = getattr(self, item.name)
            try:
                whole = 0 if isinstance(size, bool) else operator.index(size)
            except TypeError:
                whole = 0
            if not 1 <= whole <= MOST:
                raise ValueError(f"{item.name}: got {size!r}, allowed is a whole number from 1 to {MOST}")
            object.__setattr__(self, item.name, whole)
        if self.dim % self.heads:
            raise ValueError(f"heads: got {self.heads}, allowed with dim {self.dim} is a divisor of it")

    @property
    def head(self) -> int:
        """Channels of a head."""
        return self.dim // self.heads

    def size(self, letter: str) -> int:
        """The size of an axis: c and e dim, f hidden, s and t seq, h heads, d head; LookupError for
        another."""
        sizes = {"c": self.dim, "e": self.dim, "f": self.hidden, "s": self.seq, "t": self.seq, "h": self.heads,
                 "d": self.head}
        return sizes[one_of("axis", letter, sizes)]

    def axes(self, letters: str) -> tuple[int, ...]:
        """The size of each axis.

        >>> Step(768, 2048, 512, 12).axes("hds")
        (12, 64, 512)
        """
        return tuple(self.size(letter) for letter in letters)

    def shape(self, letters: str) -> tuple[int, ...]:
        """The shape a tensor is kept in: the channels of all heads are one axis, head by head.

        >>> Step(768, 2048, 512, 12).shape("hds")
        (768, 512)
        """
        return self.axes(letters.replace("hd", "c"))

    def count(self, letters: str) -> int:
        """The number of elements."""
        return math.prod(self.axes(letters))


HERE = Path(__file__).parent
PRODUCTS = ("linear", "matmul")  # of a weight and a tensor; of two tensors
REDUCTIONS = ("sum", "max")
ELEMENTWISE = {"mul": 2, "add": 2, "sub": 2, "div": 2, "exp": 1, "sigmoid": 1, "rsqrt": 1}  # operands of each
OPERATIONS = (*PRODUCTS, *REDUCTIONS, *ELEMENTWISE)
EPSILON = 1e-5
MASKED = -65504.0  # added to scores of positions to come: the lowest float16
CONSTANTS: Mapping[str, Callable[[Step], float]] = {
    "one": lambda step: 1.0, "epsilon": lambda step: EPSILON, "inverse_dim": lambda step: 1 / step.dim,
    "scale": lambda step: 1 / math.sqrt(step.head), "inverse_size": lambda step: 1 / (step.seq * step.dim)}


@dataclass(frozen=True)
class Operand:
    """A tensor and the axes an operation sees it by; a constant has none."""

    name: str
    axes: str


@dataclass(frozen=True)
class Operation:
    """One row of a kernel: ``name`` is its result, of these axes."""

    name: str
    axes: str
    kind: str
    operands: tuple[Operand, ...]

    @property
    def letters(self) -> str:
        """Every axis it runs over: those of the result, then those it sums over."""
        return "".join(dict.fromkeys(self.axes + "".join(operand.axes for operand in self.operands)))

    def flops(self, step: Step) -> int:
        """Floating-point operations: two for each product and sum of a contraction, one for each
        operand of a sum or maximum, one for each result of any other (exp, sigmoid and the
        reciprocal root too).

        >>> KERNELS["forward_ffn"].operation("h1").flops(Step(768, 2048, 512, 12))
        1610612736
        """
        if self.kind in PRODUCTS:
            return 2 * step.count(self.letters)
        return step.count(self.operands[0].axes if self.kind in REDUCTIONS else self.axes)

    def __repr__(self) -> str:
        return f"{self.name}[{self.axes}] = {self.kind} " + " ".join(
            f"{operand.name}[{operand.axes}]" if operand.axes else operand.name for operand in self.operands)


@dataclass(frozen=True)
class Kernel:
    """A table of operations: what goes in, the weights that are built in, what comes out, and the
    taps, results of the way that come out too; ``unit`` is "NPU" or "CPU", ``times`` how often a
    step runs it."""

    name: str
    unit: str
    inputs: Mapping[str, str]
    weights: Mapping[str, str]
    operations: tuple[Operation, ...] = field(repr=False)
    outputs: tuple[str, ...]
    taps: tuple[str, ...] = ()
    times: int = 1

    @classmethod
    def read(cls, row: Mapping[str, str], table: str) -> Kernel:
        """A kernel from its row of ``kernels.csv`` (unit NPU, times 1 and nothing else by default)
        and its operations, a line each.

        Raises ValueError with the line for a table that is not whole.
        """
        name, unit, times = row["name"], row.get("unit", "NPU"), int(row.get("times", 1))
        inputs, weights = (_declared(name, row.get(part, "")) for part in ("inputs", "weights"))
        outputs, taps = (tuple(row.get(part, "").split()) for part in ("outputs", "taps"))
        axes = {**inputs, **weights}
        operations = []
        for number, words in enumerate(filter(None, map(str.split, table.splitlines())), 1):
            where = f"kernel {name}, row {number} ({' '.join(words)})"
            refuse_if(len(words) < 4, where, f"{len(words)} words",
                      "is name, axes, operation and operands")
            operands = tuple(_operand(where, word, axes) for word in words[3:])
            operation = Operation(words[0], words[1].replace("-", ""), words[2], operands)
            _refuse(where, operation, axes)
            axes[operation.name] = operation.axes
            operations.append(operation)
        results = {operation.name for operation in operations}
        for out in (*outputs, *taps):
            refuse_if(out not in results, f"kernel {name}", f"output {out!r}",
                      f"is one of {', '.join(sorted(results))}")
        refuse_if(unit not in ("NPU", "CPU") or times < 1, f"kernel {name}",
                  f"{times} times on unit {unit!r}", "is 1 or more on NPU or CPU")
        return cls(name, unit, inputs, weights, tuple(operations), outputs, taps, times)

    @property
    def table(self) -> str:
        """The table again, every operand with the axes it is seen by.

        >>> print(KERNELS["residual"].table)
        sum cs add x:cs branch:cs
        """
        def written(one: Operand) -> str:
            return f"{one.name}:{one.axes}" if one.axes else one.name

        return "\n".join(" ".join((row.name, row.axes or "-", row.kind, *map(written, row.operands)))
                         for row in self.operations)

    @property
    def given(self) -> dict[str, str]:
        """Axes of every tensor that has to be given: inputs, then weights."""
        return {**self.inputs, **self.weights}

    def operation(self, name: str) -> Operation:
        """The row of a result; LookupError with the known ones."""
        for operation in self.operations:
            if operation.name == name:
                return operation
        raise LookupError(f"operation: got {name!r}, kernel {self.name} has "
                          f"{', '.join(operation.name for operation in self.operations)}")

    def axes(self, name: str) -> str:
        """The axes of a tensor that is given or a result."""
        return self.given[name] if name in self.given else self.operation(name).axes


def _declared(kernel: str, text: str) -> dict[str, str]:
    out = {}
    for word in text.split():
        name, _, axes = word.partition(":")
        if not name or not axes or set(axes) - set(LETTERS):
            raise ValueError(f"kernel {kernel}: got tensor {word!r}, allowed is name:axes with axes of {LETTERS}")
        out[name] = axes
    return out


def _operand(where: str, word: str, known: Mapping[str, str]) -> Operand:
    name, _, axes = word.partition(":")
    if name in CONSTANTS and not axes:
        return Operand(name, "")
    if name not in known:
        raise ValueError(f"{where}: got operand {name!r}, allowed is one of {', '.join((*known, *CONSTANTS))}")
    if axes and _plain(axes) != _plain(known[name]):
        raise ValueError(f"{where}: got {word}, allowed are axes of the same elements as {name}:{known[name]}")
    return Operand(name, axes or known[name])


def _plain(axes: str) -> str:
    """Axes that hold the same elements are the same here: heads as channels, one letter for each
    size."""
    return axes.replace("hd", "c").replace("e", "c").replace("t", "s")


def _refuse(where: str, operation: Operation, known: Mapping[str, str]) -> None:
    if operation.kind not in OPERATIONS:
        raise ValueError(f"{where}: got operation {operation.kind!r}, allowed is one of {', '.join(OPERATIONS)}")
    wanted = 2 if operation.kind in PRODUCTS else ELEMENTWISE.get(operation.kind, 1)
    if len(operation.operands) != wanted:
        raise ValueError(f"{where}: got {len(operation.operands)} operands, allowed with {operation.kind} is {wanted}")
    for axes in (operation.axes, *(operand.axes for operand in operation.operands)):
        if set(axes) - set(LETTERS) or len(set(axes)) != len(axes):
            raise ValueError(f"{where}: got axes {axes!r}, allowed are different ones of {LETTERS}")
    if operation.name in known or operation.name in CONSTANTS:
        raise ValueError(f"{where}: got {operation.name!r} again, allowed is a new name")
    seen = [set(operand.axes) for operand in operation.operands]
    over, out = set().union(*seen), set(operation.axes)
    kept = "".join(letter for letter in operation.operands[0].axes if letter in out)
    whole = seen[0] ^ seen[1] <= out <= over if operation.kind in PRODUCTS else \
        operation.axes == kept if operation.kind in REDUCTIONS else over == out
    if not whole:
        raise ValueError(f"{where}: got result axes {operation.axes or '-'} of operands with "
                         f"{' and '.join(operand.axes or '-' for operand in operation.operands)}")


def _kernels() -> dict[str, Kernel]:
    """The kernels of ``kernels.csv``; a row of ``operations.csv`` is in each kernel it names."""
    operations = read_table(HERE / "operations.csv")
    return {row["name"]: Kernel.read(row, "\n".join(
                f"{operation['operation']} {operation['axes']} {operation['kind']} {operation['operands']}"
                for operation in operations if row["name"] in operation["kernels"].split()))
            for row in read_table(HERE / "kernels.csv")}


KERNELS = _kernels()


def kernel_of(kernel: str | Kernel) -> Kernel:
    """The kernel of a name, or the one given; LookupError with the known names."""
    return kernel if isinstance(kernel, Kernel) else KERNELS[one_of("kernel", kernel, KERNELS)]
