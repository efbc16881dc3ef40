"""The search itself: its probabilities against plain enumeration, its stages, and what captures
are mixed of.
"""

from __future__ import annotations

import csv
import itertools
import math
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import npulab
import npulab.analysis.bisect
from npulab.analysis.bisect import Bisection, mix
from npulab.analysis.bisect.couplings import Couplings
from npulab.analysis.bisect.evidence import Evidence
from npulab.analysis.bisect.kinds import Groups, Many
from npulab.analysis.bisect.parts import families, parts_of
from npulab.analysis.bisect.proof import Prover
from npulab.analysis.bisect.search import LARGEST, Search
from npulab.analysis.bisect.suspects import MANY, PRIOR, Suspects
from npulab.analysis.bisect.words import Words
from npulab.analysis.check import Difference
from npulab.captures.capture import Capture, Job
from npulab.registers.map import RegisterMap

ENDS = (0.01, 0.005)
CAPTURES = Path(__file__).parents[2] / "captures" / "vivante"


def smallest(groups: list[tuple[int, ...]]) -> Groups:
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def listed(n: int) -> list[tuple[Groups, float]]:
    """Every explanation with its prior, in plain Python."""
    out: list[tuple[Groups, float]] = [((), ENDS[0]), (((),), ENDS[1])]

    def add(kind: tuple[str, bool], found: list[Groups]) -> None:
        out.extend((groups, PRIOR[kind] / len(found)) for groups in found)

    items = range(n)
    pairs, threes = list(itertools.combinations(items, 2)), list(itertools.combinations(items, 3))
    beside = [(k, pair) for k in items for pair in pairs if k not in pair]
    add(("one", False), [((i,),) for i in items])
    add(("two", False), [(pair,) for pair in pairs])
    add(("two", True), [smallest([(i,) for i in pair]) for pair in pairs])
    add(("three", False), [(three,) for three in threes])
    add(("three", True), [smallest([(i,) for i in three]) for three in threes])
    add(("mixed", False), [smallest([(k,), pair]) for k, pair in beside])
    add(("mixed", True), [smallest([(k, pair[0]), (k, pair[1])]) for k, pair in beside])
    return out


def fails(groups: Groups, subset: np.ndarray) -> bool:
    return any(all(subset[i] for i in group) for group in groups)


def posterior(n: int, trials: list[tuple[np.ndarray, bool]], flake: float) -> dict[Groups, float]:
    weights: dict[Groups, float] = {}
    for groups, prior in listed(n):
        wrong = sum(fails(groups, subset) != failed for subset, failed in trials)
        weights[groups] = weights.get(groups, 0.0) + prior * flake**wrong * (1 - flake) ** (
            len(trials) - wrong
        )
    total = sum(weights.values())
    return {groups: weight / total for groups, weight in weights.items()}


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(6))
def test_probabilities_are_those_of_plain_enumeration(seed: int) -> None:
    n, flake = 7, 0.05
    rng = np.random.default_rng(seed)
    suspects = Suspects(n, flake, seed)
    suspects._awake = True  # only what is listed
    told = []
    for _ in range(14):
        subset = rng.random(n) < 0.5
        told.append((subset, bool(rng.random() < 0.5)))
        suspects.tell(*told[-1])
        want = posterior(n, told, flake)
        for one in suspects.top(12):
            assert one.probability == pytest.approx(want[one.groups], rel=1e-4), one
        assert suspects.top(1)[0].probability == pytest.approx(max(want.values()), rel=1e-4)
        bits = -sum(p * math.log2(p) for p in want.values() if p)
        assert suspects.bits == pytest.approx(bits, abs=0.01)


def test_a_table_and_the_list_that_is_left_of_it_say_the_same() -> None:
    n, flake, rng = 19, 0.02, np.random.default_rng(5)
    suspects, told = Suspects(n, flake), []
    for _ in range(22):
        subset = rng.random(n) < 0.75
        told.append((subset, bool(subset[[3, 11, 17]].all())))
        suspects.tell(*told[-1])
    assert any(
        kind.items is not None for kind in suspects.kinds if getattr(kind, "shape", "") == "three"
    )
    want = posterior(n, told, flake)
    for one in suspects.top(8):
        if len(one.items) < 4:
            assert one.probability == pytest.approx(want[one.groups], rel=0.02), one


def test_what_is_asked_splits_the_probability_in_two() -> None:
    suspects = Suspects(24, 0.0)
    for _ in range(6):
        question = suspects.ask()
        want = question.fails
        if suspects.trials < 2:
            told = posterior(24, suspects.history, 5e-4)
            want = sum(told[groups] for groups in told if fails(groups, question.subset))
        assert question.fails == pytest.approx(want, abs=0.06)
        assert 0.3 < question.fails < 0.7
        suspects.tell(question.subset, bool(question.subset[7]))


@pytest.mark.parametrize("dual", [False, True])
def test_samples_of_many_items_weigh_as_all_of_them_do(dual: bool) -> None:
    n, least, flake, rng = 9, 4, 0.05, np.random.default_rng(1)
    every = [
        (items, 0.6 ** (k - least) / math.comb(n, k))
        for k in range(least, 9)
        for items in itertools.combinations(range(n), k)
    ]
    every = [(items, weight / sum(w for _, w in every)) for items, weight in every]

    def weigh(trials: int) -> np.ndarray:
        m = np.arange(trials + 1)
        return m * math.log(flake) + (trials - m) * math.log(1 - flake)

    many, told, prior = Many(n, dual, least, MANY[dual], 3), [], MANY[dual]
    for _ in range(8):
        subset = rng.random(n) < (0.2 if dual else 0.8)
        told.append((subset, bool(rng.random() < 0.5)))
        many.tell(told, weigh)
    want = 0.0
    for items, weight in every:
        said = [
            bool(subset[list(items)].any() if dual else subset[list(items)].all())
            for subset, _ in told
        ]
        wrong = sum(one != failed for one, (_, failed) in zip(said, told, strict=True))
        want += prior * weight * flake**wrong * (1 - flake) ** (len(told) - wrong)
    assert many.log_evidence == pytest.approx(math.log(want), abs=0.35)


def found(
    n: int,
    groups: Groups,
    flake: float | None,
    seed: int,
    rate: float = 0.0,
    **options: object,
) -> tuple[Groups, int, Search]:
    """A search run to its end against planted groups, with outcomes wrong at ``rate``."""
    rng = random.Random(seed)
    search = Search(
        n, options.pop("units", [[i] for i in range(n)]), flake_rate=flake, seed=seed, **options
    )
    while (question := search.ask()) is not None:
        failed = fails(groups, question.subset) ^ (rng.random() < rate)
        search.tell(question.subset, "fail" if failed else "pass")
        assert len(search.history) < 400
    return search.groups, len(search.history), search


def test_nothing_and_everything() -> None:
    assert found(40, (), 0.0, 1)[0] == ()
    groups, _, search = found(40, ((),), 0.0, 1)
    assert (groups, search.end.how) == (((),), "good fails")
    assert found(40, (), 0.05, 1, rate=0.05)[0] == ()


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_left_that_breaks_it_too(seed: int) -> None:
    nine = random.Random(seed).sample(range(60), 9)
    pairs = [(nine[0], nine[1]), (nine[2], nine[3])]
    for groups in (smallest([(item,) for item in nine]), smallest(pairs)):
        assert found(60, groups, 0.0, seed)[0] == groups


def test_large_diffs_are_bundled_and_bundles_opened() -> None:
    n = 3 * LARGEST + 7
    groups, queries, _ = found(n, ((17, 500),), 0.0, 1)
    assert groups == ((17, 500),)
    assert queries < 40


def test_a_job_that_hangs_is_searched_for_what_hangs_it() -> None:
    search = Search(50, [[i] for i in range(50)], seed=2)
    while (question := search.ask()) is not None:
        subset = question.subset
        search.tell(
            subset, "hang" if subset[7] and subset[30] else "fail" if subset.any() else "pass"
        )
        assert len(search.history) < 90
    # each other field fails by itself: whether more hangs behind that is not seen, and is said
    assert (search.groups, search.symptom, search.hidden) == (((7, 30),), "hang", True)


def test_couplings_that_nobody_declared() -> None:
    couplings = Couplings(30)
    rng = np.random.default_rng(0)
    for _ in range(40):
        subset = rng.random(30) < 0.5
        couplings.tell(subset, bool(subset[4] != subset[21]))
    assert np.argwhere(np.triu(couplings.suspect) > 0.7).tolist() == [[4, 21]]
    assert [group.tolist() for group in couplings.tied() if len(group) > 1] == [[4, 21]]


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(4))
def test_a_search_finds_couplings_that_nobody_declared(seed: int) -> None:
    search = Search(60, [[i] for i in range(60)], seed=seed)
    while (question := search.ask()) is not None and len(search.history) < 120:
        subset = question.subset
        hung = subset[4] != subset[21] or subset[33] != subset[50]
        search.tell(subset, "hang" if hung else "fail" if subset[9] and subset[17] else "pass")
    assert search.groups == ((9, 17),)
    assert sum(outcome == "hang" for _, outcome in search.history) <= 15


@pytest.mark.parametrize("flake", [0.0, 0.1])
@pytest.mark.parametrize(
    "least",
    [
        [(3, 19, 30), (7,), (40, 41)],
        [(2, 9), (9, 33), (2, 33)],
        [(5, 6), (5, 50), (5, 60)],
        [(1,), (2,), (63,)],
    ],
)
def test_a_proof_from_nothing_finds_every_smallest_set(
    least: list[tuple[int, ...]], flake: float
) -> None:
    rng, groups = random.Random(1), smallest(least)
    prover, trials = Prover(64, []), []
    prover.follow(Evidence.of(trials, 64, "fail", flake))
    while prover.wanted is not None:
        failed = fails(groups, prover.wanted.subset) ^ (rng.random() < flake)
        trials.append((prover.wanted.subset, "fail" if failed else "pass"))
        prover.follow(Evidence.of(trials, 64, "fail", flake))
    assert prover.proof is not None
    assert (smallest(list(prover.proof.groups)), prover.proof.complete) == (groups, True)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Suspects(0), "items: got 0"),
        (lambda: Suspects(3, 0.5), "flake_rate: got 0.5"),
        (lambda: Suspects(3, -0.1), "flake_rate"),
        (lambda: Search(3, [[0, 1, 2]], certainty=1.0), "certainty: got 1.0"),
        (lambda: Search(3, [[0], [1], [2]]).tell(np.ones(3, bool), "ok"), "outcome: got 'ok'"),
    ],
)
def test_bad_input_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


# Captures


ROWS = """block,register,offset,field,lsb,width,at,address
NN,a,0,f0,0,4,,
NN,a,0,f1,4,4,,
NN,a,0,f2,8,4,,
NN,a,0,f3,12,4,,
NN,a,0,f4,16,4,,
NN,a,0,f5,20,4,,
NN,a,0,f6,24,4,,
NN,a,0,f7,28,4,,
NN,b,4,wide,0,20,4,
NN,c,8,wide,28,4,0,
NN,d,12,base_address,0,32,,yes
"""
MAPS = {"NN": RegisterMap(csv.DictReader(ROWS.splitlines()))}


def dense(name: str, *words: int) -> Capture:
    return Capture(name, "demo", "x", (Job("NN", words),), maps=MAPS)


def test_parts_are_fields_and_bits_that_no_field_has() -> None:
    good, bad = dense("good", 0, 0, 0, 7), dense("bad", 0x87654321, 0xABCDE, 0xF0000001, 9)
    parts = parts_of(good, bad)
    assert [part.field for part in parts] == [*(f"f{n}" for n in range(8)), "wide", "w2_0_28"]
    # the mixture of a split field is made of all its pieces, and the address stays
    wide = [part.key for part in parts if part.field == "wide"]
    mixed = mix(good, bad, wide).values
    assert mixed == good.values | {"wide": bad.values["wide"]}


def test_a_split_field_of_which_one_register_is_written() -> None:
    rows = [
        "block,offset,register,field,lsb,width,at",
        "ST,0,r0,split,8,8,0",
        "ST,4,r1,split,8,8,8",
    ]
    maps = {"ST": RegisterMap(csv.DictReader(rows), dense=False)}
    good, bad = (
        Capture(name, "demo", "x", (Job.from_writes("ST", [(4, value)], maps["ST"]),), maps=maps)
        for name, value in (("good", 0), ("bad", 0x300))
    )
    (part,) = parts_of(good, bad)
    assert (part.field, part.a, part.b) == ("split", 0, 0x300)
    assert mix(good, bad, [part.key]).jobs == bad.jobs


def test_a_command_stream_of_other_writes_is_left_out() -> None:
    good, bad = (npulab.load(CAPTURES / f"update4-{name}") for name in ("vendor", "mesa"))
    keys = [part.key for part in parts_of(good, bad)]
    assert "commands" in mix(good, bad, []).buffers
    assert "commands" not in mix(good, bad, keys).buffers


def test_names_make_families() -> None:
    names = [
        "InDimWidth",
        "InDimHeight",
        "size",
        "in_size",
        "in_stride",
        "out_image_end",
        "out_image_start",
        "mode",
        "mode_x",
    ]
    units = families([Difference(0, "NN", "r", name, 0, 1) for name in names])
    assert units == [[0, 1], [2], [3, 4], [5, 6], [7], [8]]
    assert families(
        [Difference(0, "NN", "r", "a", None, 1), Difference(0, "NN", "r", "b", None, 2)]
    ) == [[0, 1]]


@pytest.mark.parametrize(
    ("kinds", "flake", "trials"),
    [
        (2, 0.0, 3),
        *(pytest.param(8, rate, 20, marks=pytest.mark.long) for rate in (0.0, 0.01, 0.02, 0.05)),
    ],
)
def test_trials_of_each_kind_among_130_parts(kinds: int, flake: float, trials: int) -> None:
    """The kinds of the table in ``bench_bisection``, in the normal run two of them."""
    from bench_bisection import bound, measured

    right = []
    # of each kind the number of parts that break it only together
    table = [("OR 2", 0), ("AND 2", 2), ("single", 0), ("AND 3", 3)]
    table += [("OR 3", 0), ("1 or AND 2", 2), ("AND 5", 5), ("OR 5", 0)]
    for kind, alone in table[:kinds]:
        runs, share = measured("npulab", kind, flake, trials)
        # these parts are tried one by one, too, before an answer is reported; BAD runs once
        capacity = bound(kind, 0.0) / bound(kind, flake)
        factor = 1.5 if "5" in kind else 1.3
        assert runs <= factor * bound(kind, flake) + (alone + 1) / capacity, (kind, runs)
        right.append(share)
    assert sum(right) / len(right) >= 0.98, right


def test_addresses_are_told_in_hexadecimal() -> None:
    good, bad = (npulab.load(CAPTURES / f"update4-{name}") for name in ("vendor", "mesa"))
    session = Bisection(good, bad, addresses=True)
    number = next(i for i, part in enumerate(session.differences) if part.address)
    assert re.search(
        r" = 0x[0-9a-f]{8} \(good 0x[0-9a-f]{8}\)$",
        Words(session.differences, False).groups([[number]]),
    )
