"""Tables in the encoding of FlatBuffers, read without a package.

A table is found by its offset. Each table has a list of slots, before or after it in the file,
which gives the place of each of its fields.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npulab.support.files import read_table
from npulab.support.text import plural

# The values of a file may take LEAST_MEMORY bytes, and MEMORY_PER_BYTE for each of its bytes. A
# table and an element of a vector take about TABLE_MEMORY and ELEMENT_MEMORY bytes, with their
# lines in a listing.
LEAST_MEMORY, MEMORY_PER_BYTE, TABLE_MEMORY, ELEMENT_MEMORY = 2**25, 16, 400, 40


class Field(NamedTuple):
    """A field of a table; ``absent`` is the value of a field that is not stored.

    ``kind`` is a letter of ``struct`` (``3B``: three numbers in the table itself), ``s`` (a
    string), the name of a table, ``*`` (a table whose kind the caller knows), or ``@`` (a vector of
    bytes, as the range of its offsets). A kind in brackets is a vector of that kind.
    """

    name: str
    kind: str
    absent: Any


NUMBERS = {*"bB?hHiIqQf", "3B"}
# The values of fields that are not stored; 0 of other kinds, () of other vectors.
ABSENT = {"s": "", "[B]": b"", "3B": (0, 0, 0), "@": range(0)}
Schema = Mapping[str, Sequence[Field]]


def read_schema(path: Path) -> dict[str, list[Field]]:
    """The fields of each table, from a CSV file with a row for each: table, field and kind."""
    schema: dict[str, list[Field]] = {}
    for row in read_table(path):
        kind = row["kind"]
        absent: Any = 0
        if kind[0] == "[":
            absent = ()
        absent = ABSENT.get(kind, absent)
        schema.setdefault(row["table"], []).append(Field(row["field"], kind, absent))
    return schema


class Flat:
    """Bytes in the encoding of FlatBuffers; every read is checked to lie in the file.

    A broken file can refer to the same bytes again and again, which a valid file hardly does. So
    the memory that the values take is counted, and ValueError is raised if it exceeds a limit.
    """

    def __init__(self, data: bytes, schema: Schema) -> None:
        self.data, self.schema = data, schema
        self.most = self.left = LEAST_MEMORY + MEMORY_PER_BYTE * len(data)

    def take(self, at: int, size: int, what: str, memory: int = 1) -> bytes:
        """The ``size`` bytes at an offset; ``memory`` is the bytes of memory that will be taken for
        each of them. Raises ValueError outside the file."""
        if not 0 <= at <= len(self.data) - size:
            raise ValueError(
                f"{what}: got {plural(size, 'byte')} at offset {at}, allowed is inside the file of "
                f"{len(self.data)}; the file is cut off or broken"
            )
        self.spend(size * memory, what, at)
        return self.data[at : at + size]

    def spend(self, memory: int, what: str, at: int | None = None) -> None:
        """Count bytes of memory that are taken; raises ValueError if they are more, in all, than a
        file of this size may take."""
        self.left -= memory
        if self.left < 0:
            where = ""
            if at is not None:
                where = f" at offset {at}"
            raise ValueError(
                f"{what}: got the same bytes again and again{where}, allowed are values "
                f"that take {self.most} bytes of memory in all"
            )

    def number(self, kind: str, at: int, what: str) -> Any:
        """The number at an offset, of a kind of ``struct``; a tuple if the kind has several
        numbers."""
        numbers = struct.unpack("<" + kind, self.take(at, struct.calcsize(f"<{kind}"), what))
        if len(kind) == 1:
            return numbers[0]
        return numbers

    def table(self, kind: str, at: int) -> dict[str, Any]:
        """The values of the fields of the table at an offset, by name."""
        self.spend(TABLE_MEMORY, kind, at)
        slots = at - self.number("i", at, kind)
        size = self.number("H", slots, f"{kind}, slots")
        fields = {}
        for slot, field in enumerate(self.schema[kind]):
            place = 4 + 2 * slot
            entry = 0
            if place + 2 <= size:
                entry = self.number("H", slots + place, f"{kind}, slots")
            fields[field.name] = field.absent
            if entry:
                fields[field.name] = self.part(field.kind, at + entry, f"{kind}, {field.name}")
        return fields

    def part(self, kind: str, at: int, what: str) -> Any:
        """The value of the field at an offset; ``kind`` is that of ``Field``.

        A number lies in the field itself. Of every other kind the field holds the distance to the
        value: a text, a table, or a vector (its length, then its elements).
        """
        if kind in NUMBERS:
            return self.number(kind, at, what)
        at += self.number("I", at, what)
        if kind == "*":  # the caller knows the fields of the table; here only its start is checked
            self.number("H", at - self.number("i", at, what), what)
            return at
        if kind in self.schema:
            return self.table(kind, at)
        count = self.number("I", at, what)
        first = at + 4
        if kind == "@":
            self.take(first, count, what, 0)
            return range(first, first + count)
        if kind == "s":
            return self.take(first, count, what, 1).decode(errors="backslashreplace")
        return self._elements(kind.strip("[]"), count, first, what)

    def _elements(self, kind: str, count: int, first: int, what: str) -> Any:
        """The elements of a vector from an offset: bytes, numbers, texts or tables."""
        if kind == "B":
            return self.take(first, count, what, 1)
        if kind in NUMBERS:
            raw = self.take(first, count * struct.calcsize(kind), what, ELEMENT_MEMORY)
            return tuple(np.frombuffer(raw, f"<{kind}").tolist())
        self.take(first, 4 * count, what, ELEMENT_MEMORY)
        return [self.part(kind, first + 4 * index, what) for index in range(count)]
