"""The kind of each bit of a buffer, found by flipping many bits at once and comparing the outputs.

A bit "moves" an output if the output changes when the bit is flipped. A bit of a weight or a bias
is ``data``. A bit that moves outputs that no single weight or bias could move is ``control``, or
``length`` if it moves only outputs of weights after it in the stream. A bit whose flip makes the
run hang is ``hang``.

A ``dead`` bit moved nothing in any trial: not alone, not with all dead bits at once, and not with
random halves of the dead bits. All trials had the given inputs, and all other bits kept their
values in the buffer.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from npulab.analysis.scan.captures import impulses, opened, probes_of, reader
from npulab.analysis.scan.evidence import Asked, Evidence, Runner, Runs
from npulab.analysis.scan.fields import scanned_fields
from npulab.analysis.scan.looking import SATURATED, Looks, find_channels, find_hangs
from npulab.analysis.scan.records import KINDS, Probe, Scan
from npulab.analysis.scan.results import result
from npulab.analysis.scan.weights import Weights
from npulab.captures.capture import Capture
from npulab.captures.controlled import (
    Controlled,
    TakenBack,
    Unusable,
    controlled_of,
    refuse_workers,
)
from npulab.captures.journal import Guessed, Journal
from npulab.captures.registry import target
from npulab.captures.target import Run
from npulab.quant.layers import Conv2D
from npulab.registers.commands import contradiction
from npulab.support.executors import Pool, Workers
from npulab.support.refuse import need, refuse_if, shortly

__all__ = [
    "KINDS",
    "Device",
    "Probe",
    "Runner",
    "Scan",
    "impulses",
    "scan",
    "scan_capture",
    "scanned_fields",
]


class Device(Protocol):
    """An object that runs a capture and returns the run."""

    def run(self, capture: Capture) -> Run: ...


def scan(
    data: bytes,
    run: Runner,
    inputs: Iterable[Any],
    layer: Conv2D | None = None,
    *,
    seed: int = 0,
    hang_cost: float = 10.0,
    most_hangs: int | None = None,
    votes: int = 1,
    checks: int = 4,
    journal: Journal | None = None,
    progress: Callable[[int, int], object] | None = None,
    facts: Callable[[], dict[str, Any]] = dict,
    executor: Workers = None,
    read: Callable[[Any], np.ndarray] = np.array,
) -> Scan:
    """Find the kind of each bit of ``data``, by calls of ``run(data, given)``, which returns the
    array of outputs, None for a hang, or ``Guessed`` for a hang that a simulated device guesses.

    ``inputs`` are the values of ``given``, or each is a ``Probe``. The first input is used most: it
    should show as many weights as possible, each in an output of its own (``impulses`` makes such
    images). A bit that moves nothing with any input is called dead; another input may still show
    it. ``layer`` states shapes, stride, padding and zero points: with it outputs are ``(H, W, C)``,
    inputs are ``(H, W, C)`` arrays or probes with an image, and data bits are mapped to their
    weight. Without it the last axis of an output is taken for the channels, if there are several
    axes.

    A hang costs as much as ``hang_cost`` runs; after ``most_hangs`` hangs the bits not tried yet
    are ``unknown``. ``votes`` is how often each run is made; the middle output counts. The last
    runs are ``checks`` runs that flip a random half of the bits of weights at once, and then runs
    that flip all dead bits at once with each input, and random halves of them. ``journal`` keeps
    every run: runs that it already has are not made again; ``facts()`` gives it further data of the
    last run. ``progress`` is called with (bits whose kind is known, bits). Equal seeds and outputs
    give equal scans.

    ``executor`` (``Pool`` in ``npulab.support.executors``) makes runs that do not depend on each
    other at the same time; runs, journal and answer are the same if an output does not depend on
    the runs before it. ``read`` turns what a run gives into the array of outputs, in this process.

    Raises ValueError for bad input, a buffer that hangs as it is, a device that does not repeat
    itself, and a journal of another scan.

    >>> def run(data, x):
    ...     return np.array([data[0] % 16 + x])
    >>> scan(bytes([0x35, 0]), run, [0, 1]).counts
    {'data': 4, 'dead': 12}
    """
    refuse_if(not hang_cost >= 0, "hang_cost", hang_cost, "is 0 or more runs")
    most = math.inf
    if most_hangs is not None:
        most = _count("most_hangs", most_hangs, 0)
    checks = _count("checks", checks, 0)
    probes = _probes(inputs, layer)
    runs = Runs(_data(data), run, probes, _count("votes", votes, 1), journal, facts)
    runs.read = read
    with ExitStack() as stack:
        if executor is not None:
            runs.pool = stack.enter_context(Pool(partial(_ran, run), executor, what="run"))
        return _scan_of(Evidence(runs, layer, progress), seed, hang_cost, most, checks)


def _ran(run: Runner, asked: Asked) -> Any:
    return run(*asked)


def _scan_of(known: Evidence, seed: int, hang_cost: float, most_hangs: float, checks: int) -> Scan:
    weights = Weights(known)
    looks = Looks(known, weights, seed)
    for index in range(len(known.runs.probes)):
        known.look(index)
    known.views.sort(key=lambda view: (view.saturated > SATURATED, -view.shown))
    known.refine(0, find_hangs(known, hang_cost, most_hangs))
    if known.layer is None:
        find_channels(known)
    looks.again(0)
    looks.tell(("bias",), coarser=True)
    looks.around()
    looks.tell()
    looks.rest()
    looks.check(checks)
    known.repeat(known.views[0])
    looks.together()
    return result(known, weights)


def scan_capture(
    capture: Capture,
    device: Device,
    buffer: str | None = "coefficients",
    *,
    task: int = 0,
    inputs: Iterable[Capture | Probe] | None = None,
    layer: Conv2D | None = None,
    seed: int = 0,
    **options: Any,
) -> Scan:
    """Find the kind of each bit of a buffer of a capture, or with ``buffer=None`` of the words of
    its job ``task``.

    ``device.run(capture)`` runs a capture. ``inputs`` are captures, or probes whose ``given`` is a
    capture; they differ from ``capture`` in their input, and in words that are not scanned;
    ``layer`` is then the layer of these inputs. Without ``inputs`` they are made from the layer
    that the capture lifts to: impulses and a random image. If the maps describe no records in the
    scanned buffer, each of these inputs is run with several output scales: from an output step of
    one accumulator unit to a step at which no output reaches the end of its type. Only shapes,
    stride, padding and zero points of the lifted layer are used, and every output channel is taken
    to read all input channels. Words whose opcode names another block are not run and count as a
    hang; a run counts as a hang, too, if a ``Probed`` device cannot run its known-good capture
    afterwards. ``options`` are those of ``scan``; ``scanned_fields`` sorts a scan of words or
    records by field.

    Runs that a device with controls (``captures.controlled``) takes back are made again. A run that
    was not executed or was refused counts as a hang; a bit that is refused if flipped alone is
    ``unknown``.

    Raises ValueError for a missing buffer or task, and for a layer that cannot be lifted or
    lowered; Unusable, an OSError, if controls do not hold any more.
    """
    need("scan_capture", capture, Capture, "is a Capture, as npulab.load gives")
    if not callable(getattr(device, "run", None)):
        raise TypeError(
            f"scan_capture: device: got {shortly(device)}, allowed is a device, as "
            "npulab.Simulated(), npulab.Command(program) or npulab.Manual() make"
        )
    data = _scanned(capture, buffer, task)
    if inputs is None:
        probes, layer = _made_probes(capture, buffer, seed)
    else:
        probes = [given if isinstance(given, Probe) else Probe(given) for given in inputs]
    read = reader(capture)
    if layer is None:
        read = partial(np.frombuffer, dtype=np.uint8)

    run = _Runner(device, buffer, task)
    controlled = controlled_of(device)
    if controlled is None:
        return scan(data, run, probes, layer, seed=seed, read=read, **options)
    refuse_workers(device, options.get("executor"))
    found = _with_controls(controlled, data, run, probes, layer, seed=seed, read=read, **options)
    return _without_refused(found, data, partial(_why_refused, run, capture))


@dataclass(frozen=True)
class _Runner:
    """Runs captures with changed bytes of a buffer, or of words, on a device; workers can
    load it.
    """

    device: Device
    buffer: str | None
    task: int

    def __call__(self, changed: bytes, base: Capture) -> Any:
        """The bytes of the output; None for a hang, or ``Guessed`` for a hang that is only
        a guess.
        """
        trial = self.trial(changed, base)
        if trial is None:
            return None
        return _output_of(self.device.run(trial))

    def trial(self, changed: bytes, base: Capture) -> Capture | None:
        """The capture with changed bytes; None if its words would be those of another block."""
        if self.buffer is not None:
            return base.with_buffers(**{self.buffer: changed})
        words = np.frombuffer(changed, "<u4")
        if contradiction(base.jobs[self.task].block, words, base.maps):
            return None
        return base.with_words(words, self.task)


def _made_probes(
    capture: Capture, buffer: str | None, seed: int
) -> tuple[list[Probe], Conv2D | None]:
    """Inputs that are made from the layer that a capture lifts to, and that layer."""
    lifted = target(capture.target).lift(capture).layer
    # records control the units, as words do: they hold no weights that a scale would show
    through = buffer is not None and buffer not in capture.records
    return probes_of(capture, lifted, through=through, seed=seed), opened(lifted)


def _with_controls(
    device: Controlled,
    data: bytes,
    run: Runner,
    probes: list[Probe],
    layer: Conv2D | None,
    journal: Journal | None = None,
    **options: Any,
) -> Scan:
    """Scan with a device with controls. If it takes runs back, the scan begins again, with a
    journal of the runs that still count.
    """
    kept = journal
    if kept is None:
        kept = Journal()
    counted: list[bool] = []  # for each run of the device: True if it gave an answer

    def noted(changed: bytes, base: Any) -> Any:
        before = device.answers
        output = run(changed, base)
        counted.append(device.answers > before)
        return output

    while True:
        try:
            found = scan(
                data, noted, probes, layer, journal=kept, facts=device.facts_now, **options
            )
            device.finish()
        except (TakenBack, Unusable) as error:
            _take_back(kept, counted, error.count)
            if isinstance(error, Unusable):
                raise
        else:
            return replace(found, notes=(*found.notes, device.sentence))


def _take_back(journal: Journal, counted: list[bool], count: int) -> None:
    """Remove the last runs from a journal, until ``count`` of the removed runs had an answer (True
    in ``counted``).
    """
    while count and counted:
        count -= counted.pop()
        journal.undo()


def _why_refused(run: _Runner, base: Capture, changed: bytes) -> str:
    """The reason for which a device with controls would not run a capture with changed bytes; "" if
    it would.
    """
    trial = run.trial(changed, base)
    controlled = controlled_of(run.device)
    if trial is None or controlled is None:
        return ""
    return controlled.never.why(trial)


def _without_refused(found: Scan, data: bytes, why: Callable[[bytes], str]) -> Scan:
    """The scan with bits of kind ``hang`` as ``unknown`` if ``why`` refuses to flip them alone."""
    kinds, certain = found.kinds.copy(), found.certain.copy()
    # a refused run counted as a hang, so that the scan avoids its bits
    for bit in np.flatnonzero(kinds == "hang").tolist():
        changed = bytearray(data)
        changed[bit // 8] ^= 2 ** (bit % 8)
        if why(bytes(changed)):
            kinds[bit], certain[bit] = "unknown", False
    return replace(found, kinds=kinds, certain=certain)


def _output_of(run: Run) -> bytes | Guessed | None:
    """The output of a run; None for a hang, or ``Guessed`` for a hang that is only a guess."""
    if run.guessed:
        return Guessed(run.outcome)
    if run.output is None or run.spoiled:
        return None
    return run.output


def _scanned(capture: Capture, buffer: str | None, task: int) -> bytes:
    """The bytes to scan: those of a buffer or, without a buffer, of the words of a job; raises
    ValueError if the capture does not have it.
    """
    if buffer is None:
        if not 0 <= task < len(capture.jobs):
            raise ValueError(
                f"task: got {task}, capture {capture.name} has 0 to {len(capture.jobs) - 1}"
            )
        return capture.jobs[task].words.astype("<u4").tobytes()
    if buffer not in capture.buffers:
        raise ValueError(
            f"buffer: got {buffer!r}, capture {capture.name} has "
            f"{', '.join(capture.buffers) or 'none'}"
        )
    return capture.buffers[buffer]


def _data(data: Any) -> bytes:
    got = type(data).__name__
    if isinstance(data, bytes | bytearray | memoryview):
        if len(data):
            return bytes(data)
        got = "an empty buffer"
    raise ValueError(f"data: got {got}, allowed are one or more bytes")


def _count(name: str, value: Any, least: int) -> int:
    if not hasattr(value, "__index__") or operator.index(value) < least:
        raise ValueError(f"{name}: got {value!r}, allowed is a whole number from {least}")
    return operator.index(value)


def _probes(inputs: Iterable[Any], layer: Conv2D | None) -> list[Probe]:
    """The inputs as probes; an input with the shape of the layer's input becomes the image of its
    probe. Raises ValueError for an image or a step that does not fit, and for no input."""
    probes = []
    for given in inputs:
        probe = given
        if not isinstance(given, Probe):
            probe = Probe(given)
        if layer is not None:
            if probe.image is None and np.shape(probe.given) == layer.input_shape:
                image = np.asarray(probe.given).astype(np.int64) - layer.input_q.zero_point
                probe = replace(probe, image=image)
            if probe.image is not None and np.shape(probe.image) != layer.input_shape:
                raise ValueError(
                    f"inputs: got an image of shape {np.shape(probe.image)}, allowed is that of "
                    f"the layer's input, {layer.input_shape}"
                )
        if probe.step is not None and not probe.step > 0:
            raise ValueError(
                f"inputs: got a step of {probe.step}, allowed is more than 0 accumulators an "
                "output step"
            )
        probes.append(probe)
    refuse_if(not probes, "inputs", "none", "is one or more")
    return probes
