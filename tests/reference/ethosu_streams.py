"""A capture of Ethos-U made by hand, and those that Vela makes where it is installed."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import npulab
from npulab.captures.capture import Capture
from npulab.npus.ethosu import stream
from npulab.npus.ethosu.coefficients import Records
from npulab.npus.ethosu.facts import FACTS
from npulab.npus.ethosu.traversal import Order
from npulab.npus.ethosu.weights import encode

CHIPS = ("ethos-u55-32", "ethos-u55-128", "ethos-u65-256", "ethos-u65-512")
Compile = Callable[..., Capture]
RANDOM = np.random.default_rng(11)
WEIGHTS = RANDOM.integers(-127, 128, (12, 3, 3, 5)).astype(np.int8)
RECORDS = Records(
    RANDOM.integers(-900, 900, 12), RANDOM.integers(2**30, 2**31, 12), RANDOM.integers(38, 41, 12)
)
MAPS = {name: FACTS.tables[name] for name in ("NPU", "DMA")}
OFFSETS = {
    name: {register: offset for _, offset, register in table.registers}
    for name, table in MAPS.items()
}
CONV = {
    "IFM_PAD_TOP": 1,
    "IFM_PAD_LEFT": 1,
    "IFM_PAD_RIGHT": 1,
    "IFM_PAD_BOTTOM": 1,
    "IFM_DEPTH_M1": 4,
    "IFM_PRECISION": 1,
    "IFM_ZERO_POINT": 7,
    "IFM_WIDTH0_M1": 6,
    "IFM_HEIGHT0_M1": 5,
    "IFM_REGION": 1,
    "OFM_WIDTH_M1": 6,
    "OFM_HEIGHT_M1": 5,
    "OFM_PRECISION": 1,
    "OFM_BLK_DEPTH_M1": 7,
    "OFM_ZERO_POINT": 2**16 - 3,
    "OFM_WIDTH0_M1": 6,
    "OFM_HEIGHT0_M1": 5,
    "OFM_REGION": 1,
    "KERNEL_WIDTH_M1": 2,
    "KERNEL_HEIGHT_M1": 2,
    "KERNEL_STRIDE": 4,
    "ACTIVATION_MIN": 2**16 - 3,
    "ACTIVATION_MAX": 127,
    "IFM_BASE0": 0x400,
    "IFM_STRIDE_X": 5,
    "IFM_STRIDE_Y": 35,
    "IFM_STRIDE_C": 1,
    "OFM_STRIDE_X": 12,
    "OFM_STRIDE_Y": 84,
    "OFM_STRIDE_C": 1,
    "WEIGHT_REGION": 0,
    "SCALE_REGION": 0,
    "IFM_UPSCALE": 0,
    "ACTIVATION": 0,
}


def words(block: str, operation: int, **values: int) -> list[int]:
    """Commands that set registers and start an operation."""
    out = []
    for name, value in values.items():
        offset = OFFSETS[block][name]
        large = offset >= stream.LARGE
        out += (
            [(offset - stream.LARGE) // 8 + stream.DATA, value]
            if large
            else [offset // 4 + value * stream.HALF]
        )
    return [*out, operation]


def by_hand(**changed: int) -> Capture:
    """A convolution of 12 channels in two jobs, the second one's coefficients moved before."""
    data, places = b"", []
    for outputs in (slice(0, 8), slice(8, 12)):
        records = Records(*(one[outputs] for one in RECORDS)).encoded()
        records += bytes(-len(records) % 16)
        coded = encode(Order(8, part_kernel_first=True).pack(WEIGHTS[outputs]))
        places.append((len(data), len(records), len(coded)))
        data += records + coded
    (at, sizes, coded), (later, few, rest) = places
    first = {
        **CONV,
        "OFM_DEPTH_M1": 7,
        "OFM_BASE0": 0x800,
        "SCALE_BASE": at,
        "SCALE_LENGTH": sizes,
        "WEIGHT_BASE": at + sizes,
        "WEIGHT_LENGTH": coded,
        **changed,
    }
    moved = {
        "DMA0_SRC_REGION": 0,
        "DMA0_DST_REGION": 1,
        "DMA0_SRC": later,
        "DMA0_DST": 0x4000,
        "DMA0_LEN": few + rest,
    }
    second = {
        "OFM_DEPTH_M1": 3,
        "OFM_BASE0": 0x808,
        "WEIGHT_REGION": 1,
        "SCALE_REGION": 1,
        "SCALE_BASE": 0x4000,
        "SCALE_LENGTH": few,
        "WEIGHT_BASE": 0x4000 + few,
        "WEIGHT_LENGTH": rest,
    }
    commands = [*words("NPU", 2, **first), *words("DMA", 16, **moved), *words("NPU", 2, **second)]
    jobs = stream.jobs(np.array(commands, "<u4"), MAPS, "by hand")
    return Capture(
        "by hand",
        "ethosu",
        "ethos-u55-128",
        jobs,
        {"coefficients": data},
        provenance="simulated",
        maps=MAPS,
    )


def compiler(folder: Path) -> Compile:
    """What compiles a model by Vela; skips without it."""
    vela = pytest.importorskip(
        "ethosu.vela.vela", reason="vela is not installed: pip install npulab[compilers]"
    )

    def compiled(model: bytes, chip: str, name: str = "layer") -> Capture:
        path = folder / f"{name}.tflite"
        path.write_bytes(model)
        with contextlib.redirect_stdout(io.StringIO()):
            vela.main([str(path), "--output-dir", str(folder), "--accelerator-config", chip])
        return npulab.load(folder / f"{name}_vela.tflite")

    return compiled
