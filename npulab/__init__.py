"""npulab: a workbench for people who find out how an undocumented NPU works.

>>> import npulab
>>> "vivante" in npulab.targets()
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import npulab.target  # noqa: F401 - before the function below takes the name of this module

if TYPE_CHECKING:
    from npulab.captures.target import Target

__version__ = "0.1.0"

# Public names by the module that defines them; each module is loaded when one of its names is asked
# for.
_PUBLIC = {
    "npulab.registers.formats": "read_map write_map",
    "npulab.layout": "Layout find_layout markers",
    "npulab.quant.codes": "codes_by_rule",
    "npulab.quant.emulate": "ENGINES Saturation accumulate emulate outputs prepare",
    "npulab.quant.floats": "ulps",
    "npulab.quant.identify": "identify_rounding rounding_probes",
    "npulab.quant.layers": "Activation Add Concat Conv2D Elementwise FullyConnected Network "
        "Pool2D",
    "npulab.quant.rules": "QuantParams RULES",
    "npulab.models": "check_sweep model_memory read_model single_op_model write_model "
        "write_sweep",
    "npulab.captures.capture": "Capture CaptureSet Job",
    "npulab.captures.devices": "Command Manual Recorder Simulated device",
    "npulab.captures.journal": "Journal",
    "npulab.captures.registry": "targets",
    "npulab.captures.store": "load load_all save",
    "npulab.captures.sweep": "Sweep load_sweep save_sweep sweep_of",
    "npulab.captures.target": "Target",
    "npulab.analysis.bisect": "Bisection bisect_fields mix",
    "npulab.analysis.check": "Comparison check diff diff_buffers explain",
    "npulab.analysis.correlate": "best_related bit_effects correlate flips related",
    "npulab.analysis.draft": "Draft draft",
    "npulab.analysis.laws": "FieldLaw Laws find_laws plan_sweep",
    "npulab.analysis.mismatch.hypotheses": "neighbours",
    "npulab.analysis.mismatch.model_run": "check_run",
    "npulab.analysis.mismatch.summary": "mismatches",
    "npulab.analysis.probe": "probe_layout",
    "npulab.analysis.scan": "Probe Scan impulses scan scan_capture",
    "npulab.notebook.pictures": "bisection_trials correlation_map flip_map function_error "
        "law_map law_scatter layout_map memory_picture number_line output_comparison "
        "output_difference roofline stream_map",
    "npulab.notebook.sessions": "Session merge_sessions session",
    "npulab.notebook.widgets": "BisectView ByteView DiffView LawView MapEditor OutputView "
        "RegisterView",
    "npulab.cli.bench": "bench",
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names.split()}
__all__ = sorted([*_MODULES, "target"])


def target(name: str) -> Target:
    """The target of a name; raises LookupError with the known names."""
    from npulab.captures.registry import target

    return target(name)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'npulab' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
