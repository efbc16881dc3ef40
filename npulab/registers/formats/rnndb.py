"""Reader of rnndb (rules-ng) XML: the register databases of nouveau, etnaviv and Mesa.

====================================
==================================================================================
``domain``                           a block; offsets count ``width`` bits (8 where it is not said)
``reg32``, ``reg64``                 a register, with ``length`` and ``stride`` an array of them; 64 bits are two words,
                                     ``reg8`` and ``reg16`` share one
``array``, ``stripe``, ``use-group`` what is inside, ``length`` times: ``NAME[2].REGISTER``, without
a name
                                     ``REGISTER[2]``; a group, and a stripe without a length, stand
                                     once; an array with nothing inside is one of registers
``bitfield``                         a field: ``pos``, or ``low`` and ``high`` inclusive; without one, all the register
                                     or the bits that it says itself
``align``                            of an address, the bytes it is a multiple of
``type``                             uint, hex, boolean, int (signed), fixed and ufixed (``radix``), fixedp (half of the
                                     bits), float, a named enum or bitset, a domain (the field is an
                                     address); ``shr``: stored shifted right; ``spectype`` gives a
                                     type another name
``value``                            in a field or register: its own enum, named after it
``variants``                         the feature that has it; a list or range (``A-C``) of the ``varset`` gives a row
                                     for each; of two varsets the inner one
``brief``, ``doc``                   the note of the field; of a register, of its lowest field, behind its name
``import``                           another file, named from the folder of this one or from one above it
====================================
==================================================================================

A domain of width 32 counts bytes where every offset of such domains is a multiple of 4, as in the
files that write byte addresses so, and words otherwise.  What npulab's table has and rnndb has no
word for stands in attributes of ``NPULAB``.  Source: envytools' rules-ng-ng; files of etna_viv and
Mesa.
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
FOLDERS_ABOVE = 3  # that imports are looked for in
MOST_ELEMENTS = 2**18
PLAIN = ("", "uint", "hex", "boolean", "bitfield", "address", "waddress")
POINTERS = ("address", "waddress")
SIZES = {"reg8": 8, "reg16": 16, "reg32": WORD_BITS, "reg64": 2 * WORD_BITS}
TOP = ("copyright", "import", "enum", "bitset", "spectype", "group", "domain", "doc", "brief")
INSIDE = (*SIZES, "array", "stripe", "use-group", "doc", "brief", "enum", "bitset", "group")
REGISTER = ("bitfield", "value", "doc", "brief")


class Place(NamedTuple):
    """Where in a domain something stands: offset in its units, the name so far, its features (None:
    all), the varset they are of, the numbers of stripes without a name, for the next name, and how
    many copies the arrays around it make."""

    offset: int
    name: str
    variants: frozenset[str] | None
    varset: str
    numbers: str = ""
    copies: int = 1


def read_rnndb(path: Path, include: Sequence[Path] = ()) -> RegisterTable:
    """The registers of a database and of the files it imports, which lie in its folder or below, in
    a folder above or in one of ``include``.

    A UserWarning names what the table has no place for: a second register at an address, a second
    field on the same bits, a group that no domain uses, a second name of an enum's value, a value
    without a number, a type that nobody declares.  Raises ValueError with file and line for what is
    broken, FileNotFoundError for no file.
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
                "16, 32 or "
                "64"
            )
        unit = 1
        if width != WORD_BITS or by_words:
            unit = width // 8
        start = Place(0, "", *features_of(domain, None, "", names))
        for element, place in _registers(domain, start, names, unit):
            fields = tuple(sorted(_runs(element, place, block, names), key=lambda one: one.low))
            if fields:  # else it is of no variant
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
    """The block that a domain is."""
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
    """A field with its value and whether it is an address, once for each of its features."""
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
    """The top elements of a database, its imports in their place, each file once."""
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
    """The file that an import names, from the first of the folders that has it."""
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
    """Whether the offsets of domains of width 32 count words: not all are multiples of 4."""
    return any(
        place.offset % WORD_BYTES
        for domain in domains
        if number(domain, "width", 8) == WORD_BITS
        for _, place in _registers(domain, Place(0, "", None, ""), names, 1)
    )


def _registers(
    around: Element,
    place: Place,
    names: Names,
    unit: int,
    depth: int = 0,
) -> Iterator[tuple[Element, Place]]:
    """Every register below an element, those of arrays one by one."""
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


def _elements(one: Element, place: Place, names: Names, unit: int) -> Iterator[Place]:
    """Where each element of an array, stripe or register stands; one where it is no array."""
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
            yield Place(place.offset + begin, named_so, variants, varset, copies=copies)
        else:
            numbers = place.numbers + (f"[{n}]" if len(begins) > 1 else "")
            yield Place(place.offset + begin, own, variants, varset, numbers, copies)


def _runs(
    around: Element,
    place: Place,
    block: str,
    names: Names,
    low: int = 0,
    prefix: str = "",
    depth: int = 0,
) -> Iterator[Found]:
    """The fields that an element has, those of the bitset that is its type too; the register itself
    where it has none."""
    refuse_if(depth > MOST_DEPTH, around.where, "bitsets within each other", f"are {MOST_DEPTH}")
    bitset = None
    if around.tag != "bitset":
        bitset = names.bitsets.get(around.get("type"))
    fields = [one for one in around if one.tag == "bitfield"]
    for one in around:
        refuse_others(one, REGISTER, around)
    if bitset is not None:
        inside, varset = features_of(bitset, place.variants, place.varset, names)
        yield from _runs(
            bitset,
            place._replace(variants=inside, varset=varset),
            block,
            names,
            low,
            prefix,
            depth + 1,
        )
    if not fields and bitset is None and around.tag in (*SIZES, "array"):
        first, last = _bits(around, 0, SIZES.get(around.tag, WORD_BITS) - 1)
        said = _value(around, last - first + 1, place.name, block, names)
        yield from _found(around, (first, last), "", said, place.variants)
    for one in fields:
        names.step(one)
        variants, varset = features_of(one, place.variants, place.varset, names)
        name = prefix + need(one, "name")
        first, last = _bits(one)
        if one.get("type") in names.bitsets:
            inner = place._replace(variants=variants, varset=varset)
            yield from _runs(one, inner, block, names, low + first, f"{name}.", depth + 1)
        else:
            said = _value(one, last - first + 1, f"{place.name}_{name}", block, names)
            yield from _found(one, (low + first, low + last), name, said, variants)


def _bits(one: Element, low: int | None = None, high: int | None = None) -> tuple[int, int]:
    """The lowest and highest bit that an element says it has, or these where it says nothing."""
    if one.get("pos"):
        return number(one, "pos"), number(one, "pos")
    return number(one, "low", low), number(one, "high", high)


def _value(one: Element, width: int, name: str, block: str, names: Names) -> tuple[str, bool]:
    """The value column of a field, and whether it is an address."""
    kind, shift = names.types.get(one.get("type"), one.get("type")), number(one, "shr", 0)
    said = one.get(f"{NPULAB} value")
    # enums and bitsets come first by their name
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
    """The copyright as lines of text; ``rnndb_writing`` makes the elements of it again."""
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
