"""Fields whose unit depends on another field of their block. An example is an address that counts
entries of a memory: another field says which memory, so it decides how many bytes an entry has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.registers.fields import Field
from npulab.support.text import plural

MOST_BITS = 16  # the most bits of a field that names the unit of another field


class Unit(NamedTuple):
    """The unit of a field, which another field of the map names.

    ``by`` is the number of the other field in the map. ``factors`` ``(2**width,) int64`` has the
    unit for each raw value of the other field; it is 1 if the map states no unit for this value.
    """

    by: int
    factors: Array


def units_of(fields: Sequence[Field]) -> dict[int, Unit]:
    """Return the unit of each field whose unit another field names; the key is the field's number.

    Raises LookupError if the name belongs to no field of the block or to several fields. Raises
    ValueError if there are more factors than raw values of the other field, if the other field has
    more than ``MOST_BITS`` bits, or if a third field names the unit of the other field.
    """
    units = {}
    for number, item in enumerate(fields):
        if not item.meaning.by:
            continue
        where = f"register map, {item.where}"
        by = _named(where, item, fields)
        other, factors = fields[by], item.meaning.factors
        most = min(other.width, MOST_BITS)
        if other.meaning.by or len(factors) > 2**most or other.width > MOST_BITS:
            raise ValueError(
                f"{where}: got {len(factors)} factors by {other.name} ({other.width} bits), "
                f"allowed are at most {2**most}, by a field of at most {MOST_BITS} bits whose own "
                "unit no field names"
            )
        every = np.ones(2**other.width, np.int64)
        stated = np.array(factors, np.int64)
        every[: len(factors)] = np.maximum(stated, 1)
        units[number] = Unit(by, every)
    return units


def _named(where: str, item: Field, fields: Sequence[Field]) -> int:
    """Return the number of the field that names the unit of ``item``. It is the only field with
    this name in the register of ``item`` or, if there is not exactly one, in the block."""
    name = item.meaning.by
    found = []
    for number, other in enumerate(fields):
        _, _, last = other.name.rpartition(".")
        if other.block == item.block and name in (last, other.name):
            found.append(number)
    near = [number for number in found if fields[number].register == item.register]
    if len(near) != 1:
        near = found
    if len(near) != 1:
        count = plural(len(near), "field")
        known = [other.name for other in fields if other.block == item.block]
        raise LookupError(
            f"{where}: got a unit by {name!r}, the name of {count} of the block, "
            f"allowed is one of {', '.join(dict.fromkeys(known))}"
        )
    return near[0]
