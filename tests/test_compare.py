"""Differences by field, and check."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import npulab
from npulab.target import Target
from npulab.targets.vivante import coefficients, lowering

SIMULATED = ("sim-1x1", "sim-3x3-same", "sim-3x3-sparse", "sim-3x3-stride2-relu", "sim-5x5-same", "sim-update4")


def test_two_stacks_differ_in_addresses_and_start_up_only(captures: npulab.CaptureSet) -> None:
    found = npulab.diff(captures["update4-mesa"], captures["update4-vendor"])
    assert found[found.address].field.tolist() == ["kernel_address", "in_image_address", "out_image_address",
                                                   "NN_INST_ADDR"]
    rest = found[~found.address]
    assert rest.block.unique().tolist() == ["STATE"]
    assert rest.field.tolist() == ["PROVOKING_VERTEX_LAST", "HALF_PIXEL_CENTER", "API_MODE"]
    assert rest.b.tolist() == [None, None, None]


def test_diff_of_equal_captures_is_empty(captures: npulab.CaptureSet) -> None:
    for capture in captures:
        assert len(npulab.diff(capture, capture)) == 0


def test_diff_names_each_changed_field(captures: npulab.CaptureSet) -> None:
    a = captures["sim-1x1"]
    found = npulab.diff(a, a.with_fields(post_shift=7, in_image_x_offset=-2, pooling="max"))
    assert found[["field", "a", "b"]].to_numpy().tolist() == [
        ["pooling", "none", "max"], ["in_image_x_offset", 0, -2], ["post_shift", a.values["post_shift"], 7]]


def test_unnamed_bits_differ_too(captures: npulab.CaptureSet) -> None:
    a = captures["sim-1x1"]
    words = a.words.copy()
    words[31] ^= np.uint32(4)
    assert npulab.diff(a, a.with_words(words))[["field", "a", "b"]].to_numpy().tolist() == [["w31_0_32", 0, 4]]


def test_diff_of_sets_tells_always_from_sometimes(captures: npulab.CaptureSet) -> None:
    base = captures["sim-1x1"]

    def some(shifts: list[int], relus: list[int], sizes: list[int]) -> npulab.CaptureSet:
        return npulab.CaptureSet(tuple(base.with_fields(post_shift=s, relu=r, kernel_xy_size=k)
                                       for s, r, k in zip(shifts, relus, sizes, strict=True)))

    found = npulab.diff(some([1, 1], [0, 1], [1, 2]), some([2, 2], [1, 1], [3, 4])).set_index("field")
    assert found.differs.to_dict() == {"post_shift": "always", "relu": "sometimes", "kernel_xy_size": "always"}
    assert found.constant.to_dict() == {"post_shift": True, "relu": False, "kernel_xy_size": False}
    assert found.a["relu"] == [0, 1]


def test_diff_takes_one_target(captures: npulab.CaptureSet) -> None:
    with pytest.raises(ValueError, match="got targets other, vivante, allowed is one"):
        npulab.diff(captures[0], replace(captures[0], target="other"))


def test_update4_was_not_executed(captures: npulab.CaptureSet) -> None:
    for name in ("update4-mesa", "update4-vendor"):
        found = npulab.check(captures[name])
        assert (found.words, found.coefficients, found.verdict) == (True, True, "not executed")
        assert found.predicted.tobytes().hex(" ").upper() == "BC 28 BA FF B2 91 82 97 91"
        assert found.ok


@pytest.mark.parametrize("name", SIMULATED)
def test_simulated_captures_are_predicted(captures: npulab.CaptureSet, name: str) -> None:
    found = npulab.check(captures[name])
    assert (found.words, found.coefficients, found.verdict, found.mismatches) == (True, True, "equal", 0)
    assert found.compared == len(captures[name].buffers["output"])


def test_output_of_a_zero_point_that_is_right_is_equal(captures: npulab.CaptureSet, vivante: Target) -> None:
    lifted = vivante.lift(captures["sim-update4"])
    layer = replace(lifted.layer, bias=[-2 ** 25], activation="relu")
    lowered = vivante.lower(layer, x=lifted.x)
    output = bytes([layer.output_q.zero_point]) * 9
    assert npulab.check(lowered.with_buffers(output=output)).verdict == "equal"


def test_a_wrong_output_differs_and_says_where(captures: npulab.CaptureSet) -> None:
    capture = captures["sim-3x3-same"]
    output = bytearray(capture.buffers["output"])
    output[3 * 100 + 4 * 10 + 5] ^= 2  # planar: channel 3, row 4, column 5
    found = npulab.check(capture.with_buffers(output=bytes(output)))
    assert (found.verdict, found.mismatches, found.first, found.max) == ("differs", 1, (4, 5, 3), 2)
    assert not found.ok


def test_nothing_to_compare(captures: npulab.CaptureSet) -> None:
    for missing in ("input", "output"):
        buffers = {name: data for name, data in captures["sim-1x1"].buffers.items() if name != missing}
        found = npulab.check(replace(captures["sim-1x1"], buffers=buffers))
        assert (found.verdict, found.compared, found.reason) == ("nothing to compare", 0, f"no {missing} recorded")


@pytest.mark.parametrize("name", SIMULATED)
def test_one_wrong_bit_in_words_or_coefficients_differs(captures: npulab.CaptureSet, name: str) -> None:
    capture = captures[name]
    bits = {"post_multiplier": 2 ** 14, "post_shift": 1, "coef_zero_point": 1, "out_zero_point": 1}
    if capture.parameters["pad_top"] or capture.parameters["pad_bottom"]:
        bits["in_image_border_const"] = 1  # without a border nothing else depends on it
    for field, bit in bits.items():
        changed = capture.with_fields(**{field: capture.values[field] ^ bit})
        assert npulab.check(changed).verdict == "differs", field
    data = bytearray(capture.buffers["coefficients"])
    data[64 + 3 + 4] ^= 1  # in the bias of the first kernel, or in its first weights with zero runs
    assert npulab.check(capture.with_buffers(coefficients=bytes(data))).verdict == "differs"


@pytest.mark.parametrize("plant", ["lowering", "stream order", "rounding"])
def test_planted_mistakes_are_caught(captures: npulab.CaptureSet, vivante: Target, plant: str,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of our own steps, made wrong by one bit, turns some simulated capture to ``differs``."""
    if plant == "lowering":
        whole = lowering._border
        monkeypatch.setattr(lowering, "_border", lambda sizes, before, *rest: whole(sizes, tuple(b ^ 1 for b in before), *rest))
        caught = {"sim-3x3-same", "sim-3x3-sparse", "sim-5x5-same"}
    elif plant == "stream order":
        monkeypatch.setattr(coefficients, "PLANES_PER_GROUP", 7)
        caught = {"sim-1x1"}
    else:
        wrong = replace(vivante, rule_of=lambda _: "vivante-v7:half-up")
        monkeypatch.setattr("npulab.compare.target", lambda name: wrong)
        caught = {"sim-1x1"}
    differ = {name for name in SIMULATED if npulab.check(captures[name]).verdict == "differs"}
    assert caught <= differ


def test_comparison_prints_its_verdict(captures: npulab.CaptureSet) -> None:
    assert repr(npulab.check(captures["sim-1x1"])) == "Comparison(sim-1x1 (simulated): equal, 0 of 3456 differ)"
