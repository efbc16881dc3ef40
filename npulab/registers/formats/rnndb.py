"""Reader of rnndb (rules-ng) XML: the register databases of nouveau, etnaviv and Mesa.

========================  ==========================================================================
``domain``                a block; offsets count ``width`` bits (8 by default)
``reg32``, ``reg64``      a register, with ``length`` and ``stride`` an array of registers; 64 bits
                          are two words, ``reg8`` and ``reg16`` share a word
``array``, ``stripe``,    the registers in it, ``length`` times: ``NAME[2].REGISTER``, without a
``use-group``             name ``REGISTER[2]``; a group, and a stripe without a length, stand once;
                          an array with nothing in it is an array of registers
``bitfield``              a field: ``pos``, or ``low`` and ``high`` inclusive; a register without
                          any is a field of its own bits, by default all
``align``                 the bytes that an address is a multiple of
``type``                  uint, hex, boolean, int (signed), fixed and ufixed (``radix``), fixedp
                          (half of the bits), float, a named enum or bitset, a domain (the field is
                          an address); ``shr``: stored shifted right; ``spectype`` gives a type
                          another name
``value``                 in a field or register: its own enum, named after it
``variants``              the feature that has it; a list or range (``A-C``) of the ``varset`` gives
                          a row for each; of two varsets the inner one counts
``brief``, ``doc``        the note of the field; a register's is in the note of its lowest field,
                          after the register's name
``import``                another file, named from the folder of this file or from a folder above it
========================  ==========================================================================

A domain of width 32 counts bytes if every offset of such domains is a multiple of 4, as in files
that write byte addresses so, and words otherwise. Attributes of ``NPULAB`` hold what npulab's
table has and rnndb has no word for. Source: envytools' rules-ng-ng; files of etna_viv and Mesa.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from npulab.registers.fields import WORD_BITS, WORD_BYTES
from npulab.registers.formats.placing import NO_WORD, Found, Register, placed
from npulab.registers.formats.rnndb_names import (
    WORDS,
    Names,
    declare,
    features_of,
    named,
    need,
    note_of,
    number,
    parsed,
    refuse_others,
    values_in,
)
from npulab.registers.formats.tables import MOST_ROWS, RegisterTable
from npulab.registers.formats.xml import MOST_DEPTH, Element, read_xml
from npulab.support.refuse import refuse_if

NAMESPACE = "http://nouveau.freedesktop.org/"
# of our own attributes: at, value, address, align, evidence, nameless, addresses
NPULAB = "urn:npulab:registers"
FILES = 64
FOLDERS_ABOVE = 3  # in which imports are looked for
MOST_ELEMENTS = 2**18
PLAIN = ("", "uint", "hex", "boolean", "bitfield", "address", "waddress")
POINTERS = ("address", "waddress")
SIZES = {"reg8": 8, "reg16": 16, "reg32": WORD_BITS, "reg64": 2 * WORD_BITS}
TOP = ("copyright", "import", "enum", "bitset", "spectype", "group", "domain", "doc", "brief")
INSIDE = (*SIZES, "array", "stripe", "use-group", "doc", "brief", "enum", "bitset", "group")
REGISTER = ("bitfield", "value", "doc", "brief")


class DomainPlace(NamedTuple):
    """The place of an element in a domain: offset in the domain's units, the name so far, its
    features (None: all), their varset, the numbers of stripes without a name, which the next
    name takes, and the copies that the arrays around it make."""

    offset: int
    name: str
    variants: frozenset[str] | None
    varset: str
    numbers: str = ""
    copies: int = 1


def read_rnndb(path: Path, include: Sequence[Path] = ()) -> RegisterTable:
    """Return the registers of a database and of the files it imports, which lie in its folder or
    below, in a folder above or in a folder of ``include``.

    A UserWarning names what the table has no place for: a second register at an address, a
    second field on the same bits, a group that no domain uses, a second name of an enum's value,
    a value without a number, a type that is declared nowhere. Raises ValueError with file and
    line for a broken file, FileNotFoundError for no file.
    """
    path = Path(path)
    own = path.resolve().parent
    folders = [
        own,
        *(Path(folder).resolve() for folder in include),
        *[*own.parents][:FOLDERS_ABOVE],
    ]
    tops = [*_tops(path, folders, {path.resolve()})]
    names = Names()
    for one in tops:
        declare(one, names)
    domains = [one for one in tops if one.tag == "domain"]
    by_words = _by_words(domains, names)
    said = {
        _block(domain): domain.get(f"{NPULAB} addresses") == "true"
        for domain in domains
        if domain.get(f"{NPULAB} addresses")
    }
    table = placed(
        _every_register(domains, by_words, names),
        names.enums.by_name,
        names.losses,
        "\n\n".join(dict.fromkeys(_copyright(one) for one in tops if one.tag == "copyright")),
        said,
    )
    for name, group in names.groups.items():
        if name not in names.used:
            count = sum(inner.tag in SIZES for inner in _below(group))
            names.losses.lose(group.where, f"group {name}, which no domain uses", count)
    names.losses.warn(path)
    return table


def _every_register(domains: Sequence[Element], by_words: bool, names: Names) -> Iterator[Register]:
    for domain in domains:
        block = _block(domain)
        width = number(domain, "width", 8)
        if width not in (8, 16, 32, 64):
            raise ValueError(
                f"{domain.where}: domain {domain.get('name')}: got width {width}, allowed is 8, "
                "16, 32 or 64"
            )
        unit = 1
        if width != WORD_BITS or by_words:
            unit = width // 8
        start = DomainPlace(0, "", *features_of(domain, None, "", names))
        for element, place in _registers(domain, start, names, unit):
            fields = tuple(
                sorted(_bitfields(element, place, block, names), key=lambda one: one.low)
            )
            if fields:  # else no variant has the register
                yield Register(
                    block,
                    place.offset * unit,
                    SIZES.get(element.tag, WORD_BITS),
                    place.name,
                    element.where,
                    note_of(element),
                    fields,
                )


def _block(domain: Element) -> str:
    """The name of the block that a domain becomes."""
    if domain.get(f"{NPULAB} nameless") != "yes":
        return domain.get("name")
    return ""


def _found(
    one: Element,
    bits: tuple[int, int],
    name: str,
    said: tuple[str, bool],
    variants: frozenset[str] | None,
) -> Iterator[Found]:
    """Yield a field with its value column and True if it is an address, once for each of its
    features.
    """
    value, pointer = said
    row: dict[str, Any] = {
        "value": value,
        "note": note_of(one),
        "evidence": one.get(f"{NPULAB} evidence"),
    }
    if pointer:
        row |= {"address": "yes"}
    else:
        row |= {}
    if pointer and one.get("align"):
        row |= {"align": number(one, "align")}
    else:
        row |= {}
    row |= {
        name: number(one, f"{NPULAB} {name}")
        for name in ("at", "align")
        if one.get(f"{NPULAB} {name}")
    }
    for blank in one.get(f"{NPULAB} nameless").split():
        row[blank] = ""
    own = one.get(f"{NPULAB} feature")
    for feature in [own] if own else [""] if variants is None else sorted(variants):
        yield Found(name, *bits, one.where, {**row, "feature": feature})


def _below(element: Element) -> Iterator[Element]:
    for inner in element:
        yield inner
        yield from _below(inner)


def _tops(path: Path, folders: Sequence[Path], seen: set[Path]) -> Iterator[Element]:
    """Yield the top elements of a database, imports in their place, each file once."""
    root = read_xml(path, NAMESPACE, MOST_ELEMENTS)
    refuse_if(root.tag != "database", root.where, f"the element {root.tag}", "is database")
    for one in root:
        refuse_others(one, TOP, root)
        if one.tag != "import":
            yield one
            continue
        real = _imported(one, folders)
        if real not in seen:
            if len(seen) >= FILES:
                raise ValueError(
                    f"{one.where}: import: got more than {FILES} files, at most {FILES} are allowed"
                )
            seen.add(real)
            yield from _tops(real, folders, seen)


def _imported(one: Element, folders: Sequence[Path]) -> Path:
    """The file that an import names, from the first folder that has it."""
    file = Path(need(one, "file"))
    if not file.is_absolute() and ".." not in file.parts:
        for folder in folders:
            real = (folder / file).resolve()
            if real.is_file() and real.is_relative_to(folder):
                return real
    raise ValueError(
        f"{one.where}: import: got {one.get('file')!r}, allowed is a file that lies in "
        f"{folders[0]} or "
        "below, in a folder above it, or in one given with --include"
    )


def _by_words(domains: Sequence[Element], names: Names) -> bool:
    """True if the offsets of domains of width 32 count words: not all are multiples of 4."""
    return any(
        place.offset % WORD_BYTES
        for domain in domains
        if number(domain, "width", 8) == WORD_BITS
        for _, place in _registers(domain, DomainPlace(0, "", None, ""), names, 1)
    )


def _registers(
    around: Element,
    place: DomainPlace,
    names: Names,
    unit: int,
    depth: int = 0,
) -> Iterator[tuple[Element, DomainPlace]]:
    """Yield every register below an element, arrays element by element."""
    if depth > MOST_DEPTH:
        raise ValueError(
            f"{around.where}: got more than {MOST_DEPTH} groups within each other, at most "
            f"{MOST_DEPTH} "
            "are allowed"
        )
    for one in around:
        refuse_others(one, INSIDE, around)
        if one.tag in (*WORDS, "enum", "bitset", "group"):
            continue
        for inner in _elements(one, place, names, unit):
            names.step(one)
            if one.tag in SIZES or (
                one.tag == "array" and inner.name and all(some.tag in WORDS for some in one)
            ):
                yield one, inner
            elif one.tag == "use-group":
                names.used.add(one.get("name"))
                yield from _registers(
                    named(one, "name", names.groups), inner, names, unit, depth + 1
                )
            else:
                yield from _registers(one, inner, names, unit, depth + 1)


def _elements(one: Element, place: DomainPlace, names: Names, unit: int) -> Iterator[DomainPlace]:
    """Yield the place of each element of an array, stripe or register; one place without an
    array."""
    variants, varset = features_of(one, place.variants, place.varset, names)
    name = ""
    if one.tag != "use-group":
        name = one.get("name")
    own = ".".join(filter(None, (place.name, name)))
    begins: Sequence[int] = [
        parsed(one, "offsets", text) for text in one.get("offsets").replace(",", " ").split()
    ]
    if not begins:
        begin, length = number(one, "offset", 0), number(one, "length", 1)
        step = number(one, "stride", SIZES.get(one.tag, 0) // 8 // unit)
        refuse_if(
            length > MOST_ROWS or (length > 1 and not step),
            f"{one.where}: {one.tag} {own}",
            f"length {length}, stride {step}",
            f"is up to {MOST_ROWS}, with a stride above 0",
        )
        if length > 1:
            begins = range(begin, begin + step * length, step)
        else:
            begins = [begin] * length
    copies = place.copies * len(begins)
    refuse_if(
        copies > MOST_ROWS,
        f"{one.where}: {one.tag} {own}",
        f"{copies} elements of arrays in arrays",
        f"are up to {MOST_ROWS}",
    )
    many = bool(one.get("offsets")) or one.tag == "array" or len(begins) > 1
    for n, begin in enumerate(begins):
        if name:
            named_so = own + place.numbers + (f"[{n}]" if many else "")
            yield DomainPlace(place.offset + begin, named_so, variants, varset, copies=copies)
        else:
            numbers = place.numbers + (f"[{n}]" if len(begins) > 1 else "")
            yield DomainPlace(place.offset + begin, own, variants, varset, numbers, copies)


class Within(NamedTuple):
    """The bitset that a field is in: its lowest bit, the beginning of its fields' names, its depth
    in other bitsets."""

    low: int = 0
    prefix: str = ""
    depth: int = 0


def _bitfields(
    around: Element, place: DomainPlace, block: str, names: Names, within: Within | None = None
) -> Iterator[Found]:
    """Yield the fields of an element and of the bitset that is its type; the register itself if it
    has none."""
    low, prefix, depth = within or Within()
    refuse_if(depth > MOST_DEPTH, around.where, "bitsets within each other", f"are {MOST_DEPTH}")
    bitset = None
    if around.tag != "bitset":
        bitset = names.bitsets.get(around.get("type"))
    fields = [element for element in around if element.tag == "bitfield"]
    for element in around:
        refuse_others(element, REGISTER, around)
    if bitset is not None:
        variants, varset = features_of(bitset, place.variants, place.varset, names)
        inner = place._replace(variants=variants, varset=varset)
        yield from _bitfields(bitset, inner, block, names, Within(low, prefix, depth + 1))
    if not fields and bitset is None and around.tag in (*SIZES, "array"):
        first, last = _bits(around, 0, SIZES.get(around.tag, WORD_BITS) - 1)
        said = _value(around, last - first + 1, place.name, block, names)
        yield from _found(around, (first, last), "", said, place.variants)
    for element in fields:
        names.step(element)
        variants, varset = features_of(element, place.variants, place.varset, names)
        name = prefix + need(element, "name")
        first, last = _bits(element)
        if element.get("type") in names.bitsets:
            inner = place._replace(variants=variants, varset=varset)
            inside = Within(low + first, f"{name}.", depth + 1)
            yield from _bitfields(element, inner, block, names, inside)
        else:
            said = _value(element, last - first + 1, f"{place.name}_{name}", block, names)
            yield from _found(element, (low + first, low + last), name, said, variants)


def _bits(one: Element, low: int | None = None, high: int | None = None) -> tuple[int, int]:
    """Return the lowest and the highest bit that an element gives; the given bits if it gives none."""
    if one.get("pos"):
        return number(one, "pos"), number(one, "pos")
    return number(one, "low", low), number(one, "high", high)


def _value(one: Element, width: int, name: str, block: str, names: Names) -> tuple[str, bool]:
    """The value column of a field, and True if it is an address."""
    kind, shift = names.types.get(one.get("type"), one.get("type")), number(one, "shr", 0)
    said = one.get(f"{NPULAB} value")
    # a name of an enum or bitset comes before that of a domain
    is_block = kind in names.domains and kind not in (*names.enums.by_name, *names.bitsets)
    pointer = kind in POINTERS or is_block or one.get(f"{NPULAB} address") == "yes"
    if said:
        names.enums.refuse_unknown(said, one.where)
        return said, pointer
    own = values_in(one, names)
    if own:
        return names.enums.take("", block, name, own, one.where), pointer
    if (enum := NO_WORD.sub("_", kind)) in names.enums.by_name:
        return f"enum:{enum}", pointer
    if kind == "float" and width in (16, 32):
        return f"f{width}", pointer
    if kind not in (*PLAIN, "int", "fixed", "ufixed", "fixedp") and not pointer:
        names.lose(one, f"the type {kind!r} of {name}, which nobody declares for {width} bits")
    if shift >= WORD_BITS:
        raise ValueError(f"{one.where}: got shr {shift}, allowed is up to {WORD_BITS - 1}")
    if kind in ("int", "fixed", "fixedp"):
        signed = "signed "
    else:
        signed = ""
    step = ""
    if shift:
        step = f"*{2**shift}"
    if kind == "fixedp":
        radix = width // 2
    elif kind in ("fixed", "ufixed"):
        radix = number(one, "radix", 0)
    else:
        radix = 0
    if radix:
        step += f">>{radix}"
    return (f"{signed}raw{step}" if step else signed).strip(), pointer


def _copyright(one: Element) -> str:
    """The copyright as lines of text, from which ``rnndb_writing`` makes the elements again."""
    lines = []
    if one.get("year"):
        lines = [f"Copyright {one.get('year')}"]
    for author in (inner for inner in one if inner.tag == "author"):
        nicks = ", ".join(inner.get("name") for inner in author if inner.tag == "nick")
        mail = ""
        if author.get("email"):
            mail = f" <{author.get('email')}>"
        lines.append(
            f"Author: {author.get('name')}{mail}{f' ({nicks})' if nicks else ''}: "
            f"{author.text}".rstrip(": ")
        )
    for licence in (inner for inner in one if inner.tag == "license"):
        lines += ["", *(line.rstrip() for line in "".join(licence.texts).strip().splitlines())]
    return "\n".join(lines).strip()
