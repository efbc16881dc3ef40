"""Leaky ReLU by a shift, and averages about the zero point, against plain whole numbers."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np
import pytest

from npulab import Conv2D, FullyConnected, Pool2D, QuantParams, emulate
from npulab.models import single_op_model
from npulab.quant.emulate import accumulate, prepare
from npulab.quant.rules import RULES, rule

NAMES = [name for name in RULES if "int8" in rule(name).types]


def conv(seed: int, activation: str | None, dtype: str = "int8") -> tuple[Conv2D, np.ndarray]:
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    weights = rng.integers(info.min, info.max + 1, (5, 2, 3, 4)).astype(dtype)
    zero = [
        0 if dtype == "int8" else 120,
        int(rng.integers(-50, 50)) + (128 if dtype == "uint8" else 0),
    ]
    layer = Conv2D(
        weights,
        rng.integers(-9999, 9999, 5),
        (6, 7, 4),
        (1, 2),
        "same",
        activation=activation,
        input_q=QuantParams(0.5, zero[1]),
        weight_q=QuantParams(0.01, zero[0]),
        output_q=QuantParams(float(rng.uniform(2, 9)), int(rng.integers(info.min, info.max))),
    )
    return layer, rng.integers(info.min, info.max + 1, layer.input_shape).astype(dtype)


@pytest.mark.parametrize("name", NAMES)
def test_codes_below_the_zero_point_are_shifted(name: str) -> None:
    by = rule(name)
    for shift, dtype in ((1, "int8"), (3, "uint8"), (31, "int8")):
        layer, x = conv(shift, f"leaky>>{shift}", dtype)
        multiplier, right = by.multiplier(0.5, np.full(5, 0.01), layer.output_q.scale)
        zero, info = layer.output_q.zero_point, np.iinfo(dtype)
        codes = by.exact(accumulate(layer, x).astype(np.int64), multiplier, right, zero).tolist()
        expected = np.array(
            [
                [
                    [
                        min(
                            max(
                                (q - zero if q >= zero else floor(Fraction(q - zero, 2**shift)))
                                + zero,
                                info.min,
                            ),
                            info.max,
                        )
                        for q in row
                    ]
                    for row in line
                ]
                for line in codes
            ]
        )
        assert np.array_equal(emulate(layer, x, name), expected)
        assert np.array_equal(prepare(layer, name)(x), expected)
        assert not np.array_equal(expected, emulate(conv(shift, None, dtype)[0], x, name))


def test_a_leak_belongs_to_codes_of_layers_with_weights() -> None:
    with pytest.raises(
        ValueError,
        match=r"activation: got 'leaky>>0', allowed is one of .* or leaky>>1 to leaky>>31",
    ):
        conv(0, "leaky>>0")
    with pytest.raises(ValueError, match="activation: got 'leaky>>2', allowed is one of"):
        Pool2D("max", (2, 2), (4, 4, 1), activation="leaky>>2")
    with pytest.raises(ValueError, match="allowed with sums is None or 'relu'"):
        FullyConnected(np.ones((1, 2), np.int8), np.zeros(1, int), "leaky>>2", output="sums")
    with pytest.raises(
        ValueError, match="activation: got 'leaky>>2', allowed in a model is one of"
    ):
        single_op_model(conv(0, "leaky>>2")[0])


def test_a_lower_that_has_not_heard_of_it_is_not_asked() -> None:
    from npulab import target

    with pytest.raises(
        ValueError,
        match="lower for vivante: activation: got 'leaky>>2', allowed is None or 'relu' or",
    ):
        target("vivante").lower(conv(0, "leaky>>2")[0])


@pytest.mark.parametrize("kind", ["floor", "toward-zero", "half-up", "half-even", "half-away"])
def test_averages_about_the_zero_point(kind: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(-128, 128, (7, 6, 3)).astype(np.int8)
    zero, apart = -37, 0
    layer = Pool2D(
        "average",
        (3, 2),
        x.shape,
        (2, 1),
        ((1, 1), (1, 0)),
        input_q=QuantParams(1.0, zero),
        rounding=f"{kind}:centred",
    )
    plain = Pool2D(
        "average",
        (3, 2),
        x.shape,
        (2, 1),
        ((1, 1), (1, 0)),
        input_q=QuantParams(1.0, zero),
        rounding=kind,
    )
    out = emulate(layer, x)
    for h, w, c in np.ndindex(out.shape):
        window = x[max(2 * h - 1, 0) : 2 * h + 2, max(w - 1, 0) : w + 1, c].astype(int)
        mean = Fraction(int((window - zero).sum()), window.size)
        whole, rest = floor(mean), mean - floor(mean)
        up = {
            "floor": False,
            "toward-zero": mean < 0 and rest > 0,
            "half-up": rest >= Fraction(1, 2),
            "half-even": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1),
            "half-away": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and mean > 0),
        }[kind]
        assert out[h, w, c] == whole + up + zero
        apart += out[h, w, c] != emulate(plain, x)[h, w, c]
    assert (apart > 0) == (kind not in ("floor", "half-up"))  # these do not depend on where zero is
    assert layer.parameters["rounding"] == f"{kind}:centred"


def test_a_centred_rounding_is_of_averages() -> None:
    with pytest.raises(
        ValueError,
        match=r"rounding: got 'floor:zero', allowed .* half-away, each also with :centred after it",
    ):
        Pool2D("average", (2, 2), (4, 4, 1), rounding="floor:zero")
    with pytest.raises(
        ValueError, match="rounding: got 'half-away:centred', allowed with max pooling"
    ):
        Pool2D("max", (2, 2), (4, 4, 1), rounding="half-away:centred")
