"""The coefficient buffer between bytes and values: plain zero-run streams (V7) and Huffman streams (V8)."""

from __future__ import annotations

from collections.abc import Iterator

from npulab.target import Item
from npulab.targets.vivante.coefficients import huffman, plain
from npulab.targets.vivante.coefficients.geometry import Coefficients, Event, Geometry, ceil_div
from npulab.targets.vivante.coefficients.huffman import choose_symbols
from npulab.targets.vivante.coefficients.plain import choose_zrl

__all__ = ["Coefficients", "Event", "Geometry", "ceil_div", "choose_symbols", "choose_zrl", "decode", "encode", "sizes",
           "walk"]


def walk(buffer: bytes, geometry: Geometry) -> Iterator[Item]:
    """Every bit of the buffer as an ``Item``, in order.

    Raises ValueError with core, byte and bit where the buffer does not follow the format.
    """
    return (huffman if geometry.huffman else plain).walk(buffer, geometry)


def sizes(buffer: bytes, geometry: Geometry) -> list[int]:
    """Bytes of each core's stream as it lies in the buffer, 0 for idle cores; raises ValueError where they do
    not fit the buffer."""
    if geometry.huffman:
        return [huffman.stream_bytes(bits) for bits in huffman.read_header(buffer, geometry).bits]
    return plain.sizes(buffer, geometry)


def decode(buffer: bytes, geometry: Geometry) -> Coefficients:
    """The buffer's content; raises ValueError as ``walk`` does."""
    return (huffman if geometry.huffman else plain).decode(buffer, geometry)


def encode(coefficients: Coefficients, geometry: Geometry) -> bytes:
    """The buffer of ``coefficients``, filled with zeros to its ``size``; the inverse of ``decode``."""
    return (huffman if geometry.huffman else plain).encode(coefficients, geometry)
