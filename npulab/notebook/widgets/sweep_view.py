"""The captures of a sweep, or the register writes of a job, to step through: the fields that
change, a line of the values of each, and the differences between two captures.

``SweepModel`` and ``WritesModel`` hold the state and all the logic and need no browser;
``SweepView`` and ``WritesView`` show them.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

import numpy as np
from traitlets import Int, List, TraitType, Unicode, observe

from npulab.analysis.correlate import flips
from npulab.captures.capture import READS, Capture, is_records
from npulab.captures.sweep import Sweep
from npulab.notebook.widgets.bits_view import BitsModel, BitsView, Rows
from npulab.notebook.widgets.frame import NameIn, Numbers, assets, table_html
from npulab.notebook.widgets.law_picture import short
from npulab.notebook.widgets.register_view import job_of, title_of
from npulab.registers.fields import WORD_BITS, WORD_BYTES, Field
from npulab.registers.map import RegisterMap
from npulab.support.refuse import near, need
from npulab.support.text import part_said, plural

BINS = 64  # the line of a field has at most this many points
HIGHEST = 255
MOST_READS = 8  # at most this many reads after a write are shown
MOST_PLOTTED = 4  # the plot has at most this many fields
PLOT_BINS = 256  # a field's line in the plot has at most this many points
PLOT_HIGHEST = 1000


class Plotted(TraitType[tuple[str, ...], Any]):
    """A trait for the names of the owner's fields in the plot, at most ``MOST_PLOTTED``."""

    default_value = ()

    def validate(self, obj: Any, value: Iterable[str]) -> tuple[str, ...]:
        names = tuple(value)
        known = obj.rows.names
        if isinstance(value, str) or len(set(names)) != len(names) or len(names) > MOST_PLOTTED:
            raise ValueError(
                f"{self.name}: got {value!r:.80}, allowed are at most {MOST_PLOTTED} different "
                "names of fields"
            )
        for name in names:
            if name not in known:
                raise LookupError(
                    f"{self.name}: got {name!r:.80}, allowed is the name of a field"
                    f"{near(str(name), known)}"
                )
        return names


class SweepModel(BitsModel):
    """The captures of a ``Sweep``, shown one by one and compared with another capture; it needs no
    browser.

    Besides the traits of ``BitsModel``, these can be set and observed:

    - ``sort``: the parameter that the captures are sorted by; "" is the order of recording;
    - ``at``: the place of the shown capture in the sorted order;
    - ``against``: the number of the capture to compare with; -1 is the capture before the shown
      capture in the sorted order;
    - ``plotted``: the names of at most four fields in one plot along the sorted order;
    - ``window``: the places (first, end) in the plot, or empty for all.

    These follow, and ``turn`` goes up by 1 with each change:

    - ``number``: the number of the shown capture, in the order of recording;
    - ``layer``: for each parameter its name, its value, and its value in the compared capture, as
      texts;
    - ``moving``: for each field that is not constant its index, its number of values, and a line:
      [lowest, highest] value in each of at most 64 runs of captures, scaled to 0 to 255;
    - ``plot``: for each plotted field its name, its lowest and highest value in the window as
      texts, and its line, scaled to 0 to 1000.

    Raises ValueError for a sweep without captures and a place outside, LookupError for an unknown
    parameter.

    >>> model = SweepModel(Sweep([[1, 0], [3, 0], [2, 0]], {"input_w": [8, 32, 16]}, name="three"))
    >>> model.sort = "input_w"
    >>> model.at = 1
    >>> model.number, model.summary
    (2, '2 bits in 1 field differ from capture 0: w0_0_32 0x1 → 0x2, xor 0x3')
    """

    unit = "capture"  # texts call one state of the words by this name
    at = Numbers("place", 0, lambda owner, _: [(0, len(owner.sweep))])
    against = Numbers("capture", -1, lambda owner, _: [(-1, len(owner.sweep))])
    sort = NameIn("parameters")
    plotted = Plotted()
    window = Numbers(
        "(first, end)",
        (),
        lambda owner, first, _: ((0, len(owner.sweep)), (first + 1, len(owner.sweep) + 1)),
        empty=True,
    )
    plot: List[Any] = List(read_only=True)
    number = Int(read_only=True)
    layer: List[Any] = List(read_only=True)
    moving: List[Any] = List(read_only=True)
    turn = Int(read_only=True)

    def __init__(self, sweep: Sweep, laws: Any = None, rows: Rows | None = None) -> None:
        need("SweepView", sweep, Sweep, "is a Sweep, as npulab.load_sweep(path) gives")
        if not len(sweep):
            raise ValueError("sweep: got no captures, allowed is one or more")
        self.sweep, self.parameters = sweep, tuple(map(str, sweep.parameters))
        if rows is None:
            rows = Rows.whole(sweep.registers or _unnamed_words(sweep.words.shape[1]))
        if sweep.looked_at:
            self.unit = sweep.unit
        self._order = np.arange(len(sweep))
        self._other = 0
        self._shown = sweep.words[:, list(rows.slots)]
        super().__init__(rows, self._shown[0], self._shown[0], laws)
        self._moving: list[
            tuple[int, int]
        ] = []  # (index of a field that changes, number of its values)
        for index, item in enumerate(self.rows.fields):
            if item.extract(sweep.varying):
                values = np.unique(item.extract(sweep.words))
                self._moving.append((index, len(values)))
        self._sort(None)

    # ---- the state as text ----

    @property
    def title(self) -> str:
        title = f"{plural(len(self.sweep), self.sweep.unit)} of {plural(self.count, 'word')}"
        if self.sweep.name:
            title = f"{self.sweep.name}: {title}"
        if self.sweep.looked_at:
            title += f"; {part_said(self.sweep.looked_at)}"
        return title

    @property
    def simulated(self) -> bool:
        return self.sweep.simulated

    @property
    def line(self) -> str:
        return f"{self.marked_title}; {self.unit} {self.number}: {self.summary}"

    @property
    def compared(self) -> str:
        return f"{self.unit} {self._other}"

    # ---- what follows from the traits ----

    @observe("sort")
    def _sort(self, _: Any) -> None:
        self._order = np.arange(len(self.sweep))
        if self.sort:
            self._order = np.argsort(self.sweep.parameters[self.sort], kind="stable")
        words = self.sweep.words[self._order]
        if len(words) > 1:
            self.shares = self.shades(flips(words))
        moving = []
        for index, count in self._moving:
            line = _line_of(self.rows.fields[index].extract(words))
            moving.append([index, count, line])
        self.set_trait("moving", moving)
        self._draw(None)
        place = int(np.flatnonzero(self._order == self.number)[0])
        if place == self.at:
            self._step(None)
        self.at = place

    @observe("plotted", "window")
    def _draw(self, _: Any) -> None:
        words = self.sweep.words[self._in_window]
        plot = []
        for name in self.plotted:
            values = _numbers(self._named(name), words)
            line = _line_of(values, PLOT_BINS, PLOT_HIGHEST)
            plot.append([name, short(values.min()), short(values.max()), line])
        self.set_trait("plot", plot)

    def _named(self, name: str) -> Field:
        index = self.rows.names.index(name)
        return self.rows.fields[index]

    @property
    def _in_window(self) -> np.ndarray:
        """The numbers of the captures that the plot shows, in the plot's order."""
        return self._order[slice(*(self.window or (None,)))]

    @observe("at", "against")
    def _step(self, _: Any) -> None:
        number = int(self._order[self.at])
        self._other = self.against
        if self.against < 0:
            self._other = int(self._order[max(self.at - 1, 0)])
        self._held = True
        with self.hold_trait_notifications():
            self.words = self._shown[number].tolist()
            self.reference = self._shown[self._other].tolist()
        self._held = False
        self._tell(None)
        self.set_trait("number", number)
        self.set_trait("layer", self._layer(number))
        self.set_trait("turn", self.turn + 1)

    def _layer(self, number: int) -> list[list[str]]:
        layer = []
        for name in self.parameters:
            column = self.sweep.parameters[name]
            layer.append([name, short(column.iloc[number]), short(column.iloc[self._other])])
        return layer

    def _repr_html_(self) -> str:
        rows = []
        for index, count in self._moving:
            item = self.rows.fields[index]
            bits = self.rows.bits(item)
            value, _, _ = self.values[index].partition(",")
            if item.automatic:
                value, _, _ = value.partition(" = ")
            rows.append((self.rows.names[index], bits, str(count), value))
        state = f"{self.unit} {self.number}"
        head = self.heading_html(f"{len(rows)} fields move; {state}: {self.summary}")
        return head + table_html(("field", "bits", "values", f"in {state}"), rows) + self._points()

    def _points(self) -> str:
        """Return the values of the plot as a table in HTML; "" if no field is plotted."""
        if not self.plotted:
            return ""
        numbers = self._in_window
        columns = [numbers]
        names = [self.unit, *self.plotted]
        for name in self.plotted:
            columns.append(_numbers(self._named(name), self.sweep.words[numbers]))
        if self.sort:
            names.insert(1, self.sort)
            columns.insert(1, self.sweep.parameters[self.sort].to_numpy()[numbers])
        rows = []
        for row in zip(*columns, strict=True):
            rows.append([*map(short, row)])
        return table_html([*map(html.escape, names)], rows)


class WritesModel(SweepModel):
    """The register writes of a job in their order, with the state of the registers after each
    write.

    It is a ``SweepModel`` whose captures are these states; number 0 is the state before the first
    write. ``layer`` has register, offset and value of the write, then the first reads after the
    write, and ``cursor`` moves to the highest bit that is set in the value. Raises LookupError for
    a task that the capture does not have, ValueError for a job that has no register writes.
    """

    unit = "write"

    def __init__(self, capture: Capture, task: int = 0) -> None:
        job = job_of(capture, task)
        if not job.writes:
            raise ValueError(
                f"task {task} of {capture.name}: got {job!r}, allowed is a job of register writes"
            )
        registers = capture.maps[job.block]
        rows = Rows.of(job, registers)
        slot_of = dict(zip(dict(job.writes), rows.slots, strict=True))
        states = np.zeros((len(job.writes) + 1, len(rows.registers)), np.uint32)
        for offset, value in job.before:
            if offset in slot_of:
                states[:, slot_of[offset]] = value
        for number, (offset, value) in enumerate(job.writes, 1):
            states[number:, slot_of[offset]] = value
        names = [f"{block}.{name}" for block, _, name in registers.registers]
        names += rows.registers[len(registers) :]
        self._written = []
        for offset, value in job.writes:
            slot = slot_of[offset]
            word = rows.slots.index(slot)
            self._written.append((word, names[slot], hex(offset), hex(value)))
        # reads by the number, as text, of the write before them
        self._answers: dict[str, list[list[str]]] = {}
        rows_read: Any = capture.parameters.get(READS)
        if is_records(rows_read) and len(capture.jobs) == 1:
            for row in rows_read:
                text = f"{row.get('value')}, times: {row.get('times')}"
                line = [f"then read {row.get('address')}", text, text]
                self._answers.setdefault(str(row.get("writes")), []).append(line)
        self.capture, self.task = capture, task
        provenance = ""
        if capture.simulated:
            provenance = "simulated"
        super().__init__(Sweep(states, {}, provenance=provenance), rows=rows)

    @property
    def title(self) -> str:
        return f"{title_of(self.capture, self.task)}, {plural(len(self._written), 'write')}"

    def _layer(self, number: int) -> list[list[str]]:
        reads = self._answers.get(str(number), [])[:MOST_READS]
        if not number:
            return [["before the first write", "", ""], *reads]
        word, register, offset, value = self._written[number - 1]
        self.cursor = word, max(int(value, 16).bit_length() - 1, 0)
        return [
            ["register", register, register],
            ["offset", offset, offset],
            ["value", value, value],
            *reads,
        ]


class SweepView(BitsView):
    """The captures of a sweep to step through by slider and by key (, and .), with the parameters
    of each, a line for each field that changes, and marks at the bits that differ from another
    capture; t takes a field into a plot of up to four, + and - zoom it.

    The arguments are those of ``SweepModel``; ``at``, ``against``, ``sort``, ``cursor`` and
    ``selection`` are the model's and can be set and observed. Everything else is on ``model``.
    """

    _esm, _css = assets("rows", "bits_view", "sweep_view")
    _of = SweepModel
    _linked = (
        *("cursor", "selection", "at", "against", "sort", "filter"),
        *("plotted", "window"),
    )
    _followed = ("status", "letters", "kept", "plot")
    _together = ("words", "reference", "values", "shares", "number", "layer", "moving")

    captures = Int()
    unit = Unicode()
    sorts = List(Unicode())

    def __init__(self, sweep: Sweep, laws: Any = None) -> None:
        self._show(SweepModel(sweep, laws))

    def _show(self, model: SweepModel) -> None:
        super().__init__(
            model, captures=len(model.sweep), unit=model.unit, sorts=list(model.parameters)
        )


class WritesView(SweepView):
    """The register writes of a job to step through in their order, as in a ``SweepView``: the bits
    that each write changes, and a line for each field that changes.

    The arguments are those of ``WritesModel``.
    """

    def __init__(self, capture: Capture, task: int = 0) -> None:
        self._show(WritesModel(capture, task))


def _unnamed_words(count: int) -> RegisterMap:
    """Return a register map of ``count`` words in which no field has a name."""
    last = {"offset": WORD_BYTES * (count - 1), "field": "", "lsb": 0, "width": WORD_BITS}
    return RegisterMap([last])


def _numbers(item: Field, words: np.ndarray) -> np.ndarray:
    """Return a field's values in captures, ``(N,) float``, all finite; of an enum raw numbers."""
    raw = item.extract(words)
    if item.meaning.enum:
        return raw.astype(float)
    return np.nan_to_num(np.asarray(item.value(raw), float))


def _line_of(values: np.ndarray, bins: int = BINS, top: int = HIGHEST) -> list[list[int]]:
    """Return [lowest, highest] of the values ``(N,)`` in each of at most ``bins`` runs of
    neighbours, scaled so that the range of all values is 0 to ``top``.
    """
    first = np.linspace(0, len(values), min(len(values), bins), endpoint=False).astype(int)
    lowest = np.minimum.reduceat(values, first)
    highest = np.maximum.reduceat(values, first)
    ends = np.stack([lowest, highest], axis=1).astype(float)
    low = ends.min()
    span = (ends.max() - low) or 1
    line: list[list[int]] = np.rint((ends - low) / span * top).astype(int).tolist()
    return line
