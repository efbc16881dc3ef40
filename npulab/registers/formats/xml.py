"""A bounded reader of XML: elements with their lines; document types and entities are refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from xml.parsers import expat

from npulab.support.files import read_bounded

MOST_BYTES = 2**26  # a file has at most so many bytes
MOST_DEPTH = 64  # at most so many elements are inside each other
NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a file, with its line, its inner elements (``children``), and the pieces of
    text directly in it (``texts``).

    A tag or the name of an attribute is ``NAME`` in the namespace that ``read_xml`` was given, and
    ``URI NAME`` in any other namespace.
    """

    tag: str
    attributes: Mapping[str, str]
    path: Path
    line: int
    children: list[Element] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Element]:
        return iter(self.children)

    @property
    def text(self) -> str:
        """The text in the element and in its inner elements, on one line."""
        return " ".join(" ".join(self._every()).split())

    @property
    def where(self) -> str:
        return f"{self.path}, line {self.line}"

    def get(self, name: str, default: str = "") -> str:
        return self.attributes.get(name, default)

    def _every(self) -> Iterator[str]:
        yield from self.texts
        for child in self:
            yield from child._every()


def read_xml(path: Path, namespace: str, most: int) -> Element:
    """Return the root element of a file; tags in ``namespace`` are written without it.

    Raises ValueError, with file and line, for text that is not well-formed XML or declares a
    document type or an entity, and for more than ``most`` elements or more than ``MOST_DEPTH``
    inside each other; ValueError for a file of more than ``MOST_BYTES``.
    """
    data = read_bounded(path, MOST_BYTES)
    builder = Builder(path, f"{namespace} ", most)
    parser = builder.parser
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        # errors of the builder's handlers pass through expat; they name file and line already
        if str(error).startswith(f"{path}, line "):
            raise
        reason = str(error)
        if isinstance(error, expat.ExpatError):
            reason = expat.errors.messages[error.code]
        raise ValueError(
            f"{path}, line {parser.ErrorLineNumber}: got what is no XML ({reason}), allowed is "
            "well-formed XML"
        ) from None
    return builder.roots[0]


class Builder:
    """Makes elements from what expat reports, and refuses a file that exceeds the bounds."""

    def __init__(self, path: Path, namespace: str, most: int) -> None:
        self.roots: list[Element] = []
        self._path, self._namespace, self._most = path, namespace, most
        self._above: list[Element] = []
        self._count = 0
        self._in_text = False
        self.parser = expat.ParserCreate(namespace_separator=" ")
        # without a buffer, expat hands over the text of an element line by line
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._add_text
        # an entity that is made of other entities can grow without bound, and an external entity
        # would open another file
        self.parser.StartDoctypeDeclHandler = self._refuse
        self.parser.EntityDeclHandler = self._refuse
        self.parser.ExternalEntityRefHandler = self._refuse

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        line = self.parser.CurrentLineNumber
        self._count += 1
        self._in_text = False
        if self._count > self._most or len(self._above) >= MOST_DEPTH:
            raise ValueError(
                f"{self._path}, line {line}: got more than {self._most} elements, or more than "
                f"{MOST_DEPTH} within each other, allowed are fewer"
            )
        # a file has many elements but few tags: each tag is kept in memory once
        name = sys.intern(tag.removeprefix(self._namespace))
        element = Element(name, attributes or NOTHING, self._path, line)
        siblings = self.roots
        if self._above:
            siblings = self._above[-1].children
        siblings.append(element)
        self._above.append(element)

    def _end(self, _: str) -> None:
        self._in_text = False
        self._above.pop()

    def _add_text(self, text: str) -> None:
        texts = self._above[-1].texts
        if self._in_text:  # expat cuts a text in two at the end of its buffer
            texts[-1] += text
        else:
            texts.append(text)
        self._in_text = True

    def _refuse(self, *_: Any) -> Any:
        raise ValueError(
            f"{self._path}, line {self.parser.CurrentLineNumber}: got a document type or an entity "
            "of its own, allowed is XML without them"
        )
