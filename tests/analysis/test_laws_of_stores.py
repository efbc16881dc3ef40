"""Laws, figures and scores of a store are those of the same captures in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import npulab
from npulab.analysis.correlate import correlate, flips
from npulab.analysis.laws.whole import find_laws_on, prove, score_store
from npulab.captures import sweep_store
from npulab.captures.sweep import Sweep
from npulab.captures.sweep_store import SweepStore, open_store
from npulab.cli import main

pytest.importorskip("duckdb")
ROWS = 3000


def planted() -> Sweep:
    """Three words: width and height; a size that is limited where the width is one of 1 capture in
    170; and a bit that 1 capture in 1,000 has."""
    random = np.random.default_rng(4)
    width, height = random.integers(1, 100, (2, ROWS))
    wide = random.random(ROWS) < 0.006
    width = np.where(wide, random.integers(140, 200, ROWS), width)
    mode = random.integers(0, 2, ROWS)
    size = np.minimum((width * 3 + 7) // 8, 50)
    rare = np.arange(ROWS) % 1000 == 999
    words = np.stack([width | height << 16, size, rare + mode * 4], 1)
    return Sweep(words.astype(np.uint32), {"width": width, "height": height, "mode": mode})


SWEEP = planted()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> SweepStore:
    made = open_store(tmp_path_factory.mktemp("laws") / "s.store")
    for number, start in enumerate(range(0, ROWS, 1250)):
        made = made.append(SWEEP[start : start + 1250], f"b{number}")
    return made


def test_counterexamples_go_back_into_the_sample(store: SweepStore) -> None:
    first = npulab.find_laws(store.sample(100, 2))
    before = prove(first, store)
    wrong = before.table[before.table["wrong"] > 0]
    assert not before.holds
    assert {*wrong["word"]} == {1}  # 100 captures do not show the limit
    numbers = wrong["first"].to_numpy()
    predicted, _ = first.predict(SWEEP.parameters)
    for field, number in zip(wrong.itertuples(), numbers, strict=True):
        different = (predicted ^ SWEEP.words)[:, 1] >> np.uint32(field.lsb)
        rows = np.flatnonzero(different & np.uint32(2**field.width - 1))
        assert (len(rows), rows[0]) == (field.wrong, number)
    assert before.unseen == ((2, 0),)
    assert len(before.holding.fields) == len(first.fields) - len(wrong)

    proof = find_laws_on(store, 100, seed=1)
    assert proof.holds
    assert not proof.unseen
    assert proof.captures == ROWS
    assert 100 < len(proof.laws.words) < 400
    words, mask = proof.holding.predict(SWEEP.parameters)
    assert not ((words ^ SWEEP.words) & mask).any()
    size = next(law for law in proof.holding.fields if law.word == 1)
    assert (size.lsb, size.width) == (0, 6)
    assert np.array_equal(size.values(SWEEP.parameters), SWEEP.words[:, 1])
    assert f"hold on all {ROWS} captures" in str(proof)
    assert [row["wrong"] for row in proof.records()] == [0] * len(proof.table)


def test_a_score_is_that_of_all_captures(
    store: SweepStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    laws = npulab.find_laws(SWEEP[:100])
    known = laws.score(SWEEP)
    found = laws.score(store)
    assert (found.cells, found.claimed, found.wrong) == (known.cells, known.claimed, known.wrong)
    assert found.by_bit.equals(known.by_bit)
    assert found.mistakes == known.mistakes[:1000]
    monkeypatch.setattr(sweep_store, "AT_ONCE", 1)
    assert score_store(laws, store).by_bit.equals(found.by_bit)


def test_flips_and_figures_are_those_of_all_captures(
    store: SweepStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert np.array_equal(flips(store), flips(SWEEP))
    assert np.allclose(flips(store, sort="width"), flips(SWEEP, sort="width"))
    with pytest.raises(LookupError, match=r"sort: got 'widht', allowed are width"):
        flips(store, sort="widht")
    assert correlate(store).equals(correlate(SWEEP))
    monkeypatch.setattr("npulab.analysis.correlate.MOST_CORRELATED", 500)
    assert "500 captures at random of 3000 captures" in correlate(store).attrs["looked_at"]


def test_the_shell_takes_a_store(
    store: SweepStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(store.path)]) == 0
    assert f"{ROWS} captures of 3 words" in capsys.readouterr().out
    assert main(["list", str(store.path)]) == 0
    assert f"{ROWS} captures" in capsys.readouterr().out
    small = open_store(tmp_path / "x.store").append(SWEEP[:60], "a")
    assert main(["laws", str(small.path)]) == 0
    assert "21 varying bits: 21 law" in capsys.readouterr().out
