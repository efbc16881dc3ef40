"""Alternatives of a map, the members of a C union: as blocks, or as features of which a chip has
those that go together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from npulab.registers.fields import WORD_BITS
from npulab.registers.formats.tables import RegisterTable, features_in

Rows = Sequence[Mapping[str, Any]]
Enums = Mapping[str, Any]


class Usable(NamedTuple):
    """A table of which every block can be used: the blocks that were made of alternatives, by the
    block they were in, and the features that its chip has (1) or has not (0)."""

    table: RegisterTable
    split: Mapping[str, Sequence[str]]
    features: Mapping[str, int]


def usable(table: RegisterTable) -> Usable:
    """A table whose words round-trip: a block of one union is a block for each of its alternatives;
    of other features the chip has as many, in their order, as do not overlap."""
    rows: list[dict[str, Any]] = []
    split: dict[str, list[str]] = {}
    taken = Counter(
        name for block, some in table.blocks.items() for name in {block, *features_in(some)}
    )
    for block, some in table.blocks.items():
        if not _is_union(some, table.enums):
            rows += map(dict, some)
            continue
        split[block] = []
        for feature in _in_order(some):
            if taken[feature] == 1:
                name = feature
            else:
                name = f"{block}_{feature}"
            split[block].append(name)
            rows += _of_alternative(some, name, feature)
    made = table
    if split:
        made = RegisterTable.of(rows, table.enums, table.copyright)
    return Usable(made, split, together(made))


def shared(table: RegisterTable, blocks: Sequence[str]) -> list[str]:
    """The fields that all of some blocks have in the same bits: one of them may say which it is."""
    first, *others = [_places(table.blocks[block]) for block in blocks]
    both = first.intersection(*others)
    return [field for *_, field in sorted(both) if field]


def _places(rows: Rows) -> set[tuple[int, int, int, str]]:
    """Where each field of some rows lies, and its name."""
    return {
        (int(row["offset"]), int(row["lsb"]), int(row["width"]), str(row.get("field", "")))
        for row in rows
    }


def _in_order(rows: Rows) -> list[str]:
    return [*dict.fromkeys(row["feature"] for row in rows if row.get("feature"))]


def _is_union(rows: Rows, enums: Enums) -> bool:
    """Whether the features of a block are alternatives of one union: each names its own fields, and
    no two go together."""
    features = _in_order(rows)
    named = all(
        str(row.get("field", "")).startswith(f"{row['feature']}.")
        for row in rows
        if row.get("feature")
    )
    if len(features) < 2 or not named:
        return False
    return all(
        _overlap(rows, enums, [one, other])
        for at, one in enumerate(features)
        for other in features[at + 1 :]
    )


def _of_alternative(rows: Rows, block: str, feature: str) -> list[dict[str, Any]]:
    """The rows of an alternative as a block, fields without its name in front where these are still
    apart from what the alternatives have in common."""
    front = f"{feature}."
    some = [row for row in rows if row.get("feature", "") in ("", feature)]
    others = {str(row.get("field", "")) for row in some if not row.get("feature")}
    plain = [str(row.get("field", "")).removeprefix(front) for row in some if row.get("feature")]
    if others & {*plain}:
        front = ""
    made = []
    for row in some:
        kept = {name: value for name, value in row.items() if name != "feature"}
        made.append(
            {**kept, "block": block, "field": str(row.get("field", "")).removeprefix(front)}
        )
    # an alternative is as long as the union: words that it says nothing of are its own all the same
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
    """Whether the chip has each feature: as many as do not overlap in any block, in their order."""
    chosen: list[str] = []
    blocks = [rows for rows in table.blocks.values() if features_in(rows)]
    for feature in dict.fromkeys(name for rows in blocks for name in _in_order(rows)):
        wanted = [*chosen, feature]
        if not any(
            _overlap(rows, table.enums, wanted) for rows in blocks if feature in features_in(rows)
        ):
            chosen.append(feature)
    return {feature: int(feature in chosen) for feature in table.features}


def _overlap(rows: Rows, enums: Enums, features: Sequence[str]) -> bool:
    """Whether no map can be made of the rows of some features."""
    some = [dict(row) for row in rows if row.get("feature", "") in ("", *features)]
    try:
        RegisterTable(tuple(some), enums).map(features)
    except (ValueError, LookupError):
        return True
    return False
