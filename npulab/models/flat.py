"""Tables in FlatBuffers' encoding, read without a package.

An offset leads to a table.  A list of slots, which lies anywhere before or after the table, has the
place of each of its fields.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from npulab.support.text import plural

# Bytes of memory that a file may take at least, and for each of its bytes; bytes that a table and
# an element of a vector take, about, with their lines in a listing.
LEAST_MEMORY, MEMORY_PER_BYTE, TABLE_MEMORY, ELEMENT_MEMORY = 2**25, 16, 400, 40


class Field(NamedTuple):
    """A field of a table; ``absent`` is its value if it is not stored.

    Its kind is a letter of ``struct`` (``3B``: three numbers in the table itself), ``s`` (a
    string), the name of a table, ``*`` (a table whose kind the caller knows), or one of these in
    brackets: a vector.
    """

    name: str
    kind: str
    absent: Any


NUMBERS = {*"bB?hHiIqQf", "3B"}
Schema = Mapping[str, Sequence[Field]]


class Flat:
    """Bytes in FlatBuffers' encoding; every read is checked.

    A broken file can point to the same bytes again and again, which a sound file hardly does: the
    memory that its values take is counted, and limited.
    """

    def __init__(self, data: bytes, schema: Schema) -> None:
        self.data, self.schema = data, schema
        self.most = self.left = LEAST_MEMORY + MEMORY_PER_BYTE * len(data)

    def take(self, at: int, size: int, what: str, memory: int = 1) -> bytes:
        """The bytes at an offset; ``memory`` is what each of them will take, in bytes."""
        if not 0 <= at <= len(self.data) - size:
            raise ValueError(
                f"{what}: got {plural(size, 'byte')} at offset {at}, allowed is inside the file of "
                f"{len(self.data)}; the file is cut off or broken"
            )
        self.spend(size * memory, what, at)
        return self.data[at : at + size]

    def spend(self, memory: int, what: str, at: int | None = None) -> None:
        """Count memory; ValueError for more than a file of this size may take."""
        self.left -= memory
        if self.left < 0:
            where = ""
            if at is not None:
                where = f" at offset {at}"
            raise ValueError(
                f"{what}: got the same bytes again and again{where}, allowed is what takes "
                f"{self.most} bytes of memory in all"
            )

    def number(self, kind: str, at: int, what: str) -> Any:
        """A number of a kind; a tuple if the kind has several."""
        numbers = struct.unpack("<" + kind, self.take(at, struct.calcsize(f"<{kind}"), what))
        if len(kind) == 1:
            return numbers[0]
        return numbers

    def table(self, kind: str, at: int) -> dict[str, Any]:
        """The fields of a table by name."""
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
        """The value at an offset: a number, a text, a table or a vector; for ``*`` the offset of
        its table."""
        if kind in NUMBERS:
            return self.number(kind, at, what)
        at += self.number("I", at, what)
        if kind == "*":  # its caller knows the fields; here only its start is checked
            self.number("H", at - self.number("i", at, what), what)
            return at
        if kind in self.schema:
            return self.table(kind, at)
        count, at = self.number("I", at, what), at + 4
        element = {"s": "B"}.get(kind, kind[1:-1])
        if element == "s" or element in self.schema:
            offsets = np.frombuffer(self.take(at, 4 * count, what, ELEMENT_MEMORY), "<u4").tolist()
            if element == "s":
                return [self.part("s", at + 4 * i, what) for i in range(count)]
            return [self.table(element, at + 4 * i + offset) for i, offset in enumerate(offsets)]
        memory = ELEMENT_MEMORY
        if element == "B":
            memory = 1
        raw = self.take(at, count * struct.calcsize(element), what, memory)
        if kind == "s":
            return raw.decode(errors="backslashreplace")
        if element == "B":
            return raw
        return tuple(np.frombuffer(raw, f"<{element}").tolist())
