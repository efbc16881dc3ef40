"""The simulated device: refuses jobs that would hang, and runs the units of others on registers and
memory. ``replay`` runs a recorded trace again: its operations in order, then its checks of memory.

The device shares registers and memory with lift and lower, and no arithmetic with the emulation, so
that it is independent evidence if both agree.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from npulab.captures.target import Features
from npulab.npus.kit import Capture, Hang, Job, Range, Raw, Unsupported
from npulab.npus.nvdla import convolution, waiting
from npulab.npus.nvdla.facts import CHIPS, CONVOLUTION, FACTS, MOST_MEMORY, Lut, maps
from npulab.npus.nvdla.layouts import Cube
from npulab.npus.nvdla.memory import Memory, Outside, checked
from npulab.npus.nvdla.recorded import register_checks
from npulab.npus.nvdla.registers import lut_of, tables_after, units_of
from npulab.npus.nvdla.rules import MUTATIONS, RULES, Rules
from npulab.npus.nvdla.units import cdp, pdp, sdp
from npulab.npus.nvdla.units.fields import Fields

MOST_RESULT = 2**26  # most bytes of a result for which a capture sets no memory aside
NORMALISES = {"CDP", "CDP_RDMA"}
RUN = (*CONVOLUTION, "SDP_RDMA", "SDP", "PDP_RDMA", "PDP", "CDP_RDMA", "CDP")
Tables = Mapping[str, Lut]


def simulate(capture: Capture) -> bytes:
    """Return the bytes that the capture's last job writes, from its base address to the end of its
    last atom.

    Gaps between rows and surfaces hold what memory had. Raises Hang, with the reason, if the
    hardware would hang: units wait for one another, sizes disagree, an address is off its
    alignment, nobody wrote memory that is read; Unsupported for fp16, Winograd, compressed weights,
    batches, RUBIK and BDMA.
    """
    memory, place = executed(capture)
    if not memory.holds(place.memory, place.base, place.size):
        raise Hang(f"no job writes {place.memory} {place.base:#x} to {place.base + place.size:#x}")
    return memory.read(place.memory, place.base, place.size).tobytes()


def executed(capture: Capture) -> tuple[Memory, Cube]:
    """Return the memory after the capture's jobs ran in order, and the cube that the last job
    writes.

    Raises as ``simulate``.
    """
    # Elements of two bytes are computed in the same way on every chip.
    features = {**FACTS.features(capture.chip), "int16": 1}
    if not capture.jobs:
        raise Unsupported(
            f"capture {capture.name}: got no jobs, the simulated device runs one or more"
        )
    registers = capture.maps or maps(capture.chip)
    memory = Memory.of(capture, MOST_MEMORY)
    for task, job in enumerate(capture.jobs):
        if task:
            memory.load(capture, task)
        if job.block not in registers:
            raise Unsupported(
                f"block: got {job.block!r}, the simulated device runs {', '.join(registers)}"
            )
        done = capture.jobs[: task + 1]
        tables = {unit: tables_after(done, unit) for unit in ("SDP", "CDP")}
        v = Fields.of(job, features, registers[job.block])
        memory, place = _run(v, memory, tables, "memory" not in capture.parameters)
    return memory, place


def _run(v: Fields, memory: Memory, tables: Tables, anywhere: bool) -> tuple[Memory, Cube]:
    """Return memory after a job and where it writes; ``anywhere`` if no memory is set aside."""
    on = set()
    for name, value in v.values.items():
        if value and name.endswith(".D_OP_ENABLE.OP_EN"):
            on.add(name.partition(".")[0])
    if on - {*RUN}:
        raise Unsupported(
            f"the job starts {', '.join(sorted(on - {*RUN}))}, the simulated device runs "
            f"{', '.join(RUN)}"
        )
    flies = waiting.for_units(v, on)
    if on & NORMALISES:
        place = waiting.normalised_to(v)
        memory = _reserved(memory, place, anywhere)
        waiting.for_normalisation(v, memory, place)
        _work(on & NORMALISES, v, tables, memory)
        if not on - NORMALISES:
            return memory, place
    to_memory = "SDP" in on and not v["SDP.D_FEATURE_MODE_CFG.OUTPUT_DST"]
    handed = None
    if "SDP" in on:
        place = waiting.points_to(v)
        sums = None
        if flies:
            sums = waiting.for_convolution(v, memory)
        if to_memory:
            memory = _reserved(memory, place, anywhere)
        waiting.for_points(v, memory, place, sums)
        if to_memory:
            waiting.writes(memory, place, "SDP (DST)")
        else:
            handed = place
    if "PDP" in on:
        place = waiting.pooled_to(v)
        memory = _reserved(memory, place, anywhere)
        waiting.for_pooling(v, memory, place, handed)
    if not on & {"SDP", "PDP", "CDP"}:
        raise Hang(f"nothing is written: the job starts {', '.join(sorted(on)) or 'no unit'}")
    _work(on - NORMALISES, v, tables, memory)
    return memory, place


def _work(units: set[str], v: Fields, tables: Tables, memory: Memory) -> None:
    # CSC alone counts batches, and a half of the multipliers that is off decides nothing.
    values = dict(v.values)
    values["CDMA.D_BATCH_NUMBER.BATCHES"] = values["CACC.D_BATCH_NUMBER.BATCHES"] = 0
    if "CMAC_B" not in units:
        for name in ("CONV_MODE", "PROC_PRECISION"):
            values[f"CMAC_B.D_MISC_CFG.{name}"] = v[f"CSC.D_MISC_CFG.{name}"]
    try:
        work(units, values, tables, memory, v.features)
    except Outside as error:
        # Memory holds the channels of the last atom, but not the bytes that fill it.
        raise Hang(str(error)) from error


def _reserved(memory: Memory, place: Cube, anywhere: bool) -> Memory:
    """Return memory with room for a result, if the capture does not say what it sets aside.

    Raises Unsupported for more than 64 MiB, Hang for a result that begins or ends inside a buffer.
    """
    if not anywhere or memory.holds(place.memory, place.base, place.size):
        return memory
    if place.size > MOST_RESULT:
        raise Unsupported(
            f"the result at {place.base:#x} spans {place.size} bytes, covered are {MOST_RESULT}"
        )
    for _, start, data in memory.ranges:
        if start < place.base + place.size and place.base < start + len(data):
            raise Hang(
                f"the result at {place.base:#x}, {place.size} bytes, overlaps a buffer at "
                f"{start:#x}"
            )
    return memory.with_range(place.base, place.size)


def replay(capture: Capture, rules: Rules = RULES) -> tuple[Range, ...]:
    """Return the ``Range`` that each check of a trace finds in memory, in order, while its
    operations run.

    The checks are those of ``parameters["checks"]``; without checks nothing runs, and the registers
    that were read are compared with the registers that were written. Raises Unsupported, with
    register and value, for jobs that the units do not cover; ValueError if an operation would hang
    or reaches memory that the trace does not set aside, with its number counted from 0 and the line
    that enabled it.
    """
    if not capture.parameters.get("checks"):
        return tuple(register_checks(capture))
    memory = Memory.of(capture)
    ranges = list(checked(capture, memory, 0))
    for task, job in enumerate(capture.jobs):
        if task:
            memory.load(capture, task)
        try:
            _operate(job, memory, CHIPS[capture.chip], rules)
        except Unsupported:
            raise
        except (Hang, ValueError) as error:
            where = f"operation {task}"
            if "operations" in capture.parameters:
                where += f" (line {capture.parameters['operations'][task]['line']})"
            raise ValueError(f"capture {capture.name}, {where}: {error}") from error
        ranges += checked(capture, memory, task + 1)
    return tuple(ranges)


def _operate(job: Job, memory: Memory, features: Features, rules: Rules) -> None:
    """Run one operation, the units that its job enables, in memory.

    Raises Unsupported for a unit or a use of a unit that is not covered; Hang for an operation that
    would never end.
    """
    units = set(units_of(job))
    others = sorted(units - set(RUN))
    if others:
        raise Unsupported(f"units: got {', '.join(others)}, covered are {', '.join(RUN)}")
    values = Fields.of(job, features)
    waiting.for_units(values, units)
    tables = {unit: lut_of(job, unit) for unit in units & {"SDP", "CDP"}}
    work(units, values.values, tables, memory, features, rules)


def work(
    units: Collection[str],
    values: Raw,
    tables: Tables,
    memory: Memory,
    features: Features,
    rules: Rules = RULES,
) -> None:
    """Let units that were started together work in memory: raw values by full name, tables by unit.

    Raises what the units raise.
    """
    accumulators = lanes = None
    if "CACC" in units:
        accumulators = convolution.run(values, features, memory, rules)
    if "SDP" in units:
        lanes = sdp.run(values, features, memory, tables["SDP"], accumulators, rules)
    if "PDP" in units:
        pdp.run(values, features, memory, lanes, rules)
    if "CDP" in units:
        cdp.run(values, features, memory, tables["CDP"], rules)


def mutated(capture: Capture, mutations: Mapping[str, Rules] = MUTATIONS) -> dict[str, bool]:
    """Return, by the name of each changed rule, if the trace stays equal under it and so does not
    prove the rule.

    Raises as ``replay``.
    """
    equal = {}
    for name, rules in mutations.items():
        equal[name] = not any(found.differing for found in replay(capture, rules))
    return equal
