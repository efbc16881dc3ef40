"""One name for each parameter of a layer, and the other names that files have for it.

Sizes are ``input_c``, ``output_c`` as ``input_h`` is. A layer states ``padding`` and ``activation``
as texts; where parameters are numbers (ranges, columns of a sweep) they are ``same`` and ``relu``,
1 or 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from npulab.support.refuse import refuse_if

Value = TypeVar("Value")

# npulab's name by another name for the same
SPELLINGS = {
    "input_channels": "input_c",
    "output_channels": "output_c",
    "other_channels": "other_c",
    "padding_same": "same",
    "activation_relu": "relu",
}
# by the name of a text: the name of its number, and the numbers of its values
NUMBERS: Mapping[str, tuple[str, Mapping[Any, int]]] = {
    "padding": ("same", {"valid": 0, "same": 1}),
    "activation": ("relu", {None: 0, "relu": 1}),
}


def spelled(parameters: Mapping[str, Value]) -> dict[str, Value]:
    """Return parameters, in their order, under npulab's names; a parameter whose name another one
    has keeps its own.

    >>> spelled({"input_channels": 3, "kernel_h": 1}), spelled({"relu": 1, "activation_relu": 0})
    ({'input_c': 3, 'kernel_h': 1}, {'relu': 1, 'activation_relu': 0})
    """
    out = {}
    for name, value in parameters.items():
        known = SPELLINGS.get(name, name)
        if known != name and known in parameters:
            known = name
        out[known] = value
    return out


def with_numbers(ranges: Mapping[str, Any]) -> dict[str, Any]:
    """Return ranges under npulab's names, with numbers in place of the texts of padding and
    activation; raises ValueError for a text that has no number, and for both names of one.

    >>> with_numbers({"input_channels": (1, 8), "padding": ["same"], "activation": [None, "relu"]})
    {'input_c': (1, 8), 'same': [1], 'relu': [0, 1]}
    """
    out: dict[str, Any] = {}
    for name, allowed in _once(ranges).items():
        if name not in NUMBERS:
            out[name] = allowed
            continue
        number, numbers = NUMBERS[name]
        values = allowed
        if isinstance(allowed, str) or not isinstance(allowed, Iterable):
            values = [allowed]
        out[number] = _each_of(numbers, values, f"ranges: {name}")
    return out


def with_texts(grid: Mapping[str, Any]) -> dict[str, Any]:
    """Return a grid under npulab's names, with the texts of padding and activation in place of
    their numbers; raises ValueError for another number, and for both names of one.

    >>> with_texts({"input_channels": 8, "same": [1, 0], "relu": 0})
    {'input_c': 8, 'padding': ['same', 'valid'], 'activation': [None]}
    """
    out = _once(grid)
    for text, (number, numbers) in NUMBERS.items():
        if number in out:
            values = out.pop(number)
            if not isinstance(values, Iterable):
                values = [values]
            by_number = dict(zip(numbers.values(), numbers, strict=True))
            out[text] = _each_of(by_number, values, f"grid: {number}")
    return out


def _each_of(known: Mapping[Any, Any], values: Iterable[Any], what: str) -> list[Any]:
    """Return what each value stands for; raises ValueError for another value."""
    allowed = ", ".join(map(str, known))
    out = []
    for value in values:
        # a list, which no mapping has as a key, is no value
        wrong = isinstance(value, list | dict | set) or value not in known
        refuse_if(wrong, what, f"{value!r:.60}", f"is one of {allowed}")
        out.append(known[value])
    return out


def _once(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return values under npulab's names; raises ValueError if two names are of one parameter."""
    out: dict[str, Any] = {}
    first: dict[str, str] = {}
    for name, value in named.items():
        known = SPELLINGS.get(name, name)
        number, _ = NUMBERS.get(known, (known, {}))
        other = first.setdefault(number, name)
        refuse_if(other != name, "parameters", f"{other} and {name}", "is one of them")
        out[known] = value
    return out


def spellings_of(name: str) -> tuple[str, ...]:
    """Return the names of the same parameter, the given one first.

    >>> spellings_of("input_c"), spellings_of("input_channels"), spellings_of("kernel_h")
    (('input_c', 'input_channels'), ('input_channels', 'input_c'), ('kernel_h',))
    """
    own = SPELLINGS.get(name, name)
    others = [other for other, known in SPELLINGS.items() if known == own]
    return tuple(dict.fromkeys((name, own, *others)))
