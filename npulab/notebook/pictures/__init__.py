"""Pictures that have a sentence with their numbers, and are the same bytes on every run."""

from __future__ import annotations

from npulab.notebook.pictures.blocks import block_map
from npulab.notebook.pictures.function import function_error
from npulab.notebook.pictures.laws import correlation_map, flip_map, law_map, law_scatter
from npulab.notebook.pictures.layout import layout_map
from npulab.notebook.pictures.memory import memory_picture
from npulab.notebook.pictures.outputs import (
    BINS,
    bisection_trials,
    number_line,
    output_comparison,
    output_difference,
)
from npulab.notebook.pictures.picture import Picture
from npulab.notebook.pictures.proofs import disproof
from npulab.notebook.pictures.rooflines import roofline
from npulab.notebook.pictures.stream import stream_map

__all__ = [
    "BINS",
    "Picture",
    "bisection_trials",
    "block_map",
    "correlation_map",
    "disproof",
    "flip_map",
    "function_error",
    "law_map",
    "law_scatter",
    "layout_map",
    "memory_picture",
    "number_line",
    "output_comparison",
    "output_difference",
    "roofline",
    "stream_map",
]
