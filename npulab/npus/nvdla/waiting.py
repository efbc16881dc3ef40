"""Refuses jobs that would wait forever: sizes disagree, operands or memory are missing. That they
wait is a guess, which no RTL confirmed.

Each function looks at the registers and at the memory that exists, and computes nothing. All raise
Hang, with the reason, for a job that would never end, and Unsupported for a job that the simulated
device does not cover.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import prod

from npulab.npus.kit import Hang, Unsupported, agree, hang_if
from npulab.npus.nvdla import fetch
from npulab.npus.nvdla.facts import CONVOLUTION, LETTERS, Shape
from npulab.npus.nvdla.fetch import DATA, PITCHES
from npulab.npus.nvdla.layouts import Cube
from npulab.npus.nvdla.memory import Memory
from npulab.npus.nvdla.units.fields import DIFFER, Fields
from npulab.npus.nvdla.units.pdp import axes
from npulab.npus.nvdla.units.sdp import Stage, bypassed, compares

# CMAC_B is not among them: a convolution may use one half of the multipliers.
NEEDED = ("CDMA", "CSC", "CMAC_A", "CACC")
# The sizes that a unit writes, and its precisions, which have to be equal.
OUTPUTS = {
    "SDP": (
        "SDP.D_DATA_CUBE_{0}.{0}",
        "SDP.D_DATA_FORMAT.PROC_PRECISION",
        "SDP.D_DATA_FORMAT.OUT_PRECISION",
    ),
    "PDP": ("PDP.D_DATA_CUBE_OUT_{0}.CUBE_OUT_{0}", "PDP.D_DATA_FORMAT.INPUT_DATA"),
    "CDP": ("CDP_RDMA.D_DATA_CUBE_{0}.{0}", "CDP.D_DATA_FORMAT.INPUT_DATA_TYPE"),
}
MOST = 2**23  # the most elements of a result, and of one channel
MOST_PRODUCTS, MOST_TAPS, MOST_WINDOWS = 2**32, 2**18, 2**20


def for_units(v: Fields, on: Collection[str]) -> bool:
    """Return True if SDP takes accumulators on the fly; Hang if a started unit waits for a unit
    that was not started."""
    flies = "SDP" in on and bool(v["SDP.D_FEATURE_MODE_CFG.FLYING_MODE"])
    if set(on) & {*CONVOLUTION} - {"CMAC_B"}:
        _needs(on, "a convolution", *NEEDED, "SDP")
        hang_if(not flies, "CACC waits for SDP, whose SDP.D_FEATURE_MODE_CFG.FLYING_MODE is 0")
    elif flies:
        raise Hang("SDP waits for CACC, which nobody started")
    elif "SDP" in on:
        _needs(on, "SDP from memory", "SDP_RDMA")
    if "SDP" in on and v["SDP.D_FEATURE_MODE_CFG.OUTPUT_DST"]:
        _needs(on, "SDP into PDP", "PDP")
    if "PDP" in on:
        source = "SDP"
        if v["PDP.D_OPERATION_MODE_CFG.FLYING_MODE"]:
            source = "PDP_RDMA"
        _needs(on, "PDP", source)
    if set(on) & {"CDP", "CDP_RDMA"}:
        _needs(on, "CDP", "CDP", "CDP_RDMA")
    return flies


def convolving(v: Fields) -> list[str]:
    """Return the convolution's units that were started; Hang if their registers describe different
    convolutions.
    """
    v.agree("convolution")
    units = [unit for unit in CONVOLUTION if v[f"{unit}.D_OP_ENABLE.OP_EN"]]
    mode = "{}.D_MISC_CFG.CONV_MODE".format
    why = "units that compute in different ways wait for one another"
    agree(v, [(mode("CDMA"), mode(unit), why) for unit in units], DIFFER, Hang)
    return units


def _needs(on: Collection[str], what: str, *units: str) -> None:
    """Raise Hang if a unit was not started and other units wait for it."""
    missing = [unit for unit in units if unit not in on]
    hang_if(missing, f"{what} waits for {', '.join(missing)}, which nobody started")


def for_convolution(v: Fields, memory: Memory) -> Shape:
    """Return the sizes of the accumulators that CACC gives, (height, width, channels)."""
    v.expect("simulate convolution")
    size = _element(v, *(f"{unit}.D_MISC_CFG.PROC_PRECISION" for unit in convolving(v)))
    _element(v, "CDMA.D_MISC_CFG.PROC_PRECISION", "CDMA.D_MISC_CFG.IN_PRECISION")
    image = bool(v["CDMA.D_DATAIN_FORMAT.DATAIN_FORMAT"])
    stored = fetch.stored_weights(v, size, image)
    rows, columns = v.pair("CSC.D_DATAOUT_SIZE_0.DATAOUT_{}")
    # Registers can state a product of sizes that no simulation ends with, so that the sizes are
    # bounded before memory is looked at.
    few(stored.kernels * rows * columns, "the accumulators")
    few(prod(stored.shape[1:]), "the weights of a kernel", MOST_TAPS)
    few(prod(stored.shape) * rows * columns, "the products", MOST_PRODUCTS)
    fetch.weights_of(v, size, image)
    _hold(
        memory, *fetch.weights_at(v), stored.used, "CDMA (weights) reads", "where nothing was put"
    )
    if image:
        if stored.channels % 4:
            raise Hang(
                f"got {stored.channels} channels in a column of an image's kernels, allowed are "
                "whole pixels of 4"
            )
        v.expect("simulate image")
        pixels = replace(fetch.cube_of(v), atom=4, plane_pitch=0, itemsize=1)
        _read(memory, pixels, "CDMA (pixels)")
    else:
        _aligned(v, DATA, *PITCHES)
        v.agree("features")
        _read(memory, fetch.cube_of(v), "CDMA (data)")
    return rows, columns, stored.kernels


def written_by(v: Fields, unit: str) -> Cube:
    """Return the cube that SDP, PDP or CDP writes."""
    sizes, *precisions = OUTPUTS[unit]
    return _side(v, unit, "DST", v.shape(sizes), _element(v, *precisions))


def for_points(v: Fields, memory: Memory, output: Cube, sums: Shape | None) -> None:
    """Check SDP after accumulators (height, width, channels), or from memory if there are none."""
    v.expect("run points")
    shape = output.height, output.width, output.channels
    few(prod(shape), "the elements of SDP's output")
    if sums is None:
        _element(v, "SDP.D_DATA_FORMAT.PROC_PRECISION", "SDP_RDMA.D_FEATURE_MODE_CFG.IN_PRECISION")
        v.expect("read points")
        v.agree("points")
        _read(memory, _side(v, "SDP_RDMA", "SRC", shape, output.itemsize), "SDP_RDMA (SRC)")
    elif sums != shape:
        raise Hang(
            f"SDP waits for {shape[2]} channels of {shape[0]}x{shape[1]}, CACC gives {sums[2]} of "
            f"{sums[0]}x{sums[1]}"
        )
    for name in LETTERS:
        if bypassed(v, name):
            continue
        stage = Stage(v, name, shape, output.lanes)
        if stage.from_memory:
            for_operands(v, stage)
            _read(memory, stage.cube, f"SDP_RDMA ({name})")
    if compares(v):
        raise Unsupported(
            "SDP.D_DP_EW_CFG.EW_ALU_ALGO is 3 (EQL), which writes no output; covered is 0 to 2"
        )


def for_operands(v: Fields, stage: Stage) -> None:
    """Raise Hang if nobody reads a stage's operands from memory."""
    if not v["SDP_RDMA.D_OP_ENABLE.OP_EN"]:
        raise Hang(
            f"SDP.D_DP_{stage.name}_{stage.from_memory[0]}_CFG waits for an operand from memory, "
            "nobody started SDP_RDMA"
        )
    v.agree("points")


def for_pooling(v: Fields, memory: Memory, output: Cube, handed: Cube | None) -> None:
    """Check a job of PDP that reads memory, or that takes SDP's cube ``handed``."""
    v.expect("run pooling")
    v.agree("pooling")
    few(
        output.height * output.width * output.channels, "the elements of PDP's output", MOST_WINDOWS
    )
    height, width, channels = shape = v.shape("PDP.D_DATA_CUBE_IN_{0}.CUBE_IN_{0}")
    if v["PDP.D_OPERATION_MODE_CFG.FLYING_MODE"]:
        v.agree("pooling from memory")
        _read(memory, _side(v, "PDP_RDMA", "SRC", shape, output.itemsize), "PDP_RDMA (SRC)")
    elif handed is None or handed.shape != (height, width, output.shape[2]):
        raise Hang(
            f"PDP waits for {channels} channels of {height}x{width} from SDP, which gives others"
        )
    axes(v, shape, (output.height, output.width))
    writes(memory, output, "PDP (DST)")


def for_normalisation(v: Fields, memory: Memory, output: Cube) -> None:
    """Check CDP from memory to memory."""
    v.expect("simulate normalisation")
    shape = output.height, output.width, output.channels
    few(prod(shape), "the elements of CDP's output")
    _read(memory, _side(v, "CDP_RDMA", "SRC", shape, output.itemsize), "CDP_RDMA (SRC)")
    writes(memory, output, "CDP (DST)")


def writes(memory: Memory, cube: Cube, what: str) -> None:
    """Raise Hang if a surface of a result reaches past the memory that the job was given."""
    _there(memory, cube, f"{what} writes", "past what is set aside")


def _read(memory: Memory, cube: Cube, what: str) -> None:
    _there(memory, cube, f"{what} reads", "where nothing was put")


def _there(memory: Memory, cube: Cube, what: str, otherwise: str) -> None:
    few(cube.height * cube.width, f"the elements of a channel of {what.rpartition(' ')[0]}")
    size = (cube.height - 1) * cube.row_pitch + cube.width * cube.atom
    for surface in range(cube.surfaces):
        _hold(memory, cube.memory, cube.base + surface * cube.plane_pitch, size, what, otherwise)


def _hold(memory: Memory, name: str, start: int, size: int, what: str, otherwise: str) -> None:
    if not memory.holds(name, start, size):
        raise Hang(f"{what} {name} {start:#x} to {start + size:#x}, {otherwise}")


def _element(v: Fields, first: str, *others: str) -> int:
    """Return the bytes of an element; Unsupported if precision fields disagree."""
    size = v.precision(first)
    for name in others:
        if v[name] != v[first]:
            raise Unsupported(f"{name} is {v[name]}, covered is {v[first]} as in {first}")
    return size


def few(count: int, what: str, most: int = MOST) -> None:
    if count > most:
        raise Unsupported(f"{what} are {count}, the simulated device covers {most}")


def _aligned(v: Fields, *names: str) -> None:
    """Raise Hang for an address or a pitch off the alignment of atoms."""
    atom = v.features["memory_atom"]
    for name in names:
        if v[name] % atom:
            raise Hang(f"{name} is {v[name]:#x}, off its alignment of {atom}")


def _side(v: Fields, unit: str, side: str, shape: Shape, size: int) -> Cube:
    """Return the cube that a unit's SRC or DST registers place; Hang if it is off its alignment."""
    _aligned(v, *v.places(unit, side))
    return v.placed(unit, side, shape, size)
