"""The probability of a claim: the share of the mass that the law keeps, and that claims come true
as often.
"""

import numpy as np
import pandas as pd
import pytest
from claims import claims
from descriptor import addresses, decorrelated, descriptors

import npulab
from npulab.analysis.laws.posterior import CLAIM, families
from npulab.analysis.laws.summary import Summary
from npulab.captures.sweep import Sweep


def laws_of(words: np.ndarray, **parameters: np.ndarray) -> npulab.analysis.laws.Laws:
    return npulab.find_laws(words.astype(np.uint32)[:, None], pd.DataFrame(parameters))


def test_it_counts_layers_and_not_captures() -> None:
    width = np.arange(16)
    found = []
    for times in (1, 3):
        (field,) = laws_of(np.repeat(width, times) + 1, width=np.repeat(width, times)).fields
        assert field.support == (16 * times,)
        found.append(field.probability)
    assert found[0] == pytest.approx(found[1], abs=1e-4)
    (more,) = laws_of(np.arange(64) + 1, width=np.arange(64)).fields
    assert found[0][0] < more.probability[0] < 1


def test_each_step_has_its_own() -> None:
    width, mode = np.arange(60) % 30, np.arange(60) // 40
    laws = laws_of(np.where(mode == 1, width * 7, width), width=width, mode=mode)
    assert laws.table[["law", "support"]].values.tolist() == [["width", 40], ["width * 7", 20]]
    often, rare = laws.table.probability
    assert 0.9 < rare < often < 1


def test_the_records_tell_it() -> None:
    sweep = Sweep(
        np.arange(1, 17, dtype=np.uint32)[:, None], pd.DataFrame({"width": np.arange(16)})
    )
    laws = npulab.find_laws(sweep)
    (field,) = [row for row in Summary(sweep, laws, laws.open).records() if row["kind"] == "field"]
    assert field["steps"][0]["probability"] == laws.fields[0].probability[0]


def test_a_bit_is_claimed_if_it_is_probable_enough() -> None:
    width = np.arange(40)
    laws = laws_of(np.minimum(width, 20), width=width)
    layers = {"width": np.arange(200)}
    certainty, (_, mask) = laws.certainty(layers), laws.predict(layers)
    assert certainty.shape == (200, 1, 32)
    places = np.arange(32)
    claimed = (mask[:, :, None] >> places.astype(np.uint32) & 1).astype(bool)
    assert np.array_equal(claimed, certainty >= CLAIM)
    assert not certainty[:, 0, 5:].any()


def test_a_rival_has_the_mass_of_what_it_costs_more() -> None:
    """Two parameters that always agree: whichever the law reads, the other may be read."""
    width = np.arange(8, 72)
    laws = laws_of(width, width=width, height=width)
    layers = {"width": np.arange(8, 72), "height": np.arange(72, 8, -1)}
    (field,) = laws.fields
    (rival,) = field.rivals
    assert {field.text, rival} == {"width", "height"}
    apart = (layers["width"] ^ layers["height"])[:, None] >> np.arange(7) & 1 == 1
    assert apart.any()
    told = laws.certainty(layers)[:, 0, :7]
    assert told[apart].max() <= 1 / (1 + families()["rival"].prior)


WORDS = 12  # of the descriptor's 38: a third of the search


@pytest.fixture(scope="module")
def of_descriptor() -> npulab.analysis.laws.Laws:
    layers = decorrelated(24, 5)
    words, ignored = descriptors(layers)[:, :WORDS], addresses()[:WORDS]
    return npulab.find_laws(words, layers, nuisance=ignored)


def test_a_layer_alone_is_as_certain_as_with_others(
    of_descriptor: npulab.analysis.laws.Laws,
) -> None:
    asked = decorrelated(5, 7)
    together = of_descriptor.certainty(asked)
    for row in range(len(asked)):
        assert np.array_equal(of_descriptor.certainty(asked.iloc[[row]])[0], together[row])


def test_claims_come_true_at_least_as_often(of_descriptor: npulab.analysis.laws.Laws) -> None:
    unseen = decorrelated(400, 105)
    probability, right = claims(of_descriptor, descriptors(unseen, 1)[:, :WORDS], unseen)
    assert len(right) > 5_000
    assert probability.min() >= CLAIM
    assert right.mean() >= probability.mean() - 0.001


@pytest.mark.parametrize("name", families())
def test_a_family_has_a_prior_and_words(name: str) -> None:
    family = families()[name]
    assert 0 < family.prior <= 1
    assert family.reason in ("rivals", "threshold", "few rows", "combination")
    assert family.text
