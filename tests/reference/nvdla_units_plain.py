"""SDP, PDP and CDP element by element in whole numbers of Python: slow, and what the fast ones are
checked by.

Nothing is shared with them but the registers' names and the rules' names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from npulab.npus.nvdla.rules import RULES, Rules

LE, LO = 0, 1


def divided(value: int, shift: int, rounding: str) -> int:
    """``value / 2**shift`` rounded as named.

    >>> [divided(-5, 1, rounding) for rounding in ("floor", "toward-zero", "half-up", "half-even", "half-away")]
    [-3, -2, -2, -2, -3]
    """
    whole, rest = divmod(value, 2**shift)
    if rounding == "floor":
        return whole
    if rounding == "toward-zero":
        return whole + (rest > 0 and value < 0)
    twice = 2 * rest - 2**shift
    if twice:
        return whole + (twice > 0)
    return whole + {"half-up": 1, "half-even": whole % 2, "half-away": int(value > 0)}[rounding]


def limited(value: int, bits: int) -> int:
    """A value limited to so many signed bits."""
    return min(max(value, -(2 ** (bits - 1))), 2 ** (bits - 1) - 1)


def number(v: Mapping[str, int], name: str, bits: int) -> int:
    """A field's low bits as a signed number."""
    raw = v.get(name, 0) % 2**bits
    return raw - 2**bits if raw >= 2 ** (bits - 1) else raw


def sdp_element(
    v: Mapping[str, int],
    x: int,
    operands: Mapping[str, int],
    tables: Sequence[Sequence[int]] | None,
    rules: Rules = RULES,
) -> int:
    """An output of a 32-bit value; ``operands`` from memory by "BS ALU", "EW MUL" and so on,
    others are registers.
    """
    for stage in ("BS", "BN"):
        if not v.get(f"SDP.D_DP_{stage}_CFG.{stage}_BYPASS", 0):
            x = _first_stages(v, stage, x, operands, rules)
    if not v.get("SDP.D_DP_EW_CFG.EW_BYPASS", 0):
        x = _last_stage(v, x, operands, tables, rules)
    scaled = (x - number(v, "SDP.D_CVT_OFFSET.CVT_OFFSET", 32)) * number(
        v, "SDP.D_CVT_SCALE.CVT_SCALE", 16
    )
    y = divided(scaled, v.get("SDP.D_CVT_SHIFT.CVT_SHIFT", 0), rules.rounding)
    if rules.saturate_converter:
        y = limited(y, 17)
    return limited(y, 16 if v.get("SDP.D_DATA_FORMAT.OUT_PRECISION", 0) else 8)


def _operand(
    v: Mapping[str, int], stage: str, part: str, operands: Mapping[str, int], bits: int
) -> int:
    name = f"{stage} {part}"
    return (
        operands[name]
        if name in operands
        else number(v, f"SDP.D_DP_{stage}_{part}_SRC_VALUE.{stage}_{part}_OPERAND", bits)
    )


def _first_stages(
    v: Mapping[str, int], stage: str, x: int, operands: Mapping[str, int], rules: Rules
) -> int:
    bits = 32 if rules.saturate_stages else 44

    def flag(name: str) -> int:
        return v.get(f"SDP.D_DP_{stage}_CFG.{stage}_{name}", 0)

    if not flag("ALU_BYPASS"):
        left = v.get(f"SDP.D_DP_{stage}_ALU_CFG.{stage}_ALU_SHIFT_VALUE", 0)
        operand = limited(_operand(v, stage, "ALU", operands, 16) * 2**left, bits)
        x = (max(x, operand), min(x, operand), x + operand, x + operand)[flag("ALU_ALGO")]
    multiplies = not flag("MUL_BYPASS")
    if multiplies and flag("MUL_PRELU") and x >= 0:
        if rules.saturate_stages:
            x = signed(x, 32)  # the lowest bits of a sum of 33
    else:
        if multiplies:
            x *= _operand(v, stage, "MUL", operands, 16)
        if multiplies or rules.shift_while_bypassed:
            x = divided(
                x,
                v.get(f"SDP.D_DP_{stage}_MUL_CFG.{stage}_MUL_SHIFT_VALUE", 0) % 64,
                rules.rounding,
            )
    x = limited(x, bits)
    return x if flag("RELU_BYPASS") else max(x, 0)


def operand_converted(v: Mapping[str, int], part: str, operand: int, rules: Rules = RULES) -> int:
    """An operand from memory of the third stage after its converter."""
    if v.get(f"SDP.D_DP_EW_{part}_CFG.EW_{part}_CVT_BYPASS", 0):
        return operand
    name = f"SDP.D_DP_EW_{part}_CVT_{{0}}_VALUE.EW_{part}_CVT_{{0}}"
    scaled = (operand - number(v, name.format("OFFSET"), 32)) * number(v, name.format("SCALE"), 16)
    return limited(divided(scaled, v.get(name.format("TRUNCATE"), 0), rules.table_rounding), 32)


def _last_stage(
    v: Mapping[str, int],
    x: int,
    operands: Mapping[str, int],
    tables: Sequence[Sequence[int]] | None,
    rules: Rules,
) -> int:
    def flag(name: str) -> int:
        return v.get(f"SDP.D_DP_EW_CFG.EW_{name}", 0)

    x = limited(x, 32)
    if not flag("MUL_BYPASS") and not (flag("MUL_PRELU") and x >= 0):
        product = x * _operand(v, "EW", "MUL", operands, 32)
        x = limited(
            divided(
                product, v.get("SDP.D_DP_EW_TRUNCATE_VALUE.EW_TRUNCATE", 0), rules.table_rounding
            ),
            32,
        )
    if not flag("ALU_BYPASS"):
        operand = _operand(v, "EW", "ALU", operands, 32)
        x = limited((max(x, operand), min(x, operand), x + operand)[flag("ALU_ALGO")], 32)
    if not flag("LUT_BYPASS"):
        assert tables is not None
        x = table_element(v, "SDP", x, tables, rules)
    return x


def table_element(
    v: Mapping[str, int],
    unit: str,
    x: int,
    tables: Sequence[Sequence[int]],
    rules: Rules = RULES,
) -> int:
    """What a unit's tables, LE and LO, make of a value."""
    found = [_entered(v, unit, which, x, tables[which], rules) for which in (LE, LO)]
    sides = [side for side, _ in found]
    if sides[LE] == sides[LO] and sides[LE]:
        wins = v.get(f"{unit}.S_LUT_CFG.LUT_{'UFLOW' if sides[LE] < 0 else 'OFLOW'}_PRIORITY", 0)
    elif (sides[LE] == 0) != (sides[LO] == 0):
        wins = LE if sides[LE] == 0 else LO
        return found[wins][1]
    else:
        wins = v.get(f"{unit}.S_LUT_CFG.LUT_HYBRID_PRIORITY", 0)
    return found[wins if rules.priorities else LE][1]


def _entered(
    v: Mapping[str, int],
    unit: str,
    which: int,
    x: int,
    entries: Sequence[int],
    rules: Rules,
) -> tuple[int, int]:
    """(-1 under, 0 in, 1 over the table; the value there)."""
    table = ("LE", "LO")[which]
    start, end = (_bound(v, unit, f"LUT_{table}_{side}") for side in ("START", "END"))
    exponent = which == LE and not v.get(f"{unit}.S_LUT_CFG.LUT_LE_FUNCTION", 0)
    offset = number(v, f"{unit}.S_LUT_INFO.LUT_LE_INDEX_OFFSET", 8)
    select = number(v, f"{unit}.S_LUT_INFO.LUT_{table}_INDEX_SELECT", 8)
    first_value = start
    if unit == "CDP":  # of an int8 chip
        first_value, select = signed(start, 22), signed(select, 6)
        if which == LO and select == -32:
            select = 0
    bits, far = rules.fraction_bits if unit == "SDP" else 16, x - first_value
    if far > 0:
        if exponent:
            power = far.bit_length() - 1
            index, rest = power - offset, (far - 2**power) * 2**bits // 2**power
        elif select < 0:
            index, rest = far * 2**-select, 0
        else:
            index, rest = far // 2**select, far % 2**select * 2**bits // 2**select
        if 0 <= index < len(entries) - 1:
            first, following = entries[index], entries[index + 1]
            if unit == "SDP":
                return 0, divided(
                    first * (2**bits - rest) + following * rest, bits, rules.table_rounding
                )
            return 0, limited(
                first + divided((following - first) * rest, bits, rules.table_rounding), 16
            )
        over = index > 0
    else:
        over = False
    bound = end if over else start
    if exponent and not over and offset >= (1 if unit == "SDP" else 0):
        bound += 2 ** min(offset, 40) if unit == "SDP" else 2**offset
        if unit == "CDP":
            bound = signed(bound, 39)
    side = "OFLOW" if over else "UFLOW"
    away = (x - bound) * number(
        v, f"{unit}.S_LUT_{table}_SLOPE_SCALE.LUT_{table}_SLOPE_{side}_SCALE", 16
    )
    shift = number(v, f"{unit}.S_LUT_{table}_SLOPE_SHIFT.LUT_{table}_SLOPE_{side}_SHIFT", 5)
    away = divided(away, shift, rules.table_rounding) if shift >= 0 else away * 2**-shift
    wide = 32 if unit == "SDP" else 16
    return (1 if over else -1), limited(entries[-1 if over else 0] + limited(away, 32), wide)


def _bound(v: Mapping[str, int], unit: str, name: str) -> int:
    if unit == "SDP":
        return number(v, f"SDP.S_{name}.{name}", 32)
    high, low = (v.get(f"CDP.S_{name}_{part}.{name}_{part}", 0) for part in ("HIGH", "LOW"))
    raw = (high * 2**32 + low) % 2**38
    return raw - 2**38 if raw >= 2**37 else raw


def pdp_element(
    v: Mapping[str, int], x: Sequence[Sequence[int]], row: int, column: int, rules: Rules = RULES
) -> int:
    """The output at a row and column of one channel's plane."""
    kernel_h, kernel_w, stride_h, stride_w = (
        v.get(f"PDP.D_POOLING_KERNEL_CFG.KERNEL_{name}", 0) + 1
        for name in ("HEIGHT", "WIDTH", "STRIDE_HEIGHT", "STRIDE_WIDTH")
    )
    top = row * stride_h - v.get("PDP.D_POOLING_PADDING_CFG.PAD_TOP", 0)
    left = column * stride_w - v.get("PDP.D_POOLING_PADDING_CFG.PAD_LEFT", 0)
    lines = [
        [line[n] for n in range(left, left + kernel_w) if 0 <= n < len(line)]
        for line in x[max(top, 0) : max(top + kernel_h, 0)]
    ]
    method = v.get("PDP.D_OPERATION_MODE_CFG.POOLING_METHOD", 0)
    if method:
        return (max if method == 1 else min)(value for line in lines for value in line)

    def pads(count: int) -> int:
        return (
            number(v, f"PDP.D_POOLING_PADDING_VALUE_{count}_CFG.PAD_VALUE_{count}X", 19)
            if count
            else 0
        )

    wide = v.get("PDP.D_DATA_FORMAT.INPUT_DATA", 0)
    along = [sum(line) + pads(kernel_w - len(line)) for line in lines]
    whole = kernel_w * pads(kernel_h - len(lines))
    if not wide:
        along = [signed(part, 11) for part in along]
        whole = signed(whole, 14)
    total = sum(along) + whole
    for name, bits in (("WIDTH", 11), ("HEIGHT", 8)):
        product = total * v.get(f"PDP.D_RECIP_KERNEL_{name}.RECIP_KERNEL_{name}", 0)
        total = divided(product, 16, rules.rounding)
        if not wide:
            # the RTL cuts a product that is not negative before it rounds
            floor = product // 2**16
            carry = total - floor
            total = signed((floor if product < 0 else floor % 2 ** (bits - 1)) + carry, bits)
    return limited(total, 16 if wide else 8)


def signed(value: int, bits: int) -> int:
    value %= 2**bits
    return value - 2**bits if value >= 2 ** (bits - 1) else value


def cdp_element(
    v: Mapping[str, int],
    x: Sequence[int],
    channel: int,
    channels: int,
    tables: Sequence[Sequence[int]],
    rules: Rules = RULES,
) -> int:
    """The output of a channel of one place, whose lanes are given; those from ``channels`` on
    are past the end.
    """
    wide = v.get("CDP.D_DATA_FORMAT.INPUT_DATA_TYPE", 0)
    offset, scale = (
        number(v, "CDP.D_DATIN_OFFSET.DATIN_OFFSET", 16 if wide else 8),
        number(v, "CDP.D_DATIN_SCALE.DATIN_SCALE", 16),
    )

    def z(at: int) -> int:
        if not 0 <= at < channels:
            return 0
        value = divided(
            (x[at] - offset) * scale,
            v.get("CDP.D_DATIN_SHIFTER.DATIN_SHIFTER", 0),
            rules.cdp_rounding,
        )
        return limited(value, 17 if wide else 9) if rules.saturate_cdp else value

    reach = v.get("CDP.D_LRN_CFG.NORMALZ_LEN", 0) + 1
    total = (
        z(channel)
        if v.get("CDP.D_FUNC_BYPASS.SQSUM_BYPASS", 0)
        else sum(z(at) ** 2 for at in range(channel - reach, channel + reach + 1))
    )
    y = table_element(v, "CDP", limited(total, 38), tables, rules)
    if not v.get("CDP.D_FUNC_BYPASS.MUL_BYPASS", 0):
        y *= z(channel)
    taken = 2 ** (33 if wide else 25)
    y = (y + taken // 2) % taken - taken // 2
    scaled = (y - number(v, "CDP.D_DATOUT_OFFSET.DATOUT_OFFSET", 32 if wide else 25)) * number(
        v, "CDP.D_DATOUT_SCALE.DATOUT_SCALE", 16
    )
    y = divided(scaled, v.get("CDP.D_DATOUT_SHIFTER.DATOUT_SHIFTER", 0), rules.cdp_rounding)
    return limited(y, 16 if wide else 8)
