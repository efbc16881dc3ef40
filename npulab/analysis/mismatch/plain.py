"""The predicted output of a layer that is neither quantized with weights nor a pooling, such as an
addition, a layer of float16 or a network; and the changes of its explanation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from numpy import ndarray as Array

from npulab.analysis.mismatch.changes import (
    Changes,
    Kinds,
    after,
    biases,
    kernels,
    paddings,
    phases,
    reorders,
    strides,
    with_layer,
)
from npulab.analysis.mismatch.predicting import Explanation
from npulab.quant.emulate import ENGINES, emulate
from npulab.quant.layers import ACTIVATIONS
from npulab.quant.layers.real import PAIRED

# A zero point, or the exponent of a scale, is changed by each of these.
STEPS = (1, -1, 2, -2)
SCALES = ("input_q", "other_q", "output_q")


@dataclass(frozen=True, eq=False)
class Plain(Explanation):
    """An explanation of the output of any layer; ``x`` is a tuple if the layer takes several
    tensors."""

    layer: Any
    x: Any


def predict(of: Plain, kept: Any, shape: tuple[int, ...] | None = None) -> Array:
    """Return the output of a hypothesis."""
    return of.changed(emulate(of.layer, of.x, of.rule))


def _rules(start: Plain, output: Array) -> Changes:
    for name in (*ENGINES, "fp16"):
        if name != start.rule_name:
            yield f"rounding rule {name}", "rule", partial(replace, rule=name)


def _scales(start: Plain, output: Array) -> Changes:
    if output.dtype.kind == "f":
        return
    for name in SCALES:
        q = getattr(start.layer, name, None)
        if q is None:
            continue
        named = name.replace("_q", "")
        changed = {}
        for step in STEPS:
            changed[f"zero point {step:+d}"] = replace(q, zero_point=q.zero_point + step)
            changed[f"scale times 2**{step}"] = replace(q, scale=q.scale * 2.0**step)
        changed["zero point left out"] = replace(q, zero_point=0)
        for words, other in changed.items():
            if other != q:
                change = partial(with_layer, **{name: other})
                yield f"{named} {words}", words.partition(" ")[0], change


def _activations(start: Plain, output: Array) -> Changes:
    present = getattr(start.layer, "activation", "")
    for activation in ACTIVATIONS:
        if activation != present != "":
            words = f"activation {activation or 'left out'}"
            yield words, "activation", partial(with_layer, activation=activation)


def _kinds(start: Plain, output: Array) -> Changes:
    present = getattr(start.layer, "kind", None)
    for kind in PAIRED:
        if present in PAIRED and kind != present:
            yield f"{kind} in place of {present}", "kind", partial(with_layer, kind=kind)


def _inputs(start: Plain, output: Array) -> Changes:
    if not isinstance(start.x, tuple):
        return
    for number in range(1, len(start.x)):
        yield f"inputs 0 and {number} exchanged", "input order", partial(_exchanged, number=number)


def _exchanged(of: Plain, number: int) -> Plain:
    x = list(of.x)
    x[0], x[number] = x[number], x[0]
    return replace(of, x=tuple(x))


def _orders(start: Plain, output: Array) -> Changes:
    image = output.ndim > 2
    for words, change in reorders(output.shape, image):
        yield f"output {words}", "output order", partial(after, change=change)


CHANGES: Kinds = (
    ("rule", _rules),
    ("kind", _kinds),
    ("scale", _scales),
    ("clamp", _activations),
    ("bias", biases),
    ("padding", paddings),
    ("stride phase", phases),
    ("stride", strides),
    ("channel order", _inputs),
    ("channel order", _orders),
    ("kernel", kernels),
)
