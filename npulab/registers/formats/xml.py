"""A bounded reader of XML: elements with their lines; no document types, no entities of the file's
own."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from xml.parsers import expat

from npulab.support.files import read_bounded

MOST_BYTES = 2**26  # of a file
MOST_DEPTH = 64
NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Element:
    """An element: ``tag`` and the names of ``attributes`` without the file's own namespace (others
    as ``URI NAME``), the text directly in it, and its line."""

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
        """The text in it and in what it holds, on one line."""
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
    """The root of a file; names of ``namespace`` lose it.

    Raises ValueError with file and line for what is no well-formed XML, declares a document type or
    an entity, or is larger, deeper or of more elements than allowed (``most`` elements).
    """
    data = read_bounded(path, MOST_BYTES)
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    roots: list[Element] = []
    above: list[Element] = []
    count, inside = 0, False

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count, inside
        count += 1
        inside = False
        if count > most or len(above) >= MOST_DEPTH:
            raise ValueError(
                f"{path}, line {parser.CurrentLineNumber}: got more than {most} elements, at "
                f"most {most} and {MOST_DEPTH} within each other are allowed"
            )
        element = Element(
            sys.intern(tag.removeprefix(f"{namespace} ")),
            attributes or NOTHING,
            path,
            parser.CurrentLineNumber,
        )
        (above[-1].children if above else roots).append(element)
        above.append(element)

    def end(_: str) -> None:
        nonlocal inside
        inside = False
        above.pop()

    def said(text: str) -> None:
        # expat gives a text in parts where its buffer ends
        nonlocal inside
        texts = above[-1].texts
        if inside:
            texts[-1] += text
        else:
            texts.append(text)
        inside = True

    def refuse(*_: Any) -> Any:
        raise ValueError(
            f"{path}, line {parser.CurrentLineNumber}: got a document type or an entity of its "
            "own, "
            "allowed is XML without them"
        )

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = said
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = refuse
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        if str(error).startswith(f"{path}, line "):
            raise
        if isinstance(error, expat.ExpatError):
            code = expat.errors.messages[error.code]
        else:
            code = str(error)
        raise ValueError(
            f"{path}, line {parser.ErrorLineNumber}: got what is no XML ({code}), allowed is "
            "well-formed "
            "XML"
        ) from None
    return roots[0]
