"""A figure drawn for a dark page: paper, ink and greys change places, colours that mean something
stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

PAPER, INK = 0.067, 0.93  # the greys of white and of black
NEUTRAL = 0.06  # how far apart the channels of a grey are, at most
LIGHT = 0.85  # from which on a colour of a map is paper
# luminance of red, green, blue, and where black letters are read better than white ones
LUMINANCE, BRIGHT = np.array([0.299, 0.587, 0.114]), 0.55
BOTH = np.linspace(0, 1, 17)


def swapped(colour: Any) -> tuple[float, float, float, float]:
    """A grey as light as it was dark; a colour as it is.

    >>> [round(channel, 2) for channel in swapped("white")]
    [0.07, 0.07, 0.07, 1.0]
    >>> swapped("#c4501b") == to_rgba("#c4501b")
    True
    """
    red, green, blue, alpha = to_rgba(colour)
    if max(red, green, blue) - min(red, green, blue) > NEUTRAL:
        return red, green, blue, alpha
    grey = INK + (PAPER - INK) * (red + green + blue) / 3
    return grey, grey, grey, alpha


@contextmanager
def darkened(figure: Figure) -> Iterator[None]:
    """The figure for a dark page, as it was when this ends."""
    undo: list[tuple[Callable[[Any], Any], Any]] = []

    def put(artist: Any, name: str, change: Callable[[Any], Any] = swapped) -> None:
        setter, value = getattr(artist, f"set_{name}"), getattr(artist, f"get_{name}")()
        undo.append((setter, value))
        setter(change(value))

    put(figure.patch, "facecolor")
    inside = {text for ax in figure.axes for text in ax.texts}
    for ax in figure.axes:
        _axes(ax, put)
    for text in figure.findobj(Text):
        if text not in inside:
            put(text, "color")
    legends: list[Any] = [*figure.legends, *filter(None, (ax.get_legend() for ax in figure.axes))]
    for legend in legends:
        for part in ("facecolor", "edgecolor"):
            put(legend.get_frame(), part)
        for handle in legend.get_patches():
            put(handle, "edgecolor")
            put(handle, "facecolor", _paper_swapped)
    try:
        yield
    finally:
        for setter, value in reversed(undo):
            setter(value)


def _axes(ax: Any, put: Callable[..., None]) -> None:
    put(ax.patch, "facecolor")
    for spine in ax.spines.values():
        put(spine, "edgecolor")
    for line in (
        *ax.xaxis.get_ticklines(),
        *ax.yaxis.get_ticklines(),
        *ax.xaxis.get_ticklines(minor=True),
    ):
        put(line, "color")
    light = [image for image in ax.images if image.get_array().ndim == 3 or _is_light(image.cmap)]
    for image in ax.images:
        if image.get_array().ndim == 2:
            put(image, "cmap", _on_dark)
        else:
            put(image, "array", _paper_swapped)
    if not ax.images or light:
        for artist in (*ax.lines, *ax.patches, *ax.collections):
            _drawn(artist, put)
    for text in ax.texts:
        _text(ax, text, put)


def _drawn(artist: Any, put: Callable[..., None]) -> None:
    """Lines, bars and marks on paper."""
    # a colour bar's: its image changes it
    scaled = getattr(artist, "get_array", lambda: None)() is not None
    if artist.get_gid() == "on colour" or scaled:
        return
    if isinstance(artist, Line2D):
        put(artist, "color")
    elif hasattr(artist, "get_hatch"):
        put(artist, "edgecolor", _several)


def _several(colours: Any) -> Any:
    if np.ndim(colours) == 2:
        return [swapped(colour) for colour in colours]
    return swapped(colours)


def _text(ax: Any, text: Text, put: Callable[..., None]) -> None:
    """Letters on a coloured box stay; those in a cell are read on the colour that it has now."""
    box = text.get_bbox_patch()
    if box is not None and swapped(box.get_facecolor()) == tuple(box.get_facecolor()):
        return
    if box is not None:
        put(box, "facecolor")
    if not ax.images:
        put(text, "color")
        return
    image = ax.images[0]
    values = image.get_array()
    column, row = (int(np.floor(place + 0.5)) for place in text.get_position())
    if values.ndim == 2 and 0 <= row < values.shape[0] and 0 <= column < values.shape[1]:
        colour = np.array(image.cmap(image.norm(values[row, column])))[:3]
        put(text, "color", lambda _: "black" if colour @ LUMINANCE > BRIGHT else "white")


def _is_light(cmap: Any) -> bool:
    """Whether paper is at the low end of a colour map or in its middle."""
    return any(min(cmap(place)[:3]) > LIGHT for place in (0.0, 0.5))


def _on_dark(cmap: Any) -> Any:
    """A colour map whose paper is dark: one end of it, or its middle."""
    colours = np.array([to_rgba(cmap(place)) for place in BOTH])
    if cmap.get_bad()[3]:
        bad = swapped(cmap.get_bad())
    else:
        bad = cmap.get_bad()
    paper = np.array(swapped("white"))
    if min(colours[0, :3]) > LIGHT:
        chosen = [paper + (colours[-4] * 1.15 - paper) * share for share in BOTH]
    elif _is_light(cmap):
        ends = colours[3], colours[-4]
        chosen = [
            paper + (ends[int(place > 0.5)] * 1.1 - paper) * abs(2 * place - 1) for place in BOTH
        ]
    else:
        return cmap.with_extremes(bad=bad)
    return LinearSegmentedColormap.from_list(cmap.name, np.clip(chosen, 0, 1)).with_extremes(
        bad=bad
    )


def _paper_swapped(colours: Any) -> Any:
    """Colours ``(..., 3 or 4)`` whose white, and what is nearly white, is paper; other greys have
    letters on them."""
    out = np.array(colours, float)
    light = (out[..., :3] > 0.9).all(-1)
    out[light, :3] = INK + (PAPER - INK) * out[light, :3]
    return out
