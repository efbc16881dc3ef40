"""Samsung ONE's runtime, whose fully connected layers ruy multiplies: facts in the tables of this
folder.

A software runtime is a target too: a chip is a path of ruy's kernels, the words are the arguments
of one call.
"""

from npulab.npus.onert.facts import FACTS
from npulab.npus.onert.lifting import lift, outline
from npulab.npus.onert.lowering import lower
from npulab.npus.onert.memory import explain, recode
from npulab.npus.onert.rules import SEPARATE, rule_of
from npulab.npus.onert.simulate import simulate as run_simulated

TARGET = FACTS.target(
    "Samsung ONE runtime, fully connected layers by ruy",
    lift,
    lower,
    run_simulated,
    recode,
    explain,
    outline,
    rule_of,
    rule=SEPARATE,
    allowed={"dtype": ["uint8", "int8"], "op": ["fully_connected"]},
)
