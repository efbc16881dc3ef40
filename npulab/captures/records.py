"""Records in buffers: micro-ops, descriptors, scales and biases, any number of them in a buffer.

A register map says in which buffers the records of a block lie (``registers.expansion``). All
records of a buffer are words of one array, decoded and encoded at once.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.registers.expansion import Held
from npulab.registers.fields import WORD_BITS, Field
from npulab.registers.map import RegisterMap
from npulab.support.late import pd
from npulab.support.refuse import need_whole, refuse_if
from npulab.support.text import plural

BYTE_BITS = 8
WORD = 2**WORD_BITS - 1  # the largest word: all 32 bits are set


class Holder(NamedTuple):
    """What a map states of a buffer: the block of its records, that block's map, and where in the
    buffer the records lie (``held``)."""

    block: str
    registers: RegisterMap
    held: Held


@dataclass(frozen=True, eq=False)
class Records:
    """The records of a ``block`` in the bytes ``data`` of a buffer.

    ``len`` is their number N: as many as fit, and at most as many as the map allows. Bytes before
    the first record, between two records and after the last are no part of a record.

    >>> rows = [dict(block="OP", buffer="ops"), dict(block="OP", field="dst", lsb=0, width=11)]
    >>> ops = Records("ops", "OP", RegisterMap(rows), Held(("ops",), size=4, stride=4), bytes(8))
    >>> ops, ops.with_fields(1, dst=5)
    (Records(ops: 2 records of OP), b'\\x00\\x00\\x00\\x00\\x05\\x00\\x00\\x00')
    """

    buffer: str
    block: str
    registers: RegisterMap
    held: Held
    data: bytes

    def __len__(self) -> int:
        return self.held.fits(len(self.data))

    @cached_property
    def words(self) -> Array:
        """The words of the records ``(N, W) uint32``, not writable; bits of the last word after
        the end of a record are 0."""
        size = self.held.size
        stored = np.zeros((len(self), len(self.registers)), "<u4")
        stored.view(np.uint8)[:, :size] = self.held.lying(self.data)
        words = stored.astype(np.uint32, copy=False)
        words.setflags(write=False)
        return words

    @cached_property
    def fields(self) -> dict[str, Field]:
        """The fields of a record by their shortest name, including automatic fields (unnamed bits);
        fields that begin after the end of a record are left out."""
        found = {}
        end = BYTE_BITS * self.held.size
        for item in self.registers:
            lowest = min(item.pieces)
            start = WORD_BITS * lowest.word + lowest.lsb
            if start < end:
                name = self.registers.key(item)
                found[name] = item
        return found

    @property
    def values(self) -> dict[str, Array]:
        """The value of each field in all records, ``(N,)``, by the field's shortest name."""
        values = self.registers.decode(self.words)
        return {name: values[name] for name in self.fields}

    @property
    def table(self) -> pd.DataFrame:
        """One row per record: its number (``record``), and the value of each field as a column; a
        value that an enum names is that name."""
        from npulab.registers.shown import Table

        frame = Table({"record": range(len(self)), **self.values})
        for name, item in self.fields.items():
            if item.names:
                named = frame[name].map(dict(item.names)).astype(object)
                frame[name] = named.where(named.notna(), frame[name])
        return frame

    def rows(self, most: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the first ``most`` records (None: all), each as a row: its number (``record``), and
        the value of each field by name, as a text or number."""
        for number, words in enumerate(self.words[:most]):
            row: dict[str, Any] = {"record": number}
            raw = self.registers.decode(words, raw=True)
            for item in self.registers.fields_in(words):
                name = self.registers.key(item)
                if name in self.fields:
                    row[name] = item.text(raw[name])
            yield row

    @property
    def gaps(self) -> bytes:
        """The bytes between two records, one gap after another."""
        return self.held.between(self.data)

    @property
    def outside(self) -> tuple[bytes, bytes]:
        """The bytes before the first record, and those after the last."""
        first = self.held.offset
        return self.data[:first], self.data[self.end :]

    @property
    def end(self) -> int:
        """The byte offset of the end of the last record, at most the length of the buffer."""
        return self.held.end(len(self.data))

    def with_words(self, words: Any, outside: tuple[bytes, bytes] | None = None) -> bytes:
        """The bytes of the buffer with ``words``, ``(N, W) uint32``, in place of its records; N may
        be another number than before.

        Bytes that are in no record stay, but those between records become 0 if N changes.
        ``outside`` replaces the bytes before the first record and after the last. Raises ValueError
        for words of another shape, for bits set after the end of a record, and for more records
        than the map allows.
        """
        stored = self._stored(np.asarray(words))
        count, size = stored.shape
        gap = self.held.stride - size
        room = np.zeros((count, size + gap), np.uint8)
        room[:, :size] = stored
        if self.gaps and count == len(self):
            between = np.frombuffer(self.gaps, np.uint8)
            room[:-1, size:] = between.reshape(-1, gap)
        before, after = outside or self.outside
        if not count:
            return before + after
        before = before.ljust(self.held.offset, b"\0")
        own = room.tobytes()
        end = len(own) - gap  # the last record has no gap after it
        return before + own[:end] + after

    def _stored(self, words: Array) -> Array:
        """The bytes of records with these words, ``(N, size)``; raises as ``with_words``."""
        where = f"buffer {self.buffer}: records of {self.block}"
        size, most = self.held.size, self.held.most
        width = len(self.registers)
        wrong = words.ndim != 2 or words.shape[1] != width or words.dtype.kind not in "iu"
        if not wrong:
            beyond = (words < 0) | (words > WORD)
            wrong = bool(np.any(beyond))
        got = f"{words.dtype} of shape {words.shape}"
        refuse_if(wrong, where, got, f"are words (N, {width}) of 0 to {WORD:#x}")
        if most is not None:
            refuse_if(len(words) > most, where, len(words), f"are at most {most}")
        stored = np.ascontiguousarray(words, "<u4").view(np.uint8)
        odd = stored[:, size:].any(1)
        if odd.any():
            number = int(np.argmax(odd))
            raise ValueError(
                f"{where}: got set bits after byte {size} of record {number}, allowed are set bits "
                f"in its {size} bytes"
            )
        return stored[:, :size]

    def with_fields(self, index: Any, **values: Any) -> bytes:
        """The bytes of the buffer with other values in some fields of a record.

        ``index`` is the number of a record, or a slice, numbers or a mask of several; ``values`` by
        field name broadcast to the chosen records. Raises LookupError for an unknown field or
        record, ValueError for a value that does not fit and for a field that is read-only.
        """
        chosen = self._chosen(index)
        words = self.words.copy()
        words[chosen] = self.registers.with_values(words[chosen], values)
        return self.with_words(words)

    def _chosen(self, index: Any) -> Array:
        """The numbers (from 0) of the records that ``index`` chooses, as in ``with_fields``."""
        where = f"buffer {self.buffer}: record"
        if isinstance(index, slice):
            return np.arange(len(self))[index]
        numbers = np.asarray(index)
        if numbers.dtype == bool:
            shape = (len(self),)
            got = f"a mask of shape {numbers.shape}"
            refuse_if(numbers.shape != shape, where, got, f"is one of shape {shape}")
            return np.flatnonzero(numbers)
        if not numbers.ndim or numbers.dtype.kind not in "iu":
            need_whole(where, index, "is a number, a slice, numbers or a mask")
        beyond = (numbers < 0) | (numbers >= len(self))
        wrong = numbers[beyond]
        if wrong.size:
            last = len(self) - 1
            raise LookupError(f"{where}: got {wrong.flat[0]}, allowed is 0 to {last}")
        return numbers

    def __repr__(self) -> str:
        return f"Records({self._title})"

    @property
    def _title(self) -> str:
        count = plural(len(self), "record")
        return f"{self.buffer}: {count} of {self.block}"

    def _repr_html_(self) -> str:
        from npulab.registers.shown import MOST_ROWS

        table = self.table.to_html(max_rows=MOST_ROWS, index=False)
        return f"<b>{html.escape(self._title)}</b>{table}"


def holders(maps: Mapping[str, RegisterMap]) -> dict[str, Holder]:
    """Return block, map and place of the records in each buffer, by the buffer's name; raises
    ValueError for a buffer that two blocks name."""
    found: dict[str, Holder] = {}
    for registers in maps.values():
        for block, repeat in registers.repeats.items():
            if repeat.held is None:
                continue
            for buffer in repeat.held.buffers:
                other = found.get(buffer)
                if other and other.block != block:
                    raise ValueError(
                        f"buffer {buffer}: got records of {other.block} and of {block}, allowed "
                        "are records of one block"
                    )
                found[buffer] = Holder(block, registers.of_block(block), repeat.held)
    return found


def records_of(buffers: Mapping[str, bytes], maps: Mapping[str, RegisterMap]) -> dict[str, Records]:
    """Return the records in buffers, by the buffer's name."""
    found = {}
    for buffer, (block, registers, held) in holders(maps).items():
        if buffer in buffers:
            data = bytes(buffers[buffer])
            found[buffer] = Records(buffer, block, registers, held, data)
    return found
