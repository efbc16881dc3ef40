"""wren, an NPU that does not exist: what its one page says, as tables and modules."""

from npulab.target import Target

from .facts import CHIPS, SOURCES, TABLES
from .layers import TowardZero, explain, lift, lower, recode, tensor
from .simulate import simulate
from .stream import IMPORTERS

TARGET = Target(
    name="wren",
    title="an NPU that does not exist",
    chips=CHIPS,
    tables=TABLES,
    rule="wren:toward-zero",
    lift=lift,
    lower=lower,
    simulate=simulate,
    recode=recode,
    explain=explain,
    tensor=tensor,
    importers=IMPORTERS,
    sources=SOURCES,
    rules=(TowardZero("wren:toward-zero"),),
    variants=("output", "rounding"),
)
