"""How much of a recorded output is compared, and what equal outputs prove."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from npulab.captures.devices import SIMULATED_DEVICE
from npulab.quant.layers import Network
from npulab.support.text import plural

if TYPE_CHECKING:
    from npulab.captures.capture import Capture
    from npulab.captures.target import Lifted, Target

OUTPUT = "output"
STEP = "output:"  # with the number of a layer: the buffer of that layer's output
OF_OUTPUTS = re.compile(r"output(?:[._-]?\d+|:.*)?", re.DOTALL)  # names of buffers of outputs
MOST_NAMED = 4  # tasks, in a sentence
FRESH = (0, 0xFF)  # bytes of memory that nobody wrote
MOST_ALIGNED = 64  # bytes that tensors are aligned to, at most, if a target does not say
PAGE = 4096  # bytes that drivers allocate at once


def outputs_of(capture: Capture) -> list[str]:
    """Return the names of the buffers that hold outputs."""
    return [name for name in capture.buffers if OF_OUTPUTS.fullmatch(name)]


def without_outputs(capture: Capture) -> dict[str, bytes]:
    """Return the buffers that hold no outputs, by name."""
    own = set(outputs_of(capture))
    return {name: data for name, data in capture.buffers.items() if name not in own}


def bytes_unseen(capture: Capture) -> str:
    """Return a sentence that nothing of the recorded outputs was compared; "" if none are
    recorded."""
    names = outputs_of(capture)
    size = sum(len(capture.buffers[name]) for name in names)
    if names:
        return f"0 of {size} bytes of outputs were compared"
    return ""


def count_of(lifted: Lifted) -> int:
    """Return how many outputs a layer gives, or a network with all its outputs."""
    layer = lifted.layer
    if isinstance(layer, Network):
        return sum(math.prod(layer.layers[number].output_shape) for number in layer.outputs)
    return math.prod(layer.output_shape)


def extent_of(of: Target, capture: Capture, lifted: Lifted) -> range:
    """Return the bytes of the buffer ``output`` that the words say.

    The target states them, or else they are the bytes that ``lift`` reads and the fill after them,
    which is at most as long as the fill between them or as alignment needs.
    """
    if of.extent is not None:
        return of.extent(capture, lifted)
    data, output = capture.buffers[OUTPUT], cast("np.ndarray", lifted.output)
    if len(data) == output.nbytes:
        return range(len(data))
    places = _places_read(of, capture, output)
    if places is None:
        return range(len(data))
    between = int(np.diff(places).max(initial=1)) - 1
    aligned = min(math.gcd(len(data), 2**16), MOST_ALIGNED) - 1
    fill = max(between, aligned)
    return range(min(len(data), int(places[-1]) + 1 + fill))


def _places_read(of: Target, capture: Capture, output: np.ndarray) -> np.ndarray | None:
    """Return the bytes of the buffer ``output`` that are lifted, in ascending order: each byte of
    the buffer is set to its own number, digit by digit, and lifted.  None if that is not clear."""
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


def _lifted_bytes(of: Target, capture: Capture, data: np.ndarray) -> np.ndarray:
    """Return the bytes of the output that is lifted from other bytes of its buffer."""
    lifted = of.lift(replace(capture, buffers={**capture.buffers, OUTPUT: data.tobytes()})).output
    if lifted is None:
        raise ValueError(f"capture {capture.name}: got no output, allowed is one as before")
    return np.frombuffer(np.ascontiguousarray(lifted).tobytes(), np.uint8)


def cut_of(of: Target, capture: Capture, lifted: Lifted) -> str:
    """Return a sentence on what is missing at the end of the buffer ``output``; "" if it is
    whole."""
    data = capture.buffers.get(OUTPUT)
    if data is None or lifted.output is None:
        return ""
    extent = extent_of(of, capture, lifted)
    if extent.stop <= len(data):
        return ""
    return f"buffer {OUTPUT!r} has {len(data)} bytes, its jobs say {extent.stop}"


def fill_of(of: Target, capture: Capture, lifted: Lifted) -> int:
    """Return how many bytes inside the output's extent hold no element of it and are not all the
    same: something lies there, and it is not compared.  0 if the layout is not clear."""
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
    """Return a sentence for everything that was recorded of outputs, or of jobs, and is not
    compared.

    ``compared`` are the buffers that are compared.
    """
    out: list[str] = []
    data = capture.buffers.get(OUTPUT)
    if data is not None and OUTPUT in compared and lifted.output is not None:
        extent = extent_of(of, capture, lifted)
        rest = min(extent.start, len(data)) + rest_left(capture, extent.stop)
        if rest:
            out.append(
                f"{rest} of {len(data)} bytes of buffer {OUTPUT!r} are of no output that the jobs "
                "say"
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
    """Return a few numbers of tasks, for a sentence."""
    few = [str(task) for task in tasks[:MOST_NAMED]]
    if len(tasks) > MOST_NAMED:
        few.append("...")
    return ", ".join(few)


def rest_left(capture: Capture, end: int) -> int:
    """Return how many bytes of the buffer ``output`` follow its first ``end`` bytes; the rest of a
    driver's page does not count."""
    rest = max(len(capture.buffers[OUTPUT]) - end, 0)
    if rest and _fills_page(capture, end):
        return 0
    return rest


def _fills_page(capture: Capture, end: int) -> bool:
    """True if what follows the first ``end`` bytes of the buffer ``output`` is the rest of a page
    that a driver allocated: the buffer ends with a page, and the bytes of the rest are the same."""
    data = capture.buffers[OUTPUT]
    last = capture.addresses.get(OUTPUT, 0) + len(data)
    whole = last % PAGE == 0 or len(data) % PAGE == 0
    return whole and len(data) - end < PAGE and len(set(data[end:])) == 1


def layers_left(network: Network, numbers: Sequence[int]) -> str:
    """Return a sentence on the outputs of a network whose layers are not compared; "" if none."""
    absent = [str(number) for number in network.outputs if number not in numbers]
    if absent:
        return f"the network's output, of layer {' and '.join(absent)}, was not compared"
    return ""


def surely_written(capture: Capture) -> bool:
    """True if npulab's own device wrote the output, and nobody changed the capture since."""
    return capture.simulated and capture.tool == SIMULATED_DEVICE


def as_unwritten(
    capture: Capture, name: str, captured: np.ndarray, read: Callable[[Capture], np.ndarray | None]
) -> list[np.ndarray]:
    """Return what ``read`` makes of a buffer that no job wrote: full of each byte of ``FRESH``.

    Nothing if it is known that a job wrote the buffer, or if the ``captured`` elements differ:
    those of such a buffer are alike.
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


def _alike(values: np.ndarray) -> bool:
    """True if all elements have the same bits."""
    data = values.tobytes()
    return values.size > 0 and data == data[: values.itemsize] * values.size


def one_value(
    captured: np.ndarray, unwritten: Sequence[np.ndarray], zero_point: int | None
) -> bool:
    """True if outputs are what memory may hold that no job wrote: bit for bit one of ``unwritten``,
    or the zero point in each element."""
    if not captured.size:
        return False
    if zero_point is not None and np.all(captured == zero_point):
        return True
    bits = captured.tobytes()
    return any(fresh.dtype == captured.dtype and fresh.tobytes() == bits for fresh in unwritten)


def never_written(data: bytes) -> bool:
    """True if all bytes are the same byte of ``FRESH``, as in memory that no job wrote."""
    return len(set(data)) == 1 and data[0] in FRESH
