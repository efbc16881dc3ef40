"""The six kernels twice: as MIL programs that are written, read back and run, and as the
mathematics of a step.
"""

from __future__ import annotations

import numpy as np
import pytest

from npulab.npus.ane import training
from npulab.npus.ane.training import mil, programs

# the program's kernel and parts, and what the mathematics calls them
KERNELS = {
    "kFwdAttn": (
        "forward_attention",
        {"x": "x"},
        {"oo": "out", "qf": "q", "kf": "k", "vf": "v", "af": "attended", "xn": "xn"},
    ),
    "kFwdFFN": (
        "forward_ffn",
        {"x": "x"},
        {"y": "out", "h1": "h1", "h3": "h3", "gate": "gate", "xn": "xn"},
    ),
    "kFFNBwd": (
        "ffn_backward",
        {"dffn": "dy", "h1": "h1", "h3": "h3"},
        {"dx": "dxn", "dh1": "dh1", "dh3": "dh3"},
    ),
    "kSdpaBwd1": (
        "sdpa_backward_1",
        {"qf": "q", "kf": "k", "vf": "v", "dx2f": "dy"},
        {"dvf": "dv", "pf": "probs", "dpf": "dp"},
    ),
    "kSdpaBwd2": (
        "sdpa_backward_2",
        {"pf": "probs", "dpf": "dp", "qf": "q", "kf": "k"},
        {"dqf": "dq", "dkf": "dk"},
    ),
    "kQKVb": ("qkv_backward", {"dq": "dq", "dk": "dk", "dv": "dv"}, {"dx": "dxn"}),
}
STEP = training.Step(dim=12, hidden=20, seq=6, heads=3)
DIMS = programs.Dims(dim=12, hidden=20, heads=3, seq=6)


def halves(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Numbers that fp16 holds: what the weight files keep."""
    return {name: one.astype(np.float16).astype(np.float64) for name, one in values.items()}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("float64", [True, False])
def test_program_computes_what_the_mathematics_says(name: str, float64: bool) -> None:
    kernel, given, gives = KERNELS[name]
    step = training.train(STEP, halves(training.example(STEP, gradient=0.1)))
    tensors = halves(training.given_to(kernel, step))
    weights = {
        spelt: step[spelt.lower()]
        for spelt in ("Wq", "Wk", "Wv", "Wo", "W1", "W2", "W3", "rms1", "rms2")
    }
    program, blobs, inputs, _, parts = made = programs.kernel(name, DIMS, weights)
    x = made.join("x", {part: tensors[ours].reshape(-1, STEP.seq) for part, ours in given.items()})
    again = mil.read(mil.write(program))
    assert again == program
    found = made.split(
        "out", mil.run(again, {"x": x.reshape(inputs["x"])}, blobs, float64=float64)["out"]
    )
    want = training.run(kernel, STEP, tensors, "float64").values
    assert set(found) == set(gives) == {part for part, _ in parts["out"]}
    for part, ours in gives.items():
        exact = want[ours].reshape(-1, STEP.seq)
        error = (
            np.abs(np.asarray(found[part], np.float64).reshape(exact.shape) - exact).max()
            / np.abs(exact).max()
        )
        assert error < (1e-6 if float64 else 5e-3), part
