"""A law and the captures that contradict it, over the number of captures looked at."""

from __future__ import annotations

from typing import Any

import numpy as np

from npulab.notebook.pictures.picture import RIGHT, WRONG, Picture, canvas, open_frame
from npulab.support.refuse import refuse_if
from npulab.support.text import plural


def disproof(numbers: Any, captures: int, searched: int, law: str, note: str = "") -> Picture:
    """Draw how many captures contradict a law, over the number of captures looked at, in their
    order.

    ``numbers`` ``(N,)`` are the captures that contradict it, counted from 0, in any order;
    ``captures`` is the number of all captures looked at. A dashed line is drawn at ``searched``,
    the number of captures that the law was found from. ``note``, such as "simulated", stands behind
    the law. Raises ValueError for a number
    outside 0 to ``captures-1``, and for fewer than two captures.

    >>> disproof([640, 577], 100_000, 400, "ceil(input_h / stride)")
    ceil(input_h / stride): 2 captures of 100000 contradict it, first the capture 577
    """
    refuse_if(captures < 2, "captures", captures, "is 2 or more")
    wrong = np.unique(np.asarray(numbers, np.int64))
    outside = wrong[(wrong < 0) | (wrong >= captures)]
    refuse_if(len(outside), "numbers", outside[:1].tolist(), f"are 0 to {captures - 1}")
    count = len(wrong)
    name = law
    if note:
        name += f" ({note})"
    verb = "contradict"
    if count == 1:
        verb = "contradicts"
    text = f"{name}: no capture of {captures} contradicts it"
    if count:
        text = f"{name}: {plural(count, 'capture')} of {captures} {verb} it"
        text += f", first the capture {wrong[0]}"
    # the line rises behind each capture that contradicts the law, and goes on to the last capture
    looked_at = [0, *wrong + 1, captures]
    seen = [*range(count + 1), count]
    with canvas((7.6, 2.6)) as (figure, ax):
        ax.step(looked_at, seen, where="post", color=WRONG)
        ax.axvline(searched, color=RIGHT, linestyle="--", label=f"the search had {searched}")
        ax.legend(loc="upper left")
        ax.set_xscale("symlog", linthresh=10)
        ax.set_xlim(1, captures)
        ax.set_ylim(0, max(1.05 * count, 1))
        ax.set_xlabel("captures looked at")
        ax.set_ylabel("contradict the law")
        open_frame(ax)
        ax.set_title(text)
    return Picture(text, figure)
