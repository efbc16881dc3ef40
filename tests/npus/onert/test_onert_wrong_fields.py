"""What the simulated device does with a wrong field, as the page says it."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import CAPTURES
from wrong_fields import Wrong, check_row, rows_of, unnamed_reasons

import npulab
from npulab.captures.capture import Capture

CODES, CHANNELS, HYBRID = "sim-uint8", "sim-int8-channels", "sim-hybrid-2d"
PACKED = {"rhs_is_prepacked": 1}


def exponent(capture: Capture) -> Capture:
    return capture.with_buffers(exponents=np.array([40], "<i4").tobytes())


def infinite(capture: Capture) -> Capture:
    x = np.frombuffer(capture.buffers["input"], "<f4").copy()
    x[0] = np.inf
    return capture.with_buffers(input=x.tobytes())


ROWS = {
    "cache policies, packed weights or not, types of the weights, scales of the tensors, unused bits": (
        Wrong(CODES, {"lhs_cache_policy": 1, "rhs_cache_policy": 1, "lhs_is_prepacked": 1}),
        Wrong(CODES, {"lhs_type": 2, "packed_type": 1, "input_scale": 2, "output_scale": 2}),
        Wrong(CODES, {"call_unused": 1}),
    ),
    "a field of the other operation: activation and fused product, or types and zero point of codes": (
        Wrong(CODES, {"activation": 1, "fused_multiply_add": 1}),
        Wrong(HYBRID, {"rhs_type": 1, "dst_type": 1, "dst_zero_point": 3}),
    ),
    "layout of the input rows": (
        Wrong(CODES, {"rhs_kernel_columns": 2, "rhs_kernel_order": 1, "rhs_stride": 1000}),
        Wrong(CODES, {**PACKED, "rhs_kernel_order": 1}, "other bytes"),
        Wrong(
            CODES, {**PACKED, "rhs_stride": 1000, "rhs_kernel_columns": 2}, "hang", "input_rows:"
        ),
    ),
    "size, count or stride of 0": (
        Wrong(CODES, {"batches": 0}, "hang", r"^\w+ is 0"),
        Wrong(HYBRID, {"lhs_kernel_rows": 0}, "hang", "^lhs_kernel_rows is 0"),
    ),
    "path, operation, activation or type of codes that is not known": (
        Wrong(CODES, {"path": 99}, "hang", "^path is .* for which there are no kernels"),
        Wrong(CODES, {"operation": 2}, "hang", r"^\w+ is \d+, the simulated unit knows"),
        Wrong(HYBRID, {"activation": 7}, "hang", "^activation is 7"),
        Wrong(CODES, {"dst_type": 3}, "hang", "^dst_type is 3"),
    ),
    "blocks that do not fill their matrix, sizes that do not fit it, depths that differ": (
        Wrong(CODES, {"lhs_columns": 9}, "hang", "are not whole blocks"),
        Wrong(CODES, {"lhs_order": 1}, "hang", "are not whole blocks"),
        Wrong(CODES, {"units": 5000}, "hang", "do not fit .* with a stride of"),
        Wrong(CODES, {"lhs_stride": 4}, "hang", "do not fit .* with a stride of"),
        Wrong(
            HYBRID,
            {"rhs_rows": 128, "rhs_stride": 128},
            "hang",
            "lhs_rows is 112, other than rhs_rows",
        ),
    ),
    "reads past the end of a buffer": (
        Wrong(
            CODES,
            {"per_channel": 1},
            "hang",
            "the call reads .* bytes from byte .* the buffer ends at byte",
        ),
        Wrong(CODES, {"lhs_stride": 100000}, "hang", "^coefficients: the call reads"),
        Wrong(CODES, {"operation": 0}, "hang", "^input: the call reads"),
    ),
    "an operation for which the capture has no buffers": (
        Wrong(HYBRID, {"operation": 1}, "refused", "buffer 'multipliers' is missing"),
    ),
    "exponents, zero points and inputs that no kernel can take": (
        Wrong(
            CODES,
            {},
            "hang",
            "exponent 40 of unit 0 is not one that a shift can do",
            change=exponent,
        ),
        Wrong(CODES, {"rhs_zero_point": 300}, "hang", "rhs_zero_point is .* a packed byte holds"),
        Wrong(HYBRID, {}, "hang", "which gives no finite scale", change=infinite),
    ),
    "fewer batches, units or inputs, distance of the batches in the output": (
        Wrong(CODES, {"batches": 1}, "other bytes"),
        Wrong(CODES, {"units": 1}, "other bytes"),
        Wrong(CODES, {"input_size": 1}, "other bytes"),
        Wrong(CODES, {"dst_stride": 100}, "other bytes"),
    ),
    "zero points, clamp, activation, fused product, order inside a block, type of the codes": (
        Wrong(CODES, {"lhs_zero_point": 3}, "other bytes"),
        Wrong(CODES, {"rhs_zero_point": 3}, "other bytes"),
        Wrong(CODES, {"dst_zero_point": 3}, "other bytes"),
        Wrong(CODES, {"clamp_max": 3}, "other bytes"),
        Wrong(CODES, {"dst_type": 2}, "other bytes"),
        Wrong(CODES, {"lhs_kernel_order": 1}, "other bytes"),
        Wrong(HYBRID, {"activation": 1}, "other bytes"),
        Wrong(HYBRID, {"fused_multiply_add": 1}, "other bytes"),
    ),
    "tensors larger than the simulation allows": (
        Wrong(CODES, {"dst_stride": 2**31}, "hang", r"do(es)? not fit \d+ bytes"),
        Wrong(CODES, {"lhs_stride": 2**31}, "hang", r"do not fit \d+ bytes"),
    ),
}


@pytest.fixture(scope="module")
def goods() -> dict[str, Capture]:
    names = (CODES, CHANNELS, HYBRID)
    return {name: npulab.load(CAPTURES / "onert" / name) for name in names}


@pytest.mark.parametrize("row", ROWS)
def test_the_device_does_what_the_page_says(row: str, goods: dict[str, Capture]) -> None:
    check_row("onert", row, goods, ROWS[row])


def test_each_row_of_the_page_is_tried() -> None:
    assert [*ROWS] == [*rows_of("onert")]


@pytest.mark.parametrize("name", [CODES, CHANNELS, HYBRID])
def test_no_field_hangs_for_a_reason_that_the_page_lacks(
    name: str, goods: dict[str, Capture]
) -> None:
    assert not unnamed_reasons(goods[name], ROWS)
