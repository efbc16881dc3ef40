"""Arm Ethos-U (U55, U65), as the Vela compiler programs it: facts in the tables beside this file."""

from npulab.captures.target import Importer, Target, read_sources
from npulab.npus.ethosu import dumps
from npulab.npus.ethosu.facts import CHIPS, HERE, TABLES

TARGET = Target(
    name="ethosu",
    title="Arm Ethos-U55 and U65",
    chips=CHIPS,
    tables=TABLES,
    importers=(Importer("Vela's .tflite and driver payloads", dumps.recognises, dumps.read),),
    sources=read_sources(HERE / "sources.csv"),
)
