"""The kernels of a training step, and the run of a kernel on tensors.

A kernel is a row of ``kernels.csv``; each of its operations is a row of ``operations.csv`` and has
one result, which is rounded. An operation is a row of words: the name of its result, the axes
of the result, its kind and its operands. Axes are letters of ``Step.size``; ``-`` means a single
number. An operand is the name of a tensor or constant, or ``name:axes``: ``q:hds`` reads the tensor
``q`` with its channels divided into heads (h) and channels of a head (d), the elements in the same
order. Activations are ``(channels, positions)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.npus.kit import one_of, read_table, refuse_if, refusing

# A size of a step is at most this number, so that numbers of operations fit into int64.
MOST = 2**18
SIZES = {"c": "dim", "e": "dim", "f": "hidden", "s": "seq", "t": "seq", "h": "heads", "d": "head"}
LETTERS = "".join(SIZES)
# The axes of each tensor, as letters of SIZES, by the tensor's name.
Axes = Mapping[str, str]


@dataclass(frozen=True)
class Step:
    """The sizes of a transformer layer in one training step.

    ``dim`` is the number of channels, ``hidden`` that of the feed-forward part (FFN), ``seq`` the
    number of positions, ``heads`` that of attention heads, with ``dim / heads`` channels each.
    Raises ValueError if a size is not a whole number from 1 to 262144, or if ``heads`` does not
    divide ``dim``.

    >>> Step(768, 2048, 512, 12).head
    64
    """

    dim: int
    hidden: int
    seq: int
    heads: int

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            whole = isinstance(size, int | np.integer) and not isinstance(size, bool)
            if not whole or not 1 <= size <= MOST:
                raise ValueError(
                    f"{name}: got {size!r}, allowed is a whole number from 1 to {MOST}"
                )
            object.__setattr__(self, name, int(size))
        if self.dim % self.heads:
            raise ValueError(
                f"heads: got {self.heads}, allowed with dim {self.dim} is a divisor of it"
            )

    @property
    def head(self) -> int:
        """The number of channels of one head."""
        return self.dim // self.heads

    def size(self, letter: str) -> int:
        """Return the size of the axis that a letter stands for.

        c and e: ``dim``; f: ``hidden``; s and t: ``seq``; h: ``heads``; d: ``head``. Raises
        LookupError for another letter.
        """
        size = getattr(self, SIZES[one_of("axis", letter, SIZES)])
        return int(size)

    def axes(self, letters: str) -> tuple[int, ...]:
        """Return the size of the axis of each letter.

        >>> Step(768, 2048, 512, 12).axes("hds")
        (12, 64, 512)
        """
        return tuple(self.size(letter) for letter in letters)

    def shape(self, letters: str) -> tuple[int, ...]:
        """Return the shape of the array of a tensor with these axes.

        The axes h and d become one axis: all channels of the first head, then of the next.

        >>> Step(768, 2048, 512, 12).shape("hds")
        (768, 512)
        """
        return self.axes(letters.replace("hd", "c"))

    def count(self, letters: str) -> int:
        """Return the number of elements of a tensor with these axes."""
        return math.prod(self.axes(letters))


HERE = Path(__file__).parent
# Sums of products: linear multiplies a tensor with a weight, matmul two tensors that are no
# weights.
PRODUCTS = ("linear", "matmul")
REDUCTIONS = ("sum", "max")
UNARY: Mapping[str, Callable[..., Array]] = {
    "exp": np.exp,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
}
BINARY = {"mul": np.multiply, "add": np.add, "sub": np.subtract, "div": np.divide}
ELEMENTWISE: Mapping[str, Callable[..., Array]] = {**BINARY, **UNARY}
OPERATIONS = (*PRODUCTS, *REDUCTIONS, *ELEMENTWISE)
EPSILON = 1e-5
# The lowest number of float16; it is added to the score of a key that comes after the query.
MASKED = -65504.0
CONSTANTS: Mapping[str, Callable[[Step], float]] = {
    "one": lambda step: 1.0,
    "epsilon": lambda step: EPSILON,
    "inverse_dim": lambda step: 1 / step.dim,
    "scale": lambda step: 1 / math.sqrt(step.head),
    "inverse_size": lambda step: 1 / (step.seq * step.dim),
}


@dataclass(frozen=True)
class Operand:
    """An operand of an operation: the name of a tensor, and the axes by which it is read.

    ``axes`` are letters of ``Step.size``, empty for a constant.
    """

    name: str
    axes: str


@dataclass(frozen=True)
class Operation:
    """An operation of a kernel: ``name`` and ``axes`` of its result, its kind, its operands.

    ``kind`` is one of ``OPERATIONS``, such as ``linear``, ``sum`` or ``mul``.
    """

    name: str
    axes: str
    kind: str
    operands: tuple[Operand, ...]

    @property
    def letters(self) -> str:
        """The letters of the result's axes, then of the axes that only operands have (these are
        summed)."""
        letters = [self.axes, *(operand.axes for operand in self.operands)]
        return "".join(dict.fromkeys("".join(letters)))

    def flops(self, step: Step) -> int:
        """Return the number of floating-point operations.

        ``linear`` and ``matmul`` have two for each multiplication with its addition, ``sum`` and
        ``max`` one for each element of the operand. Every other kind has one for each element of
        the result, ``exp``, ``sigmoid`` and ``rsqrt`` too.

        >>> KERNELS["forward_ffn"].operation("h1").flops(Step(768, 2048, 512, 12))
        1610612736
        """
        if self.kind in PRODUCTS:
            return 2 * step.count(self.letters)
        if self.kind in REDUCTIONS:
            return step.count(self.operands[0].axes)
        return step.count(self.axes)

    def __repr__(self) -> str:
        words = [f"{self.name}[{self.axes}] =", self.kind]
        for operand in self.operands:
            word = operand.name
            if operand.axes:
                word += f"[{operand.axes}]"
            words.append(word)
        return " ".join(words)


@dataclass(frozen=True)
class Kernel:
    """Operations that run together on one unit, the NPU or the CPU.

    ``inputs`` and ``weights`` have the axes of each tensor by name; weights are compiled into the
    kernel. ``outputs`` are the names of its results. ``taps`` are the names of intermediate results
    that it also returns, because later kernels read them. A training step runs it ``times`` times.
    """

    name: str
    unit: str
    inputs: Axes
    weights: Axes
    operations: tuple[Operation, ...] = field(repr=False)
    outputs: tuple[str, ...]
    taps: tuple[str, ...] = ()
    times: int = 1

    @classmethod
    def read(cls, row: Mapping[str, str], table: str) -> Kernel:
        """Return the kernel of a row in the form of ``kernels.csv``.

        ``table`` has one operation a line, as the words ``name axes kind operands``. The row needs
        ``name``; by default ``unit`` is NPU, ``times`` is 1, and the lists of tensors are empty.
        Raises ValueError for a wrong operation, with its line, and for a wrong tensor, output, unit
        or ``times``, with the kernel.
        """
        name = row["name"]
        unit = row.get("unit", "NPU")
        times = int(row.get("times", 1))
        inputs = _declared(name, row.get("inputs", ""))
        weights = _declared(name, row.get("weights", ""))
        axes = {**inputs, **weights}
        operations: list[Operation] = []
        for line in table.splitlines():
            words = line.split()
            with refusing(f"kernel {name}, row {len(operations) + 1} ({' '.join(words)})"):
                operation = _operation(words, axes)
            axes[operation.name] = operation.axes
            operations.append(operation)
        results = sorted(operation.name for operation in operations)
        outputs = tuple(row.get("outputs", "").split())
        taps = tuple(row.get("taps", "").split())
        for output in (*outputs, *taps):
            if output not in results:
                raise ValueError(
                    f"kernel {name}: got output {output!r}, allowed is one of {', '.join(results)}"
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
        """The axes of every input, then of every weight, by name: the tensors that ``run``
        needs."""
        return {**self.inputs, **self.weights}

    def operation(self, name: str) -> Operation:
        """Return the operation whose result has a name; raise LookupError if there is none."""
        for operation in self.operations:
            if operation.name == name:
                return operation
        known = ", ".join(operation.name for operation in self.operations)
        raise LookupError(f"operation: got {name!r}, kernel {self.name} has {known}")

    def axes(self, name: str) -> str:
        """Return the axes (letters) of an input, a weight or the result of an operation."""
        if name in self.given:
            return self.given[name]
        return self.operation(name).axes


def _declared(kernel: str, text: str) -> dict[str, str]:
    """Return the axes of tensors by name, from a text of words ``name:axes``.

    Raises ValueError for a word of another form.
    """
    declared = {}
    for word in text.split():
        name, _, axes = word.partition(":")
        if not name or not axes or set(axes) - set(LETTERS):
            raise ValueError(
                f"kernel {kernel}: got tensor {word!r}, allowed is name:axes with axes of {LETTERS}"
            )
        declared[name] = axes
    return declared


def _operation(words: list[str], known: Axes) -> Operation:
    """Return the operation of the words name, axes, kind and operands.

    ``known`` has the axes of inputs, weights and earlier results by name. Raises ValueError for
    fewer than 4 words and for what ``_operand`` and ``_refuse`` refuse.
    """
    if len(words) < 4:
        raise ValueError(f"got {len(words)} words, allowed is name, axes, operation and operands")
    operands = tuple(_operand(word, known) for word in words[3:])
    operation = Operation(words[0], words[1].replace("-", ""), words[2], operands)
    _refuse(operation, known)
    return operation


def _operand(word: str, known: Axes) -> Operand:
    name, _, axes = word.partition(":")
    if name in CONSTANTS and not axes:
        return Operand(name, "")
    if name not in known:
        raise ValueError(
            f"got operand {name!r}, allowed is one of {', '.join((*known, *CONSTANTS))}"
        )
    if axes and _same_elements(axes) != _same_elements(known[name]):
        raise ValueError(
            f"got operand {word}, allowed is {name}:{known[name]}, or its sizes in other "
            "letters (c, e or hd; s or t)"
        )
    return Operand(name, axes or known[name])


def _same_elements(axes: str) -> str:
    """Return axes with one letter for each size: ``hd`` and e become c, t becomes s.

    Tensors whose axes become equal have the same number of elements in the same order.
    """
    return axes.replace("hd", "c").replace("e", "c").replace("t", "s")


def _refuse(operation: Operation, known: Axes) -> None:
    """Raise ValueError for a wrong operation.

    Its kind may be unknown, its number of operands wrong, its name in use, or its axes may be
    unknown, repeated or not allowed for the kind.
    """
    if operation.kind not in OPERATIONS:
        raise ValueError(
            f"got operation {operation.kind!r}, allowed is one of {', '.join(OPERATIONS)}"
        )
    wanted = 1
    if operation.kind in (*PRODUCTS, *BINARY):
        wanted = 2
    if len(operation.operands) != wanted:
        raise ValueError(
            f"got {len(operation.operands)} operands, allowed with {operation.kind} is {wanted}"
        )
    if operation.name in known or operation.name in CONSTANTS:
        raise ValueError(f"got {operation.name!r} again, allowed is a new name")
    seen = [operand.axes for operand in operation.operands]
    for axes in (operation.axes, *seen):
        if set(axes) - set(LETTERS) or len(set(axes)) != len(axes):
            raise ValueError(f"got axes {axes!r}, allowed are different letters of {LETTERS}")
    result = set(operation.axes)
    every = set().union(*seen)
    if operation.kind in PRODUCTS:
        # A product may sum only over axes that both operands have.
        whole = set(seen[0]) ^ set(seen[1]) <= result <= every
    elif operation.kind in REDUCTIONS:
        kept = [letter for letter in seen[0] if letter in result]
        whole = operation.axes == "".join(kept)
    else:
        whole = every == result
    if not whole:
        operands = " and ".join(axes or "-" for axes in seen)
        raise ValueError(f"got result axes {operation.axes or '-'} of operands with {operands}")


def _kernels() -> dict[str, Kernel]:
    """Return the kernels of ``kernels.csv`` by name.

    A row of ``operations.csv`` is an operation of every kernel that its column ``kernels`` names.
    """
    operations = read_table(HERE / "operations.csv")
    kernels = {}
    for row in read_table(HERE / "kernels.csv"):
        lines = []
        for operation in operations:
            if row["name"] in operation["kernels"].split():
                lines.append("{operation} {axes} {kind} {operands}".format_map(operation))
        kernels[row["name"]] = Kernel.read(row, "\n".join(lines))
    return kernels


KERNELS = _kernels()


def kernel_of(kernel: str | Kernel) -> Kernel:
    """Return the kernel with a name; a ``Kernel`` is returned as it is.

    Raises LookupError, with the known names, for an unknown name.
    """
    if isinstance(kernel, Kernel):
        return kernel
    return KERNELS[one_of("kernel", kernel, KERNELS)]


# Running a kernel

TYPES = ("float16", "float32", "float64")
# A tensor in a run has at most this many elements, which are 2 GiB as float64.
MOST_ELEMENTS = 2**28
Arrays = Mapping[str, Array]
Values = dict[str, Array]


@dataclass(frozen=True, eq=False)
class Run:
    """The results of a run of a kernel, as arrays by name.

    ``values`` has every tensor of the run: inputs, weights and the result of each operation.
    ``outputs`` and ``taps`` are those of the kernel.
    """

    kernel: Kernel = field(repr=False)
    outputs: Arrays = field(repr=False)
    taps: Arrays = field(repr=False)
    values: Arrays = field(repr=False)

    def __repr__(self) -> str:
        shown = {**self.outputs, **self.taps}
        shapes = [f"{name} {array.shape}" for name, array in shown.items()]
        dtype = next(iter(shown.values())).dtype
        return f"Run({self.kernel.name}: {', '.join(shapes)}, {dtype})"


def run(
    kernel: str | Kernel,
    step: Step,
    tensors: Mapping[str, Any],
    dtype: str = "float16",
    accumulate: str | None = None,
) -> Run:
    """Run a kernel; inputs, weights and the result of each operation are rounded to ``dtype``.

    Activations are ``(channels, positions)``, weights ``(outputs, inputs)``, attention scores
    ``(heads, queries, keys)``. ``causal_mask`` is used if ``tensors`` has no ``mask``. Rounding is
    half to even; a number too large for ``dtype`` becomes infinite, a number too small becomes 0.

    ``accumulate`` is the type in which sums are added, those of products too: float64 or float32 in
    numpy's order, float16 one term after the other with a rounding after each. The default is
    float32, or float64 if ``dtype`` is float64.

    Raises LookupError for an unknown kernel or type. Raises ValueError, with the tensor's name, for
    a tensor that is missing, unknown, of another shape, not of real numbers, or of more than 2**28
    elements.

    >>> step = Step(2, 3, 1, 1)
    >>> given = {"dq": [[1], [2]], "dk": [[1], [2]], "dv": [[1], [2]]}
    >>> run("qkv_backward", step, given | dict.fromkeys(["wq", "wk", "wv"], np.eye(2)))
    Run(qkv_backward: dxn (2, 1), float16)
    """
    plan = kernel_of(kernel)
    one_of("dtype", dtype, TYPES)
    if accumulate is not None:
        one_of("accumulate", accumulate, TYPES)
    values = {name: rounded(array, dtype) for name, array in checked(plan, step, tensors).items()}
    evaluate(plan.operations, step, values, dtype, accumulate)
    outputs = {name: values[name] for name in plan.outputs}
    taps = {name: values[name] for name in plan.taps}
    return Run(plan, outputs, taps, values)


def causal_mask(seq: int) -> Array:
    """Return the mask ``(seq, seq)`` that is added to attention scores (query, key).

    An element is the lowest float16 if the key comes after the query, else 0.

    >>> causal_mask(2).tolist()
    [[0.0, -65504.0], [0.0, 0.0]]
    """
    return np.triu(np.full((seq, seq), MASKED), 1)


def checked(kernel: Kernel, step: Step, tensors: Mapping[str, Any]) -> Values:
    """Return the inputs and weights of a kernel in float64, with the causal mask if none is given.

    Raises ValueError for tensors that ``run`` refuses.
    """
    unknown = [name for name in tensors if name not in kernel.given]
    missing = [name for name in kernel.given if name not in tensors and name != "mask"]
    if unknown or missing:
        if unknown:
            got = f"tensor {unknown[0]!r}"
        else:
            got = f"no tensor {missing[0]!r}"
        raise ValueError(f"{kernel.name}: got {got}, allowed are {', '.join(kernel.given)}")
    sized = {**kernel.given, **{operation.name: operation.axes for operation in kernel.operations}}
    for name, axes in sized.items():
        if step.count(axes) > MOST_ELEMENTS:
            raise ValueError(
                f"{kernel.name}: tensor {name}: got {step.count(axes)} elements, allowed are "
                f"up to {MOST_ELEMENTS}"
            )
    arrays = {}
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
        arrays[name] = array.astype(np.float64)
    return arrays


def evaluate(
    operations: tuple[Operation, ...],
    step: Step,
    values: Values,
    dtype: str,
    accumulate: str | None = None,
) -> None:
    """Compute the operations in order and add each result to ``values``.

    At the start, ``values`` has the inputs and weights.
    """
    for operation in operations:
        values[operation.name] = result(operation, step, values, dtype, accumulate)


def result(
    operation: Operation,
    step: Step,
    values: Arrays,
    dtype: str,
    accumulate: str | None = None,
) -> Array:
    """Return the result of one operation, rounded to ``dtype``, in the shape of ``Step.shape``.

    ``values`` has the operands by name; ``accumulate`` is that of ``run``. Elementwise operations
    are computed in float64. If both operands are float16, float32 is used: after rounding to
    float16 the result is the same. Complex operands give a complex result.
    """
    sums = accumulate
    if sums is None:
        sums = "float32"
        if dtype == "float64":
            sums = "float64"
    with np.errstate(all="ignore"):
        if operation.kind in ELEMENTWISE:
            operands = _operands(operation, step, values, dtype)
            exact = ELEMENTWISE[operation.kind](*operands)
        elif operation.kind in PRODUCTS:
            left, right = operation.operands
            x, y = _viewed(left, step, values), _viewed(right, step, values)
            exact = contract(x, left.axes, y, right.axes, operation.axes, sums)
        else:
            (operand,) = operation.operands
            x = _viewed(operand, step, values)
            exact = _reduced(operation.kind, x, operand.axes, operation.axes, sums)
    return rounded(exact, dtype).reshape(step.shape(operation.axes))


def _reduced(kind: str, array: Array, have: str, axes: str, sums: str) -> Array:
    """Return the sum or the maximum over the axes that are in ``have`` but not in ``axes``.

    ``have`` are the letters of the array's axes; ``sums`` is the type in which sums are added.
    """
    over = tuple(at for at, letter in enumerate(have) if letter not in axes)
    if kind == "max":
        return array.real.max(over)
    return _sum(array, over, sums)


def rounded(array: Array, dtype: str) -> Array:
    """Return an array rounded to ``dtype``, half to even.

    A complex array is returned as it is: its imaginary part carries a derivative.
    """
    with np.errstate(over="ignore", under="ignore"):
        if np.iscomplexobj(array):
            return array
        return array.astype(dtype)


def _viewed(operand: Operand, step: Step, values: Arrays) -> Array:
    return values[operand.name].reshape(step.axes(operand.axes))


def _operands(operation: Operation, step: Step, values: Arrays, dtype: str) -> list[Array]:
    """Return the operands of an elementwise operation, in axes that numpy broadcasts.

    Their type is the one in which ``result`` computes; constants are rounded to ``dtype`` first.
    """
    arrays = []
    for operand in operation.operands:
        if operand.name in CONSTANTS:
            constant = np.array(CONSTANTS[operand.name](step))
            arrays.append(rounded(constant, dtype))
        else:
            arrays.append(_viewed(operand, step, values))
    # float32 is exact enough for two float16 operands: with 24 bits (2 * 11 + 2) for the result of
    # two 11-bit numbers, rounding to float32 first does not change the rounding to float16.
    work = "float64"
    if any(map(np.iscomplexobj, arrays)):
        work = "complex128"
    elif operation.kind in BINARY and all(array.dtype == np.float16 for array in arrays):
        work = "float32"
    spread = []
    for array, operand in zip(arrays, operation.operands, strict=True):
        spread.append(_spread(array.astype(work), operand.axes, operation.axes))
    return spread


def _spread(array: Array, have: str, axes: str) -> Array:
    """Return an array with the axes ``axes``, in their order; an axis that is not in ``have`` gets
    size 1.
    """
    order = [have.index(letter) for letter in axes if letter in have]
    added = [at for at, letter in enumerate(axes) if letter not in have]
    return np.expand_dims(array.transpose(order), added)


def contract(
    left: Array, left_axes: str, right: Array, right_axes: str, axes: str, sums: str
) -> Array:
    """Return ``left * right``, summed over the axes that both arrays have but ``axes`` does not.

    ``left_axes``, ``right_axes`` and ``axes`` are a letter for each axis of left, right and the
    result. ``sums`` is the type in which sums are added, as ``accumulate`` of ``run``; complex
    arrays stay complex.

    >>> contract(np.eye(2), "ce", np.array([[3, 4], [5, 6.]]), "es", "sc", "float64").tolist()
    [[3.0, 5.0], [4.0, 6.0]]
    """
    both = [letter for letter in left_axes if letter in right_axes]
    batch = [letter for letter in both if letter in axes]
    over = [letter for letter in both if letter not in axes]
    of_left = [letter for letter in left_axes if letter not in both]
    of_right = [letter for letter in right_axes if letter not in both]
    rows = _grouped(left, left_axes, batch, of_left, over)
    columns = _grouped(right, right_axes, batch, over, of_right)
    if np.iscomplexobj(rows) or np.iscomplexobj(columns):
        product = rows @ columns
    elif sums == "float16":
        product = _one_by_one(rows, columns)
    else:
        product = rows.astype(sums) @ columns.astype(sums)
    sizes = dict(zip(left_axes + right_axes, left.shape + right.shape, strict=True))
    have = [*batch, *of_left, *of_right]
    order = [have.index(letter) for letter in axes]
    return product.reshape([sizes[letter] for letter in have]).transpose(order)


def _grouped(array: Array, have: str, *groups: list[str]) -> Array:
    """Return an array with one axis for each group of letters, in the order of the groups.

    ``have`` are the letters of the array's axes.
    """
    order: list[int] = []
    shape = []
    for group in groups:
        places = [have.index(letter) for letter in group]
        order += places
        shape.append(math.prod(array.shape[place] for place in places))
    return array.transpose(order).reshape(shape)


def _one_by_one(rows: Array, columns: Array) -> Array:
    """Return ``rows @ columns``; exact products are added one after the other, and the sum is
    rounded to float16 after each."""
    wide, tall = rows.astype(np.float64), columns.astype(np.float64)
    total = np.zeros((rows.shape[0], rows.shape[1], columns.shape[2]), np.float16)
    for at in range(rows.shape[2]):
        products = wide[:, :, at, None] * tall[:, at, None, :]
        total = (total + products).astype(np.float16)
    return total


def _sum(array: Array, over: tuple[int, ...], sums: str) -> Array:
    if np.iscomplexobj(array):
        return array.sum(over)
    if sums != "float16":
        return array.sum(over, dtype=sums)
    kept = [at for at in range(array.ndim) if at not in over]
    terms = array.transpose((*kept, *over))
    shape = terms.shape[: len(kept)]
    rows = terms.reshape(1, math.prod(shape), -1)
    return _one_by_one(rows, np.ones((1, rows.shape[2], 1))).reshape(shape)
