"""What each bit of a buffer does: bits are flipped together, and the outputs that move are looked
at.

A bit of a weight or a bias is ``data``; one that moves what no weight or bias could is ``control``,
or ``length`` where it moves only what lies behind it in the stream; ``hang`` bits end the run.
Bits are ``dead`` as far as they were tried: each moved nothing alone, nor all of them at once, nor
random halves of them, with the inputs that were given and with all other bits as the buffer has
them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from npulab.analysis.scan.captures import impulses, opened, probes_of, reader
from npulab.analysis.scan.evidence import Evidence, Runner, Runs
from npulab.analysis.scan.looking import SATURATED, Looks, find_channels, find_hangs
from npulab.analysis.scan.records import KINDS, Probe, Scan
from npulab.analysis.scan.results import result
from npulab.analysis.scan.weights import Weights
from npulab.captures.capture import Capture
from npulab.captures.devices import Run
from npulab.captures.journal import Journal
from npulab.captures.registry import target
from npulab.quant.layers import Conv2D
from npulab.registers.commands import contradiction
from npulab.support.refuse import need, refuse_if, shortly

__all__ = ["KINDS", "Device", "Probe", "Runner", "Scan", "impulses", "scan", "scan_capture"]


class Device(Protocol):
    """What runs a capture."""

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
) -> Scan:
    """What each bit of ``data`` does, by ``run(data, given)``: the output array, or None for a
    hang.

    ``inputs`` are what ``run`` takes, or ``Probe``; the first is used most: it should show as many
    weights as possible, each in an output of its own (``impulses`` makes such images).  A bit that
    moves nothing with them is called dead, which says nothing of other inputs.  ``layer`` gives
    shapes, stride, padding and zero points: with it outputs are ``(H, W, C)``, inputs ``(H, W, C)``
    arrays or probes with an image, and data bits are mapped to their weight. Without it the last
    axis of an output counts channels where it has several axes.

    ``hang_cost`` is what a hang costs, in runs; past ``most_hangs`` the rest is not tried and is
    ``unknown``. ``votes`` repeats every run and takes the middle output.  ``checks`` runs at the
    end flip one random data bit of every weight at once; then the dead bits are flipped all at once
    with each input, and in random halves.  ``journal`` keeps every run: with the
    same one, runs that it has are not made again. ``progress`` is called with (bits that are told,
    bits).  The same seed and outputs give the same scan. Raises ValueError for bad input, a buffer
    that hangs as it is, a device that does not repeat itself, and a journal of another scan.

    >>> def run(data, x):
    ...     return np.array([data[0] % 16 + x])
    >>> scan(bytes([0x35, 0]), run, [0, 1]).counts
    {'data': 4, 'dead': 12}
    """
    refuse_if(not hang_cost >= 0, "hang_cost", hang_cost, "is 0 or more runs")
    if most_hangs is None:
        most = math.inf
    else:
        most = _count("most_hangs", most_hangs, 0)
    checks = _count("checks", checks, 0)
    probes = _probes(inputs, layer)
    known = Evidence(
        Runs(_data(data), run, probes, _count("votes", votes, 1), journal), layer, progress
    )
    weights = Weights(known)
    looks = Looks(known, weights, seed)
    for index in range(len(probes)):
        known.look(index)
    known.views.sort(key=lambda view: (view.saturated > SATURATED, -view.shown))
    known.refine(0, find_hangs(known, hang_cost, most))
    if layer is None:
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
    """What each bit of a buffer of a capture does, or with ``buffer=None`` of the words of a job.

    ``device.run(capture)`` runs a capture.  ``inputs`` are captures, or probes that are given a
    capture, which differ from this one in their input and in words that are not scanned; ``layer``
    then goes with them.  Left out, they are made from the layer that the capture lifts to: impulses
    and a random image, and where a buffer is scanned each through several output scales, from one
    accumulator unit a step to where nothing reaches the end of the type.  Of the lifted layer only
    shapes, stride, padding and zero points are used, and every channel is taken to read all input
    channels.  Words whose opcode names another block are no capture of this job, and count as a
    hang. ``options`` are those of ``scan``. Raises ValueError for a missing buffer or task, and for
    a layer that cannot be lifted or lowered.
    """
    need("scan_capture", capture, Capture, "is a Capture, as npulab.load gives")
    if not callable(getattr(device, "run", None)):
        raise TypeError(
            f"scan_capture: device: got {shortly(device)}, allowed is a device, as "
            "npulab.Simulated(), "
            "npulab.Command(program) or npulab.Manual() make"
        )
    if buffer is None and not 0 <= task < len(capture.jobs):
        raise ValueError(
            f"task: got {task}, capture {capture.name} has 0 to {len(capture.jobs) - 1}"
        )
    if buffer is not None and buffer not in capture.buffers:
        raise ValueError(
            f"buffer: got {buffer!r}, capture {capture.name} has "
            f"{', '.join(capture.buffers) or 'none'}"
        )
    if buffer is not None:
        data = capture.buffers[buffer]
    else:
        data = capture.jobs[task].words.astype("<u4").tobytes()
    if inputs is None:
        lifted = target(capture.target).lift(capture).layer
        asked = probes_of(capture, lifted, through=buffer is not None, seed=seed)
        layer = opened(lifted)
    else:
        asked = [one if isinstance(one, Probe) else Probe(one) for one in inputs]
    if layer is not None:
        read = reader(capture)
    else:
        read = lambda output: np.frombuffer(output, np.uint8)

    def run(changed: bytes, base: Capture) -> np.ndarray | None:
        if buffer is None:
            words = np.frombuffer(changed, "<u4")
            if contradiction(base.jobs[task].block, words, base.maps):
                return None
            trial = base.with_words(words, task)
        else:
            trial = base.with_buffers(**{buffer: changed})
        output = device.run(trial).output
        if output is None:
            return None
        return read(output)

    return scan(data, run, asked, layer, seed=seed, **options)


def _data(data: Any) -> bytes:
    right = isinstance(data, bytes | bytearray | memoryview)
    if not right or not len(data):
        if right:
            got = "an empty buffer"
        else:
            got = type(data).__name__
        raise ValueError(f"data: got {got}, allowed are one or more bytes")
    return bytes(data)


def _count(name: str, value: Any, least: int) -> int:
    if not hasattr(value, "__index__") or operator.index(value) < least:
        raise ValueError(f"{name}: got {value!r}, allowed is a whole number from {least}")
    return operator.index(value)


def _probes(inputs: Iterable[Any], layer: Conv2D | None) -> list[Probe]:
    out = []
    for one in inputs:
        if isinstance(one, Probe):
            probe = one
        else:
            probe = Probe(one)
        if layer is not None and probe.image is None and np.shape(probe.given) == layer.input_shape:
            probe = replace(
                probe, image=np.asarray(probe.given).astype(np.int64) - layer.input_q.zero_point
            )
        if (
            layer is not None
            and probe.image is not None
            and np.shape(probe.image) != layer.input_shape
        ):
            raise ValueError(
                f"inputs: got an image of shape {np.shape(probe.image)}, allowed is that of the "
                "layer's "
                f"input, {layer.input_shape}"
            )
        if probe.step is not None and not probe.step > 0:
            raise ValueError(
                f"inputs: got a step of {probe.step}, allowed is more than 0 accumulators an "
                "output step"
            )
        out.append(probe)
    refuse_if(not out, "inputs", "none", "is one or more")
    return out
