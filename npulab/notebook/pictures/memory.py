"""The memory of a model as a picture: from which to which operator each tensor lives, at which
bytes of the memory block it lies, and the live bytes at each operator.
"""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, MultipleLocator

from npulab.models import Memory
from npulab.models.listing import memory_text
from npulab.notebook.pictures.picture import WRONG, Picture, canvas, legend, open_frame

LINE = 120  # the most characters in a line of the title
NUMBERED = 40  # at most this many bars have the numbers of their tensors
ROOM = (0.03, 0.035)  # a bar below these shares of the picture's width or height has no number
OUTLINED = 800  # with at most this many operators, bars have full outlines
TICKS = 6  # the axis of bytes has about this many marks, a power of two apart
# The colour and the pattern of a bar for each kind of tensor: the colour is light enough for black
# text, the pattern is for readers who cannot tell the colours apart.
KINDS = {
    "input": ("#f6c667", "//"),
    "output": ("#a5d6a0", "\\\\"),
    "intermediate": ("#8fc1e3", ""),
    "state": ("#e9a9bf", ".."),
}


def memory_picture(memory: Memory) -> Picture:
    """Draw tensors as bars, from the first to the last operator of their life, at the bytes of the
    block where the planner put them; below, the live bytes at each operator.

    The peak is marked in both drawings, and a line marks the block's size; a bar has the number of
    its tensor if there is room. Constants are counted in the sentence, not drawn. Raises ValueError
    if the argument is not the memory of a model.
    """
    if not isinstance(memory, Memory):
        raise ValueError(
            f"memory: got {type(memory).__name__}, allowed is a Memory, as model_memory gives"
        )
    drawn = np.flatnonzero((memory.offsets >= 0) & (memory.bytes > 0))
    count = len(memory.live)
    with canvas((9.6, 5.6), 2, 1, sharex=True, height_ratios=(3, 1)) as (figure, (above, below)):
        above.set_xlim(-0.5, count - 0.5)
        above.set_ylim(0, max(memory.planned, 1) * 1.04)
        patches = _bars(above, memory, drawn)
        if len(drawn) <= NUMBERED:
            _number(above, memory, drawn)
        above.axhline(memory.planned, color="black", linewidth=0.8, linestyle="--")
        above.set_ylabel("place in the block")
        _live(below, memory)
        for ax in (above, below):
            ax.axvline(memory.at, color=WRONG, linewidth=0.8, linestyle=":")
            open_frame(ax)
            ax.yaxis.set_major_formatter(lambda value, _: memory_text(max(round(value), 0)))
            _, top = ax.get_ylim()
            tick = 2 ** max(round(top) // TICKS, 1).bit_length()
            ax.yaxis.set_major_locator(MultipleLocator(tick))
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        if patches:
            legend(figure, patches)
        figure.suptitle(textwrap.fill(memory.text, LINE))
    return Picture(memory.text, figure)


def _bars(ax: Any, memory: Memory, drawn: np.ndarray) -> list[Patch]:
    """Draw a bar for each tensor, and return a patch of the legend for each kind of tensor."""
    low = memory.first - 0.5
    high = memory.last + 0.5
    bottom = memory.offsets
    top = memory.offsets + memory.bytes
    corners = np.array([[low, bottom], [low, top], [high, top], [high, bottom]], float)
    corners = corners.transpose(2, 0, 1)  # the axes are now tensor, corner, x or y
    kinds = np.asarray(memory.kinds)
    outline = 0.0
    if len(memory.live) <= OUTLINED:
        outline = 0.5
    patches = []
    for kind, (colour, hatch) in KINDS.items():
        chosen = drawn[kinds[drawn] == kind]
        if len(chosen):
            look: Any = {"facecolor": colour, "hatch": hatch, "edgecolor": "#606060", "label": kind}
            ax.add_collection(PolyCollection([*corners[chosen]], linewidth=outline, **look))
            patches.append(Patch(**look))
    return patches


def _number(ax: Any, memory: Memory, drawn: np.ndarray) -> None:
    for number in drawn:
        lives = memory.last[number] - memory.first[number] + 1
        size = memory.bytes[number]
        across, up = ROOM
        if lives < across * len(memory.live) or size < up * max(memory.planned, 1):
            continue
        x = (memory.first[number] + memory.last[number]) / 2
        y = memory.offsets[number] + size / 2
        colour, _ = KINDS[memory.kinds[number]]
        box = {"facecolor": colour, "edgecolor": "none", "pad": 1}
        ax.text(x, y, str(number), ha="center", va="center", fontsize=8, bbox=box)


def _live(ax: Any, memory: Memory) -> None:
    """Draw the live bytes at each operator, with the peak."""
    count = len(memory.live)
    outline = 0.8
    if count > OUTLINED:
        outline = 0.1
    edges = np.arange(count + 1) - 0.5
    ax.stairs(memory.live, edges, fill=True, color="#c8c8c8")
    ax.stairs(memory.live, edges, color="black", linewidth=outline)
    ax.set_ylim(0, max(memory.peak, 1) * 1.35)
    ax.set_ylabel("live")
    ax.set_xlabel("operator")
    ax.plot([memory.at], [memory.peak], "v", color=WRONG, markersize=6)
    # the label of the peak lies on the side of its mark with more room
    offset = -6
    side = "right"
    if memory.at < count / 2:
        offset = 6
        side = "left"
    ax.annotate(
        f"peak {memory_text(memory.peak)} at {memory.at}",
        (memory.at, memory.peak),
        xytext=(offset, 2),
        textcoords="offset points",
        ha=side,
        va="bottom",
    )
