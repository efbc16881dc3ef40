"""MIL programs of one operation: a convolution, and matrix products of inputs.

Source: maderix/ANE, training/ane_mil_gen.h (mil_gen_conv, mil_gen_matmul) and
m5_performance_suite.m.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npulab.npus.ane.training.mil.values import Type
from npulab.npus.ane.training.programs.bodies import Body, Kernel, Shape

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
    body = Body({"W": weights}, version=version)
    outputs, inputs = weights.shape[0], weights.shape[1] * groups
    padded = tuple(size + pad[2 * axis] + pad[2 * axis + 1] for axis, size in enumerate((rows, columns)))
    after = tuple((size - (kernel - 1) * dilation - 1) // stride + 1 for size, kernel, dilation, stride
                  in zip(padded, weights.shape[2:], dilations, strides, strict=True))
    if min(after) < 1 or outputs % groups:
        raise ValueError(f"weights: got {weights.shape} for {rows} rows of {columns} in {groups} groups, allowed is a "
                         "kernel that fits, and outputs that the groups divide")
    consts = {"pad_type": body.const("c_pad_type", "string", "custom" if any(pad) else "valid"),
              "strides": body.const("c_strides", "int32", tuple(strides)),
              "pad": body.const("c_pad", "int32", tuple(pad)),
              "dilations": body.const("c_dilations", "int32", tuple(dilations)),
              "groups": body.const("c_groups", "int32", groups)}
    x, shape = _entered(body, "x", (1, inputs, rows, columns), boundary)
    weight = body.weight("W", weights.shape, file)
    inside = "y16" if boundary != "fp16" else "y"
    body.add("conv", inside, (1, outputs, *after), "conv",
             **{name: consts[name] for name in sorted(consts)}, weight=weight, x=x)
    return body.kernel([("x", shape)], [_left(body, inside, (1, outputs, *after), boundary)])


def matmul(inner: int, outputs: int, columns: int, *, boundary: str = "fp32", version: str = "1.3") -> Kernel:
    """``y = W @ x``, both inputs: x [1, inner, columns], W [1, outputs, inner], y [1, outputs,
    columns].

    >>> matmul(8, 4, 32).inputs
    {'x': (1, 8, 32), 'W': (1, 4, 8)}
    """
    _refuse_sizes(inner=inner, outputs=outputs, columns=columns)
    body = Body(None, version=version)
    x, x_type = _entered(body, "x", (1, inner, columns), boundary)
    w, w_type = _entered(body, "W", (1, outputs, inner), boundary)
    flags = {name: body.const(name, "bool", False) for name in ("tx", "ty")}
    inside = "y16" if boundary != "fp16" else "y"
    body.add("matmul", inside, (1, outputs, columns), "mm", transpose_x=flags["tx"], transpose_y=flags["ty"], x=w, y=x)
    return body.kernel([("x", x_type), ("W", w_type)],
                       [_left(body, inside, (1, outputs, columns), boundary)])


def packed_matmul(inner: int, outputs: int, columns: int, *, boundary: str = "fp32") -> Kernel:
    """``y = W^T @ x`` of one input that holds x (inner, columns) and W (inner, outputs) side by
    side along the columns, so that weights change without another compilation; y [1, outputs, 1,
    columns].

    >>> packed_matmul(8, 4, 32).inputs
    {'x': (1, 8, 1, 36)}
    """
    _refuse_sizes(inner=inner, outputs=outputs, columns=columns)
    body = Body(None)
    x, shape = _entered(body, "x", (1, inner, 1, columns + outputs), boundary)
    for name, start, size in (("a", 0, columns), ("w", columns, outputs)):
        begin = body.const(f"b{name}", "int32", (0, 0, 0, start))
        length = body.const(f"s{name}", "int32", (1, inner, 1, size))
        body.add("slice_by_size", f"{name}1", (1, inner, 1, size), x=x, begin=begin, size=length)
        flat = body.const(f"r{name}", "int32", (1, 1, inner, size))
        body.add("reshape", f"{name}2", (1, 1, inner, size), shape=flat, x=f"{name}1")
    perm = body.const("pm", "int32", (0, 1, 3, 2))
    body.add("transpose", "a3", (1, 1, columns, inner), perm=perm, x="a2")
    no = body.const("bF", "bool", False)
    body.add("matmul", "yh", (1, 1, columns, outputs), "mm", transpose_x=no, transpose_y=no, x="a3", y="w2")
    body.add("transpose", "yt", (1, 1, outputs, columns), perm=perm, x="yh")
    whole = body.const("ro", "int32", (1, outputs, 1, columns))
    inside = "yr" if boundary != "fp16" else "y"
    body.add("reshape", inside, (1, outputs, 1, columns), shape=whole, x="yt")
    return body.kernel([("x", shape)], [_left(body, inside, (1, outputs, 1, columns), boundary)])


def _refuse_sizes(**sizes: int) -> None:
    if min(sizes.values()) < 1:
        raise ValueError(f"sizes: got {', '.join(f'{name} {size}' for name, size in sizes.items())}, allowed is 1 or "
                         "more")


def _entered(body: Body, name: str, shape: Shape, boundary: str) -> tuple[str, Type]:
    """An input of the boundary type, and the name of it as fp16."""
    if boundary not in BOUNDARIES:
        raise LookupError(f"boundary: got {boundary!r}, allowed is one of {', '.join(BOUNDARIES)}")
    if boundary == "fp16":
        return name, Type(boundary, shape)
    if all("to_fp16" not in dict(operation.outputs) for operation in body.operations):
        body.const("to_fp16", "string", "fp16")
    return body.add("cast", f"{name}16", shape, f"cast_{name}", dtype="to_fp16", x=name), Type(boundary, shape)


def _left(body: Body, inside: str, shape: Shape, boundary: str) -> str:
    """The output y of the boundary type."""
    if boundary == "fp16":
        return inside
    to = body.const("to_fp32", "string", "fp32")
    return body.add("cast", "y", shape, "cast_out", kind="fp32", dtype=to, x=inside)
