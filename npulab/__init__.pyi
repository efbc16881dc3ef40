"""The public names; each is loaded when it is first used (``lazy_loader`` reads this file)."""

from .analysis.bisect import bisect_fields as bisect_fields
from .analysis.check import (
    check as check,
)
from .analysis.check import (
    diff as diff,
)
from .analysis.check import (
    explain as explain,
)
from .analysis.correlate import correlate as correlate
from .analysis.draft import draft as draft
from .analysis.explore import explore as explore
from .analysis.laws import find_laws as find_laws
from .analysis.mismatch.hypotheses import hypotheses as hypotheses
from .analysis.scan import scan_capture as scan_capture
from .analysis.unread import unread as unread
from .captures.capture import (
    Capture as Capture,
)
from .captures.capture import (
    CaptureSet as CaptureSet,
)
from .captures.devices import (
    Command as Command,
)
from .captures.devices import (
    Manual as Manual,
)
from .captures.devices import (
    Simulated as Simulated,
)
from .captures.registry import targets as targets
from .captures.sources import Compiler as Compiler
from .captures.store import (
    load as load,
)
from .captures.store import (
    load_all as load_all,
)
from .captures.store import (
    save as save,
)
from .captures.sweep import (
    Sweep as Sweep,
)
from .captures.sweep import (
    load_sweep as load_sweep,
)
from .captures.target import Target as Target
from .cli.bench import bench as bench
from .layout import find_layout as find_layout
from .models import (
    read_model as read_model,
)
from .models import (
    single_op_model as single_op_model,
)
from .notebook.sessions import session as session
from .notebook.widgets import RegisterView as RegisterView
from .quant.emulate import (
    ENGINES as ENGINES,
)
from .quant.emulate import (
    accumulate as accumulate,
)
from .quant.emulate import (
    emulate as emulate,
)
from .quant.identify import (
    identify_rounding as identify_rounding,
)
from .quant.identify import (
    rounding_probes as rounding_probes,
)
from .quant.layers import (
    Add as Add,
)
from .quant.layers import (
    Conv1D as Conv1D,
)
from .quant.layers import (
    Conv2D as Conv2D,
)
from .quant.layers import (
    FullyConnected as FullyConnected,
)
from .quant.layers import (
    Network as Network,
)
from .quant.layers import (
    Pool2D as Pool2D,
)
from .quant.rules import (
    RULES as RULES,
)
from .quant.rules import (
    QuantParams as QuantParams,
)
from .registers.formats import (
    read_map as read_map,
)
from .registers.formats import (
    write_map as write_map,
)
from .support.refuse import FormatError as FormatError

__version__: str

def target(name: str) -> Target: ...
