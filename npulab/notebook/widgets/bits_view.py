"""Words as rows of bits with the names of their fields: the base of all views of registers.

``BitsModel`` holds the state and needs no browser; ``BitsView`` passes it to the page.
"""

from __future__ import annotations

import html
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import takewhile
from operator import itemgetter
from string import ascii_lowercase, digits
from typing import Any, NamedTuple

import numpy as np
from traitlets import Int, List, TraitType, Unicode, observe

from npulab.analysis.correlate import flips
from npulab.captures.capture import ROWS_SHOWN, Job
from npulab.notebook.widgets.frame import ActingModel, Model, Numbers, View
from npulab.registers.fields import WORD_BITS, Field, Piece
from npulab.registers.filters import Test, filter_of
from npulab.registers.map import RegisterMap
from npulab.support.refuse import shortly
from npulab.support.text import plural

LARGEST = 2**WORD_BITS - 1
CHANGES_NAMED = 4  # the summary names at most this many changed fields
# The width in pixels that a name above a run of bits may have, by the run's number of bits; names
# above wider runs are not shortened.
NARROW = {1: 14, 2: 30, 3: 46}
# The width in pixels of most letters, and of letters that are wider or narrower, in DejaVu Sans of
# 11 pixels, the widest of the fonts that pages commonly have.
LETTER = 7
LETTER_WIDTHS = (
    "ijlIJ 3.2, ft 4.3, r_ 5.5, cszLF 6.3, KABVXZRC 7.7, UNHDGOQ 8.7, w 9, M 9.5, mW 10.9"
)
COLUMNS = (
    *("field", "register", "bits", "width", "raw", "value", "reference", "evidence", "note"),
    *("block", "named"),
)  # the names that a filter may use
CHOICES = 100  # at most this many names of an enum are offered while a value is typed
LETTERS = {
    "law": "L",
    "constant": "C",
    "rivals": "R",
    "open": "?",
    "never exercised": "·",
    "nuisance": "N",
}


class Words(TraitType[tuple[int, ...], Any]):
    """A trait for the words of a job, given as any iterable of whole numbers, as many as the
    ``count`` of the trait's owner.
    """

    default_value = ()

    def validate(self, obj: Any, value: Iterable[Any]) -> tuple[int, ...]:
        try:
            words = tuple(operator.index(word) for word in value)
        except TypeError:
            raise ValueError(
                f"{self.name}: got {value!r}, allowed are {obj.count} whole numbers"
            ) from None
        if len(words) != obj.count:
            got = plural(len(words), "word")
            raise ValueError(f"{self.name}: got {got}, allowed are {obj.count}")
        for index, word in enumerate(words):
            if not 0 <= word <= LARGEST:
                raise ValueError(
                    f"{self.name}: got {word} as word {index}, allowed is 0 to {LARGEST}"
                )
        return words


def a_bit() -> Numbers:
    """Return a trait for the place (word, bit) of a bit; its default is the highest bit of the
    first word.
    """
    return Numbers(
        "(word, bit)", (0, WORD_BITS - 1), lambda owner, *_: ((0, owner.count), (0, WORD_BITS))
    )


class Filter(TraitType[str, Any]):
    """A trait for a filter of fields; an empty text keeps all fields."""

    default_value = ""

    def validate(self, obj: Any, value: Any) -> str:
        text = str(value).strip()
        if text:
            filter_of(text, COLUMNS)
        return text


class Cell(NamedTuple):
    """A run of bits of a word: the index of its field, and its piece (place in the word and in the
    field's value).
    """

    field: int
    piece: Piece


@dataclass(frozen=True)
class Rows:
    """The fields of a job's words.

    ``fields`` and ``names`` are the fields and their keys; pieces of ``fields`` count words as the
    register map does. ``registers`` has the names of all words of the map, then of the registers
    that only the job has; ``slots`` has, for each word of the job, its index in ``registers``.
    ``blocks`` has the block of each of ``registers``.
    """

    fields: tuple[Field, ...]
    names: tuple[str, ...]
    registers: tuple[str, ...]
    slots: tuple[int, ...]
    blocks: tuple[str, ...] = ()

    @classmethod
    def of(cls, job: Job, registers: RegisterMap) -> Rows:
        """Return the rows of a job; raises ValueError if a parameter block is not as long as its
        map.
        """
        if job.writes:
            return cls._written(job, registers)
        if len(job.words) != len(registers):
            raise ValueError(
                f"words: got {len(job.words)} words, allowed are {len(registers)} "
                f"(block {job.block})"
            )
        return cls.whole(registers)

    @classmethod
    def whole(cls, registers: RegisterMap) -> Rows:
        """Return the rows of all words of a map."""
        labels = tuple(register for _, _, register in registers.registers)
        names = tuple(map(registers.key, registers))
        slots = tuple(range(len(labels)))
        return cls(tuple(registers), names, labels, slots, _blocks_of(registers))

    @classmethod
    def _written(cls, job: Job, registers: RegisterMap) -> Rows:
        labels = [register for _, _, register in registers.registers]
        blocks = [*_blocks_of(registers)]
        index = dict(registers.index)
        extra = []
        for offset in dict(job.writes):
            if offset not in index:
                index[offset] = len(labels)
                found = registers.unmapped(job.block, offset)
                labels.append(found.register)
                blocks.append(found.block)
                extra.append(replace(found, pieces=(Piece(index[offset], 0, WORD_BITS, 0),)))
        slots = tuple(index[offset] for offset in dict(job.writes))
        fields = []
        names = []
        for item in registers:
            if any(piece.word in slots for piece in item.pieces):
                fields.append(item)
                names.append(registers.key(item))
        for item in extra:
            fields.append(item)
            names.append(item.name)
        return cls(tuple(fields), tuple(names), tuple(labels), slots, tuple(blocks))

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of the register of each word of the job."""
        return tuple(self.registers[slot] for slot in self.slots)

    @property
    def units(self) -> tuple[str, ...]:
        """The block of each word of the job; no blocks if all words are of one block."""
        if len(set(self.blocks)) < 2:
            return ()
        units = tuple(map(self.blocks.__getitem__, self.slots))
        if len(set(units)) < 2:
            return ()
        return units

    @property
    def cells(self) -> tuple[tuple[Cell, ...], ...]:
        """For each word of the job its runs of bits, the highest bit first."""
        lines: dict[int, list[Cell]] = {slot: [] for slot in self.slots}
        for index, item in enumerate(self.fields):
            for piece in item.pieces:
                if piece.word in lines:
                    lines[piece.word].append(Cell(index, piece))
        for line in lines.values():
            line.sort(key=lambda cell: -cell.piece.lsb)
        return tuple(tuple(lines[slot]) for slot in self.slots)

    @cached_property
    def shorts(self) -> dict[tuple[int, int], str]:
        """Short names by place (word, lsb), for runs of 1 to 3 bits of named fields: a whole name
        may have no room above so few bits. The short names in a word all differ.
        """
        out = {}
        for word, line in enumerate(self.cells):
            names = [self.fields[cell.field].name for cell in line]
            taken: set[str] = set()
            for cell, name in zip(line, names, strict=True):
                room = NARROW.get(cell.piece.width, 0)
                if room and not self.fields[cell.field].automatic:
                    short = _short(name, names, room, taken)
                    taken.add(short)
                    out[word, cell.piece.lsb] = short
        return out

    def raw(self, words: Sequence[int]) -> list[int]:
        """Return the raw number of each field for the job's words; bits in registers that the job
        does not write count as 0.
        """
        wide = self._wide(words)
        return [int(item.extract(wide)) for item in self.fields]

    def _wide(self, words: Sequence[int]) -> np.ndarray:
        """Return the words of all ``registers`` as ``uint32``; words that the job does not write
        are 0.
        """
        wide = np.zeros(len(self.registers), np.uint32)
        wide[list(self.slots)] = words
        return wide

    def with_raw(self, words: Sequence[int], item: Field, raw: Any) -> tuple[int, ...]:
        """Return the job's words with a field set to a raw number; raises ValueError if the number
        does not fit, or sets bits in registers that the job does not write.
        """
        wide = self._wide(words)
        item.insert(wide, raw)
        changed = tuple(wide[list(self.slots)].tolist())
        written = self._wide(changed)
        if int(item.extract(written)) != int(item.stored(raw)):
            raise ValueError(
                f"field {item.name}: got raw {int(raw):#x}, which sets bits of registers that the "
                "job does not write"
            )
        return changed

    def bits(self, item: Field) -> str:
        """Return the place of a field's bits, as ``w2[26] w15[27:22]``; the piece with the lowest
        bits of the value comes first.
        """
        return " ".join(f"{self.registers[p.word]}{span(p.lsb, p.width)}" for p in item.pieces)


class BitsModel(ActingModel):
    """Words of a register block, compared with a reference; it needs no browser.

    These can be set and observed: ``words`` and ``reference`` (tuples of ints), ``cursor`` (word,
    bit), ``selection`` (a run of bits, (word, lsb, width), or empty) and ``filter`` (an expression
    over the ``COLUMNS`` of a field, such as ``raw != 0 and evidence == guess``, or empty). These
    follow: ``values`` (a text per field), ``kept`` (the indices of the fields that the filter
    keeps) and ``summary``. ``letters`` has the letter of each bit's status in ``laws``, a text per
    word, bit 31 first. ``shares`` has how often each bit flips in the captures of the laws or of a
    ``sweep``: per word 32 numbers from 0 to 100, bit 0 first. ``read`` goes up by 1 when the words
    are read with another map.

    Raises ValueError for words that do not fit, for a text that is not a filter, and for laws or a
    sweep of another block.
    """

    words = Words()
    reference = Words()
    cursor = a_bit()
    selection = Numbers(
        "(word, lsb, width)",
        (),
        lambda owner, _, lsb, __: ((0, owner.count), (0, WORD_BITS), (1, WORD_BITS - lsb + 1)),
        empty=True,
    )
    filter = Filter()
    kept = List(Int(), read_only=True)
    values = List(Unicode())
    summary = Unicode()
    letters = List(Unicode())
    shares: List[Any] = List()
    read = Int()
    _held = False  # True while several traits change and ``_tell`` must wait for the last

    def __init__(
        self,
        rows: Rows,
        words: Sequence[int],
        reference: Sequence[int],
        laws: Any = None,
        sweep: Any = None,
    ) -> None:
        if laws is not None:
            need_laws("laws", laws)
        if sweep is not None and not hasattr(sweep, "words"):
            raise TypeError(
                f"sweep: got {shortly(sweep)}, allowed is a Sweep, as npulab.load_sweep(path) gives"
            )
        self.rows, self.laws = rows, laws
        self._cells = rows.cells
        source = sweep
        if laws is not None:
            source = laws
        # a text that says which jobs the laws or the sweep are of, if not of all
        self.looked_at = str(getattr(source, "looked_at", ""))
        super().__init__(words=words, reference=reference)
        if laws is not None:
            self.letters = ["".join(row) for row in self._of_words(letters_of(laws.status))]
        if source is not None:
            self.shares = self.shades(flips(source.words))

    def shades(self, shares: Any) -> list[Any]:
        """Return shares (numbers from 0 to 1 for each bit of all registers, ``(W, 32)``) as whole
        hundredths: a list per word of the job.
        """
        return self._of_words(np.rint(100 * np.asarray(shares)).astype(int).tolist())

    def _of_words(self, rows: Sequence[Any]) -> list[Any]:
        """Return the rows of the job's words, out of ``rows`` with a row per register; raises
        ValueError if there are too few.
        """
        if len(rows) != len(self.rows.registers) and len(rows) < max(self.rows.slots) + 1:
            raise ValueError(
                f"laws or sweep: got {len(rows)} words, allowed are {len(self.rows.registers)}"
            )
        return [rows[slot] for slot in self.rows.slots]

    def law_of(self, item: Field) -> str:
        """Return the laws that share bits with a field, as text; a law whose bits are not exactly a
        piece of the field has its bits in front.
        """
        if self.laws is None:
            return ""
        pieces = [(piece.word, piece.lsb, piece.width) for piece in item.pieces]
        texts = []
        for law in self._laws_of(item):
            text = str(law.text)
            if (law.word, law.lsb, law.width) not in pieces:
                text = f"{self.rows.registers[law.word]}{span(law.lsb, law.width)} {text}"
            texts.append(text)
        return "; ".join(texts)

    def _laws_of(self, item: Field) -> Iterator[Any]:
        """Yield the laws that share bits with a field."""
        for law in getattr(self.laws, "fields", ()):
            place = law.word, law.lsb, law.width
            if any(_overlap(place, (part.word, part.lsb, part.width)) for part in item.pieces):
                yield law

    def reread(self, rows: Rows, words: Sequence[int] | None = None) -> None:
        """Read the words with the fields of another map; ``words``, if given, replace the words and
        the reference.
        """
        self.rows, self._cells = rows, rows.cells
        if words is not None and tuple(words) != self.words:
            with self.hold_trait_notifications():
                self.cursor, self.selection = (0, WORD_BITS - 1), ()
                self.words = self.reference = words
        self.read += 1
        self._tell(None)

    @property
    def count(self) -> int:
        """The number of words of the job."""
        return len(self.rows.slots)

    @property
    def fields(self) -> dict[str, Any]:
        """The value of every field, by name."""
        raws = self.rows.raw(self.words)
        values = map(Field.text, self.rows.fields, raws)
        return dict(zip(self.rows.names, values, strict=True))

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """By name, the values (reference, now) of each field that differs from the reference."""
        values = {}
        for name, item, before, now in self._changes():
            values[name] = item.text(before), item.text(now)
        return values

    def _changes(self) -> Iterator[tuple[str, Field, int, int]]:
        """Yield (name, field, raw number in the reference, raw number now) for each field that
        differs.
        """
        before = self.rows.raw(self.reference)
        now = self.rows.raw(self.words)
        for name, item, old, new in zip(
            self.rows.names, self.rows.fields, before, now, strict=True
        ):
            if old != new:
                yield name, item, old, new

    @property
    def compared(self) -> str:
        """The name that texts give the reference."""
        return "the reference"

    @property
    def unchanged(self) -> str:
        """The summary for words that equal the reference."""
        return f"no bit differs from {self.compared}"

    def evidence(self, code: str) -> str:
        """Return a code of evidence as text, with the title of its source if the title is known."""
        return code

    @property
    def differing(self) -> int:
        """The number of bits that differ from the reference."""
        return sum((a ^ b).bit_count() for a, b in zip(self.words, self.reference, strict=True))

    def describe(self, word: int, bit: int) -> str:
        """Return a bit and its field in one line: place, name, bits, raw and value, evidence,
        note."""
        index = self._index(word, bit)
        about = self.about(index)
        place = f"{self.rows.labels[word]} bit {bit}"
        name = f"{about['name']} {about['bits']}"
        return " · ".join([place, name, self.values[index], about["known"]])

    def about(self, index: int) -> dict[str, Any]:
        """Return the facts about a field that do not depend on the words.

        ``own`` is the name of the field alone. ``pieces`` has [word, lsb, width] of each piece,
        ``shorts`` the short name of each piece, or "" if its whole name is shown. ``known`` is one
        text of evidence, note and laws; ``law`` is its last part, the laws, and ``reads`` has the
        names of the fields that these laws read. ``kind`` is the evidence without its case (``C:a``
        gives ``C``), ``choices`` the first names of its enum.
        """
        item = self.rows.fields[index]
        known = [f"evidence {self.evidence(item.evidence)}"]
        if item.note:
            known.append(item.note)
        law = self.law_of(item)
        if law:
            known.append(f"law {law}")
        pieces = []
        shorts = []
        for piece in item.pieces:
            if piece.word in self.rows.slots:
                word = self.rows.slots.index(piece.word)
                pieces.append([word, piece.lsb, piece.width])
                shorts.append(self.rows.shorts.get((word, piece.lsb), ""))
        kind, _, _ = item.evidence.partition(":")
        return {
            "name": self.rows.names[index],
            "own": item.name,
            "bits": self.rows.bits(item),
            "known": " · ".join(known),
            "law": law,
            "reads": self._reads(item),
            "kind": kind,
            "automatic": item.automatic,
            "pieces": pieces,
            "shorts": shorts,
            "choices": [name for _, name in item.names[:CHOICES]],
        }

    def _reads(self, item: Field) -> list[str]:
        """Return the names of the fields that the laws of a field read."""
        names: list[str] = []
        for law in self._laws_of(item):
            names += getattr(law, "follows", ())
        return [name for name in names if name in self.rows.names]

    def _index(self, word: int, bit: int) -> int:
        word, bit = type(self).cursor.check("bit", self, (word, bit))
        return next(index for index, piece in self._cells[word] if piece.lsb <= bit)

    @observe("words", "reference")
    def _tell(self, _: Any) -> None:
        if self._held:
            return
        now = self.rows.raw(self.words)
        before = now
        if self.words != self.reference:
            before = self.rows.raw(self.reference)
        self.values = [*map(_value_text, self.rows.fields, now, before)]
        self._keep(now, before)
        if now == before:
            self.summary = self.unchanged
            return
        changes = []
        for name, item, old, new in self._changes():
            changes.append(f"{name} {change_text(item, old, new)}")
        self.summary = _summary(self.differing, changes, self.compared)

    def _act(self, message: Any) -> str:
        """Act on ``{"do": "filter", "text": ...}``, which sets the filter."""
        if not isinstance(message, Mapping) or message.get("do") != "filter":
            raise ValueError(f"message: got {str(message)[:80]}, allowed is filter")
        self.filter = str(message.get("text", ""))
        if not self.filter:
            return ""
        return f"{len(self.kept)} of {plural(len(self.rows.fields), 'field')}: {self.filter}"

    @observe("filter")
    def _filtered(self, _: Any) -> None:
        self._keep(self.rows.raw(self.words), self.rows.raw(self.reference))

    def _keep(self, now: Sequence[int], before: Sequence[int]) -> None:
        """Set ``kept``; ``now`` and ``before`` are the fields' raw numbers now and in the
        reference.
        """
        kept = []
        if self.filter:
            test: Test = filter_of(self.filter, COLUMNS)
            for index, item in enumerate(self.rows.fields):
                # the row has block, register, evidence and note of the field
                row: dict[str, Any] = {**vars(item), "field": self.rows.names[index]}
                row["bits"] = self.rows.bits(item)
                row["width"] = item.width
                row["raw"] = now[index]
                row["reference"] = before[index]
                row["value"] = item.text(now[index])
                row["named"] = not item.automatic
                if test(row):
                    kept.append(index)
        self.set_trait("kept", kept)

    def _repr_html_(self) -> str:
        words = [_html_row(self, word) for word in range(self.count)]
        if len(words) >= ROWS_SHOWN:
            more = len(words) - ROWS_SHOWN + 2
            words[-more:] = [f"<tr><td colspan='3'>… {more} more words</td></tr>"]
        names = ("register", "word", "fields")
        head = "".join(f"<th style='text-align:left'>{name}</th>" for name in names)
        return (
            f"{self.heading_html()}"
            f"<table style='font-family:monospace'><tr>{head}</tr>{''.join(words)}</table>"
        )


class BitsView(View):
    """The view of a ``BitsModel``, which is the last of the view's models."""

    _of: type[Model] = BitsModel
    _linked: tuple[str, ...] = ("words", "reference", "cursor", "selection", "filter")
    _followed: tuple[str, ...] = ("values", "status", "letters", "shares", "kept")

    registers = List(Unicode())
    units = List(Unicode())
    places: List[Any] = List()

    def __init__(self, *models: Any, **traits: Any) -> None:
        super().__init__(*models, **facts_of(models[-1]) | traits)
        models[-1].observe(self._redraw, "read")

    def _redraw(self, change: Any) -> None:
        for name, value in facts_of(change.owner).items():
            setattr(self, name, value)


def facts_of(model: BitsModel) -> dict[str, Any]:
    """Return the traits of a view that the map decides: ``registers``, the names of the rows,
    ``units``, the blocks of the rows if there are several, and ``places``, the facts about each
    field.
    """
    return {
        "registers": list(model.rows.labels),
        "units": list(model.rows.units),
        "places": [model.about(index) for index in range(len(model.rows.fields))],
    }


def _blocks_of(registers: RegisterMap) -> tuple[str, ...]:
    return tuple(map(itemgetter(0), registers.registers))


def _short(name: str, names: Sequence[str], room: float, taken: Collection[str]) -> str:
    """Return a short form of a name that is at most ``room`` pixels wide and is not ``taken``; ""
    if there is none.

    A name's parts are joined by ``_``. First parts that the name shares with one of the ``names``
    are left out, and these forms of the remainder are tried: its beginning with the number at its
    end, if it has a number; its initials, then its beginning (in the other order if the whole
    remainder has room, or has a single initial); the initials of the whole name; its beginning with
    a digit or letter that counts on.

    >>> _short("in_image_y_offset", ["in_image_y_offset", "in_image_x_offset"], 46, [])
    'y_offset'
    >>> _short("no_z_offset", ["no_z_offset", "nn_zoom"], 14, []), _short("pools", [], 14, ["po"])
    ('nz', 'p')
    """
    parts = name.split("_")
    firsts = "".join(part[:1] for part in parts)
    shared = 0
    for other in names:
        if other != name:
            pairs = zip(parts[:-1], other.split("_"), strict=False)
            alike = [*takewhile(lambda pair: pair[0] == pair[1], pairs)]
            shared = max(shared, len(alike))
    own = "_".join(parts[shared:])
    initials = _begin("".join(part[:1] for part in parts[shared:]), room)
    beginning = _begin(own, room)
    ways = [initials, beginning]
    if beginning == own or len(initials) < 2:
        ways.reverse()
    number = own[len(own.rstrip(digits)) :]
    if number and number != own:
        start = _begin(own, room - letters_width(number)) or own[:1]
        ways.insert(0, _begin(start + number, room))
    start = _begin(own, room - LETTER)
    ways.append(_begin(firsts, room))
    ways += [start + letter for letter in digits + ascii_lowercase]
    for way in ways:
        if way and way not in taken and letters_width(way) <= room:
            return way
    return ""


def _begin(text: str, room: float) -> str:
    """Return the first letters of a text, as many as ``room`` pixels hold."""
    count = len(text)
    while letters_width(text[:count]) > room:
        count -= 1
    return text[: max(0, count)]


def letters_width(text: str) -> float:
    """Return the greatest width, in pixels, with which a text is drawn.

    >>> letters_width("pooli"), letters_width("MW")
    (27.4, 20.4)
    """
    widths = _widths()
    width = 0.0
    for letter in text:
        width += widths.get(letter, LETTER)
    return round(width, 1)


@cache
def _widths() -> dict[str, float]:
    """Return the width in pixels by letter, for the letters in ``LETTER_WIDTHS``."""
    widths = {}
    for group in LETTER_WIDTHS.split(", "):
        letters, _, wide = group.partition(" ")
        for letter in letters:
            widths[letter] = float(wide)
    return widths


def letters_of(status: Any) -> list[list[str]]:
    """Return the letter in ``LETTERS`` of each bit's status: a list per word, bit 31 first."""
    letters = []
    for row in np.asarray(status):
        letters.append([LETTERS.get(str(name), "?") for name in row[::-1]])
    return letters


def span(lsb: int, width: int) -> str:
    if width > 1:
        return f"[{lsb + width - 1}:{lsb}]"
    return f"[{lsb}]"


def meant(item: Field, raw: int) -> str:
    value = item.text(raw)
    if item.address and isinstance(value, int):
        return f"{value:#x}"
    return str(value)


def change_text(item: Field, old: int, new: int) -> str:
    """Return the old and the new value of a field with an arrow between them; for bits that nobody
    named, the raw values in hexadecimal and their xor.
    """
    if item.automatic:
        return f"{old:#x} → {new:#x}, xor {old ^ new:#x}"
    return f"{meant(item, old)} → {meant(item, new)}"


def _overlap(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
    """True if two runs of bits (word, lsb, width) have a bit in common."""
    a_word, a_lsb, a_width = a
    b_word, b_lsb, b_width = b
    return a_word == b_word and a_lsb < b_lsb + b_width and b_lsb < a_lsb + a_width


def _value_text(item: Field, now: int, before: int) -> str:
    reference = ""
    if before != now:
        reference = f", reference {before:#x} = {meant(item, before)}"
    return f"{now:#x} = {meant(item, now)}{reference}"


def _summary(bits: int, changes: Sequence[str], compared: str) -> str:
    differ = "differ"
    if bits == 1:
        differ = "differs"
    named = ", ".join(changes[:CHANGES_NAMED])
    if len(changes) > CHANGES_NAMED:
        named += f", … {len(changes) - CHANGES_NAMED} more"
    fields = plural(len(changes), "field")
    return f"{plural(bits, 'bit')} in {fields} {differ} from {compared}: {named}"


def _html_row(model: BitsModel, word: int) -> str:
    now, reference = model.words[word], model.reference[word]
    shown = f"{now:#010x}"
    if now != reference:
        shown = f"<b>{shown}</b> (reference {reference:#010x})"
    fields = ", ".join(_html_field(model, cell) for cell in model._cells[word])
    label = html.escape(" ".join([*model.rows.units[word : word + 1], model.rows.labels[word]]))
    return (
        f"<tr><td style='text-align:left;vertical-align:top'>{label}</td>"
        f"<td style='text-align:left;vertical-align:top;white-space:nowrap'>{shown}</td>"
        f"<td style='text-align:left'>{fields}</td></tr>"
    )


def _html_field(model: BitsModel, cell: Cell) -> str:
    item, piece = model.rows.fields[cell.field], cell.piece
    lowest = next(other for other in item.pieces if other.word in model.rows.slots)
    # the piece with the value's lowest bits has the value; each other piece has the numbers of the
    # value's bits that lie in it
    if piece != lowest:
        return html.escape(f"{item.name}{span(piece.at, piece.width)}")
    _, _, value = model.values[cell.field].partition(" = ")
    text = html.escape(f"{item.name} {value}")
    if ", reference " in value:
        return f"<b>{text}</b>"
    return text


def need_laws(what: str, given: object) -> None:
    """Raise TypeError for an object that does not have the status of each bit as ``status``, as
    laws have; a register map is refused, because its ``status`` is a method.
    """
    status = getattr(given, "status", None)
    if status is None or callable(status):
        raise TypeError(
            f"{what}: got {shortly(given)}, allowed are Laws, as npulab.find_laws gives"
        )
