"""A coefficient buffer as a picture: the colour of each bit says what the bit is for."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch
from numpy import ndarray

from npulab.analysis.check import explain
from npulab.captures.capture import Capture
from npulab.notebook.pictures.picture import Picture, canvas, legend
from npulab.support.late import pd
from npulab.support.text import plural

WIDTH = 64  # bytes in a row
NUMBERED = 24  # a picture of at most this many rows has the hexadecimal digits of its bytes
PANEL, PANELS = 256, 8  # the most rows of a panel, and the most panels side by side
HIGH, LOW = 5.5, 0.5  # the greatest and the least height of a panel, in inches
LABELS = 24  # at most this many labels fit on the height of a panel
HEADER, RUN = "header", "run and weight"
# the colour of each kind of bit, light enough for black text; a kind that is not listed has the
# colour of a header
COLOURS = {
    HEADER: "#cdb38b",
    "weight": "#8fc1e3",
    RUN: "#4f9bd0",
    "run": "#5cc4c4",
    "bias": "#f6c667",
    "offset": "#b9a3e3",
    "symbol": "#a5d6a0",
    "escape": "#ee9a78",
    "completion": "#9fb3b3",
    "flush": "#c0c77a",
    "mask": "#e9a9bf",
    "knot": "#9ed3b8",
    "line": "#d8b49c",
    "fill": "#eeeeee",
}
NAMES = tuple(COLOURS)
EMPTY = -1  # cells after the buffer's end have the last colour, white


def stream_map(capture: Capture, first: int = 0, rows: int = PANEL * PANELS) -> Picture:
    """Draw what each bit of the coefficient buffer is for, as ``explain`` says.

    A row has 64 bytes, from byte ``first``; the lowest bit of each byte is on the left. Lines and
    labels mark where the stream of a core begins; cells after the end are white. If there are few
    rows, bytes have their hexadecimal digits. If there are many, each byte has the colour of the
    kind that most of its bits have; at most 2048 rows are drawn. The text counts the bytes of each
    kind over the whole buffer; ``run and weight`` is an item that stands for several weights.
    Raises ValueError if no row begins at ``first``, for rows below 1, and as ``explain`` does.
    """
    table = explain(capture)
    data = capture.buffers["coefficients"]
    size = len(data)
    if first % WIDTH or not 0 <= first < max(size, 1):
        raise ValueError(
            f"first: got byte {first}, allowed is a multiple of {WIDTH} from 0 to {size - 1}"
        )
    if rows < 1:
        raise ValueError(f"rows: got {rows}, allowed is 1 or more")
    rows_of_buffer = -(-size // WIDTH)
    rows = min(rows, rows_of_buffer - first // WIDTH, PANEL * PANELS)
    end = min(first + rows * WIDTH, size)
    places = _stream_starts(table)
    kinds = _kinds(table)
    sizes = _bytes_by_kind(kinds)
    shown = capture.name
    if capture.simulated:
        shown += " (simulated)"
    shown += f": {size} bytes of coefficients"
    text = f"{shown}, {_summary(table, sizes)}"
    if rows < rows_of_buffer:
        text += f"; drawn are bytes {first} to {end - 1}"
    kinds = kinds[8 * first : 8 * end]
    panels = -(-rows // PANEL)
    high = -(-rows // panels)
    cells_of_row = 8 * WIDTH
    if panels > 1:
        kinds = _most_of_byte(kinds)
        cells_of_row = WIDTH
    cells = np.full((panels, high, cells_of_row), EMPTY)
    cells.flat[: len(kinds)] = kinds
    white = 1, 1, 1
    colours = np.array([*map(to_rgb, COLOURS.values()), white])
    panel_inches = min(max(0.17 * rows, LOW), HIGH)
    size_of_figure = 11.6, panel_inches + 1.1
    with canvas(size_of_figure, 1, panels, squeeze=False) as (figure, (axes,)):
        for number, ax in enumerate(axes):
            ax.imshow(colours[cells[number]], aspect="auto", extent=(0, WIDTH, high, 0))
            start = first + number * high * WIDTH
            _label(ax, start, high, places, alone=panels == 1)
        if rows <= NUMBERED:
            _write_bytes(axes[0], data[first:end], kinds)
        _legend(figure, sizes)
        figure.suptitle(f"{shown}, bytes {first} to {end - 1}, {WIDTH} a row")
    return Picture(text, figure)


def _kinds(table: pd.DataFrame) -> ndarray:
    """Return the kind of each bit, ``(bits,)``, as an index into ``NAMES``."""
    numbers = pd.Index(NAMES).get_indexer(table.kind).astype(np.int8)
    numbers[numbers < 0] = NAMES.index(HEADER)
    several = (table.kind == "weight") & (table.weights > 1)
    numbers[several] = NAMES.index(RUN)
    return np.repeat(numbers, table.bits)


def _bytes_by_kind(kinds: ndarray) -> dict[str, str]:
    """Return how many bytes each kind has, as a text by name; a bit counts as an eighth, and kinds
    that do not occur are left out.
    """
    sizes = {}
    counts = np.bincount(kinds, minlength=len(NAMES))
    for name, bits in zip(NAMES, counts, strict=True):
        if bits:
            sizes[name] = f"{bits / 8:.9g}"
    return sizes


def _summary(table: pd.DataFrame, sizes: dict[str, str]) -> str:
    streams = table.core[table.kind.isin(["weight", "symbol"])].nunique()
    by_kind = ", ".join(map(" ".join, sizes.items()))
    return f"{plural(streams, 'stream')}; bytes by kind: {by_kind}"


def _most_of_byte(kinds: ndarray) -> ndarray:
    """Return for each byte the kind that most of its bits have, as an index into ``NAMES``; of
    kinds with equally many bits, the kind with the lowest index.
    """
    byte = np.arange(len(kinds)) // 8
    bits = np.bincount(byte * len(NAMES) + kinds, minlength=len(kinds) // 8 * len(NAMES))
    return bits.reshape(-1, len(NAMES)).argmax(axis=1)


def _stream_starts(table: pd.DataFrame) -> list[tuple[int, str]]:
    """Return (byte, label) for each place to mark: the header before the streams, the start of each
    core's stream, and the biases after the streams, if they belong to no core.
    """
    of_cores = table[table.core.notna() & (table.kind != "core size")]
    starts = of_cores.groupby("core").byte.min()
    places = [(int(byte), f"core {core}") for core, byte in starts.items()]
    if not (starts == 0).any():
        label = HEADER
        if (table.kind == "knot").any():
            label = "table"  # the buffer is the table of an activation, which has no cores
        places.insert(0, (0, label))
    of_none = table[table.core.isna() & (table.kind == "bias")]
    last, _ = places[-1]
    after = of_none.byte[of_none.byte > last]
    if len(after):
        places.append((int(after.iloc[0]), "biases"))
    return places


def _label(ax: Any, first: int, rows: int, places: list[tuple[int, str]], alone: bool) -> None:
    """Mark the places that lie in a panel; if it is the only panel (``alone``), it has room for
    their byte offsets, too.
    """
    least = max(rows / LABELS, 1)  # labels at least this many rows apart do not overlap
    heights: list[float] = []
    labels: list[str] = []
    for byte, name in places:
        height = (byte - first) / WIDTH
        if not 0 <= height < rows:
            continue
        if height:
            ax.axhline(height, color="black", linewidth=0.8)
        if alone:
            name = f"{name}, {byte:#x}"
        if not heights or height - heights[-1] >= least:
            heights.append(height)
            labels.append(name)
    if not heights or heights[0] >= least:
        heights.insert(0, 0)
        labels.insert(0, f"{first:#x}")
    ax.set_yticks(np.add(heights, 0.5), labels, fontsize=8)
    ax.tick_params(length=0)
    if alone:
        ax.set_xticks(range(0, WIDTH + 1, 8))
        ax.set_xlabel("byte of the row")
    else:
        ax.set_xticks((0, WIDTH))


def _write_bytes(ax: Any, data: bytes, kinds: ndarray) -> None:
    fill = (kinds.reshape(-1, 8) == NAMES.index("fill")).all(axis=1)
    for byte in np.flatnonzero(~fill).tolist():
        row, column = divmod(byte, WIDTH)
        digits = f"{data[byte]:02x}"
        byte = ax.text(column + 0.5, row + 0.5, digits, ha="center", va="center", fontsize=8)
        byte.set_in_layout(False)  # the digits lie inside their cell


def _legend(figure: Any, sizes: dict[str, str]) -> None:
    patches = []
    for name, size in sizes.items():
        label = f"{name} {size}"
        patches.append(Patch(facecolor=COLOURS[name], edgecolor="#808080", label=label))
    title = "bytes of each kind"
    legend(figure, patches, min(len(patches), 9), title=title, title_fontsize=8)
