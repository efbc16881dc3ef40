"""Sweeps of some jobs of captures: how they are chosen, and that they say of how many they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_roles import capture, load, multiply, striped

import npulab
from npulab.captures.capture import Capture
from npulab.captures.roles import COUNT, INDEX
from npulab.captures.sources import Answer
from npulab.captures.sweep import Sweep, load_sweep, save_sweep, sweep_of


@pytest.fixture(scope="module")
def stripes() -> list[Capture]:
    """24 captures of 4 to 11 jobs."""
    rng = np.random.default_rng(3)
    return [striped(rng, number)[0] for number in range(24)]


def test_a_sweep_of_main_jobs_says_of_how_many_they_are(stripes: list[Capture]) -> None:
    total = sum(len(one.jobs) for one in stripes)
    found = sweep_of(stripes, "main")
    assert found.looked_at == f"24 first jobs LOAD of {total} jobs of 24 captures"
    sentence = f"24 first jobs LOAD of {total} jobs of 24 captures are looked at"
    counts = f"24 jobs of 2 words, {found.bits} bits vary, 2 parameters"
    assert repr(found) == f"Sweep(main, demo, x, board: {counts}); {sentence}"
    assert sentence.removesuffix(" are looked at") in found._repr_html_()
    assert found.counts == {"jobs": 24, "words": 2, "parameters": 2}
    part = found[:6][[0, 1]]
    assert part.looked_at == f"2 of 24 first jobs LOAD of {total} jobs of 24 captures"
    assert found[::-1].looked_at == found.looked_at
    assert repr(found[:1]).endswith("is looked at")


@pytest.mark.parametrize(
    ("chosen", "looked_at", "rows"),
    [
        ({"role": "LOAD memory 0"}, "jobs LOAD memory 0", 60),
        ({"block": "MULTIPLY"}, "jobs MULTIPLY", 60),
        ({"job": 0}, "jobs number 0", 24),
    ],
)
def test_a_role_a_block_or_a_number_chooses_the_jobs(
    stripes: list[Capture], chosen: dict[str, Any], looked_at: str, rows: int
) -> None:
    found = sweep_of(stripes, **chosen)
    assert len(found) == rows
    assert found.looked_at.startswith(f"{rows} {looked_at} of ")
    assert ({INDEX, COUNT} <= {*found.parameters}) == ("job" not in chosen)


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        ({"role": "LOAD memory 9"}, "role: got 'LOAD memory 9', allowed are LOAD memory 1, LOAD"),
        ({"block": "STORE"}, "block: got 'STORE', allowed are LOAD, MULTIPLY"),
        (
            {"block": "LOAD"},
            "block: got LOAD, which has the roles LOAD memory 1, LOAD memory 2, LOAD memory 0, "
            "LOAD memory 3, allowed is a block with one role; role= or --role takes one of them",
        ),
        ({"job": 4}, r"got task 4, it has 0 to 3"),
        ({"job": 2}, "captures: got block LOAD .* and MULTIPLY"),
        ({"job": 0, "role": "MULTIPLY"}, "got role and job, allowed is one of role, block and job"),
    ],
)
def test_what_the_captures_do_not_have_is_refused(
    stripes: list[Capture], chosen: dict[str, Any], text: str
) -> None:
    with pytest.raises((LookupError, ValueError), match=text):
        sweep_of(stripes, **chosen)


def test_the_file_keeps_what_is_looked_at(stripes: list[Capture], tmp_path: Path) -> None:
    found = sweep_of(stripes, "part", block="MULTIPLY")
    again = load_sweep(save_sweep(found, tmp_path / "part.npz"))
    assert again.looked_at == found.looked_at
    with pytest.raises(ValueError, match="role: got 'MULTIPLY' for a file of one sweep, allowed"):
        load_sweep(tmp_path / "part.npz", role="MULTIPLY")


def test_a_sweep_of_all_jobs_says_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    ones = [capture(f"c{number}", [multiply(rng)], size=number) for number in range(9)]
    found = sweep_of(ones)
    assert (found.looked_at, found.unit) == ("", "capture")
    assert "looked" not in repr(found) + found._repr_html_() + repr(npulab.find_laws(found))
    with np.load(save_sweep(found, tmp_path / "all.npz")) as file:
        assert "looked_at" not in file
    assert "looked_at" not in npulab.correlate(found).attrs
    # one role, several times in each capture: these are all jobs
    runs = [capture(f"c{n}", [multiply(rng) for _ in range(1 + n % 3)], size=n) for n in range(9)]
    assert sweep_of(runs, role="MULTIPLY").looked_at == ""


class Stripes:
    """A source of streams: a load of weights, then a load and a multiplication for each stripe."""

    record = {"source": "stripes"}  # noqa: RUF012

    def __call__(self, parameters: Any, seed: int = 0) -> Answer:
        rng = np.random.default_rng(int(parameters["input_w"]) + 100 * seed)
        width = int(parameters["input_w"])
        jobs = [load(rng, 1)]
        for stripe in range(1 + width % 3):
            job = multiply(rng)
            words = job.words.copy()
            words[0] = width + 64 * stripe
            jobs += [load(rng, 0), npulab.captures.capture.Job("MULTIPLY", words)]
        return Answer("captured", capture("c", jobs))


RANGES = {"op": [0], "input_h": [8], "input_w": (4, 40), "input_c": [8], "output_c": [8]}


def test_explore_learns_the_words_of_a_role(tmp_path: Path) -> None:
    whole = npulab.explore(Stripes(), RANGES, budget=8)
    assert whole.sweep is not None
    assert whole.looked_at.startswith(f"{len(whole.sweep)} first jobs LOAD of ")
    found = npulab.explore(Stripes(), RANGES, budget=24, role="MULTIPLY", store=tmp_path / "role")
    assert isinstance(found.sweep, Sweep)
    assert {INDEX, COUNT} <= {*found.sweep.parameters}
    assert found.looked_at.startswith(f"{len(found.sweep)} jobs MULTIPLY of ")
    assert found.laws is not None
    assert found.laws.looked_at == found.looked_at
    words, proved = found.laws.predict(found.sweep.parameters)
    assert not ((words ^ found.sweep.words) & proved).any()
    assert proved.any()
    assert found.surprises.empty
    with pytest.raises(ValueError, match="got an exploration with role MULTIPLY, allowed is"):
        npulab.explore(Stripes(), RANGES, budget=24, store=tmp_path / "role")
    with pytest.raises(LookupError, match="role: got 'STORE', allowed are LOAD"):
        npulab.explore(Stripes(), RANGES, budget=8, role="STORE")
    with pytest.raises(ValueError, match="got role and block, allowed is one of them"):
        npulab.explore(Stripes(), RANGES, budget=8, role="STORE", block="LOAD")
