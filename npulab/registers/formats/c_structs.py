"""Structs of C as libclang lays them out for a little-endian machine of 64 bits, as rows of a
register map.

========================  ==========================================================================
``uint32_t x : 3``        a field; a bit-field that would cross the unit of its declared type begins
                          the next unit and leaves a silent hole, which a UserWarning reports
``int``, ``float``        ``signed``, ``f32``; a pointer is an address of 64 bits
``enum e x : 2``          ``enum:e``; the warning reports a second name of a number
``uint32_t x``, ``x[4]``  a whole word, ``x[0]`` ...; a member that crosses words is split into
                          pieces with ``at``
``struct { ... } x[2]``   ``x[0].member``; without ``x``, its members as if they stood outside
``union``                 the one member that is not only plain words; if several such members
                          overlap, each is an alternative with a feature of its own
``uint32_t : 5``          a row without a name
========================  ==========================================================================

Each struct that no other struct of the file contains is a block, named by its tag. A struct that is
not understood is left out, and the warning names it.
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

MOST_BITS = 2**24  # most bits of a struct
# Limits far above what register headers have, so that a broken or hostile file ends with a
# sentence: elements of an array, runs of bits of a struct, dimensions, characters of a name.
MOST_ELEMENTS, MOST_RUNS, MOST_DIMENSIONS, MOST_NAME = 2**14, 2**16, 8, 512
FAR = 2**9  # most characters from a member's name to the end of its attributes
# the words with which a declaration begins
WORDS = re.compile(r"(?:typedef\s+)?((?:[A-Za-z_]\w*\s*){1,4})")
ARRAYS = ("CONSTANTARRAY", "INCOMPLETEARRAY")
# for each kind of type but records and enums: the value column, True for an address, True for plain
# words
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
    """Bits of a struct: their first bit and number, name (blank: none), value column, True for an
    address, the member's position in the text, and the alternative of a union to which they
    belong.
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
    """The layout of a type: runs of bits, size in bits, True if it is only plain words, and
    alignment in bits.
    """

    runs: tuple[Run, ...]
    size: int
    plain: bool
    align: int = 8


class MemberRuns(NamedTuple):
    """A member of a struct or union: its runs of bits, True if it is only plain words, its name
    and position."""

    runs: list[Run]
    plain: bool
    name: str
    position: int


class NotUnderstoodError(ValueError):
    """Raised for a declaration that cannot be laid out; the message says why, and ``position``
    where.
    """

    def __init__(self, text: str, position: int = -1) -> None:
        super().__init__(text)
        self.position = position


class Struct(NamedTuple):
    """The layout of a struct or union that no other struct of the file contains."""

    name: str
    position: int
    end: int
    laid: Laid


@dataclass
class Layout:
    """The structs and enums of a unit; ``lost`` has sentences for the warning, ``skipped`` the
    declarations that are left out, with the reasons.
    """

    unit: Unit
    # names of enums in annotations, by tag
    enum_names: Mapping[str, str] = field(default_factory=dict)
    # names of enumerators in annotations, by tag and by name in C
    texts: Mapping[tuple[str, str], str] = field(default_factory=dict)
    lost: dict[str, None] = field(default_factory=dict)
    skipped: list[tuple[str, Wrong]] = field(default_factory=list)
    enums: NewEnums = field(default_factory=dict)
    laid: dict[int, Laid | NotUnderstoodError] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    odd: dict[int, bool] = field(default_factory=dict)
    # the value column of an enum's members, by the enum's position
    enum_of: NewCodes = field(default_factory=dict)

    @cached_property
    def aligns(self) -> bool:
        """True if the files mention an alignment anywhere."""
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
        # enums are read first: the name of its type suits an enum better than the name of a member
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
        """The first words of a declaration, as people call it: ``struct job``."""
        code, (_, end) = self.unit.source.code, self.unit.span(start) or (start, start)
        words = ["declaration"]
        if head := WORDS.match(code, start):
            words = head[1].split()[:2]
        tail = re.search(r"([A-Za-z_]\w*)\s*;\s*$", code[start:end])
        if tail and len(words) < 2:
            words.append(tail[1])
        return " ".join(words)

    def _lay_out(self, cursor: Any) -> None:
        """Lay out a struct or union; adds it to ``skipped`` if it is not understood."""
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
        """Return the value column of an enum's members, and add the enum's names to ``enums``. An
        enum without a tag is called ``name``, after its type or member.
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
            # this refusal stays until the record is laid out: a record that contains itself meets
            # it instead of recursing without end
            self.laid[place] = NotUnderstoodError("it contains itself")
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
        if size < 0:
            raise NotUnderstoodError("its size is not known")
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
        """True if a struct or union has a bit-field with the attribute ``aligned``, at any depth:
        GCC and clang lay it out differently.
        """
        place = cursor.location.offset
        if not self.aligns:
            return False
        if place not in self.odd:
            # the answer is set before the members are asked, because one of them may contain this
            # record
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
        """The bit at which GCC puts a member of a record for which ``_odd`` is True; ``at`` is the
        bit after the members before it.
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
        """The position of a member's name in the text; for a member without a name, that of its
        end.
        """
        if member.spelling:
            return self.unit.position(member.location)
        return self.unit.position(member.extent.end) - 1

    def _member(
        self, member: Any, name: str, position: int, start: int
    ) -> tuple[list[Run], bool, int]:
        """The runs of a member that begins at bit ``start``, True if it is only plain words, and
        its length in bits.
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
        """The layout of the struct or union that is a member's type; raises NotUnderstoodError that
        names the member.
        """
        self.held.add(record.location.offset)
        try:
            return self.record(record)
        except NotUnderstoodError as error:
            if not name:
                raise
            raise NotUnderstoodError(f"member {name}: {error}") from None

    def _plain(self, kind: Any, name: str) -> tuple[str, bool, bool]:
        """The row of PLAIN for a type; for an enum, a row with its value column. Raises
        NotUnderstoodError for other types.
        """
        if kind.kind.name == "ENUM":
            return self.enum(kind.get_declaration(), name), False, False
        if kind.kind.name in PLAIN:
            return PLAIN[kind.kind.name]
        raise NotUnderstoodError(
            f"member {name}: got the type {kind.spelling}, allowed are integers, float, enums, "
            "structs, pointers and arrays of them"
        )


def _within(run: Run, name: str, indexed: str, is_record: bool) -> Run:
    """Return a run with the name of the member that contains it in front of its own name.

    A run without a name inside a record stays without a name.
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
    """The name of a declaration; blank if the file gives it none."""
    if "(" in cursor.spelling:  # libclang writes brackets if there is no name
        return ""
    return str(cursor.spelling)


def attributes(cursor: Any) -> Cells:
    """Return the cursors inside a declaration, such as its attributes, by their kind."""
    return {child.kind.name: child for child in cursor.get_children()}


def element(kind: Any) -> Any:
    """The type of an array's elements, for any number of dimensions; any other type itself."""
    kind = kind.get_canonical()
    while kind.kind.name in ARRAYS:
        kind = kind.element_type.get_canonical()
    return kind


def _rename(tops: dict[int, tuple[Any, str]], kind: Any, name: str, worse: str = "") -> None:
    """Give a record or enum the name of its typedef or variable, if it has no name, or a name
    that begins with ``worse`` (an underscore).
    """
    kind = kind.get_canonical()
    cursor, tag = tops.get(kind.get_declaration().location.offset, (None, name))
    is_worse = not tag or (worse and tag.startswith(worse))
    if cursor and is_worse and kind.kind.name in ("RECORD", "ENUM"):
        tops[cursor.location.offset] = cursor, name


def alternatives(members: Sequence[MemberRuns]) -> list[Run]:
    """Return the runs of a union. They are the runs of its members that are not only plain words,
    each member with a feature if they overlap, and after them the bits of longer members,
    without a name.
    """
    # a member that is only plain words shows the same bits as the other members, without names for
    # them
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
    # the runs without a name are kept for a single member; several members may have names for each
    # other's
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
    """The subscripts of element ``n`` of an array.

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
    """Return a name that two runs of a struct with the same feature have; blank if all differ."""
    runs = sorted((run.name, run.feature, run.position) for run in laid.runs if run.name)
    return next((a[0] for a, b in pairwise(runs) if a[:2] == b[:2]), "")


def rows_of(block: str, laid: Laid, base: int = 0) -> Iterator[tuple[Cells, Run]]:
    """Yield (row, run) for each word in which a run of a struct has bits."""
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
