"""What one task of H13 does, and what versions of the compiler do differently about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from npulab.npus.ane.facts import ENGINES
from npulab.npus.ane.memory import UNIT, Surface

CONVOLUTION, BYPASS, PLANAR = "convolution", "bypass", "planar"


class Habits(NamedTuple):
    """What compilers do differently without changing the result."""

    events: int = 0x42A
    cycles: bool = True  # say how long a task takes
    group_strides: bool = True
    aux_bytes: int = UNIT
    compact: bool = True  # tasks without coefficients leave out the places of them
    planar_kernel: bool = True  # the kernel's registers are set in planar tasks too
    planar_fill: bool = True  # fill bits of the output, in planar tasks too
    table_format: bool = True  # the format and binary point of coefficients are set without them, and for tables
    result_in_l2: bool = False  # a small convolution's result lies in L2 before it is written
    double_buffer: bool = False
    shapes: str = "any"
    sorted_names: bool = True  # BARs in the order of the tensors' names, else the output's first
    reversed_inputs: bool = False
    subtracts: bool = True


HABITS = {
    "4.2.1": Habits(0x422, False, False, 0, False, False, False, False, True, True, "fixed", False, True, False),
    "5.4.1": Habits(0x422, True, True, 0, False, False, True, True, True, True, "fixed", False, False, False),
    "9.x": Habits(),
}
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
