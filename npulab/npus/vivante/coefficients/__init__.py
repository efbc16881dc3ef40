"""Reads and writes coefficient buffers in both formats: plain streams with zero runs (V7), as Mesa
or the vendor writes them, and Huffman streams (V8)."""

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
    """Return how many bytes each core's stream takes in the buffer, 0 for an idle core. Raises
    ValueError if the streams do not fit the buffer."""
    if geometry.huffman:
        return [huffman.stream_bytes(bits) for bits in huffman.read_header(buffer, geometry).bits]
    return plain.sizes(buffer, geometry)


def decode(buffer: bytes, geometry: Geometry, fast: bool | None = None) -> Coefficients:
    """Return the buffer's content; raises ValueError as ``walk`` does.

    With ``fast``, compiled loops read the buffer (the extra ``npulab[fast]``). By default they are
    used if the extra is installed and the buffer has many weights. The content is the same with and
    without them. The vendor's plain streams have no compiled loops.
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
        # The array reader returned None: the buffer is broken. Reading it bit by bit raises an
        # error that names the place.
        list(walk(buffer, geometry))
        raise AssertionError("coefficients: array and bit by bit readings differ")
    return content


def encode(coefficients: Coefficients, geometry: Geometry, fast: bool | None = None) -> bytes:
    """Return the buffer that holds ``coefficients``, filled with zeros up to
    ``coefficients.size`` bytes; the inverse of ``decode``.

    In the vendor's dialect of the Huffman format, the encoder chooses symbols and zero runs if
    ``coefficients`` have no symbols. Raises ValueError for content that does not fit the geometry.
    ``fast`` asks for compiled loops as in ``decode``; the plain format is encoded without them.
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
    """Return the zero-run width, at most ``widest`` bits, that the driver of the geometry's dialect
    picks for plain streams."""
    if geometry.vendor:
        return vendor.choose_zrl(coefficients, geometry, widest)
    return runs.choose_zrl(coefficients, geometry, widest)


def _compiled(geometry: Geometry, fast: bool | None) -> bool:
    """True if compiled loops are used: ``fast`` asks for them or, if it is None, numba is installed
    and the buffer has many weights. Raises MissingPackage if ``fast`` asks without numba."""
    if fast is None:
        return geometry.slots * geometry.kernel_size >= MANY and compiles()
    if fast:
        needed("numba", "coefficients with fast")
    return fast
