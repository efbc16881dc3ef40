"""Fields of a C header that several macros describe together: a mask and a shift, or a low and a
high bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from npulab.registers.fields import WORD_BITS
from npulab.registers.formats.c_dialects import (
    COUNTS,
    HEAD,
    HEADS,
    PAIRED,
    RANGE,
    TAILS,
    Longest,
    tail_of,
)
from npulab.registers.formats.c_fields import ALL, Bits, lowest_bit
from npulab.registers.formats.c_numbers import Facts

Group = dict[str, str]  # the macros of a field, by the kind of their tail (TAILS)


@dataclass(frozen=True)
class Pairs:
    """The fields that several macros describe together, and the macros that need more evidence."""

    fields: dict[str, Bits]  # fields by name; the names of their macros begin with it
    roles: dict[str, str]  # the role of a macro, by its name
    weak: dict[str, Group]  # a lone mask or a lone shift, by the field's name
    doubled: bool  # true if two underscores stand between a field's name and a tail
    bases: Set[str]  # the names of all macros with a tail, without the tail
    written: bool  # true if most masks are written as bits: plain numbers are no masks


def paired_fields(facts: Facts) -> Pairs:
    """Return the fields that several macros describe together, and the fields of a single macro
    whose tail is certain.
    """
    fields = _ranges(facts)
    roles = dict.fromkeys(fields, "bits")
    groups = _groups(facts, fields)
    bases = {base for base, _ in groups}
    every = Longest(bases)
    outer = {""}.union(*map(every.all, bases))
    doubled = any(
        sep == "__" and {"mask", "low"} <= kinds.keys() for (_, sep), kinds in groups.items()
    )
    masks = [kinds["mask"] for (_, sep), kinds in groups.items() if "mask" in kinds and sep == "_"]
    weak: dict[str, Group] = {}
    for (base, sep), kinds in groups.items():
        low = kinds.get("low", "")
        is_offset = low.endswith("OFFSET")
        if is_offset and base in outer and "mask" not in kinds:
            if "width" in kinds:  # the width states the bytes of a group
                roles[kinds["width"]] = "attribute"
            continue
        if is_offset and low in facts.hexadecimal and not every.inside(base):
            del kinds["low"]  # the macro is the offset of the register that has the mask
        elif low.endswith("START") and "high" not in kinds:
            del kinds["low"]  # the macro is a value of the field with this mask
        if not kinds:
            continue
        bits = _pair(facts, base, kinds)
        mask = kinds.get("mask", "")
        if bits is not None:
            bits.strict = sep == "__"
            roles.update(dict.fromkeys(kinds.values(), "bits"))
            if facts.values.get(f"{base}_V", -1) == bits.bits // 2**bits.lowest:
                roles[f"{base}_V"] = "attribute"  # Espressif writes the mask also at bit 0
        elif sep == "__" and facts.values.get(mask, -1) > 0:
            bits = Bits(base, facts.plain[mask].position, facts.values[mask], strict=True)
            roles[mask] = "bits"
        elif not (doubled and sep == "_") and (alone := _certain_alone(kinds)):
            weak[base] = alone
        if bits is not None:
            fields[base] = bits
    written = 5 * len(facts.bitwise.intersection(masks)) > 4 * len(masks) > 0
    return Pairs(fields, roles, weak, doubled, bases, written)


def _ranges(facts: Facts) -> dict[str, Bits]:
    """Return the fields of macros that state a range of bits, such as ``X_F 7:4``, by macro."""
    fields = {}
    for name, macro in facts.plain.items():
        if ":" not in macro.body or name.endswith("_RANGE"):
            continue
        found = RANGE.fullmatch(macro.body)
        if found and int(found[2]) <= int(found[1]) < 64:
            fields[name] = Bits(name, macro.position, low=int(found[2]), high=int(found[1]))
    return fields


def _groups(facts: Facts, ranges: Mapping[str, Bits]) -> dict[tuple[str, str], Group]:
    """Return the macros with a tail, in groups. The key of a group is the name before the tail, and
    the one or two underscores between them. Macros in ``ranges`` are left out.
    """
    groups: dict[tuple[str, str], Group] = {}
    for name, macro in facts.plain.items():
        if name in ranges:
            continue
        if head := HEAD.fullmatch(name):
            groups.setdefault((head[2], "_"), {}).setdefault(HEADS[head[1]], name)
            continue
        base, sep, tail = tail_of(name) or ("", "", "")
        if not base or (tail in COUNTS and not macro.body.isdecimal()):
            continue
        kind = TAILS[tail]
        if name in facts.bitwise and kind in ("low", "high", "bit"):
            continue  # the macro is a single bit, whose name ends in the text of a tail by chance
        groups.setdefault((base.lstrip("_"), sep), {}).setdefault(kind, name)
    for base, sep in [*groups]:
        # AMD writes two underscores in front of SHIFT and one in front of MASK
        masks = groups.get((base, "_"), {})
        if sep == "__" and {*masks} == {"mask"} and {*groups[base, sep]} == {"low"}:
            masks |= groups.pop((base, sep))
    return groups


def _pair(facts: Facts, base: str, kinds: Group) -> Bits | None:
    """Return the field that a group of macros describes; None if their numbers contradict each
    other or do not suffice."""
    value = {kind: facts.values.get(name, -1) for kind, name in kinds.items()}
    mask, width = value.get("mask", -1), value.get("width", -1)
    # in the RP2040's headers, the macro with the tail BITS has the mask, not the width
    if "high" in kinds or width > WORD_BITS:
        mask, width = max(mask, width), -1
    counted = kinds.get("width", "").endswith(COUNTS)
    if counted and "low" in kinds and not facts.plain[kinds["low"]].body.isdecimal():
        return None
    position = min(facts.plain[name].position for name in kinds.values())
    bits = Bits(base, position, mask, value.get("low", -1), width, value.get("high", -1))
    found = None
    if mask < 0 and "range" in kinds:
        found = RANGE.fullmatch(facts.plain[kinds["range"]].body)
    if found:
        bits.low, bits.high = int(found[2]), int(found[1])
    if not 0 <= bits.low < 64:
        return None
    if mask > 0:
        agrees = lowest_bit(mask) in (0, bits.low) and bits.bits <= ALL
    else:
        agrees = 0 < width <= 64 - bits.low or bits.low <= bits.high < 64
    return bits if agrees else None


def _certain_alone(kinds: Group) -> Group:
    """Return the macros of a field, by kind, that may describe it without a second macro."""
    alone = {}
    for kind, name in kinds.items():
        if name.rpartition("_")[2] not in PAIRED or name.endswith(("_M", "_BITS")):
            alone[kind] = name
    return alone
