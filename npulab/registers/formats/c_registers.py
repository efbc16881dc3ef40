"""The rows of a register map from the macros of a C file, and from enumerators and struct members
that are read as if they were macros.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

from npulab.registers.fields import (
    WORD_BITS,
    WORD_BYTES,
    Cells,
    Codes,
    NewCodes,
    NewEnums,
    Piece,
    Row,
    pieces,
)
from npulab.registers.formats.c_annotations import Comments, Span, comments_of
from npulab.registers.formats.c_dialects import BITS, HEX, INLINE, MARKED, Longest, tail_of
from npulab.registers.formats.c_fields import Bits, Lost, Register, runs_of
from npulab.registers.formats.c_macros import roles_of
from npulab.registers.formats.c_numbers import Facts, constants
from npulab.registers.formats.c_offsets import FEWEST
from npulab.registers.formats.c_roles import Roles
from npulab.registers.formats.c_structs import Run, Struct, index
from npulab.registers.formats.c_text import NAME, Macro, Source, Unit
from npulab.registers.formats.naming import unnumbered
from npulab.registers.table import COLUMNS
from npulab.support.refuse import refuse_if

REGMAP = re.compile(r"\b(\w+)\]?\s*=\s*REG_FIELD\w*\(\s*(\w+)\s*,\s*(\d+)\s*,\s*(\d+)\s*[,)]")
ARRAY = re.compile(r"\b([A-Za-z_]\w*)\s*\[\w*\]\s*=\s*\{([^;]*);")
ENUMERATOR = re.compile(r"\w+\s*=\s*((?:[^,}(]|\([^()]*\))+)")
MOST_LENGTH = 2**14  # an array of registers has at most so many elements
MOST_WORDS = 5  # a block's name has at most so many first words of its registers' names

Rows = list[Cells]


class Chunk(NamedTuple):
    """The rows that come from one ``position`` in the file."""

    position: int
    rows: Rows


@dataclass(frozen=True)
class MacroRegisters:
    """The registers that macros describe, and what was lost while the macros were read."""

    chunks: list[Chunk]
    enums: NewEnums
    lost: list[Lost]
    remarks: list[str]
    roles: Roles
    known: set[tuple[str, int]]  # (struct, offset) of words whose fields macros describe


class PlacedRegister(NamedTuple):
    """A register, or an element of an array of registers, and its place: the byte ``offset`` in a
    ``block``. ``name`` has the element's subscripts."""

    register: Register
    offset: int
    name: str
    block: str = ""


class Member(NamedTuple):
    """A member of a struct that is a whole word, whose fields macros describe. ``offset`` is in
    bytes, ``position`` is in the text."""

    struct: str
    offset: int
    name: str
    position: int


def registers_of_macros(
    unit: Unit,
    numbers: Mapping[str, Macro],
    values: Mapping[str, int],
    structs: Sequence[Struct],
    notes: Codes,
) -> MacroRegisters:
    """Return the registers that the macros of a unit describe; ``notes`` are the notes of struct
    members, by position.

    Raises ValueError with file and line for an annotation that contradicts its macro.
    """
    source = unit.source
    spans = (Span(macro.position, macro.end) for macro in source.macros.values())
    comments = comments_of(source, spans, before=False)
    annotated = _annotated(source, values, comments)
    members = _members(unit, structs)
    roles = _roles(unit, numbers, values, members, annotated.macros)
    lost = roles.lost + _arrays(source)
    writer = RowWriter({**notes, **comments.notes}, _meanings(source), annotated.enums, lost, [])
    block = re.sub(r"\W", "_", source.path.stem)
    places = [*_places(_elements(roles, lost), block, lost)]
    for name, member in members.items():
        register = roles.registers.get(name)
        if register and register.fields:
            places.append(PlacedRegister(register, member.offset, member.name, member.struct))
    known = {(place.block, place.offset) for place in places if place.register.macro in members}
    chunks = _chunks(writer, places, annotated.chunks)
    placed = roles.placed()
    for base, bits in roles.fields.items():
        if base not in placed and bits.position >= source.own:
            reason = (
                "no macro states the offset of a register with whose name it begins "
                "(--include FOLDER/FILE)"
            )
            lost.append(Lost("field", base, bits.position, reason))
    if roles.by_words:
        writer.remarks.append("offsets of registers, which are taken as counts of words")
    named = {item.name for item in lost}
    lost += [item for item in roles.rest() if item.name not in named]
    return MacroRegisters(chunks, writer.enums, lost, writer.remarks, roles, known)


# annotations of npulab's own


class Annotated(NamedTuple):
    """What annotations name: ``chunks`` has the rows of registers and fields, ``enums`` the enums,
    ``macros`` the names of the macros that state them.
    """

    chunks: list[Chunk]
    enums: NewEnums
    macros: set[str]


def _annotated(source: Source, values: Mapping[str, int], comments: Comments) -> Annotated:
    """Return the registers, fields and enums that npulab's own annotations name, in the order of
    the file; raises ValueError, with file and line, for an annotation that contradicts its
    macro."""
    out = Annotated([], {}, set())
    register: Cells = {}
    macros = []
    if comments.words:
        macros = [macro for macro in source.macros.values() if macro.parameters is None]
    for macro in sorted(macros, key=lambda macro: macro.position):
        words = comments.words.get(macro.position, {})
        mask = source.macros.get(f"{macro.name.removesuffix('__SHIFT')}__MASK")
        if register and mask and mask.position in comments.words:
            out.macros.add(macro.name)  # a shift whose mask has an annotation
        if not words or macro.name not in values:
            continue
        out.macros.add(macro.name)
        value, where = values[macro.name], source.where(macro.position)
        if "enum" in words:
            _add_name(out.enums, words, macro.name, value, where)
        elif "block" in words:
            refuse_if(
                value < 0 or value % WORD_BYTES,
                f"{where}: register {macro.name}",
                f"offset {value}",
                f"is a multiple of {WORD_BYTES} from 0",
            )
            name = words.get("register", "")
            register = {"block": words["block"], "offset": value, "register": name}
            out.chunks.append(Chunk(macro.position, []))
        else:
            note = comments.notes.get(macro.position, "")
            row = _annotated_field(macro.name, value, words, note, where, bool(register))
            out.chunks[-1].rows.append({**register, **row})
    return out


def _add_name(enums: NewEnums, words: Row, macro: str, value: int, where: str) -> None:
    """Add a name to an enum; raises ValueError for a number below 0, and for a number or a name
    that the enum has already."""
    names = enums.setdefault(words["enum"], {})
    text = words.get("name", macro)
    refuse_if(
        value < 0 or value in names or text in names.values(),
        f"{where}: enum {words['enum']}",
        f"{text} = {value}",
        "is each name and each number from 0 once",
    )
    names[value] = text


def _annotated_field(
    macro: str, mask: int, words: Row, note: str, where: str, placed: bool
) -> Cells:
    """Return the row of an annotated field, without its register. ``placed`` is True if a register
    came before it. Raises ValueError if none did, and for a mask that is not one run of bits of a
    word.
    """
    refuse_if(
        not placed,
        f"{where}: field {macro}",
        "a field before any register",
        "is a field after its register",
    )
    runs = runs_of(mask)
    refuse_if(
        len(runs) != 1 or mask >= 2**WORD_BITS,
        f"{where}: field {macro}",
        f"mask {mask:#x}",
        "is one run of bits of a word",
    )
    row: Cells = {"field": macro.removesuffix("__MASK"), "lsb": runs[0][0]}
    row["width"] = runs[0][1]
    if note:
        row["note"] = note
    row.update((name, value) for name, value in words.items() if name in COLUMNS)
    return row


# enumerators, members of structs and regmap fields that are treated as macros


def _roles(
    unit: Unit,
    numbers: Mapping[str, Macro],
    known: Mapping[str, int],
    members: Mapping[str, Member],
    taken: Iterable[str],
) -> Roles:
    """Return the roles of the macros that are not ``taken`` by annotations. Enumerators, words of
    structs and fields of Linux's regmap are read as if they were macros.
    """
    source = unit.source
    listed, values = _enumerators(unit)
    values = {**known, **values}
    for name, member in members.items():
        position = member.position
        listed[name] = Macro(name, None, f"{member.offset:#x} + 0", position, position)
        values[name] = member.offset
    declared = " ".join(source.code[start:end] for start, end in unit.spans)
    macros = {name: macro for name, macro in source.macros.items() if name not in taken}
    plain = {name: macro for name, macro in numbers.items() if name not in taken}
    facts = Facts(
        replace(source, macros={**macros, **listed}),
        {**plain, **constants(listed)},
        values,
        unit.refused,
        {*NAME.findall(declared)} - listed.keys(),
        members.keys(),
    )
    roles = roles_of(facts)
    roles.roles.update(dict.fromkeys(taken, "register"))
    for found in REGMAP.finditer(source.code, source.own):
        bits = Bits(found[1], found.start(), low=int(found[3]), high=int(found[4]))
        register = None
        if found[2] in roles.candidates:
            register = roles.register(found[2])
        roles.add(bits, register)
    return roles


def _arrays(source: Source) -> list[Lost]:
    """Return the arrays of hexadecimal numbers as losses, because they are not read."""
    lost = []
    # the search ends at the last semicolon: each start of an array behind it would read to the end
    end = source.code.rfind(";") + 1
    for found in ARRAY.finditer(source.code, source.own, end):
        numbers = re.findall(r"\b0[xX]", found[2])
        if len(numbers) >= FEWEST and not REGMAP.search(found[2]):
            lost.append(Lost("table", found[1], found.start(), "numbers of an array are not read"))
    return lost


def _members(unit: Unit, structs: Sequence[Struct]) -> dict[str, Member]:
    """Return those members of structs, each a word, whose fields macros describe. The key of a
    member is the text with which the names of these macros begin.

    The key is one or more neighbouring words of the struct's name, then the member's name, in
    capitals: macros of the member ``ctrl`` of ``struct npu_dma`` may begin with DMA_CTRL, NPU_CTRL
    or NPU_DMA_CTRL. The member counts only if no other struct, whose name has the same words, has a
    member of this name.
    """
    macros = unit.source.macros
    begins = Counter[str]()
    if structs:
        begins = _beginnings(macros)
    out: dict[str, Member] = {}
    registers = Longest({name for name, macro in macros.items() if HEX.fullmatch(macro.body)})
    for struct in structs:
        # a struct with pointers belongs to a program, not to the NPU
        if not begins or any(run.address for run in struct.laid.runs):
            continue
        words = struct.name.split("_")
        for run in struct.laid.runs:
            if run.width != WORD_BITS or run.start % WORD_BITS or run.feature:
                continue
            for first, last in combinations(range(len(words) + 1), 2):
                name = "_".join([*words[first:last], run.name]).upper()
                taken = name == struct.name.upper() or name in macros or registers.inside(name)
                if begins[name] and not taken and _is_only(unit, words[first:last], run):
                    offset = run.start // 8
                    out.setdefault(name, Member(struct.name, offset, run.name, run.position))
    return out


def _beginnings(macros: Mapping[str, Macro]) -> Counter[str]:
    """Count the macros of fields by each beginning of their names that ends before an
    underscore."""
    begins = Counter[str]()
    for name, macro in macros.items():
        if tail_of(name) or BITS.search(macro.body):
            begins.update(name[: cut.start()].lstrip("_") for cut in re.finditer("_", name))
    return begins


def _is_only(unit: Unit, words: Sequence[str], run: Run) -> bool:
    """True if at most one struct whose name has these words has a member with the name of the
    run."""
    pattern = rf"struct\s+(\w+_)?{'_'.join(words)}(_\w+)?\s*\{{[^}}]*\b{run.name}\s*;"
    declared = [unit.source.code[start:end] for start, end in unit.spans]
    return sum(1 for text in declared if re.match(pattern, text)) < 2


def _enumerators(unit: Unit) -> tuple[dict[str, Macro], dict[str, int]]:
    """Return the enumerators that are offsets or bits, as macros, and the numbers of all
    enumerators.

    An enum is one of offsets if at least ``FEWEST``, and all but at most one, of its enumerators
    state a number, and ``_are_offsets`` holds for these. If the file has such an enum, enumerators
    of other enums are returned too, if they are written as bits, or if their names begin with the
    name of a register. Nothing is returned for an export of npulab.
    """
    offsets: dict[str, Macro] = {}
    rest: dict[str, Macro] = {}
    values: dict[str, int] = {}
    annotated = any(name.startswith("NPULAB_") for name in unit.source.macros)
    for cursor in () if annotated else unit.cursors:
        if cursor.kind.name != "ENUM_DECL" or not cursor.is_definition():
            continue
        macros, numbers, count = {}, {}, 0
        for child in cursor.get_children():
            count += 1
            start = unit.position(child.location)
            body = ENUMERATOR.match(unit.source.code, start)
            if child.kind.name == "ENUM_CONSTANT_DECL" and body:
                name = child.spelling
                macros[name] = Macro(name, None, body[1].strip(), start, body.end())
                numbers[name] = child.enum_value
        if len(macros) >= max(FEWEST, count - 1) and _are_offsets(macros, numbers):
            offsets |= macros
        else:
            rest |= macros
        values |= numbers
    if offsets:
        plain = {name.replace("_REG_", "_").removesuffix("_OFFSET") for name in offsets}
        registers = Longest({*offsets, *plain})
        for name, macro in rest.items():
            if registers.inside(name) or BITS.search(macro.body):
                offsets[name] = macro
    return offsets, values


def _are_offsets(macros: Mapping[str, Macro], numbers: Mapping[str, int]) -> bool:
    """True if enumerators may be offsets: they are multiples of a word that are written in
    hexadecimal or as sums, they do not all lie in the first words, and they are not all single
    bits."""
    if any(number % WORD_BYTES or number < 0 for number in numbers.values()):
        return False
    flags = all(n.bit_count() <= 1 and not MARKED.fullmatch(name) for name, n in numbers.items())
    if flags or max(numbers.values()) < (FEWEST - 1) * WORD_BYTES:
        return False
    return all(re.search(r"0[xX]|\+", macro.body) for macro in macros.values())


# the places of registers


def _elements(roles: Roles, lost: list[Lost]) -> list[PlacedRegister]:
    """Return the registers that the file describes, in the order of the text; an array of registers
    is returned element by element."""
    out = []
    own = roles.facts.source.own
    registers = sorted(roles.registers.values(), key=lambda register: register.position)
    mine = any(register.position >= own for register in registers)
    for register in registers:
        if register.macro in roles.facts.members:
            continue
        # a register of an included file counts only if it has a field in this file, or if this file
        # has no registers of its own
        included = register.position < own and mine
        if included and not any(bits.position >= own for bits in register.fields):
            continue
        counts = [max(1, count) for count, _ in register.lengths]
        total = math.prod(counts)
        if total > MOST_LENGTH:
            reason = f"an array of {total} elements, at most {MOST_LENGTH} are allowed"
            lost.append(Lost("register", register.name, register.position, reason))
            continue
        if any(count == 0 for count, _ in register.lengths):
            reason = "nothing says its length, so only the first element is read (X__LEN)"
            lost.append(Lost("array", register.name, register.position, reason))
        for n in range(total):
            rest, offset = n, register.offset
            for count, (_, stride) in zip(counts[::-1], register.lengths[::-1], strict=True):
                rest, step = divmod(rest, count)
                offset += step * stride
            out.append(PlacedRegister(register, offset, register.name + index(n, counts)))
    return out


def _places(
    elements: Sequence[PlacedRegister], block: str, lost: list[Lost]
) -> Iterator[PlacedRegister]:
    """Yield each register with its block: ``block`` or, if many registers have the same offset, a
    block named after the first words of the register's name. A register whose offset is taken in
    that block gets one more block, and ``lost`` gets an entry about it.
    """
    words = _block_words(elements)
    taken: dict[tuple[str, int], str] = {}
    for register, offset, name, _ in elements:
        plain = where = _first_words(name, words) or block
        first = taken.setdefault((where, offset), name)
        n = 1
        while taken.setdefault((where, offset), name) != name:
            n += 1
            where = f"{plain}_{n}"
        if n > 1:
            reason = f"it lies at {offset:#x} where {first} lies, so it stands in the block {where}"
            lost.append(Lost("second register", name, register.position, reason))
        yield PlacedRegister(register, offset, name, where)


def _block_words(elements: Sequence[PlacedRegister]) -> int:
    """Return how many first words of a register's name are the name of its block, so that few
    registers of a block have the same offset; 0 if all registers are in one block.
    """
    clash = _clashes(elements, 0)
    # if few registers clash, only these are put into another block
    if clash < max(FEWEST, len(elements) // 20):
        return 0
    clashes = {n: _clashes(elements, n) for n in range(1, MOST_WORDS + 1)}
    # choose the fewest words that leave nearly as few clashes as the best number of words
    most = min(clashes.values()) + clash // 20
    best = next(n for n, count in clashes.items() if count <= most)
    if 2 * clashes[best] <= clash:
        return best
    return 0


def _clashes(elements: Sequence[PlacedRegister], words: int) -> int:
    """Return how many registers clash: they have the offset of an earlier register of their block,
    if the first ``words`` words of a register's name are its block.
    """
    places = {(_first_words(element.name, words), element.offset) for element in elements}
    return len(elements) - len(places)


def _first_words(name: str, words: int) -> str:
    """Return the first ``words`` words of a name, without the numbers of array elements."""
    return "_".join(unnumbered(name).split("_")[:words])


# the rows of registers


def _chunks(
    writer: RowWriter, places: Sequence[PlacedRegister], before: Sequence[Chunk]
) -> list[Chunk]:
    """Return the chunks ``before``, and a chunk for each place. If a field of one register reaches
    into the next register, and that has no fields, the row for the whole word of the next register
    is left out.
    """
    names = {(place.block, place.offset): place.name for place in places}
    spilled = set()
    chunks = [*before]
    for place in places:
        rows = writer.rows(place)
        for row in rows:
            if row["offset"] != place.offset:
                row["register"] = names.get((place.block, row["offset"]), place.name)
                spilled.add((row["block"], row["offset"]))
        chunks.append(Chunk(place.register.position, rows))
    if not spilled:
        return chunks
    out = []
    for position, rows in chunks:
        kept = []
        for row in rows:
            is_whole = row["width"] == WORD_BITS and row["field"] == row["register"]
            if "at" in row or not is_whole or (row["block"], row["offset"]) not in spilled:
                kept.append(row)
        out.append(Chunk(position, kept))
    return out


@dataclass(frozen=True)
class RowWriter:
    """Makes the rows of registers.

    ``notes`` has the notes of macros by position, ``meanings`` the value columns of fields by name.
    The writer adds the enums of named values to ``enums``, losses to ``lost``, and sentences for
    the warning to ``remarks``.
    """

    notes: Codes
    meanings: Mapping[str, str]
    enums: NewEnums
    lost: list[Lost]
    remarks: list[str]

    def rows(self, place: PlacedRegister) -> Rows:
        """Return the rows of a register; if no macro describes its fields, one row for the whole
        word."""
        register = place.register
        note = self.notes.get(register.position, "")
        out: Rows = []
        # by level, the mask of the bits that fields have: level 0 is the block itself, each further
        # level is a block of its own for fields that overlap those of lower levels
        taken: list[int] = []
        fields = sorted(register.fields, key=lambda bits: (bits.bits & -bits.bits, bits.position))
        for bits in fields:
            mask = bits.bits
            if mask <= 0:
                self.lost.append(Lost("field", bits.name, bits.position, "nothing says its bits"))
                continue
            # a map refuses overlapping fields, so each field goes to the first level at which its
            # bits are free
            level = 0
            while level < len(taken) and taken[level] & mask:
                level += 1
            if level == len(taken):
                taken.append(0)
            taken[level] |= mask
            out += self._field_rows(bits, place, level)
        if not out:
            whole = Bits(register.name, 0, 2**WORD_BITS - 1, values=register.values)
            row = self._row(place, place.block, 0, WORD_BITS)
            return [{**row, "field": place.name, "note": note, "value": self._enum(whole)}]
        if note:  # the register's note goes to its lowest field
            out[0]["note"] = f"{register.name}: {note} {out[0]['note']}".strip()
        return out

    def _row(self, place: PlacedRegister, block: str, lsb: int, width: int) -> Cells:
        """Return the cells of a row that say where a run of bits is."""
        row = {"block": block, "offset": place.offset, "register": place.name}
        return {**row, "lsb": lsb, "width": width}

    def _field_rows(self, bits: Bits, place: PlacedRegister, level: int) -> Iterator[Cells]:
        """Yield a row for each run of bits of a field. At ``level`` 1 or more, the field overlaps
        another field of its register, so its rows are in another block.
        """
        register, block = place.register, place.block
        if level:
            block += "_overlaps"
            if level > 1:
                block += f"_{level}"
            reason = (
                f"another field of {register.name} has its bits, so it stands in the block {block}"
            )
            self.lost.append(Lost("second field", bits.name, bits.position, reason))
        value = self.meanings.get(bits.name, "")
        if value == "f32" and bits.bits != 2**WORD_BITS - 1:
            value = ""
        value = self._enum(bits) or value
        runs = [*_words(bits.bits)]
        name = register.short(bits.name)
        if len(runs) > 1:
            name = f"{place.name}.{name}" if register.lengths else bits.name
        evidence = ""
        if bits.guess:
            evidence = "guess"
        for word, lsb, width, at in runs:
            row = self._row(place, block, lsb, width)
            row["offset"] += WORD_BYTES * word
            row |= {"field": name, "value": value, "evidence": evidence}
            row["note"] = self.notes.get(bits.position, "")
            if len(runs) > 1:
                row["at"] = at
            yield row

    def _enum(self, bits: Bits) -> str:
        """Return the value column of a field with named values, and add its enum to ``enums`` if it
        is new; blank for a field without named values.
        """
        if not bits.values:
            return ""
        name = re.sub(r"\W", "_", bits.name)
        if name not in self.enums:
            self.enums[name] = self._names(bits)
        if self.enums[name]:
            return f"enum:{name}"
        return ""

    def _names(self, bits: Bits) -> NewCodes:
        """Return the named values of a field by raw number.

        The numbers have their bits where they are in the register (and are shifted down) if each of
        them is inside the field's mask, and this is certain: the field is strict, a number is
        written as bits, or a number is too large to be counted from the field's lowest bit.
        Otherwise they are raw numbers already.
        """
        low = bits.lowest
        most = 2 ** (bits.bits.bit_length() - low)
        named = bits.values.values()
        in_place = not any(number.value & ~bits.bits for number in named)
        from_zero = all(number.value < most for number in named)
        sure = bits.strict or any(number.in_place for number in named)
        out: NewCodes = {}
        for name, (value, _) in bits.values.items():
            raw = value
            if in_place and (sure or not from_zero):
                raw = value // 2**low
            if raw < most and raw not in out:
                out[raw] = name
            else:
                self.remarks.append(
                    f"{bits.name}_{name} = {value:#x}, which does not fit into its field, or "
                    "has another name already"
                )
        return out


def _words(mask: int) -> Iterator[Piece]:
    """Yield the bits of a mask of at most 64 bits as pieces, each in one word. ``at`` of a piece
    counts only bits of the mask."""
    held = 0  # the number of bits of the mask that are yielded already
    for start, width in runs_of(mask):
        yield from pieces(start, width, held)
        held += width


def _meanings(source: Source) -> dict[str, str]:
    """Return the value columns of fields, by name, from the inline functions that envytools
    writes."""
    out: dict[str, str] = {}
    for found in INLINE.finditer(source.code):
        name, kind, argument, body = found.groups()
        shift = re.search(rf"\b{argument}\s*\)*\s*>>\s*(\d{{1,2}})\b", body)
        factor = re.search(rf"\b{argument}\s*\)*\s*\*\s*(\d+)\.0\b", body)
        words = []
        if kind == "int32_t" or "(int32_t)" in body:
            words.append("signed")
        # only a division by a power of two can be stated by >>
        if factor and int(factor[1]).bit_count() == 1:
            words.append(f"raw>>{int(factor[1]).bit_length() - 1}")
        elif shift and 0 < int(shift[1]) < WORD_BITS:
            words.append(f"raw*{2 ** int(shift[1])}")
        if kind == "float" and "fui" in body:
            words = ["f32"]
        if words:
            out[name] = " ".join(words)
    return out
