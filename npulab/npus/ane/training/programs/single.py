"""MIL programs of one operation: a convolution, and matrix products of inputs.

Source: maderix/ANE, training/ane_mil_gen.h (mil_gen_conv, mil_gen_matmul) and
m5_performance_suite.m.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npulab.npus.ane.training.mil.values import Type
from npulab.npus.ane.training.programs.bodies import Body, Kernel, size
from npulab.support.refuse import one_of, refuse_if

BOUNDARIES = ("fp32", "fp16")


def convolution(weights: np.ndarray, columns: int, rows: int = 1, *, strides: Sequence[int] = (1, 1),
                pad: Sequence[int] = (0, 0, 0, 0), dilations: Sequence[int] = (1, 1), groups: int = 1,
                boundary: str = "fp32", version: str = "1.3", file: str = "weight.bin") -> Kernel:
    """A convolution of x [1, I, rows, columns] with weights ``(O, I / groups, kernel_h,
    kernel_w)``, fp16 inside.

    ``pad`` is (top, bottom, left, right); input and output are of the ``boundary`` type, fp32 or
    fp16 (M1 and M2 do not compile casts).  Raises ValueError for shapes that do not fit,
    LookupError for another type or version.

    >>> convolution(np.ones((2, 3, 1, 1)), 32).outputs
    {'y': (1, 2, 1, 32)}
    """
    weights = np.asarray(weights)
    if weights.ndim != 4 or min(weights.shape) < 1 or columns < 1 or rows < 1 or groups < 1:
        raise ValueError(f"weights: got {weights.shape} for {rows} rows of {columns} in {groups} groups, allowed are "
                         "(O, I / groups, kernel_h, kernel_w) and sizes of 1 or more")
    for name, given, count, least in (("strides", strides, 2, 1), ("pad", pad, 4, 0), ("dilations", dilations, 2, 1)):
        if len(given) != count or min(given) < least:
            raise ValueError(f"{name}: got {list(given)}, allowed are {count} of {least} or more")
    body = Body({"W": weights}, file, version)
    (outputs, depth, *kernel), spans = weights.shape, []
    for axis, have in enumerate((rows, columns)):
        padded = have + pad[2 * axis] + pad[2 * axis + 1]
        spans.append((padded - (kernel[axis] - 1) * dilations[axis] - 1) // strides[axis] + 1)
    if min(spans) < 1 or outputs % groups:
        raise ValueError(f"weights: got {weights.shape} for {rows} rows of {columns} in {groups} groups, allowed is a "
                         "kernel that fits, and outputs that the groups divide")
    names = {"outputs": outputs, "depth": depth, "inputs": depth * groups, "groups": groups,
             "rows": rows, "columns": columns, "rows_after": spans[0], "columns_after": spans[1],
             "pad_type": "custom" if any(pad) else "valid",
             **dict(zip(("top", "bottom", "left", "right"), pad, strict=True))}
    for name, pair in (("kernel", kernel), ("stride", strides), ("dilation", dilations)):
        names |= {f"{name}_h": pair[0], f"{name}_w": pair[1]}
    return _kernel("convolution", boundary, body, names, x="1 inputs rows columns")


def matmul(inner: int, outputs: int, columns: int, *, boundary: str = "fp32", version: str = "1.3") -> Kernel:
    """``y = W @ x``, both inputs: x [1, inner, columns], W [1, outputs, inner], y [1, outputs,
    columns].

    >>> matmul(8, 4, 32).inputs
    {'x': (1, 8, 32), 'W': (1, 4, 8)}
    """
    names = _sizes(inner=inner, outputs=outputs, columns=columns)
    return _kernel("matmul", boundary, Body(None, version=version), names,
                   x="1 inner columns", W="1 outputs inner")


def packed_matmul(inner: int, outputs: int, columns: int, *, boundary: str = "fp32") -> Kernel:
    """``y = W^T @ x`` of one input that holds x (inner, columns) and W (inner, outputs) side by
    side along the columns, so that weights change without another compilation; y [1, outputs, 1,
    columns].

    >>> packed_matmul(8, 4, 32).inputs
    {'x': (1, 8, 1, 36)}
    """
    names = _sizes(inner=inner, outputs=outputs, columns=columns)
    return _kernel("packed_matmul", boundary, Body(None), names, x="1 inner 1 columns+outputs")


def _sizes(**sizes: int) -> dict[str, int]:
    refuse_if(min(sizes.values()) < 1, "sizes",
              ", ".join(f"{name} {size}" for name, size in sizes.items()), "is 1 or more")
    return sizes


def _kernel(name: str, boundary: str, body: Body, names: Mapping[str, Any], **inputs: str) -> Kernel:
    """A kernel of the tables with inputs and output y of the boundary type."""
    body.rows(f"{name}/{one_of('boundary', boundary, BOUNDARIES)}", names)
    shapes = {name: tuple(size(text, names) for text in shape.split()) for name, shape in inputs.items()}
    return body.kernel([(name, Type(boundary, shape)) for name, shape in shapes.items()], ["y"])
