"""Kinds of law that compilers need: windows of a convolution, buffers behind each other, and modes
of which only some follow a law."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from npulab.analysis.laws import find_laws
from npulab.analysis.laws.expressions import Columns
from npulab.analysis.laws.found import Laws
from npulab.analysis.laws.library import Names, make_library
from npulab.analysis.laws.nearly import flags
from npulab.analysis.laws.pool import Target, _rounded_up
from npulab.notebook.widgets.law_picture import scatter


def layers(n: int, seed: int) -> pd.DataFrame:
    """Convolutions as compilers are asked for them, with the sizes of their outputs."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {name: random.integers(8, 100, n) for name in ("input_h", "input_c", "output_c")}
    )
    frame["kernel"], frame["stride"], same = (
        random.integers(1, 8, n),
        random.integers(1, 4, n),
        random.integers(0, 2, n),
    )
    frame["output_h"] = np.where(
        same,
        -(-frame["input_h"] // frame["stride"]),
        (frame["input_h"] - frame["kernel"]) // frame["stride"] + 1,
    )
    return frame.assign(same=same)


def words_of(p: pd.DataFrame) -> np.ndarray:
    """Words by windows, by buffers behind each other, and a word that is a plain size in one mode
    and random in the other."""
    reach = (p["output_h"] - 1) * p["stride"] + p["kernel"]
    padding = np.maximum(reach - p["input_h"], 0)
    first, second = (
        -(-p[size] * p[channels] // 16)
        for size, channels in (("input_h", "input_c"), ("output_h", "output_c"))
    )
    unknown = np.random.default_rng(len(p)).integers(0, 128, len(p))
    return np.stack(
        [
            np.minimum(reach, p["input_h"]) - 1,
            padding // 2,
            -(-padding // 2),
            16 * first,
            16 * (first + second),
            np.where(p["same"] == 1, p["input_c"] - 1, unknown),
        ],
        1,
    ).astype(np.uint32)


def quiet(words: np.ndarray, frame: pd.DataFrame) -> Laws:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return find_laws(words, frame)


@pytest.fixture(scope="module")
def laws() -> Laws:
    frame = layers(72, 1)
    return quiet(words_of(frame), frame)


UNSEEN = layers(300, 2)


def test_sizes_whose_products_no_number_holds_are_rounded_up() -> None:
    """Products of these exceed 63 bits, and their differences wrap; the law of a plain size is
    found beside them.
    """
    random = np.random.default_rng(1)
    sizes = {name: random.integers(1, 2**31, 16) for name in ("width", "height")}
    words = -(-(sizes["width"] + 3) // 4)
    target = Target(
        words.astype(np.uint32),
        32,
        np.full(16, 32.0),
        make_library(Columns(sizes), Names([*sizes]), 1000),
    )
    found = [
        str(make(i))
        for make, cost, agree in _rounded_up(target)
        for i in range(len(cost))
        if agree[i].all()
    ]
    assert found == ["ceil((width + 3) / 4)"]


def test_what_the_windows_of_a_convolution_reach_and_need(laws: Laws) -> None:
    words, mask = laws.predict(UNSEEN)
    assert ((words ^ words_of(UNSEEN)) & mask == 0).all()
    assert (mask[:, :3] == np.bitwise_or.reduce(words_of(UNSEEN)[:, :3])).mean() > 0.9
    (law,) = (law for law in laws.fields if law.word == 0)
    assert law.text == "min((output_h - 1) * stride + kernel, input_h) - 1"


def test_an_address_behind_two_buffers(laws: Laws) -> None:
    (law,) = (law for law in laws.fields if law.word == 4)
    assert " + " in law.text
    assert (law.values(UNSEEN) == (words_of(UNSEEN)[:, 4] >> law.lsb) % 2**law.width).all()


def test_a_mode_that_follows_a_law_is_claimed_and_the_other_is_not(laws: Laws) -> None:
    (law,) = (law for law in laws.fields if law.word == 5)
    assert law.text == law.stated == "when same == 1: input_c - 1"
    mask = laws.predict(UNSEEN)[1][:, 5]
    mode = (UNSEEN["same"] == 1).to_numpy()
    assert (mask[mode] & 0x7F == 0x7F).mean() > 0.9
    assert (mask[~mode] == 0).all()
    assert (law.which(UNSEEN) == np.where(mode, 0, -1)).all()
    assert len(laws.next_captures(4, candidates=UNSEEN)) == 4
    assert any(
        row["law"] == "input_c - 1" and row["when"] == "same == 1"
        for row in laws.table.to_dict("records")
    )


def test_a_picture_says_which_captures_have_no_law(laws: Laws) -> None:
    values = laws.words[:, 5]
    (law,) = (law for law in laws.fields if law.word == 5)
    shown = scatter(law, laws, "w5", values, "input_c")
    mode = int(laws.parameters["same"].sum())
    assert f"{mode} as the law has them" in shown["text"]
    assert sum(point[4] for point in shown["points"] if point[2] == -1) == len(values) - mode
    assert {curve["step"] for curve in shown["curves"] if curve["kind"] == "law"} == {0}


@pytest.mark.long
def test_noise_is_no_mode() -> None:
    """No condition is found that selects captures on which a law is right by chance."""
    frame, random = layers(64, 7)[["input_h", "input_c", "same"]], np.random.default_rng(8)
    near = np.where(random.random(64) < 0.8, frame["input_c"], random.integers(0, 128, 64))
    found = quiet(np.stack([near, random.integers(0, 2**14, 64)], 1).astype(np.uint32), frame)
    assert (found.predict(UNSEEN)[1] == 0).all()


def false_laws(seed: int) -> list[str]:
    """The fields that are claimed of the words of some layers and the parameters of others."""
    words, others = words_of(layers(32, seed))[:, :4], layers(32, seed + 1000)
    laws = quiet(words, others)
    _, mask = laws.predict(UNSEEN)
    moved = np.bitwise_or.reduce(words ^ words[0])
    return [f"seed {seed}: {law}" for law in laws.fields if (mask & moved)[:, law.word].any()]


def test_parameters_of_other_layers_have_no_laws() -> None:
    assert false_laws(0) == []


@pytest.mark.long
def test_parameters_of_a_hundred_other_sweeps_have_at_most_one_law() -> None:
    assert sum(len(false_laws(seed)) > 0 for seed in range(100)) <= 1


# What is nearly true


def few(n: int = 33) -> pd.DataFrame:
    random = np.random.default_rng(11)
    frame = pd.DataFrame(
        {
            "pad_w": random.integers(0, 16, n),
            "kernel_offset": 16 * random.integers(0, 3, n),
            "passes": random.integers(1, 3, n),
            "relu": 1,
        }
    )
    frame.loc[[3, 9, 14, 20, 30], "relu"] = 0
    return frame


def details(laws: Laws) -> dict[tuple[int, int], str]:
    return {(row["word"], row["bit"]): row["detail"] for row in laws.open.to_dict("records")}


def test_a_flag_that_fits_every_capture_is_told_though_few_prove_it() -> None:
    """A bit that is ``relu`` in 33 of 33 captures, of which five are clear."""
    frame = few()
    said = details(quiet(np.stack([frame["relu"], frame["pad_w"]], 1).astype(np.uint32), frame))
    assert said[0, 0] == "relu fits all 33, 5 of them clear: too few to claim"


def test_a_flag_with_exceptions_is_told_with_what_they_have_in_common() -> None:
    frame = few().assign(relu=np.arange(33) % 2, passes=np.where(np.arange(33) % 7 == 1, 2, 1))
    broken = np.where(frame["passes"] > 1, 1 - frame["relu"], frame["relu"])
    noise = np.random.default_rng(12).integers(0, 2, 33)
    texts = flags(
        np.stack([broken, noise]).astype(bool), {name: frame[name].to_numpy() for name in frame}
    )
    assert texts == ["relu in 28 of 33; all others have passes == 2", ""]


def test_the_plainest_of_laws_that_fit_alike_is_told_first() -> None:
    """``pad_w``, not ``pad_w + kernel_offset``, where four bits do not tell them apart."""
    frame = few()
    laws = quiet(
        np.stack([frame["pad_w"] * 4, (frame["pad_w"] + frame["kernel_offset"]) % 16], 1).astype(
            np.uint32
        ),
        frame,
    )
    assert [law.text for law in laws.fields] == ["pad_w", "pad_w"]
