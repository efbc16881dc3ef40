"""Benchmark of emulation, npulab next to TensorFlow Lite: all 28 layers of MobileNetV1-224."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.cli.bench.turns import child, least
from npulab.models import single_op_model
from npulab.quant.emulate import compiles, emulate, prepare
from npulab.quant.layers import Conv2D, FullyConnected
from npulab.quant.rules import QuantParams
from npulab.support.extras import installed
from npulab.support.late import pd

# For each of the 13 pairs of a depthwise and a pointwise layer: the pair's output channels, and the
# stride of its depthwise layer.
PAIRS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *[(512, 1)] * 5,
    (1024, 2),
    (1024, 1),
)
KERNELS = {
    "tflite reference": "BUILTIN_REF",
    "tflite builtin": "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
    "xnnpack": "AUTO",
}
# By rounding rule: the engine that the rule is named after. gemmlowp has no engine here: its
# outputs are compared with those of ``npulab.emulate``.
RULES = {"gemmlowp": "", "tflite-reference": "tflite reference", "xnnpack": "xnnpack"}
# OpenBLAS' name for its AVX-512 kernels, which OpenBLAS does not choose on every CPU with AVX-512.
WIDE_KERNELS = "SkylakeX"


def table(rounds: int) -> pd.DataFrame:
    """Return a row per setting (see ``settings``) and rule: npulab's milliseconds, these divided by
    each engine's milliseconds, and how many outputs differ from those of the engine that the rule
    is named after.

    ``attrs`` holds ``limits`` (rates of matrix product and copy by setting) and ``layers`` (a
    DataFrame of ms per layer and setting).
    """
    rows, limits, layers = [], {}, {}
    for setting, environment in settings().items():
        found = child("emulate", rounds, environment)
        frame = pd.DataFrame(found["layers"]).set_index("layer")
        total = frame.sum().to_dict()
        engines = [name for name in KERNELS if name in total]
        for name in total:
            if name in KERNELS:
                continue
            row = {"setting": setting, "rule": name, "ms": total[name]}
            for engine in engines:
                row[f"of {engine}"] = total[name] / total[engine]
            rows.append({**row, "wrong": found["wrong"].get(name)})
        for engine in engines:
            rows.append({"setting": setting, "rule": engine, "ms": total[engine]})
        limits[setting], layers[setting] = found["limits"], frame
    frame = pd.DataFrame(rows)
    frame.attrs.update(limits=limits, layers=pd.concat(layers, axis=1))
    return frame


def settings() -> dict[str, dict[str, str]]:
    """Return the environment variables of each setting to measure in, by name of the setting:
    OpenBLAS with the kernels that it chooses, and, if the CPU has AVX-512, with AVX-512 kernels.
    """
    out: dict[str, dict[str, str]] = {"BLAS as it comes": {}}
    with suppress(OSError):
        if "avx512vl" in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
            out[f"BLAS {WIDE_KERNELS}"] = {"OPENBLAS_CORETYPE": WIDE_KERNELS}
    return out


@dataclass(frozen=True)
class LayerShape:
    """The shape of a layer of MobileNet: ``size`` is height and width of the input, ``channels``
    and ``outputs`` count input and output channels, ``kernel`` is height and width of the kernel.
    """

    name: str
    size: int
    channels: int
    outputs: int
    kernel: int = 1
    stride: int = 1
    depthwise: bool = False


def mobilenet(seed: int = 0) -> dict[str, tuple[Conv2D | FullyConnected, Array]]:
    """Return the 28 layers of MobileNetV1 1.0 at 224x224 by name, each with an input: int8, random
    weights, a scale per output channel.
    """
    random = np.random.RandomState(seed)
    return {shape.name: _layer(shape, random) for shape in _shapes()}


def _shapes() -> list[LayerShape]:
    shapes = [LayerShape("stem", 224, 3, 32, 3, 2)]
    size, channels = 112, 32
    for number, (outputs, stride) in enumerate(PAIRS, 1):
        shapes.append(LayerShape(f"dw{number}", size, channels, channels, 3, stride, True))
        size = -(-size // stride)
        shapes.append(LayerShape(f"pw{number}", size, channels, outputs))
        channels = outputs
    return [*shapes, LayerShape("fc", 1, 1024, 1001)]


def _layer(
    shape: LayerShape, random: np.random.RandomState
) -> tuple[Conv2D | FullyConnected, Array]:
    of_weights = shape.outputs, shape.kernel, shape.kernel, shape.channels
    taps = shape.kernel * shape.kernel * shape.channels
    if shape.depthwise:
        of_weights = 1, shape.kernel, shape.kernel, shape.channels
        taps = shape.kernel * shape.kernel
    weights = random.randint(-127, 128, of_weights).astype(np.int8)
    # with these scales, outputs use the whole range of int8: random inputs have a root mean square
    # of 74 codes, random weights of 73 codes
    scales = random.uniform(0.6, 1.4, shape.outputs) * 50 / (np.sqrt(taps) * 74 * 73)
    zero_point = -128
    if shape.name == "stem":
        zero_point = -1
    common: dict[str, Any] = {
        "input_q": QuantParams(0.0235, zero_point),
        "weight_q": QuantParams(tuple(scales.astype(np.float32).tolist())),
        "output_q": QuantParams(0.0235, int(random.randint(-128, -28))),
    }
    bias = random.randint(-2000, 2000, shape.outputs)
    layer: Conv2D | FullyConnected
    if shape.name == "fc":
        layer = FullyConnected(weights.reshape(shape.outputs, shape.channels), bias, **common)
        of_input: tuple[int, ...] = 1, shape.channels
    else:
        of_input = shape.size, shape.size, shape.channels
        strides = shape.stride, shape.stride
        layer = Conv2D(
            weights, bias, of_input, strides, "same", depthwise=shape.depthwise, **common
        )
    return layer, random.randint(-128, 128, of_input).astype(np.int8)


def measure(rounds: int) -> dict[str, Any]:
    """Measure in this process, and return ``layers`` (for each layer the least ms of each engine
    and rule), ``wrong`` (outputs that differ, by rule) and ``limits``.
    """
    layers, wrong = [], dict[str, int]()
    engines = {}
    if installed("ai_edge_litert"):
        engines = KERNELS
    kinds = {"numpy": False}
    if compiles():
        kinds["numba"] = True
    for name, (layer, x) in mobilenet().items():
        runs, answers = dict[str, Callable[[], Any]](), dict[str, Array]()
        for engine in engines:
            runs[engine], answers[engine] = litert(single_op_model(layer), x, engine)
        for kind, fast in kinds.items():
            for rule, engine in RULES.items():
                label = f"{kind} {rule}"
                ready = prepare(layer, rule, fast=fast)
                runs[label] = partial(ready, x)
                want = answers.get(engine)
                if not engine:
                    want = emulate(layer, x, rule)
                if want is not None:  # None if the engine is not installed
                    differing = np.count_nonzero(ready(x).reshape(want.shape) != want)
                    wrong[label] = wrong.get(label, 0) + int(differing)
        layers.append({"layer": name, **least(runs, rounds)})
    return {"layers": layers, "wrong": wrong, "limits": limits()}


def limits() -> dict[str, float]:
    """Return the rates of this machine that limit the emulation: GFLOP/s of a float32 matrix
    product, GB/s of a copy, ns to cast an element from int8 to float32.
    """
    random = np.random.RandomState(0)
    a, b = random.rand(784, 512).astype(np.float32), random.rand(512, 512).astype(np.float32)
    out, codes = np.empty((784, 512), np.float32), np.empty(160_000, np.int8)
    far, near = np.zeros(2**25, np.uint8), np.empty(2**25, np.uint8)
    cast = np.empty(codes.shape, np.float32)
    best = least(
        {
            "product": lambda: np.matmul(a, b, out=out),
            "copy": lambda: np.copyto(near, far),
            "cast": lambda: np.copyto(cast, codes),
        },
        20,
    )
    return {
        "matrix product, GFLOP/s": 2 * 784 * 512 * 512 / best["product"] / 1e6,
        "copy, GB/s": far.size / best["copy"] / 1e6,
        "cast int8 to float32, ns": best["cast"] * 1e6 / codes.size,
    }


def litert(model: bytes, x: Array, engine: str) -> tuple[Callable[[], Any], Array]:
    """Run a model in TensorFlow Lite; return a function that runs it again, and the output."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    run = Interpreter(
        model_content=model,
        num_threads=1,
        experimental_op_resolver_type=getattr(OpResolverType, KERNELS[engine]),
    )
    run.allocate_tensors()
    given, output = run.get_input_details()[0], run.get_output_details()[0]
    run.set_tensor(given["index"], x.reshape(given["shape"]))
    run.invoke()
    return run.invoke, run.get_tensor(output["index"]).copy()
