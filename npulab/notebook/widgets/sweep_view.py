"""The captures of a sweep, or the register writes of a job, to go through: which fields move, how,
and what two of them differ in.

``SweepModel`` and ``WritesModel`` hold the state and all the logic and need no browser;
``SweepView`` and ``WritesView`` show them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import traitlets

from npulab.analysis.correlate import flips
from npulab.captures.capture import Capture
from npulab.captures.sweep import Sweep
from npulab.notebook.widgets.bits_view import BitsModel, BitsView, Parameter, Rows
from npulab.notebook.widgets.frame import Numbers, assets, table_html
from npulab.notebook.widgets.law_picture import short
from npulab.notebook.widgets.register_view import job_of, title_of
from npulab.registers.fields import WORD_BYTES
from npulab.registers.map import RegisterMap
from npulab.support.refuse import need
from npulab.support.text import plural

BINS = 64  # steps of a field's line
HIGHEST = 255


class SweepModel(BitsModel):
    """The captures of a ``Sweep``, one at a time, compared with another; it needs no browser.

    Can be set and observed, besides what ``BitsModel`` has: ``sort``, the parameter that the
    captures are in the order of ("" is as recorded), ``at``, the place of the capture in that
    order, and ``against``, the number of the capture that it is compared with (-1 is the one before
    it in the order).  Follow them: ``number`` (of the capture, as recorded), ``layer`` (name, value
    and the other capture's value of each parameter, as texts) and ``moving`` (of each field
    that is not the same in all: its index, how many values it has, and in each of at most 64 steps
    along the order the lowest and the highest, 0 to 255 over all).  ``turn`` counts the changes.

    Raises ValueError for a sweep without captures and a place outside, LookupError for an unknown
    parameter.

    >>> model = SweepModel(Sweep([[1, 0], [3, 0], [2, 0]], {"input_w": [8, 32, 16]}, name="three"))
    >>> model.sort = "input_w"
    >>> model.at = 1
    >>> model.number, model.summary
    (2, '2 bits in 1 field differ from capture 0: w0_0_32 1 → 2')
    """

    unit = "capture"  # what each of them is called
    at = Numbers("place", 0, lambda owner, _: [(0, len(owner.sweep))])
    against = Numbers("capture", -1, lambda owner, _: [(-1, len(owner.sweep))])
    sort = Parameter()
    number = traitlets.Int(read_only=True)
    layer: traitlets.List[Any] = traitlets.List(read_only=True)
    moving: traitlets.List[Any] = traitlets.List(read_only=True)
    turn = traitlets.Int(read_only=True)

    def __init__(self, sweep: Sweep, laws: Any = None, rows: Rows | None = None) -> None:
        need("SweepView", sweep, Sweep, "is a Sweep, as npulab.load_sweep(path) gives")
        if not len(sweep):
            raise ValueError("sweep: got no captures, allowed is one or more")
        self.sweep, self.parameters = sweep, tuple(map(str, sweep.parameters))
        rows = rows or Rows.whole(
            sweep.registers
            or RegisterMap(
                [
                    {
                        "offset": WORD_BYTES * (sweep.words.shape[1] - 1),
                        "field": "",
                        "lsb": 0,
                        "width": 32,
                    }
                ]
            )
        )
        self._order, self._other, self._shown = (
            np.arange(len(sweep)),
            0,
            sweep.words[:, list(rows.slots)],
        )
        super().__init__(rows, self._shown[0], self._shown[0], laws)
        self._moving = [
            (index, len(np.unique(item.extract(sweep.words))))
            for index, item in enumerate(self.rows.fields)
            if item.extract(sweep.varying)
        ]
        self._sort(None)

    # ---- what it says ----

    @property
    def title(self) -> str:
        name = ""
        if self.sweep.name:
            name = f"{self.sweep.name}: "
        return f"{name}{plural(len(self.sweep), 'capture')} of {plural(self.count, 'word')}"

    @property
    def simulated(self) -> bool:
        return self.sweep.simulated

    @property
    def line(self) -> str:
        return (
            f"{self.title}{', simulated' if self.simulated else ''}; {self.unit} {self.number}: "
            f"{self.summary}"
        )

    @property
    def compared(self) -> str:
        return f"{self.unit} {self._other}"

    # ---- what follows ----

    @traitlets.observe("sort")
    def _sort(self, _: Any) -> None:
        if self.sort:
            along = self.sweep.parameters[self.sort]
        else:
            along = range(len(self.sweep))
        self._order = np.argsort(along, kind="stable")
        words = self.sweep.words[self._order]
        if len(words) > 1:
            self.shares = self.shades(flips(words))
        self.set_trait(
            "moving",
            [
                [index, count, _line(self.rows.fields[index].extract(words))]
                for index, count in self._moving
            ],
        )
        place = int(np.flatnonzero(self._order == self.number)[0])
        if place == self.at:
            self._step(None)
        self.at = place

    @traitlets.observe("at", "against")
    def _step(self, _: Any) -> None:
        number = int(self._order[self.at])
        if self.against >= 0:
            self._other = self.against
        else:
            self._other = int(self._order[max(self.at - 1, 0)])
        self._held = True
        with self.hold_trait_notifications():
            self.words, self.reference = (
                self._shown[each].tolist() for each in (number, self._other)
            )
        self._held = False
        self._tell(None)
        self.set_trait("number", number)
        self.set_trait("layer", self._layer(number))
        self.set_trait("turn", self.turn + 1)

    def _layer(self, number: int) -> list[list[str]]:
        return [
            [
                name,
                *(short(self.sweep.parameters[name].iloc[each]) for each in (number, self._other)),
            ]
            for name in self.parameters
        ]

    def _repr_html_(self) -> str:
        rows = [
            (
                self.rows.names[index],
                self.rows.bits(self.rows.fields[index]),
                str(count),
                self.values[index].partition(",")[0],
            )
            for index, count in self._moving
        ]
        here = f"{self.unit} {self.number}"
        head = self.heading_html(f"{len(rows)} fields move; {here}: {self.summary}")
        return head + table_html(("field", "bits", "values", f"in {here}"), rows)


class WritesModel(SweepModel):
    """The register writes of a job in their order: after each of them what the registers hold.

    As of a ``SweepModel``, whose captures are those states, number 0 the one before the first
    write; ``layer`` says which register is written, and ``cursor`` goes to its highest bit
    that is set.  Raises LookupError for a job that is not there, ValueError for one that is no
    register writes.
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
        at = dict(zip(dict(job.writes), rows.slots, strict=True))
        states = np.zeros((len(job.writes) + 1, len(rows.registers)), np.uint32)
        for first, (offset, value) in [
            *((0, each) for each in job.before),
            *enumerate(job.writes, 1),
        ]:
            if offset in at:
                states[first:, at[offset]] = value
        names = [
            *(f"{block}.{name}" for block, _, name in registers.registers),
            *rows.registers[len(registers) :],
        ]
        self._written = [
            (rows.slots.index(at[offset]), names[at[offset]], hex(offset), hex(value))
            for offset, value in job.writes
        ]
        self.capture, self.task = capture, task
        super().__init__(
            Sweep(states, {}, provenance="simulated" if capture.simulated else ""), rows=rows
        )

    @property
    def title(self) -> str:
        return f"{title_of(self.capture, self.task)}, {plural(len(self._written), 'write')}"

    def _layer(self, number: int) -> list[list[str]]:
        if not number:
            return [["before the first write", "", ""]]
        word, *texts = self._written[number - 1]
        self.cursor = word, max(int(texts[-1], 16).bit_length() - 1, 0)
        return [
            [name, text, text]
            for name, text in zip(("register", "offset", "value"), texts, strict=True)
        ]


class SweepView(BitsView):
    """The captures of a sweep to go through by slider and by key (, and .), with the parameters of
    each, a line for each field that moves, and the bits that differ from another capture marked.

    The arguments are those of ``SweepModel``; ``at``, ``against``, ``sort``, ``cursor`` and
    ``selection`` are the model's and can be set and observed.  Everything else is on ``model``.
    """

    _esm, _css = assets("rows", "bits_view", "sweep_view")
    _of = SweepModel
    _linked = ("cursor", "selection", "at", "against", "sort")
    _followed = ("status", "letters")
    _together = ("words", "reference", "values", "shares", "number", "layer", "moving")

    captures = traitlets.Int().tag(sync=True)
    unit = traitlets.Unicode().tag(sync=True)
    sorts = traitlets.List(traitlets.Unicode()).tag(sync=True)

    def __init__(self, sweep: Sweep, laws: Any = None) -> None:
        self._show(SweepModel(sweep, laws))

    def _show(self, model: SweepModel) -> None:
        super().__init__(
            model, captures=len(model.sweep), unit=model.unit, sorts=list(model.parameters)
        )


class WritesView(SweepView):
    """The register writes of a job to go through in their order, as the captures of a
    ``SweepView``: what each one changes, and a line for each field that moves.

    The arguments are those of ``WritesModel``.
    """

    def __init__(self, capture: Capture, task: int = 0) -> None:
        self._show(WritesModel(capture, task))


def _line(values: np.ndarray) -> list[list[int]]:
    """The lowest and the highest of values ``(N,)`` in each of at most 64 steps, 0 to 255 over
    their range."""
    first = np.linspace(0, len(values), min(len(values), BINS), endpoint=False).astype(int)
    ends = np.stack(
        [np.minimum.reduceat(values, first), np.maximum.reduceat(values, first)], axis=1
    ).astype(float)
    low, high = ends.min(), ends.max()
    return list(np.rint((ends - low) / ((high - low) or 1) * HIGHEST).astype(int).tolist())
