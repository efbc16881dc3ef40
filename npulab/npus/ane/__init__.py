"""Apple Neural Engine (H11 to H18), with its facts in the tables of this folder."""

from npulab.captures.target import DocumentFormat
from npulab.npus.ane import beside, imported, mil_files, simulate
from npulab.npus.ane.facts import FACTS
from npulab.npus.ane.lifting import extent, lift
from npulab.npus.ane.lowering import lower
from npulab.npus.ane.outlines import explain, outline, recode
from npulab.npus.kit import Importer

TARGET = FACTS.target(
    "Apple Neural Engine",
    rule="fp16",
    lift=lift,
    lower=lower,
    simulate=simulate.simulate,
    recode=recode,
    explain=explain,
    outline=outline,
    extent=extent,
    claims=beside.claims,
    importers=(
        Importer(
            "compiled files (hwx), bare task lists of H13, a folder of them",
            imported.recognises,
            imported.read,
        ),
    ),
    documents=(
        DocumentFormat("MIL programs (.mil)", mil_files.recognises, mil_files.list_program),
    ),
    allowed={"dtype": ["float16"]},
)
