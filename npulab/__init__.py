"""npulab: a workbench for people who find out how an undocumented NPU works.

>>> import npulab
>>> "vivante" in npulab.targets()
True
"""

from __future__ import annotations

from typing import Any

from npulab.bisection import Bisection, bisect_fields, mix
from npulab.capture import Capture, CaptureSet, Job
from npulab.codes import codes_by_rule
from npulab.compare import Comparison, check, diff, diff_buffers, explain
from npulab.correlation import best_related, bit_effects, correlate, flips, related
from npulab.devices import Command, Manual, Recorder, Simulated, device
from npulab.emulate import ENGINES, Saturation, accumulate, emulate, outputs, prepare
from npulab.floats import ulps
from npulab.journal import Journal
from npulab.laws import FieldLaw, Laws, find_laws, plan_sweep
from npulab.layers import Activation, Add, Concat, Conv2D, Elementwise, FullyConnected, Network, Pool2D
from npulab.layout import Layout, find_layout, markers
from npulab.mismatches import mismatches
from npulab.models import check_sweep, model_memory, read_model, single_op_model, write_model, write_sweep
from npulab.neighbours import neighbours
from npulab.probe import probe_layout
from npulab.quant import RULES, QuantParams
from npulab.rounding import identify_rounding, rounding_probes
from npulab.runs import check_run
from npulab.scan import Probe, Scan, impulses, scan, scan_capture
from npulab.store import load, load_all, save
from npulab.sweeps import Sweep, load_sweep, save_sweep, sweep_of
from npulab.target import Target
from npulab.targets import target, targets

__version__ = "0.1.0"
__all__ = ["ENGINES", "RULES", "Activation", "Add", "BisectView", "Bisection", "ByteView", "Capture", "CaptureSet",
           "Command", "Comparison", "Concat", "Conv2D", "DiffView", "Draft", "Elementwise", "FieldLaw",
           "FullyConnected", "Job", "Journal", "LawView", "Laws", "Layout", "Manual", "MapEditor", "Network",
           "OutputView", "Pool2D", "Probe", "QuantParams", "Recorder", "RegisterView", "Saturation", "Scan", "Session",
           "Simulated", "Sweep", "Target", "accumulate", "bench", "best_related", "bisect_fields", "bisection_trials",
           "bit_effects", "check", "check_run", "check_sweep", "codes_by_rule", "correlate", "correlation_map",
           "device", "diff", "diff_buffers", "draft", "emulate", "explain", "find_laws", "find_layout", "flip_map",
           "flips", "function_error", "identify_rounding", "impulses", "law_map", "law_scatter", "layout_map", "load",
           "load_all", "load_sweep", "markers", "memory_picture", "merge_sessions", "mismatches", "mix",
           "model_memory", "neighbours", "number_line", "output_comparison", "output_difference", "outputs",
           "plan_sweep", "prepare", "probe_layout", "read_map", "read_model", "related", "roofline",
           "rounding_probes", "save", "save_sweep", "scan", "scan_capture", "session", "single_op_model",
           "stream_map", "sweep_of", "target", "targets", "ulps", "write_map", "write_model", "write_sweep"]

# What draws, measures, or reads and tells what others wrote is loaded when it is asked for, so that the package starts
# light.
_LATER = {"BisectView": "npulab.widgets", "ByteView": "npulab.widgets", "DiffView": "npulab.widgets",
          "Draft": "npulab.drafts", "LawView": "npulab.widgets", "MapEditor": "npulab.widgets",
          "OutputView": "npulab.widgets", "RegisterView": "npulab.widgets", "Session": "npulab.sessions",
          "bench": "npulab.speed", "bisection_trials": "npulab.view", "correlation_map": "npulab.view",
          "draft": "npulab.drafts", "flip_map": "npulab.view", "function_error": "npulab.view",
          "law_map": "npulab.view", "law_scatter": "npulab.view", "layout_map": "npulab.view",
          "memory_picture": "npulab.view", "merge_sessions": "npulab.sessions", "number_line": "npulab.view",
          "output_comparison": "npulab.view", "output_difference": "npulab.view", "read_map": "npulab.interop",
          "roofline": "npulab.view", "session": "npulab.sessions", "stream_map": "npulab.view",
          "write_map": "npulab.interop"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'npulab' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
