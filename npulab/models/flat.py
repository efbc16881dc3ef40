"""Tables in FlatBuffers' encoding, read without a package: a table is reached by an offset, its
fields by a list of slots that lies anywhere before or behind it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from npulab.support.text import plural

# memory that a file may take, and how much a table does and a byte of a vector, with its line in a
# listing, about
LEAST_MEMORY, MEMORY_PER_BYTE, TABLE_MEMORY, ELEMENT_MEMORY = 2**25, 16, 400, 40


class Field(NamedTuple):
    """A field of a table, and what it is where it is not stored.

    Its kind is a letter of ``struct`` (``3B``: that many in the table itself), ``s`` (a string),
    the name of a table, ``*`` (a table that who asks knows), or one of these in brackets: a vector.
    """

    name: str
    kind: str
    absent: Any


NUMBERS = {*"bB?hHiIqQf", "3B"}
Schema = Mapping[str, Sequence[Field]]


class Flat:
    """Bytes in FlatBuffers' encoding; every read is checked.

    A broken file can point to the same bytes again and again, which a sound one hardly does: what
    is made of it, in bytes of memory, is counted.
    """

    def __init__(self, data: bytes, schema: Schema) -> None:
        self.data, self.schema = data, schema
        self.most = self.left = LEAST_MEMORY + MEMORY_PER_BYTE * len(data)

    def take(self, at: int, size: int, what: str, memory: int = 1) -> bytes:
        """Some bytes; ``memory`` is how much of it each of them takes."""
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
            if at is None:
                where = ""
            else:
                where = f" at offset {at}"
            raise ValueError(
                f"{what}: got the same bytes again and again{where}, allowed is what takes "
                f"{self.most} "
                "bytes of memory in all"
            )

    def number(self, kind: str, at: int, what: str) -> Any:
        """A number of a kind, of several a tuple."""
        numbers = struct.unpack("<" + kind, self.take(at, struct.calcsize(f"<{kind}"), what))
        if len(kind) == 1:
            return numbers[0]
        return numbers

    def table(self, kind: str, at: int) -> dict[str, Any]:
        """The fields of a table by name."""
        self.spend(TABLE_MEMORY, kind, at)
        slots = at - self.number("i", at, kind)
        size = self.number("H", slots, f"{kind}, slots")
        out = {}
        for slot, one in enumerate(self.schema[kind]):
            place = 4 + 2 * slot
            entry = 0
            if place + 2 <= size:
                entry = self.number("H", slots + place, f"{kind}, slots")
            if entry:
                out[one.name] = self.part(one.kind, at + entry, f"{kind}, {one.name}")
            else:
                out[one.name] = one.absent
        return out

    def part(self, kind: str, at: int, what: str) -> Any:
        """What lies at an offset: numbers, a string as text, of ``*`` where its table lies."""
        if kind in NUMBERS:
            return self.number(kind, at, what)
        at += self.number("I", at, what)
        if kind == "*":  # read by whoever knows what it is
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
        raw = self.take(
            at, count * struct.calcsize(element), what, 1 if element == "B" else ELEMENT_MEMORY
        )
        if kind == "s":
            return raw.decode(errors="backslashreplace")
        if element == "B":
            return raw
        return tuple(np.frombuffer(raw, f"<{element}").tolist())
