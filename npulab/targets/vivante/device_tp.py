"""The simulated tensor processor: one job moves a window of an image to where its output loops point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npulab.target import Hang
from npulab.targets.vivante.device_memory import Memory

LOOPS = 6  # with counts; another, without an end, is around them
MOST_ELEMENTS = 2 ** 26
ADDRESSES = 2 ** 32
# what the jobs here have and what else is not known to the simulated unit
CONSTANT = {"in_image_global_mem": 1, "out_image_global_mem": 1, "alu_i2f_enable": 1, "alu_f2i_enable": 1, "last": 1}
ZERO = ("in_tile_sequence", "in_tile_global_mem", "alu_square_enable", "alu_horz_processing", "alu_horz_proc_count",
        "alu_horz_proc_stride", "alu_vert_processing", "alu_vert_proc_count", "alu_vert_proc_stride", "alu_nms_enable",
        "alu_pwl_enable", "alu_mult_enable", "alu_load_pwl_lut", "in_tile_list_address", "out_tile_skip_at_border",
        "out_loop_2_reset", "out_brick_mode", "alu_z_filter_mode", "in_window_z_start_overfetch",
        "in_window_z_end_overfetch", "in_image_data_type", "out_image_data_type", "alu_relu_enable",
        "alu_filter_pwl_swap", "alu_input_preshift", "alu_output_postshift", "alu_reorder_loop_2_mode",
        "in_image_border_mode", "in_image_circular_buf_size", "out_image_circular_buf_size", "coef_zp",
        "alu_output_post_multiplier")


def move(t: Mapping[str, Any], memory: Memory) -> None:
    """Run a job of these values; raises Hang for what would hang the hardware or nobody knows."""
    for name, allowed in (*CONSTANT.items(), *((name, 0) for name in ZERO)):
        if t[name] != allowed:
            raise Hang(f"TP job: {name} is {t[name]}, the simulated unit knows {allowed} only")
    if t["in_zp"] != t["out_zp"]:
        raise Hang(f"TP job: its zero points are {t['in_zp']} and {t['out_zp']}, the simulated unit knows equal ones")
    rows, columns = (_traversed(t, axis) for axis in "yx")
    planes = t["in_image_z_size"]
    elements = planes * sum(map(len, rows)) * sum(map(len, columns))
    if elements > MOST_ELEMENTS:
        raise Hang(f"TP job: it moves {elements} bytes, the simulated unit at most {MOST_ELEMENTS}")
    done = 0
    for z in range(planes):
        for tile_rows in rows:
            for tile_columns in columns:
                y, x = (part.reshape(-1) for part in np.meshgrid(tile_rows, tile_columns, indexing="ij"))
                inside = (y >= 0) & (y < t["in_image_y_size"]) & (x >= 0) & (x < t["in_image_x_size"])
                values = np.full(len(y), t["in_zp"], np.uint8)
                values[inside] = memory.read((t["in_image_base_address"] + z * t["in_image_slice"]
                                              + y[inside] * t["in_image_stride"] + x[inside]) % ADDRESSES)
                memory.write(_written(t, done + np.arange(len(y))), values)
                done += len(y)


def _traversed(t: Mapping[str, Any], axis: str) -> list[np.ndarray]:
    """The rows or columns of each tile of the window, in order."""
    start, end, size = t[f"in_window_{axis}_start"], t[f"in_window_{axis}_end"], t[f"in_tile_{axis}_size"]
    if size == 0 or t[f"in_tile_{axis}_inc"] != size or end < start:
        raise Hang(f"TP job: in {axis} a window from {start} to {end} in tiles of {size}, "
                   f"{t[f'in_tile_{axis}_inc']} apart")
    return [np.arange(at, min(at + size, end + 1), dtype=np.int64) for at in range(start, end + 1, size)]


def _written(t: Mapping[str, Any], numbers: np.ndarray) -> np.ndarray:
    """The address of each element by its number."""
    out = np.full(numbers.shape, t["out_image_base_address"], np.int64)
    for loop in range(LOOPS):
        count = t[f"out_loop_{loop}_count"]
        if count == 0:
            raise Hang(f"TP job: out_loop_{loop}_count is 0")
        out += numbers % count * t[f"out_loop_{loop}_inc"]
        numbers = numbers // count
    return (out + numbers * t[f"out_loop_{LOOPS}_inc"]) % ADDRESSES
