"""Operations and bytes of a training step, kernel by kernel, and what a time makes of them.

What people publish as the FLOPs of a step on an NPU is a convention: products with weights, forward
and back, and the matrix products of the attention on the way back.  The rows here say for each
operation whether that count has it, and if not why.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from npulab.npus.ane.training.kernels import KERNELS, PRODUCTS, Kernel, Operation, Step, kernel_of
from npulab.npus.kit import pd, read_table, up
from npulab.support.refuse import positive

HERE = Path(__file__).parent


def history() -> pd.DataFrame:
    """The published history of one training step, a row per change, with what its own count makes
    of each time.

    change, ms, percent and tflops as printed (tflops is NaN where it was not), flops (the published
    count), achieved (TFLOPS), utilization (percent), agrees (whether some time that is printed as
    this ms gives the printed numbers), source and note.

    >>> history()[["ms", "percent"]].iloc[-1].tolist()
    [9.3, 11.2]
    """
    rows = []
    for row in read_table(HERE / "history.csv"):
        flops = published(Step(*(int(row[name]) for name in ("dim", "hidden", "seq", "heads"))))
        printed = {name: float(row[name] or "nan") for name in ("ms", "percent", "tflops")}
        rate, peak = achieved(flops, printed["ms"]), float(row["peak"])
        agrees = all(
            _agrees(row["ms"], row[name], flops / factor)
            for name, factor in (("percent", peak * 1e7), ("tflops", 1e9))
            if row[name]
        )
        rows.append(
            {
                "change": row["change"],
                **printed,
                "flops": flops,
                "achieved": rate,
                "utilization": 100 * utilization(rate, peak),
                "agrees": agrees,
                "source": row["source"],
                "note": row["note"],
            }
        )
    return pd.DataFrame(rows)


def peaks() -> pd.DataFrame:
    """Peaks that were claimed or measured: what, chip, dtype, tops, kind; for a measured chain of
    convolutions flops (0 where there is none), ms, achieved (TOPS) and agrees, as in ``history``;
    source and note.

    >>> float(peaks().loc[lambda table: table["kind"] == "measured", "tops"].max())
    35.1
    """
    rows = []
    for row in read_table(HERE / "peaks.csv"):
        ms, flops, rate, agrees = float(row["ms"] or "nan"), 0, float("nan"), None
        if row["kind"] == "measured":
            channels, positions, depth = (
                int(row[name]) for name in ("channels", "positions", "depth")
            )
            flops = 2 * channels * channels * positions * depth
            rate, agrees = achieved(flops, ms), _agrees(row["ms"], row["tops"], flops / 1e9)
        rows.append(
            {
                "what": row["what"],
                "chip": row["chip"],
                "dtype": row["dtype"],
                "tops": float(row["tops"]),
                "kind": row["kind"],
                "flops": flops,
                "ms": ms,
                "achieved": rate,
                "agrees": agrees,
                "source": row["source"],
                "note": row["note"],
            }
        )
    return pd.DataFrame(rows)


def _agrees(ms: str, printed: str, work: float) -> bool:
    """Whether ``work / time`` is printed so for some time that is printed as ``ms``."""
    (soonest, latest), (low, high) = _rounded_to(ms), _rounded_to(printed)
    return work / latest <= high and work / soonest >= low


def _rounded_to(printed: str) -> tuple[float, float]:
    """The lowest and highest number that is printed so."""
    half = 0.5 / 10 ** len(printed.partition(".")[2])
    return float(printed) - half, float(printed) + half


LEFT_OUT = (
    "forward attention",
    "elementwise",
    "weight gradients on the CPU",
    "elementwise on the CPU",
)
MOST_BYTES = 2**16  # of an element or an alignment


def operations(step: Step, kernels: Iterable[str | Kernel] = tuple(KERNELS)) -> pd.DataFrame:
    """A row per operation of each kernel: kernel, unit (NPU or CPU), operation (its result), kind,
    size (the axes it runs over), times (runs a step), flops (of all of them), counted (whether the
    published count has it) and left_out (else why not).  The optimizer, which does not run every
    step, is not here.

    Matrix products are two operations for each product and sum; see ``Operation.flops``.
    Raises LookupError for an unknown kernel.

    >>> table = operations(Step(768, 2048, 512, 12))
    >>> int(table.loc[table["counted"], "flops"].sum())
    16508780544
    """
    rows = []
    for kernel in map(kernel_of, kernels):
        for operation in kernel.operations:
            why = _left_out(kernel, operation)
            size = " x ".join(map(str, step.axes(operation.letters)))
            rows.append(
                {
                    "kernel": kernel.name,
                    "unit": kernel.unit,
                    "operation": operation.name,
                    "kind": operation.kind,
                    "size": size,
                    "times": kernel.times,
                    "flops": kernel.times * operation.flops(step),
                    "counted": not why,
                    "left_out": why,
                }
            )
    return pd.DataFrame(rows)


def _left_out(kernel: Kernel, operation: Operation) -> str:
    """Why the published count leaves out an operation; empty if it counts it."""
    if operation.kind not in PRODUCTS:
        if kernel.unit == "CPU":
            return "elementwise on the CPU"
        return "elementwise"
    if kernel.unit == "CPU":
        return "weight gradients on the CPU"
    if operation.kind == "matmul" and kernel.name == "forward_attention":
        return "forward attention"
    return ""


def counts(step: Step) -> pd.DataFrame:
    """FLOPs of a step by each way to count: the published count, then what it leaves out, row by
    row: count, flops (of this row alone), with_published (the published count and this row), NPU
    and step (totals up to this row, of the NPU's part and of all).

    >>> counts(Step(768, 2048, 512, 12))[["count", "flops", "step"]].head(2).values.tolist()
    [['published', 16508780544, 16508780544], ['forward attention', 805306368, 17314086912]]
    """
    flops = operations(step).groupby("left_out")["flops"].sum().reindex(["", *LEFT_OUT]).to_numpy()
    npu = [
        0 if name.endswith("CPU") else count
        for name, count in zip(["", *LEFT_OUT], flops, strict=True)
    ]
    return pd.DataFrame(
        {
            "count": ["published", *LEFT_OUT],
            "flops": flops,
            "with_published": [flops[0], *(flops[0] + flops[1:])],
            "NPU": np.cumsum(npu),
            "step": np.cumsum(flops),
        }
    )


def published(step: Step) -> int:
    """FLOPs of a step as they are published: ``4 S (4 D D + 3 D H)`` of the linear layers, forward
    and for their inputs, and five products ``2 S S D`` of the attention on the way back.

    >>> published(Step(768, 2048, 512, 12))
    16508780544
    """
    return (
        4 * step.seq * (4 * step.dim**2 + 3 * step.dim * step.hidden) + 10 * step.seq**2 * step.dim
    )


def traffic(
    step: Step,
    kernels: Iterable[str | Kernel] = tuple(KERNELS),
    itemsize: int = 2,
    row_align: int = 1,
    weight_align: int = 1,
) -> pd.DataFrame:
    """Bytes that each kernel reads and writes once, a row each: kernel, unit, times, weights,
    inputs, outputs, taps, bytes (their sum), between (results that stay inside, if each were kept
    whole), flops, and intensity, which is flops / bytes.

    Elements are ``itemsize`` bytes (2: float16; the CPU's are 4 where itemsize is less).  Rows of
    activations, the positions of one channel, begin at multiples of ``row_align`` bytes, weights,
    which are packed, at multiples of ``weight_align``; both are of the NPU's kernels.  Everything
    is of ``times`` runs. Raises ValueError for a size that is not 1 to 65536.

    >>> traffic(Step(768, 2048, 512, 12), ["qkv_backward"])[["weights", "inputs", "outputs"]].values.tolist()
    [[3538944, 2359296, 786432]]
    """
    for name, size in (
        ("itemsize", itemsize),
        ("row_align", row_align),
        ("weight_align", weight_align),
    ):
        if not isinstance(size, int) or not 1 <= size <= MOST_BYTES:
            raise ValueError(
                f"{name}: got {size!r}, allowed is a whole number of bytes from 1 to {MOST_BYTES}"
            )
    rows = []
    for kernel in map(kernel_of, kernels):
        if kernel.unit == "CPU":
            size, row, weight = max(itemsize, 4), 1, 1
        else:
            size, row, weight = itemsize, row_align, weight_align
        groups = {
            "inputs": tuple(kernel.inputs),
            "outputs": kernel.outputs,
            "taps": kernel.taps,
            "between": tuple(
                operation.name
                for operation in kernel.operations
                if operation.name not in (*kernel.outputs, *kernel.taps)
            ),
        }
        counts = {
            "weights": sum(up(step.count(axes) * size, weight) for axes in kernel.weights.values())
        }
        for group, names in groups.items():
            counts[group] = sum(_tensor(step, kernel.axes(name), size, row) for name in names)
        between = counts.pop("between")
        counts |= {
            "bytes": sum(counts.values()),
            "between": between,
            "flops": sum(operation.flops(step) for operation in kernel.operations),
        }
        rows.append(
            {
                "kernel": kernel.name,
                "unit": kernel.unit,
                "times": kernel.times,
                **{name: kernel.times * count for name, count in counts.items()},
                "intensity": counts["flops"] / counts["bytes"],
            }
        )
    return pd.DataFrame(rows)


def _tensor(step: Step, axes: str, itemsize: int, align: int) -> int:
    *rows, last = step.shape(axes) or (1,)
    return math.prod(rows) * up(last * itemsize, align)


def achieved(flops: float, ms: float) -> float:
    """TFLOPS of so many operations in a time in milliseconds; ValueError if one is not positive
    and finite.

    >>> round(achieved(16508780544, 9.3), 4)
    1.7751
    """
    return positive("flops", flops) / positive("ms", ms) / 1e9


def utilization(tflops: float, peak: float) -> float:
    """The share of a peak, both in TFLOPS: 1 is all of it; ValueError if one is not positive and
    finite.

    >>> f"{utilization(achieved(16508780544, 9.3), 15.8):.3%}"
    '11.235%'
    """
    return positive("tflops", tflops) / positive("peak", peak)


def roofline_points(step: Step, ms: Mapping[str, float] | None = None) -> pd.DataFrame:
    """The NPU's kernels as points of a roofline: name, flops, bytes (of ``traffic``) and ms, where
    ``ms`` has a time for the kernel.  Raises LookupError for a time of a kernel that is not the
    NPU's.
    """
    table = traffic(step)
    table = table.loc[table["unit"] == "NPU", ["kernel", "flops", "bytes"]].rename(
        columns={"kernel": "name"}
    )
    for name in ms or {}:
        if name not in set(table["name"]):
            raise LookupError(
                f"ms: got a time of {name!r}, allowed is one of {', '.join(table['name'])}"
            )
    table["ms"] = [float((ms or {}).get(name, math.nan)) for name in table["name"]]
    return table.reset_index(drop=True)
