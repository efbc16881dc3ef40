"""Explanations of poolings that differ: planted causes are named, and what is named also predicts
images that the search has not seen; nothing is named for outputs that have no cause.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pool_causes
import pytest
from conftest import CAPTURES
from pool_causes import CAUSES, Case, random_case, random_image, right

import npulab
from npulab import emulate, hypotheses
from npulab.analysis.mismatch import pooling
from npulab.analysis.mismatch.changes import changes_of
from npulab.analysis.mismatch.hypotheses import summary_lines
from npulab.npus.nvdla.facts import CHIPS
from npulab.npus.nvdla.memory import Memory
from npulab.npus.nvdla.rules import MUTATIONS
from npulab.npus.nvdla.units import pdp
from npulab.npus.nvdla.units.fields import Fields
from npulab.quant.layers import Pool2D, QuantParams

# The changes were chosen with the seeds 0 to 299; these are others.
SEEDS = range(5000, 5050)
MANY = range(6000, 6600)
UNSEEN = 2  # images on which a named explanation is judged


def layer_of(case: Case) -> Pool2D:
    return Pool2D(
        case.kind,
        case.kernel,
        case.image.shape,  # type: ignore[arg-type]
        case.stride,
        case.pads,
        input_q=QuantParams(1.0, case.zero),
        dtype=case.image.dtype.name,
        rounding=case.rounding,
    )


def predicts(words: str, case: Case, cause: str, seed: int) -> bool:
    """True if the change of these words predicts the cause's outputs of other images exactly."""
    for draw in range(UNSEEN):
        image = random_image(case.image.shape, case.kernel, case.image.dtype, 1000 * seed + draw)
        other = replace(case, image=image)
        _, output = CAUSES[cause](other, Random(seed))
        start = pooling.Pooled(layer_of(other), other.image, "tflite-reference")
        changes = changes_of(pooling.CHANGES, start, output)
        found = start
        for part in words.split(" with "):
            matching = [change for change in changes if change.words == part]
            if not matching:
                return False
            found = matching[0].apply(found)
        if not np.array_equal(pooling.predict(found, pooling.Windows()), output):
            return False
    return True


def judged(seeds: range) -> dict[str, list[Any]]:
    """Return the seeds by what became of the planted cause: ``first`` if the change that is named
    first predicts images that were not seen, ``among`` if another change with no mismatch does,
    ``wrong`` if none does, ``none`` if no change is named."""
    found: dict[str, list[Any]] = {"first": [], "among": [], "wrong": [], "none": []}
    for seed in seeds:
        random = Random(seed)
        case = random_case(random)
        cause = random.choice([*CAUSES])
        words, output = CAUSES[cause](case, Random(seed))
        if not words or np.array_equal(output, right(case)):
            continue
        table = hypotheses(layer_of(case), case.image, output)
        assert table.mismatches[0] == np.count_nonzero(output != right(case))
        equal = table[table.equal].change.tolist()
        outcome = "none"
        if equal:
            outcome = "wrong"
        for number, change in enumerate(equal):
            if predicts(change, case, cause, seed):
                outcome = "among" if number else "first"
                break
        found[outcome].append((seed, cause, words, equal[:3]))
    return found


@pytest.mark.parametrize("count", [12, pytest.param(50, marks=pytest.mark.long)])
def test_planted_causes_are_named_first(count: int) -> None:
    found = judged(SEEDS[:count])
    total = sum(map(len, found.values()))
    assert total > 2 * count // 5
    assert len(found["first"]) >= 0.95 * total, found
    assert len(found["wrong"]) + len(found["none"]) <= 0.04 * total, found


@pytest.mark.long
def test_planted_causes_of_many_seeds() -> None:
    found = judged(MANY)
    total = sum(map(len, found.values()))
    assert total > 350
    assert len(found["first"]) >= 0.97 * total, found
    assert len(found["wrong"]) + len(found["none"]) <= 0.02 * total, found


def line_by_line(case: Case, window: pool_causes.Codes, wide: bool) -> int:
    """Return the average, about the zero point, of the averages of the lines of a window; or, with
    ``wide`` False, of lines saturated at 9 bits."""
    nearest = pool_causes.ROUND["half-away"]
    lines = []
    for line in window:
        codes = [code - case.zero for code in line if code is not None]
        if codes:
            lines.append(codes)
    if wide:
        means = [nearest(Fraction(sum(codes), len(codes))) for codes in lines]
        return nearest(Fraction(sum(means), len(means))) + case.zero
    kept = [min(max(sum(codes), -256), 255) for codes in lines]
    taps = sum(map(len, lines))
    return nearest(Fraction(sum(kept), taps)) + case.zero


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(8000, 8012))
def test_steps_are_those_of_loops_at_borders_and_about_a_zero_point(seed: int) -> None:
    case = random_case(Random(seed))
    case = replace(case, kind="average", rounding="half-away:centred", zero=case.zero or 9)
    start = pooling.Pooled(layer_of(case), case.image, "tflite-reference")
    by_rows = pooling.Average(order="rows averaged, then their averages")
    narrow = pooling.Average(kept=pooling.Kept(pooling.ROWS, 9, pooling.SATURATED))
    for average, wide in ((by_rows, True), (narrow, False)):
        found = pooling.predict(replace(start, average=average), pooling.Windows())
        expected = pool_causes.output(case, partial(line_by_line, case, wide=wide))
        np.testing.assert_array_equal(found, expected)


def without_cause(case: Case, seed: int) -> dict[str, np.ndarray]:
    """Return outputs that no arithmetic gives."""
    random = np.random.RandomState(seed)
    good = right(case)
    low, high = case.limits
    noise = good.astype(int) + random.randint(-1, 2, good.shape)
    spots, few = good.copy(), good.copy()
    places = random.random_sample(good.shape) < 0.1
    spots[places] = random.randint(low, high + 1, np.count_nonzero(places))
    few.ravel()[random.choice(good.size, 3, replace=False)] ^= 77
    return {
        "bytes": random.randint(low, high + 1, good.shape).astype(good.dtype),
        "noise": noise.clip(low, high).astype(good.dtype),
        "spots": spots,
        "few": few,
        "shuffled": random.permutation(good.ravel()).reshape(good.shape),
        "one code": np.full_like(good, random.randint(low, high + 1)),
    }


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(7000, 7006))
def test_outputs_without_a_cause_are_not_explained(seed: int) -> None:
    case = random_case(Random(seed))
    for how, output in without_cause(case, seed).items():
        table = hypotheses(layer_of(case), case.image, output)
        assert not table.equal.any(), (how, table[table.equal])
        assert not summary_lines(table)[0].startswith("equal"), how


RANDOM = np.random.RandomState(3)
SHAPE = (13, 14, 12)
BRIGHT = RANDOM.randint(60, 128, SHAPE).astype(np.int8)
BRIGHT[:, 7:] = RANDOM.randint(-128, 0, (13, 7, 12))
AVERAGE = Pool2D("average", (4, 4), SHAPE, (1, 2), "valid")


def silicon(sums: int) -> int:
    return pool_causes.silicon(pool_causes.silicon(sums, 65536, 11), 4096, 8)


def windows_of(x: np.ndarray) -> np.ndarray:
    every = np.lib.stride_tricks.sliding_window_view(x.astype(int), (4, 4), (0, 1))
    return every[:, ::2].sum((-1, -2))


def test_swapped_reciprocals_are_a_register_of_eleven_bits() -> None:
    """An RTL keeps 11 bits behind the first reciprocal, and cuts."""
    output = np.vectorize(silicon)(windows_of(BRIGHT)).astype(np.int8)
    table = hypotheses(AVERAGE, BRIGHT, output)
    assert table[table.equal].change.tolist() == ["sums cut to the low bits of 11 bits"]
    assert table.kind[1] == "register"
    assert summary_lines(table)[0] == (
        f"equal with: sums cut to the low bits of 11 bits (0 of {output.size} differ)"
    )


def test_sums_off_by_multiples_of_a_power_are_said_to_be() -> None:
    """Of no register: a multiple that differs from output to output."""
    sums = windows_of(BRIGHT)
    off = 512 * RANDOM.randint(-1, 2, sums.shape)
    mean = (sums + off) / 16
    output = np.where(mean >= 0, np.floor(mean + 0.5), np.ceil(mean - 0.5))
    output = output.clip(-128, 127).astype(np.int8)
    table = hypotheses(AVERAGE, BRIGHT, output)
    assert table[table.equal].change.tolist() == ["averages off by multiples of 2**9 / 16"]


def test_a_correct_output_is_equal_at_once() -> None:
    table = hypotheses(AVERAGE, BRIGHT, emulate(AVERAGE, BRIGHT))
    assert table.to_numpy().tolist() == [
        ["present", "average, rounding half-away", 0, 10 * 6 * 12, True]
    ]


def test_batches_and_wide_codes_are_explained() -> None:
    one = Pool2D("average", (3, 3), (8, 8, 5), (1, 1), "same", dtype="int16")
    x = RANDOM.randint(-(2**15), 2**15, (2, 8, 8, 5)).astype(np.int16)
    output = emulate(replace(one, rounding="floor"), x)
    table = hypotheses(one, x, output)
    assert table.change[1] == "rounding floor"
    assert table.equal[1]


def test_a_pooling_of_real_numbers_is_explained_by_its_windows() -> None:
    one = Pool2D("average", (2, 2), (9, 9, 3), dtype="float16")
    x = np.random.RandomState(0).randn(9, 9, 3).astype(np.float16)
    assert hypotheses(one, x, emulate(one, x)).equal.to_list() == [True]
    wide = replace(one, stride=(1, 2))
    found = hypotheses(one, x, emulate(wide, x))
    assert found[found.equal].change.to_list() == ["stride 1x2"]


@pytest.mark.parametrize(
    ("change", "rounding"),
    [("floor", "floor"), ("half up", "half-up"), ("toward zero", "toward-zero")],
)
def test_a_changed_rule_of_a_device_is_named(change: str, rounding: str) -> None:
    capture = npulab.load(CAPTURES / "nvdla/sim-average-pool")
    layer, x, _ = npulab.target("nvdla").lift(capture)
    assert isinstance(layer, Pool2D)
    [job] = capture.jobs
    fields = Fields.of(job, CHIPS[capture.chip])
    place = fields.placed("PDP", "DST", layer.output_shape)
    memory = Memory.of(capture)
    if not memory.holds(place.memory, place.base, place.size):
        memory = memory.with_range(place.base, place.size)
    pdp.run(fields.values, fields.features, memory, None, MUTATIONS[change])
    data = memory.read(place.memory, place.base, place.size).tobytes()
    output = place.unpack(data)[..., : layer.output_shape[2]]
    table = hypotheses(layer, x, output)
    assert f"rounding {rounding}" in table[table.equal].change.tolist()
    assert table.kind[1] == "rounding"
