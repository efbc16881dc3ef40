"""Rockchip NPU (RK3588, RK3576, RV1103, RV1106): facts in the tables of this folder."""

from npulab.npus.kit import Importer
from npulab.npus.rockchip import compiled, dumps, simulate
from npulab.npus.rockchip.coefficients import explain, recode
from npulab.npus.rockchip.commands import writes
from npulab.npus.rockchip.facts import FACTS
from npulab.npus.rockchip.lifting import covers, extent, lift, replay, rule_of
from npulab.npus.rockchip.lowering import lower
from npulab.npus.rockchip.plans import RULES

TARGET = FACTS.target(
    "Rockchip NPU of RK3588, RK3576, RV1103, RV1106",
    lift,
    lower,
    simulate.simulate,
    recode,
    explain,
    writes,
    covers,
    extent,
    replay,
    rule_of,
    rule=RULES[False],
    importers=(
        Importer(
            "text dumps of GEM buffers, listings of EMIT(REG_...), files of commands and of task "
            "records, "
            "a folder of them",
            dumps.recognises,
            dumps.read,
        ),
        Importer("compiled models (.rknn)", compiled.recognises, compiled.read),
    ),
)
