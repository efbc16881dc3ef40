"""The bits of the words from which the values that a decoder prints come, if nothing but the
decoder is known.

Every bit of the words gets a code of its own. Each call of the decoder sets every bit to one digit
of its code. So over all calls, each bit of a printed value spells the code of the bit that it
copies. All codes have the same number of ones, so the AND or the OR of several codes is no code: a
value bit that is the AND or the OR of several bits spells none.

``calls`` asks the decoder, ``search`` finds a reading for each field, ``reading`` is the arithmetic
of a reading, and ``rows`` makes a register map of the readings.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy import ndarray as Array

from npulab.analysis.probe.calls import (
    NOTHING,
    Decode,
    HeldBits,
    ask,
    bits_of,
    checked_words,
    same,
    short,
)
from npulab.analysis.probe.reading import Reading
from npulab.analysis.probe.rows import MapRows, map_rows
from npulab.analysis.probe.search import Codes, read_field
from npulab.captures.capture import ROWS_SHOWN
from npulab.registers.fields import WORD_BITS
from npulab.registers.map import RegisterMap
from npulab.registers.table import MOST_WORDS
from npulab.support.refuse import refuse_if

TABLE = ["field", "bits", "kind", "value", "false_positive_probability"]
# The fewest ``checks``: with three more digits there are enough codes for the bits of MOST_WORDS
# words.
FEWEST = 3
# The most ``checks``.
MOST = 32


def probe_layout(
    decode: Decode,
    words: int,
    *,
    checks: int = 4,
    seed: int = 0,
    base: Any = None,
    keep: Any = None,
) -> ProbedLayout:
    """Find the bits behind every value that a decoder prints, in ``ceil(log2(n + 1)) + 2 + checks``
    calls.

    ``decode`` gets ``(W,) uint32`` words and returns values by name: whole numbers, bools, floats
    or texts. It is called once with all n bits 0, once with all 1, and then with one digit of every
    bit's code in each call; ``checks`` (3 to 32) is the number of digits beyond those that
    distinguish n bits. It finds copies of bits in any order, inverted, signed, ``raw * a + b``,
    float32 patterns, fixed point, and values that are one of two texts; every other field is listed
    with a reason.

    Bits of the mask ``keep`` stay as in ``base`` (both ``(W,) uint32``, 0 if left out); the n bits
    are all others. Bits that the decoder needs, to print anything or to accept the words, can be
    held so. A call in which the decoder raises is lost; a decoder that may hang needs a time limit
    of its own. Raises ValueError for numbers out of range, and if too few calls were answered.

    >>> def decode(words):
    ...     return {"size": int(words[0] >> 4 & 15) + 1, "on": bool(words[1] & 8)}
    >>> probed = probe_layout(decode, 2)
    >>> probed
    ProbedLayout(2 fields found, 0 unverified, 13 calls, 64 bits)
    >>> probed.register_map().size.bits
    '0[7:4]'
    """
    refuse_if(not FEWEST <= checks <= MOST, "checks", checks, f"is {FEWEST} to {MOST}")
    held = held_bits(words, base, keep)
    count = len(held.free)
    codes = _codes(count, count.bit_length() + checks, np.random.default_rng(seed))
    ends = np.array([[0], [1]], np.uint8).repeat(count, axis=1)
    names = ["all zeros", "all ones", *(f"code {n + 1}" for n in range(len(codes)))]
    return probed_with(decode, np.concatenate([ends, codes]), names, held)


def held_bits(words: int, base: Any, keep: Any) -> HeldBits:
    """Return the masks ``base`` and ``keep`` as HeldBits, 0 for a mask that is None; raises
    ValueError for a mask of another size, and if no bit is left free.
    """
    refuse_if(not 1 <= words <= MOST_WORDS, "words", words, f"is 1 to {MOST_WORDS}")
    nothing = np.zeros(words, np.uint32)
    if base is None:
        base = nothing
    if keep is None:
        keep = nothing
    held = HeldBits(checked_words(base, words, "base"), checked_words(keep, words, "keep"))
    if not len(held.free):
        raise ValueError(
            f"keep: got a mask of all {WORD_BITS * words} bits, allowed is a mask that leaves out "
            "at least one"
        )
    return held


def _codes(count: int, length: int, rng: np.random.Generator) -> Array:
    """Return ``count`` different random codes of ``length`` digits, half of which (rounded down)
    are 1: ``(length, count)``, one code in each column.
    """
    codes = np.zeros((0, length), np.uint8)
    while len(codes) < count:
        drawn = (rng.random((count, length)).argsort(1) < length // 2).astype(np.uint8)
        codes = np.concatenate([codes, drawn])
        # drop repeated codes; the others stay in the order in which they were drawn
        firsts = np.unique(np.packbits(codes, axis=1), axis=0, return_index=True)[1]
        codes = codes[np.sort(firsts)]
    return np.ascontiguousarray(codes[:count].T)


def probed_with(
    decode: Decode, patterns: Array, names: Sequence[str], held: HeldBits
) -> ProbedLayout:
    """Call the decoder with each pattern ``(calls, n)`` of the free bits, and return the layout
    that its values show; raises ValueError if too few calls are answered.
    """
    answers, raised = ask(decode, patterns, names, held)
    most = len(names) - len(held.free).bit_length() - FEWEST
    if len(raised) > most:
        call, error = raised[0]
        raise ValueError(
            f"decode: got an error in {len(raised)} of {len(names)} calls, first {call}: {error}; "
            f"allowed are errors in {most} calls; base and keep hold bits that the decoder needs"
        )
    codes = Codes(patterns[[*answers]], held.free, zero=0 in answers)
    fields: dict[str, None] = {}
    for answer in answers.values():
        fields.update(dict.fromkeys(answer))
    readings: list[Reading] = []
    unread: list[tuple[str, str]] = []
    for name in fields:
        values = [answer.get(name, NOTHING) for answer in answers.values()]
        found = read_field(name, values, codes)
        if isinstance(found, Reading):
            readings.append(found)
        else:
            unread.append((name, found + codes.gate(values)))
    return ProbedLayout(
        tuple(readings), tuple(unread), len(names), held.base, held.keep, tuple(raised)
    )


@dataclass(frozen=True, eq=False)
class ProbedLayout:
    """The bits from which each printed field comes.

    ``readings`` predict every value that was printed; ``unread`` are (field, reason) for each field
    without a reading. ``raised`` are (call, error) for each call without an answer; ``calls``
    counts all calls. The bits ``keep`` ``(W,) uint32`` were as in ``base`` in every call, so
    nothing is known about them.
    """

    readings: tuple[Reading, ...]
    unread: tuple[tuple[str, str], ...]
    calls: int
    base: Array
    keep: Array
    raised: tuple[tuple[str, str], ...] = ()

    @property
    def words(self) -> int:
        return len(self.base)

    @property
    def table(self) -> pd.DataFrame:
        """One row for each field with a reading, in the order in which the decoder prints them,
        with the columns ``TABLE``.
        """
        rows = []
        for reading in self.readings:
            rows.append([getattr(reading, name) for name in TABLE])
        return pd.DataFrame(rows, columns=TABLE)

    @property
    def unverified(self) -> pd.DataFrame:
        """One row per field without a reading: field, reason."""
        return pd.DataFrame(self.unread, columns=["field", "reason"])

    def predict(self, words: Any) -> dict[str, Any]:
        """Return the fields in ``table`` as they would be printed for words ``(W,) uint32``."""
        bits = bits_of(checked_words(words, self.words, "words"))
        return {reading.field: reading.predict(bits) for reading in self.readings}

    def more(self, decode: Decode, calls: int = 8, *, seed: int = 1) -> ProbedLayout:
        """Return the layout after ``calls`` further calls with random bits.

        A field whose reading predicts another value than a call prints becomes unverified. For
        every other field, each answered call divides the false positive probability by 2 for each
        bit of the field.
        """
        refuse_if(calls < 1, "calls", calls, "is at least 1")
        held = HeldBits(self.base, self.keep)
        rng = np.random.default_rng([seed, self.calls])
        patterns = rng.integers(0, 2, (calls, len(held.free)), np.uint8)
        names = [f"further call {n + 1}" for n in range(calls)]
        answers, raised = ask(decode, patterns, names, held)
        refuted: dict[str, str] = {}
        for row, answer in answers.items():
            bits = held.filled(patterns[row])
            for reading in self.readings:
                got = answer.get(reading.field, NOTHING)
                predicted = reading.predict(bits)
                if not same(got, predicted):
                    reason = (
                        f"read as {reading.bits or 'a constant'}; {names[row]}: "
                        f"got {short(got)}, predicted {short(predicted)}"
                    )
                    refuted.setdefault(reading.field, reason)
        kept = []
        for reading in self.readings:
            if reading.field not in refuted:
                halvings = len(answers) * len(reading.source_bits)
                left = reading.false_positive_probability * 2.0**-halvings
                kept.append(replace(reading, false_positive_probability=left))
        return replace(
            self,
            readings=tuple(kept),
            unread=(*self.unread, *refuted.items()),
            calls=self.calls + calls,
            raised=(*self.raised, *raised),
        )

    def register_map(self, block: str = "printed", *, evidence: str = "guess") -> RegisterMap:
        """Return a map of the W words that decodes them as the decoder does; fields that it cannot
        hold are in ``left_out``.

        If fields share bits, the map has the field with the fewest bits, unless its false positive
        probability is above 0.01. A field that is printed as one of two texts is an enum of the
        values 0 and 1.
        """
        rows = []
        for row in self._mapped.rows:
            known = "unknown"
            if row["field"]:
                known = evidence
            rows.append({**row, "block": block, "evidence": known})
        return RegisterMap(rows, enums=self._mapped.enums)

    @property
    def left_out(self) -> pd.DataFrame:
        """Fields of ``table`` that ``register_map`` does not have: field, reason."""
        return pd.DataFrame(self._mapped.left_out, columns=["field", "reason"])

    @cached_property
    def _mapped(self) -> MapRows:
        return map_rows(self.readings, self.words)

    def __str__(self) -> str:
        free = WORD_BITS * self.words - int(np.bitwise_count(self.keep).sum())
        text = (
            f"{len(self.readings)} fields found, {len(self.unread)} unverified, "
            f"{self.calls} calls, {free} bits"
        )
        if self.raised:
            call, error = self.raised[0]
            text += f"; {len(self.raised)} calls raised, first {call}: {error}"
        return text

    def __repr__(self) -> str:
        return f"ProbedLayout({self})"

    def _repr_html_(self) -> str:
        text = f"<p>{html.escape(str(self))}</p>"
        for frame in (self.table, self.unverified):
            if len(frame):
                text += frame.to_html(index=False, max_rows=ROWS_SHOWN)
        return text
