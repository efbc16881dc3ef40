"""Register maps, by the name that folders of third parties import.

A module of ``npulab.registers`` is loaded when one of its names is used.
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if not name.startswith("__"):
        for module in ("map", "table", "fields", "meaning", "commands"):
            loaded = importlib.import_module(f"npulab.registers.{module}")
            if hasattr(loaded, name):
                return getattr(loaded, name)
    raise AttributeError(f"module 'npulab.bits' has no attribute {name!r}")
