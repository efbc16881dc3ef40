"""A training step against plain numpy: its forward kernels, its gradients, and its programs written,
read and run.
"""

from __future__ import annotations

import numpy as np
import pytest

from npulab.npus.ane import training
from npulab.npus.ane.training import Step, mil, programs

DIM, HIDDEN, SEQ, HEADS = 6, 5, 4, 3


def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=0) + 1e-5) * weight[:, None]


def attention(x: np.ndarray, w: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Plain loops over heads and queries, (channels, positions)."""
    xn = norm(x, w["rms1"])
    q, k, v = (w[n] @ xn for n in ("wq", "wk", "wv"))
    out = np.zeros_like(q)
    size = DIM // HEADS
    for head in range(HEADS):
        rows = slice(head * size, (head + 1) * size)
        for at in range(SEQ):
            scores = np.array([q[rows, at] @ k[rows, key] / np.sqrt(size) for key in range(at + 1)])
            shares = np.exp(scores - scores.max())
            out[rows, at] = v[rows, : at + 1] @ (shares / shares.sum())
    return w["wo"] @ out, {"xn1": xn, "q": q, "k": k, "v": v, "attended": out}


def ffn(x: np.ndarray, w: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    xn = norm(x, w["rms2"])
    h1, h3 = w["w1"] @ xn, w["w3"] @ xn
    gate = h1 / (1 + np.exp(-h1)) * h3
    return w["w2"] @ gate, {"xn2": xn, "h1": h1, "h3": h3, "gate": gate}


def layer(t: dict[str, np.ndarray]) -> float:
    """sum(dy * y) of the whole layer, residuals too."""
    x2 = t["x"] + attention(t["x"], t)[0]
    return float((t["dy"] * (x2 + ffn(x2, t)[0])).sum())


def example() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    shapes = {
        "x": (DIM, SEQ),
        "dy": (DIM, SEQ),
        "w1": (HIDDEN, DIM),
        "w2": (DIM, HIDDEN),
        "w3": (HIDDEN, DIM),
    }
    shapes |= dict.fromkeys(("wq", "wk", "wv", "wo"), (DIM, DIM))
    tensors = {n: rng.normal(size=s) / np.sqrt(s[-1]) for n, s in shapes.items()}
    return tensors | {n: 1 + 0.1 * rng.normal(size=DIM) for n in ("rms1", "rms2")}


def trained() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    tensors = example()
    return tensors, dict(training.train(Step(DIM, HIDDEN, SEQ, HEADS), tensors))


def close(one: np.ndarray, other: np.ndarray, relative: float = 1e-6) -> None:
    assert one.shape == other.shape
    assert np.abs(one - other).max() <= relative * np.abs(other).max()


def test_the_forward_kernels_are_plain_numpy_s() -> None:
    tensors, values = trained()
    out, taps = attention(tensors["x"], tensors)
    close(values["attention"], out, 1e-12)
    for name, tap in taps.items():
        close(values[name], tap, 1e-12)
    out, taps = ffn(tensors["x"] + out, tensors)
    close(values["ffn"], out, 1e-12)
    for name, tap in taps.items():
        close(values[name], tap, 1e-12)


def test_every_gradient_is_that_of_the_plain_layer() -> None:
    tensors, values = trained()
    for name in ("x", "wq", "wk", "wv", "wo", "w1", "w2", "w3", "rms1", "rms2"):
        plain = np.zeros(tensors[name].shape)
        for at in np.ndindex(plain.shape):
            side = []
            for sign in (1e-4, -1e-4, 5e-5, -5e-5):
                moved = {n: t.copy() for n, t in tensors.items()}
                moved[name][at] += sign
                side.append(layer(moved))
            wide, near = (side[0] - side[1]) / 2e-4, (side[2] - side[3]) / 1e-4
            plain[at] = (4 * near - wide) / 3
        close(np.asarray(values["dx" if name == "x" else f"d{name}"]).reshape(plain.shape), plain)


def test_a_wrong_gradient_would_be_seen() -> None:
    _, values = trained()
    close(values["dwq"], values["dwq"])
    with pytest.raises(AssertionError):
        close(values["dwq"] * (1 + 1e-5), values["dwq"])


# ---- the same as programs


WEIGHTS = {"wq": "Wq", "wk": "Wk", "wv": "Wv", "wo": "Wo", "w1": "W1", "w2": "W2", "w3": "W3"}
TENSORS = {
    # by kernel: what goes in and comes out, in order along the channels, by the names of ``train``
    "kFwdAttn": (["x"], ["attention", "q", "k", "v", "attended", "xn1"]),
    "kFwdFFN": (["x2"], ["ffn", "h1", "h3", "gate", "xn2"]),
    "kFFNBwd": (["dy", "h1", "h3"], ["dxn2", "dh1", "dh3"]),
    "kSdpaBwd1": (["q", "k", "v", "dx2"], ["dv", "probs", "dp"]),
    "kSdpaBwd2": (["probs", "dp", "q", "k"], ["dq", "dk"]),
    "kQKVb": (["dq", "dk", "dv"], ["dxn1"]),
}


@pytest.mark.parametrize("shared_file", [False, True])
@pytest.mark.parametrize("name", TENSORS)
def test_a_program_written_and_read_computes_the_kernel(name: str, shared_file: bool) -> None:
    tensors = {n: t.astype(np.float16).astype(float) for n, t in example().items()}
    values = training.train(Step(DIM, HIDDEN, SEQ, HEADS), tensors)
    weights = {WEIGHTS.get(n, n): tensors[n] for n in [*WEIGHTS, "rms1", "rms2"]}
    kernel = programs.kernel(name, programs.Dims(DIM, HIDDEN, HEADS, SEQ), weights,
                             "all.bin" if shared_file else "")  # fmt: skip
    text = mil.write(kernel.program)
    program = mil.read(text)
    assert program == kernel.program
    assert mil.write(program) == text
    assert mil.check(program) == []
    given, wanted = TENSORS[name]
    x = np.concatenate([flat(values[n]) for n in given])
    out = mil.run(program, {"x": x[None, :, None, :]}, kernel.blobs, float64=True)["out"]
    exact = np.concatenate([flat(values[n]) for n in wanted])
    assert out.shape == kernel.outputs["out"] == (1, *exact.shape[:1], 1, SEQ)
    close(out[0, :, 0, :], exact, 1e-5)
    half = mil.run(program, {"x": x[None, :, None, :]}, kernel.blobs)["out"]
    assert half.dtype == np.float16
    close(half[0, :, 0, :].astype(float), exact, 0.02)


def flat(tensor: np.ndarray) -> np.ndarray:
    """(channels, positions); of scores (heads, query, key) a channel for each head and query."""
    return np.asarray(tensor).reshape(-1, SEQ)
