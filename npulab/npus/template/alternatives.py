"""Alternatives of a map, the members of a C union: as blocks, or as features of a chip, which has
the features that go together."""

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
    """A table of which every block can be used: the blocks made of alternatives, by the block they
    were in, and the features that its chip has (1) or does not have (0)."""

    table: RegisterTable
    split: Mapping[str, Sequence[str]]
    features: Mapping[str, int]


def usable(table: RegisterTable) -> Usable:
    """Return a table whose words round-trip.

    A block that is a union becomes a block for each of its alternatives; the chip has other
    features, in their order, as far as they do not overlap.
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
    """Return the fields that blocks have in the same bits; one may say which block it is."""
    common = set.intersection(*(_field_places(table.blocks[block]) for block in blocks))
    return [field for *_, field in sorted(common) if field]


def _field_places(rows: Rows) -> set[tuple[int, int, int, str]]:
    """Return offset, lsb, width and name of each field of some rows."""
    places = set()
    for row in rows:
        offset, lsb, width = int(row["offset"]), int(row["lsb"]), int(row["width"])
        places.add((offset, lsb, width, str(row.get("field", ""))))
    return places


def _in_order(rows: Rows) -> list[str]:
    return [*dict.fromkeys(row["feature"] for row in rows if row.get("feature"))]


def _is_union(rows: Rows, enums: Enums) -> bool:
    """True if the features of a block are alternatives of one union: each names its own fields, and
    no two go together."""
    for row in rows:
        if row.get("feature") and not str(row.get("field", "")).startswith(f"{row['feature']}."):
            return False
    features = _in_order(rows)
    pairs = combinations(features, 2)
    return len(features) > 1 and all(_overlap(rows, enums, pair) for pair in pairs)


def _of_alternative(rows: Rows, block: str, feature: str) -> list[dict[str, Any]]:
    """Return the rows of an alternative as a block.

    Fields lose the alternative's name in front, unless they would then be alike with fields that
    all alternatives have.
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
    # an alternative is as long as the union, also if it has no field in some of the words
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
    """Return 1 for each feature that overlaps no earlier feature of the chip, else 0."""
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
    """True if no map can be made of the rows of some features."""
    some = [dict(row) for row in rows if row.get("feature", "") in ("", *features)]
    try:
        RegisterTable(tuple(some), enums).map(features)
    except (ValueError, LookupError):
        return True
    return False
