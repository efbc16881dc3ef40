"""Arm Ethos-U (U55, U65), as the Vela compiler programs it: facts in the tables beside this
file."""

from npulab.captures.target import Importer
from npulab.npus.ethosu import dumps
from npulab.npus.ethosu.coefficients import recode
from npulab.npus.ethosu.facts import FACTS

TARGET = FACTS.target(
    "Arm Ethos-U55 and U65",
    recode=recode,
    importers=(Importer("Vela's .tflite and driver payloads", dumps.recognises, dumps.read),),
)
