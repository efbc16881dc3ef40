"""Accumulators turned into outputs by a rule, fast: float32 arithmetic decides most outputs, and
the rule's ``exact`` computes the few near a rounding boundary.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.quant.rules import Float, Rule, rule

# If MAGIC is added to x in float32, the low bits of the sum are x, rounded to a whole number, ties
# to even. If MAGIC_BYTES is added, the low 8 bits are a fraction of x, its whole part lies above.
MAGIC = np.float32(1.5 * 2**23)
MAGIC_BYTES = np.float32(1.5 * 2**15)

# The multipliers of most rules have Q31 fraction bits. A multiplier of at most SHORT bits is
# suspected to be stated for another rule.
Q31, SHORT = 31, 16
BUNCH = 16_384  # a rule recomputes at most BUNCH elements at once
NOTHING = np.empty(0, np.int64), np.empty(0, np.float32)


def requantize(
    accumulators: Array,
    by: str | Rule,
    multiplier: Any,
    right_shift: Any,
    zero_point: int,
    low: int,
    high: int,
) -> Array:
    """Return the outputs ``(..., C)`` int64 of accumulators: scaled by the rule, plus the zero
    point, clamped to ``low`` and ``high``.

    Raises ValueError for a multiplier, right shift or accumulator outside of the rule's range.
    Gives a UserWarning if a multiplier of at most 16 bits is given to a rule whose multipliers have
    31 bits.

    >>> requantize(np.array([12861, -14632]), "vivante-v7:half-even", 45246, 23, 119, 0, 255)
    array([188,  40])
    """
    by = rule(by)
    by.refuse(multiplier, right_shift)
    _tell_short(by, multiplier, right_shift)
    accumulators = within(accumulators, by)
    return by.fast(accumulators, multiplier, right_shift, zero_point, low, high)


def _tell_short(by: Rule, multiplier: Any, right_shift: Any) -> None:
    """Warn if a rule with 31-bit multipliers is given a multiplier of at most 16 bits.

    Some libraries state a ratio as ``multiplier / 2**n`` with few bits, which such a rule would
    read as a far smaller ratio.
    """
    if by.fraction_bits != Q31:
        return
    multipliers, shifts = np.broadcast_arrays(multiplier, right_shift)
    for number, shift in zip(multipliers.flat, shifts.flat, strict=True):
        plain = number / 2.0 ** abs(int(shift))
        # Only a short multiplier whose ratio would be below 1, as ratios of scales are, is
        # suspected: a multiplier of a Q31 rule has its highest bit set.
        if not 0 < number < 2**SHORT or plain >= 1:
            continue
        whole, right = by.of_ratio(np.asarray(plain))
        warnings.warn(
            f"multiplier: got {number} with right_shift {shift}, which {by.name} reads as Q31, a "
            f"ratio of {float(by.real(number, shift)):.6g}; if {number} / 2**{abs(shift)} = "
            f"{plain:.6g} is meant, give {whole} with right_shift {right}",
            stacklevel=3,
        )
        return


def within(accumulators: Array, by: Rule, channel: int = 0) -> Array:
    """Return accumulators ``(..., C)`` int64 as the rule's register holds them: wrapped, if the
    rule wraps.

    If the rule does not wrap, raises ValueError for an accumulator that does not fit; the text
    names its channel. ``channel`` is the number of the first of the C channels.
    """
    accumulators = np.asarray(accumulators, np.int64)
    low, high = by.accumulators
    wrong = (accumulators < low) | (accumulators > high)
    if not np.any(wrong):
        return accumulators
    if by.wraps:
        return (accumulators - low) % (high - low + 1) + low
    at = np.argwhere(wrong)[0]
    if len(at):
        channel += int(at[-1])
    raise ValueError(
        f"accumulator: got {accumulators[tuple(at)]} in channel {channel}, allowed with {by.name} "
        f"is {low} to {high}"
    )


@dataclass(eq=False)
class Requantizer:
    """A rule prepared for rows of accumulators of one layer; a row has ``repeat`` positions of C
    channels.

    ``parts`` are (rule, first channel, end channel): a kernel may use one rule in its vector body
    and another for the last channels. ``multiplier`` and ``right_shift`` are per channel ``(C,)``.
    Outputs are clamped to ``low`` and ``high``.

    ``factor`` is the float32 ratio of scales for each accumulator of a row. Accumulator times
    factor is a float32 estimate of the output before rounding. It differs from the rule's result by
    at most 2**-22 of its size plus the rule's maximum deviation.

    ``limit`` is 1/2 minus that difference. If an estimate is less than ``limit`` from the nearest
    whole number, that number is the rule's answer. Otherwise the estimate is near a rounding
    boundary, and the rule itself computes the output. (For rules that round down or toward zero the
    estimate is first moved half a unit in that direction.) ``bytewise`` is true if 8 bits of
    fraction are enough to see which estimates are near a boundary.
    """

    parts: tuple[tuple[Rule, int, int], ...]
    multiplier: Array
    right_shift: Array
    zero_point: int
    low: int
    high: int
    repeat: int = 1
    factor: Array = field(init=False)
    limit: Any = field(init=False)
    bytewise: bool = field(init=False)

    @classmethod
    def of(
        cls,
        by: Rule,
        factors: tuple[Any, Any],
        zero_point: int,
        limits: tuple[int, int],
        channels: int,
    ) -> Requantizer:
        """Return a requantizer that uses one rule for all ``channels``.

        ``factors`` are (multiplier, right_shift), ``limits`` are the lowest and the highest output.
        """
        multiplier = np.ascontiguousarray(np.broadcast_to(factors[0], (channels,)))
        right_shift = np.ascontiguousarray(np.broadcast_to(factors[1], (channels,)))
        return cls(((by, 0, channels),), multiplier, right_shift, zero_point, *limits)

    def __post_init__(self) -> None:
        by = self.parts[0][0]
        # a ratio that underflows in float32 is too small for any product to reach a boundary
        real = by.real(self.multiplier, self.right_shift)
        with np.errstate(under="ignore"):
            self.factor = np.tile(real.astype(np.float32), self.repeat)
        deviation = np.max(
            [
                np.broadcast_to(part.max_deviation(self.right_shift), real.shape)
                for part, _, _ in self.parts
            ],
            axis=0,
        )
        reach = max(abs(self.low - self.zero_point), abs(self.high - self.zero_point)) + 1
        limit = 0.5 - deviation - reach * 2.0**-22
        self.bytewise = by.rounding_direction == "nearest" and bool(0.5 - limit.min() < 2.0**-9)
        # one limit for all channels is quicker; if the limits of the channels are close, the rule
        # recomputes only few more outputs with the smallest of them
        even = np.ptp(limit) < 2.0**-5
        if even:
            self.limit = np.float32(limit.min())
        else:
            self.limit = np.tile(limit.astype(np.float32), self.repeat)

    @property
    def plain(self) -> bool:
        """True if the rule is itself float32 arithmetic, so that no output is recomputed."""
        by = self.parts[0][0]
        reach = max(abs(self.low), abs(self.high), abs(self.zero_point))
        return (
            len(self.parts) == 1 and type(by) is Float and by.ties == "half-even" and reach < 2**21
        )

    def __call__(self, accumulators: Array, out: Array, scratch: Scratch) -> tuple[Array, Array]:
        """Write the outputs of accumulators ``(n, repeat * C)`` to ``out``. The accumulators are
        whole numbers in float32 or float64.

        Return the outputs that are not decided yet, as (their indices in the flattened ``out``,
        their accumulators); ``recompute`` decides them.
        """
        scaled = scratch.take("scaled", accumulators.shape, np.float32)
        if accumulators.dtype == np.float32:
            np.multiply(accumulators, self.factor, out=scaled)
        else:
            np.copyto(scaled, accumulators, casting="same_kind")
            scaled *= self.factor
        if self.plain:
            self._plain(scaled, out)
            return NOTHING
        near = self._near
        if self.bytewise and out.itemsize == 1:
            near = self._bytes
        at = np.flatnonzero(near(scaled, out, scratch))
        return at, accumulators.ravel()[at]

    def _plain(self, scaled: Array, out: Array) -> None:
        by, zero = self.parts[0][0], np.float32(self.zero_point)
        first = isinstance(by, Float) and by.zero_point_first
        if first:
            scaled += zero
        shift = zero
        if first:
            shift = np.float32(0)
        np.clip(scaled, np.float32(self.low) - shift, np.float32(self.high) - shift, out=scaled)
        scaled += MAGIC
        whole = scaled.view(np.int32)
        # the low byte of ``whole`` is an 8-bit output without its zero point; adding the zero point
        # in a byte gives the output, because it is clamped to a byte's range
        if out.itemsize == 1:
            np.copyto(out, whole, casting="unsafe")
            if not first:
                out += np.array(self.zero_point & 0xFF, np.uint8).astype(out.dtype)
        else:
            np.subtract(whole, MAGIC.view(np.int32) - np.int32(shift), out=out, casting="unsafe")

    def _bytes(self, scaled: Array, out: Array, scratch: Scratch) -> Array:
        """Write estimates of 8 bits; return a mask that is true where an estimate is near a
        boundary.

        The sum of a value and MAGIC_BYTES has the value's whole part in one byte, and its fraction,
        rounded to nearest in eight bits, in the byte below. If that byte is 0, the value is within
        2**-9 of a rounding boundary.
        """
        zero = np.float32(self.zero_point)
        both = scratch.take("both", scaled.shape, np.int16)
        part = scratch.take("part of it", scaled.shape, np.uint8)
        np.clip(scaled, np.float32(self.low) - zero, np.float32(self.high) - zero, out=scaled)
        scaled += MAGIC_BYTES + zero + np.float32(0.5)
        np.copyto(both, scaled.view(np.int32), casting="unsafe")
        np.copyto(part, both, casting="unsafe")
        both >>= 8
        np.copyto(out, both, casting="unsafe")
        return np.equal(part, 0, out=scratch.take("near", scaled.shape, np.bool_))

    def _near(self, scaled: Array, out: Array, scratch: Scratch) -> Array:
        """Write estimates; return a mask that is true where an estimate is near a boundary."""
        direction, zero = self.parts[0][0].rounding_direction, np.float32(self.zero_point)
        whole = scratch.take("whole", scaled.shape, np.float32)
        near = scratch.take("near", scaled.shape, np.bool_)
        # The estimate is rounded to nearest further down. If it is moved down by half a unit first,
        # that rounds down; if it is moved towards 0, that rounds toward zero.
        if direction == "floor":
            scaled -= np.float32(0.5)
        elif direction == "toward-zero":
            scaled -= np.copysign(np.float32(0.5), scaled, out=whole)
        np.clip(scaled, np.float32(self.low) - zero, np.float32(self.high) - zero, out=scaled)
        np.rint(scaled, out=whole)
        scaled -= whole
        np.abs(scaled, out=scaled)
        np.greater_equal(scaled, self.limit, out=near)
        whole += zero
        np.copyto(out, whole, casting="unsafe")
        return near

    def recompute(self, at: Array, accumulators: Array, out: Array) -> None:
        """Write the rule's own answers to ``out``. ``at`` are indices in the flattened ``out``,
        ``accumulators`` the accumulators at these indices.
        """
        channels = len(self.multiplier)
        columns = out.shape[-1]
        for start in range(0, at.size, BUNCH):
            places = at[start : start + BUNCH]
            sums, channel = accumulators[start : start + BUNCH].astype(np.int64), places % channels
            if len(self.parts) == 1:
                answer = self._ask(self.parts[0][0], sums, channel)
            else:
                answer = np.empty(sums.shape, np.int64)
                for by, first, end in self.parts:
                    mine = (channel >= first) & (channel < end)
                    answer[mine] = self._ask(by, sums[mine], channel[mine])
            if out.flags.c_contiguous:
                out.reshape(-1)[places] = answer
            else:
                out[np.divmod(places, columns)] = answer

    def _ask(self, by: Rule, accumulators: Array, channel: Array) -> Array:
        codes = by.exact(
            accumulators, self.multiplier[channel], self.right_shift[channel], self.zero_point
        )
        return np.minimum(np.maximum(codes, self.low), self.high)


class Scratch:
    """Arrays with names, which a layer uses again for every block."""

    def __init__(self) -> None:
        self._held: dict[str, Array] = {}
        self._views: dict[tuple[str, tuple[int, ...]], Array] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return the array of a name in the given shape and type. Its values are left over from its
        last use.
        """
        view = self._views.get((name, shape))
        if view is not None and view.dtype == dtype:
            return view
        size = math.prod(shape)
        held = self._held.get(name)
        if held is None or held.size < size or held.dtype != dtype:
            held = self._held[name] = np.empty(size, dtype)
            self._views = {key: one for key, one in self._views.items() if key[0] != name}
        view = self._views[name, shape] = held[:size].reshape(shape)
        return view
