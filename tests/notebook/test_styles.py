"""The style sheets of the views: on a page with several of them none changes the look of another,
in whatever order they are shown.

Each view brings its whole style, and the one that is shown last comes last. Of two rules of equal
weight the later one holds, so that rules of one view must not match what another one draws, and a
view's own rules must not rely on coming after the shared ones.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from npulab.notebook import widgets

IS = re.compile(r":is\(([^()]*)\)")
FOLDER = Path(widgets.__file__).parent
# what each file may style: classes that nothing else has
ROOTS = {
    "bisect_view": ["npulab-bisect"],
    "byte_view": ["npulab-bytes"],
    "diff_view": ["npulab-diff"],
    "explore_view": ["npulab-explore"],
    "law_view": ["npulab-laws"],
    "map_editor": ["npulab-map", "npulab-map-bits"],
    "operators_view": ["npulab-operators"],
    "output_view": ["npulab-outputs"],
    "stream_view": ["npulab-stream", "npulab-stream-bits"],
    "sweep_view": ["npulab-sweep"],
    "bits_view": [
        "npulab-bits",
        "npulab-status",
        "npulab-grid",
        "npulab-row",
        "npulab-name",
        "npulab-hex",
        "npulab-head",
        "npulab-bit",
    ],
}
# files that come in front of others, and in front of which
SHARED = {"frame": [*ROOTS], "bits_view": ["sweep_view", "map_editor", "stream_view"]}
# roots that have a class of a shared file too
HOLDERS = ("npulab-map", "npulab-stream")  # views with bits below what is their own
TABLES = {f"{name} >" for name in HOLDERS}
OUTER = {names[0] for names in ROOTS.values()} - {"npulab-sweep"} | TABLES
ALSO = dict.fromkeys(("npulab-sweep", "npulab-map-bits", "npulab-stream-bits"), "npulab-bits")


class Rule(NamedTuple):
    """One choice of a selector, with its declarations; ``last`` is what the styled element
    itself has to be.
    """

    selector: str
    last: str
    weight: tuple[int, int, int]
    properties: frozenset[str]


def rules(name: str) -> list[Rule]:
    text = re.sub(
        r"/\*.*?\*/", "", (FOLDER / f"{name}.css").read_text(encoding="utf-8"), flags=re.DOTALL
    )
    text = re.sub(r"@(media|container)[^{]*\{((?:[^{}]*\{[^{}]*\})*)[^{}]*\}", r"\2", text)
    found = []
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", text):
        properties = frozenset(
            line.split(":")[0].strip() for line in body.split(";") if ":" in line
        )
        for selector in split(selectors):
            for one in choices(selector):
                found.append(
                    Rule(one, re.split(r"[\s>+~]+", one)[-1], weight(selector), properties)
                )
    return found


def split(selectors: str) -> list[str]:
    """The parts of a list, of which those in brackets are not taken apart."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", selectors)]


def choices(selector: str) -> list[str]:
    """A selector for each choice of its ``:is()``."""
    match = IS.search(selector)
    if match is None:
        return [selector]
    each = [
        selector[: match.start()] + choice + selector[match.end() :] for choice in split(match[1])
    ]
    return [one for chosen in each for one in choices(chosen)]


def weight(selector: str) -> tuple[int, int, int]:
    """Ids, classes and elements, as the cascade counts them; ``:is()`` weighs as the heaviest of
    its choices.
    """
    plain = re.sub(r'"[^"]*"', "", selector)
    plain = IS.sub(lambda match: max(split(match[1]), key=weight), plain)
    plain = re.sub(r":not\(([^()]*)\)", r"\1", plain)
    ids = re.findall(r"#", plain)
    classes = re.findall(r"\.[\w-]+|\[[^\]]*\]|(?<!:):(?!:)[\w-]+", plain)
    elements = re.findall(r"(?:^|[\s>+~])[a-z]\w*|::[\w-]+", plain)
    return len(ids), len(classes), len(elements)


def names(compound: str) -> tuple[set[str], str]:
    """The classes of an element and its tag, without what follows on its state."""
    plain = re.sub(r":not\([^()]*\)", "", compound)
    classes = set(re.findall(r"\.([\w-]+)", plain))
    classes |= {ALSO[name] for name in classes if name in ALSO}
    tag = re.match(r"[a-z][\w]*", plain)
    return classes, tag[0] if tag else ""


def root(selector: str) -> str:
    """The view in which a selector looks; what stands directly in a view with bits below is not in
    its bits.
    """
    found = re.match(r"\.(npulab-[a-z-]+)( > )?", selector)
    name = found[1] if found else ""
    if found and found[2] and name in HOLDERS:
        return f"{name} >"
    return ALSO.get(name, name)


def same_view(a: str, b: str) -> bool:
    """Whether one view can hold what both selectors ask for; there are bits in some."""
    views = {root(a), root(b)} & OUTER
    return len(views) <= 1 or any(
        views in ({name, "npulab-bits"}, {name, f"{name} >"}) for name in HOLDERS
    )


def same_element(a: Rule, b: Rule) -> bool:
    """Whether an element can be what both ask for: it has one class or tag that both name, or
    one of them names none.
    """
    (some, tag), (others, other) = names(a.last), names(b.last)
    if (
        ("::" in a.last) != ("::" in b.last)
        or (tag and other and tag != other)
        or not same_view(a.selector, b.selector)
    ):
        return False
    return (
        bool(some & others)
        or (bool(tag) and tag == other)
        or not (some or tag)
        or not (others or other)
    )


def overlap(a: frozenset[str], b: frozenset[str]) -> set[str]:
    """Properties that both set, a shorthand and its parts included."""
    return {
        min(x, y, key=len)
        for x, y in product(a, b)
        if x == y or x.startswith(f"{y}-") or y.startswith(f"{x}-")
    }


@pytest.mark.parametrize("name", ROOTS)
def test_a_view_styles_what_it_draws_and_nothing_else(name: str) -> None:
    wrong = [
        rule.selector
        for rule in rules(name)
        if not any(re.search(rf"\.{own}(?![\w-])", rule.selector) for own in ROOTS[name])
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("shared", "name"), [(shared, name) for shared, under in SHARED.items() for name in under]
)
def test_no_rule_relies_on_coming_after_a_shared_one(shared: str, name: str) -> None:
    pairs = product(rules(shared), rules(name))
    wrong = [
        (first.selector, then.selector, overlap(first.properties, then.properties))
        for first, then in pairs
        if first.weight == then.weight
        and same_element(first, then)
        and overlap(first.properties, then.properties)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (".npulab-sweep .item", (0, 2, 0)),
        (".npulab-bits.npulab-sweep .item", (0, 3, 0)),
        (".a b:hover", (0, 2, 1)),
        (".a .b::after", (0, 2, 1)),
        (".a:not(.b) .c", (0, 3, 0)),
        ('.a [data-status="x y"]', (0, 2, 0)),
        (".a .b > c", (0, 2, 1)),
    ],
)
def test_weights_are_those_of_the_cascade(selector: str, expected: tuple[int, int, int]) -> None:
    assert weight(selector) == expected


def test_a_choice_weighs_as_the_heaviest() -> None:
    assert weight(".npulab-bits :is([hidden], .item[hidden])") == (0, 3, 0)
    assert choices(".a :is(input, .b) :is(c, d)") == [
        ".a input c",
        ".a input d",
        ".a .b c",
        ".a .b d",
    ]
