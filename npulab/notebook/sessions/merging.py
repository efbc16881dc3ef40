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

    The result has the items that either side added. Of an item with an id that both sides changed
    it has both versions, each marked with the id of the other version. An item that one side
    deleted and the other side changed stays, marked if it has an id; an item that one side deleted
    and the other side did not change is gone. If both sides changed a value without an id (a title,
    the sha256 of a capture), the result has one of the two values, and both values in
    ``conflicts``.
    """
    out: Document = {}
    conflicts = _conflicts(base, ours, theirs)
    for name in dict.fromkeys((*base, *ours, *theirs)):
        was, a, b = (document.get(name, {}) for document in (base, ours, theirs))
        if name in BY_ID:
            out[name] = _items(name, was, a, b)
        elif name in SECTIONS and name != "conflicts":
            out[name] = _keyed(name, was, a, b, conflicts)
    was, a, b = map(_without_sections, (base, ours, theirs))
    out |= _keyed("", was, a, b, conflicts)
    out["version"] = max(ours["version"], theirs["version"])
    return {**out, "conflicts": conflicts}


def _without_sections(document: Document) -> Document:
    left_out = {*SECTIONS, "version"}
    return {name: value for name, value in document.items() if name not in left_out}


def _items(kind: str, base: Item, ours: Item, theirs: Item) -> Document:
    out: Document = {}
    apart: list[tuple[str, Any]] = []  # (id, second version, which needs an id of its own)
    for key in sorted({*base, *ours, *theirs}):
        was = base.get(key)
        a = ours.get(key)
        b = theirs.get(key)
        marks = _marks(was, a, b)
        was = bare(was)
        a = bare(a)
        b = bare(b)
        kept, other = _chosen(was, a, b)
        if other is not None:
            apart.append((key, other))
        if kept is not None:
            if None in (a, b) and was not in (None, kept):
                marks.add(DELETED)
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
        kept, other = _chosen(was, a, b)
        name = f"{place} {key}".strip()
        # views of two people may differ without a conflict
        if other is not None and place != "views" and name != "view":
            conflicts[name] = _union(conflicts.get(name, []), [kept, other])
        if kept is not None:
            out[key] = kept
    return out


def _chosen(was: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """Return the version of an item that stays, and the version that contradicts it.

    The first is None if the item is deleted. The second is None unless both sides changed the item
    in different ways; a deletion gives no second version. ``was`` is the version that both sides
    began with, ``a`` and ``b`` are the sides' versions, each None if there is no such item.
    """
    if a == b or b == was:
        return a, None
    if a == was or a is None:
        return b, None
    if b is None:
        return a, None
    first, second = sorted((a, b), key=canonical)
    return first, second


def _conflicts(base: Document, ours: Document, theirs: Document) -> Document:
    """Return the entries of ``conflicts`` that stay: entries that are new on a side, and entries
    that both sides still have.
    """
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
