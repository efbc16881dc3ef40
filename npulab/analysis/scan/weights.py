"""Which weight or bias each bit is of, and what it counts there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from npulab.analysis.scan.evidence import Evidence
from npulab.analysis.scan.sites import (
    ACCUMULATOR_BITS,
    SEVERAL,
    Effect,
    Site,
    View,
    as_set,
    joined,
    site_of,
)


class Weights:
    """Sites and orders of the bits that moved something, as far as the evidence goes.

    ``orders`` are those that a bit can have: bit n of a weight or a bias counts ``2**n``.
    """

    def __init__(self, known: Evidence) -> None:
        self.known = known
        self.sites: dict[int, Site] = {}
        self.orders: dict[int, Sequence[int]] = {}
        self._signs: dict[int, int] = {}
        self._ties: dict[tuple[int, int], bool] = {}

    def place(self) -> None:
        """Say where the bits belong that have shown something new."""
        known = self.known
        self._ties.clear()
        for bit in sorted(known.news):
            self._signs.pop(bit, None)
            if bit not in known.effects:
                self.sites.pop(bit, None)
                continue
            site = joined(
                [site_of(known.views[effect.view], effect) for effect in known.effects[bit]]
            )
            if site.role == "either" and site.tap >= 0 and self._no_bias(bit, site.channel):
                site = site._replace(role="weight")
            self.sites[bit] = site
            self.orders[bit] = self._order(bit)
        known.news.clear()

    def _no_bias(self, bit: int, channel: int) -> bool:
        """Whether a bit moved an output by so much that outputs of a view that it leaves alone
        would have moved."""
        most = max(self._size(effect, 1) for effect in self.known.effects[bit])
        views = (self.known.views[number] for number in self.known.unmoved.get(bit, ()))
        return any(
            most >= 2 * (view.step or 1.0) and (view.lone & (view.channel == channel)).any()
            for view in views
        )

    def _size(self, effect: Effect, rounded: int = 0) -> float:
        """The most that a bit moved an output by, in units of the accumulator; rounding makes up to
        one step of it."""
        return float(np.abs(effect.change).max() - rounded) * (
            self.known.views[effect.view].step or 1.0
        )

    # Orders

    def worth(self, number: int, bit: int) -> int:
        """The outputs that can tell more of a bit than is known, of a view that has not shown it
        alone; else 0."""
        view, site = self.known.views[number], self.sites[bit]
        shown = number in self.known.unmoved.get(bit, ()) or any(
            effect.view == number for effect in self.known.effects[bit]
        )
        if (
            site.role == "control"
            or not view.mapped
            or view.step is None
            or len(self.orders[bit]) == 1
            or shown
        ):
            return 0
        mine = view.channel == site.channel
        outputs = mine
        if site.tap >= 0:
            outputs = mine & (view.reads == site.tap)
        clear = outputs & view.free
        if not clear.any():
            # what reads no weight tells whether it is a bias
            if site.role == "either" and (mine & view.lone).any():
                return as_set(mine)
            return 0
        if (
            site.role == "either"
            and not view.exact
            and max(map(self._size, self.known.effects[bit])) < 2 * view.step
        ):
            return 0
        unit = self._unit(view, np.flatnonzero(clear), site)
        span = view.span[1] - view.span[0]
        if any(0.5 <= unit * 2.0**order <= span for order in self.orders[bit]):
            return as_set(outputs)
        return 0

    def _unit(self, view: View, places: np.ndarray, site: Site) -> float:
        """Output steps of the lowest bit."""
        assert view.step is not None
        return float(np.abs(view.amplitude[places]).max() if site.tap >= 0 else 1) / view.step

    def _order(self, bit: int) -> Sequence[int]:
        """The orders that a bit can have by what it moved; all of them where no step is known."""
        site = self.sites[bit]
        if site.role == "control":
            return ()
        orders: Sequence[int] = range(ACCUMULATOR_BITS)
        for effect in self.known.effects[bit] if site.role != "either" else ():
            view = self.known.views[effect.view]
            if (
                view.step is None
                or SEVERAL in view.reads[effect.places]
                or np.isnan(effect.change).any()
            ):
                continue
            unit, slack = self._unit(view, effect.places, site), self._slack(effect.view, site)
            change = np.abs(effect.change)
            least, most = change.max() - slack, np.min(change[~effect.cut], initial=np.inf) + slack
            orders = tuple(order for order in orders if least <= unit * 2.0**order <= most)
        return orders

    def _slack(self, number: int, site: Site) -> float:
        """By how many steps a change of the output can differ from that of the accumulator.

        Rounding makes it up to one, ties to even all of it; not where all outputs are rounded by
        the same, and not by half a step.
        """
        view = self.known.views[number]
        if view.step == 1:
            return 0.0
        if site.role == "weight" and view.exact and not self._tied(number, site.channel):
            return 0.0
        return 1.0

    def _tied(self, number: int, channel: int) -> bool:
        """Whether a channel's bias lies halfway between two outputs of a view, as far as it is
        known."""
        if (number, channel) not in self._ties:
            view, bias = self.known.views[number], self._bias(channel)
            self._ties[number, channel] = (
                bias is not None
                and view.step is not None
                and bool(2 * ((bias + self._flipped(view, channel)) % view.step) == view.step)
            )
        return self._ties[number, channel]

    def sign(self, bit: int) -> int:
        """The way that outputs go when a bit is set, for a positive input."""
        if bit not in self._signs:
            site, out = self.sites[bit], 0.0
            for effect in self.known.effects[bit]:
                view = self.known.views[effect.view]
                if view.mapped and SEVERAL in view.reads[effect.places]:
                    continue
                flipped = int(self.known.bits[bit]) ^ int(bit in view.base)
                toward = np.sign(effect.change) * (1 - 2 * flipped)
                if site.role == "weight":
                    toward = toward * np.sign(view.amplitude[effect.places])
                out += float(np.nansum(toward)) / len(toward)
            self._signs[bit] = int(np.sign(out))
        return self._signs[bit]

    # Biases

    def towards(self, view: View, channels: Iterable[int], aim: float = 0.0) -> np.ndarray:
        """Bits of biases that bring the outputs of channels which read nothing ``aim`` steps from
        their middle."""
        out: list[int] = []
        for channel in channels if view.mapped and view.step is not None else ():
            bias = self._bias(int(channel))
            if bias is None or view.step is None:
                continue
            bits, goal = self._bias_bits(int(channel)), aim * view.step
            flips, left = min(
                (self._nearer(bits, bias - goal), self._as_number(bits, bias - goal, goal)),
                key=lambda found: abs(found[1]),
            )
            # no ties: they are rounded one way or the other
            if (
                bits
                and 2 * ((left + goal) % view.step) == view.step
                and 2.0 ** (self.orders[bits[-1]][0] + 1) < view.step
            ):
                flips = list({*flips} ^ {bits[-1]})
            out += flips
        return np.sort(np.array(out, np.int64))

    def _bias(self, channel: int) -> float | None:
        """The bias of a channel, as the finest view that shows it says."""
        shown = [
            view
            for view in self.known.views
            if view.step is not None and (view.lone & (view.channel == channel)).any()
        ]
        if not shown:
            return None
        view = min(shown, key=lambda view: view.step or 0.0)
        output = float(view.output.ravel()[view.lone & (view.channel == channel)][0])
        return (output - view.probe.zero) * (view.step or 0.0) - self._flipped(view, channel)

    def _flipped(self, view: View, channel: int) -> float:
        """What the flips of a view add to a channel's bias."""
        return sum(
            self._flip(int(bit)) for bit in view.base if self.sites[int(bit)].channel == channel
        )

    def _flip(self, bit: int) -> float:
        """What flipping a bit of a bias adds to it."""
        return self.sign(bit) * (1 - 2 * int(self.known.bits[bit])) * 2.0 ** self.orders[bit][0]

    def _bias_bits(self, channel: int) -> list[int]:
        """The bits of a channel's bias whose order is known, highest first; of two that say the
        same, the one that lies beside others."""
        bits = [
            bit
            for bit, site in self.sites.items()
            if site.role == "bias" and site.channel == channel
        ]
        last = sorted(bits, key=lambda bit: (bit - 1 in bits) + (bit + 1 in bits))
        out = {self.orders[bit][0]: bit for bit in last if len(self.orders[bit]) == 1}
        return [out[order] for order in sorted(out, reverse=True)]

    def _nearer(self, bits: list[int], left: float) -> tuple[list[int], float]:
        """Bits of a bias, highest first, that each bring what is left nearer to 0, and what is left
        then."""
        flips = []
        for bit in bits:
            if abs(left + self._flip(bit)) < abs(left):
                left += self._flip(bit)
                flips.append(bit)
        return flips, left

    def _as_number(self, bits: list[int], left: float, goal: float) -> tuple[list[int], float]:
        """The same where a bias is a number in two's complement that shall become ``goal``: its
        sign may change."""
        wanted = int(goal) % 2**ACCUMULATOR_BITS
        flips = [
            bit for bit in bits if wanted // 2 ** self.orders[bit][0] % 2 != self.known.bits[bit]
        ]
        half = 2.0 ** (ACCUMULATOR_BITS - 1)
        return flips, (left + sum(self._flip(bit) for bit in flips) + half) % (2 * half) - half
