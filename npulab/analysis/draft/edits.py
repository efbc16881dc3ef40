"""The edits of a draft by name, with checks of their arguments, which come from JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, signature
from typing import Any

import numpy as np

from npulab.analysis.draft import laying, naming
from npulab.analysis.draft.table import Edited, MapTable

TEXT = 4096  # the most letters of a text argument
MOST = 256  # the most items of a list argument (widths, names)
SHOWN = 80  # the most letters of a refused argument that an error text shows
EDITS: dict[str, Callable[..., Edited]] = {
    "rename": naming.rename,
    "rename_register": naming.rename_register,
    "retype": naming.retype,
    "set_evidence": naming.set_evidence,
    "set_note": naming.set_note,
    "set_address": naming.set_address,
    "remove": naming.remove,
    "split": laying.split,
    "join": laying.join,
    "add": laying.add,
    "move": laying.move,
    "resize": laying.resize,
    "shift": laying.shift,
}


def _checked_text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > TEXT:
        raise ValueError(f"text of at most {TEXT} letters")
    return value


def _checked_number(value: Any) -> int:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not -(2**32) < value < 2**32:
        raise ValueError("a whole number")
    return int(value)


def _checked_number_or_none(value: Any) -> int | None:
    if value is None:
        return None
    return _checked_number(value)


def _checked_text_or_number(value: Any) -> str | int:
    if isinstance(value, str):
        return _checked_text(value)
    return _checked_number(value)


def _checked_truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _checked_list(value: Any, kind: Callable[[Any], Any], nouns: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > MOST:
        raise ValueError(f"a list of at most {MOST} {nouns}")
    return [kind(item) for item in value]


def _checked_names(value: Any) -> dict[int, str]:
    if not isinstance(value, Mapping) or len(value) > MOST:
        raise ValueError(f"at most {MOST} names by raw")
    try:
        return {int(raw, 0): _checked_text(name).strip() for raw, name in value.items()}
    except (TypeError, ValueError):
        raise ValueError("names by raw, a whole number as text") from None


# checks of an edit's arguments, by the annotation of the parameter
CHECKS: dict[str, Callable[[Any], Any]] = {
    "str": _checked_text,
    "int": _checked_number,
    "bool": _checked_truth,
    "int | None": _checked_number_or_none,
    "str | int": _checked_text_or_number,
    "Sequence[str]": partial(_checked_list, kind=_checked_text, nouns="texts"),
    "Sequence[int]": partial(_checked_list, kind=_checked_number, nouns="whole numbers"),
    "Mapping[int, str] | None": _checked_names,
}


def edited(table: MapTable, edit: Mapping[str, Any]) -> tuple[MapTable, str, dict[str, Any]]:
    """Return the edited table, the sentence of the edit, and the edit without those arguments that
    have their default value.

    Raises ValueError for an unknown edit and for arguments that the edit does not take; LookupError
    for an unknown field.
    """
    do: Any = edit
    if isinstance(edit, Mapping):
        do = edit.get("do")
    if not isinstance(edit, Mapping) or not isinstance(do, str) or do not in EDITS:
        raise ValueError(f"edit: got {str(do)[:SHOWN]!r}, allowed is one of {', '.join(EDITS)}")
    _, *parameters = signature(EDITS[do]).parameters.values()  # the first parameter is the table
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
            raise ValueError(
                f"{do}: got no argument {parameter.name!r}, allowed are {', '.join(takes)}"
            )
    table, sentence = EDITS[do](table, **arguments)
    plain = {"do": do}
    for name, value in arguments.items():
        if value not in ([], {}) and value != takes[name].default:
            plain[name] = value
    return table, sentence, json.loads(json.dumps(plain))
