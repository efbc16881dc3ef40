"""The result of a search for laws: a table of laws, the words that they predict and prove, and the
bits that are open.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from npulab.analysis.correlate import best_related
from npulab.analysis.laws.exceptional import (
    LEAST_LAWS,
    MOST_APART,
    Apart,
    broken_laws,
    exceptional,
    relabelled,
)
from npulab.analysis.laws.expressions import ALWAYS, Array, Columns
from npulab.analysis.laws.findings import Findings, fill, in_order
from npulab.analysis.laws.groups import captured_for
from npulab.analysis.laws.inputs import (
    GivenLaws,
    Table,
    checked_parameters,
    checked_sweep,
    checked_words,
    field_starts,
    given_columns,
    named_bits,
)
from npulab.analysis.laws.library import Library, Names
from npulab.analysis.laws.matching import bits_of
from npulab.analysis.laws.naming import NAME, Naming, renamed
from npulab.analysis.laws.nearly import flags
from npulab.analysis.laws.planning import Space, best_rows, features, given_rows, open_doubts
from npulab.analysis.laws.posterior import Belief, believed, predicted
from npulab.analysis.laws.prior import BUDGET, PRIOR
from npulab.analysis.laws.score import Score, scored
from npulab.analysis.laws.search import explain, explain_plainly, start
from npulab.analysis.laws.shown import notebook_progress
from npulab.analysis.laws.solved import Place, Rival, Solved, covered
from npulab.analysis.laws.state import Progress, State, Watch
from npulab.analysis.laws.unexplained import proposals
from npulab.captures.sweep import PART, no_captures
from npulab.captures.sweep_store import SweepStore
from npulab.registers.fields import WORD_BITS, WORD_BYTES
from npulab.registers.map import RegisterMap
from npulab.registers.names import automatic_name, word_name
from npulab.support.executors import Workers, ordered
from npulab.support.refuse import need, refuse_if
from npulab.support.text import part_said

if TYPE_CHECKING:
    import pandas as pd
PREDICTED = 4096  # a worker predicts at most PREDICTED layers at once

# (word, bit, reason, detail, the number of the probe, a row of ``Laws._probes``, whose capture
# would show which law is right)
OpenBit = tuple[int, int, str, str, int]


def find_laws(
    words: Any,
    parameters: Any = None,
    *,
    nuisance: Any = None,
    laws: GivenLaws | None = None,
    progress: Progress | None = None,
    registers: RegisterMap | None = None,
    earlier: Laws | None = None,
) -> Laws:
    """The laws that give fields of ``words (N, W) uint32`` from the captures' ``parameters``.

    ``parameters`` is a DataFrame (or columns by name) with a row for each capture; whole-valued
    columns are integers, others float32. A ``Sweep`` as the only argument holds both. Of a
    ``SweepStore`` the laws are searched on a sample and proved on all captures
    (``laws.whole.find_laws_on``). ``nuisance``
    ``(W,) uint32`` masks bits without meaning (addresses, time stamps); without it they are the
    bits that differ between captures with equal parameters. It may also be a list of names of bits
    that are left out as well: ``["w3", "w9_12_6"]``, a word, or word, lowest bit and width.
    ``laws`` are laws of your own: functions of the parameters, by their text. ``registers`` is a
    map of the words (``sweep.registers`` is the map of its target): a law of one of its fields ends
    where the field ends. ``progress`` is called with a line at each step; without it, a notebook
    that somebody sits at shows the laws found so far. ``earlier`` are laws of some of these
    captures. Those that hold on all captures stay as they are. Bits that were open stay open until
    there are twice as many captures. For other bits only the quick part of the search is made.

    Bits that no parameters explain may have a law over other words of the same capture: a checksum
    (``xor(w0_0_32 to w14_0_32)``, a sum, a common CRC; ``checksums.KINDS`` has all), or another
    word plus a size. Such a law claims a bit of a layer only if all bits that it reads are claimed
    there; if a bit that it reads has no law, the law is in ``open``. ``open`` also proposes
    nuisance: bits that count the captures in their order or grow with it, and what looks random,
    each with the call that leaves it out.

    An interrupt (Ctrl-C, the notebook's stop button) ends the search with the laws that it has so
    far; laws that a capture disproves are left out, and the result has ``stopped`` set. If there
    are no laws yet, it raises KeyboardInterrupt.

    Raises ValueError for words that are not ``(N, W)``, fewer than two rows, or rows that are all
    the same; and for parameters that are not finite numbers, or none of which varies. A parameter
    that never varies gives a warning.

    >>> width = np.arange(8, 72)
    >>> laws = find_laws((width[:, None] * 2 + 1).astype(np.uint32) * 4, {"width": width})
    >>> laws.table[["word", "lsb", "width", "law"]].values.tolist()
    [[0, 3, 7, 'width']]
    """
    no_captures("find_laws", words)
    if isinstance(words, SweepStore):
        lone = parameters is None and earlier is None
        options = {"nuisance": nuisance, "laws": laws, "registers": registers}
        return _of_store(words, lone, progress, options)
    need("find_laws: earlier", earlier, (Laws, type(None)), "is Laws, as find_laws gives")
    need(
        "find_laws: registers",
        registers,
        (RegisterMap, type(None)),
        "is a RegisterMap, as capture.maps[block]",
    )
    simulated = bool(getattr(words, "simulated", False))
    looked_at = str(getattr(words, "looked_at", ""))
    known = registers or getattr(words, "registers", None)
    if parameters is None and hasattr(words, "parameters"):
        words, parameters = words.words, words.parameters
    words = checked_sweep(words)
    if registers is not None:
        refuse_if(
            len(registers) != words.shape[1],
            "find_laws: registers",
            f"a map of {len(registers)} words",
            f"is a map of {words.shape[1]} words, as many as each capture has",
        )
    table = checked_parameters({} if parameters is None else parameters, len(words))
    frame = _frame(parameters)
    given = given_columns({} if laws is None else laws, frame, len(words))
    ignore = _nuisance(words, table, nuisance, known)
    naming = Naming.of(words.shape[1], known)
    watch, stopped, apart = Watch(_told(progress, naming)), False, None
    with notebook_progress(watch, naming) if progress is None else nullcontext():
        try:
            names = Names(list(table.integers), list(table.reals), given=list(given))
            starts = field_starts(registers, words.shape[1])
            sweep = _Sweep(words, table, given, names, ignore, starts, watch)
            few = sweep.exceptional(earlier)
            if few.any():
                apart = Apart(np.flatnonzero(few), words[few], frame[few])
                sweep, frame = sweep.but(few), frame[~few].reset_index(drop=True)
            state = sweep.search(earlier)
        except KeyboardInterrupt:
            if watch.state is None or not watch.state.solved:
                raise
            state, stopped = watch.state, True
            state = _without(state, _disproved(sweep.words, sweep.columns, state))
    return Laws(
        sweep.words,
        frame,
        state.solved,
        state.follows,
        ignore,
        sweep.table,
        dict(laws or {}),
        simulated,
        stopped,
        state.nearly,
        known if known is not None and len(known) == words.shape[1] else None,
        looked_at,
        apart,
    )


def _of_store(
    store: SweepStore, lone: bool, progress: Progress | None, options: Mapping[str, Any]
) -> Laws:
    """The laws that hold on all captures of a store."""
    refuse_if(
        not lone,
        "find_laws",
        "a store with parameters or earlier laws",
        "is a store alone; store.sample(400) gives a sweep, which may have both",
    )
    # imported here, because ``whole`` imports ``find_laws`` from this module
    from npulab.analysis.laws.whole import find_laws_on

    return find_laws_on(store, progress=progress, **options).holding


def _told(progress: Progress | None, naming: Naming) -> Progress:
    """A function to call with each line of progress; it replaces the names of bits by those in the
    map.
    """
    if progress is None:
        return lambda text: None
    return lambda text: progress(naming.said(text))


def _frame(parameters: Any) -> pd.DataFrame:
    import pandas as pd

    if isinstance(parameters, pd.DataFrame):
        frame = parameters
    else:
        frame = pd.DataFrame(dict(parameters or {}))
    return frame.reset_index(drop=True).set_axis([str(name) for name in frame.columns], axis=1)


def _nuisance(words: Array, table: Table, given: Any, known: RegisterMap | None) -> Array:
    """``(W,) uint32``: the given mask, or a mask of the bits that differ between captures with
    equal parameters and of bits that are given by name.
    """
    names = []
    if isinstance(given, list) and all(isinstance(name, str) for name in given):
        names = given
    elif given is not None:
        mask = np.asarray(given)
        if (
            mask.shape != (words.shape[1],)
            or mask.dtype.kind not in "iu"
            or mask.min() < 0
            or mask.max() > 0xFFFFFFFF
        ):
            raise ValueError(
                f"nuisance: got {mask.dtype} of shape {mask.shape}, allowed are 32-bit masks of "
                f"shape ({words.shape[1]},)"
            )
        return mask.astype(np.uint32)
    rows = np.stack([*table.integers.values(), *table.reals.values()], 1)
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    differ = np.bitwise_or.reduce(words ^ words[first[inverse.ravel()]], axis=0)
    if names:
        differ |= named_bits(names, words.shape[1], known, "nuisance")
    return differ


@dataclass(frozen=True, eq=False)
class _Sweep:
    """The captures that a search is made on.

    They are ``words (N, W)`` and the ``table`` of their parameters, with the values of the user's
    laws and the names of all columns. Masks say which bits have no meaning, and at which bits a
    field begins. A ``Watch`` observes the search.
    """

    words: Array
    table: Table
    given: Mapping[str, Array]
    names: Names
    ignore: Array
    starts: Sequence[int]
    watch: Watch

    @cached_property
    def columns(self) -> Columns:
        return self.table.columns(self.given)

    @cached_property
    def sample(self) -> Array:
        """The captures that the search sees."""
        return _sample(self.words, self.table)

    @cached_property
    def plain(self) -> tuple[State, Library]:
        """The fields that one law over the parameters gives on all captures of the sample."""
        return explain_plainly(self._start(self.sample))

    def _start(self, rows: Array) -> State:
        columns = self.columns.rows(rows)
        words = self.words[rows]
        return start(words, columns, self.names, self.ignore, self.starts, self.watch)

    def but(self, rows: Array) -> _Sweep:
        """The sweep without the captures ``rows``."""
        left = ~rows
        given = {text: values[left] for text, values in self.given.items()}
        return replace(self, words=self.words[left], table=self.table.rows(left), given=given)

    def exceptional(self, earlier: Laws | None) -> Array:
        """``(N,) bool``: the captures to set apart, because they break several plain laws of this
        sweep, or several of the earlier laws.
        """
        few = np.zeros(len(self.words), bool)
        if earlier is None:
            few[self.sample] = exceptional(*self.plain)
            return few
        count = np.zeros(len(self.words), int)
        for _, broken in broken_laws(earlier._findings.ready, self.words, self.columns):
            count += broken
        few = count >= LEAST_LAWS
        return few & (few.sum() <= max(MOST_APART * len(few), 1))

    def search(self, earlier: Laws | None) -> State:
        """The state whose fields have laws that hold on all captures; the search uses a sample of
        them.

        ``earlier`` laws that hold on all captures stay as they are. If there are fewer than twice
        as many captures as these laws were made from, no law is sought for bits that they left
        open.
        """
        kept: tuple[Solved, ...] = ()
        open_ = None
        if earlier is not None:
            kept = earlier._proved(
                self.words, self.columns.rows(np.arange(self.columns.n)), self.table
            )
            if kept and len(self.words) < 2 * len(earlier.words):
                open_ = earlier._open
        rows = self.sample
        for proof in range(BUDGET.proofs):
            if proof or kept:
                state = self._start(rows)
                for solved in kept:
                    state = state.accept(solved)
                state = _but_open(state, open_)
                if state.todo.any():
                    state = explain(*explain_plainly(state), brief=bool(kept))
            else:
                state = explain(*self.plain)
            wrong = {}
            if len(rows) < len(self.words):
                wrong = _disproved(self.words, self.columns, state)
            if not wrong:
                break
            some = [disproofs[: BUDGET.added] for disproofs in wrong.values()]
            added = np.unique(np.concatenate(some))
            self.watch.tell(
                f"{len(wrong)} fields are disproved by other captures, {len(added)} of which are "
                "added"
            )
            rows = np.union1d(rows, added)
            state = _without(state, wrong)
            kept = state.solved
        return state


def _but_open(state: State, open_: Array | None) -> State:
    """The state in which runs of bits in ``open_ (W,) uint32`` are no longer to be explained."""
    if open_ is None:
        return state
    still = []
    for run in state.open_runs():
        if not run.mask & ~int(open_[run.word]):
            still.append(run)
    return state.but(still)


def _without(state: State, wrong: Mapping[str, Array]) -> State:
    """The state without the fields in ``wrong`` and without the fields that read them."""
    return replace(
        state,
        solved=tuple(
            solved
            for solved in state.solved
            if not (state.follows[solved.name] | {solved.name}) & wrong.keys()
        ),
    )


def _sample(words: Array, table: Table) -> Array:
    """The captures that the search uses: all captures, if they are few.

    Else they are the captures with the lowest and the highest value of each parameter, one capture
    of each combination of modes, and further captures at random.
    """
    n = len(words)
    if n <= BUDGET.searched:
        return np.arange(n)
    most = BUDGET.searched_of_large
    if n < BUDGET.large:
        most = BUDGET.searched
    random = np.random.default_rng(11)
    few = []
    for column in table.integers.values():
        if len(np.unique(column)) <= BUDGET.categories:
            few.append(column)
    if few:
        _, firsts = np.unique(np.stack(few, 1), axis=0, return_index=True)
    else:
        _, firsts = 0, np.zeros(0, int)
    ends = []
    for column in (*table.integers.values(), *table.reals.values()):
        for index in (int(column.argmin()), int(column.argmax())):
            ends.append(index)
    chosen = np.unique(np.concatenate([firsts[: most // 4], ends]).astype(int))
    rest = np.setdiff1d(random.permutation(n)[: 2 * most], chosen)
    return np.sort(np.concatenate([chosen, random.permutation(rest)[: max(most - len(chosen), 0)]]))


def _disproved(words: Array, columns: Columns, state: State) -> dict[str, Array]:
    """For each field whose law some capture disproves: the captures on which the law is wrong."""
    ready, _ = in_order(state.solved, state.follows)
    out = {}
    for solved, broken in broken_laws(ready, words, columns):
        if broken.any():
            out[solved.name] = np.flatnonzero(broken)
    return out


@dataclass(frozen=True, eq=False)
class FieldLaw(Place):
    """A field with its law: ``steps`` are pairs of text (when, law), and the first step that holds
    decides. ``support`` is the number of captures that each step decides.

    ``rivals`` are laws or conditions that the captures do not tell from these. ``extrapolated`` is
    the number of the field's bits that no capture moved. ``bits`` is the length of the field's
    description, ``explained`` the information in the bits that it explains. ``follows`` are the
    fields that the law reads; if one of them has no law, ``open`` is true and the field predicts
    nothing.
    """

    steps: tuple[tuple[str, str], ...]
    support: tuple[int, ...]
    rivals: tuple[str, ...]
    extrapolated: int
    bits: float
    explained: float
    follows: tuple[str, ...]
    open: bool
    _of: Laws = field(repr=False)
    _solved: Solved = field(repr=False)
    _rivals: tuple[Rival, ...] = field(repr=False)

    @property
    def text(self) -> str:
        return _text(self.steps)

    @property
    def probability(self) -> tuple[float, ...]:
        """For each step, the probability that it is right on the next layer that it decides.

        It is the mean of ``Laws.certainty`` over layers within the captured ranges that the step
        decides. If the step decides none of them, it is the mean over the captures that the step
        decides. It is 0 if the field reads a field without a law, because the field then predicts
        nothing.
        """
        if self.open:
            return (0.0,) * len(self.steps)
        return self._of._step_probability[self._solved.name]

    @property
    def stated(self) -> str:
        """The law as text that ``check_stated`` compares with captures.

        A step whose law gave more than the field's bits has ``% 2**width`` after it: ``(width) %
        16`` in a field of four bits. If the field reads a field without a law, the text has no such
        part.
        """
        if self.open:
            return self.text
        columns, size = self._of._findings.captured, 2**self.width
        decided = self._solved.decide(columns)
        uncut = (
            columns[law][decided == number] for number, (_, law) in enumerate(self._solved.steps)
        )
        return _text(
            [
                (when, f"({law}) % {size}" if ((values < 0) | (values >= size)).any() else law)
                for (when, law), values in zip(self.steps, uncut, strict=True)
            ]
        )

    @property
    def name(self) -> str:
        """The name of the field's bits by word, lowest bit and width, as laws that read the field
        write it.
        """
        return self._of.naming.name(self.word, self.lsb, self.width)

    @property
    def called(self) -> str:
        """The name of the field's bits in the map of the words, as ``show`` and the views print it.

        If no field of the map has exactly these bits, it is their name by place.
        """
        return self._of.naming.called(self.word, self.lsb, self.width)

    def values(self, parameters: Any) -> Array:
        """The field's raw value for each row of parameters, ``(N,) int64``."""
        return self._solved.values(self._of._asked(parameters))

    def which(self, parameters: Any) -> Array:
        """The number of the step that decides each row, ``(N,)``."""
        return self._solved.decide(self._of._asked(parameters))

    def rival_values(self, parameters: Any) -> dict[str, Array]:
        """The field's raw values by each of its rivals: ``(N,) int64`` for the rows of parameters,
        by the rival's text.
        """
        columns = self._of._asked(parameters)
        found = {}
        for rival in self._rivals:
            found[self._of.naming.said(str(rival))] = self._solved.values(
                columns, self._solved.alternative(rival)
            )
        return found

    def __str__(self) -> str:
        return f"{self.name} = {self.text}"


@dataclass(frozen=True, eq=False, repr=False)
class Laws:
    """The laws of a sweep: ``words (N, W) uint32`` explained from ``parameters``.

    ``.table`` has a row for each step of each field, ``.predict`` gives the words of other layers
    and which of their bits are proved, ``.open`` has the bits without a law and why, ``.status``
    the status of each bit, ``.next_captures`` the layers to capture next. ``.captured_for`` says to
    which numbers the captured layers keep; nothing is proved of layers with other numbers.
    ``.stopped`` is true if the search was interrupted. ``.looked_at`` is that of the sweep: it says
    how many jobs of how many the laws are of, if not of all.
    """

    words: Array
    parameters: pd.DataFrame
    _solved: tuple[Solved, ...]
    _follows: Mapping[str, frozenset[str]]
    nuisance: Array
    _table: Table
    _laws: dict[str, Callable[..., Any]]
    simulated: bool = False
    stopped: bool = False
    _nearly: Mapping[Place, str] = field(default_factory=dict)
    registers: RegisterMap | None = field(default=None, repr=False)
    looked_at: str = ""
    apart: Apart | None = None

    @cached_property
    def naming(self) -> Naming:
        """The names that the map of the words gives to bits."""
        return Naming.of(self.words.shape[1], self.registers)

    @cached_property
    def _findings(self) -> Findings:
        captured = self._table.columns(given_columns(self._laws, self.parameters, self._table.n))
        moved = np.bitwise_or.reduce(self.words ^ self.words[0], axis=0) & ~self.nuisance
        apart = 0 if self.apart is None else len(self.apart.rows)
        names = [*self._table.integers]
        found = Findings.of(self._solved, self._follows, captured, names, self.words, moved)
        return replace(found, apart=apart)

    @property
    def captured_for(self) -> str:
        """The groups to which the numbers of the captured layers keep, as text.

        ``for c in groups of 8, stride = 1``; blank if they keep to no group.
        """
        return captured_for(self._findings.groups)

    @cached_property
    def exceptions(self) -> pd.DataFrame:
        """A row for each capture that was set apart because it breaks several laws.

        The columns are ``capture`` (its number among the given captures), ``laws`` (the names of
        the fields whose laws it breaks) and ``cause``: ``shift would be 5`` if this value of one
        parameter makes all laws right, else blank."""
        from npulab.registers.shown import Table as Shown

        rows = []
        if self.apart is not None:
            ready = self._findings.ready
            values = {name: np.unique(column) for name, column in self._table.integers.items()}
            columns = self._columns(self.apart.parameters)
            broken = [*broken_laws(ready, self.apart.words, columns)]
            layers = self.apart.parameters.to_dict("records")
            for number, (capture, layer) in enumerate(zip(self.apart.rows, layers, strict=True)):
                names = [solved.name for solved, wrong in broken if wrong[number]]
                given = {name: layer[name] for name in self._table.integers}
                cause = relabelled(ready, self.apart.words[number], given, values)
                rows.append((int(capture), ", ".join(map(self.naming.said, names)), cause))
        return Shown(rows, columns=["capture", "laws", "cause"])

    def _asked(self, parameters: Any) -> Columns:
        """The columns of layers: their parameters, and the values of all fields that can be
        computed.
        """
        columns = self._columns(parameters)
        fill(self._findings.ready, columns)
        return columns

    def _columns(self, parameters: Any) -> Columns:
        table = checked_parameters(parameters, like=self._table)
        return table.columns(given_columns(self._laws, _frame(parameters), table.n))

    def _proved(self, words: Array, columns: Columns, table: Table) -> tuple[Solved, ...]:
        """The fields whose laws also hold on further captures, each with the rivals that hold there
        as well.

        A field next to a bit that moves for the first time is left out: it may be a part of a
        larger field.
        """
        if (
            table.integers.keys() != self._table.integers.keys()
            or table.reals.keys() != self._table.reals.keys()
        ):
            return ()
        words = self._like(words)
        moved = np.bitwise_or.reduce(words ^ words[0], axis=0)
        new = moved & ~np.bitwise_or.reduce(self.words ^ self.words[0], axis=0)
        names: set[str] = set()
        out = []
        ready, _ = in_order(self._solved, self._follows)
        for solved in ready:
            beside = (solved.mask | solved.mask * 2 | solved.mask // 2) & int(new[solved.word])
            if beside or solved.reads - names or solved.wrong(columns, words).any():
                continue
            rivals = []
            for rival in solved.rivals:
                other = solved.alternative(rival)
                if rival.reads <= names and not solved.wrong(columns, words, other).any():
                    rivals.append(rival)
            decided = solved.decide(columns)
            support = [int((decided == number).sum()) for number in range(len(solved.steps))]
            holding = replace(solved, rivals=tuple(rivals), missed=None, support=tuple(support))
            out.append(holding)
            names.add(solved.name)
            columns.add(solved.name, solved.raw(words).astype(np.int64))
        return tuple(out)

    @property
    def _open(self) -> Array:
        """``(W,) uint32``: the bits that move and have no law."""
        return self._findings.moved & ~covered(self._solved, self.words.shape[1])

    @cached_property
    def _ranges(self) -> dict[str, Any]:
        """The captured values of each parameter: a list of all values if they are few, else
        (lowest, highest).
        """
        out = {}
        for name in (*self._table.integers, *self._table.reals):
            values = np.unique(self.parameters[name].to_numpy())
            number = int if name in self._table.integers else float
            out[name] = values.tolist()
            if len(values) > BUDGET.categories:
                out[name] = number(values[0]), number(values[-1])
        return out

    @cached_property
    def _probes(self) -> pd.DataFrame:
        """Layers on which a law and its rivals could differ: the captures, then further layers
        within the captured ranges.
        """
        import pandas as pd

        drawn = Space(self._ranges).draw(BUDGET.pool_least, 0)
        return pd.concat([self.parameters, drawn], ignore_index=True).fillna(
            self.parameters.iloc[0]
        )

    @cached_property
    def _probed(self) -> tuple[Columns, Belief]:
        """The columns of the probes, with the values of all fields that can be computed; and the
        belief in each bit of the probes.
        """
        probes = self._columns(self._probes)
        return probes, believed(self._findings, probes)

    @cached_property
    def _step_probability(self) -> dict[str, tuple[float, ...]]:
        """By name of each field that can be computed: the probability of each of its steps."""
        probes, belief = self._probed
        drawn = np.arange(probes.n) >= len(self.parameters)
        out = {}
        for solved in self._findings.ready:
            right = 1 / (1 + belief.odds[solved.name].max(1))
            decided = solved.decide(probes)
            steps = []
            for step in range(len(solved.steps)):
                rows = (decided == step) & drawn
                if not rows.any():
                    rows = decided == step
                steps.append(float(right[rows].mean()))
            out[solved.name] = tuple(steps)
        return out

    @cached_property
    def fields(self) -> tuple[FieldLaw, ...]:
        """All fields that have a law, sorted by their place."""
        findings, (probes, _) = self._findings, self._probed
        rivals = {}
        for solved in findings.ready:
            by_text = {str(rival): rival for rival in self._rivals(solved, probes)}
            rivals[solved.name] = tuple(by_text.values())
        places = sorted((*findings.ready, *findings.stuck), key=attrgetter("word", "lsb"))
        return tuple(self._field(place, rivals.get(place.name)) for place in places)

    def _field(self, solved: Solved, rivals: tuple[Rival, ...] | None) -> FieldLaw:
        idle = solved.mask & ~int(
            np.bitwise_or.reduce(self.words[:, solved.word] ^ self.words[0, solved.word])
        )
        said = self.naming.said
        steps = tuple((said(str(when)), said(str(law))) for when, law in solved.steps)
        others = self.naming.all_said([str(rival) for rival in rivals or ()])
        follows = self.naming.all_said(sorted(self._follows[solved.name]))
        return FieldLaw(
            solved.word,
            solved.lsb,
            solved.width,
            steps,
            solved.support,
            others,
            idle.bit_count(),
            solved.cost,
            solved.explained,
            follows,
            rivals is None,
            self,
            solved,
            rivals or (),
        )

    def _rivals(self, solved: Solved, probes: Columns) -> Iterator[Rival]:
        """The rivals of a field's law that no capture tells from it, but that a capture of one of
        the probes could.
        """
        values = solved.values(probes)
        for rival in (*solved.rivals, *self._findings.twins.rivals(solved)):
            if rival.extra_cost <= PRIOR.likely and solved.changes(rival, probes, values).any():
                yield rival

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each step of each field: word, lsb, width, when, law, support (captures that
        the step decides), field (its number), rivals (laws that the captures cannot tell from it),
        extrapolated (bits that no capture moved), bits (length of the field's description),
        probability (of the step, on the next layer). It shows whole formulas, however long."""
        from npulab.registers.shown import Table as Shown

        rows = []
        for number, law in enumerate(self.fields):
            for step, (when, text) in enumerate(law.steps):
                case = when
                if when == str(ALWAYS) and len(law.steps) > 1:
                    case = "else"
                rows.append(
                    (
                        law.word,
                        law.lsb,
                        law.width,
                        case,
                        text,
                        law.support[step],
                        number,
                        "; ".join(law.rivals[:5]) if step == 0 else "",
                        law.extrapolated,
                        round(law.bits, 1),
                        law.probability[step],
                    )
                )
        return Shown(
            rows,
            columns=[
                "word",
                "lsb",
                "width",
                "when",
                "law",
                "support",
                "field",
                "rivals",
                "extrapolated",
                "bits",
                "probability",
            ],
        )

    def predict(self, parameters: Any) -> tuple[Array, Array]:
        """(words, mask), each ``(N, W) uint32``: the words of layers, and a mask of the bits in
        them that are claimed.

        A bit of a row is claimed if its law is right there with a probability of at least
        ``posterior.CLAIM``, that is, if the alternatives that the captures leave possible and that
        change the bit have hardly any mass: rival laws and conditions, limits elsewhere in the gap
        between two captures, numbers one less or more, modes that were never captured together,
        numbers outside of the groups in ``captured_for``. ``certainty`` gives the probabilities.
        Bits outside the mask are as the best law has them, or as in the first capture.
        """
        out, claimed = predicted(self._findings, self._columns(parameters))
        explained = covered(self._findings.ready, self.words.shape[1])
        return (out & explained) | (self.words[0] & ~explained), claimed

    def certainty(self, parameters: Any) -> Array:
        """The probability, for layers, that each bit of ``predict`` is right: ``(N, W, 32)
        float32``, 0 for a bit without a law."""
        return believed(self._findings, self._columns(parameters)).probability()

    def score(self, words: Any, parameters: Any = None, executor: Workers = None) -> Score:
        """How much of other captures' words the laws claim, and how much of that is wrong. A
        ``Sweep`` as the only argument holds both; a ``SweepStore`` is read part by part.

        The workers of ``executor`` (``ordered`` in ``npulab.support.executors``) predict parts of
        the captures; the score is the same whatever the workers. Raises as ``find_laws`` for words
        and parameters that do not go with the captures.
        """
        if isinstance(words, SweepStore):
            # imported here, because ``whole`` imports this module
            from npulab.analysis.laws.whole import score_store

            return score_store(self, words)
        looked_at = str(getattr(words, "looked_at", "") or self.looked_at)
        if parameters is None and hasattr(words, "parameters"):
            words, parameters = words.words, words.parameters
        words = self._like(words)
        if executor is None:
            claims = self.predict(parameters)
        else:
            claims = self._predicted_by(executor, parameters, len(words))
        return scored(self.words, self.nuisance, [(words, *claims)], looked_at)

    def _predicted_by(self, executor: Workers, parameters: Any, count: int) -> tuple[Array, Array]:
        """The predictions of ``predict``, made by workers in parts of ``PREDICTED`` layers."""
        frame = _frame(parameters)
        if len(frame) != count or not count:
            return self.predict(parameters)  # ``predict`` raises the error

        # a first prediction makes the cached properties once, before the laws are sent to workers
        self.predict(frame.iloc[:1])
        parts = [frame.iloc[first : first + PREDICTED] for first in range(0, count, PREDICTED)]
        words = []
        masks = []
        for _, (part, mask) in ordered(self.predict, parts, executor, what="laws"):
            words.append(part)
            masks.append(mask)
        return np.concatenate(words), np.concatenate(masks)

    def _like(self, words: Any) -> Array:
        """Check words ``(N, W)``: they are as wide as the words of the captures."""
        array, width = checked_words(np.atleast_2d(np.asarray(words))), self.words.shape[1]
        if array.shape[1] != width:
            raise ValueError(
                f"words: got {array.dtype} of shape {array.shape}, allowed is (captures, {width}) "
                "uint32"
            )
        return array

    @cached_property
    def status(self) -> Array:
        """``(W, 32)`` of text: law, rivals, open, constant, never exercised (constant, but in a
        field that has a law) or nuisance."""
        bits = bits_of(self.words)
        varies = np.asarray(bits.any(0) & ~bits.all(0))
        out = np.where(varies, "open", "constant").astype("<U15")
        for law in self.fields:
            status = "law"
            if law.open:
                status = "open"
            elif law.rivals:
                status = "rivals"
            here = law.word, slice(law.lsb, law.end)
            out[here] = np.where(varies[here], status, "never exercised")
        out[bits_of(self.nuisance[None])[0].astype(bool)] = "nuisance"
        return out

    @property
    def open(self) -> pd.DataFrame:
        """The bits that are not proved: word, bit, reason, detail, related (parameters that go with
        it, by mutual information) and the capture that would settle it, where one is known."""
        from npulab.registers.shown import Table as Shown

        places = sorted((*self._doubted(), *self._lawless()), key=lambda place: place[:2])
        bits = bits_of(self.words)
        captured = [bits[:, word, bit] for word, bit, *_ in places]
        related = []
        if captured:
            related = best_related(np.stack(captured, 1), self.parameters, 3)
        rows = []
        for (word, bit, reason, detail, probe), names in zip(places, related, strict=True):
            shown = ", ".join(f"{name} ({value:.2f})" for name, value in names)
            capture = _capture(self._probes, probe)
            rows.append((word, bit, reason, self.naming.said(detail), shown, capture))
        return Shown(rows, columns=["word", "bit", "reason", "detail", "related", "capture"])

    def _doubted(self) -> Iterator[OpenBit]:
        """Yield the bits of laws that are not proved on every probe, each with the doubt of the
        largest mass.
        """
        asked, belief = self._probed
        unsure = belief.unsure()
        strongest: dict[str, tuple[float, str, str, int]] = {}
        for doubt in open_doubts(self._findings, asked):
            mass = np.where(unsure[doubt.solved.name], doubt.mass, 0)
            strength = float(mass.sum())
            if strength > strongest.get(doubt.solved.name, (0.0,))[0]:
                probe = int(np.flatnonzero(mass)[-1])
                strongest[doubt.solved.name] = strength, doubt.reason, doubt.detail, probe
        for solved in self._findings.ready:
            if solved.name not in strongest:
                continue
            for word, bit in solved.positions:
                if self.status[word, bit] in ("law", "rivals"):
                    yield (word, bit, *strongest[solved.name][1:])

    def _lawless(self) -> Iterator[OpenBit]:
        """Yield the bits without a law, each with a law that nearly fits, or with what its values
        look like.
        """
        lone = np.argwhere(self.status == "open")
        bits = bits_of(self.words)[:, lone[:, 0], lone[:, 1]].T.astype(bool)
        near = flags(bits, self._table.integers)
        columns = {**self._table.integers, **self._table.reals}
        texts = {place: f"nearly: {text}" for place, text in self._nearly.items()}
        texts |= proposals(self.words, columns, bits_of(self._open[None])[0] == 1)
        for solved in self._findings.stuck:
            # if a field has a law over fields without a law, this text replaces the other texts of
            # the field
            texts[solved] = f"follows from fields without a law: {solved}"
        known: dict[tuple[int, int], str] = {}
        for place, text in texts.items():
            known |= dict.fromkeys(place.positions, text)
        # the probes after the captures are drawn layers; open bits take them in turn
        first, drawn = len(self.parameters), len(self._probes) - len(self.parameters)
        for number, ((word, bit), flag) in enumerate(zip(lone.tolist(), near, strict=True)):
            detail = known.get((word, bit)) or flag or "no law of the library fits"
            yield word, bit, "no law", detail, first + number % drawn

    def next_captures(
        self,
        n: int = 1,
        candidates: Any = None,
        ranges: Mapping[str, Any] | None = None,
        constraints: Any = (),
        derived: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> pd.DataFrame:
        """The layers whose capture tells most rivals apart and moves most bits that never moved,
        best first.

        They are rows of ``candidates`` (a DataFrame of parameters; the index is kept) or, without
        any, made within ``ranges`` (name: (low, high) or a list; by default what the captures
        have), under ``constraints`` (functions of the DataFrame that give True for each possible
        row) and with ``derived`` columns (name: a function of the DataFrame).
        """
        import pandas as pd

        if n < 1:
            raise ValueError(f"n: got {n}, allowed is 1 or more")
        if candidates is None:
            layers = Space(ranges or self._ranges, constraints, derived).pool(n, seed)
        else:
            layers = given_rows(candidates)
        layers = layers.assign(
            **{
                name: self.parameters[name].iloc[0]
                for name in self._table.constant
                if name not in layers
            }
        )
        asked = self._asked(layers)
        shown = features(
            pd.concat([self.parameters[list(layers.columns)], layers], ignore_index=True)
        )
        captured, shown = shown[: len(self.parameters)], shown[len(self.parameters) :]
        return layers.iloc[best_rows(self._findings, asked, shown, captured.sum(0), n)]

    def update(self, words: Any, parameters: Any) -> Laws:
        """The laws of these captures and more of them."""
        import pandas as pd

        known, layers = [self.words], [self.parameters]
        if self.apart is not None:
            known.append(self.apart.words)
            layers.append(self.apart.parameters)
        frame = pd.concat([*layers, _frame(parameters)], ignore_index=True)
        laws = find_laws(
            np.concatenate([*known, self._like(words)]),
            frame,
            laws=self._laws,
            nuisance=self.nuisance if self.nuisance.any() else None,
        )
        return replace(
            laws,
            simulated=self.simulated,
            registers=self.registers,
            looked_at=PART.sub("", self.looked_at),
        )

    def register_rows(
        self, block: str = "", names: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """The fields with laws as rows of a register table, as ``RegisterMap`` reads them; each row
        is one discovery.

        ``names`` gives fields other names, by their automatic names. Blocks, offsets and registers
        are those of the words' map, if there is one. The note of a row is the law with its rivals,
        in the names that the rows have; the evidence is ``guess`` if there are rivals, else
        ``C:sweep``. Bits without a law that a law reads have a row too, so that each name in a note
        has a row.
        """
        rows = []
        for law in self.fields:
            note = law.text + (f" (or {law.rivals[0]})" if law.rivals else "")
            row = self._row(law, block)
            row["field"] = (names or {}).get(law.name, row["field"])
            rows.append(
                {
                    **row,
                    "evidence": "guess" if law.rivals or law.open else "C:sweep",
                    "note": renamed(note, names or {}),
                }
            )
        laws = [Place(law.word, law.lsb, law.width) for law in self.fields]
        places = [*laws, *self._read_alone(laws)]
        last = self.words.shape[1] - 1
        # a row for the last word gives the map as many words as a capture
        if all(place.word != last for place in places):
            places.append(Place(last, 0, WORD_BITS))
        for place in places[len(laws) :]:
            row = self._row(place, block)
            row["field"] = (names or {}).get(
                self.naming.name(place.word, place.lsb, place.width), row["field"]
            )
            rows.append({**row, "evidence": "unknown", "note": ""})
        by_place = sorted(zip(places, rows, strict=True), key=lambda one: (one[0].word, one[0].lsb))
        return [row for _, row in by_place]

    def _read_alone(self, taken: Sequence[Place]) -> Iterator[Place]:
        """The bits that laws read and that belong to no field, each once."""
        seen = {position for place in taken for position in place.positions}
        for law in self.fields:
            for name in NAME.findall(" ".join((law.text, *law.rivals[:1]))):
                found = self.naming.place(name)
                place = None
                if found:
                    place = Place(*found)
                if place is not None and seen.isdisjoint(place.positions):
                    seen.update(place.positions)
                    yield place

    def _row(self, place: Place, block: str) -> dict[str, Any]:
        """The place of some bits and their names in a table whose blocks have a column."""
        offset, label = WORD_BYTES * place.word, f"w{place.word}"
        register = label
        if self.registers is not None:
            block, offset, register = self.registers.registers[place.word]
            label = word_name(offset, block in self.registers.by_address)
        return {
            "block": block,
            "offset": offset,
            "register": register,
            "field": automatic_name(label, place.lsb, place.width),
            "lsb": place.lsb,
            "width": place.width,
        }

    def __repr__(self) -> str:
        law = int((self.status == "law").sum())
        rivals = int((self.status == "rivals").sum())
        left = int((self.status == "open").sum())
        about = ""
        if self.simulated:
            about += ", simulated"
        if self.apart is not None:
            about += f", {len(self.apart.rows)} more set apart"
        if self.stopped:
            about += ", stopped before the end"
        if self.captured_for:
            about += f", {self.captured_for}"
        unit = "jobs" if self.looked_at else "captures"
        text = (
            f"Laws({len(self.fields)} fields of {len(self.words)} {unit}{about}: {law} of "
            f"{law + rivals + left} varying bits have a law, {rivals} rivals, {left} open)"
        )
        if self.looked_at:
            text += f"; {part_said(self.looked_at)}"
        return text

    def _repr_html_(self) -> str:
        text, _, part = repr(self).removeprefix("Laws(").partition("); ")
        text = "; ".join(filter(None, [text.removesuffix(")"), html.escape(part)]))
        return f"<p>{text}</p>{self.table._repr_html_()}"


def _capture(layers: pd.DataFrame, row: int) -> dict[str, Any]:
    found = {}
    for name, value in layers.iloc[row].items():
        found[str(name)] = value.item() if hasattr(value, "item") else value
    return found


def _text(steps: Sequence[tuple[str, str]]) -> str:
    if len(steps) == 1 and steps[0][0] == "always":
        return steps[0][1]
    return "; ".join(
        f"{'else' if when == 'always' else f'when {when}'}: {law}" for when, law in steps
    )
