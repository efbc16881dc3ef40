"""What SDP's stages make of a sum, as one bias, one multiplication and one zero point, as far as
that is the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from npulab.captures.target import Unsupported
from npulab.npus.kit.numbers import wrapped
from npulab.npus.nvdla.points import PAST_CODES
from npulab.npus.nvdla.registers import SUM
from npulab.npus.nvdla.units.fields import Fields
from npulab.npus.nvdla.units.rounding import saturated

MOST_BITS = 15  # of a multiplier
# operands of a stage and part ("BS", "ALU"): (C,), or (H, W, C) where there is one for each element
Operand = Callable[[str, str], np.ndarray]


@dataclass(frozen=True)
class Scaling:
    """``clamp(round((x + other + bias) * multiplier / 2**shift) + zero_point)``, per channel
    ``(C,)``; ``other`` is a tensor or None, ``relu`` a clamp at the zero point.  ``reach`` is what
    ``x`` comes to at most."""

    reach: np.ndarray
    bias: np.ndarray
    multiplier: np.ndarray
    shift: int = 0
    zero_point: int = 0
    relu: bool = False
    other: np.ndarray | None = field(default=None, repr=False)

    @property
    def rounded(self) -> bool:
        return self.shift > 0

    def add(self, operand: np.ndarray, what: str) -> Scaling:
        """The same with a number (or a tensor) added behind what is there."""
        if operand.ndim == 3:
            if self.other is not None or self.rounded or self.zero_point or self.relu or np.any(self.multiplier != 1):
                raise Unsupported(f"{what} adds a tensor behind other steps, which no layer says")
            return replace(self, other=operand, reach=self.reach + 128)
        if not np.any(operand):
            return self
        if self.rounded or self.relu:
            if np.any(operand != operand[0]):
                raise Unsupported(f"{what} adds a number per channel behind the scaling, which no layer says")
            if self.relu and not (self.rounded or np.all(self.multiplier == 1)):
                raise Unsupported(f"{what} adds behind ReLU and before the scaling, which no layer says")
            return replace(self, zero_point=self.zero_point + int(operand[0]))
        if np.any(operand % self.multiplier):
            raise Unsupported(f"{what} adds {int(operand[0])} behind a multiplication, which no layer says")
        if np.any(self.most * self.multiplier >= 2 ** 31):
            raise Unsupported(f"{what} adds to sums that may have saturated at 32 bits, which no layer says")
        return replace(self, bias=self.bias + operand // self.multiplier)

    def scale(self, operand: np.ndarray, shift: int, what: str) -> Scaling:
        """The same multiplied and shifted right with rounding."""
        if np.all(operand == 1) and not shift:
            return self
        if self.rounded or self.zero_point:
            raise Unsupported(f"{what} scales a second time, which rounds twice: no layer says that")
        if np.any(operand <= 0):
            raise Unsupported(f"{what} multiplies by {int(operand.min())}, layers have scales above 0")
        saturates = self.most * self.multiplier >= 2 ** 31
        if np.any(saturates & (2 ** 31 * operand.astype(object) < PAST_CODES * 2 ** shift)):
            raise Unsupported(f"{what} scales sums that may have saturated at 32 bits, which no layer says")
        return replace(self, multiplier=self.multiplier * operand, shift=shift)

    @property
    def most(self) -> np.ndarray:
        """What a sum and its bias come to at most."""
        return self.reach + np.abs(self.bias)

    @property
    def scales(self) -> float | tuple[float, ...]:
        """The weight scale that says the same where those of input and output are 1."""
        for one in self.multiplier.tolist():
            if (one // (one & -one)).bit_length() > MOST_BITS or one >= 2 ** (MOST_BITS + self.shift):
                raise Unsupported(f"SDP multiplies by {one} / 2**{self.shift}, the rule's multipliers have "
                                   f"{MOST_BITS} bits")
        real = [float(one) * 2.0 ** -self.shift for one in self.multiplier.tolist()]
        return real[0] if len({*real}) == 1 else tuple(real)


def scaling_of(v: Fields, given: Scaling, operand: Operand) -> Scaling:
    """The scaling of SDP's registers (raw values by full name) behind what is given.

    Raises Unsupported naming the register of a step that no layer says.
    """
    for stage in ("BS", "BN"):
        config = f"SDP.D_DP_{stage}_"
        on = {part: not v[f"{config}CFG.{stage}_{part}_BYPASS"] for part in ("ALU", "MUL", "RELU")}
        if v[f"{config}CFG.{stage}_BYPASS"]:
            continue
        if on["ALU"]:
            if v[f"{config}CFG.{stage}_ALU_ALGO"] != SUM:
                raise Unsupported(f"{config}CFG.{stage}_ALU_ALGO is {v[f'{config}CFG.{stage}_ALU_ALGO']}, layers have "
                                   f"{SUM} (SUM) only")
            shift = v[f"{config}ALU_CFG.{stage}_ALU_SHIFT_VALUE"] % 64
            given = given.add(saturated(operand(stage, "ALU") * 2 ** min(shift, 40), 32), f"{config}ALU_CFG")
        factor = np.ones_like(given.multiplier)
        if on["MUL"]:
            if v[f"{config}CFG.{stage}_MUL_PRELU"]:
                raise Unsupported(f"{config}CFG.{stage}_MUL_PRELU is 1, which no layer says")
            factor = operand(stage, "MUL")
            if factor.ndim == 3:
                raise Unsupported(f"{config}MUL_CFG multiplies by a tensor, which no layer says")
        given = given.scale(factor, v[f"{config}MUL_CFG.{stage}_MUL_SHIFT_VALUE"] % 64, f"{config}MUL_CFG")
        if on["RELU"]:
            if given.zero_point:
                raise Unsupported(f"{config}CFG.{stage}_RELU_BYPASS is 0 behind an added zero point, which no layer "
                                   "says")
            given = replace(given, relu=True)
    if not v["SDP.D_DP_EW_CFG.EW_BYPASS"]:
        raise Unsupported("SDP.D_DP_EW_CFG.EW_BYPASS is 0, which no layer says")
    offset = np.full_like(given.bias, -wrapped(v["SDP.D_CVT_OFFSET.CVT_OFFSET"], 32))
    factor = np.full_like(given.bias, wrapped(v["SDP.D_CVT_SCALE.CVT_SCALE"], 16))
    shift = v["SDP.D_CVT_SHIFT.CVT_SHIFT"]
    if np.all(factor == 1) and not shift and (np.any(given.multiplier != 1) or -128 <= offset[0] <= 127):
        # where nothing is scaled it could be a bias as well
        return replace(given, zero_point=given.zero_point + int(offset[0]))
    return given.add(offset, "SDP.D_CVT_OFFSET.CVT_OFFSET").scale(factor, shift, "SDP.D_CVT_SCALE.CVT_SCALE")
