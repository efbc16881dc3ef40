"""Writer of bit-field drawings for WaveDrom, as JSON."""

from __future__ import annotations

import json
from typing import Any

from npulab.registers.fields import WORD_BITS
from npulab.registers.formats.drawn import Drawn, drawn
from npulab.registers.formats.tables import RegisterTable

ATTRIBUTES = ("evidence", "feature")  # a drawing shows these columns below a field
ADDRESS = 3  # waveDrom's number of the colour for fields that point into memory


def wavedrom_text(table: RegisterTable) -> str:
    """Return a JSON list with a drawing for each register, an object. Its ``reg`` has the fields
    from the lowest bit on, each with ``name``, ``bits`` (its width) and ``attr`` (texts below it);
    bits without a row have no name.

    ``block``, ``offset``, ``register`` and ``feature`` of the object say which register is drawn;
    WaveDrom ignores them.
    """
    # "<" is escaped, because a script inside a page of HTML ends at its first "</"
    lines = [
        json.dumps(_drawing(register), ensure_ascii=False).replace("<", "\\u003c")
        for register in drawn(table)
    ]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _drawing(register: Drawn) -> dict[str, Any]:
    """Return the drawing of a register, as WaveDrom reads it."""
    reg = []
    for box in register.boxes:
        item: dict[str, Any] = {}
        if box.name:
            item["name"] = box.name
        item["bits"] = box.width
        said = [box.meaning, *(str(box.row.get(name, "")) for name in ATTRIBUTES)]
        if any(said):
            item["attr"] = [*filter(None, said)]
        if "address" in box.row:
            item["type"] = ADDRESS
        reg.append(item)
    out: dict[str, Any] = {
        "block": register.block,
        "offset": register.offset,
        "register": register.register,
    }
    if register.feature:
        out["feature"] = register.feature
    return {**out, "reg": reg, "config": {"bits": WORD_BITS}}
