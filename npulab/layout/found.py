"""The account of a layout: the elements and bytes that it explains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.layout.nest import Layout
from npulab.layout.parts import SUM_BYTES, Constant, Part, Sums, sums
from npulab.layout.places import CHUNK, Pairs
from npulab.layout.planes import Planes
from npulab.layout.stored import Buffer, Table, elements_at, held_as, joined, store, swap_words

# ``sure`` allows this many elements at another place, beyond those that chance gives.
FEW = 3
# A text lists at most this many elements, runs and rivals each.
LISTED = 4
# Up to this many runs of constant bytes become parts of the layout; if there are more, none does.
MOST_RUNS = 256
# The fields of ``Found`` that ``records`` copies.
RECORDED = (
    "sure",
    "captures",
    "elements",
    "own",
    "shared",
    "past_end",
    "outside",
    "elsewhere",
    "filled",
    "more_rivals",
    "held",
    "proved",
    "warnings",
)
# A run of more equal bytes becomes one byte and a count; a ``Run`` keeps this many bytes.
UNIFORM = 8


class Run(NamedTuple):
    """A run of ``size`` bytes from byte ``offset`` of the buffers on.

    ``start`` are its first bytes, at most ``UNIFORM``, in the first buffer.
    """

    offset: int
    size: int
    start: bytes

    def __str__(self) -> str:
        start = self.start.hex(" ")
        if self.size > len(self.start):
            start += " ..."
        return f"{self.size} at byte {self.offset} ({start})"


@dataclass(frozen=True, eq=False)
class Found:
    """The layout that maps tensors to their buffers, and the evidence for it.

    Each element is in one of three groups. ``own`` is the number of elements that lie where the
    layout says and whose values occur nowhere else in the buffers. ``shared`` is the number of
    elements that lie where the layout says and whose values also occur at other places. ``missing``
    has the indices ``(m, axes)`` of all other elements: ``past_end`` of them would lie past the end
    of the buffer, ``outside`` of them are left out by the layout, and the buffers have another
    value at the place of the others.

    ``elsewhere`` is the number of elements whose values occur only at another place than the layout
    says; ``chance`` is about how many elements would be found in random buffers. ``filled`` is the
    number of bytes of fill between elements; ``unexplained`` are the runs of bytes that are not
    elements, fill or parts. If elements are ``shared``, ``tried`` other layouts were compared.
    ``rivals`` are those of them with which every value agrees too and that leave no more bytes
    unexplained (any number if elements are missing); the plainest is first. ``more_rivals`` is true
    if there are further rivals.

    The search used ``captures`` pairs; ``held`` further pairs were held back. The layout packs
    ``proved`` of the held-back buffers byte for byte, apart from missing elements and unexplained
    bytes. ``warnings`` are sentences about tensors that cannot show the whole layout.
    """

    layout: Layout | Planes | Table
    own: int
    shared: int
    missing: Array
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
    held: int = 0
    proved: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def elements(self) -> int:
        return self.own + self.shared + len(self.missing)

    @property
    def sure(self) -> bool:
        """True if the evidence proves the layout, which needs all of the following.

        - The layout is no ``Table``, and all elements in the buffer lie where it says.
        - Most of these elements are ``own``; all are, if the layout leaves out elements.
        - At most ``2 * chance + 3`` elements are ``elsewhere``.
        - There are no rivals and no unexplained bytes.
        - All held-back buffers are proved, and ``Planes`` have at least one.
        """
        inside = self.elements - self.outside
        proven = 2 * self.own > inside
        if self.outside:
            proven = self.own == inside
        if isinstance(self.layout, Planes):
            proven = proven and self.held > 0
        return (
            not isinstance(self.layout, Table)
            and proven
            and self.own + self.shared == inside
            and self.elsewhere <= 2 * self.chance + FEW
            and not self.rivals
            and not self.unexplained
            and self.proved == self.held
        )

    def index_map(self) -> Array:
        """Return the layout's ``index_map``, with -1 for missing elements.

        It has the place of each element, for ``Planes`` the place of each bit ``(*shape, bits)``.
        """
        out = self.layout.index_map()
        out[tuple(self.missing.T)] = -1
        return out

    def pack(self, tensor: Array) -> bytes:
        """Return the bytes of the buffer that the layout packs from a tensor."""
        return self.layout.pack(tensor)

    def unpack(self, buffer: Buffer) -> Array:
        """Return the tensor that the layout unpacks from a buffer."""
        return self.layout.unpack(buffer)

    def records(self) -> list[dict[str, Any]]:
        """Return a list of one record: the layout as text and as code, and the numbers of
        evidence."""
        record: dict[str, Any] = {"layout": str(self.layout), "code": ""}
        if not isinstance(self.layout, Table):
            record["code"] = repr(self.layout)
        for name in RECORDED:
            record[name] = getattr(self, name)
        record["missing"] = len(self.missing)
        runs = map(itemgetter(0, 1), self.unexplained)
        record["unexplained"] = [*runs]
        rivals = map(str, self.rivals)
        record["rivals"] = [*rivals]
        return [record]

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield str(self.layout)
        if isinstance(self.layout, Table):
            yield "no nest of loops was found that gives these places"
        plural = ""
        if self.captures > 1:
            plural = "s"
        yield (
            f"{self.own} of {self.elements} elements placed by values of their own in "
            f"{self.captures} pair{plural}"
        )
        if self.shared:
            yield f"{self.shared} more agree, but their values are elsewhere too"
        if self.outside and isinstance(self.layout, Layout):
            yield f"{self.outside} are not in the buffer"
        elif len(self.missing):
            past = ""
            if self.past_end:
                past = f", {self.past_end} of them past the end of the buffer"
            indices = [tuple(index) for index in self.missing[: LISTED + 1].tolist()]
            yield f"{len(self.missing)} not found{past}: {_listed(indices)}"
        if self.elsewhere:
            yield (
                f"{self.elsewhere} have values of their own at another place, by chance about "
                f"{self.chance:.1g} would have"
            )
        if self.filled:
            yield f"{self.filled} bytes beside them are fill ({self.layout.fill:#x})"
        if self.unexplained:
            size = sum(run.size for run in self.unexplained)
            yield f"{size} bytes not explained: {_listed(self.unexplained)}"
        if self.rivals:
            count = str(len(self.rivals))
            if self.more_rivals:
                count += " or more"
            agree = "layouts agree"
            if len(self.rivals) == 1:
                agree = "layout agrees"
            rivals = "; ".join(map(str, self.rivals[:LISTED]))
            yield f"{count} other {agree} as well: {rivals}"
        elif self.tried:
            yield f"of {self.tried} layouts that were tried besides no other agrees"
        if self.held:
            yield (
                f"proved byte for byte on {self.proved} of {self.held} buffers that the search did "
                "not see"
            )
        elif isinstance(self.layout, Planes):
            yield "no buffer was held back: not proved on one that the search did not see"
        yield from self.warnings


def _listed(items: Sequence[object]) -> str:
    """Return the first ``LISTED`` items as a text, with ``...`` at its end if there are more."""
    text = ", ".join(map(str, items[:LISTED]))
    if len(items) > LISTED:
        text += " ..."
    return text


def agreeing(layout: Layout | Table, pairs: Pairs) -> Array:
    """Return an array ``(*shape)`` that is true for the elements with which every buffer agrees.

    A buffer agrees if it has the element's value at its place and at the places of its copies.
    """
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


def accounted(layout: Layout | Table, pairs: Pairs) -> tuple[Layout | Table, int, Array]:
    """Return a layout with the fill and parts that its buffers show, and the account of its places.

    The second value is the number of places between elements that are fill; the third, ``(size,)
    bool``, is true for each place that is unexplained.
    """
    gaps, first, end = _gaps(layout, pairs)
    same = gaps.copy()
    for buffer in pairs.buffers[1:]:
        same &= buffer == pairs.buffers[0]
    # Bytes between elements show the fill better than bytes before the first or after the last
    # element.
    inside = np.zeros(pairs.size, bool)
    inside[first:end] = same[first:end]
    if not inside.any():
        inside = same
    layout = replace(layout, fill=_usual(inside, layout, pairs))
    rest = gaps & ~(same & (pairs.buffers[0] == layout.blank_places(pairs.size)))
    filled = int(np.count_nonzero(gaps) - np.count_nonzero(rest))
    parts: list[Part] = []
    whole = layout.bits >= 8 and held_as(layout.dtype).kind != "f"
    if rest.any() and isinstance(layout, Layout) and whole:
        found = _sums(layout, pairs, rest, gaps)
        if found:
            parts.append(found)
            filled -= _take(slice(found.offset, found.offset + found.size), gaps, rest)
    per_byte = layout.per_byte
    constant = same.reshape(-1, per_byte).all(1) & rest.reshape(-1, per_byte).any(1)
    runs = runs_of(constant)
    if len(pairs.buffers) > 1 and len(runs) <= MOST_RUNS:
        buffer = joined(pairs.buffers[0], pairs.bits, pairs.high_first)
        for start, end in runs:
            parts.append(_constant(start, buffer[start:end]))
            filled -= _take(slice(start * per_byte, end * per_byte), gaps, rest)
    return replace(layout, parts=tuple(parts)), filled, rest


def _gaps(layout: Layout | Table, pairs: Pairs) -> tuple[Array, int, int]:
    """Return the places without an element, the place of the first element, and the place after the
    last element.

    The first value, ``(size,) bool``, is true for a place without an element. Places are computed
    in chunks, so that a large tensor does not take its memory twice.
    """
    gaps = np.ones(pairs.size, bool)
    places = layout.index_map().reshape(-1)
    first = pairs.size
    end = 0
    for start in range(0, places.size, CHUNK):
        some = places[start : start + CHUNK]
        some = some[(some >= 0) & (some <= pairs.size - pairs.itemsize)]
        first = int(some.min(initial=first))
        end = int(some.max(initial=end - 1)) + 1
        for copy in (0, *layout.copies):
            for byte in range(pairs.itemsize):
                taken = some + (copy + byte)
                gaps[taken[taken < pairs.size]] = False
    return gaps, first, end


def _take(part: slice, gaps: Array, rest: Array) -> int:
    """Mark the places of a part as explained in ``rest``; return how many of them counted as
    fill."""
    filled = int(np.count_nonzero(gaps[part] & ~rest[part]))
    rest[part] = False
    return filled


def _constant(offset: int, data: Array) -> Constant:
    if len(data) > UNIFORM and np.all(data == data[0]):
        return Constant(offset, data[:1].tobytes(), len(data))
    return Constant(offset, data.tobytes())


def unexplained(rest: Array, pairs: Pairs) -> tuple[Run, ...]:
    """Return the runs of bytes of the recorded buffer in which ``rest`` is true for a place."""
    per_byte = max(8 // pairs.bits, 1)
    bytes_left = swap_words(np.any(rest.reshape(-1, per_byte), axis=1), pairs.swap)
    data = pairs.recorded(pairs.buffers[0])
    runs = []
    for start, end in runs_of(bytes_left):
        shown = data[start : min(end, start + UNIFORM)].tobytes()
        runs.append(Run(start, end - start, shown))
    return tuple(runs)


def _usual(where: Array, layout: Layout | Table, pairs: Pairs) -> int:
    """Return the most frequent value in the places for which ``where`` is true.

    The places are read as elements, in step with the first element of the layout. The result is 0
    if no element fits between other places.
    """
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


def _sums(layout: Layout, pairs: Pairs, rest: Array, gaps: Array) -> Sums | None:
    """Return the part of sums over an axis that begins at the first unexplained place or at most 3
    places before it, None if there is none.
    """
    first = int(rest.argmax())
    # The first sum may begin before the first unexplained place, because its low bytes may look
    # like fill.
    starts = [at for at in range(first, max(first - SUM_BYTES, -1), -1) if gaps[at:first].all()]
    stored = [store(raw, layout.xor, layout.add)[layout.inside] for raw in pairs.raw]
    for signed in (True, False):
        for axis in reversed(range(len(layout.shape))):
            values = np.array([sums(tensor, axis, signed, pairs.bits) for tensor in stored])
            for start in starts:
                room = int(np.argmin(np.append(gaps[start:], False))) // SUM_BYTES
                end = start + SUM_BYTES * room
                have = [buffer[start:end].view("<i4") for buffer in pairs.buffers]
                part = Sums(start, axis, len(values[0]), signed=signed)
                found = _sums_at(layout, part, values, np.array(have, np.int64))
                if found:
                    return found
    return None


def _sums_at(layout: Layout, part: Sums, values: Array, have: Array) -> Sums | None:
    """Return ``part`` with the number of fill values in each sum, None if the buffers lack the
    sums.

    Sums of fill alone, past the end of the axis, are included. ``values`` are the sums of the
    elements, ``have`` are the int32 in the buffers; both are ``(buffers, n)``.
    """
    count = part.count
    room = have.shape[1]
    if room < count:
        return None
    # Sums in the buffer wrap at 32 bits, so their difference is wrapped to the range of int32, too.
    over = (have[:, :count] - values + 2**31) % 2**32 - 2**31
    excess = int(over[0, 0])
    fill = layout.fill
    if part.signed:
        fill = int(np.array(fill, f"u{layout.itemsize}").view(f"i{layout.itemsize}"))
    if np.any(over != excess):
        return None
    fills = 0
    if fill:
        fills, rest = divmod(excess, fill)
        if rest or fills < 0:
            return None
    elif excess:
        return None
    # The number of elements of one sum, with fill; a sum past the end of the axis has as many fill
    # values.
    depth = layout.elements // count + fills
    # Sums past the end of the axis are sums of fill. If the fill is 0, these are zeros like others,
    # and are counted up to the end of the last tile.
    if not fill:
        tiles = [loop.tile for loop in layout.loops if loop.axis == part.axis]
        tile = max(tiles, default=1)
        room = min(room, -(-count // tile) * tile)
    end = count
    while end < room and np.all(have[:, end] == depth * fill):
        end += 1
    if end == count:
        depth = 0
    return replace(part, count=end, fills=fills, depth=depth)


def runs_of(where: Array) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], where, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
