"""The structures of compiled files, weight files and property lists, as ``structures.csv`` has
them."""

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
    kind, _, count = row["kind"].partition("*")
    if kind == "s":
        if row["field"]:
            part = construct.Bytes(int(count))
        else:
            part = construct.Padding(int(count))
    else:
        if count:
            part = construct.Array(int(count), KINDS[kind])
        else:
            part = KINDS[kind]
    if row["default"]:
        part = construct.Default(part, int(row["default"], 0))
    if row["field"]:
        return row["field"] / part
    return part


_ROWS = read_table(Path(__file__).with_name("structures.csv"))
STRUCTURES = {
    name: construct.Struct(*(_field(row) for row in _ROWS if row["structure"] == name))
    for name in dict.fromkeys(row["structure"] for row in _ROWS)
}
