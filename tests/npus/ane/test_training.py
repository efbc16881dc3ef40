"""A training step: its account to the printed digits, its kernels against plain loops, its
gradients.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ane_gradients import check_gradients, chosen_directions, derivative, varied
from conftest import shared

from npulab.npus.ane.training import (
    KERNELS,
    Kernel,
    Step,
    achieved,
    causal_mask,
    counts,
    example,
    given_to,
    loss_scales,
    operations,
    precision,
    published,
    roofline_points,
    run,
    summaries,
    summary,
    traffic,
    train,
    utilization,
)
from npulab.npus.ane.training.accounting import history, peaks
from npulab.npus.ane.training.kernels import HERE, contract, result
from npulab.support.files import read_table

PUBLISHED = Step(768, 2048, 512, 12)
SMALL = Step(6, 5, 4, 2)
NPU = [name for name, kernel in KERNELS.items() if kernel.unit == "NPU"]


# the account


def test_the_published_count_is_exact() -> None:
    assert published(PUBLISHED) == 16_508_780_544
    table = counts(PUBLISHED).set_index("count")
    assert table["flops"].tolist()[0] == published(PUBLISHED)
    assert f"{table.loc['forward attention', 'with_published'] / 1e9:.3f}" == "17.314"
    assert f"{table.loc['weight gradients on the CPU', 'with_published'] / 1e9:.2f}" == "23.76"
    rows = operations(PUBLISHED)
    assert rows["flops"].sum() == table["step"].iloc[-1] == table["flops"].sum()
    assert rows.loc[rows["unit"] == "NPU", "flops"].sum() == table["NPU"].iloc[-1]
    assert set(rows.loc[~rows["counted"], "left_out"]) == set(table.index[1:])


@pytest.mark.parametrize(
    "step",
    [
        PUBLISHED,
        SMALL,
        Step(1, 1, 1, 1),
        Step(35, 11, 7, 5),
        Step(96, 31, 7, 3),
        Step(64, 64, 1, 1),
        Step(1024, 2816, 256, 16),
        Step(4096, 11008, 2048, 32),
    ],
)
def test_the_count_by_rows_is_the_count_by_formula(step: Step) -> None:
    d, h, s = step.dim, step.hidden, step.seq
    rows = operations(step)
    linear = 2 * s * (4 * d * d + 3 * d * h)
    attention = 2 * step.heads * s * s * step.head
    assert rows.loc[rows["kind"] == "linear", "flops"].sum() == 2 * linear
    matmul = rows[rows["kind"] == "matmul"].groupby("kernel")["flops"].sum()
    assert matmul.to_dict() == {
        "forward_attention": 2 * attention,
        "sdpa_backward_1": 3 * attention,
        "sdpa_backward_2": 2 * attention,
        "weight_gradients": linear,
    }
    assert rows.loc[rows["counted"], "flops"].sum() == published(step) == 2 * linear + 5 * attention
    assert rows.loc[~rows["counted"], "left_out"].astype(bool).all()
    forward = counts(step).set_index("count").loc["forward attention"]
    assert forward["flops"] == 2 * attention
    assert forward["with_published"] == published(step) + 2 * attention


def test_the_count_is_what_running_does(monkeypatch: pytest.MonkeyPatch) -> None:
    done: dict[str, int] = {}

    def counted(
        one: np.ndarray, one_axes: str, other: np.ndarray, other_axes: str, axes: str, sums: str
    ) -> Any:
        sizes = dict(zip(one_axes + other_axes, one.shape + other.shape, strict=True))
        done["flops"] = done.get("flops", 0) + 2 * math.prod(sizes.values())
        return contract(one, one_axes, other, other_axes, axes, sums)

    monkeypatch.setattr("npulab.npus.ane.training.kernels.contract", counted)
    train(SMALL, example(SMALL))
    rows = operations(SMALL)
    assert done["flops"] == rows.loc[rows["kind"].isin(["linear", "matmul"]), "flops"].sum()


def test_history_to_the_printed_digits() -> None:
    table = history()
    assert table["ms"].tolist() == [33.5, 20.3, 14.2, 11.4, 11.4, 11.4, 9.3]
    assert table["percent"].tolist() == [3.1, 5.2, 7.4, 9.2, 9.2, 9.2, 11.2]
    assert [f"{value:.2f}" for value in table["utilization"]] == [
        "3.12",
        "5.15",
        "7.36",
        "9.17",
        "9.17",
        "9.17",
        "11.24",
    ]
    assert table["agrees"].all()
    for row in table.itertuples():
        # 5.2 at 20.3 ms: the time was rounded too
        most, least = (published(PUBLISHED) / (row.ms + off) / 1e9 / 0.158 for off in (-0.05, 0.05))
        assert least - 0.05 <= row.percent <= most + 0.05
    last = table.iloc[-1]
    assert (f"{last['achieved']:.4f}", f"{last['achieved']:.2f}", f"{last['utilization']:.3f}") == (
        "1.7751",
        "1.78",
        "11.235",
    )
    assert last["tflops"] == 1.78
    both = counts(PUBLISHED).set_index("count")["with_published"]
    with_forward = achieved(both["forward attention"], 9.3)
    assert (f"{with_forward:.3f}", f"{utilization(with_forward, 15.8):.1%}") == ("1.862", "11.8%")
    assert f"{achieved(both['weight gradients on the CPU'], 9.3):.2f}" == "2.55"


def test_history_disagrees_where_the_dims_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys.modules["npulab.npus.ane.training.accounting"],
        "published",
        lambda step: published(replace(step, seq=256)),
    )
    assert not history()["agrees"].any()


def test_history_is_that_of_the_captured_claims() -> None:
    claims = json.loads(shared("data/ane/captures/maderix_training_claims.json").read_text())
    table = history()
    assert table[["ms", "percent"]].drop_duplicates().to_numpy().tolist() == [
        [row["ms"], row["util"]] for row in claims["history"]
    ]
    seed = claims["seed_claim"]
    step = Step(seed["dim"], seed["hidden"], seed["seq"], seed["heads"])
    rate = achieved(published(step), seed["ms_per_step"])
    assert (round(rate, 2), round(100 * utilization(rate, seed["peak_tflops"]), 1)) == (
        seed["tflops"],
        seed["util_pct"],
    )


def test_peaks() -> None:
    table = peaks()
    measured = table[table["kind"] == "measured"]
    assert [f"{flops / 1e9:.1f}" for flops in measured["flops"]][:2] == [
        "274.9"
    ] * 2  # 128 of 512 channels, 64x64
    assert measured["agrees"].all()
    assert [f"{value:.1f}" for value in measured["achieved"]] == ["18.6", "35.2", "18.3", "34.4"]
    assert table["source"].all()


def test_bytes_of_the_surfaces() -> None:
    d, h, s = 768, 2048, 512
    scores = 12 * s
    table = traffic(PUBLISHED).set_index("kernel")
    # channels in and out as the published program allocates them
    channels = {
        "forward_attention": (d, 6 * d),
        "forward_ffn": (d, 2 * d + 3 * h),
        "ffn_backward": (d + 2 * h, d + 2 * h),
        "sdpa_backward_1": (4 * d, d + 2 * scores),
        "sdpa_backward_2": (2 * scores + 2 * d, 2 * d),
        "qkv_backward": (3 * d, d),
    }
    for name, (inputs, outputs) in channels.items():
        assert table.loc[name, "inputs"] == 2 * inputs * s
        assert table.loc[name, "outputs"] + table.loc[name, "taps"] == 2 * outputs * s
    assert table.loc["forward_attention", "weights"] == 2 * (4 * d * d + d + s * s)
    assert table.loc["forward_ffn", "weights"] == 2 * (3 * d * h + d)
    assert table.loc["ffn_backward", "weights"] == 2 * 3 * d * h
    assert table.loc["sdpa_backward_2", "weights"] == 0
    assert (table["bytes"] == table[["weights", "inputs", "outputs", "taps"]].sum(axis=1)).all()
    assert table.loc["sdpa_backward_2", "intensity"] == 52.2
    assert table.loc["residual", "bytes"] == 4 * 3 * 4 * d * s


def test_bytes_aligned() -> None:
    plain, aligned = (
        traffic(Step(3, 5, 7, 1), row_align=align, weight_align=align).set_index("kernel")
        for align in (1, 64)
    )
    assert plain.loc["qkv_backward", ["weights", "inputs", "outputs"]].tolist() == [
        3 * 9 * 2,
        9 * 14,
        3 * 14,
    ]
    assert aligned.loc["qkv_backward", ["weights", "inputs", "outputs"]].tolist() == [
        3 * 64,
        9 * 64,
        3 * 64,
    ]
    assert plain.loc["rms_backward"].equals(aligned.loc["rms_backward"])
    four = traffic(Step(3, 5, 7, 1), itemsize=4).set_index("kernel")
    assert four.loc["qkv_backward", "bytes"] == 2 * plain.loc["qkv_backward", "bytes"]


def test_points_of_a_roofline() -> None:
    points = roofline_points(PUBLISHED, {"qkv_backward": 1.5})
    assert points["name"].tolist() == NPU
    assert points["ms"].dropna().tolist() == [1.5]
    with pytest.raises(
        LookupError,
        match=r"^ms: got a time of 'residual', allowed is one of forward_attention, .*qkv_backward$",
    ):
        roofline_points(PUBLISHED, {"residual": 1})


# the kernels


def half(value: float) -> float:
    return float(np.float16(value))


def plain_ffn16(step: Step, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The forward FFN with each number rounded by itself: sums of products one after the other,
    in float16.
    """

    def each(operation: Callable[..., float], *arrays: np.ndarray) -> np.ndarray:
        exact = np.vectorize(operation, otypes=[np.float64])(*arrays)
        return exact.astype(np.float16).astype(np.float64)

    def product(weight: np.ndarray, x: np.ndarray) -> np.ndarray:
        out = np.zeros((len(weight), x.shape[1]))
        for row, column in np.ndindex(out.shape):
            for at in range(len(x)):
                out[row, column] = half(out[row, column] + weight[row, at] * x[at, column])
        return out

    g = {name: each(float, array) for name, array in given.items()}
    squares = each(lambda a: a * a, g["x"])
    total = np.zeros(step.seq)
    for row in squares:
        total = each(lambda a, b: a + b, total, row)
    mean = each(lambda a: a * half(1 / step.dim), total)
    biased = each(lambda a: a + half(1e-5), mean)
    rrms = each(lambda a: a**-0.5, biased)
    xn = each(lambda a, b: a * b, each(lambda a, b: a * b, g["x"], rrms), g["rms"][:, None])
    h1, h3 = product(g["w1"], xn), product(g["w3"], xn)
    sigma = each(lambda a: 1 / (1 + math.exp(-a)), h1)
    gate = each(lambda a, b: a * b, each(lambda a, b: a * b, h1, sigma), h3)
    return {"xn": xn, "h1": h1, "h3": h3, "gate": gate, "out": product(g["w2"], gate)}


def test_float16_is_rounded_after_every_operation() -> None:
    step = Step(9, 5, 6, 3)
    start = example(step, 1)
    given = {
        "x": start["x"],
        "rms": start["rms2"],
        "w1": start["w1"],
        "w2": start["w2"],
        "w3": start["w3"],
    }
    done = run("forward_ffn", step, given, accumulate="float16")
    expected = plain_ffn16(step, given)
    for name, array in {**done.outputs, **done.taps}.items():
        assert array.dtype == np.float16
        assert np.array_equal(array.astype(float), expected[name]), name
    single = run("forward_ffn", step, given)
    assert any(not np.array_equal(single.values[name], done.values[name]) for name in single.values)


@pytest.mark.parametrize("kind", ["mul", "add", "sub", "div"])
def test_float16_by_way_of_float32_is_float16_by_way_of_float64(kind: str) -> None:
    plan = Kernel.read(
        {"name": "one", "inputs": "x:cs w:cs", "outputs": "out"}, f"out cs {kind} x w"
    )
    bits = np.random.default_rng(4).integers(0, 2**16, (2, 250, 400), np.uint16)
    bits[:, :60] &= 0x83FF  # subnormals
    bits[0, 60:120] &= 0xBBFF  # below 2, so that many meet on a boundary
    half = dict(zip("xw", bits.view(np.float16), strict=True))
    wide = {name: array.astype(float) for name, array in half.items()}
    step = Step(250, 1, 400, 1)
    short = result(plan.operations[0], step, half, "float16")
    long = result(plan.operations[0], step, wide, "float16")
    assert short.dtype == long.dtype == np.float16
    assert np.array_equal(short, long, equal_nan=True)


def test_taps_are_returned_and_scores_are_causal() -> None:
    step = Step(8, 4, 5, 2)
    done = run("forward_attention", step, inputs(step, "forward_attention"), "float32")
    assert list(done.outputs) == ["out"]
    assert list(done.taps) == ["q", "k", "v", "attended", "xn"]
    assert {array.dtype.name for array in done.values.values()} == {"float32"}
    probs = done.values["probs"]
    assert np.array_equal(np.triu(probs, 1), np.zeros_like(probs))
    assert np.allclose(probs.sum(-1), 1)
    assert repr(done) == (
        "Run(forward_attention: out (8, 5), q (8, 5), k (8, 5), v (8, 5), attended (8, 5), xn (8, 5), float32)"
    )
    without = run(
        "forward_attention", step, {**inputs(step, "forward_attention"), "mask": np.zeros((5, 5))}
    )
    assert not np.array_equal(without.outputs["out"], done.outputs["out"])


def inputs(step: Step, kernel: str, seed: int = 0) -> dict[str, np.ndarray]:
    """What a kernel is given in a step, by a random chain."""
    return given_to(kernel, train(step, example(step, seed)))


@pytest.mark.parametrize("kernel", NPU)
@pytest.mark.parametrize("accumulate", ["float64", "float32", "float16"])
def test_every_kernel_in_float16_is_near_float64(kernel: str, accumulate: str) -> None:
    step = Step(16, 24, 9, 4)
    given = inputs(step, kernel)
    exact, rounded = (
        run(kernel, step, given, "float64"),
        run(kernel, step, given, "float16", accumulate),
    )
    for name, array in exact.outputs.items():
        got = rounded.outputs[name].astype(float)
        assert got.shape == array.shape
        assert 0 < np.linalg.norm(got - array) < 1e-2 * np.linalg.norm(array)


@pytest.mark.parametrize(
    ("axes", "shapes"),
    [
        ("ce,es->cs", ((3, 4), (4, 5))),
        ("hds,hdt->hst", ((2, 3, 4), (2, 3, 5))),
        ("hst,hdt->hds", ((2, 4, 5), (2, 3, 5))),
        ("cf,cs->fs", ((3, 4), (3, 5))),
        ("c,s->cs", ((3,), (4,))),
        ("s,s->", ((3,), (3,))),
    ],
)
def test_contractions_are_those_of_einsum(axes: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    random = np.random.default_rng(1)
    one, other = (random.integers(-9, 9, shape).astype(float) for shape in shapes)
    left, right, out = axes.replace("->", ",").split(",")
    for sums in ("float64", "float32", "float16"):
        made = contract(one, left, other, right, out, sums)
        assert np.array_equal(made, np.einsum(axes, one, other)), sums


def test_float16_sums_lose_what_float32_sums_keep() -> None:
    step = Step(4096, 1, 1, 1)
    given = {
        "x": np.ones((4096, 1)),
        "rms": np.ones(4096),
        "w1": np.ones((1, 4096)),
        "w2": np.ones((4096, 1)),
        "w3": np.ones((1, 4096)),
    }
    assert run("forward_ffn", step, given).values["square_sum"] == 4096
    assert run("forward_ffn", step, given, accumulate="float16").values["square_sum"] == 2048
    large = run("forward_ffn", step, {**given, "x": 5 * np.ones((4096, 1))})
    assert np.isinf(large.values["square_sum"]).all()
    assert large.values["xn"].tolist() == np.zeros((4096, 1)).tolist()


# the gradients


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "step", [Step(4, 5, 3, 2), Step(5, 3, 2, 1), Step(3, 2, 4, 3), Step(4, 3, 1, 2)]
)
def test_gradients_are_those_of_central_differences(step: Step) -> None:
    table = check_gradients(step, seed=step.dim)
    assert table["relative"].max() < 1e-6
    assert {"forward_attention", "forward_ffn"} <= set(table["forward"])
    # the weight of a single position is 1 whatever its score, so no gradient reaches the score
    still = {"dq", "dk", "dwq", "dwk"} if step.seq == 1 else set()
    assert set(table["gradient"][table["largest"] == 0]) == still
    assert set(table["kernel"]) == {name for name in KERNELS if "backward" in name} | {
        "weight_gradients",
        "loss",
        "whole layer",
    }
    backward = [KERNELS[name].outputs for name in NPU if "backward" in name]
    passed = set().union(*backward) - {"probs", "dxn"}
    weights = {*KERNELS["weight_gradients"].outputs, "drms1", "drms2"}
    assert set(table["gradient"]) == {
        *passed,
        *weights,
        "dxn1",
        "dxn2",
        "dnorm1",
        "dnorm2",
        "dy",
        "dx",
    }


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "step", [SMALL, Step(1, 1, 1, 1), Step(3, 7, 1, 3), Step(7, 2, 5, 7), Step(8, 9, 2, 2)]
)
def test_gradients_are_those_of_complex_steps(step: Step) -> None:
    assert check_gradients(step, seed=1, method="complex")["relative"].max() < (
        1e-12 if step.dim > 1 else 1e-10
    )  # one channel: all cancels but epsilon


@pytest.mark.parametrize("method", ["central", "complex"])
def test_gradients_along_random_directions(method: str) -> None:
    table = check_gradients(Step(48, 80, 24, 4), method=method, directions=2)
    assert set(table["compared"]) == {2}
    assert table["relative"].max() < {"central": 1e-6, "complex": 1e-12}[method]


@pytest.mark.long
def test_gradients_at_the_published_sizes() -> None:
    assert (
        check_gradients(PUBLISHED, method="complex", directions=1)["relative"].max() < 1e-8
    )  # one number each, which may cancel


def test_gradients_of_large_scores_and_gates() -> None:
    start = example(SMALL, 2)
    tensors = {
        **start,
        **{name: 5 * start[name] for name in ("wq", "w1")},
        "dy": 1e-6 * start["dy"],
    }
    assert check_gradients(SMALL, tensors, method="complex")["relative"].max() < 1e-11


def changed(kernel: str, *edits: tuple[str, str]) -> Kernel:
    """A kernel with rows replaced."""
    plan = KERNELS[kernel]
    rows = []
    for row in plan.operations:
        operands = [f"{one.name}:{one.axes}".rstrip(":") for one in row.operands]
        rows.append(" ".join([row.name, row.axes or "-", row.kind, *operands]))
    for old, new in edits:
        rows[rows.index(old)] = new
    row = next(row for row in read_table(HERE / "kernels.csv") if row["name"] == kernel)
    return Kernel.read(row, "\n".join(rows))


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("kernel", "old", "new", "wrong"),
    [
        (
            "ffn_backward",
            "bracket fs add one bend:fs",
            "bracket fs sub one bend:fs",
            {"dxn2", "dh1"},
        ),
        (
            "sdpa_backward_1",
            "dattended es linear wo:ce dy:cs",
            "dattended es linear wo:ec dy:cs",
            {"dv", "dp", "dwv"},
        ),
        (
            "sdpa_backward_2",
            "dscores hst mul dscaled:hst scale",
            "dscores hst mul dscaled:hst one",
            {"dq", "dk", "dwq"},
        ),
        (
            "sdpa_backward_2",
            "centred hst sub dp:hst average:hs",
            "centred hst add dp:hst average:hs",
            {"dq", "dk"},
        ),
        (
            "qkv_backward",
            "dxn es add dxqk:es dxv:es",
            "dxn es add dxqk:es dxk:es",
            {"dxn1", "dnorm1", "drms1"},
        ),
        # the published program multiplies what is subtracted by the weight of the norm once more
        (
            "rms_backward",
            "parallel cs mul x:cs correction:s",
            "own cs mul x correction\nparallel cs mul own rms",
            {"dnorm1", "dnorm2", "dx"},
        ),
        (
            "rms_backward",
            "dx cs mul across:cs rrms:s",
            "dx cs mul weighted:cs rrms:s",
            {"dnorm1", "dnorm2", "dx"},
        ),
        (
            "loss",
            "doubled cs add difference:cs difference:cs",
            "doubled cs add difference:cs squares:cs",
            {"dy"},
        ),
        ("weight_gradients", "dwk ce matmul dk:cs xn1:es", "dwk ce matmul dq:cs xn1:es", {"dwk"}),
    ],
)
def test_a_wrong_gradient_is_found(
    monkeypatch: pytest.MonkeyPatch, kernel: str, old: str, new: str, wrong: set[str]
) -> None:
    monkeypatch.setitem(KERNELS, kernel, changed(kernel, (old, new)))
    table = check_gradients(Step(4, 3, 3, 2), method="complex")
    assert wrong <= set(table.loc[table["relative"] > 1e-2, "gradient"])


def test_changed_kernels_are_the_same_where_nothing_changes() -> None:
    for name in KERNELS:
        assert changed(name) == KERNELS[name]


def test_loss_is_a_mean_of_squares() -> None:
    y, target = np.random.default_rng(0).standard_normal((2, 6, 4))
    done = run("loss", SMALL, {"y": y, "target": target}, "float64")
    assert done.outputs["loss"] == pytest.approx(((y - target) ** 2).mean(), rel=1e-14)
    assert np.allclose(done.outputs["dy"], 2 * (y - target) / 24, rtol=1e-14)
    assert traffic(SMALL, ["loss"])["outputs"].tolist() == [4 * (1 + 24)]


def differentiate(
    kernel: Kernel, step: Step, given: dict[str, np.ndarray], wrt: str, dy: np.ndarray
) -> np.ndarray:
    """The derivative of ``sum(dy * first output)`` by each element of a tensor, as
    ``check_gradients`` takes it.
    """
    loss, at = varied(kernel, step, given, wrt, dy)
    return np.array(
        [derivative(loss, at, along, "complex") for along in chosen_directions(at.shape, 0, 0)]
    ).reshape(at.shape)


def test_derivative_by_a_result_of_the_way() -> None:
    given = inputs(SMALL, "forward_ffn")
    dy = np.ones((6, 4))
    by_gate = differentiate(KERNELS["forward_ffn"], SMALL, given, "gate", dy)
    assert np.allclose(by_gate, given["w2"].T @ dy)


# what rounding costs

WIDE = Step(24, 40, 12, 3)


def rms(exact: np.ndarray, got: np.ndarray) -> float:
    return float(np.sqrt(((got.astype(float) - exact) ** 2).sum() / (exact**2).sum()))


@pytest.mark.parametrize("kernel", NPU)
def test_precision_is_that_of_runs(kernel: str) -> None:
    table = precision(kernel, WIDE, seed=5).set_index("operation")
    plan, given = KERNELS[kernel], inputs(WIDE, kernel, 5)
    exact, got = run(kernel, WIDE, given, "float64"), run(kernel, WIDE, given)
    assert list(table.index) == [*plan.given, *(row.name for row in plan.operations)]
    below = np.tri(WIDE.seq, dtype=bool)
    for name in (*plan.outputs, *plan.taps):
        right, wrong = exact.values[name], got.values[name].astype(float)
        if plan.axes(name).endswith("st"):
            right, wrong = right[:, below], wrong[:, below]
        assert table.loc[name, "all_rms"] == pytest.approx(rms(right, wrong), rel=1e-12)
        ulps = np.abs(wrong - right) / np.maximum(
            np.spacing(np.abs(right).astype(np.float16)).astype(float), 2.0**-24
        )
        assert table.loc[name, "all_ulps"] == pytest.approx(
            ulps.max(), rel=0.6
        )  # beside a power of two numpy's is the next one's
        assert table.loc[name, "all_max"] == pytest.approx(
            np.abs((wrong - right)[right != 0] / right[right != 0]).max(), rel=1e-12
        )
    elementwise = table[~table["kind"].isin(["linear", "matmul", "sum", "given"])]
    constant = np.zeros(len(elementwise), bool)
    for row in plan.operations:
        if any(not operand.axes for operand in row.operands):
            constant |= elementwise.index == row.name
    assert (elementwise.loc[~constant, "own_ulps"] <= 0.5).all()
    assert (elementwise["own_ulps"] <= 1.5).all()
    assert (table["own_rms"] < 2**-11).all()
    assert table["share"].sum() == pytest.approx(1)
    together = float(np.sqrt((table["effect"] ** 2).sum()))
    worst = table.loc[[*plan.outputs, *plan.taps], "all_rms"].max()
    assert worst / 3 < together < 3 * worst


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("forward_attention", "x"),
        ("forward_ffn", "w2"),
        ("sdpa_backward_2", "probs"),
        ("qkv_backward", "dk"),
    ],
)
def test_effect_is_that_of_one_tensor_rounded(kernel: str, name: str) -> None:
    given = inputs(WIDE, kernel)
    exact = run(kernel, WIDE, given, "float64")
    moved = run(kernel, WIDE, {**given, name: given[name].astype(np.float16)}, "float64")
    effect = max(rms(exact.values[out], moved.values[out]) for out in (*exact.outputs, *exact.taps))
    assert precision(kernel, WIDE).set_index("operation").loc[name, "effect"] == pytest.approx(
        effect, rel=1e-9
    )


def test_numbers_that_fit_cost_nothing() -> None:
    given = {name: array.astype(np.float16) for name, array in inputs(WIDE, "ffn_backward").items()}
    table = precision("ffn_backward", WIDE, given)
    assert (table.loc[table["kind"] == "given", ["own_max", "effect", "all_rms"]] == 0).all(
        axis=None
    )
    single = precision("ffn_backward", WIDE, dtype="float32")
    assert single["own_rms"].max() < 2e-7
    assert single["all_rms"].max() < 1e-6


def test_sums_in_float16_cost_more() -> None:
    coarse, fine = (
        precision("forward_ffn", Step(256, 64, 4, 1), accumulate=sums).set_index("operation")
        for sums in ("float16", "float32")
    )
    assert coarse.loc["square_sum", "own_rms"] > 3 * fine.loc["square_sum", "own_rms"]
    assert coarse.loc["out", "all_rms"] > 2 * fine.loc["out", "all_rms"]


def test_precision_is_the_same_twice() -> None:
    assert precision("forward_ffn", WIDE, seed=2).equals(precision("forward_ffn", WIDE, seed=2))
    assert not precision("forward_ffn", WIDE, seed=2).equals(precision("forward_ffn", WIDE, seed=3))


def test_overflow_is_counted() -> None:
    given = inputs(WIDE, "forward_ffn")
    table = precision("forward_ffn", WIDE, {**given, "x": 300 * given["x"]}).set_index("operation")
    assert table.loc["square_sum", "overflow"] == WIDE.seq
    assert table.loc["squares", "overflow"] > 0
    assert np.isinf(table.loc["square_sum", "all_rms"])
    assert table.loc["x", "overflow"] == 0
    assert table["share"].sum() == pytest.approx(1)
    assert "overflow" in summary(precision("forward_ffn", WIDE, {**given, "x": 300 * given["x"]}))


def test_scores_below_the_mask_do_no_harm() -> None:
    given = inputs(WIDE, "forward_attention")
    given = {**given, "wq": 8 * given["wq"], "wk": 8 * given["wk"]}
    done = run("forward_attention", WIDE, given)
    assert np.isneginf(done.values["masked"]).any()
    assert np.isfinite(done.outputs["out"]).all()
    table = precision("forward_attention", WIDE, given)
    assert table["overflow"].sum() == 0


def test_loss_scale_saves_small_gradients() -> None:
    table = loss_scales(WIDE, [1, 2**20, 2**40], gradient=1e-8)
    counts = table.groupby("loss_scale")[["overflow", "underflow", "subnormal"]].sum()
    assert counts.loc[1, "underflow"] > 1000 > 10 > counts.loc[2**20, "underflow"]
    assert (
        counts.loc[1, "overflow"]
        == counts.loc[2**20, "overflow"]
        == 0
        < counts.loc[2**40, "overflow"]
    )
    assert table["kernel"].unique().tolist() == [name for name in NPU if "backward" in name]
    assert (
        table.loc[table["loss_scale"] == 2**20, "rms"].max()
        < 2e-3
        < table.loc[table["loss_scale"] == 1, "rms"].min()
    )
    scaled = precision("qkv_backward", WIDE, loss_scale=2.0**10).set_index("operation")
    plain = precision("qkv_backward", WIDE).set_index("operation")
    assert scaled.loc["dxn", "own_max"] <= plain.loc["dxn", "own_max"]
    assert scaled.loc["wq", "own_rms"] == plain.loc["wq", "own_rms"]


def test_cancelling_is_no_underflow() -> None:
    given = {"x": np.full((2, 1), 2049.0), "branch": np.full((2, 1), -2048.0)}
    table = precision("residual", Step(2, 1, 1, 1), given).set_index("operation")
    assert table.loc["sum", ["underflow", "all_max", "all_rms"]].tolist() == [0, 1, 1]


def test_summaries_print_every_kernel() -> None:
    table = summaries(WIDE)
    assert table["kernel"].unique().tolist() == NPU
    for name, outputs in table.groupby("kernel")["output"]:
        assert outputs.tolist() == [*KERNELS[name].outputs, *KERNELS[name].taps]
    assert table["rms"].between(1e-5, 5e-3).all()
    text = summary(precision("qkv_backward", WIDE))
    assert re.fullmatch(
        r"qkv_backward in float16, sums in float32: dxn 0\.000\d+ RMS and [\d.]+ ulps; most from \w+ \d+%, \w+ \d+%, \w+ \d+%; "
        r"0 overflow, \d+ underflow, \d+ subnormal of 4032 numbers",
        text,
    ), text


# what is refused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((768, 2048, 512, 5), "heads: got 5, allowed with dim 768 is a divisor of it"),
        ((0, 1, 1, 1), "dim: got 0, allowed is a whole number from 1 to 262144"),
        ((4, 2.5, 1, 1), "hidden: got 2.5, allowed is a whole number from 1 to 262144"),
        ((4, 1, 2**40, 1), "seq: got 1099511627776, allowed is a whole number from 1 to 262144"),
        ((4, 1, 1, True), "heads: got True, allowed is a whole number from 1 to 262144"),
        ((4, "8", 1, 1), "hidden: got '8', allowed is a whole number from 1 to 262144"),
        ((4, 1, -1, 1), "seq: got -1, allowed is a whole number from 1 to 262144"),
    ],
)
def test_sizes_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        Step(*given)
    assert str(error.value) == message


def test_the_largest_step_fits_int64() -> None:
    most = Step(2**18, 2**18, 2**18, 2**18)
    table = operations(most)
    assert table["flops"].min() > 0
    assert counts(most)["step"].iloc[-1] == sum(map(int, table["flops"]))


GIVEN = {**{f"d{n}": np.zeros((6, 4)) for n in "qkv"}, **{f"w{n}": np.zeros((6, 6)) for n in "qkv"}}


@pytest.mark.parametrize(
    ("changes", "options", "error", "message"),
    [
        (
            {"wq": np.zeros((6, 5))},
            {},
            ValueError,
            "qkv_backward: tensor wq: got shape (6, 5) of float64, allowed is (6, 6) of real numbers",
        ),
        (
            {"wq": None},
            {},
            ValueError,
            "qkv_backward: got no tensor 'wq', allowed are dq, dk, dv, wq, wk, wv",
        ),
        (
            {"w": 1},
            {},
            ValueError,
            "qkv_backward: got tensor 'w', allowed are dq, dk, dv, wq, wk, wv",
        ),
        (
            {"dq": [[1], [1, 2]]},
            {},
            ValueError,
            "qkv_backward: tensor dq: got rows of different lengths, allowed is (6, 4) of real numbers",
        ),
        (
            {"dq": np.zeros((6, 4), complex)},
            {},
            ValueError,
            "qkv_backward: tensor dq: got shape (6, 4) of complex128, allowed is (6, 4) of real numbers",
        ),
        (
            {},
            {"dtype": "bfloat16"},
            LookupError,
            "dtype: got 'bfloat16', allowed is one of float16, float32, float64",
        ),
        (
            {},
            {"accumulate": "int32"},
            LookupError,
            "accumulate: got 'int32', allowed is one of float16, float32, float64",
        ),
    ],
)
def test_tensors_refused(changes: Any, options: Any, error: type[Exception], message: str) -> None:
    given = {name: array for name, array in {**GIVEN, **changes}.items() if array is not None}
    with pytest.raises(error) as refused:
        run("qkv_backward", SMALL, given, **options)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: run("kQKVb", SMALL, {}),
            "kernel: got 'kQKVb', allowed is one of forward_attention, ",
        ),
        (lambda: operations(SMALL, ["backward"]), "kernel: got 'backward', allowed is one of "),
        (
            lambda: traffic(SMALL, row_align=0),
            "row_align: got 0, allowed is a whole number of bytes from 1 to 65536",
        ),
        (
            lambda: traffic(SMALL, itemsize=2.0),
            "itemsize: got 2.0, allowed is a whole number of bytes from 1 to 65536",
        ),  # type: ignore[arg-type]
        (lambda: achieved(1, 0), "ms: got 0, allowed is a positive finite number"),
        (lambda: achieved(float("nan"), 1), "flops: got nan, allowed is a positive finite number"),
        (
            lambda: utilization(1, float("inf")),
            "peak: got inf, allowed is a positive finite number",
        ),
        (lambda: utilization("fast", 1), "tflops: got 'fast', allowed is a positive finite number"),  # type: ignore[arg-type]
        (
            lambda: check_gradients(SMALL, method="backward"),
            "method: got 'backward', allowed is one of central, complex",
        ),
        (
            lambda: precision("residual", SMALL, dtype="float64"),
            "dtype: got 'float64', allowed is one of float16, float32",
        ),
        (
            lambda: precision("residual", SMALL, loss_scale=0),
            "loss_scale: got 0, allowed is a positive finite number",
        ),
        (
            lambda: loss_scales(SMALL, [float("nan")]),
            "loss_scale: got nan, allowed is a positive finite number",
        ),
        (
            lambda: check_gradients(SMALL, directions=-1),
            "directions: got -1, allowed is 0 (every element) or more",
        ),
        (
            lambda: differentiate(
                KERNELS["residual"],
                SMALL,
                {"x": np.ones((6, 4)), "branch": np.ones((6, 4))},
                "y",
                np.ones(1),
            ),
            "wrt: got 'y', kernel residual has x, branch, sum",
        ),
        (
            lambda: differentiate(
                KERNELS["residual"],
                SMALL,
                {"x": np.ones((6, 4)), "branch": np.ones((6, 4))},
                "x",
                np.ones(6),
            ),
            "dy: got shape (6,), allowed is (6, 4) of residual's sum",
        ),
        (
            lambda: train(SMALL, {}),
            "train: got no tensor 'x', allowed are x, dy, wq, wk, wv, wo, rms1, w1, w2, w3, rms2",
        ),
    ],
)
def test_arguments_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, LookupError)) as error:
        call()
    assert str(error.value.args[0]).startswith(message)


def test_what_is_too_large_is_refused_before_it_is_made() -> None:
    with pytest.raises(
        ValueError,
        match=r"^forward_attention: tensor mask: got 68719476736 elements, allowed are up to 268435456$",
    ):
        run(
            "forward_attention",
            Step(1, 1, 2**18, 1),
            {name: np.zeros(1) for name in ("x", "rms", "wq", "wk", "wv", "wo")},
        )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("a cs mul x", "kernel new, row 1 (a cs mul x): got 1 operands, allowed with mul is 2"),
        (
            "a cs twist x",
            "kernel new, row 1 (a cs twist x): got operation 'twist', allowed is one of linear, matmul, ",
        ),
        (
            "a cs mul",
            "kernel new, row 1 (a cs mul): got 3 words, allowed is name, axes, operation and operands",
        ),
        (
            "a cs exp z",
            "kernel new, row 1 (a cs exp z): got operand 'z', allowed is one of x, w, one, epsilon, inverse_dim, scale",
        ),
        (
            "a cs exp x\na cs exp x",
            "kernel new, row 2 (a cs exp x): got 'a' again, allowed is a new name",
        ),
        (
            "a cz exp x",
            "kernel new, row 1 (a cz exp x): got axes 'cz', allowed are different letters of cefsthd",
        ),
        ("a fs exp x", "kernel new, row 1 (a fs exp x): got result axes fs of operands with cs"),
        ("a s exp x", "kernel new, row 1 (a s exp x): got result axes s of operands with cs"),
        (
            "a - matmul x w",
            "kernel new, row 1 (a - matmul x w): got result axes - of operands with cs and c",
        ),
        (
            "a cs sum x\nb sc sum a",
            "kernel new, row 2 (b sc sum a): got result axes sc of operands with cs",
        ),
        (
            "a cf matmul x w",
            "kernel new, row 1 (a cf matmul x w): got result axes cf of operands with cs and c",
        ),
        (
            "a fs exp x:fs",
            "kernel new, row 1 (a fs exp x:fs): got operand x:fs, allowed is x:cs, or its sizes in other letters",
        ),
        ("b cs exp x", "kernel new: got output 'a', allowed is one of b"),
    ],
)
def test_tables_refused(table: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        Kernel.read({"name": "new", "inputs": "x:cs", "outputs": "a", "weights": "w:c"}, table)
    assert str(error.value).startswith(message)


def test_mask() -> None:
    assert causal_mask(3).tolist() == [[0, -65504, -65504], [0, 0, -65504], [0, 0, 0]]
    assert np.float16(causal_mask(2)).tolist() == causal_mask(2).tolist()
