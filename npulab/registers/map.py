"""Register maps: they decode the words of one or many captures to values of fields, and encode
values to words."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.registers.expansion import Place, Repeat, expanded, repeats, sparse_blocks
from npulab.registers.fields import WORD_BITS, WORD_BYTES, Cells, Enums, Field, Piece, Row, mask
from npulab.registers.meaning import FLOATS
from npulab.registers.names import (
    automatic_name,
    blocks_by_address,
    full_names,
    in_block,
    word_name,
)
from npulab.registers.numbers import names_in, with_numbers
from npulab.registers.table import (
    ACCESS,
    COLUMNS,
    REQUIRED,
    START,
    enums_beside,
    fields_of,
    normal_row,
    read_enums,
    spellings_of,
    words_of,
)
from npulab.registers.units import units_of
from npulab.support.files import read_table
from npulab.support.late import pd
from npulab.support.refuse import need, need_all, need_path, need_whole, refuse_if
from npulab.support.text import plural

# Words (N, W) of many captures are transposed in batches of rows, and each batch in tiles, so that
# the words from which a field is cut are in the cache. BLOCK_ROWS and BLOCK_WORDS are the most rows
# and about the most words of a batch, TILE_WORDS is about the words of a tile. With smaller
# batches, calls of numpy take longer than their work.
BLOCK_ROWS, BLOCK_WORDS, TILE_WORDS = 2**14, 2**20, 2**14
# The most bytes of an allocation that the values of several fields share. malloc returns
# allocations of 32 MiB and more, and many small ones, to the system; fetching their pages again
# takes longer than decoding.
SHARED_BYTES = 31 * 2**20
MOST_NEAR = 5  # the error text for an unknown name has at most so many similar names
MOST_NAMED = 12  # the error text for a name of several fields has at most so many of them
MOST_PLACES = 2**20  # all copies of all blocks of a map have at most so many words
GUESS, UNKNOWN = "guess", "unknown"
GUESSES = (GUESS, UNKNOWN)  # the evidence of a field that no source proves
# The columns of ``RegisterMap.status`` that count bits.
STATUS = ("explained", "guessed", "open", "constant", "never exercised")


class Finding(NamedTuple):
    """A remark of ``lint`` about a run of bits; ``kind`` is ``hole`` (bits without a row) or
    ``unnamed`` (a row without a name)."""

    kind: str
    word: int
    lsb: int
    width: int

    def __str__(self) -> str:
        return f"{self.kind} at word {self.word} bit {self.lsb} ({self.width} bits)"


class Coverage(NamedTuple):
    """Two masks ``(W,) uint32``: ``named`` has the bits that have a name, ``automatic`` the bits
    that have only an automatic name. ``bits`` is the number of bits in each of the two.
    """

    named: Array
    automatic: Array

    @property
    def bits(self) -> tuple[int, int]:
        return int(np.bitwise_count(self.named).sum()), int(np.bitwise_count(self.automatic).sum())


class RegisterMap:
    """A register map: fields over the words of one or more blocks.

    ``rows`` are mappings with the columns of ``registers.table``. The columns ``field``, ``lsb``
    and ``width`` are needed, any other missing column is blank. Numbers may be text.
    ``registers.expansion`` describes rows for registers that do not have 32 bits, for arrays, and
    for blocks that repeat.

    ``features`` are the features of the chip: the map keeps the rows without a feature, and the
    rows whose feature is in ``features``. ``numbers`` are the numbers of the chip by name, which
    sums in ``lsb`` and ``width`` need (``registers.numbers``). ``select`` gives the map of the same
    table for other features and numbers.

    A ``dense`` map has every word of its blocks from offset 0 on. If ``dense`` is False, the map
    has one word for each register, sorted by offset. ``by_address`` are the blocks whose registers
    have addresses; by default ``registers.names`` decides. That decision depends on the whole
    table: state ``by_address`` if ``rows`` are only a part of a table. The attribute ``repeats``
    has the places of blocks.

    Words are ``(..., W) uint32``. Values are arrays ``(...)``, or plain numbers if words are 1-D.
    Keys are names of fields, with ``register.`` or ``block.register.`` in front if a name is not
    unique; ``registers.names`` says how bits without a name are called.

    Raises ValueError for overlapping fields, for a field that crosses its register, and for any
    other malformed cell; LookupError for an unknown enum and for a unit by an unknown field.

    >>> m = RegisterMap([dict(offset=0, register="CFG", field="stride", lsb=4, width=3)])
    >>> m.decode(np.array([0x25], np.uint32))
    {'w0_0_4': 5, 'stride': 2, 'w0_7_25': 0}
    >>> m.encode({"stride": 7})
    array([112], dtype=uint32)
    """

    def __init__(
        self,
        rows: Iterable[Row],
        *,
        features: Iterable[str] = (),
        enums: Enums | None = None,
        dense: bool = True,
        by_address: Collection[str] | None = None,
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        rows = need_all(
            "RegisterMap: rows", rows, Mapping, f"are rows with {', '.join(REQUIRED)}, as mappings"
        )
        need("RegisterMap: numbers", numbers, (Mapping, type(None)), "are numbers by name")
        numbers = numbers or {}
        features = need_features("RegisterMap", features)
        need("RegisterMap: enums", enums, (Mapping, type(None)), "are names by raw of each enum")
        words, blocks = expanded(with_numbers(rows, numbers))
        self.numbers = {name: numbers[name] for name in sorted(names_in(rows))}
        plain = [normal_row(row) for row in words]
        # the rows from which ``select`` makes a map for other features and numbers; if the
        # table has sums, these are the rows as given, because ``plain`` has the values of the sums
        self._source: tuple[Row, ...] = (*plain, *blocks)
        if self.numbers:
            self._source = tuple(rows)
        self.features = frozenset(features)
        self.enums = dict(enums or {})
        self._all_dense = dense
        self._selected: dict[Any, RegisterMap] = {}
        self._kept = [row for row in plain if not row["feature"] or row["feature"] in self.features]
        self.repeats = repeats(blocks, self.features)
        sparse = {block for block, repeat in self.repeats.items() if repeat.sparse}
        self.dense = dense and not {row["block"] for row in self._kept} <= sparse
        if by_address is None:
            by_address = blocks_by_address(plain, sparse_blocks(blocks))
        self.by_address = frozenset(
            need_all("RegisterMap: by_address", by_address, str, "are names of blocks")
        )
        all_words = words_of(self._kept, dense, sparse, self.by_address)
        self.registers, self._labels = all_words.registers, all_words.labels
        self._fields = fields_of(self._kept, all_words, self.enums)
        self._keys = spellings_of(self._fields)
        self._units = units_of(self._fields)
        self._counted: dict[tuple[Field, int], Field] = {}
        for block, repeat in self.repeats.items():
            if repeat.held:
                count = sum(block == name for name, _, _ in self.registers)
                self.repeats[block] = repeat._replace(held=repeat.held.filled(block, count))

    @classmethod
    def read(
        cls,
        path: Path,
        *,
        features: Iterable[str] = (),
        dense: bool = True,
        numbers: Mapping[str, int] | None = None,
    ) -> RegisterMap:
        """Return the map in a CSV table ``NAME.csv``. Its enums (enum, raw, name) are read from
        ``NAME.enums.csv`` beside it or, if that does not exist, from ``enums.csv``.

        Errors name the file.
        """
        need_path("RegisterMap.read", path)
        path = Path(path)
        beside = enums_beside(path)
        enums = {}
        try:
            if beside:
                enums = read_enums(read_table(beside))
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{beside}: {error}") from None
        try:
            return cls(
                read_table(path), features=features, enums=enums, dense=dense, numbers=numbers
            )
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: is not UTF-8: {error}") from None
        except (ValueError, LookupError) as error:
            raise type(error)(f"{path}: {error}") from None

    def select(
        self, features: Iterable[str], numbers: Mapping[str, int] | None = None
    ) -> RegisterMap:
        """Return the map of the same table for a chip with these features and these ``numbers``. A
        number that is not given stays as it is in this map."""
        wanted = frozenset(need_features("select", features))
        own = self.numbers
        if numbers is not None:
            own = {name: numbers.get(name, number) for name, number in self.numbers.items()}
        key = wanted, tuple(own.items())
        if key not in self._selected:
            self._selected[key] = self._of(self._source, wanted, own)
        return self._selected[key]

    def _of(
        self, rows: Iterable[Row], features: Iterable[str], numbers: Mapping[str, int]
    ) -> RegisterMap:
        """Return a map of some or all rows of this map's table; ``by_address`` stays, because a
        part of the table cannot decide it."""
        return RegisterMap(
            rows,
            features=features,
            enums=self.enums,
            dense=self._all_dense,
            by_address=self.by_address,
            numbers=numbers,
        )

    def starting(self, registers: Collection[str]) -> RegisterMap:
        """Return a copy of the map, in which a write to one of these registers (each
        ``block.register``) starts a unit of the NPU."""
        registers = frozenset(
            need_all("starting", registers, str, "are registers, as block.register")
        )
        rows = []
        for row in self._source:
            if f"{row.get('block')}.{row.get('register')}" in registers:
                row = {**row, ACCESS: START}
            rows.append(row)
        # ``by_address`` is decided anew, from these rows: they may be of one block only
        return RegisterMap(
            rows,
            features=self.features,
            enums=self.enums,
            dense=self._all_dense,
            numbers=self.numbers,
        )

    def of_block(self, block: str) -> RegisterMap:
        """Return the map of this block alone."""
        need("of_block", block, str, "is the name of a block")
        if {name for name, _, _ in self.registers} == {block}:
            return self
        rows = [row for row in self._source if (row.get("block") or "") == block]
        return self._of(rows, self.features, self.numbers)

    @classmethod
    def from_struct(cls, members: Sequence[tuple[str, int]], block: str = "struct") -> RegisterMap:
        """Return the map of a C struct of members ``uint32_t name : width``, given as (name, width)
        and laid out as C does. If a member does not fit into the remaining bits of a word, it
        starts the next word, and ``lint`` reports the remaining bits as a hole.

        >>> RegisterMap.from_struct([("a", 30), ("b", 3)]).lint()[0]
        Finding(kind='hole', word=0, lsb=30, width=2)
        """
        rows: list[Cells] = []
        offset = lsb = 0
        for member in need_all("from_struct", members, (tuple, list), "are (name, bits) in a list"):
            if len(member) != 2 or not isinstance(member[1], int):
                raise ValueError(
                    f"from_struct: got {member!r:.60}, allowed is a pair (name, width in bits)"
                )
            name, width = member
            if lsb + width > WORD_BITS:
                offset, lsb = offset + WORD_BYTES, 0
            place = {"block": block, "offset": offset, "lsb": lsb}
            rows.append({**place, "field": name, "width": width})
            lsb += width
        return cls(rows)

    def __len__(self) -> int:
        """The number W of words of a capture."""
        return len(self.registers)

    def __iter__(self) -> Iterator[Field]:
        """The fields, also the automatic ones, sorted by the first word and bit in which they
        lie."""
        return iter(self._fields)

    def __getitem__(self, name: str) -> Field:
        try:
            return self._keys[name]
        except (KeyError, TypeError):
            need("register map", name, str, "is a field's name")
            several = self.named(name)
            if several:
                names = [self.key(item) for item in several]
                few = ", ".join(names[:MOST_NAMED])
                if len(names) > MOST_NAMED:
                    few += ", ..."
                raise LookupError(
                    f"got field {name!r}, which {len(names)} fields have, allowed is one of {few}"
                ) from None
            close = difflib.get_close_matches(name, self._keys, 2 * MOST_NEAR)
            near = [*dict.fromkeys(self.key(self._keys[key]) for key in close)][:MOST_NEAR]
            near = near or [*self._names.values()][:12]
            raise LookupError(f"got field {name!r}, the map has {', '.join(near)}, ...") from None

    def full_name(self, name: str) -> str:
        """Return the name ``block.register.field`` of the field that any of its names denotes;
        raises LookupError as ``registers[name]``."""
        return self._full_names.get(name) or self[name].full_name

    @cached_property
    def _full_names(self) -> dict[str, str]:
        """The full name of a field, by each of its names."""
        return {name: item.full_name for name, item in self._keys.items()}

    def named(self, name: str) -> list[Field]:
        """Return the fields that have this name, in the order of the map; several if the name is
        not unique. The name may have the register, the block or both in front, or be the part of a
        field's name after its last dot."""
        found = []
        for item in self._fields:
            _, _, last = item.name.rpartition(".")
            if name in (last, *full_names(item.block, item.register, item.name)):
                found.append(item)
        return found

    def __contains__(self, name: object) -> bool:
        """True if exactly one field has this name."""
        return isinstance(name, str) and name in self._keys

    def __getattr__(self, name: str) -> Field:
        # copy and pickle ask for private names while the map has no attribute ``_keys`` yet;
        # looking for a name in ``_keys`` would call this method for ``_keys``, without end
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
        return (
            f"RegisterMap({blocks}: {len(self)} words, {len(self._fields)} fields, "
            f"{named} bits named, {automatic} automatic)"
        )

    def key(self, item: Field) -> str:
        """Return the name of a field that ``decode`` uses: its shortest unambiguous name, or the
        automatic name, with the block's name in front if the map has several blocks."""
        try:
            return self._names[item]
        except (KeyError, TypeError):
            need("key", item, Field, "is a Field of the map, as registers[name]")
            raise LookupError(
                f"key: got field {item.name} of {item.register}, allowed is a field of the map"
            ) from None

    @cached_property
    def word_names(self) -> tuple[str, ...]:
        """For each word, the beginning of the automatic names of its fields: ``w3`` or ``r1010``,
        with the block's name in front if the map has several blocks.
        """
        blocks = {block for block, _, _ in self.registers}
        return tuple(
            in_block(block, label, blocks)
            for (block, _, _), label in zip(self.registers, self._labels, strict=True)
        )

    @cached_property
    def _names(self) -> dict[Field, str]:
        """The name of each field that ``key`` returns."""
        out: dict[Field, str] = {}
        for key, item in self._keys.items():
            if key != f"{item.block}.{item.name}":
                out[item] = min(out.get(item, key), key, key=len)
        blocks = {block for block, _, _ in self.registers}
        for item in self._fields:
            key = in_block(item.block, item.name, blocks)
            if item.automatic and self._keys.get(key) is item:
                out[item] = key
        return out

    def decode(self, words: Any, *, raw: bool = False) -> dict[str, Any]:
        """Return the values of every field in words ``(..., W) uint32``, by name; with ``raw`` the
        raw values.

        Raw values are uint32, or uint64 for a field wider than a word. The arrays of one call share
        memory, so keeping one array keeps the memory of the others; to keep one field, keep a copy.
        """
        words = self._words(words)
        if words.ndim == 1:
            return self._decode_one(words.tolist(), raw)
        shape = words.shape[:-1]
        rows = self._extract(words.reshape(math.prod(shape), len(self)))
        values = [bits.reshape(shape) for bits in rows]
        if not raw:
            stored = values
            values = [item.value(bits) for item, bits in zip(self._fields, values, strict=True)]
            for n, unit in self._units.items():
                values[n] = values[n] * unit.factors[stored[unit.by]]
        return dict(zip(self._spelled, values, strict=True))

    def _decode_one(self, words: list[int], raw: bool) -> dict[str, Any]:
        """Return the values of every field in the words of one capture, as ``decode`` does for
        many captures. Python's integers are faster than arrays of one element.
        """
        out = [0] * len(self._fields)
        for n, piece in self._plan:
            out[n] |= (words[piece.word] >> piece.lsb & 2**piece.width - 1) << piece.at
        if raw:
            return dict(zip(self._spelled, out, strict=True))
        stored = out.copy()
        for n, unit in self._units.items():
            out[n] *= int(unit.factors[stored[unit.by]])
        for n, item in enumerate(self._fields):
            if item.meaning.kind or item.meaning.steps:
                value = item.value(np.asarray(out[n], item.stored_type))
                if item.meaning.kind in FLOATS:
                    out[n] = value
                else:
                    out[n] = np.asarray(value).item()
        return dict(zip(self._spelled, out, strict=True))

    def encode(self, values: Mapping[str, Any], *, raw: bool = False) -> Array:
        """Return the words ``(..., W) uint32`` of values by field's name, with ``raw`` of raw
        values. The arrays of the values are broadcast to ``(...)``; a field without a value is 0.

        Raises LookupError for an unknown name, ValueError for a value that does not fit.
        """
        need("encode", values, Mapping, "are values by field's name")
        # raw values by the field's number; if a field is named twice, by two spellings, the last
        # value counts
        bits, shape = dict[int, Any](), tuple[int, ...]()
        if self._units and not raw:
            values = self._in_order(values)
        for name, value in values.items():
            item = self[name]
            unit = None
            if not raw:
                unit = self._unit(self._numbers[name], bits)
            # a plain number below the field's bound in ``stored_below`` is stored without a
            # change, which is quicker
            if type(value) is not int or not 0 <= value < item.stored_below[raw]:
                value = item.stored(value if raw else item.raw(value, unit))
                shape = np.broadcast_shapes(shape, np.shape(value))
            bits[self._numbers[name]] = value
        if not shape:
            return self._encode_one({n: int(value) for n, value in bits.items()})
        rows = {}
        for n, value in bits.items():
            array = np.asarray(value, self._fields[n].stored_type)
            rows[n] = np.broadcast_to(array, shape).reshape(-1)
        return self._insert(rows, math.prod(shape)).reshape(*shape, len(self))

    def _in_order(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the same values, sorted so that fields whose unit another field names come last:
        the value of that other field is then known."""
        names = sorted(values, key=lambda name: self[name].meaning.by != "")
        return {name: values[name] for name in names}

    def _unit(self, number: int, bits: Mapping[int, Any]) -> Any:
        """Return the unit of the field ``number``; None if no other field names it. ``bits`` has
        raw values by the field's number; the field that names the unit is 0 if it is not among
        them."""
        if number not in self._units:
            return None
        by, factors = self._units[number]
        return factors[np.asarray(bits.get(by, 0))]

    def with_values(self, words: Any, values: Mapping[str, Any]) -> Array:
        """Return a copy of words ``(..., W) uint32`` with these values, by field's name; their
        arrays are broadcast to ``(...)``.

        Raises LookupError for an unknown name, ValueError for a value that does not fit and for a
        field that is read-only.
        """
        need("with_values", values, Mapping, "are values by field's name")
        words = self._words(words).copy()
        for name, value in self._in_order(values).items():
            item = self[name]
            if item.read_only:
                raise ValueError(
                    f"fields: got {item.register}.{item.name}, which is read-only, allowed is a "
                    "field that a driver can set"
                )
            unit = None
            if item.meaning.by:
                by, factors = self._units[self._numbers[name]]
                unit = factors[self._fields[by].extract(words)]
            item.insert(words, item.raw(value, unit))
        return words

    def fields_in(self, words: Array) -> tuple[Field, ...]:
        """Return the fields of the map for the words ``(W,)`` of one capture: if another field
        names the unit of a field, ``unit`` is what the words say."""
        if not self._units:
            return self._fields
        return tuple(self.field_in(item, words) for item in self._fields)

    def field_in(self, item: Field, words: Array) -> Field:
        """Return a field of the map for the words ``(W,)`` of one capture, as ``fields_in``
        does."""
        if not item.meaning.by:
            return item
        by, factors = self._units[self._numbers[self.key(item)]]
        key = item, int(factors[self._fields[by].extract(words)])
        if key not in self._counted:
            self._counted[key] = replace(item, unit=key[1])
        return self._counted[key]

    def _encode_one(self, bits: Mapping[int, int]) -> Array:
        """Return the words of one capture from raw values by the field's number, as ``_insert``
        does for many captures. Python's integers are faster than arrays of one element.
        """
        words = [0] * len(self)
        for n, piece in self._plan:
            if n in bits:
                words[piece.word] |= (bits[n] >> piece.at & 2**piece.width - 1) << piece.lsb
        return np.array(words, np.uint32)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The number of a field in ``_fields``, by each of the field's names."""
        numbers = {item: n for n, item in enumerate(self._fields)}
        return {key: numbers[item] for key, item in self._keys.items()}

    @cached_property
    def _spelled(self) -> list[str]:
        return [self.key(item) for item in self._fields]

    @cached_property
    def _plan(self) -> list[tuple[int, Piece]]:
        """(number of the field, piece) of every piece, sorted by the piece's word."""
        pieces = [(n, piece) for n, item in enumerate(self._fields) for piece in item.pieces]
        return sorted(pieces, key=itemgetter(1))

    def _extract(self, rows: Array) -> list[Array]:
        """Return the raw values ``(N,)`` of every field in words ``(N, W)``."""
        out = _arrays([item.stored_type for item in self._fields], len(rows))
        # a step cuts one piece out of a word; it has the piece's numbers, the array of the field's
        # values, and True if the piece is the first of its field
        steps, seen = [], set[int]()
        for n, piece in self._plan:
            steps.append((*piece, out[n], n not in seen))
            seen.add(n)
        for some, columns, scratch in _blocks(rows.shape):
            _turn(rows[some].T, columns)
            for word, lsb, width, at, values, first in steps:
                run, into = columns[word], values[some]
                # the first piece of a field of at most 32 bits is computed in the field's values,
                # not in the scratch row, which saves a copy
                room = scratch
                if first and into.itemsize == WORD_BYTES:
                    room = into
                if lsb:
                    run = np.right_shift(run, lsb, room)
                if lsb + width < WORD_BITS:
                    run = np.bitwise_and(run, 2**width - 1, room)
                # a piece with bits above bit 31 of the field's value would lose them if it were
                # shifted as uint32
                if at and at + width <= WORD_BITS:
                    run = np.left_shift(run, at, room)
                elif at:
                    run = run.astype(np.uint64) << at
                if not first:
                    np.bitwise_or(into, run, into)
                elif run is not into:
                    into[...] = run
        return out

    def _insert(self, bits: Mapping[int, Array], count: int) -> Array:
        """Return words ``(count, W)`` from raw values. A key of ``bits`` is the number of a field
        in ``_fields``, a value its raw values ``(count,)``, which fit the field. All other bits are
        0.
        """
        words = np.empty((count, len(self)), np.uint32)
        # a step stores one piece in a word; it has the piece's numbers, the field's values, True if
        # the bits of a value above the piece must be cut off (they belong to another piece), and
        # True if the piece is the first in its word
        steps, seen = [], set[int]()
        for n, piece in self._plan:
            if n in bits:
                cut = piece.at + piece.width < self._fields[n].width
                steps.append((*piece, bits[n], cut, piece.word not in seen))
                seen.add(piece.word)
        idle = [word for word in range(len(self)) if word not in seen]
        for some, columns, scratch in _blocks(words.shape):
            columns[idle] = 0
            for word, lsb, width, at, values, cut, first in steps:
                run, into = values[some], columns[word]
                room = scratch
                if first:
                    room = into
                if run.dtype == np.uint64:
                    run, at = (run >> at).astype(np.uint32), 0
                elif run.dtype != np.uint32:
                    room[...] = run
                    run = room
                if at:
                    run = np.right_shift(run, at, room)
                if cut:
                    run = np.bitwise_and(run, 2**width - 1, room)
                if lsb:
                    run = np.left_shift(run, lsb, room)
                if not first:
                    np.bitwise_or(into, run, into)
                elif run is not into:
                    into[...] = run
            _turn(columns, words[some].T)
        return words

    def _words(self, words: Any) -> Array:
        """Return words as an array ``(..., W) uint32``; raises ValueError for other numbers and for
        another number of words."""
        words = np.asarray(words)
        if words.dtype != np.uint32:
            refuse_if(words.dtype.kind not in "iu", "words", words.dtype, "is uint32")
            wrong = words[(words < 0) | (words > 0xFFFFFFFF)].tolist()
            refuse_if(wrong, "words", max(wrong, default=0), "is uint32, 0 to 0xffffffff")
            words = words.astype(np.uint32)
        got = "a single number"
        if words.ndim:
            got = f"{words.shape[-1]} words in the last axis"
        if words.shape[-1:] != (len(self),):
            raise ValueError(
                f"words: got {got}, allowed are {len(self)} words in the last axis "
                f"(block {self.registers[0][0]})"
            )
        return words

    def coverage(self) -> Coverage:
        """Return masks of the bits that have a name, and of the bits that have only an automatic
        name.
        """
        return Coverage(*self._masks_by(lambda item: int(item.automatic), 2))

    @cached_property
    def _masks(self) -> Array:
        """Masks ``(3, W)`` of the bits that ``status`` without words counts as explained, guessed
        and open."""
        return self._masks_by(_known, 3)

    def _masks_by(self, kind_of: Callable[[Field], int], kinds: int) -> Array:
        """Return masks ``(kinds, W)``: mask k has the bits of the fields for which ``kind_of``
        returns k."""
        masks = np.zeros((kinds, len(self)), np.uint32)
        for n, piece in self._plan:
            bits = mask(piece.width) << np.uint32(piece.lsb)
            masks[kind_of(self._fields[n]), piece.word] |= bits
        return masks

    def status(self, words: Any = None) -> pd.DataFrame:
        """Return how many bits of each word are known, a row for each word: word, block, register,
        offset and the counts of these bits, which add up to 32:

        - ``explained``: with evidence other than ``guess`` and ``unknown``, named or not
        - ``guessed``: with evidence ``guess``, named or not; or named, with evidence ``unknown``
        - ``open``: without a name and without such evidence

        If ``words`` has the words ``(N, W) uint32`` of captures, bits that are the same in all
        captures are not counted there, but in two more columns: ``constant`` counts open bits,
        ``never exercised`` counts explained and guessed bits. With one capture, no bit varies.
        ``attrs["summary"]`` is a line with the shares of the whole map. Raises ValueError for words
        that do not fit the map.

        >>> RegisterMap([dict(field="a", lsb=0, width=8, evidence="K")]).status().attrs["summary"]
        '32 bits in 1 word: 25 % explained, 0 % guessed, 75 % open'
        """
        varies = np.full(len(self), mask(WORD_BITS))
        if words is not None:
            words = self._words(words).reshape(-1, len(self))
            varies = np.bitwise_or.reduce(words, 0) & ~np.bitwise_and.reduce(words, 0)
        frame = pd.DataFrame([*self.registers], columns=["block", "offset", "register"])
        frame.insert(0, "word", range(len(self)))
        explained, guessed, free = self._masks & ~varies
        masks = [*(self._masks & varies), free, explained | guessed]
        counts = dict(zip(STATUS, np.bitwise_count(masks).astype(int), strict=True))
        frame = frame[["word", "block", "register", "offset"]].assign(**counts)
        total = WORD_BITS * len(self)
        shares = []
        for name, count in counts.items():
            if words is not None or name in STATUS[:3]:
                shares.append(f"{100 * count.sum() / total:.0f} % {name}")
        frame.attrs["summary"] = f"{total} bits in {plural(len(self), 'word')}: {', '.join(shares)}"
        return frame

    def lint(self) -> list[Finding]:
        """Return the holes and the rows without a name, sorted by place. (Overlaps and fields that
        cross their register are refused when the map is made.)
        """
        out = []
        for item in self._fields:
            if item.automatic:
                kind = "unnamed" if item.declared else "hole"
                out += [Finding(kind, *piece[:3]) for piece in item.pieces]
        return out

    @property
    def declared(self) -> int:
        """The number of bits that have a row."""
        holes = (found.width for found in self.lint() if found.kind == "hole")
        return WORD_BITS * len(self) - sum(holes)

    @property
    def fields(self) -> pd.DataFrame:
        """The table as a DataFrame with the columns of ``registers.table`` and ``word``, the number
        of the word in the map. It has one row per run of bits, sorted by the place of the bits,
        with automatic names filled in. A map made from these rows has the same fields.
        """
        from npulab.registers.shown import Table

        places = {place[:2]: word for word, place in enumerate(self.registers)}
        rows = [{**row, "word": places[row["block"], row["offset"]]} for row in self._kept]
        for hole in self.lint():
            if hole.kind == "hole":
                block, offset, _ = self.registers[hole.word]
                bits = {"word": hole.word, "lsb": hole.lsb, "width": hole.width}
                rows.append({"block": block, "offset": offset, "evidence": "unknown", **bits})
        rows.sort(key=itemgetter("word", "lsb"))
        for row in rows:
            row["register"] = self.registers[row["word"]][2]
            label = self._labels[row["word"]]
            row["field"] = row.get("field") or automatic_name(label, row["lsb"], row["width"])
            row["address"] = row.get("address") == "yes"
            row["align"] = row.get("align") or 0
        frame = Table(rows, columns=[*COLUMNS, "word"], dtype=object)
        numbers = dict.fromkeys(("offset", "lsb", "width", "word", "align"), int)
        return frame.where(frame.notna(), "").astype({"address": bool, **numbers})

    @cached_property
    def index(self) -> dict[int, int]:
        """The number of a word in the map, by the word's offset, for register writes; raises
        ValueError if two blocks have a word at the same offset.
        """
        out: dict[int, int] = {}
        for word, (block, offset, _) in enumerate(self.registers):
            if offset in out:
                raise ValueError(
                    f"register map: blocks {self.registers[out[offset]][0]!r} and {block!r} both "
                    f"have offset {offset:#x}, so a write to this offset may be meant for either"
                )
            out[offset] = word
        return out

    @cached_property
    def _places(self) -> dict[int, Place]:
        """The place of each word in each copy of its block, by the word's address."""
        offsets: dict[str, list[int]] = {}
        for block, offset, _ in self.registers:
            # records lie in buffers: no write to an address goes to a record
            if not self.repeats.get(block, Repeat()).held:
                offsets.setdefault(block, []).append(offset)
        repeat = {block: self.repeats.get(block, Repeat()) for block in offsets}
        # places are counted before the first is made, because a few cells of a table can state
        # millions of copies
        count = sum(len(offsets[block]) * math.prod(repeat[block].counts) for block in offsets)
        if count > MOST_PLACES:
            raise ValueError(
                f"register map: got {count} words in all copies of its blocks, allowed are at "
                f"most {MOST_PLACES}"
            )
        out: dict[int, Place] = {}
        for block in offsets:
            for copy, base in repeat[block].copies:
                for offset in offsets[block]:
                    place = Place(block, copy, offset)
                    if out.setdefault(base + offset, place) != place:
                        other = out[base + offset]
                        raise ValueError(
                            f"register map, address {base + offset:#x}: got offset {offset:#x} of "
                            f"{block} {copy} and {other.offset:#x} of {other.block} {other.copy}, "
                            "allowed is one word"
                        )
        return out

    def place(self, address: int) -> Place:
        """Return the place of an address: the block, the index of the block's copy in each
        dimension, and the byte offset in this copy.

        Raises LookupError for an address where no word lies, ValueError for an address where two
        words lie.

        >>> block = dict(block="L", offset=0x5000, count="4 32", stride="0x1000 4")
        >>> field = dict(block="L", register="CFG", field="relu", lsb=0, width=1)
        >>> RegisterMap([block, field]).place(0x6008)
        Place(block='L', copy=(1, 2), offset=0)
        """
        need_whole("place", address, "is an address, a whole number")
        if (found := self._places.get(address - address % WORD_BYTES)) is None:
            raise LookupError(
                f"address: got {address:#x}, the map has {len(self._places)} words "
                f"from {min(self._places):#x} to {max(self._places):#x}"
            )
        return found._replace(offset=found.offset + address % WORD_BYTES)

    def labels(self, place: Place) -> tuple[str, str]:
        """Return two labels of the copy of the block in which a place lies: for the unit, and for
        the other dimensions. Both are blank if the block does not repeat.
        """
        need("labels", place, Place, "is a Place, as registers.place(address) gives")
        return self.repeats.get(place.block, Repeat()).labels(place.copy)

    def unmapped(self, block: str, offset: int) -> Field:
        """Return an automatic field over the whole word of a register that is not in the map."""
        need("unmapped: block", block, str, "is the name of a block")
        return Field.whole_word(block, self.register_at(offset))

    def register_at(self, offset: int) -> str:
        """Return the name of the register at an offset, the automatic name if the register is not
        in the map.
        """
        need_whole("register_at", offset, "is an offset, a whole number")
        if offset in self.index:
            return self.registers[self.index[offset]][2]
        return word_name(offset, bool(self.by_address))

    def holds(self, address: int) -> bool:
        """True if a word of the map lies at an address."""
        need_whole("holds", address, "is an address, a whole number")
        return address - address % WORD_BYTES in self._places

    def state(self, writes: Iterable[tuple[int, int]]) -> Array:
        """Return the words ``(W,) uint32`` after register writes, each (offset, value). All words
        are 0 at first; a write to an offset without a word is ignored.
        """
        words = np.zeros(len(self), np.uint32)
        for offset, value in pairs_of("state", writes, 2):
            if offset in self.index:
                words[self.index[offset]] = value
        return words


def _known(item: Field) -> int:
    """Return the index in ``STATUS`` of the column that counts the bits of a field: 0 to 2."""
    if item.evidence not in GUESSES:
        return 0
    if item.automatic and item.evidence != GUESS:
        return 2
    return 1


def need_features(what: str, features: object) -> list[str]:
    """Return the features as a list of names; raises TypeError if they are not a collection of
    names, and for a single name that is not in a list.
    """
    return need_all(f"{what}: features", features, str, 'are names in a list, as ["nn_v7"]')


def pairs_of(what: str, writes: object, most: int = 3) -> list[Any]:
    """Return register writes, each of 2 to ``most`` whole numbers, as a list; raises TypeError or
    ValueError for anything else.
    """
    allowed = "are register writes, each (offset, value)"
    out = need_all(what, writes, (tuple, list), allowed)
    # the types are collected first: there may be many numbers, but they have few types
    kinds = set(map(type, chain.from_iterable(out)))
    odd = {kind for kind in kinds if not issubclass(kind, int | np.integer)}
    lengths = set(map(len, out)) - {*range(2, most + 1)}
    if odd or lengths:
        wrong = next(
            write for write in out if len(write) in lengths or odd.intersection(map(type, write))
        )
        raise ValueError(f"{what}: got {wrong!r:.60}, allowed {allowed}")
    return out


def _arrays(types: Sequence[Any], count: int) -> list[Array]:
    """Return an unfilled array ``(count,)`` for each type. Arrays of the same type share
    allocations of at most ``SHARED_BYTES`` bytes, or of one array.
    """
    out: dict[int, Array] = {}
    for kind in dict.fromkeys(types):
        same = [n for n, other in enumerate(types) if other is kind]
        most = max(1, SHARED_BYTES // max(1, count * kind().itemsize))
        for start in range(0, len(same), most):
            part = same[start : start + most]
            out.update(zip(part, np.empty((len(part), count), kind), strict=True))
    return [out[n] for n in range(len(types))]


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[slice, Array, Array]]:
    """Yield the batches of words of this shape ``(N, W)`` in turn. A batch is the slice of its n
    rows, an unfilled array ``(W, n)`` for its words, and a scratch row ``(n,)``; the arrays are
    used again for the next batch.
    """
    count, words = shape
    step = min(count, BLOCK_ROWS, 1 + BLOCK_WORDS // max(1, words))
    # each row is a cache line longer than a power of two; otherwise, the rows of a tile would
    # compete for one set of the cache
    columns, scratch = np.empty((words, step + 16), np.uint32), np.empty(step, np.uint32)
    for start in range(0, count, step or 1):
        some = min(step, count - start)
        yield slice(start, start + some), columns[:, :some], scratch[:some]


def _turn(source: Array, target: Array) -> None:
    """Copy ``source`` ``(W, n)`` into ``target`` ``(W, n)``. One of the two is a transposed view,
    so the copy is made in tiles that fit into the cache.
    """
    step = 64 + TILE_WORDS // max(1, len(source))
    for start in range(0, source.shape[1], step):
        target[:, start : start + step] = source[:, start : start + step]
