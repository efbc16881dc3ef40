"""What rounding costs a kernel, operation by operation, against float64."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

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

USUAL = Step(128, 352, 64, 2)  # heads of 64 channels
ROUNDED = ("float16", "float32")
LOSS_SCALES = (1.0, 16.0, 256.0, 4096.0, 65536.0)
LOST = ["overflow", "underflow", "subnormal"]


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
    """A row per tensor that is given and per operation: what rounding it costs, against float64.

    operation, kind ("given" or the operation's); own_max, own_rms and own_ulps: the error of the
    result where it alone is rounded (and the constant it takes); effect: the relative RMS error
    that this makes in the output or tap that it spoils most; share: of all effects, by their
    squares; all_max, all_rms and all_ulps: the error where everything up to here is rounded;
    overflow, underflow and subnormal: how many of ``cells`` then became infinite (or no number),
    became 0 for being too small (not by cancelling), and were too small for all bits.  max is the
    largest |error| / |exact|, rms the norm of the error by that of the exact tensor, ulps the
    largest error in units of the last place of ``dtype``.  Of scores, keys after the query are left
    out.

    ``tensors`` are those of ``run``; without them they are the ones that ``train`` hands the kernel
    in float64 from ``example(step, seed, gradient)``.  Gradients among them (names that begin with
    d) are multiplied by ``loss_scale``. The same numbers for the same arguments.  Raises as
    ``run``, LookupError for a type that is not float16 or float32, ValueError for a loss scale that
    is not positive and finite.

    >>> table = precision("qkv_backward", Step(16, 24, 8, 2)).set_index("operation")
    >>> bool(table.loc["dxqk", "own_ulps"] <= 0.5), int(table["overflow"].sum())
    (True, 0)
    """
    plan = kernel_of(kernel)
    if tensors is None:
        tensors = given_to(plan, train(step, example(step, seed, gradient)))
    exact, got = _both(plan, step, tensors, loss_scale, dtype, accumulate)
    kinds = dict.fromkeys(plan.given, "given") | {row.name: row.kind for row in plan.operations}
    rows = []
    for name, kind in kinds.items():
        if kind == "given":
            own = rounded(exact[name], dtype)
        else:
            own = result(plan.operation(name), step, exact, dtype, accumulate)
        alone = {name: own.astype(np.float64)}
        right, everything = (_measured(plan, name, values) for values in (exact, got))
        rows.append(
            {
                "operation": name,
                "kind": kind,
                **_errors("own", right, _measured(plan, name, alone), dtype),
                "effect": _effect(plan, step, exact, name, alone[name]),
                "share": 0.0,
                **_errors("all", right, everything, dtype),
                **_lost(right, everything, dtype),
            }
        )
    table = pd.DataFrame(rows)
    squares = table["effect"].to_numpy() ** 2
    endless = np.isinf(squares)
    parts = squares
    if endless.any():
        parts = endless.astype(float)
    if parts.any():
        table["share"] = parts / parts.sum()
    else:
        table["share"] = parts
    table.attrs = {
        "kernel": plan.name,
        "outputs": [*plan.outputs, *plan.taps],
        "dtype": dtype,
        "accumulate": accumulate,
    }
    return table


def summary(table: pd.DataFrame) -> str:
    """What a table of ``precision`` says, in a sentence: the errors of each output and tap, the
    three operations that cost most, and what did not fit."""
    rows = table.set_index("operation")
    about = table.attrs
    errors = ", ".join(
        f"{name} {rows.loc[name, 'all_rms']:.2g} RMS and {rows.loc[name, 'all_ulps']:.3g} ulps"
        for name in about["outputs"]
    )
    worst = rows.sort_values("share", ascending=False, kind="stable").head(3)
    most = ", ".join(f"{name} {share:.0%}" for name, share in worst["share"].items())
    lost = ", ".join(f"{int(rows[name].sum())} {name}" for name in LOST)
    return (
        f"{about['kernel']} in {about['dtype']}, sums in {about['accumulate']}: {errors}; most "
        f"from {most}; {lost} "
        f"of {int(rows['cells'].sum())} numbers"
    )


def summaries(step: Step = USUAL, **options: Any) -> pd.DataFrame:
    """A row per output and tap of each kernel of the NPU: kernel, output, max, rms and ulps
    (everything rounded), most and share (the operation of the kernel that costs most), overflow,
    underflow and subnormal (of the whole kernel).  ``options`` are those of ``precision``.
    """
    rows = []
    for plan in (kernel for kernel in KERNELS.values() if kernel.unit == "NPU"):
        table = precision(plan, step, **options).set_index("operation")
        most = str(table["share"].idxmax())
        for name in (*plan.outputs, *plan.taps):
            errors = {key: table.loc[name, f"all_{key}"] for key in ("max", "rms", "ulps")}
            rows.append(
                {
                    "kernel": plan.name,
                    "output": name,
                    **errors,
                    "most": most,
                    "share": table.loc[most, "share"],
                    **table[LOST].sum(),
                }
            )
    return pd.DataFrame(rows)


def loss_scales(
    step: Step = USUAL,
    scales: Iterable[float] = LOSS_SCALES,
    seed: int = 0,
    gradient: float | None = None,
    dtype: str = "float16",
    accumulate: str = "float32",
) -> pd.DataFrame:
    """What a loss scale saves and costs on the way back: a row per scale and backward kernel of the
    NPU, with the numbers that overflow, underflow and are subnormal of all ``cells``, inputs too,
    and rms, the error of the output that is off most.  ``gradient`` is the spread of ``dy`` before
    scaling, as in ``example``.

    >>> table = loss_scales(Step(16, 24, 8, 2), [1, 1024], gradient=1e-6)
    >>> bool(table["underflow"][:4].sum() > 100 * table["underflow"][4:].sum())
    True
    """
    values = train(step, example(step, seed, gradient))
    rows = []
    for scale in scales:
        for plan in KERNELS.values():
            if plan.unit == "CPU" or not any(name.startswith("d") for name in plan.inputs):
                continue
            exact, got = _both(plan, step, given_to(plan, values), scale, dtype, accumulate)
            pairs = {
                name: (_measured(plan, name, exact), _measured(plan, name, got)) for name in exact
            }
            counts = pd.DataFrame([_lost(*pair, dtype) for pair in pairs.values()]).sum()
            rows.append(
                {
                    "loss_scale": float(scale),
                    "kernel": plan.name,
                    **counts,
                    "rms": max(_rms(*pairs[name]) for name in plan.outputs),
                }
            )
    return pd.DataFrame(rows)


def _both(
    plan: Kernel,
    step: Step,
    tensors: Mapping[str, Any],
    loss_scale: float,
    dtype: str,
    accumulate: str,
) -> tuple[Values, Values]:
    """Every tensor of a kernel in float64, and with everything rounded (as float64)."""
    one_of("dtype", dtype, ROUNDED)
    scale = positive("loss_scale", loss_scale)
    exact = {
        name: array * scale if name.startswith("d") else array
        for name, array in checked(plan, step, tensors).items()
    }
    got = run(plan, step, exact, dtype, accumulate).values
    every = run(plan, step, exact, "float64").values
    return dict(every), {name: array.astype(np.float64) for name, array in got.items()}


def _effect(plan: Kernel, step: Step, exact: Values, name: str, own: np.ndarray) -> float:
    """The largest relative RMS error of an output or tap where one tensor is rounded and the rest
    is float64."""
    values: Values = {**exact, name: own}
    moved = {name}
    for operation in plan.operations:
        if (
            moved.intersection(operand.name for operand in operation.operands)
            and operation.name != name
        ):
            values[operation.name] = result(operation, step, values, "float64", None)
            moved.add(operation.name)
    return max(
        (
            _rms(_measured(plan, out, exact), _measured(plan, out, values))
            for out in (*plan.outputs, *plan.taps)
            if out in moved
        ),
        default=0.0,
    )


def _measured(plan: Kernel, name: str, values: Values) -> np.ndarray:
    """What is measured of a tensor, flat: of queries and keys, where the key is not after the
    query."""
    array = values[name]
    if plan.axes(name)[-2:] != "st":
        return array.ravel()
    return array[..., np.tri(array.shape[-1], dtype=bool)].ravel()


def _errors(of: str, exact: np.ndarray, got: np.ndarray, dtype: str) -> dict[str, float]:
    with np.errstate(all="ignore"):
        error = np.abs(got - exact)
        error[np.isnan(error)] = np.inf
        relative = np.where(error > 0, error / np.abs(exact), 0)
        return {
            f"{of}_max": float(relative.max(initial=0)),
            f"{of}_rms": _rms(exact, got),
            f"{of}_ulps": float((error / _ulp(exact, dtype)).max(initial=0)),
        }


def _rms(exact: np.ndarray, got: np.ndarray) -> float:
    """The norm of the error by that of the exact tensor; infinite where something is no finite
    number."""
    if not np.isfinite(got).all():
        return float("inf")
    error, size = np.linalg.norm((got - exact).ravel()), np.linalg.norm(exact.ravel())
    if error == 0:
        return 0.0
    if size:
        return float(error / size)
    return float("inf")


def _ulp(exact: np.ndarray, dtype: str) -> np.ndarray:
    """The distance of neighbouring numbers of a type around each number."""
    about = np.finfo(dtype)
    exponent = np.frexp(exact)[1] - 1
    return np.ldexp(1.0, np.clip(exponent, about.minexp, about.maxexp - 1) - about.nmant)


def _lost(exact: np.ndarray, got: np.ndarray, dtype: str) -> dict[str, int]:
    tiny = float(np.finfo(dtype).smallest_normal)
    return {
        "overflow": int(np.count_nonzero(~np.isfinite(got))),
        "underflow": int(np.count_nonzero((got == 0) & (exact != 0) & (np.abs(exact) < tiny))),
        "subnormal": int(np.count_nonzero((got != 0) & (np.abs(got) < tiny))),
        "cells": exact.size,
    }
