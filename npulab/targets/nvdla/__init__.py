"""NVDLA, the open accelerator: facts in the tables beside this file."""

from npulab.target import Importer, Target, read_sources
from npulab.targets.nvdla import imported, simulate
from npulab.targets.nvdla.facts import CHIPS, HERE, TABLES
from npulab.targets.nvdla.lifting import explain, lift, recode, rule_of
from npulab.targets.nvdla.lowering import lower
from npulab.targets.nvdla.points import RULE
from npulab.targets.nvdla.replay import replay

TARGET = Target(
    name="nvdla",
    title="NVDLA, NVIDIA's open deep learning accelerator",
    chips=CHIPS,
    tables=TABLES,
    rule=RULE.name,
    lift=lift,
    lower=lower,
    simulate=simulate.simulate,
    recode=recode,
    explain=explain,
    rule_of=rule_of,
    replay=replay,
    importers=(Importer("traces (.cfg or .txn with .dat images), a folder of them", imported.recognises,
                        imported.read, imported.readers),),
    sources=read_sources(HERE / "sources.csv"),
)
