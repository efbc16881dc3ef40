"""Correlation of fields and parameters against sums written out."""

from __future__ import annotations

import csv
import math
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from npulab.analysis.correlate import (
    MOST_BINS,
    PER_CELL,
    best_related,
    bit_effects,
    correlate,
    flips,
    related,
)
from npulab.registers.map import RegisterMap


def bins_by_hand(values: list[Any], bins: int) -> list[int]:
    """Equal counts, equal values together; a bin each where there are few."""
    distinct = sorted(set(values))
    if len(distinct) <= bins:
        return [distinct.index(value) for value in values]
    below = {value: sum(other < value for other in values) for value in distinct}
    return [int((below[value] + values.count(value) / 2) * bins // len(values)) for value in values]


def information_by_hand(a: list[int], b: list[int]) -> float:
    def entropy(counts: Counter[Any]) -> float:
        return -sum(n / len(a) * math.log2(n / len(a)) for n in counts.values())

    ours, theirs, both = Counter(a), Counter(b), Counter(zip(a, b, strict=True))
    chance = (len(both) - len(ours) - len(theirs) + 1) / (2 * len(a) * math.log(2))
    least = min(entropy(ours), entropy(theirs))
    return min(max(entropy(ours) + entropy(theirs) - entropy(both) - chance, 0), least)


def ranks_by_hand(values: list[Any]) -> list[float]:
    return [
        sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values
    ]


def pearson_by_hand(a: list[float], b: list[float]) -> float:
    x, y = sum(a) / len(a), sum(b) / len(b)
    top = sum((p - x) * (q - y) for p, q in zip(a, b, strict=True))
    below = math.sqrt(sum((p - x) ** 2 for p in a) * sum((q - y) ** 2 for q in b))
    return top / below if below else 0.0


def sweep(rows: int = 90) -> tuple[np.ndarray, pd.DataFrame]:
    rng = np.random.default_rng(7)
    frame = pd.DataFrame(
        {
            "channels": rng.integers(1, 200, rows),
            "kernel": rng.choice([1, 3, 5], rows),
            "relu": rng.integers(0, 2, rows),
            "scale": rng.uniform(1e-3, 1, rows).astype(np.float32),
            "fixed": np.full(rows, 4),
            "mode": rng.choice(["depthwise", "dense"], rows),
        }
    )
    words = np.zeros((rows, 4), np.uint32)
    words[:, 0] = frame["channels"] + frame["kernel"] * 2**16
    words[:, 1] = rng.integers(0, 2**9, rows) * 2**3
    words[:, 2] = frame["scale"].to_numpy(np.float32).view(np.uint32)
    words[:, 3] = frame["relu"] * 2**31 + 5
    return words, frame


def test_every_figure_is_the_sum_written_out() -> None:
    words, frame = sweep()
    bins = max(2, min(MOST_BINS, math.isqrt(len(words) // PER_CELL)))
    assert 2 < bins < 100, "both ways of binning are met"
    table = correlate(words, frame)
    assert len(table) == table["field"].nunique() * 6
    for row in table.itertuples():
        raw = [int(word) >> row.lsb & 2**row.width - 1 for word in words[:, row.word]]
        other = frame[row.parameter].tolist()
        assert row.mutual_information == pytest.approx(
            information_by_hand(bins_by_hand(raw, bins), bins_by_hand(other, bins)), abs=1e-9
        )
        if row.parameter == "mode":
            assert (row.pearson, row.spearman) == (0, 0)
        else:
            assert row.pearson == pytest.approx(pearson_by_hand(raw, other), abs=1e-9)
            assert row.spearman == pytest.approx(
                pearson_by_hand(ranks_by_hand(raw), ranks_by_hand(other)), abs=1e-9
            )
    assert table["mutual_information"].is_monotonic_decreasing
    assert not table.isna().any(axis=None)
    assert np.isfinite(table[["pearson", "spearman", "mutual_information"]]).all(axis=None)


def test_runs_of_varying_bits_are_fields_and_equal_ones_are_hits() -> None:
    words, frame = sweep()
    table = correlate(words, frame)
    assert {("w0_0_8", "channels"), ("w3_31_1", "relu")} <= set(
        table.loc[table["law"], ["field", "parameter"]].itertuples(index=False, name=None)
    )
    assert set(table.loc[table["law"], "parameter"]) == {"channels", "relu"}, (
        "the kernel's bit 0 never varies"
    )
    never = table[table["parameter"] == "fixed"]
    assert (never[["pearson", "spearman", "mutual_information"]] == 0).all(axis=None)


def test_fields_of_a_map_are_taken_as_meant() -> None:
    rows = 40
    frame = pd.DataFrame(
        {
            "size": np.arange(rows),
            "scale": np.linspace(0.1, 2, rows),
            "zero_point": np.arange(rows) - 20,
        }
    )
    words = np.zeros((rows, 3), np.uint32)
    words[:, 0] = np.arange(rows) - 1 & 0x3F  # one less, and wraps
    words[:, 1] = frame["scale"].to_numpy(np.float32).view(np.uint32)
    words[:, 2] = frame["zero_point"] & 0xFF
    text = """offset,register,field,lsb,width,value
0,SIZE,size,0,6,signed +1
4,SCALE,scale,0,32,f32
8,ZERO,zero,0,8,signed
8,ZERO,rest,8,24,
"""
    registers = RegisterMap(csv.DictReader(text.splitlines()))
    table = correlate(words, frame, registers).set_index(["field", "parameter"])
    assert table.loc[("scale", "scale"), "law"]
    assert table.loc[("zero", "zero_point"), "law"]
    assert table.loc[("scale", "scale"), "pearson"] == pytest.approx(1)
    assert (table.loc["rest", ["pearson", "spearman", "mutual_information"]] == 0).all(axis=None)
    assert not table.loc["rest", "law"].any(), "a constant is no hit"
    with pytest.raises(
        ValueError,
        match="registers: got a map of 3 words, allowed is a map of 2 words, as the captures have",
    ):
        correlate(words[:, :2], frame, registers)


def test_a_field_that_is_split_and_values_that_are_no_numbers() -> None:
    words = np.array([[n & 3, n // 4] for n in range(30)], np.uint32)
    rows = ["offset,field,lsb,width,at", "0,n,0,2,0", "4,n,0,30,2", "0,more,2,30,", "4,top,30,2,"]
    split = RegisterMap(csv.DictReader(rows))
    found = correlate(words, {"n": np.arange(30)}, split).iloc[0]
    assert (found["field"], found["word"], found["lsb"], found["width"], found["law"]) == (
        "n",
        0,
        0,
        32,
        True,
    )
    floats = RegisterMap([{"offset": 0, "field": "x", "lsb": 0, "width": 32, "value": "f32"}])
    patterns = np.array(
        [[0x7FC00000 + n % 2] for n in range(8)], np.uint32
    )  # none of them a number
    table = correlate(patterns, {"relu": [0, 1] * 4}, floats)
    assert table.loc[0, "pearson"] == pytest.approx(1)


def test_laws_give_fields_and_hits() -> None:
    words, frame = sweep()
    law = SimpleNamespace(
        word=1, lsb=3, width=4, steps=(("kernel == 3", "channels // 2"), ("else", "0"))
    )
    table = correlate(words, frame, laws=SimpleNamespace(fields=(law,)))
    assert {"w1_3_4", "w1_7_5", "w0_0_8"} <= set(table["field"]), (
        "bits without a law are runs of their own"
    )
    mine = table[table["field"] == "w1_3_4"].set_index("parameter")["law"]
    assert mine.to_dict() == {
        "channels": True,
        "kernel": True,
        "relu": False,
        "scale": False,
        "fixed": False,
        "mode": False,
    }


def test_bits_and_their_best_parameters() -> None:
    words, frame = sweep(200)
    effects = bit_effects(words, frame)
    assert effects.shape == (4, 32, 6)
    bins = min(MOST_BINS, 200 // (2 * PER_CELL))
    for word, bit in ((0, 0), (0, 7), (1, 3), (2, 30), (3, 31), (3, 0)):
        flags = [int(one) >> bit & 1 for one in words[:, word]]
        want = [
            information_by_hand(flags, bins_by_hand(frame[name].tolist(), bins)) for name in frame
        ]
        assert effects[word, bit] == pytest.approx(want, abs=1e-9)
        best = best_related(flags, frame, n=2)
        assert [name for name, _ in best] == [
            name
            for _, name in sorted(
                ((-one, name) for name, one in zip(frame, want, strict=True) if one > 0),
                key=lambda pair: pair[0],
            )
        ][:2]
    assert best_related(words[:, 3] >> 31, frame)[0] == ("relu", pytest.approx(1, abs=0.01))
    assert best_related(words[:, 3] & 1, frame) == [], "a bit that never changes goes with nothing"
    both = np.stack([words[:, 3] >> 31, words[:, 0] & 1], axis=1)
    assert best_related(both, frame) == [
        best_related(both[:, 0], frame),
        best_related(both[:, 1], frame),
    ]


def test_best_parameters_of_a_field_are_those_of_the_table() -> None:
    words, frame = sweep()
    table = correlate(words, frame).groupby("field")[["parameter", "mutual_information"]]
    for word, lsb, width in ((0, 0, 8), (1, 3, 9)):
        found = related(words[:, word] >> lsb & 2**width - 1, frame, n=6)
        rows = table.get_group(f"w{word}_{lsb}_{width}").query("mutual_information > 0")
        assert dict(found) == pytest.approx(dict(rows.itertuples(index=False, name=None)))
        assert [value for _, value in found] == sorted((value for _, value in found), reverse=True)
    assert related(np.full(90, 7), frame) == []
    with pytest.raises(ValueError, match="n: got 0"):
        related(words[:, 0], frame, 0)


def test_chance_is_taken_off() -> None:
    rng = np.random.default_rng(0)
    found = [
        bit_effects(
            rng.integers(0, 2**32, (200, 2), np.uint32), {"noise": rng.integers(0, 99, 200)}
        ).mean()
        for _ in range(3)
    ]
    assert max(found) < 0.02, "20 bins and 2 values would give 0.07 bits by chance"


def test_flips() -> None:
    words, frame = sweep()
    found = flips(words)
    assert found.shape == (4, 32)
    for word, bit in ((0, 3), (1, 5), (3, 31), (3, 0)):
        flags = [int(one) >> bit & 1 for one in words[:, word]]
        assert found[word, bit] == pytest.approx(
            sum(a != b for a, b in pairwise(flags)) / (len(flags) - 1)
        )
    assert flips(words, frame, "relu")[3, 31] == 1 / 89
    assert found[3, 31] > 0.3
    assert np.array_equal(
        flips(SimpleNamespace(words=words, parameters=frame), sort="channels"),
        flips(words, frame, "channels"),
    ), "a sweep has its parameters"
    with pytest.raises(LookupError, match="sort: got 'depth', known are channels, kernel"):
        flips(words, frame, "depth")


@pytest.mark.parametrize(
    ("words", "parameters", "sentence"),
    [
        (
            np.zeros((0, 2), np.uint32),
            {"a": []},
            "words: got 0 captures, allowed are two or more to compare",
        ),
        (
            np.zeros((1, 2), np.uint32),
            {"a": [1]},
            "words: got 1 capture, allowed are two or more to compare",
        ),
        ([[1, 2], [3]], {"a": [1, 2]}, "words: got rows of different lengths, allowed is"),
        (
            np.zeros((2, 2)),
            {"a": [1, 2]},
            "words: got float64 of shape .*, allowed are 0 to 0xffffffff",
        ),
        (
            [[-1], [3]],
            {"a": [1, 2]},
            r"words: got int64 of shape \(2, 1\), allowed are 0 to 0xffffffff",
        ),
        (
            [[1], [3]],
            {"a": [1, np.nan]},
            "parameters: got nan in 'a' row 1, allowed are finite numbers",
        ),
        (
            [[1], [3]],
            {"a": [1, np.inf]},
            "parameters: got inf in 'a' row 1, allowed are finite numbers",
        ),
        ([[1], [3]], {"a": ["x", None]}, "parameters: got None in 'a' row 1"),
        (
            [[1], [3]],
            {"a": [1, 2, 3]},
            "parameters: got shape .* in 'a', allowed is .2,., a value for each capture",
        ),
        ([[1], [3]], {}, "parameters: got no columns"),
        ([[1], [3]], None, "parameters: got NoneType, allowed is a DataFrame or a mapping"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(words: Any, parameters: Any, sentence: str) -> None:
    for ask in (correlate, bit_effects):
        with pytest.raises(ValueError, match=sentence):
            ask(words, parameters)


@pytest.mark.parametrize(
    ("bit", "n", "sentence"),
    [
        ([0, 2], 3, "bit: got 2, allowed are 0 and 1"),
        ([[[0]]], 3, "bit: got shape"),
        ([0, 1], 0, "n: got 0"),
        ([0], 3, "got 1 capture, allowed"),
        ([0, 1, 1], 3, "parameters: got shape"),
    ],
)
def test_a_bad_bit_is_refused(bit: Any, n: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        best_related(bit, {"a": [1, 2]} if bit != [0] else {"a": [1]}, n)


def test_nothing_varies() -> None:
    assert correlate(np.ones((5, 2), np.uint32), {"a": range(5)}).empty
    assert not bit_effects(np.ones((5, 2), np.uint32), {"a": np.arange(5)}).any()
    assert not flips(np.ones((5, 2), np.uint32)).any()
