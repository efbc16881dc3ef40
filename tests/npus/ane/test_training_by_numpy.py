"""A training step against plain numpy: its forward kernels, its gradients, and its programs
written, read and run.
"""

from __future__ import annotations

import numpy as np
import pytest

from npulab.npus.ane import training
from npulab.npus.ane.training import Step, mil, programs

Tensors = dict[str, np.ndarray]
STEP = Step(dim=6, hidden=5, seq=4, heads=3)
STEPS = [STEP, Step(1, 1, 1, 1), Step(15, 7, 5, 3), Step(8, 12, 1, 8), Step(7, 3, 6, 1)]
WEIGHTS = ("wq", "wk", "wv", "wo", "w1", "w2", "w3", "rms1", "rms2")


def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=0) + 1e-5) * weight[:, None]


def attention(step: Step, x: np.ndarray, w: Tensors) -> tuple[np.ndarray, Tensors]:
    """Plain loops over heads and queries, (channels, positions)."""
    xn = norm(x, w["rms1"])
    q, k, v = w["wq"] @ xn, w["wk"] @ xn, w["wv"] @ xn
    out = np.zeros_like(q)
    probs = np.zeros((step.heads, step.seq, step.seq))
    for head in range(step.heads):
        rows = slice(head * step.head, (head + 1) * step.head)
        for at in range(step.seq):
            seen = slice(at + 1)
            scores = q[rows, at] @ k[rows, seen] / np.sqrt(step.head)
            shares = np.exp(scores - scores.max())
            probs[head, at, seen] = shares / shares.sum()
            out[rows, at] = v[rows, seen] @ probs[head, at, seen]
    taps = {"xn1": xn, "q": q, "k": k, "v": v, "attended": out, "probs": probs}
    return w["wo"] @ out, taps


def ffn(x: np.ndarray, w: Tensors) -> tuple[np.ndarray, Tensors]:
    xn = norm(x, w["rms2"])
    h1, h3 = w["w1"] @ xn, w["w3"] @ xn
    gate = h1 / (1 + np.exp(-h1)) * h3
    return w["w2"] @ gate, {"xn2": xn, "h1": h1, "h3": h3, "gate": gate}


def layer(step: Step, t: Tensors) -> Tensors:
    """Every tensor of the layer forward, with its residuals."""
    added, taps = attention(step, t["x"], t)
    x2 = t["x"] + added
    more, further = ffn(x2, t)
    return taps | further | {"attention": added, "x2": x2, "ffn": more, "y": x2 + more}


def loss(t: Tensors) -> float:
    """``sum(dy * y)`` of the whole layer."""
    return float((t["dy"] * layer(STEP, t)["y"]).sum())


def close(one: np.ndarray, other: np.ndarray, relative: float = 1e-6) -> None:
    assert one.shape == other.shape
    assert np.abs(one - other).max() <= relative * np.abs(other).max()


@pytest.mark.parametrize("step", STEPS)
def test_the_forward_kernels_are_plain_numpy_s(step: Step) -> None:
    tensors = training.example(step, 3)
    values = training.train(step, tensors)
    for name, plain in layer(step, tensors).items():
        assert values[name].dtype == np.float64
        assert np.allclose(values[name], plain, rtol=1e-12, atol=1e-13), name


def test_every_gradient_is_that_of_the_plain_layer() -> None:
    tensors = training.example(STEP, 3, gradient=1.0)
    values = training.train(STEP, tensors)
    for name in ("x", *WEIGHTS):
        plain = np.zeros(tensors[name].shape)
        for at in np.ndindex(plain.shape):
            side = []
            for sign in (1e-4, -1e-4, 5e-5, -5e-5):
                moved = tensors[name].copy()
                moved[at] += sign
                side.append(loss({**tensors, name: moved}))
            wide, near = (side[0] - side[1]) / 2e-4, (side[2] - side[3]) / 1e-4
            plain[at] = (4 * near - wide) / 3
        close(np.asarray(values[f"d{name}"]).reshape(plain.shape), plain)


def test_a_wrong_gradient_would_be_seen() -> None:
    dwq = training.train(STEP, training.example(STEP))["dwq"]
    close(dwq, dwq)
    with pytest.raises(AssertionError):
        close(dwq * (1 + 1e-5), dwq)


# The same as programs

TENSORS = {
    # by kernel: what goes in and comes out, in order along the channels, by the names of ``train``
    "kFwdAttn": ("x", "attention q k v attended xn1"),
    "kFwdFFN": ("x2", "ffn h1 h3 gate xn2"),
    "kFFNBwd": ("dy h1 h3", "dxn2 dh1 dh3"),
    "kSdpaBwd1": ("q k v dx2", "dv probs dp"),
    "kSdpaBwd2": ("probs dp q k", "dq dk"),
    "kQKVb": ("dq dk dv", "dxn1"),
}


def joined(step: Step, values: Tensors, names: str) -> np.ndarray:
    """The named tensors one after the other as (1, channels, 1, positions); of scores (heads,
    query, key) a channel for each head and query."""
    rows = [np.asarray(values[name]).reshape(-1, step.seq) for name in names.split()]
    return np.concatenate(rows)[None, :, None]


@pytest.mark.parametrize("file", ["", "all.bin"])
@pytest.mark.parametrize("step", [STEP, Step(3, 8, 7, 1)])
@pytest.mark.parametrize("name", TENSORS)
def test_a_program_written_and_read_computes_the_kernel(name: str, step: Step, file: str) -> None:
    tensors = {}
    for tensor, array in training.example(step, 3, gradient=1.0).items():
        tensors[tensor] = array.astype(np.float16).astype(float)
    values = training.train(step, tensors)
    dims = programs.Dims(step.dim, step.hidden, step.heads, step.seq)
    weights = {weight.replace("w", "W"): tensors[weight] for weight in WEIGHTS}
    kernel = programs.kernel(name, dims, weights, file)
    text = mil.write(kernel.program)
    program = mil.read(text)
    assert program == kernel.program
    assert mil.write(program) == text
    assert mil.check(program) == []
    given, wanted = TENSORS[name]
    x = joined(step, values, given)
    exact = joined(step, values, wanted)
    out = mil.run(program, {"x": x}, kernel.blobs, float64=True)["out"]
    assert out.shape == kernel.outputs["out"]
    close(out, exact, 1e-11)
    half = mil.run(program, {"x": x}, kernel.blobs)["out"]
    assert half.dtype == np.float16
    close(half.astype(float), exact, 0.02)
