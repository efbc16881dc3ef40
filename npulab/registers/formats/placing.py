"""Registers of any size put into words: what readers of other formats found, as rows of a table."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from npulab.registers.fields import WORD_BITS, WORD_BYTES
from npulab.registers.formats.rnndb_names import unnumbered
from npulab.registers.formats.tables import MOST_ROWS, RegisterTable, Row
from npulab.registers.formats.taken import Taken
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


@dataclass(frozen=True)
class Told:
    """What of a file could not be carried over, each thing once."""

    lost: dict[str, None] = field(default_factory=dict)

    def lose(self, where: str, what: str) -> None:
        self.lost.setdefault(f"{where}: {what}")

    def warn(self, path: Path) -> None:
        """A UserWarning of the first few, where there are any."""
        if self.lost:
            some = [*self.lost][:SHOWN] + ([f"{len(self.lost) - SHOWN} more"] if len(self.lost) > SHOWN else [])
            warnings.warn(f"{path}: not carried over: {'; '.join(some)}", stacklevel=4)


def placed(registers: Iterable[Register], enums: Mapping[str, Mapping[int, str]], told: Told,
           copyright: str = "") -> RegisterTable:  # noqa: A002 - as the file has it
    """The table of registers: those of 64 bits and more are words of one name, those of 8 and 16
    bits share a word.

    A field of more than 64 bits is one of each word.  Of two registers at an address the first
    stays, the other is told.  Raises ValueError with where it stands for what lies in no word, has
    bits twice or a value that no field of its width holds.
    """
    everything = [*_apart(registers, told)]
    names = _shared(everything)
    rows: list[dict[str, Any]] = []
    taken = Taken()
    for one in everything:
        more = [*_rows(one, names)]
        if len(rows) + len(more) > MOST_ROWS:
            raise ValueError(f"{one.where}: got more than {MOST_ROWS} fields, allowed are as many")
        if other := taken.alias(row for row, _ in more):
            told.lose(one.where, f"register {one.name} at {one.offset:#x}, where {other} lies")
            continue
        for row, where in more:
            taken.add(row, where)
            rows.append(row)
    return RegisterTable.of(rows, enums, copyright)


def _apart(registers: Iterable[Register], told: Told) -> Iterator[Register]:
    """Registers without those that share bytes with one of less than a word before them."""
    taken: dict[tuple[str, int], Register] = {}
    for one in registers:
        places = [(one.block, one.offset + n) for n in range(min(one.size, SIZES[-1]) // 8)]
        others = [taken[place] for place in places if place in taken]
        other = next((some for some in others if some[1:4] != one[1:4] and min(some.size, one.size) < WORD_BITS), None)
        if other is not None:
            told.lose(one.where, f"register {one.name} at {one.offset:#x}, where {other.name} lies")
            continue
        taken.update(dict.fromkeys(places, one))
        yield one


def _shared(registers: Sequence[Register]) -> dict[tuple[str, int], str]:
    """The name of each word that several registers share, by block and offset."""
    words: dict[tuple[str, int], dict[str, int]] = {}
    for one in registers:
        if one.size < WORD_BITS:
            words.setdefault((one.block, one.offset // WORD_BYTES), {}).setdefault(one.name, one.offset)
    return {place: "_".join(sorted(names, key=names.__getitem__)) for place, names in words.items() if len(names) > 1}


def _rows(one: Register, names: Mapping[tuple[str, int], str]) -> Iterator[tuple[dict[str, Any], str]]:
    """A row for each run of bits of a register, and where it stands in the file."""
    step = min(one.size // 8, WORD_BYTES)
    if one.size not in SIZES or not one.name or not 0 <= one.offset < 2 ** WORD_BITS or one.offset % max(1, step):
        raise ValueError(f"{one.where}: register {one.name or 'without a name'}: got {one.size} bits at offset "
                         f"{one.offset:#x}, allowed is a name, a size of {SIZES[0]} to {SIZES[-1]} bits, a power of "
                         "two, and an offset below 2**32 that is a multiple of the size or of a word")
    shift = 8 * (one.offset % WORD_BYTES)
    word = names.get((one.block, one.offset // WORD_BYTES), one.name) if one.size < WORD_BITS else one.name
    prefix = f"{one.name}." if word != one.name else ""
    fields = sorted(one.fields, key=lambda run: run.low) or [Found("", 0, one.size - 1, one.where)]
    for n, run in enumerate(fields):
        if not 0 <= run.low <= run.high < one.size:
            raise ValueError(f"{run.where}: field {run.name} of register {one.name}: got bits {run.low} to {run.high}, "
                             f"allowed is inside 0 to {one.size - 1}")
        low, high = run.low + shift, run.high + shift
        crosses = low // WORD_BITS != high // WORD_BITS
        name = run.name or unnumbered(one.name).rpartition(".")[2]
        name = (f"{one.name}.{run.name}".rstrip(".") if crosses else f"{prefix}{name}" if run.name or not prefix
                else one.name)
        note = str(run.row.get("note", ""))
        if one.note and not n:
            note = f"{unnumbered(one.name)}: {one.note} {note}".strip() if run.name else one.note
        value = str(run.row.get("value", ""))
        try:
            Meaning.parse(value).refuse_width(max(0, int(run.row.get("at", 0))) + high - low + 1)
        except ValueError as error:
            raise ValueError(f"{run.where}: field {run.name} of register {one.name}: {error}") from None
        for n_word in range(low // WORD_BITS, high // WORD_BITS + 1):
            first, last = max(low, WORD_BITS * n_word), min(high, WORD_BITS * (n_word + 1) - 1)
            offset = WORD_BYTES * (one.offset // WORD_BYTES + n_word)
            row = {"block": one.block, "offset": offset, "register": word, "field": name,
                   "lsb": first - WORD_BITS * n_word, "width": last - first + 1, "feature": "", **run.row, "note": note}
            if high - low >= MOST_FIELD_BITS:
                row |= {"field": f"{name}[{n_word - low // WORD_BITS}]", "value": ""}
            elif crosses:
                row |= {"at": first - low}
            yield row, run.where


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
        tries = [NO_WORD.sub("_", label)] if label else []
        tries += [plain, f"{NO_WORD.sub('_', block)}_{plain}", *(f"{plain}_{n}" for n in range(2, 1000))]
        for free in tries:
            have = self.by_name.setdefault(free, dict(values))
            if free in self.ours:
                have.update({raw: text for raw, text in values.items() if raw not in have})
                return f"enum:{free}"
            if have == values:
                return f"enum:{free}"
        raise ValueError(f"{where}: enum {plain}: got a thousand others of this name, allowed are "
                         "fewer")

    def refuse_unknown(self, value: str, where: str) -> None:
        """Raises ValueError where a value is of an enum that is not there."""
        if (enum := value.partition("enum:")[2]) and enum not in self.by_name:
            raise ValueError(f"{where}: got enum {enum!r}, allowed is one of {', '.join(self.by_name) or 'none'}")
