"""A whole training step from its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from npulab.npus.ane.training.kernels import Kernel, Step, Values, checked, kernel_of, run
from npulab.npus.kit import read_table

GIVEN = {
    "x": "cs",
    "dy": "cs",
    "wq": "ce",
    "wk": "ce",
    "wv": "ce",
    "wo": "ce",
    "rms1": "c",
    "w1": "fc",
    "w2": "cf",
    "w3": "fc",
    "rms2": "c",
}


def _renamed(text: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in text.split())


# the kernels of a step in order, and what their tensors and results are called in the step
ORDER = [
    (row["kernel"], _renamed(row["given"]), _renamed(row["results"]))
    for row in read_table(Path(__file__).with_name("order.csv"))
]


def example(step: Step, seed: int = 0, gradient: float | None = None) -> Values:
    """What a step starts from, float64: activations of spread 1, weights ``(outputs, inputs)`` of
    spread ``1 / sqrt(inputs)``, norm weights near 1, and a gradient ``dy`` of the layer's output of
    spread ``gradient``, ``2 / (seq dim)`` where it is not said: that of a mean of squared
    differences that have spread 1.

    The same numbers for the same seed.

    >>> example(Step(4, 6, 3, 2))["w2"].shape
    (4, 6)
    """
    random = np.random.default_rng(seed)
    spreads = {"x": 1.0, "dy": 2 / (step.seq * step.dim) if gradient is None else gradient}
    out = {}
    for name, axes in GIVEN.items():
        normal = random.standard_normal(step.axes(axes))
        if name.startswith("rms"):
            out[name] = 1 + normal / 10
        else:
            out[name] = normal * spreads.get(name, step.size(axes[-1]) ** -0.5)
    return out


def train(
    step: Step, tensors: Mapping[str, Any], dtype: str = "float64", accumulate: str | None = None
) -> Values:
    """One training step of a layer, forward and back: the NPU's kernels in ``dtype``, the CPU's in
    float32 (float64 where dtype is).

    ``tensors`` are as ``example`` gives them.  The result holds them and ``attention`` and ``ffn``
    (what is added to the residual), ``x2``, ``y``, the taps (``xn1``, ``q``, ``k``, ``v``,
    ``attended``; ``xn2``, ``h1``, ``h3``, ``gate``), the gradients ``dxn2``, ``dh1``, ``dh3``,
    ``dx2``, ``dv``, ``probs``, ``dp``, ``dq``, ``dk``, ``dxn1``, ``dx``, those of every weight
    (``dwq`` ... ``drms1``) and what the norms give back (``dnorm1``, ``dnorm2``). Raises ValueError
    naming a tensor that is missing or of another shape.
    """
    values: Values = dict(checked(Kernel("train", "CPU", GIVEN, {}, (), ()), step, tensors))
    if dtype == "float64":
        single = "float64"
    else:
        single = "float32"
    for name, renamed, results in ORDER:
        kernel = kernel_of(name)
        types = (single, None) if kernel.unit == "CPU" else (dtype, accumulate)
        done = run(kernel, step, _given(kernel, renamed, values), *types)
        values |= {
            results.get(result, result): array
            for result, array in {**done.outputs, **done.taps}.items()
        }
    return values


def _given(kernel: Kernel, renamed: Mapping[str, str], values: Mapping[str, np.ndarray]) -> Values:
    """What a kernel is given out of the tensors of a step; the mask is made where it is used."""
    return {name: values[renamed.get(name, name)] for name in kernel.given if name != "mask"}


def given_to(kernel: str | Kernel, values: Mapping[str, np.ndarray]) -> Values:
    """What a kernel of the step is given, out of what ``train`` gave; the norm of the FFN for
    ``rms_backward``.

    >>> step = Step(4, 6, 3, 2)
    >>> list(given_to("ffn_backward", train(step, example(step))))
    ['dy', 'h1', 'h3', 'w1', 'w2', 'w3']
    """
    plan = kernel_of(kernel)
    renamed = next((renamed for name, renamed, _ in ORDER if name == plan.name), {})
    return _given(plan, renamed, values)
