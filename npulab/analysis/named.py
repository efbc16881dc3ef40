"""Names for fields whose law reads one parameter: such a field gets the name of the parameter."""

from __future__ import annotations

import re
from typing import Any

from npulab.analysis.laws.found import FieldLaw, Laws
from npulab.analysis.laws.naming import NAME

# A law that is a parameter (``input_w``), or a parameter less a number (``input_w - 1``).
PARAMETER = re.compile(r"(\w+)(?: - (\d+))?")
# The end of a field's name if the field is not the parameter itself.
RAW = "_raw"


def named_rows(laws: Laws, block: str = "") -> list[dict[str, Any]]:
    """The rows of ``Laws.register_rows``, in which fields with one law of one parameter are named
    after it.

    A field that is ``input_w`` or ``input_w - 1`` is called ``input_w``, and its value is the
    parameter. A field with another law of a parameter ``kernel`` is called ``kernel_raw``, and its
    value is the number in the word. A field ``kernel - 1`` is called ``kernel_raw``, too, if other
    laws read it, because laws read the number in the word. Further fields of the same name get a
    number: ``kernel_raw_2``. All other fields keep the names of their places, such as ``w18_27_2``.
    """
    parameters = set(map(str, laws.parameters))
    read: set[str] = set()
    for law in laws.fields:
        read.update(NAME.findall(" ".join((law.text, *law.rivals))))
    names: dict[str, str] = {}
    values: dict[str, str] = {}
    for law in laws.fields:
        wanted, value = _name_and_value(law, parameters, law.name in read)
        if not wanted:
            continue
        name, number = wanted, 1
        while name in values or (number > 1 and name in parameters):
            number += 1
            name = f"{wanted}_{number}"
        names[law.name] = name
        values[name] = value
    rows = laws.register_rows(block, names)
    for row in rows:
        row["value"] = values.get(row["field"], "")
    return rows


def _name_and_value(law: FieldLaw, parameters: set[str], is_read: bool) -> tuple[str, str]:
    """The name of a field, and the text in the column ``value`` of a register map: how the value
    follows from the bits. The name is "" for a law of several cases, and for a law that reads
    another field, no parameter, or several.
    """
    used = parameters & {*NAME.findall(law.text)}
    if len(used) != 1 or len(law.steps) != 1 or law.follows:
        return "", ""
    name = used.pop()
    plain = PARAMETER.fullmatch(law.text)
    if plain is None or (plain[2] and is_read):
        return name + RAW, ""
    if plain[2]:
        return name, f"raw+{plain[2]}"
    return name, ""
