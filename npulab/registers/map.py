"""Register maps: the meaning of the bits of words, decoded and encoded over many captures."""

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
from npulab.support.refuse import need, need_all, need_path, need_whole
from npulab.support.text import plural

# The most rows and words of a block, and the words of a tile. Words of many captures are transposed
# block by block, each tile by tile, so that the words from which a field is cut are in the cache.
# With fewer rows, calling numpy takes longer than its work.
BLOCK_ROWS, BLOCK_WORDS, TILE_WORDS = 2**14, 2**20, 2**14
# The most bytes of a piece of memory that values share. malloc gives pieces of 32 MiB and more, and
# many small pieces, back to the system, and fetching their pages again takes longer than decoding.
SHARED_BYTES = 31 * 2**20
MOST_NEAR = 5  # most names that an error text shows
MOST_NAMED = 12  # most fields of one name that an error text shows
MOST_PLACES = 2**20  # most words in all copies of all blocks of a map
GUESS, UNKNOWN = "guess", "unknown"
GUESSES = (GUESS, UNKNOWN)  # evidence of a field that no source proves
STATUS = ("explained", "guessed", "open", "constant", "never exercised")


class Finding(NamedTuple):
    """A remark of ``lint``: ``hole`` (bits without a row) or ``unnamed`` (a row without a name)."""

    kind: str
    word: int
    lsb: int
    width: int

    def __str__(self) -> str:
        return f"{self.kind} at word {self.word} bit {self.lsb} ({self.width} bits)"


class Coverage(NamedTuple):
    """Two masks ``(W,) uint32``: the bits that have a name, and the bits that have only an
    automatic name; ``bits`` is the number of both.
    """

    named: Array
    automatic: Array

    @property
    def bits(self) -> tuple[int, int]:
        return int(np.bitwise_count(self.named).sum()), int(np.bitwise_count(self.automatic).sum())


class RegisterMap:
    """A register map: fields over the words of one or more blocks.

    ``rows`` are mappings with the columns of ``registers.table``; a missing column is blank, and
    ``offset`` and other numbers may be text. The map keeps the rows without a feature and the rows
    whose feature is in ``features``; ``select`` gives the map of the same table for other features.
    A dense map has every word of its blocks from offset 0. Any other map has one word for each
    register, by offset, as fits a sparse register file. Rows of registers of other sizes, arrays
    and blocks that repeat are described in ``registers.expansion``; ``repeats`` has the places of
    blocks. ``by_address`` are the blocks whose registers have addresses; by default
    ``registers.names`` decides. That decision depends on the whole table, so ``by_address`` is
    needed if ``rows`` are only a part of a table. ``numbers`` are the numbers of a chip by name,
    from which ``lsb`` and ``width`` may follow (``registers.numbers``); ``select`` also gives the
    map for other numbers.

    Words are ``(..., W) uint32``. Values are arrays ``(...)``, or plain numbers if words are 1-D.
    Keys are names of fields, with ``register.`` (and ``block.``) in front if a name is not unique;
    ``registers.names`` says how bits without a name are called.

    Raises ValueError for overlapping fields, a field that crosses its register and an unknown value
    word, LookupError for an unknown enum.

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
        # the rows of which a map for other features and numbers is made
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
        """Return the map in a CSV table, with ``enums.csv`` (enum, raw, name) next to it if
        there is one.

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
        """Return the map of the same table for a chip with these features, and with these
        ``numbers``, from which the places of fields follow."""
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
        """Return a map of rows of the same table."""
        return RegisterMap(
            rows,
            features=features,
            enums=self.enums,
            dense=self._all_dense,
            by_address=self.by_address,
            numbers=numbers,
        )

    def starting(self, registers: Collection[str]) -> RegisterMap:
        """Return the same map, in which a write to one of these registers, ``block.register``,
        starts a unit."""
        registers = frozenset(
            need_all("starting", registers, str, "are registers, as block.register")
        )
        rows = []
        for row in self._source:
            if f"{row.get('block')}.{row.get('register')}" in registers:
                row = {**row, ACCESS: START}
            rows.append(row)
        # the blocks that have addresses are decided anew: rows may be of one block only
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
        """Lay out ``uint32_t name : width`` members as C does: a member that does not fit into the
        rest of a word starts the next word and leaves a silent hole, which ``lint`` reports.

        >>> RegisterMap.from_struct([("a", 30), ("b", 3)]).lint()[0]
        Finding(kind='hole', word=0, lsb=30, width=2)
        """
        rows: list[Cells] = []
        offset = lsb = 0
        for member in need_all("from_struct", members, (tuple, list), "are (name, bits) in a list"):
            if len(member) != 2 or not isinstance(member[1], int):
                raise ValueError(f"from_struct: got {member!r:.60}, allowed is a pair (name, bits)")
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
        """The fields, also the automatic ones, sorted by the place of their lowest piece."""
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
        """Return the name ``block.register.field`` of the field that is known by a name; raises
        LookupError as ``registers[name]``."""
        return self._full_names.get(name) or self[name].full_name

    @cached_property
    def _full_names(self) -> dict[str, str]:
        """The full name of a field, by each of its names."""
        return {name: item.full_name for name, item in self._keys.items()}

    def named(self, name: str) -> list[Field]:
        """Return the fields that have this name, alone or with register or block in front, in the
        order of the map; several if the name is not unique."""
        found = []
        for item in self._fields:
            _, _, last = item.name.rpartition(".")
            if name in (last, *full_names(item.block, item.register, item.name)):
                found.append(item)
        return found

    def __contains__(self, name: object) -> bool:
        """True if one field is known by this name."""
        return isinstance(name, str) and name in self._keys

    def __getattr__(self, name: str) -> Field:
        # copy and pickle ask for private names while the map has no attributes yet: looking these
        # up in _keys would ask for _keys, and so on without end
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
        """Return the shortest unambiguous name of a field, which ``decode`` uses."""
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
        """The shortest unambiguous name of each field."""
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
        """Return the values of every field of words ``(..., W) uint32``, by name; with ``raw`` the
        raw values.

        Raw values are uint32, uint64 for a field wider than a word. The arrays of one call share
        memory: an array that is kept keeps the memory of all, a copy of it does not.
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
        """``decode`` for the words of one capture; Python's integers are faster than arrays of one
        element.
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
        """Return the words ``(..., W) uint32`` of values by name, which broadcast to ``(...)``; a
        field without a value is 0.

        Raises LookupError for an unknown name, ValueError for a value that does not fit.
        """
        need("encode", values, Mapping, "are values by field's name")
        # if a field is named twice, by two spellings, the last value counts
        bits, shape = dict[int, Any](), tuple[int, ...]()
        if self._units and not raw:
            values = self._in_order(values)
        for name, value in values.items():
            item = self[name]
            unit = None
            if not raw:
                unit = self._unit(self._numbers[name], bits)
            # the quick way for a plain number that is stored without a change
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
        """Return the values; the fields whose unit another field names come last."""
        names = sorted(values, key=lambda name: self[name].meaning.by != "")
        return {name: values[name] for name in names}

    def _unit(self, number: int, bits: Mapping[int, Any]) -> Any:
        """Return the unit of a field that another field names, whose raw values are among ``bits``;
        None for a field of a fixed unit."""
        if number not in self._units:
            return None
        by, factors = self._units[number]
        return factors[np.asarray(bits.get(by, 0))]

    def with_values(self, words: Any, values: Mapping[str, Any]) -> Array:
        """Return words ``(..., W) uint32`` with other values in some fields; values broadcast to
        ``(...)``.

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
        """Return the fields as they are in words ``(W,)`` of one capture: a field whose unit
        another field names has that unit."""
        if not self._units:
            return self._fields
        return tuple(self.field_in(item, words) for item in self._fields)

    def field_in(self, item: Field, words: Array) -> Field:
        """Return a field as it is in words ``(W,)``, as ``fields_in`` does."""
        if not item.meaning.by:
            return item
        by, factors = self._units[self._numbers[self.key(item)]]
        key = item, int(factors[self._fields[by].extract(words)])
        if key not in self._counted:
            self._counted[key] = replace(item, unit=key[1])
        return self._counted[key]

    def _encode_one(self, bits: Mapping[int, int]) -> Array:
        """``_insert`` for the words of one capture; Python's integers are faster than arrays of one
        element.
        """
        words = [0] * len(self)
        for n, piece in self._plan:
            if n in bits:
                words[piece.word] |= (bits[n] >> piece.at & 2**piece.width - 1) << piece.lsb
        return np.array(words, np.uint32)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """By each name of a field, the field's number in ``_fields``."""
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
                # the first piece of a field of at most 32 bits is cut straight into the field's
                # values, which saves a copy
                room = scratch
                if first and into.itemsize == WORD_BYTES:
                    room = into
                if lsb:
                    run = np.right_shift(run, lsb, room)
                if lsb + width < WORD_BITS:
                    run = np.bitwise_and(run, 2**width - 1, room)
                # a piece that ends above bit 32 of its value would lose bits if it were shifted as
                # uint32
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
        """Words ``(count, W)`` with these raw values ``(count,)``, which fit their fields, by the
        field's number; other bits are 0.
        """
        words = np.empty((count, len(self)), np.uint32)
        steps, seen = [], set[int]()
        for n, piece in self._plan:
            if n in bits:
                # bits above the piece belong to another piece
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
        words = np.asarray(words)
        if words.dtype != np.uint32:
            if words.dtype.kind not in "iu" or np.any((words < 0) | (words > 0xFFFFFFFF)):
                raise ValueError(f"words: got {words.dtype}, allowed is uint32")
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
        """Masks ``(3, W)`` of the bits that ``status`` calls explained, guessed and open."""
        return self._masks_by(_known, 3)

    def _masks_by(self, kind_of: Callable[[Field], int], kinds: int) -> Array:
        """Masks ``(kinds, W)`` of the bits of the fields of each kind."""
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

        With the words ``(N, W) uint32`` of captures, bits that are the same in all captures are
        counted in two columns of their own: open bits as ``constant``, other bits as ``never
        exercised``; if there is one capture, these are all bits. ``attrs["summary"]`` is a line
        with the shares of the whole map. Raises ValueError for words that do not fit the map.

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
        """The table as a DataFrame with the columns of ``registers.table`` and ``word``. It has one
        row per run of bits, sorted by the place of the bits, with automatic names filled in; a
        map made from its rows is the same.
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
        """The number of the word at each offset, for register writes; raises ValueError if two
        blocks have the same offset.
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
        """For each address at which a word lies, in any copy of a block, the place there."""
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
        """Return the block, the number of its copy and the byte offset in it for an address.

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
        """Return the unit and the label of a place's copy of its block; both are blank if the block
        does not repeat.
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
        """Return the words ``(W,) uint32`` after register writes (offset, value) to words that were
        0.
        """
        words = np.zeros(len(self), np.uint32)
        for offset, value in pairs_of("state", writes, 2):
            if offset in self.index:
                words[self.index[offset]] = value
        return words


def _known(item: Field) -> int:
    """The column of ``STATUS`` that counts the bits of a field: 0 to 2."""
    if item.evidence not in GUESSES:
        return 0
    if item.automatic and item.evidence != GUESS:
        return 2
    return 1


def need_features(what: str, features: object) -> list[str]:
    """Return the features as a list of names; raises TypeError for anything but a collection of
    names, also for a single name.
    """
    return need_all(f"{what}: features", features, str, 'are names in a list, as ["nn_v7"]')


def pairs_of(what: str, writes: object, most: int = 3) -> list[Any]:
    """Return register writes, each of 2 to ``most`` whole numbers, as a list; raises TypeError or
    ValueError for anything else.
    """
    allowed = "are register writes, each (offset, value)"
    out = need_all(what, writes, (tuple, list), allowed)
    # there may be many numbers, but they have few types
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
    """Return an unfilled array ``(count,)`` of each type; arrays of the same type lie in shared
    pieces of memory.
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
    """Yield the blocks of words ``(N, W)`` in turn: the slice of a block's rows, room for its words
    ``(W, n)``, and a scratch row ``(n,)``.
    """
    count, words = shape
    step = min(count, BLOCK_ROWS, 1 + BLOCK_WORDS // max(1, words))
    # each row is a cache line longer than a power of two: else the rows of a tile would share one
    # set of the cache
    columns, scratch = np.empty((words, step + 16), np.uint32), np.empty(step, np.uint32)
    for start in range(0, count, step or 1):
        some = min(step, count - start)
        yield slice(start, start + some), columns[:, :some], scratch[:some]


def _turn(source: Array, target: Array) -> None:
    """Copy ``source`` ``(W, n)`` into ``target``. One of the two is a transposed view, so the copy
    is made by tiles that fit into the cache.
    """
    step = 64 + TILE_WORDS // max(1, len(source))
    for start in range(0, source.shape[1], step):
        target[:, start : start + step] = source[:, start : start + step]
