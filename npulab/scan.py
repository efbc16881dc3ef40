"""What each bit of a buffer does: bits are flipped together, and the outputs that move are looked at.

A bit of a weight or a bias is ``data``; one that moves what no weight or bias could is ``control``, or ``length``
where it moves only what lies behind it in the stream; ``dead`` bits move nothing, ``hang`` bits end the run.

Ones and zeros are flipped in runs of their own: all flips of a run then push a weight the same way, so that they
cannot cancel.  A set of bits is split where it hangs or moves something, and sets that move different outputs
share a run, each reading its own.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
import operator
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from npulab.capture import Capture
from npulab.devices import Run
from npulab.journal import Journal, Trial
from npulab.layers import Conv2D
from npulab.quant import QuantParams
from npulab.targets import target

if TYPE_CHECKING:
    import pandas as pd

KINDS = ("data", "control", "length", "dead", "hang", "unknown")
NOWHERE, BIAS, NO_TAP, SEVERAL = -1, -2, -1, -2
LEAST_GROUP, GROUPS = 64, 16  # bits of a group of flips, and how many groups of one kind a buffer has
LOCAL = 1 / 8  # share of the outputs that one weight or bias moves at most, where nothing is known of the layer
ALIKE_BITS = 8  # that move the same outputs evenly, as those of a bias do
MOST_HALVES = 64  # random halves of the bits that move nothing that are looked at
FEW = 16  # bits that all move one output are flipped one by one
ACCUMULATOR_BITS = 32
NEAR = 4  # output scales, each a quarter of the one before, that every input is looked at through
NOISE = 8  # a random image has this part of an impulse
SATURATED = 1 / 4  # share of the outputs; inputs with more are looked through last
ROUNDED = 16  # units in the last place that a sum of changes of a real output may be off
WIDE = 4  # bytes of a type whose end is not likely to be where outputs stop
ODD = 1 / 10  # share of the data bits above which changes by no power of two are not those of control bits
NO_PLACE = (NOWHERE,) * 5 + (0,)
COLUMNS = ("first", "bits", "kind", "role", "channel", "row", "column", "input_channel", "order", "toward", "sign",
           "certain")
PLACE = ("channel", "row", "column", "input_channel", "order", "sign")
ROWS_SHOWN = 60

Runner = Callable[[bytes, Any], "np.ndarray | None"]


class Device(Protocol):
    """What runs a capture."""

    def run(self, capture: Capture) -> Run: ...


@dataclass(frozen=True, eq=False)
class Probe:
    """An input to scan with.

    ``given`` is what ``run`` gets, ``image`` the same as ``(H, W, C)`` against the input's zero point, ``step`` how
    many units of the accumulator an output step has (None: not known), ``zero`` the output of an accumulator of 0.
    """

    given: Any
    image: np.ndarray | None = None
    step: float | None = None
    zero: float = 0.0


@dataclass(frozen=True, eq=False)
class Scan:
    """What each of N bits does.  Bit i is bit ``i % 8``, counted from the lowest, of byte ``i // 8``.

    ``kinds`` ``(N,)`` are of ``KINDS``; ``certain`` ``(N,) bool`` says that the kind was measured, not inferred.
    ``places`` ``(N, 6) int`` are channel, row, column, input channel, order (bit n of its weight or bias counts
    ``2**n``) and sign (of the output when the bit is set) of data bits, -1 (sign: 0) where it was not told; a bias
    has row, column and input channel -1.  ``roles`` ``(N,)`` are "weight", "bias" or "".
    ``runs`` and ``hangs`` count calls of the device, ``saturated`` is the share of outputs at the end of their
    type, under all inputs, and ``notes`` are sentences on what could not be said.
    """

    kinds: np.ndarray
    certain: np.ndarray
    roles: np.ndarray
    places: np.ndarray
    runs: int
    hangs: int
    saturated: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Bits by kind, kinds without one left out."""
        return {kind: count for kind in KINDS if (count := int(np.count_nonzero(self.kinds == kind)))}

    @property
    def mapped(self) -> float:
        """Share of the data bits whose weight or bias, and order in it, is known."""
        data = self.kinds == "data"
        return float((self.places[data, 4] >= 0).mean()) if data.any() else 1.0

    @property
    def map(self) -> pd.DataFrame:
        """A row per data bit: bit, role, channel, row, column, input_channel, order, sign; <NA> where not told."""
        import pandas as pd

        at = np.flatnonzero(self.kinds == "data")
        frame = pd.DataFrame({"bit": at, "role": self.roles[at], **_told(self.places[at])})
        return frame.astype(dict.fromkeys(PLACE, "Int64"))

    @property
    def table(self) -> pd.DataFrame:
        """A row per run of bits of one kind, weight or bias: first (bit), bits, kind, role, channel, row, column,
        input_channel, order (of its first bit), toward (+1 where the orders rise, -1 where they fall, 0), sign (of
        its first bit), certain."""
        import pandas as pd

        rows = [(first, end - first, self.kinds[first], self.roles[first],
                 *(None if one < 0 else int(one) for one in self.places[first, :5]), toward,
                 int(self.places[first, 5]), bool(self.certain[first])) for first, end, toward in self._stretches()]
        frame = pd.DataFrame(rows, columns=list(COLUMNS))
        return frame.astype(dict.fromkeys(PLACE[:5], "Int64"))

    def _stretches(self) -> Iterator[tuple[int, int, int]]:
        """(first, end, toward) of bits that belong together."""
        count = len(self.kinds)
        order = self.places[:, 4]
        same = (self.kinds[1:] == self.kinds[:-1]) & (self.roles[1:] == self.roles[:-1]) \
            & (self.certain[1:] == self.certain[:-1]) & np.all(self.places[1:, :4] == self.places[:-1, :4], axis=1)
        step = np.diff(order)
        first, toward = 0, 0
        for i in range(1, count + 1):
            here = int(step[i - 1]) if i < count else 0
            known = i < count and order[i] >= 0 and order[i - 1] >= 0
            if i < count and same[i - 1] and (
                    (known and abs(here) == 1 and toward in (0, here) and (toward or i == first + 1))
                    or (not known and order[i] == order[i - 1] and not toward)):
                toward = here if known else 0
                continue
            yield first, i, toward
            first, toward = i, 0

    def __repr__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.counts.items())
        unsure = int(np.count_nonzero(~self.certain))
        return (f"Scan({len(self.kinds)} bits: {kinds}; {self.mapped:.0%} of data mapped; {self.runs} runs, "
                f"{self.hangs} hung{f'; {unsure} not certain' if unsure else ''})")

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<b>{html.escape(repr(self))}</b>{notes}{self.table.to_html(max_rows=ROWS_SHOWN, index=False)}"


def scan(data: bytes, run: Runner, inputs: Iterable[Any], layer: Conv2D | None = None, *, seed: int = 0,
         hang_cost: float = 10.0, most_hangs: int | None = None, votes: int = 1, checks: int = 4,
         journal: Journal | None = None, progress: Callable[[int, int], object] | None = None) -> Scan:
    """What each bit of ``data`` does, by ``run(data, given)``: the output array, or None for a hang.

    ``inputs`` are what ``run`` takes, or ``Probe``; the first is used most: it should show as many weights as
    possible, each in an output of its own (``impulses`` makes such images).  Two or more are needed before a bit
    is called dead for certain.  ``layer`` gives shapes, stride, padding and zero points: with it outputs are
    ``(H, W, C)``, inputs ``(H, W, C)`` arrays or probes with an image, and data bits are mapped to their weight.
    Without it the last axis of an output counts channels where it has several axes.

    ``hang_cost`` is what a hang costs, in runs; past ``most_hangs`` the rest is not tried and is ``unknown``.
    ``votes`` repeats every run and takes the middle output.  ``checks`` runs at the end flip one random data bit of
    every weight at once.  ``journal`` keeps every run: with the same one, runs that it has are not made again.
    ``progress`` is called with (bits that are told, bits).  The same seed and outputs give the same scan.
    Raises ValueError for bad input, a buffer that hangs as it is, a device that does not repeat itself, and a
    journal of another scan.

    >>> def run(data, x):
    ...     return np.array([data[0] % 16 + x])
    >>> scan(bytes([0x35, 0]), run, [0, 1]).counts
    {'data': 4, 'dead': 12}
    """
    session = _Session(_data(data), run, _probes(inputs, layer), layer, _count("votes", votes, 1), journal, progress,
                       math.inf if most_hangs is None else _count("most_hangs", most_hangs, 0))
    if not hang_cost >= 0:
        raise ValueError(f"hang_cost: got {hang_cost}, allowed is 0 or more runs")
    _count("checks", checks, 0)
    for index in range(len(session.probes)):
        session.look(index)
    session.views.sort(key=lambda view: (view.saturated > SATURATED, -view.shown))
    rng = np.random.default_rng(seed)
    session.find_hangs(_prefix_share(hang_cost))
    session.refine(0, session.groups)
    session.find_channels()
    session.look_again(0, rng)
    session.tell(roles=("bias",), coarser=True)
    session.look_around(rng)
    session.tell()
    session.tell_rest(rng)
    session.check(checks, rng)
    session.repeat(session.views[0])
    return session.result()


def scan_capture(capture: Capture, device: Device, buffer: str | None = "coefficients", *, task: int = 0,
                 inputs: Iterable[Capture | Probe] | None = None, layer: Conv2D | None = None, seed: int = 0,
                 **options: Any) -> Scan:
    """What each bit of a buffer of a capture does, or with ``buffer=None`` of the words of a job.

    ``device.run(capture)`` runs a capture.  ``inputs`` are captures, or probes that are given a capture, which differ
    from this one in their input and in words that are not scanned; ``layer`` then goes with them.  Left out, they
    are made from the layer that the capture lifts to: impulses and a random image, and where a buffer is scanned
    each through several output scales, from one accumulator unit a step to where nothing reaches the end of the
    type.  Of the lifted layer only shapes, stride, padding and zero points are used, and every channel is taken to
    read all input channels.  ``options`` are those of ``scan``.
    Raises ValueError for a missing buffer or task, and for a layer that cannot be lifted or lowered.
    """
    if buffer is None and not 0 <= task < len(capture.jobs):
        raise ValueError(f"task: got {task}, capture {capture.name} has 0 to {len(capture.jobs) - 1}")
    if buffer is not None and buffer not in capture.buffers:
        raise ValueError(f"buffer: got {buffer!r}, capture {capture.name} has {', '.join(capture.buffers) or 'none'}")
    data = capture.buffers[buffer] if buffer is not None else capture.jobs[task].words.astype("<u4").tobytes()
    if inputs is None:
        lifted = target(capture.target).lift(capture).layer
        asked = _probes_of(capture, lifted, through=buffer is not None, seed=seed)
        layer = _open(lifted)
    else:
        asked = [one if isinstance(one, Probe) else Probe(one) for one in inputs]
    read = _Reader(capture) if layer is not None else _as_bytes

    def run(changed: bytes, base: Capture) -> np.ndarray | None:
        trial = base.with_words(np.frombuffer(changed, "<u4"), task) if buffer is None \
            else base.with_buffers(**{buffer: changed})
        output = device.run(trial).output
        return None if output is None else read(output)

    return scan(data, run, asked, layer, seed=seed, **options)


def impulses(layer: Conv2D, amplitude: int = 1) -> list[np.ndarray]:
    """Images ``(H, W, C) int64`` against the input zero point, 0 but for impulses, that show every weight alone.

    Impulses lie so far apart that no output reads two of them; every weight that the layer can show is read by an
    output of one of the images, and where there is room outputs are left that read the bias alone.
    """
    down, across = (_reached(axis, layer) for axis in (0, 1))
    depth, groups = layer.input_shape[2], layer.input_shape[2] if layer.depthwise else 1
    missing = {(row, column, channel) for channel in range(depth)
               for row in {row for one in down for row, _ in one} for column in {c for one in across for c, _ in one}}
    out = []
    while missing:
        image = np.zeros(layer.input_shape, np.int64)
        taken = np.zeros((*layer.output_shape[:2], groups), bool)
        for channel in range(depth):
            group = channel if layer.depthwise else 0
            while True:
                best = _best_place(down, across, {place[:2] for place in missing if place[2] == channel},
                                   taken[..., group])
                if best is None:
                    break
                row, column = best
                image[row, column, channel] = amplitude
                for (r, y), (c, x) in product(down[row], across[column]):
                    taken[y, x, group] = True
                    missing.discard((r, c, channel))
        out.append(image)
    return out


def _reached(axis: int, layer: Conv2D) -> list[list[tuple[int, int]]]:
    """(tap, output) pairs by input row (axis 0) or column (axis 1)."""
    size, outputs, taps = layer.input_shape[axis], layer.output_shape[axis], layer.kernel[axis]
    stride, spread, before = layer.stride[axis], layer.dilation[axis], layer.pads[axis][0]
    out: list[list[tuple[int, int]]] = [[] for _ in range(size)]
    for tap, place in product(range(taps), range(outputs)):
        at = place * stride + tap * spread - before
        if 0 <= at < size:
            out[at].append((tap, place))
    return out


def _best_place(down: list[list[tuple[int, int]]], across: list[list[tuple[int, int]]], missing: set[tuple[int, int]],
                taken: np.ndarray) -> tuple[int, int] | None:
    """(row, column) of an impulse that shows most of the missing taps in outputs that are free, the first of
    equals; an impulse that would take the last free output must be the image's first."""
    best, most = None, 0
    used = np.count_nonzero(taken)
    for row, column in product(range(len(down)), range(len(across))):
        ys, xs = [y for _, y in down[row]], [x for _, x in across[column]]
        if len(ys) * len(xs) <= most or taken[np.ix_(ys, xs)].any():
            continue
        if used and used + len(ys) * len(xs) == taken.size:
            continue
        count = sum((r, c) in missing for (r, _), (c, _) in product(down[row], across[column]))
        if count > most:
            best, most = (row, column), count
    return best


@dataclass(eq=False)
class _Piece:
    """Bits that are flipped together, the outputs that they can move, and those that they moved."""

    bits: np.ndarray
    bound: int
    moved: int = 0
    alike: bool = False  # what it was split from moved the same outputs as both its halves


class _Effect(NamedTuple):
    """What flipping one bit did under one input: the outputs that moved, where and by how much."""

    view: int
    moved: int
    places: np.ndarray
    change: np.ndarray
    cut: np.ndarray  # whether the output is at the end of its type, before or after

    @property
    def even(self) -> bool:
        """Whether all outputs moved by as much, as far as their type lets them; an accumulator that wraps around
        moves the other way."""
        free = np.abs(self.change[~self.cut])
        return bool(np.ptp(free) <= 1) if len(free) else not np.isnan(self.change).any()


class _Site(NamedTuple):
    role: str  # "weight", "bias", "either" or "control"
    channel: int = NOWHERE
    tap: int = NOWHERE
    weak: bool = False  # outputs moved by one step at most, as rounding may move some of a channel and not others


@dataclass(eq=False)
class _View:
    """An input, the bits that stay flipped under it, and the output of the buffer so."""

    index: int
    probe: Probe
    base: np.ndarray
    output: np.ndarray
    channel: np.ndarray  # of each output
    reads: np.ndarray | None  # the tap that an output reads, NO_TAP, or SEVERAL
    amplitude: np.ndarray | None  # with which it reads it
    ends: tuple[float, float]
    channels: tuple[int, ...]  # the outputs of each

    @property
    def everything(self) -> int:
        return 2 ** self.output.size - 1

    def moved(self, output: np.ndarray) -> np.ndarray:
        """Which outputs differ; all of them where the shape does."""
        if output.shape != self.output.shape:
            return np.ones(self.output.size, bool)
        out = (output != self.output) & ~((output != output) & (self.output != self.output))
        return out.ravel()

    def meets(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Outputs of a wide type that differed and became one: they stop short of the end of their type."""
        out = np.zeros(len(after), bool)
        if self.output.dtype.itemsize >= WIDE:
            for value in np.unique(after):
                same = after == value
                out |= same & (np.ptp(before[same]) > 0)
        return out

    @property
    def saturated(self) -> float:
        """The share of outputs at the end of their type."""
        return float(self.cut(self.output).mean())

    @property
    def shown(self) -> int:
        """How many outputs read one weight alone and are not at the end of their type."""
        return 0 if self.reads is None else int(np.count_nonzero((self.reads >= 0) & ~self.cut(self.output.ravel())))

    def cut(self, values: np.ndarray) -> np.ndarray:
        return (values <= self.ends[0]) | (values >= self.ends[1])


class _Session:
    """A scan that is going on: what was asked, and what is known of each bit."""

    def __init__(self, data: bytes, run: Runner, probes: list[Probe], layer: Conv2D | None, votes: int,
                 journal: Journal | None, progress: Callable[[int, int], object] | None, most_hangs: float) -> None:
        self.data, self.run, self.probes, self.layer = np.frombuffer(data, np.uint8), run, probes, layer
        self.votes, self.journal, self.progress, self.most_hangs = votes, journal, progress, most_hangs
        self.name = hashlib.sha256(data).hexdigest()[:16]
        self.bits = np.unpackbits(self.data, bitorder="little")
        self.count = len(self.bits)
        self.kinds = np.full(self.count, "", "U8")
        self.certain = np.ones(self.count, bool)
        self.widest = max(LEAST_GROUP, 2 ** math.ceil(math.log2(max(self.count / GROUPS, 1))))
        self.runs = self.hangs = 0
        self.first: dict[int, np.ndarray] = {}
        self.together = np.zeros(self.count, bool)  # moved something with others, nothing alone
        self.views: list[_View] = []
        self.groups: list[_Piece] = []
        self.effects: dict[int, list[_Effect]] = {}
        self.fragile = np.zeros(self.count, bool)  # hung with others, not alone
        self.unmoved: dict[int, set[int]] = {}  # the views under which a bit by itself moved nothing
        self.sites: dict[int, _Site] = {}
        self.orders: dict[int, Sequence[int]] = {}
        self.news: set[int] = set()  # bits with effects that were not looked at yet
        self.signs: dict[int, int] = {}
        self.ties: dict[tuple[int, int], bool] = {}
        self.notes: list[str] = []

    # Asking the device

    def ask(self, bits: np.ndarray, number: int, reason: str) -> np.ndarray | None:
        """The output of a view with some bits flipped; None for a hang."""
        view = self.views[number]
        return self._asked(np.setxor1d(bits, view.base), view.index, reason)

    def _asked(self, flips: np.ndarray, index: int, reason: str) -> np.ndarray | None:
        """The output with an input, by most votes and in the middle of what they gave."""
        outputs = [self._one(flips, index, reason) for _ in range(self.votes)]
        if self.progress is not None:
            told = np.count_nonzero(self.kinds) + sum(not self.kinds[bit] for bit in self.effects)
            self.progress(int(told), self.count)
        done = [one for one in outputs if one is not None]
        if 2 * len(done) <= len(outputs):
            return None
        shapes = [one.shape for one in done]
        usual = max(shapes, key=shapes.count)
        same = [one for one in done if one.shape == usual]
        return same[0] if len(same) == 1 else np.sort(same, axis=0)[(len(same) - 1) // 2]

    def _one(self, flips: np.ndarray, index: int, reason: str) -> np.ndarray | None:
        names = tuple(_ranges(flips))
        if self.journal is not None and self.runs < len(self.journal):
            trial = self.journal[self.runs]
            if (trial.subset, trial.more.get("input"), trial.more.get("data")) != (names, index, self.name):
                raise ValueError(f"journal: got {trial!r} with input {trial.more.get('input')} of data "
                                 f"{trial.more.get('data')} as run {self.runs}, allowed is what this scan asks, "
                                 f"{', '.join(names[:3]) or 'nothing changed'} with input {index} of data {self.name}")
            output = _unpacked(trial)
        else:
            changed = self.bits.copy()
            changed[flips] ^= 1
            start = time.perf_counter()
            given = self.run(np.packbits(changed, bitorder="little").tobytes(), self.probes[index].given)
            seconds = time.perf_counter() - start
            output = None if given is None else np.array(given)
            if output is not None and (output.dtype.kind not in "biuf" or not output.size):
                raise ValueError(f"run: got an output of {output.dtype} and shape {output.shape}, allowed are numbers, "
                                 "one or more")
            if self.journal is not None:
                same = output is not None and np.array_equal(output, self.first.get(index, output))
                self.journal.add(Trial(names, reason, "hang" if output is None else "pass" if same else "fail",
                                       seconds, more={"input": index, "data": self.name, **_packed(output)}))
        if output is not None:
            self.first.setdefault(index, output)
        self.runs += 1
        self.hangs += output is None
        return output

    def look(self, index: int, base: np.ndarray | None = None) -> _View:
        """A view of the buffer, with some bits flipped for good, through an input; asked twice.

        Raises ValueError where it hangs or does not repeat itself.
        """
        base = np.zeros(0, np.int64) if base is None else base
        first = self._asked(base, index, "the buffer as it is")
        if first is None:
            raise ValueError(f"data: got a buffer that hangs as it is with input {index}, allowed is one that runs")
        view = self._seen(index, base, first)
        self.views.append(view)
        self.repeat(view)
        return view

    def repeat(self, view: _View) -> None:
        """Raises ValueError where the same buffer gives something else."""
        again = self._asked(view.base, view.index, "does it repeat itself")
        if again is None or view.moved(again).any():
            how = "a hang" if again is None else f"{view.moved(again).sum()} of {view.output.size} outputs changed"
            raise ValueError(f"run: got {how} where the same buffer ran again with input {view.index}, allowed is a "
                             "device that repeats itself (votes=3 or more takes the middle of several runs)")

    def _seen(self, index: int, base: np.ndarray, output: np.ndarray) -> _View:
        probe = self.probes[index]
        reads = amplitude = None
        channel = np.arange(output.size) % output.shape[-1] if output.ndim > 1 else np.zeros(output.size, int)
        if self.layer is not None:
            if output.shape != self.layer.output_shape:
                raise ValueError(f"run: got an output of shape {output.shape}, allowed is that of the layer, "
                                 f"{self.layer.output_shape}")
            if probe.image is not None:
                reads, amplitude = _readings(self.layer, probe.image)
        ends = (-math.inf, math.inf) if output.dtype.kind not in "iu" \
            else (np.iinfo(output.dtype).min, np.iinfo(output.dtype).max)
        channels = tuple(_as_set(channel == one) for one in np.unique(channel))
        return _View(index, probe, base, output, channel, reads, amplitude, ends, channels)

    # Splitting

    def find_hangs(self, share: float) -> None:
        """Groups of bits that run, from one bit up to a share of the buffer; bits that hang are found one by one.

        A group doubles where the one before it ran; after a bit that hangs the next is one bit again, since hanging
        bits come in runs.  ``share`` of a group that hangs is tried next.
        """
        for value in (1, 0):
            left = np.flatnonzero(self.bits == value)
            span = 1
            while len(left):
                if self.hangs >= self.most_hangs:
                    self.kinds[left], self.certain[left] = "unknown", False
                    break
                end = max(1, int(np.searchsorted(left, (left[0] // span + 1) * span)))
                if self._group(left[:end], "a group"):
                    left, span = left[end:], min(2 * span, self.widest)
                    continue
                left, span = self._first_hanging(left[:end], left[end:], share), 1

    def _group(self, bits: np.ndarray, reason: str) -> bool:
        """Whether bits run together; if so they are a group."""
        output = self.ask(bits, 0, reason)
        if output is None:
            if len(bits) == 1:
                self.kinds[bits] = "hang"
            return False
        piece = _Piece(bits, self.views[0].everything)
        self.groups.append(piece)
        self._note(0, piece, self.views[0].everything, output)
        return True

    def _first_hanging(self, bad: np.ndarray, rest: np.ndarray, share: float) -> np.ndarray:
        """Find the first bit that hangs of those that hang together; gives the bits behind it."""
        behind, measured = [rest], True
        while len(bad) > 1 and self.hangs < self.most_hangs:
            cut = min(max(1, round(share * len(bad))), len(bad) - 1)
            measured = not self._group(bad[:cut], "before the first that hangs")
            if measured:
                behind.append(bad[cut:])
            bad = bad[:cut] if measured else bad[cut:]
        if len(bad) > 1 or (not measured and self.hangs >= self.most_hangs):
            self.kinds[bad], self.certain[bad] = "hang", False
        elif not measured:
            self._group(bad, "the first that hangs")
        return np.concatenate(behind[::-1])

    def _note(self, number: int, piece: _Piece, bound: int, output: np.ndarray) -> None:
        """Write down what a piece moved within its bound; of one bit also by how much."""
        view = self.views[number]
        piece.moved = _as_set(view.moved(output)) & bound
        if len(piece.bits) == 1:
            if piece.moved:
                self._effect(number, int(piece.bits[0]), piece.moved, output)
            else:
                self.unmoved.setdefault(int(piece.bits[0]), set()).add(number)
                self.news |= {int(piece.bits[0])} & self.effects.keys()
        elif piece.moved:
            # the bits of a bias can cancel to a single step that a weight hides: such a piece may move its channel
            piece.moved |= sum(one for one in view.channels if 2 * (piece.moved & one).bit_count() > one.bit_count())

    def _effect(self, number: int, bit: int, moved: int, output: np.ndarray) -> None:
        view = self.views[number]
        places = np.flatnonzero(_from_set(moved, view.output.size))
        if output.shape != view.output.shape:
            change, cut = np.full(len(places), np.nan), np.ones(len(places), bool)
        else:
            before, after = view.output.ravel()[places], output.ravel()[places]
            change = after.astype(np.float64) - before.astype(np.float64)
            cut = view.cut(before) | view.cut(after) | view.meets(before, after)
        self.news.add(bit)
        self.effects.setdefault(bit, []).append(_Effect(number, moved, places, change, cut))

    def refine(self, number: int, pieces: Iterable[_Piece]) -> None:
        """Split pieces that moved something until every bit that moves something was flipped by itself.

        Bits that move something and whose parts move nothing are ``together``.
        """
        level = [piece for piece in pieces if piece.moved and len(piece.bits) > 1]
        apart: list[tuple[_Piece, list[_Piece]]] = []
        while level:
            pairs: list[tuple[_Piece, _Piece, _Piece]] = []
            for piece in level:
                if piece.alike or len(piece.bits) == 2 or (piece.moved.bit_count() == 1 and len(piece.bits) <= FEW):
                    apart.append((piece, [_Piece(piece.bits[i:i + 1], piece.moved) for i in range(len(piece.bits))]))
                else:
                    first, second = (_Piece(part, piece.moved) for part in _halves(piece.bits))
                    pairs.append((piece, first, second))
            following = self.measure(number, [first for _, first, _ in pairs])
            for piece, first, second in pairs:
                if first.moved == 0 and len(second.bits) > 1:
                    second.moved = piece.moved
            following += self.measure(number, [second for _, _, second in pairs if not second.moved])
            for piece, first, second in pairs:
                first.alike = second.alike = first.moved == second.moved == piece.moved
                following += [half for half in (first, second) if half.moved]
                if not first.moved and not second.moved:
                    self._entangled(number, piece.bits)
            level = [piece for piece in following if len(piece.bits) > 1]
        # bits of one bias share all outputs of their channel: waiting for each other saves the others' runs
        self.measure(number, [single for _, singles in apart for single in singles])
        for piece, singles in apart:
            self.together[piece.bits] |= not any(single.moved for single in singles)

    def _entangled(self, number: int, bits: np.ndarray, hung: bool = False) -> None:
        """Of bits that move something, or hang, together and not alone find one that takes part.

        Of few bits that move something all are taken.  What hangs with others is ``fragile``.
        """
        if len(bits) <= FEW and not hung:
            self.together[bits] = True
            return
        first = self._shortest(number, bits, bits[:0], hung)
        one, before = bits[first - 1], bits[:first - 1]
        second = self._shortest(number, before, bits[first - 1:first], hung)
        # it is the one that acts with still others, or else the other
        if second:
            others = np.append(np.delete(before, second - 1), one)
            one = one if self._acts(number, others, hung) else before[second - 1]
        self.together[one] = True
        self.fragile[one] |= hung

    def _shortest(self, number: int, bits: np.ndarray, beside: np.ndarray, hung: bool) -> int:
        """How many bits from the first on act together with others; all do."""
        least, most = 0, len(bits)
        while most - least > 1:
            middle = (least + most) // 2
            if self._acts(number, np.concatenate([bits[:middle], beside]), hung):
                most = middle
            else:
                least = middle
        return most

    def _acts(self, number: int, bits: np.ndarray, hung: bool) -> bool:
        output = self.ask(np.sort(bits), number, "which bits act together")
        return output is None or (not hung and bool(self.views[number].moved(output).any()))

    def measure(self, number: int, pieces: list[_Piece]) -> list[_Piece]:
        """Find what each piece moves; pieces with bounds apart share a run.  Gives parts of pieces that hung."""
        out: list[_Piece] = []
        for pack in _packs(pieces):
            out += self._pack(number, pack)
        return out

    def _pack(self, number: int, pack: list[_Piece]) -> list[_Piece]:
        view = self.views[number]
        out: list[_Piece] = []
        output = self.ask(np.sort(np.concatenate([piece.bits for piece in pack])), number,
                          f"{len(pack)} piece{'s' * (len(pack) > 1)} of up to "
                          f"{max(len(piece.bits) for piece in pack)} bits")
        if output is None:
            if len(pack) > 1:
                return self._apart(number, pack)
            bits = pack[0].bits
            if len(bits) == 1:
                self.kinds[bits] = "hang"
                self.effects.pop(int(bits[0]), None)
                return []
            halves = [_Piece(part, pack[0].bound) for part in _halves(bits)]
            return [*halves, *self._apart(number, halves)]
        bound = 0
        for piece in pack:
            bound |= piece.bound
        strays = _as_set(view.moved(output)) & ~bound
        if strays and len(pack) > 1:
            return self._apart(number, pack)
        for piece in pack:
            self._note(number, piece, piece.bound | strays, output)
        # a control bit may move by itself what it did not together with others: it must not share a run
        loud = [piece for piece in pack if self._loud(number, piece)]
        if len(pack) > 1 and loud:
            for piece in pack:
                if len(piece.bits) == 1:
                    self._forget(number, int(piece.bits[0]))
            calm = [piece for piece in pack if piece not in loud]
            for part in (*([piece] for piece in loud), *([calm] if calm else [])):
                out += self._pack(number, part)
        return out

    def _loud(self, number: int, piece: _Piece) -> bool:
        """Whether a piece is one bit that did in a view what no weight or bias does."""
        return len(piece.bits) == 1 and any(effect.view == number and self._site(effect).role == "control"
                                            for effect in self.effects.get(int(piece.bits[0]), ()))

    def _forget(self, number: int, bit: int) -> None:
        """Drop what a bit did in a view."""
        self.news.add(bit)
        left = [effect for effect in self.effects.pop(bit, ()) if effect.view != number]
        if left:
            self.effects[bit] = left

    def _apart(self, number: int, pack: list[_Piece]) -> list[_Piece]:
        """A pack run again as two."""
        middle = len(pack) // 2
        return self._pack(number, pack[:middle]) + self._pack(number, pack[middle:])

    @property
    def quiet(self) -> np.ndarray:
        """Bits that may be flipped and have not moved anything yet."""
        seen = np.zeros(self.count, bool)
        seen[list(self.effects)] = True
        return np.flatnonzero((self.kinds == "") & ~seen)

    def look_again(self, number: int, rng: np.random.Generator) -> None:
        """Look at the bits that have not moved anything, with another input and other sets of flips."""
        seen, self.together = self.together, self.fragile.copy()
        if number:
            tried = [self._tried(number, self.quiet[self.bits[self.quiet] == value]) for value in (1, 0)]
            if any(piece.moved for piece in tried):
                parts = self._gaps(self.views[number])
                self.refine(number, [*parts, *self.measure(number, parts)])
        for _ in range(MOST_HALVES):
            # what is less than an output step moves something with others alone; another input may tell
            bits = self.quiet
            piece = self._tried(number, bits[rng.random(len(bits)) < 0.5])
            if not piece.moved:
                break
            known = self.together.sum()
            self.refine(number, [piece])
            if len(self.quiet) == len(bits) and self.together.sum() == known:
                self._entangled(number, piece.bits)
        self.together |= seen

    def _tried(self, number: int, bits: np.ndarray) -> _Piece:
        """Bits that are run at once, without those that hang together."""
        bits = bits[~self.together[bits]]
        piece = _Piece(bits, self.views[number].everything)
        for _ in range(MOST_HALVES):
            output = self.ask(piece.bits, number, "bits that moved nothing") if len(piece.bits) else None
            if output is not None:
                self._note(number, piece, piece.bound, output)
                return piece
            if len(piece.bits) < 2:
                self.kinds[piece.bits] = "hang"
                return piece
            self._entangled(number, piece.bits, hung=True)
            piece.bits = piece.bits[~self.together[piece.bits]]
        self.notes.append(f"with input {self.views[number].index} too many bits hang together to look at all of them")
        self.certain[piece.bits] = False
        return piece

    def _gaps(self, view: _View) -> list[_Piece]:
        """The quiet bits by the bits around them that moved one channel: they are likely to move the same.

        Few bits between two weights' bits are taken to be those weights', more to be anything of those channels; a
        guess that is wrong costs runs.  Ones and zeros apart, and no more than a group's bits together.
        """
        self._place()
        known = np.array(sorted(bit for bit, site in self.sites.items() if site.role != "control"), np.int64)
        sites = [self.sites[int(bit)] for bit in known]
        at: dict[tuple[int, ...], list[int]] = {}
        quiet = self.quiet[~self.together[self.quiet]]
        for bit, right in zip(quiet, np.searchsorted(known, quiet), strict=True):
            left = max(right - 1, 0)
            beside = sites[left:right + 1]
            channels = tuple(sorted({site.channel for site in beside}))
            near = right < len(known) and known[right] - known[left] <= FEW and all(
                site.role == "weight" for site in beside) and self._reads(view, beside)
            key = (int(self.bits[bit]), *((-1, int(left)) if near else (int(bit) // self.widest, *channels)))
            at.setdefault(key, []).append(int(bit))
        out = []
        for key, bits in at.items():
            if key[1] == -1:
                bound = self._reads(view, sites[key[2]:key[2] + 2])
            else:
                bound = _as_set(np.isin(view.channel, key[2:])) if key[2:] else view.everything
            out.append(_Piece(np.array(bits), bound))
        return out

    def _reads(self, view: _View, sites: list[_Site]) -> int:
        """The outputs that read one of some weights alone; 0 where one of them is not read."""
        bound = 0
        for site in sites:
            outputs = 0 if view.reads is None else _as_set((view.channel == site.channel) & (view.reads == site.tap))
            if not outputs:
                return 0
            bound |= outputs
        return bound

    def find_channels(self) -> None:
        """Where no layer says so: outputs that many single bits move together are a channel, if they are all."""
        if self.layer is not None:
            return
        counts: dict[int, int] = {}
        for effects in self.effects.values():
            if effects[0].even and len(effects[0].places) > 1:
                counts[effects[0].moved] = counts.get(effects[0].moved, 0) + 1
        found: list[int] = []
        used = 0
        for outputs in sorted(counts, key=lambda one: -counts[one]):
            if counts[outputs] >= ALIKE_BITS and not outputs & used:
                found.append(outputs)
                used |= outputs
        if used != self.views[0].everything:
            return
        found.sort(key=lambda outputs: outputs & -outputs)
        channel = np.zeros(self.views[0].output.size, int)
        for number, outputs in enumerate(found):
            channel[_from_set(outputs, channel.size)] = number
        self.views = [replace(view, channel=channel, channels=tuple(found))
                      if view.output.size == channel.size else view for view in self.views]

    # What bits are

    def tell(self, roles: tuple[str, ...] = ("weight", "bias", "either"), coarser: bool = False) -> None:
        """Find weight or bias and order of bits that moved something, by flipping them under more inputs."""
        self._place()
        least = (self.views[0].probe.step or 0.0) if coarser else -1.0
        order = [number for number, view in enumerate(self.views) if (view.probe.step or 0.0) > least]
        for number in sorted(order, key=lambda number: (not self._exact(self.views[number]),
                                                        self.views[number].saturated)):
            self._tell(number, roles)

    def tell_rest(self, rng: np.random.Generator) -> None:
        """Bring outputs of weights that are near the end of their range off the end of their type, and tell those."""
        for view in list(self.views):
            if not self._exact(view) or view.reads is None or len(view.base) or view.probe.step == 1:
                continue
            for aim in (0.0, 0.25, -0.25):
                channels = {site.channel for bit, site in self.sites.items() if site.tap >= 0
                            and (site.role == "either" or len(self.orders[bit]) > 1)
                            and (view.channel[view.reads == site.tap] == site.channel).any()}
                base = self._towards(view, sorted(channels), aim * (view.ends[1] - view.ends[0]))
                if len(base):
                    self.look(view.index, base)
                    self.look_again(len(self.views) - 1, rng)
                    self._place()
                    self._tell(len(self.views) - 1, ("weight", "either"))

    def _tell(self, number: int, roles: tuple[str, ...]) -> None:
        pieces = [_Piece(np.array([bit]), bound) for bit, site in self.sites.items()
                  if site.role in roles and (bound := self._worth(number, bit))]
        self.measure(number, pieces)
        self._place()

    def _place(self) -> None:
        """Say where the bits belong that have shown something new."""
        self.ties.clear()
        for bit in sorted(self.news):
            self.signs.pop(bit, None)
            if bit not in self.effects:
                self.sites.pop(bit, None)
                continue
            site = _joined([self._site(effect) for effect in self.effects[bit]])
            if site.role == "either" and site.tap >= 0 and self._no_bias(bit, site.channel):
                site = site._replace(role="weight")
            self.sites[bit] = site
            self.orders[bit] = self._order(bit)
        self.news.clear()

    def _no_bias(self, bit: int, channel: int) -> bool:
        """Whether a bit moved an output by so much that outputs of a view that it leaves alone would have moved."""
        # rounding makes up to one step of a change
        sizes = [(np.abs(effect.change).max() - 1) * (self.views[effect.view].probe.step or 1.0)
                 for effect in self.effects[bit]]
        for number in self.unmoved.get(bit, ()):
            view = self.views[number]
            free = (view.channel == channel) & ~view.cut(view.output.ravel())
            if view.reads is not None and (free & (view.reads == NO_TAP)).any() \
                    and max(sizes) >= 2 * (view.probe.step or 1.0):
                return True
        return False

    def _worth(self, number: int, bit: int) -> int:
        """The outputs that can tell more of a bit than is known, of a view that has not shown it alone; else 0."""
        view, site = self.views[number], self.sites[bit]
        orders = self.orders[bit]
        if site.role == "control" or view.reads is None or view.probe.step is None or len(orders) == 1 \
                or number in self.unmoved.get(bit, ()) or any(effect.view == number for effect in self.effects[bit]):
            return 0
        mine = view.channel == site.channel
        outputs = mine & (view.reads == site.tap) if site.tap >= 0 else mine
        clear = outputs & ~view.cut(view.output.ravel())
        if site.role == "either" and not clear.any():
            # what reads no weight tells whether it is a bias
            lone = mine & (view.reads == NO_TAP) & ~view.cut(view.output.ravel())
            return _as_set(mine) if lone.any() else 0
        if not clear.any():
            return 0
        if site.role == "either" and not self._exact(view) and max(
                np.abs(effect.change).max() * (self.views[effect.view].probe.step or 0.0)
                for effect in self.effects[bit]) < 2 * view.probe.step:
            return 0
        unit = self._unit(view, np.flatnonzero(clear), site)
        span = view.ends[1] - view.ends[0]
        return _as_set(outputs) if any(0.5 <= unit * 2.0 ** order <= span for order in orders) else 0

    def _unit(self, view: _View, places: np.ndarray, site: _Site) -> float:
        """Output steps of the lowest bit."""
        assert view.amplitude is not None
        assert view.probe.step is not None
        amplitude = np.abs(view.amplitude[places]).max() if site.tap >= 0 else 1
        return float(amplitude / view.probe.step)

    def _order(self, bit: int) -> Sequence[int]:
        """The orders that a bit can have by what it moved; all of them where no step is known."""
        site = self.sites[bit]
        if site.role == "control":
            return ()
        orders: Sequence[int] = range(ACCUMULATOR_BITS)
        for effect in self.effects[bit]:
            view = self.views[effect.view]
            if site.role not in ("weight", "bias") or view.reads is None or view.probe.step is None \
                    or SEVERAL in view.reads[effect.places] or np.isnan(effect.change).any():
                continue
            unit = self._unit(view, effect.places, site)
            slack = self._slack(effect.view, site)
            for one, cut in zip(np.abs(effect.change), effect.cut, strict=True):
                orders = tuple(order for order in orders if unit * 2.0 ** order >= one - slack
                               and (cut or unit * 2.0 ** order <= one + slack))
        return orders

    def _slack(self, number: int, site: _Site) -> float:
        """By how many steps a change of the output can differ from that of the accumulator.

        Rounding makes it up to one, ties to even all of it; not where all outputs are rounded by the same, and not
        by half a step.
        """
        view = self.views[number]
        if view.probe.step == 1:
            return 0.0
        return 0.0 if site.role == "weight" and self._exact(view) and not self._tied(number, site.channel) else 1.0

    def _tied(self, number: int, channel: int) -> bool:
        """Whether a channel's bias lies halfway between two outputs of a view, as far as it is known."""
        if (number, channel) not in self.ties:
            view, bias = self.views[number], self._bias(channel)
            step = view.probe.step
            self.ties[number, channel] = bias is not None and step is not None and bool(
                2 * ((bias + self._flipped(view, channel)) % step) == step)
        return self.ties[number, channel]

    def _flipped(self, view: _View, channel: int) -> float:
        """What the flips of a view add to a channel's bias."""
        return sum(self._flip(int(bit)) for bit in view.base if self.sites[int(bit)].channel == channel)

    def _site(self, effect: _Effect) -> _Site:
        """Where the bit belongs by one effect."""
        view = self.views[effect.view]
        channels = np.unique(view.channel[effect.places])
        if len(channels) > 1:
            return _Site("control")
        channel = int(channels[0])
        mine = view.channel == channel
        even = effect.even
        if view.reads is None or self.layer is None:
            if mine.all() and max(1, LOCAL * mine.size) < len(effect.places) and not (
                    even and len(effect.places) == mine.size):
                return _Site("control")
            return _Site("either", channel)
        taps = np.unique(view.reads[effect.places])
        if SEVERAL in taps:
            return _Site("either", channel)
        # also a bias moves a single output by one where the others round the other way
        weak = bool(np.abs(effect.change).max() < 2) and view.probe.step not in (None, 1)
        free = mine & (view.reads == NO_TAP) & ~view.cut(view.output.ravel())
        if NO_TAP in taps:
            moved = _from_set(effect.moved, view.output.size)
            whole = even and bool(moved[free].all())
            return _Site("bias", channel, BIAS, weak) if whole else _Site("either" if weak else "control", channel)
        if len(taps) == 1:
            alone = mine & (view.reads != taps[0])
            sure = (not weak or self._exact(view)) and (
                free.any() or (alone.any() and not view.cut(view.output.ravel()[alone]).all()))
            return _Site("weight" if sure else "either", channel, int(taps[0]), weak)
        if not free.any() and even:
            return _Site("bias", channel, BIAS, weak)
        return _Site("either", channel) if weak else _Site("control")

    def _exact(self, view: _View) -> bool:
        """Whether every weight's lowest bit moves an output by a whole number of steps."""
        step = view.probe.step
        return step is None or view.amplitude is None or not np.any(view.amplitude % step)

    def look_around(self, rng: np.random.Generator) -> None:
        """Look at the bits that have not moved anything with the other inputs.

        Of views of one image the finest goes first, with known bits of a bias flipped where that keeps outputs at
        the end of their type; coarser ones are left out behind one where no output is there.
        """
        images: dict[int, list[int]] = {}
        for number, view in enumerate(self.views):
            image = view.probe.image
            same = number if image is None else next(first for first in (*images, number) if np.array_equal(
                image, np.asarray(self.views[first].probe.image)))
            images.setdefault(same, []).append(number)
        for numbers in images.values():
            finest = sorted(numbers, key=lambda number: self.views[number].probe.step or 0.0)
            start = next((i for i, number in enumerate(finest) if self.views[number].saturated <= SATURATED), 0)
            coarser = finest[start + 1:] if self.views[finest[start]].saturated else []
            for number in (*finest[start::-1], *coarser):
                number = self._recentred(number)
                if number:
                    self.look_again(number, rng)
                self._place()
                self._tell(number, ("bias", "either"))
                if number in coarser and not self.views[number].saturated:
                    break

    def _recentred(self, number: int) -> int:
        """A view like one, with known bits of biases flipped so that fewer outputs are at the end of their type;
        the same where there is none."""
        view = self.views[number]
        cut = view.cut(view.output.ravel()) & (view.reads != SEVERAL)
        base = self._towards(view, np.unique(view.channel[cut]))
        if len(base):
            if self._stuck(self.look(view.index, base)) < self._stuck(view):
                return len(self.views) - 1
            del self.views[-1]
        return number

    def _stuck(self, view: _View) -> tuple[int, int]:
        """How many outputs are at the end of their type, those that read a bias alone first."""
        cut = view.cut(view.output.ravel())
        return int(np.count_nonzero(cut & (view.reads == NO_TAP))), int(np.count_nonzero(cut))

    def _towards(self, view: _View, channels: Iterable[int], aim: float = 0.0) -> np.ndarray:
        """Bits of biases that bring the outputs of channels which read nothing ``aim`` steps from their middle."""
        out: list[int] = []
        step = view.probe.step
        if view.reads is None or step is None:
            return np.zeros(0, np.int64)
        for channel in channels:
            total = self._bias(int(channel))
            if total is None:
                continue
            known = self._known(int(channel))
            flips, left = min((self._nearer(known, total - aim * step), self._as_number(known, total - aim * step,
                               aim * step)), key=lambda found: abs(found[1]))
            # no ties: they are rounded one way or the other
            if known and 2 * ((left + aim * step) % step) == step and 2.0 ** (self.orders[known[-1]][0] + 1) < step:
                flips = list({*flips} ^ {known[-1]})
            out += flips
        return np.sort(np.array(out, np.int64))

    def _known(self, channel: int) -> list[int]:
        """The bits of a channel's bias whose order is known, highest first; of two that say the same, the one that
        lies beside others."""
        bits = [bit for bit, site in self.sites.items() if site.role == "bias" and site.channel == channel]
        out: dict[int, int] = {}
        for bit in sorted(bits, key=lambda bit: (bit - 1 in bits) + (bit + 1 in bits)):
            if len(self.orders[bit]) == 1:
                out[self.orders[bit][0]] = bit
        return [out[order] for order in sorted(out, reverse=True)]

    def _nearer(self, known: list[int], left: float) -> tuple[list[int], float]:
        """Bits of a bias, highest first, that each bring what is left nearer to 0, and what is left then."""
        flips = []
        for bit in known:
            if abs(left + self._flip(bit)) < abs(left):
                left += self._flip(bit)
                flips.append(bit)
        return flips, left

    def _as_number(self, known: list[int], left: float, goal: float) -> tuple[list[int], float]:
        """The same where a bias is a number in two's complement that shall become ``goal``: its sign may change."""
        wanted = int(goal) % 2 ** ACCUMULATOR_BITS
        flips = [bit for bit in known if wanted // 2 ** self.orders[bit][0] % 2 != self.bits[bit]]
        half = 2.0 ** (ACCUMULATOR_BITS - 1)
        return flips, (left + sum(self._flip(bit) for bit in flips) + half) % (2 * half) - half

    def _flip(self, bit: int) -> float:
        """What flipping a bit of a bias adds to it."""
        return self._sign(bit) * (1 - 2 * int(self.bits[bit])) * 2.0 ** self.orders[bit][0]

    def _bias(self, channel: int) -> float | None:
        """The bias of a channel, as the finest view that shows it says."""
        best: tuple[float, float] | None = None
        for view in self.views:
            step = view.probe.step
            if view.reads is None or step is None:
                continue
            lone = (view.channel == channel) & (view.reads == NO_TAP) & ~view.cut(view.output.ravel())
            if lone.any() and (best is None or step < best[0]):
                value = (float(view.output.ravel()[lone][0]) - view.probe.zero) * step
                best = step, value - self._flipped(view, channel)
        return None if best is None else best[1]

    def _sign(self, bit: int) -> int:
        """The way that outputs go when a bit is set, for a positive input."""
        if bit in self.signs:
            return self.signs[bit]
        site, out = self.sites[bit], 0.0
        for effect in self.effects[bit]:
            view = self.views[effect.view]
            if view.reads is not None and SEVERAL in view.reads[effect.places]:
                continue
            flipped = int(self.bits[bit]) ^ int(bit in view.base)
            toward = np.sign(effect.change) * (1 - 2 * flipped)
            if site.role == "weight" and view.amplitude is not None:
                toward = toward * np.sign(view.amplitude[effect.places])
            out += float(np.nansum(toward)) / len(toward)
        self.signs[bit] = int(np.sign(out))
        return self.signs[bit]

    def check(self, count: int, rng: np.random.Generator) -> None:
        """Flip random halves of the weights' bits: outputs must change by the sum of what the bits do alone.

        Where they do not, the bits that move those outputs are flipped again, no two of a channel together.
        """
        view = self.views[0]
        alone = {bit: effect for bit, effects in self.effects.items() for effect in effects
                 if effect.view == 0 and self.sites[bit].role in ("weight", "either") and not effect.cut.any()
                 and 2 * len(effect.places) <= np.count_nonzero(view.channel == view.channel[effect.places[0]])}
        exact = self._exact(view)
        for _ in range(count if alone else 0):
            bits = np.sort(np.array([bit for bit in alone if rng.random() < 0.5], np.int64))
            output = self.ask(bits, 0, "a random half of the weights")
            if output is None or output.shape != view.output.shape:
                self.notes.append("bits that run one by one do not run together")
                continue
            wanted, several = view.output.astype(np.float64).ravel(), np.zeros(view.output.size)
            for bit in bits:
                wanted[alone[bit].places] += alone[bit].change
                several[alone[bit].places] += 1
            slack = several * 0 if exact else several
            if output.dtype.kind == "f":
                slack = slack + ROUNDED * np.finfo(output.dtype).eps * np.abs(wanted).max()
            off = np.abs(output.ravel() - np.clip(wanted, *view.ends)) > slack
            if not off.any():
                continue
            suspects = [bit for bit in alone if off[alone[bit].places].any()]
            pieces = []
            for bit in suspects:
                self._forget(0, bit)
                mine = np.unique(view.channel[alone[bit].places])
                pieces.append(_Piece(np.array([bit]), _as_set(np.isin(view.channel, mine))))
            self.measure(0, pieces)
            for bit in suspects:
                before = alone.pop(bit)
                found = [effect for effect in self.effects.get(bit, ()) if effect.view == 0]
                if found and found[0].moved == before.moved and np.array_equal(found[0].change, before.change):
                    self.notes.append("bits that were flipped together moved something else than they do alone")
            self._place()

    def result(self) -> Scan:
        """What was found."""
        kinds, certain = self.kinds.astype("U7"), self.certain.copy()
        quiet = self.quiet
        kinds[quiet] = np.where(self.fragile[quiet], "control", "dead")
        certain[quiet] &= ~self.together[quiet]
        for said, which in (("hang with others and do nothing alone", self.fragile),
                            ("are among those that move something together and nothing alone",
                             self.together & ~self.fragile)):
            if which[quiet].any():
                self.notes.append(f"{np.count_nonzero(which[quiet])} bits {said}")
        if len(self.probes) < 2 and len(quiet):
            certain[quiet] = False
            self.notes.append("dead bits were looked at with one input only")
        if all(view.saturated for view in self.views):
            certain[quiet] = False
            self.notes.append("under every input some outputs are at the end of their type: what moves those alone "
                              "looks dead")
        roles = np.full(self.count, "", "U6")
        places = np.tile(np.array(NO_PLACE), (self.count, 1))
        relative = self._relative()
        for bit, site in self.sites.items():
            if kinds[bit] or bit not in self.effects:
                continue
            kinds[bit] = "control" if site.role == "control" else "data"
            if site.role == "control":
                continue
            places[bit, 0] = site.channel
            places[bit, 5] = self._sign(bit)
            if site.role == "either":
                continue
            roles[bit] = site.role
            if site.role == "weight" and self.layer is not None:
                places[bit, 1:4] = np.unravel_index(site.tap, (*self.layer.kernel, self.layer.input_shape[2]))
            orders = self.orders[bit]
            places[bit, 4] = orders[0] if len(orders) == 1 else relative.get(bit, NOWHERE)
        odd = [bit for bit, site in self.sites.items() if kinds[bit] == "data" and roles[bit] and not self.orders[bit]]
        if len(odd) > ODD * np.count_nonzero(kinds == "data"):
            odd = []
            self.notes.append("data bits change their weight by what is no power of two: is the step right?")
        for other in (*self._doubles(places, roles), *odd):
            kinds[other], certain[other], roles[other] = "control", False, ""
            places[other] = NO_PLACE
        kinds[self._lengths([int(bit) for bit in np.flatnonzero(kinds == "control") if int(bit) in self.effects],
                            [bit for bit in self.effects if kinds[bit] == "data" and roles[bit] != "bias"])] = "length"
        saturated = [view.saturated for view in self.views]
        return Scan(kinds, certain, roles, places, self.runs, self.hangs, float(np.mean(saturated)),
                    tuple(dict.fromkeys(self.notes)))

    def _doubles(self, places: np.ndarray, roles: np.ndarray) -> list[int]:
        """Bits that act as a bit of a weight or bias which another bit is that lies beside the rest of it."""
        claims: dict[tuple[Any, ...], list[int]] = {}
        for bit in np.flatnonzero(places[:, 4] >= 0):
            claims.setdefault((roles[bit], *places[bit, :5]), []).append(int(bit))
        out = []
        for bits in claims.values():
            if len(bits) > 1:
                beside = [sum(0 <= at < self.count and roles[at] == roles[bit]
                              and np.array_equal(places[at, :4], places[bit, :4]) for at in (bit - 1, bit + 1))
                          for bit in bits]
                out += [bit for bit, count in zip(bits, beside, strict=True) if count < max(beside)]
        return out

    def _relative(self) -> dict[int, int]:
        """Orders against the smallest change that any weight, or any bias, shows, where no step is known."""
        out: dict[int, int] = {}
        for role in ("weight", "bias"):
            sizes = {}
            for bit, site in self.sites.items():
                found = [float(np.abs(effect.change[~effect.cut] / self._amplitudes(effect, site)[~effect.cut]).max())
                         for effect in self.effects.get(bit, ()) if site.role == role and (~effect.cut).any()
                         and self.views[effect.view].probe.step is None
                         and SEVERAL not in np.asarray(self.views[effect.view].reads)[effect.places]]
                if found:
                    sizes[bit] = max(found)
            least = min(sizes.values(), default=1.0)
            out |= {bit: round(math.log2(size / least)) for bit, size in sizes.items() if size > 0}
        return out

    def _amplitudes(self, effect: _Effect, site: _Site) -> np.ndarray:
        amplitude = self.views[effect.view].amplitude
        return np.abs(amplitude[effect.places]) if site.role == "weight" and amplitude is not None \
            else np.ones(len(effect.places))

    def _lengths(self, bits: list[int], weights: list[int]) -> list[int]:
        """The bits that leave the outputs of weights before them and move those behind, in the channels they move.

        Where all weights of its channels lie behind a bit, it must follow another that moves these channels too.
        """
        out: list[int] = []
        places = {number: (np.full(view.output.size, self.count), np.full(view.output.size, -1))
                  for number, view in enumerate(self.views)}
        for bit in weights:
            for effect in self.effects[bit]:
                first, last = places[effect.view]
                first[effect.places] = np.minimum(first[effect.places], bit)
                last[effect.places] = np.maximum(last[effect.places], bit)
        for bit in sorted(bits):
            moved, behind, before = set(), 0, False
            for effect in self.effects[bit]:
                (first, last), channel = places[effect.view], self.views[effect.view].channel
                earlier = (last >= 0) & (last < bit)
                if earlier[effect.places].any():
                    behind = 0
                    break
                mine = set(channel[effect.places].tolist())
                before |= bool(np.any(earlier & np.isin(channel, list(mine))))
                behind = max(behind, int(np.count_nonzero((first[effect.places] > bit)
                                                          & (first[effect.places] < self.count))))
                moved |= mine
            follows = any(moved <= self._channels(other) for other in out)
            if behind > 1 and (before or follows):
                out.append(bit)
        return out

    def _channels(self, bit: int) -> set[int]:
        """The channels that a bit moves."""
        return {channel for effect in self.effects[bit]
                for channel in self.views[effect.view].channel[effect.places].tolist()}


def _joined(sites: list[_Site]) -> _Site:
    """One site of what several effects say."""
    if any(site.role == "control" for site in sites) or len({site.channel for site in sites}) > 1:
        return _Site("control")
    for weak in (False, True):
        sure = {site for site in sites if site.role != "either" and site.weak == weak}
        if len(sure) == 1:
            return sure.pop()
        if sure:
            return _Site("either", sites[0].channel) if weak else _Site("control")
    return sites[0]


def _packs(pieces: Sequence[_Piece]) -> list[list[_Piece]]:
    """Pieces in as few packs as come out when each goes, widest first, to the first where nothing shares an output."""
    packs: list[list[_Piece]] = []
    used: list[int] = []
    for piece in sorted(pieces, key=lambda piece: -piece.bound.bit_count()):
        for number, bound in enumerate(used):
            if not bound & piece.bound:
                packs[number].append(piece)
                used[number] |= piece.bound
                break
        else:
            packs.append([piece])
            used.append(piece.bound)
    return packs


def _halves(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorted bits in two, at the boundary in their middle half that most powers of two divide."""
    quarter = len(bits) // 4
    inside = range(max(1, quarter), len(bits) - quarter + 1 if len(bits) > 2 else 2)
    cut = max(inside, key=lambda i: (_divides(int(bits[i - 1]), int(bits[min(i, len(bits) - 1)])),
                                     -abs(2 * i - len(bits))))
    return bits[:cut], bits[cut:]


def _divides(before: int, behind: int) -> int:
    """The highest power of two with a multiple above one number and up to another, as an exponent."""
    return (before ^ behind).bit_length()


def _as_set(mask: np.ndarray) -> int:
    """A set of outputs as the bits of one number."""
    return int.from_bytes(np.packbits(mask.ravel(), bitorder="little").tobytes(), "little")


def _from_set(outputs: int, size: int) -> np.ndarray:
    raw = np.frombuffer(outputs.to_bytes((size + 7) // 8, "little"), np.uint8)
    return np.unpackbits(raw, count=size, bitorder="little").astype(bool)


def _prefix_share(hang_cost: float) -> float:
    """The share of bits that hang together to try next, so that a run and what its hang costs tell most."""
    share = np.linspace(0.02, 0.5, 97)
    told = -share * np.log2(share) - (1 - share) * np.log2(1 - share)
    return float(share[np.argmin((1 + share * hang_cost) / told)])


def _readings(layer: Conv2D, image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(taps, amplitudes) by output: the one tap of (row, column, input channel) that reads something, NO_TAP or
    SEVERAL, and what it reads; both flat."""
    height, width, channels = layer.output_shape
    (top, bottom), (left, right) = layer.pads
    padded = np.pad(image, ((top, bottom), (left, right), (0, 0)))
    count, taps = np.zeros((height, width, channels), int), np.full((height, width, channels), NO_TAP)
    amplitude = np.zeros((height, width, channels))
    sources = np.arange(channels) * layer.input_shape[2] // channels if layer.depthwise \
        else np.zeros(channels, int)
    for row, column in product(range(layer.kernel[0]), range(layer.kernel[1])):
        y, x = row * layer.dilation[0], column * layer.dilation[1]
        seen = padded[y:y + (height - 1) * layer.stride[0] + 1:layer.stride[0],
                      x:x + (width - 1) * layer.stride[1] + 1:layer.stride[1]]
        for channel in [None] if layer.depthwise else range(layer.input_shape[2]):
            value = seen[..., sources] if channel is None else np.broadcast_to(seen[..., channel, None], taps.shape)
            tap = (row * layer.kernel[1] + column) * layer.input_shape[2] + (sources if channel is None else channel)
            here = value != 0
            taps = np.where(here, tap, taps)
            amplitude = np.where(here, value, amplitude)
            count += here
    return np.where(count > 1, SEVERAL, taps).ravel(), amplitude.ravel()


def _ranges(bits: np.ndarray) -> Iterator[str]:
    """Sorted bits as names of runs of them.

    >>> list(_ranges(np.array([3, 4, 5, 9])))
    ['3..5', '9']
    """
    if len(bits):
        for run in np.split(bits, np.flatnonzero(np.diff(bits) > 1) + 1):
            yield f"{run[0]}..{run[-1]}" if len(run) > 1 else f"{run[0]}"


def _packed(output: np.ndarray | None) -> dict[str, Any]:
    """An output as JSON has it."""
    if output is None:
        return {}
    packed = base64.b64encode(zlib.compress(np.ascontiguousarray(output).tobytes())).decode()
    return {"dtype": output.dtype.str, "shape": list(output.shape), "output": packed}


def _unpacked(trial: Trial) -> np.ndarray | None:
    """The output that a trial keeps; raises ValueError where it does not."""
    if trial.outcome == "hang":
        return None
    try:
        raw = zlib.decompress(base64.b64decode(trial.more["output"], validate=True))
        return np.frombuffer(raw, trial.more["dtype"]).reshape(trial.more["shape"])
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"journal: got a run without its output ({error}), allowed is a journal of a scan") from None


def _data(data: Any) -> bytes:
    if not isinstance(data, bytes | bytearray | memoryview) or not len(data):
        got = "an empty buffer" if isinstance(data, bytes | bytearray | memoryview) else type(data).__name__
        raise ValueError(f"data: got {got}, allowed are one or more bytes")
    return bytes(data)


def _count(name: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ValueError(f"{name}: got {value!r}, allowed is a whole number from {least}")
    return number


def _probes(inputs: Iterable[Any], layer: Conv2D | None) -> list[Probe]:
    out = []
    for one in inputs:
        probe = one if isinstance(one, Probe) else Probe(one)
        if layer is not None and probe.image is None and np.shape(probe.given) == layer.input_shape:
            probe = replace(probe, image=np.asarray(probe.given).astype(np.int64) - layer.input_q.zero_point)
        if layer is not None and probe.image is not None and np.shape(probe.image) != layer.input_shape:
            raise ValueError(f"inputs: got an image of shape {np.shape(probe.image)}, allowed is that of the layer's "
                             f"input, {layer.input_shape}")
        if probe.step is not None and not probe.step > 0:
            raise ValueError(f"inputs: got a step of {probe.step}, allowed is more than 0 accumulators an output step")
        out.append(probe)
    if not out:
        raise ValueError("inputs: got none, allowed is one or more")
    return out


def _told(places: np.ndarray) -> dict[str, list[int | None]]:
    """Columns of places, None where one was not told."""
    return {name: [None if one < 0 and name != "sign" else int(one) for one in column]
            for name, column in zip(PLACE, places.T, strict=True)}


def _as_bytes(output: bytes) -> np.ndarray:
    return np.frombuffer(output, np.uint8)


class _Reader:
    """Output bytes as ``(H, W, C)``: where each element lies is asked of the target's ``lift``."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.places: dict[int, tuple[np.dtype[Any], np.ndarray]] = {}  # by the size of an output

    def __call__(self, output: bytes) -> np.ndarray:
        if not self.places:
            self.places[len(output)] = self._find(len(output))
        if len(output) not in self.places:
            return _as_bytes(output)
        dtype, places = self.places[len(output)]
        return _as_bytes(output)[places].view(dtype)[..., 0]

    def _find(self, size: int) -> tuple[np.dtype[Any], np.ndarray]:
        """The type of an element and where its bytes lie: each byte of the output is lifted with its number."""
        numbers, places, dtype = np.arange(size), np.zeros(1, np.int64), np.dtype(np.uint8)
        for digit in range(math.ceil(math.log(max(size, 2), 256))):
            code = (numbers // 256 ** digit % 256).astype(np.uint8).tobytes()
            found = target(self.capture.target).lift(self.capture.with_buffers(output=code)).output
            if found is None:
                raise ValueError(f"capture {self.capture.name}: got no output of what the device gave, allowed is one "
                                 "that the target lifts")
            dtype = found.dtype
            raw = np.ascontiguousarray(found)[..., None].view(np.uint8)
            places = places + raw.astype(np.int64) * 256 ** digit
        return dtype, places


def _open(layer: Conv2D) -> Conv2D:
    """The layer with all the weights that an NPU may have made of it: dense, and with kernels that a stride divides
    (a stride taken apart) or of 2x2 at least."""
    sizes = [max(-(-kernel // stride) * stride, 2)
             for kernel, stride in zip(layer.kernel, layer.stride, strict=True)]
    (top, bottom), (left, right) = layer.pads
    more = [(size - kernel) * spread
            for size, kernel, spread in zip(sizes, layer.kernel, layer.dilation, strict=True)]
    shape = (layer.output_shape[2], *sizes, layer.input_shape[2])
    return replace(layer, weights=np.zeros(shape, layer.weights.dtype), bias=np.zeros(shape[0], np.int64),
                   depthwise=False, padding=((top, bottom + more[0]), (left, right + more[1])),
                   weight_q=QuantParams(1.0, layer.weight_q.zero_point))


def _probes_of(capture: Capture, layer: Conv2D, through: bool, seed: int) -> list[Probe]:
    """Inputs for a lifted layer; ``through`` several output scales and an input zero point of 0, which is silent
    whether an NPU takes the zero point off the input or has it in the bias; else as the capture has it."""
    lower = target(capture.target).lower
    info = np.iinfo(layer.dtype)
    if through:
        layer = replace(layer, input_q=QuantParams(1.0, 0), weight_q=QuantParams(1.0, layer.weight_q.zero_point))
    zero = layer.input_q.zero_point
    up, down = int(info.max) - zero, zero - int(info.min)
    high = 2 ** (max(up, down).bit_length() - 1)
    images = impulses(_open(layer), high if up >= down else -high)
    noise = max(high // NOISE, 1)
    if any(np.all(_readings(_open(layer), image)[0] != NO_TAP) for image in images):
        images.append(np.zeros(layer.input_shape, np.int64))
    images.append(np.random.default_rng(seed).integers(max(-noise, -down), min(noise, up) + 1, layer.input_shape))
    fed = [capture.with_buffers(input=lower(layer, chip=capture.chip, x=(image + zero).astype(layer.dtype))
                                .buffers["input"]) for image in images]
    if not through:
        return [Probe(one) for one in fed]
    window = info.bits - 1
    steps = [(number, high * 4 ** power) for power in range(NEAR) for number in range(len(images))]
    # an order is told where it moves an output by 4 steps or more, and not to the end of its type
    lone = next((number for number, image in enumerate(images)
                 if np.any(_readings(_open(layer), image)[0] == NO_TAP)), 0)
    far = [(lone, 2 ** power) for power in (0, window // 2, *range(window, ACCUMULATOR_BITS, window - 2))]
    out = []
    for number, step in (*steps, *(one for one in far if one not in steps)):
        changed = _scaled(fed[number], layer, step)
        if changed is not None:
            out.append(Probe(changed, images[number], float(step), float((int(info.min) + int(info.max) + 1) // 2)))
    if not out:
        raise ValueError(f"capture {capture.name}: its target cannot say other output scales, allowed are then inputs "
                         "of your own")
    return out


def _scaled(capture: Capture, layer: Conv2D, step: int) -> Capture | None:
    """The capture with the layer's input zero point, an output scale of ``step`` accumulator units, its zero point
    in the middle and no activation; None where its target cannot say that."""
    known = target(capture.target)
    info = np.iinfo(layer.dtype)
    wanted = replace(layer, activation=None,
                     output_q=QuantParams(float(step), (int(info.min) + int(info.max) + 1) // 2))
    try:
        a, b = known.lower(known.lift(capture).layer, chip=capture.chip).words, \
            known.lower(wanted, chip=capture.chip).words
    except ValueError:
        return None
    changed = capture.with_words((capture.words & ~(a ^ b)) | (b & (a ^ b)))
    got = known.lift(changed).layer
    ratio = np.max(got.input_q.scale) * np.max(got.weight_q.scale) / np.max(got.output_q.scale)
    said = np.isclose(ratio * step, 1.0, rtol=1e-9) and got.input_q.zero_point == layer.input_q.zero_point
    return changed if said and got.activation is None else None
