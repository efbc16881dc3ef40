"""Predicted and captured output side by side: the number of differences in each channel, where they
are, and how large.

``OutputModel`` holds the state and all the logic and needs no browser; ``OutputView`` shows it.
"""

from __future__ import annotations

import html
from typing import Any

import numpy as np
from numpy import ndarray
from traitlets import Bytes, Int, List, Unicode, observe

from npulab.analysis.check import Comparison
from npulab.analysis.mismatch.summary import mismatches
from npulab.notebook.widgets.frame import Model, Numbers, View, assets, table_html
from npulab.quant.floats import steps
from npulab.support.refuse import need

MOST_CELLS = 512  # the most cells a side; more outputs share cells
SHADES = 255
EQUAL = 128  # the shade of outputs that are equal
MOST_CHANNELS = 1024  # a view lists at most this many channels
NUMBERED = 20  # pictures of at most this many rows and columns have numbers in their cells
SPREAD = 32  # a row of the picture has this many channels if a channel is one output


class OutputModel(Model):
    """The two outputs ``(H, W, C)`` of a comparison, a result of ``npulab.check``, with a cursor;
    it needs no browser.

    ``place``, (row, column, channel), can be set and observed; at first it is the first output that
    differs. ``pointed`` is the place of an output to describe instead of the output at ``place``,
    or (); ``about`` is the description in words. Differences are captured - predicted, in
    codes, or in ulp for real numbers. Raises ValueError if the comparison does not have two
    outputs, or no element, and for a place outside.

    >>> predicted = np.zeros((2, 2, 3), np.uint8)
    >>> captured = np.arange(12, dtype=np.uint8).reshape(2, 2, 3) // 11
    >>> found = Comparison("a", "demo", False, True, None, "differs", predicted=predicted,
    ...                    captured=captured)
    >>> model = OutputModel(found)
    >>> model.place, model.about
    ((1, 1, 2), 'row 1, column 1, channel 2: predicted 0, captured 1, difference +1')
    """

    place = Numbers("(row, column, channel)", (0, 0, 0), lambda owner, *_: owner.ranges)
    pointed = Numbers("(row, column, channel)", (), lambda owner, *_: owner.ranges, empty=True)
    about = Unicode(read_only=True)

    def __init__(self, comparison: Comparison) -> None:
        need(
            "OutputView", comparison, Comparison, "is a Comparison, as npulab.check(capture) gives"
        )
        self.comparison = comparison
        self.counted = mismatches(comparison)  # mismatches refuses a comparison without two outputs
        self.predicted = np.asarray(comparison.predicted)
        self.captured = np.asarray(comparison.captured)
        if not self.predicted.size:
            raise ValueError(
                f"{comparison.case}: got outputs {self.predicted.shape}, allowed is one element or "
                "more"
            )
        self.difference = steps(self.captured, self.predicted)
        channels = self.counted.by_channel[["channel", "outputs", "differ", "largest"]]
        self.channels = [tuple(map(int, row)) for row in channels.itertuples(index=False)]
        # flat indices (over channel, row, column) of the outputs that differ, in the order of seek
        self._wrong = np.flatnonzero(self.difference.transpose(2, 0, 1))
        super().__init__()
        self.place = self.first or (0, 0, 0)
        self._tell(None)

    # ---- the state as text and as pictures ----

    @property
    def shape(self) -> tuple[int, int, int]:
        rows, columns, channels = self.predicted.shape
        return rows, columns, channels

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """(lowest, highest + 1) of row, column and channel."""
        return [(0, size) for size in self.shape]

    @property
    def differ(self) -> int:
        """The number of outputs that differ."""
        return len(self._wrong)

    @property
    def first(self) -> tuple[int, int, int] | None:
        """The place of the first output that differs, as ``Comparison.first``: by row, then column,
        then channel. None if all outputs are equal.
        """
        wrong = np.flatnonzero(self.difference)
        if len(wrong):
            return self._place(int(wrong[0]))
        return None

    def _place(self, at: int) -> tuple[int, int, int]:
        row, column, channel = map(int, np.unravel_index(at, self.shape))
        return row, column, channel

    @property
    def simulated(self) -> bool:
        return self.comparison.simulated

    @property
    def title(self) -> str:
        rows, columns, channels = self.shape
        case = f"{self.comparison.target}/{self.comparison.case}"
        return f"{case}, outputs ({rows}, {columns}, {channels}) {self.captured.dtype}"

    @property
    def summary(self) -> str:
        first = ""
        if self.first is not None:
            row, column, channel = self.first
            first = f"first at row {row}, column {column}, channel {channel}"
        parts = self.comparison.verdict, str(self.counted), first, self.comparison.reason
        return "; ".join(filter(None, parts))

    @property
    def extremes(self) -> tuple[float, float]:
        """The values that shades 0 and 255 stand for: the lowest and the highest finite value of
        both outputs.
        """
        predicted_low, predicted_high = _finite_range(self.predicted)
        captured_low, captured_high = _finite_range(self.captured)
        return min(predicted_low, captured_low), max(predicted_high, captured_high)

    @property
    def largest(self) -> int:
        """The size of the largest difference; 1 if there is no difference."""
        return max(int(np.abs(self.difference).max()), 1)

    @property
    def spread(self) -> int:
        """The number of channels in a row of the picture if each channel has a single output, so
        that one picture has all channels; 0 for other outputs.
        """
        if self.shape[:2] == (1, 1) and self.shape[2] > 1:
            return SPREAD
        return 0

    def plane(self, tensor: ndarray, channel: int) -> ndarray:
        """Return the part ``(h, w)`` of a tensor that a picture shows: one channel, or, with
        ``spread``, all channels row by row.
        """
        if not self.spread:
            return tensor[:, :, channel]
        rows = -(-tensor.size // self.spread)
        out = np.zeros(rows * self.spread, tensor.dtype)
        out[: tensor.size] = tensor.reshape(-1)
        return out.reshape(rows, self.spread)

    @property
    def cell(self) -> int:
        """How many outputs along each side share a cell, so that the picture has at most
        ``MOST_CELLS`` cells a side.
        """
        return -(-max(self.plane(self.difference, 0).shape) // MOST_CELLS)

    def pictures(self, channel: int) -> ndarray:
        """Return three pictures of a channel, ``(3, h, w) uint8``: predicted, captured and
        difference.

        Predicted and captured values have shades 0 to 255 over ``extremes``. A difference has shade
        128 for equal outputs, 129 to 255 for a larger captured value, 0 to 127 for a smaller
        captured value, by the root of the difference. A cell that several outputs share has the
        value of the first output, and the largest difference.
        """
        low, high = self.extremes
        side = self.cell
        out = []
        for values in (self.predicted, self.captured):
            plane = self.plane(values, channel)[::side, ::side].astype(np.float64)
            span = (high - low) or 1
            with np.errstate(invalid="ignore", over="ignore"):
                shade = (np.clip(plane, low, high) - low) / span * SHADES
            out.append(np.nan_to_num(shade, nan=0.0).astype(np.uint8))
        plane = _worst(self.plane(self.difference, channel), side)
        size = np.sqrt(np.abs(plane) / self.largest)
        above = EQUAL + np.ceil(size * (SHADES - EQUAL))
        below = EQUAL - np.ceil(size * EQUAL)
        shades = np.select([plane > 0, plane < 0], [above, below], EQUAL)
        out.append(shades.astype(np.uint8))
        return np.stack(out)

    def numbers(self, channel: int) -> list[list[str]]:
        """Return the texts in the cells of the three pictures of a channel (predicted, captured,
        difference), row by row; no texts if the pictures have too many cells.
        """
        if max(self.plane(self.difference, 0).shape) > NUMBERED:
            return []
        form = "{}"
        if self.captured.dtype.kind == "f":
            form = "{:.3g}"
        predicted = [form.format(value) for value in self.plane(self.predicted, channel).flat]
        captured = [form.format(value) for value in self.plane(self.captured, channel).flat]
        differences = []
        for value in self.plane(self.difference, channel).flat:
            text = ""
            if value:
                text = f"{value:+d}"
            differences.append(text)
        return [predicted, captured, differences]

    def describe(self, row: int, column: int, channel: int) -> str:
        """Return one line about an output: place, predicted, captured, difference."""
        at = row, column, channel
        difference = int(self.difference[at])
        text = f"row {row}, column {column}, channel {channel}: predicted {self.predicted[at]!s}"
        text += f", captured {self.captured[at]!s}"
        if not difference:
            text += ", equal"
        elif self.comparison.unit == "ulp":
            text += f", difference {difference:+d} ulp"
        else:
            text += f", difference {difference:+d}"
        if self.counted.border[row, column]:
            text += ", its window touches the padding"
        return text

    # ---- acts of a person or the page ----

    def seek(self, step: int = 1) -> None:
        """Move to the next output that differs, or with -1 to the output that differs before it,
        channel by channel; after the last comes the first.
        """
        if not len(self._wrong):
            return
        row, column, channel = self.place
        rows, columns, channels = self.shape
        by_channel = channels, rows, columns
        place = np.ravel_multi_index((channel, row, column), by_channel)
        number = np.searchsorted(self._wrong, place) - 1
        if step > 0:
            number = np.searchsorted(self._wrong, place, "right")
        found = self._wrong[number % len(self._wrong)]
        channel, row, column = map(int, np.unravel_index(found, by_channel))
        self.place = (row, column, channel)

    def press(self, asked: Any) -> None:
        """Act on a message of the page, ``{"seek": 1}`` or ``{"seek": -1}``; raises ValueError for
        any other message.
        """
        match asked:
            case {"seek": 1 | -1 as step}:
                self.seek(step)
            case _:
                raise ValueError(f"message: got {asked!r:.80}, allowed is seek with 1 or -1")

    # ---- what follows from the traits ----

    @observe("place", "pointed")
    def _tell(self, _: Any) -> None:
        self.set_trait("about", self.describe(*(self.pointed or self.place)))

    def _repr_html_(self) -> str:
        rows = [tuple(map(str, row)) for row in self.channels if row[2]]
        table = ""
        if rows:
            table = table_html(("channel", "outputs", "differ", "largest"), rows)
        about = ""
        if self.first is not None:
            about = f"<p>{html.escape(self.describe(*self.first))}</p>"
        return f"{self.heading_html()}{about}{table}"


class OutputView(View):
    """Predicted and captured output of a comparison, a channel at a time: the pointer shows an
    output, arrows move, [ and ] change the channel, d goes to the next difference.

    ``place``, (row, column, channel), is the model's and can be set and observed; ``about`` follows
    it. Everything else is on ``model``.
    """

    _esm, _css = assets("rows", "output_view")
    _linked = ("place", "pointed")
    _of, _followed = OutputModel, ("about",)

    size = List(Int())
    channels: List[Any] = List()
    scale = List(Unicode())
    cell = Int(1)
    spread = Int()
    pictures = Bytes()
    numbers: List[Any] = List()

    def __init__(self, comparison: Comparison) -> None:
        model = OutputModel(comparison)
        low, high = model.extremes
        differing = [list(row) for row in model.channels if row[2]]
        largest = str(model.largest)
        if comparison.unit == "ulp":
            largest += " ulp"
        super().__init__(
            model,
            size=list(model.shape),
            channels=differing[:MOST_CHANNELS],
            cell=model.cell,
            spread=model.spread,
            scale=[f"{low:g}", f"{high:g}", largest],
        )
        model.observe(self._draw, ["place"])
        self._drawn = -1
        self._draw(None)

    def _draw(self, _: Any) -> None:
        """Send the pictures of the cursor's channel, unless the page has them already."""
        *_, channel = self.model.place
        if channel != self._drawn and not (self.model.spread and self._drawn >= 0):
            self._drawn = channel
            with self.hold_sync():
                self.pictures = self.model.pictures(channel).tobytes()
                self.numbers = self.model.numbers(channel)


def _finite_range(values: ndarray) -> tuple[float, float]:
    if values.dtype.kind == "f":
        values = values[np.isfinite(values)]
    if values.size:
        return float(values.min()), float(values.max())
    return 0.0, 1.0


def _worst(plane: ndarray, side: int) -> ndarray:
    """Return the largest difference, with its sign, in each square of ``side`` by ``side`` outputs;
    of equally large differences, the first.

    >>> _worst(np.array([[0, -3, 1], [2, 0, 0]]), 2).tolist()
    [[-3, 1]]
    """
    if side == 1:
        return plane
    height, width = plane.shape
    padded = np.pad(plane, ((0, -height % side), (0, -width % side)))
    rows, columns = padded.shape[0] // side, padded.shape[1] // side
    squares = padded.reshape(rows, side, columns, side).swapaxes(1, 2)
    cells = squares.reshape(rows, columns, side * side)
    largest = np.abs(cells).argmax(axis=2, keepdims=True)
    return np.take_along_axis(cells, largest, axis=2)[:, :, 0]
