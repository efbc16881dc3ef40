"""Edits that lay bits out anew: split, join, add, move, resize, shift.

Each edit takes a table and returns the edited table and a sentence that says what was done. The
draft then checks whether the edited table still makes a map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npulab.analysis.draft.naming import bits_of, elsewhere, labelled_field, plain_name, rows_of
from npulab.analysis.draft.table import (
    BitRun,
    Edited,
    MapTable,
    cells_without_place,
    number,
)
from npulab.registers.expansion import shaped
from npulab.registers.fields import WORD_BITS, WORD_BYTES, Field
from npulab.registers.meaning import FLOATS, Meaning
from npulab.support.text import plural

WEAKER = ("unknown", "guess")
NOT_SPLIT = {"value": "", "address": "", "align": None}


def split(table: MapTable, field: str, widths: Sequence[int], names: Sequence[str] = ()) -> Edited:
    """Cut a field into parts of these widths, beginning at the low end of its value.

    Without ``names`` the lowest part keeps the field's name and all higher parts have no name. A
    blank name leaves its part without a name. All parts are plain numbers and keep the field's
    evidence.
    """
    label, item = labelled_field(table, field)
    what = f"split {label}"
    _refuse_other_pieces(table, item, what)
    if len(widths) < 2 or min(widths) < 1 or sum(widths) != item.width:
        got = ", ".join(map(str, widths)) or "none"
        allowed = f"at least two that add up to {item.width}"
        raise ValueError(f"{what}: got widths {got}, allowed are {allowed}")
    names = _names_of_parts(item, label, len(widths), names)
    runs = table.runs_of(item)
    table, keys = rows_of(table, item)
    model = table.rows[keys[0]]
    low = 0
    parts = []
    for name, width in zip(names, widths, strict=True):
        parts.append(f"{name or 'no name'} ({width})")
        end = low + width
        part: list[BitRun] = []
        begun = []  # keys of rows whose run begins in this part
        for key, run in zip(keys, runs, strict=True):
            at = run.at or 0
            if at < end and low < at + run.width:
                part.append(_cut(run, low, end))
            if low <= at < end:
                begun.append(key)
        if not part:
            bits = f"bits {low} to {end - 1}"
            allowed = "parts that have a bit of a run"
            raise ValueError(
                f"{what}: got a part of {bits}, where no run is, allowed are {allowed}"
            )
        contiguous = len(part) == 1 and not part[0].at
        if contiguous or not name:
            part = [run._replace(at=None) for run in part]
        values = {"field": name, **NOT_SPLIT}
        table = table.laid(begun, part, values, model)
        low = end
    return table, f"{what} into {', '.join(parts)}"


def join(table: MapTable, low: str, high: str, name: str = "") -> Edited:
    """Make one field of two, the bits of ``high`` above those of ``low``. Two runs that are
    neighbours in a register, named in either order, become one run.

    Without ``name`` the joined field has the name of the lower field or, if that has none, of the
    other field.
    """
    low, a = labelled_field(table, low)
    high, b = labelled_field(table, high)
    what = f"join {low} and {high}"
    same_rows = a.declared and table.keys_of(a) == table.keys_of(b)
    got = ""
    if a == b or same_rows:
        got = "the same field"
    elif a.block != b.block:
        got = "fields of two blocks"
    if got:
        raise ValueError(f"{what}: got {got}, allowed are two fields of one block")
    _refuse_other_pieces(table, a, what)
    _refuse_other_pieces(table, b, what)
    if _lies_below(table.runs_of(b), table.runs_of(a)):
        low, a, high, b = high, b, low, a
    runs = []
    for item, first in ((a, 0), (b, a.width)):
        if not name and not item.automatic:
            name = item.name
        for run in table.runs_of(item):
            at = first + (run.at or 0)
            runs.append(run._replace(at=at))
    name = plain_name(name, "join", f"{low}, {high}")
    runs = _merged(runs)
    if len(runs) == 1:
        runs = [runs[0]._replace(at=None)]
    table, lower = rows_of(table, a)
    table, upper = rows_of(table, b)
    kept = _common_cells(table.rows[lower[0]], table.rows[upper[0]])
    keys = lower + upper
    notes = [table.rows[key].get("note", "") for key in keys]
    if len(runs) < len(notes):
        different = dict.fromkeys(filter(None, notes))
        kept["note"] = "; ".join(different)
    values = {"field": name, **NOT_SPLIT, "evidence": _evidence(a, b)}
    table = table.laid(keys, runs, values)
    lowest = runs[0][:3]
    [key] = [key for key, run in table.runs.items() if run[:3] == lowest]
    table = table.changed(key, kept)
    return table, f"join {low} and {high} as {name}"


def add(
    table: MapTable,
    name: str,
    register: str | int,
    lsb: int,
    width: int,
    offset: int | None = None,
    value: str = "",
    evidence: str = "guess",
    note: str = "",
) -> Edited:
    """Name bits that have no name. With an ``offset`` they are in a new register, and ``register``
    is its name (in the first block) or block.name.
    """
    # stored drafts name these parameters, so they are not replaced by one dataclass
    name = plain_name(name, "add", str(register))
    evidence = evidence.strip() or "unknown"
    values = {"field": name, "value": value.strip(), "evidence": evidence, "note": note.strip()}
    if offset is None:
        run, register = bits_of(table, register, lsb, width)
    else:
        block, values["register"] = _new_register(table, str(register), offset)
        run = BitRun(block, offset, lsb, width)
    table, values["feature"] = table.cleared(run)
    table, _ = table.added(run, values)
    where = f"bits {lsb} to {lsb + width - 1}"
    if width == 1:
        where = f"bit {lsb}"
    return table, f"add {name} in {register} at {where}"


def move(table: MapTable, field: str, register: str | int, lsb: int, width: int = 0) -> Edited:
    """Move a field of one run to bits without a name. It keeps its width, or gets ``width``. The
    bits that it leaves have automatic names again.
    """
    label, item = labelled_field(table, field)
    run = _one_run(table, item, f"move {label}")
    [key] = table.keys_of(item)
    if width and width != run.width:
        # The field moves while it has the smaller of the old and the new width, so that neither
        # place needs room for more bits than the field has in the end.
        if width < run.width:
            table, first = resize(table, field, width)
            table, second = move(table, field, register, lsb)
        else:
            table, first = move(table, field, register, lsb)
            table, second = resize(table, field, width)
        return table, f"{first}, {second}"
    before = table.map
    target, name = bits_of(table, register, lsb, run.width)
    target = target._replace(at=run.at)
    if target[:2] == run[:2]:
        table = table.laid([key], [target], {})
    else:
        table = _carried(table, key, target)
    table, _ = table.cleared(target)
    return table.kept(before), f"move {label} to {name} bit {target.lsb}"


def resize(table: MapTable, field: str, width: int, shift: bool = False) -> Edited:
    """Give a field of one run another width; its lowest bit stays where it is, and the bits that it
    gains must have no name.

    With ``shift`` the field and everything after it in its block is laid out anew, as C lays out
    bit-fields: one after the other, and in the next word if the current word has too few bits left.
    A field after a gap that C would not have made keeps its place, unless an earlier field is moved
    onto it.
    """
    label, item = labelled_field(table, field)
    what = f"resize {label}"
    run = _one_run(table, item, what)
    [key] = table.keys_of(item)
    most = number(table.rows[key], "bits") or WORD_BITS
    if not 1 <= width <= most:
        raise ValueError(f"{what}: got {width} bits, allowed is 1 to {most}")
    sentence = f"{what} from {run.width} to {width} bits"
    if shift:
        return _laid_anew(table, key, width, label), f"{sentence}, with everything behind it"
    table = table.changed(key, {"width": width})
    table, _ = table.cleared(run._replace(width=width))
    return table, sentence


def shift(table: MapTable, field: str, by: int, out_of: str = "") -> Edited:
    """Move a field by ``by`` bits in its register (down if negative), with all fields between it
    and the run that gives up bits for this.

    The giving run loses as many bits as the field moves. It is a run of the field ``out_of``, by
    default the next run without a name that has enough bits. The bits behind the moved field get no
    name.
    """
    label, item = labelled_field(table, field)
    what = f"shift {label}"
    run = _one_run(table, item, what, named=False)
    bits = abs(by)
    sign, side, way = -1, "below", "down"
    if by > 0:
        sign, side, way = 1, "above", "up"
    beyond = []
    for other in table.map:
        for near in table.runs_of(other):
            if near[:2] == run[:2] and sign * (near.lsb - run.lsb) > 0:
                beyond.append((near, other))
    beyond.sort(key=lambda pair: sign * pair[0].lsb)
    place = _place_of_giver(table, beyond, bits, out_of)
    if not by or place is None:
        got = f"{by} bits"
        if out_of:
            got += f" out of {out_of}"
        allowed = f"1 or more bits that a run {side} it in its register can give"
        raise ValueError(f"{what}: got {got}, allowed are {allowed}")
    before = table.map
    keys = {near[:3]: key for key, near in table.runs.items()}
    last = item
    moving = [run]
    for near, other in beyond[:place]:
        moving.append(near)
        last = other
    for near in moving:
        key = keys.get(near[:3])
        if key is not None:
            table = table.changed(key, {"lsb": near.lsb + by})
    giver, source = beyond[place]
    key = keys.get(giver[:3])
    left = giver.width - bits
    if key is not None and left:
        lowest = giver.lsb + max(by, 0)
        table = table.changed(key, {"lsb": lowest, "width": left})
    elif key is not None:
        table = table.without(key)
    sentence = what
    if before.key(last) != label:
        sentence += f" to {before.key(last)}"
    amount = plural(bits, "bit")
    return table, f"{sentence} {way} by {amount}, out of {before.key(source)}"


# ---- what the edits share ----


def _place_of_giver(
    table: MapTable, beyond: Sequence[tuple[BitRun, Field]], bits: int, out_of: str
) -> int | None:
    """Return the index in ``beyond`` of the run that gives up ``bits`` bits; None if no run can.

    With ``out_of`` the run is the first one of that field, which must keep a bit if it has a name;
    else it is the first run without a name that has enough bits.
    """
    wanted = None
    if out_of:
        wanted = table.map[out_of]
        if not wanted.automatic:
            bits += 1
    for place, (near, other) in enumerate(beyond):
        enough = near.width >= bits
        if other == wanted and not enough:
            return None
        if other == wanted or (wanted is None and enough and other.automatic):
            return place
    return None


def _names_of_parts(item: Field, label: str, count: int, names: Sequence[str]) -> list[str]:
    if not names:
        names = [""] * count
        if not item.automatic:
            names[0] = item.name
    if len(names) != count:
        got = f"{len(names)} names"
        raise ValueError(f"split {label}: got {got}, allowed are {count}, one for each part")
    plain = []
    for name in names:
        if name.strip():
            name = plain_name(name, "split", label)
        else:
            name = ""
        plain.append(name)
    return plain


def _lies_below(first: Sequence[BitRun], second: Sequence[BitRun]) -> bool:
    """True if each list has one run, and the first run ends where the second begins in the same
    register.
    """
    if len(first) != 1 or len(second) != 1:
        return False
    [lower], [upper] = first, second
    return upper[:3] == (*lower[:2], lower.lsb + lower.width)


def _common_cells(lower: Mapping[str, str], upper: Mapping[str, str]) -> dict[str, str]:
    """Return the columns ``value``, ``address`` and ``align`` of a field that is joined from two
    rows. A cell of the joined field is the cell that both rows have, or the cell of one row if that
    of the other row is blank; it is blank if the rows contradict each other.
    """
    kept = {}
    for column in ("value", "address", "align"):
        cells = {lower.get(column, ""), upper.get(column, "")} - {""}
        kept[column] = ""
        if len(cells) == 1:
            kept[column] = cells.pop()
    kind = Meaning.parse(kept["value"]).kind
    if kind in FLOATS:  # the joined field is wider than a float
        kept["value"] = ""
    return kept


def _new_register(table: MapTable, register: str, offset: int) -> tuple[str, str]:
    """Return block and name of the register to which a field is added; ``register`` is its name or
    block.name.
    """
    blocks = [block for block, _, _ in table.map.registers]
    block, _, name = register.rpartition(".")
    if block not in blocks:
        block, name = blocks[0], register
    known = table.register(BitRun(block, offset, 0, 0))
    if known not in ("", name):
        got = f"register {name!r} at offset {offset:#x}"
        raise ValueError(f"add: got {got}, allowed is {known!r}, the register at that offset")
    return block, plain_name(name, "add", "a register")


def _one_run(table: MapTable, item: Field, what: str, named: bool = True) -> BitRun:
    """Return the only run of a field. Raises ValueError if the field has more runs or, with
    ``named``, if it is bits without a name.
    """
    runs = table.runs_of(item)
    got = ""
    if len(runs) > 1:
        got = f"a field of {len(runs)} runs"
    elif named and item.automatic:
        got = "bits without a name"
    if got:
        raise ValueError(f"{what}: got {got}, allowed is a field of one run of bits")
    return runs[0]


def _refuse_other_pieces(table: MapTable, item: Field, what: str) -> None:
    """Raise ValueError if a split field has further pieces on chips with features that the draft
    does not have.
    """
    others = elsewhere(table, item)
    if others:
        feature = table.rows[others[0]]["feature"]
        allowed = f"a draft with it, because it adds a piece to {item.name}"
        raise ValueError(f"{what}: got a draft without feature {feature}, allowed is {allowed}")


def _cut(run: BitRun, low: int, end: int) -> BitRun:
    """Return the piece of a run that has the bits ``low`` to ``end - 1`` of the field's value; its
    ``at`` counts from ``low``.
    """
    at = run.at or 0
    first = max(at, low)
    last = min(at + run.width, end)
    return run._replace(lsb=run.lsb + first - at, width=last - first, at=first - low)


def _merged(runs: Sequence[BitRun]) -> list[BitRun]:
    """Return ``runs`` with neighbours merged: two runs become one if the second begins where the
    first ends, in the register and in the value.
    """
    out = [runs[0]]
    for run in runs[1:]:
        last = out[-1]
        end = last.lsb + last.width
        value_end = (last.at or 0) + last.width
        if run[:3] == (*last[:2], end) and run.at == value_end:
            out[-1] = last._replace(width=last.width + run.width)
        else:
            out.append(run)
    return out


def _evidence(a: Field, b: Field) -> str:
    """Return the evidence of a field that two fields were joined to: the weaker of their two. If
    only one of the two has a name, its evidence counts alone.
    """
    if a.automatic:
        return b.evidence
    if not b.automatic:
        for weak in WEAKER:
            if weak in (a.evidence, b.evidence):
                return weak
    return a.evidence


def _carried(table: MapTable, key: int, target: BitRun) -> MapTable:
    """Return the table with a row moved to a run in another register; the row keeps its note and
    all cells that do not state its place.
    """
    row = cells_without_place(table.rows[key])
    table, _ = table.added(target, row)
    return table.without(key)


def _laid_anew(table: MapTable, key: int, width: int, label: str) -> MapTable:
    """Return the table with another width for one row; this row and all rows after it in its block
    are laid out anew.
    """
    block = table.runs[key].block
    order = sorted((run, near) for near, run in table.runs.items() if run.block == block)
    keys = [near for _, near in order]
    rows = {near: row for near, row in table.rows.items() if row.get("block", "") == block}
    if rows.keys() != set(keys) or shaped(rows.values()):
        got = "a block with arrays or rows of other features"
        raise ValueError(
            f"resize {label}: got {got}, allowed with shift is a block that has neither"
        )
    start = keys.index(key)
    old = 0
    if start:
        old = _end(order[start - 1][0])
    new = old
    names = {run[:2]: table.register(run) for run, _ in order}
    for run, near in order[start:]:
        end = _end(run)
        first = end - run.width
        # C begins a field in the next word if this word has too few bits left
        rest = -old % WORD_BITS
        packed = first == old or (rest and first - old == rest < run.width)
        if not packed:
            new = max(new, first)
        wide = run.width
        if near == key:
            wide = width
        if new % WORD_BITS + wide > WORD_BITS:
            new += -new % WORD_BITS
        word, lsb = divmod(new, WORD_BITS)
        offset = word * WORD_BYTES
        values: dict[str, Any] = {"offset": offset, "lsb": lsb, "width": wide}
        if table.rows[near].get("register"):
            values["register"] = names.get((block, offset), "")
        table = table.changed(near, values)
        old = end
        new += wide
    return table


def _end(run: BitRun) -> int:
    """Return the number of the first bit after a run, counted from the start of its block."""
    return run.offset * WORD_BITS // WORD_BYTES + run.lsb + run.width
