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

# A text argument of an edit has at most this many letters.
TEXT = 4096
# A list argument of an edit (widths, names) has at most this many items.
MOST = 256
# An error text shows at most this many letters of a refused argument.
SHOWN = 80
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
        raise ValueError(f"allowed is text of at most {TEXT} letters")
    return value


def _checked_number(value: Any) -> int:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not -(2**32) < value < 2**32:
        raise ValueError("allowed is a whole number above -2**32 and below 2**32")
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
        raise ValueError("allowed is true or false")
    return value


def _checked_list(value: Any, kind: Callable[[Any], Any], nouns: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > MOST:
        raise ValueError(f"allowed is a list of at most {MOST} {nouns}")
    return [kind(item) for item in value]


def _checked_names(value: Any) -> dict[int, str]:
    if not isinstance(value, Mapping) or len(value) > MOST:
        raise ValueError(f"allowed is at most {MOST} names by raw number")
    try:
        return {int(raw, 0): _checked_text(name).strip() for raw, name in value.items()}
    except (TypeError, ValueError):
        raise ValueError("allowed is names by raw number, the number as text: '0x3'") from None


# By the annotation of an edit's parameter: the function that checks an argument and returns it.
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
    """Return the edited table, the sentence of the edit, and the edit without arguments that have
    their default value.

    Raises ValueError for an unknown edit and for arguments that the edit does not take; LookupError
    for an unknown field.
    """
    do: Any = edit
    if isinstance(edit, Mapping):
        do = edit.get("do")
    if not isinstance(edit, Mapping) or not isinstance(do, str) or do not in EDITS:
        raise ValueError(f"edit: got {str(do)[:SHOWN]!r}, allowed is one of {', '.join(EDITS)}")
    _, *parameters = signature(EDITS[do]).parameters.values()  # without the first, the table
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
            raise ValueError(f"{do}: got {name} {str(value)[:SHOWN]!r}, {error}") from None
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
