"""Where outputs differ, and by how much: by difference, by channel, by place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from npulab.quant.floats import steps, unit
from npulab.support.late import pd
from npulab.support.text import plural

if TYPE_CHECKING:
    from npulab.analysis.check import Comparison

BYTES_SHOWN = 32
SHOWN = 3  # differences in a sentence; of more, their range and mean


@dataclass(frozen=True, eq=False)
class Mismatches:
    """The outputs that differ between a captured and a predicted output, counted in four ways.

    ``by_difference`` has a row for every ``captured - predicted`` that occurs, 0 too, in units of
    ``unit`` ("code", or "ulp" of real numbers): difference, outputs. ``by_channel``: channel,
    outputs, differ, largest.  ``by_place``: place, outputs, differ, share; ``border`` are the
    outputs whose window touches the padding, ``interior`` the others.  ``worst`` is the largest
    difference, whatever its sign, over the channels of each pixel, ``(H, W)`` int64; ``border``
    ``(H, W)`` bool.
    """

    case: str
    by_difference: pd.DataFrame
    by_channel: pd.DataFrame
    by_place: pd.DataFrame
    worst: np.ndarray
    border: np.ndarray
    unit: str = "code"

    @property
    def differ(self) -> int:
        """How many outputs differ."""
        return int(self.by_channel.differ.sum())

    @property
    def outputs(self) -> int:
        """How many were compared."""
        return int(self.by_channel.outputs.sum())

    def __str__(self) -> str:
        parts = [f"{self.differ} of {self.outputs} outputs differ"]
        if self.differ:
            wrong = self.by_difference[self.by_difference.difference != 0]
            most = wrong.sort_values("outputs", ascending=False, kind="stable")
            named = ", ".join(
                f"{count} by {step:+d}" for step, count in most.itertuples(index=False, name=None)
            )
            if len(wrong) > SHOWN:
                mean = np.average(wrong.difference, weights=wrong.outputs)
                named = f"by {wrong.difference.min():+d} to {wrong.difference.max():+d}, mean {mean:+.1f}"
            if self.unit == "code":
                named += ""
            else:
                named += f" {self.unit}"
            parts += [
                named,
                f"in {np.count_nonzero(self.by_channel.differ)} of {len(self.by_channel)} channels",
            ]
        parts += [
            f"{place} {differ} of {outputs}" + (f" ({share:.0%})" if outputs else "")
            for place, outputs, differ, share in self.by_place.itertuples(index=False, name=None)
        ]
        return "; ".join(parts)

    def __repr__(self) -> str:
        return f"Mismatches({self.case}: {self})"


def mismatches(found: Comparison) -> Mismatches:
    """Where the two outputs of a comparison differ.

    Raises ValueError where it has no two outputs ``(H, W, C)``.
    """
    if found.predicted is None or found.captured is None:
        raise ValueError(
            f"{found.case}: there are no two outputs to compare ({found.verdict}: {found.reason})"
        )
    if found.predicted.ndim != 3:
        raise ValueError(f"{found.case}: got outputs {found.predicted.shape}, allowed is (H, W, C)")
    difference = steps(found.captured, found.predicted)
    size, wrong = np.abs(difference), difference != 0
    pixels, channels = difference[..., 0].size, difference.shape[-1]
    apart, counts = np.unique(difference, return_counts=True)
    border = touches_padding(found.layer, difference.shape[:2])
    places = [
        (name, int(where.sum()) * channels, int(wrong[where].sum()))
        for name, where in (("border", border), ("interior", ~border))
    ]
    return Mismatches(
        f"{found.case} (simulated)" if found.simulated else found.case,
        pd.DataFrame({"difference": apart, "outputs": counts}),
        pd.DataFrame(
            {
                "channel": np.arange(channels),
                "outputs": pixels,
                "differ": wrong.sum((0, 1)),
                "largest": size.max((0, 1), initial=0),
            }
        ),
        pd.DataFrame(
            [(*one, one[2] / one[1] if one[1] else 0.0) for one in places],
            columns=["place", "outputs", "differ", "share"],
        ),
        size.max(-1, initial=0),
        border,
        unit(found.captured.dtype),
    )


def touches_padding(layer: Any, size: tuple[int, ...]) -> np.ndarray:
    """Which outputs ``(H, W)`` have a window that reaches into the padding; none where there is no
    padding.

    >>> from npulab import Conv2D
    >>> layer = Conv2D(np.zeros((1, 3, 3, 1), np.uint8), np.zeros(1, int), (5, 5, 1), (2, 2), "same")
    >>> touches_padding(layer, (3, 3)).astype(int).tolist()
    [[1, 1, 1], [1, 0, 1], [1, 1, 1]]
    """
    if getattr(layer, "pads", None) is None:
        return np.zeros(size, bool)
    spread = getattr(layer, "dilation", (1, 1))
    outside = []
    for axis in (0, 1):
        first = np.arange(size[axis]) * layer.stride[axis] - layer.pads[axis][0]
        last = first + (layer.kernel[axis] - 1) * spread[axis]
        outside.append((first < 0) | (last >= layer.input_shape[axis]))
    return outside[0][:, None] | outside[1][None, :]


def in_hex(tensor: np.ndarray) -> str:
    """The first bytes of a tensor, real numbers little-endian, as two digits each.

    >>> in_hex(np.array([-1, 16]))
    'FF 10'
    """
    data = tensor.astype(
        tensor.dtype.newbyteorder("<") if tensor.dtype.kind == "f" else "u1"
    ).tobytes()
    return data[:BYTES_SHOWN].hex(" ").upper() + " ..." * (len(data) > BYTES_SHOWN)


def window(predicted: np.ndarray, captured: np.ndarray) -> list[str]:
    """Both outputs around their first difference, in hexadecimal, and a line that marks what
    differs."""
    wrong = steps(predicted, captured).ravel() != 0
    if predicted.dtype.kind == "f":  # as they are stored
        predicted, captured = (
            side.copy().view(f"u{side.dtype.itemsize}") for side in (predicted, captured)
        )
    start = max(min(int(wrong.argmax()) - BYTES_SHOWN // 4, wrong.size - BYTES_SHOWN), 0)
    part = slice(start, start + BYTES_SHOWN)
    size = predicted.dtype.itemsize
    lines = [
        " ".join(f"{int(code) & 256**size - 1:0{2 * size}X}" for code in side.ravel()[part])
        for side in (predicted, captured)
    ]
    marks = " ".join(("^" if differs else " ") * 2 * size for differs in wrong[part]).rstrip()
    more = int(wrong[part.stop :].sum())
    return [
        f"outputs {start} to {min(part.stop, wrong.size) - 1} of {wrong.size}, by row, column, "
        "channel" + f"; {plural(more, 'difference')} behind them" * bool(more),
        f"predicted {lines[0]}",
        f"captured  {lines[1]}",
        f"          {marks}",
    ]
