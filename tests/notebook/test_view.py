"""Pictures: the same bytes on every run, and a sentence that says their number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

import npulab
import npulab.analysis.mismatch.summary
import npulab.quant.codes
from npulab.analysis.mismatch.summary import touches_padding
from npulab.notebook import pictures as view
from npulab.quant.codes import same_codes
from npulab.quant.rules import rule


def test_picture_says_its_number(captures: npulab.CaptureSet) -> None:
    picture = view.output_difference(npulab.check(captures["update4-mesa"]))
    assert (
        repr(picture) == "update4-mesa: not executed, 9 of 9 outputs differ, largest difference 136"
    )


def test_picture_shows_the_channels_that_differ_most(captures: npulab.CaptureSet) -> None:
    capture = captures["sim-3x3-same"]
    output = bytearray(capture.buffers["output"])
    for channel, count in ((7, 30), (2, 20), (11, 10)):
        output[100 * channel : 100 * channel + count] = bytes(
            255 - value for value in output[100 * channel : 100 * channel + count]
        )
    found = npulab.check(capture.with_buffers(output=bytes(output)))
    titles = [
        ax.get_title()
        for ax in view.output_difference(found).figure.axes
        if ax.get_title().startswith("predicted")
    ]
    assert titles == [
        "predicted, channel 0",
        "predicted, channel 2",
        "predicted, channel 7",
        "predicted, channel 11",
    ]
    one = view.output_difference(found, channels=[7])
    assert [ax.get_title() for ax in one.figure.axes][:2] == [
        "predicted, channel 7",
        "captured, channel 7",
    ]


def test_picture_of_a_simulated_capture_says_so(
    captures: npulab.CaptureSet, tmp_path: Path
) -> None:
    picture = view.output_difference(npulab.check(captures["sim-1x1"]), [0])
    assert "(simulated)" in repr(picture)
    assert "(simulated)" in picture.figure.get_suptitle()
    picture.save(tmp_path / "p.png")
    assert np.ptp(matplotlib.image.imread(tmp_path / "p.png")) > 0


def test_nothing_to_draw(captures: npulab.CaptureSet) -> None:
    found = npulab.check(captures["sim-1x1"].with_buffers(coefficients=bytes(40)))
    with pytest.raises(
        ValueError,
        match=r"^sim-1x1: there is no output to draw \(differs: coefficients: got 40 bytes",
    ):
        view.output_difference(found)


# Outputs side by side


@pytest.fixture(scope="module")
def truncating(captures: npulab.CaptureSet) -> npulab.Capture:
    """What a simulated device that rounds toward zero, whatever its words say, would have left."""
    capture = captures["sim-5x5-same"]
    return capture.with_buffers(
        output=npulab.Simulated().run(capture.with_fields(rounding_mode=0)).output
    )


def test_comparison_says_its_numbers(truncating: npulab.Capture) -> None:
    one = view.output_comparison(npulab.check(truncating))
    assert repr(one) == (
        "sim-5x5-same (simulated): differs; 466 of 968 outputs differ; 263 by -1, 203 by +1; in 8 of 8 "
        "channels; border 294 of 576 (51%); interior 172 of 392 (44%)"
    )
    bars = [[bar.get_height() for bar in ax.patches] for ax in one.figure.axes]
    assert bars[0] == [263, 203]
    assert sum(bars[2]) == 466
    assert [round(bar.get_width(), 1) for bar in one.figure.axes[3].patches] == [51.0, 43.9]


def test_mismatches_are_counted_as_by_hand(truncating: npulab.Capture) -> None:
    found = npulab.check(truncating)
    difference = found.captured.astype(int) - found.predicted
    counted = npulab.analysis.mismatch.summary.mismatches(found)
    assert dict(
        zip(counted.by_difference.difference, counted.by_difference.outputs, strict=True)
    ) == {step: int((difference == step).sum()) for step in (-1, 0, 1)}
    assert counted.by_channel.differ.tolist() == [
        int(np.count_nonzero(difference[..., c])) for c in range(8)
    ]
    assert counted.by_channel.largest.tolist() == [1] * 8
    inside = difference[2:-2, 2:-2]
    assert counted.by_place[["outputs", "differ"]].to_numpy().tolist() == [
        [968 - inside.size, found.mismatches - np.count_nonzero(inside)],
        [inside.size, np.count_nonzero(inside)],
    ]
    assert np.array_equal(counted.worst, abs(difference).max(-1))
    assert (counted.differ, counted.outputs) == (found.mismatches, found.compared)
    assert repr(counted).startswith("Mismatches(sim-5x5-same (simulated): 466 of 968")


def test_wrong_border_shows_at_the_border_only(captures: npulab.CaptureSet) -> None:
    capture = captures["sim-5x5-same"]
    run = npulab.Simulated().run(capture.with_fields(in_image_border_const=0))
    picture = view.output_comparison(npulab.check(capture.with_buffers(output=run.output)))
    assert repr(picture).endswith("border 562 of 576 (98%); interior 0 of 392 (0%)")
    assert len(picture.figure.axes[0].patches) == view.BINS  # too many differences for a bar each
    assert sum(bar.get_height() for bar in picture.figure.axes[0].patches) == 562


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (
            "sim-5x5-same",
            "sim-5x5-same (simulated): equal; 0 of 968 outputs differ; border 0 of 576 (0%); interior 0 of 392 (0%)",
        ),
        (
            "update4-mesa",
            "update4-mesa: not executed; 9 of 9 outputs differ; by -136 to +79, mean -38.6; in "
            "1 of 1 channels; border 0 of 0; interior 9 of 9 (100%)",
        ),
    ],
)
def test_comparison_of_what_is_equal_or_has_no_border(
    captures: npulab.CaptureSet, case: str, said: str
) -> None:
    assert repr(view.output_comparison(npulab.check(captures[case]))) == said


def test_border_is_where_a_window_reaches_the_padding(captures: npulab.CaptureSet) -> None:
    for capture in captures:
        layer, x, _ = npulab.target(capture.target).lift(capture)
        marked = np.pad(np.zeros(x.shape[:2], int), layer.pads, constant_values=1)
        (rows, columns), (down, across) = layer.kernel, layer.stride
        height, width, _ = layer.output_shape
        slow = [
            [
                bool(marked[i * down : i * down + rows, j * across : j * across + columns].any())
                for j in range(width)
            ]
            for i in range(height)
        ]
        assert touches_padding(layer, (height, width)).tolist() == slow
    assert not touches_padding(None, (2, 3)).any()


def test_nothing_to_compare(captures: npulab.CaptureSet) -> None:
    found = npulab.check(captures["sim-1x1"].with_buffers(coefficients=bytes(40)))
    with pytest.raises(
        ValueError,
        match=r"^sim-1x1: there are no two outputs to compare \(differs: coefficients: got 40",
    ):
        view.output_comparison(found)
    flat = replace(npulab.check(captures["sim-1x1"]), predicted=np.zeros(4, np.uint8))
    with pytest.raises(ValueError, match=r"^sim-1x1: got outputs \(4,\), allowed is \(H, W, C\)$"):
        npulab.analysis.mismatch.summary.mismatches(flat)


# The number line


def test_number_line_says_its_numbers() -> None:
    rules = ["vivante-v7:half-up", "vivante-v8:half-up", "nvdla"]
    one = view.number_line(range(-3, 4), 0.5, rules=rules)
    assert (
        repr(one)
        == "3 rules, 7 accumulators, ratio 0.5: 2 different rows of codes; they disagree about -3, -1"
    )
    (ax,) = one.figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "vivante-v7:half-up, vivante-v8:half-up",
        "nvdla",
    ]
    assert [text.get_text() for text in ax.texts] == [
        "-1",
        "0",
        "1",
        "2",
        "-2",
        "-1",
        "0",
        "1",
        "2",
    ]
    assert [bar.get_x() for bar in ax.patches[:4]] == [-1.75, -0.75, 0.25, 1.25]


def test_number_line_shows_the_codes_of_every_rule() -> None:
    scales, sums = (0.0235, 0.0027, 0.047), range(60_000, 60_020)
    codes = npulab.quant.codes.codes_by_rule(sums, scales, 3)
    for name, row in zip(codes.index, codes.to_numpy(), strict=True):
        by = rule(name)
        assert row.tolist() == by.exact(np.array(sums), *by.multiplier(*scales), 3).tolist()
    groups = same_codes(codes)
    assert sum(len(names) for names, _ in groups) == len(codes)
    assert len(groups) == len(codes.drop_duplicates())
    picture = view.number_line(sums, scales, 3)
    assert f"{len(codes)} rules, 20 accumulators" in repr(picture)
    assert f"{len(groups)} different rows" in repr(picture)
    shown = [int(text.get_text()) for text in picture.figure.axes[0].texts]
    assert shown == [
        int(code) for _, row in groups for code in row[np.flatnonzero(np.diff(row, prepend=-1))]
    ]


def test_rules_that_agree_say_so() -> None:
    assert repr(view.number_line([8], 0.25)).endswith(
        "1 different rows of codes; none that they disagree about"
    )


def test_rules_that_disagree_about_every_accumulator_say_so() -> None:
    rules = ["vivante-v7:floor", "vivante-v7:half-up"]
    assert repr(view.number_line([2, 3, 6], 0.25, rules=rules)).endswith(
        "; they disagree about all of them"
    )


def test_equal_outputs_are_drawn_by_their_codes(captures: npulab.CaptureSet) -> None:
    codes, where = view.output_comparison(npulab.check(captures["sim-5x5-same"])).figure.axes[:2]
    assert sum(bar.get_height() for bar in codes.patches) == 968
    assert where.get_title(loc="left") == "largest difference of a pixel"


@pytest.mark.parametrize(
    ("sums", "scales", "said"),
    [
        ([], 0.5, "accumulators: got none, allowed is one or more"),
        (
            [1],
            (1.0, 2.0),
            r"scales: got 2 numbers, allowed is one \(the ratio\) or three \(the scales of input, weights and output\)",
        ),
        ([2**40], 0.5, r"accumulator: got 1099511627776 in channel 0, allowed with gemmlowp is"),
    ],
)
def test_what_no_line_can_show_is_refused(sums: list[int], scales: float, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        view.number_line(sums, scales)
