"""Registers as drawings show them: each has its 32 bits as runs, from the lowest. A register that
is not the same on all chips is drawn once for each feature."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple

from npulab.registers.fields import WORD_BITS, Row
from npulab.registers.formats.naming import by_block
from npulab.registers.formats.tables import RegisterTable, features_in
from npulab.registers.names import name_of

NOTHING: Row = MappingProxyType({})


class Box(NamedTuple):
    """A run of bits: its name (blank if the table has no row for it), its lowest bit and width, and
    its row (empty if there is none)."""

    name: str
    lsb: int
    width: int
    row: Row = NOTHING

    @property
    def bits(self) -> str:
        """The place of the bits, highest bit first.

        >>> Box("mode", 4, 3).bits, Box("go", 31, 1).bits
        ('6:4', '31')
        """
        if self.width > 1:
            return f"{self.lsb + self.width - 1}:{self.lsb}"
        return str(self.lsb)

    @property
    def meaning(self) -> str:
        """The value column; for a piece of a split field also its place in the field's value."""
        value = str(self.row.get("value", ""))
        if "at" not in self.row:
            return value
        at = self.row["at"]
        if self.width > 1:
            return f"{value} bits {at + self.width - 1}:{at} of the field".strip()
        return f"{value} bit {at} of the field".strip()


class Drawn(NamedTuple):
    """A register on chips that have ``feature`` (blank: on all chips). ``boxes`` has its 32 bits as
    runs, from the lowest; ``offset`` is in bytes."""

    block: str
    offset: int
    register: str
    feature: str
    boxes: tuple[Box, ...]


def drawn(table: RegisterTable) -> Iterator[Drawn]:
    """Yield every register of a table; a register that has rows with features is yielded once for
    each feature."""
    for block, _, registers in by_block(table):
        for offset, register, rows in registers:
            for feature in features_in(rows) or [""]:
                bits = boxes(rows, feature, table.by_address)
                yield Drawn(block, offset, register, feature, bits)


def boxes(rows: Iterable[Row], feature: str, by_address: frozenset[str]) -> tuple[Box, ...]:
    """Return the 32 bits of a register as runs, on chips that have ``feature`` (blank: on chips
    without a feature). ``rows`` are all rows of the register."""
    out, end = [], 0
    for row in sorted(rows, key=itemgetter("lsb")):
        if row.get("feature", "") not in ("", feature):
            continue
        if row["lsb"] > end:
            out.append(Box("", end, row["lsb"] - end))
        out.append(Box(name_of(row, by_address), row["lsb"], row["width"], row))
        end = row["lsb"] + row["width"]
    if end < WORD_BITS:
        out.append(Box("", end, WORD_BITS - end))
    return tuple(out)
