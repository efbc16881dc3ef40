"""What a model file states, as values: tensors, operators, buffers."""

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
    """A tensor: ``shape`` with the batch, ``buffer`` the number of the one that holds its constant.

    ``scale`` and ``zero_point`` have one number, one per entry of ``axis``, or none.
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
        """Bytes of the elements; 0 for texts and other things without a size.

        >>> Tensor("weights", (3, 5), "int4").memory
        8
        """
        if self.dtype in BITS:
            bits = BITS[self.dtype]
        else:
            bits = 32 * 8 * np.dtype(self.dtype).itemsize
        return -(-math.prod(self.shape) * bits // (32 * 8))


@dataclass(frozen=True)
class Operator:
    """An operator: the numbers of its tensors, -1 where an input is left out, and its options by
    name.

    ``name`` is ``CUSTOM(name)`` for one that is none of the format's own, the number for one that
    has no name. ``options`` are empty where their kind is not known.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    revision: int = 1


@dataclass(frozen=True)
class Graph:
    """What a file states: tensors, operators in the order they run, buffers of which the first is
    empty.

    A file may hold several graphs, of which the first is run and runs the ``others``; these have
    the same buffers. ``form`` is "tflite" or "circle".
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

    def data(self, tensor: int) -> np.ndarray:
        """The constant of a tensor, in its shape and type; int8 or uint8 of one that is packed.

        Raises ValueError where it has none, or one of another size.
        """
        one = self.tensors[tensor]
        raw = self.buffers[one.buffer]
        packed = one.dtype in PACKED
        if not raw or len(raw) != one.memory or (one.dtype in BITS and not packed):
            raise ValueError(
                f"{one.name}: got {len(raw)} bytes, allowed is a constant of {one.memory}, "
                f"{one.dtype} "
                f"{list(one.shape)}"
            )
        if packed:
            return packed_codes(math.prod(one.shape), one.dtype).unpack(raw).reshape(one.shape)
        values = np.frombuffer(raw, np.dtype(one.dtype).newbyteorder("<")).reshape(one.shape)
        return values.astype(one.dtype, copy=False)

    def listing(self, form: str = "earlier") -> str:
        """Operators with their tensors and options, then counts and memory.

        The forms are those of Samsung/ONE:tools/tflitefile_tool: the "earlier", with eight spaces
        for a tab, and the "later", which marks operators #, tensors % and buffers & and prints
        constants of up to four elements. Memory is that of every type, where the tool knows but
        some.  Raises ValueError for another form.
        """
        return listing.listed(self, form)

    def __str__(self) -> str:
        return self.listing()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What the listing has, one dict per operator of every graph.

        It has ``index``, ``name``, ``graph``, ``fused_activation``, ``options``, and ``inputs`` and
        ``outputs``: a dict per tensor, None where one is left out.
        """
        return listing.rows(self)

    def quantization(self) -> str:
        """Scale and zero point of every tensor that has them, a line each; ``tensors`` has all of
        them as numbers."""
        return "\n".join(listing.quantization(self))


def packed_codes(count: int, dtype: str) -> Layout:
    """How so many codes below 8 bits lie in a buffer: in order, the first in the lowest bits."""
    return Layout((count,), (Loop(0, stride=1),), dtype=dtype)
