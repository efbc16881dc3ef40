"""Samsung ONE's runtime, which runs fully connected layers by the library ruy: its facts are the
tables next to this file.

A software runtime is a target too: its chips are the paths of ruy (the kernels for one kind of
processor), its words are the arguments of one call of ruy.
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
