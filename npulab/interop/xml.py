"""A bounded reader of XML: elements with their lines; no document types, no entities of the file's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.parsers import expat

MOST_BYTES = 2 ** 23  # of a file
MOST_ELEMENTS, MOST_DEPTH = 2 ** 15, 64
CHUNK = 2 ** 16


@dataclass(frozen=True, slots=True)
class Element:
    """An element: ``tag`` and the names of ``attributes`` without the file's own namespace (others as ``URI NAME``),
    the text directly in it, and its line."""

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


def read_xml(path: Path, namespace: str) -> Element:
    """The root of a file; names of ``namespace`` lose it.

    Raises ValueError with file and line for what is no well-formed XML, declares a document type or an entity, or is
    larger, deeper or of more elements than allowed.
    """
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{path}: got {size} bytes, allowed are {MOST_BYTES}")
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    roots: list[Element] = []
    above: list[Element] = []
    count = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if count > MOST_ELEMENTS or len(above) >= MOST_DEPTH:
            raise ValueError(f"{path}, line {parser.CurrentLineNumber}: got more than {MOST_ELEMENTS} elements or "
                             f"{MOST_DEPTH} within each other, allowed are as many")
        element = Element(tag.removeprefix(f"{namespace} "), attributes, path, parser.CurrentLineNumber)
        (above[-1].children if above else roots).append(element)
        above.append(element)

    def refuse(*_: Any) -> Any:
        raise ValueError(f"{path}, line {parser.CurrentLineNumber}: got a document type or an entity of its own, "
                         "allowed is XML without them")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: above.pop()
    parser.CharacterDataHandler = lambda text: above[-1].texts.append(text)
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = refuse
    data = path.read_bytes()
    try:
        for begin in range(0, len(data), CHUNK):
            parser.Parse(data[begin:begin + CHUNK], False)
        parser.Parse(b"", True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        if str(error).startswith(f"{path}, line "):
            raise
        code = expat.errors.messages[error.code] if isinstance(error, expat.ExpatError) else str(error)
        raise ValueError(f"{path}, line {parser.ErrorLineNumber}: got what is no XML ({code}), allowed is well-formed "
                         "XML") from None
    return roots[0]
