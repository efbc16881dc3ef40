"""The rounding errors of a kernel of the training step, operation by operation.

A kernel runs in float16 or float32, and its results are compared with the exact results, which are
those of float64.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.npus.ane.training.gradients import example, given_to, train
from npulab.npus.ane.training.kernels import (
    KERNELS,
    Kernel,
    Step,
    Values,
    checked,
    kernel_of,
    result,
    rounded,
    run,
)
from npulab.npus.kit import one_of, pd
from npulab.support.refuse import positive

# The default step: 128 channels in two heads of 64 channels, as many a head as in maderix/ANE.
USUAL = Step(128, 352, 64, 2)
ROUNDED = ("float16", "float32")
LOSS_SCALES = (1.0, 16.0, 256.0, 4096.0, 65536.0)
LOST = ["overflow", "underflow", "subnormal"]
Row = dict[str, Any]
# The elements of a tensor in float64, and the same elements from the run in ``dtype``.
Pair = tuple[Array, Array]


def precision(
    kernel: str | Kernel,
    step: Step = USUAL,
    tensors: Mapping[str, Any] | None = None,
    seed: int = 0,
    gradient: float | None = None,
    loss_scale: float = 1.0,
    dtype: str = "float16",
    accumulate: str = "float32",
) -> pd.DataFrame:
    """Return a table of rounding errors: a row for each input, weight and operation of a kernel.

    - ``operation``: the name of the tensor (input, weight or the operation's result); ``kind``: the
      kind of the operation, "given" for inputs and weights;
    - ``own_max``, ``own_rms``, ``own_ulps``: the error if only it and constants are rounded;
    - ``effect``: the largest relative RMS error of an output or tap if only it is rounded;
      ``share``: the square of ``effect``, divided by the sum of the squares of all rows;
    - ``all_max``, ``all_rms``, ``all_ulps``: the error if every tensor is rounded;
    - ``cells``: the number of its elements; how many of them become infinite or NaN (``overflow``),
      become 0 although they are not 0 and are below the normal range (``underflow``), or become
      subnormal (``subnormal``), if every tensor is rounded.

    ``max`` is the largest |error| / |exact|, ``rms`` the norm of the error divided by the norm of
    the exact tensor, ``ulps`` the largest error in units of the last place. Masked scores (the key
    is after the query) are left out.

    ``tensors`` are those of ``run``, by default ``train`` of ``example(step, seed, gradient)``.
    Gradients (names that begin with d) are multiplied by ``loss_scale``. Raises the errors of
    ``run``, LookupError for another ``dtype``, and ValueError for a wrong loss scale.

    >>> table = precision("qkv_backward", Step(16, 24, 8, 2)).set_index("operation")
    >>> bool(table.loc["dxqk", "own_ulps"] <= 0.5), int(table["overflow"].sum())
    (True, 0)
    """
    plan = kernel_of(kernel)
    if tensors is None:
        tensors = given_to(plan, train(step, example(step, seed, gradient)))
    exact, got = _both(plan, step, tensors, loss_scale, dtype, accumulate)
    alone: Values = {}
    kinds = {}
    for name in plan.given:
        alone[name], kinds[name] = rounded(exact[name], dtype), "given"
    for operation in plan.operations:
        name = operation.name
        alone[name] = result(operation, step, exact, dtype, accumulate)
        kinds[name] = operation.kind
    rows = []
    for name, kind in kinds.items():
        row: Row = {"operation": name, "kind": kind}
        row |= _errors("own", _pair(plan, name, exact, alone), dtype)
        row |= {"effect": _effect(plan, step, exact, name, alone[name]), "share": 0.0}
        pair = _pair(plan, name, exact, got)
        row |= _errors("all", pair, dtype) | _lost(pair, dtype)
        rows.append(row)
    table = pd.DataFrame(rows)
    table["share"] = _shares(table["effect"].to_numpy())
    table.attrs.update(kernel=plan.name, outputs=[*plan.outputs, *plan.taps])
    table.attrs.update(dtype=dtype, accumulate=accumulate)
    return table


def summary(table: pd.DataFrame) -> str:
    """Return one sentence about a table of ``precision``.

    It states the errors of each output and tap, the three tensors with the largest shares, and the
    numbers of elements that overflow, underflow or become subnormal.
    """
    rows = table.set_index("operation")
    errors = []
    for name in table.attrs["outputs"]:
        row = rows.loc[name]
        errors.append(f"{name} {row['all_rms']:.2g} RMS and {row['all_ulps']:.3g} ulps")
    falling = rows.sort_values("share", ascending=False, kind="stable")
    worst = falling.head(3)
    most = [f"{name} {share:.0%}" for name, share in worst["share"].items()]
    lost = [f"{rows[name].sum()} {name}" for name in LOST]
    run_of = "{kernel} in {dtype}, sums in {accumulate}".format_map(table.attrs)
    cells = rows["cells"].sum()
    return (
        f"{run_of}: {', '.join(errors)}; most from {', '.join(most)}; "
        f"{', '.join(lost)} of {cells} numbers"
    )


def summaries(step: Step = USUAL, **options: Any) -> pd.DataFrame:
    """Return a table of rounding errors, with a row for each output and tap of the NPU's kernels.

    Columns: kernel; output; max, rms and ulps if every tensor is rounded; most, the tensor of the
    kernel with the largest share, and share; overflow, underflow and subnormal of all tensors of
    the kernel. The columns and ``options`` are explained at ``precision``.
    """
    rows = []
    for plan in KERNELS.values():
        if plan.unit == "CPU":
            continue
        table = precision(plan, step, **options).set_index("operation")
        most = table["share"].idxmax()
        lost = table[LOST].sum()
        for name in (*plan.outputs, *plan.taps):
            row: Row = {"kernel": plan.name, "output": name}
            for key in ("max", "rms", "ulps"):
                row[key] = table.loc[name, f"all_{key}"]
            row |= {"most": most, "share": table["share"].max()}
            rows.append(row | lost.to_dict())
    return pd.DataFrame(rows)


def loss_scales(
    step: Step = USUAL,
    scales: Iterable[float] = LOSS_SCALES,
    gradient: float | None = None,
) -> pd.DataFrame:
    """Return a table of what float16 loses at each loss scale, with a row for each scale and each
    backward kernel of the NPU. Sums are in float32.

    Columns: ``loss_scale``; ``kernel``; ``cells``, the number of elements of all its tensors, with
    inputs and weights; ``overflow``, ``underflow`` and ``subnormal``, how many of these elements
    are lost so; ``rms``, the largest relative RMS error of an output. ``gradient`` is the standard
    deviation of ``dy`` before scaling, as in ``example``.

    >>> table = loss_scales(Step(16, 24, 8, 2), [1, 1024], gradient=1e-6)
    >>> bool(table["underflow"][:4].sum() > 100 * table["underflow"][4:].sum())
    True
    """
    values = train(step, example(step, gradient=gradient))
    rows = []
    for scale in scales:
        for plan in KERNELS.values():
            if plan.unit == "CPU" or not any(map(_is_gradient, plan.inputs)):
                continue
            exact, got = _both(plan, step, given_to(plan, values), scale)
            lost: Counter[str] = Counter()
            for name in exact:
                lost.update(_lost(_pair(plan, name, exact, got)))
            rms = _worst_rms(plan, plan.outputs, exact, got)
            rows.append({"loss_scale": float(scale), "kernel": plan.name, **lost, "rms": rms})
    return pd.DataFrame(rows)


def _is_gradient(name: str) -> bool:
    return name.startswith("d")


def _both(
    plan: Kernel,
    step: Step,
    tensors: Mapping[str, Any],
    loss_scale: float,
    dtype: str = "float16",
    accumulate: str = "float32",
) -> tuple[Values, Values]:
    """Return every tensor of a kernel by name from two runs: in float64, and in ``dtype``.

    Gradients among ``tensors`` are multiplied by ``loss_scale`` before both runs.
    """
    one_of("dtype", dtype, ROUNDED)
    scale = positive("loss_scale", loss_scale)
    given = checked(plan, step, tensors)
    for name in filter(_is_gradient, given):
        given[name] = given[name] * scale
    exact = run(plan, step, given, "float64").values
    got = run(plan, step, given, dtype, accumulate).values
    return dict(exact), dict(got)


def _effect(plan: Kernel, step: Step, exact: Values, name: str, alone: Array) -> float:
    """Return the largest relative RMS error of an output or tap if only one tensor is rounded.

    ``alone`` is the rounded tensor ``name``; every operation after it runs in float64.
    """
    values: Values = {**exact, name: alone}
    moved = {name}
    for operation in plan.operations:
        if operation.name == name:
            continue
        # An operation whose operands did not change keeps its exact values.
        if any(operand.name in moved for operand in operation.operands):
            values[operation.name] = result(operation, step, values, "float64", None)
            moved.add(operation.name)
    outputs = [output for output in (*plan.outputs, *plan.taps) if output in moved]
    return _worst_rms(plan, outputs, exact, values)


def _worst_rms(plan: Kernel, names: Iterable[str], exact: Values, got: Values) -> float:
    """Return the largest relative RMS error among the tensors ``names``, 0 without names."""
    errors = [_rms(*_pair(plan, name, exact, got)) for name in names]
    return max(errors, default=0.0)


def _pair(plan: Kernel, name: str, exact: Values, got: Values) -> Pair:
    """Return the elements of a tensor that errors are measured on, flat: exact, and rounded.

    Masked scores (the key is after the query) are left out.
    """
    right, wrong = exact[name], got[name].astype(np.float64)
    if plan.axes(name)[-2:] == "st":
        before = np.tri(right.shape[-1], dtype=bool)
        right, wrong = right[..., before], wrong[..., before]
    return right.ravel(), wrong.ravel()


def _errors(prefix: str, pair: Pair, dtype: str) -> dict[str, float]:
    """Return the errors ``max``, ``rms`` and ``ulps`` of ``precision``, with ``prefix`` before each
    name."""
    exact, got = pair
    with np.errstate(all="ignore"):
        error = np.abs(got - exact)
        error[np.isnan(error)] = np.inf
        size = np.abs(exact)
        relative = np.where(error > 0, error / size, 0)
        ulps = error / _ulp(exact, dtype)
    return {
        f"{prefix}_max": relative.max(initial=0),
        f"{prefix}_rms": _rms(exact, got),
        f"{prefix}_ulps": ulps.max(initial=0),
    }


def _rms(exact: Array, got: Array) -> float:
    """Return the norm of the error divided by the norm of the exact tensor.

    The result is infinite if ``got`` has a number that is not finite, or if only ``exact`` is all
    0.
    """
    if not np.isfinite(got).all():
        return math.inf
    error = np.linalg.norm(got - exact)
    size = np.linalg.norm(exact)
    if error == 0:
        return 0.0
    if size == 0:
        return math.inf
    return float(error / size)


def _ulp(exact: Array, dtype: str) -> Array:
    """Return for each number of ``exact`` the distance of neighbouring numbers of ``dtype``
    there."""
    limits = np.finfo(dtype)
    exponent = np.frexp(exact)[1] - 1
    exponent = exponent.clip(limits.minexp, limits.maxexp - 1)
    return np.ldexp(1.0, exponent - limits.nmant)


def _lost(pair: Pair, dtype: str = "float16") -> Row:
    """Return how many elements overflow, underflow or become subnormal, and how many there are
    (``cells``)."""
    exact, got = pair
    tiny = np.finfo(dtype).smallest_normal
    size = np.abs(got)
    too_small = (exact != 0) & (np.abs(exact) < tiny)
    return {
        "overflow": np.count_nonzero(~np.isfinite(got)),
        "underflow": np.count_nonzero((got == 0) & too_small),
        "subnormal": np.count_nonzero((size > 0) & (size < tiny)),
        "cells": exact.size,
    }


def _shares(effects: Array) -> Array:
    """Return the square of each effect, divided by the sum of all squares.

    If effects are infinite, these have equal shares and all other shares are 0.
    """
    squares = effects**2
    endless = np.isinf(squares)
    if endless.any():
        squares = endless.astype(float)
    total = squares.sum() or 1.0
    return squares / total
