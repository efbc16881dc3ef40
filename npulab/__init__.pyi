"""The public names; each is loaded when it is first used (``lazy_loader`` reads this file)."""

from .analysis.bisect import bisect_fields as bisect_fields
from .analysis.check import check as check, diff as diff, explain as explain
from .analysis.correlate import correlate as correlate
from .analysis.draft import draft as draft
from .analysis.explore import explore as explore
from .analysis.ignored import ignored_fields as ignored_fields
from .analysis.laws import find_constants as find_constants, find_laws as find_laws
from .analysis.lowered import lower_model as lower_model
from .analysis.mismatch.hypotheses import hypotheses as hypotheses
from .analysis.scan import scan_capture as scan_capture
from .captures.capture import Capture as Capture, CaptureSet as CaptureSet
from .captures.devices import Command as Command, Manual as Manual, Simulated as Simulated
from .captures.registry import targets as targets
from .captures.roles import roles as roles
from .captures.sources import Compiler as Compiler
from .captures.store import load as load, load_all as load_all, save as save
from .captures.sweep import Sweep as Sweep, load_sweep as load_sweep
from .captures.target import Target as Target
from .captures.words import read_words as read_words
from .cli.bench import bench as bench
from .layout import find_layout as find_layout
from .models import read_model as read_model, single_op_model as single_op_model
from .notebook.sessions import session as session
from .notebook.widgets import RegisterView as RegisterView
from .quant.emulate import ENGINES as ENGINES, accumulate as accumulate, emulate as emulate
from .quant.identify import identify_rounding as identify_rounding
from .quant.layers import (
    Add as Add,
    Conv1D as Conv1D,
    Conv2D as Conv2D,
    FullyConnected as FullyConnected,
    Network as Network,
    Pool2D as Pool2D,
)
from .quant.probes import rounding_probes as rounding_probes
from .quant.rules import RULES as RULES, QuantParams as QuantParams
from .registers.formats import read_map as read_map, write_map as write_map
from .support.refuse import FormatError as FormatError

__version__: str

def target(name: str) -> Target: ...
