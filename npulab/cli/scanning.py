"""``npulab scan`` and ``layout``: the kind of each bit of a buffer, and where the elements of a
tensor lie in a buffer.
"""

from __future__ import annotations

import argparse
import hashlib
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

from npulab.captures import store
from npulab.captures.capture import Capture
from npulab.captures.devices import Simulated
from npulab.captures.journal import Journal
from npulab.cli.devices import (
    asked_device,
    controlled,
    refuse_person,
    wants_controls,
)
from npulab.cli.output import Done, show, tell_stopped
from npulab.cli.terminal import progress
from npulab.cli.workers import refuse_workers, workers_of
from npulab.support.files import read_bounded, write_files
from npulab.support.refuse import refuse_if
from npulab.support.text import plural

COEFFICIENTS = "coefficients"
OWN = "simulated: npulab's own device ran it, which proves nothing about the NPU"
MOST_BYTES = 2**28  # most bytes of a file with a tensor or a buffer


def _scan(options: argparse.Namespace) -> int:
    from npulab.analysis.scan import scan_capture

    capture = store.load(options.path, options.case)
    asked: Any = asked_device(options)
    refuse_person(options, asked)
    refuse_workers(options, asked)
    simulated = isinstance(asked, Simulated)
    if wants_controls(options):
        asked = controlled(options, asked, capture, None)
    buffer = options.buffer or COEFFICIENTS
    if options.task is not None:
        refuse_if(options.buffer, "--task", f"--buffer {buffer} too", "is one of the two options")
        buffer = None
    inputs = None
    if options.input is not None:
        inputs = [*map(store.load, options.input)]
    journal = None
    if options.resume is not None:
        journal = Journal(options.resume, _about(options, capture, buffer))
    try:
        with workers_of(options) as executor, progress("bit") as bar:
            found = scan_capture(
                capture,
                asked,
                buffer,
                task=options.task or 0,
                inputs=inputs,
                seed=options.seed,
                votes=options.votes,
                checks=options.checks,
                hang_cost=options.hang_cost,
                most_hangs=options.max_hangs,
                journal=journal,
                progress=bar,
                executor=executor,
            )
    except KeyboardInterrupt:
        tell_stopped(options.resume, "run")
        return 1
    if simulated:
        found = replace(found, notes=(OWN, *found.notes))
    show(options, found)
    return 0


def _about(options: argparse.Namespace, capture: Capture, buffer: str | None) -> dict[str, Any]:
    """Return the head of a scan's journal: every setting that decides which runs the scan makes."""
    data = capture.buffers.get(buffer or "", b"")
    if buffer is None:
        data = b""
        for job in capture.jobs:
            data += job.words.tobytes()
    return {
        "scan": buffer or f"words of task {options.task}",
        "capture": capture.name,
        "target": capture.target,
        "data": hashlib.sha256(data).hexdigest()[:16],
        "inputs": options.input or "made",
        "votes": options.votes,
        "checks": options.checks,
        "hang cost": options.hang_cost,
        "most hangs": options.max_hangs,
        "seed": options.seed,
    }


def _layout(options: argparse.Namespace) -> int:
    from npulab.layout import find_layout

    if options.markers is not None:
        return _markers(options)
    paths = [*map(Path, options.paths)]
    odd, count = len(paths) % 2, plural(len(paths), "file")
    refuse_if(odd, "layout", count, "are a tensor and its buffer, or several such pairs")
    tensors, buffers = [], []
    for tensor, buffer in zip(paths[::2], paths[1::2], strict=True):
        tensors.append(tensor_in(tensor))
        buffers.append(read_bounded(buffer, MOST_BYTES))
    found = find_layout(tensors, buffers, dtype=options.dtype)
    show(options, found)
    return int(not found.sure)


def tensor_in(path: Path) -> Any:
    """Return the array of a .npy file; raises ValueError for a file of another kind."""
    from npulab.captures.sweep import npy_array

    return npy_array(str(path), read_bounded(path, MOST_BYTES), "numpy.save writes")


def _markers(options: argparse.Namespace) -> int:
    """Write marker tensors: their values differ from element to element, so that each element can
    be found in a buffer.
    """
    import numpy as np

    from npulab.layout import markers

    shape = _shape(options.markers)
    dtype = options.dtype or "uint8"
    contents = {}
    tensors = markers(shape, dtype, captures=len(options.paths), unit=options.unit)
    for path, tensor in zip(options.paths, tensors, strict=True):
        data = io.BytesIO()
        np.lib.format.write_array(data, tensor, (1, 0), False)
        contents[Path(path)] = data.getvalue()
    write_files(contents)
    record = {"files": options.paths, "shape": shape, "dtype": dtype}
    show(options, Done(record, f"{', '.join(options.paths)}: markers {shape} {dtype}"))
    return 0


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise ValueError(
            f"--markers: got {text!r:.80}, allowed are sizes of axes, as 3,3,8,16"
        ) from None


COMMANDS = {"scan": _scan, "layout": _layout}
