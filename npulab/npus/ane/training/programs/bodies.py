"""The body of a MIL function put together, operation by operation, with the weight files it points
at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npulab.npus.ane import surfaces
from npulab.npus.ane.training import blobs as weight_files
from npulab.npus.ane.training.mil.values import Argument, File, Function, Operation, Program, Type, Value, build_info
from npulab.npus.kit.numbers import up
from npulab.registers.table import read_table
from npulab.support.refuse import one_of, refuse_if

Shape = tuple[int, ...]
FOLDER = "@model_path/weights/"
BUILD_INFO = {"1.0": {"coremlc-version": "3505.4.1"},
              "1.3": {"coremlc-component-MIL": "3510.2.1", "coremlc-version": "3505.4.1",
                      "coremltools-component-milinternal": "", "coremltools-version": "9.0"}}
OPERATIONS = [(row["kernels"].split(), row) for row in read_table(Path(__file__).parent / "operations.csv")]
TARGETS = {"1.0": "ios16", "1.3": "ios18"}


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
        shapes = [", ".join(f"{name} {list(shape)}" for name, shape in some.items())
                  for some in (self.inputs, self.outputs)]
        files = f"{len(self.blobs)} weight file{'s' * (len(self.blobs) != 1)} of {sum(map(len, self.blobs.values()))} B"
        return f"Kernel({shapes[0]} -> {shapes[1]}, {self.program!r}, {files})"

    def join(self, name: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """An input (1, C, 1, S) out of its parts ``(channels, S)`` by name.

        Raises LookupError for parts that are missing, ValueError for those that do not fit.
        """
        sizes = dict(self.parts[name])
        missing = [part for part in sizes if part not in arrays]
        refuse_if(missing, f"parts of {name}", f"none of {', '.join(missing)}",
                  f"is each of {', '.join(sizes)}", LookupError)
        for part, channels in sizes.items():
            if len(arrays[part]) != channels:
                raise ValueError(f"parts of {name}: {part}: got {np.shape(arrays[part])}, allowed is ({channels}, S)")
        return surfaces.join([arrays[part] for part in sizes], "channels")[None, :, None]

    def split(self, name: str, tensor: np.ndarray) -> dict[str, np.ndarray]:
        """The parts ``(channels, S)`` by name of an input or output (1, C, 1, S)."""
        sizes = dict(self.parts[name])
        arrays = surfaces.split(np.asarray(tensor)[0, :, 0], list(sizes.values()), "channels")
        return dict(zip(sizes, arrays, strict=True))


class Body:
    """A function that grows by rows of ``operations.csv``, and the weights that it points at."""

    def __init__(self, weights: Mapping[str, Any] | None, file: str = "", version: str = "1.3") -> None:
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
        arguments: tuple[tuple[str, Argument], ...] = ()
        if op in ("const", "weight"):
            if op == "weight":
                data: Any = self._placed(output, shape, *words)
            else:
                elements = tuple(_constant(word, kind.dtype, names) for word in words)
                data = elements if shape else elements[0]
            op, attributes = "const", (*attributes, ("val", Value(kind, data)))
        else:
            pairs = [word.split("=") for word in words]
            arguments = tuple((name, tuple(of.split(",")) if "," in of else of) for name, of in pairs)
        self.operations.append(Operation(op, ((output, kind),), arguments, attributes))

    def _placed(self, output: str, shape: Shape, file: str, weight: str = "") -> File:
        """Where a weight lies: in a file of its own, or as a record of the one that all share."""
        path, offset = FOLDER + (self.file or file), self.at if self.file else weight_files.ALIGN
        self.at += weight_files.ALIGN + up(2 * math.prod(shape), weight_files.ALIGN)
        self.placed.append((path, weight or output, shape))
        return File(path, offset, self.plain)

    def kernel(self, inputs: Sequence[tuple[str, Type]], outputs: Sequence[str],
               parts: Mapping[str, Sequence[tuple[str, int]]] | None = None) -> Kernel:
        """The program, with weight files where weights were given."""
        types = dict(inputs) | {name: kind for operation in self.operations for name, kind in operation.outputs}
        function = Function(tuple(inputs), tuple(self.operations), tuple(outputs), target=TARGETS[self.version])
        program = Program((function,), self.version, (build_info(BUILD_INFO[self.version], self.plain),))
        before, after = ({name: tuple(size or 0 for size in types[name].shape) for name in names}
                         for names in (dict(inputs), outputs))
        return Kernel(program, self._files(), before, after,
                      {name: tuple(pairs) for name, pairs in (parts or {}).items()})

    def _files(self) -> dict[str, bytes]:
        if self.weights is None:
            return {}
        files: dict[str, dict[str, np.ndarray]] = {}
        for path, name, shape in self.placed:
            refuse_if(name not in self.weights, "weights", ", ".join(self.weights) or "none",
                      f"are {', '.join(weight for _, weight, _ in self.placed)}", LookupError)
            array = np.asarray(self.weights[name])
            if array.size != math.prod(shape) or array.dtype.kind not in "fiu":
                raise ValueError(f"weights: {name}: got {array.shape} {array.dtype}, allowed are numbers {list(shape)}")
            with np.errstate(over="ignore"):
                files.setdefault(path, {})[name] = array.reshape(shape).astype(np.float16)
        return {path: weight_files.write(arrays).data for path, arrays in files.items()}


def size(text: str, names: Mapping[str, Any]) -> int:
    """A size in a table: a number, a name, or a sum of products.

    >>> size("2*dim+1", {"dim": 4})
    9
    """
    if text in names or text.isdigit():
        return int(names.get(text, text))
    return sum(math.prod(int(names.get(factor, factor)) for factor in term.split("*"))
               for term in text.split("+"))


def _constant(text: str, dtype: str, names: Mapping[str, Any]) -> Any:
    if text in names:
        return names[text]
    if dtype in ("string", "bool"):
        return text if dtype == "string" else text == "true"
    return float(text) if dtype == "fp16" else size(text, names)
