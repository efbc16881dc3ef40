"""Registers as drawings show them: their bits from the lowest, once for each feature that
changes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import NamedTuple

from npulab.registers.fields import WORD_BITS, Row
from npulab.registers.formats.naming import by_block
from npulab.registers.formats.tables import RegisterTable, features_in
from npulab.registers.names import name_of

NOTHING: Row = MappingProxyType({})


class Box(NamedTuple):
    """A run of bits: its name, blank if the table has no row for it, and its row."""

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
    """A register on chips that have ``feature`` (blank: on all), with its 32 bits from the
    lowest."""

    block: str
    offset: int
    register: str
    feature: str
    boxes: tuple[Box, ...]


def drawn(table: RegisterTable) -> Iterator[Drawn]:
    """Yield every register of a table, a register with rows of features once for each feature."""
    for block, _, registers in by_block(table):
        for offset, register, rows in registers:
            for feature in features_in(rows) or [""]:
                yield Drawn(
                    block, offset, register, feature, boxes(rows, feature, table.by_address)
                )


def boxes(rows: Sequence[Row], feature: str, by_address: frozenset[str]) -> tuple[Box, ...]:
    """Return the 32 bits of a register on chips that have a feature; blank for none."""
    return tuple(
        _boxes([row for row in rows if row.get("feature", "") in ("", feature)], by_address)
    )


def _boxes(rows: Sequence[Row], by_address: frozenset[str]) -> Iterator[Box]:
    at = 0
    for row in sorted(rows, key=lambda row: row["lsb"]):
        if row["lsb"] > at:
            yield Box("", at, row["lsb"] - at)
        yield Box(name_of(row, by_address), row["lsb"], row["width"], row)
        at = row["lsb"] + row["width"]
    if at < WORD_BITS:
        yield Box("", at, WORD_BITS - at)
