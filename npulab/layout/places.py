"""Search for the places in buffers that have the values of each element, without any rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.layout.stored import BITS, Shape, joined, opened, store, swap_words

CHUNK = 2**16
# The share of elements that are found is estimated from a sample of this many elements.
SAMPLE = 256
# Every number is tried as xor and as summand with this many elements of the sample.
FEW = 16
# At most this many summands, and as many xors, become changes.
MOST_CHANGES = 8
# Copies are searched up to this many places of one element.
MOST_COPIES = 16
# The largest count of places, which is uint8; more places count as MANY.
MANY = 255
MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Pairs:
    """Tensors and their buffers, as a search reads them.

    ``raw`` are tensors of unsigned elements, all of one shape; ``buffers`` are ``(M,) uint8``, all
    of one size. In the buffers, words of ``swap`` bytes are swapped back, and each element of fewer
    than 8 bits has a byte of its own; with ``high_first`` the first element of a recorded byte came
    from its highest bits.
    """

    raw: tuple[Array, ...]
    buffers: tuple[Array, ...]
    dtype: str
    swap: int = 0
    high_first: bool = False

    @property
    def shape(self) -> Shape:
        return self.raw[0].shape

    @property
    def itemsize(self) -> int:
        return self.raw[0].itemsize

    @property
    def bits(self) -> int:
        return BITS[self.dtype]

    @property
    def size(self) -> int:
        """The number of places in a buffer: bytes, or elements of fewer than 8 bits."""
        return len(self.buffers[0])

    @property
    def bytes(self) -> int:
        """The number of bytes of a recorded buffer."""
        return self.size * min(self.bits, 8) // 8

    def read(self, swap: int, high_first: bool) -> Pairs:
        """Return the pairs with the recorded buffers read with another ``swap`` or
        ``high_first``."""
        return replace(
            self,
            swap=swap,
            high_first=high_first,
            buffers=tuple(
                opened(self.recorded(buffer), self.bits, swap, high_first)
                for buffer in self.buffers
            ),
        )

    def recorded(self, buffer: Array) -> Array:
        """Return a buffer of the pairs as it was recorded, the inverse of ``stored.opened``."""
        return swap_words(joined(buffer, self.bits, self.high_first), self.swap)


class Change(NamedTuple):
    """A change of elements before they are stored: fields of ``Stored`` with the same names."""

    xor: int = 0
    add: int = 0
    big_endian: bool = False

    def of(self, raw: Array) -> Array:
        """Return changed elements, as a little-endian reader of the buffer reads them."""
        out = store(raw, self.xor, self.add)
        if self.big_endian:
            return out.byteswap()
        return out


@dataclass(frozen=True)
class Signature:
    """The values that identify an element, and the places at which they are searched.

    They are the values in all captures of the element and of the ``count - 1`` elements after it
    along ``axis``, which lie ``lag`` places apart in the buffer. Only the places
    ``first + n * step`` are searched.
    """

    first: int
    step: int
    axis: int = 0
    count: int = 1
    lag: int = 0


@dataclass(frozen=True, eq=False)
class Seen:
    """The places of elements by their signatures, as arrays ``(*shape)``.

    ``place`` is the first place with the element's signature (int32), -1 if the buffer has none.
    ``count`` is the number of such places (uint8, at most ``MANY``). ``shared`` is true if another
    element has the same signature. ``copies`` are distances, in places, at which all elements seem
    to be stored again.
    """

    place: Array
    count: Array
    shared: Array
    copies: tuple[int, ...]


class Sought:
    """The signatures of all places of the buffers, sorted, so that elements can be looked up."""

    def __init__(self, pairs: Pairs, signature: Signature) -> None:
        self.pairs, self.signature = pairs, signature
        places = max(
            (pairs.size - pairs.itemsize - (signature.count - 1) * signature.lag - signature.first)
            // signature.step
            + 1,
            0,
        )
        # A key and its place are one number, so that sorting takes no further memory.
        self.bits = max(places, pairs.raw[0].size, 2).bit_length()
        self.low = np.uint64(2**self.bits - 1)
        self.sorted = self._numbered(self._buffer_columns(places), places)

    def share(self, change: Change, sample: Sequence[Array] | None = None) -> float:
        """Return the share of a sample of elements whose signature, changed, is in the buffer."""
        columns = [change.of(column) for column in (self.sample() if sample is None else sample)]
        if not len(self.sorted) or not columns or not len(columns[0]):
            return 0.0
        first, end = self._range(self._keys(columns, len(columns[0])) * np.uint64(2**self.bits))
        return float(np.mean(end > first))

    def often(self, name: str, sample: Sequence[Array]) -> Array:
        """Return for each number below ``2 ** bits`` how many elements it brings into the buffer.

        The first ``FEW`` elements of a sample are tried, with the number added to their values if
        ``name`` is "add", xored with them if it is "xor".
        """
        numbers = np.arange(256**self.pairs.itemsize).astype(sample[0].dtype)
        out = np.zeros(len(numbers), np.int64)
        for values in zip(*(column[:FEW] for column in sample), strict=True):
            keys = self._keys(
                (value ^ numbers if name == "xor" else value + numbers for value in values),
                len(numbers),
            )
            first, end = self._range(keys * np.uint64(2**self.bits))
            out += end > first
        return out

    def sample(self, count: int = SAMPLE) -> list[Array]:
        """Return the values of ``count`` elements of a sample: an array for each value in a
        signature."""
        shape = self._window_shape()
        size = int(np.prod(shape))
        if not size:
            return []
        chosen = np.unique(np.random.default_rng(size).integers(0, size, count))
        return [column[chosen] for column in self._tensor_columns(Change())]

    def look_up(self, change: Change) -> Seen:
        """Return the places of every element whose values were changed by ``change``."""
        shape = self._window_shape()
        size = int(np.prod(shape))
        numbered = self._numbered(self._tensor_columns(change), size)
        place, count = np.full(size, -1, np.int32), np.zeros(size, np.uint8)
        shared = np.zeros(size, bool)
        for start in range(0, size, CHUNK):
            part = numbered[start : start + CHUNK]
            # The first key of the next chunk is compared too; otherwise equal keys on both sides of
            # the chunk's end would count as unique.
            pair = numbered[start : start + CHUNK + 1]
            same = (pair[1:] ^ pair[:-1]) <= self.low
            shared[pair[1:][same] & self.low] = True
            shared[pair[:-1][same] & self.low] = True
            first, end = self._range(part & ~self.low)
            element = part & self.low
            found = end > first
            at = (self.sorted[first[found]] & self.low).astype(np.int64)
            place[element[found]] = self.signature.first + self.signature.step * at
            count[element] = np.minimum(end - first, MANY)
        copies = self._copies(numbered, count, shared)
        return self._whole(
            Seen(place.reshape(shape), count.reshape(shape), shared.reshape(shape), copies)
        )

    def _range(self, keys: Array) -> tuple[Array, Array]:
        return np.searchsorted(self.sorted, keys), np.searchsorted(
            self.sorted, keys | self.low, "right"
        )

    def _copies(self, numbered: Array, count: Array, shared: Array) -> tuple[int, ...]:
        """Return the distances, in places, at which elements seem to be stored again.

        A distance goes from an element's first place to a further place, and most of a sample of
        elements have it. The result is empty unless at least half of the elements with a signature
        of their own have the same number of places, 2 or more.
        """
        alone = count[~shared & (count > 0)]
        usual = max(
            range(1, MOST_COPIES + 1), key=lambda many: int(np.count_nonzero(alone == many))
        )
        if usual == 1 or np.count_nonzero(alone == usual) * 2 < alone.size:
            return ()
        some = numbered[:: max(len(numbered) // (SAMPLE * SAMPLE), 1)]
        element = some & self.low
        chosen = some[(count[element] == usual) & ~shared[element]][:SAMPLE]
        first, _ = self._range(chosen & ~self.low)
        places = (self.sorted[first[:, None] + np.arange(usual)] & self.low).astype(np.int64)
        distances, often = np.unique((places - places[:, :1])[:, 1:], return_counts=True)
        return tuple((distances[often * 2 > len(chosen)] * self.signature.step).tolist())

    def _whole(self, seen: Seen) -> Seen:
        """Return the places of signatures in the shape of the tensor.

        A signature that is found also states the places of its neighbours: each lies ``lag`` places
        after the neighbour before it.
        """
        shape, axis, lag = self.pairs.shape, self.signature.axis, self.signature.lag
        if seen.place.shape == shape:
            return seen
        place, count = np.full(shape, -1, np.int32), np.zeros(shape, np.uint8)
        shared = np.zeros(shape, bool)
        sure = known(seen)
        # The place of an element's own signature is written last, so it replaces places that
        # signatures of its neighbours imply.
        for at in reversed(range(self.signature.count)):
            window = tuple(
                slice(at, at + n) if other == axis else slice(None)
                for other, n in enumerate(seen.place.shape)
            )
            place[window][sure] = seen.place[sure] + at * lag
            count[window][sure] = seen.count[sure]
        return Seen(place, count, shared, seen.copies)

    def _window_shape(self) -> Shape:
        return tuple(
            max(n - self.signature.count + 1, 0) if axis == self.signature.axis else n
            for axis, n in enumerate(self.pairs.shape)
        )

    def _tensor_columns(self, change: Change) -> Iterator[Array]:
        length = self._window_shape()[self.signature.axis]
        for raw in self.pairs.raw:
            changed = change.of(raw)
            for at in range(self.signature.count):
                yield changed[
                    (slice(None),) * self.signature.axis + (slice(at, at + length),)
                ].ravel()

    def _buffer_columns(self, places: int) -> Iterator[Array]:
        itemsize, first, step = self.pairs.itemsize, self.signature.first, self.signature.step
        for buffer in self.pairs.buffers:
            for at in range(self.signature.count):
                start = first + at * self.signature.lag
                if itemsize == 1:
                    yield buffer[start::step][:places]
                    continue
                out = np.empty((places, itemsize), np.uint8)
                for byte in range(itemsize):
                    out[:, byte] = buffer[start + byte :: step][:places]
                yield out.view(f"<u{itemsize}")[:, 0]

    def _keys(self, columns: Iterable[Array], size: int) -> Array:
        """Return a key for each of ``size`` signatures: its values, or a hash of them.

        The values are the key if they fit into 64 bits together with the number of a place.
        """
        width = self.pairs.bits
        fits = width * len(self.pairs.raw) * self.signature.count <= 64 - self.bits
        out = np.zeros(size, np.uint64)
        for column in columns:
            if fits:
                out *= np.uint64(2**width)
                out += column
            else:
                # A product moves bits only upwards; without the shift, high bits of a column would
                # never reach low bits of the hash.
                out ^= column
                out *= MIX
                out ^= out >> np.uint64(29)
        if fits:
            return out
        return out >> np.uint64(self.bits)

    def _numbered(self, columns: Iterable[Array], size: int) -> Array:
        out = self._keys(columns, size)
        out *= np.uint64(2**self.bits)
        for start in range(0, size, CHUNK):
            out[start : start + CHUNK] += np.arange(
                start, min(start + CHUNK, size), dtype=np.uint64
            )
        out.sort()
        return out


def known(seen: Seen) -> Array:
    """Return an array that is true for elements with a place of their own.

    Such an element's signature belongs to no other element and is at exactly one place, and at one
    more for each copy.
    """
    return ~seen.shared & (seen.count == len(seen.copies) + 1)


def changes(sought: Sought) -> list[tuple[float, Change]]:
    """Return (share, change) for changes that elements may have had before they were stored.

    ``share`` is the share of a sample of elements that is found with the change. The largest share
    comes first; among equal shares, "no change" comes first.
    """
    bits = sought.pairs.bits
    sample = sought.sample()
    half = 2 ** (bits - 1)
    tried = [
        Change(),
        halved(bits),
        *([Change(big_endian=True), Change(add=half, big_endian=True)] if bits > 8 else []),
    ]
    if bits < 8:
        tried += [Change(xor=number) for number in range(1, 2**bits) if number != half]
    if 8 <= bits <= 16 and sample:
        for name in ("add", "xor"):
            often = sought.often(name, sample)
            # 0 (no change) and half of the range are in ``tried`` already.
            often[[0, half]] = 0
            best = np.argsort(-often, kind="stable")[:MOST_CHANGES]
            tried += [
                Change(add=number) if name == "add" else Change(xor=number)
                for number in best.tolist()
                if often[number]
            ]
    rated = [(sought.share(change, sample), change) for change in tried]
    return sorted((one for one in rated if one[0] > 0), key=lambda one: -one[0])


def halved(bits: int) -> Change:
    """Return the change that adds half of the range to each element of ``bits`` bits."""
    if bits >= 8:
        return Change(add=2 ** (bits - 1))
    return Change(xor=2 ** (bits - 1))
