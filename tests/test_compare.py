"""Differences by field, and check."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import npulab
from npulab.target import Target
from npulab.targets.vivante import lifting
from npulab.targets.vivante.coefficients import geometry

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
    if capture.values["in_image_x_offset"]:
        bits["in_image_border_const"] = 1  # without a border that the unit makes nothing depends on it
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
        whole = lifting._border
        monkeypatch.setattr(lifting, "_border", lambda sizes, before, *rest: whole(sizes, tuple(b ^ 1 for b in before), *rest))
        caught = {"sim-3x3-same", "sim-3x3-sparse", "sim-5x5-same"}
    elif plant == "stream order":
        monkeypatch.setattr(geometry, "PLANES_PER_GROUP", 7)
        caught = {"sim-1x1"}
    else:
        wrong = replace(vivante, rule_of=lambda _: "vivante-v7:half-up")
        monkeypatch.setattr("npulab.compare.target", lambda name: wrong)
        caught = {"sim-1x1"}
    differ = {name for name in SIMULATED if npulab.check(captures[name]).verdict == "differs"}
    assert caught <= differ


def test_comparison_prints_its_verdict(captures: npulab.CaptureSet) -> None:
    assert repr(npulab.check(captures["sim-1x1"])) == "Comparison(sim-1x1 (simulated): equal, 0 of 3456 differ)"


def test_comparison_that_is_none_says_so(captures: npulab.CaptureSet) -> None:
    capture = captures["sim-1x1"]
    short = npulab.check(capture.with_buffers(output=b"abc"))
    assert repr(short).startswith("Comparison(sim-1x1 (simulated): differs, nothing was compared, capture sim-1x1: buffer 'output' has 3")
    full = npulab.check(capture.with_buffers(output=bytes(len(capture.buffers["output"]))))
    assert (full.verdict, full.reason[:27]) == ("differs", "every captured output is 0,")


def written(captures: npulab.CaptureSet, *writes: tuple[int, int]) -> npulab.Capture:
    capture = captures["update4-mesa"]
    return replace(capture, jobs=(npulab.Job.from_writes("STATE", writes, capture.maps["STATE"]),))


def test_diff_sees_how_a_state_was_written(captures: npulab.CaptureSet) -> None:
    flush, config, remap = (0x380C, 0xC23), (0x3930, 0x10), (0x393C, 0)
    once, twice = written(captures, config, flush), written(captures, config, flush, flush)
    assert npulab.diff(once, twice)[["register", "field", "a", "b"]].to_numpy().tolist() \
        == [["GL.FLUSH_CACHE", "(writes)", "0xc23", "0xc23 0xc23"]]
    other = npulab.diff(written(captures, config, remap), written(captures, remap, config))
    assert other[["field", "a", "b"]].to_numpy().tolist() == [
        ["(order)", "GL.NN_CONFIG GL.OCB_REMAP_START", "GL.OCB_REMAP_START GL.NN_CONFIG"]]
    assert npulab.diff(twice, twice).empty


def test_diff_of_sets_counts_what_some_do_not_have(captures: npulab.CaptureSet) -> None:
    mesa, vendor = captures["update4-mesa"], captures["update4-vendor"]
    found = npulab.diff(npulab.CaptureSet((mesa, vendor)), npulab.CaptureSet((mesa, mesa))).set_index("field")
    assert found.loc["API_MODE"].a == ["opencl", None]
    zero = npulab.CaptureSet((mesa.with_fields(further4=0.0),)), npulab.CaptureSet((mesa.with_fields(further4=-0.0),))
    assert npulab.diff(*zero).field.tolist() == ["further4"]


def test_diff_of_buffers(captures: npulab.CaptureSet) -> None:
    a = captures["sim-1x1"]
    data = bytearray(a.buffers["coefficients"])
    data[70] ^= 1
    b = a.with_buffers(coefficients=bytes(data), input=a.buffers["input"] + b"x", extra=b"ab")
    assert npulab.diff_buffers(a, b).to_numpy().tolist() == [
        ["coefficients", 70, 1, len(data), len(data)], ["input", 2304, 1, 2304, 2305], ["extra", 0, 2, None, 2]]
    assert npulab.diff(a, b).empty
    assert npulab.diff_buffers(a, a).empty


def test_what_is_no_capture_is_refused(captures: npulab.CaptureSet) -> None:
    for call in (npulab.check, npulab.explain):
        with pytest.raises(TypeError, match=r"got str, allowed is Capture, as npulab.load and load_all give$"):
            call("captures/vivante/sim-1x1")
    with pytest.raises(TypeError, match="diff: got str, allowed is Capture or CaptureSet"):
        npulab.diff(captures[0], "x")


def test_a_flip_never_freezes_or_escapes_check(captures: npulab.CaptureSet) -> None:
    """Whatever bit is wrong, check answers, and calls nothing equal that the device does not."""
    random = np.random.RandomState(11)
    for name in ("sim-3x3-sparse", "sim-3x3-same"):
        capture = captures[name]
        for field in ("kernel_z_size", "out_image_z_size", "in_image_x_size"):
            item = capture.maps["NN"][field]
            assert npulab.check(capture.with_fields(**{field: 2 ** item.width - 1})).verdict == "differs"
        for bit in random.randint(0, 8 * len(capture.buffers["coefficients"]), 150):
            data = bytearray(capture.buffers["coefficients"])
            data[bit // 8] ^= 2 ** (int(bit) % 8)
            changed = capture.with_buffers(coefficients=bytes(data))
            # a bit may be too small to show in any output, which the device knows
            assert not npulab.check(changed).ok or npulab.Simulated()(changed) == "pass"


def test_several_jobs_are_not_called_equal(captures: npulab.CaptureSet) -> None:
    capture = captures["sim-1x1"]
    found = npulab.check(replace(capture, jobs=(*capture.jobs, *captures["sim-3x3-same"].jobs)))
    assert (found.verdict, found.compared) == ("nothing to compare", 0)


def test_chip_that_is_not_covered_has_nothing_to_compare(captures: npulab.CaptureSet, vivante: Target) -> None:
    chip = "vipnano-qi-s905d3"
    found = npulab.check(replace(captures["sim-1x1"], chip=chip, maps=vivante.maps(chip)))
    assert (found.words, found.coefficients, found.verdict, found.ok) == (True, None, "nothing to compare", True)


def test_border_inside_split_planes_counts(captures: npulab.CaptureSet) -> None:
    """The padding that a driver wrote into the planes is input like any other."""
    capture = captures["sim-3x3-stride2-relu"]
    data = bytearray(capture.buffers["input"])
    data[0] ^= 0x40
    changed = capture.with_buffers(input=bytes(data))
    assert npulab.Simulated()(changed) == "fail"
    assert npulab.check(changed).verdict == "differs"
    assert npulab.check(npulab.Simulated().record(changed)).verdict == "equal"
    other = npulab.Simulated().record(capture.with_fields(in_image_border_const=7))
    assert npulab.check(other).verdict == "equal"


def test_odd_parameters_do_not_stop_check(captures: npulab.CaptureSet) -> None:
    for parameters in ({"padding": {}}, {"padding": [[0, 0], [0, 0]]}, {"kernel_h": "3", "stride_h": True, "input_h": -1},
                       {"input_scale": "x", "depthwise": 1}):
        for name in SIMULATED:
            assert npulab.check(replace(captures[name], parameters=parameters)).verdict == "equal", (name, parameters)


def test_write_of_0_to_an_unknown_register_is_seen(captures: npulab.CaptureSet) -> None:
    a, b = written(captures, (0x3930, 0x10)), written(captures, (0x3930, 0x10), (0x1234, 0))
    assert npulab.diff(a, b)[["register", "a", "b"]].to_numpy().tolist() == [["0x1234", None, 0]]
    sets = npulab.CaptureSet((a,)), npulab.CaptureSet((b,))
    assert npulab.diff(*sets).register.tolist() == ["0x1234"]


def test_block_without_a_map_is_refused(captures: npulab.CaptureSet) -> None:
    with pytest.raises(LookupError, match="got block 'NN', its maps are for none"):
        npulab.check(replace(captures["sim-1x1"], maps={}))
