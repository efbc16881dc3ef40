"""Arm Ethos-U (U55, U65), as the Vela compiler programs it: facts in the tables of this
folder."""

from npulab.npus.ethosu import dumps
from npulab.npus.ethosu.coefficients import recode
from npulab.npus.ethosu.facts import FACTS
from npulab.npus.ethosu.lifting import lift, outline, split
from npulab.npus.ethosu.rules import RULE
from npulab.npus.kit import Importer

TARGET = FACTS.target(
    "Arm Ethos-U55 and U65",
    rule=RULE.name,
    rules=(RULE,),
    lift=lift,
    recode=recode,
    outline=outline,
    split=split,
    importers=(Importer("Vela's .tflite and driver payloads", dumps.recognises, dumps.read),),
)
