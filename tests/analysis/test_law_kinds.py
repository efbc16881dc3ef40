"""Kinds of law that compilers need: windows of a convolution, buffers behind each other, and modes of which only some
follow a law."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd

from npulab.analysis.laws import find_laws
from npulab.analysis.laws.found import Laws


def layers(n: int, seed: int) -> pd.DataFrame:
    """Convolutions as compilers are asked for them, with the sizes of their outputs."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame({name: random.integers(8, 100, n) for name in ("input_h", "input_c", "output_c")})
    frame["kernel"], frame["stride"], same = random.integers(1, 8, n), random.integers(1, 4, n), random.integers(0, 2, n)
    frame["output_h"] = np.where(same, -(-frame["input_h"] // frame["stride"]),
                                 (frame["input_h"] - frame["kernel"]) // frame["stride"] + 1)
    return frame.assign(same=same)


def found(words: np.ndarray, frame: pd.DataFrame) -> Laws:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return find_laws(words.astype(np.uint32), frame)


def windows(p: pd.DataFrame) -> np.ndarray:
    reach = (p["output_h"] - 1) * p["stride"] + p["kernel"]
    padding = np.maximum(reach - p["input_h"], 0)
    return np.stack([np.minimum(reach, p["input_h"]) - 1, padding // 2, -(-padding // 2)], 1)


def test_what_the_windows_of_a_convolution_reach_and_need() -> None:
    frame, unseen = layers(64, 1), layers(300, 2)
    laws = found(windows(frame), frame)
    score = laws.score(windows(unseen), unseen)
    assert score.wrong == 0
    assert score.share > 0.95
    law, = (law for law in laws.fields if law.word == 0)
    assert law.text == "min((output_h - 1) * stride + kernel, input_h) - 1"


def addresses(p: pd.DataFrame) -> np.ndarray:
    first, second = (-(-p[size] * p[channels] // 16) for size, channels in
                     (("input_h", "input_c"), ("output_h", "output_c")))
    return np.stack([16 * first, 16 * (first + second)], 1)


def test_an_address_behind_two_buffers() -> None:
    frame, unseen = layers(64, 3), layers(300, 4)
    laws = found(addresses(frame), frame)
    score = laws.score(addresses(unseen), unseen)
    assert score.wrong == 0
    assert score.share > 0.9


def tiled(p: pd.DataFrame) -> np.ndarray:
    """A word that is a plain size in one mode, and what nobody knows in the other."""
    chosen = np.random.default_rng(len(p)).integers(0, 128, len(p))
    return np.where(p["same"] == 1, p["input_c"] - 1, chosen)[:, None]


def test_a_mode_that_follows_a_law_is_claimed_and_the_other_is_not() -> None:
    frame, unseen = layers(120, 5), layers(300, 6)
    laws = found(tiled(frame), frame)
    law, = laws.fields
    assert law.text == "when same == 1: input_c - 1"
    assert law.stated == law.text
    words, mask = laws.predict(unseen)
    mode = (unseen["same"] == 1).to_numpy()
    assert (mask[mode, 0] & 0x7F == 0x7F).all()
    assert (mask[~mode] == 0).all()
    assert ((words ^ tiled(unseen)) & mask == 0).all()
    assert (law.which(unseen) == np.where(mode, 0, -1)).all()
    plan: Any = laws.next_captures(4, candidates=unseen)
    assert len(plan) == 4


def test_noise_is_no_mode() -> None:
    """No condition is found that selects captures on which a law is right by chance."""
    frame = layers(64, 7)
    random = np.random.default_rng(8)
    near = np.where(random.random(64) < 0.8, frame["input_c"], random.integers(0, 128, 64))
    laws = found(np.stack([near, random.integers(0, 2 ** 14, 64)], 1), frame)
    unseen = layers(200, 9)
    assert (laws.predict(unseen)[1] == 0).all()
