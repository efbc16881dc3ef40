"""Emulation beside TensorFlow Lite: all 28 layers of MobileNetV1-224."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from npulab.cli.bench.turns import child, least
from npulab.models import single_op_model
from npulab.quant.emulate import compiles, emulate, prepare
from npulab.quant.layers import Conv2D, FullyConnected
from npulab.quant.rules import QuantParams
from npulab.support.extras import installed
from npulab.support.late import pd

# output channels and stride of the thirteen pairs of depthwise and pointwise layers
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
# OpenBLAS' name for its AVX-512 kernels, which it does not choose on every CPU that has them
WIDE_KERNELS = "SkylakeX"


def table(rounds: int) -> pd.DataFrame:
    """A row per setting and rule: ms, its ratio to each engine, and the mismatches against the
    engine of that rule.

    ``attrs`` holds ``limits`` (matrix product and copy rates by setting) and ``layers`` (a
    DataFrame of ms per layer and setting).
    """
    rows, limits, layers = [], {}, {}
    for setting, environment in settings().items():
        found = child("emulate", rounds, environment)
        total = {
            name: sum(one[name] for one in found["layers"])
            for name in found["layers"][0]
            if name != "layer"
        }
        for name, ms in total.items():
            if name in KERNELS:
                continue
            ratios = {f"of {engine}": ms / total[engine] for engine in KERNELS if engine in total}
            rows.append(
                {
                    "setting": setting,
                    "rule": name,
                    "ms": ms,
                    **ratios,
                    "wrong": found["wrong"].get(name),
                }
            )
        rows += [
            {"setting": setting, "rule": name, "ms": total[name]}
            for name in KERNELS
            if name in total
        ]
        limits[setting], layers[setting] = (
            found["limits"],
            pd.DataFrame(found["layers"]).set_index("layer"),
        )
    frame = pd.DataFrame(rows)
    frame.attrs.update(limits=limits, layers=pd.concat(layers, axis=1))
    return frame


def settings() -> dict[str, dict[str, str]]:
    """Environments to measure in: the matrix product as it comes, and with its widest kernels where
    they run."""
    out: dict[str, dict[str, str]] = {"BLAS as it comes": {}}
    with suppress(OSError):
        if "avx512vl" in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
            out[f"BLAS {WIDE_KERNELS}"] = {"OPENBLAS_CORETYPE": WIDE_KERNELS}
    return out


def mobilenet(seed: int = 0) -> dict[str, tuple[Conv2D | FullyConnected, np.ndarray]]:
    """The 28 layers of MobileNetV1 1.0 at 224x224 by name, int8 per channel, random weights; each
    with an input."""
    random = np.random.RandomState(seed)
    out: dict[str, tuple[Conv2D | FullyConnected, np.ndarray]] = {}

    def add(
        name: str,
        size: int,
        channels: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        depthwise: bool = False,
    ) -> None:
        depth = kernel * kernel * (1 if depthwise else channels)
        if depthwise:
            shape = 1, kernel, kernel, channels
        else:
            shape = outputs, kernel, kernel, channels
        weights = random.randint(-127, 128, shape).astype(np.int8)
        # outputs that use the range: random codes of 74 and weights of 73 codes, root mean square
        scales = random.uniform(0.6, 1.4, outputs) * 50 / (np.sqrt(depth) * 74 * 73)
        common: dict[str, Any] = {
            "input_q": QuantParams(0.0235, -1 if name == "stem" else -128),
            "weight_q": QuantParams(tuple(scales.astype(np.float32).tolist())),
            "output_q": QuantParams(0.0235, int(random.randint(-128, -28))),
        }
        bias = random.randint(-2000, 2000, outputs)
        if name == "fc":
            out[name] = (
                FullyConnected(weights.reshape(outputs, channels), bias, **common),
                random.randint(-128, 128, (1, channels)).astype(np.int8),
            )
            return
        layer = Conv2D(
            weights,
            bias,
            (size, size, channels),
            (stride, stride),
            "same",
            depthwise=depthwise,
            **common,
        )
        out[name] = layer, random.randint(-128, 128, layer.input_shape).astype(np.int8)

    add("stem", 224, 3, 32, 3, 2)
    size, channels = 112, 32
    for number, (outputs, stride) in enumerate(PAIRS, 1):
        add(f"dw{number}", size, channels, channels, 3, stride, depthwise=True)
        size = -(-size // stride)
        add(f"pw{number}", size, channels, outputs, 1)
        channels = outputs
    add("fc", 1, 1024, 1001, 1)
    return out


def measure(rounds: int) -> dict[str, Any]:
    """Times in this process: ``layers`` (ms each, the least of all calls), ``wrong`` (mismatches),
    ``limits``."""
    layers, wrong = [], dict[str, int]()
    kinds = (False, True) if compiles() else (False,)
    for name, (layer, x) in mobilenet().items():
        runs, answers = dict[str, Callable[[], Any]](), dict[str, np.ndarray]()
        for engine in KERNELS if installed("ai_edge_litert") else ():
            runs[engine], answers[engine] = litert(single_op_model(layer), x, engine)
        for fast in kinds:
            for rule, engine in (
                ("gemmlowp", ""),
                ("tflite-reference", "tflite reference"),
                ("xnnpack", "xnnpack"),
            ):
                label = f"{'numba' if fast else 'numpy'} {rule}"
                ready = prepare(layer, rule, fast=fast)
                if (
                    engine in answers or not engine
                ):  # without the engine there is nothing to differ from
                    if engine:
                        want = answers[engine]
                    else:
                        want = emulate(layer, x, rule)
                    wrong[label] = wrong.get(label, 0) + int(
                        np.count_nonzero(ready(x).reshape(want.shape) != want)
                    )
                runs[label] = partial(ready, x)
        layers.append({"layer": name, **least(runs, rounds)})
    return {"layers": layers, "wrong": wrong, "limits": limits()}


def limits() -> dict[str, float]:
    """What bounds the emulation here: GFLOP/s of a float32 matrix product, GB/s of a copy, ns of a
    cast element."""
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


def litert(model: bytes, x: np.ndarray, engine: str) -> tuple[Callable[[], Any], np.ndarray]:
    """(one more run of a model in TensorFlow Lite, its output)."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    run = Interpreter(
        model_content=model,
        num_threads=1,
        experimental_op_resolver_type=getattr(OpResolverType, KERNELS[engine]),
    )
    run.allocate_tensors()
    run.set_tensor(
        run.get_input_details()[0]["index"], x.reshape(run.get_input_details()[0]["shape"])
    )
    run.invoke()
    return run.invoke, run.get_tensor(run.get_output_details()[0]["index"]).copy()
