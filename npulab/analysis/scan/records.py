"""The records of a scan: its inputs and its result."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy import ndarray as Array

from npulab.support.answers import Answer, Part, Table
from npulab.support.text import Row, plural, rows_of

KINDS = ("data", "control", "length", "dead", "hang", "unknown")
PLACE = ("channel", "row", "column", "input_channel", "order", "sign")
# Columns of ``Scan.places``; columns ROW to ORDER (not included) are a weight's place in a channel.
CHANNEL, ROW, ORDER, SIGN = 0, 1, 4, 5
COLUMNS = ("first", "bits", "kind", "role", *PLACE[:SIGN], "toward", "sign", "certain")
NOWHERE = -1
NO_PLACE = (NOWHERE,) * 5 + (0,)
ROWS_SHOWN = 60


@dataclass(frozen=True, eq=False)
class Probe:
    """An input to scan with.

    ``run`` is called with ``given``. ``image`` is the input as ``(H, W, C)``, less its zero point.
    ``step`` is the number of accumulator units in one output step (None: not known). ``zero`` is
    the output if the accumulator is 0.
    """

    given: Any
    image: Array | None = None
    step: float | None = None
    zero: float = 0.0


@dataclass(frozen=True, eq=False)
class Scan(Answer):
    """The kind and the place of each of N bits. Bit i is bit ``i % 8``, counted from the lowest, of
    byte ``i // 8``.

    ``kinds`` ``(N,)`` are names of ``KINDS``; ``certain`` ``(N,) bool`` is True if the kind was
    measured, not inferred. A dead bit is never certain: ``tried`` says how far it was tried, and
    with how many ``inputs``. ``together`` are sets of bit numbers: flipped at once, the bits of a
    set move an output or hang the device; flipped alone, none of them does. Their kind is
    "control", not certain.

    ``roles`` ``(N,)`` are "weight", "bias" or "". ``places (N, 6) int`` are, for data bits:
    channel, row, column, input channel, order (a bit of order n counts ``2**n`` in its weight or
    bias), and sign (of the change of the output if the bit is set). A value that is not known is
    -1, a sign 0. A bias has -1 for row, column and input channel.

    ``runs`` and ``hangs`` count calls of the device, ``guessed`` the hangs that are only a guess of
    a simulated device; ``saturated`` is the share of outputs at the
    end of their type, over all inputs, and ``notes`` are sentences on what is not known.
    """

    kinds: Array
    certain: Array
    roles: Array
    places: Array
    runs: int
    hangs: int
    saturated: float = 0.0
    notes: tuple[str, ...] = ()
    inputs: int = 0
    together: tuple[tuple[int, ...], ...] = ()
    guessed: int = 0

    @property
    def tried(self) -> str:
        """A sentence that says how the dead bits were tried, and with how many inputs; "" if there
        are none."""
        if not np.any(self.kinds == "dead"):
            return ""
        inputs = plural(self.inputs, "input")
        how = "moved nothing alone, all at once or in random halves"
        return f"dead: {how}, with {inputs} and all other bits as they are"

    @property
    def counts(self) -> dict[str, int]:
        """The number of bits of each kind that occurs."""
        counts = {kind: int(np.count_nonzero(self.kinds == kind)) for kind in KINDS}
        return {kind: count for kind, count in counts.items() if count}

    @property
    def mapped(self) -> float:
        """The share (0 to 1) of the data bits whose weight or bias, and order in it, is known."""
        data = self.kinds == "data"
        if data.any():
            return float((self.places[data, ORDER] >= 0).mean())
        return 1.0

    @property
    def map(self) -> pd.DataFrame:
        """One row per data bit: bit, role, channel, row, column, input_channel, order, sign; a
        value that is not known is <NA>."""
        at = np.flatnonzero(self.kinds == "data")
        return self._known_places(at).assign(bit=at, role=self.roles[at])[["bit", "role", *PLACE]]

    @property
    def table(self) -> pd.DataFrame:
        """One row per run of bits of one kind and one weight or bias: first (number of the first
        bit), bits, kind, role, channel, row, column, input_channel, order (of the first bit),
        toward (+1 if the orders rise, -1 if they fall, else 0), sign (of the first bit),
        certain."""
        first, end, toward = np.array(list(self._stretches())).T
        frame = self._known_places(first).assign(
            first=first,
            bits=end - first,
            kind=self.kinds[first],
            role=self.roles[first],
            toward=toward,
            certain=self.certain[first],
        )
        return frame[list(COLUMNS)]

    def _known_places(self, bits: Array) -> pd.DataFrame:
        """The ``places`` of these bits as a DataFrame; a value that is not known is <NA>."""
        frame = pd.DataFrame(self.places[bits], columns=list(PLACE)).astype("Int64")
        return frame.mask(frame.lt(0) & (frame.columns != "sign"))

    def _stretches(self) -> Iterator[tuple[int, int, int]]:
        """Yield (first, end, toward) of each run of bits that form one row of ``table``; ``end`` is
        not included."""
        order = self.places[:, ORDER]
        known = order >= 0
        parts = (self.kinds, self.roles, self.certain, known, *self.places[:, :ORDER].T)
        alike = np.all([part[1:] == part[:-1] for part in parts], axis=0)
        first, toward = 0, 0
        for i, (same, step) in enumerate(zip(alike, np.diff(order).tolist(), strict=True), 1):
            if same and (not known[i] or (abs(step) == 1 and (toward == step or i == first + 1))):
                toward = step
            else:
                yield first, i, toward
                first, toward = i, 0
        yield first, len(order), toward

    def records(self) -> list[Row]:
        """One record of the whole scan, and one for each row of ``table``; ``what`` says which."""
        whole = {
            "what": "scan",
            **self.counts,
            "mapped": self.mapped,
            "runs": self.runs,
            "hangs": self.hangs,
            "guessed": self.guessed,
            "inputs": self.inputs,
            "saturated": self.saturated,
            "together": [list(bits) for bits in self.together],
            "tried": self.tried,
            "notes": list(self.notes),
        }
        return [whole, *({"what": "bits", **row} for row in self._rows())]

    @property
    def parts(self) -> list[Part]:
        return [repr(self), *self.notes, Table(self._rows(), COLUMNS)]

    def _rows(self) -> list[Row]:
        """The rows of ``table``, with None for what is not known."""
        frame = self.table.astype(object)
        return rows_of(frame.where(frame.notna(), None))

    def __repr__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.counts.items())
        hung = f"{self.hangs} hung"
        if self.guessed:
            hung += f" ({self.guessed} of them a guess)"
        parts = [
            f"{len(self.kinds)} bits: {kinds}",
            f"{self.mapped:.0%} of data mapped",
            f"{self.runs} runs, {hung}",
        ]
        unsure = int(np.count_nonzero(~self.certain & (self.kinds != "dead")))
        if unsure:
            parts.append(f"{unsure} not certain")
        if self.tried:
            parts.append(self.tried)
        return f"Scan({'; '.join(parts)})"

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        table = self.table.to_html(max_rows=ROWS_SHOWN, index=False)
        return f"<b>{html.escape(repr(self))}</b>{notes}{table}"
