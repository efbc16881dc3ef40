"""Alternatives in a map, such as the members of a C union: made into blocks, or into features of a
chip, which has those that do not overlap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from npulab.registers.fields import WORD_BITS
from npulab.registers.formats.tables import RegisterTable, features_in

Rows = Sequence[Mapping[str, Any]]
Enums = Mapping[str, Any]


class Usable(NamedTuple):
    """A table of which every block can be used.

    ``split`` has, by name of a union, the names of the blocks made of its alternatives;
    ``features`` says for each feature whether the chip has it (1) or not (0).
    """

    table: RegisterTable
    split: Mapping[str, Sequence[str]]
    features: Mapping[str, int]


def usable(table: RegisterTable) -> Usable:
    """Return a table in which the words of every block round-trip.

    A block that is a union becomes a block for each of its alternatives. Of all other features, in
    their order, the chip has each that does not overlap those before it.
    """
    rows: list[dict[str, Any]] = []
    split: dict[str, list[str]] = {}
    taken: Counter[str] = Counter()
    for block, some in table.blocks.items():
        taken.update({block, *features_in(some)})
    for block, some in table.blocks.items():
        if not _is_union(some, table.enums):
            rows += map(dict, some)
            continue
        split[block] = []
        for feature in _in_order(some):
            name = feature
            if taken[feature] > 1:
                name = f"{block}_{feature}"
            split[block].append(name)
            rows += _of_alternative(some, name, feature)
    made = table
    if split:
        made = RegisterTable.of(rows, table.enums, table.copyright)
    return Usable(made, split, together(made))


def shared(table: RegisterTable, blocks: Sequence[str]) -> list[str]:
    """Return the names of the fields that all these blocks have in the same bits; such a field may
    state which block a word belongs to.
    """
    common = set.intersection(*(_field_places(table.blocks[block]) for block in blocks))
    return [field for *_, field in sorted(common) if field]


def _field_places(rows: Rows) -> set[tuple[int, int, int, str]]:
    """Return (offset, lsb, width, name) of each field in some rows."""
    places = set()
    for row in rows:
        offset, lsb, width = int(row["offset"]), int(row["lsb"]), int(row["width"])
        places.add((offset, lsb, width, str(row.get("field", ""))))
    return places


def _in_order(rows: Rows) -> list[str]:
    return [*dict.fromkeys(row["feature"] for row in rows if row.get("feature"))]


def _is_union(rows: Rows, enums: Enums) -> bool:
    """True if the features of a block are the alternatives of one union: each feature has fields
    with its name in front, and any two overlap.
    """
    for row in rows:
        if row.get("feature") and not str(row.get("field", "")).startswith(f"{row['feature']}."):
            return False
    features = _in_order(rows)
    pairs = combinations(features, 2)
    return len(features) > 1 and all(_overlap(rows, enums, pair) for pair in pairs)


def _of_alternative(rows: Rows, block: str, feature: str) -> list[dict[str, Any]]:
    """Return the rows of one alternative of a union, as rows of a block.

    The alternative's name is taken off the front of its fields, unless a field that all
    alternatives have would then have the same name.
    """
    front = f"{feature}."
    some = [row for row in rows if row.get("feature", "") in ("", feature)]
    fields = [str(row.get("field", "")) for row in some]
    common = {field for row, field in zip(some, fields, strict=True) if not row.get("feature")}
    shortened = {field.removeprefix(front) for field in fields if field.startswith(front)}
    if common & shortened:
        front = ""
    made = []
    for row, field in zip(some, fields, strict=True):
        kept = {**row, "block": block, "field": field.removeprefix(front)}
        kept.pop("feature", None)
        made.append(kept)
    # an alternative is as long as the union: words without a field get a row
    for offset in sorted(_offsets(rows) - _offsets(some)):
        made.append(
            {
                "block": block,
                "offset": offset,
                "register": f"w{offset:#06x}",
                "lsb": 0,
                "width": WORD_BITS,
                "evidence": "unknown",
            }
        )
    return made


def _offsets(rows: Rows) -> set[int]:
    return {int(row["offset"]) for row in rows}


def together(table: RegisterTable) -> dict[str, int]:
    """Return for each feature 1 if it overlaps no feature before it that has 1, else 0."""
    chosen: list[str] = []
    blocks: dict[str, list[Rows]] = {}
    for rows in table.blocks.values():
        for feature in _in_order(rows):
            blocks.setdefault(feature, []).append(rows)
    for feature, having in blocks.items():
        wanted = [*chosen, feature]
        if not any(_overlap(rows, table.enums, wanted) for rows in having):
            chosen.append(feature)
    return {feature: int(feature in chosen) for feature in table.features}


def _overlap(rows: Rows, enums: Enums, features: Sequence[str]) -> bool:
    """True if no register map can be made of rows with these features, because fields overlap."""
    some = [dict(row) for row in rows if row.get("feature", "") in ("", *features)]
    try:
        RegisterTable(tuple(some), enums).map(features)
    except (ValueError, LookupError):
        return True
    return False
