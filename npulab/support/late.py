"""Libraries that take long to load, under their usual names: each is loaded when it is first used,
so that ``import npulab`` is quick."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["pd"]


class Late:
    """A stand-in for a module, which is loaded when one of its names is used.

    >>> Late("math").factorial(3)
    6
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._module), name)


if TYPE_CHECKING:
    import pandas as pd
else:
    pd = Late("pandas")
