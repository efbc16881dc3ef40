"""The six kernels that a training step of one transformer layer runs on the ANE.

Forward: RMSNorm as sum, power and product, then attention with a causal mask, or the FFN with
SwiGLU.  Backward: from the gradient of an output to that of the input; gradients of weights, of
RMSNorm and the residual sums are the CPU's. Tensors are [1, C, 1, S]; what one kernel hands on to
another ("taps") lies one after the other along the channels of its one output.  Source:
maderix/ANE@f213c8d, training/train_large.m; later training/stories_mil.h.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npulab.npus.ane.training.mil.values import Type
from npulab.npus.ane.training.programs.bodies import Body, Kernel, size
from npulab.registers.table import read_table
from npulab.support.refuse import one_of, refuse_if

EPSILON = 0.00001  # of RMSNorm; 1.0014e-05 as fp16
MASKED = -65504.0  # what is added to scores of columns to come, the lowest finite fp16
Weights = Mapping[str, Any]
WEIGHTS = {"Wq": ("dim", "dim"), "Wk": ("dim", "dim"), "Wv": ("dim", "dim"), "Wo": ("dim", "dim"),
           "W1": ("hidden", "dim"), "W3": ("hidden", "dim"), "W2": ("dim", "hidden"), "rms1": ("dim",),
           "rms2": ("dim",)}
MASKS = ("kFwdAttn", "kSdpaBwd1")
KERNELS = {row["name"]: row for row in read_table(Path(__file__).parent / "kernels.csv")}  # parts of input and output


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

    @property
    def names(self) -> dict[str, float]:
        """The sizes and constants that the tables are written with."""
        constants = {"inverse_dim": 1 / self.dim, "scale": self.head ** -0.5}
        if self.printed:
            constants = {name: float(f"{np.float32(value):f}") for name, value in constants.items()}
        sizes = {name: getattr(self, name) for name in ("dim", "hidden", "heads", "seq", "head", "scores")}
        return {**sizes, **constants, "epsilon": EPSILON}


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
    one_of("kernel", name, KERNELS)
    body = Body(None if weights is None else _stored(name, dims, weights), file)
    names = dims.names
    body.rows(name, names)
    parts = {side: [(part, size(text, names)) for part, text in
                    (pair.split(":") for pair in KERNELS[name][side].split())] for side in ("x", "out")}
    x = Type("fp16", (1, sum(channels for _, channels in parts["x"]), 1, dims.seq))
    return body.kernel([("x", x)], ["out"], parts)


def _stored(name: str, dims: Dims, weights: Weights) -> dict[str, Any]:
    """The weights that are given, each transposed too (Wqt of Wq), and the mask of attention."""
    stored: dict[str, Any] = {}
    for weight, axes in WEIGHTS.items():
        if weight in weights:
            array, shape = np.asarray(weights[weight]), tuple(getattr(dims, axis) for axis in axes)
            refuse_if(array.shape != shape, f"weights: {weight}", array.shape, f"is {shape}")
            stored |= {weight: array, f"{weight}t": array.T}
    if name in MASKS:
        stored["cm"] = np.triu(np.full((dims.seq, dims.seq), MASKED), 1)
    return stored


def training_step(dims: Dims, weights: Weights | None = None, file: str = "") -> dict[str, Kernel]:
    """The six kernels by name; arguments as for ``kernel``."""
    return {name: kernel(name, dims, weights, file) for name in KERNELS}
