"""A figure for a dark page: paper, ink and greys change places; colours with a meaning stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

PAPER, INK = 0.067, 0.93  # on a dark page, greys that replace white and black
NEUTRAL = 0.06  # a colour is a grey if its channels differ by at most this
LIGHT = 0.85  # a colour of a colour map is paper if all its channels are above this
# the weights of red, green and blue in the luminance of a colour
LUMINANCE = np.array([0.299, 0.587, 0.114])
BRIGHT = 0.55  # letters are black on a colour of more luminance than this, else white
BOTH = np.linspace(0, 1, 17)


def swapped(colour: Any) -> tuple[float, float, float, float]:
    """Return the colour to use on a dark page, as red, green, blue and alpha from 0 to 1: a light
    grey becomes dark and a dark grey light, any other colour stays.

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


def ink_on(colour: Any) -> str:
    """Return ``"black"`` or ``"white"``: the letters that can be read on a colour of three or four
    channels from 0 to 1.

    >>> ink_on(to_rgba("yellow")), ink_on(to_rgba("navy"))
    ('black', 'white')
    """
    if np.asarray(colour)[:3] @ LUMINANCE > BRIGHT:
        return "black"
    return "white"


@contextmanager
def darkened(figure: Figure) -> Iterator[None]:
    """Change the figure for a dark page; restore it when the context ends."""
    undo: list[tuple[Callable[[Any], Any], Any]] = []

    def put(artist: Any, name: str, change: Callable[[Any], Any] = swapped) -> None:
        setter = getattr(artist, f"set_{name}")
        value = getattr(artist, f"get_{name}")()
        undo.append((setter, value))
        setter(change(value))

    put(figure.patch, "facecolor")
    in_axes: set[Text] = set()
    legends: list[Any] = [*figure.legends]
    for ax in figure.axes:
        _axes(ax, put)
        in_axes.update(ax.texts)
        if ax.get_legend():
            legends.append(ax.get_legend())
    for text in figure.findobj(Text):
        if text not in in_axes:
            put(text, "color")
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
    x_lines = *ax.xaxis.get_ticklines(), *ax.xaxis.get_ticklines(minor=True)
    for line in (*x_lines, *ax.yaxis.get_ticklines()):
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
        _change_text(ax, text, put)


def _drawn(artist: Any, put: Callable[..., None]) -> None:
    """Change the colours of a line, a bar or marks that are drawn on paper; marks that are drawn on
    a coloured cell keep their colours.
    """
    # an artist that shows values, such as a colour bar, follows its colour map
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


def _change_text(ax: Any, text: Text, put: Callable[..., None]) -> None:
    """Change the colour of a text on paper or in a cell of an image; a text on a coloured box keeps
    its colour.
    """
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
    column, row = np.floor(np.add(text.get_position(), 0.5)).astype(int)
    if values.ndim == 2 and 0 <= row < values.shape[0] and 0 <= column < values.shape[1]:
        colour = image.cmap(image.norm(values[row, column]))
        put(text, "color", lambda _: ink_on(colour))


def _is_light(cmap: Any) -> bool:
    """True if a colour map has paper (nearly white) at its low end or in its middle."""
    return any(min(cmap(place)[:3]) > LIGHT for place in (0.0, 0.5))


def _on_dark(cmap: Any) -> Any:
    """Return the colour map with dark paper at its low end or in its middle, where it had white."""
    bad = cmap.get_bad()
    if bad[3]:
        bad = swapped(bad)
    if not _is_light(cmap):
        return cmap.with_extremes(bad=bad)
    colours = cmap(BOTH)
    # the fourth of the 17 colours from an end: the end itself is too dark for a dark page
    ink = colours[-4] * 1.15
    shares = BOTH[:, None]
    if min(colours[0, :3]) <= LIGHT:  # paper is in the middle
        ink = np.where(shares > 0.5, colours[-4], colours[3]) * 1.1
        shares = np.abs(2 * shares - 1)
    paper = np.array(swapped("white"))
    chosen = np.clip(paper + (ink - paper) * shares, 0, 1)
    return LinearSegmentedColormap.from_list(cmap.name, chosen).with_extremes(bad=bad)


def _paper_swapped(colours: Any) -> Any:
    """Return an array of colours ``(..., 3 or 4)`` in which dark paper replaces white and nearly
    white.

    Darker greys stay, because black letters are written on them.
    """
    out = np.array(colours, float)
    light = (out[..., :3] > 0.9).all(-1)
    out[light, :3] = INK + (PAPER - INK) * out[light, :3]
    return out
