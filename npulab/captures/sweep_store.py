"""A store: a sweep of any number of captures in a folder of Parquet parts, queried without reading
all of it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.captures.parts import (
    BATCH,
    PARTS,
    SUFFIX,
    VERSION,
    Part,
    check_part,
    file_sum,
    full_disk,
    hidden_folder,
    keep_part,
    part_path,
    part_there,
    read_buffer,
    read_parts,
    write_buffer,
    write_head,
)
from npulab.captures.sweep import HEAD, STORE, SWEEP_TEXTS, Sweep, load_sweep
from npulab.registers.fields import Field
from npulab.registers.map import RegisterMap
from npulab.support.extras import needed
from npulab.support.files import named_as, read_json
from npulab.support.late import pd
from npulab.support.refuse import near, need, need_path, refuse_if, refusing
from npulab.support.text import plural

MOST_ROWS = 2**20  # a batch has at most ``MOST_ROWS`` rows: 143 MB of memory if of 34 words
# An iteration gives sweeps of ``AT_ONCE`` DuckDB vectors, each of 2,048 rows: 10,000,000 captures
# of 34 words were decoded with at most 520 MB of memory (bench_stores).
AT_ONCE = 64
MEMORY = "512MB"  # limit of DuckDB's memory; a sort that needs more uses a hidden folder
THREADS = 2
WORD = re.compile(r"w\d+")  # ``WORD`` matches the name of a column of words.
# Key: the type of a column in the head of a store; value: DuckDB's name of this type.
KINDS = {"int64": "BIGINT", "float64": "DOUBLE", "text": "VARCHAR"}
CAPTURES, FIELDS = "captures", "fields"  # ``SweepStore.sql`` knows these two tables.
PLACE = "npulab_row"  # in queries, the column ``PLACE`` has the number of a row in its part
SQL = re.compile(r"[;\x00]")


@dataclass(frozen=True, eq=False)
class Head:
    """What a store says of all its parts: the number of ``words`` in each capture, the kinds (keys
    of ``KINDS``) of ``parameters`` and of ``others``, further columns, by column name, and the
    ``texts`` of its sweep."""

    words: int
    parameters: Mapping[str, str]
    others: Mapping[str, str]
    texts: Mapping[str, str]

    @classmethod
    def of(cls, sweep: Sweep, others: Mapping[str, Array], floats: Sequence[str]) -> Head:
        kinds = {}
        for name, column in sweep.parameters.items():
            kinds[name] = str(column.dtype)
            if name in floats:
                kinds[name] = "float64"
        more = {name: _kind(values) for name, values in others.items()}
        stated = {name: text for name, text in sweep.texts.items() if text}
        return cls(sweep.words.shape[1], kinds, more, stated)

    @classmethod
    def read(cls, path: Path) -> Head:
        with refusing(path):
            values = read_json(path)
            refuse_if(not isinstance(values, dict), "head", type(values).__name__, "is an object")
            version = values.pop("version", None)
            refuse_if(version != VERSION, "version", version, f"is {VERSION}")
            keys = [*cls.__dataclass_fields__]
            refuse_if([*values] != keys, "keys", [*values], f"are {', '.join(keys)}")
            words = values["words"]
            refuse_if(type(words) is not int or words < 1, "words", words, "is 1 or more")
            for key in ("parameters", "others"):
                _check_kinds(key, values[key])
            known = {*SWEEP_TEXTS}
            wrong = [*{*values["texts"]} - known]
            refuse_if(wrong, "texts", wrong, f"are {', '.join(SWEEP_TEXTS)}")
            return cls(**values)

    @property
    def word_columns(self) -> list[str]:
        return [f"w{number}" for number in range(self.words)]

    @property
    def kinds(self) -> dict[str, str]:
        return {**self.parameters, **self.others}


def _check_kinds(key: str, kinds: Any) -> None:
    refuse_if(not isinstance(kinds, dict), key, type(kinds).__name__, "is an object")
    for name, kind in kinds.items():
        refuse_if(kind not in KINDS, f"{key}: {name}", repr(kind), f"is one of {', '.join(KINDS)}")
        wrong = WORD.fullmatch(name) or name == PLACE
        refuse_if(wrong, key, f"a column {name!r}", "are names other than those of words")


@dataclass(frozen=True, eq=False)
class SweepStore:
    """A sweep in a folder: the captures of all its parts, or those that ``where`` keeps.

    Captures are read only when they are asked for. ``len(store)`` counts captures, ``for sweep in
    store`` gives them as sweeps of at most 131,072, in the order of the batches' names. ``where``
    and ``sort`` give stores of the same files, ``sample`` and ``read`` give sweeps, ``sql`` a
    DataFrame. Parts that are added to the folder after the store was opened are not seen. A part is
    compared with its checksum before it is read the first time. Reading and writing captures needs
    DuckDB, which the extra ``farm`` brings.
    """

    path: Path
    head: Head
    parts: tuple[Part, ...]
    conditions: tuple[str, ...] = ()
    order: str = ""
    _checked: set[str] = field(default_factory=set, repr=False)

    # ---- what a store holds ----

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(STORE)

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters."""
        return [*self.head.parameters]

    @property
    def texts(self) -> dict[str, str]:
        """The texts of the sweep, by name, as ``Sweep.texts``."""
        texts = dict.fromkeys(SWEEP_TEXTS, "") | dict(self.head.texts)
        if not texts["looked_at"]:
            del texts["looked_at"]
        return texts

    @property
    def target(self) -> str:
        return self.texts["target"]

    @property
    def chip(self) -> str:
        return self.texts["chip"]

    @property
    def block(self) -> str:
        return self.texts["block"]

    @property
    def provenance(self) -> str:
        return self.texts["provenance"]

    @property
    def date(self) -> str:
        return self.texts["date"]

    @property
    def simulated(self) -> bool:
        return self.provenance == "simulated"

    @property
    def unit(self) -> str:
        """What a row is called, "capture" or "job", as in ``Sweep.unit``."""
        if self.looked_at:
            return "job"
        return "capture"

    @property
    def looked_at(self) -> str:
        return self.head.texts.get("looked_at", "")

    @cached_property
    def registers(self) -> RegisterMap | None:
        """The register map of the words, or None, as ``Sweep.registers``."""
        no_rows = np.zeros((0, self.head.words), np.uint32)
        texts: dict[str, Any] = dict(self.head.texts)
        return Sweep(no_rows, pd.DataFrame(), self.name, **texts).registers

    @cached_property
    def _count(self) -> int:
        if not self.conditions:
            return sum(part.rows for part in self.parts)
        return int(self._ask("select count(*)").fetchall()[0][0])

    def __len__(self) -> int:
        return self._count

    @cached_property
    def varying(self) -> Array:
        """``(W,) uint32``: in each word a 1 for every bit that is not the same in all captures."""
        if not len(self):
            return np.zeros(self.head.words, np.uint32)
        columns = self.head.word_columns
        terms = [f"xor(bit_or({name}), bit_and({name}))" for name in columns]
        return np.array(self._ask(f"select {', '.join(terms)}").fetchall()[0], np.uint32)

    @property
    def bits(self) -> int:
        """The number of bits that are not the same in all captures."""
        return int(np.bitwise_count(self.varying).sum())

    @cached_property
    def ranges(self) -> pd.DataFrame:
        """One row per parameter: its name, its least and greatest value, and the number of
        different values (``values``)."""
        rows: list[tuple[Any, ...]] = []
        for name in self.parameters:
            column = _quoted(name)
            terms = f"min({column}), max({column}), count(distinct {column})"
            rows.append((name, *self._ask(f"select {terms}").fetchall()[0]))
        return pd.DataFrame(rows, columns=["parameter", "least", "most", "values"], dtype=object)

    @property
    def counts(self) -> dict[str, int]:
        """How many captures, words in each capture, parameters and parts there are, by these
        names."""
        return {
            "captures": len(self),
            "words": self.head.words,
            "parameters": len(self.parameters),
            "parts": len(self.parts),
        }

    def __repr__(self) -> str:
        about = [self.name, *(self.texts[key] for key in ("target", "chip", "provenance"))]
        text = f"SweepStore({', '.join(filter(None, about))}: {plural(len(self), 'capture')} of "
        text += f"{plural(self.head.words, 'word')}, {plural(len(self.parameters), 'parameter')}, "
        text += f"{plural(len(self.parts), 'part')}"
        for condition in self.conditions:
            text += f"; where {condition}"
        return text + ")"

    # ---- reading captures ----

    @property
    def _columns(self) -> str:
        """The names of the columns of words and parameters, as a list in SQL."""
        names = [*self.head.word_columns]
        names += map(_quoted, self.parameters)
        return ", ".join(names)

    def __iter__(self) -> Iterator[Sweep]:
        return self.sweeps()

    def sweeps(self) -> Iterator[Sweep]:
        """The captures in order, as sweeps of at most 131,072."""
        if not self.parts:
            return
        asked = self._ask(f"select {self._columns}", self.order)
        # DuckDB ends its answer with a chunk of no rows
        chunk = asked.fetch_df_chunk(AT_ONCE)
        while len(chunk):
            yield self._sweep(chunk)
            chunk = asked.fetch_df_chunk(AT_ONCE)

    def decode(self) -> Iterator[dict[str, Any]]:
        """Yield, for each sweep of ``sweeps``, the values of fields (as ``RegisterMap.decode``
        gives them) and of parameters as arrays by name. A parameter with the name of a field is
        called ``parameters.NAME``. Raises ValueError if no map of the words is known."""
        registers = self.registers
        if registers is None:
            raise ValueError(
                f"{self.path}: decode: got words without register map, allowed are words of a "
                "known target, chip and block"
            )
        for sweep in self:
            found = registers.decode(sweep.words)
            for name, column in sweep.parameters.items():
                key = name
                if name in found:
                    key = f"parameters.{name}"
                found[key] = column.to_numpy()
            yield found

    def read(self) -> Sweep:
        """All captures as one sweep in memory, at most 1,048,576; raises ValueError for more."""
        refuse_if(
            len(self) > MOST_ROWS,
            self.path,
            f"{len(self)} captures to read at once",
            f"are {MOST_ROWS}; where(...) and sample(n) take some, for sweep in store reads all",
        )
        return self._joined([*self])

    def sample(self, n: int, seed: int = 0) -> Sweep:
        """``n`` captures chosen at random (all, if there are fewer), in the order of the store. The
        same ``seed`` chooses the same captures of the same parts."""
        refuse_if(n < 1, "sample", n, "is 1 or more")
        count = len(self)
        chosen = np.arange(count)
        if n < count:
            chosen = np.sort(np.random.default_rng(seed).choice(count, n, replace=False))
        return self.rows(chosen)

    def rows(self, numbers: Any) -> Sweep:
        """The captures with these numbers, which count the captures from 0 in the store's order, as
        one sweep; raises IndexError for a number that no capture has."""
        wanted = np.asarray(numbers, np.int64)
        most = len(self)
        wrong = wanted[(wanted < 0) | (wanted >= most)]
        refuse_if(len(wrong), "rows", wrong[:1].tolist(), f"are 0 to {most - 1}", IndexError)
        if self.conditions or self.order:
            return self._rows_of_view(wanted)
        firsts = np.array(self._firsts)
        places = np.searchsorted(firsts, wanted, "right") - 1
        order = np.argsort(places, kind="stable")
        found = []
        for number in np.unique(places).tolist():
            inside = wanted[places == number] - firsts[number]
            found.append(self._of_part(self.parts[number], inside))
        return self._joined(found)[np.argsort(order, kind="stable")]

    @property
    def _firsts(self) -> list[int]:
        """The number of the first capture of each part."""
        sums = accumulate((part.rows for part in self.parts[:-1]), initial=0)
        return [*sums]

    @property
    def files(self) -> SweepStore:
        """The store of all captures in the order of the files, without ``where`` and ``sort``."""
        return replace(self, conditions=(), order="")

    def notable(self, pairs: int) -> Array:
        """The numbers, sorted, that some captures have in ``files``: those with the lowest and the
        highest value of each parameter, and at most ``pairs`` pairs with equal parameters."""
        place = "{'batch': batch, 'row': " + PLACE + "}"
        columns = [*map(_quoted, self.parameters)]
        ends = []
        for name in columns:
            ends += [f"min_by({place}, {name})", f"max_by({place}, {name})"]
        found = [*self._ask(f"select {', '.join(ends)}").fetchall()[0]]
        key = f"hash({', '.join(columns)})"
        twice = f"select min({place}), max({place}) from {CAPTURES} group by {key} "
        twice += f"having count(*) > 1 order by {key} limit {pairs}"
        for pair in self._connection(*self.parts).execute(twice).fetchall():
            found += pair
        names = [part.batch for part in self.parts]
        starts = dict(zip(names, self._firsts, strict=True))
        return np.unique([starts[one["batch"]] + one["row"] for one in found])

    def _of_part(self, part: Part, rows: Array) -> Sweep:
        """The captures in these ``rows`` of a part (from 0), in the order of ``rows``."""
        values, back = np.unique(rows, return_inverse=True)
        listed = ", ".join(map(str, values.tolist()))
        file = _text(part_path(self.path, part.batch))
        text = f"select {self._columns} from read_parquet({file}, file_row_number=true) "
        text += f"where file_row_number in ({listed}) order by file_row_number"
        return self._sweep(self._connection(part).execute(text).df())[back]

    def _rows_of_view(self, wanted: Array) -> Sweep:
        found = []
        first = 0
        places = []
        for sweep in self:
            inside = np.flatnonzero((wanted >= first) & (wanted < first + len(sweep)))
            found.append(sweep[wanted[inside] - first])
            places.append(inside)
            first += len(sweep)
        return self._joined(found)[np.argsort(np.concatenate(places), kind="stable")]

    def _joined(self, sweeps: Sequence[Sweep]) -> Sweep:
        if not sweeps:
            return self._sweep(self._no_rows())
        words = np.concatenate([sweep.words for sweep in sweeps])
        frames = [sweep.parameters for sweep in sweeps]
        return self._of(words, pd.concat(frames, ignore_index=True))

    def _sweep(self, frame: pd.DataFrame) -> Sweep:
        words = np.empty((len(frame), self.head.words), np.uint32)
        for number, name in enumerate(self.head.word_columns):
            words[:, number] = frame[name].to_numpy()
        return self._of(words, frame[self.parameters].reset_index(drop=True))

    def _of(self, words: Array, parameters: pd.DataFrame) -> Sweep:
        return Sweep(words, parameters, self.name, registers=self.registers, **self.head.texts)

    def _no_rows(self) -> pd.DataFrame:
        columns = {name: np.zeros(0, np.uint32) for name in self.head.word_columns}
        for name, kind in self.head.parameters.items():
            columns[name] = np.zeros(0, kind)
        return pd.DataFrame(columns)

    # ---- queries ----

    def where(self, condition: str) -> SweepStore:
        """The store of the captures for which ``condition`` holds, an expression of SQL over the
        columns, such as ``"input_w > 8 and stride_w = 2"`` or ``"w3 & 15 = 2"``.

        Raises ValueError for anything but one expression, and for an unknown column.
        """
        need("where", condition, str, "is a condition, as 'input_w > 8'")
        self._check_expression("where", condition)
        kept = replace(self, conditions=(*self.conditions, condition))
        kept._try(f"select 1 from {{rows}} where ({condition}) limit 0", "where", condition)
        return kept

    def sort(self, by: str) -> SweepStore:
        """The store with its captures sorted by an expression of SQL; captures for which this is
        equal stay in the order of the files."""
        need("sort", by, str, "is an expression, as 'input_w'")
        self._check_expression("sort", by)
        self._try(f"select ({by}) from {{rows}} limit 0", "sort", by)
        return replace(self, order=by)

    def sql(self, query: str, **tables: Any) -> pd.DataFrame:
        """The answer to a ``select``. The table ``captures`` has the columns ``w0``, ..., the
        parameters, other columns and ``batch``; the table ``fields`` has the raw value of each
        field of the register map in place of the words. ``tables`` are DataFrames to join, by name.

        The query can read only the parts of the store, and changes no file. Raises ValueError for
        anything but one select, and for a query that DuckDB refuses.
        """
        need("sql", query, str, "is a select")
        duckdb = _duckdb()
        try:
            kinds = [statement.type.name for statement in duckdb.extract_statements(query)]
            refuse_if(kinds != ["SELECT"], "sql", " and ".join(kinds) or "nothing", "is one select")
            connection = self._connection(*self.parts, fields=True)
            for name, table in tables.items():
                connection.register(name, table)
            found: pd.DataFrame = connection.execute(query).df()
        except duckdb.Error as error:
            raise ValueError(
                f"sql: got {query!r:.80} ({_said(error)}), allowed is one select"
            ) from None
        return found

    def counted(self, *names: str) -> pd.DataFrame:
        """A row for each value of a column or field, or of several together, with the number of
        ``captures`` that have it; the most frequent value is first."""
        known = [*self.head.word_columns, *self.head.kinds]
        if self.registers is not None:
            known += map(self.registers.key, self.registers)
        for name in names:
            wrong = name not in known
            refuse_if(wrong, "counted", repr(name), f"is a column{near(name, known)}", LookupError)
        table = CAPTURES
        if not {*names} <= {*self.head.word_columns, *self.head.kinds}:
            table = FIELDS
        listed = ", ".join(map(_quoted, names))
        return self.sql(
            f"select {listed}, count(*) as captures from {table} group by all "
            f"order by captures desc, {listed}"
        )

    def _check_expression(self, what: str, text: str) -> None:
        duckdb = _duckdb()
        try:
            duckdb.SQLExpression(text)
        except duckdb.Error as error:
            raise ValueError(
                f"{what}: got {text!r:.80} ({_said(error)}), allowed is one expression of columns"
            ) from None

    def _try(self, query: str, what: str, text: str) -> None:
        if not self.parts:
            return
        duckdb = _duckdb()
        try:
            self._connection().execute(query.format(rows=CAPTURES))
        except duckdb.Error as error:
            known = [*self.head.word_columns, *self.head.kinds]
            raise ValueError(
                f"{what}: got {text!r:.80} ({_said(error)}), allowed is an expression of columns, "
                f"as {', '.join(known[-3:])}"
            ) from None

    def _ask(self, select: str, order: str = "") -> Any:
        query = f"{select} from {CAPTURES}"
        if order:
            query += f" order by ({order}), batch, {PLACE}"
        return self._connection(*self.parts).execute(query)

    def _connection(self, *used: Part, fields: bool = False) -> Any:
        """A connection of DuckDB that knows the captures, with ``fields`` also the fields, and can
        read nothing but the parts; before, the ``used`` parts are compared with their checksums."""
        for part in used:
            if part.batch not in self._checked:
                check_part(self.path, part)
                self._checked.add(part.batch)
        connection = _connected()
        folder = _text(self.path.resolve() / PARTS)
        connection.execute(f"set allowed_directories = [{folder}]")
        connection.execute("set enable_external_access = false")
        if self.parts:
            for view in self._views(fields):
                connection.execute(view)
        connection.execute("set lock_configuration = true")
        return connection

    def _views(self, with_fields: bool) -> Iterator[str]:
        files = ", ".join(_text(part_path(self.path, part.batch)) for part in self.parts)
        names = [*self.head.word_columns, *map(_quoted, self.head.kinds)]
        listed = ", ".join(names)
        batch = f"parse_filename(filename, true) as batch, file_row_number as {PLACE}"
        query = f"select {listed}, {batch} from read_parquet([{files}], filename=true, "
        query += "file_row_number=true)"
        for condition in self.conditions:
            query = f"select * from ({query}) where ({condition})"
        yield f"create view {CAPTURES} as {query}"
        if with_fields and self.registers is not None:
            columns = [_field_column(item) for item in self.registers]
            keys = [*map(self.registers.key, self.registers)]
            fields = [f"{text} as {_quoted(key)}" for text, key in zip(columns, keys, strict=True)]
            fields += [_quoted(name) for name in self.head.kinds if name not in keys]
            yield f"create view {FIELDS} as select {', '.join(fields)}, batch from {CAPTURES}"

    # ---- writing captures ----

    def append(
        self, sweep: Sweep, batch: str = "", *, floats: Sequence[str] = (), **others: Any
    ) -> SweepStore:
        """The store with the captures of a sweep added as a batch: all of them or none.

        ``batch`` is the name of the batch, by default one made of its contents. If the store has
        the batch with the same contents, nothing is added, so a batch may be given again after a
        crash. ``others`` are further columns by name, a number or text for each capture: the
        outcome, what was observed, hashes of buffers. The first batch decides which columns a store
        has and which hold whole numbers; parameters named in ``floats`` may be fractions in later
        batches. Several programs may append at once.

        Raises ValueError for a sweep of no captures or of more than 1,048,576, and for one with
        other columns, number of words, target, chip, block or provenance than the store;
        FileExistsError for a batch of this name with other contents; OSError if the disk is full.
        If it raises, nothing is added.
        """
        _check_batch(sweep, batch)
        columns = {name: _other(name, values, len(sweep)) for name, values in others.items()}
        store = self._begun(sweep, columns, floats)
        store._check_columns(sweep, columns)
        contents = _contents(sweep, columns)
        batch = batch or contents[:16]
        with full_disk(part_path(self.path, batch), batch):
            part = part_there(self.path, batch, contents) or store._write(
                sweep, batch, contents, columns
            )
        parts = {one.batch: one for one in (*self.parts, part)}
        return replace(store, parts=tuple(parts[name] for name in sorted(parts)))

    def _begun(
        self, sweep: Sweep, others: Mapping[str, Array], floats: Sequence[str]
    ) -> SweepStore:
        """The store with the head in its folder; the first batch makes this head."""
        path = self.path / HEAD
        if not path.is_file():
            head = Head.of(sweep, others, floats)
            _check_kinds("parameters", head.kinds)
            with full_disk(path, "0"):
                write_head(
                    self.path,
                    {
                        "words": head.words,
                        "parameters": head.parameters,
                        "others": head.others,
                        "texts": head.texts,
                    },
                )
        return replace(self, head=Head.read(path))

    def _check_columns(self, sweep: Sweep, others: Mapping[str, Array]) -> None:
        """Raise ValueError for a sweep with other columns, target, chip, block or provenance than
        the store has."""
        head, new = self.head, Head.of(sweep, others, ())
        refuse_if(
            new.words != head.words, self.path, plural(new.words, "word"), f"are {head.words}"
        )
        for what in ("parameters", "others"):
            have, got = getattr(head, what), getattr(new, what)
            names = [*{*have} ^ {*got}]
            wrong = ", ".join(names)
            refuse_if(names, f"{self.path}: {what}", f"{wrong} not in both", "are the store's")
            for name, kind in have.items():
                other = got[name] != kind and (kind, got[name]) != ("float64", "int64")
                refuse_if(
                    other,
                    f"{self.path}: {name}",
                    got[name],
                    f"is {kind}; floats=[{name!r}] at the first batch makes it float64",
                )
        for name in ("target", "chip", "block", "provenance"):
            mine, other = head.texts.get(name, ""), getattr(sweep, name)
            refuse_if(mine != other, f"{self.path}: {name}", repr(other), f"is {mine!r}")

    def _write(self, sweep: Sweep, batch: str, contents: str, others: Mapping[str, Array]) -> Part:
        with hidden_folder(self.path) as folder:
            made = folder / (batch + SUFFIX)
            connection = _connected()
            rows = {}
            for number, name in enumerate(self.head.word_columns):
                rows[name] = np.ascontiguousarray(sweep.words[:, number])
            for name, kind in self.head.parameters.items():
                rows[name] = sweep.parameters[name].to_numpy(kind)
            connection.register("rows", pd.DataFrame({**rows, **others}, copy=False))
            casts = [*self.head.word_columns]
            for name, kind in self.head.kinds.items():
                casts.append(f"cast({_quoted(name)} as {KINDS[kind]}) as {_quoted(name)}")
            connection.execute(
                f"copy (select {', '.join(casts)} from rows) to {_text(made)} "
                "(format parquet, compression zstd, row_group_size 131072, use_tmp_file false)"
            )
            connection.close()
            with made.open("rb") as file:
                os.fsync(file.fileno())
            size = made.stat().st_size
            part = Part(batch, len(sweep), size, file_sum(made), contents)
            return keep_part(self.path, made, part)

    def write_buffer(self, data: bytes) -> str:
        """Write bytes beside the parts and return their sha256, by which ``buffer`` finds them; the
        same bytes are written once."""
        with full_disk(self.path, "of buffers"):
            return write_buffer(self.path, data)

    def buffer(self, name: str) -> bytes:
        """The bytes with this sha256 that ``write_buffer`` wrote; raises LookupError if there are
        none."""
        return read_buffer(self.path, name)

    def check(self) -> None:
        """Raise ValueError, which names the file, for the first part with another sha256 than
        stated."""
        for part in self.parts:
            check_part(self.path, part)


def open_store(path: str | os.PathLike[str]) -> SweepStore:
    """The store in a folder; an empty or missing folder becomes a store when the first batch is
    appended.

    Raises ValueError (file, what, got, allowed) for any other folder, a store of another version,
    and a part without its checksum.
    """
    need_path("open_store", path)
    path = Path(path)
    if is_store(path):
        return SweepStore(path, Head.read(path / HEAD), read_parts(path))
    new = not path.exists() or (path.is_dir() and not any(_not_hidden(path)))
    refuse_if(not new, path, "no store", f"is a folder with {HEAD}, or a new one")
    return SweepStore(path, Head(0, {}, {}, {}), ())


def _not_hidden(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if not path.name.startswith("."):
            yield path


def is_store(path: str | os.PathLike[str]) -> bool:
    """True if a path is a folder with the head of a store."""
    return (Path(path) / HEAD).is_file()


def opened_sweep(path: str | os.PathLike[str]) -> Sweep | SweepStore:
    """If the path holds a store, the store, without reading its captures; else the sweep at the
    path, read by ``load_sweep``."""
    if is_store(path):
        return open_store(path)
    return load_sweep(path)


def new_store(sweep: Sweep, path: Path) -> Path:
    """Write a sweep as a new store, whole or not at all, and return its path."""
    refuse_if(path.exists(), path, "a path that exists", "is a new path", FileExistsError)
    path.parent.mkdir(parents=True, exist_ok=True)
    with hidden_folder(path.parent) as folder, named_as(path):
        store = open_store(folder / path.name)
        for number, start in enumerate(range(0, len(sweep), MOST_ROWS)):
            store = store.append(sweep[start : start + MOST_ROWS], f"{number:06}")
        store.path.rename(path)
    return path


def _check_batch(sweep: object, batch: object) -> None:
    need("append", sweep, Sweep, "is a Sweep, as npulab.load_sweep gives")
    assert isinstance(sweep, Sweep)
    refuse_if(not len(sweep), "append", "a sweep of no captures", "is one or more")
    refuse_if(
        len(sweep) > MOST_ROWS,
        "append",
        f"{len(sweep)} captures",
        f"are {MOST_ROWS} in a batch; append(sweep[:{MOST_ROWS}], 'a') takes a part",
    )
    need("append: batch", batch, str, "is the name of a batch")
    wrong = batch and not BATCH.fullmatch(str(batch))
    refuse_if(wrong, "batch", repr(batch), "are letters, digits, '.', '-' and '_', at most 100")


def _other(name: str, values: Any, rows: int) -> Array:
    column = np.asarray(values)
    got = f"{column.dtype} of shape {column.shape}"
    right = column.shape == (rows,) and column.dtype.kind in "biufUO"
    refuse_if(not right, f"append: {name}", got, f"are {rows} numbers or texts")
    if column.dtype.kind in "biu":
        return column.astype(np.int64)
    if column.dtype.kind == "f":
        return column.astype(np.float64)
    return column.astype(str).astype(object)


def _kind(values: Array) -> str:
    if values.dtype == object:
        return "text"
    return str(values.dtype)


def _contents(sweep: Sweep, others: Mapping[str, Array]) -> str:
    """The sha256 of the values of a batch: words, parameters and other columns."""
    sums = hashlib.sha256(str(sweep.words.shape).encode())
    sums.update(np.ascontiguousarray(sweep.words, "<u4").data)
    for name, column in sweep.parameters.items():
        sums.update(name.encode() + np.ascontiguousarray(column.to_numpy("<f8")).tobytes())
    for name, values in others.items():
        data = "\0".join(map(str, values)).encode()
        sums.update(name.encode() + data)
    return sums.hexdigest()


def _field_column(item: Field) -> str:
    """The raw value of a field as an expression of SQL."""
    terms = []
    for piece in item.pieces:
        mask = 2**piece.width - 1
        scale = 2**piece.at
        terms.append(f"((w{piece.word} // {2**piece.lsb}) & {mask}) * {scale}::UBIGINT")
    return " + ".join(terms)


def _duckdb() -> Any:
    return needed("duckdb", "a store of captures")


def _connected() -> Any:
    """A new connection, which fetches no extensions and sees no variables of the program."""
    settings = {
        "threads": THREADS,
        "memory_limit": MEMORY,
        "python_enable_replacements": False,
        "autoinstall_known_extensions": False,
    }
    connection = _duckdb().connect(config=settings)
    connection.execute("set enable_progress_bar = false")
    return connection


def _said(error: Exception) -> str:
    """The first line of what DuckDB says of an error."""
    return str(error).split("\n", 1)[0]


def _quoted(name: str) -> str:
    inner = name.replace('"', '""')
    return f'"{inner}"'


def _text(value: object) -> str:
    inner = str(value).replace("'", "''")
    return f"'{inner}'"
