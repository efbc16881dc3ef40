"""Builds of one input compared, before laws or constants are sought. Bytes that differ between them
are noise; words that move by the same amounts are addresses, which an allocator chose.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.captures.aligned_bytes import AlignedBytes, aligned_bytes
from npulab.support.answers import Answer, Part, Table
from npulab.support.refuse import need_all, refuse_if
from npulab.support.text import Row, plural

GRAIN = 16  # allocators move blocks by multiples of GRAIN bytes

MOST_PLACES = 8  # a text lists at most MOST_PLACES places of addresses
WORD = 4


@dataclass(frozen=True)
class Addresses:
    """Words of ``width`` bytes, little-endian, at the offsets ``places``. Between builds of one
    input all of them moved by the same amounts, ``moves``.
    """

    width: int
    places: tuple[int, ...]
    moves: tuple[int, ...]

    def __str__(self) -> str:
        shown = ", ".join(f"{place:#x}" for place in self.places[:MOST_PLACES])
        more = len(self.places) - MOST_PLACES
        if more > 0:
            shown += f" and {more} more"
        moved = ", ".join(f"{move:+#x}" for move in self.moves[:MOST_PLACES])
        return f"addresses of {8 * self.width} bits at {shown}: moved together by {moved}"


@dataclass(frozen=True, eq=False)
class Builds(Answer):
    """What differs between builds of one input.

    ``groups`` has, for each input that was built several times, the numbers of its captures.
    ``noise (B,) bool`` are bytes that differ between the builds of most of these inputs and belong
    to no address. ``addresses`` are words that move together. ``alignment`` has the streams side by
    side; all offsets are those of its reference.
    """

    alignment: AlignedBytes
    groups: tuple[tuple[int, ...], ...]
    noise: Array
    addresses: tuple[Addresses, ...]

    @property
    def left_out(self) -> Array:
        """``(B,) bool``: the bytes in which no law or constant is sought."""
        out = self.noise.copy()
        for found in self.addresses:
            for place in found.places:
                out[place : place + found.width] = True
        return out

    def mask(self) -> Array:
        """The bytes that are left out as a mask of little-endian 32-bit words, ``(W,) uint32``, for
        ``find_laws(..., nuisance=mask)``."""
        count = -(-len(self.noise) // WORD)
        padded = np.zeros(count * WORD, np.uint8)
        padded[: len(self.noise)] = np.where(self.left_out, 0xFF, 0)
        return padded.view("<u4").astype(np.uint32)

    def records(self) -> list[Row]:
        rows = []
        for first, last in runs(self.noise):
            rows.append({"kind": "noise", "places": [first], "bytes": last - first})
        for found in self.addresses:
            rows.append(
                {
                    "kind": "addresses",
                    "places": list(found.places),
                    "bytes": found.width,
                    "moves": list(found.moves),
                }
            )
        return rows

    @property
    def parts(self) -> list[Part]:
        title = str(self.alignment)
        if not self.groups:
            return [f"{title}; no input was built twice, so noise is not known"]
        built = plural(len(self.groups), "input")
        verb = "were"
        if len(self.groups) == 1:
            verb = "was"
        count = int(self.noise.sum())
        out: list[Part] = [title]
        out.append(f"{built} {verb} built several times: {plural(count, 'byte')} of noise")
        out += map(str, self.addresses)
        table = []
        for first, last in runs(self.noise)[:MOST_PLACES]:
            table.append({"noise from": f"{first:#x}", "bytes": last - first})
        out.append(Table(table, ["noise from", "bytes"]))
        return out


def compare_builds(
    streams: Sequence[bytes] | Array, parameters: Any = None, builds: Sequence[Any] | None = None
) -> Builds:
    """Compare builds of the same input, to find noise and addresses; streams of different lengths
    are aligned.

    ``streams`` are the bytes of N captures, or ``(N, B) uint8``. ``builds`` has a label for each
    capture; builds of one input have the same label. Without it, captures with equal rows of
    ``parameters`` (a DataFrame, or columns by name) are builds of one input.

    A byte is noise if it differs between the builds of most of the inputs that were built several
    times. Addresses are aligned little-endian words of 32 or 64 bits, at two places or more, that
    move by the same multiples of 16 between builds.

    Raises TypeError and ValueError as ``aligned_bytes``; ValueError if there is not one label, or
    one row, for each stream.

    >>> base = np.zeros((2, 16), np.uint8)
    >>> words = base.view("<u4")
    >>> words[0, 1:3], words[1, 1:3], base[1, 15] = (0x1000, 0x1400), (0x8000, 0x8400), 7
    >>> print(compare_builds(base, builds=[0, 0]))
    2 streams of 16 bytes
    1 input was built several times: 1 byte of noise
    addresses of 32 bits at 0x4, 0x8: moved together by +0x7000
    noise from  bytes
    0xf         1
    """
    alignment = aligned_bytes(streams)
    return builds_of(alignment, groups_of(len(alignment.data), parameters, builds))


def builds_of(alignment: AlignedBytes, groups: tuple[tuple[int, ...], ...]) -> Builds:
    """What differs between the captures of each group."""
    data, present = alignment.data, alignment.present
    differ = np.zeros(data.shape[1], int)
    for group in groups:
        rows = list(group)
        unlike = (data[rows] != data[rows[0]]) | (present[rows] != present[rows[0]])
        differ += unlike.any(0)
    noise = 2 * differ > len(groups)
    addresses = tuple(_addresses(data, present, groups))
    for found in addresses:
        for place in found.places:
            noise[place : place + found.width] = False
    return Builds(alignment, groups, noise, addresses)


def groups_of(
    captures: int, parameters: Any = None, builds: Sequence[Any] | None = None
) -> tuple[tuple[int, ...], ...]:
    """The captures of each input that was built several times."""
    labels = []
    if builds is not None:
        labels = need_all("builds", builds, object, "are labels, one for each stream")
        refuse_if(
            len(labels) != captures,
            "builds",
            plural(len(labels), "label"),
            f"is one for each of the {plural(captures, 'stream')}",
        )
    elif parameters is not None:
        import pandas as pd

        frame = pd.DataFrame(parameters)
        refuse_if(
            len(frame) != captures,
            "parameters",
            plural(len(frame), "row"),
            f"is one for each of the {plural(captures, 'stream')}",
        )
        if len(frame.columns):
            labels = list(frame.itertuples(index=False, name=None))
    groups = defaultdict(list)
    for number, label in enumerate(labels):
        groups[label].append(number)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _addresses(
    data: Array, present: Array, groups: tuple[tuple[int, ...], ...]
) -> Iterator[Addresses]:
    """Yield the words that move by the same amounts; words of 64 bits come first."""
    pairs: list[tuple[int, int]] = []
    for group in groups:
        pairs += pairwise(group)
    if not pairs:
        return
    taken = np.zeros(data.shape[1], bool)
    for width in (2 * WORD, WORD):
        for found in _moving_together(data, present, pairs, width):
            free = tuple(place for place in found.places if not taken[place])
            if len(free) < 2:
                continue
            for place in free:
                taken[place : place + width] = True
            yield Addresses(width, free, found.moves)


def _moving_together(
    data: Array, present: Array, pairs: Sequence[tuple[int, int]], width: int
) -> Iterator[Addresses]:
    count = data.shape[1] // width
    whole = present[:, : count * width].reshape(len(data), count, width).all((0, 2))
    words = np.ascontiguousarray(data[:, : count * width]).view(f"<u{width}")
    # differences wrap around, as addresses do
    before = [pair[0] for pair in pairs]
    after = [pair[1] for pair in pairs]
    moves = (words[after] - words[before]).view(f"<i{width}")
    good = whole & (moves % GRAIN == 0).all(0) & (moves != 0).any(0)
    if width > WORD:
        # a word of 64 bits is an address only if its upper half moves; else its lower half is an
        # address of 32 bits
        upper = data[:, : count * width].reshape(len(data), count, width)[:, :, WORD:]
        good &= (upper[after] != upper[before]).any((0, 2))
    together = defaultdict(list)
    for place in np.flatnonzero(good).tolist():
        together[tuple(moves[:, place].tolist())].append(place)
    for amounts, places in together.items():
        # words that hold one and the same number move by equal amounts even if it is no address
        if len(set(words[0, places].tolist())) > 1:
            yield Addresses(width, tuple(width * place for place in places), amounts)


def runs(mask: Array) -> list[tuple[int, int]]:
    """The runs of a mask ``(B,) bool`` as (first, after the last)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return [(int(first), int(last)) for first, last in edges.reshape(-1, 2)]
