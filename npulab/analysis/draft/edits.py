"""The edits of a draft by name, with the arguments that each takes, as JSON has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

import numpy as np

from npulab.analysis.draft import laying, naming
from npulab.analysis.draft.table import MapTable

TEXT = 4096  # letters of an argument
MOST = 256  # parts, names
SHOWN = 80  # letters of what is refused
EDITS: dict[str, Callable[..., tuple[MapTable, str]]] = {
    function.__name__: function
    for function in (
        naming.rename,
        naming.rename_register,
        naming.retype,
        naming.set_evidence,
        naming.set_note,
        naming.set_address,
        naming.remove,
        laying.split,
        laying.join,
        laying.add,
        laying.move,
        laying.resize,
        laying.shift,
    )
}


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > TEXT:
        raise ValueError(f"text of at most {TEXT} letters")
    return value


def _number(value: Any) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | np.integer)
        or not -(2**32) < value < 2**32
    ):
        raise ValueError("a whole number")
    return int(value)


def _yes(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _list(value: Any, kind: Callable[[Any], Any], nouns: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > MOST:
        raise ValueError(f"a list of at most {MOST} {nouns}")
    return [kind(item) for item in value]


def _names(value: Any) -> dict[int, str]:
    if not isinstance(value, Mapping) or len(value) > MOST:
        raise ValueError(f"at most {MOST} names by raw")
    try:
        return {int(raw, 0): _text(name).strip() for raw, name in value.items()}
    except (TypeError, ValueError):
        raise ValueError("names by raw, a whole number as text") from None


# what JSON may hold for a parameter of an edit, by its annotation
CHECKS: dict[str, Callable[[Any], Any]] = {
    "str": _text,
    "int": _number,
    "bool": _yes,
    "int | None": lambda value: None if value is None else _number(value),
    "str | int": lambda value: _text(value) if isinstance(value, str) else _number(value),
    "Sequence[str]": lambda value: _list(value, _text, "texts"),
    "Sequence[int]": lambda value: _list(value, _number, "whole numbers"),
    "Mapping[int, str] | None": _names,
}


def edited(table: MapTable, edit: Mapping[str, Any]) -> tuple[MapTable, str, dict[str, Any]]:
    """The tables after an edit, its sentence, and the edit with the arguments that say something.

    Raises ValueError for an unknown edit or for arguments that the edit does not take; LookupError
    for an unknown field.
    """
    do = edit.get("do") if isinstance(edit, Mapping) else edit
    if not isinstance(edit, Mapping) or not isinstance(do, str) or do not in EDITS:
        raise ValueError(f"edit: got {str(do)[:SHOWN]!r}, allowed is one of {', '.join(EDITS)}")
    _, *parameters = signature(EDITS[do]).parameters.values()  # the first is the table
    takes = {parameter.name: parameter for parameter in parameters}
    arguments = {name: value for name, value in edit.items() if name != "do"}
    for name, value in arguments.items():
        if name not in takes:
            raise ValueError(
                f"{do}: got argument {str(name)[:SHOWN]!r}, allowed are {', '.join(takes)}"
            )
        try:
            arguments[name] = CHECKS[takes[name].annotation](value)
        except ValueError as error:
            raise ValueError(
                f"{do}: got {name} {str(value)[:SHOWN]!r}, allowed is {error}"
            ) from None
    for parameter in parameters:
        if parameter.default is Parameter.empty and parameter.name not in arguments:
            raise ValueError(f"{do}: got no {parameter.name}, allowed are {', '.join(takes)}")
    table, sentence = EDITS[do](table, **arguments)
    plain = {
        name: value
        for name, value in arguments.items()
        if value not in ([], {}) and value != takes[name].default
    }
    return table, sentence, json.loads(json.dumps({"do": do, **plain}))
