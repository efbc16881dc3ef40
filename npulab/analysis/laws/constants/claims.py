"""Which fits are claimed: at each place the best fit, with the fits of as many captures as ties;
and the bytes that hold the shifts of claimed multipliers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.laws.constants.matching import Hit, Stored, allowed_misses, evidence
from npulab.analysis.laws.constants.places import Rows

# The least bits of evidence, less the cost of the choice, that make a claim. The odds that any
# claim of a search is chance are at most 2**-CLAIM_BITS, because the costs are code lengths of all
# choices.
CLAIM_BITS = 11.0

# The least bits of evidence that make a byte the shift of a claimed multiplier.
SHIFT_BITS = 7.0

COUNTED = 64  # COUNTED captures are compared to count the bytes that move

# (number of the formula, name of the encoding, number of bits after the point)
Label = tuple[int, str, int]


@dataclass(frozen=True, eq=False)
class Claim:
    """A place, ``width`` bytes from ``offset`` in the byte ``order``, with the fits that hold
    there.

    ``labels`` has the fits by their label (formula, encoding and bits after the point), the
    plainest label first. Fits of one label differ only in rounding or in float32 steps.
    """

    offset: int
    order: int
    width: int
    labels: Mapping[Label, list[Hit]] = field(default_factory=lambda: defaultdict(list))

    @property
    def best(self) -> Hit:
        return next(iter(self.labels.values()))[0]


@dataclass(frozen=True)
class Shift:
    """A byte at ``offset`` that holds ``sign * shift + added``, where ``shift`` is the left shift
    of a multiplier.
    """

    offset: int
    sign: int
    added: int


def label_of(hit: Hit) -> Label:
    """The label of a fit; fits that differ only in rounding or in float32 steps have one label."""
    return hit.formula, hit.stored.encoding.name, hit.stored.fraction


def claims_of(hits: Sequence[Hit], rows: Sequence[Rows], size: int) -> list[Claim]:
    """The claims in a stream of ``size`` bytes; each byte belongs to at most one claim."""
    of_width = {one.width: one for one in rows}
    owner = np.full(size, -1)
    claims: list[Claim] = []
    for hit in sorted(hits, key=lambda hit: -hit.bits):
        for offset, order in of_width[hit.width].of(hit.row):
            bytes_of = owner[offset : offset + hit.width]
            if hit.bits >= CLAIM_BITS and (bytes_of < 0).all():
                bytes_of[:] = len(claims)
                claim = Claim(offset, order, hit.width)
                claim.labels[label_of(hit)].append(hit)
                claims.append(claim)
            elif bytes_of[0] >= 0:
                _tie(claims[bytes_of[0]], hit, offset, order)
    return claims


def _tie(claim: Claim, hit: Hit, offset: int, order: int) -> None:
    """Add a fit to the claim of its place if it fits at least as many captures as the best fit."""
    # a fit at another word that overlaps this place has less evidence, and is no tie
    same = (claim.offset, claim.order, claim.width) == (offset, order, hit.width)
    if same and hit.count >= claim.best.count:
        claim.labels[label_of(hit)].append(hit)


def together(claims: Sequence[Claim]) -> list[list[Claim]]:
    """Groups of claims, each of one constant, in the order of their first places.

    Claims of a group have the same formula, encoding and byte order, and a rounding and steps that
    fit all of them.
    """
    groups = []
    last: dict[tuple[Label, int], list[list[Claim]]] = defaultdict(list)
    for claim in sorted(claims, key=lambda claim: claim.offset):
        label = label_of(claim.best)
        # copies of one formula in two roundings are two constants
        alike = last[label, claim.order]
        for group in alike:
            if common([*group, claim], label):
                group.append(claim)
                break
        else:
            alike.append([claim])
            groups.append(alike[-1])
    return groups


def common(claims: Sequence[Claim], label: Label) -> list[Stored]:
    """The roundings and float32 steps, of fits with this label, that fit all claims; the plainest
    first.
    """
    first, *others = claims
    kept = list(dict.fromkeys(hit.stored for hit in first.labels.get(label, ())))
    for claim in others:
        fitting = {hit.stored for hit in claim.labels.get(label, ())}
        kept = [stored for stored in kept if stored in fitting]
    return kept


def shifts_of(
    shifts: Array, offset: int, width: int, data: Array, present: Array, free: Array
) -> list[Shift]:
    """The bytes that hold the left shifts ``shifts (N,) int`` of the multiplier at ``offset``; the
    byte nearest to it comes first.

    There are none if the shift is the same on all captures, or if bytes would agree with it as well
    by chance. ``free (B,) bool`` are the bytes that may hold a shift.
    """
    moving = _moving_bytes(data)
    found = {}
    for sign in (1, -1):
        for added, places, fits in _following(sign * shifts, data, present):
            codes = np.broadcast_to((sign * shifts).astype(np.int64), fits.shape)
            low = codes.min()
            told = evidence((codes - low).astype(np.uint32), fits, 8, np.zeros(len(fits), int))
            distance = np.abs(places - offset - width * (places > offset))
            # a near byte is likelier than one anywhere
            price = np.minimum(2 * np.log2(2 + distance), math.log2(moving + 2))
            for number in np.flatnonzero((told - price >= SHIFT_BITS) & free[places]):
                where = int(places[number])
                found[where, sign] = int(distance[number]), Shift(where, sign, added)
    nearest = sorted(found.values(), key=lambda one: (one[0], -one[1].sign))
    return [shift for _, shift in nearest]


def _moving_bytes(data: Array) -> int:
    """The number of bytes that differ on more captures than noise may change."""
    some = data[:COUNTED]
    most = np.zeros(data.shape[1], int)
    for row in some:
        most = np.maximum(most, (some == row).sum(0))
    return int((most < len(some) - allowed_misses(len(some))).sum())


def _following(shifts: Array, data: Array, present: Array) -> Iterator[tuple[int, Array, Array]]:
    """Yield (added, places, fits): bytes that hold the shifts plus ``added`` on all captures except
    those allowed to be noise. ``fits (places, N)`` says on which captures.
    """
    captures = len(shifts)
    if len(set(shifts.tolist())) < 2:
        return
    seen: dict[int, Array] = {}
    # noise is allowed on fewer captures than this loop reads, so that one of them gives the number
    # ``added``
    for first in range(allowed_misses(captures) + 1):
        added = (data[first].astype(int) - shifts[first]) % 256
        fits = ((shifts[:, None] + added) % 256 == data) & present
        good = fits.sum(0) >= captures - allowed_misses(captures)
        for place in np.flatnonzero(good).tolist():
            seen.setdefault(int(place), fits[:, place])
        for value in np.unique(added[good]).tolist():
            places = np.flatnonzero(good & (added == value))
            signed = value
            if value >= 128:
                signed = value - 256
            yield signed, places, fits[:, places].T
