"""Edits that leave the bits where they are: names, values, evidence, notes.

Each takes a table and gives the table after it and its sentence; whether that is still a map is
checked behind it.
"""

from __future__ import annotations

from collections.abc import Mapping

from npulab.analysis.draft.table import Run, Table
from npulab.registers.fields import WORD_BITS, Field
from npulab.registers.names import FIELD
from npulab.support.refuse import refuse_if

PLAIN = "a plain number"


def rename(table: Table, field: str, name: str) -> tuple[Table, str]:
    """Give a field, or bits that have none, a name."""
    label, item = labelled_field(table, field)
    name = plain_name(name, "rename", label)
    table, keys = rows_of(table, item)
    return table.all_changed(
        [*keys, *elsewhere(table, item)], {"field": name}
    ), f"rename {label} to {name}"


def rename_register(table: Table, register: str | int, name: str) -> tuple[Table, str]:
    """Give a register another name, in every row that it has."""
    (block, offset, *_), label = bits_of(table, register)
    name = plain_name(name, "rename register", label)
    other = next(
        (where for b, where, known in table.map.registers if (b, known) == (block, name)), offset
    )
    if other != offset:
        raise ValueError(
            f"rename register {label}: got {name!r}, which the register at {other:#x} is called, "
            "allowed "
            "is each name once in its block"
        )
    keys = [
        key
        for key, row in table.rows.items()
        if row.get("register", "") in ("", label) and table.place_of(row) == (block, offset)
    ]
    if not keys:
        table, key = table.added(Run(block, offset, 0, WORD_BITS), {})
        keys = [key]
    return table.all_changed(keys, {"register": name}), f"rename register {label} to {name}"


def retype(
    table: Table, field: str, value: str = "", names: Mapping[int, str] | None = None
) -> tuple[Table, str]:
    """Say how raw becomes value; ``names`` go into the enum, one that is blank takes a name
    away."""
    label, item = labelled_field(table, field)
    value = value.strip()
    if names and not value:
        value = f"enum:{item.name}"
    if names and not value.startswith("enum:"):
        raise ValueError(
            f"retype {label}: got names for value {value!r}, allowed are names for an enum"
        )
    wide = [raw for raw in names or {} if not 0 <= raw < 2**item.width]
    if wide:
        raise ValueError(
            f"retype {label}: got a name for raw {wide[0]}, allowed is 0 to {2**item.width - 1} "
            f"({item.width} bits)"
        )
    table, keys = rows_of(table, item)
    table = table.all_changed(keys[1:], {"value": ""}).changed(keys[0], {"value": value})
    if names:
        table = table.named(value.removeprefix("enum:"), names)
    named = ", ".join(
        f"{raw} {name}" if name else f"{raw} without a name" for raw, name in (names or {}).items()
    )
    return table, f"retype {label} as {value or PLAIN}{f' ({named})' if named else ''}"


def set_evidence(table: Table, field: str, evidence: str) -> tuple[Table, str]:
    """Say how sure it is, in all rows of a field."""
    label, item = labelled_field(table, field)
    evidence = evidence.strip() or "unknown"
    table, keys = rows_of(table, item)
    keys = [key for key in keys if table.rows[key].get("evidence") or evidence != "unknown"]
    return table.all_changed(keys, {"evidence": evidence}), f"set evidence of {label} to {evidence}"


def set_note(table: Table, field: str, note: str) -> tuple[Table, str]:
    """Say what is known of a field, in the row of its low end."""
    label, item = labelled_field(table, field)
    table, keys = rows_of(table, item)
    return table.changed(
        keys[0], {"note": note.strip()}
    ), f"set note of {label} to {note.strip()!r}"


def set_address(table: Table, field: str, address: bool = True) -> tuple[Table, str]:
    """Say that a field points into memory, or that it does not, in all rows of it."""
    label, item = labelled_field(table, field)
    table, keys = rows_of(table, item)
    changed = table.all_changed(keys, {"address": "yes" if address else ""})
    return changed, f"set {label} {'an' if address else 'no'} address"


def remove(table: Table, field: str) -> tuple[Table, str]:
    """Take a field's name and all that is said of it away; its bits have automatic names again."""
    label, item = labelled_field(table, field)
    refuse_if(item.automatic, f"remove {label}", "bits without a name", "is a field that has one")
    keys = [*table.keys_of(item), *elsewhere(table, item)]
    return table.all_changed(
        keys,
        {
            "field": "",
            "at": None,
            "value": "",
            "address": "",
            "align": None,
            "evidence": "unknown",
            "note": "",
        },
    ), f"remove {label}"


# ---- what the edits share ----


def labelled_field(table: Table, field: str) -> tuple[str, Field]:
    """The shortest name of a field, and the field; raises LookupError with names that are near."""
    item = table.map[field]
    return table.map.key(item), item


def rows_of(table: Table, item: Field) -> tuple[Table, list[int]]:
    """The rows of a field from the low end of its value; bits without a row get one."""
    if item.declared:
        return table, table.keys_of(item)
    table, key = table.added(table.runs_of(item)[0], {})
    return table, [key]


def elsewhere(table: Table, item: Field) -> list[int]:
    """The rows of a split field that only chips with other features have."""
    split = not item.automatic and table.runs_of(item)[0].at is not None
    return [
        key
        for key, row in table.rows.items()
        if split
        and key not in table.runs
        and row.get("block", "") == item.block
        and row["field"] == item.name
        and row.get("at")
    ]


def bits_of(table: Table, register: str | int, lsb: int = 0, width: int = 1) -> tuple[Run, str]:
    """Bits of a register by the number of its word, its name (of an array that of its row), or
    block.name; and its name.  Raises LookupError with what there is."""
    registers = table.map.registers
    found = [
        ((block, offset), name)
        for (block, offset), name in table.arrays.items()
        if register in (name, f"{block}.{name}")
    ] or [
        ((block, offset), name)
        for word, (block, offset, name) in enumerate(registers)
        if register in (word, name, f"{block}.{name}")
    ]
    if len(found) != 1:
        near = [f"{block}.{name}" for (block, _), name in found] or [
            name for _, _, name in registers
        ]
        raise LookupError(
            f"register: got {register!r}, the map has {', '.join(near[:12])}"
            f"{', ...' if len(near) > 12 else ''}"
        )
    ((place, name),) = found
    run = Run(*place, lsb, width)
    if table.arrays.get(place) != name:
        run = table.home(run)
    return run, table.register(run) or name


def plain_name(name: str, what: str, of: str) -> str:
    """A name without blanks around it; raises ValueError for a blank name or an automatic one."""
    name = name.strip()
    refuse_if(
        not name or FIELD.fullmatch(name),
        f"{what} {of}",
        f"{name!r}",
        "is a name, and none like w18_27_2 that bits get by themselves",
    )
    return name
