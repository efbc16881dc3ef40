"""Files in FlatBuffers' encoding, written with the package flatbuffers from a schema that npulab
reads with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flatbuffers
import numpy as np

from npulab.models.flat import Schema

PREPEND = {"H": "Uint16", "h": "Int16", "B": "Uint8", "b": "Int8", "I": "Uint32", "i": "Int32"}
PREPEND["Q"] = "Uint64"


def encoded(schema: Schema, root: str, values: Mapping[str, Any]) -> bytes:
    """The file of a root table."""
    builder = flatbuffers.Builder(0)
    builder.Finish(_table(builder, schema, root, values))
    return bytes(builder.Output())


def _table(builder: Any, schema: Schema, table: str, values: Mapping[str, Any]) -> int:
    """A table; the order of its slots is that of the schema."""
    given = [field for field in schema[table] if field.name in values]
    parts = {}
    for name, kind, _ in given:
        if kind not in PREPEND and kind != "3B":
            parts[name] = _part(builder, schema, kind, values[name])
    builder.StartObject(len(schema[table]))
    for name, kind, _ in given:
        slot = [field.name for field in schema[table]].index(name)
        if name in parts:
            builder.PrependUOffsetTRelativeSlot(slot, parts[name], 0)
        elif kind == "3B":
            builder.Prep(1, 3)
            for byte in reversed(values[name]):
                builder.PrependByte(byte)
            builder.PrependStructSlot(slot, builder.Offset(), 0)
        else:
            getattr(builder, f"Prepend{PREPEND[kind]}Slot")(slot, values[name], 0)
    return int(builder.EndObject())


def _part(builder: Any, schema: Schema, kind: str, value: Any) -> int:
    """A text, a table, bytes, or a vector."""
    if kind == "s":
        return int(builder.CreateString(value))
    if kind in schema:
        return _table(builder, schema, kind, value)
    if kind in ("[B]", "@"):
        return int(builder.CreateByteVector(value))
    element = kind[1:-1]
    if element in PREPEND or element == "f":
        return int(builder.CreateNumpyVector(np.array(value, f"<{element}")))
    offsets = [_part(builder, schema, element, one) for one in value]
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())
