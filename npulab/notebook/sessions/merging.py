"""Merge the sessions of two people: the result has all that either of them added or changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npulab.notebook.sessions.file import BY_ID, MARKS, SECTIONS, Document, canonical, id_of

DELETED = "deleted on the other side"
Item = Mapping[str, Any]


def merged(base: Document, ours: Document, theirs: Document) -> Document:
    """Return the session with the changes of both sides to ``base``; exchanging the sides gives the
    same session.

    Items that either side added are in it. If both sides changed an item with an id, both versions
    are there, each marked with the id of the other; if one side deleted an item and the other
    changed it, the item stays, marked. If both changed something without an id (a title, the sha256
    of a capture), one of the two values stands, and both are in ``conflicts``. An item that one
    side deleted and the other did not change is gone.
    """
    out: Document = {}
    conflicts = _conflicts(base, ours, theirs)
    for name in dict.fromkeys((*base, *ours, *theirs)):
        if name == "conflicts":
            continue
        was = base.get(name, {})
        a = ours.get(name, {})
        b = theirs.get(name, {})
        if name in BY_ID:
            out[name] = _items(name, was, a, b)
        elif name in SECTIONS:
            out[name] = _keyed(name, was, a, b, conflicts)
        elif name == "version":
            out[name] = max(a, b)
        else:
            out |= _keyed(
                name, _only(base, name), _only(ours, name), _only(theirs, name), conflicts
            )
    return {**out, "conflicts": conflicts}


def _only(document: Document, name: str) -> Document:
    return {key: document[key] for key in document if key == name}


def _items(kind: str, base: Item, ours: Item, theirs: Item) -> Document:
    out: Document = {}
    apart: list[tuple[str, Any]] = []  # (id, the item that cannot have this id)
    for key in sorted({*base, *ours, *theirs}):
        was = base.get(key)
        a = ours.get(key)
        b = theirs.get(key)
        marks = _marks(was, a, b)
        was = bare(was)
        a = bare(a)
        b = bare(b)
        if a == b or b == was:
            kept = a
        elif a == was:
            kept = b
        elif a is None:
            kept = b
            marks.add(DELETED)
        elif b is None:
            kept = a
            marks.add(DELETED)
        else:
            kept, other = sorted((a, b), key=canonical)
            apart.append((key, other))
        if kept is not None:
            out[key] = _marked(kept, marks)
    for key, other in apart:
        new = id_of(kind, key, other)
        while new in out and bare(out[new]) != other:
            new = id_of(kind, new, other)
        out[key] = _marked(out[key], {*out[key].get(MARKS, ()), new})
        out[new] = _marked(other, {*out.get(new, {}).get(MARKS, ()), key})
    return out


def _keyed(place: str, base: Item, ours: Item, theirs: Item, conflicts: Document) -> Document:
    out: Document = {}
    for key in sorted({*base, *ours, *theirs}):
        was = base.get(key)
        a = ours.get(key)
        b = theirs.get(key)
        if a == b or b == was:
            kept = a
        elif a == was or a is None:
            kept = b
        elif b is None:
            kept = a
        else:
            kept, other = sorted((a, b), key=canonical)
            name = f"{place} {key}"
            if place == key:
                name = key
            if place not in ("view", "views"):  # two people may look at different views
                conflicts[name] = _union(conflicts.get(name, []), [kept, other])
        if kept is not None:
            out[key] = kept
    return out


def _conflicts(base: Document, ours: Document, theirs: Document) -> Document:
    """Return the entries of ``conflicts`` of both sides that neither side resolved."""
    was = base.get("conflicts", {})
    a = ours.get("conflicts", {})
    b = theirs.get("conflicts", {})
    conflicts = {}
    for name in sorted({*a, *b}):
        if name not in was or (name in a and name in b):
            conflicts[name] = _union(a.get(name, []), b.get(name, []))
    return conflicts


def _union(a: list[Any], b: list[Any]) -> list[Any]:
    """Return the distinct values of both lists, sorted by their JSON text."""
    by_text = {canonical(value): value for value in a + b}
    return [by_text[text] for text in sorted(by_text)]


def bare(item: Any) -> Any:
    """Return an item without the marks that merges left in it; None for None."""
    if item is None:
        return None
    return {name: value for name, value in item.items() if name != MARKS}


def _marks(was: Any, a: Any, b: Any) -> set[str]:
    """Return the marks (ids of contradicting items) that either side has, without the marks that
    one of the sides took away.
    """
    before = _marks_of(was)
    marks = _marks_of(a) | _marks_of(b)
    for side in (a, b):
        if side:
            marks -= before - _marks_of(side)
    return marks


def _marks_of(item: Any) -> set[str]:
    if item is None:
        return set()
    return set(item.get(MARKS, ()))


def _marked(item: Item, marks: set[str]) -> Document:
    if marks:
        return {**item, MARKS: sorted(marks)}
    return bare(item)
