"""Layouts: where each element of a tensor lies in a buffer, as a value; found from tensors and
their buffers."""

from npulab.layout.conventions import CONVENTIONS, Convention, convert_axes, dense_weights
from npulab.layout.find import find_layout
from npulab.layout.formats import (
    FORMATS,
    format_layout,
    format_strides,
    is_format,
    memory_format,
    strides_layout,
)
from npulab.layout.found import Found, Run
from npulab.layout.marking import markers
from npulab.layout.nest import Layout, Loop
from npulab.layout.parts import Constant, Sums
from npulab.layout.plain import hwc, kernel_groups, nc1hwc2, only, packed_blocks, planar, strided
from npulab.layout.planes import Planes
from npulab.layout.stored import Table

__all__ = [
    "CONVENTIONS",
    "FORMATS",
    "Constant",
    "Convention",
    "Found",
    "Layout",
    "Loop",
    "Planes",
    "Run",
    "Sums",
    "Table",
    "convert_axes",
    "dense_weights",
    "find_layout",
    "format_layout",
    "format_strides",
    "hwc",
    "is_format",
    "kernel_groups",
    "markers",
    "memory_format",
    "nc1hwc2",
    "only",
    "packed_blocks",
    "planar",
    "strided",
    "strides_layout",
]
