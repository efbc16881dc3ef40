"""The simulated device: from words and bytes to output bytes, job by job, in plain loops.

It shares the register tables with the rest and no arithmetic, so that its agreement with lift, emulation and the fast
units means something.
"""

from __future__ import annotations

from collections.abc import Mapping

from npulab.captures.capture import Capture
from npulab.captures.target import Hang, Unanswerable
from npulab.npus.nvdla import device_convolution, device_points, device_pooling
from npulab.npus.nvdla.device_cube import Cube, Values, values_of
from npulab.npus.nvdla.device_memory import Memory
from npulab.npus.nvdla.device_tables import loaded
from npulab.npus.nvdla.facts import CHIPS, maps

CONVOLUTION = ("CDMA", "CSC", "CMAC_A", "CACC")
RUN = (*CONVOLUTION, "CMAC_B", "SDP", "SDP_RDMA", "PDP", "PDP_RDMA", "CDP", "CDP_RDMA")


def simulate(capture: Capture) -> bytes:
    """The bytes that the capture's last job writes, from its base address to behind its last atom.

    Gaps between rows and surfaces are as memory has them.  Raises Hang, with the reason, for what would hang the
    hardware: units that wait for one another, sizes that disagree, an address off its alignment, memory that nobody
    wrote; Unanswerable for what is not covered (fp16, Winograd, compressed weights, batches, RUBIK and BDMA).
    """
    memory, (place, channels) = executed(capture)
    return memory.stretch(place.memory, place.base, place.span(channels))


def executed(capture: Capture) -> tuple[Memory, tuple[Cube, int]]:
    """Memory after the capture's jobs ran in order, and where the last one writes, with its channels.

    Raises as ``simulate``.
    """
    if capture.chip not in CHIPS:
        raise Unanswerable(f"chip: got {capture.chip!r}, allowed is one of {', '.join(CHIPS)}")
    if not capture.jobs:
        raise Unanswerable(f"capture {capture.name}: got no jobs, the simulated device runs one or more")
    registers, memory = capture.maps or maps(capture.chip), Memory(capture)
    last = None
    for task, job in enumerate(capture.jobs):
        if task:
            memory.before(task)
        if job.block not in registers:
            raise Unanswerable(f"block: got {job.block!r}, the simulated device runs {', '.join(registers)}")
        before = capture.jobs[:task + 1]
        tables = {unit: loaded(before, registers[job.block], unit) for unit in ("SDP", "CDP")}
        last = _run(values_of(job, registers[job.block]), CHIPS[capture.chip], memory, tables)
    assert last is not None
    return memory, last


def _run(v: Values, chip: Mapping[str, int], memory: Memory, tables: Mapping[str, device_points.Tables],
         ) -> tuple[Cube, int]:
    """One job; where it writes, and how many channels."""
    on = {name.partition(".")[0] for name, value in v.items() if name.endswith(".D_OP_ENABLE.OP_EN") and value}
    if on - {*RUN}:
        raise Unanswerable(f"the job starts {', '.join(sorted(on - {*RUN}))}, the simulated device runs "
                           f"{', '.join(RUN)}")
    flies = "SDP" in on and bool(v["SDP.D_FEATURE_MODE_CFG.FLYING_MODE"])
    to_pdp = "SDP" in on and bool(v["SDP.D_FEATURE_MODE_CFG.OUTPUT_DST"])
    if on & {*CONVOLUTION}:
        _needs(on, "a convolution", *CONVOLUTION, "SDP")
        if not flies:
            raise Hang("CACC waits for SDP, whose SDP.D_FEATURE_MODE_CFG.FLYING_MODE is 0")
    elif flies:
        raise Hang("SDP waits for CACC, which nobody started")
    if "CDP" in on or "CDP_RDMA" in on:
        _needs(on, "CDP", "CDP", "CDP_RDMA")
        place = device_pooling.normalised_to(v, chip)
        _reserve(memory, place)
        device_pooling.normalise(v, chip, memory, tables["CDP"])
        if not on - {"CDP", "CDP_RDMA"}:
            return place
    planes = None
    if "SDP" in on:
        _needs(on, "SDP from memory", *(() if flies else ("SDP_RDMA",)))
        if to_pdp:
            _needs(on, "SDP into PDP", "PDP")
        place = device_points.destination(v, chip)
        sums = device_convolution.accumulators(v, chip, memory) if flies else None
        if not to_pdp:
            _reserve(memory, place)
        planes = device_points.run(v, chip, memory, tables["SDP"], sums)
    if "PDP" in on:
        _needs(on, "PDP", "PDP", *(("PDP_RDMA",) if v["PDP.D_OPERATION_MODE_CFG.FLYING_MODE"] else ("SDP",)))
        place = device_pooling.pooled_to(v, chip)
        _reserve(memory, place)
        device_pooling.pool(v, chip, memory, planes)
    if not on & {"SDP", "PDP", "CDP"}:
        raise Hang(f"nothing is written: the job starts {', '.join(sorted(on)) or 'no unit'}")
    return place


def _needs(on: set[str], what: str, *units: str) -> None:
    missing = [unit for unit in units if unit not in on]
    if missing:
        raise Hang(f"{what} waits for {', '.join(missing)}, which nobody started")


def _reserve(memory: Memory, place: tuple[Cube, int]) -> None:
    at, channels = place
    memory.reserve(at.memory, at.base, at.span(channels))
