"""Differences by field, and check."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import CAPTURES

import npulab
import npulab.analysis.check
import npulab.analysis.mismatch.summary
import npulab.captures.capture
from npulab import Capture, CaptureSet, Simulated, check, cli, diff
from npulab.analysis.mismatch import model_run as runs
from npulab.captures.target import Claim, Lifted, Target, Unsupported
from npulab.npus.vivante import readings
from npulab.npus.vivante.coefficients import buffers
from npulab.quant.layers import Concat, Elementwise, Network

SIMULATED = (
    "sim-1x1",
    "sim-3x3-same",
    "sim-3x3-sparse",
    "sim-3x3-stride2-relu",
    "sim-5x5-same",
    "sim-update4",
)


def test_two_stacks_differ_in_addresses_and_start_up_only(captures: CaptureSet) -> None:
    found = diff(captures["update4-mesa"], captures["update4-vendor"])
    assert found[found.address].field.tolist() == [
        "kernel_address",
        "in_image_address",
        "out_image_address",
        "NN_INST_ADDR",
    ]
    assert [*found.columns] == ["task", "block", "register", "field", "a", "b", "address"]
    start = found[found.block != "NN"]
    assert set(start[start.address].register) == {"PS.NN_INST_ADDR"}
    rest = found[~found.address]
    assert set(rest.register) == {"PA.SYSTEM_MODE", "GL.API_MODE"}
    assert rest.block.unique().tolist() == ["STATE"]
    assert rest.field.tolist() == ["PROVOKING_VERTEX_LAST", "HALF_PIXEL_CENTER", "API_MODE"]
    assert rest.b.tolist() == [None, None, None]


def test_diff_of_equal_captures_is_empty(captures: CaptureSet) -> None:
    for capture in captures:
        assert len(diff(capture, capture)) == 0


def test_diff_names_each_changed_field(captures: CaptureSet) -> None:
    a = captures["sim-1x1"]
    found = diff(a, a.with_fields(post_shift=7, in_image_x_offset=-2, pooling="max"))
    assert found[["field", "a", "b"]].to_numpy().tolist() == [
        ["pooling", "none", "max"],
        ["in_image_x_offset", 0, -2],
        ["post_shift", a.values["post_shift"], 7],
    ]


def test_unnamed_bits_differ_too(captures: CaptureSet) -> None:
    a = captures["sim-1x1"]
    words = a.words.copy()
    words[31] ^= np.uint32(4)
    assert diff(a, a.with_words(words))[["field", "a", "b"]].to_numpy().tolist() == [
        ["w31_0_32", 0, 4]
    ]


def test_diff_of_sets_tells_always_from_sometimes(captures: CaptureSet) -> None:
    base = captures["sim-1x1"]

    def some(shifts: list[int], relus: list[int], sizes: list[int]) -> CaptureSet:
        return CaptureSet(
            tuple(
                base.with_fields(post_shift=s, relu=r, kernel_xy_size=k)
                for s, r, k in zip(shifts, relus, sizes, strict=True)
            )
        )

    found = diff(some([1, 1], [0, 1], [1, 2]), some([2, 2], [1, 1], [3, 4])).set_index("field")
    assert found.differs.to_dict() == {
        "post_shift": "always",
        "relu": "sometimes",
        "kernel_xy_size": "always",
    }
    assert found.constant.to_dict() == {"post_shift": True, "relu": False, "kernel_xy_size": False}
    assert found.a["relu"] == [0, 1]


def test_diff_takes_one_target(captures: CaptureSet) -> None:
    with pytest.raises(ValueError, match="got targets other, vivante, allowed is one"):
        diff(captures[0], replace(captures[0], target="other"))


def test_update4_was_not_executed(captures: CaptureSet) -> None:
    for name in ("update4-mesa", "update4-vendor"):
        found = check(captures[name])
        assert (found.words, found.coefficients, found.verdict) == (True, True, "not executed")
        assert found.predicted.tobytes().hex(" ").upper() == "BC 28 BA FF B2 91 82 97 91"
        assert found.ok


@pytest.mark.parametrize("name", SIMULATED)
def test_simulated_captures_are_predicted(captures: CaptureSet, name: str) -> None:
    found = check(captures[name])
    assert (found.words, found.coefficients, found.verdict, found.mismatches) == (
        True,
        True,
        "equal",
        0,
    )
    count = len(captures[name].buffers["output"])
    assert found.compared == count
    assert repr(found) == f"Comparison({name} (simulated): equal, 0 of {count} differ)"


def test_a_wrong_output_differs_and_says_where(captures: CaptureSet) -> None:
    capture = captures["sim-3x3-same"]
    output = bytearray(capture.buffers["output"])
    output[3 * 100 + 4 * 10 + 5] ^= 2  # planar: channel 3, row 4, column 5
    found = check(capture.with_buffers(output=bytes(output)))
    assert (found.verdict, found.mismatches, found.first, found.max) == ("differs", 1, (4, 5, 3), 2)
    assert not found.ok


def test_nothing_to_compare(captures: CaptureSet) -> None:
    for missing in ("input", "output"):
        buffers = {
            name: data for name, data in captures["sim-1x1"].buffers.items() if name != missing
        }
        found = check(replace(captures["sim-1x1"], buffers=buffers))
        assert (found.verdict, found.compared) == ("nothing to compare", 0)
        assert found.reason.split("; ")[0] == f"no {missing} recorded"
        assert ("0 of 3456 outputs were compared" in found.reason) == (missing == "input")


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", SIMULATED)
def test_one_wrong_bit_in_words_or_coefficients_differs(captures: CaptureSet, name: str) -> None:
    capture = captures[name]
    bits = {"post_multiplier": 2**14, "post_shift": 1, "coef_zero_point": 1, "out_zero_point": 1}
    if capture.values["in_image_x_offset"]:
        bits["in_image_border_const"] = (
            1  # without a border that the unit makes nothing depends on it
        )
    for field, bit in bits.items():
        changed = capture.with_fields(**{field: capture.values[field] ^ bit})
        assert check(changed).verdict == "differs", field
    data = bytearray(capture.buffers["coefficients"])
    data[64 + 3 + 4] ^= 1  # in the bias of the first kernel, or in its first weights with zero runs
    assert check(capture.with_buffers(coefficients=bytes(data))).verdict == "differs"


@pytest.mark.parametrize("plant", ["lowering", "stream order", "rounding"])
def test_planted_mistakes_are_caught(
    captures: CaptureSet, vivante: Target, plant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of our own steps, made wrong by one bit, turns some simulated capture to ``differs``."""
    if plant == "lowering":
        whole = readings._reached
        monkeypatch.setattr(
            readings,
            "_reached",
            lambda sizes, before, *rest: whole(sizes, tuple(b ^ 1 for b in before), *rest),
        )
        caught = {"sim-3x3-same", "sim-3x3-sparse", "sim-5x5-same"}
    elif plant == "stream order":
        monkeypatch.setattr(buffers, "PLANES_PER_GROUP", 7)
        caught = {"sim-1x1"}
    else:
        wrong = replace(vivante, rule_of=lambda _: "vivante-v7:half-up")
        monkeypatch.setattr("npulab.analysis.check.target", lambda name: wrong)
        caught = {"sim-1x1"}
    differ = {name for name in SIMULATED if check(captures[name]).verdict == "differs"}
    assert caught <= differ


def test_comparison_that_is_none_says_so(captures: CaptureSet) -> None:
    capture = captures["sim-1x1"]
    short = check(capture.with_buffers(output=b"abc"))
    assert repr(short).startswith(
        "Comparison(sim-1x1 (simulated): differs, nothing was compared, capture sim-1x1: buffer 'output' has 3"
    )
    full = check(capture.with_buffers(output=bytes(len(capture.buffers["output"]))))
    assert (full.verdict, full.reason[:27]) == ("differs", "every captured output is 0,")


def written(captures: CaptureSet, *writes: tuple[int, int]) -> Capture:
    capture = captures["update4-mesa"]
    return replace(
        capture,
        jobs=(npulab.captures.capture.Job.from_writes("STATE", writes, capture.maps["STATE"]),),
    )


def test_diff_sees_how_a_state_was_written(captures: CaptureSet) -> None:
    flush, config, remap = (0x380C, 0xC23), (0x3930, 0x10), (0x393C, 0)
    once, twice = written(captures, config, flush), written(captures, config, flush, flush)
    assert diff(once, twice)[["register", "field", "a", "b"]].to_numpy().tolist() == [
        ["GL.FLUSH_CACHE", "(writes)", "0xc23", "0xc23 0xc23"]
    ]
    other = diff(written(captures, config, remap), written(captures, remap, config))
    assert other[["field", "a", "b"]].to_numpy().tolist() == [
        ["(order)", "GL.NN_CONFIG GL.OCB_REMAP_START", "GL.OCB_REMAP_START GL.NN_CONFIG"]
    ]
    assert diff(twice, twice).empty
    # of long orders a few names from where they part
    many = [(0x3810 + 4 * n, 1) for n in range(30)]
    turned = diff(
        written(captures, *many), written(captures, *many[:7], many[8], many[7], *many[9:])
    )
    told = turned.set_index("field").loc["(order)", ["a", "b"]].str.split().tolist()
    assert [text[0] for text in told] == [text[-1] for text in told] == ["...", "..."]
    assert [len(text) for text in told] == [7, 7]
    assert (told[0][1:3], told[0][3:]) == (told[1][2:0:-1], told[1][3:])


def test_diff_of_sets_counts_what_some_do_not_have(captures: CaptureSet) -> None:
    mesa, vendor = captures["update4-mesa"], captures["update4-vendor"]
    found = diff(CaptureSet((mesa, vendor)), CaptureSet((mesa, mesa))).set_index("field")
    assert found.loc["API_MODE"].a == ["opencl", None]
    zero = (
        CaptureSet((mesa.with_fields(further4=0.0),)),
        CaptureSet((mesa.with_fields(further4=-0.0),)),
    )
    assert diff(*zero).field.tolist() == ["further4"]


def test_diff_of_buffers(captures: CaptureSet) -> None:
    a = captures["sim-1x1"]
    data = bytearray(a.buffers["coefficients"])
    data[70] ^= 1
    b = a.with_buffers(coefficients=bytes(data), input=a.buffers["input"] + b"x", extra=b"ab")
    assert npulab.analysis.check.diff_buffers(a, b).to_numpy().tolist() == [
        ["coefficients", 70, 1, len(data), len(data)],
        ["input", 2304, 1, 2304, 2305],
        ["extra", 0, 2, None, 2],
    ]
    assert diff(a, b).empty
    assert npulab.analysis.check.diff_buffers(a, a).empty


def test_what_is_no_capture_is_refused(captures: CaptureSet) -> None:
    for call in (check, npulab.explain):
        with pytest.raises(
            TypeError, match=r"got str, allowed is Capture, as npulab.load and load_all give$"
        ):
            call("captures/vivante/sim-1x1")
    with pytest.raises(TypeError, match="diff: got str, allowed is Capture or CaptureSet"):
        diff(captures[0], "x")


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", ["sim-3x3-sparse", "sim-3x3-same"])
def test_a_flip_never_freezes_or_escapes_check(captures: CaptureSet, name: str, seed: int) -> None:
    """Whatever bit is wrong, check answers, and calls nothing equal that the device does not."""
    capture = captures[name]
    for field in ("kernel_z_size", "out_image_z_size", "in_image_x_size"):
        item = capture.maps["NN"][field]
        assert check(capture.with_fields(**{field: 2**item.width - 1})).verdict == "differs"
    for bit in np.random.RandomState(seed).randint(0, 8 * len(capture.buffers["coefficients"]), 20):
        data = bytearray(capture.buffers["coefficients"])
        data[bit // 8] ^= 2 ** (int(bit) % 8)
        changed = capture.with_buffers(coefficients=bytes(data))
        # a bit may be too small to show in any output, which the device knows
        assert not check(changed).ok or Simulated()(changed) == "pass"


def test_chip_that_is_not_covered_has_nothing_to_compare(
    captures: CaptureSet, vivante: Target
) -> None:
    chip = "vipnano-qi-s905d3"
    found = check(replace(captures["sim-1x1"], chip=chip, maps=vivante.maps(chip)))
    assert (found.words, found.coefficients, found.verdict, found.ok) == (
        True,
        None,
        "nothing to compare",
        True,
    )


def test_border_inside_split_planes_counts(captures: CaptureSet) -> None:
    """The padding that a driver wrote into the planes is input like any other."""
    capture = captures["sim-3x3-stride2-relu"]
    data = bytearray(capture.buffers["input"])
    data[0] ^= 0x40
    changed = capture.with_buffers(input=bytes(data))
    assert Simulated()(changed) == "fail"
    assert check(changed).verdict == "differs"
    assert check(Simulated().record(changed)).verdict == "equal"
    other = Simulated().record(capture.with_fields(in_image_border_const=7))
    assert check(other).verdict == "equal"


def test_odd_parameters_do_not_stop_check(captures: CaptureSet) -> None:
    for parameters in (
        {"padding": {}},
        {"padding": [[0, 0], [0, 0]]},
        {"kernel_h": "3", "stride_h": True, "input_h": -1},
        {"input_scale": "x", "depthwise": 1},
    ):
        changed = replace(captures["sim-3x3-same"], parameters=parameters)
        assert check(changed).verdict == "equal", parameters


def test_write_of_0_to_an_unknown_register_is_seen(captures: CaptureSet) -> None:
    a, b = written(captures, (0x3930, 0x10)), written(captures, (0x3930, 0x10), (0x1234, 0))
    assert diff(a, b)[["register", "a", "b"]].to_numpy().tolist() == [["r1234", None, 0]]
    sets = CaptureSet((a,)), CaptureSet((b,))
    assert diff(*sets).register.tolist() == ["r1234"]


def test_block_without_a_map_is_refused(captures: CaptureSet) -> None:
    with pytest.raises(LookupError, match="got block 'NN', its maps are for none"):
        check(replace(captures["sim-1x1"], maps={}))


# Outputs that are real numbers, several inputs, claims


def lifted_as(
    monkeypatch: pytest.MonkeyPatch, vivante: Target, *lifted: object, **more: object
) -> None:
    """The target as if it lifted every capture to this, by rule "fp16"."""
    made = replace(vivante, lift=lambda _: Lifted(*lifted), rule="fp16", rule_of=None, **more)
    monkeypatch.setattr("npulab.analysis.check.target", lambda name: made)


def bare(capture: Capture) -> Capture:
    """The capture without what was recorded of outputs."""
    return replace(
        capture,
        buffers={
            name: data for name, data in capture.buffers.items() if not name.startswith("output")
        },
    )


def halves() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(3)
    return random.normal(size=(4, 5, 3)).astype(np.float16), random.normal(size=(4, 5, 3)).astype(
        np.float16
    )


def test_float16_outputs_are_compared_in_ulps(
    captures: CaptureSet, vivante: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = halves()
    a[0, 0] = 0, np.nan, 1
    b[0, 0] = 0, 1, -1
    layer = Elementwise("add", a.shape, scale=0.5)
    with np.errstate(invalid="ignore"):
        output = ((a.astype(float) + b) * 0.5).astype(np.float16)
    output[0, 0] = -0.0, np.nan, -0.0
    lifted_as(monkeypatch, vivante, layer, (a, b), output)
    found = check(captures["sim-1x1"])
    assert (found.verdict, found.compared, found.mismatches, found.max, found.unit) == (
        "equal",
        60,
        0,
        0,
        "ulp",
    )
    output.view(np.uint16)[2, 1, 0] ^= 1
    output.view(np.uint16)[3, 1, 2] += 7
    found = check(captures["sim-1x1"])
    assert (found.verdict, found.mismatches, found.first, found.max) == ("differs", 2, (2, 1, 0), 7)
    assert repr(found) == "Comparison(sim-1x1 (simulated): differs, 2 of 60 differ, largest 7 ulp)"
    # what differs by less than 1 differs: a difference of whole numbers would have been 0
    assert abs(float(output[3, 1, 2]) - float(found.predicted[3, 1, 2])) < 1
    assert not npulab.hypotheses(replace(found, capture=None)).equal.any()
    assert npulab.analysis.mismatch.summary.mismatches(found).differ == 2
    output[...] = 0
    found = check(captures["sim-1x1"])
    assert (found.verdict, found.reason) == (
        "not executed",
        "every output is 0, as before the job ran",
    )
    output[...] = np.nan
    assert check(captures["sim-1x1"]).reason.startswith(
        "every captured output is nan, predicted are"
    )
    lifted_as(monkeypatch, vivante, layer, (a, b), output.astype(np.float32))
    found = check(captures["sim-1x1"])
    assert (found.verdict, found.compared, found.outputs) == ("differs", 0, 60)
    assert (
        found.reason
        == "predicted are numbers of float16, captured of float32; 0 of 60 outputs were compared"
    )


def test_network_of_several_inputs_is_checked(
    captures: CaptureSet, vivante: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = halves()
    network = Network(
        (Elementwise("multiply", a.shape), Concat([a.shape, a.shape])), ((-1, -2), (0, -1))
    )
    output = np.concatenate([a * b, a], -1)
    lifted_as(monkeypatch, vivante, network, (a, b), output)
    found = check(captures["sim-1x1"])
    assert (found.verdict, found.compared, found.layer) == ("equal", 120, network)
    output[1, 2, 3] += 1
    found = check(captures["sim-1x1"])
    assert (found.verdict, found.mismatches, found.first) == ("differs", 1, (1, 2, 3))
    assert npulab.analysis.mismatch.summary.mismatches(found).border.sum() == 0
    for x in ((a, None), None):
        lifted_as(monkeypatch, vivante, network, x, None)
        found = check(captures["sim-1x1"])
        assert (found.verdict, found.complete) == ("nothing to compare", False)
        assert found.reason == "no input recorded; 0 of 120 outputs were compared"


def test_the_first_wrong_layer_of_a_network_is_named(
    captures: CaptureSet, vivante: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = halves()
    layers = (
        Elementwise("add", a.shape),
        Elementwise("multiply", a.shape),
        Elementwise("copy", a.shape),
    )
    network = Network(layers, ((-1, -2), (0, -1), (1,)))
    steps = [a + b, (a + b) * a, (a + b) * a]
    capture = bare(captures["sim-1x1"]).with_buffers(
        **{f"output:{n}": step.tobytes() for n, step in enumerate(steps)}
    )
    lifted_as(monkeypatch, vivante, network, (a, b), None)
    found = check(capture)
    assert (found.verdict, found.compared, found.reason) == (
        "equal",
        180,
        "3 of 3 layers were compared",
    )
    first = check(
        replace(capture, buffers={**bare(capture).buffers, "output:0": steps[0].tobytes()})
    )
    assert (first.verdict, first.compared, first.complete) == ("partly compared", 60, False)
    assert (
        first.reason
        == "1 of 3 layers were compared; the network's output, of layer 2, was not compared"
    )
    wrong = steps[1].copy()
    wrong[2, 1, 0] += 1
    for output in (None, steps[2]):  # what is wrong in the middle is told though the end is right
        lifted_as(monkeypatch, vivante, network, (a, b), output)
        found = check(capture.with_buffers(**{"output:1": wrong.tobytes()}))
        assert (found.verdict, found.mismatches, found.first) == ("differs", 1, (2, 1, 0))
        assert found.reason == "layer 1 is the first of 3 captured layers that differs"
        assert found.layer is layers[1]
        assert np.array_equal(found.x[0], steps[0])
        assert np.array_equal(found.x[1], a)
    lifted_as(monkeypatch, vivante, network, (a, b), steps[2] + 1)
    # captured layers are equal, the output is not
    assert check(capture).reason == "3 of 3 layers were compared"
    assert check(capture).verdict == "differs"
    lifted_as(monkeypatch, vivante, network, (a, b), None)
    assert (
        "buffer 'output:1': got 3 bytes, allowed are 120"
        in check(capture.with_buffers(**{"output:1": b"abc"})).reason
    )
    assert (
        "got buffer output:3, its network has layers 0 to 2"
        in check(capture.with_buffers(**{"output:3": b""})).reason
    )


def test_a_target_says_where_the_tensors_of_its_layers_lie(
    captures: CaptureSet, vivante: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = halves()
    network = Network((Elementwise("copy", a.shape),))

    def planar(capture: Capture, name: str, like: np.ndarray) -> np.ndarray:
        height, width, channels = like.shape
        return (
            np.frombuffer(capture.buffers[name], like.dtype)
            .reshape(channels, height, width)
            .transpose(1, 2, 0)
        )

    lifted_as(monkeypatch, vivante, network, a, None, tensor=planar)
    capture = bare(captures["sim-1x1"]).with_buffers(**{"output:0": a.transpose(2, 0, 1).tobytes()})
    assert check(capture).verdict == "equal"


def stated(*got: object) -> tuple[Claim, ...]:
    return tuple(Claim(0, f"size {n}", f"B.R.f{n}", 5, one, "net.txt") for n, one in enumerate(got))


def test_claims_decide_where_no_output_was_compared(
    captures: CaptureSet, vivante: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture, a = bare(captures["sim-1x1"]), halves()[0]
    layer = Elementwise("copy", a.shape)
    for got, verdict, reason in (
        (
            (5, 5, 5),
            "claims agree",
            "3 of 3 statements of net.txt agree; no input and no output recorded",
        ),
        (
            (5, 6, None),
            "differs",
            "1 of 3 statements of net.txt agree; task 0, size 1: B.R.f1 is 6, net.txt says 5; no input and no output recorded",
        ),
        ((), "nothing to compare", "no input and no output recorded"),
    ):
        lifted_as(monkeypatch, vivante, layer, None, None, claims=lambda _, got=got: stated(*got))
        found = check(capture)
        assert (found.verdict, found.reason, found.compared) == (verdict, reason, 0)
        assert (len(found.claims), found.claims_wrong, found.ok) == (
            len(got),
            sum(one != 5 for one in got),
            verdict != "differs",
        )
        assert repr(found) == f"Comparison(sim-1x1 (simulated): {verdict}, {reason})"
    lifted_as(monkeypatch, vivante, layer, None, None, claims=lambda _: stated(5, 5))
    found = check(captures["sim-1x1"])  # whose output is there, and is not compared
    assert (found.verdict, found.ok, found.complete) == ("claims agree", True, False)
    assert "0 of 60 outputs were compared" in found.reason


def test_claims_beside_a_compared_output(
    captures: CaptureSet, vivante: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture, a = captures["sim-1x1"], halves()[0]
    layer = Elementwise("copy", a.shape)
    lifted_as(monkeypatch, vivante, layer, a, a, claims=lambda _: stated(5, 5))
    found = check(capture)
    assert (found.verdict, found.ok, found.reason, len(found.claims)) == ("equal", True, "", 2)
    lifted_as(monkeypatch, vivante, layer, a, a, claims=lambda _: stated(5, 4))
    found = check(capture)
    assert (found.verdict, found.mismatches, found.ok, found.claims_wrong) == ("equal", 0, False, 1)
    assert (
        found.reason
        == "1 of 2 statements of net.txt agree; task 0, size 1: B.R.f1 is 4, net.txt says 5"
    )

    def broken(_: object) -> tuple[Claim, ...]:
        raise ValueError("net.txt: got no tree, allowed is one")

    lifted_as(monkeypatch, vivante, layer, a, a, claims=broken)
    found = check(capture)
    assert (found.verdict, found.reason) == ("differs", "net.txt: got no tree, allowed is one")

    def unknown(_: object) -> tuple[Claim, ...]:
        raise Unsupported("net.txt is of another kind")

    lifted_as(monkeypatch, vivante, layer, None, None, claims=unknown)
    found = check(capture)
    assert (found.verdict, found.reason) == (
        "nothing to compare",
        "net.txt is of another kind; no input recorded; 0 of 60 outputs were compared",
    )


def test_shell_tells_ulps_and_claims(
    captures: CaptureSet,
    vivante: Target,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    a = halves()[0]
    layer, output = Elementwise("copy", a.shape), a.copy()
    output.view(np.uint16)[0, 1, 2] ^= 3
    path = CAPTURES / "vivante/sim-1x1"

    def shell(*more: str) -> tuple[int, str]:
        status = cli.main(["check", str(path), *more])
        return status, capsys.readouterr().out

    lifted_as(monkeypatch, vivante, layer, a, output, claims=lambda _: stated(5, 4))
    status, out = shell("--json")
    row = json.loads(out)
    assert (status, row["unit"], row["mismatches"], row["claims"], row["claims_wrong"]) == (
        1,
        "ulp",
        1,
        2,
        1,
    )
    status, out = shell("--explain")
    assert "1 of 60 differ, largest 3 ulp" in out or "1 of 60 differ, largest 1 ulp" in out
    assert f"captured  {output.view(np.uint16)[0, 0, 0]:04X}" in out
    # lift says of these words what is not so, and the device does not ask it
    assert "equal with: the words as they are: what is lifted or emulated is wrong" in out
    assert "1 of 2 statements of net.txt agree" in out
    lifted_as(monkeypatch, vivante, layer, None, None, claims=lambda _: stated(5, 4))
    status, out = shell()
    assert status == 1
    assert "1 capture, 1 differs, 1 with nothing or not all compared (1 differs)" in out
    assert "differs  not compared" not in out  # what differs is a claim
    lifted_as(monkeypatch, vivante, layer, None, None, claims=lambda _: stated(5, 5))
    status, out = shell()
    assert status == 3  # an output was recorded, and none was compared
    assert "2 of 2 statements of net.txt agree" in out


def test_scan_of_what_has_no_codes_is_refused(
    captures: CaptureSet, vivante: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = replace(vivante, lift=lambda _: Lifted(Elementwise("copy", (2, 2, 2)), None, None))
    monkeypatch.setattr(
        importlib.import_module("npulab.analysis.scan"), "target", lambda name: made
    )
    with pytest.raises(
        ValueError,
        match=r"^layer: got Elementwise.*, allowed is a Conv2D of int8, uint8, int16; others are scanned with inputs of your own$",
    ):
        npulab.scan_capture(captures["sim-1x1"], Simulated())


def test_a_run_of_real_numbers_is_told_from_its_model_by_them() -> None:
    weights = np.full((2, 1, 1, 2), 0.5, np.float16)
    layer = npulab.Conv2D(weights, [0.25, 0.5], (2, 2, 2))
    assert runs._unlike({}, {}, layer, layer) == []
    other = npulab.Conv2D(weights / 2, [0.25, 0.75], (2, 2, 2), activation="relu")
    assert runs._unlike({}, {}, other, layer) == [
        "4 of 4 weights differ",
        "1 of 2 biases differ",
        "its outputs are within (0.0, inf), the model's (-inf, inf)",
    ]
