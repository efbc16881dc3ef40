"""A function, its approximation, and the error between the two."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

from npulab.notebook.pictures.picture import RIGHT, WRONG, Picture, canvas, open_frame

DOTTED = 64  # at most this many points are drawn with dots
LINE = 110  # the most characters in a line of the title


def function_error(x: Any, y: Any, true: Any, name: str = "") -> Picture:
    """Draw a function and its approximation: above, the true values and ``y`` over ``x``; below,
    the error ``y - true`` with its largest value marked.

    The three arrays have one shape; points may come in any order. A point is drawn if x, y and
    true are finite there; points where only one of y and true is finite are counted in the title.
    Raises ValueError for different shapes, and if no point can be drawn.
    """
    points = _finite_points(x, y, true)
    x = points.x
    y = points.y
    true = points.true
    error = y - true
    worst = int(np.argmax(np.abs(error)))
    at = x[worst]
    most = error[worst]
    first = x[0]
    last = x[-1]
    text = f"{len(x)} inputs from {first:g} to {last:g}, largest error {most:.4g}"
    text += f" at x = {at:.6g} ({y[worst]:.6g}, true {true[worst]:.6g})"
    if name:
        text = f"{name}: {text}"
    if points.lost:
        text += f"; at {points.lost} more only one of the two is finite"
    thin = {"color": WRONG, "linewidth": 0.9}
    if len(x) <= DOTTED:
        thin |= {"marker": ".", "markersize": 4}
    with canvas((7.6, 4.8), 2, 1, sharex=True, height_ratios=(3, 2)) as (figure, (above, below)):
        above.plot(x, true, color=RIGHT, linewidth=2.5, alpha=0.6, label="true")
        above.plot(x, y, label="approximation", **thin)
        above.legend()
        below.plot(x, error, **thin)
        below.plot(at, most, "o", color="black", markersize=5, fillstyle="none")
        below.axhline(0, color=RIGHT, linewidth=0.8)
        # the label of the largest error lies on the side of its point with more room
        offset = 7
        side = "left"
        if at >= (first + last) / 2:
            offset = -7
            side = "right"
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
        below.annotate(
            f"{most:.4g} at {at:.6g}",
            (at, most),
            xytext=(offset, 0),
            textcoords="offset points",
            va="center",
            ha=side,
            bbox=box,
        )
        below.margins(y=0.2)
        below.set_xlabel("x")
        below.set_ylabel("approximation - true")
        for ax in (above, below):
            open_frame(ax)
        figure.suptitle(textwrap.fill(text, LINE))
    return Picture(text, figure)


@dataclass(frozen=True)
class _Points:
    """Finite points sorted by x, and (``lost``) the number of points where only one of y and true
    is finite.
    """

    x: ndarray
    y: ndarray
    true: ndarray
    lost: int


def _finite_points(x: Any, y: Any, true: Any) -> _Points:
    x = np.asarray(x, np.float64)
    y = np.asarray(y, np.float64)
    true = np.asarray(true, np.float64)
    if not x.shape == y.shape == true.shape:
        got = f"x {x.shape}, y {y.shape} and true {true.shape}"
        raise ValueError(f"function_error: got {got}, allowed are three arrays of one shape")
    order = np.argsort(x, axis=None, kind="stable")
    points = np.stack([x, y, true]).reshape(3, -1)[:, order]
    x_finite, y_finite, true_finite = np.isfinite(points)
    lost = int(np.count_nonzero(x_finite & (y_finite != true_finite)))
    x, y, true = points[:, x_finite & y_finite & true_finite]
    if not len(x):
        raise ValueError(
            "function_error: got no x where y and true are finite, allowed is at least one"
        )
    return _Points(x, y, true, lost)
