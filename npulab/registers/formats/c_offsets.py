"""Offsets in a C header: arrays, numbers that may be a register's offset, and the beginnings that
the names of its fields share.
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

FEWEST = 3  # members of a list or family that count as evidence
WIDE = 2**16  # masks from this bit up are of registers of 32 bits


class Spread(NamedTuple):
    """An array's first offset, the bytes between its elements by dimension, and its elements."""

    first: int
    strides: Sequence[int]
    elements: int  # 0 if the macro does not say it


class Array(NamedTuple):
    """An array's first offset, and (elements, bytes between them) of each dimension; 0 elements if
    nothing says how many."""

    offset: int
    dimensions: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Arrays:
    """The macros that give an offset for an index, roles of other macros, and losses."""

    arrays: dict[str, Array]
    roles: dict[str, str]
    lost: list[Lost]


def find_arrays(facts: Facts, fields: Mapping[str, Bits]) -> Arrays:
    """Return the arrays of registers, and the macros that only say their lengths."""
    lengths, sizes = _values_of(facts, "__LEN"), _values_of(facts, "__ESIZE")
    single = _values_of(facts, "__SIZE_1")
    roles = {f"{base}__SIZE_1": "length" for base in single}
    for base in (*lengths, *sizes):
        roles[f"{base}__LEN"] = roles[f"{base}__ESIZE"] = "length"
    lost = []
    for name, macro in facts.plain.items():
        if name.endswith("_ARRLEN") and f"{name.removesuffix('_ARRLEN')}_BASE" in facts.plain:
            roles[name] = "length"
            reason = "nothing says the bytes between its elements, so only the first is read"
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
            roles[name] = "helper"  # other macros are made of it
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
    """The values of macros with a tail, by their names without it."""
    names = [name for name in facts.plain if name.endswith(tail) and name in facts.values]
    return {name.removesuffix(tail): facts.values[name] for name in names}


def _spread(facts: Facts, macro: Macro) -> Spread | None:
    """The offsets that a macro gives for one or two indices; None if they are not evenly apart."""
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
        # any two elements are evenly apart: only the third tells whether the macro is an array
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
    """The macros that may be a register's offset, and roles of other macros."""

    values: dict[str, int]  # the offset in bytes
    roles: dict[str, str]
    by_words: bool  # the file counts offsets in words


def find_offsets(
    facts: Facts, pairs: Pairs, arrays: Mapping[str, Array], roles: Mapping[str, str]
) -> Offsets:
    """Return the numbers without a role that may be offsets, and the attributes of fields."""
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
    """True if offsets are no multiples of a word under AMD's prefixes, or under Qualcomm's for
    registers that have fields in their upper half."""
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
    """Return the numbers that are single bits of one register, as other bits of it are not
    offsets.
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
    """The names that fields of registers begin with, and how the file spells its registers."""

    macros: dict[str, str]  # the macro of the offset, by the beginning of its fields' names
    spelling: str  # of SPELLINGS, "shorter" or "exact"
    not_registers: list[str]  # offsets that belong to a register of the spelling

    @property
    def marked(self) -> bool:
        """True if the macros of offsets have more than the beginning of their fields' names."""
        return self.spelling not in ("exact", "prefixed")


def find_keys(
    facts: Facts, pairs: Pairs, offsets: Mapping[str, int], roles: Mapping[str, str]
) -> Keys:
    """Return the beginnings of fields' names; the spelling that most fields agree with decides."""
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
    """Return names without their unit's prefix, if they stay unique and few registers share the
    prefix.
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
    """How many fields begin with a longer name of each spelling than of the other spellings."""
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
    """The low word of each register of 64 bits, by its name without LO."""
    halves = {}
    for low, high in HALVES:
        for name, offset in offsets.items():
            base = name.removesuffix(low)
            if base != name and offsets.get(base + high) == offset + WORD_BYTES:
                halves[base] = name
    return halves
