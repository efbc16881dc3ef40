"""The device: from registers and bytes alone."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from npulab import Capture
from npulab.npus.kit.fields import values_of
from npulab.npus.kit.memory import Memory

from .facts import CHIPS
from .layouts import tensor_layout, weight_layout


def simulate(capture: Capture) -> bytes:
    memory, swap = Memory.of(capture), CHIPS[capture.chip].get("swap", 0)
    data = b""
    for label in sorted({job.label for job in capture.jobs}):
        outputs = {}
        for job in (job for job in capture.jobs if job.label == label):
            v = {
                name.split(".")[-1]: value
                for name, value in values_of(job, capture.maps, unwritten=True).items()
            }
            x = memory.tensor(
                v["source"], tensor_layout((v["rows"], v["columns"], v["inputs"]), swap)
            ).astype(np.int64)
            outputs[v["first"]] = run(v, x, memory)
        y = np.concatenate([outputs[first] for first in sorted(outputs)], -1)
        layout = tensor_layout(y.shape, swap, "int32" if v.get("sums") else "int8")
        data = layout.pack(y.astype(layout.dtype))
        memory.write(v["result"], data, label)
    return data


def run(v: dict[str, int], x: np.ndarray, memory: Memory) -> np.ndarray:
    if v["pool"]:
        windows = windows_of(x, v["pool_kernel"], v["pool_stride"])
        total = windows.sum((3, 4))
        x = (
            windows.max((3, 4))
            if v["pool"] == 1
            else np.sign(total) * (abs(total) // v["pool_kernel"] ** 2)
        )
    if not v["convolves"]:
        return x
    x = np.pad(x, [(v["pad"],) * 2, (v["pad"],) * 2, (0, 0)])
    weights = memory.tensor(v["weights"], weight_layout(v["count"], v["kernel"], v["inputs"]))
    bias = np.frombuffer(memory.read(v["bias"], 4 * v["count"]), "<i4")
    sums = (
        np.einsum(
            "hwcij,oijc->hwo", windows_of(x, v["kernel"], v["stride"]), weights.astype(np.int64)
        )
        + bias
    )
    if not v.get("sums"):
        sums = np.clip(np.sign(sums) * (abs(sums) // 2 ** v["shift"]), -128, 127)
    return np.maximum(sums, 0) if v["relu"] else sums


def windows_of(x: np.ndarray, kernel: int, stride: int) -> np.ndarray:
    return sliding_window_view(x, (kernel, kernel), (0, 1))[::stride, ::stride]
