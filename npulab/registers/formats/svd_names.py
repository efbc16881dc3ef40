"""The elements of CMSIS-SVD by name: from which they are derived, their arrays, their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from npulab.registers.fields import NewCodes
from npulab.registers.formats.placing import FileEnums, Losses
from npulab.registers.formats.tables import MOST_ROWS
from npulab.registers.formats.xml import Element
from npulab.support.refuse import refuse_if

NPULAB = "urn:npulab:registers"  # the namespace of npulab's own words
MOST_DERIVED = 16  # an element is derived from at most so many elements, in a chain
MOST_STEPS = 2**19  # a file has at most so many elements, with those of arrays
NUMBER = re.compile(
    r"\+?(?:(?P<hex>0[xX][0-9a-fA-F]{1,16})|#(?P<bits>[01xX]{1,64})|(?P<dec>[0-9]{1,20}))"
    r"(?P<scale>[kKmMgG]?)"
)
SCALES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
DERIVED = ("peripheral", "cluster", "register", "field", "enumeratedValues")


@dataclass(frozen=True)
class Device:
    """The elements that a file declares by name, and what could not be carried over."""

    # elements from which others may be derived, by path (``PERIPHERAL.CLUSTER.REGISTER``)
    places: dict[str, Element] = field(default_factory=dict)
    # the path of the element that contains an element, by the inner element's ``id``
    scopes: NewCodes = field(default_factory=dict)
    enums: FileEnums = field(default_factory=lambda: FileEnums({}))
    # each enumeratedValues, by its name and by its path
    enum_elements: dict[str, Element] = field(default_factory=dict)
    # npulab's own words in vendorExtensions about an element, by the element's tag and path
    own: dict[tuple[str, str], Element] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    errors: list[ValueError] = field(default_factory=list)  # why elements were skipped
    # An iterator with a number for each element that is still allowed.
    steps: Iterator[int] = field(default_factory=lambda: iter(range(MOST_STEPS)))

    @property
    def is_own(self) -> bool:
        """True if npulab wrote the file."""
        return ("map", "") in self.own

    def step(self, where: str, what: str) -> None:
        """Count an element, or an element of an array; raises TooMuch above MOST_STEPS."""
        if next(self.steps, None) is None:
            raise TooMuch(
                f"{where}: {what}: got more than {MOST_STEPS} elements with those of arrays, "
                f"allowed are {MOST_STEPS} in all"
            )

    def lose(self, where: str, what: str, error: ValueError, registers: int) -> None:
        """Record that an element is skipped because it is not understood, with the number
        of its registers."""
        self.errors.append(error)
        self.losses.lose(where, f"{what}, which is not understood: {error}", registers)

    def enum_named(self, source: str, scope: str) -> Element | None:
        """Return the enumeratedValues that ``source`` names, by a name or by a path that begins in
        any element around the field ``scope``; None if there are none."""
        for path in _seen_from(scope, source):
            if path in self.enum_elements:
                return self.enum_elements[path]
        return None


def _seen_from(scope: str, source: str) -> list[str]:
    """Return the paths that ``source``, a name or path, may stand for inside the element with the
    path ``scope``; the innermost is first."""
    names = scope.split(".")
    return [".".join(filter(None, [*names[:n], source])) for n in range(len(names), -1, -1)]


class TooMuch(ValueError):
    """Raised if a file has more elements, with those of its arrays, than are allowed."""


class View(NamedTuple):
    """An element with what it inherits: ``chain`` has the element, then the element from which it
    is derived, and so on; ``path`` is its path in the file."""

    chain: tuple[Element, ...]
    path: str

    @property
    def where(self) -> str:
        return self.chain[0].where

    def text(self, tag: str) -> str:
        """Return the text of the first child with this tag, of the first element in the chain that
        has such a child; blank if there is none."""
        for element in self.chain:
            for inner in element:
                if inner.tag == tag:
                    return inner.text
        return ""

    def number(self, tag: str, default: int | None = None) -> int:
        """Return the number in the text of this tag, or the default if the text is blank; raises
        ValueError for a text that is no number, and for a blank text without a default."""
        text = self.text(tag)
        if not text and default is not None:
            return default
        return parsed(self.where, f"{self.chain[0].tag} {self.path}", tag, text)

    def every(self, *tags: str) -> list[Element]:
        """Return the children with these tags, of the first element in the chain that has such a
        child."""
        for element in self.chain:
            if found := [inner for inner in element if inner.tag in tags]:
                return found
        return []

    def inner(self, tag: str) -> list[Element]:
        """Return the children of the elements that ``every(tag)`` returns: ``inner("fields")`` are
        the fields of a register."""
        found: list[Element] = []
        for element in self.every(tag):
            found += element
        return found


class ArrayElement(NamedTuple):
    """The name and the offset of an element of an array, or of an element that is not an array."""

    name: str
    offset: int


def parsed(where: str, what: str, tag: str, text: str) -> int:
    """Return a number from a text as SVD writes it: decimal, 0x, or # for binary; k, M or G may
    follow. Raises ValueError for any other text, such as the binary digit x (a bit that does not
    matter)."""
    match = NUMBER.fullmatch(text.strip())
    if match is None or "x" in (match["bits"] or "").lower():
        got = f"no {tag}"
        if text:
            got = f"{tag} {text!r}"
        raise ValueError(
            f"{where}: {what}: got {got}, allowed is a whole number: decimal, 0x and "
            "hexadecimal digits, or # and binary digits"
        )
    if match["hex"]:
        number = int(match["hex"], 16)
    elif match["bits"]:
        number = int(match["bits"], 2)
    else:
        number = int(match["dec"])
    return number * SCALES[match["scale"].lower()]


def declare(around: Element, path: str, device: Device) -> None:
    """Record the elements inside ``around`` from which other elements may be derived, and npulab's
    own words; ``path`` is the path of ``around``."""
    for child in around:
        if child.tag in ("peripherals", "registers", "fields"):
            declare(child, path, device)
        elif child.tag in DERIVED:
            name, known = name_of(child), device.places
            own = ".".join(filter(None, (path, name)))
            device.scopes[id(child)] = path
            if child.tag == "enumeratedValues":
                known = device.enum_elements
                if name:
                    known.setdefault(name, child)
            known.setdefault(own, child)
            declare(child, own, device)
        elif child.tag == "vendorExtensions":
            for extension in child:
                if extension.tag == f"{NPULAB} map":
                    device.own["map", ""] = child
                    _declare_own(extension, device)


def _declare_own(extension: Element, device: Device) -> None:
    """Record what npulab's own words say of blocks, registers, fields and enums."""
    for inner in extension:
        tag, name = inner.tag.removeprefix(f"{NPULAB} "), inner.get("name")
        device.own[tag, name] = inner
        if tag == "enum":
            names = device.enums.own(name)
            for value in inner:
                raw = parsed(value.where, "value", "raw", value.get("raw"))
                names[raw] = value.get("name")


def name_of(*chain: Element) -> str:
    """Return the name of the first of these elements that has one; blank if none has."""
    for element in chain:
        for inner in element:
            if inner.tag == "name":
                return inner.text
    return ""


def view_of(element: Element, device: Device) -> View:
    """Return the view of an element. ``derivedFrom`` of each element in the chain is looked up from
    the place of that element outwards. Raises ValueError for a name that is not that of another
    element with the same tag, and for a chain without end or of more than ``MOST_DERIVED``
    elements."""
    path = device.scopes[id(element)]
    chain, scope = [element], path
    while source := chain[-1].get("derivedFrom"):
        places = filter(None, map(device.places.get, _seen_from(scope, source)))
        base = next(places, None)
        # a chain that comes back to an element of its own has no end
        again = any(base is earlier for earlier in chain)
        if base is None or again or base.tag != element.tag or len(chain) > MOST_DERIVED:
            raise ValueError(
                f"{element.where}: {element.tag} {name_of(element)}: got derivedFrom {source!r}, "
                f"allowed is another {element.tag} of the file, not derived from this one"
            )
        scope = device.scopes[id(base)]
        chain.append(base)
    return View(tuple(chain), ".".join(filter(None, (path, name_of(*chain)))))


def dim_of(view: View) -> int:
    """Return the number of elements of an array, 0 for an element that is not an array; raises
    TooMuch for more than MOST_ROWS."""
    count = 0
    if view.text("dim"):
        count = view.number("dim", 1)
    if count > MOST_ROWS:
        what = f"{view.chain[0].tag} {view.path}"
        raise TooMuch(f"{view.where}: {what}: got dim {count}, allowed is at most {MOST_ROWS}")
    return count


def elements(
    view: View, offset_tag: str, device: Device, default: int | None = None
) -> Iterator[ArrayElement]:
    """Yield each element of an array, or the only element. ``offset_tag`` is the tag of its offset
    (blank: the offset is 0), ``default`` the offset if that tag is empty."""
    what = f"{view.chain[0].tag} {view.path}"
    name = view.text("name")
    if not name:
        raise ValueError(
            f"{view.where}: {view.chain[0].tag} in {view.path or 'the device'}: got no name, "
            "allowed is an element with a name"
        )
    begin = 0
    if offset_tag:
        begin = view.number(offset_tag, default)
    count = dim_of(view)
    device.step(view.where, what)
    if not count:
        refuse_if("%s" in name, f"{view.where}: {what}", "no dim", "is one if the name has %s")
        yield ArrayElement(name, begin)
        return
    step = view.number("dimIncrement")
    for n, word in enumerate(_index(view, count, what)):
        device.step(view.where, what)
        numbered = f"{name}[{word}]"
        if "%s" in name:
            numbered = name.replace("%s", word)
        yield ArrayElement(numbered, begin + step * n)


def _index(view: View, count: int, what: str) -> list[str]:
    """Return the words that replace %s in the name of an array, one for each of ``count`` elements:
    those of ``dimIndex`` or, if that is blank or the name has [%s], numbers from 0 on. Raises
    ValueError if ``dimIndex`` has more or fewer words, or a word twice."""
    text = view.text("dimIndex").replace(" ", "")
    if "[%s]" in view.text("name") or not text:
        return [str(n) for n in range(count)]
    words = text.split(",")
    if match := re.fullmatch(r"(\d{1,9})-(\d{1,9})", text):
        first, last = int(match[1]), int(match[2])
        words = [str(n) for n in range(first, min(last, first + count) + 1)]
    elif match := re.fullmatch(r"([A-Z])-([A-Z])", text):
        words = [chr(n) for n in range(ord(match[1]), ord(match[2]) + 1)]
    refuse_if(
        len(words) != count or len({*words}) != count,
        f"{view.where}: {what}",
        f"dimIndex {text!r}",
        f"are {count} words, each once, or a range of as many",
    )
    return words
