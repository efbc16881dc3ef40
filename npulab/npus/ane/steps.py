"""What one task of H13 does, and what versions of the compiler do differently about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from types import SimpleNamespace

from npulab.npus.ane.facts import ENGINES, HERE
from npulab.npus.ane.memory import Surface
from npulab.registers.table import read_table

CONVOLUTION, BYPASS, PLANAR = "convolution", "bypass", "planar"


# what each version of the compiler does differently, by the names of ``compilers.csv``
Habits = SimpleNamespace
HABITS = {compiler: Habits(**{row["habit"]: int(row["value"], 0) for row in rows})
          for compiler, rows in groupby(read_table(HERE / "compilers.csv"), itemgetter("compiler"))}
USUAL = "4.2.1"


@dataclass(frozen=True)
class Step:
    """What one task does: ``engine`` of ``sources`` (one or two) into ``result``.

    ``bars`` are the base addresses of the sources, ``target`` that of the result, which begins
    ``offset`` bytes behind it and is a part of ``whole``.  ``kernel`` and ``stride`` are (h, w),
    ``pads`` what lies above and to the left. ``engines`` are (offset, bytes) of each coefficient
    buffer, ``lanes`` the channels of a plane.  ``fields`` are raw values of fields that the
    arithmetic sets.
    """

    engine: str
    sources: tuple[Surface, ...]
    bars: tuple[int, ...]
    result: Surface
    target: int
    offset: int = 0
    whole: Surface | None = None
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int] = (0, 0)
    engines: tuple[tuple[int, int], ...] = ()
    lanes: int = 1
    sparse: bool = False
    small: bool = False
    unicast: bool = False
    groups: int = 1
    table: bool = False
    exact: bool = False  # of a table that DebugLogEvents tells apart
    fields: Mapping[str, int] = field(default_factory=dict)

    @property
    def planar(self) -> bool:
        return self.engine == PLANAR

    @property
    def active(self) -> int:
        """Engines that work: as many as a group has channels, up to all of them."""
        return min(ENGINES, self.result.channels // self.groups)
