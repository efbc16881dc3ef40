"""A layout drawn: the tensor with the place of each element, and the buffer with the element of
each byte."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from npulab.layout import Found, Layout, Table
from npulab.notebook.pictures.picture import Picture, canvas

NUMBERED = 16  # cells a side up to which every number is written into its cell
SHOWN = 192  # rows and columns that are drawn at most
WIDTHS = (16, 32, 64, 128)  # bytes of a row of the buffer
LINE = 130  # characters of a line of the title
NOTHING, PART, MISSING = "#ffffff", "#b0b0b0", "#c4501b"


def layout_map(layout: Found | Layout | Table, width: int = 0) -> Picture:
    """Where each element lies: on the left the tensor, its last axis across and the others down,
    with the byte offset of each element; on the right the buffer, ``width`` bytes a row, with the
    number of the element (last axis fastest) that each byte belongs to.

    Bytes of fill are white, those of sums and constants grey, elements that are not in the buffer
    red.  Of large ones the first rows and columns are drawn; numbers are written where there is
    room. Raises ValueError for a width below 1.
    """
    taken = layout.layout if isinstance(layout, Found) else layout
    places = layout.index_map()
    if width < 0:
        raise ValueError(
            f"width: got {width}, allowed is 1 or more bytes, or 0 to leave it to the picture"
        )
    width = width or next((one for one in WIDTHS if taken.size <= one * one), WIDTHS[-1])
    there = int(np.count_nonzero(places >= 0))
    tensor = places.reshape(-1, places.shape[-1])
    large = max(*tensor.shape, -(-taken.size // width), width) > SHOWN
    text = (
        f"{taken}: {there} of {places.size} elements in the buffer"
        f"{f', the first {SHOWN} rows and columns drawn' if large else ''}"
    )
    tensor = tensor[:SHOWN, :SHOWN]
    owners, kinds = _owners(taken, places, width * SHOWN)
    rows = -(-len(owners) // width)
    with canvas(
        (10.4, 1.2 + 3.6 * min(max(rows, len(tensor), 6) / 16, 1.6)), 1, 2, width_ratios=(1, 1.2)
    ) as (figure, (left, right)):
        _draw(figure, left, tensor, tensor < 0, MISSING, "byte offset of each element")
        left.set_xlabel(f"last of {len(places.shape)} axes")
        left.set_ylabel("index along the last axis" if places.ndim == 1 else "the other axes")
        padded = np.full(rows * width, -1, np.int64)
        padded[: len(owners)] = owners
        grid = padded.reshape(rows, width)[:, :SHOWN]
        _draw(figure, right, grid, grid < 0, NOTHING, "element of each byte")
        parts = np.zeros(rows * width, bool)
        parts[: len(kinds)] = kinds
        marked = np.ma.masked_where(~parts.reshape(rows, width)[:, :SHOWN], np.ones(grid.shape))
        right.imshow(marked, cmap=ListedColormap([PART]), aspect="auto")
        right.set_xlabel("byte of the row")
        right.set_yticks(*_ticks(rows, width))
        marks = [Patch(facecolor=PART, label="sums and constants")] * bool(taken.parts)
        marks += [Patch(facecolor=MISSING, label="not in the buffer")] * (there < places.size)
        marks += [Patch(facecolor=NOTHING, edgecolor="#606060", label="fill")] * bool(
            (owners < 0).any()
        )
        if marks:
            figure.legend(
                handles=marks, loc="outside lower center", ncols=len(marks), frameon=False
            )
        figure.suptitle(textwrap.fill(text, LINE))
    return Picture(text, figure)


def _owners(layout: Layout | Table, places: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """For each of the first bytes the number of its (last) element, -1 where it has none, and
    whether a
    part holds it."""
    size = min(layout.size, most)
    owners, parts = np.full(size, -1, np.int64), np.zeros(size, bool)
    flat = places.reshape(-1)
    for copy in (0, *layout.copies):
        for at in range(layout.itemsize):
            byte = np.where(flat >= 0, (flat + (copy + at)) // layout.per_byte, size)
            number = np.flatnonzero(byte < size)
            owners[byte[number]] = number
    for part in layout.parts:
        span = np.arange(part.offset, part.offset + part.size) ^ max(layout.swap - 1, 0)
        parts[span[span < size]] = True
    return owners, parts


def _draw(
    figure: Figure, ax: Any, values: np.ndarray, without: np.ndarray, colour: str, title: str
) -> None:
    colours = colormaps["viridis"].with_extremes(bad=colour)
    most = max(int(values.max()), 1)
    image = ax.imshow(
        np.ma.masked_where(without, values), cmap=colours, vmin=0, vmax=most, aspect="auto"
    )
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.yaxis.get_major_locator().set_params(integer=True)
    ax.set_title(title, loc="left")
    ax.set_facecolor(colour)
    if max(values.shape) > NUMBERED:
        figure.colorbar(image, ax=ax)
        return
    for (row, column), value in np.ndenumerate(values):
        if not without[row, column]:
            red, green, blue, _ = colours(image.norm(value))
            light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.55
            ax.text(
                column,
                row,
                str(value),
                ha="center",
                va="center",
                color="black" if light else "white",
                fontsize=8,
            )


def _ticks(rows: int, width: int) -> tuple[list[int], list[str]]:
    step = 1
    if rows:
        step = max(2 ** max(math.ceil(math.log2(rows / NUMBERED)), 0), 1)
    at = list(range(0, rows, step))
    return at, [f"{row * width:#x}" for row in at]
