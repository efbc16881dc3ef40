"""MIL programs for the ANE, with their weight files: single operations, and the six kernels that a
training step of one transformer layer runs.

Single operations: a convolution, and matrix products of inputs.  Source: maderix/ANE,
training/ane_mil_gen.h (mil_gen_conv, mil_gen_matmul) and m5_performance_suite.m.

Kernels, forward: RMSNorm as sum, power and product, then attention with a causal mask, or the FFN
with SwiGLU.  Backward: from the gradient of an output to that of the input; gradients of weights,
of RMSNorm and the residual sums are the CPU's. Tensors are [1, C, 1, S]; what one kernel hands on
to another ("taps") lies one after the other along the channels of its one output.  Source:
maderix/ANE@f213c8d, training/train_large.m; later training/stories_mil.h.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

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
from npulab.npus.kit import one_of, read_table, refuse_if, up

Shape = tuple[int, ...]
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
OPERATIONS = [
    (row["kernels"].split(), row) for row in read_table(Path(__file__).parent / "operations.csv")
]
TARGETS = {"1.0": "ios16", "1.3": "ios18"}
BOUNDARIES = ("fp32", "fp16")
Weights = Mapping[str, Any]
WEIGHTS = {
    "Wq": ("dim", "dim"),
    "Wk": ("dim", "dim"),
    "Wv": ("dim", "dim"),
    "Wo": ("dim", "dim"),
    "W1": ("hidden", "dim"),
    "W3": ("hidden", "dim"),
    "W2": ("dim", "hidden"),
    "rms1": ("dim",),
    "rms2": ("dim",),
}
MASKS = ("kFwdAttn", "kSdpaBwd1")
KERNELS = {
    row["name"]: row for row in read_table(Path(__file__).parent / "kernels.csv")
}  # parts of input and output


class Kernel(NamedTuple):
    """A program, its weight files by path, the shapes of its inputs and outputs by name, and the
    parts of each along the channels (name, channels), in order."""

    program: Program
    blobs: dict[str, bytes]
    inputs: dict[str, Shape]
    outputs: dict[str, Shape]
    parts: dict[str, tuple[tuple[str, int], ...]]

    def __repr__(self) -> str:
        """In a line: weight files of a training step are megabytes."""
        shapes = [
            ", ".join(f"{name} {list(shape)}" for name, shape in some.items())
            for some in (self.inputs, self.outputs)
        ]
        files = f"{len(self.blobs)} weight file{'s' * (len(self.blobs) != 1)} of {sum(map(len, self.blobs.values()))} B"
        return f"Kernel({shapes[0]} -> {shapes[1]}, {self.program!r}, {files})"

    def join(self, name: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """An input (1, C, 1, S) out of its parts ``(channels, S)`` by name.

        Raises LookupError for parts that are missing, ValueError for those that do not fit.
        """
        sizes = dict(self.parts[name])
        missing = [part for part in sizes if part not in arrays]
        refuse_if(
            missing,
            f"parts of {name}",
            f"none of {', '.join(missing)}",
            f"is each of {', '.join(sizes)}",
            LookupError,
        )
        for part, channels in sizes.items():
            if len(arrays[part]) != channels:
                raise ValueError(
                    f"parts of {name}: {part}: got {np.shape(arrays[part])}, allowed is "
                    f"({channels}, S)"
                )
        return memory.join([arrays[part] for part in sizes], "channels")[None, :, None]

    def split(self, name: str, tensor: np.ndarray) -> dict[str, np.ndarray]:
        """The parts ``(channels, S)`` by name of an input or output (1, C, 1, S)."""
        sizes = dict(self.parts[name])
        arrays = memory.split(np.asarray(tensor)[0, :, 0], list(sizes.values()), "channels")
        return dict(zip(sizes, arrays, strict=True))


class Body:
    """A function that grows by rows of ``operations.csv``, and the weights that it points at."""

    def __init__(
        self, weights: Mapping[str, Any] | None, file: str = "", version: str = "1.3"
    ) -> None:
        self.weights, self.file, self.version = weights, file, one_of("version", version, TARGETS)
        self.plain = version != "1.0"
        self.string = Type("string", plain=self.plain)
        self.operations: list[Operation] = []
        self.placed: list[tuple[str, str, Shape]] = []
        self.at = weight_files.ALIGN

    def rows(self, kernel: str, names: Mapping[str, Any]) -> None:
        """Add the rows that a kernel has; ``names`` are the numbers and words that its sizes and
        constants are written with."""
        for kernels, row in OPERATIONS:
            if kernel in kernels:
                self._row(row, names)

    def _row(self, row: Mapping[str, str], names: Mapping[str, Any]) -> None:
        op, output, words = row["op"], row["output"], row["arguments"].split()
        shape = tuple(size(text, names) for text in row["shape"].split())
        kind = Type(row["type"], shape, plain=self.plain and not shape)
        name = Value(self.string, row["name"] or output)
        attributes: tuple[tuple[str, Value], ...] = (("name", name),)
        arguments: tuple[tuple[str, Any], ...] = ()
        if op in ("const", "weight"):
            if op == "weight":
                data: Any = self._placed(output, shape, *words)
            else:
                elements = tuple(_constant(word, kind.dtype, names) for word in words)
                if shape:
                    data = elements
                else:
                    data = elements[0]
            op, attributes = "const", (*attributes, ("val", Value(kind, data)))
        else:
            pairs = [word.split("=") for word in words]
            arguments = tuple(
                (name, tuple(of.split(",")) if "," in of else of) for name, of in pairs
            )
        self.operations.append(Operation(op, ((output, kind),), arguments, attributes))

    def _placed(self, output: str, shape: Shape, file: str, weight: str = "") -> File:
        """Where a weight lies: in a file of its own, or as a record of the one that all share."""
        path, offset = FOLDER + (self.file or file), self.at if self.file else weight_files.ALIGN
        self.at += weight_files.ALIGN + up(2 * math.prod(shape), weight_files.ALIGN)
        self.placed.append((path, weight or output, shape))
        return File(path, offset, self.plain)

    def kernel(
        self,
        inputs: Sequence[tuple[str, Type]],
        outputs: Sequence[str],
        parts: Mapping[str, Sequence[tuple[str, int]]] | None = None,
    ) -> Kernel:
        """The program, with weight files where weights were given."""
        types = dict(inputs) | {
            name: kind for operation in self.operations for name, kind in operation.outputs
        }
        function = Function(
            tuple(inputs), tuple(self.operations), tuple(outputs), target=TARGETS[self.version]
        )
        program = Program(
            (function,), self.version, (build_info(BUILD_INFO[self.version], self.plain),)
        )
        before, after = (
            {name: tuple(size or 0 for size in types[name].shape) for name in names}
            for names in (dict(inputs), outputs)
        )
        return Kernel(
            program,
            self._files(),
            before,
            after,
            {name: tuple(pairs) for name, pairs in (parts or {}).items()},
        )

    def _files(self) -> dict[str, bytes]:
        if self.weights is None:
            return {}
        files: dict[str, dict[str, np.ndarray]] = {}
        for path, name, shape in self.placed:
            refuse_if(
                name not in self.weights,
                "weights",
                ", ".join(self.weights) or "none",
                f"are {', '.join(weight for _, weight, _ in self.placed)}",
                LookupError,
            )
            array = np.asarray(self.weights[name])
            if array.size != math.prod(shape) or array.dtype.kind not in "fiu":
                raise ValueError(
                    f"weights: {name}: got {array.shape} {array.dtype}, allowed are numbers "
                    f"{list(shape)}"
                )
            with np.errstate(over="ignore"):
                files.setdefault(path, {})[name] = array.reshape(shape).astype(np.float16)
        return {path: weight_files.write(arrays).data for path, arrays in files.items()}


def build_info(pairs: Mapping[str, str], plain: bool = True) -> tuple[str, Value]:
    """The attribute ``buildInfo`` of a program."""
    string = Type("string", plain=plain)
    groups = tuple(Group("{", (key, value)) for key, value in pairs.items())
    return "buildInfo", Value(Compound("dict", (string, string)), (Group("{", groups),))


def size(text: str, names: Mapping[str, Any]) -> int:
    """A size in a table: a number, a name, or a sum of products.

    >>> size("2*dim+1", {"dim": 4})
    9
    """
    if text in names or text.isdigit():
        return int(names.get(text, text))
    return sum(
        math.prod(int(names.get(factor, factor)) for factor in term.split("*"))
        for term in text.split("+")
    )


def _constant(text: str, dtype: str, names: Mapping[str, Any]) -> Any:
    if text in names:
        return names[text]
    if dtype in ("string", "bool"):
        if dtype == "string":
            return text
        return text == "true"
    if dtype == "fp16":
        return float(text)
    return size(text, names)


def convolution(
    weights: np.ndarray,
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
        raise ValueError(
            f"weights: got {weights.shape} for {rows} rows of {columns} in {groups} groups, "
            "allowed are "
            "(O, I / groups, kernel_h, kernel_w) and sizes of 1 or more"
        )
    for name, given, count, least in (
        ("strides", strides, 2, 1),
        ("pad", pad, 4, 0),
        ("dilations", dilations, 2, 1),
    ):
        if len(given) != count or min(given) < least:
            raise ValueError(f"{name}: got {list(given)}, allowed are {count} of {least} or more")
    body = Body({"W": weights}, file, version)
    (outputs, depth, *kernel), spans = weights.shape, []
    for axis, have in enumerate((rows, columns)):
        padded = have + pad[2 * axis] + pad[2 * axis + 1]
        spans.append((padded - (kernel[axis] - 1) * dilations[axis] - 1) // strides[axis] + 1)
    if min(spans) < 1 or outputs % groups:
        raise ValueError(
            f"weights: got {weights.shape} for {rows} rows of {columns} in {groups} groups, "
            "allowed is a "
            "kernel that fits, and outputs that the groups divide"
        )
    names = {
        "outputs": outputs,
        "depth": depth,
        "inputs": depth * groups,
        "groups": groups,
        "rows": rows,
        "columns": columns,
        "rows_after": spans[0],
        "columns_after": spans[1],
        "pad_type": "custom" if any(pad) else "valid",
        **dict(zip(("top", "bottom", "left", "right"), pad, strict=True)),
    }
    for name, pair in (("kernel", kernel), ("stride", strides), ("dilation", dilations)):
        names |= {f"{name}_h": pair[0], f"{name}_w": pair[1]}
    return _kernel("convolution", boundary, body, names, x="1 inputs rows columns")


def matmul(
    inner: int, outputs: int, columns: int, *, boundary: str = "fp32", version: str = "1.3"
) -> Kernel:
    """``y = W @ x``, both inputs: x [1, inner, columns], W [1, outputs, inner], y [1, outputs,
    columns].

    >>> matmul(8, 4, 32).inputs
    {'x': (1, 8, 32), 'W': (1, 4, 8)}
    """
    names = _sizes(inner=inner, outputs=outputs, columns=columns)
    return _kernel(
        "matmul",
        boundary,
        Body(None, version=version),
        names,
        x="1 inner columns",
        W="1 outputs inner",
    )


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
    refuse_if(
        min(sizes.values()) < 1,
        "sizes",
        ", ".join(f"{name} {size}" for name, size in sizes.items()),
        "is 1 or more",
    )
    return sizes


def _kernel(
    name: str, boundary: str, body: Body, names: Mapping[str, Any], **inputs: str
) -> Kernel:
    """A kernel of the tables with inputs and output y of the boundary type."""
    body.rows(f"{name}/{one_of('boundary', boundary, BOUNDARIES)}", names)
    shapes = {
        name: tuple(size(text, names) for text in shape.split()) for name, shape in inputs.items()
    }
    return body.kernel([(name, Type(boundary, shape)) for name, shape in shapes.items()], ["y"])


@dataclass(frozen=True)
class Dims:
    """Sizes of a layer: channels, channels inside the FFN, heads, columns (the sequence).

    ``printed`` gives constants the six decimals of C's ``%f`` that maderix/ANE prints: 1/768 is
    0.001302. Raises ValueError as ``Step``.
    """

    dim: int = 768
    hidden: int = 2048
    heads: int = 12
    seq: int = 512
    printed: bool = False

    def __post_init__(self) -> None:
        for name, size in vars(Step(self.dim, self.hidden, self.seq, self.heads)).items():
            object.__setattr__(self, name, size)

    @property
    def names(self) -> dict[str, float]:
        """The sizes and constants that the tables are written with; ``scores`` are the channels of
        attention scores as [1, heads * seq, 1, seq]."""
        head = self.dim // self.heads
        constants = {"inverse_dim": 1 / self.dim, "scale": head**-0.5}
        if self.printed:
            constants = {name: float(f"{np.float32(value):f}") for name, value in constants.items()}
        return {
            "dim": self.dim,
            "hidden": self.hidden,
            "heads": self.heads,
            "seq": self.seq,
            "head": head,
            "scores": self.heads * self.seq,
            **constants,
            "epsilon": EPSILON,
        }


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
    parts = {
        side: [
            (part, size(text, names))
            for part, text in (pair.split(":") for pair in KERNELS[name][side].split())
        ]
        for side in ("x", "out")
    }
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
        stored["cm"] = causal_mask(dims.seq)
    return stored
