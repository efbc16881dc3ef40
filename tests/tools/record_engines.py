"""Store what onnxruntime and torch give on this processor for small random layers of uint8 inputs
and int8 weights.

``PYTHONPATH=tests/reference python tests/tools/record_engines.py`` adds this machine's outputs to
``tests/tools/engine_outputs.npz``; the layers and inputs in it stay.  Run it on each kind of
processor, or under an emulator of one: ``qemu-x86_64 -cpu Haswell python ...``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from random_models import random_case

import npulab
from npulab.quant.layers import Conv2D, FullyConnected
from npulab.quant.rules import QuantParams

STORED = Path(__file__).with_name("engine_outputs.npz")
KINDS = (("conv", "int8"), ("depthwise", "int8"), ("fully_connected", "int8"))
COUNT, LARGEST = 240, 2_000  # layers, and elements of their largest tensor
SETTINGS = ("input_shape", "stride", "dilation", "pads", "depthwise")


def cases() -> list[tuple[Any, np.ndarray]]:
    """The layers and inputs that are stored, drawn again."""
    out: list[tuple[Any, np.ndarray]] = []
    seed = 0
    while len(out) < COUNT:
        layer, x = random_case(seed, KINDS)
        seed += 1
        higher = {
            name: replace(getattr(layer, name), zero_point=getattr(layer, name).zero_point + 128)
            for name in ("input_q", "output_q")
        }
        layer = replace(layer, dtype="uint8", activation=None, **higher)
        if isinstance(layer, FullyConnected):
            layer = replace(layer, bias=layer.bias * 0)  # QLinearMatMul has none
        else:  # torch takes real biases, and one border for both ends
            layer = replace(
                layer,
                bias=layer.bias.clip(-(2**20), 2**20),
                padding=tuple((max(pair), max(pair)) for pair in layer.pads),
            )
        x = (x.astype(int) + 128).astype(np.uint8)
        if max(x.size, layer.weights.size, x.shape[0] * np.prod(layer.output_shape)) <= LARGEST:
            out.append((layer, x))
    return out


def stored() -> tuple[list[tuple[Any, np.ndarray]], dict[str, dict[int, np.ndarray]]]:
    """(layers and inputs, outputs by engine and number of the case) of the file."""
    with np.load(STORED) as file:
        arrays = dict(file)
    layers = []
    for number, settings in enumerate(json.loads(str(arrays["settings"]))):
        scales = settings.pop("scales")
        by_name = {
            f"{name}_q": QuantParams(tuple(scale) if isinstance(scale, list) else scale, zero)
            for name, (scale, zero) in scales.items()
        }
        weights, bias = arrays[f"weights{number}"], arrays[f"bias{number}"]
        if settings:
            settings["padding"] = tuple(map(tuple, settings.pop("pads")))
            shapes = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in settings.items()
            }
            layer: Any = Conv2D(weights, bias, dtype="uint8", **shapes, **by_name)
        else:
            layer = FullyConnected(weights, bias, dtype="uint8", **by_name)
        layers.append((layer, arrays[f"x{number}"]))
    outputs: dict[str, dict[int, np.ndarray]] = {}
    for name, array in arrays.items():
        engine, at, number = name.partition("@")
        if at:
            outputs.setdefault(engine, {})[int(number)] = array
    return layers, outputs


def write(layers: list[tuple[Any, np.ndarray]], outputs: dict[str, dict[int, np.ndarray]]) -> None:
    """Write the file."""
    arrays: dict[str, Any] = {}
    every = []
    for number, (layer, x) in enumerate(layers):
        arrays |= {f"x{number}": x, f"weights{number}": layer.weights, f"bias{number}": layer.bias}
        scales = {
            name: (getattr(layer, f"{name}_q").scale, getattr(layer, f"{name}_q").zero_point)
            for name in ("input", "weight", "output")
        }
        settings = (
            {name: getattr(layer, name) for name in SETTINGS} if isinstance(layer, Conv2D) else {}
        )
        every.append({**settings, "scales": scales})
    arrays["settings"] = json.dumps(every)
    arrays |= {
        f"{engine}@{number}": out
        for engine, by_case in sorted(outputs.items())
        for number, out in by_case.items()
    }
    np.savez_compressed(STORED, **arrays)


def main() -> None:
    """Ask the engines that are installed."""
    from importlib.util import find_spec

    from oracles import onnx_conv, onnx_matmul, onnxruntime_engine, torch_conv, torch_engine

    layers, outputs = stored() if STORED.exists() else (cases(), {})
    asked: dict[str, Callable[[Any, np.ndarray], np.ndarray | None]] = {}
    if find_spec("onnxruntime") is not None:
        asked[onnxruntime_engine()] = lambda layer, x: (
            onnx_conv(layer, x) if isinstance(layer, Conv2D) else onnx_matmul(layer, x)
        )
    if find_spec("torch") is not None:
        asked[torch_engine("fbgemm")] = lambda layer, x: (
            torch_conv(layer, x, "fbgemm") if isinstance(layer, Conv2D) else None
        )
    for engine, ask in asked.items():
        given = {number: ask(layer, x) for number, (layer, x) in enumerate(layers)}
        outputs[engine] = {number: out for number, out in given.items() if out is not None}
        wrong = sum(
            not np.array_equal(out, npulab.emulate(*layers[number], engine))
            for number, out in outputs[engine].items()
        )
        print(f"{engine}: {len(outputs[engine])} layers, {wrong} not as emulated")
    write(layers, outputs)


if __name__ == "__main__":
    main()
