"""A recorded trace run again: its operations in order over its memory, and what its checks then
find."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from npulab.captures.target import Features, Hang, Range, Unsupported
from npulab.npus.kit import Capture, Job
from npulab.npus.nvdla import convolution, waiting
from npulab.npus.nvdla.facts import CHIPS, CONVOLUTION
from npulab.npus.nvdla.memory import Memory, checked
from npulab.npus.nvdla.recorded import register_checks
from npulab.npus.nvdla.registers import lut_of, units_of
from npulab.npus.nvdla.rules import MUTATIONS, RULES, Rules
from npulab.npus.nvdla.units import cdp, pdp, sdp
from npulab.npus.nvdla.units.fields import Fields

CONVOLVES = "CACC"
RUN = (*CONVOLUTION, "SDP_RDMA", "SDP", "PDP_RDMA", "PDP", "CDP_RDMA", "CDP")


def replay(capture: Capture, rules: Rules = RULES) -> tuple[Range, ...]:
    """What the checks of a trace find in memory when its operations have run: a ``Range`` each, in
    order.

    The checks are those of ``parameters["checks"]``; without one nothing runs, and what was read of
    registers is compared with what was written.
    Raises Unsupported, with register and value, for what the units do not cover; ValueError where
    an operation would hang or reaches memory that the trace does not set aside, with its number
    counted from 0 and the line that enabled it.
    """
    if not capture.parameters.get("checks"):
        return tuple(register_checks(capture))
    memory = Memory.of(capture)
    ranges = list(checked(capture, memory, 0))
    for task, job in enumerate(capture.jobs):
        if task:
            memory.load(capture, task)
        try:
            run(job, memory, CHIPS[capture.chip], rules)
        except Unsupported:
            raise
        except (Hang, ValueError) as error:
            line = capture.parameters["operations"][task]["line"] if "operations" in capture.parameters else None
            where = f"operation {task}" + f" (line {line})" * (line is not None)
            raise ValueError(f"capture {capture.name}, {where}: {error}") from error
        ranges += checked(capture, memory, task + 1)
    return tuple(ranges)


def run(job: Job, memory: Memory, features: Features, rules: Rules = RULES) -> None:
    """Run one operation, the units that its job enables, in memory.

    Raises Unsupported for a unit, or what a unit is asked for, that is not covered; Hang for what
    would never end.
    """
    units = set(units_of(job))
    if units - set(RUN):
        raise Unsupported(f"units: got {', '.join(sorted(units - set(RUN)))}, covered are {', '.join(RUN)}")
    values = Fields.of(job, features)
    waiting.for_units(values, units)
    tables = {unit: lut_of(job, unit) for unit in units & {"SDP", "CDP"}}
    work(units, values.values, tables, memory, features, rules)


def work(units: Collection[str], values: Mapping[str, int],
         tables: Mapping[str, tuple[np.ndarray, np.ndarray]],
         memory: Memory, features: Features, rules: Rules = RULES) -> None:
    """Let units that were started together work in memory: raw values by full name, tables by unit.

    Raises what the units raise.
    """
    accumulators = lanes = None
    if CONVOLVES in units:
        accumulators = convolution.run(values, features, memory, rules)
    if "SDP" in units:
        lanes = sdp.run(values, features, memory, tables["SDP"], accumulators, rules)
    if "PDP" in units:
        pdp.run(values, features, memory, lanes, rules)
    if "CDP" in units:
        cdp.run(values, features, memory, tables["CDP"], rules)


def mutated(capture: Capture, mutations: Mapping[str, Rules] = MUTATIONS) -> dict[str, bool]:
    """By the name of a changed rule: whether the trace stays equal under it, and so does not prove
    the rule.

    Raises as ``replay``.
    """
    return {name: not any(one.differing for one in replay(capture, rules)) for name, rules in mutations.items()}
