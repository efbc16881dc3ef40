"""A coefficient buffer drawn: what each of its bits is for."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from npulab.analysis.check import explain
from npulab.captures.capture import Capture
from npulab.notebook.pictures.picture import Picture, canvas
from npulab.support.late import pd

WIDTH = 64  # bytes of a row
NUMBERED = 24  # rows up to which each byte is written
PANEL, PANELS = 256, 8  # rows of a panel, and panels side by side
HIGH, LOW = 5.5, 0.5  # inches of a panel, most and least
HEADER, RUN = "header", "run and weight"
# light enough for black text; a kind that is not here belongs to a header
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


def stream_map(capture: Capture, first: int = 0, rows: int = PANEL * PANELS) -> Picture:
    """What each bit of the coefficient buffer is for, as ``explain`` says: rows of 64 bytes, the
    lowest bit of each byte on the left, from byte ``first`` on; lines and labels where the stream
    of a core begins; past the end white.

    Bytes are written where there are few rows.  Of many rows each byte has the colour of what most
    of its bits are for; at most 2048 rows are drawn.  Counts are of the whole buffer, in bytes;
    ``run and weight`` is an item that stands for several weights. Raises ValueError for a first
    byte that begins no row of the buffer, for rows below 1, and as ``explain`` does.
    """
    table = explain(capture)
    data = capture.buffers["coefficients"]
    if first % WIDTH or not 0 <= first < max(len(data), 1):
        raise ValueError(
            f"first: got byte {first}, allowed is a multiple of {WIDTH} from 0 to {len(data) - 1}"
        )
    if rows < 1:
        raise ValueError(f"rows: got {rows}, allowed is 1 or more")
    rows = min(rows, -(-len(data) // WIDTH) - first // WIDTH, PANEL * PANELS)
    kinds = _kinds(table)
    counts = np.bincount(kinds, minlength=len(NAMES))
    text = _text(capture, len(data), table, counts)
    if rows < -(-len(data) // WIDTH):
        text += f"; drawn are bytes {first} to {min(first + rows * WIDTH, len(data)) - 1}"
    panels = -(-rows // PANEL)
    cells = kinds[8 * first : 8 * (first + rows * WIDTH)]
    if panels > 1:
        cells = _most(cells)
    high = -(-rows // panels)
    grid = np.full(panels * high * WIDTH * (8 if panels == 1 else 1), -1)
    grid[: len(cells)] = cells
    colours = np.array([*(to_rgb(colour) for colour in COLOURS.values()), (1.0, 1.0, 1.0)])
    with canvas((11.6, 1.1 + min(max(0.17 * rows, LOW), HIGH)), 1, panels, squeeze=False) as (
        figure,
        (axes,),
    ):
        for number, (ax, part) in enumerate(zip(axes, grid.reshape(panels, high, -1), strict=True)):
            ax.imshow(colours[part], aspect="auto", extent=(0, WIDTH, high, 0))
            _labels(ax, first + number * high * WIDTH, high, _places(table), panels)
        if rows <= NUMBERED:
            _numbers(axes[0], data[first : first + rows * WIDTH], cells)
        shown = [
            Patch(facecolor=COLOURS[name], edgecolor="#808080", label=f"{name} {_bytes(count)}")
            for name, count in zip(NAMES, counts.tolist(), strict=True)
            if count
        ]
        figure.legend(
            handles=shown,
            loc="outside lower center",
            ncols=min(len(shown), 9),
            frameon=False,
            title="bytes of each kind",
            title_fontsize=8,
        )
        figure.suptitle(
            text.split(": ")[0] + f": {len(data)} bytes of coefficients, bytes {first} to "
            f"{min(first + rows * WIDTH, len(data)) - 1}, {WIDTH} a row"
        )
    return Picture(text, figure)


def _text(capture: Capture, size: int, table: pd.DataFrame, counts: np.ndarray) -> str:
    cores = table.core[table.kind.isin(["weight", "symbol"])].nunique()
    said = ", ".join(
        f"{name} {_bytes(count)}"
        for name, count in zip(NAMES, counts.tolist(), strict=True)
        if count
    )
    return (
        f"{capture.name}{' (simulated)' if capture.simulated else ''}: {size} bytes of "
        f"coefficients, {cores} "
        f"stream{'s' * (cores != 1)}; bytes by kind: {said}"
    )


def _bytes(bits: int) -> str:
    return f"{bits / 8:.9g}"


def _kinds(table: pd.DataFrame) -> np.ndarray:
    """What each bit is for, ``(bits,)``, as indices of NAMES."""
    numbers = (
        table.kind.map({name: at for at, name in enumerate(NAMES)})
        .fillna(NAMES.index(HEADER))
        .to_numpy(np.int8)
    )
    numbers[(table.kind == "weight").to_numpy() & (table.weights > 1).to_numpy()] = NAMES.index(RUN)
    return np.repeat(numbers, table.bits)


def _most(kinds: np.ndarray) -> np.ndarray:
    """What most bits of each byte are for; of as many the first of NAMES."""
    count = len(kinds) // 8
    at = np.arange(len(kinds)) // 8 * len(NAMES) + kinds
    return np.bincount(at, minlength=count * len(NAMES)).reshape(count, len(NAMES)).argmax(1)


def _places(table: pd.DataFrame) -> list[tuple[int, str]]:
    """(byte, what begins there): the header, where one is before the stream of each core, and what
    belongs to none behind the streams."""
    own = table[table.core.notna() & (table.kind != "core size")].groupby("core").byte.min()
    out = [(int(byte), f"core {core}") for core, byte in own.items()]
    if not any(byte == 0 for byte, _ in out):
        out.insert(0, (0, HEADER if (table.kind != "knot").all() else "table"))
    behind = table[table.core.isna() & (table.byte > out[-1][0]) & (table.kind == "bias")]
    return [*out, *([(int(behind.byte.iloc[0]), "biases")] if len(behind) else [])]


def _labels(ax: Any, first: int, rows: int, places: list[tuple[int, str]], panels: int) -> None:
    ticks: list[tuple[float, str]] = []
    for byte, name in places:
        at = (byte - first) / WIDTH
        if not 0 <= at < rows:
            continue
        if at:
            ax.axhline(at, color="black", linewidth=0.8)
        if not ticks or at - ticks[-1][0] >= max(rows / 24, 1):
            ticks.append((at, f"{name}, {byte:#x}" if panels == 1 else name))
    if not ticks or ticks[0][0] >= max(rows / 24, 1):
        ticks.insert(0, (0, f"{first:#x}"))
    ax.set_yticks([at + 0.5 for at, _ in ticks], [name for _, name in ticks], fontsize=8)
    ax.set_xticks(range(0, WIDTH + 1, 8 if panels == 1 else WIDTH))
    ax.tick_params(length=0)
    if panels == 1:
        ax.set_xlabel("byte of the row")


def _numbers(ax: Any, data: bytes, kinds: np.ndarray) -> None:
    fill = (kinds.reshape(-1, 8) == NAMES.index("fill")).all(1)
    for at in np.flatnonzero(~fill):
        row, column = divmod(int(at), WIDTH)
        ax.text(column + 0.5, row + 0.5, f"{data[at]:02x}", ha="center", va="center", fontsize=8)
