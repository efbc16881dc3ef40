"""Captures, by the name that folders of third parties import.

``npulab.captures.capture`` is loaded when one of its names is used.
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(importlib.import_module("npulab.captures.capture"), name)
