"""A function drawn with what approximates it, and the error below."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

from npulab.notebook.pictures.picture import RIGHT, WRONG, Picture, canvas

DOTTED = 64  # points up to which each is drawn as a dot
LINE = 110  # characters of a line of the title


def function_error(x: Any, y: Any, true: Any, name: str = "") -> Picture:
    """Above, the true values and the approximation ``y`` over ``x``; below, ``y - true`` with its
    largest marked.

    All three are numbers of one shape, in any order.  What is not finite in x or in both y and true
    is left out; where only one of those two is finite, it is counted and not drawn. Raises
    ValueError for other shapes, and where nothing is left to draw.
    """
    x, y, true = (np.asarray(values, np.float64) for values in (x, y, true))
    if not x.shape == y.shape == true.shape:
        raise ValueError(
            f"function_error: got x {x.shape}, y {y.shape} and true {true.shape}, allowed is one "
            "shape"
        )
    order = np.argsort(x, axis=None, kind="stable")
    x, y, true = x.ravel()[order], y.ravel()[order], true.ravel()[order]
    both = np.isfinite(x) & np.isfinite(y) & np.isfinite(true)
    lost = int(np.count_nonzero(np.isfinite(x) & (np.isfinite(y) != np.isfinite(true))))
    x, y, true = x[both], y[both], true[both]
    if not len(x):
        raise ValueError(
            "function_error: got no x where y and true are finite, allowed is at least one"
        )
    error = y - true
    worst = int(np.argmax(np.abs(error)))
    text = (
        f"{name}{': ' if name else ''}{len(x)} inputs from {x[0]:g} to {x[-1]:g}, largest error "
        f"{error[worst]:.4g} "
        f"at x = {x[worst]:.6g} ({y[worst]:.6g}, true {true[worst]:.6g})"
        f"{f'; at {lost} more only one of the two is finite' if lost else ''}"
    )
    dots = {}
    if len(x) <= DOTTED:
        dots = {"marker": ".", "markersize": 4}
    with canvas((7.6, 4.8), 2, 1, sharex=True, height_ratios=(3, 2)) as (figure, (above, below)):
        above.plot(x, true, color=RIGHT, linewidth=2.5, alpha=0.6, label="true")
        above.plot(x, y, color=WRONG, linewidth=0.9, label="approximation", **dots)
        above.legend(frameon=False)
        below.plot(x, error, color=WRONG, linewidth=0.9, **dots)
        below.plot(x[worst], error[worst], "o", color="black", markersize=5, fillstyle="none")
        below.axhline(0, color=RIGHT, linewidth=0.8)
        left = x[worst] < (x[0] + x[-1]) / 2
        below.annotate(
            f"{error[worst]:.4g} at {x[worst]:.6g}",
            (x[worst], error[worst]),
            xytext=(7 if left else -7, 0),
            textcoords="offset points",
            va="center",
            ha="left" if left else "right",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )
        below.margins(y=0.2)
        below.set_xlabel("x")
        below.set_ylabel("approximation - true")
        for ax in (above, below):
            ax.spines[["right", "top"]].set_visible(False)
        figure.suptitle(textwrap.fill(text, LINE))
    return Picture(text, figure)
