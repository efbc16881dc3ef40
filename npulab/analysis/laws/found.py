"""What a search found: the table of laws, what they predict and prove, and what is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from npulab.analysis.laws.claims import doubts, in_order
from npulab.analysis.laws.expressions import ALWAYS, Array, Columns
from npulab.analysis.laws.inputs import GivenLaws, Table, checked_parameters, checked_words, given_columns
from npulab.analysis.laws.matching import bits_of
from npulab.analysis.laws.planning import Planner
from npulab.analysis.laws.rivals import Twins, alternatives
from npulab.analysis.laws.search import Search, Solved

if TYPE_CHECKING:
    import pandas as pd

WITHIN, WITHIN_FEW, MANY = 3.0, 4.0, 100  # bits: what is so little dearer than a law is as likely for all we know
SAMPLE = 400  # captures that are searched; the others prove what was found, or are added where they disprove it
LARGE, SAMPLE_OF_LARGE = 1_000, 256
PROOFS, WRONG_ADDED = 3, 40
COLUMNS = ("word", "lsb", "width", "when", "law", "support", "field", "rivals", "extrapolated", "bits")
Progress = Callable[[str], None]


def find_laws(words: Any, parameters: Any = None, *, nuisance: Any = None, laws: GivenLaws | None = None,
              progress: Progress | None = None) -> Laws:
    """The laws that give fields of ``words (N, W) uint32`` from the captures' ``parameters``.

    ``parameters`` is a DataFrame (or columns by name) with a row for each capture; whole-valued
    columns are integers, others float32.  A ``Sweep`` as the only argument holds both.
    ``nuisance`` ``(W,) uint32`` masks the bits that say nothing (addresses, time stamps); without
    it they are found where captures repeat their parameters.  ``laws`` are laws of your own, a
    function of the parameters by its text.  ``progress`` is called with a line at each step.

    Raises ValueError for words that are not ``(N, W)``, fewer than two rows, rows that are all the
    same; parameters that are no finite numbers, or of which none varies.  A parameter that never
    varies is a warning.

    >>> width = np.arange(8, 72)
    >>> laws = find_laws((width[:, None] * 2 + 1).astype(np.uint32) * 4, {"width": width})
    >>> laws.table[["word", "lsb", "width", "law"]].values.tolist()
    [[0, 3, 7, 'width']]
    """
    simulated = bool(getattr(words, "simulated", False))
    if parameters is None and hasattr(words, "parameters"):
        words, parameters = words.words, words.parameters
    words = checked_words(words)
    table = checked_parameters({} if parameters is None else parameters, len(words))
    laws = {} if laws is None else laws
    given = given_columns(laws, _frame(parameters), len(words))
    ignore = _nuisance(words, table, nuisance)
    tell = progress or (lambda text: None)
    fields, follows = _search(words, table, given, ignore, tell)
    return Laws(words, _frame(parameters), tuple(fields), follows, ignore, table, dict(laws), simulated)


def _frame(parameters: Any) -> pd.DataFrame:
    import pandas as pd

    frame = parameters if isinstance(parameters, pd.DataFrame) else pd.DataFrame(dict(parameters or {}))
    return frame.reset_index(drop=True).set_axis([str(name) for name in frame.columns], axis=1)


def _nuisance(words: Array, table: Table, given: Any) -> Array:
    """``(W,) uint32``: as given, or what moves between captures of the same parameters."""
    if given is not None:
        mask = np.asarray(given)
        if mask.shape != (words.shape[1],) or mask.dtype.kind not in "iu" or mask.min() < 0 or mask.max() > 0xFFFFFFFF:
            raise ValueError(f"nuisance: got {mask.dtype} of shape {mask.shape}, allowed are 32-bit masks of shape "
                             f"({words.shape[1]},)")
        return mask.astype(np.uint32)
    rows = np.stack([*table.integers.values(), *table.reals.values()], 1)
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return np.bitwise_or.reduce(words ^ words[first[inverse.ravel()]], axis=0)


def _search(words: Array, table: Table, given: Mapping[str, Array], ignore: Array, tell: Progress,
            ) -> tuple[list[Solved], dict[str, set[str]]]:
    """Fields that hold on all captures, found on a sample of them."""
    rows = _sample(words, table)
    whole = table.columns(given)
    kept: list[Solved] = []
    follows: dict[str, set[str]] = {}
    for _ in range(PROOFS):
        search = Search(words[rows], whole.rows(rows), list(table.integers), list(table.reals), list(given),
                        bits_of(ignore[None])[0].astype(bool), tell, known=kept)
        search.explain(brief=bool(kept))
        kept, follows = search.solved, search.follows
        wrong = _disproved(words, whole, kept, follows) if len(rows) < len(words) else {}
        if not wrong:
            break
        bad = np.unique(np.concatenate([found[:WRONG_ADDED] for found in wrong.values()]))
        tell(f"{len(wrong)} fields are disproved by other captures, {len(bad)} of which are added")
        rows = np.union1d(rows, bad)
        kept = [one for one in kept if not (follows[one.name] | {one.name}) & set(wrong)]
    return kept, {one.name: follows[one.name] for one in kept}


def _sample(words: Array, table: Table) -> Array:
    """Captures to search: all of few; else the ends of each parameter, one of each combination, and
    any others."""
    n = len(words)
    if n <= SAMPLE:
        return np.arange(n)
    most = SAMPLE if n < LARGE else SAMPLE_OF_LARGE
    random = np.random.default_rng(11)
    few = [column for column in table.integers.values() if len(np.unique(column)) <= 6]
    _, firsts = np.unique(np.stack(few, 1), axis=0, return_index=True) if few else (0, np.zeros(0, int))
    ends = [index for column in (*table.integers.values(), *table.reals.values())
            for index in (int(column.argmin()), int(column.argmax()))]
    chosen = np.unique(np.concatenate([firsts[:most // 4], ends]).astype(int))
    rest = np.setdiff1d(random.permutation(n)[:2 * most], chosen)
    return np.sort(np.concatenate([chosen, random.permutation(rest)[:max(most - len(chosen), 0)]]))


def _disproved(words: Array, columns: Columns, fields: Sequence[Solved], follows: dict[str, set[str]],
               ) -> dict[str, Array]:
    """The captures that each field is wrong on, of those that are wrong on any."""
    ready, _ = in_order(fields, follows)
    part = columns.rows(np.arange(columns.n))
    out = {}
    for one in ready:
        values = one.values(part)
        truth = (words[:, one.word] >> np.uint32(one.lsb)).astype(np.int64) % 2 ** one.width
        part.add(one.name, truth)  # what follows from it is judged by itself
        if (values != truth).any():
            out[one.name] = np.flatnonzero(values != truth)
    return out


@dataclass(frozen=True, eq=False)
class FieldLaw:
    """A field that its captures explain: ``steps`` (when, law) as text, with the captures that each
    decides.

    ``rivals`` are laws or conditions that the captures cannot tell from these, ``extrapolated`` the
    bits of the field that no capture moved, ``bits`` the length of its description and ``saved``
    that of what it explains.  ``follows`` are fields that it reads; a field that reads one without
    a law has ``open`` set and predicts nothing.
    """

    word: int
    lsb: int
    width: int
    steps: tuple[tuple[str, str], ...]
    support: tuple[int, ...]
    rivals: tuple[str, ...]
    extrapolated: int
    bits: float
    saved: float
    follows: tuple[str, ...]
    open: bool
    _of: Laws = field(repr=False)
    _solved: Solved = field(repr=False)

    @property
    def name(self) -> str:
        """The automatic name of a register map: word, lowest bit, width."""
        return self._solved.name

    @property
    def text(self) -> str:
        return _told(self.steps)

    @property
    def stated(self) -> str:
        """The text that gives the field's raw value with nothing left to cut off, as
        ``check_stated`` holds it against captures: ``(width) % 16`` where a law of four bits gave
        more in these captures."""
        columns, size = self._of._captured, 2 ** self.width
        decided = self._solved.decide(columns)
        given = (columns[law][decided == number] for number, (_, law) in enumerate(self._solved.steps))
        return _told([(when, f"({law}) % {size}" if ((raw < 0) | (raw >= size)).any() else law)
                      for (when, law), raw in zip(self.steps, given, strict=True)])

    def values(self, parameters: Any) -> Array:
        """The field's raw value for each row of parameters, ``(N,) int64``."""
        columns = self._of._columns(parameters)
        self._of._fill(columns)
        return self._solved.values(columns)

    def which(self, parameters: Any) -> Array:
        """The number of the step that decides each row, ``(N,)``."""
        columns = self._of._columns(parameters)
        self._of._fill(columns)
        return self._solved.decide(columns)

    def __str__(self) -> str:
        return f"{self.name} = {self.text}"


@dataclass(frozen=True, eq=False, repr=False)
class Laws:
    """The laws of a sweep: ``words (N, W) uint32`` explained from ``parameters``.

    ``.table`` has a row for each step of each field, ``.predict`` the words of other layers and
    what of them is proved, ``.open`` the bits without a law and why, ``.status`` what is known of
    each bit, ``.next_captures`` the layers to capture next.
    """

    words: Array
    parameters: pd.DataFrame
    _solved: tuple[Solved, ...]
    _follows: dict[str, set[str]]
    nuisance: Array
    _table: Table
    _laws: dict[str, Callable[..., Any]]
    simulated: bool = False

    @cached_property
    def fields(self) -> tuple[FieldLaw, ...]:
        """Every field that has a law, by place."""
        ready, stuck = in_order(self._solved, self._follows)
        lost = {one.name for one in stuck}
        return tuple(self._field(one, one.name in lost)
                     for one in sorted([*ready, *stuck], key=lambda one: (one.word, one.lsb)))

    def _field(self, one: Solved, stuck: bool) -> FieldLaw:
        seen = np.bitwise_or.reduce(self.words[:, one.word] ^ self.words[0, one.word])
        idle = sum(1 for _, bit in one.bits if not int(seen) >> bit & 1)
        steps = tuple((str(when), str(law)) for when, law in one.steps)
        rivals = () if stuck else tuple(dict.fromkeys(self._rivals(one)))
        return FieldLaw(one.word, one.lsb, one.width, steps, one.support, rivals, idle, one.cost, one.saved,
                        tuple(sorted(self._follows[one.name])), stuck, self, one)

    @cached_property
    def _probes(self) -> Columns:
        """Layers on which rivals could differ: the captures, and others within their ranges."""
        columns = self._columns(self._planner.pool(self.parameters))
        self._fill(columns)
        return columns

    def _rivals(self, one: Solved) -> Iterator[str]:
        """What the captures cannot tell from a field's law, and a capture could."""
        values = one.values(self._probes)
        for rival in (*one.rivals, *self._twins.rivals(one)):
            if rival.dearer <= self._within \
                    and (one.values(self._probes, alternatives(one, rival)) != values).any():
                yield str(rival)

    @cached_property
    def _twins(self) -> Twins:
        return Twins(self._captured, list(self._table.integers))

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each step of each field: word, lsb, width, when, law, support (captures that
        the step decides), field (its number), rivals (laws that the captures cannot tell from it),
        extrapolated (bits that no capture moved), bits (length of the field's description)."""
        import pandas as pd

        rows = []
        for number, one in enumerate(self.fields):
            for step, ((when, law), support) in enumerate(zip(one.steps, one.support, strict=True)):
                said = "else" if when == str(ALWAYS) and len(one.steps) > 1 else when
                rows.append((one.word, one.lsb, one.width, said, law, support, number,
                             "; ".join(one.rivals[:5]) if step == 0 else "", one.extrapolated, round(one.bits, 1)))
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def _columns(self, parameters: Any) -> Columns:
        table = checked_parameters(parameters, like=self._table)
        return table.columns(given_columns(self._laws, _frame(parameters), table.n))

    def _fill(self, columns: Columns) -> None:
        """The values of all fields as columns, so that those that follow from them have theirs."""
        for one in in_order(self._solved, self._follows)[0]:
            columns.add(one.name, one.values(columns))

    @property
    def _within(self) -> float:
        """Bits that a rival may be dearer: few captures leave more to what a law costs."""
        return WITHIN if len(self.words) >= MANY else WITHIN_FEW

    @property
    def _captured(self) -> Columns:
        columns = self._table.columns(given_columns(self._laws, self.parameters, self._table.n))
        self._fill(columns)
        return columns

    def predict(self, parameters: Any) -> tuple[Array, Array]:
        """(words, mask), each ``(N, W) uint32``: the words of layers, and the bits of them that are
        proved.

        A bit is in the mask of a row where its field has a law and nothing that fits the captures
        as well gives another value there: no rival law or condition, no limit moved within the gap
        between two captures, no combination of modes that was never captured.  Other bits are as
        the best law has them, or as in the first capture.
        """
        asked = self._columns(parameters)
        moved = np.bitwise_or.reduce(self.words ^ self.words[0], axis=0) & ~self.nuisance
        out, doubt = doubts(self._solved, self._follows, self._captured, asked, moved, self._within,
                            list(self._table.integers))
        known = np.zeros(self.words.shape[1], np.uint32)
        for one in in_order(self._solved, self._follows)[0]:
            known[one.word] |= np.uint32(one.mask)
        return (out & known) | (self.words[0] & ~known), known & ~doubt

    @cached_property
    def status(self) -> Array:
        """``(W, 32)`` of text: law, rivals, open, constant, never exercised (constant, but in a
        field that has a law) or nuisance."""
        bits = bits_of(self.words)
        varies = np.asarray(bits.any(0) & ~bits.all(0))
        out = np.where(varies, "open", "constant").astype("<U15")
        for one in self.fields:
            for word, bit in one._solved.bits:
                if varies[word, bit]:
                    out[word, bit] = "open" if one.open else "rivals" if one.rivals else "law"
                else:
                    out[word, bit] = "never exercised"
        out[bits_of(self.nuisance[None])[0].astype(bool)] = "nuisance"
        return out

    @cached_property
    def _planner(self) -> Planner:
        return Planner(self.words, self._solved, self._follows, self._table, self._captured, self._columns,
                       self._within)

    @property
    def open(self) -> pd.DataFrame:
        """The bits that are not proved: word, bit, reason, detail, related (parameters that go with
        it, by mutual information) and the capture that would settle it, where one is known."""
        return self._planner.open_bits(self.parameters, self.status)

    def next_captures(self, n: int = 1, candidates: Any = None, ranges: Mapping[str, Any] | None = None,
                      constraints: Any = (), derived: Mapping[str, Any] | None = None, seed: int = 0) -> pd.DataFrame:
        """The layers whose capture tells most rivals apart and moves most bits that never moved,
        best first.

        They are rows of ``candidates`` (a DataFrame of parameters; the index is kept) or, without
        any, made within ``ranges`` (name: (low, high) or a list; by default what the captures
        have), under ``constraints`` (functions of the DataFrame that give True for each possible
        row) and with ``derived`` columns (name: a function of the DataFrame).
        """
        return self._planner.choose(n, self.parameters, self.status, candidates, ranges, constraints, derived, seed)

    def update(self, words: Any, parameters: Any) -> Laws:
        """The laws of these captures and more of them."""
        import pandas as pd

        more = checked_words_like(words, self.words.shape[1])
        frame = pd.concat([self.parameters, _frame(parameters)], ignore_index=True)
        found = find_laws(np.concatenate([self.words, more]), frame, laws=self._laws,
                          nuisance=self.nuisance if self.nuisance.any() else None)
        return replace(found, simulated=self.simulated)

    def register_rows(self, block: str = "", names: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """The fields as rows of a register table, one discovery a row: what ``RegisterMap`` reads.

        ``names`` gives the field of an automatic name another one.  The law is the note, with its
        rivals; evidence is ``guess`` where there are any, else ``C:sweep``.
        """
        rows = []
        for one in self.fields:
            law = one.text + (f" (or {one.rivals[0]})" if one.rivals else "")
            rows.append({"block": block, "offset": 4 * one.word, "register": f"w{one.word}",
                         "field": (names or {}).get(one.name, one.name), "lsb": one.lsb, "width": one.width,
                         "evidence": "guess" if one.rivals or one.open else "C:sweep", "note": law})
        last = self.words.shape[1] - 1
        if not rows or rows[-1]["offset"] != 4 * last:  # so that the map has as many words as a capture
            rows.append({"block": block, "offset": 4 * last, "register": f"w{last}", "field": f"w{last}_0_32", "lsb": 0,
                         "width": 32, "evidence": "unknown", "note": ""})
        return rows

    def __repr__(self) -> str:
        status = self.status
        varying = int(np.isin(status, ("law", "rivals", "open")).sum())
        simulated = ", simulated" if self.simulated else ""
        return (f"Laws({len(self.fields)} fields of {len(self.words)} captures{simulated}: "
                f"{int((status == 'law').sum())} of {varying} varying bits have a law, "
                f"{int((status == 'rivals').sum())} rivals, {int((status == 'open').sum())} open)")

    def _repr_html_(self) -> str:
        return f"<p>{repr(self).removeprefix('Laws(').removesuffix(')')}</p>{self.table.to_html(max_rows=60)}"


def _told(steps: Sequence[tuple[str, str]]) -> str:
    if len(steps) == 1:
        return steps[0][1]
    return "; ".join(f"{'else' if when == 'always' else f'when {when}'}: {law}" for when, law in steps)


def checked_words_like(words: Any, width: int) -> Array:
    """Words of one or more captures, each ``width`` wide."""
    array = np.atleast_2d(np.asarray(words))
    if array.ndim != 2 or array.shape[1] != width or array.dtype.kind not in "iu":
        raise ValueError(f"words: got {array.dtype} of shape {array.shape}, allowed is (captures, {width}) uint32")
    return array.astype(np.uint32)
