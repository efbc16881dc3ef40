"""The options and arguments of the commands: the rows of ``options.csv``."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from npulab.cli.output import Add
from npulab.support.files import read_table

KINDS = {"int": int, "float": float}
NAMED = re.compile(r"\{(npulab[\w.]*:\w+)\}")


def declare(add: Add, command: str) -> None:
    """Add the options and arguments of a command to a parser; ``add`` is its method
    ``add_argument``.
    """
    for row in _rows():
        if command in row["commands"].split():
            add(row["option"], **_settings(row))


@cache
def _rows() -> list[dict[str, str]]:
    return read_table(Path(__file__).with_name("options.csv"))


def _settings(row: dict[str, str]) -> dict[str, Any]:
    """Return the keyword arguments of ``add_argument`` that a row of options.csv states."""
    settings: dict[str, Any] = {"help": NAMED.sub(_shown, row["help"])}
    kind, count = row["kind"], row["count"]
    if kind == "flag":
        return {**settings, "action": "store_true"}
    if kind:
        settings["type"] = KINDS[kind]
    if count == "required":
        settings["required"] = True
    elif count == "repeatable":
        settings["action"] = "append"
    elif count.isdecimal():
        settings["nargs"] = int(count)
    elif count:
        settings["nargs"] = count
    if row["metavar"]:
        settings["metavar"] = row["metavar"]
    for name in ("default", "choices"):
        if row[name]:
            settings[name] = _value(row[name])
    return settings


def _value(text: str) -> Any:
    """Return the value of a cell: for ``module:NAME`` the value ``NAME`` of that module, else the
    value of a Python literal."""
    module, _, name = text.partition(":")
    if name:
        return getattr(import_module(module), name)
    return ast.literal_eval(text)


def _shown(named: re.Match[str]) -> str:
    value = _value(named[1])
    if isinstance(value, str | int):
        return str(value)
    return ", ".join(value)
