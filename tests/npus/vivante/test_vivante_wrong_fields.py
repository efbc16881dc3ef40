"""What the simulated device does with a wrong field, as the page says it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from conftest import CAPTURES
from wrong_fields import Wrong, check_row, rows_of, unnamed_reasons

import npulab
from npulab.captures.capture import Capture
from npulab.captures.devices import Simulated


def stream(place: int, value: int) -> Callable[[Capture], Capture]:
    """A change of one byte of the coefficients."""

    def change(capture: Capture) -> Capture:
        data = bytearray(capture.buffers["coefficients"])
        data[place] = value
        return capture.with_buffers(coefficients=bytes(data))

    return change


def cut(capture: Capture) -> Capture:
    return capture.with_buffers(coefficients=capture.buffers["coefficients"][:16])


NN, V8, TP = "one NN job", "one NN job of i.MX8MP", "TP, NN and TP"
ROWS = {
    "caches and their addresses, flushes, pixel order, bits without a name, states of the command stream": (
        Wrong(NN, {"image_caching_mode": 1, "image_cache_end_address": 0x100}),
        Wrong(NN, {"kernel_pattern_low": 12345, "kernel_pattern_msb": 3}),
        Wrong(NN, {"no_flush": 1, "nn_layer_flush": 0, "pooling_xy_size": 0}),
        Wrong(NN, {"w31_0_32": 1, "further3": 0}),
    ),
    "size of an output tile": (
        Wrong(NN, {"out_image_tile_x_size": 1, "out_image_tile_y_size": 127}),
        Wrong(NN, {"out_image_tile_x_size": 0}, "hang", "^out_image_tile_._size is 0"),
    ),
    "address of a single NN job, aligned": (
        Wrong(NN, {"kernel_address": 0x40}),
        Wrong(NN, {"in_image_address": 0x40, "out_image_address": 0x80}),
    ),
    "address off its alignment": (
        Wrong(NN, {"in_image_address": 0x60000020}, "hang", "off its alignment of 64"),
        Wrong(NN, {"out_image_address": 1}, "hang", "off its alignment of 64"),
    ),
    "address in one of several jobs": (
        Wrong(TP, {"in_image_address": 0x40}, "hang", "reads memory .*that holds nothing", 1),
        Wrong(TP, {"kernel_address": 0x40}, "hang", "has no room for its header", 1),
        Wrong(TP, {"in_image_base_address": 0x60000001}, "hang", "that holds nothing", 0),
        Wrong(TP, {"out_image_base_address": 0x40}, "hang", "no job writes the output", 2),
        Wrong(TP, {"in_image_base_address": 0x40000000}, "other bytes", "", 0),
    ),
    "size, count or stride of 0": (
        Wrong(NN, {"kernel_xy_size": 0}, "hang", r"^(kernel|kernels|in_image|out_image)_\w+ is 0"),
        Wrong(NN, {"kernels_per_core": 0}, "hang", "^kernels_per_core is 0"),
        Wrong(NN, {"out_image_x_stride": 0}, "hang", "^out_image_x_stride is 0"),
    ),
    "mode or type that the device does not have": (
        Wrong(NN, {"kernel_data_type": 1}, "hang", r"the simulated unit knows [\d and]+ only"),
        Wrong(NN, {"pooling": 1}, "hang", "^pooling is 1"),
        Wrong(NN, {"rounding_mode": 2}, "hang", "^rounding_mode is 2"),
        Wrong(NN, {"brick_mode": 1}, "hang", "^brick_mode is 1"),
        Wrong(NN, {"in_image_border_mode": 1}, "hang", "^in_image_border_mode is 1"),
        Wrong(NN, {"out_image_circular_buf_size": 64}, "hang", "^out_image_circular_buf_size"),
        Wrong(V8, {"no_z_offset": 0}, "hang", "^no_z_offset is 0"),
    ),
    "sizes that disagree with strides, planes or buffers": (
        Wrong(NN, {"in_image_x_size": 8191}, "hang", "the input of .* lies outside its"),
        Wrong(NN, {"out_image_x_size": 8191}, "hang", "larger than its strides leave room for"),
        Wrong(V8, {"depthwise": 1}, "hang", r"^depthwise from \d planes to \d"),
    ),
    "kernel size, planes, channels or kernels a core that the coefficients are not made for": (
        Wrong(NN, {"kernel_xy_size": 7}, "hang", "past the end of its coefficient stream"),
        Wrong(NN, {"kernel_xy_size": 1}, "hang", "a run of zero points goes past the end"),
        Wrong(NN, {"out_image_z_size": 7}, "hang", "core . is given .* bytes of coefficients"),
        Wrong(NN, {"out_image_z_size": 20}, "other bytes"),
        Wrong(NN, {"kernels_per_core": 1}, "hang", "a run of zero points goes past the end"),
        Wrong(NN, {"kernels_per_core": 127}, "ignored"),
        Wrong(V8, {"kernel_xy_size": 7}, "hang", "past the end of its coefficient stream"),
        Wrong(V8, {"kernel_xy_size": 1}, "hang", "its kernels end after"),
    ),
    "header of the coefficients, zero-run width or number of kernels in a stream": (
        Wrong(NN, {}, "hang", "core 0 is given", change=stream(0, 32)),
        Wrong(NN, {}, "hang", "zero-run width 255, the chip has", change=stream(64, 255)),
        Wrong(NN, {}, "hang", "a core waits for .* bytes", change=stream(65, 0)),
        Wrong(NN, {}, "hang", "has no room for its header", change=cut),
        Wrong(V8, {}, "hang", "a whole header of 10, then 0", change=stream(0, 0)),
        Wrong(V8, {}, "hang", "biases go past", change=stream(20, 0xFF)),
        Wrong(V8, {}, "hang", "states 0 kernels, the job gives it 1", change=stream(23, 0)),
        Wrong(V8, {}, "hang", "its kernels end after", change=stream(28, 0xFF)),
    ),
    "weights, biases and places of outputs in a stream": (
        Wrong(NN, {}, "other bytes", change=stream(70, 0)),
        Wrong(NN, {}, "hang", "an output plane .* lies outside the output", change=stream(80, 1)),
        Wrong(NN, {}, "hang", "a run of zero points goes past", change=stream(67, 255)),
        Wrong(V8, {}, "other bytes", change=stream(200, 0)),
        Wrong(V8, {}, "hang", "past the end of its coefficient stream", change=stream(128, 255)),
    ),
    "zero points, border, multiplier, shift, rounding mode, ReLU, offsets of the window": (
        Wrong(NN, {"out_zero_point": 5}, "other bytes"),
        Wrong(NN, {"coef_zero_point": 5}, "other bytes"),
        Wrong(NN, {"in_image_border_const": 200}, "other bytes"),
        Wrong(NN, {"post_multiplier": 1}, "other bytes"),
        Wrong(NN, {"post_shift": 3}, "other bytes"),
        Wrong(NN, {"rounding_mode": 0}, "other bytes"),
        Wrong(NN, {"relu": 1}, "other bytes"),
        Wrong(NN, {"in_image_x_offset": 1, "in_image_y_offset": 1}, "other bytes"),
        Wrong(V8, {"post_shift": 3}, "other bytes"),
    ),
    "output strides with room to spare": (Wrong(NN, {"out_image_y_stride": 100}, "other bytes"),),
    "tensors larger than the simulation allows": (
        Wrong(
            NN,
            {"out_image_z_size": 16383, "out_image_x_stride": 65535, "out_image_y_stride": 65535},
            "hang",
            "do not fit the simulated unit's",
        ),
        Wrong(
            TP,
            {"in_image_z_size": 16383, "in_window_y_end": 29999, "in_window_x_end": 29999},
            "hang",
            "TP job: it moves .* the simulated unit at most",
            0,
        ),
    ),
    "TP: a field with a value that no recorded job has": (
        Wrong(TP, {"alu_relu_enable": 1}, "hang", r"^TP job: \w+ is \d+, the simulated unit", 0),
        Wrong(TP, {"last": 0}, "hang", "^TP job: last is 0", 0),
    ),
    "TP: windows that are not whole tiles, counts of 0, zero points that differ": (
        Wrong(TP, {"in_tile_x_inc": 5}, "hang", "^TP job: in . a window from", 0),
        Wrong(TP, {"out_loop_2_count": 0}, "hang", r"^TP job: out_loop_\d_count is 0", 0),
        Wrong(TP, {"out_zp": 3}, "hang", "^TP job: its zero points", 0),
    ),
    "TP: strides and increments that stay in memory": (
        Wrong(TP, {"in_image_stride": 0}, "other bytes", "", 0),
        Wrong(TP, {"out_loop_0_inc": 0}, "other bytes", "", 2),
    ),
    "a chip whose coefficients are not known": (
        Wrong(
            NN,
            {},
            "refused",
            "does not know the format of its coefficient streams",
            change=lambda capture: replace(capture, chip="vipnano-qi-s905d3"),
        ),
    ),
}


@pytest.fixture(scope="module")
def goods() -> dict[str, Capture]:
    random = np.random.RandomState(7)
    layer = npulab.Conv2D(
        random.randint(-90, 90, (8, 3, 3, 4)).astype(np.int8),
        random.randint(-500, 500, 8),
        (6, 6, 4),
        padding="same",
    )
    x = random.randint(-90, 90, (6, 6, 4)).astype(np.int8)
    lower = npulab.target("vivante").lower
    return {
        NN: npulab.load(CAPTURES / "vivante" / "sim-3x3-same"),
        V8: Simulated().record(lower(layer, chip="vipnano-si-imx8mp", x=x)),
        TP: Simulated().record(lower(layer, x=x, features=["hwc-tensors"])),
    }


@pytest.mark.parametrize("row", ROWS)
def test_the_device_does_what_the_page_says(row: str, goods: dict[str, Capture]) -> None:
    check_row("vivante", row, goods, ROWS[row])


def test_each_row_of_the_page_is_tried() -> None:
    assert [*ROWS] == [*rows_of("vivante")]


@pytest.mark.parametrize("chip", ["vipnano-qi-a311d", "vipnano-si-imx8mp"])
def test_no_field_hangs_for_a_reason_that_the_page_lacks(chip: str) -> None:
    """Of a layer as small as can be: every field is tried with several values."""
    layer = npulab.Conv2D(np.arange(24, dtype=np.uint8).reshape(3, 2, 2, 2), [1, 2, 3], (3, 3, 2))
    x = np.arange(18, dtype=np.uint8).reshape(3, 3, 2)
    lowered = npulab.target("vivante").lower(layer, chip=chip, x=x)
    assert not unnamed_reasons(Simulated().record(lowered), ROWS)
