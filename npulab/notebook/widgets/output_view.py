"""Predicted and captured output side by side: how many differ in each channel, where, and by how
much.

``OutputModel`` holds the state and all the logic and needs no browser; ``OutputView`` shows it.
"""

from __future__ import annotations

import html
from typing import Any

import numpy as np
import traitlets

from npulab.analysis.check import Comparison
from npulab.analysis.mismatch.summary import mismatches
from npulab.notebook.widgets.frame import Model, Numbers, View, assets, table_html
from npulab.quant.floats import steps
from npulab.support.refuse import need

MOST_CELLS = 512  # of a picture's side; of a larger one several outputs share a cell
SHADES = 255
EQUAL = 128  # the shade of no difference
MOST_CHANNELS = 1024  # that a view lists
NUMBERED = 20  # outputs a side up to which a picture has their numbers
SPREAD = 32  # channels of a row of the picture, where there is one output in each


class OutputModel(Model):
    """The two outputs ``(H, W, C)`` of a comparison, as ``npulab.check`` gives it, with a cursor;
    it needs no browser.

    ``place``, (row, column, channel), can be set and observed; it begins at the first output that
    differs; so can ``pointed``, an output that is looked at instead, () for none. ``about`` follows
    them: the outputs there in words.  Differences are captured -
    predicted, in codes, or in ulp of real numbers. Raises ValueError where the comparison has no
    two outputs, or no element, and for a place outside.

    >>> found = Comparison("a", "demo", False, True, None, "differs", predicted=np.zeros((2, 2, 3), np.uint8),
    ...                    captured=np.arange(12, dtype=np.uint8).reshape(2, 2, 3) // 11)
    >>> model = OutputModel(found)
    >>> model.place, model.about
    ((1, 1, 2), 'row 1, column 1, channel 2: predicted 0, captured 1, difference +1')
    """

    place, pointed = (
        Numbers(
            "(row, column, channel)",
            begin,
            lambda owner, *_: [(0, end) for end in owner.shape],
            empty=begin == (),
        )
        for begin in ((0, 0, 0), ())
    )
    about = traitlets.Unicode(read_only=True)

    def __init__(self, comparison: Comparison) -> None:
        need(
            "OutputView", comparison, Comparison, "is a Comparison, as npulab.check(capture) gives"
        )
        self.comparison = comparison
        self.counted = mismatches(comparison)  # refuses a comparison without two outputs
        self.predicted, self.captured = (
            np.asarray(comparison.predicted),
            np.asarray(comparison.captured),
        )
        if not self.predicted.size:
            raise ValueError(
                f"{comparison.case}: got outputs {self.predicted.shape}, allowed is one element or "
                "more"
            )
        self.difference = steps(self.captured, self.predicted)
        self.channels = [
            (int(row.channel), int(row.outputs), int(row.differ), int(row.largest))
            for row in self.counted.by_channel.itertuples()
        ]
        # channel by channel, as one looks through them
        self._wrong = np.flatnonzero(self.difference.transpose(2, 0, 1))
        super().__init__()
        first = self.first
        if first is None:
            self.place = 0, 0, 0
        else:
            self.place = first
        self._tell(None)

    # ---- what it says ----

    @property
    def shape(self) -> tuple[int, int, int]:
        rows, columns, channels = self.predicted.shape
        return rows, columns, channels

    @property
    def differ(self) -> int:
        """How many outputs differ."""
        return len(self._wrong)

    @property
    def first(self) -> tuple[int, int, int] | None:
        """The first output that differs, in the order of memory (row, column, channel), as
        ``Comparison.first``."""
        wrong = np.flatnonzero(self.difference)
        if len(wrong):
            return self._place(int(wrong[0]))
        return None

    def _place(self, at: int) -> tuple[int, int, int]:
        row, column, channel = (int(n) for n in np.unravel_index(at, self.shape))
        return row, column, channel

    @property
    def simulated(self) -> bool:
        return self.comparison.simulated

    @property
    def title(self) -> str:
        rows, columns, channels = self.shape
        return (
            f"{self.comparison.target}/{self.comparison.case}, outputs ({rows}, {columns}, "
            f"{channels}) "
            f"{self.captured.dtype}"
        )

    @property
    def summary(self) -> str:
        if self.first is None:
            first = ""
        else:
            first = f"first at row {self.first[0]}, column {self.first[1]}, channel {self.first[2]}"
        return "; ".join(
            filter(
                None, [self.comparison.verdict, str(self.counted), first, self.comparison.reason]
            )
        )

    @property
    def extremes(self) -> tuple[float, float]:
        """What the darkest and the brightest shade stand for: the range of both outputs that is
        finite."""
        low, high = zip(*(_ends(one) for one in (self.predicted, self.captured)), strict=True)
        return min(low), max(high)

    @property
    def largest(self) -> int:
        """The largest difference, 1 where there is none."""
        return max(int(np.abs(self.difference).max()), 1)

    @property
    def spread(self) -> int:
        """Channels of a row of the picture where each has one output: they are all in one picture
        then; else 0."""
        if self.shape[:2] == (1, 1) and self.shape[2] > 1:
            return SPREAD
        return 0

    def plane(self, tensor: np.ndarray, channel: int) -> np.ndarray:
        """What a picture shows of a tensor: one channel, or all of them in rows."""
        if not self.spread:
            return tensor[:, :, channel]
        rows = -(-tensor.size // self.spread)
        out = np.zeros(rows * self.spread, tensor.dtype)
        out[: tensor.size] = tensor.reshape(-1)
        return out.reshape(rows, self.spread)

    @property
    def cell(self) -> int:
        """Outputs a side that share a cell of the picture."""
        return -(-max(self.plane(self.difference, 0).shape) // MOST_CELLS)

    def pictures(self, channel: int) -> np.ndarray:
        """Shades ``(3, h, w) uint8`` of a channel: predicted, captured (0 to 255 over
        ``extremes``), and difference (128 is none, 129 to 255 captured is larger, 0 to 127 smaller,
        by the root of its size).

        Where several outputs share a cell, the values are those of the first, the difference is the
        largest.
        """
        low, high = self.extremes
        side = self.cell
        out = []
        for values in (self.predicted, self.captured):
            plane = self.plane(values, channel)[::side, ::side].astype(np.float64)
            with np.errstate(invalid="ignore", over="ignore"):
                shade = (np.clip(plane, low, high) - low) / ((high - low) or 1) * SHADES
            out.append(np.nan_to_num(shade, nan=0.0).astype(np.uint8))
        plane = _worst(self.plane(self.difference, channel), side)
        size = np.sqrt(np.abs(plane) / self.largest)
        above = EQUAL + np.ceil(size * (SHADES - EQUAL))
        below = EQUAL - np.ceil(size * EQUAL)
        out.append(np.where(plane == 0, EQUAL, np.where(plane > 0, above, below)).astype(np.uint8))
        return np.stack(out)

    def numbers(self, channel: int) -> list[list[str]]:
        """The numbers of a channel's predicted, captured and difference picture, row by row; none
        where the pictures are too large for them."""
        if max(self.plane(self.difference, 0).shape) > NUMBERED:
            return []
        shown = [self.plane(tensor, channel).ravel() for tensor in (self.predicted, self.captured)]
        apart = self.plane(self.difference, channel).ravel()
        return [
            *(
                [f"{value:.3g}" if value.dtype.kind == "f" else str(value) for value in values]
                for values in shown
            ),
            [f"{value:+d}" if value else "" for value in apart.tolist()],
        ]

    def describe(self, row: int, column: int, channel: int) -> str:
        """An output in one line: where, predicted, captured, difference."""
        apart = int(self.difference[row, column, channel])
        if self.comparison.unit == "ulp" and apart:
            unit = " ulp"
        else:
            unit = ""
        if self.counted.border[row, column]:
            border = ", its window touches the padding"
        else:
            border = ""
        return (
            f"row {row}, column {column}, channel {channel}: predicted "
            f"{self.predicted[row, column, channel]!s}, "
            f"captured {self.captured[row, column, channel]!s}, "
            f"{f'difference {apart:+d}{unit}' if apart else 'equal'}{border}"
        )

    # ---- what it does ----

    def seek(self, step: int = 1) -> None:
        """Go to the next output that differs, channel by channel, or with -1 to the one before;
        round the ends."""
        if not len(self._wrong):
            return
        row, column, channel = self.place
        rows, columns, channels = self.shape
        here = int(np.ravel_multi_index((channel, row, column), (channels, rows, columns)))
        at = int(np.searchsorted(self._wrong, here, "right" if step > 0 else "left"))
        found = int(self._wrong[(at if step > 0 else at - 1) % len(self._wrong)])
        channel, row, column = (int(n) for n in np.unravel_index(found, (channels, rows, columns)))
        self.place = (row, column, channel)

    def press(self, asked: Any) -> None:
        """Do what was pressed in a view: ``{"seek": 1}`` or ``{"seek": -1}``; raises ValueError for
        anything else."""
        match asked:
            case {"seek": 1 | -1 as step}:
                self.seek(step)
            case _:
                raise ValueError(f"message: got {asked!r:.80}, allowed is seek with 1 or -1")

    # ---- what follows ----

    @traitlets.observe("place", "pointed")
    def _tell(self, _: Any) -> None:
        self.set_trait("about", self.describe(*(self.pointed or self.place)))

    def _repr_html_(self) -> str:
        rows = [tuple(map(str, row)) for row in self.channels if row[2]]
        table = ""
        if rows:
            table = table_html(("channel", "outputs", "differ", "largest"), rows)
        if self.first is None:
            about = ""
        else:
            about = f"<p>{html.escape(self.describe(*self.first))}</p>"
        return f"{self.heading_html()}{about}{table}"


class OutputView(View):
    """Predicted and captured output of a comparison, a channel at a time: the pointer tells, arrows
    move, [ and ] change the channel, d goes to the next difference.

    ``place``, (row, column, channel), is the model's and can be set and observed; ``about`` follows
    it.  Everything else is on ``model``.
    """

    _esm, _css = assets("rows", "output_view")
    _linked = ("place", "pointed")
    _of, _followed = OutputModel, ("about",)

    size = traitlets.List(traitlets.Int()).tag(sync=True)
    channels: traitlets.List[Any] = traitlets.List().tag(sync=True)
    scale = traitlets.List(traitlets.Unicode()).tag(sync=True)
    cell = traitlets.Int(1).tag(sync=True)
    spread = traitlets.Int().tag(sync=True)
    pictures = traitlets.Bytes().tag(sync=True)
    numbers: traitlets.List[Any] = traitlets.List().tag(sync=True)

    def __init__(self, comparison: Comparison) -> None:
        model = OutputModel(comparison)
        low, high = model.extremes
        wrong = [list(row) for row in model.channels if row[2]][:MOST_CHANNELS]
        super().__init__(
            model,
            size=list(model.shape),
            channels=wrong,
            cell=model.cell,
            spread=model.spread,
            scale=[
                f"{low:g}",
                f"{high:g}",
                f"{model.largest}{' ulp' * (comparison.unit == 'ulp')}",
            ],
        )
        model.observe(self._draw, ["place"])
        self._drawn = -1
        self._draw(None)

    def _draw(self, _: Any) -> None:
        """The pictures of the channel that is looked at, when it is another."""
        channel = self.model.place[2]
        if channel != self._drawn and not (self.model.spread and self._drawn >= 0):
            self._drawn = channel
            with self.hold_sync():
                self.pictures = self.model.pictures(channel).tobytes()
                self.numbers = self.model.numbers(channel)


def _ends(values: np.ndarray) -> tuple[float, float]:
    if values.dtype.kind == "f":
        values = values[np.isfinite(values)]
    if values.size:
        return float(values.min()), float(values.max())
    return 0.0, 1.0


def _worst(plane: np.ndarray, side: int) -> np.ndarray:
    """The difference of the largest size in each square of ``side`` outputs; of as many the first.

    >>> _worst(np.array([[0, -3, 1], [2, 0, 0]]), 2).tolist()
    [[-3, 1]]
    """
    if side == 1:
        return plane
    rows, columns = (-(-size // side) for size in plane.shape)
    padded = np.zeros((rows * side, columns * side), plane.dtype)
    padded[: plane.shape[0], : plane.shape[1]] = plane
    cells = (
        padded.reshape(rows, side, columns, side).swapaxes(1, 2).reshape(rows, columns, side * side)
    )
    return np.take_along_axis(cells, np.abs(cells).argmax(2)[:, :, None], 2)[:, :, 0]
