"""One name for each parameter of a layer, and the further names that files use for it.

The names of sizes are ``input_h``, ``input_c``, ``output_c`` and so on. In a layer, ``padding`` and
``activation`` are texts. In ranges and in columns of a sweep, where values are numbers, ``same``
and ``relu`` take their place, each 1 or 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from npulab.support.refuse import refuse_if

Value = TypeVar("Value")

# a key is another name, the value is npulab's name for the same parameter
SPELLINGS = {
    "input_channels": "input_c",
    "output_channels": "output_c",
    "other_channels": "other_c",
    "padding_same": "same",
    "activation_relu": "relu",
}
# a key is a parameter with texts; the value has the name of its number, and a number per text
NUMBERS: Mapping[str, tuple[str, Mapping[Any, int]]] = {
    "padding": ("same", {"valid": 0, "same": 1}),
    "activation": ("relu", {None: 0, "relu": 1}),
}


def spelled(parameters: Mapping[str, Value]) -> dict[str, Value]:
    """Return parameters, in their order, under npulab's names. A parameter keeps its name if
    npulab's name is already that of another parameter.

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
    activation.

    Raises ValueError for a text that has no number, and if one parameter is given under two names.

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
    """Return a grid under npulab's names, with texts in place of the numbers for padding and
    activation.

    Raises ValueError for a number that has no text, and if one parameter is given under two names.

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
    """Return the item of ``known`` for each value. Raises ValueError for a value that is no key of
    ``known``; the text begins with ``what``.
    """
    allowed = ", ".join(map(str, known))
    out = []
    for value in values:
        # a list, dict or set cannot be a key, and looking it up would raise TypeError
        wrong = isinstance(value, list | dict | set) or value not in known
        refuse_if(wrong, what, f"{value!r:.60}", f"is one of {allowed}")
        out.append(known[value])
    return out


def _once(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return values under npulab's names. Raises ValueError if two names stand for one
    parameter.
    """
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
    """Return all names of the parameter that ``name`` stands for; ``name`` comes first.

    >>> spellings_of("input_c"), spellings_of("input_channels"), spellings_of("kernel_h")
    (('input_c', 'input_channels'), ('input_channels', 'input_c'), ('kernel_h',))
    """
    own = SPELLINGS.get(name, name)
    others = [other for other, known in SPELLINGS.items() if known == own]
    return tuple(dict.fromkeys((name, own, *others)))
