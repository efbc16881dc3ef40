"""The simulated device: runs the units on registers and memory, and says which job hangs.
``replay`` runs a recorded trace again: its operations in order, then its checks of memory.

On nv_small the units count as its RTL does (``device.py``), and the next job starts with the state
that a job leaves. On other chips, a job whose registers disagree hangs (``waiting.py``). That is a
guess, and so is every hang of CDP. The device shares the code for registers and memory with lift
and lower, but no arithmetic with the emulation: each is independent evidence for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

import numpy as np
from numpy import ndarray as Array

from npulab.captures.target import Features
from npulab.npus.kit import Capture, Hang, Job, Range, Raw, Unsupported
from npulab.npus.nvdla import convolution, waiting
from npulab.npus.nvdla.device import Units
from npulab.npus.nvdla.facts import ANY_MEMORY, CHIPS, CONVOLUTION, FACTS, MOST_MEMORY, Lut, maps
from npulab.npus.nvdla.layouts import Cube
from npulab.npus.nvdla.memory import Memory, Outside, checked
from npulab.npus.nvdla.recorded import register_checks
from npulab.npus.nvdla.registers import lut_of, tables_after, units_of
from npulab.npus.nvdla.rules import MUTATIONS, RULES, Rules
from npulab.npus.nvdla.units import cdp, pdp, pool_stream, sdp
from npulab.npus.nvdla.units.fields import Fields
from npulab.npus.nvdla.waits import endless
from npulab.npus.nvdla.writing import as_trace

OUTPUT = "output"
MOST_RESULT = 2**26  # most bytes of a result for which a capture sets no memory aside
NORMALISES = {"CDP", "CDP_RDMA"}
RUN = (*CONVOLUTION, "SDP_RDMA", "SDP", "PDP_RDMA", "PDP", "CDP_RDMA", "CDP")
Tables = Mapping[str, Lut]


def simulate(capture: Capture) -> bytes:
    """Return the bytes that the capture's last job leaves in memory: in the recorded output, else
    from its base address to the end of its last atom.

    Gaps between rows and surfaces hold what memory had, and memory that nobody set aside reads as
    0. Raises Hang, with the reason, if the hardware would hang: a unit waits for lines, kernels or
    atoms that never come, for a unit that nobody started, or for a memory that the chip lacks;
    Unsupported for a buffer that was not recorded, RUBIK and BDMA, and on chips other than nv_small
    for fp16, Winograd, compressed weights and batches.
    """
    return Staying(FACTS.features(capture.chip)).output(capture)


def executed(capture: Capture) -> tuple[Memory, Cube]:
    """Return the memory after a capture's jobs ran in order on a device after a reset, and the cube
    that the last job writes; raises as ``simulate``."""
    return Staying(FACTS.features(capture.chip)).executed(capture)


def stays_up(chip: str) -> Callable[[Capture], bytes]:
    """Return a function like ``simulate`` of one device of a chip that stays up; LookupError for an
    unknown chip."""
    return Staying(FACTS.features(chip)).output


class Staying:
    """A device that runs captures one after another without a reset: the state of the units that a
    capture leaves affects the next.

    For chips whose convolution buffer holds more than one atom in an entry this state is not known:
    each job finds their units as after a reset.
    """

    def __init__(self, features: Features) -> None:
        # Elements of two bytes are computed in the same way on every chip.
        self.features = {**features, "int16": 1}
        self.units = Units(features) if Units.known(features) else None
        self.hung: Hang | None = None

    def output(self, capture: Capture) -> bytes:
        """Run a capture and return what ``simulate`` returns; raises what it raises, and Hang for
        every capture after one that hung."""
        if self.hung:
            raise self.hung.with_traceback(None)
        try:
            memory, place = self.executed(capture)
            return _output(capture, memory, place)
        except Hang as hang:
            self.hung = Hang(f"the device hangs since capture {capture.name}: {hang}")
            self.hung.guessed = hang.guessed
            raise

    def executed(self, capture: Capture) -> tuple[Memory, Cube]:
        """Return the memory after the capture's jobs ran in order, and the cube that the last job
        writes; raises as ``simulate``."""
        if not capture.jobs:
            raise Unsupported(
                f"capture {capture.name}: got no jobs, the simulated device runs one or more"
            )
        registers = capture.maps or maps(capture.chip)
        memory = Memory.of(capture, MOST_MEMORY)
        anywhere = "memory" not in capture.parameters
        if anywhere:
            _refuse_unrecorded(capture)
        for task, job in enumerate(capture.jobs):
            if task:
                memory.load(capture, task)
            if job.block not in registers:
                raise Unsupported(
                    f"block: got {job.block!r}, the simulated device runs {', '.join(registers)}"
                )
            done = capture.jobs[: task + 1]
            v = Fields.of(job, self.features, registers[job.block])
            on = _started(v)
            if self.units is None or on & NORMALISES:
                tables = {unit: tables_after(done, unit) for unit in ("SDP", "CDP")}
                memory, place = _run(v, on, memory, tables, anywhere)
            else:
                try:
                    place, y = self.units.run(v, on, memory, partial(tables_after, done, "SDP"))
                except Hang as hang:
                    hang.guessed = False  # these units wait as those of the RTL do
                    raise
                memory = _set_aside(memory, capture, place, anywhere)
                _write(memory, place, y)
        return memory, place


def _output(capture: Capture, memory: Memory, place: Cube) -> bytes:
    """Return the output of a capture from memory: at its address and of the buffer's size if the
    capture has them, else the cube that the last job writes."""
    name, start, size = place.memory, place.base, place.size
    if "memory" not in capture.parameters and OUTPUT in capture.addresses:
        name, start = ANY_MEMORY, capture.addresses[OUTPUT]
        size = len(capture.buffers.get(OUTPUT, b"")) or size
    if not memory.holds(name, start, size):
        raise Hang(f"no job writes {name} {start:#x} to {start + size:#x}")
    return memory.read(name, start, size).tobytes()


def _refuse_unrecorded(capture: Capture) -> None:
    """Raise Unsupported for a buffer that has an address and was not recorded: its memory would be
    read as 0."""
    for name, address in capture.addresses.items():
        if name not in capture.buffers and name != OUTPUT:
            raise Unsupported(
                f"capture {capture.name}: buffer {name!r} at {address:#x} was not recorded, the "
                "simulated device needs its bytes"
            )


def _set_aside(memory: Memory, capture: Capture, place: Cube, anywhere: bool) -> Memory:
    """Return memory with room for a job's result and for the capture's output, if the capture does
    not say what it sets aside; what lies elsewhere is lost when it is written."""
    if not anywhere:
        return memory
    rooms = [(place.base, min(place.size, MOST_RESULT))]
    if OUTPUT in capture.addresses:
        rooms.insert(0, (capture.addresses[OUTPUT], len(capture.buffers.get(OUTPUT, b""))))
    for start, size in rooms:
        apart = all(
            start + size <= first or first + len(data) <= start for _, first, data in memory.ranges
        )
        if size and apart:
            memory = memory.with_range(start, size)
    return memory


def _write(memory: Memory, place: Cube, y: Array) -> None:
    """Write atoms ``(surfaces, height, width, lanes)`` to a cube in memory, in this order."""
    surface, row, column = np.ogrid[: y.shape[0], : y.shape[1], : y.shape[2]]
    addresses = place.base + surface * place.plane_pitch + row * place.row_pitch
    addresses = addresses + column * place.atom
    atoms = np.ascontiguousarray(y.astype(np.int8)).view(np.uint8).reshape(-1, place.atom)
    memory.put_atoms(place.memory, addresses.reshape(-1), atoms)


def _started(v: Fields) -> set[str]:
    """Return the units that a job starts; Unsupported for a unit that is not covered."""
    on = set()
    for name, value in v.values.items():
        if value and name.endswith(".D_OP_ENABLE.OP_EN"):
            on.add(name.partition(".")[0])
    _refuse_others(on)
    return on


def _refuse_others(units: set[str]) -> None:
    """Raise Unsupported for units that are not covered."""
    others = sorted(units - {*RUN})
    if others:
        raise Unsupported(f"units: got {', '.join(others)}, covered are {', '.join(RUN)}")


def _run(
    v: Fields, on: set[str], memory: Memory, tables: Tables, anywhere: bool
) -> tuple[Memory, Cube]:
    """Return memory after a job of the units ``on`` and where it writes; ``anywhere`` if no memory
    is set aside."""
    flies = waiting.for_units(v, on)
    if on & NORMALISES:
        place = waiting.written_by(v, "CDP")
        memory = _reserved(memory, place, anywhere)
        waiting.for_normalisation(v, memory, place)
        _work(on & NORMALISES, v, tables, memory)
        if not on - NORMALISES:
            return memory, place
    to_memory = "SDP" in on and not v["SDP.D_FEATURE_MODE_CFG.OUTPUT_DST"]
    handed = None
    if "SDP" in on:
        place = waiting.written_by(v, "SDP")
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
        place = waiting.written_by(v, "PDP")
        memory = _reserved(memory, place, anywhere)
        waiting.for_pooling(v, memory, place, handed)
    if not on & {"SDP", "PDP", "CDP"}:
        raise Hang(f"nothing is written: the job starts {', '.join(sorted(on)) or 'no unit'}")
    _work(on - NORMALISES, v, tables, memory)
    return memory, place


def _work(units: set[str], v: Fields, tables: Tables, memory: Memory) -> None:
    # Of the numbers of batches only CSC's matters, so the others are set to 0. If the second half
    # of the multipliers (CMAC_B) is off, its fields do not matter: they get the values of CSC.
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
    that were read are compared with the registers that were written. A poll that never ends is a
    range that differs. Raises Unsupported, with
    register and value, for jobs that the units do not cover; ValueError if an operation would hang
    or reaches memory that the trace does not set aside, with its number counted from 0 and the line
    that enabled it.
    """
    if not capture.parameters.get("checks"):
        return (*register_checks(capture), *endless(capture))
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
    return (*ranges, *endless(capture))


def _operate(job: Job, memory: Memory, features: Features, rules: Rules) -> None:
    """Run one operation, the units that its job enables, in memory.

    Raises Unsupported for a unit or a use of a unit that is not covered; Hang for an operation that
    would never end.
    """
    units = set(units_of(job))
    _refuse_others(units)
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
        _pool(values, features, memory, lanes, rules)
    if "CDP" in units:
        cdp.run(values, features, memory, tables["CDP"], rules)


def _pool(values: Raw, features: Features, memory: Memory, x: Array | None, rules: Rules) -> None:
    """Run PDP as plain windows; as the stream of its RTL if the stream gives other windows."""
    fields = Fields(values, features)
    if Units.known(features) and pool_stream.known(fields) and not pool_stream.plain(fields):
        pool_stream.run(fields, memory, x, rules)
    else:
        pdp.run(values, features, memory, x, rules)


def mutated(capture: Capture, mutations: Mapping[str, Rules] = MUTATIONS) -> dict[str, bool]:
    """Return, by the name of each changed rule, if a trace stays equal under it and so does not
    prove the rule; of a capture without rows of memory, its output.

    Raises as ``replay``.
    """
    if "memory" not in capture.parameters and OUTPUT in {*capture.buffers} & {*capture.addresses}:
        capture = as_trace(capture)
    equal = {}
    for name, rules in mutations.items():
        equal[name] = not any(found.differing for found in replay(capture, rules))
    return equal
