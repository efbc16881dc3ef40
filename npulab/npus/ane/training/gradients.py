"""A whole training step of a transformer layer: its kernels run in order, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from npulab.npus.ane.training.kernels import Kernel, Step, Values, checked, kernel_of, run
from npulab.npus.kit import read_table

ACTIVATIONS = {"x": "cs", "dy": "cs"}
WEIGHTS = {"wq": "ce", "wk": "ce", "wv": "ce", "wo": "ce", "rms1": "c"}
WEIGHTS |= {"w1": "fc", "w2": "cf", "w3": "fc", "rms2": "c"}
GIVEN = ACTIVATIONS | WEIGHTS


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in text.split())


# For each kernel in the order of a step: its name; the step's names of its inputs, by their names
# in the kernel; the step's names of its results, by their names in the kernel.
ORDER = [
    (row["kernel"], _pairs(row["given"]), _pairs(row["results"]))
    for row in read_table(Path(__file__).with_name("order.csv"))
]


def example(step: Step, seed: int = 0, gradient: float | None = None) -> Values:
    """Return random tensors (float64, by name) with which ``train`` can start.

    The input ``x`` has standard deviation 1, weights ``(outputs, inputs)`` have
    ``1 / sqrt(inputs)``, norm weights are near 1. The gradient ``dy`` of the layer's output has the
    standard deviation ``gradient``. Its default, ``2 / (seq * dim)``, belongs to a loss that is the
    mean of squared differences of about 1. Equal seeds give equal numbers.

    >>> example(Step(4, 6, 3, 2))["w2"].shape
    (4, 6)
    """
    random = np.random.default_rng(seed)
    if gradient is None:
        gradient = 2 / (step.seq * step.dim)
    spreads = {"x": 1.0, "dy": gradient}
    tensors = {}
    for name, axes in GIVEN.items():
        normal = random.standard_normal(step.axes(axes))
        if name.startswith("rms"):
            tensors[name] = 1 + normal / 10
        else:
            usual = step.size(axes[-1]) ** -0.5
            tensors[name] = normal * spreads.get(name, usual)
    return tensors


def train(step: Step, tensors: Mapping[str, Any], dtype: str = "float64") -> Values:
    """Return all tensors of one training step of a layer, forward and backward, by name.

    The NPU's kernels run in ``dtype``, the CPU's in float32, or in float64 if ``dtype`` is float64.
    ``tensors`` has the names and shapes of ``example``'s. The result has these and:

    - forward: ``attention`` and ``ffn``, which are added to the residual; ``x2`` and ``y``, the
      sums; ``xn1``, ``q``, ``k``, ``v``, ``attended``, ``xn2``, ``h1``, ``h3``, ``gate``, which the
      backward kernels read;
    - backward: ``probs``, the attention's probabilities; the gradients ``dxn2``, ``dh1``, ``dh3``,
      ``dx2``, ``dv``, ``dp``, ``dq``, ``dk``, ``dxn1``, ``dx``; the gradient of every weight
      (``dwq`` ... ``drms1``) and of the norms' inputs (``dnorm1``, ``dnorm2``).

    Raises ValueError, with the tensor's name, for a tensor that is missing or of another shape.
    """
    given = Kernel("train", "CPU", GIVEN, {}, (), ())
    values: Values = dict(checked(given, step, tensors))
    types = {"NPU": dtype, "CPU": "float32"}
    if dtype == "float64":
        types["CPU"] = dtype
    for name, renamed, results in ORDER:
        kernel = kernel_of(name)
        done = run(kernel, step, _inputs_of(kernel, renamed, values), types[kernel.unit])
        for result, array in {**done.outputs, **done.taps}.items():
            values[results.get(result, result)] = array
    return values


def _inputs_of(
    kernel: Kernel, renamed: Mapping[str, str], values: Mapping[str, np.ndarray]
) -> Values:
    """Return the inputs of a kernel, taken from the tensors ``values`` of a step.

    ``renamed`` has the step's name of an input by its name in the kernel, if the names differ. The
    mask is left out, because ``checked`` adds it.
    """
    return {name: values[renamed.get(name, name)] for name in kernel.given if name != "mask"}


def given_to(kernel: str | Kernel, values: Mapping[str, np.ndarray]) -> Values:
    """Return the inputs of a kernel, taken from the result of ``train``.

    ``rms_backward`` runs twice in a step; its inputs are those of the run for the FFN's norm.

    >>> step = Step(4, 6, 3, 2)
    >>> list(given_to("ffn_backward", train(step, example(step))))
    ['dy', 'h1', 'h3', 'w1', 'w2', 'w3']
    """
    plan = kernel_of(kernel)
    for name, renamed, _ in ORDER:
        if name == plan.name:
            return _inputs_of(plan, renamed, values)
    return _inputs_of(plan, {}, values)
