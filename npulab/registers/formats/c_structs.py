"""Structs of C as libclang lays them out for a little-endian machine of 64 bits, as rows of a
register map.

========================  ==========================================================================
``uint32_t x : 3``        a field; a bit-field that would cross the unit of its declared type begins
                          the next unit and leaves a silent hole, which a UserWarning reports
``int``, ``float``        ``signed``, ``f32``; a pointer is an address of 64 bits
``enum e x : 2``          ``enum:e``; the warning reports a second name of a number
``uint32_t x``, ``x[4]``  a whole word, ``x[0]`` ...; a member that crosses words is split into
                          pieces with ``at``
``struct { ... } x[2]``   ``x[0].member``; without a name, its members as if they stood outside
``union``                 the one member that is more than plain words of the same bits; several
                          that overlap are alternatives, each a feature
``uint32_t : 5``          a row without a name
========================  ==========================================================================

Each struct that no other struct of the file holds is a block, named by its tag. A struct that is
not understood is left out and named.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from npulab.registers.fields import WORD_BYTES, pieces
from npulab.registers.formats.c_text import Unit, Wrong

MOST_BITS = 2**24  # of a struct
MOST_ELEMENTS, MOST_RUNS, MOST_DIMENSIONS, MOST_NAME, MOST_DEPTH = 2**14, 2**16, 8, 512, 64
FAR = 2**9  # characters from a member's name to the end of its attributes
ARRAYS = ("CONSTANTARRAY", "INCOMPLETEARRAY")
# types besides records: the value column, True for an address, True for plain words
PLAIN = {
    "POINTER": ("", True, False),
    "FLOAT": ("f32", False, False),
    **dict.fromkeys(
        ["UCHAR", "USHORT", "UINT", "ULONG", "ULONGLONG", "CHAR_U", "CHAR_S"], ("", False, True)
    ),
    **dict.fromkeys(["SCHAR", "SHORT", "INT", "LONG", "LONGLONG"], ("signed", False, False)),
    **dict.fromkeys(["HALF", "FLOAT16"], ("f16", False, False)),
    **dict.fromkeys(["BOOL", "DOUBLE"], ("", False, False)),
}


class Run(NamedTuple):
    """Bits of a struct: their start and count, name (blank: none), value column, True for an
    address, the position of the member, and the alternative of a union that they belong to."""

    start: int
    width: int
    name: str
    value: str = ""
    address: bool = False
    position: int = 0
    feature: str = ""


class Laid(NamedTuple):
    """A type as it is laid out: runs of bits, size in bits, and True if it is only plain words."""

    runs: tuple[Run, ...]
    size: int
    plain: bool
    align: int = 8


class NotUnderstoodError(ValueError):
    """A declaration that cannot be laid out; the message says why, ``position`` where."""

    def __init__(self, text: str, position: int = -1) -> None:
        super().__init__(text)
        self.position = position


class Struct(NamedTuple):
    """A struct or union that no other struct of the file holds, as it is laid out."""

    name: str
    position: int
    end: int
    laid: Laid


@dataclass
class Layout:
    """Structs and enums of a unit; ``lost`` has sentences for the warning, ``skipped`` the
    declarations that are left out."""

    unit: Unit
    enum_names: Mapping[str, str] = field(default_factory=dict)  # by tag, as annotations say
    texts: Mapping[tuple[str, str], str] = field(
        default_factory=dict
    )  # of enumerators, by tag and name
    lost: dict[str, None] = field(default_factory=dict)
    skipped: list[tuple[str, Wrong]] = field(default_factory=list)
    enums: dict[str, dict[int, str]] = field(default_factory=dict)
    laid: dict[int, Laid | NotUnderstoodError] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    odd: dict[int, bool] = field(default_factory=dict)
    enum_of: dict[int, str] = field(
        default_factory=dict
    )  # the value column, by the enum's position

    @cached_property
    def aligns(self) -> bool:
        """True if the files mention an alignment anywhere."""
        return "align" in "".join((self.unit.source.text, *self.unit.source.defines)).lower()

    def structs(self) -> list[Struct]:
        """Return the structs that no other struct holds; fills ``enums`` on the way."""
        tops: dict[int, tuple[Any, str]] = {}
        for cursor in self.unit.cursors:
            kind = cursor.kind.name
            if kind == "TYPEDEF_DECL":
                record = cursor.underlying_typedef_type.get_canonical().get_declaration()
                if record.location.offset in tops and not pointed(cursor.underlying_typedef_type):
                    first, name = tops[record.location.offset]
                    if not name or name.startswith("_"):
                        tops[record.location.offset] = first, cursor.spelling
            elif kind in ("STRUCT_DECL", "UNION_DECL", "ENUM_DECL") and cursor.is_definition():
                tops[cursor.location.offset] = cursor, "" if unnamed(cursor) else cursor.spelling
            elif kind == "VAR_DECL":
                record = cursor.type.get_canonical().get_declaration()
                if record.location.offset in tops and not tops[record.location.offset][1]:
                    tops[record.location.offset] = tops[record.location.offset][0], cursor.spelling
        for cursor, name in tops.values():
            if cursor.kind.name == "ENUM_DECL":
                self.enum(cursor, name)
        made = [
            (cursor, name, self._top(cursor))
            for cursor, name in tops.values()
            if cursor.kind.name != "ENUM_DECL"
        ]
        out = []
        for cursor, name, laid in made:
            span = self.unit.span(self.unit.position(cursor.location))
            if isinstance(laid, Laid) and cursor.location.offset not in self.held and span:
                out.append(Struct(name, self.unit.position(cursor.location), span[1], laid))
        self.skipped += [(self._what(start), wrong) for start, wrong in self.unit.wrong.items()]
        self.skipped.sort(key=lambda one: one[1].position)
        return out

    def _what(self, start: int) -> str:
        """The words that begin a declaration, for people."""
        head = re.compile(r"(?:typedef\s+)?((?:[A-Za-z_]\w*\s*){1,4})\{?").match(
            self.unit.source.code, start
        )
        span = self.unit.span(start) or (start, start)
        tail = re.compile(r"([A-Za-z_]\w*)\s*;\s*$").search(self.unit.source.code[start : span[1]])
        words = head[1].split() if head else []
        if len(words) > 1:
            return " ".join(words[:2])
        return f"{words[0] if words else 'declaration'} {tail[1] if tail else ''}".strip()

    def _top(self, cursor: Any) -> Laid | None:
        position = self.unit.position(cursor.location)
        try:
            return self.record(cursor)
        except NotUnderstoodError as error:
            span = self.unit.span(position)
            if span and span[0] not in self.unit.wrong:
                where = position
                if span[0] <= error.position < span[1]:
                    where = error.position
                self.skipped.append((self._what(span[0]), Wrong(where, str(error))))
            return None

    def enum(self, cursor: Any, name: str = "") -> str:
        """Return the value column of an enum's members, and keep the enum's names. An enum without
        a tag is named after its type or member."""
        place = cursor.location.offset
        if place in self.enum_of:
            return self.enum_of[place]
        if unnamed(cursor):
            tag = ""
        else:
            tag = cursor.spelling
        name = tag or name
        values, texts = dict[int, str](), set[str]()
        for one in cursor.get_children():
            if one.kind.name != "ENUM_CONSTANT_DECL" or one.spelling == f"npulab_no_{tag}":
                continue
            text, number = self.texts.get((tag, one.spelling), one.spelling), one.enum_value
            if number < 0 or number in values or text in texts:
                self.lost[
                    f"not carried over: {text} = {number} of enum {name or 'without a name'}"
                    + (f", which is {values[number]} too" if number in values else "")
                ] = None
                continue
            values[number] = text
            texts.add(text)
        known = self.enum_names.get(name, name)
        span = self.unit.span(self.unit.position(cursor.location))
        if span is None:
            self.lost[f"not carried over: enum {known}, which nobody declares"] = None
        bad = span is None or (
            span[0] in self.unit.wrong and self.unit.source.code[span[0] : span[0] + 4] == "enum"
        )
        if name and not bad and self.enums.setdefault(known, values) != values:
            known = next(
                f"{name}_{n}" for n in range(2, MOST_RUNS) if f"{name}_{n}" not in self.enums
            )
            self.enums[known] = values
        if known in self.enums:
            self.enum_of[place] = f"enum:{known}"
        else:
            self.enum_of[place] = ""
        return self.enum_of[place]

    def record(self, cursor: Any) -> Laid:
        """Return a struct or union laid out; raises NotUnderstoodError."""
        place = cursor.location.offset
        if place not in self.laid:
            self.laid[place] = NotUnderstoodError("it holds itself")
            try:
                self.laid[place] = self._record(cursor)
            except NotUnderstoodError as error:
                self.laid[place] = error
        laid = self.laid[place]
        if isinstance(laid, NotUnderstoodError):
            raise laid
        return laid

    def _record(self, cursor: Any) -> Laid:
        span = self.unit.span(self.unit.position(cursor.location))
        if span is None:
            raise NotUnderstoodError(f"{cursor.spelling} is declared nowhere")
        if span[0] in self.unit.wrong:
            raise NotUnderstoodError(self.unit.wrong[span[0]].text)
        kind, union = cursor.type, cursor.kind.name == "UNION_DECL"
        size = 8 * kind.get_size()
        if not 0 <= size <= MOST_BITS:
            raise NotUnderstoodError(
                f"got a struct of {size // 8} bytes, at most {MOST_BITS // 8} are allowed"
                if size > 0
                else "its size is not known"
            )
        members: list[tuple[list[Run], bool, str, int]] = []
        total, end, odd = 0, 0, self._odd(cursor)
        for member in kind.get_fields():
            position, name = self.position(member), "" if unnamed(member) else member.spelling
            if odd:
                start = self._start(cursor, member, 0 if union else end)
            else:
                start = member.get_field_offsetof()
            try:
                runs, plain, length = self._member(member, name, position, start)
            except NotUnderstoodError as error:
                raise NotUnderstoodError(str(error), position) from None
            if member.spelling or length:
                end = max(end, start + length)
            else:
                end = start
            members.append((runs, plain, name, position))
            total += len(runs)
            if total > MOST_RUNS:
                raise NotUnderstoodError(
                    f"got more than {MOST_RUNS} fields, at most {MOST_RUNS} are allowed"
                )
        align = 8 * kind.get_align()
        if odd:
            size = -(-end // align) * align
        if union:
            return Laid(
                tuple(alternatives(members)), size, all(plain for _, plain, *_ in members), align
            )
        return Laid(tuple(run for runs, *_ in members for run in runs), size, False, align)

    def _odd(self, cursor: Any) -> bool:
        """True if a record has a bit-field with ``aligned``, which GCC and clang lay out
        differently."""
        place = cursor.location.offset
        if not self.aligns:
            return False
        if place not in self.odd:
            self.odd[place] = False
            self.odd[place] = any(
                any(child.kind.name == "ALIGNED_ATTR" for child in member.get_children())
                if member.is_bitfield()
                else (record := element(member.type)).kind.name == "RECORD"
                and self._odd(record.get_declaration())
                for member in cursor.type.get_fields()
            )
        return self.odd[place]

    def _start(self, cursor: Any, member: Any, at: int) -> int:
        """The bit where GCC puts a member of such a record, after the bit where the members before
        it end."""
        limit = 8 * self.unit.source.pack(self.unit.position(cursor.location))
        own = {child.kind.name: child for child in member.get_children()}
        packed = "PACKED_ATTR" in own or any(
            child.kind.name == "PACKED_ATTR" for child in cursor.get_children()
        )
        most, asked = 8 if packed else limit, 0
        if attribute := own.get("ALIGNED_ATTR"):
            text = self.unit.source.code[self.position(member) :][:FAR]
            found = re.search(r"aligned(?:__)?\s*\(\s*(\d{1,4})\s*\)", text)
            if found is None:
                raise NotUnderstoodError(
                    f"member {member.spelling}: got {attribute.spelling!r}, allowed is a number"
                )
            if limit:
                asked = min(8 * int(found[1]), limit)
            else:
                asked = 8 * int(found[1])
        kind = element(member.type)
        size, natural = 8 * kind.get_size(), 8 * kind.get_align()
        if kind.kind.name == "RECORD":
            self.held.add(kind.get_declaration().location.offset)
            laid = self.record(kind.get_declaration())
            size, natural = laid.size, laid.align
        align = max(min(natural, most) if most else natural, asked)
        if not member.is_bitfield():
            return -(-at // align) * align
        width = member.get_bitfield_width()
        if not width:
            return -(-at // natural) * natural
        start = at
        if asked:
            start = -(-at // asked) * asked
        # for bit-fields #pragma pack comes before the attribute
        align = max(min(natural, limit or most) if most else natural, asked)
        first, last = start // natural, (start + width - 1) // natural
        if not most and first != last and last - first + 1 > size // natural:
            start = -(-start // natural) * natural
        return start

    def position(self, member: Any) -> int:
        """The position of a member's name; the end of a member without a name."""
        return self.unit.position(member.location if member.spelling else member.extent.end) - (
            not member.spelling
        )

    def _member(
        self, member: Any, name: str, position: int, start: int
    ) -> tuple[list[Run], bool, int]:
        """The runs of a member that begins at a bit, True if it is plain words, and its bits."""
        kind, counts = member.type.get_canonical(), list[int]()
        if member.is_bitfield():
            width = member.get_bitfield_width()
            if not width:
                return [], True, 0
            value, address, _ = self._plain(kind, name)
            if not name:
                value = ""
            return [Run(start, width, name, value, address, position)], False, width
        while kind.kind.name in ARRAYS:
            # a last member of unknown length has no elements
            counts.append(kind.element_count if kind.kind.name == ARRAYS[0] else 0)
            kind = kind.element_type.get_canonical()
        total = math.prod(counts)
        if total > MOST_ELEMENTS or len(counts) > MOST_DIMENSIONS:
            raise NotUnderstoodError(
                f"array {name}: got {total} elements in {len(counts)} dimensions, at most "
                f"{MOST_ELEMENTS} in {MOST_DIMENSIONS} are allowed"
            )
        if kind.kind.name == "RECORD":
            laid = self._inner(kind.get_declaration(), name)
        else:
            value, address, plain = self._plain(kind, name)
            size = 8 * kind.get_size()
            laid = Laid((Run(0, size, "", value, address, position),), size, plain)
        if total * max(1, len(laid.runs)) > MOST_RUNS:
            raise NotUnderstoodError(
                f"array {name}: got {total} elements of {len(laid.runs)} fields, at most "
                f"{MOST_RUNS} fields are allowed"
            )
        runs = []
        for n in range(total):
            for run in laid.runs:
                run = run._replace(start=start + n * laid.size + run.start)
                runs.append(_within(run, name, name + index(n, counts), kind.kind.name == "RECORD"))
        return runs, laid.plain, total * laid.size

    def _inner(self, record: Any, name: str) -> Laid:
        """The struct or union that a member holds; raises NotUnderstoodError with the member."""
        self.held.add(record.location.offset)
        try:
            return self.record(record)
        except NotUnderstoodError as error:
            if not name:
                raise
            raise NotUnderstoodError(f"member {name}: {error}") from None

    def _plain(self, kind: Any, name: str) -> tuple[str, bool, bool]:
        """The row of PLAIN for a type, or an enum; raises NotUnderstoodError."""
        if kind.kind.name == "ENUM":
            return self.enum(kind.get_declaration(), name), False, False
        if kind.kind.name in PLAIN:
            return PLAIN[kind.kind.name]
        raise NotUnderstoodError(
            f"member {name}: got the type {kind.spelling}, allowed are integers, float, enums, "
            "structs, pointers and arrays of them"
        )


def _within(run: Run, name: str, indexed: str, is_record: bool) -> Run:
    """A run with the member around it in its name; a run without a name in a record stays so."""
    full = indexed
    if is_record:
        full = ".".join(filter(None, (indexed, run.name))) if run.name else ""
    if len(full) > MOST_NAME:
        raise NotUnderstoodError(
            f"member {name[:40]}: got a name of {len(full)} characters with those around it, at "
            f"most {MOST_NAME} are allowed"
        )
    feature = ""
    if run.feature:
        feature = ".".join(filter(None, (name, run.feature)))
    return run._replace(name=full, feature=feature)


def unnamed(cursor: Any) -> bool:
    """True if a declaration has no name of its own."""
    return not cursor.spelling or "(" in cursor.spelling


def element(kind: Any) -> Any:
    """The type of an array's elements, or the type itself."""
    kind = kind.get_canonical()
    while kind.kind.name in ARRAYS:
        kind = kind.element_type.get_canonical()
    return kind


def pointed(kind: Any) -> bool:
    """True if a type is not a record or an enum: a pointer or an array."""
    return kind.get_canonical().kind.name not in ("RECORD", "ENUM")


def alternatives(members: Sequence[tuple[list[Run], bool, str, int]]) -> list[Run]:
    """Return the runs of a union: of its members that are more than plain words, as features if
    they overlap, and the bits of longer members after them."""
    chosen = [one for one in members if not one[1]] or [*members[:1]]
    owners = sorted(
        (run.start, run.start + run.width, n)
        for n, (runs, *_) in enumerate(chosen)
        for run in runs
        if run.name
    )
    clash, last = False, (0, -1)
    for start, end, n in owners:
        clash |= start < last[0] and n != last[1]
        last = max(last, (end, n))
    named = [run for runs, *_ in chosen for run in runs if run.name]
    runs = named
    if len(chosen) == 1:
        runs = named + [run for run in chosen[0][0] if not run.name]
    if clash:
        runs = []
        for n, (inner, _, name, _) in enumerate(chosen):
            feature = name or next((run.name for run in inner if run.name), f"member{n}")
            runs += [
                run._replace(feature=f"{feature}.{run.feature}" if run.feature else feature)
                for run in inner
            ]
    covered = max((run.start + run.width for run in runs), default=0)
    for inner, _, _, position in members:
        end = max((run.start + run.width for run in inner), default=0)
        if end > covered:
            runs.append(Run(covered, end - covered, "", position=position))
            covered = end
    return runs


def index(n: int, counts: Sequence[int]) -> str:
    """The subscripts of element ``n`` of an array.

    >>> index(5, [2, 3])
    '[1][2]'
    """
    out = ""
    for count in reversed(counts):
        n, here = divmod(n, count)
        out = f"[{here}]{out}"
    return out


def holes(laid: Laid) -> list[tuple[int, int, int]]:
    """Return (word, lsb, width) of the bits inside a struct that no member has.

    >>> holes(Laid((Run(0, 30, "a"), Run(32, 32, "b")), 64, False))
    [(0, 30, 2)]
    """
    out, done = [], 0
    for start, end in [
        *sorted((run.start, run.start + run.width) for run in laid.runs),
        (laid.size, laid.size),
    ]:
        if start > done:
            out += [(word, lsb, width) for word, lsb, width, _ in pieces(done, start - done)]
        done = max(done, end)
    return out


def twice(laid: Laid) -> str:
    """Return a name that two runs of a struct have on one chip; blank if there is none."""
    runs = sorted((run.name, run.feature, run.position) for run in laid.runs if run.name)
    return next((a[0] for a, b in pairwise(runs) if a[:2] == b[:2]), "")


def rows_of(block: str, laid: Laid, base: int = 0) -> Iterator[tuple[dict[str, Any], Run]]:
    """Yield a row for each word that a run of a struct has bits in, and the run."""
    for run in laid.runs:
        parts = [*pieces(run.start, run.width)]
        for word, lsb, width, at in parts:
            row: dict[str, Any] = {
                "block": block,
                "offset": base + WORD_BYTES * word,
                "field": run.name,
                "lsb": lsb,
                "width": width,
                "value": run.value if run.name else "",
                "feature": run.feature,
            }
            if len(parts) > 1 and run.name:
                row["at"] = at
            if run.address and run.name:
                row["address"] = "yes"
            yield row, run
