"""Operators without weights on whole tensors, by the names that TensorFlow Lite gives them."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from npulab.quant.layers.checks import UNIT, Shape, shape_text, store
from npulab.quant.rules import QuantParams
from npulab.support.files import read_table


def _options(text: str) -> dict[str, Any]:
    """Return the options that a row of the table states as ``name=value``, separated by spaces. The
    values are the options' defaults.
    """
    options = {}
    for option in text.split():
        name, usual = option.split("=")
        options[name] = literal_eval(usual)
    return options


_ROWS = read_table(Path(__file__).with_name("operations.csv"))
# The key is an operator; the value has its options, with the defaults for a model that states none.
OPERATIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {row["kind"]: _options(row["options"]) for row in _ROWS}
)
# Rules under which each operator is known. An operator without rules only moves elements, and so
# gives the same output under every rule. "tflite-builtin" is listed for operators whose builtin
# kernels gave the reference's numbers in every random test (tests/quant/test_operations.py).
RULED = MappingProxyType({row["kind"]: tuple(row["rules"].split()) for row in _ROWS})
TYPES = ("int8", "uint8", "int16", "int32", "int64", "float32", "bool")


class Placeholder(NamedTuple):
    """A tensor without its values: its shape (batch included), type, scale and zero point."""

    shape: Shape
    dtype: str
    q: QuantParams = UNIT

    def __str__(self) -> str:
        return f"{shape_text(self.shape) or 'one'} {self.dtype}"


@dataclass(frozen=True, eq=False)
class Operation:
    """An operator without weights on whole tensors, one of ``OPERATIONS``.

    ``inputs`` are all tensors of the operator, without values. ``constants`` has the values of the
    constant tensors: a key is a tensor's number in ``inputs``, counted from 0. ``output`` is one
    output; if the operator has several outputs, ``part`` is the number of this one. Shapes include
    the batch that the model states. Raises ValueError, which names the kind, option or tensor that
    does not fit.
    """

    kind: str
    inputs: tuple[Placeholder, ...]
    output: Placeholder
    options: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[int, np.ndarray] = field(default_factory=dict)
    part: int = 0

    def __post_init__(self) -> None:
        if self.kind not in OPERATIONS:
            raise ValueError(f"kind: got {self.kind!r}, allowed is one of {', '.join(OPERATIONS)}")
        known = OPERATIONS[self.kind]
        for name in self.options:
            if name not in known:
                raise ValueError(
                    f"options: got {name!r}, allowed with {self.kind} is one of "
                    f"{', '.join(known) or 'none'}"
                )
        store(self, options={**known, **self.options})
        for tensor in (*self.inputs, self.output):
            if tensor.dtype not in TYPES or isinstance(tensor.q.scale, tuple):
                raise ValueError(
                    f"{self.kind}: got a tensor of {tensor.dtype} with {tensor.q}, allowed is a "
                    f"tensor of {', '.join(TYPES)} with one scale"
                )
        if not self.moving:
            raise ValueError(
                f"{self.kind}: got constants alone, allowed is at least one tensor that is not "
                "constant"
            )

    @property
    def moving(self) -> tuple[int, ...]:
        """The numbers, in ``inputs``, of the tensors that are not constant; the layer takes these
        tensors.
        """
        return tuple(place for place in range(len(self.inputs)) if place not in self.constants)

    @property
    def op(self) -> str:
        return self.kind.lower()

    @property
    def activation(self) -> str | None:
        """The activation that is applied to the result; None if there is none."""
        return self.options.get("activation")

    @property
    def dtype(self) -> str:
        """The type of the output."""
        return self.output.dtype

    @property
    def input_shapes(self) -> tuple[Shape, ...]:
        return tuple(self.inputs[place].shape for place in self.moving)

    @property
    def input_shape(self) -> Shape:
        return self.input_shapes[0]

    @property
    def output_shape(self) -> Shape:
        return self.output.shape

    @property
    def input_q(self) -> QuantParams:
        return self.inputs[self.moving[0]].q

    @property
    def output_q(self) -> QuantParams:
        return self.output.q

    @property
    def parameters(self) -> dict[str, Any]:
        """The layer in plain numbers and names, as columns of a sweep."""
        first = self.inputs[self.moving[0]]
        sizes = {}
        for side, shape in (("input", first.shape), ("output", self.output.shape)):
            for axis, size in enumerate(shape):
                sizes[f"{side}_{axis}"] = size
        return {
            "op": self.op,
            **sizes,
            **self.options,
            "input_scale": first.q.scale,
            "input_zero_point": first.q.zero_point,
            "output_scale": self.output.q.scale,
            "output_zero_point": self.output.q.zero_point,
            "dtype": self.dtype,
        }

    def __repr__(self) -> str:
        taken = ", ".join(str(self.inputs[place]) for place in self.moving)
        return f"Operation({self.kind} {taken} -> {self.output})"
