"""The order in which bits are flipped.

First groups of bits are flipped, so that bits that hang the device cost few hangs. Then bits that
moved nothing are flipped with further inputs, in other sets, and after biases were changed so that
outputs leave the ends of their type.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.scan.evidence import Evidence, Piece
from npulab.analysis.scan.sites import SEVERAL, Effect, View, as_set, from_set
from npulab.analysis.scan.weights import Weights

# If at least this many bits move the same outputs by equal amounts, the outputs count as a channel.
ALIKE_BITS = 8
# Under one view, at most this many random halves of the bits that moved nothing are flipped.
MOST_HALVES = 64
# Inputs with which a larger share of outputs is at the end of its type are used last.
SATURATED = 1 / 4
# Biases are changed so that outputs move to each of these places in turn: distances from the middle
# of the output's range, as shares of the range.
AIMS = (0.0, 0.25, -0.25)
# If outputs are real numbers, a sum of changes may be off by this many units in the last place.
ROUNDED = 16
# At the end, this many random halves of the dead bits are flipped.
HALVES = 4
# A scan looks for at most this many sets of bits that act only together.
MOST_SETS = 16
# The largest number of bits of a group of flips is at least this.
LEAST_GROUP = 64
# About this many groups of ones, and as many of zeros, cover a buffer.
GROUPS = 16


class Looks:
    """The runs for bits that have not moved anything yet, and for bits that moved something and
    whose weight or bias is not known yet.
    """

    def __init__(self, known: Evidence, weights: Weights, seed: int) -> None:
        self.known, self.weights = known, weights
        self.rng = np.random.default_rng(seed)

    def again(self, number: int) -> None:
        """Flip the bits that have not moved anything once more, in other sets, under a view (an
        input and the bits that stay flipped).
        """
        known = self.known
        seen, known.together = known.together, known.fragile.copy()
        if number:
            quiet = known.quiet
            tried = [self._tried(number, quiet[known.bits[quiet] == value]) for value in (1, 0)]
            if any(piece.moved for piece in tried):
                parts = self._gaps(known.views[number])
                known.refine(number, [*parts, *known.measure(number, parts)])
        for _ in range(MOST_HALVES):
            # if a bit changes an output by less than a step, it shows only with other bits or other
            # inputs
            quiet = known.quiet
            piece = self._tried(number, quiet[self.rng.random(len(quiet)) < 0.5])
            if not piece.moved:
                break
            before = np.count_nonzero(known.together)
            known.refine(number, [piece])
            if len(known.quiet) == len(quiet) and np.count_nonzero(known.together) == before:
                known.together[piece.bits] = True
        known.together |= seen

    def _tried(self, number: int, bits: Array) -> Piece:
        """Flip ``bits`` at once. Return them as a piece, with the outputs that they moved; bits
        that hang the device only together are left out.
        """
        known = self.known
        piece = Piece(bits[~known.together[bits]], known.views[number].everything)
        for _ in range(MOST_HALVES):
            if not len(piece.bits):
                return piece
            output = known.ask(piece.bits, number, "bits that moved nothing")
            if output is not None:
                known.note(number, piece, output)
                return piece
            if len(piece.bits) == 1:
                known.hung(int(piece.bits[0]))
                return piece
            set_apart(known, number, piece.bits)
            piece.bits = piece.bits[~known.together[piece.bits]]
        index = known.views[number].index
        known.notes.append(f"with input {index} too many bits hang together to look at all of them")
        known.certain[piece.bits] = False
        return piece

    def _gaps(self, view: View) -> list[Piece]:
        """The bits that have not moved anything, as pieces. A piece is expected to move only the
        channels of the bits before and after it; a wrong guess only costs runs. A piece holds only
        ones or only zeros, and is at most as wide as a group.
        """
        self.weights.place()
        known, sites = self.known, self.weights.sites
        placed = sorted(bit for bit, site in sites.items() if site.role != "control")
        quiet = known.quiet[~known.together[known.quiet]]
        widest = widest_group(known.count)
        parts: dict[tuple[int, int, tuple[int, ...]], list[int]] = {}
        for bit in quiet.tolist():
            right = bisect_left(placed, bit)
            around = placed[max(right - 1, 0) : right + 1]
            channels = tuple(sorted({sites[near].channel for near in around}))
            parts.setdefault((int(known.bits[bit]), bit // widest, channels), []).append(bit)
        pieces = []
        for (_, _, channels), bits in parts.items():
            bound = view.everything
            if channels:
                bound = as_set(np.isin(view.channel, channels))
            pieces.append(Piece(np.array(bits), bound))
        return pieces

    def around(self) -> None:
        """Flip the bits that have not moved anything with all inputs but the first.

        Of the views of one image, the view with the finest output steps goes first; known bits of
        biases are flipped in it to keep outputs off the end of their type. After the first view in
        which no output is at the end of its type, views with coarser steps are left out.
        """
        views = self.known.views
        images: dict[Any, list[int]] = {}
        for number, view in enumerate(views):
            image: Any = number
            if view.probe.image is not None:
                image = view.probe.image.tobytes()
            images.setdefault(image, []).append(number)
        for numbers in images.values():
            finest = sorted(numbers, key=lambda number: views[number].step or 0.0)
            start = 0
            free = [i for i, number in enumerate(finest) if views[number].saturated <= SATURATED]
            if free:
                start = free[0]
            coarser = []
            if views[finest[start]].saturated:
                coarser = finest[start + 1 :]
            for number in (*finest[start::-1], *coarser):
                number = self._recentred(number)
                if number:
                    self.again(number)
                self._tell(number, ("bias", "either"))
                if number in coarser and not views[number].saturated:
                    break

    def _recentred(self, number: int) -> int:
        """The number of a view with the input of the view ``number`` in which fewer outputs
        saturate, since known bits of biases are flipped; ``number`` itself if no flip helps.
        """
        view = self.known.views[number]
        full = np.unique(view.channel[~view.free & (view.reads != SEVERAL)])
        base = self.weights.towards(view, full)
        if len(base):
            return self.known.look(view.index, base)
        return number

    def tell(
        self, roles: tuple[str, ...] = ("weight", "bias", "either"), coarser: bool = False
    ) -> None:
        """Flip bits that moved something alone with more inputs, to find their weight or bias and
        their order in it. If ``coarser``, only inputs with coarser output steps than the first are
        used.
        """
        views = self.known.views
        self.weights.place()
        numbers = range(len(views))
        for number in sorted(numbers, key=lambda i: (not views[i].exact, views[i].saturated)):
            if not coarser or (views[number].step or 0.0) > (views[0].step or 0.0):
                self._tell(number, roles)

    def rest(self) -> None:
        """Flip bits of biases so that outputs leave the end of their type; then flip the bits of
        the weights that these outputs show.
        """
        for view in self.known.views.copy():
            if not view.exact or not view.mapped or len(view.base) or view.step == 1:
                continue
            for aim in AIMS:
                channels = sorted(self._open_channels(view))
                aimed = aim * (view.span[1] - view.span[0])
                base = self.weights.towards(view, channels, aimed)
                if len(base):
                    number = self.known.look(view.index, base)
                    self.again(number)
                    self._tell(number, ("weight", "either"))

    def _open_channels(self, view: View) -> set[int]:
        """The channels in which a view shows a weight that has a bit of unknown role or order."""
        channels = set()
        for bit, site in self.weights.sites.items():
            if site.tap < 0 or (site.role != "either" and len(self.weights.orders[bit]) < 2):
                continue
            if (view.channel[view.reads == site.tap] == site.channel).any():
                channels.add(site.channel)
        return channels

    def _tell(self, number: int, roles: tuple[str, ...]) -> None:
        """Flip alone, under a view, each bit that has one of ``roles`` and of which the view can
        narrow down the role or the order.
        """
        self.weights.place()
        pieces = []
        for bit, site in self.weights.sites.items():
            if site.role in roles:
                bound = self.weights.worth(number, bit)
                if bound:
                    pieces.append(Piece(np.array([bit]), bound))
        self.known.measure(number, pieces)
        self.weights.place()

    def check(self, count: int) -> None:
        """Flip ``count`` random halves of the bits of weights: every output must change by the sum
        of the changes that the flipped bits make alone.

        If an output changes by another amount, the bits that move it are no longer certain.
        """
        known, view = self.known, self.known.views[0]
        alone = self._alone()
        if not alone:
            return
        for _ in range(count):
            bits = np.array([bit for bit in sorted(alone) if self.rng.random() < 0.5], np.int64)
            output = known.ask(bits, 0, "a random half of the weights")
            if output is None or output.shape != view.output.shape:
                known.notes.append("bits that run one by one do not run together")
                continue
            wanted, slack = view.output.astype(np.float64).ravel(), np.zeros(view.output.size)
            for bit in bits:
                wanted[alone[bit].places] += alone[bit].change
                slack[alone[bit].places] += not view.exact
            if output.dtype.kind == "f":
                slack += ROUNDED * np.finfo(output.dtype).eps * np.abs(wanted).max()
            off = np.abs(output.ravel() - np.clip(wanted, *view.span)) > slack
            if off.any():
                known.certain[[bit for bit in alone if off[alone[bit].places].any()]] = False
                known.notes.append(
                    "bits that were flipped together moved something else than they do alone"
                )

    def _alone(self) -> dict[int, Effect]:
        """By bit: the effect in the first view of each bit of a weight that moves at most half of
        the outputs of a channel, none of them to the end of its type.
        """
        channel, sites = self.known.views[0].channel, self.weights.sites
        alone = {}
        for bit, effects in self.known.effects.items():
            for effect in effects:
                if effect.view or effect.cut.any() or sites[bit].role not in ("weight", "either"):
                    continue
                size = np.count_nonzero(channel == channel[effect.places[0]])
                if 2 * len(effect.places) <= size:
                    alone[bit] = effect
        return alone

    def together(self) -> None:
        """Flip all bits that moved nothing at once, with each input; then random halves of them.
        Bits that move something only together are recorded in ``sets``.
        """
        known = self.known
        self._joint_sets()
        plain = [number for number, view in enumerate(known.views) if not len(view.base)]
        for number in plain:
            self._sets_of(number, halved=False)
        for _ in range(HALVES):
            self._sets_of(plain[0], halved=True)
        for bit in np.flatnonzero(known.fragile).tolist():
            self._others_hanging(plain[0], bit)

    def _others_hanging(self, number: int, bit: int) -> None:
        """Find all further bits that hang the device if flipped together with this bit."""
        known = self.known
        partners: set[int] = set()
        for members in known.hanging:
            if bit in members:
                partners |= set(members)
        quiet = known.quiet[~known.together[known.quiet]]
        rest = np.setdiff1d(quiet, sorted(partners))
        for _ in range(MOST_SETS):
            if not len(rest):
                return
            output = known.ask(np.sort(np.append(rest, bit)), number, "what else hangs")
            if output is not None:
                return
            place = _shortest(known, number, rest, np.array([bit]))
            few = np.array([bit, rest[place - 1]])
            together = _hanging(known, number, np.append(rest[:place], bit), few)
            known.hanging.append(tuple(sorted(together.tolist())))
            rest = np.delete(rest, place - 1)

    def _joint_sets(self) -> None:
        """For each set that moved something although none of its parts did, find the bits that act.

        Views in which outputs are rounded are left out, because the low bits of weights make such
        sets there.
        """
        known = self.known
        for number, bits in known.joint[:MOST_SETS]:
            if known.layer is not None and not known.views[number].exact:
                continue
            rest = np.intersect1d(bits, known.quiet[~known.fragile[known.quiet]])
            while len(rest) > 1 and len(known.sets) < MOST_SETS and self._moves(number, rest):
                rest = np.setdiff1d(rest, self._found(number, rest))
            known.together[rest] = False

    def _found(self, number: int, bits: Array) -> Array:
        """Find, in ``bits``, a set of bits that move something only together; record the set and
        return its bits.
        """
        members = self._members(number, bits)
        self.known.sets.append(tuple(members.tolist()))
        self.known.kinds[members], self.known.certain[members] = "control", False
        return members

    def _sets_of(self, number: int, halved: bool) -> None:
        """Flip all bits that moved nothing (if ``halved``, a random half of them) at once, and take
        out sets of bits that move something together, until the remaining bits move nothing.
        """
        known = self.known
        quiet = known.quiet[~known.together[known.quiet]]
        bits = quiet
        if halved:
            bits = quiet[self.rng.random(len(quiet)) < 0.5]
        while len(bits):
            piece = self._tried(number, bits)
            if not piece.moved:
                return
            if len(known.sets) >= MOST_SETS:
                known.together[piece.bits] = True
                return
            bits = np.setdiff1d(piece.bits, self._found(number, piece.bits))

    def _members(self, number: int, bits: Array) -> Array:
        """A few of ``bits`` that move something or hang the device if they are flipped at once."""
        found = bits[:0]
        while not len(found) or not self._moves(number, found):
            rest = np.setdiff1d(bits, found)
            least, most = 0, len(rest)
            while most - least > 1:
                middle = (least + most) // 2
                if self._moves(number, np.sort(np.concatenate([rest[:middle], found]))):
                    most = middle
                else:
                    least = middle
            found = np.sort(np.append(found, rest[most - 1]))
            if len(found) == len(bits):
                break
        return found

    def _moves(self, number: int, bits: Array) -> bool:
        """True if these bits, flipped at once, move something or hang."""
        output = self.known.ask(bits, number, "which act together")
        return output is None or bool(self.known.views[number].moved(output).any())


def find_channels(known: Evidence) -> None:
    """Find the channels if no layer states them: sets of outputs that many single bits move by
    equal amounts.

    They are used only if every output is in one of them.
    """
    counts: Counter[int] = Counter()
    for first, *_ in known.effects.values():
        if first.even and len(first.places) > 1:
            counts[first.moved] += 1
    found: list[int] = []
    for outputs, bits in counts.most_common():
        if bits >= ALIKE_BITS and not outputs & sum(found):
            found.append(outputs)
    if sum(found) != known.views[0].everything:
        return
    channel = np.zeros(known.views[0].output.size, int)
    for number, outputs in enumerate(sorted(found, key=lambda outputs: outputs & -outputs)):
        channel[from_set(outputs, channel.size)] = number
    for number, view in enumerate(known.views):
        if view.output.size == channel.size:
            known.views[number] = replace(view, channel=channel)


def find_hangs(known: Evidence, hang_cost: float, most_hangs: float) -> list[Piece]:
    """Groups of bits that can be flipped at once without a hang, of one bit up to ``widest_group``;
    bits that hang the device are found one by one.

    Ones and zeros are in different groups: then all flips of a run push a weight the same way and
    cannot cancel. After a group that ran, the next group is twice as wide; after a bit that hangs,
    the next group is one bit, because bits that hang often lie together.
    """
    share = _prefix_share(hang_cost)
    widest = widest_group(known.count)
    groups: list[Piece] = []
    for value in (1, 0):
        rest = np.flatnonzero(known.bits == value)
        span = 1
        while len(rest):
            if known.runs.hangs >= most_hangs:
                known.kinds[rest], known.certain[rest] = "unknown", False
                break
            end = max(1, int(np.searchsorted(rest, (rest[0] // span + 1) * span)))
            group, rest = rest[:end], rest[end:]
            if _runs_together(known, groups, group):
                span = min(2 * span, widest)
            else:
                rest = _first_hanging(known, groups, group, rest, share, most_hangs)
                span = 1
    return groups


def widest_group(count: int) -> int:
    """The most bits of one group, for a buffer of ``count`` bits."""
    return max(LEAST_GROUP, 2 ** math.ceil(math.log2(max(count / GROUPS, 1))))


def _prefix_share(hang_cost: float) -> float:
    """The share (0 to 1) of a set of bits to flip next, to find the bit that hangs the device: the
    share that gives the most information for the expected cost of the run, in which a hang costs
    ``hang_cost`` runs.
    """
    share = np.linspace(0.02, 0.5, 97)
    bits = -share * np.log2(share) - (1 - share) * np.log2(1 - share)
    return float(share[np.argmin((1 + share * hang_cost) / bits)])


def _runs_together(known: Evidence, groups: list[Piece], bits: Array) -> bool:
    """True if ``bits``, flipped at once, do not hang; then they are added to ``groups``."""
    output = known.ask(bits, 0, "a group")
    if output is None:
        if len(bits) == 1:
            known.hung(int(bits[0]))
        return False
    groups.append(Piece(bits, known.views[0].everything))
    known.note(0, groups[-1], output)
    return True


def _first_hanging(
    known: Evidence,
    groups: list[Piece],
    bad: Array,
    rest: Array,
    share: float,
    most_hangs: float,
) -> Array:
    """Find the first of the bits ``bad`` that hangs the device; all of them flipped at once do.
    Return the bits after it and ``rest``, which were not tried yet.
    """
    after, measured = [rest], True
    while len(bad) > 1 and known.runs.hangs < most_hangs:
        cut = min(max(1, round(share * len(bad))), len(bad) - 1)
        measured = not _runs_together(known, groups, bad[:cut])
        if measured:
            after.append(bad[cut:])
            bad = bad[:cut]
        else:
            bad = bad[cut:]
    if len(bad) > 1 or (not measured and known.runs.hangs >= most_hangs):
        known.kinds[bad], known.certain[bad] = "hang", False
    elif not measured:
        _runs_together(known, groups, bad)
    return np.concatenate(after[::-1])


def set_apart(known: Evidence, number: int, bits: Array) -> None:
    """Find bits that hang the device only together, and record them as a set. One of them is marked
    as ``fragile``, so that it stays out of later runs.
    """
    first = _shortest(known, number, bits, bits[:0])
    chosen, before = bits[first - 1], bits[: first - 1]
    second = _shortest(known, number, before, bits[first - 1 : first])
    if second:
        partner = before[second - 1]
        members = np.array([chosen, partner])
        # if no bit lies before ``partner``, ``chosen`` and ``partner`` alone hang the device
        if second > 1:
            members = _hanging(known, number, np.append(before[:second], chosen), members)
        known.hanging.append(tuple(sorted(members.tolist())))
        # If all bits but ``partner`` run, ``partner`` is set apart and not ``chosen``, because it
        # may hang the device together with more bits.
        rest = np.sort(np.append(np.delete(before, second - 1), chosen))
        if known.ask(rest, number, "which hang") is not None:
            chosen = partner
    known.together[chosen] = known.fragile[chosen] = True


def _hanging(known: Evidence, number: int, bits: Array, found: Array) -> Array:
    """A few of ``bits``, with ``found`` among them, that hang the device if they are flipped at
    once.
    """
    while len(found) < len(bits):
        if known.ask(np.sort(found), number, "which hang alone together") is None:
            break
        rest = np.setdiff1d(bits, found)
        found = np.append(found, rest[_shortest(known, number, rest, found) - 1])
    return found


def _shortest(known: Evidence, number: int, bits: Array, beside: Array) -> int:
    """The least n so that the first n of ``bits``, flipped together with the bits ``beside``, hang
    the device; all of ``bits`` together with ``beside`` must hang it.
    """
    least, most = 0, len(bits)
    while most - least > 1:
        middle = (least + most) // 2
        tried = np.sort(np.concatenate([bits[:middle], beside]))
        if known.ask(tried, number, "which hang together") is None:
            most = middle
        else:
            least = middle
    return most
