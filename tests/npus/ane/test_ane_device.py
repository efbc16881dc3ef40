"""The simulated device of the Neural Engine: compiled files run, their outputs beside what is
known of them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from conftest import shared

import npulab
from npulab.captures.capture import Capture
from npulab.captures.target import Hang, Unsupported
from npulab.npus.ane.simulate import simulate

ROWS, WIDTH = 2560, 1600  # of the bare task lists


def run(capture: Capture, *inputs: np.ndarray) -> np.ndarray:
    buffers = {
        "input" + (str(i) if i else ""): x.astype(np.float16).tobytes()
        for i, x in enumerate(inputs)
    }
    return np.frombuffer(
        simulate(replace(capture, buffers={**capture.buffers, **buffers})), np.float16
    )


def slots(values: list[float]) -> np.ndarray:
    """One value per channel, in rows of 64 bytes."""
    out = np.zeros((len(values), 32), np.float16)
    out[:, 0] = values
    return out


def file(name: str) -> Capture:
    return npulab.load(shared(f"data/ane/hwx/{name}"))


def test_convolution_with_bias_and_of_many_channels() -> None:
    assert run(file("conv_bias"), slots([1, 2, 3]))[[0, 32]].tolist() == [
        19,
        19,
    ]  # 3 * (1 + 2 + 3) + 1
    assert not run(file("gemm64"), slots([1.0] * 64)).any()  # its weights are zeros


def test_concat_puts_its_inputs_one_after_the_other() -> None:
    a, b = slots(list(range(16))), slots(list(range(16, 32)))
    assert run(file("concat16"), a, b)[::32].tolist() == list(range(32))


@pytest.mark.parametrize(
    ("name", "function"),
    [("sum64", np.add), ("mul_v541", np.multiply), ("mul_v9509_compact", np.multiply)],
)
def test_elementwise_of_two_tensors(name: str, function: np.ufunc) -> None:
    random = np.random.RandomState(1)
    a, b = (random.normal(0, 2, 64).astype(np.float16) for _ in range(2))
    want = function(a.astype(float), b.astype(float)).astype(np.float16)
    assert np.array_equal(run(file(name), slots(a.tolist()), slots(b.tolist()))[::32], want)


def gelu(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# the largest error that the tables' interpolation and the rounding between tasks allow, beside 1e-3
# of the value
WHOLE = {
    "activation/relu": (lambda x: np.maximum(x, 0), 0),
    "activation/relu6": (lambda x: np.clip(x, 0, 6), 0),
    "activation/gelu": (gelu, 7e-3),
    "activation/silu": (lambda x: x / (1 + np.exp(-x)), 8e-3),
    "activation/softmax": (softmax, 2e-4),
    "unary/abs": (np.abs, 0),
    "unary/exp2": (np.exp2, 0),
    "unary/log": (np.log, 1e-3),
    "unary/sqrt": (np.sqrt, 0),
    "unary/log2": (np.log2, 1e-3),
    "unary/tanh": (np.tanh, 2e-3),
    "unary/sign": (np.sign, 0),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", WHOLE)
def test_bare_task_lists_compute_what_they_are_named_after(name: str) -> None:
    function, most = WHOLE[name]
    random = np.random.RandomState(2)
    x = random.normal(0, 1.5, (ROWS, WIDTH)).astype(np.float16)
    if name in ("unary/log", "unary/log2", "unary/sqrt"):
        x = np.abs(x) + np.float16(0.01)
    out = (
        run(npulab.load(shared(f"data/ane/h13_tasks/{name}.bin")), x)
        .reshape(ROWS, WIDTH)[:40]
        .astype(float)
    )
    want = function(x[:40].astype(float))
    assert np.all(np.abs(out - want) <= most + 1e-3 * np.abs(want))


@pytest.mark.parametrize(
    ("name", "function"), [("add", np.add), ("sub", np.subtract), ("max", np.maximum)]
)
def test_bare_task_lists_of_two_inputs(name: str, function: np.ufunc) -> None:
    random = np.random.RandomState(3)
    a, b = (random.normal(0, 2, (ROWS, WIDTH)).astype(np.float16) for _ in range(2))
    out = run(npulab.load(shared(f"data/ane/h13_tasks/binary/{name}.bin")), a, b).reshape(
        ROWS, WIDTH
    )
    assert np.array_equal(out, function(a.astype(float), b.astype(float)).astype(np.float16))


def test_what_cannot_run_hangs_with_its_reason() -> None:
    capture = file("conv_bias")
    x = slots([1, 2, 3])
    for values, words in (
        ({"KernelDMASrc.CoeffDMAConfig[1].En": 0}, "engine 1 waits for coefficients"),
        ({"Cin": 400}, "base 5 is read at byte"),
        ({"Wout": 0}, "a size is 0"),
        ({"KernelDMASrc.CoeffBfrSize[0].MemBfrSize": 0}, "its stream has 0"),
        ({"SparseFmt": 1}, "masks and weights end at byte 11, their count says"),
        ({"RBase0": 9}, "base 9 is read, and nothing is there"),
        ({"KernelDMASrc.CoeffBaseAddr[1].Addr": 2**20}, "coefficients are read to byte"),
    ):
        with pytest.raises(Hang, match=f"task 0: .*{words}"):
            run(capture.with_fields(**values), x)
    for values, words in (
        ({"NE.MACCfg.OpMode": 5}, "NE.MACCfg.OpMode: got 5"),
        ({"Din": 2}, "Din: got 2"),
        ({"PalettizedEn": 1}, "PalettizedEn: got 1"),
    ):
        with pytest.raises(Unsupported, match=f"task 0: .*{words}"):
            run(capture.with_fields(**values), x)
    with pytest.raises(Hang, match="base 5 is read, and nothing is there"):
        simulate(capture)


def test_a_device_passes_and_fails_as_an_oracle() -> None:
    capture = file("conv_bias")
    good = replace(capture, buffers={**capture.buffers, "input": slots([1, 2, 3]).tobytes()})
    device = npulab.Simulated(simulate(good))
    assert (
        device(good),
        device(good.with_fields(NonlinearMode=1)),
        device(good.with_fields(BiasMode=0)),
    ) == ("pass", "pass", "fail")
