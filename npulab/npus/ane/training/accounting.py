"""Operations and bytes of a training step, kernel by kernel, and the rates that follow from a time.

What people publish as the FLOPs of a step on an NPU is a convention: products with weights, forward
and back, and the matrix products of the attention on the way back. The rows here say for each
operation whether the published count includes it, and if not why.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from npulab.npus.ane.training.kernels import KERNELS, PRODUCTS, Kernel, Operation, Step, kernel_of
from npulab.npus.kit import pd, read_table, up
from npulab.support.refuse import positive

HERE = Path(__file__).parent
MOST_BYTES = 2**16  # most bytes of an element or an alignment
LEFT_OUT = (
    "forward attention",
    "elementwise",
    "weight gradients on the CPU",
    "elementwise on the CPU",
)
Row = dict[str, Any]


def operations(step: Step, kernels: Iterable[str | Kernel] = tuple(KERNELS)) -> pd.DataFrame:
    """Return a row per operation of each kernel.

    Columns: ``kernel``; ``unit`` (NPU or CPU); ``operation`` (the name of its result); ``kind``;
    ``size`` (of the axes it runs over); ``times`` (runs of the kernel in a step); ``flops`` (of all
    runs); ``counted`` (true if the published count includes it); ``left_out`` (the reason if it
    does not). The optimizer does not run in every step and is not listed.

    A multiplication and its addition in a matrix product are two operations: ``Operation.flops``.
    Raises LookupError for an unknown kernel.

    >>> table = operations(Step(768, 2048, 512, 12))
    >>> int(table.loc[table["counted"], "flops"].sum())
    16508780544
    """
    rows = []
    for kernel in map(kernel_of, kernels):
        for operation in kernel.operations:
            sizes = map(str, step.axes(operation.letters))
            reason = _left_out(kernel, operation)
            row: Row = {
                "kernel": kernel.name,
                "unit": kernel.unit,
                "operation": operation.name,
                "kind": operation.kind,
                "size": " x ".join(sizes),
                "times": kernel.times,
                "flops": kernel.times * operation.flops(step),
                "counted": not reason,
                "left_out": reason,
            }
            rows.append(row)
    return pd.DataFrame(rows)


def _left_out(kernel: Kernel, operation: Operation) -> str:
    """Return why the published count leaves out an operation; empty if it includes it."""
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
    """Return the FLOPs of a step by each way to count: the published count, then a row for each
    kind of work that it leaves out.

    Columns: ``count``; ``flops`` (of this row alone); ``with_published`` (the published count plus
    this row); ``NPU`` and ``step`` (the sum of all rows up to this one, of the NPU's kernels and of
    all kernels).

    >>> counts(Step(768, 2048, 512, 12))[["count", "flops", "step"]].head(2).values.tolist()
    [['published', 16508780544, 16508780544], ['forward attention', 805306368, 17314086912]]
    """
    flops = operations(step).groupby("left_out")["flops"].sum()
    table = flops.loc[["", *LEFT_OUT]].rename({"": "published"}).rename_axis("count").reset_index()
    published_flops = table.loc[0, "flops"]
    table["with_published"] = table["flops"] + published_flops
    table.loc[0, "with_published"] = published_flops
    on_npu = ~table["count"].str.endswith("CPU")
    table["NPU"] = table["flops"].where(on_npu, 0).cumsum()
    table["step"] = table["flops"].cumsum()
    return table


def published(step: Step) -> int:
    """Return the FLOPs of a step as they are published: ``4 S (4 D D + 3 D H)`` of the linear
    layers, forward and for their inputs, and five products ``2 S S D`` of the attention on the way
    back.

    >>> published(Step(768, 2048, 512, 12))
    16508780544
    """
    linear = 4 * step.dim**2 + 3 * step.dim * step.hidden
    attention = 10 * step.seq**2 * step.dim
    return 4 * step.seq * linear + attention


def traffic(
    step: Step,
    kernels: Iterable[str | Kernel] = tuple(KERNELS),
    itemsize: int = 2,
    row_align: int = 1,
    weight_align: int = 1,
) -> pd.DataFrame:
    """Return the bytes that each kernel reads and writes if it does so once, a row per kernel.

    Columns: ``kernel``, ``unit``, ``times``; bytes of ``weights``, ``inputs``, ``outputs`` and
    ``taps``, and their sum ``bytes``; ``between``, the bytes of all results that do not leave the
    kernel; ``flops``; ``intensity``, which is flops / bytes.

    Elements are ``itemsize`` bytes (2: float16; at least 4 on the CPU). For the NPU's kernels,
    rows of activations (the positions of one channel) begin at multiples of ``row_align`` bytes,
    and weights, which are packed, at multiples of ``weight_align``. Every count is of ``times``
    runs. Raises ValueError for a size that is not 1 to 65536.

    >>> traffic(Step(768, 2048, 512, 12), ["qkv_backward"])[["weights", "inputs", "outputs"]].values.tolist()
    [[3538944, 2359296, 786432]]
    """  # noqa: E501
    sizes = {"itemsize": itemsize, "row_align": row_align, "weight_align": weight_align}
    for name, size in sizes.items():
        if not isinstance(size, int) or not 1 <= size <= MOST_BYTES:
            raise ValueError(
                f"{name}: got {size!r}, allowed is a whole number of bytes from 1 to {MOST_BYTES}"
            )
    rows = []
    for kernel in map(kernel_of, kernels):
        of_element = (itemsize, row_align, weight_align)
        if kernel.unit == "CPU":
            of_element = (max(itemsize, 4), 1, 1)
        row: Row = {"kernel": kernel.name, "unit": kernel.unit, "times": kernel.times}
        for name, count in _moved(kernel, step, *of_element).items():
            row[name] = kernel.times * count
        row["intensity"] = row["flops"] / row["bytes"]
        rows.append(row)
    return pd.DataFrame(rows)


def _moved(
    kernel: Kernel, step: Step, itemsize: int, row_align: int, weight_align: int
) -> dict[str, int]:
    """Return the bytes and FLOPs of one run of a kernel, by column of ``traffic``."""

    def activations(names: Iterable[str]) -> int:
        total = 0
        for name in names:
            *rows, last = step.shape(kernel.axes(name)) or (1,)
            total += math.prod(rows) * up(last * itemsize, row_align)
        return total

    weights = kernel.weights.values()
    moved = {
        "weights": sum(up(step.count(axes) * itemsize, weight_align) for axes in weights),
        "inputs": activations(kernel.inputs),
        "outputs": activations(kernel.outputs),
        "taps": activations(kernel.taps),
    }
    moved["bytes"] = sum(moved.values())
    results = {operation.name for operation in kernel.operations}
    inner = results.difference(kernel.outputs, kernel.taps)
    moved["between"] = activations(inner)
    moved["flops"] = sum(operation.flops(step) for operation in kernel.operations)
    return moved


def achieved(flops: float, ms: float) -> float:
    """Return the TFLOPS of a number of operations in a time in milliseconds; raise ValueError if
    one of the two is not positive and finite.

    >>> round(achieved(16508780544, 9.3), 4)
    1.7751
    """
    return positive("flops", flops) / positive("ms", ms) / 1e9


def utilization(tflops: float, peak: float) -> float:
    """Return the share of a peak, both in TFLOPS: 1 is all of it; raise ValueError if one of the
    two is not positive and finite.

    >>> f"{utilization(achieved(16508780544, 9.3), 15.8):.3%}"
    '11.235%'
    """
    return positive("tflops", tflops) / positive("peak", peak)


def roofline_points(step: Step, ms: Mapping[str, float] | None = None) -> pd.DataFrame:
    """Return the NPU's kernels as points of a roofline.

    Columns: name, flops, bytes (as in ``traffic``), and ms, the time if ``ms`` has it for the
    kernel. Raises LookupError for a time of a kernel that the NPU does not run.
    """
    times = ms or {}
    table = traffic(step).query("unit == 'NPU'")
    names = table["kernel"].tolist()
    for name in times:
        if name not in names:
            raise LookupError(f"ms: got a time of {name!r}, allowed is one of {', '.join(names)}")
    points = table[["kernel", "flops", "bytes"]].reset_index(drop=True)
    points = points.rename(columns={"kernel": "name"})
    points["ms"] = [float(times.get(name, math.nan)) for name in names]
    return points


def history() -> pd.DataFrame:
    """Return the published history of one training step, a row per change, with the rate that its
    own FLOPs give for each time.

    Columns: change; ms, percent and tflops as printed (tflops is NaN if it was not printed); flops
    (the published count); achieved (TFLOPS); utilization (percent); agrees (true if some time that
    is printed as this ms gives the printed numbers); source; note.

    >>> history()[["ms", "percent"]].iloc[-1].tolist()
    [9.3, 11.2]
    """
    rows = []
    for printed in read_table(HERE / "history.csv"):
        row: Row = {"change": printed["change"]}
        for name in ("ms", "percent", "tflops"):
            row[name] = float(printed[name] or "nan")
        sizes = [int(printed[name]) for name in ("dim", "hidden", "seq", "heads")]
        flops = published(Step(*sizes))
        peak = float(printed["peak"])
        rate = achieved(flops, row["ms"])
        agrees = _agrees(printed["ms"], printed["percent"], flops / (peak * 1e7))
        if printed["tflops"]:
            agrees &= _agrees(printed["ms"], printed["tflops"], flops / 1e9)
        row |= {"flops": flops, "achieved": rate, "utilization": 100 * utilization(rate, peak)}
        row |= {"agrees": agrees, "source": printed["source"], "note": printed["note"]}
        rows.append(row)
    return pd.DataFrame(rows)


def peaks() -> pd.DataFrame:
    """Return the peaks that were claimed or measured, a row each.

    Columns: what, chip, dtype, tops, kind; for a measured chain of convolutions flops (else 0), ms,
    achieved (TOPS) and agrees, as in ``history``; source, note.

    >>> float(peaks().loc[lambda table: table["kind"] == "measured", "tops"].max())
    35.1
    """
    rows = []
    for stated in read_table(HERE / "peaks.csv"):
        row: Row = {name: stated[name] for name in ("what", "chip", "dtype")}
        row |= {"tops": float(stated["tops"]), "kind": stated["kind"], "flops": 0}
        row |= {"ms": float(stated["ms"] or "nan"), "achieved": math.nan, "agrees": None}
        if stated["kind"] == "measured":
            channels = int(stated["channels"])
            positions = int(stated["positions"]) * int(stated["depth"])
            flops = 2 * channels**2 * positions
            row |= {"flops": flops, "achieved": achieved(flops, row["ms"])}
            row["agrees"] = _agrees(stated["ms"], stated["tops"], flops / 1e9)
        row |= {"source": stated["source"], "note": stated["note"]}
        rows.append(row)
    return pd.DataFrame(rows)


def _agrees(ms: str, printed: str, work: float) -> bool:
    """Return true if a printed rate can be right: if ``work / time`` rounds to ``printed`` for some
    time that rounds to the printed ``ms``.
    """
    soonest, latest = _rounded_to(ms)
    low, high = _rounded_to(printed)
    return work / latest <= high and work / soonest >= low


def _rounded_to(printed: str) -> tuple[float, float]:
    """Return the lowest and the highest number that rounds to a printed number."""
    half = 0.5 / 10 ** len(printed.partition(".")[2])
    return float(printed) - half, float(printed) + half
