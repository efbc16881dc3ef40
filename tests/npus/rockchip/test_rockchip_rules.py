"""The layouts of the rockchip target and its two rules of rounding, by plain loops."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from case_tables import cases

import npulab
from npulab.npus.rockchip import layouts
from npulab.quant.layers import Conv2D
from npulab.quant.rules import NAMED, RULES, QuantParams, TwoSteps, rule

TWICE, ROCKET = "rockchip-rv1103:half-even-twice", "rockchip-rk3588:half-even"


# Layouts


@pytest.mark.parametrize(
    ("dtype", "c2"),
    cases(
        """
int8 | 16
float16 | 8
int32 | 4
float32 | 4
""",
        str,
        int,
    ),
)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (2, 4, 16), (4, 3, 33)])
def test_features_are_planes_of_pixels(shape: tuple[int, int, int], dtype: str, c2: int) -> None:
    height, width, channels = shape
    tensor = np.arange(1, math.prod(shape) + 1).reshape(shape).astype(dtype)
    size = tensor.itemsize
    for row_pitch, plane_pitch in ((0, 0), (16 * width + 32, 16 * (width + 2) * height + 48)):
        layout = layouts.features(shape, dtype, row_pitch=row_pitch, plane_pitch=plane_pitch)
        line = row_pitch or 16 * width
        plane, packed = plane_pitch or height * line, layout.pack(tensor)
        assert len(packed) == -(-channels // c2) * plane
        for y, x, c in np.ndindex(shape):
            at = c // c2 * plane + y * line + x * 16 + c % c2 * size
            assert packed[at : at + size] == tensor[y, x, c].tobytes()
        assert np.array_equal(layout.unpack(packed), tensor)
        assert sum(packed) == sum(tensor.tobytes())


@pytest.mark.parametrize(
    ("dtype", "group", "block", "depthwise"),
    [("int8", 32, 32, False), ("float16", 16, 32, False), ("int8", 1, 64, True)],
)
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1, 1), (5, 3, 2, 20), (32, 1, 1, 32), (33, 2, 2, 70), (70, 1, 3, 33), (1, 3, 2, 130)],
)
def test_weights_in_groups_of_kernels(
    shape: tuple[int, int, int, int], dtype: str, group: int, block: int, depthwise: bool
) -> None:
    """Element by element in the order of the buffer: [k/32][c/32][y][x][k%32][c%32], the last of
    each short; depthwise [c/64][y][x][c%64].
    """
    if depthwise:
        shape = (1, *shape[1:])
    tensor = np.random.RandomState(1).randint(1, 100, shape).astype(dtype)
    kernels, height, width, channels = layouts.weights_shape(shape, depthwise, dtype)
    atom = 16 // tensor.itemsize
    assert kernels == shape[0] + (not depthwise and shape[0] % 2)
    assert channels % atom == 0 <= channels - shape[3] < atom
    filled = np.zeros((kernels, height, width, channels), dtype)
    filled[: shape[0]] = 7
    filled[: shape[0], ..., : shape[3]] = tensor
    want = []
    starts = product(range(0, kernels, group), range(0, channels, block))
    for (first, start), y, x in product(starts, range(height), range(width)):
        want.append(filled[first : first + group, y, x, start : start + block].ravel())
    packed = layouts.pack_weights(tensor, depthwise, fill=7)
    assert packed == np.concatenate(want).tobytes()
    layout = layouts.weights(filled.shape, depthwise, dtype)
    assert np.array_equal(layout.unpack(packed), filled)
    with pytest.raises(ValueError, match=rf"got {len(packed) - 1} bytes"):
        layout.unpack(packed[:-1])


# Rules


def half_even(value: int, shift: int) -> int:
    """As the formula is written down: add a half less one, and the bit above it."""
    return value if shift == 0 else (value + 2 ** (shift - 1) - 1 + (value >> shift & 1)) >> shift


def scales(random: np.random.RandomState, count: int) -> tuple[float, tuple[float, ...], float]:
    def one(low: float, high: float) -> float:
        return float(np.float32(2 ** random.uniform(low, high)))

    return one(-8, -2), tuple(one(-10, -4) for _ in range(count)), one(-6, 0)


def test_two_steps_are_their_definition() -> None:
    random, by, ties = np.random.RandomState(3), rule(TWICE), 0
    for trial in range(60):
        a, b, c = scales(random, 1 + trial % 5)
        multiplier, shift = by.multiplier(a, b, c)
        share, of_all = TwoSteps.split(multiplier)
        most = max(b)
        right = math.floor(math.log2(32767 / (most * a / c)))
        assert set(shift.tolist()) == {right}
        assert set(of_all.tolist()) == {round(most * a / c * 2**right)}
        assert share.tolist() == [
            round(float(np.float32(np.float32(one) / np.float32(most)) * 16384)) for one in b
        ]
        sums = random.randint(-(2**31), 2**31, (40, len(b))) >> random.randint(0, 24)
        sums[::2] = sums[::2] // 8192 * 8192  # often a tie of the first step
        want = [
            [
                half_even(half_even(int(n) * int(s), 14) * int(of_all[0]), right) + 3
                for n, s in zip(row, share, strict=True)
            ]
            for row in sums
        ]
        assert by.exact(sums, multiplier, shift, 3).tolist() == want
        ties += sum(
            int(n) * int(s) % 16384 == 8192 for row in sums for n, s in zip(row, share, strict=True)
        )
        assert np.array_equal(
            by.fast(sums, multiplier, shift, 3, -128, 127), np.clip(want, -128, 127)
        )
    assert ties > 50, "the sums hardly ask about ties"


def test_two_steps_are_not_one() -> None:
    """A half that the first step rounds away is gone in the second."""
    by = TwoSteps("twice")
    multiplier, shift = by.multiplier(1.0, (1.0, 0.5), 2.0)
    assert [one.tolist() for one in TwoSteps.split(multiplier)] == [[16384, 8192], [16384, 16384]]
    assert shift.tolist() == [15, 15]
    codes = by.exact(np.array([[1, 1], [3, 3], [5, 5], [7, 7]]), multiplier, shift)
    assert codes.tolist() == [
        [0, 0],
        [2, 1],
        [2, 1],
        [4, 2],
    ]  # 7 / 4 is 1.75, 7 / 2 is 4, 4 / 2 is 2; 5 / 4 is 1.25
    once = np.rint(np.array([1, 3, 5, 7]) / 4).tolist()
    assert once == [0, 1, 1, 2]
    assert by.exact(np.array([[0, 11]]), multiplier, shift).tolist() == [
        [0, 3]
    ]  # 2.75: 5.5 is 6, 3 is 3
    assert by.exact(np.array([[0, -9]]), multiplier, shift).tolist() == [
        [0, -2]
    ]  # -2.25: -4.5 is -4


def test_rocket_multiplier_is_as_the_driver_forms_it() -> None:
    by, random = rule(ROCKET), np.random.RandomState(4)
    ratios = [
        *(2 ** random.uniform(-30, 8, 300)).astype(np.float32),
        *(np.float32(2.0) ** np.arange(-20, 5)),
        np.nextafter(np.float32(0.5), np.float32(0)),
        np.nextafter(np.float32(0.25), np.float32(0)),
    ]
    seen = set()
    for ratio in ratios:
        bits = int(np.float32(ratio).view(np.uint32))
        scale = (bits >> 9 & 0x7FFF) + 1
        scale = scale | 2**14 if scale < 2**14 else scale
        shift = 127 + 31 - 32 - (bits >> 23) + 16 - 1
        assert [int(one) for one in by.multiplier(1.0, ratio, 1.0)] == [scale, shift]
        seen.add(scale)
        sums = random.randint(-(2**20), 2**20, 20)
        assert by.exact(sums, scale, shift).tolist() == [
            half_even(int(n) * scale, shift) for n in sums
        ]
    assert {2**14, 2**15} <= seen
    with pytest.raises(
        ValueError,
        match=r"^ratio of scales: got 65536, allowed with .* is a normal float32 below 2\*\*15$",
    ):
        by.multiplier(1.0, 2.0**16, 1.0)
    with pytest.raises(
        ValueError, match=r"^ratio of scales: got 32768, allowed with .* is at most 2\*\*15 - 1$"
    ):
        rule(TWICE).multiplier(1.0, 2.0**15, 1.0)


@pytest.mark.parametrize("name", [TWICE, ROCKET])
def test_emulate_takes_the_rules_by_name(name: str) -> None:
    """Sums of every size and ties, per channel and per tensor; the fast way and the rule itself."""
    random = np.random.RandomState(5)
    assert name in NAMED
    assert name not in RULES  # no candidate where nobody asks for it
    for channels in (1, 6):
        a, b, c = scales(random, channels)
        bias = random.randint(-40000, 40000, channels)
        weight = b if name == TWICE else b[0]
        layer = Conv2D(
            random.randint(-128, 128, (channels, 1, 1, 3)).astype(np.int8),
            bias,
            (30, 30, 3),
            activation="relu",
            input_q=QuantParams(a, -7),
            weight_q=QuantParams(weight),
            output_q=QuantParams(c, 5),
        )
        x = random.randint(-128, 128, layer.input_shape).astype(np.int8)
        want = rule(name).exact(
            npulab.accumulate(layer, x), *rule(name).multiplier(a, weight, c), 5
        )
        assert np.array_equal(npulab.emulate(layer, x, name), want.clip(5, 127))
        found = npulab.identify_rounding(
            npulab.accumulate(layer, x),
            npulab.emulate(layer, x, name),
            layer,
            rules=[name, "gemmlowp"],
        )
        assert name in found.fits
