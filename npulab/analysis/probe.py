"""Where something decodes words for us: which bits each value that it prints comes from.

Every bit of the words gets a code of its own, one digit a call, so that each bit of a printed value
spells the bit it copies.  All codes have the same number of ones, so none lies inside another: a
value bit that is the AND or the OR of several bits spells no code, however it is gated.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from npulab.captures.capture import ROWS_SHOWN
from npulab.registers.fields import WORD_BITS, WORD_BYTES
from npulab.registers.map import RegisterMap
from npulab.registers.meaning import Meaning
from npulab.registers.table import COLUMNS, MOST_WORDS
from npulab.support.refuse import refuse_if

Decode = Callable[[np.ndarray], Mapping[str, Any]]
TABLE = ["field", "bits", "kind", "value", "false_positive_probability"]
FEWEST, MOST = (
    3,
    32,
)  # checks: with three there are codes enough for any number of bits, up to MOST_WORDS
DOUBTED = 0.01  # false positive probability above which a field gives way to others in a map
SHOWN = 80  # characters of an error or a text


class Source(NamedTuple):
    """One bit of a printed value: its place in the raw value, the bit of the words it copies,
    whether inverted."""

    at: int
    bit: int
    inverted: bool


@dataclass(frozen=True)
class Reading:
    """How a printed field follows from the words.

    The sources make up a raw number, two's complement where ``signed``; the value is ``raw * factor
    + offset``, divided by ``2 ** right_shift``; the float32 of that pattern where ``f32``; one of
    two ``names`` of a text.  ``false_positive_probability`` is at most the chance that an XOR of
    bits reads like this, nan for a constant; an AND or OR never does if every call was answered.  A
    value that mostly is a copy, or a constant, reads as one until a call shows that it is not.
    """

    field: str
    sources: tuple[Source, ...]
    signed: bool = False
    factor: int = 1
    offset: int = 0
    right_shift: int = 0
    f32: bool = False
    names: tuple[str, ...] = ()
    false_positive_probability: float = math.nan

    @property
    def kind(self) -> str:
        """constant, text, f32, partly inverted, inverted, arithmetic, signed or plain."""
        inverted = {source.inverted for source in self.sources}
        if not inverted:
            return "constant"
        if self.names or self.f32:
            if self.names:
                return "text"
            return "f32"
        if len(inverted) > 1:
            return "partly inverted"
        if (self.factor, self.offset, self.right_shift) != (1, 0, 0):
            return "arithmetic"
        if True in inverted:
            return "inverted"
        if self.signed:
            return "signed"
        return "plain"

    @property
    def meaning(self) -> Meaning:
        """The value of the bits as a register map says it; bits of ``partly inverted`` fields count
        as printed."""
        if self.f32 or self.names:
            return Meaning("f32" if self.f32 else "", enum=self._enum if self.names else "")
        factor, offset = self.factor, self.offset
        if all(source.inverted for source in self.sources):
            # all ones less the bits; in two's complement all ones are -1
            ones = self._raw(
                np.zeros(max((source.bit for source in self.sources), default=0) + 1, np.uint8)
            )
            factor, offset = -factor, offset + factor * ones
        steps = (
            (("*", factor),) * (factor != 1)
            + (("+", offset),) * (offset != 0)
            + ((">>", self.right_shift),) * (self.right_shift != 0)
        )
        return Meaning("signed" if self.signed else "", steps)

    @property
    def value(self) -> str:
        """The meaning in words: that of a register map, a constant's value, the two texts."""
        if self.sources:
            if self.names:
                return f"{self.names[0]} or {self.names[1]}"
            return str(self.meaning)
        if self.names:
            return self.names[0]
        return repr(self.predict(np.zeros(0, np.uint8)))

    @property
    def runs(self) -> list[list[Source]]:
        """The sources in runs of neighbouring bits of one word, from the low end of the value."""
        runs: list[list[Source]] = []
        for source in self.sources:
            last = None
            if runs:
                last = runs[-1][-1]
            if (
                last
                and source == (last.at + 1, last.bit + 1, last.inverted)
                and source.bit % WORD_BITS
            ):
                runs[-1].append(source)
            else:
                runs.append([source])
        return runs

    @property
    def bits(self) -> str:
        """Where it lies, as ``w2[26] w15[27:22]``, pieces from the low end of the value; ``~`` is
        inverted in a field that is partly inverted."""
        if self.kind == "partly inverted":
            sign = "~"
        else:
            sign = ""
        return " ".join(
            f"{sign * run[0].inverted}{_place(run[0].bit, len(run))}" for run in self.runs
        )

    def predict(self, bits: np.ndarray) -> Any:
        """The value printed for bits ``(32 * W,)`` of 0 and 1, that of word 0 bit 0 first."""
        raw = self._raw(bits)
        if self.names:
            return self.names[raw]
        if self.f32:
            return np.uint32(raw).view(np.float32)
        number = raw * self.factor + self.offset
        if self.right_shift:
            return number / 2**self.right_shift
        return number

    @property
    def _enum(self) -> str:
        return re.sub(r"\W", lambda odd: f"_{ord(odd[0]):x}_", self.field)

    def _raw(self, bits: np.ndarray) -> int:
        raw = sum(2**at * (int(bits[bit]) ^ inverted) for at, bit, inverted in self.sources)
        top = 0
        if self.signed:
            top = 2 ** self.sources[-1].at
        if raw & top:
            return raw - 2 * top
        return raw


@dataclass(frozen=True, eq=False)
class ProbedLayout:
    """Which bits each printed field comes from.

    ``readings`` predict what was printed in every call, ``unread`` are (field, reason) of the
    others.  ``raised`` are (call, error) of calls without an answer; ``calls`` counts all.
    ``keep`` ``(W,) uint32`` are the bits that stayed as in ``base`` throughout, of which nothing is
    known.
    """

    readings: tuple[Reading, ...]
    unread: tuple[tuple[str, str], ...]
    calls: int
    base: np.ndarray
    keep: np.ndarray
    raised: tuple[tuple[str, str], ...] = ()

    @property
    def words(self) -> int:
        return len(self.base)

    @property
    def table(self) -> pd.DataFrame:
        """One row per field that was found, in the order printed: ``TABLE``."""
        return pd.DataFrame(
            [{name: getattr(reading, name) for name in TABLE} for reading in self.readings],
            columns=TABLE,
        )

    @property
    def unverified(self) -> pd.DataFrame:
        """One row per other field: field, reason."""
        return pd.DataFrame(self.unread, columns=["field", "reason"])

    def predict(self, words: Any) -> dict[str, Any]:
        """What is printed for words ``(W,) uint32``, of the fields in ``table``."""
        bits = _bits(_words(words, self.words, "words"))
        return {one.field: one.predict(bits) for one in self.readings}

    def more(self, decode: Decode, calls: int = 8, *, seed: int = 1) -> ProbedLayout:
        """The same after further calls with random bits: readings that fail one become unverified,
        and the false positive probability of the others is halved by every call for each of their
        bits."""
        refuse_if(calls < 1, "calls", calls, "is at least 1")
        held = _Held(self.base, self.keep)
        patterns = np.random.default_rng([seed, self.calls]).integers(
            0, 2, (calls, len(held.free)), np.uint8
        )
        names = [f"further call {n + 1}" for n in range(calls)]
        answers, raised = _ask(decode, patterns, names, held)
        refuted: dict[str, str] = {}
        for row, answer in answers.items():
            bits = held.filled(patterns[row])
            for reading in self.readings:
                got, predicted = answer.get(reading.field, _NOTHING), reading.predict(bits)
                if not _same(got, predicted):
                    refuted.setdefault(
                        reading.field,
                        f"read as {reading.bits or 'a constant'}; {names[row]}: "
                        f"got {_short(got)}, predicted {_short(predicted)}",
                    )
        answered = len(answers)
        kept = [
            replace(
                reading,
                false_positive_probability=reading.false_positive_probability
                * 2.0 ** -(answered * len({source.bit for source in reading.sources})),
            )
            for reading in self.readings
            if reading.field not in refuted
        ]
        return replace(
            self,
            readings=tuple(kept),
            unread=(*self.unread, *refuted.items()),
            calls=self.calls + calls,
            raised=(*self.raised, *raised),
        )

    def register_map(self, block: str = "printed", *, evidence: str = "guess") -> RegisterMap:
        """A map of the W words that decodes as the printer does; ``left_out`` are the fields it
        cannot hold.

        Of fields that share bits it has the narrow ones, unless their false
        positive probability is above 0.01.  A text
        is an enum, decoded as 0 or 1.
        """
        rows, enums, _ = self._mapped
        return RegisterMap(
            [
                {**row, "block": block, "evidence": evidence if row["field"] else "unknown"}
                for row in rows
            ],
            enums=enums,
        )

    @property
    def left_out(self) -> pd.DataFrame:
        """Fields of ``table`` that ``register_map`` does not have: field, reason."""
        return pd.DataFrame(self._mapped[2], columns=["field", "reason"])

    @cached_property
    def _mapped(
        self,
    ) -> tuple[list[dict[str, Any]], dict[str, dict[int, str]], list[tuple[str, str]]]:
        """Rows of the map, its enums, (field, reason) of what it leaves out."""
        owner: dict[int, str] = {}
        fits: dict[str, list[dict[str, Any]]] = {}
        lost: dict[str, str] = {}
        # of fields that share bits the narrow ones stay, so that most names do; but not those that
        # may be false positives
        for reading in sorted(
            self.readings, key=lambda r: (r.false_positive_probability > DOUBTED, len(r.sources))
        ):
            bits = [source.bit for source in reading.sources]
            shared = [
                f"shares bits with {owner[bit]}, false positive probability "
                f"{reading.false_positive_probability:.2g}"
                for bit in bits
                if bit in owner
            ]
            if reason := _unsayable(reading) or "".join(shared[:1]):
                lost[reading.field] = reason
            else:
                owner.update(dict.fromkeys(bits, reading.field))
                fits[reading.field] = _rows(reading)
        rows = [row for reading in self.readings for row in fits.get(reading.field, ())]
        end = WORD_BYTES * (self.words - 1)
        if all(row["offset"] < end for row in rows):
            rows.append({**dict.fromkeys(COLUMNS, ""), "offset": end, "lsb": 0, "width": WORD_BITS})
        enums = {
            one._enum: dict(enumerate(one.names))
            for one in self.readings
            if one.names and one.field in fits
        }
        return (
            rows,
            enums,
            [(one.field, lost[one.field]) for one in self.readings if one.field in lost],
        )

    def __str__(self) -> str:
        free = WORD_BITS * self.words - int(np.bitwise_count(self.keep).sum())
        errors = [
            f"{len(self.raised)} calls raised, first {call}: {error}"
            for call, error in self.raised[:1]
        ]
        return "; ".join(
            [
                f"{len(self.readings)} fields found, {len(self.unread)} unverified, {self.calls} "
                "calls, "
                f"{free} bits",
                *errors,
            ]
        )

    def __repr__(self) -> str:
        return f"ProbedLayout({self})"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(str(self))}</p>" + "".join(
            frame.to_html(index=False, max_rows=ROWS_SHOWN)
            for frame in (self.table, self.unverified)
            if len(frame)
        )


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

    ``decode`` gets ``(W,) uint32`` words and gives values by name: whole numbers, bools, floats or
    texts.  It is called once with all n bits 0, once with all 1, and then with a digit of every
    bit's code; ``checks`` (3 to 32) are the digits beyond those that tell n bits apart.  Found are
    copies of bits in any order, inverted, signed, ``raw * a + b``, float32 patterns, fixed point
    and texts of two kinds; every other field is listed with what is seen of it.  Bits of the mask
    ``keep`` stay as in ``base`` (both ``(W,) uint32``, 0 when left out) and the n bits are the
    others: so gates are held open, and checks of the decoder satisfied.  A decoder that raises
    loses that call; one that may hang needs a time limit of its own. Raises ValueError for numbers
    out of range, and where too few calls were answered.

    >>> def decode(words):
    ...     return {"size": int(words[0] >> 4 & 15) + 1, "on": bool(words[1] & 8)}
    >>> probed = probe_layout(decode, 2)
    >>> probed
    ProbedLayout(2 fields found, 0 unverified, 13 calls, 64 bits)
    >>> probed.register_map().size.bits
    '0[7:4]'
    """
    refuse_if(not FEWEST <= checks <= MOST, "checks", checks, f"is {FEWEST} to {MOST}")
    held = _held(words, base, keep)
    count = len(held.free)
    codes = _codes(count, count.bit_length() + checks, np.random.default_rng(seed))
    patterns = np.concatenate(
        [np.zeros((1, count), np.uint8), np.ones((1, count), np.uint8), codes]
    )
    return _probed(
        decode,
        patterns,
        ["all zeros", "all ones", *(f"code {n + 1}" for n in range(len(codes)))],
        held,
    )


@dataclass(frozen=True)
class _Held:
    """The bits ``keep`` of ``base``, both ``(W,) uint32``, stay; the bits ``free`` are the
    others.
    """

    base: np.ndarray
    keep: np.ndarray

    @cached_property
    def free(self) -> np.ndarray:
        return np.flatnonzero(_bits(self.keep) == 0)

    def filled(self, pattern: np.ndarray) -> np.ndarray:
        """All bits ``(32 * W,)``, the free ones as in a pattern."""
        bits = _bits(self.base)
        bits[self.free] = pattern
        return bits


def _held(words: int, base: Any, keep: Any) -> _Held:
    refuse_if(not 1 <= words <= MOST_WORDS, "words", words, f"is 1 to {MOST_WORDS}")
    held = _Held(
        *(
            _words(np.zeros(words, np.uint32) if mask is None else mask, words, name)
            for name, mask in (("base", base), ("keep", keep))
        )
    )
    if not len(held.free):
        raise ValueError(
            f"keep: got all {WORD_BITS * words} bits, allowed is to leave at least one"
        )
    return held


def _words(values: Any, count: int, name: str) -> np.ndarray:
    words = np.asarray(values)
    if (
        words.shape != (count,)
        or words.dtype.kind not in "iu"
        or np.any(words < 0)
        or np.any(words > 0xFFFFFFFF)
    ):
        raise ValueError(
            f"{name}: got {words.dtype} of shape {words.shape}, allowed is uint32 of shape "
            f"({count},)"
        )
    return words.astype(np.uint32)


def _bits(words: np.ndarray) -> np.ndarray:
    return np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")


def _place(bit: int, width: int = 1) -> str:
    word, lsb = divmod(int(bit), WORD_BITS)
    if width > 1:
        return f"w{word}[{lsb + width - 1}:{lsb}]"
    return f"w{word}[{lsb}]"


def _codes(count: int, length: int, rng: np.random.Generator) -> np.ndarray:
    """Different codes with half of their digits 1 ``(length, count)``, a column each, drawn
    evenly."""
    codes = np.zeros((0, length), np.uint8)
    while len(codes) < count:
        drawn = (rng.random((count, length)).argsort(1) < length // 2).astype(np.uint8)
        codes = np.concatenate([codes, drawn])
        codes = codes[np.sort(np.unique(np.packbits(codes, axis=1), axis=0, return_index=True)[1])]
    return np.ascontiguousarray(codes[:count].T)


def _ask(
    decode: Decode,
    patterns: np.ndarray,
    names: Sequence[str],
    held: _Held,
) -> tuple[dict[int, dict[str, Any]], list[tuple[str, str]]]:
    """What is printed in each call that did not raise, by its number; (call, error) of others."""
    answers: dict[int, dict[str, Any]] = {}
    raised = []
    for row, (pattern, name) in enumerate(zip(patterns, names, strict=True)):
        try:
            answer = decode(
                np.packbits(held.filled(pattern), bitorder="little").view("<u4").astype(np.uint32)
            )
        except Exception as error:
            raised.append((name, f"{type(error).__name__}: {' '.join(str(error).split())[:SHOWN]}"))
            continue
        if not isinstance(answer, Mapping):
            raise ValueError(
                f"decode: got {type(answer).__name__} in the call {name!r}, allowed is values by "
                "name"
            )
        answers[row] = {str(field): _plain(value) for field, value in answer.items()}
    return answers, raised


class _Other(NamedTuple):
    """What is printed and is no number and no text."""

    kind: str
    text: str


_NOTHING = _Other("nothing", "nothing")


def _plain(value: Any) -> Any:
    """Whole numbers as int; float32 stays, for the bits of its nan."""
    if isinstance(value, int | np.bool_ | np.integer):
        return int(value)
    if isinstance(value, str | float | np.float32):
        return value
    if isinstance(value, np.floating):
        return float(value)
    return _Other(type(value).__name__, _short(value))


def _same(got: Any, predicted: Any) -> bool:
    alike = (_numeric(got) and _numeric(predicted)) or type(got) is type(predicted)
    return alike and bool(got == predicted or (got != got and predicted != predicted))


def _numeric(value: Any) -> bool:
    return isinstance(value, int | float | np.float32)


def _short(value: Any) -> str:
    if isinstance(value, _Other):
        text = value.text
    elif isinstance(value, np.floating):
        text = str(value)
    else:
        text = repr(value)
    if len(text) <= SHOWN:
        return text
    return f"{text[:SHOWN]}..."


def _probed(
    decode: Decode, patterns: np.ndarray, names: Sequence[str], held: _Held
) -> ProbedLayout:
    answers, raised = _ask(decode, patterns, names, held)
    most = len(names) - len(held.free).bit_length() - FEWEST
    if len(raised) > most:
        raise ValueError(
            f"decode: got an error in {len(raised)} of {len(names)} calls, first {raised[0][0]}: "
            f"{raised[0][1]}; allowed are {most}, and base and keep hold the bits that it asks for"
        )
    book = _Codes(patterns[[*answers]], held.free, zero=0 in answers)
    readings, unread = [], []
    for name in dict.fromkeys(name for answer in answers.values() for name in answer):
        values = [answer.get(name, _NOTHING) for answer in answers.values()]
        read = _read(name, values, book)
        if isinstance(read, Reading):
            readings.append(read)
        else:
            unread.append((name, read + book.gate(values)))
    return ProbedLayout(
        tuple(readings), tuple(unread), len(names), held.base, held.keep, tuple(raised)
    )


@dataclass(frozen=True)
class _Codes:
    """The bits' codes ``(calls, n)`` over the answered calls and where each bit lies; ``zero``
    where the first call is that with all bits 0."""

    patterns: np.ndarray
    places: np.ndarray
    zero: bool
    books: dict[bytes, dict[bytes, int | None]] = field(default_factory=dict)

    def spelled(self, columns: np.ndarray, used: np.ndarray) -> list[int | None]:
        """The bit whose code each column ``(calls, m)`` is, None for none or several; ``used`` are
        the calls ``(calls,) bool`` to look at."""
        key = used.tobytes()
        if key not in self.books:
            book: dict[bytes, int | None] = {}
            for place, code in zip(self.places.tolist(), _packed(self.patterns[used]), strict=True):
                if code in book:
                    book[code] = None
                else:
                    book[code] = place
            self.books[key] = book
        return [self.books[key].get(code) for code in _packed(columns[used])]

    def bits(self, call: int) -> np.ndarray:
        """The bits of a call, 0 where they were kept."""
        out = np.zeros(int(self.places[-1]) + 1, np.uint8)
        out[self.places] = self.patterns[call]
        return out

    def false_positive_probability(self, bits: int, calls: int) -> float:
        """An odd XOR agrees by itself in the two calls with all bits alike, and in the parity of
        its ones."""
        return min(1.0, math.ldexp(len(self.places), 3 - calls)) ** bits

    def gate(self, values: Sequence[Any]) -> str:
        """The bit without which nothing changes, as the end of a sentence, if one bit is so."""
        found = []
        for closed in (0, 1):
            asleep = np.flatnonzero(np.all(self.patterns == closed, axis=1))
            if len(asleep):
                wanted = np.packbits([not _same(value, values[asleep[0]]) for value in values])
                within = np.all(self.opens[closed] & wanted == wanted, axis=1)
                found += [(place, 1 - closed) for place in self.places[within]]
        if len(found) == 1:
            return f"; changes only while {_place(found[0][0])} is {found[0][1]}"
        return ""

    @cached_property
    def opens(self) -> tuple[np.ndarray, np.ndarray]:
        """The calls, packed, in which each bit is 1, and in which it is 0."""
        return np.packbits(self.patterns.T, axis=1), np.packbits(1 - self.patterns.T, axis=1)


def _packed(columns: np.ndarray) -> list[bytes]:
    packed = np.packbits(np.ascontiguousarray(columns.T), axis=1)
    if packed.size:
        return packed.view(f"V{packed.shape[1]}").ravel().tolist()
    return []


def _read(name: str, values: Sequence[Any], book: _Codes) -> Reading | str:
    """How the values of all calls follow from the bits, or why that cannot be said."""
    absent = sum(value is _NOTHING for value in values)
    if absent:
        return f"printed in {len(values) - absent} of {len(values)} calls"
    if all(_same(value, values[0]) for value in values):
        return _constant(name, values[0])
    if not all(_numeric(value) for value in values):
        return _read_text(name, values, book)
    best: tuple[tuple[int, int, int], Reading] | None = None
    reasons: list[str] = []
    for view, ints, used in _views(name, values, book.zero):
        read = _read_bits(view, ints, used, book)
        if not isinstance(read, str) and not all(
            _same(read.predict(book.bits(n)), values[n]) for n in np.flatnonzero(~used).tolist()
        ):
            read = "prints nan where its bits are a number"
        if isinstance(read, str):
            reasons.append(read)
            continue
        # the fewest bits say it best; then one kind of bit, and no fixed bits or signs that only an
        # offset makes
        odd = bool(read.offset) and (read.signed or not view.offset)
        cost = len(read.sources), len({source.inverted for source in read.sources}), int(odd)
        if best is None or cost < best[0]:
            best = cost, read
        if cost == (len({source.bit for source in read.sources}), 1, 0):
            break
    reasons.append("prints numbers that are neither whole nor float32 nor fixed point")
    if best:
        return best[1]
    return reasons[0]


def _constant(name: str, value: Any) -> Reading | str:
    if isinstance(value, str):
        return Reading(name, (), names=(value,))
    if isinstance(value, _Other):
        return f"prints {value.kind}, as {value.text}"
    if not math.isfinite(value):
        return f"always prints {_short(value)}"
    number, below = value.as_integer_ratio()
    return Reading(name, (), offset=number, right_shift=below.bit_length() - 1)


def _read_text(name: str, values: Sequence[Any], book: _Codes) -> Reading | str:
    kinds = list(dict.fromkeys(values))
    texts = [value for value in kinds if isinstance(value, str)]
    if other := next((value for value in kinds if isinstance(value, _Other)), None):
        return f"prints {other.kind}, as {other.text}"
    if len(texts) < len(kinds):
        return f"prints numbers and texts, as {_short(texts[0])}"
    if len(kinds) > 2:
        return f"prints {len(kinds)} texts, as {_short(kinds[1])}"
    read = _read_bits(
        Reading(name, (), names=tuple(kinds)),
        [kinds.index(value) for value in values],
        np.ones(len(values), bool),
        book,
    )
    if isinstance(read, Reading) and any(source.inverted for source in read.sources):
        # without the call of all zeros the first text may be that of a 1
        return replace(
            read, names=read.names[::-1], sources=(Source(0, read.sources[0].bit, False),)
        )
    return read


def _views(
    name: str, values: Sequence[Any], zero: bool
) -> Iterator[tuple[Reading, Sequence[int], np.ndarray]]:
    """Whole numbers that may be copies of bits, a call each, and the calls in which they are known;
    with each the reading that they would need but for its sources."""
    used = np.ones(len(values), bool)
    if all(isinstance(value, int) for value in values):
        yield from ((view, ints, used) for view, ints in _steps(Reading(name, ()), values, zero))
        return
    try:
        with np.errstate(over="ignore"):
            floats = np.array([np.float32(value) for value in values])
    except OverflowError:
        return
    known = ~np.isnan(floats)
    if all(
        one == value
        for one, value, good in zip(floats.tolist(), values, known, strict=True)
        if good
    ):
        # a nan may have lost its bits on the way here; float32 itself keeps them
        known |= np.array([isinstance(value, np.float32) for value in values])
        yield (
            Reading(name, (), f32=True),
            np.where(known, floats.view(np.uint32), 0).tolist(),
            known,
        )
    if all(math.isfinite(value) for value in values):
        ratios = [value.as_integer_ratio() for value in values]
        below = max(below for _, below in ratios)
        if below <= 2**WORD_BITS:
            view = Reading(name, (), right_shift=below.bit_length() - 1)
            yield from (
                (view, ints, used)
                for view, ints in _steps(view, [n * (below // d) for n, d in ratios], zero)
            )


def _steps(
    view: Reading, ints: Sequence[int], zero: bool
) -> Iterator[tuple[Reading, Sequence[int]]]:
    """The numbers as they are, and as steps up and down from the first, which is that of all bits 0
    if ``zero``."""
    yield view, ints
    steps = [value - ints[0] for value in ints]
    factor = 0
    if zero:
        factor = math.gcd(*steps)
    for sign in (factor, -factor) if factor else ():
        yield replace(view, factor=sign, offset=ints[0]), [step // sign for step in steps]


def _read_bits(view: Reading, ints: Sequence[int], used: np.ndarray, book: _Codes) -> Reading | str:
    """The reading with its sources, or how many bits of the numbers are no copy of one bit."""
    size = max(value.bit_length() for value in ints) // 8 + 1
    data = np.frombuffer(
        b"".join(value.to_bytes(size, "little", signed=True) for value in ints), np.uint8
    )
    columns = np.unpackbits(data.reshape(len(ints), size), axis=1, bitorder="little")
    signed = min(ints) < 0
    # two's complement repeats its highest bit
    width = (
        int(np.flatnonzero(np.any(columns != columns[:, -1:], axis=0)).max(initial=-1)) + 1 + signed
    )
    columns = columns[:, :width]
    ones = columns[used].sum(0)
    calls = int(used.sum())
    varies = np.flatnonzero((ones > 0) & (ones < calls))
    spelled = zip(
        varies.tolist(),
        book.spelled(columns[:, varies], used),
        book.spelled(1 - columns[:, varies], used),
        strict=True,
    )
    sources = [
        Source(at, bit, plain is None)
        for at, plain, inverted in spelled
        if (bit := inverted if plain is None else plain) is not None
    ]
    if len(sources) < len(varies):
        return (
            f"{len(varies) - len(sources)} of its {len(varies)} bits that change copy no single bit"
        )
    top = signed and len(varies) > 0 and varies[-1] == width - 1
    weights = [-(2**at) if signed and at == width - 1 else 2**at for at in range(width)]
    fixed = sum(weight for weight, count in zip(weights, ones, strict=True) if count == calls)
    low = 0
    if sources and not (view.f32 or view.right_shift or view.names):
        low = sources[0].at
    if fixed and view.f32:
        return "some bits of its float32 are always 1"
    return replace(
        view,
        sources=tuple(one._replace(at=one.at - low) for one in sources),
        signed=bool(top),
        factor=view.factor * 2**low,
        offset=view.offset + view.factor * fixed,
        false_positive_probability=book.false_positive_probability(
            len({source.bit for source in sources}), calls
        ),
    )


def _unsayable(one: Reading) -> str:
    """Why a register map cannot hold a field; empty where it can."""
    bits = [source.bit for source in one.sources]
    if not bits:
        return f"is always {one.value}"
    if one.kind == "partly inverted":
        return "is partly inverted"
    if len(set(bits)) < len(bits):
        return "has a bit twice"
    width = one.sources[-1].at + 1
    if width > 2 * WORD_BITS:
        return f"has {width} bits, a map holds {2 * WORD_BITS}"
    try:
        Meaning.parse(str(one.meaning)).refuse_width(width)
    except ValueError as error:
        return str(error)
    return ""


def _rows(one: Reading) -> list[dict[str, Any]]:
    """Rows of a register map, one per run of bits."""
    split = len(one.runs) > 1 or one.runs[0][0].at > 0
    rows = []
    for run in one.runs:
        word, lsb = divmod(run[0].bit, WORD_BITS)
        rows.append(
            {
                **dict.fromkeys(COLUMNS, ""),
                "offset": word * WORD_BYTES,
                "field": one.field,
                "lsb": lsb,
                "width": len(run),
                "at": run[0].at if split else "",
                "value": str(one.meaning),
            }
        )
    return rows
