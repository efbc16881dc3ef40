"""Writer of bit-field drawings for WaveDrom, as JSON."""

from __future__ import annotations

import json
from typing import Any

from npulab.registers.fields import WORD_BITS
from npulab.registers.formats.drawn import Drawn, drawn
from npulab.registers.formats.tables import RegisterTable

ATTRIBUTES = ("evidence", "feature")
ADDRESS = 3  # the colour of fields that point into memory, of those that WaveDrom has


def wavedrom_text(table: RegisterTable) -> str:
    """A JSON list with a drawing for each register: ``reg`` holds its fields from the lowest bit
    (``name``, ``bits``, ``attr``), bits without a row have no name.

    ``block``, ``offset``, ``register`` and ``feature`` say what is drawn; WaveDrom passes over
    them.
    """
    # an inlined script ends at its first "</"
    lines = [
        json.dumps(_drawing(one), ensure_ascii=False).replace("<", "\\u003c")
        for one in drawn(table)
    ]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _drawing(one: Drawn) -> dict[str, Any]:
    reg = []
    for box in one.boxes:
        item: dict[str, Any] = {}
        if box.name:
            item = {"name": box.name}
        item["bits"] = box.width
        said = [
            text
            for text in (box.meaning, *(str(box.row.get(name, "")) for name in ATTRIBUTES))
            if text
        ]
        if said:
            item |= {"attr": said}
        else:
            item |= {}
        if "address" in box.row:
            item |= {"type": ADDRESS}
        else:
            item |= {}
        reg.append(item)
    return {
        "block": one.block,
        "offset": one.offset,
        "register": one.register,
        **({"feature": one.feature} if one.feature else {}),
        "reg": reg,
        "config": {"bits": WORD_BITS},
    }
