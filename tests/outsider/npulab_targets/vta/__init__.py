"""vta, the Versatile Tensor Accelerator: what its one page says, as tables and modules."""

from npulab.target import Target

from .facts import CHIPS, SOURCES, TABLES, TOKENS
from .layers import ALLOWED, FLOOR, HALF_UP, explain, lift, lower, recode, rule_of, tensor
from .simulate import simulate
from .stream import IMPORTERS, idle

TARGET = Target(
    name="vta",
    title="Versatile Tensor Accelerator, programmed by a stream of instructions",
    chips=CHIPS,
    tables=TABLES,
    rule=FLOOR.name,
    lift=lift,
    lower=lower,
    simulate=simulate,
    recode=recode,
    explain=explain,
    tensor=tensor,
    rule_of=rule_of,
    importers=IMPORTERS,
    sources=SOURCES,
    rules=(FLOOR, HALF_UP),
    tokens=TOKENS,
    idle=idle,
    allowed=ALLOWED,
)
