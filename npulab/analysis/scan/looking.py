"""Which bits are looked at, and how: first groups that run, bits that hang found with few hangs;
then other inputs, other sets of flips, and biases brought to where an output can tell."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from npulab.analysis.scan.evidence import Evidence, Piece
from npulab.analysis.scan.sites import SEVERAL, View, as_set, from_set
from npulab.analysis.scan.weights import Weights

ALIKE_BITS = 8  # that move the same outputs evenly, as those of a bias do
MOST_HALVES = 64  # random halves of the bits that move nothing that are looked at
SATURATED = 1 / 4  # share of the outputs; inputs with more are looked through last
AIMS = (0.0, 0.25, -0.25)  # of the range of an output, from its middle: where biases are brought
ROUNDED = 16  # units in the last place that a sum of changes of a real output may be off
HALVES = 4  # random halves of the dead bits that are run at the end, behind all of them at once
MOST_SETS = 16  # sets of dead bits that act together that are looked for
LEAST_GROUP, GROUPS = (
    64,
    16,
)  # bits of a group of flips, and how many groups of one kind a buffer has


class Looks:
    """Looks at the bits that have not moved anything yet, and at those whose place is not known
    yet."""

    def __init__(self, known: Evidence, weights: Weights, seed: int) -> None:
        self.known, self.weights = known, weights
        self.rng = np.random.default_rng(seed)

    def again(self, number: int) -> None:
        """Look at the bits that have not moved anything, through a view and with other sets of
        flips."""
        known = self.known
        seen, known.together = known.together, known.fragile.copy()
        if number:
            quiet = known.quiet
            tried = [self._tried(number, quiet[known.bits[quiet] == value]) for value in (1, 0)]
            if any(piece.moved for piece in tried):
                parts = self._gaps(known.views[number])
                known.refine(number, [*parts, *known.measure(number, parts)])
        for _ in range(MOST_HALVES):
            # what is less than an output step moves something with others alone; another input may
            # tell
            quiet = known.quiet
            piece = self._tried(number, quiet[self.rng.random(len(quiet)) < 0.5])
            if not piece.moved:
                break
            before = np.count_nonzero(known.together)
            known.refine(number, [piece])
            if len(known.quiet) == len(quiet) and np.count_nonzero(known.together) == before:
                known.together[piece.bits] = True
        known.together |= seen

    def _tried(self, number: int, bits: np.ndarray) -> Piece:
        """Bits that are run at once, without those that hang together."""
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
        known.notes.append(
            f"with input {known.views[number].index} too many bits hang together to look at all of "
            "them"
        )
        known.certain[piece.bits] = False
        return piece

    def _gaps(self, view: View) -> list[Piece]:
        """The quiet bits by the channels of the bits around them, which they are likely to move; a
        wrong guess costs runs.  Ones and zeros apart, and no more than a group's bits together."""
        self.weights.place()
        known, sites = self.known, self.weights.sites
        placed = np.array(
            sorted(bit for bit, site in sites.items() if site.role != "control"), np.int64
        )
        quiet = known.quiet[~known.together[known.quiet]]
        parts: dict[tuple[Any, ...], list[int]] = {}
        for bit, right in zip(quiet, np.searchsorted(placed, quiet), strict=True):
            beside = {sites[int(one)].channel for one in placed[max(right - 1, 0) : right + 1]}
            key = int(known.bits[bit]), int(bit) // widest_group(known.count), *sorted(beside)
            parts.setdefault(key, []).append(bit)
        return [
            Piece(
                np.array(bits),
                as_set(np.isin(view.channel, key[2:])) if key[2:] else view.everything,
            )
            for key, bits in parts.items()
        ]

    def around(self) -> None:
        """Look at the bits that have not moved anything with the other inputs.

        Of views of one image the finest goes first, with known bits of a bias flipped where that
        keeps outputs off the end of their type; coarser ones are left out behind one where no
        output is there.
        """
        views = self.known.views
        images: dict[Any, list[int]] = {}
        for number, view in enumerate(views):
            images.setdefault(
                number if view.probe.image is None else view.probe.image.tobytes(), []
            ).append(number)
        for numbers in images.values():
            finest = sorted(numbers, key=lambda number: views[number].step or 0.0)
            start = next(
                (i for i, number in enumerate(finest) if views[number].saturated <= SATURATED), 0
            )
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
        """A view like one, with known bits of biases flipped so that fewer outputs are at the end
        of their type."""
        view = self.known.views[number]
        base = self.weights.towards(
            view, np.unique(view.channel[~view.free & (view.reads != SEVERAL)])
        )
        if len(base):
            return self.known.look(view.index, base)
        return number

    def tell(
        self, roles: tuple[str, ...] = ("weight", "bias", "either"), coarser: bool = False
    ) -> None:
        """Find weight or bias and order of bits that moved something, by flipping them under more
        inputs; under inputs ``coarser`` than the first only, if asked."""
        views = self.known.views
        self.weights.place()
        for number in sorted(
            range(len(views)), key=lambda number: (not views[number].exact, views[number].saturated)
        ):
            if not coarser or (views[number].step or 0.0) > (views[0].step or 0.0):
                self._tell(number, roles)

    def rest(self) -> None:
        """Bring outputs of weights that are near the end of their range off the end of their type,
        and tell those."""
        sites, orders = self.weights.sites, self.weights.orders
        views = [
            view for view in self.known.views if view.exact and view.mapped and not len(view.base)
        ]
        for view in (view for view in views if view.step != 1):
            for aim in AIMS:
                channels = {
                    site.channel
                    for bit, site in sites.items()
                    if site.tap >= 0
                    and (site.role == "either" or len(orders[bit]) > 1)
                    and (view.channel[view.reads == site.tap] == site.channel).any()
                }
                base = self.weights.towards(
                    view, sorted(channels), aim * (view.span[1] - view.span[0])
                )
                if len(base):
                    number = self.known.look(view.index, base)
                    self.again(number)
                    self._tell(number, ("weight", "either"))

    def _tell(self, number: int, roles: tuple[str, ...]) -> None:
        self.weights.place()
        self.known.measure(
            number,
            [
                Piece(np.array([bit]), bound)
                for bit, site in self.weights.sites.items()
                if site.role in roles and (bound := self.weights.worth(number, bit))
            ],
        )
        self.weights.place()

    def check(self, count: int) -> None:
        """Flip random halves of the weights' bits: outputs must change by the sum of what the bits
        do alone.

        The bits that move outputs which do not are not certain.
        """
        known, view = self.known, self.known.views[0]
        alone = {
            bit: effect
            for bit, effects in known.effects.items()
            for effect in effects
            if effect.view == 0
            and self.weights.sites[bit].role in ("weight", "either")
            and not effect.cut.any()
            and 2 * len(effect.places)
            <= np.count_nonzero(view.channel == view.channel[effect.places[0]])
        }
        for _ in range(count if alone else 0):
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

    def together(self) -> None:
        """Flip all bits that moved nothing at once, with each input, then random halves of them;
        bits that move something so are found, and are ``sets``."""
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
        """Find what else hangs with a bit that hangs with others; the rest runs without it."""
        known = self.known
        partners = {other for members in known.hanging if bit in members for other in members}
        quiet = known.quiet[~known.together[known.quiet]]
        rest = np.setdiff1d(quiet, sorted(partners))
        for _ in range(MOST_SETS):
            if (
                not len(rest)
                or known.ask(np.sort(np.append(rest, bit)), number, "what else hangs") is not None
            ):
                return
            place = _shortest(known, number, rest, np.array([bit]))
            few = np.array([bit, rest[place - 1]])
            members = _hanging(known, number, np.append(rest[:place], bit), few)
            known.hanging.append(tuple(sorted(members.tolist())))
            rest = np.delete(rest, place - 1)

    def _joint_sets(self) -> None:
        """Find what acts in the sets that moved something while no part of them did; not where
        outputs are rounded, which makes such sets of the low bits of weights."""
        known = self.known
        for number, bits in known.joint[:MOST_SETS]:
            if known.layer is not None and not known.views[number].exact:
                continue
            left = np.intersect1d(bits, known.quiet[~known.fragile[known.quiet]])
            while len(left) > 1 and len(known.sets) < MOST_SETS and self._moves(number, left):
                left = np.setdiff1d(left, self._found(number, left))
            known.together[left] = False

    def _found(self, number: int, bits: np.ndarray) -> np.ndarray:
        """The members of a set that acts together, written down as one."""
        members = self._members(number, bits)
        self.known.sets.append(tuple(members.tolist()))
        self.known.kinds[members], self.known.certain[members] = "control", False
        return members

    def _sets_of(self, number: int, halved: bool) -> None:
        """Flip the bits that moved nothing, or half of them, until what moves something together is
        found."""
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

    def _members(self, number: int, bits: np.ndarray) -> np.ndarray:
        """A few bits of a set that moves something, which move something without the rest."""
        found = bits[:0]
        while not len(found) or not self._moves(number, found):
            left = np.setdiff1d(bits, found)
            least, most = 0, len(left)
            while most - least > 1:
                middle = (least + most) // 2
                if self._moves(number, np.sort(np.concatenate([left[:middle], found]))):
                    most = middle
                else:
                    least = middle
            found = np.sort(np.append(found, left[most - 1]))
            if len(found) == len(bits):
                break
        return found

    def _moves(self, number: int, bits: np.ndarray) -> bool:
        """Whether bits that are flipped together move something, or hang."""
        output = self.known.ask(bits, number, "which act together")
        return output is None or bool(self.known.views[number].moved(output).any())


def find_channels(known: Evidence) -> None:
    """Where no layer says so: outputs that many single bits move together are a channel, if they
    are all."""
    counts = Counter(
        first.moved for first, *_ in known.effects.values() if first.even and len(first.places) > 1
    )
    found: list[int] = []
    for outputs, bits in counts.most_common():
        if bits >= ALIKE_BITS and not outputs & sum(found):
            found.append(outputs)
    if sum(found) != known.views[0].everything:
        return
    channel = np.zeros(known.views[0].output.size, int)
    for number, outputs in enumerate(sorted(found, key=lambda outputs: outputs & -outputs)):
        channel[from_set(outputs, channel.size)] = number
    known.views = [
        replace(view, channel=channel) if view.output.size == channel.size else view
        for view in known.views
    ]


def find_hangs(known: Evidence, hang_cost: float, most_hangs: float) -> list[Piece]:
    """Groups of bits that run, from one bit up to a share of the buffer; bits that hang are found
    one by one.

    Ones and zeros are flipped in groups of their own: all flips of a run then push a weight the
    same way, so that they cannot cancel.  A group doubles where the one before it ran; after a bit
    that hangs the next is one bit again, since hanging bits come in runs.
    """
    share = _prefix_share(hang_cost)
    widest = widest_group(known.count)
    groups: list[Piece] = []
    for value in (1, 0):
        left = np.flatnonzero(known.bits == value)
        span = 1
        while len(left):
            if known.runs.hangs >= most_hangs:
                known.kinds[left], known.certain[left] = "unknown", False
                break
            end = max(1, int(np.searchsorted(left, (left[0] // span + 1) * span)))
            if _together(known, groups, left[:end]):
                left, span = left[end:], min(2 * span, widest)
            else:
                left, span = (
                    _first_hanging(known, groups, left[:end], left[end:], share, most_hangs),
                    1,
                )
    return groups


def widest_group(count: int) -> int:
    """The most bits of a group, of as many as a buffer has."""
    return max(LEAST_GROUP, 2 ** math.ceil(math.log2(max(count / GROUPS, 1))))


def _prefix_share(hang_cost: float) -> float:
    """The share of bits that hang together to try next, so that a run and what its hang costs tell
    most."""
    share = np.linspace(0.02, 0.5, 97)
    bits = -share * np.log2(share) - (1 - share) * np.log2(1 - share)
    return float(share[np.argmin((1 + share * hang_cost) / bits)])


def _together(known: Evidence, groups: list[Piece], bits: np.ndarray) -> bool:
    """Whether bits run together; if so they are a group."""
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
    bad: np.ndarray,
    rest: np.ndarray,
    share: float,
    most_hangs: float,
) -> np.ndarray:
    """Find the first bit that hangs of those that hang together; gives the bits behind it."""
    behind, measured = [rest], True
    while len(bad) > 1 and known.runs.hangs < most_hangs:
        cut = min(max(1, round(share * len(bad))), len(bad) - 1)
        measured = not _together(known, groups, bad[:cut])
        if measured:
            behind.append(bad[cut:])
        if measured:
            bad = bad[:cut]
        else:
            bad = bad[cut:]
    if len(bad) > 1 or (not measured and known.runs.hangs >= most_hangs):
        known.kinds[bad], known.certain[bad] = "hang", False
    elif not measured:
        _together(known, groups, bad)
    return np.concatenate(behind[::-1])


def set_apart(known: Evidence, number: int, bits: np.ndarray) -> None:
    """Of bits that hang together and not alone make one that takes part ``fragile``: it stays out
    of later runs.  Those that hang with it are written down."""
    first = _shortest(known, number, bits, bits[:0])
    one, before = bits[first - 1], bits[: first - 1]
    second = _shortest(known, number, before, bits[first - 1 : first])
    if second:
        few = np.array([one, before[second - 1]])
        pair = second == 1  # the first of all, with nothing between them
        if pair:
            members = few
        else:
            members = _hanging(known, number, np.append(before[:second], one), few)
        known.hanging.append(tuple(sorted(members.tolist())))
    # it is the one that hangs with still others, or else the other
    if (
        second
        and known.ask(np.sort(np.append(np.delete(before, second - 1), one)), number, "which hang")
        is not None
    ):
        one = before[second - 1]
    known.together[one] = known.fragile[one] = True


def _hanging(known: Evidence, number: int, bits: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Of bits that hang together a few that hang without the rest, those that are ``found`` among
    them."""
    while (
        len(found) < len(bits)
        and known.ask(np.sort(found), number, "which hang alone together") is not None
    ):
        left = np.setdiff1d(bits, found)
        found = np.append(found, left[_shortest(known, number, left, found) - 1])
    return found


def _shortest(known: Evidence, number: int, bits: np.ndarray, beside: np.ndarray) -> int:
    """How many bits from the first on hang together with others; all do."""
    least, most = 0, len(bits)
    while most - least > 1:
        middle = (least + most) // 2
        if (
            known.ask(
                np.sort(np.concatenate([bits[:middle], beside])), number, "which hang together"
            )
            is None
        ):
            most = middle
        else:
            least = middle
    return most
