"""The edits of a draft by name, with the arguments that each takes, as JSON has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import numpy as np

from npulab.analysis.draft import laying, naming
from npulab.analysis.draft.table import Table

TEXT = 4096  # letters of an argument
MOST = 256  # parts, names
EMPTY = object()


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > TEXT:
        raise ValueError(f"text of at most {TEXT} letters")
    return value


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not -2 ** 32 < value < 2 ** 32:
        raise ValueError("a whole number")
    return int(value)


def _optional(value: Any) -> int | None:
    return None if value is None else _number(value)


def _yes(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _place(value: Any) -> str | int:
    return _text(value) if isinstance(value, str) else _number(value)


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or len(value) > MOST:
        raise ValueError(f"a list of at most {MOST} texts")
    return [_text(one) for one in value]


def _numbers(value: Any) -> list[int]:
    if not isinstance(value, list) or len(value) > MOST:
        raise ValueError(f"a list of at most {MOST} whole numbers")
    return [_number(one) for one in value]


def _names(value: Any) -> dict[int, str]:
    if not isinstance(value, Mapping) or len(value) > MOST:
        raise ValueError(f"at most {MOST} names by raw")
    try:
        return {int(raw, 0): _text(name).strip() for raw, name in value.items()}
    except (TypeError, ValueError):
        raise ValueError("names by raw, a whole number as text") from None


Argument = Callable[[Any], Any]
EDITS: dict[str, tuple[Callable[..., tuple[Table, str]], dict[str, Argument]]] = {
    "rename": (naming.rename, {"field": _text, "name": _text}),
    "rename_register": (naming.rename_register, {"register": _place, "name": _text}),
    "retype": (naming.retype, {"field": _text, "value": _text, "names": _names}),
    "set_evidence": (naming.set_evidence, {"field": _text, "evidence": _text}),
    "set_note": (naming.set_note, {"field": _text, "note": _text}),
    "set_address": (naming.set_address, {"field": _text, "address": _yes}),
    "remove": (naming.remove, {"field": _text}),
    "split": (laying.split, {"field": _text, "widths": _numbers, "names": _texts}),
    "join": (laying.join, {"low": _text, "high": _text, "name": _text}),
    "add": (laying.add, {"name": _text, "register": _place, "lsb": _number, "width": _number, "offset": _optional,
                         "value": _text, "evidence": _text, "note": _text}),
    "move": (laying.move, {"field": _text, "register": _place, "lsb": _number}),
    "resize": (laying.resize, {"field": _text, "width": _number, "shift": _yes}),
    "shift": (laying.shift, {"field": _text, "by": _number, "out_of": _text}),
}


def edited(table: Table, edit: Mapping[str, Any]) -> tuple[Table, str, dict[str, Any]]:
    """The tables after an edit, its sentence, and the edit with the arguments that say something.

    Raises ValueError for an edit that is none, or with other arguments than it takes; LookupError
    for a field that is not there.
    """
    if not isinstance(edit, Mapping) or not isinstance(edit.get("do"), str) or edit["do"] not in EDITS:
        got = edit.get("do") if isinstance(edit, Mapping) else edit
        raise ValueError(f"edit: got {str(got)[:80]!r}, allowed is one of {', '.join(EDITS)}")
    make, takes = EDITS[edit["do"]]
    given = {name: value for name, value in edit.items() if name != "do"}
    for name, value in given.items():
        if name not in takes:
            raise ValueError(f"{edit['do']}: got argument {str(name)[:80]!r}, allowed are {', '.join(takes)}")
        try:
            given[name] = takes[name](value)
        except ValueError as error:
            raise ValueError(f"{edit['do']}: got {name} {str(value)[:80]!r}, allowed is {error}") from None
    try:
        table, sentence = make(table, **given)
    except TypeError:
        missing = [name for name in takes if name not in given]
        if not missing:
            raise
        raise ValueError(f"{edit['do']}: got no {missing[0]}, allowed are {', '.join(takes)}") from None
    usual = {name: one.default for name, one in signature(make).parameters.items()}
    told = {name: value for name, value in given.items() if value not in ([], {}) and value != usual.get(name, EMPTY)}
    return table, sentence, json.loads(json.dumps({"do": edit["do"], **told}))
