"""What a target states, by the name that folders of third parties import.

``npulab.captures.target`` is loaded when one of its names is used.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

# Names until November 2026; they stay until November 2027, with a warning.
_RENAMED = {"Unanswerable": "Unsupported"}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _RENAMED:
        warnings.warn(
            f"npulab.target.{name} is now npulab.target.{_RENAMED[name]}",
            DeprecationWarning,
            stacklevel=2,
        )
        name = _RENAMED[name]
    return getattr(importlib.import_module("npulab.captures.target"), name)
