"""Two people's sessions made one: what either added or changed is in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npulab.notebook.sessions.file import BY_ID, MARKS, SECTIONS, Document, canonical, id_of

DELETED = "deleted on the other side"
Item = Mapping[str, Any]


def merged(base: Document, ours: Document, theirs: Document) -> Document:
    """The session that holds what both sides made of ``base``; which side is which makes no
    difference.

    What was added on either side is there.  An item with an id that both changed is there twice,
    the two marked with each other's id; one that one side deleted and the other changed stays,
    marked.  Of anything else that both changed (a title, the sha256 of a capture) one value stands
    and both are in ``conflicts``.  What one side deleted and the other left as it was is gone.
    """
    out: Document = {}
    conflicts = _conflicts(base, ours, theirs)
    for name in dict.fromkeys((*base, *ours, *theirs)):
        if name in BY_ID:
            out[name] = _items(name, base.get(name, {}), ours.get(name, {}), theirs.get(name, {}))
        elif name in SECTIONS and name != "conflicts":
            out[name] = _keyed(
                name, base.get(name, {}), ours.get(name, {}), theirs.get(name, {}), conflicts
            )
        elif name == "version":
            out[name] = max(ours[name], theirs[name])
        elif name != "conflicts":
            was, a, b = ({name: one[name]} if name in one else {} for one in (base, ours, theirs))
            out |= _keyed(name, was, a, b, conflicts)
    return {**out, "conflicts": conflicts}


def _items(kind: str, base: Item, ours: Item, theirs: Item) -> Document:
    out: Document = {}
    apart: list[tuple[str, Any]] = []  # (id, the version that cannot have it)
    for key in sorted({*base, *ours, *theirs}):
        was, a, b = (_bare(one.get(key)) for one in (base, ours, theirs))
        marks = _marks(*(one.get(key) for one in (base, ours, theirs)))
        if a == b or b == was:
            kept = a
        elif a == was:
            kept = b
        elif a is None or b is None:
            kept, marks = b if a is None else a, marks | {DELETED}
        else:
            kept, other = sorted((a, b), key=canonical)
            apart.append((key, other))
        if kept is not None:
            out[key] = _marked(kept, marks)
    for key, other in apart:
        new = id_of(kind, key, other)
        while new in out and _bare(out[new]) != other:
            new = id_of(kind, new, other)
        out[key] = _marked(out[key], {*out[key].get(MARKS, ()), new})
        out[new] = _marked(other, {*out.get(new, {}).get(MARKS, ()), key})
    return out


def _keyed(place: str, base: Item, ours: Item, theirs: Item, conflicts: Document) -> Document:
    out: Document = {}
    for key in sorted({*base, *ours, *theirs}):
        was, a, b = (one.get(key) for one in (base, ours, theirs))
        if a == b or b == was:
            kept = a
        elif a == was or a is None:
            kept = b
        elif b is None:
            kept = a
        else:
            kept, other = sorted((a, b), key=canonical)
            if place not in ("view", "views"):  # where two people look is no claim
                if place == key:
                    name = key
                else:
                    name = f"{place} {key}"
                conflicts[name] = _union(conflicts.get(name, []), [kept, other])
        if kept is not None:
            out[key] = kept
    return out


def _conflicts(base: Document, ours: Document, theirs: Document) -> Document:
    """Those of either side, without those that one of them settled."""
    was, a, b = (one.get("conflicts", {}) for one in (base, ours, theirs))
    return {
        name: _union(a.get(name, []), b.get(name, []))
        for name in sorted({*a, *b})
        if name not in was or (name in a and name in b)
    }


def _union(a: list[Any], b: list[Any]) -> list[Any]:
    return [value for _, value in sorted({canonical(one): one for one in (*a, *b)}.items())]


def _bare(item: Any) -> Any:
    if item is None:
        return None
    return {name: value for name, value in item.items() if name != MARKS}


def _marks(was: Any, a: Any, b: Any) -> set[str]:
    """The marks of either side, without those that one of them took away."""
    before, ours, theirs = ({*(item or {}).get(MARKS, ())} for item in (was, a, b))
    gone = {mark for mark in before if (a and mark not in ours) or (b and mark not in theirs)}
    return (ours | theirs) - gone


def _marked(item: Item, marks: set[str]) -> Document:
    if marks:
        return {**item, MARKS: sorted(marks)}
    return _bare(item)
