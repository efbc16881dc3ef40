"""Explanations of outputs that differ: every planted error is named, by arithmetic of its own,
and nothing else is.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import emulate_slowly
import numpy as np
import pytest

import npulab
from npulab import CaptureSet, Conv2D, QuantParams, check, cli, emulate, hypotheses
from npulab.analysis import mismatch
from npulab.analysis.mismatch.hypotheses import COLUMNS, summary_lines
from npulab.quant.emulate import ENGINES
from npulab.quant.layers import Add, FullyConnected
from npulab.quant.rules import RULES

RULE = "vivante-v7:half-even"
SHIFT = 8  # the ratio of scales is 2**-8: whole, so that there are ties, and many outputs saturate
ROUND: dict[str, Callable[[Fraction], int]] = {
    "half-even": round,
    "half-up": lambda v: (2 * v + 1).__floor__() // 2,
    "half-away": lambda v: (1 if v >= 0 else -1) * ((2 * abs(v) + 1).__floor__() // 2),
    "floor": lambda v: v.__floor__(),
    "toward-zero": lambda v: v.__trunc__(),
}
SUMS: dict[str, Callable[[int], int]] = {
    "exact": int,
    "wrapped": lambda n: (n + 2**15) % 2**16 - 2**15,
    "saturated": lambda n: min(max(n, -(2**15)), 2**15 - 1),
}


def plain(
    x: np.ndarray,
    weights: np.ndarray,
    bias: Any,
    zeros: tuple[int, int, int],
    pads: Any,
    stride: tuple[int, int],
    dilation: tuple[int, int] = (1, 1),
    border: int | None = None,
    rounding: str = "half-even",
    sums: str = "exact",
    clamp: tuple[int, int] | None = (0, 255),
    size: tuple[int, int] | None = None,
    mode: str = "constant",
    shift: int = SHIFT,
) -> np.ndarray:
    """A convolution as plain loops have it: codes (H, W, O) uint8; weights OHWI."""
    zx, zw, zy = zeros
    options = {"constant_values": zx if border is None else border} if mode == "constant" else {}
    image = np.pad(x.astype(int), [*pads, (0, 0)], mode=mode, **options) - zx  # type: ignore[call-overload]
    kernel = weights.astype(int) - zw
    span = [(k - 1) * d + 1 for k, d in zip(kernel.shape[1:3], dilation, strict=True)]
    height, width = size or tuple((image.shape[i] - span[i]) // stride[i] + 1 for i in (0, 1))
    out = np.empty((height, width, len(kernel)), np.uint8)
    for i, j in np.ndindex(height, width):
        r, c = i * stride[0], j * stride[1]
        window = image[r : r + span[0] : dilation[0], c : c + span[1] : dilation[1]]
        for o in range(len(kernel)):
            total = SUMS[sums](int((window * kernel[o]).sum()) + int(bias[o]))
            code = ROUND[rounding](Fraction(total, 2**shift)) + zy
            if clamp:
                code = min(max(code, clamp[0]), clamp[1])
            out[i, j, o] = code % 256
    return out


ZEROS = (100, 121, 90)
PADS = ((0, 1), (0, 1))  # "same" of 8 at stride 2
RANDOM = np.random.RandomState(5)
WEIGHTS = RANDOM.randint(0, 256, (6, 3, 3, 4)).astype(np.uint8)
BIAS = RANDOM.randint(-6000, 6000, 6)
X = RANDOM.randint(0, 256, (8, 8, 4)).astype(np.uint8)


def layer(**changed: Any) -> Conv2D:
    one = Conv2D(
        WEIGHTS,
        BIAS,
        (8, 8, 4),
        (2, 2),
        "same",
        input_q=QuantParams(0.5, ZEROS[0]),
        weight_q=QuantParams(0.25, ZEROS[1]),
        output_q=QuantParams(32.0, ZEROS[2]),
    )
    return replace(one, **changed)


def planted(
    weights: Any = WEIGHTS,
    bias: Any = BIAS,
    zeros: Any = ZEROS,
    pads: Any = PADS,
    start: tuple[int, int] = (0, 0),
    x: Any = "",
    output: Any = "",
    xor: int = 0,
    **options: Any,
) -> np.ndarray:
    """The output of the layer with changes: of its input, weights and output an order, of ``moved``;
    ``start``, the row and column where the input begins.
    """
    if isinstance(weights, str):
        weights = moved(WEIGHTS, weights)
    image = moved(X, x)[start[0] :, start[1] :]
    out = plain(image, weights, bias, zeros, pads, (2, 2), **options)
    return np.ascontiguousarray(moved(out, output)) ^ np.uint8(xor)


def moved(a: np.ndarray, order: Any) -> np.ndarray:
    """An image, or each of many, with its channels in the order of a list, or as a name says."""
    *_, height, width, channels = a.shape
    if order == "rows":
        return a[..., ::-1, :, :]
    if order == "columns":
        return a[..., ::-1, :]
    if order == "both":
        return a[..., ::-1, ::-1, :]
    if order == "swapped":
        return a.swapaxes(-3, -2)
    if order == "planes":
        return np.moveaxis(a, -1, -3).reshape(a.shape)
    if order == "pixels":
        planes = a.reshape(*a.shape[:-3], channels, height, width)
        return np.moveaxis(planes, -3, -1)
    return a[..., order] if order else a


SHARED = {  # names of one function: with pads (0, 1) and stride 2, of uint8 codes, of 4 channels
    "odd row in front": {"windows one row up"},
    "odd column in front": {"windows one column left"},
    "odd row in front, odd column in front": {"padding symmetric"},
    "windows one row down": {"sampled from row 1 and column 0 of the stride"},
    "windows one column right": {"sampled from row 0 and column 1 of the stride"},
    "windows one row down and one column right": {"sampled from row 1 and column 1 of the stride"},
    "activation relu": {"saturated before the zero point"},
    "input channels interleaved by 2": {"input channels 1 and 2 exchanged"},
}
# kind | change | what is planted
PLANTS = """
zero point | input zero point +1 | {"zeros": [101, 121, 90]}
zero point | input zero point -1 | {"zeros": [99, 121, 90]}
zero point | weight zero point +1 | {"zeros": [100, 122, 90]}
zero point | weight zero point -1 | {"zeros": [100, 120, 90]}
zero point | output zero point +1 | {"zeros": [100, 121, 91]}
zero point | output zero point -1 | {"zeros": [100, 121, 89]}
zero point | input zero point left out | {"zeros": [0, 121, 90]}
zero point | weight zero point left out | {"zeros": [100, 0, 90]}
zero point | output zero point left out | {"zeros": [100, 121, 0]}
padding | padding symmetric | {"pads": [[1, 1], [1, 1]], "size": [4, 4]}
padding | odd row in front | {"pads": [[1, 0], [0, 1]]}
padding | odd column in front | {"pads": [[0, 1], [1, 0]]}
padding | odd row in front, odd column in front | {"pads": [[1, 0], [1, 0]]}
padding | windows one row down | {"start": [1, 0], "pads": [[0, 2], [0, 1]]}
padding | windows one row up and one column right | {"start": [0, 1], "pads": [[1, 0], [0, 2]]}
padding | border of code 0 | {"border": 0}
padding | border of zero point +1 | {"border": 101}
padding | border of zero point -1 | {"border": 99}
padding | border of the edge repeated | {"mode": "edge"}
padding | border of the image mirrored | {"mode": "reflect"}
stride phase | sampled from row 1 and column 0 of the stride | {"start": [1, 0], "pads": [[0, 2], [0, 1]]}
stride phase | sampled from row 0 and column 1 of the stride | {"start": [0, 1], "pads": [[0, 1], [0, 2]]}
stride phase | sampled from row 1 and column 1 of the stride | {"start": [1, 1], "pads": [[0, 2], [0, 2]]}
clamp | activation relu | {"clamp": [90, 255]}
clamp | wraps around, not saturated | {"clamp": null}
clamp | saturated at half the range | {"clamp": [0, 127]}
clamp | saturated as the other sign | {"clamp": [-128, 127]}
clamp | lowest code left out | {"clamp": [1, 255]}
clamp | output of the other sign (xor 0x80) | {"xor": 128}
channel order | output channels reversed | {"output": [5, 4, 3, 2, 1, 0]}
channel order | output channels rotated by +1 | {"output": [5, 0, 1, 2, 3, 4]}
channel order | output channels rotated by -1 | {"output": [1, 2, 3, 4, 5, 0]}
channel order | output channels reversed in groups of 2 | {"output": [1, 0, 3, 2, 5, 4]}
channel order | output channels interleaved by 2 | {"output": [0, 3, 1, 4, 2, 5]}
channel order | output channels interleaved by 3 | {"output": [0, 2, 4, 1, 3, 5]}
channel order | output rows flipped | {"output": "rows"}
channel order | output columns flipped | {"output": "columns"}
channel order | output rows and columns swapped | {"output": "swapped"}
channel order | output stored plane by plane | {"output": "planes"}
channel order | output stored pixel by pixel | {"output": "pixels"}
channel order | output channels permuted: 0 holds 4, 1 holds 0, 4 holds 1 | {"output": [4, 0, 2, 3, 1, 5]}
channel order | input channels reversed | {"x": [3, 2, 1, 0]}
channel order | input channels interleaved by 2 | {"x": [0, 2, 1, 3]}
channel order | input rows flipped | {"x": "rows"}
channel order | input rows and columns swapped | {"x": "swapped"}
channel order | input stored plane by plane | {"x": "planes"}
kernel | kernel rows flipped | {"weights": "rows"}
kernel | kernel columns flipped | {"weights": "columns"}
kernel | kernel flipped (convolution) | {"weights": "both"}
kernel | kernel transposed | {"weights": "swapped"}
kernel | weights read pixel by pixel | {"weights": "planes"}
kernel | weights read plane by plane | {"weights": "pixels"}
kernel | dilation 2x2 | {"pads": [[1, 2], [1, 2]], "dilation": [2, 2], "size": [4, 4]}
bias | bias left out | {"bias": [0, 0, 0, 0, 0, 0]}
accumulator | wrapped at 16 bits | {"sums": "wrapped"}
accumulator | saturated at 16 bits | {"sums": "saturated"}
"""


def named(*arguments: Any) -> list[str]:
    """The changes that give the output."""
    found = hypotheses(*arguments)
    return found[found.equal].change.to_list()


@pytest.fixture(scope="module")
def right() -> np.ndarray:
    return planted()


def test_a_correct_output_is_equal_at_once(right: np.ndarray) -> None:
    found = hypotheses(layer(), X, right, RULE)
    assert found.to_numpy().tolist() == [["present", f"rule {RULE}", 0, 96, True]]
    assert summary_lines(found) == [f"equal with: rule {RULE} (0 of 96 differ)"]


@pytest.mark.sample(6)
@pytest.mark.parametrize("plant", PLANTS.strip().split("\n"))
def test_planted_error_is_named_and_nothing_else(plant: str, right: np.ndarray) -> None:
    kind, words, change = plant.split(" | ")
    output = planted(**json.loads(change))
    found = hypotheses(layer(), X, output, RULE)
    assert found.iloc[0].to_list() == [
        "present",
        f"rule {RULE}",
        np.count_nonzero(output != right),
        96,
        False,
    ]
    equal = found[found.equal]
    assert (kind, words) in set(zip(equal.kind, equal.change, strict=True))
    same = {words} | SHARED.get(words, set()) | {a for a, names in SHARED.items() if words in names}
    assert set(equal.change) <= same
    assert found.mismatches[1:].is_monotonic_increasing
    assert found.equal.equals(found.mismatches == 0)


@pytest.mark.sample(2)
@pytest.mark.parametrize("rounding", ["half-up", "half-away", "floor", "toward-zero"])
def test_planted_rounding_is_named(rounding: str) -> None:
    small = (119 + WEIGHTS % 5).astype(np.uint8)  # an output has a tie in one of four
    output = planted(weights=small, bias=BIAS % 64, rounding=rounding, shift=2)
    one = layer(weights=small, bias=BIAS % 64, output_q=QuantParams(0.5, ZEROS[2]))
    found = hypotheses(one, X, output, RULE)
    equal = found[found.equal]
    assert equal.change.iloc[0] == f"rounding rule {RULE.partition(':')[0]}:{rounding}"
    assert set(equal.kind) == {"rule"}


@pytest.mark.parametrize(("dtype", "channels"), [("uint8", False), ("int8", True), ("int16", True)])
def test_every_rule_and_engine_is_named_with_all_its_ties(dtype: str, channels: bool) -> None:
    """A rule is named equal where its own definition gives these outputs, and only there."""
    random = np.random.RandomState(3)
    kind, signed = np.dtype(dtype), dtype != "uint8"
    zero = 0 if dtype == "int16" else 5
    weights = random.randint(-60, 60, (12, 3, 3, 2)).astype(np.int8 if signed else np.uint8)
    scale = tuple((2.0**-8 * random.uniform(0.8, 1.2, 12)).tolist()) if channels else 2.0**-8 * 1.5
    wide = 200 if dtype == "int16" else 1
    one = Conv2D(
        weights,
        random.randint(-3000, 3000, 12),
        (5, 7, 2),
        padding="same",
        dtype=dtype,
        input_q=QuantParams(1.0, zero),
        output_q=QuantParams(1.0 * wide, zero),
        weight_q=QuantParams(scale, 0),
    )
    info = np.iinfo(kind)
    x = random.randint(info.min, info.max + 1, (5, 7, 2)).astype(kind)
    outputs = {}
    for name in (*RULES, *ENGINES):
        if name in RULES and dtype not in RULES[name].types:
            continue
        try:
            outputs[name] = emulate_slowly.emulate(one, x, name)
        except (ValueError, LookupError):
            continue
    assert len(outputs) > 6
    mine = next(iter(outputs))
    distinct = {output.tobytes(): (name, output) for name, output in outputs.items()}
    for name, output in distinct.values():
        found = hypotheses(one, x, output, mine)
        same = {other for other, its in outputs.items() if np.array_equal(its, output)}
        if mine in same:
            assert len(found) == 1
        else:
            named = {
                words.removeprefix("rounding rule ")
                for words in found[found.equal & (found.kind == "rule")].change
            }
            assert named - {f"{mine}:{order}" for order in "DPS"} == same, name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"zeros": (100, 121, 91), "border": 0}, "output zero point +1 with border of code 0"),
        (
            {"weights": "rows", "rounding": "floor"},
            "kernel rows flipped with rounding rule vivante-v7:floor",
        ),
        ({"x": [3, 2, 1, 0], "output": [5, 4, 3, 2, 1, 0]}, ""),  # neither alone is nearer
    ],
)
def test_two_errors_are_named_together(change: dict[str, Any], words: str) -> None:
    found = hypotheses(layer(), X, planted(**change), RULE)
    pairs = found[found.equal & found.kind.str.contains(" + ", regex=False)].change
    told = [set(pair.split(" with ")) for pair in pairs]
    assert (set(words.split(" with ")) in told) if words else not told


@pytest.mark.parametrize(
    ("channels", "steps"),
    [([3], [-1430]), ([0, 1, 2, 3, 4, 5], [1700, -1610, 1880, -1430, 2060, -1250])],
)
def test_other_bias_is_fitted(channels: list[int], steps: list[int]) -> None:
    bias = BIAS.copy()
    bias[channels] += steps
    (words,) = named(layer(), X, planted(bias=bias), RULE)
    assert words.startswith("bias off by ")
    step, channel = words.removeprefix("bias off by ").split(",")[0].split(" in channel ")
    assert int(channel) == channels[0]
    assert abs(int(step) - steps[0]) < 2**SHIFT


@pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.long)])
def test_garbage_names_nothing(times: int) -> None:
    random = np.random.RandomState(1)
    x, weights = X.copy(), WEIGHTS.copy()
    for _ in range(times):
        found = hypotheses(layer(), X, random.randint(0, 256, (4, 4, 6)).astype(np.uint8), RULE)
        assert not found.equal.any()
        assert (
            summary_lines(found)[0]
            == f"no neighbouring explanation is nearer ({found.mismatches[0]} of 96 differ)"
        )
    assert np.array_equal(X, x)
    assert np.array_equal(WEIGHTS, weights)
    # of nearly the right outputs, too
    for _ in range(times):
        wrong = planted().ravel()
        wrong[random.choice(96, 12, replace=False)] ^= 77
        assert named(layer(), X, wrong.reshape(4, 4, 6), RULE) == []
    same = np.full((4, 4, 6), 255, np.uint8)
    assert named(layer(), X, same, RULE) == []


def test_another_output_shape_is_explained_by_padding() -> None:
    output = planted(pads=((0, 0), (0, 0)))
    found = hypotheses(layer(), X, output, RULE)
    assert found.iloc[0].to_list() == [
        "present",
        f"rule {RULE}, output shape (4, 4, 6)",
        54,
        54,
        False,
    ]
    assert found[found.equal].change.to_list() == ["padding valid"]
    assert named(layer(padding="valid"), X, planted(), RULE) == ["padding same"]


def test_signed_fully_connected_depthwise_and_batches() -> None:
    random = np.random.RandomState(2)
    q = QuantParams
    dense = FullyConnected(
        random.randint(-90, 90, (7, 48)).astype(np.int8),
        random.randint(-900, 900, 7),
        input_q=q(1.0, 3),
        weight_q=q(1.0),
        output_q=q(600.0, -4),
    )
    x = random.randint(-128, 128, (4, 3, 4)).astype(np.int8)
    output = emulate(dense, np.ascontiguousarray(x.transpose(2, 0, 1)).reshape(4, 3, 4))
    assert "input stored plane by plane" in named(dense, x, output)
    rows = random.randint(-128, 128, (5, 48)).astype(np.int8)
    output = emulate(dense, rows)[:, ::-1]
    assert named(dense, rows, output) == ["output channels reversed"]

    depthwise = Conv2D(
        random.randint(-90, 90, (1, 3, 3, 8)).astype(np.int8),
        random.randint(-900, 900, 8),
        (7, 7, 8),
        padding="same",
        depthwise=True,
        input_q=q(1.0, 3),
        output_q=q(150.0, -4),
    )
    batch = random.randint(-128, 128, (2, 7, 7, 8)).astype(np.int8)
    flipped = replace(depthwise, weights=depthwise.weights[:, ::-1, ::-1])
    rule = "tflite-builtin"
    output = emulate(flipped, batch, rule)
    assert named(depthwise, batch, output, rule) == ["kernel flipped (convolution)"]
    output = np.maximum(emulate(depthwise, batch), 0)
    assert named(depthwise, batch, output) == ["nothing below code 0"]
    # the border of an int8 input that a driver filled with the byte 0x80
    padded = np.pad(batch, [(0, 0), (1, 1), (1, 1), (0, 0)], constant_values=-128)
    inside = replace(depthwise, input_shape=(9, 9, 8), padding="valid")
    output = emulate(inside, padded)
    assert named(depthwise, batch, output) == ["border of code -128"]


def test_windows_moved_at_stride_1() -> None:
    one = layer(stride=(1, 1))
    for pads, words in (
        (((2, 0), (1, 1)), "windows one row up"),
        (((1, 1), (0, 2)), "windows one column right"),
        (((0, 2), (0, 2)), "border behind only"),
    ):
        found = hypotheses(one, X, emulate(replace(one, padding=pads), X, RULE), RULE)
        assert words in set(found[found.equal].change)
        assert set(found[found.equal].kind) == {"padding"}


def test_a_comparison_is_explained(captures: CaptureSet) -> None:
    capture = captures["sim-3x3-same"]
    wrong = check(capture.with_fields(out_zero_point=capture.values["out_zero_point"] + 1))
    found = hypotheses(wrong)
    assert found.mismatches[0] == wrong.mismatches
    assert found[found.equal].change.to_list() == [
        "output zero point -1",
        f"out_zero_point {capture.values['out_zero_point']}, not "
        f"{capture.values['out_zero_point'] + 1} (simulated)",
    ]
    assert hypotheses(check(capture)).equal.to_list() == [True]


def test_bad_input_is_one_sentence(captures: CaptureSet, right: np.ndarray) -> None:
    nothing = replace(captures["sim-1x1"], buffers={})
    half = Conv2D(np.ones((1, 1, 1, 1), np.float16), np.zeros(1), (2, 2, 1))
    for arguments, words in (
        (
            (check(nothing),),
            "allowed is a layer with x and output, or a Comparison with layer, x and captured",
        ),
        ((layer(), None, right), "x: got None, allowed is a tensor"),
        ((layer(), X), "output: got None, allowed is a tensor"),
        (
            (layer(), X, right.astype(np.int8)),
            r"output: got shape \(4, 4, 6\) int8, allowed is uint8",
        ),
        ((layer(), X[1:], right), r"x: got shape \(7, 8, 4\) uint8"),
        ((half, X, right), r"x: got shape \(8, 8, 4\) uint8, allowed is \(2, 2, 1\)"),
        ((Add((2, 2)), X, right), "x: got ndarray, allowed with Add.* is a pair"),
        ((3, X, right), "layer: got 3, allowed is a layer, as emulate takes it"),
    ):
        with pytest.raises(ValueError, match=words):
            hypotheses(*arguments)
    with pytest.raises(LookupError, match="rule: got 'x', allowed is one of"):
        hypotheses(layer(), X, right, "x")


def test_the_shell_tells_what_makes_it_equal(
    captures: CaptureSet, tmp_path: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mismatch.words, "WORK", 0)  # fields have tests of their own
    monkeypatch.setattr(mismatch.words, "FEWEST", 1)
    capture = captures["sim-1x1"]
    lifted = npulab.target(capture.target).lift(capture)
    planar = {
        name: emulate(lifted.layer, lifted.x, rule).transpose(2, 0, 1).tobytes()
        for name, rule in (("rule", "vivante-v7:half-up"), ("right", RULE))
    }
    planar["garbage"] = np.random.RandomState(0).bytes(len(planar["right"]))
    for name, output in planar.items():
        npulab.save(replace(capture.with_buffers(output=output), name=name), tmp_path / name)
    npulab.save(captures["update4-mesa"], tmp_path / "update4")
    options = ["check", str(tmp_path), "--jobs"]
    assert cli.main([*options, "1", "--explain"]) == 1
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if line.startswith("  equal with")] == [
        "  equal with: rounding rule vivante-v7:half-up or rounding rule single-half-up or rounding rule "
        "vivante-v8:half-up (0 of 3456 differ)"
    ]
    assert text.count("  no neighbouring explanation is nearer (34") == 1
    assert text.count("  best of each kind alone: ") == 2

    shutil.rmtree(tmp_path / "garbage")
    assert cli.main([*options, "1", "--json"]) == 1
    short = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert cli.main([*options, "2", "--json", "--explain"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    explanations = {row["case"]: row.pop("explanations") for row in rows}
    assert rows == short
    assert explanations["right"] == explanations["update4"] == []
    present = ["present", f"rule {RULE}", 3, 3456, False]
    assert explanations["rule"][0] == dict(zip(COLUMNS, present, strict=True))
    assert {row["change"] for row in explanations["rule"] if row["equal"]} == {
        f"rounding rule {name}"
        for name in ("single-half-up", "vivante-v7:half-up", "vivante-v8:half-up")
    }


def test_channels_and_rows_that_nobody_wrote_are_named(right: np.ndarray) -> None:
    output = right.copy()
    output[..., [1, 2, 3, 5]] = ZEROS[2]
    found = hypotheses(layer(), X, output, RULE)
    equal = found[found.equal]
    assert equal.change.to_list() == ["channels 1 to 3, 5: captured is 90 everywhere"]
    assert equal.kind.to_list() == ["unwritten"]
    output = planted(rounding="floor")
    output[2:] = 0
    found = hypotheses(layer(), X, output, RULE)
    words = "rows 2 and 3: captured is 0 everywhere"
    assert words in found[~found.kind.str.contains(" + ", regex=False)].change.to_list()
    assert any(words in change.split(" with ") for change in found[found.equal].change)
    output = np.random.RandomState(6).randint(1, 256, right.shape).astype(np.uint8)
    kept = right.copy()
    kept[..., :2], kept[:2, :, 2:] = 0, output[:2, :, 2:]
    (first, *_) = summary_lines(hypotheses(layer(), X, kept, RULE))
    assert "channels 0 and 1: captured is 0 everywhere" in first


def test_small_and_constant_outputs_are_not_fitted() -> None:
    """A kernel that only fits with its border; few outputs, and channels that say nothing,
    explain nothing.
    """
    random = np.random.RandomState(4)
    one = Conv2D(
        random.randint(0, 256, (3, 4, 4, 2)).astype(np.uint8),
        np.zeros(3, int),
        (3, 3, 2),
        padding="same",
        output_q=QuantParams(9000.0, 3),
    )
    x = random.randint(0, 256, (3, 3, 2)).astype(np.uint8)
    output = emulate(one, x)
    assert named(one, x, output[:, ::-1]) == ["output columns flipped"]
    output[..., 1] = 77
    assert named(one, x, output) == []
    few = hypotheses(
        replace(one, input_shape=(1, 1, 2)), x[:1, :1], np.full((1, 1, 3), 9, np.uint8)
    )
    assert len(few) > 20
    assert summary_lines(few.assign(equal=few.index == 1, mismatches=(few.index != 1) * 3))[
        0
    ].endswith("; 3 outputs are too few to be sure")
