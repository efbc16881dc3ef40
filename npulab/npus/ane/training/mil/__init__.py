"""Programs in MIL, Core ML's intermediate language, in the text form that the ANE compiler takes:
values of a program, reading and writing its text, checking it, running it, known faults."""

from npulab.npus.ane.training.mil.known_quirks import Quirk, quirks
from npulab.npus.ane.training.mil.reading import read, write
from npulab.npus.ane.training.mil.running import check, run
from npulab.npus.ane.training.mil.values import (
    Compound,
    File,
    Function,
    Group,
    Operation,
    Program,
    Type,
    Value,
)

__all__ = [
    "Compound",
    "File",
    "Function",
    "Group",
    "Operation",
    "Program",
    "Quirk",
    "Type",
    "Value",
    "check",
    "quirks",
    "read",
    "run",
    "write",
]
