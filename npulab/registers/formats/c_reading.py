"""Reader of C: structs with bit-fields, and headers of offsets, shifts and masks; text around is
ignored.

What C has no word for stands in comments of npulab's own, as ``c_writing`` makes them; other
comments beside a member or macro are its note.
"""

from __future__ import annotations

import math
import re
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from npulab.registers.fields import WORD_BITS, WORD_BYTES, Piece, pieces
from npulab.registers.formats.c_comments import MARK, licence_in, note_in, said_in
from npulab.registers.formats.c_dialects import BITS, HEX, INLINE, MARKED, Longest, tail_of
from npulab.registers.formats.c_fields import Bits, Lost, Register, runs_of
from npulab.registers.formats.c_macros import roles_of
from npulab.registers.formats.c_numbers import Facts, constants, plain_values, probes
from npulab.registers.formats.c_offsets import FEWEST
from npulab.registers.formats.c_roles import Roles
from npulab.registers.formats.c_structs import Layout, Struct, holes, index, rows_of, twice
from npulab.registers.formats.c_text import (
    ASKED,
    NAME,
    Macro,
    Source,
    Unit,
    Wrong,
    read_source,
    read_unit,
)
from npulab.registers.formats.naming import unnumbered
from npulab.registers.formats.tables import MOST_ROWS, Reading, RegisterTable
from npulab.registers.table import COLUMNS
from npulab.support.refuse import refuse_if, refusing
from npulab.support.text import plural

BEGINS = re.compile(
    rb"\b(?:struct|union|enum)\b[\w\s()]{0,200}\{|^[ \t]*#[ \t]*define[ \t]+\w|"
    rb"\bconst(?:expr)?\s+\w+\s+\w+\s*=",
    re.MULTILINE,
)
REGMAP = re.compile(r"(\w+)\]?\s*=\s*REG_FIELD\w*\(\s*(\w+)\s*,\s*(\d+)\s*,\s*(\d+)\s*[,)]")
TABLE = re.compile(r"\b([A-Za-z_]\w*)\s*\[\w*\]\s*=\s*\{([^;]*);")
SHOWN = 8
NEAR = 2**8  # characters between an annotation and the struct that it is of
FAR = 2**12  # characters between a comment and what it is of
MOST_LENGTH = 2**14  # elements of an array of registers
MOST_MISSING = 40  # names that a refusal asks for
MOST_SHOWN = 2**10  # lines that a reading names

Rows = list[dict[str, Any]]


def is_c(head: bytes) -> bool:
    """Whether the beginning of a file has a struct, union, enum or macro of C in it.

    >>> is_c(b"As I wrote, struct job { uint32_t a : 1; };"), is_c(b"a struct, a union")
    (True, False)
    """
    return BEGINS.search(head) is not None


def read_c(path: Path, define: Sequence[str] = (), include: Sequence[Path] = ()) -> RegisterTable:
    """The registers that a C file says in structs, in macros, or in both; ``reading`` of the table
    says what is lost.

    ``define`` holds ``NAME=VALUE`` of names that other headers have; files of ``include`` are read
    in front of this one. Nothing is run, and no other file is opened. A UserWarning names what is
    lost, silent holes of a struct (word, bits) and names of an enum that were left out. Raises
    ValueError with file and line for a file that says no register, MissingPackage without
    libclang (extra ``maps``).
    """
    path = Path(path)
    source = read_source(path, define, [Path(one) for one in include])
    told: dict[str, None] = {}
    try:
        numbers = constants(source.macros)
        source = replace(source, macros={**source.macros, **numbers})
        values = plain_values(numbers)
        unit = read_unit(source, probes(source, numbers, values))
        values |= unit.values
        structs, layout = _structs(unit)
        members = {run.position for one in structs for run in one.laid.runs}
        said_of = _comments(source, [_span(source.code, position, ",;") for position in members])
        more, others, lost, roles, known = _macros(
            unit, numbers, values, structs, said_of.notes, told
        )
    except RecursionError:
        raise ValueError(
            f"{path}: got declarations too deep within each other, allowed are fewer"
        ) from None
    chunks, seen = list[tuple[int, Rows]](more), set[tuple[str, str]]()
    for one in structs:
        said = _before(source, one.position)
        block = said.get("block", one.name)
        if one.position < source.own:
            continue
        if again := twice(one.laid) or (
            "its name" if (block, said.get("feature", "")) in seen else ""
        ):
            wrong = Wrong(one.position, f"got {again} a second time, allowed is once")
            layout.skipped.append((f"struct {block}", wrong))
            continue
        seen.add((block, said.get("feature", "")))
        chunks.append(
            (
                one.position,
                [
                    row
                    for row in _rows(block, one, said, said_of)
                    if (one.name, row["offset"]) not in known
                ],
            )
        )
        if found := holes(one.laid):
            some = [
                f"word {word} bits {lsb + width - 1}:{lsb}" for word, lsb, width in found[:SHOWN]
            ]
            told[
                f"struct {block}: silent holes at {', '.join(some)}"
                + (f", {len(found) - SHOWN} more" if len(found) > SHOWN else "")
            ] = None
    told.update(dict.fromkeys(layout.lost))
    lost += [
        Lost("declaration", what, wrong.position, wrong.text) for what, wrong in layout.skipped
    ]
    rows = _once([row for _, some in sorted(chunks, key=lambda one: one[0]) for row in some])
    reading = _reading(unit, roles, [*dict.fromkeys(lost)], layout)
    _refuse_empty(path, rows, reading, unit)
    told.update(dict.fromkeys([*_sentences(reading), *_missing(unit)]))
    if told:
        shown = [*told][:SHOWN] + ([f"{len(told) - SHOWN} more"] if len(told) > SHOWN else [])
        warnings.warn(f"{path}: {'; '.join(shown)}", stacklevel=3)
    with refusing(path):
        table = RegisterTable.of_said(
            rows, {**layout.enums, **others}, _copyright(source), _kinds(source), None
        )
        return replace(table, reading=reading)


def _refuse_empty(path: Path, rows: Rows, reading: Reading, unit: Unit) -> None:
    if len(rows) > MOST_ROWS:
        raise ValueError(f"{path}: got {len(rows)} fields, at most {MOST_ROWS} are allowed")
    if rows:
        return
    refuse_if(
        not reading.lost,
        path,
        "a file without a struct and without macros of registers",
        "is C that has one of them",
    )
    lost = str(reading).partition("lost: ")[2]
    # what is declared nowhere is at the root of the rest
    _, name, where, why = next(
        (one for one in reading.lost if ASKED.search(one[3])), reading.lost[0]
    )
    more = "".join(f"; {text}" for text in _missing(unit))
    raise ValueError(
        f"{where}: {name}: {why}; got nothing that can be read, lost: {lost}, allowed is a struct, "
        "or "
        f"macros whose names begin with that of a register's offset{more}"
    )


def _missing(unit: Unit) -> list[str]:
    """All names that are declared nowhere, as one asks for them, and the files that may declare
    them; none where there is but one name and no such file."""
    unread = [
        f"#include {name} ({unit.source.where(place).rpartition(', ')[2]})"
        for name, place in unit.source.unread
    ]
    if not unit.missing or (len(unit.missing) == 1 and not unread):
        return []
    named = " ".join(f"--define {one}" for one in unit.missing[:MOST_MISSING])
    more = ""
    if len(unit.missing) > MOST_MISSING:
        more = f" and {len(unit.missing) - MOST_MISSING} more"
    counted = f"{plural(len(unit.missing), 'name')} declared nowhere: {named}{more}"
    if not unread:
        return [counted]
    return [
        f"{counted}; {', '.join(unread[:SHOWN])} is not read by itself, --include FILE reads it"
    ]


def _sentences(reading: Reading) -> Iterator[str]:
    """What is lost, by kind, each with its line and the first reason."""
    for kind in dict.fromkeys(kind for kind, *_ in reading.lost):
        some = [
            (f"{name} ({where.rpartition(', ')[2]})", why)
            for one, name, where, why in reading.lost
            if one == kind
        ]
        names = ", ".join(name for name, _ in some[:SHOWN])
        yield (
            f"{len(some)} {kind}{'s' * (len(some) > 1)} lost: {names}"
            + (f" and {len(some) - SHOWN} more" if len(some) > SHOWN else "")
            + f": {some[0][1]}"
        )


def _once(rows: Rows) -> Rows:
    """Rows without those that structs of several features share."""
    if not any(row.get("feature") for row in rows):
        return rows
    out = {tuple(str(row.get(name, "")) for name in COLUMNS): row for row in reversed(rows)}
    kept = {id(row) for row in out.values()}
    return [row for row in rows if id(row) in kept]


def _copyright(source: Source) -> str:
    first = len(source.code) - len(source.code.lstrip())
    said = []
    for one in source.comments:
        if "copyright" in one.text and (words := said_in(one.text)) is not None:
            said.append(words.get("copyright", ""))
        elif one.start < first:
            said.append(licence_in(one.text))
    return "\n".join(text for text in said if text)


def _kinds(source: Source) -> dict[str, bool]:
    """Of which blocks the annotations say whether their registers have addresses, and what."""
    out = {}
    for one in source.comments:
        words = _said(source, one) or {}
        out.update({words[name]: name == "sparse" for name in ("sparse", "words") if name in words})
    return out


# structs


class Comments(NamedTuple):
    """What comments say, by the position of what they are of: words of annotations, notes."""

    words: dict[int, dict[str, Any]]
    notes: dict[int, str]


class Span(NamedTuple):
    """A member or enumerator in the text: where it begins and ends."""

    start: int
    end: int


def _structs(unit: Unit) -> tuple[list[Struct], Layout]:
    """The structs of a unit, enums named as annotations say."""
    enum_names: dict[str, str] = {}
    texts: dict[tuple[str, str], str] = {}
    if any(MARK in comment.text for comment in unit.source.comments):
        spans = {
            unit.position(one.location): (tag, one.spelling)
            for cursor in unit.cursors
            if cursor.kind.name in ("ENUM_DECL", "STRUCT_DECL", "UNION_DECL")
            for tag, one in _enumerators(cursor)
        }
        words, _ = _comments(
            unit.source, [_span(unit.source.code, position, ",}") for position in spans]
        )
        prefixes: dict[str, str] = {}
        for position, (tag, name) in sorted(spans.items()):
            said = words.get(position, {})
            if "prefix" in said:
                prefixes[tag] = said["prefix"]
            if "enum" in said:
                enum_names[tag] = said["enum"]
            texts[tag, name] = said.get("name", name.removeprefix(prefixes.get(tag, "")))
    layout = Layout(unit, enum_names, texts)
    return layout.structs(), layout


def _enumerators(cursor: Any) -> Iterator[tuple[str, Any]]:
    for one in cursor.get_children():
        if one.kind.name == "ENUM_CONSTANT_DECL":
            yield "" if "(" in cursor.spelling else cursor.spelling, one
        elif one.kind.name in ("ENUM_DECL", "STRUCT_DECL", "UNION_DECL"):
            yield from _enumerators(one)


def _span(code: str, start: int, ends: str) -> Span:
    depth = 0
    for match in re.compile(r"[\[\](),;{}]").finditer(code, start):
        if depth <= 0 and match[0] in ends:
            return Span(start, match.start() if match[0] == "}" else match.end())
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(match[0], 0)
    return Span(start, len(code))


def _comments(source: Source, spans: Iterable[Span], before: bool = True) -> Comments:
    """The words of annotations and the note of each member, by where it begins: of comments behind
    it on its line, in it and, unless told otherwise, before it.

    Raises ValueError with file and line for an annotation that is broken.
    """
    notes: dict[int, str] = {}
    words: dict[int, dict[str, Any]] = {}
    ordered = []
    if source.comments:
        ordered = sorted(spans, key=lambda span: (span.end, span.start))
    ends = [span.end for span in ordered]
    for one in source.comments if ordered else ():
        at = bisect_right(ends, one.start)
        span = None
        if at < len(ordered):
            span = ordered[at]
        alone = True  # it stands by itself
        if at and one.start - ends[at - 1] < FAR:
            between = source.code[ends[at - 1] : one.start]
            if not between.strip() and "\n" not in between:
                span, alone = ordered[at - 1], False
        between = ""
        if span:
            between = source.code[one.end : span.start]
        if (
            span is None
            or (alone and (len(between) > FAR or re.search(r"[{};]", between)))
            or (not before and one.start < span.start)
        ):
            continue
        line = source.code[max(0, one.start - FAR) : one.start].rpartition("\n")[2].rstrip()
        head = (
            alone
            and line.endswith("{")
            and source.code[one.end : one.end + FAR].partition("\n")[0].isspace()
        )
        said = _said(source, one)
        if said is not None:
            words[span.start] = {**words.get(span.start, {}), **said}
        elif not head and (note := note_in(one.text)):
            if span.start in notes:
                notes[span.start] = f"{notes[span.start]} {note}"
            else:
                notes[span.start] = note
    return Comments(words, notes)


def _said(source: Source, comment: Any) -> dict[str, Any] | None:
    if MARK not in comment.text:
        return None
    with refusing(source.where(comment.start)):
        return said_in(comment.text)


def _before(source: Source, position: int) -> dict[str, Any]:
    """The annotation right before a declaration."""
    start = max(
        source.code.rfind(word, max(0, position - NEAR), position + len(word))
        for word in ("struct", "union")
    )
    at = bisect_right(source.comments, start, key=lambda one: one.end) - 1
    if (
        start < 0
        or at < 0
        or start - source.comments[at].end > NEAR
        or source.code[source.comments[at].end : start].strip() not in ("", "typedef")
    ):
        return {}
    return _said(source, source.comments[at]) or {}


def _rows(block: str, one: Struct, said: Mapping[str, Any], comments: Comments) -> Rows:
    registers: dict[int, str] = {}
    out: Rows = []
    for row, run in rows_of(block, one.laid, said.get("base", 0)):
        own = comments.words.get(run.position, {})
        if "word" in own:
            registers[row["offset"]] = own["word"]
        if own.get("hole"):
            continue
        columns = {name: value for name, value in own.items() if name in COLUMNS}
        note = comments.notes.get(run.position, "")
        out.append({**row, **({"note": note} if note else {}), **columns})
    return [
        {**row, "register": row.get("register", registers.get(row["offset"], ""))} for row in out
    ]


# macros


def _macros(
    unit: Unit,
    numbers: Mapping[str, Macro],
    values: dict[str, int],
    structs: Sequence[Struct],
    notes: Mapping[int, str],
    told: dict[str, None],
) -> tuple[
    list[tuple[int, Rows]], dict[str, dict[int, str]], list[Lost], Roles, set[tuple[str, int]]
]:
    """(position, rows) of each register, their enums, what is lost, the role of each macro, and the
    words of structs (struct, offset) whose fields macros say."""
    source = unit.source
    comments = _comments(
        source, (Span(macro.position, macro.end) for macro in source.macros.values()), before=False
    )
    chunks, enums, taken = _annotated(source, values, comments)
    listed = _listed(unit, values)
    members = _members(unit, structs)
    listed |= {
        name: Macro(name, None, f"{at:#x} + 0", position, position)
        for name, (_, at, _, position) in members.items()
    }
    values |= {name: at for name, (_, at, *_) in members.items()}
    spoken = {word for start, end in unit.spans for word in NAME.findall(source.code[start:end])}
    macros, plain = (
        {**{name: macro for name, macro in some.items() if name not in taken}, **more}
        for some, more in ((source.macros, listed), (numbers, constants(listed)))
    )
    facts = Facts.of(
        replace(source, macros=macros),
        plain,
        values,
        unit.refused,
        spoken - listed.keys(),
        members.keys(),
    )
    roles = roles_of(facts)
    roles.roles.update(dict.fromkeys(taken, "register"))
    # fields of Linux's regmap
    for made in REGMAP.finditer(source.code, source.own) if "REG_FIELD" in source.code else ():
        bits = Bits(made[1], made.start(), low=int(made[3]), high=int(made[4]))
        roles.add(bits, roles.register(made[2]) if made[2] in roles.candidates else None)
    meaning = _inline(source)
    lost = roles.lost + [
        Lost("table", made[1], made.start(), "numbers of an array are not read")
        for made in (TABLE.finditer(source.code, source.own) if "{" in source.code else ())
        if len(re.findall(r"\b0[xX]", made[2])) >= FEWEST and not REGMAP.search(made[2])
    ]
    places = [*_apart(roles, re.sub(r"\W", "_", source.path.stem), lost)]
    places += [
        Place(register, at, field, block)
        for name, (block, at, field, _) in members.items()
        if (register := roles.registers.get(name)) and register.fields
    ]
    known = {(one.block, one.offset) for one in places if one.register.macro in members}
    names = {(one.block, one.offset): one.name for one in places}
    said = {**notes, **comments.notes}
    spilled = set[tuple[str, int]]()  # words that bits of the one in front of them lie in
    for one in places:
        rows = _register_rows(one, said, enums, meaning, lost, told)
        for row in rows:
            if row["offset"] != one.offset:
                row["register"] = names.get((one.block, row["offset"]), one.name)
                spilled.add((row["block"], row["offset"]))
        chunks.append((one.register.position, rows))
    for _, rows in chunks:  # their own whole words give way
        rows[:] = [
            row
            for row in rows
            if (row["block"], row["offset"]) not in spilled
            or "at" in row
            or row["width"] < WORD_BITS
            or row["field"] != row["register"]
        ]
    placed = {bits.name for register in roles.registers.values() for bits in register.fields}
    for base, bits in roles.fields.items():
        if base not in placed and bits.position >= source.own:
            lost.append(
                Lost(
                    "field",
                    base,
                    bits.position,
                    "no macro that its name begins with says a register's "
                    "offset (--include FOLDER/FILE)",
                )
            )
    if roles.by_words:
        told["offsets of registers, which are taken as counts of words"] = None
    named = {name for _, name, *_ in lost}
    lost += [one for one in roles.rest() if one.name not in named]
    return chunks, enums, lost, roles, known


def _members(unit: Unit, structs: Sequence[Struct]) -> dict[str, tuple[str, int, str, int]]:
    """(struct, offset, member, position) of words of structs whose fields macros say, by what these
    begin with: words of the struct's name, of no other one with such a member, and the member's
    name."""
    source, begins = unit.source, Counter[str]()
    for name, macro in source.macros.items() if structs else ():
        if tail_of(name) or BITS.search(macro.body):
            begins.update(name[:at].lstrip("_") for at, letter in enumerate(name) if letter == "_")
    out: dict[str, tuple[str, int, str, int]] = {}
    said = Longest({name for name, macro in source.macros.items() if HEX.fullmatch(macro.body)})
    for one in structs:
        words = one.name.split("_")
        # one that holds pointers is a program's
        for run in (
            one.laid.runs if begins and not any(run.address for run in one.laid.runs) else ()
        ):
            for first, last in combinations(range(len(words) + 1), 2):
                name = "_".join([*words[first:last], run.name]).upper()
                if (
                    run.width == WORD_BITS
                    and run.start % WORD_BITS == 0
                    and begins[name]
                    and not run.feature
                    and name != one.name.upper()
                    and name not in source.macros
                    and not said.inside(name)
                    and sum(
                        1
                        for start, end in unit.spans
                        if re.match(
                            rf"struct\s+(\w+_)?{'_'.join(words[first:last])}(_\w+)?\s*\{{[^}}]*\b{run.name}\s*;",
                            source.code[start:end],
                        )
                    )
                    < 2
                ):
                    out.setdefault(name, (one.name, run.start // 8, run.name, run.position))
    return out


def _listed(unit: Unit, values: dict[str, int]) -> dict[str, Macro]:
    """Enumerators as if they were macros: of enums that say several offsets, each in hexadecimal or
    as a sum, and multiples of a word; beside such an enum, those that say bits of its registers."""
    out: dict[str, Macro] = {}
    others: dict[str, Macro] = {}
    code = unit.source.code
    own = any(
        name.startswith("NPULAB_") for name in unit.source.macros
    )  # where registers are said otherwise
    for cursor in () if own else unit.cursors:
        if cursor.kind.name != "ENUM_DECL" or not cursor.is_definition():
            continue
        said, numbers = {}, {}
        for one in cursor.get_children():
            start = unit.position(one.location)
            if one.kind.name == "ENUM_CONSTANT_DECL" and (
                body := re.compile(r"\w+\s*=\s*((?:[^,}(]|\([^()]*\))+)").match(code, start)
            ):
                said[one.spelling] = Macro(one.spelling, None, body[1].strip(), start, body.end())
                numbers[one.spelling] = one.enum_value
        flags = all(
            n.bit_count() <= 1 and not MARKED.fullmatch(name) for name, n in numbers.items()
        )
        if (
            len(said) < FEWEST
            or flags
            or any(n % WORD_BYTES or n < 0 for n in numbers.values())
            or max(numbers.values()) < (FEWEST - 1) * WORD_BYTES
            or len(said) < len([*cursor.get_children()]) - 1
            or not all(re.search(r"0[xX]|\+", one.body) for one in said.values())
        ):
            others |= said
        else:
            out |= said
        values |= numbers
    of = Longest({*out, *(name.replace("_REG_", "_").removesuffix("_OFFSET") for name in out)})
    others = {name: one for name, one in others.items() if of.inside(name) or BITS.search(one.body)}
    if out:
        return {**out, **others}
    return {}


class Place(NamedTuple):
    """Where a register lies, or an element of an array of them."""

    register: Register
    offset: int
    name: str
    block: str


def _apart(roles: Roles, block: str, lost: list[Lost]) -> Iterator[Place]:
    """Each register, arrays one by one: in a block by the first words of their names where offsets
    repeat."""
    found: list[tuple[Register, int, str]] = []
    own = roles.facts.source.own
    mine = any(register.position >= own for register in roles.registers.values())
    for register in sorted(roles.registers.values(), key=lambda one: one.position):
        if register.macro in roles.facts.members:
            continue
        if (
            register.position < own
            and mine
            and not any(bits.position >= own for bits in register.fields)
        ):
            continue
        counts = [max(1, count) for count, _ in register.lengths]
        total = math.prod(counts)
        if total > MOST_LENGTH:
            lost.append(
                Lost(
                    "register",
                    register.name,
                    register.position,
                    f"an array of {total}, at most {MOST_LENGTH} are allowed",
                )
            )
            continue
        if any(count == 0 for count, _ in register.lengths):
            lost.append(
                Lost(
                    "array",
                    register.name,
                    register.position,
                    "nothing says its length, so only the first is read (X__LEN)",
                )
            )
        for n in range(total):
            at, offset = n, register.offset
            for count, (_, stride) in zip(
                reversed(counts), reversed(register.lengths), strict=True
            ):
                at, here = divmod(at, count)
                offset += here * stride
            found.append((register, offset, register.name + index(n, counts)))
    words, clash = 0, _clashes(found, 0)
    if clash >= max(FEWEST, len(found) // 20):  # fewer stand in a block beside the others
        clashes = {n: _clashes(found, n) for n in range(1, 6)}
        # the coarsest blocks that part nearly as much as the finest
        best = next(
            n for n, count in clashes.items() if count <= min(clashes.values()) + clash // 20
        )
        words = 0
        if 2 * clashes[best] <= clash:
            words = best
    taken: dict[tuple[str, int], str] = {}
    for register, offset, name in found:
        where = _first_words(name, words) or block
        other = taken.setdefault((where, offset), name)
        if other != name:
            n = next(
                n
                for n in range(2, MOST_ROWS)
                if taken.setdefault((f"{where}_{n}", offset), name) == name
            )
            lost.append(
                Lost(
                    "second register",
                    name,
                    register.position,
                    f"it lies at {offset:#x} where {other} lies, "
                    f"so it stands in the block {where}_{n}",
                )
            )
            where = f"{where}_{n}"
        yield Place(register, offset, name, where)


def _clashes(found: Sequence[tuple[Register, int, str]], words: int) -> int:
    """How many registers lie where another one of their block lies."""
    counts = Counter((_first_words(name, words), offset) for _, offset, name in found)
    return sum(count - 1 for count in counts.values())


def _first_words(name: str, words: int) -> str:
    if words:
        return "_".join(unnumbered(name).split("_")[:words])
    return ""


def _register_rows(
    one: Place,
    notes: Mapping[int, str],
    enums: dict[str, dict[int, str]],
    meaning: Mapping[str, str],
    lost: list[Lost],
    told: dict[str, None],
) -> Rows:
    """The rows of a register; a whole word named as it is where no macro says its fields."""
    register, offset, name, where = one
    note = notes.get(register.position, "")
    out: Rows = []
    taken: list[int] = []  # bits, in the block and in those of what overlaps
    for bits in sorted(register.fields, key=lambda one: (one.bits & -one.bits, one.position)):
        mask = bits.bits
        if mask <= 0:
            lost.append(Lost("field", bits.name, bits.position, "nothing says its bits"))
            continue
        level = next((n for n, some in enumerate(taken) if not some & mask), len(taken))
        taken[level : level + 1] = [mask | (taken[level] if level < len(taken) else 0)]
        block = where
        if level:
            block += f"_overlaps{f'_{level}' if level > 1 else ''}"
            lost.append(
                Lost(
                    "second field",
                    bits.name,
                    bits.position,
                    f"another field of {register.name} "
                    f"has its bits, so it stands in the block {block}",
                )
            )
        value = meaning.get(bits.name, "")
        if value == "f32" and mask != 2**WORD_BITS - 1:
            value = ""
        value = _enum(bits, enums, told) or value
        runs = [*_words(mask)]
        short = register.short(bits.name)
        whole = bits.name
        if register.lengths:
            whole = f"{name}.{short}"
        for word, lsb, width, at in runs:
            row = {
                "block": block,
                "offset": offset + WORD_BYTES * word,
                "register": name,
                "lsb": lsb,
                "width": width,
                "value": value,
                "field": short if len(runs) == 1 else whole,
                "note": notes.get(bits.position, ""),
                "evidence": "guess" if bits.guess else "",
            }
            out.append(row if len(runs) == 1 else {**row, "at": at})
    if not out:
        every = Bits(register.name, 0, 2**WORD_BITS - 1, values=register.values)
        return [
            {
                "block": where,
                "offset": offset,
                "register": name,
                "field": name,
                "lsb": 0,
                "width": WORD_BITS,
                "note": note,
                "value": _enum(every, enums, told),
            }
        ]
    if note:  # of the register: its lowest field has it, behind its name
        out[0]["note"] = f"{register.name}: {note} {out[0]['note']}".strip()
    return out


def _words(mask: int) -> Iterator[Piece]:
    """The bits of a field of up to 64 bits, word by word."""
    at = 0
    for start, width in runs_of(mask):
        yield from pieces(start, width, at)
        at += width


def _enum(bits: Bits, enums: dict[str, dict[int, str]], told: dict[str, None]) -> str:
    """The value column of a field with named values, which are kept once."""
    if not bits.values:
        return ""
    name = re.sub(r"\W", "_", bits.name)
    if name not in enums:
        enums[name] = _named(bits, told)
    if enums[name]:
        return f"enum:{name}"
    return ""


def _named(bits: Bits, told: dict[str, None]) -> dict[int, str]:
    """The values of a field by raw number: from their place in the word, or from bit 0 as they
    fit."""
    low = bits.lowest
    width = bits.bits.bit_length() - low
    in_place = all(not value & ~bits.bits for value, _ in bits.values.values())
    from_zero = all(value < 2**width for value, _ in bits.values.values())
    sure = bits.strict or any(surely for _, surely in bits.values.values())
    out: dict[int, str] = {}
    for name, (value, _) in bits.values.items():
        raw = value
        if in_place and (sure or not from_zero):
            raw = value // 2**low
        if raw >= 2**width or raw in out:
            told[
                f"{bits.name}_{name} = {value:#x}, which is no value of its field or has another "
                "name"
            ] = None
        else:
            out[raw] = name
    return out


def _annotated(
    source: Source,
    values: Mapping[str, int],
    comments: Comments,
) -> tuple[list[tuple[int, Rows]], dict[str, dict[int, str]], set[str]]:
    """Registers, fields and enums that annotations of npulab's own name, in the order of the file;
    the macros they are of."""
    chunks: list[tuple[int, Rows]] = []
    enums: dict[str, dict[int, str]] = {}
    taken: set[str] = set()
    texts: set[tuple[str, str]] = set()
    register: dict[str, Any] = {}
    ordered = []
    if comments.words:
        ordered = sorted(
            (macro for macro in source.macros.values() if macro.parameters is None),
            key=lambda macro: macro.position,
        )
    for macro in ordered:
        note, words = comments.notes.get(macro.position, ""), comments.words.get(macro.position, {})
        place = source.macros.get(f"{macro.name.removesuffix('__SHIFT')}__MASK")
        if register and place and place.position in comments.words:
            taken.add(macro.name)  # what it says stands in the mask
        if not words or macro.name not in values:
            continue
        taken.add(macro.name)
        value, where = values[macro.name], source.where(macro.position)
        if "enum" in words:
            names = enums.setdefault(words["enum"], {})
            text = words.get("name", macro.name)
            if value < 0 or value in names or (words["enum"], text) in texts:
                raise ValueError(
                    f"{where}: enum {words['enum']}: got {text} = {value}, allowed is each name "
                    "and each "
                    "number from 0 once"
                )
            names[value] = text
            texts.add((words["enum"], text))
        elif "block" in words:
            if value < 0 or value % WORD_BYTES:
                raise ValueError(
                    f"{where}: register {macro.name}: got offset {value}, allowed is a multiple of "
                    f"{WORD_BYTES} from 0"
                )
            register = {
                "block": words["block"],
                "offset": value,
                "register": words.get("register", ""),
            }
            chunks.append((macro.position, []))
        elif not register:
            raise ValueError(
                f"{where}: field {macro.name}: got it before any register, allowed is behind its "
                "register"
            )
        else:
            runs = runs_of(value)
            if len(runs) != 1 or value >= 2**WORD_BITS:
                raise ValueError(
                    f"{where}: field {macro.name}: got mask {value:#x}, allowed is one run of bits "
                    "of a "
                    "word"
                )
            columns = {name: said for name, said in words.items() if name in COLUMNS}
            chunks[-1][1].append(
                {
                    **register,
                    "field": macro.name.removesuffix("__MASK"),
                    "lsb": runs[0][0],
                    "width": runs[0][1],
                    **({"note": note} if note else {}),
                    **columns,
                }
            )
    return chunks, enums, taken


def _inline(source: Source) -> dict[str, str]:
    """The value column of fields, as the functions of envytools say it."""
    out: dict[str, str] = {}
    for name, kind, argument, body in (match.groups() for match in INLINE.finditer(source.code)):
        shift = re.search(rf"\b{argument}\s*\)*\s*>>\s*(\d{{1,2}})\b", body)
        factor = re.search(rf"\b{argument}\s*\)*\s*\*\s*(\d+)\.0\b", body)
        if kind == "int32_t" or "(int32_t)" in body:
            signed = "signed "
        else:
            signed = ""
        step = ""
        if shift and 0 < int(shift[1]) < WORD_BITS:
            step = f"raw*{2 ** int(shift[1])}"
        if factor and int(factor[1]).bit_count() == 1:
            step = f"raw>>{int(factor[1]).bit_length() - 1}"
        if kind == "float" and "fui" in body:
            out[name] = "f32"
        else:
            out[name] = (signed + step).strip()
    return {name: value for name, value in out.items() if value}


# what the reading says


def _reading(unit: Unit, roles: Roles, lost: Sequence[Lost], layout: Layout) -> Reading:
    """Which lines of the file are explained, and what is lost."""
    source = unit.source
    text = source.text[source.own :]
    starts = [source.own, *(source.own + match.end() for match in re.finditer("\n", text))]
    split = text.split("\n")
    lines = {n for n, line in enumerate(split) if line.strip()}

    def cover(start: int, end: int) -> range:
        return range(bisect_right(starts, start) - 1, bisect_right(starts, max(start, end - 1)))

    for start, end in source.left_out:
        if end > source.own:
            lines -= {*cover(max(start, source.own), end)} - {bisect_right(starts, end) - 1}
    skipped = {unit.span(wrong.position) for _, wrong in layout.skipped}
    spans = [
        *source.directives,
        *(span for span in unit.spans if span not in skipped),
        *(
            (macro.position, macro.end)
            for name, macro in source.macros.items()
            if name not in roles.unexplained
        ),
        *(match.span() for match in INLINE.finditer(source.code)),
    ]
    explained = {n for start, end in spans if start >= source.own for n in cover(start, end)}
    return Reading(
        len(lines),
        len(lines & explained),
        tuple((kind, name, source.where(position), why) for kind, name, position, why in lost),
        tuple(
            (f"line {n + 1}", " ".join(split[n].split())[:120])
            for n in sorted(lines - explained)[:MOST_SHOWN]
        ),
    )
