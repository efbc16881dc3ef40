"""Search in bytes for hex patterns, texts, and numbers of any element type, at any offset."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

NUMBERS = {
    "u8": "u1",
    "u16": "u2",
    "u32": "u4",
    "u64": "u8",
    "i8": "i1",
    "i16": "i2",
    "i32": "i4",
    "i64": "i8",
    "f16": "f2",
    "f32": "f4",
    "f64": "f8",
}
ELEMENTS = ("bytes", "text", *NUMBERS)
MOST_PATTERN = 256  # a pattern has at most this many bytes
MOST_DIGITS = 80  # a number that is read has at most this many digits
WHOLE = 255
FEW = 64  # if less than one offset in this many may match, the candidates are tested one by one


class Pattern(NamedTuple):
    """Bytes to look for: where ``mask`` has a bit set, the bytes must have the bit of ``value``.

    With ``above``, the masked bytes, as an unsigned number, must be larger than ``value``: if
    ``value`` is infinity, this finds every not-a-number.
    """

    value: bytes
    mask: bytes
    above: bool = False
    big_endian: bool = False


def pattern(asked: str, element: str, big_endian: bool = False) -> Pattern:
    """Return the pattern for a text that is typed: hex digits (``?`` matches any digit), a text as
    UTF-8, or a number of an element type.

    A zero of a float type matches +0 and -0, ``nan`` every not-a-number. Raises ValueError for a
    text that cannot be read, or a number that does not fit.

    >>> pattern("3f ?0", "bytes").mask.hex(), pattern("-2", "i16", big_endian=True).value.hex()
    ('ff0f', 'fffe')
    """
    if element == "bytes":
        return _of_hex(asked)
    if element == "text":
        return _exact(_short(asked.encode("utf-8", "surrogatepass")))
    if element not in NUMBERS:
        raise ValueError(f"element: got {element!r}, allowed is one of {', '.join(ELEMENTS)}")
    kind = np.dtype(NUMBERS[element]).newbyteorder("<")
    if big_endian:
        kind = kind.newbyteorder(">")
    if kind.kind == "f":
        return _of_float(asked, element, kind)
    return _of_int(asked, element, kind)


def find(data: ndarray, asked: str, element: str = "bytes", big_endian: bool = False) -> ndarray:
    """Return every offset at which ``asked`` lies in the bytes ``data (size,) uint8``: ``(n,)
    int64``, ascending.

    Raises ValueError as ``pattern`` does.

    >>> data = np.arange(9, dtype=np.uint8)
    >>> find(data, "04 ?5").tolist(), find(data, "0x0304", "u16", big_endian=True).tolist()
    ([4], [3])
    """
    wanted = pattern(asked, element, big_endian)
    count = len(data) - len(wanted.value) + 1
    if count <= 0:
        return np.zeros(0, np.int64)
    if wanted.above:
        return np.flatnonzero(_test(data, wanted, 0, len(wanted.value)))
    tested: dict[tuple[bytes, bytes], ndarray] = {}  # where a piece lies, by its value and mask
    everywhere: Any = None
    places: ndarray | None = None
    for first, size in _pieces(len(wanted.value)):
        if not any(wanted.mask[first : first + size]):
            continue
        if places is not None:
            for at in range(first, first + size):
                places = places[data[places + at] & wanted.mask[at] == wanted.value[at]]
            continue
        piece = wanted.value[first : first + size], wanted.mask[first : first + size]
        if piece not in tested:
            tested[piece] = _test(data, wanted, first, size)
        here = tested[piece][first : first + count]
        if everywhere is None:
            everywhere = here
        else:
            everywhere = everywhere & here
        if np.count_nonzero(everywhere) * FEW < count:
            places = np.flatnonzero(everywhere)
    if places is not None:
        return places
    return np.flatnonzero(everywhere)


def _pieces(size: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, size) of consecutive pieces of a pattern; a size is the
    largest of 8, 4, 2 and 1 bytes that fits.
    """
    first = 0
    while first < size:
        step = next(wide for wide in (8, 4, 2, 1) if wide <= size - first)
        yield first, step
        first += step


def _test(data: ndarray, wanted: Pattern, first: int, size: int) -> ndarray:
    """Return ``(n,) bool``: True for each offset in the data at which a piece of the pattern, its
    ``size`` bytes from ``first``, lies.

    The data is read as words, once for each of the ``size`` alignments.
    """
    kind = np.dtype(f"<u{size}")
    if wanted.big_endian:
        kind = kind.newbyteorder(">")
    value = np.frombuffer(wanted.value, kind, 1, first)[0]
    mask = np.frombuffer(wanted.mask, kind, 1, first)[0]
    count = len(data) - size + 1
    out = np.empty(count, bool)
    for at in range(min(size, count)):
        words = np.frombuffer(data, kind, len(range(at, count, size)), at)
        if ~mask:
            words = words & mask
        if wanted.above:
            out[at::size] = words > value
        else:
            out[at::size] = words == value
    return out


def _exact(value: bytes, big_endian: bool = False) -> Pattern:
    return Pattern(value, bytes([WHOLE]) * len(value), False, big_endian)


def _short(value: bytes) -> bytes:
    if not 1 <= len(value) <= MOST_PATTERN:
        raise ValueError(f"search: got {len(value)} bytes, allowed is 1 to {MOST_PATTERN}")
    return value


def _of_hex(asked: str) -> Pattern:
    digits = re.sub(r"\s+", "", asked).removeprefix("0x")
    if not re.fullmatch(r"([0-9a-fA-F?]{2})+", digits) or not digits.strip("?"):
        raise ValueError(
            f"search: got {asked!r:.60}, which is no hex, allowed are pairs of hex digits or ?, "
            "which matches any digit, such as 3f ?? 80"
        )
    value = _short(bytes.fromhex(digits.replace("?", "0")))
    return Pattern(value, bytes.fromhex(re.sub("[^?]", "f", digits).replace("?", "0")))


def _of_int(asked: str, element: str, kind: np.dtype) -> Pattern:
    info = np.iinfo(kind)
    if len(asked) > MOST_DIGITS:
        asked = asked[:MOST_DIGITS] + "…"  # int is slow at a long number, but refuses "…" at once
    try:
        number = int(asked, 0)
    except ValueError:
        raise ValueError(
            f"search: got {asked!r:.60}, allowed is a whole number, such as 12 or 0xc"
        ) from None
    if not info.min <= number <= info.max:
        raise ValueError(f"search: got {number}, allowed in {element} is {info.min} to {info.max}")
    return _exact(np.array([number], kind).tobytes(), kind.str[0] == ">")


def _of_float(asked: str, element: str, kind: np.dtype) -> Pattern:
    try:
        number = float(asked)
    except ValueError:
        raise ValueError(
            f"search: got {asked!r:.60}, allowed is a number, such as 0.5, inf or nan"
        ) from None
    with np.errstate(over="ignore"):
        stored = np.array([number], kind)
    if np.isinf(stored[0]) and not np.isinf(number):
        most = np.finfo(kind).max
        raise ValueError(f"search: got {number}, allowed in {element} is {-most} to {most}")
    big_endian = kind.str[0] == ">"
    unsigned = np.dtype(f"{kind.str[0]}u{kind.itemsize}")
    sign_off = np.array([2 ** (8 * kind.itemsize - 1) - 1], unsigned).tobytes()
    if np.isnan(number):
        return Pattern(np.array([np.inf], kind).tobytes(), sign_off, True, big_endian)
    if number == 0 or stored[0] == 0:
        return Pattern(bytes(kind.itemsize), sign_off, False, big_endian)
    return _exact(stored.tobytes(), big_endian)
