"""Register maps, by the name that folders of third parties import: ``npulab.registers.map``, loaded when used."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(importlib.import_module("npulab.registers.map"), name)
