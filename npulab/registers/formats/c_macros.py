"""Registers from the macros of a C header. The role of a macro (such as register, field or value)
is decided from all macros of the file: from which names begin with which other names, and from the
values.

``c_dialects`` has the table of the known spellings. A field of which only the shift is known
reaches up to the next field; its evidence is ``guess``. A macro without a role is reported with its
line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from npulab.registers.fields import WORD_BYTES
from npulab.registers.formats.c_dialects import (
    ATTRIBUTE,
    GETS,
    NAMED,
    SHIFTED,
    TAILS,
    Longest,
    first_word,
    plain_names,
    tail_of,
)
from npulab.registers.formats.c_fields import Bits, Lost, Register, fits, is_run
from npulab.registers.formats.c_lists import add_listed
from npulab.registers.formats.c_numbers import LARGEST, Facts
from npulab.registers.formats.c_offsets import FEWEST, find_arrays, find_keys, find_offsets
from npulab.registers.formats.c_pairs import Group, paired_fields
from npulab.registers.formats.c_roles import Roles

# matches, from a macro's position on, the text before its name
DEPTH = re.compile(r"(?:[ \t]*#[ \t]*define)?[ \t]*")


def roles_of(facts: Facts) -> Roles:
    """Return the role of each macro, the fields and the registers of a source."""
    pairs = paired_fields(facts)
    arrays = find_arrays(facts, pairs.fields)
    known = {**pairs.roles, **arrays.roles}
    offsets = find_offsets(facts, pairs, arrays.arrays, known)
    known = {**offsets.roles, **known}
    keys = find_keys(facts, pairs, offsets.values, known)
    for name in keys.not_registers:
        del offsets.values[name]
    roles = Roles(
        facts,
        pairs,
        arrays.arrays,
        offsets.values,
        keys,
        offsets.by_words,
        known,
        arrays.lost,
        pairs.fields,
    )
    # the most certain steps come first, because a later step does not change a decided role
    for step in (
        _place_pairs,
        _lose_without_value,
        _add_single_macros,
        _add_weak,
        _add_setters,
        add_listed,
        _add_following,
        _add_values,
        _add_weak_whole,
        _name_attributes,
    ):
        step(roles)
        while roles.reaching:
            roles.reaching.pop().reach()
    return roles


def _place_pairs(roles: Roles) -> None:
    """Add to their registers the fields that several macros describe together, such as a mask and a
    shift."""
    facts, keys = roles.facts, roles.keys.macros
    for base in _masks_by_own_name(roles):
        roles.roles[keys.pop(base)] = "attribute"
    # ``odd`` has numbers that are named as registers, but are not multiples of a word. A name that
    # begins with an odd name belongs to no register with a shorter name.
    spelling = "suffixed"
    if roles.keys.spelling == "prefixed":
        spelling = "prefixed"
    for name in facts.plain:
        shaped = NAMED.fullmatch(name) or name in facts.hexadecimal
        used = name in roles.roles or name in facts.bitwise or name in roles.pairs.bases
        if shaped and not used and facts.values.get(name, 0) % WORD_BYTES:
            roles.odd[name] = next(iter(plain_names(spelling, [name])), name)
    hiding = {*roles.odd, *roles.odd.values()} - keys.keys() - roles.fields.keys()
    roles.find = Longest(keys, hiding)
    for base, bits in [*roles.fields.items()]:
        key, outer = roles.find.at_or_in(base), roles.find.inside(base)
        nested = key == base and outer
        if nested and roles.candidates[keys[outer]] == roles.candidates[keys[key]]:
            # the macro has a field's name and repeats the offset of the field's register
            roles.roles[keys[key]] = "attribute"
            key = outer
        if key:
            roles.add(bits, roles.register(key))


def _masks_by_own_name(roles: Roles) -> set[str]:
    """Return the names of the fields that are also the name of a macro, if the macro's value is
    the field's mask. Such a macro looks like an offset, but is none."""
    own, others = set(), set()
    for base, bits in roles.fields.items():
        macro = roles.keys.macros.get(base, "")
        if roles.facts.values.get(macro) == bits.bits:
            own.add(base)
        else:
            others.add(base)
    if len(own) < FEWEST:
        # If there are few such macros, their values may be offsets that equal the masks by chance:
        # a name with which the names of other fields begin is left out, for it may be a register's.
        own -= {*map(Longest(roles.keys.macros).inside, others)}
    return own


def _lose_without_value(roles: Roles) -> None:
    """Report, as lost fields, the macros that are written as bits but have no value. If the name of
    such a macro begins with the name of a register, add that register.
    """
    for name, reason in roles.facts.refused.items():
        if name in roles.facts.bitwise:
            if key := roles.find.inside(name):
                roles.register(key)
            roles.roles[name] = "bits"
            position = roles.facts.plain[name].position
            roles.lost.append(Lost("field", name, position, reason))


# fields that a single macro describes


def _add_single_macros(roles: Roles) -> None:
    """Add the fields that a single macro describes: BIT, GENMASK, or a shifted number."""
    facts = roles.facts
    bases = _bases(roles)
    masks = {base: facts.values[name] for name, base in bases.items()}
    masks |= {base: bits.bits for base, bits in roles.fields.items()}
    known = Longest(masks)
    # masks come first, because a mask has all bits of its field
    for name, base in sorted(bases.items(), key=lambda item: item[0] == item[1]):
        value, key = facts.values[name], roles.find.at_or_in(base)
        if base in roles.fields:
            if value == roles.fields[base].bits:
                roles.roles[name] = "bits"
            continue
        outer = known.inside(base)
        # a mask inside another field's mask is a part of that field, and a field itself
        is_part = base != name and outer in roles.fields and not value & ~masks[outer]
        nests = len(outer) > len(key) and (outer in roles.fields or is_run(value))
        if nests and not is_part and fits(value, masks[outer]):
            continue  # the number is a value of the field
        if key and is_run(value):
            bits = Bits(base, facts.plain[name].position, value)
            roles.add(bits, roles.register(key), name, *roles.pairs.weak.pop(base, {}).values())


def _bases(roles: Roles) -> dict[str, str]:
    """Return the names of fields, by macro, for the macros that are written as bits. A macro
    ``number << shift`` without a tail is left out if it is a value of a field: the number is not
    a mask of ones from bit 0, or the register has other numbers with the same shift.
    """
    facts = roles.facts
    bases = {}
    shifted: dict[str, tuple[int, tuple[str, str]]] = {}
    # the numbers that macros shift, by register and shift
    among: dict[tuple[str, str], set[str]] = {}
    for name, macro in facts.plain.items():
        if name in roles.roles or name not in facts.bitwise or name not in facts.values:
            continue
        base, sep, tail = tail_of(name) or (name, "", "")
        bases[name] = name
        if TAILS.get(tail) == "mask" and not (roles.pairs.doubled and sep == "_"):
            bases[name] = base
        if found := SHIFTED.fullmatch(macro.body):
            place = roles.find.at_or_in(name), found[2]
            shifted[name] = int(found[1], 0), place
            among.setdefault(place, set()).add(found[1])
    for name, (number, place) in shifted.items():
        is_mask = number and not number & number + 1
        if bases[name] == name and (not is_mask or len(among[place]) > 1):
            del bases[name]
    return bases


def _add_weak_whole(roles: Roles) -> None:
    """Add the fields of a lone mask or a lone shift that have the name of their register."""
    _add_weak(roles, whole=True)


def _add_weak(roles: Roles, whole: bool = False) -> None:
    """Add the fields of a lone mask or a lone shift, if their register is certain and no other
    field has these bits. With ``whole``, only fields that have the name of their register are
    added; without it, only fields with another name. A mask without a register becomes a field
    without a register.
    """
    for base, kinds in roles.pairs.weak.items():
        key = roles.find.at_or_in(base)
        if base in roles.fields or (base == key) != whole:
            continue
        if any(name in roles.roles for name in kinds.values()):
            continue
        name = next(iter(kinds.values()))
        outer = max(Longest(roles.fields).inside(name), roles.find.inside(name), key=len)
        if (
            outer
            and ATTRIBUTE.fullmatch(name, len(outer) + 1)
            and not _own_bits(roles, name, outer)
        ):
            roles.roles[name] = "attribute"
            continue
        bits = _weak_bits(roles, base, kinds, bool(key))
        if bits is None:
            continue
        if not key:
            if bits.mask > 0:
                roles.add(bits, None, *kinds.values())
        elif "mask" not in kinds or (bits.mask < LARGEST and is_run(bits.mask)):
            register = roles.register(key)
            if not register.has(bits.bits):
                roles.add(bits, register, *kinds.values())
            elif whole:
                roles.roles.update(dict.fromkeys(kinds.values(), "attribute"))


def _weak_bits(roles: Roles, base: str, kinds: Group, nests: bool) -> Bits | None:
    """Return the field of a lone mask or a lone shift; None if the macro may be something else.

    ``base`` is the field's name, ``kinds`` has its macro. ``nests`` is True if the field's name
    begins with the name of a register.
    """
    facts = roles.facts
    name = next(iter(kinds.values()))
    if name.endswith(("_M", "_BITS")) and not roles.keys.marked:
        return None
    value = {kind: roles.value(name) for kind, name in kinds.items()}
    bits = Bits(base, facts.plain[name].position, value.get("mask", -1))
    bits.low = value.get("low", value.get("bit", -1))
    if "bit" in kinds:
        bits.width = 1
    if "mask" not in kinds:
        if 0 <= bits.low <= 31 and name not in facts.hexadecimal:
            return bits
        return None
    mask = kinds["mask"]
    is_number = mask in facts.hexadecimal and mask in roles.candidates
    if is_number and (roles.pairs.written or not nests):
        return None  # the macro is a register whose name ends in a tail
    return bits


def _own_bits(roles: Roles, name: str, outer: str) -> bool:
    """True if a name such as ``CTRL_RESET_MASK`` is the mask of a field RESET of CTRL.

    It is the mask of a field if it is one run of fewer than 32 bits, and no known field of CTRL has
    any of these bits; otherwise it says which bits of CTRL a reset sets. ``outer`` is CTRL.
    """
    mask = roles.facts.values.get(name, 0)
    if outer not in roles.keys.macros or not name.endswith("_MASK"):
        return False
    return mask < LARGEST - 1 and is_run(mask) and not roles.register(outer).has(mask)


def _add_setters(roles: Roles) -> None:
    """Add the fields that a macro with one parameter describes."""
    inside = Longest(roles.fields)
    for name, macro in roles.facts.source.macros.items():
        if macro.parameters is None or name in roles.roles:
            continue
        key, bits = roles.find.at_or_in(name), _made_bits(roles, name)
        outer = inside.at_or_in(name.removeprefix("BF_"))
        if outer and not (bits and bits.bits & ~roles.fields[outer].bits):
            roles.roles[name] = "setter"
        elif key and name not in roles.candidates and bits:
            roles.roles[name] = "setter"
            register = roles.register(key)
            if bits.bits < LARGEST and not register.has(bits.bits):
                roles.add(bits, register, name)


def _made_bits(roles: Roles, name: str) -> Bits | None:
    """Return the field that a single macro describes: by its own value or, if it has a parameter,
    by the mask of its FIELD_PREP, or by its values for all ones and for 1. None if the macro
    describes no field.
    """
    facts = roles.facts
    macro = facts.source.macros[name]
    if name in facts.plain:
        mask = facts.values.get(name, 0)
        if name not in facts.bitwise:
            mask = 0
    else:
        mask = facts.values.get(f"{name}(mask)", 0)
    if is_run(mask):
        return Bits(name, macro.position, mask)
    if name in facts.plain:
        return None
    at_one, at_ones = roles.value(f"{name}(1)"), roles.value(f"{name}(~)")
    taken_out = GETS.search(macro.body)
    if taken_out and is_run(at_ones) and at_ones % 2:
        return Bits(name, macro.position, low=int(taken_out[1]), width=at_ones.bit_length())
    if not 0 < at_one < LARGEST or at_one.bit_count() != 1 or at_ones <= 0:
        return None
    bits = Bits(name, macro.position, low=at_one.bit_length() - 1)
    # a macro that only shifts all ones does not cut its value: the field's width stays unknown
    if at_ones != (LARGEST - 1) * at_one:
        bits.mask = at_ones & LARGEST - 1
    return bits


# From here on: fields whose names do not begin with the name of their register.


@dataclass(frozen=True)
class Following:
    """Bits that come after a register in the text; ``key`` is the register's key in ``Keys``.
    ``deeper`` is True if the bits are indented more than the register.
    """

    key: str
    bits: Bits
    deeper: bool


def _add_following(roles: Roles) -> None:
    """Add, as a guess, bits that come after a register in the text and whose names begin with the
    first word of its name.

    Bits that are indented more than their register always count. Other bits count only if, in the
    whole file, no field's name begins with the name of its register, and if most registers have
    such bits.
    """
    nested = any(register.fields for register in roles.registers.values())
    found, seen = _following(roles, nested)
    most = 2 * len({item.key for item in found}) > seen
    for item in found:
        if item.key in roles.keys.macros and (item.deeper or most):
            register = roles.register(item.key)
            if not register.has(item.bits.bits):
                item.bits.guess = True
                roles.add(item.bits, register, item.bits.name)


def _following(roles: Roles, nested: bool) -> tuple[list[Following], int]:
    """Return the bits that come after a register in the text, and the number of registers.
    ``nested`` is True if the file has a field whose name begins with its register's name."""
    # fields whose register is unknown, by their position in the text
    loose = {}
    if not nested:
        loose = {bits.position: bits for bits in roles.fields.values()}
    fields, by_macro = Longest(roles.fields), roles.by_macro
    heads = {macro for macro in by_macro if _heads_bits(roles, macro, nested)}
    found: list[Following] = []
    seen = set()
    key, least = "", 0
    for name, macro in roles.facts.ordered.items():
        depth = _depth(roles.facts.source.text, macro.position)
        bits = loose.get(macro.position)
        known = name in roles.roles or name in roles.candidates
        if not (bits or known or roles.find.inside(name) or fields.inside(name)):
            bits = _made_bits(roles, name)
        deeper = depth > least
        if name in heads or (not deeper and name in roles.odd):
            key, least = by_macro.get(name) or roles.odd[name], depth
            seen.add(key)
        elif key and bits and (deeper or not nested) and first_word(bits.name) == first_word(key):
            found.append(Following(key, bits, deeper))
        elif nested and not deeper:
            key = ""
    return found, len(seen)


def _heads_bits(roles: Roles, macro: str, nested: bool) -> bool:
    """True if the bits after a macro in the text may be its fields, because it is a register or,
    unless ``nested``, is named as a register is.
    """
    if macro in roles.facts.members:
        return False
    if roles.roles.get(macro) == "register":
        return True
    return not nested and bool(NAMED.fullmatch(macro)) and not _made_bits(roles, macro)


def _depth(text: str, position: int) -> int:
    """Return the number of characters from a macro's position to its name: the depth at which it is
    indented."""
    line = DEPTH.match(text, position)
    return line.end() - position if line else 0


# named values and attributes


def _add_values(roles: Roles) -> None:
    """Give each named number to the field with whose name its name begins, or to the register, if
    that has no fields. Numbers that are distinct bits of a register become fields.
    """
    heads = {}
    for key, macro in roles.keys.macros.items():
        if macro in roles.registers:
            heads[key] = roles.registers[macro]
    for register in roles.registers.values():
        heads.update(dict.fromkeys(register.heads, register))
    placed = roles.placed()
    by_register: dict[str, list[str]] = {}
    for name, outer in _named_numbers(roles, heads):
        field, tail = roles.fields.get(outer), name[len(outer) + 1 :]
        is_val = name.endswith("_Val") and name[:-4] in roles.facts.plain
        if is_val or ATTRIBUTE.fullmatch(tail):
            roles.roles[name] = "attribute"
        elif field is None:
            by_register.setdefault(outer, []).append(name)
        elif _is_other_bit(roles, field, name) and (key := roles.find.inside(outer)) in heads:
            by_register.setdefault(key, []).append(name)
        elif _is_value(roles, field, name, outer in placed):
            role = "constant"
            if outer in placed:
                role = "value"
            roles.add_value(field, tail, name, role)
    for outer, names in by_register.items():
        _add_flags(roles, heads[outer], outer, names)
        for name in names:
            if name not in roles.roles and not heads[outer].fields:
                roles.add_value(heads[outer], name[len(outer) + 1 :], name, "value")


def _named_numbers(roles: Roles, heads: Mapping[str, Register]) -> Iterator[tuple[str, str]]:
    """Yield the plain numbers without a role, each with the field or register with whose name its
    name begins. A lone mask or shift that has the name of a register is left to a later step.
    """
    facts = roles.facts
    finder = Longest({**roles.fields, **heads})
    later: set[str] = set()
    for base, kinds in roles.pairs.weak.items():
        if base in heads:
            later.update(kinds.values())
    for name, macro in facts.plain.items():
        outer = finder.inside(name)
        known = name in roles.roles or name in later or roles.value(name) < 0
        if outer and not known and not facts.packs(macro.body):
            yield name, outer


def _is_other_bit(roles: Roles, field: Bits, name: str) -> bool:
    """True if a number is another bit of the register, not a value of the field with whose name its
    name begins: it is a single bit outside the field's mask. If values may be counted from bit 0
    (the field is not strict), it must also be too large for such a value.
    """
    value = roles.facts.values[name]
    outside = value.bit_count() == 1 and value & ~field.bits
    return bool(outside) and (field.strict or not fits(value, field.bits))


def _is_value(roles: Roles, field: Bits, name: str, placed: bool) -> bool:
    """True if a number can be a value of the field; ``placed`` is True if the field's register is
    known. A number that is written as bits must fit into the field. If it is a single bit and the
    register is not known, it must also be in place, and the field must not be a lone mask or shift.
    """
    if name not in roles.facts.bitwise:
        return True
    value = roles.facts.values[name]
    if not fits(value, field.bits):
        return False
    if placed or value.bit_count() != 1:
        return True
    return field.name not in roles.pairs.weak and not value & ~field.bits


def _add_flags(roles: Roles, register: Register, key: str, names: Sequence[str]) -> None:
    """Add the numbers ``names``, whose names begin with a register's name, as fields, if they are
    distinct single bits that no other macro uses. If the register has no fields yet, all of the
    numbers must be written in hexadecimal or as bits.
    """
    facts = roles.facts
    written = facts.hexadecimal | facts.bitwise
    flags = [name for name in names if name in written and name not in facts.used]
    values = {facts.values[name] for name in flags}
    if len(flags) < len(names) and not register.fields:
        return
    if len(values) < len(flags) or any(value.bit_count() != 1 for value in values):
        return
    for name in flags:
        bits = Bits(name, facts.plain[name].position, facts.values[name])
        if bits.mask < LARGEST and not roles.register(key).has(bits.mask):
            roles.add(bits, register, name)


def _name_attributes(roles: Roles) -> None:
    """Give the role "attribute" to macros that no other step explained, if their name is that of a
    register or field followed by the word of an attribute, such as a reset value.
    """
    heads = roles.fields.keys() | roles.registers.keys()
    for register in roles.registers.values():
        heads.update(register.heads)
    known = Longest(heads)
    for name in roles.facts.plain:
        outer = known.inside(name)
        if outer and name not in roles.roles:
            tail = name[len(outer) :].lstrip("_")
            size = tail in ("RESET", "SIZE") and name not in roles.candidates
            if size or ATTRIBUTE.fullmatch(tail):
                roles.roles[name] = "attribute"
