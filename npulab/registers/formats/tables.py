"""npulab's own table of a register map: rows of fields, its enums, and its copyright."""

from __future__ import annotations

import csv
import io
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import takewhile
from pathlib import Path

from npulab.registers.expansion import SHAPE, SPARSE, expanded, shaped, sparse_blocks
from npulab.registers.fields import Codes, Enums, NewCodes, NewEnums, Row
from npulab.registers.map import RegisterMap
from npulab.registers.meaning import Meaning
from npulab.registers.names import blocks_by_address
from npulab.registers.numbers import sums_in
from npulab.registers.table import (
    ACCESS,
    COLUMNS,
    REQUIRED,
    add_enum,
    enums_beside,
    line_of,
    plain_row,
    refuse_odd,
)
from npulab.support.cells import guarded, guarded_comment, unguarded_comment
from npulab.support.files import bare_row, read_bounded, text_of
from npulab.support.refuse import refuse_if, refusing
from npulab.support.text import plural

ENUM_COLUMNS = ("enum", "raw", "name")
COMMENT = "#"
MOST_BYTES = 2**25  # a table has at most so many bytes
MOST_ROWS = 2**17  # a table has at most so many rows
PLACES = ("block", "offset", "lsb", "width")  # the columns that say where the bits of a row are


@dataclass(frozen=True)
class Reading:
    """What a reader of C says of a file. ``lines`` is the number of its lines of code, and
    ``explained`` how many of them are explained. ``lost`` has what is lost, each as (kind, name,
    where, why). ``unexplained`` has lines that nothing explains, each as (where, text)."""

    lines: int
    explained: int
    lost: tuple[tuple[str, str, str, str], ...] = ()
    unexplained: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        counts = Counter(kind for kind, *_ in self.lost)
        text = f"{self.explained} of {self.lines} lines explained"
        lost = ", ".join(plural(count, kind) for kind, count in counts.items())
        if lost:
            text += f"; lost: {lost}"
        return text


@dataclass(frozen=True)
class RegisterTable:
    """A register map as rows, with its enums and its copyright text.

    ``rows`` have the columns of ``registers.table``, without blank cells, and with numbers as int.
    ``enums`` has the names of each enum by raw number. ``reading`` is what a reader of C says of
    its file. ``by_address`` are the blocks whose registers have addresses (``registers.names``).

    Rows are sorted by block, in the order in which the blocks first appear, then by offset, feature
    and lowest bit, so that the order within a block does not matter if two tables are compared.

    >>> RegisterTable.of([{"register": "CFG", "field": "stride", "lsb": "4", "width": "3"}]).rows
    ({'offset': 0, 'register': 'CFG', 'field': 'stride', 'lsb': 4, 'width': 3},)
    """

    rows: tuple[Row, ...]
    enums: Enums = field(default_factory=dict)
    copyright: str = ""
    reading: Reading | None = field(default=None, compare=False, repr=False)
    by_address: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    @classmethod
    def of(
        cls,
        rows: Iterable[Row],
        enums: Enums | None = None,
        copyright: str = "",  # noqa: A002
        by_address: Collection[str] | None = None,
        sparse: Collection[str] = (),
    ) -> RegisterTable:
        """Return the table of rows. Each text is put on one line, except the copyright. An enum
        without names is left out, and fields that have it get a blank value.

        ``by_address`` are the blocks whose registers have addresses. By default,
        ``registers.names`` decides from these rows and from ``sparse``, which are blocks that have
        addresses in any case. Raises ValueError for a malformed number or value, for a row without
        ``lsb`` or ``width``, for a blank name of an enum, and for a character that is not text,
        such as U+0000.
        """
        named, gone = {}, set()
        for name, names in sorted((enums or {}).items()):
            if names:
                named[name] = _enum_lines(name, names)
            else:
                gone.add(f"enum:{name}")
        plain: list[Row] = []
        blocks: dict[str, int] = {}
        for row in rows:
            if row.get("value") in gone:
                row = {**row, "value": ""}
            plain.append(_canonical_row(row))
            blocks.setdefault(plain[-1].get("block", ""), len(blocks))
        lines = map(str.strip, copyright.replace("\t", " ").splitlines())
        said = "\n".join(lines).strip("\n")
        refuse_odd(said.replace("\n", " "), "copyright")

        def place(row: Row) -> tuple[int, int, str, int]:
            block = blocks[row.get("block", "")]
            return block, row["offset"], row.get("feature", ""), row["lsb"]

        plain.sort(key=place)
        if by_address is None:
            by_address = blocks_by_address(plain, sparse)
        return cls(tuple(plain), named, said, by_address=frozenset(by_address))

    @property
    def features(self) -> list[str]:
        """Every feature of the rows, sorted."""
        return features_in(self.rows)

    @cached_property
    def blocks(self) -> Mapping[str, list[Row]]:
        """The rows of each block, by the block's name."""
        out: dict[str, list[Row]] = {}
        for row in self.rows:
            out.setdefault(row.get("block", ""), []).append(row)
        return out

    @property
    def registers(self) -> list[tuple[str, int, str]]:
        """(block, offset, register) of each register, in the order of the rows."""
        keys = ((row.get("block", ""), row["offset"], row.get("register", "")) for row in self.rows)
        return [*dict.fromkeys(keys)]

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of blocks, registers, fields, enums and bits. A split field counts once; each
        row without a field's name counts as a field."""
        split = [row for row in self.rows if "at" in row and row.get("field")]
        fields = {(row.get("block"), row["field"]) for row in split}
        return {
            "blocks": len({block for block, _, _ in self.registers}),
            "registers": len(self.registers),
            "fields": len(self.rows) - len(split) + len(fields),
            "enums": len(self.enums),
            "bits": sum(row["width"] for row in self.rows),
        }

    def map(self, features: Iterable[str] = ()) -> RegisterMap:
        """Return the register map (not dense) of a chip with these features; raises as
        ``RegisterMap``."""
        rows = ({"field": "", **row} for row in self.rows)
        return RegisterMap(
            rows, features=features, enums=self.enums, dense=False, by_address=self.by_address
        )

    @refusing()
    def check(self) -> None:
        """Raise ValueError or LookupError if no map can be made of the rows without a feature, or
        of a block for any of its features alone."""
        self.map()
        for rows in self.blocks.values():
            for feature in features_in(rows):
                RegisterTable(tuple(rows), self.enums, by_address=self.by_address).map([feature])

    def csv(self) -> str:
        """Return the rows as the text of a table that ``RegisterMap.read`` reads. The copyright
        stands in comments at the beginning. If a block has addresses and nothing else in the table
        says so, a row says that the block is ``sparse``."""
        plain = [{name: row[name] for name in PLACES if name in row} for row in self.rows]
        unsaid = self.by_address - blocks_by_address(plain)
        rows: list[Row] = []
        for block in self.blocks:
            if block and block in unsaid:
                rows.append({"block": block, "offset": 0, "value": SPARSE})
        text = ""
        for line in self.copyright.splitlines():
            text += f"{COMMENT} {guarded_comment(line)}".rstrip() + "\n"
        rows += self.rows
        return text + table_text(
            COLUMNS, [{**row, "offset": f"{row['offset']:#06x}"} for row in rows]
        )

    def enums_csv(self) -> str:
        """Return the enums as the text of ``enums.csv``; blank if there are none."""
        rows = []
        for name, names in self.enums.items():
            rows += [{"enum": name, "raw": hex(raw), "name": text} for raw, text in names.items()]
        if rows:
            return table_text(ENUM_COLUMNS, rows)
        return ""

    def said(self, far: bool | None = True) -> dict[str, bool]:
        """Return the blocks for which a file must say whether their registers have addresses,
        because a reader of the file would assume the opposite; a value is True if they have.

        ``far`` is True for a format of registers, whose readers assume addresses if no name says
        otherwise; None for npulab's table and C, whose readers decide by the offsets of the blocks
        (``blocks_by_address``)."""
        odd = self.by_address ^ blocks_by_address(self.rows, far=far)
        return {block: block in self.by_address for block in self.blocks if block in odd}

    @classmethod
    def of_said(
        cls,
        rows: Sequence[Row],
        enums: Enums,
        copyright: str,  # noqa: A002
        said: Mapping[str, bool],
        far: bool | None = True,
    ) -> RegisterTable:
        """Return the table of a file that says for some blocks whether their registers have
        addresses: ``said`` and ``far`` are as in the method ``said``. Raises as ``of``."""
        by_address = blocks_by_address(rows, far=far) - said.keys()
        by_address |= {block for block, has_addresses in said.items() if has_addresses}
        return cls.of(rows, enums, copyright, by_address)


def _enum_lines(enum: str, names: Codes) -> NewCodes:
    """Return the names of an enum, each on one line, in the rising order of their raw numbers;
    raises ValueError for a blank name."""
    out = {}
    for raw, name in sorted(names.items()):
        out[raw] = line_of(name, f"enum {enum}")
        # a reader of the written table would refuse the row
        refuse_if(
            not out[raw], f"enum {enum}", f"the blank name {name!r} for raw {raw}", "is a name"
        )
    return out


def features_in(rows: Iterable[Row]) -> list[str]:
    """Return every feature of some rows, sorted."""
    return sorted({row["feature"] for row in rows if "feature" in row})


def read_csv(path: Path) -> RegisterTable:
    """Return the table in a file ``NAME.csv``. Its enums are read from ``NAME.enums.csv`` beside it
    or, if that does not exist, from ``enums.csv``.

    Arrays, and registers that do not have 32 bits, become plain rows of words. Rows that say where
    a block lies are left out, with a UserWarning. Raises ValueError, with the file and in most
    cases the line, for a row that is not a field, and for a sum in ``lsb`` or ``width``, which only
    the map of a target can have.
    """
    copyright_, rows = _numbered_rows(path)
    allowed = f"is a table of fields with {', '.join(REQUIRED)}"
    refuse_if(not rows, path, "no row", allowed)
    for name in REQUIRED:
        refuse_if(name not in rows[0][1], path, f"no column {name!r}", allowed)
    known = (*COLUMNS, *SHAPE, ACCESS, "word")
    for name in rows[0][1]:  # the first line names the columns of all rows
        where = f"{path}, line {rows[0][0]}"
        refuse_if(name not in known, where, f"column {name!r}", f"are {', '.join(known)}")
    for line, row in rows:
        for _, column in sums_in([row]):
            raise ValueError(
                f"{path}, line {line}: field {row['field']!r:.60}: got {column} "
                f"{row[column]!r:.60}, allowed is a whole number, because a sum needs numbers "
                "of a chip, which only a target has"
            )
    plain: list[Row] = []
    blocks: Sequence[Row] = ()
    # an expanded row has no line of its own, so the error names only the file
    if shaped(row for _, row in rows):
        with refusing(path):
            words, blocks = expanded(row for _, row in rows)
            plain += map(_canonical_row, words)
    else:
        for line, row in rows:
            with refusing(f"{path}, line {line}"):
                plain.append(_canonical_row(row))
    if placed := [str(row["block"]) for row in blocks if _says_place(row)]:
        names = ", ".join(dict.fromkeys(placed))
        warnings.warn(
            f"{path}: not carried over: where the blocks lie and repeat ({names})", stacklevel=3
        )
    enums = {}
    if beside := enums_beside(path):
        enums = _enums(beside)
    return RegisterTable.of(plain, enums, copyright_, sparse=sparse_blocks(blocks))


def _says_place(row: Row) -> bool:
    """True if a row about a block says more than that the block is sparse."""
    said = {name: value for name, value in row.items() if value not in ("", None)}
    offset = int(str(said.pop("offset", 0)), 0)
    return bool(offset) or said != {"block": row["block"], "value": SPARSE}


def _enums(path: Path) -> NewEnums:
    """Return the enums in a file of enums; errors name file and line."""
    out: NewEnums = {}
    for line, row in _numbered_rows(path)[1]:
        with refusing(f"{path}, line {line}"):
            add_enum(out, row)
    return out


def _numbered_rows(path: Path) -> tuple[str, list[tuple[int, dict[str, str]]]]:
    """Return the comments at the beginning of a table, and (number of the line, row) for each row;
    raises ValueError, with file and line, for text that is not such a table."""
    lines = [*enumerate(text_of(read_bounded(path, MOST_BYTES), path).splitlines(), 1)]
    said = [(n, line) for n, line in lines if line.strip()]
    head = [*takewhile(lambda line: line.startswith(COMMENT), (line for _, line in said))]
    kept = [(n, line) for n, line in said if not line.startswith(COMMENT)]
    table = csv.DictReader(line for _, line in kept)
    out: list[tuple[int, dict[str, str]]] = []
    try:
        for row in table:
            line = kept[min(table.line_num, len(kept)) - 1][0]
            bare_row(row)
            if None in row or None in row.values() or len(out) >= MOST_ROWS:
                raise ValueError(
                    f"{path}, line {line}: got a row of other columns than the first line, or more "
                    f"than {MOST_ROWS} rows, allowed is one value for each column, and at most "
                    f"{MOST_ROWS} rows"
                )
            out.append((line, row))
    except csv.Error as error:
        raise ValueError(
            f"{path}: got text that is not CSV ({error}), allowed is a table"
        ) from None
    comments = (unguarded_comment(line.removeprefix(COMMENT).removeprefix(" ")) for line in head)
    return "\n".join(comments), out


def _canonical_row(row: Row) -> Row:
    """Return the cells of a row that are not blank, with the value as ``Meaning`` writes it; raises
    ValueError for a malformed cell and for a row without ``lsb`` or ``width``."""
    if value := row.get("value"):
        row = {**row, "value": _value(" ".join(str(value).split()))}
    out = plain_row(row)
    for name in ("lsb", "width"):
        refuse_if(name not in out, f"field {row.get('field')!r}", f"no {name}", "is a whole number")
    return out


@cache
def _value(text: str) -> str:
    """Return a value column as ``Meaning`` writes it."""
    return str(Meaning.parse(text))


def table_text(columns: Iterable[str], rows: Iterable[Row]) -> str:
    """Return a table as CSV: a line with the names of the columns, and a line for each row. A
    missing cell is blank, and no spreadsheet reads a cell as a formula."""
    out = io.StringIO()
    table = csv.DictWriter(out, [*columns], restval="", lineterminator="\n")
    table.writeheader()
    for row in rows:
        texts = {name: guarded(text) for name, text in row.items() if isinstance(text, str)}
        table.writerow({**row, **texts})
    return out.getvalue()
