"""Reader of rnndb (rules-ng) XML: the register databases of nouveau, etnaviv and Mesa.

========================  ==========================================================================
``domain``                a block; offsets count units of ``width`` bits (8 by default)
``reg32``, ``reg64``      a register, with ``length`` and ``stride`` an array of registers; 64 bits
                          are two words, ``reg8`` and ``reg16`` share a word
``array``, ``stripe``,    the registers in it, ``length`` times (once by default), each named
``use-group``             ``NAME[2].REGISTER``, or ``REGISTER[2]`` if the array has no name; a group
                          stands once; an array with nothing in it is an array of registers
``bitfield``              a field: ``pos``, or ``low`` and ``high`` inclusive; a register without
                          bitfields is one field, of its ``low`` to ``high``, by default of all bits
``align``                 an address is a multiple of so many bytes
``type``                  uint, hex, boolean, int (signed), fixed and ufixed (``radix``), fixedp
                          (half of the bits), float, a named enum or bitset, a domain (the field is
                          an address); ``shr``: stored shifted right; ``spectype`` gives a type
                          another name
``value``                 in a field or register: a name in its own enum, which has its name
``variants``              the feature that has the element; for a list or range (``A-C``) of names
                          of the ``varset`` there is a row for each; if elements inside each other
                          name two varsets, the inner varset counts
``brief``, ``doc``        the note of the field; the note of a register is put into that of its
                          lowest field, after the register's name
``import``                another file, named relative to the folder of the database, to a folder
                          above it, or to a folder of ``include``
========================  ==========================================================================

Domains of width 32 count words. But if every offset of all such domains is a multiple of 4, they
count bytes, because some files state byte addresses with this width. Attributes in the namespace
``NPULAB`` have what npulab's table can say and rnndb cannot. Source: envytools' rules-ng-ng; files
of etna_viv and Mesa.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from npulab.registers.fields import WORD_BITS, WORD_BYTES, Cells
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
# the namespace of npulab's attributes: at, value, address, align, evidence, nameless, addresses
NPULAB = "urn:npulab:registers"
FILES = 64  # a database has at most so many files, with the imports of imports
FOLDERS_ABOVE = 3  # so many folders above that of the database may have imported files
MOST_ELEMENTS = 2**18  # a file has at most so many elements
PLAIN = ("", "uint", "hex", "boolean", "bitfield", "address", "waddress")
POINTERS = ("address", "waddress")
SIZES = {"reg8": 8, "reg16": 16, "reg32": WORD_BITS, "reg64": 2 * WORD_BITS}
TOP = ("copyright", "import", "enum", "bitset", "spectype", "group", "domain", "doc", "brief")
INSIDE = (*SIZES, "array", "stripe", "use-group", "doc", "brief", "enum", "bitset", "group")
REGISTER = ("bitfield", "value", "doc", "brief")


class DomainPlace(NamedTuple):
    """The place of an element in a domain, and what the elements that contain it say.

    ``offset`` is in the domain's units, ``name`` has the names that contain the element.
    ``variants`` are its features (None: all), which are names of ``varset``. ``numbers`` has the
    subscripts of arrays without a name; the next name gets them. ``copies`` is how often the arrays
    repeat it.
    """

    offset: int
    name: str
    variants: frozenset[str] | None
    varset: str
    numbers: str = ""
    copies: int = 1


def read_rnndb(path: Path, include: Sequence[Path] = ()) -> RegisterTable:
    """Return the registers of a database and of the files that it imports. These files are in its
    folder, in one of the ``FOLDERS_ABOVE`` folders above it, in a folder of ``include``, or below
    one of these folders.

    A UserWarning names what the table has no place for, such as a second register at an address, a
    second field with the same bits, a group that no domain uses, a second name of an enum's value,
    a value without a number, a type that is declared nowhere, or an outer varset. Raises
    ValueError, with file and line, for a broken file, FileNotFoundError for no file.
    """
    path = Path(path)
    own = path.resolve().parent
    folders = [own, *(Path(folder).resolve() for folder in include)]
    folders += [*own.parents][:FOLDERS_ABOVE]
    tops = [*_tops(path, folders, {path.resolve()})]
    names = Names()
    # a type may be used before its declaration, or in another file: all names are collected first
    for top in tops:
        declare(top, names)
    domains = [top for top in tops if top.tag == "domain"]
    said = {}
    for domain in domains:
        if addresses := domain.get(f"{NPULAB} addresses"):
            said[_block(domain)] = addresses == "true"
    copyrights = dict.fromkeys(_copyright(top) for top in tops if top.tag == "copyright")
    registers = _every_register(domains, _by_words(domains, names), names)
    table = placed(registers, names.enums.by_name, names.losses, "\n\n".join(copyrights), said)
    for name, group in names.groups.items():
        if name not in names.used:
            count = sum(inner.tag in SIZES for inner in _below(group))
            names.losses.lose(group.where, f"group {name}, which no domain uses", count)
    names.losses.warn(path)
    return table


def _every_register(domains: Sequence[Element], by_words: bool, names: Names) -> Iterator[Register]:
    """Yield the registers of all domains; ``by_words`` says whether domains of width 32 count words
    (True) or bytes."""
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
            fields = sorted(_bitfields(element, place, block, names), key=attrgetter("low"))
            if fields:  # without fields, the register is in no variant
                offset, size = place.offset * unit, SIZES.get(element.tag, WORD_BITS)
                note = note_of(element)
                yield Register(block, offset, size, place.name, element.where, note, tuple(fields))


def _block(domain: Element) -> str:
    """Return the name of the block that a domain becomes."""
    if domain.get(f"{NPULAB} nameless") != "yes":
        return domain.get("name")
    return ""


def _found(
    element: Element,
    bits: tuple[int, int],
    name: str,
    said: tuple[str, bool],
    variants: frozenset[str] | None,
) -> Iterator[Found]:
    """Yield the field of an element, once for each of its features. ``bits`` are its lowest and
    highest bit, ``said`` is its value column and True if it is an address.
    """
    value, pointer = said
    row: Cells = {"value": value, "note": note_of(element)}
    row["evidence"] = element.get(f"{NPULAB} evidence")
    if pointer:
        row["address"] = "yes"
        if element.get("align"):
            row["align"] = number(element, "align")
    for column in ("at", "align"):
        if element.get(f"{NPULAB} {column}"):
            row[column] = number(element, f"{NPULAB} {column}")
    row.update(dict.fromkeys(element.get(f"{NPULAB} nameless").split(), ""))
    features = [element.get(f"{NPULAB} feature")]
    if variants is not None and not features[0]:
        features = sorted(variants)
    for feature in features:
        yield Found(name, *bits, element.where, {**row, "feature": feature})


def _below(element: Element) -> Iterator[Element]:
    """Yield every element inside an element, at any depth."""
    for inner in element:
        yield inner
        yield from _below(inner)


def _tops(path: Path, folders: Sequence[Path], seen: set[Path]) -> Iterator[Element]:
    """Yield the top elements of a database; an import is replaced by the top elements of its file,
    the first time that the file is imported. ``seen`` has the files so far."""
    root = read_xml(path, NAMESPACE, MOST_ELEMENTS)
    refuse_if(root.tag != "database", root.where, f"the element {root.tag}", "is database")
    for top in root:
        refuse_others(top, TOP, root)
        if top.tag != "import":
            yield top
            continue
        real = _imported(top, folders)
        if real not in seen:
            if len(seen) >= FILES:
                raise ValueError(
                    f"{top.where}: import: got more than {FILES} files, at most {FILES} are allowed"
                )
            # a file counts as seen before its own imports are read, because two files may import
            # each other
            seen.add(real)
            yield from _tops(real, folders, seen)


def _imported(element: Element, folders: Sequence[Path]) -> Path:
    """Return the file that an import names, from the first folder that has it."""
    file = Path(need(element, "file"))
    if not file.is_absolute() and ".." not in file.parts:
        for folder in folders:
            real = (folder / file).resolve()
            # a symbolic link in the folder may lead out of it
            if real.is_file() and real.is_relative_to(folder):
                return real
    raise ValueError(
        f"{element.where}: import: got {element.get('file')!r}, allowed is a file that lies in "
        f"{folders[0]}, in one of the {FOLDERS_ABOVE} folders above it, or in a folder given with "
        "--include, or below one of these folders"
    )


def _by_words(domains: Sequence[Element], names: Names) -> bool:
    """True if the offsets of domains of width 32 count words, because one of them is not a multiple
    of 4; False if they are taken as bytes."""
    start = DomainPlace(0, "", None, "")
    for domain in domains:
        if number(domain, "width", 8) == WORD_BITS:
            registers = _registers(domain, start, names, 1)
            if any(place.offset % WORD_BYTES for _, place in registers):
                return True
    return False


def _registers(
    around: Element,
    place: DomainPlace,
    names: Names,
    unit: int,
    depth: int = 0,
) -> Iterator[tuple[Element, DomainPlace]]:
    """Yield (element, place) of every register at any depth inside an element; an array of
    registers is yielded element by element."""
    if depth > MOST_DEPTH:
        raise ValueError(
            f"{around.where}: got more than {MOST_DEPTH} groups within each other, at most "
            f"{MOST_DEPTH} are allowed"
        )
    for element in around:
        refuse_others(element, INSIDE, around)
        if element.tag in (*WORDS, "enum", "bitset", "group"):
            continue
        is_empty = all(inner.tag in WORDS for inner in element)
        for inner in _elements(element, place, names, unit):
            names.step(element)
            holder = element
            if element.tag == "use-group":
                names.used.add(element.get("name"))
                holder = named(element, "name", names.groups)
            if element.tag in SIZES or (element.tag == "array" and inner.name and is_empty):
                yield element, inner
            else:
                yield from _registers(holder, inner, names, unit, depth + 1)


def _elements(
    element: Element, place: DomainPlace, names: Names, unit: int
) -> Iterator[DomainPlace]:
    """Yield the place of each element of an array, stripe or register, or its only place if it is
    not an array. ``place`` is that of the element around it, ``unit`` the bytes that offsets
    count."""
    variants, varset = features_of(element, place.variants, place.varset, names)
    name = ""
    if element.tag != "use-group":
        name = element.get("name")
    own = ".".join(filter(None, (place.name, name)))
    where = f"{element.where}: {element.tag} {own}"
    offsets = element.get("offsets").replace(",", " ").split()
    begins: Sequence[int] = [parsed(element, "offsets", text) for text in offsets]
    if not begins:
        begin, length = number(element, "offset", 0), number(element, "length", 1)
        step = number(element, "stride", SIZES.get(element.tag, 0) // 8 // unit)
        refuse_if(
            length > MOST_ROWS or (length > 1 and not step),
            where,
            f"length {length}, stride {step}",
            f"is up to {MOST_ROWS}, with a stride above 0",
        )
        begins = [begin + step * n for n in range(length)]
    copies = place.copies * len(begins)
    refuse_if(
        copies > MOST_ROWS,
        where,
        f"{copies} elements of arrays in arrays",
        f"are up to {MOST_ROWS}",
    )
    many = len(begins) > 1
    has_index = many or (name and (offsets or element.tag == "array"))
    for n, begin in enumerate(begins):
        numbers = place.numbers
        if has_index:
            numbers += f"[{n}]"
        inner = DomainPlace(place.offset + begin, own, variants, varset, numbers, copies)
        if name:
            inner = inner._replace(name=own + numbers, numbers="")
        yield inner


class Within(NamedTuple):
    """The bitset that contains a field: its lowest bit in the register, the beginning of its
    fields' names, and the number of bitsets that contain it."""

    low: int = 0
    prefix: str = ""
    depth: int = 0


def _bitfields(
    around: Element, place: DomainPlace, block: str, names: Names, within: Within | None = None
) -> Iterator[Found]:
    """Yield the fields of a register, bitfield or bitset, and of the bitset that is its type. A
    register without fields is yielded as one field without a name."""
    low, prefix, depth = within or Within()
    got = f"more than {MOST_DEPTH} bitsets within each other"
    refuse_if(depth > MOST_DEPTH, around.where, got, f"are {MOST_DEPTH}")
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


def _bits(element: Element, low: int | None = None, high: int | None = None) -> tuple[int, int]:
    """Return the lowest and the highest bit of an element: its ``pos``, or its ``low`` and
    ``high``; the arguments are used for an attribute that is missing."""
    if element.get("pos"):
        return number(element, "pos"), number(element, "pos")
    return number(element, "low", low), number(element, "high", high)


def _value(element: Element, width: int, name: str, block: str, names: Names) -> tuple[str, bool]:
    """Return the value column of a field of ``width`` bits, and True if it is an address; ``name``
    is the name of the enum if the element itself has values."""
    kind, shift = element.get("type"), number(element, "shr", 0)
    kind = names.types.get(kind, kind)
    said = element.get(f"{NPULAB} value")
    # if a type is the name of an enum or bitset and of a domain, the domain does not count
    is_block = kind in names.domains and kind not in (*names.enums.by_name, *names.bitsets)
    pointer = kind in POINTERS or is_block or element.get(f"{NPULAB} address") == "yes"
    if said:
        names.enums.refuse_unknown(said, element.where)
        return said, pointer
    own = values_in(element, names)
    if own:
        return names.enums.take("", block, name, own, element.where), pointer
    if (enum := NO_WORD.sub("_", kind)) in names.enums.by_name:
        return f"enum:{enum}", pointer
    if kind == "float" and width in (16, 32):
        return f"f{width}", pointer
    if kind not in (*PLAIN, "int", "fixed", "ufixed", "fixedp") and not pointer:
        names.lose(element, f"the type {kind!r} of {name}, which nobody declares for {width} bits")
    if shift >= WORD_BITS:
        raise ValueError(f"{element.where}: got shr {shift}, allowed is up to {WORD_BITS - 1}")
    words, steps, radix = [], "", 0
    if kind in ("int", "fixed", "fixedp"):
        words.append("signed")
    if kind == "fixedp":
        radix = width // 2
    elif kind in ("fixed", "ufixed"):
        radix = number(element, "radix", 0)
    if shift:
        steps = f"*{2**shift}"
    if radix:
        steps += f">>{radix}"
    if steps:
        words.append(f"raw{steps}")
    return " ".join(words), pointer


def _copyright(element: Element) -> str:
    """Return the copyright as lines of text, from which ``rnndb_writing`` makes the same
    elements."""
    lines = []
    if element.get("year"):
        lines = [f"Copyright {element.get('year')}"]
    for author in (inner for inner in element if inner.tag == "author"):
        nicks = ", ".join(inner.get("name") for inner in author if inner.tag == "nick")
        line = f"Author: {author.get('name')}"
        if author.get("email"):
            line += f" <{author.get('email')}>"
        if nicks:
            line += f" ({nicks})"
        lines.append(f"{line}: {author.text}".rstrip(": "))
    for licence in (inner for inner in element if inner.tag == "license"):
        lines += ["", *(line.rstrip() for line in "".join(licence.texts).strip().splitlines())]
    return "\n".join(lines).strip()
