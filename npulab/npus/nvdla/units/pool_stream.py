"""PDP as a stream of lines, for jobs whose padding is not the border that their windows reach.

PDP makes of each row of its input a stream of outputs, cuts that stream into lines of
``CUBE_OUT_WIDTH + 1`` outputs and combines lines to lines of the output. No stage knows where an
output belongs: one too many shifts all that follow. Which windows come, and in which order, follows
from registers alone; the elements are combined afterwards.

Source: the RTL of nv_small (PDP_CORE_cal1d, PDP_CORE_cal2d, WDMA).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.npus.kit import Hang, Unsupported, wrapped
from npulab.npus.nvdla.memory import Memory
from npulab.npus.nvdla.rules import RULES, Rules
from npulab.npus.nvdla.units.fields import Fields
from npulab.npus.nvdla.units.pdp import (
    AVERAGE,
    COMBINED,
    CONFIG,
    PADS,
    PADS_BITS,
    ROW_BITS,
    averaged,
    cubes,
    handed_over,
    pad_sums,
)
from npulab.npus.nvdla.waiting import few

UNITS = 8  # the most windows of a ring, and the longest kernel
SUM_BITS = 14  # the width of a sum over rows
# The bytes that each part of the pipe can store while the next part waits. WRITER_ROOM: WDMA's
# FIFOs (5 atoms of 8) and 2 bytes before them. STAGE_ROOM: the vertical stage (6) and the result
# of the horizontal stage (1). INPUT_ROOM: the horizontal stage and what is before it.
WRITER_ROOM, STAGE_ROOM, INPUT_ROOM = 42, 7, 7
SIDES = {"HEIGHT": ("TOP", "BOTTOM"), "WIDTH": ("LEFT", "RIGHT")}


@dataclass(frozen=True)
class Course:
    """How pooling windows move along one axis. Sizes and paddings count elements of the input;
    ``out`` counts outputs.
    """

    name: str
    size: int
    out: int
    kernel: int
    stride: int
    before: int
    after: int

    @property
    def reach(self) -> int:
        """The number of elements, padding included, after the first window."""
        return self.size + self.before + self.after - self.kernel

    @property
    def rest(self) -> int:
        """The number of elements after the last window."""
        return self.reach % self.stride

    @property
    def windows(self) -> int:
        """The number of windows that the sizes give; the registers ask for ``out``."""
        return self.reach // self.stride + 1

    @property
    def units(self) -> int:
        """The number of windows that may be open at once; each has a unit of its own."""
        return (self.kernel - 1) // self.stride + 1

    @property
    def opened(self) -> int:
        """The number of windows that open with the first element of a row; at most as many as the
        row has outputs.
        """
        opened = self.before // self.stride + 1
        if self.name == "WIDTH":
            return min(opened, self.out)
        return opened

    @property
    def short(self) -> bool:
        """Whether every window ends in the padding after the input."""
        return self.size + self.before < self.kernel

    @property
    def flushed(self) -> int:
        """The number of windows that are given out after the last element; PDP takes this many
        windows to end in the padding.
        """
        if self.after < self.stride:
            return 0
        if not self.short:
            # All of the padding counts, its elements behind the last window (``rest``), too.
            return self.after // self.stride
        if self.rest:
            return 0
        return max(self.reach // self.stride, 0)

    @property
    def flowing(self) -> int:
        """The number of windows that are given out while the input flows: every complete window,
        and with the last element one window that is not complete.
        """
        inside = self.size + self.before - self.kernel
        complete = max(inside // self.stride + 1, 0)
        if inside >= 0 and inside % self.stride == 0:
            return complete
        begin = complete * self.stride - self.before
        opens = begin < self.size and self.size - begin + self.after >= self.kernel
        if begin <= 0:
            opens = complete < self.opened
        return complete + opens

    @property
    def quiet(self) -> int:
        """The number of elements of a row before its first output; while they come, windows of the
        row before can be flushed.
        """
        if self.short:
            return self.size
        return self.kernel - self.before

    @property
    def at_once(self) -> int:
        """The number of flushed windows for which the input waits, if another row follows."""
        return max(self.flushed - self.quiet + 1, 0)

    @property
    def along(self) -> int:
        """The number of flushed windows that come while the next row flows."""
        return self.flushed - self.at_once

    @property
    def buffered(self) -> bool:
        """Whether windows can be flushed while the next row flows. If no two windows are open at
        once, the stage does not store a line's result for that.
        """
        return self.name == "WIDTH" or self.units > 1

    @property
    def regular(self) -> bool:
        """Whether exactly the windows of the sizes come, and each has an element of the input."""
        if self.before >= self.kernel or self.out != self.windows:
            return False
        given = self.flowing + self.at_once
        if self.buffered:
            given += self.along
        last = (self.out - 1) * self.stride - self.before
        return last < self.size and self.out == given


class Window(NamedTuple):
    """The elements of a stream from ``begin`` to before ``stop``, counted over all rows. The
    counter of the window's taps began with element ``counted``.
    """

    begin: int
    stop: int
    counted: int


NOTHING = Window(0, 0, 0)


@dataclass
class Ring:
    """The open windows of a course. Each is in a unit; units are reused in turn.

    ``begins`` has for each unit the element with which its open window began, None if none is open,
    and ``counted`` the element with which its counter of taps began. ``held`` has for each unit the
    window that the unit gives out if it is flushed. If the padding is as long as a kernel or
    longer, a window may take over a unit whose window is still open; the counter then starts anew
    only if ``recounts``.

    ``taps`` counts the elements of the oldest window, padding included; it is negative before that
    window. ``since`` counts the elements since a window began.
    """

    course: Course
    recounts: bool
    begins: list[int | None] = field(default_factory=lambda: [None] * UNITS)
    counted: list[int] = field(default_factory=lambda: [0] * UNITS)
    held: list[Window] = field(default_factory=lambda: [NOTHING] * UNITS)
    newest: int = 0
    oldest: int = 0
    taps: int = 0
    since: int = 0
    flushing: int = 0  # how many windows are still to be flushed while elements come

    def __post_init__(self) -> None:
        self._open_first(0)

    def behind(self, unit: int) -> int:
        """Return the unit that follows in the ring."""
        return (unit + 1) % self.course.units

    @property
    def complete(self) -> bool:
        """Whether the current element is the last element of the oldest window."""
        return self.taps == self.course.kernel - 1

    def window(self, unit: int, now: int) -> Window:
        """Return the window that a unit has after element ``now``; ``NOTHING`` if none is open."""
        begin = self.begins[unit]
        if begin is None:
            return NOTHING
        return Window(begin, now + 1, self.counted[unit])

    def advance(self, now: int, left: int, more: bool) -> None:
        """Close and open windows after element ``now``. ``left`` elements of its row follow, and
        another row if ``more``.
        """
        course = self.course
        complete = self.complete
        full = self.since == course.stride - 1
        if left == 0:
            self.begins = [None] * UNITS
        elif complete:
            self.begins[self.oldest] = None
        if full:
            self.newest = self.behind(self.newest)
            if left + course.after >= course.kernel and (left or more):
                self._open(self.newest, now + 1)
        if self.flushing:
            self.flushing -= 1
        if left == 0 and more:
            self._open_first(now + 1)
            return
        self.taps += 1
        self.since += 1
        if complete:
            self.taps = course.kernel - course.stride
        if full:
            self.since = 0
        if complete or left == 0:
            self.oldest = self.behind(self.oldest)

    def flush(self, more: bool, early: int = 0) -> int:
        """Return the number of windows that are flushed before the input goes on. ``early`` of them
        could also come while the next row flows.
        """
        if not more:
            return self.course.flushed
        self.flushing = self.course.along - early
        return self.course.at_once + early

    def _open(self, unit: int, now: int) -> None:
        if self.recounts or self.begins[unit] is None:
            self.counted[unit] = now
        self.begins[unit] = now

    def _open_first(self, now: int) -> None:
        """Open the windows that begin in the padding or with a row's first element, which is
        element ``now``.
        """
        for unit in range(self.course.opened):
            self._open(unit, now)
        self.newest = self.course.before // self.course.stride
        self.oldest = 0
        self.taps = self.course.before
        self.since = self.course.before % self.course.stride


class Output(NamedTuple):
    """An output of the horizontal stage: its window, and the beat in which it comes.

    If ``alike``, the window was not complete; then every lane shows the element of the first lane.
    """

    window: Window
    alike: bool
    beat: int


@dataclass
class Strips:
    """The horizontal stage: in each beat it takes an element of every lane, or gives out a flushed
    window.
    """

    ring: Ring
    outputs: list[Output] = field(default_factory=list)
    beat: int = 0
    last: int = 0  # the beat of the last element
    unit: int = 0  # the unit that gives the next output
    place: int = 0  # the place of the next output in its line

    def take(self, now: int, left: int, more: bool) -> None:
        """Take element ``now``; ``left`` and ``more`` as ``Ring.advance``."""
        ring = self.ring
        done = []
        for unit, begin in enumerate(ring.begins):
            ends = left == 0 or (ring.complete and unit == ring.oldest)
            if ends and begin is not None:
                done.append(unit)
        if ring.flushing:
            self._give(ring.held[self.unit])
        elif done:
            self._give(ring.window(self.unit, now), alike=self.unit not in done)
        for unit in done:
            ring.held[unit] = ring.window(unit, now)
        ring.advance(now, left, more)
        self.last = self.beat
        self.beat += 1
        if left:
            return
        for _ in range(ring.flush(more)):
            self._give(ring.held[self.unit])
            self.beat += 1

    def _give(self, window: Window, alike: bool = False) -> None:
        self.outputs.append(Output(window, alike, self.beat))
        self.place += 1
        self.unit = self.ring.behind(self.unit)
        # The unit is found by counting outputs, and the count starts anew with each line.
        if self.place == self.ring.course.out:
            self.place = 0
            self.unit = 0


class Step(NamedTuple):
    """A step of the vertical stage: the ``window`` that a line completes, and the ``older`` window
    that is flushed in the same step.

    If a step has both, their bits are combined by an or. In a step with ``flush`` no line is taken.
    """

    window: Window
    older: Window
    gives: bool
    flush: bool


@dataclass
class Lines:
    """The vertical stage: in each step it takes a line of the horizontal stage, or gives out a
    flushed window.
    """

    ring: Ring
    steps: list[Step] = field(default_factory=list)
    unit: int = 0  # the unit that gives the next complete window
    flushed: int = 0  # the unit that gives the next flushed window

    def take(self, now: int, left: int, more: bool) -> None:
        """Take line ``now``; ``left`` and ``more`` as ``Ring.advance``."""
        ring = self.ring
        buffered = ring.course.buffered
        ends = left == 0 or ring.complete
        complete = ends and ring.begins[self.unit] is not None
        flushes = buffered and ring.flushing > 0
        window = older = NOTHING
        if complete:
            window = ring.window(self.unit, now)
        if flushes:
            older = ring.held[self.flushed]
        self.steps.append(Step(window, older, complete or flushes, flush=False))
        for unit, begin in enumerate(ring.begins):
            if buffered and begin is not None:
                ring.held[unit] = ring.window(unit, now)
        if left == 0:
            self._end(now, more)
            return
        if complete:
            self.unit = ring.behind(self.unit)
        if ring.flushing:
            self.flushed = ring.behind(self.flushed)
        ring.advance(now, left, more)

    def _end(self, now: int, more: bool) -> None:
        """Flush windows after the last line of a surface."""
        ring = self.ring
        early = self._early()
        self.unit = 0
        self.flushed = ring.behind(ring.oldest)
        ring.advance(now, 0, more)
        for _ in range(ring.flush(more, early)):
            self.steps.append(Step(NOTHING, ring.held[self.flushed], gives=True, flush=True))
            self.flushed = ring.behind(self.flushed)

    def _early(self) -> int:
        """Return how many of the windows that could be flushed along the next surface are flushed
        before it, because the next surface takes over the unit of the last of them.
        """
        course = self.ring.course
        if course.along == 1:  # the RTL does not compare a single window
            return 0
        for count in range(course.along, 0, -1):
            unit = self.ring.oldest + course.at_once + count
            if unit >= course.units:
                unit -= course.units
            if unit < course.opened:
                return count
        return 0


def plain(fields: Fields) -> bool:
    """Return whether a job's stream gives plain windows, as ``pdp.pooled`` computes them.

    It does if, along both axes, the windows that come while the input flows or after it are as many
    as the registers of the output state, and each window has an element of the input. If it does
    not, a job of one surface may be right all the same. Source: the RTL of nv_small
    (PDP_CORE_cal1d, PDP_CORE_cal2d, WDMA).
    """
    for name in SIDES:
        if fields[f"{CONFIG}{name}"] >= UNITS:
            return False
    rows, columns = courses(fields)
    return rows.regular and columns.regular


def known(fields: Fields) -> bool:
    """Return whether ``streamed`` covers the elements and the width of a job."""
    split = fields["PDP.D_OPERATION_MODE_CFG.SPLIT_NUM"]
    return not split and fields.precision("PDP.D_DATA_FORMAT.INPUT_DATA") == 1


def run(fields: Fields, memory: Memory, x: Array | None = None, rules: Rules = RULES) -> None:
    """Run one PDP job in memory, as ``streamed`` places its outputs; ``x`` as ``pdp.run`` takes it.

    Raises as ``streamed``; Unsupported for more elements than the simulated device takes.
    """
    source, output = cubes(fields)
    few(
        source.surfaces * source.height * source.width * source.lanes, "the elements of PDP's input"
    )
    taken = handed_over(fields, source, x)
    if taken is None:
        taken = source.read(memory)
    y = streamed(fields, taken.astype(np.int64), rules.rounding)
    output.write(memory, slice(0, output.surfaces), slice(0, output.height), y)


def streamed(fields: Fields, x: Array, rounding: str = RULES.rounding) -> Array:
    """Return the outputs of a job as PDP's stream places them.

    ``x``: int64 ``(surfaces, height, width, lanes)`` as PDP takes it; the result is ``(surfaces,
    out height, out width, lanes)`` int64, averages after both reciprocals. Raises Hang if the
    stream has too few lines, or so many that they fill the pipe before the input is in; Unsupported
    for int16, split widths and windows that lie in the padding before the input. Surplus lines that
    an earlier job left in PDP are not known here. Source: the RTL of nv_small (PDP_CORE_cal1d,
    PDP_CORE_cal2d, WDMA).
    """
    fields.expect("stream pooling")
    rows, columns = courses(fields)
    _check((rows, columns))
    surfaces, lanes = len(x), x.shape[-1]
    strips = passed_along(columns, surfaces * rows.size)
    lines = passed_down(rows, surfaces, len(strips.outputs) // columns.out)
    given = [step for step in lines.steps if step.gives]
    wanted = surfaces * rows.out
    if len(given) < wanted:
        cause = _cause(rows, columns)
        raise Hang(f"PDP: the windows give {len(given)} lines, {wanted} are waited for: {cause}")
    if _fills(strips, lines, wanted, lanes):
        cause = _cause(rows, columns)
        raise Hang(f"PDP: surplus lines fill the pipe before the input is in: {cause}")
    y = _lines(fields, x.reshape(-1, lanes), columns, strips.outputs)
    y = _outputs(fields, y, rows, columns, given[:wanted], rounding)
    return y.reshape(surfaces, rows.out, columns.out, lanes)


def passed_along(columns: Course, count: int) -> Strips:
    """Return the horizontal stage after ``count`` rows, counted through all surfaces."""
    strips = Strips(Ring(columns, recounts=False))
    for now in range(count * columns.size):
        row, column = divmod(now, columns.size)
        strips.take(now, columns.size - 1 - column, row < count - 1)
    return strips


def passed_down(rows: Course, surfaces: int, count: int) -> Lines:
    """Return the vertical stage after ``count`` lines. Lines after the last surface count as lines
    of another cube.
    """
    lines = Lines(Ring(rows, recounts=True))
    for now in range(count):
        surface, row = divmod(now, rows.size)
        more = surface % surfaces < surfaces - 1
        lines.take(now, rows.size - 1 - row, more)
    return lines


def courses(fields: Fields) -> tuple[Course, Course]:
    """Return how the windows of a job move along the rows and along the columns. Of the field of a
    kernel's size only the low 3 bits are used.
    """
    found = []
    for name, (before, after) in SIDES.items():
        course = Course(
            name,
            size=fields.size(f"PDP.D_DATA_CUBE_IN_{name}.CUBE_IN_{name}"),
            out=fields.size(f"PDP.D_DATA_CUBE_OUT_{name}.CUBE_OUT_{name}"),
            kernel=fields[f"{CONFIG}{name}"] % UNITS + 1,
            stride=fields.size(f"{CONFIG}STRIDE_{name}"),
            before=fields[f"{PADS}{before}"],
            after=fields[f"{PADS}{after}"],
        )
        found.append(course)
    rows, columns = found
    return rows, columns


def _check(courses: Iterable[Course]) -> None:
    """Raise Unsupported for windows that lie in the padding before the input."""
    for course in courses:
        if course.before >= course.kernel:
            # With such windows the job before decides which units the next surface takes over.
            raise Unsupported(
                f"{PADS}{SIDES[course.name][0]} is {course.before}, covered are 0 to "
                f"{course.kernel - 1} as {CONFIG}{course.name} says"
            )


def _cause(rows: Course, columns: Course) -> str:
    """Return the field for which a stream does not give plain windows, with its value and the
    allowed values."""
    course = rows
    if not columns.regular:
        course = columns
    name = course.name
    before, after = SIDES[name]
    if course.windows < 1:
        most = course.size + course.before + course.after - 1
        return f"{CONFIG}{name} is {course.kernel - 1}, allowed are 0 to {most}"
    if course.out != course.windows:
        register = f"PDP.D_DATA_CUBE_OUT_{name}.CUBE_OUT_{name}"
        return f"{register} is {course.out - 1}, allowed is {course.windows - 1}"
    if course.after < course.rest:
        most = course.out * course.stride - 1
        return f"{PADS}{before} is {course.before}, allowed are 0 to {most}"
    reached = min(course.after - course.rest, course.kernel - 1)
    return f"{PADS}{after} is {course.after}, allowed is {reached}"


def _fills(strips: Strips, lines: Lines, wanted: int, lanes: int) -> bool:
    """Return whether surplus lines stop the stream before PDP has taken the last byte of the input.

    WDMA writes nothing after the ``wanted`` lines, but the job ends only when the last byte of the
    input is taken. That byte waits until the bytes before it in the pipe have found room.
    """
    line = strips.ring.course.out * lanes
    giving = [number for number, step in enumerate(lines.steps) if step.gives]
    ahead, place = divmod(WRITER_ROOM - 1, line)
    if wanted + ahead >= len(giving):
        return False
    # The last byte that leaves the vertical stage, then the one that waits to enter it.
    leaves = giving[wanted + ahead] * line + place
    waiting, place = divmod(leaves + STAGE_ROOM, line)
    flushes = [step.flush for step in lines.steps]
    flushes.append(False)  # a line would follow
    taken = flushes[:waiting].count(False)
    if flushes[waiting]:
        place = 0
    output, lane = divmod(taken * line + place, lanes)
    if output >= len(strips.outputs):
        return False
    reached = strips.outputs[output].beat * lanes + lane + INPUT_ROOM
    return reached < strips.last * lanes + lanes - 1


def _lines(fields: Fields, x: Array, columns: Course, outputs: list[Output]) -> Array:
    """Return the lines ``(lines, columns, lanes)`` that the horizontal stage makes of elements
    ``(elements, lanes)``."""
    method = fields["PDP.D_OPERATION_MODE_CFG.POOLING_METHOD"]
    windows = []
    alike = []
    whole = len(outputs) - len(outputs) % columns.out
    for output in outputs[:whole]:
        windows.append(output.window)
        alike.append(output.alike)
    y = _combined(x, windows, method)
    y[alike] = y[alike, :1]
    if method == AVERAGE:
        missing = (columns.kernel - 1 - _taps(windows)) % UNITS
        y = wrapped(y + np.array(pad_sums(fields))[missing, None], ROW_BITS)
    return y.reshape(-1, columns.out, x.shape[-1])


def _outputs(
    fields: Fields, x: Array, rows: Course, columns: Course, steps: list[Step], rounding: str
) -> Array:
    """Return the outputs ``(steps, columns, lanes)`` of the vertical stage, of its lines ``x``."""
    method = fields["PDP.D_OPERATION_MODE_CFG.POOLING_METHOD"]
    windows = [step.window for step in steps]
    older = [step.older for step in steps]
    y = _combined(x, windows, method) | _combined(x, older, method)
    if method != AVERAGE:
        return y
    missing = (rows.kernel - 1 - (_taps(windows) | _taps(older))) % UNITS
    pads = wrapped(np.array(pad_sums(fields))[missing] * columns.kernel, PADS_BITS)
    return averaged(fields, y + pads[:, None, None], 1, rounding)


def _combined(x: Array, windows: list[Window], method: int) -> Array:
    """Return the maxima, minima or sums of ``x[begin:stop]`` of each window, 0 for an empty window.

    The horizontal stage combines elements of a row, the vertical stage combines lines. Sums wrap to
    the ``SUM_BITS`` bits of a sum of lines, which int8 elements along one row do not reach.
    """
    begins = np.array([window.begin for window in windows])
    stops = np.array([window.stop for window in windows])
    combine = COMBINED[method]
    y = x[begins]
    y[begins == stops] = 0
    for tap in range(1, (stops - begins).max()):
        some = begins + tap < stops
        y[some] = combine(y[some], x[begins[some] + tap])
    if method == AVERAGE:
        y = wrapped(y, SUM_BITS)
    return y


def _taps(windows: list[Window]) -> Array:
    """Return how many elements each window has, less 1, as a counter of three bits states it."""
    sizes = np.array([window.stop - window.counted for window in windows])
    return np.maximum(sizes - 1, 0) % UNITS
