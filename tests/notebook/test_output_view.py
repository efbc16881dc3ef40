"""The output view: its model with no browser, its widget with no front end, what a notebook
keeps of it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import CAPTURES
from hypothesis import given, strategies as st
from refusals import refused

import npulab
import npulab.notebook.widgets
from npulab.analysis.check import Comparison
from npulab.notebook.widgets import OutputModel, OutputView
from npulab.quant.floats import steps

NASTY = "<script>alert(1)</script>"


def compared(predicted: np.ndarray, captured: np.ndarray, **parts: Any) -> Comparison:
    wrong = np.argwhere(steps(predicted, captured))
    unit = "ulp" if captured.dtype.kind == "f" else "code"
    known: dict[str, Any] = {"case": "a", "target": "demo", "simulated": False, **parts}
    return Comparison(
        words=True,
        coefficients=None,
        verdict="differs" if len(wrong) else "equal",
        compared=captured.size,
        mismatches=len(wrong),
        unit=unit,
        predicted=predicted,
        captured=captured,
        first=tuple(map(int, wrong[0])) if len(wrong) else None,
        **known,
    )


def some(
    shape: tuple[int, int, int], share: float, dtype: str = "uint8", seed: int = 0
) -> Comparison:
    draw = np.random.default_rng(seed)
    predicted = draw.integers(0, 256, shape).astype(dtype)
    captured = np.where(
        draw.random(shape) < share, draw.integers(0, 256, shape).astype(dtype), predicted
    )
    return compared(predicted, captured)


@given(
    st.tuples(*[st.integers(1, 5)] * 3),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.sampled_from(["uint8", "int16", "float16"]),
    st.integers(0, 99),
)
def test_counts_and_the_way_through_the_differences(
    shape: tuple[int, int, int], share: float, dtype: str, seed: int
) -> None:
    found = some(shape, share, dtype, seed)
    model = OutputModel(found)
    wrong = [
        (row, column, channel)
        for channel in range(shape[2])
        for row in range(shape[0])
        for column in range(shape[1])
        if found.predicted[row, column, channel] != found.captured[row, column, channel]
    ]  # type: ignore[index]
    assert (model.differ, model.first) == (len(wrong), found.first)
    for channel, outputs, differ, largest in model.channels:
        here = model.difference[:, :, channel]
        assert (outputs, differ, largest) == (
            shape[0] * shape[1],
            sum(place[2] == channel for place in wrong),
            abs(here).max(),
        )
    before = model.place
    model.seek()
    if not wrong:
        assert (model.place, before) == ((0, 0, 0), (0, 0, 0))
        return
    assert before == found.first
    at = wrong.index(before)
    assert model.place == wrong[(at + 1) % len(wrong)]
    model.seek(-1)
    model.seek(-1)
    assert model.place == wrong[at - 1]
    seen = []
    for _ in wrong:
        model.seek()
        seen.append(model.place)
    assert sorted(seen) == sorted(wrong), "round the end, every one once"


def test_an_output_in_words() -> None:
    model = OutputModel(some((3, 4, 2), 0.5))
    for row, column, channel in np.ndindex(3, 4, 2):
        a, b = (int(one[row, column, channel]) for one in (model.predicted, model.captured))
        apart = f"difference {b - a:+d}" if a != b else "equal"
        assert model.describe(row, column, channel) == (
            f"row {row}, column {column}, channel {channel}: predicted {a}, captured {b}, {apart}"
        )
    real = OutputModel(compared(np.float16([[[1.0, np.nan]]]), np.float16([[[1.001, np.nan]]])))
    assert (
        real.about == "row 0, column 0, channel 0: predicted 1.0, captured 1.001, difference +1 ulp"
    )
    assert real.describe(0, 0, 1).endswith("predicted nan, captured nan, equal")
    model.place = (2, 3, 1)
    assert model.about == model.describe(2, 3, 1)


def test_a_window_that_touches_the_padding_is_said() -> None:
    model = OutputModel(npulab.check(npulab.load(CAPTURES / "vivante/sim-3x3-same")))
    assert model.describe(0, 0, 0).endswith(", equal, its window touches the padding")
    assert model.describe(4, 4, 0).endswith(", equal")
    assert (model.first, model.place, model.differ) == (None, (0, 0, 0), 0)


def test_pictures() -> None:
    found = some((7, 5, 3), 0.4, "int16")
    model = OutputModel(found)
    low, high = model.extremes
    assert (low, high) == (
        min(model.predicted.min(), model.captured.min()),
        max(model.predicted.max(), model.captured.max()),
    )
    for channel in range(3):
        predicted, captured, difference = model.pictures(channel)
        for shades, values in ((predicted, model.predicted), (captured, model.captured)):
            assert np.array_equal(
                shades, ((values[:, :, channel] - low) / (high - low) * 255).astype(np.uint8)
            )
        assert np.array_equal(
            np.sign(difference.astype(int) - 128), np.sign(model.difference[:, :, channel])
        )
    largest = np.unravel_index(np.abs(model.difference).argmax(), model.shape)
    assert model.pictures(int(largest[2]))[2][largest[:2]] in (0, 255)


def test_a_large_picture_shows_the_worst_of_each_cell() -> None:
    predicted = np.zeros((1100, 600, 1), np.int8)
    captured = predicted.copy()
    captured[1099, 599, 0], captured[1098, 598, 0], captured[3, 2, 0] = -5, 4, 1
    model = OutputModel(compared(predicted, captured))
    assert model.cell == 3
    pictures = model.pictures(0)
    assert pictures.shape == (3, 367, 200)
    assert (pictures[2] != 128).sum() == 2
    assert pictures[2, 366, 199] == 0, "of +4 and -5 the larger"
    assert pictures[2, 1, 0] > 128


def test_one_output_in_each_channel_is_one_picture_of_all() -> None:
    predicted = np.arange(70, dtype=np.uint8).reshape(1, 1, 70)
    captured = predicted.copy()
    captured[0, 0, [5, 69]] = 255, 0
    view = OutputView(compared(predicted, captured))
    assert (view.spread, view.cell, view.place) == (32, 1, (0, 0, 5))
    difference = view.model.pictures(0)[2]
    assert difference.shape == (3, 32)
    assert np.argwhere(difference != 128).tolist() == [[0, 5], [2, 5]]
    before = view.pictures
    view.seek()
    assert view.place == (0, 0, 69)
    assert view.pictures == before


def test_infinities_and_nan_and_one_value() -> None:
    values = np.float32([[[0, np.inf, -np.inf, np.nan]]]).reshape(2, 2, 1)
    model = OutputModel(compared(values, np.float32([[[0, 1, 2, 3]]]).reshape(2, 2, 1)))
    assert model.extremes == (0.0, 3.0)
    assert model.pictures(0)[0].tolist() == [[0, 255], [0, 0]]
    assert "ulp" in model.summary
    nothing = np.full((1, 1, 1), np.nan, np.float16)
    assert OutputModel(compared(nothing, nothing)).pictures(0).tolist() == [[[0]], [[0]], [[128]]]
    same = OutputModel(compared(np.zeros((1, 1, 2), np.uint8), np.zeros((1, 1, 2), np.uint8)))
    assert same.pictures(1)[:2].max() == 0


def test_what_has_no_outputs_is_refused() -> None:
    nothing = Comparison(
        "a", "demo", False, True, None, "nothing to compare", reason="no output recorded"
    )
    with pytest.raises(
        ValueError,
        match=r"a: there are no two outputs to compare .nothing to compare: no output recorded",
    ):
        OutputModel(nothing)
    refused(
        lambda: OutputModel(compared(np.zeros((2, 2), np.uint8), np.ones((2, 2), np.uint8))),
        "(H, W, C)",
    )
    refused(
        lambda: OutputModel(compared(np.zeros((0, 2, 2), np.uint8), np.ones((0, 2, 2), np.uint8)))
    )
    model = OutputModel(some((3, 4, 2), 0.5))
    for place in ((3, 0, 0), (0, 4, 0), (0, 0, 2), (-1, 0, 0), (0, 0), 5, ("a", 0, 0), (0.5, 0, 0)):
        refused(lambda place=place: setattr(model, "place", place), "place")
    for asked in ({"seek": 2}, {"go": 1}, 5, {}):
        refused(lambda asked=asked: model.press(asked), "message")


# ---- the widget, with no front end ----


def test_view_follows_what_the_page_sends() -> None:
    view = OutputView(some((6, 5, 4), 0.3))
    assert view.place == view.model.first
    view.set_state({"place": [5, 4, 3]})
    assert view.about == view.model.describe(5, 4, 3)
    assert view.pictures == view.model.pictures(3).tobytes()
    view._handle_custom_msg({"seek": 1}, [])
    row, column, channel = view.place
    assert view.model.difference[row, column, channel] != 0
    assert channel == 0, "round the end"
    assert view.pictures == view.model.pictures(0).tobytes()
    with pytest.raises(ValueError, match=r"place: got channel 4 of \(0, 0, 4\), allowed is 0 to 3"):
        view.set_state({"place": [0, 0, 4]})
    assert [row[0] for row in view.channels] == [row[0] for row in view.model.channels if row[2]]
    state: Any = {
        name: value for name, value in view.get_state().items() if not name.startswith("_")
    }
    state.pop("layout")
    state.pop("pictures")
    json.dumps(state)


def test_repr_and_the_face_without_a_kernel() -> None:
    predicted = np.full((2, 2, 3), 7, np.uint8)
    captured = predicted.copy()
    captured[1, 0, 2], captured[1, 1, 2] = 9, 4
    view = OutputView(compared(predicted, captured, simulated=True, reason=NASTY, case=NASTY))
    assert repr(view).startswith(
        f"OutputView(demo/{NASTY}, outputs (2, 2, 3) uint8, simulated: differs; "
        "2 of 12 outputs differ; 1 by -3, 1 by +2; in 1 of 3 channels; "
    )
    html = view._repr_mimebundle_()[0]["text/html"]
    assert "first at row 1, column 0, channel 2" in html
    assert "row 1, column 0, channel 2: predicted 7, captured 9, difference +2" in html
    cells = "".join(f"<td style='text-align:left'>{number}</td>" for number in (2, 4, 2, 3))
    assert f"<tr>{cells}</tr></table>" in html
    assert html.count("<tr>") == 2
    assert "<script" not in html
    equal = OutputModel(compared(predicted, predicted))._repr_html_()
    assert "equal; 0 of 12 outputs differ" in equal
    assert "<table" not in equal


def test_the_pointer_tells_and_small_pictures_have_numbers() -> None:
    predicted = np.arange(12, dtype=np.uint8).reshape(2, 3, 2)
    captured = predicted.copy()
    captured[1, 2, 0] += 3
    view = OutputView(compared(predicted, captured))
    assert view.numbers == [
        ["0", "2", "4", "6", "8", "10"],
        ["0", "2", "4", "6", "8", "13"],
        [""] * 5 + ["+3"],
    ]
    view.set_state({"pointed": [0, 1, 0]})
    assert view.about.startswith("row 0, column 1, channel 0: predicted 2, captured 2, equal")
    view.set_state({"pointed": []})
    assert view.about == view.model.describe(*view.place)
    with pytest.raises(ValueError, match=r"pointed: got row 2 of \(2, 0, 0\), allowed is 0 to 1"):
        view.pointed = (2, 0, 0)
    reals = OutputModel(compared(predicted.astype(np.float32) / 7, captured.astype(np.float32) / 7))
    assert reals.numbers(0)[0][:2] == ["0", "0.286"]
    large = np.zeros((21, 3, 1), np.uint8)
    assert OutputModel(compared(large, large)).numbers(0) == []


def test_outputs_are_compared_channel_by_channel() -> None:
    draw = np.random.default_rng(3)
    found = npulab.check(npulab.load(CAPTURES / "vivante/sim-3x3-same"))
    captured = found.predicted.copy()
    for place in draw.integers(0, 100, 25):
        captured[place // 10, place % 10, place % 5 + 2] ^= 5
    view = npulab.notebook.widgets.OutputView(replace(found, captured=captured, verdict="differs"))
    wrong = [
        (int(row), int(column), int(channel))
        for channel in range(captured.shape[2])
        for row, column in np.argwhere(captured[..., channel] != found.predicted[..., channel])
    ]
    assert tuple(view.place) == min(wrong)
    assert f"{len(wrong)} of 1200" in view.summary
    seen = {tuple(view.place)}
    for _ in wrong:
        view.seek(1)
        seen.add(tuple(view.place))
    assert seen == {*wrong}
    row, column, channel = wrong[0]
    view.place = wrong[0]
    assert (
        f"predicted {found.predicted[row, column, channel]}, captured {captured[row, column, channel]}"
        in view.about
    )
    for of in {channel for _, _, channel in wrong}:
        _, _, difference = view.model.pictures(of)
        assert np.array_equal(difference != 128, captured[..., of] != found.predicted[..., of])
