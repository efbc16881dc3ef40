"""A whole training step from its kernels, and every gradient against differences of the forward
kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from npulab.npus.ane.training.kernels import Kernel, Step, Values, checked, evaluate, kernel_of, run
from npulab.npus.kit import one_of, pd, read_table, refuse_if

GIVEN = {"x": "cs", "dy": "cs", "wq": "ce", "wk": "ce", "wv": "ce", "wo": "ce", "rms1": "c", "w1": "fc", "w2": "cf",
         "w3": "fc", "rms2": "c"}
HERE = Path(__file__).parent
Loss = Callable[[np.ndarray], Any]
METHODS = ("central", "complex")
STRIDE = 1e-4  # of central differences of fourth order: rounding makes some 1e-11 of it, curvature less
IMAGINARY = 1e-30


def _renamed(text: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in text.split())


# the kernels of a step in order, and what their tensors and results are called in the step
ORDER = [(row["kernel"], _renamed(row["given"]), _renamed(row["results"]))
         for row in read_table(HERE / "order.csv")]


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
        out[name] = 1 + normal / 10 if name.startswith("rms") else normal * spreads.get(
            name, step.size(axes[-1]) ** -0.5)
    return out


def train(step: Step, tensors: Mapping[str, Any], dtype: str = "float64", accumulate: str | None = None) -> Values:
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
    single = "float64" if dtype == "float64" else "float32"
    for name, renamed, results in ORDER:
        kernel = kernel_of(name)
        types = (single, None) if kernel.unit == "CPU" else (dtype, accumulate)
        done = run(kernel, step, _given(kernel, renamed, values), *types)
        values |= {results.get(result, result): array
                   for result, array in {**done.outputs, **done.taps}.items()}
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


def check_gradients(step: Step, tensors: Mapping[str, Any] | None = None, seed: int = 0, method: str = "central",
                    directions: int = 0) -> pd.DataFrame:
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
        differences, claims = np.transpose([
            (_derivative(loss, at, along, method), (along * flat).sum())
            for along in _directions(at.shape, directions, seed)])
        largest = float(max(np.abs(claims).max(), np.abs(differences).max()))
        error = float(np.abs(claims - differences).max())
        names = {name: row[name] for name in ("kernel", "gradient", "forward", "wrt")}
        rows.append({**names, "compared": len(claims), "largest": largest, "error": error,
                     "relative": error / largest if error else 0.0})

    # ``gradient`` of ``kernel`` is how ``dy`` times the output of ``forward`` moves with ``wrt``
    for row in read_table(HERE / "gradients.csv"):
        given = given_to(row["forward"], values)
        loss, at = _varied(kernel_of(row["forward"]), step, given, row["wrt"], values[row["dy"]])
        compare(row, values[row["gradient"]], loss, at)
    given = {"y": values["y"], "target": values["x"]}
    loss, at = _varied(kernel_of("loss"), step, given, "y", np.array(1.0))
    compare({"kernel": "loss", "gradient": "dy", "forward": "loss", "wrt": "y"},
            run("loss", step, given, "float64").outputs["dy"], loss, at)
    compare({"kernel": "whole layer", "gradient": "dx", "forward": "layer", "wrt": "x"},
            values["dx"], _layer(step, values), values["x"])
    return pd.DataFrame(rows)


def _varied(kernel: Kernel, step: Step, given: Mapping[str, Any], wrt: str, dy: np.ndarray) -> tuple[Loss, np.ndarray]:
    """The sum as a function of one tensor, and the tensor."""
    base: Values = dict(checked(kernel, step, given))
    evaluate(kernel.operations, step, base, "float64")
    if wrt not in base:
        raise LookupError(f"wrt: got {wrt!r}, kernel {kernel.name} has {', '.join(base)}")
    shape = base[kernel.outputs[0]].shape
    if np.shape(dy) != shape:
        raise ValueError(f"dy: got shape {np.shape(dy)}, allowed is {shape} of {kernel.name}'s {kernel.outputs[0]}")
    names = [operation.name for operation in kernel.operations]
    rest = kernel.operations[names.index(wrt) + 1 if wrt in names else 0:]

    def loss(moved: np.ndarray) -> Any:
        values = {**base, wrt: moved}
        evaluate(rest, step, values, "float64")
        return (values[kernel.outputs[0]] * dy).sum()

    return loss, base[wrt]


def _directions(shape: tuple[int, ...], count: int, seed: int) -> Iterator[np.ndarray]:
    """Random directions; without a count one along each element."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        yield random.standard_normal(shape)
    for place in np.ndindex(shape) if not count else ():
        along = np.zeros(shape)
        along[place] = 1
        yield along


def _derivative(loss: Loss, at: np.ndarray, along: np.ndarray, method: str) -> float:
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
