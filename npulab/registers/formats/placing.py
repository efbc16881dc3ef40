"""Registers of any size put into words: what readers of other formats found, as rows of a table."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from npulab.registers.fields import WORD_BITS, WORD_BYTES, pieces
from npulab.registers.formats.naming import unnumbered
from npulab.registers.formats.tables import MOST_ROWS, RegisterTable, Row
from npulab.registers.meaning import Meaning

SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
MOST_FIELD_BITS = 64
SHOWN = 3
NOTHING: Row = MappingProxyType({})
NO_WORD = re.compile(r"\W")


class Found(NamedTuple):
    """A field of a register as a file says it: its bits, inclusive, and whatever else a row holds
    (``row``)."""

    name: str
    low: int
    high: int
    where: str
    row: Row = NOTHING


class Register(NamedTuple):
    """A register as a file says it: byte offset in its block, size in bits, what is said of it, its
    fields."""

    block: str
    offset: int
    size: int
    name: str
    where: str
    note: str = ""
    fields: tuple[Found, ...] = ()

    @property
    def words(self) -> range:
        """The indices of the words of its block that it has bits of."""
        return range(
            self.offset // WORD_BYTES, (self.offset + self.size // 8 - 1) // WORD_BYTES + 1
        )


@dataclass(frozen=True)
class Losses:
    """What of a file could not be carried over, each thing once, and how many registers of it."""

    things: dict[str, int] = field(default_factory=dict)

    def lose(self, where: str, what: str, registers: int = 0) -> None:
        self.things.setdefault(f"{where}: {what}", registers)

    def warn(self, path: Path) -> None:
        """A UserWarning that counts lost registers and names the first few things, if there are
        any."""
        if not self.things:
            return
        registers = sum(self.things.values())
        count = ""
        if registers:
            count = f" ({registers} register{'s' * (registers != 1)})"
        # lost registers come before the rest
        first = sorted(self.things, key=lambda thing: not self.things[thing])[:SHOWN]
        more = []
        if len(self.things) > SHOWN:
            more = [f"{len(self.things) - SHOWN} more"]
        warnings.warn(f"{path}: not carried over{count}: {'; '.join(first + more)}", stacklevel=4)


@dataclass(frozen=True)
class Occupancy:
    """The bits and names that rows have, by what place and which feature they are of."""

    bits: dict[tuple[Any, ...], dict[str, int]] = field(default_factory=dict)
    registers: dict[tuple[Any, ...], dict[str, str]] = field(default_factory=dict)
    fields: dict[tuple[Any, ...], set[str]] = field(default_factory=dict)

    def alias(self, rows: Iterable[Row]) -> str:
        """The register that lies where rows of another would go, on a chip that has both; blank if
        there is none."""
        return next(
            (
                other
                for row in rows
                for other in _both(
                    self.registers.get((row["block"], row["offset"]), {}), row["feature"]
                )
                if other != row["register"]
            ),
            "",
        )

    def clash(self, row: Row) -> bool:
        """Whether another field has bits of this row on a chip that has both."""
        mask = (2 ** row["width"] - 1) * 2 ** row["lsb"]
        return any(
            bits & mask
            for bits in _both(self.bits.get((row["block"], row["offset"]), {}), row["feature"])
        )

    def add(self, row: Row, where: str) -> None:
        """Note the bits and the name of a row; raises ValueError if another has the name on the
        same chip."""
        feature, place = row["feature"], (row["block"], row["offset"])
        bits = self.bits.setdefault(place, {})
        bits[feature] = bits.get(feature, 0) | (2 ** row["width"] - 1) * 2 ** row["lsb"]
        self.registers.setdefault(place, {})[feature] = row["register"]
        if "at" not in row and row["field"]:
            register = row["register"] or row["offset"]
            names = self.fields.setdefault((row["block"], register, row["field"]), set())
            if feature in names or "" in names or (names and not feature):
                raise ValueError(
                    f"{where}: field {row['field']} of register {row['register']} at "
                    f"{row['offset']:#x}: "
                    "got this name a second time, allowed is once in its register and a register "
                    "once in "
                    "its domain"
                )
            names.add(feature)


def _both(have: Mapping[str, Any], feature: str) -> list[Any]:
    """What a chip with this feature has too; any chip, if it is blank."""
    if not feature:
        return [*have.values()]
    return [have[name] for name in (feature, "") if name in have]


def placed(
    registers: Iterable[Register],
    enums: Mapping[str, Mapping[int, str]],
    losses: Losses,
    copyright: str = "",  # noqa: A002 - as the file has it
    said: Mapping[str, bool] = MappingProxyType({}),
) -> RegisterTable:
    """The table of registers: those of 64 bits and more are words of one name, those of 8 and 16
    bits, and those that no word begins with, share words.  ``said`` is as ``RegisterTable.said``
    has it.

    A field of more than 64 bits is one of each word.  Of two registers at an address, and of two
    fields that share bits, the first stays, the other is a loss.  Raises ValueError with where it
    stands for what lies in no word, for a name twice, for a value that no field of its width holds
    and for more than MOST_ROWS fields.
    """
    everything = [*_apart(registers, losses)]
    names = _shared(everything)
    rows: list[dict[str, Any]] = []
    occupancy = Occupancy()
    for register in everything:
        fields = [*_fields(register, names)]
        if len(rows) + sum(len(runs) for _, runs in fields) > MOST_ROWS:
            raise ValueError(
                f"{register.where}: got more than {MOST_ROWS} fields, at most {MOST_ROWS} are "
                "allowed"
            )
        if other := occupancy.alias(row for _, runs in fields for row in runs):
            losses.lose(
                register.where,
                f"register {register.name} at {register.offset:#x}, where {other} lies",
                1,
            )
            continue
        for one, runs in fields:
            if any(map(occupancy.clash, runs)):
                losses.lose(
                    one.where,
                    f"field {one.name} of register {register.name} at {register.offset:#x}, of "
                    "whose bits another field has some",
                )
                continue
            for row in runs:
                occupancy.add(row, one.where)
            rows += runs
    return RegisterTable.of_said(rows, enums, copyright, said)


def _apart(registers: Iterable[Register], losses: Losses) -> Iterator[Register]:
    """Registers without those that share bytes with one before them and are not at its words."""
    holders: dict[tuple[str, int], Register] = {}
    for register in registers:
        places = [
            (register.block, register.offset + n) for n in range(min(register.size, SIZES[-1]) // 8)
        ]
        others = [holders[place] for place in places if place in holders]
        other = next(
            (
                some
                for some in others
                if some[1:4] != register[1:4] and not (_of_words(some) and _of_words(register))
            ),
            None,
        )
        if other is not None:
            losses.lose(
                register.where,
                f"register {register.name} at {register.offset:#x}, where {other.name} lies",
                1,
            )
            continue
        holders.update(dict.fromkeys(places, register))
        yield register


def _of_words(register: Register) -> bool:
    return register.size >= WORD_BITS and not register.offset % WORD_BYTES


def _shared(registers: Sequence[Register]) -> dict[tuple[str, int], str]:
    """The name of each word that several registers share, by block and index."""
    words: dict[tuple[str, int], dict[str, int]] = {}
    for register in registers:
        if not _of_words(register):
            for word in register.words:
                words.setdefault((register.block, word), {}).setdefault(
                    register.name, register.offset
                )
    return {
        place: "_".join(sorted(names, key=names.__getitem__))
        for place, names in words.items()
        if len(names) > 1
    }


def _fields(
    register: Register,
    names: Mapping[tuple[str, int], str],
) -> Iterator[tuple[Found, list[dict[str, Any]]]]:
    """Each field of a register with a row for each run of its bits."""
    if register.size not in SIZES or not register.name or not 0 <= register.offset < 2**WORD_BITS:
        raise ValueError(
            f"{register.where}: register {register.name or 'without a name'}: got {register.size} "
            "bits at "
            f"offset {register.offset:#x}, allowed is a name, a size of {SIZES[0]} to {SIZES[-1]} "
            "bits, a "
            "power of two, and an offset below 2**32"
        )
    shift = 8 * (register.offset % WORD_BYTES)
    prefix = ""
    if any((register.block, word) in names for word in register.words):
        prefix = f"{register.name}."
    fields = sorted(register.fields, key=lambda one: one.low) or [
        Found("", 0, register.size - 1, register.where)
    ]
    for one in fields:
        if not 0 <= one.low <= one.high < register.size:
            raise ValueError(
                f"{one.where}: field {one.name} of register {register.name}: got bits {one.low} to "
                f"{one.high}, allowed is inside 0 to {register.size - 1}"
            )
        low, high = one.low + shift, one.high + shift
        crosses = low // WORD_BITS != high // WORD_BITS
        name = one.name or unnumbered(register.name).rpartition(".")[2]
        if crosses:
            name = f"{register.name}.{one.name}".rstrip(".")
        elif one.name or not prefix:
            name = f"{prefix}{name}"
        else:
            name = register.name
        note = str(one.row.get("note", ""))
        if register.note and one[:3] == fields[0][:3]:
            if one.name:
                note = f"{unnumbered(register.name)}: {register.note} {note}".strip()
            else:
                note = register.note
        value = str(one.row.get("value", ""))
        try:
            Meaning.parse(value).refuse_width(max(0, int(one.row.get("at", 0))) + high - low + 1)
        except ValueError as error:
            raise ValueError(
                f"{one.where}: field {one.name} of register {register.name}: {error}"
            ) from None
        rows = []
        for n, (word, lsb, width, at) in enumerate(pieces(low, high - low + 1)):
            index = register.offset // WORD_BYTES + word
            row = {
                "block": register.block,
                "offset": WORD_BYTES * index,
                "register": names.get((register.block, index), register.name),
                "field": name,
                "lsb": lsb,
                "width": width,
                "feature": "",
                **one.row,
                "note": note,
            }
            if high - low >= MOST_FIELD_BITS:
                row |= {"field": f"{name}[{n}]", "value": ""}
            elif crosses:
                row |= {"at": at}
            rows.append(row)
        yield one, rows


@dataclass(frozen=True)
class Enums:
    """The enums of a file by name; those in ``ours`` are as npulab wrote them, where a field's list
    may say less."""

    by_name: dict[str, dict[int, str]]
    ours: set[str] = field(default_factory=set)

    def own(self, name: str) -> dict[int, str]:
        self.ours.add(name)
        return self.by_name.setdefault(name, {})

    def take(self, label: str, block: str, name: str, values: Mapping[int, str], where: str) -> str:
        """The value of a field with these names of its raw values: of the enum that the file names,
        else one named after the field."""
        plain = NO_WORD.sub("_", re.sub(r"\[\w+\]", "", name))
        tries = []
        if label:
            tries = [NO_WORD.sub("_", label)]
        tries += [
            plain,
            f"{NO_WORD.sub('_', block)}_{plain}",
            *(f"{plain}_{n}" for n in range(2, 1000)),
        ]
        for free in tries:
            have = self.by_name.setdefault(free, dict(values))
            if free in self.ours:
                have.update({raw: text for raw, text in values.items() if raw not in have})
                return f"enum:{free}"
            if have == values:
                return f"enum:{free}"
        raise ValueError(
            f"{where}: enum {plain}: got a thousand others of this name, allowed are fewer"
        )

    def refuse_unknown(self, value: str, where: str) -> None:
        """Raises ValueError where a value is of an enum that is not there."""
        if (enum := value.partition("enum:")[2]) and enum not in self.by_name:
            raise ValueError(
                f"{where}: got enum {enum!r}, allowed is one of {', '.join(self.by_name) or 'none'}"
            )
