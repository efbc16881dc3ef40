"""Puts registers of any size into words: readers yield registers, and this module makes the rows of
a table."""

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

SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)  # the allowed sizes of a register, in bits
MOST_FIELD_BITS = 64
SHOWN = 3  # a warning names at most so many losses
NOTHING: Row = MappingProxyType({})
NO_WORD = re.compile(r"\W")


class Found(NamedTuple):
    """A field of a register as a file says it: its name, its lowest and highest bit in the
    register, file and line (``where``), and further columns of its row."""

    name: str
    low: int
    high: int
    where: str
    row: Row = NOTHING


class Register(NamedTuple):
    """A register as a file says it: its block, byte offset in the block, size in bits, name, file
    and line (``where``), note and fields."""

    block: str
    offset: int
    size: int
    name: str
    where: str
    note: str = ""
    fields: tuple[Found, ...] = ()

    @property
    def words(self) -> range:
        """The numbers of the words of the block in which the register has bits."""
        last = self.offset + self.size // 8 - 1
        return range(self.offset // WORD_BYTES, last // WORD_BYTES + 1)


@dataclass(frozen=True)
class Losses:
    """What could not be carried over from a file. ``things`` has the number of lost registers, by
    the sentence about the loss."""

    things: dict[str, int] = field(default_factory=dict)

    def lose(self, where: str, what: str, registers: int = 0) -> None:
        self.things.setdefault(f"{where}: {what}", registers)

    def warn(self, path: Path) -> None:
        """Warn of the losses, if there are any, with the count of lost registers and the first
        losses."""
        if not self.things:
            return
        registers = sum(self.things.values())
        count = ""
        if registers:
            count = f" ({plural(registers, 'register')})"
        # the warning names losses of registers first
        first = sorted(self.things, key=lambda thing: not self.things[thing])[:SHOWN]
        more = []
        if len(self.things) > SHOWN:
            more = [f"{len(self.things) - SHOWN} more"]
        warnings.warn(f"{path}: not carried over{count}: {'; '.join(first + more)}", stacklevel=4)


@dataclass(frozen=True)
class Occupancy:
    """The bits and names that are taken. Two rows for different features may have the same bits,
    because no chip has both."""

    # by block and offset, then by feature: the mask of the taken bits, and the register's name
    bits: dict[tuple[Any, ...], dict[str, int]] = field(default_factory=dict)
    registers: dict[tuple[Any, ...], dict[str, str]] = field(default_factory=dict)
    # by block, register and field: the features of the rows with this field
    fields: dict[tuple[Any, ...], set[str]] = field(default_factory=dict)

    def alias(self, rows: Iterable[Row]) -> str:
        """Return the name of another register that has a word of these rows, which are of one
        register, on a chip that has both registers; blank if there is none."""
        for row in rows:
            names = self.registers.get((row["block"], row["offset"]), {})
            for name in _both(names, row["feature"]):
                if name != row["register"]:
                    return str(name)
        return ""

    def clash(self, row: Row) -> bool:
        """True if another field has a bit of this row, on a chip that has both fields."""
        bits = self.bits.get((row["block"], row["offset"]), {})
        return any(taken & _mask(row) for taken in _both(bits, row["feature"]))

    def add(self, row: Row, where: str) -> None:
        """Add the bits and the names of a row; raises ValueError if another row of the same
        register has the name of its field, on a chip that has both."""
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
                    f"{row['offset']:#x}: got this name a second time, allowed is a field's name "
                    "once in its register, and a register's name once in its block"
                )
            names.add(feature)


def _mask(row: Row) -> int:
    return int((2 ** row["width"] - 1) * 2 ** row["lsb"])


def _both(have: Row, feature: str) -> list[Any]:
    """Return the values, by feature in ``have``, of rows that can be on one chip with a row of this
    feature: the rows of the same feature or of none; all rows, if the feature is blank."""
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

    A register of 64 bits or more becomes several words of the same name. Registers of 8 and 16
    bits, and registers that do not begin at a word, may share a word. A field of more than 64 bits
    becomes a field in each word. If two registers have the same address, or two fields the same
    bits, the first stays and the second is added to ``losses``. ``said`` is as in
    ``RegisterTable.said``.

    Raises ValueError, with file and line, for a register without a name, of another size than
    ``SIZES`` or with an offset outside 32 bits, a field outside its register, a field's name twice
    in a register, a value that no field of its width holds, and more than
    MOST_ROWS fields.
    """
    everything = [*_apart(registers, losses)]
    # sizes are checked before words are counted: a file may say a register of 10**9 bits
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
                    f"field {found.name} of register {register.name} at {register.offset:#x}, "
                    "which shares bits with another field",
                )
                continue
            for row in runs:
                occupancy.add(row, found.where)
            rows += runs
    return RegisterTable.of_said(rows, enums, copyright, said)


def _apart(registers: Iterable[Register], losses: Losses) -> Iterator[Register]:
    """Yield the registers; a register that shares bytes with an earlier register of another
    offset, size or name is a loss, unless both consist of whole words (``placed`` compares these
    word by word)."""
    holders: dict[tuple[str, int], Register] = {}
    for register in registers:
        size = min(register.size, SIZES[-1]) // 8
        places = [(register.block, register.offset + n) for n in range(size)]
        others = [holders[place] for place in places if place in holders]
        clash = ""
        for other in others:
            words = _of_words(other) and _of_words(register)
            same = other[1:4] == register[1:4]  # fields 1 to 3: offset, size and name
            if not clash and not words and not same:
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
    """Return the name of each word that several registers share, by block and number of the word:
    the names of these registers, joined."""
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
    """Yield each field of a register with its rows, one for each word in which it has bits. A
    register without fields has one field of all its bits. ``names`` is as ``_shared`` returns."""
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
    """Return the name of a field in the table. The register's name is in front if the field crosses
    words, or if its register shares a word with another register."""
    shares = any((register.block, word) in names for word in register.words)
    if crosses or shares:
        return f"{register.name}.{found.name}".rstrip(".")
    return found.name or unnumbered(register.name).rpartition(".")[2]


@dataclass(frozen=True)
class FileEnums:
    """The enums of a file, by name. npulab wrote the enums in ``ours`` into the file with all their
    names, while the values at a field with such an enum may be fewer."""

    by_name: NewEnums
    ours: set[str] = field(default_factory=set)

    def own(self, name: str) -> NewCodes:
        """Return the dictionary of an enum's names for an enum that npulab itself wrote into the
        file; the caller adds the names.
        """
        self.ours.add(name)
        return self.by_name.setdefault(name, {})

    def take(self, label: str, block: str, name: str, values: Codes, where: str) -> str:
        """Return the value column of a field with these named values, and add their enum. Its name
        is the ``label`` that the file gives or, if there is none, the field's ``name``; if another
        enum has this name, the ``block`` or a number is added."""
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
            f"{where}: enum {plain}: got more than 1000 different enums of this name, allowed are "
            "at most 1000"
        )

    def refuse_unknown(self, value: str, where: str) -> None:
        """Raise ValueError if a value names an enum that is not in the file."""
        if (enum := value.partition("enum:")[2]) and enum not in self.by_name:
            raise ValueError(
                f"{where}: got enum {enum!r}, allowed is one of {', '.join(self.by_name) or 'none'}"
            )
