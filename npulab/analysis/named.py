"""Names for fields with a law: a field that follows from one parameter has the parameter's name."""

from __future__ import annotations

import re
from typing import Any

from npulab.analysis.laws.found import FieldLaw, Laws
from npulab.analysis.laws.naming import NAME

PARAMETER = re.compile(r"(\w+)(?: - (\d+))?")  # a law that is a parameter, or one less a number
RAW = "_raw"  # at the end of the name of a field that holds something else than the parameter


def named_rows(laws: Laws, block: str = "") -> list[dict[str, Any]]:
    """The rows of ``Laws.register_rows`` with names from the parameters, as far as these name a
    field.

    A field that is ``input_w`` or ``input_w - 1`` is called ``input_w``, and its value is the
    parameter. If it is another law of one parameter, or if other laws read it, it is called
    ``kernel_raw``: its value is what the word has, and so it is in the laws that read it. Further
    fields of that name get a number, ``kernel_raw_2``. All other fields keep their names by place.
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
    """The name of a field and the way from its bits to its value; the name is "" unless the law is
    of one parameter."""
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
