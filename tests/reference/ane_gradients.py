"""Every gradient that the kernels of a training step compute, against differences of the forward
kernels: ``ane_gradients.csv`` says which moves with which."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from npulab.npus.ane.training.gradients import example, given_to, train
from npulab.npus.ane.training.kernels import Kernel, Step, Values, checked, evaluate, kernel_of, run
from npulab.support.files import read_table
from npulab.support.refuse import one_of, refuse_if

Loss = Callable[[np.ndarray], Any]
METHODS = ("central", "complex")
STRIDE = (
    1e-4  # of central differences of fourth order: rounding makes some 1e-11 of it, curvature less
)
IMAGINARY = 1e-30
GRADIENTS = read_table(Path(__file__).with_suffix(".csv"))


def check_gradients(
    step: Step,
    tensors: Mapping[str, Any] | None = None,
    seed: int = 0,
    method: str = "central",
    directions: int = 0,
) -> pd.DataFrame:
    """Every gradient that the kernels compute, against differences of the forward kernels in
    float64.

    A row per gradient: kernel, gradient, forward (the kernel that is varied), wrt (its tensor,
    given or a result of the way), compared (numbers), largest (the largest of them), error (largest
    distance from the difference) and relative (error / largest; 0 where both are 0).  ``method`` is
    "central" (fourth order) or "complex" (a step along the imaginary axis, exact to rounding).
    With ``directions`` the derivatives along so many random directions are compared, otherwise
    those by every element, which takes one forward run each, four with "central". The chain of the
    two forward kernels is covered: what ``x`` and every weight of both get back, and all that is
    passed between the backward kernels; then the loss, and the gradient of the whole layer,
    residuals too. Raises LookupError for another method, ValueError for a negative count of
    directions, and as ``train``.

    >>> bool((check_gradients(Step(4, 3, 2, 2), method="complex")["relative"] < 1e-12).all())
    True
    """
    one_of("method", method, METHODS)
    refuse_if(directions < 0, "directions", directions, "is 0 (every element) or more")
    values = train(step, example(step, seed) if tensors is None else tensors)
    rows: list[dict[str, Any]] = []

    def compare(row: Mapping[str, str], claimed: np.ndarray, loss: Loss, at: np.ndarray) -> None:
        flat = claimed.reshape(at.shape)
        differences, claims = np.transpose(
            [
                (derivative(loss, at, along, method), (along * flat).sum())
                for along in chosen_directions(at.shape, directions, seed)
            ]
        )
        largest = float(max(np.abs(claims).max(), np.abs(differences).max()))
        error = float(np.abs(claims - differences).max())
        names = {name: row[name] for name in ("kernel", "gradient", "forward", "wrt")}
        rows.append(
            {
                **names,
                "compared": len(claims),
                "largest": largest,
                "error": error,
                "relative": error / largest if error else 0.0,
            }
        )

    # ``gradient`` of ``kernel`` is how ``dy`` times the output of ``forward`` moves with ``wrt``
    for row in GRADIENTS:
        given = given_to(row["forward"], values)
        loss, at = varied(kernel_of(row["forward"]), step, given, row["wrt"], values[row["dy"]])
        compare(row, values[row["gradient"]], loss, at)
    given = {"y": values["y"], "target": values["x"]}
    loss, at = varied(kernel_of("loss"), step, given, "y", np.array(1.0))
    compare(
        {"kernel": "loss", "gradient": "dy", "forward": "loss", "wrt": "y"},
        run("loss", step, given, "float64").outputs["dy"],
        loss,
        at,
    )
    compare(
        {"kernel": "whole layer", "gradient": "dx", "forward": "layer", "wrt": "x"},
        values["dx"],
        _layer(step, values),
        values["x"],
    )
    return pd.DataFrame(rows)


def varied(
    kernel: Kernel, step: Step, given: Mapping[str, Any], wrt: str, dy: np.ndarray
) -> tuple[Loss, np.ndarray]:
    """The sum as a function of one tensor, and the tensor."""
    base: Values = dict(checked(kernel, step, given))
    evaluate(kernel.operations, step, base, "float64")
    if wrt not in base:
        raise LookupError(f"wrt: got {wrt!r}, kernel {kernel.name} has {', '.join(base)}")
    shape = base[kernel.outputs[0]].shape
    if np.shape(dy) != shape:
        raise ValueError(
            f"dy: got shape {np.shape(dy)}, allowed is {shape} of {kernel.name}'s {kernel.outputs[0]}"
        )
    names = [operation.name for operation in kernel.operations]
    rest = kernel.operations[names.index(wrt) + 1 if wrt in names else 0 :]

    def loss(moved: np.ndarray) -> Any:
        values = {**base, wrt: moved}
        evaluate(rest, step, values, "float64")
        return (values[kernel.outputs[0]] * dy).sum()

    return loss, base[wrt]


def chosen_directions(shape: tuple[int, ...], count: int, seed: int) -> Iterator[np.ndarray]:
    """Random directions; without a count one along each element."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        yield random.standard_normal(shape)
    for place in np.ndindex(shape) if not count else ():
        along = np.zeros(shape)
        along[place] = 1
        yield along


def derivative(loss: Loss, at: np.ndarray, along: np.ndarray, method: str) -> float:
    if method == "complex":
        return float(loss(at + 1j * IMAGINARY * along).imag / IMAGINARY)
    far = [loss(at + times * STRIDE * along) for times in (-2, -1, 1, 2)]
    return float((far[0] - far[3] + 8 * (far[2] - far[1])) / (12 * STRIDE))


def _layer(step: Step, values: Values) -> Loss:
    """``sum(dy * y)`` of the whole layer as a function of ``x``."""
    kernels = [kernel_of(name) for name in ("forward_attention", "forward_ffn")]
    attention, ffn = (checked(kernel, step, given_to(kernel, values)) for kernel in kernels)

    def loss(moved: np.ndarray) -> Any:
        first: Values = {**attention, "x": moved}
        evaluate(kernels[0].operations, step, first, "float64")
        second: Values = {**ffn, "x": moved + first["out"]}
        evaluate(kernels[1].operations, step, second, "float64")
        return ((second["x"] + second["out"]) * values["dy"]).sum()

    return loss
