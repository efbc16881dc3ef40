"""The colours of a figure for pages that are not white; colours with a meaning stay.

On a dark page, light greys become dark and dark greys light. On a page that may be light or dark,
white becomes transparent and black grey.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

PAPER, INK = 0.067, 0.93  # the greys that replace white and black on a dark page
MIDDLE = 0.475  # This grey has the contrast 4.35 with white and with PAPER.
NEUTRAL = 0.06  # a colour is a grey if its channels differ by at most this
LIGHT = 0.85  # a colour map's colour is paper if each channel is above this
# The weights of red, green and blue in the luminance of a colour.
LUMINANCE = np.array([0.299, 0.587, 0.114])
BRIGHT = 0.55  # letters on a colour of more luminance than this are black
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


def cleared(colour: Any) -> tuple[float, float, float, float]:
    """Return the colour to use on a page that may be light or dark: black becomes the grey
    ``MIDDLE``, lighter greys become transparent in part and white as a whole, any other colour
    stays.

    >>> cleared("white")[3], cleared("black") == (MIDDLE, MIDDLE, MIDDLE, 1.0)
    (0.0, True)
    """
    red, green, blue, alpha = to_rgba(colour)
    if max(red, green, blue) - min(red, green, blue) > NEUTRAL:
        return red, green, blue, alpha
    return MIDDLE, MIDDLE, MIDDLE, alpha * (1 - (red + green + blue) / 3)


def ink_on(colour: Any) -> str:
    """Return ``"black"`` or ``"white"``: the letters that can be read on a colour of three or four
    channels from 0 to 1.

    >>> ink_on(to_rgba("yellow")), ink_on(to_rgba("navy"))
    ('black', 'white')
    """
    if np.asarray(colour)[:3] @ LUMINANCE > BRIGHT:
        return "black"
    return "white"


@dataclass(frozen=True)
class Page:
    """The functions that change a figure's colours for a page: ``grey`` changes a single colour,
    ``map`` a colour map, ``lettered_map`` the colour map of an image with letters in its cells,
    ``colours`` an array of colours ``(..., 3 or 4)``.
    """

    grey: Callable[[Any], Any]
    map: Callable[[Any], Any]
    lettered_map: Callable[[Any], Any]
    colours: Callable[[Any], Any]


def darkened(figure: Figure) -> AbstractContextManager[None]:
    """Change the figure for a dark page; restore it when the context ends."""
    return _changed(figure, DARK)


def on_any_page(figure: Figure) -> AbstractContextManager[None]:
    """Change the figure for a page that may be light or dark; restore it when the context ends."""
    return _changed(figure, ANY)


@contextmanager
def _changed(figure: Figure, page: Page) -> Iterator[None]:
    undo: list[tuple[Callable[[Any], Any], Any]] = []

    def put(artist: Any, name: str, change: Callable[[Any], Any] = page.grey) -> None:
        setter = getattr(artist, f"set_{name}")
        value = getattr(artist, f"get_{name}")()
        undo.append((setter, value))
        setter(change(value))

    put(figure.patch, "facecolor")
    in_axes: set[Text] = set()
    legends: list[Any] = [*figure.legends]
    for ax in figure.axes:
        _axes(ax, put, page)
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
            put(handle, "facecolor", page.colours)
    try:
        yield
    finally:
        for setter, value in reversed(undo):
            setter(value)


def _axes(ax: Any, put: Callable[..., None], page: Page) -> None:
    put(ax.patch, "facecolor")
    for spine in ax.spines.values():
        put(spine, "edgecolor")
    x_lines = *ax.xaxis.get_ticklines(), *ax.xaxis.get_ticklines(minor=True)
    for line in (*x_lines, *ax.yaxis.get_ticklines()):
        put(line, "color")
    light = [image for image in ax.images if image.get_array().ndim == 3 or _is_light(image.cmap)]
    change_map = page.map
    if ax.texts:
        change_map = page.lettered_map
    for image in ax.images:
        if image.get_array().ndim == 2:
            put(image, "cmap", change_map)
        else:
            put(image, "array", page.colours)
    if not ax.images or light:
        for artist in (*ax.lines, *ax.patches, *ax.collections):
            _drawn(artist, put, page.grey)
    for text in ax.texts:
        _change_text(ax, text, put)


def _drawn(artist: Any, put: Callable[..., None], grey: Callable[[Any], Any]) -> None:
    """Change the colours of a line, a bar or marks that are drawn on paper; marks that are drawn on
    a coloured cell keep their colours.
    """
    # an artist that shows values has its colours from a colour map
    scaled = getattr(artist, "get_array", lambda: None)() is not None
    if artist.get_gid() == "on colour" or scaled:
        return
    if isinstance(artist, Line2D):
        put(artist, "color")
    elif hasattr(artist, "get_hatch"):
        put(artist, "edgecolor", partial(_several, grey))


def _several(grey: Callable[[Any], Any], colours: Any) -> Any:
    if np.ndim(colours) == 2:
        return [grey(colour) for colour in colours]
    return grey(colours)


def _change_text(ax: Any, text: Text, put: Callable[..., None]) -> None:
    """Change the colour of a text on paper or in a cell of an image; a text on a box of another
    colour keeps its colour.
    """
    box: Any = text.get_bbox_patch()
    if box is not None:
        if min(box.get_facecolor()[:3]) <= LIGHT + NEUTRAL:
            return
        put(box, "facecolor")
        put(box, "alpha", lambda _: None)  # the new face colour has an alpha of its own
    if not ax.images:
        put(text, "color")
        return
    image = ax.images[0]
    values = image.get_array()
    left, right, bottom, top = image.get_extent()
    x, y = text.get_position()
    column = int(np.floor((x - left) / (right - left) * values.shape[1]))
    row = int(np.floor((y - top) / (bottom - top) * values.shape[0]))
    if not (0 <= row < values.shape[0] and 0 <= column < values.shape[1]):
        return
    colour = values[row, column]
    if values.ndim == 2:
        colour = image.cmap(image.norm(colour))
    if len(colour) == 4 and colour[3] < 0.5:
        put(text, "color", lambda _: (MIDDLE, MIDDLE, MIDDLE))
    elif values.ndim == 2:
        put(text, "color", lambda _: ink_on(colour))


def _is_light(cmap: Any) -> bool:
    """True if a colour map has paper (nearly white) at its low end or in its middle."""
    return any(min(cmap(place)[:3]) > LIGHT for place in (0.0, 0.5))


def _on_dark(cmap: Any) -> Any:
    """Return the colour map with dark paper in place of white at its low end or in its middle."""
    bad = cmap.get_bad()
    if bad[3]:
        bad = swapped(bad)
    if not _is_light(cmap):
        return cmap.with_extremes(bad=bad)
    colours = cmap(BOTH)
    # the fourth colour from an end, as the end itself is too dark for a dark page
    ink = colours[-4] * 1.15
    shares = BOTH[:, None]
    if min(colours[0, :3]) <= LIGHT:  # the map has white in its middle
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


def _cleared_map(cmap: Any) -> Any:
    """Return a colour map that looks the same on a white page; if it has white in it, its light
    colours become transparent, so that a page of another colour shows through.
    """
    chosen = cmap(np.arange(cmap.N))
    if _is_light(cmap):
        chosen = _without_white(chosen)
    return _map_of(cmap, chosen)


def _paper_cleared_map(cmap: Any) -> Any:
    return _map_of(cmap, _paper_cleared(cmap(np.arange(cmap.N))))


def _map_of(cmap: Any, colours: Any) -> Any:
    return ListedColormap(colours, cmap.name).with_extremes(bad=cleared(cmap.get_bad()))


def _paper_cleared(colours: Any) -> Any:
    """Return an array of colours ``(..., 4)`` in which white and nearly white are transparent."""
    given = np.asarray(colours, float)
    out = np.ones((*given.shape[:-1], 4))
    out[..., : given.shape[-1]] = given
    light = (out[..., :3] > 0.9).all(-1)
    out[light] = _without_white(out[light])
    return out


def _without_white(colours: Any) -> Any:
    """Return colours ``(..., 4)`` that are as transparent as possible, and that look like the given
    colours on a white page.
    """
    given = np.asarray(colours, float)[..., :3]
    alpha = 1 - given.min(-1, keepdims=True)
    shares = 1 - (1 - given) / np.maximum(alpha, 1e-9)
    return np.concatenate([shares.clip(0, 1), alpha], -1)


DARK = Page(swapped, _on_dark, _on_dark, _paper_swapped)
ANY = Page(cleared, _cleared_map, _paper_cleared_map, _paper_cleared)
