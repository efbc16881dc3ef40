"""The names that rnndb files declare, and the attributes of their elements."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from npulab.registers.formats.placing import NO_WORD, Enums, Losses
from npulab.registers.formats.xml import Element

NUMBER = re.compile(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20}")
MOST_STEPS = 2**19  # registers, array elements and fields that are looked at
WORDS = ("doc", "brief")


@dataclass(frozen=True)
class Names:
    """The names that the files declare, and what could not be carried over."""

    enums: Enums = field(default_factory=lambda: Enums({}))
    order: dict[str, list[str]] = field(default_factory=dict)
    bitsets: dict[str, Element] = field(default_factory=dict)
    groups: dict[str, Element] = field(default_factory=dict)
    domains: set[str] = field(default_factory=set)
    types: dict[str, str] = field(default_factory=dict)  # of spectype
    used: set[str] = field(default_factory=set)  # groups
    losses: Losses = field(default_factory=Losses)
    steps: Iterator[int] = field(default_factory=lambda: iter(range(MOST_STEPS)))

    def lose(self, one: Element, what: str) -> None:
        """Record what could not be carried over from an element."""
        self.losses.lose(one.where, what)

    def step(self, one: Element) -> None:
        """Count a step; raises ValueError if arrays, groups or bitsets within each other take
        too many."""
        if next(self.steps, None) is None:
            raise ValueError(
                f"{one.where}: {one.tag} {one.get('name')}: got more than {MOST_STEPS} elements, "
                "at most "
                f"{MOST_STEPS} are allowed; its arrays are too long"
            )


def declare(one: Element, names: Names) -> None:
    if one.tag == "enum":
        for inner in one:
            refuse_others(inner, ("value", *WORDS), one)
        _add_enum(names, one, values_in(one, names))
        have = names.order.setdefault(one.get("name"), [])
        have += dict.fromkeys(
            name
            for inner in one
            if inner.tag == "value" and (name := inner.get("name")) not in have
        )
    elif one.tag == "bitset":
        names.bitsets[need(one, "name")] = one
    elif one.tag == "group":
        names.groups[need(one, "name")] = one
    elif one.tag == "spectype":
        names.types[need(one, "name")] = one.get("type")
    elif one.tag == "domain":
        names.domains.add(need(one, "name"))
    if one.tag in ("group", "domain", "array", "stripe"):
        for inner in one:
            declare(inner, names)


def values_in(one: Element, names: Names) -> dict[int, str]:
    """Return the named values that stand in an element."""
    out: dict[int, str] = {}
    for value in one:
        if value.tag != "value":
            continue
        name = need(value, "name")
        if not value.get("value"):
            names.lose(value, f"{name} has no number")
            continue
        raw = number(value, "value")
        if out.get(raw) == name:
            continue
        if raw in out or name in out.values():
            names.lose(
                value,
                f"{name} = {raw}, as "
                + (
                    f"{out[raw]} is {raw} too" if raw in out else f"{name} has another value before"
                ),
            )
            continue
        out[raw] = name
    return out


def _add_enum(names: Names, one: Element, values: Mapping[int, str]) -> None:
    """Add an enum, or more values of an enum that is there."""
    name = NO_WORD.sub("_", need(one, "name"))
    have = names.enums.by_name.setdefault(name, {})
    for raw, text in values.items():
        if raw not in have and text not in have.values():
            have[raw] = text
        elif have.get(raw) != text:
            names.lose(one, f"{text} = {raw} of enum {name}, which is declared otherwise before")


def features_of(
    one: Element,
    around: frozenset[str] | None,
    varset: str,
    names: Names,
) -> tuple[frozenset[str] | None, str]:
    """Return the features that have an element, within those of the elements around it, and the
    varset.

    A range goes from one name of the varset to another in the order of the file, whatever their
    numbers are. Of two varsets the inner one counts: a row has one feature.
    """
    outer, varset = varset, one.get("varset") or varset
    if not one.get("variants"):
        return around, varset
    known = names.order.get(varset, [])
    mine = set[str]()
    for word in one.get("variants").replace(",", " ").split():
        first, dash, last = word.partition("-")
        ends = {end for end in (first, last) if end}
        if word in known or not known:
            mine.add(word)
        elif dash and ends and ends <= {*known}:
            mine |= {
                *known[known.index(first) if first else 0 : known.index(last) + 1 if last else None]
            }
        else:
            raise ValueError(
                f"{one.where}: variants: got {word!r}, allowed are {', '.join(known)} and ranges "
                "of them"
            )
    if around is not None and varset != outer:
        names.lose(
            one,
            f"that {one.get('name') or one.tag} is for {', '.join(sorted(around))} of {outer} "
            "alone",
        )
        around = None
    return frozenset(mine) if around is None else around & mine, varset


def note_of(one: Element) -> str:
    """The brief and docs of an element, on one line."""
    texts = [one.get("brief"), *(inner.text for inner in one if inner.tag in WORDS)]
    return " ".join(" ".join(filter(None, texts)).split())


def refuse_others(one: Element, allowed: Sequence[str], around: Element) -> None:
    if one.tag not in allowed:
        raise ValueError(
            f"{one.where}: got the element {one.tag} in {around.tag} {around.get('name')}".rstrip()
            + f", allowed are {', '.join(allowed)}"
        )


def named(one: Element, attribute: str, known: Mapping[str, Element]) -> Element:
    name = need(one, attribute)
    if name not in known:
        raise ValueError(
            f"{one.where}: {one.tag}: got {name!r}, allowed is one of {', '.join(known) or 'none'}"
        )
    return known[name]


def need(one: Element, attribute: str) -> str:
    if not one.get(attribute):
        raise ValueError(
            f"{one.where}: {one.tag} {one.get('name')}".rstrip()
            + f": got no {attribute}, allowed is one"
        )
    return one.get(attribute)


def number(one: Element, attribute: str, default: int | None = None) -> int:
    if default is None or one.get(attribute):
        return parsed(one, attribute, need(one, attribute))
    return default


def parsed(one: Element, attribute: str, text: str) -> int:
    if not NUMBER.fullmatch(text.strip()):
        raise ValueError(
            f"{one.where}: {one.tag} {one.get('name')}".rstrip()
            + f": got {attribute} {text!r}, allowed "
            "is a whole number, decimal or 0x"
        )
    return int(text, 16 if "x" in text.lower() else 10)
