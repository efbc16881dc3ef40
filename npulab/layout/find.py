"""Search for the layout that maps tensors to buffers, by the values of the tensors' elements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import compress, islice, product
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.layout.candidates import candidates
from npulab.layout.found import FEW, Found, accounted, agreeing, unexplained
from npulab.layout.given import SPARE_BITS, Given, given_pairs
from npulab.layout.lags import lags
from npulab.layout.nest import Layout
from npulab.layout.places import Change, Pairs, Seen, Signature, Sought, changes, halved, known
from npulab.layout.planes import Planes
from npulab.layout.rules import layouts
from npulab.layout.split import find_planes
from npulab.layout.stored import (
    DTYPES,
    SWAPS,
    Buffer,
    Table,
    elements_at,
)
from npulab.support.refuse import need

# A layout is tried on samples of this many elements before it is tried on all elements.
SAMPLES = (16, 1024)
# After "no change", at most this many changes of elements are tried.
CHANGES = 3
# Random indices are drawn as multiples of 1 / PARTS of an axis.
PARTS = 2**31
# Of the nests tried on a sample, at most this many (the best) are tried on all elements.
NESTS = 6
# A rule needs this share of the elements to agree, and at least LEAST elements, or all elements if
# a tensor has fewer.
ENOUGH = 0.9
LEAST = 8
# The usual distances in the buffer between neighbours, in elements.
LAGS = (1, 2, 4, 8, 16, 3)
# Shares of a sample that differ by no more than this count as equal.
WORTH = 0.02
# The entropy of values is measured on about this many elements of a tensor.
ENTROPY_SAMPLE = 2**16
# Values with less information than this (in bits) would need too many neighbours.
LEAST_BITS = 0.5
# Signatures of this many neighbours also fit into a small tile.
SMALL_TILE = 4
# If at least one of PROVEN elements has a value of its own, values alone are searched first.
PROVEN = 8
# A buffer larger than SPARSE tensors has mostly other data.
SPARSE = 4
# The end of an error: the reason why planes of bits were not searched.
LATE = "they were not searched, because values of whole elements are found"
MOST_RIVALS = 8
# At most this many candidates that agree are compared by the bytes that they explain.
MOST_COMPARED = 64


@dataclass(frozen=True)
class _Trial:
    """A layout that was tried on ``pairs``.

    ``agree`` ``(*shape)`` is true for the elements whose values are where the layout says. ``seen``
    has the places of elements by their own values, if these were searched.
    """

    layout: Layout | Table
    agree: Array
    seen: Seen | None
    pairs: Pairs

    @property
    def count(self) -> int:
        return int(np.count_nonzero(self.agree))

    @property
    def known(self) -> int:
        if self.seen is not None:
            return int(np.count_nonzero(known(self.seen)))
        return 0


def find_layout(
    tensors: Array | Sequence[Array],
    buffers: Buffer | Sequence[Buffer],
    *,
    dtype: str = "",
) -> Found:
    """Return the layout that maps each of one or more tensors of one shape to its buffer.

    Tensors have 1, 2 or 4 bytes an element; buffers are bytes of one size. ``dtype`` names an
    element type of another width: the tensor then has an element of fewer than 8 bits in a byte, of
    9 to 15 bits in 2 bytes. ``markers`` makes tensors whose values identify each element; in other
    tensors, equal elements are told apart by the values of their neighbours. The result states what
    stays open: elements that are ``shared`` or ``missing``, ``rivals``, ``unexplained`` bytes.

    The search finds:

    - the order of axes, strides, or the offset of each index;
    - tiles, also over joined axes; a last tile that is short; axes that begin inside of a tile;
    - offset and fill of the buffer, a window of the tensor, copies, sums over an axis, constants;
    - words with reversed bytes, big-endian elements, elements changed by an xor or an added number;
    - bits of elements in planes, as low nibbles before high nibbles, for which the layout is
      ``Planes`` and ``markers(..., unit=1)`` makes tensors.

    If no nest of loops fits, the layout is a ``Table`` of places. Of four pairs or more, one or two
    are held back, unless the search needs them to tell the elements apart; the result states how
    many of them the layout packs byte for byte (``Planes`` must pack all). ``warnings`` name bits
    that are equal in all tensors, and tensors that may have been compressed. Raises ValueError if
    no layout is found, and for pairs that do not belong together, as buffers of different lengths.

    >>> from npulab.layout import markers, nc1hwc2
    >>> tensors = markers((2, 3, 5))
    >>> print(find_layout(tensors, [nc1hwc2((2, 3, 5), 4).pack(tensor) for tensor in tensors]))
    C1HWC2, C2=4, strides 24 12 4 1: (2, 3, 5) uint8, 48 bytes
    30 of 30 elements placed by values of their own in 2 pairs
    18 bytes beside them are fill (0x0)
    >>> from npulab.layout import Layout, Loop, Planes
    >>> nibbles = Layout((8, 6, 2), (Loop(0, stride=12), Loop(2), Loop(1)), dtype="uint4")
    >>> planes = Planes((8, 6), (nibbles,))
    >>> tensors = markers((8, 6), unit=4)
    >>> print(find_layout(tensors, [planes.pack(tensor) for tensor in tensors]))
    bits of (8, 6) uint8: r 48, b/4 24, c 4; 48 bytes
    48 of 48 elements placed by values of their own in 4 pairs
    proved byte for byte on 1 of 1 buffers that the search did not see
    """
    for what, given in (("tensors", tensors), ("buffers", buffers)):
        need(
            f"find_layout: {what}",
            given,
            (Iterable, np.generic),
            "is a tensor (array) with its buffer (bytes), or a list of each",
        )
    checked = given_pairs(tensors, buffers, dtype)
    if checked.dtype in DTYPES:
        found = _whole(checked)
    else:
        by_bits = find_planes(checked)
        if isinstance(by_bits, str):
            raise _refused(f"buffers: got no layout, {by_bits}", checked)
        found = by_bits
    return replace(found, warnings=checked.warnings(found.sure))


def _tried(layout: Layout | Table, pairs: Pairs, seen: Seen | None = None) -> _Trial:
    return _Trial(layout, agreeing(layout, pairs), seen, pairs)


def _refused(text: str, given: Given) -> ValueError:
    return ValueError("; ".join([text, *given.warnings(False)]))


def _whole(given: Given) -> Found:
    """Return the layout of whole elements or, if hardly an element is found whole, of the planes of
    their bits.
    """
    pairs = given.pairs()
    signature = _in_step(pairs)
    places, best, most = _first_trials(pairs, signature)
    # If hardly any element is found whole, the bits of elements may lie in planes.
    split: Found | str = ""
    if PROVEN * most < pairs.raw[0].size and (best is None or not _fits(best)):
        split = find_planes(given)
        if isinstance(split, Found):
            return split
    best = _best_trial(pairs, places, best, most)
    if best is None or not _fits(best):
        try:
            table = _table(pairs, places)
        except ValueError as error:
            raise _refused(
                f"{error}; no planes of bits were found: {split or LATE}", given
            ) from None
        best = _tried(table, pairs)
    if best.pairs is not pairs:
        signature = _in_step(best.pairs)
    found = _proved(_report(signature, best), given)
    if not found.sure and pairs.bits < 8:
        # A byte may have bits of elements and bits of fill, which only planes account for.
        by_bits = find_planes(given, whole=True)
        if isinstance(by_bits, Found) and by_bits.sure:
            return by_bits
    return found


def _best_trial(pairs: Pairs, places: Seen, best: _Trial | None, most: int) -> _Trial | None:
    """Return the best trial of all searches.

    ``best`` is the best trial of the search by values of single elements, in which ``most``
    elements have a place of their own.
    """
    searches = [_by_neighbours]
    # Reading the buffers in other ways is worth the time only if at least one in ``PROVEN``
    # elements has a place of its own. Else only runs of neighbouring elements can show the layout.
    if PROVEN * most >= pairs.raw[0].size:
        searches.insert(0, _read_otherwise)
    for search in searches:
        if best is None or not _settled(best):
            best = _best_of(search(pairs), best, _beyond_chance(pairs, places))
    if best is None or not _convincing(best, pairs):
        readings = [pairs]
        if best is not None and best.pairs is not pairs:
            readings.insert(0, best.pairs)
        for reading in readings:
            best = _plainest(reading, best) or best
    return best


def _proved(found: Found, given: Given) -> Found:
    """Return ``found`` with two counts: ``held`` is the number of buffers that the search did not
    see, ``proved`` the number of these buffers that the layout packs byte for byte.

    Missing elements and unexplained bytes are not compared.
    """
    held = [*given.held(found.captures)]
    layout = found.layout
    assert not isinstance(layout, Planes)
    places = layout.index_map()[tuple(found.missing.T)]
    left = [np.arange(run.offset, run.offset + run.size) for run in found.unexplained]
    for at in range(layout.itemsize):
        left.append((places[places >= 0] + at) // layout.per_byte)
    proved = 0
    for tensor, buffer in held:
        packed = np.frombuffer(layout.pack(tensor), np.uint8)[: len(buffer)]
        wrong = np.flatnonzero(packed != buffer)
        proved += bool(np.isin(wrong, np.concatenate(left)).all())
    return replace(found, held=len(held), proved=proved)


def _first_trials(pairs: Pairs, signature: Signature) -> tuple[Seen, _Trial | None, int]:
    """Return the results of the search by values of single elements.

    These are the places of unchanged elements, the best trial, and the largest number of elements
    that have a place of their own.
    """
    first: Seen | None = None
    best: _Trial | None = None
    most = 0
    for seen, change in _by_value(pairs, signature):
        first = first or seen
        most = max(most, int(np.count_nonzero(known(seen))))
        best = _better(best, _trial(pairs, seen, change, True))
        if best is not None and _complete(best):
            break
    assert first is not None
    return first, best, most


def _beyond_chance(pairs: Pairs, places: Seen) -> int:
    """Return the number of elements with a place of their own; 0 if chance could give as many."""
    own = int(np.count_nonzero(known(places)))
    if own > 2 * _chance(pairs) + FEW:
        return own
    return 0


def _best_of(trials: Iterator[_Trial | None], best: _Trial | None, own: int) -> _Trial | None:
    """Return the best of ``trials``, or ``best``, the best earlier trial.

    ``own`` elements have a place of their own, without any rule. Because these trials choose among
    more rules than earlier trials, each must agree with at least ``ENOUGH`` times ``own`` elements.
    """
    for trial in trials:
        if trial is None or trial.count < ENOUGH * own:
            continue
        best = _better(best, trial)
        if best is not None and _complete(best):
            break
    return best


def _settled(trial: _Trial) -> bool:
    """Return true if a trial is certain enough to end the search."""
    return _complete(trial) or (_fits(trial) and 2 * trial.known >= trial.agree.size)


def _convincing(trial: _Trial, pairs: Pairs) -> bool:
    """Return true if a trial is so clear that it need not be compared with plain candidates."""
    return _fits(trial) and (_proven(trial) or (_sparse(pairs) and _complete(trial)))


def _in_step(pairs: Pairs) -> Signature:
    """Return the signature of single elements, with the bytes at which elements may begin.

    These are a first byte plus multiples of the element's size, if about as many elements are found
    there as at all bytes; else all bytes.
    """
    width = pairs.itemsize
    if width == 1:
        return Signature(0, 1)
    shares = []
    for first in range(width):
        shares.append(Sought(pairs, Signature(first, width)).share(Change()))
        if shares[-1] == 1:
            return Signature(first, width)
    # A search at every byte finds more elements by chance, because it compares more places. So it
    # must find clearly more than the best search in steps of an element.
    anywhere = Sought(pairs, Signature(0, 1)).share(Change())
    if anywhere > max(shares) + WORTH:
        return Signature(0, 1)
    return Signature(shares.index(max(shares)), width)


def _by_value(pairs: Pairs, signature: Signature) -> Iterator[tuple[Seen, Change]]:
    """Yield (places, change): the places of elements, found by the values of each element alone, if
    elements are changed by ``change``.
    """
    yield Sought(pairs, signature).look_up(Change()), Change()
    # Values with less information than the number of an element occur at many places, so that any
    # change of elements would seem to fit.
    if _entropy(pairs) < np.log2(pairs.raw[0].size) - 2:
        return
    width = pairs.itemsize
    steps = [signature]
    for first in range(width):
        if Signature(first, width) != signature:
            steps.append(Signature(first, width))
    rated = []
    for step in steps:
        for share, change in changes(Sought(pairs, step))[: CHANGES + 1]:
            if (change, step) != (Change(), signature):
                rated.append((share, change, step))
    rated.sort(key=lambda choice: -choice[0])
    for _, change, step in rated[:CHANGES]:
        yield Sought(pairs, step).look_up(change), change


def _read_otherwise(pairs: Pairs) -> Iterator[_Trial | None]:
    """Yield trials by values of single elements that the first search does not make.

    They have axes that begin inside of a tile or are joined, a list of the bytes to each index, or
    swapped words.
    """
    for reading in _readings(pairs):
        for seen, change in _by_value(reading, _in_step(reading)):
            if reading is not pairs:
                yield _trial(reading, seen, change, True)
            yield _trial(reading, seen, change, True, deep=True)


def _readings(pairs: Pairs) -> Iterator[Pairs]:
    """Yield the pairs with buffers read as they are, then with words swapped back.

    Elements of fewer than 8 bits are also read with the first element in the highest bits.
    """
    orders = [False]
    if pairs.bits < 8:
        orders.append(True)
    for swap, high_first in product(SWAPS, orders):
        if not swap and not high_first:
            yield pairs
        elif not swap or (swap >= pairs.itemsize and pairs.bytes % swap == 0):
            yield pairs.read(swap, high_first)


def _by_neighbours(pairs: Pairs) -> Iterator[_Trial | None]:
    """Yield trials by the values of each element and of its neighbours, the elements after it along
    an axis.

    Neighbours are searched at the usual distances (``LAGS``) and at distances that rare values
    suggest, along one axis or along several axes joined to one.
    """
    wanted = math.ceil((pairs.size.bit_length() + SPARE_BITS) / max(_entropy(pairs), LEAST_BITS))
    counts = [max(wanted, 2)]
    if wanted > SMALL_TILE:
        counts.append(SMALL_TILE)
    shape = pairs.shape
    axes = [*reversed(range(len(shape)))]
    # Rare values suggest only few distances; these are tried first if the buffer is much larger
    # than the tensor.
    sparse = _sparse(pairs)
    if not sparse:
        yield from _neighbours(pairs, product(counts, LAGS, axes))
    lines = [(axis, shape) for axis in axes]
    # An axis is joined with all axes before it, because lines along fewer joined axes are parts of
    # these lines.
    for end in range(2, len(shape) + 1):
        lines.append((0, (math.prod(shape[:end]), *shape[end:])))
    for reading, (axis, joined) in product(_readings(pairs), lines):
        lined = replace(reading, raw=tuple(raw.reshape(joined) for raw in reading.raw))
        distances = ((count, lag, axis) for lag, count in product(lags(lined, axis), counts))
        yield from _neighbours(reading, distances, lined)
    if sparse:
        yield from _neighbours(pairs, product(counts, LAGS, axes))


def _neighbours(
    pairs: Pairs,
    distances: Iterable[tuple[int, int, int]],
    lined: Pairs | None = None,
) -> Iterator[_Trial | None]:
    """Yield trials with signatures of several neighbours along an axis.

    ``distances`` has (count, lag, axis): ``count`` elements that lie ``lag`` elements apart in the
    buffer. The axis is one of the tensors, or of ``lined``, which are the tensors in another shape;
    with ``lined`` the deep nests of ``rules.layouts`` are tried too.
    """
    width = pairs.itemsize
    deep = lined is not None
    lined = lined or pairs
    for count, lag, axis in distances:
        if lined.shape[axis] < count:
            continue
        turned = lined
        # A negative distance is a positive distance along the flipped axis.
        if lag < 0:
            turned = replace(lined, raw=tuple(np.flip(raw, axis) for raw in lined.raw))
        sought = Sought(turned, Signature(0, width, axis, count, abs(lag) * width))
        tried = [Change(), halved(pairs.bits)]
        if width == 1:
            tried = [change for _, change in changes(sought)[:1]]
        for change in tried:
            if sought.share(change) <= WORTH:
                continue
            seen = sought.look_up(change)
            arrays = {}
            for name in ("place", "count", "shared"):
                values = getattr(seen, name)
                if lag < 0:
                    values = np.flip(values, axis)
                arrays[name] = values.reshape(pairs.shape)
            seen = replace(seen, **arrays)
            trial = _trial(pairs, seen, change, False)
            yield trial
            if deep and (trial is None or not _complete(trial)):
                yield _trial(pairs, seen, change, False, deep=True)


def _trial(
    pairs: Pairs, seen: Seen, change: Change, alone: bool, deep: bool = False
) -> _Trial | None:
    """Return the trial of the nest that agrees with most elements, None without a nest.

    The nests are those that the places in ``seen`` suggest. ``alone`` is true if these places were
    found by values of single elements; ``deep`` also tries the deep nests of ``rules.layouts``.
    """
    best: _Trial | None = None
    by_value = None
    if alone:
        by_value = seen
    sure = known(seen)
    stored = {"dtype": pairs.dtype, "size": pairs.bytes, **change._asdict()}
    nests = list(layouts(np.where(sure, seen.place, -1), deep, copies=seen.copies, **stored))
    loose = ~seen.shared & (seen.count > 0)
    if np.count_nonzero(loose) > 2 * np.count_nonzero(sure):
        # If many elements have several places (a sum over one element repeats its value), their
        # first places may fit a rule.
        nests += layouts(np.where(loose, seen.place, -1), deep, **stored)
    shares = [(_share(layout, pairs, SAMPLES[1]), layout) for layout in nests]
    for _, layout in sorted(shares, key=lambda rated: -rated[0])[:NESTS]:
        trial = _tried(layout, pairs, by_value)
        # A nest that reaches past the end means that the buffer was cut off. A few elements that
        # agree by chance do not prove this.
        if layout.size > pairs.bytes and not _proven(trial):
            continue
        best = _better(best, trial)
        if best and best.count == best.agree.size:
            break
    return best


def _sparse(pairs: Pairs) -> bool:
    """Return true if the buffer is larger than ``SPARSE`` tensors, so that most of it is other
    data.
    """
    return pairs.size > SPARSE * pairs.itemsize * pairs.raw[0].size


def _better(a: _Trial | None, b: _Trial | None) -> _Trial | None:
    if a is None or (b is not None and b.count > a.count):
        return b
    return a


def _in_buffer(trial: _Trial) -> int:
    layout, pairs = trial.layout, trial.pairs
    if isinstance(layout, Layout) and layout.size <= pairs.bytes:
        return layout.elements
    places = layout.index_map()
    return int(np.count_nonzero((places >= 0) & (places <= pairs.size - pairs.itemsize)))


def _complete(trial: _Trial) -> bool:
    """Return true if all elements agree, except elements past the end of a buffer that was cut
    off."""
    if trial.count == trial.agree.size:
        return True
    return (
        trial.count == _in_buffer(trial) > trial.agree.size // 2
        and trial.known <= trial.count + 2 * _chance(trial.pairs) + FEW
    )


def _proven(trial: _Trial) -> bool:
    """Return true if most elements in the buffer have values that occur nowhere else."""
    return 2 * trial.known > _in_buffer(trial)


def _unexplained(trial: _Trial) -> int | None:
    """Return the number of places that a trial's layout leaves unexplained.

    The result is None, which is worse than any number, if not all elements agree.
    """
    if trial.count < trial.agree.size:
        return None
    return _left(trial.layout, trial.pairs)


def _left(layout: Layout | Table, pairs: Pairs) -> int:
    return int(np.count_nonzero(accounted(layout, pairs)[2]))


def _plainest(pairs: Pairs, best: _Trial | None) -> _Trial | None:
    """Return the trial of the best plain candidate, None if ``best`` is as good.

    All elements agree with the best candidate, and it leaves the fewest places unexplained; among
    equals it is the plainest. It must leave fewer places unexplained than ``best``.
    """
    least = None
    seen = Change()
    if best is not None:
        seen = Change(best.layout.xor, best.layout.add, best.layout.big_endian)
        if _fits(best):
            least = _unexplained(best)
    out: Layout | None = None
    for change in dict.fromkeys((Change(), seen, halved(pairs.bits))):
        for layout in islice(_agreeing_candidates(pairs, change._asdict()), MOST_COMPARED):
            left = _left(layout, pairs)
            if least is None or left < least:
                out = layout
                least = left
            if not left:
                return _tried(layout, pairs)
    if out is None:
        return None
    return _tried(out, pairs)


def _fits(trial: _Trial) -> bool:
    enough = max(_in_buffer(trial), trial.known)
    return min(LEAST, trial.agree.size) <= trial.count and ENOUGH * enough <= trial.count


def _entropy(pairs: Pairs) -> float:
    """Return the bits of information in the values of an element, estimated from a sample."""
    total = 0.0
    for raw in pairs.raw:
        some = raw.reshape(-1)[:: max(raw.size // ENTROPY_SAMPLE, 1)]
        _, counts = np.unique(some, return_counts=True)
        total -= float(np.sum(counts / some.size * np.log2(counts / some.size)))
    return total


def _share(layout: Layout, pairs: Pairs, count: int) -> float:
    """Return the share of a sample of ``count`` elements that agree with a layout.

    Elements are drawn from the layout's window; those past the end of the buffer do not count.
    """
    parts = _random_parts(len(layout.window), count)
    index = []
    for (start, stop), part in zip(layout.window, parts, strict=True):
        index.append(start + (stop - start) * part // PARTS)
    at = layout.at(*index)
    inside = at <= pairs.size - pairs.itemsize
    if not inside.any():
        return 0.0
    chosen = tuple(axis[inside] for axis in index)
    return float(_alike(layout, pairs, chosen, at[inside]).mean())


def _alike(layout: Layout, pairs: Pairs, index: tuple[Array, ...], at: Array) -> Array:
    """Return an array that is true for elements whose value every buffer has at their place.

    ``index`` are the indices of the elements, ``at`` their places.
    """
    change = Change(layout.xor, layout.add)
    good = np.ones(at.shape, bool)
    for raw, buffer in zip(pairs.raw, pairs.buffers, strict=True):
        good &= elements_at(buffer, at, pairs.itemsize, layout.big_endian) == change.of(raw[index])
    return good


@cache
def _random_parts(axes: int, count: int) -> tuple[Array, ...]:
    return tuple(np.random.default_rng(count).integers(0, PARTS, (axes, count)))


def _stored(layout: Layout | Table) -> dict[str, Any]:
    """Return the fields of a layout that state how elements are stored, without their places."""
    return {
        "xor": layout.xor,
        "add": layout.add,
        "big_endian": layout.big_endian,
        "copies": layout.copies,
    }


def _agreeing_candidates(
    pairs: Pairs, stored: dict[str, Any], counter: list[int] | None = None
) -> Iterator[Layout]:
    """Yield the plain candidates with which all elements agree.

    The number of layouts that were tried is added to ``counter[0]``.
    """
    for layout, offsets in candidates(pairs.shape, pairs.size, dtype=pairs.dtype, **stored):
        if counter is not None:
            counter[0] += 1
        for offset in _agreeing_offsets(layout, pairs, offsets):
            moved = replace(layout, offset=offset, size=pairs.bytes)
            if _share(moved, pairs, SAMPLES[1]) == 1 and agreeing(moved, pairs).all():
                yield moved


def _agreeing_offsets(layout: Layout, pairs: Pairs, offsets: list[int]) -> list[int]:
    """Return those of ``offsets`` at which a sample of the elements agrees with a layout."""
    parts = _random_parts(len(pairs.shape), SAMPLES[0])
    index = tuple(n * part // PARTS for n, part in zip(pairs.shape, parts, strict=True))
    at = layout.at(*index) + np.array(offsets)[:, None]
    return list(compress(offsets, np.all(_alike(layout, pairs, index, at), axis=1)))


def _table(pairs: Pairs, places: Seen | None) -> Table:
    """Return a table of the places of elements whose values occur nowhere else.

    Places that were found only by neighbours are left out, because they are often wrong. Raises
    ValueError if chance could give as many places.
    """
    have = np.full(pairs.shape, -1)
    if places is not None:
        have = np.where(known(places), places.place, -1)
    own = int(np.count_nonzero(have >= 0))
    chance = _chance(pairs)
    least = 2 * chance
    if have.size > 2 * FEW:
        least += FEW
    if own <= least:
        raise ValueError(
            f"buffers: got no nest of loops, and a place for {own} of {have.size} elements in "
            f"{pairs.bytes} bytes, allowed are more elements than chance places, about "
            f"{chance:.0f}"
        )
    return Table(pairs.shape, have.astype(np.int64), dtype=pairs.dtype, size=pairs.bytes)


def _chance(pairs: Pairs) -> float:
    """Return how many elements would be found by chance if all bytes except fill were random."""
    fill = np.ones(pairs.size, bool)
    for buffer in pairs.buffers:
        fill &= buffer == np.bincount(buffer).argmax()
    some = pairs.size - int(np.count_nonzero(fill))
    return pairs.raw[0].size * min(some * 2.0 ** -(pairs.bits * len(pairs.raw)), 1)


def _report(signature: Signature, best: _Trial) -> Found:
    pairs = best.pairs
    layout, filled, rest = accounted(best.layout, pairs)
    if layout.copies:
        # A sum over one element has the value of the element, so it looks like a copy. Without
        # copies, these bytes and those of the sum's sign extension may be explained as sums.
        alone = accounted(replace(best.layout, copies=()), pairs)
        if np.count_nonzero(alone[2]) < np.count_nonzero(rest) or not alone[2].any():
            layout, filled, rest = alone
    seen = best.seen
    if seen is None:
        change = Change(layout.xor, layout.add, layout.big_endian)
        seen = Sought(pairs, signature).look_up(change)
    places = layout.index_map()
    own = int(np.count_nonzero(best.agree & known(seen) & (seen.place == places)))
    shared = best.count - own
    missing = np.argwhere(~best.agree)
    missing_places = places[~best.agree]
    rivals: list[Layout] = []
    counter = [0]
    if shared:
        # If elements are missing, each layout with which all elements agree is a rival, even if it
        # leaves more places unexplained.
        most = int(np.count_nonzero(rest))
        if len(missing):
            most = pairs.size
        for rival in _rivals(layout, pairs, most, counter):
            rivals.append(_as_recorded(rival, pairs))
            if len(rivals) > MOST_RIVALS:
                break
    return Found(
        _as_recorded(layout, pairs),
        own,
        shared,
        missing,
        past_end=int(np.count_nonzero(missing_places > pairs.size - pairs.itemsize)),
        outside=int(np.count_nonzero(missing_places < 0)),
        elsewhere=int(np.count_nonzero(known(seen) & (seen.place != places))),
        chance=_chance(pairs),
        filled=filled * min(pairs.bits, 8) // 8,
        unexplained=unexplained(rest, pairs),
        captures=len(pairs.raw),
        rivals=tuple(rivals[:MOST_RIVALS]),
        more_rivals=len(rivals) > MOST_RIVALS,
        tried=counter[0],
    )


def _rivals(
    layout: Layout | Table, pairs: Pairs, most: int, counter: list[int]
) -> Iterator[Layout]:
    """Yield other layouts with which all elements agree.

    They leave at most ``most`` places unexplained.
    """
    # A candidate with other loops but the same places as an earlier layout is no rival. Hashes of
    # the places are compared, because the places of all candidates would take too much memory.
    maps = {hash(layout.index_map().tobytes())}
    for rival in _agreeing_candidates(pairs, _stored(layout), counter):
        key = hash(rival.index_map().tobytes())
        if key in maps:
            continue
        maps.add(key)
        account, _, rest = accounted(rival, pairs)
        if np.count_nonzero(rest) <= most:
            yield replace(rival, fill=account.fill)


def _as_recorded(layout: Any, pairs: Pairs) -> Any:
    """Return a layout of the search as a layout of the recorded buffers.

    The search swaps the words of the buffers back first; the result has the swap as a field.
    """
    if not pairs.swap and not pairs.high_first:
        return layout
    return replace(layout, swap=pairs.swap, big_endian=layout.big_endian or pairs.high_first)
