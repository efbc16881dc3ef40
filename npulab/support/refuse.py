"""Refusals in one form: what it is, got, allowed."""

from __future__ import annotations

import math
from typing import Any


def positive(name: str, given: Any) -> float:
    """A number above 0 that is finite; raises ValueError naming it for another."""
    try:
        number = float(given)
    except (TypeError, ValueError):
        number = math.nan
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"{name}: got {given!r}, allowed is a positive finite number")
    return number
