"""The words of one job as rows of bits, and its fields by name: to look at and to change.

``RegisterModel`` holds the state and all the logic and needs no browser; ``RegisterView`` shows it.
"""

from __future__ import annotations

import html
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np
import traitlets

from npulab.analysis.draft import Draft
from npulab.captures.capture import ROWS_SHOWN, Capture, Job
from npulab.notebook.widgets.frame import Model, View, assets
from npulab.registers.fields import WORD_BITS, Field, Piece
from npulab.registers.map import RegisterMap

LARGEST = 2 ** WORD_BITS - 1
CHANGES_NAMED = 4
CHOICES = 100  # names of an enum that are offered while a value is typed
ACTS = ("undo", "redo", "type")


# The checks are trait types, not @validate methods: while a message of several traits is taken in,
# traitlets runs those methods last and takes back only what TraitError refuses.
class Words(traitlets.TraitType[tuple[int, ...], Any]):
    """The words of a job, from any iterable of whole numbers; its owner says how many in
    ``count``."""

    default_value = ()

    def validate(self, obj: Any, value: Iterable[Any]) -> tuple[int, ...]:
        try:
            words = tuple(operator.index(word) for word in value)
        except TypeError:
            raise ValueError(f"{self.name}: got {value!r}, allowed are {obj.count} whole numbers") from None
        if len(words) != obj.count:
            raise ValueError(f"{self.name}: got {len(words)}, allowed is {obj.count}")
        for index, word in enumerate(words):
            if not 0 <= word <= LARGEST:
                raise ValueError(f"{self.name}: got {word} as word {index}, allowed is 0 to {LARGEST}")
        return words


class Place(traitlets.TraitType[tuple[int, int], Any]):
    """A bit of the job: index of the word, number of the bit."""

    default_value = (0, WORD_BITS - 1)

    def validate(self, obj: Any, value: Iterable[Any]) -> tuple[int, int]:
        try:
            word, bit = (operator.index(number) for number in value)
        except (TypeError, ValueError):
            raise ValueError(f"{self.name}: got {value!r}, allowed is (word, bit)") from None
        return _place(word, bit, obj.count)


class Run(traitlets.TraitType[tuple[int, ...], Any]):
    """A run of bits of one word: index of the word, lowest bit, width; or empty."""

    default_value = ()

    def validate(self, obj: Any, value: Iterable[Any]) -> tuple[int, ...]:
        return _run(self.name, value, obj.count)


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
            raise ValueError(f"words: got {len(job.words)}, allowed is {len(registers)} (block {job.block})")
        labels = tuple(register for _, _, register in registers.registers)
        return cls(tuple(registers), tuple(map(registers.key, registers)), labels, tuple(range(len(labels))))

    @classmethod
    def _written(cls, job: Job, registers: RegisterMap) -> Rows:
        labels = [register for _, _, register in registers.registers]
        index = dict(registers.index)
        extra = []
        for offset in dict(job.writes):
            if offset not in index:
                index[offset] = len(labels)
                labels.append(f"{offset:#06x}")
                extra.append(replace(Field.whole_word(job.block, labels[-1]),
                                     pieces=(Piece(index[offset], 0, WORD_BITS, 0),)))
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
        return tuple(tuple(sorted(lines[slot], key=lambda cell: -cell.piece.lsb)) for slot in self.slots)

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
            raise ValueError(f"field {item.name}: got raw {int(raw):#x}, which sets bits of registers that the job "
                             f"does not write")
        return changed

    def bits(self, item: Field) -> str:
        """Where a field lies, as ``w2[26] w15[27:22]``: pieces from the low end of the value."""
        return " ".join(f"{self.registers[p.word]}{_span(p.lsb, p.width)}" for p in item.pieces)


class RegisterModel(Model):
    """The words of one job, flipped bit by bit and compared with a reference.

    ``words`` and ``reference`` are tuples of ints, ``cursor`` is (word, bit), ``selection`` a run
    of bits (word, lsb, width) or empty; all can be set and observed.  ``values`` (a text per field)
    and ``summary`` follow them, ``status`` says what came of the last message.  Without a
    ``reference`` the capture as given is the one compared with.  ``read`` counts how often another
    map was taken.

    Raises LookupError for a job or block that is not there, ValueError for words that do not fit.

    >>> registers = RegisterMap([dict(block="NN", register="CFG", field="relu", lsb=24, width=1)])
    >>> model = RegisterModel(Capture("a", "demo", "x", (Job("NN", [0]),), maps={"NN": registers}))
    >>> model.flip(0, 24)
    >>> model.changed
    {'relu': (0, 1)}
    >>> model.undo(), model.put("relu", "0x1")
    (True, 'relu 0 → 1')
    >>> model.describe(0, 24)
    'CFG bit 24 · relu CFG[24] · 0x1 = 1, reference 0x0 = 0 · evidence unknown'
    """

    words = Words()
    reference = Words()
    cursor = Place()
    selection = Run()
    values = traitlets.List(traitlets.Unicode())
    summary = traitlets.Unicode()
    status = traitlets.Unicode()
    read = traitlets.Int()

    def __init__(self, capture: Capture, reference: Capture | None = None, task: int = 0) -> None:
        job, other = _job(capture, task), _job(reference or capture, task)
        if (other.block, list(dict(other.writes))) != (job.block, list(dict(job.writes))):
            raise ValueError(f"reference {(reference or capture).name}: got {other!r}, allowed is one that "
                             f"sets the same registers as {job!r}")
        self.task = task
        self.rows = Rows.of(job, _registers(capture, job))
        self._given = capture
        self._cells = self.rows.cells
        self._history: list[tuple[int, ...]] = []
        self._undone: list[tuple[int, ...]] = []
        super().__init__(words=_shown(job), reference=_shown(other))

    @property
    def count(self) -> int:
        """Words of the job."""
        return len(self.rows.slots)

    @property
    def capture(self) -> Capture:
        """The capture as given, with the words as they are now."""
        job, registers = self._given.jobs[self.task], self._given.maps[self._given.jobs[self.task].block]
        if not job.writes:
            return self._given.with_words(self.words, self.task)
        written = dict(zip(dict(job.writes), self.words, strict=True))
        return self._given.with_job(job.with_writes(written, registers), self.task)

    @property
    def fields(self) -> dict[str, Any]:
        """Every field's value as meant, by name."""
        return {name: item.text(raw)
                for name, item, raw in zip(self.rows.names, self.rows.fields, self.rows.raw(self.words), strict=True)}

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """(reference, now) of each field that differs, as meant, by name."""
        pairs = zip(self.rows.raw(self.reference), self.rows.raw(self.words), strict=True)
        return {name: (item.text(before), item.text(now)) for name, item, (before, now)
                in zip(self.rows.names, self.rows.fields, pairs, strict=True) if before != now}

    @property
    def title(self) -> str:
        block = self._given.jobs[self.task].block
        return (f"{self._given.target}/{self._given.name}, job {self.task} {block}, "
                f"{self.count} word{'s' if self.count > 1 else ''}")

    @property
    def simulated(self) -> bool:
        return self._given.simulated

    @property
    def line(self) -> str:
        bits = self.differing
        return (f"{self.title}{', simulated' if self.simulated else ''}, "
                f"{bits} bit{'' if bits == 1 else 's'} differ{'s' if bits == 1 else ''}")

    @property
    def differing(self) -> int:
        """Bits that differ from the reference."""
        return sum((a ^ b).bit_count() for a, b in zip(self.words, self.reference, strict=True))

    def flip(self, word: int, bit: int) -> None:
        """Turn one bit over."""
        word, bit = _place(word, bit, self.count)
        self.words = (*self.words[:word], self.words[word] ^ 2 ** bit, *self.words[word + 1:])

    def undo(self) -> bool:
        """Take the last change of the words back; False where there was none."""
        if self._history:
            self.words = self._history[-1]
            return True
        return False

    def redo(self) -> bool:
        """Make the change again that was undone last; False where there was none."""
        if self._undone:
            self.words = self._undone[-1]
            return True
        return False

    def put(self, field: str, value: Any) -> str:
        """Give a field a value as meant, or a text as people type it: a decimal or hexadecimal
        number, a name of its enum, or ``raw`` and a number as it is stored.  Returns what changed.

        Raises LookupError for a field or a name that is not there, ValueError for a value that does
        not fit.
        """
        if field not in self.rows.names:
            near = get_close_matches(field, self.rows.names, 3)
            raise LookupError(f"field: got {field!r:.80}, near it are {', '.join(near) or 'none'}")
        return self._put(self.rows.fields[self.rows.names.index(field)], field, value)

    def press(self, message: Any) -> None:
        """Do what a message of the page asks for and say in ``status`` what came of it; it never
        raises.

        ``do`` is one of ``ACTS``; ``type`` has ``text`` and the index of a ``field`` or a ``run``
        (word, lsb, width).
        """
        self.status = ""  # the same words again are news, too
        try:
            self.status = self._act(message)
        except (ValueError, LookupError, OverflowError) as error:
            self.status = f"refused: {error}"

    def _act(self, message: Any) -> str:
        do = message.get("do") if isinstance(message, Mapping) else None
        if do not in ACTS:
            raise ValueError(f"got {str(message)[:80]}, allowed is one of {', '.join(ACTS)}")
        if do == "type":
            item = self._asked(message.get("field"), message.get("run"))
            return self._put(item, item.name, str(message.get("text", "")))
        return f"{do}ne" if (self.undo() if do == "undo" else self.redo()) else f"nothing to {do}"

    def _asked(self, field: Any, run: Any) -> Field:
        """The field of a message, or its run of bits as a field."""
        if run is None:
            if not isinstance(field, int) or not 0 <= field < len(self.rows.fields):
                raise ValueError(f"field: got {field!r:.80}, allowed is 0 to {len(self.rows.fields) - 1}")
            return self.rows.fields[field]
        word, lsb, width = _run("run", run, self.count) or (0, 0, WORD_BITS)
        register = self.rows.labels[word]
        return Field("", register, f"{register}{_span(lsb, width)}", (Piece(self.rows.slots[word], lsb, width, 0),))

    def _put(self, item: Field, name: str, value: Any) -> str:
        raw = _typed(item, value) if isinstance(value, str) else item.raw(value)
        before = self._raw(item)
        self.words = self.rows.with_raw(self.words, item, raw)
        return f"{name} {_meant(item, before)} → {_meant(item, self._raw(item))}"

    def _raw(self, item: Field) -> int:
        return replace(self.rows, fields=(item,)).raw(self.words)[0]

    def follow(self, draft: Draft) -> None:
        """Read the words with the map of a draft, now and after each of its edits; where it does
        not fit them any more, ``summary`` says so and the fields stay as they were.

        Raises as ``Draft.decode`` where it does not fit now.
        """
        self._reread(draft.decode(self._given))
        draft.observe(self._follow)

    def leave(self, draft: Draft) -> None:
        """Follow a draft no more."""
        draft.unobserve(self._follow)

    def _follow(self, draft: Draft) -> None:
        try:
            self._reread(draft.decode(self._given))
        except (ValueError, LookupError) as error:
            self.summary = f"the draft does not fit: {error}"

    def _reread(self, given: Capture) -> None:
        job = given.jobs[self.task]
        rows = Rows.of(job, _registers(given, job))
        self.rows, self._cells, self._given = rows, rows.cells, given
        self.read += 1
        self._tell(None)

    def field_at(self, word: int, bit: int) -> Field:
        """The field that a bit belongs to; its pieces count words as the register map does."""
        return self.rows.fields[self._index(word, bit)]

    def describe(self, word: int, bit: int) -> str:
        """A bit and its field in one line: place, name, bits, raw and value, evidence, note."""
        index = self._index(word, bit)
        about = self.about(index)
        return " · ".join([f"{self.rows.labels[word]} bit {bit}", f"{about['name']} {about['bits']}",
                           self.values[index], about["known"]])

    def about(self, index: int) -> dict[str, Any]:
        """What a view shows of a field and does not change with the words; pieces as [word, lsb,
        width], ``kind`` is its evidence without the case."""
        item = self.rows.fields[index]
        known = f"evidence {item.evidence}" + (f" · {item.note}" if item.note else "")
        pieces = [[self.rows.slots.index(piece.word), piece.lsb, piece.width]
                  for piece in item.pieces if piece.word in self.rows.slots]
        return {"name": self.rows.names[index], "bits": self.rows.bits(item), "known": known,
                "kind": item.evidence.partition(":")[0], "automatic": item.automatic, "pieces": pieces,
                "choices": [name for _, name in item.names[:CHOICES]]}

    def _index(self, word: int, bit: int) -> int:
        word, bit = _place(word, bit, self.count)
        return next(index for index, piece in self._cells[word] if piece.lsb <= bit)

    @traitlets.observe("words")
    def _remember(self, change: Any) -> None:
        # Going back to the words before the last change is its undo, whoever does it.
        if self._history and self._history[-1] == change.new:
            self._undone.append(change.old)
            self._history.pop()
        elif change.old:
            self._history.append(change.old)
            if self._undone and self._undone.pop() != change.new:
                self._undone.clear()

    @traitlets.observe("words", "reference")
    def _tell(self, _: Any) -> None:
        now, before = self.rows.raw(self.words), self.rows.raw(self.reference)
        self.values = [_value(*each) for each in zip(self.rows.fields, now, before, strict=True)]
        changes = [f"{name} {_meant(item, old)} → {_meant(item, new)}" for name, item, old, new
                   in zip(self.rows.names, self.rows.fields, before, now, strict=True) if old != new]
        self.summary = _summary(self.differing, changes)

    def _repr_html_(self) -> str:
        words = [_html_row(self, word) for word in range(self.count)]
        if len(words) >= ROWS_SHOWN:
            left = len(words) - ROWS_SHOWN + 2
            words[-left:] = [f"<tr><td colspan='3'>… {left} more words</td></tr>"]
        head = "".join(f"<th style='text-align:left'>{name}</th>" for name in ("register", "word", "fields"))
        return (f"{self.heading_html()}"
                f"<table style='font-family:monospace'><tr>{head}</tr>{''.join(words)}</table>")


class RegisterView(View):
    """The words of one job of a capture as rows of bits with their fields' names, beside a list of
    the fields: a click selects, a drag selects a run, Enter types a value, Space flips.

    ``words``, ``reference``, ``cursor`` and ``selection`` are the model's and can be set and
    observed; ``capture``, ``fields`` and ``changed`` follow them.  ``undo``, ``redo``, ``put`` and
    everything else is on ``model``.  With a ``draft`` the words are read with its map and anew after each of its edits.
    """

    _esm, _css = assets("register_view")
    _linked = ("words", "reference", "cursor", "selection")
    _followed = ("values", "status")

    words = Words().tag(sync=True)
    reference = Words().tag(sync=True)
    cursor = Place().tag(sync=True)
    selection = Run().tag(sync=True)
    values = traitlets.List(traitlets.Unicode()).tag(sync=True)
    status = traitlets.Unicode().tag(sync=True)
    registers = traitlets.List(traitlets.Unicode()).tag(sync=True)
    places: traitlets.List[Any] = traitlets.List().tag(sync=True)
    draft: Draft | None = None

    def __init__(self, capture: Capture, reference: Capture | None = None, task: int = 0,
                 draft: Draft | None = None) -> None:
        capture = capture if draft is None else draft.decode(capture)
        model = RegisterModel(capture, reference, task)
        self.draft = draft
        super().__init__(model, **_drawn(model))
        self.on_msg(self._receive)
        model.observe(self._redraw, "read")
        if draft is not None:
            model.follow(draft)

    def _redraw(self, _: Any) -> None:
        for name, value in _drawn(self.model).items():
            setattr(self, name, value)

    def close(self) -> None:
        if self.draft is not None:
            self.model.leave(self.draft)
        super().close()


def _drawn(model: RegisterModel) -> dict[str, Any]:
    """What a view draws its rows from, the fields last."""
    return {"registers": list(model.rows.labels),
            "places": [model.about(index) for index in range(len(model.rows.fields))]}


def _job(capture: Capture, task: int) -> Job:
    if not 0 <= task < len(capture.jobs):
        raise LookupError(f"capture {capture.name}: got task {task}, it has 0 to {len(capture.jobs) - 1}")
    return capture.jobs[task]


def _registers(capture: Capture, job: Job) -> RegisterMap:
    if job.block not in capture.maps:
        raise LookupError(f"block: got {job.block!r}, maps are known for {', '.join(capture.maps) or 'none'}")
    return capture.maps[job.block]


def _place(word: int, bit: int, count: int) -> tuple[int, int]:
    for name, got, end in (("word", word, count), ("bit", bit, WORD_BITS)):
        if not 0 <= got < end:
            raise ValueError(f"{name}: got {got}, allowed is 0 to {end - 1}")
    return word, bit


def _run(name: str | None, value: Any, count: int) -> tuple[int, ...]:
    try:
        run = tuple(operator.index(number) for number in value)
    except TypeError:
        run = (0,)
    if len(run) not in (0, 3):
        raise ValueError(f"{name}: got {value!r}, allowed is (word, lsb, width) or ()")
    if run:
        _, lsb, width = run
        _place(run[0], lsb, count)
        if not 1 <= width <= WORD_BITS - lsb:
            raise ValueError(f"{name}: got width {width} at bit {lsb}, allowed is 1 to {WORD_BITS - lsb}")
    return run


def _shown(job: Job) -> Sequence[int]:
    """The words of a parameter block, or the last value of each register that was written."""
    return list(dict(job.writes).values()) if job.writes else job.words.tolist()


def _span(lsb: int, width: int) -> str:
    return f"[{lsb + width - 1}:{lsb}]" if width > 1 else f"[{lsb}]"


def _typed(item: Field, text: str) -> Any:
    """Raw of a value as people type it."""
    text = text.strip()
    stored = text.startswith("raw ")
    if not stored and text in dict(item.names).values():
        return item.raw(text)
    try:
        number: Any = int(text.removeprefix("raw "), 0)
    except ValueError:
        try:
            number = float(text)
        except ValueError:
            names = f", or one of {', '.join(name for _, name in item.names[:8])}" if item.names else ""
            raise ValueError(f"{item.name}: got {text!r:.80}, allowed is a number such as 12 or 0x0c{names}; "
                             "raw 12 is as stored") from None
    return number if stored else item.raw(number)


def _meant(item: Field, raw: int) -> str:
    value = item.text(raw)
    return f"{value:#x}" if item.address and isinstance(value, int) else str(value)


def _value(item: Field, now: int, before: int) -> str:
    reference = f", reference {before:#x} = {_meant(item, before)}" if before != now else ""
    return f"{now:#x} = {_meant(item, now)}{reference}"


def _summary(bits: int, changes: Sequence[str]) -> str:
    if not changes:
        return "no bit differs from the reference"
    more = f", … {len(changes) - CHANGES_NAMED} more" if len(changes) > CHANGES_NAMED else ""
    return (f"{bits} bit{'s' if bits > 1 else ''} in {len(changes)} field{'s' if len(changes) > 1 else ''} "
            f"differ{'' if bits > 1 else 's'} from the reference: "
            f"{', '.join(changes[:CHANGES_NAMED])}{more}")


def _html_row(model: RegisterModel, word: int) -> str:
    now, reference = model.words[word], model.reference[word]
    shown = f"{now:#010x}" if now == reference else f"<b>{now:#010x}</b> (reference {reference:#010x})"
    fields = ", ".join(_html_field(model, cell) for cell in model._cells[word])
    return (f"<tr><td style='text-align:left;vertical-align:top'>{html.escape(model.rows.labels[word])}</td>"
            f"<td style='text-align:left;vertical-align:top;white-space:nowrap'>{shown}</td>"
            f"<td style='text-align:left'>{fields}</td></tr>")


# The value stands where the lowest piece of a field is; the other pieces say which of its bits they
# are.
def _html_field(model: RegisterModel, cell: Cell) -> str:
    item, piece = model.rows.fields[cell.field], cell.piece
    if piece != next(each for each in item.pieces if each.word in model.rows.slots):
        return html.escape(f"{item.name}{_span(piece.at, piece.width)}")
    value = model.values[cell.field].partition(" = ")[2]
    text = html.escape(f"{item.name} {value}")
    return f"<b>{text}</b>" if ", reference " in value else text
