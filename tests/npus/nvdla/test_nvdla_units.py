"""SDP, PDP and CDP of the nvdla target: fast blocks against plain elements, on random registers."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import nvdla_units_plain as plain
import pytest
from case_tables import cases, fields
from hypothesis import given, settings, strategies as st

from npulab.captures.target import Hang, Unsupported
from npulab.npus.nvdla import layouts
from npulab.npus.nvdla.facts import LETTERS, MEMORIES, TABLES
from npulab.npus.nvdla.rules import MUTATIONS, RULES, Rules, shifted, shifted_either_way
from npulab.npus.nvdla.units import cdp, lut, pdp, sdp
from npulab.npus.nvdla.units.fields import Fields

SEEDS = st.integers(0, 2**32 - 1)
FEW = settings(max_examples=60)
BASE = 0x8000_0000
ROOM = 2**16
CHANGED = [
    *MUTATIONS.values(),
    *[RULES] * len(MUTATIONS),
]  # half of the draws are the rules as they are


class Bytes:
    """Memory of two stretches filled with random bytes, one a name."""

    def __init__(self, seed: int, room: int = ROOM) -> None:
        draw = np.random.default_rng(seed)
        self.held = {
            name: bytearray(draw.integers(0, 256, room, np.uint8).tobytes()) for name in MEMORIES
        }
        self.written: list[tuple[str, int, int]] = []

    def _at(self, memory: str, address: int, size: int) -> int:
        at = address - BASE
        if not 0 <= at <= at + size <= len(self.held[memory]):
            raise ValueError(f"{memory} {address:#x}: outside")
        return at

    def read(self, memory: str, address: int, size: int) -> bytes:
        at = self._at(memory, address, size)
        return bytes(self.held[memory][at : at + size])

    def write(self, memory: str, address: int, data: bytes) -> None:
        at = self._at(memory, address, len(data))
        self.held[memory][at : at + len(data)] = data
        self.written.append((memory, address, len(data)))

    def number(self, memory: str, address: int, size: int) -> int:
        return int.from_bytes(self.read(memory, address, size), "little", signed=True)


def raw(draw: random.Random, bits: int) -> int:
    """A field of so many bits, often extreme."""
    top = 2**bits
    return draw.choice(
        [
            0,
            1,
            top - 1,
            top // 2,
            top // 2 - 1,
            2 ** draw.randrange(bits),
            draw.randrange(top),
            draw.randrange(top),
            draw.randrange(min(top, 64)),
            (-draw.randrange(1, min(top, 65))) % top,
        ]
    )


# The bits of each field, and fewer of shifts and factors, so that something is left over.
WIDTHS = {
    f"{item.block}.{item.register}.{item.name}": item.width
    for item in TABLES["SMALL"]
    if not item.automatic
}
FEWER = {
    "BS_MUL_SHIFT_VALUE": (3, 4, 8),
    "BN_MUL_SHIFT_VALUE": (3, 4, 8),
    "EW_ALU_CVT_TRUNCATE": (3, 6),
    "EW_MUL_CVT_TRUNCATE": (3, 6),
    "EW_TRUNCATE": (4, 6, 10),
    "CVT_OFFSET": (8, 32),
    "CVT_SHIFT": (4, 6),
    "DATIN_SCALE": (2, 16),
    "DATIN_SHIFTER": (2, 5),
    "DATOUT_OFFSET": (8, 32),
    "DATOUT_SHIFTER": (4, 6),
}
ARITHMETIC = r"SDP\.D_(DP_|CVT_)(?!.*_SRC$)"


def raws(draw: random.Random, pattern: str) -> dict[str, int]:
    """Raw values of the fields whose full name begins with a pattern."""
    out = {}
    for name, bits in WIDTHS.items():
        if re.match(pattern, name):
            out[name] = raw(draw, draw.choice(FEWER.get(name.split(".")[2], (bits,))))
    return out


def sdp_registers(draw: random.Random) -> dict[str, int]:
    """All that SDP's arithmetic reads; a job that compares, which writes nothing, is not drawn."""
    return raws(draw, ARITHMETIC) | {"SDP.D_DP_EW_CFG.EW_ALU_ALGO": draw.randrange(3)}


def shaped(names: str, *sizes: int) -> dict[str, int]:
    """The fields of height, width and channels, as far as they are given."""
    axes = zip(("HEIGHT", "WIDTH", "CHANNEL"), sizes, strict=False)
    return {names.format(axis): size - 1 for axis, size in axes}


def placed(unit: str, side: str, base: int, line: int, surface: int) -> dict[str, int]:
    """The fields of address and pitches of a unit's SRC or DST."""
    names = "BASE_ADDR_LOW", "LINE_STRIDE", "SURFACE_STRIDE"
    numbers = zip(names, (base, line, surface), strict=True)
    return {f"{unit}.D_{side}_{name}.{side}_{name}": number for name, number in numbers}


def lut_registers(draw: random.Random, unit: str, values: list[int]) -> dict[str, int]:
    """Tables that begin or end near one of the values that come."""
    v = raws(draw, rf"{unit}\.S_LUT_(CFG|INFO|L._SLOPE)")
    if draw.random() < 0.7:
        for name in ("LE_INDEX_OFFSET", "LE_INDEX_SELECT", "LO_INDEX_SELECT"):
            v[f"{unit}.S_LUT_INFO.LUT_{name}"] = draw.randrange(-3, 12) % 256
    for name in ("LE_START", "LE_END", "LO_START", "LO_END"):
        near = draw.choice([*values, draw.randrange(-(2**31), 2**31)])
        near += draw.randrange(-300, 300)
        v[f"SDP.S_LUT_{name}.LUT_{name}"] = near % 2**32
        v[f"CDP.S_LUT_{name}_LOW.LUT_{name}_LOW"] = near % 2**32
        v[f"CDP.S_LUT_{name}_HIGH.LUT_{name}_HIGH"] = near // 2**32 % 64
    return v


def entries(draw: random.Random) -> tuple[np.ndarray, np.ndarray]:
    made = np.random.default_rng(draw.randrange(2**32))
    return made.integers(-(2**15), 2**15, 65).astype(np.int16), made.integers(
        -(2**15), 2**15, 257
    ).astype(np.int16)


def as_lists(tables: tuple[np.ndarray, np.ndarray]) -> list[list[int]]:
    return [table.tolist() for table in tables]


def accumulators(draw: random.Random, count: int) -> list[int]:
    return [
        draw.choice(
            [
                0,
                1,
                -1,
                2**31 - 1,
                -(2**31),
                draw.randrange(-(2**31), 2**31),
                draw.randrange(-300, 300),
            ]
        )
        for _ in range(count)
    ]


# Shifts and rules


@pytest.mark.parametrize("by", ["floor", "toward-zero", "half-up", "half-even", "half-away"])
def test_shifts_are_exact_up_to_the_widest_product(by: str) -> None:
    values = [
        0,
        1,
        -1,
        2,
        -2,
        3,
        -3,
        2**61,
        -(2**61),
        2**61 + 1,
        2**62,
        2**62 - 1,
        1 - 2**62,
        12345,
        -12345,
    ]
    for shift in (0, 1, 2, 13, 61, 62, 63, 64, 65, 100, 1023):
        got = shifted(np.array(values), shift, by)
        assert got.tolist() == [plain.divided(value, shift, by) for value in values], shift


@pytest.mark.parametrize("shift", range(-16, 16))
def test_slopes_shift_either_way(shift: int) -> None:
    values = [0, 1, -1, 5, -5, 2**20 + 3, 2**54, -(2**54)]
    got = shifted_either_way(np.array(values), shift, 32, "half-away")
    assert got.tolist() == [
        plain.limited(
            plain.divided(value, shift, "half-away") if shift >= 0 else value * 2**-shift, 32
        )
        for value in values
    ]


def test_rules_say_what_they_do_not_know() -> None:
    with pytest.raises(
        ValueError, match="rounding: got 'up', allowed is one of floor, toward-zero"
    ):
        Rules(rounding="up")
    with pytest.raises(ValueError, match="weight_order: got 'x', allowed is one of grouped, plain"):
        Rules(weight_order="x")
    with pytest.raises(ValueError, match="fraction_bits: got 0, allowed is 1 to 35"):
        Rules(fraction_bits=0)
    assert Rules() == RULES == MUTATIONS["none"]
    assert len(set(MUTATIONS.values())) == len(MUTATIONS)


# SDP

HANDED = {"SDP.D_FEATURE_MODE_CFG.FLYING_MODE": 1, "SDP.D_FEATURE_MODE_CFG.OUTPUT_DST": 1}
PASSED = HANDED | {f"SDP.D_DP_{stage}_CFG.{stage}_BYPASS": 1 for stage in LETTERS}
PASSED["SDP.D_CVT_SCALE.CVT_SCALE"] = 1


@FEW
@given(SEEDS)
def test_sdp_stages_on_accumulators(seed: int) -> None:
    draw = random.Random(seed)
    features = {"memory_atom": draw.choice([8, 16, 32])}
    height, width, channels = draw.randrange(1, 4), draw.randrange(1, 4), draw.randrange(1, 20)
    x = np.array(accumulators(draw, height * width * channels)).reshape(height, width, channels)
    v = sdp_registers(draw) | lut_registers(draw, "SDP", x.ravel()[:4].tolist())
    v |= shaped("SDP.D_DATA_CUBE_{0}.{0}", height, width, channels)
    precision = draw.randrange(2)
    v |= HANDED | {
        "SDP.D_DATA_FORMAT.PROC_PRECISION": precision,
        "SDP.D_DATA_FORMAT.OUT_PRECISION": precision,
    }
    rules, tables = draw.choice(CHANGED), entries(draw)
    got = sdp.run(v, features, Bytes(0, 0), tables, x.astype(np.int32), rules)
    assert got is not None
    lanes = got.shape[0] * got.shape[3]
    flat = got.transpose(1, 2, 0, 3).reshape(height, width, lanes)
    for row in range(height):
        for column in range(width):
            for lane in range(lanes):
                given = int(x[row, column, lane]) if lane < channels else 0
                wanted = (
                    plain.sdp_element(v, given, {}, as_lists(tables), rules)
                    if rules.padding_lanes or lane < channels
                    else 0
                )
                assert flat[row, column, lane] == wanted, (row, column, lane, given)


@FEW
@given(SEEDS)
def test_sdp_from_memory_to_memory(seed: int) -> None:
    """Every byte of both memories: strides with gaps, operands by channel and element, of one
    and two bytes, paired.
    """
    draw = random.Random(seed)
    sizes = {name: draw.randrange(2) for name in ("IN", "PROC", "OUT")}
    if draw.random() < 0.7:
        sizes = dict.fromkeys(sizes, sizes["IN"])
    atom, align = draw.choice([8, 16, 32]), draw.choice([1, 32])
    features = {"memory_atom": atom}
    height, width, channels = draw.randrange(1, 4), draw.randrange(1, 4), draw.randrange(1, 20)
    pitch = align * ((3 * atom + align - 1) // align)
    plane = align * ((4 * pitch + align - 1) // align)
    v = sdp_registers(draw)
    v["SDP.D_DP_EW_CFG.EW_LUT_BYPASS"] = 1
    v |= shaped("SDP.D_DATA_CUBE_{0}.{0}", height, width, channels)
    v |= placed("SDP_RDMA", "SRC", BASE + 64, pitch + 32, plane + 128)
    v |= placed("SDP", "DST", BASE + 32, pitch, plane + 32)
    v |= {
        "SDP.D_DST_DMA_CFG.DST_RAM_TYPE": 1,
        "SDP.D_DATA_FORMAT.PROC_PRECISION": sizes["PROC"],
        "SDP.D_DATA_FORMAT.OUT_PRECISION": sizes["OUT"],
        "SDP_RDMA.D_FEATURE_MODE_CFG.IN_PRECISION": sizes["IN"],
    }
    sides: dict[str, list[str]] = {}
    for number, (stage, letter) in enumerate(LETTERS.items()):
        use = draw.randrange(3)
        reader = f"SDP_RDMA.D_{letter}RDMA_CFG.{letter}RDMA_DATA_"
        v |= {f"{reader}{name}": draw.randrange(2) for name in ("SIZE", "MODE")}
        v[f"{reader}USE"] = use
        base = BASE + 4096 * (5 * number + 1)
        v |= placed("SDP_RDMA", stage, base, 8 * pitch + 32, 8 * plane)
        sides[stage] = [part for part in ("ALU", "MUL") if use == 2 or use == (part == "ALU")]
        for part in sides[stage]:
            v[f"SDP.D_DP_{stage}_{part}_CFG.{stage}_{part}_SRC"] = draw.randrange(2)
    memory = Bytes(seed)
    wanted = memory.held["pri_mem"][:]
    before = Bytes(seed)
    per_atom = {name: atom // (size + 1) for name, size in sizes.items()}
    surfaces = -(-channels // per_atom["OUT"])
    for lane in range(surfaces * per_atom["OUT"]):
        for row in range(height):
            for column in range(width):
                y = one_output(v, before, sides, per_atom, sizes, (row, column, lane), channels)
                at = (
                    32
                    + lane // per_atom["OUT"] * (plane + 32)
                    + row * pitch
                    + column * atom
                    + lane % per_atom["OUT"] * (sizes["OUT"] + 1)
                )
                wanted[at : at + sizes["OUT"] + 1] = y.to_bytes(
                    sizes["OUT"] + 1, "little", signed=True
                )
    assert sdp.run(v, features, memory) is None
    assert memory.held["pri_mem"] == wanted
    assert memory.held["sec_mem"] == before.held["sec_mem"]


def place(v: dict[str, int], unit: str, side: str, surface: int, row: int) -> int:
    """The address of a row in a surface, as the fields of ``placed`` state it."""
    base, line, plane = (v[name] for name in placed(unit, side, 0, 0, 0))
    return base + row * line + surface * plane


def one_output(
    v: dict[str, int],
    memory: Bytes,
    sides: dict[str, list[str]],
    per_atom: dict[str, int],
    sizes: dict[str, int],
    at: tuple[int, int, int],
    channels: int,
) -> int:
    """From the addresses as the documents state them."""
    row, column, lane = at
    atom = per_atom["IN"] * (sizes["IN"] + 1)
    uneven = len(set(sizes.values())) > 1
    there = lane // per_atom["IN"] < -(-channels // per_atom["IN"]) and (
        not uneven or lane // per_atom["PROC"] < -(-channels // per_atom["PROC"])
    )
    if not there and lane // per_atom["PROC"] >= -(-channels // per_atom["PROC"]):
        return 0  # nothing was computed for it
    x = 0
    if there:
        start = place(v, "SDP_RDMA", "SRC", lane // per_atom["IN"], row)
        start += column * atom + lane % per_atom["IN"] * (sizes["IN"] + 1)
        x = memory.number("sec_mem", start, sizes["IN"] + 1)
    operands = {}
    for stage, letter in LETTERS.items():
        reader = f"SDP_RDMA.D_{letter}RDMA_CFG.{letter}RDMA_DATA_"
        size = v[f"{reader}SIZE"] + 1
        parts = len(sides[stage])
        step = per_atom["PROC"] * parts * size
        surface = lane // per_atom["PROC"]
        base = place(v, "SDP_RDMA", stage, 0, 0) + surface * step
        if v[f"{reader}MODE"]:
            base = place(v, "SDP_RDMA", stage, surface, row) + column * step
        for n, part in enumerate(sides[stage]):
            if v[f"SDP.D_DP_{stage}_{part}_CFG.{stage}_{part}_SRC"]:
                value = memory.number(
                    "sec_mem", base + (lane % per_atom["PROC"] * parts + n) * size, size
                )
                operands[f"{stage} {part}"] = (
                    plain.operand_converted(v, part, value) if stage == "EW" else value
                )
    return plain.sdp_element(v, x, operands, None)


def test_sdp_shift_happens_although_the_multiplier_is_bypassed() -> None:
    v = PASSED | {f"SDP.D_DP_BS_CFG.BS_{what}_BYPASS": 1 for what in ("ALU", "MUL", "RELU")}
    v |= {"SDP.D_DP_BS_CFG.BS_BYPASS": 0, "SDP.D_DP_BS_MUL_CFG.BS_MUL_SHIFT_VALUE": 2}
    x = np.array([[[-10]]])
    for rules, wanted in (
        (RULES, -3),
        (MUTATIONS["floor"], -3),
        (MUTATIONS["half up"], -2),
        (MUTATIONS["no shift while the multiplier is bypassed"], -10),
    ):
        got = sdp.run(v, {"memory_atom": 8}, Bytes(0, 0), None, x, rules)
        assert got is not None
        assert got[0, 0, 0, 0] == wanted


def test_sdp_takes_as_many_places_in_other_rows() -> None:
    v = PASSED | {"SDP.D_DATA_CUBE_WIDTH.WIDTH": 5}
    got = sdp.run(v, {"memory_atom": 8}, Bytes(0, 0), None, np.arange(6).reshape(2, 3, 1))
    assert got is not None
    assert got[0, 0, :, 0].tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(
        ValueError, match=r"accumulators: got \(2, 4, 1\), allowed is \(1, 6, kernels\)"
    ):
        sdp.run(v, {"memory_atom": 8}, Bytes(0, 0), None, np.zeros((2, 4, 1)))


def test_sdp_compares_and_writes_nothing() -> None:
    v = {
        "SDP.D_DP_BS_CFG.BS_BYPASS": 1,
        "SDP.D_DP_BN_CFG.BN_BYPASS": 1,
        "SDP.D_DP_EW_CFG.EW_ALU_ALGO": 3,
        "SDP.D_DP_EW_CFG.EW_LUT_BYPASS": 1,
        "SDP.D_DP_EW_CFG.EW_MUL_BYPASS": 1,
        "SDP_RDMA.D_SRC_BASE_ADDR_LOW.SRC_BASE_ADDR_LOW": BASE,
    }
    memory = Bytes(1)
    assert sdp.run(v, {"memory_atom": 8}, memory) is None
    assert not memory.written


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (
            {"SDP.D_DATA_FORMAT.PROC_PRECISION": 2},
            Unsupported,
            "SDP.D_DATA_FORMAT.PROC_PRECISION is 2, covered are 0 (INT8) and 1 (INT16)",
        ),
        (
            {"SDP.D_FEATURE_MODE_CFG.BATCH_NUMBER": 3},
            Unsupported,
            "SDP.D_FEATURE_MODE_CFG.BATCH_NUMBER is 3, covered is 0",
        ),
        (
            {"SDP.D_FEATURE_MODE_CFG.WINOGRAD": 1},
            Unsupported,
            "SDP.D_FEATURE_MODE_CFG.WINOGRAD is 1, covered is 0",
        ),
        (
            {"SDP_RDMA.D_FEATURE_MODE_CFG.BATCH_NUMBER": 1, "SDP.D_DP_EW_CFG.EW_BYPASS": 1},
            Unsupported,
            "SDP_RDMA.D_FEATURE_MODE_CFG.BATCH_NUMBER is 1, covered is 0",
        ),
        (
            {"SDP.D_FEATURE_MODE_CFG.FLYING_MODE": 1, "SDP.D_DP_EW_CFG.EW_BYPASS": 1},
            ValueError,
            "accumulators: got none, allowed is (1, 1, kernels) as SDP.D_DATA_CUBE says",
        ),
        (
            {"SDP.D_DP_BS_ALU_CFG.BS_ALU_SRC": 1, "SDP_RDMA.D_BRDMA_CFG.BRDMA_DISABLE": 1},
            Hang,
            "SDP.D_DP_BS_ALU_CFG takes operands from memory, SDP_RDMA.D_BRDMA_CFG.BRDMA_DISABLE is 1",
        ),
        (
            {"SDP.D_DP_BN_ALU_CFG.BN_ALU_SRC": 1},
            Hang,
            "SDP.D_DP_BN_ALU_CFG takes operands from memory, SDP_RDMA.D_NRDMA_CFG.NRDMA_DATA_USE is 0",
        ),
        ({}, Unsupported, "the tables are looked up, and none were given"),
    ],
)
def test_sdp_says_what_it_does_not_run(
    changes: dict[str, int], error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as told:
        sdp.run(changes, {"memory_atom": 8}, Bytes(0))
    assert str(told.value) == words


# PDP


@FEW
@given(SEEDS)
def test_pdp_against_plain_windows(seed: int) -> None:
    draw = random.Random(seed)
    atom, itemsize = draw.choice([8, 16]), draw.choice([1, 2])
    kernel, stride = (tuple(draw.randrange(1, 9) for _ in "hw") for _ in range(2))
    pads = [draw.randrange(min(7, size - 1) + 1) for size in kernel]
    size = [max(1, draw.randrange(1, 9) + at - pad) for at, pad in zip(kernel, pads, strict=True)]
    # the last window still has a tap inside
    out = [
        draw.randrange(1, (length - 1 + pad) // step + 2)
        for length, pad, step in zip(size, pads, stride, strict=True)
    ]
    channels = draw.randrange(1, 20)
    v = raws(draw, r"PDP\.D_POOLING_PADDING_VALUE")
    v |= shaped("PDP.D_POOLING_KERNEL_CFG.KERNEL_{}", *kernel)
    v |= shaped("PDP.D_POOLING_KERNEL_CFG.KERNEL_STRIDE_{}", *stride)
    v |= shaped("PDP.D_DATA_CUBE_IN_{0}.CUBE_IN_{0}", *size, channels)
    v |= shaped("PDP.D_DATA_CUBE_OUT_{0}.CUBE_OUT_{0}", *out, channels)
    pitch = (max(size[1], out[1]) + 1) * atom
    plane = pitch * (max(size[0], out[0]) + 1)
    v |= placed("PDP_RDMA", "SRC", BASE, pitch, plane)
    v |= placed("PDP", "DST", BASE + atom, pitch, plane)
    for axis, length in (("WIDTH", kernel[1]), ("HEIGHT", kernel[0])):
        reciprocal = draw.choice([2**16 // length, raw(draw, 17)])
        v[f"PDP.D_RECIP_KERNEL_{axis}.RECIP_KERNEL_{axis}"] = reciprocal
    v |= {
        "PDP.D_OPERATION_MODE_CFG.POOLING_METHOD": draw.choice([0, 0, 1, 2]),
        "PDP.D_OPERATION_MODE_CFG.FLYING_MODE": 1,
        "PDP.D_OPERATION_MODE_CFG.SPLIT_NUM": draw.randrange(3),
        "PDP.D_POOLING_PADDING_CFG.PAD_TOP": pads[0],
        "PDP.D_POOLING_PADDING_CFG.PAD_LEFT": pads[1],
        "PDP.D_DATA_FORMAT.INPUT_DATA": itemsize - 1,
        "PDP.D_DST_RAM_CFG.DST_RAM_TYPE": 1,
    }
    memory, lanes, rules = Bytes(seed), atom // itemsize, draw.choice(CHANGED)
    wanted, flown = memory.held["pri_mem"][:], Bytes(seed)
    x = np.zeros((-(-channels // lanes), *size, lanes), f"i{itemsize}")
    for channel in range(-(-channels // lanes) * lanes):
        start = BASE + channel // lanes * plane + channel % lanes * itemsize
        image = [
            [
                memory.number("sec_mem", start + row * pitch + column * atom, itemsize)
                for column in range(size[1])
            ]
            for row in range(size[0])
        ]
        x[channel // lanes, :, :, channel % lanes] = image
        for row in range(out[0]):
            for column in range(out[1]):
                y = plain.pdp_element(v, image, row, column, rules)
                at = start - BASE + atom + row * pitch + column * atom
                wanted[at : at + itemsize] = y.to_bytes(itemsize, "little", signed=True)
    pdp.run(v, {"memory_atom": atom}, memory, None, rules)
    assert memory.held["pri_mem"] == wanted
    pdp.run(v | {"PDP.D_OPERATION_MODE_CFG.FLYING_MODE": 0}, {"memory_atom": atom}, flown, x, rules)
    assert flown.held["pri_mem"] == wanted


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (
            {"PDP.D_DATA_FORMAT.INPUT_DATA": 2},
            Unsupported,
            "PDP.D_DATA_FORMAT.INPUT_DATA is 2, covered are 0 (INT8) and 1 (INT16)",
        ),
        (
            {"PDP.D_OPERATION_MODE_CFG.POOLING_METHOD": 3},
            Unsupported,
            "PDP.D_OPERATION_MODE_CFG.POOLING_METHOD is 3, covered is 0 or 1 or 2",
        ),
        (
            {"PDP.D_POOLING_KERNEL_CFG.KERNEL_HEIGHT": 8},
            Unsupported,
            "PDP.D_POOLING_KERNEL_CFG.KERNEL_HEIGHT is 8, covered are 0 to 7",
        ),
        (
            {"PDP.D_DATA_CUBE_OUT_WIDTH.CUBE_OUT_WIDTH": 4},
            Unsupported,
            "PDP: an output's window of 1 along the width has no tap in the 1 elements there, covered is one or more",
        ),
        (
            {"PDP.D_DATA_CUBE_OUT_CHANNEL.CUBE_OUT_CHANNEL": 4},
            Unsupported,
            "PDP.D_DATA_CUBE_OUT_CHANNEL.CUBE_OUT_CHANNEL is 4, covered is that of the input, 0",
        ),
        (
            {},
            ValueError,
            "input: got none, allowed is (1, 1, 1, 8) of 1 bytes as PDP.D_DATA_CUBE_IN and D_DATA_FORMAT say",
        ),
    ],
)
def test_pdp_says_what_it_does_not_run(
    changes: dict[str, int], error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as told:
        pdp.run(changes, {"memory_atom": 8}, Bytes(0))
    assert str(told.value) == words


# CDP and the tables


@FEW
@given(SEEDS)
def test_cdp_against_plain_channels(seed: int) -> None:
    draw = random.Random(seed)
    atom, itemsize = draw.choice([8, 16]), draw.choice([1, 1, 2])
    height, width, channels = draw.randrange(1, 3), draw.randrange(1, 3), draw.randrange(1, 25)
    lanes = atom // itemsize
    surfaces = -(-channels // lanes)
    memory = Bytes(seed)
    near = [draw.randrange(-300, 3000) * 256 ** (itemsize - 1) for _ in range(3)]
    v = lut_registers(draw, "CDP", near)
    v |= raws(draw, r"CDP\.D_(DATIN|DATOUT|LRN_CFG|FUNC_BYPASS)")
    pitch, plane = width * atom + 32, (width * atom + 32) * height + 32
    v |= {
        "CDP.D_DATA_FORMAT.INPUT_DATA_TYPE": itemsize - 1,
        "CDP_RDMA.D_DATA_FORMAT.INPUT_DATA": itemsize - 1,
        "CDP.D_DST_DMA_CFG.DST_RAM_TYPE": 1,
    }
    v |= shaped("CDP_RDMA.D_DATA_CUBE_{0}.{0}", height, width, channels)
    v |= placed("CDP_RDMA", "SRC", BASE, pitch, plane)
    v |= placed("CDP", "DST", BASE + 32, pitch, plane)
    tables, rules = entries(draw), draw.choice(CHANGED)
    wanted = memory.held["pri_mem"][:]
    for row in range(height):
        for column in range(width):
            places = [
                lane // lanes * plane + row * pitch + column * atom + lane % lanes * itemsize
                for lane in range(surfaces * lanes)
            ]
            x = [memory.number("sec_mem", BASE + place, itemsize) for place in places]
            for lane, place in enumerate(places):
                y = plain.cdp_element(v, x, lane, channels, as_lists(tables), rules)
                wanted[place + 32 : place + 32 + itemsize] = y.to_bytes(
                    itemsize, "little", signed=True
                )
    cdp.run(v, {"memory_atom": atom}, memory, tables, rules)
    assert memory.held["pri_mem"] == wanted


@pytest.mark.parametrize("unit", ["SDP", "CDP"])
@FEW
@given(SEEDS)
def test_tables_against_plain_ones(unit: str, seed: int) -> None:
    """Hits, both sides of both tables, and every priority."""
    draw = random.Random(seed)
    start = draw.randrange(-(2**20), 2**20)
    values = [
        start + sign * 2**n + draw.randrange(-3, 4) for n in range(0, 31, 2) for sign in (1, -1)
    ]
    v, tables, rules = lut_registers(draw, unit, values), entries(draw), draw.choice(CHANGED)
    if draw.random() < 0.5:
        v[f"{unit}.S_LUT_INFO.LUT_LE_INDEX_SELECT"] = draw.randrange(12)
    how = lut.Lookup.of(Fields(v, {}), unit, rules)
    got = lut.looked_up(np.array(values), lut.Tables.of(tables), how, rules.table_rounding)
    assert got.tolist() == [
        plain.table_element(v, unit, value, as_lists(tables), rules) for value in values
    ]


def test_first_entry_of_an_exponent_table_stands_for_a_distance() -> None:
    """Below the table the slope starts from that distance: 2**offset, which the SDP leaves out
    where it is 1.
    """
    tables = lut.Tables.of((np.full(65, 100), np.full(257, 0)))
    for unit, offset, wanted in cases(
        """
SDP | 0 | 95
CDP | 0 | 94
SDP | 3 | 87
CDP | 3 | 87
SDP | 255 | 95
CDP | 255 | 95
""",
        str,
        int,
        int,
    ):
        v = {
            f"{unit}.S_LUT_INFO.LUT_LE_INDEX_OFFSET": offset,
            f"{unit}.S_LUT_LE_SLOPE_SCALE.LUT_LE_SLOPE_UFLOW_SCALE": 1,
        }
        how = lut.Lookup.of(Fields(v, {}), unit, RULES)
        assert lut.looked_up(np.array([-5]), tables, how).tolist() == [wanted], (unit, offset)


def test_tables_of_another_size_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"tables: got \(64,\) and \(257,\) entries, allowed are \(65,\) and \(257,\)",
    ):
        lut.Tables.of((np.zeros(64, np.int16), np.zeros(257, np.int16)))
    with pytest.raises(
        Unsupported, match=r"CDP\.D_DST_COMPRESSION_EN\.DST_COMPRESSION_EN is 1, covered is 0"
    ):
        cdp.run(
            {"CDP.D_DST_COMPRESSION_EN.DST_COMPRESSION_EN": 1}, {"memory_atom": 8}, Bytes(0), None
        )
    with pytest.raises(
        Unsupported, match=r"CDP_RDMA\.D_DATA_FORMAT\.INPUT_DATA is 1, covered is that of"
    ):
        cdp.run({"CDP_RDMA.D_DATA_FORMAT.INPUT_DATA": 1}, {"memory_atom": 8}, Bytes(0), None)


# Blocks


@pytest.mark.parametrize("unit", [sdp, pdp, cdp])
def test_blocks_change_nothing(unit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cubes are computed in blocks of rows and surfaces; one lane at a time gives the same
    bytes.
    """
    run: Callable[..., Any] = unit.run
    draw = random.Random(7)
    v = sdp_registers(draw) | lut_registers(draw, "CDP", [20000])
    v |= fields("""
CDP.D_DATIN_SCALE.DATIN_SCALE=1 CDP.D_DATOUT_SCALE.DATOUT_SCALE=3
CDP.D_DATOUT_SHIFTER.DATOUT_SHIFTER=9 PDP.D_OPERATION_MODE_CFG.FLYING_MODE=1
PDP.D_POOLING_KERNEL_CFG.KERNEL_HEIGHT=2 PDP.D_POOLING_KERNEL_CFG.KERNEL_STRIDE_HEIGHT=1
PDP.D_POOLING_PADDING_CFG.PAD_TOP=1 PDP.D_RECIP_KERNEL_WIDTH.RECIP_KERNEL_WIDTH=65536
PDP.D_RECIP_KERNEL_HEIGHT.RECIP_KERNEL_HEIGHT=21845 SDP.D_DP_EW_CFG.EW_BYPASS=1
SDP.D_CVT_SCALE.CVT_SCALE=5 SDP.D_CVT_SHIFT.CVT_SHIFT=3 SDP.D_DP_BS_CFG.BS_BYPASS=1
SDP.D_DP_BN_CFG.BN_BYPASS=1
""")
    v |= shaped("SDP.D_DATA_CUBE_{0}.{0}", 9, 3, 40)
    v |= shaped("CDP_RDMA.D_DATA_CUBE_{0}.{0}", 9, 3, 40)
    v |= shaped("PDP.D_DATA_CUBE_IN_{0}.CUBE_IN_{0}", 9, 3, 40)
    v |= shaped("PDP.D_DATA_CUBE_OUT_{0}.CUBE_OUT_{0}", 5, 3, 40)
    for block in ("SDP", "PDP", "CDP"):
        v |= placed(f"{block}_RDMA", "SRC", BASE, 24, 9 * 24)
        v |= placed(block, "DST", BASE + 4096, 24, 9 * 24)
    tables = entries(draw)
    found = []
    for lanes in (2**12, 1, 100):
        monkeypatch.setattr(layouts, "BLOCK", lanes)
        monkeypatch.setattr(layouts, "BLOCKS", 2**30)
        monkeypatch.setattr(cdp, "BLOCK", lanes)
        memory = Bytes(3)
        run(v, {"memory_atom": 8}, memory, *([tables] if unit is cdp else []))
        found.append(memory.held)
    assert found[0] != Bytes(3).held
    assert found[0] == found[1] == found[2]


@pytest.mark.long
@settings(max_examples=3000)
@given(SEEDS)
def test_many_random_jobs(seed: int) -> None:
    for check in (
        test_sdp_stages_on_accumulators,
        test_sdp_from_memory_to_memory,
        test_pdp_against_plain_windows,
        test_cdp_against_plain_channels,
    ):
        check.hypothesis.inner_test(seed)  # type: ignore[attr-defined]
    for unit in ("SDP", "CDP"):
        test_tables_against_plain_ones.hypothesis.inner_test(unit, seed)  # type: ignore[attr-defined]
