"""The memory of a model drawn: how long each tensor lives, where in the block, and how much that
is."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

from npulab.models import Memory
from npulab.models.listing import memory_text
from npulab.notebook.pictures.picture import WRONG, Picture, canvas

LINE = 120  # characters of a line of the title
NUMBERED = 40  # tensors up to which each is numbered where its bar has room
ROOM = (0.03, 0.035)  # share of the picture, across and up, that a number takes
OUTLINED = 800  # operators up to which bars and live bytes have an outline
TICKS = 6  # bytes that are marked, at most, at powers of two
# light enough for black text; what is not told by colour is told by the pattern
KINDS = {
    "input": ("#f6c667", "//"),
    "output": ("#a5d6a0", "\\\\"),
    "intermediate": ("#8fc1e3", ""),
    "state": ("#e9a9bf", ".."),
}


def memory_picture(memory: Memory) -> Picture:
    """Tensors as bars, over the operators from the first to the last that they live, at the bytes
    of the block where the planner put them; below, the bytes that live at each operator.

    The peak is marked in both, the block's size by a line; a bar has the number of its tensor where
    there is room. Constants are counted in the sentence, not drawn. Raises ValueError for what is
    not the memory of a model.
    """
    if not isinstance(memory, Memory):
        raise ValueError(f"memory: got {type(memory).__name__}, allowed is what model_memory gives")
    drawn = np.flatnonzero((memory.offsets >= 0) & (memory.bytes > 0))
    count = len(memory.live)
    most = max(memory.planned, 1)
    with canvas((9.6, 5.6), 2, 1, sharex=True, height_ratios=(3, 1)) as (figure, (above, below)):
        above.set_xlim(-0.5, count - 0.5)
        above.set_ylim(0, most * 1.04)
        _bars(above, memory, drawn)
        above.axhline(memory.planned, color="black", linewidth=0.8, linestyle="--")
        above.set_ylabel("place in the block")
        edges = np.arange(count + 1) - 0.5
        below.stairs(memory.live, edges, fill=True, color="#c8c8c8")
        below.stairs(memory.live, edges, color="black", linewidth=0.8 if count <= OUTLINED else 0.1)
        below.set_ylim(0, max(memory.peak, 1) * 1.35)
        below.set_ylabel("live")
        below.set_xlabel("operator")
        below.plot([memory.at], [memory.peak], "v", color=WRONG, markersize=6)
        left = memory.at < count / 2
        below.annotate(
            f"peak {memory_text(memory.peak)} at {memory.at}",
            (memory.at, memory.peak),
            xytext=(6 if left else -6, 2),
            textcoords="offset points",
            ha="left" if left else "right",
            va="bottom",
        )
        for ax in (above, below):
            ax.axvline(memory.at, color=WRONG, linewidth=0.8, linestyle=":")
            ax.spines[["right", "top"]].set_visible(False)
            ax.yaxis.set_major_formatter(
                FuncFormatter(lambda value, _: memory_text(max(round(value), 0)))
            )
            ax.yaxis.set_major_locator(
                MultipleLocator(2 ** max(round(ax.get_ylim()[1]) // TICKS, 1).bit_length())
            )
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        shown = [
            Patch(facecolor=colour, hatch=hatch, edgecolor="#606060", label=kind)
            for kind, (colour, hatch) in KINDS.items()
            if any(memory.kinds[number] == kind for number in drawn)
        ]
        if shown:
            figure.legend(
                handles=shown, loc="outside lower center", ncols=len(shown), frameon=False
            )
        figure.suptitle(textwrap.fill(memory.text, LINE))
    return Picture(memory.text, figure)


def _bars(ax: Any, memory: Memory, drawn: np.ndarray) -> None:
    """A bar for each tensor, those of a kind together, and the numbers of those with room."""
    low, high = memory.first - 0.5, memory.last + 0.5
    bottom, top = memory.offsets, memory.offsets + memory.bytes
    corners = np.stack(
        [np.stack([low, low, high, high], 1), np.stack([bottom, top, top, bottom], 1)], 2
    ).astype(float)
    for kind, (colour, hatch) in KINDS.items():
        chosen = [number for number in drawn if memory.kinds[number] == kind]
        if chosen:
            ax.add_collection(
                PolyCollection(
                    list(corners[chosen]),
                    facecolor=colour,
                    hatch=hatch,
                    edgecolor="#606060",
                    linewidth=0.5 * (len(memory.live) <= OUTLINED),
                    label=kind,
                )
            )
    if len(drawn) > NUMBERED:
        return
    for number in drawn:
        wide = (high[number] - low[number]) / len(memory.live)
        tall = memory.bytes[number] / max(memory.planned, 1)
        if wide >= ROOM[0] and tall >= ROOM[1]:
            ax.text(
                (low[number] + high[number]) / 2,
                (bottom[number] + top[number]) / 2,
                str(number),
                ha="center",
                va="center",
                fontsize=8,
                bbox={"facecolor": KINDS[memory.kinds[number]][0], "edgecolor": "none", "pad": 1},
            )
