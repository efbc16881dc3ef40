"""npulab: a workbench for people who find out how an undocumented NPU works.

>>> import npulab
>>> "vivante" in npulab.targets()
True
"""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import npulab.target  # noqa: F401 - before the function below takes the name of this module
from npulab.support.files import read_table

if TYPE_CHECKING:
    from npulab.captures.target import Target

__version__ = "0.1.0"

# each is loaded when one of its names is asked for
_NAMES = {row["name"]: row for row in read_table(Path(__file__).with_name("names.csv"))}
__all__ = sorted(["target", *(name for name, row in _NAMES.items() if not row["now"])])


def target(name: str) -> Target:
    """The target of a name; raises LookupError with the known names."""
    from npulab.captures.registry import asked_target

    return asked_target(name)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'npulab' has no attribute {name!r}")
    _, module, now = _NAMES[name].values()
    if now:
        warnings.warn(f"npulab.{name} is now {module}.{now}", DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(module), now)
    if module.startswith("npulab.quant"):  # which takes names of rules; targets state some
        importlib.import_module("npulab.captures.registry")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
