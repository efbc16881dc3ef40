"""VeriSilicon NN engine (VIPNano-QI and relatives): its facts are the tables next to this file."""

from npulab.npus.kit import Importer
from npulab.npus.vivante import command_texts, dump, mesa, simulate
from npulab.npus.vivante.commands import writes
from npulab.npus.vivante.facts import FACTS
from npulab.npus.vivante.lifting import explain, extent, lift, outline, recode, rule_of
from npulab.npus.vivante.lowering import lower
from npulab.npus.vivante.nb import imported
from npulab.npus.vivante.words import MULTIPLIERS

TARGET = FACTS.target(
    "VeriSilicon NN engine, VIPNano-QI and relatives",
    lift,
    lower,
    simulate.simulate,
    recode,
    explain,
    writes,
    outline,
    extent,
    rule_of,
    imported.claims,
    imported.split,
    rule=MULTIPLIERS["nn_v7"].name,
    importers=(
        Importer("text dump of both stacks (update 4)", dump.recognises, dump.read),
        Importer(
            "text of a command stream (LOAD_STATE)", command_texts.recognises, command_texts.read
        ),
        Importer("folder of mesa-*.bin files (Mesa's dump_shaders)", mesa.recognises, mesa.read),
        Importer(
            "network binary graphs of the vendor's compiler (.nb)",
            imported.recognises,
            imported.read,
        ),
    ),
)
