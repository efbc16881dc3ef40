"""Operations and bytes of a training step, kernel by kernel, and the rates that follow from a time.

The published number of FLOPs of a step follows a convention: it counts products with weights in
the forward and backward kernels, and the matrix products of attention in the backward kernels
only. The tables here state for each operation whether the published count includes it, and if
not, why.
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
# ``traffic`` accepts elements and alignments of at most this many bytes.
MOST_BYTES = 2**16
LEFT_OUT = (
    "forward attention",
    "elementwise",
    "weight gradients on the CPU",
    "elementwise on the CPU",
)
Row = dict[str, Any]


def operations(step: Step, kernels: Iterable[str | Kernel] = tuple(KERNELS)) -> pd.DataFrame:
    """Return a table with a row for each operation of each kernel.

    Columns: ``kernel``; ``unit`` (NPU or CPU); ``operation`` (the name of its result); ``kind``;
    ``size`` (sizes of the axes that it runs over); ``times`` (runs of the kernel in a step);
    ``flops`` (of all runs in a step); ``counted`` (true if the published count includes the
    operation); ``left_out`` (the reason if it does not, else empty). The optimizer is not listed,
    because it does not run in every step.

    A multiplication with its addition in a matrix product is two FLOPs (``Operation.flops``).
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
    """Return why the published count leaves out an operation, empty if the count includes it."""
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
    """Return the FLOPs of a step: the published count, then a row for each kind of operation that
    the published count leaves out.

    Columns: ``count`` (the row's name); ``flops`` (of this row alone); ``with_published`` (the
    published count plus this row); ``step`` (the sum of all rows up to this row); ``NPU`` (the same
    sum, without the rows of the CPU's kernels).

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
    """Return the FLOPs of a step by the published formula.

    With D = dim, H = hidden and S = seq, the linear layers have ``2 S (4 D D + 3 D H)`` FLOPs
    forward and as many for the gradients of their inputs. The backward kernels of attention have
    five matrix products of ``2 S S D``.

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
    """Return a table of the bytes that each kernel moves if it reads and writes each tensor once.

    Columns: ``kernel``, ``unit``, ``times`` (runs in a step); the bytes of ``weights``, ``inputs``,
    ``outputs`` and ``taps`` (results that later kernels read), and their sum ``bytes``;
    ``between``, the bytes of all results that do not leave the kernel; ``flops``; ``intensity``,
    which is flops / bytes. Bytes and flops are those of all runs in a step.

    An element takes ``itemsize`` bytes, on the CPU at least 4. For kernels of the NPU, a row of
    activations (all positions of one channel) begins at a multiple of ``row_align`` bytes, and a
    weight tensor at a multiple of ``weight_align``. Raises ValueError for a size that is not 1 to
    65536.

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
    """Return the bytes and FLOPs of one run of a kernel, by the names of ``traffic``'s columns."""

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
    """Return the rate in TFLOPS of ``flops`` operations in ``ms`` milliseconds.

    Raises ValueError if an argument is not positive and finite.

    >>> round(achieved(16508780544, 9.3), 4)
    1.7751
    """
    return positive("flops", flops) / positive("ms", ms) / 1e9


def utilization(tflops: float, peak: float) -> float:
    """Return ``tflops / peak``, both in TFLOPS: 1 means that the peak is reached.

    Raises ValueError if an argument is not positive and finite.

    >>> f"{utilization(achieved(16508780544, 9.3), 15.8):.3%}"
    '11.235%'
    """
    return positive("tflops", tflops) / positive("peak", peak)


def roofline_points(step: Step, ms: Mapping[str, float] | None = None) -> pd.DataFrame:
    """Return a table of the NPU's kernels, as the points of a roofline plot.

    Columns: name; flops and bytes, as in ``traffic``; ms, which is the kernel's time in ``ms``, NaN
    without one. Raises LookupError if ``ms`` names a kernel that the NPU does not run.
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
    """Return the published times of a training step, a row for each change of the implementation.

    Columns: change; ms, percent and tflops as printed (tflops is NaN if none was printed); flops,
    by the formula of ``published``; achieved (TFLOPS) and utilization (percent), from flops and
    ms; agrees; source; note. ``agrees`` is true if some time that rounds to the printed ms gives
    the printed percent and tflops.

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
    """Return a table of peak rates that people claimed or measured, a row for each peak.

    Columns: what, chip, dtype; tops, as printed; kind ("measured", or how it was claimed); flops,
    ms, achieved (TOPS) and agrees (as in ``history``) of a measured chain of convolutions; source,
    note. A peak that was not measured has flops 0.

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
    """Return true if a printed rate is possible: ``work / time`` rounds to ``printed`` for some
    time that rounds to ``ms``. The rate's unit is that of ``work``, divided by milliseconds.
    """
    soonest, latest = _rounded_to(ms)
    low, high = _rounded_to(printed)
    return work / latest <= high and work / soonest >= low


def _rounded_to(printed: str) -> tuple[float, float]:
    """Return the lowest and the highest number that rounds to ``printed`` at its decimals."""
    half = 0.5 / 10 ** len(printed.partition(".")[2])
    return float(printed) - half, float(printed) + half
