"""Layouts: where each element of a tensor lies in a buffer, as a value; found from tensors and their buffers."""

from npulab.layout.find import find_layout
from npulab.layout.found import Found, Run
from npulab.layout.markers import markers
from npulab.layout.nest import Layout, Loop
from npulab.layout.parts import Constant, Sums
from npulab.layout.plain import hwc, kernel_groups, nc1hwc2, only, packed_blocks, planar, strided
from npulab.layout.stored import Table

__all__ = ["Constant", "Found", "Layout", "Loop", "Run", "Sums", "Table", "find_layout", "hwc", "kernel_groups",
           "markers", "nc1hwc2", "only", "packed_blocks", "planar", "strided"]
