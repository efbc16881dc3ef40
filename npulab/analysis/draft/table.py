"""The tables of a draft at one moment: the sheet of its fields, the sheet of its enums, and the map
that the two make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from npulab.analysis.draft.sheet import Sheet
from npulab.registers.expansion import SHAPE, expanded, is_block, shaped, sparse_blocks
from npulab.registers.fields import WORD_BITS, Field
from npulab.registers.formats.tables import COMMENT, ENUM_COLUMNS, RegisterTable
from npulab.registers.map import RegisterMap
from npulab.registers.names import REGISTER, run_of
from npulab.support.cells import unguarded_comment

HEAD = ",".join(ENUM_COLUMNS) + "\n"
# Numbers of a column are spelled like this if the table has no row yet.
NEW_CELLS = {"offset": "0x00"}


class BitRun(NamedTuple):
    """A run of bits: the block and the offset of its register (of an array: of the first register),
    ``lsb`` in the register, ``width``, and ``at``, its place in the value of a split field (None if
    the field is not split).
    """

    block: str
    offset: int
    lsb: int
    width: int
    at: int | None = None


@dataclass(frozen=True)
class MapTable:
    """A register map as a sheet of rows and a sheet of enums, for a chip with some features.

    An edit returns another table; if that makes no map, the error comes when its ``map`` is read.
    """

    sheet: Sheet
    enums: Sheet
    features: frozenset[str] = frozenset()
    dense: bool = True

    @cached_property
    def map(self) -> RegisterMap:
        """The map; raises ValueError or LookupError as ``RegisterMap`` does."""
        return self.select(self.features)

    @property
    def bare(self) -> MapTable:
        """The same table without cached values, such as its map."""
        return replace(self, sheet=replace(self.sheet), enums=replace(self.enums))

    def select(self, features: Iterable[str]) -> RegisterMap:
        """Return the map of a chip with these features."""
        return RegisterMap(
            self.sheet.rows.values(), features=features, enums=self.names, dense=self.dense
        )

    @cached_property
    def names(self) -> dict[str, dict[int, str]]:
        """By the name of an enum: its names by raw number. Raises ValueError, with the line, for a
        bad row.
        """
        out: dict[str, dict[int, str]] = {}
        for key, row in self.enums.rows.items():
            names = out.setdefault(row.get("enum", ""), {})
            raw = _whole_number(row.get("raw", ""))
            name = row.get("name", "")
            twice = raw in names or name in names.values()
            if twice or raw < 0 or not name or not row.get("enum"):
                line = 1 + self.enums.place(key)
                raise ValueError(
                    f"enums, line {line}: got {row}, allowed is enum, raw and name, all filled in, "
                    "each raw and each name once"
                )
            names[raw] = name
        return out

    @cached_property
    def rows(self) -> dict[int, dict[str, str]]:
        """The rows of fields by key, without the rows that state where blocks lie."""
        return {key: row for key, row in self.sheet.rows.items() if not is_block(row)}

    @cached_property
    def wanted(self) -> list[str]:
        """All features that rows name in their column ``feature``, sorted."""
        return sorted({row["feature"] for row in self.sheet.rows.values() if row.get("feature")})

    @property
    def register_table(self) -> RegisterTable:
        """The table as a ``RegisterTable`` of ``npulab.registers.formats``, with the comments at
        its head.
        """
        head = []
        for line in self.sheet.lines:
            if not line.text.startswith(COMMENT):
                break
            comment = line.text.strip().removeprefix(COMMENT).removeprefix(" ")
            head.append(unguarded_comment(comment))
        words, blocks = expanded(self.sheet.rows.values())
        return RegisterTable.of(words, self.names, "\n".join(head), sparse=sparse_blocks(blocks))

    # ---- looking things up ----

    @cached_property
    def runs(self) -> dict[int, BitRun]:
        """The run of bits of each row, by the row's key. Rows that need a feature that this table
        does not have are left out.
        """
        runs = {}
        for key, row in self.rows.items():
            if not row.get("feature") or row["feature"] in self.features:
                block, offset = self.place_of(row)
                lsb = number(row, "lsb") or 0
                width = number(row, "width") or 0
                runs[key] = BitRun(block, offset, lsb, width, number(row, "at"))
        return runs

    @cached_property
    def _keys(self) -> dict[tuple[str, int, int], int]:
        """By (block, offset of a word, lowest bit in the word): the key of the row; the row of an
        array is there for each word of the array.
        """
        keys = {}
        for key in self.runs:
            for part in expanded([self.rows[key]])[0]:
                keys[*self.place_of(part), number(part, "lsb") or 0] = key
        return keys

    @cached_property
    def arrays(self) -> dict[tuple[str, int], str]:
        """The names of registers that are arrays or not exactly one word, by block and offset."""
        names = {}
        for key, run in self.runs.items():
            if shaped([self.rows[key]]):
                names[run[:2]] = self.rows[key]["register"]
        return names

    @cached_property
    def _parts(self) -> dict[tuple[str, int], list[tuple[int, int, BitRun]]]:
        """By (block, offset of a word): the runs of the word that belong to registers of
        ``arrays``, as (lowest bit, end, place of the lowest bit in that register).
        """
        out: dict[tuple[str, int], list[tuple[int, int, BitRun]]] = {}
        for key, run in self.runs.items():
            if run[:2] in self.arrays:
                bits = number(self.rows[key], "bits") or WORD_BITS
                whole = {"field": "whole", "lsb": "0", "width": str(bits), "at": "0"}
                for part in expanded([{**self.rows[key], **whole}])[0]:
                    lsb, end = part["lsb"], part["lsb"] + part["width"]
                    first = BitRun(*run[:2], part["at"], 0)
                    out.setdefault(self.place_of(part), []).append((lsb, end, first))
        return out

    def home(self, run: BitRun) -> BitRun:
        """Return a run of bits of a word as a run of the register in ``arrays`` to which the bits
        belong; a run of bits that belong to no such register is returned as it is.
        """
        for lsb, end, first in self._parts.get(run[:2], ()):
            if lsb <= run.lsb and run.lsb + run.width <= end:
                return first._replace(lsb=first.lsb + run.lsb - lsb, width=run.width)
        return run

    def place(self, word: int) -> tuple[str, int]:
        """Return the block and offset of a word of the map."""
        block, offset, _ = self.map.registers[word]
        return block, offset

    def runs_of(self, item: Field) -> list[BitRun]:
        """Return the runs of a field from the low end of its value."""
        if item.declared:
            return [self.runs[key] for key in self.keys_of(item)]
        runs = []
        for piece in item.pieces:
            block, offset = self.place(piece.word)
            run = BitRun(block, offset, piece.lsb, piece.width)
            runs.append(self.home(run))
        return runs

    def keys_of(self, item: Field) -> list[int]:
        """Return the keys of a field's rows, from the low end of its value; none for bits without a
        row.
        """
        places = [(*self.place(piece.word), piece.lsb) for piece in item.pieces if item.declared]
        return [*dict.fromkeys(map(self._keys.__getitem__, places))]

    # ---- changing rows ----

    def changed(self, key: int, values: Mapping[str, Any]) -> MapTable:
        """Return the table with new values in a row; a number is spelled as the cell was before
        (base 16 or 10), and a missing column is added.
        """
        row = self.rows[key]
        if automatic(row) and not {"lsb", "width"}.isdisjoint(values):
            values = {"field": "", **values}
        sheet = self.sheet.with_columns(_filled(values))
        cells = _cells(sheet, values, row)
        return replace(self, sheet=sheet.changed(key, cells))

    def all_changed(self, keys: Iterable[int], values: Mapping[str, Any]) -> MapTable:
        """Return the table with the same values in several rows."""
        table = self
        for key in keys:
            table = table.changed(key, values)
        return table

    def without(self, key: int) -> MapTable:
        """Return the table without a row."""
        return replace(self, sheet=self.sheet.without(key))

    def added(self, run: BitRun, values: Mapping[str, Any]) -> tuple[MapTable, int]:
        """Return the table with a new row, and its key; the row goes next to the rows of its
        neighbours, and its numbers are spelled like theirs.
        """
        values = {"evidence": "unknown", **values, **run._asdict()}
        values["register"] = self.register(run) or values.get("register", "")
        values |= dict.fromkeys(SHAPE, "")
        for row in self.rows.values():
            if self.place_of(row) == run[:2] and shaped([row]):
                values |= {name: row.get(name, "") for name in SHAPE}
                break
        sheet = self.sheet.with_columns(_filled(values))
        place, like = self._neighbour(run)
        model = NEW_CELLS | sheet.rows.get(like, {})
        sheet, key = sheet.inserted(place, _cells(sheet, values, model), like)
        return replace(self, sheet=sheet), key

    def register(self, run: BitRun) -> str:
        """Return the name that a row gives to the register of a run, blank if no row does."""
        for row in self.rows.values():
            if row.get("register") and self.place_of(row) == (run.block, run.offset):
                return row["register"]
        return ""

    def place_of(self, row: Mapping[str, Any]) -> tuple[str, int]:
        """Return the block and offset of a row."""
        return row.get("block", ""), number(row, "offset") or 0

    def _neighbour(self, run: BitRun) -> tuple[int, int]:
        """Return the number of the line before which a new row goes, and the key of the row whose
        spelling it takes over.
        """
        places = {}
        for key, row in self.rows.items():
            block, offset = self.place_of(row)
            places[key] = BitRun(block, offset, number(row, "lsb") or 0, 0)
        if not places:
            return len(self.sheet.lines), next(line.key for line in self.sheet.lines if line.row)
        falling = 0  # pairs of neighbouring rows: those with the higher bits first, less the others
        for before, place in pairwise(places.values()):
            if before[:2] == place[:2]:
                falling += (before.lsb > place.lsb) - (before.lsb < place.lsb)
        step = 1
        if falling > 0:
            step = -1
        order = {key: step * place.lsb for key, place in places.items()}
        of_block = [key for key, place in places.items() if place.block == run.block]
        here = [key for key in of_block if places[key].offset == run.offset]
        earlier = [key for key in here if order[key] < step * run.lsb]
        lower = [key for key in of_block if places[key].offset < run.offset]
        if (here and not earlier) or (of_block and not here and not lower):
            key = min(here or of_block[:1], key=order.__getitem__)
            return self.sheet.place(key), key
        if earlier:
            key = max(earlier, key=order.__getitem__)
        elif lower:
            key = max(reversed(lower), key=lambda key: places[key].offset)
        else:
            key = [*places][-1]
        return self.sheet.place(key) + 1, key

    def laid(
        self,
        keys: Iterable[int],
        runs: Iterable[BitRun],
        values: Mapping[str, Any],
        model: Mapping[str, str] | None = None,
    ) -> MapTable:
        """Return the table with a field's rows moved to other runs; ``keys`` and ``runs`` begin at
        the low end of the field's value.

        A row with a new run in its own register keeps its line; further runs get new rows, and rows
        without a new run are removed. Kept and new rows get ``values``; new rows take their other
        cells, except the note, from ``model``, by default the field's first row.
        """
        table, left = self, [*keys]
        if model is None:
            model = {}
            if left:
                model = self.rows[left[0]]
        more = cells_without_place(model)
        if automatic(model):
            more["field"] = ""
        for run in runs:
            stays = next((key for key in left if self.place_of(self.rows[key]) == run[:2]), None)
            if stays is None:
                table, _ = table.added(run, {**more, "note": "", **values})
            else:
                left.remove(stays)
                table = table.changed(
                    stays, {**values, "lsb": run.lsb, "width": run.width, "at": run.at}
                )
        for key in left:
            table = table.without(key)
        return table

    def cleared(self, run: BitRun) -> tuple[MapTable, str]:
        """Return the table in which rows without a name are cut so that none overlaps ``run``, and
        the feature of the rows that were cut (blank if they have none).
        """
        table, feature = self, ""
        for key, other in self.runs.items():
            row = self.rows[key]
            end = other.lsb + other.width
            low = max(run.lsb, other.lsb)
            high = min(run.lsb + run.width, end)
            if other[:2] != run[:2] or low >= high or not automatic(row):
                continue
            feature = feature or row.get("feature", "")
            below = other._replace(width=low - other.lsb, at=None)
            above = other._replace(lsb=high, width=end - high, at=None)
            rests = [rest for rest in (below, above) if rest.width]
            table = table.laid([key], rests, {})
        return table, feature

    def kept(self, before: RegisterMap) -> MapTable:
        """Return the table with a new row, without a name for its bits, for each register of the
        map ``before`` in which the table has no row any more.
        """
        have = {place[:2] for place in self._keys}
        last = {block: offset for block, offset, _ in before.registers}
        table = self
        sparse = {name for name, repeat in before.repeats.items() if repeat.sparse}
        for block, offset, register in before.registers:
            name = register
            if REGISTER.fullmatch(register):
                name = ""
            if (block, offset) in have:
                continue
            # a dense map has the words between its registers without rows
            if name or not self.dense or block in sparse or last[block] == offset:
                run = BitRun(block, offset, 0, WORD_BITS)
                table, _ = table.added(run, {"register": name})
        return table

    def named(self, enum: str, names: Mapping[int, str]) -> MapTable:
        """Return the table with names (by raw number) in an enum; a blank name removes the name of
        its raw number.
        """
        sheet = self.enums
        if not sheet.lines:
            sheet = Sheet.parse(HEAD)
        sheet = sheet.with_columns(ENUM_COLUMNS)
        for raw, name in names.items():
            keys = {}
            for key, row in sheet.rows.items():
                if row["enum"] == enum:
                    keys[_whole_number(row["raw"])] = key
            if raw in keys:
                if name:
                    sheet = sheet.changed(keys[raw], {"name": name})
                else:
                    sheet = sheet.without(keys[raw])
            elif name:
                # A name goes after the name of the next lower raw value of its enum; if it is the
                # lowest, before all others. The first name of a new enum goes to the end.
                text = str(raw)
                if keys:
                    lower = max((known for known in keys if known < raw), default=min(keys))
                    like = keys[lower]
                    place = sheet.place(like) + (lower < raw)
                    text = _spelled(raw, sheet.rows[like].get("raw", ""))
                else:
                    like = next(line.key for line in reversed(sheet.lines) if line.row)
                    place = sheet.place(like) + 1
                sheet, _ = sheet.inserted(place, {"enum": enum, "raw": text, "name": name}, like)
        return replace(self, enums=sheet)


Edited = tuple[MapTable, str]  # the table after an edit, and the sentence of the edit


def automatic(row: Mapping[str, str]) -> bool:
    """True if a row has no name, or only the automatic name of its place, such as w18_27_2."""
    place = number(row, "offset") or 0, number(row, "lsb") or 0, number(row, "width") or 0
    return not row.get("field") or run_of(row["field"]) == place


def cells_without_place(row: Mapping[str, str]) -> dict[str, str]:
    """Return the cells of a row, without those that state where its bits are."""
    placed = {*BitRun._fields, "word", "register", *SHAPE}
    return {name: text for name, text in row.items() if name not in placed}


def _cells(sheet: Sheet, values: Mapping[str, Any], model: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of ``values`` for the columns that a sheet has; numbers are spelled as in
    the row ``model``.
    """
    cells = {}
    for name, value in values.items():
        if name in sheet.names:
            cells[name] = _spelled(value, model.get(name, ""))
    return cells


def _filled(values: Mapping[str, Any]) -> list[str]:
    """Return the columns that ``values`` need. A blank cell, evidence ``unknown`` and offset 0 need
    no column, because a missing column says the same.
    """
    names = []
    for name, value in values.items():
        usual = (name, value) in (("evidence", "unknown"), ("offset", 0))
        if value not in ("", None) and not usual:
            names.append(name)
    return names


def number(row: Mapping[str, Any], name: str) -> int | None:
    """Return the whole number in a cell of a row, None if the cell is blank."""
    if row.get(name):
        return int(str(row[name]), 0)
    return None


def _whole_number(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        return -1


def _spelled(value: Any, before: str) -> str:
    """Return the text of a cell. A number is written in base 16, with as many digits as in the text
    ``before``, if ``before`` is in base 16.
    """
    if value is None:
        return ""
    if isinstance(value, int) and before[:2].lower() == "0x":
        digits = f"{value:0{len(before) - 2}x}"
        if before[2:].isupper():
            digits = digits.upper()
        return before[:2] + digits
    return str(value)
