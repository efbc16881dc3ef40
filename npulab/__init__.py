"""npulab: a workbench for people who find out how an undocumented NPU works.

The public names stand in ``__init__.pyi``, where readers and type checkers see them. Each is
loaded when it is first used, so that ``import npulab`` loads neither numpy nor pandas.

>>> import npulab
>>> "vivante" in npulab.targets()
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import lazy_loader

import npulab.target  # noqa: F401 - before the function below takes the name of this module

if TYPE_CHECKING:
    from npulab.captures.target import Target

__version__ = "0.2.0"

_load, _, _lazy_names = lazy_loader.attach_stub(__name__, __file__)
__all__ = sorted(["target", *_lazy_names])


def target(name: str) -> Target:
    """The target of a name; raises LookupError with the known names."""
    from npulab.captures.registry import asked_target

    return asked_target(name)


def __getattr__(name: str) -> Any:
    if name not in _lazy_names:
        raise AttributeError(f"module 'npulab' has no attribute {name!r}")
    # The registry finds the rounding rules that targets state, which the lower rooms take by name
    # and cannot import.
    importlib.import_module("npulab.captures.registry")
    return _load(name)


def __dir__() -> list[str]:
    return __all__
