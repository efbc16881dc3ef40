"""A layer's bias, scales, zero point and activation as SDP has them: registers, and operands in
memory; what registers make of a sum, as one bias, one multiplication and one zero point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from npulab.npus.kit import WORD_BYTES, Job, Unsupported, offsets_of, refuse_if, wrapped
from npulab.npus.nvdla.facts import ALU, BOTH, ENABLE, LETTERS, MUL, POINTER, SUM
from npulab.npus.nvdla.rules import saturated
from npulab.npus.nvdla.units.fields import Fields
from npulab.quant.rules import RULES
from npulab.registers.map import RegisterMap

RULE = RULES["nvdla"]
OPERAND = 2**15  # operands are below, and not below minus this
# An accumulator that saturates at 32 bits before the multiplier of shift s gives an output past
# every code while 2**31 * multiplier / 2**s is at least this.
PAST_CODES = 2**9
# units are started from the last one of a chain to the first, so that each one waits for its input
STARTED = ("PDP", "PDP_RDMA", "SDP", "SDP_RDMA", "CACC", "CMAC_B", "CMAC_A", "CSC", "CDMA")
MOST_BITS = 15  # of a multiplier
# operands of a stage and part ("BS", "ALU"): (C,), or (H, W, C) where there is one for each element
Operand = Callable[[str, str], np.ndarray]
Values = Mapping[str, int]


def program(values: Values, block: str, registers: RegisterMap) -> Job:
    """The job of these values, by ``UNIT.REGISTER.FIELD``, in register group 0: for each unit the
    pointer to the group, its registers by offset, and in the end what starts the units.

    A field that is not given is 0 where another of its register is; a register without any is not
    written. Raises ValueError, with register and field, for a value that does not fit; LookupError
    for an unknown field.
    """
    words = np.zeros(len(registers), np.uint32)
    at, offsets = offsets_of(registers), {word: offset for offset, word in registers.index.items()}
    written = set()
    for name, value in values.items():
        item = registers[name]
        item.insert(words, item.raw(value))
        written.add(offsets[item.pieces[0].word])
    units = [unit for unit in STARTED if any(name.startswith(f"{unit}.") for name in values)]
    starts = {unit: at[f"{unit}.{ENABLE}"] for unit in units}
    writes = [(at[f"{unit}.{POINTER}"], 0) for unit in units]
    writes += [(offset, int(words[registers.index[offset]])) for offset in sorted(written)]
    return Job.from_writes(
        block, [*writes, *((offset, 1) for offset in starts.values())], registers
    )


def halves(where: int) -> tuple[int, int]:
    """(low, high) of an address in its two registers."""
    high, low = divmod(where, 2 ** (8 * WORD_BYTES))
    return low, high


@dataclass(frozen=True)
class Operands:
    """What a stage takes from memory, per channel ``(C,)``; None is not taken.  The ALU's lies
    first (assumed)."""

    alu: np.ndarray | None = None
    mul: np.ndarray | None = None

    @property
    def size(self) -> int:
        """Bytes of an operand: 1 where all fit, else 2."""
        if all(np.all((one >= -128) & (one < 128)) for one in self.parts):
            return 1
        return 2

    @property
    def parts(self) -> list[np.ndarray]:
        """Those that are taken."""
        return [one for one in (self.alu, self.mul) if one is not None]

    @property
    def use(self) -> int:
        """The raw value of DATA_USE."""
        if len(self.parts) == 2:
            return BOTH
        if self.alu is not None:
            return ALU
        return MUL

    def bytes(self, lanes: int) -> bytes:
        """As they lie in memory; 0 in the lanes past the channels."""
        both = np.stack(self.parts, -1)
        filled = np.zeros(
            (-(-len(both) // lanes) * lanes, both.shape[1]), "i1" if self.size == 1 else "<i2"
        )
        filled[: len(both)] = both
        return filled.tobytes()


@dataclass(frozen=True)
class Points:
    """SDP's fields by full name, and the operands of its stages by "BS" and "BN"."""

    values: Mapping[str, int]
    operands: Mapping[str, Operands] = field(default_factory=dict)


def scaled(
    bias: np.ndarray,
    multiplier: np.ndarray,
    right_shift: np.ndarray,
    zero_point: int,
    relu: bool,
    reach: np.ndarray,
) -> Points:
    """Points of ``round((sum + bias) * multiplier / 2**right_shift) + zero_point``, bias and
    multiplier ``(C,)``.

    One multiplier and no zero point are left to the output converter; else X2 scales and the
    converter adds.  Shifts are one for all channels: where they differ by more than the multipliers
    hold, X1 multiplies first.  A bias past 16 bits that no shift makes shorter is added in two
    parts.  ``reach`` ``(C,)`` is what a sum comes to at most. Raises ValueError for a bias or
    scales that the registers cannot say.
    """
    first, second, moved = _split(bias)
    most = reach + np.maximum(np.abs(bias), np.abs(first) * 2**moved)
    if np.any(most >= 2**31):
        channel = int(np.argmax(most))
        raise ValueError(
            f"lower for nvdla: bias: got {bias[channel]} for sums of up to {reach[channel]} in "
            "channel "
            f"{channel}, allowed is what stays within 32 bits"
        )
    refuse_if(
        np.any(multiplier <= 0),
        "lower for nvdla: scales",
        "a ratio that rounds to a multiplier of 0",
        "is 2**-64 and more",
    )
    values: dict[str, int] = {}
    operands: dict[str, Operands] = {}
    one = len({*zip(multiplier.tolist(), right_shift.tolist(), strict=True)}) == 1
    if one and not zero_point and not np.any(second):
        values |= _converter(0, int(multiplier[0]), int(right_shift[0]))
        if np.any(first) or relu:
            operands["BS"] = Operands(alu=first if np.any(first) else None)
            values |= _stage("BS", operands["BS"], moved, relu=relu)
    else:
        times, before, shift = _one_shift(multiplier, right_shift, most, bool(np.any(second)))
        refuse_if(
            np.any(np.abs(second * before) >= OPERAND),
            "lower for nvdla: bias",
            "more than 16 bits where scales per channel differ",
            "is less",
        )
        if np.any(first) or np.any(before > 1):
            operands["BS"] = Operands(
                first if np.any(first) else None, before if np.any(before > 1) else None
            )
            values |= _stage("BS", operands["BS"], moved)
        register = None
        if len({*times.tolist()}) == 1:
            register = int(times[0])
        operands["BN"] = Operands(
            second * before if np.any(second) else None, times if register is None else None
        )
        values |= _stage("BN", operands["BN"], 16, shift, relu, register)
        values |= _converter(-zero_point, 1, 0)
    operands = {stage: one for stage, one in operands.items() if one.parts}
    return Points(
        values
        | {
            f"SDP.D_DP_{stage}_CFG.{stage}_BYPASS": 1
            for stage in ("BS", "BN", "EW")
            if f"SDP.D_DP_{stage}_CFG.{stage}_BYPASS" not in values
        },
        operands,
    )


def summed(offset: int, right_shift: int, zero_point: int, relu: bool) -> Points:
    """Points of ``round((x + other + offset) / 2**right_shift) + zero_point``, the other tensor of
    X1 from memory."""
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
    pitches: tuple[int, int] | None = None,
) -> dict[str, int]:
    """SDP_RDMA's fields for a stage's operands: per channel, or with pitches (row, plane) bytes per
    element."""
    name = f"SDP_RDMA.D_{LETTERS[stage]}RDMA_CFG.{LETTERS[stage]}RDMA_"
    if operands is None:
        return {f"{name}DISABLE": 1}
    out = {
        f"{name}DISABLE": 0,
        f"{name}DATA_USE": operands.use,
        f"{name}DATA_SIZE": operands.size - 1,
        f"{name}DATA_MODE": int(pitches is not None),
        f"{name}RAM_TYPE": 1,
        **{
            f"SDP_RDMA.D_{stage}_BASE_ADDR_{half}.{stage}_BASE_ADDR_{half}": value
            for half, value in zip(("LOW", "HIGH"), halves(where), strict=True)
        },
    }
    for part, pitch in zip(("LINE_STRIDE", "SURFACE_STRIDE"), pitches or (), strict=False):
        out[f"SDP_RDMA.D_{stage}_{part}.{stage}_{part}"] = pitch
    return out


def _split(bias: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """(first part, second part in units of 2**16, left shift of the first) of a bias."""
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
    multiplier: np.ndarray,
    right_shift: np.ndarray,
    reach: np.ndarray,
    halves: bool,
) -> tuple[np.ndarray, np.ndarray, int]:
    """(multiplier of X2, power of two that X1 multiplies by, shift of X2) of per-channel
    factors."""
    low = multiplier & -multiplier  # the lowest bit that is set: what cancels
    cancels = np.minimum(np.log2(low).astype(np.int64), right_shift)
    multiplier, right_shift = multiplier >> cancels, right_shift - cancels
    shift = int(right_shift.max())
    powers = np.array(
        [
            max(int(m).bit_length() + shift - int(s) - 15, 0)
            for m, s in zip(multiplier, right_shift, strict=True)
        ]
    )
    before = 2**powers
    times = np.array(
        [
            int(m) * 2 ** (shift - int(s) - int(p)) if p < 15 else 0
            for m, s, p in zip(multiplier, right_shift, powers, strict=True)
        ]
    )
    if powers.max() < 15:
        saturates = reach * before >= 2**31
    else:
        saturates = np.ones(len(times), bool)
    lost = saturates & (halves | (2**31 * times < PAST_CODES * 2.0**shift))
    refuse_if(
        powers.max() >= 15 or np.any(lost),
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
) -> dict[str, int]:
    """X1 or X2: operands from memory, or a multiplier from its register."""
    adds = operands.alu is not None
    registers = {
        "CFG": {
            "BYPASS": 0,
            "ALU_BYPASS": not adds,
            "ALU_ALGO": SUM * adds,
            "MUL_PRELU": 0,
            "MUL_BYPASS": operands.mul is None and register is None,
            "RELU_BYPASS": not relu,
        },
        "ALU_CFG": {"ALU_SRC": adds, "ALU_SHIFT_VALUE": moved * adds},
        "MUL_CFG": {"MUL_SRC": operands.mul is not None, "MUL_SHIFT_VALUE": shift},
        "MUL_SRC_VALUE": {} if register is None else {"MUL_OPERAND": register},
    }
    return {
        f"SDP.D_DP_{stage}_{place}.{stage}_{name}": int(value)
        for place, fields in registers.items()
        for name, value in fields.items()
    }


def _converter(offset: int, scale: int, shift: int) -> dict[str, int]:
    return {
        f"SDP.D_CVT_{name}.CVT_{name}": value
        for name, value in (("OFFSET", offset), ("SCALE", scale), ("SHIFT", shift))
    }


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
            if (
                self.other is not None
                or self.rounded
                or self.zero_point
                or self.relu
                or np.any(self.multiplier != 1)
            ):
                raise Unsupported(f"{what} adds a tensor behind other steps, which no layer says")
            return replace(self, other=operand, reach=self.reach + 128)
        if not np.any(operand):
            return self
        if self.rounded or self.relu:
            if np.any(operand != operand[0]):
                raise Unsupported(
                    f"{what} adds a number per channel behind the scaling, which no layer says"
                )
            if self.relu and not (self.rounded or np.all(self.multiplier == 1)):
                raise Unsupported(
                    f"{what} adds behind ReLU and before the scaling, which no layer says"
                )
            return replace(self, zero_point=self.zero_point + int(operand[0]))
        if np.any(operand % self.multiplier):
            raise Unsupported(
                f"{what} adds {int(operand[0])} behind a multiplication, which no layer says"
            )
        if np.any(self.most * self.multiplier >= 2**31):
            raise Unsupported(
                f"{what} adds to sums that may have saturated at 32 bits, which no layer says"
            )
        return replace(self, bias=self.bias + operand // self.multiplier)

    def scale(self, operand: np.ndarray, shift: int, what: str) -> Scaling:
        """The same multiplied and shifted right with rounding."""
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
    def most(self) -> np.ndarray:
        """What a sum and its bias come to at most."""
        return self.reach + np.abs(self.bias)

    @property
    def scales(self) -> float | tuple[float, ...]:
        """The weight scale that says the same where those of input and output are 1."""
        for one in self.multiplier.tolist():
            if (one // (one & -one)).bit_length() > MOST_BITS or one >= 2 ** (
                MOST_BITS + self.shift
            ):
                raise Unsupported(
                    f"SDP multiplies by {one} / 2**{self.shift}, the rule's multipliers have "
                    f"{MOST_BITS} bits"
                )
        real = [float(one) * 2.0**-self.shift for one in self.multiplier.tolist()]
        if len({*real}) == 1:
            return real[0]
        return tuple(real)


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
                raise Unsupported(
                    f"{config}CFG.{stage}_ALU_ALGO is {v[f'{config}CFG.{stage}_ALU_ALGO']}, layers "
                    "have "
                    f"{SUM} (SUM) only"
                )
            shift = v[f"{config}ALU_CFG.{stage}_ALU_SHIFT_VALUE"] % 64
            given = given.add(
                saturated(operand(stage, "ALU") * 2 ** min(shift, 40), 32), f"{config}ALU_CFG"
            )
        factor = np.ones_like(given.multiplier)
        if on["MUL"]:
            if v[f"{config}CFG.{stage}_MUL_PRELU"]:
                raise Unsupported(f"{config}CFG.{stage}_MUL_PRELU is 1, which no layer says")
            factor = operand(stage, "MUL")
            if factor.ndim == 3:
                raise Unsupported(f"{config}MUL_CFG multiplies by a tensor, which no layer says")
        given = given.scale(
            factor, v[f"{config}MUL_CFG.{stage}_MUL_SHIFT_VALUE"] % 64, f"{config}MUL_CFG"
        )
        if on["RELU"]:
            if given.zero_point:
                raise Unsupported(
                    f"{config}CFG.{stage}_RELU_BYPASS is 0 behind an added zero point, which no "
                    "layer "
                    "says"
                )
            given = replace(given, relu=True)
    v.expect("lift points")
    offset = np.full_like(given.bias, -wrapped(v["SDP.D_CVT_OFFSET.CVT_OFFSET"], 32))
    factor = np.full_like(given.bias, wrapped(v["SDP.D_CVT_SCALE.CVT_SCALE"], 16))
    shift = v["SDP.D_CVT_SHIFT.CVT_SHIFT"]
    if (
        np.all(factor == 1)
        and not shift
        and (np.any(given.multiplier != 1) or -128 <= offset[0] <= 127)
    ):
        # where nothing is scaled it could be a bias as well
        return replace(given, zero_point=given.zero_point + int(offset[0]))
    return given.add(offset, "SDP.D_CVT_OFFSET.CVT_OFFSET").scale(
        factor, shift, "SDP.D_CVT_SCALE.CVT_SCALE"
    )
