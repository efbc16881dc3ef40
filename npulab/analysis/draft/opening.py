"""New drafts: from a file, a map, a table, a capture, or from words that have no names yet."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from npulab.analysis.draft import disk
from npulab.analysis.draft.sheet import Sheet
from npulab.analysis.draft.state import SUFFIX, Draft
from npulab.analysis.draft.table import MapTable
from npulab.captures.capture import Capture
from npulab.captures.writes import rows_of_writes
from npulab.registers.fields import WORD_BITS, WORD_BYTES
from npulab.registers.formats.formats import read_map
from npulab.registers.formats.tables import MOST_ROWS, RegisterTable
from npulab.registers.map import RegisterMap, need_features
from npulab.registers.names import blocks_by_address, run_of
from npulab.registers.table import ENUMS, MOST_WORDS, REQUIRED, enums_beside
from npulab.support.refuse import need, refusing

DraftSource = (
    str
    | os.PathLike[str]
    | RegisterMap
    | RegisterTable
    | int
    | Capture
    | Sequence[Mapping[str, Any]]
    | Sequence[Sequence[int]]
)


@refusing()
def draft(
    source: DraftSource, *, features: Iterable[str] = (), dense: bool | None = None, block: str = ""
) -> Draft:
    """Return a draft of a register map.

    ``source`` is a path of a table; a map; a table; rows of a table, as mappings; the number of
    words of ``block``, which get no names; writes (offset, value), whose registers the draft gets;
    or a capture, of which it gets the registers of the jobs of ``block`` (by default the block of
    the main job).

    ``features`` are the features of the chip that the draft describes; a draft of a map has the
    map's features, and its rows need none. ``dense`` is as for ``RegisterMap``; by default a draft
    of a ``.csv`` file or of a number of words is dense, a draft of a map is as dense as the map,
    and all other drafts are sparse. An edit of a field of an array changes the field in all copies
    of the register. Raises ValueError with file and line for a broken table, FileNotFoundError if
    there is no file.

    >>> draft(34, block="NN")
    Draft(NN: 34 words, 0 steps, not saved)
    """
    features = need_features("draft", features)
    need("draft: block", block, str, "is the name of a block")
    if isinstance(source, RegisterMap):
        if dense is None:
            dense = source.dense
        rows = _rows_of_map(source)
        table = RegisterTable.of(rows, source.enums, by_address=source.by_address)
        return _of_table(table, source.features, dense)
    if isinstance(source, int):
        if not 0 < source <= MOST_WORDS // 4:
            raise ValueError(f"draft: got {source} words, allowed is 1 to {MOST_WORDS // 4}")
        row = {"block": block, "lsb": 0, "width": WORD_BITS, "evidence": "unknown"}
        rows = [{**row, "offset": word * WORD_BYTES} for word in range(source)]
        return _of_table(RegisterTable.of(rows), features, dense is not False)
    if isinstance(source, Capture):
        return _of_capture(source, features, dense, block)
    if isinstance(source, list | tuple):
        return _of_table(RegisterTable.of(_listed(source, block)), features, bool(dense))
    if isinstance(source, RegisterTable):
        return _of_table(source, features, bool(dense))
    need(
        "draft",
        source,
        (str, os.PathLike),
        "is a path, a map, a table, a Capture, writes, or how many words",
    )
    path = Path(source)  # type: ignore[arg-type]  # a list or tuple was returned above
    data = disk.read(path)
    if data is None:
        raise FileNotFoundError(f"{path}: there is no such file")
    if path.suffix != SUFFIX:
        return _of_table(read_map(path), features, bool(dense))
    return _of_file(path, data, frozenset(features), dense)


def _listed(source: Sequence[Any], block: str) -> Sequence[Mapping[str, Any]]:
    if source and all(isinstance(row, Mapping) for row in source):
        return source
    if not source or not all(map(_is_write, source)):
        raise ValueError(
            f"draft: got {source!r:.60}, allowed are rows with {', '.join(REQUIRED)}, or writes "
            "(offset, value)"
        )
    return rows_of_writes(source, block)


def _is_write(row: Any) -> bool:
    if not isinstance(row, tuple | list) or len(row) not in (2, 3):
        return False
    if not all(isinstance(number, int) for number in row):
        return False
    return row[0] >= 0 and row[0] % WORD_BYTES == 0


def _of_capture(capture: Capture, features: Iterable[str], dense: bool | None, block: str) -> Draft:
    block = block or capture.jobs[capture.main].block
    if block in capture.maps:
        return draft(capture.maps[block], dense=dense)
    jobs = [job for job in capture.jobs if job.block == block]
    if not jobs:
        raise ValueError(
            f"draft: got block {block!r}, allowed with {capture.name} is one of "
            f"{', '.join(dict.fromkeys(job.block for job in capture.jobs))}"
        )
    writes: list[Any] = []
    for job in jobs:
        writes += job.writes
    return draft(writes or len(jobs[0].words), features=features, dense=dense, block=block)


def _of_table(table: RegisterTable, features: Iterable[str], dense: bool) -> Draft:
    enums = table.enums_csv()
    return Draft(MapTable(Sheet.parse(table.csv()), Sheet.parse(enums), frozenset(features), dense))


def _of_file(path: Path, data: bytes, features: frozenset[str], dense: bool | None) -> Draft:
    beside = enums_beside(path) or path.parent / ENUMS
    files = {path: data, beside: disk.read(beside)}
    sheets = {file: Sheet.parse(disk.text_of(file, held or b"")) for file, held in files.items()}
    got = ""
    if beside == path:
        got = "a table of enums"
    for name in reversed(REQUIRED):
        if name not in sheets[path].names:
            got = f"no column {name!r}"
    if got:
        raise ValueError(
            f"{path}: got {got}, allowed is a table of fields with {', '.join(REQUIRED)}"
        )
    for file, sheet in sheets.items():
        if sheet.records > MOST_ROWS:
            raise ValueError(f"{file}: got {sheet.records} rows, allowed are at most {MOST_ROWS}")
        try:
            _ = sheet.rows
        except ValueError as error:
            raise ValueError(f"{file}, {error}") from None
        double = [name for place, name in enumerate(sheet.names) if name in sheet.names[:place]]
        if double:
            raise ValueError(f"{file}: got column {double[0]!r} twice, allowed is each column once")
    try:
        return Draft(
            MapTable(sheets[path], sheets[beside], features, dense is not False), path, files
        )
    except (ValueError, LookupError) as error:
        raise ValueError(f"{path}: {error}") from None


def _rows_of_map(registers: RegisterMap) -> list[dict[str, Any]]:
    """Return rows from which a reader of tables makes the same map, although it does not know the
    map's features, if the map is dense, or which blocks have addresses.

    They are the rows that the map was made of, and a row without a name for each word in which
    those rows have no bits. An automatic name is left blank if the reader gives the bits the same
    name.
    """
    own = set()
    for item in registers:
        if item.declared:
            own |= {(piece.word, piece.lsb) for piece in item.pieces}
    known = {word for word, _ in own}
    named = []
    blank = []
    for record in registers.fields.to_dict("records"):
        row: dict[str, Any] = {**record, "feature": "", "align": record["align"] or ""}
        named.append(row)
        if _by_place(row):
            row = {**row, "field": ""}
        blank.append(row)
    # in these blocks a reader would take the offsets of words for addresses
    mistaken = blocks_by_address(blank) - registers.by_address
    out = []
    for row, bare in zip(named, blank, strict=True):
        if row["block"] in mistaken:
            out.append(row)
        elif row["word"] not in known or (row["word"], row["lsb"]) in own:
            out.append(bare)
    return out


def _by_place(row: Mapping[str, Any]) -> bool:
    """True if a row of a map has only the automatic name of its place, such as w18_27_2."""
    return run_of(row["field"]) == (row["offset"], row["lsb"], row["width"])
