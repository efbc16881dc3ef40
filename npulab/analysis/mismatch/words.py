"""Fields of the words of a capture, each with other values on the target's simulated device: which
value makes the device write the captured output.

The first values are those near the present one of fields that are not 0; a field that is 0 is
probably at its default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.compared import OUTPUT, values_of
from npulab.analysis.ignored import changeable
from npulab.captures.capture import Capture
from npulab.captures.registry import target
from npulab.captures.target import Hang
from npulab.registers.fields import Field

# A trial costs the bytes of the capture's buffers and TRIAL further bytes; all trials of a capture
# cost at most WORK bytes. That is about 2 s of CPU for captures that take 0.3 to 4 ms a trial.
WORK, TRIAL = 8_000_000, 6_000
# At least this many values are tried, however large the capture is.
FEWEST = 100
# The order of trials: NEAR and FAR values of fields that are not 0; for fields that are 0, USED and
# then UNUSED values.
NEAR, USED, FAR, UNUSED = range(4)
DEVICE = "simulated"


class Trial(NamedTuple):
    """A field with another value, as text, and the number of outputs that the simulated device
    writes wrongly with this value.
    """

    words: str
    mismatches: int


class Trials(NamedTuple):
    """The trials that ran, and how many of how many values were tried."""

    trials: list[Trial]
    done: int
    planned: int

    @property
    def said(self) -> str:
        """Text: how many of how many values were tried; "" if there were none to try."""
        if not self.planned:
            return ""
        return f"{self.done} of {self.planned} values of fields were tried on the {DEVICE} device"


class Value(NamedTuple):
    """A raw value to try for a field of a job, its place in the order of trials, and the capture
    that has it.
    """

    order: int
    words: str
    raw: int
    changed: Callable[[int], Capture]


def field_trials(
    capture: Capture,
    itemsize: int,
    progress: Callable[[Any], Iterable[Any]] = iter,
    answered: bool = False,
) -> Trials:
    """Return what the simulated device writes with other values of each field, addresses apart;
    nothing if the device cannot run the capture or writes its predicted output anyway.

    The number of values tried follows from the size of the buffers, so that it is the same on every
    machine. If the output is ``answered`` already, only values near the present ones are tried.

    ``itemsize`` are the bytes of an output. If the device writes the captured output from the words
    as they are, that is the only trial.
    """
    places = values_of(target(capture.target), capture)
    captured = np.frombuffer(capture.buffers[OUTPUT], np.uint8)
    if places is None:
        places = np.arange(len(captured) // itemsize * itemsize)
    usual = _written(lambda: capture)
    if usual is None:
        return Trials([], 0, 0)
    wrong = _differing(usual, captured, places, itemsize)
    if wrong == 0:
        words = f"the words as they are: what is lifted or emulated is wrong ({DEVICE})"
        return Trials([Trial(words, 0)], 1, 1)
    values = sorted(_values(capture), key=lambda value: value.order)
    found = []
    if answered:
        values = [value for value in values if value.order <= USED]
    tried = values[: _most(capture)]
    for value in progress(tried):
        output = _written(partial(value.changed, value.raw))
        if output is None or output == usual:
            continue
        count = _differing(output, captured, places, itemsize)
        found.append(Trial(f"{value.words} ({DEVICE})", count))
    return Trials(found, len(tried), len(values))


def _most(capture: Capture) -> int:
    """Return the most values of fields that are tried."""
    size = sum(map(len, capture.buffers.values()))
    return max(WORK // (TRIAL + size), FEWEST)


def _written(changed: Callable[[], Capture]) -> bytes | None:
    """Return the output that the simulated device writes for a capture; None if the device hangs or
    refuses the capture, or if ``changed`` can make none.
    """
    try:
        capture = changed()
        # with a wrong field the device may compute NaN or infinity
        with np.errstate(all="ignore"):
            output: bytes = target(capture.target).simulate(capture)
    except (Hang, ValueError, LookupError):
        return None
    return output


def _differing(output: bytes, captured: Array, places: Array, itemsize: int) -> int:
    """Return the number of elements in which two outputs differ; all elements, if the lengths of
    the outputs differ.
    """
    if len(output) != len(captured):
        return len(places) // itemsize
    wrong = np.frombuffer(output, np.uint8)[places] != captured[places]
    return int(wrong.reshape(-1, itemsize).any(1).sum())


def _values(capture: Capture) -> Iterator[Value]:
    for task, _, item, raw, changed in changeable(capture):
        if item.address or item.read_only or item.starts:
            continue
        name = _name(capture, task, item)
        for order, value in _others(item, raw):
            words = f"{name} {item.text(value)}, not {item.text(raw)}"
            yield Value(order, words, value, changed)


def _name(capture: Capture, task: int, item: Field) -> str:
    """Return a field's name as ``with_fields`` takes it; with its task, if there are several."""
    try:
        name = capture.maps[capture.jobs[task].block].key(item)
    except LookupError:  # the register is in no map, or in the job that starts this one
        name = item.name
    if len(capture.jobs) > 1:
        return f"task {task}: {name}"
    return name


def _others(item: Field, raw: int) -> Iterator[tuple[int, int]]:
    """Yield further raw values of a field, each with its place in the order of trials."""
    held = sum((2**piece.width - 1) * 2**piece.at for piece in item.pieces)
    codes = [code for code, _ in item.names]
    near, far = [raw + 1, raw - 1, *codes], [0, raw + 2, raw - 2, 2 * raw, raw // 2]
    for bit in range(held.bit_length()):
        far.append(raw ^ 2**bit)
    orders = (NEAR, FAR)
    if not raw:
        orders = (USED, UNUSED)
    seen = {raw}
    for order, values in zip(orders, (near, far), strict=True):
        for value in values:
            if value >= 0 and not value & ~held and value not in seen:
                seen.add(value)
                yield order, value
