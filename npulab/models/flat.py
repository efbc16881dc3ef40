"""Tables in the encoding of FlatBuffers, read without a package.

A table is read from its offset in the file. It points to a list of slots, which lies before or
after it in the file; the slots give the distance of each field from the start of the table.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npulab.support.files import read_table
from npulab.support.text import plural

# The values of a file may take LEAST_MEMORY bytes of memory, plus MEMORY_PER_BYTE bytes for each
# byte of the file. A table takes about TABLE_MEMORY bytes, an element of a vector ELEMENT_MEMORY
# bytes; both numbers include the lines that a listing has for them.
LEAST_MEMORY, MEMORY_PER_BYTE, TABLE_MEMORY, ELEMENT_MEMORY = 2**25, 16, 400, 40


class Field(NamedTuple):
    """A field of a table; ``absent`` is its value if it is not stored.

    ``kind`` is a letter of ``struct`` for a number (``3B``: three numbers in the table itself),
    ``s`` for a string, the name of a table, ``*`` for a table whose kind the caller knows, or ``@``
    for a vector of bytes that is read as the range of its offsets. A kind in square brackets is a
    vector of that kind.
    """

    name: str
    kind: str
    absent: Any


NUMBERS = {*"bB?hHiIqQf", "3B"}
# The value of a field that is not stored, by the kind of the field. A vector of a kind that is not
# here has the value (), a field of any other kind the value 0.
ABSENT = {"s": "", "[B]": b"", "3B": (0, 0, 0), "@": range(0)}
Schema = Mapping[str, Sequence[Field]]


def read_schema(path: Path) -> dict[str, list[Field]]:
    """The fields of each table, from a CSV file with a row for each field: table, field and
    kind.
    """
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

    A broken file can refer to the same bytes again and again, and so take much memory; a valid file
    hardly does. So the memory that values take is counted: above a limit ValueError is raised.
    """

    def __init__(self, data: bytes, schema: Schema) -> None:
        self.data, self.schema = data, schema
        self.most = self.left = LEAST_MEMORY + MEMORY_PER_BYTE * len(data)

    def take(self, at: int, size: int, what: str, memory: int = 1) -> bytes:
        """The ``size`` bytes at an offset; ``memory`` is how many bytes of memory the caller needs
        for each of them. Raises ValueError if they do not lie in the file."""
        if not 0 <= at <= len(self.data) - size:
            raise ValueError(
                f"{what}: got {plural(size, 'byte')} at offset {at}, allowed is inside the file of "
                f"{len(self.data)}; the file is cut off or broken"
            )
        self.spend(size * memory, what, at)
        return self.data[at : at + size]

    def spend(self, memory: int, what: str, at: int | None = None) -> None:
        """Count ``memory`` more bytes as taken. Raises ValueError if the bytes counted so far are
        more than the values of a file of this size may take."""
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
        """The number of a ``kind`` of ``struct`` at an offset; a tuple if the kind has several
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

        A number lies in the field itself. For every other kind the field holds the distance to the
        value: a text, a table, or a vector (its length, then its elements). The value of the kind
        ``*`` is the offset of the table.
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
