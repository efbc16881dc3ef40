"""The binary structures of ``structures.csv`` as construct values, by name.

They belong to compiled files (hwx), weight files and property lists.
"""

from pathlib import Path
from typing import Any

import construct

from npulab.npus.kit import read_table

KINDS = {
    "u1": construct.Int8ul,
    "u4": construct.Int32ul,
    "u8": construct.Int64ul,
    "U1": construct.Int8ub,
    "U8": construct.Int64ub,
}


def _field(row: dict[str, str]) -> Any:
    """Return the construct field of a row of ``structures.csv``.

    The kind ``s*n`` means n bytes, which are padding if the row has no name. ``u4`` is a
    little-endian number of 4 bytes, ``U4`` a big-endian number, ``u4*n`` an array of n numbers.
    """
    kind, _, count = row["kind"].partition("*")
    if kind == "s" and row["field"]:
        part = construct.Bytes(int(count))
    elif kind == "s":
        part = construct.Padding(int(count))
    elif count:
        part = construct.Array(int(count), KINDS[kind])
    else:
        part = KINDS[kind]
    if row["default"]:
        part = construct.Default(part, int(row["default"], 0))
    if row["field"]:
        return row["field"] / part
    return part


def _structures() -> dict[str, Any]:
    parts: dict[str, list[Any]] = {}
    for row in read_table(Path(__file__).with_name("structures.csv")):
        parts.setdefault(row["structure"], []).append(_field(row))
    return {name: construct.Struct(*fields) for name, fields in parts.items()}


STRUCTURES = _structures()
