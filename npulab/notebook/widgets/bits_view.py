"""Words as rows of bits with their fields' names: what the views of registers have in common.

``BitsModel`` holds the state and needs no browser; ``BitsView`` gives it to the page.
"""

from __future__ import annotations

import html
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import traitlets

from npulab.analysis.correlate import flips
from npulab.captures.capture import ROWS_SHOWN, Job
from npulab.notebook.widgets.frame import Model, Numbers, View
from npulab.registers.fields import WORD_BITS, Field, Piece
from npulab.registers.map import RegisterMap
from npulab.support.refuse import shortly
from npulab.support.text import plural

LARGEST = 2**WORD_BITS - 1
CHANGES_NAMED = 4
CHOICES = 100  # names of an enum that are offered while a value is typed
LETTERS = {
    "law": "L",
    "constant": "C",
    "rivals": "R",
    "open": "?",
    "never exercised": "·",
    "nuisance": "N",
}


class Words(traitlets.TraitType[tuple[int, ...], Any]):
    """The words of a job, from any iterable of whole numbers; its owner says how many in
    ``count``."""

    default_value = ()

    def validate(self, obj: Any, value: Iterable[Any]) -> tuple[int, ...]:
        try:
            words = tuple(operator.index(word) for word in value)
        except TypeError:
            raise ValueError(
                f"{self.name}: got {value!r}, allowed are {obj.count} whole numbers"
            ) from None
        if len(words) != obj.count:
            raise ValueError(f"{self.name}: got {len(words)}, allowed is {obj.count}")
        for index, word in enumerate(words):
            if not 0 <= word <= LARGEST:
                raise ValueError(
                    f"{self.name}: got {word} as word {index}, allowed is 0 to {LARGEST}"
                )
        return words


class Parameter(traitlets.TraitType[str, Any]):
    """The name of one of the parameters of its owner, or nothing."""

    default_value = ""

    def validate(self, obj: Any, value: Any) -> str:
        if value != "" and value not in obj.parameters:
            raise LookupError(f"{self.name}: got {value!r}, known are {', '.join(obj.parameters)}")
        return str(value)


def a_bit() -> Numbers:
    """A bit of the words of the owner, at first the first word's highest."""
    return Numbers(
        "(word, bit)", (0, WORD_BITS - 1), lambda owner, *_: ((0, owner.count), (0, WORD_BITS))
    )


class Cell(NamedTuple):
    """One run of bits of a word: the index of its field, and where it lies in word and field."""

    field: int
    piece: Piece


@dataclass(frozen=True)
class Rows:
    """What the words of a job mean.

    ``fields`` count words as their register map does; ``slots`` says which of those each word of
    the job is, ``registers`` names them all.  A register that no map has comes after the map's.
    """

    fields: tuple[Field, ...]
    names: tuple[str, ...]
    registers: tuple[str, ...]
    slots: tuple[int, ...]

    @classmethod
    def of(cls, job: Job, registers: RegisterMap) -> Rows:
        """Raises ValueError where a parameter block is not as long as its map."""
        if job.writes:
            return cls._written(job, registers)
        if len(job.words) != len(registers):
            raise ValueError(
                f"words: got {len(job.words)}, allowed is {len(registers)} (block {job.block})"
            )
        return cls.whole(registers)

    @classmethod
    def whole(cls, registers: RegisterMap) -> Rows:
        """Every word of a map."""
        labels = tuple(register for _, _, register in registers.registers)
        return cls(
            tuple(registers),
            tuple(map(registers.key, registers)),
            labels,
            tuple(range(len(labels))),
        )

    @classmethod
    def _written(cls, job: Job, registers: RegisterMap) -> Rows:
        labels = [register for _, _, register in registers.registers]
        index = dict(registers.index)
        extra = []
        for offset in dict(job.writes):
            if offset not in index:
                index[offset] = len(labels)
                found = registers.unmapped(job.block, offset)
                labels.append(found.register)
                extra.append(replace(found, pieces=(Piece(index[offset], 0, WORD_BITS, 0),)))
        slots = tuple(index[offset] for offset in dict(job.writes))
        known = [item for item in registers if any(piece.word in slots for piece in item.pieces)]
        names = (*map(registers.key, known), *(item.name for item in extra))
        return cls((*known, *extra), names, tuple(labels), slots)

    @property
    def labels(self) -> tuple[str, ...]:
        """The register of each word."""
        return tuple(self.registers[slot] for slot in self.slots)

    @property
    def cells(self) -> tuple[tuple[Cell, ...], ...]:
        """The runs of bits of each word, highest bit first."""
        lines: dict[int, list[Cell]] = {slot: [] for slot in self.slots}
        for index, item in enumerate(self.fields):
            for piece in item.pieces:
                if piece.word in lines:
                    lines[piece.word].append(Cell(index, piece))
        return tuple(
            tuple(sorted(lines[slot], key=lambda cell: -cell.piece.lsb)) for slot in self.slots
        )

    def raw(self, words: Sequence[int]) -> list[int]:
        """Raw value of each field; registers that the job does not write count as 0."""
        wide = np.zeros(len(self.registers), np.uint32)
        wide[list(self.slots)] = words
        return [int(item.extract(wide)) for item in self.fields]

    def with_raw(self, words: Sequence[int], item: Field, raw: Any) -> tuple[int, ...]:
        """The words with a field changed; raises ValueError where the raw value does not fit, or
        has bits in registers that the job does not write."""
        wide = np.zeros(len(self.registers), np.uint32)
        wide[list(self.slots)] = words
        item.insert(wide, raw)
        changed = tuple(int(word) for word in wide[list(self.slots)])
        wide[list({*range(len(wide))} - {*self.slots})] = 0
        if int(item.extract(wide)) != int(item.stored(raw)):
            raise ValueError(
                f"field {item.name}: got raw {int(raw):#x}, which sets bits of registers that the "
                "job "
                f"does not write"
            )
        return changed

    def bits(self, item: Field) -> str:
        """Where a field lies, as ``w2[26] w15[27:22]``: pieces from the low end of the value."""
        return " ".join(f"{self.registers[p.word]}{span(p.lsb, p.width)}" for p in item.pieces)


class BitsModel(Model):
    """Words of a register block, compared with a reference; it needs no browser.

    ``words`` and ``reference`` are tuples of ints, ``cursor`` is (word, bit), ``selection`` a run
    of bits (word, lsb, width) or empty; all can be set and observed.  ``values`` (a text per field)
    and ``summary`` follow them.  What ``laws`` know of each bit is in ``letters``, how often it
    flips in their captures or in those of a ``sweep`` in ``shares`` (per word 32 numbers of 0 to
    100, bit 0 first).  ``read`` counts how often another map was taken.

    Raises ValueError for words that do not fit, and for laws or a sweep of another block.
    """

    words = Words()
    reference = Words()
    cursor = a_bit()
    selection = Numbers(
        "(word, lsb, width)",
        (),
        lambda owner, word, lsb, width: (
            (0, owner.count),
            (0, WORD_BITS),
            (1, WORD_BITS - lsb + 1),
        ),
        empty=True,
    )
    values = traitlets.List(traitlets.Unicode())
    summary = traitlets.Unicode()
    status = traitlets.Unicode()
    letters = traitlets.List(traitlets.Unicode())
    shares: traitlets.List[Any] = traitlets.List()
    read = traitlets.Int()
    _held = False  # while several changes are made that are told as one

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
        source = laws
        if laws is None:
            source = sweep
        super().__init__(words=words, reference=reference)
        if laws is not None:
            self.letters = ["".join(row) for row in self._placed(letters_of(laws.status))]
        if source is not None:
            self.shares = self.shades(flips(source.words))

    def shades(self, shares: Any) -> list[Any]:
        """Shares ``(W, 32)`` of 0 to 1 as whole hundredths, a row a word of the job."""
        return self._placed(np.rint(100 * np.asarray(shares)).astype(int).tolist())

    def _placed(self, rows: Sequence[Any]) -> list[Any]:
        """Rows by register as rows by word of the job."""
        if len(rows) != len(self.rows.registers) and len(rows) < max(self.rows.slots) + 1:
            raise ValueError(
                f"laws or sweep: got {len(rows)} words, allowed is {len(self.rows.registers)}"
            )
        return [rows[slot] for slot in self.rows.slots]

    def law_of(self, item: Field) -> str:
        """The laws that lie in a field, with their bits where they are not all of it."""
        if self.laws is None:
            return ""
        own = {(piece.word, piece.lsb, piece.width) for piece in item.pieces}
        out = [
            (
                law.text
                if (law.word, law.lsb, law.width) in own
                else f"{self.rows.registers[law.word]}{span(law.lsb, law.width)} {law.text}"
            )
            for law in self.laws.fields
            if any(
                law.word == word and law.lsb < lsb + width and lsb < law.lsb + law.width
                for word, lsb, width in own
            )
        ]
        return "; ".join(map(str, out))

    def reread(self, rows: Rows, words: Sequence[int] | None = None) -> None:
        """Take the fields of another map, and other words where it has."""
        self.rows, self._cells = rows, rows.cells
        if words is not None and tuple(words) != self.words:
            with self.hold_trait_notifications():
                self.cursor, self.selection = (0, WORD_BITS - 1), ()
                self.words = self.reference = words
        self.read += 1
        self._tell(None)

    @property
    def count(self) -> int:
        """Words of the job."""
        return len(self.rows.slots)

    @property
    def fields(self) -> dict[str, Any]:
        """Every field's value as meant, by name."""
        return {
            name: item.text(raw)
            for name, item, raw in zip(
                self.rows.names, self.rows.fields, self.rows.raw(self.words), strict=True
            )
        }

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """(reference, now) of each field that differs, as meant, by name."""
        pairs = zip(self.rows.raw(self.reference), self.rows.raw(self.words), strict=True)
        return {
            name: (item.text(before), item.text(now))
            for name, item, (before, now) in zip(
                self.rows.names, self.rows.fields, pairs, strict=True
            )
            if before != now
        }

    @property
    def compared(self) -> str:
        """What the reference is called."""
        return "the reference"

    @property
    def unchanged(self) -> str:
        """What is said where no bit differs."""
        return f"no bit differs from {self.compared}"

    def evidence(self, code: str) -> str:
        """Who says so, in words where the code's source is known."""
        return code

    @property
    def differing(self) -> int:
        """Bits that differ from the reference."""
        return sum((a ^ b).bit_count() for a, b in zip(self.words, self.reference, strict=True))

    def describe(self, word: int, bit: int) -> str:
        """A bit and its field in one line: place, name, bits, raw and value, evidence, note."""
        index = self._index(word, bit)
        about = self.about(index)
        return " · ".join(
            [
                f"{self.rows.labels[word]} bit {bit}",
                f"{about['name']} {about['bits']}",
                self.values[index],
                about["known"],
            ]
        )

    def about(self, index: int) -> dict[str, Any]:
        """What a view shows of a field and does not change with the words; pieces as [word, lsb,
        width], ``kind`` is its evidence without the case."""
        item = self.rows.fields[index]
        law = self.law_of(item)
        known = " · ".join(
            filter(
                None, [f"evidence {self.evidence(item.evidence)}", item.note, law and f"law {law}"]
            )
        )
        pieces = [
            [self.rows.slots.index(piece.word), piece.lsb, piece.width]
            for piece in item.pieces
            if piece.word in self.rows.slots
        ]
        return {
            "name": self.rows.names[index],
            "bits": self.rows.bits(item),
            "known": known,
            "kind": item.evidence.partition(":")[0],
            "automatic": item.automatic,
            "pieces": pieces,
            "choices": [name for _, name in item.names[:CHOICES]],
        }

    def _index(self, word: int, bit: int) -> int:
        word, bit = type(self).cursor.check("bit", self, (word, bit))
        return next(index for index, piece in self._cells[word] if piece.lsb <= bit)

    @traitlets.observe("words", "reference")
    def _tell(self, _: Any) -> None:
        if self._held:
            return
        now = self.rows.raw(self.words)
        if self.words == self.reference:
            before = now
        else:
            before = self.rows.raw(self.reference)
        self.values = [_value(*each) for each in zip(self.rows.fields, now, before, strict=True)]
        changes = [
            f"{name} {meant(item, old)} → {meant(item, new)}"
            for name, item, old, new in zip(
                self.rows.names, self.rows.fields, before, now, strict=True
            )
            if old != new
        ]
        if changes:
            self.summary = _summary(self.differing, changes, self.compared)
        else:
            self.summary = self.unchanged

    def _repr_html_(self) -> str:
        words = [_html_row(self, word) for word in range(self.count)]
        if len(words) >= ROWS_SHOWN:
            left = len(words) - ROWS_SHOWN + 2
            words[-left:] = [f"<tr><td colspan='3'>… {left} more words</td></tr>"]
        head = "".join(
            f"<th style='text-align:left'>{name}</th>" for name in ("register", "word", "fields")
        )
        return (
            f"{self.heading_html()}"
            f"<table style='font-family:monospace'><tr>{head}</tr>{''.join(words)}</table>"
        )


class BitsView(View):
    """What the page takes of a ``BitsModel``, the last of the models."""

    _of: type[Model] = BitsModel
    _linked: tuple[str, ...] = ("words", "reference", "cursor", "selection")
    _followed: tuple[str, ...] = ("values", "status", "letters", "shares")

    registers = traitlets.List(traitlets.Unicode()).tag(sync=True)
    places: traitlets.List[Any] = traitlets.List().tag(sync=True)

    def __init__(self, *models: Any, **traits: Any) -> None:
        super().__init__(*models, **_drawn(models[-1]) | traits)
        models[-1].observe(self._redraw, "read")

    def _redraw(self, change: Any) -> None:
        for name, value in _drawn(change.owner).items():
            setattr(self, name, value)


def _drawn(model: BitsModel) -> dict[str, Any]:
    """What a view draws its rows from, the fields last."""
    return {
        "registers": list(model.rows.labels),
        "places": [model.about(index) for index in range(len(model.rows.fields))],
    }


def letters_of(status: Any) -> list[list[str]]:
    """The letter of what is known of each bit, a list a word, bit 31 first."""
    return [[LETTERS.get(str(name), "?") for name in row[::-1]] for row in np.asarray(status)]


def span(lsb: int, width: int) -> str:
    if width > 1:
        return f"[{lsb + width - 1}:{lsb}]"
    return f"[{lsb}]"


def meant(item: Field, raw: int) -> str:
    value = item.text(raw)
    if item.address and isinstance(value, int):
        return f"{value:#x}"
    return str(value)


def _value(item: Field, now: int, before: int) -> str:
    reference = ""
    if before != now:
        reference = f", reference {before:#x} = {meant(item, before)}"
    return f"{now:#x} = {meant(item, now)}{reference}"


def _summary(bits: int, changes: Sequence[str], compared: str) -> str:
    more = ""
    if len(changes) > CHANGES_NAMED:
        more = f", … {len(changes) - CHANGES_NAMED} more"
    return (
        f"{plural(bits, 'bit')} in {plural(len(changes), 'field')} differ{'s' * (bits == 1)} "
        f"from {compared}: {', '.join(changes[:CHANGES_NAMED])}{more}"
    )


def _html_row(model: BitsModel, word: int) -> str:
    now, reference = model.words[word], model.reference[word]
    if now == reference:
        shown = f"{now:#010x}"
    else:
        shown = f"<b>{now:#010x}</b> (reference {reference:#010x})"
    fields = ", ".join(_html_field(model, cell) for cell in model._cells[word])
    return (
        f"<tr><td style='text-align:left;vertical-align:top'>{html.escape(model.rows.labels[word])}</td>"
        f"<td style='text-align:left;vertical-align:top;white-space:nowrap'>{shown}</td>"
        f"<td style='text-align:left'>{fields}</td></tr>"
    )


# The value stands where the lowest piece of a field is; the other pieces say which of its bits they
# are.
def _html_field(model: BitsModel, cell: Cell) -> str:
    item, piece = model.rows.fields[cell.field], cell.piece
    if piece != next(each for each in item.pieces if each.word in model.rows.slots):
        return html.escape(f"{item.name}{span(piece.at, piece.width)}")
    value = model.values[cell.field].partition(" = ")[2]
    text = html.escape(f"{item.name} {value}")
    if ", reference " in value:
        return f"<b>{text}</b>"
    return text


def need_laws(what: str, given: object) -> None:
    """Raise TypeError for what has not the status of each bit, as laws have; a map's is a
    method.
    """
    status = getattr(given, "status", None)
    if status is None or callable(status):
        raise TypeError(
            f"{what}: got {shortly(given)}, allowed are Laws, as npulab.find_laws gives"
        )
