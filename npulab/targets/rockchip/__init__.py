"""Rockchip NPU (RK3588, RV1103, RV1106): facts in the tables beside this file."""

from npulab.target import Importer, Target, read_sources
from npulab.targets.rockchip import dumps, simulate
from npulab.targets.rockchip.coefficients import explain, recode
from npulab.targets.rockchip.commands import writes
from npulab.targets.rockchip.facts import CHIPS, HERE, TABLES
from npulab.targets.rockchip.lifting import lift, replay, rule_of
from npulab.targets.rockchip.lowering import lower
from npulab.targets.rockchip.plans import RULES

TARGET = Target(
    name="rockchip",
    title="Rockchip NPU of RK3588, RV1103, RV1106",
    chips=CHIPS,
    tables=TABLES,
    rule=RULES[False],
    lift=lift,
    lower=lower,
    simulate=simulate.simulate,
    recode=recode,
    explain=explain,
    writes=writes,
    replay=replay,
    rule_of=rule_of,
    importers=(Importer("text dumps of GEM buffers, files of commands and of task records, a folder of them",
                        dumps.recognises, dumps.read),),
    sources=read_sources(HERE / "sources.csv"),
)
