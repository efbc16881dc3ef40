"""How much of a recorded output was compared, whether equal outputs prove that a job wrote them,
and the sentence that counts the verdicts of many captures.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy import ndarray as Array

from npulab.captures.devices import SIMULATED_DEVICE
from npulab.quant.layers import Network
from npulab.support.text import plural

if TYPE_CHECKING:
    from npulab.captures.capture import Capture
    from npulab.captures.target import Lifted, Target

OUTPUT = "output"
# The buffer with the output of layer 3 of a network is called ``output:3``.
STEP = "output:"
# A buffer holds an output if its whole name matches this.
OF_OUTPUTS = re.compile(r"output(?:[._-]?\d+|:.*)?", re.DOTALL)
# A sentence names at most this many tasks by number.
MOST_NAMED = 4
# Memory to which nobody wrote may be filled with one of these bytes.
FRESH = (0, 0xFF)
# If a target states no alignment of tensors, it is assumed to be at most this, in bytes.
MOST_ALIGNED = 64
# Drivers allocate memory in multiples of this, in bytes.
PAGE = 4096


def outputs_of(capture: Capture) -> list[str]:
    """Return the names of the buffers that hold outputs: ``output``, ``output:3``, ``output_1``,
    ..."""
    return [name for name in capture.buffers if OF_OUTPUTS.fullmatch(name)]


def without_outputs(capture: Capture) -> dict[str, bytes]:
    """Return the buffers that hold no outputs, as a dict by name."""
    own = set(outputs_of(capture))
    return {name: data for name, data in capture.buffers.items() if name not in own}


def bytes_unseen(capture: Capture) -> str:
    """Return a sentence that says that no recorded output was compared; "" if none is recorded."""
    names = outputs_of(capture)
    size = sum(len(capture.buffers[name]) for name in names)
    if names:
        return f"0 of {size} bytes of outputs were compared"
    return ""


def count_of(lifted: Lifted) -> int:
    """Return the number of output elements of a layer, or of all outputs of a network."""
    layer = lifted.layer
    if isinstance(layer, Network):
        return sum(math.prod(layer.layers[number].output_shape) for number in layer.outputs)
    return math.prod(layer.output_shape)


def extent_of(of: Target, capture: Capture, lifted: Lifted) -> range:
    """Return the range of bytes of the buffer ``output`` that the job writes, according to the
    words of the capture.

    If the target does not state the range, it is the bytes that ``lift`` reads and the fill after
    them. This fill is at most as long as the longest fill between elements, or as the alignment
    needs.
    """
    if of.extent is not None:
        return of.extent(capture, lifted)
    data, output = capture.buffers[OUTPUT], cast("Array", lifted.output)
    if len(data) == output.nbytes:
        return range(len(data))
    places = _places_read(of, capture, output)
    if places is None:
        return range(len(data))
    between = int(np.diff(places).max(initial=1)) - 1
    aligned = min(math.gcd(len(data), 2**16), MOST_ALIGNED) - 1
    fill = max(between, aligned)
    return range(min(len(data), int(places[-1]) + 1 + fill))


def values_of(of: Target, capture: Capture) -> Array | None:
    """Return, ascending, the places of the bytes of the buffer ``output`` that hold a value of the
    output; None if they cannot be told, or if a job is in no layer that is lifted.
    """
    try:
        output, covered = of.lift(capture).output, of.covers(capture)
    except (ValueError, LookupError):
        return None
    if output is None or not all(task in covered for task in range(len(capture.jobs))):
        return None
    if len(capture.buffers[OUTPUT]) == output.nbytes:
        return np.arange(output.nbytes)
    return _places_read(of, capture, output)


def _places_read(of: Target, capture: Capture, output: Array) -> Array | None:
    """Return, ascending, the places of the bytes of the buffer ``output`` that ``lift`` reads; None
    if they cannot be told.

    To find the places, outputs are lifted in which each byte holds a digit (base 256) of its own
    number, once for each digit.
    """
    size = len(capture.buffers[OUTPUT])
    numbers, places = np.arange(size), np.zeros(output.nbytes, np.int64)
    try:
        plain = _lifted_bytes(of, capture, np.zeros(size, np.uint8))
        for digit in range(max(1, math.ceil(math.log(size, 256)))):
            marked = _lifted_bytes(of, capture, (numbers // 256**digit % 256).astype(np.uint8))
            places += (marked ^ plain).astype(np.int64) * 256**digit
    except (ValueError, LookupError):
        return None
    found = np.unique(places)
    if len(found) == output.nbytes and found[-1] < size:
        return found
    return None


def _lifted_bytes(of: Target, capture: Capture, data: Array) -> Array:
    """Return the bytes of the output that is lifted if ``data`` are the bytes of the buffer
    ``output``; raises ValueError if no output is lifted.
    """
    lifted = of.lift(replace(capture, buffers={**capture.buffers, OUTPUT: data.tobytes()})).output
    if lifted is None:
        raise ValueError(
            f"capture {capture.name}: got a layer without an output, allowed is one with an output"
        )
    return np.frombuffer(np.ascontiguousarray(lifted).tobytes(), np.uint8)


def cut_of(of: Target, capture: Capture, lifted: Lifted) -> str:
    """Return a sentence that says by how much the buffer ``output`` is shorter than the job's
    output; "" if it is not shorter.
    """
    data = capture.buffers.get(OUTPUT)
    if data is None or lifted.output is None:
        return ""
    extent = extent_of(of, capture, lifted)
    if extent.stop <= len(data):
        return ""
    return f"buffer {OUTPUT!r} has {len(data)} bytes, its jobs say {extent.stop}"


def fill_of(of: Target, capture: Capture, lifted: Lifted) -> int:
    """Return the number of bytes inside the extent of the output that hold no element of it (fill).

    Return 0 if these bytes are all the same, or if their places are not known. If they differ, they
    may be data that is not compared.
    """
    data, output = capture.buffers.get(OUTPUT), lifted.output
    if data is None or output is None:
        return 0
    extent = extent_of(of, capture, lifted)
    stop = min(extent.stop, len(data))
    if stop - extent.start <= output.nbytes:
        return 0
    places = _places_read(of, capture, output)
    if places is None:
        return 0
    inside = np.zeros(len(data), bool)
    inside[extent.start : stop] = True
    inside[places] = False
    fill = np.frombuffer(data, np.uint8)[inside]
    if len(np.unique(fill)) > 1:
        return len(fill)
    return 0


def left_of(of: Target, capture: Capture, lifted: Lifted, compared: Collection[str]) -> list[str]:
    """Return a sentence for each recorded output, or part of one, that is not compared, and one for
    the jobs that are in no lifted layer.

    ``compared`` are the names of the buffers that are compared.
    """
    out: list[str] = []
    data = capture.buffers.get(OUTPUT)
    if data is not None and OUTPUT in compared and lifted.output is not None:
        extent = extent_of(of, capture, lifted)
        rest = min(extent.start, len(data)) + rest_left(capture, extent.stop)
        if rest:
            out.append(
                f"{rest} of {len(data)} bytes of buffer {OUTPUT!r} belong to no output that the "
                "jobs say"
            )
    for name in outputs_of(capture):
        if name not in compared:
            out.append(f"buffer {name!r} was not compared")
    covered = of.covers(capture)
    idle = [task for task in range(len(capture.jobs)) if task not in covered]
    if idle:
        tasks = plural(len(capture.jobs), "task")
        out.append(f"{len(idle)} of {tasks} are in no layer that was lifted ({numbered(idle)})")
    return out


def numbered(tasks: Sequence[int]) -> str:
    """Return numbers of tasks as text for a sentence; it names at most ``MOST_NAMED`` of them."""
    few = [str(task) for task in tasks[:MOST_NAMED]]
    if len(tasks) > MOST_NAMED:
        few.append("...")
    return ", ".join(few)


def rest_left(capture: Capture, end: int) -> int:
    """Return the number of bytes of the buffer ``output`` after its first ``end`` bytes; 0 if they
    only fill a driver's page.
    """
    rest = max(len(capture.buffers[OUTPUT]) - end, 0)
    if rest and _fills_page(capture, end):
        return 0
    return rest


def _fills_page(capture: Capture, end: int) -> bool:
    """True if the bytes after the first ``end`` bytes of the buffer ``output`` only fill the page
    that a driver allocated: the buffer ends at the end of a page, and these bytes are all the same.
    """
    data = capture.buffers[OUTPUT]
    last = capture.addresses.get(OUTPUT, 0) + len(data)
    whole = last % PAGE == 0 or len(data) % PAGE == 0
    return whole and len(data) - end < PAGE and len(set(data[end:])) == 1


def layers_left(network: Network, numbers: Sequence[int]) -> str:
    """Return a sentence on the outputs of a network that were not compared; "" if all were
    compared.
    """
    absent = [str(number) for number in network.outputs if number not in numbers]
    if absent:
        return f"the network's output, of layer {' and '.join(absent)}, was not compared"
    return ""


def surely_written(capture: Capture) -> bool:
    """True if npulab's simulated device wrote the output, and the capture was not changed since."""
    return capture.simulated and capture.tool == SIMULATED_DEVICE


def as_unwritten(
    capture: Capture, name: str, captured: Array, read: Callable[[Capture], Array | None]
) -> list[Array]:
    """Return the arrays that ``read`` would return if no job had written the buffer: for each byte
    of ``FRESH``, what it reads from a buffer filled with this byte.

    The list is empty if it is known that a job wrote the buffer, or if the ``captured`` elements
    differ from each other, because elements of an unwritten buffer are all alike.
    """
    if surely_written(capture) or not _alike(captured):
        return []
    out = []
    size = len(capture.buffers.get(name, b""))
    for byte in FRESH:
        memory = replace(capture, buffers={**capture.buffers, name: bytes([byte]) * size})
        try:
            found = read(memory)
        except (ValueError, LookupError):
            continue
        if found is not None:
            out.append(found)
    return out


def _alike(values: Array) -> bool:
    """True if all elements have the same bits."""
    data = values.tobytes()
    return values.size > 0 and data == data[: values.itemsize] * values.size


def one_value(captured: Array, unwritten: Sequence[Array], zero_point: int | None) -> bool:
    """True if the outputs may be memory to which no job wrote: they equal one of ``unwritten`` in
    every bit, or every element is the zero point.
    """
    if not captured.size:
        return False
    if zero_point is not None and np.all(captured == zero_point):
        return True
    bits = captured.tobytes()
    return any(fresh.dtype == captured.dtype and fresh.tobytes() == bits for fresh in unwritten)


def never_written(data: bytes) -> bool:
    """True if all bytes are equal to one byte of ``FRESH``, as in memory that no job wrote."""
    return len(set(data)) == 1 and data[0] in FRESH


def counted(
    results: Sequence[Any], sides: str, differ: tuple[str, str], others: Mapping[str, int]
) -> str:
    """Return a sentence that counts results by verdict: the number of captures, the number that
    differ, and for each text of ``others`` the number that is given with it.

    ``differ`` are the verbs for one and for several captures; ``sides`` says what was compared.
    """
    bad = sum(not result.ok for result in results)
    text = f"{plural(len(results), 'capture')}{sides}, {bad} {differ[bad != 1]}"
    for said, count in others.items():
        if count:
            text += f", {count} {said}"
    verdicts = []
    for verdict, count in Counter(result.verdict for result in results).items():
        verdicts.append(f"{count} {verdict}")
    if verdicts:
        text += f" ({', '.join(verdicts)})"
    return text
