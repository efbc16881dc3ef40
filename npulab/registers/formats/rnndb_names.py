"""The names that rnndb files declare, and the reading of attributes of their elements."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from npulab.registers.fields import Codes, NewCodes
from npulab.registers.formats.placing import NO_WORD, FileEnums, Losses
from npulab.registers.formats.xml import Element
from npulab.support.refuse import refuse_if

NUMBER = re.compile(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20}")
MOST_STEPS = 2**19  # a database has at most so many registers, array elements and fields
WORDS = ("doc", "brief")  # the elements that have texts for people


@dataclass(frozen=True)
class Names:
    """The names that the files declare, and what could not be carried over."""

    enums: FileEnums = field(default_factory=lambda: FileEnums({}))
    # the names of an enum's values in the order of the file, by enum
    order: dict[str, list[str]] = field(default_factory=dict)
    bitsets: dict[str, Element] = field(default_factory=dict)
    groups: dict[str, Element] = field(default_factory=dict)
    domains: set[str] = field(default_factory=set)
    types: dict[str, str] = field(default_factory=dict)  # the type that a spectype stands for
    used: set[str] = field(default_factory=set)  # the groups that a domain uses
    losses: Losses = field(default_factory=Losses)
    # a number for each register, array element or field that is still allowed
    steps: Iterator[int] = field(default_factory=lambda: iter(range(MOST_STEPS)))

    def lose(self, element: Element, what: str) -> None:
        """Record what could not be carried over from an element."""
        self.losses.lose(element.where, what)

    def step(self, element: Element) -> None:
        """Count a register, array element or field; raises ValueError above ``MOST_STEPS``."""
        if next(self.steps, None) is None:
            raise ValueError(
                f"{_where(element)}: got more than {MOST_STEPS} elements, at most {MOST_STEPS} "
                "are allowed; its arrays are too long"
            )


def declare(element: Element, names: Names) -> None:
    """Add the names that an element and the elements inside it declare to ``names``."""
    if element.tag == "enum":
        for inner in element:
            refuse_others(inner, ("value", *WORDS), element)
        _add_enum(names, element, values_in(element, names))
        have = names.order.setdefault(element.get("name"), [])
        for inner in element:
            if inner.tag == "value" and inner.get("name") not in have:
                have.append(inner.get("name"))
    elif element.tag == "bitset":
        names.bitsets[need(element, "name")] = element
    elif element.tag == "group":
        names.groups[need(element, "name")] = element
    elif element.tag == "spectype":
        names.types[need(element, "name")] = element.get("type")
    elif element.tag == "domain":
        names.domains.add(need(element, "name"))
    if element.tag in ("group", "domain", "array", "stripe"):
        for inner in element:
            declare(inner, names)


def values_in(element: Element, names: Names) -> NewCodes:
    """Return the names of the values that stand in an element, by number. A value without a number
    is a loss, and so is a value with only the number or only the name of an earlier value."""
    out: NewCodes = {}
    for value in element:
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
            reason = f"an earlier {name} has another number"
            if raw in out:
                reason = f"{out[raw]} is {raw} too"
            names.lose(value, f"{name} = {raw}, because {reason}")
            continue
        out[raw] = name
    return out


def _add_enum(names: Names, element: Element, values: Codes) -> None:
    """Add an enum, or further values to an enum that was declared before."""
    name = NO_WORD.sub("_", need(element, "name"))
    have = names.enums.by_name.setdefault(name, {})
    for raw, text in values.items():
        if raw not in have and text not in have.values():
            have[raw] = text
        elif have.get(raw) != text:
            names.lose(
                element, f"{text} = {raw} of enum {name}, which is declared otherwise before"
            )


def features_of(
    element: Element,
    around: frozenset[str] | None,
    varset: str,
    names: Names,
) -> tuple[frozenset[str] | None, str]:
    """Return the features that have an element (None: all), and the varset of these features.
    ``around`` and ``varset`` are those of the element around it.

    ``variants`` of the element is a list of names of the varset and of ranges. A range goes from
    one name to another in the order of the file, whatever their numbers are. If the element and the
    elements around it are limited by two varsets, the inner varset counts, because a row has a
    single feature; the outer limit is a loss. Raises ValueError for an unknown name.
    """
    outer, varset = varset, element.get("varset") or varset
    if not element.get("variants"):
        return around, varset
    known = names.order.get(varset, [])
    mine = set[str]()
    for word in element.get("variants").replace(",", " ").split():
        first, dash, last = word.partition("-")
        if word in known or not known:
            mine.add(word)
        elif dash and word != dash and {first, last} <= {"", *known}:
            start = known.index(first or known[0])
            mine.update(known[start : known.index(last or known[-1]) + 1])
        else:
            raise ValueError(
                f"{element.where}: variants: got {word!r}, allowed are {', '.join(known)} and "
                "ranges of them"
            )
    if around is not None and varset != outer:
        features, label = ", ".join(sorted(around)), element.get("name") or element.tag
        names.lose(element, f"that {label} is for {features} of {outer} alone")
    elif around is not None:
        mine &= around
    return frozenset(mine), varset


def note_of(element: Element) -> str:
    """Return the brief and the docs of an element, on one line."""
    texts = [element.get("brief"), *(inner.text for inner in element if inner.tag in WORDS)]
    return " ".join(" ".join(filter(None, texts)).split())


def refuse_others(element: Element, allowed: Sequence[str], around: Element) -> None:
    """Raise ValueError if the tag of an element is not one of those ``allowed`` in the element
    ``around`` it."""
    if element.tag not in allowed:
        got = f"the element {element.tag} in {around.tag} {around.get('name')}".rstrip()
        raise ValueError(f"{element.where}: got {got}, allowed are {', '.join(allowed)}")


def named(element: Element, attribute: str, known: Mapping[str, Element]) -> Element:
    """Return the element in ``known`` that an attribute names; raises ValueError for an unknown
    name."""
    name = need(element, attribute)
    if name not in known:
        names = ", ".join(known) or "none"
        raise ValueError(f"{element.where}: {element.tag}: got {name!r}, allowed is one of {names}")
    return known[name]


def need(element: Element, attribute: str) -> str:
    """Return an attribute; raises ValueError if it is missing or blank."""
    refuse_if(not element.get(attribute), _where(element), f"no {attribute}", "is one")
    return element.get(attribute)


def number(element: Element, attribute: str, default: int | None = None) -> int:
    """Return an attribute that is a number, or the default if it is missing; raises ValueError if
    there is no default, and for a text that is no number."""
    if default is None or element.get(attribute):
        return parsed(element, attribute, need(element, attribute))
    return default


def parsed(element: Element, attribute: str, text: str) -> int:
    """Return the number in a text of an attribute; raises ValueError for other texts."""
    wrong = not NUMBER.fullmatch(text.strip())
    got = f"{attribute} {text!r}"
    refuse_if(wrong, _where(element), got, "is a whole number, decimal or 0x")
    # base 0 of Python refuses decimal numbers with zeros in front, which these files may have
    return int(text, 16 if "x" in text.lower() else 10)


def _where(element: Element) -> str:
    """Return the place of an element for errors: file, line, tag and name."""
    return f"{element.where}: {element.tag} {element.get('name')}".rstrip()
