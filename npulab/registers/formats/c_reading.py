"""Reader of C: structs with bit-fields, and headers of offsets, shifts and masks. All other text is
ignored.

Facts that C cannot express are read from npulab's annotations, which ``c_writing`` writes. Any
other comment next to a member or macro is its note.
"""

from __future__ import annotations

import re
import warnings
from bisect import bisect_right
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from npulab.registers.fields import Cells, Enums, NewCodes, Row
from npulab.registers.formats.c_annotations import (
    Comments,
    annotation_before,
    annotation_in,
    comments_of,
    span_at,
)
from npulab.registers.formats.c_codes import Named, with_codes
from npulab.registers.formats.c_comments import MARK, licence_in
from npulab.registers.formats.c_dialects import INLINE, tail_of
from npulab.registers.formats.c_fields import Lost
from npulab.registers.formats.c_numbers import constants, plain_values, probes
from npulab.registers.formats.c_registers import (
    Chunk,
    MacroRegisters,
    Rows,
    registers_of_macros,
)
from npulab.registers.formats.c_structs import Layout, Struct, holes, rows_of, twice
from npulab.registers.formats.c_text import ASKED, Source, Unit, Wrong, read_source, read_unit
from npulab.registers.formats.tables import MOST_ROWS, Reading, RegisterTable
from npulab.registers.table import COLUMNS
from npulab.support.refuse import refuse_if, refusing
from npulab.support.text import plural

BEGINS = re.compile(
    rb"\b(?:struct|union|enum)\b[\w\s()]{0,200}\{|^[ \t]*#[ \t]*define[ \t]+\w|"
    rb"\bconst(?:expr)?\s+\w+\s+\w+\s*=",
    re.MULTILINE,
)
HOLDERS = ("ENUM_DECL", "STRUCT_DECL", "UNION_DECL")  # these declarations may contain enumerators
SHOWN = 8  # a sentence of a warning has at most so many names, a warning so many sentences
MOST_MISSING = 40  # the sentence about names declared nowhere has at most so many of them
MOST_SHOWN = 2**10  # a reading lists at most so many unexplained lines


def is_c(head: bytes) -> bool:
    """True if the first bytes of a file contain a struct, union, enum or macro of C.

    >>> is_c(b"As I wrote, struct job { uint32_t a : 1; };"), is_c(b"a struct, a union")
    (True, False)
    """
    return BEGINS.search(head) is not None


def read_c(path: Path, define: Sequence[str] = (), include: Sequence[Path] = ()) -> RegisterTable:
    """Return the registers that a C file describes in structs, in macros, or in both; the table's
    ``reading`` says what was lost.

    ``define`` has ``NAME=VALUE`` for names that other headers define; the files of ``include`` are
    read before this file. Nothing is run, and no other file is opened.

    A UserWarning names what was lost and what is doubtful, such as names of enums that were left
    out, names that are declared nowhere, and silent holes (bits inside a struct that belong to no
    member). Raises ValueError, with file and line, for a file that describes no register and for a
    broken annotation; MissingPackage without libclang (extra ``maps``).
    """
    path = Path(path)
    source = read_source(path, define, [*map(Path, include)])
    try:
        numbers = constants(source.macros)
        source = replace(source, macros={**source.macros, **numbers})
        values = plain_values(numbers)
        unit = read_unit(source, probes(source, numbers, values))
        structs, layout = _structs(unit)
        comments = _member_comments(source, structs)
        values |= unit.values
        macros = registers_of_macros(unit, numbers, values, structs, comments.notes)
    except RecursionError:
        raise ValueError(
            f"{path}: got declarations that are nested too deep, allowed are fewer levels"
        ) from None
    remarks = macros.remarks
    laid = _struct_chunks(source, structs, layout, comments, macros.known, remarks)
    coded = Named((), {}, set())
    # in npulab's own export, annotations say which fields have an enum; in other headers, the names
    # of macros and enums say so
    if not any(name.startswith("NPULAB_") for name in source.macros):
        laid, coded = _coded(laid, macros, values, layout.enums)
    chunks = macros.chunks + laid
    lost = [lost for lost in macros.lost if lost.name not in coded.macros]
    for name, wrong in layout.skipped:
        lost.append(Lost("declaration", name, wrong.position, wrong.text))
    rows: Rows = []
    for chunk in sorted(chunks, key=lambda chunk: chunk.position):
        rows += chunk.rows
    rows = _once(rows)
    unexplained = macros.roles.unexplained.keys() - coded.macros
    reading = _reading(unit, unexplained, [*dict.fromkeys(lost)], layout)
    _refuse_empty(path, rows, reading, unit)
    _warn(path, [*remarks, *layout.lost, *_sentences(reading), *_missing(unit)])
    with refusing(path):
        table = RegisterTable.of_said(
            rows,
            {**layout.enums, **macros.enums, **coded.enums},
            _copyright(source),
            _kinds(source),
            None,
        )
        return replace(table, reading=reading)


def _warn(path: Path, remarks: Sequence[str]) -> None:
    remarks = [*dict.fromkeys(remarks)]
    shown = remarks[:SHOWN]
    if len(remarks) > SHOWN:
        shown.append(f"{len(remarks) - SHOWN} more")
    if shown:
        warnings.warn(f"{path}: {'; '.join(shown)}", stacklevel=4)


def _refuse_empty(path: Path, rows: Rows, reading: Reading, unit: Unit) -> None:
    """Raise ValueError for a file with too many fields, and, with what was lost, for a file without
    registers.
    """
    if len(rows) > MOST_ROWS:
        raise ValueError(f"{path}: got {len(rows)} fields, at most {MOST_ROWS} are allowed")
    if rows:
        return
    refuse_if(
        not reading.lost,
        path,
        "a file without a struct and without macros of registers",
        "is C that has a struct or macros of registers",
    )
    # the error is about a name that is declared nowhere, if there is one, because it causes other
    # losses
    causes = [lost for lost in reading.lost if ASKED.search(lost[3])]
    _, name, where, why = (causes or reading.lost)[0]
    counts = str(reading).partition("lost: ")[2]
    more = "".join(f"; {text}" for text in _missing(unit))
    raise ValueError(
        f"{where}: {name}: {why}; got no register that can be read, lost: {counts}, allowed is a "
        "struct, or macros of fields whose names begin with the name of an offset's macro" + more
    )


def _missing(unit: Unit) -> list[str]:
    """Return a list with one sentence: it has the options that would define the names that are
    declared nowhere, and the included files that were not read. The list is empty if no name is
    missing, or if one name is missing and each included file was read.
    """
    unread = []
    for name, position in unit.source.unread:
        line = unit.source.where(position).rpartition(", ")[2]
        unread.append(f"#include {name} ({line})")
    if not unit.missing or (len(unit.missing) == 1 and not unread):
        return []
    options = " ".join(f"--define {name}" for name in unit.missing[:MOST_MISSING])
    sentence = f"{plural(len(unit.missing), 'name')} declared nowhere: {options}"
    if len(unit.missing) > MOST_MISSING:
        sentence += f" and {len(unit.missing) - MOST_MISSING} more"
    if unread:
        sentence += f"; {', '.join(unread[:SHOWN])} is read only if --include FILE names it"
    return [sentence]


def _sentences(reading: Reading) -> Iterator[str]:
    """Yield a sentence for each kind of lost things (such as fields). It has their names and lines,
    and the reason why the first of them is lost.
    """
    by_kind: dict[str, list[str]] = {}
    reasons: dict[str, str] = {}
    for kind, name, where, why in reading.lost:
        by_kind.setdefault(kind, []).append(f"{name} ({where.rpartition(', ')[2]})")
        reasons.setdefault(kind, why)
    for kind, names in by_kind.items():
        more = ""
        if len(names) > SHOWN:
            more = f" and {len(names) - SHOWN} more"
        counted = plural(len(names), kind)
        yield f"{counted} lost: {', '.join(names[:SHOWN])}{more}: {reasons[kind]}"


def _once(rows: Rows) -> Rows:
    """Return the rows, each only once: npulab writes a struct for each feature of a block, and
    these structs have rows in common."""
    if not any(row.get("feature") for row in rows):
        return rows
    first: dict[tuple[str, ...], Cells] = {}
    for row in rows:
        first.setdefault(tuple(str(row.get(name, "")) for name in COLUMNS), row)
    return [*first.values()]


def _copyright(source: Source) -> str:
    """Return the copyright texts of annotations, and of comments before the first line of code."""
    first = len(source.code) - len(source.code.lstrip())
    texts = []
    for comment in source.comments:
        words = None
        if "copyright" in comment.text:
            words = annotation_in(source, comment)
        if words is not None:
            texts.append(words.get("copyright", ""))
        elif comment.start < first:
            texts.append(licence_in(comment.text))
    return "\n".join(filter(None, texts))


def _kinds(source: Source) -> dict[str, bool]:
    """Return, by block, True if an annotation says that its registers have addresses (``sparse``),
    False if it says that they are counted as words (``words``)."""
    kinds = {}
    for comment in source.comments:
        words = annotation_in(source, comment) or {}
        for word in ("sparse", "words"):
            if word in words:
                kinds[words[word]] = word == "sparse"
    return kinds


# structs


def _structs(unit: Unit) -> tuple[list[Struct], Layout]:
    """Return the structs of a unit and their layout; enums have the names that annotations
    state."""
    enum_names: dict[str, str] = {}
    texts: dict[tuple[str, str], str] = {}
    if any(MARK in comment.text for comment in unit.source.comments):
        spans: dict[int, tuple[str, str]] = {}
        for cursor in unit.cursors:
            if cursor.kind.name in HOLDERS:
                for tag, child in _enumerators(cursor):
                    spans[unit.position(child.location)] = tag, child.spelling
        code = unit.source.code
        comments = comments_of(unit.source, [span_at(code, start, ",}") for start in spans])
        prefixes: dict[str, str] = {}
        for position, (tag, name) in sorted(spans.items()):
            words = comments.words.get(position, {})
            if "prefix" in words:
                prefixes[tag] = words["prefix"]
            if "enum" in words:
                enum_names[tag] = words["enum"]
            texts[tag, name] = words.get("name", name.removeprefix(prefixes.get(tag, "")))
    layout = Layout(unit, enum_names, texts)
    return layout.structs(), layout


def _enumerators(cursor: Any) -> Iterator[tuple[str, Any]]:
    """Yield (tag of the enum, enumerator) for the enumerators of a declaration and of the
    declarations inside it.
    """
    tag = cursor.spelling
    if "(" in tag:  # libclang writes brackets if an enum has no tag
        tag = ""
    for child in cursor.get_children():
        if child.kind.name == "ENUM_CONSTANT_DECL":
            yield tag, child
        elif child.kind.name in HOLDERS:
            yield from _enumerators(child)


def _member_comments(source: Source, structs: Sequence[Struct]) -> Comments:
    """Return the annotations and notes of the members of structs, by the member's position."""
    starts: set[int] = set()
    for struct in structs:
        starts.update(run.position for run in struct.laid.runs)
    return comments_of(source, [span_at(source.code, start, ",;") for start in starts])


def _struct_chunks(
    source: Source,
    structs: Sequence[Struct],
    layout: Layout,
    comments: Comments,
    known: Container[tuple[str, int]],
    remarks: list[str],
) -> list[Chunk]:
    """Return the rows of each struct that the file itself (not an included file) declares. Words in
    ``known``, whose fields macros describe, are left out. A struct that repeats a name is added to
    ``layout.skipped``; sentences about silent holes are added to ``remarks``.
    """
    chunks = []
    seen = set()
    for struct in structs:
        if struct.position < source.own:
            continue
        words = annotation_before(source, struct.position)
        block, feature = words.get("block", struct.name), words.get("feature", "")
        again = twice(struct.laid)
        if not again and (block, feature) in seen:
            again = "its name"
        if again:
            wrong = Wrong(struct.position, f"got {again} a second time, allowed is once")
            layout.skipped.append((f"struct {block}", wrong))
            continue
        seen.add((block, feature))
        rows = _rows(block, struct, words, comments)
        rows = [row for row in rows if (struct.name, row["offset"]) not in known]
        chunks.append(Chunk(struct.position, rows))
        found = []
        for word, lsb, width in holes(struct.laid):
            found.append(f"word {word} bits {lsb + width - 1}:{lsb}")
        if found:
            remark = f"struct {block}: silent holes at {', '.join(found[:SHOWN])}"
            if len(found) > SHOWN:
                remark += f", {len(found) - SHOWN} more"
            remarks.append(remark)
    return chunks


def _coded(
    chunks: Sequence[Chunk],
    macros: MacroRegisters,
    values: Mapping[str, int],
    enums: Enums,
) -> tuple[list[Chunk], Named]:
    """Return the chunks of structs, with enums in their rows, and what ``with_codes`` made for
    them. A macro can name a code only if it has no role, and no tail such as ``_MASK``.
    """
    numbers = {}
    for lost in macros.lost:
        if lost.name in values and tail_of(lost.name) is None:
            numbers[lost.name] = values[lost.name]
    rows: Rows = []
    for chunk in chunks:
        rows += chunk.rows
    coded = with_codes(rows, numbers, {**enums, **macros.enums})
    rest = iter(coded.rows)
    made = []
    for chunk in chunks:
        made.append(Chunk(chunk.position, [*islice(rest, len(chunk.rows))]))
    return made, coded


def _rows(block: str, struct: Struct, words: Row, comments: Comments) -> Rows:
    """Return the rows of a struct; annotations and notes of its members fill in columns. Members
    that an annotation calls a hole have no row."""
    registers: NewCodes = {}
    rows: Rows = []
    for row, run in rows_of(block, struct.laid, words.get("base", 0)):
        said = comments.words.get(run.position, {})
        if "word" in said:
            registers[row["offset"]] = said["word"]
        if said.get("hole"):
            continue
        if run.position in comments.notes:
            row["note"] = comments.notes[run.position]
        row.update((name, value) for name, value in said.items() if name in COLUMNS)
        rows.append(row)
    for row in rows:
        row.setdefault("register", registers.get(row["offset"], ""))
    return rows


# the reading: explained lines and losses


def _reading(
    unit: Unit, unexplained: Container[str], lost: Sequence[Lost], layout: Layout
) -> Reading:
    """Return how many lines of the file are explained, which lines are not, and what was lost.
    Lines that conditions leave out and blank lines do not count."""
    source = unit.source
    text = source.text[source.own :]
    starts = [source.own, *(source.own + match.end() for match in re.finditer("\n", text))]

    def line_at(position: int) -> int:
        return bisect_right(starts, position) - 1

    def cover(start: int, end: int) -> range:
        return range(line_at(start), line_at(max(start, end - 1)) + 1)

    split = text.split("\n")
    lines = {n for n, line in enumerate(split) if line.strip()}
    for start, end in source.left_out:
        if end > source.own:
            lines -= {*cover(max(start, source.own), end)} - {line_at(end)}
    skipped = {unit.span(wrong.position) for _, wrong in layout.skipped}
    spans = [*source.directives, *(span for span in unit.spans if span not in skipped)]
    for name, macro in source.macros.items():
        if name not in unexplained:
            spans.append((macro.position, macro.end))
    spans += [match.span() for match in INLINE.finditer(source.code)]
    explained: set[int] = set()
    for start, end in spans:
        if start >= source.own:
            explained.update(cover(start, end))
    lost_lines = tuple(
        (kind, name, source.where(position), why) for kind, name, position, why in lost
    )
    open_lines = sorted(lines - explained)[:MOST_SHOWN]
    shown = tuple((f"line {n + 1}", " ".join(split[n].split())[:120]) for n in open_lines)
    return Reading(len(lines), len(lines & explained), lost_lines, shown)
