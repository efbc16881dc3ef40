"""Values do not change: dataclasses are frozen, but for those that are filled while a file is
read or a kernel runs.
"""

from __future__ import annotations

import inspect
import pkgutil
from dataclasses import is_dataclass
from importlib import import_module

import pytest

ROOMS = ("support", "registers", "layout", "models", "quant", "captures")
FILLED = {
    "c_fields.Bits",
    "c_fields.Register",
    "c_roles.Roles",
    "c_structs.Layout",
    "controlled._Votes",
    "executors._Call",
    "executors._Calls",
    "faulty.Faulty",
    "requantize.Requantizer",
}


@pytest.mark.parametrize("room", ROOMS)
def test_values_are_frozen(room: str) -> None:
    package = import_module(f"npulab.{room}")
    for name in (one.name for one in pkgutil.walk_packages(package.__path__, f"npulab.{room}.")):
        found = [
            one
            for _, one in inspect.getmembers(import_module(name), inspect.isclass)
            if is_dataclass(one) and one.__module__ == name
        ]
        for one in found:
            short = f"{name.rpartition('.')[2]}.{one.__qualname__}"
            assert one.__dataclass_params__.frozen is (short not in FILLED), short
