"""Structs of C as libclang lays them out for a little-endian machine of 64 bits, as rows of a
register map. A member becomes:

========================  ==========================================================================
``uint32_t x : 3``        a field; a bit-field that would cross a unit of its declared type (here a
                          word) begins the next unit; this leaves a silent hole, which a UserWarning
                          reports
``int``, ``float``        a field with the value ``signed``, ``f32``; a pointer is an address of 64
                          bits
``enum e x : 2``          a field with the value ``enum:e``; the warning reports a second name of a
                          number
``uint32_t x``, ``x[4]``  a whole word, ``x[0]`` ...; a member that crosses words is split into
                          pieces with ``at``
``struct { ... } x[2]``   fields ``x[0].member`` ...; without the name ``x``, fields ``member`` ...
``union``                 the fields of its one member that is not only plain words; if several such
                          members overlap, each is an alternative with a feature of its own
``uint32_t : 5``          a row without a name
========================  ==========================================================================

Plain words are members of an unsigned integer type. Each struct that no other struct of the file
contains is a block, named by its tag. A struct that is not understood is left out, and the warning
names it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from npulab.registers.fields import WORD_BYTES, Cells, NewCodes, NewEnums, pieces
from npulab.registers.formats.c_text import Unit, Wrong

MOST_BITS = 2**24  # a struct has at most so many bits
# The most elements of an array, runs of bits of a struct, dimensions of an array, and characters of
# a name. Register headers have far fewer; a broken or hostile file is refused with a sentence.
MOST_ELEMENTS, MOST_RUNS, MOST_DIMENSIONS, MOST_NAME = 2**14, 2**16, 8, 512
FAR = 2**9  # a member's attributes end at most so many characters after its name
# Matches the words with which a declaration begins.
WORDS = re.compile(r"(?:typedef\s+)?((?:[A-Za-z_]\w*\s*){1,4})")
ARRAYS = ("CONSTANTARRAY", "INCOMPLETEARRAY")
# for each kind of type, except structs, unions and enums: (value column, is an address, is a plain
# word)
PLAIN = {
    "POINTER": ("", True, False),
    "FLOAT": ("f32", False, False),
    **dict.fromkeys(("HALF", "FLOAT16"), ("f16", False, False)),
    **dict.fromkeys(("BOOL", "DOUBLE"), ("", False, False)),
    **dict.fromkeys(["SCHAR", "SHORT", "INT", "LONG", "LONGLONG"], ("signed", False, False)),
    **dict.fromkeys(
        ["UCHAR", "USHORT", "UINT", "ULONG", "ULONGLONG", "CHAR_U", "CHAR_S"], ("", False, True)
    ),
}


class Run(NamedTuple):
    """A run of bits of a struct.

    ``start`` is its first bit, counted from the start of the struct, ``width`` the number of bits.
    ``name`` is blank for bits without a name, ``value`` is the value column. ``position`` is where
    the text names the member. ``feature`` names the alternative of a union that has these bits.
    """

    start: int
    width: int
    name: str
    value: str = ""
    address: bool = False
    position: int = 0
    feature: str = ""

    @property
    def end(self) -> int:
        """The number of the first bit after the run."""
        return self.start + self.width


class Laid(NamedTuple):
    """The layout of a type: its ``runs`` of bits, its ``size`` and alignment ``align`` in bits;
    ``plain`` is True if it has only plain words.
    """

    runs: tuple[Run, ...]
    size: int
    plain: bool
    align: int = 8


class MemberRuns(NamedTuple):
    """A member of a struct or union: its ``runs`` of bits, its ``name`` and its ``position`` in the
    text; ``plain`` is True if it has only plain words."""

    runs: list[Run]
    plain: bool
    name: str
    position: int


class NotUnderstoodError(ValueError):
    """Raised for a declaration that cannot be laid out. The message says why; ``position`` says
    where in the text (-1: unknown).
    """

    def __init__(self, text: str, position: int = -1) -> None:
        super().__init__(text)
        self.position = position


class Struct(NamedTuple):
    """A struct or union that no other struct of the file contains: its name, its layout, and where
    its declaration begins and ends in the text."""

    name: str
    position: int
    end: int
    laid: Laid


@dataclass
class Layout:
    """Lays out the structs and enums of a unit. A record is a struct or union.

    ``lost`` has sentences for the warning, ``skipped`` the declarations that are left out, with the
    reasons. In ``laid``, ``held``, ``odd`` and ``enum_of``, a declaration is known by its offset in
    the file.
    """

    unit: Unit
    # the name that an annotation gives an enum, by the enum's tag
    enum_names: Mapping[str, str] = field(default_factory=dict)
    # the name that an annotation gives an enumerator, by the enum's tag and the name in C
    texts: Mapping[tuple[str, str], str] = field(default_factory=dict)
    lost: dict[str, None] = field(default_factory=dict)
    skipped: list[tuple[str, Wrong]] = field(default_factory=list)
    enums: NewEnums = field(default_factory=dict)
    # the layout of each record, or the error that says why it has none
    laid: dict[int, Laid | NotUnderstoodError] = field(default_factory=dict)
    # the records that another record contains
    held: set[int] = field(default_factory=set)
    # the answers of ``_odd``
    odd: dict[int, bool] = field(default_factory=dict)
    # for a member whose type is an enum: its cell in the column ``value``
    enum_of: NewCodes = field(default_factory=dict)

    @cached_property
    def aligns(self) -> bool:
        """True if the file, an included file or a definition contains the text "align"."""
        return "align" in "".join((self.unit.source.text, *self.unit.source.defines)).lower()

    def structs(self) -> list[Struct]:
        """Return the structs that no other struct contains; fills ``enums`` too."""
        tops: dict[int, tuple[Any, str]] = {}
        for cursor in self.unit.cursors:
            kind, place, name = cursor.kind.name, cursor.location.offset, cursor.spelling
            if kind in ("STRUCT_DECL", "UNION_DECL", "ENUM_DECL") and cursor.is_definition():
                tops[place] = cursor, tag_of(cursor)
            elif kind == "TYPEDEF_DECL":
                _rename(tops, cursor.underlying_typedef_type, name, "_")
            elif kind == "VAR_DECL":
                _rename(tops, cursor.type, name)
        # enums are read first: an enum without a tag gets the name of its type, not that of the
        # first member that has this type
        for cursor, name in tops.values():
            if cursor.kind.name == "ENUM_DECL":
                self.enum(cursor, name)
        for cursor, _ in tops.values():
            if cursor.kind.name != "ENUM_DECL":
                self._lay_out(cursor)
        out = []
        for place, (cursor, name) in tops.items():
            laid, position = self.laid.get(place), self.unit.position(cursor.location)
            span = self.unit.span(position)
            if isinstance(laid, Laid) and place not in self.held and span:
                out.append(Struct(name, position, span[1], laid))
        self.skipped += [(self._what(start), wrong) for start, wrong in self.unit.wrong.items()]
        self.skipped.sort(key=lambda skipped: skipped[1].position)
        return out

    def _what(self, start: int) -> str:
        """Return what people call the declaration at ``start``, such as ``struct job``."""
        code, (_, end) = self.unit.source.code, self.unit.span(start) or (start, start)
        words = ["declaration"]
        if head := WORDS.match(code, start):
            words = head[1].split()[:2]
        tail = re.search(r"([A-Za-z_]\w*)\s*;\s*$", code[start:end])
        if tail and len(words) < 2:
            words.append(tail[1])
        return " ".join(words)

    def _lay_out(self, cursor: Any) -> None:
        """Lay out a struct or union; add it to ``skipped`` if it is not understood."""
        position = self.unit.position(cursor.location)
        try:
            self.record(cursor)
        except NotUnderstoodError as error:
            span = self.unit.span(position)
            if span and span[0] not in self.unit.wrong:
                where = position
                if span[0] <= error.position < span[1]:
                    where = error.position
                self.skipped.append((self._what(span[0]), Wrong(where, str(error))))

    def enum(self, cursor: Any, name: str = "") -> str:
        """Return the value column of members that have an enum as their type, and add the enum to
        ``enums``. An enum without a tag is called ``name``, the name of its type or of a member.
        """
        place = cursor.location.offset
        if place in self.enum_of:
            return self.enum_of[place]
        tag = tag_of(cursor)
        name = tag or name
        values, texts = NewCodes(), set[str]()
        for child in cursor.get_children():
            spelled = child.spelling
            if child.kind.name != "ENUM_CONSTANT_DECL" or spelled == f"npulab_no_{tag}":
                continue
            text, number = self.texts.get((tag, spelled), spelled), child.enum_value
            if number >= 0 and number not in values and text not in texts:
                values[number] = text
                texts.add(text)
                continue
            lost = f"not carried over: {text} = {number} of enum {name or 'without a name'}"
            if number in values:
                lost += f", which has the name {values[number]} already"
            self.lost[lost] = None
        known = self.enum_names.get(name, name)
        span = self.unit.span(self.unit.position(cursor.location))
        if span is None:
            self.lost[f"not carried over: enum {known}, which nobody declares"] = None
        bad = span is None or (
            span[0] in self.unit.wrong and self.unit.source.code[span[0] : span[0] + 4] == "enum"
        )
        if name and not bad and self.enums.setdefault(known, values) != values:
            free = (f"{name}_{n}" for n in range(2, MOST_RUNS))
            known = next(other for other in free if other not in self.enums)
            self.enums[known] = values
        self.enum_of[place] = ""
        if known in self.enums:
            self.enum_of[place] = f"enum:{known}"
        return self.enum_of[place]

    def record(self, cursor: Any) -> Laid:
        """Return the layout of a struct or union; raises NotUnderstoodError."""
        place = cursor.location.offset
        if place not in self.laid:
            # until the record is laid out, its answer is a refusal: a record that contains itself
            # gets this answer, instead of being laid out without end
            self.laid[place] = NotUnderstoodError("the record contains itself")
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
            raise NotUnderstoodError(f"{cursor.spelling} is a record that is declared nowhere")
        if span[0] in self.unit.wrong:
            raise NotUnderstoodError(self.unit.wrong[span[0]].text)
        kind, union = cursor.type, cursor.kind.name == "UNION_DECL"
        size = 8 * kind.get_size()
        if size < 0:
            raise NotUnderstoodError("the size of the record is unknown, allowed is a known size")
        if size > MOST_BITS:
            raise NotUnderstoodError(
                f"got a struct of {size // 8} bytes, at most {MOST_BITS // 8} are allowed"
            )
        members: list[MemberRuns] = []
        runs: list[Run] = []
        begin, end, odd = 0, 0, self._odd(cursor)
        for member in kind.get_fields():
            position, name = self.position(member), tag_of(member)
            start = member.get_field_offsetof()
            if odd:
                start = self._start(cursor, member, begin)
            try:
                inner, plain, length = self._member(member, name, position, start)
            except NotUnderstoodError as error:
                raise NotUnderstoodError(str(error), position) from None
            if member.spelling or length:
                end = max(end, start + length)
            else:  # a bit-field of width 0 only moves the next member
                end = start
            if not union:
                begin = end
            members.append(MemberRuns(inner, plain, name, position))
            runs += inner
            if len(runs) > MOST_RUNS:
                raise NotUnderstoodError(
                    f"got more than {MOST_RUNS} fields, at most {MOST_RUNS} are allowed"
                )
        align = 8 * kind.get_align()
        if odd:
            size = -(-end // align) * align
        if union:
            plain = all(member.plain for member in members)
            return Laid(tuple(alternatives(members)), size, plain, align)
        return Laid(tuple(runs), size, False, align)

    def _odd(self, cursor: Any) -> bool:
        """True if a struct or union, or a record inside it, has a bit-field with the attribute
        ``aligned``. GCC and clang lay such a record out differently; ``_start`` does as GCC.
        """
        place = cursor.location.offset
        if not self.aligns:
            return False
        if place not in self.odd:
            # the answer is set before the members are looked at, because a member may be a record
            # that contains this record
            self.odd[place] = False
            self.odd[place] = any(map(self._has_odd, cursor.type.get_fields()))
        return self.odd[place]

    def _has_odd(self, member: Any) -> bool:
        """True if a member is a bit-field with the attribute ``aligned``, or a record that has
        such a bit-field."""
        if member.is_bitfield():
            return "ALIGNED_ATTR" in attributes(member)
        record = element(member.type)
        return record.kind.name == "RECORD" and self._odd(record.get_declaration())

    def _start(self, cursor: Any, member: Any, at: int) -> int:
        """Return the bit at which GCC puts a member of a record for which ``_odd`` is True; ``at``
        is the first bit after the earlier members.
        """
        limit = 8 * self.unit.source.pack(self.unit.position(cursor.location))
        own = attributes(member)
        most, asked = limit, 0
        if "PACKED_ATTR" in {**own, **attributes(cursor)}:
            most = 8
        if attribute := own.get("ALIGNED_ATTR"):
            text = self.unit.source.code[self.position(member) :][:FAR]
            found = re.search(r"aligned(?:__)?\s*\(\s*(\d{1,4})\s*\)", text)
            if found is None:
                raise NotUnderstoodError(
                    f"member {member.spelling}: got {attribute.spelling!r}, allowed is aligned "
                    "with a number"
                )
            asked = min(8 * int(found[1]), limit or MOST_BITS)
        kind = element(member.type)
        size, natural = 8 * kind.get_size(), 8 * kind.get_align()
        if kind.kind.name == "RECORD":
            self.held.add(kind.get_declaration().location.offset)
            laid = self.record(kind.get_declaration())
            size, natural = laid.size, laid.align
        align = max(min(natural, most or natural), asked)
        if not member.is_bitfield():
            return -(-at // align) * align
        width = member.get_bitfield_width()
        if not width:
            return -(-at // natural) * natural
        start = -(-at // max(asked, 1)) * max(asked, 1)
        first, last = start // natural, (start + width - 1) // natural
        # without packing, a bit-field that would cross the unit of its type begins the next unit
        if not most and first != last and last - first + 1 > size // natural:
            start = -(-start // natural) * natural
        return start

    def position(self, member: Any) -> int:
        """Return the position of a member's name in the text; if it has no name, the position of
        its last character.
        """
        if member.spelling:
            return self.unit.position(member.location)
        return self.unit.position(member.extent.end) - 1

    def _member(
        self, member: Any, name: str, position: int, start: int
    ) -> tuple[list[Run], bool, int]:
        """Return (runs, plain, length) for a member that begins at bit ``start``: its runs of bits,
        True if it has only plain words, and its length in bits.
        """
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
            count = 0  # a last member of unknown length counts as empty
            if kind.kind.name == ARRAYS[0]:
                count = kind.element_count
            counts.append(count)
            kind = kind.element_type.get_canonical()
        total = math.prod(counts)
        if total > MOST_ELEMENTS or len(counts) > MOST_DIMENSIONS:
            raise NotUnderstoodError(
                f"array {name}: got {total} elements in {len(counts)} dimensions, at most "
                f"{MOST_ELEMENTS} elements in {MOST_DIMENSIONS} dimensions are allowed"
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
        """Return the layout of the struct or union that is the type of the member ``name``; raises
        NotUnderstoodError that names the member.
        """
        self.held.add(record.location.offset)
        try:
            return self.record(record)
        except NotUnderstoodError as error:
            if not name:
                raise
            raise NotUnderstoodError(f"member {name}: {error}") from None

    def _plain(self, kind: Any, name: str) -> tuple[str, bool, bool]:
        """Return (value column, is an address, is a plain word) for a type in PLAIN and for an
        enum; raises NotUnderstoodError for any other type.
        """
        if kind.kind.name == "ENUM":
            return self.enum(kind.get_declaration(), name), False, False
        if kind.kind.name in PLAIN:
            return PLAIN[kind.kind.name]
        raise NotUnderstoodError(
            f"member {name}: got the type {kind.spelling}, allowed are integers, bool, half, "
            "float, double, enums, structs, unions, pointers and arrays of these"
        )


def _within(run: Run, name: str, indexed: str, is_record: bool) -> Run:
    """Return a run with the name of the member that contains it in front of its own name and of its
    feature. ``indexed`` is the member's name with subscripts, ``is_record`` says whether the member
    is a struct or union. A run without a name in such a member stays without a name.
    """
    full = indexed
    if is_record:
        full = ""
        if run.name:
            full = ".".join(filter(None, (indexed, run.name)))
    if len(full) > MOST_NAME:
        raise NotUnderstoodError(
            f"member {name[:40]}: got a name of {len(full)} characters, with the names of the "
            f"members that contain it, at most {MOST_NAME} are allowed"
        )
    feature = ""
    if run.feature:
        feature = ".".join(filter(None, (name, run.feature)))
    return run._replace(name=full, feature=feature)


def tag_of(cursor: Any) -> str:
    """Return the name of a declaration; blank if the file gives it none."""
    if "(" in cursor.spelling:  # libclang writes brackets if there is no name
        return ""
    return str(cursor.spelling)


def attributes(cursor: Any) -> Cells:
    """Return the cursors inside a declaration, such as its attributes, by their kind."""
    return {child.kind.name: child for child in cursor.get_children()}


def element(kind: Any) -> Any:
    """Return the type of an array's elements, for any number of dimensions; a type that is not an
    array is returned itself."""
    kind = kind.get_canonical()
    while kind.kind.name in ARRAYS:
        kind = kind.element_type.get_canonical()
    return kind


def _rename(tops: dict[int, tuple[Any, str]], kind: Any, name: str, worse: str = "") -> None:
    """Rename a record or enum of ``tops`` after its typedef or variable. ``kind`` is the type of
    the typedef or variable, and ``name`` its name. The declaration is renamed if it has no name
    or, if ``worse`` is not blank, a name that begins with ``worse``.
    """
    kind = kind.get_canonical()
    cursor, tag = tops.get(kind.get_declaration().location.offset, (None, name))
    is_worse = not tag or (worse and tag.startswith(worse))
    if cursor and is_worse and kind.kind.name in ("RECORD", "ENUM"):
        tops[cursor.location.offset] = cursor, name


def alternatives(members: Sequence[MemberRuns]) -> list[Run]:
    """Return the runs of a union: those of each member that has more than plain words or, if there
    is no such member, those of the first member. If named runs of two members overlap, the runs of
    each member get a feature of their own. Bits of longer members after these runs are added
    without a name.
    """
    # a member that has only plain words holds the same bits as another member, without names for
    # the fields
    chosen = [member for member in members if not member.plain] or [*members[:1]]
    owners: list[tuple[int, int, int]] = []
    runs: list[Run] = []
    for n, member in enumerate(chosen):
        named = [run for run in member.runs if run.name]
        owners += [(run.start, run.end, n) for run in named]
        runs += named
    clash, last = False, (0, -1)
    for start, end, n in sorted(owners):
        # runs are sorted by their first bit: a run overlaps an earlier run if it begins before the
        # furthest end so far
        clash |= start < last[0] and n != last[1]
        last = max(last, (end, n))
    # if there are several members, runs without a name are left out: another member may have a name
    # for the same bits
    if len(chosen) == 1:
        runs = [*chosen[0].runs]
    if clash:
        runs = []
        for n, member in enumerate(chosen):
            names = filter(None, (run.name for run in member.runs))
            feature = member.name or next(names, f"member{n}")
            for run in member.runs:
                full = ".".join(filter(None, (feature, run.feature)))
                runs.append(run._replace(feature=full))
    covered = max((run.end for run in runs), default=0)
    for member in members:
        end = max((run.end for run in member.runs), default=0)
        if end > covered:
            runs.append(Run(covered, end - covered, "", position=member.position))
            covered = end
    return runs


def index(n: int, counts: Sequence[int]) -> str:
    """Return the subscripts of element ``n`` of an array; ``counts`` has the number of elements in
    each dimension.

    >>> index(5, [2, 3])
    '[1][2]'
    """
    out = ""
    for count in reversed(counts):
        n, subscript = divmod(n, count)
        out = f"[{subscript}]{out}"
    return out


def holes(laid: Laid) -> list[tuple[int, int, int]]:
    """Return (word, lsb, width) of the bits inside a struct that belong to no member.

    >>> holes(Laid((Run(0, 30, "a"), Run(32, 32, "b")), 64, False))
    [(0, 30, 2)]
    """
    out, done = [], 0
    ends = sorted((run.start, run.end) for run in laid.runs)
    for start, end in (*ends, (laid.size, laid.size)):
        if start > done:
            out += [piece[:3] for piece in pieces(done, start - done)]
        done = max(done, end)
    return out


def twice(laid: Laid) -> str:
    """Return a name that two runs of a struct with the same feature have; blank if there is no such
    name."""
    runs = sorted((run.name, run.feature, run.position) for run in laid.runs if run.name)
    return next((a[0] for a, b in pairwise(runs) if a[:2] == b[:2]), "")


def rows_of(block: str, laid: Laid, base: int = 0) -> Iterator[tuple[Cells, Run]]:
    """Yield (row, run) for each run of a struct, and for each word in which the run has bits.
    ``base`` is the byte offset of the struct in its block."""
    for run in laid.runs:
        parts = [*pieces(run.start, run.width)]
        for word, lsb, width, at in parts:
            row: Cells = {"block": block, "offset": base + WORD_BYTES * word}
            row |= {"field": run.name, "lsb": lsb, "width": width, "feature": run.feature}
            if run.name:
                row["value"] = run.value
                if len(parts) > 1:
                    row["at"] = at
                if run.address:
                    row["address"] = "yes"
            yield row, run
