"""The coefficient buffer between bytes and values: plain zero-run streams (V7), as Mesa and as the
vendor writes them, and Huffman streams (V8)."""

from __future__ import annotations

from collections.abc import Iterator

from npulab.npus.kit import Item
from npulab.npus.vivante.coefficients import (
    buffers,
    choosing,
    codes,
    huffman,
    pairs,
    plain,
    runs,
    vendor,
)
from npulab.npus.vivante.coefficients.buffers import (
    DIALECTS,
    MESA,
    VENDOR,
    Coefficients,
    Event,
    Geometry,
)
from npulab.npus.vivante.coefficients.pairs import choose_symbols
from npulab.npus.vivante.coefficients.vendor import choose_channels
from npulab.quant.emulate import compiles
from npulab.support.extras import needed

MANY = 2**20  # weights from which loading numba pays
__all__ = [
    "DIALECTS",
    "MESA",
    "VENDOR",
    "Coefficients",
    "Event",
    "Geometry",
    "choose_channels",
    "choose_symbols",
    "choose_zrl",
    "decode",
    "encode",
    "sizes",
    "walk",
]


def walk(buffer: bytes, geometry: Geometry) -> Iterator[Item]:
    """Return every bit of the buffer as an ``Item``, in order.

    Raises ValueError with core, byte and bit if the buffer does not follow the format.
    """
    if geometry.huffman:
        return huffman.walk(buffer, geometry)
    return plain.walk(buffer, geometry)


def sizes(buffer: bytes, geometry: Geometry) -> list[int]:
    """Return the bytes of each core's stream in the buffer, 0 for idle cores; ValueError if they do
    not fit the buffer."""
    if geometry.huffman:
        return [huffman.stream_bytes(bits) for bits in huffman.read_header(buffer, geometry).bits]
    return plain.sizes(buffer, geometry)


def decode(buffer: bytes, geometry: Geometry, fast: bool | None = None) -> Coefficients:
    """Return the buffer's content; raises ValueError as ``walk`` does.

    ``fast`` uses compiled loops (the extra ``npulab[fast]``), by default for many weights if it is
    installed; the content is the same. The vendor's plain streams have no such loops.
    """
    compiled = _compiled(geometry, fast)
    if geometry.huffman:
        content = pairs.decode(buffer, geometry, compiled)
    else:
        buffers.refuse_size(buffer, geometry)
        if geometry.vendor:
            content = vendor.decode(buffer, geometry)
        else:
            content = runs.decode(buffer, geometry, compiled)
    if content is None:
        # Reading with arrays returns None for a broken buffer; reading bit by bit raises the error
        # that names the place.
        list(walk(buffer, geometry))
        raise AssertionError("coefficients: array and bit by bit readings differ")
    return content


def encode(coefficients: Coefficients, geometry: Geometry, fast: bool | None = None) -> bytes:
    """Return the buffer of ``coefficients``, filled with zeros to its ``size``; the inverse of
    ``decode``.

    A Huffman buffer without symbols, in the vendor's dialect, gets symbols and zero runs. Raises
    ValueError for content that does not go with the geometry. ``fast`` as with ``decode``; the
    plain format has no need of it.
    """
    buffers.refuse_content(coefficients, geometry)
    if geometry.huffman:
        codes.refuse_coding(coefficients, geometry)
        if not coefficients.symbols:
            coefficients = choosing.chosen(coefficients, geometry)
        return pairs.encode(coefficients, geometry, _compiled(geometry, fast))
    if geometry.vendor:
        return vendor.encode(coefficients, geometry)
    return runs.encode(coefficients, geometry)


def choose_zrl(coefficients: Coefficients, geometry: Geometry, widest: int) -> int:
    """Return the zero-run width that the writer of a plain stream picks, ``widest`` at most."""
    if geometry.vendor:
        return vendor.choose_zrl(coefficients, geometry, widest)
    return runs.choose_zrl(coefficients, geometry, widest)


def _compiled(geometry: Geometry, fast: bool | None) -> bool:
    """True if compiled loops are used; raises MissingPackage if they are asked for and not
    installed."""
    if fast is None:
        return geometry.slots * geometry.kernel_size >= MANY and compiles()
    if fast:
        needed("numba", "coefficients with fast")
    return fast
