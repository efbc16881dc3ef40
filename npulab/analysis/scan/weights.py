"""The weight or bias to which each bit belongs, and the order of the bit: a bit of order n counts
``2**n`` in its weight or bias.
"""

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
    """By bit, for each bit that moved something: its site in ``sites``, and all orders that it may
    have in ``orders``.
    """

    def __init__(self, known: Evidence) -> None:
        self.known = known
        self.sites: dict[int, Site] = {}
        self.orders: dict[int, Sequence[int]] = {}
        self._signs: dict[int, int] = {}
        self._ties: dict[tuple[int, int], bool] = {}

    def place(self) -> None:
        """Update the site and the orders of the bits for which there is new evidence."""
        known = self.known
        self._ties.clear()
        for bit in sorted(known.news):
            self._signs.pop(bit, None)
            if bit not in known.effects:
                self.sites.pop(bit, None)
                continue
            effects = known.effects[bit]
            site = joined([site_of(known.views[effect.view], effect) for effect in effects])
            if site.role == "either" and site.tap >= 0 and self._no_bias(bit, site.channel):
                site = site._replace(role="weight")
            self.sites[bit] = site
            self.orders[bit] = self._order(bit)
        known.news.clear()

    def _no_bias(self, bit: int, channel: int) -> bool:
        """True if a bit cannot belong to a bias: a bit of a bias of this size would also have moved
        outputs under another view, and this bit moved none there.
        """
        most = max(self._size(effect, 1) for effect in self.known.effects[bit])
        for number in self.known.unmoved.get(bit, ()):
            view = self.known.views[number]
            if most >= 2 * (view.step or 1.0) and (view.lone & (view.channel == channel)).any():
                return True
        return False

    def _size(self, effect: Effect, rounded: int = 0) -> float:
        """The largest change of an output by a bit, less ``rounded`` steps, in units of the
        accumulator."""
        step = self.known.views[effect.view].step or 1.0
        return float(np.abs(effect.change).max() - rounded) * step

    # ---- orders ----

    def worth(self, number: int, bit: int) -> int:
        """The set of outputs of a view that can show more of a bit than is known, as the bits of an
        int; 0 if there are none, or if the bit was flipped alone under this view already.
        """
        view, site, effects = self.known.views[number], self.sites[bit], self.known.effects[bit]
        if site.role == "control" or not view.mapped or view.step is None:
            return 0
        shown = number in self.known.unmoved.get(bit, ()) or any(e.view == number for e in effects)
        if shown or len(self.orders[bit]) == 1:
            return 0
        mine = view.channel == site.channel
        outputs = mine
        if site.tap >= 0:
            outputs = mine & (view.reads == site.tap)
        clear = outputs & view.free
        if not clear.any():
            # outputs that read no weight show if the bit belongs to a bias
            if site.role == "either" and (mine & view.lone).any():
                return as_set(mine)
            return 0
        small = max(map(self._size, effects)) < 2 * view.step
        if site.role == "either" and not view.exact and small:
            return 0
        unit = self._unit(view, np.flatnonzero(clear), site)
        span = view.span[1] - view.span[0]
        if any(0.5 <= unit * 2.0**order <= span for order in self.orders[bit]):
            return as_set(outputs)
        return 0

    def _unit(self, view: View, places: np.ndarray, site: Site) -> float:
        """How many output steps the bit of order 0 of a weight or bias moves."""
        assert view.step is not None
        if site.tap < 0:
            return 1 / view.step
        return float(np.abs(view.amplitude[places]).max()) / view.step

    def _order(self, bit: int) -> Sequence[int]:
        """The orders that a bit can have, from how much it moved; all orders if no step is
        known."""
        site = self.sites[bit]
        if site.role == "control":
            return ()
        orders: Sequence[int] = range(ACCUMULATOR_BITS)
        if site.role == "either":
            return orders
        for effect in self.known.effects[bit]:
            view = self.known.views[effect.view]
            if view.step is None or SEVERAL in view.reads[effect.places]:
                continue
            if np.isnan(effect.change).any():
                continue
            unit, slack = self._unit(view, effect.places, site), self._slack(effect.view, site)
            change = np.abs(effect.change)
            least = change.max() - slack
            most = np.min(change[~effect.cut], initial=np.inf) + slack
            orders = tuple(order for order in orders if least <= unit * 2.0**order <= most)
        return orders

    def _slack(self, number: int, site: Site) -> float:
        """The most output steps by which the change of an output may differ from that of its
        accumulator.

        Rounding makes a difference of up to one step. There is none if all outputs are rounded by
        the same amount that is not half a step: half a step (a tie) may be rounded to even.
        """
        view = self.known.views[number]
        if view.step == 1:
            return 0.0
        if site.role == "weight" and view.exact and not self._tied(number, site.channel):
            return 0.0
        return 1.0

    def _tied(self, number: int, channel: int) -> bool:
        """True if the bias of a channel is known, and lies halfway between two output values of a
        view."""
        if (number, channel) not in self._ties:
            view, bias, tied = self.known.views[number], self._bias(channel), False
            if bias is not None and view.step is not None:
                offset = (bias + self._flipped(view, channel)) % view.step
                tied = bool(2 * offset == view.step)
            self._ties[number, channel] = tied
        return self._ties[number, channel]

    def sign(self, bit: int) -> int:
        """The sign of the change of outputs when a bit is set to 1 (for a weight: if its input is
        positive); 0 if it is not clear.
        """
        if bit not in self._signs:
            site, total = self.sites[bit], 0.0
            for effect in self.known.effects[bit]:
                view = self.known.views[effect.view]
                if view.mapped and SEVERAL in view.reads[effect.places]:
                    continue
                flipped = int(self.known.bits[bit]) ^ int(bit in view.base)
                toward = np.sign(effect.change) * (1 - 2 * flipped)
                if site.role == "weight":
                    toward = toward * np.sign(view.amplitude[effect.places])
                total += float(np.nansum(toward)) / len(toward)
            self._signs[bit] = int(np.sign(total))
        return self._signs[bit]

    # ---- biases ----

    def towards(self, view: View, channels: Iterable[int], aim: float = 0.0) -> np.ndarray:
        """The bits of biases to flip so that the outputs of ``channels`` that read no weight lie
        ``aim`` output steps from the middle of their range.
        """
        out: list[int] = []
        if not view.mapped or view.step is None:
            return np.zeros(0, np.int64)
        goal = aim * view.step
        for channel in channels:
            bias = self._bias(int(channel))
            if bias is None:
                continue
            bits = self._bias_bits(int(channel))
            flips, rest = self._nearer(bits, bias - goal)
            signed_flips, signed_rest = self._as_number(bits, bias - goal, goal)
            if abs(signed_rest) < abs(rest):
                flips, rest = signed_flips, signed_rest
            # avoid ties (values halfway between two outputs), which an NPU may round either way
            tied = 2 * ((rest + goal) % view.step) == view.step
            if bits and tied and 2.0 ** (self.orders[bits[-1]][0] + 1) < view.step:
                flips = list({*flips} ^ {bits[-1]})
            out += flips
        return np.sort(np.array(out, np.int64))

    def _bias(self, channel: int) -> float | None:
        """The bias of a channel, in units of the accumulator, from the view with the finest step
        that shows it; None if no view does."""
        finest, step, output = None, np.inf, 0.0
        for view in self.known.views:
            lone = view.lone & (view.channel == channel)
            if view.step is not None and view.step < step and lone.any():
                finest, step = view, view.step
                output = float(view.output.ravel()[lone][0])
        if finest is None:
            return None
        return (output - finest.probe.zero) * step - self._flipped(finest, channel)

    def _flipped(self, view: View, channel: int) -> float:
        """The sum that the flipped bits of a view add to a channel's bias."""
        mine = [bit for bit in view.base.tolist() if self.sites[bit].channel == channel]
        return sum(map(self._flip, mine))

    def _flip(self, bit: int) -> float:
        """The change of a bias if this bit of it is flipped."""
        return self.sign(bit) * (1 - 2 * int(self.known.bits[bit])) * 2.0 ** self.orders[bit][0]

    def _bias_bits(self, channel: int) -> list[int]:
        """The bits of a channel's bias whose order is known, highest order first. Of two bits of
        one order the bit is left out that lies apart from other bits of the bias.
        """
        bits = []
        for bit, site in self.sites.items():
            if site.role == "bias" and site.channel == channel:
                bits.append(bit)
        lone_first = sorted(bits, key=lambda bit: (bit - 1 in bits) + (bit + 1 in bits))
        by_order = {self.orders[bit][0]: bit for bit in lone_first if len(self.orders[bit]) == 1}
        return [by_order[order] for order in sorted(by_order, reverse=True)]

    def _nearer(self, bits: list[int], rest: float) -> tuple[list[int], float]:
        """Return the bits of a bias that each bring ``rest`` nearer to 0 if flipped (the highest
        order is tried first), and the value of ``rest`` after these flips.
        """
        flips = []
        for bit in bits:
            flipped = rest + self._flip(bit)
            if abs(flipped) < abs(rest):
                rest = flipped
                flips.append(bit)
        return flips, rest

    def _as_number(self, bits: list[int], rest: float, goal: float) -> tuple[list[int], float]:
        """Return bits and rest as ``_nearer`` does, but for a bias that is a number in two's
        complement and shall become ``goal``: its sign may change."""
        wanted = int(goal) % 2**ACCUMULATOR_BITS
        flips, half = [], 2.0 ** (ACCUMULATOR_BITS - 1)
        for bit in bits:
            if wanted // 2 ** self.orders[bit][0] % 2 != self.known.bits[bit]:
                flips.append(bit)
        total = rest + sum(map(self._flip, flips))
        return flips, (total + half) % (2 * half) - half
