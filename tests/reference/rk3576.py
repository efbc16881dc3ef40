"""Words and layers of convolutions that Rockchip's compiler made for RK3576, read from its files
without an importer.

A ``.rknn`` holds the register commands as 64-bit little-endian values in runs: bits 63:48 the unit,
47:16 the value, 15:0 the register's offset.  The layer is in the ``.onnx`` file beside it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

UNITS = (0x0201, 0x0801, 0x1001, 0x2001, 0x4001, 0x8001, 0x0081, 0x0041, 0x0101)
SHORTEST = 100  # commands of a job


def captured(folder: Path) -> tuple[np.ndarray, pd.DataFrame]:
    """``(N, W) uint32`` words of each file's first job, of the registers that every file writes,
    and its layers.
    """
    jobs, layers = [], []
    for path in sorted(folder.glob("*.rknn")):
        written: Counter[tuple[int, int]] = Counter()
        job = {}
        for command in _first_run(path.read_bytes()).tolist():
            register = command >> 48, command & 0xFFFF
            job[*register, written[register]] = command >> 16 & 0xFFFFFFFF
            written[register] += 1
        jobs.append(job)
        layers.append(_layer(path.with_name(path.name.replace("_rk3576.rknn", ".onnx"))))
    common = [place for place in jobs[0] if all(place in job for job in jobs)]
    return np.array([[job[place] for place in common] for job in jobs], np.uint32), pd.DataFrame(
        layers
    )


def _first_run(data: bytes) -> np.ndarray:
    values = np.frombuffer(data[: len(data) // 8 * 8], "<u8")
    edges = np.flatnonzero(
        np.diff(np.isin(values >> np.uint64(48), UNITS), prepend=False, append=False)
    )
    return next(
        values[start:end]
        for start, end in zip(edges[::2], edges[1::2], strict=True)
        if end - start >= SHORTEST
    )


def _layer(path: Path) -> dict[str, int]:
    import onnx

    graph = onnx.load(str(path)).graph
    node = next(node for node in graph.node if node.op_type == "Conv")
    given = {one.name: list(one.ints) or one.i for one in node.attribute}
    sizes = {one.name: list(one.dims) for one in graph.initializer}
    outputs, per_group, kernel_h, kernel_w = sizes[node.input[1]]
    _, inputs, height, width = (one.dim_value for one in graph.input[0].type.tensor_type.shape.dim)
    (top, left, *_), (stride_h, stride_w) = given["pads"], given["strides"]
    return {
        "input_h": height,
        "input_w": width,
        "input_c": inputs,
        "output_c": outputs,
        "kernel_h": kernel_h,
        "kernel_w": kernel_w,
        "stride_h": stride_h,
        "stride_w": stride_w,
        "pad_top": top,
        "pad_left": left,
        "output_h": (height + 2 * top - kernel_h) // stride_h + 1,
        "output_w": (width + 2 * left - kernel_w) // stride_w + 1,
        "depthwise": int(per_group == 1 < inputs),
        "relu": int(any(other.op_type in ("Relu", "Clip") for other in graph.node)),
    }
