"""Emulation against the engines themselves: random models of one operator, and accumulators
chosen to tell rules apart.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from itertools import combinations
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import pytest
from oracles import (
    litert,
    micro,
    onnx_conv,
    onnx_matmul,
    onnxruntime_engine,
    torch_conv,
    torch_engine,
)
from random_models import KINDS, kind_of, order_matters, random_case
from tqdm import tqdm

import npulab
from npulab.models import single_op_model
from npulab.quant.emulate import ENGINES as NAMES, prepare
from npulab.quant.layers import Add, Conv2D, FullyConnected, Layer, Pool2D
from npulab.quant.rules import QuantParams, rule

ENGINES = {"reference": "tflite-reference", "builtin": "tflite-builtin", "auto": "xnnpack"}
SUMS = ("conv", "depthwise", "fully_connected")
MICRO = tuple((op, dtype) for op, dtype in KINDS if dtype in ("int8", "int16") and op != "min_pool")
MANY, FEW = 50_000, 10_000
EACH = 3 * FEW  # in onnxruntime, a third of them of each pair of types
CHUNK = 50


def need(name: str) -> None:
    """Skip where an engine is not installed; in CI it must be."""
    if find_spec(name) is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{name} is not installed")
        pytest.skip(f"{name} is not installed (pip install npulab[test])")


@pytest.fixture(autouse=True)
def _litert(request: pytest.FixtureRequest) -> None:
    need("ai_edge_litert")


class Found(NamedTuple):
    """One model in one engine: outputs, and how many of them are not as emulated."""

    engine: str
    op: str
    dtype: str
    outputs: int
    wrong: int
    text: str


def delegated(layer: Layer) -> bool | None:
    """Whether XNNPACK takes a layer over; None where that hangs on more than its operator and
    type.
    """
    if layer.op == "average_pool" and layer.dtype != "float16":
        return False
    if isinstance(layer, Pool2D) and any(
        s > k for s, k in zip(layer.stride, layer.kernel, strict=True)
    ):
        return None
    if isinstance(layer, Add) and layer.dtype in ("int8", "uint8"):
        return all(
            2**-10 <= np.float32(q.scale) / np.float32(layer.output_q.scale) < 2**8
            for q in (layer.input_q, layer.other_q)
        )
    return layer.dtype in (
        ("int8", "float16") if layer.op == "depthwise" else ("int8", "uint8", "float32", "float16")
    )


def rule_of(layer: Layer, x: Any, engine: str) -> str | None:
    """What an engine follows: its own name, but where a float16 sum has an order nobody tells,
    none.
    """
    if (
        layer.dtype != "float16"
        or engine == "tflite-reference"
        or layer.op in ("add", "max_pool", "min_pool")
    ):
        return engine
    return None if order_matters(layer, x) else "fp16"


def tensors(x: Any) -> tuple[np.ndarray, ...]:
    return x if isinstance(x, tuple) else (x,)


def wrong(a: np.ndarray, b: np.ndarray) -> int:
    """How many elements differ in a bit."""
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    bits = f"u{a.itemsize}"
    return int(np.sum(a.view(bits) != b.view(bits)))


def missed(layer: Layer, x: Any, name: str, given: np.ndarray) -> int:
    """How many outputs are not as emulated, once or again and again."""
    ready = prepare(layer, name)
    return max(wrong(out, given) for out in (npulab.emulate(layer, x, name), ready(x), ready(x)))


def in_litert(seed: int) -> Iterator[Found]:
    """A random model in each kernel set of LiteRT."""
    layer, x = random_case(seed)
    model = single_op_model(layer, len(tensors(x)[0]))
    outputs: dict[str, np.ndarray] = {}
    for kernels, engine in ENGINES.items():
        outputs[kernels], taken = litert(model, *tensors(x), kernels=kernels)
        text = f"random_case({seed}) in {kernels}: {layer}"
        assert taken == (kernels == "auto" and delegated(layer)) or delegated(layer) is None, (
            f"{text}, delegated {taken}"
        )
        if kernels == "auto" and not taken:
            assert wrong(outputs["auto"], outputs["builtin"]) == 0, f"{text} is not builtin's"
        name = rule_of(layer, x, engine)
        if name:
            bad = missed(layer, x, name, outputs[kernels])
            where = engine if kernels != "auto" or taken else "not delegated"
            yield Found(
                where,
                *kind_of(layer),
                outputs[kernels].size,
                bad,
                f"{bad} of {outputs[kernels].size} outputs of {text} are not {name}'s",
            )


def in_micro(seed: int) -> Iterator[Found]:
    """A random model in tflite-micro."""
    layer, x = random_case(seed, MICRO)
    given = micro(single_op_model(layer, len(tensors(x)[0])), *tensors(x))
    bad = missed(layer, x, "tflite-micro", given)
    yield Found(
        "tflite-micro",
        *kind_of(layer),
        given.size,
        bad,
        f"{bad} outputs of random_case({seed}, MICRO): {layer}",
    )


def in_onnxruntime(seed: int) -> Iterator[Found]:
    """A random layer without activation in onnxruntime; weights of the input's type, or int8
    with uint8 inputs.
    """
    layer, x = random_case(seed, tuple((op, "uint8" if seed % 3 == 0 else "int8") for op in SUMS))
    layer = replace(layer, activation=None)
    if layer.op == "fully_connected":
        layer = replace(layer, bias=layer.bias * 0)
    if seed % 3 == 1:
        layer, x = unsigned(layer, x)
    given = onnx_matmul(layer, x) if layer.op == "fully_connected" else onnx_conv(layer, x)
    engine = onnxruntime_engine()
    bad = missed(layer, x, engine, given)
    yield Found(
        engine,
        layer.op,
        f"{layer.dtype} {layer.weights.dtype}",
        given.size,
        bad,
        f"{bad} outputs of in_onnxruntime({seed}): {layer}",
    )


def unsigned(layer: Any, x: np.ndarray) -> tuple[Any, np.ndarray]:
    """An int8 layer with uint8 activations: every code 128 higher, the weights as they were."""
    higher = {
        name: replace(getattr(layer, name), zero_point=getattr(layer, name).zero_point + 128)
        for name in ("input_q", "output_q")
    }
    return replace(layer, dtype="uint8", **higher), (x.astype(int) + 128).astype(np.uint8)


def run(
    seeds: range, by: Callable[[int], Iterator[Found]] = in_litert
) -> tuple[Counter[tuple[str, ...]], list[str]]:
    """(models, outputs and mismatches by engine, operator and type; the mismatches in words)."""
    counts: Counter[tuple[str, ...]] = Counter()
    words = []
    for seed in seeds:
        try:
            every = list(by(seed))
        except Exception as error:
            error.add_note(f"in {by.__name__}({seed})")
            raise
        for found in every:
            for what, number in (("models", 1), ("outputs", found.outputs), ("wrong", found.wrong)):
                counts[found.engine, found.op, found.dtype, what] += number
            words += [found.text] if found.wrong else []
    return counts, words


def table(counts: Counter[tuple[str, ...]]) -> str:
    rows = sorted({key[:3] for key in counts})
    lines = [
        f"{'engine':17} {'operator':16} {'type':8} {'models':>8} {'outputs':>12} {'mismatches':>10}"
    ]
    for row in [*rows, ("all", "", "")]:
        numbers = [
            sum(
                n
                for key, n in counts.items()
                if key[3] == what and row in (key[:3], ("all", "", ""))
            )
            for what in ("models", "outputs", "wrong")
        ]
        lines.append(
            f"{row[0]:17} {row[1]:16} {row[2]:8} {numbers[0]:8} {numbers[1]:12} {numbers[2]:10}"
        )
    return "\n".join(lines)


@pytest.mark.sample(1)
@pytest.mark.parametrize("chunk", range(20))
def test_random_models_in_litert(chunk: int) -> None:
    counts, words = run(range(chunk * CHUNK, (chunk + 1) * CHUNK))
    assert not words, "\n".join(words[:10])
    assert {key[0] for key in counts} == {
        "tflite-reference",
        "tflite-builtin",
        "xnnpack",
        "not delegated",
    }


def test_every_operator_and_type_is_drawn() -> None:
    assert {kind_of(random_case(seed)[0]) for seed in range(320)} == {*KINDS}


@pytest.mark.long
def test_many_random_models(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("tflite_micro", "onnxruntime"):
        need(package)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    counts: Counter[tuple[str, ...]] = Counter()
    words: list[str] = []
    chunks = [
        (range(start, start + 250), by)
        for by, count in ((in_litert, MANY), (in_micro, FEW), (in_onnxruntime, EACH))
        for start in range(0, count, 250)
    ]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool, capsys.disabled():
        work = pool.map(run, *zip(*chunks, strict=True))
        for some, said in tqdm(work, total=len(chunks), unit_scale=250, unit=" models"):
            counts.update(some)
            words += said
        print("", table(counts), *words[:20], sep="\n")
    assert not words, "\n".join(words[:20])
    assert (
        sum(n for key, n in counts.items() if key[0] == "tflite-reference" and key[3] == "models")
        == MANY
    )


def test_random_models_tell_any_two_engines_apart() -> None:
    left = {*combinations(NAMES, 2)} - {("onnxruntime", "torch-fbgemm")}  # the same rule
    for seed in range(1000):
        layer, x = random_case(
            seed, tuple((op, dtype) for op in SUMS for dtype in ("int8", "uint8"))
        )
        if seed % 2 and layer.dtype == "int8":
            layer, x = unsigned(layer, x)
        outputs = {
            name: npulab.emulate(layer, x, name)
            for name in {name for pair in left for name in pair}
        }
        left = {pair for pair in left if not wrong(outputs[pair[0]], outputs[pair[1]])}
        if not left:
            break
    assert not left


@pytest.mark.sample(1)
@pytest.mark.parametrize("engines", list(combinations(ENGINES, 2)), ids="-".join)
def test_engines_swapped_do_not_fit(engines: tuple[str, str]) -> None:
    counts: Counter[str] = Counter()
    for seed in range(100):
        layer, x = random_case(seed, tuple((op, "int8") for op in (*SUMS, "add")))
        model = single_op_model(layer, len(tensors(x)[0]))
        for one, other in (engines, engines[::-1]):
            counts[f"{layer.op} in {one}"] += wrong(
                npulab.emulate(layer, x, ENGINES[other]), litert(model, *tensors(x), kernels=one)[0]
            )
    told = {key for key, n in counts.items() if n}
    assert {f"{op} in {one}" for op in SUMS for one in engines} <= told, counts


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("package", "by"), [("tflite_micro", in_micro), ("onnxruntime", in_onnxruntime)]
)
@pytest.mark.parametrize("count", [90, pytest.param(300, marks=pytest.mark.long)])
def test_random_models_elsewhere(
    package: str, by: Callable[[int], Iterator[Found]], count: int
) -> None:
    need(package)
    words = run(range(count), by)[1]
    assert not words, "\n".join(words[:10])


@pytest.mark.parametrize("engine", ["fbgemm", "onednn"])
def test_random_models_in_torch(engine: str) -> None:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    for seed in range(150):
        layer, x = unsigned(*random_case(seed, (("conv", "int8"), ("depthwise", "int8"))))
        # torch takes real biases, and one border for both ends
        layer = replace(
            layer,
            activation=None,
            bias=layer.bias.clip(-(2**20), 2**20),
            padding=tuple((max(pair), max(pair)) for pair in layer.pads),
        )
        given = torch_conv(layer, x, engine)
        assert wrong(npulab.emulate(layer, x, torch_engine(engine)), given) == 0, (
            f"seed {seed}: {layer}"
        )


class Probe(NamedTuple):
    """Input, weight and output scale, and accumulators."""

    scales: tuple[float, float, float]
    accumulators: np.ndarray


CANDIDATES = tuple(
    f"{base}:{order}" for base in ("gemmlowp", "ruy-x86", "float64-half-away") for order in "DPS"
)
EIGHT = (*CANDIDATES, "float32-even:D", "float32-even:S")  # P is S, once it is float32
SIXTEEN = tuple(f"{base}:{order}" for base in ("int16x8", "float64-half-away") for order in "DPS")


@cache
def probes(candidates: tuple[str, ...], most: int) -> tuple[Probe, ...]:
    """Scales, and accumulators that give codes up to ``most``, with which any two of the
    candidates differ.
    """
    random, out = np.random.RandomState(0), []
    rules, left = [rule(name) for name in candidates], list(combinations(range(len(candidates)), 2))
    while left:
        a, c = random.uniform(0.01, 0.1, 2).astype(np.float32)
        # sums of almost 32 bits; the ratio's first 15 bits hang on its last
        ratio = (random.randint(2**14, 2**15) + 0.5) * 2.0 ** (most.bit_length() - 45)
        b = np.float32(ratio * c / a)
        b += np.spacing(b) * random.randint(-3, 4)
        middle = np.rint((random.randint(-most, most, 200) + 0.5) / ratio).astype(np.int64)
        sums = random.permutation((middle[:, None] + np.arange(-150, 151)).ravel())
        codes = [one.exact(sums, *one.multiplier(a, b, c)) for one in rules]
        told = {pair: np.flatnonzero(codes[pair[0]] != codes[pair[1]])[:4] for pair in left}
        left = [pair for pair in left if not told[pair].size]
        chosen = np.unique(np.concatenate(list(told.values())))
        if chosen.size:
            out.append(
                Probe(
                    (float(a), float(b), float(c)),
                    np.resize(sums[chosen], -(-chosen.size // 8) * 8),
                )
            )
    return tuple(out)


def probing(
    op: str, dtype: str, scales: str, probe: Probe, accumulators: np.ndarray
) -> tuple[Any, np.ndarray]:
    """A layer of weights 0 whose biases are the accumulators, and its input."""
    count, zero = len(accumulators), 128 if dtype == "uint8" else 0
    a, b, c = probe.scales
    given = {
        "dtype": dtype,
        "input_q": QuantParams(a, zero),
        "output_q": QuantParams(c, zero),
        "weight_q": QuantParams((b,) * count if scales == "channel" else b),
    }
    x, weights = (
        np.full((1, 1), zero, dtype),
        np.zeros((count, 1), "uint8" if dtype == "uint8" else "int8"),
    )
    if op == "fully_connected":
        return FullyConnected(weights, accumulators, **given), x
    weights = weights.reshape((1, 1, 1, count) if op == "depthwise" else (count, 1, 1, 1))
    return Conv2D(
        weights, accumulators, (1, 1, 1), depthwise=op == "depthwise", **given
    ), x.reshape(1, 1, 1, 1)


def asked(engine: str, layer: Any, x: np.ndarray) -> np.ndarray:
    """What an engine gives."""
    if engine == "tflite-micro":
        return micro(single_op_model(layer), x)
    if engine == "onnxruntime":
        return onnx_conv(layer, x)
    kernels = next(kernels for kernels, name in ENGINES.items() if name == engine)
    given, taken = litert(single_op_model(layer), x, kernels=kernels)
    assert taken == (engine == "xnnpack" and delegated(layer))
    return given


PROBED = [
    (engine, op, dtype, scales)
    for engine in (*ENGINES.values(), "tflite-micro", "onnxruntime")
    for op in SUMS
    for dtype in ("int8", "uint8", "int16")
    for scales in ("tensor", "channel")
    if not (dtype == "uint8" and (scales == "channel" or engine == "tflite-micro"))
    and not (engine == "onnxruntime" and (dtype == "int16" or op == "fully_connected"))
]


@pytest.mark.sample(21)
@pytest.mark.parametrize(
    ("engine", "op", "dtype", "scales"), PROBED, ids=[" ".join(row) for row in PROBED]
)
def test_scales_are_formed_in_the_engines_order(
    engine: str, op: str, dtype: str, scales: str
) -> None:
    if engine in ("tflite-micro", "onnxruntime"):
        need(engine.replace("-", "_"))
    candidates = SIXTEEN if dtype == "int16" else EIGHT
    fits = {*candidates}
    for probe in probes(candidates, 30_000 if dtype == "int16" else 100):
        layer, x = probing(op, dtype, scales, probe, probe.accumulators)
        given = asked(engine, layer, x)
        assert wrong(npulab.emulate(layer, x, engine), given) == 0
        fits -= {name for name in fits if wrong(npulab.emulate(layer, x, name), given)}
    assert len(fits) == 1, fits  # no other rule, and no other order, is right


def test_the_last_channels_of_builtin_depthwise_have_a_rule_of_their_own() -> None:
    for scales in ("tensor", "channel"):
        fits = {*EIGHT}
        for probe in probes(EIGHT, 100):
            for some in np.split(probe.accumulators, range(7, len(probe.accumulators), 7)):
                layer, x = probing("depthwise", "int8", scales, probe, some)
                given = asked("tflite-builtin", layer, x)
                assert wrong(npulab.emulate(layer, x, "tflite-builtin"), given) == 0
                fits -= {name for name in fits if wrong(npulab.emulate(layer, x, name), given)}
        assert fits == {"gemmlowp:D"}
