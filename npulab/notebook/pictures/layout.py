"""A layout as a picture: the tensor with the offset of each element, and the buffer with the
element of each byte."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy import ndarray

from npulab.layout import Found, Layout, Planes, Table
from npulab.notebook.pictures.picture import Picture, canvas, legend, write_values

NUMBERED = 16  # an image of at most this many rows and columns has numbers in its cells
SHOWN = 192  # at most this many rows and this many columns are drawn
# A row of the buffer has the first of these numbers of bytes that gives no more rows than columns.
WIDTHS = (16, 32, 64, 128)
LINE = 130  # the most characters in a line of the title
NOTHING, PART, MISSING = "#ffffff", "#b0b0b0", "#c4501b"


def layout_map(layout: Found | Layout | Planes | Table, width: int = 0) -> Picture:
    """Draw where each element lies: on the left the tensor, on the right the buffer.

    The tensor has its last axis across and all other axes down, with the byte offset of each
    element. The buffer has ``width`` bytes a row, with the number of the element (last axis
    fastest) that each byte belongs to. Bytes of fill are white, bytes of constants and checksums
    grey, elements that are not in the buffer red. Of a large tensor or buffer the first rows and
    columns are drawn; numbers are written if there is room. A layout ``Planes`` splits each element
    into units of a few bits; then each unit is drawn, as one more axis of the tensor. Raises
    ValueError for a width below 0; 0 leaves the width to the picture.
    """
    if isinstance(layout, Found):
        layout = layout.layout
    if isinstance(layout, Planes):
        layout = layout.table()
    places = layout.index_map()
    if width < 0:
        raise ValueError(
            f"width: got {width}, allowed is 1 or more bytes, or 0 to leave it to the picture"
        )
    if width == 0:
        square = [bytes_ for bytes_ in WIDTHS if layout.size <= bytes_ * bytes_]
        width = min(square, default=WIDTHS[-1])
    present = np.count_nonzero(places >= 0)
    tensor = places.reshape(-1, places.shape[-1])
    text = f"{layout}: {present} of {places.size} elements in the buffer"
    if max(*tensor.shape, -(-layout.size // width), width) > SHOWN:
        text += f", the first {SHOWN} rows and columns drawn"
    tensor = np.ma.masked_less(tensor[:SHOWN, :SHOWN], 0)
    owners, of_parts = _owners(layout, places, width * SHOWN)
    rows = -(-len(owners) // width)
    height = min(max(rows, len(tensor), 6) / 16, 1.6)
    with canvas((10.4, 1.2 + 3.6 * height), 1, 2, width_ratios=(1, 1.2)) as (figure, axes):
        of_tensor, of_buffer = axes
        _draw(figure, of_tensor, tensor, MISSING, "byte offset of each element")
        of_tensor.set_xlabel(f"last of {places.ndim} axes")
        of_tensor.set_ylabel("the other axes")
        if places.ndim == 1:
            of_tensor.set_ylabel("index along the last axis")
        grid = np.ma.masked_less(_in_rows(owners, width, -1), 0)
        _draw(figure, of_buffer, grid, NOTHING, "element of each byte")
        parts = np.ma.masked_equal(_in_rows(of_parts, width, 0), 0)
        of_buffer.imshow(parts, cmap=ListedColormap([PART]), aspect="auto")
        of_buffer.set_xlabel("byte of the row")
        of_buffer.set_yticks(*_ticks(rows, width))
        marks = []
        if layout.parts:
            marks.append(Patch(facecolor=PART, label="sums and constants"))
        if present < places.size:
            marks.append(Patch(facecolor=MISSING, label="not in the buffer"))
        if (owners < 0).any():
            marks.append(Patch(facecolor=NOTHING, edgecolor="#606060", label="fill"))
        if marks:
            legend(figure, marks)
        figure.suptitle(textwrap.fill(text, LINE))
    return Picture(text, figure)


def _in_rows(values: ndarray, width: int, fill: int) -> ndarray:
    """Return an array with one value per byte as rows of ``width`` bytes, cut to the columns that
    are drawn; ``fill`` completes the last row.
    """
    rows = -(-len(values) // width)
    padded = np.full(rows * width, fill)
    padded[: len(values)] = values
    return padded.reshape(rows, width)[:, :SHOWN]


def _owners(layout: Layout | Table, places: ndarray, most: int) -> tuple[ndarray, ndarray]:
    """Return two arrays over the first ``most`` bytes: the number of the element in a byte (the
    last if there are several, -1 if there is none), and True where a byte lies in a
    checksum or a constant of the layout.
    """
    size = min(layout.size, most)
    owners = np.full(size, -1, np.int64)
    parts = np.zeros(size, bool)
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


def _draw(figure: Figure, ax: Any, values: np.ma.MaskedArray, colour: str, title: str) -> None:
    """Draw an array as an image, with its numbers in the cells if there is room; masked cells have
    the given colour.
    """
    colours = colormaps["viridis"].with_extremes(bad=colour)
    most = max(int(values.data.max()), 1)
    image = ax.imshow(values, cmap=colours, vmin=0, vmax=most, aspect="auto")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.yaxis.get_major_locator().set_params(integer=True)
    ax.set_title(title, loc="left")
    ax.set_facecolor(colour)
    if max(values.shape) > NUMBERED:
        figure.colorbar(image, ax=ax)
    else:
        write_values(ax, values, image)


def _ticks(rows: int, width: int) -> tuple[list[int], list[str]]:
    step = 1
    while step * NUMBERED < rows:
        step *= 2
    ticked = range(0, rows, step)
    return [*ticked], [f"{row * width:#x}" for row in ticked]
