"""Layers of captures, captures of layers, and the rounding of wren."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from npulab import Capture, Conv2D, Network, Pool2D, QuantParams
from npulab.quant.rules import Rule, shift_right
from npulab.target import Item, Lifted, select

from .facts import BLOCK, CHIPS, TABLES
from .layouts import tensor_layout, weight_layout
from .stream import jobs_of, stream_of

GROUPS, FIRST = 4, 0x10000000


@dataclass(frozen=True)
class TowardZero(Rule):
    """One shift that drops what is behind the point."""

    def exact(
        self, accumulators: np.ndarray, multiplier: Any, right_shift: Any, zero_point: int = 0
    ) -> np.ndarray:
        product = np.asarray(accumulators, np.int64) * multiplier
        return shift_right(product, 31 + np.asarray(right_shift), "toward-zero") + zero_point

    def max_deviation(self, right_shift: np.ndarray) -> Any:
        return 1.0


def number(text: str) -> int:
    return int(text.split()[-1])


def steps(capture: Capture) -> list[list[dict[str, Any]]]:
    """The values of the groups that share a layer, layer by layer."""
    maps, jobs = (
        capture.maps[BLOCK],
        sorted(capture.jobs, key=lambda job: (number(job.label), job.unit)),
    )
    return [
        [maps.decode(job.words) for job in group]
        for _, group in groupby(jobs, key=lambda job: job.label)
    ]


def weights_of(capture: Capture, v: dict[str, Any]) -> tuple[Any, bytes]:
    layout = weight_layout(v["count"], v["kernel"], v["inputs"])
    start = v["weights"] - capture.addresses["coefficients"]
    return layout, capture.buffers["coefficients"][start : start + layout.size]


def lift(capture: Capture) -> Lifted:
    layers: list[Any] = []
    q = QuantParams(1.0)
    source = capture.addresses["input"]
    for groups in steps(capture):
        source = followed(groups, source)
        v, parts = groups[0], list[Any]()
        shape = v["rows"], v["columns"], v["inputs"]
        pool = {0: "", 1: "max", 2: "average"}[int(v["pool"])]
        if pool:
            rounding = {"rounding": "toward-zero"} if pool == "average" else {}
            parts.append(
                Pool2D(
                    pool,
                    (v["pool_kernel"],) * 2,
                    shape,
                    (v["pool_stride"],) * 2,
                    input_q=q,
                    **rounding,
                )
            )
            shape = parts[-1].output_shape
        if v["convolves"]:
            weights = np.concatenate(
                [layout.unpack(data) for layout, data in (weights_of(capture, g) for g in groups)]
            )
            bias = np.concatenate(
                [
                    np.frombuffer(
                        capture.buffers["bias"],
                        "<i4",
                        g["count"],
                        g["bias"] - capture.addresses["bias"],
                    )
                    for g in groups
                ]
            )
            sums = bool(v.get("sums"))
            parts.append(
                Conv2D(
                    weights,
                    bias,
                    shape,
                    (v["stride"],) * 2,
                    ((v["pad"],) * 2,) * 2,
                    activation="relu" if v["relu"] else None,
                    input_q=q,
                    weight_bits=4,
                    output_q=QuantParams(1.0 if sums else q.scale * 2.0 ** v["shift"]),
                    output="sums" if sums else "codes",
                )
            )
            q = parts[-1].output_q
        layers.append(parts[0] if len(parts) == 1 else Network(tuple(parts)))
    if source != capture.addresses["output"]:
        raise ValueError(f"result: got {source:#x}, allowed is the address of the output")
    whole = layers[0] if len(layers) == 1 else Network(tuple(layers))
    first, last = parts_of(layers[0])[0], parts_of(layers[-1])[-1]
    x = tensor(capture, "input", np.zeros(first.input_shape, np.int8))
    output = (
        tensor(
            capture,
            "output",
            np.zeros(last.output_shape, last.output_dtype if isinstance(last, Conv2D) else np.int8),
        )
        if "output" in capture.buffers
        else None
    )
    return Lifted(whole, x, output)


def followed(groups: list[dict[str, Any]], source: int) -> int:
    """The address of what groups give that share a layer; ValueError if they do not go together."""
    first = 0
    for v in groups:
        wanted = {
            **groups[0],
            **{name: v[name] for name in ("count", "weights", "bias")},
            "first": first,
            "source": source,
            "outputs": sum(one["count"] for one in groups),
        }
        wanted |= {} if v["convolves"] else {"sums": 0, "outputs": v["inputs"]}
        for name, value in wanted.items():
            if v.get(name, 0) != value:
                raise ValueError(
                    f"{name}: got {v[name]}, allowed is {value}, by the groups and layers before"
                )
        first += v["count"]
    return int(groups[0]["result"])


def parts_of(layer: Any) -> tuple[Any, ...]:
    return layer.layers if isinstance(layer, Network) else (layer,)


def tensor(capture: Capture, name: str, like: np.ndarray) -> np.ndarray:
    swap = CHIPS[capture.chip].get("swap", 0)
    return tensor_layout(like.shape, swap, like.dtype.name).unpack(capture.buffers[name])


def lower(layer: Any, chip: str = "wren1", x: Any = None) -> Capture:
    """A register file for each group and layer, groups taking their share of the channels."""
    single = not isinstance(layer, Network) or (
        len(layer.layers) == 2
        and isinstance(layer.layers[0], Pool2D)
        and isinstance(layer.layers[1], Conv2D)
    )
    layers, maps = [layer] if single else [*layer.layers], select(TABLES, CHIPS[chip])
    swap, result, states = CHIPS[chip].get("swap", 0), FIRST, list[tuple[int, np.ndarray]]()
    base = maps[BLOCK].repeats[BLOCK].base
    buffers = {"coefficients": b"", "bias": b""}
    addresses = {"input": FIRST, "coefficients": 0x20000000, "bias": 0x30000000}
    shape = parts_of(layers[0])[0].input_shape
    if x is not None:
        buffers["input"] = tensor_layout(shape, swap).pack(x)
    for index, parts in enumerate(map(parts_of, layers)):
        v: dict[str, int] = {
            "rows": shape[0],
            "columns": shape[1],
            "inputs": shape[2],
            "source": result,
        }
        result = -(-(result + tensor_layout(shape).size) // 4096) * 4096
        v |= {
            "result": result,
            "kernel": 1,
            "stride": 1,
            "pool_kernel": 1,
            "pool_stride": 1,
            "outputs": shape[2],
            "count": shape[2],
        }
        for part in parts:
            v |= pool_values(part) if isinstance(part, Pool2D) else conv_values(part, chip)
        shape = parts[-1].output_shape
        share = -(-shape[2] // GROUPS) if v.get("convolves") else shape[2]
        for group, first in enumerate(range(0, shape[2], share)):
            v |= {
                "first": first,
                "count": min(share, shape[2] - first),
                "bias": addresses["bias"] + len(buffers["bias"]),
                "weights": addresses["coefficients"] + len(buffers["coefficients"]),
            }
            if v.get("convolves"):
                weights = parts[-1].weights[first : first + share]
                buffers["coefficients"] += weight_layout(*weights.shape[:2], weights.shape[3]).pack(
                    weights
                )
                buffers["bias"] += parts[-1].bias[first : first + share].astype("<i4").tobytes()
            states.append((base + 0x1000 * group + 4 * index, maps[BLOCK].encode(v)))
    buffers["stream"], addresses["output"] = stream_of(states, maps), result
    return Capture(
        "lowered",
        "wren",
        chip,
        tuple(jobs_of(buffers["stream"], maps)),
        buffers,
        addresses,
        provenance="simulated",
        maps=maps,
    )


def pool_values(pool: Pool2D) -> dict[str, int]:
    if pool.kind == "average" and pool.rounding != "toward-zero":
        raise ValueError(f"rounding: got {pool.rounding}, allowed is toward-zero")
    return {
        "pool": {"max": 1, "average": 2}[pool.kind],
        "pool_kernel": pool.kernel[0],
        "pool_stride": pool.stride[0],
    }


def conv_values(layer: Conv2D, chip: str) -> dict[str, int]:
    sums = layer.output == "sums"
    if layer.weight_bits != 4 or (sums and not CHIPS[chip].get("wide")):
        raise ValueError(
            f"layer: got {layer}, allowed on {chip} are weights of 4 bits and outputs that it has"
        )
    ratio = layer.output_q.scale / (layer.input_q.scale * layer.weight_q.scale)
    return {
        "convolves": 1,
        "kernel": layer.kernel[0],
        "stride": layer.stride[0],
        "pad": layer.pads[0][0],
        "relu": layer.activation == "relu",
        "shift": 0 if sums else int(np.log2(ratio)),
        "outputs": len(layer.weights),
    } | ({"sums": 1} if sums else {})


def recode(capture: Capture) -> bytes:
    return b"".join(layout.recode(data) for layout, data in regions(capture))


def explain(capture: Capture) -> list[Item]:
    items, start = list[Item](), 0
    for layout, data in regions(capture):
        items += [
            item._replace(bit=item.bit + 8 * start)
            for item in layout.items(data, channel=0, row=1, column=2, plane=3)
        ]
        start += len(data)
    return items


def regions(capture: Capture) -> list[tuple[Any, bytes]]:
    return [weights_of(capture, v) for groups in steps(capture) for v in groups if v["convolves"]]
