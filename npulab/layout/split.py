"""Search for elements whose bits lie in planes, by the values of units of 8, 4, 2 and 1 bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.layout.found import MOST_RUNS, UNIFORM, Found, Run, runs_of
from npulab.layout.given import SPARE_BITS, Given, held_back
from npulab.layout.nest import Layout, Loop
from npulab.layout.parts import Constant
from npulab.layout.planes import Planes, reading_of
from npulab.layout.rules import digits_of, layouts
from npulab.layout.stored import BITS, ELEMENTS, SWAPS, Shape, join_units, opened, split_units

UNITS = (8, 4, 2, 1)
# The widest elements have this many bytes.
ITEMSIZE = 4
# A signature has at most this many bits.
SIGNED_BITS = 64
# This many elements are compared before all elements.
SAMPLE = 256
# These bits of a signature are compared first; they dismiss most places.
FILTER = 2**22 - 1


@dataclass(frozen=True, eq=False)
class Signed:
    """The signatures of units of ``unit`` bits, in tensors and in buffers.

    A signature is the values of a unit in the first ``seen`` captures, joined to one unsigned
    integer. ``tensor`` ``(*shape, units)`` has the signature of each unit of the tensors,
    ``buffer`` ``(places,)`` that of each place of the buffers.
    """

    tensor: Array
    buffer: Array
    unit: int
    seen: int

    @property
    def shape(self) -> Shape:
        return self.tensor.shape

    @property
    def size(self) -> int:
        """The number of bytes of a buffer."""
        return len(self.buffer) * self.unit // 8

    def repeated(self, value: Any) -> Any:
        """Return the signature of a unit that has one value in all captures."""
        ones = sum(2 ** (self.unit * at) for at in range(self.seen))
        return np.asarray(value, self.buffer.dtype) * self.buffer.dtype.type(ones)


def find_planes(given: Given, whole: bool = False) -> Found | str:
    """Return the layout of elements whose bits lie in planes, or a text with the reason for none.

    The layout fits each unit of each element in the buffers that the search saw, and it packs the
    buffers that were held back, except for unexplained bits. Units as wide as an element are tried
    if ``whole``, or if ``Layout`` does not have the type (``int1``).
    """
    refused = "one unit takes all bits of an element"
    bits = ELEMENTS[given.dtype]
    seen = len(given.raw) - held_back(len(given.raw))
    # The widest units come first: there are fewest of them, and the fewest buffers tell them apart.
    for unit in UNITS:
        if bits % unit or (unit == bits and given.dtype in BITS and not whole):
            continue
        units = given.raw[0].size * bits // unit
        needed = -(-units.bit_length() // unit)
        if seen < needed:
            refused = (
                f"got {seen} buffers besides those held back, allowed are {needed} or more, which "
                f"tell {units} units of {unit} bits apart: markers(..., unit=1) makes them"
            )
            continue
        signed = _signed(given, unit)
        xor = _xor(signed)
        if xor is None:
            refused = f"no place has the values of units of {unit} bits"
            continue
        plain = replace(signed, tensor=signed.tensor ^ signed.repeated(xor))
        # Loops without strides run only forwards, so axes that run backwards are flipped for them.
        for flip in dict.fromkeys(((), _backwards(plain))):
            turned = replace(plain, tensor=np.flip(plain.tensor, flip))
            nests = next(_nests(turned), None)
            if nests is None:
                continue
            number = int(join_units(xor[None].astype(np.uint8), ITEMSIZE, unit)[0])
            shape = given.raw[0].shape
            planes = Planes(shape, nests, dtype=given.dtype, flip=flip, xor=number)
            return _judged(planes, plain, given)
        refused = f"no nest of loops has the places of units of {unit} bits"
    return refused


def _signed(given: Given, unit: int) -> Signed:
    places = len(given.buffers[0]) * 8 // unit
    bits = ELEMENTS[given.dtype]
    wanted = -(-(places.bit_length() + SPARE_BITS) // unit)
    seen = min(len(given.raw) - held_back(len(given.raw)), wanted, SIGNED_BITS // unit)
    kind = "u8"
    if seen * unit <= 32:
        kind = "u4"
    tensors = (split_units(one, bits, unit) for one in given.raw[:seen])
    opened_buffers = (opened(one, unit, 0, False) for one in given.buffers[:seen])
    shape = (*given.raw[0].shape, bits // unit)
    return Signed(
        _signatures(tensors, shape, kind, unit),
        _signatures(opened_buffers, (places,), kind, unit),
        unit,
        seen,
    )


def _signatures(columns: Iterator[Array], shape: Shape, kind: str, unit: int) -> Array:
    out = np.zeros(shape, kind)
    # Columns are joined to bytes first, which is quicker than shifting the wide signature for each.
    byte = [*islice(columns, 8 // unit)]
    while byte:
        some = byte[0].copy()
        for column in byte[1:]:
            some *= np.uint8(2**unit)
            some |= column
        out *= out.dtype.type(2 ** (unit * len(byte)))
        out |= some.reshape(shape)
        byte = [*islice(columns, 8 // unit)]
    return out


def _xor(signed: Signed) -> Array | None:
    """Return the number with which each unit of an element is xored, ``(units,)``.

    It is 0 if no other number fits better. The result is None if for some unit no number brings
    half of a sample of elements into the buffers.
    """
    units = signed.shape[-1]
    flat = signed.tensor.reshape(-1, units)
    rows = np.random.default_rng(0).integers(0, len(flat), min(SAMPLE, len(flat)))
    numbers = np.arange(2**signed.unit)
    wanted = flat[rows, :, None] ^ signed.repeated(numbers)
    found = located(signed.buffer, wanted.ravel()).reshape(wanted.shape) >= 0
    shares = found.mean(0)
    if 2 * shares.max(1).min() < 1:
        return None
    return np.array(shares.argmax(1))


def located(signs: Array, wanted: Array) -> Array:
    """Return the place of each signature, -1 if no place or several places have it."""
    low = signs.dtype.type(FILTER)
    # A few bits of the signature dismiss most places; only the other places are sorted.
    some = np.zeros(FILTER + 1, bool)
    some[wanted & low] = True
    at = np.flatnonzero(some[signs & low])
    found = signs[at]
    order = np.argsort(found)
    found = found[order]
    first = np.searchsorted(found, wanted)
    once = np.searchsorted(found, wanted, "right") - first == 1
    out = np.full(len(wanted), -1, np.int64)
    out[once] = at[order[first[once]]]
    return out


def _backwards(signed: Signed) -> tuple[int, ...]:
    """Return the axes along which the second element lies before the first."""
    axes = [axis for axis, n in enumerate(signed.shape[:-1]) if n > 1]
    index = np.zeros((len(axes) + 1, len(signed.shape)), np.int64)
    index[np.arange(len(axes)), axes] = 1
    *second, first = located(signed.buffer, signed.tensor[tuple(index.T)]).tolist()
    return tuple(axis for axis, place in zip(axes, second, strict=True) if 0 <= place < first)


def _nests(signed: Signed) -> Iterator[tuple[Layout, ...]]:
    """Yield nests that together give the place of every unit.

    First there is one nest for all units, then several nests, one for each run of units with loops
    of its own.
    """
    lines = _along_lines(signed)
    for stored in _readings(signed):
        nest = _one_nest(_before(lines, stored), signed.tensor, signed, False, stored)
        if nest is not None:
            yield (nest,)
    planes: dict[int, Array] = {}
    for deep, stored in product((False, True), _readings(signed)):
        nests = _nest_by_unit(signed, planes, deep, stored)
        if nests:
            yield nests


def _readings(signed: Signed) -> Iterator[dict[str, Any]]:
    """Yield fields of ``Layout`` for each order of bytes in a word and of units in a byte."""
    orders = [False]
    if signed.unit < 8:
        orders.append(True)
    for swap, high_first in product(SWAPS, orders):
        if not swap or signed.size % swap == 0:
            yield {
                "dtype": f"uint{signed.unit}",
                "size": signed.size,
                "swap": swap,
                "big_endian": high_first,
            }


def _before(places: Array, stored: dict[str, Any]) -> Array:
    """Return places as they are before words are swapped, from places in the recorded buffers."""
    return Layout((1,), (), **stored).swapped(places)


def _along_lines(signed: Signed) -> Array:
    """Return the places of units on lines along each axis, ``(*shape, units) int64``.

    A line lies at the first two or last two indices of every axis but its own. The place is -1 for
    a unit that is on no line, and for a unit whose place is unknown.
    """
    shape = signed.shape
    chosen = np.zeros(shape, bool)
    ends = [sorted({0, min(1, n - 1), max(n - 2, 0), n - 1}) for n in shape[:-1]]
    ends.append(sorted({0, shape[-1] - 1}))
    # Elements are chosen in lines along each axis, at the first and last indices of the other axes,
    # because the last tiles may be short.
    for axis, n in enumerate(shape):
        lines = [*ends]
        lines[axis] = [*range(n)]
        chosen[np.ix_(*lines)] = True
    out = np.full(shape, -1, np.int64)
    out[chosen] = located(signed.buffer, signed.tensor[chosen])
    return out


def _one_nest(
    places: Array, tensor: Array, signed: Signed, deep: bool, stored: dict[str, Any]
) -> Layout | None:
    """Return a nest that gives the place of every signature of ``tensor``, None without one.

    The nest is found from ``places``, which are known for some signatures.
    """
    for nest in layouts(places, deep, sampled=True, **stored):
        if nest.size == signed.size and _agrees(nest, tensor, signed.buffer):
            return nest
    return None


def _agrees(nest: Layout, tensor: Array, signs: Array) -> bool:
    """Return true if each unit has its signature at its place; a sample is compared first."""
    rng = np.random.default_rng(1)
    index = tuple(rng.integers(0, n, SAMPLE) for n in tensor.shape)
    if not np.array_equal(signs[nest.at(*index)], tensor[index]):
        return False
    return np.array_equal(signs[nest.index_map()], tensor)


def _nest_by_unit(
    signed: Signed, planes: dict[int, Array], deep: bool, stored: dict[str, Any]
) -> tuple[Layout, ...]:
    """Return nests found unit by unit, one for each run of units with equal loops.

    The result is empty if some unit has no nest. ``planes`` keeps the places of units for further
    calls.
    """
    found: list[Layout] = []
    for unit in range(signed.shape[-1]):
        tensor = signed.tensor[..., unit]
        if unit not in planes:
            planes[unit] = located(signed.buffer, tensor.ravel()).reshape(tensor.shape)
        places = _before(planes[unit], stored)
        nest = None
        if found:
            nest = _moved(found[-1], places, tensor, signed)
        if nest is None:
            nest = _one_nest(places, tensor, signed, deep, stored)
        if nest is None:
            return ()
        found.append(nest)
    return tuple(_joined_runs(found))


def _moved(nest: Layout, places: Array, tensor: Array, signed: Signed) -> Layout | None:
    """Return a nest moved to the places of another unit.

    The result is None if the moved nest does not give the places of this unit in all elements.
    """
    known = np.flatnonzero(places.ravel() >= 0)[:1]
    if not len(known):
        return None
    index = np.unravel_index(int(known[0]), places.shape)
    there = int(_before(np.asarray(nest.at(*index)), reading_of(nest)))
    offset = nest.offset + int(places[index]) - there
    try:
        moved = replace(nest, offset=offset)
    except ValueError:
        return None
    if _agrees(moved, tensor, signed.buffer):
        return moved
    return None


def _rule(nest: Layout) -> tuple[Any, ...]:
    return nest.loops, nest.starts, nest.join


def _joined_runs(found: Sequence[Layout]) -> Iterator[Layout]:
    """Yield a nest for each run of units with equal loops, over the tensor's axes and the run."""
    start = 0
    for stop in range(1, len(found) + 1):
        if stop < len(found) and _rule(found[stop]) == _rule(found[start]):
            continue
        first = found[start]
        offsets = np.array([nest.offset - first.offset for nest in found[start:stop]])
        axis = len(first.shape)
        over_units = _over_units(axis, offsets)
        yield Layout(
            (*first.shape, len(found)),
            (*over_units, *first.loops),
            offset=first.offset,
            window=(*first.window, (start, stop)),
            starts=(*first.starts, 0),
            join=first.join,
            **reading_of(first),
        )
        start = stop


def _over_units(axis: int, offsets: Array) -> list[Loop]:
    """Return loops over the axis of units that reach ``offsets``."""
    digits = digits_of(offsets, np.ones(len(offsets), bool))
    if digits is not None:
        loops = [Loop(axis, tile, stride) for tile, stride in reversed(digits)]
        left = np.arange(len(offsets))
        reached = np.zeros(len(offsets), np.int64)
        for loop in loops:
            reached += loop.reach(left // loop.tile)
            left %= loop.tile
        # Digits that do not fit all places are not used.
        if np.array_equal(reached, offsets):
            return loops
    return [Loop(axis, 1, tuple(offsets.tolist()))]


def _judged(planes: Planes, signed: Signed, given: Given) -> Found | str:
    """Return the account of a layout, or a text with the byte that it packs wrongly.

    The buffers that were held back are packed and compared, except for unexplained bits.
    """
    buffers = given.buffers
    planes, filled, rest = _accounted(planes, buffers[: signed.seen])
    held = 0
    for tensor, buffer in given.held(signed.seen):
        packed = np.frombuffer(planes.pack(tensor), np.uint8)
        wrong = np.flatnonzero((packed ^ buffer) & ~rest)
        if len(wrong):
            return (
                f"the layout of the first {signed.seen} buffers ({planes}) gives another byte "
                f"{int(wrong[0])} of buffers[{signed.seen + held}], which was held back"
            )
        held += 1
    shared = _shared(signed)
    unexplained = []
    for start, end in runs_of(rest != 0):
        shown = buffers[0][start : min(end, start + UNIFORM)].tobytes()
        unexplained.append(Run(start, end - start, shown))
    places = len(signed.buffer)
    return Found(
        planes,
        given.raw[0].size - shared,
        shared,
        np.zeros((0, len(planes.shape)), np.int64),
        past_end=0,
        outside=0,
        elsewhere=0,
        chance=signed.tensor.size * min(places * 2.0 ** -(signed.unit * signed.seen), 1),
        filled=filled,
        unexplained=tuple(unexplained),
        captures=signed.seen,
        held=held,
        proved=held,
    )


def _shared(signed: Signed) -> int:
    """Return the number of elements of which a unit (a run of bits) has a signature that several
    places of the buffer have, so that its place is not certain."""
    order = np.sort(signed.buffer)
    several = np.unique(order[1:][order[1:] == order[:-1]])
    return int(np.count_nonzero(np.isin(signed.tensor, several).any(-1)))


def _accounted(planes: Planes, buffers: Sequence[Array]) -> tuple[Planes, int, Array]:
    """Return a layout with the fill and constants that buffers show, and the account of its bits.

    The second value is the number of bytes of fill; the third is a mask ``(size,) uint8``, whose 1
    bits are those bits of the buffer that are unexplained.
    """
    free = ~_bytes_of(planes, planes.taken())
    moves = np.zeros(planes.size, np.uint8)
    for buffer in buffers[1:]:
        moves |= (buffer ^ buffers[0]) & free
    # Two ways are tried: all bits between elements repeat one byte; or tiles are completed with an
    # element, and all other bits repeat one byte.
    tried = [replace(planes, blank=_usual(buffers[0][(free == 255) & (moves == 0)]))]
    filled = _filled(planes, buffers[0])
    if filled is not None:
        fill, there = filled
        outside = (free == 255) & (moves == 0) & (there == 0)
        tried.append(replace(planes, fill=fill, blank=_usual(buffers[0][outside])))
    lefts = []
    for one in tried:
        lefts.append((one.background() ^ buffers[0]) & free & ~moves)
    counts = [np.count_nonzero(left) for left in lefts]
    best = int(np.argmin(counts))
    planes, left = tried[best], lefts[best] != 0
    moved = moves != 0
    runs = runs_of(left)
    if len(buffers) > 1:
        # If there are too many runs of constants, one constant covers all of them.
        if len(runs) > MOST_RUNS:
            runs = [(runs[0][0], runs[-1][1])]
        constants = buffers[0] & free
        parts = [Constant(start, constants[start:end].tobytes()) for start, end in runs]
        planes = replace(planes, parts=tuple(parts))
    else:
        moves |= lefts[best]
    gaps = int(np.bitwise_count(free[~moved & ~left]).sum()) // 8
    return planes, gaps, moves


def _bytes_of(planes: Planes, units: Array) -> Array:
    """Return a mask ``(size,) uint8`` in which the bits of the units that are true are 1."""
    return planes.nests[0].closed(units * np.uint8(2**planes.unit - 1))


def _usual(values: Array) -> int:
    if not len(values):
        return 0
    return int(np.bincount(values).argmax())


def _filled(planes: Planes, buffer: Array) -> tuple[int, Array] | None:
    """Return the element with which tiles are completed, and a mask of the bits of these elements.

    In the mask ``(size,) uint8`` these bits are 1. The result is None if no tile is completed.
    """
    units = planes.nests[0].opened(buffer)
    taken = planes.taken()
    there = np.zeros(len(units), bool)
    values = np.zeros((1, planes.units), np.uint8)
    for places, unit in planes.completed():
        some = places[~taken[places]]
        there[some] = True
        values[0, unit] = _usual(units[some])
    if not there.any():
        return None
    return int(planes.elements_of(values)[0]), _bytes_of(planes, there)
