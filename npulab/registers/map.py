"""Fields and register maps: which bits of which word mean what, decoded and encoded over many captures.

A word is 32 little-endian bits, bit 0 lowest.  A map is a table, one row per run of bits::

    block, offset, register, field, lsb, width, at, value, feature, address, align, evidence, note

Rows of one block that share a field name and fill in ``at`` are pieces of one split field; ``at`` is
the place of the piece inside the value.  A row without a field name, and every bit without a row,
gets an automatic name (``w18_27_2``: word 18, lsb 27, 2 bits; ``w0x3930_7_1`` in a sparse map: by
offset), so that all words round-trip.
"""

from __future__ import annotations

import csv
import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

WORD_BITS = 32
WORD_BYTES = 4
MOST_WORDS = 2 ** 16  # of a dense block
FLOATS: dict[str, tuple[Any, Any]] = {"f16": (np.float16, np.uint16), "f32": (np.float32, np.uint32)}  # value, stored
FLOAT_BITS = 53  # whole numbers that float64 holds exactly
# Of many captures, so many rows at most and so many words at most are turned at a time, tile by tile, so that what a
# field is cut from is near; fewer rows, and calling numpy takes longer than numpy.
BLOCK_ROWS, BLOCK_WORDS, TILE_WORDS = 2 ** 14, 2 ** 20, 2 ** 14
# Values share pieces of memory up to this size: malloc gives larger ones (32 MiB) and many small ones back to the
# system, and pages that are fetched anew take longer than the decoding.
SHARED_BYTES = 31 * 2 ** 20
COLUMNS = ("block", "offset", "register", "field", "lsb", "width", "at", "value", "feature",
           "address", "align", "evidence", "note")
REQUIRED = ("field", "lsb", "width")
GUESSES = ("guess", "unknown")  # what is no source's evidence
STATUS = ("explained", "guessed", "open", "constant", "never exercised")


@dataclass(frozen=True)
class Meaning:
    """How a raw field becomes a value: ``signed`` or a float (``f16``, ``f32``), then ``*n`` and ``+n`` in
    the written order and ``>>n`` at the end, or an enum.

    ``>>n`` is a fixed-point number: the value is ``... / 2**n`` exactly, so nothing is lost.

    >>> Meaning.parse("signed raw*2+1").value(np.uint32(15), 4)
    np.int64(-1)
    """

    kind: str = ""
    steps: tuple[tuple[str, int], ...] = ()
    enum: str = ""

    GRAMMAR = "blank, or signed, f16 or f32, then raw, *n, +n, >>n (last) at most once each, or enum:NAME"

    @classmethod
    def parse(cls, text: str) -> Meaning:
        words = re.findall(r"signed\b|f16\b|f32\b|raw\b|enum:\w+|>>|\*|\+|-?0x[0-9a-fA-F]+|-?\d+|\S", text)
        kind = words.pop(0) if words and words[0] in ("signed", *FLOATS) else ""
        if len(words) == 1 and words[0].startswith("enum:"):
            return cls(kind, (), words[0].removeprefix("enum:"))
        if words and words[0] == "raw":
            words.pop(0)
        steps: list[tuple[str, int]] = []
        while words:
            operation = words.pop(0)
            if operation not in ("*", "+", ">>") or {operation, ">>"} & set(dict(steps)) or not words:
                raise ValueError(f"value {text!r}: got {operation!r}, allowed is {cls.GRAMMAR}")
            steps.append((operation, cls._number(words.pop(0), operation, text)))
        if kind in FLOATS and steps:
            raise ValueError(f"value {text!r}: got arithmetic on {kind}, allowed is {cls.GRAMMAR}")
        return cls(kind, tuple(steps))

    @classmethod
    def _number(cls, word: str, operation: str, text: str) -> int:
        try:
            number = int(word, 0)
        except ValueError:
            raise ValueError(f"value {text!r}: got {word!r} after {operation!r}, "
                             f"allowed is {cls.GRAMMAR}") from None
        if (operation == "*" and number == 0) or (operation == ">>" and not 0 <= number < 64):
            raise ValueError(f"value {text!r}: got {operation}{number}, which has no inverse")
        return number

    def __str__(self) -> str:
        tail = f"enum:{self.enum}" if self.enum else "".join(f"{o}{n}" for o, n in self.steps)
        if tail and not self.enum:
            tail = f"raw{tail}"
        return " ".join(filter(None, (self.kind, tail)))

    def refuse_width(self, width: int) -> None:
        """Raises ValueError where values of so many bits cannot be held exactly."""
        reach = width
        for operation, number in self.steps:
            bits = number.bit_length()
            reach = max(reach, bits) + 1 if operation == "+" else reach + bits if operation == "*" else \
                reach if reach <= FLOAT_BITS else 64
        bits = 8 * np.dtype(FLOATS[self.kind][0]).itemsize if self.kind in FLOATS else width
        if width != bits or ((self.steps or self.kind == "signed") and reach > 63):
            allowed = f"values within 63 bits ({FLOAT_BITS} with >>)"
            if self.kind in FLOATS:
                allowed = f"{bits} for {self.kind}"
            raise ValueError(f"value {str(self)!r}: got {width} bits, allowed is {allowed}")

    def value(self, raw: Any, width: int) -> Any:
        """Raw (unsigned) to value, elementwise; enums stay their raw code."""
        if self.kind in FLOATS:
            real, stored = FLOATS[self.kind]
            return np.asarray(raw, stored).view(real)[()]
        if not self.kind and not self.steps:
            return raw
        out: Any = np.asarray(raw).astype(np.int64)
        if self.kind == "signed":
            out = out - np.where(out >> (width - 1) & 1, np.int64(1) << np.int64(width), 0)
        for operation, number in self.steps:
            out = out * number if operation == "*" else out + number if operation == "+" else out / 2.0 ** number
        return out[()]

    def raw(self, value: Any) -> Any:
        """Value to raw, elementwise and possibly negative or too wide; ``Field.raw`` checks the fit.

        Raises ValueError where no raw value gives this value.
        """
        out: Any = np.asarray(value)
        if out.dtype.kind not in "iufb":
            raise ValueError("is not a number of at most 64 bits")
        if self.kind in FLOATS:
            real, stored = FLOATS[self.kind]
            if np.any(np.isfinite(out) & (np.abs(out) > np.finfo(real).max)):
                raise ValueError(f"is out of the range of {np.dtype(real)}")
            return out.astype(real).view(stored).astype(np.int64)
        if not np.all(np.isfinite(out)):
            raise ValueError("is not finite")
        if out.dtype.kind != "f":
            if out.dtype.kind in "iu" and not self.kind and not self.steps:
                return out
            if out.dtype == np.uint64 and np.any(out > np.uint64(2 ** 63 - 1)):
                raise ValueError("is too large")
            out = out.astype(np.int64)
        for operation, number in reversed(self.steps):
            if operation == "*" and np.any(out % number):
                raise ValueError(f"is not a multiple of {number}")
            out = out // number if operation == "*" else out - number if operation == "+" else out * 2.0 ** number
        if out.dtype.kind == "f":
            if np.any(out != np.floor(out)) or np.any(np.abs(out) >= 2.0 ** 63):
                raise ValueError("is not a whole raw number")
            out = out.astype(np.int64)
        return out


class Piece(NamedTuple):
    """One run of bits of a field: word index in the map, lowest bit, width, place in the value."""

    word: int
    lsb: int
    width: int
    at: int


@dataclass(frozen=True)
class Field:
    """A named value of a register map: its pieces, meaning, and what is known of it."""

    block: str
    register: str
    name: str
    pieces: tuple[Piece, ...]
    meaning: Meaning = Meaning()
    names: tuple[tuple[int, str], ...] = ()
    address: bool = False
    align: int = 0
    evidence: str = "unknown"
    note: str = ""
    automatic: bool = False
    declared: bool = True

    @classmethod
    def whole_word(cls, block: str, register: str) -> Field:
        """The automatic field of a register that no map has."""
        return cls(block, register, f"{register}_0_{WORD_BITS}", (Piece(0, 0, WORD_BITS, 0),),
                   automatic=True, declared=False)

    @cached_property
    def width(self) -> int:
        return max(piece.at + piece.width for piece in self.pieces)

    @property
    def stored_type(self) -> Any:
        return np.uint32 if self.width <= WORD_BITS else np.uint64

    @property
    def bits(self) -> str:
        """Where it lies, as ``5[25:0]``; pieces from the low end of the value, joined by a blank."""
        return " ".join(f"{p.word}[{p.lsb + p.width - 1}:{p.lsb}]" if p.width > 1
                        else f"{p.word}[{p.lsb}]" for p in self.pieces)

    def extract(self, words: np.ndarray) -> np.ndarray:
        """Raw values ``(...)`` of words ``(..., W) uint32``; uint64 where wider than a word."""
        wide = self.stored_type
        out = np.zeros(words.shape[:-1], wide)
        for piece in self.pieces:
            run = words[..., piece.word] >> np.uint32(piece.lsb) & mask(piece.width)
            out |= run.astype(wide) << wide(piece.at)
        return out

    def insert(self, words: np.ndarray, raw: Any) -> None:
        """Put raw values ``(...)`` into words ``(..., W) uint32`` in place.

        Raises ValueError where a raw value does not fit, naming register, field, got and allowed.
        """
        bits = self.stored(raw).astype(np.uint64)
        for piece in self.pieces:
            run = (bits >> np.uint64(piece.at)).astype(np.uint32) & mask(piece.width)
            words[..., piece.word] &= ~(mask(piece.width) << np.uint32(piece.lsb))
            words[..., piece.word] |= run << np.uint32(piece.lsb)

    def stored(self, raw: Any) -> np.ndarray:
        """Raw values that the field holds, as unsigned integers (uint64 only where wider than a word).

        Raises ValueError where a raw value does not fit, naming register, field, got and allowed.
        """
        raw = np.asarray(raw)
        if raw.dtype.kind != "u" or 8 * raw.itemsize > self.width:
            raw = self._fitting(raw, 0)
        wide = np.dtype(self.stored_type)
        bits = raw if raw.dtype.kind == "u" and raw.itemsize <= wide.itemsize else raw.astype(wide)
        gaps = 2 ** self.width - 1 - sum(2 ** piece.at * int(mask(piece.width)) for piece in self.pieces)
        if gaps and np.any(bits.astype(np.uint64) & np.uint64(gaps)):
            raise ValueError(f"register {self.register} field {self.name}: got a value with bits set "
                             f"that no piece holds (pieces {self.bits})")
        return bits

    def value(self, raw: Any) -> Any:
        return self.meaning.value(raw, self.width)

    def text(self, raw: int) -> Any:
        """The value as people read it: an enum's name, a plain int or a float."""
        if self.meaning.enum:
            return dict(self.names).get(int(raw), int(raw))
        return np.asarray(self.value(np.asarray(raw))).item()

    def raw(self, value: Any) -> Any:
        """Raw of a value or, for an enum, of its name; errors name register and field."""
        if self.meaning.enum and isinstance(value, str):
            codes = {name: code for code, name in self.names}
            if value not in codes:
                raise LookupError(f"register {self.register} field {self.name}: got {value!r}, allowed "
                                  f"is one of {', '.join(codes)}")
            return codes[value]
        try:
            raw = self.meaning.raw(value)
        except ValueError as error:
            raise ValueError(f"register {self.register} field {self.name}: got {value!r}, "
                             f"which {error}") from None
        if self.meaning.kind == "signed":
            half = 2 ** (self.width - 1)
            return np.where(self._fitting(raw, -half) < 0, raw + 2 * half, raw)
        return raw

    def _fitting(self, raw: np.ndarray, low: int) -> np.ndarray:
        high = low + 2 ** self.width
        if raw.size and raw.dtype.kind in "iu" and raw.max() < high and (raw.dtype.kind == "u" or raw.min() >= low):
            return raw
        wrong = (raw < low) | (raw >= high)
        if np.any(wrong):
            raise ValueError(f"register {self.register} field {self.name}: got raw {int(raw[wrong].flat[0])}, "
                             f"allowed is {low} to {high - 1} ({self.width} bits)")
        return raw


class Finding(NamedTuple):
    """One remark of ``lint``: ``hole`` (bits without a row) or ``unnamed`` (a row without a name)."""

    kind: str
    word: int
    lsb: int
    width: int

    def __str__(self) -> str:
        return f"{self.kind} at word {self.word} bit {self.lsb} ({self.width} bits)"


class Coverage(NamedTuple):
    """Masks ``(W,) uint32``: bits that have a name, bits with an automatic one; counts of both."""

    named: np.ndarray
    automatic: np.ndarray

    @property
    def bits(self) -> tuple[int, int]:
        return int(np.bitwise_count(self.named).sum()), int(np.bitwise_count(self.automatic).sum())


def mask(width: int) -> np.uint32:
    """The lowest ``width`` bits of a word set."""
    return np.uint32((1 << width) - 1)


class RegisterMap:
    """A register map: fields over the words of one or more blocks.

    ``rows`` are mappings with the columns of the module's head (missing ones are blank; ``offset``
    and the numbers may be text).  Kept are the rows without a feature and those whose feature is in
    ``features``; ``select`` gives the map of the same table for other features.  A dense map spans
    every word of its blocks from offset 0; otherwise its words are its registers by offset, as a
    sparse register file wants it.

    Words are ``(..., W) uint32``.  Values are arrays ``(...)``, plain numbers where words are 1-D;
    keys are field names, with ``register.`` (and ``block.``) in front where a name is not unique.

    Raises ValueError for overlapping fields, a field that crosses its register, an unknown value
    word; LookupError for an unknown enum.

    >>> m = RegisterMap([dict(offset=0, register="CFG", field="stride", lsb=4, width=3)])
    >>> m.decode(np.array([0x25], np.uint32))
    {'w0_0_4': 5, 'stride': 2, 'w0_7_25': 0}
    >>> m.encode({"stride": 7})
    array([112], dtype=uint32)
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]], *, features: Iterable[str] = (),
                 enums: Mapping[str, Mapping[int, str]] | None = None, dense: bool = True) -> None:
        self._rows = tuple(_normal(row) for row in rows)
        self.features = frozenset(features)
        self.enums = dict(enums or {})
        self.dense = dense
        self._selected: dict[frozenset[str], RegisterMap] = {}
        self._kept = [row for row in self._rows if not row["feature"] or row["feature"] in self.features]
        self.registers, self._labels, index = _registers(self._kept, dense)
        self._fields = _build(self._kept, self.registers, self._labels, index, self.enums)
        self._keys = _keys(self._fields)

    @classmethod
    def read(cls, path: Path, *, features: Iterable[str] = (), dense: bool = True,
             ) -> RegisterMap:
        """The map in a CSV table, with ``enums.csv`` (enum, raw, name) beside it where there is one.

        Errors name the file.
        """
        beside = path.parent / "enums.csv"
        try:
            enums = _enums(read_table(beside)) if beside.exists() else {}
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{beside}: {error}") from None
        try:
            return cls(read_table(path), features=features, enums=enums, dense=dense)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: is not UTF-8: {error}") from None
        except (ValueError, LookupError) as error:
            raise type(error)(f"{path}: {error}") from None

    def select(self, features: Iterable[str]) -> RegisterMap:
        """The same table for a chip with these features."""
        wanted = frozenset(features)
        if wanted not in self._selected:
            self._selected[wanted] = RegisterMap(self._rows, features=wanted, enums=self.enums,
                                                 dense=self.dense)
        return self._selected[wanted]

    @classmethod
    def from_struct(cls, members: Sequence[tuple[str, int]], block: str = "struct") -> RegisterMap:
        """Lay out ``uint32_t name : width`` members as C does: a member that does not fit into
        what is left of a word starts the next one and leaves a silent hole, which ``lint`` reports.

        >>> RegisterMap.from_struct([("a", 30), ("b", 3)]).lint()[0]
        Finding(kind='hole', word=0, lsb=30, width=2)
        """
        rows, word, lsb = [], 0, 0
        for name, width in members:
            if lsb + width > WORD_BITS:
                word, lsb = word + 1, 0
            rows.append({"block": block, "offset": word * WORD_BYTES, "field": name, "lsb": lsb, "width": width})
            word, lsb = (word + 1, 0) if lsb + width == WORD_BITS else (word, lsb + width)
        return cls(rows)

    def __len__(self) -> int:
        """Words per capture, W."""
        return len(self.registers)

    def __iter__(self) -> Iterator[Field]:
        """The fields, automatic ones too, by the place of their lowest piece."""
        return iter(self._fields)

    def __getitem__(self, name: str) -> Field:
        try:
            return self._keys[name]
        except KeyError:
            near = difflib.get_close_matches(name, self._keys, 5) or [*self._names.values()][:12]
            raise LookupError(f"got field {name!r}, the map has {', '.join(near)}, ...") from None

    def __contains__(self, name: object) -> bool:
        """Whether a field is known by this name."""
        return name in self._keys

    def __getattr__(self, name: str) -> Field:
        if name.startswith("_") or name not in self._keys:
            raise AttributeError(f"register map has no field or attribute {name!r}")
        return self._keys[name]

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(key for key in self._keys if key.isidentifier())})

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._keys)

    def __repr__(self) -> str:
        blocks = ", ".join(dict.fromkeys(block for block, _, _ in self.registers))
        named, automatic = self.coverage().bits
        return (f"RegisterMap({blocks}: {len(self)} words, {len(self._fields)} fields, "
                f"{named} bits named, {automatic} automatic)")

    def key(self, item: Field) -> str:
        """The shortest unambiguous name of a field, the one ``decode`` uses."""
        return self._names[item]

    @cached_property
    def _names(self) -> dict[Field, str]:
        out: dict[Field, str] = {}
        for key, item in self._keys.items():
            out[item] = min(out.get(item, key), key, key=len)
        return out

    def decode(self, words: Any, *, raw: bool = False) -> dict[str, Any]:
        """Values of every field of words ``(..., W) uint32``; ``raw`` gives them as stored.

        As stored is uint32, uint64 where wider than a word.  Values of one call share memory: copy those that are to
        outlive the others.
        """
        words = self._words(words)
        rows = words.reshape(math.prod(words.shape[:-1]), len(self))
        out: dict[str, Any] = {}
        for name, item, bits in zip(self._spelled, self._fields, self._extract(rows), strict=True):
            bits = bits.reshape(words.shape[:-1])
            value = bits if raw else item.value(bits)
            plain = words.ndim == 1 and (raw or item.meaning.kind not in FLOATS)
            out[name] = np.asarray(value).item() if plain else value
        return out

    def encode(self, values: Mapping[str, Any], *, raw: bool = False) -> np.ndarray:
        """Words ``(..., W) uint32`` of values that broadcast to ``(...)``; absent fields are 0.

        Raises LookupError for an unknown name, ValueError for a value that does not fit.
        """
        meant = [(name, item, value if raw else item.raw(value))
                 for name, item, value in ((name, self[name], value) for name, value in values.items())]
        shape = np.broadcast_shapes(*(np.shape(value) for *_, value in meant))
        # a field that is named twice, by two spellings, has the last value
        bits = {self._numbers[name]: np.broadcast_to(item.stored(value), shape).reshape(-1)
                for name, item, value in meant}
        return self._insert(bits, math.prod(shape)).reshape(*shape, len(self))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The number of the field of each key."""
        numbers = {item: n for n, item in enumerate(self._fields)}
        return {key: numbers[item] for key, item in self._keys.items()}

    @cached_property
    def _spelled(self) -> list[str]:
        return [self.key(item) for item in self._fields]

    @cached_property
    def _plan(self) -> list[tuple[int, Piece]]:
        """(number of its field, piece) by word."""
        pieces = [(n, piece) for n, item in enumerate(self._fields) for piece in item.pieces]
        return sorted(pieces, key=lambda one: one[1])

    def _extract(self, rows: np.ndarray) -> list[np.ndarray]:
        """Raw values ``(N,)`` of every field of words ``(N, W)``."""
        out = _arrays([item.stored_type for item in self._fields], len(rows))
        steps, seen = [], set[int]()
        for n, piece in self._plan:
            steps.append((*piece, out[n], n not in seen))
            seen.add(n)
        for some, columns, scratch in _blocks(rows.shape):
            _turn(rows[some].T, columns)
            for word, lsb, width, at, values, first in steps:
                run, into = columns[word], values[some]
                room = into if first and into.itemsize == WORD_BYTES else scratch
                if lsb:
                    run = np.right_shift(run, lsb, room)
                if lsb + width < WORD_BITS:
                    run = np.bitwise_and(run, 2 ** width - 1, room)
                if at and at + width <= WORD_BITS:
                    run = np.left_shift(run, at, room)
                elif at:
                    run = run.astype(np.uint64) << at
                if not first:
                    np.bitwise_or(into, run, into)
                elif run is not into:
                    into[...] = run
        return out

    def _insert(self, bits: Mapping[int, np.ndarray], count: int) -> np.ndarray:
        """Words ``(count, W)`` of raw values ``(count,)`` that fit, by the number of their field; the rest is 0."""
        words = np.empty((count, len(self)), np.uint32)
        steps, seen = [], set[int]()
        for n, piece in self._plan:
            if n in bits:
                cut = piece.at + piece.width < self._fields[n].width  # bits above it are another piece's
                steps.append((*piece, bits[n], cut, piece.word not in seen))
                seen.add(piece.word)
        idle = [word for word in range(len(self)) if word not in seen]
        for some, columns, scratch in _blocks(words.shape):
            columns[idle] = 0
            for word, lsb, width, at, values, cut, first in steps:
                run, into = values[some], columns[word]
                room = into if first else scratch
                if run.dtype == np.uint64:
                    run, at = (run >> at).astype(np.uint32), 0
                elif run.dtype != np.uint32:
                    room[...] = run
                    run = room
                if at:
                    run = np.right_shift(run, at, room)
                if cut:
                    run = np.bitwise_and(run, 2 ** width - 1, room)
                if lsb:
                    run = np.left_shift(run, lsb, room)
                if not first:
                    np.bitwise_or(into, run, into)
                elif run is not into:
                    into[...] = run
            _turn(columns, words[some].T)
        return words

    def _words(self, words: Any) -> np.ndarray:
        words = np.asarray(words)
        if words.dtype != np.uint32:
            if words.dtype.kind not in "iu" or np.any((words < 0) | (words > 0xFFFFFFFF)):
                raise ValueError(f"words: got {words.dtype}, allowed is uint32")
            words = words.astype(np.uint32)
        if words.ndim == 0 or words.shape[-1] != len(self):
            got = words.shape[-1] if words.ndim else "a single number"
            raise ValueError(f"words: got {got} in the last axis, allowed is {len(self)} "
                             f"(block {self.registers[0][0]})")
        return words

    def coverage(self) -> Coverage:
        """Which bits of each word are named and which only have an automatic name."""
        masks = np.zeros((2, len(self)), np.uint32)
        for item in self._fields:
            for piece in item.pieces:
                masks[int(item.automatic), piece.word] |= mask(piece.width) << np.uint32(piece.lsb)
        return Coverage(*masks)

    def status(self, words: Any = None) -> pd.DataFrame:
        """How much of each word is known, in bits: word, block, register, offset and, adding up to 32, each bit in the
        first of these that it is:

        - ``explained``: named, with evidence other than ``guess`` and ``unknown``
        - ``guessed``: named, with evidence ``guess`` or ``unknown``
        - ``open``: without a name

        With the words ``(N, W) uint32`` of captures, bits that are the same in all of them count apart: named ones as
        ``never exercised``, those without a name as ``constant``; of one capture that is every bit.  The shares of the
        whole map in a line are in ``attrs["summary"]``.  Raises ValueError for words that are not the map's.

        >>> RegisterMap([dict(field="a", lsb=0, width=8, evidence="K")]).status().attrs["summary"]
        '32 bits in 1 word: 25 % explained, 0 % guessed, 75 % open'
        """
        import pandas as pd

        masks = np.zeros((3, len(self)), np.uint32)
        for item in self._fields:
            kind = 2 if item.automatic else int(item.evidence in GUESSES)
            for piece in item.pieces:
                masks[kind, piece.word] |= mask(piece.width) << np.uint32(piece.lsb)
        varies = np.full(len(self), mask(WORD_BITS))
        if words is not None:
            words = self._words(words).reshape(-1, len(self))
            varies = np.bitwise_or.reduce(words, 0) & ~np.bitwise_and.reduce(words, 0)
        out = {"word": range(len(self)), "block": [block for block, _, _ in self.registers],
               "register": [name for _, _, name in self.registers],
               "offset": [offset for _, offset, _ in self.registers]}
        explained, guessed, free = masks & varies
        bits = {"explained": explained, "guessed": guessed, "open": free, "constant": masks[2] & ~varies,
                "never exercised": (masks[0] | masks[1]) & ~varies}
        counts = {name: np.bitwise_count(bits[name]).astype(int) for name in STATUS}
        frame = pd.DataFrame({**out, **counts})
        told = ", ".join(f"{100 * count.sum() / (WORD_BITS * len(self)):.0f} % {name}"
                         for name, count in counts.items() if words is not None or name in STATUS[:3])
        frame.attrs["summary"] = f"{WORD_BITS * len(self)} bits in {len(self)} word{'s' * (len(self) != 1)}: {told}"
        return frame

    def lint(self) -> list[Finding]:
        """Holes and unnamed rows, by place; overlaps and crossings are refused when the map is made."""
        return [Finding("unnamed" if item.declared else "hole", *piece[:3])
                for item in self._fields if item.automatic for piece in item.pieces]

    @property
    def declared(self) -> int:
        """Bits that have a row."""
        holes = sum(found.width for found in self.lint() if found.kind == "hole")
        return WORD_BITS * len(self) - holes

    @property
    def fields(self) -> pd.DataFrame:
        """The table as a DataFrame with the columns of the module's head and ``word``, one row per run of
        bits in the order of the bits, automatic names filled in; its rows make the same map again."""
        import pandas as pd

        holes = [(self.registers[item.pieces[0].word][:2], item) for item in self._fields if not item.declared]
        rows = self._kept + [{"block": block, "offset": offset, "field": "", "lsb": item.pieces[0].lsb,
                              "width": item.pieces[0].width, "evidence": "unknown"}
                             for (block, offset), item in holes]
        place = {(block, offset): n for n, (block, offset, _) in enumerate(self.registers)}
        rows.sort(key=lambda row: (place[row["block"], row["offset"]], row["lsb"]))
        frame = pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)
        words = [place[row["block"], row["offset"]] for row in rows]
        frame["word"] = words
        frame["register"] = [self.registers[word][2] for word in words]
        frame["field"] = [row["field"] or _automatic(self._labels[word], row["lsb"], row["width"])
                          for word, row in zip(words, rows, strict=True)]
        frame["address"], frame["align"] = frame["address"] == "yes", [row.get("align") or 0 for row in rows]
        return frame.astype(object).where(frame.notna(), "").astype(
            {"address": bool, **dict.fromkeys(("offset", "lsb", "width", "word", "align"), int)})

    @cached_property
    def index(self) -> dict[int, int]:
        """The word of each offset, for register writes; ValueError where blocks share offsets."""
        out: dict[int, int] = {}
        for word, (block, offset, _) in enumerate(self.registers):
            if offset in out:
                raise ValueError(f"register map: blocks {self.registers[out[offset]][0]!r} and {block!r} both have "
                                 f"offset {offset:#x}, so a write to it says too little")
            out[offset] = word
        return out

    def state(self, writes: Iterable[tuple[int, int]]) -> np.ndarray:
        """Words ``(W,) uint32`` that register writes (offset, value) leave; others are 0."""
        words = np.zeros(len(self), np.uint32)
        for offset, value in writes:
            if offset in self.index:
                words[self.index[offset]] = value
        return words


def _arrays(types: Sequence[Any], count: int) -> list[np.ndarray]:
    """A ``(count,)`` of each type, not yet filled; those of one type share memory."""
    out: dict[int, np.ndarray] = {}
    for kind in dict.fromkeys(types):
        same = [n for n, one in enumerate(types) if one is kind]
        most = max(1, SHARED_BYTES // max(1, count * kind().itemsize))
        for start in range(0, len(same), most):
            part = same[start:start + most]
            out.update(zip(part, np.empty((len(part), count), kind), strict=True))
    return [out[n] for n in range(len(types))]


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """(rows, room for them ``(W, n)``, a scratch row ``(n,)``) of words ``(N, W)``, until all N had their turn."""
    count, words = shape
    step = min(count, BLOCK_ROWS, 1 + BLOCK_WORDS // max(1, words))
    # a cache line more than a power of two, or what is turned together falls into one place of the cache
    columns, scratch = np.empty((words, step + 16), np.uint32), np.empty(step, np.uint32)
    for start in range(0, count, step or 1):
        some = min(step, count - start)
        yield slice(start, start + some), columns[:, :some], scratch[:some]


def _turn(source: np.ndarray, target: np.ndarray) -> None:
    """Copy ``(W, n)``, one of the two being a transposed view, by tiles that stay near."""
    step = 64 + TILE_WORDS // max(1, len(source))
    for start in range(0, source.shape[1], step):
        target[:, start:start + step] = source[:, start:start + step]


def _automatic(label: str, lsb: int, width: int) -> str:
    return f"{label}_{lsb}_{width}"


def read_table(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV table; blank lines and lines that begin with # are left out."""
    with path.open(newline="", encoding="utf-8-sig") as lines:
        return list(csv.DictReader(line for line in lines if line.strip() and line[0] != "#"))


def _enums(rows: Iterable[Mapping[str, str]]) -> dict[str, dict[int, str]]:
    """Names by raw of each enum in a table (enum, raw, name)."""
    out: dict[str, dict[int, str]] = {}
    for row in rows:
        if not row.get("enum") or not row.get("raw") or not row.get("name"):
            raise ValueError(f"got row {dict(row)}, allowed is enum, raw and name, all filled in")
        names, raw = out.setdefault(row["enum"], {}), int(row["raw"], 0)
        if raw in names or row["name"] in names.values():
            raise ValueError(f"enum {row['enum']}: got raw {raw} or name {row['name']!r} twice")
        names[raw] = row["name"]
    return out


def _normal(row: Mapping[str, Any]) -> dict[str, Any]:
    unknown = [name for name in row if name not in (*COLUMNS, "word")]  # word follows from the offset
    missing = [name for name in REQUIRED if name not in row]
    if unknown or missing:
        raise ValueError(f"register map: got column {unknown[0]!r}, allowed are {', '.join(COLUMNS)}"
                         if unknown else f"register map: column {missing[0]!r} is missing")
    out: dict[str, Any] = {name: "" if row.get(name) is None else str(row[name]).strip() for name in COLUMNS}
    out["address"] = {"True": "yes", "False": ""}.get(out["address"], out["address"])
    for name in ("offset", "lsb", "width", "at", "align"):
        try:
            out[name] = int(out[name], 0) if out[name] else None
        except ValueError:
            raise ValueError(f"register map, field {out['field']!r}: got {name} {out[name]!r}, "
                             "allowed is a whole number") from None
    out["offset"] = out["offset"] or 0
    if out["offset"] % WORD_BYTES or out["offset"] < 0:
        raise ValueError(f"register map, field {out['field']!r}: got offset {out['offset']:#x}, "
                         f"allowed is a multiple of {WORD_BYTES} from 0")
    if (out["at"] or 0) < 0:
        raise ValueError(f"register map, field {out['field']!r}: got at {out['at']}, allowed is at least 0")
    if out["lsb"] is None or not out["width"] or out["lsb"] < 0 or out["width"] < 0 \
            or out["lsb"] + out["width"] > WORD_BITS:
        raise ValueError(f"register map, field {out['field']!r} of register {out['register']!r}: got lsb "
                         f"{out['lsb']} width {out['width']}, allowed is inside bits 0 to 31")
    if re.fullmatch(rf"w(\d+|0x[0-9a-f]+)_{out['lsb']}_{out['width']}", out["field"]):
        out["field"] = ""  # an automatic name, as `fields` gives it
    return out


def _registers(rows: Sequence[Mapping[str, Any]], dense: bool,
               ) -> tuple[list[tuple[str, int, str]], list[str], dict[tuple[str, int], int]]:
    """The (block, offset, register) of each word, its label in automatic names, and the word's
    index by (block, offset)."""
    names: dict[tuple[str, int], str] = {}
    for row in rows:
        place = row["block"], row["offset"]
        if row["register"] and names.get(place, row["register"]) != row["register"]:
            raise ValueError(f"register map, block {place[0]!r} offset {place[1]:#x}: got register names "
                             f"{names[place]!r} and {row['register']!r}")
        names[place] = row["register"] or names.get(place, "")
    places = []
    for block in dict.fromkeys(block for block, _ in names):
        offsets = sorted(offset for b, offset in names if b == block)
        if dense and offsets[-1] > WORD_BYTES * MOST_WORDS:
            raise ValueError(f"register map, block {block!r}: got offset {offsets[-1]:#x}, allowed is up to "
                             f"{WORD_BYTES * MOST_WORDS:#x} from the block's start, or dense=False")
        if dense:
            offsets = list(range(0, offsets[-1] + 1, WORD_BYTES))
        places += [(block, offset) for offset in offsets]
    labels = [f"w{i}" if dense else f"w{offset:#06x}" for i, (_, offset) in enumerate(places)]
    registers = [(*place, names.get(place) or label) for place, label in zip(places, labels, strict=True)]
    return registers, labels, {place: i for i, place in enumerate(places)}


def _build(rows: Sequence[Mapping[str, Any]], registers: Sequence[tuple[str, int, str]],
           labels: Sequence[str], index: Mapping[tuple[str, int], int], enums: Mapping[str, Mapping[int, str]],
           ) -> tuple[Field, ...]:
    owner: list[list[str]] = [[""] * WORD_BITS for _ in registers]
    grouped: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    splits = {(row["block"], row["field"]) for row in rows if row["field"] and row["at"] is not None}
    for n, row in enumerate(rows):
        word = index[row["block"], row["offset"]]
        name = row["field"] or _automatic(labels[word], row["lsb"], row["width"])
        for bit in range(row["lsb"], row["lsb"] + row["width"]):
            if owner[word][bit]:
                raise ValueError(f"register map: fields {owner[word][bit]} and {name} overlap at register "
                                 f"{registers[word][2]} bit {bit}")
            owner[word][bit] = name
        split = (row["block"], row["field"]) in splits
        if split and row["at"] is None:
            raise ValueError(f"register map, register {registers[word][2]} field {name}: a piece without its at, other "
                             "pieces of the field have one")
        grouped.setdefault((row["block"], row["field"]) if split else (n,), []).append(row)
    fields = [_field(group, registers, labels, index, enums) for group in grouped.values()]
    for word, bits in enumerate(owner):
        for lsb, width in _runs(bits):
            fields.append(Field(registers[word][0], registers[word][2], _automatic(labels[word], lsb, width),
                                (Piece(word, lsb, width, 0),), automatic=True, declared=False))
    return tuple(sorted(fields, key=lambda item: min(item.pieces)[:2]))


def _field(group: Sequence[Mapping[str, Any]], registers: Sequence[tuple[str, int, str]],
           labels: Sequence[str], index: Mapping[tuple[str, int], int],
           enums: Mapping[str, Mapping[int, str]]) -> Field:
    pieces = tuple(sorted((Piece(index[row["block"], row["offset"]], row["lsb"], row["width"],
                                 row["at"] or 0) for row in group), key=lambda piece: piece.at))
    first = min(group, key=lambda row: row["at"] or 0)
    word = pieces[0].word
    name = first["field"] or _automatic(labels[word], first["lsb"], first["width"])
    where = f"register map, register {registers[word][2]} field {name}"
    for a, b in pairwise(pieces):
        if a.at + a.width > b.at:
            raise ValueError(f"{where}: its pieces at {a.at} (width {a.width}) and {b.at} overlap")
    width = max(piece.at + piece.width for piece in pieces)
    try:
        meaning = Meaning.parse(first["value"])
        meaning.refuse_width(width)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if meaning.enum and meaning.enum not in enums:
        raise LookupError(f"{where}: got enum {meaning.enum!r}, known are {', '.join(enums) or 'none'}")
    for name_of in ("value", "address", "align"):
        other = [row[name_of] for row in group if row[name_of] not in ("", None, first[name_of])]
        if other:
            raise ValueError(f"{where}: got {name_of} {other[0]!r} on a later piece, allowed is what its first piece "
                             f"says ({first[name_of] or 'nothing'})")
    if width > 64:
        raise ValueError(f"{where}: got {width} bits, allowed is at most 64")
    if first["address"] not in ("", "yes"):
        raise ValueError(f"{where}: got address {first['address']!r}, allowed is blank or yes")
    names = tuple(enums.get(meaning.enum, {}).items())
    return Field(first["block"], registers[word][2], name, pieces, meaning, names, first["address"] == "yes",
                 first["align"] or 0, first["evidence"] or "unknown", first["note"], automatic=not first["field"])


def _runs(bits: Sequence[str]) -> Iterator[tuple[int, int]]:
    """(lsb, width) of each run of bits nobody owns."""
    start = None
    for bit, name in enumerate([*bits, "end"]):
        if not name and start is None:
            start = bit
        elif name and start is not None:
            yield start, bit - start
            start = None


def _keys(fields: Sequence[Field]) -> dict[str, Field]:
    """Every unambiguous spelling of each field: name, register.name, block.register.name."""
    spellings: dict[str, list[Field]] = {}
    for item in fields:
        for name in (item.name, f"{item.register}.{item.name}",
                     f"{item.block}.{item.register}.{item.name}"):
            spellings.setdefault(name, []).append(item)
    out = {name: items[0] for name, items in spellings.items() if len(items) == 1}
    lost = [item for item in fields if f"{item.block}.{item.register}.{item.name}" not in out]
    if lost:
        raise ValueError(f"register map: field {lost[0].name} stands twice in register {lost[0].register} "
                         f"of block {lost[0].block!r}; pieces of one field fill in the column at")
    return out
