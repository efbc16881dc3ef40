"""The rows of a register map for the readings of a decoder, and the fields that a map
cannot hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from npulab.analysis.probe.reading import Reading
from npulab.registers.fields import WORD_BITS, WORD_BYTES
from npulab.registers.meaning import Meaning
from npulab.registers.table import COLUMNS

# If fields share bits, the map prefers fields with at most this false positive probability.
DOUBTED = 0.01


@dataclass(frozen=True)
class MapRows:
    """The rows of a register map, its enums, and (field, reason) for each field left out."""

    rows: list[dict[str, Any]]
    enums: dict[str, dict[int, str]]
    left_out: list[tuple[str, str]]


def map_rows(readings: Sequence[Reading], words: int) -> MapRows:
    """Return the rows of a map of ``words`` words with a field for each reading that a map can
    hold.
    """
    reasons = _reasons(readings)
    rows: list[dict[str, Any]] = []
    enums: dict[str, dict[int, str]] = {}
    left_out = []
    for reading in readings:
        if reading.field in reasons:
            left_out.append((reading.field, reasons[reading.field]))
            continue
        rows += _field_rows(reading)
        if reading.names:
            enums[reading.enum] = dict(enumerate(reading.names))
    # a row without a name in the last word makes the map as long as the words
    end = WORD_BYTES * (words - 1)
    if all(row["offset"] < end for row in rows):
        rows.append({**dict.fromkeys(COLUMNS, ""), "offset": end, "lsb": 0, "width": WORD_BITS})
    return MapRows(rows, enums, left_out)


def _reasons(readings: Sequence[Reading]) -> dict[str, str]:
    """Return the reason for each field that is left out, by the name of the field."""
    owner: dict[int, str] = {}
    reasons: dict[str, str] = {}
    # If fields share bits, the field with the fewest bits stays, so that most names stay; but
    # fields that may be false positives come last.
    for reading in sorted(
        readings, key=lambda r: (r.false_positive_probability > DOUBTED, len(r.sources))
    ):
        reason = _refusal(reading)
        if not reason:
            owners = [owner[bit] for _, bit, _ in reading.sources if bit in owner]
            if owners:
                luck = reading.false_positive_probability
                reason = f"shares bits with {owners[0]}, false positive probability {luck:.2g}"
        if reason:
            reasons[reading.field] = reason
        else:
            owner.update(dict.fromkeys(reading.source_bits, reading.field))
    return reasons


def _refusal(reading: Reading) -> str:
    """Return the reason why no register map can hold a field; "" if a map can."""
    if not reading.sources:
        return f"is always {reading.value}"
    if reading.kind == "partly inverted":
        return "is partly inverted"
    if len(reading.source_bits) < len(reading.sources):
        return "copies a bit of the words twice"
    width = reading.sources[-1].at + 1
    if width > 2 * WORD_BITS:
        return f"has {width} bits, a field of a map at most {2 * WORD_BITS}"
    try:
        Meaning.parse(str(reading.meaning)).refuse_width(width)
    except ValueError as error:
        return str(error)
    return ""


def _field_rows(reading: Reading) -> list[dict[str, Any]]:
    """Return the rows of one field: one row for each run of bits."""
    runs = reading.runs
    split = len(runs) > 1 or runs[0][0].at > 0
    rows = []
    for run in runs:
        word, lsb = divmod(run[0].bit, WORD_BITS)
        row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
        row["offset"] = word * WORD_BYTES
        row["field"] = reading.field
        row["lsb"] = lsb
        row["width"] = len(run)
        row["value"] = str(reading.meaning)
        if split:
            row["at"] = run[0].at
        rows.append(row)
    return rows
