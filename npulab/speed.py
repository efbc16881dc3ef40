"""How fast, measured side by side: every ratio is of times from one run, one thread, on this machine.

    python -m npulab.speed emulate 12   # one setting, 12 turns, JSON; npulab bench runs it once for each
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npulab.emulate import compiles, emulate, prepare
from npulab.layers import Conv2D, FullyConnected
from npulab.models import single_op_model
from npulab.quant import QuantParams

if TYPE_CHECKING:
    import pandas as pd

BENCHES = ("emulate",)
# output channels and stride of the thirteen pairs of depthwise and pointwise layers
PAIRS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
KERNELS = {"tflite reference": "BUILTIN_REF", "tflite builtin": "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "xnnpack": "AUTO"}
# OpenBLAS' name for its AVX-512 kernels, which it does not choose on every CPU that has them
WIDE_KERNELS = "SkylakeX"
ROUNDS, CALLS = 12, 3


def bench(what: str = "emulate", rounds: int = ROUNDS) -> pd.DataFrame:
    """Measured times and ratios: a row per setting and rule, of all 28 layers of MobileNetV1-224.

    Columns: setting, ms, its ratio to each engine of TensorFlow Lite in the same run, and the mismatches
    against the engine of that rule.  ``attrs`` holds ``limits`` (matrix product and copy rates by setting) and
    ``layers`` (a DataFrame of ms per layer and setting).  Takes about half a minute.
    Raises LookupError for an unknown benchmark.
    """
    import pandas as pd

    if what not in BENCHES:
        raise LookupError(f"bench: got {what!r}, allowed is one of {', '.join(BENCHES)}")
    rows, limits, layers = [], {}, {}
    for setting, environment in settings().items():
        found = _child(what, rounds, environment)
        total = {name: sum(one[name] for one in found["layers"]) for name in found["layers"][0] if name != "layer"}
        for name, ms in total.items():
            if name in KERNELS:
                continue
            ratios = {f"of {engine}": ms / total[engine] for engine in KERNELS if engine in total}
            rows.append({"setting": setting, "rule": name, "ms": ms, **ratios, "wrong": found["wrong"].get(name)})
        rows += [{"setting": setting, "rule": name, "ms": total[name]} for name in KERNELS if name in total]
        limits[setting], layers[setting] = found["limits"], pd.DataFrame(found["layers"]).set_index("layer")
    frame = pd.DataFrame(rows)
    frame.attrs.update(limits=limits, layers=pd.concat(layers, axis=1))
    return frame


def settings() -> dict[str, dict[str, str]]:
    """Environments to measure in: the matrix product as it comes, and with its widest kernels where they run."""
    out: dict[str, dict[str, str]] = {"BLAS as it comes": {}}
    with suppress(OSError):
        if "avx512vl" in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
            out[f"BLAS {WIDE_KERNELS}"] = {"OPENBLAS_CORETYPE": WIDE_KERNELS}
    return out


def mobilenet(seed: int = 0) -> dict[str, tuple[Conv2D | FullyConnected, np.ndarray]]:
    """The 28 layers of MobileNetV1 1.0 at 224x224 by name, int8 per channel, random weights; each with an input."""
    random = np.random.RandomState(seed)
    out: dict[str, tuple[Conv2D | FullyConnected, np.ndarray]] = {}

    def add(name: str, size: int, channels: int, outputs: int, kernel: int, stride: int = 1, depthwise: bool = False,
            ) -> None:
        depth = kernel * kernel * (1 if depthwise else channels)
        shape = (1, kernel, kernel, channels) if depthwise else (outputs, kernel, kernel, channels)
        weights = random.randint(-127, 128, shape).astype(np.int8)
        # outputs that use the range: random codes of 74 and weights of 73 codes, root mean square
        scales = random.uniform(0.6, 1.4, outputs) * 50 / (np.sqrt(depth) * 74 * 73)
        common: dict[str, Any] = {"input_q": QuantParams(0.0235, -1 if name == "stem" else -128),
                                  "weight_q": QuantParams(tuple(scales.astype(np.float32).tolist())),
                                  "output_q": QuantParams(0.0235, int(random.randint(-128, -28)))}
        bias = random.randint(-2000, 2000, outputs)
        if name == "fc":
            out[name] = (FullyConnected(weights.reshape(outputs, channels), bias, **common),
                         random.randint(-128, 128, (1, channels)).astype(np.int8))
            return
        layer = Conv2D(weights, bias, (size, size, channels), (stride, stride), "same", depthwise=depthwise, **common)
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


def measure(rounds: int = ROUNDS) -> dict[str, Any]:
    """Times in this process: ``layers`` (ms each, the least of all calls), ``wrong`` (mismatches), ``limits``."""
    layers, wrong = [], dict[str, int]()
    kinds = (False, True) if compiles() else (False,)
    for name, (layer, x) in mobilenet().items():
        runs, answers = dict[str, Callable[[], Any]](), dict[str, np.ndarray]()
        for engine in KERNELS if importlib.util.find_spec("ai_edge_litert") else ():
            runs[engine], answers[engine] = _litert(single_op_model(layer), x, engine)
        for fast in kinds:
            for rule, engine in (("gemmlowp", ""), ("tflite-reference", "tflite reference"), ("xnnpack", "xnnpack")):
                label = f"{'numba' if fast else 'numpy'} {rule}"
                ready = prepare(layer, rule, fast=fast)
                if engine in answers or not engine:  # without the engine there is nothing to differ from
                    want = answers[engine] if engine else emulate(layer, x, rule)
                    wrong[label] = wrong.get(label, 0) + int(np.count_nonzero(ready(x).reshape(want.shape) != want))
                runs[label] = _calling(ready, x)
        layers.append({"layer": name, **_least(runs, rounds)})
    return {"layers": layers, "wrong": wrong, "limits": limits()}


def limits() -> dict[str, float]:
    """What bounds the emulation here: GFLOP/s of a float32 matrix product, GB/s of a copy, ns of a cast element."""
    random = np.random.RandomState(0)
    a, b = random.rand(784, 512).astype(np.float32), random.rand(512, 512).astype(np.float32)
    out, codes = np.empty((784, 512), np.float32), np.empty(160_000, np.int8)
    far, near = np.zeros(2 ** 25, np.uint8), np.empty(2 ** 25, np.uint8)
    cast = np.empty(codes.shape, np.float32)
    least = _least({"product": lambda: np.matmul(a, b, out=out), "copy": lambda: np.copyto(near, far),
                    "cast": lambda: np.copyto(cast, codes)}, 20)
    return {"matrix product, GFLOP/s": 2 * 784 * 512 * 512 / least["product"] / 1e6,
            "copy, GB/s": far.size / least["copy"] / 1e6, "cast int8 to float32, ns": least["cast"] * 1e6 / codes.size}


def _least(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Least ms of each, taken in turn so that whatever else the machine does meets all of them."""
    least = dict.fromkeys(runs, float("inf"))
    for turn in range(rounds + 1):
        for name, run in runs.items():
            for _ in range(CALLS):
                start = time.perf_counter()
                run()
                if turn:  # the first turn warms up
                    least[name] = min(least[name], (time.perf_counter() - start) * 1e3)
    return least


def _calling(ready: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> Callable[[], Any]:
    return lambda: ready(x)


def _litert(model: bytes, x: np.ndarray, engine: str) -> tuple[Callable[[], Any], np.ndarray]:
    """(one more run of a model in TensorFlow Lite, its output)."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    run = Interpreter(model_content=model, num_threads=1,
                      experimental_op_resolver_type=getattr(OpResolverType, KERNELS[engine]))
    run.allocate_tensors()
    run.set_tensor(run.get_input_details()[0]["index"], x.reshape(run.get_input_details()[0]["shape"]))
    run.invoke()
    return run.invoke, run.get_tensor(run.get_output_details()[0]["index"]).copy()


def _child(what: str, rounds: int, environment: dict[str, str]) -> Any:
    """What one setting gives; the matrix product reads its settings when it is loaded, so in a process of its own."""
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run([sys.executable, "-m", "npulab.speed", what, str(rounds)], capture_output=True, text=True,
                          env={**os.environ, **threads, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}, check=False)
    if done.returncode:
        raise OSError(done.returncode, " ".join(done.stderr.strip().splitlines()[-1:]) or "no output", f"bench {what}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)))
