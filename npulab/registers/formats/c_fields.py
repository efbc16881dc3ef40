"""What the macros of a header say of one field, and the rows that it becomes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from npulab.registers.fields import WORD_BITS

ALL = 2 ** WORD_BITS - 1


@dataclass
class Found:
    """What macros say of one field; -1 where they do not."""

    name: str
    position: int
    mask: int = -1
    low: int = -1
    width: int = -1
    high: int = -1
    strict: bool = False  # of envytools, whose values stand in place
    words: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    values: dict[str, tuple[int, bool]] = field(default_factory=dict)  # (value, whether it surely stands in place)
    register: str = ""

    @property
    def bits(self) -> int:
        """The mask in its word; -1 where nothing says it."""
        low = max(self.low, 0)
        if self.mask >= 0:
            moved = self.low > 0 and self.mask % 2 ** self.low
            return self.mask * 2 ** self.low if moved else self.mask
        if self.width > 0 and self.low >= 0:
            return (2 ** self.width - 1) * 2 ** low
        return (2 ** (self.high + 1) - 2 ** self.low) if self.high >= self.low >= 0 else -1


def rows_of(register: str, offset: int, fields: list[Found], note: str, enums: dict[str, dict[int, str]],
            meaning: Mapping[str, str], lost: dict[str, None]) -> list[dict[str, Any]]:
    """The rows of a register; a whole word named as it is where no macro says its fields."""
    place = {"offset": offset, "register": register}
    out: list[dict[str, Any]] = []
    taken = 0
    for one in sorted(fields, key=lambda one: (one.bits & -one.bits, one.position)):
        if one.bits & taken:
            lost[f"{one.name}, of which another field of {register} has bits"] = None
            continue
        taken |= one.bits
        runs, at = runs_of(one.bits), 0
        value = meaning.get(one.name, "")
        if value == "f32" and one.bits != ALL:
            value = ""
        if one.values:
            enum = re.sub(r"\W", "_", one.name)
            enums[enum] = _named(one, lost)
            value = f"enum:{enum}" if enums[enum] else value
        name = one.name[len(register) + 1:] or register
        for lsb, width in runs:
            row = {**place, "field": name if len(runs) == 1 else one.name, "lsb": lsb, "width": width, "value": value,
                   "note": one.note, **one.words}
            out.append(row if len(runs) == 1 else {**row, "at": at})
            at += width
    if not out:
        return [{**place, "field": register, "lsb": 0, "width": WORD_BITS, "note": note}]
    if note:  # of the register: its lowest field has it, behind its name
        out[0]["note"] = f"{register}: {note} {out[0]['note']}".strip()
    return out


def _named(one: Found, lost: dict[str, None]) -> dict[int, str]:
    """The values of a field by raw number: from their place in the word, or from bit 0 as they
    fit."""
    low = (one.bits & -one.bits).bit_length() - 1
    width = one.bits.bit_length() - low
    in_place = all(not value & ~one.bits for value, _ in one.values.values())
    from_zero = all(value < 2 ** width for value, _ in one.values.values())
    sure = one.strict or any(surely for _, surely in one.values.values())
    out: dict[int, str] = {}
    for name, (value, _) in one.values.items():
        raw = value // 2 ** low if in_place and (sure or not from_zero) else value
        if raw >= 2 ** width or raw in out:
            lost[f"{one.name}_{name} = {value:#x}, which is no value of its field or has another name"] = None
        else:
            out[raw] = name
    return out


def runs_of(mask: int) -> list[tuple[int, int]]:
    """(lsb, width) of each run of ones below bit 32; none where a mask is no mask of a word.

    >>> runs_of(0xf0f)
    [(0, 4), (8, 4)]
    """
    out, lsb = [], 0
    if not 0 < mask <= ALL:
        return []
    while mask:
        low = (mask & -mask).bit_length() - 1
        mask //= 2 ** low
        lsb += low
        width = (~mask & mask + 1).bit_length() - 1
        out.append((lsb, width))
        mask //= 2 ** width
        lsb += width
    return out
