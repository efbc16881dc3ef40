"""Laws that somebody states as text, compared with captures."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from npulab.analysis.laws.expressions import (
    FIELD,
    PARAMETER,
    Array,
    Columns,
    Expression,
    field,
    parameter,
)
from npulab.analysis.laws.inputs import LARGEST, checked_numbers, checked_words
from npulab.analysis.laws.naming import Naming
from npulab.analysis.laws.solved import Place, Steps
from npulab.analysis.laws.texts import parse_law, parse_steps
from npulab.quant.layers.spellings import spellings_of
from npulab.registers.fields import WORD_BITS

if TYPE_CHECKING:
    import pandas as pd

ENOUGH = 8  # a law that agrees with at least ENOUGH different captures is called found
TYPE = re.compile(r"u(8|16|32)(?:\[([0-9]+)\])?")
WORD_BYTES = WORD_BITS // 8
SHOWN = 20  # a row of the table has the names of at most SHOWN captures
NO_NUMBER = -(2.0**62)
COLUMNS = (
    "name",
    "law",
    "verdict",
    "rows",
    "agree",
    "contradict",
    "supports",
    "contradicts",
    "status",
)
AGREES, CONTRADICTED, SAME, NOTHING = "agrees", "contradicted", "not varied", "nothing to compare"


@dataclass(frozen=True)
class Stated:
    """A named law for recorded numbers; ``laws`` has one law, or one for each index.

    A law of cases says nothing of a capture in which none of its cases holds. ``places`` are
    alternative lists of names of the recorded numbers: a capture is read by the first list whose
    names it has.
    """

    name: str
    text: str
    laws: tuple[Steps, ...]
    places: tuple[tuple[Expression, ...], ...]

    @classmethod
    def parse(cls, name: str, law: str, *places: str, count: int = 1) -> Stated:
        """Read a law from texts. With ``count`` above 1 the texts are read once for each ``i`` from
        0 to ``count - 1``.

        Raises as ``parse_law``.
        """
        numbers: Iterable[int | None] = (None,)
        if count > 1:
            numbers = range(count)
        laws = []
        if law.strip():
            laws = [parse_steps(law, i) for i in numbers]
        parsed = []
        for place in places:
            if place.strip():
                parsed.append(tuple(parse_law(place, i) for i in numbers))
        return cls(name, law, tuple(laws), tuple(parsed))


def word_fields(offset: int, kind: str) -> list[str]:
    """The names of the fields of words that a value of type ``kind`` at a byte offset covers.

    ``kind`` is ``u8``, ``u16``, ``u32``, or an array of one of these, such as ``u32[16]``. Raises
    ValueError for another type, and for an offset that its size does not divide.

    >>> word_fields(0x146, "u16")
    ['w81_16_16']
    """
    found = TYPE.fullmatch(kind)
    if found is None:
        raise ValueError(
            f"type: got {kind!r:.40}, allowed are u8, u16, u32 and several of them (u32[16])"
        )
    size = int(found[1]) // 8
    if offset < 0 or offset % size:
        raise ValueError(f"offset: got {offset:#x}, allowed is a multiple of {size}")
    places = (offset + size * i for i in range(int(found[2] or 1)))
    return [f"w{place // WORD_BYTES}_{place % WORD_BYTES * 8}_{size * 8}" for place in places]


def check_stated(stated: Iterable[Stated], captures: Any, parameters: Any = None) -> pd.DataFrame:
    """Compare laws with captures: a row for each law says which captures support it and which
    contradict it.

    ``captures`` is a ``Sweep``; words ``(N, W) uint32``, with a row of ``parameters`` for each; or
    captures by name, each a pair: its words ``(W,)`` or its raw numbers by field, and its
    parameters. A capture without a name that a law reads is not counted for that law.

    If a sweep is of some jobs of its captures, a line below the table says of how many.

    ``verdict`` is agrees; contradicted; not varied (the law agrees, and the recorded number is the
    same in all captures); or nothing to compare. ``status`` says it in words: a law that agrees is
    called found if at least eight different captures support it.

    >>> law = Stated.parse("width", "width * 2", "w0_0_8")
    >>> check_stated([law], [[2], [8]], {"width": [1, 3]})["status"][0]
    'contradicted in 1 of 2'
    """
    import pandas as pd

    from npulab.registers.shown import with_part

    evidence = _Evidence.of(captures, parameters)
    table = pd.DataFrame([_row(law, evidence) for law in stated], columns=list(COLUMNS))
    return with_part(table, captures)


def check_rows(
    table: Iterable[Mapping[str, str]], captures: Any, parameters: Any = None
) -> pd.DataFrame:
    """As ``check_stated``, for the rows of a table: offset (in bytes), type, fields, law; other
    columns are kept.

    ``fields`` is an expression of decoded fields that gives the number at this offset, for captures
    given as raw numbers by field; for words, offset and type say where the number is. Rows are
    named by offset and type. Raises as ``parse_law``.
    """
    listed = [dict(row) for row in table]
    found = check_stated([_of_row(row) for row in listed], captures, parameters)
    for column in dict.fromkeys(itertools.chain.from_iterable(listed)):
        if column in COLUMNS:
            continue
        found[column] = [row.get(column, "") for row in listed]
    return found


def _of_row(row: Mapping[str, str]) -> Stated:
    name = " ".join(part for part in (row.get("type", ""), row.get("offset", "")) if part)
    words = []
    if row.get("type") and row.get("law"):
        words = word_fields(int(row["offset"], 0), row["type"])
    stated = Stated.parse(name, row.get("law", ""), row.get("fields", ""), count=max(len(words), 1))
    if words:
        return replace(stated, places=(*stated.places, tuple(map(field, words))))
    return stated


@dataclass(frozen=True, eq=False)
class _Evidence:
    """The captures as columns: by name the numbers ``(N,)`` and a mask ``(N,) bool`` of the
    captures that have one.
    """

    names: tuple[str, ...]
    words: Array  # (N, W) uint32; a capture with fewer than W words has zeros after them
    lengths: Array
    columns: Mapping[Expression, tuple[Array, Array]]
    naming: Naming

    @classmethod
    def of(cls, captures: Any, parameters: Any) -> _Evidence:
        registers = getattr(captures, "registers", None)
        if hasattr(captures, "parameters"):
            captures, parameters = (
                captures.words,
                captures.parameters if parameters is None else parameters,
            )
        if isinstance(captures, Mapping):
            if parameters is not None:
                raise ValueError(
                    "parameters: got an argument of their own with captures by name, allowed are "
                    "parameters in each capture: a pair of values and parameters"
                )
            return cls._by_name(captures)
        words = checked_words(captures)
        columns = {
            parameter(str(name)): (_numbers(values, str(name)), np.ones(len(words), bool))
            for name, values in dict(parameters if parameters is not None else {}).items()
        }
        for leaf, (values, _) in columns.items():
            if len(values) != len(words):
                raise ValueError(
                    f"parameters: got {len(values)} rows of {leaf}, allowed are {len(words)}, one "
                    "for each capture"
                )
        if registers is not None and len(registers) == words.shape[1]:
            columns |= {
                field(name): (np.asarray(values).astype(np.int64), np.ones(len(words), bool))
                for name, values in registers.decode(words, raw=True).items()
            }
        return cls(
            tuple(str(number) for number in range(len(words))),
            words,
            np.full(len(words), words.shape[1]),
            columns,
            Naming.of(words.shape[1], registers),
        )

    @classmethod
    def _by_name(cls, captures: Mapping[Any, Any]) -> _Evidence:
        rows = []
        numbers = []
        for name, pair in captures.items():
            if (
                not isinstance(pair, tuple | list)
                or len(pair) != 2
                or not isinstance(pair[1], Mapping)
            ):
                raise ValueError(
                    f"captures: got {type(pair).__name__} for {name!r:.40}, allowed is a pair: "
                    "words or "
                    "values by field, and parameters by name"
                )
            values, parameters = pair
            by_field, row = values, np.zeros(0, np.uint32)
            if not isinstance(values, Mapping):
                by_field, row = {}, checked_words([values])[0]
            rows.append(row)
            numbers.append(
                {parameter(str(key)): value for key, value in parameters.items()}
                | {field(str(key)): value for key, value in by_field.items()}
            )
        lengths = np.array([len(row) for row in rows], int)
        words = np.zeros((len(rows), lengths.max(initial=0)), np.uint32)
        for row, own in zip(words, rows, strict=True):
            row[: len(own)] = own
        columns = {}
        for leaf in dict.fromkeys(itertools.chain.from_iterable(numbers)):
            have = np.array([_is_number(row.get(leaf)) for row in numbers], bool)
            known = [
                row.get(leaf) if there else 0 for row, there in zip(numbers, have, strict=True)
            ]
            columns[leaf] = _numbers(known, str(leaf)), have
        return cls(tuple(map(str, captures)), words, lengths, columns, Naming.of(words.shape[1]))

    def different(self, rows: Array) -> int:
        """The number of different captures in ``rows``, counted up to ``ENOUGH``."""
        seen = set()
        for row in rows:
            numbers = []
            for values, have in self.columns.values():
                numbers.append(values[row].item() if have[row] else None)
            seen.add((self.words[row].tobytes(), *numbers))
            if len(seen) == ENOUGH:
                break
        return len(seen)

    def column(self, name: str, kinds: Sequence[str]) -> tuple[Array, Array] | None:
        """The numbers ``(N,)`` of a name and ``(N,) bool``: the captures that have it; None if
        there is no such number.

        The first of ``kinds`` (parameter, field) that has the name, or another spelling of it,
        gives the numbers. If none has, the name may state bits of a word, such as ``w3_0_7``.
        """
        for kind, spelling in itertools.product(kinds, spellings_of(name)):
            if Expression(kind, (spelling,)) in self.columns:
                return self.columns[Expression(kind, (spelling,))]
        found = self.naming.place(name)
        if found is None:
            return None
        place = Place(*found)
        return place.raw(self.words).astype(np.int64), self.lengths > place.word

    def have(
        self,
        parts: Iterable[Expression],
        kinds: Sequence[str],
    ) -> tuple[dict[Expression, Array], Array, list[str]]:
        """The columns that expressions read, ``(N,) bool`` for captures that have all of them, and
        the names that no capture has.
        """
        columns = {}
        have, missing = np.ones(len(self.names), bool), []
        for leaf in dict.fromkeys(
            leaf for part in parts for leaf in part.walk() if leaf.op in (PARAMETER, FIELD)
        ):
            column = self.column(leaf.args[0], kinds)
            if column is None:
                missing.append(leaf.args[0])
                have[:] = False
            else:
                columns[leaf] = column[0]
                have &= column[1]
        return columns, have, missing


def _row(stated: Stated, evidence: _Evidence) -> tuple[Any, ...]:
    shape = len(stated.laws), len(evidence.names)
    predicted, recorded = np.zeros((2, *shape), np.int64)
    asked = np.zeros(shape, bool)
    seen = np.zeros(shape[1], bool)
    columns, have, missing = evidence.have(
        (part for steps in stated.laws for step in steps for part in step), (PARAMETER, FIELD)
    )
    absent = []
    for place in stated.places if stated.laws else ():
        where, there, lacking = evidence.have(place, (FIELD, PARAMETER))
        absent += lacking
        rows = np.flatnonzero(have & there & ~seen)
        if len(rows):
            own, law = _columns(where, rows), _columns(columns, rows)
            recorded[:, rows] = [own[part] for part in place]
            for number, steps in enumerate(stated.laws):
                predicted[number, rows], asked[number, rows] = _values(steps, law)
            seen[rows] = True
    right = ((predicted == recorded) | ~asked).all(0)
    good, bad = np.flatnonzero(asked.any(0) & right), np.flatnonzero(asked.any(0) & ~right)
    numbers = [
        np.unique(row[good[there[good]]]).tolist()
        for row, there in zip(recorded, asked, strict=True)
    ]
    verdict, status = _verdict(stated, evidence, good, len(bad), numbers, missing or absent)
    return (
        stated.name,
        stated.text,
        verdict,
        len(good) + len(bad),
        len(good),
        len(bad),
        _listed(evidence.names, good),
        _listed(evidence.names, bad),
        status,
    )


def _listed(names: Sequence[str], rows: Array) -> str:
    """The names of captures as a list; of many captures only the first few."""
    text = ", ".join(names[row] for row in rows[:SHOWN])
    if len(rows) > SHOWN:
        text += f", ... ({len(rows)})"
    return text


def _verdict(
    stated: Stated,
    evidence: _Evidence,
    good: Array,
    bad: int,
    numbers: Sequence[Sequence[int]],
    absent: Sequence[str],
) -> tuple[str, str]:
    """The verdict and status; ``numbers`` are the different numbers recorded at each index where
    the law agrees."""
    count = len(good) + bad
    if not stated.laws:
        return NOTHING, "no law is stated"
    if not count:
        if absent:
            return NOTHING, f"no capture has {', '.join(dict.fromkeys(absent))}"
        return NOTHING, "the law applies to no capture"
    if bad:
        return CONTRADICTED, f"contradicted in {bad} of {count}"
    if all(len(kinds) <= 1 for kinds in numbers):
        same = "each of them is the same"
        if len(numbers) == 1:
            same = f"it is {numbers[0][0]}"
        return SAME, f"agrees in {count} of {count}, but {same} in all"
    apart = evidence.different(good)
    if apart < ENOUGH:
        alike = ""
        if count >= ENOUGH:
            alike = f" ({apart} different ones)"
        return AGREES, f"agrees in {count} of {count}{alike}, too few to call it found"
    return AGREES, f"found: agrees in {count} of {count}"


def _columns(columns: Mapping[Expression, Array], rows: Array) -> Columns:
    out = Columns({"": np.zeros(len(rows), np.int64)})
    out.values |= {leaf: values[rows] for leaf, values in columns.items()}
    return out


def _values(steps: Steps, columns: Columns) -> tuple[Array, Array]:
    """``(N,) int64``: for each row the value of the first case that holds; ``(N,) bool``: the rows
    on which one holds.
    """
    out, left = np.zeros(columns.n, np.int64), np.ones(columns.n, bool)
    for when, law in steps:
        holds = left & np.asarray(columns[when]).astype(bool)
        out[holds] = _whole(np.asarray(columns[law])[holds])
        left &= ~holds
    return out, ~left


def _whole(values: Array) -> Array:
    """The values as int64. A value that is no whole number becomes ``NO_NUMBER``, which no field
    can hold.
    """
    if values.dtype.kind != "f":
        return values.astype(np.int64)
    fits = (values == np.round(values)) & (np.abs(values) <= LARGEST)
    return np.where(fits, values, NO_NUMBER).astype(np.int64)


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | np.number | np.bool_) and bool(np.isfinite(value))


def _numbers(values: Any, name: str) -> Array:
    """``(N,)``: the numbers as int64 if all are whole, else as float32."""
    column = np.atleast_1d(checked_numbers(values, name))
    return column.astype(np.int64 if (column == np.round(column)).all() else np.float32)
