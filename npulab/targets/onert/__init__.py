"""Samsung ONE's runtime, whose fully connected layers ruy multiplies: facts in the tables beside this file.

A software runtime is a target too: a chip is a path of ruy's kernels, the words are what one call is told.
"""

from npulab.target import Target, read_sources
from npulab.targets.onert.coefficients import explain, recode
from npulab.targets.onert.facts import CHIPS, HERE, TABLES
from npulab.targets.onert.lifting import lift
from npulab.targets.onert.lowering import lower
from npulab.targets.onert.outlines import outline
from npulab.targets.onert.rules import SEPARATE, rule_of
from npulab.targets.onert.simulate import simulate

TARGET = Target(
    name="onert",
    title="Samsung ONE runtime, fully connected layers by ruy",
    chips=CHIPS,
    tables=TABLES,
    rule=SEPARATE,
    lift=lift,
    lower=lower,
    simulate=simulate,
    recode=recode,
    explain=explain,
    outline=outline,
    rule_of=rule_of,
    sources=read_sources(HERE / "sources.csv"),
)
