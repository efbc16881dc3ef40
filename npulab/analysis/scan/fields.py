"""A scan of words, or of records in a buffer, by field."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.scan.records import KINDS, Scan
from npulab.captures.capture import Capture
from npulab.registers.fields import WORD_BITS, Field
from npulab.support.late import pd
from npulab.support.refuse import refuse_if

BYTE_BITS = 8
# A record (None for words), a block, a field of it, and the bit at which the block's words begin.
Place = tuple[int | None, str, Field, int]


def scanned_fields(
    found: Scan, capture: Capture, buffer: str | None = None, task: int = 0
) -> pd.DataFrame:
    """Return a row for each field of the scanned bytes: record (None for words), block, register,
    field, and the number of its bits of each kind, such as ``dead`` or ``hang``.

    ``buffer`` and ``task`` are the arguments that ``scan_capture`` was given. Raises ValueError if
    the capture has another number of bits than the scan, LookupError for a buffer without records.
    """
    from npulab.registers.shown import Table

    rows = []
    for record, block, item, first in _places(found, capture, buffer, task):
        kinds = found.kinds[_bits(item, first)]
        counts = [int(np.count_nonzero(kinds == kind)) for kind in KINDS]
        rows.append((record, block, item.register, item.name, *counts))
    columns = ["record", "block", "register", "field", *KINDS]
    return Table(rows, columns=columns).astype({"record": "Int64"})


def _places(found: Scan, capture: Capture, buffer: str | None, task: int) -> Iterator[Place]:
    if buffer is None:
        job = capture.jobs[capture.task_of(task)]
        _refuse_size(found, WORD_BITS * len(job.words))
        for item in capture.maps[job.block]:
            yield None, item.block, item, 0
        return
    if buffer not in capture.records:
        raise LookupError(
            f"buffer: got {buffer!r}, the maps of capture {capture.name} describe records in "
            f"{', '.join(capture.records) or 'none'}"
        )
    held = capture.records[buffer]
    _refuse_size(found, BYTE_BITS * len(held.data))
    for number in range(len(held)):
        first = BYTE_BITS * (held.held.offset + number * held.held.stride)
        for item in held.fields.values():
            yield number, held.block, item, first


def _refuse_size(found: Scan, bits: int) -> None:
    refuse_if(len(found.kinds) != bits, "scan", f"{len(found.kinds)} bits", f"are {bits}")


def _bits(item: Field, first: int) -> Array:
    """Return the numbers of the bits of a field whose words begin at the bit ``first``."""
    runs = []
    for piece in item.pieces:
        start = first + WORD_BITS * piece.word + piece.lsb
        runs.append(np.arange(start, start + piece.width))
    return np.concatenate(runs)
