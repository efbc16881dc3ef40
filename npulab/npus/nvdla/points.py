"""SDP's registers and operands from a layer's bias, scales, zero point and activation, and back.

``scaled`` and ``summed`` lower; ``scaling_of`` reads registers as a bias, a multiplication and a
zero point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy import ndarray as Array

from npulab.npus.kit import WORD_BYTES, Job, Raw, Unsupported, offsets_of, refuse_if, up, wrapped
from npulab.npus.nvdla.facts import ALU, BOTH, ENABLE, LETTERS, MUL, POINTER, SUM, FieldValues, Pair
from npulab.npus.nvdla.rules import saturated
from npulab.npus.nvdla.units.fields import READER, Fields
from npulab.quant.rules import RULES
from npulab.registers.map import RegisterMap

RULE = RULES["nvdla"]
OPERAND = 2**15  # operands are at least -OPERAND and below OPERAND
# An accumulator that saturates at 32 bits gives an output past every code if 2**31 times the
# multiplier, over 2**shift, is at least this.
PAST_CODES = 2**9
# Units are started from the last of a chain to the first, so that each waits for its input.
STARTED = ("PDP", "PDP_RDMA", "SDP", "SDP_RDMA", "CACC", "CMAC_B", "CMAC_A", "CSC", "CDMA")
MOST_BITS = 15  # most bits of a multiplier
# A function that returns the operands of a stage and part ("BS", "ALU"): (C,), or (H, W, C) if each
# element has one.
Operand = Callable[[str, str], Array]


def program(values: Raw, block: str, registers: RegisterMap) -> Job:
    """Return the job of these values, by ``UNIT.REGISTER.FIELD``, in register group 0: the pointers
    of all units to the group, the registers by offset, and the writes that start the units.

    A field that is not given is 0 if another field of its register is given; a register without
    given fields is not written. Raises ValueError, with register and field, for a value that does
    not fit; LookupError for an unknown field.
    """
    words = np.zeros(len(registers), np.uint32)
    at = offsets_of(registers)
    written = set()
    named = set()
    for name, value in values.items():
        item = registers[name]
        item.insert(words, item.raw(value))
        written.add(at[f"{item.block}.{item.register}"])
        named.add(item.block)
    units = [unit for unit in STARTED if unit in named]
    writes = [(at[f"{unit}.{POINTER}"], 0) for unit in units]
    writes += [(offset, int(words[registers.index[offset]])) for offset in sorted(written)]
    writes += [(at[f"{unit}.{ENABLE}"], 1) for unit in units]
    return Job.from_writes(block, writes, registers)


def halves(where: int) -> Pair:
    """Return (low, high) of an address in its two registers."""
    high, low = divmod(where, 2 ** (8 * WORD_BYTES))
    return low, high


@dataclass(frozen=True)
class Operands:
    """The operands that a stage takes from memory, one for each channel ``(C,)``; None for an
    operand that the stage does not take.

    The ALU's operand lies before the multiplier's (assumed).
    """

    alu: Array | None = None
    mul: Array | None = None

    @property
    def size(self) -> int:
        """The number of bytes of an operand: 1 if all operands fit into one byte, else 2."""
        for part in self.parts:
            if np.any((part < -128) | (part >= 128)):
                return 2
        return 1

    @property
    def parts(self) -> list[Array]:
        """The operands that the stage takes: ALU, MUL or both."""
        return [part for part in (self.alu, self.mul) if part is not None]

    @property
    def use(self) -> int:
        """The raw value of DATA_USE."""
        if len(self.parts) == 2:
            return BOTH
        if self.alu is not None:
            return ALU
        return MUL

    def bytes(self, lanes: int) -> bytes:
        """Return the operands as they lie in memory; 0 in the lanes past the channels."""
        both = np.stack(self.parts, -1)
        filled = np.zeros((up(len(both), lanes), both.shape[1]), f"<i{self.size}")
        filled[: len(both)] = both
        return filled.tobytes()


@dataclass(frozen=True)
class Points:
    """SDP's fields by full name, and the operands of its stages by "BS" and "BN"."""

    values: Raw
    operands: Mapping[str, Operands] = field(default_factory=dict)


def scaled(
    bias: Array,
    multiplier: Array,
    right_shift: Array,
    zero_point: int,
    relu: bool,
    reach: Array,
) -> Points:
    """Return the points that compute ``round((sum + bias) * multiplier / 2**right_shift) +
    zero_point``; bias and multiplier are ``(C,)``.

    If there is one multiplier and no zero point, the output converter scales. Else X2 scales and
    the converter adds. All channels share one shift. If their shifts differ too much for the bits
    of a multiplier, X1 multiplies first. A bias of more than 16 bits that no shift makes shorter is
    added in two parts. ``reach`` ``(C,)`` is the largest magnitude of a sum. Raises ValueError for
    a bias or scales that the registers cannot hold.
    """
    first, second, moved = _split(bias)
    most = reach + np.maximum(np.abs(bias), np.abs(first) * 2**moved)
    if np.any(most >= 2**31):
        channel = int(np.argmax(most))
        raise ValueError(
            f"lower for nvdla: bias: got {bias[channel]} for sums of up to {reach[channel]} in "
            f"channel {channel}, allowed is a bias with which they stay within 32 bits"
        )
    refuse_if(
        np.any(multiplier <= 0),
        "lower for nvdla: scales",
        "a ratio that rounds to a multiplier of 0",
        "is 2**-64 and more",
    )
    values = {f"SDP.D_DP_{stage}_CFG.{stage}_BYPASS": 1 for stage in LETTERS}
    same = bool(np.all(multiplier == multiplier[0]) and np.all(right_shift == right_shift[0]))
    if same and not zero_point and not np.any(second):
        adds = Operands(alu=_needed(first, 0))
        values |= _converter(0, int(multiplier[0]), int(right_shift[0]))
        if adds.parts or relu:
            values |= _stage("BS", adds, moved, relu=relu)
        return Points(values, _from_memory({"BS": adds}))
    times, before, shift = _one_shift(multiplier, right_shift, most, bool(np.any(second)))
    rest = second * before
    refuse_if(
        np.any(np.abs(rest) >= OPERAND),
        "lower for nvdla: bias",
        "more than 16 bits with scales that differ per channel",
        "is less",
    )
    adds = Operands(_needed(first, 0), _needed(before, 1))
    if adds.parts:
        values |= _stage("BS", adds, moved)
    scales, register = Operands(_needed(rest, 0), times), None
    if np.all(times == times[0]):
        scales, register = Operands(_needed(rest, 0)), int(times[0])
    values |= _stage("BN", scales, 16, shift, relu, register)
    values |= _converter(-zero_point, 1, 0)
    return Points(values, _from_memory({"BS": adds, "BN": scales}))


def _needed(operand: Array, neutral: int) -> Array | None:
    """Return an operand; None if the operand changes no value."""
    if np.all(operand == neutral):
        return None
    return operand


def _from_memory(operands: Mapping[str, Operands]) -> dict[str, Operands]:
    return {stage: taken for stage, taken in operands.items() if taken.parts}


def summed(offset: int, right_shift: int, zero_point: int, relu: bool) -> Points:
    """Return the points of an addition, ``round((x + other + offset) / 2**right_shift) +
    zero_point``. The first stage (X1) reads the tensor ``other`` from memory."""
    values = {
        **_stage("BS", Operands(alu=np.zeros(1, np.int64))),
        **_stage("BN", Operands(), 0, right_shift, relu, 1),
        **_converter(-zero_point, 1, 0),
        "SDP.D_DP_BN_CFG.BN_ALU_BYPASS": 0,
        "SDP.D_DP_BN_CFG.BN_ALU_ALGO": SUM,
        "SDP.D_DP_BN_ALU_SRC_VALUE.BN_ALU_OPERAND": offset,
        "SDP.D_DP_EW_CFG.EW_BYPASS": 1,
    }
    return Points(values)


def reading(
    stage: str,
    operands: Operands | None,
    where: int,
    pitches: Pair | None = None,
) -> FieldValues:
    """Return SDP_RDMA's fields for a stage's operands: per channel, or with ``pitches`` (bytes of a
    row, of a plane) per element."""
    name = READER.format(LETTERS[stage])
    if operands is None:
        return {f"{name}DISABLE": 1}
    out = {
        f"{name}DISABLE": 0,
        f"{name}DATA_USE": operands.use,
        f"{name}DATA_SIZE": operands.size - 1,
        f"{name}DATA_MODE": int(pitches is not None),
        f"{name}RAM_TYPE": 1,
    }
    place = f"SDP_RDMA.D_{stage}_{{0}}.{stage}_{{0}}".format
    out[place("BASE_ADDR_LOW")], out[place("BASE_ADDR_HIGH")] = halves(where)
    if pitches is not None:
        out[place("LINE_STRIDE")], out[place("SURFACE_STRIDE")] = pitches
    return out


def _split(bias: Array) -> tuple[Array, Array, int]:
    """Return a bias as (first part, second part in units of 2**16, left shift of the first)."""
    none = np.zeros_like(bias)
    for moved in range(17):
        if np.any(bias % 2**moved):
            break
        short = bias // 2**moved
        if np.all((short >= -OPERAND) & (short < OPERAND)):
            return short, none, moved
    low = (bias + OPERAND) % 2**16 - OPERAND
    return low, (bias - low) // 2**16, 0


def _one_shift(
    multiplier: Array,
    right_shift: Array,
    reach: Array,
    halves: bool,
) -> tuple[Array, Array, int]:
    """Return (multiplier of X2, power of two that X1 multiplies by, shift of X2) of per-channel
    factors."""
    low = multiplier & -multiplier  # the lowest bit that is set: the power of two that cancels
    cancels = np.minimum(np.log2(low).astype(np.int64), right_shift)
    multiplier, right_shift = multiplier >> cancels, right_shift - cancels
    shift = int(right_shift.max())
    powers, times = np.zeros((2, len(multiplier)), np.int64)
    for channel, factor in enumerate(multiplier.tolist()):
        up_by = shift - int(right_shift[channel])
        power = max(factor.bit_length() + up_by - MOST_BITS, 0)
        powers[channel] = power
        if power < MOST_BITS:
            times[channel] = factor * 2 ** (up_by - power)
    before, differ = 2**powers, powers.max() >= MOST_BITS
    saturates = differ | (reach * before >= 2**31)
    lost = saturates & (halves | (2**31 * times < PAST_CODES * 2.0**shift))
    refuse_if(
        differ or np.any(lost),
        "lower for nvdla: weight_q",
        f"scales per channel whose shifts differ by {shift - int(right_shift.min())}",
        "is what one shift and two multipliers of 15 bits make of them",
    )
    return times, before, shift


def _stage(
    stage: str,
    operands: Operands,
    moved: int = 0,
    shift: int = 0,
    relu: bool = False,
    register: int | None = None,
) -> FieldValues:
    """Return the fields of X1 or X2: operands from memory, or a multiplier from its register."""
    adds = operands.alu is not None
    algorithm = 0
    if adds:
        algorithm = SUM
    else:
        moved = 0
    out = {
        "CFG.{}_BYPASS": 0,
        "CFG.{}_ALU_BYPASS": not adds,
        "CFG.{}_ALU_ALGO": algorithm,
        "CFG.{}_MUL_PRELU": 0,
        "CFG.{}_MUL_BYPASS": operands.mul is None and register is None,
        "CFG.{}_RELU_BYPASS": not relu,
        "ALU_CFG.{}_ALU_SRC": adds,
        "ALU_CFG.{}_ALU_SHIFT_VALUE": moved,
        "MUL_CFG.{}_MUL_SRC": operands.mul is not None,
        "MUL_CFG.{}_MUL_SHIFT_VALUE": shift,
    }
    if register is not None:
        out["MUL_SRC_VALUE.{}_MUL_OPERAND"] = register
    return {f"SDP.D_DP_{stage}_{name.format(stage)}": int(value) for name, value in out.items()}


def _converter(offset: int, scale: int, shift: int) -> FieldValues:
    return {
        "SDP.D_CVT_OFFSET.CVT_OFFSET": offset,
        "SDP.D_CVT_SCALE.CVT_SCALE": scale,
        "SDP.D_CVT_SHIFT.CVT_SHIFT": shift,
    }


@dataclass(frozen=True)
class Scaling:
    """``clamp(round((x + other + bias) * multiplier / 2**shift) + zero_point)``, per channel
    ``(C,)``.

    ``other`` is a tensor or None. If ``relu`` is True, ``clamp`` has the zero point as its lowest
    value. ``reach`` is the largest magnitude that ``x`` can have.
    """

    reach: Array
    bias: Array
    multiplier: Array
    shift: int = 0
    zero_point: int = 0
    relu: bool = False
    other: Array | None = field(default=None, repr=False)

    @property
    def rounded(self) -> bool:
        return self.shift > 0

    def add(self, operand: Array, what: str) -> Scaling:
        """Return the scaling followed by an addition of one number per channel, or of a tensor."""
        if operand.ndim == 3:
            steps = self.rounded or self.zero_point or self.relu or np.any(self.multiplier != 1)
            if steps or self.other is not None:
                raise Unsupported(f"{what} adds a tensor after other steps, which no layer says")
            return replace(self, other=operand, reach=self.reach + 128)
        if not np.any(operand):
            return self
        if self.rounded or self.relu:
            if np.any(operand != operand[0]):
                raise Unsupported(
                    f"{what} adds a number per channel after the scaling, which no layer says"
                )
            if self.relu and not (self.rounded or np.all(self.multiplier == 1)):
                raise Unsupported(
                    f"{what} adds after ReLU and before the scaling, which no layer says"
                )
            return replace(self, zero_point=self.zero_point + int(operand[0]))
        if np.any(operand % self.multiplier):
            raise Unsupported(
                f"{what} adds {int(operand[0])} after a multiplication, which no layer says"
            )
        if np.any(self.most * self.multiplier >= 2**31):
            raise Unsupported(
                f"{what} adds to sums that may have saturated at 32 bits, which no layer says"
            )
        return replace(self, bias=self.bias + operand // self.multiplier)

    def scale(self, operand: Array, shift: int, what: str) -> Scaling:
        """Return the scaling followed by a multiplication and a rounded right shift."""
        if np.all(operand == 1) and not shift:
            return self
        if self.rounded or self.zero_point:
            raise Unsupported(
                f"{what} scales a second time, which rounds twice: no layer says that"
            )
        if np.any(operand <= 0):
            raise Unsupported(
                f"{what} multiplies by {int(operand.min())}, layers have scales above 0"
            )
        saturates = self.most * self.multiplier >= 2**31
        if np.any(saturates & (2**31 * operand.astype(object) < PAST_CODES * 2**shift)):
            raise Unsupported(
                f"{what} scales sums that may have saturated at 32 bits, which no layer says"
            )
        return replace(self, multiplier=self.multiplier * operand, shift=shift)

    @property
    def most(self) -> Array:
        """The largest magnitude that a sum with its bias can have."""
        return self.reach + np.abs(self.bias)

    @property
    def scales(self) -> float | tuple[float, ...]:
        """The weight scale that gives the same factor if the scales of input and output are 1."""
        real = []
        for factor in self.multiplier.tolist():
            digits = factor // (factor & -factor)  # without the lowest zeros
            if digits.bit_length() > MOST_BITS or factor >= 2 ** (MOST_BITS + self.shift):
                raise Unsupported(
                    f"SDP multiplies by {factor} / 2**{self.shift}, the rule's multipliers have "
                    f"{MOST_BITS} bits"
                )
            real.append(float(factor) * 2.0**-self.shift)
        if len({*real}) == 1:
            return real[0]
        return tuple(real)


def scaling_of(v: Fields, given: Scaling, operand: Operand) -> Scaling:
    """Return the scaling ``given``, followed by the steps that SDP's registers ``v`` (raw values by
    full name) describe.

    Raises Unsupported naming the register of a step that no layer says.
    """
    for stage in ("BS", "BN"):
        config = f"SDP.D_DP_{stage}_"
        raw = partial(v.of_stage, stage)
        if raw("CFG.{}_BYPASS"):
            continue
        if not raw("CFG.{}_ALU_BYPASS"):
            algorithm = raw("CFG.{}_ALU_ALGO")
            if algorithm != SUM:
                raise Unsupported(
                    f"{config}CFG.{stage}_ALU_ALGO is {algorithm}, layers have {SUM} (SUM) only"
                )
            shift = raw("ALU_CFG.{}_ALU_SHIFT_VALUE") % 64
            added = saturated(operand(stage, "ALU") * 2 ** min(shift, 40), 32)
            given = given.add(added, f"{config}ALU_CFG")
        factor = np.ones_like(given.multiplier)
        if not raw("CFG.{}_MUL_BYPASS"):
            if raw("CFG.{}_MUL_PRELU"):
                raise Unsupported(f"{config}CFG.{stage}_MUL_PRELU is 1, which no layer says")
            factor = operand(stage, "MUL")
            if factor.ndim == 3:
                raise Unsupported(f"{config}MUL_CFG multiplies by a tensor, which no layer says")
        shift = raw("MUL_CFG.{}_MUL_SHIFT_VALUE") % 64
        given = given.scale(factor, shift, f"{config}MUL_CFG")
        if not raw("CFG.{}_RELU_BYPASS"):
            if given.zero_point:
                raise Unsupported(
                    f"{config}CFG.{stage}_RELU_BYPASS is 0 after an added zero point, which no "
                    "layer says"
                )
            given = replace(given, relu=True)
    v.expect("lift points")
    offset = np.full_like(given.bias, -wrapped(v["SDP.D_CVT_OFFSET.CVT_OFFSET"], 32))
    factor = np.full_like(given.bias, wrapped(v["SDP.D_CVT_SCALE.CVT_SCALE"], 16))
    shift = v["SDP.D_CVT_SHIFT.CVT_SHIFT"]
    # If nothing is scaled, an offset in the range of codes is a zero point, any other is a bias.
    last_is_zero_point = np.any(given.multiplier != 1) or -128 <= offset[0] <= 127
    if np.all(factor == 1) and not shift and last_is_zero_point:
        return replace(given, zero_point=given.zero_point + int(offset[0]))
    given = given.add(offset, "SDP.D_CVT_OFFSET.CVT_OFFSET")
    return given.scale(factor, shift, "SDP.D_CVT_SCALE.CVT_SCALE")
