"""NVDLA, the open accelerator: its facts are the tables next to this file."""

from npulab.captures.target import DocumentFormat
from npulab.npus.kit import Importer
from npulab.npus.nvdla import descriptors, imported, loadables, logs, simulate
from npulab.npus.nvdla.facts import FACTS
from npulab.npus.nvdla.lifting import explain, extent, lift, recode, rule_of
from npulab.npus.nvdla.lowering import lower
from npulab.npus.nvdla.points import RULE

TARGET = FACTS.target(
    "NVDLA, NVIDIA's open deep learning accelerator",
    lift,
    lower,
    simulate.simulate,
    recode,
    explain,
    extent,
    rule_of,
    simulate.replay,
    rule=RULE.name,
    stays_up=simulate.stays_up,
    importers=(
        Importer(
            "traces (.cfg or .txn with .dat images), a folder of them",
            imported.recognises,
            imported.read,
            imported.readers,
        ),
        Importer(
            "logs of register accesses (virtual platform, kernel driver, Verilator)",
            logs.recognises,
            logs.read,
        ),
    ),
    documents=(
        DocumentFormat("loadables of the compiler", loadables.recognises, loadables.list_loadable),
        DocumentFormat(
            "descriptors as the kernel driver prints them", descriptors.recognises, descriptors.read
        ),
    ),
    allowed={"dtype": ["int8"], "weight_zero_point": [0]},
)
