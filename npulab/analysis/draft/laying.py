"""Edits that lay bits out anew: split, join, add, move, resize, shift.

Each takes a table and gives the table after it and its sentence; whether that is still a map is
checked behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Any

from npulab.analysis.draft.naming import bits_of, elsewhere, labelled_field, plain_name, rows_of
from npulab.analysis.draft.table import Run, Table, number
from npulab.registers.expansion import SHAPE, shaped
from npulab.registers.fields import WORD_BITS, WORD_BYTES, Field
from npulab.registers.meaning import FLOATS, Meaning

WEAKER = ("unknown", "guess")
NOT_SPLIT = {"value": "", "address": "", "align": None}


def split(
    table: Table, field: str, widths: Sequence[int], names: Sequence[str] = ()
) -> tuple[Table, str]:
    """Cut a field, from the low end of its value, into parts of these widths.

    Without ``names`` the lowest part keeps the name and the others have none; a blank name leaves a
    part without one.
    Parts are plain numbers, with the field's evidence.
    """
    label, item = labelled_field(table, field)
    _in_one_place(table, item, f"split {label}")
    if len(widths) < 2 or min(widths) < 1 or sum(widths) != item.width:
        raise ValueError(
            f"split {label}: got widths {', '.join(map(str, widths)) or 'none'}, allowed are at "
            "least two "
            f"that add up to {item.width}"
        )
    names = list(names) or ["" if item.automatic else item.name, *[""] * (len(widths) - 1)]
    if len(names) != len(widths):
        raise ValueError(
            f"split {label}: got {len(names)} names, allowed are {len(widths)}, one for each part"
        )
    names = [plain_name(name, "split", label) if name.strip() else "" for name in names]
    runs = [(run.at or 0, run) for run in table.runs_of(item)]
    table, keys = rows_of(table, item)
    model = table.rows[keys[0]]
    low = 0
    for name, width in zip(names, widths, strict=True):
        part = [
            _cut(run, low, width) for at, run in runs if at < low + width and low < at + run.width
        ]
        mine = [key for key, (at, _) in zip(keys, runs, strict=True) if low <= at < low + width]
        if not part:
            raise ValueError(
                f"split {label}: got a part of bits {low} to {low + width - 1}, which no run holds"
            )
        whole = not name or (len(part) == 1 and not part[0].at)
        table = table.laid(
            mine,
            [run._replace(at=None) for run in part] if whole else part,
            {"field": name, **NOT_SPLIT},
            model,
        )
        low += width
    parts = ", ".join(
        f"{name or 'no name'} ({width})" for name, width in zip(names, widths, strict=True)
    )
    return table, f"split {label} into {parts}"


def join(table: Table, low: str, high: str, name: str = "") -> tuple[Table, str]:
    """Make one field of two, the bits of ``high`` above those of ``low``; two runs side by side in
    a register, named in either order, are one run.

    Without a name it is that of the lower one or, where this has none, of the other.
    """
    (label, a), (other, b) = labelled_field(table, low), labelled_field(table, high)
    same = a == b or (a.declared and table.keys_of(a) == table.keys_of(b))
    if same or a.block != b.block:
        raise ValueError(
            f"join {label} and {other}: got "
            f"{'the same field' if same else 'fields of two blocks'}, "
            "allowed are two fields of one block"
        )
    for item in (a, b):
        _in_one_place(table, item, f"join {label} and {other}")
    first, second = table.runs_of(a), table.runs_of(b)
    if (
        len(first) == len(second) == 1
        and second[0][:2] == first[0][:2]
        and second[0].lsb + second[0].width == first[0].lsb
    ):
        (label, a, first), (other, b, second) = (other, b, second), (label, a, first)
    named = next((item.name for item in (a, b) if not item.automatic), "")
    name = plain_name(name or named, "join", f"{label}, {other}")
    runs = _merged(
        [run._replace(at=run.at or 0) for run in first]
        + [run._replace(at=(run.at or 0) + a.width) for run in second]
    )
    if len(runs) == 1:
        runs = [runs[0]._replace(at=None)]
    table, keys = rows_of(table, a)
    table, more = rows_of(table, b)
    rows = table.rows
    values = {
        key: [rows[of[0]].get(key, "") for of in (keys, more)]
        for key in ("value", "address", "align")
    }
    kept = {
        key: both[0] if both[0] == both[1] else "" if all(both) else both[0] or both[1]
        for key, both in values.items()
    }
    if Meaning.parse(kept["value"]).kind in FLOATS:  # a float has no other bits
        kept["value"] = ""
    notes = [rows[key].get("note", "") for key in (*keys, *more)]
    if len(runs) < len(notes):
        kept["note"] = "; ".join(dict.fromkeys(filter(None, notes)))
    table = table.laid(
        [*keys, *more], runs, {"field": name, **NOT_SPLIT, "evidence": _evidence(a, b)}
    )
    (key,) = (key for key, run in table.runs.items() if run[:3] == runs[0][:3])
    return table.changed(key, kept), f"join {label} and {other} as {name}"


def add(
    table: Table,
    name: str,
    register: str | int,
    lsb: int,
    width: int,
    offset: int | None = None,
    value: str = "",
    evidence: str = "guess",
    note: str = "",
) -> tuple[Table, str]:
    """Name bits that have no name; with an ``offset`` in a register that is new, by its name (of
    the first block) or block.name."""
    name = plain_name(name, "add", str(register))
    if offset is None:
        run, new = bits_of(table, register, lsb, width)[0], ""
    else:
        block, new = _new_register(table, str(register), offset)
        run = Run(block, offset, lsb, width)
    table, feature = table.cleared(run)
    table, _ = table.added(
        run,
        {
            "field": name,
            "value": value.strip(),
            "feature": feature,
            "evidence": evidence.strip() or "unknown",
            "note": note.strip(),
            "register": new,
        },
    )
    if width == 1:
        where = f"bit {lsb}"
    else:
        where = f"bits {lsb} to {lsb + width - 1}"
    return table, f"add {name} in {register} at {where}"


def move(
    table: Table, field: str, register: str | int, lsb: int, width: int = 0
) -> tuple[Table, str]:
    """Put a field of one run where no field is, as wide as it is or as ``width`` says; its bits
    have automatic names again."""
    label, item = labelled_field(table, field)
    run, keys = _one_run(table, item, f"move {label}")
    if width and width != run.width:
        steps = [partial(resize, width=width), partial(move, register=register, lsb=lsb)]
        told = []
        for step in steps if width < run.width else reversed(steps):
            table, sentence = step(table, field)
            told.append(sentence)
        return table, f"{told[0]}, {told[1]}"
    target, name = bits_of(table, register, lsb, run.width)
    target, before = target._replace(at=run.at), table.map
    if target[:2] == run[:2]:
        table = table.laid(keys, [target], {})
    else:
        table = _carried(table, keys[0], target)
    return table.cleared(target)[0].kept(before), f"move {label} to {name} bit {target.lsb}"


def resize(table: Table, field: str, width: int, shift: bool = False) -> tuple[Table, str]:
    """Give a field of one run another width, its lowest bit staying; what it gains must have no
    name.

    With ``shift`` it and everything behind it in its block lies anew, as C lays out bit-fields: one
    behind the other, and in the next word where it does not fit into what is left of one.  What
    lies behind a gap that C would not have made stays, unless something is pushed onto it.
    """
    label, item = labelled_field(table, field)
    run, (key,) = _one_run(table, item, f"resize {label}")
    most = number(table.rows[key], "bits") or WORD_BITS
    if not 1 <= width <= most:
        raise ValueError(f"resize {label}: got {width} bits, allowed is 1 to {most}")
    sentence = f"resize {label} from {run.width} to {width} bits"
    if shift:
        return _behind(table, key, width, label), f"{sentence}, with everything behind it"
    return table.changed(key, {"width": width}).cleared(run._replace(width=width))[0], sentence


def shift(table: Table, field: str, by: int, out_of: str = "") -> tuple[Table, str]:
    """Move a field and those behind it by so many bits (up; down where it is negative), up to the
    run that gives its bits: ``out_of``, or else the next bits without a name.  What gets free on
    the other side has no name.
    """
    label, item = labelled_field(table, field)
    run, _ = _one_run(table, item, f"shift {label}", named=False)
    if by > 0:
        sign = 1
    else:
        sign = -1
    beyond = sorted(
        (
            (near, other)
            for other in table.map
            for near in table.runs_of(other)
            if near[:2] == run[:2] and sign * (near.lsb - run.lsb) > 0
        ),
        key=lambda pair: sign * pair[0].lsb,
    )
    wanted = (
        table.map[out_of]
        if out_of
        else next(
            (other for near, other in beyond if other.automatic and near.width >= abs(by)), None
        )
    )
    giver = next((near for near, other in beyond if other == wanted), None)
    if not by or wanted is None or giver is None or giver.width < abs(by) + (not wanted.automatic):
        got = f"{by} bits" + (f" out of {out_of}" if out_of else "")
        raise ValueError(
            f"shift {label}: got {got}, allowed is a run {'above' if by > 0 else 'below'} it in "
            "its "
            "register that has more bits than that"
        )
    before = table.map
    keys = {near[:3]: key for key, near in table.runs.items()}
    last = label
    for near, other in [(run, item), *takewhile(lambda pair: pair[0] != giver, beyond)]:
        last = before.key(other)
        if near[:3] in keys:
            table = table.changed(keys[near[:3]], {"lsb": near.lsb + by})
    if giver[:3] in keys:
        key, left = keys[giver[:3]], giver.width - abs(by)
        if left:
            table = table.changed(key, {"lsb": giver.lsb + max(by, 0), "width": left})
        else:
            table = table.without(key)
    many = ""
    if last != label:
        many = f" to {last}"
    way = f"{'up' if by > 0 else 'down'} by {abs(by)} bit{'s' * (abs(by) > 1)}"
    return table, f"shift {label}{many} {way}, out of {before.key(wanted)}"


# ---- what the edits share ----


def _new_register(table: Table, register: str, offset: int) -> tuple[str, str]:
    """Block and name of a register that a field is added to, by its name or block.name."""
    blocks = list(dict.fromkeys(block for block, _, _ in table.map.registers))
    front, _, name = register.rpartition(".")
    if front in blocks:
        block, name = front, name
    else:
        block, name = blocks[0], register
    known = table.register(Run(block, offset, 0, 0))
    if known not in ("", name):
        raise ValueError(
            f"add: got register {name!r} at offset {offset:#x}, where {known} is, allowed is that "
            "name"
        )
    return block, plain_name(name, "add", "a register")


def _one_run(table: Table, item: Field, what: str, named: bool = True) -> tuple[Run, list[int]]:
    runs = table.runs_of(item)
    if len(runs) != 1 or (named and item.automatic):
        got = "bits without a name"
        if len(runs) > 1:
            got = f"a field of {len(runs)} runs"
        raise ValueError(f"{what}: got {got}, allowed is a field of one run of bits")
    return runs[0], table.keys_of(item)


def _in_one_place(table: Table, item: Field, what: str) -> None:
    """Refuse to change the places in a split field of which chips with other features have more."""
    other = elsewhere(table, item)
    if other:
        feature = table.rows[other[0]]["feature"]
        raise ValueError(
            f"{what}: got {item.name}, of which chips with {feature} have another piece, allowed "
            "is a "
            "draft with that feature"
        )


def _cut(run: Run, low: int, width: int) -> Run:
    """What a part of a value, from a bit on, has of a run."""
    at = run.at or 0
    first, last = max(at, low), min(at + run.width, low + width)
    return run._replace(lsb=run.lsb + first - at, width=last - first, at=first - low)


def _merged(runs: Sequence[Run]) -> list[Run]:
    """Runs that follow one another in value and register as one."""
    out: list[Run] = []
    for run in runs:
        last = None
        if out:
            last = out[-1]
        if (
            last
            and last[:2] == run[:2]
            and last.lsb + last.width == run.lsb
            and (last.at or 0) + last.width == run.at
        ):
            out[-1] = last._replace(width=last.width + run.width)
        else:
            out.append(run)
    return out


def _evidence(a: Field, b: Field) -> str:
    """How sure two fields are as one: the weaker of the two, where both have a name."""
    if a.automatic or b.automatic:
        if a.automatic:
            return b.evidence
        return a.evidence
    return next((one for one in WEAKER if one in (a.evidence, b.evidence)), a.evidence)


def _carried(table: Table, key: int, target: Run) -> Table:
    """With a row in another register, its note with it."""
    row = {
        name: text
        for name, text in table.rows[key].items()
        if name not in (*Run._fields, "word", "register", *SHAPE)
    }
    table, _ = table.added(target, row)
    return table.without(key)


def _behind(table: Table, key: int, width: int, label: str) -> Table:
    """A row and those behind it in its block laid out anew, the row with another width."""
    block = table.runs[key].block
    order = sorted((run, one) for one, run in table.runs.items() if run.block == block)
    start = next(place for place, (_, one) in enumerate(order) if one == key)
    mine = {one for one in table.rows if table.rows[one].get("block", "") == block}
    if mine != {one for _, one in order} or shaped(table.rows[one] for one in mine):
        raise ValueError(
            f"resize {label}: got a block with arrays or rows of other features, allowed with "
            "shift is "
            "one without"
        )
    old = new = _end(order[start - 1][0]) if start else 0
    names = {run[:2]: table.register(run) for run, _ in order}
    for run, one in order[start:]:
        first, wide = _end(run) - run.width, width if one == key else run.width
        left = -old % WORD_BITS
        packed = first == old or (
            left and first - old == left < run.width
        )  # C leaves what does not suffice
        if not packed:
            new = max(new, first)
        if new % WORD_BITS + wide > WORD_BITS:
            new += -new % WORD_BITS
        target = Run(block, new // WORD_BITS * WORD_BYTES, new % WORD_BITS, wide)
        values: dict[str, Any] = {"offset": target.offset, "lsb": target.lsb, "width": wide}
        if table.rows[one].get("register"):
            values["register"] = names.get(target[:2], "")
        table = table.changed(one, values)
        old, new = _end(run), new + wide
    return table


def _end(run: Run) -> int:
    """The bit behind a run, counted from the start of its block."""
    return run.offset * WORD_BITS // WORD_BYTES + run.lsb + run.width
