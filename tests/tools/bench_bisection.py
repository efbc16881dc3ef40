"""How many runs it takes to find planted culprits, beside ddmin and picire (where it is installed):

    NPULAB_TRIALS=200 pytest -o addopts= -s tests/tools/bench_bisection.py

A row per kind of culprit and flake rate: mean runs of each method and the share of right answers.
The bound is (log2 C(130, k) + what it costs not to be told the kind) over the capacity of an oracle
that errs at that rate. ddmin and picire are told nothing of errors and find one failing set: of
several that fail alone, one counts as right.
"""

from __future__ import annotations

import logging
import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from npulab.analysis.bisect.kinds import Groups
from npulab.analysis.bisect.search import Search

FIELDS = 130
TRIALS = int(os.environ.get("NPULAB_TRIALS", "20"))
UNTOLD = {1: 1.0, 2: 2.3, 3: 3.3, 5: 4.3}
KINDS = {
    "single": (1, False),
    "AND 2": (2, False),
    "OR 2": (2, True),
    "AND 3": (3, False),
    "OR 3": (3, True),
    "1 or AND 2": (3, None),
    "AND 5": (5, False),
    "OR 5": (5, True),
}
Fails = Callable[[Sequence[int]], bool]


def planted(kind: str, rng: random.Random) -> Groups:
    count, alone = KINDS[kind]
    items = rng.sample(range(FIELDS), count)
    groups = (
        [items[:1], items[1:]]
        if alone is None
        else [[item] for item in items]
        if alone
        else [items]
    )
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def bound(kind: str, flake: float) -> float:
    count, _ = KINDS[kind]
    noise = -sum(p * math.log2(p) for p in (flake, 1 - flake) if p)
    return (math.log2(math.comb(FIELDS, count)) + UNTOLD[count]) / (1 - noise)


def ours(fails: Fails, flake: float, seed: int) -> Groups:
    search = Search(FIELDS, [[item] for item in range(FIELDS)], flake_rate=flake, seed=seed)
    while (question := search.ask()) is not None:
        search.tell(
            question.subset, "fail" if fails(np.flatnonzero(question.subset).tolist()) else "pass"
        )
    return search.groups


def ddmin(fails: Fails, flake: float, seed: int) -> Groups:
    """Zeller's: halves, quarters, ... and what is left without each; no set is run twice."""
    fails = cache(lambda items, once=fails: once(items))
    items, parts = tuple(range(FIELDS)), 2
    while len(items) > 1:
        size = math.ceil(len(items) / parts)
        pieces = [items[i : i + size] for i in range(0, len(items), size)]
        rests = [tuple(item for item in items if item not in piece) for piece in pieces]
        if (smaller := next((piece for piece in pieces if fails(piece)), None)) is not None:
            items, parts = smaller, 2
        elif (smaller := next((rest for rest in rests if rest and fails(rest)), None)) is not None:
            items, parts = smaller, max(parts - 1, 2)
        elif parts >= len(items):
            break
        else:
            parts = min(len(items), 2 * parts)
    return (tuple(sorted(items)),)


def picire(fails: Fails, flake: float, seed: int) -> Groups:
    library = pytest.importorskip("picire")
    from picire.config_splitters import ZellerSplit
    from picire.outcome import Outcome

    logging.disable(logging.CRITICAL)
    search = library.DD(
        lambda config, _: Outcome.FAIL if fails(config) else Outcome.PASS,
        cache=library.ConfigCache(),
        split=ZellerSplit(2),
    )
    try:
        return (tuple(sorted(search(list(range(FIELDS))))),)
    except (
        AssertionError,
        ValueError,
    ):  # an oracle that errs may say that all fields together pass
        return ()


METHODS = {"npulab": ours, "ddmin": ddmin, "picire": picire}


def measured(method: str, kind: str, flake: float, trials: int = 20) -> tuple[float, float]:
    """(mean runs, share right)."""
    runs, right = [], 0
    for seed in range(trials):
        rng = random.Random(f"{kind} {flake} {seed}")
        groups, count = planted(kind, rng), [0]

        def fails(
            items: Sequence[int],
            groups: Groups = groups,
            count: list[int] = count,
            rng: random.Random = rng,
        ) -> bool:
            count[0] += 1
            return (any(set(group) <= set(items) for group in groups)) ^ (rng.random() < flake)

        found = METHODS[method](fails, flake, seed)
        one_of_many = (
            method != "npulab" and len(groups) > 1 and any(group in groups for group in found)
        )
        right += found == groups or one_of_many
        runs.append(count[0])
    return sum(runs) / trials, right / trials


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    lines = [
        f"\n{FIELDS} fields, {TRIALS} trials a cell: mean runs (share right)",
        f"{'flake':>5} {'kind':10} {'bound':>6} "
        + " ".join(f"{name:>14}" for name in METHODS)
        + "  npulab of bound",
    ]
    yield lines
    print("\n".join(lines))


@pytest.mark.parametrize("flake", [0.0, 0.01, 0.02, 0.05])
@pytest.mark.parametrize("kind", KINDS)
def test_runs(kind: str, flake: float, table: list[str], benchmark: Any) -> None:
    benchmark.group = f"{kind}, flake rate {flake}"
    cells = []
    for method in METHODS:
        try:
            runs, right = (
                benchmark.pedantic(measured, (method, kind, flake, TRIALS), rounds=1)
                if method == "npulab"
                else measured(method, kind, flake, TRIALS)
            )
            cells.append(f"{runs:6.1f} ({right:.3f})")
        except pytest.skip.Exception:
            cells.append("not installed")
        if method == "npulab":
            benchmark.extra_info |= {"runs": runs, "right": right, "bound": bound(kind, flake)}
            ours_of_bound = runs / bound(kind, flake)
    table.append(
        f"{flake:5.2f} {kind:10} {bound(kind, flake):6.1f} "
        + " ".join(f"{cell:>14}" for cell in cells)
        + f"  {ours_of_bound:.2f}"
    )
