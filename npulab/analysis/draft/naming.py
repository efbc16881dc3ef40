"""Edits that change names, values, evidence or notes, and leave the bits where they are.

Each edit takes a table and returns the edited table and a sentence that says what was done. The
draft then checks whether the edited table still makes a map.
"""

from __future__ import annotations

from collections.abc import Mapping

from npulab.analysis.draft.table import BitRun, Edited, MapTable
from npulab.registers.fields import WORD_BITS, Field
from npulab.registers.names import FIELD
from npulab.support.refuse import refuse_if

PLAIN = "a plain number"
# An error text lists at most this many names of registers.
NEAR = 12
# The cells of a row whose bits have no name.
NAMELESS = {
    "field": "",
    "at": None,
    "value": "",
    "address": "",
    "align": None,
    "evidence": "unknown",
    "note": "",
}


def rename(table: MapTable, field: str, name: str) -> Edited:
    """Give a name to a field or to bits without a name."""
    label, item = labelled_field(table, field)
    name = plain_name(name, "rename", label)
    table, keys = rows_of(table, item)
    keys += elsewhere(table, item)
    table = table.all_changed(keys, {"field": name})
    return table, f"rename {label} to {name}"


def rename_register(table: MapTable, register: str | int, name: str) -> Edited:
    """Give a register another name, in every row of the table that is of it."""
    run, label = bits_of(table, register)
    what = f"rename register {label}"
    name = plain_name(name, "rename register", label)
    for block, offset, known in table.map.registers:
        if (block, known) == (run.block, name) and offset != run.offset:
            got = f"{name!r}, which the register at {offset:#x} is called"
            raise ValueError(f"{what}: got {got}, allowed is each name once in its block")
    keys = []
    for key, row in table.rows.items():
        called = row.get("register") or label
        if called == label and table.place_of(row) == run[:2]:
            keys.append(key)
    if not keys:
        table, key = table.added(run._replace(lsb=0, width=WORD_BITS), {})
        keys = [key]
    table = table.all_changed(keys, {"register": name})
    return table, f"{what} to {name}"


def retype(
    table: MapTable, field: str, value: str = "", names: Mapping[int, str] | None = None
) -> Edited:
    """Set how the raw number of a field becomes its value. ``names`` (by raw number) go into the
    enum that ``value`` names; a blank name removes the name of a number.
    """
    label, item = labelled_field(table, field)
    what = f"retype {label}"
    value = value.strip()
    if names and not value:
        value = f"enum:{item.name}"
    if names and not value.startswith("enum:"):
        allowed = "allowed with them is enum:NAME or no value"
        raise ValueError(f"{what}: got value {value!r} with names of values, {allowed}")
    table, keys = rows_of(table, item)
    table = table.all_changed(keys[1:], {"value": ""})
    table = table.changed(keys[0], {"value": value})
    sentence = f"{what} as {value or PLAIN}"
    if not names:
        return table, sentence
    most = 2**item.width - 1
    named = []
    for raw, name in names.items():
        if not 0 <= raw <= most:
            allowed = f"0 to {most} ({item.width} bits)"
            raise ValueError(f"{what}: got a name for raw {raw}, allowed is {allowed}")
        named.append(f"{raw} {name or 'without a name'}")
    enum = value.removeprefix("enum:")
    table = table.named(enum, names)
    return table, f"{sentence} ({', '.join(named)})"


def set_evidence(table: MapTable, field: str, evidence: str) -> Edited:
    """Write the evidence of a field into all its rows; a blank text stands for ``unknown``."""
    label, item = labelled_field(table, field)
    evidence = evidence.strip() or "unknown"
    table, keys = rows_of(table, item)
    for key in keys:
        # a blank cell stands for unknown already
        if table.rows[key].get("evidence") or evidence != "unknown":
            table = table.changed(key, {"evidence": evidence})
    return table, f"set evidence of {label} to {evidence}"


def set_note(table: MapTable, field: str, note: str) -> Edited:
    """Write a note on a field into the row of its lowest bits."""
    label, item = labelled_field(table, field)
    table, keys = rows_of(table, item)
    note = note.strip()
    table = table.changed(keys[0], {"note": note})
    return table, f"set note of {label} to {note!r}"


def set_address(table: MapTable, field: str, address: bool = True) -> Edited:
    """Mark a field as an address in memory, or as no address, in all its rows."""
    label, item = labelled_field(table, field)
    table, keys = rows_of(table, item)
    cell, words = "", "no address"
    if address:
        cell, words = "yes", "an address"
    table = table.all_changed(keys, {"address": cell})
    return table, f"set {label} {words}"


def remove(table: MapTable, field: str) -> Edited:
    """Remove the name of a field and everything stated about it; its bits have automatic names
    again.
    """
    label, item = labelled_field(table, field)
    what = f"remove {label}"
    refuse_if(item.automatic, what, "bits without a name", "is a field that has one")
    keys = table.keys_of(item) + elsewhere(table, item)
    table = table.all_changed(keys, NAMELESS)
    return table, what


# ---- what the edits share ----


def labelled_field(table: MapTable, field: str) -> tuple[str, Field]:
    """Return the shortest name of a field, and the field. Raises LookupError, with similar names,
    if the map has no field of this name.
    """
    item = table.map[field]
    return table.map.key(item), item


def rows_of(table: MapTable, item: Field) -> tuple[MapTable, list[int]]:
    """Return the keys of a field's rows, from the low end of its value, and the table; if the bits
    have no row, the table gets one.
    """
    if item.declared:
        return table, table.keys_of(item)
    run = table.runs_of(item)[0]
    table, key = table.added(run, {})
    return table, [key]


def elsewhere(table: MapTable, item: Field) -> list[int]:
    """Return the keys of those rows of a split field that need a feature which the draft does not
    have; none for other fields.
    """
    if item.automatic or table.runs_of(item)[0].at is None:
        return []
    keys = []
    for key, row in table.rows.items():
        place = row.get("block", ""), row["field"]
        if place == (item.block, item.name) and row.get("at") and key not in table.runs:
            keys.append(key)
    return keys


def bits_of(
    table: MapTable, register: str | int, lsb: int = 0, width: int = 1
) -> tuple[BitRun, str]:
    """Return the run of bits ``lsb`` to ``lsb + width - 1`` of a register, and the register's name.

    ``register`` is the number of its word, its name, or block.name; an array is called as in its
    row. Raises LookupError, with names of the map, if no register, or more than one, has this name.
    """
    found = []
    for (block, offset), name in table.arrays.items():
        if register in (name, f"{block}.{name}"):
            found.append((block, offset, name))
    registers = table.map.registers
    if not found:
        for word, (block, offset, name) in enumerate(registers):
            if register in (word, name, f"{block}.{name}"):
                found.append((block, offset, name))
    if len(found) != 1:
        near = [f"{block}.{name}" for block, _, name in found]
        near = near or [name for _, _, name in registers]
        if len(near) > NEAR:
            near[NEAR:] = ["..."]
        raise LookupError(f"register: got {register!r}, the map has {', '.join(near)}")
    [(block, offset, name)] = found
    run = BitRun(block, offset, lsb, width)
    if table.arrays.get(run[:2]) != name:
        run = table.home(run)
    known = table.register(run)
    return run, known or name


def plain_name(name: str, what: str, of: str) -> str:
    """Return a name without blanks around it; raises ValueError for a blank name and for a name
    that looks automatic (w18_27_2).
    """
    name = name.strip()
    refuse_if(
        not name or FIELD.fullmatch(name),
        f"{what} {of}",
        f"{name!r}",
        "is a name that is neither blank nor automatic (like w18_27_2)",
    )
    return name
