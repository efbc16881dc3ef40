"""Laws of a store of captures: they are sought on a sample, and proved on every capture, part by
part.

Captures that disprove a law are added to the sample, and so are captures in which a bit moves that
is constant in the sample. Memory holds the sample, and the captures that one step of an iteration
gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from npulab.analysis.laws.expressions import Array, Columns
from npulab.analysis.laws.found import Laws, find_laws
from npulab.analysis.laws.matching import bits_of
from npulab.analysis.laws.prior import BUDGET
from npulab.analysis.laws.score import Score, scored
from npulab.captures.sweep import Sweep
from npulab.captures.sweep_store import SweepStore
from npulab.support.answers import Answer, Part, Table
from npulab.support.refuse import need, refuse_if
from npulab.support.text import Row, plural, rows_of

if TYPE_CHECKING:
    import pandas as pd

    from npulab.analysis.laws.solved import Solved

# There are at most ROUNDS searches; each sample has the counterexamples of the search before.
ROUNDS = 4

# The sample has PAIRS pairs of captures with equal parameters, which show bits without meaning.
PAIRS = 50

# Laws are compared with AT_ONCE captures at once, because each part of a law is a column.
AT_ONCE = 2**14

MOST_MISTAKES = 1_000  # a score lists at most MOST_MISTAKES mistakes
Told = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Proof(Answer):
    """What all ``captures`` of a store say of ``laws``.

    ``table`` has a row for each field with a law: word, lsb, width, law, decided (the number of
    captures that a step of the law decides), wrong (the number that it gives wrongly), first (the
    number of the first of these captures, -1 if none). ``unseen`` are (word, bit) of bits that move
    in the store and are constant in the captures that the laws were made from. ``against`` is a
    sweep of captures that disprove laws or move such bits: at most 40 for each law and each bit.
    """

    laws: Laws
    captures: int
    table: pd.DataFrame
    unseen: tuple[tuple[int, int], ...]
    against: Sweep | None = field(default=None, repr=False)

    @property
    def holds(self) -> bool:
        """True if no capture disproves a law."""
        return not self.table["wrong"].any()

    @property
    def holding(self) -> Laws:
        """The laws that no capture disproves. Laws that read a field of a disproved law are left
        out, too.
        """
        wrong = {str(name) for name in self.table["field"][self.table["wrong"] > 0]}
        kept = []
        for solved in self.laws._solved:
            if not wrong & {solved.name, *self.laws._follows[solved.name]}:
                kept.append(solved)
        return replace(self.laws, _solved=tuple(kept))

    def records(self) -> list[Row]:
        return rows_of(self.table)

    @property
    def parts(self) -> list[Part]:
        wrong = self.table[self.table["wrong"] > 0]
        text = f"{plural(len(self.table) - len(wrong), 'law')} of {len(self.table)} hold on all "
        text += plural(self.captures, "capture")
        out: list[Part] = [text]
        if len(wrong):
            out.append(Table(rows_of(wrong), [*wrong.columns]))
        if self.unseen:
            places = ", ".join(f"w{word}_{bit}" for word, bit in self.unseen[:8])
            text = f"{plural(len(self.unseen), 'bit')} of no sampled capture move: {places}"
            out.append(text)
        return out


@dataclass
class _Tally:
    """How many captures one law decided so far, how many of these values were wrong, and the first
    capture with a wrong value (-1: none).
    """

    decided: int = 0
    wrong: int = 0
    first: int = -1


def prove(laws: Laws, store: SweepStore, progress: Told | None = None) -> Proof:
    """Compare every law with every capture of a store, in one pass.

    A field that a law reads is read as captured, so that each law is judged by itself. Raises as
    ``find_laws`` for words and parameters that do not go with the laws.
    """
    need("prove: laws", laws, Laws, "is Laws, as find_laws gives")
    need("prove: store", store, SweepStore, "is a SweepStore, as open_store gives")
    ready = laws._findings.ready
    tallies = {solved.name: _Tally() for solved in ready}
    kept = dict.fromkeys(tallies, 0)
    moves = np.bitwise_or.reduce(laws.words ^ laws.words[:1], axis=0) | laws.nuisance
    new = np.zeros_like(moves)
    against = []
    first = 0
    for sweep in _pieces(store):
        words = laws._like(sweep.words)
        columns = laws._columns(sweep.parameters)
        rows = [np.zeros(0, np.intp)]
        for solved in ready:
            wrong = np.flatnonzero(solved.wrong(columns, words))
            _count(tallies[solved.name], _decided(solved, columns), wrong, first)
            columns.add(solved.name, solved.raw(words).astype(np.int64))
            some = wrong[: max(BUDGET.added - kept[solved.name], 0)]
            kept[solved.name] += len(some)
            rows.append(some)
        moved = (words ^ laws.words[:1]) & ~moves
        fresh = np.bitwise_or.reduce(moved, axis=0) & ~new
        for word, bit in np.argwhere(bits_of(fresh[None])[0]).tolist():
            here = np.flatnonzero(moved[:, word] & np.uint32(2**bit))
            rows.append(here[: BUDGET.added])
        new |= fresh
        chosen = np.unique(np.concatenate(rows))
        if len(chosen):
            against.append(sweep[chosen])
        first += len(sweep)
        if progress is not None:
            progress(f"proved on {first} of {len(store)} captures")
    unseen = tuple((word, bit) for word, bit in np.argwhere(bits_of(new[None])[0]).tolist())
    return Proof(laws, first, _table(laws, tallies), unseen, joined(against))


def _pieces(store: SweepStore) -> Iterator[Sweep]:
    """Yield the captures of a store, ``AT_ONCE`` at a time, so that the values of a law's parts fit
    a cache."""
    for sweep in store:
        for start in range(0, len(sweep), AT_ONCE):
            yield sweep[start : start + AT_ONCE]


def _decided(solved: Solved, columns: Columns) -> int:
    if not solved.partial:
        return columns.n
    return int((solved.decide(columns) >= 0).sum())


def _count(tally: _Tally, decided: int, wrong: Array, first: int) -> None:
    tally.decided += decided
    tally.wrong += len(wrong)
    if tally.first < 0 and len(wrong):
        tally.first = first + int(wrong[0])


def _table(laws: Laws, tallies: dict[str, _Tally]) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for solved in laws._findings.ready:
        tally = tallies[solved.name]
        text = "; ".join(f"{law} when {when}" for when, law in solved.steps)
        if len(solved.steps) == 1 and not solved.partial:
            text = str(solved.steps[0][1])
        place = (solved.name, solved.word, solved.lsb, solved.width)
        rows.append((*place, text, tally.decided, tally.wrong, tally.first))
    names = ["field", "word", "lsb", "width", "law", "decided", "wrong", "first"]
    return pd.DataFrame(rows, columns=names)


def joined(sweeps: list[Sweep]) -> Sweep | None:
    """Several sweeps of one store as one sweep; None if there are none."""
    import pandas as pd

    if not sweeps:
        return None
    words = np.concatenate([sweep.words for sweep in sweeps])
    frame = pd.concat([sweep.parameters for sweep in sweeps], ignore_index=True)
    return replace(sweeps[0], words=words, parameters=frame)


def find_laws_on(
    store: SweepStore,
    sample: int = BUDGET.searched,
    seed: int = 0,
    progress: Told | None = None,
    **options: Any,
) -> Proof:
    """Search the laws of a store on a sample and prove them on all captures. Captures that disprove
    laws are added to the sample for the next search; there are at most four searches.

    The sample has ``sample`` captures at random, those with the lowest and the highest value of
    each parameter, and 50 pairs of captures with equal parameters. ``options`` are those of
    ``find_laws``. ``holding`` of the answer are the laws that hold on every capture; their numbers
    of supporting captures are those of the sample.
    """
    need("find_laws_on: store", store, SweepStore, "is a SweepStore, as open_store gives")
    refuse_if(sample < 2, "sample", sample, "is 2 or more")
    refuse_if(len(store) < 2, store.path, plural(len(store), "capture"), "are two or more")
    seen = _sampled(store, sample, seed)
    for number in range(ROUNDS):
        laws = find_laws(seen, progress=progress, **options)
        if len(seen) == len(store):
            # the sample was the whole store, so that no capture can disprove the laws
            return prove(laws, store)
        proof = prove(laws, store, progress)
        if proof.against is None or laws.stopped or number + 1 == ROUNDS:
            break
        added = _without_known(proof.against, seen)
        if added is None:
            break
        if progress is not None:
            progress(f"{plural(len(added), 'counterexample')} added to the sample")
        both = joined([seen, added])
        assert both is not None
        seen = both
    return proof


def _sampled(store: SweepStore, sample: int, seed: int) -> Sweep:
    if len(store) <= sample:
        return store.read()
    random = store.sample(sample, seed)
    special = store.files.rows(store.notable(PAIRS))
    added = _without_known(special, random)
    both = joined([random, *filter(None, [added])])
    assert both is not None
    return both


def _without_known(sweep: Sweep, known: Sweep) -> Sweep | None:
    """The captures of a sweep that are not in another one; None if there are none."""
    have = {*_keys(known)}
    new = [key not in have for key in _keys(sweep)]
    if not any(new):
        return None
    return sweep[np.array(new)]


def _keys(sweep: Sweep) -> Iterator[bytes]:
    numbers = sweep.parameters.to_numpy(np.float64)
    for words, row in zip(sweep.words, numbers, strict=True):
        yield words.tobytes() + row.tobytes()


def score_store(laws: Laws, store: SweepStore) -> Score:
    """``Laws.score`` of all captures of a store, part by part; at most 1,000 mistakes are
    listed."""
    looked_at = store.looked_at or laws.looked_at
    return scored(laws.words, laws.nuisance, _claims(laws, store), looked_at, MOST_MISTAKES)


def _claims(laws: Laws, store: SweepStore) -> Iterator[tuple[Array, Array, Array]]:
    """Yield for each part its words, their predictions and masks of the claimed bits."""
    for sweep in store:
        yield (laws._like(sweep.words), *_predicted(laws, sweep.parameters))


def _predicted(laws: Laws, parameters: pd.DataFrame) -> tuple[Array, Array]:
    """The predictions of ``laws``: each different layer is predicted once, and only few layers at a
    time.
    """
    numbers = parameters.groupby([*parameters], sort=False).ngroup().to_numpy()
    _, firsts, back = np.unique(numbers, return_index=True, return_inverse=True)
    layers = parameters.iloc[firsts].reset_index(drop=True)
    words = []
    claims = []
    for start in range(0, len(layers), AT_ONCE):
        some = layers.iloc[start : start + AT_ONCE].reset_index(drop=True)
        predicted, claimed = laws.predict(some)
        words.append(predicted)
        claims.append(claimed)
    return np.concatenate(words)[back], np.concatenate(claims)[back]
