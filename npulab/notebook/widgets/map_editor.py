"""A draft of a register map as a table of fields, to name, split, join and describe them.

``MapModel`` holds the state and all the logic and needs no browser; ``MapEditor`` shows it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from traitlets import Bool, List, Unicode

from npulab.analysis.draft import Draft
from npulab.captures.capture import Capture
from npulab.notebook.widgets.bits_view import BitsModel, BitsView, Rows, meant
from npulab.notebook.widgets.frame import ActingModel, assets, table_html
from npulab.registers.fields import WORD_BITS, Field
from npulab.registers.map import STATUS, RegisterMap
from npulab.support.refuse import need
from npulab.support.text import plural

COLUMNS = ("register", "bits", "field", "capture", "value", "evidence", "note")
EDITED = {"field": "rename", "evidence": "set_evidence", "note": "set_note"}
STEPS_SHOWN = 12  # the HTML shows at most this many steps
ACTS = ("cell", "split", "join", "add", "remove", "undo", "redo", "save")
BITS = re.compile(r"(?:(\d{1,4})?\[)?(\d{1,2})(?::(\d{1,2}))?\]?")


class MapModel(ActingModel):
    """The fields of a draft as rows of texts, edited by messages; it needs no browser.

    ``rows`` has, for each field, its name in ``draft`` and a text for each of ``COLUMNS``;
    ``steps`` are the draft's, ``undone`` is the step that redo would make, and ``status`` reports
    the last act; ``path`` is the draft's file ("" if it has none), ``saved`` is True if the file
    has the draft as it is now. With a ``capture``, the column ``capture`` has the values of a job
    as the map reads them now: of the job ``task``, by default of the first job of the draft's
    block. Everything follows the draft, whoever edits it; ``bits`` is a ``BitsModel`` of its words,
    with the status of bits in ``laws``, and with the flips in a ``sweep`` of these words.

    Raises LookupError for a capture without a job of the draft's block, ValueError for words that
    do not fit.

    >>> import npulab
    >>> model = MapModel(npulab.draft(1, block="NN"))
    >>> model.press({"do": "split", "field": "w0_0_32", "text": "mode:4 28"})
    >>> [row[3] for row in model.rows]
    ['mode', 'w0_4_28']
    >>> model.press({"do": "cell", "field": "mode", "column": "value", "text": "raw/2"})
    >>> model.status.partition(", allowed")[0]
    "refused: register map, register w0 field mode: value 'raw/2': got '/'"
    """

    rows: List[Any] = List()
    steps = List(Unicode())
    undone = Unicode()
    path = Unicode()
    saved = Bool()
    summary = Unicode()
    title = Unicode()

    def __init__(
        self,
        draft: Draft,
        capture: Capture | None = None,
        task: int | None = None,
        laws: Any = None,
        sweep: Any = None,
    ) -> None:
        need("MapEditor", draft, Draft, "is a Draft, as npulab.draft(path) gives")
        need(
            "MapEditor: capture",
            capture,
            (Capture, type(None)),
            "is a Capture, as npulab.load gives",
        )
        self.draft, self.capture, self.sweep = draft, capture, sweep
        self._task = 0
        if capture is not None:
            self._task = _task(draft, capture, task)
        super().__init__()
        words = [0] * len(draft.map)
        self.bits = BitsModel(Rows.whole(draft.map), words, words, laws, sweep)
        self._follow(draft)
        draft.observe(self._follow)

    @property
    def simulated(self) -> bool:
        return self.capture is not None and self.capture.simulated

    @property
    def count(self) -> int:
        """The number of words in the map."""
        return self.bits.count

    @property
    def line(self) -> str:
        return f"{self.marked_title}; {self.summary}"

    @property
    def columns(self) -> list[str]:
        """The names of the shown columns: ``COLUMNS``, without "capture" if there is no capture."""
        columns = list(COLUMNS)
        if self.capture is None:
            columns.remove("capture")
        return columns

    def close(self) -> None:
        """Stop following the edits of the draft."""
        self.draft.unobserve(self._follow)

    def _act(self, message: Any) -> str:
        """Act on a message whose ``do`` is one of ``ACTS``.

        ``cell`` has ``field``, ``column`` and ``text``: the text of that cell as the column shows
        it, such as ``12:4`` for bits or ``enum:mode 0=off 1=on`` for an enum with its names. The
        messages ``split``, ``join`` and ``add`` have ``field`` and ``text``. For ``split`` the text
        is such as ``low:2 4``: a width, or name:width, for each piece, lowest bits first. For
        ``join`` it is ``other as name``; ``field`` gives the lowest bits of the joined field. For
        ``add`` it is ``name 12:4``; the new field lies in the register of ``field``. ``save`` has
        ``text``: the path of a new file, or "" for the draft's own file.
        """
        if not isinstance(message, Mapping) or message.get("do") not in ACTS:
            raise ValueError(
                f"message: got {str(message)[:80]!r}, allowed is one of {', '.join(ACTS)}"
            )
        do, field, text = message["do"], message.get("field", ""), message.get("text", "")
        if not isinstance(field, str) or not isinstance(text, str):
            raise ValueError(f"{do}: got field {field!r:.40}, text {text!r:.40}, allowed are texts")
        if do in ("undo", "redo"):
            sentence = getattr(self.draft, do)()
            if sentence:
                return f"{do}: {sentence}"
            return f"nothing to {do}"
        if do == "save":
            return f"saved as {self.draft.save(text.strip() or None)}"
        before = len(self.draft.steps)
        if do == "remove":
            self.draft.remove(field)
        elif do == "split":
            self._split(field, text)
        elif do == "join":
            other, _, name = text.partition(" as ")
            self.draft.join(field, other.strip(), name.strip())
        elif do == "add":
            name, _, bits = text.strip().rpartition(" ")
            word, lsb, width = _run_of_bits(bits)
            register = self._register(field)
            if word is not None:
                register = word
            self.draft.add(name, register, lsb, width)
        else:
            self._cell(field, message.get("column"), text)
        if len(self.draft.steps) > before:
            return self.draft.steps[-1]
        return "nothing to change"

    def _split(self, field: str, text: str) -> None:
        names = []
        widths = []
        for part in _words(text):
            name, _, width = part.rpartition(":")
            names.append(name)
            widths.append(width)
        if not widths or not all(re.fullmatch(r"\d{1,2}", width) for width in widths):
            raise ValueError(
                f"split {field}: got {text[:80]!r}, allowed is a width, or name:width, "
                "for each piece, such as low:2 4"
            )
        if not any(names):
            names = []
        self.draft.split(field, widths=[*map(int, widths)], names=names)

    def _cell(self, field: str, column: Any, text: str) -> None:
        if column in EDITED:
            if column == "field" and not text.strip():
                self.draft.remove(field)
            else:
                getattr(self.draft, EDITED[column])(field, text)
        elif column == "register":
            word = self.draft.map[field].pieces[0].word
            self.draft.edit("rename_register", register=word, name=text)
        elif column == "bits":
            self._lay(field, *_run_of_bits(text))
        elif column == "value":
            value, names = text.strip(), {}
            if "=" in text:
                value, *pairs = _words(text)
                for pair in pairs:
                    raw, _, name = pair.partition("=")
                    names[raw] = name
            self.draft.edit("retype", field=field, value=value, names=names)
        else:
            raise ValueError(
                f"cell: got column {str(column)[:80]!r}, allowed is one of register, bits, value, "
                f"{', '.join(EDITED)}"
            )

    def _register(self, field: str) -> str | int:
        """Return the name of a field's register, or its word if the name is not unique."""
        item = self.draft.map[field]
        names = [name for _, _, name in self.draft.map.registers]
        if names.count(item.register) == 1:
            return item.register
        return item.pieces[0].word

    def _lay(self, field: str, word: int | None, lsb: int, width: int) -> None:
        """Move a field of a single piece to other bits of ``word``, or, if ``word`` is None, of the
        word that the field is in.
        """
        piece = self.draft.map[field].pieces[0]
        if word is None:
            word = piece.word
        if (word, lsb) != (piece.word, piece.lsb):
            self.draft.move(field, word, lsb, width)
        elif width != piece.width:
            self.draft.resize(field, width)

    def _follow(self, draft: Draft) -> None:
        registers = draft.map
        raw: dict[str, int] = {}
        words = np.zeros(len(registers), np.uint32)
        lost = ""
        if self.capture is not None:
            try:
                raw = self._captured(draft, self.capture, words)
            except (ValueError, LookupError) as error:
                lost = f"; {self.capture.name} cannot be read: {error}"
        keys = map(registers.key, registers)
        self.rows = [
            _table_row(key, item, raw.get(key)) for key, item in zip(keys, registers, strict=True)
        ]
        self.bits.reread(Rows.whole(registers), words.tolist())
        self.steps, self.undone = draft.steps, next(iter(draft.undone), "")
        self.saved = draft.saved
        if draft.path is not None:
            self.path = draft.path.as_posix()
        saved = "not saved"
        if self.saved:
            saved = "saved"
        steps = plural(len(self.steps), "step")
        self.summary = f"{self._counted(registers)}; {steps}, {saved}{lost}"
        title = f"{draft.name}: {plural(len(self.rows), 'field')} of "
        title += plural(len(registers), "word")
        if self.capture is not None:
            title += f", read in {self.capture.target}/{self.capture.name}"
            jobs = len(self.capture.jobs)
            if jobs > 1:
                title += f", job {self._task}, 1 of {jobs} jobs"
        self.title = title

    def _counted(self, registers: RegisterMap) -> str:
        """Return as text how many bits of the map have each status, as ``RegisterMap.status``
        counts them, over the sweep's words if there is a sweep.
        """
        names = list(STATUS[:3])
        if self.sweep is not None:
            names = list(STATUS)
        counts = registers.status(getattr(self.sweep, "words", None))[names].sum()
        known = [f"{count} {name}" for name, count in counts.items()]
        return f"{', '.join(known)} of {WORD_BITS * len(registers)} bits"

    def _captured(self, draft: Draft, capture: Capture, words: np.ndarray) -> dict[str, int]:
        """Return the raw numbers of the job's fields by key, and write the job's words into
        ``words``, the words of the map.
        """
        capture = draft.decode(capture)
        job = capture.jobs[self._task]
        own = capture.maps[job.block]
        blocks = [block for block, _, _ in draft.map.registers]
        items = list(draft.map)
        first = 0
        if len(own) != len(blocks):  # the map has other blocks than the job's, too
            items = [item for item in items if item.block == job.block]
            first = blocks.index(job.block)
        words[first : first + len(own)] = job.words
        values = {item: value for _, item, value in job.values(capture.maps)}
        raw = {}
        for item, read in zip(items, own, strict=True):
            if read in values:
                raw[draft.map.key(item)] = values[read]
        return raw

    def _repr_html_(self) -> str:
        rows = []
        for _, *row in self.rows:
            cells = dict(zip(COLUMNS, row, strict=False))
            rows.append([cells[name] for name in self.columns])
        face = self.heading_html() + table_html(self.columns, rows)
        if self.steps:
            steps = "".join(f"<li>{html.escape(step)}</li>" for step in self.steps[-STEPS_SHOWN:])
            first = max(0, len(self.steps) - STEPS_SHOWN) + 1
            face += f"<ol start='{first}'>{steps}</ol>"
        return face


class MapEditor(BitsView):
    """The fields of a draft as bits and as a table: a drag over bits (or Shift and arrows) makes a
    field, m picks a field up and puts it down on other bits; in the table arrows move, Enter edits
    a cell, a adds a field, s splits, j joins, x takes a name away, u and U undo and redo, /
    filters, Ctrl+S saves.

    With a ``capture`` a column has its values as the map reads them now. ``rows``, ``steps`` and
    ``status`` are the model's; everything else is on ``model`` and on ``draft``.
    """

    _esm, _css = assets("rows", "bits_view", "map_editor")
    _of, _linked, _fixed = MapModel, ("cursor", "selection"), ("columns",)
    _followed = (
        *BitsView._followed,
        *("words", "reference", "rows", "steps", "undone", "path", "saved", "status"),
    )

    def __init__(
        self,
        draft: Draft,
        capture: Capture | None = None,
        task: int | None = None,
        laws: Any = None,
        sweep: Any = None,
    ) -> None:
        model = MapModel(draft, capture, task, laws, sweep)
        super().__init__(model, model.bits)

    def close(self) -> None:
        if self.model is not None:
            self.model.close()
        super().close()


def _task(draft: Draft, capture: Capture, task: int | None) -> int:
    """Return the number of the job to read: ``task``, by default the first job of the draft's
    block. Raises LookupError if no such job has a block of the map.
    """
    block = draft.block_of(capture)
    blocks = {block}
    got = "no task"
    if task is not None:
        got = f"task {task}"
        blocks.update(name for name, _, _ in draft.map.registers)
    jobs = draft.decode(capture).jobs
    tasks = [number for number, job in enumerate(jobs) if job.block in blocks]
    if task is None and tasks:
        return tasks[0]
    if task is None or task not in tasks:
        has = ", ".join(map(str, tasks)) or "none"
        raise LookupError(f"capture {capture.name}: got {got} of block {block}, it has {has}")
    return task


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[\s,]+", text) if word]


def _run_of_bits(text: str) -> tuple[int | None, int, int]:
    """Return (word or None, lowest bit, width) of a text such as ``12:4``, ``8[12:4]`` or ``7``;
    raises ValueError for any other text.
    """
    match = BITS.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"bits: got {text[:80]!r}, allowed is highest and lowest bit such as 12:4, "
            "or a single bit such as 7"
        )
    high, low = int(match[2]), int(match[3] or match[2])
    if not low <= high < WORD_BITS:
        raise ValueError(
            f"bits: got {high}:{low}, allowed are bits from {WORD_BITS - 1} to 0, the "
            "highest bit first"
        )
    word = None
    if match[1]:
        word = int(match[1])
    return word, low, high - low + 1


def _table_row(key: str, item: Field, raw: int | None) -> list[str]:
    """Return the key of a field, then a text for each of ``COLUMNS``, then "automatic" or ""."""
    captured = ""
    if raw is not None:
        captured = f"{raw:#x} = {meant(item, raw)}"
    automatic = ""
    if item.automatic:
        automatic = "automatic"
    meaning = str(item.meaning)
    place = item.register, item.bits, item.name
    return [key, *place, captured, meaning, item.evidence, item.note, automatic]
