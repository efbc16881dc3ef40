"""A kernel run on tensors: every operation is computed, and its result rounded to a type."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from npulab.npus.ane.training.kernels import (
    CONSTANTS,
    MASKED,
    PRODUCTS,
    REDUCTIONS,
    Kernel,
    Operand,
    Operation,
    Step,
    kernel_of,
)
from npulab.support.refuse import one_of, refuse_if

TYPES = ("float16", "float32", "float64")
MOST_ELEMENTS = 2 ** 28  # of a tensor that is run: 2 GiB of float64
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
        shapes = ", ".join(f"{name} {array.shape}" for name, array in {**self.outputs, **self.taps}.items())
        return f"Run({self.kernel.name}: {shapes}, {next(iter(self.values.values())).dtype})"


def run(kernel: str | Kernel, step: Step, tensors: Mapping[str, Any], dtype: str = "float16",
        accumulate: str | None = None) -> Run:
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
    return Run(plan, {name: values[name] for name in plan.outputs}, {name: values[name] for name in plan.taps}, values)


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
        raise ValueError(f"{kernel.name}: got {f'tensor {unknown[0]!r}' if unknown else f'no tensor {missing[0]!r}'}, "
                         f"allowed are {', '.join(kernel.given)}")
    for name in (*kernel.given, *(operation.name for operation in kernel.operations)):
        refuse_if(step.count(kernel.axes(name)) > MOST_ELEMENTS, f"{kernel.name}: tensor {name}",
                  f"{step.count(kernel.axes(name))} elements", f"is {MOST_ELEMENTS}")
    out = {}
    for name, axes in kernel.given.items():
        shape = step.shape(axes)
        tensor = tensors[name] if name in tensors else causal_mask(step.seq)
        allowed = f"allowed is {shape} of real numbers"
        try:
            array = np.asarray(tensor)
        except ValueError:
            raise ValueError(f"{kernel.name}: tensor {name}: got rows of different lengths, {allowed}") from None
        if array.shape != shape or array.dtype.kind not in "fiub":
            raise ValueError(f"{kernel.name}: tensor {name}: got shape {array.shape} of {array.dtype}, {allowed}")
        out[name] = array.astype(np.float64)
    return out


def evaluate(operations: tuple[Operation, ...], step: Step, values: Values, dtype: str,
             accumulate: str | None = None) -> None:
    """Compute the operations in turn into ``values``, which holds what they start from."""
    for operation in operations:
        values[operation.name] = result(operation, step, values, dtype, accumulate)


def result(operation: Operation, step: Step, values: Mapping[str, np.ndarray], dtype: str,
           accumulate: str | None = None) -> np.ndarray:
    """The result of one operation, rounded to ``dtype``, in the shape it is kept in.

    Elementwise it is what float64 gives, rounded once more (of float16 numbers, products,
    quotients, sums and differences are taken in float32, which comes to the same); complex operands
    stay complex.
    """
    sums = accumulate or ("float64" if dtype == "float64" else "float32")
    with np.errstate(all="ignore"):
        if operation.kind in PRODUCTS:
            left, right = operation.operands
            made = contract(_viewed(left, step, values), left.axes, _viewed(right, step, values), right.axes,
                            operation.axes, sums)
        elif operation.kind in REDUCTIONS:
            (operand,) = operation.operands
            array = _viewed(operand, step, values)
            over = tuple(at for at, letter in enumerate(operand.axes) if letter not in operation.axes)
            made = array.real.max(over) if operation.kind == "max" else _sum(array, over, sums)
        else:
            made = ELEMENTWISE[operation.kind](*_operands(operation, step, values, dtype))
    return rounded(made, dtype).reshape(step.shape(operation.axes))


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array in a type, half to even; complex numbers, which carry derivatives, are not
    rounded."""
    with np.errstate(over="ignore", under="ignore"):
        return array if np.iscomplexobj(array) else array.astype(dtype)


ELEMENTWISE: Mapping[str, Callable[..., np.ndarray]] = {
    "mul": np.multiply, "add": np.add, "sub": np.subtract, "div": np.divide, "exp": np.exp,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "rsqrt": lambda x: 1 / np.sqrt(x)}
HALVES = ("mul", "add", "sub", "div")  # of float16 numbers, in float32: its 24 bits are twice their 11 and two more


def _viewed(operand: Operand, step: Step, values: Mapping[str, np.ndarray]) -> np.ndarray:
    return values[operand.name].reshape(step.axes(operand.axes))


def _operands(operation: Operation, step: Step, values: Mapping[str, np.ndarray], dtype: str) -> list[np.ndarray]:
    """The operands of an elementwise operation, in the type it is computed in, and of axes that
    numpy repeats."""
    arrays = [rounded(np.array(CONSTANTS[operand.name](step)), dtype) if operand.name in CONSTANTS else
              _viewed(operand, step, values) for operand in operation.operands]
    work = "complex128" if any(map(np.iscomplexobj, arrays)) else \
        "float32" if operation.kind in HALVES and all(array.dtype == np.float16 for array in arrays) else "float64"
    return [_spread(array.astype(work), operand.axes, operation.axes)
            for array, operand in zip(arrays, operation.operands, strict=True)]


def _spread(array: np.ndarray, have: str, axes: str) -> np.ndarray:
    """An array with an axis for each of ``axes``, of size 1 where it has none."""
    array = array.transpose([have.index(letter) for letter in axes if letter in have])
    return np.expand_dims(array, [at for at, letter in enumerate(axes) if letter not in have])


def contract(one: np.ndarray, one_axes: str, other: np.ndarray, other_axes: str, axes: str, sums: str) -> np.ndarray:
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
        return array.transpose(order).reshape([int(np.prod([sizes[n] for n in group])) for group in groups])

    rows, columns = grouped(one, one_axes, batch, left, over), grouped(other, other_axes, batch, over, right)
    if np.iscomplexobj(rows) or np.iscomplexobj(columns):
        made = rows @ columns
    elif sums == "float16":
        made = _one_by_one(rows, columns)
    else:
        made = rows.astype(sums) @ columns.astype(sums)
    have = [*batch, *left, *right]
    return made.reshape([sizes[letter] for letter in have]).transpose([have.index(letter) for letter in axes])


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
    shape = terms.shape[:len(kept)]
    rows = terms.reshape(1, math.prod(shape), -1)
    return _one_by_one(rows, np.ones((1, rows.shape[2], 1))).reshape(shape)
