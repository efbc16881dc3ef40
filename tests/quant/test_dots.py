"""Products by AVX512-VNNI against numpy's in int64."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")
from npulab.quant.emulate import dots

CODES = -128, -127, -1, 0, 1, 127
RANDOM = np.random.RandomState(11)
EDGES = [
    (1, 1, 1),
    (1, 3, 16),
    (5, 4, 15),
    (6, 5, 17),
    (7, 2, 64),
    (8, 8, 65),
    (9, 7, 32),
    (13, 6, 48),
    (12, 1, 33),
    (49, 27, 32),
    (3, 1024, 1001),
    (1, 33, 79),
    (0, 8, 8),
    (4, 8, 0),
    (2, 0, 3),
]
SHAPES = EDGES + [tuple(RANDOM.randint(1, 2 ** RANDOM.randint(1, 8, 3))) for _ in range(48)]

needs_vnni = pytest.mark.skipif(not dots.available(), reason="the processor lacks AVX512-VNNI")


def codes(*shape: int) -> np.ndarray:
    """Random codes, half of them extreme."""
    drawn = RANDOM.randint(-128, 128, shape)
    return np.where(RANDOM.randint(0, 2, shape), drawn, RANDOM.choice(CODES, shape)).astype(np.int8)


@needs_vnni
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_numpys(shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    x, weights, bias = (
        codes(rows, depth),
        codes(depth, columns),
        RANDOM.randint(-(2**20), 2**20, columns),
    )
    want = x.astype(np.int64) @ weights.astype(np.int64) + bias
    products = dots.Products(weights, bias)
    out = np.full((rows + 2, columns), 77, np.int32)
    products(x, out[1:-1])
    np.testing.assert_array_equal(out[1:-1], want)
    assert (out[[0, -1]] == 77).all()


@needs_vnni
@pytest.mark.parametrize("step", [1, 2])
def test_rows_may_lie_apart(step: int) -> None:
    x, weights = codes(31, 90), codes(21, 50)
    out = np.full((31, 70), 77, np.int32)
    part = x[:, 3 : 3 + 21 * step : step]
    dots.Products(weights)(part, out[:, 5:55])
    np.testing.assert_array_equal(out[:, 5:55], part.astype(int) @ weights.astype(int))
    assert (np.delete(out, range(5, 55), 1) == 77).all()


@needs_vnni
@pytest.mark.parametrize("weight", [-128, 127])
def test_int32_holds_the_largest_sums(weight: int) -> None:
    x = np.repeat(np.array([[-128], [127]], np.int8), 130_000, 1)
    weights = np.full((130_000, 3), weight, np.int8)
    out = dots.Products(weights)(x, np.empty((2, 3), np.int32))
    assert out.tolist() == [[-128 * weight * 130_000] * 3, [127 * weight * 130_000] * 3]


@needs_vnni
def test_codes_that_do_not_fit_are_named() -> None:
    products = dots.Products(codes(5, 4))
    with pytest.raises(ValueError, match=r"codes: got uint8 \(2, 5\), allowed is int8 \(n, 5\)"):
        products(np.zeros((2, 5), np.uint8), np.empty((2, 4), np.int32))
    for out in (np.empty((2, 4)), np.empty((2, 3), np.int32), np.empty((2, 8), np.int32)[:, ::2]):
        with pytest.raises(ValueError, match=r"out: got .*allowed is int32 \(2, 4\)"):
            products(np.zeros((2, 5), np.int8), out)


def test_packed_weights_are_four_of_a_column_side_by_side() -> None:
    weights = np.arange(1, 19, dtype=np.int8).reshape(6, 3)
    packed = dots.pack(weights)
    assert packed.shape == (1, 2, 16, 4)
    assert packed[0, :, :3].tolist() == [
        [[1, 4, 7, 10], [2, 5, 8, 11], [3, 6, 9, 12]],
        [[0, 0, 13, 16], [0, 0, 14, 17], [0, 0, 15, 18]],
    ]
    assert not packed[0, :, 3:].any()
