"""A whole training step from its kernels, and every gradient against differences of the forward kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npulab.training.kernels import FORWARD_ATTENTION, FORWARD_FFN, Kernel, kernel_of
from npulab.training.running import Values, checked, evaluate, run
from npulab.training.step import Step

if TYPE_CHECKING:
    import pandas as pd

GIVEN = {"x": "cs", "dy": "cs", "wq": "ce", "wk": "ce", "wv": "ce", "wo": "ce", "rms1": "c", "w1": "fc", "w2": "cf",
         "w3": "fc", "rms2": "c"}
METHODS = ("central", "complex")
STRIDE = 1e-4  # of central differences of fourth order: rounding makes some 1e-11 of it, curvature less
IMAGINARY = 1e-30


def example(step: Step, seed: int = 0, gradient: float | None = None) -> Values:
    """What a step starts from, float64: activations of spread 1, weights ``(outputs, inputs)`` of spread
    ``1 / sqrt(inputs)``, norm weights near 1, and a gradient ``dy`` of the layer's output of spread ``gradient``,
    1 / seq where it is not said (a loss that is a mean over positions).

    The same numbers for the same seed.

    >>> example(Step(4, 6, 3, 2))["w2"].shape
    (4, 6)
    """
    random = np.random.default_rng(seed)
    spreads = {"x": 1.0, "dy": 1 / step.seq if gradient is None else gradient}
    out = {}
    for name, axes in GIVEN.items():
        normal = random.standard_normal(step.axes(axes))
        out[name] = 1 + normal / 10 if name.startswith("rms") else normal * spreads.get(
            name, step.size(axes[-1]) ** -0.5)
    return out


def train(step: Step, tensors: Mapping[str, Any], dtype: str = "float64", accumulate: str | None = None) -> Values:
    """One training step of a layer, forward and back: the NPU's kernels in ``dtype``, the CPU's in float32 (float64
    where dtype is).

    ``tensors`` are as ``example`` gives them.  The result holds them and ``attention`` and ``ffn`` (what is added to
    the residual), ``x2``, ``y``, the taps (``xn1``, ``q``, ``k``, ``v``, ``attended``; ``xn2``, ``h1``, ``h3``,
    ``gate``), the gradients ``dxn2``, ``dh1``, ``dh3``, ``dx2``, ``dv``, ``probs``, ``dp``, ``dq``, ``dk``, ``dxn1``,
    ``dx``, those of every weight (``dwq`` ... ``drms1``) and what the norms give back (``dnorm1``, ``dnorm2``).
    Raises ValueError naming a tensor that is missing or of another shape.
    """
    start = Kernel("train", "CPU", GIVEN, {}, (), ())
    values: Values = dict(checked(start, step, tensors))
    single = "float64" if dtype == "float64" else "float32"

    def take(kernel: str, **renamed: str) -> Mapping[str, np.ndarray]:
        cpu = kernel_of(kernel).unit == "CPU"
        given = {name: values[renamed.get(name, RENAMED.get(kernel, {}).get(name, name))]
                 for name in kernel_of(kernel).given if name != "mask"}
        done = run(kernel, step, given, single if cpu else dtype, None if cpu else accumulate)
        return {**done.outputs, **done.taps}

    attention = take("forward_attention")
    values |= {"attention": attention["out"], "xn1": attention["xn"],
               **{name: attention[name] for name in ("q", "k", "v", "attended")}}
    values["x2"] = take("residual", x="x", branch="attention")["sum"]
    ffn = take("forward_ffn")
    values |= {"ffn": ffn["out"], "xn2": ffn["xn"], **{name: ffn[name] for name in ("h1", "h3", "gate")}}
    values["y"] = take("residual", x="x2", branch="ffn")["sum"]

    back = take("ffn_backward")
    values |= {"dxn2": back["dxn"], "dh1": back["dh1"], "dh3": back["dh3"]}
    norm = take("rms_backward")
    values |= {"dnorm2": norm["dx"], "drms2": norm["drms"]}
    values["dx2"] = take("residual", x="dy", branch="dnorm2")["sum"]
    values |= take("sdpa_backward_1")
    values |= take("sdpa_backward_2")
    values["dxn1"] = take("qkv_backward")["dxn"]
    norm = take("rms_backward", dxn="dxn1", x="x", rms="rms1")
    values |= {"dnorm1": norm["dx"], "drms1": norm["drms"]}
    values["dx"] = take("residual", x="dx2", branch="dnorm1")["sum"]
    values |= take("weight_gradients")
    return values


# tensors of a step that a kernel has under a name of its own
RENAMED = {"forward_attention": {"rms": "rms1"}, "forward_ffn": {"x": "x2", "rms": "rms2"},
           "sdpa_backward_1": {"dy": "dx2"}, "rms_backward": {"dxn": "dxn2", "x": "x2", "rms": "rms2"},
           "residual": {"branch": "attention"}}


def given_to(kernel: str | Kernel, values: Mapping[str, np.ndarray]) -> Values:
    """What a kernel of the step is given, out of what ``train`` gave; the norm of the FFN for ``rms_backward``.

    >>> step = Step(4, 6, 3, 2)
    >>> list(given_to("ffn_backward", train(step, example(step))))
    ['dy', 'h1', 'h3', 'w1', 'w2', 'w3']
    """
    plan = kernel_of(kernel)
    names = RENAMED.get(plan.name, {})
    return {name: values[names.get(name, name)] for name in plan.given if name != "mask"}


class Claim(NamedTuple):
    """A kernel's result ``gradient`` is what ``forward`` gives when its tensor ``wrt`` moves."""

    kernel: str
    gradient: str
    forward: Kernel
    wrt: str


CLAIMS = (
    Claim("ffn_backward", "dxn2", FORWARD_FFN, "xn"), Claim("ffn_backward", "dh1", FORWARD_FFN, "h1"),
    Claim("ffn_backward", "dh3", FORWARD_FFN, "h3"),
    Claim("sdpa_backward_1", "dp", FORWARD_ATTENTION, "probs"), Claim("sdpa_backward_1", "dv", FORWARD_ATTENTION, "v"),
    Claim("sdpa_backward_2", "dq", FORWARD_ATTENTION, "q"), Claim("sdpa_backward_2", "dk", FORWARD_ATTENTION, "k"),
    Claim("qkv_backward", "dxn1", FORWARD_ATTENTION, "xn"),
    Claim("rms_backward", "dnorm1", FORWARD_ATTENTION, "x"), Claim("rms_backward", "drms1", FORWARD_ATTENTION, "rms"),
    Claim("rms_backward", "dnorm2", FORWARD_FFN, "x"), Claim("rms_backward", "drms2", FORWARD_FFN, "rms"),
    *(Claim("weight_gradients", f"dw{n}", FORWARD_ATTENTION, f"w{n}") for n in "qkvo"),
    *(Claim("weight_gradients", f"dw{n}", FORWARD_FFN, f"w{n}") for n in "123"))


def check_gradients(step: Step, tensors: Mapping[str, Any] | None = None, seed: int = 0,
                    method: str = "central") -> pd.DataFrame:
    """Every gradient that the kernels compute, against differences of the forward kernels in float64.

    A row per gradient: kernel, gradient, forward (the kernel that is varied), wrt (its tensor, given or a result of
    the way), elements, largest (its largest size), error (largest distance from the difference) and relative
    (error / largest; 0 where both are 0).  ``method`` is "central" (fourth order) or "complex" (a step along the
    imaginary axis, exact to rounding).  One forward run per element, four with "central": for small steps.
    The chain of the two forward kernels is covered: what ``x`` and every weight of both get back, and all that is
    passed between the backward kernels; the gradient of the whole layer, residuals too, is the last row.
    Raises LookupError for another method, ValueError as ``train``.

    >>> bool((check_gradients(Step(4, 3, 2, 2), method="complex")["relative"] < 1e-12).all())
    True
    """
    import pandas as pd

    if method not in METHODS:
        raise LookupError(f"method: got {method!r}, allowed is one of {', '.join(METHODS)}")
    values = train(step, example(step, seed) if tensors is None else tensors)
    rows = []
    for claim in CLAIMS:
        attends = claim.forward is FORWARD_ATTENTION
        found = differentiate(claim.forward, step, given_to(claim.forward, values), claim.wrt,
                              values["dx2" if attends else "dy"], method)
        rows.append((claim.kernel, claim.gradient, claim.forward.name, claim.wrt, values[claim.gradient], found))
    rows.append(("whole layer", "dx", "layer", "x", values["dx"], _layer(step, values, method)))
    return pd.DataFrame([{"kernel": kernel, "gradient": gradient, "forward": forward, "wrt": wrt,
                          "elements": claimed.size, **_distance(claimed, found.reshape(claimed.shape))}
                         for kernel, gradient, forward, wrt, claimed, found in rows])


def differentiate(kernel: Kernel, step: Step, given: Mapping[str, Any], wrt: str, dy: np.ndarray,
                  method: str = "central") -> np.ndarray:
    """The derivative of ``sum(dy * first output)`` of a kernel in float64 by each element of its tensor ``wrt``.

    ``wrt`` is a tensor that is given, or a result: what comes before it stays as it is.
    """
    base: Values = dict(checked(kernel, step, given))
    evaluate(kernel.operations, step, base, "float64")
    names = [operation.name for operation in kernel.operations]
    rest = kernel.operations[names.index(wrt) + 1 if wrt in names else 0:]

    def loss(moved: np.ndarray) -> Any:
        values = {**base, wrt: moved}
        evaluate(rest, step, values, "float64")
        return (values[kernel.outputs[0]] * dy).sum()

    return _differences(loss, base[wrt], method)


def _differences(loss: Any, at: np.ndarray, method: str) -> np.ndarray:
    out = np.zeros(at.shape)
    for place in np.ndindex(at.shape):
        if method == "complex":
            moved = at.astype(np.complex128)
            moved[place] += 1j * IMAGINARY
            out[place] = loss(moved).imag / IMAGINARY
            continue
        far = []
        for times in (-2, -1, 1, 2):
            moved = at.copy()
            moved[place] += times * STRIDE
            far.append(loss(moved))
        out[place] = (far[0] - far[3] + 8 * (far[2] - far[1])) / (12 * STRIDE)
    return out


def _layer(step: Step, values: Values, method: str) -> np.ndarray:
    attention, ffn = (checked(kernel, step, given_to(kernel, values)) for kernel in (FORWARD_ATTENTION, FORWARD_FFN))

    def loss(moved: np.ndarray) -> Any:
        first: Values = {**attention, "x": moved}
        evaluate(FORWARD_ATTENTION.operations, step, first, "float64")
        second: Values = {**ffn, "x": moved + first["out"]}
        evaluate(FORWARD_FFN.operations, step, second, "float64")
        return ((second["x"] + second["out"]) * values["dy"]).sum()

    return _differences(loss, values["x"], method)


def _distance(claimed: np.ndarray, found: np.ndarray) -> dict[str, float]:
    largest = float(max(np.abs(claimed).max(), np.abs(found).max()))
    error = float(np.abs(claimed - found).max())
    return {"largest": largest, "error": error, "relative": error / largest if error else 0.0}
