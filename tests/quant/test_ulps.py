"""Distances between floating-point numbers, counted in representable ones."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import npulab
import npulab.notebook.pictures
from npulab.analysis.check import Comparison
from npulab.analysis.mismatch.summary import mismatches
from npulab.quant.floats import Near, steps, ulps, unit

CODES = np.arange(65536, dtype=np.uint16).view(np.float16)
NUMBERS = np.unique(CODES[~np.isnan(CODES)])  # ascending, one zero, with both infinities


def test_neighbours_are_one_apart() -> None:
    assert len(NUMBERS) == 2 * 0x7C00 + 1
    assert np.all(ulps(NUMBERS[1:], NUMBERS[:-1]) == 1)
    assert np.all(steps(NUMBERS[1:], NUMBERS[:-1]) == 1)
    places = np.arange(len(NUMBERS))
    for number, place in zip(NUMBERS[::997], places[::997], strict=True):
        assert np.array_equal(ulps(NUMBERS, np.full_like(NUMBERS, number)), np.abs(places - place))
        assert np.array_equal(steps(NUMBERS, number), places - place)


def test_zeros_are_one_and_nan_is_far_from_numbers_only() -> None:
    a = np.array([0.0, -0.0, np.nan, np.nan, 1, np.inf, -np.inf], np.float16)
    b = np.array([-0.0, 0.0, np.nan, 1, np.nan, np.nan, np.inf], np.float16)
    most = 2 * 0x7C00
    assert ulps(a, b).tolist() == [0, 0, 0, most + 1, most + 1, most + 1, most]
    assert steps(a, b).tolist() == [0, 0, 0, most + 1, most + 1, most + 1, -most]
    other = a.copy()
    other.view(np.uint16)[2] = 0xFE01
    assert ulps(a, other).tolist() == [0] * 7
    assert ulps(np.float32(np.nan), np.float32(1)) == 2 * 0x7F800000 + 1
    assert ulps(np.float32(-np.inf), np.float32(np.inf)) == 2 * 0x7F800000


@settings(max_examples=30)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=5))
def test_float32_goes_one_by_one(values: list[float]) -> None:
    numbers = np.array(values, np.float32)
    up = np.nextafter(numbers, np.float32(np.inf))
    assert ulps(numbers, up).tolist() == [int(value != math.inf) for value in numbers]
    for a, b in pairwise(np.sort(numbers)):
        assert ulps(a, b) == steps(b, a) >= (a != b)
        middle = np.float32(0)
        if a < 0 < b:
            assert ulps(a, b) == ulps(a, middle) + ulps(middle, b)


def test_what_rounding_took_stays_through_sums_and_products() -> None:
    near = Near(np.array([1.0]), np.array([2.0**-60]), np.array([2.0**-120]))
    for got, by in ((near + 0.0, 1.0), (near * 1.0, 1.0), (near * -2.0, -2.0)):
        assert (float(got.values[0]), float(np.asarray(got.tail)[0])) == (by, by * 2.0**-60)
        assert float(np.asarray(got.error)[0]) >= 2.0**-120
    third = Near(np.array([1.0])) * (1 / 3)
    assert float(np.asarray((third + 2.0**60).tail)[0]) == 1 / 3


def test_shapes_and_byte_orders() -> None:
    a = np.arange(12, dtype=np.float16).reshape(3, 4)
    assert ulps(a, a.T.copy().T).shape == (3, 4)
    assert not ulps(a[:, ::2], a[:, ::2].astype(">f2")).any()
    assert ulps(np.float16(1), np.float16(1.001)).shape == ()
    assert ulps(a, a).dtype == np.int64
    assert ulps(a[:0], a[:0]).shape == (0, 4)


@pytest.mark.parametrize(
    ("a", "b"),
    [(np.float16(1), np.float32(1)), (np.float64(1), np.float64(1)), (np.int8(1), np.int8(1))],
)
def test_ulps_of_other_types_are_refused(a: object, b: object) -> None:
    with pytest.raises(
        ValueError, match=r"^ulps: got .* and .*, allowed are float16 twice or float32 twice$"
    ):
        ulps(a, b)


def test_steps_of_codes_are_their_difference() -> None:
    assert steps(np.uint8([0, 255]), np.int8([5, -128])).tolist() == [-5, 383]
    assert unit("uint8") == "code"
    assert unit(np.float16) == "ulp"
    with pytest.raises(
        ValueError,
        match=r"^steps: got uint8 and float16, allowed are two types of codes, float16 twice or float32 twice$",
    ):
        steps(np.uint8(1), np.float16(1))


# What asks for them


@pytest.fixture
def found() -> Comparison:
    """Outputs that are the same but for three numbers, one zero and one NaN on both sides."""
    predicted = np.linspace(-2, 2, 60).astype(np.float16).reshape(4, 5, 3)
    predicted[0, 0] = -0.0, np.nan, 1
    captured = predicted.copy()
    captured[0, 0, 0] = 0
    captured.view(np.uint16)[1, 2, 1] += 1  # a negative number: one down
    captured.view(np.uint16)[3, 4, 2] += 5
    captured[2, 2, 2] = np.inf
    return Comparison(
        "made",
        "none",
        True,
        True,
        None,
        "differs",
        60,
        3,
        (1, 2, 1),
        1,
        predicted,
        captured,
        unit="ulp",
    )


def test_mismatches_are_counted_in_ulps(found: Comparison) -> None:
    counted = mismatches(found)
    far = int(ulps(found.captured[2, 2, 2], found.predicted[2, 2, 2]))
    assert (counted.unit, counted.differ, counted.outputs) == ("ulp", 3, 60)
    assert dict(
        zip(counted.by_difference.difference, counted.by_difference.outputs, strict=True)
    ) == {-1: 1, 0: 57, 5: 1, far: 1}
    assert counted.worst[3, 4] == 5
    assert counted.by_channel.largest.tolist() == [0, 1, far]
    assert (
        str(counted)
        == f"3 of 60 outputs differ; 1 by -1, 1 by +5, 1 by +{far} ulp; in 2 of 3 channels; border 0 of 0; interior 3 of 60 (5%)"
    )


def test_pictures_say_ulps(found: Comparison) -> None:
    picture = npulab.notebook.pictures.output_difference(found)
    assert (
        repr(picture)
        == "made (simulated): differs, 3 of 60 outputs differ, largest difference 1 ulp"
    )
    assert "difference in ulp, channel 2" in [ax.get_title() for ax in picture.figure.axes]
    nan = [text for text in picture.figure.axes[3].texts if text.get_text() == "nan"]
    assert [text.get_color() for text in nan] == ["black"]
    compared = npulab.notebook.pictures.output_comparison(found)
    assert "+5, 1 by" in repr(compared)
    assert any("in ulp" in ax.get_xlabel() for ax in compared.figure.axes)
    assert any("in ulp" in ax.get_title(loc="left") for ax in compared.figure.axes)


def test_equal_and_odd_outputs_are_drawn() -> None:
    for fill in (1.5, np.nan, np.inf):
        same = np.full((2, 2, 1), fill, np.float16)
        found = Comparison(
            "made", "none", False, True, None, "equal", 4, 0, None, 0, same, same, unit="ulp"
        )
        assert (
            npulab.notebook.pictures.output_comparison(found)
            .figure.axes[0]
            .get_title(loc="left")
            .startswith("captured numbers, ")
        )
        assert len(npulab.notebook.pictures.output_difference(found).figure.axes) == 3
