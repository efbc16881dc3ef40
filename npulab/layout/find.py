"""The layout that maps tensors to buffers, found from their values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, product
from typing import Any

import numpy as np

from npulab.layout.candidates import candidates
from npulab.layout.found import FEW, Found, accounted, agreeing, unexplained
from npulab.layout.lags import lags
from npulab.layout.nest import Layout
from npulab.layout.places import Change, Pairs, Seen, Signature, Sought, changes, halved, known
from npulab.layout.rules import layouts
from npulab.layout.stored import (
    BITS,
    DTYPES,
    MOST_BYTES,
    MOST_ELEMENTS,
    SWAPS,
    Buffer,
    Table,
    bytes_in,
    elements_at,
    held_as,
    opened,
    raw_of,
)
from npulab.support.refuse import need, refuse_if

SAMPLES = (16, 1024)  # elements on which a layout is tried before all
CHANGES = 3  # ways of changing elements that are followed up
PARTS = 2**31  # of an axis, at random ones of which elements are tried
NESTS = 6  # of those that some places suggest, the ones that are tried on all elements
ENOUGH = 0.9  # of the elements, those that a rule has to agree with
LEAST = 8  # elements that a rule has to agree with, where there are so many
LAGS = (1, 2, 4, 8, 16, 3)  # distances of neighbours, in elements
WORTH = 0.02  # of some elements, those that have to be found with their neighbours
ENTROPY_SAMPLE = 2**16
LEAST_BITS = 0.5  # of a value, so that neighbours stay few
SMALL_TILE = 4  # neighbours that are enough to see a tile
PROVEN = 8  # elements, of which one at least has a value of its own, for a search by values alone
SPARSE = 4  # places of a buffer for each that the tensor takes, from which most is something else
SPARE_BITS = 8  # of a signature beyond the size of the buffer, so that it is rarely there by chance
MOST_RIVALS = 8
MOST_COMPARED = 64  # agreeing candidates, of which the one that explains most is taken


@dataclass(frozen=True)
class _Trial:
    """A layout, which elements agree with it, and where these are by their own values."""

    layout: Layout | Table
    agree: np.ndarray
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
    tensors: np.ndarray | Sequence[np.ndarray],
    buffers: Buffer | Sequence[Buffer],
    *,
    dtype: str = "",
) -> Found:
    """The layout that maps a tensor to its buffer, or each of several tensors of one shape to its
    own.

    Tensors have 1, 2 or 4 bytes an element, buffers are bytes of one size; ``dtype`` names elements
    below 8 bits, which tensors hold in a byte each.  ``markers`` makes tensors whose values tell
    every element; with others the values of neighbours help, and what stays open is said: elements
    ``shared`` and ``missing``, ``rivals``, ``unexplained`` bytes.  Found are order, tiles
    (completed or short, over joint axes, begun inside), strides or the bytes to each index, offset,
    fill, a window, copies, words whose bytes are reversed, elements that are big-endian or changed
    by an xor or a sum, the sums of an axis, constant bytes.  Where no nest of loops gives the
    places, the layout is a ``Table`` of them. Raises ValueError for pairs that do not go together,
    and where no element has a place.

    >>> from npulab.layout import markers, nc1hwc2
    >>> tensors = markers((2, 3, 5))
    >>> print(find_layout(tensors, [nc1hwc2((2, 3, 5), 4).pack(tensor) for tensor in tensors]))
    C1HWC2, C2=4, strides 24 12 4 1: (2, 3, 5) uint8, 48 bytes
    30 of 30 elements placed by values of their own in 2 pairs
    18 bytes beside them are fill (0x0)
    """
    for what, given in (("tensors", tensors), ("buffers", buffers)):
        need(
            f"find_layout: {what}",
            given,
            (Iterable, np.generic),
            "is one of them or a list, as arrays and as bytes",
        )
    pairs = _pairs(tensors, buffers, dtype)
    signature = _in_step(pairs)
    best, places, most = None, None, 0
    for seen, change in _by_value(pairs, signature):
        if places is None:
            places = seen
        most = max(most, int(np.count_nonzero(known(seen))))
        best = _better(best, _trial(pairs, seen, change, True))
        if best is not None and _complete(best):
            break
    own = 0
    if places is not None:
        own = int(np.count_nonzero(known(places)))
    if not (own > 2 * _chance(pairs) + FEW):
        own = 0
    for trials in (
        (_read_otherwise, _by_neighbours)
        if PROVEN * most >= pairs.raw[0].size
        else (_by_neighbours,)
    ):
        if best is not None and (
            _complete(best) or (_fits(best) and 2 * best.known >= best.agree.size)
        ):
            break
        for trial in trials(pairs):
            # a rule of more choices has to explain what is in place without it
            if trial is None or trial.count < ENOUGH * own:
                continue
            best = _better(best, trial)
            if best is not None and _complete(best):
                break
    if (
        best is None
        or not _fits(best)
        or not (_proven(best) or (_sparse(pairs) and _complete(best)))
    ):
        for reading in [pairs] if best is None or best.pairs is pairs else [best.pairs, pairs]:
            best = _plainest(reading, best) or best
    if best is None or not _fits(best):
        table = _table(pairs, places)
        best = _Trial(table, agreeing(table, pairs), None, pairs)
    return _report(signature if best.pairs is pairs else _in_step(best.pairs), best)


def _pairs(tensors: Any, buffers: Any, dtype: str) -> Pairs:
    single = isinstance(buffers, bytes | bytearray | memoryview) or (
        isinstance(buffers, np.ndarray) and buffers.ndim == 1
    )
    arrays = [np.asarray(tensor) for tensor in ([tensors] if single else tensors)]
    data = tuple(
        bytes_in(buffer, f"buffers[{at}]")
        for at, buffer in enumerate([buffers] if single else buffers)
    )
    refuse_if(
        not arrays or len(arrays) != len(data),
        "tensors, buffers",
        f"{len(arrays)} and {len(data)}",
        "is one or more, as many of both",
    )
    refuse_if(dtype and dtype not in DTYPES, "dtype", repr(dtype), f"is one of {', '.join(DTYPES)}")
    first, kind = arrays[0], dtype or str(arrays[0].dtype)
    fits = kind in DTYPES and first.dtype == held_as(kind)
    for at, (tensor, buffer) in enumerate(zip(arrays, data, strict=True)):
        if not fits or not 1 <= tensor.size <= MOST_ELEMENTS or not tensor.ndim:
            raise ValueError(
                f"tensors[{at}]: got {tensor.dtype} {tensor.shape}, allowed are 1 to "
                f"{MOST_ELEMENTS} "
                f"elements of {held_as(dtype) if dtype else ', '.join(DTYPES)}"
            )
        if tensor.shape != first.shape or tensor.dtype != first.dtype:
            raise ValueError(
                f"tensors[{at}]: got {tensor.dtype} {tensor.shape}, allowed is {first.dtype} "
                f"{first.shape} as of the first"
            )
        if len(buffer) != len(data[0]) or not first.itemsize <= len(buffer) <= MOST_BYTES:
            if at == 0:
                allowed = f"{first.itemsize} to {MOST_BYTES}"
            else:
                allowed = f"{len(data[0])} as of the first"
            raise ValueError(f"buffers[{at}]: got {len(buffer)} bytes, allowed is {allowed}")
    return Pairs(
        tuple(raw_of(tensor, kind) for tensor in arrays),
        tuple(opened(buffer, BITS[kind], 0, False) for buffer in data),
        kind,
    )


def _in_step(pairs: Pairs) -> Signature:
    """The bytes at which elements begin: the step of their size where that does, else all."""
    width = pairs.itemsize
    if width == 1:
        return Signature(0, 1)
    shares = []
    for first in range(width):
        shares.append(Sought(pairs, Signature(first, width)).share(Change()))
        if shares[-1] == 1:
            return Signature(first, width)
    anywhere = Sought(pairs, Signature(0, 1)).share(Change())
    if anywhere > max(shares) + WORTH:
        return Signature(0, 1)
    return Signature(shares.index(max(shares)), width)


def _by_value(pairs: Pairs, signature: Signature) -> Iterator[tuple[Seen, Change]]:
    """Places by the values of each element alone."""
    yield Sought(pairs, signature).look_up(Change()), Change()
    if _entropy(pairs) < np.log2(pairs.raw[0].size) - 2:
        return
    width = pairs.itemsize
    steps = list(dict.fromkeys([signature, *(Signature(first, width) for first in range(width))]))
    rated = [
        (share, change, step)
        for step in steps
        for share, change in changes(Sought(pairs, step))[: CHANGES + 1]
        if (change, step) != (Change(), signature)
    ]
    for _, change, step in sorted(rated, key=lambda one: -one[0])[:CHANGES]:
        yield Sought(pairs, step).look_up(change), change


def _read_otherwise(pairs: Pairs) -> Iterator[_Trial | None]:
    """Trials by values alone, with tiles that begin inside or are of joint axes, lists of the bytes
    to each index, and words swapped."""
    for reading in _readings(pairs):
        for seen, change in _by_value(reading, _in_step(reading)):
            if reading is not pairs:
                yield _trial(reading, seen, change, True)
            yield _trial(reading, seen, change, True, deep=True)


def _readings(pairs: Pairs) -> Iterator[Pairs]:
    """The buffers as they are, then with words swapped, of elements below 8 bits with the first in
    the highest bits."""
    yield pairs
    for swap, high_first in product(SWAPS, (False, True) if pairs.bits < 8 else (False,)):
        if (swap or high_first) and (
            not swap or (swap >= pairs.itemsize and pairs.bytes % swap == 0)
        ):
            yield pairs.read(swap, high_first)


def _by_neighbours(pairs: Pairs) -> Iterator[_Trial | None]:
    """Trials by the values of elements and of those after them along an axis, at the usual
    distances, or along one or several axes at those that rare values suggest."""
    wanted = (pairs.size.bit_length() + SPARE_BITS) / max(_entropy(pairs), LEAST_BITS)
    counts = list(
        dict.fromkeys(
            max(count, 2) for count in (math.ceil(wanted), min(math.ceil(wanted), SMALL_TILE))
        )
    )
    axes = [*reversed(range(len(pairs.shape)))]
    # the few that are suggested are the quicker way where there is much besides the tensor
    sparse = _sparse(pairs)
    if not sparse:
        yield from _neighbours(pairs, product(counts, LAGS, axes))
    shape = pairs.shape
    # lines along an axis and all before it have those of fewer axes in them
    joined = [(0, (math.prod(shape[:end]), *shape[end:])) for end in range(2, len(shape) + 1)]
    for reading, (axis, shape) in product(
        _readings(pairs), [*((axis, shape) for axis in axes), *joined]
    ):
        lined = replace(reading, raw=tuple(raw.reshape(shape) for raw in reading.raw))
        distances = ((count, lag, axis) for lag in lags(lined, axis) for count in counts)
        yield from _neighbours(reading, distances, lined)
    if sparse:
        yield from _neighbours(pairs, product(counts, LAGS, axes))


def _neighbours(
    pairs: Pairs,
    distances: Iterable[tuple[int, int, int]],
    lined: Pairs | None = None,
) -> Iterator[_Trial | None]:
    """Trials with signatures of ``count`` elements that lie ``lag`` elements apart along an axis,
    of the tensors as they are or, deeper, as ``lined`` has them."""
    width, deep, lined = pairs.itemsize, lined is not None, lined or pairs
    for count, lag, axis in distances:
        if lined.shape[axis] < count:
            continue
        # a distance backwards is one forwards along the axis turned round
        if lag > 0:
            turned = lined
        else:
            turned = replace(lined, raw=tuple(np.flip(raw, axis) for raw in lined.raw))
        sought = Sought(turned, Signature(0, width, axis, count, abs(lag) * width))
        for change in (
            [change for _, change in changes(sought)[:1]]
            if width == 1
            else [Change(), halved(pairs.bits)]
        ):
            if sought.share(change) > WORTH:
                seen = sought.look_up(change)
                place, often, shared = (
                    np.flip(one, axis if lag < 0 else ()).reshape(pairs.shape)
                    for one in (seen.place, seen.count, seen.shared)
                )
                seen = replace(seen, place=place, count=often, shared=shared)
                trial = _trial(pairs, seen, change, False)
                yield trial
                if deep and (trial is None or not _complete(trial)):
                    yield _trial(pairs, seen, change, False, deep=True)


def _trial(
    pairs: Pairs, seen: Seen, change: Change, alone: bool, deep: bool = False
) -> _Trial | None:
    """The nest that agrees with most elements, of those that some places suggest."""
    best: _Trial | None = None
    sure, stored = known(seen), {"dtype": pairs.dtype, "size": pairs.bytes, **change._asdict()}
    nests = list(layouts(np.where(sure, seen.place, -1), deep, copies=seen.copies, **stored))
    loose = ~seen.shared & (seen.count > 0)
    if np.count_nonzero(loose) > 2 * np.count_nonzero(sure):
        # what stands in several places, as in sums of one element each, may have a rule in the
        # first of them
        nests += layouts(np.where(loose, seen.place, -1), deep, **stored)
    shares = [(_share(layout, pairs, SAMPLES[1]), layout) for layout in nests]
    for _, layout in sorted(shares, key=lambda rated: -rated[0])[:NESTS]:
        trial = _Trial(layout, agreeing(layout, pairs), seen if alone else None, pairs)
        if layout.size > pairs.bytes and not _proven(trial):
            continue
        best = _better(best, trial)
        if best and best.count == best.agree.size:
            break
    return best


def _sparse(pairs: Pairs) -> bool:
    """Whether most of the buffer is something else than the tensor."""
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
    """Whether all elements agree, or all but those past the end of a buffer that was cut off."""
    if trial.count == trial.agree.size:
        return True
    return (
        trial.count == _in_buffer(trial) > trial.agree.size // 2
        and trial.known <= trial.count + 2 * _chance(trial.pairs) + FEW
    )


def _proven(trial: _Trial) -> bool:
    """Whether most elements that are in the buffer have values of their own."""
    return 2 * trial.known > _in_buffer(trial)


def _unexplained(trial: _Trial) -> int | None:
    """Bytes that nothing explains; None where not all elements agree, which is worse than any
    number of them."""
    if trial.count < trial.agree.size:
        return None
    return _left(trial.layout, trial.pairs)


def _left(layout: Layout | Table, pairs: Pairs) -> int:
    return int(np.count_nonzero(accounted(layout, pairs)[2]))


def _plainest(pairs: Pairs, best: _Trial | None) -> _Trial | None:
    """Of the candidates that all elements agree with the one that explains most bytes, the plainest
    of equals; None where none explains all, or more than the best layout so far."""
    least = None
    if not (best is None or not _fits(best)):
        least = _unexplained(best)
    out: Layout | None = None
    if best is None:
        seen = Change()
    else:
        seen = Change(best.layout.xor, best.layout.add, best.layout.big_endian)
    for change in dict.fromkeys((Change(), seen, halved(pairs.bits))):
        for layout in islice(_agreeing_candidates(pairs, change._asdict()), MOST_COMPARED):
            left = _left(layout, pairs)
            if least is None or left < least:
                out, least = layout, left
            if not left:
                return _Trial(layout, agreeing(layout, pairs), None, pairs)
    if out is None:
        return None
    return _Trial(out, agreeing(out, pairs), None, pairs)


def _fits(trial: _Trial) -> bool:
    enough = max(_in_buffer(trial), trial.known)
    return min(LEAST, trial.agree.size) <= trial.count and ENOUGH * enough <= trial.count


def _entropy(pairs: Pairs) -> float:
    """Bits that the values of an element tell about it, as some elements have them."""
    total = 0.0
    for raw in pairs.raw:
        some = raw.reshape(-1)[:: max(raw.size // ENTROPY_SAMPLE, 1)]
        _, counts = np.unique(some, return_counts=True)
        total -= float(np.sum(counts / some.size * np.log2(counts / some.size)))
    return total


def _share(layout: Layout, pairs: Pairs, count: int) -> float:
    """Which part of some elements of the window agrees, of those that are not past the end of the
    buffer."""
    index = tuple(
        start + (stop - start) * part // PARTS
        for (start, stop), part in zip(
            layout.window, _random_parts(len(layout.window), count), strict=True
        )
    )
    at = layout.at(*index)
    inside = at <= pairs.size - pairs.itemsize
    index, at = tuple(one[inside] for one in index), at[inside]
    if len(at):
        return float(_alike(layout, pairs, index, at).mean())
    return 0.0


def _alike(
    layout: Layout, pairs: Pairs, index: tuple[np.ndarray, ...], at: np.ndarray
) -> np.ndarray:
    """Which of some elements are at these places in every buffer."""
    change, good = Change(layout.xor, layout.add), np.ones(at.shape, bool)
    for raw, buffer in zip(pairs.raw, pairs.buffers, strict=True):
        good &= elements_at(buffer, at, pairs.itemsize, layout.big_endian) == change.of(raw[index])
    return good


@cache
def _random_parts(axes: int, count: int) -> tuple[np.ndarray, ...]:
    return tuple(np.random.default_rng(count).integers(0, PARTS, (axes, count)))


def _stored(layout: Layout | Table) -> dict[str, Any]:
    """How its elements are stored, whatever their places."""
    return {
        "xor": layout.xor,
        "add": layout.add,
        "big_endian": layout.big_endian,
        "copies": layout.copies,
    }


def _agreeing_candidates(
    pairs: Pairs, stored: dict[str, Any], counter: list[int] | None = None
) -> Iterator[Layout]:
    """Candidates that all elements agree with; how many were tried is counted."""
    for layout, offsets in candidates(pairs.shape, pairs.size, dtype=pairs.dtype, **stored):
        if counter is not None:
            counter[0] += 1
        for offset in _agreeing_offsets(layout, pairs, offsets):
            moved = replace(layout, offset=offset, size=pairs.bytes)
            if _share(moved, pairs, SAMPLES[1]) == 1 and agreeing(moved, pairs).all():
                yield moved


def _agreeing_offsets(layout: Layout, pairs: Pairs, offsets: list[int]) -> list[int]:
    """The offsets at which a few elements agree."""
    index = tuple(
        n * part // PARTS
        for n, part in zip(pairs.shape, _random_parts(len(pairs.shape), SAMPLES[0]), strict=True)
    )
    at = layout.at(*index) + np.array(offsets)[:, None]
    return [
        offset
        for offset, row in zip(offsets, _alike(layout, pairs, index, at), strict=True)
        if row.all()
    ]


def _table(pairs: Pairs, places: Seen | None) -> Table:
    """Places of the elements that have values of their own; those of neighbours alone would be too
    easily wrong."""
    if places is not None:
        have = np.where(known(places), places.place, -1)
    else:
        have = np.full(pairs.shape, -1)
    own, chance = int(np.count_nonzero(have >= 0)), _chance(pairs)
    if own <= 2 * chance + (FEW if have.size > 2 * FEW else 0):
        raise ValueError(
            f"buffers: got no nest of loops and values of their own of {own} of {have.size} "
            "elements in "
            f"{pairs.bytes} bytes, allowed are more than chance gives, about {chance:.0f}"
        )
    return Table(pairs.shape, have.astype(np.int64), dtype=pairs.dtype, size=pairs.bytes)


def _chance(pairs: Pairs) -> float:
    """How many elements would be found in random bytes, as many as are not fill."""
    fill = np.ones(pairs.size, bool)
    for buffer in pairs.buffers:
        fill &= buffer == np.bincount(buffer).argmax()
    some = pairs.size - int(np.count_nonzero(fill))
    return pairs.raw[0].size * min(some * 2.0 ** -(pairs.bits * len(pairs.raw)), 1)


def _report(signature: Signature, best: _Trial) -> Found:
    pairs = best.pairs
    layout, filled, rest = accounted(best.layout, pairs)
    if layout.copies:
        # sums of one element each are copies of it, but for the bytes that its sign fills
        alone = accounted(replace(best.layout, copies=()), pairs)
        if np.count_nonzero(alone[2]) < np.count_nonzero(rest) or not alone[2].any():
            layout, filled, rest = alone
    change = Change(layout.xor, layout.add, layout.big_endian)
    if best.seen is not None:
        seen = best.seen
    else:
        seen = Sought(pairs, signature).look_up(change)
    places = layout.index_map()
    single = best.agree & known(seen) & (seen.place == places)
    own, shared = int(np.count_nonzero(single)), int(np.count_nonzero(best.agree & ~single))
    missing = np.flatnonzero(~best.agree)
    past = int(np.count_nonzero(places.reshape(-1)[missing] > pairs.size - pairs.itemsize))
    outside = int(np.count_nonzero(places.reshape(-1)[missing] < 0))
    rivals, counter = [], [0]
    if shared:
        left, maps = np.count_nonzero(rest), {hash(places.tobytes())}
        for rival in _agreeing_candidates(pairs, _stored(layout), counter):
            key = hash(rival.index_map().tobytes())
            if key in maps:
                continue
            maps.add(key)
            account, _, others = accounted(rival, pairs)
            if np.count_nonzero(others) <= left or len(missing):
                rivals.append(_as_recorded(replace(rival, fill=account.fill), pairs))
            if len(rivals) > MOST_RIVALS:
                break
    elsewhere = int(np.count_nonzero(known(seen) & (seen.place != places)))
    index = np.stack(np.unravel_index(missing, pairs.shape), -1)
    return Found(
        _as_recorded(layout, pairs),
        own,
        shared,
        index,
        past,
        outside,
        elsewhere,
        _chance(pairs),
        filled * min(pairs.bits, 8) // 8,
        unexplained(rest, pairs),
        len(pairs.raw),
        tuple(rivals[:MOST_RIVALS]),
        len(rivals) > MOST_RIVALS,
        counter[0],
    )


def _as_recorded(layout: Any, pairs: Pairs) -> Any:
    """The layout in the buffers as they were recorded."""
    if not pairs.swap and not pairs.high_first:
        return layout
    return replace(layout, swap=pairs.swap, big_endian=layout.big_endian or pairs.high_first)
