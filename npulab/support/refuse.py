"""Refusals in one form: what it is, got, allowed."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, TypeVar

Name = TypeVar("Name")


def positive(name: str, given: Any) -> float:
    """A number above 0 that is finite; raises ValueError naming it for another."""
    try:
        number = float(given)
    except (TypeError, ValueError):
        number = math.nan
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"{name}: got {given!r}, allowed is a positive finite number")
    return number


def one_of(name: str, given: Name, allowed: Collection[str]) -> Name:
    """One of some words; raises LookupError naming it and them for another.

    >>> one_of("unit", "NPU", ("NPU", "CPU"))
    'NPU'
    """
    if given not in allowed:
        raise LookupError(f"{name}: got {given!r}, allowed is one of {', '.join(allowed)}")
    return given
