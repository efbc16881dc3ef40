"""What became of every element and byte once a layout is taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from npulab.layout.nest import Layout
from npulab.layout.parts import SUM_BYTES, Constant, Part, Sums, sums
from npulab.layout.places import CHUNK, Pairs
from npulab.layout.stored import Buffer, Table, elements_at, held_as, joined, store, swap_words

FEW = 3  # elements beside those that chance may place
LISTED = 4  # elements, runs and rivals that a text lists
MOST_RUNS = 256  # constant runs that become parts
UNIFORM = 8  # bytes of one value that are written once


class Run(NamedTuple):
    """``size`` bytes at ``offset``, as the first buffer has them from the start."""

    offset: int
    size: int
    start: bytes

    def __str__(self) -> str:
        if self.size > len(self.start):
            more = " ..."
        else:
            more = ""
        return f"{self.size} at byte {self.offset} ({self.start.hex(' ')}{more})"


@dataclass(frozen=True, eq=False)
class Found:
    """The layout that maps tensors to their buffers, and how sure that is.

    Of ``elements``, ``own`` have values that occur nowhere else, at the place that the layout says;
    ``shared`` agree with the layout, but their values occur elsewhere as well; the others are
    ``missing``, indices ``(m, axes)``: ``past_end`` of them would lie past the end of the buffer,
    ``outside`` are left out by the layout, at the place of the rest is another value.
    ``elsewhere`` elements have values of their own at another place than the layout says;
    ``chance`` is how many would be found in as many random bytes.  Of the bytes beside the elements
    ``filled`` hold the fill; those that the layout does not speak for are ``unexplained``.
    ``rivals`` are the layouts, of ``tried``, that agree with every value too and explain as many
    bytes, the plainest first; ``more_rivals`` where there are more.
    """

    layout: Layout | Table
    own: int
    shared: int
    missing: np.ndarray
    past_end: int
    outside: int
    elsewhere: int
    chance: float
    filled: int
    unexplained: tuple[Run, ...]
    captures: int
    rivals: tuple[Layout, ...] = ()
    more_rivals: bool = False
    tried: int = 0

    @property
    def elements(self) -> int:
        return self.own + self.shared + len(self.missing)

    @property
    def sure(self) -> bool:
        """Whether a nest of loops gives every element in the buffer its place, most have values of
        their own (all of them where others are not in the buffer), no rival agrees, and no byte is
        left unexplained."""
        inside = self.elements - self.outside
        if self.outside:
            proven = self.own == inside
        else:
            proven = 2 * self.own > inside
        return (
            isinstance(self.layout, Layout)
            and proven
            and self.own + self.shared == inside
            and self.elsewhere <= 2 * self.chance + FEW
            and not self.rivals
            and not self.unexplained
        )

    def index_map(self) -> np.ndarray:
        """Byte offset of each element ``(*shape) int64``, -1 where it is not in the buffer."""
        out = self.layout.index_map()
        out[tuple(self.missing.T)] = -1
        return out

    def pack(self, tensor: np.ndarray) -> bytes:
        """The buffer of a tensor, as ``Layout.pack``."""
        return self.layout.pack(tensor)

    def unpack(self, buffer: Buffer) -> np.ndarray:
        """The tensor of a buffer, as ``Layout.unpack``."""
        return self.layout.unpack(buffer)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield str(self.layout)
        if isinstance(self.layout, Table):
            yield "no nest of loops was found that gives these places"
        yield (
            f"{self.own} of {self.elements} elements placed by values of their own in "
            f"{self.captures} "
            f"pair{'s' if self.captures > 1 else ''}"
        )
        if self.shared:
            yield f"{self.shared} more agree, but their values are elsewhere too"
        if self.outside and isinstance(self.layout, Layout):
            yield f"{self.outside} are not in the buffer"
        elif len(self.missing):
            listed = ", ".join(str(tuple(one)) for one in self.missing[:LISTED].tolist())
            past = ""
            if self.past_end:
                past = f", {self.past_end} of them past the end of the buffer"
            yield f"{len(self.missing)} not found{past}: {listed}{' ...' if len(self.missing) > LISTED else ''}"
        if self.elsewhere:
            yield (
                f"{self.elsewhere} have values of their own at another place, by chance about "
                f"{self.chance:.1g} "
                "would have"
            )
        if self.filled:
            yield f"{self.filled} bytes beside them are fill ({self.layout.fill:#x})"
        if self.unexplained:
            listed = ", ".join(map(str, self.unexplained[:LISTED]))
            yield (
                f"{sum(run.size for run in self.unexplained)} bytes not explained: {listed}"
                f"{' ...' if len(self.unexplained) > LISTED else ''}"
            )
        if self.rivals:
            if self.more_rivals:
                more = " or more"
            else:
                more = ""
            if len(self.rivals) == 1:
                said = "layout agrees"
            else:
                said = "layouts agree"
            yield f"{len(self.rivals)}{more} other {said} as well: " + "; ".join(
                map(str, self.rivals[:LISTED])
            )
        elif self.tried:
            yield f"of {self.tried} layouts that were tried besides no other agrees"


def agreeing(layout: Layout | Table, pairs: Pairs) -> np.ndarray:
    """Which elements ``(*shape)`` stand at their place, and at their copies', in all captures."""
    places = layout.index_map().reshape(-1)
    out = np.zeros(places.size, bool)
    last = pairs.size - pairs.itemsize - max(0, 0, *layout.copies)
    if last < 0:
        return out.reshape(pairs.shape)
    for start in range(0, places.size, CHUNK):
        at = places[start : start + CHUNK]
        good = (at >= 0) & (at <= last)
        at = np.where(good, at, 0)
        for raw, buffer in zip(pairs.raw, pairs.buffers, strict=True):
            wanted = store(raw.reshape(-1)[start : start + CHUNK], layout.xor, layout.add)
            for copy in (0, *layout.copies):
                good &= elements_at(buffer, at + copy, pairs.itemsize, layout.big_endian) == wanted
        out[start : start + CHUNK] = good
    return out.reshape(pairs.shape)


def accounted(layout: Layout | Table, pairs: Pairs) -> tuple[Layout | Table, int, np.ndarray]:
    """The layout with the fill and parts that the places beside the elements show, how many are
    fill, and which are left ``(size,) bool``."""
    gaps = np.ones(pairs.size, bool)
    places = layout.index_map().reshape(-1)
    first, end = pairs.size, 0
    for start in range(0, places.size, CHUNK):
        some = places[start : start + CHUNK]
        some = some[(some >= 0) & (some <= pairs.size - pairs.itemsize)]
        first, end = (
            min(first, int(some.min(initial=first))),
            max(end, int(some.max(initial=end)) + 1),
        )
        for copy in (0, *layout.copies):
            for at in range(pairs.itemsize):
                taken = some + (copy + at)
                gaps[taken[taken < pairs.size]] = False
    del places
    same = gaps.copy()
    for buffer in pairs.buffers[1:]:
        same &= buffer == pairs.buffers[0]
    # fill between elements says more than what comes before and after them
    inside = np.zeros(pairs.size, bool)
    inside[first:end] = same[first:end]
    fill = _usual(inside if inside.any() else same, layout, pairs)
    layout = replace(layout, fill=fill)
    rest = gaps & ~(same & (pairs.buffers[0] == layout.blank_places(pairs.size)))
    filled = int(np.count_nonzero(gaps) - np.count_nonzero(rest))
    parts: list[Part] = []
    if (
        rest.any()
        and isinstance(layout, Layout)
        and layout.bits >= 8
        and held_as(layout.dtype).kind != "f"
    ):
        found = _sums(layout, pairs, rest, gaps)
        if found:
            parts.append(found)
            filled -= int(
                np.count_nonzero((gaps & ~rest)[found.offset : found.offset + found.size])
            )
            rest[found.offset : found.offset + found.size] = False
    per_byte, data_of = layout.per_byte, joined(pairs.buffers[0], pairs.bits, pairs.high_first)
    constant = same.reshape(-1, per_byte).all(1) & rest.reshape(-1, per_byte).any(1)
    if len(pairs.buffers) > 1 and len(runs := runs_of(constant)) <= MOST_RUNS:
        for start, end in runs:
            data = data_of[start:end]
            uniform = end - start > UNIFORM and not np.any(data != data[0])
            parts.append(
                Constant(start, data[:1].tobytes(), end - start)
                if uniform
                else Constant(start, data.tobytes())
            )
            filled -= int(np.count_nonzero((gaps & ~rest)[start * per_byte : end * per_byte]))
            rest[start * per_byte : end * per_byte] = False
    return replace(layout, parts=tuple(parts)), filled, rest


def unexplained(rest: np.ndarray, pairs: Pairs) -> tuple[Run, ...]:
    """Runs of bytes, as they were recorded, that have a place of ``rest``."""
    left = swap_words(np.any(rest.reshape(-1, max(8 // pairs.bits, 1)), axis=1), pairs.swap)
    data = pairs.recorded(pairs.buffers[0])
    return tuple(
        Run(start, end - start, data[start : min(end, start + UNIFORM)].tobytes())
        for start, end in runs_of(left)
    )


def _usual(where: np.ndarray, layout: Layout | Table, pairs: Pairs) -> int:
    """The most frequent element that lies wholly in some bytes; 0 where none does."""
    width = pairs.itemsize
    first = layout.first % width
    whole = np.logical_and.reduce(
        [where[first + at : len(where) - width + 1 + at : width] for at in range(width)]
    )
    at = first + width * np.flatnonzero(whole)
    if not len(at):
        return 0
    values, counts = np.unique(
        elements_at(pairs.buffers[0], at, width, layout.big_endian), return_counts=True
    )
    return int(values[counts.argmax()])


def _sums(layout: Layout, pairs: Pairs, rest: np.ndarray, gaps: np.ndarray) -> Sums | None:
    """Sums of the elements at each index of an axis, in bytes that nothing else explains."""
    first = int(rest.argmax())
    # low bytes of the first sum may look like fill
    starts = [at for at in range(first, max(first - SUM_BYTES, -1), -1) if gaps[at:first].all()]
    stored = [store(raw, layout.xor, layout.add)[layout.inside] for raw in pairs.raw]
    for signed in (True, False):
        values = [
            [sums(one, axis, signed, pairs.bits) for one in stored]
            for axis in range(len(layout.shape))
        ]
        for axis in reversed(range(len(layout.shape))):
            for start in starts:
                found = _sums_at(layout, pairs, gaps, start, axis, signed, values[axis])
                if found:
                    return found
    return None


def _sums_at(
    layout: Layout,
    pairs: Pairs,
    gaps: np.ndarray,
    start: int,
    axis: int,
    signed: bool,
    values: list[np.ndarray],
) -> Sums | None:
    count = layout.extents[axis]
    room = int(np.argmin(np.append(gaps[start:], False))) // SUM_BYTES
    if room < count:
        return None
    have = np.array(
        [buffer[start : start + SUM_BYTES * room].view("<i4") for buffer in pairs.buffers], np.int64
    )
    over = (have[:, :count] - np.array(values) + 2**31) % 2**32 - 2**31
    fill = layout.fill
    if signed:
        fill = int(np.array(layout.fill, f"u{pairs.itemsize}").view(f"i{pairs.itemsize}"))
    if np.any(over != over[0, 0]) or (
        over[0, 0] != 0 and (fill == 0 or over[0, 0] % fill or over[0, 0] // fill < 0)
    ):
        return None
    fills = 0
    if fill:
        fills = int(over[0, 0] // fill)
    depth = layout.elements // count + fills
    # of sums past the axis those of fill show themselves; those of nothing are as many as fill the
    # last tile
    tile = max((loop.tile for loop in layout.loops if loop.axis == axis), default=1)
    room, more = room if fill else min(room, -(-count // tile) * tile), 0
    while count + more < room and np.all(have[:, count + more] == depth * fill):
        more += 1
    return Sums(start, axis, count + more, fills, depth if more else 0, signed)


def runs_of(where: np.ndarray) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], where, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
