"""The coefficient buffer between bytes and values: plain zero-run streams (V7) and Huffman streams
(V8)."""

from __future__ import annotations

from collections.abc import Iterator

from npulab.npus.kit import Item
from npulab.npus.vivante.coefficients import buffers, huffman, pairs, plain, runs
from npulab.npus.vivante.coefficients.buffers import Coefficients, Event, Geometry
from npulab.npus.vivante.coefficients.pairs import choose_symbols
from npulab.npus.vivante.coefficients.runs import choose_zrl
from npulab.quant.emulate import compiles
from npulab.support.extras import needed

MANY = 2**20  # weights for which it pays to load numba
__all__ = [
    "Coefficients",
    "Event",
    "Geometry",
    "choose_symbols",
    "choose_zrl",
    "decode",
    "encode",
    "sizes",
    "walk",
]


def walk(buffer: bytes, geometry: Geometry) -> Iterator[Item]:
    """Every bit of the buffer as an ``Item``, in order.

    Raises ValueError with core, byte and bit where the buffer does not follow the format.
    """
    return (huffman if geometry.huffman else plain).walk(buffer, geometry)


def sizes(buffer: bytes, geometry: Geometry) -> list[int]:
    """Bytes of each core's stream as it lies in the buffer, 0 for idle cores; raises ValueError
    where they do not fit the buffer."""
    if geometry.huffman:
        return [huffman.stream_bytes(bits) for bits in huffman.read_header(buffer, geometry).bits]
    return plain.sizes(buffer, geometry)


def decode(buffer: bytes, geometry: Geometry, fast: bool | None = None) -> Coefficients:
    """The buffer's content; raises ValueError as ``walk`` does.

    ``fast`` uses compiled loops (the extra ``npulab[fast]``), by default for many weights where it
    is installed; the content is the same.
    """
    compiled = _compiled(geometry, fast)
    buffers.refuse_size(buffer, geometry)
    content = (pairs if geometry.huffman else runs).decode(buffer, geometry, compiled)
    if content is None:
        for _ in walk(buffer, geometry):  # says what is wrong
            pass
        raise AssertionError("coefficients: array and bit by bit readings differ")
    return content


def encode(coefficients: Coefficients, geometry: Geometry, fast: bool | None = None) -> bytes:
    """The buffer of ``coefficients``, filled with zeros to its ``size``; the inverse of ``decode``.

    Raises ValueError for content that does not go with the geometry, Unsupported for zero runs of
    the vendor. ``fast`` as with ``decode``; the plain format has no need of it.
    """
    buffers.refuse_content(coefficients, geometry)
    if geometry.huffman:
        return pairs.encode(coefficients, geometry, _compiled(geometry, fast))
    return runs.encode(coefficients, geometry)


def _compiled(geometry: Geometry, fast: bool | None) -> bool:
    """Whether to use compiled loops; raises MissingPackage where they are asked for and are
    not there."""
    if fast is None:
        return geometry.slots * geometry.kernel_size >= MANY and compiles()
    if fast:
        needed("numba", "coefficients with fast")
    return fast
