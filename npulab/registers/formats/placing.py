"""Registers of any size put into words: the findings of readers, as rows of a table."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from npulab.registers.fields import (
    WORD_BITS,
    WORD_BYTES,
    Cells,
    Codes,
    Enums,
    NewCodes,
    NewEnums,
    Row,
    pieces,
)
from npulab.registers.formats.naming import unnumbered
from npulab.registers.formats.tables import MOST_ROWS, RegisterTable
from npulab.registers.meaning import Meaning
from npulab.support.refuse import refusing
from npulab.support.text import plural

SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
MOST_FIELD_BITS = 64
SHOWN = 3
NOTHING: Row = MappingProxyType({})
NO_WORD = re.compile(r"\W")


class Found(NamedTuple):
    """A field of a register as a file says it: its lowest and highest bit, and the other columns of
    its row."""

    name: str
    low: int
    high: int
    where: str
    row: Row = NOTHING


class Register(NamedTuple):
    """A register as a file says it: byte offset in its block, size in bits, note and fields."""

    block: str
    offset: int
    size: int
    name: str
    where: str
    note: str = ""
    fields: tuple[Found, ...] = ()

    @property
    def words(self) -> range:
        """The indices of the words, within its block, in which it has bits."""
        last = self.offset + self.size // 8 - 1
        return range(self.offset // WORD_BYTES, last // WORD_BYTES + 1)


@dataclass(frozen=True)
class Losses:
    """The things that could not be carried over from a file, with the registers lost by each."""

    things: dict[str, int] = field(default_factory=dict)

    def lose(self, where: str, what: str, registers: int = 0) -> None:
        self.things.setdefault(f"{where}: {what}", registers)

    def warn(self, path: Path) -> None:
        """Warn with the count of lost registers and the first few things, if there are any."""
        if not self.things:
            return
        registers = sum(self.things.values())
        count = ""
        if registers:
            count = f" ({plural(registers, 'register')})"
        # lost registers come before the rest
        first = sorted(self.things, key=lambda thing: not self.things[thing])[:SHOWN]
        more = []
        if len(self.things) > SHOWN:
            more = [f"{len(self.things) - SHOWN} more"]
        warnings.warn(f"{path}: not carried over{count}: {'; '.join(first + more)}", stacklevel=4)


@dataclass(frozen=True)
class Occupancy:
    """The bits and names that rows have, by their place and feature."""

    bits: dict[tuple[Any, ...], dict[str, int]] = field(default_factory=dict)
    registers: dict[tuple[Any, ...], dict[str, str]] = field(default_factory=dict)
    fields: dict[tuple[Any, ...], set[str]] = field(default_factory=dict)

    def alias(self, rows: Iterable[Row]) -> str:
        """Return the register that lies where rows of another register would go, on a chip that
        has both; blank if there is none."""
        for row in rows:
            names = self.registers.get((row["block"], row["offset"]), {})
            for name in _both(names, row["feature"]):
                if name != row["register"]:
                    return str(name)
        return ""

    def clash(self, row: Row) -> bool:
        """True if another field has bits of this row on a chip that has both."""
        bits = self.bits.get((row["block"], row["offset"]), {})
        return any(taken & _mask(row) for taken in _both(bits, row["feature"]))

    def add(self, row: Row, where: str) -> None:
        """Add the bits and the name of a row; raises ValueError if another row has the name on the
        same chip."""
        feature, place = row["feature"], (row["block"], row["offset"])
        bits = self.bits.setdefault(place, {})
        bits[feature] = bits.get(feature, 0) | _mask(row)
        self.registers.setdefault(place, {})[feature] = row["register"]
        if "at" not in row and row["field"]:
            register = row["register"] or row["offset"]
            names = self.fields.setdefault((row["block"], register, row["field"]), set())
            if feature in names or "" in names or (names and not feature):
                raise ValueError(
                    f"{where}: field {row['field']} of register {row['register']} at "
                    f"{row['offset']:#x}: got this name a second time, allowed is once in its "
                    "register and a register once in its domain"
                )
            names.add(feature)


def _mask(row: Row) -> int:
    return int((2 ** row["width"] - 1) * 2 ** row["lsb"])


def _both(have: Row, feature: str) -> list[Any]:
    """The values that a chip with this feature has too; the values of all chips if it is blank."""
    if not feature:
        return [*have.values()]
    return [have[name] for name in (feature, "") if name in have]


def placed(
    registers: Iterable[Register],
    enums: Enums,
    losses: Losses,
    copyright: str = "",  # noqa: A002 - as the file has it
    said: Mapping[str, bool] = MappingProxyType({}),
) -> RegisterTable:
    """Return the table of registers.

    A register of 64 bits or more becomes words of one name; registers of 8 and 16 bits, and
    registers that do not begin at a word, share words. A field of more than 64 bits becomes a
    field in each word. If two registers share an address or two fields share bits, the first stays
    and the second is a loss. ``said`` is as in ``RegisterTable.said``.

    Raises ValueError, with the place in the file, for a field outside its register, for a name
    twice, for a value that no field of its width holds and for more than MOST_ROWS fields.
    """
    everything = [*_apart(registers, losses)]
    # before their words are counted: a file may say a register of a thousand million bits
    for register in everything:
        _refuse_register(register)
    names = _shared(everything)
    rows: list[Cells] = []
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
        for found, runs in fields:
            if any(map(occupancy.clash, runs)):
                losses.lose(
                    found.where,
                    f"field {found.name} of register {register.name} at {register.offset:#x}, of "
                    "whose bits another field has some",
                )
                continue
            for row in runs:
                occupancy.add(row, found.where)
            rows += runs
    return RegisterTable.of_said(rows, enums, copyright, said)


def _apart(registers: Iterable[Register], losses: Losses) -> Iterator[Register]:
    """Yield the registers that share no bytes with an earlier register, unless both are words."""
    holders: dict[tuple[str, int], Register] = {}
    for register in registers:
        size = min(register.size, SIZES[-1]) // 8
        places = [(register.block, register.offset + n) for n in range(size)]
        others = [holders[place] for place in places if place in holders]
        clash = ""
        for other in others:
            words = _of_words(other) and _of_words(register)
            if not clash and not words and other[1:4] != register[1:4]:
                clash = f"register {register.name} at {register.offset:#x}, where {other.name} lies"
        if clash:
            losses.lose(register.where, clash, 1)
            continue
        holders.update(dict.fromkeys(places, register))
        yield register


def _refuse_register(register: Register) -> None:
    if register.size in SIZES and register.name and 0 <= register.offset < 2**WORD_BITS:
        return
    raise ValueError(
        f"{register.where}: register {register.name or 'without a name'}: got {register.size} "
        f"bits at offset {register.offset:#x}, allowed is a name, a size of {SIZES[0]} to "
        f"{SIZES[-1]} bits, a power of two, and an offset below 2**32"
    )


def _of_words(register: Register) -> bool:
    return register.size >= WORD_BITS and not register.offset % WORD_BYTES


def _shared(registers: Sequence[Register]) -> dict[tuple[str, int], str]:
    """The name of each word that several registers share, by block and index."""
    words: dict[tuple[str, int], dict[str, int]] = {}
    for register in registers:
        if not _of_words(register):
            for word in register.words:
                offsets = words.setdefault((register.block, word), {})
                offsets.setdefault(register.name, register.offset)
    shared = {place: names for place, names in words.items() if len(names) > 1}
    return {
        place: "_".join(sorted(names, key=names.__getitem__)) for place, names in shared.items()
    }


def _fields(
    register: Register,
    names: Mapping[tuple[str, int], str],
) -> Iterator[tuple[Found, list[Cells]]]:
    """Yield each field of a register with a row for each run of its bits."""
    shift = 8 * (register.offset % WORD_BYTES)
    whole = Found("", 0, register.size - 1, register.where)
    fields = sorted(register.fields, key=lambda found: found.low) or [whole]
    for found in fields:
        what = f"{found.where}: field {found.name} of register {register.name}"
        if not 0 <= found.low <= found.high < register.size:
            raise ValueError(
                f"{what}: got bits {found.low} to {found.high}, allowed is inside 0 to "
                f"{register.size - 1}"
            )
        low, high = found.low + shift, found.high + shift
        crosses = low // WORD_BITS != high // WORD_BITS
        name = _field_name(register, found, names, crosses)
        note = str(found.row.get("note", ""))
        if register.note and found[:3] == fields[0][:3]:
            if found.name:
                note = f"{unnumbered(register.name)}: {register.note} {note}".strip()
            else:
                note = register.note
        with refusing(what):
            at = max(0, int(found.row.get("at", 0)))
            Meaning.parse(str(found.row.get("value", ""))).refuse_width(at + high - low + 1)
        rows = []
        for n, (word, lsb, width, at) in enumerate(pieces(low, high - low + 1)):
            index = register.offset // WORD_BYTES + word
            row = {"block": register.block, "offset": WORD_BYTES * index, "feature": ""}
            row["register"] = names.get((register.block, index), register.name)
            row |= {"field": name, "lsb": lsb, "width": width, **found.row, "note": note}
            if high - low >= MOST_FIELD_BITS:
                row |= {"field": f"{name}[{n}]", "value": ""}
            elif crosses:
                row["at"] = at
            rows.append(row)
        yield found, rows


def _field_name(
    register: Register, found: Found, names: Mapping[tuple[str, int], str], crosses: bool
) -> str:
    """The name of a field in the table: with its register if it crosses words, or if its register
    shares a word."""
    shares = any((register.block, word) in names for word in register.words)
    if crosses or shares:
        return f"{register.name}.{found.name}".rstrip(".")
    return found.name or unnumbered(register.name).rpartition(".")[2]


@dataclass(frozen=True)
class FileEnums:
    """The enums of a file by name; npulab wrote the enums in ``ours`` whole, while the list at a
    field may say less."""

    by_name: NewEnums
    ours: set[str] = field(default_factory=set)

    def own(self, name: str) -> NewCodes:
        self.ours.add(name)
        return self.by_name.setdefault(name, {})

    def take(self, label: str, block: str, name: str, values: Codes, where: str) -> str:
        """Return the value column of a field with these named values: the enum that the file names,
        else an enum named after the field."""
        plain = NO_WORD.sub("_", re.sub(r"\[\w+\]", "", name))
        tries = [plain, f"{NO_WORD.sub('_', block)}_{plain}"]
        if label:
            tries.insert(0, NO_WORD.sub("_", label))
        for free in (*tries, *(f"{plain}_{n}" for n in range(2, 1000))):
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
        """Raise ValueError if a value names an enum that is not in the file."""
        if (enum := value.partition("enum:")[2]) and enum not in self.by_name:
            raise ValueError(
                f"{where}: got enum {enum!r}, allowed is one of {', '.join(self.by_name) or 'none'}"
            )
