"""npulab: a workbench for people who find out how an undocumented NPU works.

>>> import npulab
>>> npulab.targets()
['vivante']
"""

from __future__ import annotations

from npulab.capture import Capture, CaptureSet
from npulab.compare import Comparison, check, diff
from npulab.emulate import emulate
from npulab.layers import Conv2D
from npulab.quant import QuantParams
from npulab.store import load, load_all, save
from npulab.target import Target
from npulab.targets import target, targets

__version__ = "0.1.0"
__all__ = ["Capture", "CaptureSet", "Comparison", "Conv2D", "QuantParams", "Target", "check", "diff",
           "emulate", "load", "load_all", "save", "target", "targets"]
