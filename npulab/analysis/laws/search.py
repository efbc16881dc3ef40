"""The search: single laws, fields by regimes, fields that follow other fields; round after
round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from npulab.analysis.laws.boundaries import Place, information, places
from npulab.analysis.laws.expressions import (
    ALWAYS,
    FIELD,
    INTEGER,
    PARAMETER,
    Array,
    Columns,
    Expression,
    constant,
    parameter,
)
from npulab.analysis.laws.expressions import field as field_column
from npulab.analysis.laws.library import Library
from npulab.analysis.laws.lists import Path, decision_lists, held_out
from npulab.analysis.laws.masks import packed
from npulab.analysis.laws.matching import AGAIN_COST, MIDDLE_COST, PLACE_COST, Run, bits_of, match, runs
from npulab.analysis.laws.parity import parity
from npulab.analysis.laws.pool import Pool, pool
from npulab.analysis.laws.predicates import FEW, Predicates, opposite, threshold

WITHIN = 7.0  # bits that a rival may be dearer
AGAIN = 8.0  # bits that one more piece of a law has to save
MARGIN, MARGIN_ONE = 10.0, 20.0  # bits that a law has to save: of a field, of a single bit
FIRST_LAWS = 60_000
SURE_WIDTH, PLAIN_LAW = 4, 9.0
USUAL_LAWS = 4000
SEPARATORS, SEPARATED = 40_000, 30
FEWEST = 12  # captures below which no regimes are looked for
ONE_LAW = 5.0
LEFT_OVER = 2  # bits beside a field that may be its own
FEW_OPEN = 48
SHARED_COST = 8.0  # bits less that a law costs which has pieces in other words
PARITY_COST = 30.0  # bits to name two or three of all bits of the parameters
ENOUGH = 80  # captures from which on fields are searched that follow from open ones
PLAIN = 0.25  # share of the bits to explain: so short a list of two steps is not tried on held-out captures
TELLING = 150  # captures from which on a test tells that a parameter has nothing to do with a bit
HOPELESS = 25.0  # bits that no law over other fields could save
LIMITED = {"ceil", "align", "*", "+", "//"}

Steps = tuple[tuple[Expression, Expression], ...]  # (when, law), the last one always


@dataclass(frozen=True)
class Rival:
    """What the captures cannot tell from a step: another law for it, condition for it, or whole
    list."""

    dearer: float
    step: int
    law: Expression | None = None
    when: Expression | None = None
    steps: Steps = ()

    @property
    def reads(self) -> set[str]:
        """Names of the fields that it follows from."""
        parts = (self.law, self.when, *(part for step in self.steps for part in step))
        return {name for part in parts if part is not None for name in part.names(FIELD)}

    def __str__(self) -> str:
        if self.steps:
            return "; ".join(f"{'else' if when == ALWAYS else when}: {law}" for when, law in self.steps)
        return str(self.law) if self.law is not None else f"when {self.when}"


@dataclass(frozen=True, eq=False)
class Solved:
    """Bits of one word that a decision list explains on every capture."""

    word: int
    lsb: int
    width: int
    steps: tuple[tuple[Expression, Expression], ...]
    support: tuple[int, ...]
    cost: float
    saved: float
    rivals: tuple[Rival, ...] = ()
    missed: Array | None = None  # captures that lists made without them get wrong

    @property
    def name(self) -> str:
        return f"w{self.word}_{self.lsb}_{self.width}"

    @property
    def bits(self) -> list[tuple[int, int]]:
        return [(self.word, self.lsb + i) for i in range(self.width)]

    @property
    def mask(self) -> int:
        """Its bits in the word."""
        return (2 ** self.width - 1) * 2 ** self.lsb

    def placed(self, values: Array) -> Array:
        """Raw values ``(N,)`` where they lie in the word, uint32."""
        return (values * 2 ** self.lsb).astype(np.uint32)

    def decide(self, columns: Columns, steps: Sequence[tuple[Expression, Expression]] = ()) -> Array:
        """Which step decides each row, (N,)."""
        out = np.full(columns.n, -1)
        for number, (when, _) in enumerate(steps or self.steps):
            out[(out < 0) & columns[when]] = number
        return out

    def wraps(self, columns: Columns) -> bool:
        """Whether a law gives more than the field holds on any row."""
        decided = self.decide(columns)
        raw = np.select([decided == number for number in range(len(self.steps))],
                        [columns[law] for _, law in self.steps])
        return bool((raw >= 2 ** self.width).any())

    def values(self, columns: Columns, steps: Sequence[tuple[Expression, Expression]] = ()) -> Array:
        """The field's raw value on each row, ``(N,) int64``."""
        steps = steps or self.steps
        decided = self.decide(columns, steps)
        out = np.zeros(columns.n, np.int64)
        for number, (_, law) in enumerate(steps):
            here = decided == number
            if here.any():
                out[here] = columns[law][here]
        return out % 2 ** self.width

    def __str__(self) -> str:
        parts = [f"{law}" if when == ALWAYS and len(self.steps) == 1 else
                 f"{'else' if when == ALWAYS else when}: {law} ({n})"
                 for (when, law), n in zip(self.steps, self.support, strict=True)]
        missed = "" if self.missed is None else f", held out {int(self.missed.sum())} wrong"
        return f"{self.name} = {'; '.join(parts)}  [{self.cost:.0f} of {self.saved:.0f} bits{missed}]"


class Limit(NamedTuple):
    """A limit on a law of a price, that captures up to ``low`` are below, those from ``high``
    above."""

    condition: Expression
    cost: float
    price: float
    low: int
    high: int


class Search:
    """One search over captures ``words (N, W) uint32`` and their ``columns``."""

    def __init__(self, words: Array, columns: Columns, integers: Sequence[str], reals: Sequence[str],
                 given: Sequence[str] = (), ignore: Array | None = None,
                 tell: Callable[[str], None] = lambda text: None, known: Sequence[Solved] = ()) -> None:
        self.words, self.columns = words, columns
        self.integers, self.reals, self.given = list(integers), list(reals), list(given)
        self.tell = tell
        self.n = len(words)
        bits = bits_of(words)
        self.varies = np.asarray(bits.any(0) & ~bits.all(0))
        self.todo = self.varies & ~(ignore if ignore is not None else np.zeros_like(self.varies))
        self.weights = information(bits)
        self.deep = False
        self.derived: list[str] = []
        self.inner: dict[Expression, None] = {}  # steps of laws, which limits may be of
        self.cut: list[tuple[str, Expression]] = []  # a field, and what it is where nothing limits it
        self.follows: dict[str, set[str]] = {}  # a field's name -> the fields it follows from

        self.solved: list[Solved] = []
        for one in known:
            self._accept(one)

    # -- single laws

    def singles(self, library: Library, least: float = MARGIN_ONE, lonely: bool = False, wide: bool = False) -> None:
        """Explain bits by one law for all captures.

        Unless ``lonely``, a single bit counts only with a plain law, as a limit looks like the high
        bit of many a law, and a narrow run only where single laws explain all varying bits around
        it: a part of a larger field often follows some law by chance.  With ``wide`` only wide ones
        count at all.
        """
        found = match(self.words, library, self.todo)
        total = self.weights.sum(0)
        scored: list[tuple[float, Run]] = []
        circular: dict[tuple[int, int, int], int] = {}
        for run in runs(self.words, library, found, ~self.varies):
            at = run.word, run.lsb, run.width
            if self.derived and at not in circular:
                circular[at] = self._circular(Place(*at, 0.0), library)
            if self.derived and int(library.uses[run.law]) & circular[at]:
                continue
            worth = float(total[run.word, run.lsb:run.lsb + run.width].sum())
            gain = worth - float(library.cost[run.law]) - PLACE_COST - (MIDDLE_COST if run.shift else 0)
            if gain > -float(library.cost[run.law]):  # a piece of a law that is known anyway costs little
                scored.append((gain, run))
        # a law that explains bits of several words is worth more than one of the same bits of one
        # word
        elsewhere: dict[int, dict[int, float]] = {}
        for gain, run in scored:
            gains = elsewhere.setdefault(run.law, {})
            gains[run.word] = max(gains.get(run.word, 0.0), gain)
        # what a law costs is shared by its pieces
        scored.sort(key=lambda one: (-one[0] - min(_others(elsewhere[one[1].law], one[1].word),
                                                   SHARED_COST), one[1].word, one[1].lsb))
        of_word: dict[int, list[tuple[int, int, int]]] = {}
        for (word, law, offset), matched in found.items():
            of_word.setdefault(word, []).append((law, offset, matched))
        chosen = self._cover([run for _, run in scored], library, least)
        while True:
            open_bits = {(run.word, bit) for run, lsb, width, _ in chosen for bit in range(lsb, lsb + width)}
            whole = {at for place in self._runs()
                     if all(at in open_bits or not self.todo[at] for at in place.bits) for at in place.bits}
            pieces = Counter(run.law for run, *_ in chosen)
            now = [one for one in chosen if lonely
                   or ((one[0].word, one[1]) in whole and not wide
                       and (one[2] > 1 or library.cost[one[0].law] < PLAIN_LAW or pieces[one[0].law] > 1))
                   or (one[2] >= SURE_WIDTH and not self._proxy(one[0].word, one[1]))]
            if not now:
                break
            for run, lsb, width, worth in now:
                self._accept(self._single(run, lsb, width, library, of_word[run.word], worth))
            chosen = [one for one in chosen if one not in now]  # with those explained, others may stand alone

    def _cover(self, runs_: list[Run], library: Library, least: float) -> list[tuple[Run, int, int, float]]:
        """The best runs that do not overlap, cut to what is open: (run, lsb, width, bits that it is
        worth)."""
        total = self.weights.sum(0)
        used: set[int] = set()
        free = self.todo.copy()
        chosen: list[tuple[Run, int, int, float]] = []
        places_of: dict[int, list[Run]] = {}
        for run in runs_:
            places_of.setdefault(run.law, []).append(run)
        again: dict[tuple[int, int, int], Run] = {}  # places of laws that other bits follow, the cheapest ones
        for first in runs_:
            if not free[first.word, first.lsb:first.lsb + first.width].any():
                continue
            # of laws of one price the one that another run has
            other = again.get((first.word, first.lsb, first.width), first)
            same_price = library.cost[other.law] < library.cost[first.law] + 1
            run = other if first.law not in used and same_price else first
            span = np.flatnonzero(free[run.word, run.lsb:run.lsb + run.width])
            lsb, width = run.lsb + int(span[0]), int(span[-1] - span[0]) + 1
            if (self.varies[run.word, lsb:lsb + width] & ~free[run.word, lsb:lsb + width]).any():
                continue  # in more than one piece
            price = AGAIN_COST if run.law in used else float(library.cost[run.law])
            worth = float(total[run.word, lsb:lsb + width].sum())
            if worth - price - PLACE_COST - (MIDDLE_COST if run.shift else 0) > (AGAIN if run.law in used else least):
                if run.law not in used:
                    used.add(run.law)
                    for one in places_of[run.law]:
                        known = again.setdefault((one.word, one.lsb, one.width), one)
                        if library.cost[one.law] < library.cost[known.law]:
                            again[one.word, one.lsb, one.width] = one
                free[run.word, lsb:lsb + width] = False
                chosen.append((run, lsb, width, worth))
        return chosen

    def _proxy(self, word: int, bit: int) -> bool:
        """Whether a run could be the top of a larger field: many quantities agree in their rarely
        set high bits."""
        share = float((self.words[:, word] >> np.uint32(bit) & 1).mean())
        return bit > 0 and bool(self.todo[word, bit - 1]) and not 0.3 < share < 0.7

    def _single(self, run: Run, lsb: int, width: int, library: Library, found: list[tuple[int, int, int]],
                worth: float) -> Solved:
        shift = run.shift + lsb - run.lsb
        mask = sum(2 ** bit for bit in range(lsb, lsb + width) if self.varies[run.word, bit])
        cost = float(library.cost[run.law])
        rivals = []
        inside = MIDDLE_COST if shift else 0.0
        for law, offset, matched in found:
            if matched & mask == mask:
                middle = MIDDLE_COST if offset + lsb else 0.0
                dearer = max(float(library.cost[law]) + middle - cost - inside, 0.0)
                if dearer <= WITHIN:
                    if (law, offset + lsb) != (run.law, shift):
                        rivals.append(Rival(dearer, 0, law=shifted(library[law], offset + lsb)))
                    rivals += [Rival(dearer + more, 0, law=shifted(other, offset + lsb))
                               for more, other in library.rivals(law, WITHIN - dearer)]
        single = shifted(library[run.law], shift)
        return Solved(run.word, lsb, width, ((ALWAYS, single),), (self.n,), cost + PLACE_COST, worth,
                      tuple(sorted(rivals, key=lambda one: one.dearer)[:60]))

    def _accept(self, solved: Solved) -> None:
        self.solved.append(solved)
        used = {name for step in solved.steps for one in step for name in one.names(FIELD)}
        self.follows[solved.name] = used.union(*(self.follows.get(name, set()) for name in used))
        for word, bit in solved.bits:
            self.todo[word, bit] = False
        self.tell(str(solved))

    # -- regimes

    def relevant(self) -> list[str]:
        """Whole-valued parameters but those that have nothing to do with any open bit (G test).

        Those of few values stay, as they may open a regime, unless they are plainly copied into a
        word.
        """
        targets = np.argwhere(self.todo)
        if not len(targets):
            return []
        bits = bits_of(self.words)[:, targets[:, 0], targets[:, 1]].astype(np.float64)
        used = {name for one in self.solved if len(one.steps) > 1 for step in one.steps for part in step
                for name in part.names()}
        copied = {one.steps[0][1].args[0] for one in self.solved if one.steps[0][1].op == PARAMETER}
        out = []
        for name in self.integers:
            values = np.asarray(self.columns[parameter(name)])
            kinds = np.unique(values)
            if self.n < TELLING or name in used or (len(kinds) <= FEW and name not in copied):
                out.append(name)
                continue
            eighths = np.linspace(0, 1, 9)[1:-1]
            limits = kinds[1:] if len(kinds) <= FEW else np.quantile(values, eighths, method="nearest")
            group = np.searchsorted(np.unique(limits), values, side="right")
            counts = np.bincount(group, minlength=group.max() + 1).astype(np.float64)
            ones = np.stack([np.bincount(group, weights=column, minlength=len(counts)) for column in bits.T])
            share = bits.mean(0)[:, None]
            expected = np.stack([counts * share, counts * (1 - share)])
            observed = np.stack([ones, counts - ones])
            with np.errstate(all="ignore"):
                terms = np.where(observed > 0, observed * np.log(observed / expected), 0)
            if 2 * terms.sum((0, 2)).max() > 2.0 * len(counts) + 16:
                out.append(name)
        return out

    def solve(self, place: Place, library: Library, predicates: Predicates, *, depth: int | None = None,
              margin: float = MARGIN) -> Solved | None:
        """The cheapest decision list for some bits, or None."""
        w, lsb, width = place.word, place.lsb, place.width
        values = (self.words[:, w] >> np.uint32(lsb)) & np.uint32(2 ** width - 1)
        weights = self.weights[:, w, lsb:lsb + width].sum(1)
        raw = float(weights.sum())
        if raw < (HOPELESS if self.deep else margin) or not len(library):
            return None
        laws = pool(values, width, weights, library, without=self._circular(place, library), deep=self.deep)
        predicates = predicates.without(self._circular_names(place))
        if not len(laws.kept) or not laws.agree[laws.kept].any(0).all():
            return None
        options = {} if depth is None else {"depth": depth}
        agree, cost = laws.agree[laws.kept], laws.cost[laws.kept]
        found = decision_lists(agree, cost, predicates.masks, predicates.cost, weights, **options)
        used = predicates
        limits: list[Limit] = []
        if (not found or len(found[0][1]) > 3) and width >= 3 and depth is None:
            own = predicates.with_thresholds(self._dominant(laws, agree, cost, weights))
            if own is not predicates:
                other = decision_lists(agree, cost, own.masks, own.cost, weights)
                if other and (not found or other[0][0] < found[0][0]):
                    found, used = other, own
        if not found or found[0][0] > 0.5 * raw or len(found[0][1]) > 2:
            limits = self._separating(values, library, place)
            apart = predicates.also([(one.condition, one.cost) for one in limits])
            if apart is not predicates:
                other = decision_lists(agree, cost, apart.masks, apart.cost, weights, **options)
                if other and (not found or other[0][0] < found[0][0]):
                    found, used = other, apart
        if not found or found[0][0] + margin > raw:
            return None
        return self._found(place, found, laws, used, weights, raw, depth, limits)

    def _separating(self, values: Array, library: Library, place: Place) -> list[Limit]:
        """Limits on laws that part the captures of one value from those of the others."""
        kinds, counts = np.unique(values, return_counts=True)
        without = np.uint64(self._circular(place, library))
        out: dict[Expression, Limit] = {}
        columns = library.values[:SEPARATORS]
        allowed = (library.uses[:SEPARATORS] & without == 0) & (columns.max(1) < 2 ** 31)
        whole = library.product_uses & without == 0
        sources = ((columns, allowed, library.__getitem__, library.cost),
                   (library.products, whole, library.product, library.product_cost))
        for kind in kinds[np.argsort(-counts, kind="stable")][:3]:
            here = values == kind
            if not 2 <= here.sum() <= self.n - 2:
                continue
            for of, able, law, price in sources:
                inside, outside = of[:, here], of[:, ~here]
                for low, high in ((inside, outside), (outside, inside)):
                    top, bottom = low.max(1), high.min(1)
                    for i in np.flatnonzero((top < bottom) & able)[:SEPARATED].tolist():
                        ends, of_law = (int(top[i]), int(bottom[i])), float(price[i])
                        condition, cost = threshold(law(i), *ends)
                        out.setdefault(condition, Limit(condition, 2 + cost + of_law, of_law, *ends))
        return list(out.values())

    def _other_limits(self, when: Expression, here: Array, left: Array, limits: Sequence[Limit],
                      ) -> Iterator[tuple[float, Expression]]:
        """Limits on other laws that select the same captures, and how much dearer these laws are.

        How round a limit is says nothing here, as it may lie anywhere between two captures.
        """
        own = next((one for one in limits if when in (one.condition, opposite(one.condition))), None)
        for other in limits if own else ():
            dearer = other.price - own.price if own else 0.0
            if other is own or dearer > WITHIN:
                continue
            for end in (other.low, other.high - 1):
                below = Expression("<=", (other.condition.args[0], constant(end)))
                for way in (below, opposite(below)):
                    if (self.columns[way][left] == here[left]).all():
                        yield max(0.0, dearer), way

    @staticmethod
    def _dominant(laws: Pool, agree: Array, cost: Array, weights: Array) -> list[Expression]:
        """The law that explains most, the one that explains most of the rest, and what they are
        made of.

        Splitting and saturation begin where such a column passes a limit.
        """
        first = int(np.argmax(agree @ weights - cost))
        rest = np.where(agree[first], 0, weights)
        second = int(np.argmax(agree @ rest - cost))
        out: dict[Expression, None] = {}
        for number in (first, second):
            for one in laws[int(laws.kept[number])].walk():
                if one.op in INTEGER and (one.names() or one.names(FIELD)):
                    out[one] = None
        return list(out)[:4]

    def _found(self, place: Place, found: tuple[tuple[float, Path], ...], laws: Pool, predicates: Predicates,
               weights: Array, raw: float, depth: int | None, limits: Sequence[Limit] = ()) -> Solved:
        kept, (total, path) = laws.kept, found[0]

        def steps(path: Path) -> tuple[tuple[Expression, Expression], ...]:
            return tuple((predicates.condition(p), laws[int(kept[law])]) for p, law in path)

        own = steps(path)
        rivals: list[Rival] = []
        support: list[int] = []
        left = np.ones(self.n, bool)
        for number, (p, law) in enumerate(path):
            here = predicates.masks[p] & left
            support.append(int(here.sum()))
            price = laws.cost[kept[law]]
            fits = np.flatnonzero((laws.cost <= price + WITHIN) & laws.agree[:, here].all(1))
            for other in fits[np.argsort(laws.cost[fits], kind="stable")][:60]:
                if other != kept[law]:
                    rivals.append(Rival(max(0.0, float(laws.cost[other] - price)), number, law=laws[int(other)]))
            if p:
                same = (predicates.all_costs <= predicates.cost[p] + WITHIN) \
                    & ((predicates.all_masks ^ packed(here[None])) & packed(left[None]) == 0).all(1)
                for other in np.flatnonzero(same)[:80].tolist():
                    when = predicates.any_condition(other)
                    if when != own[number][0]:
                        rivals.append(Rival(max(0.0, float(predicates.all_costs[other] - predicates.cost[p])), number,
                                            when=when))
                rivals += [Rival(dearer, number, when=when)
                           for dearer, when in self._other_limits(own[number][0], here, left, limits)]
            left &= ~here
        for other_total, other in found[1:12]:
            if other_total - total < WITHIN:
                rivals.append(Rival(max(0.0, other_total - total), -1, steps=steps(other)))
        plain = len(path) == 1 or (len(path) == 2 and total < PLAIN * raw)
        missed = np.zeros(self.n, bool) if plain else held_out(laws, predicates, weights)
        return Solved(place.word, place.lsb, place.width, own, tuple(support), total, raw, tuple(rivals), missed)

    def regimes(self, library: Library, predicates: Predicates) -> None:
        """Decision lists for what is open: whole runs by one law, then fields as partial agreement
        cuts them."""
        cut = places(self.words, self.weights, library, self.todo) if len(library) else []
        cut.sort(key=lambda place: -place.saving)
        for place in self._runs():
            if 2 <= place.width <= 24:
                self._try(place, library, predicates, depth=1)
        tried: set[str] = set()
        # what is open after the first two leaves other runs
        for group in ([*cut, *self._runs()], None):
            for place in group or self._runs():
                if place.width > 1 and place.name not in tried and self._open(place):
                    tried.add(place.name)
                    self._try(place, library, predicates)

    def _circular_names(self, place: Place) -> set[str]:
        """Fields that a place must not follow from: itself, and what follows from it."""
        own = {place.name} | {other for other in self.derived if self._overlaps(other, place)}
        return own | {other for other in self.derived if self.follows.get(other, set()) & own}

    def _circular(self, place: Place, library: Library) -> int:
        bits = 0
        for name in self._circular_names(place):
            bits |= library.field_bit(name)
        return bits

    @staticmethod
    def _overlaps(name: str, place: Place) -> bool:
        word, lsb, width = (int(part) for part in name[1:].split("_"))
        return word == place.word and lsb < place.lsb + place.width and place.lsb < lsb + width

    def derive(self, library: Library, captured: bool) -> None:
        """Fields as columns for others: explained ones by their law and, if ``captured``, runs of
        open bits."""
        known = {np.asarray(self.columns[parameter(name)]).tobytes() for name in self.integers}
        self.derived, self.cut, self.inner = [], [], {}
        names: set[str] = set()
        for solved in sorted(self.solved, key=lambda one: len(self.follows[one.name])):
            if self.follows[solved.name] - names - ({one.args[0] for one in self.columns.values if one.op == FIELD}
                                                    if captured else set()):
                continue
            names.add(solved.name)
            values = solved.values(self.columns)
            self.columns.add(solved.name, values)
            # who fills in a field that is too narrow for its value goes on with the value
            if solved.width > 1 and len(np.unique(values)) > 2 and values.tobytes() not in known \
                    and not solved.wraps(self.columns):
                known.add(values.tobytes())
                self.derived.append(solved.name)
                law = self._usual(values, solved.width, library)
                if law is not None and len(solved.steps) > 1:
                    self.cut.append((solved.name, law))
            for _, law in solved.steps:
                for one in law.walk():
                    if one != law and one.op in LIMITED and len(list(one.walk())) > 3:
                        self.inner[one] = None
        for run in self._runs() if captured else ():
            values = (self.words[:, run.word] >> np.uint32(run.lsb)).astype(np.int64) % 2 ** run.width
            if run.width > 1 and len(np.unique(values)) > 2:
                self.columns.add(run.name, values)
                self.derived.append(run.name)
                law = self._usual(values, run.width, library)
                if law is not None:
                    self.cut.append((run.name, law))

    def explain(self, brief: bool = False) -> None:
        """All rounds: single laws; regimes over the parameters; over explained fields; over
        captured ones."""
        first = library = Library(self.columns, self.integers, self.reals, given=self.given, most=FIRST_LAWS)
        self.singles(first)
        predicates = None
        rounds = (False, False, False, True, True) if self.n >= ENOUGH else (False, False)
        for number, captured in enumerate(rounds[:1] if brief else rounds):
            # fields that follow from open ones are looked for where few are open
            if not self.todo.any() or self.n < FEWEST or (captured and self.todo.sum() > FEW_OPEN):
                break
            before = self.derived
            self.derive(library, captured)
            # the same columns once more would find the same
            if number and self.derived == before:
                continue
            library, predicates = self._round(number > 0)
        if predicates is not None and not brief:
            self.lone_bits(library, predicates)
        self.singles(first, lonely=True)

    def _round(self, fields: bool) -> tuple[Library, Predicates]:
        """Decision lists for all open bits, over the parameters and the derived columns."""
        names = self.relevant()
        library = Library(self.columns, names, (), self.derived, self.given,
                          factors=[name for name in self.integers if name not in names])
        leaves = [*(parameter(name) for name in names), *(field_column(name) for name in self.derived)]
        predicates = Predicates(self.columns, leaves, [one for one in leaves if self._is_size(one)], self.compared())
        predicates = predicates.with_thresholds(sorted(self.inner, key=lambda one: len(list(one.walk()))))
        predicates = predicates.cheaper({when for one in self.solved for when, _ in one.steps if when != ALWAYS})
        self.deep = fields
        self._tried: dict[Any, Solved | None] = {}
        self.tell(f"round: {len(library)} laws, {len(predicates)} conditions, {int(self.todo.sum())} bits")
        if fields:
            self.singles(library, wide=True)
            self.again(library, predicates)
        self.regimes(library, predicates)
        if not fields:
            self.widen(library, predicates)
            self.merge(library, predicates)
        return library, predicates

    def again(self, library: Library, predicates: Predicates) -> None:
        """Solve fields of long lists anew: a field that is known by now may say it more simply."""
        for old in list(self.solved):
            if len(old.steps) > 2 and not any(old.name in names for names in self.follows.values()):
                found = self.solve(Place(old.word, old.lsb, old.width, 0.0), library, predicates)
                if found and found.cost + ONE_LAW < old.cost and not self._missed(found):
                    self.solved.remove(old)
                    self._accept(found)

    def _is_size(self, leaf: Expression) -> bool:
        values = np.unique(self.columns[leaf])
        return len(values) > 2 or bool(values[0] > 0)

    def _usual(self, values: Array, width: int, library: Library) -> Expression | None:
        """The cheapest law that gives a field on more than half of the captures, and no
        constant."""
        if not len(library):
            return None
        same = ((library.values[:USUAL_LAWS] ^ values.astype(np.uint32)) & np.uint32(2 ** width - 1)) == 0
        share = same.mean(1)
        best = int(share.argmax())
        return library[best] if share[best] > 0.5 and library[best].op in INTEGER else None

    def compared(self) -> list[tuple[Expression, float]]:
        """Conditions that say whether a field is what it usually is."""
        return [(Expression(op, (field_column(name), law)), 8.0) for name, law in self.cut for op in ("==", "!=")]

    def lone_bits(self, library: Library, predicates: Predicates) -> None:
        """Exclusive ors and decision lists for the bits left over, one by one."""
        leaves = [parameter(name) for name in self.integers]
        for word, bit in np.argwhere(self.todo).tolist():
            saved = float(self.weights[:, word, bit].sum())
            laws = parity(self.words[:, word] >> np.uint32(bit) & 1 == 1, self.columns, leaves) \
                if saved > PARITY_COST else []
            if laws:
                rivals = tuple(Rival(0.0, 0, law=law) for law in laws[1:])
                self._accept(Solved(word, bit, 1, ((ALWAYS, laws[0]),), (self.n,), PARITY_COST, saved, rivals))
                continue
            self._try(Place(word, bit, 1, 0.0), library, predicates, margin=MARGIN_ONE)

    def widen(self, library: Library, predicates: Predicates) -> None:
        """Add the bit or two beside a list that one explains for about what the list costs without
        them."""
        for old in [one for one in self.solved if len(one.steps) > 1]:
            for run in self._runs():
                beside = run.lsb in (old.lsb + old.width, old.lsb - run.width)
                if run.word != old.word or not beside or run.width > LEFT_OVER:
                    continue
                place = Place(old.word, min(old.lsb, run.lsb), old.width + run.width, 0.0)
                found = self.solve(place, library, predicates)
                if found and found.cost <= old.cost + ONE_LAW and not self._missed(found):
                    self.solved.remove(old)
                    self._accept(found)
                    break

    def merge(self, library: Library, predicates: Predicates) -> None:
        """Join neighbours that one list explains for about what it costs to explain one of them."""
        for low in list(self.solved):
            high = next((one for one in self.solved if one.word == low.word and one.lsb == low.lsb + low.width), None)
            if high is None or low not in self.solved or len(low.steps) == len(high.steps) == 1 \
                    or any({low.name, high.name} & names for names in self.follows.values()):
                continue
            place = Place(low.word, low.lsb, low.width + high.width, 0.0)
            found = self.solve(place, library, predicates)
            if found and found.cost <= max(low.cost, high.cost) + ONE_LAW and not self._missed(found):
                self.solved = [one for one in self.solved if one not in (low, high)]
                self._accept(found)

    def _as_before(self, place: Place, library: Library, predicates: Predicates, options: dict[str, Any],
                   ) -> Solved | None:
        """``solve``, but once for places with the same values: drivers write a number to several
        words."""
        values = (self.words[:, place.word] >> np.uint32(place.lsb)) & np.uint32(2 ** place.width - 1)
        key = (values.tobytes(), place.width, tuple(options.items()))
        if key in self._tried:
            found = self._tried[key]
            if found is None:
                return None
            used = {name for step in found.steps for one in step for name in one.names(FIELD)}
            if not used & self._circular_names(place):
                return replace(found, word=place.word, lsb=place.lsb)
        self._tried[key] = self.solve(place, library, predicates, **options)
        return self._tried[key]

    def _missed(self, found: Solved) -> bool:
        return found.missed is not None and int(found.missed.sum()) > max(2, 0.015 * self.n)

    def _open(self, place: Place) -> bool:
        """Whether a place has a bit to explain, and none that is explained."""
        return any(self.todo[at] for at in place.bits) \
            and all(self.todo[at] or not self.varies[at] for at in place.bits)

    def _try(self, place: Place, library: Library, predicates: Predicates, **options: Any) -> None:
        found = self._as_before(place, library, predicates, options)
        if found is None:
            return
        if self._missed(found):
            self.tell(f"aside {found}")
            return
        self._accept(found)

    def _runs(self) -> list[Place]:
        out: list[Place] = []
        for word, bit in np.argwhere(self.todo).tolist():
            if out and out[-1].word == word and out[-1].lsb + out[-1].width == bit:
                out[-1] = replace(out[-1], width=out[-1].width + 1)
            else:
                out.append(Place(word, bit, 1, 0.0))
        return out


def _others(gains: dict[int, float], word: int) -> float:
    return sum(max(gain, 0.0) for at, gain in gains.items() if at != word)


def shifted(law: Expression, shift: int) -> Expression:
    return Expression("//", (law, constant(2 ** shift))) if shift else law
