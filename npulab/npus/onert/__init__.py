"""Samsung ONE's runtime, whose fully connected layers ruy multiplies: facts in the tables beside
this file.

A software runtime is a target too: a chip is a path of ruy's kernels, the words are what one call
is told.
"""

from npulab.captures.target import Target, read_sources
from npulab.npus.onert.coefficients import explain, recode
from npulab.npus.onert.facts import CHIPS, HERE, TABLES
from npulab.npus.onert.lifting import lift
from npulab.npus.onert.lowering import lower
from npulab.npus.onert.outlines import outline
from npulab.npus.onert.rules import SEPARATE, rule_of
from npulab.npus.onert.simulate import simulate as run_simulated

TARGET = Target(
    name="onert",
    title="Samsung ONE runtime, fully connected layers by ruy",
    chips=CHIPS,
    tables=TABLES,
    rule=SEPARATE,
    lift=lift,
    lower=lower,
    simulate=run_simulated,
    recode=recode,
    explain=explain,
    outline=outline,
    rule_of=rule_of,
    sources=read_sources(HERE / "sources.csv"),
)
