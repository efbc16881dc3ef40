"""A register map that is being made, as a table of fields to name, split, join and say things of.

``MapModel`` holds the state and all the logic and needs no browser; ``MapEditor`` shows it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import traitlets

from npulab.analysis.draft import Draft
from npulab.captures.capture import Capture
from npulab.notebook.widgets.bits_view import BitsModel, BitsView, Rows, meant
from npulab.notebook.widgets.frame import Model, assets, table_html
from npulab.registers.fields import WORD_BITS, Field
from npulab.registers.map import STATUS
from npulab.support.refuse import need
from npulab.support.text import plural

COLUMNS = ("register", "bits", "field", "capture", "value", "evidence", "note")
EDITED = {"field": "rename", "evidence": "set_evidence", "note": "set_note"}
STEPS_SHOWN = 12
ACTS = ("cell", "split", "join", "add", "remove", "undo", "redo")
BITS = re.compile(r"(?:(\d{1,4})?\[)?(\d{1,2})(?::(\d{1,2}))?\]?")


class MapModel(Model):
    """The fields of a draft as rows of texts, edited by messages; it needs no browser.

    ``rows`` has, for each field, what ``draft`` calls it and a text for each of ``COLUMNS``;
    ``steps`` are the draft's, ``undone`` is the step that redo would make, and ``status`` says what
    came of the last act.  With a ``capture``, the column of that name is what the map as it is now
    makes of one of its jobs: of ``task``, by default of the first one of the draft's block.
    Everything follows the draft, whoever edits it; ``bits`` is a ``BitsModel`` of its words, with
    what ``laws`` or a ``sweep`` of them say.

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

    rows: traitlets.List[Any] = traitlets.List()
    steps = traitlets.List(traitlets.Unicode())
    undone = traitlets.Unicode()
    status = traitlets.Unicode()
    summary = traitlets.Unicode()
    title = traitlets.Unicode()

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
        self.draft, self.capture = draft, capture
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
        """Words of the map."""
        return self.bits.count

    @property
    def line(self) -> str:
        return f"{self.title}{', simulated' if self.simulated else ''}; {self.summary}"

    @property
    def columns(self) -> list[str]:
        """The columns that are shown."""
        return [name for name in COLUMNS if name != "capture" or self.capture is not None]

    def press(self, message: Any) -> None:
        """Do what a message asks for and say in ``status`` what came of it; it never raises.

        ``do`` is one of ``ACTS``; ``cell`` has field, column and text (a value as its column has
        it, an enum with its names as ``enum:mode 0=off 1=on``, bits as ``12:4``), ``split`` has
        field and text (``low:2 4``: name and width of each part, low end first), ``join`` has field
        and text (``other as name``, the field being the low end), ``add`` has field and text
        (``name 12:4``, in the register of the field).
        """
        try:
            self.status = self._act(message)
        except (ValueError, LookupError) as error:
            self.status = f"refused: {error}"

    def close(self) -> None:
        """Follow the draft no more."""
        self.draft.unobserve(self._follow)

    def _act(self, message: Any) -> str:
        if not isinstance(message, Mapping) or message.get("do") not in ACTS:
            raise ValueError(f"got {str(message)[:80]!r}, allowed is one of {', '.join(ACTS)}")
        do, field, text = message["do"], message.get("field", ""), message.get("text", "")
        if not isinstance(field, str) or not isinstance(text, str):
            raise ValueError(f"{do}: got a field or a text that is none")
        if do in ("undo", "redo"):
            if do == "undo":
                sentence = self.draft.undo()
            else:
                sentence = self.draft.redo()
            if sentence:
                return f"{do}: {sentence}"
            return f"nothing to {do}"
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
            word, lsb, width = _run(bits)
            self.draft.add(name, self._register(field) if word is None else word, lsb, width)
        else:
            self._cell(field, message.get("column"), text)
        if len(self.draft.steps) > before:
            return self.draft.steps[-1]
        return "nothing to change"

    def _split(self, field: str, text: str) -> None:
        parts = [part.rpartition(":") for part in re.split(r"[\s,]+", text.strip()) if part]
        if not parts or not all(re.fullmatch(r"\d{1,2}", width) for _, _, width in parts):
            raise ValueError(
                f"split {field}: got {text[:80]!r}, allowed are parts like low:2 4, name and width"
            )
        names = [name for name, _, _ in parts]
        self.draft.split(
            field, widths=[int(width) for _, _, width in parts], names=names if any(names) else []
        )

    def _cell(self, field: str, column: Any, text: str) -> None:
        if column in EDITED:
            if column == "field" and not text.strip():
                self.draft.remove(field)
            else:
                getattr(self.draft, EDITED[column])(field, text)
        elif column == "register":
            self.draft.edit(
                "rename_register", register=self.draft.map[field].pieces[0].word, name=text
            )
        elif column == "bits":
            self._lay(field, *_run(text))
        elif column == "value":
            if "=" in text:
                value, *names = re.split(r"[\s,]+", text.strip())
            else:
                value, *names = [text.strip()]
            pairs = [name.partition("=") for name in names]
            self.draft.edit(
                "retype", field=field, value=value, names={raw: name for raw, _, name in pairs}
            )
        else:
            raise ValueError(
                f"cell: got column {str(column)[:80]!r}, allowed is one of register, bits, value, "
                f"{', '.join(EDITED)}"
            )

    def _register(self, field: str) -> str | int:
        """The register of a field by its name, or by its word where two blocks have that name."""
        item, names = self.draft.map[field], [name for _, _, name in self.draft.map.registers]
        if names.count(item.register) == 1:
            return item.register
        return item.pieces[0].word

    def _lay(self, field: str, word: int | None, lsb: int, width: int) -> None:
        """Give a field of one run other bits, of its register or of another word, in one step."""
        piece = self.draft.map[field].pieces[0]
        place = piece.word if word is None else word, lsb
        if place == piece[:2] and width != piece.width:
            self.draft.resize(field, width)
        elif place != piece[:2]:
            self.draft.move(field, *place, width)

    def _follow(self, draft: Draft) -> None:
        registers, raw, lost = draft.map, {}, ""
        words = np.zeros(len(registers), np.uint32)
        if self.capture is not None:
            try:
                capture = draft.decode(self.capture)
                job = capture.jobs[self._task]
                values = {id(item): value for _, item, value in job.values(capture.maps)}
                own, names = capture.maps[job.block], [block for block, _, _ in registers.registers]
                whole = len(own) == len(names)
                if whole:
                    first = 0
                else:
                    first = names.index(job.block)
                words[first : first + len(own)] = job.words
                mine = [item for item in registers if whole or item.block == job.block]
                raw = {id(item): values.get(id(read)) for item, read in zip(mine, own, strict=True)}
            except (ValueError, LookupError) as error:
                lost = f"; {self.capture.name} cannot be read: {error}"
        self.rows = [_row(registers.key(item), item, raw.get(id(item))) for item in registers]
        self.bits.reread(Rows.whole(registers), words.tolist())
        self.steps, self.undone = draft.steps, next(iter(draft.undone), "")
        known = registers.status()[list(STATUS[:3])].sum()
        told = ", ".join(f"{bits} {name}" for name, bits in known.items())
        if draft.saved:
            saved = "saved"
        else:
            saved = "not saved"
        self.summary = f"{told} bits; {plural(len(self.steps), 'step')}, {saved}{lost}"
        if self.capture is None:
            read = ""
        else:
            read = f", read in {self.capture.target}/{self.capture.name}"
        self.title = f"{draft.name}: {plural(len(self.rows), 'field')} of {plural(len(registers), 'word')}{read}"

    def _repr_html_(self) -> str:
        head = self.heading_html()
        shown = [place for place, name in enumerate(COLUMNS, 1) if name in self.columns]
        rows = [[row[place] for place in shown] for row in self.rows]
        steps = "".join(f"<li>{html.escape(step)}</li>" for step in self.steps[-STEPS_SHOWN:])
        first = max(0, len(self.steps) - STEPS_SHOWN) + 1
        return (
            head
            + table_html(self.columns, rows)
            + (f"<ol start='{first}'>{steps}</ol>" if steps else "")
        )


class MapEditor(BitsView):
    """The fields of a draft as bits and as a table: a drag over bits (or Shift and arrows) makes a
        field, m picks one up and puts it down on other bits; in the table arrows move, Enter edits
        a
    cell, a adds a field, s splits, j joins, x takes a name away, u and U undo and redo, / filters.

    With a ``capture`` one column is what the map as it is now makes of it.  ``rows``, ``steps`` and
    ``status`` are the model's; everything else is on ``model`` and on ``draft``, which also saves.
    """

    _esm, _css = assets("rows", "bits_view", "map_editor")
    _of, _linked = MapModel, ("cursor", "selection")
    _followed = (*BitsView._followed, "words", "reference", "rows", "steps", "undone", "status")

    columns = traitlets.List(traitlets.Unicode()).tag(sync=True)

    def __init__(
        self,
        draft: Draft,
        capture: Capture | None = None,
        task: int | None = None,
        laws: Any = None,
        sweep: Any = None,
    ) -> None:
        model = MapModel(draft, capture, task, laws, sweep)
        super().__init__(
            model, model.bits, columns=list(COLUMNS) if capture is not None else model.columns
        )

    def close(self) -> None:
        if self.model is not None:
            self.model.close()
        super().close()


def _task(draft: Draft, capture: Capture, task: int | None) -> int:
    """The job that is read: the one that was asked for, or the first of the draft's block."""
    capture, block = draft.decode(capture), draft.block_of(capture)
    blocks = {block, *(name for name, _, _ in draft.map.registers if task is not None)}
    mine = [number for number, job in enumerate(capture.jobs) if job.block in blocks]
    if not mine or (task is not None and task not in mine):
        if task is None:
            got = "no task"
        else:
            got = f"task {task}"
        raise LookupError(
            f"capture {capture.name}: got {got} of block {block}, it has "
            f"{', '.join(map(str, mine)) or 'none'}"
        )
    if task is None:
        return mine[0]
    return task


def _run(text: str) -> tuple[int | None, int, int]:
    """Word (None where the text has none), lowest bit and width of ``12:4``, ``8[12:4]`` or
    ``7``."""
    match = BITS.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"bits: got {text[:80]!r}, allowed is highest and lowest bit such as 12:4, "
            "or one bit such as 7"
        )
    high, low = int(match[2]), int(match[3] or match[2])
    if not low <= high < WORD_BITS:
        raise ValueError(
            f"bits: got {high}:{low}, allowed is {WORD_BITS - 1}:0 and less, the highest bit first"
        )
    return int(match[1]) if match[1] else None, low, high - low + 1


def _row(key: str, item: Field, raw: int | None) -> list[str]:
    """What the draft calls a field, a text for each of COLUMNS, and whether its name is
    automatic."""
    if raw is None:
        shown = ""
    else:
        shown = f"{raw:#x} = {meant(item, raw)}"
    return [
        key,
        item.register,
        item.bits,
        item.name,
        shown,
        str(item.meaning),
        item.evidence,
        item.note,
        "automatic" * item.automatic,
    ]
