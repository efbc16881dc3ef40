"""The six kernels that a training step of one transformer layer runs on the ANE.

Forward: RMSNorm as sum, power and product, then attention with a causal mask, or the FFN with
SwiGLU.  Backward: from the gradient of an output to that of the input; gradients of weights, of
RMSNorm and the residual sums are the CPU's. Tensors are [1, C, 1, S]; what one kernel hands on to
another ("taps") lies one after the other along the channels of its one output.  Source:
maderix/ANE@f213c8d, training/train_large.m; later training/stories_mil.h.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npulab.npus.ane.training.mil.values import Type
from npulab.npus.ane.training.programs.bodies import Body, Kernel, Shape

EPSILON = 0.00001  # of RMSNorm; 1.0014e-05 as fp16
MASKED = -65504.0  # what is added to scores of columns to come, the lowest finite fp16
Weights = Mapping[str, Any]


@dataclass(frozen=True)
class Dims:
    """Sizes of a layer: channels, channels inside the FFN, heads, columns (the sequence).

    ``printed`` gives constants the six decimals of C's ``%f`` that maderix/ANE prints: 1/768 is
    0.001302. Raises ValueError for sizes below 1 and heads that do not divide the channels.
    """

    dim: int = 768
    hidden: int = 2048
    heads: int = 12
    seq: int = 512
    printed: bool = False

    def __post_init__(self) -> None:
        for name in ("dim", "hidden", "heads", "seq"):
            object.__setattr__(self, name, operator.index(getattr(self, name)))
        if min(self.dim, self.hidden, self.heads, self.seq) < 1 or self.dim % self.heads:
            raise ValueError(f"dims: got dim {self.dim}, hidden {self.hidden}, heads {self.heads}, seq {self.seq}, "
                             "allowed are 1 or more, and a dim that heads divide")

    @property
    def head(self) -> int:
        return self.dim // self.heads

    @property
    def scores(self) -> int:
        """Channels of attention scores as [1, heads * seq, 1, seq]."""
        return self.heads * self.seq

    def number(self, value: float) -> float:
        """A constant, as it is printed."""
        return float(f"{np.float32(value):f}") if self.printed else value


def kernel(name: str, dims: Dims, weights: Weights | None = None, file: str = "") -> Kernel:
    """One of the six kernels of a training step, by its name there: kFwdAttn, kFwdFFN, kFFNBwd,
    kSdpaBwd1, kSdpaBwd2, kQKVb.

    ``weights`` are Wq, Wk, Wv, Wo (dim, dim), W1, W3 (hidden, dim), W2 (dim, hidden), rms1, rms2
    (dim,), those that the kernel has; they are rounded to fp16, the backward kernels transpose
    them, and the causal mask is made. Without them there are no weight files.  Each weight has a
    file of its own, as in the training, or all are records of ``file``. Raises LookupError for
    another name and weights that are missing, ValueError for shapes that do not fit.

    >>> program, blobs, inputs, outputs, parts = kernel("kQKVb", Dims(4, 8, 2, 32))
    >>> inputs, outputs, parts["x"]
    ({'x': (1, 12, 1, 32)}, {'out': (1, 4, 1, 32)}, (('dq', 4), ('dk', 4), ('dv', 4)))
    """
    if name not in KERNELS:
        raise LookupError(f"kernel: got {name!r}, allowed is one of {', '.join(KERNELS)}")
    shapes = {"Wq": (dims.dim, dims.dim), "Wk": (dims.dim, dims.dim), "Wv": (dims.dim, dims.dim),
              "Wo": (dims.dim, dims.dim), "W1": (dims.hidden, dims.dim), "W3": (dims.hidden, dims.dim),
              "W2": (dims.dim, dims.hidden), "rms1": (dims.dim,), "rms2": (dims.dim,)}
    stored: dict[str, Any] | None = None
    if weights is not None:
        stored = {}
        for weight, shape in shapes.items():
            if weight in weights:
                array = np.asarray(weights[weight])
                if array.shape != shape:
                    raise ValueError(f"weights: {weight}: got {array.shape}, allowed is {shape}")
                stored |= {weight: array, f"{weight}t": array.T}
        if name in MASKS:
            stored["cm"] = np.triu(np.full((dims.seq, dims.seq), MASKED), 1)
    return KERNELS[name](Body(stored, file), dims)


def training_step(dims: Dims, weights: Weights | None = None, file: str = "") -> dict[str, Kernel]:
    """The six kernels by name; arguments as for ``kernel``."""
    return {name: kernel(name, dims, weights, file) for name in KERNELS}


def _forward_attention(body: Body, dims: Dims) -> Kernel:
    """x -> (Wo attention, q, k, v, attention, normed x)."""
    dim, seq = dims.dim, dims.seq
    flat = (1, dim, 1, seq)
    normed = _rms_norm(body, dims, "rms1")
    _convolution_constants(body)
    for name in ("Wq", "Wk", "Wv", "Wo"):
        body.weight(name, (dim, dim, 1, 1), f"{name.lower()}.bin")
    for part in "qkv":
        _convolved(body, f"{part}f", flat, f"W{part}", normed, f"c{part}")
    _heads(body, dims, "qsh", [("q", "qf", "q4"), ("k", "kf", "k4"), ("v", "vf", "v4")])
    no, yes = body.const("tx", "bool", False), body.const("ty", "bool", True)
    weights = _probabilities(body, dims, "aw", no, yes)
    body.add("matmul", "a4", (1, dims.heads, seq, dims.head), "mm2", transpose_x=no, transpose_y=no, x=weights, y="v")
    body.add("transpose", "at", (1, dims.heads, dims.head, seq), "ta", perm="pm", x="a4")
    whole = body.const("os", "int32", flat)
    body.add("reshape", "af", flat, "ra", shape=whole, x="at")
    _convolved(body, "oo", flat, "Wo", "af", "co")
    return _concatenated(body, dims, [("x", dim)], [("oo", dim), ("qf", dim), ("kf", dim), ("vf", dim), ("af", dim),
                                                    (normed, dim)])


def _forward_ffn(body: Body, dims: Dims) -> Kernel:
    """x -> (W2 gate, W1 x, W3 x, gate, normed x), gate being silu(W1 x) * W3 x of the normed x."""
    dim, hidden, seq = dims.dim, dims.hidden, dims.seq
    wide = (1, hidden, 1, seq)
    normed = _rms_norm(body, dims, "rms2")
    _convolution_constants(body)
    for name, shape in (("W1", (hidden, dim, 1, 1)), ("W3", (hidden, dim, 1, 1)), ("W2", (dim, hidden, 1, 1))):
        body.weight(name, shape, f"{name.lower()}.bin")
    _convolved(body, "h1", wide, "W1", normed, "c1")
    _convolved(body, "h3", wide, "W3", normed, "c3")
    body.add("sigmoid", "sig", wide, "sg", x="h1")
    body.add("mul", "silu", wide, "si", x="h1", y="sig")
    body.add("mul", "gate", wide, "gt", x="silu", y="h3")
    _convolved(body, "y", (1, dim, 1, seq), "W2", "gate", "c2")
    return _concatenated(body, dims, [("x", dim)], [("y", dim), ("h1", hidden), ("h3", hidden), ("gate", hidden),
                                                    (normed, dim)])


def _backward_ffn(body: Body, dims: Dims) -> Kernel:
    """(gradient of W2's output, W1 x, W3 x) -> (gradient of the normed x, those of W1 x and of W3
    x)."""
    dim, hidden, seq = dims.dim, dims.hidden, dims.seq
    wide = (1, hidden, 1, seq)
    _convolution_constants(body)
    begin, size = body.const("bd", "int32", (0, 0, 0, 0)), body.const("sd", "int32", (1, dim, 1, seq))
    body.add("slice_by_size", "dffn", (1, dim, 1, seq), "s0", x="x", begin=begin, size=size)
    begin, size = body.const("b1", "int32", (0, dim, 0, 0)), body.const("s1", "int32", wide)
    body.add("slice_by_size", "h1", wide, "s1x", x="x", begin=begin, size=size)
    begin = body.const("b3", "int32", (0, dim + hidden, 0, 0))
    body.add("slice_by_size", "h3", wide, "s3x", x="x", begin=begin, size=size)
    body.weight("W2t", (hidden, dim, 1, 1), "w2t.bin")
    _convolved(body, "dsilu", wide, "W2t", "dffn", "cw2")
    body.add("sigmoid", "sig", wide, "sg", x="h1")
    one = body.const("one", "fp16", 1.0)
    for op, output, x, y in (("sub", "oms", one, "sig"), ("mul", "homs", "h1", "oms"), ("add", "brk", one, "homs"),
                             ("mul", "dsd", "sig", "brk"), ("mul", "t1", "dsilu", "h3"), ("mul", "dh1", "t1", "dsd"),
                             ("mul", "slh", "h1", "sig"), ("mul", "dh3", "dsilu", "slh")):
        body.add(op, output, wide, x=x, y=y)
    body.weight("W1t", (dim, hidden, 1, 1), "w1t.bin")
    body.weight("W3t", (dim, hidden, 1, 1), "w3t.bin")
    _convolved(body, "dx1", (1, dim, 1, seq), "W1t", "dh1", "cw1")
    _convolved(body, "dx3", (1, dim, 1, seq), "W3t", "dh3", "cw3")
    body.add("add", "dx", (1, dim, 1, seq), "adx", x="dx1", y="dx3")
    return _concatenated(body, dims, [("dffn", dim), ("h1", hidden), ("h3", hidden)],
                         [("dx", dim), ("dh1", hidden), ("dh3", hidden)])


def _backward_scores(body: Body, dims: Dims) -> Kernel:
    """(q, k, v, gradient of Wo's output) -> (gradient of v, attention weights, their gradient)."""
    dim, seq, heads = dims.dim, dims.seq, dims.heads
    flat, scores = (1, dim, 1, seq), (1, dims.scores, 1, seq)
    _convolution_constants(body)
    _sliced(body, flat, "sz", [("qf", 0), ("kf", dim), ("vf", 2 * dim), ("dx2f", 3 * dim)])
    body.weight("Wot", (dim, dim, 1, 1), "wot.bin")
    _convolved(body, "df", flat, "Wot", "dx2f", "cwo")
    _heads(body, dims, "rsh", [("q", "qf", "qr"), ("k", "kf", "kr"), ("v", "vf", "vr"), ("da", "df", "dr")])
    no, yes = body.const("bF", "bool", False), body.const("bT", "bool", True)
    weights = _probabilities(body, dims, "probs", no, yes)
    body.add("matmul", "dv4", (1, heads, seq, dims.head), "dv", transpose_x=yes, transpose_y=no, x=weights, y="da")
    body.add("matmul", "dp4", (1, heads, seq, seq), "dp", transpose_x=no, transpose_y=yes, x="da", y="v")
    body.add("transpose", "dvt", (1, heads, dims.head, seq), perm="pm", x="dv4")
    whole = body.const("dvs", "int32", flat)
    body.add("reshape", "dvf", flat, shape=whole, x="dvt")
    whole = body.const("scs", "int32", scores)
    body.add("reshape", "pf", scores, shape=whole, x=weights)
    body.add("reshape", "dpf", scores, shape=whole, x="dp4")
    return _concatenated(body, dims, [("qf", dim), ("kf", dim), ("vf", dim), ("dx2f", dim)],
                         [("dvf", dim), ("pf", dims.scores), ("dpf", dims.scores)])


def _backward_softmax(body: Body, dims: Dims) -> Kernel:
    """(attention weights, their gradient, q, k) -> (gradient of q, of k)."""
    dim, seq, heads, scores = dims.dim, dims.seq, dims.heads, dims.scores
    flat, square = (1, dim, 1, seq), (1, heads, seq, seq)
    _sliced(body, (1, scores, 1, seq), "sz_sc", [("pf", 0), ("dpf", scores)])
    _sliced(body, flat, "sz_d", [("qf", 2 * scores), ("kf", 2 * scores + dim)], 2)
    whole = body.const("ssh", "int32", square)
    body.add("reshape", "probs", square, "rp", shape=whole, x="pf")
    body.add("reshape", "dp", square, "rdp", shape=whole, x="dpf")
    _heads(body, dims, "rsh", [("q", "qf", "qr"), ("k", "kf", "kr")])
    body.add("mul", "pdp", square, x="probs", y="dp")
    axes, keep = body.const("rax", "int32", (-1,)), body.const("kd", "bool", True)
    body.add("reduce_sum", "spdp", (1, heads, seq, 1), "rs", x="pdp", axes=axes, keep_dims=keep)
    body.add("sub", "dps", square, x="dp", y="spdp")
    body.add("mul", "ds0", square, x="probs", y="dps")
    scale = body.const("scv", "fp16", dims.number(dims.head ** -0.5))
    body.add("mul", "ds", square, x="ds0", y=scale)
    no, yes = body.const("bF", "bool", False), body.const("bT", "bool", True)
    by_head = (1, heads, seq, dims.head)
    body.add("matmul", "dq4", by_head, "dq", transpose_x=no, transpose_y=no, x="ds", y="k")
    body.add("matmul", "dk4", by_head, "dk", transpose_x=yes, transpose_y=no, x="ds", y="q")
    for part in ("dq", "dk"):
        body.add("transpose", f"{part}t", (1, heads, dims.head, seq), perm="pm", x=f"{part}4")
    whole = body.const("fs", "int32", flat)
    for part in ("dq", "dk"):
        body.add("reshape", f"{part}f", flat, shape=whole, x=f"{part}t")
    return _concatenated(body, dims, [("pf", scores), ("dpf", scores), ("qf", dim), ("kf", dim)],
                         [("dqf", dim), ("dkf", dim)])


def _backward_qkv(body: Body, dims: Dims) -> Kernel:
    """(gradients of q, k, v) -> gradient of the normed x."""
    dim, flat = dims.dim, (1, dims.dim, 1, dims.seq)
    _convolution_constants(body)
    _sliced(body, flat, "sz", [("dq", 0), ("dk", dim), ("dv", 2 * dim)])
    for part in "qkv":
        body.weight(f"W{part}t", (dim, dim, 1, 1), f"w{part}t.bin")
    for part in "qkv":
        _convolved(body, f"dx{part}", flat, f"W{part}t", f"d{part}", f"c{part}")
    body.add("add", "dxqk", flat, "aqk", x="dxq", y="dxk")
    body.add("add", "out", flat, x="dxqk", y="dxv")
    pairs = [("dq", dim), ("dk", dim), ("dv", dim)]
    return body.kernel([("x", Type("fp16", (1, 3 * dim, 1, dims.seq)))], ["out"], {"x": pairs, "out": [("dx", dim)]})


KERNELS: dict[str, Callable[[Body, Dims], Kernel]] = {
    "kFwdAttn": _forward_attention, "kFwdFFN": _forward_ffn, "kFFNBwd": _backward_ffn, "kSdpaBwd1": _backward_scores,
    "kSdpaBwd2": _backward_softmax, "kQKVb": _backward_qkv}
MASKS = ("kFwdAttn", "kSdpaBwd1")


# Parts that several kernels have


def _rms_norm(body: Body, dims: Dims, weight: str) -> str:
    """``x * (sum(x ** 2) / dim + epsilon) ** -0.5 * weight``, the sum over the channels."""
    flat, line = (1, dims.dim, 1, dims.seq), (1, 1, 1, dims.seq)
    body.add("mul", "sq", flat, x="x", y="x")
    axes, keep = body.const("rax", "int32", (1,)), body.const("kd", "bool", True)
    body.add("reduce_sum", "ss", line, x="sq", axes=axes, keep_dims=keep)
    inverse = body.const("invd", "fp16", dims.number(1 / dims.dim))
    body.add("mul", "ss2", line, x="ss", y=inverse)
    epsilon = body.const("eps", "fp16", EPSILON)
    body.add("add", "ss3", line, x="ss2", y=epsilon)
    half = body.const("nhalf", "fp16", -0.5)
    body.add("pow", "rrms", line, x="ss3", y=half)
    body.add("mul", "xr", flat, x="x", y="rrms")
    scale = body.weight("rw", (1, dims.dim, 1, 1), f"{weight}.bin", weight)
    return body.add("mul", "xn", flat, x="xr", y=scale)


def _convolution_constants(body: Body) -> None:
    body.const("pt", "string", "valid")
    body.const("st", "int32", (1, 1))
    body.const("pd", "int32", (0, 0, 0, 0))
    body.const("dl", "int32", (1, 1))
    body.const("gr", "int32", 1)


def _convolved(body: Body, output: str, shape: Shape, weight: str, x: str, name: str) -> None:
    body.add("conv", output, shape, name, dilations="dl", groups="gr", pad="pd", pad_type="pt", strides="st",
             weight=weight, x=x)


def _sliced(body: Body, shape: Shape, size: str, parts: Sequence[tuple[str, int]], first: int = 0) -> None:
    """Parts of x along the channels, of one shape."""
    body.const(size, "int32", shape, size.replace("_", ""))
    for number, (output, start) in enumerate(parts, first):
        begin = body.const(f"b{number}", "int32", (0, start, 0, 0))
        body.add("slice_by_size", output, shape, f"s{number}", x="x", begin=begin, size=size)


def _heads(body: Body, dims: Dims, shape: str, parts: Sequence[tuple[str, str, str]]) -> None:
    """[1, dim, 1, seq] as [1, heads, seq, head]; ``parts`` are (result, what of, name in
    between)."""
    turned = (1, dims.heads, dims.head, dims.seq)
    body.const(shape, "int32", turned)
    body.const("pm", "int32", (0, 1, 3, 2))
    for output, x, between in parts:
        body.add("reshape", between, turned, f"r{output[0]}", shape=shape, x=x)
        body.add("transpose", output, (1, dims.heads, dims.seq, dims.head), f"t{output[0]}", perm="pm", x=between)


def _probabilities(body: Body, dims: Dims, output: str, no: str, yes: str) -> str:
    """Softmax of the scaled scores of q and k, the causal mask added."""
    square = (1, dims.heads, dims.seq, dims.seq)
    body.add("matmul", "sc1", square, "mm1", transpose_x=no, transpose_y=yes, x="q", y="k")
    scale = body.const("scv", "fp16", dims.number(dims.head ** -0.5))
    body.add("mul", "sc2", square, "scl", x="sc1", y=scale)
    mask = body.weight("cm", (1, 1, dims.seq, dims.seq), "mask.bin")
    body.add("add", "ms", square, "msk", x="sc2", y=mask)
    axis = body.const("sax", "int32", -1)
    return body.add("softmax", output, square, "sm", axis=axis, x="ms")


def _concatenated(body: Body, dims: Dims, given: Sequence[tuple[str, int]], taken: Sequence[tuple[str, int]]) -> Kernel:
    """The kernel whose output is its results one after the other along the channels."""
    axis, interleave = body.const("cax", "int32", 1), body.const("cid", "bool", False)
    body.add("concat", "out", (1, sum(size for _, size in taken), 1, dims.seq), "cat", axis=axis, interleave=interleave,
             values=tuple(name for name, _ in taken))
    x = Type("fp16", (1, sum(size for _, size in given), 1, dims.seq))
    return body.kernel([("x", x)], ["out"], {"x": given, "out": taken})
