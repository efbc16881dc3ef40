"""What to capture: a first sweep that keeps parameters apart, and the layers that settle what is
open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from npulab.analysis.correlate import best_related
from npulab.analysis.laws.claims import Domain, Opening, in_order, opening, told, uncut_changes, unseen_rows, weak
from npulab.analysis.laws.expressions import Array, Columns
from npulab.analysis.laws.inputs import Table
from npulab.analysis.laws.matching import bits_of
from npulab.analysis.laws.predicates import FEW
from npulab.analysis.laws.rivals import Twins, alternatives, hidden_changes, rival_groups
from npulab.analysis.laws.search import Solved

if TYPE_CHECKING:
    import pandas as pd

POOL = 40  # candidates made for each capture asked for
LEAST_POOL = 400
TRIES = 60  # times as many rows are drawn before constraints are called impossible
MOST_KINDS = 64  # combinations of all modes that are worth a capture each
THIN = 20  # captures below which a regime is thin
SETTLED = 0.2  # of its weight is left to a rival that a chosen capture tells apart
Ranges = Mapping[str, Any]
Rule = Callable[["pd.DataFrame"], Any]


def plan_sweep(ranges: Ranges | None = None, constraints: Sequence[Rule] | Rule = (), n: int = 32, *,
               derived: Mapping[str, Rule] | None = None, candidates: Any = None, seed: int = 0) -> pd.DataFrame:
    """``n`` layers to capture first: every mode, sizes just below and above powers of two, no two
    parameters alike.

    ``ranges`` gives (low, high) or a list of values by parameter; (low, high) of whole numbers
    gives whole numbers. ``constraints`` are functions of the DataFrame that give True for each row
    that can be captured, ``derived`` columns by name functions of it.  In place of them,
    ``candidates`` are the rows to choose from (a DataFrame of parameters, whose index is kept).
    Raises ValueError for a range that is empty, and where hardly any row meets the constraints.

    >>> plan_sweep({"width": (1, 64), "stride": [1, 2]}, n=4)["stride"].tolist().count(2)
    2
    """
    if n < 1:
        raise ValueError(f"n: got {n}, allowed is 1 or more")
    if candidates is None:
        pool = drawn({} if ranges is None else ranges, constraints, derived, max(POOL * n, LEAST_POOL), seed)
        return pool.iloc[_most_new(_features(pool), n)].reset_index(drop=True)
    if ranges is not None or derived is not None or constraints != ():
        raise ValueError("candidates: got ranges, constraints or derived columns with them, allowed is either")
    pool = given_rows(candidates)
    pool = pool.iloc[np.random.default_rng(seed).permutation(len(pool))]
    return pool.iloc[_most_new(_features(pool), n)]


def _most_new(features: Array, n: int) -> list[int]:
    """Rows that show most: what was shown least counts most."""
    chosen: list[int] = []
    seen = np.zeros(features.shape[1])
    for _ in range(min(n, len(features))):
        score = features @ (0.5 ** seen)
        score[chosen] = -1
        best = int(score.argmax())
        chosen.append(best)
        seen += features[best]
    return chosen


def given_rows(rows: Any) -> pd.DataFrame:
    """Candidates as they come, at least one."""
    import pandas as pd

    pool = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(dict(rows))
    if not len(pool):
        raise ValueError("candidates: got no rows, allowed is at least one layer")
    return pool


def drawn(ranges: Ranges, constraints: Sequence[Rule] | Rule, derived: Mapping[str, Rule] | None, n: int,
          seed: int) -> pd.DataFrame:
    """``n`` possible rows of parameters, drawn so that every order of magnitude comes up."""
    import pandas as pd

    if not isinstance(ranges, Mapping) or not ranges:
        raise ValueError(f"ranges: got {ranges!r}, allowed is (low, high) or a list of values by parameter")
    random = np.random.default_rng(seed)
    rules = [constraints] if callable(constraints) else list(constraints)
    parts, found = [], 0
    for _ in range(TRIES):
        frame = pd.DataFrame({name: _drawn(name, allowed, n, random) for name, allowed in ranges.items()})
        for name, rule in (derived or {}).items():
            frame[name] = _applied(f"derived {name!r}", rule, frame)
        keep = np.ones(len(frame), bool)
        for rule in rules:
            keep &= _applied("constraints", rule, frame).astype(bool)
        parts.append(frame[keep])
        found += int(keep.sum())
        if found >= n:
            break
    if found == 0:
        raise ValueError(f"constraints: got no row of {TRIES * n} that meets them, allowed are constraints that some "
                         "layers meet")
    return pd.concat(parts, ignore_index=True).iloc[:n]


def _applied(what: str, rule: Rule, frame: pd.DataFrame) -> Array:
    """A rule's value for each row."""
    try:
        values = np.asarray(rule(frame))
    except Exception as error:
        raise ValueError(f"{what}: got {type(error).__name__} ({error}), allowed is a function of the parameters "
                         f"{', '.join(map(str, frame))}") from error
    if values.shape != (len(frame),):
        raise ValueError(f"{what}: got shape {values.shape}, allowed is a value for each of {len(frame)} rows")
    return values


def _drawn(name: str, allowed: Any, n: int, random: np.random.Generator) -> Array:
    fits = isinstance(allowed, tuple) and len(allowed) == 2 and all(
        isinstance(one, (int, float, np.integer, np.floating)) and np.isfinite(one) for one in allowed)
    if not (fits and allowed[0] <= allowed[1]) and (isinstance(allowed, (tuple, str)) or not np.iterable(allowed)):
        raise ValueError(f"ranges: got {allowed!r} for {name!r}, allowed is (low, high) or a list of values")
    if isinstance(allowed, tuple):
        low, high = allowed
        if isinstance(low, (int, np.integer)) and isinstance(high, (int, np.integer)):
            return _whole(int(low), int(high), n, random)
        if low > 0:
            return np.exp(random.uniform(np.log(low), np.log(high), n)).astype(np.float32)
        return random.uniform(low, high, n).astype(np.float32)
    values = np.asarray(list(allowed))
    if not len(values):
        raise ValueError(f"ranges: got no value for {name!r}, allowed is (low, high) or a list of values")
    # each value as often as the others, in an order of its own
    return random.permutation(np.resize(values, n))


def _whole(low: int, high: int, n: int, random: np.random.Generator) -> Array:
    """A third evenly, a third evenly by magnitude, a third beside powers of two and the ends."""
    even = random.integers(low, high + 1, n)
    if high - low < 16:
        return even
    log = np.exp(random.uniform(np.log(max(low, 1)), np.log(high), n)).astype(np.int64)
    edges = sorted({value for bit in range(high.bit_length() + 1) for value in (2 ** bit - 1, 2 ** bit, 2 ** bit + 1)
                    if low <= value <= high} | {low, high})
    which = random.integers(0, 3, n)
    return np.clip(np.choose(which, [even, log, random.choice(edges, n)]), low, high)


def _features(pool: pd.DataFrame) -> Array:
    """``(rows, F)``: what a row shows: values and pairs of values of the modes, all of them at once
    where these are few, bits of the numbers set and clear."""
    parts, modes = [], []
    for name in pool:
        column = pool[name].to_numpy()
        values = np.unique(column)
        if len(values) <= FEW:
            modes.append(np.searchsorted(values, column))
            parts.append(column[:, None] == values)
        elif column.dtype.kind in "iu":
            width = int(column.max()).bit_length()
            bits = (column[:, None] >> np.arange(width)) & 1
            parts += [bits == 1, bits == 0]
        else:
            parts.append(np.digitize(column, np.quantile(column, np.linspace(0, 1, 9)[1:-1]))[:, None] == np.arange(8))
    for i, one in enumerate(modes):
        for other in modes[:i]:
            pairs = one * (other.max() + 1) + other
            parts.append(pairs[:, None] == np.unique(pairs))
    if len(modes) > 2:
        kinds, which = np.unique(np.stack(modes, 1), axis=0, return_inverse=True)
        if len(kinds) <= MOST_KINDS:
            parts.append(which.reshape(-1, 1) == np.arange(len(kinds)))
    return np.concatenate(parts, 1).astype(np.float64)


class Planner:
    """What is not proved, by field, and the captures that would settle it."""

    def __init__(self, words: Array, solved: Sequence[Solved], follows: dict[str, set[str]], table: Table,
                 captured: Columns, columns_of: Callable[[pd.DataFrame], Columns], within: float) -> None:
        self.words, self.table, self.captured, self.within = words, table, captured, within
        self.columns_of = columns_of
        self.ready, self.stuck = in_order(solved, follows)
        self.opening: Opening = opening(self.ready, captured)

    def doubts(self, asked: Columns) -> Iterator[tuple[Solved, str, str, float, Array]]:
        """(field, reason, detail, weight, rows where it would be seen) of everything that fits as
        well."""
        integers = list(self.table.integers)
        twins, domain = Twins(self.captured, integers), Domain(self.captured, integers)
        by_name = {one.name: one for one in self.ready}
        for one in self.ready:
            base = one.values(asked)
            for reason, rivals in rival_groups(one, self.ready, self.captured, twins=twins, inner=True):
                near = [rival for rival in rivals if rival.dearer <= self.within]
                for rival in near:
                    changed = one.values(asked, alternatives(one, rival)) != base
                    if changed.any():
                        yield one, reason, str(rival), 2.0 ** -rival.dearer / len(near), changed
            hidden = hidden_changes(one, self.captured, asked, base) != 0
            if hidden.any():
                yield one, "threshold", "a budget that the captures only bound", 1.0, hidden
            beyond = domain.outside(one, asked)
            if beyond.any():
                yield one, "rivals", "another law between the numbers captured", 1.0, beyond
            for changed in uncut_changes(one, by_name, self.captured, asked, base):
                if changed.any():
                    yield one, "rivals", "a longer number than any captured", 1.0, changed != 0
            unseen = unseen_rows(one, self.opening, self.captured, asked)
            if unseen.any():
                yield one, "combination", "modes that were never captured together", 1.0, unseen
            if weak(one, self.captured):
                detail = f"{told(one, self.captured):.0f} bits of captures for a law of {one.cost:.0f}"
                yield one, "few rows", detail, 0.3, np.ones(asked.n, bool)
            thin = [number for number, support in enumerate(one.support) if support < THIN and len(one.steps) > 1]
            if thin:
                rows = np.isin(one.decide(asked), thin)
                if rows.any():
                    yield one, "few rows", f"{min(one.support)} captures in its regime", 0.3, rows

    def choose(self, n: int, parameters: pd.DataFrame, status: Array, pool: Any, ranges: Ranges | None,
               constraints: Sequence[Rule] | Rule, derived: Mapping[str, Rule] | None, seed: int) -> pd.DataFrame:
        """The best ``n`` rows of the pool, greedily; what a row settles counts less for the
        next."""
        import pandas as pd

        if n < 1:
            raise ValueError(f"n: got {n}, allowed is 1 or more")
        if pool is None:
            pool = drawn(ranges or self._ranges(parameters), constraints, derived, max(POOL * n, LEAST_POOL), seed)
        else:
            pool = given_rows(pool)
        for name in self.table.constant:
            if name not in pool:
                pool = pool.assign(**{name: parameters[name].iloc[0]})
        asked = self._columns(pool)
        told, weights = self._told_apart(asked, status)
        features = _features(pd.concat([parameters[list(pool.columns)], pool], ignore_index=True))
        seen, features = features[:len(parameters)].sum(0), features[len(parameters):]
        chosen: list[int] = []
        for _ in range(min(n, len(pool))):
            score = weights @ told + NOVELTY * (features @ (0.7 ** seen))
            score[chosen] = -np.inf
            best = int(score.argmax())
            chosen.append(best)
            weights = np.where(told[:, best] > 0, weights * SETTLED, weights)
            seen = seen + features[best]
        return pool.iloc[chosen]

    def _columns(self, pool: pd.DataFrame) -> Columns:
        asked = self.columns_of(pool)
        for one in self.ready:
            asked.add(one.name, one.values(asked))
        return asked

    def _told_apart(self, asked: Columns, status: Array) -> tuple[Array, Array]:
        """``(D, rows)``: which doubts a row would settle, or which idle bit it would move; and what
        each is worth."""
        told, weights = [], []
        count: dict[str, int] = {}
        for one, _, _, weight, rows in self.doubts(asked):
            if count.get(one.name, 0) < MOST_DOUBTS:
                count[one.name] = count.get(one.name, 0) + 1
                told.append(rows)
                weights.append(weight * one.width)
        idle = status == "never exercised"
        for one in self.ready:
            values = asked_bits(one, asked)
            for i, (word, bit) in enumerate(one.bits):
                if idle[word, bit] and (values[i] != (self.words[0, word] >> np.uint32(bit) & 1)).any():
                    told.append(values[i] != (self.words[0, word] >> np.uint32(bit) & 1))
                    weights.append(1.0)
        return np.array(told, np.float64).reshape(-1, asked.n), np.array(weights)

    def _ranges(self, parameters: pd.DataFrame) -> dict[str, Any]:
        """What the captures have: few values as they are, many as their ends."""
        out: dict[str, Any] = {}
        for name in (*self.table.integers, *self.table.reals):
            column = parameters[name].to_numpy()
            values = np.unique(column)
            if len(values) <= FEW:
                out[name] = values.tolist()
            elif name in self.table.integers:
                out[name] = (int(values[0]), int(values[-1]))
            else:
                out[name] = (float(values[0]), float(values[-1]))
        return out

    def pool(self, parameters: pd.DataFrame) -> pd.DataFrame:
        """The captures, and as many layers within their ranges."""
        import pandas as pd

        made = drawn(self._ranges(parameters), (), None, LEAST_POOL, 0)
        return pd.concat([parameters, made], ignore_index=True).fillna(parameters.iloc[0])

    def open_bits(self, parameters: pd.DataFrame, status: Array) -> pd.DataFrame:
        """word, bit, reason, detail, related, capture of every bit that is not proved."""
        import pandas as pd

        pool = self.pool(parameters)
        asked = self._columns(pool)
        reasons: dict[str, tuple[float, str, str, int]] = {}
        for one, reason, detail, weight, rows in self.doubts(asked):
            strength = weight * float(rows.mean())
            if strength > reasons.get(one.name, (0.0, "", "", 0))[0]:
                split = np.flatnonzero(rows)
                reasons[one.name] = (strength, reason, detail, int(split[-1]))
        places: list[tuple[int, int, str, str, Any]] = []
        for one in self.ready:
            if one.name in reasons:
                _, reason, detail, row = reasons[one.name]
                places += [(word, bit, reason, detail, self._capture(pool, row)) for word, bit in one.bits
                           if status[word, bit] in ("law", "rivals")]
        by_bit = {at: one for one in self.stuck for at in one.bits}
        made = range(len(parameters), len(pool))  # open bits are each given a layer of their own
        for number, (word, bit) in enumerate(np.argwhere(status == "open").tolist()):
            stuck = by_bit.get((word, bit))
            detail = f"follows from fields without a law: {stuck}" if stuck else "no law of the library fits"
            places.append((word, bit, "no law", detail, self._capture(pool, made[number % len(made)])))
        places.sort(key=lambda one: one[:2])
        bits = bits_of(self.words)
        captured = [bits[:, word, bit] for word, bit, *_ in places]
        related = best_related(np.stack(captured, 1), parameters, 3) if captured else []
        out = [(*place[:4], ", ".join(f"{name} ({value:.2f})" for name, value in found), place[4])
                for place, found in zip(places, related, strict=True)]
        return pd.DataFrame(out, columns=["word", "bit", "reason", "detail", "related", "capture"])

    @staticmethod
    def _capture(pool: pd.DataFrame, row: int) -> dict[str, Any]:
        return {str(name): value.item() if hasattr(value, "item") else value for name, value in pool.iloc[row].items()}


def asked_bits(one: Solved, asked: Columns) -> Array:
    """``(width, rows)``: the bits of a field as its law has them."""
    return one.values(asked) >> np.arange(one.width)[:, None] & 1


NOVELTY, MOST_DOUBTS = 0.02, 40
