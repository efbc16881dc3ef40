"""The probability of a claim: Laplace's rule of succession over distinct layers, and that claims
come true as often.
"""

import numpy as np
import pandas as pd
import pytest
from claims import claims
from descriptor import addresses, decorrelated, descriptors

import npulab
from npulab.analysis.laws.summary import Summary
from npulab.captures.sweep import Sweep


def laws_of(words: np.ndarray, **parameters: np.ndarray) -> npulab.analysis.laws.Laws:
    return npulab.find_laws(words.astype(np.uint32)[:, None], pd.DataFrame(parameters))


def test_it_counts_layers_and_not_captures() -> None:
    width = np.arange(16)
    for times in (1, 3):
        (field,) = laws_of(np.repeat(width, times) + 1, width=np.repeat(width, times)).fields
        assert field.support == (16 * times,)
        assert field.probability == pytest.approx((17 / 18,))


def test_each_step_has_its_own() -> None:
    width, mode = np.arange(60) % 30, np.arange(60) // 40
    laws = laws_of(np.where(mode == 1, width * 7, width), width=width, mode=mode)
    assert laws.table[["law", "support"]].values.tolist() == [["width", 40], ["width * 7", 20]]
    assert laws.table.probability.tolist() == pytest.approx([31 / 32, 21 / 22])


def test_the_records_tell_it() -> None:
    sweep = Sweep(
        np.arange(1, 17, dtype=np.uint32)[:, None], pd.DataFrame({"width": np.arange(16)})
    )
    laws = npulab.find_laws(sweep)
    (field,) = [row for row in Summary(sweep, laws, laws.open).records() if row["kind"] == "field"]
    assert field["steps"][0]["probability"] == pytest.approx(17 / 18)


def test_claims_come_true_at_least_as_often() -> None:
    layers, unseen = decorrelated(24, 5), decorrelated(400, 105)
    laws, truth = (
        npulab.find_laws(descriptors(layers), layers, nuisance=addresses()),
        descriptors(unseen, 1),
    )
    probability, right = claims(laws, truth, unseen)
    assert len(right) > 5_000
    assert set(probability) <= {1 - 1 / (n + 2) for n in range(1, 25)}
    assert all(right[probability == one].mean() >= one for one in np.unique(probability))
