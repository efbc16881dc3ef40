"""The kernels of a training step: a row of ``kernels.csv`` each, and a row of ``operations.csv``
per operation, which is also one result that is rounded; and a kernel run on tensors.

An operation is ``name axes operation operands``.  Axes are the letters of ``Step.size``, ``-`` for
a single number; an operand is a tensor by its axes, or with ``name:axes`` by others that hold the
same elements in the same order (``q:hds``: the channels of ``q`` by head), or a constant.  Tensors
are channel first, ``(channels, positions)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from npulab.npus.kit import one_of, read_table, refuse_if

MOST = 2**18  # of each size, so that the counts of a step stay within int64
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
            whole = isinstance(size, int | np.integer) and not isinstance(size, bool)
            refuse_if(
                not whole or not 1 <= size <= MOST,
                item.name,
                repr(size),
                f"is a whole number from 1 to {MOST}",
            )
            object.__setattr__(self, item.name, int(size))
        if self.dim % self.heads:
            raise ValueError(
                f"heads: got {self.heads}, allowed with dim {self.dim} is a divisor of it"
            )

    @property
    def head(self) -> int:
        """Channels of a head."""
        return self.dim // self.heads

    def size(self, letter: str) -> int:
        """The size of an axis: c and e dim, f hidden, s and t seq, h heads, d head; LookupError for
        another."""
        sizes = {
            "c": self.dim,
            "e": self.dim,
            "f": self.hidden,
            "s": self.seq,
            "t": self.seq,
            "h": self.heads,
            "d": self.head,
        }
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
UNARY: Mapping[str, Callable[..., np.ndarray]] = {
    "exp": np.exp,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
}
BINARY = {"mul": np.multiply, "add": np.add, "sub": np.subtract, "div": np.divide}
ELEMENTWISE: Mapping[str, Callable[..., np.ndarray]] = {**BINARY, **UNARY}
OPERATIONS = (*PRODUCTS, *REDUCTIONS, *ELEMENTWISE)
EPSILON = 1e-5
MASKED = -65504.0  # added to scores of positions to come: the lowest float16
CONSTANTS: Mapping[str, Callable[[Step], float]] = {
    "one": lambda step: 1.0,
    "epsilon": lambda step: EPSILON,
    "inverse_dim": lambda step: 1 / step.dim,
    "scale": lambda step: 1 / math.sqrt(step.head),
    "inverse_size": lambda step: 1 / (step.seq * step.dim),
}


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
        return "".join(
            dict.fromkeys(self.axes + "".join(operand.axes for operand in self.operands))
        )

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
            f"{operand.name}[{operand.axes}]" if operand.axes else operand.name
            for operand in self.operands
        )


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
            refuse_if(
                len(words) < 4,
                where,
                f"{len(words)} words",
                "is name, axes, operation and operands",
            )
            operands = tuple(_operand(where, word, axes) for word in words[3:])
            operation = Operation(words[0], words[1].replace("-", ""), words[2], operands)
            _refuse(where, operation, axes)
            axes[operation.name] = operation.axes
            operations.append(operation)
        results = {operation.name for operation in operations}
        for out in (*outputs, *taps):
            refuse_if(
                out not in results,
                f"kernel {name}",
                f"output {out!r}",
                f"is one of {', '.join(sorted(results))}",
            )
        refuse_if(
            unit not in ("NPU", "CPU") or times < 1,
            f"kernel {name}",
            f"{times} times on unit {unit!r}",
            "is 1 or more on NPU or CPU",
        )
        return cls(name, unit, inputs, weights, tuple(operations), outputs, taps, times)

    @property
    def given(self) -> dict[str, str]:
        """Axes of every tensor that has to be given: inputs, then weights."""
        return {**self.inputs, **self.weights}

    def operation(self, name: str) -> Operation:
        """The row of a result; LookupError with the known ones."""
        for operation in self.operations:
            if operation.name == name:
                return operation
        raise LookupError(
            f"operation: got {name!r}, kernel {self.name} has "
            f"{', '.join(operation.name for operation in self.operations)}"
        )

    def axes(self, name: str) -> str:
        """The axes of a tensor that is given or a result."""
        if name in self.given:
            return self.given[name]
        return self.operation(name).axes


def _declared(kernel: str, text: str) -> dict[str, str]:
    out = {}
    for word in text.split():
        name, _, axes = word.partition(":")
        if not name or not axes or set(axes) - set(LETTERS):
            raise ValueError(
                f"kernel {kernel}: got tensor {word!r}, allowed is name:axes with axes of {LETTERS}"
            )
        out[name] = axes
    return out


def _operand(where: str, word: str, known: Mapping[str, str]) -> Operand:
    name, _, axes = word.partition(":")
    if name in CONSTANTS and not axes:
        return Operand(name, "")
    if name not in known:
        raise ValueError(
            f"{where}: got operand {name!r}, allowed is one of {', '.join((*known, *CONSTANTS))}"
        )
    if axes and _plain(axes) != _plain(known[name]):
        raise ValueError(
            f"{where}: got {word}, allowed are axes of the same elements as {name}:{known[name]}"
        )
    return Operand(name, axes or known[name])


def _plain(axes: str) -> str:
    """Axes that hold the same elements are the same here: heads as channels, one letter for each
    size."""
    return axes.replace("hd", "c").replace("e", "c").replace("t", "s")


def _refuse(where: str, operation: Operation, known: Mapping[str, str]) -> None:
    if operation.kind not in OPERATIONS:
        raise ValueError(
            f"{where}: got operation {operation.kind!r}, allowed is one of {', '.join(OPERATIONS)}"
        )
    if operation.kind in (*PRODUCTS, *BINARY):
        wanted = 2
    else:
        wanted = 1
    if len(operation.operands) != wanted:
        raise ValueError(
            f"{where}: got {len(operation.operands)} operands, allowed with {operation.kind} is "
            f"{wanted}"
        )
    for axes in (operation.axes, *(operand.axes for operand in operation.operands)):
        if set(axes) - set(LETTERS) or len(set(axes)) != len(axes):
            raise ValueError(f"{where}: got axes {axes!r}, allowed are different ones of {LETTERS}")
    if operation.name in known or operation.name in CONSTANTS:
        raise ValueError(f"{where}: got {operation.name!r} again, allowed is a new name")
    seen = [set(operand.axes) for operand in operation.operands]
    over, out = set().union(*seen), set(operation.axes)
    kept = "".join(letter for letter in operation.operands[0].axes if letter in out)
    if operation.kind in PRODUCTS:
        whole = seen[0] ^ seen[1] <= out <= over
    elif operation.kind in REDUCTIONS:
        whole = operation.axes == kept
    else:
        whole = over == out
    if not whole:
        raise ValueError(
            f"{where}: got result axes {operation.axes or '-'} of operands with "
            f"{' and '.join(operand.axes or '-' for operand in operation.operands)}"
        )


def _kernels() -> dict[str, Kernel]:
    """The kernels of ``kernels.csv``; a row of ``operations.csv`` is in each kernel it names."""
    operations = read_table(HERE / "operations.csv")
    return {
        row["name"]: Kernel.read(
            row,
            "\n".join(
                f"{operation['operation']} {operation['axes']} {operation['kind']} "
                f"{operation['operands']}"
                for operation in operations
                if row["name"] in operation["kernels"].split()
            ),
        )
        for row in read_table(HERE / "kernels.csv")
    }


KERNELS = _kernels()


def kernel_of(kernel: str | Kernel) -> Kernel:
    """The kernel of a name, or the one given; LookupError with the known names."""
    if isinstance(kernel, Kernel):
        return kernel
    return KERNELS[one_of("kernel", kernel, KERNELS)]


# Kernels run

TYPES = ("float16", "float32", "float64")
MOST_ELEMENTS = 2**28  # of a tensor that is run: 2 GiB of float64
Values = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Run:
    """What a kernel gave: ``outputs``, ``taps`` and ``values``, which is every tensor by name, what
    was given too."""

    kernel: Kernel = field(repr=False)
    outputs: Mapping[str, np.ndarray] = field(repr=False)
    taps: Mapping[str, np.ndarray] = field(repr=False)
    values: Mapping[str, np.ndarray] = field(repr=False)

    def __repr__(self) -> str:
        shapes = ", ".join(
            f"{name} {array.shape}" for name, array in {**self.outputs, **self.taps}.items()
        )
        return f"Run({self.kernel.name}: {shapes}, {next(iter(self.values.values())).dtype})"


def run(
    kernel: str | Kernel,
    step: Step,
    tensors: Mapping[str, Any],
    dtype: str = "float16",
    accumulate: str | None = None,
) -> Run:
    """Run a kernel: what is given and the result of every operation are rounded to ``dtype``, half
    to even.

    Tensors are channel first, ``(channels, positions)``, weights ``(outputs, inputs)``; scores
    ``(heads, seq, seq)``, the key along the last axis.  ``mask`` may be left out: ``causal_mask``
    is taken.  Sums, of contractions too, are made in ``accumulate``: "float64" and "float32" in
    numpy's order, "float16" one product after the other, each sum rounded once; the default is
    float32, or float64 where dtype is.  What does not fit a float16 becomes infinite, what is too
    small for a subnormal becomes 0. Raises LookupError for an unknown kernel or type, ValueError
    naming a tensor that is missing, unknown, no array of real numbers or of another shape, or that
    would have more than 2**28 elements.

    >>> step = Step(2, 3, 1, 1)
    >>> run("qkv_backward", step, {**{f"d{n}": [[1], [2]] for n in "qkv"}, **{f"w{n}": np.eye(2) for n in "qkv"}})
    Run(qkv_backward: dxn (2, 1), float16)
    """
    plan = kernel_of(kernel)
    one_of("dtype", dtype, TYPES)
    if accumulate is not None:
        one_of("accumulate", accumulate, TYPES)
    values = {name: rounded(array, dtype) for name, array in checked(plan, step, tensors).items()}
    evaluate(plan.operations, step, values, dtype, accumulate)
    return Run(
        plan,
        {name: values[name] for name in plan.outputs},
        {name: values[name] for name in plan.taps},
        values,
    )


def causal_mask(seq: int) -> np.ndarray:
    """What is added to scores ``(query, key)``: 0, and the lowest float16 for keys that come after
    the query.

    >>> causal_mask(2).tolist()
    [[0.0, -65504.0], [0.0, 0.0]]
    """
    return np.triu(np.full((seq, seq), MASKED), 1)


def checked(kernel: Kernel, step: Step, tensors: Mapping[str, Any]) -> Values:
    """What a kernel is given, float64; ValueError if a tensor is not as ``run`` says."""
    unknown = [name for name in tensors if name not in kernel.given]
    missing = [name for name in kernel.given if name not in tensors and name != "mask"]
    if unknown or missing:
        raise ValueError(
            f"{kernel.name}: got "
            f"{f'tensor {unknown[0]!r}' if unknown else f'no tensor {missing[0]!r}'}, "
            f"allowed are {', '.join(kernel.given)}"
        )
    for name in (*kernel.given, *(operation.name for operation in kernel.operations)):
        refuse_if(
            step.count(kernel.axes(name)) > MOST_ELEMENTS,
            f"{kernel.name}: tensor {name}",
            f"{step.count(kernel.axes(name))} elements",
            f"is {MOST_ELEMENTS}",
        )
    out = {}
    for name, axes in kernel.given.items():
        shape = step.shape(axes)
        if name in tensors:
            tensor = tensors[name]
        else:
            tensor = causal_mask(step.seq)
        allowed = f"allowed is {shape} of real numbers"
        try:
            array = np.asarray(tensor)
        except ValueError:
            raise ValueError(
                f"{kernel.name}: tensor {name}: got rows of different lengths, {allowed}"
            ) from None
        if array.shape != shape or array.dtype.kind not in "fiub":
            raise ValueError(
                f"{kernel.name}: tensor {name}: got shape {array.shape} of {array.dtype}, {allowed}"
            )
        out[name] = array.astype(np.float64)
    return out


def evaluate(
    operations: tuple[Operation, ...],
    step: Step,
    values: Values,
    dtype: str,
    accumulate: str | None = None,
) -> None:
    """Compute the operations in turn into ``values``, which holds what they start from."""
    for operation in operations:
        values[operation.name] = result(operation, step, values, dtype, accumulate)


def result(
    operation: Operation,
    step: Step,
    values: Mapping[str, np.ndarray],
    dtype: str,
    accumulate: str | None = None,
) -> np.ndarray:
    """The result of one operation, rounded to ``dtype``, in the shape it is kept in.

    Elementwise it is what float64 gives, rounded once more (of float16 numbers, products,
    quotients, sums and differences are taken in float32, which comes to the same); complex operands
    stay complex.
    """
    sums = accumulate or ("float64" if dtype == "float64" else "float32")
    with np.errstate(all="ignore"):
        if operation.kind in PRODUCTS:
            left, right = operation.operands
            made = contract(
                _viewed(left, step, values),
                left.axes,
                _viewed(right, step, values),
                right.axes,
                operation.axes,
                sums,
            )
        elif operation.kind in REDUCTIONS:
            (operand,) = operation.operands
            array = _viewed(operand, step, values)
            over = tuple(
                at for at, letter in enumerate(operand.axes) if letter not in operation.axes
            )
            if operation.kind == "max":
                made = array.real.max(over)
            else:
                made = _sum(array, over, sums)
        else:
            made = ELEMENTWISE[operation.kind](*_operands(operation, step, values, dtype))
    return rounded(made, dtype).reshape(step.shape(operation.axes))


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array in a type, half to even; complex numbers, which carry derivatives, are not
    rounded."""
    with np.errstate(over="ignore", under="ignore"):
        if np.iscomplexobj(array):
            return array
        return array.astype(dtype)


def _viewed(operand: Operand, step: Step, values: Mapping[str, np.ndarray]) -> np.ndarray:
    return values[operand.name].reshape(step.axes(operand.axes))


def _operands(
    operation: Operation, step: Step, values: Mapping[str, np.ndarray], dtype: str
) -> list[np.ndarray]:
    """The operands of an elementwise operation, in the type it is computed in, and of axes that
    numpy repeats."""
    arrays = [
        rounded(np.array(CONSTANTS[operand.name](step)), dtype)
        if operand.name in CONSTANTS
        else _viewed(operand, step, values)
        for operand in operation.operands
    ]
    # of float16 numbers in float32: its 24 bits are twice their 11 and two more
    if any(map(np.iscomplexobj, arrays)):
        work = "complex128"
    elif operation.kind in BINARY and all(array.dtype == np.float16 for array in arrays):
        work = "float32"
    else:
        work = "float64"
    return [
        _spread(array.astype(work), operand.axes, operation.axes)
        for array, operand in zip(arrays, operation.operands, strict=True)
    ]


def _spread(array: np.ndarray, have: str, axes: str) -> np.ndarray:
    """An array with an axis for each of ``axes``, of size 1 where it has none."""
    array = array.transpose([have.index(letter) for letter in axes if letter in have])
    return np.expand_dims(array, [at for at, letter in enumerate(axes) if letter not in have])


def contract(
    one: np.ndarray, one_axes: str, other: np.ndarray, other_axes: str, axes: str, sums: str
) -> np.ndarray:
    """``sum one * other`` over the axes that the result has not, in the type ``sums``.

    >>> contract(np.eye(2), "ce", np.array([[3, 4], [5, 6.]]), "es", "sc", "float64").tolist()
    [[3.0, 5.0], [4.0, 6.0]]
    """
    both = [letter for letter in one_axes if letter in other_axes]
    batch = [letter for letter in both if letter in axes]
    over = [letter for letter in both if letter not in axes]
    left = [letter for letter in one_axes if letter not in both]
    right = [letter for letter in other_axes if letter not in both]
    sizes = dict(zip(one_axes + other_axes, one.shape + other.shape, strict=True))

    def grouped(array: np.ndarray, have: str, *groups: list[str]) -> np.ndarray:
        order = [have.index(letter) for group in groups for letter in group]
        return array.transpose(order).reshape(
            [int(np.prod([sizes[n] for n in group])) for group in groups]
        )

    rows, columns = (
        grouped(one, one_axes, batch, left, over),
        grouped(other, other_axes, batch, over, right),
    )
    if np.iscomplexobj(rows) or np.iscomplexobj(columns):
        made = rows @ columns
    elif sums == "float16":
        made = _one_by_one(rows, columns)
    else:
        made = rows.astype(sums) @ columns.astype(sums)
    have = [*batch, *left, *right]
    return made.reshape([sizes[letter] for letter in have]).transpose(
        [have.index(letter) for letter in axes]
    )


def _one_by_one(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Products added one after the other; the sum is a float16 each time, the product is exact."""
    wide, tall = rows.astype(np.float64), columns.astype(np.float64)
    out = np.zeros((rows.shape[0], rows.shape[1], columns.shape[2]), np.float16)
    for at in range(rows.shape[2]):
        out = (out + wide[:, :, at, None] * tall[:, at, None, :]).astype(np.float16)
    return out


def _sum(array: np.ndarray, over: tuple[int, ...], sums: str) -> np.ndarray:
    if np.iscomplexobj(array):
        return array.sum(over)
    if sums != "float16":
        return array.sum(over, dtype=sums)
    kept = [at for at in range(array.ndim) if at not in over]
    terms = array.transpose((*kept, *over))
    shape = terms.shape[: len(kept)]
    rows = terms.reshape(1, math.prod(shape), -1)
    return _one_by_one(rows, np.ones((1, rows.shape[2], 1))).reshape(shape)
