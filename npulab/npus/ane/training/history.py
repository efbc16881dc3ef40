"""Times that were published of training steps on this NPU, and the peaks they were divided by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from npulab.npus.ane.training.accounting import achieved, convolution_chain, published, utilization
from npulab.npus.ane.training.kernels import Step
from npulab.registers.table import read_table

if TYPE_CHECKING:
    import pandas as pd

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
    import pandas as pd

    rows = []
    for row in read_table(HERE / "history.csv"):
        flops = published(Step(*(int(row[name]) for name in ("dim", "hidden", "seq", "heads"))))
        printed = {name: float(row[name] or "nan") for name in ("ms", "percent", "tflops")}
        rate, peak = achieved(flops, printed["ms"]), float(row["peak"])
        agrees = all(_agrees(row["ms"], row[name], flops / factor)
                     for name, factor in (("percent", peak * 1e7), ("tflops", 1e9)) if row[name])
        rows.append({"change": row["change"], **printed, "flops": flops, "achieved": rate,
                     "utilization": 100 * utilization(rate, peak), "agrees": agrees,
                     "source": row["source"], "note": row["note"]})
    return pd.DataFrame(rows)


def peaks() -> pd.DataFrame:
    """Peaks that were claimed or measured: what, chip, dtype, tops, kind; for a measured chain of
    convolutions flops (0 where there is none), ms, achieved (TOPS) and agrees, as in ``history``;
    source and note.

    >>> float(peaks().loc[lambda table: table["kind"] == "measured", "tops"].max())
    35.1
    """
    import pandas as pd

    rows = []
    for row in read_table(HERE / "peaks.csv"):
        ms, flops, rate, agrees = float(row["ms"] or "nan"), 0, float("nan"), None
        if row["kind"] == "measured":
            flops = convolution_chain(*(int(row[name]) for name in ("channels", "positions", "depth")))
            rate, agrees = achieved(flops, ms), _agrees(row["ms"], row["tops"], flops / 1e9)
        rows.append({"what": row["what"], "chip": row["chip"], "dtype": row["dtype"], "tops": float(row["tops"]),
                     "kind": row["kind"], "flops": flops, "ms": ms, "achieved": rate, "agrees": agrees,
                     "source": row["source"], "note": row["note"]})
    return pd.DataFrame(rows)


def _agrees(ms: str, printed: str, work: float) -> bool:
    """Whether ``work / time`` is printed so for some time that is printed as ``ms``."""
    (soonest, latest), (low, high) = _rounded_to(ms), _rounded_to(printed)
    return work / latest <= high and work / soonest >= low


def _rounded_to(printed: str) -> tuple[float, float]:
    """The lowest and highest number that is printed so."""
    half = 0.5 / 10 ** len(printed.partition(".")[2])
    return float(printed) - half, float(printed) + half
