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
    """A tensor: ``shape`` with the batch, ``buffer`` the number of the buffer with its constant.

    ``scale`` and ``zero_point`` have one number, or one for each entry of ``axis``, or none.
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
        """Bytes of the elements; 0 for texts and other types without a size.

        >>> Tensor("weights", (3, 5), "int4").memory
        8
        """
        bits = BITS.get(self.dtype)  # of 32 elements
        if bits is None:
            bits = 32 * 8 * np.dtype(self.dtype).itemsize
        return -(-math.prod(self.shape) * bits // (32 * 8))


@dataclass(frozen=True)
class Operator:
    """An operator: the numbers of its tensors, -1 for an input that is left out, and its options by
    name.

    ``name`` is ``CUSTOM(name)`` for an operator that the format does not define, the number for an
    operator without a name.  ``options`` are empty if their kind is not known.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    revision: int = 1


@dataclass(frozen=True)
class Graph:
    """The contents of a file: tensors, operators in the order they run, buffers, the first of them
    empty.

    A file may hold several graphs: the first is run and runs the ``others``, which have the same
    buffers.  ``form`` is "tflite" or "circle".
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
        """True if a tensor has a constant; an input that is left out (-1) has none."""
        return tensor >= 0 and bool(self.buffers[self.tensors[tensor].buffer])

    def data(self, tensor: int) -> np.ndarray:
        """The constant of a tensor in its shape and type; int8 or uint8 for codes below 8 bits.

        Raises ValueError if it has none, or one of another size.
        """
        wanted = self.tensors[tensor]
        shape, dtype = wanted.shape, wanted.dtype
        raw = self.buffers[wanted.buffer]
        packed = dtype in PACKED
        if not raw or len(raw) != wanted.memory or (dtype in BITS and not packed):
            raise ValueError(
                f"{wanted.name}: got {len(raw)} bytes, allowed is a constant of {wanted.memory}, "
                f"{dtype} {list(shape)}"
            )
        if packed:
            return packed_codes(math.prod(shape), dtype).unpack(raw).reshape(shape)
        values = np.frombuffer(raw, np.dtype(dtype).newbyteorder("<")).reshape(shape)
        return values.astype(dtype, copy=False)

    def listing(self, form: str = "earlier") -> str:
        """Operators with their tensors and options, then counts and memory.

        The forms are those of Samsung/ONE:tools/tflitefile_tool: the "earlier", with eight spaces
        for a tab, and the "later", which marks operators #, tensors % and buffers & and prints
        constants of up to four elements.  Memory counts tensors of every type; the tool knows only
        some types.  Raises ValueError for another form.
        """
        return listing.listed(self, form)

    def __str__(self) -> str:
        return self.listing()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The listing as one dict per operator of every graph.

        It has ``index``, ``name``, ``graph``, ``fused_activation``, ``options``, and ``inputs`` and
        ``outputs``: a dict per tensor, None for an input that is left out.
        """
        return listing.rows(self)

    def quantization(self) -> str:
        """Scale and zero point of every tensor that has them, a line each; ``tensors`` has the
        numbers."""
        return "\n".join(listing.quantization(self))


def packed_codes(count: int, dtype: str) -> Layout:
    """The layout of codes below 8 bits in a buffer: in order, the first in the lowest bits."""
    return Layout((count,), (Loop(0, stride=1),), dtype=dtype)
