"""npulab: a workbench for people who find out how an undocumented NPU works.

>>> import npulab
>>> "vivante" in npulab.targets()
True
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

import npulab.target  # noqa: F401 - before the function below takes the name of this module

if TYPE_CHECKING:
    from npulab.captures.target import Target

__version__ = "0.1.0"

# Public names by the module that defines them; each is loaded when one of its names is asked for.
_PUBLIC = {
    "npulab.support.refuse": "FormatError",
    "npulab.registers.formats": "read_map write_map",
    "npulab.layout": "find_layout",
    "npulab.quant.emulate": "ENGINES accumulate emulate",
    "npulab.quant.identify": "identify_rounding rounding_probes",
    "npulab.quant.layers": "Add Conv1D Conv2D FullyConnected Network Pool2D",
    "npulab.quant.rules": "QuantParams RULES",
    "npulab.models": "read_model single_op_model",
    "npulab.captures.capture": "Capture CaptureSet",
    "npulab.captures.devices": "Command Manual Simulated",
    "npulab.captures.registry": "targets",
    "npulab.captures.sources": "Compiler",
    "npulab.captures.store": "load load_all save",
    "npulab.captures.sweep": "Sweep load_sweep",
    "npulab.analysis.bisect": "bisect_fields",
    "npulab.analysis.check": "check diff explain",
    "npulab.analysis.correlate": "correlate",
    "npulab.analysis.draft": "draft",
    "npulab.analysis.explore": "explore",
    "npulab.analysis.laws": "find_laws",
    "npulab.analysis.mismatch.hypotheses": "hypotheses",
    "npulab.analysis.scan": "scan_capture",
    "npulab.analysis.unread": "unread",
    "npulab.notebook.sessions": "session",
    "npulab.notebook.widgets": "RegisterView",
    "npulab.cli.bench": "bench",
}
# Names that npulab had until November 2026; they stay until November 2027, with a warning.
_DEPRECATED = {
    "npulab.layout": "Layout markers",
    "npulab.quant.codes": "codes_by_rule",
    "npulab.quant.emulate": "Saturation outputs prepare",
    "npulab.quant.floats": "ulps",
    "npulab.quant.layers": "Activation Concat Elementwise",
    "npulab.models": "check_sweep model_memory write_model write_sweep",
    "npulab.captures.capture": "Job",
    "npulab.captures.devices": "Recorder device",
    "npulab.captures.journal": "Journal",
    "npulab.captures.sweep": "save_sweep sweep_of",
    "npulab.captures.target": "Target",
    "npulab.analysis.bisect": "Bisection mix",
    "npulab.analysis.check": "Comparison diff_buffers",
    "npulab.analysis.correlate": "best_related bit_effects flips related",
    "npulab.analysis.draft": "Draft",
    "npulab.analysis.laws": "FieldLaw Laws plan_sweep",
    "npulab.analysis.mismatch.model_run": "check_run",
    "npulab.analysis.mismatch.summary": "mismatches",
    "npulab.analysis.probe": "probe_layout",
    "npulab.analysis.scan": "Probe Scan impulses scan",
    "npulab.notebook.pictures": "bisection_trials correlation_map flip_map function_error "
        "law_map law_scatter layout_map memory_picture number_line output_comparison "
        "output_difference roofline stream_map",
    "npulab.notebook.sessions": "Session merge_sessions",
    "npulab.notebook.widgets": "BisectView ByteView DiffView LawView MapEditor OutputView SweepView",
}
_RENAMED = {"neighbours": ("npulab.analysis.mismatch.hypotheses", "hypotheses")}


def _by_name(names_of: dict[str, str]) -> dict[str, str]:
    """The module of each name."""
    return {name: module for module, names in names_of.items() for name in names.split()}


_MODULES = _by_name(_PUBLIC)
__all__ = sorted([*_MODULES, "target"])


def target(name: str) -> Target:
    """The target of a name; raises LookupError with the known names."""
    from npulab.captures.registry import target

    return target(name)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        if _MODULES[name].startswith("npulab.quant"):  # which takes names of rules; targets state some
            importlib.import_module("npulab.captures.registry")
        value = getattr(importlib.import_module(_MODULES[name]), name)
        globals()[name] = value
        return value
    module, now = _RENAMED.get(name) or (_by_name(_DEPRECATED).get(name, ""), name)
    if not module:
        raise AttributeError(f"module 'npulab' has no attribute {name!r}")
    warnings.warn(f"npulab.{name} is now {module}.{now}", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(module), now)


def __dir__() -> list[str]:
    return __all__
