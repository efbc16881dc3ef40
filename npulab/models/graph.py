"""The contents of a model file as values: tensors, operators, buffers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from npulab.layout.nest import Layout, Loop
from npulab.models import listing
from npulab.models.facts import BITS, PACKED


@dataclass(frozen=True)
class Tensor:
    """A tensor: ``shape`` includes the batch, ``buffer`` is the number of the buffer that holds its
    constant (0 if it has none).

    ``scale`` and ``zero_point`` have one number for the tensor, or one number for each index of
    ``axis``, or are empty.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    buffer: int = 0
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    axis: int = 0

    @property
    def memory(self) -> int:
        """The bytes that the elements take; 0 for texts and other types whose elements have no
        fixed size.

        >>> Tensor("weights", (3, 5), "int4").memory
        8
        """
        bits = BITS.get(self.dtype)  # the bits that 32 elements take
        if bits is None:
            bits = 32 * 8 * np.dtype(self.dtype).itemsize
        return -(-math.prod(self.shape) * bits // (32 * 8))


@dataclass(frozen=True)
class Operator:
    """An operator: the numbers of the tensors that it takes and gives, and its options by name. An
    input that is left out has the number -1.

    ``name`` is ``CUSTOM(name)`` for an operator that the format does not define. For an operator
    whose number has no name here, it is the number as text. ``options`` are empty if their kind is
    not known.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    revision: int = 1


@dataclass(frozen=True)
class Graph:
    """The contents of a file: tensors, operators in the order in which they run, and buffers, the
    first of which is empty.

    A file may hold several graphs. A runtime runs this one, which may call the ``others``; they
    share its buffers. ``form`` is "tflite" or "circle".
    """

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    buffers: tuple[bytes, ...] = (b"",)
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    description: str = "npulab"
    name: str = "main"
    form: str = "tflite"
    others: tuple[Graph, ...] = ()

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """Every graph of the file, this one first."""
        return (self, *self.others)

    def filled(self, tensor: int) -> bool:
        """True if the tensor with this number has a constant; -1, an input that is left out, has
        none."""
        return tensor >= 0 and bool(self.buffers[self.tensors[tensor].buffer])

    def data(self, tensor: int) -> np.ndarray:
        """The constant of a tensor in its shape and type; elements below 8 bits are returned as
        int8 or uint8.

        Raises ValueError if the tensor has no constant, a buffer of another size, or a type that
        numpy does not have.
        """
        wanted = self.tensors[tensor]
        shape, dtype = wanted.shape, wanted.dtype
        raw = self.buffers[wanted.buffer]
        packed = dtype in PACKED
        if not raw or len(raw) != wanted.memory or (dtype in BITS and not packed):
            raise ValueError(
                f"{wanted.name}: got {len(raw)} bytes, allowed is a constant of "
                f"{wanted.memory} bytes, {dtype} {list(shape)}"
            )
        if packed:
            return packed_codes(math.prod(shape), dtype).unpack(raw).reshape(shape)
        values = np.frombuffer(raw, np.dtype(dtype).newbyteorder("<")).reshape(shape)
        return values.astype(dtype, copy=False)

    def listing(self, form: str = "earlier") -> str:
        """The graph as text: its operators with their tensors and options, then counts and memory.

        ``form`` is one of two forms of Samsung/ONE:tools/tflitefile_tool: "earlier", here with
        eight spaces instead of a tab, or "later", which marks operators #, tensors % and buffers &
        and prints constants of up to four elements. The memory here counts tensors of every type;
        the tool counts only some types. Raises ValueError for another form.
        """
        return listing.listed(self, form)

    def __str__(self) -> str:
        return self.listing()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dict for each operator of every graph of the file.

        Its keys are ``index``, ``name``, ``graph``, ``fused_activation``, ``options``, ``inputs``
        and ``outputs``. The last two are lists with a dict for each tensor, None for an input that
        is left out.
        """
        return listing.rows(self)

    def quantization(self) -> str:
        """A text with one line for each tensor that has a scale: its scale and zero point. If a
        tensor has several scales, the line has their range; ``tensors`` has every scale."""
        return "\n".join(listing.quantization(self))


def packed_codes(count: int, dtype: str) -> Layout:
    """The layout of ``count`` codes of fewer than 8 bits in a buffer: the first code is in the
    lowest bits of the first byte."""
    return Layout((count,), (Loop(0, stride=1),), dtype=dtype)
