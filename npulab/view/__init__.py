"""Pictures that say their number in text too, and are the same bytes on every run."""

from __future__ import annotations

from npulab.view.function import function_error
from npulab.view.laws import correlation_map, flip_map, law_map, law_scatter
from npulab.view.layout import layout_map
from npulab.view.memory import memory_picture
from npulab.view.outputs import BINS, bisection_trials, number_line, output_comparison, output_difference
from npulab.view.picture import Picture
from npulab.view.roofline import roofline
from npulab.view.stream import stream_map

__all__ = ["BINS", "Picture", "bisection_trials", "correlation_map", "flip_map", "function_error", "law_map",
           "law_scatter", "layout_map", "memory_picture", "number_line", "output_comparison", "output_difference",
           "roofline", "stream_map"]
