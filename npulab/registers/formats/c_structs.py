"""Reader of C structs: where GCC lays each member on a little-endian machine of 64 bits, as rows of
a register map.

========================= =============================================================================================
``uint32_t x : 3``        a field; a bit-field that would cross the unit of its declared type begins the next one, and
                          leaves a silent hole, which a UserWarning tells
``int``, ``float``        ``signed``, ``f32``; a pointer is an address of 64 bits
``enum e x : 2``          ``enum:e``; a name of a number that has one already is told in the warning
``uint32_t x``, ``x[4]``  a whole word, ``x[0]`` ...; what crosses words is split into pieces with ``at``
``struct { ... } x[2]``   ``x[0].member``; without a name, its members as if they stood outside
``union``                 the one member that is more than plain words of the same bits; several are refused
``uint32_t : 5``          a row without a name
========================= =============================================================================================

A block for each struct that no other struct of the file holds, named by its tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from npulab.registers.fields import WORD_BITS, WORD_BYTES
from npulab.registers.formats.c_attributes import mark_of
from npulab.registers.formats.c_declarations import Declarations
from npulab.registers.formats.c_numbers import NumberError
from npulab.registers.formats.c_types import BASIC, Kind
from npulab.registers.formats.tables import MOST_ROWS

MOST_BITS = 2 ** 24  # of a struct
MOST_DEPTH, MOST_DIMENSIONS, MOST_NAME = 64, 8, 512
POINTER_BITS = 64


class Run(NamedTuple):
    """Bits of a struct: from its start, their count, name (blank: none), meaning, position of the
    member."""

    start: int
    width: int
    name: str
    kind: Kind
    position: int


@dataclass(frozen=True)
class Laid:
    """A struct or union as it is laid out: runs of bits, size and alignment in bits, whether only
    plain words."""

    runs: tuple[Run, ...]
    size: int
    align: int
    plain: bool


@dataclass
class Layout:
    """Structs laid out one by one; ``lost`` keeps what is to be told."""

    declared: Declarations
    lost: dict[str, None] = field(default_factory=dict)
    enums: dict[str, dict[int, str]] = field(default_factory=dict)
    structs: dict[str, Any] = field(default_factory=dict)
    typedefs: dict[str, Any] = field(default_factory=dict)
    laid: dict[int, Laid] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    enum_of: dict[int, str] = field(default_factory=dict)  # the name of an enum without a tag

    def error(self, position: int, text: str) -> ValueError:
        return ValueError(f"{self.declared.source.where(position)}: {text}")

    def number(self, expression: Any, position: int, what: str) -> int:
        try:
            text = self.declared.text_of(expression)
        except RecursionError:
            raise self.error(position, f"{what}: got a sum of too many parts, allowed are fewer") from None
        text = re.sub(r"sizeof\s*\(?\s*(\w[\w ]*)\)?", lambda one: str(self._size_of(one[1].strip())), text)
        try:
            return self.declared.source.numbers.value(text)
        except NumberError as error:
            raise self.error(position, f"{what}: got {error}, allowed is a whole number") from None

    def _size_of(self, name: str) -> str:
        basic = BASIC.get(" ".join(sorted(name.split())))
        return str(basic.size // 8) if basic else "unknown"

    def kind(self, node: Any, position: int, depth: int = 0) -> Kind | Laid:
        """What a type is."""
        if depth > MOST_DEPTH:
            raise self.error(position, f"got a type that stands for another more than {MOST_DEPTH} times, allowed are "
                             "as many")
        what = type(node).__name__
        if what == "PtrDecl":
            return Kind(POINTER_BITS, POINTER_BITS, address=True, plain=False)
        if what in ("TypeDecl", "Typename"):
            return self.kind(node.type, position, depth + 1)
        if what == "Enum":
            return self.enum(node, position)
        if what in ("Struct", "Union"):
            self.held.add(id(node if node.decls is not None else self.structs.get(node.name)))
            return self.struct(node, position)
        if what == "IdentifierType":
            words = [word for word in node.names if word not in ("const", "volatile")]
            known = BASIC.get(" ".join(sorted(words)))
            if known is not None:
                return known
            if len(words) == 1 and words[0] in self.typedefs:
                return self.kind(self.typedefs[words[0]], position, depth + 1)
            raise self.error(position, f"got the type {' '.join(words)!r}, which nobody declares, allowed are those of "
                             "stdint.h, int, unsigned, float, bool and what the file declares")
        raise self.error(position, f"got a member of type {what}, allowed are numbers, pointers, structs and arrays")

    def known_enum(self, node: Any) -> bool:
        """Whether a type is an enum without a tag that stands where it is used."""
        inner: Any = node.type if type(node).__name__ == "TypeDecl" else None
        return type(inner).__name__ == "Enum" and inner.name is None and id(inner) not in self.enum_of

    def plainly(self, node: Any) -> Any:
        """A type, or what its name stands for where that is an array."""
        seen = node
        for _ in range(MOST_DEPTH):
            if type(seen).__name__ != "TypeDecl" or type(seen.type).__name__ != "IdentifierType" \
                    or seen.type.names[-1] not in self.typedefs:
                break
            seen = self.typedefs[seen.type.names[-1]]
        return seen if type(seen).__name__ == "ArrayDecl" else node

    def enum(self, node: Any, position: int, name: str = "") -> Kind:
        """An enum's type; its names are kept.  One without a tag is named after the type or member
        it is of."""
        name = self.enum_of.setdefault(id(node), node.name or name)
        if node.values is not None:
            now, values, texts = -1, dict[int, str](), set[str]()
            for one in node.values.enumerators:
                now = self.number(one.value, position, f"enumerator {one.name}") if one.value is not None else now + 1
                self.declared.source.numbers.names[one.name] = now
                text = self.declared.names_of_enumerators.get((name, one.name), one.name)
                if now < 0 or now in values or text in texts:
                    self.lost[f"{text} = {now} of enum {name or 'without a name'}" + (
                        f", which is {values[now]} too" if now in values else "")] = None
                    continue
                values[now] = text
                texts.add(text)
            if name and self.enums.setdefault(self.declared.enum_names.get(name, name), values) != values:
                if node.name:
                    raise self.error(position, f"enum {name}: got it a second time, allowed is once")
                name = next(f"{name}_{n}" for n in range(2, MOST_ROWS + 2) if f"{name}_{n}" not in self.enums)
                self.enum_of[id(node)], self.enums[name] = name, values
        known = self.declared.enum_names.get(name, name)
        if known and known not in self.enums:
            self.lost[f"enum {known}, which nobody declares"] = None
        return Kind(32, 32, f"enum:{known}" if known in self.enums else "", plain=False)

    def struct(self, node: Any, position: int) -> Laid:
        """A struct or union laid out."""
        if node.decls is None:
            if node.name not in self.structs:
                raise self.error(position, f"got {type(node).__name__.lower()} {node.name}, which nobody declares, "
                                 "allowed is one that the file declares or a pointer to it")
            node = self.structs[node.name]
        if id(node) not in self.laid:
            self.laid[id(node)] = Laid((), -1, 8, False)
            self.laid[id(node)] = self._lay(node)
        if self.laid[id(node)].size < 0:
            raise self.error(position, f"struct {node.name}: got a struct that holds itself, allowed is a pointer to "
                             "it")
        return self.laid[id(node)]

    def _lay(self, node: Any) -> Laid:
        union, packed, least = type(node).__name__ == "Union", 0, 8
        at, align, total = 0, 8, 0
        alternatives: list[tuple[list[Run], bool, str, int]] = []
        member_pack, member_align, size = 0, 0, 0
        limit = 0
        for one in node.decls:
            mark = mark_of(one)
            if mark is not None:
                word, number = mark
                if word == "packed":
                    packed = 8
                elif word == "pack":
                    limit = 8 * number
                elif word == "align":
                    least = max(least, 8 * number)
                elif word == "member_packed":
                    member_pack = 8
                else:
                    member_align = 8 * number
                continue
            if type(one).__name__ != "Decl":
                continue
            position = self.declared.position(one)
            most = member_pack or packed or limit
            asked = min(member_align, limit) if limit else member_align
            runs, end, wants, plain = self._member(one, 0 if union else at, most, limit, asked, position)
            member_pack = member_align = 0
            at, align, size = end, max(align, wants), max(size, end)
            if size > MOST_BITS:
                raise self.error(position, f"member {one.name}: got a struct of more than {MOST_BITS // 8} bytes, "
                                 "allowed are as many")
            alternatives.append((runs, plain, one.name or "", position))
            total += len(runs)
            if total > MOST_ROWS:
                raise self.error(position, f"member {one.name}: got more than {MOST_ROWS} fields, allowed are as many")
        align = max(align, least)
        size = -(-size // align) * align
        if union:
            return Laid(tuple(self._one(alternatives)), size, align, all(plain for _, plain, *_ in alternatives))
        every = [run for runs, *_ in alternatives for run in runs]
        return Laid(tuple(every), size, align, False)

    def _one(self, alternatives: Sequence[tuple[list[Run], bool, str, int]]) -> list[Run]:
        """The runs of a union's members that are more than plain words; of what others have beyond
        them the bits."""
        said = [one for one in alternatives if not one[1]] or [*alternatives[:1]]
        owners = sorted((run.start, run.start + run.width, n) for n, (some, *_) in enumerate(said) for run in some
                        if run.name)
        for (_, end, a), (start, _, b) in pairwise(owners):
            if start < end and a != b:
                names = " and ".join(said[n][2] or "a struct without a name" for n in sorted((a, b)))
                raise self.error(said[b][3], f"union: got members {names}, which overlap, allowed is one besides plain "
                                 "words of the same bits")
        named = [run for some, *_ in said for run in some if run.name]
        runs = named + [run for run in said[0][0] if not run.name] if len(said) == 1 else named
        covered = max((run.start + run.width for run in runs), default=0)
        for some, _, _, position in alternatives:
            end = max((run.start + run.width for run in some), default=0)
            if end > covered:
                runs.append(Run(covered, end - covered, "", Kind(8, 8), position))
                covered = end
        return runs

    def _member(self, one: Any, at: int, most: int, limit: int, asked: int, position: int,
                ) -> tuple[list[Run], int, int, bool]:
        """Runs of a member, the bit behind it, the alignment it wants, whether it is plain
        words."""
        if self.known_enum(one.type) and one.name:
            self.enum(one.type.type, position, one.name)
        node, counts = one.type, list[int]()
        while (node := self.plainly(node)) is not None and type(node).__name__ == "ArrayDecl":
            count = self.number(node.dim, position, f"array {one.name}") if node.dim is not None else 0
            if not 0 <= count <= MOST_ROWS or len(counts) >= MOST_DIMENSIONS:
                raise self.error(position, f"array {one.name}: got {count} elements and {len(counts)} dimensions "
                                 f"before, allowed are 0 to {MOST_ROWS} elements in up to {MOST_DIMENSIONS} dimensions")
            counts.append(count)
            node = node.type
        kind = self.kind(node, position)
        align = max(min(kind.align, most) if most else kind.align, asked)
        if one.bitsize is not None:
            # for bit-fields #pragma pack is heard before the attribute
            align = max(min(kind.align, limit or most) if most else kind.align, asked)
            return self._bits(one, kind, at, align, most > 0, asked, position)
        start = -(-at // align) * align
        inner = kind.runs if isinstance(kind, Laid) else (Run(0, kind.size, "", kind, position),)
        total = 1
        for count in counts:
            total *= count
        if total * max(1, len(inner)) > MOST_ROWS:
            raise self.error(position, f"array {one.name}: got {total} elements of {len(inner)} fields, allowed are "
                             f"{MOST_ROWS} fields")
        runs = []
        for n in range(total):
            name = (one.name or "") + _index(n, counts)
            for run in inner:
                full = ".".join(filter(None, (name, run.name)))
                if isinstance(kind, Laid) and not run.name:
                    full = ""
                if len(full) > MOST_NAME:
                    raise self.error(position, f"member {(one.name or '')[:40]}: got a name of {len(full)} characters "
                                     f"with those around it, allowed are {MOST_NAME}")
                runs.append(Run(start + n * kind.size + run.start, run.width, full, run.kind,
                                run.position if isinstance(kind, Laid) else position))
        # names inside a member without a name stand for themselves
        return runs, start + total * kind.size, align, kind.plain

    def _bits(self, one: Any, kind: Kind | Laid, at: int, align: int, packed: bool, asked: int, position: int,
              ) -> tuple[list[Run], int, int, bool]:
        width = self.number(one.bitsize, position, f"member {one.name or 'without a name'}")
        most = 0 if isinstance(kind, Laid) or kind.address else 1 if kind is BASIC["bool"] else kind.size
        if isinstance(kind, Laid) or not 0 <= width <= most or (one.name and not width):
            raise self.error(position, f"member {one.name or 'without a name'}: got a width of {width} bits, allowed "
                             f"are {'none' if not most else f'{int(bool(one.name))} to {most}'} for its type")
        if kind.value.startswith("f"):
            raise self.error(position, f"member {one.name}: got a bit-field of a float, allowed are integers")
        if not width:
            return [], -(-at // kind.align) * kind.align, 8, True
        start = -(-at // asked) * asked if asked else at
        if not packed and start // kind.align != (start + width - 1) // kind.align and \
                (start + width - 1) // kind.align - start // kind.align + 1 > kind.size // kind.align:
            start = -(-start // kind.align) * kind.align
        return [Run(start, width, one.name or "", kind._replace(plain=False), position)], start + width, \
            align if one.name else 8, False


def _index(n: int, counts: Sequence[int]) -> str:
    out = ""
    for count in reversed(counts):
        n, here = divmod(n, count)
        out = f"[{here}]{out}"
    return out


def pieces(run: Run) -> Iterator[tuple[int, int, int, int]]:
    """(word, lsb, width, at) of a run, word by word.

    >>> [*pieces(Run(30, 4, "x", Kind(32, 32), 0))]
    [(0, 30, 2, 0), (1, 0, 2, 2)]
    """
    at = 0
    while at < run.width:
        word, lsb = divmod(run.start + at, WORD_BITS)
        width = min(run.width - at, WORD_BITS - lsb)
        yield word, lsb, width, at
        at += width


def holes(laid: Laid) -> list[tuple[int, int, int]]:
    """(word, lsb, width) of the bits inside a struct that no member has.

    >>> kind = Kind(32, 32)
    >>> holes(Laid((Run(0, 30, "a", kind, 0), Run(32, 32, "b", kind, 0)), 64, 32, False))
    [(0, 30, 2)]
    """
    out, done = [], 0
    for start, end in [*sorted((run.start, run.start + run.width) for run in laid.runs), (laid.size, laid.size)]:
        if start > done:
            out += [(word, lsb, width) for word, lsb, width, _ in pieces(Run(done, start - done, "", Kind(8, 8), 0))]
        done = max(done, end)
    return out


def rows_of(block: str, laid: Laid, base: int = 0) -> Iterator[tuple[dict[str, Any], Run]]:
    """A row for each word that a run of a struct has bits of, and the run."""
    for run in laid.runs:
        parts = [*pieces(run)]
        for word, lsb, width, at in parts:
            row: dict[str, Any] = {"block": block, "offset": base + WORD_BYTES * word, "field": run.name, "lsb": lsb,
                                   "width": width, "value": run.kind.value if run.name else ""}
            if len(parts) > 1 and run.name:
                row["at"] = at
            if run.kind.address and run.name:
                row["address"] = "yes"
            yield row, run
