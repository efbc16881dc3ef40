"""Offsets in a C header: arrays, numbers that may be the offset of a register, and the texts (keys)
with which the names of a register's fields begin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from npulab.registers.fields import WORD_BYTES
from npulab.registers.formats.c_dialects import (
    ATTRIBUTE,
    COUNTED,
    HALVES,
    HEAD,
    SPELLINGS,
    Longest,
    first_word,
    plain_names,
)
from npulab.registers.formats.c_fields import Bits, Lost
from npulab.registers.formats.c_numbers import LARGEST, Facts
from npulab.registers.formats.c_pairs import Pairs
from npulab.registers.formats.c_text import NAME, Macro

FEWEST = 3  # a list or family with fewer members is no evidence
WIDE = 2**16  # a mask of this size or more belongs to a register of 32 bits


class Spread(NamedTuple):
    """The offsets that a macro gives for its indices: the first, the bytes from one element to the
    next in each dimension, and the number of elements.
    """

    first: int
    strides: Sequence[int]
    elements: int  # 0 if the macro does not state the number


class Array(NamedTuple):
    """The offset of an array's first element and, for each dimension, the number of elements (0 if
    nothing states it) and the bytes from one element to the next.
    """

    offset: int
    dimensions: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Arrays:
    """The macros that give an offset for an index, the roles of other macros, and what was lost."""

    arrays: dict[str, Array]
    roles: dict[str, str]
    lost: list[Lost]


def find_arrays(facts: Facts, fields: Mapping[str, Bits]) -> Arrays:
    """Return the arrays of registers, and the macros that only state lengths of arrays."""
    lengths, sizes = _values_of(facts, "__LEN"), _values_of(facts, "__ESIZE")
    single = _values_of(facts, "__SIZE_1")
    roles = {f"{base}__SIZE_1": "length" for base in single}
    for base in (*lengths, *sizes):
        roles[f"{base}__LEN"] = roles[f"{base}__ESIZE"] = "length"
    lost = []
    for name, macro in facts.plain.items():
        if name.endswith("_ARRLEN") and f"{name.removesuffix('_ARRLEN')}_BASE" in facts.plain:
            roles[name] = "length"
            reason = (
                "nothing says the bytes between its elements, so only the first element is read"
            )
            lost.append(Lost("array", name, macro.position, reason))
    nest, every = Longest(sizes), Longest(facts.source.macros)
    headed = {every.inside(name) for name in (*fields, *facts.bitwise)}
    arrays = {}
    for name, macro in facts.source.macros.items():
        spread = None
        if macro.parameters is not None:
            spread = _spread(facts, macro)
        if spread is None:
            continue
        if name in facts.used and name not in sizes and name not in headed:
            roles[name] = "helper"  # other macros compute their offsets by it
            continue
        known = [*reversed([*nest.all(name)])]
        if name in sizes:
            known.insert(0, name)
        dimensions = []
        for stride in spread.strides:
            count = single.get(name, spread.elements)
            for base in known:
                if sizes[base] == stride and base in lengths:
                    count = lengths[base]
                    break
            dimensions.append((count, stride))
        arrays[name] = Array(spread.first, tuple(dimensions))
    return Arrays(arrays, roles, lost)


def _values_of(facts: Facts, tail: str) -> dict[str, int]:
    """Return the values of the macros whose names end in ``tail``, by the names without it."""
    names = [name for name in facts.plain if name.endswith(tail) and name in facts.values]
    return {name.removesuffix(tail): facts.values[name] for name in names}


def _spread(facts: Facts, macro: Macro) -> Spread | None:
    """Return the offsets that a macro gives for one or two indices; None if the macro is not an
    array of registers: its offsets are unknown, differ by unequal steps, or are no multiples of a
    word.
    """
    name, values = macro.name, facts.values
    elements = 0
    if chosen := facts.chosen_offsets(macro):
        first = chosen[0]
        steps = [b - a for a, b in pairwise(chosen)]
        linear = len({*steps}) < 2
        strides = steps[:1] or [WORD_BYTES]
        if steps:
            elements = len(chosen)
    elif f"{name}[0]" in values:
        first = values[f"{name}[0]"]
        # three elements show whether the steps are equal
        second, third = values.get(f"{name}[1]", -1), values.get(f"{name}[2]", -1)
        strides, linear = [second - first], third - second == second - first
    elif f"{name}[0,0]" in values:
        first, both = values[f"{name}[0,0]"], values.get(f"{name}[1,1]", -1)
        strides = [values.get(f"{name}[{at}]", -1) - first for at in ("1,0", "0,1")]
        linear = both - first == sum(strides)
    else:
        return None
    if not linear or not 0 <= first < LARGEST or first % WORD_BYTES:
        return None
    if not any(strides):  # the macro ignores its index
        return Spread(first, [], 0)
    if any(stride < WORD_BYTES or stride % WORD_BYTES for stride in strides):
        return None
    return Spread(first, strides, elements)


@dataclass(frozen=True)
class Offsets:
    """The macros that may be the offset of a register, and the roles of other macros."""

    values: dict[str, int]  # the offset in bytes, by macro
    roles: dict[str, str]
    by_words: bool  # True if the file counts offsets in words


def find_offsets(
    facts: Facts, pairs: Pairs, arrays: Mapping[str, Array], roles: Mapping[str, str]
) -> Offsets:
    """Return the numbers without a role that may be offsets, and the macros that are attributes of
    fields.
    """
    counted = {}
    for name in facts.plain:
        found = COUNTED.fullmatch(name)
        if found and name in facts.values and not name.endswith("_BASE_IDX"):
            counted[name] = found[1]
    by_words = _counts_words(facts, pairs, counted)
    inside = Longest(pairs.fields)
    offsets: dict[str, int] = {}
    attributes = {}
    for name in facts.source.macros:
        outer = inside.inside(name)
        if name in arrays:
            offsets[name] = arrays[name].offset
        elif outer and ATTRIBUTE.fullmatch(name, len(outer) + 1):
            if name not in roles:
                attributes[name] = "attribute"
        elif name not in roles and _may_be_offset(facts, name):
            value = facts.values.get(name, -1)
            if by_words and name in counted:
                value *= WORD_BYTES
            if 0 <= value < LARGEST and value % WORD_BYTES == 0:
                offsets[name] = value
    known = {**roles, **attributes}
    for name in _flags(facts, offsets, known):
        if name not in arrays:
            del offsets[name]
    return Offsets(offsets, attributes, by_words)


def _counts_words(facts: Facts, pairs: Pairs, counted: Mapping[str, str]) -> bool:
    """True if the file counts offsets in words, not bytes: an offset that is no multiple of 4 has
    AMD's prefix, or has Qualcomm's prefix and belongs to a register with a field in its upper half.
    ``counted`` has the names without prefix.
    """
    odd = {name: base for name, base in counted.items() if facts.values[name] % WORD_BYTES}
    if any(not name.startswith("REG_") for name in odd):
        return True
    wide = Longest({*odd.values()})
    return any(bits.bits >= WIDE and wide.inside(base) for base, bits in pairs.fields.items())


def _may_be_offset(facts: Facts, name: str) -> bool:
    """True if a macro is written as the offset of a register may be."""
    if name not in facts.plain or name in facts.bitwise or HEAD.fullmatch(name):
        return False
    body = facts.plain[name].body
    if NAME.fullmatch(body) or facts.packs(body):
        return False
    return "|" not in body or facts.bitwise.isdisjoint(NAME.findall(body))


def _flags(facts: Facts, offsets: Mapping[str, int], roles: Mapping[str, str]) -> list[str]:
    """Return the names of offsets that are flags. All numbers whose names begin with the name of
    one register are flags if they are more than ``FEWEST`` distinct single bits, and at least one
    of them is no multiple of a word.
    """
    nest = Longest(offsets)
    numbers: dict[str, list[int]] = {}
    for name in facts.plain:
        if name not in roles and facts.values.get(name, 0) > 0:
            numbers.setdefault(nest.inside(name), []).append(facts.values[name])
    numbers.pop("", None)
    flags = set()
    for outer, values in numbers.items():
        single = all(value.bit_count() == 1 for value in values)
        odd = any(value % WORD_BYTES for value in values)
        if single and odd and len({*values}) == len(values) > FEWEST:
            flags.add(outer)
    return [name for name in offsets if nest.inside(name) in flags]


@dataclass(frozen=True)
class Keys:
    """The keys of registers, and the way in which the file spells the macros of offsets. The key of
    a register is the text with which the names of its fields begin.
    """

    macros: dict[str, str]  # the macro of a register's offset, by the register's key
    # ``spelling`` is a key of SPELLINGS, or "exact" (a register's key is the name of its macro), or
    # "shorter" (the key is that name without its first word).
    spelling: str
    not_registers: list[str]  # macros that look like offsets, but only belong to a register

    @property
    def marked(self) -> bool:
        """True if the spelling of the offsets' macros is neither "exact" nor "prefixed"."""
        return self.spelling not in ("exact", "prefixed")


def find_keys(
    facts: Facts, pairs: Pairs, offsets: Mapping[str, int], roles: Mapping[str, str]
) -> Keys:
    """Return the keys of registers, for the spelling of offsets with which the names of most fields
    begin with a key.
    """
    exact = {name: name for name in offsets}
    said = [name for name in offsets if name not in facts.members]
    kinds = {"exact": exact, **{kind: plain_names(kind, said) for kind in SPELLINGS}}
    kinds["shorter"] = _without_unit(facts, said)
    alone = [name for name in facts.plain if name not in roles and name in facts.bitwise]
    wanted = [*pairs.fields, *pairs.weak, *alone]
    votes = _votes(kinds, wanted)
    marked = len(plain_names("prefixed", offsets))
    if marked and (
        votes["prefixed"] > votes["exact"] or not wanted or (marked > 1 and not votes["exact"])
    ):
        return Keys(kinds["prefixed"], "prefixed", [])
    best = max(("suffixed", "infixed", "shorter"), key=votes.__getitem__)
    if votes[best] <= votes["exact"]:
        return Keys({**_low_halves(offsets), **exact}, "exact", [])
    dropped = []
    if best != "shorter":
        inside, sure = Longest(kinds[best]), {*kinds[best].values()}
        for name in exact:
            is_array = facts.source.macros[name].parameters is not None
            if name not in sure and not is_array and inside.at_or_in(name):
                dropped.append(name)
        for name in dropped:
            del exact[name]
    return Keys({**kinds[best], **exact}, best, dropped)


def _without_unit(facts: Facts, names: Sequence[str]) -> dict[str, str]:
    """Return the names that can lose their first word (the unit), by the name without it. The
    shorter name must be unique, fewer than ``2 * FEWEST`` names may have it as their first word,
    and no other macro may use the name.
    """
    rests = Counter(name.partition("_")[2] for name in names)
    units = Counter(map(first_word, names))
    shorter = {}
    for name in names:
        rest = name.partition("_")[2]
        if rests[rest] == 1 and units[rest] < 2 * FEWEST and name not in facts.used:
            shorter[rest] = name
    return shorter


def _votes(kinds: Mapping[str, Mapping[str, str]], wanted: Sequence[str]) -> Counter[str]:
    """Return the number of fields that each spelling of offsets suits best: of all keys with which
    the field's name begins, the longest is a key of this spelling.
    """
    finders = {kind: Longest(names) for kind, names in kinds.items()}
    heads = set().union(*kinds.values())
    begins = Counter(base if base in heads else base.rpartition("_")[0] for base in wanted)
    votes = Counter[str]()
    for base, count in begins.items():
        lengths = {kind: len(finder.at_or_in(base)) for kind, finder in finders.items()}
        most = max(lengths.values())
        for kind, length in lengths.items():
            if 0 < length == most:
                votes[kind] += count
    return votes


def _low_halves(offsets: Mapping[str, int]) -> dict[str, str]:
    """Return the macro of the low word of each 64-bit register, by its name without ``_LO``,
    ``_LOW`` or ``_L``."""
    halves = {}
    for low, high in HALVES:
        for name, offset in offsets.items():
            base = name.removesuffix(low)
            if base != name and offsets.get(base + high) == offset + WORD_BYTES:
                halves[base] = name
    return halves
