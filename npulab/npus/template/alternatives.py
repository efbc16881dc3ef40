"""Alternatives in a map, such as the members of a C union: made into blocks, or into features of a
chip, which has the features that do not overlap.

If all alternatives of a union have a field in the same bits whose enum names one of them, that
field is their opcode, and the blocks are the names of its enum, as ``read_commands`` needs them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from npulab.registers.fields import WORD_BITS
from npulab.registers.formats.tables import RegisterTable, features_in
from npulab.support.refuse import near, refuse_if

Rows = Sequence[Mapping[str, Any]]
Enums = Mapping[str, Any]


class Opcodes(NamedTuple):
    """The opcode of a union: its ``field``, the ``enum`` with the names of its codes, and the
    alternative that has the fields of each name ("": only the fields that all have).

    ``guessed`` are the names for which the alternative is a guess, ``unused`` the alternatives that
    no name has.
    """

    field: str
    enum: str
    names: Mapping[int, str]
    alternatives: Mapping[str, str]
    guessed: Sequence[str]
    unused: Sequence[str]


class Usable(NamedTuple):
    """A table of which every block can be used.

    ``split`` has, by name of a union, the names of the blocks made of its alternatives, and
    ``opcodes`` its opcode, if it has one; ``features`` says for each feature whether the chip has
    it (1) or not (0).
    """

    table: RegisterTable
    split: Mapping[str, Sequence[str]]
    features: Mapping[str, int]
    opcodes: Mapping[str, Opcodes] = {}


def usable(table: RegisterTable, given: Mapping[str, str] | None = None) -> Usable:
    """Return a table in which the words of every block round-trip.

    A block that is a union becomes a block for each name of its opcode or, if it has none, for each
    of its alternatives. ``given`` has the alternative by name of the opcode, where they are not
    called alike. Of all other features, in their order, the chip has each feature that does
    not overlap an earlier feature of the chip.

    Raises ValueError for a name or an alternative in ``given`` that no union has.
    """
    given = given or {}
    rows: list[dict[str, Any]] = []
    split: dict[str, list[str]] = {}
    opcodes: dict[str, Opcodes] = {}
    enums = {name: dict(names) for name, names in table.enums.items()}
    taken: Counter[str] = Counter()
    for block, some in table.blocks.items():
        taken.update({block, *features_in(some)})
    for block, some in table.blocks.items():
        if not _is_union(some, table.enums):
            rows += map(dict, some)
            continue
        split[block] = []
        found = opcodes_of(some, table.enums, given)
        others = {*taken} - {block, *_in_order(some)}
        if found is not None and others.isdisjoint(found.alternatives):
            opcodes[block] = found
            enums[found.enum] = dict(found.names)
            for name, feature in found.alternatives.items():
                split[block].append(name)
                rows += _of_opcode(some, name, feature, name in found.guessed)
            continue
        for feature in _in_order(some):
            name = feature
            if taken[feature] > 1:
                name = f"{block}_{feature}"
            split[block].append(name)
            rows += _of_alternative(some, name, feature)
    _refuse_unknown(given, opcodes)
    made = table
    if split:
        made = RegisterTable.of(rows, enums, table.copyright)
    return Usable(made, split, together(made), opcodes)


def _refuse_unknown(given: Mapping[str, str], opcodes: Mapping[str, Opcodes]) -> None:
    """Raise ValueError for the first name in ``given`` that is no name of an opcode."""
    known: dict[str, None] = {}
    for found in opcodes.values():
        known |= dict.fromkeys(found.alternatives)
    for name in given:
        refuse_if(
            name not in known,
            "opcode",
            f"{name!r:.60}",
            f"is one of {', '.join(known) or 'none: no union has a field with an enum of names'}"
            f"{near(name, known)}",
        )


def opcodes_of(rows: Rows, enums: Enums, given: Mapping[str, str]) -> Opcodes | None:
    """Return the opcode of a union: the first field that all alternatives have in the same bits,
    and whose enum has the name of one of them, or a name in ``given``; None if there is none.

    An alternative is a name's if both are called alike but for capitals. A name without an
    alternative gets, as a guess, the alternative with most fields that has no name yet.
    """
    features = _in_order(rows)
    for field, enum in _common_enums(rows, enums):
        names = _without_common_words(enums[enum])
        lower = {feature.lower(): feature for feature in features}
        alternatives: dict[str, str] = {}
        for name in names.values():
            alternatives[name] = given.get(name, lower.get(name.lower(), ""))
        if not any(alternatives.values()):
            continue
        for name in given.keys() & alternatives.keys():
            wrong = given[name] not in features
            allowed = f"is one of {', '.join(features)}{near(given[name], features)}"
            refuse_if(wrong, f"opcode {name}", f"alternative {given[name]!r:.60}", allowed)
        rest = [feature for feature in features if feature not in alternatives.values()]
        guessed = [name for name, feature in alternatives.items() if not feature and rest]
        if guessed:
            largest = max(rest, key=lambda feature: len(_fields_of(rows, feature)))
            alternatives |= dict.fromkeys(guessed, largest)
            rest.remove(largest)
        return Opcodes(field, enum, names, alternatives, guessed, rest)
    return None


def _common_places(rows: Rows) -> set[tuple[int, int, int, str]]:
    """Return (offset, lsb, width, name) of the fields that all alternatives have."""
    places = []
    for feature in _in_order(rows):
        places.append(_field_places(_of_alternative(rows, feature, feature)))
    return set.intersection(*places)


def _common_enums(rows: Rows, enums: Enums) -> list[tuple[str, str]]:
    """Return (field, enum) of the fields with an enum that all alternatives have in the same bits,
    in the order of their bits.
    """
    common = _common_places(rows)
    found: dict[str, str] = {}
    first = _in_order(rows)[0]
    for row in _of_alternative(rows, first, first):
        kind, _, enum = str(row.get("value", "")).partition(":")
        if kind == "enum" and enum in enums and _place(row) in common:
            found[str(row["field"])] = enum
    return [*found.items()]


def _without_common_words(names: Mapping[int, str]) -> dict[int, str]:
    """Return the names of an enum without the words that all of them begin with.

    >>> _without_common_words({0: "NPU_OPCODE_LOAD", 1: "NPU_OPCODE_RUN"})
    {0: 'LOAD', 1: 'RUN'}
    """
    every = [*names.values()]
    front = ""
    # the last word of a name is its own
    for word in every[0].split("_")[:-1]:
        longer = f"{front}{word}_"
        if not all(name.startswith(longer) for name in every):
            break
        front = longer
    return {raw: name.removeprefix(front) for raw, name in names.items()}


def _fields_of(rows: Rows, feature: str) -> set[str]:
    return {str(row.get("field", "")) for row in rows if row.get("feature") == feature}


def _of_opcode(rows: Rows, block: str, feature: str, guessed: bool) -> list[dict[str, Any]]:
    """Return the rows of a block that has the fields of an alternative, or without one the fields
    that all alternatives have.

    If the alternative is a guess, so is each field that is not in all of them.
    """
    made = _of_alternative(rows, block, feature or _in_order(rows)[0])
    common = _common_places(rows)
    if not feature:
        made = [row for row in made if _place(row) in common]
        made += _filling(_offsets(rows) - _offsets(made), block)
    for row in made:
        if guessed and row.get("field") and _place(row) not in common:
            row["evidence"] = "guess"
    return made


def shared(table: RegisterTable, blocks: Sequence[str]) -> list[str]:
    """Return the names of the fields that all these blocks have in the same bits; such a field may
    state which block a word belongs to.
    """
    common = set.intersection(*(_field_places(table.blocks[block]) for block in blocks))
    return [field for *_, field in sorted(common) if field]


def _field_places(rows: Rows) -> set[tuple[int, int, int, str]]:
    """Return (offset, lsb, width, name) of each field in some rows."""
    return {_place(row) for row in rows}


def _place(row: Mapping[str, Any]) -> tuple[int, int, int, str]:
    """Return (offset, lsb, width, name) of the field of a row."""
    offset, lsb, width = int(row["offset"]), int(row["lsb"]), int(row["width"])
    return offset, lsb, width, str(row.get("field", ""))


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
    return made + _filling(_offsets(rows) - _offsets(some), block)


def _filling(offsets: Iterable[int], block: str) -> list[dict[str, Any]]:
    """Return rows without a field for words of a block."""
    made = []
    for offset in sorted(offsets):
        row = {"block": block, "offset": offset, "register": f"w{offset:#06x}"}
        made.append({**row, "lsb": 0, "width": WORD_BITS, "evidence": "unknown"})
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
