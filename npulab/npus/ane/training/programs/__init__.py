"""MIL programs for the ANE with their weight files: single operations, and the six kernels of a
training step of a transformer layer.

The operations of each program are rows of ``operations.csv``; sizes there are texts as "2*dim".

Single operations are a convolution and matrix products of two inputs. Source: maderix/ANE,
training/ane_mil_gen.h (mil_gen_conv, mil_gen_matmul) and m5_performance_suite.m.

Two forward kernels compute RMSNorm and then attention with a causal mask, or RMSNorm and then the
feed-forward part (FFN) with SwiGLU. Four backward kernels compute the gradient of an input from
that of an output; the CPU computes the gradients of weights and of RMSNorm, and the residual sums.
Tensors are [1, channels, 1, positions]. A kernel has one input and one output, in which several
tensors lie one after the other along the channels. Source: maderix/ANE@f213c8d,
training/train_large.m; later training/stories_mil.h.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.npus.ane import memory
from npulab.npus.ane.training import blobs as weight_files
from npulab.npus.ane.training.kernels import EPSILON, Step, causal_mask
from npulab.npus.ane.training.mil.values import (
    Compound,
    File,
    Function,
    Group,
    Operation,
    Program,
    Type,
    Value,
)
from npulab.npus.kit import one_of, read_table, up

Shape = tuple[int, ...]
Shapes = dict[str, Shape]
# The (name, channels) of each tensor that an input or output holds, by the input's or output's
# name.
Parts = dict[str, tuple[tuple[str, int], ...]]
# The number or text that each name in the sizes and constants of the tables stands for.
Names = Mapping[str, Any]
Weights = Mapping[str, Any]
HERE = Path(__file__).parent
FOLDER = "@model_path/weights/"
BUILD_INFO = {
    "1.0": {"coremlc-version": "3505.4.1"},
    "1.3": {
        "coremlc-component-MIL": "3510.2.1",
        "coremlc-version": "3505.4.1",
        "coremltools-component-milinternal": "",
        "coremltools-version": "9.0",
    },
}
TARGETS = {"1.0": "ios16", "1.3": "ios18"}
BOUNDARIES = ("fp32", "fp16")
WEIGHTS = {
    "Wq": "dim dim",
    "Wk": "dim dim",
    "Wv": "dim dim",
    "Wo": "dim dim",
    "W1": "hidden dim",
    "W3": "hidden dim",
    "W2": "dim hidden",
    "rms1": "dim",
    "rms2": "dim",
}
MASKS = ("kFwdAttn", "kSdpaBwd1")
KERNELS = {row["name"]: row for row in read_table(HERE / "kernels.csv")}
OPERATIONS = read_table(HERE / "operations.csv")


class Kernel(NamedTuple):
    """A MIL program with its weight files.

    ``blobs`` has the bytes of each weight file by path, ``inputs`` and ``outputs`` have the shapes
    by name. An input or output may hold several tensors one after the other along the channels:
    ``parts`` has the (name, channels) of each, by the name of the input or output.
    """

    program: Program
    blobs: dict[str, bytes]
    inputs: Shapes
    outputs: Shapes
    parts: Parts

    def __repr__(self) -> str:
        """One line with shapes and sizes, without the megabytes of the weight files."""
        files = f"{len(self.blobs)} weight files"
        if len(self.blobs) == 1:
            files = "1 weight file"
        size = sum(map(len, self.blobs.values()))
        shapes = f"{_shapes_text(self.inputs)} -> {_shapes_text(self.outputs)}"
        return f"Kernel({shapes}, {self.program!r}, {files} of {size} B)"

    def join(self, name: str, arrays: Mapping[str, Array]) -> Array:
        """Return the input ``name`` as (1, channels, 1, S), joined from its parts ``(channels,
        S)``.

        ``arrays`` has the parts by name. Raises LookupError for a missing part, ValueError for a
        part with another number of channels.
        """
        sizes = dict(self.parts[name])
        missing = [part for part in sizes if part not in arrays]
        if missing:
            raise LookupError(
                f"parts of {name}: got no {', '.join(missing)}, allowed is an array for each of "
                f"{', '.join(sizes)}"
            )
        pieces = []
        for part, channels in sizes.items():
            piece = arrays[part]
            if len(piece) != channels:
                raise ValueError(
                    f"parts of {name}: {part}: got {np.shape(piece)}, allowed is ({channels}, S)"
                )
            pieces.append(piece)
        return memory.join(pieces, "channels")[None, :, None]

    def split(self, name: str, tensor: Array) -> dict[str, Array]:
        """Return the parts of an input or output by name, each ``(channels, S)``.

        ``tensor`` is the input or output ``name``, with the shape (1, channels, 1, S).
        """
        sizes = dict(self.parts[name])
        rows = np.asarray(tensor)[0, :, 0]
        arrays = memory.split(rows, list(sizes.values()), "channels")
        return dict(zip(sizes, arrays, strict=True))


def _shapes_text(shapes: Mapping[str, Shape]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())


@dataclass(frozen=True)
class Dims:
    """The sizes of a transformer layer, as in ``training.Step``.

    ``printed`` rounds constants to the six decimals that maderix/ANE prints with C's ``%f``: 1/768
    becomes 0.001302. Raises ValueError for sizes that ``Step`` refuses.
    """

    dim: int = 768
    hidden: int = 2048
    heads: int = 12
    seq: int = 512
    printed: bool = False

    def __post_init__(self) -> None:
        step = Step(self.dim, self.hidden, self.seq, self.heads)
        for name, checked in vars(step).items():
            object.__setattr__(self, name, checked)

    @property
    def names(self) -> dict[str, float]:
        """The sizes and constants that the tables use, by name.

        ``scores`` is the number of channels of attention scores, which are [1, heads * seq, 1,
        seq].
        """
        head = self.dim // self.heads
        names: dict[str, float] = {"dim": self.dim, "hidden": self.hidden}
        names |= {"heads": self.heads, "seq": self.seq, "head": head}
        names |= {"scores": self.heads * self.seq, "epsilon": EPSILON}
        names |= {"inverse_dim": 1 / self.dim, "scale": head**-0.5}
        if self.printed:
            for name in ("inverse_dim", "scale"):
                single = np.float32(names[name])
                names[name] = float(f"{single:f}")
        return names


def kernel(name: str, dims: Dims, weights: Weights | None = None, file: str = "") -> Kernel:
    """Return one of the six kernels of a training step, by its name in maderix/ANE: kFwdAttn,
    kFwdFFN, kFFNBwd, kSdpaBwd1, kSdpaBwd2, kQKVb.

    ``weights`` has the kernel's weights by name: Wq, Wk, Wv, Wo (dim, dim), W1, W3 (hidden, dim),
    W2 (dim, hidden), rms1, rms2 (dim,). They are rounded to fp16, and backward kernels get them
    transposed; the causal mask is added. Without ``weights`` the kernel has no weight files. Each
    weight lies in a file of its own, as in maderix/ANE; with ``file`` all weights lie in this one
    file. Raises LookupError for an unknown kernel and for a missing weight, ValueError for a weight
    of another shape.

    >>> program, blobs, inputs, outputs, parts = kernel("kQKVb", Dims(4, 8, 2, 32))
    >>> inputs, outputs, parts["x"]
    ({'x': (1, 12, 1, 32)}, {'out': (1, 4, 1, 32)}, (('dq', 4), ('dk', 4), ('dv', 4)))
    """
    row = KERNELS[one_of("kernel", name, KERNELS)]
    names = dims.names
    parts = {}
    for side in ("x", "out"):
        sizes = {}
        for word in row[side].split():
            part, text = word.split(":")
            sizes[part] = size(text, names)
        parts[side] = tuple(sizes.items())
    channels = sum(dict(parts["x"]).values())
    stored = None
    if weights is not None:
        stored = _stored(name, dims, weights)
    body = Body(stored, file)
    body.rows(name, names)
    return body.kernel("fp16", {"x": (1, channels, 1, dims.seq)}, "out", parts)


def _stored(name: str, dims: Dims, weights: Weights) -> dict[str, Any]:
    """Return the given weights by name, and each transposed: ``Wqt`` is ``Wq`` transposed.

    A kernel of ``MASKS`` gets the causal mask as ``cm``. Raises ValueError for a wrong shape.
    """
    stored: dict[str, Any] = {}
    for weight, axes in WEIGHTS.items():
        if weight in weights:
            array = np.asarray(weights[weight])
            shape = _shape(axes, vars(dims))
            if array.shape != shape:
                raise ValueError(f"weights: {weight}: got {array.shape}, allowed is {shape}")
            stored[weight] = array
            stored[f"{weight}t"] = array.T
    if name in MASKS:
        stored["cm"] = causal_mask(dims.seq)
    return stored


def convolution(
    weights: Array,
    columns: int,
    rows: int = 1,
    *,
    strides: Sequence[int] = (1, 1),
    pad: Sequence[int] = (0, 0, 0, 0),
    dilations: Sequence[int] = (1, 1),
    groups: int = 1,
    boundary: str = "fp32",
    version: str = "1.3",
    file: str = "weight.bin",
) -> Kernel:
    """Return a program that convolves x [1, I, rows, columns] in fp16.

    ``weights`` are ``(O, I / groups, kernel_h, kernel_w)``, ``pad`` is (top, bottom, left, right).
    Input and output have the type ``boundary``: fp16, or fp32 with casts, which M1 and M2 do not
    compile. Raises ValueError for sizes that contradict each other, LookupError for an unknown type
    or version.

    >>> convolution(np.ones((2, 3, 1, 1)), 32).outputs
    {'y': (1, 2, 1, 32)}
    """
    weights = np.asarray(weights)
    got = f"{weights.shape} for {rows} rows of {columns} in {groups} groups"
    if weights.ndim != 4 or min(*weights.shape, rows, columns, groups) < 1:
        raise ValueError(
            f"weights: got {got}, allowed are (O, I / groups, kernel_h, kernel_w) and sizes of 1 "
            "or more"
        )
    _refuse_numbers("strides", strides, 2, 1)
    _refuse_numbers("pad", pad, 4, 0)
    _refuse_numbers("dilations", dilations, 2, 1)
    outputs, depth, *spatial = weights.shape
    top, bottom, left, right = pad
    padded = np.array([rows + top + bottom, columns + left + right])
    kernel_sizes = np.array(spatial)
    spans = (kernel_sizes - 1) * dilations + 1
    after = (padded - spans) // strides + 1
    if after.min() < 1 or outputs % groups:
        raise ValueError(
            f"weights: got {got}, allowed is a kernel that fits, and outputs that the groups divide"
        )
    names: dict[str, Any] = {"outputs": outputs, "depth": depth, "groups": groups}
    names |= {"inputs": depth * groups, "rows": rows, "columns": columns}
    names["rows_after"], names["columns_after"] = after
    names["kernel_h"], names["kernel_w"] = spatial
    names["stride_h"], names["stride_w"] = strides
    names["dilation_h"], names["dilation_w"] = dilations
    names |= {"top": top, "bottom": bottom, "left": left, "right": right}
    names["pad_type"] = "valid"
    if any(pad):
        names["pad_type"] = "custom"
    body = Body({"W": weights}, file, version)
    return _single("convolution", boundary, body, names, x="1 inputs rows columns")


def _refuse_numbers(name: str, numbers: Sequence[int], count: int, least: int) -> None:
    """Raise ValueError unless the argument ``name`` has ``count`` numbers of ``least`` or more."""
    if len(numbers) != count or min(numbers) < least:
        raise ValueError(f"{name}: got {list(numbers)}, allowed are {count} of {least} or more")


def matmul(
    inner: int, outputs: int, columns: int, *, boundary: str = "fp32", version: str = "1.3"
) -> Kernel:
    """Return a program that computes ``y = W @ x`` of two inputs.

    The shapes are x [1, inner, columns], W [1, outputs, inner] and y [1, outputs, columns].

    >>> matmul(8, 4, 32).inputs
    {'x': (1, 8, 32), 'W': (1, 4, 8)}
    """
    names = _at_least_1(inner=inner, outputs=outputs, columns=columns)
    body = Body(None, version=version)
    return _single("matmul", boundary, body, names, x="1 inner columns", W="1 outputs inner")


def packed_matmul(inner: int, outputs: int, columns: int, *, boundary: str = "fp32") -> Kernel:
    """Return a program that computes ``y = W^T @ x``, with x and W in one input.

    The input holds x (inner, columns), then W (inner, outputs), along its columns; y is [1,
    outputs, 1, columns]. W is not compiled in, so it can change without another compilation.

    >>> packed_matmul(8, 4, 32).inputs
    {'x': (1, 8, 1, 36)}
    """
    names = _at_least_1(inner=inner, outputs=outputs, columns=columns)
    return _single("packed_matmul", boundary, Body(None), names, x="1 inner 1 columns+outputs")


def _at_least_1(**sizes: int) -> dict[str, int]:
    """Return the sizes by name; raise ValueError for a size below 1."""
    if min(sizes.values()) < 1:
        stated = [f"{name} {given}" for name, given in sizes.items()]
        raise ValueError(f"sizes: got {', '.join(stated)}, allowed is 1 or more")
    return sizes


def _single(name: str, boundary: str, body: Body, names: Names, **inputs: str) -> Kernel:
    """Return the program of a single operation of the tables.

    Its output is y; inputs and output have the type ``boundary``. ``inputs`` has the shape of each
    input as a text of sizes.
    """
    dtype = one_of("boundary", boundary, BOUNDARIES)
    body.rows(f"{name}/{dtype}", names)
    shapes = {name: _shape(text, names) for name, text in inputs.items()}
    return body.kernel(dtype, shapes, "y", {})


class Body:
    """A function under construction, from rows of ``operations.csv``, with its weights.

    Each weight lies in a file of its own; with ``file`` all weights lie in this one file.
    """

    def __init__(self, weights: Weights | None, file: str = "", version: str = "1.3") -> None:
        self.weights = weights
        self.file = file
        self.version = one_of("version", version, TARGETS)
        self.plain = version != "1.0"
        self.string = Type("string", plain=self.plain)
        self.operations: list[Operation] = []
        self.shapes: Shapes = {}
        # The path of the file and the shape of each weight, by the weight's name.
        self.placed: dict[str, tuple[str, Shape]] = {}
        self.end = weight_files.ALIGN

    def rows(self, kernel: str, names: Names) -> None:
        """Add the operations of all rows of ``operations.csv`` that name a kernel.

        ``names`` has the number or text of each name in the rows' sizes and constants.
        """
        for row in OPERATIONS:
            if kernel in row["kernels"].split():
                self._add(row, names)

    def _add(self, row: Mapping[str, str], names: Names) -> None:
        op = row["op"]
        output = row["output"]
        words = row["arguments"].split()
        shape = _shape(row["shape"], names)
        self.shapes[output] = shape
        kind = Type(row["type"], shape, plain=self.plain and not shape)
        name = Value(self.string, row["name"] or output)
        attributes = [("name", name)]
        arguments = []
        if op == "weight":
            op = "const"
            file = self._weight_place(output, shape, *words)
            attributes.append(("val", Value(kind, file)))
        elif op == "const":
            elements = [_constant(word, kind.dtype, names) for word in words]
            constant = np.reshape(elements, shape)
            attributes.append(("val", Value(kind, constant)))
        else:
            arguments = [_argument(word) for word in words]
        operation = Operation(op, ((output, kind),), tuple(arguments), tuple(attributes))
        self.operations.append(operation)

    def _weight_place(self, output: str, shape: Shape, file: str, weight: str = "") -> File:
        """Return the file and offset of a weight, and add the weight to ``placed``."""
        offset = weight_files.ALIGN
        if self.file:
            file = self.file
            offset = self.end
        # A weight takes ALIGN bytes for its record, then its fp16 elements, filled up to a multiple
        # of ALIGN bytes.
        size = 2 * math.prod(shape)
        self.end += weight_files.ALIGN + up(size, weight_files.ALIGN)
        path = FOLDER + file
        self.placed[weight or output] = (path, shape)
        return File(path, offset, self.plain)

    def kernel(
        self,
        dtype: str,
        inputs: Shapes,
        output: str,
        parts: Parts,
    ) -> Kernel:
        """Return the finished program, with inputs of type ``dtype`` and one output.

        It has weight files if the body has weights.
        """
        types = {name: Type(dtype, shape) for name, shape in inputs.items()}
        target = TARGETS[self.version]
        operations = tuple(self.operations)
        function = Function(tuple(types.items()), operations, (output,), target=target)
        info = build_info(BUILD_INFO[self.version], self.plain)
        program = Program((function,), self.version, (info,))
        outputs = {output: self.shapes[output]}
        return Kernel(program, self._files(), inputs, outputs, parts)

    def _files(self) -> dict[str, bytes]:
        """Return the bytes of each weight file by path; the weights are rounded to fp16.

        Raises LookupError for a missing weight, ValueError for a weight of another shape.
        """
        if self.weights is None:
            return {}
        files: dict[str, dict[str, Array]] = {}
        for name, (path, shape) in self.placed.items():
            if name not in self.weights:
                got = ", ".join(self.weights) or "none"
                raise LookupError(f"weights: got {got}, allowed are {', '.join(self.placed)}")
            array = np.asarray(self.weights[name])
            if array.size != math.prod(shape) or array.dtype.kind not in "fiu":
                raise ValueError(
                    f"weights: {name}: got {array.shape} {array.dtype}, allowed are numbers "
                    f"{list(shape)}"
                )
            with np.errstate(over="ignore"):
                halves = array.reshape(shape).astype(np.float16)
            files.setdefault(path, {})[name] = halves
        return {path: weight_files.write(records).data for path, records in files.items()}


def _shape(text: str, names: Names) -> Shape:
    return tuple(size(word, names) for word in text.split())


def size(text: str, names: Names) -> int:
    """Return the number that a size of a table means: a number, a name, or a sum of products.

    >>> size("2*dim+1", {"dim": 4})
    9
    """
    total = 0
    for term in text.split("+"):
        product = 1
        for factor in term.split("*"):
            product *= int(names.get(factor, factor))
        total += product
    return total


def _constant(text: str, dtype: str, names: Names) -> Any:
    """Return the value of a word of a table: the value of a name, else a literal of type
    ``dtype``."""
    if text in names:
        return names[text]
    if dtype == "string":
        return text
    if dtype == "bool":
        return text == "true"
    if dtype == "fp16":
        return float(text)
    return size(text, names)


def _argument(word: str) -> tuple[str, Any]:
    """Return the name and value of a word ``name=value``; values with commas between are a
    tuple."""
    name, value = word.split("=")
    if "," in value:
        return name, tuple(value.split(","))
    return name, value


def build_info(pairs: Mapping[str, str], plain: bool = True) -> tuple[str, Value]:
    """Return the attribute ``buildInfo`` of a program as (name, value), from its pairs of
    strings."""
    string = Type("string", plain=plain)
    groups = tuple(Group("{", pair) for pair in pairs.items())
    return "buildInfo", Value(Compound("dict", (string, string)), (Group("{", groups),))
