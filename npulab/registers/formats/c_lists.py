"""Registers of a C header that have no fields: offsets in lists, groups of registers, and numbers
whose names begin with the name of a register. Such a register and these numbers are a family.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

from npulab.registers.fields import WORD_BYTES
from npulab.registers.formats.c_dialects import (
    ATTRIBUTE,
    LOW_HIGH,
    MARKED,
    NAMED,
    TAILS,
    Longest,
    first_word,
)
from npulab.registers.formats.c_offsets import FEWEST
from npulab.registers.formats.c_roles import Roles
from npulab.registers.formats.c_text import LITERAL

FAR = 2**8  # the next offset after a family is searched in so many macros
NEAR = 0x40  # neighbours in a list are at most so many bytes apart
GROUP = 0x100  # a group without a register of its own begins at a multiple of so many bytes
REACH = 0x40 * WORD_BYTES  # a family spans so many bytes if no offset follows
PAST = 0x1000  # an offset is near up to twice the last sure offset plus so many bytes


@dataclass(frozen=True)
class Open:
    """The offsets that may be registers, each by the name of its macro."""

    lone: list[str]  # names that begin with no register's name
    children: Mapping[str, list[str]]  # other names, by the register with whose name they begin
    hexadecimal: Set[str]  # names of macros that are written as offsets (``_as_offsets``)
    marks: set[str]  # names that match NAMED; empty if few do
    by_macro: Mapping[str, str]  # The same as ``Roles.by_macro``.


def add_listed(roles: Roles) -> None:
    """Add the registers that have no fields named after them, and give offsets that are groups of
    registers the role "group".
    """
    by_macro = roles.by_macro
    for name in roles.candidates:
        key = roles.find.inside(name)
        if roles.keys.macros.get(key) in roles.registers and ATTRIBUTE.fullmatch(
            name, len(key) + 1
        ):
            roles.roles.setdefault(name, "attribute")
    rest = [name for name in roles.candidates if name not in roles.roles and name in by_macro]
    owner = Longest({*roles.fields, *by_macro.values()})
    groups = _groups(roles, rest, by_macro, owner)
    roles.roles.update(dict.fromkeys(groups, "group"))
    lone, children = _families(roles, {*rest} - groups, by_macro, owner)
    names = {*lone}.union(*children.values())
    hexadecimal = _as_offsets(roles, names)
    marked = {name for name in hexadecimal if MARKED.fullmatch(name)}
    if _most(marked, hexadecimal):
        hexadecimal = marked
    marks = {name for name in hexadecimal if NAMED.fullmatch(name)}
    if not _most(marks, hexadecimal):
        marks = set()
    found = Open(lone, children, hexadecimal, marks, by_macro)
    _add_lone(roles, found)
    direct = _direct(roles, found)
    for outer, inner in children.items():
        _add_children(roles, found, outer, inner, direct.get(outer, []))


def _most(names: Set[str], every: Set[str]) -> bool:
    """True if ``names`` are at least three fifths of ``every``, and at least ``FEWEST``."""
    return len(names) >= FEWEST and 5 * len(names) >= 3 * len(every)


def _groups(
    roles: Roles, rest: Sequence[str], by_macro: Mapping[str, str], owner: Longest
) -> set[str]:
    """Return the names of offsets that are groups of registers. The names of the registers begin
    with the group's name. The group's offset is that of one of these registers or, if there are
    several, a multiple of ``GROUP`` that is at most their lowest offset. An array is a group if the
    name of another array begins with its name. If there are several groups, each further name with
    an offset that both a group and a register have is a group too.
    """
    inner: dict[str, list[int]] = {}
    for register in roles.registers.values():
        inner.setdefault(owner.inside(register.heads[0]), []).append(register.offset)
    striped = {owner.inside(by_macro.get(name, name)) for name in roles.arrays}
    out = {name for name in rest if name in roles.arrays and by_macro[name] in striped}
    for name in rest:
        outer = owner.inside(by_macro[name])
        if name in out or (outer and roles.candidates[name].bit_count() > 1):
            inner.setdefault(outer, []).append(roles.candidates[name])
    for name in rest:
        kids = inner.get(by_macro[name], [])
        value = roles.candidates[name]
        first = len(kids) > 1 and value % GROUP == 0 and value <= min(kids)
        if name not in roles.arrays and (value in kids or first):
            out.add(name)
    registers = {register.offset for register in roles.registers.values()}
    heads = registers.intersection(roles.candidates[name] for name in out)
    if len(out) > 1:
        out.update(name for name in rest if roles.candidates[name] in heads)
    return out


def _families(
    roles: Roles, loose: Set[str], by_macro: Mapping[str, str], owner: Longest
) -> tuple[list[str], dict[str, list[str]]]:
    """Return two collections of names of offsets: a list of the arrays and of the names that begin
    with no register's name, and the names that begin with a register's name, by this name.

    Offsets whose names begin with a field's name are left out: they are values of the field.
    """
    lone: list[str] = []
    children: dict[str, list[str]] = {}
    for name in roles.facts.ordered:
        if name not in loose:
            continue
        within = []
        sure = []
        for outer in owner.all(by_macro[name]):
            macro = roles.keys.macros.get(outer, "")
            if outer in roles.fields or roles.roles.get(macro) != "group":
                within.append(outer)
            if outer in roles.fields or macro in roles.registers:
                sure.append(outer)
        if name in roles.arrays or not within:
            lone.append(name)
        else:
            around = (sure or within)[0]
            if around not in roles.fields:
                children.setdefault(around, []).append(name)
    return lone, children


def _as_offsets(roles: Roles, names: Iterable[str]) -> set[str]:
    """Return the names whose macros are written as offsets are: in hexadecimal, with a parameter,
    or as an expression.
    """
    plain, hexadecimal = roles.facts.plain, roles.facts.hexadecimal
    out = set()
    for name in names:
        if name in hexadecimal or name not in plain or not LITERAL.fullmatch(plain[name].body):
            out.add(name)
    return out


def _add_lone(roles: Roles, found: Open) -> None:
    """Add an offset whose name begins with no register's name in one of four cases: its name has
    the mark of a register, it is an array of known length, it is near sure registers, or it is in a
    list of offsets.
    """
    facts = roles.facts
    offsets = _numbers(roles, found.hexadecimal)
    listed = _counted(roles, offsets)
    last = max((register.offset for register in roles.registers.values()), default=0)
    words = {first_word(register.macro) for register in roles.registers.values()}
    for name in found.lone:
        if name in found.marks:
            roles.register(found.by_macro[name])
    for name in found.lone if roles.registers else ():
        array = roles.arrays.get(name)
        if array and all(count for count, _ in array.dimensions):
            roles.register(found.by_macro[name])
            continue
        related = first_word(name) in words or roles.keys.spelling == "prefixed"
        free = name not in listed and (name not in facts.used or array)
        near = roles.candidates[name] <= 2 * last + PAST
        if name in found.hexadecimal and related and free and near:
            roles.register(found.by_macro[name])
    chosen = _in_lists(roles, offsets, listed) & found.hexadecimal
    for name in found.lone:
        if name in chosen:
            roles.register(found.by_macro[name])


def _numbers(roles: Roles, names: Set[str]) -> dict[str, int]:
    """Return the offsets of these names and of the registers, and the hexadecimal numbers without a
    role, by name and in the order of the text.
    """
    out = {}
    for name in roles.facts.ordered:
        is_number = name in roles.facts.hexadecimal and name not in roles.roles
        if name in names or name in roles.registers or is_number:
            out[name] = roles.candidates.get(name, roles.facts.values.get(name, 0))
    return out


def _counted(roles: Roles, offsets: Mapping[str, int]) -> set[str]:
    """Return the names of numbers that only count, such as 0, 1 and 2, or 4 between 3 and 5. Such
    numbers are neighbours in the text, their names differ only in the last word, and at least one
    of two neighbours is not a multiple of a word.
    """
    out = set()
    for a, b in pairwise(offsets):
        odd = offsets[a] % WORD_BYTES or offsets[b] % WORD_BYTES
        if odd and a.rpartition("_")[0] == b.rpartition("_")[0]:
            out |= {a, b}
    return out - roles.registers.keys()


def _in_lists(roles: Roles, offsets: Mapping[str, int], listed: Set[str]) -> set[str]:
    """Return the names of the numbers in lists, which are runs of offsets that rise in the order of
    the text.

    If registers are known, only numbers near them are returned. Otherwise, a list needs at least
    two numbers, not all of them possible bits; a single number needs the first word of a name in
    such a list. These numbers are returned if they are at least half of all.
    """
    lists: list[list[str]] = []
    for name in offsets:
        if name in listed or (name in roles.facts.used and name not in roles.registers):
            lists.append([])
        elif lists and lists[-1] and offsets[lists[-1][-1]] < offsets[name]:
            lists[-1].append(name)
        else:
            lists.append([name])
    if roles.registers:
        return {*_near_registers(roles, offsets, lists)}
    good: list[str] = []
    for names in lists:
        if len(names) > 1 and not all(_may_be_bits(name, offsets[name]) for name in names):
            good += names
    words = {*map(first_word, good)}
    for names in lists:
        if len(names) == 1 and first_word(names[0]) in words:
            good += names
    if 2 * len(good) >= len(offsets):
        return {*good}
    return set()


def _may_be_bits(name: str, value: int) -> bool:
    """True if the name of an offset ends as that of a mask, or if the offset is 0 or a single bit
    and its name has no mark of a register."""
    if TAILS.get(name.rpartition("_")[2]) == "mask":
        return True
    return value.bit_count() <= 1 and not MARKED.fullmatch(name)


def _near_registers(
    roles: Roles, offsets: Mapping[str, int], lists: Sequence[list[str]]
) -> Iterable[str]:
    """Yield the names of some numbers of the lists that contain a sure register: numbers before the
    list's last sure register with the first word of a register's name, and numbers whose neighbour
    in the list has the same first word and is at most ``NEAR`` bytes away.
    """
    words = {first_word(name) for name in roles.registers}
    for names in lists:
        sure = [n for n, name in enumerate(names) if name in roles.registers]
        if not sure:
            continue
        for n, name in enumerate(names):
            word = first_word(name)
            near = False
            for other in (*names[max(0, n - 1) : n], *names[n + 1 : n + 2]):
                if first_word(other) == word and abs(offsets[name] - offsets[other]) <= NEAR:
                    near = True
            if near or (n < sure[-1] and word in words):
                yield name


def _direct(roles: Roles, found: Open) -> dict[str, list[str]]:
    """Return the plain numbers without a role, by the register or field with whose name their names
    begin."""
    finder = Longest({*roles.fields, *found.by_macro.values()})
    direct: dict[str, list[str]] = {}
    for name in roles.facts.plain:
        if name in roles.facts.values and name not in roles.roles:
            direct.setdefault(finder.inside(name), []).append(name)
    return direct


def _add_children(
    roles: Roles, found: Open, outer: str, names: Sequence[str], direct: Sequence[str]
) -> None:
    """Add the register ``outer`` and the numbers ``names``, whose names begin with its name, as
    registers, unless these numbers may be bits or values of the register.
    """
    macro = roles.keys.macros[outer]
    numbers = [name for name in names if name in found.hexadecimal]
    family = [macro, *numbers]
    if not found.marks.issuperset(family) and not _are_registers(
        roles, macro, names, numbers, direct
    ):
        return
    for name in family:
        roles.register(found.by_macro.get(name, name))


def _are_registers(
    roles: Roles, macro: str, names: Sequence[str], numbers: Sequence[str], direct: Sequence[str]
) -> bool:
    """True if the numbers are offsets of registers: they rise from the register's offset to the
    next offset in the text, or each is at most two words above an offset just before it. Numbers
    that may be single bits must rise, and be named as the parts of a wide register are. False if
    ``direct`` has another number whose name begins with the register's name.
    """
    if not numbers:
        return False
    offset = roles.candidates[macro]
    values = [roles.candidates[name] for name in numbers]
    others = [roles.facts.values[name] for name in direct if name not in numbers]
    if others:
        return False
    end = _next_offset(roles, macro, len(names) + FAR)
    rising = all(a < b for a, b in pairwise([offset, *values, end]))
    sure = all(LOW_HIGH.fullmatch(name.rpartition("_")[2]) for name in numbers)
    if all(value.bit_count() == 1 for value in values):  # the numbers may be single bits
        return rising and sure
    return rising or all(_follows(roles, name) for name in numbers)


def _next_offset(roles: Roles, macro: str, most: int) -> int:
    """Return the first higher offset among the ``most`` offsets after a register in the text, whose
    name does not begin with the register's name. If there is none, it is ``REACH`` bytes above the
    register.
    """
    offset, at = roles.candidates[macro], roles.place(macro)
    for _, name in roles.by_position[at : at + most]:
        if not name.startswith(f"{macro}_") and roles.candidates[name] > offset:
            return roles.candidates[name]
    return offset + REACH


def _follows(roles: Roles, name: str) -> bool:
    """True if one of the four offsets before an offset in the text is at most two words lower."""
    at = roles.place(name)
    for _, other in roles.by_position[max(0, at - 4) : at]:
        if 0 < roles.candidates[name] - roles.candidates[other] <= 2 * WORD_BYTES:
            return True
    return False
